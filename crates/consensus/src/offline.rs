//! A replica's data directory outside of any cluster: what it holds, and the first data directory of a cluster that is
//! restored from a state.
//!
//! Nothing here asks whether an entry was committed, which is right after a disaster. An acknowledged write is on a
//! majority, so it may be on the one replica that is left, and then nobody can tell any more whether the entry was
//! acknowledged. Taking every entry of the directory loses none of those; it may apply entries that no client was
//! told about.
//!
//! **Invariant:** the directory that is read is not changed, except by what opening it repairs.
//! **Invariant:** the directory that is made has one voter, and a vote of no earlier term than anything in
//! its state: its first leadership is newer than every other in it.

use crate::application::{Application, CommittedEntry, Halt, SnapshotData};
use crate::bootstrap::fresh_founding;
use bytes::Bytes;
use muster_store::{
    Entry, EntryPayload, FoundingId, Identity, LeaderId, LogId, Membership, OpenMode, ReplicaNode,
    ReplicaStore, SnapshotMeta, StoreError, StoreOptions, StoredMembership, Vote,
};
use muster_types::ReplicaId;
use openraft::storage::{RaftLogReader, RaftLogStorage};
use openraft::vote::RaftLeaderId;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use thiserror::Error;

/// Entries applied at a time, and bytes of them.
const BATCH_ENTRIES: u64 = 256;
const BATCH_BYTES: usize = 4 << 20;

/// Why a data directory was not read or not made.
#[derive(Debug, Error)]
pub enum OfflineError {
    /// Storage refused.
    #[error("the data directory cannot be opened")]
    Store(#[from] StoreError),
    /// The newest snapshot could not be restored.
    #[error("the newest snapshot cannot be taken over")]
    Restore(#[from] crate::application::ApplicationError),
    /// An entry could not be applied.
    #[error("the entry at raft index {raft_index} cannot be applied: {detail}")]
    Apply {
        /// Where the log stops being usable.
        raft_index: u64,
        /// What the application said.
        detail: String,
    },
    /// The directory holds no entry and no snapshot.
    #[error("the data directory holds nothing: the replica never received anything")]
    Empty,
    /// The first vote could not be written.
    #[error("the first vote cannot be written")]
    Vote(#[source] std::io::Error),
    /// The first membership is not one.
    #[error("the first membership is not possible: {detail}")]
    Membership {
        /// Why.
        detail: String,
    },
}

/// A position in the log of Raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The term of the entry.
    pub term: u64,
    /// Its index.
    pub index: u64,
}

impl Position {
    fn of(log_id: &LogId) -> Position {
        Position { term: log_id.committed_leader_id().term, index: log_id.index() }
    }
}

/// What a data directory held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Where its newest snapshot ends, if it has one.
    pub snapshot: Option<Position>,
    /// Its last entry, committed or not.
    pub last: Position,
    /// How far it knew entries to be committed.
    pub committed_index: Option<u64>,
    /// The newest term it voted in or saw.
    pub term: u64,
    /// Entries applied behind the snapshot.
    pub entries: u64,
    /// The members in its newest membership.
    pub members: BTreeMap<ReplicaId, ReplicaNode>,
}

/// Brings everything that a data directory holds into `application`: its newest snapshot, and every entry behind it,
/// whether or not it was ever committed. The replica must not run.
///
/// # Errors
/// When the directory is in use, damaged, another replica's, or holds nothing usable.
pub async fn read_everything(
    dir: &Path,
    identity: Identity,
    application: &mut dyn Application,
) -> Result<Held, OfflineError> {
    let (dir, options) = (dir.to_path_buf(), StoreOptions::production());
    let opened =
        tokio::task::spawn_blocking(move || ReplicaStore::open(&dir, identity, OpenMode::Existing, options));
    let store = opened.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    let held = take(&store, application).await;
    store.log.close().await;
    held
}

/// The entries of a directory's log from one index on, committed or not; none where the log begins behind it.
/// The replica must not run.
///
/// # Errors
/// When the directory is in use, damaged, or another replica's.
pub async fn read_entries(
    dir: &Path,
    identity: Identity,
    from_index: u64,
) -> Result<Vec<CommittedEntry>, OfflineError> {
    let (dir, options) = (dir.to_path_buf(), StoreOptions::production());
    let opened =
        tokio::task::spawn_blocking(move || ReplicaStore::open(&dir, identity, OpenMode::Existing, options));
    let store = opened.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    let entries = entries_of(&store, from_index).await;
    store.log.close().await;
    Ok(entries?)
}

async fn entries_of(store: &ReplicaStore, from_index: u64) -> Result<Vec<CommittedEntry>, StoreError> {
    let end = store.log.last().map_or(0, |last| last.index() + 1);
    let mut entries: Vec<CommittedEntry> = Vec::new();
    let mut next = from_index;
    while next < end {
        let batch = store.log.read(next, end.min(next + BATCH_ENTRIES), BATCH_BYTES).await?;
        if batch.first().is_none_or(|first| first.log_id.index() != next) {
            return Ok(Vec::new());
        }
        next += batch.len() as u64;
        entries.extend(batch.iter().map(crate::state_machine::committed_entry));
    }
    Ok(entries)
}

async fn take(store: &ReplicaStore, application: &mut dyn Application) -> Result<Held, OfflineError> {
    let mut last = None;
    let mut membership = StoredMembership::default();
    let snapshot = store.snapshots.current();
    if let Some(snapshot) = &snapshot {
        let data = SnapshotData {
            reader: snapshot.chunks(),
            bytes: snapshot.bytes(),
            raft_index: snapshot.meta().last_log_id.map_or(0, |last| last.index()),
        };
        application.restore(data)?;
        last = snapshot.meta().last_log_id;
        membership = snapshot.meta().last_membership.clone();
    }
    let snapshot = last.as_ref().map(Position::of);
    let mut entries = 0;
    let end = store.log.last().map_or(0, |last| last.index() + 1);
    let mut next = last.map_or(0, |last| last.index() + 1);
    while next < end {
        let batch = store.log.read(next, end.min(next + BATCH_ENTRIES), BATCH_BYTES).await?;
        let Some(newest) = batch.last().map(|entry| entry.log_id) else { break };
        apply(application, &batch)?;
        entries += batch.len() as u64;
        for entry in batch {
            if let EntryPayload::Membership(found) = entry.payload {
                membership = StoredMembership::new(Some(entry.log_id), found);
            }
        }
        last = Some(newest);
        next = newest.index() + 1;
    }
    let last = last.as_ref().map(Position::of).ok_or(OfflineError::Empty)?;
    let mut log = store.log.clone();
    let vote = log.read_vote().await.map_err(OfflineError::Vote)?;
    let committed = log.read_committed().await.ok().flatten();
    Ok(Held {
        snapshot,
        last,
        committed_index: committed.map(|log_id| log_id.index()).max(snapshot.map(|at| at.index)),
        term: vote.map_or(0, |vote| vote.leader_id.term).max(last.term),
        entries,
        members: membership.nodes().map(|(id, node)| (ReplicaId(*id), node.clone())).collect(),
    })
}

/// A call that stops the application is told as an error: there is no replica to stop.
fn apply(application: &mut dyn Application, batch: &[Entry]) -> Result<(), OfflineError> {
    for entry in batch {
        let entry = crate::state_machine::committed_entry(entry);
        let raft_index = entry.raft_index;
        let applied = std::panic::catch_unwind(AssertUnwindSafe(|| {
            application.apply(std::slice::from_ref::<CommittedEntry>(&entry));
        }));
        applied
            .map_err(|panic| OfflineError::Apply { raft_index, detail: Halt::detail_of(panic.as_ref()) })?;
    }
    Ok(())
}

/// Makes the data directory of the first replica of a cluster that is restored from a state: its only voter,
/// with a log that starts behind `at` and a vote of `at.term`. Complete and durable when it returns.
///
/// # Errors
/// When the directory holds a replica already, or cannot be written.
pub async fn found_from(
    dir: &Path,
    identity: Identity,
    node: ReplicaNode,
    at: Position,
    chunks: impl Iterator<Item = Bytes> + Send + 'static,
) -> Result<(), OfflineError> {
    let own = identity.replica_id.0;
    let leader = LeaderId::new(at.term, own);
    let log_id = LogId::new(leader, at.index);
    let nodes: BTreeMap<u64, ReplicaNode> = [(own, node)].into();
    let membership = Membership::new(vec![[own].into()], nodes)
        .map_err(|error| OfflineError::Membership { detail: error.to_string() })?;
    let meta = SnapshotMeta {
        last_log_id: Some(log_id),
        last_membership: StoredMembership::new(Some(log_id), membership),
    };
    // What begins here is not to be mixed with what another survivor may begin.
    let founding = FoundingId::Of(fresh_founding());
    let dir = dir.to_path_buf();
    let made = tokio::task::spawn_blocking(move || {
        let chunks = chunks.map(Ok::<Bytes, Infallible>);
        ReplicaStore::create_from(&dir, identity, founding, meta, chunks, StoreOptions::production())
    });
    let store = made.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    let mut log = store.log.clone();
    let vote = Vote { leader_id: leader, committed: false };
    let voted = log.save_vote(&vote).await;
    store.log.close().await;
    voted.map_err(OfflineError::Vote)
}
