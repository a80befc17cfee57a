//! Objects whose reading has failed.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::ArchiveError;

/// Objects that were found damaged, and the number of those that were rebuilt.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    objects: Mutex<BTreeSet<String>>,
    mended: AtomicU64,
}

impl Suspects {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // Nothing panics while it holds the lock.
        self.objects.lock()
    }

    /// Notes an object whose reading failed in this way, if that is damage.
    pub(crate) fn note(&self, object: &str, error: &ArchiveError) {
        if error.is_damage() {
            self.lock().insert(object.to_owned());
        }
    }

    pub(crate) fn contains(&self, object: &str) -> bool {
        self.lock().contains(object)
    }

    /// It is of no interest any more.
    pub(crate) fn forget(&self, object: &str) {
        self.lock().remove(object);
    }

    /// The objects, by name.
    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }

    /// Forgets all but these.
    pub(crate) fn retain(&self, known: &BTreeSet<String>) {
        self.lock().retain(|object| known.contains(object));
    }

    /// The object was rebuilt.
    pub(crate) fn rebuilt(&self, object: &str) {
        self.forget(object);
        self.mended.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of objects that were rebuilt.
    pub(crate) fn mended(&self) -> u64 {
        self.mended.load(Ordering::Relaxed)
    }
}
