//! The shape of `-o json` and `-o yaml`: stable, and apart from the API's messages.
//!
//! Every document has `schema: muster.dev/v1` and a `kind`. Fields are only ever added. Names are
//! camelCase, as in job files; times are RFC 3339 in UTC; words (phases, states) are lower-case; what is
//! not there is left out. Kinds: `Submission`, `Job`, `JobList`, `JobEvent`, `Node`, `NodeList`,
//! `NodeEvent`, `QueueList`, `QueueEvent`, `ClusterStatus`, `ClusterMembers`, `ClusterLeader`, `ClusterFormat`,
//! `ControlledJobs`, `NotificationList`, `NotificationDeliveryList`, `Backup`, `Version`, `Explanation`, `Probe`, and `Policy` in the form of a policy file.

pub mod controls;
pub mod recovery;
pub mod restriction;

use std::collections::BTreeMap;

use muster_console::{SCHEMA, moment, span};
use muster_manifest::Fields;
use muster_types::PriorityTier;
use muster_wire::closed::{phase_word, word};
use muster_wire::node_state::node_state;
use muster_wire::time::span_us;
use muster_wire::v1;
use serde::Serialize;

pub use self::controls::{ControlledJobs, Controls};
use self::recovery::AttemptHistory;

/// Content of `Submission`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Submission {
    /// In the order of the file, arrays expanded in place; empty when only validated.
    pub job_ids: Vec<String>,
    pub request_id: String,
    pub validate_only: bool,
}

/// Content of `JobEvent`; its `logIndex` is the record that did it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobEvent {
    /// changed, syncEnd, bookmark, forgotten or restarted.
    pub r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
}

/// Content of `Job`, and an item of `JobList`: who it is, what it asks for, and what became of it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    pub id: String,
    pub name: String,
    pub tenant: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// It has more labels, which are shown where one job is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub labels_incomplete: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Who submitted it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub creator: String,
    /// Its place in an array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayMember>,
    /// Changes whenever the job does.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub etag: String,
    /// Parts are shown to its tenant and to operators alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub redacted: bool,
    /// As a job file has it, and always with `groups`; left out in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<Fields>,
    pub status: JobStatus,
}

/// The place of a job in an array of like jobs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ArrayMember {
    pub array_id: String,
    pub index: u32,
    pub size: u32,
    /// Its place among the members.
    pub ordinal: u32,
}

/// What became of a job.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// pending, starting, running, stopping, succeeded, failed or cancelled.
    pub phase: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    pub tier: String,
    pub attempt: u32,
    pub failures: u32,
    pub worker_count: u32,
    pub device_count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<String>,
    pub changed_at_index: u64,
    /// Whether nothing but capacity keeps it from starting: dependencies are met, and its time has come.
    pub eligible: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// Times that it was preempted.
    #[serde(skip_serializing_if = "is_zero")]
    pub preemptions: u32,
    /// When it last saved its work, in whatever attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<Checkpoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Capacity that is reserved for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nominated_placement: Option<NominatedPlacement>,
    /// What became of its attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<AttemptHistory>,
    /// What people have asked of it since it was submitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controls: Option<Controls>,
    /// When it is expected to start, where a list asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_start: Option<ExpectedStart>,
}

/// When a job is expected to start.
#[derive(Serialize)]
pub struct ExpectedStart {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p10: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90: Option<String>,
}

impl From<v1::StartEstimate> for ExpectedStart {
    fn from(start: v1::StartEstimate) -> ExpectedStart {
        ExpectedStart { p10: moment(start.p10), p50: moment(start.p50), p90: moment(start.p90) }
    }
}

/// Work that was saved.
#[derive(Serialize)]
pub struct Checkpoint {
    pub attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
}

/// What the cluster expects of a job.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    pub run_time: String,
    #[serde(rename = "runTimeP90")]
    pub run_time_p90: String,
}

impl From<v1::Estimate> for Estimate {
    fn from(estimate: v1::Estimate) -> Estimate {
        Estimate {
            run_time: span(estimate.run_time).unwrap_or_default(),
            run_time_p90: span(estimate.run_time_p90).unwrap_or_default(),
        }
    }
}

/// Capacity that is reserved for a job.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NominatedPlacement {
    pub nominated_at_index: u64,
    pub region: String,
    pub cluster: String,
    /// By rank; left out in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerSlot>,
}

/// Capacity for one worker.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerSlot {
    pub index: u32,
    pub node: String,
    pub node_id: String,
    pub devices: Vec<u32>,
}

/// The current or last placement of a job.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// `<generation>.<log index>`.
    pub fencing_token: String,
    pub region: String,
    pub cluster: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_time: Option<String>,
    /// By rank; left out in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<Worker>,
}

/// One worker of a placement.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    pub rank: u32,
    pub node: String,
    pub node_id: String,
    pub devices: Vec<u32>,
    pub state: String,
    /// How it ended, for people: `exit code 1`, `signal 9`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// Accelerators of one type.
#[derive(Serialize)]
pub struct Accelerators {
    pub r#type: String,
    pub count: u32,
}

/// Content of `Node`, and an item of `NodeList`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    pub name: String,
    pub id: String,
    /// up or lost.
    pub status: &'static str,
    /// What it is good for, in one word: the gravest of what is known.
    #[serde(skip)]
    pub state: &'static str,
    pub cordoned: bool,
    pub incarnation: u32,
    pub region: String,
    pub cluster: String,
    pub block: String,
    pub rack: String,
    pub address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerators: Option<Accelerators>,
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    /// Absent when it gives no scratch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scratch_bytes: Option<u64>,
    pub free_devices: u32,
    pub free_cpu_milli: u64,
    pub free_memory_bytes: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<String>,
    /// `<pod>/<cube>/(x, y, z)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_time: Option<String>,
    pub changed_at_index: u64,
    pub job_ids: Vec<String>,
    /// Absent when nothing is known against it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restriction: Option<restriction::Restriction>,
    /// Absent when nobody else holds anything there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreign_load: Option<ForeignLoad>,
    /// Absent when operators have set no labels and taints there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overrides: Option<NodeOverrides>,
    /// Absent when it is not cordoned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cordon_reason: Option<NodeReason>,
    /// Absent when it is not drained, or when no operator asked for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_reason: Option<NodeReason>,
}

/// Why an operator took a node out of placement, who did it and when.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReason {
    /// Empty when nothing was said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Empty when nobody knows.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub creator: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_time: Option<String>,
}

impl From<v1::NodeReason> for NodeReason {
    fn from(said: v1::NodeReason) -> NodeReason {
        NodeReason { reason: said.reason, creator: said.creator, create_time: moment(said.create_time) }
    }
}

/// Labels and taints that operators have set on a node; `labels` and `taints` of the node have them already.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeOverrides {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<String>,
    /// Who changed them last; empty when nobody knows.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub changed_by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_time: Option<String>,
}

/// What others than Muster hold of a node, where another scheduler gives it out too.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ForeignLoad {
    /// Nothing can be started there for now.
    pub closed: bool,
    /// How many devices; which ones, nobody says.
    pub devices: usize,
    pub cpu_milli: u64,
    pub memory_bytes: u64,
}

/// Content of `NodeEvent`; its `logIndex` is the record that did it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeEvent {
    /// changed, syncEnd, bookmark, forgotten or restarted.
    pub r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Node>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
}

/// Content of `QueueEvent`; its `logIndex` is the last record of the round that did it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueEvent {
    /// changed, syncEnd, bookmark or restarted.
    pub r#type: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<Queue>,
    /// Tenants whose queues are gone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forgotten: Vec<String>,
}

/// An item of `QueueList` and `QueueEvent`: what a tenant has waiting, holds and may use.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    pub tenant: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parent: String,
    pub weight_milli: u32,
    pub pending_jobs: u64,
    /// Those of them that wait for another job or for a time.
    pub gated_jobs: u64,
    pub pending_devices_milli: u64,
    pub active_jobs: u64,
    pub active_devices_milli: u64,
    /// By the tenant and everyone below it.
    pub uses: Vec<DeviceUse>,
    pub share_billionths: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<QuotaUse>,
    /// Its users with jobs that wait, in the order of their turns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub user_turns: Vec<UserTurn>,
}

/// A user of a tenant whose jobs wait.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UserTurn {
    pub user: String,
    pub tier: String,
    pub share_billionths: u64,
    pub weight_milli: u32,
}

/// Use of one type of accelerator.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceUse {
    pub r#type: String,
    pub used_milli: u64,
    pub decayed_device_seconds: u64,
}

/// How much of a quota is in use.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaUse {
    pub r#type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub region: String,
    pub nominal_milli: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub borrowing_limit_milli: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lending_limit_milli: Option<u64>,
    pub used_milli: u64,
}

impl From<v1::TenantUsage> for Queue {
    fn from(queue: v1::TenantUsage) -> Queue {
        let device_use = |used: v1::DeviceUse| DeviceUse {
            r#type: used.r#type,
            used_milli: used.used_milli,
            decayed_device_seconds: used.decayed_device_seconds,
        };
        let quota_use = |quota: v1::QuotaUse| QuotaUse {
            r#type: quota.r#type,
            region: quota.region,
            nominal_milli: quota.nominal_milli,
            borrowing_limit_milli: quota.borrowing_limit_milli,
            lending_limit_milli: quota.lending_limit_milli,
            used_milli: quota.used_milli,
        };
        let user_turn = |turn: v1::UserTurn| UserTurn {
            user: turn.user,
            tier: word::<PriorityTier>(turn.tier).to_owned(),
            share_billionths: turn.share_billionths,
            weight_milli: turn.weight_milli,
        };
        Queue {
            tenant: queue.tenant,
            parent: queue.parent,
            weight_milli: queue.weight_milli,
            pending_jobs: queue.pending_jobs,
            gated_jobs: queue.gated_jobs,
            pending_devices_milli: queue.pending_devices_milli,
            active_jobs: queue.active_jobs,
            active_devices_milli: queue.active_devices_milli,
            uses: queue.uses.into_iter().map(device_use).collect(),
            share_billionths: queue.share_billionths,
            quotas: queue.quotas.into_iter().map(quota_use).collect(),
            user_turns: queue.user_turns.into_iter().map(user_turn).collect(),
        }
    }
}

/// Content of `ClusterStatus`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    pub cluster_id: String,
    pub cluster_generation: u32,
    pub jobs: JobCounts,
    pub nodes: NodeCounts,
    /// The record format in force.
    pub record_format: u32,
    /// What should be looked at, the most urgent first.
    pub warnings: Vec<Warning>,
    /// A change of the members that is being made.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub change_running: String,
    pub replicas: Vec<Replica>,
}

/// Something that will hurt if nothing is done.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Warning {
    pub code: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<u64>,
}

/// Content of `ClusterMembers`: who is a member after a change.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Members {
    pub changed: bool,
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    pub warnings: Vec<String>,
}

/// Content of `ClusterFormat`.
#[derive(Serialize)]
pub struct ClusterFormat {
    pub record_format: u32,
}

/// Content of `ClusterLeader`.
#[derive(Serialize)]
pub struct ClusterLeader {
    pub leader: u64,
}

/// Content of `Backup`: what a file holds.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Backup {
    pub file: String,
    pub cluster_id: String,
    pub cluster_generation: u32,
    pub backup_log_index: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_time: Option<String>,
    pub state_digest: String,
    pub format: u16,
    pub replica: u64,
    pub version: String,
    pub pieces: u64,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u64>,
}

/// Jobs by what they do.
#[derive(Serialize)]
pub struct JobCounts {
    pub pending: u64,
    pub active: u64,
    pub finished: u64,
}

/// Nodes by status.
#[derive(Serialize)]
pub struct NodeCounts {
    pub up: u64,
    pub lost: u64,
}

/// One replica, as it described itself; without its numbers when it could not be asked.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Replica {
    pub id: u64,
    pub region: String,
    pub endpoint: String,
    pub voter: bool,
    /// leader, unconfirmed (leads by its own account, and no quorum answers it), follower, candidate, learner or
    /// unreachable.
    pub role: String,
    /// Entries it lacks, as the leader sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_entries: Option<u64>,
    /// How long ago it last answered the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ReplicaStatus>,
}

/// The numbers of a replica that answered.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStatus {
    pub log_index: u64,
    /// How far it may be behind the others; left out when it does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness: Option<String>,
    pub state_digest: String,
    pub term: u64,
    pub raft_last_index: u64,
    pub raft_committed_index: u64,
    pub raft_applied_index: u64,
    pub raft_snapshot_index: u64,
    pub records_rejected: u64,
    pub record_format: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
}

/// What a replica says of itself.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    pub version: String,
    pub max_record_format: u32,
    /// enough, low or full.
    pub space: &'static str,
    pub free_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush_stall: Option<String>,
    /// Of the recent ones, as in `350us`.
    pub flush_time: String,
    pub rejoining: bool,
    pub cluster_generation: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_age: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive_log_index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_days_left: Option<i64>,
}

impl From<v1::ReplicaHealth> for Health {
    fn from(health: v1::ReplicaHealth) -> Health {
        let space = match health.space() {
            v1::StorageSpace::Enough => "enough",
            v1::StorageSpace::Low => "low",
            v1::StorageSpace::Full => "full",
            v1::StorageSpace::Unspecified => "unknown",
        };
        Health {
            version: health.version,
            max_record_format: health.max_record_format,
            space,
            free_bytes: health.free_bytes,
            flush_stall: span(health.flush_stall),
            flush_time: format!("{}us", span_us(health.flush_time).unwrap_or_default()),
            rejoining: health.rejoining,
            cluster_generation: health.cluster_generation,
            snapshot_age: span(health.snapshot_age),
            archive_log_index: health.archive_log_index,
            certificate_days_left: health.certificate_days_left,
        }
    }
}

/// The document `Version`.
#[derive(Serialize)]
pub struct Version {
    schema: &'static str,
    kind: &'static str,
    pub client: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerVersion>,
}

/// A replica's version.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerVersion {
    pub version: String,
    pub api_versions: Vec<String>,
    pub max_record_format: u32,
    pub replica_id: u64,
    pub region: String,
    pub cluster_id: String,
}

impl Version {
    pub fn new(client: &'static str, info: Option<v1::GetServerInfoResponse>) -> Version {
        let server = info.map(|info| ServerVersion {
            version: info.version,
            api_versions: info.api_versions,
            max_record_format: info.max_record_format,
            replica_id: info.replica_id,
            region: info.region,
            cluster_id: info.cluster_id,
        });
        Version { schema: SCHEMA, kind: "Version", client, server }
    }
}

/// Whether a job in this phase has ended.
pub fn has_ended(phase: v1::JobPhase) -> bool {
    use v1::JobPhase::{Cancelled, Failed, Succeeded};
    matches!(phase, Succeeded | Failed | Cancelled)
}

fn accelerators(message: v1::Accelerators) -> Accelerators {
    Accelerators { r#type: message.r#type, count: message.count }
}

impl From<v1::Job> for Job {
    fn from(job: v1::Job) -> Job {
        Job {
            id: job.id,
            name: job.name,
            tenant: job.tenant,
            labels: job.labels.into_iter().collect(),
            labels_incomplete: job.labels_incomplete,
            annotations: job.annotations.into_iter().collect(),
            creator: job.creator,
            array: job.array.map(|member| ArrayMember {
                array_id: member.array_id,
                index: member.index,
                size: member.size,
                ordinal: member.ordinal,
            }),
            etag: job.etag,
            redacted: job.redacted,
            spec: job.spec.as_ref().map(muster_manifest::spec_fields),
            status: JobStatus::from(job.status.unwrap_or_default()),
        }
    }
}

impl From<v1::JobStatus> for JobStatus {
    fn from(status: v1::JobStatus) -> JobStatus {
        let checkpoint =
            |saved: v1::Checkpoint| Checkpoint { attempt: saved.attempt, time: moment(saved.time) };
        JobStatus {
            phase: phase_word(status.phase()),
            tier: word::<PriorityTier>(status.tier).to_owned(),
            reason: status.reason,
            message: status.message,
            attempt: status.attempt,
            failures: status.failures,
            worker_count: status.worker_count,
            device_count: status.device_count,
            create_time: moment(status.create_time),
            start_time: moment(status.start_time),
            end_time: moment(status.end_time),
            changed_at_index: status.changed_at_index,
            eligible: status.eligible,
            estimate: status.estimate.map(Estimate::from),
            preemptions: status.preemptions,
            last_checkpoint: status.last_checkpoint.map(checkpoint),
            placement: status.placement.map(Placement::from),
            nominated_placement: status.nominated_placement.map(NominatedPlacement::from),
            history: status.history.map(AttemptHistory::from),
            controls: status.controls.map(Controls::from),
            expected_start: status.expected_start.map(ExpectedStart::from),
        }
    }
}

impl From<v1::NominatedPlacement> for NominatedPlacement {
    fn from(nominated: v1::NominatedPlacement) -> NominatedPlacement {
        let slot = |slot: v1::WorkerSlot| WorkerSlot {
            index: slot.index,
            node: slot.node_name,
            node_id: slot.node_id,
            devices: slot.devices,
        };
        NominatedPlacement {
            nominated_at_index: nominated.nominated_at_index,
            region: nominated.region,
            cluster: nominated.cluster,
            workers: nominated.workers.into_iter().map(slot).collect(),
        }
    }
}

impl From<v1::Placement> for Placement {
    fn from(placement: v1::Placement) -> Placement {
        let token = placement.token.unwrap_or_default();
        Placement {
            fencing_token: format!("{}.{}", token.generation, token.log_index),
            region: placement.region,
            cluster: placement.cluster,
            create_time: moment(placement.create_time),
            workers: placement.workers.into_iter().map(Worker::from).collect(),
        }
    }
}

impl From<v1::WorkerPlacement> for Worker {
    fn from(worker: v1::WorkerPlacement) -> Worker {
        let exit = worker.exit.as_ref();
        let exit_code = match exit.and_then(|e| e.kind.as_ref()) {
            Some(v1::exit_status::Kind::Code(code)) => Some(*code),
            _ => None,
        };
        let words = |e| muster_wire::convert::exit_status_from_proto("exit", e).map(|e| e.to_string());
        Worker {
            rank: worker.rank,
            node: worker.node_name,
            node_id: worker.node_id,
            devices: worker.devices,
            state: word::<v1::WorkerState>(worker.state).to_owned(),
            exit: exit.map(|e| words(e).unwrap_or_else(|_| "unknown".to_owned())),
            exit_code,
        }
    }
}

impl From<v1::Node> for Node {
    fn from(node: v1::Node) -> Node {
        let state = node_state(&node);
        let description = node.description.unwrap_or_default();
        Node {
            state,
            status: match v1::NodeStatus::try_from(node.status) {
                Ok(v1::NodeStatus::Up) => "up",
                Ok(v1::NodeStatus::Lost) => "lost",
                Ok(v1::NodeStatus::Unspecified) | Err(_) => "unknown",
            },
            id: node.id,
            cordoned: node.cordoned,
            incarnation: node.incarnation,
            name: description.name,
            region: description.region,
            cluster: description.cluster,
            block: description.block,
            rack: description.rack,
            address: description.address,
            accelerators: description.accelerators.map(accelerators),
            cpu_milli: description.cpu_milli,
            memory_bytes: description.memory_bytes,
            scratch_bytes: Some(description.scratch_bytes).filter(|bytes| *bytes > 0),
            labels: description.labels.into_iter().collect(),
            taints: description.taints,
            pod: description.pod.map(|pod| {
                let at: Vec<String> = pod.at.iter().map(u32::to_string).collect();
                format!("{}/{}/({})", pod.pod, pod.cube, at.join(", "))
            }),
            free_devices: node.free_devices,
            free_cpu_milli: node.free_cpu_milli,
            free_memory_bytes: node.free_memory_bytes,
            change_time: moment(node.change_time),
            changed_at_index: node.changed_at_index,
            job_ids: node.job_ids,
            restriction: node.restriction.map(Into::into),
            foreign_load: node.foreign_load.map(|load| ForeignLoad {
                closed: load.closed,
                devices: load.devices.len(),
                cpu_milli: load.cpu_milli,
                memory_bytes: load.memory_bytes,
            }),
            overrides: node.overrides.map(|set| NodeOverrides {
                labels: set.labels.into_iter().collect(),
                taints: set.taints,
                changed_by: set.changed_by,
                change_time: moment(set.change_time),
            }),
            cordon_reason: node.cordon_reason.map(Into::into),
            drain_reason: node.drain_reason.map(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_console::Document;

    #[test]
    fn the_shape_of_a_job_is_stable() {
        let status = v1::JobStatus {
            phase: v1::JobPhase::Running.into(),
            changed_at_index: 7,
            worker_count: 2,
            device_count: 4,
            placement: Some(v1::Placement {
                token: Some(v1::FencingToken { generation: 1, log_index: 6 }),
                region: "eu".into(),
                workers: vec![v1::WorkerPlacement {
                    node_name: "n0".into(),
                    devices: vec![0, 1],
                    state: v1::WorkerState::Exited.into(),
                    exit: Some(v1::ExitStatus { kind: Some(v1::exit_status::Kind::Code(3)) }),
                    ..Default::default()
                }],
                ..Default::default()
            }),
            ..Default::default()
        };
        let job =
            v1::Job { id: "job-1".into(), name: "train".into(), status: Some(status), ..Default::default() };
        let document = Document::new("Job", Some(9), Job::from(job));
        assert_eq!(
            serde_json::to_string(&document).unwrap(),
            r#"{"schema":"muster.dev/v1","kind":"Job","logIndex":9,"id":"job-1","name":"train","tenant":"","status":{"phase":"running","tier":"","attempt":0,"failures":0,"workerCount":2,"deviceCount":4,"changedAtIndex":7,"eligible":false,"placement":{"fencingToken":"1.6","region":"eu","cluster":"","workers":[{"rank":0,"node":"n0","nodeId":"","devices":[0,1],"state":"exited","exit":"exit code 3","exitCode":3}]}}}"#
        );
    }
}
