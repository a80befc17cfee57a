//! The capacity timeline against brute force: slices by their shape, quota by its lanes.

use std::collections::BTreeMap;

use muster_planner::{Budget, CapacityTimeline, Holds, Lane, SliceVerdict, Terms, find_slices};
use muster_types::tpu::{Generation, PodPosition, SliceRequest, SliceShape};
use muster_types::{AcceleratorRequest, Accelerators, JobId, JobSpec, LogTime, NodeId};
use proptest::prelude::*;

use crate::support::{Fleet, group, job_draft, name, node_draft};

const HOUR_MS: u64 = 3_600_000;

fn whole_hosts(workers: u32, kind: &str, count: u16, slice: Option<SliceRequest>) -> JobSpec {
    let request = AcceleratorRequest::from(Accelerators { kind: name(kind), count });
    let mut of_group = group("g0", workers, Some(request));
    of_group.slice = slice;
    let mut draft = job_draft(vec![of_group]);
    draft.expected_run_ms = Some(HOUR_MS);
    draft.check().unwrap()
}

/// A host that is in use until that hour.
fn occupy(fleet: &mut Fleet, node: NodeId, kind: &str, count: u16, hours: u64) {
    let row = fleet.state.node(node).unwrap().clone();
    let spec = whole_hosts(1, kind, count, None);
    let devices = row.free.pick(&spec.groups[0].request).unwrap();
    let slot = muster_journal::WorkerSlot { node, incarnation: row.incarnation, devices };
    fleet.start(&spec, hours * HOUR_MS, vec![slot]).unwrap();
}

fn ends(fleet: &Fleet) -> Vec<(LogTime, JobId)> {
    fleet.state.ends(&name("eu"), &name("c1")).collect()
}

/// The ends by hour: a gang that was placed at a moment ends that many hours later.
fn hour(at: LogTime) -> u64 {
    at.0 / HOUR_MS
}

/// What comes back to a host at one time is looked at once, and paid for as if each gang was looked at.
#[test]
fn gangs_that_end_together_are_paid_for_one_by_one() {
    let mut fleet = Fleet::new();
    let mut draft = node_draft("n1");
    draft.accelerators = Some(Accelerators { kind: name("h100"), count: 8 });
    let node = fleet.add_node(draft);
    for _ in 0..2 {
        occupy(&mut fleet, node, "h100", 4, 1);
    }
    let jobs: Vec<JobId> = ends(&fleet).into_iter().map(|(_, job)| job).collect();
    assert_eq!(jobs.len(), 2);
    let (first, second) = (LogTime(100 * HOUR_MS), LogTime(101 * HOUR_MS));
    let outlook = |times: [LogTime; 2]| {
        let ends = times.into_iter().zip(jobs.iter().copied());
        CapacityTimeline::new(&fleet.state, &name("eu"), &name("c1"), ends)
    };
    let (together, apart) = (outlook([first, first]), outlook([first, second]));
    assert_eq!(together.visits(), apart.visits());
    let spec = whole_hosts(1, "h100", 8, None);
    let holds = Holds::new();
    let starts = [together, apart].map(|outlook| {
        let start = outlook.earliest(&spec, &fleet.terms(&holds, &spec), &mut Budget::new(u64::MAX));
        start.map(|start| start.at)
    });
    assert_eq!(starts, [Some(first), Some(second)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A slice starts when hosts that form it are free, not when as many are, and keeps those.
    #[test]
    fn a_slice_is_reserved_on_hosts_that_form_it(
        busy in prop::collection::vec(0..6u64, 64),
        shape in prop::sample::select(vec!["2x4", "4x4", "4x8", "8x8", "8x16"]),
    ) {
        let mut fleet = Fleet::new();
        let mut hosts: BTreeMap<PodPosition, (NodeId, u64)> = BTreeMap::new();
        for (number, hours) in busy.iter().enumerate() {
            let mut draft = node_draft(&format!("t{number:02}"));
            draft.accelerators = Some(Accelerators { kind: name("v5e"), count: 4 });
            let at = [number % 8 * 2, number / 8 * 2, 0].map(|place| u8::try_from(place).unwrap());
            let position = PodPosition { pod: name("pod1"), cube: 0, at };
            draft.pod = Some(position.clone());
            let node = fleet.add_node(draft);
            if *hours > 0 {
                occupy(&mut fleet, node, "v5e", 4, *hours);
            }
            hosts.insert(position, (node, *hours));
        }
        let shape = SliceShape::parse(shape).unwrap();
        let request = SliceRequest { shape, count: 1 };
        let workers = request.workers(4).unwrap();
        let spec = whole_hosts(workers, "v5e", 4, Some(request));
        let outlook = CapacityTimeline::new(&fleet.state, &name("eu"), &name("c1"), ends(&fleet));
        let holds = Holds::new();
        let start = outlook.earliest(&spec, &fleet.terms(&holds, &spec), &mut Budget::new(u64::MAX));
        let start = start.expect("in the end everything is free");

        let fits = |free: &BTreeMap<PodPosition, NodeId>| {
            let found = find_slices(Generation::V5e, &request, 4, free, &mut Budget::new(1_000_000));
            matches!(found, SliceVerdict::Fits(_))
        };
        let free_at = |hour: u64| {
            let free = hosts.iter().filter(|(_, (_, until))| *until <= hour);
            free.map(|(position, (node, _))| (position.clone(), *node)).collect::<BTreeMap<_, _>>()
        };
        let first = (0..6).find(|hour| fits(&free_at(*hour))).unwrap();
        prop_assert_eq!(hour(start.at), first);
        let kept: BTreeMap<PodPosition, NodeId> = hosts
            .iter()
            .filter(|(_, (node, _))| start.nodes.iter().any(|(kept, _)| kept == node))
            .map(|(position, (node, _))| (position.clone(), *node))
            .collect();
        prop_assert_eq!(kept.len() as u32, workers);
        prop_assert!(fits(&kept), "{:?} do not form {}", kept.keys().collect::<Vec<_>>(), shape);
    }

    /// With quota as a separate resource, the start is the first hour from which on there are hosts, and
    /// there is quota until the gang ends.
    #[test]
    fn a_start_is_when_hosts_and_quota_are_there(
        busy in prop::collection::vec(0..6u64, 1..8),
        steps in prop::collection::btree_map(0..8u64, 0..9u64, 1..6),
        wanted in 1..5u32,
        hours in 1..4u64,
    ) {
        let mut fleet = Fleet::new();
        for (number, hours) in busy.iter().enumerate() {
            let mut draft = node_draft(&format!("n{number}"));
            draft.accelerators = Some(Accelerators { kind: name("h100"), count: 8 });
            let node = fleet.add_node(draft);
            if *hours > 0 {
                occupy(&mut fleet, node, "h100", 8, *hours);
            }
        }
        let spec = whole_hosts(wanted, "h100", 8, None);
        let steps: Vec<(u64, u64)> = std::iter::once((0, 2)).chain(steps.into_iter().filter(|s| s.0 > 0)).collect();
        let as_lane = |(hour, hosts): &(u64, u64)| (LogTime(hour * HOUR_MS), hosts * 8_000);
        let lane = Lane { region: name("eu"), kind: name("h100"), steps: steps.iter().map(as_lane).collect() };
        let outlook = CapacityTimeline::new(&fleet.state, &name("eu"), &name("c1"), ends(&fleet));
        let holds = Holds::new();
        let lanes = [lane];
        let terms = Terms { run_ms: hours * HOUR_MS, lanes: &lanes, ..fleet.terms(&holds, &spec) };
        let start = outlook.earliest(&spec, &terms, &mut Budget::new(u64::MAX));

        let quota_in = |hour: u64| steps.iter().rev().find(|(from, _)| *from <= hour).map_or(0, |(_, hosts)| *hosts);
        let has_hosts = |hour: u64| busy.iter().filter(|until| **until <= hour).count() as u64 >= u64::from(wanted);
        let has_quota = |hour: u64| (hour..hour + hours).all(|hour| quota_in(hour) >= u64::from(wanted));
        let first = (0..16).find(|hour| has_hosts(*hour) && has_quota(*hour));
        prop_assert_eq!(start.map(|start| hour(start.at)), first);
    }
}
