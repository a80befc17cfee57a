//! One probe of the network, as a host that takes part is told of it.

use std::time::Duration;

/// How much is sent, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in one direction of one pair.
    pub pair_bytes: u64,
    /// Time of one direction of one pair.
    pub pair: Duration,
    /// Bytes that are reduced in the ring.
    pub ring_bytes: u64,
    /// Everything together.
    pub budget: Duration,
}

/// One probe, as a host that takes part is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What connections have to show.
    pub key: u128,
    /// This host's place in `peers`.
    pub own: u32,
    /// Where everybody listens.
    pub peers: Vec<(String, u16)>,
    /// How much of it.
    pub limits: Limits,
}
