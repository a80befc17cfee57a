//! Nodes that fail and are repaired.

use super::{Like, Options, Trace, host};
use crate::random::Random;
use crate::trace::{FailureEntry, NodeEntry};

const DAY_S: f64 = 86_400.0;
/// Median and mean of a repair. Published figures give rates of failure and not how long a node stays away;
/// these are an assumption, between a reboot and a visit by a technician.
const REPAIR_MEDIAN_S: f64 = 2.0 * 3_600.0;
const REPAIR_MEAN_S: f64 = 6.0 * 3_600.0;

/// Failures of a node per 1,000 days of it.
///
/// RSC-1 and RSC-2: "Revisiting Reliability in Large-Scale Machine Learning Research Clusters" (Meta, 2024),
/// eleven months. Llama 3: 419 unexpected interruptions in 54 days on 16,384 devices ("The Llama 3 Herd of
/// Models", 2024), which is 3.79 for hosts of eight.
fn rate(like: Like) -> f64 {
    match like {
        Like::Rsc2 => 2.34,
        Like::Llama3 => 3.79,
        _ => 6.50,
    }
}

/// Every node fails at the same rate, whatever it does and however old it is, and never while it is away.
pub(super) fn failures(options: &Options) -> Trace {
    let (nodes, is_given) = match &options.fleet {
        Some(fleet) => (fleet.clone(), true),
        None => (fleet(), false),
    };
    let between_s = 1_000.0 / rate(options.like.unwrap_or(Like::Rsc1)) * DAY_S;
    let end_s = options.days as f64 * DAY_S;
    let mut failures = Vec::new();
    for node in 0..nodes.len() {
        let mut random = Random::new(options.seed, node as u64);
        let mut up_since_s = 0.0;
        loop {
            let failed_s = up_since_s + random.exponential(between_s);
            if failed_s >= end_s {
                break;
            }
            let repair_s = random.log_normal(REPAIR_MEDIAN_S, REPAIR_MEAN_S).max(60.0);
            let (failed, repair) = (failed_s as u64, repair_s as u64);
            failures.push(FailureEntry { node, failed_s: failed, repaired_s: failed + repair });
            // A second more than the repair: times are cut to seconds, and no two failures may touch.
            up_since_s = (failed + repair + 1) as f64;
        }
    }
    failures.sort_by_key(|failure| (failure.failed_s, failure.node));
    let node_ids = nodes.iter().map(|node| node.id.clone()).collect();
    Trace { nodes: if is_given { Vec::new() } else { nodes }, jobs: Vec::new(), failures, node_ids }
}

fn fleet() -> Vec<NodeEntry> {
    (0..1_000).map(|n| host(format!("n{n:04}"), "r-a", "c01", n / 32)).collect()
}
