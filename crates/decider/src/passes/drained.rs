//! Gangs that move away from nodes which are drained.

use alloc::vec::Vec;
use muster_journal::{CapacityHold, Decision, RearrangeCause, Stop};
use muster_planner::{Budget, Verdict, plan};
use muster_state::{Forecast, State};
use muster_types::{JobId, NodeId};

use crate::future::Future;
use crate::round::ROUND_BYTES_SOFT;
use crate::rules::planned::planned_spec;
use crate::rules::terms::with_terms;
use crate::settle::nodes::runs;
use crate::speculation::Speculation;

/// Gangs that one pass moves away from nodes that are drained.
const MOVED_MAX: usize = 16;

/// Moves gangs away from nodes that are drained, those that lose least by it: they have saved their work and
/// fit elsewhere now. The others end by themselves, or at the deadline.
pub(super) fn move_drained(speculation: &mut Speculation, future: &Future, budget: &mut Budget) {
    let now = speculation.now();
    let state = speculation.state();
    let mut gangs: Vec<(JobId, NodeId)> = Vec::new();
    for node in state.draining() {
        gangs.extend(state.gangs_on(node).filter(|job| may_move(state, *job)).map(|job| (job, node)));
    }
    gangs.sort_unstable();
    // A gang on several of these nodes moves once.
    gangs.dedup_by_key(|(job, _)| *job);
    let mut moved = 0;
    for (job, node) in gangs {
        if moved == MOVED_MAX || budget.is_spent() || speculation.round_bytes() > ROUND_BYTES_SOFT {
            return;
        }
        let state = speculation.state();
        let row = state.job(job).expect("an indexed job has a row").clone();
        // Where its checkpoints cannot be read it would begin again: then it stays until the deadline.
        let Some(spec) = planned_spec(state, job) else { continue };
        let token = row.placement.as_ref().expect("a running job has a placement").token;
        let mut forecast = Forecast::new(state);
        forecast.end(job);
        let holds = future.holds_for(state, &spec.tenant);
        let verdict = with_terms(&forecast, now, (job, &spec, &row), &holds, |terms| {
            plan(&forecast, &spec, terms, budget)
        });
        let Verdict::Fits(found) = verdict else { continue };
        let stops = alloc::vec![Stop { job, token, cause: RearrangeCause::Drained { node } }];
        let promises = alloc::vec![CapacityHold { job, workers: found.workers }];
        speculation.push(Decision::Rearranged { stops, promises });
        moved += 1;
    }
}

/// Whether a gang may be moved before its deadline: without checkpoints it would begin again.
fn may_move(state: &State, job: JobId) -> bool {
    let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { return false };
    let goes_on = state.saves_its_work(job) || spec.is_elastic();
    runs(row).is_some() && !row.cancel_requested && spec.preemptible && goes_on
}
