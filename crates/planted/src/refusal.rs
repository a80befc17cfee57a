//! Why a build that breaks rules does not work here.

use std::path::PathBuf;

/// Why a build that breaks rules does not work here.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Nobody has said which rule is to be broken.
    #[error(
        "this build breaks rules on purpose and is for drills alone: set {variable} to one of {known}, or to none"
    )]
    NotTold {
        /// The variable's name.
        variable: &'static str,
        /// The names it may have.
        known: String,
    },
    /// The variable names something else.
    #[error("{0}")]
    Unknown(#[from] crate::UnknownRule),
    /// The directory existed before and was not made by such a build.
    #[error(
        "this build breaks rules on purpose: {directory} was not made by it, so it may hold something that somebody relies on"
    )]
    ForeignDirectory {
        /// Where it was to work.
        directory: PathBuf,
    },
    /// The directory cannot be looked at or marked.
    #[error("looking at {path}")]
    Look {
        /// What was looked at.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}
