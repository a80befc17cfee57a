//! gRPC services: limits, forwarding, status mapping.
//!
//! Every replica serves every call. Reads are answered from the local applied state, as fresh as
//! the caller asks (`min_log_index`); writes and sessions are passed on to the leader, and a change
//! of leader on the way is ridden out here as long as the caller waits, because repeating a write
//! under its request id repeats its answer and not its effect.
//!
//! **Invariant:** decides nothing: a message becomes a command or a refusal that names the field.
//! **Invariant:** what a caller sends is bounded before it is looked at.

mod admin_service;
mod cluster_service;
mod explanation;
mod fleet_service;
mod forward;
mod job_service;
mod node_service;
mod policy_service;
mod read;
mod render;
#[cfg(test)]
mod sample;
mod server;
#[cfg(test)]
mod tests;
mod warnings;
mod watcher;

pub use server::{ApiConfig, ServeError, serve};
