//! Takes the workers of a gang from the nodes of one site.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;
use muster_journal::WorkerSlot;
use muster_state::{Free, FreeKey, NodeRow, Pool, PoolKey, RackKey, State, fit};
use muster_types::policy::Window;
use muster_types::{DeviceAmount, DeviceSet, JobSpec, Level, LogTime, Name, NodeId, WorkerRequest};

use crate::score::{self, KEYS_MAX};
use crate::sites::Site;
use crate::terms::{AffinityTerm, ClosedPlaces, Spare, Terms};
use crate::{Budget, Spent};

/// The part of a cluster that workers have to be in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    Cluster,
    Block(&'a Name),
    Rack(&'a RackKey),
    Node(NodeId),
}

/// A node as it is while a plan takes from it.
struct PlannedNode {
    free: Free,
    /// The part of it that the gang may have at most; none when nothing is kept for others.
    spare: Option<Spare>,
    /// Devices of which the gang has shares.
    shared: DeviceSet,
    /// Workers of the gang.
    workers: u32,
}

/// Hosts of one type in one rack: type, block and rack.
type RackOfKind<'a> = (&'a Name, &'a Name, &'a Name);

/// A worker of the plan.
#[derive(Clone, Copy, Debug)]
struct Pick {
    group: usize,
    node: NodeId,
    devices: DeviceSet,
}

/// A gang on its way into one site.
pub(crate) struct Attempt<'a, 'b> {
    pub(crate) state: &'a State,
    pub(crate) spec: &'a JobSpec,
    pub(crate) terms: &'a Terms<'a>,
    pub(crate) site: &'a Site<'a>,
    /// Workers to place, by group.
    pub(crate) wanted: Vec<u32>,
    pub(crate) budget: &'b mut Budget,
    /// When it is expected to end.
    end: LogTime,
    /// Windows of the cluster that are closed to it before its end, and nodes that bookings and other jobs close to it now.
    closed: ClosedPlaces<'a>,
    /// In boxes: most plans touch one node, and a node of the map holds many.
    touched: BTreeMap<NodeId, Box<PlannedNode>>,
    /// Hosts that nobody used before the plan took from them, by type and rack; counted where racks have spare hosts.
    opened: BTreeMap<RackOfKind<'a>, u32>,
    picks: Vec<Pick>,
    /// The most workers that were placed before an attempt was given up.
    pub(crate) most_placed: u32,
}

impl<'a, 'b> Attempt<'a, 'b> {
    pub(crate) fn new(
        state: &'a State,
        spec: &'a JobSpec,
        terms: &'a Terms<'a>,
        site: &'a Site<'a>,
        budget: &'b mut Budget,
    ) -> Attempt<'a, 'b> {
        let end = terms.end(spec, site.slowest_milli);
        Attempt {
            state,
            spec,
            terms,
            site,
            wanted: spec.groups.iter().map(|group| group.workers).collect(),
            budget,
            end,
            closed: closed_to(terms, end, site.region, site.cluster),
            touched: BTreeMap::new(),
            opened: BTreeMap::new(),
            picks: Vec::new(),
            most_placed: 0,
        }
    }

    /// Takes wishes about where other jobs are for what it asks.
    pub(crate) fn require(&mut self, wishes: &[&'a AffinityTerm<'a>]) {
        self.closed.require(wishes.iter().copied());
    }

    /// Forgets what was taken so far.
    pub(crate) fn reset(&mut self) {
        self.most_placed = self.most_placed.max(self.picks.len() as u32);
        self.touched.clear();
        self.opened.clear();
        self.picks.clear();
    }

    /// Places every group in a scope, groups with devices first, because workers without have more
    /// choice. False when one does not fit; then what was taken stays until [`Attempt::reset`].
    pub(crate) fn fill_groups(&mut self, scope: Scope<'a>) -> Result<bool, Spent> {
        for wants_devices in [true, false] {
            for group in 0..self.spec.groups.len() {
                if self.spec.groups[group].request.accelerators.is_some() != wants_devices {
                    continue;
                }
                let wanted = self.wanted[group];
                if self.fill(group, wanted, scope)? > 0 {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Places workers of one group; returns how many are left over.
    pub(crate) fn fill(&mut self, group: usize, rest: u32, scope: Scope<'a>) -> Result<u32, Spent> {
        let spec = self.spec;
        let group_spec = &spec.groups[group];
        if let Some(slice) = &group_spec.slice {
            return self.fill_slices(group, slice, scope);
        }
        if let Some(spread) = spec.topology.spread {
            return self.fill_spread(group, rest, scope, spread.level);
        }
        self.fill_together(group, rest, scope)
    }

    /// Places workers of one group as close together as it is simple.
    pub(crate) fn fill_together(&mut self, group: usize, rest: u32, scope: Scope<'a>) -> Result<u32, Spent> {
        if matches!(scope, Scope::Cluster) && self.spec.topology.is_free() {
            if let Some(names) = only_named(self.spec) {
                return self.fill_named(group, rest, names.iter());
            }
            if let Some(hosts) = self.closed.only_hosts(self.site.region, self.site.cluster) {
                return self.fill_named(group, rest, hosts.into_iter());
            }
        }
        let amount = self.spec.groups[group].request.accelerators.as_ref().map(|a| a.amount);
        match (scope, amount) {
            (Scope::Node(node), _) => Ok(rest - self.take(group, node, rest)),
            (Scope::Cluster, Some(_)) if self.spec.topology.is_free() => self.fill_cluster(group, rest),
            (Scope::Cluster, None) if self.spec.topology.is_free() => self.fullest_first(group, rest, scope),
            (Scope::Cluster, Some(_)) => self.blocks_first(group, rest),
            (Scope::Block(_), Some(_)) => self.racks_first(group, rest, scope),
            (Scope::Rack(rack), Some(_)) => self.fill_rack(group, rest, rack),
            (_, None) => self.fullest_first(group, rest, scope),
        }
    }

    /// Workers anywhere on nodes of which it is known that they are the only ones, without a look at others: all on the one
    /// with the least capacity that holds them; while none does, those with the most are filled.
    fn fill_named(
        &mut self,
        group: usize,
        mut rest: u32,
        names: impl Iterator<Item = &'a Name>,
    ) -> Result<u32, Spent> {
        let pools = self.site.pools_of_group(group);
        let mut holding: Vec<(u32, NodeId)> = Vec::new();
        for name in names {
            self.budget.spend()?;
            let Some(node) = self.state.node_named(name) else { continue };
            let row = self.row(node);
            let key = PoolKey::of(&row.spec);
            if row.is_placeable() && pools.iter().any(|(pool, _)| **pool == key) {
                holding.push((self.capacity(group, node), node));
            }
        }
        holding.retain(|(workers, _)| *workers > 0);
        holding.sort_unstable();
        while rest > 0 && !holding.is_empty() {
            let enough = holding.partition_point(|(workers, _)| *workers < rest);
            let (_, node) = holding.remove(enough.min(holding.len() - 1));
            rest -= self.take(group, node, rest);
        }
        Ok(rest)
    }

    /// Workers with devices anywhere in the cluster: all on one node, the best that holds them; while none
    /// does, the emptiest node is filled, or for shares of devices the fullest.
    fn fill_cluster(&mut self, group: usize, mut rest: u32) -> Result<u32, Spent> {
        let site = self.site;
        let request = &self.spec.groups[group].request;
        let is_share =
            matches!(request.accelerators.as_ref().map(|a| a.amount), Some(DeviceAmount::Share(_)));
        let Some((_, pool)) = site.pools_of_group(group).first() else { return Ok(rest) };
        if let Some(node) = self.best_node(group, rest, pool)? {
            rest -= self.take(group, node, rest);
        }
        if is_share && rest > 0 {
            return self.fullest_first(group, rest, Scope::Cluster);
        }
        let mut walk = EmptiestFirst::new(pool);
        while rest > 0 {
            let Some(node) = walk.next(request) else { return Ok(rest) };
            self.budget.spend()?;
            let taken = self.take(group, node, rest);
            rest -= taken;
            if rest == 0 || taken == 0 {
                continue;
            }
            if let Some(node) = self.best_node(group, rest, pool)? {
                rest -= self.take(group, node, rest);
            }
        }
        Ok(rest)
    }

    /// The node on which this many workers do the least harm to what is free. Nodes that are alike are
    /// looked at one by one only until one of them is open to the gang.
    fn best_node(&mut self, group: usize, workers: u32, pool: &'a Pool) -> Result<Option<NodeId>, Spent> {
        let request = &self.spec.groups[group].request;
        let Some(idle) = idle_needed(request, workers) else { return Ok(None) };
        let first_is_best = score::first_is_best(request);
        let mut best: Option<(u32, NodeId)> = None;
        let mut keys = 0;
        let mut from = Bound::Included((FreeKey::first_with(idle), NodeId(0)));
        loop {
            let mut nodes = pool.by_free.range((from, Bound::Unbounded));
            let Some((key, first)) = nodes.next() else { break };
            self.budget.spend()?;
            if key.workers(request) >= workers {
                let harm = score::fragmentation(key, request, workers);
                let alike = nodes.take_while(|(other, _)| other == key).map(|(_, node)| *node);
                let alike = core::iter::once(*first).chain(alike);
                if best.is_none_or(|(least, _)| harm < least)
                    && let Some(node) = self.first_of(group, workers, alike)?
                {
                    best = Some((harm, node));
                    if harm == 0 || first_is_best {
                        break;
                    }
                }
            }
            keys += 1;
            if keys >= KEYS_MAX && best.is_some() {
                break;
            }
            from = Bound::Excluded((key.clone(), NodeId(u32::MAX)));
        }
        Ok(best.map(|(_, node)| node))
    }

    /// The first of the nodes that are alike which has capacity for this many workers.
    pub(crate) fn first_open(
        &mut self,
        group: usize,
        workers: u32,
        pool: &'a Pool,
        key: &FreeKey,
    ) -> Result<Option<NodeId>, Spent> {
        let alike = pool.by_free.range((key.clone(), NodeId(0))..=(key.clone(), NodeId(u32::MAX)));
        self.first_of(group, workers, alike.map(|(_, node)| *node))
    }

    fn first_of(
        &mut self,
        group: usize,
        workers: u32,
        alike: impl Iterator<Item = NodeId>,
    ) -> Result<Option<NodeId>, Spent> {
        for node in alike {
            self.budget.spend()?;
            if self.capacity(group, node) >= workers {
                return Ok(Some(node));
            }
        }
        Ok(None)
    }

    /// The nodes with the fewest idle devices first, so that whole hosts stay free for gangs; plain hosts
    /// before all others.
    pub(crate) fn fullest_first(
        &mut self,
        group: usize,
        mut rest: u32,
        scope: Scope<'a>,
    ) -> Result<u32, Spent> {
        let site = self.site;
        let request = &self.spec.groups[group].request;
        let idle = match request.accelerators.as_ref().map(|a| a.amount) {
            Some(DeviceAmount::Whole(count)) => count,
            Some(DeviceAmount::Share(_)) | None => 0,
        };
        for (_, pool) in site.pools_of_group(group) {
            match scope {
                Scope::Node(node) => rest -= self.take(group, node, rest),
                Scope::Rack(key) => {
                    let Some(rack) = pool.racks.get(key) else { continue };
                    rest = self.walk(group, rest, rack.by_idle.iter().map(|(_, node)| *node))?;
                }
                Scope::Block(block) => {
                    for (_, rack) in racks_of(pool, block) {
                        rest = self.walk(group, rest, rack.by_idle.iter().map(|(_, node)| *node))?;
                        if rest == 0 {
                            break;
                        }
                    }
                }
                Scope::Cluster => {
                    let mut from = Bound::Included((FreeKey::first_with(idle), NodeId(0)));
                    while let Some((key, node)) = pool.by_free.range((from, Bound::Unbounded)).next() {
                        self.budget.spend()?;
                        if key.workers(request) == 0 {
                            from = Bound::Excluded((key.clone(), NodeId(u32::MAX)));
                            continue;
                        }
                        rest -= self.take(group, *node, rest);
                        if rest == 0 {
                            break;
                        }
                        from = Bound::Excluded((key.clone(), *node));
                    }
                }
            }
            if rest == 0 {
                break;
            }
        }
        Ok(rest)
    }

    fn walk(
        &mut self,
        group: usize,
        mut rest: u32,
        nodes: impl Iterator<Item = NodeId>,
    ) -> Result<u32, Spent> {
        for node in nodes {
            if rest == 0 {
                break;
            }
            self.budget.spend()?;
            rest -= self.take(group, node, rest);
        }
        Ok(rest)
    }

    pub(crate) fn row(&self, node: NodeId) -> &'a NodeRow {
        self.state.node(node).expect("an indexed node has a row")
    }

    /// Whether anything of the gang may be on a node.
    pub(crate) fn is_open(&self, row: &NodeRow) -> bool {
        self.terms.allows(&row.spec, self.spec) && !self.closed.cover(self.state, &row.spec)
    }

    /// Whether a node has the labels and the name that the job selects, is of slices of its shape, and is open to its tenant.
    pub(crate) fn is_selected(&self, row: &NodeRow) -> bool {
        fit::selects(&row.spec, self.spec)
            && fit::is_of_its_slices(&row.spec, self.spec)
            && self.terms.policy.opens(&row.spec, &self.spec.tenant)
    }

    /// Whether a node was bought as the job asks for now, and is taken away as seldom.
    pub(crate) fn is_bought_for(&self, row: &NodeRow) -> bool {
        fit::is_bought_for(&row.spec, self.spec) && self.terms.is_steady(&row.spec, self.spec)
    }

    /// Whether the job tolerates the taints of a node.
    pub(crate) fn is_tolerated(&self, row: &NodeRow) -> bool {
        row.spec.taints.iter().all(|taint| self.spec.tolerations.contains(taint))
    }

    /// Whether a node isolates its workers as policy requires.
    pub(crate) fn is_isolated(&self, row: &NodeRow) -> bool {
        self.terms.policy.lacking_isolation(&row.spec).next().is_none()
    }

    /// Whether a node has a container runtime, where the job has an image.
    pub(crate) fn has_runtime(&self, row: &NodeRow) -> bool {
        !self.spec.needs_container_runtime() || muster_types::container::has_runtime(&row.spec)
    }

    /// Whether a window is closed to the gang on a node before its end, or a booking keeps the node from it.
    pub(crate) fn is_in_window(&self, row: &NodeRow) -> bool {
        self.closed.cover_without_others(self.state, &row.spec)
    }

    /// Whether other jobs are on a node, or near it, from which the gang has to keep away; or are not, where they have to be.
    pub(crate) fn is_kept_away(&self, row: &NodeRow) -> bool {
        let mut required = self.terms.affinity.iter().filter(|term| term.is_required());
        required.any(|term| term.excludes(&row.spec))
    }

    /// What the gang may have of a node; none when nothing is kept from it.
    pub(crate) fn spare(&self, node: NodeId) -> Option<Spare> {
        self.terms.holds.spare(node, self.end)
    }

    /// How many workers of a group the node still holds, after what the plan took already.
    pub(crate) fn capacity(&self, group: usize, node: NodeId) -> u32 {
        let request = &self.spec.groups[group].request;
        let row = self.row(node);
        let (by_free, spare, shared, there) = match self.touched.get(&node) {
            Some(touched) => (touched.free.workers(request), touched.spare, touched.shared, touched.workers),
            None => {
                let by_free = row.offer().workers(request);
                (by_free, self.terms.holds.spare(node, self.end), DeviceSet::EMPTY, 0)
            }
        };
        if by_free == 0 || !self.is_open(row) || (there == 0 && self.is_kept_spare(row)) {
            return 0;
        }
        let by_hold = spare.map_or(u32::MAX, |spare| spare.workers(request, shared));
        let by_spread = match self.spec.topology.spread {
            Some(spread) if spread.level == Level::Host => spread.workers_max.saturating_sub(there),
            _ => u32::MAX,
        };
        by_free.min(by_hold).min(by_spread)
    }

    /// Whether a host that the plan has not taken from is one of the spare hosts of its rack: nobody uses it, and with
    /// it more hosts of the rack would be in use than may be. Hosts that are lost or out of service are spares that
    /// are needed: the others may take their place.
    pub(crate) fn is_kept_spare(&self, row: &'a NodeRow) -> bool {
        self.unused_hosts_left(row).is_some_and(|left| left == 0)
    }

    /// How many more unused hosts of its rack the plan may take from; none where that is not limited, or the host is
    /// in use already.
    pub(crate) fn unused_hosts_left(&self, row: &'a NodeRow) -> Option<u32> {
        let spares = &self.terms.policy.spare_hosts_per_rack;
        if spares.is_empty() || self.terms.holds.opens_spares() || row.is_in_use() {
            return None;
        }
        let kind = &row.spec.accelerators.as_ref()?.kind;
        let spare = u32::from(*spares.get(kind)?);
        let (_, pool) = self.site.pools.iter().find(|(key, _)| key.kind.as_ref() == Some(kind))?;
        let rack = pool.racks.get(&RackKey::of(&row.spec))?;
        let opened = self.opened.get(&(kind, &row.spec.block, &row.spec.rack)).copied().unwrap_or(0);
        Some(rack.nodes.saturating_sub(spare).saturating_sub(rack.in_use + opened))
    }

    /// Counts a host that the plan takes from for the first time.
    fn open(&mut self, row: &'a NodeRow) {
        if let Some(kind) = row.spec.accelerators.as_ref().map(|has| &has.kind)
            && !row.is_in_use()
            && self.terms.policy.spare_hosts_per_rack.contains_key(kind)
        {
            *self.opened.entry((kind, &row.spec.block, &row.spec.rack)).or_default() += 1;
        }
    }

    /// Takes capacity for at most `most` workers from a node; returns for how many.
    pub(crate) fn take(&mut self, group: usize, node: NodeId, most: u32) -> u32 {
        let was_touched = self.is_touched(node);
        let taken = self.take_workers(group, node, most);
        if taken > 0 && !was_touched {
            self.open(self.row(node));
        }
        taken
    }

    fn take_workers(&mut self, group: usize, node: NodeId, most: u32) -> u32 {
        let most = most.min(self.capacity(group, node));
        if most == 0 {
            return 0;
        }
        let request = &self.spec.groups[group].request;
        let row = self.row(node);
        let (holds, end) = (self.terms.holds, self.end);
        let untouched = || {
            Box::new(PlannedNode {
                free: row.offer().into_owned(),
                spare: holds.spare(node, end),
                shared: DeviceSet::EMPTY,
                workers: 0,
            })
        };
        let touched: &mut PlannedNode = self.touched.entry(node).or_insert_with(untouched);
        let is_share =
            matches!(request.accelerators.as_ref().map(|a| a.amount), Some(DeviceAmount::Share(_)));
        for taken in 0..most {
            let Some(devices) = touched.free.pick(request) else { return taken };
            if let Some(spare) = &mut touched.spare
                && !spare.take(request, devices, touched.shared)
            {
                return taken;
            }
            touched.free.take(request, devices);
            touched.workers += 1;
            if is_share {
                touched.shared = touched.shared.union(devices);
            }
            self.picks.push(Pick { group, node, devices });
        }
        most
    }

    /// Workers taken so far.
    pub(crate) fn placed(&self) -> u32 {
        self.picks.len() as u32
    }

    /// Whether the plan has workers on a node.
    pub(crate) fn is_touched(&self, node: NodeId) -> bool {
        self.touched.get(&node).is_some_and(|touched| touched.workers > 0)
    }

    /// Workers of the plan, by domain of a level, as far as they are in this one.
    pub(crate) fn workers_in(&self, scope: Scope<'a>) -> u32 {
        let is_in = |node: &NodeId| is_within(&self.row(*node).spec, *node, scope);
        self.touched.iter().filter(|(node, _)| is_in(node)).map(|(_, touched)| touched.workers).sum()
    }

    /// The workers by rank, and how far they are spread over blocks, racks and nodes.
    pub(crate) fn finish(&mut self) -> (Vec<WorkerSlot>, [usize; 3]) {
        let mut picks = core::mem::take(&mut self.picks);
        let (spec, state) = (self.spec, self.state);
        if let [pick] = picks.as_slice() {
            // There is nothing to put in order.
            let incarnation = self.row(pick.node).incarnation;
            let slot = WorkerSlot { node: pick.node, incarnation, devices: pick.devices };
            return (Vec::from([slot]), [1, 1, self.touched.len()]);
        }
        let place = |pick: &Pick| {
            let row = state.node(pick.node).expect("an indexed node has a row");
            (&row.spec.block, &row.spec.rack, pick.node, pick.devices.0.trailing_zeros())
        };
        // Segments over several groups have their order from where they were placed.
        let keeps_order = spec.topology.has_segments() && spec.groups.len() > 1;
        picks.sort_by(|a, b| {
            let by_group = a.group.cmp(&b.group);
            let is_ordered = keeps_order || spec.groups[a.group].slice.is_some();
            if is_ordered { by_group } else { by_group.then_with(|| place(a).cmp(&place(b))) }
        });
        let mut racks: Vec<(&Name, &Name)> = Vec::new();
        let mut slots = Vec::with_capacity(picks.len());
        let mut last = None;
        for pick in &picks {
            let row = state.node(pick.node).expect("an indexed node has a row");
            slots.push(WorkerSlot { node: pick.node, incarnation: row.incarnation, devices: pick.devices });
            let rack = (&row.spec.block, &row.spec.rack);
            if last != Some(rack) {
                racks.push(rack);
                last = Some(rack);
            }
        }
        racks.sort_unstable();
        racks.dedup();
        let rack_count = racks.len();
        racks.dedup_by_key(|(block, _)| *block);
        (slots, [racks.len(), rack_count, self.touched.len()])
    }
}

/// The only nodes that a job may be on, where it names them.
pub(crate) fn only_named(spec: &JobSpec) -> Option<&BTreeSet<Name>> {
    spec.nodes.as_deref().map(|nodes| &nodes.only).filter(|only| !only.is_empty())
}

/// Whether a node lies in a scope.
pub(crate) fn is_within(spec: &muster_types::NodeSpec, id: NodeId, scope: Scope<'_>) -> bool {
    match scope {
        Scope::Cluster => true,
        Scope::Block(block) => spec.block == *block,
        Scope::Rack(key) => spec.block == key.block && spec.rack == key.rack,
        Scope::Node(node) => node == id,
    }
}

/// The racks of a block, by name.
pub(crate) fn racks_of<'a>(
    pool: &'a Pool,
    block: &'a Name,
) -> impl Iterator<Item = (&'a RackKey, &'a muster_state::Rack)> {
    let from = RackKey { block: block.clone(), rack: Name::literal("0") };
    pool.racks.range(from..).take_while(move |(key, _)| key.block == *block)
}

/// Windows that are closed to a gang and that it would meet in a cluster before its end.
pub(crate) fn closed_windows<'a>(
    terms: &Terms<'a>,
    end: LogTime,
    region: &Name,
    cluster: &Name,
) -> impl Iterator<Item = &'a Window> {
    let policy = terms.policy;
    let meets = move |window: &&Window| {
        let scope = &window.scope;
        window.overlaps(terms.now, end)
            && terms.holds.is_closed(window)
            && scope.region.as_ref().is_none_or(|name| name == region)
            && scope.cluster.as_ref().is_none_or(|name| name == cluster)
    };
    policy.windows.iter().filter(meets)
}

/// The same, and what bookings and other jobs close to a gang that begins now.
pub(crate) fn closed_to<'a>(
    terms: &Terms<'a>,
    end: LogTime,
    region: &Name,
    cluster: &Name,
) -> ClosedPlaces<'a> {
    ClosedPlaces::new(terms, closed_windows(terms, end, region, cluster))
}

/// Idle devices without which a node cannot hold this many workers; none when no node has as many.
fn idle_needed(request: &WorkerRequest, workers: u32) -> Option<u16> {
    match request.accelerators.as_ref().map(|a| a.amount) {
        Some(DeviceAmount::Whole(count)) => u16::try_from(u64::from(count) * u64::from(workers)).ok(),
        Some(DeviceAmount::Share(_)) | None => Some(0),
    }
}

/// Nodes in the order most idle devices first; nodes that are alike by id.
struct EmptiestFirst<'a> {
    pool: &'a Pool,
    /// Where the walk is: the nodes of this key behind this one.
    at: Option<(FreeKey, NodeId)>,
}

impl<'a> EmptiestFirst<'a> {
    fn new(pool: &'a Pool) -> EmptiestFirst<'a> {
        EmptiestFirst { pool, at: None }
    }

    /// The next node that is not too full for a worker.
    fn next(&mut self, request: &WorkerRequest) -> Option<NodeId> {
        let by_free = &self.pool.by_free;
        if let Some((key, node)) = &mut self.at {
            let behind = Bound::Excluded((key.clone(), *node));
            let of_key = (behind, Bound::Included((key.clone(), NodeId(u32::MAX))));
            if let Some((_, next)) = by_free.range(of_key).next() {
                *node = *next;
                return Some(*next);
            }
        }
        loop {
            let below = match &self.at {
                Some((key, _)) => Bound::Excluded((key.clone(), NodeId(0))),
                None => Bound::Unbounded,
            };
            let (key, _) = by_free.range((Bound::Unbounded, below)).next_back()?;
            if let Some(idle) = idle_needed(request, 1)
                && key.idle < idle
            {
                return None;
            }
            let (_, first) = by_free.range((key.clone(), NodeId(0))..).next()?;
            self.at = Some((key.clone(), *first));
            if key.workers(request) > 0 {
                return Some(*first);
            }
        }
    }
}
