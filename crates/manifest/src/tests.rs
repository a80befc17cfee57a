//! What people write is read; what they get wrong is named with its line.

use muster_types::{DependencyRule, PriorityTier};
use muster_wire::closed::word;
use muster_wire::time::{duration, timestamp, unix_ms};
use proptest::prelude::*;

use super::*;
use v1::accelerator_request::Amount;

const FULL: &str = "\
# A job that says everything.
apiVersion: muster.dev/v1
kind: Job
metadata:
  name: train
  tenant: vision
spec:
  tier: production
  regions: [eu-north, us-east]
  runTimeLimit: 2h
  stopGrace: 30s
  retry: {maxFailures: 3}
  checkpoint: {directory: /shared/checkpoints}
  workingDirectory: /work
  groups:
    - name: trainers
      workers: 4
      command: [python, train.py, --epochs, 300]
      environment:
        NCCL_DEBUG: INFO
        SEED: 7
      accelerators: h100:8
      cpu: 500m
      memory: 4Gi
    - name: server
      workers: 1
      command:
        - serve
      accelerators: {type: l4, count: 1}
";

/// 2027-01-15T08:00:00Z.
const NOW_MS: u64 = 1_800_000_000_000;

fn parse(bytes: &[u8]) -> Result<Vec<Manifest>, ManifestError> {
    super::parse(bytes, NOW_MS)
}

fn request(types: &[(&str, u32)], amount: v1::accelerator_request::Amount) -> Option<v1::AcceleratorRequest> {
    let choice = |(kind, milli): &(&str, u32)| v1::AcceleratorChoice {
        r#type: (*kind).into(),
        throughput_milli: *milli,
    };
    Some(v1::AcceleratorRequest { choices: types.iter().map(choice).collect(), amount: Some(amount) })
}

fn one(text: &str) -> Manifest {
    let mut manifests = parse(text.as_bytes()).unwrap();
    assert_eq!(manifests.len(), 1);
    manifests.remove(0)
}

fn problems(text: &str) -> Vec<String> {
    let error = match parse(text.as_bytes()) {
        Ok(manifests) => manifests[0].check().unwrap_err(),
        Err(error) => error,
    };
    error.0.iter().map(Problem::to_string).collect()
}

/// A word that is an id and the name of a job of the file is neither without a key.
#[test]
fn a_name_that_looks_like_an_id_is_refused_as_ambiguous() {
    let of = |name: &str, spec: &str| {
        format!(
            "apiVersion: muster.dev/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  command: [x]\n{spec}"
        )
    };
    let file =
        |after: &str| format!("{}---\n{}", of("job-prepare", ""), of("b", &format!("  after: [{after}]\n")));
    let found = problems(&file("job-prepare"));
    assert!(found.len() == 1 && found[0].contains("spec.after[0]"), "{found:?}");
    assert!(found[0].contains("write {name: job-prepare} for that job"), "{found:?}");
    for plain in ["{name: job-prepare}", "{job: job-prepare}", "job-other"] {
        assert_eq!(parse(file(plain).as_bytes()).unwrap().len(), 2, "{plain}");
    }
    let found = problems(&file("\"\""));
    assert!(found[0].contains("spec.after[0]: must be the id"), "{found:?}");
    let found = problems(&of("b", "  after: [{job: job-1, name: a}, {byMember: true, job: job-1}]\n"));
    assert!(found[0].ends_with("must have one of job, array and name"), "{found:?}");
    assert!(found[1].ends_with("spec.after[1].byMember: needs array or name"), "{found:?}");
}

fn job(spec: &str) -> String {
    format!("apiVersion: muster.dev/v1\nkind: Job\nmetadata: {{name: x}}\nspec:\n{spec}")
}

#[test]
fn everything_is_read() {
    let manifest = one(FULL);
    manifest.check().unwrap();
    let message = &manifest.message;
    assert_eq!((message.name.as_str(), message.tenant.as_str()), ("train", "vision"));
    let message = message.spec();
    assert_eq!(message.tier(), v1::Tier::Production);
    assert_eq!(message.regions, ["eu-north", "us-east"]);
    assert_eq!(
        (message.run_time_limit, message.stop_grace),
        (Some(duration(7_200_000)), Some(duration(30_000)))
    );
    assert_eq!(
        (message.retry.as_ref().map(|retry| retry.max_failures), message.array.is_some()),
        (Some(3), false)
    );
    assert_eq!(message.checkpoint.as_ref().unwrap().directory, "/shared/checkpoints");
    assert_eq!(message.working_directory, "/work");
    let [trainers, server] = message.groups.as_slice() else { panic!() };
    assert_eq!((trainers.name.as_str(), trainers.workers), ("trainers", 4));
    // Numbers in a command or an environment stay what was written.
    assert_eq!(trainers.command(), ["python", "train.py", "--epochs", "300"]);
    assert_eq!(trainers.variable("SEED"), Some("7"));
    assert_eq!(trainers.resources().accelerators, request(&[("h100", 0)], Amount::Count(8)));
    assert_eq!((trainers.resources().cpu_milli, trainers.resources().memory_bytes), (500, 4 << 30));
    assert_eq!(server.resources().accelerators, request(&[("l4", 0)], Amount::Count(1)));
}

#[test]
fn accelerators_have_a_short_and_a_long_form() {
    for (text, types, amount) in [
        ("h100:8", vec![("h100", 0)], Amount::Count(8)),
        ("h100|a100:1", vec![("h100", 0), ("a100", 0)], Amount::Count(1)),
        ("any:0.25", vec![], Amount::ShareMilli(250)),
        ("{type: any, count: 2}", vec![], Amount::Count(2)),
        (
            "{types: {h100: 1.0, a100: 0.45}, count: 8}",
            vec![("a100", 450), ("h100", 1_000)],
            Amount::Count(8),
        ),
        ("{type: l4, count: 0.5}", vec![("l4", 0)], Amount::ShareMilli(500)),
    ] {
        let manifest = one(&job(&format!("  command: [run]\n  accelerators: {text}\n")));
        manifest.check().unwrap();
        assert_eq!(
            manifest.message.spec().groups[0].resources().accelerators,
            request(&types, amount),
            "{text}"
        );
    }
    for (text, part) in [
        ("h100", "must be a type and a count"),
        ("h100:1.5", "must be a type and a count"),
        ("{types: {h100: fast}, count: 1}", "spec.accelerators.types.h100: must be a number like 1.0"),
        ("{count: 1}", "must have either type or types"),
        ("{type: a, types: {b: 1}, count: 1}", "must have either type or types"),
        ("{types: {h100: 0}, count: 1}", "must be above zero; leave the type out"),
        ("H100:1", "spec.accelerators: must be 1 to 63"),
        ("h100:65", "spec.accelerators.count: must be between 1 and 64, got 65"),
        ("{type: h100}", "spec.accelerators.count: must be given"),
        ("h100|h100:1", "spec.accelerators: must not name a type twice"),
    ] {
        let found = problems(&job(&format!("  command: [run]\n  accelerators: {text}\n")));
        assert!(found[0].starts_with("line 6: ") && found[0].contains(part), "{text}: {found:?}");
    }
}

#[test]
fn a_slice_needs_no_numbers() {
    let slice = |text: &str| one(&job(&format!("  command: [run]\n  accelerators: v5p\n  slice: {text}\n")));
    for (text, workers) in [("4x4x8", 32), ("{shape: 4x4x8, count: 2}", 64)] {
        let manifest = slice(text);
        manifest.check().unwrap();
        let specs = convert::submissions_from_proto("job", Some(manifest.message)).unwrap();
        assert_eq!((specs[0].worker_count(), specs[0].device_count()), (workers, u64::from(workers) * 4));
    }
    let found = problems(&job("  command: [run]\n  accelerators: v5p\n  slice: 3x4x4\n"));
    assert!(
        found[0].starts_with("line 7: spec.slice.shape: 3x4x4 is no v5p slice; legal neighbours: "),
        "{found:?}"
    );
    let found = problems(&job("  command: [run]\n  accelerators: v5p:4\n  slice: 4x4x8\n  workers: 31\n"));
    assert!(
        found[0].starts_with("line 7: spec.slice: 1 x 4x4x8 of v5p is 32 workers with 4 chips"),
        "{found:?}"
    );
    assert_eq!(
        problems(&job("  command: [run]\n  accelerators: v5p\n  slice: 4x4x8\n  workers: 0\n")),
        ["line 8: spec.workers: must be above zero; leave it out: the slice says how many there are"]
    );
}

#[test]
fn place_and_time_are_read() {
    let manifest = one(&job("  command: [run]\n  workers: 8\n  minWorkers: 2\n  \
         topology: {required: block, preferred: rack, balanced: true, segmentWorkers: 4}\n  \
         nodeSelector: {zone: [a, b], gen: 3, spot: false}\n  tolerations: [spot]\n  preemptible: false\n  \
         after: [job-3f0, {job: job-3f1, when: finished}]\n  notBefore: +2h\n  \
         deadline: 2027-01-16T08:00:00Z\n  expectedRun: 90m\n  datasets: [imagenet]\n"));
    manifest.check().unwrap();
    let message = manifest.message.spec();
    assert_eq!((message.groups[0].workers, message.groups[0].min_workers), (8, 2));
    let topology = message.topology.clone().unwrap();
    assert_eq!(
        (topology.required(), topology.preferred()),
        (v1::TopologyLevel::Block, v1::TopologyLevel::Rack)
    );
    assert_eq!((topology.balanced, topology.segment_workers), (true, 4));
    let values = |label: &str| message.node_selector[label].values.clone();
    assert_eq!(
        (values("zone"), values("gen"), values("spot")),
        (vec!["a".to_owned(), "b".to_owned()], vec!["3".to_owned()], vec!["false".to_owned()])
    );
    assert_eq!(
        (message.tolerations.as_slice(), message.preemptible),
        (["spot".to_owned()].as_slice(), Some(false))
    );
    let rules: Vec<_> =
        message.dependencies.iter().map(|d| (d.job_id.as_str(), word::<DependencyRule>(d.rule))).collect();
    assert_eq!(rules, [("job-3f0", ""), ("job-3f1", "finished")]);
    assert_eq!(
        (unix_ms(message.not_before), unix_ms(message.deadline)),
        (Some(NOW_MS + 7_200_000), Some(NOW_MS + 86_400_000))
    );
    assert_eq!(
        (message.expected_run, message.datasets.as_slice()),
        (Some(duration(5_400_000)), ["imagenet".to_owned()].as_slice())
    );
    let spread = one(&job("  command: [run]\n  topology:\n    spread: {level: host, maxWorkers: 1}\n"));
    let spread = spread.message.spec().topology.clone().unwrap().spread.unwrap();
    assert_eq!((spread.level(), spread.max_workers), (v1::TopologyLevel::Host, 1));
}

#[test]
fn segments_within_segments_are_read_and_mistakes_name_the_field() {
    let nested = "  command: [run]\n  workers: 32\n  topology:\n    segments:\n    \
         - {level: rack, workers: 16}\n    - {level: host, workers: 4}\n";
    let manifest = one(&job(nested));
    manifest.check().unwrap();
    let segments = manifest.message.spec().topology.clone().unwrap().segments;
    let said: Vec<_> = segments.iter().map(|segment| (segment.level(), segment.workers)).collect();
    assert_eq!(said, [(v1::TopologyLevel::Rack, 16), (v1::TopologyLevel::Host, 4)]);
    assert_eq!(
        problems(&job(&nested.replace("rack, workers: 16", "row, workers: 0"))),
        [
            "line 9: spec.topology.segments[0].level: must be one of block, rack, host, got \"row\"",
            "line 9: spec.topology.segments[0].workers: must be above zero; it is how many workers are in one domain \
             together",
        ]
    );
    let refused = |from: &str, to: &str| problems(&job(&nested.replace(from, to)));
    let uneven = refused("host, workers: 4", "host, workers: 5");
    assert!(
        uneven[0].contains("spec.topology.segments[1].workers: must divide the 16 workers"),
        "{uneven:?}"
    );
    let turned = refused("level: rack", "level: host");
    assert!(turned[0].contains("spec.topology.segments[1].level: must be a level inside"), "{turned:?}");
    let gang = refused("workers: 32", "workers: 40");
    assert!(gang[0].contains("spec.topology.segments[0].workers: must divide the 40 workers"), "{gang:?}");
}

#[test]
fn where_other_jobs_are_is_read() {
    let manifest = one(&job(
        "  command: [run]\n  affinity:\n    - {to: job-3f0, level: host, rule: together, required: true}\n    \
         - {to: array-3f0, level: rack, rule: together, weight: 20}\n    \
         - {jobs: \"app=cache,stage in (a,b)\", level: region, rule: apart, required: true}\n",
    ));
    manifest.check().unwrap();
    let entries = &manifest.message.spec().affinity;
    assert_eq!((entries[0].job_id.as_str(), entries[0].required, entries[0].weight), ("job-3f0", true, 0));
    assert_eq!(
        (entries[1].array_id.as_str(), entries[1].required, entries[1].weight),
        ("array-3f0", false, 20)
    );
    assert_eq!(entries[2].label_selector, "app=cache,stage in (a,b)");
    assert_eq!(
        (entries[0].level(), entries[0].rule()),
        (v1::AffinityLevel::Host, v1::AffinityRule::Together)
    );
    for (entry, problem) in [
        (
            "{to: job-3f0, level: row, rule: apart, required: true}",
            "line 7: spec.affinity[0].level: must be one of",
        ),
        (
            "{to: job-3f0, jobs: a=b, level: host, rule: apart, weight: 1}",
            "line 7: spec.affinity[0]: must have one of to and jobs",
        ),
        (
            "{jobs: \"!a\", level: host, rule: apart, weight: 1}",
            "line 7: spec.affinity[0].jobs: must name a label",
        ),
        (
            "{jobs: a=b, level: host, rule: apart}",
            "line 7: spec.affinity[0]: must have one of required and weight",
        ),
        (
            "{jobs: a=b, level: host, rule: apart, weight: 101}",
            "line 7: spec.affinity[0].weight: must be between 1 and 100",
        ),
    ] {
        let found = problems(&job(&format!("  command: [run]\n  affinity:\n  - {entry}\n")));
        assert!(found.first().is_some_and(|found| found.starts_with(problem)), "{found:?}");
    }
}

#[test]
fn what_is_asked_of_nodes_is_read() {
    let mut manifest = one(&job(
        "  command: [run]\n  nodes:\n    expressions:\n      - {key: zone, in: [a, b]}\n      - {key: rack, notIn: r1}\n      \
         - {key: fast, exists: true}\n      - {key: slow, exists: false}\n      - {key: memory-gib, greater: 512}\n      \
         - {key: age, less: -3}\n    only: [h1, h2]\n    exclude: [h3]\n",
    ));
    manifest.check().unwrap();
    let test = |key: &str, operator: v1::NodeOperator, values: &[&str]| v1::NodeExpression {
        key: key.to_owned(),
        operator: operator.into(),
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    };
    let asked = v1::NodeRequirements {
        expressions: vec![
            test("zone", v1::NodeOperator::In, &["a", "b"]),
            test("rack", v1::NodeOperator::NotIn, &["r1"]),
            test("fast", v1::NodeOperator::Exists, &[]),
            test("slow", v1::NodeOperator::DoesNotExist, &[]),
            test("memory-gib", v1::NodeOperator::Greater, &["512"]),
            test("age", v1::NodeOperator::Less, &["-3"]),
        ],
        only: vec!["h1".into(), "h2".into()],
        exclude: vec!["h3".into()],
    };
    assert_eq!(manifest.message.spec().nodes, Some(asked));
    manifest.apply(&Overrides {
        node_tests: vec![node_tests("zone in (a,b),memory-gib>1024").unwrap()],
        only: vec!["h2".into()],
        exclude: vec!["h3".into(), "h4".into()],
        ..Overrides::default()
    });
    manifest.check().unwrap();
    let nodes = manifest.message.spec().nodes.clone().unwrap();
    assert_eq!((nodes.expressions.len(), nodes.only.len(), nodes.exclude.len()), (8, 1, 2));
    assert_eq!(nodes.expressions[7], test("memory-gib", v1::NodeOperator::Greater, &["1024"]));
    assert!(node_tests("zone near a").unwrap_err().starts_with("character 6"));
}

#[test]
fn mistakes_in_what_is_asked_of_nodes_have_their_lines() {
    let found = problems(&job(
        "  command: [run]\n  nodes:\n    expressions:\n      - {key: zone}\n      - {key: zone, in: [a], exists: true}\n      \
         - {key: fast, exists: perhaps}\n",
    ));
    let places = ["spec.nodes.expressions[0]: must have one", "spec.nodes.expressions[1]: must have one"];
    for (text, place) in found.iter().zip(places) {
        assert!(text.contains(place), "{text}");
    }
    assert!(found[2].contains("spec.nodes.expressions[2].exists: must be true or false"), "{found:?}");
    let found = problems(&job(
        "  command: [run]\n  nodes:\n    expressions:\n      - {key: Zone, in: [a]}\n      - {key: zone, in: []}\n      \
         - {key: gib, greater: many}\n    only: [h1]\n    exclude: [h1, H2]\n",
    ));
    for place in [
        "spec.nodes.expressions[0].key: ",
        "spec.nodes.expressions[1]: must be 1 to 32 values",
        "spec.nodes.expressions[2]: must be one decimal integer",
        "spec.nodes.exclude[1]: ",
    ] {
        assert!(found.iter().any(|text| text.contains(place)), "{place}: {found:?}");
    }
    let unknown = problems(&job("  command: [run]\n  nodes: {onli: [h1]}\n"));
    assert!(unknown[0].contains("did you mean only?"), "{unknown:?}");
}

#[test]
fn capacity_is_read_in_both_forms() {
    let spec = |capacity: &str| {
        let manifest = one(&job(&format!("  command: [run]\n  capacity: {capacity}\n")));
        manifest.check().unwrap();
        manifest.message.spec().capacity.clone().unwrap()
    };
    let spot = v1::CapacityRules { purchases: vec![v1::Purchase::Spot.into()], ..Default::default() };
    assert_eq!(spec("spot"), spot);
    assert_eq!(spec("{purchases: [spot]}"), spot);
    let long =
        "{purchases: [spot], fallback: {purchases: [on_demand], after: 30m}, maxInterruptionsPerDay: 0.05}";
    let fallback = v1::CapacityFallback {
        purchases: vec![v1::Purchase::OnDemand.into()],
        after: Some(muster_wire::time::duration(1_800_000)),
    };
    let most = Some(50);
    assert_eq!(
        spec(long),
        v1::CapacityRules { fallback: Some(fallback), max_interruptions_per_day_milli: most, ..spot }
    );
}

#[test]
fn mistakes_in_capacity_have_their_lines() {
    for (capacity, expected) in [
        ("leased", "line 6: spec.capacity: must be one of"),
        ("{purchases: [spot, leased]}", "line 6: spec.capacity.purchases[1]: must be one of"),
        ("{purchases: [spot], fallback: {purchases: [on_demand]}}", "spec.capacity.fallback.after: must be"),
        (
            "{purchases: [spot], fallback: {purchases: [on_demand], after: 31d}}",
            "spec.capacity.fallback.after: must be",
        ),
        (
            "{purchases: [spot], fallback: {purchases: [spot], after: 1h}}",
            "spec.capacity.fallback.purchases: adds nothing",
        ),
        ("{fallback: {purchases: [spot], after: 1h}}", "spec.capacity.fallback.purchases: adds nothing"),
        ("{maxInterruptionsPerDay: 0}", "spec.capacity.maxInterruptionsPerDay: must be"),
        ("{maxInterruptionsPerDay: often}", "spec.capacity.maxInterruptionsPerDay: "),
        ("{purchase: [spot]}", "did you mean purchases?"),
    ] {
        let found = problems(&job(&format!("  command: [run]\n  capacity: {capacity}\n")));
        assert!(found[0].contains(expected), "{capacity}: {found:?}");
    }
}

#[test]
fn mistakes_of_place_and_time_have_their_lines() {
    let text = job(
        "  command: [run]\n  topology: {required: row}\n  nodeSelector:\n    Zone: a\n    empty: []\n  \
         tolerations: [NO]\n  after:\n    - {job: train, when: started}\n  notBefore: 2027-01-17T00:00:00Z\n  \
         deadline: +1h\n  datasets: [a, a]\n",
    );
    assert_eq!(
        problems(&text)
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>(),
        [
            "line 10: spec.tolerations[0]: must be 1 to 63 lower-case letters, digits, '-', '_' or '.', starting and ending with a letter or digit, got \"NO\"",
            "line 12: spec.after[0].job: must be job-<base 32 digits>, got \"train\"",
            "line 12: spec.after[0].when: must be one of succeeded, finished, got \"started\"",
            "line 14: spec.deadline: must be after notBefore",
            "line 15: spec.datasets: must not name a data set twice",
            "line 6: spec.topology.required: must be one of block, rack, host, got \"row\"",
            "line 8: spec.nodeSelector: must be 1 to 63 lower-case letters, digits, '-', '_' or '.', starting and ending with a letter or digit, got \"Zone\"",
            "line 9: spec.nodeSelector.empty: must have 1 to 32 values of at most 256 bytes",
        ]
    );
    assert!(problems(&job("  command: [run]\n  notBefore: tomorrow\n"))[0].starts_with(
        "line 6: spec.notBefore: must be a time like 2027-01-31T18:00:00Z, with at most three decimals, or +2h for two hours from now"
    ));
    assert!(
        problems(&job("  preemptible: maybe\n"))[0]
            .contains("line 5: spec.preemptible: must be true or false")
    );
    assert!(
        problems(&job("  topology: {segment_worker: 4}\n"))[0]
            .starts_with("line 5: segment_worker: unknown field; did you mean segmentWorkers?")
    );
    assert!(problems(&job("  dependsOn: [job-1]\n"))[0].contains("did you mean after?"));
}

pub(super) const POLICY: &str = "\
apiVersion: muster.dev/v1
kind: Policy
metadata: {version: 812}
spec:
  tenants:
    research:
      weight: 1.5
      quotas:
        - {type: h100, region: eu, nominal: 64, borrowingLimit: 0.5}
    vision: {parent: research}
  order: {by: submission, fairShare: false, usageHalfLife: 1d, ageing: 0.02}
  backfill: {reservations: 0}
  weights: {cost: 700}
  prices:
    - {type: h100, perDeviceHour: 1.95}
  datasets:
    imagenet: {size: 150Gi, regions: [eu]}
  transfers:
    - {to: eu, perGib: 0.02, bytesPerSecond: 1Gi}
  spareHostsPerRack: {gb200: 2}
  isolation: {require: [pid, devices]}
  windows:
    - {name: works, startTime: +1h, endTime: +2h, scope: {rack: r1}, maintenance: true}
    - {name: ours, startTime: +1h, endTime: +2h, scope: {region: eu}, reservedFor: vision}
";

fn policy_problems(text: &str) -> Vec<String> {
    let found = match parse_policy(text.as_bytes(), NOW_MS) {
        Ok(file) => file.check().unwrap_err(),
        Err(error) => error,
    };
    found.0.iter().map(Problem::to_string).collect()
}

#[test]
fn a_policy_is_read() {
    let file = parse_policy(POLICY.as_bytes(), NOW_MS).unwrap();
    file.check().unwrap();
    assert_eq!(file.version, Some(812));
    let policy = file.message;
    let research = &policy.tenants["research"];
    assert_eq!((research.weight_milli, research.quotas[0].nominal_milli), (Some(1_500), 64_000));
    assert_eq!(research.quotas[0].borrowing_limit_milli, Some(500));
    assert_eq!(policy.tenants["vision"].parent, "research");
    let order = policy.order.unwrap();
    assert_eq!(
        (word::<muster_types::policy::Order>(order.order), order.fair_share, order.ageing_milli),
        ("submission", Some(false), Some(20))
    );
    assert_eq!(policy.backfill.unwrap().max_reservations, Some(0));
    assert_eq!(policy.preemption, None);
    assert_eq!(policy.weights.unwrap().cost, Some(700));
    assert_eq!(policy.prices[0].micro_dollars_per_device_hour, 1_950_000);
    assert_eq!(policy.datasets["imagenet"].bytes, 150 << 30);
    assert_eq!(
        (policy.transfers[0].micro_dollars_per_gib, policy.transfers[0].bytes_per_second),
        (20_000, 1 << 30)
    );
    assert_eq!(policy.windows[1].end_time, Some(timestamp(NOW_MS + 7_200_000)));
    assert_eq!(
        policy.isolation.unwrap().require,
        [v1::Isolation::Pid, v1::Isolation::Devices].map(i32::from)
    );
    let empty = parse_policy(b"apiVersion: muster.dev/v1\nkind: Policy\nspec: {}\n", NOW_MS).unwrap();
    empty.check().unwrap();
    assert_eq!(empty.message, v1::Policy::default());
}

#[test]
fn a_policy_that_is_shown_can_be_set_again() {
    // The first would have an exponent as a number.
    let more = "    - {from: eu, perGib: 0.000001, bytesPerSecond: 1}\n    - {from: us, perGib: 0.0001, bytesPerSecond: 1}\n";
    let text = POLICY.replace("  spareHostsPerRack", &format!("{more}  spareHostsPerRack"));
    let sent = parse_policy(text.as_bytes(), NOW_MS).unwrap().message;
    // A server answers with the defaults filled in.
    let policy = convert::policy_to_proto(&convert::policy_from_proto("policy", Some(sent)).unwrap());
    let answer = v1::GetPolicyResponse { policy: Some(policy.clone()), version: 812, ..Default::default() };
    let shown = policy_file(&answer);
    let yaml = serde_saphyr::to_string(&shown).unwrap();
    let again = parse_policy(yaml.as_bytes(), NOW_MS).unwrap_or_else(|error| panic!("{error:?} in\n{yaml}"));
    assert_eq!((again.message, again.version), (policy, Some(812)), "{yaml}");
    let json = serde_json::to_value(&shown).unwrap();
    assert_eq!(json["spec"]["tenants"]["research"]["quotas"][0]["borrowingLimit"], 0.5);
    assert_eq!(json["spec"]["tenants"]["vision"].get("quotas"), None);
    // As people see it.
    assert_eq!(
        shown.fill("{spec.order.by}, fair share {spec.order.fairShare}, ageing {spec.order.ageing}").unwrap(),
        "submission, fair share off, ageing 0.02"
    );
    assert_eq!(shown.fill("{spec.order.nothing}"), None);
    let windows = shown.entries("spec.windows");
    let purposes: Vec<_> = windows.iter().map(|window| window.fill("{name} for {reservedFor}")).collect();
    assert_eq!(purposes, [None, Some("ours for vision".to_owned())]);
    assert_eq!(windows[0].fill("{scope}").unwrap(), "rack r1");
    let spares = shown.entries("spec.spareHostsPerRack");
    assert_eq!(spares[0].fill("{@}: {}").unwrap(), "gb200: 2");
}

#[test]
fn limits_and_choices_of_a_queue_are_read_and_shown() {
    let vision = "vision:
      parent: research
      limits:
        spend: {most: 5000, window: 7d}
        user: {spend: {most: 400, window: 1d}, devices: 64}
        onLimit: refuse
        tiers: [{tier: free, submissionsPerMinute: 10}]
      queue: {order: strict, blockFor: 2h, preemption: fair_share, nodes: {only: [h1], expressions: [{key: pool, in: [big]}]}, isolated: true}";
    let text = POLICY.replace("vision: {parent: research}", vision);
    let file = parse_policy(text.as_bytes(), NOW_MS).unwrap();
    file.check().unwrap();
    let tenant = &file.message.tenants["vision"];
    let limits = tenant.limits.as_ref().unwrap();
    assert_eq!(limits.spend.as_ref().unwrap().most, Some(5_000));
    assert_eq!(limits.on_limit(), v1::OnLimit::Refuse);
    assert_eq!(limits.tiers[0].submissions_per_minute, Some(10));
    let queue = tenant.queue.as_ref().unwrap();
    assert_eq!((queue.order(), queue.preemption()), (v1::QueueOrder::Strict, v1::QueuePreemption::FairShare));
    assert_eq!(queue.nodes.as_ref().unwrap().expressions[0].values, ["big"]);
    let answer =
        v1::GetPolicyResponse { policy: Some(file.message.clone()), version: 812, ..Default::default() };
    let yaml = serde_saphyr::to_string(&policy_file(&answer)).unwrap();
    let again = parse_policy(yaml.as_bytes(), NOW_MS).unwrap_or_else(|error| panic!("{error:?} in\n{yaml}"));
    assert_eq!(again.message.tenants, file.message.tenants, "{yaml}");
    for (from, to, part) in [
        ("blockFor: 2h", "blockFor: 1s", "spec.tenants.vision.queue.blockFor: must be between"),
        (
            "preemption: fair_share",
            "preemption: all",
            "queue.preemption: must be one of none, reclaim, fair_share",
        ),
        ("most: 5000", "most: 0", "spec.tenants.vision.limits.spend.most: must be at least 1 dollar"),
        ("onLimit: refuse", "onLimit: wait", "limits.onLimit: must be one of hold, refuse"),
        ("in: [big]", "in: []", "spec.tenants.vision.queue.nodes.expressions[0]: must be 1 to 32 values"),
        ("in: [big]", "greater: big", "spec.tenants.vision.queue.nodes.expressions[0]: must be one decimal"),
        ("key: pool", "key: Pool", "spec.tenants.vision.queue.nodes.expressions[0].key: "),
    ] {
        let found = policy_problems(&text.replace(from, to));
        assert!(found.iter().any(|problem| problem.contains(part)), "{part}: {found:?}");
    }
}

#[test]
fn prices_have_dates_purchases_and_parts() {
    let prices = "{type: h100, perDeviceHour: 1.95}
    - {type: h100, purchase: spot, perDeviceHour: 0.9, endTime: 2027-01-01T00:00:00Z}
    - {type: h100, purchase: spot, perDeviceHour: 0, startTime: 2027-01-01T00:00:00Z}
    - {type: h100, purchase: owned, owned: {perDevice: 30000, months: 48, watts: 1200, pue: 1.25, perKwh: 0.1}}";
    let text = |prices: &str| POLICY.replace("{type: h100, perDeviceHour: 1.95}", prices);
    let file = parse_policy(text(prices).as_bytes(), NOW_MS).unwrap();
    file.check().unwrap();
    let read = &file.message.prices;
    assert_eq!(word::<muster_types::policy::PurchaseKind>(read[1].purchase), "spot");
    assert_eq!(read[1].end_time, read[2].start_time);
    let owned = read[3].owned.as_ref().unwrap();
    assert_eq!((owned.micro_dollars_per_device, owned.depreciation_months), (30_000_000_000, Some(48)));
    assert_eq!(
        (owned.watts, owned.pue_milli, owned.micro_dollars_per_kwh),
        (Some(1_200), Some(1_250), 100_000)
    );
    for (from, to, part) in [
        (
            "purchase: owned",
            "purchase: gift",
            "spec.prices[3].purchase: must be one of owned, on_demand, spot, reserved",
        ),
        ("purchase: owned", "purchase: reserved", "spec.prices[3].purchase: must be owned"),
        ("owned: {per", "perDeviceHour: 1, owned: {per", "spec.prices[3].perDeviceHour: must not be given"),
        ("months: 48, ", "", "spec.prices[3].owned.months: must be between 1 and 600"),
        ("pue: 1.25", "pue: 0.9", "spec.prices[3].owned.pue: must be between 1000 and 10000"),
        ("perKwh: 0.1", "perKwh: -0.1", "spec.prices[3].owned.perKwh: must be dollars"),
        ("watts: 1200", "watts: many", "spec.prices[3].owned.watts: must be"),
        ("startTime: 2027", "startTime: 2026", "spec.prices[2]: must be the only price"),
        (
            "startTime: 2027-01-01",
            "endTime: 2026-01-01T00:00:00Z, startTime: 2027-01-01",
            "spec.prices[2].endTime: must be after the start",
        ),
    ] {
        let found = policy_problems(&text(&prices.replace(from, to)));
        assert!(found.iter().any(|problem| problem.contains(part)), "{part}: {found:?}");
    }
}

#[test]
fn mistakes_of_a_policy_have_their_lines_and_its_words() {
    let text = POLICY
        .replace("weight: 1.5", "weight: heavy")
        .replace("nominal: 64, borrowingLimit: 0.5", "borrowingLimit: many")
        .replace("maintenance: true", "maintenance: false");
    assert_eq!(
        policy_problems(&POLICY.replace("[pid, devices]", "[pid, processes]")),
        ["line 21: spec.isolation.require[1]: must be one of devices, pid, tmp, user, got \"processes\""]
    );
    assert_eq!(
        policy_problems(&text),
        [
            "line 7: spec.tenants.research.weight: must be a number like 2 or 0.5, with at most three decimals, got \"heavy\"",
            "line 9: spec.tenants.research.quotas[0].nominal: must be given: the devices that are guaranteed, or 0",
            "line 9: spec.tenants.research.quotas[0].borrowingLimit: must be a number like 64 or 0.5, with at most three decimals, got \"many\"",
            "line 23: spec.windows[0]: must say what it is for: either `maintenance: true` or `reservedFor: TENANT`",
        ]
    );
    let text = POLICY
        .replace("parent: research", "parent: nobody")
        .replace("reservations: 0", "reservations: 65")
        .replace("endTime: +2h, scope: {rack: r1}", "endTime: +1h, scope: {}")
        .replace("by: submission", "by: luck");
    let mut found = policy_problems(&text);
    found.sort();
    assert_eq!(
        found.iter().map(|problem| problem.split(": must").next().unwrap()).collect::<Vec<_>>(),
        [
            "line 10: spec.tenants.vision.parent",
            "line 11: spec.order.by",
            "line 12: spec.backfill.reservations",
            "line 23: spec.windows[0].endTime",
            "line 23: spec.windows[0].scope",
        ]
    );
    let quota = POLICY.replace(
        "vision: {parent: research}",
        "vision: {parent: research, quotas: [{type: h100, region: eu, nominal: 65}]}",
    );
    let found = policy_problems(&quota);
    assert!(found[0].contains("quotas[0].nominal: ") && found[0].ends_with("(in thousandths)"), "{found:?}");
    for (from, to, part) in [
        ("tenants:", "tenant:", "line 5: tenant: unknown field; did you mean tenants?"),
        ("borrowingLimit", "borrowLimit", "line 9: borrowLimit: unknown field; did you mean borrowingLimit?"),
        ("kind: Policy", "kind: Job", "line 2: kind: must be Policy"),
    ] {
        let found = policy_problems(&POLICY.replace(from, to));
        assert!(found[0].starts_with(part), "{found:?}");
    }
    assert!(parse_policy(b"", NOW_MS).is_err() && parse_policy(POLICY.repeat(2).as_bytes(), NOW_MS).is_err());
}

#[test]
fn one_group_needs_no_list() {
    let manifest = one(&job("  workers: 2\n  command: [run]\n  accelerators: h100:2\n  array: 20\n"));
    manifest.check().unwrap();
    assert_eq!(manifest.message.spec().groups.len(), 1);
    assert_eq!(manifest.message.spec().groups[0].workers, 2);
    assert_eq!(manifest.message.spec().array.as_ref().map(|array| array.size), Some(20));
    for (text, size, indices, throttle) in [
        ("0-99%10", 100, "", Some(10)),
        ("0-99:5,200", 0, "0-95:5,200", None),
        ("7-7", 0, "7", None),
        ("300%1", 300, "", Some(1)),
    ] {
        let manifest = one(&job(&format!("  command: [run]\n  array: {text}\n")));
        manifest.check().unwrap();
        let array = manifest.message.spec().array.clone().unwrap();
        assert_eq!((array.size, array.indices.as_str(), array.throttle), (size, indices, throttle), "{text}");
    }
    assert_eq!(one(&job("  command: [run]\n")).message.spec().groups[0].workers, 1);
}

#[test]
fn nice_values_whole_hosts_and_readiness_are_read() {
    let spec = |lines: &str| one(&job(&format!("  command: [run]\n{lines}"))).message.spec().clone();
    let asked = spec("  nice: -7\n  exclusive: true\n  readiness: {timeout: 10m}\n");
    assert_eq!((asked.nice, asked.exclusive), (-7, true));
    let timeout = asked.readiness.and_then(|rule| rule.timeout).map(|timeout| timeout.seconds);
    assert_eq!(timeout, Some(600));
    assert_eq!(spec("  scratch: 200Gi\n").scratch_bytes, 200 << 30);
    let none = spec("");
    assert_eq!((none.nice, none.exclusive, none.scratch_bytes, none.readiness), (0, false, 0, None));
    for (line, expected) in [
        ("nice: 101", "line 6: spec.nice: must be a whole number from -100 to 100"),
        ("nice: polite", "line 6: spec.nice: must be"),
        ("exclusive: sometimes", "line 6: spec.exclusive: must be true or false"),
        ("scratch: much", "line 6: spec.scratch: must be"),
        ("scratch: 0", "line 6: spec.scratch: must be above zero"),
        ("readiness: {}", "spec.readiness.timeout: must be given"),
        ("readiness: {timeout: 0s}", "spec.readiness.timeout: must be between"),
        ("licences: {MATLAB: 2}", "line 6: spec.licences.MATLAB: must be"),
        ("sharedMemory: 1Ki", "line 6: spec.sharedMemory: must be"),
        ("sharedMemory: 16Gi", "line 6: spec.sharedMemory: must be at most the memory of each worker"),
        ("sharedMemory: 1Gi\n  container: {image: a.b/c:1}", "one: `container.sharedMemory`"),
    ] {
        let found = problems(&job(&format!("  command: [run]\n  {line}\n")));
        assert!(found[0].contains(expected), "{line}: {found:?}");
    }
}

#[test]
fn several_documents_are_several_jobs() {
    let text = format!("{}---\n{}", job("  command: [a]\n"), job("  command: [b]\n"));
    let manifests = parse(text.as_bytes()).unwrap();
    assert_eq!(manifests.len(), 2);
    assert_eq!(manifests[1].message.spec().groups[0].command(), ["b"]);
}

#[test]
fn unknown_fields_are_named_with_line_and_neighbour() {
    assert_eq!(
        problems(&job("  comand: [run]\n")),
        ["line 5: comand: unknown field; did you mean command? (known here: tier, regions, groups, \
          runTimeLimit, stopGrace, workingDirectory, array, topology, \
          nodeSelector, nodes, tolerations, preemptible, after, notBefore, deadline, expectedRun, datasets, launch, \
          retry, checkpoint, notice, spareWorkers, preflight, workdir, booking, artifacts, ulimits, binding, shell, sharedMemory, capacity, affinity, licences, nice, exclusive, scratch, readiness, terminal, notify, parallel, workers, minWorkers, slice, command, environment, \
          accelerators, cpu, memory, container)"]
    );
    assert!(
        problems(&job("  groups:\n  - gpus: 3\n"))[0]
            .starts_with("line 6: gpus: unknown field; did you mean accelerators?")
    );
    assert!(problems("Kind: Job\n")[0].starts_with("line 1: Kind: unknown field; did you mean kind?"));
    assert!(
        problems(&job("  accelerators: {typ: x, count: 1}\n"))[0]
            .starts_with("line 5: typ: unknown field; did you mean type?")
    );
    // A file of the other kind is named as such, and not by its first field.
    assert_eq!(problems(POLICY), ["line 2: kind: must be Job, got \"Policy\""]);
    assert_eq!(policy_problems(&job("  {}\n")), ["line 2: kind: must be Policy, got \"Job\""]);
}

#[test]
fn every_mistake_is_listed_with_its_line() {
    let text = job(
        "  workers: many\n  command: python train.py\n  cpu: 0\n  memory: 4gigs\n  accelerators: h100\n  runTimeLimit: 90\n",
    );
    assert_eq!(
        problems(&text),
        [
            "line 5: spec.workers: must be a whole number from 1 to 16384, got \"many\"",
            "line 6: spec.command: must be a list of words, like [python, train.py]; no shell reads it",
            "line 9: spec.accelerators: must be a type and a count, like h100:4, h100|a100:1 or any:0.25, got \"h100\"",
            "line 7: spec.cpu: must be above zero; leave it out for one CPU",
            "line 8: spec.memory: must be memory like 4Gi, 512Mi or 64G (units: Ki, Mi, Gi, Ti, k, M, G, T), got \"4gigs\"",
            "line 10: spec.runTimeLimit: must be a duration like 90s, 2h or 1h30m (units: d, h, m, s, ms), got \"90\"",
        ]
    );
}

#[test]
fn an_image_is_read_and_its_mistakes_have_their_lines() {
    let manifest = one(&job(
        "  container:\n    image: localhost/train:1\n    pull: always\n    sharedMemory: 64Mi\n    credentials: muster-secret://registry\n    mounts:\n    - {source: /data, target: /mnt, readOnly: true}\n",
    ));
    manifest.check().unwrap();
    let expected = v1::ContainerRuntime {
        image: "localhost/train:1".into(),
        pull: v1::PullRule::Always.into(),
        mounts: vec![v1::ContainerMount { source: "/data".into(), target: "/mnt".into(), read_only: true }],
        shared_memory_bytes: 64 << 20,
        credentials: "registry".into(),
        ..Default::default()
    };
    assert_eq!(manifest.message.spec().groups[0].container(), Some(&expected));
    let text = "  container:\n    image: localhost/train:1\n    pull: often\n    mounts:\n    - {source: /a, target: /b, readOnly: maybe}\n";
    let found = problems(&job(text));
    assert!(
        found[0].starts_with("line 9: spec.container.mounts[0].readOnly: must be true or false"),
        "{found:?}"
    );
    assert!(
        found[1].starts_with("line 7: spec.container.pull: must be one of missing, always, never"),
        "{found:?}"
    );
    let text =
        "  command: [\"\"]\n  container:\n    image: train\n    mounts:\n    - {source: data, target: /b}\n";
    let mut found = problems(&job(text));
    found.sort();
    let begins = [
        "line 5: spec.command[0]: ",
        "line 7: spec.container.image: ",
        "line 9: spec.container.mounts[0].source: ",
    ];
    assert_eq!(found.len(), begins.len(), "{found:?}");
    for (found, begin) in found.iter().zip(begins) {
        assert!(found.starts_with(begin), "{found}");
    }
    let bare = "  container: {image: localhost/train:1, credentials: 'user:hunter2'}\n";
    let found = problems(&job(bare));
    assert!(found[0].contains("spec.container.credentials: must be a reference like muster-secret://NAME"));
    assert!(!found[0].contains("hunter2"), "{found:?}");
    let both = "  container: {image: localhost/train:1}\n  groups:\n  - {command: [a]}\n";
    assert!(problems(&job(both))[0].contains("spec.container: belongs into each of spec.groups"));
}

#[test]
fn the_servers_rules_speak_of_the_file() {
    let text = job(
        "  tier: urgent\n  workers: 0\n  command: [run]\n  environment:\n    A: b\n    MUSTER_X: y\n  stopGrace: 1d\n  array: 200000\n",
    );
    let mut found = problems(&text);
    found.sort();
    assert_eq!(
        found,
        [
            "line 10: spec.environment.MUSTER_X: MUSTER_ variables are set by Muster",
            "line 11: spec.stopGrace: must be between 0s and 10m, got 1d",
            "line 12: spec.array: must be between 1 and 100000, got 200000",
            "line 5: spec.tier: must be one of free, batch, standard, production, critical, got \"urgent\"",
            "line 6: spec.workers: must be between 1 and 16384, got 0",
        ]
    );
    let groups =
        job("  groups:\n  - workers: 1\n    command: [a]\n  - workers: 1\n    name: B\n    cpu: 9999999\n");
    let mut found = problems(&groups);
    found.sort();
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found[0].starts_with("line 10: spec.groups[1].cpu: must be between"), "{found:?}");
    assert!(found[3].starts_with("line 9: spec.groups[1].name: must be 1 to 63"), "{found:?}");
    assert!(found.iter().any(|p| p.contains("spec.groups[1].command")), "{found:?}");
}

#[test]
fn a_missing_name_points_to_the_option_and_the_option_helps() {
    let text = "apiVersion: muster.dev/v1\nkind: Job\nspec: {command: [run]}\n";
    assert_eq!(problems(text), ["line 1: metadata.name: must be given (or --name)"]);
    let mut manifest = one(text);
    let overrides = Overrides {
        name: Some("y".into()),
        tier: Some(PriorityTier::Free),
        regions: vec!["eu".into()],
        labels: vec![("team".into(), "b".into())],
        ..Overrides::default()
    };
    manifest.message.labels = [("team".into(), "a".into()), ("stage".into(), "train".into())].into();
    manifest.apply(&overrides);
    manifest.check().unwrap();
    assert_eq!((manifest.message.spec().tier(), manifest.message.spec().regions.len()), (v1::Tier::Free, 1));
    assert_eq!((manifest.message.labels["team"].as_str(), manifest.message.labels.len()), ("b", 2));
}

#[test]
fn what_is_no_job_is_said() {
    for (text, part) in [
        ("", "holds no job"),
        ("# nothing\n", "holds no job"),
        (
            "apiVersion: v1\nkind: Pod\nspec: {command: [a]}\n",
            "line 1: apiVersion: must be muster.dev/v1, got \"v1\"",
        ),
        ("kind: Job\napiVersion: muster.dev/v1\n", "spec: must be given"),
        ("- a\n- b\n", "line 1: must be a mapping (`name: value`), and not a list or a single value"),
        ("a: [", "line 1"),
        ("kind: Job\nkind: Job\n", "line 2: kind: is given twice"),
        ("spec: {regions: eu}", "must be a list, like [a, b]"),
        ("spec: {environment: {A: [b]}}", "must be a single value, and not a list"),
    ] {
        assert!(problems(text)[0].contains(part), "{text:?}: {:?}", problems(text));
    }
    for nothing in ["~", ""] {
        let text = job(&format!("  command: [a]\n  environment:\n    A: {nothing}\n    B: x\n"));
        assert!(problems(&text)[0].contains("must have a value; "), "{:?}", problems(&text));
    }
    let both = job("  groups: [{command: [a]}]\n  workers: 3\n");
    assert_eq!(
        problems(&both),
        ["line 6: spec.workers: belongs into each of spec.groups when there are groups"]
    );
    let latin = parse(b"kind: Job\nname: \xe9\n").unwrap_err();
    assert_eq!(latin.0[0].to_string(), "line 2: the file is not UTF-8 text");
    assert!(parse(&vec![b' '; FILE_BYTES_MAX + 1]).is_err());
}

#[test]
fn paths_of_a_batch_name_the_document() {
    assert_eq!(
        split_batch_path("jobs[3].spec.groups[0].workers"),
        Some((3, "job.spec.groups[0].workers".to_owned()))
    );
    for path in ["jobs", "jobs[", "jobs[x].a", "job.name", ""] {
        assert_eq!(split_batch_path(path), None);
    }
}

#[test]
fn hostile_yaml_ends() {
    let mut bomb = String::from("a: &a [x, x, x, x, x, x, x, x, x]\n");
    for (from, to) in "abcdefghi".chars().zip("bcdefghij".chars()) {
        bomb.push_str(&format!("{to}: &{to} [{}]\n", vec![format!("*{from}"); 9].join(", ")));
    }
    assert!(parse(bomb.as_bytes()).is_err());
    assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    assert!(parse("- ".repeat(100_000).as_bytes()).is_err());
    assert!(parse("---\n".repeat(100_000).as_bytes()).is_err());
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        if let Ok(manifests) = parse(&bytes) {
            for manifest in manifests {
                let _ = manifest.check();
            }
        }
        if let Ok(file) = parse_policy(&bytes, NOW_MS) {
            let _ = file.check();
        }
    }

    #[test]
    fn no_damage_to_a_policy_panics(at in 0usize..1_000, length in 0usize..40, put in "[\\PC\n ]{0,12}") {
        let mut bytes = POLICY.as_bytes().to_vec();
        let start = at.min(bytes.len());
        let end = (start + length).min(bytes.len());
        bytes.splice(start..end, put.bytes());
        if let Ok(file) = parse_policy(&bytes, NOW_MS) && let Err(error) = file.check() {
            prop_assert!(error.0.iter().all(|p| p.line.is_some()), "{error:?}");
        }
    }

    /// Cuts, doublings and strange bytes in the middle of something that is nearly right.
    #[test]
    fn no_damage_panics(at in 0usize..900, length in 0usize..40, put in "[\\PC\n ]{0,12}") {
        let mut bytes = FULL.as_bytes().to_vec();
        let start = at.min(bytes.len());
        let end = (start + length).min(bytes.len());
        bytes.splice(start..end, put.bytes());
        if let Ok(manifests) = parse(&bytes) {
            for manifest in manifests {
                if let Err(error) = manifest.check() {
                    prop_assert!(error.0.iter().all(|p| p.line.is_some()), "{error:?}");
                }
            }
        }
    }
}

#[test]
fn damaged_job_files_are_refused_with_their_place() {
    let seeds = [FULL.as_bytes().to_vec()];
    muster_fuzz::run(
        "manifest-job",
        &seeds,
        |_| {},
        |input| match super::parse(input, NOW_MS) {
            Ok(manifests) => manifests.iter().any(|manifest| manifest.check().is_ok()),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        },
    );
}
