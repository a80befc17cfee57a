//! When waiting jobs are expected to start, for lists of jobs.

use muster_decider::StartEstimate;
use muster_engine::{Engine, Reading};
use muster_types::JobId;
use muster_wire::time::log_time;
use muster_wire::v1;
use std::collections::BTreeMap;

/// What an estimate of a list is derived from.
const BASIS: &str =
    "one forecast of the whole queue, in which each waiting job gets its capacity in the order of the queue";

/// Gives the waiting jobs of a page when they are expected to start, by one forecast of the queue. Jobs beyond its bound have nothing.
pub(crate) fn add(engine: &Engine, view: &Reading, listed: &mut v1::ListJobsResponse) {
    let forecast = engine.expected_starts_here(view);
    let starts: BTreeMap<JobId, StartEstimate> =
        forecast.starts.iter().filter_map(|found| Some((found.job, found.start?))).collect();
    for job in &mut listed.jobs {
        let start = job.id.parse::<JobId>().ok().and_then(|id| starts.get(&id));
        if let (Some(start), Some(status)) = (start, job.status.as_mut()) {
            status.expected_start = Some(estimate(*start));
        }
    }
    listed.forecast = Some(v1::StartForecast {
        computed_jobs: forecast.starts.len() as u64,
        waiting_jobs: view.pending_count() as u64,
        is_cut: forecast.is_cut,
    });
}

fn estimate(start: StartEstimate) -> v1::StartEstimate {
    v1::StartEstimate {
        p10: log_time(start.q10),
        p50: log_time(start.q50),
        p90: start.q90.and_then(log_time),
        basis: BASIS.to_owned(),
    }
}
