//! What is forgotten before its time, so that the state can take new jobs and requests.

use alloc::format;
use alloc::vec::Vec;
use muster_journal::Decision;
use muster_types::{ArrayId, JobSpec, LogTime, Parameters, Refusal, RefusalCode, limits};

use crate::speculation::Speculation;

/// The time before which finished jobs have to go so that `specs`, which come to that number of rows, fit, if they do not as
/// it is: none where not enough may go. A job that these wait for stays, and so do those that finished later.
fn jobs_to_forget(speculation: &Speculation, specs: &[&JobSpec], rows: u64) -> Option<LogTime> {
    let state = speculation.state();
    let max = state.parameters().jobs_held_max;
    let excess = (state.rows_held() + rows).saturating_sub(max);
    if excess == 0 {
        return Some(LogTime(0));
    }
    // Jobs that wait for one that is over see how it ended before that is forgotten.
    if speculation.has_unsettled() {
        return None;
    }
    let waited_for = specs.iter().flat_map(|spec| &spec.dependencies);
    let of_array = |array: ArrayId| state.array(array)?.finished_at;
    let end =
        |on: &muster_types::Dependency| match (on.is_of_array() || on.is_of_members(), state.job(on.job)) {
            (true, _) => of_array(ArrayId(on.job.0)),
            (false, Some(row)) => row.finished_at,
            // Its array alone knows how it ended.
            (false, None) => of_array(state.array_of(on.job)?.0),
        };
    let kept = waited_for.filter_map(end).min();
    // Some at a time, so that not every submission has to.
    let most = u64::from(limits::PRUNE_ROWS_MAX);
    let wanted = (max / 100).min(most).max(excess);
    let may_go = |at: LogTime| at < speculation.now() && kept.is_none_or(|kept| at < kept);
    let at_once = usize::try_from(wanted.min(most)).ok()?;
    let mut old: Vec<(LogTime, u64)> = state.finished().map(|(at, _)| (at, 1)).take(at_once).collect();
    // An array goes once its members have: where not all jobs are looked at, one that is as old as those behind may have some left.
    let is_cut = old.len() == at_once;
    let last_job = old.last().map(|(at, _)| *at).filter(|_| is_cut);
    let arrays = state.finished_arrays().take(at_once);
    let arrays = arrays.take_while(|(at, _)| last_job.is_none_or(|last| *at < last));
    old.extend(arrays.map(|(at, array)| (at, state.array_rows(array))));
    old.sort_unstable();
    let (mut rows, mut last) = (0, None);
    for (at, of_one) in old.into_iter().take_while(|(at, _)| may_go(*at)) {
        if rows >= wanted {
            break;
        }
        rows += of_one;
        last = Some(at);
    }
    last.filter(|_| rows >= excess).map(|last| LogTime(last.0.saturating_add(1)))
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

/// Up to when history is dropped before its time, so that a submission or a request fits; nothing is dropped where a time is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pruning {
    requests_before: LogTime,
    jobs_before: LogTime,
}

impl Pruning {
    /// Drops it.
    pub(crate) fn carry_out(self, speculation: &mut Speculation) {
        let Pruning { requests_before, jobs_before } = self;
        if requests_before > LogTime(0) || jobs_before > LogTime(0) {
            speculation.push(Decision::HistoryPruned { requests_before, jobs_before });
        }
    }
}

/// Memory is bounded whatever is submitted: what is finished or old goes first, then nothing new comes in.
pub(crate) fn pruning_for(
    speculation: &Speculation,
    specs: &[&JobSpec],
    rows: u64,
) -> Result<Pruning, Refusal> {
    let refusal = |limit: &'static str, max: u64, held: u64, what: &str| {
        let text = format!("the cluster holds {held} {what}; it may hold {max}");
        Refusal::new(RefusalCode::StateFull, text)
            .with("limit", limit)
            .with("held", held)
            .with("held_max", max)
            .with("retry_after_ms", 5_000)
    };
    let (state, parameters) = (speculation.state(), speculation.state().parameters());
    let jobs = || refusal("jobs_held_max", parameters.jobs_held_max, state.rows_held(), "jobs and arrays");
    let requests = || {
        refusal("requests_held_max", parameters.requests_held_max, state.requests_count() as u64, "requests")
    };
    let jobs_before = jobs_to_forget(speculation, specs, rows).ok_or_else(jobs)?;
    let requests_before = requests_to_forget(speculation).ok_or_else(requests)?;
    Ok(Pruning { requests_before, jobs_before })
}

/// The same for a request about jobs that exist. Nobody who ends jobs is refused because the state is full, and no operator is.
pub(crate) fn pruning_for_request(
    speculation: &Speculation,
    is_refused: bool,
    rows: u64,
) -> Result<Pruning, Refusal> {
    match pruning_for(speculation, &[], rows) {
        Err(_) if !is_refused => Ok(Pruning { requests_before: LogTime(0), jobs_before: LogTime(0) }),
        made => made,
    }
}
