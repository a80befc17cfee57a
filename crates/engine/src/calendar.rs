//! Which moments a cron expression comes to in a time zone.
//!
//! This is the one place that knows zones. The leader asks it, and what it finds is recorded, so replicas with other versions of the
//! time zone database follow the same log. The database is part of the program: what is installed on a host has no effect.
//!
//! A local time that a zone has twice, when clocks are set back, is its first moment. One that a zone has not, when clocks are set
//! forward, is the first moment after the gap. So every local time comes to one moment, and later local times never to earlier moments; two
//! that come to the same one are due once.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use muster_types::{CronExpression, LogTime};
use std::sync::LazyLock;

/// Days that are looked at for the next moment. Without a day that is named again within eight years (the 29 February around 2100) there
/// is none at all.
const DAYS_MAX: usize = 8 * 366 + 2;

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A cron expression in its zone.
#[derive(Clone, Debug)]
pub struct Calendar<'a> {
    cron: &'a CronExpression,
    zone: TimeZone,
}

/// Whether there is a time zone of this name.
#[must_use]
pub fn is_zone(name: &str) -> bool {
    ZONES.get(name).is_ok()
}

impl<'a> Calendar<'a> {
    /// None where this program knows no such zone.
    #[must_use]
    pub fn new(cron: &'a CronExpression, zone: &str) -> Option<Calendar<'a>> {
        Some(Calendar { cron, zone: ZONES.get(zone).ok()? })
    }

    /// The first moment after a time; none where no time of the calendar is left.
    #[must_use]
    pub fn after(&self, time: LogTime) -> Option<LogTime> {
        let after = timestamp(time)?;
        // A time of the day before may have been moved to this one.
        let mut date = self.zone.to_datetime(after).date().yesterday().ok()?;
        for _ in 0..DAYS_MAX {
            if self.names(date) {
                let mut moments = self.moments(date);
                if let Some(found) = moments.find(|moment| *moment > after) {
                    return log_time(found);
                }
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    /// The last moment up to a time and not before another, both included; none where there is none.
    #[must_use]
    pub fn last_within(&self, from: LogTime, to: LogTime) -> Option<LogTime> {
        let (from, to) = (timestamp(from)?, timestamp(to)?);
        // A local time of the day after may come before.
        let mut date = self.zone.to_datetime(to).date().tomorrow().ok()?;
        let first = self.zone.to_datetime(from).date().yesterday().ok()?;
        for _ in 0..DAYS_MAX {
            if date < first {
                return None;
            }
            if self.names(date)
                && let Some(found) = self.moments(date).rev().find(|moment| *moment <= to)
            {
                return if found >= from { log_time(found) } else { None };
            }
            date = date.yesterday().ok()?;
        }
        None
    }

    fn names(&self, date: Date) -> bool {
        let number = |value: i8| u32::try_from(value).unwrap_or(0);
        let weekday = number(date.weekday().to_sunday_zero_offset());
        self.cron.names_day(number(date.month()), number(date.day()), weekday)
    }

    /// The moments of a day, in ascending order.
    fn moments(&self, date: Date) -> impl DoubleEndedIterator<Item = Timestamp> + '_ {
        let at = move |(hour, minute): (u32, u32)| {
            // Within a day, by the fields that they are of.
            let (hour, minute) = (i8::try_from(hour).ok()?, i8::try_from(minute).ok()?);
            self.moment(date.at(hour, minute, 0, 0))
        };
        self.cron.times().filter_map(at)
    }

    /// The moment of a local time.
    fn moment(&self, local: DateTime) -> Option<Timestamp> {
        match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
                offset.to_timestamp(local).ok()
            }
            AmbiguousOffset::Gap { after, .. } => {
                // By the offset after the gap it is a moment before it.
                let before = after.to_timestamp(local).ok()?;
                self.zone.following(before).next().map(|transition| transition.timestamp())
            }
        }
    }
}

fn timestamp(time: LogTime) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(time.0).ok()?).ok()
}

fn log_time(moment: Timestamp) -> Option<LogTime> {
    u64::try_from(moment.as_millisecond()).ok().map(LogTime)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> LogTime {
        log_time(text.parse().unwrap()).unwrap()
    }

    /// The moments after a time, in UTC.
    fn moments(cron: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let cron = cron.parse().unwrap();
        let calendar = Calendar::new(&cron, zone).unwrap();
        let mut at = time(after);
        (0..count)
            .map(|_| {
                at = calendar.after(at).unwrap();
                at.to_string()
            })
            .collect()
    }

    #[test]
    fn a_local_time_is_another_moment_in_summer() {
        // Fridays and Mondays around 29 March 2026, when Berlin goes from UTC+1 to UTC+2.
        assert_eq!(
            moments("0 6 * * 1-5", "Europe/Berlin", "2026-03-27T05:00:00Z", 2),
            ["2026-03-30T04:00:00Z", "2026-03-31T04:00:00Z"]
        );
        assert_eq!(
            moments("0 6 * * *", "UTC", "2026-12-31T06:00:00Z", 2),
            ["2027-01-01T06:00:00Z", "2027-01-02T06:00:00Z"]
        );
    }

    #[test]
    fn a_time_that_is_skipped_is_the_first_moment_after_the_gap_once() {
        assert_eq!(
            moments("30 2 * * *", "Europe/Berlin", "2026-03-28T01:30:00Z", 2),
            ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
        );
        assert_eq!(
            moments("*/20 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 4),
            ["2026-03-29T01:00:00Z", "2026-03-29T01:20:00Z", "2026-03-29T01:40:00Z", "2026-03-30T00:00:00Z"]
        );
        // A whole day: Samoa had no 30 December 2011.
        assert_eq!(
            moments("0 12 * * *", "Pacific/Apia", "2011-12-29T22:00:00Z", 2),
            ["2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"]
        );
    }

    #[test]
    fn a_time_that_comes_twice_is_its_first_moment() {
        assert_eq!(
            moments("30 2 * * *", "Europe/Berlin", "2026-10-24T00:30:00Z", 2),
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
        );
        // The second pass of the hour has none.
        assert_eq!(
            moments("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", 3),
            ["2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z", "2026-10-25T02:30:00Z"]
        );
    }

    #[test]
    fn rare_days_are_found_and_zones_that_are_none_are_not() {
        assert_eq!(moments("0 0 29 2 *", "UTC", "2096-02-29T00:00:00Z", 1), ["2104-02-29T00:00:00Z"]);
        let cron = "0 0 * * *".parse().unwrap();
        for bad in ["", "Europe/Nowhere", "../etc/passwd", "localtime"] {
            assert!(Calendar::new(&cron, bad).is_none() && !is_zone(bad), "{bad}");
        }
        assert!(is_zone("Asia/Kolkata"));
        assert_eq!(Calendar::new(&cron, "UTC").unwrap().after(LogTime(u64::MAX)), None);
    }

    #[test]
    fn the_last_moment_is_that_behind_which_none_comes() {
        for (cron, zone) in
            [("*/20 * * * *", "Europe/Berlin"), ("30 2 * * *", "Australia/Lord_Howe"), ("0 12 * * 1", "UTC")]
        {
            let cron = cron.parse().unwrap();
            let calendar = Calendar::new(&cron, zone).unwrap();
            // A year with both changes of clocks, at odd times.
            let (start, year_ms) = (time("2026-01-01T00:00:00Z"), 366 * 24 * 3_600_000u64);
            for step in (0..year_ms).step_by(7_777_777) {
                let now = start.plus_ms(step);
                let from = now.minus_ms(40 * 60_000);
                match calendar.last_within(from, now) {
                    Some(last) => {
                        assert!((from..=now).contains(&last));
                        assert!(calendar.after(last).unwrap() > now);
                        assert_eq!(calendar.after(last.minus_ms(1)), Some(last));
                    }
                    None => assert!(calendar.after(from.minus_ms(1)).unwrap() > now),
                }
            }
        }
    }
}
