//! The leader's clock: read once a round and stamped on it.

use muster_consensus::Environment;
use muster_decider::Steady;
use muster_planted::{Rule, breaks};
use muster_types::LogTime;
use std::time::Duration;
use tokio::time::Instant;

/// A wall clock that is further ahead than this is believed only when those of a quorum say the same. An ordinary change
/// of leader takes seconds.
const STEP_MAX: Duration = Duration::from_secs(60);
/// How often a quorum's clocks are looked at while this one is not believed.
const LOOKS_APART: Duration = Duration::from_millis(100);

/// Wall-clock time for the next round. A clock before 1970 reads as the epoch; the speculation never
/// lets log time go back.
pub(crate) fn now<G: Environment>() -> LogTime {
    LogTime(G::unix_ms())
}

/// The time of this host's monotonic clock.
pub(crate) fn instant<G: Environment>() -> Instant {
    Instant::from_std(G::instant())
}

/// How long until then; nothing once it is past.
pub(crate) fn until<G: Environment>(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(instant::<G>())
}

/// Log time under one leadership: the wall clock, as far as a monotonic clock bears it out.
///
/// Behind what the log has said already, because another leader's clock was ahead or this one was set back, log time
/// goes at half the pace of the monotonic clock. If it stood still, everything that waits for it (retries, limits,
/// releases) would be held up for as long as the clocks are apart.
///
/// Where the wall clock is ahead, log time goes at most a tenth faster than the monotonic clock, so that a run limit or
/// a wait is never cut by more than that. Two steps are taken: at the beginning of a leadership up to [`STEP_MAX`], which
/// is the time between two leaders; and a longer one when the clocks of a quorum agree with this one, which is a cluster
/// that stood still.
#[derive(Debug)]
pub struct LogClock {
    /// The last time that was taken from the wall clock, or the log's own at the begin.
    anchor: LogTime,
    /// When that was.
    read: Instant,
    /// Log time before the last step.
    since: LogTime,
    /// When the last step was taken.
    stepped: Instant,
    /// Whether the wall clock was read before.
    has_begun: bool,
    /// When a quorum's clocks are looked at again.
    next_look: Instant,
}

impl LogClock {
    /// Begins where the log is; `LogTime(0)` is a log that has no time yet, which takes any.
    #[must_use]
    pub fn new(log_time: LogTime, now: Instant) -> LogClock {
        LogClock {
            anchor: log_time,
            read: now,
            since: log_time,
            stepped: now,
            has_begun: false,
            next_look: now,
        }
    }

    /// The time for a round, by what the wall clock says now. Never goes back. `agrees` tells whether the clocks of a
    /// quorum say the same; it is asked only where that matters.
    pub fn at(&mut self, wall: LogTime, now: Instant, agrees: impl FnOnce() -> bool) -> LogTime {
        let begins = !std::mem::replace(&mut self.has_begun, true);
        let passed = u64::try_from(now.saturating_duration_since(self.read).as_micros()).unwrap_or(u64::MAX);
        let slowest = self.anchor.plus_ms(passed / 2_000);
        let fastest = self.anchor.plus_ms(passed.saturating_add(passed / 10) / 1_000);
        if wall <= slowest && !breaks(Rule::WallClockOnly) {
            return slowest;
        }
        let is_first = begins && self.anchor == LogTime(0);
        if is_first {
            self.since = wall;
        }
        let ahead = Duration::from_millis(wall.since_ms(fastest));
        let is_borne_out = wall <= fastest || is_first || (begins && ahead <= STEP_MAX);
        if !is_borne_out && !breaks(Rule::WallClockOnly) {
            if ahead <= STEP_MAX || now < self.next_look {
                return fastest;
            }
            self.next_look = now + LOOKS_APART;
            if !agrees() {
                return fastest;
            }
            self.since = fastest;
            self.stepped = now;
        }
        self.anchor = wall;
        self.read = now;
        wall
    }

    /// How long log time has gone without a step.
    #[must_use]
    pub fn steady(&self, now: Instant) -> Steady {
        let for_ms = now.saturating_duration_since(self.stepped).as_millis();
        Steady { since: self.since, for_ms: u64::try_from(for_ms).unwrap_or(u64::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3_600_000;

    #[test]
    fn log_time_goes_on_at_half_the_pace_until_the_wall_clock_has_caught_up() {
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        let mut clock = LogClock::new(LogTime(10_000), begun);
        let mut at = |wall, ms| clock.at(LogTime(wall), after(ms), || false).0;
        assert_eq!(at(7_000, 0), 10_000, "never back");
        assert_eq!(at(7_001, 1), 10_000);
        assert_eq!(at(8_000, 1_000), 10_500);
        assert_eq!(at(13_000, 6_000), 13_000, "together again");
        assert_eq!(at(14_000, 7_000), 14_000);
    }

    #[test]
    fn asking_often_takes_nothing_away() {
        let begun = Instant::now();
        let times = |wall: fn(u64) -> u64| {
            let mut clock = LogClock::new(LogTime(1_000), begun);
            clock.at(LogTime(1_000), begun, || false);
            let at = |ms| clock.at(LogTime(wall(ms)), begun + Duration::from_millis(ms), || false);
            (1..=1_000).map(at).last()
        };
        assert_eq!(times(|_| 0), Some(LogTime(1_500)));
        assert_eq!(times(|_| 900_000), Some(LogTime(2_100)));
        assert_eq!(times(|ms| 1_000 + ms), Some(LogTime(2_000)));
    }

    #[test]
    fn a_step_within_a_leadership_is_bounded_by_the_monotonic_clock() {
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        let mut clock = LogClock::new(LogTime(10_000), begun);
        let mut at = |wall, ms, agrees| clock.at(LogTime(wall), after(ms), || agrees).0;
        assert_eq!(at(12_000, 0, false), 12_000, "the time between two leaders");
        assert_eq!(at(13_000, 1_000, false), 13_000);
        assert_eq!(at(13_000 + 2 * DAY, 1_000, false), 13_000, "set forward by two days");
        assert_eq!(at(13_000 + 2 * DAY, 11_000, false), 24_000, "a tenth faster, no more");
        assert_eq!(at(43_000, 11_200, true), 24_220, "and less than a minute is not asked about");
        assert_eq!(at(24_300, 11_300, false), 24_300, "set right again");
        assert_eq!(at(2 * DAY, 12_000, true), 2 * DAY, "a quorum's clocks say the same");
        assert_eq!(clock.steady(after(13_000)), Steady { since: LogTime(25_070), for_ms: 1_000 });
    }

    #[test]
    fn a_leader_that_begins_with_a_wrong_clock_is_not_believed() {
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        let begin = |wall, agrees| LogClock::new(LogTime(DAY), begun).at(LogTime(wall), begun, || agrees).0;
        assert_eq!(begin(3 * DAY, false), DAY);
        assert_eq!(begin(3 * DAY, true), 3 * DAY, "the whole cluster stood still");
        assert_eq!(begin(DAY + 59_000, false), DAY + 59_000);
        assert_eq!(begin(DAY + 61_000, false), DAY);
        let mut late = LogClock::new(LogTime(DAY), begun);
        assert_eq!(late.at(LogTime(3 * DAY), begun, || false), LogTime(DAY));
        assert_eq!(
            late.at(LogTime(3 * DAY), after(2_000), || true),
            LogTime(3 * DAY),
            "once the others are heard"
        );
        let mut first = LogClock::new(LogTime(0), begun);
        assert_eq!(
            first.at(LogTime(3 * DAY), begun, || false),
            LogTime(3 * DAY),
            "a new cluster has no time yet"
        );
        assert_eq!(first.steady(begun), Steady { since: LogTime(3 * DAY), for_ms: 0 });
    }
}
