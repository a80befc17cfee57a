//! The machine that figures were taken on.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::figures::Latencies;

/// What it is, and how busy it was at the start.
pub(crate) fn describe() -> Value {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of_cpu = |field: &str| {
        let line = cpuinfo.lines().find_map(|line| line.strip_prefix(field));
        line.map_or("unknown", |line| line.trim_start_matches([' ', '\t', ':'])).to_owned()
    };
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0);
    json!({
        "model": of_cpu("model name"),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_gib": kib >> 20,
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "load_average": load_average(),
        "date": today(),
        "optimised": !cfg!(debug_assertions),
    })
}

/// The same with what a durable append to a disk takes: the directory's, whose flushes bound every write.
///
/// # Errors
/// When the directory cannot be written to.
pub(crate) fn describe_with_disk(directory: &Path) -> anyhow::Result<Value> {
    let path = directory.join("flushes");
    let mut file = fs::File::create(&path).context("creating a file to flush")?;
    let mut latencies = Latencies::new()?;
    for _ in 0..200 {
        file.write_all(&[7u8; 4_096]).context("writing")?;
        let begun = Instant::now();
        file.sync_data().context("flushing")?;
        latencies.record(begun.elapsed());
    }
    drop(file);
    fs::remove_file(&path).context("removing the file")?;
    let mut machine = describe();
    machine["fdatasync_of_4_kib"] = latencies.json();
    Ok(machine)
}

/// Processor time of a process of ours so far, of all its threads.
pub(crate) fn process_time(pid: u32) -> Duration {
    // Ticks of 10 ms, as every Linux shows them to programs.
    const TICK_MS: u64 = 10;
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything; what follows is numbers.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = fields.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * TICK_MS)
}

/// Bytes of memory that a process has resident.
pub(crate) fn resident_bytes_of(pid: u32) -> u64 {
    let (resident, _) = memory_of(pid);
    resident
}

/// Bytes of memory that a process has resident, and those of them that are in no file: its program's text is, and is
/// there once for all who run it.
pub(crate) fn memory_of(pid: u32) -> (u64, u64) {
    const PAGE_BYTES: u64 = 4_096;
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = text.split_whitespace().skip(1).map(|pages| pages.parse::<u64>().unwrap_or(0));
    let (resident, in_files) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    (resident * PAGE_BYTES, resident.saturating_sub(in_files) * PAGE_BYTES)
}

/// The same as a line.
pub(crate) fn sentence(machine: &Value) -> String {
    let text = |field: &str| machine[field].as_str().unwrap_or("unknown").to_owned();
    format!(
        "{} x {}, {} GiB, Linux {}, load average {}, {}{}",
        machine["cpus"],
        text("model"),
        machine["memory_gib"],
        text("kernel"),
        text("load_average"),
        text("date"),
        if cfg!(debug_assertions) { "; NOT OPTIMISED: build with --release" } else { "" }
    )
}

/// Of the last minute, five and fifteen.
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Bytes of memory that this process has resident.
pub(crate) fn resident_bytes() -> u64 {
    resident_bytes_of(std::process::id())
}

/// Processor time that this thread has had.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has a clock for every thread");
    Duration::from(time)
}

/// The date in UTC.
pub(crate) fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date_of(since / 86_400)
}

/// The date of a day since 1 January 1970, year by year: there are few of them.
fn date_of(mut days: u64) -> String {
    let mut year = 1970;
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_days() {
        assert_eq!(date_of(0), "1970-01-01");
        assert_eq!(date_of(11_016), "2000-02-29");
        assert_eq!(date_of(20_453), "2025-12-31");
        assert_eq!(date_of(20_454), "2026-01-01");
    }
}
