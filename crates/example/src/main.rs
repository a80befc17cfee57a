//! The example workloads as a separate program.

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

/// Their help texts are those of the arguments.
#[derive(Subcommand)]
enum Workload {
    Train(TrainArgs),
    Work(WorkArgs),
}

fn main() -> ExitCode {
    match Arguments::parse().workload {
        Workload::Train(args) => train(args).into(),
        Workload::Work(args) => work(args).into(),
    }
}
