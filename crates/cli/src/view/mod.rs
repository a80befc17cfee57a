//! The shape of `-o json` and `-o yaml`: stable, and apart from the API's messages.
//!
//! Every document has `schema: muster.dev/v1` and a `kind`. Fields are only ever added. Names are
//! camelCase, as in job files; times are RFC 3339 in UTC; words (phases, states) are lower-case; what is
//! not there is left out. Kinds: `Submission`, `Job`, `JobList`, `JobEvent`, `Node`, `NodeList`,
//! `NodeEvent`, `QueueList`, `QueueEvent`, `ClusterStatus`, `ClusterMembers`, `ClusterLeader`, `ClusterFormat`,
//! `ControlledJobs`, `Backup`, `Version`, `Explanation`, `Probe`, and `Policy` in the form of a policy file.

pub mod controls;
pub mod recovery;
pub mod restriction;

use std::collections::BTreeMap;

use muster_console::{SCHEMA, moment, span};
use muster_types::{DependencyRule, Level, PriorityTier};
use muster_wire::closed::word;
use muster_wire::time::span_us;
use muster_wire::v1;
use serde::Serialize;

pub use self::controls::{ControlledJobs, Controls};
use self::recovery::{Contract, Recovery};

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

/// Content of `Job`, and an item of `JobList`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    pub id: String,
    pub name: String,
    pub tenant: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Who submitted it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub creator: String,
    /// Changes whenever the job does.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub etag: String,
    pub tier: String,
    /// pending, starting, running, stopping, succeeded, failed or cancelled.
    pub phase: &'static str,
    pub attempt: u32,
    pub failures: u32,
    pub workers: u32,
    pub devices: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<String>,
    pub changed_at_index: u64,
    /// Whether nothing but capacity keeps it from starting: dependencies are met, and its time has come.
    pub released: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// Times that policy stopped it to make room.
    #[serde(skip_serializing_if = "is_zero")]
    pub preemptions: u32,
    /// When it last saved its work in this attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_time: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status_reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status_detail: String,
    /// Parts are shown to its tenant and to operators alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub redacted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Room that is kept for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promise: Option<Promise>,
    /// What became of its attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// What people have asked of it since it was submitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controls: Option<Controls>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<Spec>,
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

/// Room that is kept for a job.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Promise {
    pub promised_at_index: u64,
    pub region: String,
    pub cluster: String,
    /// By rank; left out in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<PromisedWorker>,
}

/// One worker of a promise.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PromisedWorker {
    pub rank: u32,
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

/// A job as it was submitted, defaults filled in.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<String>,
    pub groups: Vec<Group>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_time_limit: Option<String>,
    pub stop_grace: String,
    pub failure_retries: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub checkpoint_directory: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub working_directory: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<String>,
    pub preemptible: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Dependency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_run: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub datasets: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract: Option<Contract>,
}

/// How close together or how far apart workers have to be.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub required: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub preferred: String,
    pub balanced: bool,
    #[serde(skip_serializing_if = "is_zero")]
    pub segment_workers: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
}

/// At most so many workers in one domain.
#[derive(Serialize)]
pub struct Spread {
    pub level: String,
    pub max: u32,
}

/// A job that another one waits for.
#[derive(Serialize)]
pub struct Dependency {
    pub job: String,
    pub when: String,
}

/// A task group of a spec.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    pub name: String,
    pub workers: u32,
    pub workers_min: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<Slice>,
    pub command: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerators: Option<AcceleratorRequest>,
    pub cpu_milli: u64,
    pub memory_bytes: u64,
}

/// Slices of a group.
#[derive(Serialize)]
pub struct Slice {
    pub shape: String,
    pub count: u32,
}

/// Accelerators of a worker.
#[derive(Serialize)]
pub struct AcceleratorRequest {
    /// Types with their throughput; empty for any type.
    pub types: BTreeMap<String, Decimal>,
    /// Whole devices, or a share of one below 1.
    pub count: Decimal,
}

/// A number with so many decimals, as people write it: `8`, `0.25`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    value: u64,
    places: u32,
}

impl Decimal {
    pub fn milli(value: u64) -> Decimal {
        Decimal { value, places: 3 }
    }

    pub fn micro(value: u64) -> Decimal {
        Decimal { value, places: 6 }
    }
}

impl Serialize for Decimal {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let scale = 10u64.pow(self.places);
        if self.value.is_multiple_of(scale) {
            return serializer.serialize_u64(self.value / scale);
        }
        // The shortest digits that mean the same double are those that were written.
        serializer.serialize_f64(self.value as f64 / scale as f64)
    }
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
    pub held_jobs: u64,
    pub pending_devices_milli: u64,
    pub active_jobs: u64,
    pub active_devices_milli: u64,
    /// By the tenant and everyone below it.
    pub uses: Vec<DeviceUse>,
    pub share_billionths: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<QuotaUse>,
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

impl From<v1::Queue> for Queue {
    fn from(queue: v1::Queue) -> Queue {
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
        Queue {
            tenant: queue.tenant,
            parent: queue.parent,
            weight_milli: queue.weight_milli,
            pending_jobs: queue.pending_jobs,
            held_jobs: queue.held_jobs,
            pending_devices_milli: queue.pending_devices_milli,
            active_jobs: queue.active_jobs,
            active_devices_milli: queue.active_devices_milli,
            uses: queue.uses.into_iter().map(device_use).collect(),
            share_billionths: queue.share_billionths,
            quotas: queue.quotas.into_iter().map(quota_use).collect(),
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
    pub format: u32,
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
    pub text: String,
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
    pub format: u32,
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
    pub format: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
}

/// What a replica says of itself.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    pub version: String,
    pub format_max: u32,
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
            format_max: health.format_max,
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
    pub format_max: u32,
    pub replica_id: u64,
    pub region: String,
    pub cluster_id: String,
}

impl Version {
    pub fn new(client: &'static str, info: Option<v1::GetServerInfoResponse>) -> Version {
        let server = info.map(|info| ServerVersion {
            version: info.version,
            api_versions: info.api_versions,
            format_max: info.format_max,
            replica_id: info.replica_id,
            region: info.region,
            cluster_id: info.cluster_id,
        });
        Version { schema: SCHEMA, kind: "Version", client, server }
    }
}

/// Whether a job in this phase has ended.
pub fn has_ended(phase: i32) -> bool {
    use v1::JobPhase::{Cancelled, Failed, Succeeded};
    [Succeeded, Failed, Cancelled].into_iter().any(|end| phase == i32::from(end))
}

/// A phase as people write it; `unknown` for one of a newer server.
pub fn phase_word(phase: i32) -> &'static str {
    match v1::JobPhase::try_from(phase) {
        Ok(v1::JobPhase::Pending) => "pending",
        Ok(v1::JobPhase::Starting) => "starting",
        Ok(v1::JobPhase::Running) => "running",
        Ok(v1::JobPhase::Stopping) => "stopping",
        Ok(v1::JobPhase::Succeeded) => "succeeded",
        Ok(v1::JobPhase::Failed) => "failed",
        Ok(v1::JobPhase::Cancelled) => "cancelled",
        Ok(v1::JobPhase::Unspecified) | Err(_) => "unknown",
    }
}

fn accelerators(message: v1::Accelerators) -> Accelerators {
    Accelerators { r#type: message.r#type, count: message.count }
}

impl From<v1::Job> for Job {
    fn from(job: v1::Job) -> Job {
        Job {
            phase: phase_word(job.phase),
            id: job.id,
            name: job.name,
            tenant: job.tenant,
            labels: job.labels.into_iter().collect(),
            annotations: job.spec.iter().flat_map(|spec| spec.annotations.clone()).collect(),
            creator: job.creator,
            etag: job.etag,
            tier: word::<PriorityTier>(job.tier).to_owned(),
            attempt: job.attempt,
            failures: job.failures,
            workers: job.worker_count,
            devices: job.device_count,
            array_index: job.array_index,
            create_time: moment(job.create_time),
            start_time: moment(job.start_time),
            end_time: moment(job.end_time),
            changed_at_index: job.changed_at_index,
            released: job.released,
            estimate: job.estimate.map(Estimate::from),
            preemptions: job.preemptions,
            checkpoint_time: moment(job.checkpoint_time),
            status_reason: job.status_reason,
            status_detail: job.status_detail,
            redacted: job.redacted,
            placement: job.placement.map(Placement::from),
            promise: job.promise.map(Promise::from),
            recovery: job.recovery.map(Recovery::from),
            controls: job.controls.map(Controls::from),
            spec: job.spec.map(Spec::from),
        }
    }
}

impl From<v1::Promise> for Promise {
    fn from(promise: v1::Promise) -> Promise {
        let worker = |worker: v1::PromisedWorker| PromisedWorker {
            rank: worker.rank,
            node: worker.node_name,
            node_id: worker.node_id,
            devices: worker.devices,
        };
        Promise {
            promised_at_index: promise.promised_at_index,
            region: promise.region,
            cluster: promise.cluster,
            workers: promise.workers.into_iter().map(worker).collect(),
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

impl From<v1::JobSpec> for Spec {
    fn from(spec: v1::JobSpec) -> Spec {
        Spec {
            regions: spec.regions,
            groups: spec.groups.into_iter().map(Group::from).collect(),
            run_time_limit: span(spec.run_time_limit),
            stop_grace: span(spec.stop_grace).unwrap_or_default(),
            failure_retries: spec.failure_retries_max,
            checkpoint_directory: spec.checkpoint_directory,
            working_directory: spec.working_directory,
            array: Some(spec.array_size).filter(|size| *size > 0),
            topology: spec.topology.map(Topology::from),
            node_selector: spec.node_selector.into_iter().map(|(label, v)| (label, v.values)).collect(),
            tolerations: spec.tolerations,
            preemptible: spec.preemptible.unwrap_or(true),
            after: spec
                .dependencies
                .into_iter()
                .map(|d| Dependency { job: d.job_id, when: word::<DependencyRule>(d.rule).to_owned() })
                .collect(),
            not_before: moment(spec.not_before),
            deadline: moment(spec.deadline),
            expected_run: span(spec.expected_run),
            datasets: spec.datasets,
            contract: spec.contract.map(Contract::from),
        }
    }
}

impl From<v1::TopologyRule> for Topology {
    fn from(rule: v1::TopologyRule) -> Topology {
        Topology {
            required: word::<Level>(rule.required).to_owned(),
            preferred: word::<Level>(rule.preferred).to_owned(),
            balanced: rule.balanced,
            segment_workers: rule.segment_workers,
            spread: rule.spread.map(|spread| Spread {
                level: word::<Level>(spread.level).to_owned(),
                max: spread.workers_max,
            }),
        }
    }
}

impl From<v1::AcceleratorRequest> for AcceleratorRequest {
    fn from(request: v1::AcceleratorRequest) -> AcceleratorRequest {
        use v1::accelerator_request::Amount;
        let milli = match request.amount {
            Some(Amount::Count(count)) => u64::from(count) * 1_000,
            Some(Amount::ShareMilli(milli)) => milli.into(),
            None => 0,
        };
        let choice = |c: v1::AcceleratorChoice| (c.r#type, Decimal::milli(c.throughput_milli.into()));
        AcceleratorRequest {
            types: request.choices.into_iter().map(choice).collect(),
            count: Decimal::milli(milli),
        }
    }
}

impl From<v1::TaskGroup> for Group {
    fn from(group: v1::TaskGroup) -> Group {
        Group {
            name: group.name,
            workers: group.workers,
            workers_min: group.workers_min,
            slice: group.slice.map(|slice| Slice { shape: slice.shape, count: slice.count }),
            command: group.command,
            environment: group.environment.into_iter().collect(),
            accelerators: group.accelerators.map(AcceleratorRequest::from),
            cpu_milli: group.cpu_milli,
            memory_bytes: group.memory_bytes,
        }
    }
}

impl From<v1::Node> for Node {
    fn from(node: v1::Node) -> Node {
        let description = node.description.unwrap_or_default();
        Node {
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_console::Document;

    #[test]
    fn the_shape_of_a_job_is_stable() {
        let job = v1::Job {
            id: "job-1".into(),
            name: "train".into(),
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
        let document = Document::new("Job", Some(9), Job::from(job));
        assert_eq!(
            serde_json::to_string(&document).unwrap(),
            r#"{"schema":"muster.dev/v1","kind":"Job","logIndex":9,"id":"job-1","name":"train","tenant":"","tier":"","phase":"running","attempt":0,"failures":0,"workers":2,"devices":4,"changedAtIndex":7,"released":false,"placement":{"fencingToken":"1.6","region":"eu","cluster":"","workers":[{"rank":0,"node":"n0","nodeId":"","devices":[0,1],"state":"exited","exit":"exit code 3","exitCode":3}]}}"#
        );
    }
}
