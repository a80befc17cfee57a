//! The states that accelerator time is charged to, and what jobs wait for.

use core::fmt;
use serde::{Deserialize, Serialize};

/// What an accelerator, or a part of one, is doing. At each moment it is in exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Activity {
    /// A job did work there that was kept: a checkpoint was committed after it, or the job succeeded.
    Kept,
    /// A job did work there that was lost, from its last checkpoint or the start of the attempt on.
    Lost(LossCause),
    /// A job does work there that is neither kept nor lost yet.
    Provisional,
    /// A gang is placed, and some of its workers have not started.
    Starting,
    /// A gang that is being stopped saved its work; the time until the checkpoint was committed.
    Checkpointing,
    /// The workers of a gang are being stopped.
    Stopping,
    /// It is held as a spare of a gang.
    Spare,
    /// No job holds it.
    Idle(IdleCause),
}

/// Why work was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LossCause {
    /// The job was preempted for another one.
    Preempted,
    /// The job was moved so that another gang could be placed.
    Moved,
    /// The job went on with more or fewer workers.
    Resized,
    /// A node of the job was drained or taken out of service.
    Drained,
    /// The session of a node ended.
    NodeLost,
    /// A device or a host failed.
    NodeFault,
    /// The network of the gang was at fault.
    Network,
    /// The scheduler below lost the job.
    Backend,
    /// The application failed.
    Application,
    /// The job ran over its time limit or its deadline.
    TimeLimit,
    /// The job was cancelled.
    Cancelled,
    /// Somebody asked that the job is requeued or suspended.
    Requeued,
}

/// Why no job holds an accelerator. Where several hold, the first in the order of declaration is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum IdleCause {
    /// The session of its node has ended.
    NodeLost,
    /// The device is unhealthy, or its node is out of service because of its health.
    Fault,
    /// Its node is being repaired.
    Repair,
    /// Its node is in quarantine.
    Quarantine,
    /// Its node is being drained.
    Drain,
    /// Its node is cordoned.
    Cordon,
    /// Another scheduler holds it, or has closed its node.
    Foreign,
    /// It is kept for a gang whose capacity hold is not complete yet. The owner is that gang's tenant.
    Reserved,
    /// Jobs wait that may use this type in this region. The planner refines it to a reason; without one the log alone
    /// does not tell the reason.
    DemandUnplaced(Option<UnplacedReason>),
    /// Jobs wait that may use this type, and none of them may run in this region.
    DemandElsewhere,
    /// Jobs wait that could start, and all of them ask for accelerators of other types.
    DemandOtherType,
    /// No job that could start waits for an accelerator.
    NoDemand,
}

/// Why jobs wait although accelerators of their type are idle: what the planner may add to the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum UnplacedReason {
    /// A quota or a limit of the tenant.
    Quota,
    /// The job accepts the type, and not these nodes: labels, taints, isolation, size.
    NodeMismatch,
    /// The data or the checkpoints of the job cannot be read there, or the job names a booking, which is not
    /// open to it, or other jobs keep it away.
    Constraint,
    /// The topology rule of the gang.
    Topology,
    /// Enough is free, and not on the same nodes.
    Fragmentation,
    /// It is kept for gangs that go before the job. The owner is the tenant of the first of them.
    Priority,
    /// The hosts have devices left, and too little CPU or memory with them.
    HostResources,
    /// Less is idle than the gang needs.
    TooFew,
    /// It is kept for others: a window of the policy, a booking, or hosts that take the place of failed ones.
    Kept,
    /// It fits, and its turn has not come yet.
    Turn,
    /// More is idle than the waiting jobs ask for.
    Surplus,
}

/// What a job spent time on before it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WaitReason {
    /// Somebody held it.
    Held,
    /// It may not start before a time.
    NotBefore,
    /// It waited after a failed attempt.
    Backoff,
    /// It waited for other jobs.
    Dependencies,
    /// The throttle of its array.
    Throttled,
    /// It waited for capacity. The planner refines it to a reason; without one the log alone does not tell the reason.
    Waiting(Option<UnplacedReason>),
    /// Capacity is kept for it, and part of that is still in use.
    Assembling,
    /// It was placed, and some of its workers had not started.
    Starting,
}

impl UnplacedReason {
    /// All of them.
    pub const ALL: [UnplacedReason; 11] = [
        UnplacedReason::Quota,
        UnplacedReason::NodeMismatch,
        UnplacedReason::Constraint,
        UnplacedReason::Topology,
        UnplacedReason::Fragmentation,
        UnplacedReason::Priority,
        UnplacedReason::HostResources,
        UnplacedReason::TooFew,
        UnplacedReason::Kept,
        UnplacedReason::Turn,
        UnplacedReason::Surplus,
    ];

    /// The word that reports show.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            UnplacedReason::Quota => "quota",
            UnplacedReason::NodeMismatch => "node_mismatch",
            UnplacedReason::Constraint => "constraint",
            UnplacedReason::Topology => "topology",
            UnplacedReason::Fragmentation => "fragmentation",
            UnplacedReason::Priority => "priority",
            UnplacedReason::HostResources => "host_resources",
            UnplacedReason::TooFew => "too_few",
            UnplacedReason::Kept => "kept",
            UnplacedReason::Turn => "turn",
            UnplacedReason::Surplus => "surplus",
        }
    }
}

impl LossCause {
    /// The word that reports show.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LossCause::Preempted => "preempted",
            LossCause::Moved => "moved",
            LossCause::Resized => "resized",
            LossCause::Drained => "drained",
            LossCause::NodeLost => "node_lost",
            LossCause::NodeFault => "node_fault",
            LossCause::Network => "network",
            LossCause::Backend => "backend",
            LossCause::Application => "application",
            LossCause::TimeLimit => "time_limit",
            LossCause::Cancelled => "cancelled",
            LossCause::Requeued => "requeued",
        }
    }
}

impl IdleCause {
    /// The word that reports show.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            IdleCause::NodeLost => "node_lost",
            IdleCause::Fault => "fault",
            IdleCause::Repair => "repair",
            IdleCause::Quarantine => "quarantine",
            IdleCause::Drain => "drain",
            IdleCause::Cordon => "cordon",
            IdleCause::Foreign => "foreign",
            IdleCause::Reserved => "reserved",
            IdleCause::DemandUnplaced(None) => "demand_unplaced",
            IdleCause::DemandUnplaced(Some(reason)) => reason.as_str(),
            IdleCause::DemandElsewhere => "demand_elsewhere",
            IdleCause::DemandOtherType => "demand_other_type",
            IdleCause::NoDemand => "no_demand",
        }
    }
}

impl Activity {
    /// Whether a job holds the accelerator for its workers; a spare is not counted.
    #[must_use]
    pub fn is_allocated(self) -> bool {
        !matches!(self, Activity::Spare | Activity::Idle(_))
    }

    /// Whether work was or is done, kept or not.
    #[must_use]
    pub fn is_work(self) -> bool {
        matches!(self, Activity::Kept | Activity::Lost(_) | Activity::Provisional)
    }
}

impl WaitReason {
    /// Whether the job could have used devices in that time.
    #[must_use]
    pub fn is_demand(self) -> bool {
        matches!(self, WaitReason::Waiting(_) | WaitReason::Assembling)
    }
}

/// With the cause behind a dot: `lost.preempted`, `idle.no_demand`.
impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Activity::Kept => f.write_str("kept"),
            Activity::Lost(cause) => write!(f, "lost.{}", cause.as_str()),
            Activity::Provisional => f.write_str("provisional"),
            Activity::Starting => f.write_str("starting"),
            Activity::Checkpointing => f.write_str("checkpointing"),
            Activity::Stopping => f.write_str("stopping"),
            Activity::Spare => f.write_str("spare"),
            Activity::Idle(cause) => write!(f, "idle.{}", cause.as_str()),
        }
    }
}

/// With the reason behind a dot: `held`, `waiting`, `waiting.quota`.
impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitReason::Held => f.write_str("held"),
            WaitReason::NotBefore => f.write_str("not_before"),
            WaitReason::Backoff => f.write_str("backoff"),
            WaitReason::Dependencies => f.write_str("dependencies"),
            WaitReason::Throttled => f.write_str("throttled"),
            WaitReason::Waiting(None) => f.write_str("waiting"),
            WaitReason::Waiting(Some(reason)) => write!(f, "waiting.{}", reason.as_str()),
            WaitReason::Assembling => f.write_str("assembling"),
            WaitReason::Starting => f.write_str("starting"),
        }
    }
}
