//! What goes in comes out; what is wrong is named; nothing panics.

use std::collections::HashMap;

use muster_types::job::ArrayMember;
use muster_types::{
    Accelerators, DeviceSet, ExitStatus, FencingToken, HolderId, JobDraft, JobId, JobSpec, LogIndex, Name,
    NodeDraft, NodeSpec, PriorityTier, RequestId, TaskGroup, Violation, WorkerRequest, limits,
};
use proptest::collection::{btree_map, btree_set, hash_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::v1;

fn group_message() -> v1::TaskGroup {
    v1::TaskGroup { workers: 1, command: vec!["true".into()], ..Default::default() }
}

fn message() -> v1::JobSpec {
    v1::JobSpec { name: "train".into(), groups: vec![group_message()], ..Default::default() }
}

fn one(message: v1::JobSpec) -> JobSpec {
    let mut specs = job_specs_from_proto("spec", Some(message)).unwrap();
    assert_eq!(specs.len(), 1);
    specs.remove(0)
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
    // Nothing of it is a default any more.
    let filled = job_spec_to_proto(&spec);
    assert_eq!((filled.tenant.as_str(), filled.stop_grace_ms), ("default", Some(30_000)));
    assert_eq!(filled.groups[0].cpu_milli, 1_000);
    // A grace of zero is not an absent one.
    assert_eq!(one(v1::JobSpec { stop_grace_ms: Some(0), ..message() }).stop_grace_ms, 0);
}

#[test]
fn arrays_expand_in_place() {
    let specs = job_specs_from_proto("spec", Some(v1::JobSpec { array_size: 3, ..message() })).unwrap();
    let places: Vec<_> = specs.iter().map(|s| s.array.unwrap()).collect();
    assert_eq!(places, [0, 1, 2].map(|index| ArrayMember { index, size: 3 }));
    let batch = vec![message(), v1::JobSpec { array_size: 2, ..message() }, message()];
    let arrays: Vec<_> =
        jobs_from_proto("specs", batch).unwrap().iter().map(|s| s.array.map(|a| a.index)).collect();
    assert_eq!(arrays, [None, Some(0), Some(1), None]);
}

#[test]
fn all_violations_are_named_by_their_path_in_the_message() {
    let wrong = v1::JobSpec {
        name: "Bad Name".into(),
        tenant: "-".into(),
        tier: "urgent".into(),
        groups: vec![
            v1::TaskGroup {
                workers: 0,
                command: vec![],
                accelerators: Some(v1::Accelerators { r#type: "H100".into(), count: 65 }),
                cpu_milli: u64::MAX,
                ..Default::default()
            },
            v1::TaskGroup { environment: HashMap::from([("1X".into(), "v".into())]), ..group_message() },
        ],
        regions: vec!["eu".into(), "EU".into()],
        stop_grace_ms: Some(u64::MAX),
        checkpoint_directory: "relative".into(),
        array_size: 1_001,
        ..Default::default()
    };
    let mut found: Vec<String> =
        job_specs_from_proto("spec", Some(wrong)).unwrap_err().into_iter().map(|v| v.field).collect();
    found.sort();
    assert_eq!(
        found,
        [
            "spec.array_size",
            "spec.checkpoint_directory",
            "spec.groups[0].accelerators.count",
            "spec.groups[0].accelerators.type",
            "spec.groups[0].command",
            "spec.groups[0].cpu_milli",
            "spec.groups[0].name",
            "spec.groups[0].workers",
            "spec.groups[1].environment.1X",
            "spec.groups[1].name",
            "spec.name",
            "spec.regions[1]",
            "spec.stop_grace_ms",
            "spec.tenant",
            "spec.tier",
        ]
    );
    assert_eq!(fields(&job_specs_from_proto("spec", None).unwrap_err()), ["spec"]);
}

#[test]
fn batches_are_bounded_as_a_whole() {
    let max = limits::BATCH_JOBS_MAX;
    assert_eq!(jobs_from_proto("specs", vec![message(); max]).unwrap().len(), max);
    for batch in [
        vec![],
        vec![message(); max + 1],
        vec![v1::JobSpec { array_size: 600, ..message() }; 2],
        vec![v1::JobSpec { array_size: u32::MAX, ..message() }; 1_000],
    ] {
        assert_eq!(fields(&jobs_from_proto("specs", batch).unwrap_err())[0], "specs");
    }
    let mut batch = vec![message(); 4];
    batch[3].name.clear();
    assert_eq!(fields(&jobs_from_proto("specs", batch).unwrap_err()), ["specs[3].name"]);
}

#[test]
fn a_message_of_nothing_but_mistakes_stays_small() {
    let worst = v1::JobSpec {
        groups: vec![v1::TaskGroup { command: vec!["\0".into(); 300], ..Default::default() }; 100],
        regions: vec!["?".into(); 1_000],
        ..Default::default()
    };
    let found = jobs_from_proto("specs", vec![worst; 2]).unwrap_err();
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
    let unset = v1::ExitStatus { kind: Some(v1::exit_status::Kind::Vanished(false)) };
    assert_eq!(exit_status_from_proto("exit", &unset).unwrap_err().field, "exit.vanished");
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
    let report = v1::WorkerState { rank: limits::GANG_WORKERS_MAX, ..Default::default() };
    let found = worker_report_from_proto("workers[3]", &report).unwrap_err();
    assert_eq!(fields(&found), ["workers[3].job_id", "workers[3].token", "workers[3].rank"]);
}

fn name() -> impl Strategy<Value = Name> {
    "[a-z0-9]([a-z0-9._-]{0,10}[a-z0-9])?".prop_map(|text| Name::new(&text).unwrap())
}

fn accelerators() -> impl Strategy<Value = Accelerators> {
    (name(), 1..=limits::HOST_DEVICES_MAX).prop_map(|(kind, count)| Accelerators { kind, count })
}

fn request() -> impl Strategy<Value = WorkerRequest> {
    (option::of(accelerators()), 1..=limits::CPU_MILLI_MAX, 1..=limits::MEMORY_BYTES_MAX).prop_map(
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
            command,
            environment,
            request,
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
        array in option::of((0u32..5, 5u32..9)),
    ) -> JobSpec {
        let mut groups = groups;
        for (index, group) in groups.iter_mut().enumerate() {
            group.name = Name::new(&format!("{}{index}", group.name)).unwrap();
        }
        let array = array.map(|(index, size)| ArrayMember { index, size });
        let regions = regions.into_iter().collect();
        JobDraft {
            name, tenant, tier, groups, regions, run_time_limit_ms, stop_grace_ms, failure_retries_max,
            checkpoint_directory, working_directory, array,
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
    ) -> NodeSpec {
        let (name, region, cluster, block, rack) = names;
        NodeDraft { name, region, cluster, block, rack, address, accelerators, cpu_milli, memory_bytes, labels }
            .check().unwrap()
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
fn wild_group() -> impl Strategy<Value = v1::TaskGroup> {
    let accelerators = option::of((any::<String>(), any::<u32>()));
    let environment = hash_map(any::<String>(), any::<String>(), 0..4);
    (
        any::<String>(),
        any::<u32>(),
        vec(any::<String>(), 0..4),
        environment,
        accelerators,
        any::<u64>(),
        any::<u64>(),
    )
        .prop_map(|(name, workers, command, environment, accelerators, cpu_milli, memory_bytes)| {
            v1::TaskGroup {
                name,
                workers,
                command,
                environment,
                accelerators: accelerators.map(|(r#type, count)| v1::Accelerators { r#type, count }),
                cpu_milli,
                memory_bytes,
            }
        })
}

prop_compose! {
    fn wild_spec()(
        texts in (any::<String>(), any::<String>(), any::<String>(), any::<String>(), any::<String>()),
        groups in vec(wild_group(), 0..20),
        regions in vec(any::<String>(), 0..4),
        run_time_limit_ms: u64,
        stop_grace_ms in option::of(any::<u64>()),
        failure_retries_max: u32,
        array_size in prop_oneof![0u32..4, any::<u32>()],
    ) -> v1::JobSpec {
        let (name, tenant, tier, checkpoint_directory, working_directory) = texts;
        v1::JobSpec {
            name, tenant, tier, groups, regions, run_time_limit_ms, stop_grace_ms, failure_retries_max,
            checkpoint_directory, working_directory, array_size,
        }
    }
}

proptest! {
    // Each case is a large message of random text; a hundred of them are seconds of making it up.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn specs_return(spec in spec()) {
        let members = job_specs_from_proto("spec", Some(job_spec_to_proto(&spec))).unwrap();
        let place = spec.array.map_or(0, |array| array.index as usize);
        prop_assert_eq!(members.len(), spec.array.map_or(1, |array| array.size as usize));
        prop_assert_eq!(&members[place], &spec);
    }

    #[test]
    fn nodes_return(node in node()) {
        let message = node_spec_to_proto(&node);
        prop_assert_eq!(node_spec_from_proto("node", Some(&message)), Ok(node));
    }

    #[test]
    fn values_return(exit in exit(), generation: u32, index: u64, bits: u64, accelerators in accelerators()) {
        prop_assert_eq!(exit_status_from_proto("exit", &exit_status_to_proto(&exit)), Ok(exit.clone()));
        let token = FencingToken { generation, log_index: LogIndex(index) };
        prop_assert_eq!(fencing_token_from_proto("token", Some(&fencing_token_to_proto(token))), Ok(token));
        let devices = DeviceSet(bits);
        prop_assert_eq!(device_set_from_proto("devices", &device_set_to_proto(devices)), Ok(devices));
        let message = accelerators_to_proto(&accelerators);
        prop_assert_eq!(accelerators_from_proto("accelerators", &message), Ok(accelerators));
        let report = WorkerReport { job: JobId(index), token, rank: (generation % 7 > 0).then_some(generation % 100), exit: Some(exit) };
        prop_assert_eq!(worker_report_from_proto("w", &worker_report_to_proto(&report)), Ok(report));
    }

    #[test]
    fn wild_specs_are_refused_with_paths(messages in vec(wild_spec(), 1..4)) {
        match jobs_from_proto("specs", messages) {
            Ok(specs) => prop_assert!(specs.len() <= limits::BATCH_JOBS_MAX),
            Err(found) => {
                prop_assert!(!found.is_empty() && found.len() <= VIOLATIONS_MAX);
                prop_assert!(found.iter().all(|v| v.field.starts_with("specs")), "{found:?}");
            }
        }
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        if let Ok(message) = v1::JobSpec::decode(&*bytes) {
            let _ = job_specs_from_proto("spec", Some(message));
        }
        if let Ok(message) = v1::SubmitJobsRequest::decode(&*bytes) {
            let _ = request_id("request_id", &message.request_id);
            let _ = jobs_from_proto("specs", message.specs);
        }
        if let Ok(message) = v1::Register::decode(&*bytes) {
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
            "node.region",
        ]
    );
    assert_eq!(fields(&node_spec_from_proto("node", None).unwrap_err()), ["node"]);
}
