//! Jobs that have waited for long enough take what they name as a fallback.

use alloc::vec::Vec;
use muster_journal::Decision;
use muster_types::JobId;

use crate::speculation::Speculation;

/// Jobs whose fallback is opened in one tick.
const OPENED_PER_TICK: usize = 1_000;
/// Jobs that are looked at in one tick: those that waited for others first are known too early.
const LOOKED_AT_PER_TICK: usize = 50_000;

/// Opens what is due. A job in the pending queue is looked for again with its next pass, because it asks for something else then.
pub(super) fn open(speculation: &mut Speculation) {
    let (state, now) = (speculation.state(), speculation.now());
    let known = state.closed_fallbacks().take_while(|(at, _)| *at <= now).take(LOOKED_AT_PER_TICK);
    let is_due = |job: &JobId| state.fallback_due(*job).is_some_and(|at| at <= now);
    let due: Vec<Decision> = known
        .map(|(_, job)| job)
        .filter(is_due)
        .map(|job| Decision::FallbackOpened { job })
        .filter(|decision| state.check(decision).is_ok())
        .take(OPENED_PER_TICK)
        .collect();
    for decision in due {
        speculation.push(decision);
    }
}
