//! The decision loop of the leader, and what a broken invariant costs it.

pub(crate) mod containment;
pub(crate) mod leader;
mod schedules;
