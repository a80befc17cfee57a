//! Segments: workers with consecutive ranks that stay together, level by level. And the even split over racks.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_state::{Rack, RackKey};
use muster_types::{AcceleratorRequest, DeviceAmount, Level, Name, NodeId, WorkerRequest};

use crate::Spent;
use crate::domains::{RackCapacity, RackNode};
use crate::fill::{Attempt, Scope};

/// Times that an even split is tried on counters before the nodes of every rack are looked at.
const GUESSES_MAX: u32 = 8;

/// Racks, each with the number of its parts: what has to be in one rack together.
type Parts<'a> = Vec<(&'a RackKey, u32)>;

/// How many workers go together at each level, and what each of them is counted as.
struct Units {
    /// Workers that a block has a multiple of.
    block: u32,
    /// Workers that a rack has a multiple of.
    rack: u32,
    /// Workers that a host has a multiple of.
    host: u32,
    /// A request that is at least that of every worker.
    envelope: WorkerRequest,
    /// The place of the group whose pool is looked at.
    primary: usize,
}

/// A block and how many of the outermost segments it has capacity for.
struct BlockCapacity<'a> {
    name: &'a Name,
    racks: Vec<RackCapacity<'a>>,
    capacity: u32,
    /// Whether the nodes of all its racks were looked at.
    is_exact: bool,
}

impl BlockCapacity<'_> {
    /// Sums what the racks have; a segment of the block is `each` parts of racks.
    fn count(&mut self, each: u32) {
        let parts = self.racks.iter().map(|rack| rack.capacity).fold(0, u32::saturating_add);
        self.capacity = parts / each.max(1);
    }
}

/// The next worker by rank: ranks run through the groups in order.
struct NextRank {
    group: usize,
    left_of_group: u32,
}

impl<'a> Attempt<'a, '_> {
    /// Whole segments to the domains of their levels, the outermost first. Balanced: over the fewest racks that can have
    /// equal parts, or parts that differ by one segment, the racks with the least capacity first. Otherwise like
    /// workers to racks.
    ///
    /// Whether a gang of one group fits is exact: as each size divides the one outside it, a domain holds what its parts
    /// hold in whole segments, and no choice among them leaves less for the others.
    pub(crate) fn fill_segments(&mut self, scope: Scope<'a>) -> Result<bool, Spent> {
        let spec = self.spec;
        let rule = &spec.topology;
        let workers: u32 = self.wanted.iter().sum();
        if !workers.is_multiple_of(rule.segment_unit()) {
            return Ok(false);
        }
        let Some(units) = self.units() else { return Ok(false) };
        let mut racks = self.segment_rooms(&units, scope);
        let parts = if rule.balanced {
            self.balanced_parts(&mut racks, workers / units.rack, &units)?
        } else if units.block > units.rack {
            self.block_parts(racks, workers / units.block, &units)?
        } else {
            self.greedy_parts(racks, workers / units.rack, &units)?
        };
        let Some(mut parts) = parts else { return Ok(false) };
        parts.sort_unstable_by_key(|(key, _)| *key);
        self.fill_parts(&parts, &units)
    }

    /// None when groups need different types.
    fn units(&self) -> Option<Units> {
        let rule = &self.spec.topology;
        Some(Units {
            block: rule.unit_in(Level::Block),
            rack: rule.unit_in(Level::Rack),
            host: rule.unit_in(Level::Host),
            envelope: self.envelope()?,
            primary: self.primary(),
        })
    }

    /// How many segments of a level have a place now, each in one domain of it, with the segments within them. None when
    /// groups need different types.
    pub(crate) fn segments_that_fit(&self, level: Level) -> Option<u64> {
        let units = self.units()?;
        let (_, pool) = self.site.pools_of_group(units.primary).first()?;
        let mut by_block: BTreeMap<&Name, u64> = BTreeMap::new();
        for (key, rack) in pool.racks.iter() {
            let parts = match level {
                Level::Host => {
                    self.capacity_in_rack(rack, |node| self.host_capacity(&units, node)) / units.host
                }
                Level::Rack | Level::Block => self.segment_capacity(&units, rack),
            };
            *by_block.entry(&key.block).or_default() += u64::from(parts);
        }
        let each = if level == Level::Block { u64::from(units.block / units.rack) } else { 1 };
        Some(by_block.values().map(|parts| parts / each).sum())
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
            envelope.scratch_bytes = envelope.scratch_bytes.max(group.request.scratch_bytes);
            if let (Some(most), Some(own)) = (&mut envelope.accelerators, &group.request.accelerators) {
                most.amount = larger(most, own);
            }
        }
        Some(envelope)
    }

    /// The racks of a scope that have capacity for a part by their counters, and for how many.
    fn segment_rooms(&self, units: &Units, scope: Scope<'a>) -> Vec<RackCapacity<'a>> {
        let envelope = &units.envelope;
        let per_part = u64::from(envelope.device_count()) * u64::from(units.rack);
        let is_whole =
            matches!(envelope.accelerators.as_ref().map(|a| a.amount), Some(DeviceAmount::Whole(_)));
        let mut racks = self.rack_capacities(units.primary, scope);
        for rack in &mut racks {
            let by_idle = rack.rack.idle_devices / per_part.max(1);
            rack.capacity = if is_whole { u32::try_from(by_idle).unwrap_or(u32::MAX) } else { u32::MAX };
        }
        racks.retain(|rack| rack.capacity > 0);
        racks
    }

    /// How many workers a host has capacity for, in whole segments of a host, should every one be like the largest.
    fn host_capacity(&self, units: &Units, node: NodeId) -> u32 {
        let of_group = self.capacity(units.primary, node);
        let is_same = self.spec.groups[units.primary].request == units.envelope;
        let workers =
            if is_same { of_group } else { of_group.min(self.row(node).offer().workers(&units.envelope)) };
        workers / units.host * units.host
    }

    /// How many parts a rack has capacity for.
    fn segment_capacity(&self, units: &Units, rack: &Rack) -> u32 {
        self.capacity_in_rack(rack, |node| self.host_capacity(units, node)) / units.rack
    }

    /// Looks at the nodes of a rack of which only the counters are known.
    fn look_at_rack(&mut self, rack: &mut RackCapacity<'a>, units: &Units) -> Result<(), Spent> {
        if rack.is_exact {
            return Ok(());
        }
        for _ in 0..rack.rack.by_idle.size() {
            self.budget.spend()?;
        }
        (rack.capacity, rack.is_exact) = (self.segment_capacity(units, rack.rack), true);
        Ok(())
    }

    /// How many parts go to each rack chosen; none when there is not enough capacity for all.
    fn greedy_parts(
        &mut self,
        mut racks: Vec<RackCapacity<'a>>,
        wanted: u32,
        units: &Units,
    ) -> Result<Option<Parts<'a>>, Spent> {
        let mut parts = Vec::new();
        let mut rest = wanted;
        while rest > 0 {
            let exact = |attempt: &Attempt<'a, '_>, rack: &Rack| attempt.segment_capacity(units, rack);
            let Some(at) = self.next_rack(&mut racks, rest, &exact)? else {
                self.most_placed = self.most_placed.max((wanted - rest) * units.rack);
                return Ok(None);
            };
            let chosen = racks.swap_remove(at);
            let part = chosen.capacity.min(rest);
            parts.push((chosen.key, part));
            rest -= part;
        }
        Ok(Some(parts))
    }

    /// The same for segments of blocks: the block with the least capacity that holds all the rest, else the one with the
    /// most.
    fn block_parts(
        &mut self,
        racks: Vec<RackCapacity<'a>>,
        segments: u32,
        units: &Units,
    ) -> Result<Option<Parts<'a>>, Spent> {
        let each = units.block / units.rack;
        let mut blocks: Vec<BlockCapacity<'a>> = Vec::new();
        for rack in racks {
            match blocks.last_mut() {
                Some(block) if *block.name == rack.key.block => block.racks.push(rack),
                _ => {
                    let name = &rack.key.block;
                    let racks = alloc::vec![rack];
                    blocks.push(BlockCapacity { name, racks, capacity: 0, is_exact: false });
                }
            }
        }
        blocks.iter_mut().for_each(|block| block.count(each));
        let mut parts = Vec::new();
        let mut rest = segments;
        while rest > 0 {
            let Some(at) = self.next_block(&mut blocks, rest, units)? else {
                self.most_placed = self.most_placed.max((segments - rest) * units.block);
                return Ok(None);
            };
            let chosen = blocks.swap_remove(at);
            let part = chosen.capacity.min(rest);
            let Some(inside) = self.greedy_parts(chosen.racks, part * each, units)? else {
                return Ok(None);
            };
            parts.extend(inside);
            rest -= part;
        }
        Ok(Some(parts))
    }

    /// The block with the least capacity for all the rest, else with the most capacity. Looks at the nodes of a block only
    /// when the counters of its racks make it the choice.
    fn next_block(
        &mut self,
        blocks: &mut [BlockCapacity<'a>],
        rest: u32,
        units: &Units,
    ) -> Result<Option<usize>, Spent> {
        loop {
            let holds_all = (0..blocks.len()).filter(|at| blocks[*at].capacity >= rest);
            let tightest = holds_all.min_by_key(|at| (blocks[*at].capacity, blocks[*at].name));
            let widest =
                || (0..blocks.len()).min_by_key(|at| (u32::MAX - blocks[*at].capacity, blocks[*at].name));
            let Some(at) = tightest.or_else(widest) else { return Ok(None) };
            let chosen = &mut blocks[at];
            if chosen.is_exact {
                return Ok((chosen.capacity > 0).then_some(at));
            }
            for rack in &mut chosen.racks {
                self.look_at_rack(rack, units)?;
            }
            chosen.is_exact = true;
            chosen.count(units.block / units.rack);
        }
    }

    /// Parts over the fewest racks with even numbers of them.
    fn balanced_parts(
        &mut self,
        racks: &mut [RackCapacity<'a>],
        segments: u32,
        units: &Units,
    ) -> Result<Option<Parts<'a>>, Spent> {
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
                    let by_counters = rack.capacity;
                    self.look_at_rack(rack, units)?;
                    is_sure &= rack.capacity == by_counters;
                }
                if is_sure {
                    return Ok(Some(parts.into_iter().map(|(at, part)| (racks[at].key, part)).collect()));
                }
            }
        }
        Ok(None)
    }

    /// The gang by rank into racks, each with its number of parts.
    fn fill_parts(&mut self, parts: &[(&'a RackKey, u32)], units: &Units) -> Result<bool, Spent> {
        let mut next = NextRank { group: 0, left_of_group: self.wanted.first().copied().unwrap_or(0) };
        for (key, count) in parts {
            let workers = count * units.rack;
            if units.host == 1 {
                if !self.fill_by_rank(&mut next, workers, Scope::Rack(key))? {
                    return Ok(false);
                }
                continue;
            }
            let Some(hosts) = self.host_parts(key, workers, units)? else { return Ok(false) };
            for (node, workers) in hosts {
                if !self.fill_by_rank(&mut next, workers, Scope::Node(node))? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The next workers by rank into a rack, or on a host.
    fn fill_by_rank(&mut self, next: &mut NextRank, workers: u32, scope: Scope<'a>) -> Result<bool, Spent> {
        let mut left = workers;
        while left > 0 {
            while next.left_of_group == 0 {
                next.group += 1;
                let Some(wanted) = self.wanted.get(next.group) else { return Ok(false) };
                next.left_of_group = *wanted;
            }
            let part = left.min(next.left_of_group);
            let over = match scope {
                Scope::Rack(key) => self.fill_rack(next.group, part, key)?,
                _ => self.fill_together(next.group, part, scope)?,
            };
            if over > 0 {
                return Ok(false);
            }
            left -= part;
            next.left_of_group -= part;
        }
        Ok(true)
    }

    /// Workers of a rack in whole segments of hosts: the fullest host that holds all the rest, else the one with the most
    /// capacity.
    fn host_parts(
        &mut self,
        key: &RackKey,
        workers: u32,
        units: &Units,
    ) -> Result<Option<Vec<(NodeId, u32)>>, Spent> {
        let site = self.site;
        let pool = site.pools_of_group(units.primary).first();
        let Some(rack) = pool.and_then(|(_, pool)| pool.racks.get(key)) else { return Ok(None) };
        let (mut nodes, mut most) = self.rack_nodes(rack, |node| self.host_capacity(units, node));
        let mut parts = Vec::new();
        let mut rest = workers;
        while rest > 0 && !nodes.is_empty() {
            self.budget.spend()?;
            let usable = |at: &usize| !nodes[*at].is_limited || most != Some(0);
            // Nodes come fullest first, so the first of equals is the fullest.
            let best = (0..nodes.len()).filter(usable).find(|at| nodes[*at].capacity >= rest);
            let widest = || (0..nodes.len()).filter(usable).min_by_key(|at| u32::MAX - nodes[*at].capacity);
            let Some(at) = best.or_else(widest) else { break };
            let RackNode { node, capacity, is_limited } = nodes.remove(at);
            let part = capacity.min(rest);
            parts.push((node, part));
            rest -= part;
            if is_limited {
                most = most.map(|most| most.saturating_sub(1));
            }
        }
        parts.sort_unstable();
        Ok((rest == 0).then_some(parts))
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
