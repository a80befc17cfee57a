//! What a worker's processes use of memory, by `/proc`, for hosts where no control group can say it.
//!
//! Only memory that the worker alone can give back is counted: anonymous and shared memory, and the part of it that is swapped
//! out, each page once however many of its processes share it. Mapped files are not: the kernel drops
//! them when it needs the memory.

use std::collections::BTreeSet;
use std::path::Path;

/// Bytes that these processes use together, when that is more than `limit`.
///
/// Most looks end with the sum of the resident sets, which is cheap and counts a shared page for each
/// process; only where that is above the limit the exact figure is asked for.
pub(crate) fn used_above(limit: u64, pids: &BTreeSet<i32>) -> Option<u64> {
    let resident = |pid: &i32| fields(*pid, "status", &["RssAnon:", "RssShmem:", "VmSwap:"]);
    if pids.iter().map(resident).fold(0, u64::saturating_add) <= limit {
        return None;
    }
    let shared = |pid: &i32| fields(*pid, "smaps_rollup", &["Pss_Anon:", "Pss_Shmem:", "SwapPss:"]);
    let used = pids.iter().map(shared).fold(0, u64::saturating_add);
    (used > limit).then_some(used)
}

/// The sum of these fields of a process, in bytes; 0 of one that is gone.
fn fields(pid: i32, file: &str, names: &[&str]) -> u64 {
    let path = format!("/proc/{pid}/{file}");
    let bytes = crate::disk::durable::read_bounded(Path::new(&path), 64 << 10).unwrap_or_default();
    sum_kib(&String::from_utf8_lossy(&bytes), names).saturating_mul(1_024)
}

fn sum_kib(text: &str, names: &[&str]) -> u64 {
    let value = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let name = words.next()?;
        names.contains(&name).then(|| words.next()?.parse::<u64>().ok())?
    };
    text.lines().filter_map(value).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_summed_and_nonsense_is_nothing() {
        let text =
            "VmRSS:\t 5000 kB\nRssAnon:\t     120 kB\nRssFile:\t 9 kB\nRssShmem:\t 3 kB\nVmSwap: x kB\n";
        assert_eq!(sum_kib(text, &["RssAnon:", "RssShmem:", "VmSwap:"]), 123);
        assert_eq!(sum_kib("", &["RssAnon:"]), 0);
    }

    #[test]
    fn this_process_uses_more_than_nothing_and_less_than_everything() {
        let own = BTreeSet::from([std::process::id().cast_signed()]);
        assert!(used_above(0, &own).is_some_and(|used| used > 4_096));
        assert_eq!(used_above(1 << 50, &own), None);
        assert_eq!(used_above(0, &BTreeSet::from([i32::MAX])), None);
    }
}
