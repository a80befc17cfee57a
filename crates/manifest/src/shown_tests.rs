//! What is shown of a job is a job file again, and the schema is of what is read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use muster_wire::convert::{submission_to_proto, submissions_from_proto};
use muster_wire::time::{Duration, duration, timestamp};
use proptest::collection::{btree_map, hash_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};
use v1::accelerator_request::Amount;

use super::*;

/// 2027-01-15T08:00:00Z.
const NOW_MS: u64 = 1_800_000_000_000;

/// What a replica shows of a job that was submitted so: defaults are filled in.
fn as_kept(message: v1::Job) -> Result<v1::Job, String> {
    let jobs = submissions_from_proto("job", Some(message)).map_err(|found| format!("{found:?}"))?;
    Ok(submission_to_proto(&jobs[0]))
}

/// Texts that YAML could take for something else, and any others.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "",
            " ",
            "1",
            "007",
            "1e3",
            "0x1F",
            "true",
            "no",
            "null",
            "~",
            "- a",
            "a: b",
            "# c",
            "'",
            "\"",
            "{}",
            "[a]",
            "*a",
            "&a",
            "!t",
            "%",
            "@",
            "`",
            "a\nb",
            "a\n",
            "\ta",
            "2027-01-15",
            ".inf",
            "<<",
            "---",
            "...",
            "é\u{301}",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,12}",
    ]
}

fn name() -> impl Strategy<Value = String> {
    "[a-z0-9]([a-z0-9._-]{0,8}[a-z0-9])?"
}

/// The value of a variable: a text, or a reference.
fn variable() -> impl Strategy<Value = v1::env_var::Source> {
    prop_oneof![text().prop_map(v1::env_var::Source::Value), name().prop_map(v1::env_var::Source::SecretRef)]
}

fn container() -> impl Strategy<Value = v1::ContainerRuntime> {
    let mount = ("/[a-cé]{1,8}", "/[a-c]{1,8}", any::<bool>());
    let image = "[a-z]{1,5}[.][a-z]{1,5}/[a-z]{1,5}:[0-9]";
    let credentials = prop_oneof![Just(String::new()), name()];
    (image, 0..4i32, vec(mount, 0..3), 0..1_000_000_000u64, credentials).prop_map(
        |(image, pull, mounts, shared_memory_bytes, credentials)| {
            let mount = |(source, target, read_only)| v1::ContainerMount { source, target, read_only };
            let mounts = mounts.into_iter().map(mount).collect();
            v1::ContainerRuntime {
                image,
                pull,
                mounts,
                shared_memory_bytes,
                credentials,
                ..Default::default()
            }
        },
    )
}

fn group(only: bool) -> impl Strategy<Value = v1::TaskGroup> {
    let accelerators = prop::option::of((
        btree_map(prop::sample::select(vec!["h100", "a100", "l4"]), prop_oneof![Just(0), 1..5_000u32], 0..3),
        prop_oneof![(1..9u32).prop_map(Amount::Count), (1..1_000u32).prop_map(Amount::ShareMilli)],
    ));
    let command = vec("[!-~é]{1,8}|\\PC{1,5}", 1..4);
    let numbers = (
        1..9u32,
        0..3u32,
        0..9_000u64,
        prop_oneof![Just(0), 1u64 << 20..1u64 << 40, (1..64u64).prop_map(|g| g << 30)],
    );
    let container = prop::option::of(container());
    (name(), command, container, hash_map("[A-Z_]{1,6}", variable(), 0..3), accelerators, numbers).prop_map(
        move |(
            name,
            command,
            container,
            environment,
            accelerators,
            (workers, least, cpu_milli, memory_bytes),
        )| {
            v1::TaskGroup {
                name: if only { String::new() } else { name },
                workers,
                min_workers: if only && least > 0 { least.min(workers) } else { 0 },
                runtime: match container {
                    None => muster_wire::process(command),
                    Some(container) => {
                        let container = v1::ContainerRuntime { command, ..container };
                        Some(v1::task_group::Runtime::Container(container))
                    }
                },
                environment: environment
                    .into_iter()
                    .map(|(name, source)| v1::EnvVar { name, source: Some(source) })
                    .collect(),
                resources: Some(v1::Resources {
                    accelerators: accelerators.map(|(choices, amount)| v1::AcceleratorRequest {
                        choices: choices
                            .into_iter()
                            .map(|(kind, throughput_milli)| v1::AcceleratorChoice {
                                r#type: kind.to_owned(),
                                throughput_milli,
                            })
                            .collect(),
                        amount: Some(amount),
                    }),
                    cpu_milli,
                    memory_bytes,
                }),
                slice: None,
            }
        },
    )
}

/// A group that forms slices: how many workers and chips these come to, the server fills in.
fn slices() -> impl Strategy<Value = v1::TaskGroup> {
    (1..3u32, prop::sample::select(vec!["4x4x4", "4x4x8"])).prop_map(|(count, shape)| {
        let choice = v1::AcceleratorChoice { r#type: "v5p".to_owned(), throughput_milli: 0 };
        v1::TaskGroup {
            runtime: muster_wire::process(vec!["train".to_owned()]),
            slice: Some(v1::SliceRequest { shape: shape.to_owned(), count }),
            resources: Some(v1::Resources {
                accelerators: Some(v1::AcceleratorRequest { choices: vec![choice], amount: None }),
                ..v1::Resources::default()
            }),
            ..v1::TaskGroup::default()
        }
    })
}

fn above_zero(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| duration(ms))
}

/// What a job asks of its host.
fn rules() -> impl Strategy<Value = v1::JobSpec> {
    let time = || prop::option::of(0..86_400_000u64);
    let retry = (
        prop::sample::select(vec![
            v1::FailureClass::Application,
            v1::FailureClass::Lost,
            v1::FailureClass::Evicted,
        ]),
        0..9u32,
        time(),
        time(),
        time(),
    );
    let checkpoint =
        (prop_oneof![Just(String::new()), name()], 0..100_000u64, 0..100_000u64, 0..9_000_000u64);
    let launch = 0..7i32;
    let preflight = 0..4i32;
    let notice = prop::option::of((1..65_536u32, prop_oneof![Just(String::new()), Just("/stop".to_owned())]));
    let files = prop::option::of(Just(v1::Workdir { digest: format!("sha256:{}", "a1".repeat(32)) }));
    let artifacts =
        prop::option::of((prop::collection::vec("[a-z*]{1,5}(/[a-z?]{1,3})?", 1..4), any::<bool>()));
    let ulimits = prop::option::of((
        prop::option::of(64..9_000u64),
        prop::option::of(0..1u64 << 40),
        prop::option::of(0..1u64 << 40),
        1u64 << 16..1 << 40,
    ));
    let capacity = prop::option::of((1..1_000_000_000u64, prop::option::of(1..1_000_000u32)));
    let shared_memory = prop_oneof![Just(0), Just(1u64 << 20)];
    let host = prop::option::of((1..4i32, 1..3i32, shared_memory));
    let notify = btree_map(name(), prop::collection::btree_set(1..8i32, 1..3), 0..3);
    let files = (files, artifacts, ulimits, capacity, host, notify);
    prop::option::of((launch, retry, checkpoint, notice, preflight, 0..3u32, files)).prop_map(|said| {
        said.map(
            |(
                launch,
                retry,
                checkpoint,
                notice,
                preflight,
                spare_workers,
                (workdir, artifacts, ulimits, capacity, host, notify),
            )| {
                v1::JobSpec {
                    workdir,
                    nice: preflight - 2,
                    scratch_bytes: u64::from(retry.1) << 30,
                    readiness: Some(v1::ReadinessRule {
                        timeout: Some(duration(60_000 + u64::from(retry.1))),
                    }),
                    host: host.map(|(binding, shell, shared_memory_bytes)| v1::HostRules {
                        binding,
                        shell,
                        shared_memory_bytes,
                    }),
                    notify: notify
                        .into_iter()
                        .map(|(receiver, events)| v1::JobNotification {
                            receiver,
                            events: events.into_iter().collect(),
                        })
                        .collect(),
                    capacity: capacity.map(|(after, most)| v1::CapacityRules {
                        purchases: vec![v1::Purchase::Spot.into(), v1::Purchase::Owned.into()],
                        fallback: Some(v1::CapacityFallback {
                            purchases: vec![v1::Purchase::OnDemand.into()],
                            after: Some(duration(after)),
                        }),
                        max_interruptions_per_day_milli: most,
                    }),
                    artifacts: artifacts.map(|(paths, required)| v1::ArtifactRules { paths, required }),
                    ulimits: ulimits.map(|(open_files, core_bytes, locked_bytes, stack)| v1::Ulimits {
                        open_files,
                        core_bytes,
                        locked_bytes,
                        stack_bytes: Some(stack),
                    }),
                    launch,
                    retry: Some(v1::RetryPolicy {
                        max_failures: 0,
                        limits: vec![v1::RetryLimit { failure_class: retry.0.into(), retries: retry.1 }],
                        backoff: retry.2.map(duration),
                        max_backoff: retry.3.map(duration),
                        avoid: retry.4.map(duration),
                    }),
                    checkpoint: Some(v1::CheckpointPolicy {
                        directory: String::new(),
                        dataset: checkpoint.0,
                        step: above_zero(checkpoint.1),
                        save: above_zero(checkpoint.2),
                        interval: above_zero(checkpoint.3),
                    }),
                    notice: notice.map(|(http_port, http_path)| v1::NoticeRules { http_port, http_path }),
                    spare_workers,
                    preflight,
                    terminal: spare_workers % 2 == 1,
                    ..v1::JobSpec::default()
                }
            },
        )
        .unwrap_or_default()
    })
}

/// Of which some break a rule: a name in both lists, or a number that is none.
fn nodes() -> impl Strategy<Value = Option<v1::NodeRequirements>> {
    let values = prop_oneof![vec(text(), 1..3), vec("-?[0-9]{1,5}", 1..2), Just(Vec::new())];
    let expression = (name(), 1..7i32, values).prop_map(|(key, operator, values)| v1::NodeExpression {
        key,
        operator,
        values,
    });
    let right = (name(), text(), -9_999..9_999i64, 1..7i32).prop_map(|(key, text, number, operator)| {
        let values = match operator {
            1 | 2 => vec![text],
            3 | 4 => Vec::new(),
            _ => vec![number.to_string()],
        };
        v1::NodeExpression { key, operator, values }
    });
    let expressions = vec(prop_oneof![1 => expression, 9 => right], 0..3);
    prop::option::of((expressions, vec("[a-m]{1,3}", 0..3), vec("[l-z]{1,3}", 0..3))).prop_map(|asked| {
        asked.map(|(expressions, only, exclude)| v1::NodeRequirements { expressions, only, exclude })
    })
}

/// Of which some break a rule: one without a level, a rule or a weight.
fn affinity() -> impl Strategy<Value = Vec<v1::JobAffinity>> {
    let entry = (0..4u32, 0..6i32, 0..3i32, 0..3u32).prop_map(|(kind, level, rule, weight)| {
        let mut entry =
            v1::JobAffinity { level, rule, weight, required: weight == 0, ..v1::JobAffinity::default() };
        match kind {
            0 => entry.job_id = muster_types::JobId(9).to_string(),
            1 => entry.array_id = muster_types::ArrayId(9).to_string(),
            2 => entry.job_name = "cache".to_owned(),
            _ => entry.label_selector = "app=cache,stage in (a,b)".to_owned(),
        }
        entry
    });
    vec(entry, 0..3)
}

/// In the order of names, in which a file is read.
fn licences() -> impl Strategy<Value = Vec<v1::LicenceRequest>> {
    btree_map("[a-z][a-z0-9]{1,6}", 1..9u32, 0..3)
        .prop_map(|asked| asked.into_iter().map(|(name, count)| v1::LicenceRequest { name, count }).collect())
}

fn topology() -> impl Strategy<Value = Option<v1::TopologyRule>> {
    let level = || 0..4i32;
    let spread = prop::option::of((level(), 1..9u32));
    // Of some levels, from the outside in.
    let nested = (1..8usize).prop_map(|levels| {
        let levels = (1..4i32).filter(|level| levels >> (level - 1) & 1 == 1);
        levels.map(|level| v1::Segment { level, workers: 1 }).collect::<Vec<_>>()
    });
    let segments = prop_oneof![3 => Just(Vec::new()), 1 => nested];
    prop::option::of((level(), level(), any::<bool>(), 0..3u32, spread, segments)).prop_map(|said| {
        said.map(|(required, preferred, balanced, segment_workers, spread, segments)| v1::TopologyRule {
            required,
            preferred,
            balanced,
            segment_workers: if segments.is_empty() { segment_workers } else { 0 },
            spread: spread
                .filter(|_| segments.is_empty())
                .map(|(level, max_workers)| v1::Spread { level, max_workers }),
            segments,
        })
    })
}

/// Jobs of which most are right; what a server would refuse is left out by the test.
fn job() -> impl Strategy<Value = v1::Job> {
    let groups = prop_oneof![
        6 => group(true).prop_map(|only| vec![only]),
        2 => (group(false), group(false)).prop_map(|(a, b)| vec![a, b]),
        1 => slices().prop_map(|only| vec![only]),
    ];
    let label = "[A-Za-z0-9]([A-Za-z0-9._-]{0,6}[A-Za-z0-9])?";
    let key =
        || prop_oneof![Just("team.example/x".to_owned()), "[A-Za-z0-9]([A-Za-z0-9._-]{0,6}[A-Za-z0-9])?"];
    let metadata = (name(), name(), hash_map(key(), label, 0..4), hash_map(key(), text(), 0..4));
    let times =
        (0..99_999_999u64, prop::option::of(0..600_000u64), 0..99_999_999u64, any::<bool>(), any::<bool>());
    let lists =
        (vec(name(), 0..3), vec(name(), 0..3), vec(name(), 0..3), hash_map(name(), vec(text(), 1..3), 0..3));
    let numbers = (0..5u32, prop_oneof![3 => Just(0u32), 1 => 1..4u32], prop::option::of(any::<bool>()));
    let paths =
        (prop_oneof![Just(String::new()), "/[a-z é]{1,8}"], prop_oneof![Just(String::new()), "/[a-z]{1,8}"]);
    let tier = 0..6i32;
    let rest = (topology(), rules(), 0..3i32, 0..5usize, nodes(), affinity(), licences());
    (groups, metadata, times, lists, numbers, paths, tier, rest).prop_map(
        |(
            groups,
            metadata,
            times,
            lists,
            numbers,
            paths,
            tier,
            (topology, mut rules, rule, after, nodes, affinity, licences),
        )| {
            rules.retry_mut().max_failures = numbers.0;
            rules.checkpoint_mut().directory = paths.0;
            // Only hosts without accelerators can be had whole.
            let without = groups.iter().all(|group| group.resources().accelerators.is_none());
            let asked = v1::JobSpec {
                tier,
                groups,
                regions: lists.0,
                run_time_limit: above_zero(times.0),
                stop_grace: times.1.map(duration),
                working_directory: paths.1,
                array: array_of(numbers.1),
                topology,
                node_selector: lists
                    .3
                    .into_iter()
                    .map(|(label, values)| (label, v1::LabelValues { values }))
                    .collect(),
                tolerations: lists.1,
                preemptible: numbers.2,
                dependencies: (0..after).map(|n| dependency(n, rule)).collect(),
                not_before: times.3.then(|| timestamp(NOW_MS + times.0)),
                deadline: times.4.then(|| timestamp(2 * NOW_MS + times.0)),
                expected_run: above_zero(times.2),
                datasets: lists.2,
                nodes,
                affinity,
                licences,
                exclusive: times.3 && without,
                booking: if times.4 { metadata.1.clone() } else { String::new() },
                ..rules
            };
            v1::Job {
                name: metadata.0,
                tenant: metadata.1,
                labels: metadata.2,
                annotations: metadata.3,
                spec: Some(asked),
                ..v1::Job::default()
            }
        },
    )
}

/// None, a count, indices, or one index with a throttle.
fn array_of(number: u32) -> Option<v1::JobArray> {
    let (size, indices, throttle) = match number {
        0 => return None,
        1 => (7, "", None),
        2 => (0, "0-95:5,200", Some(3)),
        _ => (0, "9", None),
    };
    Some(v1::JobArray { size, indices: indices.to_owned(), throttle })
}

fn dependency(number: usize, rule: i32) -> v1::Dependency {
    let id = format!("{:x}", number + 1);
    match number {
        0 => v1::Dependency { job_id: format!("job-{id}"), rule, ..v1::Dependency::default() },
        1 | 2 => v1::Dependency {
            array_id: format!("array-{id}"),
            by_member: number == 1,
            rule,
            ..v1::Dependency::default()
        },
        _ => v1::Dependency { job_name: "before".to_owned(), rule, ..v1::Dependency::default() },
    }
}

/// The file as it is shown, and the job that is read from it.
fn shown_and_read(kept: &v1::Job) -> (String, Vec<Manifest>) {
    let status = json!({ "id": "job-1", "phase": "running", "placement": { "workers": [{ "rank": 0 }] } });
    let text = serde_saphyr::to_string(&job_file(kept, status)).expect("it can be written");
    let read = parse(text.as_bytes(), NOW_MS).unwrap_or_else(|error| panic!("{:?}\n{text}", error.0));
    (text, read)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_024))]

    #[test]
    fn what_is_shown_can_be_submitted_again(message in job()) {
        let Ok(kept) = as_kept(message) else { return Ok(()) };
        let (text, mut read) = shown_and_read(&kept);
        prop_assert_eq!(read.len(), 1);
        let again = as_kept(read.remove(0).message).map_err(|found| TestCaseError::fail(format!("{found}\n{text}")))?;
        prop_assert_eq!(&again, &kept, "{}", text);
        // A member of an array and a job that is read a second time are shown as the same file.
        prop_assert_eq!(shown_and_read(&again).0, text);
    }
}

/// The property says something only when enough of the generated jobs are right.
#[test]
fn most_generated_jobs_are_jobs() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut right = 0;
    for _ in 0..200 {
        let message = job().new_tree(&mut runner).expect("a value").current();
        right += usize::from(as_kept(message).is_ok());
    }
    assert!(right > 40, "{right} of 200");
}

/// The fields of a message and whether they are set. A field that is added does not compile before it is named, and then
/// the test asks for jobs that have it.
macro_rules! set_fields {
    ($message:expr => $name:ident { $($field:ident),* $(,)? }) => {{
        let v1::$name { $($field),* } = $message;
        let unset = v1::$name::default();
        [$((concat!(stringify!($name), ".", stringify!($field)), *$field != unset.$field)),*]
    }};
}

fn note(found: &[(&'static str, bool)], set: &mut BTreeMap<&'static str, bool>) {
    for (field, is_set) in found {
        *set.entry(*field).or_default() |= *is_set;
    }
}

fn fields_of_group(group: &v1::TaskGroup, set: &mut BTreeMap<&'static str, bool>) {
    let fields = set_fields!(group => TaskGroup {
        name, workers, min_workers, runtime, environment, resources, slice
    });
    note(&fields, set);
    note(&set_fields!(group.resources() => Resources { accelerators, cpu_milli, memory_bytes }), set);
    if let Some(container) = group.container() {
        let fields = set_fields!(container => ContainerRuntime {
            image, command, user, pull, mounts, shared_memory_bytes, credentials
        });
        note(&fields, set);
    }
}

fn fields_of(spec: &v1::JobSpec, set: &mut BTreeMap<&'static str, bool>) {
    let fields = set_fields!(spec => JobSpec {
        groups, tier, retry, checkpoint, topology, dependencies, run_time_limit, deadline, array, regions, stop_grace,
        working_directory, node_selector, tolerations, preemptible, not_before, expected_run, datasets, launch, notice,
        spare_workers, preflight, nodes, workdir, booking, artifacts, ulimits, capacity, affinity, licences,
        trace_parent, nice, exclusive, readiness, host, terminal, notify, scratch_bytes
    });
    note(&fields, set);
    for group in &spec.groups {
        fields_of_group(group, set);
    }
    for on in &spec.dependencies {
        note(&set_fields!(on => Dependency { job_id, rule, array_id, by_member, job_name }), set);
    }
    for entry in &spec.affinity {
        let fields = set_fields!(entry => JobAffinity {
            job_id, array_id, job_name, label_selector, level, rule, required, weight
        });
        note(&fields, set);
    }
    if let Some(rule) = &spec.topology {
        let fields = set_fields!(rule => TopologyRule {
            required, preferred, balanced, segment_workers, spread, segments
        });
        note(&fields, set);
    }
    if let Some(rules) = &spec.host {
        note(&set_fields!(rules => HostRules { binding, shell, shared_memory_bytes }), set);
    }
    if let Some(rules) = &spec.retry {
        note(&set_fields!(rules => RetryPolicy { max_failures, limits, backoff, max_backoff, avoid }), set);
    }
    if let Some(rules) = &spec.checkpoint {
        note(&set_fields!(rules => CheckpointPolicy { directory, dataset, step, save, interval }), set);
    }
    if let Some(rules) = &spec.capacity {
        let fields =
            set_fields!(rules => CapacityRules { purchases, fallback, max_interruptions_per_day_milli });
        note(&fields, set);
    }
}

/// Fields that a job was submitted with and that a replica does not show. What a rule or a form can say that means the same as
/// nothing is left out.
fn lost_fields(sent: &v1::Job, kept: &v1::Job) -> Vec<&'static str> {
    const MAY_SAY_NOTHING: [&str; 7] = [
        "JobSpec.checkpoint",
        "JobSpec.host",
        "JobSpec.launch",
        "JobSpec.nodes",
        "JobSpec.preflight",
        "JobSpec.retry",
        "JobSpec.topology",
    ];
    let (mut asked, mut shown) = (BTreeMap::new(), BTreeMap::new());
    fields_of(sent.spec(), &mut asked);
    fields_of(kept.spec(), &mut shown);
    let is_lost = |field: &str| shown.get(field) != Some(&true) && !MAY_SAY_NOTHING.contains(&field);
    let messages = ["JobSpec.", "TaskGroup.", "Dependency.", "JobAffinity."];
    let asked = asked.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field);
    asked
        .filter(|field| messages.iter().any(|message| field.starts_with(message)) && is_lost(field))
        .collect()
}

/// The property says something of a field only where jobs that have it are right.
#[test]
fn every_field_of_a_job_is_among_those_that_are_shown_and_read() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    // The span of a submission is in no file, and no release takes a user.
    let never = ["ContainerRuntime.user", "JobSpec.trace_parent"];
    let (mut runner, jobs) = (TestRunner::deterministic(), job());
    let mut set = BTreeMap::new();
    let mut unset = Vec::new();
    for _ in 0..20_000 {
        let message = jobs.new_tree(&mut runner).expect("a value").current();
        let Ok(kept) = as_kept(message.clone()) else { continue };
        let lost = lost_fields(&message, &kept);
        assert!(lost.is_empty(), "{lost:?} of {message:?} are not in {kept:?}");
        fields_of(message.spec(), &mut set);
        unset = set.iter().filter(|(_, is_set)| !**is_set).map(|(field, _)| *field).collect();
        if unset == never {
            break;
        }
    }
    assert_eq!(unset, never);
}

fn job_files() -> Vec<(PathBuf, String)> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/examples");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(examples).expect("the examples") {
        let path = entry.expect("an entry").path();
        let is_yaml = path.extension().is_some_and(|end| end == "yaml");
        let text = if is_yaml { std::fs::read_to_string(&path).expect("a text") } else { continue };
        if text.contains("kind: Job") {
            found.push((path, text));
        }
    }
    assert!(found.len() > 8, "{found:?}");
    found
}

/// As far as the schemas here go: every keyword that they use.
fn broken(schema: &Value, value: &Value, at: &str) -> Option<String> {
    let wrong = |what: &str| Some(format!("{at}: {what}: {value}"));
    let Value::Object(schema) = schema else { return None };
    if let Some(constant) = schema.get("const") {
        return if constant == value { None } else { wrong("another value") };
    }
    if let Some(Value::Array(any)) = schema.get("anyOf") {
        let tried: Vec<String> = any.iter().filter_map(|schema| broken(schema, value, at)).collect();
        return if tried.len() < any.len() { None } else { Some(tried.join(" or ")) };
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() || number.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_kind = |known: &Value| known == kind || (known == "number" && kind == "integer");
    match schema.get("type") {
        Some(Value::Array(kinds)) if !kinds.iter().any(is_kind) => return wrong("of another type"),
        Some(known @ Value::String(_)) if !is_kind(known) => return wrong("of another type"),
        _ => {}
    }
    if let (Some(items), Value::Array(values)) = (schema.get("items"), value) {
        return values.iter().enumerate().find_map(|(n, value)| broken(items, value, &format!("{at}[{n}]")));
    }
    let Value::Object(fields) = value else { return None };
    let none = Value::Object(Default::default());
    let properties = schema.get("properties").unwrap_or(&none);
    for required in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        if !required.as_str().is_some_and(|name| fields.contains_key(name)) {
            return wrong(&format!("{required} is missing"));
        }
    }
    fields.iter().find_map(|(name, value)| match (properties.get(name), schema.get("additionalProperties")) {
        (Some(schema), _) => broken(schema, value, &format!("{at}.{name}")),
        (None, Some(Value::Bool(false))) => Some(format!("{at}.{name}: unknown field")),
        (None, Some(schema)) => broken(schema, value, &format!("{at}.{name}")),
        (None, None) => None,
    })
}

#[test]
fn the_schema_takes_every_job_file_and_no_unknown_field() {
    let schema = job_schema();
    for (path, text) in job_files() {
        for document in serde_saphyr::from_multiple::<Value>(&text).expect("YAML") {
            assert_eq!(broken(&schema, &document, ""), None, "{}", path.display());
            let kept = one_of(&text);
            for shown in kept.iter().map(|job| shown_and_read(job).0) {
                let shown: Value = serde_saphyr::from_str(&shown).expect("YAML");
                assert_eq!(broken(&schema, &shown, ""), None, "{}", path.display());
            }
        }
    }
    let good = "apiVersion: muster.dev/v1\nkind: Job\nmetadata: {name: a, labels: {team: x}}\nspec:\n  command: [a]\n";
    for (more, expected) in [
        ("", None),
        ("  workers: 2\n  cpu: 500m\n  preemptible: false\n  tier:\n", None),
        ("  accelerators: h100:8\n", None),
        ("  accelerators: {types: {h100: 1.0}, count: 8}\n", None),
        ("  accelerators: {kind: h100}\n", Some(".spec.accelerators")),
        ("  wrokers: 2\n", Some(".spec.wrokers: unknown field")),
        ("  topology: {requird: rack}\n", Some(".spec.topology.requird: unknown field")),
        ("  groups: [{comand: [a]}]\n", Some(".spec.groups[0].comand: unknown field")),
        ("  regions: eu\n", Some(".spec.regions: of another type")),
        ("  nodeSelector: {zone: [a, b], rack: c, gen: 4}\n", None),
        ("  nodeSelector: {zone: {a: b}}\n", Some(".spec.nodeSelector.zone")),
        ("  slice: {shape: 4x4, cuont: 2}\n", Some(".spec.slice")),
        ("  after: [job-1, {job: job-2, when: finished}]\n", None),
        ("  parallel: auto\n", None),
        ("  parallel: {model: {layers: 4, x: {y: [1]}}, batch: 8}\n", None),
        ("  parallel: {modle: a}\n", Some(".spec.parallel")),
        ("status: {phase: running, any: [1]}\n", None),
        ("statsu: 1\n", Some(".statsu: unknown field")),
        ("metadata: 1\n", None),
    ] {
        let text = format!("{good}{more}");
        let Ok(document) = serde_saphyr::from_str::<Value>(&text) else { continue };
        let found = broken(&schema, &document, "");
        match expected {
            None => assert_eq!(found, None, "{more}"),
            Some(expected) => {
                assert!(found.as_ref().is_some_and(|f| f.contains(expected)), "{more}: {found:?}")
            }
        }
        // The parser agrees on which fields there are.
        let read = parse(text.as_bytes(), NOW_MS);
        assert_eq!(read.is_ok(), expected.is_none(), "{more}: {read:?}");
    }
    let missing = json!({ "kind": "Job", "spec": {} });
    assert!(broken(&schema, &missing, "").is_some_and(|found| found.contains("apiVersion")));
    let other = json!({ "apiVersion": "v1", "kind": "Job", "spec": {} });
    assert!(broken(&schema, &other, "").is_some_and(|found| found.contains("another value")));
}

/// The jobs of a file, as they are kept.
fn one_of(text: &str) -> Vec<v1::Job> {
    let read = parse(text.as_bytes(), NOW_MS).expect("a job file");
    read.into_iter().filter_map(|job| as_kept(job.message).ok()).collect()
}

#[test]
fn labels_and_annotations_are_read_and_mistakes_name_the_key() {
    let file = |metadata: &str| {
        format!(
            "apiVersion: muster.dev/v1\nkind: Job\nmetadata:\n  name: a\n{metadata}spec: {{command: [a]}}\n"
        )
    };
    let read = |metadata: &str| {
        let mut read = parse(file(metadata).as_bytes(), NOW_MS).map_err(|error| error.0[0].to_string())?;
        let job = read.remove(0);
        job.check().map_err(|error| error.0[0].to_string())?;
        Ok::<_, String>(job.message)
    };
    let job = read(
        "  labels: {team: vision, version: 1.10, debug: true}\n  annotations:\n    note: |\n      a\n      b\n",
    );
    let job = job.unwrap();
    let texts = |of: &HashMap<String, String>, key: &str| of[key].clone();
    assert_eq!(texts(&job.labels, "version"), "1.10");
    assert_eq!(texts(&job.labels, "debug"), "true");
    assert_eq!(texts(&job.annotations, "note"), "a\nb\n");
    for (metadata, expected) in [
        ("  labels:\n    team: a\n    team: b\n", "line 7: team: is given twice"),
        ("  labels:\n    good: a\n    te am: b\n", "line 7: metadata.labels.te am: the key must be"),
        ("  labels:\n    team: b!\n", "line 6: metadata.labels.team: the value must be"),
        ("  labels: {\"\": b}\n", "line 5: metadata.labels.\"\": the key must be"),
        ("  labels: {é: b}\n", "line 5: metadata.labels.é: the key must be"),
        ("  annotations: {a: \"\\e[1m\"}\n", "line 5: metadata.annotations.a: the value must be text"),
        ("  labels: [a]\n", "line 5"),
        ("  lables: {a: b}\n", "line 5: lables: unknown field; did you mean labels?"),
        ("  creator: root\n", "line 5: creator: unknown field"),
    ] {
        let found = read(metadata).unwrap_err();
        assert!(found.starts_with(expected), "{metadata:?}: {found}");
    }
    let many: String = (0..33).map(|n| format!("k{n}: x, ")).collect();
    let found = read(&format!("  labels: {{{many}}}\n")).unwrap_err();
    assert_eq!(found, "line 5: metadata.labels: must be between 0 and 32 labels, got 33");
}

#[test]
fn damaged_policy_files_are_refused_with_their_place() {
    muster_fuzz::run(
        "manifest-policy",
        &[super::tests::POLICY.as_bytes().to_vec()],
        |_| {},
        |input| parse_policy(input, NOW_MS).is_ok_and(|file| file.check().is_ok()),
    );
}

#[test]
fn the_example_of_a_policy_has_resources_and_limits_and_can_be_set_again() {
    let file = parse_policy(include_bytes!("../../../ops/examples/policy.yaml"), NOW_MS).unwrap();
    file.check().unwrap();
    // A server answers with the defaults filled in.
    let sent = convert::policy_from_proto("policy", Some(file.message)).unwrap();
    let policy = convert::policy_to_proto(&sent);
    let resources = policy.resources.iter().map(|one| (one.name.as_str(), one.count, one.region.as_str()));
    let expected = [("matlab", Some(20), ""), ("reader", Some(2), "eu-north")];
    assert_eq!(resources.collect::<Vec<_>>(), expected);
    let limits = policy.tenants["language"].limits.as_ref().unwrap();
    assert_eq!((limits.cpu_milli, limits.memory_bytes), (Some(2_000_000), Some(16 << 40)));
    assert_eq!(policy.tenants["serving"].rights.as_ref().unwrap().negative_nice, Some(true));
    let answer = v1::GetPolicyResponse { policy: Some(policy.clone()), version: 3, ..Default::default() };
    let yaml = serde_saphyr::to_string(&policy_file(&answer)).unwrap();
    let again = parse_policy(yaml.as_bytes(), NOW_MS).unwrap_or_else(|error| panic!("{error:?} in\n{yaml}"));
    assert_eq!(again.message, policy, "{yaml}");
}
