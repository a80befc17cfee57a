//! Replicas talking to each other over gRPC.
//!
//! **Invariant:** nothing from a peer of another cluster, or meant for another replica, is acted on.
//! **Invariant:** every message is bounded; no byte from the network panics.

mod client;
mod convert;
mod server;

pub(crate) use client::{PeerNetwork, PeerReader};
pub use server::{PeerService, peer_server};
