//! The gang plan.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_journal::WorkerSlot;
use muster_state::{NodeRow, Pool, PoolKey, State, fit};
use muster_types::{JobSpec, Name, NodeId, WorkerRequest};

use crate::Budget;
use crate::explain::{ClusterReport, Explanation};

/// A proposal: not yet logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where.
    pub region: Name,
    /// The fleet cluster there.
    pub cluster: Name,
    /// By rank.
    pub workers: Vec<WorkerSlot>,
}

/// What planning came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It fits so.
    Fits(Plan),
    /// It does not fit now.
    Waits(Explanation),
    /// The budget ran out before an answer.
    OutOfBudget,
}

/// Nodes as they are while a plan takes from them.
type Scratch = BTreeMap<NodeId, NodeRow>;

/// One fleet cluster as the planner sees it: its pools, plain hosts first.
pub(crate) struct Candidate<'a> {
    pub(crate) region: &'a Name,
    pub(crate) cluster: &'a Name,
    pub(crate) pools: Vec<(&'a PoolKey, &'a Pool)>,
}

/// The clusters a job may use, by region and name.
pub(crate) fn candidates<'a>(state: &'a State, spec: &JobSpec) -> Vec<Candidate<'a>> {
    let mut found: Vec<Candidate<'a>> = Vec::new();
    for (key, pool) in state.pools() {
        if !spec.regions.is_empty() && !spec.regions.contains(&key.region) {
            continue;
        }
        match found.last_mut() {
            Some(last) if *last.region == key.region && *last.cluster == key.cluster => {
                last.pools.push((key, pool))
            }
            _ => found.push(Candidate {
                region: &key.region,
                cluster: &key.cluster,
                pools: alloc::vec![(key, pool)],
            }),
        }
    }
    found
}

/// Plans a gang over every cluster that is open to it.
#[must_use]
pub fn plan(
    state: &State,
    spec: &JobSpec,
    is_open: impl Fn(&Name, &Name) -> bool,
    budget: &mut Budget,
) -> Verdict {
    let mut best: Option<(u64, Plan)> = None;
    // Workers that fit where the gang does not; none where a gang before waits.
    let mut short: Vec<(Candidate<'_>, Option<u32>)> = Vec::new();
    for candidate in candidates(state, spec) {
        if !budget.visit() {
            return Verdict::OutOfBudget;
        }
        if !is_open(candidate.region, candidate.cluster) {
            short.push((candidate, None));
            continue;
        }
        match plan_in(state, spec, &candidate, budget) {
            Some((workers, true)) => {
                let left = free_of_kinds(&candidate, spec).saturating_sub(spec.device_count());
                if best.as_ref().is_none_or(|(least, _)| left < *least) {
                    let (region, cluster) = (candidate.region.clone(), candidate.cluster.clone());
                    best = Some((left, Plan { region, cluster, workers }));
                }
            }
            Some((workers, false)) => {
                let fit = workers.len() as u32;
                short.push((candidate, Some(fit)));
            }
            None => return Verdict::OutOfBudget,
        }
    }
    if let Some((_, plan)) = best {
        return Verdict::Fits(plan);
    }
    // Reports look at every host size of a cluster, so they are made only for a gang that waits.
    let reports = short.into_iter().map(|(candidate, fit)| ClusterReport::new(&candidate, spec, fit));
    Verdict::Waits(Explanation { workers_wanted: spec.worker_count(), clusters: reports.collect() })
}

/// Free devices of the types the job asks for.
fn free_of_kinds(candidate: &Candidate<'_>, spec: &JobSpec) -> u64 {
    let wanted = |kind: &Name| {
        spec.groups.iter().any(|g| g.request.accelerators.as_ref().is_some_and(|a| a.kind == *kind))
    };
    let pools = candidate.pools.iter().filter(|(key, _)| key.kind.as_ref().is_some_and(wanted));
    pools.map(|(_, pool)| pool.free_devices).sum()
}

/// Workers placed in this cluster and whether they are all; none when the budget ran out.
fn plan_in(
    state: &State,
    spec: &JobSpec,
    candidate: &Candidate<'_>,
    budget: &mut Budget,
) -> Option<(Vec<WorkerSlot>, bool)> {
    let mut scratch = Scratch::new();
    let mut workers = Vec::with_capacity(spec.worker_count() as usize);
    for group in &spec.groups {
        let mut rest = group.workers;
        let kind = group.request.accelerators.as_ref().map(|a| &a.kind);
        for (key, pool) in &candidate.pools {
            // A worker without accelerators may go anywhere, to plain hosts first.
            if kind.is_some() && key.kind.as_ref() != kind {
                continue;
            }
            let mut fill =
                Fill { state, pool, request: &group.request, scratch: &mut scratch, workers: &mut workers };
            rest = match kind {
                Some(_) => fill.devices_first(rest, budget)?,
                None => fill.fullest_first(rest, budget)?,
            };
            if rest == 0 {
                break;
            }
        }
        if rest > 0 {
            return Some((workers, false));
        }
    }
    Some((workers, true))
}

/// Takes workers of one group from one pool.
struct Fill<'a> {
    state: &'a State,
    pool: &'a Pool,
    request: &'a WorkerRequest,
    scratch: &'a mut Scratch,
    workers: &'a mut Vec<WorkerSlot>,
}

impl Fill<'_> {
    /// For workers with accelerators: best fit for the rest of the group, else the emptiest node.
    /// Returns how many are left over.
    fn devices_first(&mut self, mut rest: u32, budget: &mut Budget) -> Option<u32> {
        let per_worker = self.request.accelerators.as_ref().map_or(1, |a| a.count);
        let mut emptiest = self.pool.by_free.last().and_then(|(free, _)| self.first_of_level(*free));
        while rest > 0 {
            // All of the rest on one node, the fullest that holds it.
            let wanted = u64::from(rest) * u64::from(per_worker);
            if let Ok(wanted) = u16::try_from(wanted) {
                for (_, node) in self.pool.by_free.range((wanted, NodeId(0))..) {
                    if !budget.visit() {
                        return None;
                    }
                    if self.capacity_of(*node) >= rest {
                        self.take(*node, rest);
                        return Some(0);
                    }
                }
            }
            // No node holds it all: fill the emptiest that is left.
            let Some((free, node)) = emptiest else { return Some(rest) };
            if free < per_worker {
                return Some(rest);
            }
            if !budget.visit() {
                return None;
            }
            let count = self.capacity_of(node).min(rest);
            self.take(node, count);
            rest -= count;
            emptiest = self.after(free, node);
        }
        Some(0)
    }

    /// The next node in the order most free devices first, smaller id first.
    fn after(&self, free: u16, node: NodeId) -> Option<(u16, NodeId)> {
        let by_free = &self.pool.by_free;
        let level = (free, NodeId(node.0.checked_add(1)?))..=(free, NodeId(u32::MAX));
        if let Some(next) = by_free.range(level).next() {
            return Some(*next);
        }
        let (lower, _) = by_free.range(..(free, NodeId(0))).next_back()?;
        self.first_of_level(*lower)
    }

    /// The smallest id with this many free devices: the tie order is by id at every level.
    fn first_of_level(&self, free: u16) -> Option<(u16, NodeId)> {
        self.pool.by_free.range((free, NodeId(0))..).next().copied()
    }

    /// For workers without accelerators: the nodes with the fewest free devices first, so that
    /// whole hosts stay free for gangs.
    fn fullest_first(&mut self, mut rest: u32, budget: &mut Budget) -> Option<u32> {
        for (_, node) in self.pool.by_free.iter() {
            if rest == 0 {
                break;
            }
            if !budget.visit() {
                return None;
            }
            let count = self.capacity_of(*node).min(rest);
            self.take(*node, count);
            rest -= count;
        }
        Some(rest)
    }

    /// How many such workers the node still holds, after what the plan took already.
    fn capacity_of(&self, node: NodeId) -> u32 {
        let row = match self.scratch.get(&node) {
            Some(row) => row,
            None => self.state.node(node).expect("an indexed node has a row"),
        };
        if fit::devices_for(row, self.request).is_none() {
            return 0;
        }
        fit::workers_per_host(
            row.free_devices.count(),
            row.free_cpu_milli,
            row.free_memory_bytes,
            self.request,
        )
    }

    fn take(&mut self, node: NodeId, count: u32) {
        let state = self.state;
        let row = self
            .scratch
            .entry(node)
            .or_insert_with(|| state.node(node).expect("an indexed node has a row").clone());
        for _ in 0..count {
            let devices = fit::devices_for(row, self.request).expect("the capacity was counted before");
            row.free_devices = row.free_devices.difference(devices);
            row.free_cpu_milli -= self.request.cpu_milli;
            row.free_memory_bytes -= self.request.memory_bytes;
            self.workers.push(WorkerSlot { node, incarnation: row.incarnation, devices });
        }
    }
}
