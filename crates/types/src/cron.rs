//! Cron expressions of five fields: which minutes of the local calendar they name.
//!
//! An expression knows days and minutes of the day, and neither zones nor moments: what a local time comes to is found outside of
//! the pure crates, and recorded.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits;
use crate::reason::Violation;

/// What a cron expression must look like; shown to users.
pub const CRON_RULE: &str = "must be five fields, minute hour day-of-month month day-of-week, each `*`, numbers, ranges like 1-5, steps like */15 \
     or 0-30/10, or lists of these with commas; months and days of the week also by their first three letters; or one of @hourly, \
     @daily, @weekly, @monthly and @yearly";

/// A field: its least and its largest number, and its names from the least on.
struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

const FIELDS: [Field; 5] = [
    Field { name: "minute", min: 0, max: 59, names: &[] },
    Field { name: "hour", min: 0, max: 23, names: &[] },
    Field { name: "day of the month", min: 1, max: 31, names: &[] },
    Field { name: "month", min: 1, max: 12, names: &MONTHS },
    // Sunday is 0 and 7.
    Field { name: "day of the week", min: 0, max: 7, names: &WEEKDAYS },
];

/// The longest that each month can be.
const MONTH_DAYS: [u32; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// Which minutes of the local calendar something is due. There is no other way to make one than to read a text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CronExpression {
    text: String,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether a day has to be right by both its fields: one of them begins with a star. Else one of them is enough.
    both_days: bool,
}

impl CronExpression {
    /// The five fields, with one space between them.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether something is due on a day: `month` from 1, `day` of the month from 1, `weekday` from 0 for Sunday. Where neither
    /// field of days begins with a star, one of the two is enough.
    #[must_use]
    pub fn names_day(&self, month: u32, day: u32, weekday: u32) -> bool {
        let (of_month, of_week) = (has(self.days, day), has(self.weekdays, weekday));
        self.names_month(month) && if self.both_days { of_month && of_week } else { of_month || of_week }
    }

    /// Whether something can be due in a month, from 1.
    #[must_use]
    pub fn names_month(&self, month: u32) -> bool {
        has(self.months, month)
    }

    /// The hours and minutes at which something is due on such a day, in ascending order.
    pub fn times(&self) -> impl DoubleEndedIterator<Item = (u32, u32)> + use<> {
        let (hours, minutes) = (self.hours, self.minutes);
        let of_hour =
            move |hour| (0..60).filter(move |at| has(minutes, *at)).map(move |minute| (hour, minute));
        (0..24).filter(move |hour| has(hours, *hour)).flat_map(of_hour)
    }

    /// Whether there is a day that it names, in some year.
    fn is_possible(&self) -> bool {
        if !self.both_days {
            return true;
        }
        (1..=12).filter(|month| has(self.months, *month)).any(|month| {
            let days = MONTH_DAYS.get(month as usize - 1).copied().unwrap_or(31);
            (1..=days).any(|day| has(self.days, day))
        })
    }
}

fn has(set: u64, number: u32) -> bool {
    number < u64::BITS && set & (1 << number) != 0
}

impl FromStr for CronExpression {
    type Err = Violation;

    /// # Errors
    /// What is wrong with it, for the field `cron`.
    fn from_str(text: &str) -> Result<CronExpression, Violation> {
        let wrong = |what: String| Violation::new("cron", format!("{what}; {CRON_RULE}"));
        if text.len() > limits::CRON_BYTES_MAX {
            let max = limits::CRON_BYTES_MAX;
            return Err(Violation::new("cron", format!("must be at most {max} bytes, got {}", text.len())));
        }
        let text = match text.trim() {
            "@hourly" => "0 * * * *",
            "@daily" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" => "0 0 1 1 *",
            text => text,
        };
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let [minute, hour, day, month, weekday] = words.as_slice() else {
            return Err(wrong(format!("has {} fields", words.len())));
        };
        let mut sets = [0u64; 5];
        for ((set, field), word) in sets.iter_mut().zip(&FIELDS).zip([minute, hour, day, month, weekday]) {
            *set = numbers(field, word).map_err(wrong)?;
        }
        let [minutes, hours, days, months, weekdays] = sets;
        let weekdays = if has(weekdays, 7) { weekdays | 1 } else { weekdays };
        let read = CronExpression {
            text: words.join(" "),
            minutes,
            hours,
            days,
            months,
            weekdays,
            both_days: day.starts_with('*') || weekday.starts_with('*'),
        };
        if read.is_possible() {
            Ok(read)
        } else {
            Err(Violation::new("cron", "names no day that there is: no month that it names has such a day"))
        }
    }
}

/// The numbers that a field names, as bits.
fn numbers(field: &Field, text: &str) -> Result<u64, String> {
    text.split(',').try_fold(0, |set, part| Ok(set | range(field, part)?))
}

fn range(field: &Field, text: &str) -> Result<u64, String> {
    let (name, min, max) = (field.name, field.min, field.max);
    let (span, step) = match text.split_once('/') {
        Some((span, step)) => {
            let step = plain(step).filter(|step| (1..=max).contains(step));
            (span, Some(step.ok_or_else(|| format!("{name}: {text:?} has no step from 1 to {max}"))?))
        }
        None => (text, None),
    };
    let one = |word: &str| {
        let found = plain(word).or_else(|| named(field, word)).filter(|number| (min..=max).contains(number));
        found.ok_or_else(|| format!("{name}: {word:?} is not from {min} to {max}"))
    };
    let (first, last) = match span.split_once('-') {
        _ if span == "*" => (min, if field.names.len() == WEEKDAYS.len() { 6 } else { max }),
        Some((first, last)) => (one(first)?, one(last)?),
        // As a range to the end, where there is a step.
        None => {
            let first = one(span)?;
            (first, if step.is_some() { max } else { first })
        }
    };
    if first > last {
        return Err(format!("{name}: {text:?} ends before it begins"));
    }
    Ok((first..=last).step_by(step.unwrap_or(1) as usize).fold(0, |set, number| set | 1 << number))
}

fn plain(text: &str) -> Option<u32> {
    let is_plain = !text.is_empty() && text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

fn named(field: &Field, text: &str) -> Option<u32> {
    let place = field.names.iter().position(|name| name.eq_ignore_ascii_case(text))?;
    u32::try_from(place).ok().map(|place| field.min + place)
}

impl fmt::Display for CronExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl Serialize for CronExpression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for CronExpression {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let read: CronExpression =
            text.parse().map_err(|error: Violation| D::Error::custom(error.description))?;
        // One text for each, so that what was written is what is written again.
        if read.text == text {
            Ok(read)
        } else {
            Err(D::Error::custom("it is not in its plain form".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn read(text: &str) -> CronExpression {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn times(text: &str) -> Vec<(u32, u32)> {
        read(text).times().collect()
    }

    #[test]
    fn fields_are_numbers_ranges_steps_lists_and_names() {
        assert_eq!(times("30 6,18 * * *"), [(6, 30), (18, 30)]);
        assert_eq!(times("*/20 1-2 * * *"), [(1, 0), (1, 20), (1, 40), (2, 0), (2, 20), (2, 40)]);
        assert_eq!(times("50/5 0 * * *"), [(0, 50), (0, 55)]);
        assert_eq!(times("* * * * *").len(), 1_440);
        assert_eq!(read("0 0 * JAN-mar sun").as_str(), "0 0 * JAN-mar sun");
        for month in 1..=12 {
            assert_eq!(read("0 0 * jan-MAR *").names_day(month, 1, 3), month <= 3, "{month}");
        }
        for (text, same) in
            [("@weekly", "0 0 * * 7"), ("@monthly", "0  0 1 *\t*"), ("@yearly", "0 0 1 jan *")]
        {
            for (month, day, weekday) in [(1, 1, 0), (1, 1, 3), (2, 1, 0), (2, 1, 5), (3, 4, 0), (3, 4, 6)] {
                let by = |text| read(text).names_day(month, day, weekday);
                assert_eq!(by(text), by(same), "{text} {month} {day} {weekday}");
            }
            assert_eq!(times(text), times(same));
        }
    }

    #[test]
    fn days_are_right_by_both_fields_where_one_begins_with_a_star_and_else_by_one() {
        let both = read("0 0 13 * *");
        assert!(both.names_day(5, 13, 2) && !both.names_day(5, 12, 2));
        let one = read("0 0 13 * fri");
        assert!(one.names_day(5, 13, 2) && one.names_day(5, 1, 5) && !one.names_day(5, 1, 4));
        let odd = read("0 0 */2 * fri");
        assert!(odd.names_day(5, 1, 5) && !odd.names_day(5, 2, 5) && !odd.names_day(5, 1, 4));
        assert!(read("0 0 * * 7").names_day(1, 1, 0) && read("0 0 * * 5-7").names_day(1, 1, 0));
        assert!(!read("0 0 * * */2").names_day(1, 1, 1));
    }

    #[test]
    fn what_is_none_is_refused_with_the_field() {
        for (text, part) in [
            ("", "has 0 fields"),
            ("* * * *", "has 4 fields"),
            ("* * * * * *", "has 6 fields"),
            ("60 * * * *", "minute"),
            ("* 24 * * *", "hour"),
            ("* * 0 * *", "day of the month"),
            ("* * * 13 *", "month"),
            ("* * * * 8", "day of the week"),
            ("*/0 * * * *", "has no step"),
            ("5-1 * * * *", "ends before it begins"),
            ("1,,2 * * * *", "minute"),
            ("-1 * * * *", "minute"),
            ("+1 * * * *", "minute"),
            ("001 * * * *", "minute"),
            ("mon * * * *", "minute"),
            ("@often", "has 1 fields"),
            ("0 0 30 2 *", "names no day"),
            ("0 0 31 4,6,9,11 *", "names no day"),
        ] {
            let error = text.parse::<CronExpression>().expect_err(text);
            assert_eq!(error.field, "cron");
            assert!(error.description.contains(part), "{text}: {error}");
        }
        let long = "1,".repeat(limits::CRON_BYTES_MAX);
        assert!(long.parse::<CronExpression>().is_err());
        assert!(read("0 0 29 2 *").names_day(2, 29, 4));
        assert!(read("0 0 30 2 mon").names_day(2, 3, 1));
        assert!(read("0 0 * feb *").names_month(2) && !read("0 0 * feb *").names_month(3));
        assert_eq!(read(" 1  2 3\t4 5 ").to_string(), "1 2 3 4 5");
    }
}
