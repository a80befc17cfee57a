//! Ends jobs whose deadline has passed.

use alloc::vec::Vec;
use muster_journal::{Decision, StopCause};
use muster_state::Phase;
use muster_types::{ArrayId, JobId, limits};

use crate::rules::deadline::finished_late;
use crate::settle::job::{end, settle_left_over};
use crate::speculation::Speculation;

/// Jobs ended for their deadline in one tick.
const ENDED_PER_TICK: usize = 1_000;

/// Ends jobs whose deadline has passed: those that wait at once, those that run once they have been stopped. One that
/// is being stopped for another reason ends when nothing of it runs any more.
pub(super) fn end_late(speculation: &mut Speculation) {
    let now = speculation.now();
    let due = speculation.state().deadlines().take_while(|(deadline, _)| *deadline <= now);
    let late: Vec<JobId> = due.map(|(_, job)| job).take(ENDED_PER_TICK).collect();
    for job in late {
        let row = speculation.state().job(job).expect("an indexed job has a row");
        let runs = matches!(row.phase, Phase::Starting | Phase::Running);
        let decision = match row.placement.as_ref().filter(|_| runs) {
            Some(placement) => {
                Decision::GangStopRequested { job, token: placement.token, cause: StopCause::Deadline }
            }
            None => finished_late(job),
        };
        end(speculation, job, decision);
    }
    let arrays = speculation.state().array_deadlines().take_while(|(deadline, _)| *deadline <= now);
    let arrays: Vec<ArrayId> = arrays.map(|(_, array)| array).take(limits::CONTROLLED_ARRAYS_MAX).collect();
    speculation.leave_arrays_unsettled(arrays);
    settle_left_over(speculation);
}
