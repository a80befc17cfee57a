//! Room that running gangs make: for a gang that goes before them, for one that would fit if they stood
//! closer together, and for themselves when they can grow.
//!
//! Whatever is decided here is one record: who stops, and who gets which room. What is freed is promised
//! from the first moment, so nobody else can take it, and a gang that made room cannot take it back.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use muster_journal::{Decision, Promise, RearrangeCause, Stop, WorkerSlot};
use muster_planner::{Budget, Holds, Plan, Verdict, plan};
use muster_policy::{LOOKED_AT_MAX, Victim, holds_what_is_wanted, lost_device_ms, may_make_room, victims};
use muster_state::{Forecast, JobRow, Phase, State};
use muster_types::{JobId, JobSpec, LogTime, Name, NodeId, limits};

use crate::future::Future;
use crate::job::settle;
use crate::planned::planned_spec;
use crate::schedule::with_terms;
use crate::speculation::Speculation;

/// Clusters in which one pass looks for gangs that could make room for one that waits.
const CLUSTERS_TRIED_MAX: usize = 16;

/// Gangs that make room of which each is tried to be left out.
const SPARED_ONE_BY_ONE_MAX: usize = 64;

/// Gangs that one pass lets grow.
const GROWN_MAX: usize = 4;

/// What became of asking others to make room.
pub(crate) enum Room {
    /// They will; it is promised.
    Promised {
        /// The clusters concerned.
        places: Vec<(Name, Name)>,
    },
    /// Gangs that are stopping already will leave enough.
    Coming,
    /// There is nobody who may be asked.
    NobodyToAsk,
    /// All who may be asked could not make enough.
    NotEnough,
}

/// A way to make room.
struct Proposal {
    /// Lowest tier last; what is lost with it: the less, the better.
    cost: (u64, usize),
    stops: Vec<(JobId, RearrangeCause)>,
    promises: Vec<Promise>,
    place: (Name, Name),
}

/// Finds room for a gang that waits among those that run, and has it made.
pub(crate) fn make_room(
    speculation: &mut Speculation,
    job: JobId,
    spec: &JobSpec,
    row: &JobRow,
    holds: &Holds,
    budget: &mut Budget,
) -> Room {
    let state = speculation.state();
    let now = speculation.now();
    let rules = &state.policy().policy.preemption;
    let candidates = victims(state, spec, now);
    let may_move = rules.defragment && now.since_ms(row.submitted_at) >= rules.defragment_wait_ms;
    let movable = if may_move { movable(state, spec, now) } else { Vec::new() };
    if candidates.is_empty() && movable.is_empty() {
        return Room::NobodyToAsk;
    }
    if is_coming(state, now, spec, row, holds, budget) {
        return Room::Coming;
    }
    let asking = Asking { state, job, spec, row, holds, now };
    let moved = by_cluster(state, &movable).filter_map(|group| asking.propose(&group, Means::Move, budget));
    let mut best = moved.min_by_key(|proposal| proposal.cost);
    // To move costs less than to stop.
    if best.is_none() {
        let groups = by_cluster(state, &candidates);
        let stopped = groups.filter_map(|group| asking.propose(&group, Means::Stop, budget));
        best = stopped.min_by_key(|proposal| proposal.cost);
    }
    let Some(proposal) = best else { return Room::NotEnough };
    let mut places: BTreeSet<(Name, Name)> = BTreeSet::from([proposal.place.clone()]);
    places.extend(proposal.promises.iter().filter_map(|promise| place_of(state, &promise.workers)));
    let stops = proposal.stops.iter().map(|(job, cause)| stop(state, *job, *cause)).collect();
    let promised: Vec<JobId> = proposal.promises.iter().map(|promise| promise.job).collect();
    speculation.push(Decision::Rearranged { stops, promises: proposal.promises });
    // What was short may have been quota alone: then the room is free already.
    for job in promised {
        settle(speculation, job);
    }
    Room::Promised { places: places.into_iter().collect() }
}

fn stop(state: &State, job: JobId, cause: RearrangeCause) -> Stop {
    let row = state.job(job).expect("a gang that makes room has a row");
    let token = row.placement.as_ref().expect("a gang that makes room has a placement").token;
    Stop { job, token, cause }
}

fn place_of(state: &State, workers: &[WorkerSlot]) -> Option<(Name, Name)> {
    let node = state.node(workers.first()?.node)?;
    Some((node.spec.region.clone(), node.spec.cluster.clone()))
}

/// Whether gangs that are stopping already leave enough, so that nobody else has to.
fn is_coming(
    state: &State,
    now: LogTime,
    spec: &JobSpec,
    row: &JobRow,
    holds: &Holds,
    budget: &mut Budget,
) -> bool {
    let mut forecast = Forecast::new(state);
    let mut any = false;
    for job in state.stopping() {
        forecast.end(job);
        any = true;
    }
    any && matches!(
        with_terms(&forecast, now, spec, row, holds, |terms| plan(&forecast, spec, terms, budget)),
        Verdict::Fits(_)
    )
}

/// Gangs that could go on elsewhere, those that lose least first.
fn movable(state: &State, claimant: &JobSpec, now: LogTime) -> Vec<Victim> {
    let minimum_run_ms = state.policy().policy.preemption.minimum_run_ms;
    let mut found = Vec::new();
    for job in state.preemptible(claimant.tier).take(LOOKED_AT_MAX) {
        let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { continue };
        let ran_long_enough = row.started_at.is_some_and(|at| now.since_ms(at) >= minimum_run_ms);
        if !holds_what_is_wanted(state, claimant, job) {
            continue;
        }
        if spec.is_checkpointed() && ran_long_enough && row.phase == Phase::Running && !row.cancel_requested {
            let lost_device_ms = lost_device_ms(row, spec, now);
            found.push(Victim { tier: spec.tier, lost_device_ms, job: core::cmp::Reverse(job) });
        }
    }
    found.sort_unstable();
    found
}

/// The same gangs apart by the cluster they run in.
fn by_cluster(state: &State, gangs: &[Victim]) -> impl Iterator<Item = Vec<Victim>> {
    let mut groups: BTreeMap<(Name, Name), Vec<Victim>> = BTreeMap::new();
    for victim in gangs {
        let placement = state.job(victim.job.0).and_then(|row| row.placement.clone());
        let Some(placement) = placement else { continue };
        groups.entry((placement.region.clone(), placement.cluster.clone())).or_default().push(*victim);
    }
    groups.into_values().take(CLUSTERS_TRIED_MAX)
}

/// How room is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Means {
    /// By stopping gangs that go behind; those that find another place or a smaller size go on there.
    Stop,
    /// Only by moving gangs to other places that are free now.
    Move,
}

/// Who asks for room.
struct Asking<'a> {
    state: &'a State,
    job: JobId,
    spec: &'a JobSpec,
    row: &'a JobRow,
    holds: &'a Holds,
    now: LogTime,
}

impl Asking<'_> {
    /// A way to make room among gangs of one cluster.
    fn propose(&self, group: &[Victim], means: Means, budget: &mut Budget) -> Option<Proposal> {
        let rules = &self.state.policy().policy.preemption;
        let most = (rules.victims_max as usize).min(limits::REARRANGED_STOPS_MAX);
        let mut forecast = Forecast::new(self.state);
        let mut chosen: Vec<Victim> = Vec::new();
        let mut found = None;
        for victim in group.iter().filter(|victim| self.helps(victim.job.0)).take(most) {
            if budget.is_spent() {
                return None;
            }
            // Asked again as the list goes on: what was taken back so far may have been all of it.
            let may = means == Means::Move || may_make_room(&forecast, self.spec, victim.job.0, self.now);
            if !may {
                continue;
            }
            forecast.end(victim.job.0);
            chosen.push(*victim);
            if let Some(plan) = self.plan_on(&forecast, budget) {
                found = Some(plan);
                break;
            }
        }
        let (chosen, plan) = self.spare(chosen, found?, budget);
        self.settle(&chosen, &plan, means, budget)
    }

    fn helps(&self, victim: JobId) -> bool {
        holds_what_is_wanted(self.state, self.spec, victim)
    }

    fn plan_on(&self, forecast: &Forecast, budget: &mut Budget) -> Option<Plan> {
        let verdict = with_terms(forecast, self.now, self.spec, self.row, self.holds, |terms| {
            plan(forecast, self.spec, terms, budget)
        });
        match verdict {
            Verdict::Fits(plan) => Some(plan),
            Verdict::Waits | Verdict::OutOfBudget => None,
        }
    }

    /// Lets those go on that are not needed: at once who holds nothing on the nodes of the plan, then, while
    /// there are few, those without whom it can be planned as well, who would lose most first.
    fn spare(&self, chosen: Vec<Victim>, plan: Plan, budget: &mut Budget) -> (Vec<Victim>, Plan) {
        let nodes: BTreeSet<NodeId> = plan.workers.iter().map(|slot| slot.node).collect();
        let holds_there = |victim: &Victim| {
            let placement = self.state.job(victim.job.0).and_then(|row| row.placement.as_ref());
            placement.is_some_and(|p| p.slots.iter().any(|slot| nodes.contains(&slot.node)))
        };
        // What a gang elsewhere leaves of a quota may be needed too: only a plan without it says that it is not.
        let there: Vec<Victim> = chosen.iter().copied().filter(holds_there).collect();
        let (mut needed, mut plan) = match self.without_others(&chosen, &there, budget) {
            Some(found) => (there, found),
            None => (chosen, plan),
        };
        if needed.len() > SPARED_ONE_BY_ONE_MAX {
            return (needed, plan);
        }
        let mut at = needed.len();
        while at > 0 && needed.len() > 1 {
            at -= 1;
            let mut without = Forecast::new(self.state);
            for (other, victim) in needed.iter().enumerate() {
                if other != at {
                    without.end(victim.job.0);
                }
            }
            if let Some(found) = self.plan_on(&without, budget) {
                needed.remove(at);
                plan = found;
            }
        }
        (needed, plan)
    }

    /// A plan for which only those on its nodes make room; none when there is nobody to leave out.
    fn without_others(&self, chosen: &[Victim], there: &[Victim], budget: &mut Budget) -> Option<Plan> {
        if there.is_empty() || there.len() == chosen.len() {
            return None;
        }
        let mut forecast = Forecast::new(self.state);
        for victim in there {
            forecast.end(victim.job.0);
        }
        self.plan_on(&forecast, budget)
    }

    /// Turns what was found into a proposal: the claimant's room, and what becomes of those who make it.
    fn settle(&self, chosen: &[Victim], plan: &Plan, means: Means, budget: &mut Budget) -> Option<Proposal> {
        let mut forecast = Forecast::new(self.state);
        for victim in chosen {
            forecast.end(victim.job.0);
        }
        forecast.begin(self.spec, &plan.workers);
        let mut stops = Vec::with_capacity(chosen.len());
        let mut promises = alloc::vec![Promise { job: self.job, workers: plan.workers.clone() }];
        let mut lost: u64 = 0;
        for victim in chosen {
            let job = victim.job.0;
            lost = lost.saturating_add(victim.lost_device_ms);
            let spec = self.state.spec(job)?.clone();
            let row = self.state.job(job)?;
            let planned = planned_spec(self.state, job);
            let goes_on =
                planned.and_then(|spec| goes_on(&forecast, self.now, &spec, row, self.holds, budget));
            let workers = match goes_on {
                Some(workers) if has_place(&promises, workers.len()) => workers,
                _ if means == Means::Move => return None,
                _ => {
                    stops.push((job, RearrangeCause::Preempted { by: self.job }));
                    continue;
                }
            };
            let before = row.placement.as_ref().map_or(0, |p| p.slots.len());
            if means == Means::Move && workers.len() < before {
                return None;
            }
            forecast.begin(&spec, &workers);
            let is_resized = workers.len() != before;
            let cause =
                if is_resized { RearrangeCause::Resized } else { RearrangeCause::Moved { by: self.job } };
            stops.push((job, cause));
            promises.push(Promise { job, workers });
        }
        if means == Means::Move && lost > self.worth_moving_for() {
            return None;
        }
        let preempted =
            stops.iter().filter(|(_, cause)| matches!(cause, RearrangeCause::Preempted { .. })).count();
        Some(Proposal {
            cost: (lost, preempted),
            stops,
            promises,
            place: (plan.region.clone(), plan.cluster.clone()),
        })
    }

    /// The most that may be lost by moving others: what has been lost by waiting.
    fn worth_moving_for(&self) -> u64 {
        self.spec.device_milli().saturating_mul(self.now.since_ms(self.row.submitted_at))
    }
}

/// Whether a record takes another promise of so many workers.
fn has_place(promises: &[Promise], workers: usize) -> bool {
    let promised: usize = promises.iter().map(|promise| promise.workers.len()).sum();
    promises.len() < limits::REARRANGED_PROMISES_MAX && promised + workers <= limits::REARRANGED_WORKERS_MAX
}

/// Where a gang that makes room can go on at once. Without checkpoints it would begin again: then it may as
/// well wait in line.
fn goes_on(
    forecast: &Forecast,
    now: LogTime,
    spec: &JobSpec,
    row: &JobRow,
    holds: &Holds,
    budget: &mut Budget,
) -> Option<Vec<WorkerSlot>> {
    if !spec.is_checkpointed() && !spec.is_elastic() {
        return None;
    }
    let verdict = with_terms(forecast, now, spec, row, holds, |terms| plan(forecast, spec, terms, budget));
    match verdict {
        Verdict::Fits(plan) => Some(plan.workers),
        Verdict::Waits | Verdict::OutOfBudget => None,
    }
}

/// Lets gangs grow that run with fewer workers than they asked for, while nobody waits.
pub(crate) fn grow(speculation: &mut Speculation, future: &Future, budget: &mut Budget) {
    let now = speculation.now();
    let state = speculation.state();
    let minimum_run_ms = state.policy().policy.preemption.minimum_run_ms;
    let ran = |job: &JobId| {
        let started = state.job(*job).and_then(|row| row.started_at);
        started.is_some_and(|at| now.since_ms(at) >= minimum_run_ms)
    };
    let small: Vec<JobId> = state.growable().filter(ran).take(GROWN_MAX).collect();
    for job in small {
        let state = speculation.state();
        let row = state.job(job).expect("an indexed job has a row").clone();
        let Some(spec) = planned_spec(state, job) else { continue };
        // Without a checkpoint it would begin again.
        if row.cancel_requested || !spec.is_checkpointed() || budget.is_spent() {
            continue;
        }
        let before = row.placement.as_ref().map_or(0, |p| p.slots.len());
        let mut forecast = Forecast::new(state);
        forecast.end(job);
        let holds = future.holds_for(speculation.state(), &spec.tenant);
        let verdict =
            with_terms(&forecast, now, &spec, &row, &holds, |terms| plan(&forecast, &spec, terms, budget));
        // A restart costs what came after the last checkpoint: a quarter more workers is worth it.
        let Verdict::Fits(found) = verdict else { continue };
        let is_worth_it = found.workers.len() >= before + before.div_ceil(4)
            || (found.workers.len() > before && found.workers.len() == spec.worker_count() as usize);
        if is_worth_it {
            let stops = alloc::vec![stop(speculation.state(), job, RearrangeCause::Resized)];
            let promises = alloc::vec![Promise { job, workers: found.workers }];
            speculation.push(Decision::Rearranged { stops, promises });
        }
    }
}
