//! First come, first served, and nobody passes anybody: what a wait is measured against.
//!
//! Knows every run time from the beginning and nothing else: no tenants, no tiers, no launch.

use std::collections::BTreeMap;

use crate::world::JobPlan;

/// When each of these jobs starts, in their order, on hosts of `devices` devices. A job with a slice takes a
/// whole pod of `pod` hosts.
pub fn starts(jobs: &[JobPlan], hosts: usize, devices: u16, pod: usize) -> Vec<u64> {
    let mut free = vec![devices; hosts];
    // Ends, with the hosts and devices that come back.
    let mut ends: BTreeMap<(u64, usize), Vec<(usize, u16)>> = BTreeMap::new();
    let mut now = 0;
    let mut found = Vec::with_capacity(jobs.len());
    for (place, job) in jobs.iter().enumerate() {
        now = now.max(job.at_ms);
        loop {
            while let Some(end) = ends.first_entry().filter(|end| end.key().0 <= now) {
                for (host, count) in end.remove() {
                    free[host] += count;
                }
            }
            if let Some(taken) = fit(&free, job, devices, pod) {
                for (host, count) in &taken {
                    free[*host] -= count;
                }
                ends.insert((now + job.run_ms, place), taken);
                found.push(now);
                break;
            }
            now = ends.first_key_value().expect("a job that fits the empty fleet starts some time").0.0;
        }
    }
    found
}

/// Each worker on the fullest host that still holds it.
fn fit(free: &[u16], job: &JobPlan, devices: u16, pod: usize) -> Option<Vec<(usize, u16)>> {
    if job.slice.is_some() {
        let is_free = |from: usize| free[from..from + pod].iter().all(|left| *left == devices);
        let from = (0..free.len()).step_by(pod).find(|from| is_free(*from))?;
        return Some((from..from + pod).map(|host| (host, devices)).collect());
    }
    let mut left = free.to_vec();
    let mut taken = Vec::new();
    for _ in 0..job.workers {
        let holds = (0..left.len()).filter(|host| left[*host] >= job.devices);
        let host = holds.min_by_key(|host| left[*host])?;
        left[host] -= job.devices;
        taken.push((host, job.devices));
    }
    Some(taken)
}

#[test]
fn nobody_passes_the_first() {
    let small = |at| JobPlan::new(at, "small", "t", "h100").gang(1, 1).runs(10, false);
    let large = |at| JobPlan::new(at, "large", "t", "h100").gang(2, 4).runs(10, false);
    let found = starts(&[small(0), large(1), small(2)], 2, 4, 1);
    assert_eq!(found, [0, 10, 20]);
}
