//! What gangs are charged for: against quotas and in their tenants' shares.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use muster_journal::WorkerSlot;
use muster_types::{JobId, JobSpec, Name, limits};

use crate::guard_error::GuardError;
use crate::index::Indexes;
use crate::quota::QuotaUsage;
use crate::rows::Charge;
use crate::state::State;
use crate::usage::{Capacity, Rate, TenantUsage};

impl Charge {
    /// The charge as rates of use: the first carries CPU and memory.
    pub(crate) fn rates(&self) -> impl Iterator<Item = Rate<'_>> {
        let host = Rate { cpu_milli: self.cpu_milli, memory_bytes: self.memory_bytes, ..Rate::default() };
        let devices = self.devices_milli.iter().map(|(kind, milli)| Rate {
            kind: Some(kind),
            device_milli: *milli,
            ..Rate::default()
        });
        core::iter::once(host).chain(devices)
    }
}

/// [`QuotaUsage::add`] or [`QuotaUsage::remove`].
type Change = fn(&mut QuotaUsage, &Name, &Name, &Name, u64);

impl Indexes {
    /// Counts a charge against quotas. Without quotas nobody asks, and nothing is counted.
    pub(crate) fn charge(&mut self, spec: &JobSpec, region: &Name, charge: &Charge) {
        self.count(spec, region, charge, QuotaUsage::add);
    }

    fn uncharge(&mut self, spec: &JobSpec, region: &Name, charge: &Charge) {
        self.count(spec, region, charge, QuotaUsage::remove);
    }

    fn count(&mut self, spec: &JobSpec, region: &Name, charge: &Charge, change: Change) {
        if !self.has_quotas {
            return;
        }
        for (kind, milli) in &charge.devices_milli {
            change(&mut self.quota, &spec.tenant, kind, region, *milli);
            if !spec.preemptible {
                change(&mut self.fixed_quota, &spec.tenant, kind, region, *milli);
            }
        }
    }
}

impl State {
    /// A job is charged for something else from now on.
    pub(crate) fn change_charge(
        &mut self,
        spec: &JobSpec,
        before: Option<(&Name, &Charge)>,
        after: Option<(&Name, &Charge)>,
    ) {
        if let Some((region, charge)) = before {
            self.indexes.uncharge(spec, region, charge);
        }
        if let Some((region, charge)) = after {
            self.indexes.charge(spec, region, charge);
        }
        let now = self.meta.log_time;
        let policy = self.policy.policy.clone();
        let half_life_ms = policy.order.usage_half_life_ms;
        // Everyone above takes part: a tenant's share is measured next to its siblings', level by level.
        for counted in policy.ancestry(&spec.tenant) {
            let count = |row: &mut TenantUsage| {
                row.advance(now, half_life_ms);
                for rate in before.iter().flat_map(|(_, charge)| charge.rates()) {
                    row.stop(now, rate);
                }
                for rate in after.iter().flat_map(|(_, charge)| charge.rates()) {
                    row.start(now, rate);
                }
                row.is_spent()
            };
            match self.tenants.change(counted, |row, ()| count(row)) {
                Some(false) => {}
                Some(true) => _ = self.tenants.remove(counted),
                None => {
                    let mut row = TenantUsage::new(now, half_life_ms);
                    if !count(&mut row) {
                        self.tenants.insert(counted.clone(), row);
                    }
                }
            }
        }
    }

    /// Forgets tenants that the policy does not name, that hold nothing, and whose past use has decayed to
    /// next to nothing. Names of tenants come from those who submit jobs, so rows that stayed would be without a bound.
    pub(crate) fn sweep_tenants(&mut self) {
        let (now, policy) = (self.meta.log_time, &self.policy.policy);
        let is_named = |tenant: &Name| policy.tenants.contains_key(tenant) || tenant == policy.unlisted();
        let spent = self.tenants.iter().filter(|(tenant, row)| !is_named(tenant) && row.is_negligible(now));
        let spent: Vec<Name> =
            spent.map(|(tenant, _)| tenant.clone()).take(limits::PRUNE_ROWS_MAX as usize).collect();
        for tenant in spent {
            self.tenants.remove(&tenant);
        }
    }

    /// Counts what runs under the tenants that a new policy puts above it, from now on.
    pub(crate) fn rehome_usage(&mut self) {
        let now = self.meta.log_time;
        let policy = self.policy.policy.clone();
        let half_life_ms = policy.order.usage_half_life_ms;
        let mut rows: BTreeMap<Name, TenantUsage> = BTreeMap::new();
        for (tenant, row) in self.tenants.iter() {
            let mut row = row.clone();
            row.advance(now, half_life_ms);
            row.stop_all(now);
            rows.insert(tenant.clone(), row);
        }
        let holders: BTreeSet<JobId> = self.active().chain(self.promised()).collect();
        for job in holders {
            let (Some(row), Some(spec)) = (self.jobs.get(&job), self.specs.get(&job)) else { continue };
            let Some((_, charge)) = row.charge() else { continue };
            for counted in policy.ancestry(&spec.tenant) {
                let new = || TenantUsage::new(now, half_life_ms);
                let row = rows.entry(counted.clone()).or_insert_with(new);
                for rate in charge.rates() {
                    row.start(now, rate);
                }
            }
        }
        for (tenant, row) in rows {
            if row.is_spent() {
                self.tenants.remove(&tenant);
            } else {
                self.tenants.insert(tenant, row);
            }
        }
    }

    /// Counts everything that is charged against the policy in force.
    pub(crate) fn count_quotas(&self, indexes: &mut Indexes) {
        self.set_effective(indexes);
        self.charge_all(indexes);
    }

    /// The same against an effective policy that is known.
    pub(crate) fn charge_all(&self, indexes: &mut Indexes) {
        indexes.quota = QuotaUsage::new(&indexes.effective);
        indexes.fixed_quota = indexes.quota.clone();
        if !indexes.has_quotas {
            return;
        }
        for (id, row) in self.jobs.iter() {
            if let (Some((region, charge)), Some(spec)) = (row.charge(), self.specs.get(id)) {
                indexes.charge(spec, region, charge);
            }
        }
    }

    /// Thousandths of devices of a type that are registered in a region, or in all.
    #[must_use]
    pub fn registered_milli(&self, kind: &Name, region: Option<&Name>) -> u64 {
        let of_kind = self.indexes.pools.iter().filter(|(key, _)| {
            key.kind.as_ref() == Some(kind) && region.is_none_or(|region| key.region == *region)
        });
        of_kind.map(|(_, pool)| pool.total_devices * 1_000).sum()
    }

    /// Everything that tenants share: what is registered, in whatever state.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        let mut capacity = Capacity::default();
        for (key, pool) in &self.indexes.pools {
            if let Some(kind) = &key.kind {
                *capacity.device_milli.entry(kind.clone()).or_default() += pool.total_devices * 1_000;
            }
            for (shape, count) in &pool.shapes {
                capacity.cpu_milli += shape.cpu_milli * u64::from(*count);
                capacity.memory_bytes = capacity
                    .memory_bytes
                    .saturating_add(shape.memory_bytes.saturating_mul(u64::from(*count)));
            }
        }
        capacity
    }

    /// Whether quotas hold once some gangs are stopped and others are charged for these workers.
    pub(crate) fn check_quota(
        &self,
        stopped: &BTreeSet<JobId>,
        gangs: &[(JobId, &JobSpec, &[WorkerSlot])],
    ) -> Result<(), GuardError> {
        if !self.indexes.has_quotas {
            return Ok(());
        }
        // A clone is constant-time.
        let mut usage = self.indexes.quota.clone();
        for job in stopped {
            let row = self.jobs.get(job).ok_or(GuardError::JobUnknown)?;
            let spec = self.specs.get(job).ok_or(GuardError::JobUnknown)?;
            if let Some((region, charge)) = row.charge() {
                for (kind, milli) in &charge.devices_milli {
                    usage.remove(&spec.tenant, kind, region, *milli);
                }
            }
        }
        for (_, spec, workers) in gangs {
            let region = self.region_of(workers);
            let mut sums: BTreeMap<Name, u64> = BTreeMap::new();
            for (kind, milli) in self.charge_for(spec, workers).devices_milli {
                *sums.entry(kind).or_default() += milli;
            }
            for (kind, milli) in sums {
                let capacity = |kind: &Name, region: Option<&Name>| self.registered_milli(kind, region);
                usage
                    .admits(capacity, &spec.tenant, &kind, &region, milli)
                    .map_err(|_| GuardError::QuotaExceeded)?;
                usage.add(&spec.tenant, &kind, &region, milli);
            }
        }
        Ok(())
    }
}
