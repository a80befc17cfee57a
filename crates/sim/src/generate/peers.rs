//! The published performance tests of other schedulers as traces, so that figures can be set side by side.
//!
//! Times in those tests are milliseconds; a trace has seconds. A tick of theirs becomes a second here, as
//! said at each shape: over virtual time only the ratios matter.

use muster_types::PriorityTier;

use super::{Trace, host, plain_job};
use crate::trace::{JobEntry, NodeEntry};

/// One class of workloads of a queue; a pod has one device.
struct Class {
    name: &'static str,
    count: u64,
    every_s: u64,
    duration_s: u64,
    tier: PriorityTier,
    pods: u32,
}

/// What a queue of these classes submits. The `n`-th of a class comes after `n` intervals.
fn queue_jobs(jobs: &mut Vec<JobEntry>, queue: &str, cohort: &str, classes: &[Class]) {
    for class in classes {
        for n in 0..class.count {
            let id = format!("{queue}-{}-{n:04}", class.name);
            let submit_s = (n + 1) * class.every_s;
            let mut job = plain_job(id, submit_s, class.duration_s, class.pods, 1_000);
            job.tenant = queue.to_owned();
            job.queue = queue.to_owned();
            job.tier = class.tier;
            job.home_cluster = cohort.to_owned();
            jobs.push(job);
        }
    }
}

/// A fleet cluster for each cohort, with as many devices as its queues have quota together.
fn cohort_fleet(cohorts: usize, hosts_each: usize) -> Vec<NodeEntry> {
    let host_of = |n: usize| {
        let cohort = format!("cohort-{:02}", n / hosts_each);
        host(format!("{cohort}-n{:03}", n % hosts_each), "r-a", &cohort, n % hosts_each / 32)
    };
    (0..cohorts * hosts_each).map(host_of).collect()
}

fn kueue(cohorts: usize, queues_each: usize, classes: &[Class]) -> Trace {
    // A queue has quota for 20 units, a host has 8.
    let hosts = (queues_each * 20).div_ceil(8);
    let mut jobs = Vec::new();
    for cohort in 0..cohorts {
        for queue in 0..queues_each {
            let name = format!("queue-{:04}", cohort * queues_each + queue);
            queue_jobs(&mut jobs, &name, &format!("cohort-{cohort:02}"), classes);
        }
    }
    Trace { nodes: cohort_fleet(cohorts, hosts), jobs, ..Trace::default() }
}

fn kueue_class(name: &'static str, count: u64, every_s: u64, duration_s: u64, pods: u32) -> Class {
    let tier = match name {
        "small" => PriorityTier::Batch,
        "medium" => PriorityTier::Standard,
        _ => PriorityTier::Production,
    };
    Class { name, count, every_s, duration_s, tier, pods }
}

/// Kueue's baseline: 5 cohorts of 6 queues with 500 workloads each, of 1, 5 and 20 units; a second stands
/// for 100 ms. A unit is a device here, a cohort a separate cluster, a priority a tier. Quotas and
/// borrowing are not in a trace; `--home-only` keeps each cohort to its cluster.
pub(super) fn kueue_baseline() -> Trace {
    kueue(
        5,
        6,
        &[
            kueue_class("small", 350, 1, 2, 1),
            kueue_class("medium", 100, 5, 5, 5),
            kueue_class("large", 50, 12, 10, 20),
        ],
    )
}

/// Kueue's large-scale test: 10 cohorts of 100 queues with 50 workloads each, in the shares of the baseline;
/// a second stands for 10 ms.
pub(super) fn kueue_large() -> Trace {
    kueue(
        10,
        100,
        &[
            kueue_class("small", 35, 2, 5, 1),
            kueue_class("medium", 10, 5, 10, 5),
            kueue_class("large", 5, 20, 20, 20),
        ],
    )
}

/// Kueue's topology-aware test: 640 nodes in 10 racks, 6 queues of 7 classes of 4 to 32 pods, 15,000
/// workloads in the shares of the published 1,050; a second stands for a second of run time, and intervals,
/// which are shorter than one there, are one. CPUs are what is asked for there: 96 to a node become 8
/// devices, so a pod of 2, 4 or 8 CPUs becomes a share of 166, 333 or 666 thousandths of a device. Which level of the
/// topology a class wants is not in a trace.
pub(super) fn kueue_tas() -> Trace {
    let class = |name, count, duration_s, tier, pods, milli| (name, count, duration_s, tier, pods, milli);
    let classes = [
        class("small-required", 714, 10, PriorityTier::Batch, 4, 166),
        class("medium-required", 429, 15, PriorityTier::Standard, 8, 333),
        class("large-required", 286, 20, PriorityTier::Production, 16, 666),
        class("small-preferred", 429, 12, PriorityTier::Standard, 4, 166),
        class("medium-preferred", 286, 16, PriorityTier::Standard, 8, 333),
        class("medium-balanced", 214, 18, PriorityTier::Production, 16, 333),
        class("large-balanced", 142, 25, PriorityTier::Critical, 32, 666),
    ];
    let nodes = (0..640).map(|n| host(format!("n{n:03}"), "r-a", "c01", n / 64)).collect();
    let mut jobs = Vec::new();
    for queue in 0..6 {
        for (name, count, duration_s, tier, pods, milli) in classes {
            for n in 0..count {
                let id = format!("queue-{queue}-{name}-{n:04}");
                let mut job = plain_job(id, n + 1, duration_s, pods, milli);
                job.tenant = format!("queue-{queue}");
                job.queue = job.tenant.clone();
                job.tier = tier;
                job.home_cluster = "c01".to_owned();
                jobs.push(job);
            }
        }
    }
    Trace { nodes, jobs, ..Trace::default() }
}

/// KAI's scale test on 500 nodes of 8 devices, one part after another, each on an empty fleet:
///
/// | from | what |
/// |---|---|
/// | 0 h | 4,000 jobs of one device fill the fleet; a minute later a job of 10 whole nodes cannot start |
/// | 2 h | one gang of 512 workers with one device each |
/// | 4 h | 4,000 one-device jobs of the lowest tier fill it; a production job wants one device |
/// | 6 h | the same; a production gang wants 2,000 devices |
///
/// Its consolidation of fragments is left out: a trace cannot say where fragments are.
pub(super) fn kai_scale() -> Trace {
    const HOUR_S: u64 = 3_600;
    let nodes = (0..500).map(|n| host(format!("n{n:03}"), "r-a", "c01", n / 32)).collect();
    let mut jobs = Vec::new();
    let mut fill = |part: &str, from_s: u64, tier: PriorityTier| {
        for n in 0..4_000 {
            let mut job = plain_job(format!("{part}-fill-{n:04}"), from_s, HOUR_S, 1, 1_000);
            job.tier = tier;
            jobs.push(job);
        }
    };
    fill("start", 0, PriorityTier::Standard);
    fill("reclaim-one", 4 * HOUR_S, PriorityTier::Free);
    fill("reclaim-many", 6 * HOUR_S, PriorityTier::Free);
    let mut add = |id: &str, submit_s, replicas, devices: u64, tier| {
        let mut job = plain_job(id.to_owned(), submit_s, 600, replicas, devices * 1_000);
        job.tier = tier;
        jobs.push(job);
    };
    add("start-no-room", 60, 10, 8, PriorityTier::Standard);
    add("gang-512", 2 * HOUR_S, 512, 1, PriorityTier::Standard);
    add("reclaim-one", 4 * HOUR_S + 60, 1, 1, PriorityTier::Production);
    add("reclaim-many", 6 * HOUR_S + 60, 250, 8, PriorityTier::Production);
    for job in &mut jobs {
        job.tenant = if job.tier == PriorityTier::Production { "research" } else { "everyone" }.to_owned();
        job.queue = job.tenant.clone();
    }
    Trace { nodes, jobs, ..Trace::default() }
}
