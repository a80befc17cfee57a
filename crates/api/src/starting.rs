//! What a gang waits for that starts from images: which stage, and how many of its hosts are beyond it.
//!
//! Agents tell it to the leader, and it is in no record: what it says is of this moment, and of the present alone.

use muster_engine::{Engine, NodeStage, Reading};
use muster_state::{Phase, Placement, RankState, State};
use muster_types::{JobId, NodeId, StartStage};
use std::collections::BTreeMap;

/// Whether a job waits for images, as far as this state says: then the leader may know more.
pub(crate) fn waits_for_images(view: &Reading, job: JobId) -> bool {
    !view.is_past() && placement_of(view, job).is_some()
}

/// The placement of a job that starts from images.
fn placement_of(view: &State, job: JobId) -> Option<&Placement> {
    let (row, spec) = view.job(job).zip(view.spec(job))?;
    let starts = row.phase == Phase::Starting && spec.needs_container_runtime();
    row.placement.as_deref().filter(|_| starts)
}

/// The sentence on a job that starts from images; none where this replica knows nothing of its hosts.
pub(crate) fn sentence(engine: &Engine, view: &State, job: JobId) -> Option<String> {
    let placement = placement_of(view, job)?;
    told(placement, &engine.start_stages(job, placement.token))
}

fn told(placement: &Placement, stages: &BTreeMap<NodeId, NodeStage>) -> Option<String> {
    let mut hosts: BTreeMap<NodeId, bool> = BTreeMap::new();
    for (slot, state) in placement.slots.iter().zip(&placement.ranks) {
        *hosts.entry(slot.node).or_insert(true) &= *state != RankState::Assigned;
    }
    // A host whose workers all run, or have run, waits for nothing, whatever it said before.
    let waiting = hosts.iter().filter(|(_, has_started)| !**has_started).map(|(node, _)| node);
    let known: Vec<&NodeStage> = waiting.filter_map(|node| stages.get(node)).collect();
    let first =
        known.iter().min_by(|one, other| (one.stage, &one.image).cmp(&(other.stage, &other.image)))?;
    let beyond = |node: &NodeId| stages.get(node).is_some_and(|known| known.stage > first.stage);
    let ready = hosts.iter().filter(|(node, has_started)| **has_started || beyond(node)).count();
    let doing = match first.stage {
        StartStage::Pulling | StartStage::Unpacking => format!("{} {}", first.stage.as_str(), first.image),
        StartStage::Starting => "starting its workers".to_owned(),
    };
    Some(format!("{doing}: {ready} of {} hosts ready", hosts.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_journal::WorkerSlot;
    use muster_state::Charge;
    use muster_types::{DeviceSet, FencingToken, LogTime, Name};
    use std::collections::BTreeSet;

    fn placement(ranks: &[(u32, RankState)]) -> Placement {
        let slot = |(node, _): &(u32, RankState)| WorkerSlot {
            node: NodeId(*node),
            incarnation: 1,
            devices: DeviceSet::EMPTY,
        };
        Placement {
            slots: ranks.iter().map(slot).collect(),
            ranks: ranks.iter().map(|(_, state)| state.clone()).collect(),
            token: FencingToken::default(),
            region: Name::literal("eu"),
            cluster: Name::literal("c1"),
            placed_at: LogTime(0),
            live: 0,
            unstarted: 0,
            charge: Charge::default(),
            ready: BTreeSet::new(),
        }
    }

    fn at(stage: StartStage) -> NodeStage {
        NodeStage { stage, image: "registry.example.org/train:1".to_owned() }
    }

    #[test]
    fn hosts_are_counted_that_are_beyond_the_stage_of_the_last() {
        use RankState::{Assigned, Running};
        let placed = placement(&[(1, Running), (2, Assigned), (2, Running), (3, Assigned), (4, Assigned)]);
        let mut stages = BTreeMap::new();
        assert_eq!(told(&placed, &stages), None, "nothing is known");
        stages.insert(NodeId(2), at(StartStage::Pulling));
        stages.insert(NodeId(3), at(StartStage::Unpacking));
        // That was before its workers ran.
        stages.insert(NodeId(1), at(StartStage::Pulling));
        let text = told(&placed, &stages);
        assert_eq!(text.as_deref(), Some("pulling registry.example.org/train:1: 2 of 4 hosts ready"));
        stages.insert(NodeId(2), at(StartStage::Starting));
        stages.insert(NodeId(4), at(StartStage::Starting));
        let text = told(&placed, &stages);
        assert_eq!(text.as_deref(), Some("unpacking registry.example.org/train:1: 3 of 4 hosts ready"));
        stages.insert(NodeId(3), at(StartStage::Starting));
        assert_eq!(told(&placed, &stages).as_deref(), Some("starting its workers: 1 of 4 hosts ready"));
    }
}
