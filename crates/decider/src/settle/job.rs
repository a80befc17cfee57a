//! What follows from what has become of a gang's workers.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::{Decision, Outcome, StopCause};
use muster_state::{DependencyState, Free, JobRow, Phase, Placement, PromiseRow, RankState, State, fit};
use muster_types::{ArrayId, DeviceSet, JobId, LogTime, NodeId, WorkerRequest};

use crate::round::ROUND_BYTES_SOFT;
use crate::rules::affinity::{self, Resolved};
use crate::rules::bookings;
use crate::rules::deadline::{self, finished_late};
use crate::rules::windows;
use crate::settle::array::{broken, fill_arrays, leave_dependents_of_jobs, settle_array};
use crate::settle::quarantine;
use crate::settle::recovery::{self, Verdict};
use crate::settle::spares;
use crate::speculation::Speculation;

/// Jobs and arrays that are settled without a pause: most may have nothing to do, and add nothing to the round.
const SETTLED_AT_ONCE: usize = 10_000;

/// Pushes whatever the present state of the job calls for, until nothing does, and leaves those who wait
/// for its end to be settled.
pub(crate) fn settle(speculation: &mut Speculation, job: JobId) {
    // A job moves at most: stop requested, spares taken, failure recorded, waiting again, released, promise dropped or
    // taken. More would be a loop.
    for _ in 0..6 {
        let Some(decision) = next_step(speculation, job) else { return };
        let blamed = match &decision {
            Decision::AttemptFailed { class, node, .. } if class.is_of_node() => *node,
            _ => None,
        };
        push(speculation, job, decision);
        if let Some(node) = blamed {
            quarantine::consider(speculation, node);
        }
    }
    assert!(next_step(speculation, job).is_none(), "a job settles in six steps");
}

/// Pushes what time has brought about for a job, and what follows from it.
pub(crate) fn end(speculation: &mut Speculation, job: JobId, decision: Decision) {
    push(speculation, job, decision);
    settle(speculation, job);
}

/// Those who wait for the end of a job are left to be settled when it has come.
fn push(speculation: &mut Speculation, job: JobId, decision: Decision) {
    let over = matches!(decision, Decision::JobFinished { .. });
    speculation.push(decision);
    if over {
        leave_dependents_of_jobs(speculation, &[job]);
    }
}

/// Settles jobs while the round has space, up to a number, and leaves the others for the rounds after it: one node
/// can carry more gangs than one round can record the end of.
pub(crate) fn settle_many(speculation: &mut Speculation, jobs: Vec<JobId>) {
    speculation.leave_unsettled(jobs);
    settle_left_over(speculation);
}

/// Goes on with what [`settle_many`] left; whether nothing is left.
pub(crate) fn settle_left_over(speculation: &mut Speculation) -> bool {
    for _ in 0..SETTLED_AT_ONCE {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            break;
        }
        if let Some(array) = speculation.next_unsettled_array() {
            settle_array(speculation, array);
            continue;
        }
        let Some(job) = speculation.next_unsettled() else { return true };
        settle(speculation, job);
    }
    !speculation.has_unsettled()
}

/// Makes members of arrays jobs, and goes on with what [`settle_many`] left; whether nothing is left.
pub(crate) fn advance_arrays(speculation: &mut Speculation) -> bool {
    settle_left_over(speculation) && fill_arrays(speculation) && settle_left_over(speculation)
}

/// Settles every job that holds devices: a new leader's first act, for the case that the one before
/// stopped between an input and what follows from it.
pub fn settle_all(speculation: &mut Speculation) {
    if speculation.is_recovering() {
        return;
    }
    speculation.leave_all_unfilled();
    let state = speculation.state();
    let arrays: Vec<ArrayId> = state.arrays_waiting_for_others().collect();
    let held: Vec<JobId> = state.active().chain(state.promised()).chain(state.waiting_for_others()).collect();
    let by_member: BTreeSet<ArrayId> = state.arrays_waiting_by_member().collect();
    by_member.into_iter().for_each(|array| speculation.look_for_ready_members(array));
    speculation.leave_arrays_unsettled(arrays);
    settle_many(speculation, held);
}

/// Whether there is anything to settle.
pub(crate) fn has_next_step(speculation: &Speculation, job: JobId) -> bool {
    next_step(speculation, job).is_some()
}

fn next_step(speculation: &Speculation, job: JobId) -> Option<Decision> {
    let (state, now) = (speculation.state(), speculation.now());
    let row = state.job(job)?;
    let late = || deadline::of_waiting(state, job, now);
    match &row.phase {
        Phase::Finished(_) => None,
        Phase::Pending if row.cancel_requested => {
            Some(Decision::JobFinished { job, outcome: Outcome::Cancelled })
        }
        Phase::Pending if !row.released => late().or_else(|| after_waiting(state, job, now)),
        Phase::Pending => {
            if let Some(late) = late() {
                return Some(late);
            }
            let promise = row.promise.as_deref()?;
            after_promise(state, job, promise, now)
        }
        Phase::Starting | Phase::Running => {
            let placement = row.placement.as_deref()?;
            if placement.ranks.iter().all(succeeded) {
                return Some(Decision::JobFinished { job, outcome: Outcome::Succeeded });
            }
            let cause = stop_cause(row, placement)?;
            Some(Decision::GangStopRequested { job, token: placement.token, cause })
        }
        Phase::Stopping(cause) => {
            let placement = row.placement.as_deref()?;
            if let Some(swap) = spares::swap(speculation, job, row, placement, cause) {
                return Some(swap);
            }
            if placement.live > 0 {
                return None;
            }
            if let Some(failed) = recovery::failed_attempt(speculation, job, row, placement, cause) {
                return Some(failed);
            }
            let again = recovery::after_failure(state, job, row, placement);
            if let Some(verdict) = again.filter(|_| !row.cancel_requested) {
                return Some(match verdict {
                    Verdict::Over { detail } => {
                        Decision::JobFinished { job, outcome: Outcome::Failed { detail } }
                    }
                    Verdict::Again { failed } => Decision::JobRequeued { job, failed },
                });
            }
            let retries_max = state.spec(job)?.failure_retries_max;
            Some(after_stop(job, row, placement, cause, retries_max))
        }
    }
}

/// What follows once those that a job waits for are over, or its time has come. A job ends at once where one of them has failed, also
/// while it waits for another. One that is gone from the state counts as one that has ended as the job asks: nothing is pruned
/// while a job that waits for it is still to be looked at.
fn after_waiting(state: &State, job: JobId, now: LogTime) -> Option<Decision> {
    let spec = state.spec(job)?;
    let mut waits = false;
    let ordinal = spec.array.map(|member| member.ordinal);
    for on in &spec.dependencies {
        match state.dependency(on, ordinal) {
            DependencyState::Met => {}
            DependencyState::Waits => waits = true,
            DependencyState::Broken(how) => {
                let detail = broken(on, how, "this job");
                return Some(Decision::JobFinished { job, outcome: Outcome::Failed { detail } });
            }
        }
    }
    let due = spec.not_before.is_none_or(|time| time <= now);
    let due = due && !waits && recovery::waits_until(state, job, now).is_none();
    due.then_some(Decision::JobReleased { job })
}

/// What follows for a job that capacity is promised to: it is placed once all of it is free, and back in the pending
/// queue when part of it will not come.
fn after_promise(state: &State, job: JobId, promise: &PromiseRow, now: LogTime) -> Option<Decision> {
    let spec = state.spec(job)?;
    let policy = &state.policy().policy;
    let mut closures = bookings::closures(state, spec, now);
    closures.retain(|closure| closure.lasts_at(now));
    // What no worker holds, and what others than Muster leave of that.
    let mut left: BTreeMap<NodeId, (Free, Free)> = BTreeMap::new();
    let (mut is_free, mut is_left) = (true, true);
    for (rank, slot) in promise.slots.iter().enumerate() {
        let node = state.node(slot.node)?;
        let is_usable = node.restricted.unusable.is_disjoint(slot.devices);
        // Policy may have taken the copy of its checkpoints away since it was promised.
        let is_usable = is_usable && state.reads_checkpoints_in(job, &node.spec.region);
        // Or require isolation of workers that the node lacks; or an operator may have set other labels or taints.
        let is_usable = is_usable && fit::allows(&node.spec, spec, policy);
        let is_usable = is_usable && !windows::is_closed(policy, &spec.tenant, &node.spec, now);
        let is_booked = bookings::covers(state, &closures, &node.spec);
        let is_usable = is_usable && !is_booked;
        if !node.is_placeable() || node.incarnation != slot.incarnation || !is_usable {
            return Some(Decision::PromiseDropped { job });
        }
        let group = spec.group_of_slot(rank as u32, promise.slots.len())?;
        let (free, usable) = left.entry(slot.node).or_insert_with(|| (node.free.clone(), node.usable()));
        is_free &= taken(free, &group.request, slot.devices);
        is_left &= taken(usable, &group.request, slot.devices);
    }
    if !is_free {
        return None;
    }
    // Those that were to leave have left, and what they leave others than Muster have taken since. When they give it back nobody
    // knows.
    if !is_left {
        return Some(Decision::PromiseDropped { job });
    }
    // Others may have come since it was promised, or gone. These are looked at once, now that it would start: each report of a
    // worker on these nodes comes by here.
    let is_excluded = |others: &Resolved<'_>| {
        let is_closed = |node: NodeId| state.node(node).is_none_or(|row| others.excludes(&row.spec));
        promise.slots.iter().any(|slot| is_closed(slot.node))
    };
    if is_excluded(&affinity::resolve(state, job, spec)) {
        // Others that are being stopped are still to leave, as it may be for this.
        let is_lost = is_excluded(&affinity::resolve_behind_stops(state, job, spec, now));
        return is_lost.then_some(Decision::PromiseDropped { job });
    }
    Some(Decision::GangPlaced { job, workers: promise.slots.clone() })
}

/// Takes what a worker holds, where that is free; whether it was.
fn taken(free: &mut Free, request: &WorkerRequest, devices: DeviceSet) -> bool {
    let is_free = free.admits(request, devices);
    if is_free {
        free.take(request, devices);
    }
    is_free
}

/// Whether all that is promised to a job is free. If it is not placed, it waits for others to leave where nothing of theirs is
/// promised to it.
pub(crate) fn has_its_promise(state: &State, job: JobId) -> bool {
    let Some((row, spec)) = state.job(job).zip(state.spec(job)) else { return false };
    let Some(promise) = row.promise.as_deref() else { return false };
    let mut left: BTreeMap<NodeId, Free> = BTreeMap::new();
    promise.slots.iter().enumerate().all(|(rank, slot)| {
        let group = spec.group_of_slot(rank as u32, promise.slots.len());
        let Some((node, group)) = state.node(slot.node).zip(group) else { return false };
        taken(left.entry(slot.node).or_insert_with(|| node.free.clone()), &group.request, slot.devices)
    })
}

fn succeeded(rank: &RankState) -> bool {
    matches!(rank, RankState::Exited(exit) if exit.is_success())
}

/// Whether a worker ended by the fault of the place it ran in.
fn is_evicted(rank: &RankState) -> bool {
    match rank {
        RankState::Lost => true,
        RankState::Exited(exit) => exit.is_eviction(),
        RankState::Assigned | RankState::Running => false,
    }
}

/// Why the gang cannot go on, if it cannot. A lost node explains the failures of its peers, so it
/// comes before them.
fn stop_cause(row: &JobRow, placement: &Placement) -> Option<StopCause> {
    if row.cancel_requested {
        return Some(StopCause::Cancelled);
    }
    if let Some(rank) = placement.ranks.iter().position(is_evicted) {
        return Some(StopCause::Evicted { node: placement.slots[rank].node });
    }
    placement.ranks.iter().enumerate().find_map(|(rank, state)| match state {
        RankState::Exited(exit) if !exit.is_success() => {
            Some(StopCause::WorkerFailed { rank: rank as u32, exit: exit.clone() })
        }
        _ => None,
    })
}

/// Nothing of the gang runs any more and no failure was recorded: the job is over, or it waits again.
fn after_stop(
    job: JobId,
    row: &JobRow,
    placement: &Placement,
    cause: &StopCause,
    retries_max: u32,
) -> Decision {
    if row.cancel_requested {
        return Decision::JobFinished { job, outcome: Outcome::Cancelled };
    }
    match cause {
        StopCause::RunTimeLimit => {
            let detail = String::from("ran longer than its run-time limit");
            Decision::JobFinished { job, outcome: Outcome::Failed { detail } }
        }
        StopCause::Deadline => finished_late(job),
        // A worker that failed because its peer's node was going is not to blame.
        _ if placement.ranks.iter().any(is_evicted) => Decision::JobRequeued { job, failed: false },
        StopCause::WorkerFailed { rank, exit } => {
            if row.failures >= retries_max {
                let failures = row.failures + 1;
                let detail =
                    format!("rank {rank}: {exit} (failure {failures}, retries allowed: {retries_max})");
                Decision::JobFinished { job, outcome: Outcome::Failed { detail } }
            } else {
                Decision::JobRequeued { job, failed: true }
            }
        }
        StopCause::Cancelled
        | StopCause::Evicted { .. }
        | StopCause::Fault { .. }
        | StopCause::Requested { .. }
        | StopCause::Rearranged(_) => Decision::JobRequeued { job, failed: false },
    }
}
