//! What the state keeps of clusters, nodes, jobs and requests.

mod admission;
mod array;
mod capacity;
mod class;
mod control;
mod fleet_hold;
mod history;
mod policy_digest;
mod quota;
mod recovery;
mod schedule;
mod spec;
mod spend;
mod submission_group;

use alloc::borrow::Cow;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::{Estimate, Outcome, StopCause, WorkerSlot, hash};
use muster_types::health::{Drain, HealthPolicy, NodeHealth, Quarantine, Repair};
use muster_types::policy::{Policy, PurchaseKind};
use muster_types::{
    ClusterId, ExitStatus, FencingToken, ForeignLoad, HolderId, JobId, JobSpec, LogIndex, LogTime, Name,
    NodeId, NodeOverrides, NodeSpec, Parameters, Requester, StartId,
};
use serde::{Deserialize, Serialize};

use crate::free::{Free, Promised, Restricted};
use crate::table::Derived;

pub use admission::AdmissionRow;
pub(crate) use admission::{DoorKey, DoorRow};
pub use array::{
    ArrayFacts, ArrayLoad, ArrayRow, ArrayTemplate, EndRun, MemberEnd, MemberEnds, rows_of_array,
};
pub use capacity::{CAPACITY_DAYS, CapacityDay, CapacityKey, CapacityRow};
pub use class::GangClass;
pub use control::{ControlRow, HoldRow, ModificationRow};
pub use fleet_hold::FleetHoldRow;
pub use history::{
    HISTORY_ROWS_MAX, HistoryKey, HistoryLevel, HistoryRow, OBSERVATION, OBSERVATIONS_KEPT, RUN_BUCKETS,
    bucket_of,
};
pub(crate) use history::{Lesson, add};
pub(crate) use policy_digest::PolicyDigest;
pub use quota::{BudgetRow, QuotaAnswer, QuotaGrantEnd, QuotaGrantRow, QuotaGrantStatus};
pub(crate) use quota::{QuotaKey, QuotaRow};
pub use recovery::{Failure, RankArtifacts, RecoveryRow, Saved, Straggler};
pub use schedule::{ScheduleRow, ScheduleRunRow, ScheduleSuspension};
pub(crate) use spec::SpecFacts;
pub use spend::{SpendPart, SpendRow};
pub(crate) use submission_group::BurstTurn;
pub use submission_group::{BURST_GAP_MS, BurstKey, BurstRow};

/// What is fixed for the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMeta {
    /// Its identity.
    pub cluster: ClusterId,
    /// Its generation, from 1.
    pub generation: u32,
    /// Its parameters.
    pub parameters: Parameters,
}

/// The state of a node's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeStatus {
    /// The session is live.
    Up,
    /// The session ran out or was replaced, and nothing is leased on the node.
    Lost,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// What its agent said of it, with what operators have set. Everything about placement goes by this.
    pub spec: Arc<NodeSpec>,
    /// Who holds it.
    pub holder: HolderId,
    /// Which start of its agent was registered last; none where the agent does not say that.
    pub start: Option<StartId>,
    /// Which start had the node in the incarnation before, as far as agents say that: and that one does not go on from this one.
    pub replaced_start: Option<StartId>,
    /// Rises whenever a session begins that does not continue the one before.
    pub incarnation: u32,
    /// Whether its session stands.
    pub status: NodeStatus,
    /// Whether an operator took it out of placement.
    pub cordoned: bool,
    /// What no worker holds.
    pub free: Free,
    /// Resources that are kept for gangs that wait for preempted ones to stop; a part may still be held.
    pub promised: Promised,
    /// Log time of the last change of status or cordon.
    pub changed_at: LogTime,
    /// Record of the last change of status or cordon.
    pub changed_index: LogIndex,
    /// What operators have set; none where they have set nothing. Every change of it comes with a new `spec`.
    pub overrides: Option<Arc<NodeOverridesRow>>,
    /// Why operators took it out of placement; none where none did.
    pub reasons: Option<Arc<NodeReasonsRow>>,
    /// What the node's row of restrictions comes to. Derived from that row, so that it is neither written nor
    /// hashed; kept here because every question about capacity begins with the node.
    #[serde(skip)]
    pub restricted: Restricted,
}

/// Why operators took a node out of placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReasonsRow {
    /// Of its cordon; none where it is not cordoned.
    pub cordon: Option<NodeReason>,
    /// Of its drain; none where it is not drained, or where no operator asked for that.
    pub drain: Option<NodeReason>,
}

/// Why a node was taken out of placement, who did it and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReason {
    /// Why, for people; empty where nothing was said.
    pub reason: String,
    /// Who asked.
    pub by: Requester,
    /// When it was said last.
    pub set_at: LogTime,
}

/// Labels and taints that operators have set on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOverridesRow {
    /// All of them; never empty.
    pub overrides: NodeOverrides,
    /// Who changed them last.
    pub by: Requester,
    /// When they were changed last.
    pub set_at: LogTime,
    /// What the node's agent said of it, without them.
    pub said: Arc<NodeSpec>,
}

/// Why less, or nothing, is placed on a node than it could hold. A node without any has no row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestrictionRow {
    /// Everything is to go from it.
    pub drain: Option<Drain>,
    /// It is kept away from work.
    pub quarantine: Option<Quarantine>,
    /// It is being repaired.
    pub repair: Option<Repair>,
    /// What is known of its health.
    pub health: NodeHealth,
    /// What others than Muster hold of it.
    pub foreign: ForeignLoad,
}

impl RestrictionRow {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.drain.is_none()
            && self.quarantine.is_none()
            && self.repair.is_none()
            && self.health.is_blank()
            && self.foreign.is_none()
    }

    /// What it comes to.
    #[must_use]
    pub fn restricted(&self) -> Restricted {
        Restricted {
            blocked: self.drain.is_some()
                || self.quarantine.is_some()
                || self.repair.is_some()
                || self.health.out_of_service
                || self.foreign.closed,
            unusable: self.health.unusable.union(self.foreign.devices),
            cpu_milli: self.foreign.cpu_milli,
            memory_bytes: self.foreign.memory_bytes,
        }
    }
}

/// The health policy in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthPolicyRow {
    /// The record that set it; zero for the one every cluster begins with.
    pub version: LogIndex,
    /// When.
    pub set_at: LogTime,
    /// All of it.
    pub policy: Arc<HealthPolicy>,
}

/// The hash of a node's description and of what operators have set, which is most of its row and hardly ever changes.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    spec: Arc<NodeSpec>,
    hash: u64,
}

impl Derived<NodeId, NodeRow> for NodeFacts {
    fn of(row: &NodeRow) -> NodeFacts {
        NodeFacts { spec: Arc::clone(&row.spec), hash: hash(&(&row.spec, &row.overrides)) }
    }

    fn refresh(&mut self, row: &NodeRow) {
        if !Arc::ptr_eq(&self.spec, &row.spec) {
            *self = NodeFacts::of(row);
        }
    }

    fn hash(&self, id: &NodeId, row: &NodeRow) -> u64 {
        let NodeRow {
            spec: _,
            holder,
            start,
            replaced_start,
            incarnation,
            status,
            cordoned,
            free,
            promised,
            changed_at,
            changed_index,
            overrides: _,
            reasons,
            restricted: _,
        } = row;
        let session = (holder, (start, replaced_start), incarnation, status, cordoned, reasons);
        hash(&(id, self.hash, session, free, promised, changed_at, changed_index))
    }
}

impl NodeRow {
    /// Whether something new may be placed on it.
    #[must_use]
    pub fn is_placeable(&self) -> bool {
        self.status == NodeStatus::Up && !self.cordoned && !self.restricted.blocked
    }

    /// What its agent said of it, without what operators have set.
    #[must_use]
    pub fn said(&self) -> &Arc<NodeSpec> {
        self.overrides.as_ref().map_or(&self.spec, |row| &row.said)
    }

    /// The node once operators have set this in place of all that they had set before.
    #[must_use]
    pub fn overridden(&self, overrides: &NodeOverrides, by: &Requester, set_at: LogTime) -> NodeRow {
        let said = Arc::clone(self.said());
        if overrides.is_empty() {
            return NodeRow { spec: said, overrides: None, ..self.clone() };
        }
        let spec = Arc::new(said.overridden_by(overrides));
        let set = NodeOverridesRow { overrides: overrides.clone(), by: by.kept(), set_at, said };
        NodeRow { spec, overrides: Some(Arc::new(set)), ..self.clone() }
    }

    /// Whether a worker is on it, or is promised a place there.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        // Every worker takes some of the CPUs.
        self.free.cpu_milli < self.spec.cpu_milli || !self.promised.is_empty()
    }

    /// What a new gang could have of it.
    #[must_use]
    pub fn offer(&self) -> Cow<'_, Free> {
        match (self.promised.is_empty(), self.restricted.takes_nothing()) {
            (true, true) => Cow::Borrowed(&self.free),
            (false, true) => Cow::Owned(self.free.without_promised(&self.promised)),
            (_, false) => Cow::Owned(self.free.without_promised(&self.promised).without(&self.restricted)),
        }
    }

    /// What nobody holds of what may be used, whether or not it is promised.
    #[must_use]
    pub fn usable(&self) -> Free {
        self.free.without(&self.restricted)
    }
}

/// The phase of one worker of a placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankState {
    /// Ordered, not yet reported.
    Assigned,
    /// Its process runs.
    Running,
    /// Its process has ended.
    Exited(ExitStatus),
    /// Its node's session ended first; the agent's lease made sure that nothing of it runs.
    Lost,
}

impl RankState {
    /// Whether its process is known to have existed.
    #[must_use]
    pub fn has_started(&self) -> bool {
        let exits = |exit: &ExitStatus| {
            matches!(
                exit,
                ExitStatus::Code(_)
                    | ExitStatus::Signal(_)
                    | ExitStatus::OutOfMemory
                    | ExitStatus::OutOfScratch
            )
        };
        match self {
            RankState::Running => true,
            RankState::Exited(exit) => exits(exit),
            RankState::Assigned | RankState::Lost => false,
        }
    }

    /// Whether nothing of it runs any more, so that its devices are free.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, RankState::Exited(_) | RankState::Lost)
    }
}

/// The devices a gang holds or held, and what became of each worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Fences every order about it.
    pub token: FencingToken,
    /// Where.
    pub region: Name,
    /// The fleet cluster there.
    pub cluster: Name,
    /// When it was decided.
    pub placed_at: LogTime,
    /// By rank.
    pub slots: Vec<WorkerSlot>,
    /// By rank.
    pub ranks: Vec<RankState>,
    /// Ranks that are not over; kept so that nobody has to count.
    pub live: u32,
    /// Ranks that are still [`RankState::Assigned`].
    pub unstarted: u32,
    /// What it is charged for while it holds its devices.
    pub charge: Charge,
    /// Ranks that have said that they are ready, or have ended since the gang was placed. Empty where nobody asks for that.
    pub ready: BTreeSet<u32>,
}

impl Placement {
    /// Moves ranks on one node; the devices of those that are over now.
    pub(crate) fn set_ranks(
        &mut self,
        node: NodeId,
        states: Vec<(u32, RankState)>,
    ) -> Vec<(u32, muster_types::DeviceSet)> {
        let mut freed = Vec::new();
        for (rank, state) in states {
            let at = rank as usize;
            assert!(self.slots[at].node == node, "a rank is reported by its own node");
            assert!(!self.ranks[at].is_over(), "what is over stays over");
            self.unstarted -= u32::from(self.ranks[at] == RankState::Assigned);
            if state.is_over() {
                freed.push((rank, self.slots[at].devices));
                self.live -= 1;
            }
            self.ranks[at] = state;
        }
        freed
    }
}

/// What a gang is charged for, without a copy of it.
pub(crate) enum Charged {
    Promise(Arc<PromiseRow>),
    Placement(Arc<Placement>),
}

impl Charged {
    /// What a job is charged for now, as [`JobRow::charge`] says.
    pub(crate) fn of(row: &JobRow) -> Option<Charged> {
        if let Some(promise) = &row.promise {
            return Some(Charged::Promise(Arc::clone(promise)));
        }
        row.charge()?;
        row.placement.clone().map(Charged::Placement)
    }

    pub(crate) fn get(&self) -> (&Name, &Charge) {
        match self {
            Charged::Promise(promise) => (&promise.region, &promise.charge),
            Charged::Placement(placement) => (&placement.region, &placement.charge),
        }
    }
}

/// What a gang is charged for: against quota, and in its tenant's share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// Thousandths of devices by type; types ascending.
    pub devices_milli: Vec<(Name, u64)>,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// Bytes.
    pub memory_bytes: u64,
    /// Those of the devices that are of nodes which stated how they were bought when the gang got them, by type and purchase;
    /// ascending.
    pub bought_milli: Vec<(Name, PurchaseKind, u64)>,
}

/// Capacity that is kept for a job until the gangs that hold it have stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromiseRow {
    /// The record that promised it.
    pub since: LogIndex,
    /// Where.
    pub region: Name,
    /// By rank.
    pub slots: Vec<WorkerSlot>,
    /// What it is charged for from now on.
    pub charge: Charge,
}

/// What happened to a job when. A job of which all of this is blank has no row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTimes {
    /// When its workers were told to stop; none while they are not being stopped.
    pub stopping_since: Option<LogTime>,
    /// When policy last preempted it for another job.
    pub preempted_at: Option<LogTime>,
    /// Since when it waits again; none for one that has never run, and that its own tenant never held.
    pub waits_since: Option<LogTime>,
    /// How long the attempts before the present one ran, as far as it goes on from what they saved.
    pub ran_ms: u64,
}

impl JobTimes {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        *self == JobTimes::default()
    }
}

/// The policy in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRow {
    /// The record that set it; zero for the one every cluster begins with.
    pub version: LogIndex,
    /// When.
    pub set_at: LogTime,
    /// All of it.
    pub policy: Arc<Policy>,
}

/// The phase of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Waits for capacity.
    Pending,
    /// Placed; not every worker runs yet.
    Starting,
    /// Every worker has started.
    Running,
    /// Its workers are being stopped.
    Stopping(StopCause),
    /// Over.
    Finished(Outcome),
}

/// A job, apart from its spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRow {
    /// Its phase.
    pub phase: Phase,
    /// Placements so far.
    pub attempt: u32,
    /// Attempts that ended by the application's fault.
    pub failures: u32,
    /// Whether a user asked to cancel it.
    pub cancel_requested: bool,
    /// Whether it is in the pending queue as far as dependencies and times are concerned.
    pub released: bool,
    /// Whether somebody keeps it from being placed; its row of controls says who.
    pub held: bool,
    /// What the leader expected of it when it was admitted.
    pub estimate: Estimate,
    /// The number of times that policy preempted it.
    pub preemptions: u32,
    /// When it last saved its work in this attempt.
    pub checkpointed_at: Option<LogTime>,
    /// Capacity that is kept for it.
    pub promise: Option<Arc<PromiseRow>>,
    /// When it was submitted.
    pub submitted_at: LogTime,
    /// When every worker of the last attempt had started.
    pub started_at: Option<LogTime>,
    /// When it ended.
    pub finished_at: Option<LogTime>,
    /// The record that changed it last.
    pub changed_at: LogIndex,
    /// The current placement, or the last.
    pub placement: Option<Arc<Placement>>,
    /// The placement before that, for its logs.
    pub previous: Option<Arc<Placement>>,
}

impl JobRow {
    /// Its submission group: the one it joined, or the one that began with it.
    #[must_use]
    pub fn submission_group(&self, own: JobId) -> JobId {
        self.estimate.burst.unwrap_or(own)
    }

    /// A job that was submitted just now.
    #[must_use]
    pub fn submitted(now: LogTime, estimate: Estimate, spec: &JobSpec) -> JobRow {
        JobRow {
            phase: Phase::Pending,
            attempt: 0,
            failures: 0,
            cancel_requested: false,
            released: spec.dependencies.is_empty() && spec.not_before.is_none(),
            held: false,
            estimate,
            preemptions: 0,
            checkpointed_at: None,
            promise: None,
            submitted_at: now,
            started_at: None,
            finished_at: None,
            changed_at: LogIndex::ZERO,
            placement: None,
            previous: None,
        }
    }

    /// Whether it waits for capacity and may be offered some.
    #[must_use]
    pub fn is_in_line(&self) -> bool {
        self.phase == Phase::Pending && self.released && !self.held && self.promise.is_none()
    }

    /// What it is charged for now: what it was promised, or what it holds. A gang that is being
    /// preempted is no longer charged: the jobs that it is preempted for are.
    #[must_use]
    pub fn charge(&self) -> Option<(&Name, &Charge)> {
        if let Some(promise) = &self.promise {
            return Some((&promise.region, &promise.charge));
        }
        let placement = self.placement.as_ref()?;
        let holds = match &self.phase {
            Phase::Starting | Phase::Running => true,
            Phase::Stopping(cause) => !matches!(cause, StopCause::Rearranged(_)),
            Phase::Pending | Phase::Finished(_) => false,
        };
        holds.then_some((&placement.region, &placement.charge))
    }

    /// When it is expected to end, by the estimate it was admitted with; none while it holds nothing.
    #[must_use]
    pub fn expected_end(&self, run_time_limit_ms: Option<u64>) -> Option<LogTime> {
        if !matches!(self.phase, Phase::Starting | Phase::Running | Phase::Stopping(_)) {
            return None;
        }
        let begun = self.started_at.or(self.placement.as_ref().map(|p| p.placed_at))?;
        let run_ms = self.estimate.run_ms.min(run_time_limit_ms.unwrap_or(u64::MAX));
        Some(begun.plus_ms(run_ms))
    }
}

/// What a request led to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestAnswer {
    /// These many jobs, with ids from this one on.
    Submitted {
        /// The id of the first.
        first: JobId,
        /// How many.
        jobs: u32,
    },
    /// Jobs were cancelled, held, released or requeued.
    Controlled {
        /// How many.
        jobs: u32,
        /// The last of them; members of an array that are not created count as its first. None where there were none.
        last: Option<JobId>,
    },
    /// The policy was set.
    PolicySet,
    /// A node was cordoned or put back.
    CordonSet {
        /// Which.
        node: NodeId,
    },
    /// A node's drain, quarantine or repair was set or ended.
    RestrictionSet {
        /// Which.
        node: NodeId,
    },
    /// The health policy was set.
    HealthPolicySet,
    /// What was asked for was done; there is nothing more to say of it.
    Done,
    /// A lost node was dropped.
    NodeForgotten {
        /// Which; its id is never given again.
        node: NodeId,
    },
}

/// A request that was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRow {
    /// Hash of what was asked.
    pub fingerprint: u64,
    /// The record that carried it out.
    pub log_index: LogIndex,
    /// When.
    pub log_time: LogTime,
    /// What to answer.
    pub answer: RequestAnswer,
}

/// Whether a job holds or may hold devices.
pub(crate) fn holds_devices(row: &JobRow) -> bool {
    matches!(row.phase, Phase::Starting | Phase::Running | Phase::Stopping(_))
}
