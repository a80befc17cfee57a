//! Positions of waiting jobs among those of their tier and tenant.

use core::fmt;
use serde::{Deserialize, Serialize};

use crate::ids::LogIndex;
use crate::time::LogTime;

/// A position in the queue: the smaller goes first.
///
/// Urgent positions are times: since when a gang waits that has waited too long, or when it has to start. Ordinary ones
/// count work and come behind all of them. Both are one number in the record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QueueKey(u64);

/// The first ordinary position. As milliseconds of log time it is the year 2109.
const ORDINARY_MIN: u64 = 1 << 42;

impl QueueKey {
    /// Before all others.
    pub const FIRST: QueueKey = QueueKey(0);
    /// Behind all others.
    pub const LAST: QueueKey = QueueKey(u64::MAX);

    /// Of a gang that goes before all that are not urgent; among those that are, the earlier time goes first.
    #[must_use]
    pub const fn urgent(since: LogTime) -> QueueKey {
        QueueKey(if since.0 < ORDINARY_MIN { since.0 } else { ORDINARY_MIN - 1 })
    }

    /// Of a gang that is not urgent: the one with the least work goes first, in milliseconds of a thousandth of a device.
    #[must_use]
    pub const fn ordinary(work: u64) -> QueueKey {
        QueueKey(ORDINARY_MIN.saturating_add(work))
    }

    /// The work of an ordinary position; none for an urgent one.
    #[must_use]
    pub const fn work(self) -> Option<u64> {
        self.0.checked_sub(ORDINARY_MIN)
    }

    /// The position right before this one; none for the first.
    #[must_use]
    pub const fn before(self) -> Option<QueueKey> {
        match self.0.checked_sub(1) {
            Some(before) => Some(QueueKey(before)),
            None => None,
        }
    }
}

impl fmt::Debug for QueueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.work() {
            Some(work) => write!(f, "ordinary({work})"),
            None => write!(f, "urgent({})", self.0),
        }
    }
}

/// What goes before the position among the waiting jobs of one tenant and tier: whether somebody has moved the job to the front,
/// and its nice value. Jobs of different tenants are never compared by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueRank(i64);

/// Ranks of jobs that were moved to the front are below this one, and those of nice values above.
const RANK_OF_FRONT: i64 = -1_000;

impl QueueRank {
    /// Before all others.
    pub const FIRST: QueueRank = QueueRank(i64::MIN);
    /// Behind all others.
    pub const LAST: QueueRank = QueueRank(i64::MAX);

    /// Of a job with this nice value, which the record at `front` has moved to the front. Of several such jobs the one that was
    /// moved last goes first.
    #[must_use]
    pub fn new(nice: i8, front: Option<LogIndex>) -> QueueRank {
        match front {
            Some(index) => {
                // No such rank is that of `FIRST`.
                let index = i64::try_from(index.0).unwrap_or(i64::MAX).min(i64::MAX + RANK_OF_FRONT);
                QueueRank(RANK_OF_FRONT - index)
            }
            None => QueueRank(nice.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_moved_to_the_front_last_goes_first_and_nice_values_follow() {
        let moved = |index| QueueRank::new(100, Some(LogIndex(index)));
        assert!(moved(8) < moved(7) && moved(0) < QueueRank::new(-100, None));
        assert!(
            QueueRank::new(-1, None) < QueueRank::default() && QueueRank::default() < QueueRank::new(1, None)
        );
        assert!(QueueRank::FIRST < moved(u64::MAX) && QueueRank::new(100, None) < QueueRank::LAST);
        assert_eq!(QueueRank::new(0, None), QueueRank::default());
    }

    #[test]
    fn urgent_positions_come_before_ordinary_ones() {
        let late = QueueKey::urgent(LogTime(u64::MAX));
        assert!(QueueKey::urgent(LogTime(5)) < QueueKey::urgent(LogTime(6)));
        assert!(late < QueueKey::ordinary(0) && QueueKey::ordinary(0) < QueueKey::ordinary(1));
        assert_eq!((late.work(), QueueKey::ordinary(7).work()), (None, Some(7)));
        assert_eq!(QueueKey::ordinary(u64::MAX), QueueKey::LAST);
        assert_eq!(QueueKey::ordinary(0).before(), Some(late));
        assert_eq!((QueueKey::FIRST.before(), QueueKey::default()), (None, QueueKey::FIRST));
    }
}
