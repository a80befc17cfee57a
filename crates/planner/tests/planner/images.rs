//! A job with an image, and the nodes that can give its workers the root directory.

use crate::support::*;
use muster_planner::{Holds, could_ever, explain};
use muster_types::container::{NO_RUNTIME, RUNTIME_LABEL};
use muster_types::{Container, NodeDraft};

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
