//! What the system knows of this process.

use muster_metrics::ProcessFacts;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// What Linux reports about this process; unknown on other systems.
#[must_use]
pub fn process_facts() -> ProcessFacts {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|text| text.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    let cpu_ms = getrusage(UsageWho::RUSAGE_SELF).ok().map(|usage| {
        let ms = |time: TimeVal| {
            let ms = time.tv_sec().saturating_mul(1_000).saturating_add(time.tv_usec() / 1_000);
            u64::try_from(ms).unwrap_or(0)
        };
        ms(usage.user_time()) + ms(usage.system_time())
    });
    ProcessFacts {
        resident_bytes: kib.map(|kib| kib << 10),
        cpu_ms,
        open_descriptors: std::fs::read_dir("/proc/self/fd").ok().map(|all| all.count() as u64),
        trace_spans_dropped: muster_traces::dropped(),
    }
}
