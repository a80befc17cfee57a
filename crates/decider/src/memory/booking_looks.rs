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
    pub(crate) is_cut: bool,
}

impl BookingLooks {
    /// Whether it is time to look again.
    pub(crate) fn is_due(self, now: LogTime) -> bool {
        self.is_cut || self.began.is_none_or(|began| now.since_ms(began) >= AGAIN_MS)
    }

    /// After a look.
    pub(crate) fn at(now: LogTime, is_cut: bool) -> BookingLooks {
        BookingLooks { began: Some(now), is_cut }
    }
}
