//! Who a caller is, as it is told itself.

use muster_state::State;
use muster_transport::{Principal, Role};
use muster_types::Name;
use muster_wire::closed::number;
use muster_wire::time::log_time;
use muster_wire::v1;

use crate::verbs::own_role;

/// What a caller is told of itself.
pub(crate) fn caller(view: &State, principal: &Principal) -> v1::Caller {
    let mut caller = v1::Caller { name: principal.to_string(), ..Default::default() };
    match principal.role() {
        Some(Role::TenantClient { tenant, user }) => {
            caller.tenant = tenant.to_string();
            caller.user = user.to_string();
        }
        Some(Role::Client(user) | Role::AllTenants(user) | Role::Admin(user)) => {
            caller.user = user.to_string();
        }
        Some(Role::Replica(_) | Role::Agent(_) | Role::AgentGroup(_)) | None => {}
    }
    match principal {
        Principal::Plaintext | Principal::Anonymous => {}
        Principal::Named(name) => caller.kind = name.role.kind().to_owned(),
        Principal::Token(holder) => {
            caller.kind = format!("token:{}", holder.role);
            caller.own_role = holder.own_role.map(|own| own.to_string()).unwrap_or_default();
            match &holder.issuer {
                Some(issuer) => caller.issuer = issuer.to_string(),
                None => {
                    caller.token_id = holder.id.to_string();
                    caller.expire_time = view.token(holder.id).and_then(|token| log_time(token.expires));
                }
            }
        }
    }
    if let Some(Some(role)) = own_role(view, principal) {
        caller.verbs = role.verbs.iter().map(|verb| number(*verb)).collect();
        caller.regions = role.regions.iter().map(Name::to_string).collect();
    }
    caller
}
