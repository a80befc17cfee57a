//! Queues: what each tenant has waiting and holds, kept in step by the fold; with what it has used and may
//! use, put together when asked.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;
use muster_types::policy::Quota;
use muster_types::{LogTime, Name};

use crate::index::{QueueLoad, Work};
use crate::state::State;
use crate::usage::TenantUsage;

/// A quota and its usage, in thousandths of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUse {
    /// As the policy has it, with what is granted.
    pub quota: Quota,
    /// By the tenant and everyone below it.
    pub used_milli: u64,
}

/// A tenant's queue at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// Its own jobs.
    pub load: QueueLoad,
    /// The tenant above it.
    pub parent: Option<Name>,
    /// Its share next to its siblings, in thousandths.
    pub weight_milli: u32,
    /// What it and everyone below it use and have used; none for one that has used nothing.
    pub usage: Option<TenantUsage>,
    /// Its own quotas.
    pub quotas: Vec<QuotaUse>,
    /// The moment.
    pub at: LogTime,
}

impl QueueRow {
    /// Whether the other one says the same, but for what changes as time passes.
    #[must_use]
    pub fn is_like(&self, other: &QueueRow) -> bool {
        let running = |row: &QueueRow| -> Vec<(Name, u64)> {
            let kinds = row.usage.iter().flat_map(|usage| usage.running());
            kinds.filter(|(_, milli)| *milli > 0).map(|(kind, milli)| (kind.clone(), milli)).collect()
        };
        self.load == other.load
            && self.parent == other.parent
            && self.weight_milli == other.weight_milli
            && self.quotas == other.quotas
            && running(self) == running(other)
    }
}

/// By tenant, thousandths of devices of each type that jobs wait for.
pub type EligibleDemand = BTreeMap<Name, BTreeMap<Name, u64>>;

impl State {
    /// Thousandths of devices of each type that jobs are charged for: those that they hold, and those that are kept for them
    /// while others stop. The cost depends on tenants.
    #[must_use]
    pub fn used_milli(&self) -> BTreeMap<Name, u64> {
        let mut used: BTreeMap<Name, u64> = BTreeMap::new();
        // What a tenant uses counts for everyone above it as well.
        let topmost = self.tenants.iter().filter(|(name, _)| self.policy.policy.parent(name).is_none());
        for (kind, milli) in topmost.flat_map(|(_, usage)| usage.running()) {
            *used.entry(kind.clone()).or_default() += milli;
        }
        used
    }

    /// What the jobs of each tenant and of those below it wait for that nothing holds back but capacity and their position, by
    /// type. Only types are there that a registered node or a quota has: jobs may name others. Those of a tenant's
    /// quotas are always there, if only with zero. Members of arrays that are not created count, but for those that a throttle
    /// keeps back. A job that accepts several types counts for each, and one that takes any for all that are there. The cost
    /// depends on those types and on tenants.
    #[must_use]
    pub fn eligible_demand(&self) -> EligibleDemand {
        let policy = self.effective_policy();
        let mut demand = EligibleDemand::new();
        let mut kinds: BTreeSet<&Name> =
            self.indexes.pools.keys().filter_map(|key| key.kind.as_ref()).collect();
        for (name, tenant) in &policy.tenants {
            for quota in &tenant.quotas {
                kinds.insert(&quota.kind);
                demand.entry(name.clone()).or_default().entry(quota.kind.clone()).or_default();
            }
        }
        for kind in kinds {
            for (tenant, &milli) in self.eligible_of(Some(kind)) {
                for above in policy.ancestry(tenant) {
                    *demand.entry(above.clone()).or_default().entry(kind.clone()).or_default() += milli;
                }
            }
        }
        for (tenant, &milli) in self.eligible_of(None) {
            for above in policy.ancestry(tenant) {
                demand.get_mut(above).into_iter().flatten().for_each(|(_, sum)| *sum += milli);
            }
        }
        demand
    }

    /// Thousandths of devices that jobs wait for which accept this type, and which nothing holds back but capacity and their position.
    /// A job that accepts several types counts for each of them. The cost depends on tenants.
    #[must_use]
    pub fn eligible_milli(&self, kind: &Name) -> u64 {
        let those = self.eligible_of(Some(kind)).chain(self.eligible_of(None));
        those.fold(0, |sum, (_, milli)| sum.saturating_add(*milli))
    }

    fn eligible_of(&self, kind: Option<&Name>) -> impl Iterator<Item = (&Name, &u64)> {
        self.indexes.eligible.get(&kind.cloned()).into_iter().flat_map(|tenants| tenants.iter())
    }

    /// What a tenant's own jobs hold in a cluster, and what they hold everywhere.
    #[must_use]
    pub fn work_of(&self, tenant: &Name, region: &Name, cluster: &Name) -> (Work, Work) {
        let Some(of_tenant) = self.indexes.work.get(tenant) else { return Default::default() };
        let here = of_tenant.get(&(region.clone(), cluster.clone())).copied().unwrap_or_default();
        (here, of_tenant.values().fold(Work::default(), |sum, work| sum.plus(*work)))
    }

    /// A tenant's queue; none when no policy names it, no job of it is left and none of its use counts.
    #[must_use]
    pub fn queue(&self, tenant: &Name) -> Option<QueueRow> {
        let load = self.indexes.loads.get(tenant).copied();
        let named = self.policy.policy.tenants.get(tenant);
        let guaranteed = self.effective_policy().tenants.get(tenant);
        let usage = self.tenants.get(tenant).cloned();
        if load.is_none() && named.is_none() && usage.is_none() {
            return None;
        }
        let quota = |quota: &Quota| QuotaUse {
            quota: quota.clone(),
            used_milli: self.indexes.quota.used_milli(tenant, &quota.kind, quota.region.as_ref()),
        };
        Some(QueueRow {
            load: load.unwrap_or_default(),
            parent: named.and_then(|tenant| tenant.parent.clone()),
            weight_milli: self.policy.policy.weight_milli(tenant),
            usage,
            quotas: guaranteed.iter().flat_map(|tenant| &tenant.quotas).map(quota).collect(),
            at: self.meta.log_time,
        })
    }

    /// The names of at most `count` queues behind a name, or from the first one on, in order.
    #[must_use]
    pub fn queues_behind(&self, after: Option<&Name>, count: usize) -> Vec<Name> {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let owned = (after.cloned().map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let mut names: BTreeSet<Name> = BTreeSet::new();
        names.extend(self.policy.policy.tenants.range::<Name, _>(range).take(count).map(|(n, _)| n.clone()));
        names.extend(self.indexes.loads.range(owned.clone()).take(count).map(|(name, _)| name.clone()));
        names.extend(self.tenants.range(owned).take(count).map(|(name, _)| name.clone()));
        names.into_iter().take(count).collect()
    }
}
