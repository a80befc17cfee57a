//! Labels and taints that operators set on nodes.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use muster_journal::{Decision, RequestKey, hash};
use muster_state::State;
use muster_types::{
    JobId, NodeId, NodeOverrides, NodeOverridesChange, Refusal, RefusalCode, RequestId, Requester, Violation,
    limits,
};

use crate::commands::answer::{Answer, repeated};
use crate::settle::job::settle_many;
use crate::speculation::Speculation;

/// What is to change about the labels and taints of one node, and who asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverridesOrder {
    /// The client's name for it.
    pub request: RequestId,
    /// Who asks for it, as it is recorded.
    pub by: Requester,
    /// Which node.
    pub node: NodeId,
    /// What is to change.
    pub change: NodeOverridesChange,
}

/// All that operators would have set on a node after a change.
///
/// # Errors
/// When there is no such node, or the change or what comes of it breaks a rule; the refusal names the fields.
pub fn check_overrides(
    state: &State,
    node: NodeId,
    change: &NodeOverridesChange,
) -> Result<NodeOverrides, Refusal> {
    let Some(row) = state.node(node) else {
        return Err(Refusal::new(RefusalCode::NodeNotFound, format!("there is no {node}")).with("node", node));
    };
    let violations = change.violations();
    if !violations.is_empty() {
        return Err(Refusal::fields(violations));
    }
    let before = row.overrides.as_ref().map(|set| set.overrides.clone()).unwrap_or_default();
    let after = change.applied_to(&before);
    let mut violations = Vec::new();
    let mut bound = |field: &str, items: &str, count: usize, max: usize| {
        if count > max {
            let text = format!(
                "{} would have {count} {items} of operators; at most {max} may be set",
                row.spec.name
            );
            violations.push(Violation::new(field, text));
        }
    };
    bound("set_labels", "labels", after.labels.len(), limits::NODE_OVERRIDE_LABELS_MAX);
    bound("set_taints", "taints", after.taints.len(), limits::NODE_OVERRIDE_TAINTS_MAX);
    if violations.is_empty() { Ok(after) } else { Err(Refusal::fields(violations)) }
}

/// Running gangs stay. Capacity that is promised to a gang which the node does not suit any more is given up.
pub(super) fn set(speculation: &mut Speculation, order: &OverridesOrder) -> Result<Answer, Refusal> {
    let OverridesOrder { request, by, node, change } = order;
    let key = RequestKey { id: *request, fingerprint: hash(&("node overrides", node, change)) };
    if let Some(answer) = repeated(speculation, key)? {
        return Ok(answer);
    }
    if !by.is_valid() {
        let text = format!("must be at most {} bytes of printable ASCII", limits::CREATOR_BYTES_MAX);
        return Err(Refusal::fields(alloc::vec![Violation::new("by", text)]));
    }
    let overrides = Box::new(check_overrides(speculation.state(), *node, change)?);
    let decision = Decision::NodeOverridesSet { request: key, by: by.clone(), node: *node, overrides };
    let at = speculation.push(decision);
    let promised: Vec<JobId> = speculation.state().promised_on(*node).collect();
    settle_many(speculation, promised);
    Ok(Answer::Done { at })
}
