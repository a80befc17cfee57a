//! The future of capacity: when and where a gang would fit if what runs ends as expected.
//!
//! One fleet cluster in flat arrays: what every placeable node has idle, and what comes back when. A
//! question copies the small arrays and walks the releases in time; each costs a few additions, for the
//! node, its rack or block and the cluster. Nothing is looked up in a tree on the way.
//!
//! What is exact: whole devices, CPU and memory by node, one required domain, at most so many workers in a
//! domain, closed windows, reservations before. What is approximate: shares of a device count as whole
//! devices; segments and the even split are counted by rack, without the evenness; slices are counted by
//! free whole hosts, without their shape; workers of several groups are tried together only where each
//! group alone has room. A start that is too early by that is found to be so when the time comes.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_state::{NodeRow, State, fit};
use muster_types::policy::Window;
use muster_types::{DeviceAmount, JobId, JobSpec, Level, LogTime, Name, NodeId, NodeSpec, WorkerRequest};

use crate::terms::{Hold, Holds, Terms};

/// Times at which workers of several groups are tried together; beyond it the gang has no start.
const TRIES_MAX: u32 = 64;

/// What a node has idle, or what comes or goes. Signed: promised room may not have come yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    devices: i64,
    cpu_milli: i64,
    memory_bytes: i64,
}

impl Amount {
    const ALL: Amount = Amount { devices: i64::MAX, cpu_milli: i64::MAX, memory_bytes: i64::MAX };

    fn of_workers(request: &WorkerRequest, workers: u32) -> Amount {
        let workers = i64::from(workers);
        Amount {
            devices: devices_for(request, workers),
            cpu_milli: signed(request.cpu_milli).saturating_mul(workers),
            memory_bytes: signed(request.memory_bytes).saturating_mul(workers),
        }
    }

    fn plus(self, other: Amount) -> Amount {
        Amount {
            devices: self.devices.saturating_add(other.devices),
            cpu_milli: self.cpu_milli.saturating_add(other.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }

    fn minus(self, other: Amount) -> Amount {
        self.plus(Amount {
            devices: -other.devices,
            cpu_milli: -other.cpu_milli,
            memory_bytes: -other.memory_bytes,
        })
    }

    fn min(self, other: Amount) -> Amount {
        Amount {
            devices: self.devices.min(other.devices),
            cpu_milli: self.cpu_milli.min(other.cpu_milli),
            memory_bytes: self.memory_bytes.min(other.memory_bytes),
        }
    }

    /// How many such workers it holds.
    fn workers(self, request: &WorkerRequest) -> u32 {
        let by_device = match request.accelerators.as_ref().map(|a| a.amount) {
            None => i64::MAX,
            Some(DeviceAmount::Whole(count)) => self.devices / i64::from(count.max(1)),
            Some(DeviceAmount::Share(milli)) => self.devices.saturating_mul(i64::from(1_000 / milli.max(1))),
        };
        let by_cpu = self.cpu_milli / signed(request.cpu_milli).max(1);
        let by_memory = self.memory_bytes / signed(request.memory_bytes).max(1);
        u32::try_from(by_device.min(by_cpu).min(by_memory).max(0)).unwrap_or(u32::MAX)
    }
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// Devices that so many workers take on one node.
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

/// Room on a node that is taken from a time on.
#[derive(Clone, Copy, Debug)]
struct Reserved {
    at: LogTime,
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
            from: self.at,
            spare_devices: u16::try_from(unsigned(self.spare.devices)).unwrap_or(u16::MAX),
            spare_cpu_milli: unsigned(self.spare.cpu_milli),
            spare_memory_bytes: unsigned(self.spare.memory_bytes),
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

/// The future of one fleet cluster.
#[derive(Clone, Debug)]
pub struct Outlook {
    now: LogTime,
    nodes: Vec<Node>,
    kinds: Vec<Name>,
    rack_count: usize,
    block_count: usize,
    idle: Vec<Amount>,
    releases: Vec<Release>,
    reserved: Vec<Reserved>,
    has_taints: bool,
    /// Places of the nodes by id.
    by_id: Vec<(NodeId, u32)>,
}

impl Outlook {
    /// The future of a cluster in which gangs end at these times and nobody new starts. A time that is past
    /// counts as now.
    #[must_use]
    pub fn new(
        state: &State,
        region: &Name,
        cluster: &Name,
        releases: impl IntoIterator<Item = (LogTime, JobId)>,
    ) -> Outlook {
        let mut outlook = Outlook {
            now: state.log_time(),
            nodes: Vec::new(),
            kinds: Vec::new(),
            rack_count: 0,
            block_count: 0,
            idle: Vec::new(),
            releases: Vec::new(),
            reserved: Vec::new(),
            has_taints: false,
            by_id: Vec::new(),
        };
        let mut racks: BTreeMap<(Name, Name), u32> = BTreeMap::new();
        let mut blocks: BTreeMap<Name, u32> = BTreeMap::new();
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
                for (_, id) in rack.by_idle.iter() {
                    let row = state.node(*id).expect("an indexed node has a row");
                    outlook.by_id.push((*id, outlook.nodes.len() as u32));
                    outlook.add_node(*id, row, kind, rack_number, block);
                }
            }
        }
        outlook.rack_count = racks.len();
        outlook.block_count = blocks.len();
        outlook.by_id.sort_unstable();
        outlook.add_releases(state, releases);
        outlook
    }

    fn add_node(&mut self, id: NodeId, row: &NodeRow, kind: Option<u16>, rack: u32, block: u32) {
        self.has_taints |= !row.spec.taints.is_empty();
        self.nodes.push(Node { id, spec: row.spec.clone(), kind, rack, block });
        self.idle.push(Amount {
            devices: i64::from(row.offer().devices.count()),
            cpu_milli: signed(row.usable().cpu_milli) - signed(row.promised.cpu_milli),
            memory_bytes: signed(row.usable().memory_bytes) - signed(row.promised.memory_bytes),
        });
    }

    fn add_releases(&mut self, state: &State, releases: impl IntoIterator<Item = (LogTime, JobId)>) {
        let mut ends: Vec<(LogTime, JobId)> =
            releases.into_iter().map(|(at, job)| (at.max(self.now), job)).collect();
        ends.sort_unstable();
        // Thousandths of partly held devices, as they come back.
        let mut partly: BTreeMap<(u32, u16), u16> = BTreeMap::new();
        for (at, job) in ends {
            let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { continue };
            let Some(placement) = &row.placement else { continue };
            for (rank, (slot, rank_state)) in placement.slots.iter().zip(&placement.ranks).enumerate() {
                if rank_state.is_over() {
                    continue;
                }
                let Some(node) = self.place(slot.node) else { continue };
                let node = node as u32;
                let Some((group, _)) = spec.group_of(rank as u32) else { continue };
                let row = state.node(slot.node).expect("an indexed node has a row");
                let mut amount = Amount::of_workers(&group.request, 1);
                // Devices that are promised to others come back to them.
                let mut devices = slot.devices.difference(row.promised.devices);
                for share in &row.promised.shares {
                    devices.0 &= !(1 << share.device);
                }
                amount.devices = i64::from(devices.count());
                if let Some(DeviceAmount::Share(milli)) =
                    group.request.accelerators.as_ref().map(|a| a.amount)
                    && let Some(device) = devices.iter().next()
                {
                    let free_now = || row.free.shares.iter().find(|share| share.device == device);
                    let free = partly
                        .entry((node, device))
                        .or_insert_with(|| free_now().map_or(0, |share| share.milli));
                    *free += milli;
                    amount.devices = i64::from(*free >= 1_000);
                }
                self.releases.push(Release { at, node, amount });
            }
        }
    }

    /// The first time at which a gang fits, and on which nodes; none when it would not even fit after
    /// everything else has ended, or has no quota. An elastic gang needs its least workers.
    #[must_use]
    pub fn earliest(&self, state: &State, spec: &JobSpec, terms: &Terms<'_>) -> Option<Start> {
        let mut best: Option<Start> = None;
        let primary = spec.groups.iter().position(|group| group.request.accelerators.is_some());
        let kinds: Vec<Option<u16>> = match primary {
            None => alloc::vec![None],
            Some(_) => (0..self.kinds.len() as u16).map(Some).collect(),
        };
        for kind in kinds {
            let Some(question) = Question::new(self, state, spec, terms, kind) else { continue };
            if let Some(start) = question.answer()
                && best.as_ref().is_none_or(|first| start.at < first.at)
            {
                best = Some(start);
            }
        }
        best
    }

    /// Takes the room for a start out of the future. `_spec` is the gang that it was found for.
    pub fn reserve(&mut self, start: &Start, until: Option<LogTime>) {
        let mut amounts = alloc::vec![None; self.nodes.len()];
        for ((id, _), amount) in start.nodes.iter().zip(&start.amounts) {
            if let Some(place) = self.place(*id) {
                amounts[place] = Some((*amount, self.idle[place].minus(*amount)));
            }
        }
        // What is left of each node at that time.
        for release in self.releases.iter().take_while(|release| release.at <= start.at) {
            if let Some((_, spare)) = &mut amounts[release.node as usize] {
                *spare = spare.plus(release.amount);
            }
        }
        for other in &mut self.reserved {
            let Some((amount, spare)) = &mut amounts[other.node as usize] else { continue };
            if other.at <= start.at && other.is_there(start.at) {
                *spare = spare.minus(other.amount);
            }
            if other.at >= start.at && until.is_none_or(|until| until > other.at) {
                // It is expected to run still then.
                other.spare = other.spare.minus(*amount);
            }
        }
        for (node, amount) in amounts.into_iter().enumerate() {
            if let Some((amount, spare)) = amount {
                self.reserved.push(Reserved { at: start.at, node: node as u32, amount, spare, until });
            }
        }
    }

    fn place(&self, id: NodeId) -> Option<usize> {
        let at = self.by_id.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(self.by_id[at].1 as usize)
    }

    /// Keeps what a reserved start takes from gangs that would still run then. To be called after
    /// [`Outlook::reserve`].
    pub fn hold(&self, start: &Start, holds: &mut Holds) {
        let mut concerned = alloc::vec![false; self.nodes.len()];
        for (id, _) in &start.nodes {
            if let Some(place) = self.place(*id) {
                concerned[place] = true;
            }
        }
        // Reservations before this one on the same nodes have less to spare now as well.
        for reserved in self.reserved.iter().filter(|reserved| concerned[reserved.node as usize]) {
            holds.add(self.nodes[reserved.node as usize].id, reserved.hold());
        }
    }

    /// All reservations as holds.
    #[must_use]
    pub fn holds(&self) -> Holds {
        let mut holds = Holds::new();
        for reserved in &self.reserved {
            holds.add(self.nodes[reserved.node as usize].id, reserved.hold());
        }
        holds
    }
}

/// Something that happens to the room on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A gang that starts now would meet this reservation.
    Meets(usize),
    /// The room of a reservation comes back.
    Returns(usize),
    /// The reservation is taken.
    Takes(usize),
    /// A gang that starts now would meet the window.
    Closes(usize),
    /// The window is over.
    Opens(usize),
}

/// One gang asked about, on one type.
struct Question<'a> {
    outlook: &'a Outlook,
    spec: &'a JobSpec,
    /// By group, the type of its nodes; none when any node will do.
    kinds: Vec<Option<u16>>,
    /// By group.
    wanted: Vec<u32>,
    run_ms: u64,
    now: LogTime,
    windows: Vec<&'a Window>,
    allowed: Option<Vec<bool>>,
}

impl<'a> Question<'a> {
    /// None when the type is of no use or no quota is left.
    fn new(
        outlook: &'a Outlook,
        state: &State,
        spec: &'a JobSpec,
        terms: &Terms<'a>,
        kind: Option<u16>,
    ) -> Option<Question<'a>> {
        let mut kinds = Vec::with_capacity(spec.groups.len());
        let mut wanted = Vec::with_capacity(spec.groups.len());
        let mut slowest: Option<u32> = None;
        for group in &spec.groups {
            wanted.push(if terms.elastic { group.workers_min } else { group.workers });
            let Some(request) = &group.request.accelerators else {
                kinds.push(None);
                continue;
            };
            let throughput = |kind: u16| request.throughput_milli(&outlook.kinds[usize::from(kind)]);
            let is_primary = kinds.iter().all(Option::is_none);
            let own = kind.filter(|kind| throughput(*kind).is_some());
            let other = || {
                let accepted = (0..outlook.kinds.len() as u16).filter(|kind| throughput(*kind).is_some());
                // The last maximum of the reverse is the first by name.
                accepted.rev().max_by_key(|kind| throughput(*kind))
            };
            let chosen = if is_primary { own? } else { own.or_else(other)? };
            kinds.push(Some(chosen));
            let milli = throughput(chosen)?;
            slowest = Some(slowest.map_or(milli, |least| least.min(milli)));
        }
        let question = Question {
            outlook,
            spec,
            run_ms: terms.run_on(spec, slowest.unwrap_or(1_000)).max(1),
            now: terms.now,
            windows: Vec::new(),
            allowed: None,
            kinds,
            wanted,
        };
        question.has_quota(state, terms).then(|| question.with_places(terms))
    }

    fn has_quota(&self, state: &State, terms: &Terms<'_>) -> bool {
        let Some(node) = self.outlook.nodes.first() else { return false };
        let place = (&node.spec.region, &node.spec.cluster);
        let here = state.pools().filter(|(key, _)| (&key.region, &key.cluster) == place);
        here.into_iter().all(|(key, _)| {
            let of_pool = self.spec.groups.iter().zip(&self.kinds).zip(&self.wanted);
            let need: u64 = of_pool
                .filter(|((_, kind), _)| {
                    kind.is_some_and(|kind| key.kind.as_ref() == Some(&self.outlook.kinds[usize::from(kind)]))
                })
                .map(|((group, _), wanted)| u64::from(*wanted) * group.request.device_milli())
                .sum();
            need == 0 || need <= (terms.room_milli)(key)
        })
    }

    /// With the windows it may meet and the nodes it may be on.
    fn with_places(mut self, terms: &Terms<'a>) -> Question<'a> {
        let policy = terms.policy;
        let closed = |window: &&Window| window.until > self.now && terms.holds.is_closed(window);
        self.windows = policy.windows.iter().filter(closed).collect();
        let nodes = &self.outlook.nodes;
        if self.outlook.has_taints || !self.spec.node_selector.is_empty() || !self.spec.regions.is_empty() {
            self.allowed = Some(nodes.iter().map(|node| fit::allows(&node.spec, self.spec)).collect());
        }
        self
    }

    fn answer(&self) -> Option<Start> {
        let mut room = Room::new(self);
        let events = self.events();
        let mut events = events.iter().peekable();
        let mut releases = self.outlook.releases.iter().peekable();
        let mut tries = 0;
        let mut at = self.now;
        loop {
            // Everything that has happened by then.
            while let Some(release) = releases.next_if(|release| release.at <= at) {
                room.changes(release.node as usize, |node| node.idle = node.idle.plus(release.amount));
            }
            while let Some((_, event)) = events.next_if(|(time, _)| *time <= at) {
                self.happens(&mut room, *event, at);
            }
            if let Some(domain) = room.first_domain() {
                if let Some(start) = self.choose(&room, domain, at) {
                    return Some(start);
                }
                tries += 1;
                if tries >= TRIES_MAX {
                    return None;
                }
            }
            let next = [releases.peek().map(|r| r.at), events.peek().map(|(time, _)| *time)];
            at = next.into_iter().flatten().min()?;
        }
    }

    /// What happens to nodes besides releases, in time.
    fn events(&self) -> Vec<(LogTime, Event)> {
        let mut events = Vec::new();
        // A gang that runs for `run_ms` from a time on meets what is before the end of that.
        let meets = |time: LogTime| time.minus_ms(self.run_ms.saturating_sub(1));
        for (number, reserved) in self.outlook.reserved.iter().enumerate() {
            events.push((meets(reserved.at), Event::Meets(number)));
            events.push((reserved.at, Event::Takes(number)));
            if let Some(until) = reserved.until {
                events.push((until, Event::Returns(number)));
            }
        }
        for (number, window) in self.windows.iter().enumerate() {
            events.push((meets(window.from), Event::Closes(number)));
            events.push((window.until, Event::Opens(number)));
        }
        events.sort_unstable();
        events
    }

    fn happens(&self, room: &mut Room<'_>, event: Event, at: LogTime) {
        match event {
            Event::Returns(number) => {
                let returned = self.outlook.reserved[number];
                let met = |other: &&Reserved| {
                    let meets = other.at.minus_ms(self.run_ms.saturating_sub(1)) <= at;
                    other.node == returned.node && meets && other.is_there(at)
                };
                let others = self.outlook.reserved.iter().filter(met);
                let most = others.fold(Amount::ALL, |most, other| most.min(other.spare));
                room.changes(returned.node as usize, |node| {
                    node.idle = node.idle.plus(returned.amount);
                    node.most = most;
                });
            }
            Event::Meets(number) | Event::Takes(number) => {
                let reserved = self.outlook.reserved[number];
                let taken = matches!(event, Event::Takes(_));
                room.changes(reserved.node as usize, |node| {
                    if taken {
                        node.idle = node.idle.minus(reserved.amount);
                    } else {
                        node.most = node.most.min(reserved.spare);
                    }
                });
            }
            Event::Closes(number) | Event::Opens(number) => {
                let (window, closes) = (self.windows[number], matches!(event, Event::Closes(_)));
                for place in 0..self.outlook.nodes.len() {
                    if window.scope.covers(&self.outlook.nodes[place].spec) {
                        room.changes(place, |node| {
                            node.closed =
                                if closes { node.closed + 1 } else { node.closed.saturating_sub(1) };
                        });
                    }
                }
            }
        }
    }

    /// The nodes for a start in a domain; none when several groups do not fit together.
    fn choose(&self, room: &Room<'_>, domain: usize, at: LogTime) -> Option<Start> {
        let mut takes: BTreeMap<usize, (u32, Amount)> = BTreeMap::new();
        let mut in_part: BTreeMap<usize, u32> = BTreeMap::new();
        for devices_first in [true, false] {
            for (number, group) in self.spec.groups.iter().enumerate() {
                if self.kinds[number].is_some() == devices_first {
                    let rest = self.wanted[number];
                    self.choose_group(
                        room,
                        domain,
                        (number, &group.request),
                        rest,
                        &mut takes,
                        &mut in_part,
                    )?;
                }
            }
        }
        let mut nodes: Vec<(NodeId, u32, Amount)> = takes
            .into_iter()
            .map(|(place, (workers, amount))| (self.outlook.nodes[place].id, workers, amount))
            .collect();
        nodes.sort_unstable_by_key(|(id, _, _)| *id);
        let amounts = nodes.iter().map(|(_, _, amount)| *amount).collect();
        Some(Start { at, nodes: nodes.into_iter().map(|(id, workers, _)| (id, workers)).collect(), amounts })
    }

    /// Best fit: the fullest node that holds all the rest, else the emptiest is filled.
    fn choose_group(
        &self,
        room: &Room<'_>,
        domain: usize,
        (group, request): (usize, &WorkerRequest),
        mut rest: u32,
        takes: &mut BTreeMap<usize, (u32, Amount)>,
        in_part: &mut BTreeMap<usize, u32>,
    ) -> Option<()> {
        // Devices, then id: the fullest first.
        let mut nodes: Vec<(i64, NodeId, usize, u32)> = Vec::new();
        for place in 0..self.outlook.nodes.len() {
            if room.domain_of(place) != domain || !room.is_usable(place, self.kinds[group]) {
                continue;
            }
            let taken = takes.get(&place).map_or(Amount::default(), |(_, amount)| *amount);
            let left = room.usable(place).minus(taken);
            let workers = room.limit(place, left.workers(request));
            if workers > 0 {
                nodes.push((left.devices, self.outlook.nodes[place].id, place, workers));
            }
        }
        let plain_first = self.kinds[group].is_none();
        nodes.sort_unstable_by_key(|(devices, id, _, _)| {
            (if plain_first { *devices } else { -*devices }, *id)
        });
        let widest = nodes.iter().map(|(_, _, _, workers)| *workers).max().unwrap_or(0);
        let mut at = 0;
        while rest > 0 {
            let holds_all = |at: &usize| {
                let (_, _, place, workers) = nodes[*at];
                workers >= rest && self.fits_part(room, place, rest, in_part)
            };
            let candidates = if rest <= widest { at..nodes.len() } else { 0..0 };
            let best = candidates.filter(holds_all).min_by_key(|at| (nodes[*at].0, nodes[*at].1));
            let chosen = match best {
                Some(best) => best,
                None if at < nodes.len() => at,
                None => return None,
            };
            let (_, _, place, workers) = nodes[chosen];
            let part = room.part_of(place);
            let used = in_part.get(&part).copied().unwrap_or(0);
            let count = workers.min(rest).min(room.part_limit(part).saturating_sub(used));
            if count > 0 {
                let more = Amount::of_workers(request, count);
                let entry = takes.entry(place).or_default();
                *entry = (entry.0 + count, entry.1.plus(more));
                *in_part.entry(part).or_default() += count;
                rest -= count;
            }
            if best.is_none() {
                at += 1;
            }
        }
        Some(())
    }

    fn fits_part(&self, room: &Room<'_>, place: usize, rest: u32, in_part: &BTreeMap<usize, u32>) -> bool {
        let part = room.part_of(place);
        let used = in_part.get(&part).copied().unwrap_or(0);
        room.part_limit(part).saturating_sub(used) >= rest
    }
}

/// What a node has at the time that is looked at.
#[derive(Clone, Copy, Debug)]
struct Now {
    idle: Amount,
    /// What reservations that a gang would meet leave of it.
    most: Amount,
    /// Windows that a gang would meet.
    closed: u32,
    /// Workers of the first group that it holds.
    workers: u32,
}

/// The room for a gang at one time: by node, by part (a rack or block that has a limit of its own), and by
/// domain (what all of it has to be in).
struct Room<'a> {
    question: &'a Question<'a>,
    /// The group that is counted: the first with devices.
    primary: usize,
    wanted: u32,
    nodes: Vec<Now>,
    parts: Vec<u32>,
    domains: Vec<u64>,
    part_level: Option<Level>,
    domain_level: Option<Level>,
    /// Domains that have enough at the moment.
    enough: Vec<usize>,
}

impl<'a> Room<'a> {
    fn new(question: &'a Question<'a>) -> Room<'a> {
        let outlook = question.outlook;
        let rule = &question.spec.topology;
        let part_level = if rule.balanced || rule.segment_workers > 0 {
            Some(Level::Rack)
        } else {
            rule.spread.map(|spread| spread.level)
        };
        let count = |level: Option<Level>| match level {
            None => 1,
            Some(Level::Block) => outlook.block_count,
            Some(Level::Rack) => outlook.rack_count,
            Some(Level::Host) => outlook.nodes.len(),
        };
        let primary = question.kinds.iter().position(Option::is_some).unwrap_or(0);
        let empty = Now { idle: Amount::default(), most: Amount::ALL, closed: 0, workers: 0 };
        let mut room = Room {
            question,
            primary,
            wanted: question.wanted[primary],
            nodes: outlook.idle.iter().map(|idle| Now { idle: *idle, ..empty }).collect(),
            parts: alloc::vec![0; if part_level.is_some() { count(part_level) } else { 0 }],
            domains: alloc::vec![0; count(rule.required)],
            part_level,
            domain_level: rule.required,
            enough: Vec::new(),
        };
        for place in 0..room.nodes.len() {
            room.changes(place, |_| {});
        }
        room
    }

    fn number(&self, level: Option<Level>, place: usize) -> usize {
        let node = &self.question.outlook.nodes[place];
        match level {
            None => 0,
            Some(Level::Block) => node.block as usize,
            Some(Level::Rack) => node.rack as usize,
            Some(Level::Host) => place,
        }
    }

    fn domain_of(&self, place: usize) -> usize {
        self.number(self.domain_level, place)
    }

    fn part_of(&self, place: usize) -> usize {
        self.number(self.part_level, place)
    }

    fn usable(&self, place: usize) -> Amount {
        self.nodes[place].idle.min(self.nodes[place].most)
    }

    fn is_usable(&self, place: usize, kind: Option<u16>) -> bool {
        let node = &self.question.outlook.nodes[place];
        self.nodes[place].closed == 0
            && (kind.is_none() || node.kind == kind)
            && self.question.allowed.as_ref().is_none_or(|allowed| allowed[place])
    }

    /// What rules for single hosts leave of so many workers.
    fn limit(&self, place: usize, workers: u32) -> u32 {
        let spec = self.question.spec;
        if spec.groups[self.primary].slice.is_some() {
            // A slice needs its host empty.
            let node = &self.question.outlook.nodes[place];
            let is_whole = self.usable(place).devices >= i64::from(node.spec.device_count());
            return workers.min(u32::from(is_whole && node.spec.pod.is_some()));
        }
        match spec.topology.spread {
            Some(spread) if spread.level == Level::Host => workers.min(spread.workers_max),
            _ => workers,
        }
    }

    /// What rules for a part leave of the workers it holds.
    fn of_part(&self, workers: u32) -> u32 {
        let rule = &self.question.spec.topology;
        let unit = rule.segment_workers.max(1);
        let most = rule.spread.map_or(u32::MAX, |spread| spread.workers_max);
        (workers / unit * unit).min(most)
    }

    fn part_limit(&self, part: usize) -> u32 {
        self.parts.get(part).map_or(u32::MAX, |workers| self.of_part(*workers))
    }

    /// Changes a node, and what its part and its domain have.
    fn changes(&mut self, place: usize, change: impl FnOnce(&mut Now)) {
        change(&mut self.nodes[place]);
        let kind = self.question.kinds[self.primary];
        let before = self.nodes[place].workers;
        let now = if self.is_usable(place, kind) {
            let request = &self.question.spec.groups[self.primary].request;
            self.limit(place, self.usable(place).workers(request))
        } else {
            0
        };
        if now == before {
            return;
        }
        self.nodes[place].workers = now;
        let (before, now) = if self.part_level.is_some() {
            let part = self.part_of(place);
            let held = self.parts[part];
            let holds = held.saturating_sub(before).saturating_add(now);
            self.parts[part] = holds;
            (self.of_part(held), self.of_part(holds))
        } else {
            (before, now)
        };
        let domain = self.domain_of(place);
        let held = self.domains[domain];
        let holds = held.saturating_sub(u64::from(before)).saturating_add(u64::from(now));
        self.domains[domain] = holds;
        let wanted = u64::from(self.wanted);
        if held < wanted && holds >= wanted {
            self.enough.push(domain);
        } else if held >= wanted && holds < wanted {
            self.enough.retain(|enough| *enough != domain);
        }
    }

    /// The domain with the least room that suffices.
    fn first_domain(&self) -> Option<usize> {
        self.enough.iter().copied().min_by_key(|domain| (self.domains[*domain], *domain))
    }
}
