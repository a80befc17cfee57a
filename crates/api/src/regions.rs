//! Roles that are restricted to regions: which nodes and replicas their holders may operate and drill.
//!
//! Jobs are not restricted: a job names no region until it is placed, and what one tenant's job may use, quotas and node
//! requirements say.

use muster_state::State;
use muster_transport::Principal;
use muster_types::policy::OwnRole;
use muster_types::{Name, NodeId, Refusal, RefusalCode};

use crate::forward::Caller;

/// The role of the policy that a caller has; `None` where it has all of a built-in one. `Some(None)` for one that the policy does
/// not define any more.
pub(crate) fn own_role<'a>(view: &'a State, principal: &Principal) -> Option<Option<&'a OwnRole>> {
    let Principal::Token(holder) = principal else { return None };
    let own = holder.own_role?;
    let name = Name::new(own.as_str());
    Some(name.and_then(|name| view.policy().policy.own_role(&name, holder.role)))
}

/// Whether a caller may operate what stands in a region.
pub(crate) fn is_for_region(view: &State, principal: &Principal, region: &str) -> bool {
    match own_role(view, principal) {
        None => true,
        Some(role) => role.is_some_and(|role| role.is_for_region(region)),
    }
}

impl Caller {
    /// # Errors
    /// When its role is restricted to other regions.
    pub(crate) fn check_region(&self, view: &State, region: &str) -> Result<(), Refusal> {
        let principal = self.principal();
        if is_for_region(view, &principal, region) {
            return Ok(());
        }
        let text = format!("the role of {principal} is not for region {region}");
        Err(Refusal::new(RefusalCode::PermissionDenied, text).with("principal", principal).with("region", region))
    }

    /// The same of the region that a node stands in. A node that is gone stands nowhere.
    ///
    /// # Errors
    /// When its role is restricted to other regions.
    pub(crate) fn check_node(&self, view: &State, node: NodeId) -> Result<(), Refusal> {
        view.node(node).map_or(Ok(()), |row| self.check_region(view, &row.spec.region))
    }
}
