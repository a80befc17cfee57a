//! Durations, CPUs, memory and counts as people write them.
//!
//! **Invariant:** exact or refused. `1.5Gi` is a whole number of bytes and fine; what would have to be
//! rounded is not guessed at.

use std::fmt;

/// Why a quantity was refused; reads on behind the name of the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantityError(String);

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QuantityError {}

fn refuse(expected: &str, text: &str) -> QuantityError {
    let short: String = text.chars().take(40).collect();
    QuantityError(format!("must be {expected}, got {short:?}"))
}

/// No quantity is longer; what follows may then be simple.
const TEXT_BYTES_MAX: usize = 64;

const DURATION: &str = "a duration like 90s, 2h or 1h30m (units: d, h, m, s, ms)";

/// Milliseconds. `0` needs no unit; everything else does, and units come largest first.
pub fn duration_ms(text: &str) -> Result<u64, QuantityError> {
    const UNITS: [(&str, u64); 5] =
        [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let error = || refuse(DURATION, text);
    if text == "0" {
        return Ok(0);
    }
    let mut rest = text;
    let mut total = 0u64;
    let mut units = UNITS.as_slice();
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit());
        let (unit, after) = split(after, |c| c.is_ascii_alphabetic());
        let place = units.iter().position(|(name, _)| *name == unit).ok_or_else(error)?;
        let number: u64 = number.parse().map_err(|_| error())?;
        let part = number.checked_mul(units[place].1).ok_or_else(error)?;
        total = total.checked_add(part).ok_or_else(error)?;
        units = &units[place + 1..];
        rest = after;
    }
    if text.is_empty() || text.len() > TEXT_BYTES_MAX { Err(error()) } else { Ok(total) }
}

/// Milli-CPUs: `2`, `0.5` or `500m`.
pub fn cpu_milli(text: &str) -> Result<u64, QuantityError> {
    const EXPECTED: &str = "CPUs like 2, 0.5 or 500m";
    let error = || refuse(EXPECTED, text);
    match text.strip_suffix('m') {
        Some(number) => whole(number).ok_or_else(error),
        None => scaled(text, 1_000).ok_or_else(error),
    }
}

/// Bytes: `4Gi`, `512Mi`, `1.5Ti`, `64G` or a plain number. A `B` may follow.
pub fn memory_bytes(text: &str) -> Result<u64, QuantityError> {
    const EXPECTED: &str = "memory like 4Gi, 512Mi or 64G (units: Ki, Mi, Gi, Ti, k, M, G, T)";
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
        _ => return Err(refuse(EXPECTED, text)),
    };
    scaled(number, scale).ok_or_else(|| refuse(EXPECTED, text))
}

/// A count.
pub fn count(text: &str) -> Result<u32, QuantityError> {
    whole(text)
        .and_then(|value| u32::try_from(value).ok())
        .ok_or_else(|| refuse("a whole number from 0 to 4294967295", text))
}

/// Splits behind the leading characters that fit.
fn split(text: &str, fits: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !fits(c)).unwrap_or(text.len()))
}

/// Digits only: `parse` alone would take a sign.
fn whole(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= TEXT_BYTES_MAX && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// A decimal number times `scale`, when that is a whole number.
fn scaled(text: &str, scale: u64) -> Option<u64> {
    let Some((units, fraction)) = text.split_once('.') else {
        return whole(text)?.checked_mul(scale);
    };
    // Ten places are more than any unit needs: 10^10 times the largest scale stays below 2^128.
    if fraction.len() > 10 {
        return None;
    }
    let ten = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let value = u128::from(whole(units)?) * ten + u128::from(whole(fraction)?);
    let product = value.checked_mul(u128::from(scale))?;
    if product.is_multiple_of(ten) { u64::try_from(product / ten).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations() {
        for (text, ms) in [
            ("0", 0),
            ("0s", 0),
            ("30s", 30_000),
            ("2h", 7_200_000),
            ("1h30m", 5_400_000),
            ("1d12h", 129_600_000),
            ("250ms", 250),
            ("1m500ms", 60_500),
        ] {
            assert_eq!(duration_ms(text), Ok(ms), "{text}");
        }
        for text in [
            "",
            "5",
            "h",
            "1.5h",
            "1w",
            "-1s",
            "+1s",
            "1m1h",
            "1s1s",
            "1 h",
            "99999999999999999999s",
            "9999999999999999d",
        ] {
            assert!(duration_ms(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cpus() {
        for (text, milli) in [("2", 2_000), ("0.5", 500), ("1.250", 1_250), ("500m", 500), ("0", 0)] {
            assert_eq!(cpu_milli(text), Ok(milli), "{text}");
        }
        for text in ["", "m", "-1", "+1", "0.0005", "1.5m", "2 ", "two", ".5", "5.", "99999999999999999999"] {
            assert!(cpu_milli(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory() {
        for (text, bytes) in [
            ("4Gi", 4 << 30),
            ("1.5Gi", 3 << 29),
            ("512MiB", 512 << 20),
            ("64G", 64_000_000_000),
            ("1k", 1_000),
            ("1073741824", 1 << 30),
            ("1Ti", 1 << 40),
        ] {
            assert_eq!(memory_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "Gi", "4gi", "4 Gi", "-4Gi", "0.3", "1.2.3G", "4GiGi", "99999999Ti"] {
            assert!(memory_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts() {
        assert_eq!(count("64"), Ok(64));
        for text in ["", "-1", "+1", "1.0", "4294967296", "x"] {
            assert!(count(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text: String, near in "[0-9.+-]{0,30}[a-zA-Z]{0,3}[0-9]{0,20}[a-z]{0,2}") {
            for text in [text, near] {
                let _ = (duration_ms(&text), cpu_milli(&text), memory_bytes(&text), count(&text));
            }
        }

        #[test]
        fn whole_values_return(value in 0u64..1_000_000_000) {
            prop_assert_eq!(duration_ms(&format!("{value}ms")), Ok(value));
            prop_assert_eq!(cpu_milli(&format!("{value}m")), Ok(value));
            prop_assert_eq!(memory_bytes(&value.to_string()), Ok(value));
            prop_assert_eq!(cpu_milli(&format!("{}.{:03}", value / 1_000, value % 1_000)), Ok(value));
        }
    }
}
