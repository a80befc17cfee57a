//! The seam to the replicated application, which gives committed payloads a meaning.

use bytes::Bytes;
use muster_store::{SnapshotHandle, SnapshotReader};
use muster_types::ReplicaId;
use thiserror::Error;

/// One committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedEntry {
    /// Its position in the log; rises by one from entry to entry.
    pub raft_index: u64,
    /// The term it was appended in.
    pub term: u64,
    /// The replica that led then.
    pub leader: ReplicaId,
    /// What was proposed; `None` for entries of the protocol itself.
    pub payload: Option<Bytes>,
}

/// Why a snapshot was refused; the application is as it was before.
#[derive(Debug, Error)]
#[error("restoring the snapshot failed: {detail}")]
pub struct ApplicationError {
    /// What was wrong.
    pub detail: String,
    /// The cause, where there is one.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ApplicationError {
    /// A refusal with a reason.
    pub fn new(detail: impl Into<String>) -> Self {
        ApplicationError { detail: detail.into(), source: None }
    }
}

/// How an application stops its replica without a panic's noise: with a reason, for good.
pub struct Halt(String);

impl Halt {
    /// The text that a panic or a halt carries.
    #[must_use]
    pub fn detail_of(payload: &(dyn std::any::Any + Send)) -> String {
        if let Some(Halt(detail)) = payload.downcast_ref::<Halt>() {
            return detail.clone();
        }
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
    }
}

/// Stops the replica from within a call of its [`Application`], which can neither go on nor take the entry
/// back, although it has no bug. The replica stops with this reason.
pub fn halt(detail: impl Into<String>) -> ! {
    std::panic::resume_unwind(Box::new(Halt(detail.into())))
}

/// The replicated application. It is called from one task at a time.
pub trait Application: Send + Sync + 'static {
    /// Applies committed entries in log order, each exactly once since the last restore. A batch is
    /// whatever is committed and ready. A panic stops the replica.
    fn apply(&mut self, entries: &[CommittedEntry]);

    /// A cheap, consistent copy to be encoded elsewhere; apply waits while it is taken.
    fn snapshot(&self) -> Box<dyn SnapshotSource>;

    /// Replaces everything by a snapshot.
    ///
    /// # Errors
    /// The replica stops; nothing has changed.
    fn restore(&mut self, data: SnapshotData) -> Result<(), ApplicationError>;
}

/// A copy of the application's state, ready to be encoded on a thread that may block.
pub trait SnapshotSource: Send {
    /// The encoded state in pieces of any size; they come back cut into pieces of at most 1 MiB,
    /// with the same bytes in the same order.
    fn chunks(self: Box<Self>) -> Box<dyn Iterator<Item = Bytes> + Send>;
}

/// The bytes of a snapshot, verified piece by piece while they are read.
pub struct SnapshotData {
    pub(crate) reader: SnapshotReader,
    pub(crate) bytes: u64,
    pub(crate) raft_index: u64,
}

impl SnapshotData {
    /// Those of a snapshot that is kept.
    #[must_use]
    pub fn of(snapshot: &SnapshotHandle) -> SnapshotData {
        SnapshotData {
            reader: snapshot.chunks(),
            bytes: snapshot.bytes(),
            raft_index: snapshot.meta().last_log_id.map_or(0, |last| last.index()),
        }
    }

    /// About how many bytes there are.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The last entry it covers.
    #[must_use]
    pub fn raft_index(&self) -> u64 {
        self.raft_index
    }
}

impl Iterator for SnapshotData {
    type Item = Result<Bytes, ApplicationError>;

    fn next(&mut self) -> Option<Self::Item> {
        let chunk = self.reader.next()?;
        Some(chunk.map_err(|error| ApplicationError {
            detail: "the snapshot cannot be read".to_owned(),
            source: Some(Box::new(error)),
        }))
    }
}
