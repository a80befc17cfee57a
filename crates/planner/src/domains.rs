//! How close together and how far apart: blocks, racks, segments, slices.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_state::{Rack, RackKey};
use muster_types::tpu::{Generation, PodPosition, SliceRequest};
use muster_types::{AcceleratorRequest, DeviceAmount, Level, Name, NodeId, WorkerRequest};

use crate::Spent;
use crate::fill::{Attempt, Scope, racks_of};
use crate::slices::{SliceVerdict, find_slices};

/// Times that an even split is tried on counters before the nodes of every rack are looked at.
const GUESSES_MAX: u32 = 8;

/// A rack and how many workers, or segments of workers, it has capacity for.
struct RackCapacity<'a> {
    key: &'a RackKey,
    rack: &'a Rack,
    capacity: u32,
    /// Whether the nodes were looked at; before that the capacity is what the counters allow at most.
    is_exact: bool,
}

/// A node of a rack with capacity for workers of a group.
struct RackNode {
    capacity: u32,
    node: NodeId,
    /// Whether the rack limits how many like it may be taken from: nobody uses it, and the rack keeps spare
    /// hosts.
    is_limited: bool,
}

impl<'a> Attempt<'a, '_> {
    /// Places the whole gang as its topology rule says. False when that is not possible.
    pub(crate) fn arrange(&mut self) -> Result<bool, Spent> {
        let rule = &self.spec.topology;
        if rule.is_free() {
            return self.fill_groups(Scope::Cluster);
        }
        match rule.required {
            None => self.arrange_near(Scope::Cluster),
            Some(level) => self.arrange_in_domain_of(level, Scope::Cluster, true),
        }
    }

    /// In one domain of a level inside a scope, the one with the least free capacity that suffices.
    fn arrange_in_domain_of(&mut self, level: Level, outer: Scope<'a>, near: bool) -> Result<bool, Spent> {
        for domain in self.domains(level, outer) {
            self.budget.spend()?;
            let placed = if near { self.arrange_near(domain)? } else { self.arrange_in(domain)? };
            if placed {
                return Ok(true);
            }
            self.reset();
        }
        if level == Level::Host { self.arrange_on_host(outer) } else { Ok(false) }
    }

    /// As close together as preferred inside a scope; further apart level by level where it must be.
    fn arrange_near(&mut self, scope: Scope<'a>) -> Result<bool, Spent> {
        let Some(preferred) = self.spec.topology.preferred else { return self.arrange_in(scope) };
        for level in Level::ALL.into_iter().rev().filter(|level| *level <= preferred) {
            let is_inside = match scope {
                Scope::Cluster => true,
                Scope::Block(_) => level > Level::Block,
                Scope::Rack(_) => level > Level::Rack,
                Scope::Node(_) => false,
            };
            if is_inside && self.arrange_in_domain_of(level, scope, false)? {
                return Ok(true);
            }
        }
        self.arrange_in(scope)
    }

    fn arrange_in(&mut self, scope: Scope<'a>) -> Result<bool, Spent> {
        let rule = &self.spec.topology;
        // On one host nothing is apart.
        let is_split = !matches!(scope, Scope::Node(_)) && (rule.balanced || rule.segment_workers > 0);
        let placed = if is_split { self.fill_segments(scope)? } else { self.fill_groups(scope)? };
        if !placed {
            self.reset();
        }
        Ok(placed)
    }

    /// The place of the group that says which pool's counters are looked at: the first with devices.
    fn primary(&self) -> usize {
        let groups = &self.spec.groups;
        groups.iter().position(|group| group.request.accelerators.is_some()).unwrap_or(0)
    }

    /// Whole devices that all groups in the primary's pool need together.
    fn idle_needed(&self) -> u64 {
        let pool = self.site.pool_of[self.primary()];
        let groups = self.spec.groups.iter().zip(&self.wanted).zip(&self.site.pool_of);
        let of_pool = groups.filter(|(_, of)| **of == pool);
        of_pool
            .map(|((group, wanted), _)| match group.request.accelerators.as_ref().map(|a| a.amount) {
                Some(DeviceAmount::Whole(count)) => u64::from(*wanted) * u64::from(count),
                Some(DeviceAmount::Share(_)) | None => 0,
            })
            .sum()
    }

    /// The domains of a level in a scope that counters leave open, the least idle first, then by name.
    /// Hosts are not listed.
    fn domains(&self, level: Level, outer: Scope<'a>) -> Vec<Scope<'a>> {
        let need = self.idle_needed();
        let pools = self.site.pools_of_group(self.primary());
        let mut blocks: BTreeMap<&'a Name, u64> = BTreeMap::new();
        let mut racks: Vec<(u64, &'a RackKey)> = Vec::new();
        for (_, pool) in pools {
            for (key, rack) in pool.racks.iter() {
                if let Scope::Block(block) = outer
                    && key.block != *block
                {
                    continue;
                }
                match level {
                    Level::Block => *blocks.entry(&key.block).or_default() += rack.idle_devices,
                    Level::Rack if rack.idle_devices >= need => racks.push((rack.idle_devices, key)),
                    Level::Rack | Level::Host => {}
                }
            }
        }
        if level == Level::Block {
            let mut blocks: Vec<(u64, &Name)> = blocks
                .into_iter()
                .filter(|(_, idle)| *idle >= need)
                .map(|(name, idle)| (idle, name))
                .collect();
            blocks.sort_unstable();
            return blocks.into_iter().map(|(_, name)| Scope::Block(name)).collect();
        }
        racks.sort_unstable();
        racks.dedup_by_key(|(_, key)| *key);
        racks.into_iter().map(|(_, key)| Scope::Rack(key)).collect()
    }

    /// The whole gang on one host, the fullest that holds it.
    fn arrange_on_host(&mut self, outer: Scope<'a>) -> Result<bool, Spent> {
        let need = self.idle_needed();
        for (_, pool) in self.site.pools_of_group(self.primary()) {
            let Ok(idle) = u16::try_from(need) else { return Ok(false) };
            let from = (muster_state::FreeKey::first_with(idle), NodeId(0));
            for (_, node) in pool.by_free.range(from..) {
                self.budget.spend()?;
                if !crate::fill::is_within(&self.row(*node).spec, *node, outer) {
                    continue;
                }
                if self.capacity(self.primary(), *node) >= self.wanted[self.primary()]
                    && self.arrange_in(Scope::Node(*node))?
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Workers of one group over the blocks of the cluster: the block with the least free capacity
    /// that holds all the rest, else the one with the most.
    pub(crate) fn blocks_first(&mut self, group: usize, mut rest: u32) -> Result<u32, Spent> {
        let Some((_, pool)) = self.site.pools_of_group(group).first() else { return Ok(rest) };
        let count = u64::from(self.spec.groups[group].request.device_count().max(1));
        let is_whole = self.is_whole(group);
        let mut blocks: Vec<(u64, &'a Name)> = Vec::new();
        for (key, rack) in pool.racks.iter() {
            match blocks.last_mut() {
                Some((idle, block)) if **block == key.block => *idle += rack.idle_devices,
                _ => blocks.push((rack.idle_devices, &key.block)),
            }
        }
        while rest > 0 && !blocks.is_empty() {
            let enough = |idle: u64| is_whole && idle / count >= u64::from(rest);
            let tightest = (0..blocks.len()).filter(|at| enough(blocks[*at].0)).min_by_key(|at| blocks[*at]);
            // The last maximum of the reverse is the first by name.
            let widest = || (0..blocks.len()).rev().max_by_key(|at| blocks[*at].0);
            let Some(at) = tightest.or_else(widest) else { break };
            let (_, block) = blocks.remove(at);
            rest = self.racks_first(group, rest, Scope::Block(block))?;
        }
        Ok(rest)
    }

    fn is_whole(&self, group: usize) -> bool {
        let request = &self.spec.groups[group].request;
        matches!(request.accelerators.as_ref().map(|a| a.amount), Some(DeviceAmount::Whole(_)))
    }

    /// Workers of one group over the racks of a scope: the rack with the least free capacity that
    /// holds all the rest, else the one with the most.
    pub(crate) fn racks_first(
        &mut self,
        group: usize,
        mut rest: u32,
        scope: Scope<'a>,
    ) -> Result<u32, Spent> {
        let mut racks = self.rack_capacities(group, scope);
        while rest > 0 {
            let exact = |attempt: &Attempt<'a, '_>, rack: &Rack| attempt.rack_capacity(group, rack);
            let Some(at) = self.next_rack(&mut racks, rest, &exact)? else { break };
            let chosen = racks.swap_remove(at);
            rest = self.fill_rack(group, rest, chosen.key)?;
        }
        Ok(rest)
    }

    /// The racks of a scope that have any free capacity by their counters.
    fn rack_capacities(&self, group: usize, scope: Scope<'a>) -> Vec<RackCapacity<'a>> {
        let count = u64::from(self.spec.groups[group].request.device_count().max(1));
        let is_whole = self.is_whole(group);
        let capacity = |rack: &Rack| {
            if is_whole { u32::try_from(rack.idle_devices / count).unwrap_or(u32::MAX) } else { u32::MAX }
        };
        let mut found = Vec::new();
        let mut add = |key: &'a RackKey, rack: &'a Rack| {
            let capacity = capacity(rack);
            if capacity > 0 {
                found.push(RackCapacity { key, rack, capacity, is_exact: false });
            }
        };
        let Some((_, pool)) = self.site.pools_of_group(group).first() else { return found };
        match scope {
            Scope::Cluster => pool.racks.iter().for_each(|(key, rack)| add(key, rack)),
            Scope::Block(block) => racks_of(pool, block).for_each(|(key, rack)| add(key, rack)),
            Scope::Rack(key) => {
                if let Some(rack) = pool.racks.get(key) {
                    add(key, rack);
                }
            }
            Scope::Node(_) => {}
        }
        found
    }

    /// The rack with the least capacity for all the rest, else with the most capacity. Looks at the nodes of
    /// a rack only when its counters make it the choice.
    fn next_rack(
        &mut self,
        racks: &mut [RackCapacity<'a>],
        rest: u32,
        exact: &dyn Fn(&Attempt<'a, '_>, &Rack) -> u32,
    ) -> Result<Option<usize>, Spent> {
        loop {
            let holds_all = (0..racks.len()).filter(|at| racks[*at].capacity >= rest);
            let tightest = holds_all.min_by_key(|at| (racks[*at].capacity, racks[*at].key));
            let widest =
                || (0..racks.len()).min_by_key(|at| (u32::MAX - racks[*at].capacity, racks[*at].key));
            let Some(at) = tightest.or_else(widest) else { return Ok(None) };
            let chosen = &mut racks[at];
            if chosen.is_exact {
                return Ok((chosen.capacity > 0).then_some(at));
            }
            for _ in 0..chosen.rack.by_idle.size() {
                self.budget.spend()?;
            }
            let capacity = exact(self, chosen.rack);
            (chosen.capacity, chosen.is_exact) = (capacity, true);
        }
    }

    /// Nodes of a rack with free capacity, fullest first, and how many of those that nobody uses the gang may
    /// take from; none for all.
    fn rack_nodes(&self, rack: &Rack, capacity: impl Fn(NodeId) -> u32) -> (Vec<RackNode>, Option<u32>) {
        let mut nodes = Vec::with_capacity(rack.by_idle.size());
        let mut most = None;
        for (_, node) in rack.by_idle.iter() {
            let capacity = capacity(*node);
            if capacity == 0 {
                continue;
            }
            let left = if self.is_touched(*node) { None } else { self.unused_hosts_left(self.row(*node)) };
            most = most.or(left);
            nodes.push(RackNode { capacity, node: *node, is_limited: left.is_some() });
        }
        (nodes, most)
    }

    /// How many workers of a group a rack has capacity for.
    fn rack_capacity(&self, group: usize, rack: &Rack) -> u32 {
        self.capacity_in_rack(rack, |node| self.capacity(group, node))
    }

    fn capacity_in_rack(&self, rack: &Rack, capacity: impl Fn(NodeId) -> u32) -> u32 {
        let (nodes, most) = self.rack_nodes(rack, capacity);
        let (mut limited, open): (Vec<RackNode>, Vec<RackNode>) =
            nodes.into_iter().partition(|node| node.is_limited);
        limited.sort_by_key(|node| u32::MAX - node.capacity);
        limited.truncate(most.map_or(usize::MAX, |most| most as usize));
        open.iter().chain(&limited).map(|node| node.capacity).fold(0, u32::saturating_add)
    }

    /// Workers of one group in one rack: the fullest node that holds all the rest, else the one with the
    /// most capacity.
    pub(crate) fn fill_rack(&mut self, group: usize, mut rest: u32, key: &'a RackKey) -> Result<u32, Spent> {
        let site = self.site;
        for (_, pool) in site.pools_of_group(group) {
            let Some(rack) = pool.racks.get(key) else { continue };
            let (mut nodes, mut most) = self.rack_nodes(rack, |node| self.capacity(group, node));
            while rest > 0 && !nodes.is_empty() {
                self.budget.spend()?;
                let usable = |at: &usize| !nodes[*at].is_limited || most != Some(0);
                // Nodes come fullest first, so the first of equals is the fullest.
                let best = (0..nodes.len()).filter(usable).find(|at| nodes[*at].capacity >= rest);
                let widest =
                    || (0..nodes.len()).filter(usable).min_by_key(|at| u32::MAX - nodes[*at].capacity);
                let Some(at) = best.or_else(widest) else { break };
                let RackNode { node, is_limited, .. } = nodes.remove(at);
                let taken = self.take(group, node, rest);
                rest -= taken;
                if is_limited && taken > 0 {
                    most = most.map(|most| most.saturating_sub(1));
                }
            }
        }
        Ok(rest)
    }

    /// Workers of one group with a limit on how many are in any domain.
    pub(crate) fn fill_spread(
        &mut self,
        group: usize,
        mut rest: u32,
        scope: Scope<'a>,
        level: Level,
    ) -> Result<u32, Spent> {
        let most = self.spec.topology.spread.map_or(u32::MAX, |spread| spread.workers_max);
        // The limit per host is in the capacity of every node.
        let is_in_one = match (level, scope) {
            (Level::Host, _) => return self.fullest_first(group, rest, scope),
            (Level::Rack, Scope::Rack(_) | Scope::Node(_)) => true,
            (Level::Block, Scope::Block(_) | Scope::Rack(_) | Scope::Node(_)) => true,
            _ => false,
        };
        if is_in_one {
            let allowed = most.saturating_sub(self.workers_in(scope)).min(rest);
            return Ok(rest - allowed + self.fullest_first(group, allowed, scope)?);
        }
        for domain in self.spread_domains(group, level, scope) {
            if rest == 0 {
                break;
            }
            self.budget.spend()?;
            let there = if self.spec.groups.len() > 1 { self.workers_in(domain) } else { 0 };
            let allowed = most.saturating_sub(there).min(rest);
            rest -= allowed - self.fullest_first(group, allowed, domain)?;
        }
        Ok(rest)
    }

    /// The domains that workers of a group may be spread over, the least idle first.
    fn spread_domains(&self, group: usize, level: Level, scope: Scope<'a>) -> Vec<Scope<'a>> {
        let mut blocks: BTreeMap<&'a Name, u64> = BTreeMap::new();
        let mut racks: BTreeMap<&'a RackKey, u64> = BTreeMap::new();
        for (_, pool) in self.site.pools_of_group(group) {
            for (key, rack) in pool.racks.iter() {
                if let Scope::Block(block) = scope
                    && key.block != *block
                {
                    continue;
                }
                match level {
                    Level::Block => *blocks.entry(&key.block).or_default() += rack.idle_devices,
                    Level::Rack | Level::Host => *racks.entry(key).or_default() += rack.idle_devices,
                }
            }
        }
        let mut found: Vec<(u64, Scope<'a>)> = Vec::new();
        found.extend(blocks.into_iter().map(|(block, idle)| (idle, Scope::Block(block))));
        found.extend(racks.into_iter().map(|(key, idle)| (idle, Scope::Rack(key))));
        // Stable, so that equals stay in the order of their names.
        found.sort_by_key(|(idle, _)| *idle);
        found.into_iter().map(|(_, domain)| domain).collect()
    }
}

/// Segments, and the even split.
impl<'a> Attempt<'a, '_> {
    /// Whole segments to racks. Balanced: over the fewest racks that can have equal parts, or parts that
    /// differ by one segment, the racks with the least capacity first. Otherwise like workers to racks.
    fn fill_segments(&mut self, scope: Scope<'a>) -> Result<bool, Spent> {
        let rule = &self.spec.topology;
        let unit = rule.segment_workers.max(1);
        let workers: u32 = self.wanted.iter().sum();
        if !workers.is_multiple_of(unit) {
            return Ok(false);
        }
        let segments = workers / unit;
        let Some(envelope) = self.envelope() else { return Ok(false) };
        let primary = self.primary();
        let mut racks = self.segment_rooms(&envelope, primary, unit, scope);
        let parts = if rule.balanced {
            self.balanced_parts(&mut racks, segments, &envelope, unit)?
        } else {
            self.greedy_parts(racks, segments, &envelope, unit)?
        };
        let Some(mut parts) = parts else { return Ok(false) };
        parts.sort_unstable_by_key(|(key, _)| *key);
        self.fill_parts(&parts, unit)
    }

    /// A request that is at least that of every worker; none when groups need different types.
    fn envelope(&self) -> Option<WorkerRequest> {
        let primary = self.primary();
        let pool = self.site.pool_of[primary];
        let mut envelope = self.spec.groups[primary].request.clone();
        for (group, of) in self.spec.groups.iter().zip(&self.site.pool_of) {
            if of.is_some() && *of != pool {
                return None;
            }
            envelope.cpu_milli = envelope.cpu_milli.max(group.request.cpu_milli);
            envelope.memory_bytes = envelope.memory_bytes.max(group.request.memory_bytes);
            if let (Some(most), Some(own)) = (&mut envelope.accelerators, &group.request.accelerators) {
                most.amount = larger(most, own);
            }
        }
        Some(envelope)
    }

    fn segment_rooms(
        &self,
        envelope: &WorkerRequest,
        primary: usize,
        unit: u32,
        scope: Scope<'a>,
    ) -> Vec<RackCapacity<'a>> {
        let per_segment = u64::from(envelope.device_count()) * u64::from(unit);
        let is_whole =
            matches!(envelope.accelerators.as_ref().map(|a| a.amount), Some(DeviceAmount::Whole(_)));
        let mut racks = self.rack_capacities(primary, scope);
        for rack in &mut racks {
            let by_idle = rack.rack.idle_devices / per_segment.max(1);
            rack.capacity = if is_whole { u32::try_from(by_idle).unwrap_or(u32::MAX) } else { u32::MAX };
        }
        racks.retain(|rack| rack.capacity > 0);
        racks
    }

    /// How many segments a rack has capacity for, should every worker be like the largest.
    fn segment_capacity(&self, envelope: &WorkerRequest, unit: u32, rack: &Rack) -> u32 {
        let primary = self.primary();
        let of_group = |node: NodeId| self.capacity(primary, node);
        let of_largest = |node: NodeId| of_group(node).min(self.row(node).offer().workers(envelope));
        let is_same = self.spec.groups[primary].request == *envelope;
        let capacity = if is_same {
            self.capacity_in_rack(rack, of_group)
        } else {
            self.capacity_in_rack(rack, of_largest)
        };
        capacity / unit
    }

    /// How many segments go to each rack chosen; none when there is not enough capacity for all.
    fn greedy_parts(
        &mut self,
        mut racks: Vec<RackCapacity<'a>>,
        segments: u32,
        envelope: &WorkerRequest,
        unit: u32,
    ) -> Result<Option<Vec<(&'a RackKey, u32)>>, Spent> {
        let mut parts = Vec::new();
        let mut rest = segments;
        while rest > 0 {
            let exact =
                |attempt: &Attempt<'a, '_>, rack: &Rack| attempt.segment_capacity(envelope, unit, rack);
            let Some(at) = self.next_rack(&mut racks, rest, &exact)? else {
                self.most_placed = self.most_placed.max((segments - rest) * unit);
                return Ok(None);
            };
            let chosen = racks.swap_remove(at);
            let part = chosen.capacity.min(rest);
            parts.push((chosen.key, part));
            rest -= part;
        }
        Ok(Some(parts))
    }

    /// The same over the fewest racks with even parts.
    fn balanced_parts(
        &mut self,
        racks: &mut Vec<RackCapacity<'a>>,
        segments: u32,
        envelope: &WorkerRequest,
        unit: u32,
    ) -> Result<Option<Vec<(&'a RackKey, u32)>>, Spent> {
        let most = u32::try_from(racks.len()).unwrap_or(u32::MAX).min(segments);
        let widest = racks.iter().map(|rack| rack.capacity).max().unwrap_or(0);
        if widest == 0 {
            return Ok(None);
        }
        for count in segments.div_ceil(widest)..=most {
            for round in 0.. {
                racks.sort_unstable_by_key(|rack| (rack.capacity, rack.key));
                let Some(parts) = even_parts(racks, segments, count) else { break };
                let mut is_sure = true;
                for (at, rack) in racks.iter_mut().enumerate() {
                    let concerned = round >= GUESSES_MAX || parts.iter().any(|(taken, _)| *taken == at);
                    if rack.is_exact || !concerned {
                        continue;
                    }
                    for _ in 0..rack.rack.by_idle.size() {
                        self.budget.spend()?;
                    }
                    let exact = self.segment_capacity(envelope, unit, rack.rack);
                    is_sure &= exact == rack.capacity;
                    (rack.capacity, rack.is_exact) = (exact, true);
                }
                if is_sure {
                    return Ok(Some(parts.into_iter().map(|(at, part)| (racks[at].key, part)).collect()));
                }
            }
        }
        Ok(None)
    }

    /// The gang by rank into racks, each with its number of segments.
    fn fill_parts(&mut self, parts: &[(&'a RackKey, u32)], unit: u32) -> Result<bool, Spent> {
        let mut group = 0;
        let mut left_of_group = self.wanted.first().copied().unwrap_or(0);
        for (key, segments) in parts {
            let mut left = segments * unit;
            while left > 0 {
                while left_of_group == 0 {
                    group += 1;
                    let Some(wanted) = self.wanted.get(group) else { return Ok(false) };
                    left_of_group = *wanted;
                }
                let part = left.min(left_of_group);
                if self.fill_rack(group, part, key)? > 0 {
                    return Ok(false);
                }
                left -= part;
                left_of_group -= part;
            }
        }
        Ok(true)
    }
}

/// `segments` segments in `count` racks, as even as can be: places of racks, which come with the least
/// capacity first, and the segments of each. The larger parts choose first: their racks are harder to find.
fn even_parts(racks: &[RackCapacity<'_>], segments: u32, count: u32) -> Option<Vec<(usize, u32)>> {
    let (floor, larger) = (segments / count, (segments % count) as usize);
    let from = |part: u32| racks.partition_point(|rack| rack.capacity < part);
    let first_larger = from(floor + 1);
    let larger_end = first_larger + larger;
    if larger_end > racks.len() {
        return None;
    }
    let mut parts: Vec<(usize, u32)> = (first_larger..larger_end).map(|at| (at, floor + 1)).collect();
    let others = (from(floor)..racks.len()).filter(|at| !(first_larger..larger_end).contains(at));
    parts.extend(others.take(count as usize - larger).map(|at| (at, floor)));
    (parts.len() == count as usize).then_some(parts)
}

/// The larger of two amounts; a share counts less than a device.
fn larger(a: &AcceleratorRequest, b: &AcceleratorRequest) -> DeviceAmount {
    if a.amount.milli() >= b.amount.milli() { a.amount } else { b.amount }
}

/// Slices.
impl<'a> Attempt<'a, '_> {
    /// The slices of a group from the hosts of a scope that are free and whole; returns how many workers
    /// are left over.
    pub(crate) fn fill_slices(
        &mut self,
        group: usize,
        slice: &SliceRequest,
        scope: Scope<'a>,
    ) -> Result<u32, Spent> {
        let wanted = self.wanted[group];
        let site = self.site;
        let Some((key, pool)) = site.pools_of_group(group).first() else { return Ok(wanted) };
        let Some(generation) = key.kind.as_ref().and_then(|kind| Generation::of_kind(kind)) else {
            return Ok(wanted);
        };
        let each = self.spec.groups[group].request.device_count();
        let mut least_left = wanted;
        for chips in generation.chips_per_host() {
            if slice.workers(*chips) != Some(wanted) || slice.chips_per_worker(*chips) != each {
                continue;
            }
            let mut free: BTreeMap<PodPosition, NodeId> = BTreeMap::new();
            let mut opened: BTreeMap<(&Name, &Name), u32> = BTreeMap::new();
            for (position, node) in pool.idle_hosts.iter() {
                self.budget.spend()?;
                let row = self.row(*node);
                let is_open = row.spec.device_count() == *chips
                    && crate::fill::is_within(&row.spec, *node, scope)
                    && !self.is_touched(*node)
                    && self.capacity(group, *node) > 0;
                if !is_open {
                    continue;
                }
                if let Some(most) = self.unused_hosts_left(row) {
                    let opened = opened.entry((&row.spec.block, &row.spec.rack)).or_default();
                    if *opened >= most {
                        continue;
                    }
                    *opened += 1;
                }
                free.insert(position.clone(), *node);
            }
            match find_slices(generation, slice, *chips, &free, self.budget) {
                SliceVerdict::Fits(nodes) => {
                    let placed: u32 = nodes.iter().map(|node| self.take(group, *node, 1)).sum();
                    return Ok(wanted - placed.min(wanted));
                }
                SliceVerdict::Short(short) => {
                    let per_slice = wanted / u32::from(slice.count.max(1));
                    least_left =
                        least_left.min(wanted.saturating_sub(u32::from(short.slices_that_fit) * per_slice));
                }
                SliceVerdict::OutOfBudget => return Err(Spent),
            }
        }
        self.most_placed = self.most_placed.max(wanted - least_left);
        Ok(least_left.max(1))
    }
}
