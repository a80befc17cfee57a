//! Who goes next: the order in which waiting jobs are offered capacity, what a job is expected to take,
//! and which running gangs are preempted.
//!
//! Gangs within the nominal quota of their tenant go first, then those that borrow, higher tiers first. The tenant
//! with the least decayed use for its weight goes first, level by level down the tree of tenants ([`Line`]).
//! Inside a tenant jobs go by tier, then by their turn ([`turn()`]): the
//! work that is expected of them by what was learned of jobs like them ([`predict()`]), and before all others
//! those that have waited too long. What is learned while they wait moves them ([`Refresh`]).
//! [`may_make_room`] says who may be preempted, and [`Costing`] what that costs.
//!
//! **Invariant:** looks at jobs and tenants, never at a node.
//! **Invariant:** a gang is never preempted by one of a lower tier, and by one of the same tier only when
//! its tenant borrows what the other's tenant is promised. So preemption cannot run in circles.
#![no_std]
#![deny(missing_docs, clippy::float_arithmetic)]

extern crate alloc;

mod estimate;
mod headroom;
mod pending_queue;
mod predict;
mod refresh;
mod tournament;
mod victims;

pub use estimate::{
    Expected, burst_turn, estimate, estimate_again, estimates, estimates_of_parts, expected, expected_end,
    overdue_since, turn, urgent_at,
};
pub use headroom::{Headroom, headroom, places_wanted};
pub use pending_queue::{Candidate, Line, Marks, UserPlace, asker, blocked_by, users_by_turn};
pub use predict::{Prediction, predict};
pub use refresh::Refresh;
pub use victims::{
    Cost, Costing, HARM_RANKS, has_victims, holds_what_is_wanted, lost_milli_ms, may_make_room,
    may_make_room_later, minimum_run_ends, resumes, saved_at,
};
