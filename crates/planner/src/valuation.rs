//! What the devices that are left on a host are worth, by what was asked for lately; and with it the node
//! for one worker.
//!
//! The potential of a host is the part of its free devices that is expected to stay unused for good:
//!
//! - *Rollouts.* Sixteen streams of requests, drawn from the sample of demand, are filled into the host
//!   one after the other; what none of them could use, on average. The streams are the same for every
//!   host, so that hosts differ by themselves alone.
//! - *CPUs and memory.* Devices that these could not carry, for hosts full of requests with about as many
//!   CPUs for each device, weighted with how much of demand is of that sort.
//! - *Whole groups.* Less for every group of two to eight idle devices that the host could still hold, by
//!   how much of demand comes in such groups.
//!
//! A worker goes where the potential rises least ([`Valuation::learn`] says from what). Where only whole
//! devices are asked for and neither CPUs nor memory can run out before them, that is the fullest host that
//! holds it, and nothing is computed: see [`Valuation::is_plain`].
//!
//! **Invariant:** a leader's own: no replica needs the same numbers, what they led to is in the log.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;
use muster_state::{DEMAND_GROUP_DEVICES_MAX, Demand, FreeKey, Pool, PoolKey, State, WorkerDemand};
use muster_types::{DeviceAmount, Name, NodeId, WorkerRequest, limits};

use crate::{Budget, Spent};

/// Streams, and requests in each.
const STREAMS: usize = 16;
const STREAM_LEN: usize = 64;

/// Requests of a stream that a host looks at for each of its devices.
const REQUESTS_PER_DEVICE: usize = 8;

/// Thousandths of one device.
const DEVICE_MILLI: i32 = 1_000;

/// Potential is in 1,024ths of a thousandth of a device.
const UNIT_BITS: u32 = 10;

/// Bits behind the point of a ratio.
const RATIO_BITS: u32 = 20;

/// Weight of devices that CPUs or memory cannot carry, in 1,024ths.
const STRANDED_WEIGHT: i64 = 512;

/// Weight of whole groups, in 1,024ths of the devices that are asked for in such groups.
const GROUP_WEIGHT: i64 = 102;

/// Added for every thousandth of a device that stays free: of two hosts that are about as good, the fuller.
const FREE_WEIGHT: i64 = 5;

/// Differences in potential below it do not count: ten thousandths of a device.
const QUANTUM: i64 = 10 << UNIT_BITS;

/// Requests after which it is learnt again, in the long run; before that, whenever their number has doubled.
const REFRESH: u64 = 300;

/// Different hosts of one pool that are compared for one choice, fullest first.
const KEYS_MAX: usize = 128;

/// Bounds of what is remembered until it is learnt again.
const VALUES_MAX: usize = 1 << 16;
const LISTS_MAX: usize = 1 << 10;

/// Sizes of hosts that are looked at to say whether a pool is plain; the smallest come first.
const SHAPES_MAX: usize = 64;

/// Hosts that are alike, side by side, before the walk jumps over the rest of them.
const ALIKE_MAX: usize = 8;

/// The bit of all types that no request names.
const OTHER_KIND: u32 = 63;

/// One request of a stream.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Below 1,000 a share, else whole devices.
    milli: i32,
    cpu_milli: i32,
    memory_mib: i32,
    /// Types that it accepts, as bits.
    kinds: u64,
}

/// What is asked for with about as many CPUs for each device.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    /// Thousandths of devices that a milli-CPU carries, and a mebibyte; with [`RATIO_BITS`].
    per_cpu: i64,
    per_memory: i64,
    /// Part of all devices that are asked for, in 1,024ths.
    part: i64,
}

/// What is asked of one type, as far as it decides whether hosts of it are plain.
#[derive(Clone, Copy, Debug, Default)]
struct KindDemand {
    bit: u32,
    has_shares: bool,
    /// The most for one device.
    cpu_milli_max: u64,
    memory_mib_max: u64,
}

/// Where a request would go in a pool: hosts with this key, and how bad that is.
#[derive(Clone, Debug)]
struct Ranked {
    key: FreeKey,
    rank: Rank,
}

/// How bad a host is for a request: what the potential rises by, then the thousandths of devices that stay
/// free.
pub(crate) type Rank = (i64, u32);

/// A request as a list of ranks knows it: what it takes from a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RequestShape {
    milli: u32,
    is_share: bool,
    cpu_milli: u64,
    memory_bytes: u64,
    scratch_bytes: u64,
}

/// What free devices are worth, as learnt from what was asked for up to a time.
#[derive(Clone, Debug, Default)]
pub struct Valuation {
    /// Requests that were seen when it was learnt.
    observed: u64,
    streams: Vec<Entry>,
    /// The least that any request of the streams needs.
    cpu_milli_min: i32,
    milli_min: i32,
    ratios: Vec<Ratio>,
    /// What a whole group of this many idle devices is worth, by their number.
    groups: [i64; DEMAND_GROUP_DEVICES_MAX + 1],
    kinds: BTreeMap<Name, KindDemand>,
    other: KindDemand,
    /// Potentials that were asked for, by type, devices of the host, and what is free.
    values: BTreeMap<(u32, u16, FreeKey), i64>,
    /// For each pool and request, the hosts that were compared last, by key.
    lists: BTreeMap<(PoolKey, RequestShape), Vec<Ranked>>,
}

impl Valuation {
    /// Learns from what was asked for; the same from the same.
    #[must_use]
    pub fn learn(demand: &Demand) -> Valuation {
        let mut learnt = Valuation { observed: demand.observed(), ..Valuation::default() };
        learnt.learn_kinds(demand);
        let sample: Vec<Entry> = demand.sample().map(|worker| learnt.entry(worker)).collect();
        if sample.is_empty() {
            return learnt;
        }
        // A sample that is not full yet is repeated.
        learnt.streams = (0..STREAMS * STREAM_LEN).map(|place| sample[place % sample.len()]).collect();
        shuffle(&mut learnt.streams, demand.observed());
        learnt.cpu_milli_min = sample.iter().map(|entry| entry.cpu_milli).min().unwrap_or(0);
        learnt.milli_min = sample.iter().map(|entry| entry.milli.min(DEVICE_MILLI)).min().unwrap_or(1);
        let all = demand.by_cpu().map(|sum| signed(sum.milli)).sum::<i64>().max(1);
        for sum in demand.by_cpu() {
            let milli = signed(sum.milli) << RATIO_BITS;
            learnt.ratios.push(Ratio {
                per_cpu: milli / signed(sum.cpu_milli).max(1),
                per_memory: milli / signed(sum.memory_mib).max(1),
                part: ((signed(sum.milli) << UNIT_BITS) + all / 2) / all,
            });
        }
        for (devices, worth) in (0i64..).zip(&mut learnt.groups).skip(2) {
            let milli = signed(demand.group_milli(devices as usize));
            *worth = GROUP_WEIGHT * i64::from(DEVICE_MILLI) * devices * milli / all;
        }
        learnt
    }

    /// Whether so much was asked for since that it is time to learn again.
    #[must_use]
    pub fn is_stale(&self, demand: &Demand) -> bool {
        let (then, now) = (self.observed, demand.observed());
        if now < REFRESH {
            return now.checked_ilog2() > then.checked_ilog2();
        }
        now >= then + REFRESH || then < REFRESH / 2
    }

    /// Thousandths of devices that are expected to stay unused on a host, in 1,024ths: of this type, with
    /// this many devices in all, of which this is free.
    #[must_use]
    pub fn value(&self, kind: &Name, devices: u16, free: &FreeKey) -> i64 {
        self.compute(self.of_kind(kind).bit, devices, free)
    }

    /// Whether best fit is all there is to know of a pool: nobody asks for shares of its devices, and
    /// devices run out before CPUs and memory do, of which demand is kept rounded up by as much at most.
    pub(crate) fn is_plain(&self, kind: &Name, pool: &Pool, request: &WorkerRequest) -> bool {
        let demand = self.of_kind(kind);
        let is_share =
            matches!(request.accelerators.as_ref().map(|a| a.amount), Some(DeviceAmount::Share(_)));
        if self.streams.is_empty() {
            return true;
        }
        !demand.has_shares
            && !is_share
            && pool.placeable_shapes.iter().take(SHAPES_MAX).all(|(shape, _)| {
                let devices = u64::from(shape.devices.max(1));
                shape.cpu_milli / devices >= demand.cpu_milli_max - demand.cpu_milli_max / 32
                    && (shape.memory_bytes >> 20) / devices
                        >= demand.memory_mib_max - demand.memory_mib_max / 8
            })
    }

    fn of_kind(&self, kind: &Name) -> &KindDemand {
        self.kinds.get(kind).unwrap_or(&self.other)
    }

    fn learn_kinds(&mut self, demand: &Demand) {
        let named: BTreeSet<&Name> = demand.sample().flat_map(|worker| &worker.kinds).collect();
        self.other.bit = OTHER_KIND;
        for (bit, kind) in (0u32..).zip(named) {
            let of_kind = KindDemand { bit: bit.min(OTHER_KIND), ..KindDemand::default() };
            self.kinds.insert(kind.clone(), of_kind);
        }
        for worker in demand.sample() {
            if worker.kinds.is_empty() {
                self.kinds.values_mut().for_each(|of_kind| of_kind.count(worker));
                self.other.count(worker);
            }
            for kind in &worker.kinds {
                if let Some(of_kind) = self.kinds.get_mut(kind) {
                    of_kind.count(worker);
                }
            }
        }
    }

    fn entry(&self, worker: &WorkerDemand) -> Entry {
        let kinds = if worker.kinds.is_empty() {
            u64::MAX
        } else {
            worker.kinds.iter().fold(0, |bits, kind| bits | 1 << self.of_kind(kind).bit)
        };
        let devices_max = i32::from(limits::HOST_DEVICES_MAX) * DEVICE_MILLI;
        Entry {
            milli: narrow(u64::from(worker.milli)).clamp(1, devices_max),
            cpu_milli: narrow(worker.cpu_milli),
            memory_mib: narrow(worker.memory_mib),
            kinds,
        }
    }

    /// The potential of a host.
    fn compute(&self, kind: u32, devices: u16, free: &FreeKey) -> i64 {
        let host = Host::of(free);
        if self.streams.is_empty() {
            return host.free << UNIT_BITS;
        }
        let len = (REQUESTS_PER_DEVICE * usize::from(devices)).min(STREAM_LEN);
        let mut left = host.free * STREAMS as i64;
        if self.is_of_use(&host) {
            for stream in self.streams.chunks_exact(STREAM_LEN) {
                left -= self.fill(host.clone(), &stream[..len], 1 << kind);
            }
        }
        let mut value = (left << UNIT_BITS) / STREAMS as i64;
        let mut stranded = 0;
        for ratio in &self.ratios {
            let by_cpu = (i64::from(host.cpu_milli).saturating_mul(ratio.per_cpu)) >> RATIO_BITS;
            let by_memory = (i64::from(host.memory_mib).saturating_mul(ratio.per_memory)) >> RATIO_BITS;
            stranded += ratio.part * (host.free - by_cpu.min(by_memory)).max(0);
        }
        value += (stranded * STRANDED_WEIGHT) >> UNIT_BITS;
        for (size, worth) in self.groups.iter().enumerate().skip(2) {
            value -= worth * (host.idle / size) as i64;
        }
        value
    }

    /// Whether any request could still go to the host.
    fn is_of_use(&self, host: &Host) -> bool {
        host.top() >= self.milli_min && host.cpu_milli >= self.cpu_milli_min
    }

    /// Thousandths of devices that the requests could use, one after the other as long as they fit.
    fn fill(&self, mut host: Host, requests: &[Entry], kind: u64) -> i64 {
        let mut used = 0;
        for entry in requests {
            let refused = entry.cpu_milli > host.cpu_milli
                || entry.memory_mib > host.memory_mib
                || entry.milli.min(DEVICE_MILLI) > host.top()
                || entry.kinds & kind == 0;
            if refused || !host.take(entry) {
                continue;
            }
            used += i64::from(entry.milli);
            if !self.is_of_use(&host) {
                break;
            }
        }
        used
    }

    /// The potential of a host, computed once.
    fn remembered(&mut self, kind: u32, devices: u16, free: FreeKey) -> i64 {
        let place = (kind, devices, free);
        if let Some(value) = self.values.get(&place) {
            return *value;
        }
        let value = self.compute(kind, devices, &place.2);
        if self.values.len() >= VALUES_MAX {
            self.values.clear();
        }
        self.values.insert(place, value);
        value
    }

    /// How bad a host is for a request that fits.
    fn rank(&mut self, kind: u32, devices: u16, free: &FreeKey, taken: &RequestShape) -> Rank {
        let after = taken.from(free);
        let free_milli = free_milli(&after);
        let before = self.remembered(kind, devices, free.clone());
        let rise = self.remembered(kind, devices, after) - before;
        ((rise + FREE_WEIGHT * i64::from(free_milli)).div_euclid(QUANTUM), free_milli)
    }

    /// Ranks the fullest hosts of a pool on which a request fits, and gives them to `see` in that order;
    /// whether there may be more.
    pub(crate) fn rank_pool(
        &mut self,
        state: &State,
        (key, pool): (&PoolKey, &Pool),
        request: &WorkerRequest,
        budget: &mut Budget,
        mut see: impl FnMut(Rank, &FreeKey),
    ) -> Result<bool, Spent> {
        let kind = key.kind.as_ref().map_or(OTHER_KIND, |kind| self.of_kind(kind).bit);
        let taken = RequestShape::by(request);
        let place = (key.clone(), taken);
        let known = self.lists.remove(&place).unwrap_or_default();
        let mut known = known.into_iter().peekable();
        let mut list: Vec<Ranked> = Vec::with_capacity(KEYS_MAX.min(known.len() + 8));
        let mut walk = DistinctKeys::new(pool, taken.idle_needed());
        while let Some((free, node)) = walk.next() {
            budget.spend()?;
            if free.workers(request) == 0 {
                continue;
            }
            while known.next_if(|ranked| ranked.key < *free).is_some() {}
            let ranked = match known.next_if(|ranked| ranked.key == *free) {
                Some(ranked) => ranked,
                None => {
                    let devices = state.node(node).map_or(0, |row| row.spec.device_count());
                    Ranked { rank: self.rank(kind, devices, free, &taken), key: free.clone() }
                }
            };
            see(ranked.rank, free);
            list.push(ranked);
            if list.len() >= KEYS_MAX {
                break;
            }
        }
        if self.lists.len() >= LISTS_MAX {
            self.lists.clear();
        }
        let is_cut = list.len() >= KEYS_MAX;
        self.lists.insert(place, list);
        Ok(is_cut)
    }
}

impl KindDemand {
    fn count(&mut self, worker: &WorkerDemand) {
        self.has_shares |= worker.milli < DEVICE_MILLI as u32;
        let milli = u64::from(worker.milli.max(1));
        let per_device = |amount: u64| amount.saturating_mul(1_000).div_ceil(milli);
        self.cpu_milli_max = self.cpu_milli_max.max(per_device(worker.cpu_milli));
        self.memory_mib_max = self.memory_mib_max.max(per_device(worker.memory_mib));
    }
}

impl RequestShape {
    fn by(request: &WorkerRequest) -> RequestShape {
        let amount = request.accelerators.as_ref().map(|a| a.amount);
        RequestShape {
            milli: u32::try_from(request.device_milli()).unwrap_or(u32::MAX),
            is_share: matches!(amount, Some(DeviceAmount::Share(_))),
            cpu_milli: request.cpu_milli,
            memory_bytes: request.memory_bytes,
            scratch_bytes: request.scratch_bytes,
        }
    }

    /// Idle devices without which it fits nowhere.
    fn idle_needed(&self) -> u16 {
        if self.is_share { 0 } else { whole_devices(self.milli) }
    }

    /// What is left of a host on which it fits: a share comes from the fullest device that holds it.
    fn from(&self, free: &FreeKey) -> FreeKey {
        let mut after = free.clone();
        after.is_whole = false;
        after.cpu_milli = after.cpu_milli.saturating_sub(self.cpu_milli);
        after.memory_bytes = after.memory_bytes.saturating_sub(self.memory_bytes);
        after.scratch_bytes = after.scratch_bytes.saturating_sub(self.scratch_bytes);
        if !self.is_share {
            after.idle = after.idle.saturating_sub(whole_devices(self.milli));
            return after;
        }
        let milli = u16::try_from(self.milli).unwrap_or(u16::MAX);
        // Most first: the last that is large enough is the tightest.
        let fitting = after.shares.partition_point(|share| *share >= milli);
        let left = match fitting.checked_sub(1) {
            Some(tightest) => after.shares.remove(tightest) - milli,
            None => {
                after.idle = after.idle.saturating_sub(1);
                (DEVICE_MILLI as u16).saturating_sub(milli)
            }
        };
        if left > 0 {
            let at = after.shares.partition_point(|share| *share > left);
            after.shares.insert(at, left);
        }
        after
    }
}

/// A host while requests are filled into it.
#[derive(Clone, Debug)]
struct Host {
    /// What is left of each device that is not full, least first.
    devices: [u16; limits::HOST_DEVICES_MAX as usize],
    /// How many of them.
    open: usize,
    /// How many of these are idle.
    idle: usize,
    free: i64,
    cpu_milli: i32,
    memory_mib: i32,
}

impl Host {
    fn of(key: &FreeKey) -> Host {
        let mut devices = [0; limits::HOST_DEVICES_MAX as usize];
        let shares = key.shares.iter().rev().copied();
        let idle = core::iter::repeat_n(DEVICE_MILLI as u16, usize::from(key.idle));
        let mut open = 0;
        for (device, milli) in devices.iter_mut().zip(shares.chain(idle)) {
            *device = milli;
            open += 1;
        }
        Host {
            devices,
            open,
            idle: usize::from(key.idle),
            free: i64::from(free_milli(key)),
            cpu_milli: narrow(key.cpu_milli),
            memory_mib: narrow(key.memory_bytes >> 20),
        }
    }

    /// What is left of the emptiest device.
    fn top(&self) -> i32 {
        self.open.checked_sub(1).map_or(0, |last| i32::from(self.devices[last]))
    }

    /// Takes a request for which there are CPUs, memory and some device; false when it wants more whole
    /// devices than are idle.
    fn take(&mut self, entry: &Entry) -> bool {
        if entry.milli >= DEVICE_MILLI {
            let count = (entry.milli / DEVICE_MILLI) as usize;
            if count > self.idle {
                return false;
            }
            // Idle ones are behind all others.
            self.idle -= count;
            self.open -= count;
        } else {
            let milli = entry.milli as u16;
            let mut at = 0;
            while self.devices[at] < milli {
                at += 1;
            }
            self.idle -= usize::from(self.devices[at] == DEVICE_MILLI as u16);
            let left = self.devices[at] - milli;
            while at > 0 && self.devices[at - 1] > left {
                self.devices[at] = self.devices[at - 1];
                at -= 1;
            }
            self.devices[at] = left;
        }
        self.cpu_milli -= entry.cpu_milli;
        self.memory_mib -= entry.memory_mib;
        true
    }
}

/// The different keys of a pool, fullest first, each with its first node.
struct DistinctKeys<'a> {
    pool: &'a Pool,
    last: Option<(&'a FreeKey, NodeId)>,
    from: u16,
    steps: Box<dyn Iterator<Item = &'a (FreeKey, NodeId)> + 'a>,
}

impl<'a> DistinctKeys<'a> {
    fn new(pool: &'a Pool, idle: u16) -> DistinctKeys<'a> {
        let start = (FreeKey::first_with(idle), NodeId(0));
        DistinctKeys { pool, last: None, from: idle, steps: Box::new(pool.by_free.range(start..)) }
    }

    fn next(&mut self) -> Option<(&'a FreeKey, NodeId)> {
        for _ in 0..ALIKE_MAX {
            let (key, node) = self.steps.next()?;
            if self.last.is_none_or(|(last, _)| last != key) {
                self.last = Some((key, *node));
                return self.last;
            }
        }
        let behind = match self.last {
            Some((last, _)) => Bound::Excluded((last.clone(), NodeId(u32::MAX))),
            None => Bound::Included((FreeKey::first_with(self.from), NodeId(0))),
        };
        self.steps = Box::new(self.pool.by_free.range((behind, Bound::Unbounded)));
        let (key, node) = self.steps.next()?;
        self.last = Some((key, *node));
        self.last
    }
}

fn free_milli(key: &FreeKey) -> u32 {
    let shares: u32 = key.shares.iter().map(|milli| u32::from(*milli)).sum();
    u32::from(key.idle) * DEVICE_MILLI as u32 + shares
}

fn whole_devices(milli: u32) -> u16 {
    u16::try_from(milli / DEVICE_MILLI as u32).unwrap_or(u16::MAX)
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX).min(1 << 40)
}

fn narrow(amount: u64) -> i32 {
    i32::try_from(amount).unwrap_or(i32::MAX)
}

/// An order that depends on the seed alone (Fisher and Yates, with `SplitMix64`).
fn shuffle(entries: &mut [Entry], seed: u64) {
    let mut counter = seed;
    for place in (1..entries.len()).rev() {
        counter = counter.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = counter;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        entries.swap(place, (z % (place as u64 + 1)) as usize);
    }
}
