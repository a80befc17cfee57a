//! Rounds of any content, every variant of every enum among them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_journal::{
    CapacityHold, Decision, Estimate, FORMAT_MAX, NodeLostCause, Outcome, RankUpdate, RearrangeCause,
    RequestKey, Round, Stop, StopCause, SubmittedPart, WorkerSlot,
};
use muster_types::health::{
    Condition, Drain, DrainCause, Finding, HealthAction, NodeHealth, Observation, RebootCount,
    RecoveryAction, RepairStep,
};
use muster_types::job::ArrayMember;
use muster_types::policy::{
    AcceleratorBudget, CountedResource, Guarantee, JobLimits, NonPreemptible, NotificationBody,
    NotificationEvent, NotificationProgress, OnLimit, OwnRole, OwnedCost, Policy, PolicyDraft, Price,
    PurchaseKind, QueueChoices, QueueOrder, QueuePreemption, QuotaGrant, Receiver, SpendBudget, TenantLimits,
    TenantPolicy, TenantRights, UserLimits, UserShares, Verb,
};
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, Accelerators, AdmissionMode, AdmissionRule, Affinity,
    AffinityLevel, AffinityRule, AffinityTarget, Approval, ArrayId, ArraySpec, ArtifactFault, ArtifactRules,
    Artifacts, BlobDigest, BookingAmount, BookingClearing, BookingEnd, BookingRule, BookingShape,
    BookingSpec, BookingTimes, CapacityFallback, CapacityRules, CertificateSerial, CheckpointRules,
    ClusterId, CommandShell, Container, Control, CpuBinding, Dependency, DependencyRule, DependencyScope,
    DeviceAmount, DeviceSet, ExitStatus, FailureClass, FencingToken, FieldChange, FleetHold, FleetPart,
    ForeignLoad, GroupSize, HoldTarget, HolderId, HostRules, IndexRange, JobContract, JobDraft, JobId,
    JobMetadata, JobNotification, JobSpec, LabelTest, LaunchForm, Level, ListedWindows, LogIndex, LogTime,
    Mount, Name, NodeAdmission, NodeBounds, NodeDraft, NodeExpression, NodeId, NodeOverrides,
    NodeRequirements, NodeSpec, NoticeRules, OverlapRule, Parameters, Preflight, PriorityTier, PullRule,
    PurchaseSet, QueueKey, ReplicaId, RequestId, Requester, RetryRules, Revocation, Schedule, ScheduleKey,
    ScheduleRun, ScheduleTemplate, Spread, StartId, TaskGroup, TokenGrant, TokenId, TokenRole, TopologyRule,
    TraceParent, Ulimits, WorkerRequest, limits,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

mod asked;

use asked::{bookings, own_roles, quotas, schedules, tokens};

fn name() -> impl Strategy<Value = Name> {
    "[a-z0-9]([a-z0-9._-]{0,8}[a-z0-9])?".prop_map(|text| Name::new(&text).expect("a name"))
}

fn accelerators() -> impl Strategy<Value = Option<Accelerators>> {
    option::of((name(), 1..=limits::HOST_DEVICES_MAX).prop_map(|(kind, count)| Accelerators { kind, count }))
}

fn wanted() -> impl Strategy<Value = AcceleratorRequest> {
    let choices = btree_map(name(), 1..=limits::THROUGHPUT_MILLI_MAX, 0..4);
    let amount = prop_oneof![
        (1..=limits::HOST_DEVICES_MAX).prop_map(DeviceAmount::Whole),
        (1..=999u16).prop_map(DeviceAmount::Share),
    ];
    (choices, amount).prop_map(|(choices, amount)| AcceleratorRequest {
        choices: choices
            .into_iter()
            .map(|(kind, throughput_milli)| AcceleratorChoice { kind, throughput_milli })
            .collect(),
        amount,
    })
}

/// Names that begin with other letters, so that no node is both.
fn node_requirements() -> impl Strategy<Value = Option<Box<NodeRequirements>>> {
    let values = || prop::collection::btree_set("[ -~é]{0,8}", 1..3);
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
        vec(letters, 0..3).prop_map(|names| {
            names.iter().map(|text| Name::new(text).expect("a name")).collect::<BTreeSet<Name>>()
        })
    };
    let asked = (vec(expression, 0..3), names("[a-m]{1,6}"), names("[n-z]{1,6}"))
        .prop_map(|(expressions, only, exclude)| NodeRequirements { expressions, only, exclude });
    option::of(asked).prop_map(|asked| asked.filter(|asked| !asked.is_empty()).map(Box::new))
}

/// How nodes may have been bought, with a fallback that is open or not.
fn capacity() -> impl Strategy<Value = CapacityRules> {
    let fallback =
        option::of((limits::CAPACITY_FALLBACK_MS_MIN..=limits::CAPACITY_FALLBACK_MS_MAX, any::<bool>()));
    (fallback, option::of(1..=limits::INTERRUPTIONS_MILLI_MAX)).prop_map(
        |(fallback, interruptions_milli_max)| CapacityRules {
            purchases: [PurchaseKind::Spot].into_iter().collect(),
            fallback: fallback.map(|(after_ms, is_open)| CapacityFallback {
                purchases: [PurchaseKind::OnDemand, PurchaseKind::Owned].into_iter().collect(),
                after_ms,
                is_open,
            }),
            interruptions_milli_max,
        },
    )
}

/// Away from jobs with labels, and to where one job is.
fn affinity((labels, job): (Option<(String, Option<u8>)>, Option<u64>)) -> Vec<Affinity> {
    let labels = labels.map(|(selector, weight)| Affinity {
        target: AffinityTarget::Labels(selector),
        level: AffinityLevel::Host,
        rule: AffinityRule::Apart,
        weight,
    });
    let job = job.map(|job| Affinity {
        target: AffinityTarget::Job(JobId(job)),
        level: AffinityLevel::Cluster,
        rule: AffinityRule::Together,
        weight: None,
    });
    labels.into_iter().chain(job).collect()
}

/// Everything a job may say in addition to what it runs.
fn wishes() -> impl Strategy<Value = JobDraft> {
    let level = || prop::sample::select(Level::ALL.to_vec());
    let spread = (level(), 1..100u32).prop_map(|(level, workers_max)| Spread { level, workers_max });
    let topology = prop_oneof![
        option::of(level()).prop_map(|required| TopologyRule { required, ..TopologyRule::default() }),
        any::<bool>().prop_map(|balanced| TopologyRule { balanced, ..TopologyRule::default() }),
        option::of(spread).prop_map(|spread| TopologyRule { spread, ..TopologyRule::default() }),
    ];
    let values = prop::collection::btree_set("[ -~é]{0,8}", 1..3);
    let names = || prop::collection::btree_set(name(), 0..3);
    let rule = prop::sample::select(vec![DependencyRule::Succeeded, DependencyRule::Finished]);
    let scope =
        prop::sample::select(vec![DependencyScope::Job, DependencyScope::Array, DependencyScope::Member]);
    let rule = (rule, scope);
    let dependencies = btree_map(any::<u64>(), rule, 0..3);
    let times = (option::of(0..1u64 << 40), option::of(1u64 << 41..1 << 42), option::of(1..1u64 << 30));
    let booking = option::of(name());
    let bought = (booking, option::of(capacity()));
    let labels = option::of(("[a-z]{1,6}=[a-z]{1,6}", option::of(1..=limits::AFFINITY_WEIGHT_MAX)));
    let others = (labels, option::of(any::<u64>()));
    let places = (btree_map(name(), values, 0..3), names(), names(), node_requirements(), bought, others);
    (topology, places, any::<bool>(), dependencies, times).prop_map(
        |(topology, places, preemptible, dependencies, times)| JobDraft {
            licences: places.1.iter().map(|name| (name.clone(), limits::LICENCE_COUNT_MAX)).collect(),
            topology,
            node_selector: places.0,
            tolerations: places.1,
            preemptible,
            dependencies: dependencies
                .into_iter()
                .map(|(job, (rule, scope))| Dependency { job: JobId(job), rule, scope })
                .collect(),
            not_before: times.0.map(LogTime),
            deadline: times.1.map(LogTime),
            expected_run_ms: times.2,
            datasets: places.2.into_iter().collect(),
            nodes: places.3,
            booking: places.4.0,
            capacity: places.4.1.map(Box::new),
            affinity: affinity(places.5),
            nice: if preemptible { 0 } else { -100 },
            front: times.0.map(LogIndex),
            readiness_ms: times.2.map(|ms| ms.clamp(limits::READINESS_MS_MIN, limits::READINESS_MS_MAX)),
            ..JobDraft::new(Name::literal("any"), Name::literal("any"), vec![])
        },
    )
}

fn group(n: usize) -> impl Strategy<Value = TaskGroup> {
    (
        1..1_000u32,
        vec("[a-zé]{1,8}", 1..4),
        btree_map("[A-L_][A-Z0-9_]{0,6}", "[ -~é]{0,8}", 0..3),
        option::of(wanted()),
        1..=limits::CPU_MILLI_MAX,
        1..=limits::MEMORY_BYTES_MAX,
        option::of(container()),
    )
        .prop_map(
            move |(workers, command, environment, accelerators, cpu_milli, memory_bytes, container)| {
                let request = WorkerRequest {
                    accelerators,
                    cpu_milli,
                    memory_bytes,
                    exclusive: false,
                    scratch_bytes: memory_bytes / 4,
                };
                let container = container.map(|(container, has_shared)| Container {
                    shared_memory_bytes: if has_shared && memory_bytes >= limits::SHARED_MEMORY_BYTES_MIN {
                        memory_bytes
                    } else {
                        0
                    },
                    ..container
                });
                let name = Name::new(&format!("g{n}")).expect("a name");
                TaskGroup { environment, container, ..TaskGroup::new(name, workers, command, request) }
            },
        )
}

/// With whether it has shared memory, for which the group says how much there can be.
fn container() -> impl Strategy<Value = (Container, bool)> {
    let pull = prop_oneof![Just(PullRule::Missing), Just(PullRule::Always), Just(PullRule::Never)];
    let told = ("[a-z]{1,5}/[a-z]{1,5}", pull, any::<bool>(), any::<bool>());
    told.prop_map(|(name, pull, read_only, has_shared)| {
        let container = Container {
            image: format!("localhost/{name}:1"),
            pull,
            mounts: vec![Mount { source: "/data".to_owned(), target: "/mnt".to_owned(), read_only }],
            shared_memory_bytes: 0,
            credentials: Name::new(&name.replace('/', "-")).filter(|_| read_only),
        };
        (container, has_shared)
    })
}

pub fn spec() -> impl Strategy<Value = JobSpec> {
    let groups =
        prop_oneof![group(0).prop_map(|g| vec![g]), (group(0), group(1)).prop_map(|(a, b)| vec![a, b]),];
    let regions = vec(name(), 0..3).prop_map(|mut names| {
        names.sort();
        names.dedup();
        names
    });
    let path = || option::of("/[a-z/]{0,12}");
    let array = option::of((1..=1_000u32).prop_flat_map(|size| {
        (0..size, 0..1_000_000u32).prop_map(move |(ordinal, index)| ArrayMember { index, ordinal, size })
    }));
    let tier = prop::sample::select(PriorityTier::ALL.to_vec());
    let numbers =
        (option::of(1..=limits::RUN_TIME_LIMIT_MS_MAX), 0..=limits::STOP_GRACE_MS_MAX, 0..=1_000u32);
    let paths = (path(), path());
    (name(), name(), tier, groups, regions, numbers, paths, array, wishes()).prop_map(
        |(name, tenant, tier, groups, regions, numbers, paths, array, wishes)| {
            let (checkpoint_directory, working_directory) = paths;
            let draft = JobDraft {
                name,
                tenant,
                tier,
                groups,
                regions,
                run_time_limit_ms: numbers.0,
                stop_grace_ms: numbers.1,
                failure_retries_max: numbers.2,
                checkpoint_directory,
                working_directory,
                array,
                ..wishes
            };
            draft.check().expect("the generator keeps the rules")
        },
    )
}

pub fn node() -> impl Strategy<Value = NodeSpec> {
    let places = (name(), name(), name(), name(), name());
    let labels = btree_map(name(), "[ -~é]{0,8}", 0..3);
    let sizes = (accelerators(), 1..=limits::CPU_MILLI_MAX, 1..=limits::MEMORY_BYTES_MAX);
    (places, "[a-z0-9.:-]{1,20}", sizes, labels).prop_map(|(places, address, sizes, labels)| {
        let draft = NodeDraft {
            name: places.0,
            region: places.1,
            cluster: places.2,
            block: places.3,
            rack: places.4,
            address,
            accelerators: sizes.0,
            cpu_milli: sizes.1,
            memory_bytes: sizes.2,
            labels: labels.into_iter().collect::<BTreeMap<_, _>>(),
            taints: BTreeSet::new(),
            pod: None,
            scratch_bytes: sizes.2 / 2,
        };
        draft.check().expect("the generator keeps the rules")
    })
}

fn exit() -> impl Strategy<Value = ExitStatus> {
    prop_oneof![
        any::<i32>().prop_map(ExitStatus::Code),
        any::<i32>().prop_map(ExitStatus::Signal),
        Just(ExitStatus::LeaseExpired),
        "[ -~é]{0,20}".prop_map(ExitStatus::LaunchFailed),
        Just(ExitStatus::Vanished),
        Just(ExitStatus::NotStarted),
        Just(ExitStatus::OutOfMemory),
        Just(ExitStatus::OutOfScratch),
        "[ -~é]{0,20}".prop_map(ExitStatus::NodeFault),
        "[ -~é]{0,20}".prop_map(ExitStatus::BackendLost),
        "[ -~é]{0,20}".prop_map(ExitStatus::PreflightFailed),
    ]
}

fn class() -> impl Strategy<Value = FailureClass> {
    prop::sample::select(FailureClass::ALL)
}

fn metadata() -> impl Strategy<Value = Arc<JobMetadata>> {
    let texts = || btree_map("[a-z/.]{0,9}", "[ -~é]{0,12}", 0..4);
    (texts(), texts(), "[a-z/]{0,20}")
        .prop_map(|(labels, annotations, creator)| Arc::new(JobMetadata { labels, annotations, creator }))
}

fn artifacts() -> impl Strategy<Value = Artifacts> {
    let fault = option::of((prop::sample::select(ArtifactFault::ALL.to_vec()), any::<u32>()));
    let counts = (any::<u32>(), any::<u64>(), any::<u32>());
    (option::of(any::<[u8; 32]>()), counts, fault).prop_map(|(digest, (files, bytes, left_out), fault)| {
        Artifacts { digest: digest.map(BlobDigest::new), files, bytes, left_out, fault }
    })
}

fn contract() -> impl Strategy<Value = Arc<JobContract>> {
    let retry = (btree_map(class(), any::<u32>(), 0..4), any::<[Option<u64>; 3]>());
    let checkpoint = (option::of(name()), any::<[Option<u64>; 3]>());
    let notice = (option::of(any::<u16>()), "[ -~]{0,20}");
    let workdir = option::of(any::<[u8; 32]>());
    let artifacts = option::of((vec("[a-z*/]{1,9}", 1..4), any::<bool>()));
    let (launch, preflight) = (prop::sample::select(LaunchForm::ALL), prop::sample::select(Preflight::ALL));
    let ulimits = any::<[Option<u64>; 4]>();
    let trace = option::of(any::<([u8; 16], [u8; 8], u8)>());
    let host = (
        prop::sample::select(CpuBinding::ALL.to_vec()),
        prop::sample::select(CommandShell::ALL.to_vec()),
        any::<u64>(),
    );
    let host = host.prop_map(|(binding, shell, shared_memory_bytes)| HostRules {
        binding,
        shell,
        shared_memory_bytes,
    });
    let told = prop::sample::select(NotificationEvent::ALL.to_vec());
    let notify = vec((name(), prop::collection::btree_set(told, 1..4)), 0..3);
    let forms = (launch, preflight, any::<u32>(), workdir, artifacts, ulimits, trace, host, notify);
    (retry, checkpoint, notice, forms).prop_map(|(retry, checkpoint, notice, forms)| {
        Arc::new(JobContract {
            launch: forms.0,
            retry: RetryRules {
                limits: retry.0,
                backoff_ms: retry.1[0],
                backoff_max_ms: retry.1[1],
                avoid_ms: retry.1[2],
            },
            checkpoint: CheckpointRules {
                place: checkpoint.0,
                step_ms: checkpoint.1[0],
                save_ms: checkpoint.1[1],
                interval_ms: checkpoint.1[2],
            },
            notice: NoticeRules { http_port: notice.0, http_path: notice.1 },
            spares: forms.2,
            preflight: forms.1,
            workdir: forms.3.map(BlobDigest::new),
            artifacts: forms.4.map(|(paths, required)| ArtifactRules { paths, required }),
            ulimits: Ulimits {
                open_files: forms.5[0],
                core_bytes: forms.5[1],
                locked_bytes: forms.5[2],
                stack_bytes: forms.5[3],
            },
            host: forms.7,
            trace_parent: forms.6.and_then(|(trace, span, flags)| TraceParent::new(trace, span, flags)),
            terminal: forms.2 % 2 == 1,
            notify: forms
                .8
                .into_iter()
                .map(|(receiver, events)| JobNotification { receiver, events })
                .collect(),
        })
    })
}

fn failed() -> impl Strategy<Value = Decision> {
    let place = (option::of(any::<u32>()), option::of(any::<u32>()), "[ -~é]{0,20}");
    let times = (any::<u32>(), any::<[Option<u64>; 2]>());
    (any::<u64>(), token(), class(), place, times).prop_map(|(job, token, class, place, times)| {
        Decision::AttemptFailed {
            job: JobId(job),
            token,
            class,
            rank: place.0,
            node: place.1.map(NodeId),
            detail: place.2,
            streak: times.0,
            wait_until: times.1[0].map(LogTime),
            avoid: times.1[1].map(LogTime),
        }
    })
}

fn request() -> impl Strategy<Value = RequestKey> {
    (any::<u128>(), any::<u64>()).prop_map(|(id, fingerprint)| RequestKey { id: RequestId(id), fingerprint })
}

fn token() -> impl Strategy<Value = FencingToken> {
    (any::<u32>(), any::<u64>())
        .prop_map(|(generation, index)| FencingToken { generation, log_index: LogIndex(index) })
}

fn slot() -> impl Strategy<Value = WorkerSlot> {
    (any::<u32>(), any::<u32>(), any::<u64>()).prop_map(|(node, incarnation, devices)| WorkerSlot {
        node: NodeId(node),
        incarnation,
        devices: DeviceSet(devices),
    })
}

fn parameters() -> impl Strategy<Value = Parameters> {
    any::<[u64; 9]>().prop_map(|n| Parameters {
        lease_ttl_ms: n[0],
        lease_margin_ms: n[1],
        heartbeat_interval_ms: n[2],
        request_retention_ms: n[3],
        job_retention_ms: n[4],
        digest_interval_records: n[5],
        node_retention_ms: n[6],
        jobs_held_max: n[7],
        requests_held_max: n[8],
    })
}

fn estimate() -> impl Strategy<Value = Estimate> {
    (any::<[u64; 2]>(), queue_key(), option::of(any::<u64>())).prop_map(|(n, turn, group)| Estimate {
        run_ms: n[0],
        run_high_ms: n[1],
        turn,
        burst: group.map(JobId),
    })
}

fn queue_key() -> impl Strategy<Value = QueueKey> {
    prop_oneof![
        any::<u64>().prop_map(|since| QueueKey::urgent(LogTime(since))),
        any::<u64>().prop_map(QueueKey::ordinary),
    ]
}

fn rearrange_cause() -> impl Strategy<Value = RearrangeCause> {
    prop_oneof![
        any::<u64>().prop_map(|by| RearrangeCause::Preempted { by: JobId(by) }),
        any::<u64>().prop_map(|by| RearrangeCause::Moved { by: JobId(by) }),
        Just(RearrangeCause::Resized),
        any::<u32>().prop_map(|node| RearrangeCause::Drained { node: NodeId(node) }),
    ]
}

fn change() -> impl Strategy<Value = FieldChange> {
    let texts = || btree_map("[a-z]{1,4}", "[a-z]{0,4}", 0..3);
    let time = || option::of(any::<u64>()).prop_map(|time| time.map(LogTime));
    let values = vec("[a-z]{1,4}", 1..3).prop_map(|values| values.into_iter().collect::<BTreeSet<String>>());
    prop_oneof![
        prop::sample::select(PriorityTier::ALL.to_vec()).prop_map(FieldChange::Tier),
        option::of(any::<u64>()).prop_map(FieldChange::RunTimeLimit),
        option::of(any::<u64>()).prop_map(FieldChange::ExpectedRun),
        time().prop_map(FieldChange::Deadline),
        time().prop_map(FieldChange::NotBefore),
        vec(name(), 0..3).prop_map(FieldChange::Regions),
        btree_map(name(), values, 0..3).prop_map(FieldChange::NodeSelector),
        texts().prop_map(FieldChange::Labels),
        texts().prop_map(FieldChange::Annotations),
        node_requirements().prop_map(FieldChange::Nodes),
        any::<i8>().prop_map(FieldChange::Nice),
        option::of(any::<u64>()).prop_map(|at| FieldChange::Front(at.map(LogIndex))),
        vec((option::of(name()), any::<u32>(), option::of(any::<u32>())), 0..3).prop_map(|sizes| {
            let size = |(group, workers, workers_min)| GroupSize { group, workers, workers_min };
            FieldChange::Groups(sizes.into_iter().map(size).collect())
        }),
        option::of(any::<u32>()).prop_map(FieldChange::Size),
        name().prop_map(FieldChange::Tenant),
    ]
}

/// What people ask of jobs.
fn controls() -> impl Strategy<Value = Decision> {
    let asked = requester();
    let jobs = vec(any::<u64>().prop_map(JobId), 0..4);
    (request(), asked, jobs, any::<bool>(), (0..4u8, vec(change(), 1..4), estimate())).prop_map(
        |(request, by, jobs, yes, (kind, changes, estimate))| match kind {
            0 => Decision::JobCancelRequested { request, by, jobs },
            1 => Decision::JobHoldSet { request, by, jobs, held: yes },
            2 => Decision::JobRequeueRequested { request, by, jobs, suspended: yes },
            _ => {
                let job = jobs.first().copied().unwrap_or_default();
                Decision::JobModified { request, by, job, changes, estimate }
            }
        },
    )
}

fn array() -> impl Strategy<Value = ArraySpec> {
    let range = (any::<u32>(), any::<u32>(), any::<u32>());
    let range = range.prop_map(|(first, last, step)| IndexRange { first, last, step });
    (vec(range, 0..4), option::of(any::<u32>())).prop_map(|(ranges, throttle)| ArraySpec { ranges, throttle })
}

fn part() -> impl Strategy<Value = SubmittedPart> {
    (spec(), option::of(contract()), option::of(metadata()), option::of(array()), estimate()).prop_map(
        |(spec, contract, metadata, array, estimate)| SubmittedPart {
            spec: spec.into(),
            contract,
            metadata,
            array,
            estimate,
        },
    )
}

/// Who asks for something.
fn requester() -> impl Strategy<Value = Requester> {
    ("[a-z/]{0,9}", any::<bool>(), option::of(any::<std::net::IpAddr>()), option::of(name()))
        .prop_map(|(name, is_operator, address, role)| Requester { name, is_operator, address, role })
}

/// What concerns arrays; each strategy here is one variant.
fn arrays() -> impl Strategy<Value = Decision> {
    let id = || any::<u64>().prop_map(ArrayId);
    let asked = requester;
    let jobs = vec(any::<u64>().prop_map(JobId), 0..4);
    let control = prop::sample::select(Control::ALL.to_vec());
    prop_oneof![
        (request(), asked(), vec(part(), 0..3)).prop_map(|(request, by, parts)| Decision::ArraysSubmitted {
            request,
            by,
            parts
        }),
        (id(), option::of(any::<u32>()), any::<u32>())
            .prop_map(|(array, first, count)| Decision::ArrayMembersCreated { array, first, count }),
        id().prop_map(|array| Decision::ArrayReleased { array }),
        (id(), ".{0,40}").prop_map(|(array, detail)| Decision::ArrayMembersFailed { array, detail }),
        (request(), asked(), control, vec(id(), 0..4), jobs).prop_map(
            |(request, by, control, arrays, jobs)| {
                Decision::ArraysControlled { request, by, control, arrays, jobs }
            }
        ),
        (request(), asked(), id(), option::of(any::<u32>())).prop_map(|(request, by, array, throttle)| {
            Decision::ArrayThrottleSet { request, by, array, throttle }
        }),
        vec((name(), progress()), 0..3).prop_map(|progress| Decision::NotificationsDelivered { progress }),
    ]
}

fn progress() -> impl Strategy<Value = NotificationProgress> {
    (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
        |(delivered, acknowledged, given_up, skipped)| NotificationProgress {
            delivered: LogIndex(delivered),
            acknowledged,
            given_up,
            skipped,
        },
    )
}

fn receivers() -> impl Strategy<Value = Vec<Receiver>> {
    let event = prop::sample::select(NotificationEvent::ALL.to_vec());
    let events = prop::collection::btree_set(event, 1..5);
    let body = prop_oneof![Just(NotificationBody::Generic), Just(NotificationBody::Slack)];
    let url = prop_oneof![Just(String::new()), Just("https://hooks.example:8443/a?b=c".to_owned())];
    btree_map(name(), (url, events, body, any::<bool>()), 0..3).prop_map(|receivers| {
        let receiver = |(name, (url, events, body, for_jobs))| Receiver {
            name,
            url,
            tenant: None,
            events,
            body,
            for_jobs,
        };
        receivers.into_iter().map(receiver).collect()
    })
}

/// Inputs; each strategy here is one variant.
fn inputs() -> impl Strategy<Value = Decision> {
    let job = || any::<u64>().prop_map(JobId);
    let node_id = || any::<u32>().prop_map(NodeId);
    let update =
        prop_oneof![Just(RankUpdate::Running), Just(RankUpdate::Ready), exit().prop_map(RankUpdate::Exited)];
    prop_oneof![
        (request(), requester(), vec((spec(), estimate()), 0..3)).prop_map(|(request, by, jobs)| {
            let (specs, estimates) = jobs.into_iter().map(|(spec, estimate)| (spec.into(), estimate)).unzip();
            Decision::JobsSubmitted { request, by, specs, estimates }
        }),
        (job(), token(), option::of(any::<u64>()))
            .prop_map(|(job, token, step)| Decision::CheckpointCommitted { job, token, step }),
        (request(), requester(), policy()).prop_map(|(request, by, policy)| Decision::PolicySet {
            request,
            by,
            policy: Box::new(policy)
        }),
        (
            request(),
            requester(),
            prop::sample::select(AdmissionMode::ALL.to_vec()),
            option::of("[a-z*.]{1,9}")
        )
            .prop_map(|(request, by, mode, pattern)| {
                let rule = |pattern| AdmissionRule { pattern, bounds: NodeBounds::default() };
                let admission = NodeAdmission { mode, rules: pattern.map(rule).into_iter().collect() };
                Decision::NodeAdmissionSet { request, by, admission: Box::new(admission) }
            }),
        (request(), requester(), node(), 0..3_u8).prop_map(|(request, by, spec, kind)| {
            let approval = [None, Some(Approval::Rejected), Some(Approval::Approved(NodeBounds::of(&spec)))];
            let approval = approval[usize::from(kind)].clone();
            Decision::NodeApprovalSet {
                request: (kind > 0).then_some(request),
                by,
                name: spec.name.clone(),
                approval,
            }
        }),
        (request(), requester(), vec(1..=u8::MAX, 1..=20), any::<u64>()).prop_map(
            |(request, by, serial, until)| {
                let serial = CertificateSerial::from_bytes(&serial).expect("it is one");
                let revocation = Revocation { holder: "client/ada".to_owned(), until: LogTime(until) };
                Decision::CertificateRevoked { request, by, serial, revocation }
            }
        ),
        (node_id(), any::<u32>())
            .prop_map(|(node, incarnation)| Decision::SessionResumed { node, incarnation }),
        (node_id(), any::<u32>(), any::<u64>()).prop_map(|(node, incarnation, start)| {
            Decision::AgentStarted { node, incarnation, start: StartId(start) }
        }),
        controls(),
        arrays(),
        tokens(),
        quotas(),
        bookings(),
        schedules(),
        (node(), any::<u128>()).prop_map(|(spec, h)| Decision::NodeRegistered { spec, holder: HolderId(h) }),
        (request(), requester(), node_id(), any::<bool>(), option::of("[ -~é]{0,20}")).prop_map(
            |(request, by, node, cordoned, reason)| Decision::NodeCordonSet {
                request,
                by,
                node,
                cordoned,
                reason
            }
        ),
        (
            node_id(),
            any::<u32>(),
            prop::sample::select(vec![NodeLostCause::LeaseExpired, NodeLostCause::Replaced])
        )
            .prop_map(|(node, incarnation, cause)| Decision::NodeLost { node, incarnation, cause }),
        (node_id(), any::<u32>(), job(), token(), vec((any::<u32>(), update), 0..4)).prop_map(
            |(node, incarnation, job, token, updates)| Decision::WorkersReported {
                node,
                incarnation,
                job,
                token,
                updates
            }
        ),
    ]
}

fn decisions() -> impl Strategy<Value = Decision> {
    let job = || any::<u64>().prop_map(JobId);
    let cause = prop_oneof![
        Just(StopCause::Cancelled),
        (any::<u32>(), exit()).prop_map(|(rank, exit)| StopCause::WorkerFailed { rank, exit }),
        any::<u32>().prop_map(|node| StopCause::Evicted { node: NodeId(node) }),
        Just(StopCause::RunTimeLimit),
        Just(StopCause::Deadline),
        any::<bool>().prop_map(|suspended| StopCause::Requested { suspended }),
        rearrange_cause().prop_map(StopCause::Rearranged),
        (class(), any::<u32>(), "[ -~é]{0,20}")
            .prop_map(|(class, node, detail)| { StopCause::Fault { class, node: NodeId(node), detail } }),
    ];
    let stop = (job(), token(), rearrange_cause()).prop_map(|(job, token, cause)| Stop { job, token, cause });
    let promise = (job(), vec(slot(), 0..4)).prop_map(|(job, workers)| CapacityHold { job, workers });
    let outcome = prop_oneof![
        Just(Outcome::Succeeded),
        "[ -~é]{0,20}".prop_map(|detail| Outcome::Failed { detail }),
        Just(Outcome::Cancelled),
    ];
    prop_oneof![
        (any::<u128>(), any::<u32>(), parameters()).prop_map(|(cluster, generation, parameters)| {
            Decision::ClusterCreated { cluster: ClusterId(cluster), generation, parameters }
        }),
        Just(Decision::LeaderStarted),
        (job(), vec(slot(), 0..5)).prop_map(|(job, workers)| Decision::GangPlaced { job, workers }),
        (job(), token(), cause).prop_map(|(job, token, cause)| Decision::GangStopRequested {
            job,
            token,
            cause
        }),
        (job(), any::<bool>()).prop_map(|(job, failed)| Decision::JobRequeued { job, failed }),
        (job(), outcome).prop_map(|(job, outcome)| Decision::JobFinished { job, outcome }),
        (any::<u64>(), any::<u64>()).prop_map(|(requests, jobs)| Decision::HistoryPruned {
            requests_before: LogTime(requests),
            jobs_before: LogTime(jobs)
        }),
        any::<u64>().prop_map(|digest| Decision::DigestRecorded { digest }),
        (vec(stop, 0..3), vec(promise, 0..3))
            .prop_map(|(stops, promises)| Decision::Rearranged { stops, promises }),
        job().prop_map(|job| Decision::PromiseDropped { job }),
        job().prop_map(|job| Decision::JobReleased { job }),
        vec((job(), queue_key()), 0..4).prop_map(|groups| Decision::TurnsChanged { bursts: groups }),
        (requester(), any::<u16>()).prop_map(|(by, format)| Decision::FormatRaised { by, format }),
        any::<u32>().prop_map(|generation| Decision::ClusterRecovered { generation }),
        (option::of(request()), requester(), any::<u32>())
            .prop_map(|(request, by, node)| Decision::NodeForgotten { request, by, node: NodeId(node) }),
        vec((job(), contract()), 0..3).prop_map(|contracts| Decision::JobContractsSet { contracts }),
        vec((job(), any::<u32>(), metadata()), 0..3).prop_map(|runs| Decision::JobMetadataSet { runs }),
        failed(),
        (job(), token(), vec((any::<u32>(), slot()), 0..3))
            .prop_map(|(job, token, ranks)| Decision::SparesTaken { job, token, ranks }),
        (job(), token(), any::<u32>(), option::of(any::<u32>())).prop_map(
            |(job, token, rank, slow_milli)| { Decision::StragglerNoted { job, token, rank, slow_milli } }
        ),
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    let finding = prop_oneof![
        any::<u16>().prop_map(Finding::Xid),
        prop::sample::select(RecoveryAction::ALL.to_vec()).prop_map(Finding::Recovery),
        prop::sample::select(Finding::KINDS.to_vec()),
    ];
    let seen = (finding, option::of(any::<u16>()), any::<u64>(), any::<u32>(), "[ -~é]{0,20}");
    let action = prop::sample::select(HealthAction::ALL.to_vec());
    let recovery = option::of(prop::sample::select(RecoveryAction::ALL.to_vec()));
    (seen, recovery, action, any::<[u64; 2]>()).prop_map(|(seen, recovery, action, n)| Condition {
        observation: Observation {
            finding: seen.0,
            device: seen.1,
            group: DeviceSet(seen.2),
            recovery,
            count: seen.3,
            detail: seen.4,
        },
        action,
        since: LogTime(n[0]),
        boot: n[1],
    })
}

/// What restricts nodes.
fn restrictions() -> impl Strategy<Value = Decision> {
    let node = || any::<u32>().prop_map(NodeId);
    let text = || "[ -~é]{0,20}";
    let cause = prop::sample::select(vec![DrainCause::Operator, DrainCause::Maintenance, DrainCause::Repair]);
    let drain = (any::<u64>(), option::of(any::<u64>()), cause).prop_map(|(since, deadline, cause)| Drain {
        since: LogTime(since),
        deadline: deadline.map(LogTime),
        cause,
    });
    let health = (vec(condition(), 0..3), vec(condition(), 0..2), any::<[u64; 2]>(), any::<bool>()).prop_map(
        |(conditions, recent, n, out_of_service)| NodeHealth {
            reboots: conditions
                .iter()
                .map(|c| RebootCount { finding: c.observation.finding, device: None, boot: n[1], reboots: 1 })
                .collect(),
            conditions,
            recent,
            maintenance_at: out_of_service.then_some(LogTime(n[0])),
            unusable: DeviceSet(n[1]),
            out_of_service,
        },
    );
    let action = prop::sample::select(HealthAction::ALL.to_vec());
    let step = prop_oneof![
        (action, any::<u64>()).prop_map(|(action, d)| RepairStep::Begin { action, devices: DeviceSet(d) }),
        Just(RepairStep::Work),
        text().prop_map(RepairStep::Fail),
        Just(RepairStep::End),
    ];
    prop_oneof![
        (node(), any::<u64>(), health, vec(condition(), 0..3)).prop_map(|(node, policy, health, events)| {
            let policy = LogIndex(policy);
            Decision::NodeHealthChanged { node, policy, health: Box::new(health), events }
        }),
        (node(), any::<u32>(), any::<bool>(), any::<[u64; 3]>()).prop_map(
            |(node, incarnation, closed, n)| {
                let load =
                    ForeignLoad { closed, devices: DeviceSet(n[0]), cpu_milli: n[1], memory_bytes: n[2] };
                Decision::ForeignLoadSet { node, incarnation, load }
            }
        ),
        (option::of(request()), requester(), node(), option::of(drain), option::of(text())).prop_map(
            |(request, by, node, drain, reason)| Decision::NodeDrainSet { request, by, node, drain, reason }
        ),
        (option::of(request()), requester(), node(), option::of(text())).prop_map(
            |(request, by, node, reason)| Decision::NodeQuarantineSet { request, by, node, reason }
        ),
        (option::of(request()), requester(), node(), step)
            .prop_map(|(request, by, node, step)| Decision::NodeRepairSet { request, by, node, step }),
        (request(), requester()).prop_map(|(request, by)| Decision::HealthPolicySet {
            request,
            by,
            policy: Box::default()
        }),
        overrides(),
    ]
}

fn overrides() -> impl Strategy<Value = Decision> {
    let by = requester();
    let set = (btree_map(name(), "[ -~é]{0,20}", 0..4), vec(name(), 0..4));
    let set = set.prop_map(|(labels, taints)| NodeOverrides { labels, taints: taints.into_iter().collect() });
    (request(), by, any::<u32>(), set).prop_map(|(request, by, node, overrides)| Decision::NodeOverridesSet {
        request,
        by,
        node: NodeId(node),
        overrides: Box::new(overrides),
    })
}

pub fn decision() -> impl Strategy<Value = Decision> {
    prop_oneof![inputs(), decisions(), restrictions()]
}

pub fn round() -> impl Strategy<Value = Round> {
    (any::<[u64; 5]>(), vec(decision(), 0..6)).prop_map(|(n, decisions)| Round {
        // Any format that can say all of it.
        format: decisions.iter().map(Decision::since_format).max().unwrap_or(FORMAT_MAX),
        term: n[0],
        replica: ReplicaId(n[1]),
        first_index: LogIndex(n[2]),
        basis_index: LogIndex(n[3]),
        log_time: LogTime(n[4]),
        decisions,
    })
}

/// At most one for a type, so that none of them overlap.
fn prices() -> impl Strategy<Value = Vec<Price>> {
    let owned = (0..1_000_000_u64, 1..600_u32).prop_map(|(micro_dollars_per_device, depreciation_months)| {
        OwnedCost {
            micro_dollars_per_device,
            depreciation_months,
            watts: 700,
            pue_milli: 1_300,
            micro_dollars_per_kwh: 110_000,
        }
    });
    let purchase = option::of(prop::sample::select(PurchaseKind::ALL.to_vec()));
    let stated = prop_oneof![
        (purchase, 0..9_u64).prop_map(|(purchase, hourly)| (purchase, hourly, None::<OwnedCost>)),
        owned.prop_map(|owned| (Some(PurchaseKind::Owned), 0_u64, Some(owned))),
    ];
    let span = (option::of(0..9_u64), option::of(10..99_u64));
    btree_map(name(), (option::of(name()), stated, span), 0..3).prop_map(|prices| {
        let price = |(kind, (region, (purchase, hourly, owned), (from, until)))| Price {
            purchase,
            from: Option::map(from, LogTime),
            until: Option::map(until, LogTime),
            owned,
            ..Price::new(kind, region, hourly)
        };
        prices.into_iter().map(price).collect()
    })
}

fn policy() -> impl Strategy<Value = Policy> {
    let rights = (
        option::of(prop::sample::select(PriorityTier::ALL.to_vec())),
        option::of(prop::sample::select(NonPreemptible::ALL.to_vec())),
        option::of(any::<bool>()),
        option::of(any::<bool>()),
    );
    let rights = rights.prop_map(|(tier_max, non_preemptible, deadlines, bookings)| TenantRights {
        tier_max,
        non_preemptible,
        deadlines,
        bookings,
        purchases: if bookings == Some(true) { PurchaseSet::ALL } else { PurchaseSet::EMPTY },
        negative_nice: deadlines,
    });
    let limit = || option::of(1..1_000_u32);
    let job_limits = || {
        (limit(), limit(), limit(), limit()).prop_map(|(devices_max, max, default, bytes)| JobLimits {
            artifacts_bytes_max: bytes.map(u64::from),
            devices_max,
            workers_max: devices_max,
            run_time_max_ms: max.map(u64::from),
            run_time_default_ms: default.map(|ms| u64::from(ms.min(max.unwrap_or(ms)))),
        })
    };
    let counts = (limit(), limit(), limit(), limit(), (limit(), limit(), limit()));
    let limits = (counts, job_limits()).prop_map(
        |(
            (pending_jobs, unfinished_jobs, running_jobs, requests_per_minute, (waiting, all, placed)),
            job,
        )| {
            let budget = |hours: Option<u32>| {
                let window_ms = 86_400_000;
                hours.map(|hours| AcceleratorBudget { hours: hours.max(1), window_ms })
            };
            let spend =
                |dollars: Option<u32>| dollars.map(|dollars| SpendBudget { dollars, window_ms: 3_600_000 });
            let on_limit = placed.map(|jobs| if jobs % 2 == 0 { OnLimit::Hold } else { OnLimit::Refuse });
            let user = UserLimits {
                pending_jobs: waiting,
                unfinished_jobs: all,
                running_jobs: placed,
                accelerator_hours: budget(all),
                submissions_per_minute: placed,
                spend: spend(waiting),
                devices: all,
            };
            TenantLimits {
                pending_jobs,
                unfinished_jobs,
                running_jobs,
                requests_per_minute,
                user,
                job,
                accelerator_hours: budget(running_jobs),
                cpu_milli: pending_jobs.map(u64::from),
                memory_bytes: unfinished_jobs.map(u64::from),
                spend: spend(pending_jobs),
                on_limit,
            }
        },
    );
    let tier = prop::sample::select(PriorityTier::ALL.to_vec());
    let tenant =
        (rights, limits, btree_map(tier, job_limits(), 0..3)).prop_map(|(rights, limits, tier_limits)| {
            let user_limits = tier_limits.values().map(|limits| ("ada".to_owned(), *limits)).collect();
            let tier_submissions = tier_limits.keys().map(|tier| (*tier, 7)).collect();
            let queue = QueueChoices {
                order: limits.pending_jobs.map(|_| QueueOrder::Strict),
                block_for_ms: limits.unfinished_jobs.map(|jobs| 60_000 + u64::from(jobs)),
                preemption: limits.running_jobs.map(|_| QueuePreemption::FairShare),
                nodes: None,
                isolated: rights.deadlines.filter(|is_on| !is_on),
            };
            let weights_milli = [("ada".to_owned(), 2_000)].into();
            let users = UserShares { weights_milli, ..UserShares::default() };
            let users = queue.order.is_none().then_some(users);
            TenantPolicy {
                rights,
                limits,
                tier_limits,
                tier_submissions,
                user_limits,
                queue,
                users,
                ..TenantPolicy::default()
            }
        });
    let isolation = prop::collection::btree_set(prop::sample::select(Guarantee::ALL.to_vec()), 0..4);
    let rest = (any::<bool>(), 0..60_000_u64, receivers(), own_roles());
    (btree_map(name(), tenant, 0..4), isolation, prices(), rest).prop_map(
        |(tenants, required_isolation, prices, (end_overrunners, backoff_ms, notifications, roles))| {
            let mut draft = PolicyDraft {
                tenants,
                required_isolation,
                prices,
                notifications,
                roles,
                ..PolicyDraft::default()
            };
            let resource =
                |name: &Name| CountedResource { name: name.clone(), count: 7, region: Some(name.clone()) };
            draft.resources = draft.tenants.keys().map(resource).collect();
            draft.backfill.end_overrunners = end_overrunners;
            draft.preemption.backoff_ms = backoff_ms;
            draft.check().expect("it breaks no rule")
        },
    )
}
