//! What the state keeps of clusters, nodes, jobs and requests.

use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::{Outcome, StopCause, WorkerSlot};
use muster_types::{
    ClusterId, DeviceSet, ExitStatus, FencingToken, HolderId, JobId, LogIndex, LogTime, Name, NodeId,
    NodeSpec, Parameters, ReplicaId,
};
use serde::{Deserialize, Serialize};

/// Who decides: term and replica, because two replicas can lead in one term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Leadership {
    /// Raft term.
    pub term: u64,
    /// The leader.
    pub replica: ReplicaId,
}

/// What is fixed for the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMeta {
    /// Its identity.
    pub cluster: ClusterId,
    /// Its life, from 1.
    pub generation: u32,
    /// Its parameters.
    pub parameters: Parameters,
}

/// Whether a node's session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeStatus {
    /// It does.
    Up,
    /// It ran out or was replaced; nothing is leased on the node.
    Lost,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// What its agent said of it.
    pub spec: Arc<NodeSpec>,
    /// Who holds it.
    pub holder: HolderId,
    /// Rises whenever a session begins that does not continue the one before.
    pub incarnation: u32,
    /// Whether its session stands.
    pub status: NodeStatus,
    /// Whether an operator took it out of placement.
    pub cordoned: bool,
    /// Devices that no worker holds.
    pub free_devices: DeviceSet,
    /// Milli-CPUs that no worker holds.
    pub free_cpu_milli: u64,
    /// Memory that no worker holds.
    pub free_memory_bytes: u64,
    /// Log time of the last change of status or cordon.
    pub changed_at: LogTime,
    /// Record of the last change of status or cordon.
    pub changed_index: LogIndex,
}

impl NodeRow {
    /// Whether something new may be placed on it.
    #[must_use]
    pub fn is_placeable(&self) -> bool {
        self.status == NodeStatus::Up && !self.cordoned
    }
}

/// Where one worker of a placement is in its life.
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
        matches!(self, RankState::Running | RankState::Exited(ExitStatus::Code(_) | ExitStatus::Signal(_)))
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
}

/// Where a job is in its life.
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
    /// Where it is in its life.
    pub phase: Phase,
    /// Placements so far.
    pub attempt: u32,
    /// Attempts that ended by the application's fault.
    pub failures: u32,
    /// Whether a user asked to cancel it.
    pub cancel_requested: bool,
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

/// What a request led to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestAnswer {
    /// These many jobs, with ids derived from the record.
    Submitted {
        /// How many.
        jobs: u32,
    },
    /// A job is to be cancelled.
    CancelRequested {
        /// Which.
        job: JobId,
    },
    /// A node was cordoned or put back.
    CordonSet {
        /// Which.
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
