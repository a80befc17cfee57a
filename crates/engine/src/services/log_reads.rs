//! The records of the log, for readers and for other replicas.

use muster_archive::ArchivedRound;
use muster_types::{LogIndex, LogTime, Refusal, RefusalCode};
use std::sync::Arc;
use tokio::sync::watch;

use crate::engine::Engine;
use crate::history::archiver;
use crate::history::follower::LogFollower;
use crate::history::records::{ArchiveStatus, History, not_yet};
use crate::history::settings::HistorySettings;

impl Engine {
    pub(super) fn history(&self) -> Result<&Arc<History>, Refusal> {
        self.inner.history.get().ok_or_else(not_yet)
    }

    /// Begins to keep history: the archive, when there is one, and the places of what is in the log.
    ///
    /// # Panics
    /// When it was called before.
    pub fn keep_history(&self, settings: HistorySettings) {
        let history = Arc::new(History::new(
            self.inner.consensus.clone(),
            Arc::clone(&self.inner.shared),
            &settings,
            self.inner.generation,
            self.inner.shutdown.clone(),
        ));
        let first = self.inner.history.set(Arc::clone(&history)).is_ok();
        assert!(first, "a replica keeps one history");
        tokio::spawn(Arc::clone(&history).follow());
        archiver::spawn(history, settings);
    }

    /// The first record of the log that can be read here, and the last.
    ///
    /// # Errors
    /// When the replica has only just started.
    pub fn log_range(&self) -> Result<(LogIndex, LogIndex), Refusal> {
        Ok(self.history()?.range())
    }

    /// Reads the records of the log from `from` on.
    ///
    /// # Errors
    /// `RESUME_TOKEN_COMPACTED` with the oldest index when `from` is not kept any more,
    /// `LOG_INDEX_NOT_REACHED` when it lies in the future.
    pub fn read_log(&self, from: LogIndex) -> Result<LogFollower, Refusal> {
        let history = self.history()?;
        let from = from.max(LogIndex(1));
        let (first, last) = history.range();
        if from < first {
            return Err(history.compacted(from));
        }
        // What the view shows may be a moment ahead of what can be read.
        let newest = last.max(self.view().log_index());
        if from > newest.next() {
            let text = format!("record {from} lies in the future; the newest is {newest}");
            return Err(Refusal::new(RefusalCode::LogIndexNotReached, text).with("newest_log_index", newest));
        }
        Ok(LogFollower::new(Arc::clone(history), history.place_before(from)?, from))
    }

    /// How the archive stands, as it changes.
    ///
    /// # Errors
    /// When the replica has only just started.
    pub fn archive_status(&self) -> Result<watch::Receiver<ArchiveStatus>, Refusal> {
        Ok(self.history()?.status.subscribe())
    }

    /// Rounds as they are in the Raft log, from `raft_index` on, as far as one segment or about a
    /// megabyte of the log reaches: what another replica's archive lacks.
    ///
    /// # Errors
    /// When they are not kept here.
    pub async fn read_rounds(&self, raft_index: u64) -> Result<(Vec<ArchivedRound>, u64), Refusal> {
        self.history()?.rounds_from(raft_index).await
    }

    /// Log time of the newest record that is applied.
    #[must_use]
    pub fn log_time(&self) -> LogTime {
        self.view().log_time()
    }
}
