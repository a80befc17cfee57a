//! How many CPUs and how much memory a tenant and everyone below it may be charged for together.
//!
//! What is in use is what fair share counts: rows of tenants have it, those of tenants above included. A gang that is being
//! preempted is not charged any more, as with quotas. Memory is counted in MiB, begun ones of a gang as whole ones.

use alloc::collections::{BTreeMap, BTreeSet};
use core::fmt;
use muster_journal::WorkerSlot;
use muster_types::{JobId, JobSpec, Name};

use crate::guard_error::{GuardError, require};
use crate::index::Shape;
use crate::rows::Charge;
use crate::state::State;

const MIB: u64 = 1 << 20;

/// What hosts have in addition to devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostResource {
    /// In thousandths of a CPU.
    Cpu,
    /// In bytes.
    Memory,
}

impl HostResource {
    /// Both.
    pub const ALL: [HostResource; 2] = [HostResource::Cpu, HostResource::Memory];

    /// Its limit in a policy.
    #[must_use]
    pub fn limit(self) -> &'static str {
        match self {
            HostResource::Cpu => "limits.cpu",
            HostResource::Memory => "limits.memory",
        }
    }

    /// What a gang of this many workers asks for; of all where it may not have that many.
    #[must_use]
    fn asked(self, spec: &JobSpec, workers: u32) -> u64 {
        match self {
            HostResource::Cpu => spec.cpu_milli_of(workers),
            HostResource::Memory => whole_mib(spec.memory_bytes_of(workers)),
        }
    }

    fn charged(self, charge: &Charge) -> u64 {
        match self {
            HostResource::Cpu => charge.cpu_milli,
            HostResource::Memory => whole_mib(charge.memory_bytes),
        }
    }
}

impl fmt::Display for HostResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            HostResource::Cpu => "CPUs",
            HostResource::Memory => "memory",
        })
    }
}

fn whole_mib(bytes: u64) -> u64 {
    bytes.div_ceil(MIB).saturating_mul(MIB)
}

/// A limit of a tenant on what it and everyone below it are charged for together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLimit<'a> {
    /// Whose.
    pub tenant: &'a Name,
    /// Of what.
    pub resource: HostResource,
    /// How much.
    pub most: u64,
    /// What is in use.
    pub used: u64,
}

impl HostLimit<'_> {
    /// What is left of it.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.most.saturating_sub(self.used)
    }
}

impl State {
    /// The limits that hold for jobs of a tenant: its own and those of the tenants above it.
    pub fn host_limits<'a>(&'a self, tenant: &'a Name) -> impl Iterator<Item = HostLimit<'a>> + 'a {
        let policy = &self.policy.policy;
        let above = policy.has_host_limits().then(|| policy.ancestry(tenant));
        above.into_iter().flatten().flat_map(move |tenant| {
            HostResource::ALL.into_iter().filter_map(move |resource| self.host_limit(tenant, resource))
        })
    }

    /// The limit that the policy states for a tenant.
    #[must_use]
    pub fn host_limit<'a>(&self, tenant: &'a Name, resource: HostResource) -> Option<HostLimit<'a>> {
        let limits = &self.policy.policy.tenants.get(tenant)?.limits;
        let most = match resource {
            HostResource::Cpu => limits.cpu_milli?,
            HostResource::Memory => limits.memory_bytes?,
        };
        let usage = self.tenants.get(tenant);
        let used = usage.map_or(0, |usage| match resource {
            HostResource::Cpu => usage.running_cpu_milli(),
            HostResource::Memory => usage.running_memory_bytes(),
        });
        Some(HostLimit { tenant, resource, most, used })
    }

    /// What a gang of this many workers is charged for at most. Workers that have hosts to themselves are charged for all of them,
    /// and before they have a place each is counted as the largest host without accelerators that there is in its regions.
    #[must_use]
    pub fn host_asked(&self, spec: &JobSpec, resource: HostResource, workers: u32) -> u64 {
        let asked = resource.asked(spec, workers);
        if !spec.is_exclusive() {
            return asked;
        }
        asked.max(self.largest_host(spec, resource).saturating_mul(workers.into()))
    }

    /// The same for a job as it is now. One that has hosts to itself is counted by them as long as it has no more workers, and not as
    /// if it was on the largest hosts that there are.
    #[must_use]
    pub fn host_asked_by(&self, job: JobId, spec: &JobSpec, resource: HostResource, workers: u32) -> u64 {
        let own = self.host_charge(job, resource);
        let row = self.jobs.get(&job).filter(|_| spec.is_exclusive() && own > 0);
        let Some(placement) = row.and_then(|row| row.placement.as_ref()) else {
            return self.host_asked(spec, resource, workers);
        };
        let placed = u32::try_from(placement.slots.len()).unwrap_or(u32::MAX);
        let more = self.largest_host(spec, resource).saturating_mul(workers.saturating_sub(placed).into());
        own.saturating_add(more)
    }

    /// What the largest host without accelerators has that there is in the regions of a job.
    fn largest_host(&self, spec: &JobSpec, resource: HostResource) -> u64 {
        let of_host = |shape: &Shape| match resource {
            HostResource::Cpu => shape.cpu_milli,
            HostResource::Memory => whole_mib(shape.memory_bytes),
        };
        let may_be_in = |region: &Name| spec.regions.is_empty() || spec.regions.contains(region);
        let pools = self.pools().filter(|(key, _)| key.kind.is_none() && may_be_in(&key.region));
        pools.flat_map(|(_, pool)| pool.shapes.keys()).map(of_host).max().unwrap_or(0)
    }

    /// What a job is charged for now.
    #[must_use]
    pub fn host_charge(&self, job: JobId, resource: HostResource) -> u64 {
        let charge = self.jobs.get(&job).and_then(|row| row.charge());
        charge.map_or(0, |(_, charge)| resource.charged(charge))
    }

    /// Whether limits hold once some gangs are stopped and others are charged for these workers. What is above a limit that was
    /// lowered may go on, and does not grow.
    pub(crate) fn check_host_limits(
        &self,
        stopped: &BTreeSet<JobId>,
        gangs: &[(JobId, &JobSpec, &[WorkerSlot])],
    ) -> Result<(), GuardError> {
        if !self.policy.policy.has_host_limits() {
            return Ok(());
        }
        // By tenant and resource: what is taken and given back, and the limit.
        let mut changed: BTreeMap<(&Name, HostResource), (u64, u64, HostLimit<'_>)> = BTreeMap::new();
        for (_, spec, workers) in gangs {
            if self.host_limits(&spec.tenant).next().is_none() {
                continue;
            }
            let charge = self.charge_for(spec, workers);
            for limit in self.host_limits(&spec.tenant) {
                let amount = limit.resource.charged(&charge);
                let sums = changed.entry((limit.tenant, limit.resource)).or_insert((0, 0, limit));
                sums.0 = sums.0.saturating_add(amount);
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        for job in stopped {
            let row = self.jobs.get(job).ok_or(GuardError::JobUnknown)?;
            let spec = self.specs.get(job).ok_or(GuardError::JobUnknown)?;
            let Some((_, charge)) = row.charge() else { continue };
            for limit in self.host_limits(&spec.tenant) {
                if let Some(sums) = changed.get_mut(&(limit.tenant, limit.resource)) {
                    sums.1 = sums.1.saturating_add(limit.resource.charged(charge));
                }
            }
        }
        let holds = |(taken, given, limit): &(u64, u64, HostLimit<'_>)| {
            limit.used.saturating_sub(*given).saturating_add(*taken) <= limit.most.max(limit.used)
        };
        require(changed.values().all(holds), GuardError::HostLimitExceeded)
    }
}
