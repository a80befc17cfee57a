//! Directories that are set aside, rebuilt, created from a snapshot, or belong to another generation of the
//! cluster; and snapshots that are received in pieces.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use bytes::Bytes;
use muster_store::{
    FoundingId, Identity, OpenMode, Rejoin, ReplicaStore, SnapshotMeta, SnapshotStore, StoreError, Vote,
};
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;
use std::path::Path;
use std::time::SystemTime;
use support::*;

const BLANK: Option<Rejoin> = Some(Rejoin::Unknown);

fn open_as(dir: &Path, mode: OpenMode) -> Result<ReplicaStore, StoreError> {
    ReplicaStore::open(dir, IDENTITY, mode, options())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_folder_is_set_aside_and_what_follows_is_a_rebuild() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(ReplicaStore::set_aside(dir.path()), Err(StoreError::NotFound { .. })));
    let mut kept = Vec::new();
    for round in 0..3 {
        let store = open_as(dir.path(), OpenMode::CreateIfMissing).unwrap();
        assert_eq!(*store.rejoin().borrow(), if round == 0 { None } else { BLANK });
        append(&mut store.log.clone(), vec![entry(0, 100 + round)]).await.unwrap();
        assert!(matches!(ReplicaStore::set_aside(dir.path()), Err(StoreError::InUse { .. })));
        store.log.close().await;
        drop(store);
        let evidence = ReplicaStore::set_aside(dir.path()).unwrap();
        assert!(evidence.join("IDENTITY").exists() && evidence.join("log").exists());
        kept.push(evidence);
        assert!(matches!(open_as(dir.path(), OpenMode::Existing), Err(StoreError::NotFound { .. })));
    }
    // The evidence can be looked into like any directory.
    let copy = copy_of(&kept[1]);
    assert_eq!(open(copy.path()).unwrap().log.entries_from(0).next().unwrap().unwrap(), entry(0, 101));
    open_as(dir.path(), OpenMode::CreateIfMissing).unwrap().log.close().await;
    let refused = ReplicaStore::set_aside(dir.path());
    assert!(matches!(refused, Err(StoreError::EvidenceFull { kept: 3, .. })));
    assert!(dir.path().join("IDENTITY").exists(), "nothing was moved");
}

/// The move was cut short: what is left is damage, and is set aside as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_moved_folder_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 3, 10).await.log.close().await;
    std::fs::remove_dir_all(dir.path().join("log")).unwrap();
    damage(open(dir.path()));
    ReplicaStore::set_aside(dir.path()).unwrap();
    assert_eq!(*open(dir.path()).unwrap().rejoin().borrow(), BLANK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_stays_one_until_it_is_told_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_as(dir.path(), OpenMode::RebuildIfMissing).unwrap();
    let mut rejoin = store.rejoin();
    assert_eq!(*rejoin.borrow_and_update(), BLANK);
    let steps = [true, false].map(|voted| Rejoin::From { index: 12, voted });
    let mut store = store;
    for known in steps.into_iter().chain([Rejoin::AwaitingVote]) {
        store.set_rejoin(known).unwrap();
        rejoin.changed().await.unwrap();
        store.log.close().await;
        drop(store);
        store = open_as(dir.path(), OpenMode::CreateIfMissing).unwrap();
        rejoin = store.rejoin();
        assert_eq!(*rejoin.borrow_and_update(), Some(known));
    }
    store.clear_rejoin().unwrap();
    store.log.close().await;
    drop(store);
    let store = open_as(dir.path(), OpenMode::RebuildIfMissing).unwrap();
    assert_eq!(*store.rejoin().borrow(), None, "what exists is opened as it is");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_another_generation_is_refused_and_only_a_blank_one_adopts_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    store.set_generation(3).unwrap();
    assert!(matches!(store.set_generation(2), Err(StoreError::NotBlank { generation: 2 })));
    store.log.clone().save_vote(&Vote::new(1, 1)).await.unwrap();
    assert!(matches!(store.set_generation(4), Err(StoreError::NotBlank { generation: 4 })));
    store.set_generation(3).unwrap();
    assert_eq!(store.identity().generation, 3);
    store.log.close().await;
    drop(store);
    assert!(matches!(open(dir.path()), Err(StoreError::OtherGeneration { found: 3, expected: 1, .. })));
    let found = ReplicaStore::identity_of(dir.path()).unwrap().unwrap();
    assert_eq!(found, Identity { generation: 3, ..IDENTITY });
    ReplicaStore::open(dir.path(), found, OpenMode::Existing, options()).unwrap();
}

fn chunks(bad: Option<usize>) -> impl Iterator<Item = Result<Bytes, std::io::Error>> {
    (0..5).map(move |number| {
        if bad == Some(number) {
            return Err(std::io::Error::other("the archive is not there"));
        }
        Ok(Bytes::from(vec![number as u8; 1_000]))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_created_from_a_snapshot() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("new/replica");
    let meta = SnapshotMeta { last_log_id: Some(log_id(70)), ..Default::default() };
    let create = |bad| {
        ReplicaStore::create_from(&dir, IDENTITY, FoundingId::Unknown, meta.clone(), chunks(bad), options())
    };
    assert!(matches!(create(Some(3)), Err(StoreError::CreationSource(_))));
    assert!(matches!(open_as(&dir, OpenMode::Existing), Err(StoreError::NotFound { .. })), "not half of one");
    let store = create(None).unwrap();
    assert!(store.log.floor() == Some(log_id(70)) && store.log.last() == Some(log_id(70)));
    assert_eq!(store.log.first_index(), None);
    append(&mut store.log.clone(), vec![entry(71, 100)]).await.unwrap();
    store.log.close().await;
    drop(store);
    let store = open_as(&dir, OpenMode::Existing).unwrap();
    let content: Vec<Bytes> = store.snapshots.current().unwrap().chunks().collect::<Result<_, _>>().unwrap();
    assert_eq!(content, chunks(None).collect::<Result<Vec<_>, _>>().unwrap());
    assert_eq!(indexes(&store).await, [71]);
    let state = store.log.clone().get_log_state().await.unwrap();
    assert_eq!(state.last_purged_log_id, Some(log_id(70)));
    assert_eq!(store.log.clone().read_vote().await.unwrap(), None);
    store.log.close().await;
    drop(store);
    assert!(matches!(create(None), Err(StoreError::Exists { .. })));
}

fn snapshot_stores(dir: &Path) -> [SnapshotStore; 2] {
    [SnapshotStore::open(&dir.join("snapshots"), &options()).unwrap(), SnapshotStore::memory(&options())]
}

fn piece(number: u64) -> Bytes {
    Bytes::from(vec![number as u8; 100 + number as usize])
}

#[test]
fn a_snapshot_is_read_from_any_chunk_on() {
    let dir = tempfile::tempdir().unwrap();
    let before = SystemTime::now();
    for snapshots in snapshot_stores(dir.path()) {
        let mut writer = snapshots.create(SnapshotMeta::default()).unwrap();
        (0..20).for_each(|number| writer.write(&piece(number)).unwrap());
        let handle = writer.finish().unwrap();
        snapshots.publish(&handle).unwrap();
        assert_eq!((handle.digest().chunks, handle.bytes()), (20, (0..20).map(|number| 100 + number).sum()));
        for first in [0, 1, 13, 19, 20, 21] {
            let found: Vec<Bytes> = handle.chunks_from(first).unwrap().map(Result::unwrap).collect();
            assert_eq!(found, (first..20).map(piece).collect::<Vec<_>>());
        }
        let age = handle.created().duration_since(before).unwrap_or_default();
        assert!(age.as_secs() < 60);
    }
    // It is the same after a restart; the time is kept to a millisecond.
    let [reopened, _] = snapshot_stores(dir.path());
    let handle = reopened.current().unwrap();
    assert_eq!(handle.digest().chunks, 20);
    assert_eq!(handle.bytes(), (0..20).map(|number| 100 + number).sum());
    assert!(handle.created() + std::time::Duration::from_millis(1) >= before);
}

#[test]
fn an_interrupted_reception_goes_on_and_never_with_another_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    for snapshots in snapshot_stores(dir.path()) {
        let whole = {
            let mut writer = snapshots.create(SnapshotMeta::default()).unwrap();
            (0..10).for_each(|number| writer.write(&piece(number)).unwrap());
            writer.finish().unwrap()
        };
        let receive = |key: &'static [u8]| {
            let mut writer = snapshots.create(SnapshotMeta::default()).unwrap();
            (0..4).for_each(|number| writer.write(&piece(number)).unwrap());
            snapshots.keep_partial(writer, Bytes::from_static(key));
        };
        receive(b"one");
        let mut writer = snapshots.take_partial(b"one").unwrap();
        assert!(snapshots.take_partial(b"one").is_none(), "taken once");
        assert_eq!(writer.chunks(), 4);
        for chunk in whole.chunks_from(writer.chunks()).unwrap() {
            writer.write(&chunk.unwrap()).unwrap();
        }
        assert_eq!(writer.finish().unwrap().digest(), whole.digest());
        receive(b"one");
        assert!(snapshots.take_partial(b"other").is_none());
        assert!(snapshots.take_partial(b"one").is_none(), "dropped when another was received");
        receive(b"one");
        receive(b"two");
        assert!(snapshots.take_partial(b"one").is_none(), "at most one is kept");
    }
    assert_eq!(std::fs::read_dir(dir.path().join("snapshots")).unwrap().count(), 0, "nothing is left over");
}

/// The database of a replica that was rebuilt holds its purge floor. One that is cut short by any length is damage, or
/// says what it said.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_cut_short_is_damage() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("replica");
    let meta = SnapshotMeta { last_log_id: Some(log_id(70)), ..Default::default() };
    let store = ReplicaStore::create_from(&dir, IDENTITY, FoundingId::Unknown, meta, chunks(None), options())
        .unwrap();
    let mut log = store.log.clone();
    log.save_vote(&Vote::new(4, 1)).await.unwrap();
    append(&mut log, vec![entry(71, 100), entry(72, 100)]).await.unwrap();
    store.log.close().await;
    drop((log, store));
    let whole = std::fs::read(dir.join("meta/db")).unwrap();
    let used = whole.len() - whole.iter().rev().take_while(|byte| **byte == 0).count();
    let mut damaged = 0;
    for length in (0..used).step_by(7) {
        let copy = copy_of(&dir);
        std::fs::write(copy.path().join("meta/db"), &whole[..length]).unwrap();
        match open(copy.path()) {
            Err(StoreError::Damaged { .. }) => damaged += 1,
            Err(error) => panic!("neither damaged nor whole with {length} bytes: {error}"),
            Ok(store) => {
                assert_eq!(store.log.floor(), Some(log_id(70)), "with {length} bytes");
                assert_eq!(indexes(&store).await, [71, 72]);
                store.log.close().await;
            }
        }
    }
    assert!(damaged > 0);
}
