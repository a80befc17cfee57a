//! Log time: the only time the replicated state knows; and times and durations as people read them.

use core::fmt;
use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch, stamped by the leader on a round and never going back along
/// the log. Everything the state does with time compares log times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogTime(pub u64);

impl LogTime {
    /// Milliseconds from `earlier` to here; zero when it is not earlier.
    #[must_use]
    pub fn since_ms(self, earlier: LogTime) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This time plus a duration.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> LogTime {
        LogTime(self.0.saturating_add(ms))
    }

    /// This time less a duration, not before the epoch.
    #[must_use]
    pub fn minus_ms(self, ms: u64) -> LogTime {
        LogTime(self.0.saturating_sub(ms))
    }
}

/// In UTC by RFC 3339, to the millisecond: `2026-11-23T13:25:00Z`.
impl fmt::Display for LogTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY_MS: u64 = 86_400_000;
        let (days, ms) = (self.0 / DAY_MS, self.0 % DAY_MS);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        match ms % 1_000 {
            0 => f.write_str("Z"),
            ms => write!(f, ".{ms:03}Z"),
        }
    }
}

/// Year, month and day of a day since the Unix epoch, in the Gregorian calendar: counted in eras of 400 years that
/// begin on the first of March, so that a leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    const ERA_DAYS: u64 = 146_097;
    /// From the first of March of the year 0 to the epoch.
    const BEFORE_EPOCH_DAYS: u64 = 719_468;
    let days = days + BEFORE_EPOCH_DAYS;
    let (era, day) = (days / ERA_DAYS, days % ERA_DAYS);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Months from March on have 31, 30, 31, 30, 31 days, twice and once more: 153 in five.
    let from_march = (5 * day + 2) / 153;
    let day = day - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// Milliseconds as people write a duration: `1h30m`, `90s` as `1m30s`, `250ms`; exactly, with the units d, h, m, s and ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub u64);

impl Span {
    /// Each unit with its milliseconds, the largest first.
    pub(crate) const UNITS: [(&'static str, u64); 5] =
        [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

    /// The same in its two largest units, rounded down: what is smaller than the unit behind the largest says nothing
    /// any more.
    #[must_use]
    pub fn about(ms: u64) -> Span {
        let largest = Span::UNITS.iter().position(|(_, length)| ms >= *length);
        let behind = largest.and_then(|at| Span::UNITS.get(at + 1)).map_or(1, |(_, length)| *length);
        Span(ms - ms % behind)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        for (unit, length) in Span::UNITS {
            if rest >= length {
                write!(f, "{}{unit}", rest / length)?;
                rest %= length;
            }
        }
        if self.0 == 0 { f.write_str("0s") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn times_are_in_utc() {
        let shown = |seconds: u64| LogTime(seconds * 1_000).to_string();
        assert_eq!(shown(0), "1970-01-01T00:00:00Z");
        assert_eq!(shown(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(shown(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(shown(951_868_800), "2000-03-01T00:00:00Z");
        assert_eq!(shown(1_795_440_300), "2026-11-23T13:25:00Z");
        assert_eq!(shown(4_102_444_799), "2099-12-31T23:59:59Z");
        assert_eq!(shown(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(LogTime(1_795_440_300_042).to_string(), "2026-11-23T13:25:00.042Z");
        // Whatever a record says, it can be shown.
        assert!(LogTime(u64::MAX).to_string().ends_with('Z'));
    }

    #[test]
    fn durations_are_exact_or_in_two_units() {
        let spans = [0, 250, 90_000, 5_400_000, 86_400_001].map(|ms| format!("{}", Span(ms)));
        assert_eq!(spans, ["0s", "250ms", "1m30s", "1h30m", "1d1ms"]);
        let about = [0, 250, 90_999, 5_459_999, 200_000_000].map(|ms| format!("{}", Span::about(ms)));
        assert_eq!(about, ["0s", "250ms", "1m30s", "1h30m", "2d7h"]);
    }
}
