//! Positions of waiting jobs among those of their tier and tenant.

use core::fmt;
use serde::{Deserialize, Serialize};

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

#[cfg(test)]
mod tests {
    use super::*;

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
