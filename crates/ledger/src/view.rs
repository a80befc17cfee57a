//! What the ledger says at a time.

use alloc::vec::Vec;
use muster_types::policy::PurchaseKind;
use muster_types::{JobId, LogTime, Name, PriorityTier};

use crate::activity::{Activity, WaitReason};
use crate::catalog::Selection;
use crate::charges::ChargeKey;
use crate::ledger::Ledger;
use crate::pools::PoolName;

/// Accelerator time of one day.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsageRow {
    /// The day in UTC, as the number of days since the Unix epoch.
    pub day: u32,
    /// The tenant that owns it; none for idle accelerators that are not kept for anybody.
    pub tenant: Option<Name>,
    /// The tier of the owner's job; none where there is no owner.
    pub tier: Option<PriorityTier>,
    /// The type of accelerator.
    pub kind: Name,
    /// The region that the accelerators are in.
    pub region: Name,
    /// What the accelerators did.
    pub activity: Activity,
    /// How their nodes were bought, where their labels state it.
    pub purchase: Option<PurchaseKind>,
    /// How many cuts of [`Detail`](crate::Detail) are not behind it.
    pub period: u32,
    /// The job of the owner, where jobs are kept apart.
    pub job: Option<JobId>,
    /// The amount, in thousandths of an accelerator times milliseconds.
    pub milli_ms: u128,
}

/// Waiting time of one day.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitRow {
    /// The day in UTC, as the number of days since the Unix epoch.
    pub day: u32,
    /// The tenant of the jobs.
    pub tenant: Name,
    /// Their tier.
    pub tier: PriorityTier,
    /// The type that they accept.
    pub kind: Selection,
    /// The region that they accept.
    pub region: Selection,
    /// What they waited for.
    pub reason: WaitReason,
    /// The amount, in jobs times milliseconds.
    pub job_ms: u128,
}

/// Accelerator time of one day that jobs asked for while they could start and had no devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DemandRow {
    /// The day in UTC, as the number of days since the Unix epoch.
    pub day: u32,
    /// The tenant of the jobs.
    pub tenant: Name,
    /// Their tier.
    pub tier: PriorityTier,
    /// The type that they accept.
    pub kind: Selection,
    /// The region that they accept.
    pub region: Selection,
    /// The job, where jobs are kept apart; none for members of arrays that are not created.
    pub job: Option<JobId>,
    /// The amount, in thousandths of an accelerator times milliseconds.
    pub milli_ms: u128,
}

/// Capacity of one day: what there was, in use or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CapacityRow {
    /// The day in UTC, as the number of days since the Unix epoch.
    pub day: u32,
    /// The type of accelerator.
    pub kind: Name,
    /// The region that the accelerators are in.
    pub region: Name,
    /// How their nodes were bought, where their labels state it.
    pub purchase: Option<PurchaseKind>,
    /// The amount, in thousandths of an accelerator times milliseconds.
    pub milli_ms: u128,
}

/// Everything that was charged until a time. Rows are in their order, and none is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Accelerator time. Its sum over a type and region is the capacity there.
    pub usage: Vec<UsageRow>,
    /// Waiting time of jobs.
    pub waits: Vec<WaitRow>,
    /// What pending jobs asked for.
    pub demand: Vec<DemandRow>,
    /// Capacity, counted apart from what it was used for.
    pub capacity: Vec<CapacityRow>,
}

impl Ledger {
    /// What was charged until a time, which is not before the last record. What runs then is provisional.
    #[must_use]
    pub fn view(&self, at: LogTime) -> View {
        let mut ledger = self.clone();
        let at = at.max(self.time);
        let charges = &mut ledger.charges;
        ledger.pools.flush_all(at, charges);
        for array in ledger.arrays.values_mut() {
            array.flush(at, charges);
        }
        for job in ledger.jobs.values_mut() {
            job.flush(at, charges);
            let owner = job.owner();
            let Some(run) = &job.run else { continue };
            for (pieces, activity) in
                [(&run.work, Activity::Provisional), (&run.stopping, Activity::Stopping)]
            {
                for piece in pieces {
                    let (day, period, pool) = (piece.day, piece.period, piece.pool);
                    let key = ChargeKey { day, period, pool, owner, activity };
                    charges.add(key, piece.milli_ms);
                }
            }
        }
        ledger.rows()
    }

    fn rows(&self) -> View {
        let pool = |number| self.pools.names.get(number).cloned();
        let tenant = |number| self.tenants.get(number).cloned();
        let usage = self.charges.used.iter().filter_map(|(key, milli_ms)| {
            let PoolName { kind, region, purchase } = pool(key.pool)?;
            let of_owner = key.owner.map(|(owner, ..)| owner);
            Some(UsageRow {
                day: key.day,
                tenant: of_owner.and_then(tenant),
                tier: key.owner.map(|(_, tier, _)| tier),
                kind,
                region,
                activity: key.activity,
                purchase,
                period: key.period,
                job: key.owner.and_then(|(_, _, job)| job),
                milli_ms: *milli_ms,
            })
        });
        let waits = self.charges.waited.iter().filter_map(|(key, job_ms)| {
            let label = self.labels.get(key.label)?.clone();
            Some(WaitRow {
                day: key.day,
                tenant: tenant(key.tenant)?,
                tier: key.tier,
                kind: label.kind,
                region: label.region,
                reason: key.reason,
                job_ms: *job_ms,
            })
        });
        let demand = self.charges.demanded.iter().filter_map(|(key, milli_ms)| {
            let label = self.labels.get(key.label)?.clone();
            Some(DemandRow {
                day: key.day,
                tenant: tenant(key.tenant)?,
                tier: key.tier,
                kind: label.kind,
                region: label.region,
                job: key.job,
                milli_ms: *milli_ms,
            })
        });
        let capacity = self.charges.capacity.iter().filter_map(|((day, number), milli_ms)| {
            let PoolName { kind, region, purchase } = pool(*number)?;
            Some(CapacityRow { day: *day, kind, region, purchase, milli_ms: *milli_ms })
        });
        let mut view = View {
            usage: usage.collect(),
            waits: waits.collect(),
            demand: demand.collect(),
            capacity: capacity.collect(),
        };
        // Numbers are given in the order of the log, and rows are shown in the order of names.
        view.usage.sort_unstable();
        view.waits.sort_unstable();
        view.demand.sort_unstable();
        view.capacity.sort_unstable();
        view
    }
}
