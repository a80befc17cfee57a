//! What it takes to make room: a fleet full of small jobs of the lowest tier, with and without four jobs of a
//! high tier that each need a whole host.
//!
//! `cargo run --release -p muster-sim --example making_room -- 300`

use std::error::Error;
use std::time::{Duration, Instant};

use muster_sim::Preset;
use muster_sim::generate::{Trace, crowd};
use muster_sim::queue::{Options, Report, queue};
use muster_types::PriorityTier;

fn main() -> Result<(), Box<dyn Error>> {
    let hosts: usize = std::env::args().nth(1).map_or(Ok(300), |text| text.parse())?;
    let with = crowd(hosts, 1);
    let mut without = with.clone();
    without.jobs.retain(|job| job.tier == PriorityTier::Free);
    let (before, before_cpu) = replay(&without)?;
    let (after, after_cpu) = replay(&with)?;
    println!("{hosts} hosts of 8 devices, {} one-device jobs", without.jobs.len());
    println!(
        "scheduler without the four: {:.2} s (processor time of the replay {before_cpu:.2} s)",
        before.scheduler_s
    );
    println!(
        "scheduler with the four:    {:.2} s (processor time of the replay {after_cpu:.2} s)",
        after.scheduler_s
    );
    println!(
        "times as much: {:.2} (processor time {:.2})",
        after.scheduler_s / before.scheduler_s,
        after_cpu / before_cpu
    );
    for class in &after.queueing_by_size {
        println!("{} devices: {:?}", class.devices, class.waits);
    }
    println!(
        "stopped: {}, moved: {}; device-hours lost: {}",
        after.preemptions, after.moves, after.device_hours_lost
    );
    Ok(())
}

fn replay(trace: &Trace) -> Result<(Report, f64), Box<dyn Error>> {
    let options = Options::under(Preset::Default);
    let begin = Instant::now();
    let clock = move || begin.elapsed();
    let cpu = processor_time();
    let jobs = trace.jobs.iter().cloned().map(Ok);
    let report = queue(&trace.nodes, jobs, &[], options, &clock, &mut |_| {})?;
    Ok((report, (processor_time() - cpu).as_secs_f64()))
}

/// Time that this process was on a processor; zero where the system does not say.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next().and_then(|text| text.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}
