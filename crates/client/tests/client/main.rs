//! The client against small servers of its own.

// A panic here is the report; clippy knows that only of functions marked as tests.
#![allow(clippy::unwrap_used)]

mod fake;
mod retry;
mod submitter;
mod watch;
