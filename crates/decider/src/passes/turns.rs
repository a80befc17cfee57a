//! Turns of waiting jobs that a changed policy, or what was learned, makes others.

use alloc::vec::Vec;
use muster_journal::Decision;
use muster_policy::burst_turn;
use muster_types::{JobId, QueueKey, limits};

use crate::round::ROUND_BYTES_SOFT;
use crate::speculation::Speculation;

/// Gives waiting bursts the turns that a changed policy and what was learned make for them, a record at a
/// time; whether that is done.
pub(crate) fn renew_turns(speculation: &mut Speculation) -> bool {
    let now = speculation.now();
    while let Some(from) = speculation.stale_turns() {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            return false;
        }
        let state = speculation.state();
        let mut bursts: Vec<(JobId, QueueKey)> = Vec::new();
        let mut next = None;
        for burst in state.bursts_from(from) {
            if bursts.len() == limits::TURNS_CHANGED_MAX {
                next = Some(burst);
                break;
            }
            let renewed = burst_turn(state, burst, now).filter(|turn| state.turn_of(burst) != Some(*turn));
            bursts.extend(renewed.map(|turn| (burst, turn)));
        }
        if !bursts.is_empty() {
            speculation.push(Decision::TurnsChanged { bursts });
        }
        speculation.set_stale_turns(next);
    }
    let bursts = speculation.changed_turns();
    if !bursts.is_empty() {
        speculation.push(Decision::TurnsChanged { bursts });
    }
    true
}
