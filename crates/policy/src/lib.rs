//! Who goes next: the order in which waiting gangs are offered capacity, and what a gang that must
//! wait keeps others from.
//!
//! The order is strict: higher tiers first, then in order of submission; a requeued job keeps its
//! place. A gang that does not fit now *claims* one fleet cluster (the planner names the one where
//! most of it fits already): nothing behind it is placed there until it has started, so a big gang
//! cannot be starved by small ones, while the rest of the fleet stays open to them.
//!
//! **Invariant:** looks at jobs and tenants, never at a node.
#![no_std]
#![deny(missing_docs, clippy::float_arithmetic)]

extern crate alloc;

use alloc::collections::{BTreeMap, BTreeSet};
use core::cmp::Reverse;
use muster_state::State;
use muster_types::{GangClass, JobId, Name, PriorityTier};

/// A place in the order of turns, which stays a place when the job there is gone. The smaller goes
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    tier: Reverse<PriorityTier>,
    job: JobId,
}

impl Turn {
    /// Whose turn it is.
    #[must_use]
    pub fn job(self) -> JobId {
        self.job
    }
}

/// Waiting gangs in the order in which they are offered capacity, by class: of each class only the
/// first is in line, and the next steps up when it is told to.
#[derive(Clone, Debug)]
pub struct Line {
    state: State,
    heads: BTreeMap<Turn, GangClass>,
}

impl Line {
    /// The line behind `after` (from the front without it), without the classes in `without`.
    #[must_use]
    pub fn form(state: &State, after: Option<Turn>, without: &BTreeSet<GangClass>) -> Line {
        // A clone is constant-time, and a walk must not see its own changes.
        let mut line = Line { state: state.clone(), heads: BTreeMap::new() };
        for class in state.pending_classes().filter(|class| !without.contains(class)) {
            line.step_up(class.clone(), after);
        }
        line
    }

    /// Takes the first in line out of it.
    pub fn next_turn(&mut self) -> Option<(Turn, GangClass)> {
        self.heads.pop_first()
    }

    /// The next of the class steps up, behind `after`.
    pub fn step_up(&mut self, class: GangClass, after: Option<Turn>) {
        let behind = after.map(|turn| (turn.tier.0, turn.job));
        if let Some((tier, job)) = self.state.pending_behind(&class, behind) {
            self.heads.insert(Turn { tier: Reverse(tier), job }, class);
        }
    }
}

/// Fleet clusters that waiting gangs have claimed during one pass.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    clusters: BTreeSet<(Name, Name)>,
}

impl Claims {
    /// Claims a cluster for a gang that must wait.
    pub fn claim(&mut self, region: &Name, cluster: &Name) {
        self.clusters.insert((region.clone(), cluster.clone()));
    }

    /// Whether a gang before has claimed it.
    #[must_use]
    pub fn is_claimed(&self, region: &Name, cluster: &Name) -> bool {
        self.clusters.contains(&(region.clone(), cluster.clone()))
    }

    /// How many are claimed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.clusters.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty()
    }
}
