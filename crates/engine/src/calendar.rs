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
use muster_types::{BookingRule, CronExpression, ListedWindows, LogTime};
use std::sync::LazyLock;

/// Years that are looked at for the next moment: the 29 February is the same day of the week again within 28, and around 2100 within 40.
const YEARS_MAX: i16 = 41;
/// Days that are looked at for the last moment.
const DAYS_MAX: usize = 8 * 366 + 2;

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A cron expression in its zone.
#[derive(Clone, Debug)]
pub struct Calendar<'a> {
    cron: &'a CronExpression,
    /// Of every day that it names, in ascending order.
    times: Vec<(u32, u32)>,
    zone: TimeZone,
}

/// Whether there is a time zone of this name.
#[must_use]
pub fn is_zone(name: &str) -> bool {
    ZONES.get(name).is_ok()
}

/// The first moments of the next windows that follow a rule, from a time on, in minutes of log time; fewer than were asked for where
/// the calendar ends. None where this program knows no such zone.
#[must_use]
pub fn windows_of(rule: &BookingRule, from: LogTime, count: u16) -> Option<Vec<u32>> {
    let cron = rule.cron()?;
    let calendar = Calendar::new(&cron, &rule.zone)?;
    // A window may begin at the time itself.
    let mut behind = from.minus_ms(1);
    let mut found = Vec::with_capacity(usize::from(count));
    while found.len() < usize::from(count) {
        let Some(start) = calendar.after(behind) else { break };
        let Some(minute) = ListedWindows::minute(start) else { break };
        found.push(minute);
        behind = start;
    }
    Some(found)
}

impl<'a> Calendar<'a> {
    /// None where this program knows no such zone.
    #[must_use]
    pub fn new(cron: &'a CronExpression, zone: &str) -> Option<Calendar<'a>> {
        Some(Calendar { cron, times: cron.times().collect(), zone: ZONES.get(zone).ok()? })
    }

    /// The first moment after a time; none where no time of the calendar is left.
    #[must_use]
    pub fn after(&self, time: LogTime) -> Option<LogTime> {
        let after = timestamp(time)?;
        // A time of the day before may have been moved to this one.
        let mut date = self.zone.to_datetime(after).date().yesterday().ok()?;
        let last_year = date.year().saturating_add(YEARS_MAX);
        while date.year() <= last_year {
            if !self.cron.names_month(number(date.month())) {
                date = date.last_of_month().tomorrow().ok()?;
                continue;
            }
            if self.names(date)
                && let Some(found) = self.first_after(date, after)
            {
                return log_time(found);
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
                && let Some(found) = self.last_until(date, to)
            {
                return if found >= from { log_time(found) } else { None };
            }
            date = date.yesterday().ok()?;
        }
        None
    }

    fn names(&self, date: Date) -> bool {
        let weekday = number(date.weekday().to_sunday_zero_offset());
        self.cron.names_day(number(date.month()), number(date.day()), weekday)
    }

    /// The first moment of a day after another. A day can have 1,440, so they are searched by halves: they ascend.
    fn first_after(&self, date: Date, after: Timestamp) -> Option<Timestamp> {
        let is_before = |time: &(u32, u32)| self.at(date, *time).is_some_and(|moment| moment <= after);
        let place = self.times.partition_point(is_before);
        self.at(date, *self.times.get(place)?)
    }

    /// The last moment of a day up to another.
    fn last_until(&self, date: Date, until: Timestamp) -> Option<Timestamp> {
        let is_before = |time: &(u32, u32)| self.at(date, *time).is_some_and(|moment| moment <= until);
        let place = self.times.partition_point(is_before);
        self.at(date, *self.times.get(place.checked_sub(1)?)?)
    }

    /// The moment of a time of a day.
    fn at(&self, date: Date, (hour, minute): (u32, u32)) -> Option<Timestamp> {
        // Within a day, by the fields that they are of.
        let (hour, minute) = (i8::try_from(hour).ok()?, i8::try_from(minute).ok()?);
        self.moment(date.at(hour, minute, 0, 0))
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

fn number(value: i8) -> u32 {
    u32::try_from(value).unwrap_or(0)
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
    fn windows_of_a_rule_begin_at_their_local_time() {
        let rule = |weekdays: &str, minute| BookingRule {
            weekdays: weekdays.parse().unwrap(),
            minute,
            zone: "Europe/Berlin".to_owned(),
        };
        let starts = |rule: &BookingRule, from: &str, count| -> Vec<String> {
            let found = ListedWindows {
                rule: rule.clone(),
                start_minutes: windows_of(rule, time(from), count).unwrap(),
            };
            (0..count).map(|number| found.start(number).unwrap().to_string()).collect()
        };
        // Over the weekend on which clocks are set forward.
        assert_eq!(
            starts(&rule("mon-fri", 9 * 60), "2026-03-27T08:00:00Z", 3),
            ["2026-03-27T08:00:00Z", "2026-03-30T07:00:00Z", "2026-03-31T07:00:00Z"],
            "a window may begin at the time itself"
        );
        assert_eq!(
            starts(&rule("daily", 150), "2026-03-28T00:00:00Z", 3),
            ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"],
            "a time that is skipped is the first moment after the gap"
        );
        assert_eq!(
            starts(&rule("sat,sun", 150), "2026-10-24T00:00:00Z", 3),
            ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-31T01:30:00Z"],
            "one that comes twice is the first of the two"
        );
        let nowhere = BookingRule { zone: "Europe/Nowhere".to_owned(), ..rule("daily", 0) };
        assert_eq!(windows_of(&nowhere, LogTime(0), 1), None);
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
    fn years_end_and_the_south_has_its_winter_in_july() {
        assert_eq!(
            moments("59 23 31 12 *", "Pacific/Auckland", "2026-12-31T10:58:00Z", 2),
            ["2026-12-31T10:59:00Z", "2027-12-31T10:59:00Z"]
        );
        // Auckland goes from UTC+13 to UTC+12 at 3:00 on 5 April 2026, and back at 2:00 on 27 September.
        assert_eq!(
            moments("30 2 * * *", "Pacific/Auckland", "2026-04-03T13:30:00Z", 2),
            ["2026-04-04T13:30:00Z", "2026-04-05T14:30:00Z"]
        );
        assert_eq!(
            moments("30 2 * * *", "Pacific/Auckland", "2026-09-25T14:30:00Z", 2),
            ["2026-09-26T14:00:00Z", "2026-09-27T13:30:00Z"]
        );
        assert_eq!(
            moments("0 0 */7 * *", "UTC", "2028-02-28T00:00:00Z", 3),
            ["2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z", "2028-03-08T00:00:00Z"]
        );
    }

    #[test]
    fn rare_days_are_found_and_zones_that_are_none_are_not() {
        assert_eq!(moments("0 0 29 2 *", "UTC", "2096-02-29T00:00:00Z", 1), ["2104-02-29T00:00:00Z"]);
        // A Sunday that is the 29 February: 28 years apart, and 40 where 2100 lies between.
        assert_eq!(
            moments("0 0 29 2 */7", "UTC", "2032-02-28T00:00:00Z", 4),
            ["2032-02-29T00:00:00Z", "2060-02-29T00:00:00Z", "2088-02-29T00:00:00Z", "2128-02-29T00:00:00Z"]
        );
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
