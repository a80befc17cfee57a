//! What free devices are worth, and where one worker goes by it.
#![allow(clippy::unwrap_used, dead_code)]

#[path = "planner/support.rs"]
mod support;

use std::cell::RefCell;

use muster_journal::Decision;
use muster_planner::{Budget, Holds, Plan, Terms, Valuation, Verdict, plan};
use muster_state::FreeKey;
use muster_types::{AcceleratorRequest, Accelerators, DeviceAmount, JobSpec, NodeId};
use proptest::prelude::*;
use support::{Fleet, GIB, group, job_draft, name, node_draft};

fn fleet_of(nodes: usize, devices: u16) -> Fleet {
    let mut fleet = Fleet::new();
    for node in 0..nodes {
        let mut draft = node_draft(&format!("n{node:03}"));
        draft.accelerators = Some(Accelerators { kind: name("h100"), count: devices });
        fleet.add_node(draft);
    }
    fleet
}

fn one(amount: DeviceAmount, cpu_milli: u64) -> JobSpec {
    let mut group = group("w", 1, Some(AcceleratorRequest { choices: Vec::new(), amount }));
    group.request.cpu_milli = cpu_milli;
    job_draft(vec![group]).check().unwrap()
}

fn plan_by(fleet: &Fleet, spec: &JobSpec, valuation: Option<&RefCell<Valuation>>) -> Option<Plan> {
    let holds = Holds::new();
    let terms = Terms { valuation, ..fleet.terms(&holds, spec) };
    match plan(&fleet.state, spec, &terms, &mut Budget::new(1_000_000)) {
        Verdict::Fits(plan) => Some(plan),
        Verdict::Waits => None,
        Verdict::OutOfBudget => panic!("the budget is more than any test needs"),
    }
}

/// Submits a job, learns from it, and places it; the node when it fits.
fn start(fleet: &mut Fleet, spec: &JobSpec, valuation: &RefCell<Valuation>) -> Option<NodeId> {
    let job = fleet.submit(spec, 1_000);
    if valuation.borrow().is_stale(fleet.state.demand()) {
        *valuation.borrow_mut() = Valuation::learn(fleet.state.demand());
    }
    let workers = plan_by(fleet, spec, Some(valuation))?.workers;
    let node = workers[0].node;
    fleet.apply(Decision::GangPlaced { job, workers });
    Some(node)
}

fn free(idle: u16, shares: &[u16], cpu_milli: u64) -> FreeKey {
    let shares = shares.to_vec();
    FreeKey { idle, cpu_milli, memory_bytes: 512 * GIB, shares, is_whole: false, scratch_bytes: 0 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whole devices on hosts with CPUs and memory enough: the fullest host that holds the worker, and of
    /// those that are alike the first.
    #[test]
    fn whole_devices_go_by_best_fit(jobs in prop::collection::vec((1u16..=8, 1u64..=8), 1..60)) {
        let mut fleet = fleet_of(6, 8);
        let valuation = RefCell::default();
        for (devices, cpus) in jobs {
            let spec = one(DeviceAmount::Whole(devices), cpus * 1_000 * u64::from(devices));
            let rows = fleet.state.nodes().iter();
            let fitting = rows.filter(|(_, row)| row.free.devices.count() >= devices);
            let best = fitting.min_by_key(|(node, row)| (row.free.key(), **node)).map(|(node, _)| *node);
            prop_assert_eq!(start(&mut fleet, &spec, &valuation), best);
        }
    }

    /// The same demand and the same fleet: the same nodes. No place is one that the guard would refuse.
    #[test]
    fn the_same_from_the_same(jobs in prop::collection::vec((1u16..=12, 1u64..=24), 1..60)) {
        let run = || {
            let mut fleet = fleet_of(5, 4);
            let valuation = RefCell::default();
            let place = |(size, cpus): &(u16, u64)| {
                let amount = if *size <= 9 { DeviceAmount::Share(size * 100) } else { DeviceAmount::Whole(size - 9) };
                start(&mut fleet, &one(amount, cpus * 1_000), &valuation)
            };
            let nodes: Vec<_> = jobs.iter().map(place).collect();
            fleet.state.verify().unwrap();
            nodes
        };
        prop_assert_eq!(run(), run());
    }

    /// A worker is refused only where it fits nowhere.
    #[test]
    fn what_fits_is_placed(jobs in prop::collection::vec((1u16..=12, 1u64..=24), 1..80)) {
        let mut fleet = fleet_of(3, 4);
        let valuation = RefCell::default();
        for (size, cpus) in jobs {
            let amount = if size <= 9 { DeviceAmount::Share(size * 100) } else { DeviceAmount::Whole(size - 9) };
            let spec = one(amount, cpus * 1_000);
            let fits = plan_by(&fleet, &spec, None).is_some();
            prop_assert_eq!(start(&mut fleet, &spec, &valuation).is_some(), fits);
        }
    }
}

/// Where shares of 700 and 300 are asked for, a share closes the device that it fills.
#[test]
fn shares_close_devices() {
    let mut fleet = fleet_of(2, 4);
    let valuation = RefCell::default();
    for _ in 0..4 {
        start(&mut fleet, &one(DeviceAmount::Share(700), 1_000), &valuation).unwrap();
    }
    for _ in 0..4 {
        start(&mut fleet, &one(DeviceAmount::Share(300), 1_000), &valuation).unwrap();
    }
    let left: Vec<_> = fleet.state.nodes().iter().map(|(_, row)| row.free.key()).collect();
    let idle: Vec<_> = left.iter().map(|key| (key.idle, key.shares.len())).collect();
    assert_eq!(idle, [(0, 0), (4, 0)], "{left:?}");
}

/// What nobody asks for is lost; what is asked for is not.
#[test]
fn a_rest_that_nobody_can_use_is_lost() {
    let mut fleet = Fleet::new();
    for _ in 0..100 {
        fleet.submit(&one(DeviceAmount::Share(500), 4_096), 1_000);
    }
    let valuation = Valuation::learn(fleet.state.demand());
    let value = |key: FreeKey| valuation.value(&name("h100"), 4, &key);
    assert_eq!(value(free(0, &[500], 64_000)), 0);
    assert_eq!(value(free(0, &[400], 64_000)), 400 << 10);
    assert_eq!(value(free(0, &[900], 64_000)), 400 << 10);
    assert_eq!(value(free(2, &[], 64_000)), 0);
    // CPUs for one of two devices: the other is lost, and weighs half as much again.
    assert_eq!(value(free(2, &[], 8_192)), (1_000 << 10) + (500 << 10));
}

/// The node that is best is not open to the job: the next best.
#[test]
fn closed_nodes_are_passed_over() {
    let mut fleet = fleet_of(3, 4);
    let valuation = RefCell::default();
    let first = start(&mut fleet, &one(DeviceAmount::Share(300), 1_000), &valuation).unwrap();
    let mut draft = node_draft("open");
    draft.accelerators = Some(Accelerators { kind: name("h100"), count: 4 });
    draft.labels.insert(name("zone"), "a".into());
    let open = fleet.add_node(draft);
    let amount = DeviceAmount::Share(300);
    let mut draft = job_draft(vec![group("w", 1, Some(AcceleratorRequest { choices: Vec::new(), amount }))]);
    draft.node_selector.insert(name("zone"), ["a".to_string()].into());
    assert_eq!(start(&mut fleet, &draft.check().unwrap(), &valuation), Some(open));
    assert_eq!(start(&mut fleet, &one(amount, 1_000), &valuation), Some(first));
}

/// It is learnt again after 1, 2, 4 and so on requests, then after every 300.
#[test]
fn it_grows_stale_with_what_is_asked_for() {
    let mut fleet = Fleet::new();
    let mut valuation = Valuation::default();
    let mut learnt = Vec::new();
    for count in 1..=1_000 {
        fleet.submit(&one(DeviceAmount::Whole(1), 1_000), 1_000);
        if valuation.is_stale(fleet.state.demand()) {
            valuation = Valuation::learn(fleet.state.demand());
            learnt.push(count);
        }
    }
    assert_eq!(learnt, [1, 2, 4, 8, 16, 32, 64, 128, 256, 556, 856]);
    assert!(!valuation.is_stale(fleet.state.demand()));
}
