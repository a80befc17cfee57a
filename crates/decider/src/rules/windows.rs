//! What windows mean for gangs and hosts.

use muster_state::{Phase, State};
use muster_types::policy::{Policy, Window, WindowPurpose};
use muster_types::{JobId, LogTime, Name, NodeId, NodeSpec};

pub(crate) fn is_open(window: &Window, now: LogTime) -> bool {
    window.from <= now && now < window.until
}

/// Whether a gang may go on running on a host, as far as open windows are concerned.
pub(crate) fn may_stay(state: &State, policy: &Policy, open: &[&Window], job: JobId, node: NodeId) -> bool {
    let (Some(row), Some(spec), Some(host)) = (state.job(job), state.spec(job), state.node(node)) else {
        return true;
    };
    if !matches!(row.phase, Phase::Starting | Phase::Running) {
        return true;
    }
    open.iter().filter(|window| window.scope.covers(&host.spec)).all(|window| match window.purpose {
        WindowPurpose::Maintenance => false,
        WindowPurpose::ReservedFor { .. } => is_owner(policy, window, &spec.tenant) || !spec.preemptible,
    })
}

/// Whether a window is set aside for a tenant, or for one above it.
pub(crate) fn is_owner(policy: &Policy, window: &Window, tenant: &Name) -> bool {
    match &window.purpose {
        WindowPurpose::Maintenance => false,
        WindowPurpose::ReservedFor { tenant: owner } => policy.ancestry(tenant).any(|above| above == owner),
    }
}

/// Whether a window that is open now keeps a tenant's work from a host.
pub(crate) fn is_closed(policy: &Policy, tenant: &Name, host: &NodeSpec, now: LogTime) -> bool {
    let mut open = policy.windows.iter().filter(|window| is_open(window, now) && window.scope.covers(host));
    open.any(|window| !is_owner(policy, window, tenant))
}
