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

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use muster_state::State;
use muster_types::{JobId, JobSpec, Name, PriorityTier, WorkerRequest};

/// Waiting jobs in the order in which they are offered capacity.
pub fn turns(state: &State) -> impl Iterator<Item = JobId> {
    state.pending()
}

/// A place in the order of turns, which stays a place when the job there is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    tier: PriorityTier,
    job: JobId,
}

impl Turn {
    /// The turn of a job.
    #[must_use]
    pub fn of(job: JobId, spec: &JobSpec) -> Turn {
        Turn { tier: spec.tier, job }
    }
}

/// The turns that come behind this one.
pub fn turns_after(state: &State, turn: Turn) -> impl Iterator<Item = JobId> {
    state.pending_after(turn.tier, turn.job)
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

/// What decides where a gang can go: gangs of one class get the same answer, so a deep queue costs
/// per class and not per job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GangClass {
    groups: Vec<(u32, WorkerRequest)>,
    regions: Vec<Name>,
}

impl GangClass {
    /// The class of a job.
    #[must_use]
    pub fn of(spec: &JobSpec) -> GangClass {
        GangClass {
            groups: spec.groups.iter().map(|g| (g.workers, g.request.clone())).collect(),
            regions: spec.regions.clone(),
        }
    }
}
