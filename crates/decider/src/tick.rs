//! What only time brings about.

use alloc::vec::Vec;
use muster_journal::{Decision, StopCause};
use muster_state::Phase;
use muster_types::JobId;

use crate::job::settle;
use crate::speculation::Speculation;

/// Jobs stopped for their limit in one tick.
const LIMITS_PER_TICK: usize = 1_000;

/// Stops gangs that have run for their limit, and drops history that has been kept for its time.
pub fn tick(speculation: &mut Speculation) {
    stop_overdue(speculation);
    prune(speculation);
}

fn stop_overdue(speculation: &mut Speculation) {
    let now = speculation.now();
    let due = speculation.state().run_limits().take_while(|(limit, _)| *limit <= now);
    let overdue: Vec<JobId> = due.map(|(_, job)| job).take(LIMITS_PER_TICK).collect();
    for job in overdue {
        let row = speculation.state().job(job).expect("an indexed job has a row");
        assert!(row.phase == Phase::Running, "only a running job has a limit");
        let token = row.placement.as_ref().expect("a running job has a placement").token;
        speculation.push(Decision::GangStopRequested { job, token, cause: StopCause::RunTimeLimit });
        settle(speculation, job);
    }
}

fn prune(speculation: &mut Speculation) {
    let parameters = speculation.state().parameters();
    let requests_before = speculation.now().minus_ms(parameters.request_retention_ms);
    let jobs_before = speculation.now().minus_ms(parameters.job_retention_ms);
    let state = speculation.state();
    let old_request = state.requests_by_time().next().is_some_and(|(at, _)| at < requests_before);
    let old_job = state.finished().next().is_some_and(|(at, _)| at < jobs_before);
    if old_request || old_job {
        speculation.push(Decision::HistoryPruned { requests_before, jobs_before });
    }
}
