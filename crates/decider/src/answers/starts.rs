//! When each waiting job is expected to start: one forecast for the whole queue, as far as a bound on the work lets it come.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_planner::Budget;
use muster_policy::{Candidate, Line, blocked_by};
use muster_state::{QueuePosition, State};
use muster_types::policy::NonPreemptible;
use muster_types::{JobId, JobSpec, LogTime};

use crate::answers::explain::StartEstimate;
use crate::answers::queue_walk::QueueForecast;
use crate::future::{Future, KeptReservations, LicenceKeepers, Pace};
use crate::rules::counted::{Counted, are_there, needed};
use crate::rules::planned::planned_spec;

/// When one job is expected to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobStart {
    /// Which.
    pub job: JobId,
    /// None where it is not known: its tenant is at a limit, it lacks licences or those before it take them, strict order holds it, it
    /// may not borrow, or nothing it could use comes free.
    pub start: Option<StartEstimate>,
}

/// Expected starts of waiting jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedStarts {
    /// In the order in which they were given their capacity.
    pub starts: Vec<JobStart>,
    /// Whether more jobs wait than the bounds let it come to.
    pub is_cut: bool,
}

/// Gives the jobs of the pending queue their capacity one after another, and says when each has it: at most `jobs_max` of them, for
/// at most `visits` of the planner at each of three paces. `steps_max` bounds how many requests without a turn are stepped over.
///
/// First comes the first job of each request, in the order of the queue, and then the second of each, and so on: jobs that ask for
/// the same take turns with others as their tenants do. The same jobs in another order would get other times, so it is an estimate.
#[must_use]
pub fn expected_starts(
    state: &State,
    now: LogTime,
    kept: &KeptReservations,
    bounds: (usize, u64, u64),
) -> ExpectedStarts {
    expected_starts_in(state, &mut QueueForecast::new(state, now, Arc::new(kept.clone())), bounds)
}

/// The same at the time of a forecast of that state, which has what explanations of it have in common: what runs is looked at once
/// for all of them. A forecast of another state is made again.
#[must_use]
pub fn expected_starts_in(
    state: &State,
    forecast: &mut QueueForecast,
    (jobs_max, steps_max, visits): (usize, u64, u64),
) -> ExpectedStarts {
    forecast.ensure_of(state);
    let (order, is_cut) = order(state, forecast.now(), jobs_max, steps_max);
    let mut walk = |pace| walk(state, forecast, pace, &order, visits);
    let expected = walk(Pace::Expected);
    let (early, late) = (walk(Pace::Early), walk(Pace::Late));
    let estimate = |(index, q50): (usize, LogTime)| {
        let at = |starts: &[Option<LogTime>]| starts.get(index).copied().flatten();
        let q10 = at(&early).map_or(q50, |early| early.min(q50));
        StartEstimate { q10, q50, q90: at(&late).map(|late| late.max(q50)) }
    };
    let starts: Vec<JobStart> = expected
        .iter()
        .zip(&order)
        .enumerate()
        .map(|(index, (q50, (job, _)))| JobStart { job: *job, start: q50.map(|q50| estimate((index, q50))) })
        .collect();
    ExpectedStarts { is_cut: is_cut || starts.len() < order.len(), starts }
}

/// Jobs in the order in which they are given their capacity, each with whether its tenant has nominal quota for the first of its like,
/// and whether there are more.
fn order(state: &State, now: LogTime, jobs_max: usize, steps_max: u64) -> (Vec<(JobId, bool)>, bool) {
    let mut line = Line::form(state, now);
    let mut requests: Vec<(Candidate, QueuePosition, JobId)> = Vec::new();
    let mut order = Vec::new();
    let mut is_cut = false;
    while let Some(candidate) = line.take_within(state, steps_max) {
        if order.len() == jobs_max {
            is_cut = true;
            break;
        }
        line.waits(state, &candidate);
        order.push((candidate.turn.job, candidate.within_nominal));
        let (place, job) = (candidate.turn, candidate.turn.job);
        requests.push((candidate, place, job));
    }
    is_cut |= line.is_cut();
    while !requests.is_empty() {
        let mut more = Vec::with_capacity(requests.len());
        for (candidate, place, job) in requests {
            let of = (candidate.tier, &candidate.tenant, candidate.class);
            let Some((place, job)) = state.next_alike(of, place, job) else { continue };
            if order.len() == jobs_max {
                return (order, true);
            }
            order.push((job, candidate.within_nominal));
            more.push((candidate, place, job));
        }
        requests = more;
    }
    (order, is_cut)
}

/// When each of these jobs has its capacity if what runs ends at a pace; fewer of them where the budget is spent.
fn walk(
    state: &State,
    forecast: &mut QueueForecast,
    pace: Pace,
    order: &[(JobId, bool)],
    visits: u64,
) -> Vec<Option<LogTime>> {
    let (now, kept) = (forecast.now(), Arc::clone(forecast.kept()));
    let mut future = Future::resume_at(now, KeptReservations::clone(&kept), pace);
    future.set_foreseen(&forecast.foreseen(pace));
    let mut budget = Budget::new(visits);
    future.take_up(state, &mut budget);
    let mut taken = TakenByOthers { keepers: kept.licence_keepers(), counts: BTreeMap::new() };
    let mut starts = Vec::with_capacity(order.len());
    for (job, within_nominal) in order {
        let start = next(state, now, (&mut future, &mut taken), (*job, *within_nominal), &mut budget);
        // What was found with too little left may be wrong.
        if budget.is_spent() {
            break;
        }
        starts.push(start);
    }
    forecast.learn(pace, &future);
    starts
}

/// What those before a job take of licences, and of limits on CPUs and memory. When they give it back is not foreseen.
struct TakenByOthers<'a> {
    keepers: &'a LicenceKeepers,
    counts: BTreeMap<Counted, u64>,
}

impl TakenByOthers<'_> {
    /// Whether enough is left of what a job needs.
    fn leaves(&self, state: &State, needed: &[(Counted, u64)]) -> bool {
        let taken = |what: &Counted| self.counts.get(what).copied().unwrap_or(0);
        needed.iter().all(|(what, count)| *count <= what.free(state).saturating_sub(taken(what)))
    }

    fn take(&mut self, needed: Vec<(Counted, u64)>) {
        for (what, count) in needed {
            let taken = self.counts.entry(what).or_default();
            *taken = taken.saturating_add(count);
        }
    }
}

fn next(
    state: &State,
    now: LogTime,
    (future, taken): (&mut Future, &mut TakenByOthers<'_>),
    (job, within_nominal): (JobId, bool),
    budget: &mut Budget,
) -> Option<LogTime> {
    let row = state.job(job)?;
    let spec = planned_spec(state, job)?;
    let is_barred = state.running_limit_reached(&spec.tenant).is_some()
        || state.is_user_at_limit(job)
        || state.is_held_by_limit(job)
        || state.is_over_budget(job, now);
    if is_barred || (!within_nominal && never_borrows(state, &spec)) {
        return None;
    }
    // Those that it may not go past may block it for longer than until they have their capacity, and it keeps nothing meanwhile.
    if blocked_by(state, job, now).is_some() {
        return None;
    }
    let needed = needed(state, &spec);
    if !taken.leaves(state, &needed) {
        // It keeps what is free from those behind it until it starts.
        if are_there(state, &needed) && !taken.keepers.keeps_nothing(job) {
            taken.take(needed);
        }
        return None;
    }
    future.turn_of(state, job, within_nominal, budget);
    future.forget_who_gives_way(state, job, &spec, row);
    let start = future.expect_start(state, job, &spec, row, budget)?;
    taken.take(needed);
    Some(start)
}

/// Whether a job takes only what its tenant is promised, of which nobody can foresee when it is free of others that must not be stopped.
fn never_borrows(state: &State, spec: &JobSpec) -> bool {
    let rights = state.policy().policy.rights(&spec.tenant);
    !spec.preemptible && state.has_quotas() && rights.non_preemptible != NonPreemptible::Always
}
