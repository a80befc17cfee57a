//! What goes in comes out; what is wrong is named; nothing panics.

use std::collections::{BTreeMap, HashMap};

use muster_types::policy::{
    BackfillPolicy, Dataset, Guarantee, NonPreemptible, Order, OrderPolicy, PlacementWeights, Policy,
    PolicyDraft, PreemptionPolicy, Price, Quota, TenantLimits, TenantPolicy, TenantRights, Transfer, Window,
    WindowPurpose, WindowScope,
};
use muster_types::tpu::{Generation, PodPosition, SliceRequest, SliceShape, legal_shapes};
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, Accelerators, ArraySpec, CheckpointRules, Dependency,
    DependencyRule, DependencyScope, DeviceAmount, DeviceSet, ExitStatus, FailureClass, FencingToken,
    HolderId, JobContract, JobDraft, JobId, JobSpec, LaunchForm, Level, LogIndex, LogTime, Name, NodeDraft,
    NodeSpec, NoticeRules, Preflight, PriorityTier, RequestId, RetryRules, Spread, Submission, TaskGroup,
    TopologyRule, Violation, WorkerRequest, limits,
};
use proptest::collection::{btree_map, btree_set, hash_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;

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
    let beside = |field: &str| ["workers[3].job_id", "workers[3].token", field].map(str::to_owned);
    assert_eq!(of(Some(Subject::Rank(limits::GANG_WORKERS_MAX))), beside("workers[3].rank"));
    assert_eq!(of(Some(Subject::WholePlacement(agent::WholePlacement {}))), beside("workers[3].exit"));
    assert_eq!(of(None), beside("workers[3].subject"));
}

fn name() -> impl Strategy<Value = Name> {
    "[a-z0-9]([a-z0-9._-]{0,10}[a-z0-9])?".prop_map(|text| Name::new(&text).unwrap())
}

fn accelerators() -> impl Strategy<Value = Accelerators> {
    (name(), 1..=limits::HOST_DEVICES_MAX).prop_map(|(kind, count)| Accelerators { kind, count })
}

fn accelerator_request() -> impl Strategy<Value = AcceleratorRequest> {
    let amount = prop_oneof![
        (1..=limits::HOST_DEVICES_MAX).prop_map(DeviceAmount::Whole),
        (1u16..1_000).prop_map(DeviceAmount::Share),
    ];
    (btree_map(name(), 1..=limits::THROUGHPUT_MILLI_MAX, 0..4), amount).prop_map(|(choices, amount)| {
        let choice = |(kind, throughput_milli)| AcceleratorChoice { kind, throughput_milli };
        AcceleratorRequest { choices: choices.into_iter().map(choice).collect(), amount }
    })
}

fn level() -> impl Strategy<Value = Level> {
    proptest::sample::select(Level::ALL.to_vec())
}

/// Rules that hold for a gang of any size.
fn topology() -> impl Strategy<Value = TopologyRule> {
    prop_oneof![
        (any::<bool>(), any::<bool>()).prop_map(|(balanced, segmented)| TopologyRule {
            balanced,
            segment_workers: u32::from(segmented),
            required: Some(Level::Block),
            preferred: Some(Level::Host),
            ..TopologyRule::default()
        }),
        (level(), 1..100u32).prop_map(|(level, workers_max)| TopologyRule {
            spread: Some(Spread { level, workers_max }),
            ..TopologyRule::default()
        }),
        Just(TopologyRule::default()),
    ]
}

fn dependencies() -> impl Strategy<Value = Vec<Dependency>> {
    btree_map(any::<u64>(), any::<bool>(), 0..4).prop_map(|jobs| {
        let rule = |done| if done { DependencyRule::Succeeded } else { DependencyRule::Finished };
        let scopes = [DependencyScope::Job, DependencyScope::Array, DependencyScope::Member];
        let scope = |job: u64| scopes[(job % 3) as usize];
        let on = |(job, done)| Dependency { job: JobId(job), rule: rule(done), scope: scope(job) };
        jobs.into_iter().map(on).collect()
    })
}

fn request() -> impl Strategy<Value = WorkerRequest> {
    (option::of(accelerator_request()), 1..=limits::CPU_MILLI_MAX, 1..=limits::MEMORY_BYTES_MAX).prop_map(
        |(accelerators, cpu_milli, memory_bytes)| WorkerRequest { accelerators, cpu_milli, memory_bytes },
    )
}

fn group() -> impl Strategy<Value = TaskGroup> {
    (
        name(),
        1u32..1_000,
        vec("[^\0]{1,20}", 1..5),
        btree_map("[A-L_][A-Z0-9_]{0,5}", "[^\0]{0,9}", 0..4),
        request(),
    )
        .prop_map(|(name, workers, command, environment, request)| TaskGroup {
            name,
            workers,
            workers_min: workers,
            command,
            environment,
            request,
            slice: None,
        })
}

prop_compose! {
    fn spec()(
        name in name(),
        tenant in name(),
        tier in proptest::sample::select(PriorityTier::ALL.to_vec()),
        groups in vec(group(), 1..4),
        regions in btree_set(name(), 0..3),
        run_time_limit_ms in option::of(1..=limits::RUN_TIME_LIMIT_MS_MAX),
        stop_grace_ms in 0..=limits::STOP_GRACE_MS_MAX,
        failure_retries_max in 0..=limits::FAILURE_RETRIES_MAX,
        checkpoint_directory in option::of("/[a-z/]{0,20}"),
        working_directory in option::of("/[a-z/]{0,20}"),
        topology in topology(),
        node_selector in btree_map(name(), btree_set("\\PC{0,9}", 1..4), 0..4),
        tolerations in btree_set(name(), 0..4),
        preemptible: bool,
        dependencies in dependencies(),
        times in (option::of(1u64..1_000), option::of(1_000u64..=MOMENT_MS_MAX)),
        expected_run_ms in option::of(1..=limits::RUN_TIME_LIMIT_MS_MAX),
        datasets in btree_set(name(), 0..4),
        elastic: bool,
    ) -> JobSpec {
        let mut groups = groups;
        for (index, group) in groups.iter_mut().enumerate() {
            group.name = Name::new(&format!("{}{index}", group.name)).unwrap();
        }
        if elastic && groups.len() == 1 {
            groups[0].workers_min = groups[0].workers.div_ceil(2);
        }
        let regions = regions.into_iter().collect();
        JobDraft {
            name, tenant, tier, groups, regions, run_time_limit_ms, stop_grace_ms, failure_retries_max,
            checkpoint_directory, working_directory, array: None, topology, node_selector, tolerations,
            preemptible, dependencies, not_before: times.0.map(LogTime), deadline: times.1.map(LogTime),
            expected_run_ms, datasets: datasets.into_iter().collect(),
        }.check().unwrap()
    }
}

prop_compose! {
    fn node()(
        names in (name(), name(), name(), name(), name()),
        address in "[a-z0-9.:-]{1,30}",
        accelerators in option::of(accelerators()),
        cpu_milli in 1..=limits::CPU_MILLI_MAX,
        memory_bytes in 1..=limits::MEMORY_BYTES_MAX,
        labels in btree_map(name(), "\\PC{0,20}", 0..4),
        taints in btree_set(name(), 0..4),
        pod in option::of((name(), 0u16..64, (0u8..2, 0u8..2, 0u8..4))),
    ) -> NodeSpec {
        let (name, region, cluster, block, rack) = names;
        let pod = pod.map(|(pod, cube, (x, y, z))| PodPosition { pod, cube, at: [x * 2, y * 2, z] });
        // A place in a pod is a TPU host's.
        let chips = || Accelerators { kind: Name::literal("v5p"), count: 4 };
        let accelerators = pod.as_ref().map(|_| chips()).or(accelerators);
        NodeDraft {
            name, region, cluster, block, rack, address, accelerators, cpu_milli, memory_bytes, labels,
            taints, pod,
        }.check().unwrap()
    }
}

fn exit() -> impl Strategy<Value = ExitStatus> {
    prop_oneof![
        any::<i32>().prop_map(ExitStatus::Code),
        any::<i32>().prop_map(ExitStatus::Signal),
        Just(ExitStatus::LeaseExpired),
        "\\PC{0,60}".prop_map(ExitStatus::LaunchFailed),
        Just(ExitStatus::Vanished),
        Just(ExitStatus::NotStarted),
    ]
}

/// Messages near enough to right ones to reach every rule, with texts of any kind.
fn wild_accelerators() -> impl Strategy<Value = v1::AcceleratorRequest> {
    use v1::accelerator_request::Amount;
    let amount = prop_oneof![any::<u32>().prop_map(Amount::Count), any::<u32>().prop_map(Amount::ShareMilli)];
    let kind = prop_oneof![any::<String>(), Just("v5p".to_owned()), Just("v5e".to_owned())];
    let choices = vec((kind, any::<u32>()).prop_map(|(kind, milli)| choice(&kind, milli)), 0..3);
    (choices, option::of(amount)).prop_map(|(choices, amount)| v1::AcceleratorRequest { choices, amount })
}

fn wild_slice() -> impl Strategy<Value = v1::SliceRequest> {
    let shape = prop_oneof![any::<String>(), "[0-9]{1,2}x[0-9]{1,2}(x[0-9]{1,2})?"];
    (shape, prop_oneof![0u32..4, any::<u32>()]).prop_map(|(shape, count)| v1::SliceRequest { shape, count })
}

fn wild_variable() -> impl Strategy<Value = v1::EnvVar> {
    use v1::env_var::Source;
    let source =
        prop_oneof![any::<String>().prop_map(Source::Value), any::<String>().prop_map(Source::SecretRef)];
    (any::<String>(), option::of(source)).prop_map(|(name, source)| v1::EnvVar { name, source })
}

prop_compose! {
    fn wild_group()(
        name: String,
        workers in prop_oneof![0u32..4, any::<u32>()],
        min_workers in prop_oneof![0u32..4, any::<u32>()],
        command in vec(any::<String>(), 0..4),
        environment in vec(wild_variable(), 0..4),
        accelerators in option::of(wild_accelerators()),
        slice in option::of(wild_slice()),
        cpu_milli: u64,
        memory_bytes: u64,
    ) -> v1::TaskGroup {
        v1::TaskGroup { name, workers, min_workers, runtime: crate::process(command), environment, slice, resources: Some(v1::Resources { accelerators, cpu_milli, memory_bytes }) }
    }
}

fn wild_topology() -> impl Strategy<Value = v1::TopologyRule> {
    let level = || prop_oneof![any::<i32>(), 0..4i32];
    let spread = (level(), any::<u32>()).prop_map(|(level, max_workers)| v1::Spread { level, max_workers });
    (level(), level(), any::<bool>(), 0u32..5, option::of(spread)).prop_map(
        |(required, preferred, balanced, segment_workers, spread)| v1::TopologyRule {
            required,
            preferred,
            balanced,
            segment_workers,
            spread,
        },
    )
}

prop_compose! {
    fn wild_spec()(
        texts in (any::<String>(), any::<String>(), prop_oneof![any::<i32>(), 0..6i32], any::<String>(), any::<String>()),
        groups in vec(wild_group(), 0..20),
        lists in (vec(any::<String>(), 0..4), vec(any::<String>(), 0..4), vec(any::<String>(), 0..4)),
        times in ((wild_duration(), wild_duration(), wild_duration()), (wild_timestamp(), wild_timestamp())),
        numbers in (prop_oneof![0u32..4, any::<u32>()], any::<u32>()),
        topology in option::of(wild_topology()),
        node_selector in hash_map(any::<String>(), vec(any::<String>(), 0..3), 0..3),
        preemptible: Option<bool>,
        dependencies in vec((any::<String>(), any::<i32>()), 0..3),
        rules in wild_rules(),
        carried in (wild_texts(), wild_texts()),
    ) -> v1::Job {
        let (name, tenant, tier, directory, working_directory) = texts;
        let (regions, tolerations, datasets) = lists;
        let ((run_time_limit, stop_grace, expected_run), (not_before, deadline)) = times;
        let (size, max_failures) = numbers;
        let array = (size > 0).then(|| v1::JobArray { size, ..Default::default() });
        let values = |(label, values)| (label, v1::LabelValues { values });
        let node_selector = node_selector.into_iter().map(values).collect();
        let dependency = |(job_id, rule)| v1::Dependency { job_id, rule, ..Default::default() };
        let dependencies = dependencies.into_iter().map(dependency).collect();
        let mut spec = v1::JobSpec {
            tier, groups, regions, run_time_limit, stop_grace, working_directory, array, topology, node_selector,
            tolerations, preemptible, dependencies, not_before, deadline, expected_run, datasets, ..rules
        };
        spec.retry_mut().max_failures = max_failures;
        spec.checkpoint_mut().directory = directory;
        v1::Job { name, tenant, labels: carried.0, annotations: carried.1, spec: Some(spec), ..Default::default() }
    }
}

fn wild_duration() -> impl Strategy<Value = Option<Duration>> {
    option::of((any::<i64>(), any::<i32>()).prop_map(|(seconds, nanos)| Duration { seconds, nanos }))
}

fn wild_timestamp() -> impl Strategy<Value = Option<Timestamp>> {
    option::of((any::<i64>(), any::<i32>()).prop_map(|(seconds, nanos)| Timestamp { seconds, nanos }))
}

fn wild_texts() -> impl Strategy<Value = HashMap<String, String>> {
    prop_oneof![3 => Just(HashMap::new()), 1 => hash_map(any::<String>(), any::<String>(), 0..40)]
}

prop_compose! {
    fn wild_rules()(
        texts in (any::<String>(), any::<String>()),
        closed in (any::<i32>(), any::<i32>()),
        limits in vec((0..11i32, any::<u32>()), 0..12),
        waits in (wild_duration(), wild_duration(), wild_duration()),
        times in (wild_duration(), wild_duration(), wild_duration()),
        numbers in (any::<u32>(), any::<u32>()),
    ) -> v1::JobSpec {
        let ((dataset, http_path), (launch, preflight)) = (texts, closed);
        let limit = |(failure_class, retries)| v1::RetryLimit { failure_class, retries };
        let limits = limits.into_iter().map(limit).collect();
        let (backoff, max_backoff, avoid) = waits;
        let (step, save, interval) = times;
        let (http_port, spare_workers) = numbers;
        v1::JobSpec {
            launch,
            retry: Some(v1::RetryPolicy { limits, backoff, max_backoff, avoid, ..Default::default() }),
            checkpoint: Some(v1::CheckpointPolicy { dataset, step, save, interval, ..Default::default() }),
            notice: Some(v1::NoticeRules { http_port, http_path }),
            spare_workers,
            preflight,
            ..Default::default()
        }
    }
}

prop_compose! {
    fn contract()(
        launch in proptest::sample::select(LaunchForm::ALL.to_vec()),
        limits in btree_map(proptest::sample::select(FailureClass::ALL.to_vec()), 0u32..9, 0..9),
        waits in (option::of(0u64..9_999), option::of(0u64..9_999), option::of(0u64..9_999)),
        place in option::of(name()),
        times in (option::of(1u64..9_999), option::of(1u64..9_999), option::of(1u64..9_999)),
        http in option::of((1u16.., "(/[a-z]{0,9})?")),
        spares in 0u32..9,
        preflight in proptest::sample::select(Preflight::ALL.to_vec()),
    ) -> JobContract {
        let (backoff_ms, backoff_max_ms, avoid_ms) = waits;
        let (step_ms, save_ms, interval_ms) = times;
        let notice = http.map(|(port, http_path)| NoticeRules { http_port: Some(port), http_path });
        JobContract {
            launch,
            retry: RetryRules { limits, backoff_ms, backoff_max_ms, avoid_ms },
            checkpoint: CheckpointRules { place, step_ms, save_ms, interval_ms },
            notice: notice.unwrap_or_default(),
            spares,
            preflight,
        }
    }
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
        let report = WorkerReport { job: JobId(index), token, rank: (generation % 7 > 0).then_some(generation % 100), exit: Some(exit) };
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
    fn policies_return(policy in policy()) {
        let message = policy_to_proto(&policy);
        prop_assert_eq!(policy_from_proto("policy", Some(message)), Ok(policy));
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
            "job.spec.tolerations[1]",
            "job.spec.topology.required",
            "job.spec.topology.segment_workers",
            "job.spec.topology.spread.level",
        ]
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

fn legal_slice() -> impl Strategy<Value = (Generation, SliceShape)> {
    let all = Generation::ALL
        .iter()
        .flat_map(|generation| legal_shapes(*generation).into_iter().map(|shape| (*generation, shape)));
    proptest::sample::select(all.collect::<Vec<_>>())
}

fn milli() -> impl Strategy<Value = u64> {
    0..=1_000_000u64
}

fn quota() -> impl Strategy<Value = Quota> {
    (name(), option::of(name()), milli(), option::of(milli()), any::<bool>()).prop_map(
        |(kind, region, nominal_milli, borrowing_limit_milli, lends)| Quota {
            kind,
            region,
            nominal_milli,
            borrowing_limit_milli,
            lending_limit_milli: lends.then_some(nominal_milli / 2),
        },
    )
}

/// Tenants whose parents come before them, so that there is no cycle; promises only on the leaves.
fn tenants() -> impl Strategy<Value = BTreeMap<Name, TenantPolicy>> {
    btree_map(name(), (1..=1_000_000u32, option::of(quota()), any::<bool>()), 0..8).prop_map(|tenants| {
        let first = tenants.keys().next().cloned();
        let tenant = |(name, (weight_milli, quota, below)): (Name, (u32, Option<Quota>, bool))| {
            let parent = first.clone().filter(|first| below && *first != name);
            let quotas = quota.filter(|_| Some(&name) != first.as_ref()).into_iter().collect();
            let rights = TenantRights {
                tier_max: (weight_milli % 3 == 0).then_some(PriorityTier::Production),
                non_preemptible: (weight_milli % 5 == 0).then_some(NonPreemptible::WithinNominal),
                deadlines: (weight_milli % 2 == 0).then_some(weight_milli % 4 == 0),
            };
            let limits = TenantLimits {
                pending_jobs: (weight_milli % 7 == 0).then_some(weight_milli),
                unfinished_jobs: (weight_milli % 11 == 0).then_some(0),
                running_jobs: (weight_milli % 13 == 0).then_some(weight_milli),
                requests_per_minute: (weight_milli % 3 == 0).then_some(1),
            };
            (name, TenantPolicy { parent, weight_milli, quotas, rights, limits })
        };
        tenants.into_iter().map(tenant).collect()
    })
}

fn window() -> impl Strategy<Value = Window> {
    (name(), 0..MOMENT_MS_MAX / 2, 1..MOMENT_MS_MAX / 2, name(), option::of(name()), option::of(name()))
        .prop_map(|(name, from, length, cluster, rack, tenant)| Window {
            name,
            from: LogTime(from),
            until: LogTime(from + length),
            scope: WindowScope { cluster: Some(cluster), rack, ..WindowScope::default() },
            purpose: tenant
                .map_or(WindowPurpose::Maintenance, |tenant| WindowPurpose::ReservedFor { tenant }),
        })
}

prop_compose! {
    fn scheduling()(
        by_submission: bool,
        flags in (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        half_life in 60_000..1_000_000u64,
        numbers in (0u32..1_000, 0u32..=64, 1u32..10_000, 0u32..=256),
        times in (0u64..1_000_000, 0u64..1_000_000),
        weights in (0u16..=1_000, 0u16..=1_000, 0u16..=1_000, 0u16..=1_000, 0u16..=1_000, 0u16..=1_000),
    ) -> PolicyDraft {
        let (packing, throughput, cost, data, topology, spread) = weights;
        PolicyDraft {
            order: OrderPolicy {
                order: if by_submission { Order::Submission } else { Order::Predicted },
                fair_share: flags.0, usage_half_life_ms: half_life, ageing_milli: numbers.0,
            },
            backfill: BackfillPolicy {
                reservations_max: numbers.1, depth_max: numbers.2,
                reserve_after_ms: times.1, reserve_after_runs_milli: numbers.0,
                end_overrunners: flags.0,
            },
            preemption: PreemptionPolicy {
                enabled: flags.1, reclaim_borrowed: flags.2, minimum_run_ms: times.0,
                victims_max: numbers.3, defragment: flags.3, defragment_wait_ms: times.1,
                backoff_ms: times.0, stopping_deadline_ms: 60_000 + times.0, starting_deadline_ms: 60_000 + times.1,
            },
            weights: PlacementWeights { packing, throughput, cost, data, topology, spread },
            ..PolicyDraft::default()
        }
    }
}

prop_compose! {
    fn policy()(
        draft in scheduling(),
        tenants in tenants(),
        prices in btree_map((name(), option::of(name())), 0..1_000_000u64, 0..4),
        datasets in btree_map(name(), (0..1u64 << 60, btree_set(name(), 1..4)), 0..4),
        transfers in btree_map((option::of(name()), option::of(name())), (0..9u64, 1..9u64), 0..4),
        spare_hosts_per_rack in btree_map(name(), 0u16..=1_000, 0..4),
        windows in vec(window(), 0..4),
        required_isolation in btree_set(proptest::sample::select(Guarantee::ALL.to_vec()), 0..4),
    ) -> Policy {
        let price = |((kind, region), micro_dollars_per_device_hour)| {
            Price { kind, region, micro_dollars_per_device_hour }
        };
        let transfer = |((from, to), (micro_dollars_per_gib, bytes_per_second))| {
            Transfer { from, to, micro_dollars_per_gib, bytes_per_second }
        };
        let mut windows = windows;
        for (index, window) in windows.iter_mut().enumerate() {
            window.name = Name::new(&format!("w{index}")).unwrap();
        }
        PolicyDraft {
            tenants, spare_hosts_per_rack, windows, required_isolation,
            prices: prices.into_iter().map(price).collect(),
            datasets: datasets.into_iter()
                .map(|(name, (bytes, regions))| (name, Dataset { bytes, regions })).collect(),
            transfers: transfers.into_iter().map(transfer).collect(),
            ..draft
        }.check().unwrap()
    }
}

#[test]
fn an_empty_policy_is_the_default_one() {
    assert_eq!(policy_from_proto("policy", Some(v1::Policy::default())), Ok(Policy::default()));
    assert_eq!(fields(&policy_from_proto("policy", None).unwrap_err()), ["policy"]);
    // A zero that means zero is not an absent one.
    let none = v1::BackfillPolicy { max_reservations: Some(0), ..Default::default() };
    let policy = v1::Policy { backfill: Some(none), ..Default::default() };
    assert_eq!(policy_from_proto("policy", Some(policy)).unwrap().backfill.reservations_max, 0);
}

#[test]
fn every_mistake_in_a_policy_is_named_by_its_path() {
    let quota = |kind: &str| v1::Quota { r#type: kind.into(), ..Default::default() };
    let tenant = v1::TenantPolicy {
        parent: "No".into(),
        weight_milli: u32::MAX,
        quotas: vec![quota("h100"), quota("H100"), quota("h100")],
        rights: Some(v1::TenantRights { tier_max: 17, non_preemptible: 17, deadlines: None }),
        limits: None,
    };
    let window = v1::Window {
        name: "w".into(),
        start_time: Some(timestamp(5)),
        end_time: Some(timestamp(5)),
        scope: None,
        purpose: None,
    };
    let wrong = v1::Policy {
        tenants: HashMap::from([("a".to_owned(), tenant)]),
        order: Some(v1::OrderPolicy { order: 17, usage_half_life: Some(duration(0)), ..Default::default() }),
        backfill: Some(v1::BackfillPolicy {
            max_reservations: Some(65),
            max_depth: Some(0),
            ..Default::default()
        }),
        weights: Some(v1::PlacementWeights { cost: Some(1_001), data: Some(70_000), ..Default::default() }),
        prices: vec![v1::Price { r#type: "?".into(), ..Default::default() }],
        datasets: HashMap::from([("d".to_owned(), v1::Dataset { bytes: u64::MAX, regions: vec![] })]),
        transfers: vec![v1::Transfer { from: "EU".into(), ..Default::default() }],
        spare_hosts_per_rack: HashMap::from([("gb200".to_owned(), 70_000)]),
        windows: vec![window.clone(), v1::Window { name: "W".into(), purpose: None, ..window }],
        isolation: Some(v1::IsolationPolicy { require: vec![v1::Isolation::Pid.into(), 17] }),
        ..Default::default()
    };
    let found = policy_from_proto("policy", Some(wrong)).unwrap_err();
    let mut found = fields(&found);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "policy.backfill.max_depth",
            "policy.backfill.max_reservations",
            "policy.datasets.d.bytes",
            "policy.datasets.d.regions",
            "policy.isolation.require[1]",
            "policy.order.order",
            "policy.order.usage_half_life",
            "policy.prices[0].type",
            "policy.spare_hosts_per_rack.gb200",
            "policy.tenants.a.parent",
            "policy.tenants.a.quotas[1].type",
            "policy.tenants.a.quotas[2]",
            "policy.tenants.a.rights.non_preemptible",
            "policy.tenants.a.rights.tier_max",
            "policy.tenants.a.weight_milli",
            "policy.transfers[0].bytes_per_second",
            "policy.transfers[0].from",
            "policy.weights.cost",
            "policy.weights.data",
            "policy.windows[0].end_time",
            "policy.windows[0].purpose",
            "policy.windows[0].scope",
            "policy.windows[1].end_time",
            "policy.windows[1].name",
            "policy.windows[1].purpose",
            "policy.windows[1].scope",
        ]
    );
}

#[test]
fn a_policy_of_nothing_but_mistakes_stays_small() {
    let tenants = (0..20_000).map(|n| (format!("?{n}"), v1::TenantPolicy::default())).collect();
    let worst = v1::Policy {
        tenants,
        prices: vec![v1::Price::default(); 10_000],
        windows: vec![v1::Window::default(); 10_000],
        ..Default::default()
    };
    assert_eq!(policy_from_proto("policy", Some(worst)).unwrap_err().len(), VIOLATIONS_MAX);
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
