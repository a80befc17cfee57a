//! Scripts: who gets what and why. `UPDATE_EXPECT=1` writes what comes out; the run then fails on purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use muster_journal::WorkerSlot;
use muster_planner::{
    Budget, CapacityTimeline, Explanation, Hold, Holds, Lane, Plan, Terms, Verdict, could_ever, explain, plan,
};
use muster_state::PoolKey;
use muster_types::policy::{Dataset, PolicyDraft, Price, Transfer, Window, WindowPurpose, WindowScope};
use muster_types::tpu::{PodPosition, SliceRequest, SliceShape};
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, Accelerators, DeviceAmount, DeviceSet, JobId, JobSpec, Level,
    LogTime, Name, NodeExpression, Segment, Spread,
};

use crate::support::{Fleet, GIB, group, job_draft, name, node_draft};

struct Stage {
    fleet: Fleet,
    policy: PolicyDraft,
    holds: Holds,
    /// Quota by type.
    headroom: BTreeMap<String, u64>,
    own: BTreeMap<String, u64>,
    lanes: Vec<Lane>,
    jobs: BTreeMap<String, JobId>,
}

#[test]
fn scripts_come_out_as_written() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut files: Vec<_> =
        std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    assert!(!files.is_empty(), "there are scripts");
    let mut broken = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let played = play(&text);
        if played != text {
            if std::env::var_os("UPDATE_EXPECT").is_some() {
                std::fs::write(&path, &played).unwrap();
            }
            broken.push(format!("{}:\n{}", path.display(), difference(&text, &played)));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

fn difference(expected: &str, actual: &str) -> String {
    let mut out = String::new();
    for (number, pair) in expected.lines().zip(actual.lines()).enumerate() {
        if pair.0 != pair.1 {
            writeln!(out, "line {}:\n  expected {}\n  actual   {}", number + 1, pair.0, pair.1).unwrap();
            break;
        }
    }
    if out.is_empty() { "one is longer".to_string() } else { out }
}

/// The script with the outcomes that it really has.
fn play(text: &str) -> String {
    let mut stage = Stage {
        fleet: Fleet::new(),
        policy: PolicyDraft::default(),
        holds: Holds::new(),
        headroom: BTreeMap::new(),
        own: BTreeMap::new(),
        lanes: Vec::new(),
        jobs: BTreeMap::new(),
    };
    let mut out = String::new();
    for line in text.lines() {
        if line.is_empty() || line.starts_with('#') {
            writeln!(out, "{line}").unwrap();
        } else if let Some(command) = line.strip_prefix("> ") {
            writeln!(out, "{line}").unwrap();
            for answer in stage.command(command).lines() {
                writeln!(out, "{answer}").unwrap();
            }
        }
    }
    out
}

/// `key=value` words and bare words.
struct Words<'a> {
    bare: Vec<&'a str>,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    fn of(text: &'a str) -> Words<'a> {
        let mut words = Words { bare: Vec::new(), named: Vec::new() };
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some(pair) => words.named.push(pair),
                None => words.bare.push(word),
            }
        }
        words
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.named.iter().find(|(k, _)| *k == key).map(|(_, value)| *value)
    }

    fn number(&self, key: &str, default: u64) -> u64 {
        self.get(key).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{key}={text}")))
    }
}

fn time(text: &str) -> u64 {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[split..] {
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        other => panic!("no unit of time: {other:?} in {text:?}"),
    };
    text[..split].parse::<u64>().unwrap() * unit
}

fn show_time(ms: u64) -> String {
    if ms.is_multiple_of(3_600_000) { format!("{}h", ms / 3_600_000) } else { format!("{}s", ms / 1_000) }
}

/// `h100:8`, `h100@1000|a100@400:8`, `any:0.25`.
fn accelerators(text: &str) -> Option<AcceleratorRequest> {
    let (kinds, amount) = text.split_once(':')?;
    let amount = match amount.strip_prefix("0.") {
        Some(digits) => DeviceAmount::Share(format!("{digits:0<3}").parse().ok()?),
        None => DeviceAmount::Whole(amount.parse().ok()?),
    };
    let choice = |text: &str| {
        let (kind, throughput) = text.split_once('@').unwrap_or((text, "1000"));
        AcceleratorChoice { kind: name(kind), throughput_milli: throughput.parse().unwrap() }
    };
    let choices = if kinds == "any" { Vec::new() } else { kinds.split('|').map(choice).collect() };
    Some(AcceleratorRequest { choices, amount })
}

fn level(text: &str) -> Level {
    Level::parse(text).unwrap_or_else(|| panic!("no level: {text}"))
}

/// The job that words describe: `workers=4 h100:8 required=rack`; groups are separated by `+`.
fn job(text: &str) -> Result<JobSpec, String> {
    let mut groups = Vec::new();
    let mut draft = job_draft(Vec::new());
    for (number, part) in text.split(" + ").enumerate() {
        let words = Words::of(part);
        let wants = words.bare.iter().find_map(|word| accelerators(word));
        let workers = words.number("workers", 1) as u32;
        let mut of_group = group(&format!("g{number}"), workers, wants);
        of_group.workers_min = words.number("min", workers.into()) as u32;
        of_group.request.cpu_milli = words.number("cpu", 1) * 1_000;
        of_group.request.memory_bytes = words.number("mem", 1) * GIB;
        if let Some(slice) = words.get("slice") {
            let shape = SliceShape::parse(slice).unwrap();
            of_group.slice = Some(SliceRequest { shape, count: words.number("slices", 1) as u16 });
        }
        groups.push(of_group);
        let rule = &mut draft.topology;
        rule.required = words.get("required").map(level).or(rule.required);
        rule.preferred = words.get("preferred").map(level).or(rule.preferred);
        rule.balanced |= words.bare.contains(&"balanced");
        rule.segment_workers = words.number("segment", rule.segment_workers.into()) as u32;
        // `segments=rack:16,host:4`, from the outside in.
        for segment in words.get("segments").into_iter().flat_map(|text| text.split(',')) {
            let (at, workers) = segment.split_once(':').unwrap();
            rule.segments.push(Segment { level: level(at), workers: workers.parse().unwrap() });
        }
        if let Some((at, most)) = words.get("spread").and_then(|text| text.split_once(':')) {
            rule.spread = Some(Spread { level: level(at), workers_max: most.parse().unwrap() });
        }
        for (key, value) in &words.named {
            match *key {
                "regions" => draft.regions = value.split(',').map(name).collect(),
                "run" => draft.expected_run_ms = Some(time(value)),
                "data" => draft.datasets = value.split(',').map(name).collect(),
                "tolerate" => draft.tolerations = value.split(',').map(name).collect(),
                "select" => {
                    let (label, values) = value.split_once(':').unwrap();
                    let values: BTreeSet<String> = values.split('|').map(str::to_string).collect();
                    draft.node_selector.insert(name(label), values);
                }
                "where" => {
                    let tests = NodeExpression::parse_all(&value.replace('~', " ")).unwrap();
                    draft.nodes.get_or_insert_default().expressions.extend(tests);
                }
                "only" => draft.nodes.get_or_insert_default().only.extend(value.split(',').map(name)),
                "exclude" => draft.nodes.get_or_insert_default().exclude.extend(value.split(',').map(name)),
                _ => {}
            }
        }
    }
    draft.groups = groups;
    draft.check().map_err(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

impl Stage {
    fn command(&mut self, command: &str) -> String {
        let (verb, rest) = command.split_once(' ').unwrap_or((command, ""));
        match verb {
            "node" => self.nodes(rest),
            "policy" => self.set_policy(rest),
            "cordon" | "lose" => self.take_away(verb, rest),
            "hold" => self.hold(rest),
            "headroom" => {
                let words = Words::of(rest);
                self.headroom =
                    words.named.iter().map(|(k, v)| (k.to_string(), v.parse().unwrap())).collect();
                String::new()
            }
            // `own eu/c1=3`: how much of the owner's work is where.
            "own" => {
                let words = Words::of(rest);
                self.own = words.named.iter().map(|(k, v)| (k.to_string(), v.parse().unwrap())).collect();
                String::new()
            }
            // `lane h100=4,8@2h`: four devices now, eight in two hours.
            "lane" => {
                let words = Words::of(rest);
                let steps = |text: &str| {
                    text.split(',')
                        .map(|step| {
                            let (devices, at) = step.split_once('@').unwrap_or((step, "0h"));
                            (LogTime(time(at)), devices.parse::<u64>().unwrap() * 1_000)
                        })
                        .collect()
                };
                let lane = |(kind, text): &(&str, &str)| Lane {
                    region: name("eu"),
                    kind: name(kind),
                    steps: steps(text),
                };
                self.lanes = words.named.iter().map(lane).collect();
                String::new()
            }
            "use" => self.occupy(rest),
            "start" => {
                let (id, rest) = rest.split_once(' ').unwrap();
                self.start(id, rest)
            }
            "plan" => self.with_job(rest, |stage, spec| {
                stage.planned(spec).map_or_else(|why| why, |plan| stage.show(spec, &plan, rest))
            }),
            "score" => self.with_job(rest, |stage, spec| {
                stage.planned(spec).map_or_else(
                    |why| why,
                    |plan| {
                        format!("{}/{} on {}: {}", plan.region, plan.cluster, stage.kind(&plan), plan.score)
                    },
                )
            }),
            "why" => self.with_job(rest, |stage, spec| {
                show_explanation(
                    &stage.with_terms(spec, |terms| explain(&stage.fleet.state, spec, terms, None)),
                )
            }),
            "ever" => self.with_job(rest, |stage, spec| match could_ever(&stage.fleet.state, spec) {
                Ok(()) => "could fit".to_string(),
                Err(never) => never.to_string(),
            }),
            "when" => self.with_job(rest, |stage, spec| stage.when(spec, false)),
            "reserve" => {
                let spec = job(rest).unwrap();
                self.when(&spec, true)
            }
            other => panic!("no such command: {other}"),
        }
    }

    fn with_job(&mut self, text: &str, answer: impl FnOnce(&mut Stage, &JobSpec) -> String) -> String {
        match job(text) {
            Ok(spec) => answer(self, &spec),
            Err(why) => format!("refused: {why}"),
        }
    }

    /// `node a 1..18 h100:8 rack=r1`: nodes a01 to a18; `node a1 ...`: one.
    fn nodes(&mut self, text: &str) -> String {
        let words = Words::of(text);
        let has = words.bare.iter().find_map(|word| word.split_once(':'));
        let names: Vec<String> = match words.bare.iter().find_map(|word| word.split_once("..")) {
            Some((from, to)) => {
                let width = to.len();
                let numbers = from.parse::<u32>().unwrap()..=to.parse().unwrap();
                numbers.map(|number| format!("{}{number:0width$}", words.bare[0])).collect()
            }
            None => vec![words.bare[0].to_string()],
        };
        for (number, node) in names.iter().enumerate() {
            let mut draft = node_draft(node);
            draft.accelerators =
                has.map(|(kind, count)| Accelerators { kind: name(kind), count: count.parse().unwrap() });
            for (field, key) in [
                (&mut draft.region, "region"),
                (&mut draft.cluster, "cluster"),
                (&mut draft.block, "block"),
                (&mut draft.rack, "rack"),
            ] {
                if let Some(value) = words.get(key) {
                    *field = name(value);
                }
            }
            draft.cpu_milli = words.number("cpu", 64) * 1_000;
            draft.memory_bytes = words.number("mem", 512) * GIB;
            for (_, label) in words.named.iter().filter(|(key, _)| *key == "label") {
                let (key, value) = label.split_once(':').unwrap();
                draft.labels.insert(name(key), value.to_string());
            }
            if let Some(taint) = words.get("taint") {
                draft.taints.insert(name(taint));
            }
            if let Some(pod) = words.get("grid") {
                // Hosts of 2x2 chips, row by row.
                let (x, y) = (number % 8 * 2, number / 8 * 2);
                draft.pod = Some(PodPosition { pod: name(pod), cube: 0, at: [x as u8, y as u8, 0] });
            }
            self.fleet.add_node(draft);
        }
        String::new()
    }

    fn set_policy(&mut self, text: &str) -> String {
        for (key, value) in Words::of(text).named {
            let mut parts = value.split(':');
            let mut next = || parts.next().unwrap();
            let weights = &mut self.policy.weights;
            match key {
                "packing" => weights.packing = value.parse().unwrap(),
                "throughput" => weights.throughput = value.parse().unwrap(),
                "cost" => weights.cost = value.parse().unwrap(),
                "data" => weights.data = value.parse().unwrap(),
                "topology" => weights.topology = value.parse().unwrap(),
                "spread" => weights.spread = value.parse().unwrap(),
                "price" => {
                    let (kind, region, dollars) =
                        (name(next()), name(next()), next().parse::<u64>().unwrap());
                    self.policy.prices.push(Price::new(kind, Some(region), dollars * 1_000_000));
                }
                "dataset" => {
                    let (set, gib, regions) = (name(next()), next().parse::<u64>().unwrap(), next());
                    let regions = regions.split(',').map(name).collect();
                    self.policy.datasets.insert(set, Dataset { bytes: gib * GIB, regions });
                }
                "transfer" => {
                    let (cents, gib) = (next().parse::<u64>().unwrap(), next().parse::<u64>().unwrap());
                    self.policy.transfers.push(Transfer {
                        from: None,
                        to: None,
                        micro_dollars_per_gib: cents * 10_000,
                        bytes_per_second: gib * GIB,
                    });
                }
                "spare" => {
                    self.policy.spare_hosts_per_rack.insert(name(next()), next().parse().unwrap());
                }
                "maintenance" => {
                    let (rack, from, until) = (name(next()), time(next()), time(next()));
                    self.policy.windows.push(Window {
                        name: rack.clone(),
                        from: LogTime(from),
                        until: LogTime(until),
                        scope: WindowScope { rack: Some(rack), ..WindowScope::default() },
                        purpose: WindowPurpose::Maintenance,
                    });
                }
                other => panic!("no such policy: {other}"),
            }
        }
        self.fleet.set_policy(self.policy.clone());
        String::new()
    }

    fn take_away(&mut self, verb: &str, text: &str) -> String {
        for node in text.split_whitespace() {
            let id = self.fleet.state.node_named(&name(node)).unwrap();
            if verb == "lose" { self.fleet.lose(id) } else { self.fleet.cordon(id, true) }
        }
        String::new()
    }

    /// `hold a1 a2 from=1h spare=4`.
    fn hold(&mut self, text: &str) -> String {
        let words = Words::of(text);
        for node in &words.bare {
            let id = self.fleet.state.node_named(&name(node)).unwrap();
            let hold = Hold {
                from: LogTime(words.get("from").map_or(0, time)),
                spare_devices: words.number("spare", 0) as u16,
                spare_cpu_milli: 64_000,
                spare_memory_bytes: 512 * GIB,
                spare_scratch_bytes: 512 * GIB,
            };
            self.holds.add(id, hold);
        }
        String::new()
    }

    /// `use a1:3 a2:8 for=1h`: gangs of one worker that hold the lowest idle devices of their node.
    fn occupy(&mut self, text: &str) -> String {
        let words = Words::of(text);
        for word in &words.bare {
            let (node, count) = word.split_once(':').unwrap();
            let id = self.fleet.state.node_named(&name(node)).unwrap();
            let row = self.fleet.state.node(id).unwrap().clone();
            let kind = row.spec.accelerators.clone().unwrap().kind;
            let spec = job(&format!("{kind}:{count}")).unwrap();
            let devices: DeviceSet = row.free.pick(&spec.groups[0].request).unwrap();
            let slot = WorkerSlot { node: id, incarnation: row.incarnation, devices };
            let run_ms = words.get("for").map_or(3_600_000, time);
            let started = self.fleet.start(&spec, run_ms, vec![slot]).unwrap();
            self.jobs.insert(word.to_string(), started);
        }
        String::new()
    }

    fn with_terms<T>(&self, spec: &JobSpec, answer: impl FnOnce(&Terms<'_>) -> T) -> T {
        let room_milli = |key: &PoolKey| {
            let kind = key.kind.as_ref().map_or("", |kind| kind.as_str());
            self.headroom.get(kind).map_or(u64::MAX, |devices| devices * 1_000)
        };
        let own_work = |region: &Name, cluster: &Name| {
            let here = self.own.get(&format!("{region}/{cluster}")).copied().unwrap_or(0);
            (here, self.own.values().sum())
        };
        let terms = self.fleet.terms(&self.holds, spec);
        answer(&Terms { room_milli: &room_milli, lanes: &self.lanes, own_work: &own_work, ..terms })
    }

    fn planned(&self, spec: &JobSpec) -> Result<Plan, String> {
        let mut budget = Budget::new(1_000_000);
        match self.with_terms(spec, |terms| plan(&self.fleet.state, spec, terms, &mut budget)) {
            Verdict::Fits(plan) => {
                let mut copy = self.fleet.clone();
                if let Err(error) = copy.start(spec, 1, plan.workers.clone()) {
                    panic!("the guard refuses a plan: {error:?} {plan:?}");
                }
                Ok(plan)
            }
            Verdict::Waits => Err("waits".to_string()),
            Verdict::OutOfBudget => Err("out of budget".to_string()),
        }
    }

    fn start(&mut self, id: &str, text: &str) -> String {
        let spec = job(text).unwrap();
        match self.planned(&spec) {
            Err(why) => why,
            Ok(plan) => {
                let shown = self.show(&spec, &plan, text);
                let run_ms = spec.expected_run_ms.unwrap_or(3_600_000);
                let started = self.fleet.start(&spec, run_ms, plan.workers).unwrap();
                self.jobs.insert(id.to_string(), started);
                shown
            }
        }
    }

    fn kind(&self, plan: &Plan) -> String {
        let row = self.fleet.state.node(plan.workers[0].node).unwrap();
        row.spec.accelerators.as_ref().map_or("plain hosts".to_string(), |has| has.kind.to_string())
    }

    /// By rank, or with `by=rack` the workers of each rack.
    fn show(&self, spec: &JobSpec, plan: &Plan, text: &str) -> String {
        let mut out = format!("{}/{}:", plan.region, plan.cluster);
        if plan.workers.len() < spec.worker_count() as usize {
            write!(out, " {} of {}:", plan.workers.len(), spec.worker_count()).unwrap();
        }
        let row = |slot: &WorkerSlot| self.fleet.state.node(slot.node).unwrap();
        if text.contains("by=rack") {
            let mut counts: Vec<(String, u32)> = Vec::new();
            for slot in &plan.workers {
                let rack = format!("{}/{}", row(slot).spec.block, row(slot).spec.rack);
                match counts.last_mut() {
                    Some((last, count)) if *last == rack => *count += 1,
                    _ => counts.push((rack, 1)),
                }
            }
            for (rack, count) in counts {
                write!(out, " {rack} x{count}").unwrap();
            }
            return out;
        }
        for slot in &plan.workers {
            let devices: Vec<String> = slot.devices.iter().map(|device| device.to_string()).collect();
            write!(out, " {}[{}]", row(slot).spec.name, devices.join(",")).unwrap();
        }
        out
    }

    fn when(&mut self, spec: &JobSpec, reserve: bool) -> String {
        let ends: Vec<(LogTime, JobId)> = self.fleet.state.ends(&name("eu"), &name("c1")).collect();
        let mut outlook = CapacityTimeline::new(&self.fleet.state, &name("eu"), &name("c1"), ends);
        for (node, holds) in self.holds.nodes() {
            assert!(!holds.is_empty(), "{node:?} has holds");
        }
        let found = self.with_terms(spec, |terms| outlook.earliest(spec, terms, &mut Budget::new(100_000)));
        let Some(start) = found else { return "never by what is expected".to_string() };
        let mut out = format!("at {} on", show_time(start.at.0));
        for (node, workers) in &start.nodes {
            write!(out, " {} x{workers}", self.fleet.state.node(*node).unwrap().spec.name).unwrap();
        }
        if reserve {
            outlook.reserve(JobId(1), &start, None);
            outlook.add_holds(&mut self.holds, |_| true);
            for (node, _) in &start.nodes {
                for hold in self.holds.get(*node) {
                    let node = &self.fleet.state.node(*node).unwrap().spec.name;
                    let (from, spare) = (show_time(hold.from.0), hold.spare_devices);
                    write!(out, "\nfrom {from} {node} has {spare} devices to spare").unwrap();
                }
            }
        }
        out
    }
}

fn show_explanation(explanation: &Explanation) -> String {
    let mut out = format!("{}: {explanation}\n", explanation.code());
    for report in &explanation.clusters {
        let nodes = &report.nodes;
        let parts = [
            (nodes.not_up, "not up"),
            (nodes.cordoned, "cordoned"),
            (nodes.wrong_labels, "without its labels"),
            (nodes.wrong_purchase, "of other purchases"),
            (nodes.tainted, "tainted"),
            (nodes.not_isolated, "not isolated"),
            (nodes.too_small, "too small"),
            (nodes.in_window, "in a window"),
            (nodes.kept_away, "kept away"),
            (nodes.held, "held"),
            (nodes.full, "full"),
            (nodes.fit, "fit"),
        ];
        let sum: u32 = parts.iter().map(|(count, _)| count).sum();
        assert_eq!(sum, nodes.registered, "every node is counted once");
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        let kind = report.kind.as_ref().map_or("plain", |kind| kind.as_str());
        writeln!(
            out,
            "  {}/{} {kind}: {} nodes ({}); {} workers fit, {} in one domain",
            report.region,
            report.cluster,
            nodes.registered,
            parts.join(", "),
            report.workers_that_fit,
            report.largest_domain_workers
        )
        .unwrap();
        for (condition, nodes) in report.unmet.iter().filter(|(_, nodes)| *nodes > 0) {
            writeln!(out, "    {nodes} do not meet {condition}").unwrap();
        }
    }
    for help in &explanation.would_help {
        writeln!(out, "  would help: {help}").unwrap();
    }
    out
}
