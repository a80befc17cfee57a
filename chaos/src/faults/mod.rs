//! Means against one process or one disk. Each says when the machine cannot do it, each can be undone, and each
//! can say that it really took effect: a drill whose fault did nothing has shown nothing.

mod clock;
mod damage;
mod disk;
mod pause;
mod tools;
mod trace;

pub use clock::{Clock, ClockScope};
pub use damage::Damage;
pub use disk::Disk;
pub use pause::Paused;
pub use tools::{Tool, install_missing};
pub use trace::{Injection, Traced};

use crate::unsupported::Unsupported;
use std::io;
use std::path::Path;

/// Why a fault could not be made or undone.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    /// This machine cannot do it.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The system refused.
    #[error("{operation} {subject}")]
    System {
        /// What was being done.
        operation: &'static str,
        /// To what.
        subject: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It was made, and nothing came of it.
    #[error("no effect: {0}")]
    NoEffect(String),
}

impl FaultError {
    fn on(operation: &'static str, subject: impl ToString) -> impl FnOnce(io::Error) -> FaultError {
        let subject = subject.to_string();
        move |source| FaultError::System { operation, subject, source }
    }

    fn on_path(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FaultError + use<> {
        let subject = path.display().to_string();
        move |source| FaultError::System { operation, subject, source }
    }
}
