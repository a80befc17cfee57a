//! The one thread that writes: it takes operations in order from a bounded queue, puts those that
//! arrived while the last flush ran into one batch, and answers them after it.
//!
//! **Invariant:** operations take effect in the order they were queued.
//! **Invariant:** after one failed write nothing is written and nothing is acknowledged any more.

use crate::backend::{LogBackend, LogFloor, WriteBatch};
use crate::error::StoreError;
use crate::identity::FolderLock;
use crate::log_store::Shared;
use crate::memory::entry_bytes;
use crate::options::StoreOptions;
use crate::raft_types::{Entry, EntryPayload, LogId, RaftConfig, Vote};
use openraft::storage::IOFlushed;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

pub(crate) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the thread can be asked for: a closed set.
pub(crate) enum Operation {
    Append { entries: Vec<Entry>, flushed: IOFlushed<RaftConfig> },
    SaveVote { vote: Vote, answer: Answer<()> },
    Truncate { keep: Option<LogId>, answer: Answer<()> },
    Purge { floor: LogId },
    Read { start: u64, end: u64, bytes_max: usize, answer: Answer<Vec<Entry>> },
    Close { answer: oneshot::Sender<()> },
}

/// Who is answered once the batch is durable.
enum Waiter {
    Append(IOFlushed<RaftConfig>),
    Vote(Vote, Answer<()>),
}

pub(crate) struct IoThread<B> {
    pub(crate) backend: B,
    pub(crate) queue: mpsc::Receiver<Operation>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: StoreOptions,
    /// Why the thread stopped writing, once it did.
    pub(crate) failed: Option<String>,
    /// Kept until the backend is closed.
    pub(crate) lock: Option<FolderLock>,
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

impl<B: LogBackend> IoThread<B> {
    /// Runs until the queue is closed or a close is asked for.
    pub(crate) fn run(mut self) {
        let mut more_to_tidy = true;
        let mut held_back = None;
        let closed = loop {
            if let Some(operation) = held_back.take() {
                match operation {
                    Operation::Close { answer } => break Some(answer),
                    operation => held_back = self.take(operation, &mut more_to_tidy),
                }
                continue;
            }
            // Purged segments are given back one at a time, and only while nobody waits.
            let next = match self.queue.try_recv() {
                Ok(operation) => Some(operation),
                Err(mpsc::error::TryRecvError::Empty) if more_to_tidy && self.failed.is_none() => {
                    more_to_tidy = self.guarded("giving back purged entries", B::tidy).unwrap_or(false);
                    continue;
                }
                Err(_) => self.queue.blocking_recv(),
            };
            match next {
                None => break None,
                operation => held_back = operation,
            }
        };
        self.save_committed_at_close();
        self.queue.close();
        // Closing a database after a failed write could write again; what is on disk stays as it is.
        if self.failed.is_some() {
            std::mem::forget(self.backend);
        } else {
            drop(self.backend);
        }
        drop(self.lock);
        if let Some(answer) = closed {
            let _ = answer.send(());
        }
    }

    /// Takes one operation, and what can share its flush. Returns the one that could not.
    fn take(&mut self, operation: Operation, more_to_tidy: &mut bool) -> Option<Operation> {
        match operation {
            Operation::Append { .. } | Operation::SaveVote { .. } => return self.write_batch(operation),
            Operation::Truncate { keep, answer } => {
                let result = self.guarded("truncating", |backend| backend.truncate_after(keep));
                if result.is_ok() {
                    self.shared.truncated(keep);
                }
                let _ = answer.send(result.map_err(|reason| StoreError::Stopped { reason }));
            }
            Operation::Purge { floor } => {
                let _ = self.guarded("purging", |backend| backend.purge(LogFloor(floor)));
                *more_to_tidy = true;
            }
            Operation::Read { start, end, bytes_max, answer } => {
                let found = self.read(start, end, bytes_max);
                let _ = answer.send(found);
            }
            Operation::Close { .. } => return Some(operation),
        }
        None
    }

    fn read(&mut self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, StoreError> {
        if let Some(reason) = &self.failed {
            return Err(StoreError::Stopped { reason: reason.clone() });
        }
        contained("reading", || self.backend.read(start, end, bytes_max))
    }

    fn write_batch(&mut self, first: Operation) -> Option<Operation> {
        let mut batch = WriteBatch::default();
        let mut waiters = Vec::new();
        let mut bytes = 0;
        let mut next = Some(first);
        let mut held_back = None;
        while let Some(operation) = next.take() {
            match operation {
                Operation::Append { entries, flushed } => {
                    bytes += entries.iter().map(entry_bytes).sum::<usize>();
                    batch.entries.extend(entries);
                    waiters.push(Waiter::Append(flushed));
                }
                Operation::SaveVote { vote, answer } => {
                    batch.vote = Some(vote);
                    waiters.push(Waiter::Vote(vote, answer));
                }
                other => {
                    held_back = Some(other);
                    break;
                }
            }
            if batch.entries.len() < self.options.batch_entries_max && bytes < self.options.batch_bytes_max {
                next = self.queue.try_recv().ok();
            }
        }
        batch.committed = self.shared.committed_to_write(batch.entries.last().map(|entry| entry.log_id));
        let result = self.guarded("writing a batch", |backend| backend.write(&batch));
        if result.is_ok() {
            let app_entries =
                batch.entries.iter().filter(|e| matches!(e.payload, EntryPayload::Normal(_))).count();
            self.shared.flushed(
                batch.entries.last().map(|entry| entry.log_id),
                app_entries as u64,
                &self.options,
            );
        }
        for waiter in waiters {
            let result = result.as_ref().map_err(Clone::clone).copied();
            match waiter {
                Waiter::Append(flushed) => flushed.io_completed(result.map_err(std::io::Error::other)),
                Waiter::Vote(vote, answer) => {
                    if result.is_ok() {
                        self.shared.voted(vote);
                    }
                    let _ = answer.send(result.map_err(|reason| StoreError::Stopped { reason }));
                }
            }
        }
        held_back
    }

    /// Without it the next start would apply a little less of the log before it hears from a leader.
    fn save_committed_at_close(&mut self) {
        let committed = self.shared.committed_to_write(None);
        if self.failed.is_none() && committed.is_some() {
            let batch = WriteBatch { committed, ..WriteBatch::default() };
            let _ = self.guarded("writing the committed entry", |backend| backend.write(&batch));
        }
    }

    /// Runs a writing operation; the first failure is fatal, and every later one is refused.
    fn guarded<T>(
        &mut self,
        operation: &'static str,
        run: impl FnOnce(&mut B) -> Result<T, StoreError>,
    ) -> Result<T, String> {
        if let Some(reason) = &self.failed {
            return Err(reason.clone());
        }
        contained(operation, || run(&mut self.backend)).map_err(|error| {
            let reason = error.to_string();
            self.failed = Some(reason.clone());
            self.shared.failed(&reason);
            (self.options.fatal)(&error);
            reason
        })
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
