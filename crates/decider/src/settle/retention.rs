//! Finished jobs that are forgotten before their time, so that the state can take new ones.

use muster_journal::Decision;
use muster_types::{LogTime, limits};

use crate::speculation::Speculation;

/// The time before which finished jobs have to go so that `jobs` more have room; none where that needs nothing, or where not
/// enough are finished.
fn room_before(speculation: &Speculation, jobs: usize) -> Option<LogTime> {
    let state = speculation.state();
    let max = state.parameters().jobs_held_max;
    let excess = ((state.jobs().len() + jobs) as u64).saturating_sub(max);
    // Some at a time, so that not every submission has to.
    let most = u64::from(limits::PRUNE_ROWS_MAX).min(state.finished_count() as u64);
    let dropped = excess.max(max / 100).min(most);
    // Jobs that wait for one that is over see how it ended before that is forgotten.
    if excess == 0 || dropped < excess || speculation.has_unsettled() {
        return None;
    }
    let (last, _) = state.finished().nth(usize::try_from(dropped - 1).ok()?)?;
    (last < speculation.now()).then(|| LogTime(last.0.saturating_add(1)))
}

/// Whether finished jobs can be forgotten before their time, so that `jobs` more have room that have none.
pub(crate) fn can_make_room(speculation: &Speculation, jobs: usize) -> bool {
    room_before(speculation, jobs).is_some()
}

/// Forgets them.
pub(crate) fn make_room(speculation: &mut Speculation, jobs: usize) {
    if let Some(jobs_before) = room_before(speculation, jobs) {
        speculation.push(Decision::HistoryPruned { requests_before: LogTime(0), jobs_before });
    }
}
