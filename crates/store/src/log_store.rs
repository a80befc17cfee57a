//! openraft's view of the log: the newest entries in memory, the rest behind the writer.
//!
//! **Invariant:** an entry is readable from the moment `append` returns, and leaves memory only
//! after it is durable.
//! **Invariant:** the committed entry on disk is never past the last durable entry.

use crate::backend::{LogBackend, Recovered};
use crate::error::StoreError;
use crate::health::StorageHealth;
use crate::identity::DirectoryLock;
use crate::io_thread::{IoThread, contained};
use crate::log_state::{FlushProgress, Shared};
use crate::memory::entry_bytes;
use crate::options::StoreOptions;
use crate::raft_types::{Entry, LogConfig, LogId, RaftConfig, Vote};
use crate::watchdog::Watchdog;
use crate::writer::{LogWriter, Operation};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Entries one step of a long read asks the backend for.
const READ_ENTRIES_MAX: u64 = 1_024;

/// The log of one replica. Clones are handles to the same log.
#[derive(Clone)]
pub struct LogStore<C: LogConfig = RaftConfig> {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Operation<C>>,
    read_bytes_max: usize,
}

/// Reads the log; the same handle.
pub type LogReader = LogStore;

/// A log whose writer and watchdog nobody drives yet.
pub struct LogParts<C: LogConfig> {
    /// The log as openraft uses it.
    pub store: LogStore<C>,
    /// What writes it.
    pub writer: LogWriter<C>,
    /// What looks after the writer.
    pub watchdog: Watchdog<C>,
}

impl LogStore {
    /// Opens the log a backend keeps, and starts its threads.
    ///
    /// # Errors
    /// What the backend found at open; see [`StoreError::Damaged`].
    pub fn open(backend: impl LogBackend, options: StoreOptions) -> Result<LogStore, StoreError> {
        LogStore::open_locked(backend, options, Path::new("."), None, |_| Ok(()))
    }

    /// `dir` is on the disk whose free space counts. What `accept` refuses is closed again when
    /// this returns.
    pub(crate) fn open_locked(
        mut backend: impl LogBackend,
        options: StoreOptions,
        dir: &Path,
        lock: Option<DirectoryLock>,
        accept: impl FnOnce(&Recovered) -> Result<(), StoreError>,
    ) -> Result<LogStore, StoreError> {
        let recovered = contained("opening", || backend.recover())?;
        accept(&recovered)?;
        let LogParts { store, writer, watchdog } = LogStore::assemble(&recovered, &options, dir);
        let watching = std::thread::Builder::new()
            .name("muster-log-watch".to_owned())
            .spawn(move || watch(watchdog))
            .map_err(StoreError::StartThread)?;
        drop(watching);
        let thread = IoThread { backend, writer, lock };
        let started =
            std::thread::Builder::new().name("muster-log-io".to_owned()).spawn(move || thread.run());
        if let Err(error) = started {
            store.shared.health.closed.store(true, std::sync::atomic::Ordering::SeqCst);
            return Err(StoreError::StartThread(error));
        }
        Ok(store)
    }
}

/// Drives the watchdog on this thread.
fn watch(mut watchdog: Watchdog<RaftConfig>) {
    let thread = std::thread::current();
    watchdog.set_waker(move || thread.unpark());
    while let Some(pause) = watchdog.pause() {
        std::thread::park_timeout(pause);
        watchdog.look();
    }
}

impl<C: LogConfig> LogStore<C> {
    /// The parts of a log over whatever was recovered; `dir` is on the disk whose free space counts.
    #[must_use]
    pub fn assemble(recovered: &Recovered, options: &StoreOptions, dir: &Path) -> LogParts<C> {
        let shared = Arc::new(Shared::new(recovered, options));
        let (queue, operations) = mpsc::channel(options.queue_depth_max.max(1));
        let watchdog =
            Watchdog::new(Arc::clone(&shared), queue.downgrade(), options.clone(), dir.to_path_buf());
        let writer = LogWriter::new(operations, Arc::clone(&shared), options.clone());
        let store = LogStore { shared, queue, read_bytes_max: options.read_bytes_max };
        LogParts { store, writer, watchdog }
    }

    /// How the storage is doing, as it changes.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<StorageHealth> {
        self.shared.health.subscribe()
    }

    /// From now on this one hears how long each flush took. It is called on the thread that writes, so it has to be quick. The
    /// first one stays.
    pub fn observe_flushes(&self, observer: impl Fn(Duration) + Send + Sync + 'static) {
        self.shared.health.observe(Box::new(observer));
    }

    /// From now on this one hears how many bytes of entries have become durable, whenever some have. It is called on the thread
    /// that writes, so it has to be quick. The first one stays.
    pub fn observe_appends(&self, observer: impl Fn(u64) + Send + Sync + 'static) {
        self.shared.health.observe_appends(Box::new(observer));
    }

    /// From now on no entry with a Raft index after `hold` is purged: somebody else does not have it
    /// yet. A purge that asks for more is remembered, and goes on as the hold moves. `None` holds
    /// nothing back.
    ///
    /// A purge past the end of the log, after which a snapshot replaces all of it, is
    /// not held back: what follows the snapshot could not be appended.
    pub fn hold_purge(&self, hold: Option<u64>) {
        self.shared.lock().purge_hold = hold;
        // While the queue is full, the writer sees it after its next operation.
        let _ = self.queue.try_send(Operation::Poke);
    }

    /// The first entry the log still has, if it has any.
    #[must_use]
    pub fn first_index(&self) -> Option<u64> {
        let state = self.shared.lock();
        let last = state.last.filter(|last| Some(*last) != state.floor)?;
        Some(state.first_index).filter(|first| *first <= last.index())
    }

    /// The last entry, durable or not; where there is none, everything up to here was purged.
    #[must_use]
    pub fn last(&self) -> Option<LogId> {
        self.shared.lock().last
    }

    /// Whether nothing was ever promised or stored.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        let state = self.shared.lock();
        state.vote.is_none() && state.last.is_none()
    }

    /// Entries from `start` until before `end`, in order, until they have `bytes_max` bytes; at least
    /// one, unless the log does not have the first.
    ///
    /// # Errors
    /// When the store is stopped, or an entry is not intact.
    pub async fn read(&self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, StoreError> {
        self.read_step(start, end, bytes_max).await
    }

    /// Every entry the log has from `start` on, up to the last at the time of the call. Blocks: not
    /// for an async task.
    #[must_use]
    pub fn entries_from(&self, start: u64) -> LogEntries<C> {
        let next = start.max(self.first_index().unwrap_or(u64::MAX));
        let end = self.last().map_or(0, |last| last.index() + 1);
        LogEntries { store: self.clone(), next, end, step: VecDeque::new() }
    }

    /// How far the log is durable, as it changes.
    #[must_use]
    pub fn flushed(&self) -> watch::Receiver<FlushProgress> {
        self.shared.progress.subscribe()
    }

    /// Everything up to here was purged.
    #[must_use]
    pub fn floor(&self) -> Option<LogId> {
        self.shared.lock().floor
    }

    /// Finishes what is queued, closes the files and releases the directory.
    pub async fn close(&self) {
        let (answer, closed) = oneshot::channel();
        if self.queue.send(Operation::Close { answer }).await.is_ok() {
            let _ = closed.await;
        }
    }

    fn stopped(&self) -> StoreError {
        let reason = self.shared.lock().failed.clone();
        StoreError::Stopped { reason: reason.unwrap_or_else(|| "it was closed".to_owned()) }
    }

    async fn enqueue(&self, operation: Operation<C>) -> Result<(), StoreError> {
        self.queue.send(operation).await.map_err(|_| self.stopped())
    }

    /// One step of a read: entries from `start`, from memory or from the backend, at least one
    /// unless the log has none there.
    async fn read_step(&self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, StoreError> {
        let end_on_disk = {
            let state = self.shared.lock();
            let last_next = state.last.map_or(0, |last| last.index() + 1);
            if start < state.first_index || start >= end.min(last_next) {
                return Ok(Vec::new());
            }
            match state.tail.front().map(|entry| entry.log_id.index()) {
                Some(first) if first <= start => {
                    return Ok(state.tail_entries(start - first, end, bytes_max));
                }
                Some(first) => end.min(first),
                None => end.min(last_next),
            }
        };
        let end_on_disk = end_on_disk.min(start.saturating_add(READ_ENTRIES_MAX));
        let (answer, found) = oneshot::channel();
        self.enqueue(Operation::Read { start, end: end_on_disk, bytes_max, answer }).await?;
        found.await.map_err(|_| self.stopped())?
    }

    /// Every entry of the range that the log has.
    async fn read_all(&self, start: u64, end: u64) -> Result<Vec<Entry>, StoreError> {
        'again: loop {
            let (truncations, mut next, last_next) = {
                let state = self.shared.lock();
                (
                    state.truncations,
                    start.max(state.first_index),
                    state.last.map_or(0, |last| last.index() + 1),
                )
            };
            let end = end.min(last_next);
            let mut found = Vec::new();
            while next < end {
                let step = self.read_step(next, end, usize::MAX).await?;
                let state = self.shared.lock();
                if state.truncations != truncations || state.first_index > next {
                    continue 'again;
                }
                drop(state);
                match step.last() {
                    Some(last) => next = last.log_id.index() + 1,
                    None => return Err(StoreError::EntryMissing { index: next }),
                }
                found.extend(step);
            }
            return Ok(found);
        }
    }
}

/// Entries of a log, one after the other; after an error there is nothing more.
pub struct LogEntries<C: LogConfig = RaftConfig> {
    store: LogStore<C>,
    next: u64,
    end: u64,
    step: VecDeque<Entry>,
}

impl<C: LogConfig> Iterator for LogEntries<C> {
    type Item = Result<Entry, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.step.is_empty() && self.next < self.end {
            let step = self.store.read_step(self.next, self.end, self.store.read_bytes_max);
            match futures::executor::block_on(step) {
                Ok(found) if found.is_empty() => {
                    let missing = StoreError::EntryMissing { index: self.next };
                    self.end = self.next;
                    return Some(Err(missing));
                }
                Ok(found) => self.step = found.into(),
                Err(error) => {
                    self.end = self.next;
                    return Some(Err(error));
                }
            }
        }
        let entry = self.step.pop_front()?;
        self.next = entry.log_id.index() + 1;
        Some(Ok(entry))
    }
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

impl<C: LogConfig> RaftLogReader<C> for LogStore<C> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, std::io::Error> {
        let (start, end) = bounds(&range);
        Ok(self.read_all(start, end).await?)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, std::io::Error> {
        Ok(self.shared.lock().vote)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, std::io::Error> {
        Ok(self.read_step(start, end, self.read_bytes_max).await?)
    }

    /// Apply may ask for the whole log after a restart: it comes in bounded steps.
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl futures::Stream<Item = Result<Entry, std::io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = bounds(&range);
        let end = end.min(self.shared.lock().last.map_or(0, |last| last.index() + 1));
        let store = self.clone();
        futures::stream::unfold((start, VecDeque::new()), move |(next, mut step)| {
            let store = store.clone();
            async move {
                if step.is_empty() && next < end {
                    match store.read_step(next, end, store.read_bytes_max).await {
                        Ok(found) if found.is_empty() => {
                            let missing = StoreError::EntryMissing { index: next };
                            return Some((Err(missing.into()), (end, step)));
                        }
                        Ok(found) => step = found.into(),
                        Err(error) => return Some((Err(error.into()), (end, step))),
                    }
                }
                step.pop_front().map(|entry: Entry| {
                    let next = entry.log_id.index() + 1;
                    (Ok(entry), (next, step))
                })
            }
        })
    }
}

impl<C: LogConfig> RaftLogStorage<C> for LogStore<C> {
    type LogReader = LogStore<C>;

    async fn get_log_state(&mut self) -> Result<LogState<C>, std::io::Error> {
        let state = self.shared.lock();
        Ok(LogState { last_purged_log_id: state.floor, last_log_id: state.last })
    }

    async fn get_log_reader(&mut self) -> LogStore<C> {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), std::io::Error> {
        let (answer, saved) = oneshot::channel();
        self.enqueue(Operation::SaveVote { vote: *vote, answer }).await?;
        Ok(saved.await.map_err(|_| self.stopped())??)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), std::io::Error> {
        // Written with the next flush: a separate flush would cost more than it saves at restart.
        self.shared.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, std::io::Error> {
        Ok(self.shared.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<C>) -> Result<(), std::io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        {
            let mut state = self.shared.lock();
            for entry in &entries {
                state.push(entry)?;
            }
        }
        self.enqueue(Operation::Append { entries, flushed: callback }).await?;
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), std::io::Error> {
        let keep = {
            let mut state = self.shared.lock();
            let keep = last_log_id.max(state.floor);
            state.truncations += 1;
            state.last = state.last.min(keep);
            while state.tail.back().is_some_and(|entry| Some(entry.log_id) > keep) {
                if let Some(entry) = state.tail.pop_back() {
                    state.tail_bytes -= entry_bytes(&entry);
                }
            }
            keep
        };
        // Waited for: a snapshot that replaces what was truncated is published next, and a replica that still
        // had the lost branch as well would be refused at its next start. The entries that
        // follow are appended only then, so none shares an index with one that is still queued.
        let (answer, truncated) = oneshot::channel();
        self.enqueue(Operation::Truncate { keep, answer }).await?;
        Ok(truncated.await.map_err(|_| self.stopped())??)
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), std::io::Error> {
        let held_back = {
            let mut state = self.shared.lock();
            state.asked_floor = state.asked_floor.max(Some(log_id));
            let past_end = state.last.is_none_or(|last| last.index() < log_id.index());
            let held_back = !past_end && state.purge_hold.is_some_and(|hold| hold < log_id.index());
            if !held_back {
                state.purged(log_id);
            }
            held_back
        };
        let operation = if held_back { Operation::Poke } else { Operation::Purge { floor: log_id } };
        self.enqueue(operation).await?;
        Ok(())
    }
}
