//! Load on a real cluster of processes, open loop, with percentiles and the machine they were taken on; and
//! the cost of the scheduler by itself.

mod cluster;
mod figures;
mod load;
mod machine;
mod muster;
mod options;
mod peer;
mod place;
mod results;
mod scenario;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use scenario::{agents, controls, disk, failover, launch, pages, read, restart, submit, watch};
use std::path::{Path, PathBuf};

#[derive(Parser)]
#[command(about, version)]
struct Arguments {
    /// Threads of the generator; few, so that it takes little from the cluster on the same machine
    #[arg(long, global = true, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Submissions: peak, latency at half of it, batches; etcd or Slurm for comparison
    Submit(submit::SubmitArgs),
    /// Reads of single jobs, by consistency and replica; etcd for comparison
    Read(read::ReadArgs),
    /// Many watchers on a follower: how soon they see what was submitted
    Watch(watch::WatchArgs),
    /// A replica with many jobs, killed and started again; memory, snapshots
    Restart(restart::RestartArgs),
    /// The leader killed again and again under load
    Failover(failover::FailoverArgs),
    /// From a submission to the first instruction of its workers; agents' memory; hosts that die
    Launch(launch::LaunchArgs),
    /// Many simulated agents: what their heartbeats cost the leader
    Agents(agents::AgentsArgs),
    /// Arrays of 100,000, changes and holds next to submissions, selectors over a million jobs
    Controls(controls::ControlsArgs),
    /// Web pages, /metrics and streams of events of one replica
    Pages(pages::PagesArgs),
    /// Bytes on disk for a job, and after a purge
    Disk(disk::DiskArgs),
    /// The scheduler by itself, on one thread: placements, gangs, verdicts, growth, memory, peers' tests
    Place(PlaceArgs),
    /// What a replica does at its start, on one thread: replay of a log, snapshot, restore
    Replay(ReplayArgs),
    /// Runs another command and keeps the JSON object that it prints, with the commit and the machine
    Record(results::RecordArgs),
    /// Writes the page of results from those that are kept
    Report(results::ReportArgs),
    /// Writes the table of sizes of the production guide from the results that are kept
    Sizes(results::SizesArgs),
}

#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES:\n  muster-bench replay\n  muster-bench replay --jobs 100000 --json benches/results/2026-01-31-replay.json"
)]
struct ReplayArgs {
    /// Jobs in the log
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    jobs: u64,
    /// Directory for the log and the snapshot; a temporary one when not given
    #[arg(long)]
    dir: Option<PathBuf>,
    /// File to write everything to as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// One step over files that are there, for a separate process
    #[arg(long, hide = true, requires = "dir")]
    step: Option<place::replay::Step>,
}

#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES:\n  muster-bench place\n  muster-bench place --only gang,never\n  muster-bench place --json benches/results/2026-01-31-place.json"
)]
struct PlaceArgs {
    /// Only these, separated by commas; all when not given
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(place::names()))]
    only: Vec<String>,
    /// File to write everything to as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn run_place(args: &PlaceArgs) -> Result<()> {
    let report = place::run(&args.only).map_err(anyhow::Error::msg)?;
    write_json(args.json.as_deref(), &report)
}

fn write_json(path: Option<&Path>, report: &serde_json::Value) -> Result<()> {
    path.map_or(Ok(()), |path| results::write(path, &results::stamp(report)))
}

fn run_replay(args: &ReplayArgs) -> Result<()> {
    if let (Some(step), Some(dir)) = (args.step, &args.dir) {
        let found = place::replay::step(step, dir).map_err(anyhow::Error::msg)?;
        println!("{found}");
        return Ok(());
    }
    let temporary = tempfile::tempdir().context("making a temporary directory")?;
    let directory = args.dir.as_deref().unwrap_or(temporary.path());
    let report = place::run_replay(args.jobs, directory).map_err(anyhow::Error::msg)?;
    write_json(args.json.as_deref(), &report)
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let threads = usize::from(arguments.threads);
    match arguments.command {
        Command::Place(args) => run_place(&args),
        Command::Replay(args) => run_replay(&args),
        Command::Record(args) => results::record(&args),
        Command::Report(args) => results::report(&args),
        Command::Sizes(args) => results::sizes(&args),
        Command::Submit(args) => block_on(threads, submit::run(args)),
        Command::Read(args) => block_on(threads, read::run(args)),
        Command::Watch(args) => block_on(threads, watch::run(args)),
        Command::Restart(args) => block_on(threads, restart::run(args)),
        Command::Failover(args) => block_on(threads, failover::run(args)),
        Command::Disk(args) => block_on(threads, disk::run(args)),
        Command::Launch(args) => block_on(threads, launch::run(args)),
        Command::Agents(args) => block_on(threads, agents::run(args)),
        Command::Controls(args) => block_on(threads, controls::run(args)),
        Command::Pages(args) => block_on(threads, pages::run(args)),
    }
}

/// Runs a scenario on a runtime with these threads.
fn block_on(threads: usize, scenario: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    runtime.context("starting the runtime")?.block_on(scenario)
}
