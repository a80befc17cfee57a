//! Why a gang waits, and what would help. Made on demand: a pass over the line makes no report.

mod finding;
mod report;
mod variations;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use muster_state::State;
use muster_types::JobSpec;
use muster_types::policy::PlacementWeights;

use crate::Budget;
use crate::ever::{isolation_note, runtime_note, taint_note};
use crate::gang::plans_by_site;
use crate::sites::{self, Site};
use crate::terms::Terms;
use finding::Finding;
use report::{Counting, closest, count_nodes};
use variations::Variations;

pub use finding::WaitReason;
pub use report::{ClusterReport, NodeCounts};
pub use variations::Checkpoints;

/// Why a gang waits, cluster by cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The reason, in one.
    pub reason: WaitReason,
    /// The same with its numbers, as a sentence without a full stop.
    pub sentence: String,
    /// Workers of the gang; the fewest it can start with if it may have fewer than all.
    pub workers_wanted: u32,
    /// Weights of the placement score in the policy.
    pub weights: PlacementWeights,
    /// Clusters and types it may use.
    pub clusters: Vec<ClusterReport>,
    /// What would let it start now. Each was tried.
    pub would_help: Vec<String>,
}

impl Explanation {
    /// Stable code of the reason.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.reason.code()
    }

    /// The report where most of it fits now, of those that could hold it if possible; then where most
    /// devices are; then by name.
    #[must_use]
    pub fn closest(&self) -> Option<&ClusterReport> {
        closest(&self.clusters)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// Says why a gang does not start now, with full counts. Nothing is advised that `checkpoints` forbid.
#[must_use]
pub fn explain(
    state: &State,
    spec: &JobSpec,
    terms: &Terms<'_>,
    checkpoints: Option<&Checkpoints<'_>>,
) -> Explanation {
    let wanted = if terms.elastic { spec.worker_count_min() } else { spec.worker_count() };
    let pools = sites::pools(state, spec);
    let mut clusters = Vec::new();
    let mut counting: Vec<Counting<'_>> = Vec::new();
    let all_sites: Vec<Vec<Site<'_>>> =
        sites::clusters(&pools).map(|cluster| Site::of_cluster(cluster, spec)).collect();
    let mut budget = Budget::new(u64::MAX);
    for site in all_sites.iter().flatten() {
        counting.push(Counting::new(state, spec, terms, site, &mut budget.clone()));
    }
    count_nodes(state, spec, terms, &all_sites, &mut counting);
    let scores = plans_by_site(state, spec, terms, &mut budget);
    for (counting, site) in counting.into_iter().zip(all_sites.iter().flatten()) {
        let mut report = counting.report(state, spec, terms, site, wanted);
        let of_site = scores.iter().find(|(kind, plan)| {
            kind.as_ref() == site.kind && plan.region == *site.region && plan.cluster == *site.cluster
        });
        report.score = of_site.map(|(_, plan)| plan.score.clone());
        clusters.push(report);
    }
    let variations = Variations { state, spec, terms, checkpoints };
    let finding = variations.reason(&clusters, wanted, !pools.is_empty());
    let would_help = match finding {
        Finding::InLine => Vec::new(),
        _ => variations.would_help(&clusters, wanted),
    };
    Explanation {
        reason: finding.reason(),
        sentence: match finding {
            Finding::InLine => finding.to_string(),
            _ => format!("{finding}{}{}", note_of(&clusters), runtime_note(without_runtime(&clusters))),
        },
        workers_wanted: wanted,
        weights: terms.policy.weights.clone(),
        clusters,
        would_help,
    }
}

/// Nodes without a container runtime that the gang needs, over all clusters.
fn without_runtime(clusters: &[ClusterReport]) -> u32 {
    clusters.iter().map(|report| report.without_runtime).sum()
}

/// What isolation and taints keep the gang from, over all clusters.
fn note_of(clusters: &[ClusterReport]) -> String {
    let nodes = clusters.iter().map(|report| report.nodes.not_isolated).sum();
    let lacking = clusters.iter().flat_map(|report| report.lacking_isolation.iter().copied()).collect();
    let tainted = clusters.iter().map(|report| report.nodes.tainted).sum();
    let taints = clusters.iter().flat_map(|report| &report.taints).collect();
    format!("{}{}", isolation_note(nodes, &lacking), taint_note(tainted, &taints))
}
