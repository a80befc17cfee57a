//! openraft's own suite for log storage, on every backend.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use futures::{Stream, TryStreamExt};
use muster_store::{
    EntryPayload, Identity, LogId, LogStore, MemoryDisk, OpenMode, RaftConfig, ReplicaStore, SnapshotMeta,
    SnapshotStore, StoreOptions, StoredMembership,
};
use muster_types::{ClusterId, ReplicaId};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::alias::SnapshotOf;
use openraft::{OptionalSend, RaftSnapshotBuilder, StorageError};
use std::io;

/// A state machine that remembers how far it is: the suite needs no more.
#[derive(Clone, Default)]
struct Position {
    last: Option<LogId>,
    membership: StoredMembership,
    snapshot: Option<SnapshotMeta>,
}

/// Shared, because the builder of a snapshot is a copy.
#[derive(Clone, Default)]
struct Machine(std::sync::Arc<parking_lot::Mutex<Position>>);

impl RaftSnapshotBuilder<RaftConfig> for Machine {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<RaftConfig, ()>, io::Error> {
        let mut position = self.0.lock();
        let meta = SnapshotMeta { last_log_id: position.last, last_membership: position.membership.clone() };
        position.snapshot = Some(meta.clone());
        Ok(SnapshotOf::<RaftConfig, ()> { meta, snapshot: () })
    }
}

impl RaftStateMachine<RaftConfig> for Machine {
    type SnapshotData = ();
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let position = self.0.lock();
        Ok((position.last, position.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<RaftConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let mut position = self.0.lock();
            position.last = Some(entry.log_id);
            if let EntryPayload::Membership(membership) = entry.payload {
                position.membership = StoredMembership::new(Some(entry.log_id), membership);
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, _: ()) -> Result<(), io::Error> {
        let mut position = self.0.lock();
        position.last = meta.last_log_id;
        position.membership = meta.last_membership.clone();
        position.snapshot = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<RaftConfig, ()>>, io::Error> {
        let meta = self.0.lock().snapshot.clone();
        Ok(meta.map(|meta| SnapshotOf::<RaftConfig, ()> { meta, snapshot: () }))
    }
}

struct InMemory;

impl StoreBuilder<RaftConfig, LogStore, Machine> for InMemory {
    async fn build(&self) -> Result<((), LogStore, Machine), StorageError<RaftConfig>> {
        let options = StoreOptions::small();
        let snapshots = SnapshotStore::memory(&options);
        let store = ReplicaStore::in_memory(MemoryDisk::default(), snapshots, options).unwrap();
        Ok(((), store.log, Machine::default()))
    }
}

/// With segments so short that every test crosses several, and no memory for the tail.
struct OnDisk;

impl StoreBuilder<RaftConfig, LogStore, Machine, tempfile::TempDir> for OnDisk {
    async fn build(&self) -> Result<(tempfile::TempDir, LogStore, Machine), StorageError<RaftConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity { cluster_id: ClusterId(1), replica_id: ReplicaId(1), generation: 1 };
        let options = StoreOptions { segment_entries: 4, tail_bytes_max: 0, ..StoreOptions::small() };
        let store = ReplicaStore::open(dir.path(), identity, OpenMode::CreateIfMissing, options).unwrap();
        Ok((dir, store.log, Machine::default()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_in_memory_log_conforms() {
    Suite::test_all(InMemory).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_on_disk_conforms() {
    Suite::test_all(OnDisk).await.unwrap();
}
