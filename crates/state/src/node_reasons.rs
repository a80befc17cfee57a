//! Why operators took nodes out of placement, who did and when: what the records of cordons and drains make of it.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use muster_journal::RequestKey;
use muster_types::health::{Drain, is_reason};
use muster_types::{NodeId, Requester};

use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::rows::{NodeReason, NodeReasonsRow, RequestAnswer};
use crate::state::State;
use crate::verify::BrokenInvariant;

/// A reason is a bounded text without control characters, and only what is taken out has one.
pub(crate) fn check_reason(is_taken_out: bool, reason: Option<&str>) -> Result<(), GuardError> {
    let Some(reason) = reason else { return Ok(()) };
    require(is_taken_out && is_reason(reason), GuardError::Limit)
}

impl State {
    /// A cordon that was there keeps its reason until another one is given.
    pub(crate) fn fold_cordon(
        &mut self,
        (request, by): (RequestKey, &Requester),
        node: NodeId,
        (cordoned, reason): (bool, Option<&str>),
    ) -> Vec<Effect> {
        self.remember(request, RequestAnswer::CordonSet { node });
        let row = self.nodes.get(&node).expect("the guard has seen the node");
        let is_transition = row.cordoned != cordoned;
        if !is_transition && reason.is_none() {
            return Vec::new();
        }
        let set = cordoned.then(|| self.reason_of(by, reason));
        let reasons = self.reasons_with(node, |reasons| reasons.cordon = set);
        self.change_node(node, is_transition, |row| {
            row.cordoned = cordoned;
            row.reasons = reasons;
        });
        vec![Effect::NodeChanged(node)]
    }

    /// A drain that nobody asked for, as before a maintenance, has no reason but its cause.
    pub(crate) fn fold_drain(
        &mut self,
        (request, by): (Option<RequestKey>, &Requester),
        node: NodeId,
        (drain, reason): (Option<Drain>, Option<&str>),
    ) -> Vec<Effect> {
        self.remember_restriction(request, node);
        let row = self.nodes.get(&node).expect("the guard has seen the node");
        let known = row.reasons.as_ref().is_some_and(|reasons| reasons.drain.is_some());
        let is_said = drain.is_some() && request.is_some() && (reason.is_some() || !known);
        let is_changed = is_said || (drain.is_none() && known);
        if is_changed {
            let set = drain.map(|_| self.reason_of(by, reason));
            let reasons = self.reasons_with(node, |reasons| reasons.drain = set);
            self.change_node(node, false, |row| row.reasons = reasons);
        }
        let effects = self.change_restriction(node, |row, _| row.drain = drain);
        if effects.is_empty() && is_changed { vec![Effect::NodeChanged(node)] } else { effects }
    }

    fn reason_of(&self, by: &Requester, reason: Option<&str>) -> NodeReason {
        let reason = String::from(reason.unwrap_or_default());
        NodeReason { reason, by: by.kept(), set_at: self.meta.log_time }
    }

    /// The reasons of a node with one change; none where none is left.
    fn reasons_with(
        &self,
        node: NodeId,
        change: impl FnOnce(&mut NodeReasonsRow),
    ) -> Option<Arc<NodeReasonsRow>> {
        let known = self.nodes.get(&node).and_then(|row| row.reasons.as_deref());
        let mut reasons = known.cloned().unwrap_or_default();
        change(&mut reasons);
        (reasons != NodeReasonsRow::default()).then(|| Arc::new(reasons))
    }

    /// What is verified of every node: only what is taken out has a reason for it, and every text is within its bounds.
    pub(crate) fn verify_node_reasons(&self) -> Result<(), BrokenInvariant> {
        for (id, row) in self.nodes.iter() {
            let Some(reasons) = &row.reasons else { continue };
            let is_drained = self.restriction(*id).is_some_and(|row| row.drain.is_some());
            let has_cause =
                (reasons.cordon.is_none() || row.cordoned) && (reasons.drain.is_none() || is_drained);
            let all = || [&reasons.cordon, &reasons.drain].into_iter().flatten();
            let is_text = all().all(|said| said.reason.is_empty() || is_reason(&said.reason));
            // From where somebody called, and with which role, is in the log alone.
            let is_kept = all().all(|said| said.by.address.is_none() && said.by.role.is_none());
            if !has_cause || !is_text || !is_kept || all().next().is_none() {
                return Err(BrokenInvariant(format!("{id} has reasons that it may not have")));
            }
        }
        Ok(())
    }
}
