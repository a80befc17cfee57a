//! Derived indexes: rebuilt from the tables at restore, kept in step by the fold, never in the
//! digest. Each exists because something would otherwise scan a list.

use muster_journal::Outcome;
use muster_types::{GangClass, JobId, JobSpec, LogTime, Name, NodeId, NodeSpec, PriorityTier, RequestId};
use rpds::{RedBlackTreeMapSync, RedBlackTreeSetSync};

use crate::rows::{JobRow, NodeRow, Phase};

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

/// What the planner asks of a pool.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// Placeable nodes by free devices, then id: best fit and the fixed tie order in one walk.
    pub by_free: RedBlackTreeSetSync<(u16, NodeId)>,
    /// Free devices on placeable nodes.
    pub free_devices: u64,
    /// Devices of every registered node, in whatever state.
    pub total_devices: u64,
    /// Host sizes of every registered node, with their number.
    pub shapes: RedBlackTreeMapSync<Shape, u32>,
    /// The same of the placeable nodes alone.
    pub placeable_shapes: RedBlackTreeMapSync<Shape, u32>,
}

/// Waiting jobs in the order of their turns.
pub(crate) type Waiting = RedBlackTreeSetSync<(core::cmp::Reverse<PriorityTier>, JobId)>;

/// All derived indexes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Indexes {
    /// How many jobs are pending.
    pub(crate) pending: usize,
    /// Pending jobs by class, so that a planning pass costs per class; no class is empty.
    pub(crate) pending_by_class: RedBlackTreeMapSync<GangClass, Waiting>,
    /// Jobs that hold or may hold devices.
    pub(crate) active: RedBlackTreeSetSync<JobId>,
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
}

impl Indexes {
    pub(crate) fn add_job(&mut self, id: JobId, row: &JobRow, spec: &JobSpec) {
        match &row.phase {
            Phase::Pending => {
                let turn = (core::cmp::Reverse(spec.tier), id);
                self.pending += 1;
                let class = GangClass::of(spec);
                let mut waiting = self.pending_by_class.get(&class).cloned().unwrap_or_default();
                waiting.insert_mut(turn);
                self.pending_by_class.insert_mut(class, waiting);
            }
            Phase::Starting | Phase::Stopping(_) => self.active.insert_mut(id),
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

    pub(crate) fn remove_job(&mut self, id: JobId, row: &JobRow, spec: &JobSpec) {
        match &row.phase {
            Phase::Pending => {
                let turn = (core::cmp::Reverse(spec.tier), id);
                self.pending -= 1;
                let class = GangClass::of(spec);
                let mut waiting =
                    self.pending_by_class.get(&class).cloned().expect("a pending job's class is indexed");
                waiting.remove_mut(&turn);
                if waiting.is_empty() {
                    self.pending_by_class.remove_mut(&class);
                } else {
                    self.pending_by_class.insert_mut(class, waiting);
                }
            }
            Phase::Starting | Phase::Stopping(_) => {
                self.active.remove_mut(&id);
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

    /// Puts the node's changing capacity into its pool.
    pub(crate) fn add_free(&mut self, id: NodeId, row: &NodeRow) {
        if !row.is_placeable() {
            return;
        }
        let key = PoolKey::of(&row.spec);
        let mut pool = self.pools.get(&key).cloned().unwrap_or_default();
        pool.by_free.insert_mut((row.free_devices.count(), id));
        pool.free_devices += u64::from(row.free_devices.count());
        self.pools.insert_mut(key, pool);
    }

    /// Takes the node's changing capacity out of its pool; the exact inverse of `add_free`.
    pub(crate) fn remove_free(&mut self, id: NodeId, row: &NodeRow) {
        if !row.is_placeable() {
            return;
        }
        let key = PoolKey::of(&row.spec);
        let mut pool = self.pools.get(&key).cloned().expect("a placeable node is in its pool");
        let was_there = pool.by_free.remove_mut(&(row.free_devices.count(), id));
        assert!(was_there, "the free index knows every placeable node under its free count");
        pool.free_devices -= u64::from(row.free_devices.count());
        self.pools.insert_mut(key, pool);
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
        self.pools.insert_mut(key, pool);
    }

    /// The inverse of `add_shape`; an empty pool goes.
    pub(crate) fn remove_shape(&mut self, spec: &NodeSpec) {
        let key = PoolKey::of(spec);
        let shape = shape_of(spec);
        let mut pool = self.pools.get(&key).cloned().expect("a registered node's pool exists");
        uncount_shape(&mut pool.shapes, shape);
        pool.total_devices -= u64::from(shape.devices);
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

fn run_limit(row: &JobRow, spec: &JobSpec) -> Option<LogTime> {
    Some(row.started_at?.plus_ms(spec.run_time_limit_ms?))
}
