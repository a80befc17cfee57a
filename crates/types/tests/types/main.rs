//! The vocabulary keeps its rules: values that break one cannot be made, and every rule broken is
//! named with its field.
// A test may read its files and look at a clock; the crate it tests may not.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]
// Helpers of tests may unwrap too: a panic there is the report.
#![allow(clippy::unwrap_used)]

mod arrays;
mod drafts;
mod fleet;
mod ids;
mod labels;
mod policy;
mod reasons;
mod tpu;
