//! What a drill has done to links and not undone yet, and the rules of the wire that this comes to.
//!
//! **Invariant:** the rules follow from what is in force alone: ending one cut never ends another one that covers
//! the same link.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_drill::scenario::LinkShape;

use super::parts::Hosts;
use crate::cluster::plan::{HostPlan, Plan};
use crate::net::{HostSet, LinkChange, PacketRatio, Rule};

/// Ordered pairs of hosts, by name.
pub type Pairs = BTreeSet<(String, String)>;

/// Every ordered pair from one side to the other, and back where that is meant too.
#[must_use]
pub fn pairs(from: &Hosts, to: &Hosts, both: bool) -> Pairs {
    let there = from.iter().flat_map(|one| to.iter().map(move |other| (one.clone(), other.clone())));
    let mut pairs: Pairs = there.filter(|(one, other)| one != other).collect();
    if both {
        let back: Pairs = pairs.iter().map(|(one, other)| (other.clone(), one.clone())).collect();
        pairs.extend(back);
    }
    pairs
}

/// What is in force, by the step that did it.
#[derive(Clone, Debug, Default)]
pub struct Links {
    cuts: BTreeMap<usize, Pairs>,
    shapes: BTreeMap<usize, (Pairs, LinkShape)>,
}

impl Links {
    /// A step cuts these.
    pub fn cut(&mut self, step: usize, pairs: Pairs) {
        self.cuts.insert(step, pairs);
    }

    /// A step makes these worse.
    pub fn shape(&mut self, step: usize, pairs: Pairs, shape: LinkShape) {
        self.shapes.insert(step, (pairs, shape));
    }

    /// What a step did is undone.
    pub fn end(&mut self, step: usize) {
        self.cuts.remove(&step);
        self.shapes.remove(&step);
    }

    /// These links are as they were before the drill; none for all.
    pub fn heal(&mut self, healed: Option<&Pairs>) {
        let Some(healed) = healed else {
            *self = Links::default();
            return;
        };
        for pairs in self.cuts.values_mut().chain(self.shapes.values_mut().map(|(pairs, _)| pairs)) {
            pairs.retain(|pair| !healed.contains(pair));
        }
    }

    /// Links that are cut.
    #[must_use]
    pub fn cut_pairs(&self) -> Pairs {
        self.cuts.values().flatten().cloned().collect()
    }

    /// All of it as rules, beginning with a network that is whole.
    #[must_use]
    pub fn rules(&self, plan: &Plan) -> Vec<Rule> {
        let place = |name: &String| HostSet::Host(name.clone());
        let mut rules = vec![Rule::Heal];
        for (pairs, shape) in self.shapes.values() {
            for (from, to) in pairs {
                let change = change(shape, distance(plan, from, to));
                rules.push(Rule::Link { from: place(from), to: place(to), change });
            }
        }
        for (from, to) in self.cut_pairs() {
            rules.push(Rule::Cut { from: place(&from), to: place(&to) });
        }
        rules
    }
}

fn distance(plan: &Plan, from: &str, to: &str) -> Duration {
    let host = |name: &str| plan.hosts.iter().find(|host: &&HostPlan| host.name == name);
    match (host(from), host(to)) {
        (Some(from), Some(to)) => Plan::delay(from, to),
        _ => Duration::ZERO,
    }
}

fn change(shape: &LinkShape, built: Duration) -> LinkChange {
    // Jitter is drawn around the delay: what is drawn evenly from 0 to `jitter` and added lies around its half.
    let half_jitter = Duration::from_micros(shape.jitter_us / 2);
    LinkChange {
        delay: Some(built + Duration::from_micros(shape.delay_us) + half_jitter),
        jitter: Some(half_jitter),
        loss: Some(PacketRatio::millionths(shape.loss_ppm)),
        duplicate: Some(PacketRatio::millionths(shape.duplicate_ppm)),
        reorder: Some(PacketRatio::millionths(shape.reorder_ppm)),
        corrupt: Some(PacketRatio::millionths(shape.corrupt_ppm)),
        rate: Some(shape.rate_bits),
        queue_bytes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::plan::Replicas;

    fn hosts(names: &[&str]) -> Hosts {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn ending_one_cut_leaves_the_other() {
        let plan = Plan::new(Replicas::Five);
        let mut links = Links::default();
        links.cut(0, pairs(&hosts(&["a1"]), &hosts(&["b1", "c1"]), true));
        links.cut(1, pairs(&hosts(&["a1"]), &hosts(&["b1"]), false));
        assert_eq!(links.cut_pairs().len(), 4);
        links.end(0);
        assert_eq!(links.cut_pairs(), pairs(&hosts(&["a1"]), &hosts(&["b1"]), false));
        let expected = Rule::Cut { from: HostSet::Host("a1".to_owned()), to: HostSet::Host("b1".to_owned()) };
        assert_eq!(links.rules(&plan), [Rule::Heal, expected]);
        links.heal(Some(&pairs(&hosts(&["a1"]), &hosts(&["b1"]), false)));
        assert_eq!(links.rules(&plan), [Rule::Heal]);
    }

    #[test]
    fn a_shape_is_added_to_the_way_that_is_there() {
        let plan = Plan::new(Replicas::Five);
        let mut links = Links::default();
        let shape =
            LinkShape { delay_us: 10_000, jitter_us: 4_000, loss_ppm: 50_000, ..LinkShape::default() };
        links.shape(0, pairs(&hosts(&["a1"]), &hosts(&["b1"]), false), shape);
        let rules = links.rules(&plan);
        let [Rule::Heal, Rule::Link { change, .. }] = rules.as_slice() else { panic!("{rules:?}") };
        assert_eq!(change.delay, Some(Duration::from_millis(15 + 10 + 2)));
        assert_eq!(change.loss, Some(PacketRatio::percent(5)));
    }
}
