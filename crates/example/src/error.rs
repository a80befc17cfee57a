//! What can go wrong in a workload, in the words its user reads.

use crate::frame;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a workload ended early. The text never contains the source: [`report`](Error::report) prints the chain.
#[derive(Debug)]
pub enum Error {
    /// An environment variable, a flag or a checkpoint directory cannot be used as given.
    Config(String),
    /// The ranks did not find one another.
    Rendezvous(String),
    /// Another rank is gone or speaks nonsense.
    Peer {
        /// The other rank.
        rank: u32,
        /// What this rank was doing with it.
        doing: String,
        /// What happened on the connection.
        source: frame::FrameError,
    },
    /// A file could not be read or written.
    File {
        /// Which.
        path: PathBuf,
        /// What was being done with it.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The process could not be set up.
    Process {
        /// What was being done.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The loss is no longer a number.
    Diverged {
        /// The step that showed it.
        step: u64,
    },
    /// SIGTERM came before there was anything worth saving.
    Preempted,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Config(text) | Error::Rendezvous(text) => f.write_str(text),
            Error::Peer { rank, doing, .. } => write!(f, "lost rank {rank} while {doing}"),
            Error::File { path, doing, .. } => write!(f, "cannot {doing} {}", path.display()),
            Error::Process { doing, .. } => write!(f, "cannot {doing}"),
            Error::Diverged { step } => {
                write!(f, "the loss is not finite at step {step}; lower --learning-rate")
            }
            Error::Preempted => f.write_str("stopped by SIGTERM before the first step"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Peer { source, .. } => Some(source),
            Error::File { source, .. } | Error::Process { source, .. } => Some(source),
            Error::Config(_) | Error::Rendezvous(_) | Error::Diverged { .. } | Error::Preempted => None,
        }
    }
}

impl Error {
    /// The message with all its causes, on one line.
    #[must_use]
    pub fn report(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }

    pub(crate) fn file(path: impl Into<PathBuf>, doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { path, doing, source }
    }
}
