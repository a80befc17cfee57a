//! The future of capacity: when and where a gang would fit if what runs ends as expected.
//!
//! One fleet cluster in flat arrays: what every placeable node has idle, and what comes back when. A
//! question copies the small arrays and walks the releases in time; each costs a few additions, for the
//! node, its rack or block and the cluster. Nothing is looked up in a tree on the way.
//!
//! What is exact: whole devices, CPU and memory by node, one required domain, a limit on the workers in a
//! domain, closed windows, quota by its lanes, the shape of slices, earlier reservations. What is
//! approximate: shares of a device count as whole devices; segments and the even split are counted by rack,
//! without the evenness; workers of several groups are tried together only where each group alone fits. A
//! start that is too early by that is found to be so when the time comes.

mod held;
mod question;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::WorkerSlot;
use muster_state::{NodeRow, State};
use muster_types::{DeviceAmount, JobId, JobSpec, LogTime, Name, NodeId, NodeSpec, WorkerRequest};

use crate::Budget;
use crate::terms::{Hold, Holds, Terms};
use held::HeldByGangs;
use question::Question;

/// Array entries that are looked at for one visit of the budget: they lie side by side, and a visit to a
/// node goes down a tree.
const ENTRIES_PER_VISIT: u64 = 16;

/// What a node has idle, or what comes or goes. Signed: promised capacity may not be free yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    devices: i64,
    cpu_milli: i64,
    memory_bytes: i64,
    scratch_bytes: i64,
}

impl Amount {
    const ALL: Amount =
        Amount { devices: i64::MAX, cpu_milli: i64::MAX, memory_bytes: i64::MAX, scratch_bytes: i64::MAX };

    fn of_workers(request: &WorkerRequest, workers: u32) -> Amount {
        let workers = i64::from(workers);
        Amount {
            devices: devices_for(request, workers),
            cpu_milli: signed(request.cpu_milli).saturating_mul(workers),
            memory_bytes: signed(request.memory_bytes).saturating_mul(workers),
            scratch_bytes: signed(request.scratch_bytes).saturating_mul(workers),
        }
    }

    /// What workers take of one host: all of it where they have hosts to themselves.
    fn of_workers_on(host: &NodeSpec, request: &WorkerRequest, workers: u32) -> Amount {
        if !request.exclusive || workers == 0 {
            return Amount::of_workers(request, workers);
        }
        Amount {
            devices: 0,
            cpu_milli: signed(host.cpu_milli),
            memory_bytes: signed(host.memory_bytes),
            scratch_bytes: signed(request.scratch_bytes).saturating_mul(i64::from(workers)),
        }
    }

    /// How many such workers it holds where it is what a host has.
    fn workers_on(self, host: &NodeSpec, request: &WorkerRequest) -> u32 {
        if !request.exclusive {
            return self.workers(request);
        }
        let is_whole =
            self.cpu_milli >= signed(host.cpu_milli) && self.memory_bytes >= signed(host.memory_bytes);
        u32::from(is_whole && self.workers(request) > 0)
    }

    /// What nobody has of a node, and nobody is promised.
    fn idle_of(row: &NodeRow) -> Amount {
        let usable = row.usable();
        Amount {
            devices: i64::from(row.offer().devices.count()),
            cpu_milli: signed(usable.cpu_milli) - signed(row.promised.cpu_milli),
            memory_bytes: signed(usable.memory_bytes) - signed(row.promised.memory_bytes),
            scratch_bytes: signed(usable.scratch_bytes) - signed(row.promised.scratch_bytes),
        }
    }

    /// Whether it is as much of everything.
    fn covers(self, other: Amount) -> bool {
        self.min(other) == other
    }

    fn plus(self, other: Amount) -> Amount {
        Amount {
            devices: self.devices.saturating_add(other.devices),
            cpu_milli: self.cpu_milli.saturating_add(other.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            scratch_bytes: self.scratch_bytes.saturating_add(other.scratch_bytes),
        }
    }

    fn minus(self, other: Amount) -> Amount {
        self.plus(Amount {
            devices: -other.devices,
            cpu_milli: -other.cpu_milli,
            memory_bytes: -other.memory_bytes,
            scratch_bytes: -other.scratch_bytes,
        })
    }

    /// Whether there is anything of it.
    fn is_positive(self) -> bool {
        self.devices > 0 || self.cpu_milli > 0 || self.memory_bytes > 0 || self.scratch_bytes > 0
    }

    fn min(self, other: Amount) -> Amount {
        Amount {
            devices: self.devices.min(other.devices),
            cpu_milli: self.cpu_milli.min(other.cpu_milli),
            memory_bytes: self.memory_bytes.min(other.memory_bytes),
            scratch_bytes: self.scratch_bytes.min(other.scratch_bytes),
        }
    }

    /// How many such workers it holds.
    fn workers(self, request: &WorkerRequest) -> u32 {
        let (cpu_milli, memory_bytes) =
            (signed(request.cpu_milli).max(1), signed(request.memory_bytes).max(1));
        // Nothing is divided where not one fits: that is so of most hosts of a full fleet.
        if self.cpu_milli < cpu_milli || self.memory_bytes < memory_bytes {
            return 0;
        }
        let by_device = match request.accelerators.as_ref().map(|a| a.amount) {
            None => i64::MAX,
            Some(_) if self.devices < 1 => return 0,
            Some(DeviceAmount::Whole(count)) => self.devices / i64::from(count.max(1)),
            Some(DeviceAmount::Share(milli)) => self.devices.saturating_mul(i64::from(1_000 / milli.max(1))),
        };
        let by_cpu = self.cpu_milli / cpu_milli;
        let by_memory = self.memory_bytes / memory_bytes;
        // Most ask for none, and then it does not matter what is left.
        let by_scratch = self.scratch_bytes.checked_div(signed(request.scratch_bytes)).unwrap_or(i64::MAX);
        u32::try_from(by_device.min(by_cpu).min(by_memory).min(by_scratch).max(0)).unwrap_or(u32::MAX)
    }
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// Devices that this many workers take on one node.
fn devices_for(request: &WorkerRequest, workers: i64) -> i64 {
    match request.accelerators.as_ref().map(|a| a.amount) {
        None => 0,
        Some(DeviceAmount::Whole(count)) => i64::from(count) * workers,
        Some(DeviceAmount::Share(milli)) => {
            let per_device = i64::from(1_000 / milli.max(1)).max(1);
            (workers + per_device - 1) / per_device
        }
    }
}

/// A placeable node.
#[derive(Clone, Debug)]
struct Node {
    id: NodeId,
    spec: Arc<NodeSpec>,
    /// Place of its type among the types; none for a plain host.
    kind: Option<u16>,
    rack: u32,
    block: u32,
}

/// Something that comes back.
#[derive(Clone, Copy, Debug)]
struct Release {
    at: LogTime,
    node: u32,
    amount: Amount,
}

/// Capacity of a node that is taken from a time on.
#[derive(Clone, Copy, Debug)]
struct Reserved {
    owner: JobId,
    at: LogTime,
    /// From when on what is not to spare is kept from others: `at`, or earlier.
    from: LogTime,
    node: u32,
    amount: Amount,
    /// What is left of the node then.
    spare: Amount,
    /// When it comes back; none never.
    until: Option<LogTime>,
}

impl Reserved {
    /// Whether it has not been given back by then.
    fn is_there(&self, at: LogTime) -> bool {
        self.until.is_none_or(|until| until > at)
    }

    fn hold(&self) -> Hold {
        let unsigned = |amount: i64| u64::try_from(amount).unwrap_or(0);
        Hold {
            from: self.from,
            spare_devices: u16::try_from(unsigned(self.spare.devices)).unwrap_or(u16::MAX),
            spare_cpu_milli: unsigned(self.spare.cpu_milli),
            spare_memory_bytes: unsigned(self.spare.memory_bytes),
            spare_scratch_bytes: unsigned(self.spare.scratch_bytes),
        }
    }
}

/// When and where a gang can start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The first time at which it fits.
    pub at: LogTime,
    /// Nodes with the workers on each, by id.
    pub nodes: Vec<(NodeId, u32)>,
    /// What it takes of them, in the same order.
    amounts: Vec<Amount>,
}

/// The future of one fleet cluster. A clone costs what is reserved: the rest is shared until one of the two changes it.
#[derive(Clone, Debug)]
pub struct CapacityTimeline {
    now: LogTime,
    nodes: Arc<Vec<Node>>,
    kinds: Vec<Name>,
    rack_count: usize,
    block_count: usize,
    idle: Arc<Vec<Amount>>,
    /// By time; what comes back to one node at one time is one of them.
    releases: Arc<Vec<Release>>,
    /// How many there are when each worker is one: what a walk over them is paid for.
    release_count: usize,
    /// What they are made of.
    held: Arc<HeldByGangs>,
    reserved: Vec<Reserved>,
    has_taints: bool,
    /// Registered hosts by type and rack, in whatever state.
    rack_hosts: Arc<BTreeMap<(u16, u32), u32>>,
    /// Places of the nodes by id.
    by_id: Arc<Vec<(NodeId, u32)>>,
    /// Whether it has only some of the cluster's nodes.
    is_part: bool,
}

impl CapacityTimeline {
    /// The future of a cluster in which gangs end at these times and nobody new starts. A time that is past
    /// counts as now.
    #[must_use]
    pub fn new(
        state: &State,
        region: &Name,
        cluster: &Name,
        releases: impl IntoIterator<Item = (LogTime, JobId)>,
    ) -> CapacityTimeline {
        let mut outlook = CapacityTimeline::without_nodes(state.log_time());
        let mut racks: BTreeMap<(Name, Name), u32> = BTreeMap::new();
        let mut blocks: BTreeMap<Name, u32> = BTreeMap::new();
        // In the order of the nodes' places in the timeline.
        let mut rows: Vec<&NodeRow> = Vec::new();
        for (key, pool) in state.pools().filter(|(key, _)| key.region == *region && key.cluster == *cluster) {
            let kind = key.kind.as_ref().map(|kind| {
                outlook.kinds.push(kind.clone());
                (outlook.kinds.len() - 1) as u16
            });
            for (rack_key, rack) in pool.racks.iter() {
                let next = blocks.len() as u32;
                let block = *blocks.entry(rack_key.block.clone()).or_insert(next);
                let next = racks.len() as u32;
                let name = (rack_key.block.clone(), rack_key.rack.clone());
                let rack_number = *racks.entry(name).or_insert(next);
                if let Some(kind) = kind {
                    Arc::make_mut(&mut outlook.rack_hosts).insert((kind, rack_number), rack.nodes);
                }
                for (_, id) in rack.by_idle.iter() {
                    let row = state.node(*id).expect("an indexed node has a row");
                    let place = outlook.nodes.len() as u32;
                    Arc::make_mut(&mut outlook.by_id).push((*id, place));
                    rows.push(row);
                    outlook.add_node(*id, row, kind, rack_number, block);
                }
            }
        }
        outlook.rack_count = racks.len();
        outlook.block_count = blocks.len();
        Arc::make_mut(&mut outlook.by_id).sort_unstable();
        outlook.add_releases(state, &rows, releases);
        outlook
    }

    /// The future of these nodes of a cluster alone, for what is reserved there: gangs that are on none of them make no difference to
    /// it, and need not be among the releases. [`CapacityTimeline::earliest`] and [`CapacityTimeline::others_like`] are asked of the
    /// future of a whole cluster.
    #[must_use]
    pub fn of_nodes(
        state: &State,
        (region, cluster): (&Name, &Name),
        nodes: &BTreeSet<NodeId>,
        releases: impl IntoIterator<Item = (LogTime, JobId)>,
    ) -> CapacityTimeline {
        let mut outlook = CapacityTimeline::without_nodes(state.log_time());
        outlook.is_part = true;
        let mut rows: Vec<&NodeRow> = Vec::with_capacity(nodes.len());
        for id in nodes {
            let Some(row) = state.node(*id).filter(|row| row.is_placeable()) else { continue };
            if row.spec.region != *region || row.spec.cluster != *cluster {
                continue;
            }
            // Ascending, as it is looked up.
            Arc::make_mut(&mut outlook.by_id).push((*id, rows.len() as u32));
            rows.push(row);
            outlook.add_node(*id, row, None, 0, 0);
        }
        outlook.add_releases(state, &rows, releases);
        outlook
    }

    fn without_nodes(now: LogTime) -> CapacityTimeline {
        CapacityTimeline {
            now,
            nodes: Arc::default(),
            kinds: Vec::new(),
            rack_count: 0,
            block_count: 0,
            idle: Arc::default(),
            releases: Arc::default(),
            release_count: 0,
            held: Arc::default(),
            reserved: Vec::new(),
            has_taints: false,
            rack_hosts: Arc::default(),
            by_id: Arc::default(),
            is_part: false,
        }
    }

    fn add_node(&mut self, id: NodeId, row: &NodeRow, kind: Option<u16>, rack: u32, block: u32) {
        self.has_taints |= !row.spec.taints.is_empty();
        Arc::make_mut(&mut self.nodes).push(Node { id, spec: row.spec.clone(), kind, rack, block });
        Arc::make_mut(&mut self.idle).push(Amount::idle_of(row));
    }

    /// Whether its nodes are all there and have at least what is idle of them here: then none has lost anything, and nothing has begun
    /// on what is free that it does not know.
    #[must_use]
    pub fn is_covered(&self, state: &State) -> bool {
        self.nodes.iter().zip(self.idle.iter()).all(|(node, idle)| {
            let Some(row) = state.node(node.id).filter(|row| row.is_placeable()) else { return false };
            let is_same_place = row.spec.region == node.spec.region && row.spec.cluster == node.spec.cluster;
            is_same_place && Amount::idle_of(row).covers(*idle)
        })
    }

    /// The same future with nothing reserved in it.
    #[must_use]
    pub fn without_reserved(&self) -> CapacityTimeline {
        CapacityTimeline { reserved: Vec::new(), ..self.clone() }
    }

    /// What making it has cost, in visits.
    #[must_use]
    pub fn visits(&self) -> u64 {
        (self.nodes.len() + self.release_count) as u64
    }

    /// What it costs to walk over its nodes and releases once, in visits: [`CapacityTimeline::earliest`]
    /// counts that itself, and the caller of [`CapacityTimeline::again`], [`CapacityTimeline::reserve`] or
    /// [`CapacityTimeline::others_like`] counts it for each call.
    #[must_use]
    pub fn walk_visits(&self) -> u64 {
        self.visits().div_ceil(ENTRIES_PER_VISIT)
    }

    /// A gang was placed on what is free, and is expected to end at that time. False when what follows is not
    /// known to the last device; then the future has to be computed again.
    #[must_use]
    pub fn begin(&mut self, spec: &JobSpec, workers: &[WorkerSlot], end: LogTime) -> bool {
        let end = end.max(self.now);
        for (rank, slot) in workers.iter().enumerate() {
            let count = workers.len();
            let group = spec.group_of(rank as u32, count).or(spec.group_of(0, count));
            let Some((group, _)) = group else { return false };
            let Some(place) = self.place(slot.node) else {
                if self.is_part {
                    continue;
                }
                return false;
            };
            let request = &group.request;
            if request.accelerators.as_ref().is_some_and(|a| matches!(a.amount, DeviceAmount::Share(_))) {
                return false;
            }
            let amount = Amount::of_workers_on(&self.nodes[place].spec, request, 1);
            let idle = self.idle[place].minus(amount);
            Arc::make_mut(&mut self.idle)[place] = idle;
            let behind = self.releases.partition_point(|release| release.at <= end);
            Arc::make_mut(&mut self.releases).insert(behind, Release { at: end, node: place as u32, amount });
            self.release_count += 1;
        }
        true
    }

    /// The first time at which a gang fits, and on which nodes; none when it would not even fit after
    /// everything else has ended, or has no quota then. An elastic gang needs its least workers.
    #[must_use]
    pub fn earliest(&self, spec: &JobSpec, terms: &Terms<'_>, budget: &mut Budget) -> Option<Start> {
        let mut best: Option<Start> = None;
        let primary = spec.groups.iter().position(|group| group.request.accelerators.is_some());
        let kinds: Vec<Option<u16>> = match primary {
            None => alloc::vec![None],
            Some(_) => (0..self.kinds.len() as u16).map(Some).collect(),
        };
        for kind in kinds {
            let Some(question) = Question::new(self, spec, terms, kind) else { continue };
            budget.take(self.walk_visits());
            if let Some(start) = question.answer(budget)
                && best.as_ref().is_none_or(|first| start.at < first.at)
            {
                best = Some(start);
            }
        }
        best
    }

    /// The first time at which the nodes of a start have what it takes, in addition to what is reserved of
    /// them; none when one of them is gone or will never have it.
    #[must_use]
    pub fn again(&self, start: &Start) -> Option<LogTime> {
        let mut missing: BTreeMap<u32, Amount> = BTreeMap::new();
        for ((id, _), amount) in start.nodes.iter().zip(&start.amounts) {
            let place = self.place(*id)?;
            missing.insert(place as u32, amount.minus(self.idle[place]));
        }
        for other in &self.reserved {
            if let Some(missing) = missing.get_mut(&other.node) {
                *missing = missing.plus(other.amount);
            }
        }
        missing.retain(|_, missing| missing.is_positive());
        let mut at = self.now;
        for release in self.releases.iter() {
            if missing.is_empty() {
                break;
            }
            if let Some(rest) = missing.get_mut(&release.node) {
                *rest = rest.minus(release.amount);
                at = release.at;
                if !rest.is_positive() {
                    missing.remove(&release.node);
                }
            }
        }
        missing.is_empty().then_some(at)
    }

    /// Takes the capacity for a start out of the future, for a gang that has nothing reserved here.
    pub fn reserve(&mut self, owner: JobId, start: &Start, until: Option<LogTime>) {
        // By place, with what it takes and what is left of the node.
        let mut taken: Vec<(u32, Amount, Amount)> = Vec::with_capacity(start.nodes.len());
        for ((id, _), amount) in start.nodes.iter().zip(&start.amounts) {
            if let Some(place) = self.place(*id) {
                taken.push((place as u32, *amount, self.idle[place].minus(*amount)));
            }
        }
        taken.sort_unstable_by_key(|(node, ..)| *node);
        let mut taken_at = alloc::vec![usize::MAX; self.nodes.len()];
        for (number, (node, ..)) in taken.iter().enumerate() {
            taken_at[*node as usize] = number;
        }
        // What is left of each node at that time.
        for release in self.releases.iter().take_while(|release| release.at <= start.at) {
            if let Some((_, _, spare)) = taken.get_mut(taken_at[release.node as usize]) {
                *spare = spare.plus(release.amount);
            }
        }
        for other in &mut self.reserved {
            let Some((_, amount, spare)) = taken.get_mut(taken_at[other.node as usize]) else { continue };
            if other.at <= start.at && other.is_there(start.at) {
                *spare = spare.minus(other.amount);
            }
            if other.at >= start.at && until.is_none_or(|until| until > other.at) {
                // It is expected to run still then.
                other.spare = other.spare.minus(*amount);
            }
        }
        let (at, from) = (start.at, start.at);
        for (node, amount, spare) in taken {
            self.reserved.push(Reserved { owner, at, from, node, amount, spare, until });
        }
    }

    /// Gives back what a gang has reserved.
    pub fn give_back(&mut self, owner: JobId) {
        let (own, mut others): (Vec<Reserved>, Vec<Reserved>) =
            core::mem::take(&mut self.reserved).into_iter().partition(|reserved| reserved.owner == owner);
        for own in own {
            let later = |other: &&mut Reserved| other.node == own.node && other.at >= own.at;
            for other in others.iter_mut().filter(later) {
                if own.until.is_none_or(|until| until > other.at) {
                    other.spare = other.spare.plus(own.amount);
                }
            }
        }
        self.reserved = others;
    }

    /// From now on nobody else is to have any more of what a gang has reserved, however soon it would be over.
    pub fn close(&mut self, owner: JobId) {
        for reserved in self.reserved.iter_mut().filter(|reserved| reserved.owner == owner) {
            reserved.from = self.now;
        }
    }

    /// Nodes that would do for workers of a gang in addition to those of its start, those first that have the
    /// most of what a worker takes already and then those that will have it first, with what they are to keep
    /// of it: at most a given number of nodes, of the same type and in the same required domain.
    #[must_use]
    pub fn others_like(
        &self,
        start: &Start,
        spec: &JobSpec,
        terms: &Terms<'_>,
        most: usize,
    ) -> Vec<(NodeId, Hold)> {
        question::others_like(self, start, spec, terms, most)
    }

    fn place(&self, id: NodeId) -> Option<usize> {
        let at = self.by_id.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(self.by_id[at].1 as usize)
    }

    /// All reservations as holds, of those owners that are asked for.
    pub fn add_holds(&self, holds: &mut Holds, mut of: impl FnMut(JobId) -> bool) {
        for reserved in &self.reserved {
            if of(reserved.owner) {
                holds.add(self.nodes[reserved.node as usize].id, reserved.hold());
            }
        }
    }

    /// All reservations as holds.
    #[must_use]
    pub fn holds(&self) -> Holds {
        let mut holds = Holds::new();
        self.add_holds(&mut holds, |_| true);
        holds
    }
}
