//! Reading applied entries out of the log again, for the archive and for those who follow history.
//!
//! **Invariant:** only applied entries are returned: none of them can be taken back.

use crate::application::CommittedEntry;
use crate::state_machine::committed_entry;
use muster_store::LogStore;
use openraft::RaftLogReader;
use thiserror::Error;
use tokio::sync::watch;

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

/// Reads the log of this replica. Clones share it.
#[derive(Clone)]
pub(crate) struct LogReader {
    log: LogStore,
    applied: watch::Receiver<u64>,
}

impl LogReader {
    pub(crate) fn new(log: LogStore, applied: watch::Receiver<u64>) -> LogReader {
        LogReader { log, applied }
    }

    pub(crate) async fn read_applied(&self, from: u64) -> Result<LogSlice, ReadLogError> {
        // Entry 0 is the cluster's first membership: it means nothing to the application, and the first purge
        // removes it, however much the purge is held back.
        let from = from.max(1);
        let applied = *self.applied.borrow();
        let mut log = self.log.clone();
        let entries = if from > applied {
            Vec::new()
        } else {
            let read = log.limited_get_log_entries(from, applied + 1).await;
            read.map_err(|source| ReadLogError { from, source })?
        };
        if entries.is_empty() {
            // Looked at after the read: a purge between the two must not look like the end of the log.
            return Ok(match self.floor() {
                Some(floor) if from <= floor => LogSlice::Purged { first: floor + 1 },
                _ => LogSlice::Entries(Vec::new()),
            });
        }
        Ok(LogSlice::Entries(entries.iter().map(committed_entry).collect()))
    }

    /// Everything up to here was purged; `None` when the log begins at the beginning.
    pub(crate) fn floor(&self) -> Option<u64> {
        self.log.floor().map(|floor| floor.index())
    }
}
