//! The state machine of a replica: the engine's own, with every entry and every state shown to the judge.
//!
//! Snapshots are kept on the simulated disk: replaced whole, durable before they count.

use crate::disk::Disk;
use crate::raft_runtime::SimConfig;
use crate::runtime::{Host, event};
use crate::site::Site;
use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt};
use muster_consensus::{Application, AppliedBytes, CommittedEntry, Environment, SnapshotData};
use muster_engine::{Replicated, Subscription, View, WatchPosition, replicated};
use muster_journal::{FORMAT_MAX, hash};
use muster_store::{
    Entry, EntryPayload, LogId, SnapshotHandle, SnapshotMeta, SnapshotStore, StoreOptions, StoredMembership,
    decode_snapshot_meta, encode_snapshot_meta,
};
use muster_types::ReplicaId;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::type_config::alias::SnapshotOf;
use openraft::{OptionalSend, RaftSnapshotBuilder};
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::sync::Arc;
use tokio::sync::watch;

const SNAPSHOT: &str = "snapshot";

struct Inner {
    application: Replicated,
    last: Option<LogId>,
    membership: StoredMembership,
    /// Reads what is published, as any follower of the changes would.
    changes: Option<Subscription>,
}

/// The state machine. Clones share it.
#[derive(Clone)]
pub struct SimMachine {
    site: Arc<Site>,
    host: Host,
    disk: Disk,
    snapshots: SnapshotStore,
    inner: Arc<Mutex<Inner>>,
    view: View,
    applied_bytes: AppliedBytes,
    applied: watch::Sender<u64>,
}

/// A snapshot as one file: its description, then its chunks.
fn encode(handle: &SnapshotHandle) -> io::Result<Vec<u8>> {
    let meta = encode_snapshot_meta(handle.meta());
    let mut out = Vec::new();
    let mut put = |part: &[u8]| {
        out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(part);
    };
    put(&meta);
    for chunk in handle.chunks() {
        put(&chunk.map_err(io::Error::other)?);
    }
    let sum = crc32fast::hash(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    Ok(out)
}

/// The same again, as a snapshot of this store that is not published yet; none where bytes are damaged.
fn decode(store: &SnapshotStore, bytes: &[u8]) -> Option<SnapshotHandle> {
    let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    if crc32fast::hash(body).to_le_bytes() != *sum {
        return None;
    }
    let mut rest = body;
    let mut parts = std::iter::from_fn(move || {
        let (len, after) = rest.split_at_checked(4)?;
        let len = u32::from_le_bytes(len.try_into().ok()?) as usize;
        let (part, after) = after.split_at_checked(len)?;
        rest = after;
        Some(part)
    });
    let meta = decode_snapshot_meta(parts.next()?).ok()?;
    let mut writer = store.create(meta).ok()?;
    for part in parts {
        writer.write(&Bytes::copy_from_slice(part)).ok()?;
    }
    writer.finish().ok()
}

impl SimMachine {
    /// With the snapshot that the disk has, if it has one; none when that is damaged.
    pub fn open(site: &Arc<Site>, host: Host, disk: &Disk) -> Option<SimMachine> {
        let (application, view) = replicated(FORMAT_MAX);
        let application = application.with_clock(<SimConfig as Environment>::instant);
        let inner = Inner { application, last: None, membership: StoredMembership::default(), changes: None };
        let machine = SimMachine {
            site: Arc::clone(site),
            host,
            disk: disk.clone(),
            snapshots: SnapshotStore::memory(&StoreOptions::small()),
            inner: Arc::new(Mutex::new(inner)),
            view,
            applied_bytes: AppliedBytes::default(),
            applied: watch::Sender::new(0),
        };
        if let Some(bytes) = disk.file(SNAPSHOT) {
            let handle = decode(&machine.snapshots, &bytes)?;
            machine.restore(&handle).ok()?;
            machine.snapshots.publish(&handle).ok()?;
        }
        machine.follow_changes();
        Some(machine)
    }

    /// The state, and who waits for it.
    pub fn view(&self) -> View {
        self.view.clone()
    }

    /// How much was applied.
    pub fn applied_bytes(&self) -> AppliedBytes {
        self.applied_bytes.clone()
    }

    /// The last entry that is in it.
    pub fn last(&self) -> Option<LogId> {
        self.lock().last
    }

    /// How far it is applied.
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    /// Where snapshots are received.
    pub fn snapshots(&self) -> SnapshotStore {
        self.snapshots.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    fn follow_changes(&self) {
        let from = WatchPosition::after(self.view.state().log_index());
        let changes = self.view.subscribe(from);
        if changes.is_err() {
            self.site.checks.fail(format!("n{}: its newest changes cannot be followed", self.host));
        }
        self.lock().changes = changes.ok();
    }

    fn apply_entry(&self, entry: &Entry) {
        let leader = entry.log_id.committed_leader_id();
        let payload = match &entry.payload {
            EntryPayload::Normal(payload) => Some(payload.0.clone()),
            EntryPayload::Blank | EntryPayload::Membership(_) => None,
        };
        let content = payload.as_ref().map_or(0, |payload| hash(&payload.as_ref()));
        let committed = CommittedEntry {
            raft_index: entry.log_id.index(),
            term: leader.term,
            leader: ReplicaId(leader.node_id),
            payload,
        };
        let recorded = committed.payload.clone();
        let before = self.view.state().log_index();
        let mut inner = self.lock();
        inner.application.apply(&[committed]);
        if let EntryPayload::Membership(membership) = &entry.payload {
            inner.membership = StoredMembership::new(Some(entry.log_id), membership.clone());
        }
        inner.last = Some(entry.log_id);
        let mut events = Vec::new();
        if let Some(changes) = &mut inner.changes {
            while let Some(Ok((more, _))) = changes.next().now_or_never() {
                events.extend(more);
            }
        }
        drop(inner);
        let state = self.view.state();
        let checks = &self.site.checks;
        event("apply", format_args!("n{} {} -> {}", self.host, entry.log_id, state.log_index()));
        checks.applied(self.host, entry.log_id, (content, recorded.as_deref()), &state);
        checks.published(self.host, before, state.log_index(), &events);
        let bytes = match &entry.payload {
            EntryPayload::Normal(payload) => payload.0.len() as u64,
            EntryPayload::Blank | EntryPayload::Membership(_) => 0,
        };
        self.applied_bytes.applied(entry.log_id.index(), 1, bytes);
        self.applied.send_replace(entry.log_id.index());
    }

    fn restore(&self, handle: &SnapshotHandle) -> Result<(), io::Error> {
        let meta = handle.meta();
        let raft_index = meta.last_log_id.map_or(0, |last| last.index());
        {
            let mut inner = self.lock();
            inner.application.restore(SnapshotData::of(handle)).map_err(io::Error::other)?;
            inner.last = meta.last_log_id;
            inner.membership = meta.last_membership.clone();
        }
        self.site.checks.restored(self.host, raft_index, &self.view.state());
        self.applied.send_replace(raft_index);
        Ok(())
    }

    fn build(&self) -> Result<(SnapshotHandle, Vec<u8>), io::Error> {
        let (source, meta) = {
            let inner = self.lock();
            let meta = SnapshotMeta { last_log_id: inner.last, last_membership: inner.membership.clone() };
            (inner.application.snapshot(), meta)
        };
        let mut writer = self.snapshots.create(meta)?;
        for chunk in source.chunks() {
            writer.write(&chunk)?;
        }
        let handle = writer.finish()?;
        let bytes = encode(&handle)?;
        Ok((handle, bytes))
    }
}

impl RaftStateMachine<SimConfig> for SimMachine {
    type SnapshotData = SnapshotHandle;
    type SnapshotBuilder = SimMachine;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let inner = self.lock();
        Ok((inner.last, inner.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<SimConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            self.apply_entry(&entry);
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SimMachine {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        _meta: &SnapshotMeta,
        snapshot: SnapshotHandle,
    ) -> Result<(), io::Error> {
        event("install", format_args!("n{} {:?}", self.host, snapshot.meta().last_log_id));
        self.restore(&snapshot)?;
        self.follow_changes();
        let bytes = encode(&snapshot)?;
        while self.disk.replace(SNAPSHOT, bytes.clone()).await.is_err() {
            crate::runtime::sleep_ms(50).await;
        }
        self.snapshots.publish(&snapshot)?;
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<SnapshotOf<SimConfig, SnapshotHandle>>, io::Error> {
        Ok(self.snapshots.current().map(|handle| SnapshotOf::<SimConfig, SnapshotHandle> {
            meta: handle.meta().clone(),
            snapshot: handle,
        }))
    }
}

impl RaftSnapshotBuilder<SimConfig> for SimMachine {
    type SnapshotData = SnapshotHandle;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<SimConfig, SnapshotHandle>, io::Error> {
        let (handle, bytes) = self.build()?;
        let built = match self.disk.replace(SNAPSHOT, bytes).await {
            Ok(()) => {
                self.snapshots.publish(&handle)?;
                handle
            }
            // On a full disk the newest snapshot stands for it, and the log stays.
            Err(_full) => match self.snapshots.current() {
                Some(current) => current,
                None => {
                    SnapshotStore::memory(&StoreOptions::small()).create(SnapshotMeta::default())?.finish()?
                }
            },
        };
        event("snapshot", format_args!("n{} {:?}", self.host, built.meta().last_log_id));
        Ok(SnapshotOf::<SimConfig, SnapshotHandle> { meta: built.meta().clone(), snapshot: built })
    }
}
