//! Gangs that move away from nodes which are drained.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use muster_journal::{CapacityHold, Decision, RearrangeCause, Stop};
use muster_planner::{AffinityTerm, Budget, Terms, Verdict, plan};
use muster_state::{Forecast, State};
use muster_types::{JobId, NodeId};

use crate::future::Future;
use crate::round::ROUND_BYTES_SOFT;
use crate::rules::affinity::{is_with, near_planned, required_together};
use crate::rules::planned::planned_spec;
use crate::rules::terms::with_terms;
use crate::settle::nodes::runs;
use crate::speculation::Speculation;

/// Gangs that one pass moves away from nodes that are drained.
const MOVED_MAX: usize = 16;
/// Gangs that move together at most: with more of them, they stay until the deadline.
const TOGETHER_MAX: usize = 16;

/// Moves gangs away from nodes that are drained, those that lose least by it: they have saved their work and
/// fit elsewhere now. Gangs that have to be together move together. The others end by themselves, or at the deadline.
pub(super) fn move_drained(speculation: &mut Speculation, future: &Future, budget: &mut Budget) {
    let state = speculation.state();
    let mut gangs: Vec<(JobId, NodeId)> = Vec::new();
    for node in state.draining() {
        gangs.extend(state.gangs_on(node).filter(|job| may_move(state, *job)).map(|job| (job, node)));
    }
    gangs.sort_unstable();
    // A gang on several of these nodes moves once.
    gangs.dedup_by_key(|(job, _)| *job);
    let mut moved = 0;
    // Those that do not fit elsewhere together with others.
    let mut stay: BTreeSet<JobId> = BTreeSet::new();
    for (job, node) in gangs.iter().copied() {
        if moved >= MOVED_MAX || budget.is_spent() || speculation.round_bytes() > ROUND_BYTES_SOFT {
            return;
        }
        let state = speculation.state();
        // Others may have taken it along.
        if !may_move(state, job) {
            continue;
        }
        let mut decision = moved_together(speculation, &[(job, node)], future, budget);
        if decision.is_none() && !stay.contains(&job) {
            let together = who_goes_along(state, (job, node), &gangs, budget);
            if (2..=TOGETHER_MAX).contains(&together.len()) {
                decision = moved_together(speculation, &together, future, budget);
            }
            if decision.is_none() {
                stay.extend(together.iter().map(|(job, _)| *job));
            }
        }
        let Some(decision) = decision else { continue };
        if let Decision::Rearranged { stops, .. } = &decision {
            moved += stops.len();
        }
        speculation.push(decision);
    }
}

/// A gang, and those among others that have to be with it or with which it has to be, and so on with theirs.
fn who_goes_along(
    state: &State,
    first: (JobId, NodeId),
    gangs: &[(JobId, NodeId)],
    budget: &mut Budget,
) -> Vec<(JobId, NodeId)> {
    let mut found = alloc::vec![first];
    // One that goes where it likes does not wait for others.
    if state.spec(first.0).is_none_or(|spec| required_together(spec).next().is_none()) {
        return found;
    }
    let mut at = 0;
    while let Some((member, _)) = found.get(at).copied() {
        at += 1;
        for other in gangs {
            if found.len() > TOGETHER_MAX || !budget.visit() {
                return found;
            }
            let is_new = found.iter().all(|(known, _)| *known != other.0);
            if is_new && (is_with(state, member, other.0) || is_with(state, other.0, member)) {
                found.push(*other);
            }
        }
    }
    found
}

/// These gangs stop, and go on elsewhere: each of them where those before it will be that it has to be with. None where one of them
/// does not fit.
fn moved_together(
    speculation: &Speculation,
    gangs: &[(JobId, NodeId)],
    future: &Future,
    budget: &mut Budget,
) -> Option<Decision> {
    let (state, now) = (speculation.state(), speculation.now());
    let mut forecast = Forecast::new(state);
    gangs.iter().for_each(|(job, _)| forecast.end(*job));
    let mut stops = Vec::with_capacity(gangs.len());
    let mut promises: Vec<CapacityHold> = Vec::with_capacity(gangs.len());
    for (job, node) in gangs.iter().copied() {
        let row = state.job(job)?;
        // Where its checkpoints cannot be read it would begin again: then it stays until the deadline.
        let spec = planned_spec(state, job)?;
        let token = row.placement.as_ref()?.token;
        let holds = future.holds_for(state, &spec.tenant);
        let near = near_planned(state, &spec, &promises);
        let verdict = with_terms(&forecast, now, (job, &spec, row), &holds, |terms| {
            let affinity: Vec<AffinityTerm<'_>> = terms.affinity.iter().chain(&near).cloned().collect();
            let terms = Terms { affinity: &affinity, ..*terms };
            plan(&forecast, &spec, &terms, budget)
        });
        let Verdict::Fits(found) = verdict else { return None };
        forecast.begin_as(job, &spec, &found.workers);
        stops.push(Stop { job, token, cause: RearrangeCause::Drained { node } });
        promises.push(CapacityHold { job, workers: found.workers });
    }
    let decision = Decision::Rearranged { stops, promises };
    state.check(&decision).is_ok().then_some(decision)
}

/// Whether a gang may be moved before its deadline: without checkpoints it would begin again.
fn may_move(state: &State, job: JobId) -> bool {
    let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { return false };
    let goes_on = state.saves_its_work(job) || spec.is_elastic();
    runs(row).is_some() && !row.cancel_requested && spec.preemptible && goes_on
}
