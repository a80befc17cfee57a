//! Pools: the accelerators of one type in one region that were bought in one way, with what they are idle for now.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_types::policy::PurchaseKind;
use muster_types::{LogTime, Name, NodeId};
use serde::{Deserialize, Serialize};

use crate::activity::{Activity, IdleCause, UnplacedReason};
use crate::catalog::Catalog;
use crate::charges::{Charges, Owner};
use crate::demand::{Demand, Queue, Shape};
use crate::nodes::Cell;

/// A type, a region, and how the nodes were bought where that is known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct PoolName {
    pub(crate) kind: Name,
    pub(crate) region: Name,
    pub(crate) purchase: Option<PurchaseKind>,
}

/// An amount since a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rate {
    pub(crate) milli: u64,
    pub(crate) since: LogTime,
}

/// A node as it is charged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeEntry {
    pub(crate) pool: u32,
    /// Thousandths of accelerators.
    pub(crate) capacity: u64,
    pub(crate) cells: Vec<(Cell, u64)>,
}

/// The idle parts of a node, each with its pool.
fn parts(entry: Option<&NodeEntry>) -> impl Iterator<Item = (u32, Cell, u64)> {
    entry.into_iter().flat_map(|entry| entry.cells.iter().map(|(cell, milli)| (entry.pool, *cell, *milli)))
}

/// How much of a node is idle in a cell of a pool.
fn amount(entry: Option<&NodeEntry>, pool: u32, cell: Cell) -> u64 {
    let found = parts(entry).find(|part| (part.0, part.1) == (pool, cell));
    found.map_or(0, |part| part.2)
}

/// Why jobs do not have an idle part of a pool: the reason, whose it is, and thousandths.
pub(crate) type Part = (UnplacedReason, Owner, u64);

/// All pools and their nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    pub(crate) names: Catalog<PoolName>,
    pub(crate) nodes: BTreeMap<NodeId, NodeEntry>,
    pub(crate) idle: BTreeMap<(u32, Cell), Rate>,
    pub(crate) capacity: BTreeMap<u32, Rate>,
    /// What the planner said of the open part of a pool, until that changes.
    pub(crate) reasons: BTreeMap<u32, Vec<Part>>,
    /// By the number of the pool. Follows from what waits.
    demand: Vec<Demand>,
}

impl Pools {
    /// The pool of a node; none for a node without accelerators.
    pub(crate) fn of_node(&self, node: NodeId) -> Option<u32> {
        self.nodes.get(&node).map(|entry| entry.pool)
    }

    pub(crate) fn number(&mut self, name: &PoolName, queue: &Queue) -> u32 {
        let number = self.names.number(name);
        while self.demand.len() < self.names.len() {
            let new = u32::try_from(self.demand.len()).ok().and_then(|number| self.names.get(number));
            let demand = new.map_or(Demand::None, |name| queue.demand(&name.kind, &name.region));
            self.demand.push(demand);
        }
        number
    }

    /// Looks at what waits from the beginning.
    pub(crate) fn recount(&mut self, queue: &Queue) {
        self.demand = self.names.iter().map(|name| queue.demand(&name.kind, &name.region)).collect();
    }

    /// A node is this from now on; none for one that is gone or has no accelerators.
    pub(crate) fn set_node(
        &mut self,
        node: NodeId,
        entry: Option<NodeEntry>,
        now: LogTime,
        charges: &mut Charges,
    ) {
        let before = match &entry {
            Some(entry) => self.nodes.insert(node, entry.clone()),
            None => self.nodes.remove(&node),
        };
        if before == entry {
            return;
        }
        // What both have is not touched.
        for (pool, cell, milli) in parts(before.as_ref()) {
            let after = amount(entry.as_ref(), pool, cell);
            if after != milli {
                self.change((pool, cell), milli, after, now, charges);
            }
        }
        for (pool, cell, milli) in parts(entry.as_ref()) {
            if amount(before.as_ref(), pool, cell) == 0 {
                self.change((pool, cell), 0, milli, now, charges);
            }
        }
        let capacity = |entry: &Option<NodeEntry>| entry.as_ref().map(|entry| (entry.pool, entry.capacity));
        let (old, new) = (capacity(&before), capacity(&entry));
        if old != new {
            if let Some((pool, milli)) = old {
                self.change_capacity(pool, milli, 0, now, charges);
            }
            if let Some((pool, milli)) = new {
                self.change_capacity(pool, 0, milli, now, charges);
            }
        }
    }

    fn change(&mut self, key: (u32, Cell), less: u64, more: u64, now: LogTime, charges: &mut Charges) {
        self.flush(key, now, charges);
        if key.1 == Cell::Open {
            self.reasons.remove(&key.0);
        }
        let rate = self.idle.entry(key).or_insert(Rate { milli: 0, since: now });
        rate.since = now;
        rate.milli = rate.milli.saturating_sub(less).saturating_add(more);
        if rate.milli == 0 {
            self.idle.remove(&key);
        }
    }

    fn change_capacity(&mut self, pool: u32, less: u64, more: u64, now: LogTime, charges: &mut Charges) {
        let rate = self.capacity.entry(pool).or_insert(Rate { milli: 0, since: now });
        charges.provide(rate.since, now, pool, rate.milli);
        rate.since = now;
        rate.milli = rate.milli.saturating_sub(less).saturating_add(more);
        if rate.milli == 0 {
            self.capacity.remove(&pool);
        }
    }

    /// Charges what one cell of a pool has been idle for.
    fn flush(&mut self, (pool, cell): (u32, Cell), now: LogTime, charges: &mut Charges) {
        let Some(rate) = self.idle.get_mut(&(pool, cell)) else { return };
        let (span, mut milli) = ((rate.since, now), rate.milli);
        rate.since = now;
        let mut charge = |owner, cause, milli| {
            charges.charge(span, milli, (pool, owner, Activity::Idle(cause)));
        };
        match cell {
            Cell::Blocked(cause) => charge(None, cause, milli),
            Cell::Reserved(owner) => charge(owner, IdleCause::Reserved, milli),
            Cell::Open => match self.demand.get(pool as usize).copied().unwrap_or_default() {
                Demand::None => charge(None, IdleCause::NoDemand, milli),
                Demand::OtherType => charge(None, IdleCause::DemandOtherType, milli),
                Demand::Elsewhere => charge(None, IdleCause::DemandElsewhere, milli),
                Demand::Here => {
                    for (reason, owner, part) in self.reasons.get(&pool).into_iter().flatten() {
                        let part = milli.min(*part);
                        charge(*owner, IdleCause::DemandUnplaced(Some(*reason)), part);
                        milli -= part;
                    }
                    charge(None, IdleCause::DemandUnplaced(None), milli);
                }
            },
        }
    }

    /// A shape of jobs that could start has come or gone.
    pub(crate) fn demand_changed(
        &mut self,
        shape: &Shape,
        is_new: bool,
        queue: &Queue,
        now: LogTime,
        charges: &mut Charges,
    ) {
        for pool in 0..self.demand.len() {
            let Ok(number) = u32::try_from(pool) else { return };
            let Some(name) = self.names.get(number) else { continue };
            let before = self.demand.get(pool).copied().unwrap_or_default();
            let of_shape = shape.demand(&name.kind, &name.region);
            // Others decide what a pool has that is more than this.
            let after = match is_new {
                true => before.max(of_shape),
                false if of_shape < before => before,
                false => queue.demand(&name.kind, &name.region),
            };
            if before != after {
                self.flush((number, Cell::Open), now, charges);
                self.reasons.remove(&number);
                if let Some(demand) = self.demand.get_mut(pool) {
                    *demand = after;
                }
            }
        }
    }

    /// What the planner says of the open part of a type in a region from now on. It does not tell how nodes were bought: of
    /// several pools the first one takes of the reasons what it has idle, then the next.
    pub(crate) fn explain(
        &mut self,
        (kind, region): (&Name, &Name),
        parts: &[Part],
        now: LogTime,
        charges: &mut Charges,
    ) {
        let mut rest = parts.to_vec();
        let named = (0u32..).zip(self.names.iter());
        let pools = named.filter(|(_, name)| name.kind == *kind && name.region == *region);
        for pool in pools.map(|(pool, _)| pool).collect::<Vec<_>>() {
            self.flush((pool, Cell::Open), now, charges);
            let mut open = self.idle.get(&(pool, Cell::Open)).map_or(0, |rate| rate.milli);
            let mut part = Vec::new();
            for (reason, owner, milli) in &mut rest {
                let taken = open.min(*milli);
                open -= taken;
                *milli -= taken;
                if taken > 0 {
                    part.push((*reason, *owner, taken));
                }
            }
            self.reasons.insert(pool, part);
        }
    }

    /// What is idle and could be had by jobs that wait, by type and region: thousandths, and whether all of that has reasons.
    pub(crate) fn unplaced(&self) -> BTreeMap<(&Name, &Name), (u64, bool)> {
        let mut found = BTreeMap::new();
        for ((pool, cell), rate) in &self.idle {
            let demand = self.demand.get(*pool as usize).copied().unwrap_or_default();
            if *cell != Cell::Open || demand != Demand::Here {
                continue;
            }
            let Some(name) = self.names.get(*pool) else { continue };
            let entry = found.entry((&name.kind, &name.region)).or_insert((0u64, true));
            entry.0 = entry.0.saturating_add(rate.milli);
            entry.1 &= self.reasons.contains_key(pool);
        }
        found
    }

    /// Charges everything up to a time.
    pub(crate) fn flush_all(&mut self, now: LogTime, charges: &mut Charges) {
        let keys: Vec<(u32, Cell)> = self.idle.keys().copied().collect();
        for key in keys {
            self.flush(key, now, charges);
        }
        for (pool, rate) in &mut self.capacity {
            charges.provide(rate.since, now, *pool, rate.milli);
            rate.since = now;
        }
    }
}
