//! Domains that a gang has to be in or out of, and those that it would rather be in.

use std::collections::BTreeSet;

use crate::support::*;
use muster_planner::{
    AffinityTerm, Budget, CapacityTimeline, Holds, Plan, PreemptionCost, ReliefQuestion, ReliefVerdict,
    Terms, Verdict, WaitReason, explain, plan, relief,
};
use muster_types::{
    AffinityLevel, AffinityRule, JobId, JobSpec, Level, LogTime, NodeDraft, NodeId, TopologyRule,
};

/// Two racks of two hosts.
fn fleet() -> (Fleet, Vec<NodeId>) {
    let mut fleet = Fleet::new();
    let nodes = ["n1", "n2", "n3", "n4"].map(|node| {
        let rack = if matches!(node, "n1" | "n2") { "r1" } else { "r2" };
        fleet.add_node(NodeDraft { rack: name(rack), ..node_draft(node) })
    });
    (fleet, nodes.to_vec())
}

/// In or out of the domains of these nodes.
fn term<'a>(
    fleet: &'a Fleet,
    nodes: &[NodeId],
    (level, rule): (AffinityLevel, AffinityRule),
    weight: Option<u8>,
) -> AffinityTerm<'a> {
    let specs = nodes.iter().map(|node| &fleet.state.node(*node).expect("it is there").spec);
    let domains: BTreeSet<_> = specs.map(|spec| level.domain(spec)).collect();
    AffinityTerm { text: format!("near {nodes:?}"), level, rule, weight, domains }
}

fn planned(fleet: &Fleet, spec: &JobSpec, affinity: &[AffinityTerm<'_>]) -> Option<Plan> {
    let holds = Holds::new();
    let terms = Terms { affinity, ..fleet.terms(&holds, spec) };
    match plan(&fleet.state, spec, &terms, &mut Budget::new(1_000_000)) {
        Verdict::Fits(plan) => Some(plan),
        Verdict::Waits | Verdict::OutOfBudget => None,
    }
}

fn nodes_of(plan: &Plan) -> Vec<NodeId> {
    plan.workers.iter().map(|worker| worker.node).collect()
}

const RACK: (AffinityLevel, AffinityRule) = (AffinityLevel::Rack, AffinityRule::Together);
const HOST: (AffinityLevel, AffinityRule) = (AffinityLevel::Host, AffinityRule::Together);
const NOT_ON_HOST: (AffinityLevel, AffinityRule) = (AffinityLevel::Host, AffinityRule::Apart);

#[test]
fn a_gang_is_where_it_has_to_be_or_nowhere() {
    let (fleet, nodes) = fleet();
    let spec = job_draft(vec![group("main", 1, None)]).check().unwrap();
    let on = |terms: &[AffinityTerm<'_>]| planned(&fleet, &spec, terms).map(|plan| nodes_of(&plan));
    let rack = || term(&fleet, &nodes[2..3], RACK, None);
    assert!(on(&[rack()]).is_some_and(|on| on == nodes[2..3] || on == nodes[3..]));
    assert_eq!(on(&[rack(), term(&fleet, &nodes[2..3], NOT_ON_HOST, None)]), Some(vec![nodes[3]]));
    assert_eq!(on(&[term(&fleet, &[], RACK, None)]), None, "nothing is there to be with");
    assert!(on(&[term(&fleet, &[], NOT_ON_HOST, None)]).is_some(), "nothing is there to be away from");
    let holds = Holds::new();
    let nowhere = [term(&fleet, &nodes, NOT_ON_HOST, None)];
    let terms = Terms { affinity: &nowhere, ..fleet.terms(&holds, &spec) };
    let explanation = explain(&fleet.state, &spec, &terms, None);
    assert_eq!(explanation.reason, WaitReason::Affinity, "{}", explanation.sentence);
    assert!(explanation.sentence.contains("excludes 4 of 4 nodes"), "{}", explanation.sentence);
    assert_eq!(explanation.clusters[0].nodes.kept_away, 4);
    let timeline = CapacityTimeline::new(&fleet.state, &name("eu"), &name("c1"), []);
    assert!(timeline.earliest(&spec, &terms, &mut Budget::new(1_000_000)).is_none());
}

#[test]
fn a_start_is_foreseen_where_others_are_expected_to_be_gone() {
    let (fleet, nodes) = fleet();
    let spec = job_draft(vec![group("main", 1, None)]).check().unwrap();
    let holds = Holds::new();
    let nowhere = [term(&fleet, &nodes, NOT_ON_HOST, None)];
    let domain = AffinityLevel::Host.domain(&fleet.state.node(nodes[2]).expect("it is there").spec);
    let openings = [((AffinityLevel::Host, domain), LogTime(5_000))];
    let terms = Terms { affinity: &nowhere, openings: &openings, ..fleet.terms(&holds, &spec) };
    let timeline = CapacityTimeline::new(&fleet.state, &name("eu"), &name("c1"), []);
    let start = timeline.earliest(&spec, &terms, &mut Budget::new(1_000_000)).expect("one host opens");
    assert_eq!((start.at, start.nodes), (LogTime(5_000), vec![(nodes[2], 1)]));
}

#[test]
fn wishes_are_met_where_they_can_be_and_the_lightest_are_given_up_first() {
    let (fleet, nodes) = fleet();
    let spec = job_draft(vec![group("main", 1, None)]).check().unwrap();
    let on = |terms: &[AffinityTerm<'_>]| {
        nodes_of(&planned(&fleet, &spec, terms).expect("a wish keeps it from nothing"))
    };
    assert_eq!(on(&[term(&fleet, &nodes[3..], HOST, Some(1))]), nodes[3..]);
    let heavy = term(&fleet, &nodes[1..2], HOST, Some(60));
    let light = term(&fleet, &nodes[3..], HOST, Some(40));
    assert_eq!(on(&[light.clone(), heavy.clone()]), nodes[1..2]);
    let plan = planned(&fleet, &spec, &[light, heavy]).expect("it fits");
    let part = plan.score.parts.iter().find(|part| part.name == "affinity").expect("a term of the score");
    assert_eq!((part.weight, part.value_milli), (100, 600));
    let all_closed = [term(&fleet, &nodes, NOT_ON_HOST, Some(100))];
    assert_eq!(on(&all_closed).len(), 1, "nothing else is there");
    // A gang without wishes has no such term.
    let plain = planned(&fleet, &spec, &[]).expect("it fits");
    assert!(plain.score.parts.iter().all(|part| part.name != "affinity"));
}

#[test]
fn a_gang_that_is_smaller_than_counters_allow_has_its_wishes_met() {
    let (fleet, nodes) = fleet();
    let mut draft = job_draft(vec![group("main", 10, None)]);
    // One fits on a host, and so two in a rack, whatever the number that is asked for.
    (draft.groups[0].workers_min, draft.groups[0].request.cpu_milli) = (1, 40_000);
    draft.topology = TopologyRule { required: Some(Level::Rack), ..TopologyRule::default() };
    let spec = draft.check().unwrap();
    for rack in [&nodes[..2], &nodes[2..]] {
        let plan = planned(&fleet, &spec, &[term(&fleet, &rack[..1], RACK, Some(1))]).expect("it fits");
        assert_eq!(nodes_of(&plan), rack);
    }
    // It is not smaller for a wish.
    let plan = planned(&fleet, &spec, &[term(&fleet, &nodes[2..3], HOST, Some(100))]).expect("it fits");
    assert_eq!(plan.workers.len(), 2);
}

#[test]
fn a_wish_that_is_too_much_work_keeps_no_gang_from_starting() {
    let mut fleet = Fleet::new();
    let nodes: Vec<NodeId> = (10..74).map(|n| fleet.add_node(node_draft(&format!("n{n}")))).collect();
    let spec = job_draft(vec![group("main", 1, None)]).check().unwrap();
    let holds = Holds::new();
    let wishes = [term(&fleet, &nodes[63..], HOST, Some(100))];
    let terms = Terms { affinity: &wishes, ..fleet.terms(&holds, &spec) };
    let on = |visits| match plan(&fleet.state, &spec, &terms, &mut Budget::new(visits)) {
        Verdict::Fits(plan) => Some(nodes_of(&plan)),
        Verdict::Waits | Verdict::OutOfBudget => None,
    };
    assert_eq!(on(1_000), Some(vec![nodes[63]]));
    // The least with which it starts is too little for the wish.
    let first = (0..1_000).find_map(on).expect("it fits");
    assert_ne!(first, [nodes[63]], "the plan without the wish comes first");
}

#[test]
fn what_other_jobs_rule_out_as_a_whole_is_no_work() {
    let mut fleet = Fleet::new();
    let crowd: Vec<NodeId> = (10..74)
        .map(|n| fleet.add_node(NodeDraft { cluster: name("c0"), ..node_draft(&format!("n{n}")) }))
        .collect();
    let there = fleet.add_node(node_draft("n9"));
    let spec = job_draft(vec![group("main", 1, None)]).check().unwrap();
    let holds = Holds::new();
    let on = |affinity: &[AffinityTerm<'_>]| {
        let terms = Terms { affinity, ..fleet.terms(&holds, &spec) };
        match plan(&fleet.state, &spec, &terms, &mut Budget::new(40)) {
            Verdict::Fits(plan) => nodes_of(&plan),
            verdict => panic!("{verdict:?}"),
        }
    };
    // The others are on one host of many.
    assert_eq!(on(&[term(&fleet, &crowd[63..], HOST, None)]), crowd[63..]);
    // They are in the other cluster, or in the whole of this one.
    assert_eq!(on(&[term(&fleet, &[there], RACK, None)]), [there]);
    let not_in_cluster = (AffinityLevel::Cluster, AffinityRule::Apart);
    assert_eq!(on(&[term(&fleet, &crowd[..1], not_in_cluster, None)]), [there]);
}

#[test]
fn nobody_is_asked_to_stop_on_hosts_that_other_jobs_rule_out() {
    let mut fleet = Fleet::new();
    let nodes: Vec<NodeId> = (10..74).map(|n| fleet.add_node(node_draft(&format!("n{n}")))).collect();
    let mut draft = job_draft(vec![group("main", 1, None)]);
    draft.groups[0].request.cpu_milli = 64_000;
    let spec = draft.check().unwrap();
    for _ in &nodes {
        let workers = fleet.plan(&spec).expect("a host is free").workers;
        fleet.start(&spec, 1_000, workers).expect("it fits");
    }
    let holds = Holds::new();
    let gone = BTreeSet::new();
    for node in &nodes {
        let required = [term(&fleet, &[*node], HOST, None)];
        let terms = Terms { affinity: &required, ..fleet.terms(&holds, &spec) };
        let question =
            ReliefQuestion { state: &fleet.state, gone: &gone, spec: &spec, terms: &terms, only: None };
        let mut harm_of = |_: JobId| Some(PreemptionCost::new(1, 1));
        // Enough for a look at half of the hosts.
        match relief(question, &mut harm_of, &mut Budget::new(60)) {
            ReliefVerdict::Ways(ways) => {
                let there: Vec<JobId> = fleet.state.gangs_on(*node).collect();
                assert_eq!((ways.len(), &ways[0].stops), (1, &there));
            }
            verdict => panic!("{verdict:?}"),
        }
    }
}
