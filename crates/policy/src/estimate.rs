//! What a job is expected to take, and its place in the order.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_journal::Estimate;
use muster_state::{BurstKey, GangClass, JobRow, State};
use muster_types::policy::{Order, OrderPolicy};
use muster_types::{JobId, JobSpec, LogTime, QueueKey};

use crate::predict::predict;

/// What the leader expects of jobs that are submitted together at `now`, in one record behind the present
/// position.
#[must_use]
pub fn estimates<'a>(
    state: &State,
    specs: impl IntoIterator<Item = &'a JobSpec>,
    now: LogTime,
) -> Vec<Estimate> {
    estimates_of_parts(state, specs.into_iter().map(|spec| (spec, 1)), now)
}

/// The same of jobs and arrays: with each is how many jobs it comes to.
#[must_use]
pub fn estimates_of_parts<'a>(
    state: &State,
    parts: impl IntoIterator<Item = (&'a JobSpec, u32)>,
    now: LogTime,
) -> Vec<Estimate> {
    let mut known: BTreeMap<(BurstKey, GangClass), Estimate> = BTreeMap::new();
    let mut found = Vec::new();
    let first = state.job_id(state.log_index().next(), 0);
    let mut ahead = 0;
    for (spec, count) in parts {
        let own = JobId(first.0 + ahead);
        ahead += u64::from(count);
        let key = BurstKey::with_class(spec);
        if let Some(estimate) = known.get(&key) {
            found.push(*estimate);
            continue;
        }
        let estimate = estimate_in(state, spec, state.open_burst(key.0, spec, now), now);
        known.insert(key, Estimate { burst: estimate.burst.or(Some(own)), ..estimate });
        found.push(estimate);
    }
    found
}

/// What the leader expects of one job submitted at `now`.
#[must_use]
pub fn estimate(state: &State, spec: &JobSpec, now: LogTime) -> Estimate {
    estimate_in(state, spec, state.open_burst(BurstKey::of(spec), spec, now), now)
}

/// What the leader expects at `now` of a job that it knows, once the job asks for something else: it keeps the times that
/// its position comes from.
#[must_use]
pub fn estimate_again(state: &State, job: JobId, spec: &JobSpec, now: LogTime) -> Estimate {
    let Some(row) = state.job(job) else { return estimate(state, spec, now) };
    let expected = expected(state, spec, None, now);
    let waits_since = state.waits_since_as(job, spec, now).unwrap_or(row.submitted_at);
    let turn = turn(state, spec, (row.submitted_at, waits_since), &expected, now);
    Estimate { run_ms: expected.run_ms, run_high_ms: expected.run_high_ms, turn, burst: None }
}

fn estimate_in(state: &State, spec: &JobSpec, group: Option<JobId>, now: LogTime) -> Estimate {
    let expected = expected(state, spec, group, now);
    let own = turn(state, spec, (now, now), &expected, now);
    // The jobs that wait already determine when the submission group is urgent.
    let waiting = group.filter(|group| state.first_in_line(*group).is_some());
    let turn = waiting.and_then(|group| burst_turn(state, group, now)).unwrap_or(own);
    Estimate { run_ms: expected.run_ms, run_high_ms: expected.run_high_ms, turn, burst: group }
}

/// How long a job is expected to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The median.
    pub run_ms: u64,
    /// The ninth decile.
    pub run_high_ms: u64,
    /// The geometric mean, which the order goes by.
    pub typical_ms: u64,
}

/// What is expected of a job at `now` by what is known by then: the history, and of its submission group
/// which jobs have ended and how long the others have run. What its owner expects of it goes before that.
#[must_use]
pub fn expected(state: &State, spec: &JobSpec, group: Option<JobId>, now: LogTime) -> Expected {
    let most = spec.run_time_limit_ms.unwrap_or(u64::MAX);
    if let Some(run_ms) = spec.expected_run_ms {
        let run_high_ms = run_ms.saturating_add(run_ms / 2).min(most);
        return Expected { run_ms: run_ms.min(most), run_high_ms, typical_ms: run_ms.min(most) };
    }
    let found = predict(state, spec, group, now);
    Expected {
        run_ms: found.quantile_ms(500).min(most),
        run_high_ms: found.quantile_ms(900).min(most),
        typical_ms: found.typical_ms().min(most),
    }
}

/// A place in the order of a tenant, by the policy in force: the smaller goes first.
///
/// The times are when it was submitted, and since when it waits: later for one that ran and was stopped.
///
/// Under [`Order::Predicted`] it is the work that is expected, in milliseconds of a thousandth of a device,
/// plus `ageing_milli` for each millisecond of the time of submission. Under [`Order::Submission`] all are
/// the same, and the ids decide. A gang is before all others once it has waited as long as gives it the
/// right to a reservation, or, by the right of its tenant, when it would not meet its deadline if it took twice as
/// long as expected but can still meet it; among those, whose time came first.
#[must_use]
pub fn turn(
    state: &State,
    spec: &JobSpec,
    (submitted_at, waits_since): (LogTime, LogTime),
    expected: &Expected,
    now: LogTime,
) -> QueueKey {
    let order = &state.policy().policy.order;
    let near_deadline = latest_start(state, spec, expected.run_ms, now).filter(|at| *at <= now);
    let overdue = match order.order {
        // The job that has waited longest goes first anyway.
        Order::Submission => None,
        Order::Predicted => overdue_since(state, spec, waits_since, expected.run_ms, now),
    };
    if let Some(at) = near_deadline.into_iter().chain(overdue).min() {
        return QueueKey::urgent(at);
    }
    QueueKey::ordinary(work(order, spec, submitted_at, expected.typical_ms))
}

fn work(order: &OrderPolicy, spec: &JobSpec, submitted_at: LogTime, typical_ms: u64) -> u64 {
    match order.order {
        Order::Submission => 0,
        Order::Predicted => {
            let work = u128::from(typical_ms) * u128::from(spec.device_milli().max(1));
            let age = u128::from(submitted_at.0) * u128::from(order.ageing_milli);
            u64::try_from(work + age).unwrap_or(u64::MAX)
        }
    }
}

/// When a gang begins to go before all of its tenant and tier that are not urgent.
#[must_use]
pub fn urgent_at(state: &State, spec: &JobSpec, submitted_at: LogTime, run_ms: u64, now: LogTime) -> LogTime {
    let overdue = overdue_at(state, spec, submitted_at, run_ms);
    latest_start(state, spec, run_ms, now).map_or(overdue, |latest| latest.min(overdue))
}

/// Since when a gang waits that has waited so long that it goes before all that do not wait as long, whatever its
/// deadline, and has the right to a reservation; none while it has not.
#[must_use]
pub fn overdue_since(
    state: &State,
    spec: &JobSpec,
    submitted_at: LogTime,
    run_ms: u64,
    now: LogTime,
) -> Option<LogTime> {
    let is_overdue = overdue_at(state, spec, submitted_at, run_ms) <= now;
    is_overdue.then(|| waits_since(spec, submitted_at))
}

fn overdue_at(state: &State, spec: &JobSpec, submitted_at: LogTime, run_ms: u64) -> LogTime {
    waits_since(spec, submitted_at).plus_ms(state.policy().policy.backfill.reserve_after(run_ms))
}

/// Since when a gang waits for more than its time.
pub(crate) fn waits_since(spec: &JobSpec, submitted_at: LogTime) -> LogTime {
    spec.not_before.map_or(submitted_at, |time| time.max(submitted_at))
}

/// When a gang has to start to meet its deadline even if it takes twice as long as expected: for a tenant that has
/// the right to have its deadlines looked at. A deadline that cannot be met any more gives no place.
fn latest_start(state: &State, spec: &JobSpec, run_ms: u64, now: LogTime) -> Option<LogTime> {
    let can_be_met = |deadline: &LogTime| now.plus_ms(run_ms) <= *deadline;
    let deadline = spec.deadline.filter(can_be_met)?;
    let has_right = state.policy().policy.rights(&spec.tenant).deadlines;
    has_right.then(|| deadline.minus_ms(run_ms.saturating_mul(2)))
}

/// The turn that a submission group should have at `now`, by the first of its pending jobs, else by the one
/// it began with; none when that is no longer known. When it is urgent is held against what was expected of
/// that job at submission, so that it does not wait the longer for what is learned meanwhile.
#[must_use]
pub fn burst_turn(state: &State, group: JobId, now: LogTime) -> Option<QueueKey> {
    let first = state.first_in_line(group);
    let stands_for_it = first.unwrap_or(group);
    let (row, spec) = (state.job(stands_for_it)?, state.spec(stands_for_it)?);
    let run_ms = row.estimate.run_ms;
    let expected = Expected { run_ms, ..expected(state, spec, Some(group), now) };
    // Nobody waits: the next job that does has not waited yet.
    let times = if first.is_some() {
        (row.submitted_at, state.waits_since(stands_for_it).unwrap_or(row.submitted_at))
    } else {
        (now, now)
    };
    Some(turn(state, spec, times, &expected, now))
}

/// When a gang that holds devices is expected to end. One that has outlived what was expected of it is
/// given half as long again as it has run.
#[must_use]
pub fn expected_end(row: &JobRow, spec: &JobSpec, now: LogTime) -> Option<LogTime> {
    let end = row.expected_end(spec.run_time_limit_ms)?;
    if end > now {
        return Some(end);
    }
    let begun = row.started_at.or(row.placement.as_ref().map(|p| p.placed_at))?;
    let limit = spec.run_time_limit_ms.map(|limit| begun.plus_ms(limit));
    let later = now.plus_ms((now.since_ms(begun) / 2).max(1_000));
    Some(limit.map_or(later, |limit| later.min(limit.max(now.plus_ms(1_000)))))
}
