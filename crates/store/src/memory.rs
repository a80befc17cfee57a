//! The in-memory twin: the same contract without a disk, for tests and simulations.
//!
//! **Invariant:** what survives "reopening" is exactly what a batch that returned had written.

use crate::backend::{LogBackend, LogFloor, Recovered, WriteBatch};
use crate::error::StoreError;
use crate::identity::IdentityFile;
use crate::raft_types::{Entry, EntryPayload, LogId, Vote};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

#[derive(Default)]
struct Content {
    identity: Option<IdentityFile>,
    entries: BTreeMap<u64, Entry>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    floor: Option<LogId>,
}

/// What an in-memory replica keeps over a restart. Clones share it.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<Content>>);

impl MemoryDisk {
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock()
    }

    /// The record of the directory that this stands for; made when it is asked for first.
    pub(crate) fn identity(&self, create: impl FnOnce() -> IdentityFile) -> IdentityFile {
        self.lock().identity.get_or_insert_with(create).clone()
    }
}

impl fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries", self.lock().entries.len())
    }
}

/// Keeps the log in memory.
#[derive(Debug)]
pub struct MemoryBackend {
    disk: MemoryDisk,
}

impl MemoryBackend {
    /// A backend over `disk`.
    #[must_use]
    pub fn new(disk: MemoryDisk) -> Self {
        MemoryBackend { disk }
    }
}

impl LogBackend for MemoryBackend {
    fn recover(&mut self) -> Result<Recovered, StoreError> {
        let content = self.disk.lock();
        let last = content.entries.values().next_back().map(|entry| entry.log_id).or(content.floor);
        Ok(Recovered {
            vote: content.vote,
            committed: content.committed.min(last),
            floor: content.floor,
            last,
            first_index: content.entries.keys().next().copied(),
        })
    }

    fn write(&mut self, batch: &WriteBatch) -> Result<(), StoreError> {
        let mut content = self.disk.lock();
        for entry in &batch.entries {
            content.entries.insert(entry.log_id.index(), entry.clone());
        }
        if batch.vote.is_some() {
            content.vote = batch.vote;
        }
        if batch.committed.is_some() {
            content.committed = batch.committed;
        }
        Ok(())
    }

    fn truncate_after(&mut self, keep: Option<LogId>) -> Result<(), StoreError> {
        let from = keep.map_or(0, |log_id| log_id.index() + 1);
        self.disk.lock().entries.split_off(&from);
        Ok(())
    }

    fn purge(&mut self, floor: LogFloor) -> Result<(), StoreError> {
        let mut content = self.disk.lock();
        content.floor = Some(floor.0);
        content.entries = content.entries.split_off(&(floor.0.index() + 1));
        Ok(())
    }

    fn read(&mut self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, StoreError> {
        let mut bytes = 0;
        let mut found = Vec::new();
        for entry in self.disk.lock().entries.range(start..end).map(|(_, entry)| entry) {
            if bytes >= bytes_max && !found.is_empty() {
                break;
            }
            bytes += entry_bytes(entry);
            found.push(entry.clone());
        }
        Ok(found)
    }

    fn log_bytes(&self) -> u64 {
        self.disk.lock().entries.values().map(|entry| entry_bytes(entry) as u64).sum()
    }

    fn tidy(&mut self) -> Result<bool, StoreError> {
        Ok(false)
    }
}

/// What an entry counts for in byte limits.
pub(crate) fn entry_bytes(entry: &Entry) -> usize {
    crate::codec::ENVELOPE_HEADER_BYTES
        + match &entry.payload {
            EntryPayload::Normal(payload) => payload.0.len(),
            EntryPayload::Blank => 0,
            // A few hundred bytes for a membership of five.
            EntryPayload::Membership(_) => 1_024,
        }
}
