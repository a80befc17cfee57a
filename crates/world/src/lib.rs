//! Whole clusters in one process under a seed.
//!
//! What decides is the product's: openraft with the product's settings, all of `muster-consensus` with both ends
//! of the calls between replicas, all of `muster-engine` with its loops, the decider, the planner, the state, the
//! journal, the log with its writer (`muster_store::LogWriter`), and what an agent decides (`muster_agent::rules`). What
//! carries it is simulated: executor and clock, network, disks, workers. The log's format on a disk, the state machine adapter, clients, and the
//! parts of an agent that decide nothing are written here a second time. gRPC, TLS, encoding to bytes, the store's files and
//! threads, the archive and the agents' shims are not here: tests over real processes have them.
//!
//! **Invariant:** the same seed is the same run, to the last event.
//! **Invariant:** nothing here is part of any other crate; no crate is built otherwise because of it.

pub mod accounts;
pub mod admin_client;
pub mod agent;
pub mod asked;
pub mod checks;
pub mod clients;
pub mod cluster;
pub mod disk;
pub mod environment;
pub mod faults;
pub mod follower;
pub mod link;
pub mod log_disk;
pub mod log_store;
pub mod machine;
pub mod network;
pub mod operator;
pub mod pace;
pub mod peers;
pub mod raft_runtime;
pub mod replica;
pub mod runtime;
pub mod settings;
pub mod simulation;
pub mod site;
pub mod storage;
pub mod swarm;
pub mod workers;
