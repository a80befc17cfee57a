//! Reads on three replicas in one process, with connections between them that can be cut.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use muster_consensus::{Consensus, ConsensusConfig, ReplicaNode, SnapshotPolicy};
use muster_decider::{BootstrapConfig, Command};
use muster_engine::{Engine, EngineConfig, Reading, ReplicaInfo, replicated};
use muster_journal::FORMAT_MAX;
use muster_store::{MemoryDisk, ReplicaStore, SnapshotStore, StoreOptions};
use muster_types::policy::Policy;
use muster_types::{
    ClusterId, Consistency, LogIndex, LogTime, Name, Parameters, PastPoint, ReadFrom, Refusal, RefusalCode,
    ReplicaId, RequestId,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

const CLUSTER: ClusterId = ClusterId(0x4ead);
const GUARD: Duration = Duration::from_secs(60);

async fn guarded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(GUARD, future).await {
        Ok(value) => value,
        Err(_) => panic!("nothing happened: {what}"),
    }
}

/// Carries connections to one replica for another while it is open; cuts and refuses them otherwise.
async fn cable(target: SocketAddr, open: watch::Receiver<bool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut open = open.clone();
            tokio::spawn(async move {
                if !*open.borrow_and_update() {
                    return;
                }
                let Ok(mut far) = TcpStream::connect(target).await else { return };
                near.set_nodelay(true).unwrap();
                far.set_nodelay(true).unwrap();
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    _ = open.wait_for(|open| !open) => {}
                }
            });
        }
    });
    address
}

struct Cluster {
    engines: BTreeMap<u64, Engine>,
    /// Whether a replica is connected with the others.
    connected: BTreeMap<u64, watch::Sender<bool>>,
}

impl Cluster {
    async fn start() -> Cluster {
        let connected: BTreeMap<u64, _> = (1..=3).map(|id| (id, watch::Sender::new(true))).collect();
        let mut listeners = BTreeMap::new();
        for id in 1..=3u64 {
            listeners.insert(id, TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let addresses: BTreeMap<u64, SocketAddr> =
            listeners.iter().map(|(id, listener)| (*id, listener.local_addr().unwrap())).collect();
        let mut cables = BTreeMap::new();
        for source in 1..=3u64 {
            for target in (1..=3u64).filter(|target| *target != source) {
                let both = both(connected[&source].subscribe(), connected[&target].subscribe());
                cables.insert((source, target), cable(addresses[&target], both).await);
            }
        }
        let mut engines = BTreeMap::new();
        for (id, listener) in listeners {
            let routes: BTreeMap<u64, SocketAddr> = cables
                .iter()
                .filter(|((source, _), _)| *source == id)
                .map(|((_, to), at)| (*to, *at))
                .collect();
            engines.insert(id, start(id, listener, routes).await);
        }
        let node = |id: u64| ReplicaNode {
            region: "eu".to_owned(),
            peer_endpoint: format!("replica-{id}"),
            client_endpoint: format!("http://client-{id}"),
        };
        let members: BTreeMap<_, _> = (1..=3).map(|id| (ReplicaId(id), node(id))).collect();
        for engine in engines.values() {
            engine.consensus().initialize(members.clone()).await.unwrap();
        }
        Cluster { engines, connected }
    }

    async fn leader_among(&self, ids: &[u64]) -> u64 {
        let waits = ids.iter().map(|id| {
            let mut leadership = self.engines[id].leadership();
            Box::pin(
                async move { leadership.wait_for(|view| view.mine.is_some()).await.map(|_| *id).unwrap() },
            )
        });
        guarded("a leader", futures::future::select_all(waits)).await.0
    }

    /// Sets the policy through the replica that leads; the index of the record.
    async fn write(&self, ids: &[u64], request: u128) -> LogIndex {
        guarded("a write", async {
            loop {
                let leader = self.leader_among(ids).await;
                let policy = Box::new(Policy::default());
                let command = Command::SetPolicy {
                    request: RequestId(request),
                    by: muster_types::Requester::default(),
                    policy,
                    expected_version: None,
                };
                match self.engines[&leader].execute(command).await {
                    Ok(answer) => return answer.at(),
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        })
        .await
    }

    async fn read(&self, id: u64, consistency: Consistency, patience: u64) -> Result<Reading, Refusal> {
        let from = ReadFrom::Present { consistency, min_log_index: LogIndex::ZERO };
        let deadline = Instant::now() + Duration::from_millis(patience);
        guarded("a read", self.engines[&id].read_view(from, deadline)).await
    }
}

/// True while both are.
fn both(mut one: watch::Receiver<bool>, mut other: watch::Receiver<bool>) -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(true);
    tokio::spawn(async move {
        loop {
            sender.send_replace(*one.borrow_and_update() && *other.borrow_and_update());
            tokio::select! {
                changed = one.changed() => if changed.is_err() { return },
                changed = other.changed() => if changed.is_err() { return },
            }
        }
    });
    receiver
}

async fn start(id: u64, listener: TcpListener, routes: BTreeMap<u64, SocketAddr>) -> Engine {
    let options = StoreOptions::small();
    let snapshots = SnapshotStore::memory(&options);
    let store = ReplicaStore::in_memory(MemoryDisk::default(), snapshots, options).unwrap();
    let mut settings = ConsensusConfig::new(CLUSTER, ReplicaId(id));
    settings.snapshots = SnapshotPolicy::ON_DEMAND;
    settings.dial = Some(std::sync::Arc::new(move |target, _| routes[&target.0].to_string()));
    let (application, view) = replicated(FORMAT_MAX);
    let consensus = Consensus::start(settings, store, application).await.unwrap();
    let serving = consensus.clone();
    tokio::spawn(async move { serving.serve_peers(listener, std::future::pending()).await });
    let config = EngineConfig {
        founding: BootstrapConfig::new(CLUSTER, Parameters::DEFAULT),
        client_commands_waiting_max: 64,
        node_commands_waiting_max: 64,
        contain_faults: false,
    };
    let info = ReplicaInfo { replica: ReplicaId(id), region: Name::new("eu").unwrap() };
    Engine::start(config, info, view, consensus)
}

fn fact<T: std::str::FromStr>(refusal: &Refusal, name: &str) -> Option<T> {
    refusal.metadata.iter().find(|(known, _)| *known == name).and_then(|(_, value)| value.parse().ok())
}

const HALF_A_SECOND: Consistency = Consistency::Bounded { max_staleness_ms: 500 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_answers_under_every_consistency_and_says_how_old_it_is_when_it_is_cut_off() {
    let cluster = Cluster::start().await;
    let leader = cluster.leader_among(&[1, 2, 3]).await;
    let follower = leader % 3 + 1;
    for request in 1..=20 {
        let at = cluster.write(&[1, 2, 3], request).await;
        let reading = cluster.read(follower, Consistency::Linearizable, 20_000).await.unwrap();
        assert!(reading.policy().version >= at, "{} after {at}", reading.policy().version);
        assert!(reading.staleness().is_some());
    }
    cluster.read(follower, HALF_A_SECOND, 20_000).await.unwrap();

    cluster.connected[&follower].send_replace(false);
    let cut = Instant::now();
    let rest: Vec<u64> = (1..=3).filter(|id| *id != follower).collect();
    let missed = cluster.write(&rest, 100).await;
    let any = cluster.read(follower, Consistency::Any, 20_000).await.unwrap();
    assert!(any.policy().version < missed, "it cannot know of that");
    // A bound that is wide enough is kept without anybody else.
    let an_hour = Consistency::Bounded { max_staleness_ms: 3_600_000 };
    let old = cluster.read(follower, an_hour, 20_000).await.unwrap();
    assert!(old.staleness().unwrap() <= cut.elapsed() + Duration::from_secs(60));
    tokio::time::sleep(Duration::from_millis(600).saturating_sub(cut.elapsed())).await;
    let refusal = cluster.read(follower, HALF_A_SECOND, 20_000).await.err().unwrap();
    assert_eq!(refusal.code, RefusalCode::TooStale);
    let measured: u64 = fact(&refusal, "staleness_ms").unwrap();
    assert!(measured > 500, "{refusal}");
    let began = Instant::now();
    let refusal = cluster.read(follower, Consistency::Linearizable, 700).await.err().unwrap();
    assert_eq!(refusal.code, RefusalCode::ReadUnconfirmed);
    assert!(began.elapsed() >= Duration::from_millis(400), "it waits for a leader while its caller does");
    assert!(fact::<u64>(&refusal, "staleness_ms").unwrap() > measured, "{refusal}");

    cluster.connected[&follower].send_replace(true);
    let healed = cluster.read(follower, Consistency::Linearizable, 30_000).await.unwrap();
    assert!(healed.policy().version >= missed);
    cluster.read(follower, HALF_A_SECOND, 20_000).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_linearizable_read_is_held_through_an_election() {
    let cluster = Cluster::start().await;
    let at = cluster.write(&[1, 2, 3], 1).await;
    let leader = cluster.leader_among(&[1, 2, 3]).await;
    cluster.connected[&leader].send_replace(false);
    let rest: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    let reads = rest.iter().map(|id| cluster.read(*id, Consistency::Linearizable, 40_000));
    for reading in futures::future::join_all(reads).await {
        assert!(reading.unwrap().policy().version >= at);
    }
    // The one that led knows at least that it cannot tell.
    let refusal = cluster.read(leader, Consistency::Linearizable, 700).await.err().unwrap();
    assert_eq!(refusal.code, RefusalCode::ReadUnconfirmed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_past_needs_an_archive_and_the_future_is_waited_for_and_refused() {
    let cluster = Cluster::start().await;
    cluster.write(&[1, 2, 3], 1).await;
    let engine = &cluster.engines[&1];
    let deadline = || Instant::now() + Duration::from_millis(300);
    for at in [PastPoint::Index(LogIndex(1)), PastPoint::Time(LogTime(1))] {
        let refusal =
            guarded("the past", engine.read_view(ReadFrom::Past(at), deadline())).await.err().unwrap();
        // Nobody has said here where history is kept.
        assert_eq!(refusal.code, RefusalCode::ClusterNotReady);
    }
    for consistency in [Consistency::Any, HALF_A_SECOND, Consistency::Linearizable] {
        let from = ReadFrom::Present { consistency, min_log_index: LogIndex(1 << 40) };
        let began = Instant::now();
        let refusal = guarded("the future", engine.read_view(from, deadline())).await.err().unwrap();
        assert_eq!(refusal.code, RefusalCode::LogIndexNotReached);
        assert!(began.elapsed() >= Duration::from_millis(250), "it is waited for");
    }
}

/// A refusal rests on what its leader knows: it is told once a quorum says that this is the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_refuses_nothing_as_if_it_led() {
    let cluster = Cluster::start().await;
    cluster.write(&[1, 2, 3], 1).await;
    let leader = cluster.leader_among(&[1, 2, 3]).await;
    let cancel = |request| Command::cancel(RequestId(request), muster_types::JobId(77));
    let engine = &cluster.engines[&leader];
    let refused = guarded("a refusal", engine.execute(cancel(2))).await.unwrap_err();
    assert_eq!(refused.code, RefusalCode::JobNotFound);
    let soon = || Instant::now() + Duration::from_secs(2);
    let unknown = muster_types::JobId(77);
    let view = guarded("a state", engine.view_with_job(unknown, soon())).await.unwrap();
    assert!(view.tenant_of(unknown).is_none());
    cluster.connected[&leader].send_replace(false);
    // Another may lead by the time it is answered, and have the job.
    let answer = guarded("an answer", engine.execute(cancel(3))).await.unwrap_err();
    assert!(matches!(answer.code, RefusalCode::NotLeader | RefusalCode::OutcomeUnknown), "{answer}");
    let answer = guarded("an answer", engine.view_with_job(unknown, soon())).await.unwrap_err();
    assert_eq!(answer.code, RefusalCode::ReadUnconfirmed, "{answer}");
}
