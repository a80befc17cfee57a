//! Days, the span of time that is charged, and what is kept apart.

use alloc::vec::Vec;
use muster_types::LogTime;
use serde::{Deserialize, Serialize};

/// The length of a day in milliseconds. Days begin at midnight UTC, and a leap second belongs to the day that it ends.
pub const DAY_MS: u64 = 86_400_000;

/// How many days may pass between two records. A log in which more pass was not written by a leader, and is refused.
pub const DAYS_BETWEEN_RECORDS_MAX: u64 = 3_660;

/// The span that is charged: what happened before and after it is followed, and not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Its beginning, as log time in milliseconds; what happens at this moment is in it.
    pub from: LogTime,
    /// Its end, which is not in it; none for the end of the log.
    pub until: Option<LogTime>,
}

/// What a ledger keeps apart beyond days, owners, types, regions and purchases. Nothing of it changes what is charged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detail {
    /// Moments at which a new period begins. The periods are counted from zero, which is the one before the first moment.
    pub cuts: Vec<LogTime>,
    /// Whether each job is kept apart. This takes a row for each job, day and state, which nothing bounds.
    pub jobs: bool,
}

impl Detail {
    /// In order, and each moment once.
    pub(crate) fn sorted(mut self) -> Detail {
        self.cuts.sort_unstable();
        self.cuts.dedup();
        self
    }
}

impl Window {
    /// The part of a span that is charged.
    pub(crate) fn clip(&self, from: LogTime, until: LogTime) -> (LogTime, LogTime) {
        let until = self.until.map_or(until, |end| until.min(end));
        (from.max(self.from), until)
    }

    /// The part of a span that is charged, day by day: the day since the epoch and the milliseconds.
    pub(crate) fn days(&self, from: LogTime, until: LogTime) -> impl Iterator<Item = (u32, u64)> + use<> {
        self.slices(&[], from, until).map(|slice| (slice.day, slice.ms))
    }

    /// The same, cut at these moments too, which are in order.
    pub(crate) fn slices<'a>(&self, cuts: &'a [LogTime], from: LogTime, until: LogTime) -> Slices<'a> {
        let (from, until) = self.clip(from, until);
        Slices { cuts, next: from.0, end: until.0 }
    }
}

/// A part of a span within one day and one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) day: u32,
    pub(crate) period: u32,
    pub(crate) ms: u64,
}

/// A span, slice by slice.
pub(crate) struct Slices<'a> {
    cuts: &'a [LogTime],
    next: u64,
    end: u64,
}

impl Iterator for Slices<'_> {
    type Item = Slice;

    fn next(&mut self) -> Option<Slice> {
        if self.next >= self.end {
            return None;
        }
        let day = self.next / DAY_MS;
        // The last day of all may be cut short.
        let midnight = (day + 1).saturating_mul(DAY_MS);
        let period = self.cuts.partition_point(|cut| cut.0 <= self.next);
        let cut = self.cuts.get(period).map_or(u64::MAX, |cut| cut.0);
        let stop = self.end.min(midnight).min(cut);
        let ms = stop - self.next;
        self.next = stop;
        Some(Slice { day: day_number(day), period: u32::try_from(period).unwrap_or(u32::MAX), ms })
    }
}

/// The number of a day; [`may_follow`] has refused later ones.
fn day_number(day: u64) -> u32 {
    u32::try_from(day).unwrap_or(u32::MAX)
}

/// Whether a record may come that long after another one.
pub(crate) fn may_follow(before: LogTime, now: LogTime) -> bool {
    let days = (now.0 / DAY_MS).saturating_sub(before.0 / DAY_MS);
    days <= DAYS_BETWEEN_RECORDS_MAX && now.0 / DAY_MS < u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn spans_are_cut_at_midnight_and_at_the_ends_of_the_window() {
        let window = Window { from: LogTime(DAY_MS - 10), until: Some(LogTime(3 * DAY_MS)) };
        let days: Vec<_> = window.days(LogTime(5), LogTime(9 * DAY_MS)).collect();
        assert_eq!(days, vec![(0, 10), (1, DAY_MS), (2, DAY_MS)]);
        assert_eq!(window.days(LogTime(0), LogTime(7)).count(), 0);
        assert_eq!(Window::default().days(LogTime(7), LogTime(7)).count(), 0);
        let all: u64 =
            Window::default().days(LogTime(u64::MAX - 5), LogTime(u64::MAX)).map(|(_, ms)| ms).sum();
        assert_eq!(all, 5);
    }

    #[test]
    fn a_period_begins_at_its_cut_and_not_before() {
        let cuts = [LogTime(10), LogTime(DAY_MS)];
        let slices = Window::default().slices(&cuts, LogTime(9), LogTime(DAY_MS + 5));
        let slices: Vec<_> = slices.map(|slice| (slice.day, slice.period, slice.ms)).collect();
        assert_eq!(slices, vec![(0, 0, 1), (0, 1, DAY_MS - 10), (1, 2, 5)]);
        let at_cut: Vec<_> = Window::default().slices(&cuts, LogTime(10), LogTime(11)).collect();
        assert_eq!(at_cut, vec![Slice { day: 0, period: 1, ms: 1 }]);
    }

    #[test]
    fn records_that_are_too_far_apart_are_refused() {
        assert!(may_follow(LogTime(0), LogTime(DAYS_BETWEEN_RECORDS_MAX * DAY_MS)));
        assert!(!may_follow(LogTime(0), LogTime((DAYS_BETWEEN_RECORDS_MAX + 1) * DAY_MS)));
        assert!(!may_follow(LogTime(u64::MAX), LogTime(u64::MAX)));
    }
}
