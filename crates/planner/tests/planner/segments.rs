//! Segments of elastic gangs of several groups, and what it costs to look for gangs that make place for segments.

use std::collections::BTreeSet;

use crate::support::*;
use muster_planner::{Budget, Holds, PreemptionCost, ReliefQuestion, ReliefVerdict, could_ever, relief};
use muster_types::{Accelerators, JobId, Level, NodeDraft, Segment, TopologyRule};

/// Racks of one host each, all in one block.
fn racks(count: usize, change: impl Fn(&mut NodeDraft)) -> Fleet {
    let mut fleet = Fleet::new();
    for n in 0..count {
        let mut draft = NodeDraft { rack: name(&format!("r{n}")), ..node_draft(&format!("n{n}")) };
        change(&mut draft);
        fleet.add_node(draft);
    }
    fleet
}

#[test]
fn groups_that_shrink_together_have_whole_segments_only_at_some_of_their_steps() {
    let h100 = |count| Accelerators { kind: name("h100"), count };
    let fleet_of = |count| racks(count, |draft| draft.accelerators = Some(h100(4)));
    let mut draft = job_draft(vec![group("a", 8, Some(h100(1).into())), group("b", 4, Some(h100(1).into()))]);
    (draft.groups[0].workers_min, draft.groups[1].workers_min) = (4, 1);
    draft.topology = TopologyRule { segment_workers: 4, ..TopologyRule::default() };
    let spec = draft.check().unwrap();
    // Of 5, 7, 9, 11 and 12 workers only the last are whole segments.
    let sizes: Vec<u32> = (0..=spec.size_steps()).map(|step| spec.workers_at(step)).collect();
    assert_eq!(sizes, [5, 7, 9, 11, 12]);
    assert!(could_ever(&fleet_of(2).state, &spec).is_err(), "eight workers are no size that it has");
    let three = fleet_of(3);
    assert!(could_ever(&three.state, &spec).is_ok());
    assert_eq!(three.plan(&spec).map(|plan| plan.workers.len()), Some(12));
}

#[test]
fn the_racks_that_are_listed_for_each_inner_segment_are_paid_for() {
    const RACKS: usize = 160;
    let mut fleet = racks(RACKS, |_| {});
    let mut low = job_draft(vec![group("low", 1, None)]);
    low.groups[0].request.cpu_milli = 64_000;
    let low = low.check().unwrap();
    for _ in 0..RACKS {
        let workers = fleet.plan(&low).expect("a host is free").workers;
        fleet.start(&low, 1_000, workers).expect("it fits");
    }
    let spent = |workers: u32| {
        let mut draft = job_draft(vec![group("main", workers, None)]);
        draft.groups[0].request.cpu_milli = 32_000;
        let segment = |level, workers| Segment { level, workers };
        draft.topology.segments = vec![segment(Level::Block, 8), segment(Level::Rack, 2)];
        let spec = draft.check().unwrap();
        let (holds, gone) = (Holds::new(), BTreeSet::new());
        let terms = fleet.terms(&holds, &spec);
        let question =
            ReliefQuestion { state: &fleet.state, gone: &gone, spec: &spec, terms: &terms, only: None };
        let mut harm_of = |_: JobId| Some(PreemptionCost::new(1, 1));
        let mut budget = Budget::new(1_000_000);
        match relief(question, &mut harm_of, &mut budget) {
            ReliefVerdict::Ways(ways) => assert_eq!(ways[0].stops.len() as u32, workers / 2),
            verdict => panic!("{verdict:?}"),
        }
        1_000_000 - budget.left()
    };
    // Each segment of a block has four of racks, and every host was looked at for the first.
    let (one, four) = (spent(8), spent(32));
    assert!(four >= one + 3 * 4 * RACKS as u64 / 8, "{one} for one segment, {four} for four");
}
