//! Bounds of the listener for clients and agents.

use std::time::Duration;

use muster_transport::AcceptLimits;

use crate::guard::CallLimits;

/// Bounds of the client listener.
#[derive(Clone, Copy, Debug)]
pub struct ApiConfig {
    /// Bytes of one message from a client; a batch of 1,000 jobs fits.
    pub message_bytes_max: usize,
    /// Bytes of one message of an agent: its registration with all it holds, or a piece of output.
    pub node_message_bytes_max: usize,
    /// Bytes of one message that only asks for something.
    pub small_message_bytes_max: usize,
    /// Calls of one connection at a time.
    pub calls_per_connection_max: usize,
    /// Calls and streams of one connection at a time. A follower carries the sessions of all its
    /// agents to the leader on one.
    pub streams_per_connection_max: u32,
    /// How long a write may take when its caller sets no deadline.
    pub write_timeout: Duration,
    /// How long this replica may be made silent for a drill at most; zero for not at all.
    pub drill_refusal_max: Duration,
    /// What each caller may have open at a time.
    pub calls: CallLimits,
    /// Whether callers may show a token in the place of a certificate.
    pub tokens: bool,
    /// How many connections and handshakes there may be, and how long a handshake may take.
    pub accept: AcceptLimits,
}

impl ApiConfig {
    /// What a server gets that says nothing.
    pub const DEFAULT: ApiConfig = ApiConfig {
        message_bytes_max: 4 << 20,
        node_message_bytes_max: 2 << 20,
        small_message_bytes_max: 256 << 10,
        calls_per_connection_max: 1_024,
        streams_per_connection_max: 262_144,
        write_timeout: Duration::from_secs(30),
        drill_refusal_max: Duration::from_secs(60),
        calls: CallLimits::DEFAULT,
        tokens: false,
        accept: AcceptLimits::DEFAULT,
    };
}
