//! The example workloads as a program of their own.

use clap::{Parser, Subcommand};
use muster_example::{TrainArgs, WorkArgs, train, work};
use std::process::ExitCode;

/// Example workloads for Muster.
#[derive(Parser)]
#[command(name = "muster-example", version)]
struct Arguments {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Subcommand)]
enum Workload {
    /// Train a small model over all ranks of a gang, with checkpoints and resume
    Train(TrainArgs),
    /// Run for a while and exit
    Work(WorkArgs),
}

fn main() -> ExitCode {
    match Arguments::parse().workload {
        Workload::Train(args) => train(args).into(),
        Workload::Work(args) => work(args).into(),
    }
}
