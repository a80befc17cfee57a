//! Tests of the ledger on histories that the scheduler itself makes.
//!
//! `activities`, `idle` and `waits` are written to be read as the specification of each state and cause. `conservation`
//! drives random histories and holds the sums against capacity × time.
// A test may look at a clock; the crate it tests may not.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]
// Helpers of tests may unwrap too: a panic there is the report.
#![allow(clippy::unwrap_used)]

mod activities;
mod conservation;
mod idle;
mod saved;
mod scene;
mod waits;

#[path = "../../../decider/tests/decider/model.rs"]
#[allow(dead_code, reason = "what the tests of the decider alone need")]
mod model;
#[path = "../../../decider/tests/decider/random.rs"]
mod random;
#[path = "../../../decider/tests/decider/support.rs"]
#[allow(dead_code, reason = "what the tests of the decider alone need")]
mod support;
