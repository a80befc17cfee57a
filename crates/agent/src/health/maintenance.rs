//! What the provider says of maintenance.

use muster_types::LogTime;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// When the host will be taken away; none when nothing is announced, or nothing that can be read.
pub(crate) fn read(path: &Path) -> Option<LogTime> {
    let bytes = crate::disk::durable::read_bounded(path, 256).ok()?;
    parse(String::from_utf8_lossy(&bytes).trim(), SystemTime::now())
}

fn parse(text: &str, now: SystemTime) -> Option<LogTime> {
    if text.eq_ignore_ascii_case("ongoing") {
        // The hour it is: a time that moves with every look would be news every second.
        let seconds = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
        return Some(super::log_time(seconds - seconds % 3_600));
    }
    text.parse::<u64>().ok().filter(|seconds| *seconds > 0).map(super::log_time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_a_file_may_say() {
        let now = UNIX_EPOCH + Duration::from_secs(7_300);
        assert_eq!(parse("1767225600", now), Some(LogTime(1_767_225_600_000)));
        assert_eq!(parse("ONGOING", now), Some(LogTime(7_200_000)));
        for nothing in ["", "0", "soon", "-5", "1e9", "99999999999999999999999"] {
            assert_eq!(parse(nothing, now), None, "{nothing:?}");
        }
        assert_eq!(read(Path::new("/nowhere/at/all")), None);
    }
}
