//! What every executor must do, whatever runs its workers: the same suite over processes of the host,
//! over a cluster that exists in memory only, and over a real Slurm.
//!
//! Slurm is Debian's, started by the test itself as root; where it cannot be, its part says `skipped`.

// A panic is a test's report.
#![allow(clippy::unwrap_used)]

mod memory;
mod misbehaving;
mod process;
mod slurm;
mod suite;

#[path = "../support/lab.rs"]
mod lab;
