//! What a disk and a crash can do to a replica, and what opening it then says.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use bytes::Bytes;
use muster_store::{
    Damage, Entry, EntryPayload, FileLayer, Identity, LeaderId, LogId, OpenMode, ReplicaStore, SnapshotMeta,
    StoreError, StoreOptions, Vote,
};
use muster_types::ClusterId;
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;
use openraft::vote::RaftLeaderId;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::*;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 100, 300).await;
    store.log.clone().save_committed(Some(log_id(90))).await.unwrap();
    store.log.close().await;
    let store = open(dir.path()).unwrap();
    assert_eq!(indexes(&store).await, (0..100).collect::<Vec<_>>());
    let mut log = store.log.clone();
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new_committed(1, 1)));
    assert_eq!(log.read_committed().await.unwrap(), Some(log_id(90)));
    assert_eq!(store.log.flushed().borrow().last_index, Some(99));
    append(&mut log, vec![entry(100, 10)]).await.unwrap();
    assert_eq!(store.log.flushed().borrow().app_entries_flushed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_replica_keeps_what_it_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 80, 200).await;
    let killed = copy_of(dir.path());
    let reopened = open(killed.path()).unwrap();
    assert_eq!(indexes(&reopened).await, (0..80).collect::<Vec<_>>());
    reopened.log.close().await;
    store.log.close().await;
}

/// An entry that is larger than a segment gets a separate one; reads stay bounded.
#[tokio::test(flavor = "multi_thread")]
async fn large_entries_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let mut log = store.log.clone();
    let sizes = [64 << 10, 1 << 20, 200 << 10, 0];
    let expected: Vec<_> = (0..40).map(|index| entry(index, sizes[index as usize % 4])).collect();
    for three in expected.chunks(3) {
        append(&mut log, three.to_vec()).await.unwrap();
    }
    store.log.close().await;
    let store = open(dir.path()).unwrap();
    assert_eq!(store.log.clone().try_get_log_entries(..).await.unwrap(), expected);
    assert_eq!(store.log.entries_from(0).collect::<Result<Vec<_>, _>>().unwrap(), expected);
    let some = store.log.clone().limited_get_log_entries(0, 40).await.unwrap();
    assert!((1..40).contains(&some.len()), "bounded by bytes");
    // Space comes back by segments, however few entries are in one.
    let before = store.log.health().borrow().log_bytes.max(directory_bytes(&dir.path().join("log")));
    publish(&store, 37, b"state");
    store.log.clone().purge(log_id(37)).await.unwrap();
    let mut health = store.log.health();
    health.wait_for(|health| (1..before / 10).contains(&health.log_bytes)).await.unwrap();
    store.log.close().await;
    let after = directory_bytes(&dir.path().join("log"));
    assert!(after * 10 < before, "{before} bytes became {after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_purge_is_finished_at_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 100, 100).await;
    let mut writer =
        store.snapshots.create(SnapshotMeta { last_log_id: Some(log_id(70)), ..Default::default() }).unwrap();
    writer.write(&Bytes::from_static(b"state")).unwrap();
    store.snapshots.publish(&writer.finish().unwrap()).unwrap();
    let mut log = store.log.clone();
    log.purge(log_id(70)).await.unwrap();
    // The floor is durable once a later write is; the segments may or may not be gone by then.
    append(&mut log, vec![entry(100, 100)]).await.unwrap();
    let killed = copy_of(dir.path());
    store.log.close().await;
    for dir in [dir.path(), killed.path()] {
        let store = open(dir).unwrap();
        assert_eq!(indexes(&store).await, (71..=100).collect::<Vec<_>>());
        assert_eq!(store.log.clone().get_log_state().await.unwrap().last_purged_log_id, Some(log_id(70)));
        store.log.close().await;
        let segments = segments(dir).len();
        assert_eq!(segments, 3, "entries 64..=100 in segments of 16");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_past_the_end_and_what_follows_survive() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 10, 100).await;
    let mut writer =
        store.snapshots.create(SnapshotMeta { last_log_id: Some(log_id(50)), ..Default::default() }).unwrap();
    writer.write(&Bytes::from_static(b"state")).unwrap();
    store.snapshots.publish(&writer.finish().unwrap()).unwrap();
    let mut log = store.log.clone();
    log.purge(log_id(50)).await.unwrap();
    append(&mut log, vec![entry(51, 10), entry(52, 10)]).await.unwrap();
    store.log.close().await;
    let store = open(dir.path()).unwrap();
    assert_eq!(indexes(&store).await, [51, 52]);
    store.log.close().await;
    // Without the snapshot nothing stands for the purged entries.
    std::fs::remove_dir_all(dir.path().join("snapshots")).unwrap();
    assert_eq!(damage(open(dir.path())), Damage::SnapshotLost { purged_index: 50, snapshot_index: None });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncation_survives_and_lowers_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 60, 100).await;
    let mut log = store.log.clone();
    log.truncate_after(Some(log_id(19))).await.unwrap();
    let other = Entry { log_id: LogId::new(LeaderId::new(2, 2), 20), payload: EntryPayload::Blank };
    append(&mut log, vec![other.clone()]).await.unwrap();
    let killed = copy_of(dir.path());
    store.log.close().await;
    for dir in [dir.path(), killed.path()] {
        let store = open(dir).unwrap();
        assert_eq!(indexes(&store).await, (0..=20).collect::<Vec<_>>());
        assert_eq!(store.log.clone().try_get_log_entries(20..).await.unwrap(), std::slice::from_ref(&other));
    }
}

/// Flushes slowly while told to, so that what is not waited for shows.
#[derive(Default)]
struct SlowSync {
    slow: AtomicBool,
}

impl FileLayer for SlowSync {
    fn sync_data(&self, file: &File, _: &Path) -> std::io::Result<()> {
        if self.slow.load(Ordering::SeqCst) {
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        file.sync_data()
    }
}

/// A snapshot that replaces a conflicting log is published right after the truncation returned:
/// entries of the lost branch next to it would keep the replica from ever starting again.
#[tokio::test(flavor = "multi_thread")]
async fn a_truncation_is_durable_when_it_returns() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 60, 100).await.log.close().await;
    let sync = Arc::new(SlowSync::default());
    let options = StoreOptions { files: Arc::clone(&sync) as Arc<dyn FileLayer>, ..options() };
    let store = open_with(dir.path(), options).unwrap();
    sync.slow.store(true, Ordering::SeqCst);
    store.log.clone().truncate_after(Some(log_id(19))).await.unwrap();
    let killed = copy_of(dir.path());
    assert_eq!(indexes(&open(killed.path()).unwrap()).await, (0..=19).collect::<Vec<_>>());
    store.log.close().await;
}

/// A log that is older than what was acknowledged: the disk came back from a copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_behind_its_mark_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 20, 100).await;
    let old = copy_of(dir.path());
    let mut log = store.log.clone();
    for index in 20..25 {
        append(&mut log, vec![entry(index, 100)]).await.unwrap();
    }
    store.log.close().await;
    std::fs::copy(dir.path().join("HIGHWATER"), old.path().join("HIGHWATER")).unwrap();
    assert_eq!(damage(open(old.path())), Damage::EntriesLost { flushed_index: 24, intact_index: Some(19) });
    // Opening it changed nothing about that.
    let again = copy_of(old.path());
    assert_eq!(damage(open(again.path())), Damage::EntriesLost { flushed_index: 24, intact_index: Some(19) });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_vote_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 5, 100).await;
    let old = copy_of(dir.path());
    store.log.clone().save_vote(&Vote::new(7, 1)).await.unwrap();
    store.log.close().await;
    std::fs::copy(dir.path().join("HIGHWATER"), old.path().join("HIGHWATER")).unwrap();
    assert!(matches!(damage(open(old.path())), Damage::VoteLost { .. }));
}

/// The mark is older than the log: the crash came between the two, and nobody was told yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_tail_that_was_never_acknowledged_opens() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 20, 100).await;
    let mark = std::fs::read(dir.path().join("HIGHWATER")).unwrap();
    let mut log = store.log.clone();
    append(&mut log, (20..30).map(|index| entry(index, 100)).collect()).await.unwrap();
    store.log.close().await;
    std::fs::write(dir.path().join("HIGHWATER"), &mark).unwrap();
    // Whole: kept.
    let whole = copy_of(dir.path());
    let reopened = open(whole.path()).unwrap();
    assert_eq!(indexes(&reopened).await, (0..30).collect::<Vec<_>>());
    // Torn in the middle: the part that hangs together is kept, the rest is removed.
    let last = segments(dir.path()).pop().unwrap();
    let bytes = std::fs::read(&last).unwrap();
    let content = bytes.windows(4).enumerate().filter(|(_, word)| word == b"MLG1").nth(24 - 16).unwrap().0;
    let file = OpenOptions::new().write(true).open(&last).unwrap();
    file.write_all_at(&[0; 30], content as u64).unwrap();
    // The mark of the last batch is in the segment; it never got there.
    file.write_all_at(&[0; 8_192], 4_096).unwrap();
    let store = open(dir.path()).unwrap();
    assert_eq!(indexes(&store).await, (0..24).collect::<Vec<_>>());
    append(&mut store.log.clone(), vec![entry(24, 100)]).await.unwrap();
    store.log.close().await;
    assert_eq!(indexes(&open(dir.path()).unwrap()).await, (0..25).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_committed_entry_is_never_past_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 10, 100).await;
    let mut log = store.log.clone();
    log.save_committed(Some(log_id(500))).await.unwrap();
    append(&mut log, vec![entry(10, 10)]).await.unwrap();
    store.log.close().await;
    let mut log = open(dir.path()).unwrap().log;
    assert_eq!(log.read_committed().await.unwrap(), Some(log_id(10)));
}

#[derive(Default)]
struct CountedSync {
    calls: AtomicU64,
    fail: AtomicBool,
}

impl FileLayer for CountedSync {
    fn sync_data(&self, file: &File, _: &Path) -> std::io::Result<()> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.fail.load(Ordering::SeqCst) {
            return Err(std::io::Error::other("the disk is gone"));
        }
        file.sync_data()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_acknowledgement_follows_an_fdatasync_and_a_failed_one_is_fatal() {
    let dir = tempfile::tempdir().unwrap();
    let sync = Arc::new(CountedSync::default());
    let fatal = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&fatal);
    let options = StoreOptions {
        files: Arc::clone(&sync) as Arc<dyn FileLayer>,
        fatal: Arc::new(move |_| {
            told.fetch_add(1, Ordering::SeqCst);
        }),
        ..options()
    };
    let store = open_with(dir.path(), options).unwrap();
    let mut log = store.log.clone();
    for index in 0..5 {
        let before = sync.calls.load(Ordering::SeqCst);
        append(&mut log, vec![entry(index, 10)]).await.unwrap();
        // The first entry makes a segment; a log that is idle for a moment settles its mark.
        let flushes = sync.calls.load(Ordering::SeqCst) - before;
        assert!(flushes >= 1 && (index == 0 || flushes <= 2), "{flushes} flushes");
    }
    let before = sync.calls.load(Ordering::SeqCst);
    log.save_vote(&Vote::new(2, 1)).await.unwrap();
    assert!(sync.calls.load(Ordering::SeqCst) >= before + 2, "the database, then the mark");

    sync.fail.store(true, Ordering::SeqCst);
    append(&mut log, vec![entry(5, 10)]).await.unwrap_err();
    assert_eq!(fatal.load(Ordering::SeqCst), 1);
    sync.fail.store(false, Ordering::SeqCst);
    let calls = sync.calls.load(Ordering::SeqCst);
    append(&mut log, vec![entry(6, 10)]).await.unwrap_err();
    log.save_vote(&Vote::new(3, 1)).await.unwrap_err();
    assert_eq!(sync.calls.load(Ordering::SeqCst), calls, "never tried again");
    assert_eq!(fatal.load(Ordering::SeqCst), 1);
    assert_eq!(store.log.flushed().borrow().last_index, Some(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_another_or_in_use_or_without_a_replica_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let empty = ReplicaStore::open(&dir.path().join("none"), IDENTITY, OpenMode::Existing, options());
    assert!(matches!(empty, Err(StoreError::NotFound { .. })));
    let store = filled(dir.path(), 3, 10).await;
    assert!(matches!(open(dir.path()), Err(StoreError::InUse { .. })));
    store.log.close().await;
    let other = Identity { cluster_id: ClusterId(6), ..IDENTITY };
    let refused = ReplicaStore::open(dir.path(), other, OpenMode::CreateIfMissing, options());
    assert!(matches!(refused, Err(StoreError::OtherCluster { .. })));
    ReplicaStore::open(dir.path(), IDENTITY, OpenMode::Existing, options()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_snapshot_falls_back_to_an_older_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 30, 50).await;
    for index in [10, 20] {
        let meta = SnapshotMeta { last_log_id: Some(log_id(index)), ..Default::default() };
        let mut writer = store.snapshots.create(meta).unwrap();
        writer.write(&Bytes::from(vec![index as u8; 3 << 20])).unwrap();
        store.snapshots.publish(&writer.finish().unwrap()).unwrap();
    }
    let current = store.snapshots.current().unwrap();
    let content: Vec<u8> = current.chunks().flat_map(|chunk| chunk.unwrap().to_vec()).collect();
    assert_eq!(content, vec![20; 3 << 20]);
    drop(store.snapshots.create(SnapshotMeta::default()).unwrap());
    store.log.close().await;
    drop((store, current));
    let directory = dir.path().join("snapshots");
    let mut files: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 2);
    let newest = OpenOptions::new().write(true).open(&files[1]).unwrap();
    newest.write_all_at(&[0xff], 2 << 20).unwrap();
    let store = open(dir.path()).unwrap();
    assert_eq!(store.snapshots.current().unwrap().meta().last_log_id, Some(log_id(10)));
}

/// The names of snapshots that are not intact may sort behind the one that was just published.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_intact_snapshot_is_never_the_one_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 30, 50).await;
    let publish = |store: &ReplicaStore, index| {
        let meta = SnapshotMeta { last_log_id: Some(log_id(index)), ..Default::default() };
        store.snapshots.publish(&store.snapshots.create(meta).unwrap().finish().unwrap()).unwrap();
    };
    publish(&store, 10);
    publish(&store, 20);
    store.log.close().await;
    drop(store);
    let newest = dir.path().join("snapshots").join(format!("{:020}-{:020}-1.snapshot", 20, 1));
    std::fs::write(newest, b"rubbish").unwrap();
    let store = open_with(dir.path(), StoreOptions { snapshots_kept: 1, ..options() }).unwrap();
    publish(&store, 15);
    store.log.close().await;
    drop(store);
    assert_eq!(open(dir.path()).unwrap().snapshots.current().unwrap().meta().last_log_id, Some(log_id(15)));
}
