//! When bookings were last looked at.

use muster_types::LogTime;

/// Time from one look at the nodes of all bookings to the next, when nothing happens.
const AGAIN_MS: u64 = 10_000;

/// When bookings were last looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BookingLooks {
    /// When the last look began; none before the first.
    began: Option<LogTime>,
    /// Whether it ended before everything was looked at.
    is_cut: bool,
    /// The place among all bookings of the first whose nodes were not looked at.
    next: usize,
}

impl BookingLooks {
    /// Whether it is time to look again.
    pub(crate) fn is_due(self, now: LogTime) -> bool {
        self.is_cut || self.began.is_none_or(|began| now.since_ms(began) >= AGAIN_MS)
    }

    /// The place among all bookings where the next look at their nodes begins.
    pub(crate) fn next(self) -> usize {
        self.next
    }

    /// After a look at everything.
    pub(crate) fn whole(now: LogTime) -> BookingLooks {
        BookingLooks { began: Some(now), is_cut: false, next: 0 }
    }

    /// After one that was cut, of which the next look at nodes goes on from a place among the bookings.
    pub(crate) fn cut(now: LogTime, next: usize) -> BookingLooks {
        BookingLooks { began: Some(now), is_cut: true, next }
    }
}
