//! What can be wrong with an archive, and what to do about it.

use muster_journal::DecodeError;
use muster_state::RestoreError;
use muster_types::{ClusterId, LogIndex};
use thiserror::Error;

use crate::floor::Floor;

/// Why the archive could not be written or read.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// The store under it failed.
    #[error("{operation} {object:?} failed")]
    Store {
        /// What was done.
        operation: &'static str,
        /// To which object.
        object: String,
        /// What the store said.
        #[source]
        source: std::io::Error,
    },
    /// An object is not what it was when it was written.
    #[error(
        "{object:?} is damaged: {detail}; copy the object of this name, or the one that covers its place, from another replica's archive"
    )]
    Damaged {
        /// Which object.
        object: String,
        /// What is wrong with it.
        detail: String,
    },
    /// An object of another cluster.
    #[error("{object:?} belongs to cluster {found}, not to {expected}; give each cluster its own archive")]
    Foreign {
        /// Which object.
        object: String,
        /// Its cluster.
        found: ClusterId,
        /// The one expected.
        expected: ClusterId,
    },
    /// Written by a newer release.
    #[error("{object:?} has archive format {found}, this release reads up to {known}")]
    Newer {
        /// Which object.
        object: String,
        /// Its format.
        found: u16,
        /// The highest known.
        known: u16,
    },
    /// Records that the archive does not have.
    #[error(
        "the records from {from} to {to} are not in the archive; copy the segments that cover them from another replica's archive"
    )]
    Missing {
        /// The first one.
        from: LogIndex,
        /// The last one.
        to: LogIndex,
    },
    /// Records that the archive gave to another store.
    #[error(
        "the records up to {} were moved to {}, and this archive begins behind them; `muster log` reads them there with --archive",
        floor.through, floor.place
    )]
    BelowFloor {
        /// Up to where, and where they are.
        floor: Floor,
    },
    /// A place that the archive has not reached.
    #[error("the archive ends at log index {newest}")]
    NotReached {
        /// Its last record.
        newest: LogIndex,
    },
    /// A payload that this release cannot read.
    #[error("the round at raft index {raft_index} cannot be read")]
    Round {
        /// Where.
        raft_index: u64,
        /// Why.
        #[source]
        source: DecodeError,
    },
    /// A base that is not a state.
    #[error("{object:?} cannot be restored; take it away, and the state is rebuilt from the base before it")]
    Base {
        /// Which object.
        object: String,
        /// Why.
        #[source]
        source: RestoreError,
    },
    /// What others have is not what was written here.
    #[error("{object:?} cannot be rebuilt from these rounds: {detail}")]
    Differs {
        /// Which object.
        object: String,
        /// In what they differ.
        detail: String,
    },
    /// Nobody waits for the replay any more.
    #[error("the replay was given up")]
    GivenUp,
    /// The replay came to another state than the leader recorded.
    #[error(
        "the replay has another state at log index {at} than the leader recorded: {actual:016x} instead of {expected:016x}"
    )]
    Diverged {
        /// The record with the digest.
        at: LogIndex,
        /// What the leader recorded.
        expected: u64,
        /// What the replay came to.
        actual: u64,
    },
    /// A segment that would not follow what is there.
    #[error("a segment that starts behind log index {found} does not follow the archive's end at {expected}")]
    OutOfOrder {
        /// Where it starts.
        found: LogIndex,
        /// Where the archive ends.
        expected: LogIndex,
    },
}

impl ArchiveError {
    /// Whether an object is not what was written, or is gone.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            ArchiveError::Damaged { .. } => true,
            // A newer release wrote it: it is as it was written.
            ArchiveError::Base { source, .. } => !matches!(source, RestoreError::FormatNewer { .. }),
            ArchiveError::Store { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
            _ => false,
        }
    }

    pub(crate) fn damaged(object: &str, detail: impl Into<String>) -> ArchiveError {
        ArchiveError::Damaged { object: object.to_owned(), detail: detail.into() }
    }

    pub(crate) fn store(operation: &'static str, object: &str, source: std::io::Error) -> ArchiveError {
        ArchiveError::Store { operation, object: object.to_owned(), source }
    }
}
