//! Counted resources of the policy: how many there are, who holds them, and which job is next.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use muster_engine::{Engine, Reading};
use muster_types::Name;
use muster_types::policy::COUNTED_RESOURCES_MAX;
use muster_wire::v1;

/// Resources of an answer: those of the policy, and as many that it does not have any more.
pub(crate) const LISTED_MAX: usize = 2 * COUNTED_RESOURCES_MAX;

/// What a resource of an answer takes, with most of the tenants in it.
pub(crate) const ROW_BYTES: usize = 4 << 10;

/// Tenants that are listed of one resource.
const TENANTS_MAX: usize = 100;

/// All of them, in the order of names.
pub(crate) fn list(engine: &Engine, view: &Reading) -> Vec<v1::Licence> {
    let policy = &view.policy().policy;
    let held = view.licences_in_use().map(|(name, _)| name);
    let names: BTreeSet<&Name> = policy.resources.iter().map(|resource| &resource.name).chain(held).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let next = engine.first_for_licences_here(view, names.iter().copied());
    let row = |name: &Name| {
        let mut uses: Vec<(&Name, u64)> = view.licences_by_tenant(name).collect();
        // By name where they hold as many.
        uses.sort_by_key(|(_, used)| Reverse(*used));
        let uses_left_out = uses.len() > TENANTS_MAX;
        let of_tenant = |(tenant, used): (&Name, u64)| v1::LicenceUse { tenant: tenant.to_string(), used };
        let region = policy.resource(name).and_then(|resource| resource.region.as_ref());
        v1::Licence {
            name: name.to_string(),
            region: region.map(Name::to_string).unwrap_or_default(),
            count: policy.resource_count(name),
            used: view.licences_held(name),
            uses: uses.into_iter().take(TENANTS_MAX).map(of_tenant).collect(),
            uses_left_out,
            next_job_id: next.get(name).map(ToString::to_string).unwrap_or_default(),
        }
    };
    names.into_iter().take(LISTED_MAX).map(row).collect()
}
