//! The parts of a fleet that a policy names: an operator who names a type or a region expects it to be there, now or later.

use alloc::collections::{BTreeMap, BTreeSet};

use super::PolicyDraft;
use crate::name::Name;

/// The accelerator types and regions that a policy names.
///
/// Types are those of its quotas, prices and spare hosts. Regions are those of its quotas, prices, data sets, transfers,
/// windows and counted resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedPlaces {
    /// By type, the regions that a quota or a price names it in.
    kinds: BTreeMap<Name, BTreeSet<Name>>,
    regions: BTreeSet<Name>,
}

impl NamedPlaces {
    pub(super) fn of(draft: &PolicyDraft) -> NamedPlaces {
        let mut named = NamedPlaces::default();
        let quotas = draft.tenants.values().flat_map(|tenant| &tenant.quotas);
        let quotas = quotas.map(|quota| (&quota.kind, &quota.region));
        let prices = draft.prices.iter().map(|price| (&price.kind, &price.region));
        for (kind, region) in quotas.chain(prices) {
            named.add_kind(kind, region.as_ref());
        }
        for kind in draft.spare_hosts_per_rack.keys() {
            named.add_kind(kind, None);
        }
        let copies = draft.datasets.values().flat_map(|dataset| &dataset.regions);
        let ends = draft.transfers.iter().flat_map(|transfer| [&transfer.from, &transfer.to]);
        let windows = draft.windows.iter().map(|window| &window.scope.region);
        let counted = draft.resources.iter().map(|resource| &resource.region);
        for region in copies.chain(ends.chain(windows).chain(counted).flatten()) {
            named.add_region(region);
        }
        named
    }

    fn add_kind(&mut self, kind: &Name, region: Option<&Name>) {
        // Most quotas are of few types: a name is copied once.
        if !self.kinds.contains_key(kind) {
            self.kinds.insert(kind.clone(), BTreeSet::new());
        }
        let Some(region) = region else { return };
        self.add_region(region);
        if let Some(regions) = self.kinds.get_mut(kind).filter(|regions| !regions.contains(region)) {
            regions.insert(region.clone());
        }
    }

    fn add_region(&mut self, region: &Name) {
        if !self.regions.contains(region) {
            self.regions.insert(region.clone());
        }
    }

    /// Whether the policy names this type of accelerator.
    #[must_use]
    pub fn has_kind(&self, kind: &Name) -> bool {
        self.kinds.contains_key(kind)
    }

    /// Whether a quota or a price of the policy is of this type in this region.
    #[must_use]
    pub fn has_kind_in(&self, kind: &Name, region: &Name) -> bool {
        self.kinds.get(kind).is_some_and(|regions| regions.contains(region))
    }

    /// Whether the policy names this region.
    #[must_use]
    pub fn has_region(&self, region: &Name) -> bool {
        self.regions.contains(region)
    }
}
