//! `muster drill …`: drills on a live cluster.
//!
//! A drill makes replicas silent, keeps work away from a region, or moves the leadership, while its probes show what
//! users see of that. Everything it does undoes itself: replicas by their own clock, the rest by this command,
//! and where that died, by `muster drill stop` from anywhere.
//!
//! **Invariant:** nothing is done before every limit was found to hold and the operator has confirmed it.

mod cluster_snapshot;
mod drive;
mod evidence;
mod list;
mod means;
mod plan;
mod probes;
mod radius;
mod record;
mod report;
mod run;
mod standard;
mod stop;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use muster_console::{Console, Exit, Failure, Global};

/// Commands about drills.
#[derive(Subcommand)]
pub enum DrillCommand {
    /// Scenarios that can be run on a live cluster, and the drills that were, as kept on this machine
    #[command(after_help = "Examples:\n  muster drill list\n  muster drill list -o name")]
    List(list::ListArgs),
    /// Run a scenario on this cluster, after its limits were checked and you have typed its name
    #[command(after_help = "\
Examples:
  muster drill run replica-silent --dry-run       what would be done, to whom, and whether it may be; changes nothing
  muster drill run replica-silent
  muster drill run region-silent --max-share 50 --yes
  muster drill run --file my-drill.yaml --tenant sre

Ctrl-C ends it and undoes everything, and so does `muster drill stop` from any machine. Should this command die,
silent replicas take traffic again within seconds by themselves; cordoned nodes wait for `muster drill stop`.

While it runs, probes are submitted for --tenant: jobs that never start and are cancelled at once, named after the drill.
Exit codes: 0 when every expectation held, 1 when one did not or could not be looked at, 5 when a limit forbids it, 130 when interrupted.")]
    Run(Box<run::RunArgs>),
    /// The page of a drill: what was done, what users saw of it, and whether that is as it should be
    #[command(after_help = "\
Examples:
  muster drill report                                 the newest, as Markdown
  muster drill report d-20260131t080000z-1f3a -f html > drill.html
  muster drill report -f json | jq .

From what was kept on the machine that ran it (--dir), together with the cluster's decision log.")]
    Report(report::ReportArgs),
    /// End the drill that runs, from anywhere, and undo what one that died has left
    #[command(after_help = "\
Examples:
  muster drill stop

Every replica takes all traffic again, nodes that a drill keeps away from work are put back, probes are cancelled.
Safe to repeat, and with no drill at all.")]
    Stop(stop::StopArgs),
}

/// Where drills are kept on this machine.
#[derive(Args)]
pub struct DirectoryArgs {
    /// Where drills are kept [default: $XDG_STATE_HOME/muster/drills, else ~/.local/state/muster/drills]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Runs one command.
///
/// # Errors
/// Says what failed, and what to do next.
pub async fn run(global: &Global, console: &Console, command: DrillCommand) -> Result<Exit, Failure> {
    match command {
        DrillCommand::List(args) => list::run(console, args),
        DrillCommand::Run(args) => run::run(global, console, *args).await,
        DrillCommand::Report(args) => report::run(global, console, args).await,
        DrillCommand::Stop(args) => stop::run(global, console, args).await,
    }
}
