//! Queues: what each tenant has waiting and holds, kept in step by the fold; with what it has used and may
//! use, put together when asked.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Bound;
use muster_types::policy::Quota;
use muster_types::{LogTime, Name};

use crate::apply::State;
use crate::index::{Indexes, Standing};
use crate::rows::Placement;
use crate::usage::TenantUsage;

/// Jobs of one tenant that are not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLoad {
    /// Jobs that wait.
    pub pending_jobs: u64,
    /// Those of them that wait for another job or for a time.
    pub held_jobs: u64,
    /// Thousandths of devices that the waiting jobs ask for.
    pub pending_milli: u64,
    /// Jobs that hold devices.
    pub active_jobs: u64,
    /// Thousandths of devices that those hold.
    pub active_milli: u64,
}

impl QueueLoad {
    fn of(standing: &Standing) -> QueueLoad {
        QueueLoad {
            pending_jobs: u64::from(standing.pending),
            held_jobs: u64::from(standing.held.is_some()),
            pending_milli: if standing.pending { standing.asked_milli } else { 0 },
            active_jobs: u64::from(standing.active),
            active_milli: standing.active_milli,
        }
    }

    /// A sum over jobs of at most 2^32 thousandths each, of which there are far fewer than 2^32.
    fn changed(self, gone: QueueLoad, new: QueueLoad) -> QueueLoad {
        QueueLoad {
            pending_jobs: self.pending_jobs + new.pending_jobs - gone.pending_jobs,
            held_jobs: self.held_jobs + new.held_jobs - gone.held_jobs,
            pending_milli: self.pending_milli + new.pending_milli - gone.pending_milli,
            active_jobs: self.active_jobs + new.active_jobs - gone.active_jobs,
            active_milli: self.active_milli + new.active_milli - gone.active_milli,
        }
    }
}

/// What workers hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Thousandths of devices.
    pub devices_milli: u64,
    /// Milli-CPUs.
    pub cpu_milli: u64,
}

impl Work {
    /// What a job holds where it is placed.
    pub(crate) fn of(placement: &Placement) -> Work {
        let charge = &placement.charge;
        let devices_milli = charge.devices_milli.iter().map(|(_, milli)| milli).sum();
        Work { devices_milli, cpu_milli: charge.cpu_milli }
    }

    fn plus(self, other: Work) -> Work {
        let devices_milli = self.devices_milli + other.devices_milli;
        Work { devices_milli, cpu_milli: self.cpu_milli + other.cpu_milli }
    }

    fn minus(self, other: Work) -> Work {
        let devices_milli = self.devices_milli - other.devices_milli;
        Work { devices_milli, cpu_milli: self.cpu_milli - other.cpu_milli }
    }
}

/// A fleet cluster, by region and name.
pub(crate) type ClusterPlace = (Name, Name);

impl Indexes {
    /// What the tenant holds in a cluster has changed. One that holds nothing there is not listed.
    pub(crate) fn shift_work(
        &mut self,
        tenant: &Name,
        before: Option<&(ClusterPlace, Work)>,
        after: Option<&(ClusterPlace, Work)>,
    ) {
        let mut of_tenant = self.work.take(tenant).unwrap_or_default();
        if let Some((place, gone)) = before {
            let left = of_tenant.get(place).copied().unwrap_or_default().minus(*gone);
            if left == Work::default() {
                of_tenant.remove(place);
            } else {
                of_tenant.insert(place.clone(), left);
            }
        }
        if let Some((place, new)) = after {
            let sum = of_tenant.get(place).copied().unwrap_or_default().plus(*new);
            of_tenant.insert(place.clone(), sum);
        }
        if !of_tenant.is_empty() {
            self.work.insert(tenant.clone(), of_tenant);
        }
    }

    /// A job of the tenant stands elsewhere.
    pub(crate) fn shift_load(&mut self, tenant: &Name, before: &Standing, after: &Standing) {
        let (gone, new) = (QueueLoad::of(before), QueueLoad::of(after));
        if gone == new {
            return;
        }
        match self.loads.get_mut(tenant) {
            Some(load) => {
                *load = load.changed(gone, new);
                if *load == QueueLoad::default() {
                    self.loads.remove(tenant);
                }
            }
            None => self.loads.insert(tenant.clone(), QueueLoad::default().changed(gone, new)),
        }
    }
}

/// A quota and what of it is in use, in thousandths of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUse {
    /// As the policy has it.
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

impl State {
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
            quotas: named.iter().flat_map(|tenant| &tenant.quotas).map(quota).collect(),
            at: self.meta.log_time,
        })
    }

    /// Names of at most so many queues behind a name, or from the first one on, in order.
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
