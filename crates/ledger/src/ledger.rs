//! The ledger: how each record changes what is charged.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use muster_journal::{Decision, Round};
use muster_state::{Applied, ArrayRow, Effect, JobRow, State};
use muster_types::policy::PurchaseKind;
use muster_types::{ArrayId, JobId, JobSpec, Leadership, LogIndex, LogTime, Name, NodeId, PriorityTier};

use crate::activity::{Activity, UnplacedReason, WaitReason};
use crate::arrays::{Array, waits_of};
use crate::calendar::{Detail, Window, may_follow};
use crate::catalog::{Catalog, Label};
use crate::changes::{ChangeSet, JobChange};
use crate::charges::Charges;
use crate::demand::{Queue, Shape};
use crate::jobs::{Job, Mode, Waits, mode_of};
use crate::nodes::cells;
use crate::pools::{NodeEntry, PoolName, Pools};

/// Why a record cannot be charged. The ledger is not to be used any further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerError {
    /// The record does not follow the one that was charged last.
    OutOfStep {
        /// The last one.
        last: LogIndex,
        /// The record.
        found: LogIndex,
    },
    /// More time has passed since the last record than a leader lets pass.
    TimeLeap {
        /// The time of the last record.
        from: LogTime,
        /// The time of the record.
        to: LogTime,
    },
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LedgerError::OutOfStep { last, found } => {
                write!(f, "record {found} does not follow record {last}, which was charged last")
            }
            LedgerError::TimeLeap { from, to } => {
                write!(f, "log time goes from {from} to {to}, which is more than ten years")
            }
        }
    }
}

impl core::error::Error for LedgerError {}

/// What a job has used and what it has waited for, from its submission or the beginning of the window on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobTotals {
    /// The job.
    pub job: JobId,
    /// The tenant that it is of.
    pub tenant: Name,
    /// Its tier.
    pub tier: PriorityTier,
    /// How long it waited, in milliseconds, by reason.
    pub waited: Vec<(WaitReason, u64)>,
    /// What it used by activity, in thousandths of an accelerator times milliseconds.
    pub used: BTreeMap<Activity, u128>,
}

/// A part of what is idle in a pool, and why jobs that wait do not have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnplacedPart {
    /// Why.
    pub reason: UnplacedReason,
    /// Whom it is kept for where that is the reason, else whose job waits; none where nobody's does.
    pub owner: Option<(Name, PriorityTier)>,
    /// The amount, in thousandths of accelerators.
    pub milli: u64,
}

/// What is idle of a type in a region while jobs wait that accept it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnplacedPool {
    /// The type of accelerator.
    pub kind: Name,
    /// The region.
    pub region: Name,
    /// The amount, in thousandths of accelerators.
    pub milli: u64,
    /// Whether the planner has spoken of it since it changed.
    pub is_explained: bool,
}

/// Every accelerator-millisecond of a log, charged to one activity and at most one owner.
///
/// [`Ledger::before`] and [`Ledger::after`] surround the application of each record to a state. The ledger of a position of
/// the log and the state there are all that is needed to go on from that position.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub(crate) index: LogIndex,
    pub(crate) time: LogTime,
    pub(crate) tenants: Catalog<Name>,
    pub(crate) labels: Catalog<Label>,
    pub(crate) charges: Charges,
    pub(crate) pools: Pools,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) arrays: BTreeMap<ArrayId, Array>,
    /// Follows from jobs and arrays.
    pub(crate) queue: Queue,
    changed: ChangeSet,
}

impl Ledger {
    /// A ledger of what happens behind a state, as far as it is within a window.
    #[must_use]
    pub fn begin(state: &State, window: Window) -> Ledger {
        Ledger::begin_with(state, window, Detail::default())
    }

    /// The same, with more kept apart.
    #[must_use]
    pub fn begin_with(state: &State, window: Window, detail: Detail) -> Ledger {
        let mut ledger = Ledger { index: state.log_index(), time: state.log_time(), ..Ledger::default() };
        (ledger.charges.window, ledger.charges.detail) = (window, detail.sorted());
        for (node, _) in state.nodes().iter() {
            ledger.update_node(state, *node);
        }
        for (array, _) in state.arrays().iter() {
            ledger.update_array(state, *array);
        }
        let touch = JobChange { holdings: true, ..JobChange::default() };
        for (job, row) in state.jobs().iter() {
            ledger.update_job(state, *job, &touch);
            if let Some(hold) = &row.promise {
                ledger.changed.nodes.extend(hold.slots.iter().map(|slot| slot.node));
            }
        }
        // Again, now that the jobs are known for which capacity is kept.
        for node in core::mem::take(&mut ledger.changed.nodes) {
            ledger.update_node(state, node);
        }
        ledger
    }

    /// Position of the last record that was charged.
    #[must_use]
    pub fn log_index(&self) -> LogIndex {
        self.index
    }

    /// Log time of the last record that was charged.
    #[must_use]
    pub fn log_time(&self) -> LogTime {
        self.time
    }

    /// The span that is charged.
    #[must_use]
    pub fn window(&self) -> Window {
        self.charges.window
    }

    /// Looks at a decision before it is applied to the state.
    pub fn before(&mut self, state: &State, decision: &Decision) {
        self.changed = ChangeSet::by(state, decision);
    }

    /// Charges what has changed when it has been applied. Returns the totals of jobs that are over.
    ///
    /// # Errors
    /// When the record does not follow the last one.
    pub fn after(&mut self, state: &State, applied: &Applied) -> Result<Vec<JobTotals>, LedgerError> {
        let mut changed = core::mem::take(&mut self.changed);
        let Some(index) = applied.log_index else { return Ok(Vec::new()) };
        if index != self.index.next() || state.log_index() != index {
            return Err(LedgerError::OutOfStep { last: self.index, found: index });
        }
        let (from, to) = (self.time, state.log_time());
        if self.index > LogIndex::ZERO && !may_follow(from, to) || !may_follow(to, to) {
            return Err(LedgerError::TimeLeap { from, to });
        }
        (self.index, self.time) = (index, to);
        if applied.rejection.is_some() {
            return Ok(Vec::new());
        }
        for effect in &applied.effects {
            match effect {
                Effect::JobChanged(job) => _ = changed.job(*job),
                Effect::ArrayChanged(array) => _ = changed.arrays.insert(*array),
                Effect::NodeChanged(node) | Effect::NodeForgotten(node) => _ = changed.nodes.insert(*node),
                Effect::ClusterChanged
                | Effect::JobForgotten(_)
                | Effect::OrdersChanged(_)
                | Effect::PolicyChanged
                | Effect::HealthPolicyChanged
                | Effect::Diverged { .. } => {}
            }
        }
        Ok(self.update(state, &mut changed))
    }

    /// Applies a record to the state and charges it.
    ///
    /// # Errors
    /// As [`Ledger::after`].
    pub fn fold(
        &mut self,
        state: &mut State,
        leadership: Leadership,
        index: LogIndex,
        log_time: LogTime,
        decision: &Decision,
    ) -> Result<Vec<JobTotals>, LedgerError> {
        self.before(state, decision);
        let applied = state.apply(leadership, index, log_time, decision);
        self.after(state, &applied)
    }

    /// The same for every record of a round.
    ///
    /// # Errors
    /// As [`Ledger::after`].
    pub fn fold_round(&mut self, state: &mut State, round: &Round) -> Result<Vec<JobTotals>, LedgerError> {
        let leadership = Leadership { term: round.term, replica: round.replica };
        let mut ended = Vec::new();
        for (ordinal, decision) in round.decisions.iter().enumerate() {
            let index = LogIndex(round.first_index.0.saturating_add(ordinal as u64));
            ended.extend(self.fold(state, leadership, index, round.log_time, decision)?);
        }
        Ok(ended)
    }

    fn update(&mut self, state: &State, changed: &mut ChangeSet) -> Vec<JobTotals> {
        for job in changed.jobs.keys() {
            let member = state.spec(*job).and_then(|spec| spec.array);
            changed.arrays.extend(member.map(|member| ArrayId::of_member(*job, member.ordinal)));
        }
        // First of all, since a member that is created takes over how long it has waited.
        for array in &changed.arrays {
            if let Some(array) = self.arrays.get_mut(array) {
                array.flush(self.time, &mut self.charges);
            }
        }
        let jobs = changed.jobs.iter();
        let ended: Vec<JobTotals> =
            jobs.filter_map(|(job, touch)| self.update_job(state, *job, touch)).collect();
        for array in &changed.arrays {
            self.update_array(state, *array);
        }
        for node in &changed.nodes {
            self.update_node(state, *node);
        }
        ended
    }

    fn update_node(&mut self, state: &State, id: NodeId) {
        let before = self.pools.of_node(id);
        let row = state.node(id);
        let entry = row.and_then(|row| Some((row, row.spec.accelerators.as_ref()?))).map(|(row, has)| {
            let purchase = PurchaseKind::of_node(&row.spec);
            let name = PoolName { kind: has.kind.clone(), region: row.spec.region.clone(), purchase };
            let jobs = &self.jobs;
            let owner = |job: JobId| jobs.get(&job).and_then(Job::owner);
            NodeEntry {
                pool: self.pools.number(&name, &self.queue),
                capacity: u64::from(has.count) * 1_000,
                cells: cells(state, id, row, owner),
            }
        });
        self.pools.set_node(id, entry, self.time, &mut self.charges);
        if before.is_some() && before != self.pools.of_node(id) {
            self.move_holdings(state, id);
        }
    }

    /// What runs on a node is charged to the pool that the node is of now: operators may set how it was bought while jobs are
    /// on it.
    fn move_holdings(&mut self, state: &State, node: NodeId) {
        let pools = &self.pools;
        for id in state.gangs_on(node).chain(state.spares_on(node)) {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.flush(self.time, &mut self.charges);
            job.hold(state, id, |node| pools.of_node(node));
        }
    }

    /// Returns the totals of a job that is over.
    fn update_job(&mut self, state: &State, id: JobId, touch: &JobChange) -> Option<JobTotals> {
        let (row, spec) = (state.job(id)?, state.spec(id)?);
        let mode = mode_of(state, id, row, spec);
        if !self.jobs.contains_key(&id) {
            let job = self.new_job(id, row, spec, mode?);
            self.jobs.insert(id, job);
        }
        let job = self.jobs.get_mut(&id)?;
        job.flush(self.time, &mut self.charges);
        if !touch.freed.is_empty() {
            let freed =
                touch.freed.iter().filter_map(|(node, milli)| Some((self.pools.of_node(*node)?, *milli)));
            job.free(&freed.collect::<Vec<_>>());
        }
        if let Some((settlement, is_checkpoint)) = touch.settled {
            job.settle(settlement, is_checkpoint, &mut self.charges);
        }
        if touch.holdings {
            let pools = &self.pools;
            job.hold(state, id, |node| pools.of_node(node));
        }
        let was_eligible = is_eligible(job.mode);
        if touch.spec {
            self.describe_again(id, spec);
        }
        let job = self.jobs.get_mut(&id)?;
        let (shape, before) = (job.shape.clone(), if touch.spec { false } else { was_eligible });
        let after = mode.is_some_and(is_eligible);
        if let Some(mode) = mode {
            job.mode = mode;
        }
        if before != after {
            self.set_eligible(&shape, after);
        }
        if mode.is_some() {
            return None;
        }
        self.queue.leave(&shape);
        let job = self.jobs.remove(&id)?;
        Some(self.totals_of(id, job))
    }

    fn new_job(&mut self, id: JobId, row: &JobRow, spec: &JobSpec, mode: Mode) -> Job {
        // A member of an array has waited since that was submitted.
        let array = spec.array.map(|member| ArrayId::of_member(id, member.ordinal));
        let array = array.filter(|_| row.attempt == 0).and_then(|array| self.arrays.get(&array));
        let waited = array.map_or_else(Vec::new, |array| array.waited.clone());
        // It becomes eligible together with the change of its mode.
        let mode = if is_eligible(mode) { Mode::Waiting(Waits::Held) } else { mode };
        Job {
            id: self.charges.detail.jobs.then_some(id),
            tenant: self.tenants.number(&spec.tenant),
            tier: spec.tier,
            label: self.labels.number(&Label::of(spec)),
            shape: self.queue.enter(Shape::of(spec)),
            milli: spec.device_milli(),
            since: self.time,
            mode,
            waited,
            run: None,
        }
    }

    /// A job asks for something else from now on; it is not eligible until its mode is set.
    fn describe_again(&mut self, id: JobId, spec: &JobSpec) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (old, was_eligible) = (job.shape.clone(), is_eligible(job.mode));
        if was_eligible {
            self.set_eligible(&old, false);
        }
        self.queue.leave(&old);
        let (shape, label) = (self.queue.enter(Shape::of(spec)), self.labels.number(&Label::of(spec)));
        let tenant = self.tenants.number(&spec.tenant);
        if let Some(job) = self.jobs.get_mut(&id) {
            (job.shape, job.label, job.tier, job.tenant) = (shape, label, spec.tier, tenant);
            job.milli = spec.device_milli();
        }
    }

    fn set_eligible(&mut self, shape: &alloc::sync::Arc<Shape>, is_eligible: bool) {
        let changes = self.queue.changes_demand(shape, is_eligible);
        self.queue.set_eligible(shape, is_eligible);
        if changes {
            let (queue, charges) = (&self.queue, &mut self.charges);
            self.pools.demand_changed(shape, is_eligible, queue, self.time, charges);
        }
    }

    fn update_array(&mut self, state: &State, id: ArrayId) {
        let row = state.array(id).filter(|row| row.uncreated > 0);
        if let Some(array) = self.arrays.get_mut(&id) {
            array.flush(self.time, &mut self.charges);
        } else if let Some(row) = row {
            let array = self.new_array(row);
            self.arrays.insert(id, array);
        }
        let Some(array) = self.arrays.get_mut(&id) else { return };
        let (shape, before) = (array.shape.clone(), array.waits.is_eligible());
        let waits = row.map(|row| waits_of(state, id, row));
        let after = waits.is_some_and(|waits| waits.is_eligible());
        if let (Some(waits), Some(row)) = (waits, row) {
            (array.waits, array.members) = (waits, row.uncreated);
        }
        if before != after {
            self.set_eligible(&shape, after);
        }
        if row.is_none() {
            self.queue.leave(&shape);
            self.arrays.remove(&id);
        }
    }

    fn new_array(&mut self, row: &ArrayRow) -> Array {
        let spec = &row.template.spec;
        Array {
            tenant: self.tenants.number(&spec.tenant),
            tier: spec.tier,
            label: self.labels.number(&Label::of(spec)),
            shape: self.queue.enter(Shape::of(spec)),
            since: self.time,
            waits: Waits::Held,
            members: 0,
            milli: spec.device_milli(),
            waited: Vec::new(),
        }
    }

    fn totals_of(&self, id: JobId, job: Job) -> JobTotals {
        let used = job.run.map(|run| run.totals).unwrap_or_default();
        let tenant = self.tenants.get(job.tenant).cloned();
        let tenant = tenant.unwrap_or_else(|| Name::literal("unknown"));
        JobTotals { job: id, tenant, tier: job.tier, waited: job.waited, used }
    }

    /// What a job that is not over has used and waited for until the last record. Work that is not decided yet is
    /// provisional.
    #[must_use]
    pub fn totals(&self, id: JobId) -> Option<JobTotals> {
        let mut job = self.jobs.get(&id)?.clone();
        // What is charged on the way is of this job alone, and is dropped.
        let mut charges = Charges { window: self.charges.window, ..Charges::default() };
        job.flush(self.time, &mut charges);
        if let Some(run) = &mut job.run {
            let undecided = [(Activity::Provisional, &run.work), (Activity::Stopping, &run.stopping)];
            for (activity, pieces) in undecided {
                for piece in pieces {
                    *run.totals.entry(activity).or_default() += piece.milli_ms;
                }
            }
        }
        Some(self.totals_of(id, job))
    }

    /// Idle accelerators that jobs which wait could have, by type and region.
    #[must_use]
    pub fn unplaced(&self) -> Vec<UnplacedPool> {
        let pools = self.pools.unplaced().into_iter();
        pools
            .map(|((kind, region), (milli, is_explained))| UnplacedPool {
                kind: kind.clone(),
                region: region.clone(),
                milli,
                is_explained,
            })
            .collect()
    }

    /// What the planner says of the idle accelerators of a pool that waiting jobs could have, part by part. It holds from
    /// the last record on, until the idle part of the pool or the demand for it changes. What it says beyond what is idle is
    /// ignored; what it leaves out stays unexplained.
    pub fn explain_idle(&mut self, kind: &Name, region: &Name, parts: &[UnplacedPart]) {
        let tenants = &mut self.tenants;
        let parts = parts.iter().map(|part| {
            let owner = part.owner.as_ref();
            (part.reason, owner.map(|(tenant, tier)| (tenants.number(tenant), *tier, None)), part.milli)
        });
        let parts: Vec<_> = parts.collect();
        self.pools.explain((kind, region), &parts, self.time, &mut self.charges);
    }

    /// What the planner says of a job that waits for capacity; none where it says nothing any more. It holds from the last
    /// record on, until something changes about the job.
    pub fn explain_wait(&mut self, id: JobId, reason: Option<UnplacedReason>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let told = Mode::Waiting(Waits::Eligible(reason));
        if is_eligible(job.mode) && job.mode != told {
            job.flush(self.time, &mut self.charges);
            job.mode = told;
        }
    }
}

pub(crate) fn is_eligible(mode: Mode) -> bool {
    matches!(mode, Mode::Waiting(waits) if waits.is_eligible())
}
