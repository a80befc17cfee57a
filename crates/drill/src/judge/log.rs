//! The log that a history is held against.

use std::sync::Arc;

use muster_archive::{Archive, ArchiveError, ArchivedRound};
use muster_types::LogIndex;

/// A round of the log, in the order in which replicas applied them.
#[derive(Clone, Debug)]
pub struct LogRound {
    /// As it was applied.
    pub round: ArchivedRound,
    /// The last record of it that counts, where a later generation of the cluster continues behind that one.
    pub until: Option<LogIndex>,
}

impl LogRound {
    /// A round that counts whole.
    #[must_use]
    pub fn whole(round: ArchivedRound) -> LogRound {
        LogRound { round, until: None }
    }
}

/// All rounds of an archive, from the founding of the cluster to the archive's end. What a replica has not yet
/// archived comes behind, from its log.
///
/// # Errors
/// When a segment is missing or damaged.
pub fn rounds_of(archive: &Arc<Archive>) -> Result<Vec<LogRound>, ArchiveError> {
    let mut rounds = Vec::new();
    let mut next = LogIndex(1);
    loop {
        let slice = match archive.slice_with(next) {
            Ok(slice) => slice,
            Err(ArchiveError::NotReached { .. }) => return Ok(rounds),
            Err(error) => return Err(error),
        };
        let until = (slice.to < slice.end.sequence.log_index).then_some(slice.to);
        rounds.extend(slice.rounds.into_iter().map(|round| LogRound { round, until }));
        next = slice.to.next();
    }
}
