//! How close together and how far apart: blocks, racks, slices.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_state::{Rack, RackKey};
use muster_types::tpu::{Generation, PodPosition, SliceRequest};
use muster_types::{DeviceAmount, Level, Name, NodeId};

use crate::Spent;
use crate::fill::{Attempt, Scope, racks_of};
use crate::slices::{SliceVerdict, find_slices};

/// A rack and how many workers, or segments of workers, it has capacity for.
pub(crate) struct RackCapacity<'a> {
    pub(crate) key: &'a RackKey,
    pub(crate) rack: &'a Rack,
    pub(crate) capacity: u32,
    /// Whether the nodes were looked at; before that the capacity is what the counters allow at most.
    pub(crate) is_exact: bool,
}

/// A node of a rack with capacity for workers of a group.
pub(crate) struct RackNode {
    pub(crate) capacity: u32,
    pub(crate) node: NodeId,
    /// Whether the rack limits how many like it may be taken from: nobody uses it, and the rack keeps spare
    /// hosts.
    pub(crate) is_limited: bool,
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
        let is_split = !matches!(scope, Scope::Node(_)) && (rule.balanced || rule.has_segments());
        let placed = if is_split { self.fill_segments(scope)? } else { self.fill_groups(scope)? };
        if !placed {
            self.reset();
        }
        Ok(placed)
    }

    /// The place of the group that says which pool's counters are looked at: the first with devices.
    pub(crate) fn primary(&self) -> usize {
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
    pub(crate) fn rack_capacities(&self, group: usize, scope: Scope<'a>) -> Vec<RackCapacity<'a>> {
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
    pub(crate) fn next_rack(
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
    pub(crate) fn rack_nodes(
        &self,
        rack: &Rack,
        capacity: impl Fn(NodeId) -> u32,
    ) -> (Vec<RackNode>, Option<u32>) {
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

    pub(crate) fn capacity_in_rack(&self, rack: &Rack, capacity: impl Fn(NodeId) -> u32) -> u32 {
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
                // Of several hosts that say they are in one place the last to register is taken: the others are mostly gone.
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
