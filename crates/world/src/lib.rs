//! Whole clusters in one process under a seed: openraft, the decider, the state and the journal as they are,
//! over a simulated network, simulated disks and simulated clocks, with agents, clients and faults.
#![allow(missing_docs, reason = "growing")]
pub mod disk;
pub mod network;
pub mod raft_runtime;
pub mod runtime;
