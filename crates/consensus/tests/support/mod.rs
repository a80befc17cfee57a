//! Several replicas in one process, over real connections, each pair through a separate proxy
//! that can lose one direction.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]
#![allow(dead_code, reason = "every test uses a part of it")]

use bytes::Bytes;
use muster_consensus::{
    Application, ApplicationError, CommittedEntry, Consensus, ConsensusConfig, SnapshotData, SnapshotPolicy,
    SnapshotSource,
};
use muster_store::{
    FIRST_GENERATION, FileLayer, Identity, MemoryDisk, OpenMode, Rejoin, ReplicaNode, ReplicaStore,
    SnapshotStore, StoreOptions,
};
use muster_types::{ClusterId, Leadership, ReplicaId};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

pub const CLUSTER: ClusterId = ClusterId(0x00c1_0513);
const GUARD: Duration = Duration::from_secs(60);

/// Waits until a condition holds that makes no event.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    guarded(what, async {
        let mut look = tokio::time::interval(Duration::from_millis(10));
        while !is_so() {
            look.tick().await;
        }
    })
    .await;
}

/// Fails the test instead of hanging it.
pub async fn guarded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(GUARD, future).await {
        Ok(value) => value,
        Err(_) => panic!("nothing happened: {what}"),
    }
}

pub fn show_logs() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}

/// What was applied, as the test sees it.
pub type Journal = watch::Receiver<Vec<CommittedEntry>>;

/// Remembers what it is told.
pub struct Recorder {
    entries: watch::Sender<Vec<CommittedEntry>>,
    pub panic_on: Option<Bytes>,
}

impl Recorder {
    pub fn new() -> (Recorder, Journal) {
        let (entries, journal) = watch::channel(Vec::new());
        (Recorder { entries, panic_on: None }, journal)
    }
}

impl Application for Recorder {
    fn apply(&mut self, entries: &[CommittedEntry]) {
        for entry in entries {
            assert!(self.panic_on.is_none() || entry.payload != self.panic_on, "told to");
        }
        self.entries.send_modify(|all| {
            for entry in entries {
                if let Some(last) = all.last() {
                    assert_eq!(entry.raft_index, last.raft_index + 1, "in order, none twice, none skipped");
                }
                all.push(entry.clone());
            }
        });
    }

    fn snapshot(&self) -> Box<dyn SnapshotSource> {
        Box::new(Copied(self.entries.borrow().clone()))
    }

    fn restore(&mut self, data: SnapshotData) -> Result<(), ApplicationError> {
        let mut bytes = Vec::new();
        for chunk in data {
            bytes.extend_from_slice(&chunk?);
        }
        let mut entries = Vec::new();
        let mut rest = Bytes::from(bytes);
        while !rest.is_empty() {
            let head = rest.split_to(29);
            let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
            let payload = rest.split_to(u32::from_le_bytes(head[25..29].try_into().unwrap()) as usize);
            let (raft_index, term, leader) = (word(0), word(8), ReplicaId(word(16)));
            entries.push(CommittedEntry {
                raft_index,
                term,
                leader,
                payload: (head[24] == 1).then_some(payload),
            });
        }
        self.entries.send_replace(entries);
        Ok(())
    }
}

struct Copied(Vec<CommittedEntry>);

impl SnapshotSource for Copied {
    fn chunks(self: Box<Self>) -> Box<dyn Iterator<Item = Bytes> + Send> {
        Box::new(self.0.into_iter().map(|entry| {
            let mut out = Vec::new();
            out.extend_from_slice(&entry.raft_index.to_le_bytes());
            out.extend_from_slice(&entry.term.to_le_bytes());
            out.extend_from_slice(&entry.leader.0.to_le_bytes());
            out.push(u8::from(entry.payload.is_some()));
            let payload = entry.payload.unwrap_or_default();
            out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
            out.extend_from_slice(&payload);
            Bytes::from(out)
        }))
    }
}

/// What a proxy does with the bytes of each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    pub lose_requests: bool,
    pub lose_answers: bool,
    /// Each connection breaks after this many bytes of requests.
    pub break_after_bytes: Option<usize>,
}

/// Carries connections from one replica to another and can lose either direction, silently.
pub struct Proxy {
    pub address: SocketAddr,
    pub target: watch::Sender<Option<SocketAddr>>,
    pub fault: watch::Sender<Fault>,
    /// Bytes of requests that arrived.
    pub carried: AtomicU64,
}

async fn pump(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    lose: impl Fn() -> bool,
    bytes_max: impl Fn() -> Option<usize>,
    count: impl Fn(usize),
) {
    let mut buffer = vec![0; 64 << 10];
    let mut carried = 0;
    while let Ok(len) = from.read(&mut buffer).await {
        carried += len;
        if len == 0 || bytes_max().is_some_and(|bytes_max| carried > bytes_max) {
            break;
        }
        if lose() {
            continue;
        }
        if to.write_all(&buffer[..len]).await.is_err() {
            break;
        }
        count(len);
    }
    let _ = to.shutdown().await;
}

impl Proxy {
    async fn start() -> Arc<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = Arc::new(Proxy {
            address,
            target: watch::Sender::new(None),
            fault: watch::Sender::default(),
            carried: AtomicU64::new(0),
        });
        let accepting = Arc::downgrade(&proxy);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Some(proxy) = accepting.upgrade() else { return };
                tokio::spawn(async move {
                    let Some(target) = *proxy.target.borrow() else { return };
                    let Ok(far) = TcpStream::connect(target).await else { return };
                    near.set_nodelay(true).unwrap();
                    far.set_nodelay(true).unwrap();
                    let (near_read, near_write) = near.into_split();
                    let (far_read, far_write) = far.into_split();
                    let fault = proxy.fault.subscribe();
                    let fault_back = fault.clone();
                    let fault_bytes = fault.clone();
                    let bytes_max = move || fault_bytes.borrow().break_after_bytes;
                    let there = pump(
                        near_read,
                        far_write,
                        move || fault.borrow().lose_requests,
                        bytes_max,
                        |len| {
                            proxy.carried.fetch_add(len as u64, Ordering::Relaxed);
                        },
                    );
                    let back =
                        pump(far_read, near_write, move || fault_back.borrow().lose_answers, || None, |_| {});
                    let mut target_changes = proxy.target.subscribe();
                    target_changes.borrow_and_update();
                    // A target that moved or died takes its connections with it.
                    tokio::select! {
                        // A broken connection is broken in both directions.
                        () = there => {}
                        () = back => {}
                        _ = target_changes.changed() => {}
                    }
                });
            }
        });
        proxy
    }
}

/// Where a replica keeps its data.
#[derive(Clone)]
pub enum Disk {
    Memory(MemoryDisk, SnapshotStore),
    Directory(Arc<tempfile::TempDir>),
    Hanging(Arc<tempfile::TempDir>, Arc<Hang>),
    /// A directory that is made for a new cluster.
    New(Arc<tempfile::TempDir>),
}

/// Files whose flushes hang while the test wants it.
#[derive(Default)]
pub struct Hang {
    hangs: Mutex<bool>,
    changed: Condvar,
}

impl Hang {
    pub fn set(&self, hangs: bool) {
        *self.hangs.lock() = hangs;
        self.changed.notify_all();
    }
}

impl FileLayer for Hang {
    fn sync_data(&self, file: &std::fs::File, _: &std::path::Path) -> std::io::Result<()> {
        self.changed.wait_while(&mut self.hangs.lock(), |hangs| *hangs);
        file.sync_data()
    }
}

impl Disk {
    pub fn memory() -> Disk {
        Disk::Memory(MemoryDisk::default(), SnapshotStore::memory(&StoreOptions::small()))
    }

    pub fn directory() -> Disk {
        Disk::Directory(Arc::new(tempfile::tempdir().unwrap()))
    }

    pub fn new() -> Disk {
        Disk::New(Arc::new(tempfile::tempdir().unwrap()))
    }

    /// The disk as it is after it was lost and the replica was told so.
    pub async fn emptied(&self, id: ReplicaId) -> Disk {
        let fresh = match self {
            Disk::Memory(..) => Disk::memory(),
            Disk::Directory(_) | Disk::Hanging(..) | Disk::New(_) => Disk::directory(),
        };
        let store = fresh.open(id);
        store.set_rejoin(Rejoin::Unknown).unwrap();
        store.log.close().await;
        fresh
    }

    pub fn open(&self, id: ReplicaId) -> ReplicaStore {
        let mut options = StoreOptions { segment_entries: 64, ..StoreOptions::small() };
        if let Disk::Hanging(_, hang) = self {
            options.files = hang.clone();
        }
        match self {
            Disk::Memory(disk, snapshots) => {
                ReplicaStore::in_memory(disk.clone(), snapshots.clone(), options).unwrap()
            }
            Disk::Directory(dir) | Disk::Hanging(dir, _) => {
                let identity = Identity { cluster_id: CLUSTER, replica_id: id, generation: FIRST_GENERATION };
                ReplicaStore::open(dir.path(), identity, OpenMode::CreateIfMissing, options).unwrap()
            }
            Disk::New(dir) => {
                let identity = Identity { cluster_id: CLUSTER, replica_id: id, generation: FIRST_GENERATION };
                ReplicaStore::open(dir.path(), identity, OpenMode::FoundIfMissing, options).unwrap()
            }
        }
    }
}

pub struct Replica {
    pub consensus: Consensus,
    pub journal: Journal,
    stop: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<()>,
}

pub struct Cluster {
    pub proxies: BTreeMap<(u64, u64), Arc<Proxy>>,
    pub disks: BTreeMap<u64, Disk>,
    pub replicas: BTreeMap<u64, Replica>,
    pub snapshots: SnapshotPolicy,
    pub panic_on: Option<Bytes>,
    pub tune: Tune,
}

/// Changes the configuration of one replica before it starts.
pub type Tune = Arc<dyn Fn(u64, &mut ConsensusConfig) + Send + Sync>;

pub fn node(id: u64) -> ReplicaNode {
    ReplicaNode {
        region: format!("region-{id}"),
        peer_endpoint: format!("replica-{id}"),
        client_endpoint: format!("http://client-{id}"),
    }
}

impl Cluster {
    /// Prepares proxies and disks for `count` replicas.
    pub async fn prepare(count: u64, disk: fn() -> Disk) -> Cluster {
        show_logs();
        let mut proxies = BTreeMap::new();
        for source in 1..=count {
            for target in (1..=count).filter(|target| *target != source) {
                proxies.insert((source, target), Proxy::start().await);
            }
        }
        let disks = (1..=count).map(|id| (id, disk())).collect();
        let snapshots = SnapshotPolicy::ON_DEMAND;
        Cluster {
            proxies,
            disks,
            replicas: BTreeMap::new(),
            snapshots,
            panic_on: None,
            tune: Arc::new(|_, _| {}),
        }
    }

    /// Starts `voters` replicas of `count` and forms the cluster of them.
    pub async fn start(count: u64, voters: u64, disk: fn() -> Disk) -> Cluster {
        let mut cluster = Cluster::prepare(count, disk).await;
        for id in 1..=voters {
            cluster.start_replica(id).await;
        }
        cluster.initialize(voters).await;
        cluster
    }

    pub async fn initialize(&self, voters: u64) {
        let members: BTreeMap<_, _> = (1..=voters).map(|id| (ReplicaId(id), node(id))).collect();
        for replica in self.replicas.values() {
            replica.consensus.initialize(members.clone()).await.unwrap();
        }
    }

    pub fn config(&self, id: u64) -> ConsensusConfig {
        let mut config = ConsensusConfig::new(CLUSTER, ReplicaId(id));
        config.snapshots = self.snapshots;
        let addresses: BTreeMap<u64, SocketAddr> = self
            .proxies
            .iter()
            .filter(|((source, _), _)| *source == id)
            .map(|((_, target), proxy)| (*target, proxy.address))
            .collect();
        config.leader.report_interval_ms = 50;
        config.known_peers = self.disks.keys().map(|id| (ReplicaId(*id), node(*id))).collect();
        // By the address in the membership, so that a wrong one leads nowhere.
        config.dial = Some(Arc::new(move |_, node| {
            let target = node.peer_endpoint.strip_prefix("replica-").and_then(|id| id.parse().ok());
            match target.and_then(|target: u64| addresses.get(&target)) {
                Some(address) => address.to_string(),
                None => "127.0.0.1:1".to_owned(),
            }
        }));
        (self.tune)(id, &mut config);
        config
    }

    pub async fn start_replica(&mut self, id: u64) {
        let store = self.disks[&id].open(ReplicaId(id));
        let (mut application, journal) = Recorder::new();
        application.panic_on = self.panic_on.clone();
        let consensus = Consensus::start(self.config(id), store, application).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = consensus.clone();
        let served = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            tokio::select! {
                served = serving.serve_peers(listener, std::future::pending()) => served.unwrap(),
                () = stopped => {}
            }
        });
        for ((_, target), proxy) in &self.proxies {
            if *target == id {
                proxy.target.send_replace(Some(address));
            }
        }
        self.replicas.insert(id, Replica { consensus, journal, stop, served });
    }

    /// Takes a replica down at once; peers see its connections break.
    pub async fn stop_replica(&mut self, id: u64) {
        let replica = self.replicas.remove(&id).unwrap();
        for ((_, target), proxy) in &self.proxies {
            if *target == id {
                proxy.target.send_replace(None);
            }
        }
        let _ = replica.stop.send(());
        replica.served.await.unwrap();
        guarded("a replica shuts down", replica.consensus.shutdown()).await;
    }

    /// What each direction between two sets of replicas does from now on.
    pub fn set_fault(&self, source: u64, target: u64, fault: Fault) {
        self.proxies[&(source, target)].fault.send_replace(fault);
    }

    pub fn heal(&self) {
        for proxy in self.proxies.values() {
            proxy.fault.send_replace(Fault::default());
        }
    }

    /// Waits until one of `ids` leads and says under which leadership.
    pub async fn leader_among(&self, ids: &[u64]) -> Leadership {
        let waits = ids.iter().map(|id| {
            let mut view = self.replicas[id].consensus.leadership();
            Box::pin(async move { view.wait_for(|view| view.mine.is_some()).await.unwrap().mine.unwrap() })
        });
        guarded("a leader is elected", futures::future::select_all(waits)).await.0
    }

    pub async fn leader(&self) -> Leadership {
        let ids: Vec<u64> = self.replicas.keys().copied().collect();
        self.leader_among(&ids).await
    }

    pub fn consensus(&self, id: ReplicaId) -> &Consensus {
        &self.replicas[&id.0].consensus
    }

    /// Proposes on the leader until the proposal is committed.
    pub async fn write(&self, ids: &[u64], payload: impl Into<Bytes>) -> u64 {
        let payload = payload.into();
        guarded("a write is committed", async {
            loop {
                let leadership = self.leader_among(ids).await;
                let proposal = self.consensus(leadership.replica).propose(payload.clone(), leadership);
                if let Ok(committed) = proposal.await {
                    return committed.raft_index;
                }
            }
        })
        .await
    }

    /// Waits until a replica applied entry `index`, and returns the payloads applied so far.
    pub async fn applied(&self, id: u64, index: u64) -> Vec<Bytes> {
        let mut journal = self.replicas[&id].journal.clone();
        let entries = guarded("an entry is applied", async {
            let reached = |all: &Vec<CommittedEntry>| all.last().is_some_and(|last| last.raft_index >= index);
            journal.wait_for(reached).await.unwrap().clone()
        })
        .await;
        entries.into_iter().filter_map(|entry| entry.payload).collect()
    }
}
