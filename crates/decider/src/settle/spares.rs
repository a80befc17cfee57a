//! Spares: who gets which, when a node fails under a gang.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use muster_journal::{Decision, StopCause, WorkerSlot};
use muster_state::{JobRow, Placement, State};
use muster_types::{FailureClass, JobId, NodeId};

use crate::rules::affinity;
use crate::settle::recovery::{class_of_end, is_fault_of_place};
use crate::speculation::Speculation;

/// The ranks on nodes that failed go on in the spares, if there are enough elsewhere.
pub(super) fn swap(
    speculation: &Speculation,
    job: JobId,
    row: &JobRow,
    placement: &Placement,
    cause: &StopCause,
) -> Option<Decision> {
    let state = speculation.state();
    let spares = state.spares(job);
    if spares.is_empty() || row.cancel_requested || row.promise.is_some() {
        return None;
    }
    let class = class_of_end(placement, cause)?;
    if !class.is_of_node() && class != FailureClass::Evicted {
        return None;
    }
    let failed = failed_nodes(placement, cause);
    let is_good = |slot: &WorkerSlot| !failed.contains(&slot.node) && is_current(state, slot);
    // Other jobs may have come to where a spare is since the gang was placed, or gone from there.
    let others = affinity::resolve(state, job, state.spec(job)?);
    let is_excluded = |slot: &WorkerSlot| state.node(slot.node).is_none_or(|row| others.excludes(&row.spec));
    let mut free = spares.iter().filter(|slot| is_good(slot) && !is_excluded(slot));
    let mut ranks: Vec<(u32, WorkerSlot)> = Vec::new();
    for (rank, _) in placement.slots.iter().enumerate().filter(|(_, slot)| !is_good(slot)) {
        ranks.push((rank as u32, *free.next()?));
    }
    let decision = Decision::SparesTaken { job, token: placement.token, ranks };
    state.check(&decision).is_ok().then_some(decision)
}

fn is_current(state: &State, slot: &WorkerSlot) -> bool {
    state.node(slot.node).is_some_and(|row| row.is_placeable() && row.incarnation == slot.incarnation)
}

fn failed_nodes(placement: &Placement, cause: &StopCause) -> BTreeSet<NodeId> {
    let ranks = placement.slots.iter().zip(&placement.ranks);
    let mut nodes: BTreeSet<NodeId> =
        ranks.filter(|(_, state)| is_fault_of_place(state)).map(|(slot, _)| slot.node).collect();
    if let StopCause::Fault { node, .. } | StopCause::Evicted { node } = cause {
        nodes.insert(*node);
    }
    nodes
}
