//! A job with an image, and the nodes that can give its workers the root directory.

use std::collections::BTreeSet;

use crate::support::*;
use muster_planner::{AffinityTerm, Budget, Holds, Plan, Terms, Verdict, could_ever, explain, plan};
use muster_types::container::{NO_RUNTIME, RUNTIME_LABEL};
use muster_types::{AffinityLevel, AffinityRule, Container, JobSpec, NodeDraft, NodeId};

fn node_with(runtime: &str, node: &str) -> NodeDraft {
    NodeDraft { labels: [(name(RUNTIME_LABEL), runtime.to_owned())].into(), ..node_draft(node) }
}

#[test]
fn a_job_with_an_image_goes_where_a_container_runtime_is() {
    let mut fleet = Fleet::new();
    fleet.add_node(node_draft("silent"));
    fleet.add_node(node_with(NO_RUNTIME, "none"));
    let plain = job_draft(vec![group("main", 1, None)]);
    let mut draft = plain.clone();
    draft.groups[0].container = Some(Container::new("localhost/train:1".to_owned()));
    let (plain, spec) = (plain.check().unwrap(), draft.check().unwrap());
    assert!(fleet.plan(&plain).is_some() && fleet.plan(&spec).is_none());
    let never = could_ever(&fleet.state, &spec).unwrap_err().to_string();
    assert!(never.ends_with("; 2 nodes have no container runtime"), "{never}");

    let node = fleet.add_node(node_with("podman", "podman"));
    assert_eq!(could_ever(&fleet.state, &spec), Ok(()));
    let workers = fleet.plan(&spec).unwrap().workers;
    assert_eq!(workers.iter().map(|worker| worker.node).collect::<Vec<_>>(), [node]);
    fleet.cordon(node, true);
    let holds = Holds::new();
    let explanation = explain(&fleet.state, &spec, &fleet.terms(&holds, &spec), None);
    assert!(
        explanation.sentence.ends_with("; 2 nodes have no container runtime"),
        "{}",
        explanation.sentence
    );
    let counts = explanation.clusters[0].nodes;
    assert_eq!((counts.wrong_labels, counts.cordoned), (2, 1));
}

/// The hosts that hold the image.
fn holding<'a>(fleet: &'a Fleet, nodes: &[NodeId]) -> AffinityTerm<'a> {
    let level = AffinityLevel::Host;
    let specs = nodes.iter().map(|node| &fleet.state.node(*node).expect("it is there").spec);
    let domains: BTreeSet<_> = specs.map(|spec| level.domain(spec)).collect();
    AffinityTerm {
        text: "its image".to_owned(),
        level,
        rule: AffinityRule::Together,
        weight: Some(40),
        domains,
    }
}

fn planned(fleet: &Fleet, spec: &JobSpec, on: &[NodeId]) -> Plan {
    let (holds, image) = (Holds::new(), holding(fleet, on));
    let terms = Terms { image: Some(&image), ..fleet.terms(&holds, spec) };
    match plan(&fleet.state, spec, &terms, &mut Budget::new(100_000)) {
        Verdict::Fits(plan) => plan,
        verdict => panic!("{verdict:?}"),
    }
}

fn nodes_of(plan: &Plan) -> Vec<NodeId> {
    plan.workers.iter().map(|worker| worker.node).collect()
}

#[test]
fn hosts_that_hold_an_image_are_preferred_where_nothing_speaks_against_them() {
    let mut fleet = Fleet::new();
    let nodes = ["n1", "n2", "n3", "n4"].map(|node| {
        let rack = if matches!(node, "n1" | "n2") { "r1" } else { "r2" };
        fleet.add_node(NodeDraft { rack: name(rack), ..node_with("podman", node) })
    });
    let mut draft = job_draft(vec![group("main", 1, None)]);
    draft.groups[0].container = Some(Container::new("localhost/train:1".to_owned()));
    let one = draft.clone().check().unwrap();
    for node in nodes {
        let plan = planned(&fleet, &one, &[node]);
        assert_eq!(nodes_of(&plan), [node]);
        let part = plan.score.parts.last().expect("a term of the score");
        assert_eq!((part.name, part.weight, part.value_milli), ("image", 40, 1_000));
    }
    assert!(fleet.plan(&one).unwrap().score.parts.iter().all(|part| part.name != "image"));
    // Two workers of which one fits on a host: hosts of one rack go before those that hold the image in two.
    (draft.groups[0].workers, draft.groups[0].request.cpu_milli) = (2, 40_000);
    let two = draft.check().unwrap();
    let together = nodes_of(&planned(&fleet, &two, &nodes[2..]));
    assert_eq!(together, nodes[2..]);
    let plan = planned(&fleet, &two, &[nodes[0], nodes[2]]);
    assert!(nodes_of(&plan) == nodes[..2] || nodes_of(&plan) == nodes[2..], "{plan:?}");
    assert_eq!(plan.score.parts.last().map(|part| part.value_milli), Some(500));
    // Where there is no other place it goes without.
    fleet.cordon(nodes[2], true);
    assert_eq!(nodes_of(&planned(&fleet, &two, &nodes[2..])), nodes[..2]);
}
