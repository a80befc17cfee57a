//! Turns of waiting jobs that a changed policy, or what was learned, makes others.

use alloc::vec::Vec;
use muster_journal::Decision;
use muster_policy::burst_turn;
use muster_types::{JobId, QueueKey, limits};

use crate::round::ROUND_BYTES_SOFT;
use crate::speculation::Speculation;

/// Gives pending submission groups the turns that a changed policy and what was learned make for them, a record at a
/// time; whether that is done.
pub(crate) fn renew_turns(speculation: &mut Speculation) -> bool {
    let now = speculation.now();
    while let Some(from) = speculation.stale_turns() {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            return false;
        }
        let state = speculation.state();
        let mut groups: Vec<(JobId, QueueKey)> = Vec::new();
        let mut next = None;
        for group in state.bursts_from(from) {
            if groups.len() == limits::TURNS_CHANGED_MAX {
                next = Some(group);
                break;
            }
            let renewed = burst_turn(state, group, now).filter(|turn| state.turn_of(group) != Some(*turn));
            groups.extend(renewed.map(|turn| (group, turn)));
        }
        if !groups.is_empty() {
            speculation.push(Decision::TurnsChanged { bursts: groups });
        }
        speculation.set_stale_turns(next);
    }
    let groups = speculation.changed_turns();
    if !groups.is_empty() {
        speculation.push(Decision::TurnsChanged { bursts: groups });
    }
    true
}
