//! Passes over the pending queue: which gangs are placed, preempted, moved, or grown.

mod asking;
mod drained;
mod growth;
mod rearrange;
pub(crate) mod schedule;
pub(crate) mod turns;
mod ways;
