//! What the tests of the store share: a small log and the directory it is in.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]
#![allow(dead_code, reason = "every test uses a part of it")]

use bytes::Bytes;
use muster_store::{
    Damage, Entry, EntryPayload, Identity, LeaderId, LogId, LogStore, OpenMode, Payload, RaftConfig,
    ReplicaStore, SnapshotMeta, StoreError, StoreOptions, Vote,
};
use muster_types::{ClusterId, ReplicaId};
use openraft::RaftLogReader;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::vote::RaftLeaderId;
use std::path::Path;

pub const IDENTITY: Identity = Identity { cluster_id: ClusterId(5), replica_id: ReplicaId(1), generation: 1 };

pub fn options() -> StoreOptions {
    StoreOptions { segment_entries: 16, segment_bytes: 64 << 10, tail_bytes_max: 0, ..StoreOptions::small() }
}

pub fn open_with(dir: &Path, options: StoreOptions) -> Result<ReplicaStore, StoreError> {
    ReplicaStore::open(dir, IDENTITY, OpenMode::CreateIfMissing, options)
}

pub fn open(dir: &Path) -> Result<ReplicaStore, StoreError> {
    open_with(dir, options())
}

pub fn log_id(index: u64) -> LogId {
    LogId::new(LeaderId::new(1, 1), index)
}

pub fn entry(index: u64, bytes: usize) -> Entry {
    // Not compressible to nothing, so that a lost page shows.
    let payload: Vec<u8> = (0..bytes).map(|at| (at as u64 * 31 + index) as u8).collect();
    Entry { log_id: log_id(index), payload: EntryPayload::Normal(Payload(Bytes::from(payload))) }
}

pub async fn append(log: &mut LogStore, entries: Vec<Entry>) -> Result<(), String> {
    let (sender, flushed) = RaftConfig::oneshot();
    let callback = IOFlushed::<RaftConfig>::signal(sender);
    log.append(entries, callback).await.map_err(|error| error.to_string())?;
    match flushed.await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("never answered".to_owned()),
    }
}

pub async fn filled(dir: &Path, entries: u64, bytes: usize) -> ReplicaStore {
    let store = open(dir).unwrap();
    let mut log = store.log.clone();
    log.save_vote(&Vote::new_committed(1, 1)).await.unwrap();
    for index in 0..entries {
        append(&mut log, vec![entry(index, bytes)]).await.unwrap();
    }
    store
}

pub async fn indexes(store: &ReplicaStore) -> Vec<u64> {
    let entries = store.log.clone().try_get_log_entries(..).await.unwrap();
    entries.iter().map(|entry| entry.log_id.index()).collect()
}

pub fn damage(result: Result<ReplicaStore, StoreError>) -> Damage {
    match result {
        Err(error @ StoreError::Damaged { .. }) => {
            assert!(error.advice().unwrap().contains("learner"));
            let StoreError::Damaged { damage, .. } = error else { unreachable!() };
            damage
        }
        Err(error) => panic!("refused for another reason: {error}"),
        Ok(_) => panic!("opened"),
    }
}

/// A copy of the directory of a running replica is what a process that was killed leaves.
pub fn copy_of(dir: &Path) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for file in std::fs::read_dir(from).unwrap() {
            let path = file.unwrap().path();
            let target = to.join(path.file_name().unwrap());
            if path.is_dir() {
                copy(&path, &target);
            } else if let Err(error) = std::fs::copy(&path, &target) {
                // A running replica removes files meanwhile.
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}", path.display());
            }
        }
    }
    let target = tempfile::tempdir().unwrap();
    copy(dir, target.path());
    target
}

/// Publishes a snapshot that covers everything up to `index`.
pub fn publish(store: &ReplicaStore, index: u64, content: &'static [u8]) {
    let meta = SnapshotMeta { last_log_id: Some(log_id(index)), ..Default::default() };
    let mut writer = store.snapshots.create(meta).unwrap();
    writer.write(&Bytes::from_static(content)).unwrap();
    store.snapshots.publish(&writer.finish().unwrap()).unwrap();
}

/// The segment files of a log, in order.
pub fn segments(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(dir.join("log")).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

/// Disk that the files of a directory take.
pub fn directory_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().metadata().unwrap());
    files.map(|metadata| metadata.blocks() * 512).sum()
}
