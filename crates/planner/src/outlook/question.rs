//! One gang asked about: the walk through time, and what it has at each moment.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_state::fit;
use muster_types::tpu::{Generation, PodPosition, SliceRequest};
use muster_types::{JobSpec, Level, LogTime, Name, NodeId, WorkerRequest};

use super::{Amount, CapacityTimeline, Reserved, Start, signed};
use crate::Budget;
use crate::slices::{SliceVerdict, find_slices};
use crate::terms::{AffinityTerm, ClosedPlace, Hold, Lane, Opening, Terms};

/// Times at which slices, or workers of several groups, are tried one after the other. Behind them only every
/// second time at which each alone fits is tried, then every fourth and so on, and the last: the
/// start that is found may be late then, but is never missed.
const TRIES_MAX: u32 = 64;
/// Domains that are tried at one time, those with the least free capacity that suffices first.
const DOMAINS_TRIED_MAX: usize = 8;
/// Visits of one search for slices.
const SLICE_VISITS: u64 = 100_000;

/// Something that happens to the capacity of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A gang that starts now would meet this reservation.
    Meets(usize),
    /// The capacity of a reservation comes back.
    Returns(usize),
    /// The reservation is taken.
    Takes(usize),
    /// A gang that starts now would meet the window, or must not begin on what is booked.
    Closes(usize),
    /// The window is over, or what is booked is open to it.
    Opens(usize),
    /// Others are gone from the place of a node that one of their entries had closed.
    Leaves(usize),
    /// The quota that may be used is another.
    Quota,
}

/// Unused hosts that may still be taken, by type and rack; a rack that keeps none free is not listed.
type UnusedHosts = BTreeMap<(u16, u32), u32>;

/// One gang asked about, on one type.
pub(super) struct Question<'a> {
    outlook: &'a CapacityTimeline,
    spec: &'a JobSpec,
    /// By group, the type of its nodes; none when any node will do.
    kinds: Vec<Option<u16>>,
    /// By group.
    wanted: Vec<u32>,
    run_ms: u64,
    now: LogTime,
    closed: Vec<ClosedPlace<'a>>,
    /// When others are expected to be gone.
    openings: &'a [Opening<'a>],
    /// By number in `closed`, the places of the nodes that it names.
    booked: Vec<Vec<usize>>,
    allowed: Option<Vec<bool>>,
    /// Quota that is limited, with the thousandths of devices that the gang takes of it.
    lanes: Vec<(&'a Lane, u64)>,
    /// Hosts that may be in use at a time, by type and rack, where some are kept free.
    in_use_max: BTreeMap<(u16, u32), u32>,
}

impl<'a> Question<'a> {
    /// None when the type is of no use.
    pub(super) fn new(
        outlook: &'a CapacityTimeline,
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
            closed: Vec::new(),
            openings: terms.openings,
            booked: Vec::new(),
            allowed: None,
            lanes: Vec::new(),
            in_use_max: BTreeMap::new(),
            kinds,
            wanted,
        };
        Some(question.with_places(terms).with_lanes(terms))
    }

    /// With the quota that it needs.
    fn with_lanes(mut self, terms: &Terms<'a>) -> Question<'a> {
        let Some(node) = self.outlook.nodes.first() else { return self };
        for lane in terms.lanes.iter().filter(|lane| lane.region == node.spec.region) {
            let is_of_lane = |kind: &Option<u16>| {
                kind.is_some_and(|kind| self.outlook.kinds[usize::from(kind)] == lane.kind)
            };
            let of_lane = self.spec.groups.iter().zip(&self.kinds).zip(&self.wanted);
            let of_lane = of_lane.filter(|((_, kind), _)| is_of_lane(kind));
            let need: u64 =
                of_lane.map(|((group, _), wanted)| u64::from(*wanted) * group.request.device_milli()).sum();
            if need > 0 {
                self.lanes.push((lane, need));
            }
        }
        self
    }

    /// Whether there is quota for it from a time to its end.
    fn has_quota(&self, at: LogTime) -> bool {
        self.lanes.iter().all(|(lane, need)| lane.least_milli(at, at.plus_ms(self.run_ms)) >= *need)
    }

    /// With the windows it may meet and the nodes it may be on.
    fn with_places(mut self, terms: &Terms<'a>) -> Question<'a> {
        let policy = terms.policy;
        let windows = policy.windows.iter();
        let windows = windows.filter(|window| window.until > self.now && terms.holds.is_closed(window));
        let booked = terms.closures.iter().filter(|closure| closure.until > self.now);
        let closed = windows.map(ClosedPlace::Window).chain(booked.map(ClosedPlace::Booking));
        let affinity = terms.affinity.iter().filter(|term| term.is_required());
        self.closed = closed.chain(affinity.map(ClosedPlace::Affinity)).collect();
        self.booked = self.booked_places();
        let spares = if terms.holds.opens_spares() { None } else { Some(&policy.spare_hosts_per_rack) };
        for ((kind, rack), hosts) in self.outlook.rack_hosts.iter() {
            let spare = spares.and_then(|spares| spares.get(&self.outlook.kinds[usize::from(*kind)]));
            if let Some(spare) = spare {
                self.in_use_max.insert((*kind, *rack), hosts.saturating_sub(u32::from(*spare)));
            }
        }
        let nodes = &self.outlook.nodes;
        let asks_nodes = fit::is_selective(self.spec)
            || !self.spec.regions.is_empty()
            || self.spec.needs_container_runtime()
            || self.spec.is_exclusive()
            || self.spec.groups.iter().any(|group| group.slice.is_some());
        let is_restricted = !policy.required_isolation.is_empty() || policy.has_partitions();
        if self.outlook.has_taints || asks_nodes || is_restricted {
            let allowed = nodes.iter().map(|node| terms.allows(&node.spec, self.spec));
            self.allowed = Some(allowed.collect());
        }
        self
    }

    /// One walk over the nodes for all bookings, however many there are.
    fn booked_places(&self) -> Vec<Vec<usize>> {
        let mut by_name: BTreeMap<&Name, Vec<usize>> = BTreeMap::new();
        for (number, closed) in self.closed.iter().enumerate() {
            for name in closed.names().into_iter().flatten() {
                by_name.entry(name).or_default().push(number);
            }
        }
        let mut found: Vec<Vec<usize>> = self.closed.iter().map(|_| Vec::new()).collect();
        if by_name.is_empty() {
            return found;
        }
        for (place, node) in self.outlook.nodes.iter().enumerate() {
            for number in by_name.get(&node.spec.name).into_iter().flatten() {
                found[*number].push(place);
            }
        }
        found
    }

    /// By place, whether a booking or another job lets it not begin there at some moment up to a time.
    fn booked_up_to(&self, at: LogTime) -> Vec<bool> {
        let mut found: Vec<bool> = self.outlook.nodes.iter().map(|_| false).collect();
        for (number, closed) in self.closed.iter().enumerate() {
            let closure = match closed {
                ClosedPlace::Window(_) => continue,
                ClosedPlace::Booking(closure) if closure.from > at => continue,
                ClosedPlace::Booking(closure) => closure,
                ClosedPlace::Affinity(term) => {
                    for (place, node) in self.outlook.nodes.iter().enumerate() {
                        found[place] |= term.excludes(&node.spec);
                    }
                    continue;
                }
            };
            for place in &self.booked[number] {
                found[*place] = true;
            }
            if !closure.is_by_name() {
                for (place, node) in self.outlook.nodes.iter().enumerate() {
                    found[place] |= closure.covers(&node.spec);
                }
            }
        }
        found
    }

    pub(super) fn answer(&self, budget: &mut Budget) -> Option<Start> {
        let mut capacity = FreeCapacity::new(self);
        let events = self.events();
        let mut events = events.iter().peekable();
        let mut releases = self.outlook.releases.iter().peekable();
        let (mut tries, mut chances, mut next_try, mut gap) = (0, 0u64, 1, 1);
        let mut at = self.now;
        loop {
            // Everything that has happened by then.
            while let Some(release) = releases.next_if(|release| release.at <= at) {
                capacity.changes(release.node as usize, |node| node.idle = node.idle.plus(release.amount));
            }
            while let Some((_, event)) = events.next_if(|(time, _)| *time <= at) {
                self.happens(&mut capacity, *event, at);
            }
            let next = [releases.peek().map(|r| r.at), events.peek().map(|(time, _)| *time)];
            let next = next.into_iter().flatten().min();
            if !capacity.enough.is_empty() && self.has_quota(at) {
                chances += 1;
                if chances >= next_try || next.is_none() {
                    if let Some(start) = self.try_at(&capacity, at, budget) {
                        return Some(start);
                    }
                    tries += 1;
                    gap = if tries < TRIES_MAX { 1 } else { gap * 2 };
                    next_try = chances + gap;
                }
            }
            at = next?;
        }
    }

    /// The start in one of the domains that have enough for the first group.
    fn try_at(&self, capacity: &FreeCapacity<'_>, at: LogTime, budget: &mut Budget) -> Option<Start> {
        capacity
            .domains_with_enough()
            .into_iter()
            .find_map(|domain| self.choose(capacity, domain, at, budget))
    }

    /// What happens to nodes in addition to releases, in time.
    fn events(&self) -> Vec<(LogTime, Event)> {
        let mut events = Vec::new();
        // A gang that runs for `run_ms` from a time on meets what is before the end of that.
        let meets = |time: LogTime| time.minus_ms(self.run_ms.saturating_sub(1));
        for (number, reserved) in self.outlook.reserved.iter().enumerate() {
            events.push((meets(reserved.from), Event::Meets(number)));
            events.push((reserved.at, Event::Takes(number)));
            if let Some(until) = reserved.until {
                events.push((until, Event::Returns(number)));
            }
        }
        for (number, closed) in self.closed.iter().enumerate() {
            let (closes, opens) = match closed {
                ClosedPlace::Window(window) => (meets(window.from), window.until),
                // It says of the moment of the start whether that is too late.
                ClosedPlace::Booking(closure) => (closure.from, closure.until),
                // When others begin is not foreseen, and when those end that it has to be with: it is asked again with what
                // runs then.
                ClosedPlace::Affinity(term) => {
                    self.add_leaves(term, &mut events);
                    (self.now, LogTime(u64::MAX))
                }
            };
            events.push((closes, Event::Closes(number)));
            if opens < LogTime(u64::MAX) {
                events.push((opens, Event::Opens(number)));
            }
        }
        let steps = self.lanes.iter().flat_map(|(lane, _)| &lane.steps);
        events.extend(steps.map(|(at, _)| (*at, Event::Quota)));
        events.sort_unstable();
        events
    }

    /// Nodes that an entry closes, each at the time at which those are expected to be gone that it is about.
    fn add_leaves(&self, term: &AffinityTerm<'_>, events: &mut Vec<(LogTime, Event)>) {
        if self.openings.is_empty() {
            return;
        }
        for (place, node) in self.outlook.nodes.iter().enumerate() {
            if term.excludes(&node.spec)
                && let Some(at) = term.opens_at(&node.spec, self.openings)
            {
                events.push((at.max(self.now), Event::Leaves(place)));
            }
        }
    }

    fn happens(&self, capacity: &mut FreeCapacity<'_>, event: Event, at: LogTime) {
        match event {
            Event::Quota => {}
            Event::Leaves(place) => {
                capacity.changes(place, |node| node.closed = node.closed.saturating_sub(1));
            }
            Event::Returns(number) => {
                let returned = self.outlook.reserved[number];
                let met = |other: &&Reserved| {
                    let meets = other.from.minus_ms(self.run_ms.saturating_sub(1)) <= at;
                    other.node == returned.node && meets && other.is_there(at)
                };
                let others = self.outlook.reserved.iter().filter(met);
                let most = others.fold(Amount::ALL, |most, other| most.min(other.spare));
                capacity.changes(returned.node as usize, |node| {
                    node.idle = node.idle.plus(returned.amount);
                    node.most = most;
                });
            }
            Event::Meets(number) | Event::Takes(number) => {
                let reserved = self.outlook.reserved[number];
                let taken = matches!(event, Event::Takes(_));
                capacity.changes(reserved.node as usize, |node| {
                    if taken {
                        node.idle = node.idle.minus(reserved.amount);
                    } else {
                        node.most = node.most.min(reserved.spare);
                    }
                });
            }
            Event::Closes(number) | Event::Opens(number) => {
                let (closed, closes) = (self.closed[number], matches!(event, Event::Closes(_)));
                let change = |node: &mut NodeCapacity| {
                    node.closed = if closes { node.closed + 1 } else { node.closed.saturating_sub(1) };
                };
                if closed.names().is_some() {
                    for place in &self.booked[number] {
                        capacity.changes(*place, change);
                    }
                    return;
                }
                for place in 0..self.outlook.nodes.len() {
                    if closed.covers(&self.outlook.nodes[place].spec) {
                        capacity.changes(place, change);
                    }
                }
            }
        }
    }

    /// The nodes for a start in a domain; none when several groups do not fit together.
    fn choose(
        &self,
        capacity: &FreeCapacity<'_>,
        domain: usize,
        at: LogTime,
        budget: &mut Budget,
    ) -> Option<Start> {
        let mut takes: BTreeMap<usize, (u32, Amount)> = BTreeMap::new();
        let mut in_part: BTreeMap<usize, u32> = BTreeMap::new();
        let mut unused_left = self.unused_hosts_left(capacity);
        for devices_first in [true, false] {
            for (number, group) in self.spec.groups.iter().enumerate() {
                if self.kinds[number].is_some() == devices_first {
                    let rest = self.wanted[number];
                    if let Some(slice) = &group.slice {
                        self.choose_slices(
                            capacity,
                            domain,
                            (number, slice),
                            &mut takes,
                            &mut unused_left,
                            budget,
                        )?;
                        continue;
                    }
                    self.choose_group(
                        capacity,
                        domain,
                        (number, &group.request),
                        rest,
                        &mut takes,
                        (&mut in_part, &mut unused_left),
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

    /// The hosts of slices, as the planner would take them if nothing else were free.
    fn choose_slices(
        &self,
        capacity: &FreeCapacity<'_>,
        domain: usize,
        (group, slice): (usize, &SliceRequest),
        takes: &mut BTreeMap<usize, (u32, Amount)>,
        unused_left: &mut UnusedHosts,
        budget: &mut Budget,
    ) -> Option<()> {
        let outlook = self.outlook;
        let kind = &outlook.kinds[usize::from(self.kinds[group]?)];
        let generation = Generation::of_kind(kind)?;
        let request = &self.spec.groups[group].request;
        let wanted = self.wanted[group];
        for chips in generation.chips_per_host() {
            if slice.workers(*chips) != Some(wanted)
                || slice.chips_per_worker(*chips) != request.device_count()
            {
                continue;
            }
            let mut free: BTreeMap<PodPosition, NodeId> = BTreeMap::new();
            for (place, node) in outlook.nodes.iter().enumerate() {
                let Some(pod) = node.spec.pod.as_ref().filter(|_| node.spec.device_count() == *chips) else {
                    continue;
                };
                let is_whole = capacity.usable(place).devices >= i64::from(*chips);
                if is_whole
                    && capacity.domain_of(place) == domain
                    && capacity.is_usable(place, self.kinds[group])
                    && capacity.usable(place).workers(request) > 0
                    && !takes.contains_key(&place)
                    && self.opens(capacity, place, unused_left)
                {
                    free.insert(pod.clone(), node.id);
                }
            }
            let mut own = Budget::new(SLICE_VISITS);
            let found = find_slices(generation, slice, *chips, &free, &mut own);
            budget.take(SLICE_VISITS - own.left());
            if let SliceVerdict::Fits(nodes) = found {
                for id in nodes {
                    let place = outlook.place(id)?;
                    takes.insert(place, (1, Amount::of_workers(request, 1)));
                }
                return Some(());
            }
        }
        None
    }

    /// Best fit: the fullest node that holds all the rest, else the emptiest is filled.
    fn choose_group(
        &self,
        capacity: &FreeCapacity<'_>,
        domain: usize,
        (group, request): (usize, &WorkerRequest),
        mut rest: u32,
        takes: &mut BTreeMap<usize, (u32, Amount)>,
        (in_part, unused_left): (&mut BTreeMap<usize, u32>, &mut UnusedHosts),
    ) -> Option<()> {
        // Devices, then id: the fullest first.
        let mut nodes: Vec<(i64, NodeId, usize, u32)> = Vec::new();
        for place in 0..self.outlook.nodes.len() {
            if capacity.domain_of(place) != domain || !capacity.is_usable(place, self.kinds[group]) {
                continue;
            }
            let taken = takes.get(&place).map_or(Amount::default(), |(_, amount)| *amount);
            let left = capacity.usable(place).minus(taken);
            let host = &self.outlook.nodes[place].spec;
            let workers = capacity.limit(place, left.workers_on(host, request));
            if workers > 0 {
                nodes.push((left.devices, self.outlook.nodes[place].id, place, workers));
            }
        }
        let plain_first = self.kinds[group].is_none();
        // A rest that one node holds goes to the best of them, in whatever order they are: most gangs that are asked about are
        // small, and clusters are not.
        let mut is_sorted = false;
        let widest = nodes.iter().map(|(_, _, _, workers)| *workers).max().unwrap_or(0);
        let mut at = 0;
        while rest > 0 {
            let holds_all = |at: &usize| {
                let (_, _, place, workers) = nodes[*at];
                workers >= rest && self.fits_part(capacity, place, rest, in_part)
            };
            let candidates = if rest <= widest { at..nodes.len() } else { 0..0 };
            let best = candidates.filter(holds_all).min_by_key(|at| (nodes[*at].0, nodes[*at].1));
            let chosen = match best {
                Some(best) => best,
                None if at < nodes.len() => {
                    if !is_sorted {
                        nodes.sort_unstable_by_key(|(devices, id, _, _)| {
                            (if plain_first { *devices } else { -*devices }, *id)
                        });
                        is_sorted = true;
                    }
                    at
                }
                None => return None,
            };
            let (_, _, place, workers) = nodes[chosen];
            let part = capacity.part_of(place);
            let used = in_part.get(&part).copied().unwrap_or(0);
            let count = workers.min(rest).min(capacity.part_limit(part).saturating_sub(used));
            if count > 0 && !takes.contains_key(&place) && !self.opens(capacity, place, unused_left) {
                // One of the hosts that are kept free.
                nodes.remove(chosen);
                continue;
            }
            if count > 0 {
                let more = Amount::of_workers_on(&self.outlook.nodes[place].spec, request, count);
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

    /// How many more unused hosts of each rack may be taken, where some are kept free.
    fn unused_hosts_left(&self, capacity: &FreeCapacity<'_>) -> UnusedHosts {
        let mut left = self.in_use_max.clone();
        if left.is_empty() {
            return left;
        }
        for (place, node) in self.outlook.nodes.iter().enumerate() {
            let Some(kind) = node.kind.filter(|_| !capacity.is_unused(place)) else { continue };
            if let Some(left) = left.get_mut(&(kind, node.rack)) {
                *left = left.saturating_sub(1);
            }
        }
        left
    }

    /// Whether the first worker may go to a host; counts it if nobody uses it.
    fn opens(&self, capacity: &FreeCapacity<'_>, place: usize, unused_left: &mut UnusedHosts) -> bool {
        let node = &self.outlook.nodes[place];
        let Some(left) = node.kind.and_then(|kind| unused_left.get_mut(&(kind, node.rack))) else {
            return true;
        };
        if !capacity.is_unused(place) {
            return true;
        }
        let may = *left > 0;
        *left = left.saturating_sub(1);
        may
    }

    fn fits_part(
        &self,
        capacity: &FreeCapacity<'_>,
        place: usize,
        rest: u32,
        in_part: &BTreeMap<usize, u32>,
    ) -> bool {
        let part = capacity.part_of(place);
        let used = in_part.get(&part).copied().unwrap_or(0);
        capacity.part_limit(part).saturating_sub(used) >= rest
    }
}

/// What a node has at the time that is looked at.
#[derive(Clone, Copy, Debug)]
struct NodeCapacity {
    idle: Amount,
    /// What reservations that a gang would meet leave of it.
    most: Amount,
    /// Windows that a gang would meet.
    closed: u32,
    /// Workers of the first group that it holds.
    workers: u32,
}

/// The capacity for a gang at one time: by node, by part (a rack or block that has a separate limit), and by
/// domain (what all of it has to be in).
struct FreeCapacity<'a> {
    question: &'a Question<'a>,
    /// The group that is counted: the first with devices.
    primary: usize,
    wanted: u32,
    nodes: Vec<NodeCapacity>,
    parts: Vec<u32>,
    domains: Vec<u64>,
    part_level: Option<Level>,
    domain_level: Option<Level>,
    /// Workers of a host, and of a part, that make a whole segment of the gang.
    host_unit: u32,
    part_unit: u32,
    /// Most workers of a part.
    part_most: u32,
    /// Domains that have enough at the moment.
    enough: Vec<usize>,
}

impl<'a> FreeCapacity<'a> {
    fn new(question: &'a Question<'a>) -> FreeCapacity<'a> {
        let outlook = question.outlook;
        let rule = &question.spec.topology;
        // Segments of hosts are in what each node holds. Of racks within blocks the outermost counts: racks that are cut
        // smaller than a segment may let a start look possible too early, and the planner looks again then.
        let of_part = rule.all_segments().map(|segment| segment.level).find(|level| *level < Level::Host);
        let part_level = if rule.balanced {
            Some(Level::Rack)
        } else {
            of_part.or(rule.spread.map(|spread| spread.level))
        };
        let count = |level: Option<Level>| match level {
            None => 1,
            Some(Level::Block) => outlook.block_count,
            Some(Level::Rack) => outlook.rack_count,
            Some(Level::Host) => outlook.nodes.len(),
        };
        let primary = question.kinds.iter().position(Option::is_some).unwrap_or(0);
        let empty = NodeCapacity { idle: Amount::default(), most: Amount::ALL, closed: 0, workers: 0 };
        // All workers of a host where the whole gang is on one, and where a segment may have workers of several groups.
        let is_split = rule.required != Some(Level::Host) && question.spec.groups.len() == 1;
        let mut capacity = FreeCapacity {
            question,
            primary,
            wanted: question.wanted[primary],
            nodes: outlook.idle.iter().map(|idle| NodeCapacity { idle: *idle, ..empty }).collect(),
            parts: alloc::vec![0; if part_level.is_some() { count(part_level) } else { 0 }],
            domains: alloc::vec![0; count(rule.required)],
            part_level,
            domain_level: rule.required,
            host_unit: if is_split { rule.unit_in(Level::Host) } else { 1 },
            part_unit: part_level.map_or(1, |level| rule.unit_in(level)),
            part_most: rule.spread.map_or(u32::MAX, |spread| spread.workers_max),
            enough: Vec::new(),
        };
        for place in 0..capacity.nodes.len() {
            capacity.changes(place, |_| {});
        }
        capacity
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

    /// Whether nobody holds any of a host.
    fn is_unused(&self, place: usize) -> bool {
        self.nodes[place].idle.cpu_milli >= signed(self.question.outlook.nodes[place].spec.cpu_milli)
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

    /// What rules for single hosts leave of this many workers.
    fn limit(&self, place: usize, workers: u32) -> u32 {
        let spec = self.question.spec;
        if spec.groups[self.primary].slice.is_some() {
            // A slice needs its host empty.
            let node = &self.question.outlook.nodes[place];
            let is_whole = self.usable(place).devices >= i64::from(node.spec.device_count());
            return workers.min(u32::from(is_whole && node.spec.pod.is_some()));
        }
        self.in_whole_segments(self.limit_of_spread(workers))
    }

    /// As many workers of a host as make whole segments of one.
    fn in_whole_segments(&self, workers: u32) -> u32 {
        whole(workers, self.host_unit)
    }

    fn limit_of_spread(&self, workers: u32) -> u32 {
        match self.question.spec.topology.spread {
            Some(spread) if spread.level == Level::Host => workers.min(spread.workers_max),
            _ => workers,
        }
    }

    /// What rules for a part leave of the workers it holds.
    fn of_part(&self, workers: u32) -> u32 {
        whole(workers, self.part_unit).min(self.part_most)
    }

    fn part_limit(&self, part: usize) -> u32 {
        self.parts.get(part).map_or(u32::MAX, |workers| self.of_part(*workers))
    }

    /// Changes a node, and what its part and its domain have.
    fn changes(&mut self, place: usize, change: impl FnOnce(&mut NodeCapacity)) {
        change(&mut self.nodes[place]);
        let kind = self.question.kinds[self.primary];
        let before = self.nodes[place].workers;
        let now = if self.is_usable(place, kind) {
            let request = &self.question.spec.groups[self.primary].request;
            let host = &self.question.outlook.nodes[place].spec;
            self.limit(place, self.usable(place).workers_on(host, request))
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

    /// The domains with enough capacity for the first group, those with the least first.
    fn domains_with_enough(&self) -> Vec<usize> {
        let mut enough: Vec<(u64, usize)> =
            self.enough.iter().map(|domain| (self.domains[*domain], *domain)).collect();
        enough.sort_unstable();
        enough.truncate(DOMAINS_TRIED_MAX);
        enough.into_iter().map(|(_, domain)| domain).collect()
    }
}

/// As many workers as make whole units of this size.
fn whole(workers: u32, unit: u32) -> u32 {
    if unit == 1 { workers } else { workers / unit * unit }
}

/// See [`CapacityTimeline::others_like`].
pub(super) fn others_like(
    outlook: &CapacityTimeline,
    start: &Start,
    spec: &JobSpec,
    terms: &Terms<'_>,
    most: usize,
) -> Vec<(NodeId, Hold)> {
    let taken: Vec<usize> = start.nodes.iter().filter_map(|(id, _)| outlook.place(*id)).collect();
    let Some(first) = taken.first() else { return Vec::new() };
    let Some(question) = Question::new(outlook, spec, terms, outlook.nodes[*first].kind) else {
        return Vec::new();
    };
    let capacity = FreeCapacity::new(&question);
    // What others have booked is idle while they do not use it: it would be the first to be kept.
    let booked = question.booked_up_to(start.at);
    let group = &spec.groups[capacity.primary];
    let one = Amount::of_workers(&group.request, 1);
    let mut missing: BTreeMap<u32, Amount> = BTreeMap::new();
    let mut found: Vec<(i64, LogTime, NodeId, Hold)> = Vec::new();
    for (place, node) in outlook.nodes.iter().enumerate() {
        let is_open = capacity.is_usable(place, question.kinds[capacity.primary])
            && capacity.domain_of(place) == capacity.domain_of(*first)
            && !taken.contains(&place)
            && !booked[place];
        let whole = Amount {
            devices: i64::from(node.spec.device_count()),
            cpu_milli: signed(node.spec.cpu_milli),
            memory_bytes: signed(node.spec.memory_bytes),
            scratch_bytes: signed(node.spec.scratch_bytes),
        };
        let workers = whole.workers_on(&node.spec, &group.request).min(capacity.wanted);
        if !is_open || workers == 0 {
            continue;
        }
        let amount = Amount::of_workers_on(&node.spec, &group.request, capacity.limit_of_spread(workers));
        let lacks = amount.minus(outlook.idle[place]);
        if lacks.is_positive() {
            missing.insert(place as u32, lacks);
        }
        let left = whole.minus(amount);
        let hold = Reserved {
            owner: muster_types::JobId(0),
            at: outlook.now,
            from: outlook.now,
            node: place as u32,
            amount: one,
            spare: left,
            until: None,
        };
        found.push((lacks.devices.max(0), outlook.now, node.id, hold.hold()));
    }
    let mut free_at: BTreeMap<NodeId, LogTime> = BTreeMap::new();
    for release in outlook.releases.iter() {
        if let Some(rest) = missing.get_mut(&release.node) {
            *rest = rest.minus(release.amount);
            if !rest.is_positive() {
                missing.remove(&release.node);
                free_at.insert(outlook.nodes[release.node as usize].id, release.at);
            }
        }
    }
    for (_, at, id, _) in &mut found {
        *at = free_at.get(id).copied().unwrap_or(outlook.now);
    }
    found.sort_unstable_by_key(|(lacks, at, id, _)| (*lacks, *at, *id));
    found.into_iter().take(most).map(|(_, _, id, hold)| (id, hold)).collect()
}
