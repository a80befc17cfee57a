//! Which hosts hold which images, as their agents say: a hint of the leader's that is in no record.
//!
//! A placement that it has led to is in the log like any other, and nobody needs the hint to check or fold it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use muster_planner::AffinityTerm;
use muster_state::State;
use muster_types::{AffinityLevel, AffinityRule, JobSpec, NodeId};

/// What a host that holds the images counts in the score of a place: a tenth of what full clusters count by default.
const WEIGHT: u8 = 40;
/// Hosts that are looked at for one job. An image that more of them hold is nearly everywhere, and no reason to go to one of them.
const HOLDERS_MAX: usize = 512;
/// Different images that are known. Further ones are as if nobody held them.
const IMAGES_MAX: usize = 4_096;

/// The hosts that hold each image, by its reference. A copy shares what has not changed since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldImages {
    by_reference: BTreeMap<Arc<str>, Arc<BTreeSet<NodeId>>>,
}

impl HeldImages {
    /// A host holds these images, and held those before.
    pub fn replace(&mut self, node: NodeId, before: &BTreeSet<Arc<str>>, now: &BTreeSet<Arc<str>>) {
        for gone in before.difference(now) {
            let Some(nodes) = self.by_reference.get_mut(gone) else { continue };
            Arc::make_mut(nodes).remove(&node);
            if nodes.is_empty() {
                self.by_reference.remove(gone);
            }
        }
        for new in now.difference(before) {
            if self.by_reference.len() >= IMAGES_MAX && !self.by_reference.contains_key(new) {
                continue;
            }
            Arc::make_mut(self.by_reference.entry(Arc::clone(new)).or_default()).insert(node);
        }
    }

    /// The hosts that hold all images of a job, as a wish of the planner; none where there are no such hosts, or too many.
    pub(crate) fn term<'s>(&self, state: &'s State, spec: &JobSpec) -> Option<AffinityTerm<'s>> {
        if self.by_reference.is_empty() {
            return None;
        }
        let mut all = BTreeSet::new();
        for container in spec.groups.iter().filter_map(|group| group.container.as_ref()) {
            all.insert(container.image.as_str());
        }
        let mut holders = all.iter().map(|image| self.by_reference.get(*image));
        // Of several images the one that the fewest hosts have.
        let mut fewest = holders.next()??;
        for nodes in holders {
            let nodes = nodes?;
            if nodes.len() < fewest.len() {
                fewest = nodes;
            }
        }
        if fewest.len() > HOLDERS_MAX {
            return None;
        }
        let has_all = |node: &NodeId| {
            all.iter().all(|image| self.by_reference.get(*image).is_some_and(|nodes| nodes.contains(node)))
        };
        let rows = fewest.iter().filter(|node| has_all(node)).filter_map(|node| state.node(*node));
        let level = AffinityLevel::Host;
        let domains: BTreeSet<_> = rows.map(|row| level.domain(&row.spec)).collect();
        (!domains.is_empty()).then(|| AffinityTerm {
            text: String::from("hosts that hold its images"),
            level,
            rule: AffinityRule::Together,
            weight: Some(WEIGHT),
            domains,
        })
    }

    /// How many images are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_reference.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_reference.is_empty()
    }

    /// The hosts that hold an image.
    pub fn holders(&self, reference: &str) -> impl Iterator<Item = NodeId> {
        self.by_reference.get(reference).into_iter().flat_map(|nodes| nodes.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references<const N: usize>(of: [&str; N]) -> BTreeSet<Arc<str>> {
        of.into_iter().map(Arc::from).collect()
    }

    #[test]
    fn what_a_host_does_not_hold_any_more_is_forgotten() {
        let (mut held, nothing) = (HeldImages::default(), BTreeSet::new());
        let (one, two) = (references(["localhost/a:1", "localhost/b:1"]), references(["localhost/b:1"]));
        held.replace(NodeId(1), &nothing, &one);
        held.replace(NodeId(2), &nothing, &two);
        let before = held.clone();
        assert_eq!(held.holders("localhost/b:1").collect::<BTreeSet<_>>(), [NodeId(1), NodeId(2)].into());
        held.replace(NodeId(1), &one, &two);
        assert_eq!((held.len(), held.holders("localhost/a:1").count()), (1, 0));
        held.replace(NodeId(1), &two, &nothing);
        held.replace(NodeId(2), &two, &nothing);
        assert_eq!(held, HeldImages::default());
        assert_eq!(before.holders("localhost/a:1").count(), 1, "a copy is not changed");
    }

    #[test]
    fn there_is_a_bound_on_different_images() {
        let (mut held, nothing) = (HeldImages::default(), BTreeSet::new());
        let many: BTreeSet<Arc<str>> =
            (0..IMAGES_MAX + 5).map(|n| Arc::from(alloc::format!("localhost/a:{n}"))).collect();
        held.replace(NodeId(1), &nothing, &many);
        assert_eq!(held.len(), IMAGES_MAX);
        held.replace(NodeId(1), &many, &nothing);
        assert!(held.is_empty());
    }
}
