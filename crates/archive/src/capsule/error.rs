//! Why an incident capsule was not made or not taken.

use std::path::PathBuf;

use muster_state::RestoreError;
use muster_types::LogIndex;
use thiserror::Error;

use crate::error::ArchiveError;

/// Why an incident capsule was not made or not taken.
#[derive(Debug, Error)]
pub enum CapsuleError {
    /// The file system refused.
    #[error("{operation} {path}")]
    File {
        /// What was being done.
        operation: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is no capsule at all.
    #[error("{path} is not an incident capsule of Muster")]
    Foreign {
        /// Which file.
        path: PathBuf,
    },
    /// Written by a newer release.
    #[error(
        "{path} has layout {found}, and this release reads up to {supported}; use the release that wrote it"
    )]
    Newer {
        /// Which file.
        path: PathBuf,
        /// Its layout.
        found: u32,
        /// The newest that is read.
        supported: u32,
    },
    /// Some byte is not the one that was written, or some are missing.
    #[error("{path} is damaged in section {section}: {detail}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// In which section, from 0.
        section: u64,
        /// How.
        detail: String,
    },
    /// There is more in the span than a capsule may hold.
    #[error("there are {found} {what} in the span, and a capsule holds at most {max}")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// How many.
        found: u64,
        /// The bound.
        max: u64,
    },
    /// The log cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A state or record that cannot be without what people wrote.
    #[error("the state or a record cannot be redacted")]
    Redaction(#[from] RestoreError),
    /// A redacted record did something else than the record.
    #[error("the records, once they are redacted, do something else from record {log_index} on")]
    Differs {
        /// Which record.
        log_index: LogIndex,
    },
    /// The replay came to another state than the capsule states.
    #[error(
        "the replay has another state at record {log_index} than the capsule states: {actual:016x} instead of {expected:016x}"
    )]
    Diverged {
        /// Where.
        log_index: LogIndex,
        /// What the capsule states.
        expected: u64,
        /// What the replay came to.
        actual: u64,
    },
}
