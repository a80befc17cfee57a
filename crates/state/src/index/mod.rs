//! Derived indexes: rebuilt from the tables at restore, kept in step by the fold, never in the
//! digest. Each exists because something would otherwise scan a list.

mod apart;
mod arrays;
mod booked;
mod licences;
mod loads;
mod offers;
mod pending_reasons;
mod user_lanes;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Deref;
use muster_types::policy::Policy;
use muster_types::tpu::PodPosition;
use muster_types::{
    ArrayId, Dependency, JobId, JobMetadata, JobSpec, LogIndex, LogTime, Name, NextRun, NodeId, NodeSpec,
    PriorityTier, QueueKey, QueueRank, RequestId, ScheduleKey,
};

use crate::free::FreeKey;
use crate::quota::QuotaUsage;
use crate::rows::{
    ArrayLoad, BurstKey, BurstTurn, GangClass, HistoryKey, JobRow, NodeRow, NodeStatus, Phase, PromiseRow,
    QuotaKey, RestrictionRow, SpecFacts, holds_devices,
};
use crate::tree::{Map, Set};

pub use apart::ApartKind;
use apart::keeps_away;
pub(crate) use arrays::ArrayIndexKeys;
pub(crate) use booked::waits_for;
use licences::LicenceUse;
pub(crate) use licences::holds_licences;
pub(crate) use loads::{ClusterPlace, UserKey};
pub use loads::{QueueLoad, UserLoad, Work};
pub(crate) use offers::Offered;
use pending_reasons::{PendingCounts, PendingReason};
pub use user_lanes::UserLane;
use user_lanes::UserLineKey;

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
    /// Bytes of scratch.
    pub scratch_bytes: u64,
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
    pub by_idle: Set<(u16, NodeId)>,
    /// Placeable nodes that hold a worker, or are promised to one.
    pub in_use: u32,
    /// Registered nodes, in whatever state.
    pub members: Set<NodeId>,
}

/// What the planner asks of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Placeable nodes by what is free on them, fullest first, then id: best fit, nodes that are alike
    /// side by side, and the fixed tie order in one walk.
    pub by_free: Set<(FreeKey, NodeId)>,
    /// By rack.
    pub racks: Map<RackKey, Rack>,
    /// Placeable nodes with a place in a TPU pod of which all is free, by that place and then by id: a host may have registered at the
    /// place of another before that one was known to be gone.
    pub idle_hosts: Set<(PodPosition, NodeId)>,
    /// Devices of placeable nodes that are wholly free.
    pub idle_devices: u64,
    /// Free thousandths of devices on placeable nodes.
    pub free_milli: u64,
    /// Devices of every registered node, in whatever state.
    pub total_devices: u64,
    /// Registered nodes with taints.
    pub tainted: u32,
    /// Host sizes of every registered node, with their number.
    pub shapes: Map<Shape, u32>,
    /// The same of the placeable nodes alone.
    pub placeable_shapes: Map<Shape, u32>,
}

/// A position in the order of a tenant's pending submission groups of one tier. The smaller goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuePosition {
    /// What goes before the turn. It tells nothing about jobs of other tenants.
    pub rank: QueueRank,
    /// Of the submission group.
    pub turn: QueueKey,
    /// The first of its pending jobs.
    pub job: JobId,
}

/// How far a walk over the pending queue has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinePlace {
    pub(crate) tier: Reverse<PriorityTier>,
    pub(crate) tenant: Name,
    pub(crate) class: GangClass,
    pub(crate) turn: QueuePosition,
}

/// A tenant's part of the pending queue in one tier. The members of a lane have one class and differ in their turn alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TenantLine {
    /// Lane by lane. Numbers alone: a node is copied without following a pointer.
    pub(crate) lanes: Set<(GangClass, QueuePosition)>,
    /// The first of every lane.
    pub(crate) heads: Set<(QueuePosition, GangClass)>,
}

impl TenantLine {
    fn first(&self, class: GangClass) -> Option<QueuePosition> {
        let least = QueuePosition { rank: QueueRank::FIRST, turn: QueueKey::FIRST, job: JobId(0) };
        let first = self.lanes.first_from(&(class, least), false)?;
        (first.0 == class).then_some(first.1)
    }

    /// Replaces a place in a lane. Returns whether the lane was there before, and whether it is now.
    fn change(
        &mut self,
        class: GangClass,
        gone: Option<QueuePosition>,
        new: Option<QueuePosition>,
    ) -> (bool, bool) {
        let before = self.first(class);
        if let Some(gone) = gone {
            assert!(self.lanes.remove(&(class, gone)), "a pending submission group is in its lane");
        }
        if let Some(new) = new {
            self.lanes.insert((class, new));
        }
        let now = self.first(class);
        if before != now {
            before.inspect(|first| _ = self.heads.remove(&(*first, class)));
            now.inspect(|first| self.heads.insert((*first, class)));
        }
        (before.is_some(), now.is_some())
    }
}

/// A spec with its facts, and what the job carries.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) spec: Arc<JobSpec>,
    pub(crate) facts: SpecFacts,
    pub(crate) metadata: Option<Arc<JobMetadata>>,
}

impl Deref for Described {
    type Target = JobSpec;

    fn deref(&self) -> &JobSpec {
        &self.spec
    }
}

/// Where a job stands in the indexes: everything they know of it.
#[derive(Default)]
pub(crate) struct JobIndexKeys {
    /// The submission group that it runs in.
    running: Option<JobId>,
    promise: Option<Arc<PromiseRow>>,
    /// Where and when it is expected to end.
    end: Option<((Name, Name), LogTime)>,
    /// Where it holds how much.
    work: Option<(ClusterPlace, Work)>,
    preemptible: bool,
    growable: bool,
    pub(crate) pending: bool,
    /// What holds it back.
    reason: Option<PendingReason>,
    /// Thousandths of devices that it asks for.
    pub(crate) asked_milli: u64,
    /// Its submission group, if that has a row, and its turn.
    pub(crate) line: Option<(Option<JobId>, QueueKey)>,
    /// Not released yet, and the time that it waits for in addition to other jobs.
    pub(crate) held: Option<Option<LogTime>>,
    /// It waits, and somebody holds it.
    pub(crate) on_hold: bool,
    pub(crate) active: bool,
    /// Whether it keeps other jobs away from where it is, or will be.
    apart: bool,
    /// Whether it holds counted resources.
    licensed: bool,
    charged: bool,
    /// Thousandths of devices that it holds.
    pub(crate) active_milli: u64,
    stopping: bool,
    limit: Option<LogTime>,
    /// When it was placed; none unless it is being started.
    starting: Option<LogTime>,
    /// By when its workers have to be ready; none unless it runs and some of them are not.
    ready_by: Option<LogTime>,
    /// When it has to be over; none once it is, or is being stopped.
    deadline: Option<LogTime>,
    /// Before when it does not take what it names as a fallback; none unless it is in the queue and does not take that yet.
    fallback: Option<LogTime>,
    finished: Option<LogTime>,
}

impl JobIndexKeys {
    /// `wait` is the time before which a job that failed is not placed again.
    pub(crate) fn of(row: &JobRow, spec: &JobSpec, group: BurstTurn, wait: Option<LogTime>) -> JobIndexKeys {
        let pending = row.phase == Phase::Pending;
        let is_in_line = row.is_in_line();
        let runs = matches!(row.phase, Phase::Starting | Phase::Running);
        let preemptible = spec.preemptible && runs;
        let end = row.expected_end(spec.run_time_limit_ms).map(|end| {
            let placement = row.placement.as_ref().expect("what is expected to end is placed");
            ((placement.region.clone(), placement.cluster.clone()), end)
        });
        let placed = row.placement.as_ref().filter(|_| holds_devices(row));
        let work = placed.map(|p| ((p.region.clone(), p.cluster.clone()), Work::of(p)));
        let in_group = group.map(|(group, _)| group);
        let turn = group.map_or(row.estimate.turn, |(_, turn)| turn);
        let held = (pending && !row.released).then_some(spec.not_before.max(wait));
        JobIndexKeys {
            running: in_group.filter(|_| holds_devices(row)),
            promise: row.promise.clone(),
            end,
            work,
            preemptible,
            growable: preemptible && is_small(row, spec),
            pending,
            reason: PendingReason::of(row, spec, held.flatten()),
            asked_milli: spec.device_milli(),
            line: is_in_line.then_some((in_group, turn)),
            held,
            on_hold: pending && row.held,
            active: holds_devices(row),
            apart: (holds_devices(row) || row.promise.is_some()) && spec.affinity.iter().any(keeps_away),
            licensed: !spec.licences.is_empty() && holds_licences(row),
            charged: row.charge().is_some_and(|(_, charge)| !charge.devices_milli.is_empty()),
            active_milli: held_milli(row),
            stopping: matches!(row.phase, Phase::Stopping(_)),
            limit: run_limit(row, spec).filter(|_| row.phase == Phase::Running),
            starting: row.placement.as_ref().filter(|_| row.phase == Phase::Starting).map(|p| p.placed_at),
            ready_by: ready_by(row, spec),
            deadline: spec.deadline.filter(|_| pending || runs),
            fallback: spec
                .capacity
                .as_deref()
                .and_then(|asked| asked.closed_fallback())
                .filter(|_| is_in_line)
                .map(|fallback| {
                    row.submitted_at.max(spec.not_before.unwrap_or_default()).plus_ms(fallback.after_ms)
                }),
            finished: match &row.phase {
                Phase::Finished(_) => Some(row.finished_at.unwrap_or_default()),
                _ => None,
            },
        }
    }
}

fn toggle<K: Ord + Clone>(set: &mut Set<K>, member: K, is_member: bool) {
    if is_member {
        set.insert(member);
    } else {
        set.remove(&member);
    }
}

/// The same in the set of a tenant. Its name is looked up once, and not compared in each of many members.
fn toggle_of(sets: &mut Map<Name, Set<JobId>>, tenant: &Name, member: JobId, is_member: bool) {
    match sets.get_mut(tenant) {
        Some(set) => {
            toggle(set, member, is_member);
            if set.is_empty() {
                sets.remove(tenant);
            }
        }
        None if is_member => sets.insert(tenant.clone(), Set::of(member)),
        None => {}
    }
}

/// All derived indexes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Indexes {
    /// How many jobs are pending.
    pub(crate) pending: usize,
    /// The same, and members of arrays that are not created, by what holds them back.
    pub(crate) pending_by_reason: PendingCounts,
    /// Jobs that are not over, by tenant; a tenant without any is not there.
    pub(crate) loads: Map<Name, QueueLoad>,
    /// Jobs that are not over, by tenant and user; a user without any is not there.
    pub(crate) users: Map<UserKey, UserLoad>,
    /// Thousandths of devices that eligible jobs ask for, and members of arrays that are not created, by type, without one for
    /// jobs that take any, and by tenant; what is nothing is not there.
    pub(crate) eligible: Map<Option<Name>, Map<Name, u64>>,
    /// What jobs hold, by tenant and cluster; what is nothing is not there.
    pub(crate) work: Map<Name, Map<ClusterPlace, Work>>,
    /// The pending queue, by tier and tenant; a tenant without pending jobs is not there.
    pub(crate) line: Map<Reverse<PriorityTier>, Map<Name, TenantLine>>,
    /// How many lanes there are.
    pub(crate) lanes: usize,
    /// The same of tenants whose users share what they get, user by user; a user without pending jobs is not there.
    pub(crate) user_lines: Map<UserLineKey, TenantLine>,
    /// The pending jobs of those tenants in submission groups of two or more jobs, by group and user.
    pub(crate) waiting_by_user: Map<(JobId, String, JobId), GangClass>,
    /// What users have used of whom nothing runs, by when it was counted last.
    pub(crate) idle_users: Set<(LogTime, UserKey)>,
    /// Pending jobs of submission groups of two or more jobs, by group.
    pub(crate) waiting: Map<(JobId, JobId), GangClass>,
    /// Jobs that hold devices of submission groups of two or more jobs, by group.
    pub(crate) running: Set<(JobId, JobId)>,
    /// Submission groups that are not over, by what their members have in common.
    pub(crate) bursts_by_key: Set<(BurstKey, JobId)>,
    /// Pending jobs that are not released and may not start before a time.
    pub(crate) not_before: Set<(LogTime, JobId)>,
    /// Pending jobs that are not released, behind each job they wait for.
    pub(crate) dependents: Set<(JobId, JobId)>,
    /// Jobs with a promise.
    pub(crate) promised: Set<JobId>,
    /// Jobs with a promise, by the nodes it is on.
    pub(crate) promises_by_node: Set<(NodeId, JobId)>,
    /// Jobs that hold or may hold devices.
    pub(crate) active: Set<JobId>,
    /// The same, by tenant; a tenant without any is not there.
    pub(crate) active_by_tenant: Map<Name, Set<JobId>>,
    /// Those of them, and of jobs with a promise, that keep other jobs away from where they are or will be, by tenant and
    /// what they keep away; what nobody keeps away is not there.
    pub(crate) apart: Map<Name, Map<ApartKind, Set<JobId>>>,
    /// What jobs hold of counted resources.
    pub(crate) licences: LicenceUse,
    /// Jobs that are charged for devices, by tenant; a tenant without any is not there.
    pub(crate) charged: Map<Name, Set<JobId>>,
    /// Gangs that are being stopped.
    pub(crate) stopping: Set<JobId>,
    /// Running gangs that policy may stop, lowest tier first.
    pub(crate) preemptible: Set<(PriorityTier, JobId)>,
    /// Running gangs with fewer workers than they asked for, that policy may stop.
    pub(crate) growable: Set<JobId>,
    /// The same as active, by cluster and the time they are expected to end. A cluster that was once used
    /// keeps an empty set.
    pub(crate) ends: Map<(Name, Name), Set<(LogTime, JobId)>>,
    /// Finished jobs by the time they ended.
    pub(crate) finished: Set<(LogTime, JobId)>,
    /// Running jobs with a limit, by the time it is reached.
    pub(crate) run_limits: Set<(LogTime, JobId)>,
    /// Gangs that are being stopped, by when their workers should have been killed.
    pub(crate) killed_by: Set<(LogTime, JobId)>,
    /// Gangs that are being started, by when they were placed.
    pub(crate) starting: Set<(LogTime, JobId)>,
    /// Gangs that run and of which some workers have yet to be ready, by when they have to be.
    pub(crate) unready: Set<(LogTime, JobId)>,
    /// Jobs with a deadline that wait or run, by that time.
    pub(crate) deadlines: Set<(LogTime, JobId)>,
    /// Jobs in the pending queue with a fallback that they do not take yet, by the earliest time at which they might.
    pub(crate) fallbacks: Set<(LogTime, JobId)>,
    /// Arrays whose next members may be created.
    pub(crate) open_arrays: Set<ArrayId>,
    /// Members of all arrays that are not created.
    pub(crate) uncreated: u64,
    /// Members that exist as jobs and wait, by array; an array without any is not there.
    pub(crate) array_loads: Map<ArrayId, ArrayLoad>,
    /// Arrays that are not released, behind each job or array they wait for.
    pub(crate) array_dependents: Set<(JobId, ArrayId)>,
    /// Arrays with members that are not created, behind each array whose members these will wait for.
    pub(crate) member_dependents: Set<(ArrayId, ArrayId)>,
    /// Arrays that are not released and may not begin before a time.
    pub(crate) arrays_not_before: Set<(LogTime, ArrayId)>,
    /// Arrays with members that are not created and a deadline, by that time.
    pub(crate) array_deadlines: Set<(LogTime, ArrayId)>,
    /// Arrays of which every member has ended, with the time when the last did and their rows.
    pub(crate) finished_times: Map<ArrayId, (LogTime, u64)>,
    /// Those of them that no array needs, by that time.
    pub(crate) finished_arrays: Set<(LogTime, ArrayId)>,
    /// The rows of those.
    pub(crate) droppable_rows: u64,
    /// Rows of all arrays and of how their members end, those of members that have not ended counted.
    pub(crate) array_rows: u64,
    /// Requests by time.
    pub(crate) requests_by_time: Set<(LogTime, RequestId)>,
    /// Nodes by name.
    pub(crate) nodes_by_name: Map<Name, NodeId>,
    /// Gangs with workers that are not over, by node.
    pub(crate) gangs_by_node: Set<(NodeId, JobId)>,
    /// Jobs with spares, by node.
    pub(crate) spares_by_node: Set<(NodeId, JobId)>,
    /// Capacity.
    pub(crate) pools: Map<PoolKey, Pool>,
    /// Nodes whose session stands.
    pub(crate) nodes_up: u64,
    /// The others, by the time of their last change.
    pub(crate) lost_nodes: Set<(LogTime, NodeId)>,
    /// Nodes that everything is to go from.
    pub(crate) draining: Set<NodeId>,
    /// Nodes whose provider has announced maintenance, by the time it begins.
    pub(crate) maintenance: Set<(LogTime, NodeId)>,
    /// Rows of the history by the time they were touched last.
    pub(crate) history_by_time: Set<(LogTime, HistoryKey)>,
    /// What is charged against quotas.
    pub(crate) quota: QuotaUsage,
    /// The same of gangs that policy must not stop.
    pub(crate) fixed_quota: QuotaUsage,
    /// Whether the effective policy has any.
    pub(crate) has_quotas: bool,
    /// The policy in force with the grants in force.
    pub(crate) effective: Arc<Policy>,
    /// Requests for quota and grants that are not over, by the time at which they are.
    pub(crate) grant_ends: Set<(LogTime, LogIndex)>,
    /// Users of a tenant whose accelerator time is counted for a budget; a tenant without any is not here.
    pub(crate) budget_users: Map<Name, u32>,
    /// Users of a tenant whose dollars are counted for a budget; a tenant without any is not here.
    pub(crate) spend_users: Map<Name, u32>,
    /// Budgets that are charged for nothing, by the end of the window in which they were.
    pub(crate) budget_ends: Set<(LogTime, QuotaKey)>,
    /// Bookings that have a node, in ascending order, by the node's name; a node that none has is not there.
    pub(crate) booked: Map<Name, Vec<Name>>,
    /// Schedules that are not suspended, by what they wait for: first those whose next moment is not known.
    pub(crate) scheduled: Set<(NextRun, ScheduleKey)>,
}

impl Indexes {
    /// Moves a job from where it stood to where it stands; what has not changed is not touched.
    pub(crate) fn shift(&mut self, id: JobId, spec: &Described, before: &JobIndexKeys, after: &JobIndexKeys) {
        if before.running != after.running {
            before.running.inspect(|group| _ = self.running.remove(&(*group, id)));
            after.running.inspect(|group| self.running.insert((*group, id)));
        }
        if before.promise != after.promise {
            self.shift_promise(id, before, after);
        }
        if before.end != after.end {
            self.shift_end(id, before, after);
        }
        if before.preemptible != after.preemptible {
            toggle(&mut self.preemptible, (spec.tier, id), after.preemptible);
        }
        if before.growable != after.growable {
            toggle(&mut self.growable, id, after.growable);
        }
        if before.pending != after.pending {
            if after.pending { self.pending += 1 } else { self.pending -= 1 }
        }
        if before.reason != after.reason {
            let one = |reason: Option<PendingReason>| reason.map(|reason| (reason, 1));
            self.pending_by_reason.shift(one(before.reason), one(after.reason));
        }
        self.shift_load(&spec.tenant, before, after);
        self.shift_user(spec, before, after);
        self.shift_member(id, spec, before, after);
        if before.is_eligible() != after.is_eligible() {
            self.shift_eligible(spec, before.is_eligible().into(), after.is_eligible().into());
        }
        if before.work != after.work {
            self.shift_work(&spec.tenant, before.work.as_ref(), after.work.as_ref());
        }
        if before.line != after.line {
            if let Some((group, turn)) = before.line {
                self.leave_line(id, spec, group, turn);
                self.leave_user_line(id, spec, group, turn);
            }
            if let Some((group, turn)) = after.line {
                self.join_line(id, spec, group, turn);
                self.join_user_line(id, spec, group, turn);
            }
        }
        if before.held != after.held {
            before.held.inspect(|time| self.let_go(id, spec, *time));
            after.held.inspect(|time| self.hold_back(id, spec, *time));
        }
        if before.charged != after.charged {
            toggle_of(&mut self.charged, &spec.tenant, id, after.charged);
        }
        if before.active != after.active {
            toggle(&mut self.active, id, after.active);
            toggle_of(&mut self.active_by_tenant, &spec.tenant, id, after.active);
        }
        if before.apart != after.apart {
            self.set_apart(id, spec, after.apart);
        }
        if before.licensed != after.licensed {
            self.licences.shift(spec, after.licensed);
        }
        if before.stopping != after.stopping {
            toggle(&mut self.stopping, id, after.stopping);
        }
        if before.limit != after.limit {
            before.limit.inspect(|limit| _ = self.run_limits.remove(&(*limit, id)));
            after.limit.inspect(|limit| self.run_limits.insert((*limit, id)));
        }
        if before.starting != after.starting {
            before.starting.inspect(|at| _ = self.starting.remove(&(*at, id)));
            after.starting.inspect(|at| self.starting.insert((*at, id)));
        }
        if before.ready_by != after.ready_by {
            before.ready_by.inspect(|at| _ = self.unready.remove(&(*at, id)));
            after.ready_by.inspect(|at| self.unready.insert((*at, id)));
        }
        if before.deadline != after.deadline {
            before.deadline.inspect(|at| _ = self.deadlines.remove(&(*at, id)));
            after.deadline.inspect(|at| self.deadlines.insert((*at, id)));
        }
        if before.fallback != after.fallback {
            before.fallback.inspect(|at| _ = self.fallbacks.remove(&(*at, id)));
            after.fallback.inspect(|at| self.fallbacks.insert((*at, id)));
        }
        if before.finished != after.finished {
            before.finished.inspect(|at| _ = self.finished.remove(&(*at, id)));
            after.finished.inspect(|at| self.finished.insert((*at, id)));
        }
    }

    /// A job that holds devices counts as one that holds none.
    pub(crate) fn leave_active_of(&mut self, tenant: &Name, id: JobId) {
        toggle_of(&mut self.active_by_tenant, tenant, id, false);
    }

    fn shift_promise(&mut self, id: JobId, before: &JobIndexKeys, after: &JobIndexKeys) {
        if let Some(promise) = &before.promise {
            self.promised.remove(&id);
            for slot in &promise.slots {
                self.promises_by_node.remove(&(slot.node, id));
            }
        }
        if let Some(promise) = &after.promise {
            self.promised.insert(id);
            for slot in &promise.slots {
                self.promises_by_node.insert((slot.node, id));
            }
        }
    }

    fn shift_end(&mut self, id: JobId, before: &JobIndexKeys, after: &JobIndexKeys) {
        if let Some((place, end)) = &before.end {
            let ends = self.ends.get_mut(place).expect("the ends of a cluster in use are indexed");
            ends.remove(&(*end, id));
        }
        if let Some((place, end)) = &after.end {
            match self.ends.get_mut(place) {
                Some(ends) => ends.insert((*end, id)),
                None => self.ends.insert(place.clone(), Set::of((*end, id))),
            }
        }
    }

    /// The next pending job of a submission group of two or more behind one of them.
    pub(crate) fn waiting_behind(&self, group: JobId, job: JobId) -> Option<JobId> {
        let ((of, next), _) = self.waiting.first_from(&(group, job), true)?;
        (*of == group).then_some(*next)
    }

    /// The first pending job of a submission group of two or more.
    pub(crate) fn first_waiting(&self, group: JobId) -> Option<JobId> {
        self.first_with_class(group).map(|(job, _)| job)
    }

    /// The same with its class.
    fn first_with_class(&self, group: JobId) -> Option<(JobId, GangClass)> {
        let ((of, job), class) = self.waiting.first_from(&(group, JobId(0)), false)?;
        (*of == group).then_some((*job, *class))
    }

    fn join_line(&mut self, id: JobId, spec: &Described, group: Option<JobId>, turn: QueueKey) {
        let rank = spec.rank();
        let own = (QueuePosition { rank, turn, job: id }, spec.facts.class);
        let Some(group) = group else {
            self.change_lane(spec, None, Some(own));
            return;
        };
        // The submission group stands in the lane of its first job, and all of its jobs have one rank.
        let first = self.first_with_class(group);
        self.waiting.insert((group, id), spec.facts.class);
        if first.is_none_or(|(first, _)| id < first) {
            self.change_lane(
                spec,
                first.map(|(job, class)| (QueuePosition { rank, turn, job }, class)),
                Some(own),
            );
        }
    }

    fn leave_line(&mut self, id: JobId, spec: &Described, group: Option<JobId>, turn: QueueKey) {
        let rank = spec.rank();
        let own = (QueuePosition { rank, turn, job: id }, spec.facts.class);
        let Some(group) = group else {
            self.change_lane(spec, Some(own), None);
            return;
        };
        let first = self.first_waiting(group);
        assert!(self.waiting.remove(&(group, id)), "a pending job is known to its submission group");
        if first == Some(id) {
            let next =
                self.first_with_class(group).map(|(job, class)| (QueuePosition { rank, turn, job }, class));
            self.change_lane(spec, Some(own), next);
        }
    }

    /// The submission group whose first pending job this is has another turn.
    pub(crate) fn change_turn(&mut self, first: JobId, spec: &Described, before: QueueKey, after: QueueKey) {
        let rank = spec.rank();
        let turn = |turn| Some((QueuePosition { rank, turn, job: first }, spec.facts.class));
        self.change_lane(spec, turn(before), turn(after));
    }

    /// Replaces a place in the lanes of a tenant and tier.
    fn change_lane(
        &mut self,
        spec: &Described,
        gone: Option<(QueuePosition, GangClass)>,
        new: Option<(QueuePosition, GangClass)>,
    ) {
        match (gone, new) {
            (Some((gone, class)), Some((new, other))) if class == other => {
                self.change_in_lane(spec, class, Some(gone), Some(new));
            }
            (gone, new) => {
                gone.inspect(|(gone, class)| self.change_in_lane(spec, *class, Some(*gone), None));
                new.inspect(|(new, class)| self.change_in_lane(spec, *class, None, Some(*new)));
            }
        }
    }

    fn change_in_lane(
        &mut self,
        spec: &Described,
        class: GangClass,
        gone: Option<QueuePosition>,
        new: Option<QueuePosition>,
    ) {
        let tier = Reverse(spec.tier);
        if self.line.get(&tier).is_none_or(|tenants| !tenants.contains_key(&spec.tenant)) {
            let mut tenants = self.line.get(&tier).cloned().unwrap_or_default();
            tenants.insert(spec.tenant.clone(), TenantLine::default());
            self.line.insert(tier, tenants);
        }
        let tenants = self.line.get_mut(&tier).expect("it was put there just now");
        let line = tenants.get_mut(&spec.tenant).expect("it was put there just now");
        let (was_there, is_there) = line.change(class, gone, new);
        self.lanes += usize::from(is_there);
        self.lanes -= usize::from(was_there);
        if line.lanes.is_empty() {
            tenants.remove(&spec.tenant);
        }
    }

    fn hold_back(&mut self, id: JobId, spec: &JobSpec, time: Option<LogTime>) {
        if let Some(time) = time {
            self.not_before.insert((time, id));
        }
        for dependency in &spec.dependencies {
            self.dependents.insert((waited_for(spec, dependency), id));
        }
    }

    fn let_go(&mut self, id: JobId, spec: &JobSpec, time: Option<LogTime>) {
        if let Some(time) = time {
            self.not_before.remove(&(time, id));
        }
        for dependency in &spec.dependencies {
            self.dependents.remove(&(waited_for(spec, dependency), id));
        }
    }

    /// Counts a node by its status.
    pub(crate) fn add_status(&mut self, id: NodeId, row: &NodeRow) {
        match row.status {
            NodeStatus::Up => self.nodes_up += 1,
            NodeStatus::Lost => self.lost_nodes.insert((row.changed_at, id)),
        }
    }

    /// The inverse of `add_status`.
    pub(crate) fn remove_status(&mut self, id: NodeId, row: &NodeRow) {
        match row.status {
            NodeStatus::Up => self.nodes_up -= 1,
            NodeStatus::Lost => {
                assert!(self.lost_nodes.remove(&(row.changed_at, id)), "a lost node is known as one");
            }
        }
    }

    /// Knows a node by what restricts it.
    pub(crate) fn add_restriction(&mut self, id: NodeId, row: &RestrictionRow) {
        if row.drain.is_some() {
            self.draining.insert(id);
        }
        if let Some(at) = row.health.maintenance_at {
            self.maintenance.insert((at, id));
        }
    }

    /// The inverse of `add_restriction`.
    pub(crate) fn remove_restriction(&mut self, id: NodeId, row: &RestrictionRow) {
        if row.drain.is_some() {
            self.draining.remove(&id);
        }
        if let Some(at) = row.health.maintenance_at {
            self.maintenance.remove(&(at, id));
        }
    }

    /// Gives the description of a node the names that its neighbours have in memory: see `NodeSpec::share_names`.
    pub(crate) fn share_names(&self, spec: &mut NodeSpec) {
        let Some((key, pool)) = self.pools.range(..=PoolKey::of(spec)).next_back() else { return };
        let rack = pool.racks.range(..=RackKey::of(spec)).next_back().map(|(rack, _)| rack);
        let of_rack = rack.into_iter().flat_map(|rack| [&rack.block, &rack.rack]);
        let known: Vec<&Name> =
            [&key.region, &key.cluster].into_iter().chain(&key.kind).chain(of_rack).collect();
        spec.share_names(|name| known.iter().find(|known| **known == name).copied().cloned());
    }

    /// Counts the size of a node that has become placeable.
    pub(crate) fn add_placeable(&mut self, spec: &NodeSpec) {
        let key = PoolKey::of(spec);
        let mut pool = self.pools.get(&key).cloned().expect("a registered node's pool exists");
        count_shape(&mut pool.placeable_shapes, shape_of(spec));
        self.pools.insert(key, pool);
    }

    /// The inverse of `add_placeable`.
    pub(crate) fn remove_placeable(&mut self, spec: &NodeSpec) {
        let key = PoolKey::of(spec);
        let mut pool = self.pools.get(&key).cloned().expect("a registered node's pool exists");
        uncount_shape(&mut pool.placeable_shapes, shape_of(spec));
        self.pools.insert(key, pool);
    }

    /// Counts a registered node's size.
    pub(crate) fn add_shape(&mut self, id: NodeId, spec: &NodeSpec) {
        let key = PoolKey::of(spec);
        let shape = shape_of(spec);
        let mut pool = self.pools.get(&key).cloned().unwrap_or_default();
        count_shape(&mut pool.shapes, shape);
        pool.total_devices += u64::from(shape.devices);
        pool.tainted += u32::from(!spec.taints.is_empty());
        let rack_key = RackKey::of(spec);
        let mut rack = pool.racks.get(&rack_key).cloned().unwrap_or_default();
        rack.nodes += 1;
        rack.members.insert(id);
        pool.racks.insert(rack_key, rack);
        self.pools.insert(key, pool);
    }

    /// Counts a node that may have other taints than before; the rest of what its pool counts is the same.
    pub(crate) fn change_taints(&mut self, before: &NodeSpec, after: &NodeSpec) {
        let pool = self.pools.get_mut(&PoolKey::of(before)).expect("a registered node's pool exists");
        pool.tainted -= u32::from(!before.taints.is_empty());
        pool.tainted += u32::from(!after.taints.is_empty());
    }

    /// The inverse of `add_shape`; an empty pool goes.
    pub(crate) fn remove_shape(&mut self, id: NodeId, spec: &NodeSpec) {
        let key = PoolKey::of(spec);
        let shape = shape_of(spec);
        let mut pool = self.pools.get(&key).cloned().expect("a registered node's pool exists");
        uncount_shape(&mut pool.shapes, shape);
        pool.total_devices -= u64::from(shape.devices);
        pool.tainted -= u32::from(!spec.taints.is_empty());
        let rack_key = RackKey::of(spec);
        let mut rack = pool.racks.get(&rack_key).cloned().expect("a registered node's rack exists");
        rack.nodes -= 1;
        rack.members.remove(&id);
        if rack.nodes == 0 {
            pool.racks.remove(&rack_key);
        } else {
            pool.racks.insert(rack_key, rack);
        }
        if pool.shapes.is_empty() {
            assert!(pool.by_free.is_empty(), "a pool without nodes has no free node");
            assert!(pool.placeable_shapes.is_empty(), "a pool without nodes has no placeable node");
            self.pools.remove(&key);
        } else {
            self.pools.insert(key, pool);
        }
    }
}

/// The job that a dependency is on: of an array as a whole its first member's id, of one member that member.
fn waited_for(spec: &JobSpec, on: &Dependency) -> JobId {
    match spec.array.filter(|_| on.is_of_members()) {
        Some(member) => ArrayId(on.job.0).member(member.ordinal),
        None => on.job,
    }
}

fn count_shape(shapes: &mut Map<Shape, u32>, shape: Shape) {
    let known = shapes.get(&shape).copied().unwrap_or(0);
    shapes.insert(shape, known + 1);
}

fn uncount_shape(shapes: &mut Map<Shape, u32>, shape: Shape) {
    let known = shapes.get(&shape).copied().expect("a registered node's size is counted");
    if known == 1 {
        shapes.remove(&shape);
    } else {
        shapes.insert(shape, known - 1);
    }
}

fn shape_of(spec: &NodeSpec) -> Shape {
    Shape {
        devices: spec.device_count(),
        cpu_milli: spec.cpu_milli,
        memory_bytes: spec.memory_bytes,
        scratch_bytes: spec.scratch_bytes,
    }
}

/// Thousandths of devices that a job holds, promised ones aside.
fn held_milli(row: &JobRow) -> u64 {
    let placement = row.placement.as_ref().filter(|_| holds_devices(row));
    placement.map_or(0, |placement| placement.charge.devices_milli.iter().map(|(_, milli)| milli).sum())
}

/// Whether a gang runs with fewer workers than it may have by now.
fn is_small(row: &JobRow, spec: &JobSpec) -> bool {
    let workers = row.placement.as_ref().map_or(0, |p| p.slots.len());
    let most = spec.size.map_or(spec.worker_count(), |size| size.min(spec.worker_count()));
    row.phase == Phase::Running && workers < most as usize
}

/// By when the workers of a gang that runs have to be ready, while some are not.
fn ready_by(row: &JobRow, spec: &JobSpec) -> Option<LogTime> {
    let timeout_ms = spec.readiness_ms?;
    let placement = row.placement.as_ref().filter(|_| row.phase == Phase::Running)?;
    let by = row.started_at?.plus_ms(timeout_ms);
    (placement.ready.len() < placement.slots.len()).then_some(by)
}

fn run_limit(row: &JobRow, spec: &JobSpec) -> Option<LogTime> {
    Some(row.started_at?.plus_ms(spec.run_time_limit_ms?))
}
