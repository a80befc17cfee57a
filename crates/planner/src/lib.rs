//! Where it goes: filter, score and gang plan over the topology, under a work budget counted in
//! visits.
//!
//! A gang goes into one fleet cluster, all or nothing. In a cluster, the rest of a group goes to
//! the fullest node that still holds all of it; while no node does, the emptiest node is filled
//! first, which keeps a gang on few nodes. Among clusters the tightest wins: the one with the
//! fewest free devices left of the types asked for. Ties fall to the smaller name and the smaller
//! node id, the same on every replica and for every leader.
//!
//! **Invariant:** proposes only; nothing here changes state. Feasibility is
//! [`muster_state::fit`]'s, the guard's own.
//! **Invariant:** never looks at a tenant.
#![no_std]
#![deny(missing_docs, clippy::float_arithmetic)]

extern crate alloc;

mod explain;
mod gang;

pub use explain::{ClusterReport, Explanation, Never, could_ever};
pub use gang::{Plan, Verdict, plan};

/// Work that one planning pass may do, counted in nodes and pools looked at.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    visits: u64,
}

impl Budget {
    /// A budget of so many visits.
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

    /// Whether nothing is left.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.visits == 0
    }
}
