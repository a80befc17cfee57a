//! Reading what was applied out of the log again, for whoever keeps or follows history.
//!
//! **Invariant:** only applied entries are handed out: nothing of it can be taken back.

use crate::application::CommittedEntry;
use crate::consensus::Consensus;
use crate::state_machine::committed_entry;
use openraft::RaftLogReader;
use thiserror::Error;

/// Applied entries from one place of the log on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogSlice {
    /// In order and without a gap; none when nothing behind that place is applied yet.
    Entries(Vec<CommittedEntry>),
    /// That place is not in the log any more.
    Purged {
        /// The first entry that may still be there.
        first: u64,
    },
}

/// Storage did not give out the entries.
#[derive(Debug, Error)]
#[error("reading the log from raft index {from} failed")]
pub struct ReadLogError {
    /// The first entry that was asked for.
    pub from: u64,
    /// What storage said.
    #[source]
    pub source: std::io::Error,
}

impl Consensus {
    /// Applied entries from raft index `from` on, about a megabyte of them: at least one, unless none
    /// is applied.
    ///
    /// # Errors
    /// When storage fails or was closed.
    pub async fn read_applied(&self, from: u64) -> Result<LogSlice, ReadLogError> {
        let applied = *self.inner.applied.borrow();
        let mut log = self.inner.store.log.clone();
        let entries = if from > applied {
            Vec::new()
        } else {
            let read = log.limited_get_log_entries(from, applied + 1).await;
            read.map_err(|source| ReadLogError { from, source })?
        };
        if entries.is_empty() {
            // Looked at after the read: a purge between the two must not look like the end of the log.
            return Ok(match log.floor().map(|floor| floor.index()) {
                Some(floor) if from <= floor => LogSlice::Purged { first: floor + 1 },
                _ => LogSlice::Entries(Vec::new()),
            });
        }
        Ok(LogSlice::Entries(entries.iter().map(committed_entry).collect()))
    }

    /// Everything up to here was purged from the log; none when it begins at the beginning.
    #[must_use]
    pub fn log_floor(&self) -> Option<u64> {
        self.inner.store.log.floor().map(|floor| floor.index())
    }

    /// Keeps entries behind `hold` in the log, whatever snapshots there are: somebody else does not have
    /// them yet. `None` holds nothing back.
    pub fn hold_purge(&self, hold: Option<u64>) {
        self.inner.store.log.hold_purge(hold);
    }
}
