//! Labels and taints that operators set on nodes: guard and fold of that record, and what a registration makes of them.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use muster_journal::RequestKey;
use muster_types::{NodeId, NodeOverrides, NodeSpec, Requester};

use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::rows::{NodeOverridesRow, NodeRow};
use crate::state::State;
use crate::verify::BrokenInvariant;

impl State {
    /// One that changes nothing is recorded too: a repetition must find its answer.
    pub(crate) fn check_overrides(
        &self,
        request: RequestKey,
        by: &Requester,
        node: NodeId,
        overrides: &NodeOverrides,
    ) -> Result<(), GuardError> {
        self.check_restriction(Some(request), node)?;
        require(by.is_valid() && overrides.violations().is_empty(), GuardError::Limit)
    }

    /// The node's description is another from here on. What runs there stays, whatever it had asked for.
    pub(crate) fn fold_overrides(
        &mut self,
        request: RequestKey,
        by: &Requester,
        node: NodeId,
        overrides: &NodeOverrides,
    ) -> Vec<Effect> {
        self.remember_restriction(Some(request), node);
        let row = self.nodes.get(&node).expect("the guard has seen the node");
        let is_known = match &row.overrides {
            Some(known) => known.overrides == *overrides,
            None => overrides.is_empty(),
        };
        if is_known {
            return Vec::new();
        }
        let after = row.overridden(overrides, by, self.meta.log_time);
        self.indexes.change_taints(&row.spec, &after.spec);
        // Not a change of status: how long a lost node has been lost does not depend on it.
        self.change_node(node, false, |row| *row = after);
        vec![Effect::NodeChanged(node)]
    }

    /// What is verified of every node: what its row says is what its agent says with what operators have set.
    pub(crate) fn verify_overrides(&self) -> Result<(), BrokenInvariant> {
        for (id, row) in self.nodes.iter() {
            let Some(set) = &row.overrides else { continue };
            let is_right = !set.overrides.is_empty()
                && set.overrides.violations().is_empty()
                && set.said.is_within_agent_bounds()
                && *row.spec == set.said.overridden_by(&set.overrides);
            if !is_right {
                return Err(BrokenInvariant(format!("{id} is not as its agent and operators say")));
            }
        }
        Ok(())
    }
}

/// What a node is once its agent says this of it, and the row of what operators have set there.
pub(crate) fn said_again(
    row: &NodeRow,
    said: &Arc<NodeSpec>,
) -> (Arc<NodeSpec>, Option<Arc<NodeOverridesRow>>) {
    let Some(set) = &row.overrides else { return (Arc::clone(said), None) };
    let spec = Arc::new(said.overridden_by(&set.overrides));
    let set = NodeOverridesRow { said: Arc::clone(said), ..NodeOverridesRow::clone(set) };
    (spec, Some(Arc::new(set)))
}
