//! What the log says of demand: what workers asked for lately. The planner makes from it what the devices
//! that are left on a host are worth.
//!
//! Only facts are kept here, as in the history of run times: a later release may value them otherwise. Both
//! parts are bounded, and both are replicated, so that a new leader packs like the one before it.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::hash;
use muster_types::{DeviceAmount, JobSpec, Name, WorkerRequest};
use serde::{Deserialize, Serialize};

use crate::table::Table;

/// Requests of workers that are kept as a sample.
pub const DEMAND_SAMPLE: usize = 1_024;

/// The sample has this many of the last requests; the sums lose half of their weight as often.
pub const DEMAND_WINDOW: u64 = 16_384;

/// Workers of one group that are counted: one large gang is not all of demand.
pub const DEMAND_GROUP_WORKERS_MAX: u32 = 64;

/// Sizes of groups of whole devices that are told apart; what is larger counts as the largest.
pub const DEMAND_GROUP_DEVICES_MAX: usize = 8;

/// Bits kept behind the leading one of milli-CPUs, and of MiB.
const CPU_BITS: u32 = 5;
const MEMORY_BITS: u32 = 3;

/// Shares of a device are kept in hundredths.
const SHARE_STEP_MILLI: u16 = 10;

/// What a worker asked for, so coarsely that requests of the same sort are equal. Rounded up throughout:
/// what holds this holds the request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkerDemand {
    /// The types it accepts; none for any.
    pub kinds: Vec<Name>,
    /// Thousandths of devices: below 1,000 a share of one, else whole devices.
    pub milli: u32,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// Mebibytes.
    pub memory_mib: u64,
}

/// What was asked for together with devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemandSum {
    /// Thousandths of devices.
    pub milli: u64,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// Mebibytes.
    pub memory_mib: u64,
}

/// What is not a row of the sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DemandSums {
    /// Requests for devices that were seen.
    observed: u64,
    /// Changes of the sample.
    changes: u64,
    /// By milli-CPUs for a device, in quarters of a doubling; ascending.
    by_cpu: Vec<(u8, DemandSum)>,
    /// Thousandths of devices asked for in groups of 0, 1, 2 and so on; groups of one or none are not
    /// counted.
    groups_milli: [u64; DEMAND_GROUP_DEVICES_MAX + 1],
}

/// What workers with devices asked for lately.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    sample: Table<u16, WorkerDemand>,
    sums: Arc<DemandSums>,
}

impl Demand {
    /// Requests that were seen since the cluster began.
    #[must_use]
    pub fn observed(&self) -> u64 {
        self.sums.observed
    }

    /// How often the sample has changed: how far it is from what it was before.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.sums.changes
    }

    /// A sample of the last requests, each as likely as any other, in a fixed order.
    pub fn sample(&self) -> impl Iterator<Item = &WorkerDemand> {
        self.sample.iter().map(|(_, worker)| worker)
    }

    /// What was asked for by workers with about as many CPUs for each device; fewest CPUs first.
    pub fn by_cpu(&self) -> impl Iterator<Item = &DemandSum> {
        self.sums.by_cpu.iter().map(|(_, sum)| sum)
    }

    /// Thousandths of devices asked for by workers that want two or more whole devices, by that number.
    #[must_use]
    pub fn group_milli(&self, devices: usize) -> u64 {
        self.sums.groups_milli.get(devices).copied().unwrap_or(0)
    }

    /// Takes the workers of a submitted job into account.
    pub(crate) fn observe(&mut self, spec: &JobSpec) {
        for group in &spec.groups {
            if let Some(worker) = coarsely(&group.request) {
                self.observe_workers(&worker, group.workers.min(DEMAND_GROUP_WORKERS_MAX));
            }
        }
    }

    fn observe_workers(&mut self, worker: &WorkerDemand, count: u32) {
        let sums = Arc::make_mut(&mut self.sums);
        for _ in 0..count {
            let place = sums.place();
            sums.observed += 1;
            if let Some(place) = place {
                sums.changes += 1;
                self.sample.insert(place, worker.clone());
            }
            sums.add(worker);
            if sums.observed.is_multiple_of(DEMAND_WINDOW) {
                sums.halve();
            }
        }
    }

    pub(crate) fn digests(&self) -> [u64; 2] {
        [self.sample.digest(), hash(&*self.sums)]
    }

    pub(crate) fn sample_table(&self) -> &Table<u16, WorkerDemand> {
        &self.sample
    }

    pub(crate) fn set_sample(&mut self, sample: Table<u16, WorkerDemand>) {
        self.sample = sample;
    }

    pub(crate) fn sums(&self) -> &DemandSums {
        &self.sums
    }

    pub(crate) fn set_sums(&mut self, sums: DemandSums) {
        self.sums = Arc::new(sums);
    }

    /// What the fold keeps true.
    ///
    /// # Errors
    /// What does not hold.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let rows = self.sums.observed.min(DEMAND_SAMPLE as u64);
        let is_dense = self.sample.iter().enumerate().all(|(place, (key, _))| usize::from(*key) == place);
        if self.sample.len() as u64 != rows || !is_dense {
            return Err(alloc::format!("the sample of demand has {} rows, not {rows}", self.sample.len()));
        }
        if !self.sums.by_cpu.is_sorted_by(|(a, _), (b, _)| a < b) {
            return Err(String::from("the sums of demand are not in order"));
        }
        Ok(())
    }
}

impl DemandSums {
    /// Where the next request goes in the sample, if it does: the first ones in a row, each later one in
    /// place of another with the chance that makes the sample one of the window.
    fn place(&self) -> Option<u16> {
        let seen = self.observed;
        let place =
            if seen < DEMAND_SAMPLE as u64 { seen } else { mix(seen) % (seen + 1).min(DEMAND_WINDOW) };
        u16::try_from(place).ok().filter(|place| usize::from(*place) < DEMAND_SAMPLE)
    }

    fn add(&mut self, worker: &WorkerDemand) {
        let milli = u64::from(worker.milli);
        let bucket = quarter_doubling(worker.cpu_milli.saturating_mul(1_000) / milli);
        let at = self.by_cpu.partition_point(|(known, _)| *known < bucket);
        if self.by_cpu.get(at).is_none_or(|(known, _)| *known != bucket) {
            self.by_cpu.insert(at, (bucket, DemandSum::default()));
        }
        let sum = &mut self.by_cpu[at].1;
        sum.milli += milli;
        sum.cpu_milli += worker.cpu_milli;
        sum.memory_mib += worker.memory_mib;
        let devices = (worker.milli / 1_000) as usize;
        if devices > 1 {
            self.groups_milli[devices.min(DEMAND_GROUP_DEVICES_MAX)] += milli;
        }
    }

    fn halve(&mut self) {
        for (_, sum) in &mut self.by_cpu {
            sum.milli /= 2;
            sum.cpu_milli /= 2;
            sum.memory_mib /= 2;
        }
        self.by_cpu.retain(|(_, sum)| sum.milli > 0);
        for milli in &mut self.groups_milli {
            *milli /= 2;
        }
    }
}

/// A request as the sample keeps it; none for a worker without devices.
fn coarsely(request: &WorkerRequest) -> Option<WorkerDemand> {
    let accelerators = request.accelerators.as_ref()?;
    let mut kinds: Vec<Name> = accelerators.choices.iter().map(|choice| choice.kind.clone()).collect();
    kinds.sort_unstable();
    let milli = match accelerators.amount {
        DeviceAmount::Whole(count) => u32::from(count) * 1_000,
        DeviceAmount::Share(milli) => u32::from(milli.div_ceil(SHARE_STEP_MILLI) * SHARE_STEP_MILLI).min(999),
    };
    (milli > 0).then(|| WorkerDemand {
        kinds,
        milli,
        cpu_milli: round_up(request.cpu_milli, CPU_BITS),
        memory_mib: round_up(request.memory_bytes.div_ceil(1 << 20), MEMORY_BITS),
    })
}

/// Rounded up to a number with this many bits behind its leading one.
fn round_up(amount: u64, bits: u32) -> u64 {
    let Some(leading) = amount.checked_ilog2().filter(|leading| *leading > bits) else { return amount };
    let step = leading - bits;
    ((amount + (1 << step) - 1) >> step) << step
}

/// Four to a doubling, so that bounds are 19 % apart.
fn quarter_doubling(amount: u64) -> u8 {
    let Some(doublings) = amount.checked_ilog2() else { return 0 };
    let quarter = if doublings >= 2 { (amount >> (doublings - 2)) & 3 } else { 0 };
    (doublings * 4) as u8 + quarter as u8
}

/// The counter as a number without order (the finalizer of `SplitMix64`).
fn mix(counter: u64) -> u64 {
    let mut z = counter.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
