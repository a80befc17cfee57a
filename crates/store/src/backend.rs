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

/// What the writer asks of storage, one at a time; [`LogBackend`] has the contract of each.
#[derive(Debug)]
pub enum StorageOperation {
    /// Make a batch durable.
    Write(WriteBatch),
    /// Remove every entry after `keep`; all where it is `None`.
    Truncate {
        /// The last entry that stays.
        keep: Option<LogId>,
    },
    /// Make the new floor durable.
    Purge(LogFloor),
    /// Entries from `start` until before `end`.
    Read {
        /// The first.
        start: u64,
        /// Behind the last.
        end: u64,
        /// Where to stop early.
        bytes_max: usize,
    },
    /// Make the mark say exactly what the log has.
    Settle,
    /// Give back a bounded piece of purged space.
    Tidy,
}

impl StorageOperation {
    /// Whether it counts as a flush, which may stall.
    pub(crate) const fn is_watched(&self) -> bool {
        !matches!(self, StorageOperation::Read { .. })
    }

    /// As error reports name it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            StorageOperation::Write(_) => "writing a batch",
            StorageOperation::Truncate { .. } => "truncating",
            StorageOperation::Purge(_) => "purging",
            StorageOperation::Read { .. } => "reading",
            StorageOperation::Settle => "settling",
            StorageOperation::Tidy => "giving back purged entries",
        }
    }
}

/// What a storage operation returned.
#[derive(Debug)]
pub enum StorageOutcome {
    /// It is done.
    Done,
    /// What was read.
    Entries(Vec<Entry>),
    /// It is done, and whether there is more to tidy.
    Tidied {
        /// Whether there is more.
        more: bool,
    },
}

impl StorageOutcome {
    /// What was read; nothing, of another operation.
    pub(crate) fn into_entries(self) -> Vec<Entry> {
        match self {
            StorageOutcome::Entries(entries) => entries,
            StorageOutcome::Done | StorageOutcome::Tidied { .. } => Vec::new(),
        }
    }
}

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

    /// Carries out what the writer asks for.
    ///
    /// # Errors
    /// What the method for it says.
    fn carry_out(&mut self, operation: &StorageOperation) -> Result<StorageOutcome, StoreError> {
        match operation {
            StorageOperation::Write(batch) => self.write(batch).map(|()| StorageOutcome::Done),
            StorageOperation::Truncate { keep } => self.truncate_after(*keep).map(|()| StorageOutcome::Done),
            StorageOperation::Purge(floor) => self.purge(*floor).map(|()| StorageOutcome::Done),
            StorageOperation::Read { start, end, bytes_max } => {
                self.read(*start, *end, *bytes_max).map(StorageOutcome::Entries)
            }
            StorageOperation::Settle => self.settle().map(|()| StorageOutcome::Done),
            StorageOperation::Tidy => self.tidy().map(|more| StorageOutcome::Tidied { more }),
        }
    }
}
