//! Numbers as people write them, with units or with decimals.
//!
//! **Invariant:** exact or none: what would have to be rounded is not guessed at.

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
    use super::*;

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
