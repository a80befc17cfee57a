//! Nodes that fail more often than their peers.

use alloc::vec::Vec;
use muster_journal::Decision;
use muster_types::{JobId, NodeId, Requester};

use crate::rules::faults::fails_more_often;
use crate::speculation::Speculation;

/// Keeps a node away from work on which a job has met a fault, when that comes about more often there than elsewhere.
pub(super) fn consider(speculation: &mut Speculation, node: NodeId) {
    let state = speculation.state();
    let held = |node: NodeId| state.restriction(node).is_some_and(|row| row.quarantine.is_some());
    if held(node) {
        return;
    }
    let Some(reason) = fails_more_often(state, node, speculation.now(), held) else { return };
    let decision =
        Decision::NodeQuarantineSet { request: None, by: Requester::default(), node, reason: Some(reason) };
    if state.check(&decision).is_err() {
        return;
    }
    let promised: Vec<JobId> = state.promised_on(node).collect();
    speculation.push(decision);
    speculation.leave_unsettled(promised);
}
