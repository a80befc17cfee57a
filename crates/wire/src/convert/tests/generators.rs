//! Values and messages, generated.

use std::collections::BTreeSet;

use super::*;

pub(super) fn name() -> impl Strategy<Value = Name> {
    "[a-z0-9]([a-z0-9._-]{0,10}[a-z0-9])?".prop_map(|text| Name::new(&text).unwrap())
}

pub(super) fn accelerators() -> impl Strategy<Value = Accelerators> {
    (name(), 1..=limits::HOST_DEVICES_MAX).prop_map(|(kind, count)| Accelerators { kind, count })
}

pub(super) fn accelerator_request() -> impl Strategy<Value = AcceleratorRequest> {
    let amount = prop_oneof![
        (1..=limits::HOST_DEVICES_MAX).prop_map(DeviceAmount::Whole),
        (1u16..1_000).prop_map(DeviceAmount::Share),
    ];
    (btree_map(name(), 1..=limits::THROUGHPUT_MILLI_MAX, 0..4), amount).prop_map(|(choices, amount)| {
        let choice = |(kind, throughput_milli)| AcceleratorChoice { kind, throughput_milli };
        AcceleratorRequest { choices: choices.into_iter().map(choice).collect(), amount }
    })
}

pub(super) fn artifacts() -> impl Strategy<Value = muster_types::Artifacts> {
    use muster_types::{ArtifactFault, Artifacts, BlobDigest};
    let fault = (proptest::sample::select(ArtifactFault::ALL.to_vec()), any::<u32>());
    let counts = (any::<u32>(), any::<u64>(), any::<u32>());
    (option::of(any::<[u8; 32]>()), counts, option::of(fault)).prop_map(
        |(digest, (files, bytes, left_out), fault)| Artifacts {
            digest: digest.map(BlobDigest::new),
            files,
            bytes,
            left_out,
            fault,
        },
    )
}

/// How nodes may have been bought, as a submission says it.
pub(super) fn capacity() -> impl Strategy<Value = CapacityRules> {
    let set = |kinds: &[PurchaseKind]| kinds.iter().copied().collect();
    let after = limits::CAPACITY_FALLBACK_MS_MIN..=limits::CAPACITY_FALLBACK_MS_MAX;
    (option::of(after), option::of(1..=limits::INTERRUPTIONS_MILLI_MAX)).prop_map(
        move |(after, interruptions_milli_max)| CapacityRules {
            purchases: set(&[PurchaseKind::Spot, PurchaseKind::Reserved]),
            fallback: after.map(|after_ms| CapacityFallback {
                purchases: set(&[PurchaseKind::OnDemand]),
                after_ms,
                is_open: false,
            }),
            interruptions_milli_max,
        },
    )
}

pub(super) fn level() -> impl Strategy<Value = Level> {
    proptest::sample::select(Level::ALL.to_vec())
}

/// Rules that hold for a gang of any size.
pub(super) fn topology() -> impl Strategy<Value = TopologyRule> {
    prop_oneof![
        (any::<bool>(), any::<bool>()).prop_map(|(balanced, segmented)| TopologyRule {
            balanced,
            segment_workers: u32::from(segmented),
            segments: Vec::new(),
            required: Some(Level::Block),
            preferred: Some(Level::Host),
            ..TopologyRule::default()
        }),
        (1..8usize).prop_map(|levels| TopologyRule {
            segments: (0..3usize)
                .filter(|place| levels >> place & 1 == 1)
                .map(|place| Segment { level: Level::ALL[place], workers: 1 })
                .collect(),
            ..TopologyRule::default()
        }),
        (level(), 1..100u32).prop_map(|(level, workers_max)| TopologyRule {
            spread: Some(Spread { level, workers_max }),
            ..TopologyRule::default()
        }),
        Just(TopologyRule::default()),
    ]
}

pub(super) fn dependencies() -> impl Strategy<Value = Vec<Dependency>> {
    btree_map(any::<u64>(), any::<bool>(), 0..4).prop_map(|jobs| {
        let rule = |done| if done { DependencyRule::Succeeded } else { DependencyRule::Finished };
        let scopes = [DependencyScope::Job, DependencyScope::Array, DependencyScope::Member];
        let scope = |job: u64| scopes[(job % 3) as usize];
        let on = |(job, done)| Dependency { job: JobId(job), rule: rule(done), scope: scope(job) };
        jobs.into_iter().map(on).collect()
    })
}

pub(super) fn request() -> impl Strategy<Value = WorkerRequest> {
    (option::of(accelerator_request()), 1..=limits::CPU_MILLI_MAX, 1..=limits::MEMORY_BYTES_MAX).prop_map(
        |(accelerators, cpu_milli, memory_bytes)| WorkerRequest {
            accelerators,
            cpu_milli,
            memory_bytes,
            exclusive: false,
            scratch_bytes: 0,
        },
    )
}

pub(super) fn group() -> impl Strategy<Value = TaskGroup> {
    (
        name(),
        1u32..1_000,
        vec("[^\0]{1,20}", 1..5),
        btree_map("[A-L_][A-Z0-9_]{0,5}", "[^\0]{0,9}", 0..4),
        request(),
        option::of(container()),
    )
        .prop_map(|(name, workers, command, environment, request, container)| TaskGroup {
            name,
            workers,
            workers_min: workers,
            command,
            environment,
            request,
            slice: None,
            container,
        })
}

fn container() -> impl Strategy<Value = Container> {
    let pull = proptest::sample::select(PullRule::ALL.to_vec());
    let mounts = vec(("/[a-c]{1,3}", any::<bool>()), 0..4);
    let shared = prop_oneof![Just(0u64), Just(limits::SHARED_MEMORY_BYTES_MIN)];
    let credentials = proptest::option::of("[a-z]{1,5}");
    ("[a-z]{1,5}\\.[a-z]{1,5}/[a-z0-9]{1,9}:[a-z0-9]{1,5}", pull, mounts, shared, credentials).prop_map(
        |(image, pull, mounts, shared_memory_bytes, credentials)| Container {
            shared_memory_bytes,
            credentials: credentials.and_then(|name| Name::new(&name)),
            image,
            pull,
            mounts: mounts
                .into_iter()
                .enumerate()
                .map(|(n, (source, read_only))| Mount { source, target: format!("/m{n}"), read_only })
                .collect(),
        },
    )
}

/// Names of nodes that have no letter in common, so that none is named twice.
pub(super) fn node_requirements() -> impl Strategy<Value = NodeRequirements> {
    let values = || btree_set("\\PC{0,9}", 1..4);
    let test = prop_oneof![
        values().prop_map(LabelTest::In),
        values().prop_map(LabelTest::NotIn),
        Just(LabelTest::Exists),
        Just(LabelTest::DoesNotExist),
        any::<i64>().prop_map(LabelTest::Greater),
        any::<i64>().prop_map(LabelTest::Less),
    ];
    let expression = (name(), test).prop_map(|(label, test)| NodeExpression { label, test });
    let names = |letters: &'static str| {
        btree_set(letters, 0..3)
            .prop_map(|names| names.iter().filter_map(|name| Name::new(name)).collect::<BTreeSet<Name>>())
    };
    (vec(expression, 0..4), names("[a-m]{1,6}"), names("[n-z]{1,6}"))
        .prop_map(|(expressions, only, exclude)| NodeRequirements { expressions, only, exclude })
}

pub(super) fn wild_nodes() -> impl Strategy<Value = v1::NodeRequirements> {
    let names = || vec(prop_oneof![any::<String>(), Just("h1".to_owned())], 0..4);
    let operator = prop_oneof![any::<i32>(), 0..7i32];
    let values = vec(prop_oneof![any::<String>(), Just("7".to_owned())], 0..3);
    let key = prop_oneof![any::<String>(), Just("zone".to_owned())];
    let expression = (key, operator, values).prop_map(|(key, operator, values)| v1::NodeExpression {
        key,
        operator,
        values,
    });
    (vec(expression, 0..4), names(), names()).prop_map(|(expressions, only, exclude)| v1::NodeRequirements {
        expressions,
        only,
        exclude,
    })
}

/// Entries whose targets differ, so that none contradicts another.
fn affinity() -> impl Strategy<Value = Vec<Affinity>> {
    let levels = vec![
        AffinityLevel::Region,
        AffinityLevel::Cluster,
        AffinityLevel::Block,
        AffinityLevel::Rack,
        AffinityLevel::Host,
    ];
    let rules = vec![AffinityRule::Together, AffinityRule::Apart];
    let entry = (
        0..4usize,
        proptest::sample::select(levels),
        proptest::sample::select(rules),
        option::of(1..=limits::AFFINITY_WEIGHT_MAX),
    );
    vec(entry, 0..=limits::JOB_AFFINITY_MAX).prop_map(|entries| {
        let entries = entries.into_iter().enumerate();
        let target = |(place, kind): (usize, usize)| match kind {
            0 => AffinityTarget::Job(JobId(place as u64 + 1)),
            1 => AffinityTarget::Array(ArrayId(place as u64 + 1)),
            2 => AffinityTarget::Named(Name::new(&format!("other-{place}")).unwrap()),
            _ => AffinityTarget::Labels(format!("app=other-{place},!debug")),
        };
        entries
            .map(|(place, (kind, level, rule, weight))| Affinity {
                target: target((place, kind)),
                level,
                rule,
                weight,
            })
            .collect()
    })
}

prop_compose! {
    pub(super) fn spec()(
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
        nodes in option::of(node_requirements()),
        booking in option::of(name()),
        capacity in option::of(capacity()),
        affinity in affinity(),
        licences in btree_map(name(), 1..=limits::LICENCE_COUNT_MAX, 0..3),
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
            nodes: nodes.filter(|nodes| !nodes.is_empty()).map(Box::new), booking,
            capacity: capacity.map(Box::new), affinity, licences, nice: if elastic { -7 } else { 0 }, front: None,
            size: None, readiness_ms: expected_run_ms.map(|ms| ms.clamp(1_000, 604_800_000)),
        }.check().unwrap()
    }
}

prop_compose! {
    pub(super) fn node()(
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
            taints, pod, scratch_bytes: memory_bytes / 2,
        }.check().unwrap()
    }
}

pub(super) fn exit() -> impl Strategy<Value = ExitStatus> {
    prop_oneof![
        any::<i32>().prop_map(ExitStatus::Code),
        any::<i32>().prop_map(ExitStatus::Signal),
        Just(ExitStatus::LeaseExpired),
        "\\PC{0,60}".prop_map(ExitStatus::LaunchFailed),
        Just(ExitStatus::Vanished),
        Just(ExitStatus::NotStarted),
        Just(ExitStatus::OutOfScratch),
    ]
}

/// Messages near enough to right ones to reach every rule, with texts of any kind.
pub(super) fn wild_accelerators() -> impl Strategy<Value = v1::AcceleratorRequest> {
    use v1::accelerator_request::Amount;
    let amount = prop_oneof![any::<u32>().prop_map(Amount::Count), any::<u32>().prop_map(Amount::ShareMilli)];
    let kind = prop_oneof![any::<String>(), Just("v5p".to_owned()), Just("v5e".to_owned())];
    let choices = vec((kind, any::<u32>()).prop_map(|(kind, milli)| choice(&kind, milli)), 0..3);
    (choices, option::of(amount)).prop_map(|(choices, amount)| v1::AcceleratorRequest { choices, amount })
}

pub(super) fn wild_slice() -> impl Strategy<Value = v1::SliceRequest> {
    let shape = prop_oneof![any::<String>(), "[0-9]{1,2}x[0-9]{1,2}(x[0-9]{1,2})?"];
    (shape, prop_oneof![0u32..4, any::<u32>()]).prop_map(|(shape, count)| v1::SliceRequest { shape, count })
}

pub(super) fn wild_variable() -> impl Strategy<Value = v1::EnvVar> {
    use v1::env_var::Source;
    let source =
        prop_oneof![any::<String>().prop_map(Source::Value), any::<String>().prop_map(Source::SecretRef)];
    (any::<String>(), option::of(source)).prop_map(|(name, source)| v1::EnvVar { name, source })
}

prop_compose! {
    pub(super) fn wild_group()(
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

pub(super) fn wild_topology() -> impl Strategy<Value = v1::TopologyRule> {
    let level = || prop_oneof![any::<i32>(), 0..4i32];
    let spread = (level(), any::<u32>()).prop_map(|(level, max_workers)| v1::Spread { level, max_workers });
    let segment = (level(), 0u32..5).prop_map(|(level, workers)| v1::Segment { level, workers });
    (level(), level(), any::<bool>(), 0u32..5, option::of(spread), vec(segment, 0..5)).prop_map(
        |(required, preferred, balanced, segment_workers, spread, segments)| v1::TopologyRule {
            required,
            preferred,
            balanced,
            segment_workers,
            spread,
            segments,
        },
    )
}

prop_compose! {
    pub(super) fn wild_spec()(
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
        nodes in option::of(wild_nodes()),
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
            tolerations, preemptible, dependencies, not_before, deadline, expected_run, datasets, nodes,
            ..rules
        };
        spec.retry_mut().max_failures = max_failures;
        spec.checkpoint_mut().directory = directory;
        v1::Job { name, tenant, labels: carried.0, annotations: carried.1, spec: Some(spec), ..Default::default() }
    }
}

pub(super) fn wild_duration() -> impl Strategy<Value = Option<Duration>> {
    option::of((any::<i64>(), any::<i32>()).prop_map(|(seconds, nanos)| Duration { seconds, nanos }))
}

pub(super) fn wild_timestamp() -> impl Strategy<Value = Option<Timestamp>> {
    option::of((any::<i64>(), any::<i32>()).prop_map(|(seconds, nanos)| Timestamp { seconds, nanos }))
}

pub(super) fn wild_texts() -> impl Strategy<Value = HashMap<String, String>> {
    prop_oneof![3 => Just(HashMap::new()), 1 => hash_map(any::<String>(), any::<String>(), 0..40)]
}

prop_compose! {
    pub(super) fn wild_rules()(
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
    pub(super) fn contract()(
        launch in proptest::sample::select(LaunchForm::ALL.to_vec()),
        limits in btree_map(proptest::sample::select(FailureClass::ALL.to_vec()), 0u32..9, 0..9),
        waits in (option::of(0u64..9_999), option::of(0u64..9_999), option::of(0u64..9_999)),
        place in option::of(name()),
        times in (option::of(1u64..9_999), option::of(1u64..9_999), option::of(1u64..9_999)),
        http in option::of((1u16.., "(/[a-z]{0,9})?")),
        spares in 0u32..9,
        preflight in proptest::sample::select(Preflight::ALL.to_vec()),
        (workdir, trace, host) in (
            option::of(any::<[u8; 32]>()),
            option::of(any::<([u8; 16], [u8; 8], u8)>()),
            (
                proptest::sample::select(muster_types::CpuBinding::ALL.to_vec()),
                proptest::sample::select(muster_types::CommandShell::ALL.to_vec()),
            ),
        ),
        (artifacts, notify) in (
            option::of((vec("[a-z*?]{1,9}(/[a-z]{1,3})?", 1..4), any::<bool>())),
            btree_map(name(), proptest::collection::btree_set(0..7usize, 1..4), 0..3),
        ),
        open_files in option::of(64u64..1 << 20),
        sizes in proptest::array::uniform3(option::of(1u64 << 16..1 << 40)),
    ) -> JobContract {
        let [core_bytes, locked_bytes, stack_bytes] = sizes;
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
            workdir: workdir.map(muster_types::BlobDigest::new),
            artifacts: artifacts
                .map(|(paths, required)| muster_types::ArtifactRules { paths, required }),
            ulimits: muster_types::Ulimits { open_files, core_bytes, locked_bytes, stack_bytes },
            host: muster_types::HostRules { binding: host.0, shell: host.1, shared_memory_bytes: 0 },
            trace_parent: trace
                .and_then(|(trace, span, flags)| muster_types::TraceParent::new(trace, span, flags)),
            // By another number of the job.
            terminal: spares % 2 == 1,
            notify: notify.into_iter().map(notification).collect(),
        }
    }
}

/// The first events of the list are those of jobs.
fn notification((receiver, events): (Name, BTreeSet<usize>)) -> muster_types::JobNotification {
    let all = muster_types::policy::NotificationEvent::ALL;
    let events = events.into_iter().map(|index| all[index]).collect();
    muster_types::JobNotification { receiver, events }
}

pub(super) fn legal_slice() -> impl Strategy<Value = (Generation, SliceShape)> {
    let all = Generation::ALL
        .iter()
        .flat_map(|generation| legal_shapes(*generation).into_iter().map(|shape| (*generation, shape)));
    proptest::sample::select(all.collect::<Vec<_>>())
}
