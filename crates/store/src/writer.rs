//! The writer of a log as a state machine: it takes operations in order from a bounded queue, puts those that arrived while
//! the last flush ran into one batch, and answers them after it.
//!
//! It does no IO, starts no thread and reads no clock. [`LogWriter::step`] says what to do next, the thread or task that drives
//! it does that, and [`LogWriter::finished`] hears what became of it. A replica drives it with a thread, over files
//! (`io_thread`); the simulation of whole clusters drives it under its own clock, over simulated disks.
//!
//! While the disk is full, entries are *held*: none of them is acknowledged, and the same bytes are written
//! once there is space. What the protocol cannot wait for, a vote or a
//! truncation, lets what is held before it through, at the expense of the reserve that holding
//! guards; consensus counts what is durable by the last operation answered, so nothing overtakes.
//!
//! **Invariant:** one storage operation runs at a time, and writing operations take effect in the order they were queued;
//! a purge of what is durable may overtake entries that are held.
//! **Invariant:** after one failed write nothing is written and nothing is acknowledged any more. A
//! write that found the disk full has not failed.

use crate::backend::{LogFloor, StorageOperation, StorageOutcome, WriteBatch};
use crate::error::StoreError;
use crate::log_state::{DuePurge, Shared};
use crate::memory::entry_bytes;
use crate::options::StoreOptions;
use crate::raft_types::{Entry, EntryPayload, LogConfig, LogId, Vote};
use muster_planted::{Rule, breaks};
use openraft::storage::IOFlushed;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

pub(crate) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// How long to wait for space with everything full that can be.
const FULL_WAIT: Duration = Duration::from_millis(20);
/// Between an acknowledgement that comes too early and the write, where that rule is broken.
const PLANTED_WRITE_BACK: Duration = Duration::from_millis(200);

/// What the writer can be asked for: a closed set.
pub(crate) enum Operation<C: LogConfig> {
    Append {
        entries: Vec<Entry>,
        flushed: IOFlushed<C>,
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

/// What is to be done next, by the thread or task that drives the writer.
#[derive(Debug)]
pub enum Step {
    /// Carry this out, and give it to [`LogWriter::finished`] with what became of it.
    Storage(StorageOperation),
    /// Nothing is to be done before the next operation: wait for [`LogWriter::receive`].
    Receive,
    /// Nothing is to be done for this long.
    Pause(Duration),
    /// Nothing is to be done any more: close the storage, then answer.
    Close(Closing),
}

/// Who waits until storage is closed.
#[derive(Debug)]
pub struct Closing {
    /// A write failed: closing a database could write again, and what is on disk has to stay as it is.
    pub failed: bool,
    answer: Option<oneshot::Sender<()>>,
}

impl Closing {
    /// Tells who waits.
    pub fn answer(self) {
        if let Some(answer) = self.answer {
            // Nobody may wait any more.
            let _ = answer.send(());
        }
    }
}

/// Who is answered once the batch is durable.
enum Waiter<C: LogConfig> {
    Append(IOFlushed<C>),
    Vote(Vote, Answer<()>),
}

/// A batch, and who waits for it.
struct Pending<C: LogConfig> {
    batch: WriteBatch,
    waiters: Vec<Waiter<C>>,
}

/// What the storage operation that runs is for.
enum Running<C: LogConfig> {
    Batch {
        waiters: Vec<Waiter<C>>,
        was_held: bool,
        answered: bool,
    },
    Truncate {
        answer: Answer<()>,
    },
    Purge,
    Read {
        answer: Answer<Vec<Entry>>,
    },
    /// Reads the entry up to which a purge is due.
    DuePurge {
        index: u64,
    },
    Settle,
    Tidy,
    /// The last thing that is written: without it the next start would apply a little less of the log before it hears
    /// from a leader.
    Committed,
}

/// How far closing has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    WriteHeld,
    WriteCommitted,
    Settle,
    Over,
}

/// The writer of one log.
pub struct LogWriter<C: LogConfig> {
    queue: mpsc::Receiver<Operation<C>>,
    shared: Arc<Shared>,
    options: StoreOptions,
    /// Why nothing is written any more, once that is so.
    failed: Option<String>,
    running: Option<Running<C>>,
    /// Taken before what is in the queue.
    next: Option<Operation<C>>,
    /// The last operation may have made a purge due.
    purge_may_be_due: bool,
    /// A purge that was held back and is done next.
    due_floor: Option<LogId>,
    held: Option<Pending<C>>,
    /// What came after the entries that are held and cannot overtake them.
    deferred: VecDeque<Operation<C>>,
    /// Entries are written although the reserve is touched: something behind them cannot wait.
    pressing: bool,
    more_to_tidy: bool,
    phase: Phase,
    /// Who waits until all is closed.
    closing: Option<oneshot::Sender<()>>,
    /// A batch that was answered and is not written, where that rule is broken; and whether it was held.
    planted: Option<(Pending<C>, bool)>,
}

impl<C: LogConfig> LogWriter<C> {
    pub(crate) fn new(
        queue: mpsc::Receiver<Operation<C>>,
        shared: Arc<Shared>,
        options: StoreOptions,
    ) -> LogWriter<C> {
        LogWriter {
            queue,
            shared,
            options,
            failed: None,
            running: None,
            next: None,
            purge_may_be_due: false,
            due_floor: None,
            held: None,
            deferred: VecDeque::new(),
            pressing: false,
            more_to_tidy: true,
            phase: Phase::Open,
            closing: None,
            planted: None,
        }
    }

    /// What is to be done next. A storage operation that this returned has to be finished before it is called again.
    pub fn step(&mut self) -> Step {
        loop {
            let step = match self.planted.take() {
                Some((pending, was_held)) => Some(self.run_write(pending, was_held, true)),
                None if self.phase == Phase::Open => self.step_open(),
                None => self.step_closing(),
            };
            if let Some(step) = step {
                return step;
            }
        }
    }

    /// What became of the storage operation that [`LogWriter::step`] returned last.
    pub fn finished(&mut self, operation: StorageOperation, result: Result<StorageOutcome, StoreError>) {
        let Some(running) = self.running.take() else { return };
        if operation.is_watched() {
            self.shared.health.flush_ends();
        }
        self.ended(running, operation, result);
    }

    /// Waits for the next operation.
    pub async fn receive(&mut self) {
        let operation = self.queue.recv().await;
        self.received(operation);
    }

    /// The same on a thread that may wait.
    pub fn receive_blocking(&mut self) {
        let operation = self.queue.blocking_recv();
        self.received(operation);
    }

    /// How many bytes of disk the log has: only what drives the writer knows.
    pub fn measured(&self, log_bytes: u64) {
        self.shared.health.log_bytes.store(log_bytes, Ordering::SeqCst);
    }

    fn received(&mut self, operation: Option<Operation<C>>) {
        match operation {
            Some(operation) => self.next = Some(operation),
            // There is no handle any more.
            None => self.phase = Phase::WriteHeld,
        }
    }
}

/// What is done next.
impl<C: LogConfig> LogWriter<C> {
    /// `None` when there was something to do without storage.
    fn step_open(&mut self) -> Option<Step> {
        if let Some(floor) = self.due_floor.take() {
            return self.purge(floor);
        }
        if std::mem::take(&mut self.purge_may_be_due)
            && let Some(step) = self.purge_what_is_due()
        {
            return Some(step);
        }
        let operation = match self.next.take() {
            Some(operation) => operation,
            None => match self.next_operation() {
                Ok(operation) => operation,
                Err(step) => return Some(step),
            },
        };
        if let Operation::Close { answer } = operation {
            self.closing = Some(answer);
            self.phase = Phase::WriteHeld;
            return None;
        }
        self.purge_may_be_due = true;
        self.take(operation)
    }

    /// The next operation there is; what to do when there is none.
    fn next_operation(&mut self) -> Result<Operation<C>, Step> {
        if self.held.is_none() {
            if let Some(operation) = self.deferred.pop_front() {
                return Ok(operation);
            }
            self.pressing = false;
        } else if self.deferred.len() >= self.options.queue_depth_max {
            // Callers that append wait as well from here on.
            self.next = Some(Operation::Poke);
            return Err(Step::Pause(FULL_WAIT));
        }
        match self.queue.try_recv() {
            Ok(operation) => Ok(operation),
            // Purged segments are given back one at a time, and only while nobody waits.
            Err(mpsc::error::TryRecvError::Empty) if self.more_to_tidy && self.failed.is_none() => {
                Err(self.run(Running::Tidy, StorageOperation::Tidy))
            }
            Err(_) => Err(Step::Receive),
        }
    }

    /// What is held is written once more, then what is known to be committed.
    fn step_closing(&mut self) -> Option<Step> {
        match self.phase {
            Phase::Open => None,
            Phase::WriteHeld => {
                self.phase = Phase::WriteCommitted;
                self.pressing = true;
                self.write_held()
            }
            Phase::WriteCommitted if self.failed.is_some() || self.held.is_some() => {
                self.phase = Phase::Over;
                None
            }
            Phase::WriteCommitted => {
                self.phase = Phase::Settle;
                let committed = self.shared.committed_to_write(None);
                committed.and_then(|committed| {
                    let batch = WriteBatch { committed: Some(committed), ..WriteBatch::default() };
                    self.begin(Running::Committed, StorageOperation::Write(batch))
                })
            }
            Phase::Settle => {
                self.phase = Phase::Over;
                self.begin(Running::Settle, StorageOperation::Settle)
            }
            Phase::Over => {
                self.queue.close();
                self.shared.health.closed.store(true, Ordering::SeqCst);
                self.shared.health.wake_watchdog();
                Some(Step::Close(Closing { failed: self.failed.is_some(), answer: self.closing.take() }))
            }
        }
    }

    /// Takes one operation, and what can share its flush.
    fn take(&mut self, operation: Operation<C>) -> Option<Step> {
        if self.held.is_some() && self.failed.is_none() {
            return self.take_while_held(operation);
        }
        match operation {
            Operation::Append { .. } | Operation::SaveVote { .. } => self.take_batch(operation),
            Operation::Truncate { keep, answer } => {
                self.begin(Running::Truncate { answer }, StorageOperation::Truncate { keep })
            }
            Operation::Purge { floor } => self.purge(floor),
            Operation::Read { start, end, bytes_max, answer } => {
                self.begin(Running::Read { answer }, StorageOperation::Read { start, end, bytes_max })
            }
            Operation::Poke => self.begin(Running::Settle, StorageOperation::Settle),
            Operation::Close { .. } => {
                self.next = Some(operation);
                None
            }
        }
    }

    /// An operation that needs space keeps its position in the queue; one that needs none is done.
    fn take_while_held(&mut self, operation: Operation<C>) -> Option<Step> {
        match operation {
            Operation::Read { start, end, bytes_max, answer } => {
                self.begin(Running::Read { answer }, StorageOperation::Read { start, end, bytes_max })
            }
            Operation::Poke => self.write_held(),
            Operation::Purge { floor } if self.shared.is_durable(floor.index()) => self.purge(floor),
            Operation::Append { .. } => {
                self.deferred.push_back(operation);
                None
            }
            operation => {
                self.deferred.push_back(operation);
                self.pressing = true;
                self.write_held()
            }
        }
    }

    fn purge(&mut self, floor: LogId) -> Option<Step> {
        self.begin(Running::Purge, StorageOperation::Purge(LogFloor(floor)))
    }

    /// A purge that was held back may go ahead now, perhaps a part of it.
    fn purge_what_is_due(&mut self) -> Option<Step> {
        match self.shared.due_purge()? {
            DuePurge::Through(floor) => {
                self.shared.purged(floor);
                self.purge(floor)
            }
            DuePurge::ThroughIndex(index) => self.begin(
                Running::DuePurge { index },
                StorageOperation::Read { start: index, end: index + 1, bytes_max: 0 },
            ),
        }
    }

    fn take_batch(&mut self, first: Operation<C>) -> Option<Step> {
        let mut batch = WriteBatch::default();
        let mut waiters = Vec::new();
        let mut bytes = 0;
        let mut next = Some(first);
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
                    self.next = Some(other);
                    break;
                }
            }
            if batch.entries.len() < self.options.batch_entries_max && bytes < self.options.batch_bytes_max {
                next = self.deferred.pop_front().or_else(|| self.queue.try_recv().ok());
            }
        }
        batch.committed = self.shared.committed_to_write(batch.entries.last().map(|entry| entry.log_id));
        let may_wait = !self.pressing && batch.vote.is_none() && self.failed.is_none();
        let pending = Pending { batch, waiters };
        if self.shared.health.is_full() && may_wait {
            tracing::warn!("the disk is full: entries are held until space returns");
            self.hold(pending);
            return None;
        }
        self.write(pending, false)
    }

    fn hold(&mut self, pending: Pending<C>) {
        self.held = Some(pending);
        self.shared.health.held.store(true, Ordering::SeqCst);
        self.shared.health.wake_watchdog();
    }

    /// Writes what is held, if the disk may have space for it.
    fn write_held(&mut self) -> Option<Step> {
        if self.shared.health.is_full() && !self.pressing && !self.shared.health.was_refused() {
            return None;
        }
        let held = self.held.take()?;
        self.write(held, true)
    }

    fn write(&mut self, pending: Pending<C>, was_held: bool) -> Option<Step> {
        if let Some(reason) = &self.failed {
            let reason = reason.clone();
            self.answer(pending, Err(reason));
            return None;
        }
        if breaks(Rule::AckBeforeFlush) && pending.batch.vote.is_none() {
            let Pending { batch, waiters } = pending;
            self.answer(Pending { batch: batch.clone(), waiters }, Ok(()));
            self.planted = Some((Pending { batch, waiters: Vec::new() }, was_held));
            return Some(Step::Pause(PLANTED_WRITE_BACK));
        }
        Some(self.run_write(pending, was_held, false))
    }

    fn run_write(&mut self, pending: Pending<C>, was_held: bool, answered: bool) -> Step {
        let Pending { batch, waiters } = pending;
        self.run(Running::Batch { waiters, was_held, answered }, StorageOperation::Write(batch))
    }

    /// A storage operation, unless nothing is written any more.
    fn begin(&mut self, running: Running<C>, operation: StorageOperation) -> Option<Step> {
        match &self.failed {
            None => Some(self.run(running, operation)),
            Some(reason) => {
                let error = StoreError::Stopped { reason: reason.clone() };
                self.ended(running, operation, Err(error));
                None
            }
        }
    }

    fn run(&mut self, running: Running<C>, operation: StorageOperation) -> Step {
        self.running = Some(running);
        if operation.is_watched() {
            self.shared.health.flush_begins();
        }
        Step::Storage(operation)
    }
}

/// What became of it.
impl<C: LogConfig> LogWriter<C> {
    fn ended(
        &mut self,
        running: Running<C>,
        operation: StorageOperation,
        result: Result<StorageOutcome, StoreError>,
    ) {
        match running {
            Running::Batch { waiters, was_held, answered } => {
                if let StorageOperation::Write(batch) = operation {
                    self.batch_ended(Pending { batch, waiters }, was_held, answered, result);
                }
            }
            Running::Truncate { answer } => {
                let result = self.unless_failed(result);
                if let (Ok(_), StorageOperation::Truncate { keep }) = (&result, operation) {
                    self.shared.truncated(keep);
                }
                let _ = answer.send(result.map(drop).map_err(|reason| StoreError::Stopped { reason }));
            }
            Running::Purge => {
                let _ = self.unless_failed(result);
                self.more_to_tidy = true;
            }
            Running::Read { answer } => {
                let _ = answer.send(result.map(StorageOutcome::into_entries));
            }
            Running::DuePurge { index } => self.due_purge_read(index, result),
            Running::Settle => {
                let _ = self.unless_failed(result);
                self.shared.health.unsettled.store(false, Ordering::SeqCst);
            }
            Running::Tidy => {
                self.more_to_tidy =
                    matches!(self.unless_failed(result), Ok(StorageOutcome::Tidied { more: true }));
            }
            Running::Committed => _ = self.unless_failed(result),
        }
    }

    fn due_purge_read(&mut self, index: u64, result: Result<StorageOutcome, StoreError>) {
        match result.map(StorageOutcome::into_entries) {
            Ok(entries) => {
                if let Some(entry) = entries.first() {
                    self.shared.purged(entry.log_id);
                    self.due_floor = Some(entry.log_id);
                }
            }
            Err(error) => {
                tracing::error!(
                    raft_index = index,
                    error = &error as &dyn std::error::Error,
                    "a purge is not possible"
                );
                self.shared.forget_purge();
            }
        }
    }

    fn batch_ended(
        &mut self,
        pending: Pending<C>,
        was_held: bool,
        answered: bool,
        result: Result<StorageOutcome, StoreError>,
    ) {
        let written = match result {
            Err(error) if error.is_out_of_space() => {
                if !self.shared.health.was_refused() {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "the disk is full: entries of the log are held until space returns"
                    );
                }
                self.shared.health.refused();
                return self.hold(pending);
            }
            result => self.unless_failed(result).map(drop),
        };
        if written.is_ok() {
            self.shared.health.accepted();
            self.shared.health.unsettled.store(true, Ordering::SeqCst);
        }
        if !answered {
            self.answer(pending, written);
        }
        if was_held {
            self.shared.health.held.store(false, Ordering::SeqCst);
            tracing::info!("what was held is written");
        }
    }

    fn answer(&mut self, pending: Pending<C>, written: Result<(), String>) {
        let Pending { batch, waiters } = pending;
        if written.is_ok() {
            let is_application = |entry: &&Entry| matches!(entry.payload, EntryPayload::Normal(_));
            let app_entries = batch.entries.iter().filter(is_application).count() as u64;
            let last = batch.entries.last().map(|entry| entry.log_id);
            self.shared.health.appended(batch.entries.iter().map(|entry| entry_bytes(entry) as u64).sum());
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

    /// The first failure of an operation that writes is fatal, and every later one is refused for that reason.
    fn unless_failed<T>(&mut self, result: Result<T, StoreError>) -> Result<T, String> {
        result.map_err(|error| match &self.failed {
            Some(reason) => reason.clone(),
            None => self.fail(&error),
        })
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
