//! The one thread that writes: it takes operations in order from a bounded queue, puts those that
//! arrived while the last flush ran into one batch, and answers them after it.
//!
//! While the disk is full, entries are *held*: none of them is acknowledged, and the same bytes are written
//! once there is space. What the protocol cannot wait for, a vote or a
//! truncation, lets what is held before it through, at the expense of the reserve that holding
//! guards; consensus counts what is durable by the last operation answered, so nothing overtakes.
//!
//! **Invariant:** writing operations take effect in the order they were queued; a purge of what is
//! durable may overtake entries that are held.
//! **Invariant:** after one failed write nothing is written and nothing is acknowledged any more. A
//! write that found the disk full has not failed.

use crate::backend::{LogBackend, LogFloor, WriteBatch};
use crate::error::StoreError;
use crate::identity::FolderLock;
use crate::log_state::{DuePurge, Shared};
use crate::memory::entry_bytes;
use crate::options::StoreOptions;
use crate::raft_types::{Entry, EntryPayload, LogId, RaftConfig, Vote};
use muster_planted::{Rule, breaks};
use openraft::storage::IOFlushed;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

pub(crate) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// The size of the log is measured again after this many batches.
const LOG_BYTES_BATCHES: u64 = 64;
/// How long to wait for space with everything full that can be.
const FULL_WAIT: Duration = Duration::from_millis(20);
/// Between an acknowledgement that comes too early and the write, where that rule is broken.
const PLANTED_WRITE_BACK: Duration = Duration::from_millis(200);

/// What the thread can be asked for: a closed set.
pub(crate) enum Operation {
    Append {
        entries: Vec<Entry>,
        flushed: IOFlushed<RaftConfig>,
    },
    SaveVote {
        vote: Vote,
        answer: Answer<()>,
    },
    Truncate {
        keep: Option<LogId>,
        answer: Answer<()>,
    },
    Purge {
        floor: LogId,
    },
    Read {
        start: u64,
        end: u64,
        bytes_max: usize,
        answer: Answer<Vec<Entry>>,
    },
    /// There may be something to do: entries to write again, a purge that is due, a mark to settle.
    Poke,
    Close {
        answer: oneshot::Sender<()>,
    },
}

/// Who is answered once the batch is durable.
enum Waiter {
    Append(IOFlushed<RaftConfig>),
    Vote(Vote, Answer<()>),
}

/// Entries that wait for space.
struct Held {
    batch: WriteBatch,
    waiters: Vec<Waiter>,
}

pub(crate) struct IoThread<B> {
    backend: B,
    queue: mpsc::Receiver<Operation>,
    shared: Arc<Shared>,
    options: StoreOptions,
    /// Why the thread stopped writing, once it did.
    failed: Option<String>,
    /// Kept until the backend is closed.
    lock: Option<FolderLock>,
    held: Option<Held>,
    /// What came after the entries that are held and cannot overtake them.
    deferred: VecDeque<Operation>,
    /// Entries are written although the reserve is touched: something behind them cannot wait.
    pressing: bool,
    more_to_tidy: bool,
    batches: u64,
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

impl<B: LogBackend> IoThread<B> {
    pub(crate) fn new(
        backend: B,
        queue: mpsc::Receiver<Operation>,
        shared: Arc<Shared>,
        options: StoreOptions,
        lock: Option<FolderLock>,
    ) -> Self {
        IoThread {
            backend,
            queue,
            shared,
            options,
            failed: None,
            lock,
            held: None,
            deferred: VecDeque::new(),
            pressing: false,
            more_to_tidy: true,
            batches: 0,
        }
    }

    /// Runs until the queue is closed or a close is asked for.
    pub(crate) fn run(mut self) {
        let closed = self.serve();
        self.pressing = true;
        self.write_held();
        self.save_committed_at_close();
        self.queue.close();
        self.shared.health.closed.store(true, Ordering::SeqCst);
        self.shared.health.wake_watchdog();
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

    fn serve(&mut self) -> Option<oneshot::Sender<()>> {
        let mut next = None;
        loop {
            let operation = match next.take() {
                Some(operation) => operation,
                None => self.next_operation()?,
            };
            if let Operation::Close { answer } = operation {
                return Some(answer);
            }
            next = self.take(operation);
            self.purge_what_is_due();
        }
    }

    fn next_operation(&mut self) -> Option<Operation> {
        loop {
            if self.held.is_none() {
                if let Some(operation) = self.deferred.pop_front() {
                    return Some(operation);
                }
                self.pressing = false;
            } else if self.deferred.len() >= self.options.queue_depth_max {
                // Callers that append wait as well from here on.
                std::thread::sleep(FULL_WAIT);
                return Some(Operation::Poke);
            }
            // Purged segments are given back one at a time, and only while nobody waits.
            match self.queue.try_recv() {
                Ok(operation) => return Some(operation),
                Err(mpsc::error::TryRecvError::Empty) if self.more_to_tidy && self.failed.is_none() => {
                    self.more_to_tidy = self.guarded("giving back purged entries", B::tidy).unwrap_or(false);
                    self.count_log_bytes();
                }
                Err(_) => return self.queue.blocking_recv(),
            }
        }
    }

    /// Takes one operation, and what can share its flush. Returns the one that could not.
    fn take(&mut self, operation: Operation) -> Option<Operation> {
        if self.held.is_some() && self.failed.is_none() {
            self.take_while_held(operation);
            return None;
        }
        match operation {
            Operation::Append { .. } | Operation::SaveVote { .. } => return self.write_batch(operation),
            Operation::Truncate { keep, answer } => {
                let result = self.guarded("truncating", |backend| backend.truncate_after(keep));
                if result.is_ok() {
                    self.shared.truncated(keep);
                }
                self.count_log_bytes();
                let _ = answer.send(result.map_err(|reason| StoreError::Stopped { reason }));
            }
            Operation::Purge { floor } => self.purge(floor),
            Operation::Read { start, end, bytes_max, answer } => {
                let found = self.read(start, end, bytes_max);
                let _ = answer.send(found);
            }
            Operation::Poke => self.settle(),
            Operation::Close { .. } => return Some(operation),
        }
        None
    }

    /// An operation that needs space keeps its position in the queue; one that needs none is done.
    fn take_while_held(&mut self, operation: Operation) {
        match operation {
            Operation::Read { start, end, bytes_max, answer } => {
                let found = self.read(start, end, bytes_max);
                let _ = answer.send(found);
            }
            Operation::Poke => self.write_held(),
            Operation::Purge { floor } if self.shared.is_durable(floor.index()) => self.purge(floor),
            Operation::Append { .. } => self.deferred.push_back(operation),
            operation => {
                self.deferred.push_back(operation);
                self.pressing = true;
                self.write_held();
            }
        }
    }

    fn read(&mut self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, StoreError> {
        if let Some(reason) = &self.failed {
            return Err(StoreError::Stopped { reason: reason.clone() });
        }
        contained("reading", || self.backend.read(start, end, bytes_max))
    }

    fn purge(&mut self, floor: LogId) {
        let _ = self.guarded("purging", |backend| backend.purge(LogFloor(floor)));
        self.more_to_tidy = true;
    }

    /// A purge that was held back may go ahead now, perhaps a part of it.
    fn purge_what_is_due(&mut self) {
        let floor = match self.shared.due_purge() {
            None => return,
            Some(DuePurge::Through(floor)) => floor,
            Some(DuePurge::ThroughIndex(index)) => match self.read(index, index + 1, 0).as_deref() {
                Ok([entry, ..]) => entry.log_id,
                Ok([]) => return,
                Err(error) => {
                    tracing::error!(
                        index,
                        error = error as &dyn std::error::Error,
                        "a purge is not possible"
                    );
                    self.shared.forget_purge();
                    return;
                }
            },
        };
        self.shared.purged(floor);
        self.purge(floor);
    }

    fn settle(&mut self) {
        let _ = self.guarded("settling", B::settle);
        self.shared.health.unsettled.store(false, Ordering::SeqCst);
        self.count_log_bytes();
    }

    fn count_log_bytes(&self) {
        self.shared.health.log_bytes.store(self.backend.log_bytes(), Ordering::SeqCst);
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
                next = self.deferred.pop_front().or_else(|| self.queue.try_recv().ok());
            }
        }
        batch.committed = self.shared.committed_to_write(batch.entries.last().map(|entry| entry.log_id));
        let held = Held { batch, waiters };
        if self.shared.health.is_full()
            && !self.pressing
            && held.batch.vote.is_none()
            && self.failed.is_none()
        {
            tracing::warn!("the disk is full: entries are held until space returns");
            self.hold(held);
        } else {
            self.write(held);
        }
        held_back
    }

    fn hold(&mut self, held: Held) {
        self.held = Some(held);
        self.shared.health.held.store(true, Ordering::SeqCst);
        self.shared.health.wake_watchdog();
    }

    /// Writes the parked batch, if the disk may have space for it.
    fn write_held(&mut self) {
        if self.shared.health.is_full() && !self.pressing && !self.shared.health.was_refused() {
            return;
        }
        let Some(held) = self.held.take() else { return };
        self.write(held);
        if self.held.is_none() {
            self.shared.health.held.store(false, Ordering::SeqCst);
            tracing::info!("what was held is written");
        }
    }

    fn write(&mut self, mut held: Held) {
        let answered = breaks(Rule::AckBeforeFlush) && held.batch.vote.is_none();
        if answered {
            let waiters = std::mem::take(&mut held.waiters);
            self.answer(Held { batch: held.batch.clone(), waiters }, Ok(()));
            std::thread::sleep(PLANTED_WRITE_BACK);
        }
        let written = match &self.failed {
            Some(reason) => Err(reason.clone()),
            None => match self.flushing("writing a batch", |backend| backend.write(&held.batch)) {
                Err(error) if error.is_out_of_space() => {
                    if !self.shared.health.was_refused() {
                        tracing::error!(
                            error = &error as &dyn std::error::Error,
                            "the disk is full: entries of the log are held until space returns"
                        );
                    }
                    self.shared.health.refused();
                    return self.hold(held);
                }
                Err(error) => Err(self.fail(&error)),
                Ok(()) => Ok(()),
            },
        };
        if written.is_ok() {
            self.shared.health.accepted();
            self.shared.health.unsettled.store(true, Ordering::SeqCst);
            self.batches += 1;
            if self.batches.is_multiple_of(LOG_BYTES_BATCHES) {
                self.count_log_bytes();
            }
        }
        if !answered {
            self.answer(held, written);
        }
    }

    fn answer(&mut self, held: Held, written: Result<(), String>) {
        let Held { batch, waiters } = held;
        if written.is_ok() {
            let is_application = |entry: &&Entry| matches!(entry.payload, EntryPayload::Normal(_));
            let app_entries = batch.entries.iter().filter(is_application).count() as u64;
            let last = batch.entries.last().map(|entry| entry.log_id);
            self.shared.flushed(last, app_entries, &self.options);
        }
        for waiter in waiters {
            let result = written.as_ref().map_err(Clone::clone).copied();
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
    }

    /// Without it the next start would apply a little less of the log before it hears from a leader.
    fn save_committed_at_close(&mut self) {
        if self.failed.is_some() || self.held.is_some() {
            return;
        }
        let committed = self.shared.committed_to_write(None);
        if committed.is_some() {
            let batch = WriteBatch { committed, ..WriteBatch::default() };
            let _ = self.guarded("writing the committed entry", |backend| backend.write(&batch));
        }
        self.settle();
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
        self.flushing(operation, run).map_err(|error| self.fail(&error))
    }

    /// Runs an operation under the eyes of the watchdog.
    fn flushing<T>(
        &mut self,
        operation: &'static str,
        run: impl FnOnce(&mut B) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.shared.health.flush_begins();
        let result = contained(operation, || run(&mut self.backend));
        self.shared.health.flush_ends();
        result
    }

    fn fail(&mut self, error: &StoreError) -> String {
        let reason = error.to_string();
        self.failed = Some(reason.clone());
        self.shared.failed(&reason);
        (self.options.fatal)(error);
        if let Some(held) = self.held.take() {
            self.answer(held, Err(reason.clone()));
        }
        reason
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
