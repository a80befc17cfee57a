//! What is forgotten before its time, so that the state can take new jobs and requests.

use alloc::format;
use muster_journal::Decision;
use muster_types::{ArrayId, JobSpec, LogTime, Parameters, Refusal, RefusalCode, limits};

use crate::speculation::Speculation;

/// The time before which finished jobs have to go so that `specs`, which come to that number of jobs, fit, if they do not as it is: none where not enough may
/// go. A job that these wait for stays, and so do those that finished later.
fn jobs_to_forget(speculation: &Speculation, specs: &[&JobSpec], rows: u64) -> Option<LogTime> {
    let state = speculation.state();
    let max = state.parameters().jobs_held_max;
    let excess = (state.jobs().len() as u64 + rows).saturating_sub(max);
    if excess == 0 {
        return Some(LogTime(0));
    }
    // Jobs that wait for one that is over see how it ended before that is forgotten.
    if speculation.has_unsettled() {
        return None;
    }
    let waited_for = specs.iter().flat_map(|spec| &spec.dependencies);
    let end = |on: &muster_types::Dependency| match on.is_of_array() || on.is_of_members() {
        true => state.array(ArrayId(on.job.0))?.finished_at,
        false => state.job(on.job)?.finished_at,
    };
    let kept = waited_for.filter_map(end).min();
    // Some at a time, so that not every submission has to.
    let most = usize::try_from(excess.max(max / 100).min(u64::from(limits::PRUNE_ROWS_MAX))).ok()?;
    let may_go = |at: LogTime| at < speculation.now() && kept.is_none_or(|kept| at < kept);
    let old = state.finished().map(|(at, _)| at).take(most).take_while(|at| may_go(*at));
    let (count, last) = old.fold((0, None), |(count, _), at| (count + 1, Some(at)));
    last.filter(|_| count >= excess).map(|last| LogTime(last.0.saturating_add(1)))
}

/// The time before which requests have to go so that one more fits: none where all are so young that they may be repeated.
fn requests_to_forget(speculation: &Speculation) -> Option<LogTime> {
    let state = speculation.state();
    let max = state.parameters().requests_held_max;
    if (state.requests_count() as u64) < max {
        return Some(LogTime(0));
    }
    let youngest = speculation.proved_now().minus_ms(Parameters::REQUEST_RETENTION_MIN_MS);
    let most = usize::try_from((max / 100).clamp(1, u64::from(limits::PRUNE_ROWS_MAX))).ok()?;
    let old = state.requests_by_time().map(|(at, _)| at).take(most).take_while(|at| *at < youngest);
    old.last().map(|last| LogTime(last.0.saturating_add(1)))
}

/// What is forgotten before its time, so that a submission fits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headroom {
    requests_before: LogTime,
    jobs_before: LogTime,
}

impl Headroom {
    /// Forgets it.
    pub(crate) fn make(self, speculation: &mut Speculation) {
        let Headroom { requests_before, jobs_before } = self;
        if requests_before > LogTime(0) || jobs_before > LogTime(0) {
            speculation.push(Decision::HistoryPruned { requests_before, jobs_before });
        }
    }
}

/// Memory is bounded whatever is submitted: what is finished or old goes first, then nothing new comes in.
pub(crate) fn headroom_for(
    speculation: &Speculation,
    specs: &[&JobSpec],
    rows: u64,
) -> Result<Headroom, Refusal> {
    let refusal = |limit: &'static str, max: u64, held: usize, what: &str| {
        let text = format!("the cluster holds {held} {what}; it may hold {max}");
        Refusal::new(RefusalCode::StateFull, text)
            .with("limit", limit)
            .with("held", held)
            .with("held_max", max)
            .with("retry_after_ms", 5_000)
    };
    let (state, parameters) = (speculation.state(), speculation.state().parameters());
    let jobs = || refusal("jobs_held_max", parameters.jobs_held_max, state.jobs().len(), "jobs");
    let requests =
        || refusal("requests_held_max", parameters.requests_held_max, state.requests_count(), "requests");
    let jobs_before = jobs_to_forget(speculation, specs, rows).ok_or_else(jobs)?;
    let requests_before = requests_to_forget(speculation).ok_or_else(requests)?;
    Ok(Headroom { requests_before, jobs_before })
}
