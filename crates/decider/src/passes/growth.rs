//! Running gangs that grow into what nobody waits for.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_journal::{CapacityHold, Decision, RearrangeCause, WorkerSlot};
use muster_planner::{Budget, Verdict, plan};
use muster_policy::resumes;
use muster_state::{Forecast, JobRow, PoolKey, State};
use muster_types::{JobId, LogTime};

use crate::future::Future;
use crate::memory::rotation::{PassMemory, WantedPools};
use crate::passes::preemption::stop;
use crate::rules::planned::planned_spec;
use crate::rules::terms::with_terms;
use crate::speculation::Speculation;

/// Gangs that one pass lets grow.
const GROWN_MAX: usize = 4;

/// Gangs that one pass looks for more capacity for.
const TRIED_MAX: usize = 16;

/// Doublings of the time that a gang runs undisturbed before it grows, at most.
const DOUBLINGS_MAX: u32 = 6;

/// Lets gangs grow that run with fewer workers than they asked for, into pools that nobody who waits could use.
/// Gangs take turns: the next pass goes on behind the last that was looked at.
pub(super) fn grow(
    speculation: &mut Speculation,
    future: &Future,
    wanted: &WantedPools,
    memory: &mut PassMemory,
    budget: &mut Budget,
) {
    let now = speculation.now();
    let mut grown = 0;
    for job in next_to_grow(speculation.state(), memory.last_grown(), now) {
        if grown == GROWN_MAX || budget.is_spent() {
            return;
        }
        memory.set_last_grown(job);
        let state = speculation.state();
        // What is kept of limits for those who wait is not for growing.
        if state.spec(job).is_some_and(|spec| memory.waiters().is_kept_from(state, job, spec)) {
            continue;
        }
        let Some(workers) = larger(state, future, wanted, job, now, budget) else { continue };
        let stops = alloc::vec![stop(state, job, RearrangeCause::Resized)];
        let promises = alloc::vec![CapacityHold { job, workers }];
        let decision = Decision::Rearranged { stops, promises };
        // It may have found larger hosts than the ones that it has to itself, for which limits leave too little.
        if state.check(&decision).is_err() {
            continue;
        }
        speculation.push(decision);
        grown += 1;
    }
}

/// Gangs that could grow and have run for long enough, those behind the last that was looked at first.
fn next_to_grow(state: &State, last: Option<JobId>, now: LogTime) -> Vec<JobId> {
    let ran = |job: &JobId| state.job(*job).is_some_and(|row| has_settled(state, row, now));
    let behind = |job: &JobId| last.is_none_or(|last| *job > last);
    let (next, others): (Vec<JobId>, Vec<JobId>) = state.growable().filter(ran).partition(behind);
    next.into_iter().chain(others).take(TRIED_MAX).collect()
}

/// Whether a gang has run for the minimum, doubled for each time that it was preempted: one that short jobs of a
/// higher tier shrink again and again does not restart for what it would lose at once.
fn has_settled(state: &State, row: &JobRow, now: LogTime) -> bool {
    let rules = &state.policy().policy.preemption;
    let least_ms = rules.minimum_run_ms.saturating_mul(1 << row.preemptions.min(DOUBLINGS_MAX));
    row.started_at.is_some_and(|at| now.since_ms(at) >= least_ms)
}

/// The workers of a gang in a larger size, if that is worth a restart and takes nothing that others wait for.
fn larger(
    state: &State,
    future: &Future,
    wanted: &WantedPools,
    job: JobId,
    now: LogTime,
    budget: &mut Budget,
) -> Option<Vec<WorkerSlot>> {
    let row = state.job(job)?;
    let spec = planned_spec(state, job)?;
    // Without a checkpoint it would begin again.
    if row.cancel_requested || !resumes(state, job) || state.is_over_budget(job, now) {
        return None;
    }
    // All that it asks for next to what its user holds, itself included.
    let held =
        row.charge().map(|(_, charge)| charge.devices_milli.iter().map(|(_, milli)| *milli).sum::<u64>());
    let held_milli = held.unwrap_or(0);
    let more_milli = spec.device_milli().saturating_sub(held_milli);
    if state.user_devices_exceeded(&spec.tenant, state.creator(job), more_milli).is_some() {
        return None;
    }
    let before = row.placement.as_ref().map_or(&[][..], |placement| &placement.slots[..]);
    let mut forecast = Forecast::new(state);
    forecast.end(job);
    let holds = future.holds_for(state, &spec.tenant);
    let verdict =
        with_terms(&forecast, now, (job, &spec, row), &holds, |terms| plan(&forecast, &spec, terms, budget));
    let Verdict::Fits(found) = verdict else { return None };
    // A restart costs what came after the last checkpoint: a quarter more workers is worth it.
    let (count, more) = (before.len(), found.workers.len());
    let is_worth_it =
        more >= count + count.div_ceil(4) || (more > count && more == spec.worker_count() as usize);
    let (had, has) = (by_pool(state, before), by_pool(state, &found.workers));
    let takes_nothing = has
        .iter()
        .all(|(pool, count)| !wanted.contains(pool) || *count <= had.get(pool).copied().unwrap_or(0));
    (is_worth_it && takes_nothing).then_some(found.workers)
}

/// How many workers are in each pool.
fn by_pool(state: &State, workers: &[WorkerSlot]) -> BTreeMap<PoolKey, usize> {
    let mut counts = BTreeMap::new();
    for node in workers.iter().filter_map(|slot| state.node(slot.node)) {
        *counts.entry(PoolKey::of(&node.spec)).or_default() += 1;
    }
    counts
}
