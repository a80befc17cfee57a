//! The replay as its users see it: results worked out by hand, traces that are wrong, the same result twice.
// Helpers of tests may unwrap: a panic there is the report.
#![allow(clippy::unwrap_used)]

mod generated;
mod packing;
mod policies;
mod queueing;
mod real;
#[allow(dead_code)]
mod support;
mod traces;
mod year;
