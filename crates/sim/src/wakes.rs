//! Moments at which time alone may make a difference.
//!
//! A cluster looks at waiting jobs every few seconds. A replay under a preset looks when something happens; one under a policy
//! of rights, windows and times looks at these moments as well.

use std::collections::BTreeSet;

/// First time for which nothing happens before waiting jobs are looked at again, and the longest, in milliseconds.
const PATIENCE_MS: (u64, u64) = (30_000, 600_000);

/// When to look although nothing happens.
#[derive(Default)]
pub(crate) struct Wakes {
    /// Ends and beginnings of windows, and deadlines, in milliseconds of the replay.
    known: BTreeSet<u64>,
    /// How long to wait for an event while jobs wait; none to look at events only.
    patience_ms: Option<u64>,
}

impl Wakes {
    /// These moments, and now and then while jobs wait.
    pub(crate) fn at(known: BTreeSet<u64>) -> Wakes {
        Wakes { known, patience_ms: Some(PATIENCE_MS.0) }
    }

    /// More moments; nothing where only events count.
    pub(crate) fn add(&mut self, moments: impl IntoIterator<Item = u64>) {
        if self.patience_ms.is_some() {
            self.known.extend(moments);
        }
    }

    /// The next moment, if that is before the next event. `waits` is whether time may let something go on that waits.
    pub(crate) fn next(&self, now_ms: u64, waits: bool, event: Option<u64>) -> Option<u64> {
        let known = self.known.first().copied();
        let patience = self.patience_ms.filter(|_| waits).map(|ms| now_ms.saturating_add(ms));
        earliest(known, patience).filter(|ms| event.is_none_or(|event| *ms < event))
    }

    /// Everything up to a moment is over.
    pub(crate) fn pass(&mut self, ms: u64) {
        self.known = self.known.split_off(&ms.saturating_add(1));
    }

    /// Looks at what waits after less time where something happens, and after more where nothing does.
    pub(crate) fn be_patient(&mut self, has_happened: bool) {
        let (first, longest) = PATIENCE_MS;
        let next = |ms: u64| if has_happened { first } else { (ms * 2).min(longest) };
        self.patience_ms = self.patience_ms.map(next);
    }
}

/// The earlier of two moments, where there are any.
pub(crate) fn earliest(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}
