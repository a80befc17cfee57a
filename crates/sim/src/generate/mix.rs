//! Job mixes after published marginals of sizes and run times.
//!
//! The figures are those of "Characterization of Large Language Model Development in the Datacenter" (Acme,
//! NSDI'24), which gives mean, median and most devices of a job and mean and median of its run time for its
//! own two clusters and three older traces. Run times are log-normal with that mean and median. Sizes are
//! powers of two up to the largest, six in ten jobs at or below the median, and the others falling off
//! geometrically, at the rate that gives the mean. Sizes and run times are drawn independently, arrivals are
//! exponential: what the sources say of neither is not imitated.

use super::{Like, Options, Trace, host, plain_job};
use crate::random::Random;
use crate::trace::NodeEntry;

/// Longest run: beyond it a log-normal's tail is longer than any of the traces.
const DURATION_S_MAX: f64 = 30.0 * 86_400.0;
/// Devices of one host.
const HOST_DEVICES: u64 = 8;
/// Owners of jobs; each submits half as often as the one before, up to the last.
const TENANTS: usize = 16;

/// What was published of a trace.
struct Marginals {
    sizes_mean: f64,
    sizes_max: u64,
    duration_mean_s: f64,
    duration_median_s: f64,
}

fn marginals(like: Like) -> Marginals {
    let of = |sizes_mean, sizes_max, duration_mean_s, duration_median_s| Marginals {
        sizes_mean,
        sizes_max,
        duration_mean_s,
        duration_median_s,
    };
    match like {
        Like::Kalos => of(26.8, 1_024, 1_260.0, 124.0),
        Like::Philly => of(1.93, 128, 18_006.0, 874.0),
        Like::Helios => of(3.72, 2_048, 6_652.0, 206.0),
        Like::Pai => of(0.68, 8, 4_787.0, 481.0),
        _ => of(5.68, 1_024, 1_414.0, 122.0),
    }
}

/// Sizes in milli-devices, with how likely each is.
struct Sizes {
    milli: Vec<u64>,
    weights: Vec<f64>,
}

impl Sizes {
    fn of(like: Like, marginals: &Marginals) -> Sizes {
        // At or below the median: one device, but for PAI, where half a device is.
        let small: &[(u64, f64)] =
            if like == Like::Pai { &[(250, 0.25), (500, 0.35)] } else { &[(1_000, 0.6)] };
        let first = if like == Like::Pai { 1 } else { 2 };
        let large: Vec<u64> =
            (0..).map(|n| first << n).take_while(|size| *size <= marginals.sizes_max).collect();
        let share: f64 = small.iter().map(|(_, weight)| weight).sum();
        let small_mean: f64 = small.iter().map(|(milli, weight)| *milli as f64 / 1_000.0 * weight).sum();
        let wanted = (marginals.sizes_mean - small_mean) / (1.0 - share);
        let decay = decay_for_mean(&large, wanted);
        let total = geometric(large.len(), decay).iter().sum::<f64>();
        let mut sizes = Sizes {
            milli: small.iter().map(|(milli, _)| *milli).collect(),
            weights: small.iter().map(|(_, weight)| *weight).collect(),
        };
        sizes.milli.extend(large.iter().map(|size| size * 1_000));
        sizes
            .weights
            .extend(geometric(large.len(), decay).iter().map(|weight| weight / total * (1.0 - share)));
        sizes
    }
}

fn geometric(count: usize, decay: f64) -> Vec<f64> {
    let mut weight = 1.0;
    let mut step = || {
        let this = weight;
        weight *= decay;
        this
    };
    (0..count).map(|_| step()).collect()
}

/// The decay at which sizes have this mean, by halving an interval: the mean rises with it.
fn decay_for_mean(sizes: &[u64], mean: f64) -> f64 {
    let mean_at = |decay: f64| {
        let weights = geometric(sizes.len(), decay);
        let sum: f64 = sizes.iter().zip(&weights).map(|(size, weight)| *size as f64 * weight).sum();
        sum / weights.iter().sum::<f64>()
    };
    let (mut low, mut high) = (0.0, 4.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if mean_at(middle) < mean { low = middle } else { high = middle }
    }
    low
}

/// Clusters with their regions and hosts: one that holds the largest job, and three half its size.
fn clusters(sizes_max: u64) -> [(&'static str, &'static str, u64); 4] {
    let hosts = (sizes_max / HOST_DEVICES).max(32);
    [("c01", "r-a", hosts), ("c02", "r-b", hosts / 2), ("c03", "r-c", hosts / 2), ("c04", "r-c", hosts / 2)]
}

fn fleet(sizes_max: u64) -> Vec<NodeEntry> {
    let mut nodes = Vec::new();
    for (cluster, region, hosts) in clusters(sizes_max) {
        for n in 0..hosts {
            nodes.push(host(format!("{cluster}-n{n:03}"), region, cluster, n as usize / 32));
        }
    }
    nodes
}

pub(super) fn mix(options: &Options) -> Trace {
    let like = options.like.unwrap_or(Like::Seren);
    let marginals = marginals(like);
    let sizes = Sizes::of(like, &marginals);
    let nodes = fleet(marginals.sizes_max);
    let devices = nodes.len() as f64 * HOST_DEVICES as f64;
    let demand_s = marginals.sizes_mean * marginals.duration_mean_s;
    let between_s = demand_s / (devices * f64::from(options.load_percent) / 100.0);
    let [mut size_of, mut duration_of, mut arrival_of, mut home_of] =
        [0, 1, 2, 3].map(|stream| Random::new(options.seed, stream));
    let tenants = geometric(TENANTS, 0.75);
    // Not by the size of the cluster: that load and supply are apart is what a fleet is scheduled for.
    let homes = [3.0, 3.0, 2.0, 2.0];
    let clusters = clusters(marginals.sizes_max);
    let mut now_s = 0.0;
    let mut jobs = Vec::new();
    for n in 0..options.jobs {
        now_s += arrival_of.exponential(between_s);
        let milli = sizes.milli[size_of.weighted(&sizes.weights)];
        let duration = duration_of.log_normal(marginals.duration_median_s, marginals.duration_mean_s);
        let host_milli = HOST_DEVICES * 1_000;
        let (replicas, accel_milli) =
            if milli <= host_milli { (1, milli) } else { ((milli / host_milli) as u32, host_milli) };
        let duration_s = duration.clamp(1.0, DURATION_S_MAX) as u64;
        let mut job = plain_job(format!("job-{n:07}"), now_s as u64, duration_s, replicas, accel_milli);
        let home = clusters[home_of.weighted(&homes)];
        let home = if home.2 * host_milli < milli { clusters[0] } else { home };
        job.home_cluster = home.0.to_owned();
        job.tenant = format!("team-{:02}", home_of.weighted(&tenants));
        job.queue = job.tenant.clone();
        jobs.push(job);
    }
    Trace { nodes, jobs, ..Trace::default() }
}
