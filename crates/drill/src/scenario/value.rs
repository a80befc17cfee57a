//! Durations, chances, rates and names as people write them.
//!
//! **Invariant:** exact or refused.

use std::fmt;

use muster_types::quantity::{in_units, scaled, split};

/// Why a value was refused; reads on behind the name of the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError(String);

impl ValueError {
    pub(super) fn new(expected: &str, text: &str) -> ValueError {
        let short: String = text.chars().take(40).collect();
        ValueError(format!("must be {expected}, got {short:?}"))
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ValueError {}

/// No value is longer; what follows may then be simple.
const TEXT_BYTES_MAX: usize = 64;

/// Microseconds; `0` needs no unit, everything else does: `12s`, `1m30s`, `250ms`, `1.5s` is refused.
pub fn duration_us(text: &str) -> Result<u64, ValueError> {
    const UNITS: [(&str, u64); 5] =
        [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];
    const EXPECTED: &str = "a duration like 12s, 250ms or 1m30s (units: h, m, s, ms, us)";
    in_units(text, &UNITS).ok_or_else(|| ValueError::new(EXPECTED, text))
}

/// Whole milliseconds, no longer than a drill may be.
pub fn duration_ms(text: &str) -> Result<u64, ValueError> {
    let us = duration_us(text)?;
    match us % 1_000 {
        0 if us / 1_000 <= super::DURATION_MS_MAX => Ok(us / 1_000),
        _ => Err(ValueError::new("whole milliseconds up to 1h", text)),
    }
}

/// Milliseconds with a sign: `+1h`, `-30s`.
pub fn offset_ms(text: &str) -> Result<i64, ValueError> {
    let error = || ValueError::new("a duration with its sign like +1h or -30s", text);
    let (sign, rest) = match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(rest), _) => (1, rest),
        (_, Some(rest)) => (-1, rest),
        _ => return Err(error()),
    };
    let ms = duration_us(rest).map_err(|_| error())? / 1_000;
    i64::try_from(ms).map(|ms| sign * ms).map_err(|_| error())
}

/// Millionths: `5%`, `0.01%`.
pub fn chance_ppm(text: &str) -> Result<u32, ValueError> {
    let ppm =
        text.strip_suffix('%').and_then(|number| scaled(number, 10_000)).filter(|ppm| *ppm <= 1_000_000);
    let error = || ValueError::new("a percentage from 0% to 100%, as fine as 0.0001%", text);
    ppm.and_then(|ppm| u32::try_from(ppm).ok()).ok_or_else(error)
}

/// Bits per second: `10mbit`, `512kbit`, `1gbit`.
pub fn rate_bits(text: &str) -> Result<u64, ValueError> {
    let (number, unit) = split(text, |c| c.is_ascii_digit() || c == '.');
    let scale = match unit {
        "kbit" => Some(1_000),
        "mbit" => Some(1_000_000),
        "gbit" => Some(1_000_000_000),
        _ => None,
    };
    let bits = scale.and_then(|scale| scaled(number, scale)).filter(|bits| *bits > 0);
    bits.ok_or_else(|| ValueError::new("a rate like 512kbit, 10mbit or 1gbit", text))
}

/// Thousandths of the usual rate of a clock: `1.3`, `0.7`.
pub fn clock_rate_milli(text: &str) -> Result<u32, ValueError> {
    let milli = scaled(text, 1_000).filter(|milli| (100..=10_000).contains(milli));
    let error = || ValueError::new("a rate from 0.1 to 10, where 1 is as usual", text);
    milli.and_then(|milli| u32::try_from(milli).ok()).ok_or_else(error)
}

/// `true` or `false`.
pub fn flag(text: &str) -> Result<bool, ValueError> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(ValueError::new("true or false", text)),
    }
}

/// A bar: whole milliseconds, one at least, and no longer than a drill may be.
pub fn bar_ms(text: &str) -> Result<u64, ValueError> {
    let ms = duration_ms(text).ok().filter(|ms| *ms > 0);
    ms.ok_or_else(|| ValueError::new("a duration from 1ms to 1h like 2s, 1500ms or 1m30s", text))
}

/// Lower-case words with hyphens.
pub fn name(text: &str) -> Result<String, ValueError> {
    let fits = text.len() <= TEXT_BYTES_MAX
        && text.split('-').all(|word| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        });
    if fits { Ok(text.to_owned()) } else { Err(ValueError::new("lower-case words with hyphens", text)) }
}
