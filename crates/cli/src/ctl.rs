//! `muster ctl`: what a worker says of itself, for programs that are not Rust or Python.
//!
//! Speaks to the agent on this host through the worker's environment, never to the cluster.

use std::time::Duration;

use clap::{Args, Subcommand};
use muster_console::{Console, Exit, Failure, Global};
use muster_worker::{COMMIT_MAX, NoteError, Worker};

#[derive(Subcommand)]
pub enum CtlCommand {
    /// Say that the work is saved; returns once the cluster knows
    #[command(after_help = "\
Say it when the checkpoint would survive the node, from one worker of the gang. From then on a restart loses only what
comes after it. Waits 30 s for the cluster unless --timeout says otherwise.

Examples:
  muster ctl checkpoint-committed --step 1200")]
    CheckpointCommitted(CheckpointArgs),
    /// Say that a step is done; waits for nobody
    #[command(after_help = "Examples:\n  muster ctl step --number 1201 --duration-ms 830")]
    Step(StepArgs),
    /// Say that this worker is ready; returns once the cluster knows
    #[command(after_help = "\
Each worker says it, once it does what it was started for. A job that has `readiness: {timeout: 10m}` in its file fails to
start unless all of them do in time. Waits 30 s for the cluster.

Examples:
  muster ctl ready")]
    Ready,
    /// Print the notice to stop; exit code 3 while there is none
    #[command(after_help = "Examples:\n  while ! muster ctl notice; do do_some_work; done; save")]
    Notice,
}

#[derive(Args)]
pub struct CheckpointArgs {
    /// The step it was made after
    #[arg(long, value_name = "N", default_value_t = 0)]
    step: u64,
}

#[derive(Args)]
pub struct StepArgs {
    /// Which step, from 1
    #[arg(long, value_name = "N")]
    number: u64,
    /// How long it took
    #[arg(long, value_name = "MS", default_value_t = 0)]
    duration_ms: u64,
}

pub fn run(global: &Global, console: &Console, command: CtlCommand) -> Result<Exit, Failure> {
    let worker = match Worker::from_env_or_reason() {
        Ok(Some(worker)) => worker,
        Ok(None) => {
            let next = "it is for commands that run in a job: they find MUSTER_JOB_ID and the agent's socket";
            return Err(
                Failure::usage("this is no worker of a job: MUSTER_JOB_ID is not set").with_next(next)
            );
        }
        Err(error) => return Err(Failure::usage(error.to_string())),
    };
    match command {
        CtlCommand::CheckpointCommitted(args) => {
            let patience = global.timeout.unwrap_or(COMMIT_MAX);
            worker.checkpoint_committed_within(args.step, patience).map_err(failure)?;
        }
        CtlCommand::Ready => worker.ready().map_err(failure)?,
        CtlCommand::Step(args) => worker.step(args.number, Duration::from_millis(args.duration_ms)),
        CtlCommand::Notice => {
            let Some(notice) = worker.notice() else { return Ok(Exit::NotFound) };
            let text = serde_json::json!({
                "graceMs": u64::try_from(notice.grace.as_millis()).unwrap_or(u64::MAX),
                "deadlineUnixMs": notice.deadline_unix_ms,
                "reason": notice.reason,
            });
            console.bytes(format!("{text}\n").as_bytes())?;
        }
    }
    Ok(Exit::Ok)
}

fn failure(error: NoteError) -> Failure {
    let exit = match &error {
        NoteError::NoSocket => Exit::Unavailable,
        NoteError::Unreachable { .. } => Exit::Timeout,
        NoteError::Refused(_) => Exit::Conflict,
    };
    let source = std::error::Error::source(&error).map(ToString::to_string);
    Failure::new(exit, error.to_string()).with_details(source)
}
