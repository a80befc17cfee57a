//! What every executor must do, whatever runs its workers: the same suite over processes of the host,
//! over a cluster that exists in memory only, over a real Slurm, and over a real Kubernetes.
//!
//! Slurm is Debian's, started by the test itself as root; where it cannot be, its part says `skipped`. So does that of Kubernetes where
//! `MUSTER_TEST_KUBECONFIG` names no cluster: `.ci/kubernetes` starts one.

// A panic is a test's report.
#![allow(clippy::unwrap_used)]

mod memory;
mod misbehaving;
mod pods;
mod process;
mod slurm;
mod suite;

#[path = "../support/lab.rs"]
mod lab;
