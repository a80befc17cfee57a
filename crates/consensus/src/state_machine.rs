//! Drives the application from the log, and makes and installs snapshots.
//!
//! **Invariant:** a panic of the application or a snapshot it refuses stops the replica; no entry
//! is skipped and none is applied twice.
//! **Invariant:** building a snapshot holds the application only while the copy is taken.

use crate::application::{Application, CommittedEntry, SnapshotData};
use crate::error::StopReason;
use futures::{Stream, StreamExt};
use muster_store::{
    Entry, EntryPayload, LogId, RaftConfig, SnapshotHandle, SnapshotMeta, SnapshotStore, StoredMembership,
};
use muster_types::ReplicaId;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::type_config::alias::SnapshotOf;
use openraft::{OptionalSend, RaftSnapshotBuilder};
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

pub(crate) type Raft = openraft::Raft<RaftConfig, StateMachine>;

struct Applied {
    application: Box<dyn Application>,
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
    stop: Arc<watch::Sender<Option<StopReason>>>,
}

impl StateMachine {
    pub(crate) fn new(
        application: Box<dyn Application>,
        snapshots: SnapshotStore,
        apply_entries_max: usize,
        applied_index: watch::Sender<u64>,
        stop: Arc<watch::Sender<Option<StopReason>>>,
    ) -> Self {
        let applied = Applied { application, last: None, membership: StoredMembership::default() };
        StateMachine {
            applied: Arc::new(Mutex::new(applied)),
            snapshots,
            apply_entries_max,
            applied_index: Arc::new(applied_index),
            stop,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Applied> {
        // A panic of the application is caught before it can leave the lock.
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call of the application; a panic is the end of this replica.
    fn contained<T>(&self, call: impl FnOnce() -> T) -> Result<T, io::Error> {
        std::panic::catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
            let detail = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            tracing::error!(detail, "the application panicked: this replica stops");
            let reason = StopReason::ApplicationPanicked { detail };
            let error = io::Error::other(reason.clone());
            self.stop.send_modify(|current| *current = current.take().or(Some(reason)));
            error
        })
    }

    fn apply_batch(&self, entries: Vec<Entry>) -> Result<(), io::Error> {
        let committed: Vec<CommittedEntry> = entries.iter().map(committed_entry).collect();
        let mut applied = self.lock();
        let application = &mut applied.application;
        self.contained(|| application.apply(&committed))?;
        for entry in entries {
            if let EntryPayload::Membership(membership) = entry.payload {
                applied.membership = StoredMembership::new(Some(entry.log_id), membership);
            }
            applied.last = Some(entry.log_id);
        }
        let last_index = applied.last.map_or(0, |last| last.index());
        drop(applied);
        self.applied_index.send_replace(last_index);
        Ok(())
    }
}

fn committed_entry(entry: &Entry) -> CommittedEntry {
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
        let data = SnapshotData { reader: snapshot.chunks(), bytes: snapshot.bytes() };
        let mut applied = self.lock();
        let application = &mut applied.application;
        self.contained(|| application.restore(data))?.map_err(io::Error::other)?;
        // Published only now: one that the application refuses must not come back at the next start.
        self.snapshots.publish(snapshot)?;
        applied.last = meta.last_log_id;
        applied.membership = meta.last_membership.clone();
        drop(applied);
        self.applied_index.send_replace(meta.last_log_id.map_or(0, |last| last.index()));
        Ok(())
    }
}

/// Builds one snapshot beside apply.
pub struct SnapshotBuilder {
    machine: StateMachine,
}

impl SnapshotBuilder {
    fn build(machine: &StateMachine) -> Result<SnapshotHandle, io::Error> {
        let (source, meta) = {
            let applied = machine.lock();
            let source = machine.contained(|| applied.application.snapshot())?;
            let meta =
                SnapshotMeta { last_log_id: applied.last, last_membership: applied.membership.clone() };
            (source, meta)
        };
        let mut writer = machine.snapshots.create(meta)?;
        let mut chunks = machine.contained(|| source.chunks())?;
        while let Some(chunk) = machine.contained(|| chunks.next())? {
            writer.write(&chunk)?;
        }
        let handle = writer.finish()?;
        machine.snapshots.publish(&handle)?;
        Ok(handle)
    }
}

impl RaftSnapshotBuilder<RaftConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotHandle;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<RaftConfig, SnapshotHandle>, io::Error> {
        let machine = self.machine.clone();
        let built = tokio::task::spawn_blocking(move || SnapshotBuilder::build(&machine)).await;
        let handle = built.map_err(io::Error::other)??;
        Ok(SnapshotOf::<RaftConfig, SnapshotHandle> { meta: handle.meta().clone(), snapshot: handle })
    }
}
