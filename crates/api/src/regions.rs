//! Roles that are restricted to regions: which nodes and replicas their holders may operate and drill.
//!
//! Calls about jobs are not restricted: a job has no region before it is placed. Where jobs of a tenant may run, quotas and what
//! nodes a job asks for say.

use muster_state::State;
use muster_types::{NodeId, Refusal, RefusalCode};

use crate::forward::Caller;
use crate::verbs::is_for_region;

impl Caller {
    /// # Errors
    /// When its role is restricted to other regions.
    pub(crate) fn check_region(&self, view: &State, region: &str) -> Result<(), Refusal> {
        let principal = self.principal();
        if is_for_region(view, &principal, region) {
            return Ok(());
        }
        let text = format!("the role of {principal} is for other regions, and not for {region:?}");
        let refusal = Refusal::new(RefusalCode::PermissionDenied, text);
        Err(refusal.with("principal", principal).with("region", region))
    }

    /// The same of the region that a node stands in. A node that is gone stands nowhere.
    ///
    /// # Errors
    /// When its role is restricted to other regions.
    pub(crate) fn check_node(&self, view: &State, node: NodeId) -> Result<(), Refusal> {
        view.node(node).map_or(Ok(()), |row| self.check_region(view, &row.spec.region))
    }
}
