use std::collections::{BTreeMap, BTreeSet};

use muster_types::job::ArrayMember;
use muster_types::worker_features::{WorkerFeature, with_features};
use muster_types::{
    Accelerators, CpuBinding, HostRules, JobContract, JobDraft, LabelTest, Name, NodeDraft, NodeExpression,
    NodeRequirements, Parameters, PriorityTier, Submission, TaskGroup, Violation, WorkerRequest, limits,
};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn accelerators(count: u16) -> Option<Accelerators> {
    Some(Accelerators { kind: name("h100"), count })
}

/// Workers of a group that a test says nothing else of.
fn group_workers() -> u32 {
    2
}

fn group(text: &str) -> TaskGroup {
    let request = WorkerRequest {
        accelerators: accelerators(8).map(Into::into),
        cpu_milli: 1,
        memory_bytes: 1,
        exclusive: false,
        scratch_bytes: 0,
    };
    TaskGroup::new(name(text), group_workers(), vec!["train".into()], request)
}

fn job() -> JobDraft {
    JobDraft {
        tier: PriorityTier::Batch,
        regions: vec![name("eu"), name("us")],
        run_time_limit_ms: Some(1),
        stop_grace_ms: 0,
        failure_retries_max: 0,
        checkpoint_directory: Some("/c".into()),
        working_directory: Some("/".into()),
        array: Some(ArrayMember { index: 0, ordinal: 0, size: 1 }),
        ..JobDraft::new(name("train"), name("research"), vec![group("a"), group("b")])
    }
}

fn fields(found: &[Violation]) -> Vec<&str> {
    found.iter().map(|v| v.field.as_str()).collect()
}

/// One change, and the fields that are named for it.
#[track_caller]
fn job_violates(change: impl FnOnce(&mut JobDraft), expected: &[&str]) {
    let mut draft = job();
    change(&mut draft);
    for group in draft.groups.iter_mut().filter(|group| group.workers_min == group_workers()) {
        group.workers_min = group.workers;
    }
    match draft.check() {
        Ok(_) => assert!(expected.is_empty(), "nothing was found, expected {expected:?}"),
        Err(found) => {
            assert_eq!(fields(&found), expected, "{found:?}");
            assert!(found.iter().all(|v| !v.description.is_empty()));
        }
    }
}

#[test]
fn a_job_at_its_bounds_is_one() {
    job_violates(|_| {}, &[]);
    job_violates(|j| j.groups.truncate(1), &[]);
    job_violates(|j| j.regions.clear(), &[]);
    job_violates(|j| j.run_time_limit_ms = Some(limits::RUN_TIME_LIMIT_MS_MAX), &[]);
    job_violates(|j| j.run_time_limit_ms = None, &[]);
    job_violates(|j| j.stop_grace_ms = limits::STOP_GRACE_MS_MAX, &[]);
    job_violates(|j| j.failure_retries_max = limits::FAILURE_RETRIES_MAX, &[]);
    job_violates(|j| j.groups[0].workers = limits::GANG_WORKERS_MAX - 2, &[]);
    job_violates(
        |j| j.groups[0].request.accelerators = accelerators(limits::HOST_DEVICES_MAX).map(Into::into),
        &[],
    );
    job_violates(|j| j.groups[0].request.cpu_milli = limits::CPU_MILLI_MAX, &[]);
    job_violates(|j| j.groups[0].request.memory_bytes = limits::MEMORY_BYTES_MAX, &[]);
    job_violates(|j| j.groups[0].command = vec!["x".repeat(limits::TEXT_BYTES_MAX); 7], &[]);
    job_violates(|j| j.groups[0].command = vec!["x".into(); limits::COMMAND_WORDS_MAX], &[]);
    job_violates(|j| j.groups[0].command = vec!["x".into(), String::new()], &[]);
    job_violates(|j| j.array = Some(ArrayMember { index: 7_000, ordinal: 99_999, size: 100_000 }), &[]);
    let most = limits::NODES_NAMED_MAX;
    job_violates(|j| j.nodes = asked(limits::NODE_EXPRESSIONS_MAX, values(1), most, most), &[]);
    job_violates(|j| j.nodes = asked(1, values(limits::SELECTOR_VALUES_MAX), 0, 0), &[]);
}

/// Tests with these values, and as many names of each kind.
fn asked(
    tests: usize,
    values: BTreeSet<String>,
    only: usize,
    exclude: usize,
) -> Option<Box<NodeRequirements>> {
    let test = NodeExpression { label: name("zone"), test: LabelTest::NotIn(values) };
    let names = |letter: &str, count: usize| (0..count).map(|n| name(&format!("{letter}{n}"))).collect();
    let expressions = vec![test; tests];
    Some(Box::new(NodeRequirements { expressions, only: names("a", only), exclude: names("b", exclude) }))
}

fn values(count: usize) -> BTreeSet<String> {
    (0..count).map(|n| n.to_string()).collect()
}

#[test]
fn every_rule_of_what_is_asked_of_nodes_is_named() {
    let most = limits::NODES_NAMED_MAX;
    job_violates(|j| j.nodes = Some(Box::default()), &["nodes"]);
    job_violates(
        |j| j.nodes = asked(limits::NODE_EXPRESSIONS_MAX + 1, values(1), 0, 0),
        &["nodes.expressions"],
    );
    job_violates(|j| j.nodes = asked(0, values(1), most + 1, 0), &["nodes.only"]);
    job_violates(|j| j.nodes = asked(0, values(1), 0, most + 1), &["nodes.exclude"]);
    job_violates(|j| j.nodes = asked(1, values(0), 0, 0), &["nodes.expressions[0].values"]);
    let many = limits::SELECTOR_VALUES_MAX + 1;
    job_violates(|j| j.nodes = asked(1, values(many), 0, 0), &["nodes.expressions[0].values"]);
    let long: BTreeSet<String> = ["x".repeat(limits::LABEL_BYTES_MAX + 1)].into();
    job_violates(|j| j.nodes = asked(1, long, 0, 0), &["nodes.expressions[0].values"]);
    job_violates(
        |j| {
            let mut both = asked(0, values(1), 1, 0).expect("a name");
            both.exclude = both.only.clone();
            j.nodes = Some(both);
        },
        &["nodes.exclude"],
    );
}

#[test]
fn every_rule_of_a_job_is_named() {
    job_violates(|j| j.groups.clear(), &["groups"]);
    job_violates(
        |j| j.groups = (0..=limits::TASK_GROUPS_MAX).map(|n| group(&format!("g{n}"))).collect(),
        &["groups"],
    );
    job_violates(|j| j.groups[1].name = name("a"), &["groups[1].name"]);
    job_violates(|j| j.groups[1].workers = 0, &["groups[1].workers"]);
    job_violates(|j| j.groups[0].workers = limits::GANG_WORKERS_MAX - 1, &["groups"]);
    job_violates(|j| j.groups[0].workers = u32::MAX, &["groups[0].workers", "groups"]);
    job_violates(|j| j.groups[0].command.clear(), &["groups[0].command"]);
    let too_many = limits::COMMAND_WORDS_MAX + 1;
    job_violates(|j| j.groups[0].command = vec!["x".into(); too_many], &["groups[0].command"]);
    job_violates(|j| j.groups[0].command[0].clear(), &["groups[0].command[0]"]);
    job_violates(|j| j.groups[0].command.push("a\0b".into()), &["groups[0].command[1]"]);
    let long = "x".repeat(limits::TEXT_BYTES_MAX + 1);
    job_violates(|j| j.groups[0].command.push(long.clone()), &["groups[0].command[1]"]);
    let half = vec!["x".repeat(limits::TEXT_BYTES_MAX); 5];
    let variable = |key: &str, value: &str| {
        let (key, value) = (key.to_string(), value.to_string());
        move |j: &mut JobDraft| {
            j.groups[0].environment.insert(key, value);
        }
    };
    job_violates(|j| j.groups.iter_mut().for_each(|g| g.command.clone_from(&half)), &["groups"]);
    job_violates(variable("SEED", "1"), &[]);
    job_violates(variable("_x9", ""), &[]);
    job_violates(variable("", "1"), &["groups[0].environment."]);
    job_violates(variable("9x", "1"), &["groups[0].environment.9x"]);
    job_violates(variable("a-b", "1"), &["groups[0].environment.a-b"]);
    job_violates(variable("MUSTER_RANK", "1"), &["groups[0].environment.MUSTER_RANK"]);
    job_violates(variable("X", "a\0"), &["groups[0].environment.X"]);
    job_violates(variable("X", &long), &["groups[0].environment.X"]);
    let shown = format!("groups[0].environment.{}", "k".repeat(80));
    job_violates(variable(&"k".repeat(257), "1"), &[&shown]);
    job_violates(
        |j| {
            j.groups[0].environment =
                (0..=limits::ENVIRONMENT_MAX).map(|n| (format!("K{n}"), String::new())).collect()
        },
        &["groups[0].environment"],
    );
    job_violates(
        |j| j.groups[0].request.accelerators = accelerators(0).map(Into::into),
        &["groups[0].request.accelerators.count"],
    );
    job_violates(
        |j| j.groups[1].request.accelerators = accelerators(65).map(Into::into),
        &["groups[1].request.accelerators.count"],
    );
    job_violates(|j| j.groups[0].request.cpu_milli = 0, &["groups[0].request.cpu_milli"]);
    job_violates(|j| j.groups[0].request.cpu_milli = u64::MAX, &["groups[0].request.cpu_milli"]);
    job_violates(|j| j.groups[0].request.memory_bytes = 0, &["groups[0].request.memory_bytes"]);
    job_violates(|j| j.groups[0].request.memory_bytes = u64::MAX, &["groups[0].request.memory_bytes"]);
    job_violates(|j| j.regions.push(name("eu")), &["regions"]);
    job_violates(
        |j| j.regions = (0..=limits::JOB_REGIONS_MAX).map(|n| name(&format!("r{n}"))).collect(),
        &["regions"],
    );
    job_violates(|j| j.run_time_limit_ms = Some(0), &["run_time_limit"]);
    job_violates(|j| j.run_time_limit_ms = Some(u64::MAX), &["run_time_limit"]);
    job_violates(|j| j.stop_grace_ms = limits::STOP_GRACE_MS_MAX + 1, &["stop_grace"]);
    job_violates(|j| j.failure_retries_max = u32::MAX, &["failure_retries_max"]);
    for bad in ["", "relative", "/a\0b", &format!("/{long}")] {
        job_violates(|j| j.checkpoint_directory = Some(bad.into()), &["checkpoint_directory"]);
        job_violates(|j| j.working_directory = Some(bad.into()), &["working_directory"]);
    }
    for (index, ordinal, size) in
        [(0, 0, 0), (0, 1, 1), (0, 0, 100_001), (u32::MAX, 0, 1), (0, u32::MAX, u32::MAX)]
    {
        job_violates(|j| j.array = Some(ArrayMember { index, ordinal, size }), &["array"]);
    }
}

#[test]
fn workers_with_processors_for_themselves_ask_for_whole_ones() {
    let fields = |cpu_milli: u64, binding: CpuBinding| {
        let mut draft = job();
        for group in &mut draft.groups {
            group.request.cpu_milli = cpu_milli;
        }
        let host = HostRules { binding, ..HostRules::default() };
        let contract = JobContract { host, ..JobContract::default() };
        let violations = contract.violations(&draft.check().unwrap());
        violations.into_iter().map(|violation| violation.field).collect::<Vec<_>>()
    };
    assert_eq!(fields(10, CpuBinding::Cores), ["host.binding"]);
    assert_eq!(fields(1_500, CpuBinding::Cores), ["host.binding"]);
    assert!(fields(2_000, CpuBinding::Cores).is_empty());
    assert!(fields(10, CpuBinding::Numa).is_empty() && fields(10, CpuBinding::None).is_empty());
}

#[test]
fn a_job_keeps_away_from_nodes_that_lack_what_it_asks_of_its_workers() {
    let lacking = |feature: WorkerFeature| {
        let (label, value) = feature.lacking_fact();
        [(name(label), value.to_owned())].into()
    };
    let host = HostRules { binding: CpuBinding::Numa, ..HostRules::default() };
    let contract = JobContract { host, terminal: true, ..JobContract::default() };
    let mut jobs = [Submission::new(job().check().unwrap(), contract), job().check().unwrap().into()];
    let before = jobs[1].clone();
    let path = |place: usize| format!("jobs[{place}]");
    assert_eq!(Submission::require_features(&mut jobs, path), Ok(()));
    assert_eq!(jobs[1], before, "it asks for nothing");
    let nodes = jobs[0].spec.nodes.clone().unwrap();
    let allows = |labels: BTreeMap<Name, String>| nodes.allows(&NodeDraft { labels, ..node() });
    assert!(allows(BTreeMap::new()) && allows(lacking(WorkerFeature::SharedMemory)));
    assert!(!allows(lacking(WorkerFeature::Binding)) && !allows(lacking(WorkerFeature::Terminal)));
    let told = nodes.expressions.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(told.ends_with(&["worker.binding notin (none)".into(), "worker.terminal notin (none)".into()]));
    // Another replica that passes it on does the same.
    let once = jobs[0].clone();
    assert_eq!(Submission::require_features(&mut jobs, path), Ok(()));
    assert_eq!(jobs[0], once);
    // A change of what it asks of its nodes does not take these conditions away.
    assert_eq!(with_features(None, &jobs[0].contract), jobs[0].spec.nodes);
    assert_eq!(with_features(None, &jobs[1].contract), None);
    // There is no place left for one more.
    let mut draft = job();
    let test = LabelTest::Exists;
    let expressions = (0..limits::NODE_EXPRESSIONS_MAX)
        .map(|place| NodeExpression { label: name(&format!("l{place}")), test: test.clone() });
    draft.nodes = Some(Box::new(NodeRequirements {
        expressions: expressions.collect(),
        ..NodeRequirements::default()
    }));
    let contract = JobContract { terminal: true, ..JobContract::default() };
    let found = Submission::require_features(&mut [Submission::new(draft.check().unwrap(), contract)], path);
    assert_eq!(found.unwrap_err()[0].field, "jobs[0].spec.nodes.expressions");
}

#[test]
fn shared_memory_is_no_larger_than_the_memory_that_it_counts_as() {
    let fields = |memory_bytes: u64, is_exclusive: bool| {
        let mut draft = job();
        for group in &mut draft.groups {
            group.request.memory_bytes = memory_bytes;
            group.request.exclusive = is_exclusive;
            group.request.accelerators = None;
        }
        let host = HostRules { shared_memory_bytes: 1 << 30, ..HostRules::default() };
        let contract = JobContract { host, ..JobContract::default() };
        let violations = contract.violations(&draft.check().unwrap());
        violations.into_iter().map(|violation| violation.field).collect::<Vec<_>>()
    };
    assert_eq!(fields((1 << 30) - 1, false), ["host.shared_memory_bytes"]);
    assert!(fields(1 << 30, false).is_empty());
    assert!(fields(1, true).is_empty(), "it has all memory of its host");
}

#[test]
fn all_violations_of_a_job_are_found_at_once() {
    job_violates(
        |j| {
            j.groups[0].workers = 0;
            j.groups[1].request.cpu_milli = 0;
            j.regions.push(name("eu"));
            j.run_time_limit_ms = Some(0);
            j.working_directory = Some("x".into());
        },
        &[
            "groups[0].workers",
            "groups[1].request.cpu_milli",
            "regions",
            "run_time_limit",
            "working_directory",
        ],
    );
}

#[test]
fn ranks_run_through_the_groups() {
    let mut draft = job();
    draft.groups[1].workers = 3;
    draft.groups[1].workers_min = 3;
    draft.groups[1].request.accelerators = None;
    let spec = draft.clone().check().unwrap();
    assert_eq!((spec.worker_count(), spec.device_count()), (5, 16));
    let places: Vec<_> =
        (0..6).map(|rank| spec.group_of(rank, 5).map(|(g, n)| (g.name.to_string(), n))).collect();
    let expected = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)];
    for (place, (group, n)) in places.iter().zip(expected) {
        assert_eq!(*place, Some((group.to_string(), n)));
    }
    assert_eq!(places[5], None);
    assert_eq!(spec.group_of(u32::MAX, 5), None);
    assert_eq!(spec.into_draft(), draft);
}

/// Groups grow together in at most 63 steps, each with more workers than the one before, from the fewest to all.
#[test]
fn groups_of_an_elastic_job_have_one_list_of_sizes() {
    let of = |sizes: &[(u32, u32)]| {
        let mut draft = job();
        let like = draft.groups.remove(0);
        draft.groups.clear();
        for (number, (least, most)) in sizes.iter().enumerate() {
            let mut group = like.clone();
            group.name = name(&format!("g{number}"));
            (group.workers, group.workers_min) = (*most, *least);
            draft.groups.push(group);
        }
        draft.check().unwrap()
    };
    let spec = of(&[(1, 1), (2, 8), (4, 7)]);
    assert_eq!((spec.size_steps(), spec.worker_count_min(), spec.worker_count()), (6, 7, 16));
    let sizes: Vec<Vec<u32>> = (0..=6).map(|step| spec.sizes_at(step).collect()).collect();
    assert_eq!(sizes[0], [1, 2, 4]);
    assert_eq!(sizes[1], [1, 3, 5]);
    assert_eq!(sizes[2], [1, 4, 5]);
    assert_eq!(sizes[6], [1, 8, 7]);
    assert_eq!(spec.sizes_of(9), Some(vec![1, 3, 5]));
    assert_eq!((spec.sizes_of(8), spec.sizes_of(6), spec.sizes_of(17)), (None, None, None));
    let group = |rank: u32, workers: usize| {
        spec.group_of(rank, workers).map(|(group, number)| (group.name.to_string(), number))
    };
    assert_eq!(group(4, 9), Some(("g2".to_owned(), 0)));
    assert_eq!(group(4, 16), Some(("g1".to_owned(), 3)));
    assert_eq!(group(9, 9), None);
    for spec in [of(&[(1, 1_000), (1, 7)]), of(&[(3, 3), (2, 2)]), of(&[(1, 64), (64, 65), (5, 5)])] {
        let sizes: Vec<u32> = (0..=spec.size_steps()).map(|step| spec.workers_at(step)).collect();
        assert!(sizes.len() <= 64 && sizes.windows(2).all(|pair| pair[0] < pair[1]), "{sizes:?}");
        assert_eq!(
            (sizes.first(), sizes.last()),
            (Some(&spec.worker_count_min()), Some(&spec.worker_count()))
        );
        for (step, workers) in sizes.iter().enumerate() {
            assert_eq!(spec.step_of(*workers), Some(step as u32));
        }
    }
}

fn node() -> NodeDraft {
    NodeDraft {
        name: name("n1"),
        region: name("eu"),
        cluster: name("c1"),
        block: name("b1"),
        rack: name("r1"),
        address: "2001:db8::1".into(),
        accelerators: accelerators(64),
        cpu_milli: limits::CPU_MILLI_MAX,
        memory_bytes: limits::MEMORY_BYTES_MAX,
        labels: BTreeMap::new(),
        taints: BTreeSet::new(),
        pod: None,
        scratch_bytes: 0,
    }
}

#[track_caller]
fn node_violates(change: impl FnOnce(&mut NodeDraft), expected: &[&str]) {
    let mut draft = node();
    change(&mut draft);
    match draft.check() {
        Ok(_) => assert!(expected.is_empty(), "nothing was found, expected {expected:?}"),
        Err(found) => assert_eq!(fields(&found), expected),
    }
}

#[test]
fn every_rule_of_a_node_is_named() {
    node_violates(|_| {}, &[]);
    for good in ["10.0.0.1", "gpu-1.example_x", &"x".repeat(253)] {
        node_violates(|n| n.address = good.into(), &[]);
    }
    for bad in ["", "a b", "a/b", "ä", &"x".repeat(254)] {
        node_violates(|n| n.address = bad.into(), &["address"]);
    }
    node_violates(|n| n.accelerators = None, &[]);
    for bad in [0, 65, u16::MAX] {
        node_violates(|n| n.accelerators = accelerators(bad), &["accelerators.count"]);
    }
    for bad in [0, u64::MAX] {
        node_violates(|n| n.cpu_milli = bad, &["cpu_milli"]);
        node_violates(|n| n.memory_bytes = bad, &["memory_bytes"]);
    }
    let labels = |count: usize| (0..count).map(|n| (name(&format!("l{n}")), "x".repeat(256))).collect();
    node_violates(|n| n.labels = labels(limits::NODE_LABELS_MAX), &[]);
    node_violates(|n| n.labels = labels(limits::NODE_LABELS_MAX + 1), &["labels"]);
    node_violates(
        |n| {
            n.labels.insert(name("zone"), "x".repeat(257));
            n.cpu_milli = 0;
        },
        &["cpu_milli", "labels.zone"],
    );
    let plain = NodeDraft { accelerators: None, ..node() }.check().unwrap();
    assert_eq!((plain.device_count(), node().check().unwrap().device_count()), (0, 64));
}

#[test]
fn every_rule_of_the_parameters_is_named() {
    let violates = |change: fn(&mut Parameters), expected: &[&str]| {
        let mut parameters = Parameters::DEFAULT;
        change(&mut parameters);
        assert_eq!(fields(&parameters.violations()), expected);
    };
    violates(|_| {}, &[]);
    violates(|p| p.lease_ttl_ms = 499, &["lease_ttl", "heartbeat_interval"]);
    violates(|p| p.lease_ttl_ms = 0, &["lease_ttl", "heartbeat_interval"]);
    violates(|p| p.lease_ttl_ms = 3_600_001, &["lease_ttl"]);
    violates(|p| p.lease_margin_ms = 199, &["lease_margin"]);
    violates(|p| p.lease_margin_ms = u64::MAX, &["lease_margin"]);
    violates(|p| p.heartbeat_interval_ms = 49, &["heartbeat_interval"]);
    violates(|p| p.heartbeat_interval_ms = 3_334, &["heartbeat_interval"]);
    violates(|p| p.heartbeat_interval_ms = 3_333, &[]);
    violates(|p| p.request_retention_ms = 59_999, &["request_retention"]);
    violates(|p| p.job_retention_ms = u64::MAX, &["job_retention"]);
    violates(|p| p.node_retention_ms = 3_599_999, &["node_retention"]);
    violates(|p| p.digest_interval_records = 0, &["digest_interval_records"]);
    assert!(Parameters::DEFAULT.lease_stop_grace_ms() < Parameters::DEFAULT.lease_margin_ms);
}
