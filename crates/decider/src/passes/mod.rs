//! Passes over the pending queue: which gangs are placed, preempted, moved, or grown.

mod claimant;
mod drained;
mod growth;
mod preemption;
pub(crate) mod schedule;
pub(crate) mod turns;
mod ways;
