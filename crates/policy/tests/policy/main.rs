//! The order of waiting jobs through the public interface: records in, turns out.
// A test may read its scripts; the crate it tests may not.
#![allow(clippy::disallowed_methods)]
// Helpers of tests may unwrap: a panic there is the report.
#![allow(clippy::unwrap_used, clippy::float_arithmetic)]

mod calibration;
mod random;
mod ranks;
mod script;
mod support;
mod tree;
mod users;
