//! Who calls, on whose behalf, until when, and what that caller may do to jobs and nodes.

use muster_state::State;
use muster_transport::{Principal, Role};
use muster_types::{JobId, Name, OwnerRole, Refusal, RefusalCode, TraceParent};
use muster_wire::status::to_status;
use std::net::IpAddr;
use tokio::time::Instant;
use tonic::Status;

use crate::shares::Account;
use crate::visibility::Visibility;

/// What the caller said in addition to the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) forwarded: bool,
    pub(crate) deadline: Instant,
    pub(crate) principal: Principal,
    /// From where it called the replica that took the call.
    pub(crate) address: Option<IpAddr>,
    /// It is an agent's stream.
    pub(crate) nodes: bool,
    /// The span that it is served in, if it is a part of a trace.
    pub(crate) trace: Option<TraceParent>,
}

impl Caller {
    /// A reader of this replica's own pages, which are never passed on.
    pub(crate) fn reading(principal: Principal, deadline: Instant) -> Caller {
        Caller { forwarded: false, deadline, principal, address: None, nodes: false, trace: None }
    }

    /// Whether the caller is this node's agent, as far as that is known. An agent speaks for the node that has its
    /// name and no other; the agent of a cluster of another scheduler has another kind of certificate and speaks
    /// for the nodes below its name: `agent-group/slurm-a` for `slurm-a.n1`.
    ///
    /// # Errors
    /// When it is another's.
    pub(crate) fn speaks_for(&self, node: &str) -> Result<(), Status> {
        let role = self.principal.role();
        if speaks_for(role, node) {
            return Ok(());
        }
        let text = match role {
            Some(Role::Agent(_)) if speaks_for_as_group(role, node) => format!(
                "{} speaks for its own node alone; nodes below a name need a certificate of kind agent-group, see \
                 `muster ca issue`",
                self.principal
            ),
            _ => format!("{} does not speak for node {node:?}", self.principal),
        };
        let refusal = Refusal::new(RefusalCode::PermissionDenied, text);
        Err(to_status(&refusal.with("principal", self.principal)))
    }

    /// Whether the caller may decide about a job's workers: a user as for every write, an agent for jobs with
    /// a worker on a node that it speaks for. Nobody may of a job that is not in the state.
    pub(crate) fn check_worker_of(&self, view: &State, job: JobId) -> Result<(), Refusal> {
        let Some(row) = view.job(job) else { return Err(no_job(job)) };
        let role = self.principal.role();
        let Some(Role::Agent(_) | Role::AgentGroup(_)) = role else { return self.check_job(view, job) };
        let slots = row.placement.iter().flat_map(|placement| &placement.slots);
        let mut nodes = slots.filter_map(|slot| view.node(slot.node));
        if nodes.any(|node| speaks_for(role, &node.spec.name)) {
            return Ok(());
        }
        let text = format!("{} runs no worker of {job}", self.principal);
        Err(Refusal::new(RefusalCode::PermissionDenied, text).with("principal", self.principal))
    }

    /// The span that it is served in; none where it is a part of no trace.
    pub(crate) fn trace(&self) -> Option<TraceParent> {
        self.trace
    }

    /// The principal that calls, or on whose behalf a replica does.
    pub(crate) fn principal(&self) -> Principal {
        self.principal
    }

    /// From where it called, as it is recorded with what it asks for.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The role that a token or a sign-in gives it, as it is recorded with what it asks for.
    pub(crate) fn granted_role(&self) -> Option<Name> {
        self.principal.granted_role().and_then(Name::new)
    }

    /// Whether it may act for the operators of the cluster.
    pub(crate) fn is_operator(&self) -> bool {
        self.principal.is_operator()
    }

    /// For whom it is counted what the caller takes.
    pub(crate) fn account(&self) -> Account {
        Account::of(&self.principal)
    }

    /// The principal as it is kept with jobs that it submits; empty when nobody knows.
    pub(crate) fn creator(&self) -> String {
        match self.principal {
            Principal::Plaintext | Principal::Anonymous => String::new(),
            Principal::Named(_) | Principal::Token(_) => self.principal.to_string(),
        }
    }

    /// The role of the policy that it has, as it is kept with what it sets; none where it has all of a built-in one.
    pub(crate) fn owner_role(&self) -> Option<OwnerRole> {
        let Principal::Token(holder) = &self.principal else { return None };
        let name = Name::new(holder.own_role?.as_str())?;
        Some(OwnerRole { name, part_of: holder.role })
    }

    /// Whose jobs it is shown whole.
    pub(crate) fn visibility(&self) -> Visibility {
        Visibility::of(&self.principal)
    }

    /// The tenant that it is bound to, for what is decided on a state that is ahead of this replica's; none where it acts for
    /// all.
    ///
    /// # Errors
    /// When it acts for no tenant, as [`Caller::check_tenant`].
    pub(crate) fn acts_for(&self) -> Result<Option<Name>, Refusal> {
        match self.principal.role() {
            None | Some(Role::Admin(_) | Role::AllTenants(_) | Role::Replica(_)) => Ok(None),
            Some(Role::TenantClient { tenant, .. }) => {
                let own = Name::new(tenant.as_str()).expect("a short name keeps the rule of names");
                Ok(Some(own))
            }
            Some(Role::Client(_) | Role::Agent(_) | Role::AgentGroup(_)) => Err(self.acts_for_no_tenant()),
        }
    }

    fn acts_for_no_tenant(&self) -> Refusal {
        let text = format!(
            "{} acts for no tenant: it may look and change nothing; issue a certificate with `muster ca issue … \
             client NAME --tenant TENANT`, or --all-tenants, or make a token with --tenant",
            self.principal
        );
        Refusal::new(RefusalCode::PermissionDenied, text).with("principal", self.principal)
    }

    /// Whether the caller may do something to jobs of a tenant, or for it: not one of another tenant, unless
    /// that one is above it.
    pub(crate) fn check_tenant(&self, view: &State, tenant: &Name) -> Result<(), Refusal> {
        let own = match self.principal.role() {
            None | Some(Role::Admin(_) | Role::AllTenants(_) | Role::Replica(_)) => return Ok(()),
            Some(Role::TenantClient { tenant, .. }) => tenant,
            Some(Role::Client(_) | Role::Agent(_) | Role::AgentGroup(_)) => {
                return Err(self.acts_for_no_tenant().with("tenant", tenant));
            }
        };
        if view.policy().policy.ancestry(tenant).any(|above| above.as_str() == own.as_str()) {
            return Ok(());
        }
        let text = format!("{} acts for tenant {own} and those below it, not for {tenant}", self.principal);
        let refusal = Refusal::new(RefusalCode::PermissionDenied, text);
        Err(refusal.with("principal", self.principal).with("tenant", tenant))
    }

    /// The same of the tenant that a job is of. A job that is not there passes: who asks something of it is asked for
    /// [`Caller::acts_for`] as well, and the leader checks that by a state that is ahead of this one.
    pub(crate) fn check_job(&self, view: &State, job: JobId) -> Result<(), Refusal> {
        view.tenant_of(job).map_or(Ok(()), |tenant| self.check_tenant(view, tenant))
    }

    /// The same where nothing else checks it: a job that is not there is refused. It could be there, and another tenant's, by
    /// the time when it is looked up again. Which jobs there are is no secret, so this tells a stranger nothing new.
    pub(crate) fn check_job_there(&self, view: &State, job: JobId) -> Result<(), Refusal> {
        view.tenant_of(job).map_or_else(|| Err(no_job(job)), |tenant| self.check_tenant(view, tenant))
    }
}

fn no_job(job: JobId) -> Refusal {
    Refusal::new(RefusalCode::JobNotFound, format!("there is no {job}")).with("job_id", job)
}

/// Whether a certificate of this kind speaks for a node, as far as its kind says.
fn speaks_for(role: Option<Role>, node: &str) -> bool {
    match role {
        Some(Role::Agent(own)) => own.as_str() == node,
        Some(Role::AgentGroup(own)) => is_below(own.as_str(), node),
        _ => true,
    }
}

/// Whether it would, were it of the kind for groups.
fn speaks_for_as_group(role: Option<Role>, node: &str) -> bool {
    matches!(role, Some(Role::Agent(own)) if is_below(own.as_str(), node))
}

/// Whether a node's name begins with a name, a dot, and something behind it.
fn is_below(own: &str, node: &str) -> bool {
    node.strip_prefix(own).and_then(|rest| rest.strip_prefix('.')).is_some_and(|rest| !rest.is_empty())
}
