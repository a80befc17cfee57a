//! Quantities as Kubernetes writes them: `500m`, `2`, `1.5`, `16Gi`, `129e6`, `100k`.
//!
//! **Invariant:** what is offered is rounded down and what is taken is rounded up; what is no quantity is none.

/// Which way a quantity is rounded that is no whole number of what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    Down,
    Up,
}

/// Digits of a number; more are no quantity that anybody writes.
const DIGITS_MAX: usize = 30;

/// In thousandths.
pub(super) fn thousandths(text: &str, round: Round) -> Option<u64> {
    scaled(text, 3, round)
}

/// In whole numbers.
pub(super) fn whole(text: &str, round: Round) -> Option<u64> {
    scaled(text, 0, round)
}

/// The number times ten to the power of `shift`.
fn scaled(text: &str, shift: i32, round: Round) -> Option<u64> {
    let text = text.trim();
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (before, after) = number.split_once('.').unwrap_or((number, ""));
    let digits = [before, after].concat();
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let mantissa: u128 = digits.parse().ok()?;
    let (binary, decimal) = factor(suffix)?;
    let mantissa = mantissa.checked_mul(1u128 << binary)?;
    let power = decimal + shift - i32::try_from(after.len()).ok()?;
    let by = 10u128.checked_pow(power.unsigned_abs());
    let value = match (power < 0, by) {
        (false, Some(by)) => mantissa.checked_mul(by)?,
        (false, None) => (mantissa == 0).then_some(0)?,
        (true, Some(by)) if round == Round::Up => mantissa.div_ceil(by),
        (true, Some(by)) => mantissa / by,
        (true, None) => u128::from(round == Round::Up && mantissa > 0),
    };
    u64::try_from(value).ok()
}

/// The powers of two and of ten that a suffix stands for.
fn factor(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "" => (0, 0),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        other => {
            let power = other.strip_prefix(['e', 'E'])?;
            let power: i32 = power.parse().ok()?;
            (0, (-30..=30).contains(&power).then_some(power)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, milli) in [
            ("2", 2_000),
            ("500m", 500),
            ("0.5", 500),
            ("1.5", 1_500),
            ("100u", 1),
            ("1n", 1),
            ("0", 0),
            ("2e3", 2_000_000),
            ("1k", 1_000_000),
            (".5", 500),
        ] {
            assert_eq!(thousandths(text, Round::Up), Some(milli), "{text}");
        }
        assert_eq!(thousandths("100u", Round::Down), Some(0));
        for (text, bytes) in [
            ("16Gi", 16 << 30),
            ("129e6", 129_000_000),
            ("1.5Gi", 3 << 29),
            ("128974848", 128_974_848),
            ("123M", 123_000_000),
            ("500m", 1),
            ("8", 8),
        ] {
            assert_eq!(whole(text, Round::Up), Some(bytes), "{text}");
        }
        assert_eq!(whole("500m", Round::Down), Some(0));
    }

    #[test]
    fn other_texts_are_none() {
        for bad in
            ["", "-1", "x", "1.2.3", "1 Gi", "1gi", "1e", "1e99", "Gi", "99999999999999999999Ei", "1ee3"]
        {
            assert_eq!(whole(bad, Round::Up), None, "{bad}");
        }
        assert_eq!(whole(&"9".repeat(31), Round::Up), None);
    }
}
