//! What time brings about for nodes that are drained or repaired, and for those whose maintenance comes near.

use alloc::vec::Vec;
use muster_types::NodeId;

use crate::round::ROUND_BYTES_SOFT;
use crate::settle::nodes::{FORCED_PER_TICK, advance_drain, follow_maintenance};
use crate::speculation::Speculation;

/// What time brings about: maintenance comes near, drains reach their deadline, emptied nodes may be repaired.
pub(super) fn advance(speculation: &mut Speculation) {
    let now = speculation.now();
    let state = speculation.state();
    let announced = state.maintenance().next();
    let lead_ms = announced.map_or(0, |_| state.health_policy().policy.maintenance_lead_ms);
    let near = state.maintenance().take_while(|(at, _)| at.minus_ms(lead_ms) <= now);
    // One that is drained for it already is nothing new.
    let is_new = |node: &NodeId| state.restriction(*node).is_some_and(|row| row.drain.is_none());
    let near: Vec<NodeId> = near.map(|(_, node)| node).filter(is_new).collect();
    // A whole fleet may be taken away at once: the rest is for the rounds after this one.
    for node in near {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            return;
        }
        follow_maintenance(speculation, node);
    }
    let draining: Vec<NodeId> = speculation.state().draining().collect();
    let mut left = FORCED_PER_TICK;
    for node in draining {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            return;
        }
        advance_drain(speculation, node, &mut left);
    }
}
