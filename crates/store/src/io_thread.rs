//! The thread of a replica that drives the writer of the log over files.
//!
//! **Invariant:** the directory stays locked until the files are closed.

use crate::backend::{LogBackend, StorageOperation};
use crate::error::StoreError;
use crate::identity::DirectoryLock;
use crate::raft_types::LogConfig;
use crate::writer::{Closing, LogWriter, Step};
use std::panic::AssertUnwindSafe;

/// The size of the log is measured again after this many batches.
const LOG_BYTES_BATCHES: u64 = 64;

pub(crate) struct IoThread<B, C: LogConfig> {
    pub(crate) backend: B,
    pub(crate) writer: LogWriter<C>,
    /// Kept until the backend is closed.
    pub(crate) lock: Option<DirectoryLock>,
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

impl<B: LogBackend, C: LogConfig> IoThread<B, C> {
    /// Runs until the writer is closed.
    pub(crate) fn run(mut self) {
        let mut batches: u64 = 0;
        loop {
            match self.writer.step() {
                Step::Storage(operation) => {
                    let result = contained(operation.name(), || self.backend.carry_out(&operation));
                    let measures = match &operation {
                        StorageOperation::Write(_) => {
                            batches += 1;
                            batches.is_multiple_of(LOG_BYTES_BATCHES)
                        }
                        StorageOperation::Truncate { .. }
                        | StorageOperation::Settle
                        | StorageOperation::Tidy => true,
                        StorageOperation::Purge(_) | StorageOperation::Read { .. } => false,
                    };
                    if measures {
                        self.writer.measured(self.backend.log_bytes());
                    }
                    self.writer.finished(operation, result);
                }
                Step::Receive => self.writer.receive_blocking(),
                Step::Pause(pause) => std::thread::sleep(pause),
                Step::Close(closing) => return self.close(closing),
            }
        }
    }

    fn close(self, closing: Closing) {
        // Closing a database after a failed write could write again; what is on disk stays as it is.
        if closing.failed {
            std::mem::forget(self.backend);
        } else {
            drop(self.backend);
        }
        drop(self.lock);
        closing.answer();
    }
}

/// Turns a panic of the database into an error.
pub(crate) fn contained<T>(
    operation: &'static str,
    run: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    std::panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        Err(StoreError::DatabasePanicked { operation, detail: panic_text(panic.as_ref()) })
    })
}
