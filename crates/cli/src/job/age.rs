//! How long ago something was, for tables.

use std::time::SystemTime;

/// How long ago, in the largest unit that says something.
pub fn age(submitted_at: Option<&str>) -> String {
    let Some(then) = submitted_at.and_then(|text| text.parse::<jiff::Timestamp>().ok()) else {
        return String::new();
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = (now.as_secs() as i64).saturating_sub(then.as_second());
    duration(u64::try_from(seconds).unwrap_or(0))
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        let shown = [0, 119, 120, 7_199, 7_200, 172_800].map(duration);
        assert_eq!(shown, ["0s", "119s", "2m", "119m", "2h", "2d"]);
        assert_eq!(age(None), "");
        assert_eq!(age(Some("2999-01-01T00:00:00Z")), "0s");
    }
}
