//! What preemption takes: a fleet full of small jobs of the lowest tier, with and without four jobs of a
//! high tier that each need a whole host.
//!
//! `cargo run --release -p muster-sim --example making_room -- 300`

use std::error::Error;
use std::time::Duration;

use muster_sim::Preset;
use muster_sim::generate::{Trace, crowd};
use muster_sim::queue::{Options, Report, queue};
use muster_types::PriorityTier;
use nix::time::{ClockId, clock_gettime};

/// Replays of each trace, with and without the four alternately, unless the second argument says otherwise. The least
/// time of each counts: what else the machine does can only add to it.
const REPLAYS: usize = 2;

/// Most that the four may cost, in thousandths of what the scheduler takes without them.
const TIMES_MAX_MILLI: u64 = 1_500;

fn main() -> Result<(), Box<dyn Error>> {
    let hosts: usize = std::env::args().nth(1).map_or(Ok(300), |text| text.parse())?;
    let replays: usize = std::env::args().nth(2).map_or(Ok(REPLAYS), |text| text.parse())?;
    let with = crowd(hosts, 1);
    let mut without = with.clone();
    without.jobs.retain(|job| job.tier == PriorityTier::Free);
    let (mut before_s, mut after_s) = (f64::INFINITY, f64::INFINITY);
    let mut after = None;
    for _ in 0..replays {
        before_s = before_s.min(replay(&without)?.scheduler_s);
        let report = replay(&with)?;
        after_s = after_s.min(report.scheduler_s);
        after = Some(report);
    }
    let after = after.ok_or("nothing was replayed")?;
    let times = after_s / before_s;
    println!("{hosts} hosts of 8 devices, {} one-device jobs", without.jobs.len());
    println!("processor time of the scheduler's thread, the least of {replays} replays");
    println!("without the four: {before_s:.2} s; with the four: {after_s:.2} s; {times:.2} times as much");
    for class in &after.queueing_by_size {
        println!("{} devices: {:?}", class.devices, class.waits);
    }
    println!(
        "stopped: {}, moved: {}; device-hours lost: {}",
        after.preemptions, after.moves, after.device_hours_lost
    );
    if times * 1_000.0 > TIMES_MAX_MILLI as f64 {
        return Err(format!(
            "more than {}.{} times as much",
            TIMES_MAX_MILLI / 1_000,
            TIMES_MAX_MILLI % 1_000 / 100
        )
        .into());
    }
    Ok(())
}

fn replay(trace: &Trace) -> Result<Report, Box<dyn Error>> {
    let options = Options::under(Preset::Default);
    let jobs = trace.jobs.iter().cloned().map(Ok);
    Ok(queue(&trace.nodes, jobs, &[], options, &thread_time, &mut |_| {})?)
}

/// Processor time that this thread has had. The replay runs on it alone.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has a clock for every thread");
    Duration::from(time)
}
