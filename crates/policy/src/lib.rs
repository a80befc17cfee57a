//! Who goes next: the order in which waiting jobs are offered capacity, what a job is expected to take,
//! and which running gangs make room.
//!
//! Higher tiers go first. Inside a tier the tenant with the least decayed use for its weight goes first,
//! level by level down the tree of tenants ([`Line`]). Inside a tenant jobs go by their turn ([`turn()`]): the
//! work that is expected of them by what was learned of jobs like them ([`predict()`]), and before all others
//! those that have waited too long. What is learned while they wait moves them ([`Refresh`]).
//! [`victims()`] names the gangs that lose least when they make room.
//!
//! **Invariant:** looks at jobs and tenants, never at a node.
//! **Invariant:** a gang never makes room for one of a lower tier, and for one of its own tier only when
//! its tenant borrows what the other's tenant is promised. So preemption cannot go round in circles.
#![no_std]
#![deny(missing_docs, clippy::float_arithmetic)]

extern crate alloc;

mod estimate;
mod line;
mod predict;
mod refresh;
mod victims;

pub use estimate::{
    Expected, ORDINARY_TURNS, burst_turn, estimate, estimates, expected, expected_end, turn, urgent_at,
};
pub use line::{Candidate, Line};
pub use predict::{Prediction, predict};
pub use refresh::Refresh;
pub use victims::{LOOKED_AT_MAX, Victim, holds_what_is_wanted, lost_device_ms, may_make_room, victims};
