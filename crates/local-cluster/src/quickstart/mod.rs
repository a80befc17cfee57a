//! `muster quickstart`: the whole promise on one machine, with real processes.
//!
//! Three replicas in three regions, twelve hosts with eight declared accelerators each, real jobs.
//! The leader is killed, then everything in one region; what was acknowledged finishes, and nothing
//! runs twice: the workers write down themselves when they ran.

mod report;
mod story;
mod tracker;

use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fleet::{Fleet, REGIONS, Region, Shape};

/// Hosts of a region.
const HOSTS_PER_REGION: u8 = 4;
/// Declared accelerators of a host.
const DEVICES_PER_HOST: u16 = 8;
/// Short leases, so that a lost region is noticed while somebody watches.
const PARAMETERS: &str = "[parameters]\nlease_ttl = \"2s\"\nlease_margin = \"1s\"\nheartbeat_interval = \"400ms\"\ndigest_interval_records = 50\n\n[timing]\nheartbeat_interval = \"100ms\"\nelection_timeout_min = \"200ms\"\nelection_timeout_max = \"400ms\"\n";

fn shape() -> Shape {
    let regions = REGIONS.map(|name| Region { name: name.to_owned(), hosts: HOSTS_PER_REGION });
    Shape { regions: regions.into(), accelerator: "h100".to_owned(), devices_per_host: DEVICES_PER_HOST }
}

/// Shows the whole of Muster on this machine: a cluster over three regions, jobs, a leader's death, a
/// region's loss. Takes about a minute and leaves no process behind.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:\n  \
    Watch it:\n      muster quickstart\n  \
    Keep logs, checkpoints and evidence for a look:\n      muster quickstart --dir /tmp/muster-demo\n  \
    For programs: one JSON object as the last line of standard output:\n      muster quickstart --json | tail -n 1")]
pub struct QuickstartArgs {
    /// Print the summary as one JSON line on standard output; progress goes to standard error
    #[arg(long)]
    json: bool,
    /// Directory for data, logs and evidence; must not exist yet. Kept afterwards
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints progress with the time since the start.
#[derive(Clone, Copy)]
struct Progress {
    started: Instant,
}

impl Progress {
    fn say(self, text: &str) {
        eprintln!("{:>6.1}s  {text}", self.started.elapsed().as_secs_f32());
    }
}

/// Runs the quickstart; 0 when nothing was lost and nothing ran twice.
pub async fn run(args: QuickstartArgs, shutdown: CancellationToken) -> Result<ExitCode> {
    // Orphans of killed agents come to this process, so that none is left behind unnoticed.
    nix::sys::prctl::set_child_subreaper(true).context("becoming the parent of orphans")?;
    let scratch = match &args.dir {
        Some(_) => None,
        None => Some(
            tempfile::Builder::new().prefix("muster-quickstart-").tempdir().context("making a directory")?,
        ),
    };
    let dir = match (&args.dir, &scratch) {
        (Some(dir), _) => {
            anyhow::ensure!(!dir.exists(), "{} exists already; name a new directory", dir.display());
            std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
            dir.canonicalize().with_context(|| format!("finding {}", dir.display()))?
        }
        (None, Some(scratch)) => scratch.path().to_path_buf(),
        (None, None) => anyhow::bail!("no directory to work in"),
    };
    let progress = Progress { started: Instant::now() };
    let mut fleet = Fleet::create(&dir, shape(), PARAMETERS)?;
    let told = tokio::select! {
        told = story::tell(&mut fleet, progress) => Some(told),
        () = shutdown.cancelled() => None,
    };
    fleet.stop();
    let Some(told) = told else {
        eprintln!("interrupted; every process of the quickstart was stopped");
        return Ok(ExitCode::from(130));
    };
    let summary = match told {
        Ok(summary) => summary,
        Err(error) => {
            let kept = dir.clone();
            if let Some(scratch) = scratch {
                // The logs say why: keep them.
                let _ = scratch.keep();
            }
            return Err(
                error.context(format!("the quickstart did not get through; logs are in {}", kept.display()))
            );
        }
    };
    report::print(&summary, args.json)?;
    if args.dir.is_some() {
        progress.say(&format!("data, logs and evidence are in {}", dir.display()));
    }
    Ok(if summary.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
