//! The environment of a simulated replica: which parts `muster-consensus` runs on.

use crate::machine::SimMachine;
use crate::peers::SimPeers;
use crate::raft_runtime::SimConfig;
use crate::runtime;
use crate::storage::SimStorage;
use futures::FutureExt;
use futures::future::BoxFuture;
use muster_consensus::Environment;
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResult;
use openraft::type_config::alias::WriteResponderOf;
use std::sync::OnceLock;
use std::time::Duration;

impl Environment for SimConfig {
    type Machine = SimMachine;
    type Storage = SimStorage;
    type Peers = SimPeers;

    fn responder() -> (WriteResponderOf<Self>, BoxFuture<'static, Option<ClientWriteResult<Self>>>) {
        let (responder, answer) = ProgressResponder::complete_only();
        (responder, answer.map(Result::ok).boxed())
    }

    fn instant() -> std::time::Instant {
        // Some instant: only differences to it mean anything.
        static BASE: OnceLock<std::time::Instant> = OnceLock::new();
        *BASE.get_or_init(std::time::Instant::now) + Duration::from_nanos(runtime::local_ns())
    }

    fn unix_ms() -> u64 {
        runtime::wall_ms()
    }
}
