//! Requests of earlier clients: their bytes are kept, and every later build reads in them what was written, and takes them.
//!
//! `tests/golden/requests/v1beta1` has one file for each request of [`every_request`], and `index.txt` with
//! the call and the outcome of each. `tests/golden/README.md` says when which of them may change.

use prost::Message;
use std::collections::BTreeSet;
use std::path::PathBuf;
use tokio_stream::iter;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use v1::set_node_approval_request::Approval;

use super::*;

mod bookings;
mod coverage;
mod more;

use bookings::bookings;
use more::more;

const WRITE: &str = "MUSTER_GOLDEN_WRITE";
const PACKAGE: &str = "muster.v1beta1";
const ID: &str = "00000000-0000-4000-8000-0000000000aa";
/// Ids of jobs and arrays that no test has.
const JOB: &str = "job-zz0";
const ARRAY: &str = "array-zz0";

/// Messages as the bytes that they are.
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(to, &bytes);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; bytes::Buf::remaining(from)];
        bytes::Buf::copy_to_slice(from, &mut bytes);
        Ok(Some(bytes))
    }
}

/// What is wrong with some bytes, if anything is.
type Differs = Box<dyn Fn(&[u8]) -> Option<String>>;

/// One request, as the present build writes it.
struct Stored {
    name: &'static str,
    /// `Service/Call`.
    call: &'static str,
    bytes: Vec<u8>,
    /// What is wrong with the bytes of an earlier build; none where they mean the same.
    differs: Differs,
}

fn stored<M>(name: &'static str, call: &'static str, message: M) -> Stored
where
    M: Message + Default + PartialEq + std::fmt::Debug + 'static,
{
    let bytes = message.encode_to_vec();
    let differs = move |kept: &[u8]| match M::decode(kept) {
        Err(error) => Some(error.to_string()),
        Ok(read) if read != message => Some(format!("means {read:#?}\nand meant {message:#?}")),
        // What a build does not know it drops, and the request is carried out without it.
        Ok(read) if read.encoded_len() != kept.len() => Some("has fields that are not known".to_owned()),
        Ok(_) => None,
    };
    Stored { name, call, bytes, differs: Box::new(differs) }
}

fn read() -> Option<v1::ReadOptions> {
    Some(v1::ReadOptions { min_log_index: 2, generation: 1, ..bounded(60_000) })
}

fn least_job() -> v1::Job {
    let group = v1::TaskGroup {
        workers: 1,
        runtime: muster_wire::process(vec!["true".to_owned()]),
        ..Default::default()
    };
    v1::Job {
        name: "least".to_owned(),
        spec: Some(v1::JobSpec { groups: vec![group], ..Default::default() }),
        ..Default::default()
    }
}

/// Every field that a job of one group may have at once, none of them as it would be without it.
fn full_job() -> v1::Job {
    let text = str::to_owned;
    let group = v1::TaskGroup {
        name: text("main"),
        workers: 2,
        min_workers: 1,
        runtime: muster_wire::process(vec![text("python"), text("train.py")]),
        environment: vec![v1::EnvVar::new("A", "b"), v1::EnvVar::secret("TOKEN", "hub")],
        resources: Some(v1::Resources {
            accelerators: Some(v1::AcceleratorRequest {
                choices: vec![
                    v1::AcceleratorChoice { r#type: text("h100"), throughput_milli: 1_000 },
                    v1::AcceleratorChoice { r#type: text("a100"), throughput_milli: 450 },
                ],
                amount: Some(v1::accelerator_request::Amount::Count(2)),
            }),
            cpu_milli: 2_500,
            memory_bytes: 3 << 30,
        }),
        slice: None,
    };
    let spec = v1::JobSpec {
        groups: vec![group],
        tier: v1::Tier::Batch.into(),
        retry: Some(v1::RetryPolicy {
            max_failures: 3,
            limits: vec![v1::RetryLimit { failure_class: v1::FailureClass::NodeFault.into(), retries: 4 }],
            backoff: Some(duration(2_000)),
            max_backoff: Some(duration(60_000)),
            avoid: Some(duration(600_000)),
        }),
        checkpoint: Some(v1::CheckpointPolicy {
            directory: text("/shared"),
            dataset: String::new(),
            step: Some(duration(1_500)),
            save: Some(duration(5_000)),
            interval: Some(duration(900_000)),
        }),
        topology: Some(v1::TopologyRule {
            required: v1::TopologyLevel::Block.into(),
            preferred: v1::TopologyLevel::Rack.into(),
            balanced: false,
            segment_workers: 0,
            segments: Vec::new(),
            spread: None,
        }),
        run_time_limit: Some(duration(3_600_000)),
        deadline: Some(timestamp(4_102_444_800_000)),
        regions: vec![text("eu")],
        stop_grace: Some(duration(45_000)),
        working_directory: text("/work"),
        tolerations: vec![text("serving-only")],
        preemptible: Some(true),
        not_before: Some(timestamp(4_000_000_000_000)),
        expected_run: Some(duration(1_800_000)),
        launch: v1::LaunchForm::TorchrunElastic.into(),
        notice: Some(v1::NoticeRules { http_port: 9_000, http_path: text("/stop") }),
        spare_workers: 1,
        preflight: v1::Preflight::Off.into(),
        ..Default::default()
    };
    v1::Job {
        name: text("full"),
        tenant: text("lab"),
        labels: [(text("team"), text("vision"))].into(),
        annotations: [(text("note"), text("a\nb"))].into(),
        spec: Some(spec),
        ..Default::default()
    }
}

fn changed(change: impl FnOnce(&mut v1::JobSpec)) -> Option<v1::Job> {
    let mut job = least_job();
    change(job.spec_mut());
    Some(job)
}

fn submit(request_id: &str, job: Option<v1::Job>) -> v1::SubmitJobRequest {
    v1::SubmitJobRequest { request_id: request_id.to_owned(), job, validate_only: false }
}

fn id(n: u32) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

fn filter() -> Option<v1::JobFilter> {
    Some(v1::JobFilter {
        job_ids: vec![JOB.to_owned()],
        tenant: "lab".to_owned(),
        descendants: true,
        phases: vec![v1::JobPhase::Running.into(), v1::JobPhase::Failed.into()],
        name_prefix: "train-".to_owned(),
        label_selector: "team=vision,stage in (train,eval),!debug".to_owned(),
        creator: "tenant/lab/ada".to_owned(),
        mine: false,
        array_id: ARRAY.to_owned(),
        tiers: vec![v1::Tier::Production.into()],
        region: "eu".to_owned(),
        cluster: "eu-1".to_owned(),
        node: "h1".to_owned(),
        created_from: Some(timestamp(1_700_000_000_000)),
        created_until: Some(timestamp(1_800_000_000_000)),
    })
}

fn selector() -> Option<v1::JobSelector> {
    let filter = v1::JobFilter { job_ids: Vec::new(), ..filter().unwrap_or_default() };
    Some(v1::JobSelector { filter: Some(filter), all: false, after_job_id: JOB.to_owned() })
}

fn submissions() -> Vec<Stored> {
    let spread = v1::Spread { level: v1::TopologyLevel::Host.into(), max_workers: 1 };
    let rules = v1::TopologyRule { spread: Some(spread), ..Default::default() };
    let on_nodes = [("zone".to_owned(), v1::LabelValues { values: vec!["a".to_owned(), "b".to_owned()] })];
    let named = v1::NodeRequirements {
        expressions: vec![v1::NodeExpression {
            key: "zone".to_owned(),
            operator: v1::NodeOperator::NotIn.into(),
            values: vec!["c".to_owned()],
        }],
        only: Vec::new(),
        exclude: vec!["h7".to_owned()],
    };
    let after = v1::Dependency {
        job_id: JOB.to_owned(),
        rule: v1::DependencyRule::Finished.into(),
        ..Default::default()
    };
    let by_name = v1::Dependency { job_name: "least".to_owned(), ..Default::default() };
    let array = v1::JobArray { indices: "0-9:3,20".to_owned(), throttle: Some(2), ..Default::default() };
    let share = v1::AcceleratorRequest {
        choices: vec![v1::AcceleratorChoice { r#type: "h100".to_owned(), throughput_milli: 0 }],
        amount: Some(v1::accelerator_request::Amount::ShareMilli(250)),
    };
    let slice = v1::SliceRequest { shape: "4x4x4".to_owned(), count: 2 };
    let chips = v1::AcceleratorRequest {
        choices: vec![v1::AcceleratorChoice { r#type: "tpu-v5p".to_owned(), throughput_milli: 0 }],
        amount: None,
    };
    let image = v1::ContainerRuntime {
        image: "example.org/train:1".to_owned(),
        command: vec!["run".to_owned()],
        pull: v1::PullRule::Always.into(),
        mounts: vec![v1::ContainerMount {
            source: "/data".to_owned(),
            target: "/mnt".to_owned(),
            read_only: true,
        }],
        shared_memory_bytes: 64 << 20,
        ..Default::default()
    };
    let container = v1::ContainerRuntime {
        image: "example.org/train:1".to_owned(),
        command: vec!["run".to_owned()],
        user: "1000".to_owned(),
        ..Default::default()
    };
    let several = vec![least_job(), full_job()];
    let pipeline = [Some(least_job()), changed(|spec| spec.dependencies = vec![by_name])];
    let pipeline = pipeline
        .into_iter()
        .flatten()
        .zip(["least", "behind"])
        .map(|(job, name)| v1::Job { name: name.to_owned(), ..job });
    let pipeline = pipeline.collect();
    let streamed =
        v1::SubmitStreamRequest { sequence: 7, submission: Some(submit(&id(3), Some(least_job()))) };
    let submission = |name, request| stored(name, "JobService/SubmitJob", request);
    vec![
        submission("submit-least", submit(&id(1), Some(least_job()))),
        submission("submit-full", submit(&id(2), Some(full_job()))),
        submission("submit-array", submit(&id(4), changed(|spec| spec.array = Some(array)))),
        submission("submit-spread", submit(&id(5), changed(|spec| spec.topology = Some(rules)))),
        submission("submit-on-nodes", submit(&id(6), changed(|spec| spec.node_selector = on_nodes.into()))),
        submission("submit-not-on-nodes", submit(&id(70), changed(|spec| spec.nodes = Some(named)))),
        submission("submit-after", submit(&id(7), changed(|spec| spec.dependencies = vec![after]))),
        submission(
            "submit-share",
            submit(&id(8), changed(|spec| spec.groups[0].resources_mut().accelerators = Some(share))),
        ),
        submission(
            "submit-slice",
            submit(
                &id(9),
                changed(|spec| {
                    spec.groups[0].workers = 0;
                    spec.groups[0].resources_mut().accelerators = Some(chips);
                    spec.groups[0].slice = Some(slice);
                }),
            ),
        ),
        submission(
            "submit-container",
            submit(
                &id(10),
                changed(|spec| spec.groups[0].runtime = Some(v1::task_group::Runtime::Container(container))),
            ),
        ),
        submission(
            "submit-image",
            submit(
                &id(14),
                changed(|spec| spec.groups[0].runtime = Some(v1::task_group::Runtime::Container(image))),
            ),
        ),
        submission(
            "submit-workdir",
            submit(
                &id(15),
                changed(|spec| {
                    spec.workdir = Some(v1::Workdir { digest: format!("sha256:{}", "5a".repeat(32)) });
                }),
            ),
        ),
        submission(
            "submit-ulimits",
            submit(
                &id(16),
                changed(|spec| {
                    spec.ulimits = Some(v1::Ulimits { open_files: Some(4_096), ..Default::default() });
                }),
            ),
        ),
        submission(
            "submit-capacity",
            submit(
                &id(17),
                changed(|spec| {
                    spec.capacity = Some(v1::CapacityRules {
                        purchases: vec![v1::Purchase::Spot.into()],
                        fallback: Some(v1::CapacityFallback {
                            purchases: vec![v1::Purchase::OnDemand.into()],
                            after: Some(duration(1_800_000)),
                        }),
                        max_interruptions_per_day_milli: Some(500),
                    });
                }),
            ),
        ),
        submission(
            "submit-affinity",
            submit(
                &id(19),
                changed(|spec| {
                    spec.affinity = vec![v1::JobAffinity {
                        label_selector: "app=cache".to_owned(),
                        level: v1::AffinityLevel::Rack.into(),
                        rule: v1::AffinityRule::Apart.into(),
                        weight: 20,
                        ..Default::default()
                    }];
                }),
            ),
        ),
        submission(
            "submit-trace",
            submit(
                &id(18),
                changed(|spec| spec.trace_parent = format!("00-{}-{}-01", "4b".repeat(16), "5c".repeat(8))),
            ),
        ),
        submission(
            "submit-dataset",
            submit(&id(11), changed(|spec| spec.datasets = vec!["corpus".to_owned()])),
        ),
        submission("validate", v1::SubmitJobRequest { validate_only: true, ..submit("", Some(full_job())) }),
        stored("submit-stream", "JobService/SubmitStream", streamed),
        stored(
            "submit-pipeline",
            "JobService/SubmitJobs",
            v1::SubmitJobsRequest { request_id: id(13), jobs: pipeline, validate_only: true },
        ),
        stored(
            "submit-several",
            "JobService/SubmitJobs",
            v1::SubmitJobsRequest { request_id: id(12), jobs: several, validate_only: true },
        ),
    ]
}

fn jobs() -> Vec<Stored> {
    let job_id = || JOB.to_owned();
    let request_id = || ID.to_owned();
    let token = Some(v1::FencingToken { generation: 1, log_index: 77 });
    let mask = |paths: &[&str]| {
        Some(muster_wire::FieldMask { paths: paths.iter().map(|path| (*path).to_owned()).collect() })
    };
    let behind = ResumeToken::behind(1, LogIndex(1)).encode(CLUSTER, filter_digest(["jobs"]));
    let arrays = v1::ListArraysRequest {
        page_size: 20,
        page_token: String::new(),
        read: read(),
        filter: Some(v1::JobFilter { tenant: "default".to_owned(), ..Default::default() }),
    };
    let pages = v1::ListJobsRequest {
        page_size: 50,
        page_token: String::new(),
        read: read(),
        filter: filter(),
        view: v1::JobView::Full.into(),
        expected_starts: false,
    };
    let watch = v1::WatchJobsRequest {
        resume_token: String::new(),
        filter: filter(),
        view: v1::JobView::Basic.into(),
        skip_initial: true,
    };
    let output = v1::ReadLogsRequest {
        job_id: job_id(),
        rank: 3,
        follow: true,
        stream: v1::OutputStream::Stderr.into(),
        previous: false,
        tail_bytes: 4_096,
        token,
        from_position: 9,
    };
    let start = v1::ExecStart {
        job_id: job_id(),
        rank: 3,
        token,
        command: vec!["sh".to_owned(), "-c".to_owned(), "env".to_owned()],
        environment: [("LEVEL".to_owned(), "debug".to_owned())].into(),
        terminal: Some(v1::ExecTerminal { rows: 24, columns: 80 }),
        attach: false,
    };
    let exec = v1::ExecWorkerRequest { message: Some(v1::exec_worker_request::Message::Start(start)) };
    let start = v1::ForwardPortStart { job_id: job_id(), rank: 3, token, port: 6_006 };
    let forward = v1::ForwardPortRequest { message: Some(v1::forward_port_request::Message::Start(start)) };
    let (selector, validate_only) = (selector(), false);
    let update = v1::UpdateJobRequest {
        request_id: request_id(),
        job_id: job_id(),
        job: Some(full_job()),
        update_mask: mask(&["labels", "spec.tier", "spec.run_time_limit"]),
        etag: "1-77".to_owned(),
        validate_only,
        move_to_front: false,
    };
    macro_rules! controls {
        ($($name:literal $call:literal $request:ident),*) => {[$(
            stored($name, $call, v1::$request { request_id: request_id(), selector: selector.clone(), validate_only })
        ),*]};
    }
    let mut all = submissions();
    all.extend(controls!(
        "cancel-several" "JobService/CancelJobs" CancelJobsRequest,
        "hold" "JobService/HoldJobs" HoldJobsRequest,
        "release" "JobService/ReleaseJobs" ReleaseJobsRequest,
        "requeue" "JobService/RequeueJobs" RequeueJobsRequest,
        "suspend" "JobService/SuspendJobs" SuspendJobsRequest
    ));
    all.extend([
        stored(
            "cancel",
            "JobService/CancelJob",
            v1::CancelJobRequest { request_id: request_id(), job_id: job_id() },
        ),
        stored("get", "JobService/GetJob", v1::GetJobRequest { job_id: job_id(), read: read() }),
        stored("list", "JobService/ListJobs", pages),
        stored(
            "get-array",
            "JobService/GetArray",
            v1::GetArrayRequest { array_id: JOB.replace("job-", "array-"), read: read() },
        ),
        stored("list-arrays", "JobService/ListArrays", arrays),
        stored("list-unsaid", "JobService/ListJobs", v1::ListJobsRequest::default()),
        stored("watch", "JobService/WatchJobs", watch),
        stored(
            "watch-resumed",
            "JobService/WatchJobs",
            v1::WatchJobsRequest { resume_token: behind, ..Default::default() },
        ),
        stored("plan", "JobService/PlanJob", v1::PlanJobRequest { job: Some(full_job()), read: read() }),
        stored("explain", "JobService/ExplainJob", v1::ExplainJobRequest { job_id: job_id(), read: read() }),
        stored(
            "commit-checkpoint",
            "JobService/CommitCheckpoint",
            v1::CommitCheckpointRequest { job_id: job_id(), token },
        ),
        stored("read-logs", "JobService/ReadLogs", output),
        stored("exec", "JobService/ExecWorker", exec),
        stored("forward-port", "JobService/ForwardPort", forward),
        stored("update", "JobService/UpdateJob", update),
    ]);
    all
}

fn health_policy() -> v1::HealthPolicy {
    v1::HealthPolicy {
        xids: [(79, v1::XidAction::RebootNode.into())].into(),
        xid_unlisted: v1::XidAction::Cordon.into(),
        trust_driver: Some(false),
        findings: [("disk-full".to_owned(), v1::HealthAction::Cordon.into())].into(),
        max_reboots: Some(2),
        reset_takes_group: Some(true),
        maintenance_lead: Some(duration(900_000)),
    }
}

fn fleet() -> Vec<Stored> {
    // No test has it, so that these change nothing.
    let node = || "host-9".to_owned();
    let request_id = || ID.to_owned();
    let stop_after = Some(duration(60_000));
    let set_health = v1::SetHealthPolicyRequest {
        request_id: request_id(),
        policy: Some(health_policy()),
        expected_version: Some(0),
        validate_only: true,
    };
    let repair = v1::BeginNodeRepairRequest {
        request_id: request_id(),
        node: node(),
        action: v1::HealthAction::ResetGpu.into(),
        devices: vec![0, 3],
        stop_after,
    };
    let repaired = v1::FinishNodeRepairRequest {
        request_id: request_id(),
        node: node(),
        outcome: v1::RepairOutcome::Failed.into(),
        message: "it does not come up".to_owned(),
    };
    let quarantine = v1::QuarantineNodeRequest {
        request_id: request_id(),
        node: node(),
        reason: "smells of smoke".to_owned(),
    };
    let list = v1::ListNodesRequest {
        page_size: 10,
        page_token: String::new(),
        read: read(),
        region: "eu".to_owned(),
    };
    let approval = v1::SetNodeApprovalRequest {
        request_id: request_id(),
        name: node(),
        approval: Some(Approval::Reject(v1::RejectNode {})),
    };
    let admission = v1::SetNodeAdmissionRequest {
        request_id: request_id(),
        mode: v1::AdmissionMode::Pinned.into(),
        rules: Vec::new(),
        expected_version: Some(7),
    };
    macro_rules! nodes {
        ($($name:literal $call:literal $request:ident),*) => {[$(
            stored($name, $call, v1::$request { request_id: request_id(), node: node() })
        ),*]};
    }
    let mut all = Vec::from(nodes!(
        "uncordon" "FleetService/UncordonNode" UncordonNodeRequest,
        "forget" "FleetService/ForgetNode" ForgetNodeRequest,
        "cancel-drain" "FleetService/CancelNodeDrain" CancelNodeDrainRequest,
        "release-node" "FleetService/ReleaseNode" ReleaseNodeRequest
    ));
    let why = || "power work in row 4".to_owned();
    let cordon = v1::CordonNodeRequest { request_id: request_id(), node: node(), reason: why() };
    let drain = v1::DrainNodeRequest { request_id: request_id(), node: node(), stop_after, reason: why() };
    let set_labels = v1::SetNodeLabelsRequest {
        request_id: request_id(),
        node: node(),
        set_labels: [("pool".to_owned(), "research".to_owned())].into(),
        remove_labels: vec!["stage".to_owned()],
        set_taints: vec!["bring-up".to_owned()],
        remove_taints: vec!["spot".to_owned()],
        validate_only: false,
    };
    let after = v1::GetNodeAdmissionRequest { after: "host-1".to_owned(), page_size: 20 };
    let watch = v1::WatchNodesRequest { resume_token: String::new(), region: "eu".to_owned() };
    all.extend([
        stored("cordon", "FleetService/CordonNode", cordon),
        stored("drain", "FleetService/DrainNode", drain),
        stored("quarantine", "FleetService/QuarantineNode", quarantine),
        stored("set-labels", "FleetService/SetNodeLabels", set_labels),
        stored("begin-repair", "FleetService/BeginNodeRepair", repair),
        stored("finish-repair", "FleetService/FinishNodeRepair", repaired),
        stored("list-nodes", "FleetService/ListNodes", list),
        stored("list-capacity", "FleetService/ListCapacity", v1::ListCapacityRequest { read: read() }),
        stored(
            "get-node",
            "FleetService/GetNode",
            v1::GetNodeRequest { node: "h1".to_owned(), read: read() },
        ),
        stored("watch-nodes", "FleetService/WatchNodes", watch),
        stored("get-health", "FleetService/GetHealthPolicy", v1::GetHealthPolicyRequest { read: read() }),
        stored("set-health", "FleetService/SetHealthPolicy", set_health),
        stored("pending-nodes", "FleetService/ListPendingNodes", v1::ListPendingNodesRequest {}),
        stored("get-admission", "FleetService/GetNodeAdmission", after),
        stored("set-admission", "FleetService/SetNodeAdmission", admission),
        stored("set-approval", "FleetService/SetNodeApproval", approval),
    ]);
    all
}

fn limits() -> v1::TenantLimits {
    let job = v1::JobLimits {
        max_devices: Some(64),
        max_workers: Some(32),
        max_run_time: Some(duration(86_400_000)),
        default_run_time: Some(duration(3_600_000)),
        max_artifact_bytes: Some(4 << 30),
    };
    v1::TenantLimits {
        pending_jobs: Some(1_000),
        unfinished_jobs: Some(2_000),
        running_jobs: Some(500),
        requests_per_minute: Some(600),
        user: Some(v1::UserLimits {
            pending_jobs: Some(100),
            unfinished_jobs: Some(200),
            running_jobs: Some(50),
            accelerator_hours: Some(v1::AcceleratorBudget {
                most: Some(20),
                window: Some(duration(86_400_000)),
            }),
            submissions_per_minute: Some(30),
            spend: Some(v1::SpendBudget { most: Some(50), window: Some(duration(86_400_000)) }),
            devices: Some(16),
        }),
        job: Some(job),
        tiers: vec![v1::TierLimits {
            tier: v1::Tier::Free.into(),
            job: Some(job),
            submissions_per_minute: Some(20),
        }],
        accelerator_hours: Some(v1::AcceleratorBudget {
            most: Some(100),
            window: Some(duration(604_800_000)),
        }),
        cpu_milli: Some(2_000_000),
        memory_bytes: Some(16 << 40),
        spend: Some(v1::SpendBudget { most: Some(5_000), window: Some(duration(604_800_000)) }),
        on_limit: v1::OnLimit::Refuse.into(),
        users: [("ada".to_owned(), job)].into(),
    }
}

fn policy() -> v1::Policy {
    let text = str::to_owned;
    let quota = v1::Quota {
        r#type: text("h100"),
        region: text("eu"),
        nominal_milli: 64_000,
        borrowing_limit_milli: Some(8_000),
        lending_limit_milli: Some(4_000),
    };
    let tenant = v1::TenantPolicy {
        parent: String::new(),
        weight_milli: Some(2_000),
        quotas: vec![quota],
        rights: Some(v1::TenantRights {
            tier_max: v1::Tier::Critical.into(),
            non_preemptible: v1::NonPreemptible::Always.into(),
            deadlines: Some(true),
            bookings: None,
            purchases: Vec::new(),
            negative_nice: Some(true),
        }),
        queue: Some(v1::QueueChoices {
            order: v1::QueueOrder::Strict.into(),
            block_for: Some(duration(7_200_000)),
            preemption: v1::QueuePreemption::FairShare.into(),
            nodes: Some(v1::NodeRequirements { only: vec![text("n1")], ..Default::default() }),
            isolated: Some(true),
        }),
        users: None,
        limits: Some(limits()),
    };
    let window = v1::Window {
        name: text("network"),
        start_time: Some(timestamp(4_000_000_000_000)),
        end_time: Some(timestamp(4_000_003_600_000)),
        scope: Some(v1::WindowScope { region: text("eu"), cluster: text("eu-1"), ..Default::default() }),
        purpose: Some(v1::window::Purpose::Maintenance(v1::Maintenance {})),
    };
    v1::Policy {
        tenants: [(text("lab"), tenant)].into(),
        order: Some(v1::OrderPolicy {
            order: v1::JobOrder::Predicted.into(),
            fair_share: Some(true),
            usage_half_life: Some(duration(86_400_000)),
            ageing_milli: Some(500),
        }),
        backfill: Some(v1::BackfillPolicy {
            max_reservations: Some(4),
            max_depth: Some(100),
            reserve_after: Some(duration(60_000)),
            reserve_after_runs_milli: Some(1_500),
            end_overrunners: Some(true),
        }),
        preemption: Some(preemption()),
        weights: Some(v1::PlacementWeights { packing: Some(2), cost: Some(1), ..Default::default() }),
        prices: vec![v1::Price {
            r#type: text("h100"),
            region: text("eu"),
            micro_dollars_per_device_hour: 2_000_000,
            ..Default::default()
        }],
        datasets: [(text("corpus"), v1::Dataset { bytes: 1 << 40, regions: vec![text("eu")] })].into(),
        transfers: vec![v1::Transfer {
            from: text("eu"),
            to: text("us"),
            micro_dollars_per_gib: 20_000,
            bytes_per_second: 1 << 30,
        }],
        spare_hosts_per_rack: [(text("h100"), 1)].into(),
        windows: vec![window],
        isolation: Some(v1::IsolationPolicy { require: Vec::new() }),
        notifications: vec![v1::NotificationReceiver {
            name: text("ops"),
            url: text("https://hooks.example/ops"),
            tenant: text("lab"),
            events: vec![v1::NotificationEvent::JobFailed.into()],
            body: v1::NotificationBody::Generic.into(),
            for_jobs: None,
        }],
        roles: Default::default(),
        interruption_rates: Vec::new(),
        resources: Vec::new(),
    }
}

fn preemption() -> v1::PreemptionPolicy {
    v1::PreemptionPolicy {
        enabled: Some(true),
        reclaim_borrowed: Some(true),
        minimum_run: Some(duration(60_000)),
        max_victims: Some(64),
        defragment: Some(false),
        defragment_wait: Some(duration(600_000)),
        backoff: Some(duration(30_000)),
        stopping_timeout: Some(duration(600_000)),
        starting_timeout: Some(duration(900_000)),
    }
}

/// Calls about schedules; the only one that exists is made here.
fn schedules() -> Vec<Stored> {
    let text = str::to_owned;
    let which = || (id(81), text("lab"), text("none"));
    let schedule = v1::Schedule {
        tenant: text("lab"),
        name: text("nightly"),
        cron: text("30 6 1 1 *"),
        time_zone: text("Europe/Berlin"),
        job: Some(v1::Job { tenant: text("lab"), ..least_job() }),
        overlap: v1::OverlapRule::Replace.into(),
        starting_deadline: Some(duration(60_000)),
        runs_max: 5,
        ..Default::default()
    };
    let create = v1::CreateScheduleRequest { request_id: id(80), schedule: Some(schedule.clone()) };
    let other = v1::Schedule { name: text("none"), ..schedule };
    let update = v1::UpdateScheduleRequest { request_id: id(82), schedule: Some(other) };
    let (request_id, tenant, name) = which();
    let suspend = v1::SuspendScheduleRequest { request_id, tenant, name, reason: text("why") };
    let (request_id, tenant, name) = which();
    let resume = v1::ResumeScheduleRequest { request_id, tenant, name };
    let (request_id, tenant, name) = which();
    let run = v1::RunScheduleRequest { request_id, tenant, name };
    let (request_id, tenant, name) = which();
    let delete = v1::DeleteScheduleRequest { request_id, tenant, name };
    let get = v1::GetScheduleRequest { tenant: text("lab"), name: text("none"), read: read() };
    let list = v1::ListSchedulesRequest { tenant: text("lab"), read: read() };
    vec![
        stored("create-schedule", "ScheduleService/CreateSchedule", create),
        stored("update-schedule", "ScheduleService/UpdateSchedule", update),
        stored("suspend-schedule", "ScheduleService/SuspendSchedule", suspend),
        stored("resume-schedule", "ScheduleService/ResumeSchedule", resume),
        stored("run-schedule", "ScheduleService/RunSchedule", run),
        stored("delete-schedule", "ScheduleService/DeleteSchedule", delete),
        stored("get-schedule", "ScheduleService/GetSchedule", get),
        stored("list-schedules", "ScheduleService/ListSchedules", list),
    ]
}

/// Calls of the other services; those that set something only check it.
fn others() -> Vec<Stored> {
    let set = v1::SetPolicyRequest {
        request_id: String::new(),
        policy: Some(policy()),
        expected_version: Some(0),
        validate_only: true,
    };
    let paths = ["tenants.lab", "prices", "preemption"].map(str::to_owned).into();
    let update = v1::UpdatePolicyRequest {
        request_id: String::new(),
        policy: Some(policy()),
        update_mask: Some(muster_wire::FieldMask { paths }),
        expected_version: Some(0),
        validate_only: true,
    };
    let tenants = v1::ListTenantsRequest { page_size: 10, page_token: String::new(), read: read() };
    let watch = v1::WatchTenantsRequest { resume_token: String::new(), tenants: vec!["lab".to_owned()] };
    let grant = v1::QuotaGrant {
        tenant: "lab".to_owned(),
        r#type: "h100".to_owned(),
        region: "eu".to_owned(),
        amount_milli: 8_000,
        end_time: Some(timestamp(4_102_444_800_000)),
        reason: "a deadline".to_owned(),
        ..Default::default()
    };
    let ask = v1::RequestQuotaRequest {
        request_id: String::new(),
        grant: Some(grant.clone()),
        validate_only: true,
    };
    let give = v1::GrantQuotaRequest { request_id: String::new(), grant: Some(grant), validate_only: true };
    let answer = v1::AnswerQuotaRequest {
        request_id: "00000000-0000-4000-8000-0000000000aa".to_owned(),
        id: 7,
        approve: Some(true),
        reason: "agreed".to_owned(),
    };
    let grants = v1::ListQuotaGrantsRequest { read: read(), tenant: "lab".to_owned(), include_over: true };
    let history = v1::ReadDecisionsRequest {
        from_index: 1,
        to_index: 2,
        follow: false,
        decisions: vec!["JobSubmitted".to_owned()],
        raw: true,
    };
    vec![
        stored("get-policy", "PolicyService/GetPolicy", v1::GetPolicyRequest { read: read() }),
        stored("set-policy", "PolicyService/SetPolicy", set),
        stored("update-policy", "PolicyService/UpdatePolicy", update),
        stored("tenants", "TenantService/ListTenants", tenants),
        stored("watch-tenants", "TenantService/WatchTenants", watch),
        stored("list-licences", "TenantService/ListLicences", v1::ListLicencesRequest { read: read() }),
        stored("request-quota", "QuotaService/RequestQuota", ask),
        stored("grant-quota", "QuotaService/GrantQuota", give),
        stored("answer-quota", "QuotaService/AnswerQuota", answer),
        stored("quota-grants", "QuotaService/ListQuotaGrants", grants),
        stored("read-decisions", "HistoryService/ReadDecisions", history),
        stored("status", "ClusterService/GetStatus", v1::GetStatusRequest { read: read() }),
        stored("server-info", "ClusterService/GetServerInfo", v1::GetServerInfoRequest {}),
    ]
}

fn directory() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/requests/v1beta1"))
}

fn file(name: &str) -> PathBuf {
    directory().join(format!("{name}.bin"))
}

/// What a replica says to these bytes: `OK`, or the reason of the refusal with the fields that it names.
async fn outcome(served: &TestServer, call: &str, bytes: Vec<u8>) -> String {
    let path = PathAndQuery::try_from(format!("/{PACKAGE}.{call}")).expect("a path");
    let mut grpc = tonic::client::Grpc::new(served.channel.clone());
    guarded("a connection", grpc.ready()).await.expect("it stands");
    let answered = async {
        let mut answers = grpc.streaming(Request::new(iter([bytes])), path, Raw).await?.into_inner();
        // Of a stream the first is enough.
        answers.message().await
    };
    let Err(status) = guarded(call, answered).await else { return "OK".to_owned() };
    let refused = Refused::from_status(&status);
    let fields = refused.violations.iter().map(|violation| format!(" {}", violation.field));
    format!("{}{}", refused.reason, fields.collect::<String>())
}

/// Writes what is not there, or means something else.
fn write(all: &[Stored], lines: &[String]) {
    std::fs::create_dir_all(directory()).expect("the directory can be made");
    for request in all {
        let kept = std::fs::read(file(request.name)).ok();
        if kept.is_none_or(|kept| (request.differs)(&kept).is_some()) {
            std::fs::write(file(request.name), &request.bytes).expect("a request can be written");
        }
    }
    let index = lines.join("\n") + "\n";
    std::fs::write(directory().join("index.txt"), index).expect("the index can be written");
}

fn every_request() -> Vec<Stored> {
    let of_jobs = jobs().into_iter().chain(schedules());
    of_jobs.chain(fleet()).chain(others()).chain(bookings()).chain(more()).collect()
}

#[tokio::test]
async fn requests_of_earlier_clients_mean_what_they_meant_and_are_taken() {
    let all = every_request();
    let is_writing = std::env::var_os(WRITE).is_some();
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let mut lines = Vec::new();
    for request in &all {
        let bytes = if is_writing {
            request.bytes.clone()
        } else {
            std::fs::read(file(request.name)).unwrap_or_else(|error| panic!("{}: {error}", request.name))
        };
        let differs = (request.differs)(&bytes);
        assert_eq!(differs, None, "{} of an earlier client", request.name);
        lines.push(format!(
            "{} {} {}",
            request.name,
            request.call,
            outcome(&served, request.call, bytes).await
        ));
    }
    if is_writing {
        write(&all, &lines);
        panic!("requests were written; run again without {WRITE}");
    }
    let index = std::fs::read_to_string(directory().join("index.txt")).expect("the index is there");
    let index: Vec<&str> = index.lines().collect();
    assert_eq!(lines, index, "what an earlier client asks for is answered in another way");
    let kept = std::fs::read_dir(directory()).expect("the directory is there").count();
    assert_eq!(kept, all.len() + 1, "a file that nothing here reads protects nothing");
}

#[test]
fn every_call_of_the_public_package_has_a_stored_request() {
    let all = every_request();
    let stored: BTreeSet<String> = all.iter().map(|request| request.call.to_owned()).collect();
    let names: BTreeSet<&str> = all.iter().map(|request| request.name).collect();
    assert_eq!(names.len(), all.len(), "two have one name");
    let files =
        prost_types::FileDescriptorSet::decode(muster_wire::DESCRIPTORS).expect("they are descriptors");
    let services = files.file.iter().filter(|file| file.package() == PACKAGE).flat_map(|file| &file.service);
    let calls: BTreeSet<String> = services
        .flat_map(|service| {
            service.method.iter().map(move |call| format!("{}/{}", service.name(), call.name()))
        })
        .collect();
    assert_eq!(stored, calls);
}

/// What an older client leaves out stays what it was then.
#[tokio::test]
async fn what_a_stored_submission_leaves_out_is_what_it_was() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let submit = async |name: &str| {
        let bytes = std::fs::read(file(name)).expect("it is there");
        let request = v1::SubmitJobRequest::decode(&*bytes).expect("a request");
        let sent = request.job.clone().expect("it has one");
        let mut answer = served.jobs().submit_job(request).await.expect("it is taken").into_inner();
        let get = v1::GetJobRequest { job_id: answer.job_ids.remove(0), read: None };
        let shown = served.jobs().get_job(get).await.expect("it is there").into_inner().job.expect("a job");
        (sent, shown)
    };
    let (sent, shown) = guarded("a job", submit("submit-full")).await;
    assert_eq!((&shown.name, &shown.tenant, &shown.labels), (&sent.name, &sent.tenant, &sent.labels));
    assert_eq!((&shown.annotations, &shown.spec), (&sent.annotations, &sent.spec));
    let (_, shown) = guarded("a job", submit("submit-least")).await;
    let (spec, group) = (shown.spec(), &shown.spec().groups[0]);
    assert_eq!((shown.tenant.as_str(), spec.tier()), ("default", v1::Tier::Standard));
    assert_eq!((group.name.as_str(), group.workers, group.min_workers), ("workers", 1, 1));
    assert_eq!((group.resources().cpu_milli, group.resources().memory_bytes), (1_000, 1 << 30));
    assert_eq!((span_ms(spec.stop_grace), spec.preemptible), (Some(30_000), Some(true)));
    assert_eq!((spec.run_time_limit, spec.deadline, spec.not_before), (None, None, None));
    assert_eq!((spec.spare_workers, &spec.array), (0, &None));
}
