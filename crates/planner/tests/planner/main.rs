//! Tests through the public interface: scripts that read as a specification of who gets what and why
//! (`testdata/*.txt`), and properties against the guard and against plain counting.
// A test may read its files and look at a clock; the crate it tests may not.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]
// Helpers of tests may unwrap too: a panic there is the report.
#![allow(clippy::unwrap_used)]

mod affinity;
mod bookings;
mod capacity;
mod images;
mod outlook;
mod property;
mod script;
mod segments;
mod slices;
mod support;
