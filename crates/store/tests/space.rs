//! A disk that is full, or slow: what is held, what goes on, and what is reported meanwhile.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use bytes::Bytes;
use futures::FutureExt;
use muster_store::{
    FileLayer, LogStore, RaftConfig, ReplicaStore, SnapshotMeta, Space, StorageHealth, StoreOptions,
    SystemFiles, Vote,
};
use openraft::RaftLogReader;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use parking_lot::{Condvar, Mutex};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::*;

const GUARD: Duration = Duration::from_secs(60);

/// A disk whose free space and whose flushes the test controls.
struct PlayedDisk {
    free_bytes: AtomicU64,
    /// Writes to the log are refused for lack of space.
    refuses: AtomicBool,
    blocked: Mutex<bool>,
    unblocked: Condvar,
}

impl PlayedDisk {
    fn new() -> Arc<Self> {
        Arc::new(PlayedDisk {
            free_bytes: AtomicU64::new(10_000),
            refuses: AtomicBool::new(false),
            blocked: Mutex::new(false),
            unblocked: Condvar::new(),
        })
    }

    fn check_space(&self, path: &Path) -> io::Result<()> {
        let of_log = path.parent().is_some_and(|parent| parent.ends_with("log"));
        if of_log && self.refuses.load(Ordering::SeqCst) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(())
    }

    fn block(&self, blocked: bool) {
        *self.blocked.lock() = blocked;
        self.unblocked.notify_all();
    }
}

impl FileLayer for PlayedDisk {
    fn allocate(&self, file: &File, path: &Path, len: u64) -> io::Result<()> {
        self.check_space(path)?;
        SystemFiles.allocate(file, path, len)
    }

    fn write_at(&self, file: &File, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Err(full) = self.check_space(path) {
            // A part of it may be there all the same. The answer is what was found before: space may have returned since.
            SystemFiles.write_at(file, path, &bytes[..bytes.len() / 2], offset)?;
            return Err(full);
        }
        SystemFiles.write_at(file, path, bytes, offset)
    }

    fn sync_data(&self, file: &File, path: &Path) -> io::Result<()> {
        self.unblocked.wait_while(&mut self.blocked.lock(), |blocked| *blocked);
        SystemFiles.sync_data(file, path)
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(self.free_bytes.load(Ordering::SeqCst))
    }
}

fn played(disk: &Arc<PlayedDisk>) -> StoreOptions {
    StoreOptions {
        space_soft_bytes: 5_000,
        space_hard_bytes: 1_000,
        space_poll_ms: 5,
        stall_ms: 20,
        files: Arc::clone(disk) as Arc<dyn FileLayer>,
        ..options()
    }
}

async fn until(store: &LogStore, what: &str, reached: impl Fn(&StorageHealth) -> bool) -> StorageHealth {
    let mut health = store.health();
    let found = tokio::time::timeout(GUARD, health.wait_for(|health| reached(health))).await;
    *found.unwrap_or_else(|_| panic!("never {what}")).unwrap()
}

type Flushed = std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Queues entries; what is returned resolves when they are durable.
async fn put(log: &mut LogStore, entries: Vec<muster_store::Entry>) -> Flushed {
    let (sender, flushed) = RaftConfig::oneshot();
    log.append(entries, IOFlushed::<RaftConfig>::signal(sender)).await.unwrap();
    async move {
        match flushed.await {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err("never answered".to_owned()),
        }
    }
    .boxed()
}

/// Whether it is unanswered after the storage thread has taken it.
async fn is_held(log: &mut LogStore, flushed: &mut Flushed) -> bool {
    // A read of what is on disk stands in the same line.
    log.try_get_log_entries(0..1).await.unwrap();
    flushed.now_or_never().is_none()
}

async fn held_until_space_returns(store: &ReplicaStore, disk: &PlayedDisk) {
    let mut log = store.log.clone();
    append(&mut log, vec![entry(0, 100)]).await.unwrap();
    until(&store.log, "enough", |health| health.space == Space::Enough).await;
    disk.free_bytes.store(4_000, Ordering::SeqCst);
    until(&store.log, "low", |health| health.space == Space::Low).await;
    append(&mut log, vec![entry(1, 100)]).await.unwrap();
    disk.free_bytes.store(999, Ordering::SeqCst);
    let health = until(&store.log, "full", |health| health.space == Space::Full).await;
    assert_eq!(health.free_bytes, 999);
    let mut one = put(&mut log, vec![entry(2, 100)]).await;
    let mut other = put(&mut log, vec![entry(3, 100)]).await;
    assert!(is_held(&mut log, &mut one).await && is_held(&mut log, &mut other).await);
    assert_eq!(store.log.flushed().borrow().last_index, Some(1));
    // Back above the reserve, but hardly: the report does not flutter.
    disk.free_bytes.store(1_001, Ordering::SeqCst);
    until(&store.log, "seen", |health| health.free_bytes == 1_001).await;
    assert!(is_held(&mut log, &mut one).await);
    disk.free_bytes.store(9_000, Ordering::SeqCst);
    one.await.unwrap();
    other.await.unwrap();
    until(&store.log, "enough again", |health| health.space == Space::Enough).await;
    append(&mut log, vec![entry(4, 100)]).await.unwrap();
    let expected: Vec<_> = (0..5).map(|index| entry(index, 100)).collect();
    assert_eq!(log.try_get_log_entries(..).await.unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_without_its_reserve_holds_entries_until_space_returns() {
    let dir = tempfile::tempdir().unwrap();
    let disk = PlayedDisk::new();
    let store = open_with(dir.path(), played(&disk)).unwrap();
    held_until_space_returns(&store, &disk).await;
    store.log.close().await;
    assert_eq!(indexes(&open(dir.path()).unwrap()).await, [0, 1, 2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_in_memory_twin_holds_entries_as_well() {
    let disk = PlayedDisk::new();
    let snapshots = muster_store::SnapshotStore::memory(&options());
    let store = ReplicaStore::in_memory(Default::default(), snapshots, played(&disk)).unwrap();
    held_until_space_returns(&store, &disk).await;
}

/// The reserve is there for what the protocol waits for; nothing overtakes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_vote_lets_what_is_held_before_it_through() {
    let dir = tempfile::tempdir().unwrap();
    let disk = PlayedDisk::new();
    let store = open_with(dir.path(), played(&disk)).unwrap();
    let mut log = store.log.clone();
    append(&mut log, vec![entry(0, 100)]).await.unwrap();
    disk.free_bytes.store(500, Ordering::SeqCst);
    until(&store.log, "full", |health| health.space == Space::Full).await;
    let mut held = put(&mut log, vec![entry(1, 100), entry(2, 100)]).await;
    assert!(is_held(&mut log, &mut held).await);
    log.save_vote(&Vote::new(5, 2)).await.unwrap();
    held.await.unwrap();
    let mut held = put(&mut log, vec![entry(3, 100)]).await;
    assert!(is_held(&mut log, &mut held).await, "only what stood before the vote");
    log.truncate_after(Some(log_id(1))).await.unwrap();
    held.await.unwrap();
    assert_eq!(indexes(&store).await, [0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_is_made_again_and_reads_and_purges_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let disk = PlayedDisk::new();
    let store = open_with(dir.path(), played(&disk)).unwrap();
    let mut log = store.log.clone();
    for index in 0..40 {
        append(&mut log, vec![entry(index, 100)]).await.unwrap();
    }
    disk.refuses.store(true, Ordering::SeqCst);
    // Over the end of a segment.
    let mut held = put(&mut log, (40..60).map(|index| entry(index, 100)).collect()).await;
    assert!(is_held(&mut log, &mut held).await);
    until(&store.log, "full", |health| health.space == Space::Full).await;
    let mut voter = store.log.clone();
    let vote = tokio::spawn(async move { voter.save_vote(&Vote::new(7, 1)).await });
    publish(&store, 20, b"state");
    log.purge(log_id(20)).await.unwrap();
    let all: Vec<_> = (21..60).map(|index| entry(index, 100)).collect();
    assert_eq!(log.try_get_log_entries(..).await.unwrap(), all, "what is held is readable");
    assert!(is_held(&mut log, &mut held).await);
    // A purge frees space meanwhile.
    let given_back = async {
        while segments(dir.path()).len() != 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(GUARD, given_back).await.unwrap();
    let killed = copy_of(dir.path());
    disk.refuses.store(false, Ordering::SeqCst);
    held.await.unwrap();
    vote.await.unwrap().unwrap();
    until(&store.log, "enough", |health| health.space == Space::Enough).await;
    store.log.close().await;
    let store = open(dir.path()).unwrap();
    assert_eq!(store.log.clone().try_get_log_entries(..).await.unwrap(), all);
    assert_eq!(store.log.clone().read_vote().await.unwrap(), Some(Vote::new(7, 1)));
    // Killed in between, it has what was acknowledged.
    let store = open(killed.path()).unwrap();
    let found = indexes(&store).await;
    assert!(found.starts_with(&(21..40).collect::<Vec<_>>()), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_that_hangs_is_seen_while_it_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let disk = PlayedDisk::new();
    let store = open_with(dir.path(), played(&disk)).unwrap();
    let mut log = store.log.clone();
    append(&mut log, vec![entry(0, 100)]).await.unwrap();
    disk.block(true);
    let flushed = put(&mut log, vec![entry(1, 100)]).await;
    let stalled =
        until(&store.log, "stalled", |health| health.stalled_ms.is_some()).await.stalled_ms.unwrap();
    assert!(stalled >= 20, "{stalled}");
    until(&store.log, "stalled for longer", |health| health.stalled_ms > Some(stalled)).await;
    disk.block(false);
    flushed.await.unwrap();
    let health =
        until(&store.log, "over", |health| health.stalled_ms.is_none() && health.log_bytes > 0).await;
    assert!(health.flush_slowest_ms >= stalled && health.flush_mean_us > 0, "{health:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_without_room_is_told_from_one_that_failed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = PlayedDisk::new();
    let store = open_with(dir.path(), played(&disk)).unwrap();
    publish(&store, 3, b"state");
    let meta = || SnapshotMeta { last_log_id: Some(log_id(9)), ..Default::default() };
    let mut writer = store.snapshots.create(meta()).unwrap();
    disk.free_bytes.store(900, Ordering::SeqCst);
    let piece = Bytes::from(vec![7; 8 << 20]);
    let error = writer.write(&piece).unwrap_err();
    assert!(error.is_out_of_space());
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::StorageFull);
    drop(writer);
    assert!(store.snapshots.create(meta()).is_err_and(|error| error.is_out_of_space()));
    let files = std::fs::read_dir(dir.path().join("snapshots")).unwrap().count();
    assert_eq!(files, 1, "nothing is left of it");
    assert_eq!(store.snapshots.current().unwrap().meta().last_log_id, Some(log_id(3)));
}

async fn holds_its_purges(store: &ReplicaStore) {
    let mut log = store.log.clone();
    store.log.hold_purge(Some(10));
    log.purge(log_id(25)).await.unwrap();
    let floor = |store: &ReplicaStore| store.log.floor().map(|floor| floor.index());
    // The next operation stands behind the purge.
    log.save_vote(&Vote::new(2, 1)).await.unwrap();
    assert_eq!(floor(store), Some(10));
    assert_eq!(store.log.first_index(), Some(11));
    assert_eq!(indexes(store).await, (11..40).collect::<Vec<_>>());
    store.log.hold_purge(Some(17));
    log.save_vote(&Vote::new(3, 1)).await.unwrap();
    assert_eq!(floor(store), Some(17));
    assert_eq!(store.log.floor(), Some(log_id(17)), "the whole id, not only the index");
    store.log.hold_purge(None);
    log.save_vote(&Vote::new(4, 1)).await.unwrap();
    assert_eq!(floor(store), Some(25), "no further than was asked for");
    // What a snapshot replaces altogether is not held.
    store.log.hold_purge(Some(30));
    log.purge(log_id(100)).await.unwrap();
    assert_eq!(floor(store), Some(100));
    append(&mut log, vec![entry(101, 10)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_purged_that_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 40, 100).await;
    publish(&store, 100, b"state");
    holds_its_purges(&store).await;
    store.log.close().await;
    assert_eq!(indexes(&open(dir.path()).unwrap()).await, [101]);

    let snapshots = muster_store::SnapshotStore::memory(&options());
    let store = ReplicaStore::in_memory(Default::default(), snapshots, options()).unwrap();
    append(&mut store.log.clone(), (0..40).map(|index| entry(index, 100)).collect()).await.unwrap();
    holds_its_purges(&store).await;
}
