//! What the threads of a log share: which entries there are, how far they are durable, and what may be purged.
//!
//! **Invariant:** an entry leaves memory only after it is durable.

use crate::backend::Recovered;
use crate::error::StoreError;
use crate::health::Health;
use crate::memory::entry_bytes;
use crate::options::StoreOptions;
use crate::raft_types::{Entry, LogId, Vote};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use tokio::sync::watch;

/// How far the log is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushProgress {
    /// The last durable entry.
    pub last_index: Option<u64>,
    /// Application entries made durable since the store was opened; only grows.
    pub app_entries_flushed: u64,
}

pub(crate) struct State {
    pub(crate) vote: Option<Vote>,
    pub(crate) committed: Option<LogId>,
    /// The committed entry that the disk has or is about to have.
    pub(crate) committed_written: Option<LogId>,
    pub(crate) floor: Option<LogId>,
    /// The floor that was asked for; more is kept while a purge is held back.
    pub(crate) asked_floor: Option<LogId>,
    /// Nothing after this is purged.
    pub(crate) purge_hold: Option<u64>,
    /// The first entry there is; right after the floor, except in a log that starts elsewhere.
    pub(crate) first_index: u64,
    pub(crate) last: Option<LogId>,
    pub(crate) durable: Option<LogId>,
    pub(crate) tail: VecDeque<Entry>,
    pub(crate) tail_bytes: usize,
    /// Counts truncations, so that a read over several steps notices one between them.
    pub(crate) truncations: u64,
    pub(crate) failed: Option<String>,
}

/// A purge that nothing holds back any more.
pub(crate) enum DuePurge {
    Through(LogId),
    /// A part of what was asked for; the entry there says its whole id.
    ThroughIndex(u64),
}

/// What the storage thread, the watchdog and the store share.
pub(crate) struct Shared {
    pub(crate) health: Health,
    state: Mutex<State>,
    pub(crate) progress: watch::Sender<FlushProgress>,
}

impl Shared {
    pub(crate) fn new(recovered: &Recovered, options: &StoreOptions) -> Shared {
        let state = State {
            vote: recovered.vote,
            committed: recovered.committed,
            committed_written: recovered.committed,
            floor: recovered.floor,
            asked_floor: recovered.floor,
            purge_hold: options.purge_hold,
            first_index: recovered
                .first_index
                .unwrap_or_else(|| recovered.floor.map_or(0, |floor| floor.index() + 1)),
            last: recovered.last,
            durable: recovered.last,
            tail: VecDeque::new(),
            tail_bytes: 0,
            truncations: 0,
            failed: None,
        };
        let progress =
            FlushProgress { last_index: recovered.last.map(|last| last.index()), app_entries_flushed: 0 };
        Shared {
            health: Health::new(options.clock),
            state: Mutex::new(state),
            progress: watch::Sender::new(progress),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under this lock leaves plain data; the thread that panicked reported it.
        self.state.lock()
    }

    /// The committed entry to write with a batch that ends at `batch_last`, no further than what
    /// that batch makes durable; `None` when there is nothing new.
    pub(crate) fn committed_to_write(&self, batch_last: Option<LogId>) -> Option<LogId> {
        let mut state = self.lock();
        let durable = batch_last.max(state.durable).max(state.floor);
        let committed = state.committed.min(durable);
        if committed <= state.committed_written {
            return None;
        }
        state.committed_written = committed;
        committed
    }

    pub(crate) fn flushed(&self, batch_last: Option<LogId>, app_entries: u64, options: &StoreOptions) {
        let Some(batch_last) = batch_last else { return };
        let mut state = self.lock();
        state.durable = Some(batch_last);
        while state.tail_bytes > options.tail_bytes_max
            && state.tail.front().is_some_and(|entry| entry.log_id.index() <= batch_last.index())
        {
            if let Some(entry) = state.tail.pop_front() {
                state.tail_bytes -= entry_bytes(&entry);
            }
        }
        drop(state);
        self.progress.send_modify(|progress| {
            progress.last_index = Some(batch_last.index());
            progress.app_entries_flushed += app_entries;
        });
    }

    pub(crate) fn truncated(&self, keep: Option<LogId>) {
        let mut state = self.lock();
        state.durable = state.durable.min(keep);
        drop(state);
        self.progress.send_modify(|progress| {
            progress.last_index = progress.last_index.min(keep.map(|log_id| log_id.index()));
        });
    }

    pub(crate) fn is_durable(&self, index: u64) -> bool {
        self.lock().durable.is_some_and(|durable| durable.index() >= index)
    }

    pub(crate) fn due_purge(&self) -> Option<DuePurge> {
        let state = self.lock();
        let asked = state.asked_floor?;
        let index = asked.index().min(state.purge_hold.unwrap_or(u64::MAX));
        let durable = state.durable.is_some_and(|durable| durable.index() >= index);
        if !durable || state.floor.is_some_and(|floor| floor.index() >= index) {
            None
        } else if index == asked.index() {
            Some(DuePurge::Through(asked))
        } else {
            // A log that starts after the hold has nothing to purge yet.
            (index >= state.first_index).then_some(DuePurge::ThroughIndex(index))
        }
    }

    pub(crate) fn purged(&self, floor: LogId) {
        self.lock().purged(floor);
    }

    pub(crate) fn forget_purge(&self) {
        let mut state = self.lock();
        state.asked_floor = state.floor;
    }

    pub(crate) fn voted(&self, vote: Vote) {
        self.lock().vote = Some(vote);
    }

    pub(crate) fn failed(&self, reason: &str) {
        self.lock().failed = Some(reason.to_owned());
    }
}

impl State {
    pub(crate) fn purged(&mut self, floor: LogId) {
        self.floor = self.floor.max(Some(floor));
        self.first_index = self.first_index.max(floor.index() + 1);
        self.last = self.last.max(Some(floor));
        while self.tail.front().is_some_and(|entry| entry.log_id.index() <= floor.index()) {
            if let Some(entry) = self.tail.pop_front() {
                self.tail_bytes -= entry_bytes(&entry);
            }
        }
    }

    pub(crate) fn tail_entries(&self, skip: u64, end: u64, bytes_max: usize) -> Vec<Entry> {
        let mut bytes = 0;
        let mut found = Vec::new();
        for entry in self.tail.iter().skip(skip as usize) {
            if entry.log_id.index() >= end || (bytes >= bytes_max && !found.is_empty()) {
                break;
            }
            bytes += entry_bytes(entry);
            found.push(entry.clone());
        }
        found
    }

    pub(crate) fn push(&mut self, entry: &Entry) -> Result<(), StoreError> {
        let expected = self.last.map_or(0, |last| last.index() + 1);
        // A hole would make the last entry stand for ones that are not there. An empty log may
        // start anywhere: the first entry after a snapshot does.
        let starts = self.last.is_none();
        if entry.log_id.index() != expected && !starts {
            return Err(StoreError::EntryMissing { index: expected });
        }
        if starts {
            self.first_index = entry.log_id.index();
        }
        self.last = Some(entry.log_id);
        self.tail_bytes += entry_bytes(entry);
        self.tail.push_back(entry.clone());
        Ok(())
    }
}
