//! Why a backup was not written or not taken.

use std::path::{Path, PathBuf};

/// Why a backup was not written or not taken; each names the file.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
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
    /// There is such a file already; a backup never replaces anything.
    #[error("{path} exists already")]
    Exists {
        /// Which file.
        path: PathBuf,
    },
    /// The file is no backup at all.
    #[error("{path} is not a backup of Muster")]
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
    #[error("{path} is damaged at byte {offset}: {detail}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Where the damage was noticed.
        offset: u64,
        /// How.
        detail: &'static str,
    },
}

pub(crate) fn file_error(operation: &'static str, path: &Path, source: std::io::Error) -> BackupError {
    BackupError::File { operation, path: path.to_path_buf(), source }
}
