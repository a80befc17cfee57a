//! Requests for the fields that none of the others has. They change nothing: they only check, or are refused.

use super::*;

/// Requests with the fields that the others leave out.
pub(super) fn more() -> Vec<Stored> {
    let parts = [submissions(), controls(), reads(), streams(), of_nodes(), of_policy()];
    parts.into_iter().flatten().collect()
}

fn eu() -> String {
    "eu".to_owned()
}

fn in_array(spec: &mut v1::JobSpec) {
    spec.array = Some(v1::JobArray { size: 3, ..Default::default() });
}

/// What workers are given on their hosts, and what is asked of them.
fn with_rules(spec: &mut v1::JobSpec) {
    spec.artifacts = Some(v1::ArtifactRules { paths: vec!["out/*".to_owned()], required: true });
    spec.nice = 5;
    spec.exclusive = true;
    spec.scratch_bytes = 1 << 30;
    spec.readiness = Some(v1::ReadinessRule { timeout: Some(duration(600_000)) });
    spec.host = Some(v1::HostRules {
        binding: v1::CpuBinding::Cores.into(),
        shell: v1::CommandShell::Login.into(),
        shared_memory_bytes: 1 << 20,
    });
    spec.terminal = true;
    spec.ulimits = Some(v1::Ulimits {
        open_files: Some(4_096),
        core_bytes: Some(1 << 20),
        locked_bytes: Some(2 << 20),
        stack_bytes: Some(3 << 20),
    });
}

fn near(spec: &mut v1::JobSpec) {
    let entry = v1::JobAffinity {
        level: v1::AffinityLevel::Rack.into(),
        rule: v1::AffinityRule::Together.into(),
        required: true,
        ..Default::default()
    };
    spec.affinity = vec![
        v1::JobAffinity { job_id: JOB.to_owned(), ..entry.clone() },
        v1::JobAffinity { array_id: ARRAY.to_owned(), ..entry.clone() },
        v1::JobAffinity { job_name: "cache".to_owned(), ..entry },
    ];
}

fn submissions() -> Vec<Stored> {
    let submission = |name, job| {
        let request = v1::SubmitJobRequest { request_id: String::new(), job, validate_only: true };
        stored(name, "JobService/SubmitJob", request)
    };
    let container = v1::ContainerRuntime {
        image: "example.org/train:1".to_owned(),
        credentials: "registry".to_owned(),
        ..Default::default()
    };
    let member = v1::Dependency { array_id: ARRAY.to_owned(), by_member: true, ..Default::default() };
    let told = v1::JobNotification {
        receiver: "chat".to_owned(),
        events: vec![v1::NotificationEvent::JobFailed.into()],
    };
    let nested = [v1::TopologyLevel::Rack, v1::TopologyLevel::Host].into_iter().zip([4, 2]);
    let segments = nested.map(|(level, workers)| v1::Segment { level: level.into(), workers }).collect();
    vec![
        submission("submit-held", Some(v1::Job { hold: true, ..least_job() })),
        submission("submit-rules", changed(with_rules)),
        submission("submit-near", changed(near)),
        submission("submit-sized-array", changed(in_array)),
        submission(
            "submit-after-array",
            changed(|spec| {
                in_array(spec);
                spec.dependencies = vec![member];
            }),
        ),
        submission(
            "submit-booked",
            changed(|spec| {
                spec.booking = "night".to_owned();
                spec.licences = vec![v1::LicenceRequest { name: "matlab".to_owned(), count: 2 }];
                spec.notify = vec![told];
            }),
        ),
        submission(
            "submit-segments",
            changed(|spec| {
                spec.groups[0].workers = 4;
                spec.topology = Some(v1::TopologyRule { segments, ..Default::default() });
            }),
        ),
        submission(
            "submit-balanced",
            changed(|spec| {
                let rule = v1::TopologyRule { balanced: true, segment_workers: 1, ..Default::default() };
                spec.topology = Some(rule);
            }),
        ),
        submission(
            "submit-saved-to-dataset",
            changed(|spec| spec.checkpoint_mut().dataset = "corpus".to_owned()),
        ),
        submission(
            "submit-private-image",
            changed(|spec| {
                spec.groups[0].runtime = Some(v1::task_group::Runtime::Container(container));
            }),
        ),
    ]
}

fn controls() -> Vec<Stored> {
    let selector = Some(v1::JobSelector { all: true, ..Default::default() });
    let move_job = v1::UpdateJobRequest {
        job_id: JOB.to_owned(),
        validate_only: true,
        move_to_front: true,
        ..Default::default()
    };
    macro_rules! of_all {
        ($($name:literal $call:literal $request:ident),*) => {vec![$(
            stored($name, $call, v1::$request {
                request_id: String::new(),
                selector: selector.clone(),
                validate_only: true,
            })
        ),*]};
    }
    let mut all = of_all!(
        "cancel-all" "JobService/CancelJobs" CancelJobsRequest,
        "hold-all" "JobService/HoldJobs" HoldJobsRequest,
        "release-all" "JobService/ReleaseJobs" ReleaseJobsRequest,
        "requeue-all" "JobService/RequeueJobs" RequeueJobsRequest,
        "suspend-all" "JobService/SuspendJobs" SuspendJobsRequest
    );
    all.push(stored("move", "JobService/UpdateJob", move_job));
    all
}

/// Reads of each kind, and pages behind the first.
fn reads() -> Vec<Stored> {
    let page_token = || "next".to_owned();
    let get = |name, job_id: &str, read| {
        let request = v1::GetJobRequest { job_id: job_id.to_owned(), read: Some(read) };
        stored(name, "JobService/GetJob", request)
    };
    let jobs = v1::ListJobsRequest {
        page_token: page_token(),
        filter: Some(v1::JobFilter { mine: true, ..Default::default() }),
        expected_starts: true,
        ..Default::default()
    };
    let arrays = v1::ListArraysRequest { page_token: page_token(), ..Default::default() };
    let nodes = v1::ListNodesRequest { page_token: page_token(), ..Default::default() };
    let tenants = v1::ListTenantsRequest { page_token: page_token(), ..Default::default() };
    let resume_token = || "behind".to_owned();
    let watch_nodes = v1::WatchNodesRequest { resume_token: resume_token(), ..Default::default() };
    let watch_tenants = v1::WatchTenantsRequest { resume_token: resume_token(), ..Default::default() };
    let decisions = v1::ReadDecisionsRequest {
        follow: true,
        decisions: vec!["JobSubmitted".to_owned()],
        ..Default::default()
    };
    // What the past has is not looked for: no job has such an id.
    let no_id = "job";
    vec![
        get("get-any", JOB, any()),
        get("get-linearizable", JOB, linearizable()),
        get("get-past-index", no_id, past(Some(Moment::LogIndex(7)))),
        get("get-past-time", no_id, past(Some(Moment::Time(timestamp(1_800_000_000_000))))),
        stored("list-behind", "JobService/ListJobs", jobs),
        stored("list-arrays-behind", "JobService/ListArrays", arrays),
        stored("list-nodes-behind", "FleetService/ListNodes", nodes),
        stored("tenants-behind", "TenantService/ListTenants", tenants),
        stored("watch-nodes-resumed", "FleetService/WatchNodes", watch_nodes),
        stored("watch-tenants-resumed", "TenantService/WatchTenants", watch_tenants),
        stored("follow-decisions", "HistoryService/ReadDecisions", decisions),
    ]
}

/// Messages of streams; where one has to begin with another message, it is refused.
fn streams() -> Vec<Stored> {
    use v1::exec_worker_request::Message;
    use v1::forwarded_piece::Content;
    let exec = |name, message| {
        stored(name, "JobService/ExecWorker", v1::ExecWorkerRequest { message: Some(message) })
    };
    let forward = |name, content| {
        let piece = v1::ForwardedPiece { connection: 1, content: Some(content) };
        let message = Some(v1::forward_port_request::Message::Piece(piece));
        stored(name, "JobService/ForwardPort", v1::ForwardPortRequest { message })
    };
    let attach = v1::ExecStart { job_id: JOB.to_owned(), attach: true, ..Default::default() };
    let before = v1::ReadLogsRequest { job_id: JOB.to_owned(), previous: true, ..Default::default() };
    vec![
        stored("read-logs-before", "JobService/ReadLogs", before),
        exec("exec-attach", Message::Start(attach)),
        exec("exec-input", Message::Input(b"ls\n".to_vec())),
        exec("exec-input-end", Message::InputEnd(v1::ExecInputEnd {})),
        exec("exec-signal", Message::Signal(15)),
        exec("exec-resize", Message::Resize(v1::ExecTerminal { rows: 40, columns: 120 })),
        forward("forward-open", Content::Open(v1::ForwardedOpen {})),
        forward("forward-data", Content::Data(b"GET /".to_vec())),
        forward("forward-end", Content::End(v1::ForwardedEnd {})),
        forward("forward-closed", Content::Closed("refused".to_owned())),
        forward("forward-taken", Content::Taken(5)),
    ]
}

fn of_nodes() -> Vec<Stored> {
    let bounds = || v1::NodeBounds {
        region: eu(),
        cluster: "eu-1".to_owned(),
        devices: vec![v1::Accelerators { r#type: "h100".to_owned(), count: 8 }],
        bounds_devices: true,
    };
    let rules = vec![v1::NodeAdmissionRule { pattern: "eu-*".to_owned(), bounds: Some(bounds()) }];
    let admission = v1::SetNodeAdmissionRequest {
        request_id: ID.to_owned(),
        mode: v1::AdmissionMode::Pinned.into(),
        rules,
        expected_version: Some(7),
    };
    let approval = |name, approval| {
        let request = v1::SetNodeApprovalRequest {
            request_id: ID.to_owned(),
            name: "host-9".to_owned(),
            approval: Some(approval),
        };
        stored(name, "FleetService/SetNodeApproval", request)
    };
    let labels = v1::SetNodeLabelsRequest {
        request_id: ID.to_owned(),
        node: "host-9".to_owned(),
        set_labels: [("pool".to_owned(), "research".to_owned())].into(),
        validate_only: true,
        ..Default::default()
    };
    let hold = v1::SetFleetHoldRequest {
        request_id: ID.to_owned(),
        target: Some(v1::HoldTarget { tenant: "lab".to_owned(), ..Default::default() }),
        held: Some(true),
        ..Default::default()
    };
    let shape = v1::BookingShape { nodes: vec!["h1".to_owned()], hosts: 1, ..Default::default() };
    let rule = v1::BookingRule {
        weekdays: "mon-fri".to_owned(),
        time: "09:00".to_owned(),
        zone: "Europe/Berlin".to_owned(),
    };
    let booking = v1::BookingSpec {
        tenant: "lab".to_owned(),
        shared: true,
        shape: Some(shape),
        length: Some(duration(3_600_000)),
        windows: 4,
        rule: Some(rule),
        ..Default::default()
    };
    let plan = v1::PlanBookingRequest { name: "class".to_owned(), spec: Some(booking), read: None };
    vec![
        stored("set-admission-rules", "FleetService/SetNodeAdmission", admission),
        approval("approve", Approval::Approve(bounds())),
        approval("approve-as-is", Approval::ApproveAsIs(v1::ApproveAsIs {})),
        approval("clear-approval", Approval::Clear(v1::ClearApproval {})),
        stored("check-labels", "FleetService/SetNodeLabels", labels),
        stored("hold-tenant", "FleetService/SetFleetHold", hold),
        stored("plan-booking-by-rule", "BookingService/PlanBooking", plan),
    ]
}

/// What the policy of the other requests does not have.
fn rest_of_policy() -> v1::Policy {
    let text = str::to_owned;
    let below = v1::TenantPolicy {
        parent: text("lab"),
        rights: Some(v1::TenantRights {
            bookings: Some(true),
            purchases: vec![v1::Purchase::Spot.into()],
            ..Default::default()
        }),
        users: Some(v1::UserShares {
            default_weight_milli: Some(500),
            weights_milli: [(text("tenant/lab/ada"), 2_000)].into(),
        }),
        ..Default::default()
    };
    let dated = v1::Price {
        r#type: text("h100"),
        micro_dollars_per_device_hour: 1_500_000,
        purchase: v1::Purchase::Spot.into(),
        start_time: Some(timestamp(1_700_000_000_000)),
        end_time: Some(timestamp(1_900_000_000_000)),
        ..Default::default()
    };
    let owned = v1::OwnedCost {
        micro_dollars_per_device: 30_000_000_000,
        depreciation_months: Some(48),
        watts: Some(700),
        pue_milli: Some(1_300),
        micro_dollars_per_kwh: 120_000,
    };
    let window = v1::Window {
        name: text("course"),
        start_time: Some(timestamp(4_000_000_000_000)),
        end_time: Some(timestamp(4_000_003_600_000)),
        scope: Some(v1::WindowScope {
            block: text("b1"),
            rack: text("r1"),
            node: text("h1"),
            ..Default::default()
        }),
        purpose: Some(v1::window::Purpose::ReservedForTenant(text("lab"))),
    };
    let role = v1::OwnRole {
        part_of: v1::BuiltInRole::Operator.into(),
        verbs: vec![v1::Verb::Cordon.into()],
        regions: vec![eu()],
    };
    v1::Policy {
        tenants: [(text("lab"), v1::TenantPolicy::default()), (text("students"), below)].into(),
        weights: Some(v1::PlacementWeights {
            packing: Some(6),
            throughput: Some(5),
            cost: Some(4),
            data: Some(3),
            topology: Some(2),
            spread: Some(1),
        }),
        prices: vec![dated, v1::Price { r#type: text("a100"), owned: Some(owned), ..Default::default() }],
        windows: vec![window],
        isolation: Some(v1::IsolationPolicy { require: vec![v1::Isolation::Devices.into()] }),
        notifications: vec![v1::NotificationReceiver {
            name: text("chat"),
            url: text("https://hooks.example/chat"),
            tenant: text("lab"),
            for_jobs: Some(true),
            ..Default::default()
        }],
        roles: [(text("shift"), role)].into(),
        interruption_rates: vec![v1::InterruptionRate {
            purchase: v1::Purchase::Spot.into(),
            region: eu(),
            per_day_milli: 500,
        }],
        resources: vec![v1::CountedResource { name: text("matlab"), count: Some(20), region: eu() }],
        ..Default::default()
    }
}

fn of_policy() -> Vec<Stored> {
    // No version is as high, so that nothing is set.
    let expected_version = Some(u64::from(u32::MAX));
    let set = v1::SetPolicyRequest {
        request_id: id(90),
        policy: Some(rest_of_policy()),
        expected_version,
        validate_only: false,
    };
    let update = v1::UpdatePolicyRequest {
        request_id: id(91),
        policy: Some(rest_of_policy()),
        update_mask: Some(muster_wire::FieldMask { paths: vec!["weights".to_owned()] }),
        expected_version,
        validate_only: false,
    };
    // No policy has the tenant.
    let grant = Some(v1::QuotaGrant {
        tenant: "nobody".to_owned(),
        r#type: "h100".to_owned(),
        region: eu(),
        amount_milli: 1_000,
        end_time: Some(timestamp(4_102_444_800_000)),
        ..Default::default()
    });
    let ask = v1::RequestQuotaRequest { request_id: id(92), grant: grant.clone(), validate_only: false };
    let give = v1::GrantQuotaRequest { request_id: id(93), grant, validate_only: false };
    vec![
        stored("replace-policy", "PolicyService/SetPolicy", set),
        stored("update-weights", "PolicyService/UpdatePolicy", update),
        stored("request-quota-for-nobody", "QuotaService/RequestQuota", ask),
        stored("grant-quota-to-nobody", "QuotaService/GrantQuota", give),
    ]
}
