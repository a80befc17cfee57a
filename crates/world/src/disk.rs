//! A simulated disk: one append-only log, and small files that are replaced whole.
//!
//! Written bytes are there for every reader, and gone with the next power cut unless they were synced;
//! of the unsynced tail any prefix may survive, its last bytes as garbage. A failed sync loses what was
//! unsynced, as real kernels do: a process that got one must not go on.

use crate::runtime::{below, chance, random, sleep_true_ns};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes at the end of a torn tail that may be anything.
const GARBAGE_BYTES_MAX: u64 = 64;
/// A sync of a healthy disk: from this, to twice this.
const SYNC_NS: u64 = 600_000;

/// Free space while there is enough.
const ENOUGH_BYTES: u64 = 1 << 40;
/// With less free than this, a replica holds entries back and writes no snapshot.
pub const RESERVE_BYTES: u64 = 1 << 20;

/// The disk is full.
#[derive(Debug)]
pub struct Full;

/// A sync failed; nothing that was not synced before may be relied on.
#[derive(Debug)]
pub struct SyncFailed;

#[derive(Default)]
struct Content {
    log: Vec<u8>,
    synced: usize,
    files: BTreeMap<&'static str, Vec<u8>>,
    full: bool,
    /// There is space for what cannot wait, though not for more.
    has_reserve: bool,
    fail_next_sync: bool,
    slow_factor: u64,
    /// Rises with every power cut: a sync that was under way then has synced nothing.
    cuts: u64,
}

/// One host's disk. Clones share it; it survives its host's processes.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<Content>>);

impl Disk {
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock()
    }

    /// Everything that was written.
    pub fn log(&self) -> Vec<u8> {
        self.lock().log.clone()
    }

    /// How many bytes of the log would survive a power cut for certain.
    pub fn synced(&self) -> usize {
        self.lock().synced
    }

    /// Where the log ends.
    pub fn log_bytes(&self) -> usize {
        self.lock().log.len()
    }

    /// Writes behind the end of the log, in space that there is.
    pub fn append(&self, bytes: &[u8]) {
        self.lock().log.extend_from_slice(bytes);
    }

    /// Cuts the log, durably; what a start does with a torn tail.
    pub fn cut(&self, len: usize) {
        let mut content = self.lock();
        content.log.truncate(len);
        content.synced = content.synced.min(len);
    }

    /// Returns once everything written before is durable.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn sync(&self) -> Result<(), SyncFailed> {
        let (end, factor, cuts) = {
            let content = self.lock();
            (content.log.len(), content.slow_factor.max(1), content.cuts)
        };
        sleep_true_ns((SYNC_NS + below(SYNC_NS)) * factor).await;
        let mut content = self.lock();
        if content.cuts != cuts {
            return Err(SyncFailed);
        }
        if std::mem::take(&mut content.fail_next_sync) {
            let keep = content.synced;
            content.log.truncate(keep);
            return Err(SyncFailed);
        }
        content.synced = content.synced.max(end.min(content.log.len()));
        Ok(())
    }

    /// A small file, as it would be found after a power cut.
    pub fn file(&self, name: &str) -> Option<Vec<u8>> {
        self.lock().files.get(name).cloned()
    }

    /// Whether a write finds no space.
    pub fn is_full(&self) -> bool {
        let content = self.lock();
        content.full && !content.has_reserve
    }

    /// How much may still be written.
    pub fn free_bytes(&self) -> u64 {
        let content = self.lock();
        match (content.full, content.has_reserve) {
            (false, _) => ENOUGH_BYTES,
            (true, true) => RESERVE_BYTES / 2,
            (true, false) => 0,
        }
    }

    /// A small file is there, or none is; by who sets the disk up.
    pub fn put(&self, name: &'static str, bytes: Option<Vec<u8>>) {
        let mut content = self.lock();
        match bytes {
            Some(bytes) => _ = content.files.insert(name, bytes),
            None => _ = content.files.remove(name),
        }
    }

    /// Replaces a small file or removes it, durably and at once: written under a temporary name, synced, renamed.
    ///
    /// # Errors
    /// When the disk is full, which leaves the old one.
    pub async fn set(&self, name: &'static str, bytes: Option<Vec<u8>>) -> Result<(), Full> {
        if self.lock().full {
            return Err(Full);
        }
        self.overwrite(name, bytes).await;
        Ok(())
    }

    /// The same in space that the file has already.
    pub async fn overwrite(&self, name: &'static str, bytes: Option<Vec<u8>>) {
        let (factor, cuts) = {
            let content = self.lock();
            (content.slow_factor.max(1), content.cuts)
        };
        sleep_true_ns((SYNC_NS / 2 + below(SYNC_NS)) * factor).await;
        if self.lock().cuts == cuts {
            self.put(name, bytes);
        }
    }

    /// Replaces a small file in the same way.
    ///
    /// # Errors
    /// When the disk is full, which leaves the old one.
    pub async fn replace(&self, name: &'static str, bytes: Vec<u8>) -> Result<(), Full> {
        self.set(name, Some(bytes)).await
    }

    /// Power loss.
    pub fn cut_power(&self) {
        let mut content = self.lock();
        let unsynced = content.log.len() - content.synced;
        let kept = below(unsynced as u64 + 1) as usize;
        let end = content.synced + kept;
        content.log.truncate(end);
        if kept > 0 && chance(500) {
            let garbage = (below(GARBAGE_BYTES_MAX) as usize + 1).min(kept);
            for byte in &mut content.log[end - garbage..] {
                *byte = random() as u8;
            }
        }
        // What was found after a power cut is on the disk.
        content.synced = end;
        content.cuts += 1;
        content.fail_next_sync = false;
    }

    /// One bit of what was synced turns over; false where there is nothing.
    pub fn flip_bit(&self) -> bool {
        let mut content = self.lock();
        if content.synced == 0 {
            return false;
        }
        let place = below(content.synced as u64) as usize;
        content.log[place] ^= 1 << below(8);
        true
    }

    /// An empty disk in place of this one.
    pub fn wipe(&self) {
        let mut content = self.lock();
        *content = Content { cuts: content.cuts + 1, ..Content::default() };
    }

    /// Whether the disk is full: of such disks half have a little left, and half have nothing.
    pub fn set_full(&self, full: bool) {
        let has_reserve = chance(500);
        let mut content = self.lock();
        (content.full, content.has_reserve) = (full, has_reserve);
    }

    /// The next sync fails.
    pub fn fail_next_sync(&self) {
        self.lock().fail_next_sync = true;
    }

    /// No fault any more; what was lost stays lost.
    pub fn mend(&self) {
        let mut content = self.lock();
        (content.full, content.fail_next_sync, content.slow_factor) = (false, false, 1);
    }

    /// Syncs take this many times as long.
    pub fn set_slow(&self, factor: u64) {
        self.lock().slow_factor = factor;
    }
}
