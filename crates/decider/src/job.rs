//! What follows from what has become of a gang's workers.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::{Decision, Outcome, StopCause};
use muster_state::{JobRow, Phase, Placement, RankState};
use muster_types::JobId;

use crate::schedule::ROUND_BYTES_SOFT;
use crate::speculation::Speculation;

/// Pushes whatever the present state of the job calls for, until nothing does.
pub(crate) fn settle(speculation: &mut Speculation, job: JobId) {
    // A job moves at most: stop requested, then over. Three rounds of this would be a loop.
    for _ in 0..3 {
        let Some(decision) = next_step(speculation, job) else { return };
        speculation.push(decision);
    }
    assert!(next_step(speculation, job).is_none(), "a job settles in three steps");
}

/// Settles jobs while the round has room, and leaves the others for the rounds after it: one node
/// can carry more gangs than one round can say the end of.
pub(crate) fn settle_many(speculation: &mut Speculation, jobs: Vec<JobId>) {
    speculation.leave_unsettled(jobs);
    settle_left_over(speculation);
}

/// Goes on with what [`settle_many`] left; whether nothing is left.
pub(crate) fn settle_left_over(speculation: &mut Speculation) -> bool {
    while speculation.round_bytes() <= ROUND_BYTES_SOFT {
        let Some(job) = speculation.next_unsettled() else { return true };
        settle(speculation, job);
    }
    !speculation.has_unsettled()
}

/// Settles every job that holds devices: a new leader's first act, for the case that the one before
/// stopped between an input and what follows from it.
pub fn settle_all(speculation: &mut Speculation) {
    let active: Vec<JobId> = speculation.state().active().collect();
    settle_many(speculation, active);
}

fn next_step(speculation: &Speculation, job: JobId) -> Option<Decision> {
    let state = speculation.state();
    let row = state.job(job)?;
    match &row.phase {
        Phase::Finished(_) => None,
        Phase::Pending if row.cancel_requested => {
            Some(Decision::JobFinished { job, outcome: Outcome::Cancelled })
        }
        Phase::Pending => None,
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
            if placement.live > 0 {
                return None;
            }
            let retries_max = state.spec(job)?.failure_retries_max;
            Some(after_stop(job, row, placement, cause, retries_max))
        }
    }
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

/// Nothing of the gang runs any more: over, or once again.
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
        StopCause::Cancelled | StopCause::Evicted { .. } => Decision::JobRequeued { job, failed: false },
    }
}
