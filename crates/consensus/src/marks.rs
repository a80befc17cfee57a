//! What the state came to behind the last entries, so that replicas can be compared where they stand at the same one.
//!
//! The log itself carries digests, and a replica whose own is another stops. Between two of these, and where a replica
//! applies no such record at all, this shows who is elsewhere.
//!
//! **Invariant:** a difference is told to people and stops nothing.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Entries whose digest is kept: more than a healthy replica is ever behind.
const MARKS_MAX: usize = 4_096;

/// The digest of the application's state behind an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateMark {
    /// The entry.
    pub raft_index: u64,
    /// The digest behind it.
    pub digest: u64,
}

/// The last marks of this replica. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct StateMarks(Arc<Mutex<VecDeque<StateMark>>>);

impl StateMarks {
    /// Entries that were applied, in their order.
    pub fn note(&self, applied: impl IntoIterator<Item = StateMark>) {
        let mut marks = self.0.lock();
        marks.extend(applied);
        let surplus = marks.len().saturating_sub(MARKS_MAX);
        marks.drain(..surplus);
    }

    /// The state was replaced: nothing is known of the entries before.
    pub fn forget(&self) {
        self.0.lock().clear();
    }

    /// The newest.
    #[must_use]
    pub fn last(&self) -> Option<StateMark> {
        self.0.lock().back().copied()
    }

    /// Whether another replica's state behind an entry is another than the one here; none where nothing is known of that
    /// entry here.
    #[must_use]
    pub fn differs(&self, theirs: StateMark) -> Option<bool> {
        let marks = self.0.lock();
        let at = marks.binary_search_by_key(&theirs.raft_index, |mark| mark.raft_index).ok()?;
        marks.get(at).map(|own| own.digest != theirs.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_compared_behind_the_same_entry_alone() {
        let marks = StateMarks::default();
        assert_eq!(marks.last(), None);
        let mark = |raft_index, digest| StateMark { raft_index, digest };
        marks.note([mark(3, 30), mark(5, 50)]);
        marks.note([mark(9, 90)]);
        assert_eq!(marks.last(), Some(mark(9, 90)));
        assert_eq!(marks.differs(mark(5, 50)), Some(false));
        assert_eq!(marks.differs(mark(5, 51)), Some(true));
        // An entry without a record, and one that is not applied here yet.
        assert_eq!((marks.differs(mark(4, 1)), marks.differs(mark(10, 1))), (None, None));
        marks.note((10..10 + MARKS_MAX as u64).map(|index| mark(index, index)));
        assert_eq!(marks.differs(mark(9, 1)), None, "its bound is kept");
        assert_eq!(marks.differs(mark(10, 10)), Some(false));
        marks.forget();
        assert_eq!(marks.differs(mark(10, 10)), None);
    }
}
