//! Calls between replicas: over gRPC in a server, over a simulated network in a simulation (`transport.rs`).
//!
//! **Invariant:** nothing from a peer of another cluster or generation, or meant for another
//! replica, is acted on.
//! **Invariant:** every message is bounded; no byte from the network panics.

mod channel;
mod client;
mod convert;
mod grpc;
mod refusal;
mod server;
mod snapshots;
mod transport;

pub use channel::{PeerChannel, PeerNetwork};
pub use client::PeerClient;
pub use grpc::Grpc;
pub(crate) use server::ServedReplica;
pub use server::{PeerService, peer_server};
pub use transport::{Arriving, Connection, Transport};
