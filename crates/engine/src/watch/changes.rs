//! Changes that watchers receive, and places between them.

use muster_state::{JobRow, NodeRow, QueueRow, RestrictionRow};
use muster_types::policy::NotificationEvent;
use muster_types::{
    JobId, JobMetadata, JobSpec, LogIndex, Name, NodeId, NodeSpec, PriorityTier, Requester, ScheduleKey,
};
use std::sync::Arc;

/// Weight of a node's description without its labels and taints.
const NODE_WEIGHT: usize = 16;
/// Weight of a queue without its quotas, and of a quota.
const QUEUE_WEIGHT: usize = 8;
const QUOTA_WEIGHT: usize = 2;
/// Weight of the reason why a schedule was suspended, and of its name.
const SUSPENSION_WEIGHT: usize = 24;
/// Why a node was cordoned and drained, in the same unit.
const REASONS_WEIGHT: usize = 24;
/// Weight of one thing that is wrong with a node.
const CONDITION_WEIGHT: usize = 6;
/// Weight of one label or taint: a key and a value of at most 63 bytes each.
const LABEL_WEIGHT: usize = 4;

/// A place between two changes: behind the `ordinal`-th change of the record at `log_index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchPosition {
    /// The record.
    pub log_index: LogIndex,
    /// Changes of that record already seen; `u32::MAX` for all.
    pub ordinal: u32,
}

impl WatchPosition {
    /// Behind everything of the record.
    #[must_use]
    pub fn after(log_index: LogIndex) -> WatchPosition {
        WatchPosition { log_index, ordinal: u32::MAX }
    }
}

/// What changed.
#[derive(Clone, Debug)]
pub enum Change {
    /// A job, as it was after the record.
    Job {
        /// Which.
        id: JobId,
        /// Its row then.
        row: Arc<JobRow>,
        /// What was submitted.
        spec: Arc<JobSpec>,
        /// Its labels, annotations and creator.
        metadata: Option<Arc<JobMetadata>>,
        /// What watches select it by, as it was before a record that changed it: one that selected it by that has to show it once
        /// more.
        before: Option<JobBefore>,
    },
    /// A finished job was dropped.
    JobForgotten(JobId),
    /// A node, as it was after the record.
    Node {
        /// Which.
        id: NodeId,
        /// Its row then.
        row: Arc<NodeRow>,
        /// What restricted it then.
        restriction: Option<Arc<RestrictionRow>>,
        /// The gangs with workers on it then, by id.
        gangs: Arc<[JobId]>,
        /// What it said of itself before, where the record registers it again.
        before: Option<Arc<NodeSpec>>,
    },
    /// A lost node was dropped.
    NodeForgotten {
        /// Which.
        id: NodeId,
        /// What it had said of itself.
        spec: Arc<NodeSpec>,
    },
    /// A schedule makes no jobs any more.
    ScheduleSuspended {
        /// Which.
        schedule: ScheduleKey,
        /// Who asked; nobody when the replicas did it.
        by: Requester,
        /// Why.
        reason: Arc<str>,
    },
    /// What a round did to queues, by name: as they were after it, none for those that were dropped.
    Queues(Arc<[(Name, Option<Arc<QueueRow>>)]>),
}

/// What a change of a job may have changed of what watches select jobs by.
#[derive(Clone, Debug)]
pub struct JobBefore {
    /// The tier before the change.
    pub tier: PriorityTier,
    /// The tenant before the change.
    pub tenant: Name,
    /// The labels, annotations and creator before the change; none when it had none of them.
    pub metadata: Option<Arc<JobMetadata>>,
}

/// One change and its place.
#[derive(Clone, Debug)]
pub struct Event {
    /// Behind this change.
    pub position: WatchPosition,
    /// What changed.
    pub change: Change,
    /// What has happened by it that receivers of notifications can be told of.
    pub occurrence: Option<NotificationEvent>,
    /// Receivers that the job itself names for that; none for what happens to anything else.
    pub named: Arc<[Name]>,
}

impl Event {
    /// What it may keep in memory that nothing else does, in workers' states of some 50 bytes.
    pub(super) fn weight(&self) -> usize {
        match &self.change {
            Change::Job { row, .. } => row.placement.as_ref().map_or(0, |placement| placement.slots.len()),
            Change::Node { row, restriction, gangs, before, .. } => {
                let restriction = restriction.as_ref().map_or(0, |row| restriction_weight(row));
                let overrides = row.overrides.as_ref().map_or(0, |set| description_weight(&set.said));
                let reasons = if row.reasons.is_some() { REASONS_WEIGHT } else { 0 };
                restriction
                    + overrides
                    + reasons
                    + description_weight(&row.spec)
                    + before.as_ref().map_or(0, |spec| description_weight(spec))
                    + gangs.len()
            }
            Change::NodeForgotten { spec, .. } => description_weight(spec),
            Change::JobForgotten(_) => 0,
            Change::ScheduleSuspended { .. } => SUSPENSION_WEIGHT,
            Change::Queues(queues) => {
                let quotas = |row: &Option<Arc<QueueRow>>| row.as_ref().map_or(0, |row| row.quotas.len());
                queues.iter().map(|(_, row)| QUEUE_WEIGHT + QUOTA_WEIGHT * quotas(row)).sum()
            }
        }
    }
}

fn restriction_weight(row: &RestrictionRow) -> usize {
    CONDITION_WEIGHT * (row.health.conditions.len() + row.health.recent.len())
}

fn description_weight(spec: &NodeSpec) -> usize {
    NODE_WEIGHT + LABEL_WEIGHT * (spec.labels.len() + spec.taints.len())
}
