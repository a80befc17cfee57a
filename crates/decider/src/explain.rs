//! Why a job waits, when it will start, and what would help: asked of a read view, on any replica.
//!
//! Nothing here decides: the same policy and planner that place jobs are asked what they would do, on a
//! state that nobody changes. Estimates of starts are made by giving every gang that goes before the job
//! its room first, at the time it is expected to get it.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use muster_journal::Estimate;
use muster_planner::{Budget, Checkpoints, Plan, Verdict, WaitReason, plan};
use muster_policy::{Line, estimate};
use muster_state::quota::QuotaBlock;
use muster_state::{JobRow, Phase, State, Turn};
use muster_types::{JobId, JobSpec, LogIndex, LogTime, Name};

use crate::future::{Future, Pace};
use crate::planned::{narrowed, planned_spec};
use crate::schedule::with_terms;

/// Jobs before the explained one that are given their room first.
const AHEAD_MAX: usize = 256;

/// Blockers that are listed.
const BLOCKERS_MAX: usize = 8;

/// Work of one explanation.
const VISITS: u64 = 4_000_000;

/// A gang before the job that keeps room for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Which job.
    pub job: JobId,
    /// Its name.
    pub name: Name,
    /// Its workers.
    pub workers: u32,
    /// When it is expected to start.
    pub starts_at: LogTime,
}

/// A quota that has no room for the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaReport {
    /// Type the job could use.
    pub kind: Name,
    /// Region.
    pub region: Name,
    /// What the tenant may still use there.
    pub room_milli: u64,
    /// What the job asks for.
    pub wanted_milli: u64,
    /// The limit that stands in the way first.
    pub blocked_by: QuotaBlock,
}

/// When the job is expected to start, with one chance, five and nine in ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartEstimate {
    /// If everything before it ends early.
    pub q10: LogTime,
    /// If it ends as expected.
    pub q50: LogTime,
    /// If it ends late; none when it is not known to start at all then.
    pub q90: Option<LogTime>,
}

/// Where the job stands in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Different requests that have their turn before it.
    pub requests_before: usize,
    /// Whether counting stopped there.
    pub or_more: bool,
}

/// Why a job waits or where it would go, with everything that policy and planner know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobExplanation {
    /// The reason, from a closed set.
    pub reason: WaitReason,
    /// One sentence.
    pub sentence: String,
    /// The policy this follows from.
    pub policy_version: LogIndex,
    /// What is expected of the job.
    pub estimate: Estimate,
    /// Where it would go now.
    pub plan: Option<Plan>,
    /// Its place in line; none when it is not in line.
    pub position: Option<Position>,
    /// Cluster by cluster.
    pub places: muster_planner::Explanation,
    /// Quotas in the way.
    pub quotas: Vec<QuotaReport>,
    /// Gangs before it that keep room for themselves.
    pub blockers: Vec<Blocker>,
    /// When it is expected to start.
    pub start: Option<StartEstimate>,
}

impl fmt::Display for JobExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.code(), self.sentence)
    }
}

/// Why a job waits; none when there is no such job or it does not wait.
#[must_use]
pub fn explain_job(state: &State, now: LogTime, job: JobId) -> Option<JobExplanation> {
    let row = state.job(job)?;
    let spec = state.spec(job)?;
    if row.phase != Phase::Pending {
        return None;
    }
    Some(explain(state, now, Some(job), (spec, place_of(state, job)), row))
}

/// The data set that a job's checkpoints are in.
fn place_of(state: &State, job: JobId) -> Option<&Name> {
    state.contract(job)?.checkpoint.place.as_ref()
}

/// The same without what takes long to find out: its place in line, who keeps room, and when it starts.
#[must_use]
pub fn explain_briefly(state: &State, now: LogTime, job: JobId) -> Option<(WaitReason, String)> {
    let (row, spec) = (state.job(job)?, state.spec(job)?);
    if row.phase != Phase::Pending {
        return None;
    }
    if let Some(known) = known_reason(state, Some(job), (spec, place_of(state, job)), row, now) {
        return Some(known);
    }
    let planned = planned_spec(state, job);
    let spec = planned.as_deref().unwrap_or(spec);
    let holds = Future::of(now).holds_for(state, &spec.tenant);
    let places =
        with_terms(state, now, spec, row, &holds, |terms| muster_planner::explain(state, spec, terms, None));
    Some((places.reason, places.sentence))
}

/// What would become of a job that was submitted now, with its checkpoints in that data set, if in one.
#[must_use]
pub fn explain_spec(state: &State, now: LogTime, spec: &JobSpec, place: Option<&Name>) -> JobExplanation {
    let row = JobRow::submitted(now, estimate(state, spec, now), spec);
    explain(state, now, None, (spec, place), &row)
}

fn explain(
    state: &State,
    now: LogTime,
    job: Option<JobId>,
    (own, place): (&JobSpec, Option<&Name>),
    row: &JobRow,
) -> JobExplanation {
    // Where its checkpoints cannot be read is no place for it.
    let planned = place.and_then(|place| narrowed(state, own, place));
    let spec = planned.as_ref().unwrap_or(own);
    let policy = state.policy();
    let checkpoints = place.and_then(|data_set| {
        let copies = &policy.policy.datasets.get(data_set)?.regions;
        Some(Checkpoints { data_set, copies, regions: &own.regions })
    });
    let ahead = Ahead::of(state, now, job, spec, row, None);
    let holds = ahead.future.holds_for(state, &spec.tenant);
    let mut budget = Budget::new(VISITS);
    let places = with_terms(state, now, spec, row, &holds, |terms| {
        muster_planner::explain(state, spec, terms, checkpoints.as_ref())
    });
    let verdict = with_terms(state, now, spec, row, &holds, |terms| plan(state, spec, terms, &mut budget));
    let found = match verdict {
        Verdict::Fits(plan) => Some(plan),
        Verdict::Waits | Verdict::OutOfBudget => None,
    };
    let (reason, sentence) = match known_reason(state, job, (own, place), row, now) {
        Some(known) => known,
        None => reason(found.as_ref(), &ahead, &places),
    };
    let blockers = ahead.future.reservations().iter().take(BLOCKERS_MAX).filter_map(|reservation| {
        let spec = state.spec(reservation.job)?;
        Some(Blocker {
            job: reservation.job,
            name: spec.name.clone(),
            workers: spec.worker_count(),
            starts_at: reservation.start.at,
        })
    });
    let blockers = blockers.collect();
    let start = start(state, now, job, spec, row, found.is_some() && ahead.position.requests_before == 0);
    JobExplanation {
        reason,
        sentence,
        policy_version: state.policy().version,
        estimate: row.estimate,
        plan: found,
        position: row.is_in_line().then_some(ahead.position),
        places,
        quotas: quotas(state, spec),
        blockers,
        start,
    }
}

/// When a job will start, by giving everybody before it the room they will get; nothing is said of one that
/// waits for other jobs, or for those that make room for it at this moment.
fn start(
    state: &State,
    now: LogTime,
    job: Option<JobId>,
    spec: &JobSpec,
    row: &JobRow,
    is_next: bool,
) -> Option<StartEstimate> {
    let waits_for_jobs = !row.released && !spec.dependencies.is_empty();
    if row.promise.is_some() || waits_for_jobs {
        return None;
    }
    if is_next && row.released {
        return Some(StartEstimate { q10: now, q50: now, q90: Some(now) });
    }
    let at = |pace: Pace| Ahead::of(state, now, job, spec, row, Some(pace)).start(state, spec, row);
    let expected = at(Pace::Expected)?;
    Some(StartEstimate {
        q10: at(Pace::Early).unwrap_or(expected).min(expected),
        q50: expected,
        q90: at(Pace::Late).map(|late| late.max(expected)),
    })
}

/// Where it would fit, or why nowhere.
fn reason(found: Option<&Plan>, ahead: &Ahead, places: &muster_planner::Explanation) -> (WaitReason, String) {
    match found {
        Some(plan) => {
            let place = format!("{}/{}", plan.region, plan.cluster);
            match ahead.position.requests_before {
                0 => (WaitReason::InLine, format!("it fits now in {place} and is next in line")),
                before => (
                    WaitReason::InLine,
                    format!("it fits now in {place}; {before} different requests have their turn before it"),
                ),
            }
        }
        None => (places.reason, places.sentence.clone()),
    }
}

/// Reasons that lie in the job itself: known without looking at a node.
fn known_reason(
    state: &State,
    job: Option<JobId>,
    (spec, place): (&JobSpec, Option<&Name>),
    row: &JobRow,
    now: LogTime,
) -> Option<(WaitReason, String)> {
    if row.promise.is_some() {
        let text = "others are making room for it; it starts once they have stopped";
        return Some((WaitReason::MakingRoom, text.to_string()));
    }
    if !row.released {
        let open = spec.dependencies.iter().filter(|dependency| {
            state.job(dependency.job).is_some_and(|row| !matches!(row.phase, Phase::Finished(_)))
        });
        let open: Vec<String> = open.map(|dependency| dependency.job.to_string()).collect();
        if let Some(first) = open.first() {
            let more = match open.len() {
                1 => String::new(),
                many => format!(" and {} more", many - 1),
            };
            return Some((WaitReason::Dependency, format!("it waits for {first}{more}")));
        }
        let time = spec.not_before.unwrap_or_default();
        if let Some(waits) = job.and_then(|job| retry_wait(state, job, now)) {
            return Some((WaitReason::RetryBackoff, waits));
        }
        return Some((WaitReason::NotBefore, format!("it is not to start before {time}")));
    }
    if let Some(place) = place
        && narrowed(state, spec, place).is_none()
    {
        let text = format!("no region that it may use has a copy of {place}, which its checkpoints are in");
        return Some((WaitReason::CheckpointNotReadable, text));
    }
    None
}

/// How long a job waits that failed, and how it did.
fn retry_wait(state: &State, job: JobId, now: LogTime) -> Option<String> {
    let recovery = state.recovery(job)?;
    let until = recovery.wait_until?;
    let last = recovery.last.as_ref()?;
    let node = last.node.and_then(|node| state.node(node)).map(|row| format!(" on {}", row.spec.name));
    let node = node.unwrap_or_default();
    let rank = last.rank.map(|rank| format!(" of rank {rank}")).unwrap_or_default();
    Some(format!(
        "attempt {} failed ({}{rank}{node}: {}); failure {} in a row, it is tried again in {} ms, at {until}",
        last.attempt,
        last.class,
        last.detail,
        recovery.streak,
        until.since_ms(now)
    ))
}

/// Quotas that have less room than the job asks for.
fn quotas(state: &State, spec: &JobSpec) -> Vec<QuotaReport> {
    let mut found: Vec<QuotaReport> = Vec::new();
    if !state.has_quotas() {
        return found;
    }
    for (key, _) in state.pools() {
        let Some(kind) = &key.kind else { continue };
        let of_group = |group: &muster_types::TaskGroup| {
            let accepts = group.request.accelerators.as_ref().is_some_and(|request| request.accepts(kind));
            if accepts { u64::from(group.workers_min) * group.request.device_milli() } else { 0 }
        };
        let wanted_milli: u64 = spec.groups.iter().map(of_group).sum();
        let known = found.iter().any(|report| report.kind == *kind && report.region == key.region);
        let allowed = spec.regions.is_empty() || spec.regions.contains(&key.region);
        if wanted_milli == 0 || known || !allowed {
            continue;
        }
        let capacity = |kind: &Name, region: Option<&Name>| state.registered_milli(kind, region);
        let room = state.quota_usage().room(capacity, &spec.tenant, kind, &key.region);
        if room.total_milli() < wanted_milli {
            found.push(QuotaReport {
                kind: kind.clone(),
                region: key.region.clone(),
                room_milli: room.total_milli(),
                wanted_milli,
                blocked_by: room.blocked_by,
            });
        }
    }
    found
}

/// The line before a job, those in it with the room that is kept for them; at a pace, with the room that
/// they are expected to get.
struct Ahead {
    future: Future,
    position: Position,
}

impl Ahead {
    fn of(
        state: &State,
        now: LogTime,
        job: Option<JobId>,
        spec: &JobSpec,
        row: &JobRow,
        pace: Option<Pace>,
    ) -> Ahead {
        let mut future = Future::at_pace(now, pace.unwrap_or(Pace::Expected));
        let mut line = Line::form(state, now);
        let own = Turn { turn: row.estimate.turn, job: job.unwrap_or(JobId(u64::MAX)) };
        let mut position = Position { requests_before: 0, or_more: false };
        while let Some(candidate) = line.take_next(state) {
            let same_line = candidate.tier == spec.tier && candidate.tenant == spec.tenant;
            if candidate.tier < spec.tier || (same_line && candidate.turn >= own) {
                break;
            }
            if position.requests_before == AHEAD_MAX {
                position.or_more = true;
                break;
            }
            position.requests_before += 1;
            let Some(row) = state.job(candidate.turn.job) else { break };
            let Some(before) = planned_spec(state, candidate.turn.job) else {
                line.waits(state, &candidate);
                continue;
            };
            match pace {
                // As in a real pass: only those with the right to it.
                None => future.reserve(state, candidate.turn.job, &before, row),
                Some(_) => future.expect_start(state, candidate.turn.job, &before, row),
            };
            line.waits(state, &candidate);
        }
        Ahead { future, position }
    }

    fn start(&mut self, state: &State, spec: &JobSpec, row: &JobRow) -> Option<LogTime> {
        let start = self.future.earliest(state, spec, row).map(|(_, start)| start.at)?;
        Some(start.max(spec.not_before.unwrap_or_default()))
    }
}
