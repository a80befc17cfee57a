//! What the storage thread needs from whatever keeps the log.
//!
//! **Invariant:** a backend is called from one thread only, in the order the operations were asked
//! for; when a writing method returns `Ok`, its effect survives a power cut. [`WriteBatch::committed`] is
//! excepted: it is a hint.

use crate::error::StoreError;
use crate::raft_types::{Entry, LogId, Vote};

/// What a backend found at open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The last vote.
    pub vote: Option<Vote>,
    /// The last known committed entry; never past the last entry.
    pub committed: Option<LogId>,
    /// Everything up to here was purged.
    pub floor: Option<LogId>,
    /// The last entry, or the floor where there is none.
    pub last: Option<LogId>,
    /// The first entry after the floor; `None` where there is none.
    pub first_index: Option<u64>,
}

/// What one flush makes durable, together.
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    /// Entries that follow the last one.
    pub entries: Vec<Entry>,
    /// A vote, written after the entries.
    pub vote: Option<Vote>,
    /// The committed entry, never past the last entry.
    pub committed: Option<LogId>,
}

/// Everything up to and including this entry is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFloor(pub LogId);

/// Whatever keeps the log.
pub trait LogBackend: Send + 'static {
    /// Verifies what is there, finishes a purge that a crash interrupted, and says what was found.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when less is there than was acknowledged.
    fn recover(&mut self) -> Result<Recovered, StoreError>;

    /// Makes a batch durable.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`]: the caller calls again with the same batch once there is space, and
    /// makes no other change before. Anything else is fatal: the caller never tries again.
    fn write(&mut self, batch: &WriteBatch) -> Result<(), StoreError>;

    /// Removes every entry after `keep`; all where it is `None`.
    ///
    /// # Errors
    /// Fatal: the caller never tries again.
    fn truncate_after(&mut self, keep: Option<LogId>) -> Result<(), StoreError>;

    /// Makes the new floor durable. Space is given back by [`LogBackend::tidy`].
    ///
    /// # Errors
    /// Fatal: the caller never tries again.
    fn purge(&mut self, floor: LogFloor) -> Result<(), StoreError>;

    /// Entries from `start` until before `end`, in order; stops early once `bytes_max` is reached,
    /// after at least one.
    ///
    /// # Errors
    /// When an entry that must be there is not, or is not intact.
    fn read(&mut self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, StoreError>;

    /// Called when nothing has been written for a moment: whatever is there only to tell damage from
    /// a short log is made to say exactly what the log has.
    ///
    /// # Errors
    /// Fatal: the caller never tries again.
    fn settle(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Bytes of disk the log has, preallocated space included.
    fn log_bytes(&self) -> u64;

    /// Gives back a bounded piece of purged space. Returns whether there is more.
    ///
    /// # Errors
    /// Fatal: the caller never tries again.
    fn tidy(&mut self) -> Result<bool, StoreError>;
}
