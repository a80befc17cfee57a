//! What agents say of images: which ones their hosts hold, and how far those of workers are; and which ones hosts are to fetch
//! ahead. All of it is the leader's alone and in no record.
//!
//! **Invariant:** nothing of a node outlives its session, and all of it is bounded whatever agents say.

use muster_decider::{HeldImages, PlannedImage};
use muster_state::{Phase, State};
use muster_types::{FencingToken, JobId, NodeId, StartStage, limits};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Placements whose stages are known. From this number on, those that have started or ended are dropped.
const PLACEMENTS_MAX: usize = 4_096;

/// What the workers of a placement on one node wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStage {
    /// How far the one is that is the furthest behind.
    pub stage: StartStage,
    /// The image that is fetched or unpacked; empty for none.
    pub image: String,
}

type Planned = Arc<Vec<PlannedImage>>;

#[derive(Default)]
struct Known {
    by_node: BTreeMap<NodeId, BTreeSet<Arc<str>>>,
    held: Arc<HeldImages>,
    stages: BTreeMap<(JobId, FencingToken), BTreeMap<NodeId, NodeStage>>,
    planned: BTreeMap<NodeId, Planned>,
}

/// Images of all nodes.
#[derive(Default)]
pub(crate) struct ImageHints {
    known: Mutex<Known>,
}

impl ImageHints {
    /// A node holds these images.
    pub(crate) fn holds(&self, node: NodeId, references: Vec<String>) {
        let bounded = references.into_iter().take(limits::IMAGES_HELD_MAX);
        let now: BTreeSet<Arc<str>> = bounded.map(Arc::from).collect();
        let mut known = self.known.lock();
        let before = known.by_node.remove(&node).unwrap_or_default();
        if before != now {
            Arc::make_mut(&mut known.held).replace(node, &before, &now);
        }
        if !now.is_empty() {
            known.by_node.insert(node, now);
        }
    }

    /// A node has no session any more: what it said may not hold when it comes back.
    pub(crate) fn forget(&self, node: NodeId) {
        let mut known = self.known.lock();
        if let Some(before) = known.by_node.remove(&node) {
            Arc::make_mut(&mut known.held).replace(node, &before, &BTreeSet::new());
        }
    }

    /// Nothing is known any more: this replica does not lead.
    pub(crate) fn forget_all(&self) {
        *self.known.lock() = Known::default();
    }

    /// The hosts that hold each image.
    pub(crate) fn held(&self) -> Arc<HeldImages> {
        Arc::clone(&self.known.lock().held)
    }

    /// What nodes are to fetch ahead from now on.
    pub(crate) fn plan(&self, planned: BTreeMap<NodeId, Vec<PlannedImage>>) {
        let mut known = self.known.lock();
        if planned.is_empty() && known.planned.is_empty() {
            return;
        }
        known.planned = planned.into_iter().map(|(node, images)| (node, Arc::new(images))).collect();
    }

    /// What a node is to fetch ahead.
    pub(crate) fn planned_of(&self, node: NodeId) -> Planned {
        self.known.lock().planned.get(&node).map(Arc::clone).unwrap_or_default()
    }

    /// How far the workers of a placement on a node are. One that the node does not have is not heard.
    pub(crate) fn reached(&self, view: &State, node: NodeId, at: (JobId, FencingToken), stage: NodeStage) {
        if !starts_on(view, node, at) {
            return;
        }
        let mut known = self.known.lock();
        if known.stages.len() >= PLACEMENTS_MAX && !known.stages.contains_key(&at) {
            known.stages.retain(|at, _| starts(view, *at));
            if known.stages.len() >= PLACEMENTS_MAX {
                return;
            }
        }
        known.stages.entry(at).or_default().insert(node, stage);
    }

    /// What is known of a placement, by node.
    pub(crate) fn stages_of(&self, at: (JobId, FencingToken)) -> BTreeMap<NodeId, NodeStage> {
        self.known.lock().stages.get(&at).cloned().unwrap_or_default()
    }
}

/// Whether a placement is being started.
fn starts(view: &State, (job, token): (JobId, FencingToken)) -> bool {
    let row = view.job(job).filter(|row| row.phase == Phase::Starting);
    row.and_then(|row| row.placement.as_ref()).is_some_and(|placement| placement.token == token)
}

fn starts_on(view: &State, node: NodeId, at: (JobId, FencingToken)) -> bool {
    let placement = view.job(at.0).and_then(|row| row.placement.as_ref());
    starts(view, at) && placement.is_some_and(|placement| placement.slots.iter().any(|s| s.node == node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::Name;

    #[test]
    fn what_a_node_holds_goes_with_its_session() {
        let hints = ImageHints::default();
        let references = |of: &[&str]| of.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        hints.holds(NodeId(1), references(&["localhost/a:1", "localhost/b:1"]));
        hints.holds(NodeId(2), references(&["localhost/b:1"]));
        let before = hints.held();
        let on = |image: &str| hints.held().holders(image).collect::<Vec<_>>();
        assert_eq!(on("localhost/b:1"), [NodeId(1), NodeId(2)]);
        hints.holds(NodeId(1), references(&["localhost/c:1"]));
        assert_eq!((on("localhost/a:1"), on("localhost/c:1")), (vec![], vec![NodeId(1)]));
        hints.forget(NodeId(1));
        hints.forget(NodeId(1));
        assert_eq!((on("localhost/c:1"), on("localhost/b:1")), (vec![], vec![NodeId(2)]));
        assert_eq!(before.holders("localhost/a:1").count(), 1, "what a pass looks at does not change");
        let many = (0..1_000).map(|number| format!("localhost/a:{number}")).collect();
        hints.holds(NodeId(3), many);
        assert_eq!(hints.held().len(), limits::IMAGES_HELD_MAX + 1);
        hints.forget_all();
        assert!(hints.held().is_empty());
    }

    #[test]
    fn a_plan_takes_the_place_of_the_one_before() {
        let hints = ImageHints::default();
        let tenant = Name::new("research").expect("a name");
        let image = PlannedImage { tenant, image: "localhost/a:1".to_owned(), credentials: None };
        hints.plan([(NodeId(1), vec![image.clone()])].into());
        assert_eq!(*hints.planned_of(NodeId(1)), [image]);
        assert!(hints.planned_of(NodeId(2)).is_empty());
        hints.plan(BTreeMap::new());
        assert!(hints.planned_of(NodeId(1)).is_empty());
    }

    #[test]
    fn what_no_placement_waits_for_is_not_heard() {
        let hints = ImageHints::default();
        let at = (JobId(1), FencingToken::default());
        let stage = NodeStage { stage: StartStage::Pulling, image: "localhost/a:1".to_owned() };
        hints.reached(&State::default(), NodeId(1), at, stage);
        assert!(hints.stages_of(at).is_empty());
    }
}
