//! Numbers as people write them, with units or with decimals.
//!
//! **Invariant:** exact or none: what would have to be rounded is not guessed at.

use core::fmt;

use crate::time::Span;

/// What [`span_ms`] reads; shown to users.
pub const SPAN_RULE: &str = "a duration like 90s, 2h or 1h30m (units: d, h, m, s, ms)";
/// What [`bytes`] reads; shown to users.
pub const BYTES_RULE: &str = "bytes like 64MiB, 4Gi or 64G (units: Ki, Mi, Gi, Ti, k, M, G, T)";
/// What [`bytes_per_second`] reads; shown to users.
pub const RATE_RULE: &str = "bytes a second like 64MiB/s or 1G/s (units: Ki, Mi, Gi, Ti, k, M, G, T)";
/// What [`cpu_milli`] reads; shown to users.
pub const CPU_RULE: &str = "CPUs like 2, 0.5 or 500m";

/// The longest duration: what a protobuf `Duration` may have, 315,576,000,000 s, about 10,000 years.
pub const SPAN_MS_MAX: u64 = 315_576_000_000_000;

/// No number is longer.
const TEXT_BYTES_MAX: usize = 64;

/// Decimals that are looked at: 10^10 times the largest scale stays below 2^128.
const DECIMALS_MAX: usize = 10;

/// The sum of parts like `1h30m`. `units` are names with what one of each counts, the largest first; parts come in that
/// order, each unit at most once. `0` needs no unit.
#[must_use]
pub fn in_units(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    if text.is_empty() || text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let (mut rest, mut total, mut units) = (text, 0u64, units);
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit());
        let (unit, after) = split(after, |c| c.is_ascii_alphabetic());
        let place = units.iter().position(|(name, _)| *name == unit)?;
        let (_, scale) = units.get(place)?;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(*scale)?)?;
        units = units.get(place + 1..).unwrap_or_default();
        rest = after;
    }
    Some(total)
}

/// Milliseconds of a duration, [`SPAN_MS_MAX`] at most. `0` needs no unit; everything else does, and units come largest first.
#[must_use]
pub fn span_ms(text: &str) -> Option<u64> {
    in_units(text, &Span::UNITS).filter(|ms| *ms <= SPAN_MS_MAX)
}

/// Bytes: `4Gi`, `512Mi`, `1.5Ti`, `64G` or a plain number. A `B` may follow.
#[must_use]
pub fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = split(text, |c| c.is_ascii_digit() || c == '.');
    let scale = match unit.strip_suffix('B').unwrap_or(unit) {
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    scaled(number, scale)
}

/// Bytes a second: what [`bytes`] reads, and `/s` behind it.
#[must_use]
pub fn bytes_per_second(text: &str) -> Option<u64> {
    bytes(text.strip_suffix("/s")?)
}

/// Bytes in the largest unit that states them exactly, as [`bytes`] reads them: `64Mi`, `1536Ki`, `1000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteCount(pub u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
        let fits = |(_, shift): &(&str, u32)| self.0 > 0 && self.0.trailing_zeros() >= *shift;
        match units.into_iter().find(fits) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Milli-CPUs: `2`, `0.5` or `500m`.
#[must_use]
pub fn cpu_milli(text: &str) -> Option<u64> {
    match text.strip_suffix('m') {
        Some(number) => whole(number),
        None => scaled(text, 1_000),
    }
}

/// A number of digits alone: `parse` would take a sign.
#[must_use]
pub fn whole(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= TEXT_BYTES_MAX && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// A number, with decimals or without, times `scale`, when that is a whole number.
#[must_use]
pub fn scaled(text: &str, scale: u64) -> Option<u64> {
    let Some((units, fraction)) = text.split_once('.') else {
        return whole(text)?.checked_mul(scale);
    };
    if fraction.len() > DECIMALS_MAX {
        return None;
    }
    let ten = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let value = u128::from(whole(units)?) * ten + u128::from(whole(fraction)?);
    let product = value.checked_mul(u128::from(scale))?;
    if product.is_multiple_of(ten) { u64::try_from(product / ten).ok() } else { None }
}

/// Splits behind the leading characters that fit.
#[must_use]
pub fn split(text: &str, fits: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !fits(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn rates_have_bytes_and_a_second() {
        for (text, rate) in [("64MiB/s", 64 << 20), ("1G/s", 1_000_000_000), ("1.5Gi/s", 3 << 29), ("0/s", 0)]
        {
            assert_eq!(bytes_per_second(text), Some(rate), "{text}");
        }
        for text in ["", "/s", "64MiB", "64", "64MiB/m", "64MiBs", "64MiB / s", "-1/s", "64MiB/s/s", "1s/s"] {
            assert_eq!(bytes_per_second(text), None, "{text}");
        }
    }

    #[test]
    fn bytes_are_shown_as_they_are_read() {
        let shown = [0, 1, 1_000, 1_536, 64 << 20, 3 << 29, 1 << 40].map(|b| format!("{}", ByteCount(b)));
        assert_eq!(shown, ["0", "1", "1000", "1536", "64Mi", "1536Mi", "1Ti"]);
        for count in [0, 1, 4_096, 4_097, u64::MAX, 1 << 63] {
            assert_eq!(bytes(&format!("{}", ByteCount(count))), Some(count), "{count}");
        }
    }

    #[test]
    fn no_duration_is_longer_than_a_message_can_have() {
        assert_eq!(span_ms("3652500d"), Some(SPAN_MS_MAX));
        assert_eq!(span_ms("3652500d1ms"), None);
        assert_eq!(span_ms("9999999999999d"), None);
    }

    #[test]
    fn parts_come_in_order_and_once() {
        const UNITS: [(&str, u64); 3] = [("m", 60), ("s", 1), ("x", u64::MAX)];
        for (text, total) in [("0", 0), ("0s", 0), ("2m", 120), ("1m30s", 90), ("1x", u64::MAX)] {
            assert_eq!(in_units(text, &UNITS), Some(total), "{text}");
        }
        for text in ["", "1", "m", "1s1m", "1s1s", "1m1x", "2x", "-1s", "+1s", "1.5m", "1h", "1 m"] {
            assert_eq!(in_units(text, &UNITS), None, "{text}");
        }
    }

    #[test]
    fn decimals_are_exact() {
        for (text, value) in [("2", 2_000), ("0.5", 500), ("1.250", 1_250), ("1.3000", 1_300), ("0", 0)] {
            assert_eq!(scaled(text, 1_000), Some(value), "{text}");
        }
        for text in ["", ".", "5.", ".5", "0.0005", "-1", "1e3", "1.00000000000", "18446744073709551616"] {
            assert_eq!(scaled(text, 1_000), None, "{text}");
        }
    }
}
