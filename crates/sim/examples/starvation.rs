//! How long gangs of half a fleet wait behind small jobs, against strict first come, first served.
//!
//! `cargo run --release -p muster-sim --example starvation -- [--seeds N] [--from SEED] [--policy NAME]
//! [--known] [--each]` replays N generated worlds (`muster sim generate starvation`) under a policy and under
//! `fifo`, and says how many gangs waited longer than 1.25 times what strict order made them wait and
//! their own run.

use std::time::Duration;

use muster_sim::Preset;
use muster_sim::generate::{Options as World, Shape, generate};
use muster_sim::queue::{Durations, Options, Report, queue};

struct Args {
    seeds: u64,
    from: u64,
    policy: Preset,
    durations: Durations,
    each: bool,
}

fn args() -> Result<Args, String> {
    let mut parsed =
        Args { seeds: 100, from: 1, policy: Preset::Default, durations: Durations::Predicted, each: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--seeds" => parsed.seeds = value()?.parse().map_err(|_| "--seeds: not a number")?,
            "--from" => parsed.from = value()?.parse().map_err(|_| "--from: not a number")?,
            "--policy" => parsed.policy = value()?.parse().map_err(|error| format!("{error}"))?,
            "--known" => parsed.durations = Durations::True,
            "--each" => parsed.each = true,
            _ => return Err(format!("{word} is not known")),
        }
    }
    Ok(parsed)
}

fn replay(seed: u64, preset: Preset, durations: Durations) -> Report {
    let world = World { load_percent: 98, days: 4, ..World::new(Shape::Starvation, seed) };
    let trace = generate(&world).expect("the options are within bounds");
    let options = Options { durations, ..Options::under(preset) };
    let jobs = trace.jobs.into_iter().map(Ok);
    queue(&trace.nodes, jobs, &[], options, &|| Duration::ZERO, &mut |_| {}).expect("a made trace is sound")
}

fn hours(ms: u64) -> f64 {
    ms as f64 / 3_600_000.0
}

fn main() -> Result<(), String> {
    let args = args()?;
    let (mut gangs, mut late, mut worst, mut waits, mut strict_waits) = (0u64, 0u64, 0f64, 0u64, 0u64);
    let (mut mean_s, mut strict_mean_s, mut preempted) = (0f64, 0f64, 0u64);
    for seed in args.from..args.from + args.seeds {
        let (strict, report) =
            (replay(seed, Preset::Fifo, args.durations), replay(seed, args.policy, args.durations));
        mean_s += report.queue_avg_s;
        strict_mean_s += strict.queue_avg_s;
        preempted += report.preemptions;
        if report.unfinished.count > 0 {
            return Err(format!("seed {seed}: {} jobs never started", report.unfinished.count));
        }
        for gang in &report.gangs {
            let reference =
                strict.gangs.iter().find(|other| other.job == gang.job).expect("it ran there too");
            let bound_ms = reference.wait_ms * 5 / 4 + gang.run_ms;
            gangs += 1;
            waits += gang.wait_ms;
            strict_waits += reference.wait_ms;
            worst = worst.max(gang.wait_ms as f64 / bound_ms as f64);
            let is_late = gang.wait_ms > bound_ms;
            late += u64::from(is_late);
            if args.each || is_late {
                println!(
                    "seed {seed} {}: waits {:.1} h, strict order {:.1} h, bound {:.1} h{}",
                    gang.job,
                    hours(gang.wait_ms),
                    hours(reference.wait_ms),
                    hours(bound_ms),
                    if is_late { ": LATE" } else { "" }
                );
            }
        }
    }
    let per = |sum: f64, count: u64| sum / count.max(1) as f64;
    println!(
        "{} worlds, {gangs} gangs: {late} beyond the bound, worst at {worst:.2} of it; they wait {:.1} h on \
         average, {:.1} h in strict order; all jobs {:.0} s, {:.0} s in strict order; {preempted} preempted",
        args.seeds,
        per(hours(waits), gangs),
        per(hours(strict_waits), gangs),
        per(mean_s, args.seeds),
        per(strict_mean_s, args.seeds),
    );
    Ok(())
}
