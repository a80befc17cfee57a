//! What a policy leaves of the fleet where it requires isolation of workers.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use muster_types::Name;
use muster_types::policy::Guarantee;

use super::{Look, PolicyWarningCode, some};

const FIELD: &str = "isolation.require";

/// Nodes that lack something, and tenants that are left without a node.
pub(super) fn look_at(look: &mut Look<'_>) {
    let (state, policy) = (look.state, look.policy);
    if policy.required_isolation.is_empty() {
        return;
    }
    let mut lacking: BTreeSet<Guarantee> = BTreeSet::new();
    let mut without: Vec<&Name> = Vec::new();
    // Types and regions of nodes that may be used.
    let mut left: BTreeSet<(Option<&Name>, &Name)> = BTreeSet::new();
    for (_, row) in state.nodes().iter() {
        let mut lacks = policy.lacking_isolation(&row.spec).peekable();
        if lacks.peek().is_some() {
            without.push(&row.spec.name);
            lacking.extend(lacks);
        } else {
            let kind = row.spec.accelerators.as_ref().map(|has| &has.kind);
            left.insert((kind, &row.spec.region));
        }
    }
    if without.is_empty() {
        return;
    }
    let words: Vec<String> = lacking.iter().map(ToString::to_string).collect();
    let words = words.join(", ");
    let all = state.nodes().len();
    if left.is_empty() {
        let text = format!(
            "no node isolates workers as required, each lacks some of {words}: no job of any tenant is placed"
        );
        look.warn(PolicyWarningCode::NoIsolatedNode, FIELD, text);
        return;
    }
    let text = format!(
        "{} of {all} nodes lack some of the isolation that is required ({words}), and get no more work: {}; what runs \
         there stays",
        without.len(),
        some(&without)
    );
    look.warn(PolicyWarningCode::NodesNotIsolated, FIELD, text);
    for (tenant, kinds) in kinds_of_tenants(look) {
        let has_one = |(kind, region): &(&Name, Option<&Name>)| {
            left.iter().any(|(of, at)| *of == Some(*kind) && region.is_none_or(|region| region == *at))
        };
        if !kinds.iter().any(has_one) {
            let text = format!(
                "tenant {tenant} is guaranteed devices on nodes alone that lack the isolation that is required ({words})"
            );
            look.warn(PolicyWarningCode::NoIsolatedNode, format!("tenants.{tenant}"), text);
        }
    }
}

/// By tenant, the types and regions of which it is guaranteed something that the fleet has.
fn kinds_of_tenants<'a>(look: &Look<'a>) -> BTreeMap<&'a Name, Vec<(&'a Name, Option<&'a Name>)>> {
    let mut kinds: BTreeMap<&Name, Vec<(&Name, Option<&Name>)>> = BTreeMap::new();
    for (tenant, settings) in &look.policy.tenants {
        let there = settings.quotas.iter().filter(|quota| quota.nominal_milli > 0);
        let there = there.filter(|quota| look.fleet.milli(&quota.kind, quota.region.as_ref()) > 0);
        for quota in there {
            kinds.entry(tenant).or_default().push((&quota.kind, quota.region.as_ref()));
        }
    }
    kinds
}
