//! Log time keeps pace with the monotonic clock of the leader that stamps it.
//!
//! Under one leadership log time goes at half the pace at least, whatever the leader's wall clock says, and at most a
//! tenth faster. Longer steps are for the beginning of a leadership, and for a cluster whose clocks agree on one.

use muster_types::LogTime;
use std::collections::BTreeMap;

/// From a round's time to its entry in the log, with whatever holds that up.
const DELAY_MS_MAX: u64 = 4_000;
/// The step that a leader may take when it begins.
const STEP_MS_MAX: u64 = 60_000;
/// The slower pace is looked at over so long.
const WINDOW_MS: u64 = 10_000;

/// Log time of one round, and when its leader appended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// By the leader's monotonic clock.
    pub local_ms: u64,
    /// What the round says.
    pub log_time: LogTime,
    /// Whether the clock of another replica says the same: then a longer step may be right.
    pub is_borne_out: bool,
}

/// What has been seen of one leadership.
#[derive(Clone, Copy, Debug)]
struct Marks {
    first: Stamp,
    window: Stamp,
}

/// Log time under each leadership, by term and replica.
#[derive(Debug, Default)]
pub struct Pace(BTreeMap<(u64, u64), Marks>);

impl Pace {
    /// A round was appended by its leader. What is wrong with its time, if anything is.
    pub fn stamped(&mut self, leadership: (u64, u64), stamp: Stamp) -> Option<String> {
        let marks = self.0.entry(leadership).or_insert(Marks { first: stamp, window: stamp });
        let passed_ms = stamp.local_ms.saturating_sub(marks.first.local_ms);
        let log_ms = stamp.log_time.since_ms(marks.first.log_time);
        if log_ms > passed_ms + passed_ms / 10 + STEP_MS_MAX + DELAY_MS_MAX {
            *marks = Marks { first: stamp, window: stamp };
            return (!stamp.is_borne_out).then(|| {
                format!(
                    "log time ran ahead: {log_ms} ms passed in the log, {passed_ms} ms by its leader's clock"
                )
            });
        }
        let passed_ms = stamp.local_ms.saturating_sub(marks.window.local_ms);
        if passed_ms < WINDOW_MS {
            return None;
        }
        let log_ms = stamp.log_time.since_ms(marks.window.log_time);
        marks.window = stamp;
        (log_ms + DELAY_MS_MAX < passed_ms / 2).then(|| {
            format!("log time stood: {log_ms} ms passed in the log, {passed_ms} ms by its leader's clock")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(local_ms: u64, log_ms: u64) -> Stamp {
        Stamp { local_ms, log_time: LogTime(log_ms), is_borne_out: false }
    }

    /// The findings about a leadership that stamps rounds at these times.
    fn said(stamps: &[(u64, u64)]) -> Vec<String> {
        let mut pace = Pace::default();
        stamps.iter().filter_map(|(local, log)| pace.stamped((2, 1), stamp(*local, *log))).collect()
    }

    #[test]
    fn half_the_pace_and_a_tenth_more_are_right() {
        let times =
            |log_of: fn(u64) -> u64| (0..60).map(|s| (s * 1_000, log_of(s * 1_000))).collect::<Vec<_>>();
        assert_eq!(said(&times(|ms| ms)), [""; 0]);
        assert_eq!(said(&times(|ms| ms / 2)), [""; 0]);
        assert_eq!(said(&times(|ms| ms + ms / 10)), [""; 0]);
    }

    #[test]
    fn standing_and_running_ahead_are_found_in_whatever_leadership_they_come() {
        let stood: Vec<(u64, u64)> = (0..60).map(|s| (s * 1_000, 10_000.min(s * 1_000))).collect();
        assert!(said(&stood).iter().any(|text| text.contains("stood")), "{:?}", said(&stood));
        assert_eq!(said(&[(0, 0), (1_000, 3_600_000)]).len(), 1);
        let mut pace = Pace::default();
        assert_eq!(pace.stamped((2, 1), stamp(0, 0)), None);
        assert_eq!(pace.stamped((3, 2), stamp(0, 3_600_000)), None, "another leader's clock is another");
        let agreed = Stamp { is_borne_out: true, ..stamp(1_000, 3_600_000) };
        assert_eq!(pace.stamped((2, 1), agreed), None, "the clocks agree");
        assert_eq!(pace.stamped((2, 1), stamp(2_000, 3_601_000)), None, "and that is where it goes on from");
    }
}
