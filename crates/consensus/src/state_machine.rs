//! Drives the application from the log, and makes and installs snapshots.
//!
//! **Invariant:** a panic of the application or a snapshot it refuses stops the replica; no entry
//! is skipped and none is applied twice.
//! **Invariant:** building a snapshot holds the application only while the copy is taken.

use crate::application::{Application, CommittedEntry, Halt, SnapshotData};
use crate::snapshots::AppliedBytes;
use crate::stop::{StopHandle, StopReason};
use futures::{Stream, StreamExt};
use muster_store::{
    Entry, EntryPayload, LogId, RaftConfig, SnapshotHandle, SnapshotMeta, SnapshotStore, StoreError,
    StoreOptions, StoredMembership,
};
use muster_types::ReplicaId;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::type_config::alias::SnapshotOf;
use openraft::{OptionalSend, RaftSnapshotBuilder};
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::watch;

struct Applied {
    application: Box<dyn Application>,
    /// A call of the application panicked, perhaps with half of a batch applied. It is not called
    /// again: a snapshot of it would bring the half back at the next start, and apply it twice.
    panicked: bool,
    last: Option<LogId>,
    membership: StoredMembership,
}

/// The application and how far it is applied. Clones share them.
#[derive(Clone)]
pub struct StateMachine {
    applied: Arc<Mutex<Applied>>,
    snapshots: SnapshotStore,
    apply_entries_max: usize,
    applied_index: Arc<watch::Sender<u64>>,
    applied_bytes: AppliedBytes,
    stop: StopHandle,
}

impl StateMachine {
    pub(crate) fn new(
        application: Box<dyn Application>,
        snapshots: SnapshotStore,
        apply_entries_max: usize,
        applied_index: watch::Sender<u64>,
        stop: StopHandle,
    ) -> Self {
        let applied_bytes = AppliedBytes::default();
        applied_bytes.newest_snapshot(snapshots.current().map_or(0, |snapshot| snapshot.bytes()));
        let applied =
            Applied { application, panicked: false, last: None, membership: StoredMembership::default() };
        StateMachine {
            applied: Arc::new(Mutex::new(applied)),
            snapshots,
            apply_entries_max,
            applied_index: Arc::new(applied_index),
            applied_bytes,
            stop,
        }
    }

    pub(crate) fn applied_bytes(&self) -> AppliedBytes {
        self.applied_bytes.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Applied> {
        // A panic of the application is caught before it can leave the lock.
        self.applied.lock()
    }

    /// Runs a call of the application; a panic is the end of this replica.
    fn contained<T>(&self, call: impl FnOnce() -> T) -> Result<T, io::Error> {
        std::panic::catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
            let detail = Halt::detail_of(panic.as_ref());
            let reason = if panic.is::<Halt>() {
                tracing::error!(detail, "the application stops this replica");
                StopReason::Halted { detail }
            } else {
                tracing::error!(detail, "the application panicked: this replica stops");
                StopReason::ApplicationPanicked { detail }
            };
            let error = io::Error::other(reason.clone());
            self.stop.stop(reason);
            error
        })
    }

    /// The same for a call that may leave the application between two states.
    fn call<T>(
        &self,
        applied: &mut Applied,
        call: impl FnOnce(&mut dyn Application) -> T,
    ) -> Result<T, io::Error> {
        if applied.panicked {
            return Err(io::Error::other("the application panicked before"));
        }
        let application = applied.application.as_mut();
        let called = self.contained(|| call(application));
        applied.panicked = called.is_err();
        called
    }

    fn apply_batch(&self, entries: Vec<Entry>) -> Result<(), io::Error> {
        let committed: Vec<CommittedEntry> = entries.iter().map(committed_entry).collect();
        let mut applied = self.lock();
        self.call(&mut applied, |application| application.apply(&committed))?;
        let bytes = |entry: &CommittedEntry| entry.payload.as_ref().map_or(0, |payload| payload.len() as u64);
        let payload_bytes = committed.iter().map(bytes).sum();
        for entry in entries {
            if let EntryPayload::Membership(membership) = entry.payload {
                applied.membership = StoredMembership::new(Some(entry.log_id), membership);
            }
            applied.last = Some(entry.log_id);
        }
        let last_index = applied.last.map_or(0, |last| last.index());
        drop(applied);
        self.applied_bytes.applied(last_index, committed.len() as u64, payload_bytes);
        self.applied_index.send_replace(last_index);
        Ok(())
    }
}

pub(crate) fn committed_entry(entry: &Entry) -> CommittedEntry {
    let leader = entry.log_id.committed_leader_id();
    let payload = match &entry.payload {
        EntryPayload::Normal(payload) => Some(payload.0.clone()),
        EntryPayload::Blank | EntryPayload::Membership(_) => None,
    };
    CommittedEntry {
        raft_index: entry.log_id.index(),
        term: leader.term,
        leader: ReplicaId(leader.node_id),
        payload,
    }
}

impl RaftStateMachine<RaftConfig> for StateMachine {
    type SnapshotData = SnapshotHandle;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let applied = self.lock();
        Ok((applied.last, applied.membership.clone()))
    }

    async fn apply<S>(&mut self, entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<RaftConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut ready = entries.ready_chunks(self.apply_entries_max);
        while let Some(chunk) = ready.next().await {
            let mut batch = Vec::with_capacity(chunk.len());
            let mut responders = Vec::new();
            let mut failure = None;
            for item in chunk {
                match item {
                    Ok((entry, responder)) => {
                        batch.push(entry);
                        responders.extend(responder);
                    }
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
            if !batch.is_empty() {
                self.apply_batch(batch)?;
            }
            for responder in responders {
                responder.send(());
            }
            if let Some(error) = failure {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder { machine: self.clone() }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotHandle,
    ) -> Result<(), io::Error> {
        let machine = self.clone();
        let meta = meta.clone();
        let installed = tokio::task::spawn_blocking(move || machine.install(&meta, &snapshot)).await;
        installed.map_err(io::Error::other)?
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<SnapshotOf<RaftConfig, SnapshotHandle>>, io::Error> {
        Ok(self.snapshots.current().map(|handle| SnapshotOf::<RaftConfig, SnapshotHandle> {
            meta: handle.meta().clone(),
            snapshot: handle,
        }))
    }
}

impl StateMachine {
    fn install(&self, meta: &SnapshotMeta, snapshot: &SnapshotHandle) -> Result<(), io::Error> {
        let data = SnapshotData::of(snapshot);
        let mut applied = self.lock();
        self.call(&mut applied, |application| application.restore(data))?.map_err(io::Error::other)?;
        applied.last = meta.last_log_id;
        applied.membership = meta.last_membership.clone();
        // Published only now: one that the application refuses must not come back at the next start.
        // Under the lock, and after `last`: whatever is built from here on is named for what it holds.
        self.snapshots.publish(snapshot)?;
        drop(applied);
        self.applied_index.send_replace(meta.last_log_id.map_or(0, |last| last.index()));
        Ok(())
    }
}

/// Builds one snapshot while apply goes on.
pub struct SnapshotBuilder {
    machine: StateMachine,
}

/// Why there is no snapshot.
enum BuildError {
    /// The application panicked: the end of this replica.
    Broken(io::Error),
    /// Storage refused it, mostly because the disk is full; it is tried again later.
    Refused(StoreError),
}

impl SnapshotBuilder {
    fn build(machine: &StateMachine) -> Result<SnapshotHandle, BuildError> {
        let (source, meta) = {
            let mut applied = machine.lock();
            let source = machine
                .call(&mut applied, |application| application.snapshot())
                .map_err(BuildError::Broken)?;
            let meta =
                SnapshotMeta { last_log_id: applied.last, last_membership: applied.membership.clone() };
            (source, meta)
        };
        let mut writer = machine.snapshots.create(meta).map_err(BuildError::Refused)?;
        let mut chunks = machine.contained(|| source.chunks()).map_err(BuildError::Broken)?;
        while let Some(chunk) = machine.contained(|| chunks.next()).map_err(BuildError::Broken)? {
            writer.write(&chunk).map_err(BuildError::Refused)?;
        }
        let handle = writer.finish().map_err(BuildError::Refused)?;
        machine.snapshots.publish(&handle).map_err(BuildError::Refused)?;
        Ok(handle)
    }

    /// The newest snapshot there is, as if it had just been built: to the protocol, an error of a
    /// builder is the end of the replica, and a snapshot no newer than it knows is nothing at all.
    fn nothing_new(machine: &StateMachine) -> Result<SnapshotHandle, io::Error> {
        if let Some(current) = machine.snapshots.current() {
            return Ok(current);
        }
        let nowhere = SnapshotStore::memory(&StoreOptions::production());
        Ok(nowhere.create(SnapshotMeta::default())?.finish()?)
    }
}

impl RaftSnapshotBuilder<RaftConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotHandle;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<RaftConfig, SnapshotHandle>, io::Error> {
        let machine = self.machine.clone();
        let built = tokio::task::spawn_blocking(move || match SnapshotBuilder::build(&machine) {
            Ok(handle) => {
                machine.applied_bytes.build_succeeded(handle.bytes());
                Ok(handle)
            }
            Err(BuildError::Broken(error)) => Err(error),
            Err(BuildError::Refused(error)) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "a snapshot could not be made; the log stays, and it is tried again later"
                );
                machine.applied_bytes.build_failed(std::time::Instant::now());
                SnapshotBuilder::nothing_new(&machine)
            }
        });
        let handle = built.await.map_err(io::Error::other)??;
        Ok(SnapshotOf::<RaftConfig, SnapshotHandle> { meta: handle.meta().clone(), snapshot: handle })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

    use super::*;
    use crate::application::{ApplicationError, SnapshotSource};
    use bytes::Bytes;
    use muster_store::{LeaderId, Payload};
    use openraft::vote::RaftLeaderId;

    /// Panics in the middle of a batch, with half of it applied.
    #[derive(Default)]
    struct Halves {
        applied: u64,
    }

    impl Application for Halves {
        fn apply(&mut self, entries: &[CommittedEntry]) {
            for entry in entries {
                assert!(entry.raft_index < 2, "the middle of the batch");
                self.applied += 1;
            }
        }

        fn snapshot(&self) -> Box<dyn SnapshotSource> {
            struct Chunk(u64);
            impl SnapshotSource for Chunk {
                fn chunks(self: Box<Self>) -> Box<dyn Iterator<Item = Bytes> + Send> {
                    Box::new(std::iter::once(Bytes::from(self.0.to_string())))
                }
            }
            Box::new(Chunk(self.applied))
        }

        fn restore(&mut self, _: SnapshotData) -> Result<(), ApplicationError> {
            Ok(())
        }
    }

    fn entries(indexes: std::ops::Range<u64>) -> Vec<Entry> {
        let entry = |index| Entry {
            log_id: LogId::new(LeaderId::new(1, 1), index),
            payload: EntryPayload::Normal(Payload(Bytes::new())),
        };
        indexes.map(entry).collect()
    }

    /// A snapshot that was asked for before the panic and is taken after it would hold half a batch
    /// under the name of what came before, and that half would be applied again at the next start.
    #[test]
    fn nothing_is_taken_from_an_application_that_panicked() {
        let snapshots = SnapshotStore::memory(&StoreOptions::small());
        let stop = StopHandle::new(Arc::new(watch::Sender::new(None)));
        let application = Box::new(Halves::default());
        let machine =
            StateMachine::new(application, snapshots.clone(), 256, watch::Sender::new(0), stop.clone());
        machine.apply_batch(entries(0..1)).unwrap();
        machine.apply_batch(entries(1..3)).unwrap_err();
        assert!(matches!(*stop.subscribe().borrow(), Some(StopReason::ApplicationPanicked { .. })));
        assert!(SnapshotBuilder::build(&machine).is_err());
        assert!(machine.apply_batch(entries(1..2)).is_err());
        assert!(snapshots.current().is_none());
    }
    /// The application has the snapshot's state by then: a snapshot built from it must carry that position.
    #[test]
    fn a_snapshot_that_was_restored_but_not_published_is_where_the_application_is() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("snapshots");
        let snapshots = SnapshotStore::open(&directory, &StoreOptions::small()).unwrap();
        let stop = StopHandle::new(Arc::new(watch::Sender::new(None)));
        let application = Box::new(Halves::default());
        let machine = StateMachine::new(application, snapshots.clone(), 256, watch::Sender::new(0), stop);
        let meta =
            SnapshotMeta { last_log_id: Some(LogId::new(LeaderId::new(1, 1), 9)), ..Default::default() };
        let snapshot = snapshots.create(meta.clone()).unwrap().finish().unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        machine.install(&meta, &snapshot).unwrap_err();
        assert_eq!(machine.lock().last, meta.last_log_id);
    }
}
