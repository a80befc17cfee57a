//! Fleets that are kept busy with small jobs, and a few gangs that need half of the fleet at once: who lets
//! small jobs pass a gang for as long as any fits starves it.
//!
//! Run times of small jobs are exponential around an hour, and one in ten runs ten times as long as the
//! others let expect. Worlds with an even seed have one gang, whose tenant has used nothing before; worlds
//! with an odd seed have several, of one tenant or of two. Arrivals are exponential.

use super::{Options, Trace, host, plain_job};
use crate::random::Random;

/// Devices of one host.
const HOST_DEVICES: u64 = 8;
/// What a small job usually takes, on average.
const SMALL_MEAN_S: f64 = 3_600.0;
/// One job in this many runs ten times as long.
const OVERRUNS_ONE_IN: u64 = 10;
/// Hosts that a gang takes, all of each.
const GANG_HOSTS: u32 = 4;
/// How long a gang runs.
const GANG_S: u64 = 36_000;
/// A gang comes so long after the one before, on average.
const GANG_GAP_S: f64 = 40_000.0;

pub(super) fn starvation(options: &Options) -> Trace {
    let mut small = Random::new(options.seed, 1);
    let mut large = Random::new(options.seed, 2);
    let is_one = options.seed.is_multiple_of(2);
    let hosts = if is_one { 11 } else { 8 };
    let nodes = (0..hosts).map(|n| host(format!("n{n:02}"), "r-a", "c01", n / 4)).collect();
    let until_s = options.days as f64 * 86_400.0;
    let mean_s = SMALL_MEAN_S * (OVERRUNS_ONE_IN as f64 + 9.0) / OVERRUNS_ONE_IN as f64;
    let devices = hosts as u64 * HOST_DEVICES;
    let gap_s = mean_s / (devices as f64 * f64::from(options.load_percent) / 100.0);
    let mut jobs = Vec::new();
    // The fleet is full from the first moment.
    let mut at_s = 0.0;
    while at_s < until_s {
        let usual_s = small.exponential(SMALL_MEAN_S);
        let runs_s = if small.bits().is_multiple_of(OVERRUNS_ONE_IN) { usual_s * 10.0 } else { usual_s };
        let mut job = plain_job(format!("small-{}", jobs.len()), at_s as u64, runs_s as u64 + 1, 1, 1_000);
        job.tenant = "small".to_owned();
        jobs.push(job);
        if jobs.len() as u64 > devices {
            at_s += small.exponential(gap_s);
        }
    }
    let gangs = if is_one { 1 } else { 3 + options.seed % 3 };
    let mut at_s = 6.0 * 3_600.0;
    for n in 0..gangs {
        at_s += large.exponential(GANG_GAP_S);
        let mut job = plain_job(format!("gang-{n}"), at_s as u64, GANG_S, GANG_HOSTS, HOST_DEVICES * 1_000);
        let is_second = options.seed % 4 == 1 && n % 2 == 1;
        job.tenant = if is_second { "larger" } else { "large" }.to_owned();
        jobs.push(job);
    }
    Trace { nodes, jobs, ..Trace::default() }
}
