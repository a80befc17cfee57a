//! Bookings that recur as people say it: on days of the week, at a time of day in a time zone.
//!
//! No replica looks at a zone when it reads the log: the replica that answers the request finds the moments once, and the record has them.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

use crate::cron::CronExpression;
use crate::limits;
use crate::reason::Violation;
use crate::time::LogTime;

/// Milliseconds of a minute: every moment of a rule is a whole one.
const MINUTE_MS: u64 = 60_000;
/// Minutes of a day.
const DAY_MINUTES: u16 = 24 * 60;
/// From Monday to Sunday.
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Days of the week, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Weekdays(u8);

/// How days of the week are written.
pub const WEEKDAYS_RULE: &str = "must be days of the week such as `mon-fri`, `sat,sun` or `daily`";

impl Weekdays {
    /// Whether a day is among them, from 0 for Monday to 6 for Sunday.
    #[must_use]
    pub fn has(self, day: usize) -> bool {
        day < DAYS.len() && self.0 & (1u8 << day) != 0
    }

    /// Whether these are days of the week, and one at least. Bytes from a log can say anything.
    #[must_use]
    pub fn is_valid(self) -> bool {
        (1..1u8 << DAYS.len()).contains(&self.0)
    }
}

impl FromStr for Weekdays {
    type Err = &'static str;

    /// # Errors
    /// [`WEEKDAYS_RULE`].
    fn from_str(text: &str) -> Result<Weekdays, &'static str> {
        if text == "daily" {
            return Ok(Weekdays((1 << DAYS.len()) - 1));
        }
        let number = |day: &str| DAYS.iter().position(|known| *known == day).ok_or(WEEKDAYS_RULE);
        let mut days = 0u8;
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (mut day, last) = (number(first)?, number(last)?);
            // `fri-mon` goes over the end of the week.
            while day != last {
                days |= 1u8 << day;
                day = (day + 1) % DAYS.len();
            }
            days |= 1u8 << last;
        }
        Ok(Weekdays(days))
    }
}

impl fmt::Display for Weekdays {
    /// Days that follow one another are written as a range where they are three or more.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if (0..DAYS.len()).all(|day| self.has(day)) {
            return f.write_str("daily");
        }
        let (mut day, mut is_first) = (0, true);
        while day < DAYS.len() {
            let run = (day..DAYS.len()).take_while(|next| self.has(*next)).count();
            let (step, comma) = (run.max(1), if is_first { "" } else { "," });
            match run {
                0 => {}
                1 => write!(f, "{comma}{}", DAYS[day])?,
                2 => write!(f, "{comma}{},{}", DAYS[day], DAYS[day + 1])?,
                _ => write!(f, "{comma}{}-{}", DAYS[day], DAYS[day + run - 1])?,
            }
            is_first = is_first && run == 0;
            day += step;
        }
        Ok(())
    }
}

/// A time of day, in minutes from midnight, as in `09:00`.
#[must_use]
pub fn minute_of_day(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if !(1..=2).contains(&hour.len()) || minute.len() != 2 || !is_number(hour) || !is_number(minute) {
        return None;
    }
    let (hour, minute): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
    (hour < 24 && minute < 60).then_some(hour * 60 + minute)
}

/// On which days and at what local time windows begin.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BookingRule {
    /// On which days.
    pub weekdays: Weekdays,
    /// At which minute of the day.
    pub minute: u16,
    /// Where that local time is, by its name in the time zone database: `Europe/Berlin`, `UTC`.
    pub zone: String,
}

impl BookingRule {
    /// The time of day, as in `09:00`.
    #[must_use]
    pub fn time(&self) -> String {
        format!("{:02}:{:02}", self.minute / 60, self.minute % 60)
    }

    /// The same as a cron expression; none where it breaks a rule.
    #[must_use]
    pub fn cron(&self) -> Option<CronExpression> {
        // Cron counts from Sunday, here the week begins on Monday.
        let days = (0..DAYS.len()).filter(|day| self.weekdays.has(*day)).map(|day| (day + 1) % DAYS.len());
        let days: Vec<String> = days.map(|day| format!("{day}")).collect();
        format!("{} {} * * {}", self.minute % 60, self.minute / 60, days.join(",")).parse().ok()
    }

    fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        if !self.weekdays.is_valid() {
            found.push(Violation::new("rule.weekdays", WEEKDAYS_RULE));
        }
        if self.minute >= DAY_MINUTES {
            found.push(Violation::new("rule.time", "must be a time of day from 00:00 to 23:59"));
        }
        let is_zone = |byte: u8| byte.is_ascii_alphanumeric() || b"/_+-".contains(&byte);
        if self.zone.is_empty() || self.zone.len() > limits::ZONE_BYTES_MAX || !self.zone.bytes().all(is_zone)
        {
            let text = "must be the name of a time zone, like Europe/Berlin or UTC";
            found.push(Violation::new("rule.zone", text));
        }
        found
    }
}

impl fmt::Display for BookingRule {
    /// As in `mon-fri at 09:00 in Europe/Berlin`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} in {}", self.weekdays, self.time(), self.zone)
    }
}

/// Windows that follow a rule, each with its moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListedWindows {
    /// The rule, for people: nobody who reads a record follows it.
    pub rule: BookingRule,
    /// The first moment of each, in minutes of log time, ascending; empty until they are found.
    pub start_minutes: Vec<u32>,
}

impl ListedWindows {
    /// Windows that are not found yet.
    #[must_use]
    pub fn new(rule: BookingRule) -> ListedWindows {
        ListedWindows { rule, start_minutes: Vec::new() }
    }

    /// The first moment of a window.
    #[must_use]
    pub fn start(&self, number: u16) -> Option<LogTime> {
        self.start_minutes.get(usize::from(number)).map(|minute| LogTime(u64::from(*minute) * MINUTE_MS))
    }

    /// A moment as it is listed; none where it is no whole minute, which no zone has today.
    #[must_use]
    pub fn minute(start: LogTime) -> Option<u32> {
        start.0.is_multiple_of(MINUTE_MS).then(|| u32::try_from(start.0 / MINUTE_MS).ok()).flatten()
    }

    /// How many windows begin so early that they are over at a time, by their length.
    pub(crate) fn over_at(&self, now: LogTime, length_ms: u64) -> usize {
        let is_over = |minute: &u32| LogTime(u64::from(*minute) * MINUTE_MS).plus_ms(length_ms) <= now;
        self.start_minutes.partition_point(is_over)
    }

    /// Every rule that it breaks. Windows that are not found yet break none.
    pub(crate) fn violations(&self, windows: u16, length_ms: u64) -> Vec<Violation> {
        let mut found = self.rule.violations();
        if self.start_minutes.is_empty() {
            return found;
        }
        if self.start_minutes.len() != usize::from(windows) {
            let text = format!("must be {}, as many as there are moments", self.start_minutes.len());
            found.push(Violation::new("windows", text));
        }
        let meets = |pair: &[u32]| u64::from(pair[1].saturating_sub(pair[0])) * MINUTE_MS < length_ms;
        if let Some(place) = self.start_minutes.windows(2).position(|pair| pair[0] >= pair[1] || meets(pair))
        {
            let start = |place: usize| u16::try_from(place).ok().and_then(|number| self.start(number));
            let [first, next] = [start(place), start(place + 1)].map(Option::unwrap_or_default);
            let text = format!(
                "must be less: the window from {first} would not be over at {next}, when the next begins"
            );
            found.push(Violation::new("length", text));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    #[test]
    fn days_of_the_week_are_read_and_written() {
        for (text, written) in [
            ("mon-fri", "mon-fri"),
            ("mon,tue", "mon,tue"),
            ("sun", "sun"),
            ("fri-mon", "mon,fri-sun"),
            ("wed,mon", "mon,wed"),
            ("mon-sun", "daily"),
            ("daily", "daily"),
        ] {
            let days: Weekdays = text.parse().expect("days");
            assert!(days.is_valid());
            assert_eq!(days.to_string(), written);
            assert_eq!(written.parse(), Ok(days));
        }
        for wrong in ["", "mo", "mon-", "-fri", "mon,,tue", "Mon", "mon fri", "1"] {
            assert_eq!(wrong.parse::<Weekdays>(), Err(WEEKDAYS_RULE), "{wrong:?}");
        }
    }

    #[test]
    fn a_time_of_day_has_two_parts() {
        for (text, minute) in [("00:00", 0), ("9:05", 545), ("09:05", 545), ("23:59", 1_439)] {
            assert_eq!(minute_of_day(text), Some(minute));
        }
        for wrong in ["", "9", "24:00", "09:60", "9:5", "09:00:00", "+9:00", "-1:00", ":00"] {
            assert_eq!(minute_of_day(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn listed_windows_do_not_meet() {
        let weekdays = "mon-fri".parse().expect("days");
        let rule = BookingRule { weekdays, minute: 545, zone: "Europe/Berlin".to_string() };
        assert_eq!(rule.to_string(), "mon-fri at 09:05 in Europe/Berlin");
        assert!(rule.cron().is_some());
        let listed = |start_minutes| ListedWindows { rule: rule.clone(), start_minutes };
        assert_eq!(listed(vec![]).violations(3, 3_600_000), vec![]);
        assert_eq!(listed(vec![60, 120, 240]).violations(3, 3_600_000), vec![]);
        for (windows, length_ms, starts) in
            [(2, 3_600_000, vec![60, 120, 240]), (2, 3_600_001, vec![60, 120]), (2, 60_000, vec![120, 60])]
        {
            assert_eq!(listed(starts).violations(windows, length_ms).len(), 1);
        }
        let listed = listed(vec![60, 240]);
        assert_eq!(listed.start(1), Some(LogTime(240 * MINUTE_MS)));
        assert_eq!((listed.start(2), ListedWindows::minute(LogTime(1))), (None, None));
        assert_eq!(listed.over_at(LogTime(120 * MINUTE_MS), 3_600_000), 1);
        let bad = BookingRule { minute: 1_440, zone: "../x".to_string(), ..rule };
        assert_eq!(bad.violations().len(), 2);
    }
}
