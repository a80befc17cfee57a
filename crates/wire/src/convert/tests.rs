//! What goes in comes out; what is wrong is named; nothing panics.

mod generators;
mod policy;

use std::collections::{BTreeMap, HashMap};

use muster_types::policy::{
    AcceleratorBudget, BackfillPolicy, CountedResource, Dataset, Guarantee, InterruptionRate, JobLimits,
    NonPreemptible, NotificationBody, NotificationEvent, OnLimit, Order, OrderPolicy, OwnRole, OwnedCost,
    PlacementWeights, Policy, PolicyDraft, PreemptionPolicy, Price, PurchaseKind, QueueChoices, QueueOrder,
    QueuePreemption, Quota, Receiver, SpendBudget, TenantLimits, TenantPolicy, TenantRights, Transfer,
    UserLimits, Verb, Window, WindowPurpose, WindowScope,
};
use muster_types::tpu::{Generation, PodPosition, SliceRequest, SliceShape, legal_shapes};
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, Accelerators, Affinity, AffinityLevel, AffinityRule,
    AffinityTarget, ArrayId, ArraySpec, CapacityFallback, CapacityRules, CheckpointRules, Container,
    Dependency, DependencyRule, DependencyScope, DeviceAmount, DeviceSet, ExitStatus, FailureClass,
    FencingToken, HolderId, JobContract, JobDraft, JobId, JobSpec, LabelTest, LaunchForm, Level, LogIndex,
    LogTime, Mount, Name, NodeDraft, NodeExpression, NodeRequirements, NodeSpec, NoticeRules, Preflight,
    PriorityTier, PullRule, PurchaseSet, RequestId, RetryRules, Segment, Spread, Submission, TaskGroup,
    TokenRole, TopologyRule, Violation, WorkerRequest, limits,
};
use proptest::collection::{btree_map, btree_set, hash_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;

use self::generators::*;
use super::*;
use crate::time::{Duration, MOMENT_MS_MAX, Timestamp, duration, timestamp};
use crate::{agent, v1};

fn group_message() -> v1::TaskGroup {
    v1::TaskGroup { workers: 1, runtime: crate::process(vec!["true".into()]), ..Default::default() }
}

fn message() -> v1::Job {
    v1::Job {
        name: "train".into(),
        spec: Some(v1::JobSpec { groups: vec![group_message()], ..Default::default() }),
        ..Default::default()
    }
}

fn choice(kind: &str, throughput_milli: u32) -> v1::AcceleratorChoice {
    v1::AcceleratorChoice { r#type: kind.into(), throughput_milli }
}

fn whole(kind: &str, count: u32) -> v1::AcceleratorRequest {
    v1::AcceleratorRequest {
        choices: vec![choice(kind, 0)],
        amount: Some(v1::accelerator_request::Amount::Count(count)),
    }
}

fn slice_group(kind: &str, shape: &str) -> v1::TaskGroup {
    v1::TaskGroup {
        workers: 0,
        slice: Some(v1::SliceRequest { shape: shape.into(), count: 0 }),
        resources: Some(v1::Resources {
            accelerators: Some(v1::AcceleratorRequest { choices: vec![choice(kind, 0)], amount: None }),
            ..Default::default()
        }),
        ..group_message()
    }
}

fn with_group(group: v1::TaskGroup) -> v1::Job {
    v1::Job { spec: Some(v1::JobSpec { groups: vec![group], ..message().spec().clone() }), ..message() }
}

/// Every violation as `field: description`, sorted.
fn said(message: v1::Job) -> Vec<String> {
    let found = submissions_from_proto("job", Some(message)).expect_err("it breaks a rule");
    let mut said: Vec<String> = found.iter().map(Violation::to_string).collect();
    said.sort();
    said
}

fn one(message: v1::Job) -> JobSpec {
    let mut specs = submissions_from_proto("job", Some(message)).unwrap();
    assert_eq!(specs.len(), 1);
    specs.remove(0).spec
}

fn fields(violations: &[Violation]) -> Vec<&str> {
    violations.iter().map(|v| v.field.as_str()).collect()
}

#[test]
fn defaults_are_those_of_the_proto_comments() {
    let spec = one(message());
    assert_eq!(&*spec.tenant, "default");
    assert_eq!(spec.tier, PriorityTier::Standard);
    assert_eq!(&*spec.groups[0].name, "workers");
    assert_eq!(spec.groups[0].request.cpu_milli, 1_000);
    assert_eq!(spec.groups[0].request.memory_bytes, 1 << 30);
    assert_eq!(spec.groups[0].request.accelerators, None);
    assert_eq!((spec.run_time_limit_ms, spec.stop_grace_ms), (None, 30_000));
    assert_eq!((&spec.checkpoint_directory, &spec.working_directory), (&None, &None));
    assert_eq!(spec.array, None);
    assert_eq!((spec.groups[0].workers, spec.groups[0].workers_min), (1, 1));
    assert!(spec.preemptible && spec.topology.is_free() && spec.groups[0].slice.is_none());
    assert_eq!((spec.not_before, spec.deadline, spec.expected_run_ms), (None, None, None));
    // Nothing of it is a default any more.
    let filled = job_spec_to_proto(&spec, None);
    assert_eq!(filled.stop_grace, Some(duration(30_000)));
    assert_eq!((filled.groups[0].resources().cpu_milli, filled.groups[0].min_workers), (1_000, 1));
    assert_eq!(filled.preemptible, Some(true));
    // A grace of zero is not an absent one.
    assert_eq!(
        one(v1::Job {
            spec: Some(v1::JobSpec { stop_grace: Some(duration(0)), ..message().spec().clone() }),
            ..message()
        })
        .stop_grace_ms,
        0
    );
}

#[test]
fn arrays_have_a_size_or_indices() {
    for (size, indices, throttle, members) in [
        (3, "", None, 3),
        (0, "0-99:5,200,300-310", Some(7), 20 + 1 + 11),
        (0, "9,1", None, 2),
        (1, "", Some(1), 1),
    ] {
        let array = v1::JobArray { size, indices: indices.to_owned(), throttle };
        let jobs = submissions_from_proto("job", Some(with_array(array))).unwrap();
        let kept = jobs[0].array.clone().unwrap();
        assert_eq!(kept.size(), members);
        let again = submissions_from_proto("job", Some(submission_to_proto(&jobs[0]))).unwrap();
        assert_eq!(again[0].array.as_ref(), Some(&kept));
    }
    let batch = vec![message(), with_array(v1::JobArray { size: 2, ..Default::default() }), message()];
    let sizes: Vec<_> = jobs_from_proto("jobs", batch).unwrap().iter().map(|s| s.job_count()).collect();
    assert_eq!(sizes, [1, 2, 1]);
    for (size, indices, throttle, field) in [
        (0, "", None, "size"),
        (100_001, "", None, "size"),
        (u32::MAX, "", None, "size"),
        (3, "0-2", None, ""),
        (0, "1,1", None, "indices"),
        (0, "0-10,5", None, "indices"),
        (0, "5-1", None, "indices"),
        (0, "1-5:0", None, "indices"),
        (0, "a", None, "indices"),
        (0, "1,4000001", None, "indices"),
        (0, "0-99999,200000", None, "indices"),
        (5, "", Some(0), "throttle"),
        (5, "", Some(u32::MAX), "throttle"),
    ] {
        let array = v1::JobArray { size, indices: indices.to_owned(), throttle };
        let found = submissions_from_proto("job", Some(with_array(array))).unwrap_err();
        let path = if field.is_empty() { "job.spec.array".into() } else { format!("job.spec.array.{field}") };
        assert_eq!(fields(&found), [path.as_str()], "{size} {indices:?} {throttle:?}");
    }
    let many: Vec<String> = (0..257).map(|n| (n * 2).to_string()).collect();
    let array = v1::JobArray { indices: many.join(","), ..Default::default() };
    let found = submissions_from_proto("job", Some(with_array(array))).unwrap_err();
    assert_eq!(fields(&found), ["job.spec.array.indices"]);
}

fn with_array(array: v1::JobArray) -> v1::Job {
    v1::Job { spec: Some(v1::JobSpec { array: Some(array), ..message().spec().clone() }), ..message() }
}

#[test]
fn all_violations_are_named_by_their_path_in_the_message() {
    let wrong = v1::Job {
        name: "Bad Name".into(),
        tenant: "-".into(),
        spec: Some(v1::JobSpec {
            tier: 17,
            groups: vec![
                v1::TaskGroup {
                    workers: 0,
                    runtime: crate::process(vec![]),
                    resources: Some(v1::Resources {
                        accelerators: Some(whole("H100", 65)),
                        cpu_milli: u64::MAX,
                        ..Default::default()
                    }),
                    ..Default::default()
                },
                v1::TaskGroup { environment: vec![v1::EnvVar::new("1X", "v")], ..group_message() },
            ],
            regions: vec!["eu".into(), "EU".into()],
            stop_grace: Some(duration(u64::MAX)),
            checkpoint: Some(v1::CheckpointPolicy { directory: "relative".into(), ..Default::default() }),
            array: Some(v1::JobArray { size: 100_001, ..Default::default() }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut found: Vec<String> =
        submissions_from_proto("job", Some(wrong)).unwrap_err().into_iter().map(|v| v.field).collect();
    found.sort();
    assert_eq!(
        found,
        [
            "job.name",
            "job.spec.array.size",
            "job.spec.checkpoint.directory",
            "job.spec.groups[0].name",
            "job.spec.groups[0].process.command",
            "job.spec.groups[0].resources.accelerators.choices[0].type",
            "job.spec.groups[0].resources.accelerators.count",
            "job.spec.groups[0].resources.cpu_milli",
            "job.spec.groups[0].workers",
            "job.spec.groups[1].environment.1X",
            "job.spec.groups[1].name",
            "job.spec.regions[1]",
            "job.spec.stop_grace",
            "job.spec.tier",
            "job.tenant",
        ]
    );
    assert_eq!(fields(&submissions_from_proto("job", None).unwrap_err()), ["job"]);
    assert_eq!(fields(&submissions_from_proto("job", Some(v1::Job::default())).unwrap_err()), ["job.spec"]);
}

#[test]
fn what_is_wrong_with_an_image_is_named() {
    let with = |launch: v1::LaunchForm, container: v1::ContainerRuntime| {
        let runtime = Some(v1::task_group::Runtime::Container(container));
        let groups = vec![v1::TaskGroup { runtime, ..group_message() }];
        let spec = v1::JobSpec { groups, launch: launch.into(), ..Default::default() };
        submissions_from_proto("job", Some(v1::Job { spec: Some(spec), ..message() }))
    };
    let good = v1::ContainerRuntime { image: "localhost/train:1".into(), ..Default::default() };
    let taken = with(v1::LaunchForm::Torchrun, good.clone()).unwrap();
    let expected = Container::new("localhost/train:1".into());
    assert_eq!(taken[0].spec.groups[0].container, Some(expected));
    assert!(taken[0].spec.groups[0].command.is_empty());
    assert_eq!(fields(&with(v1::LaunchForm::Mpi, good.clone()).unwrap_err()), ["job.spec.launch"]);
    let mount = |source: &str, target: &str| v1::ContainerMount {
        source: source.into(),
        target: target.into(),
        read_only: false,
    };
    let wrong = v1::ContainerRuntime {
        image: "train".into(),
        command: vec!["a\0b".into()],
        user: "root".into(),
        pull: 17,
        mounts: vec![mount("/a/../b", "/a"), mount("/a", "/dev/x"), mount("/a", "/a/b")],
        ..Default::default()
    };
    let mut found: Vec<String> =
        with(v1::LaunchForm::Unspecified, wrong).unwrap_err().into_iter().map(|v| v.field).collect();
    found.sort();
    let at = "job.spec.groups[0].container";
    let parts =
        ["command[0]", "image", "mounts[0].source", "mounts[1].target", "mounts[2].target", "pull", "user"];
    assert_eq!(found, parts.map(|part| format!("{at}.{part}")));
    let many = v1::ContainerRuntime { mounts: vec![mount("/a", "/a"); 33], ..good };
    let found = with(v1::LaunchForm::Unspecified, many).unwrap_err();
    assert!(found.iter().any(|violation| violation.field == format!("{at}.mounts")), "{found:?}");
}

#[test]
fn batches_are_bounded_as_a_whole() {
    let max = limits::BATCH_JOBS_MAX;
    assert_eq!(jobs_from_proto("jobs", vec![message(); max]).unwrap().len(), max);
    for batch in [
        vec![],
        vec![message(); max + 1],
        vec![with_array(v1::JobArray { size: 60_000, ..Default::default() }); 2],
        vec![with_array(v1::JobArray { size: 101, ..Default::default() }); 1_000],
    ] {
        assert_eq!(fields(&jobs_from_proto("jobs", batch).unwrap_err())[0], "jobs");
    }
    let mut batch = vec![message(); 4];
    batch[3].name.clear();
    assert_eq!(fields(&jobs_from_proto("jobs", batch).unwrap_err()), ["jobs[3].name"]);
}

#[test]
fn a_message_of_nothing_but_mistakes_stays_small() {
    let worst = v1::Job {
        spec: Some(v1::JobSpec {
            groups: vec![
                v1::TaskGroup {
                    runtime: crate::process(vec!["\0".into(); 300]),
                    ..Default::default()
                };
                100
            ],
            regions: vec!["?".into(); 1_000],
            ..Default::default()
        }),
        ..Default::default()
    };
    let found = jobs_from_proto("jobs", vec![worst; 2]).unwrap_err();
    assert_eq!(found.len(), VIOLATIONS_MAX);
}

#[test]
fn ids_are_required_and_checked() {
    assert_eq!(request_id("request_id", "").unwrap_err().description, "must be given");
    for text in ["x", "0123", &"-".repeat(100_000), "00000000-0000-0000-0000-00000000000g"] {
        assert!(request_id("request_id", text).is_err());
    }
    let id = request_id("request_id", "00000000-0000-0000-0000-00000000000a").unwrap();
    assert_eq!(id, RequestId(10));
    assert_eq!(job_id("job_id", &JobId(77).to_string()), Ok(JobId(77)));
    assert!(job_id("job_id", "node-1").is_err());
    assert!(node_id("node", "job-1").is_err());
    let holder = HolderId(3);
    assert_eq!(holder_id_from_text("holder_id", &holder_id_to_text(holder)), Ok(holder));
    for text in ["", "+0000000000000000000000000000000", "é000000000000000000000000000000"] {
        assert!(holder_id_from_text("holder_id", text).is_err());
    }
}

#[test]
fn exits_say_how() {
    let empty = v1::ExitStatus { kind: None };
    assert!(exit_status_from_proto("exit", &empty).is_err());
    let long = v1::ExitStatus { kind: Some(v1::exit_status::Kind::LaunchFailed("é".repeat(1_000))) };
    let ExitStatus::LaunchFailed(why) = exit_status_from_proto("exit", &long).unwrap() else { panic!() };
    assert_eq!(why.len(), limits::DETAIL_BYTES_MAX);
}

#[test]
fn devices_are_numbered_and_distinct() {
    assert_eq!(device_set_from_proto("devices", &[0, 63]), Ok(DeviceSet(1 | 1 << 63)));
    assert!(device_set_from_proto("devices", &[64]).is_err());
    assert!(device_set_from_proto("devices", &[1, 1]).is_err());
}

#[test]
fn reports_name_their_fields() {
    use agent::worker_state::Subject;
    let of = |subject| {
        let report = agent::WorkerState { subject, ..Default::default() };
        let found = worker_report_from_proto("workers[3]", &report).unwrap_err();
        fields(&found).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let next_to = |field: &str| ["workers[3].job_id", "workers[3].token", field].map(str::to_owned);
    assert_eq!(of(Some(Subject::Rank(limits::GANG_WORKERS_MAX))), next_to("workers[3].rank"));
    assert_eq!(of(Some(Subject::WholePlacement(agent::WholePlacement {}))), next_to("workers[3].exit"));
    assert_eq!(of(None), next_to("workers[3].subject"));
}

proptest! {
    // Each case is a large message of random text; a hundred of them are seconds of making it up.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn specs_return(spec in spec(), array in option::of((1..=1_000u32, option::of(1..=9u32)))) {
        let array = array.map(|(size, throttle)| ArraySpec { throttle, ..ArraySpec::of_size(size) });
        let sent = Submission { array, ..Submission::new(spec.clone(), JobContract::default()) };
        let members = submissions_from_proto("job", Some(submission_to_proto(&sent))).unwrap();
        prop_assert_eq!(members.len(), 1);
        prop_assert_eq!(&members[0].spec, &spec);
        prop_assert!(members[0].contract.is_default());
        prop_assert_eq!(&members[0].metadata, &None);
        prop_assert_eq!(&members[0].array, &sent.array);
    }

    #[test]
    fn labels_and_annotations_return(
        labels in hash_map("[a-zA-Z0-9]{1,9}", "[a-zA-Z0-9]{0,9}", 0..9),
        annotations in hash_map("[a-z]{1,9}(/[a-z]{1,9})?", "[ -~é\n]{0,40}", 0..9),
    ) {
        let sent = v1::Job { labels, annotations, ..message() };
        let jobs = submissions_from_proto("job", Some(sent.clone())).unwrap();
        let kept = submission_to_proto(jobs.last().unwrap());
        prop_assert_eq!((&kept.labels, &kept.annotations), (&sent.labels, &sent.annotations));
        let says_nothing = sent.labels.is_empty() && sent.annotations.is_empty();
        prop_assert_eq!(jobs[0].metadata.is_none(), says_nothing);
    }

    #[test]
    fn contracts_return(contract in contract()) {
        let mut found = Found::default();
        let mut message = super::contract::contract_to_proto(&contract);
        let returned = super::contract::contract("spec", &mut message, &mut found);
        prop_assert_eq!(returned, contract);
    }

    #[test]
    fn nodes_return(node in node()) {
        let message = node_spec_to_proto(&node);
        prop_assert_eq!(node_spec_from_proto("node", Some(&message)), Ok(node));
    }

    #[test]
    fn values_return(
        exit in exit(),
        generation: u32,
        index: u64,
        bits: u64,
        accelerators in accelerators(),
        request in accelerator_request(),
        artifacts in option::of(artifacts()),
    ) {
        prop_assert_eq!(exit_status_from_proto("exit", &exit_status_to_proto(&exit)), Ok(exit.clone()));
        let token = FencingToken { generation, log_index: LogIndex(index) };
        prop_assert_eq!(fencing_token_from_proto("token", Some(&fencing_token_to_proto(token))), Ok(token));
        let devices = DeviceSet(bits);
        prop_assert_eq!(device_set_from_proto("devices", &device_set_to_proto(devices)), Ok(devices));
        let message = accelerators_to_proto(&accelerators);
        prop_assert_eq!(accelerators_from_proto("accelerators", &message), Ok(accelerators));
        let message = accelerator_request_to_proto(&request);
        prop_assert_eq!(accelerator_request_from_proto("accelerators", &message), Ok(request));
        let rank = (generation % 7 > 0).then_some(generation % 100);
        let report = WorkerReport { job: JobId(index), token, rank, exit: Some(exit), artifacts };
        prop_assert_eq!(worker_report_from_proto("w", &worker_report_to_proto(&report)), Ok(report));
    }

    #[test]
    fn slices_return(shape in legal_slice(), count in 1u16..4) {
        let (generation, shape) = shape;
        let mut group = slice_group(generation.as_str(), &shape.to_string());
        group.slice = Some(v1::SliceRequest { shape: shape.to_string(), count: count.into() });
        // Larger gangs than there may be are refused for their size.
        if let Ok(specs) = submissions_from_proto("job", Some(with_group(group))) {
            let group = &specs[0].groups[0];
            prop_assert_eq!(group.slice, Some(SliceRequest { shape, count }));
            prop_assert_eq!(specs[0].device_count(), u64::from(shape.chips()) * u64::from(count));
            let again = submissions_from_proto("job", Some(submission_to_proto(&specs[0])));
            prop_assert_eq!(again.as_deref(), Ok(specs.as_slice()));
        } else {
            prop_assert!(shape.chips() * u32::from(count) / 4 > limits::GANG_WORKERS_MAX, "{shape} x {count}");
        }
    }

    #[test]
    fn wild_specs_are_refused_with_paths(messages in vec(wild_spec(), 1..4)) {
        match jobs_from_proto("jobs", messages) {
            Ok(specs) => prop_assert!(specs.len() <= limits::BATCH_JOBS_MAX),
            Err(found) => {
                prop_assert!(!found.is_empty() && found.len() <= VIOLATIONS_MAX);
                prop_assert!(found.iter().all(|v| v.field.starts_with("jobs")), "{found:?}");
            }
        }
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        if let Ok(message) = v1::Job::decode(&*bytes) {
            let _ = submissions_from_proto("job", Some(message));
        }
        if let Ok(message) = v1::SubmitJobsRequest::decode(&*bytes) {
            let _ = request_id("request_id", &message.request_id);
            let _ = jobs_from_proto("jobs", message.jobs);
        }
        if let Ok(message) = v1::Policy::decode(&*bytes) {
            let _ = policy_from_proto("policy", Some(message));
        }
        if let Ok(message) = agent::Register::decode(&*bytes) {
            let _ = node_spec_from_proto("node", message.node.as_ref());
            let _ = holder_id_from_text("holder_id", &message.holder_id);
            for worker in &message.workers {
                let _ = worker_report_from_proto("worker", worker);
            }
        }
        if let Ok(message) = v1::WorkerPlacement::decode(&*bytes) {
            let _ = device_set_from_proto("devices", &message.devices);
            let _ = node_id("node_id", &message.node_id);
        }
    }
}

#[test]
fn wild_nodes_name_their_fields() {
    let message = v1::NodeDescription {
        name: "N".into(),
        accelerators: Some(v1::Accelerators { r#type: String::new(), count: 0 }),
        labels: HashMap::from([("Bad".to_owned(), String::new())]),
        taints: vec!["ok".into(), "NO".into()],
        pod: Some(v1::PodPosition { pod: "p".into(), cube: 70_000, at: vec![0, 0] }),
        ..Default::default()
    };
    let found = node_spec_from_proto("node", Some(&message)).unwrap_err();
    let mut found = fields(&found);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "node.accelerators.count",
            "node.accelerators.type",
            "node.address",
            "node.cluster",
            "node.cpu_milli",
            "node.labels",
            "node.memory_bytes",
            "node.name",
            "node.pod.at",
            "node.pod.cube",
            "node.region",
            "node.taints[1]",
        ]
    );
    assert_eq!(fields(&node_spec_from_proto("node", None).unwrap_err()), ["node"]);
}

#[test]
fn a_slice_says_how_many_workers_there_are_and_what_each_has() {
    for (kind, shape, workers, chips) in
        [("v5p", "4x4x8", 32, 4), ("v5p", "2x2x1", 1, 4), ("v5e", "4x4", 4, 4), ("v5e", "1x1", 1, 1)]
    {
        let spec = one(with_group(slice_group(kind, shape)));
        let group = &spec.groups[0];
        assert_eq!(
            (group.workers, group.workers_min, group.request.device_count()),
            (workers, workers, chips)
        );
    }
    // Hosts of another size are asked for by the count.
    let mut group = slice_group("v5e", "4x4");
    group.resources_mut().accelerators = Some(whole("v5e", 8));
    assert_eq!(one(with_group(group)).groups[0].workers, 2);
    let mut two = slice_group("v5p", "4x4x4");
    two.slice = Some(v1::SliceRequest { shape: "4x4x4".into(), count: 2 });
    assert_eq!(one(with_group(two)).groups[0].workers, 32);
}

#[test]
fn a_shape_that_is_not_offered_is_answered_with_its_neighbours() {
    let found = said(with_group(slice_group("v5p", "3x4x4")));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("job.spec.groups[0].slice"), "{found:?}");
    assert!(found[0].contains("3x4x4 is no v5p slice; legal neighbours: "), "{found:?}");
    assert!(found[0].contains("4x4x4 (64 chips)"), "{found:?}");
    let text = said(with_group(slice_group("v5p", "large")));
    assert!(text[0].starts_with("job.spec.groups[0].slice.shape: must be two or three numbers"), "{text:?}");
    assert_eq!(text.len(), 1, "{text:?}");
    let other = said(with_group(slice_group("h100", "4x4x4")));
    assert_eq!(other, ["job.spec.groups[0].slice: h100 is no TPU generation: v4, v5e, v5p, v6e or tpu7x"]);
    let mut bare = slice_group("v5p", "4x4x4");
    bare.resources = None;
    assert_eq!(
        said(with_group(bare)),
        ["job.spec.groups[0].slice: needs whole accelerators of one TPU type"]
    );
}

fn fields_of(message: v1::Job) -> Vec<String> {
    let found = submissions_from_proto("job", Some(message)).expect_err("it breaks a rule");
    let mut fields: Vec<String> = found.into_iter().map(|violation| violation.field).collect();
    fields.sort();
    fields
}

#[test]
fn what_a_job_says_of_place_and_time_is_checked_field_by_field() {
    let wrong = v1::Job {
        spec: Some(v1::JobSpec {
            topology: Some(v1::TopologyRule {
                required: 17,
                preferred: v1::TopologyLevel::Rack.into(),
                segment_workers: 3,
                spread: Some(v1::Spread { level: 0, max_workers: 1 }),
                ..Default::default()
            }),
            node_selector: HashMap::from([
                ("Zone".to_owned(), v1::LabelValues { values: vec!["a".into()] }),
                ("empty".to_owned(), v1::LabelValues::default()),
                ("many".to_owned(), v1::LabelValues { values: (0..33).map(|n| n.to_string()).collect() }),
            ]),
            tolerations: vec!["ok".into(), "NO".into()],
            dependencies: vec![
                v1::Dependency { job_id: "train".into(), rule: -1, ..Default::default() },
                v1::Dependency { job_id: "job-1".into(), ..Default::default() },
                v1::Dependency {
                    job_id: "job-1".into(),
                    rule: v1::DependencyRule::Finished.into(),
                    ..Default::default()
                },
            ],
            not_before: Some(timestamp(2_000)),
            deadline: Some(timestamp(1_000)),
            expected_run: Some(duration(u64::MAX)),
            datasets: vec!["a".into(), "a".into()],
            nodes: Some(v1::NodeRequirements {
                expressions: vec![v1::NodeExpression {
                    key: "zone".into(),
                    operator: v1::NodeOperator::In.into(),
                    values: Vec::new(),
                }],
                only: vec!["h1".into()],
                exclude: vec!["h1".into()],
            }),
            ..with_group(v1::TaskGroup { workers: 4, min_workers: 5, ..group_message() }).spec().clone()
        }),
        ..with_group(v1::TaskGroup { workers: 4, min_workers: 5, ..group_message() })
    };
    assert_eq!(
        fields_of(wrong),
        [
            "job.spec.datasets",
            "job.spec.deadline",
            "job.spec.dependencies",
            "job.spec.dependencies[0].job_id",
            "job.spec.dependencies[0].rule",
            "job.spec.expected_run",
            "job.spec.groups[0].min_workers",
            "job.spec.node_selector",
            "job.spec.node_selector.empty",
            "job.spec.node_selector.many",
            "job.spec.nodes.exclude",
            "job.spec.nodes.expressions[0].values",
            "job.spec.tolerations[1]",
            "job.spec.topology.required",
            "job.spec.topology.segment_workers",
            "job.spec.topology.spread.level",
        ]
    );
}

#[test]
fn segments_within_segments_are_checked_field_by_field() {
    use v1::TopologyLevel::{Block, Host, Rack};
    fn said(segments: &[(i32, u32)], change: fn(&mut v1::TopologyRule)) -> Vec<String> {
        let segment = |(level, workers): &(i32, u32)| v1::Segment { level: *level, workers: *workers };
        let mut rule = v1::TopologyRule {
            segments: segments.iter().map(segment).collect(),
            ..v1::TopologyRule::default()
        };
        change(&mut rule);
        let mut job = with_group(v1::TaskGroup { workers: 32, ..group_message() });
        job.spec_mut().topology = Some(rule);
        submissions_from_proto("job", Some(job))
            .map_or_else(|found| found.into_iter().map(|violation| violation.field).collect(), |_| Vec::new())
    }
    fn none(_: &mut v1::TopologyRule) {}
    let nested: [(i32, u32); 3] = [(Block.into(), 32), (Rack.into(), 16), (Host.into(), 4)];
    let field = |field: &str| vec![format!("job.spec.topology.{field}")];
    assert_eq!(said(&nested, none), Vec::<String>::new());
    assert_eq!(said(&[(Rack.into(), 16), (Host.into(), 3)], none), field("segments[1].workers"));
    assert_eq!(said(&[(Rack.into(), 24)], none), field("segments[0].workers"));
    assert_eq!(said(&[(Rack.into(), 0)], none), field("segments[0].workers"));
    assert_eq!(said(&[(Host.into(), 4), (Rack.into(), 4)], none), field("segments[1].level"));
    assert_eq!(said(&[(Rack.into(), 16), (Rack.into(), 4)], none), field("segments[1].level"));
    assert_eq!(said(&[(0, 16)], none), field("segments[0].level"));
    assert!(said(&[(Host.into(), 1); 4], none).contains(&field("segments")[0]));
    assert_eq!(said(&nested, |rule| rule.segment_workers = 4), field("segments"));
    assert_eq!(said(&nested, |rule| rule.balanced = true), field("segments"));
    assert_eq!(said(&nested[1..], |rule| rule.balanced = true), Vec::<String>::new());
    assert_eq!(
        said(&nested, |rule| rule.spread = Some(v1::Spread { level: Host.into(), max_workers: 4 })),
        field("spread")
    );
}

#[test]
fn lists_are_cut_before_they_are_looked_into() {
    let names = vec!["?".to_owned(); 10_000];
    let labels = (0..10_000).map(|n| (format!("?{n}"), v1::LabelValues::default())).collect();
    let accelerators = v1::AcceleratorRequest { choices: vec![choice("?", 0); 10_000], ..whole("?", 1) };
    let resources = Some(v1::Resources { accelerators: Some(accelerators), ..Default::default() });
    let mut wrong = with_group(v1::TaskGroup { resources, ..group_message() });
    let spec = wrong.spec_mut();
    (spec.tolerations, spec.datasets) = (names.clone(), names);
    spec.dependencies = vec![v1::Dependency::default(); 10_000];
    spec.node_selector = labels;
    let found = fields_of(wrong);
    assert_eq!(found.len(), 32 + 32 + 64 + 16 + 5, "{found:?}");
    let count = |field: &str| found.iter().filter(|f| f.starts_with(&format!("job.spec.{field}"))).count();
    assert_eq!((count("tolerations"), count("datasets"), count("dependencies")), (33, 33, 65));
    assert_eq!((count("node_selector"), count("groups[0].resources.accelerators")), (1, 17));
}

#[test]
fn amounts_of_accelerators_are_whole_devices_or_a_share_of_one() {
    use v1::accelerator_request::Amount;
    let with = |amount| v1::TaskGroup {
        resources: Some(v1::Resources {
            accelerators: Some(v1::AcceleratorRequest { choices: Vec::new(), amount }),
            ..Default::default()
        }),
        ..group_message()
    };
    let share = one(with_group(with(Some(Amount::ShareMilli(250)))));
    let request = share.groups[0].request.accelerators.clone().expect("it asks for some");
    assert_eq!((request.amount, request.to_string()), (DeviceAmount::Share(250), "any:0.25".to_owned()));
    for (amount, said_of) in [
        (None, "job.spec.groups[0].resources.accelerators.count: must be given, or share_milli"),
        (
            Some(Amount::Count(0)),
            "job.spec.groups[0].resources.accelerators.count: must be between 1 and 64, got 0",
        ),
        (
            Some(Amount::Count(70_000)),
            "job.spec.groups[0].resources.accelerators.count: must be between 1 and 64, got 70000",
        ),
        (
            Some(Amount::ShareMilli(1_000)),
            "job.spec.groups[0].resources.accelerators.share_milli: must be between 1 and 999, got 1000",
        ),
    ] {
        assert_eq!(said(with_group(with(amount))), [said_of]);
    }
    let mut fast = whole("h100", 1);
    fast.choices = vec![choice("h100", 0), choice("a100", 450), choice("l4", u32::MAX), choice("h100", 1)];
    let found = fields_of(with_group(v1::TaskGroup {
        resources: Some(v1::Resources { accelerators: Some(fast), ..Default::default() }),
        ..group_message()
    }));
    assert_eq!(
        found,
        [
            "job.spec.groups[0].resources.accelerators.choices",
            "job.spec.groups[0].resources.accelerators.choices[2].throughput_milli"
        ]
    );
}

#[test]
fn secrets_are_references_and_return_as_such() {
    let group = v1::TaskGroup {
        environment: vec![v1::EnvVar::secret("TOKEN", "hub/token"), v1::EnvVar::new("A", "b")],
        ..group_message()
    };
    let jobs = submissions_from_proto("job", Some(with_group(group))).unwrap();
    assert_eq!(jobs[0].spec.groups[0].environment["TOKEN"], "muster-secret://hub/token");
    let shown = submission_to_proto(&jobs[0]);
    let shown = &shown.spec().groups[0].environment;
    assert_eq!(shown, &[v1::EnvVar::new("A", "b"), v1::EnvVar::secret("TOKEN", "hub/token")]);
    for (variables, expected) in [
        (
            vec![v1::EnvVar::new("A", "muster-secret://x")],
            "environment[0].value: names a secret; use `secret_ref`",
        ),
        (vec![v1::EnvVar::secret("A", "")], "environment[0].secret_ref: must be given"),
        (
            vec![v1::EnvVar::new("A", "b"), v1::EnvVar::new("A", "c")],
            "environment[1].name: must not name \"A\" twice",
        ),
    ] {
        let group = v1::TaskGroup { environment: variables, ..group_message() };
        assert_eq!(said(with_group(group)), [format!("job.spec.groups[0].{expected}")]);
    }
}
