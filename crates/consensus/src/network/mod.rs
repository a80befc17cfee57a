//! Replicas talking to each other over gRPC.
//!
//! **Invariant:** nothing from a peer of another cluster or generation, or meant for another
//! replica, is acted on.
//! **Invariant:** every message is bounded; no byte from the network panics.

mod channel;
mod client;
mod convert;
mod refusal;
mod server;
mod snapshots;

pub(crate) use channel::PeerNetwork;
pub use server::{PeerService, peer_server};
