//! Preemption of running gangs: for a gang that goes before them, for one that would fit if they were placed closer
//! together, and for themselves when they can grow.
//!
//! Whatever is decided here is one record: which gangs stop, and which gang gets which capacity. What is freed is
//! promised from the first moment, so no other gang can take it, and a preempted gang cannot take it back.
//!
//! The gangs to preempt are found place by place ([`muster_planner::relief`]): the cheapest gangs on each host, rack,
//! cube or rectangle that could take the claimant, and the cheapest of these places. [`super::claimant`] says which
//! gangs may be preempted.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use muster_journal::{CapacityHold, Decision, RearrangeCause, Stop, WorkerSlot};
use muster_planner::{Budget, Plan, Verdict, needs_one_host, plan};
use muster_policy::{headroom, lost_milli_ms, minimum_run_ends, resumes};
use muster_state::{Forecast, JobRow, NominalCover, PreemptionReason, State};
use muster_types::{JobId, JobSpec, LogTime, Name, limits};

use crate::future::{Future, LaterCapacity};
use crate::memory::searches::{Claim, Look};
use crate::passes::claimant::{Claimant, Means, Spent};
use crate::passes::ways::Ways;
use crate::rules::affinity::may_be_kept_away;
use crate::rules::counted::no_larger;
use crate::rules::planned::planned_spec;
use crate::rules::terms::with_paid_terms;
use crate::settle::job::settle;
use crate::speculation::Speculation;

/// Gangs to preempt up to which the plan is tried without each of them.
pub(super) const SPARED_ONE_BY_ONE_MAX: usize = 16;

/// Gangs with a promise that are looked at for one claimant.
const PROMISES_LOOKED_AT_MAX: usize = 256;

/// Searches for one claimant: each excludes the gangs that the previous ones found unsuitable.
const SEARCHES_MAX: usize = 4;

/// The outcome of a search for gangs to preempt.
pub(super) enum PreemptOutcome {
    /// Gangs are preempted, or give up a promise, and the claimant is promised what that frees.
    Promised {
        /// The clusters concerned.
        places: Vec<(Name, Name)>,
    },
    /// Gangs that are stopping already will leave enough: it is kept for the claimant during the pass.
    Coming,
    /// No gang may be preempted for it, or nothing has changed since all that may be could not free enough.
    NobodyToAsk,
    /// All gangs that may be preempted for it could not free enough.
    NotEnough,
    /// The budget ran out before an answer.
    OutOfBudget,
}

/// A plan to preempt gangs.
struct Proposal {
    stops: Vec<(JobId, RearrangeCause)>,
    promises: Vec<CapacityHold>,
    place: (Name, Name),
}

/// Preempts gangs that run for one that waits, or else takes over capacity that is promised to gangs which have not begun.
pub(super) fn claim_capacity(
    speculation: &mut Speculation,
    (job, spec, row): (JobId, &JobSpec, &JobRow),
    claim: Claim,
    future: &mut Future,
    budget: &mut Budget,
) -> PreemptOutcome {
    let outcome = stop_others(speculation, (job, spec, row), claim, future, budget);
    if !matches!(outcome, PreemptOutcome::NobodyToAsk | PreemptOutcome::NotEnough) {
        return outcome;
    }
    match take_over(speculation.state(), speculation.now(), (job, spec, row), future, budget) {
        Ok(None) => outcome,
        Ok(Some(taken)) => {
            for (region, cluster) in taken.places {
                future.changed(&region, &cluster);
            }
            for job in taken.from {
                speculation.push(Decision::PromiseDropped { job });
            }
            future.keep_coming(&taken.forecast, spec, &taken.plan);
            PreemptOutcome::Coming
        }
        Err(Spent) => PreemptOutcome::OutOfBudget,
    }
}

/// Finds capacity that is promised to gangs which go behind the claimant and hold nothing yet. No work is lost by that. Once
/// such a gang had begun, it would run for the policy's minimum before it could be stopped.
fn take_over(
    state: &State,
    now: LogTime,
    (job, spec, row): (JobId, &JobSpec, &JobRow),
    future: &mut Future,
    budget: &mut Budget,
) -> Result<Option<TakenOver>, Spent> {
    let cover = NominalCover::of(state);
    let mut from: Vec<JobId> = Vec::new();
    for other in state.promised().take(PROMISES_LOOKED_AT_MAX) {
        if !budget.visit() {
            return Err(Spent);
        }
        if cover.may_take_over(state.quota_usage(), spec, other).is_some() {
            from.push(other);
        }
    }
    if from.is_empty() {
        return Ok(None);
    }
    let without_stopping = future.without_stopping(state, budget).ok_or(Spent)?;
    let holds = future.holds_for_job(state, job, spec, row);
    let look = &Look::Everywhere;
    let claimant = Claimant { state, cover: &cover, job, spec, row, holds: &holds, future, look, now };
    let mut forecast = without_stopping.clone();
    // Asked again as the list goes on: what was taken back so far may have been all of it.
    from.retain(|other| {
        let may = cover.may_take_over(forecast.quota_usage(), spec, *other).is_some();
        if may {
            forecast.drop_promise(*other);
        }
        may
    });
    let Some(mut plan) = claimant.plan_on(&forecast, budget)? else { return Ok(None) };
    // A gang keeps its promise if the claimant can be placed without that.
    let mut at = from.len().min(SPARED_ONE_BY_ONE_MAX);
    while at > 0 && from.len() > 1 {
        at -= 1;
        let mut without = without_stopping.clone();
        for (_, other) in from.iter().enumerate().filter(|(place, _)| *place != at) {
            without.drop_promise(*other);
        }
        if let Some(found) = claimant.plan_on(&without, budget)? {
            from.remove(at);
            (plan, forecast) = (found, without);
        }
    }
    budget.take(cover.take_counted());
    let promises = from.iter().filter_map(|other| state.job(*other)?.promise.as_ref());
    let places = promises.filter_map(|promise| place_of(state, &promise.slots)).collect();
    Ok(Some(TakenOver { from, places, forecast, plan }))
}

/// Preempts gangs that run and go behind the claimant.
fn stop_others(
    speculation: &mut Speculation,
    (job, spec, row): (JobId, &JobSpec, &JobRow),
    claim: Claim,
    future: &mut Future,
    budget: &mut Budget,
) -> PreemptOutcome {
    let state = speculation.state();
    let now = speculation.now();
    let means: Vec<Means> =
        [Means::Move, Means::Stop].into_iter().filter(|means| means.has_any(state, spec, row, now)).collect();
    let is_stopping = state.stopping().next().is_some();
    if means.is_empty() && !is_stopping && !future.has_own() {
        return PreemptOutcome::NobodyToAsk;
    }
    future.keep_what_is_owed(state, budget);
    let holds = future.holds_for_job(state, job, spec, row);
    let cover = NominalCover::of(state);
    if is_stopping {
        // Gangs that are stopping already may leave enough: then nobody else has to.
        let Some(forecast) = future.without_stopping(state, budget) else {
            return PreemptOutcome::OutOfBudget;
        };
        let look = &Look::Everywhere;
        let claimant = Claimant { state, cover: &cover, job, spec, row, holds: &holds, future, look, now };
        match claimant.plan_on(&forecast, budget) {
            Ok(None) => {}
            Ok(Some(plan)) => {
                future.keep_coming(&forecast, spec, &plan);
                return PreemptOutcome::Coming;
            }
            Err(Spent) => return PreemptOutcome::OutOfBudget,
        }
    }
    let look = speculation.searches().look(&claim, spec, now);
    if look == Look::Nowhere {
        return PreemptOutcome::NobodyToAsk;
    }
    let look = &look;
    // What is promised already is met by those who are stopping, so that nobody else has to stop for it.
    let leavers = is_stopping.then(|| future.with_leavers(state, budget));
    let known = leavers.as_deref().unwrap_or(state);
    let claimant = Claimant { state: known, cover: &cover, job, spec, row, holds: &holds, future, look, now };
    if let Some(decision) = end_overrunners(&claimant, budget) {
        budget.take(cover.take_counted());
        let place = match &decision {
            Decision::Rearranged { promises, .. } => {
                promises.first().and_then(|p| place_of(state, &p.workers))
            }
            _ => None,
        };
        speculation.push(decision);
        return PreemptOutcome::Promised { places: place.into_iter().collect() };
    }
    if means.is_empty() {
        return PreemptOutcome::NobodyToAsk;
    }
    // An elastic gang has others stopped for its least size alone: beyond that it grows into what is free.
    let least = least_size(spec);
    let least = least.as_ref().unwrap_or(spec);
    let for_least = Claimant { spec: least, ..claimant };
    // To move costs less than to stop.
    let mut found = Ok(None);
    for means in means {
        found = if means == Means::Stop { &for_least } else { &claimant }.propose(means, budget);
        if !matches!(found, Ok(None)) {
            break;
        }
    }
    // What comes back to its tenant piece by piece is not to be lent again.
    let later = if matches!(found, Ok(None)) && headroom(state, spec).is_promised {
        Claimant { look: &Look::Everywhere, ..for_least }.propose_later(budget)
    } else {
        Ok(None)
    };
    budget.take(cover.take_counted());
    let proposal = match found {
        Ok(Some(proposal)) => proposal,
        Ok(None) => {
            match later {
                Ok(Some(later)) => future.keep_back(job, least, &later),
                Ok(None) => {}
                Err(Spent) => return PreemptOutcome::OutOfBudget,
            }
            speculation.searches_mut().remember(claim, look, now);
            return if *look == Look::Everywhere {
                PreemptOutcome::NotEnough
            } else {
                PreemptOutcome::NobodyToAsk
            };
        }
        Err(Spent) => return PreemptOutcome::OutOfBudget,
    };
    let mut places: BTreeSet<(Name, Name)> = BTreeSet::from([proposal.place.clone()]);
    places.extend(proposal.promises.iter().filter_map(|promise| place_of(state, &promise.workers)));
    let promised: Vec<JobId> = proposal.promises.iter().map(|promise| promise.job).collect();
    let decision = proposal.decision(state);
    speculation.push(decision);
    // What was short may have been quota alone: then the capacity is free already.
    for job in promised {
        settle(speculation, job);
    }
    PreemptOutcome::Promised { places: places.into_iter().collect() }
}

/// Ends what was started on the nodes kept for a gang to fill the time, and has outlived what was expected of it: if
/// the gang starts then.
fn end_overrunners(claimant: &Claimant<'_>, budget: &mut Budget) -> Option<Decision> {
    let Claimant { state, cover, spec, now, .. } = *claimant;
    let recorded = cover.state();
    let minimum_run_ms = state.policy().policy.preemption.minimum_run_ms;
    let mut forecast = Forecast::new(state);
    let mut stops = Vec::new();
    for job in claimant.future.borrowed_time(state) {
        let started = state.job(job).and_then(|row| row.started_at);
        let ran_long_enough = started.is_some_and(|at| now.since_ms(at) >= minimum_run_ms);
        let usage = state.quota_usage();
        if ran_long_enough
            && stops.len() < limits::REARRANGED_STOPS_MAX
            && cover.may_stop(usage, spec, job, now) == Some(PreemptionReason::Overrun)
        {
            forecast.end(job);
            stops.push(stop(state, job, RearrangeCause::Preempted { by: claimant.job }));
        }
    }
    if stops.is_empty() {
        return None;
    }
    let plan = claimant.plan_on(&forecast, budget).ok()??;
    let nodes: BTreeSet<_> = plan.workers.iter().map(|slot| slot.node).collect();
    // Those it does not start in place of go on.
    stops.retain(|stop| {
        let placement = state.job(stop.job).and_then(|row| row.placement.as_ref());
        placement.is_some_and(|placement| placement.slots.iter().any(|slot| nodes.contains(&slot.node)))
    });
    let promises = alloc::vec![CapacityHold { job: claimant.job, workers: plan.workers }];
    let decision = Decision::Rearranged { stops, promises };
    recorded.check(&decision).is_ok().then_some(decision)
}

pub(super) fn stop(state: &State, job: JobId, cause: RearrangeCause) -> Stop {
    let row = state.job(job).expect("a preempted gang has a row");
    let token = row.placement.as_ref().expect("a preempted gang has a placement").token;
    Stop { job, token, cause }
}

/// The same gang with no more workers than it needs to start; none when that is all of them.
fn least_size(spec: &JobSpec) -> Option<JobSpec> {
    if !spec.is_elastic() {
        return None;
    }
    let mut draft = spec.clone().into_draft();
    for group in &mut draft.groups {
        group.workers = group.workers_min;
    }
    draft.check().ok()
}

fn place_of(state: &State, workers: &[WorkerSlot]) -> Option<(Name, Name)> {
    let node = state.node(workers.first()?.node)?;
    Some((node.spec.region.clone(), node.spec.cluster.clone()))
}

impl Proposal {
    /// As it goes into the log.
    fn decision(&self, state: &State) -> Decision {
        let stops = self.stops.iter().map(|(job, cause)| stop(state, *job, *cause)).collect();
        Decision::Rearranged { stops, promises: self.promises.clone() }
    }
}

/// Promised capacity that a claimant takes over.
struct TakenOver {
    /// Who gives it up.
    from: Vec<JobId>,
    /// The clusters that it is in.
    places: BTreeSet<(Name, Name)>,
    /// The state without that, and without what is stopping.
    forecast: Forecast,
    /// Where the claimant would go.
    plan: Plan,
}

/// Why a preemption plan cannot be carried out.
enum Fault {
    /// This gang cannot be preempted, or has nowhere to go.
    Gang(JobId),
    /// The claimant does not fit, or too many would stop.
    Way,
    Spent,
}

impl Claimant<'_> {
    /// The cheapest preemption plan that holds in every respect.
    fn propose(&self, means: Means, budget: &mut Budget) -> Result<Option<Proposal>, Spent> {
        let mut passed_over: BTreeSet<JobId> = BTreeSet::new();
        for _ in 0..SEARCHES_MAX {
            let before = passed_over.len();
            for way in Ways::new(self, means, &passed_over).find(budget)? {
                match self.try_way(&way, means, budget) {
                    Ok(proposal) => return Ok(Some(proposal)),
                    Err(Fault::Gang(job)) => _ = passed_over.insert(job),
                    Err(Fault::Way) => {}
                    Err(Fault::Spent) => return Err(Spent),
                }
            }
            if passed_over.len() == before {
                break;
            }
        }
        Ok(None)
    }

    /// The cheapest capacity that will become available without anything else having to happen.
    fn propose_later(&self, budget: &mut Budget) -> Result<Option<LaterCapacity>, Spent> {
        let means = Means::StopLater;
        for way in Ways::new(self, means, &BTreeSet::new()).find(budget)? {
            let mut forecast = Forecast::new(self.state);
            let mut at = self.now;
            for job in &way {
                if self.may_ask(*job, forecast.quota_usage(), means) {
                    at = at.max(minimum_run_ends(self.state, *job, self.now).unwrap_or(self.now));
                    forecast.end(*job);
                }
            }
            if let Some(plan) = self.plan_on(&forecast, budget)? {
                return Ok(Some(LaterCapacity { forecast, plan, at }));
            }
        }
        Ok(None)
    }

    /// How many may stop for the claimant. What is promised comes back from however many borrow it.
    fn stops_max(&self) -> usize {
        if headroom(self.state, self.spec).is_promised {
            return limits::REARRANGED_STOPS_MAX;
        }
        let rules = &self.state.policy().policy.preemption;
        let devices = self.spec.device_count().max(u64::from(self.spec.worker_count()));
        (rules.victims_max_for(devices) as usize).min(limits::REARRANGED_STOPS_MAX)
    }

    /// Whether these gangs can be preempted so, and what becomes of them.
    fn try_way(&self, way: &[JobId], means: Means, budget: &mut Budget) -> Result<Proposal, Fault> {
        if way.len() > self.stops_max() {
            return Err(Fault::Way);
        }
        let mut forecast = Forecast::new(self.state);
        for job in way {
            if !budget.visit() {
                return Err(Fault::Spent);
            }
            // Asked again as the list goes on: what was taken back so far may have been all of it.
            let usage = forecast.quota_usage();
            if means == Means::Stop && !self.may_ask(*job, usage, means) {
                return Err(Fault::Gang(*job));
            }
            forecast.end(*job);
        }
        let found = self.plan_on(&forecast, budget).map_err(|Spent| Fault::Spent)?;
        let plan = found.ok_or(Fault::Way)?;
        let (stopped, plan) = self.spare(way.to_vec(), plan, budget);
        let proposal = self.settle(&stopped, &plan, means, budget)?;
        // Who may be stopped depends on who else is: the guard has the last word.
        let recorded = self.cover.state();
        let sound = recorded.check(&proposal.decision(recorded)).is_ok();
        if sound { Ok(proposal) } else { Err(Fault::Way) }
    }

    /// Lets those go on that need not be preempted, those that would lose most first. On the hosts that were looked for all are
    /// needed; of a quota they may leave more than is needed.
    fn spare(&self, mut needed: Vec<JobId>, mut plan: Plan, budget: &mut Budget) -> (Vec<JobId>, Plan) {
        // Nor of those that keep it away from where it does not go.
        let is_kept_away = may_be_kept_away(self.state, self.spec);
        let is_exact = needs_one_host(self.spec) && !self.state.has_quotas() && !is_kept_away;
        if is_exact || needed.len() > SPARED_ONE_BY_ONE_MAX {
            return (needed, plan);
        }
        let mut at = needed.len();
        // Without a budget no plan is found, and each costs a look at the jobs that the claimant has to heed.
        while at > 0 && needed.len() > 1 && !budget.is_spent() {
            at -= 1;
            let mut without = Forecast::new(self.state);
            for (other, job) in needed.iter().enumerate() {
                if other != at {
                    without.end(*job);
                }
            }
            if let Ok(Some(found)) = self.plan_on(&without, budget) {
                needed.remove(at);
                plan = found;
            }
        }
        (needed, plan)
    }

    /// Turns what was found into a proposal: the claimant's capacity, and what becomes of the preempted gangs.
    fn settle(
        &self,
        stopped: &[JobId],
        plan: &Plan,
        means: Means,
        budget: &mut Budget,
    ) -> Result<Proposal, Fault> {
        let mut forecast = Forecast::new(self.state);
        for job in stopped {
            forecast.end(*job);
        }
        forecast.begin_as(self.job, self.spec, &plan.workers);
        let mut stops = Vec::with_capacity(stopped.len());
        let mut promises = alloc::vec![CapacityHold { job: self.job, workers: plan.workers.clone() }];
        let mut lost: u64 = 0;
        for job in stopped.iter().copied() {
            lost = lost.saturating_add(lost_milli_ms(self.state, job, self.now));
            let (Some(spec), Some(row)) = (self.state.spec(job), self.state.job(job)) else {
                return Err(Fault::Gang(job));
            };
            let workers = match self.goes_on(&forecast, job, row, budget) {
                Some(workers) if has_place(&promises, workers.len()) => workers,
                _ if means == Means::Move => return Err(Fault::Gang(job)),
                _ => {
                    stops.push((job, RearrangeCause::Preempted { by: self.job }));
                    continue;
                }
            };
            let before = row.placement.as_ref().map_or(0, |p| p.slots.len());
            if means == Means::Move && workers.len() < before {
                return Err(Fault::Gang(job));
            }
            forecast.begin_as(job, spec, &workers);
            let is_resized = workers.len() != before;
            let cause =
                if is_resized { RearrangeCause::Resized } else { RearrangeCause::Moved { by: self.job } };
            stops.push((job, cause));
            promises.push(CapacityHold { job, workers });
        }
        if means == Means::Move && lost > self.worth_moving_for() {
            return Err(Fault::Way);
        }
        Ok(Proposal { stops, promises, place: (plan.region.clone(), plan.cluster.clone()) })
    }

    /// The most that may be lost by moving others: what has been lost by waiting.
    fn worth_moving_for(&self) -> u64 {
        self.spec.device_milli().saturating_mul(self.now.since_ms(self.row.submitted_at))
    }

    /// Where a preempted gang can go on at once. What is kept for its own tenant is open to it, and not what is kept
    /// for the claimant's. One that would begin again may as well wait in the pending queue.
    fn goes_on(
        &self,
        forecast: &Forecast,
        job: JobId,
        row: &JobRow,
        budget: &mut Budget,
    ) -> Option<Vec<WorkerSlot>> {
        let spec = planned_spec(self.state, job)?;
        let bounded = no_larger(self.state, job, &spec)?;
        let spec: &JobSpec = &bounded;
        if !resumes(self.state, job) && !spec.is_elastic() {
            return None;
        }
        let holds = self.future.holds_for(self.state, &spec.tenant);
        let asker = (job, spec, row);
        let verdict = with_paid_terms(forecast, self.now, asker, &holds, budget, |terms, budget| {
            plan(forecast, spec, terms, budget)
        });
        match verdict {
            Verdict::Fits(plan) => Some(plan.workers),
            Verdict::Waits | Verdict::OutOfBudget => None,
        }
    }
}

/// Whether a record takes another promise, of this number of workers.
fn has_place(promises: &[CapacityHold], workers: usize) -> bool {
    let promised: usize = promises.iter().map(|promise| promise.workers.len()).sum();
    promises.len() < limits::REARRANGED_PROMISES_MAX && promised + workers <= limits::REARRANGED_WORKERS_MAX
}
