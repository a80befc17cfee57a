//! A fleet full of small jobs of the lowest tier, and a few of a high tier that each need a whole host.

use muster_types::PriorityTier;

use super::{Trace, host, plain_job};
use crate::random::Random;

/// Devices of one host.
const HOST_DEVICES: u64 = 8;
/// One-device jobs for each device: with their run times a backlog for two to three days.
const JOBS_PER_DEVICE: u64 = 6;
/// Hosts of one rack.
const HOSTS_PER_RACK: usize = 16;

/// A crowd: on `hosts` hosts of eight devices, one-device jobs of the tier `free` that run from one minute to
/// a day, ten hours on average, six for each device, all submitted at once; and four jobs of the tier
/// `production` that take one whole host for two hours each. The first comes a minute after the crowd, when
/// nobody has run for the minimum time yet, the others after an hour each.
#[must_use]
pub fn crowd(hosts: usize, seed: u64) -> Trace {
    let nodes = (0..hosts).map(|n| host(format!("n{n:04}"), "r-a", "c01", n / HOSTS_PER_RACK)).collect();
    let mut random = Random::new(seed, 0);
    let mut jobs = Vec::new();
    for n in 0..hosts as u64 * HOST_DEVICES * JOBS_PER_DEVICE {
        let duration_s = 60.0 + random.unit() * 71_880.0;
        let mut job = plain_job(format!("small-{n:05}"), 0, duration_s as u64, 1, 1_000);
        job.tier = PriorityTier::Free;
        job.tenant = format!("students-{}", n % 4);
        jobs.push(job);
    }
    for n in 0..4 {
        let mut job = plain_job(format!("whole-host-{n}"), 60 + n * 3_600, 7_200, 1, HOST_DEVICES * 1_000);
        job.tier = PriorityTier::Production;
        job.tenant = "service".to_owned();
        jobs.push(job);
    }
    for job in &mut jobs {
        job.queue.clone_from(&job.tenant);
    }
    Trace { nodes, jobs, ..Trace::default() }
}
