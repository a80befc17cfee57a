//! Times, sizes and devices as Slurm writes them.

use muster_types::quantity::whole;

/// Seconds of a limit: `90` minutes, `10:30`, `1:00:00`, `2-12`, `2-12:30`, `2-12:30:00`. Zero for none at all.
pub fn limit_s(text: &str) -> Option<u64> {
    if ["0", "unlimited", "infinite"].contains(&text.to_ascii_lowercase().as_str()) {
        return Some(0);
    }
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(whole(days)?), rest),
        None => (None, text),
    };
    let parts = rest.split(':').map(whole).collect::<Option<Vec<u64>>>()?;
    let (hours, minutes, seconds) = match (days, parts.as_slice()) {
        (None, [minutes]) => (0, *minutes, 0),
        (None, [minutes, seconds]) => (0, *minutes, *seconds),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        (Some(_), [hours]) => (*hours, 0, 0),
        (Some(_), [hours, minutes]) => (*hours, *minutes, 0),
        _ => return None,
    };
    let hours = days.unwrap_or_default().checked_mul(24)?.checked_add(hours)?;
    hours.checked_mul(60)?.checked_add(minutes)?.checked_mul(60)?.checked_add(seconds)
}

/// Bytes: a number of MiB, or with K, M, G or T; these are powers of 1,024.
pub fn bytes(text: &str) -> Option<u64> {
    let text = text.strip_suffix(['B', 'b']).unwrap_or(text);
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let last = text.chars().last()?.to_ascii_uppercase();
    let unit = units.iter().find(|(letter, _)| *letter == last);
    let number = if unit.is_some() { text.get(..text.len() - 1)? } else { text };
    muster_types::quantity::scaled(number, 1 << unit.map_or(20, |(_, shift)| *shift))
}

/// A moment as job documents have it: `now+2hours` counts from the submission, and a date is one of UTC.
pub fn moment(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    if let Some(rest) = lower.strip_prefix("now") {
        let rest = rest.trim();
        if rest.is_empty() {
            return Some("+0".to_owned());
        }
        let (number, unit) =
            muster_types::quantity::split(rest.strip_prefix('+')?.trim(), |c| c.is_ascii_digit());
        let scale = match unit.trim() {
            "" | "second" | "seconds" | "sec" | "secs" => 1,
            "minute" | "minutes" | "min" | "mins" => 60,
            "hour" | "hours" => 3_600,
            "day" | "days" => 86_400,
            "week" | "weeks" => 7 * 86_400,
            _ => return None,
        };
        return Some(format!("+{}s", whole(number)?.checked_mul(scale)?));
    }
    let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00"));
    let is_like = |text: &str, form: &str| {
        text.len() == form.len()
            && text
                .bytes()
                .zip(form.bytes())
                .all(|(b, f)| if f == b'0' { b.is_ascii_digit() } else { b == f })
    };
    let time = match () {
        () if is_like(time, "00:00:00") => time.to_owned(),
        () if is_like(time, "00:00") => format!("{time}:00"),
        () => return None,
    };
    is_like(date, "0000-00-00").then(|| format!("{date}T{time}Z"))
}

/// `h100:2`, `2`: type and count. Empty counts are 1.
pub fn devices(text: &str) -> Option<(Option<&str>, u32)> {
    let text = text.split('(').next().unwrap_or_default();
    let count = |text: &str| whole(text).and_then(|count| u32::try_from(count).ok());
    match text.split_once(':') {
        Some((kind, number)) => Some((Some(kind), count(number)?)),
        None if text.is_empty() => Some((None, 1)),
        None => Some(count(text).map_or((Some(text), 1), |count| (None, count))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_six_forms() {
        for (text, seconds) in [
            ("90", 5_400),
            ("10:30", 630),
            ("1:00:00", 3_600),
            ("2-12", 216_000),
            ("2-12:30", 217_800),
            ("2-12:30:05", 217_805),
            ("UNLIMITED", 0),
        ] {
            assert_eq!(limit_s(text), Some(seconds), "{text}");
        }
        for text in ["", "1:2:3:4", "soon", "1-", "-5", "18446744073709551615-0"] {
            assert_eq!(limit_s(text), None, "{text}");
        }
    }

    #[test]
    fn memory_is_in_mib_without_a_unit() {
        for (text, count) in [
            ("4000", 4_000 << 20),
            ("64G", 64 << 30),
            ("1.5T", 3 << 39),
            ("512M", 512 << 20),
            ("8k", 8 << 10),
        ] {
            assert_eq!(bytes(text), Some(count), "{text}");
        }
        assert_eq!((bytes(""), bytes("G"), bytes("é"), bytes("4P")), (None, None, None, None));
    }

    #[test]
    fn moments_are_dates_or_count_from_now() {
        assert_eq!(moment("now+2hours").as_deref(), Some("+7200s"));
        assert_eq!(moment("now+60").as_deref(), Some("+60s"));
        assert_eq!(moment("2027-01-31T18:00").as_deref(), Some("2027-01-31T18:00:00Z"));
        assert_eq!(moment("2027-01-31").as_deref(), Some("2027-01-31T00:00:00Z"));
        assert_eq!(
            (moment("tomorrow"), moment("16:00"), moment("now-1"), moment("")),
            (None, None, None, None)
        );
    }

    #[test]
    fn devices_have_a_type_or_none() {
        assert_eq!(devices("h100:8"), Some((Some("h100"), 8)));
        assert_eq!(devices("8"), Some((None, 8)));
        assert_eq!(devices("h100"), Some((Some("h100"), 1)));
        assert_eq!(devices("a100:2(S:0-1)"), Some((Some("a100"), 2)));
        assert_eq!((devices(""), devices("a:b")), (Some((None, 1)), None));
    }
}
