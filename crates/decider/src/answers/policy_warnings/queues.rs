//! Nodes of tenants that nobody has, and budgets in dollars that nothing counts in.

use alloc::format;
use alloc::string::String;
use muster_types::Name;

use super::{Look, PolicyWarningCode};

/// Tenants whose nodes are none of the fleet's.
pub(super) fn look_at(look: &mut Look<'_>) {
    let (state, policy) = (look.state, look.policy);
    for (tenant, settings) in &policy.tenants {
        let Some(nodes) = &settings.queue.nodes else { continue };
        let field = format!("tenants.{tenant}.queue.nodes");
        let mut matching = state.nodes().iter().filter(|(_, row)| nodes.allows(&row.spec)).peekable();
        if matching.peek().is_none() {
            let text = format!(
                "no node is one that jobs of tenant {tenant} run on ({nodes}): none of them is placed"
            );
            look.warn(PolicyWarningCode::TenantWithoutNodes, field, text);
            continue;
        }
        if matching.all(|(_, row)| !policy.opens(&row.spec, tenant)) {
            let text = format!(
                "every node that jobs of tenant {tenant} run on ({nodes}) is kept for other tenants: none of them is placed"
            );
            look.warn(PolicyWarningCode::TenantWithoutNodes, field, text);
        }
    }
}

/// Budgets in dollars of a policy that states no price.
pub(super) fn spends(look: &mut Look<'_>) {
    if !look.policy.price_table().is_empty() {
        return;
    }
    let stated = |(name, settings): (&Name, &muster_types::policy::TenantPolicy)| -> Option<String> {
        let limits = &settings.limits;
        let field = match (limits.spend, limits.user.spend) {
            (Some(_), _) => "spend",
            (None, Some(_)) => "user.spend",
            (None, None) => return None,
        };
        Some(format!("tenants.{name}.limits.{field}"))
    };
    let Some(field) = look.policy.tenants.iter().find_map(stated) else { return };
    let text =
        "the policy states no prices, so that nothing is spent and the budget in dollars never used up";
    look.warn(PolicyWarningCode::SpendWithoutPrices, field, text);
}
