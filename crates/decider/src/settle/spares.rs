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
    if spares.is_empty() || row.cancel_requested || row.held || row.promise.is_some() {
        return None;
    }
    let class = class_of_end(placement, cause)?;
    if !class.is_of_node() && class != FailureClass::Evicted {
        return None;
    }
    let failed = failed_nodes(placement, cause);
    let is_good = |slot: &WorkerSlot| !failed.contains(&slot.node) && is_current(state, slot);
    // Other jobs may have come to where a spare is since the gang was placed, or gone from there.
    let exclusions = || {
        let others = affinity::resolve(state, job, state.spec(job)?);
        Some(move |slot: &WorkerSlot| state.node(slot.node).is_none_or(|row| others.excludes(&row.spec)))
    };
    let ranks = assigned(&placement.slots, spares, is_good, exclusions)?;
    let decision = Decision::SparesTaken { job, token: placement.token, ranks };
    state.check(&decision).is_ok().then_some(decision)
}

/// Which spare each rank on a bad place goes on in; none when no rank has to, or there are too few spares for them.
///
/// This is asked at each report of a gang that stops. `exclusions` looks at where other jobs are, which takes long, so it is asked
/// only when there are enough spares in good places.
fn assigned<E: Fn(&WorkerSlot) -> bool>(
    slots: &[WorkerSlot],
    spares: &[WorkerSlot],
    is_good: impl Fn(&WorkerSlot) -> bool,
    exclusions: impl FnOnce() -> Option<E>,
) -> Option<Vec<(u32, WorkerSlot)>> {
    let failed = slots.iter().filter(|slot| !is_good(slot)).count();
    let good = spares.iter().filter(|slot| is_good(slot)).count();
    if failed == 0 || good < failed {
        return None;
    }
    let is_excluded = exclusions()?;
    let mut free = spares.iter().filter(|slot| is_good(slot) && !is_excluded(slot));
    let mut ranks = Vec::new();
    for (rank, _) in slots.iter().enumerate().filter(|(_, slot)| !is_good(slot)) {
        ranks.push((rank as u32, *free.next()?));
    }
    Some(ranks)
}

fn is_current(state: &State, slot: &WorkerSlot) -> bool {
    state.node(slot.node).is_some_and(|row| row.is_placeable() && row.incarnation == slot.incarnation)
}

fn failed_nodes(placement: &Placement, cause: &StopCause) -> BTreeSet<NodeId> {
    let ranks = placement.slots.iter().zip(&placement.ranks);
    let mut nodes: BTreeSet<NodeId> =
        ranks.filter(|(_, state)| is_fault_of_place(state)).map(|(slot, _)| slot.node).collect();
    match cause {
        // The program is to blame, and not the node that is named.
        StopCause::Fault { class, .. } if class.is_of_application() => {}
        StopCause::Fault { node, .. } | StopCause::Evicted { node } => _ = nodes.insert(*node),
        _ => {}
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use muster_types::DeviceSet;

    fn slots(nodes: &[u32]) -> Vec<WorkerSlot> {
        let slot = |node: &u32| WorkerSlot { node: NodeId(*node), incarnation: 1, devices: DeviceSet(1) };
        nodes.iter().map(slot).collect()
    }

    #[test]
    fn where_other_jobs_are_is_looked_at_only_when_there_are_spares_for_all_failed_ranks() {
        let looks = Cell::new(0);
        let take = |gang: &[u32], spares: &[u32], excluded: u32| {
            // Places from 90 on are bad.
            let is_good = |slot: &WorkerSlot| slot.node.0 < 90;
            let exclusions = || {
                looks.set(looks.get() + 1);
                Some(move |slot: &WorkerSlot| slot.node.0 == excluded)
            };
            let ranks = assigned(&slots(gang), &slots(spares), is_good, exclusions)?;
            Some(ranks.iter().map(|(rank, slot)| (*rank, slot.node.0)).collect::<Vec<_>>())
        };
        assert_eq!(take(&[1, 2], &[3], 0), None, "nothing has failed");
        assert_eq!(take(&[91, 92], &[3], 0), None, "there are too few");
        assert_eq!(take(&[91, 2], &[93], 0), None, "the spare has failed as well");
        assert_eq!(looks.get(), 0);
        assert_eq!(take(&[1, 91], &[3, 4], 3), Some([(1, 4)].to_vec()));
        assert_eq!(take(&[1, 91], &[3], 3), None);
        assert_eq!(looks.get(), 2);
    }
}
