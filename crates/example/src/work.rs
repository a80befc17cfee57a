//! A short job: it runs, says who it is, and ends.

use crate::error::Error;
use crate::intervals::Recorder;
use crate::process::{Exit, StopSignal, say};
use crate::rank_map::RankMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const DURATION_MAX_MS: u64 = 30 * 24 * 3600 * 1000;

/// Run for a while and exit.
///
/// Says which rank of which job and attempt it is, lasts the time asked for, and ends with the exit code
/// asked for. SIGTERM ends it early with code 143.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  Last ten seconds:
    muster example work --duration-ms 10000
  Fail, to see how failures are retried:
    muster example work --duration-ms 500 --exit-code 3")]
pub struct WorkArgs {
    /// How long to run, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(..=DURATION_MAX_MS))]
    pub duration_ms: u64,
    /// The exit code to end with when the time is over
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    pub exit_code: u8,
    /// Where to write down from when to when this process ran; without it nothing is written
    #[arg(long, value_name = "DIR", env = "MUSTER_INTERVAL_DIR")]
    pub interval_dir: Option<PathBuf>,
}

/// Runs the job; reports errors on stderr.
pub fn work(args: WorkArgs) -> Exit {
    Exit::of(run(&args))
}

fn run(args: &WorkArgs) -> Result<Exit, Error> {
    let end = Instant::now() + Duration::from_millis(args.duration_ms);
    let stop = StopSignal::install()?;
    let map = RankMap::from_env_or_alone()?;
    let recorder =
        args.interval_dir.as_deref().map(|directory| Recorder::start(directory, &map)).transpose()?;
    say(&format!(
        "job {} attempt {} rank {} of {}: working for {} ms",
        map.job, map.attempt, map.rank, map.world_size, args.duration_ms
    ));
    stop.pass_time_until(end);
    drop(recorder);
    if stop.is_raised() {
        say("stopped by SIGTERM");
        return Ok(Exit::Preempted);
    }
    say("done");
    Ok(match args.exit_code {
        0 => Exit::Done,
        code => Exit::Asked(code),
    })
}
