//! Properties over small random fleets.

use std::collections::{BTreeMap, BTreeSet};

use muster_planner::{
    Budget, CapacityTimeline, Hold, Holds, Terms, Verdict, WaitReason, could_ever, explain, plan,
};
use muster_state::{Forecast, Free, State};
use muster_types::policy::PolicyDraft;
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, Accelerators, DeviceAmount, DeviceSet, JobDraft, JobId, JobSpec,
    LabelTest, Level, LogTime, Name, NodeExpression, NodeId, NodeRequirements, NodeSpec, Segment, Spread,
};
use proptest::prelude::*;

use crate::support::{Fleet, GIB, group, job_draft, name, node_draft};

const KINDS: [&str; 2] = ["h100", "a100"];

/// A host: cluster, block, rack, type, devices, CPUs, devices in use, how long, whether it is tainted.
type Host = (u8, u8, u8, usize, u16, u64, u16, u64, bool);

fn hosts() -> impl Strategy<Value = Vec<Host>> {
    let host = (
        0..2u8,
        0..2u8,
        0..3u8,
        0..KINDS.len(),
        prop::sample::select(vec![2u16, 4, 8]),
        4..20u64,
        0..9u16,
        1..5u64,
        prop::bool::weighted(0.1),
    );
    prop::collection::vec(host, 1..12)
}

fn fleet(hosts: &[Host]) -> Fleet {
    let mut fleet = Fleet::new();
    for (number, (cluster, block, rack, kind, devices, cpus, used, hours, tainted)) in
        hosts.iter().enumerate()
    {
        let mut draft = node_draft(&format!("n{number}"));
        draft.cluster = name(&format!("c{cluster}"));
        draft.block = name(&format!("b{block}"));
        draft.rack = name(&format!("r{rack}"));
        draft.accelerators = Some(Accelerators { kind: name(KINDS[*kind]), count: *devices });
        draft.cpu_milli = cpus * 1_000;
        if let Some(zone) = ["a", "b", "c"].get(number % 4) {
            draft.labels.insert(name("zone"), (*zone).to_owned());
        }
        let gib = if number % 5 == 0 { "many".to_owned() } else { (number * 100).to_string() };
        draft.labels.insert(name("gib"), gib);
        if *tainted {
            draft.taints.insert(name("broken"));
        }
        let node = fleet.add_node(draft);
        let row = fleet.state.node(node).unwrap().clone();
        let used = (*used).min(*devices);
        if used > 0 && !*tainted {
            let spec = draft_of(1, KINDS[*kind], DeviceAmount::Whole(used)).check().unwrap();
            let devices = row.free.pick(&spec.groups[0].request).unwrap();
            let slot = muster_journal::WorkerSlot { node, incarnation: row.incarnation, devices };
            fleet.start(&spec, hours * 3_600_000, vec![slot]).unwrap();
        }
    }
    fleet
}

fn draft_of(workers: u32, kinds: &str, amount: DeviceAmount) -> JobDraft {
    let choice = |kind: &str| AcceleratorChoice { kind: name(kind), throughput_milli: 1_000 };
    let choices = kinds.split('|').map(choice).collect();
    job_draft(vec![group("main", workers, Some(AcceleratorRequest { choices, amount }))])
}

fn level() -> impl Strategy<Value = Option<Level>> {
    prop::sample::select(vec![None, None, Some(Level::Block), Some(Level::Rack), Some(Level::Host)])
}

/// A gang of one group of whole devices, with a required level.
fn simple_job() -> impl Strategy<Value = JobSpec> {
    let kinds = prop::sample::select(vec!["h100", "a100", "h100|a100"]);
    (1..12u32, 1..5u16, kinds, level(), 1..4u64).prop_map(|(workers, count, kinds, required, cpus)| {
        let mut draft = draft_of(workers, kinds, DeviceAmount::Whole(count));
        draft.groups[0].request.cpu_milli = cpus * 1_000;
        draft.topology.required = required;
        draft.check().unwrap()
    })
}

/// Segments of some of the levels, each a small multiple of the one in it.
fn segments() -> impl Strategy<Value = Vec<Segment>> {
    (1..8usize, prop::array::uniform3(1..3u32)).prop_map(|(levels, factors)| {
        let mut segments = Vec::new();
        let mut workers = 1;
        for place in (0..3usize).rev().filter(|place| levels >> place & 1 == 1) {
            workers *= factors[place];
            segments.insert(0, Segment { level: Level::ALL[place], workers });
        }
        segments
    })
}

/// A gang of one group of at most six workers in segments, in the short form where that says the same.
fn segmented_job() -> impl Strategy<Value = JobSpec> {
    let kinds = prop::sample::select(vec!["h100", "a100", "h100|a100"]);
    (segments(), 1..7u32, 1..5u16, kinds, level(), 1..4u64).prop_filter_map(
        "a small job",
        |(segments, count, devices, kinds, required, cpus)| {
            let workers = segments[0].workers * count;
            let mut draft = draft_of(workers, kinds, DeviceAmount::Whole(devices));
            draft.groups[0].request.cpu_milli = cpus * 1_000;
            draft.topology.required = required;
            match segments.as_slice() {
                [Segment { level: Level::Rack, workers }] if count % 2 == 0 => {
                    draft.topology.segment_workers = *workers;
                }
                _ => draft.topology.segments = segments,
            }
            draft.check().ok().filter(|_| workers <= 6)
        },
    )
}

/// The domain of a node at a level, in words.
fn domain_of(node: &NodeSpec, level: Level) -> Vec<String> {
    let mut domain = vec![node.block.to_string()];
    if level >= Level::Rack {
        domain.push(node.rack.to_string());
    }
    if level == Level::Host {
        domain.push(node.name.to_string());
    }
    domain
}

/// A host as the search for a placement sees it, with what it has left.
struct Seat<'a> {
    node: &'a NodeSpec,
    left: u32,
}

/// Whether the ranks from this one on have places, each on any host that the segments of the ranks before leave it:
/// every way is tried.
fn has_places(seats: &mut [Seat<'_>], spec: &JobSpec, workers: u32, taken: &mut Vec<usize>) -> bool {
    let rank = taken.len() as u32;
    if rank == workers {
        return true;
    }
    let rule = &spec.topology;
    for at in 0..seats.len() {
        let is_with = |other: usize, level: Level| {
            domain_of(seats[at].node, level) == domain_of(seats[other].node, level)
        };
        let before = taken.last().copied();
        let keeps = |level: Level| before.is_none_or(|before| is_with(before, level));
        let stays =
            rule.all_segments().all(|segment| rank.is_multiple_of(segment.workers) || keeps(segment.level));
        if seats[at].left == 0 || !stays || !rule.required.is_none_or(keeps) {
            continue;
        }
        seats[at].left -= 1;
        taken.push(at);
        let found = has_places(seats, spec, workers, taken);
        taken.pop();
        seats[at].left += 1;
        if found {
            return true;
        }
    }
    false
}

/// The most workers of a gang, in whole segments, that have places in one cluster on one type: by trying every way.
fn most_in_segments(state: &State, spec: &JobSpec) -> u32 {
    let request = &spec.groups[0].request;
    let accelerators = request.accelerators.as_ref().unwrap();
    let mut sites: BTreeMap<(Name, Name), Vec<Seat<'_>>> = BTreeMap::new();
    for (_, row) in state.nodes().iter() {
        let has = row.spec.accelerators.as_ref().unwrap();
        if !row.is_placeable() || !row.spec.taints.is_empty() || !accelerators.accepts(&has.kind) {
            continue;
        }
        let by_devices = u32::from(row.free.devices.count() / accelerators.amount.devices());
        let by_cpu = (row.free.cpu_milli / request.cpu_milli) as u32;
        let by_memory = (row.free.memory_bytes / GIB) as u32;
        let left = by_devices.min(by_cpu).min(by_memory);
        let site = (row.spec.cluster.clone(), has.kind.clone());
        sites.entry(site).or_default().push(Seat { node: &row.spec, left });
    }
    let unit = spec.topology.all_segments().map(|segment| segment.workers).max().unwrap();
    let mut most = 0;
    for seats in sites.values_mut() {
        let sizes = (1..=spec.worker_count() / unit).map(|units| units * unit);
        for workers in sizes.filter(|workers| *workers > most).collect::<Vec<_>>() {
            if has_places(seats, spec, workers, &mut Vec::new()) {
                most = workers;
            }
        }
    }
    most
}

/// Any kind of gang that is a valid job.
fn any_job() -> impl Strategy<Value = JobSpec> {
    let amount = prop_oneof![
        (1..5u16).prop_map(DeviceAmount::Whole),
        (1..9u16).prop_map(|t| DeviceAmount::Share(t * 100))
    ];
    let spread = prop::option::of((0..3usize, 1..4u32));
    let nested = prop::option::weighted(0.3, segments());
    let rule = (level(), level(), any::<bool>(), 0..4u32, spread, nested);
    let groups = (1..10u32, amount, prop::option::of(1..4u32), prop::option::of(1..4u32), 1..10u32);
    (groups, rule, prop::sample::select(vec!["h100", "a100", "h100|a100"])).prop_filter_map(
        "a valid job",
        |(
            (workers, amount, plain, second, least),
            (required, preferred, balanced, segment, spread, nested),
            kinds,
        )| {
            let mut draft = draft_of(workers, kinds, amount);
            draft.groups[0].workers_min = least.min(workers);
            if let Some(plain) = plain {
                draft.groups.push(group("plain", plain, None));
            }
            if let Some(second) = second {
                let mut more = draft.groups[0].clone();
                more.name = name("second");
                (more.workers, more.workers_min) = (second, second.min(least));
                draft.groups.push(more);
            }
            let rule = &mut draft.topology;
            rule.required = required;
            rule.preferred = preferred.filter(|level| required.is_none_or(|required| *level > required));
            rule.balanced = balanced && spread.is_none();
            rule.segments = nested.filter(|_| spread.is_none()).unwrap_or_default();
            rule.segment_workers = if spread.is_some() || !rule.segments.is_empty() { 0 } else { segment };
            rule.spread = spread.map(|(at, workers_max)| Spread { level: Level::ALL[at], workers_max });
            draft.check().ok()
        },
    )
}

/// What a job asks of its nodes: some of what is generated selects none of them.
fn nodes_asked() -> impl Strategy<Value = NodeRequirements> {
    let label = prop::sample::select(vec!["zone", "zone", "gib", "none"]).prop_map(name);
    let value = prop::sample::select(vec!["a", "b", "c", "many", "100"]).prop_map(str::to_owned);
    let values = || prop::collection::btree_set(value.clone(), 1..4);
    let bound = || prop::sample::select(vec![i64::MIN, -1, 0, 150, 400, i64::MAX]);
    let test = prop_oneof![
        3 => values().prop_map(LabelTest::In),
        3 => values().prop_map(LabelTest::NotIn),
        1 => Just(LabelTest::Exists),
        1 => Just(LabelTest::DoesNotExist),
        1 => bound().prop_map(LabelTest::Greater),
        1 => bound().prop_map(LabelTest::Less),
    ];
    let expression = (label, test).prop_map(|(label, test)| NodeExpression { label, test });
    let numbers = || prop_oneof![Just(Vec::new()), prop::collection::vec(0..14usize, 1..8)];
    (prop::collection::vec(expression, 0..3), numbers(), numbers()).prop_map(
        |(expressions, only, exclude)| {
            let names =
                |numbers: Vec<usize>| numbers.into_iter().map(|number| name(&format!("n{number}"))).collect();
            let mut asked = NodeRequirements { expressions, only: names(only), exclude: names(exclude) };
            asked.exclude.retain(|name| !asked.only.contains(name));
            asked
        },
    )
}

/// Whether a node is what is asked for, without the code that is tested.
fn is_asked_for(node: &NodeSpec, asked: &NodeRequirements) -> bool {
    let is_this = |name: &Name| name.as_str() == node.name.as_str();
    let is_named = asked.only.is_empty() || asked.only.iter().any(is_this);
    if !is_named || asked.exclude.iter().any(is_this) {
        return false;
    }
    asked.expressions.iter().all(|expression| {
        let mut labels = node.labels.iter();
        let value = labels.find(|(label, _)| **label == expression.label).map(|(_, value)| value.clone());
        let number = value.as_ref().and_then(|value| value.parse::<i128>().ok());
        match (&expression.test, value) {
            (LabelTest::In(values), Some(value)) => values.iter().any(|other| *other == value),
            (LabelTest::In(_), None) => false,
            (LabelTest::NotIn(values), Some(value)) => values.iter().all(|other| *other != value),
            (LabelTest::NotIn(_), None) => true,
            (LabelTest::Exists, value) => value.is_some(),
            (LabelTest::DoesNotExist, value) => value.is_none(),
            (LabelTest::Greater(bound), _) => number.is_some_and(|number| number > i128::from(*bound)),
            (LabelTest::Less(bound), _) => number.is_some_and(|number| number < i128::from(*bound)),
        }
    })
}

fn asking(spec: &JobSpec, asked: NodeRequirements) -> JobSpec {
    let mut draft = spec.clone().into_draft();
    draft.nodes = Some(Box::new(asked)).filter(|asked| !asked.is_empty());
    draft.check().unwrap()
}

/// How many workers each domain that the job may be in holds, counted without the planner.
fn capacities(state: &State, spec: &JobSpec) -> Vec<u32> {
    let request = &spec.groups[0].request;
    let accelerators = request.accelerators.as_ref().unwrap();
    let mut capacities: BTreeMap<Vec<String>, u32> = BTreeMap::new();
    for (id, row) in state.nodes().iter() {
        let has = row.spec.accelerators.as_ref().unwrap();
        if !row.is_placeable() || !row.spec.taints.is_empty() || !accelerators.accepts(&has.kind) {
            continue;
        }
        let node = &row.spec;
        if spec.nodes.as_ref().is_some_and(|asked| !is_asked_for(node, asked)) {
            continue;
        }
        let mut domain = vec![node.cluster.to_string(), has.kind.to_string()];
        match spec.topology.required {
            None => {}
            Some(Level::Block) => domain.push(node.block.to_string()),
            Some(Level::Rack) => domain.extend([node.block.to_string(), node.rack.to_string()]),
            Some(Level::Host) => domain.push(format!("{id:?}")),
        }
        let by_devices = u32::from(row.free.devices.count() / accelerators.amount.devices());
        let by_cpu = (row.free.cpu_milli / request.cpu_milli) as u32;
        let by_memory = (row.free.memory_bytes / GIB) as u32;
        *capacities.entry(domain).or_default() += by_devices.min(by_cpu).min(by_memory);
    }
    capacities.into_values().collect()
}

fn with_least(spec: &JobSpec, least: u32) -> JobSpec {
    let mut draft = spec.clone().into_draft();
    draft.groups[0].workers_min = least.min(draft.groups[0].workers);
    draft.check().unwrap()
}

/// Registered hosts of a type and those of them that are up and in use, by region, cluster, block and rack.
fn hosts_in_use(state: &State, kind: &Name) -> BTreeMap<[Name; 4], (u32, u32)> {
    let mut racks: BTreeMap<[Name; 4], (u32, u32)> = BTreeMap::new();
    for (_, row) in state.nodes().iter() {
        let node = &row.spec;
        if node.accelerators.as_ref().is_some_and(|has| has.kind == *kind) {
            let rack = [&node.region, &node.cluster, &node.block, &node.rack].map(Name::clone);
            let counts = racks.entry(rack).or_default();
            counts.0 += 1;
            let holds_work = row.free != Free::all_of(node) || !row.promised.is_empty();
            counts.1 += u32::from(row.is_placeable() && holds_work);
        }
    }
    racks
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_guard_takes_every_plan(
        hosts in hosts(),
        jobs in prop::collection::vec(any_job(), 1..6),
        spare in 0..4u16,
    ) {
        let mut fleet = fleet(&hosts);
        let mut policy = PolicyDraft::default();
        policy.spare_hosts_per_rack.insert(name(KINDS[0]), spare);
        fleet.set_policy(policy);
        let before = hosts_in_use(&fleet.state, &name(KINDS[0]));
        for spec in jobs {
            if let Some(plan) = fleet.plan(&spec) {
                let least = spec.worker_count_min() as usize;
                prop_assert!((least..=spec.worker_count() as usize).contains(&plan.workers.len()));
                prop_assert_eq!(could_ever(&fleet.state, &spec), Ok(()), "it fits now, so it can");
                let placed = fleet.start(&spec, 1_000, plan.workers.clone());
                prop_assert!(placed.is_ok(), "{:?}: {:?} {:?}", placed, spec, plan);
            }
        }
        // No matter who asked: what is kept free of each rack is free, unless it was in use before.
        for (rack, (nodes, in_use)) in hosts_in_use(&fleet.state, &name(KINDS[0])) {
            let most = nodes.saturating_sub(u32::from(spare)).max(before[&rack].1);
            prop_assert!(in_use <= most, "{:?}: {} of {} hosts in use, {} spare", rack, in_use, nodes, spare);
        }
    }

    #[test]
    fn a_gang_fits_where_counting_says_so(hosts in hosts(), spec in simple_job()) {
        let fleet = fleet(&hosts);
        let most = capacities(&fleet.state, &spec).into_iter().max().unwrap_or(0);
        let plan = fleet.plan(&spec);
        prop_assert_eq!(plan.is_some(), most >= spec.worker_count(), "{} of {:?}", most, spec);
        let elastic = with_least(&spec, 1);
        let workers = fleet.plan(&elastic).map_or(0, |plan| plan.workers.len() as u32);
        prop_assert_eq!(workers, most.min(spec.worker_count()));
    }

    /// The planner finds a place for segments within segments exactly where trying every way finds one, and as many
    /// workers of an elastic gang.
    #[test]
    fn a_gang_in_segments_fits_where_trying_every_way_says_so(hosts in hosts(), spec in segmented_job()) {
        let fleet = fleet(&hosts[..hosts.len().min(7)]);
        let most = most_in_segments(&fleet.state, &spec);
        let plan = fleet.plan(&spec);
        prop_assert_eq!(plan.is_some(), most == spec.worker_count(), "{} of {:?}", most, spec);
        if plan.is_some() {
            prop_assert_eq!(could_ever(&fleet.state, &spec), Ok(()), "it fits now, so it can");
        }
        let unit = spec.topology.all_segments().map(|segment| segment.workers).max().unwrap();
        let workers = fleet.plan(&with_least(&spec, unit)).map_or(0, |plan| plan.workers.len() as u32);
        prop_assert_eq!(workers, most);
    }

    /// An elastic gang of several groups gets a size of its list at which it would fit as a fixed gang, all workers where all
    /// fit, and the fewest where only those do.
    #[test]
    fn groups_of_an_elastic_gang_shrink_together(
        hosts in hosts(),
        groups in prop::collection::vec((1..8u32, 1..8u32, 1..3u16), 2..4),
        unit in 0..3u32,
    ) {
        let fleet = fleet(&hosts);
        let mut draft = draft_of(1, "h100", DeviceAmount::Whole(1));
        let like = draft.groups.remove(0);
        for (number, (workers, least, devices)) in groups.into_iter().enumerate() {
            let mut group = like.clone();
            group.name = name(&format!("g{number}"));
            (group.workers, group.workers_min) = (workers, least.min(workers));
            if let Some(accelerators) = &mut group.request.accelerators {
                accelerators.amount = DeviceAmount::Whole(devices);
            }
            draft.groups.push(group);
        }
        draft.topology.segment_workers = unit;
        let Ok(spec) = draft.clone().check() else { return Ok(()) };
        let fixed = |step: u32| {
            let mut draft = draft.clone();
            for (group, workers) in draft.groups.iter_mut().zip(spec.sizes_at(step)) {
                (group.workers, group.workers_min) = (workers, workers);
            }
            draft.check().ok()
        };
        let fits = |step: u32| fixed(step).is_some_and(|fixed| fleet.plan(&fixed).is_some());
        match fleet.plan(&spec) {
            Some(plan) => {
                let step = spec.step_of(plan.workers.len() as u32);
                prop_assert!(step.is_some_and(fits), "{:?} of {:?}", step, spec);
                prop_assert!(step == Some(spec.size_steps()) || !fits(spec.size_steps()), "{:?}", spec);
                let placed = fleet.clone().start(&spec, 1_000, plan.workers.clone());
                prop_assert!(placed.is_ok(), "{:?}: {:?} {:?}", placed, spec, plan);
            }
            None => prop_assert!(!fits(0), "{:?}", spec),
        }
    }

    /// Whatever else the job asks for: the ranks of a segment are in one domain of its level.
    #[test]
    fn each_segment_lies_in_one_domain_of_its_level(
        hosts in hosts(),
        jobs in prop::collection::vec(any_job(), 1..5),
        segmented in segmented_job(),
    ) {
        let mut fleet = fleet(&hosts);
        for spec in jobs.into_iter().chain([segmented]) {
            let Some(plan) = fleet.plan(&spec) else { continue };
            for segment in spec.topology.all_segments() {
                for ranks in plan.workers.chunks(segment.workers as usize) {
                    let node = |slot: &muster_journal::WorkerSlot| &fleet.state.node(slot.node).unwrap().spec;
                    let domains: Vec<_> = ranks.iter().map(|slot| domain_of(node(slot), segment.level)).collect();
                    prop_assert!(domains.windows(2).all(|pair| pair[0] == pair[1]), "{:?}: {:?}", spec, domains);
                    prop_assert_eq!(ranks.len() as u32, segment.workers, "of {:?}", spec);
                }
            }
            fleet.start(&spec, 1_000, plan.workers).unwrap();
        }
    }

    #[test]
    fn a_gang_fits_on_the_nodes_that_it_asks_for(hosts in hosts(), spec in simple_job(), asked in nodes_asked()) {
        let fleet = fleet(&hosts);
        let spec = asking(&spec, asked);
        let most = capacities(&fleet.state, &spec).into_iter().max().unwrap_or(0);
        prop_assert_eq!(fleet.plan(&spec).is_some(), most >= spec.worker_count(), "{} of {:?}", most, spec);
        let workers = fleet.plan(&with_least(&spec, 1)).map_or(0, |plan| plan.workers.len() as u32);
        prop_assert_eq!(workers, most.min(spec.worker_count()));
    }

    /// Neither the planner nor the guard has a worker on a node that its job refuses.
    #[test]
    fn no_worker_is_on_a_node_that_its_job_refuses(
        hosts in hosts(),
        jobs in prop::collection::vec((any_job(), nodes_asked()), 1..6),
    ) {
        let mut fleet = fleet(&hosts);
        for (spec, asked) in jobs {
            let asking = asking(&spec, asked.clone());
            let refuses = |node: NodeId| !is_asked_for(&fleet.state.node(node).unwrap().spec, &asked);
            if let Some(plan) = fleet.plan(&spec)
                && plan.workers.iter().any(|slot| refuses(slot.node))
            {
                let placed = fleet.start(&asking, 1_000, plan.workers.clone());
                prop_assert!(placed.is_err(), "{:?}: {:?}", asking, plan);
            }
            if let Some(plan) = fleet.plan(&asking) {
                let node = |slot: &muster_journal::WorkerSlot| fleet.state.node(slot.node).unwrap();
                let refused = plan.workers.iter().find(|slot| !is_asked_for(&node(slot).spec, &asked));
                prop_assert!(refused.is_none(), "{:?}: {:?}", asking, refused);
                prop_assert_eq!(could_ever(&fleet.state, &asking), Ok(()), "it fits now, so it can");
                let placed = fleet.start(&asking, 1_000, plan.workers.clone());
                prop_assert!(placed.is_ok(), "{:?}: {:?} {:?}", placed, asking, plan);
            }
        }
    }

    #[test]
    fn an_explanation_agrees_with_the_plan(hosts in hosts(), spec in any_job(), asked in prop::option::of(nodes_asked())) {
        let fleet = fleet(&hosts);
        let spec = asking(&spec, asked.unwrap_or_default());
        let holds = Holds::new();
        let explanation = explain(&fleet.state, &spec, &fleet.terms(&holds, &spec), None);
        prop_assert_eq!(explanation.reason == WaitReason::InLine, fleet.plan(&spec).is_some());
        for report in &explanation.clusters {
            let n = &report.nodes;
            let sum = n.not_up + n.cordoned + n.wrong_labels + n.wrong_purchase + n.tainted + n.not_isolated + n.too_small + n.in_window + n.kept_away + n.held + n.full + n.fit;
            prop_assert_eq!(sum, n.registered);
            let most = report.unmet.iter().map(|(_, nodes)| *nodes).max().unwrap_or(0);
            prop_assert!(n.wrong_labels <= n.registered && most <= n.registered);
            prop_assert!(n.wrong_labels <= report.unmet.iter().map(|(_, nodes)| *nodes).sum::<u32>());
        }
        if explanation.reason == WaitReason::NoClusterLargeEnough {
            prop_assert!(could_ever(&fleet.state, &spec).is_err());
        }
    }

    #[test]
    fn an_outlook_is_what_comes(hosts in hosts(), spec in simple_job()) {
        let mut fleet = fleet(&hosts);
        fleet.time = LogTime(1);
        let holds = Holds::new();
        let ends: Vec<(LogTime, JobId)> = all_ends(&fleet.state);
        let mut first: Option<LogTime> = None;
        for cluster in ["c0", "c1"] {
            let outlook =
                CapacityTimeline::new(&fleet.state, &name("eu"), &name(cluster), ends.iter().copied());
            let start = outlook.earliest(&spec, &fleet.terms(&holds, &spec), &mut Budget::new(100_000));
            if let Some(start) = start {
                first = Some(first.map_or(start.at, |at| at.min(start.at)));
                prop_assert_eq!(start.nodes.iter().map(|(_, n)| n).sum::<u32>(), spec.worker_count());
            }
        }
        // The times at which something changes, one after the other.
        let mut forecast = Forecast::new(&fleet.state);
        let mut ends: Vec<_> = ends.into_iter().peekable().collect();
        ends.sort();
        let most = |state: &State| capacities(state, &spec).into_iter().max().unwrap_or(0);
        let fits = |state: &State| most(state) >= spec.worker_count();
        let mut expected = fits(&forecast).then_some(LogTime(1));
        let mut at = 0;
        while expected.is_none() && at < ends.len() {
            let time = ends[at].0;
            while at < ends.len() && ends[at].0 == time {
                forecast.end(ends[at].1);
                at += 1;
            }
            expected = fits(&forecast).then_some(time);
        }
        prop_assert_eq!(first, expected);
    }

    #[test]
    fn an_outlook_at_other_times_is_as_if_made_anew(
        hosts in hosts(),
        spec in simple_job(),
        shifts in prop::collection::vec(0..5u64, 8),
    ) {
        let fleet = fleet(&hosts);
        let holds = Holds::new();
        let ends: Vec<(LogTime, JobId)> = all_ends(&fleet.state);
        let jobs = ends.iter().map(|(_, job)| *job);
        let others: Vec<(LogTime, JobId)> =
            jobs.zip(shifts.iter().cycle()).map(|(job, shift)| (LogTime(1_000 * (1 + shift)), job)).collect();
        for cluster in ["c0", "c1"] {
            let made = |ends: &[(LogTime, JobId)]| {
                CapacityTimeline::new(&fleet.state, &name("eu"), &name(cluster), ends.iter().copied())
            };
            let (again, anew) = (made(&ends).retimed(others.iter().copied()), made(&others));
            prop_assert_eq!(again.visits(), anew.visits());
            let start = |outlook: &CapacityTimeline| {
                outlook.earliest(&spec, &fleet.terms(&holds, &spec), &mut Budget::new(100_000))
            };
            prop_assert_eq!(start(&again), start(&anew));
        }
    }

    #[test]
    fn the_future_of_some_nodes_is_that_of_the_cluster(
        hosts in hosts(),
        first in simple_job(),
        second in simple_job(),
        until in prop::option::of(1..6u64),
    ) {
        let fleet = fleet(&hosts);
        let none = Holds::new();
        let ends: Vec<(LogTime, JobId)> = all_ends(&fleet.state);
        let (region, cluster) = (name("eu"), name("c0"));
        let mut whole = CapacityTimeline::new(&fleet.state, &region, &cluster, ends.iter().copied());
        let mut nodes: BTreeSet<NodeId> = BTreeSet::new();
        let mut starts = Vec::new();
        for (owner, spec) in [(JobId(1), &first), (JobId(2), &second)] {
            let found = whole.earliest(spec, &fleet.terms(&none, spec), &mut Budget::new(100_000));
            let Some(start) = found else { continue };
            nodes.extend(start.nodes.iter().map(|(node, _)| *node));
            let until = until.map(|ms| start.at.plus_ms(ms * 1_000));
            let again = whole.again(&start);
            whole.reserve(owner, &start, until);
            starts.push((owner, start, until, again));
        }
        let there: BTreeSet<JobId> = nodes.iter().flat_map(|node| fleet.state.gangs_on(*node)).collect();
        let of_them = ends.iter().copied().filter(|(_, job)| there.contains(job));
        let mut part = CapacityTimeline::of_nodes(&fleet.state, (&region, &cluster), &nodes, of_them);
        for (owner, start, until, again) in &starts {
            prop_assert_eq!(part.again(start), *again);
            part.reserve(*owner, start, *until);
        }
        let kept = |outlook: &CapacityTimeline| {
            let holds = outlook.holds();
            holds.nodes().map(|(node, holds)| (node, holds.to_vec())).collect::<Vec<_>>()
        };
        prop_assert_eq!(kept(&part), kept(&whole));
        prop_assert!(part.visits() <= whole.visits());
        // What begins on one of them is no surprise to the timeline that was told of it, and what ends is none to any.
        prop_assert!(part.is_covered(&fleet.state));
        let mut ended = Forecast::new(&fleet.state);
        ends.iter().for_each(|(_, job)| ended.end(*job));
        prop_assert!(part.is_covered(&ended));
        let free_device = |node: &NodeId| {
            let row = fleet.state.node(*node)?;
            Some((*node, row.incarnation, row.free.pick(&first.groups[0].request)?))
        };
        if let Some((node, incarnation, devices)) = nodes.iter().find_map(free_device) {
            let slot = muster_journal::WorkerSlot { node, incarnation, devices };
            let mut one = first.clone().into_draft();
            (one.groups[0].workers, one.groups[0].workers_min) = (1, 1);
            one.topology.required = None;
            let one = one.check().unwrap();
            let mut later = fleet.clone();
            if later.start(&one, 5_000, vec![slot]).is_ok() {
                prop_assert!(!part.is_covered(&later.state));
                let mut told = part.clone();
                prop_assert!(told.begin(&one, &[slot], LogTime(5_000)));
                prop_assert!(told.is_covered(&later.state));
            }
        }
        // A gang on none of these nodes makes no difference, and is no reason to make it again.
        let other = fleet.state.nodes().iter().map(|(id, _)| *id).find(|id| !nodes.contains(id));
        if let Some(node) = other {
            let incarnation = fleet.state.node(node).map_or(0, |row| row.incarnation);
            let slot = muster_journal::WorkerSlot { node, incarnation, devices: DeviceSet::EMPTY };
            let before = part.visits();
            let one = draft_of(1, "h100", DeviceAmount::Whole(1)).check().unwrap();
            prop_assert!(part.begin(&one, &[slot], LogTime(5_000)));
            prop_assert_eq!(part.visits(), before);
        }
    }

    #[test]
    fn what_is_reserved_is_left_alone(hosts in hosts(), first in simple_job(), second in simple_job()) {
        let fleet = fleet(&hosts);
        let none = Holds::new();
        let ends: Vec<(LogTime, JobId)> = all_ends(&fleet.state);
        let mut outlook = CapacityTimeline::new(&fleet.state, &name("eu"), &name("c0"), ends.iter().copied());
        let Some(start) = outlook.earliest(&first, &fleet.terms(&none, &first), &mut Budget::new(100_000)) else {
            return Ok(());
        };
        outlook.reserve(JobId(1), &start, None);
        let holds = outlook.holds();
        // Another gang starts now, for ever; the one before still fits when its time comes.
        let terms = Terms { run_ms: u64::MAX / 2, ..fleet.terms(&holds, &second) };
        let mut forecast = Forecast::new(&fleet.state);
        if let Verdict::Fits(plan) = plan(&fleet.state, &second, &terms, &mut Budget::new(100_000)) {
            forecast.begin(&second, &plan.workers);
        }
        for (time, job) in ends {
            if time <= start.at {
                forecast.end(job);
            }
        }
        let most = capacities(&forecast, &first).into_iter().max().unwrap_or(0);
        prop_assert!(most >= first.worker_count(), "{} of {}", most, first.worker_count());
    }
}

/// 10,000 hosts in racks of 16 and blocks of 32 racks, half of them in use.
fn large() -> Fleet {
    let mut fleet = Fleet::new();
    for number in 0..10_000u32 {
        let mut draft = node_draft(&format!("n{number:05}"));
        draft.rack = name(&format!("r{:03}", number / 16));
        draft.block = name(&format!("b{:02}", number / 512));
        draft.accelerators = Some(Accelerators { kind: name("h100"), count: 8 });
        fleet.add_node(draft);
    }
    for number in (0..10_000u32).filter(|number| number / 512 % 2 == 1) {
        let node = fleet.state.node_named(&name(&format!("n{number:05}"))).unwrap();
        let spec = draft_of(1, "h100", DeviceAmount::Whole(4)).check().unwrap();
        let row = fleet.state.node(node).unwrap();
        let devices = row.free.pick(&spec.groups[0].request).unwrap();
        let slot = muster_journal::WorkerSlot { node, incarnation: row.incarnation, devices };
        fleet.start(&spec, 3_600_000 + u64::from(number), vec![slot]).unwrap();
    }
    fleet
}

/// Work is bounded by what is looked at, whatever the machine.
#[test]
fn a_large_fleet_costs_few_visits() {
    let fleet = large();
    let holds = Holds::new();
    let visits = |spec: &JobSpec| {
        let mut budget = Budget::new(1_000_000);
        let begun = std::time::Instant::now();
        let verdict = plan(&fleet.state, spec, &fleet.terms(&holds, spec), &mut budget);
        println!("{:?} for {} workers {:?}", begun.elapsed(), spec.worker_count(), spec.topology);
        (matches!(verdict, Verdict::Fits(_)), 1_000_000 - budget.left())
    };
    let mut draft = draft_of(512, "h100", DeviceAmount::Whole(8));
    let (fits, cost) = visits(&draft.clone().check().unwrap());
    assert!(fits && cost < 2_000, "{cost} visits for 512 hosts anywhere");
    draft.topology.required = Some(Level::Block);
    let (fits, cost) = visits(&draft.clone().check().unwrap());
    assert!(fits && cost < 3_000, "{cost} visits for 512 hosts in one block");
    draft.topology.balanced = true;
    let (fits, cost) = visits(&draft.clone().check().unwrap());
    assert!(fits && cost < 3_000, "{cost} visits for 512 hosts balanced in one block");
    draft.groups[0].workers = 513;
    draft.groups[0].workers_min = 513;
    let (fits, cost) = visits(&draft.clone().check().unwrap());
    assert!(!fits && cost < 3_000, "{cost} visits for one host too many");
    let (fits, cost) = visits(&draft_of(1, "h100", DeviceAmount::Whole(1)).check().unwrap());
    assert!(fits && cost < 10, "{cost} visits for one device");
    let mut named = draft_of(2, "h100", DeviceAmount::Whole(8));
    let only = ["n00003", "n09999", "n00300"].map(name).into();
    named.nodes = Some(Box::new(NodeRequirements { only, ..NodeRequirements::default() }));
    let (fits, cost) = visits(&named.check().unwrap());
    assert!(fits && cost < 10, "{cost} visits for hosts by name");
    let (fits, cost) = visits(&draft_of(1, "h100", DeviceAmount::Whole(16)).check().unwrap());
    assert!(!fits && cost < 10, "{cost} visits for a host that is not there");
    let waits = draft_of(9_000, "h100", DeviceAmount::Whole(8)).check().unwrap();
    let (fits, cost) = visits(&waits);
    assert!(!fits && cost < 10, "{cost} visits for more than there is");

    let begun = std::time::Instant::now();
    let explanation = explain(&fleet.state, &waits, &fleet.terms(&holds, &waits), None);
    println!("{:?} for {explanation}", begun.elapsed());
    assert_eq!(explanation.clusters[0].nodes.registered, 10_000);

    let begun = std::time::Instant::now();
    let mut outlook = CapacityTimeline::new(&fleet.state, &name("eu"), &name("c1"), all_ends(&fleet.state));
    println!("{:?} to make an outlook", begun.elapsed());
    let begun = std::time::Instant::now();
    let start = outlook
        .earliest(&waits, &fleet.terms(&holds, &waits), &mut Budget::new(100_000))
        .expect("all of it ends");
    println!("{:?} to find {}", begun.elapsed(), start.at);
    let begun = std::time::Instant::now();
    outlook.reserve(JobId(1), &start, None);
    let reserved = outlook.holds();
    println!("{:?} to reserve", begun.elapsed());
    assert_eq!(start.nodes.len(), 9_000);
    assert_eq!(reserved.get(start.nodes[0].0).len(), 1);
}

#[test]
fn the_least_of_several_holds_counts() {
    let mut fleet = Fleet::new();
    let mut draft = node_draft("a");
    draft.accelerators = Some(Accelerators { kind: name("h100"), count: 8 });
    let node = fleet.add_node(draft);
    let mut holds = Holds::new();
    let hold = |from: u64, spare_devices: u16| Hold {
        from: LogTime(from),
        spare_devices,
        spare_cpu_milli: 64_000,
        spare_memory_bytes: 512 * GIB,
        spare_scratch_bytes: 512 * GIB,
    };
    holds.add(node, hold(3_000, 6));
    holds.add(node, hold(6_000, 2));
    let fits = |count: u16, run_ms: u64| {
        let spec = draft_of(1, "h100", DeviceAmount::Whole(count)).check().unwrap();
        let terms = Terms { run_ms, ..fleet.terms(&holds, &spec) };
        matches!(plan(&fleet.state, &spec, &terms, &mut Budget::new(100)), Verdict::Fits(_))
    };
    assert!(fits(8, 3_000), "over when the first hold begins");
    assert!(fits(6, 6_000) && !fits(7, 6_000));
    assert!(fits(2, 6_001) && !fits(3, 6_001));
    assert_eq!(holds.get(NodeId(node.0 + 1)), &[]);
}

/// Everything that is expected to end, whatever cluster it is in.
fn all_ends(state: &muster_state::State) -> Vec<(LogTime, JobId)> {
    let mut ends = Vec::new();
    let mut seen = None;
    for (key, _) in state.pools() {
        let place = (&key.region, &key.cluster);
        if seen != Some(place) {
            ends.extend(state.ends(place.0, place.1));
            seen = Some(place);
        }
    }
    ends.sort_unstable();
    ends
}
