//! The client against small servers that the tests start.

// A panic here is the report; clippy knows that only of functions marked as tests.
#![allow(clippy::unwrap_used)]

mod fake;
mod handle;
mod pages;
mod retry;
mod submitter;
mod watch;
