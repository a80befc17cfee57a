//! How long what was not there: silences, delays, who led; from the clients' own clock, and from the log.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hdrhistogram::Histogram;
use muster_types::JobId;
use serde::{Deserialize, Serialize};

use super::LeaderBegan;
use super::replayed::LogSummary;
use crate::history::{Call, Consistency, History, Operation, Outcome, Query};
use crate::run::Run;

/// Kinds of operations that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Submissions.
    Submission,
    /// Cancellations.
    Cancellation,
    /// Linearizable reads.
    LinearizableRead,
    /// Reads with a bound.
    BoundedRead,
    /// Reads of whatever there is.
    AnyRead,
}

impl Kind {
    /// Of an operation.
    #[must_use]
    pub fn of(operation: &Operation) -> Kind {
        match &operation.call {
            Call::Submit { .. } => Kind::Submission,
            Call::Cancel { .. } => Kind::Cancellation,
            Call::Read { consistency: Consistency::Linearizable, .. } => Kind::LinearizableRead,
            Call::Read { consistency: Consistency::Bounded { .. }, .. } => Kind::BoundedRead,
            Call::Read { consistency: Consistency::Any, .. } => Kind::AnyRead,
        }
    }

    /// For people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Kind::Submission => "submissions",
            Kind::Cancellation => "cancellations",
            Kind::LinearizableRead => "linearizable reads",
            Kind::BoundedRead => "bounded reads",
            Kind::AnyRead => "reads of any age",
        }
    }
}

/// Time from request to answer, of those that were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delays {
    /// Operations that began in the window.
    pub made: u64,
    /// Of them, those that were answered as they should be.
    pub answered: u64,
    /// Half are faster.
    pub p50_us: u64,
    /// All but one in a hundred.
    pub p99_us: u64,
    /// The slowest.
    pub max_us: u64,
}

/// Operations of one kind, in three windows by when they began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindFigures {
    /// Before the fault.
    pub before: Delays,
    /// From its beginning to its end.
    pub during: Delays,
    /// Behind it.
    pub after: Delays,
    /// The longest time without an answer from the fault to the end of the drill; none where nothing was asked.
    pub silence_ms: Option<u64>,
    /// When that silence began.
    pub silence_from_us: u64,
    /// From the end of the fault to the first answer behind it.
    pub after_heal_ms: Option<u64>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// From clients that no step cut off.
    pub kinds: BTreeMap<Kind, KindFigures>,
    /// Reads of any age on each replica that no step touched: the longest silence of any.
    pub survivors_silence_ms: Option<u64>,
    /// On which replica.
    pub survivors_silence_replica: Option<u64>,
    /// Submissions made from the fault to the end of the fault by clients that were not cut off: the slowest.
    pub submission_worst_ms: Option<u64>,
    /// Submissions of such clients, from the fault on, that were not acknowledged.
    pub submissions_failed: u64,
    /// The longest time without a submission in the log around and behind the fault, by log time: what a cluster says of
    /// itself without any client.
    pub rto_log_ms: Option<u64>,
    /// How long before the fault the oldest acknowledged change was that is lost; 0 where none is.
    pub rpo_ms: u64,
    /// Acknowledged changes that are lost.
    pub lost: u64,
    /// Leaderships, from the one before the fault.
    pub leaders: Vec<LeaderBegan>,
    /// Median delay of submissions made from the time that the drill says to the end of the fault.
    pub settled_p50_ms: Option<u64>,
}

/// A histogram of microseconds up to an hour, with three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("the bounds are in order and the digits are few")
}

/// A replica that no step touched knows a job this long after its submission was acknowledged.
const KNOWN_AFTER_US: u64 = 10_000_000;

/// When each job was acknowledged first.
fn acknowledged_at(history: &History) -> HashMap<JobId, u64> {
    let mut first: HashMap<JobId, u64> = HashMap::new();
    for operation in &history.operations {
        if let Outcome::Acknowledged { jobs, .. } = &operation.outcome {
            for job in jobs {
                let at = first.entry(*job).or_insert(operation.completed_us);
                *at = operation.completed_us.min(*at);
            }
        }
    }
    first
}

/// Whether a read of any age did not find a job that had been acknowledged long before: no answer, then. A replica
/// that has lost everything finds no job at all.
fn is_forgetful(operation: &Operation, acknowledged: &HashMap<JobId, u64>) -> bool {
    let Call::Read { query: Query::Job { job }, .. } = &operation.call else { return false };
    matches!(operation.outcome, Outcome::Refused { .. })
        && acknowledged.get(job).is_some_and(|at| at.saturating_add(KNOWN_AFTER_US) < operation.invoked_us)
}

/// Whether it came to what it was made for.
pub(super) fn is_answered(operation: &Operation) -> bool {
    match &operation.outcome {
        Outcome::Acknowledged { .. } | Outcome::Answered { .. } => true,
        // That a job is not there is an answer.
        Outcome::Refused { code } => code == "JOB_NOT_FOUND" && !operation.is_write(),
        Outcome::Unknown { .. } | Outcome::TimedOut | Outcome::Malformed { .. } => false,
    }
}

fn delays<'a>(operations: impl Iterator<Item = &'a Operation>) -> Delays {
    let mut histogram = histogram();
    let mut made = 0;
    for operation in operations {
        made += 1;
        if is_answered(operation) {
            histogram.saturating_record(operation.took_us().max(1));
        }
    }
    Delays {
        made,
        answered: histogram.len(),
        p50_us: histogram.value_at_quantile(0.5),
        p99_us: histogram.value_at_quantile(0.99),
        max_us: if histogram.is_empty() { 0 } else { histogram.max() },
    }
}

/// The longest time without any of `times` (ascending) between two others, and when it began.
pub(super) fn longest_silence(times: &[u64], from_us: u64, to_us: u64) -> (u64, u64) {
    let mut longest = (0, from_us);
    let mut last = from_us;
    let within = times.iter().copied().filter(|at| (from_us..to_us).contains(at));
    for at in within.chain([to_us.max(from_us)]) {
        if at - last > longest.0 {
            longest = (at - last, last);
        }
        last = at;
    }
    longest
}

/// Answers of some operations, ascending.
pub(super) fn answered_at<'a>(operations: impl Iterator<Item = &'a Operation>) -> Vec<u64> {
    let mut times: Vec<u64> = operations
        .filter(|operation| is_answered(operation))
        .map(|operation| operation.completed_us)
        .collect();
    times.sort_unstable();
    times
}

fn kind_figures(run: &Run, operations: &[&Operation]) -> KindFigures {
    let (fault, heal) = (run.fault_us, run.fault_end_us());
    let between = |from: u64, to: u64| {
        let within = move |operation: &&&Operation| (from..to).contains(&operation.invoked_us);
        delays(operations.iter().filter(within).copied())
    };
    let times = answered_at(operations.iter().copied());
    let last_asked = operations.iter().map(|operation| operation.invoked_us).max();
    // Behind the last request nothing was to be expected.
    let until = last_asked.unwrap_or(0).max(times.last().copied().unwrap_or(0)).min(run.end_us);
    let (silence_us, silence_from_us) = longest_silence(&times, fault, until.max(fault));
    let behind = times.iter().find(|at| **at >= heal);
    KindFigures {
        before: between(0, fault),
        during: between(fault, heal),
        after: between(heal, u64::MAX),
        silence_ms: last_asked.filter(|at| *at >= fault).map(|_| silence_us.div_ceil(1_000)),
        silence_from_us,
        after_heal_ms: behind.map(|at| (at - heal).div_ceil(1_000)),
    }
}

/// Measures a drill. `settle_ms` is from where on behind the fault submissions should be fast again.
pub(super) fn measure(run: &Run, history: &History, told: &LogSummary, settle_ms: Option<u64>) -> Figures {
    let cut_off: BTreeSet<&str> = run.regions_cut_off();
    let reachable = |operation: &&Operation| !cut_off.contains(operation.region.as_str());
    let mut by_kind: BTreeMap<Kind, Vec<&Operation>> = BTreeMap::new();
    for operation in history.operations.iter().filter(reachable) {
        by_kind.entry(Kind::of(operation)).or_default().push(operation);
    }
    let kinds = by_kind.iter().map(|(kind, operations)| (*kind, kind_figures(run, operations))).collect();
    let submissions = by_kind.get(&Kind::Submission).map_or(&[][..], Vec::as_slice);
    let from_fault = |operation: &&&Operation| operation.invoked_us >= run.fault_us;
    let during = |operation: &&&Operation| {
        (run.fault_us..run.fault_end_us().max(run.fault_us.saturating_add(1))).contains(&operation.invoked_us)
    };
    let worst = submissions.iter().filter(from_fault).map(|operation| operation.took_us()).max();
    let failed = submissions.iter().filter(from_fault).filter(|operation| !is_answered(operation)).count();
    let settled = settle_ms.and_then(|settle_ms| {
        let late =
            |operation: &&&Operation| operation.invoked_us >= run.fault_us.saturating_add(settle_ms * 1_000);
        let delays = delays(submissions.iter().filter(during).filter(late).copied());
        (delays.answered > 0).then(|| delays.p50_us.div_ceil(1_000))
    });
    let (survivors_silence_ms, survivors_silence_replica) = survivors(run, history);
    Figures {
        kinds,
        survivors_silence_ms,
        survivors_silence_replica,
        submission_worst_ms: worst.map(|us| us.div_ceil(1_000)),
        submissions_failed: failed as u64,
        rto_log_ms: rto(run, told),
        rpo_ms: rpo_ms(run, history, told),
        lost: told.lost.len() as u64,
        leaders: leaders(run, told),
        settled_p50_ms: settled,
    }
}

/// The longest silence of reads of any age on any surviving replica, by clients that could reach it.
fn survivors(run: &Run, history: &History) -> (Option<u64>, Option<u64>) {
    let surviving = run.surviving_replicas();
    let cut_off = run.regions_cut_off();
    let acknowledged = acknowledged_at(history);
    let forgetful = history.operations.iter().filter(|operation| is_forgetful(operation, &acknowledged));
    let forgetful: HashMap<(u32, u64), Operation> = forgetful
        .map(|operation| {
            let outcome = Outcome::Malformed { what: "an acknowledged job is not there".to_owned() };
            ((operation.client, operation.id), Operation { outcome, ..operation.clone() })
        })
        .collect();
    let mut by_replica: BTreeMap<u64, Vec<&Operation>> = BTreeMap::new();
    for operation in history.operations.iter().filter(|operation| Kind::of(operation) == Kind::AnyRead) {
        let Some(replica) = operation.replica.filter(|replica| surviving.contains(replica)) else { continue };
        if !cut_off.contains(operation.region.as_str()) {
            let operation = forgetful.get(&(operation.client, operation.id)).unwrap_or(operation);
            by_replica.entry(replica).or_default().push(operation);
        }
    }
    let silence = |(replica, operations): (&u64, &Vec<&Operation>)| {
        let figures = kind_figures(run, operations);
        Some((figures.silence_ms?, *replica))
    };
    let worst = by_replica.iter().filter_map(silence).max();
    // A survivor that nobody asked was not seen to answer.
    let all_asked = surviving.iter().all(|replica| by_replica.contains_key(replica));
    match worst.filter(|_| all_asked) {
        Some((ms, replica)) => (Some(ms), Some(replica)),
        None => (None, None),
    }
}

fn rto(run: &Run, told: &LogSummary) -> Option<u64> {
    let fault_ms = run.fault_unix_ms;
    let times: Vec<u64> = told.submitted_at_ms.clone();
    let before = times.iter().copied().rev().find(|at| *at < fault_ms)?;
    let last = times.last().copied().filter(|at| *at >= fault_ms)?;
    let (silence_ms, _) = longest_silence(&times, before, last);
    Some(silence_ms)
}

fn rpo_ms(run: &Run, history: &History, told: &LogSummary) -> u64 {
    let ages = told.lost.iter().map(|place| {
        let acknowledged_us = history.operations[*place].completed_us;
        run.fault_us.saturating_sub(acknowledged_us).div_ceil(1_000)
    });
    ages.max().unwrap_or(0)
}

fn leaders(run: &Run, told: &LogSummary) -> Vec<LeaderBegan> {
    let fault_ms = run.fault_unix_ms;
    let before = told.leaders.iter().rposition(|leader| leader.log_time_ms < fault_ms);
    told.leaders[before.unwrap_or(0).min(told.leaders.len())..].to_vec()
}
