//! Where a gang goes, and why not: filter, score and gang plan over the topology, under a work budget
//! counted in visits.
//!
//! A gang goes into one fleet cluster, all or nothing, and the workers of a group get one type of
//! accelerator. [`plan`] looks at every cluster and type that is open to it in all regions at once:
//!
//! 1. *Sites.* One for every cluster and type that the job accepts, with what is known without looking at
//!    a node: idle devices, quota, throughput, price, data to move ([`score`]). Most gangs that do not
//!    fit are refused here.
//! 2. *Placing*, the most promising site first. Without a topology rule the rest of a group goes to the
//!    fullest node that still holds all of it; while no node does, the emptiest node is filled first,
//!    which keeps a gang on few nodes. With a rule, racks and blocks are tried by the tightest fit.
//! 3. *Choice.* The highest score wins, by the weights of the replicated policy; ties fall to region,
//!    cluster and type by name. An elastic gang goes where most of its workers fit; then the score counts.
//!
//! Ranks are in the order of block, rack, node and device, so neighbours have neighbouring ranks; TPU
//! slices keep the order of the slice. All ties fall to the smaller name and the smaller node id, the same
//! on every replica and for every leader.
//!
//! [`explain`] says why a gang waits and what would help, [`could_ever`] refuses what no state of the fleet
//! could hold, [`relief`] names the cheapest gangs without which it would fit, and [`CapacityTimeline`] says
//! when and where a gang would fit if what runs ends as expected.
//!
//! **Invariant:** proposes only; nothing here changes state. Feasibility is
//! [`muster_state::fit`]'s, the guard's own.
//! **Invariant:** never looks at a tenant. What policy allows a gang is in its [`Terms`].
#![no_std]
#![deny(missing_docs, clippy::float_arithmetic)]

extern crate alloc;

mod awaited;
mod candidate;
mod domains;
mod ever;
mod explain;
mod fill;
mod gang;
mod outlook;
mod relief;
mod score;
mod segments;
mod selection;
mod single;
mod sites;
mod slices;
mod terms;
mod valuation;

pub use candidate::Plan;
pub use ever::{Never, could_ever};
pub use explain::{Checkpoints, ClusterReport, Explanation, NodeCounts, WaitReason, explain};
pub use gang::{Verdict, plan};
pub use outlook::{CapacityTimeline, Start};
pub use relief::{
    HARM_RANKS, HOSTS_ENOUGH, PreemptionCost, Relief, ReliefQuestion, ReliefVerdict, needs_one_host, relief,
};
pub use score::{Score, ScorePart};
pub use slices::{Shortfall, SliceVerdict, find_slices};
pub use terms::{AffinityTerm, Closure, ClosureCause, Hold, Holds, Lane, Opening, Terms};
pub use valuation::Valuation;

/// Work that one planning pass may do, counted in nodes and pools looked at.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    visits: u64,
}

impl Budget {
    /// A budget of this many visits.
    #[must_use]
    pub fn new(visits: u64) -> Budget {
        Budget { visits }
    }

    /// Spends one visit; false when there is none left.
    pub fn visit(&mut self) -> bool {
        if self.visits == 0 {
            return false;
        }
        self.visits -= 1;
        true
    }

    /// Spends this many visits, or all that are left: for work that is known once it is done.
    pub fn take(&mut self, visits: u64) {
        self.visits = self.visits.saturating_sub(visits);
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.visits == 0
    }

    /// Visits that are left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.visits
    }

    /// Spends one visit.
    ///
    /// # Errors
    /// When there is none left.
    pub(crate) fn spend(&mut self) -> Result<(), Spent> {
        if self.visit() { Ok(()) } else { Err(Spent) }
    }
}

/// The budget ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spent;
