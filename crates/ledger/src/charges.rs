//! The books: accelerator time by day, owner, pool and activity, and waiting time by day, tenant and reason.

use alloc::collections::BTreeMap;
use muster_types::{JobId, LogTime, PriorityTier};
use serde::{Deserialize, Serialize};

use crate::activity::{Activity, WaitReason};
use crate::calendar::{Detail, Window};

/// A tenant by its number, the tier of the job, and the job where jobs are kept apart.
pub(crate) type Owner = Option<(u32, PriorityTier, Option<JobId>)>;

/// What accelerator time is kept by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ChargeKey {
    pub(crate) day: u32,
    pub(crate) period: u32,
    pub(crate) pool: u32,
    pub(crate) owner: Owner,
    pub(crate) activity: Activity,
}

/// What waiting time is kept by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct WaitKey {
    pub(crate) day: u32,
    pub(crate) tenant: u32,
    pub(crate) tier: PriorityTier,
    pub(crate) label: u32,
    pub(crate) reason: WaitReason,
}

/// What accelerator time that pending jobs ask for is kept by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct DemandKey {
    pub(crate) day: u32,
    pub(crate) tenant: u32,
    pub(crate) tier: PriorityTier,
    pub(crate) label: u32,
    /// Where jobs are kept apart; none for members of arrays that are not created.
    pub(crate) job: Option<JobId>,
}

/// Thousandths of accelerators times milliseconds of one day and period, in one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) day: u32,
    pub(crate) period: u32,
    pub(crate) pool: u32,
    pub(crate) milli_ms: u128,
}

/// Everything that was charged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Charges {
    pub(crate) window: Window,
    pub(crate) detail: Detail,
    pub(crate) used: BTreeMap<ChargeKey, u128>,
    pub(crate) waited: BTreeMap<WaitKey, u128>,
    /// What jobs asked for while they could start and had no devices.
    pub(crate) demanded: BTreeMap<DemandKey, u128>,
    /// By day and pool.
    pub(crate) capacity: BTreeMap<(u32, u32), u128>,
}

impl Charges {
    /// Charges a span; returns its product.
    pub(crate) fn charge(
        &mut self,
        (from, until): (LogTime, LogTime),
        milli: u64,
        (pool, owner, activity): (u32, Owner, Activity),
    ) -> u128 {
        let mut sum = 0;
        for slice in self.window.slices(&self.detail.cuts, from, until).filter(|_| milli > 0) {
            let milli_ms = u128::from(milli) * u128::from(slice.ms);
            let key = ChargeKey { day: slice.day, period: slice.period, pool, owner, activity };
            *self.used.entry(key).or_default() += milli_ms;
            sum += milli_ms;
        }
        sum
    }

    pub(crate) fn add(&mut self, key: ChargeKey, milli_ms: u128) {
        *self.used.entry(key).or_default() += milli_ms;
    }

    /// Charges the capacity of a pool.
    pub(crate) fn provide(&mut self, from: LogTime, until: LogTime, pool: u32, milli: u64) {
        for (day, ms) in self.window.days(from, until).filter(|_| milli > 0) {
            *self.capacity.entry((day, pool)).or_default() += u128::from(milli) * u128::from(ms);
        }
    }

    /// Charges the waiting time of jobs; returns that of one job.
    pub(crate) fn wait(&mut self, from: LogTime, until: LogTime, jobs: u64, key: WaitKey) -> u64 {
        let mut sum = 0u64;
        for (day, ms) in self.window.days(from, until).filter(|_| jobs > 0) {
            *self.waited.entry(WaitKey { day, ..key }).or_default() += u128::from(jobs) * u128::from(ms);
            sum = sum.saturating_add(ms);
        }
        sum
    }

    /// Charges what jobs that could start ask for.
    pub(crate) fn demand(&mut self, from: LogTime, until: LogTime, milli: u64, key: DemandKey) {
        for (day, ms) in self.window.days(from, until).filter(|_| milli > 0) {
            *self.demanded.entry(DemandKey { day, ..key }).or_default() += u128::from(milli) * u128::from(ms);
        }
    }

    /// A span in pieces that are not charged to anything yet. Pieces of one day, period and pool become one.
    pub(crate) fn put(
        &self,
        (from, until): (LogTime, LogTime),
        pool: u32,
        milli: u64,
        pieces: &mut alloc::vec::Vec<Piece>,
    ) {
        for slice in self.window.slices(&self.detail.cuts, from, until).filter(|_| milli > 0) {
            let milli_ms = u128::from(milli) * u128::from(slice.ms);
            let key = (slice.day, slice.period, pool);
            match pieces.iter_mut().rev().find(|piece| (piece.day, piece.period, piece.pool) == key) {
                Some(piece) => piece.milli_ms += milli_ms,
                None => pieces.push(Piece { day: slice.day, period: slice.period, pool, milli_ms }),
            }
        }
    }
}
