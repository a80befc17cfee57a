//! Workers' own evidence of when they ran.
//!
//! One file for a rank of an attempt, `<job>/<token>-<rank>.log`, of lines
//!
//! ```text
//! start <unix ns> <boot-time ns> pid <pid> id <id>
//! alive <boot-time ns> <id>
//! stop <boot-time ns> <id>
//! ```
//!
//! written by the worker itself until it is killed; `CLOCK_BOOTTIME` is one clock for all processes of a machine.

use std::io::{self, BufRead, Read};

use muster_types::{FencingToken, JobId};
use serde::{Deserialize, Serialize};

use super::evidence::seconds;
use super::replayed::LogSummary;
use super::{Checked, Findings, Rule};

const LINE_BYTES_MAX: u64 = 256;
/// Processes of one rank of one attempt; there must be one.
const PROCESSES_MAX: usize = 64;
/// Ends a line that could not be written whole, as on a full disk.
const TORN: char = '~';

/// From when to when one process certainly ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// The job, as its directory is called.
    pub job: String,
    /// Its fencing token, or the attempt's number where there was none.
    pub attempt: String,
    /// The rank.
    pub rank: u32,
    /// The process.
    pub pid: u32,
    /// Boot-time nanoseconds.
    pub start_ns: u64,
    /// When the process was last seen running, boot-time nanoseconds.
    pub end_ns: u64,
    /// Whether it came to its own end.
    pub stopped: bool,
}

/// Why a file of intervals cannot be believed.
#[derive(Debug, thiserror::Error)]
pub enum IntervalError {
    /// It is not called like one.
    #[error("{file}: the name is not <job>/<token>-<rank>.log")]
    Name {
        /// As the caller named it.
        file: String,
    },
    /// Reading failed.
    #[error("{file}: reading failed")]
    Read {
        /// As the caller named it.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// A line that no worker writes.
    #[error("{file}:{line}: not a line of intervals")]
    Line {
        /// As the caller named it.
        file: String,
        /// From 1.
        line: u64,
    },
}

struct Process {
    id: String,
    interval: Interval,
}

/// Reads one file; `file` ends with `<job>/<token>-<rank>.log`. A last line without its end is passed over.
///
/// # Errors
/// When the name, or a line, is none of a worker's, or reading fails.
pub fn read_intervals(file: &str, mut reader: impl BufRead) -> Result<Vec<Interval>, IntervalError> {
    let (job, attempt, rank) = parts(file).ok_or_else(|| IntervalError::Name { file: file.to_owned() })?;
    let mut processes: Vec<Process> = Vec::new();
    let mut bytes = Vec::new();
    for line in 1u64.. {
        bytes.clear();
        let taken = (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes);
        taken.map_err(|source| IntervalError::Read { file: file.to_owned(), source })?;
        let error = || IntervalError::Line { file: file.to_owned(), line };
        let Some(text) = bytes.strip_suffix(b"\n") else {
            if bytes.len() as u64 == LINE_BYTES_MAX {
                return Err(error());
            }
            break;
        };
        let text = std::str::from_utf8(text).map_err(|_| error())?;
        if text.ends_with(TORN) {
            continue;
        }
        let begin = |pid, start_ns| Interval {
            job: job.to_owned(),
            attempt: attempt.to_owned(),
            rank,
            pid,
            start_ns,
            end_ns: start_ns,
            stopped: false,
        };
        step(text, &mut processes, begin).ok_or_else(error)?;
    }
    Ok(processes.into_iter().map(|process| process.interval).collect())
}

fn parts(file: &str) -> Option<(&str, &str, u32)> {
    let mut parts = file.rsplit('/');
    let (name, job) = (parts.next()?, parts.next()?);
    let (attempt, rank) = name.strip_suffix(".log")?.rsplit_once('-')?;
    if job.is_empty() || attempt.is_empty() { None } else { Some((job, attempt, rank.parse().ok()?)) }
}

/// Takes one line into account; none when it does not follow from those before it.
fn step(text: &str, processes: &mut Vec<Process>, begin: impl Fn(u32, u64) -> Interval) -> Option<()> {
    let words: Vec<&str> = text.split(' ').collect();
    match words[..] {
        ["start", unix, boot, "pid", pid, "id", id] => {
            unix.parse::<u128>().ok()?;
            let interval = begin(pid.parse().ok()?, boot.parse().ok()?);
            let is_new = processes.iter().all(|process| process.id != id) && processes.len() < PROCESSES_MAX;
            processes.push(Process { id: id.to_owned(), interval });
            is_new.then_some(())
        }
        [word @ ("alive" | "stop"), boot, id] => {
            let boot: u64 = boot.parse().ok()?;
            let interval = &mut processes.iter_mut().find(|process| process.id == id)?.interval;
            if interval.stopped || boot < interval.end_ns {
                return None;
            }
            interval.end_ns = boot;
            interval.stopped = word == "stop";
            Some(())
        }
        _ => None,
    }
}

fn shown(interval: &Interval) -> String {
    let Interval { job, attempt, rank, pid, start_ns, end_ns, stopped } = interval;
    let end = if *stopped { "" } else { ", when it was last seen running" };
    let (start, last) = (seconds(start_ns / 1_000), seconds(end_ns / 1_000));
    format!("{job} attempt {attempt} rank {rank} pid {pid} ran from {start} to {last}{end}")
}

/// Holds what ran against what was placed. Attempts that are named otherwise than by their token say nothing here.
pub(super) fn check_placed(
    intervals: &[Interval],
    told: &LogSummary,
    checked: &mut Checked,
    findings: &mut Findings,
) {
    for interval in intervals {
        let (Ok(job), Ok(token)) = (interval.job.parse::<JobId>(), interval.attempt.parse::<FencingToken>())
        else {
            continue;
        };
        checked.placements += 1;
        // Placed in a previous generation of the cluster, whose records have been replaced.
        let is_of_previous = told.recovered_index.is_some_and(|index| token.log_index.0 >= index);
        if !told.placed.contains(&(job, token)) && !is_of_previous {
            findings.add(Rule::RanUnplaced, || {
                (format!("{job} ran under token {token}, which no record gave"), vec![shown(interval)])
            });
        }
    }
}

/// Looks for two processes that must not have run at the same time.
pub(super) fn check(intervals: &[Interval], checked: &mut Checked, findings: &mut Findings) {
    let mut by_start: Vec<&Interval> = intervals.iter().collect();
    by_start.sort_by_key(|interval| (&interval.job, interval.start_ns, &interval.attempt, interval.rank));
    checked.intervals += by_start.len() as u64;
    // Those of the same job that had not ended when the present one began.
    let mut running: Vec<&Interval> = Vec::new();
    for interval in by_start {
        running.retain(|other| other.job == interval.job && other.end_ns >= interval.start_ns);
        for other in &running {
            if other.attempt == interval.attempt && other.rank != interval.rank {
                continue;
            }
            findings.add(Rule::Overlap, || {
                let both_ns = other.end_ns.min(interval.end_ns).saturating_sub(interval.start_ns);
                let text = format!("{} ran twice for {} us", interval.job, both_ns / 1_000);
                (text, vec![shown(other), shown(interval)])
            });
        }
        running.push(interval);
    }
}
