//! `muster-world`: clusters under a seed.

use anyhow::{Result, anyhow, bail};
use clap::{Parser, Subcommand};
use muster_journal::REQUESTED_DECISIONS;
use muster_planted::Rule;
use muster_world::settings::{Settings, breakable};
use muster_world::simulation::{Report, simulate};
use muster_world::swarm::{Extent, catch, corpus, kinds, swarm};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Simulates whole clusters: the same seed is the same run.
#[derive(Parser)]
#[command(name = "muster-world", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one seed and say what became of it.
    Run {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Replicas, 3 or 5; the seed chooses where none are given.
        #[arg(long)]
        replicas: Option<u32>,
        /// Simulated time of faults.
        #[arg(long, default_value_t = 20_000)]
        chaos_ms: u64,
        /// Break a rule on purpose.
        #[arg(long)]
        bug: Option<Rule>,
        /// Nothing breaks.
        #[arg(long)]
        calm: bool,
        /// Print every event.
        #[arg(long)]
        trace: bool,
    },
    /// Run what failed once, then many seeds.
    Swarm {
        /// How many seeds.
        #[arg(long, default_value_t = 500)]
        seeds: u64,
        /// The first; without one, seeds that follow from the time, which are printed.
        #[arg(long)]
        from: Option<u64>,
        /// How long at most, in minutes of real time.
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        /// Simulated time of faults in each.
        #[arg(long, default_value_t = 20_000)]
        chaos_ms: u64,
        /// Threads.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Replicas, 3 or 5; the seeds choose where none are given.
        #[arg(long)]
        replicas: Option<u32>,
    },
    /// Break each rule on purpose and say which seed caught it.
    Bugs {
        /// Seeds tried for each.
        #[arg(long, default_value_t = 200)]
        seeds: u64,
        /// Simulated time of faults in each.
        #[arg(long, default_value_t = 20_000)]
        chaos_ms: u64,
    },
}

fn print_failure(report: &Report) {
    println!("FAILED seed {}: {}", report.settings.seed, report.violations.join(" | "));
    println!("  again: {}", report.replay_line());
}

fn run_one(settings: Settings, trace: bool) -> Result<()> {
    let started = Instant::now();
    let report = simulate(settings, trace);
    for line in &report.trace {
        println!("{line}");
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "seed {} replicas {}: {:?} recovered in {:?} ms; {:?}; {:.0} simulated seconds a second",
        settings.seed,
        settings.replicas,
        report.counts,
        report.recovered_ms,
        report.digest,
        report.digest.simulated_ms as f64 / 1_000.0 / seconds
    );
    if report.violations.is_empty() {
        return Ok(());
    }
    print_failure(&report);
    bail!("{} violations", report.violations.len())
}

/// Seeds that nobody has run yet: those from the present time on, which come faster than any machine runs them.
fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(1)
}

fn run_swarm(extent: Extent) -> Result<()> {
    let mut failures = 0;
    for case in corpus().map_err(anyhow::Error::msg)? {
        let report = simulate(case.settings, false);
        if !report.violations.is_empty() {
            failures += 1;
            println!("seed of the corpus ({}):", case.why);
            print_failure(&report);
        }
    }
    println!("seeds from {}", extent.from);
    let summary = swarm(extent, print_failure);
    println!(
        "{} seeds, {} failed; {:.0} simulated s at {:.0} simulated seconds a second of one core; {} submissions \
         acknowledged; slowest recovery {} ms; {} runs installed snapshots, {} of them in parts \
         that broke off, {} had a replica come back without its storage; {} checkpoints, {} leaders \
         replaced in time",
        summary.runs,
        summary.failed.len(),
        summary.simulated_ms as f64 / 1_000.0,
        summary.speed(),
        summary.acknowledged,
        summary.slowest_recovery_ms,
        summary.with_install,
        summary.with_resumption,
        summary.with_replacement,
        summary.checkpoints,
        summary.replaced_leaders
    );
    println!("{}", summary.depth());
    println!("{} bounded reads; asked for:", summary.bounded_reads);
    print!("{}", summary.asked.table(&REQUESTED_DECISIONS));
    if let Some(speed) = summary.speed_of_five() {
        println!("five replicas alone: {speed:.0} simulated seconds a second of one core");
    }
    for kind in kinds(&summary.failed) {
        println!("  {kind}");
    }
    failures += summary.failed.len();
    if failures == 0 { Ok(()) } else { bail!("{failures} seeds failed") }
}

fn run_bugs(seeds: u64, chaos_ms: u64) -> Result<()> {
    let mut missed = Vec::new();
    for bug in breakable() {
        let caught = catch(bug, 1..=seeds, chaos_ms, &[]).map_err(|control| {
            anyhow!("{} breaks nothing and is not clean: {:?}", control.replay_line(), control.violations)
        })?;
        match caught {
            Some(report) => {
                let first = report.violations.first().cloned().unwrap_or_default();
                println!("{:<26} seed {:<5} {first}", bug.name(), report.settings.seed);
            }
            None => missed.push(bug.name()),
        }
    }
    if !muster_planted::IS_ON {
        println!("the others are broken in the product itself: build with --features planted-bugs");
    }
    if missed.is_empty() { Ok(()) } else { bail!("not caught by {seeds} seeds: {}", missed.join(", ")) }
}

fn main() -> Result<()> {
    // A panic inside a run is a finding, told at its end.
    std::panic::set_hook(Box::new(|_| {}));
    match Arguments::parse().command {
        Command::Run { seed, replicas, chaos_ms, bug, calm, trace } => {
            let chosen = Settings::of_seed(seed, chaos_ms);
            let replicas = replicas.unwrap_or(chosen.replicas);
            run_one(Settings { replicas, bug, faults: !calm, ..chosen }, trace)
        }
        Command::Swarm { seeds, from, minutes, chaos_ms, threads, replicas } => {
            let limit = Duration::from_secs(minutes * 60);
            let from = from.unwrap_or_else(fresh_seed);
            run_swarm(Extent { from, seeds, limit, chaos_ms, threads, replicas })
        }
        Command::Bugs { seeds, chaos_ms } => run_bugs(seeds, chaos_ms),
    }
}
