//! One replica for tests: consensus on a log in memory, no network between replicas.

use muster_consensus::{Consensus, ConsensusConfig, ReplicaNode, SnapshotPolicy, Timing};
use muster_decider::BootstrapConfig;
use muster_engine::{Engine, EngineConfig, ReplicaInfo, replicated};
use muster_store::{MemoryDisk, ReplicaStore, SnapshotStore, StoreOptions};
use muster_types::{ClusterId, LogIndex, Name, Parameters, ReplicaId};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const CLUSTER: ClusterId = ClusterId(0xa71);

/// A replica that is in no cluster: nobody leads.
pub(crate) async fn engine_alone() -> Engine {
    engine_of(BootstrapConfig::new(CLUSTER, Parameters::DEFAULT)).await
}

async fn engine_of(founding: BootstrapConfig) -> Engine {
    let options = StoreOptions::small();
    let snapshots = SnapshotStore::memory(&options);
    let store = ReplicaStore::in_memory(MemoryDisk::default(), snapshots, options).expect("memory opens");
    let mut settings = ConsensusConfig::new(CLUSTER, ReplicaId(1));
    settings.timing =
        Timing { heartbeat_interval_ms: 20, election_timeout_min_ms: 50, election_timeout_max_ms: 100 };
    settings.snapshots = SnapshotPolicy::ON_DEMAND;
    let (application, view) = replicated(muster_journal::FORMAT_MAX);
    let consensus = Consensus::start(settings, store, application).await.expect("it starts");
    let config = EngineConfig {
        founding,
        client_commands_waiting_max: 64,
        node_commands_waiting_max: 64,
        contain_faults: false,
    };
    let info = ReplicaInfo { replica: ReplicaId(1), region: Name::new("eu").expect("a name") };
    Engine::start(config, info, view, consensus)
}

/// A replica that leads a cluster of one.
pub(crate) async fn leader() -> Engine {
    lead(engine_alone().await).await
}

/// The same with certificates.
pub(crate) async fn leader_with_certificates() -> Engine {
    let founding = BootstrapConfig {
        admission: muster_types::AdmissionMode::Pinned,
        ..BootstrapConfig::new(CLUSTER, Parameters::DEFAULT)
    };
    lead(engine_of(founding).await).await
}

async fn lead(engine: Engine) -> Engine {
    let node = ReplicaNode {
        region: "eu".to_owned(),
        peer_endpoint: "here".to_owned(),
        client_endpoint: "http://here".to_owned(),
    };
    engine.consensus().initialize(BTreeMap::from([(ReplicaId(1), node)])).await.expect("it forms");
    engine.wait_applied(LogIndex(3), Duration::from_secs(30)).await.expect("it is founded");
    engine
}
