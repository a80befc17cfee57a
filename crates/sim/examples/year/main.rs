//! A year of a busy cluster, through the shipping decider and state: what grows, and what does not.
//!
//! `cargo run --release -p muster-sim --example year -- [DAYS] [JOBS_A_DAY]`, 365 and 1,000 by default.
//!
//! A cluster with a million jobs a day is scaled down in one thing: jobs a day and nodes are fewer, by the same factor.
//! Everything else is as in production: the retention of jobs, requests and nodes, log time with 1,440 steps a day, run times,
//! gangs, failures with retries, cancellations, nodes that are lost and come back, nodes that are replaced for good, names
//! that are never used again, and a new tenant every day. So rows that a day's jobs leave are fewer by the factor, and rows that are never
//! removed would show as growth whatever the factor is.
//!
//! Prints a table and fails when the rows of day 300 are more than a tenth more than those of day 60, or when what is learned
//! of run times has more rows than its bound. That bound is not scaled: a cluster with a million jobs a day reaches it within
//! days, one that is scaled down within years, so its rows grow in the table and are no part of the comparison. It fails as well
//! when the state of the last day does not come back from its snapshot as it was.
//!
//! A few days of the same cluster, with everything kept for one day, are a test of this crate.

use muster_state::{HISTORY_ROWS_MAX, State};
use muster_types::Parameters;

mod cluster;

use cluster::{DEVICES, Year, nodes_for};

/// Jobs a day of the cluster that is scaled down.
const FULL_JOBS_A_DAY: u64 = 1_000_000;
/// The warm-up is over, and much later.
const WARM_DAY: u64 = 60;
const LATE_DAY: u64 = 300;

/// One line of the table.
#[derive(Clone, Copy)]
struct Line {
    day: u64,
    rows: u64,
    history: u64,
    snapshot_bytes: u64,
}

fn line(year: &Year, day: u64, log_of_day: u64) -> Line {
    let (state, rows) = (year.state(), year.rows());
    let snapshot_bytes: u64 = state.snapshot().map(|chunk| chunk.len() as u64).sum();
    println!(
        "{day:>4} {:>8} {:>8} {:>6} {:>8} {:>8} {:>11} {:>9} {:>11} {:>9} {:>10} {:>6}",
        rows.jobs,
        rows.requests,
        rows.nodes,
        rows.history,
        rows.retained(),
        snapshot_bytes >> 10,
        resident_mib(),
        year.log_bytes >> 10,
        log_of_day >> 10,
        year.jobs,
        state.pending_count(),
    );
    Line { day, rows: rows.retained(), history: rows.history, snapshot_bytes }
}

/// What a job takes of the disk, and how long a replica that starts again needs for its snapshot. A job and a row of the
/// cluster that is scaled down are as large as those of the whole one.
fn sizes(year: &Year) {
    let state = year.state();
    let chunks: Vec<Vec<u8>> = state.snapshot().collect();
    let bytes: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
    let begun = std::time::Instant::now();
    let restored = State::restore(&chunks).expect("what was written is read");
    let us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    assert_eq!(restored.digest(), state.digest(), "a replica that starts again has the state that there was");
    let rows = state.jobs().iter().count() + state.requests_count() + state.nodes().iter().count();
    let rows = (rows + state.history().iter().count()) as u64;
    let log_bytes = year.log_bytes / year.jobs.max(1);
    println!(
        "disk: {log_bytes} bytes of log a job before compression, {} MB a day for a million jobs",
        log_bytes * FULL_JOBS_A_DAY / 1_000_000
    );
    println!(
        "restart: {rows} rows in {} KiB of snapshot are a state again after {us} us, {} bytes a row",
        bytes >> 10,
        bytes / rows.max(1)
    );
}

/// Memory of this process, in MiB; 0 where the system does not say.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 10
}

/// Whether a value of a late day is within a tenth of that of a day behind the warm-up.
fn is_bounded(what: &str, warm: u64, late: u64) -> bool {
    let holds = late * 10 <= warm * 11;
    println!(
        "{what}: {warm} on day {WARM_DAY}, {late} on day {LATE_DAY}: {}",
        if holds { "bounded" } else { "GROWS" }
    );
    holds
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|text| text.parse::<u64>().ok());
    let days = arguments.next().unwrap_or(365);
    let jobs_a_day = arguments.next().unwrap_or(1_000).max(1);
    let nodes = nodes_for(jobs_a_day);
    println!(
        "{days} days of {jobs_a_day} jobs on {nodes} nodes of {DEVICES}: {FULL_JOBS_A_DAY} jobs a day scaled by 1/{}; \
         retention as in production",
        FULL_JOBS_A_DAY / jobs_a_day
    );
    println!(
        "{:>4} {:>8} {:>8} {:>6} {:>8} {:>8} {:>11} {:>9} {:>11} {:>9} {:>10} {:>6}",
        "day",
        "jobs",
        "requests",
        "nodes",
        "history",
        "rows",
        "snap KiB",
        "RSS MiB",
        "log KiB",
        "KiB/day",
        "ids",
        "queue"
    );
    let begun = std::time::Instant::now();
    let mut year = Year::new(jobs_a_day, Parameters::DEFAULT);
    let mut lines = Vec::new();
    let mut log_before = 0;
    for day in 1..=days {
        year.day();
        if day % 30 == 0 || day == 1 || day == 7 || day == days {
            lines.push(line(&year, day, year.log_bytes - log_before));
        }
        log_before = year.log_bytes;
    }
    println!(
        "{} jobs finished, {} refused, {} rounds, {} records, {} nodes ever; {} s",
        year.finished,
        year.refused,
        year.rounds,
        year.decisions,
        year.nodes,
        begun.elapsed().as_secs()
    );
    sizes(&year);
    let on = |day: u64| lines.iter().find(|line| line.day == day).copied();
    if let (Some(warm), Some(late)) = (on(WARM_DAY), on(LATE_DAY)) {
        let learned_bytes = late.snapshot_bytes.saturating_sub(warm.snapshot_bytes)
            / late.history.saturating_sub(warm.history).max(1);
        println!(
            "learned run times: {} rows on day {WARM_DAY}, {} on day {LATE_DAY}, at most {HISTORY_ROWS_MAX}, about {} KiB then",
            warm.history,
            late.history,
            (HISTORY_ROWS_MAX as u64 * learned_bytes) >> 10
        );
        let is_learned_bounded = late.history <= HISTORY_ROWS_MAX as u64;
        if !(is_bounded("rows", warm.rows, late.rows) && is_learned_bounded) {
            std::process::exit(1);
        }
    }
}
