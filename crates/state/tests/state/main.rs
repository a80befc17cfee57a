//! Modules of the state that stand for themselves: quotas and decayed use, against plain models.
// A test may look at a clock; the crate it tests may not.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]
// Helpers of tests may unwrap too: a panic there is the report.
#![allow(clippy::unwrap_used)]

mod pods;
mod quota;
mod submission_groups;
mod tree;
mod usage;
