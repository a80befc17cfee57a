//! Derived indexes: rebuilt from the tables at restore, kept in step by the fold, never in the
//! digest. Each exists because something would otherwise scan a list.

use alloc::vec::Vec;
use core::cmp::Reverse;
use muster_journal::{Outcome, hash};
use muster_types::tpu::PodPosition;
use muster_types::{JobId, JobSpec, LogTime, Name, NodeId, NodeSpec, PriorityTier, RequestId};
use rpds::{RedBlackTreeMapSync, RedBlackTreeSetSync};
use serde::Serialize;

use crate::burst::{BurstKey, BurstTurn, holds_devices};
use crate::free::FreeKey;

use crate::history::{HistoryKey, bucket_of};
use crate::quota::QuotaUsage;
use crate::rows::{JobRow, NodeRow, NodeStatus, Phase};

/// Nodes of one fleet cluster with the same accelerator type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolKey {
    /// Region.
    pub region: Name,
    /// Fleet cluster.
    pub cluster: Name,
    /// Accelerator type; none for plain hosts, which sort first.
    pub kind: Option<Name>,
}

impl PoolKey {
    /// The pool of a node.
    #[must_use]
    pub fn of(spec: &NodeSpec) -> PoolKey {
        PoolKey {
            region: spec.region.clone(),
            cluster: spec.cluster.clone(),
            kind: spec.accelerators.as_ref().map(|a| a.kind.clone()),
        }
    }
}

/// Size of an empty host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Devices.
    pub devices: u16,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// Bytes.
    pub memory_bytes: u64,
}

/// A rack of a cluster, or its NVLink domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RackKey {
    /// Spine block.
    pub block: Name,
    /// Rack.
    pub rack: Name,
}

impl RackKey {
    /// The rack of a node.
    #[must_use]
    pub fn of(spec: &NodeSpec) -> RackKey {
        RackKey { block: spec.block.clone(), rack: spec.rack.clone() }
    }
}

/// Nodes of one pool in one rack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rack {
    /// Registered nodes, in whatever state.
    pub nodes: u32,
    /// Devices of placeable nodes that are wholly free.
    pub idle_devices: u64,
    /// Placeable nodes by idle devices, then id.
    pub by_idle: RedBlackTreeSetSync<(u16, NodeId)>,
}

/// What the planner asks of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Placeable nodes by what is free on them, fullest first, then id: best fit, nodes that are alike
    /// side by side, and the fixed tie order in one walk.
    pub by_free: RedBlackTreeSetSync<(FreeKey, NodeId)>,
    /// By rack.
    pub racks: RedBlackTreeMapSync<RackKey, Rack>,
    /// Placeable nodes with a place in a TPU pod of which all is free.
    pub idle_hosts: RedBlackTreeMapSync<PodPosition, NodeId>,
    /// Devices of placeable nodes that are wholly free.
    pub idle_devices: u64,
    /// Free thousandths of devices on placeable nodes.
    pub free_milli: u64,
    /// Devices of every registered node, in whatever state.
    pub total_devices: u64,
    /// Registered nodes with taints.
    pub tainted: u32,
    /// Host sizes of every registered node, with their number.
    pub shapes: RedBlackTreeMapSync<Shape, u32>,
    /// The same of the placeable nodes alone.
    pub placeable_shapes: RedBlackTreeMapSync<Shape, u32>,
}

/// Jobs with one class ask for the same and get the same answer, so that a deep queue costs per class and
/// not per job. A hash: two classes that collide share their turns, and nothing worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct GangClass(u64);

impl GangClass {
    /// Behind every class.
    pub(crate) const LAST: GangClass = GangClass(u64::MAX);

    /// The class of a job: everything that decides where it can go.
    #[must_use]
    pub fn of(spec: &JobSpec) -> GangClass {
        let groups: Vec<_> =
            spec.groups.iter().map(|g| (g.workers, g.workers_min, &g.request, &g.slice)).collect();
        let place = (&spec.regions, &spec.node_selector, &spec.tolerations, &spec.datasets);
        // What ends in time may use room that is kept for others.
        let times = (spec.expected_run_ms.map(bucket_of), spec.run_time_limit_ms.map(bucket_of));
        GangClass(hash(&(groups, place, &spec.topology, times)))
    }
}

/// A place in the order of a tenant's waiting bursts of one tier. The smaller goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// Of the burst.
    pub turn: u64,
    /// The first of its jobs in line.
    pub job: JobId,
}

/// Where a walk over everything in line has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinePlace {
    pub(crate) lane: LaneKey,
    pub(crate) turn: Turn,
}

/// Waiting jobs that differ in their turn alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneKey {
    pub(crate) tier: Reverse<PriorityTier>,
    pub(crate) tenant: Name,
    pub(crate) class: GangClass,
}

/// The first of every lane of a tier, by tenant and turn; no set is empty.
pub(crate) type TenantHeads = RedBlackTreeMapSync<Name, RedBlackTreeSetSync<(Turn, GangClass)>>;

/// All derived indexes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Indexes {
    /// How many jobs are pending.
    pub(crate) pending: usize,
    /// Bursts in line, by what they ask for; no lane is empty.
    pub(crate) lanes: RedBlackTreeMapSync<LaneKey, RedBlackTreeSetSync<Turn>>,
    /// The first of every lane, by tier and tenant.
    pub(crate) heads: RedBlackTreeMapSync<Reverse<PriorityTier>, TenantHeads>,
    /// Jobs in line of bursts of two or more jobs, by burst.
    pub(crate) waiting: RedBlackTreeSetSync<(JobId, JobId)>,
    /// Jobs that hold devices of bursts of two or more jobs, by burst.
    pub(crate) running: RedBlackTreeSetSync<(JobId, JobId)>,
    /// Bursts that are not over, by what their members have in common.
    pub(crate) bursts_by_key: RedBlackTreeSetSync<(BurstKey, JobId)>,
    /// Pending jobs that are not released and may not start before a time.
    pub(crate) not_before: RedBlackTreeSetSync<(LogTime, JobId)>,
    /// Pending jobs that are not released, behind each job they wait for.
    pub(crate) dependents: RedBlackTreeSetSync<(JobId, JobId)>,
    /// Jobs with a promise.
    pub(crate) promised: RedBlackTreeSetSync<JobId>,
    /// Jobs with a promise, by the nodes it is on.
    pub(crate) promises_by_node: RedBlackTreeSetSync<(NodeId, JobId)>,
    /// Jobs that hold or may hold devices.
    pub(crate) active: RedBlackTreeSetSync<JobId>,
    /// Gangs that are being stopped.
    pub(crate) stopping: RedBlackTreeSetSync<JobId>,
    /// Running gangs that policy may stop, lowest tier first.
    pub(crate) preemptible: RedBlackTreeSetSync<(PriorityTier, JobId)>,
    /// Running gangs with fewer workers than they asked for, that policy may stop.
    pub(crate) growable: RedBlackTreeSetSync<JobId>,
    /// The same as active, by cluster and the time they are expected to end. A cluster that was once used
    /// keeps an empty set.
    pub(crate) ends: RedBlackTreeMapSync<(Name, Name), RedBlackTreeSetSync<(LogTime, JobId)>>,
    /// Finished jobs by the time they ended.
    pub(crate) finished: RedBlackTreeSetSync<(LogTime, JobId)>,
    /// Running jobs with a limit, by the time it is reached.
    pub(crate) run_limits: RedBlackTreeSetSync<(LogTime, JobId)>,
    /// Requests by time.
    pub(crate) requests_by_time: RedBlackTreeSetSync<(LogTime, RequestId)>,
    /// Nodes by name.
    pub(crate) nodes_by_name: RedBlackTreeMapSync<Name, NodeId>,
    /// Gangs with workers that are not over, by node.
    pub(crate) gangs_by_node: RedBlackTreeSetSync<(NodeId, JobId)>,
    /// Capacity.
    pub(crate) pools: RedBlackTreeMapSync<PoolKey, Pool>,
    /// Nodes whose session stands.
    pub(crate) nodes_up: u64,
    /// The others, by the time of their last change.
    pub(crate) lost_nodes: RedBlackTreeSetSync<(LogTime, NodeId)>,
    /// Rows of the history by the time they were touched last.
    pub(crate) history_by_time: RedBlackTreeSetSync<(LogTime, HistoryKey)>,
    /// What is charged against quotas.
    pub(crate) quota: QuotaUsage,
    /// Whether the policy has any.
    pub(crate) has_quotas: bool,
}

impl Indexes {
    pub(crate) fn add_job(&mut self, id: JobId, row: &JobRow, spec: &JobSpec, burst: BurstTurn) {
        if let Some((burst, _)) = burst.filter(|_| holds_devices(row)) {
            self.running.insert_mut((burst, id));
        }
        if let Some(promise) = &row.promise {
            self.promised.insert_mut(id);
            for slot in &promise.slots {
                self.promises_by_node.insert_mut((slot.node, id));
            }
        }
        if let Some(end) = row.expected_end(spec.run_time_limit_ms) {
            let placement = row.placement.as_ref().expect("what is expected to end is placed");
            let place = (placement.region.clone(), placement.cluster.clone());
            match self.ends.get_mut(&place) {
                Some(ends) => ends.insert_mut((end, id)),
                None => self.ends.insert_mut(place, RedBlackTreeSetSync::new_sync().insert((end, id))),
            }
        }
        if spec.preemptible && matches!(row.phase, Phase::Starting | Phase::Running) {
            self.preemptible.insert_mut((spec.tier, id));
            if is_small(row, spec) {
                self.growable.insert_mut(id);
            }
        }
        match &row.phase {
            Phase::Pending => {
                self.pending += 1;
                if row.is_in_line() {
                    self.join_line(id, row, spec, burst);
                } else if !row.released {
                    self.hold_back(id, spec);
                }
            }
            Phase::Starting => self.active.insert_mut(id),
            Phase::Stopping(_) => {
                self.active.insert_mut(id);
                self.stopping.insert_mut(id);
            }
            Phase::Running => {
                self.active.insert_mut(id);
                if let Some(limit) = run_limit(row, spec) {
                    self.run_limits.insert_mut((limit, id));
                }
            }
            Phase::Finished(_) => {
                self.finished.insert_mut((row.finished_at.unwrap_or_default(), id));
            }
        }
    }

    pub(crate) fn remove_job(&mut self, id: JobId, row: &JobRow, spec: &JobSpec, burst: BurstTurn) {
        if let Some((burst, _)) = burst.filter(|_| holds_devices(row)) {
            self.running.remove_mut(&(burst, id));
        }
        if let Some(promise) = &row.promise {
            self.promised.remove_mut(&id);
            for slot in &promise.slots {
                self.promises_by_node.remove_mut(&(slot.node, id));
            }
        }
        if let Some(end) = row.expected_end(spec.run_time_limit_ms) {
            let placement = row.placement.as_ref().expect("what is expected to end is placed");
            let place = (placement.region.clone(), placement.cluster.clone());
            let ends = self.ends.get_mut(&place).expect("the ends of a cluster in use are indexed");
            ends.remove_mut(&(end, id));
        }
        if spec.preemptible && matches!(row.phase, Phase::Starting | Phase::Running) {
            self.preemptible.remove_mut(&(spec.tier, id));
            if is_small(row, spec) {
                self.growable.remove_mut(&id);
            }
        }
        match &row.phase {
            Phase::Pending => {
                self.pending -= 1;
                if row.is_in_line() {
                    self.leave_line(id, row, spec, burst);
                } else if !row.released {
                    self.let_go(id, spec);
                }
            }
            Phase::Starting => {
                self.active.remove_mut(&id);
            }
            Phase::Stopping(_) => {
                self.active.remove_mut(&id);
                self.stopping.remove_mut(&id);
            }
            Phase::Running => {
                self.active.remove_mut(&id);
                if let Some(limit) = run_limit(row, spec) {
                    self.run_limits.remove_mut(&(limit, id));
                }
            }
            Phase::Finished(Outcome::Succeeded | Outcome::Failed { .. } | Outcome::Cancelled) => {
                self.finished.remove_mut(&(row.finished_at.unwrap_or_default(), id));
            }
        }
    }

    /// The first job of a burst of two or more that is in line.
    pub(crate) fn first_waiting(&self, burst: JobId) -> Option<JobId> {
        let range = (burst, JobId(0))..=(burst, JobId(u64::MAX));
        self.waiting.range(range).next().map(|(_, job)| *job)
    }

    fn join_line(&mut self, id: JobId, row: &JobRow, spec: &JobSpec, burst: BurstTurn) {
        let Some((burst, turn)) = burst else {
            self.change_lane(spec, None, Some(Turn { turn: row.estimate.turn, job: id }));
            return;
        };
        // The burst stands in its lane under its first job.
        let first = self.first_waiting(burst);
        self.waiting.insert_mut((burst, id));
        if first.is_none_or(|first| id < first) {
            self.change_lane(spec, first.map(|job| Turn { turn, job }), Some(Turn { turn, job: id }));
        }
    }

    fn leave_line(&mut self, id: JobId, row: &JobRow, spec: &JobSpec, burst: BurstTurn) {
        let Some((burst, turn)) = burst else {
            self.change_lane(spec, Some(Turn { turn: row.estimate.turn, job: id }), None);
            return;
        };
        let first = self.first_waiting(burst);
        assert!(self.waiting.remove_mut(&(burst, id)), "a job in line is known to its burst");
        if first == Some(id) {
            let next = self.first_waiting(burst).map(|job| Turn { turn, job });
            self.change_lane(spec, Some(Turn { turn, job: id }), next);
        }
    }

    /// The burst whose first job in line this is has another turn.
    pub(crate) fn change_turn(&mut self, first: JobId, spec: &JobSpec, before: u64, after: u64) {
        let turn = |turn| Some(Turn { turn, job: first });
        self.change_lane(spec, turn(before), turn(after));
    }

    /// Replaces a place in the lane of a spec.
    fn change_lane(&mut self, spec: &JobSpec, gone: Option<Turn>, new: Option<Turn>) {
        let lane =
            LaneKey { tier: Reverse(spec.tier), tenant: spec.tenant.clone(), class: GangClass::of(spec) };
        if !self.lanes.contains_key(&lane) {
            self.lanes.insert_mut(lane.clone(), RedBlackTreeSetSync::new_sync());
        }
        let turns = self.lanes.get_mut(&lane).expect("it was put there just now");
        let before = turns.first().copied();
        if let Some(gone) = gone {
            assert!(turns.remove_mut(&gone), "a burst in line is in its lane");
        }
        if let Some(new) = new {
            turns.insert_mut(new);
        }
        let now = turns.first().copied();
        if now.is_none() {
            self.lanes.remove_mut(&lane);
        }
        self.change_head(lane.tier, &lane.tenant, lane.class, before, now);
    }

    fn change_head(
        &mut self,
        tier: Reverse<PriorityTier>,
        tenant: &Name,
        class: GangClass,
        before: Option<Turn>,
        now: Option<Turn>,
    ) {
        if before == now {
            return;
        }
        if !self.heads.contains_key(&tier) {
            self.heads.insert_mut(tier, TenantHeads::new_sync());
        }
        let of_tier = self.heads.get_mut(&tier).expect("it was put there just now");
        if !of_tier.contains_key(tenant) {
            of_tier.insert_mut(tenant.clone(), RedBlackTreeSetSync::new_sync());
        }
        let heads = of_tier.get_mut(tenant).expect("it was put there just now");
        if let Some(before) = before {
            heads.remove_mut(&(before, class));
        }
        if let Some(now) = now {
            heads.insert_mut((now, class));
        }
        if heads.is_empty() {
            of_tier.remove_mut(tenant);
        }
    }

    fn hold_back(&mut self, id: JobId, spec: &JobSpec) {
        if let Some(time) = spec.not_before {
            self.not_before.insert_mut((time, id));
        }
        for dependency in &spec.dependencies {
            self.dependents.insert_mut((dependency.job, id));
        }
    }

    fn let_go(&mut self, id: JobId, spec: &JobSpec) {
        if let Some(time) = spec.not_before {
            self.not_before.remove_mut(&(time, id));
        }
        for dependency in &spec.dependencies {
            self.dependents.remove_mut(&(dependency.job, id));
        }
    }

    /// Counts a node by its status.
    pub(crate) fn add_status(&mut self, id: NodeId, row: &NodeRow) {
        match row.status {
            NodeStatus::Up => self.nodes_up += 1,
            NodeStatus::Lost => self.lost_nodes.insert_mut((row.changed_at, id)),
        }
    }

    /// The inverse of `add_status`.
    pub(crate) fn remove_status(&mut self, id: NodeId, row: &NodeRow) {
        match row.status {
            NodeStatus::Up => self.nodes_up -= 1,
            NodeStatus::Lost => {
                assert!(self.lost_nodes.remove_mut(&(row.changed_at, id)), "a lost node is known as one");
            }
        }
    }

    /// Puts what a node offers into its pool.
    pub(crate) fn add_free(&mut self, id: NodeId, row: &NodeRow) {
        if !row.is_placeable() {
            return;
        }
        let offer = row.offer();
        let idle = offer.devices.count();
        let pool = self.pools.get_mut(&PoolKey::of(&row.spec)).expect("a registered node's pool exists");
        pool.by_free.insert_mut((offer.key(), id));
        pool.idle_devices += u64::from(idle);
        pool.free_milli += offer.device_milli();
        if let Some(position) = row.spec.pod.as_ref().filter(|_| idle == row.spec.device_count()) {
            pool.idle_hosts.insert_mut(position.clone(), id);
        }
        let rack = pool.racks.get_mut(&RackKey::of(&row.spec)).expect("a registered node's rack exists");
        rack.by_idle.insert_mut((idle, id));
        rack.idle_devices += u64::from(idle);
    }

    /// Takes what a node offers out of its pool; the exact inverse of `add_free`.
    pub(crate) fn remove_free(&mut self, id: NodeId, row: &NodeRow) {
        if !row.is_placeable() {
            return;
        }
        let offer = row.offer();
        let idle = offer.devices.count();
        let pool = self.pools.get_mut(&PoolKey::of(&row.spec)).expect("a registered node's pool exists");
        let was_there = pool.by_free.remove_mut(&(offer.key(), id));
        assert!(was_there, "the free index knows every placeable node under what it offers");
        pool.idle_devices -= u64::from(idle);
        pool.free_milli -= offer.device_milli();
        if let Some(position) = row.spec.pod.as_ref().filter(|_| idle == row.spec.device_count()) {
            // Another host may have registered at its place, before this one was known to be gone.
            if pool.idle_hosts.get(position) == Some(&id) {
                pool.idle_hosts.remove_mut(position);
            }
        }
        let rack = pool.racks.get_mut(&RackKey::of(&row.spec)).expect("a registered node's rack exists");
        rack.by_idle.remove_mut(&(idle, id));
        rack.idle_devices -= u64::from(idle);
    }

    /// Counts the size of a node that has become placeable.
    pub(crate) fn add_placeable(&mut self, spec: &NodeSpec) {
        let key = PoolKey::of(spec);
        let mut pool = self.pools.get(&key).cloned().expect("a registered node's pool exists");
        count_shape(&mut pool.placeable_shapes, shape_of(spec));
        self.pools.insert_mut(key, pool);
    }

    /// The inverse of `add_placeable`.
    pub(crate) fn remove_placeable(&mut self, spec: &NodeSpec) {
        let key = PoolKey::of(spec);
        let mut pool = self.pools.get(&key).cloned().expect("a registered node's pool exists");
        uncount_shape(&mut pool.placeable_shapes, shape_of(spec));
        self.pools.insert_mut(key, pool);
    }

    /// Counts a registered node's size.
    pub(crate) fn add_shape(&mut self, spec: &NodeSpec) {
        let key = PoolKey::of(spec);
        let shape = shape_of(spec);
        let mut pool = self.pools.get(&key).cloned().unwrap_or_default();
        count_shape(&mut pool.shapes, shape);
        pool.total_devices += u64::from(shape.devices);
        pool.tainted += u32::from(!spec.taints.is_empty());
        let rack_key = RackKey::of(spec);
        let mut rack = pool.racks.get(&rack_key).cloned().unwrap_or_default();
        rack.nodes += 1;
        pool.racks.insert_mut(rack_key, rack);
        self.pools.insert_mut(key, pool);
    }

    /// The inverse of `add_shape`; an empty pool goes.
    pub(crate) fn remove_shape(&mut self, spec: &NodeSpec) {
        let key = PoolKey::of(spec);
        let shape = shape_of(spec);
        let mut pool = self.pools.get(&key).cloned().expect("a registered node's pool exists");
        uncount_shape(&mut pool.shapes, shape);
        pool.total_devices -= u64::from(shape.devices);
        pool.tainted -= u32::from(!spec.taints.is_empty());
        let rack_key = RackKey::of(spec);
        let mut rack = pool.racks.get(&rack_key).cloned().expect("a registered node's rack exists");
        rack.nodes -= 1;
        if rack.nodes == 0 {
            pool.racks.remove_mut(&rack_key);
        } else {
            pool.racks.insert_mut(rack_key, rack);
        }
        if pool.shapes.is_empty() {
            assert!(pool.by_free.is_empty(), "a pool without nodes has no free node");
            assert!(pool.placeable_shapes.is_empty(), "a pool without nodes has no placeable node");
            self.pools.remove_mut(&key);
        } else {
            self.pools.insert_mut(key, pool);
        }
    }
}

fn count_shape(shapes: &mut RedBlackTreeMapSync<Shape, u32>, shape: Shape) {
    let known = shapes.get(&shape).copied().unwrap_or(0);
    shapes.insert_mut(shape, known + 1);
}

fn uncount_shape(shapes: &mut RedBlackTreeMapSync<Shape, u32>, shape: Shape) {
    let known = shapes.get(&shape).copied().expect("a registered node's size is counted");
    if known == 1 {
        shapes.remove_mut(&shape);
    } else {
        shapes.insert_mut(shape, known - 1);
    }
}

fn shape_of(spec: &NodeSpec) -> Shape {
    Shape { devices: spec.device_count(), cpu_milli: spec.cpu_milli, memory_bytes: spec.memory_bytes }
}

fn is_small(row: &JobRow, spec: &JobSpec) -> bool {
    let workers = row.placement.as_ref().map_or(0, |p| p.slots.len());
    row.phase == Phase::Running && workers < spec.worker_count() as usize
}

fn run_limit(row: &JobRow, spec: &JobSpec) -> Option<LogTime> {
    Some(row.started_at?.plus_ms(spec.run_time_limit_ms?))
}
