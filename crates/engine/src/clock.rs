//! The leader's clock: read once a round and stamped on it.

use muster_consensus::Ground;
use muster_planted::{Rule, breaks};
use muster_types::LogTime;
use std::time::Duration;
use tokio::time::Instant;

/// Wall-clock time for the next round. A clock before 1970 reads as the epoch; the speculation never
/// lets log time go back.
pub(crate) fn now<G: Ground>() -> LogTime {
    LogTime(G::unix_ms())
}

/// The time of this host's monotonic clock.
pub(crate) fn instant<G: Ground>() -> Instant {
    Instant::from_std(G::instant())
}

/// How long until then; nothing once it is past.
pub(crate) fn until<G: Ground>(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(instant::<G>())
}

/// Log time under one leadership: the wall clock; and while that is behind what the log has said already,
/// because another leader's clock was ahead or this one was set back, half the pace of a monotonic clock.
///
/// Log time that stood still until the wall clock has caught up would hold up everything that waits for it
/// (retries, limits, releases) for as long as the clocks are apart. At half the pace waits take at most twice
/// as long, and the clocks come together in twice the time they are apart.
#[derive(Debug)]
pub struct LogClock {
    /// The last time that was taken from the wall clock, or the log's own at the begin.
    anchor: LogTime,
    /// When that was.
    read: Instant,
}

impl LogClock {
    /// Begins where the log is.
    #[must_use]
    pub fn new(log_time: LogTime, now: Instant) -> LogClock {
        LogClock { anchor: log_time, read: now }
    }

    /// The time for a round, by what the wall clock says now. Never goes back.
    pub fn at(&mut self, wall: LogTime, now: Instant) -> LogTime {
        let passed = now.saturating_duration_since(self.read).as_millis() / 2;
        let slewed = LogTime(self.anchor.0.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX)));
        if wall > slewed || breaks(Rule::WallClockOnly) {
            *self = LogClock { anchor: wall, read: now };
            return wall;
        }
        slewed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_time_goes_on_at_half_the_pace_until_the_wall_clock_has_caught_up() {
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        let mut clock = LogClock::new(LogTime(10_000), begun);
        let mut at = |wall, ms| clock.at(LogTime(wall), after(ms)).0;
        assert_eq!(at(7_000, 0), 10_000, "never back");
        assert_eq!(at(7_001, 1), 10_000);
        assert_eq!(at(8_000, 1_000), 10_500);
        assert_eq!(at(13_000, 6_000), 13_000, "together again");
        assert_eq!(at(14_000, 7_000), 14_000);
        assert_eq!(at(3_614_000, 7_000), 3_614_000, "a clock that is set forward is believed");
        assert_eq!(at(15_000, 8_000), 3_614_500, "and set back again holds nothing up");
    }

    #[test]
    fn asking_often_takes_nothing_away() {
        let begun = Instant::now();
        let mut clock = LogClock::new(LogTime(1_000), begun);
        let last = (0..=1_000).map(|ms| clock.at(LogTime(0), begun + Duration::from_millis(ms))).last();
        assert_eq!(last, Some(LogTime(1_500)));
    }
}
