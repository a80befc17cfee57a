//! Why a gang waits, and what would help. Made on demand: a pass over the line makes no report.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use muster_state::{Free, NodeRow, NodeStatus, PoolKey, State};
use muster_types::policy::{Guarantee, PlacementWeights};
use muster_types::{DeviceAmount, JobSpec, Level, LogTime, Name, NodeId, TopologyRule, WorkerRequest};

use crate::Budget;
use crate::candidate::Plan;
use crate::ever::{Reach, holds_somewhere, isolation_note, workers_on_empty};
use crate::fill::{Attempt, Scope, closed_windows};
use crate::gang::{plans_by_site, try_plan};
use crate::score::Score;
use crate::sites::{self, Site};
use crate::terms::{Holds, Terms};

/// Visits that one of the plans made for an explanation may take.
const VISITS_MAX: u64 = 1_000_000;

/// Why a job waits: a closed set with stable codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitReason {
    /// No cluster of the fleet is in its regions.
    NoClusterAllowed,
    /// No cluster it may use could hold it, even if it were empty and all of it up.
    NoClusterLargeEnough,
    /// Only lost or cordoned nodes would make a cluster large enough.
    WaitingForNodes,
    /// There are not enough free devices.
    WaitingForCapacity,
    /// There are enough free devices in one cluster, but too few on each host.
    Fragmented,
    /// Hosts have the devices free, but not the CPU that goes with them.
    WaitingForCpu,
    /// Hosts have the devices free, but not the memory that goes with them.
    WaitingForMemory,
    /// There is room in one cluster, but not as near or as far apart as required.
    Topology,
    /// There are enough free hosts, but they do not form its slices.
    SliceFragmented,
    /// It would fit, but its tenant's quota does not allow as much.
    QuotaExceeded,
    /// It would fit on what is kept for gangs before it.
    BehindOtherGangs,
    /// It would not be over before a window of maintenance or of a reservation.
    Window,
    /// It would fit on hosts that policy keeps free in each rack, to take the place of failed ones.
    SpareHosts,
    /// It waits for another job.
    Dependency,
    /// It failed, and is tried again after a wait.
    RetryBackoff,
    /// No cluster that it may use has a copy of the data set that its checkpoints are in.
    CheckpointNotReadable,
    /// It may not start before a time.
    NotBefore,
    /// Its tenant has as many jobs placed as the policy lets it have.
    TenantLimit,
    /// Its room is promised; gangs that run there are making it.
    MakingRoom,
    /// It fits; its turn has not come yet.
    InLine,
}

impl WaitReason {
    /// Every reason.
    pub const ALL: [WaitReason; 20] = [
        WaitReason::NoClusterAllowed,
        WaitReason::NoClusterLargeEnough,
        WaitReason::WaitingForNodes,
        WaitReason::WaitingForCapacity,
        WaitReason::Fragmented,
        WaitReason::WaitingForCpu,
        WaitReason::WaitingForMemory,
        WaitReason::Topology,
        WaitReason::SliceFragmented,
        WaitReason::QuotaExceeded,
        WaitReason::BehindOtherGangs,
        WaitReason::Window,
        WaitReason::SpareHosts,
        WaitReason::Dependency,
        WaitReason::NotBefore,
        WaitReason::RetryBackoff,
        WaitReason::CheckpointNotReadable,
        WaitReason::TenantLimit,
        WaitReason::MakingRoom,
        WaitReason::InLine,
    ];

    /// Stable code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            WaitReason::NoClusterAllowed => "NO_CLUSTER_ALLOWED",
            WaitReason::NoClusterLargeEnough => "NO_CLUSTER_LARGE_ENOUGH",
            WaitReason::WaitingForNodes => "WAITING_FOR_NODES",
            WaitReason::WaitingForCapacity => "WAITING_FOR_CAPACITY",
            WaitReason::Fragmented => "FRAGMENTED",
            WaitReason::WaitingForCpu => "WAITING_FOR_CPU",
            WaitReason::WaitingForMemory => "WAITING_FOR_MEMORY",
            WaitReason::Topology => "TOPOLOGY",
            WaitReason::SliceFragmented => "SLICE_FRAGMENTED",
            WaitReason::QuotaExceeded => "QUOTA_EXCEEDED",
            WaitReason::BehindOtherGangs => "BEHIND_OTHER_GANGS",
            WaitReason::Window => "WINDOW",
            WaitReason::SpareHosts => "SPARE_HOSTS",
            WaitReason::Dependency => "DEPENDENCY",
            WaitReason::NotBefore => "NOT_BEFORE",
            WaitReason::RetryBackoff => "RETRY_BACKOFF",
            WaitReason::CheckpointNotReadable => "CHECKPOINT_NOT_READABLE",
            WaitReason::TenantLimit => "TENANT_LIMIT",
            WaitReason::MakingRoom => "MAKING_ROOM",
            WaitReason::InLine => "IN_LINE",
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

/// A reason with its numbers.
#[derive(Clone, Debug)]
enum Finding {
    NoClusterAllowed,
    NoClusterLargeEnough { wanted: u32 },
    WaitingForNodes { place: (Name, Name), missing: u32, wanted: u32 },
    WaitingForCapacity(Closest),
    Fragmented(Closest),
    WaitingForCpu { closest: Closest, free_milli: u64, wanted_milli: u64 },
    WaitingForMemory { closest: Closest, free_bytes: u64, wanted_bytes: u64 },
    Topology { closest: Closest, largest_domain_workers: u32 },
    SliceFragmented(Closest),
    QuotaExceeded { place: (Name, Name), wanted_milli: u64, room_milli: u64 },
    BehindOtherGangs { place: (Name, Name), reserved_devices: u64 },
    CheckpointNotReadable { data_set: Name },
    Window { place: (Name, Name), nodes: u32, open: Option<(Name, LogTime)> },
    SpareHosts { place: (Name, Name), hosts: u64 },
    InLine,
}

/// The cluster that is closest to holding a gang.
#[derive(Clone, Debug)]
struct Closest {
    /// Region and cluster.
    place: (Name, Name),
    /// Workers it needs.
    wanted: u32,
    /// Workers that fit there now.
    fit: u32,
    /// Idle devices of the type there.
    free_devices: u64,
    /// All devices of the type there.
    total_devices: u64,
}

impl Closest {
    fn of(report: &ClusterReport, wanted: u32) -> Closest {
        Closest {
            place: report.place(),
            wanted,
            fit: report.workers_that_fit,
            free_devices: report.free_devices,
            total_devices: report.total_devices,
        }
    }
}

impl fmt::Display for Closest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Closest { place: (region, cluster), wanted, fit, free_devices, total_devices } = self;
        write!(
            f,
            "{fit} of {wanted} workers fit now in {region}/{cluster}, which is closest ({free_devices} of \
             {total_devices} devices free)"
        )
    }
}

impl Finding {
    fn reason(&self) -> WaitReason {
        match self {
            Finding::NoClusterAllowed => WaitReason::NoClusterAllowed,
            Finding::CheckpointNotReadable { .. } => WaitReason::CheckpointNotReadable,
            Finding::NoClusterLargeEnough { .. } => WaitReason::NoClusterLargeEnough,
            Finding::WaitingForNodes { .. } => WaitReason::WaitingForNodes,
            Finding::WaitingForCapacity(_) => WaitReason::WaitingForCapacity,
            Finding::Fragmented(_) => WaitReason::Fragmented,
            Finding::WaitingForCpu { .. } => WaitReason::WaitingForCpu,
            Finding::WaitingForMemory { .. } => WaitReason::WaitingForMemory,
            Finding::Topology { .. } => WaitReason::Topology,
            Finding::SliceFragmented(_) => WaitReason::SliceFragmented,
            Finding::QuotaExceeded { .. } => WaitReason::QuotaExceeded,
            Finding::BehindOtherGangs { .. } => WaitReason::BehindOtherGangs,
            Finding::Window { .. } => WaitReason::Window,
            Finding::SpareHosts { .. } => WaitReason::SpareHosts,
            Finding::InLine => WaitReason::InLine,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::NoClusterAllowed => f.write_str("no cluster of the fleet is in its regions"),
            Finding::CheckpointNotReadable { data_set } => write!(
                f,
                "no cluster of the fleet is in a region that it may use and that has a copy of {data_set}, which its \
                 checkpoints are in"
            ),
            Finding::NoClusterLargeEnough { wanted } => {
                write!(f, "no cluster it may use could hold its {}, even if it were empty", Workers(*wanted))
            }
            Finding::WaitingForNodes { place: (region, cluster), missing, wanted } => write!(
                f,
                "{missing} {} out of service (lost, cordoned, drained, quarantined or unhealthy; `muster node health` says \
                 why), and the others of {region}/{cluster}, which is closest, could not hold its {}",
                if *missing == 1 { "node is" } else { "nodes are" },
                Workers(*wanted)
            ),
            Finding::WaitingForCapacity(closest) => closest.fmt(f),
            Finding::Fragmented(closest) => {
                write!(f, "{closest}: free devices are enough, but not together on hosts as it needs them")
            }
            Finding::WaitingForCpu { closest, free_milli, wanted_milli } => write!(
                f,
                "{closest}: hosts have the devices free, but not the CPU; a worker wants {} CPUs, and the host with \
                 devices free that has most has {} left",
                Milli(*wanted_milli),
                Milli(*free_milli)
            ),
            Finding::WaitingForMemory { closest, free_bytes, wanted_bytes } => write!(
                f,
                "{closest}: hosts have the devices free, but not the memory; a worker wants {} MiB, and the host \
                 with devices free that has most has {} left",
                wanted_bytes >> 20,
                free_bytes >> 20
            ),
            Finding::Topology {
                closest: Closest { place: (region, cluster), wanted, .. },
                largest_domain_workers,
            } => {
                write!(
                    f,
                    "its {} would fit in {region}/{cluster}, but not as its topology rule says; one domain holds at most {largest_domain_workers} now",
                    Workers(*wanted)
                )
            }
            Finding::SliceFragmented(closest) => {
                write!(f, "{closest}: free hosts are enough, but they do not form its slices")
            }
            Finding::QuotaExceeded { place: (region, cluster), wanted_milli, room_milli } => write!(
                f,
                "it would fit in {region}/{cluster}, but needs {} devices and quota leaves {}",
                Milli(*wanted_milli),
                Milli(*room_milli)
            ),
            Finding::BehindOtherGangs { place: (region, cluster), reserved_devices } => write!(
                f,
                "it would fit in {region}/{cluster}, but {reserved_devices} devices there are kept for gangs before it"
            ),
            Finding::Window { place: (region, cluster), nodes, open } => {
                let nodes = format!("{nodes} {} there", if *nodes == 1 { "node" } else { "nodes" });
                match open {
                    Some((window, until)) => write!(
                        f,
                        "it would fit in {region}/{cluster}, but window {window} is open there until {until}, and \
                         windows keep {nodes} from it"
                    ),
                    None => write!(
                        f,
                        "it would fit in {region}/{cluster}, but would not end before a window that keeps {nodes} \
                         from it begins"
                    ),
                }
            }
            Finding::SpareHosts { place: (region, cluster), hosts } => write!(
                f,
                "it would fit in {region}/{cluster}, but only with hosts that policy keeps free in their racks to take the place of failed ones ({hosts} of them)"
            ),
            Finding::InLine => f.write_str("it fits now, and its turn has not come yet"),
        }
    }
}

/// Workers as people write them.
struct Workers(u32);

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { "worker" } else { "workers" })
    }
}

/// Thousandths of devices as people write them.
struct Milli(u64);

impl fmt::Display for Milli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1_000, self.0 % 1_000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{rest:03}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

/// Registered nodes by the first thing that keeps the gang from them, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// All; the sum of the others.
    pub registered: u32,
    /// Lost.
    pub not_up: u32,
    /// Taken out of placement by an operator.
    pub cordoned: u32,
    /// Without the labels that the job selects.
    pub wrong_labels: u32,
    /// With a taint that the job does not tolerate.
    pub tainted: u32,
    /// Without the isolation of workers that policy requires.
    pub not_isolated: u32,
    /// Too small for one worker, even when empty.
    pub too_small: u32,
    /// In a window that begins before the gang would end.
    pub in_window: u32,
    /// Kept for gangs before it, or to take the place of failed hosts of its rack.
    pub held: u32,
    /// Without room for one worker now.
    pub full: u32,
    /// With room for one worker at least.
    pub fit: u32,
}

/// One fleet cluster and type, for a gang that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterReport {
    /// Where.
    pub region: Name,
    /// The fleet cluster there.
    pub cluster: Name,
    /// The type of accelerator; none for a job without.
    pub kind: Option<Name>,
    /// What keeps the gang from its nodes.
    pub nodes: NodeCounts,
    /// What some of its nodes lack of the isolation that policy requires.
    pub lacking_isolation: BTreeSet<Guarantee>,
    /// Idle devices of the types used, on nodes that are up and not cordoned.
    pub free_devices: u64,
    /// Devices of those types, free or not, up or not.
    pub total_devices: u64,
    /// Devices that are kept for gangs before it: promised, or reserved for a start before its end.
    pub reserved_devices: u64,
    /// Workers that would fit now, without its topology rule.
    pub workers_that_fit: u32,
    /// Most workers that would fit into one domain of its rule now: of the required level, else racks for
    /// a gang in segments or balanced, else of the preferred level, else the cluster.
    pub largest_domain_workers: u32,
    /// Whether it could hold the gang if it were empty and all of it up.
    pub could_hold: bool,
    /// Whether its placeable nodes alone could, if they were empty.
    pub could_hold_placeable: bool,
    /// Thousandths of devices that quota leaves; `u64::MAX` for no limit.
    pub room_milli: u64,
    /// How good the plan would be, where the gang fits now.
    pub score: Option<Score>,
}

impl ClusterReport {
    fn place(&self) -> (Name, Name) {
        (self.region.clone(), self.cluster.clone())
    }
}

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

fn closest(reports: &[ClusterReport]) -> Option<&ClusterReport> {
    let rank =
        |r: &&ClusterReport| (r.could_hold_placeable, r.could_hold, r.workers_that_fit, r.total_devices);
    // The last maximum of the reverse is the first by name.
    reports.iter().rev().max_by_key(rank)
}

/// Where the checkpoints of a job can be read, for a job that is planned there alone.
#[derive(Clone, Copy, Debug)]
pub struct Checkpoints<'a> {
    /// The data set that they are in.
    pub data_set: &'a Name,
    /// Regions with a copy of it.
    pub copies: &'a BTreeSet<Name>,
    /// Regions that the job itself allows; empty for all.
    pub regions: &'a [Name],
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
            _ => format!("{finding}{}", note_of(&clusters)),
        },
        workers_wanted: wanted,
        weights: terms.policy.weights.clone(),
        clusters,
        would_help,
    }
}

/// What isolation keeps the gang from, over all clusters.
fn note_of(clusters: &[ClusterReport]) -> String {
    let nodes = clusters.iter().map(|report| report.nodes.not_isolated).sum();
    let lacking = clusters.iter().flat_map(|report| report.lacking_isolation.iter().copied()).collect();
    isolation_note(nodes, &lacking)
}

/// Block, rack and host, as far down as the level that is counted.
type DomainKey<'a> = (Option<&'a Name>, Option<&'a Name>, Option<NodeId>);

/// A report in the making.
struct Counting<'a> {
    nodes: NodeCounts,
    lacking_isolation: BTreeSet<Guarantee>,
    reserved_devices: u64,
    workers_that_fit: u32,
    /// Workers of the first group, by domain of the rule: on empty registered nodes, on empty placeable
    /// ones, now.
    domains: BTreeMap<DomainKey<'a>, [u64; 3]>,
}

/// The level whose domains are counted.
fn counted_level(rule: &TopologyRule) -> Option<Level> {
    let by_rack = rule.balanced || rule.segment_workers > 0;
    rule.required.or(by_rack.then_some(Level::Rack)).or(rule.preferred)
}

/// Whether the workers that fit are the sum of what fits on each node.
fn is_counted_by_node(spec: &JobSpec) -> bool {
    spec.groups.len() == 1 && spec.groups.iter().all(|group| group.slice.is_none())
}

impl<'a> Counting<'a> {
    fn new(
        state: &'a State,
        spec: &JobSpec,
        terms: &Terms<'_>,
        site: &Site<'_>,
        budget: &mut Budget,
    ) -> Counting<'a> {
        let mut counting = Counting {
            nodes: NodeCounts::default(),
            lacking_isolation: BTreeSet::new(),
            reserved_devices: 0,
            workers_that_fit: 0,
            domains: BTreeMap::new(),
        };
        if is_counted_by_node(spec) {
            return counting;
        }
        let mut attempt = Attempt::new(state, spec, terms, site, budget);
        let has_slice = spec.groups.iter().any(|group| group.slice.is_some());
        for wants_devices in [true, false] {
            for (number, group) in spec.groups.iter().enumerate() {
                if group.request.accelerators.is_some() != wants_devices {
                    continue;
                }
                let left = if has_slice {
                    attempt.fill(number, group.workers, Scope::Cluster)
                } else {
                    attempt.fullest_first(number, group.workers, Scope::Cluster)
                };
                counting.workers_that_fit += group.workers - left.unwrap_or(group.workers).min(group.workers);
            }
        }
        counting
    }

    fn report(
        self,
        state: &State,
        spec: &JobSpec,
        terms: &Terms<'_>,
        site: &Site<'_>,
        wanted: u32,
    ) -> ClusterReport {
        let key =
            PoolKey { region: site.region.clone(), cluster: site.cluster.clone(), kind: site.kind.cloned() };
        let most = |of: usize| self.domains.values().map(|counts| counts[of]).max().unwrap_or(0);
        let rule = &spec.topology;
        let is_counted = spec.groups.len() == 1
            && spec.groups.iter().all(|group| group.slice.is_none())
            && !rule.balanced
            && rule.segment_workers == 0
            && rule.spread.is_none()
            && terms.policy.spare_hosts_per_rack.is_empty();
        let by_cluster = |of: usize| self.domains.values().map(|counts| counts[of]).sum::<u64>();
        let enough = |of: usize| {
            let have = if rule.required.is_some() { most(of) } else { by_cluster(of) };
            have >= u64::from(wanted)
        };
        let (could_hold, could_hold_placeable) = if is_counted {
            (enough(0), enough(1))
        } else {
            let holds = |reach| holds_somewhere(state, spec, reach, Some(&key));
            (holds(Reach::Registered), holds(Reach::Placeable))
        };
        let mut workers_that_fit = self.workers_that_fit;
        if is_counted_by_node(spec) {
            let everywhere = by_cluster(2).min(u64::from(spec.worker_count()));
            workers_that_fit = u32::try_from(everywhere).unwrap_or(u32::MAX);
        }
        ClusterReport {
            region: key.region.clone(),
            cluster: key.cluster.clone(),
            kind: key.kind.clone(),
            nodes: self.nodes,
            lacking_isolation: self.lacking_isolation,
            free_devices: site.idle_devices,
            total_devices: site.used_pools().map(|(_, pool)| pool.total_devices).sum(),
            reserved_devices: self.reserved_devices,
            workers_that_fit,
            largest_domain_workers: u32::try_from(most(2)).unwrap_or(u32::MAX),
            could_hold,
            could_hold_placeable,
            room_milli: if key.kind.is_some() { (terms.room_milli)(&key) } else { u64::MAX },
            score: None,
        }
    }
}

/// Looks once at every node.
fn count_nodes<'a>(
    state: &'a State,
    spec: &'a JobSpec,
    terms: &'a Terms<'a>,
    all_sites: &'a [Vec<Site<'a>>],
    counting: &mut [Counting<'a>],
) {
    let mut budget = Budget::new(u64::MAX);
    let mut budgets: Vec<Budget> = all_sites.iter().flatten().map(|_| budget).collect();
    let mut attempts: Vec<Attempt<'_, '_>> = Vec::new();
    let mut of_place: BTreeMap<(&Name, &Name, Option<&Name>), usize> = BTreeMap::new();
    for (number, (site, budget)) in all_sites.iter().flatten().zip(&mut budgets).enumerate() {
        of_place.insert((site.region, site.cluster, site.kind), number);
        attempts.push(Attempt::new(state, spec, terms, site, budget));
    }
    budget.visit();
    let is_plain = spec.groups.iter().all(|group| group.request.accelerators.is_none());
    let level = counted_level(&spec.topology);
    for (id, row) in state.nodes().iter() {
        let node = &row.spec;
        let kind = node.accelerators.as_ref().map(|a| &a.kind).filter(|_| !is_plain);
        let Some(number) = of_place.get(&(&node.region, &node.cluster, kind)) else { continue };
        let (attempt, counting) = (&attempts[*number], &mut counting[*number]);
        let (mut now, mut empty) = (0, 0);
        count_node(*id, row, attempt, counting, &mut now, &mut empty);
        if empty == 0 {
            continue;
        }
        let domain = (
            level.map(|_| &node.block),
            level.filter(|level| *level >= Level::Rack).map(|_| &node.rack),
            level.filter(|level| *level == Level::Host).map(|_| *id),
        );
        let counts = counting.domains.entry(domain).or_default();
        counts[0] += u64::from(empty);
        counts[1] += if row.is_placeable() { u64::from(empty) } else { 0 };
        counts[2] += u64::from(now);
    }
}

/// Counts one node; `now` and `empty` are workers of the first group with devices that it holds.
fn count_node(
    id: NodeId,
    row: &NodeRow,
    attempt: &Attempt<'_, '_>,
    counting: &mut Counting<'_>,
    now: &mut u32,
    empty: &mut u32,
) {
    let (spec, counts) = (attempt.spec, &mut counting.nodes);
    counts.registered += 1;
    let needs_devices = spec.groups.iter().any(|group| group.request.accelerators.is_some());
    let concerned = |group: &&muster_types::TaskGroup| !needs_devices || group.request.accelerators.is_some();
    let labelled = attempt.has_labels(row);
    let tolerated = attempt.is_tolerated(row);
    let isolated = attempt.is_isolated(row);
    counting.lacking_isolation.extend(attempt.terms.policy.lacking_isolation(&row.spec));
    let groups = || spec.groups.iter().filter(concerned);
    if labelled && tolerated && isolated {
        *empty = groups().next().map_or(0, |group| workers_on_empty(&row.spec, &group.request));
    }
    if row.status != NodeStatus::Up {
        counts.not_up += 1;
        return;
    }
    // Drained, in quarantine, in repair or unfit: placement sees no difference.
    if row.cordoned || row.restricted.blocked {
        counts.cordoned += 1;
        return;
    }
    let offer = row.offer();
    let spare = attempt.spare(id);
    let idle = u64::from(offer.devices.count());
    let kept = spare.map_or(0, |spare| idle.saturating_sub(u64::from(spare.devices)));
    counting.reserved_devices += kept + u64::from(row.promised.devices.count());
    let (mut fits_empty, mut fits_hold, mut fits_now) = (false, false, false);
    let mut first = None;
    for group in groups() {
        let request = &group.request;
        let by_hold = spare.map_or(u32::MAX, |spare| spare.workers(request, muster_types::DeviceSet::EMPTY));
        let by_free =
            if muster_state::fit::has_kind(&row.spec, request) { offer.workers(request) } else { 0 };
        fits_empty |= workers_on_empty(&row.spec, request) > 0;
        fits_hold |= by_hold > 0;
        let fits = by_hold.min(by_free);
        fits_now |= fits > 0;
        first.get_or_insert(fits);
    }
    let place = if !labelled {
        &mut counts.wrong_labels
    } else if !tolerated {
        &mut counts.tainted
    } else if !isolated {
        &mut counts.not_isolated
    } else if !fits_empty {
        &mut counts.too_small
    } else if attempt.is_in_window(row) {
        &mut counts.in_window
    } else if !fits_hold || (fits_now && attempt.is_kept_spare(row)) {
        &mut counts.held
    } else if !fits_now {
        &mut counts.full
    } else {
        let most = spec.topology.spread.filter(|spread| spread.level == Level::Host);
        *now = first.unwrap_or(0).min(most.map_or(u32::MAX, |spread| spread.workers_max));
        &mut counts.fit
    };
    *place += 1;
}

/// The gang with something about it changed, planned again.
struct Variations<'a> {
    state: &'a State,
    spec: &'a JobSpec,
    terms: &'a Terms<'a>,
    checkpoints: Option<&'a Checkpoints<'a>>,
}

impl Variations<'_> {
    fn plan(&self, spec: &JobSpec, terms: &Terms<'_>) -> Option<Plan> {
        try_plan(self.state, spec, terms, &mut Budget::new(VISITS_MAX)).ok().flatten()
    }

    fn with_holds(&self, holds: &Holds) -> Option<Plan> {
        self.plan(self.spec, &Terms { holds, ..*self.terms })
    }

    fn without_quota(&self) -> Option<Plan> {
        self.plan(self.spec, &Terms { room_milli: &|_| u64::MAX, ..*self.terms })
    }

    /// The job without any rule about how its workers lie to each other.
    fn without_rule(&self) -> Option<Plan> {
        let mut draft = self.spec.clone().into_draft();
        draft.topology = TopologyRule::default();
        for group in &mut draft.groups {
            group.slice = None;
        }
        self.plan(&draft.check().ok()?, self.terms)
    }

    fn reason(&self, clusters: &[ClusterReport], wanted: u32, has_pools: bool) -> Finding {
        if !has_pools {
            let by_checkpoints = self.checkpoints.filter(|checkpoints| {
                let allows =
                    |region: &Name| checkpoints.regions.is_empty() || checkpoints.regions.contains(region);
                self.state.pools().any(|(pool, _)| allows(&pool.region))
            });
            return by_checkpoints.map_or(Finding::NoClusterAllowed, |checkpoints| {
                Finding::CheckpointNotReadable { data_set: checkpoints.data_set.clone() }
            });
        }
        if clusters.iter().any(|report| report.score.is_some()) {
            return Finding::InLine;
        }
        let Some(best) = closest(clusters) else { return Finding::NoClusterLargeEnough { wanted } };
        if !best.could_hold {
            return Finding::NoClusterLargeEnough { wanted };
        }
        if !best.could_hold_placeable {
            let missing = best.nodes.not_up + best.nodes.cordoned;
            return Finding::WaitingForNodes { place: best.place(), missing, wanted };
        }
        let report_of = |plan: &Plan| {
            clusters.iter().find(|r| r.region == plan.region && r.cluster == plan.cluster).unwrap_or(best)
        };
        if let Some(plan) = self.without_quota() {
            let (place, room_milli) =
                ((plan.region.clone(), plan.cluster.clone()), report_of(&plan).room_milli);
            return Finding::QuotaExceeded { place, wanted_milli: self.milli(&plan), room_milli };
        }
        if let Some(plan) = self.with_holds(&self.terms.holds.without_nodes()) {
            let reserved_devices = report_of(&plan).reserved_devices;
            return Finding::BehindOtherGangs { place: (plan.region, plan.cluster), reserved_devices };
        }
        if let Some(plan) = self.with_holds(&self.terms.holds.without_windows()) {
            let nodes = report_of(&plan).nodes.in_window;
            // One that is open now; of several the one that is open longest.
            let at = self.terms.now;
            let open = closed_windows(self.terms, at.plus_ms(1), &plan.region, &plan.cluster);
            let open = open.into_iter().max_by_key(|window| window.until);
            let open = open.map(|window| (window.name.clone(), window.until));
            return Finding::Window { place: (plan.region, plan.cluster), nodes, open };
        }
        if let Some(plan) = self.with_holds(&self.terms.holds.with_spare_hosts()) {
            return Finding::SpareHosts {
                hosts: self.spare_hosts_of(&plan),
                place: (plan.region, plan.cluster),
            };
        }
        let has_slice = self.spec.groups.iter().any(|group| group.slice.is_some());
        if (has_slice || !self.spec.topology.is_free())
            && let Some(plan) = self.without_rule()
        {
            let report = report_of(&plan);
            let closest = Closest::of(report, wanted);
            if has_slice {
                return Finding::SliceFragmented(closest);
            }
            return Finding::Topology { closest, largest_domain_workers: report.largest_domain_workers };
        }
        if let Some(finding) = self.shortage_beside_devices(&report_of, wanted) {
            return finding;
        }
        let need = self.spec.device_milli() / u64::from(self.spec.worker_count().max(1)) * u64::from(wanted);
        let is_enough = |report: &&ClusterReport| {
            report.could_hold_placeable && need > 0 && report.free_devices.saturating_mul(1_000) >= need
        };
        match clusters.iter().find(is_enough) {
            Some(report) => Finding::Fragmented(Closest::of(report, wanted)),
            None => Finding::WaitingForCapacity(Closest::of(best, wanted)),
        }
    }

    /// The CPU or memory that keeps a gang from devices that are free. Where both are short, the CPU is named.
    fn shortage_beside_devices<'a>(
        &self,
        report_of: &impl Fn(&Plan) -> &'a ClusterReport,
        wanted: u32,
    ) -> Option<Finding> {
        let groups = || self.spec.groups.iter().filter(|group| group.request.accelerators.is_some());
        let asked = |of: fn(&WorkerRequest) -> u64| groups().map(|group| of(&group.request)).max();
        let (wanted_milli, wanted_bytes) = (asked(|r| r.cpu_milli)?, asked(|r| r.memory_bytes)?);
        let relaxed = |cpu: bool, memory: bool| {
            let mut draft = self.spec.clone().into_draft();
            for group in &mut draft.groups {
                group.request.cpu_milli = if cpu { 1 } else { group.request.cpu_milli };
                group.request.memory_bytes = if memory { 1 } else { group.request.memory_bytes };
            }
            self.plan(&draft.check().ok()?, self.terms)
        };
        let most = |plan: &Plan, of: fn(&Free) -> u64| {
            let rows = plan.workers.iter().filter_map(|slot| self.state.node(slot.node));
            rows.map(|row| of(&row.offer())).max().unwrap_or(0)
        };
        if let Some(plan) = relaxed(false, true) {
            let closest = Closest::of(report_of(&plan), wanted);
            return Some(Finding::WaitingForMemory {
                free_bytes: most(&plan, |free| free.memory_bytes),
                closest,
                wanted_bytes,
            });
        }
        let plan = relaxed(true, false).or_else(|| relaxed(true, true))?;
        let closest = Closest::of(report_of(&plan), wanted);
        Some(Finding::WaitingForCpu { free_milli: most(&plan, |free| free.cpu_milli), closest, wanted_milli })
    }

    /// Hosts of a plan that nobody uses.
    fn spare_hosts_of(&self, plan: &Plan) -> u64 {
        let unused = |node: &NodeId| self.state.node(*node).is_some_and(|row| !row.is_in_use());
        let hosts: BTreeSet<NodeId> = plan.workers.iter().map(|slot| slot.node).filter(unused).collect();
        hosts.len() as u64
    }

    /// Thousandths of devices of a plan.
    fn milli(&self, plan: &Plan) -> u64 {
        let workers = plan.workers.len() as u64;
        self.spec.device_milli() / u64::from(self.spec.worker_count().max(1)) * workers
    }

    fn would_help(&self, clusters: &[ClusterReport], wanted: u32) -> Vec<String> {
        let mut help = Vec::new();
        help.extend(self.other_regions());
        help.extend(self.other_types());
        help.extend(self.fewer_workers(wanted));
        help.extend(self.more_quota());
        help.extend(self.more_nodes(clusters, wanted));
        help
    }

    fn other_regions(&self) -> Option<String> {
        let region_in = |regions: Vec<Name>| {
            let mut draft = self.spec.clone().into_draft();
            draft.regions = regions;
            Some(self.plan(&draft.check().ok()?, self.terms)?.region)
        };
        let allow = |region: Name| format!("allow region {region} (fits now)");
        let Some(Checkpoints { data_set, copies, regions }) = self.checkpoints else {
            return if self.spec.regions.is_empty() { None } else { region_in(Vec::new()).map(allow) };
        };
        let readable =
            if copies.is_empty() { None } else { region_in(copies.iter().cloned().collect()).map(allow) };
        // Where it may go, but would find nothing to go on from.
        readable.or_else(|| {
            let region = region_in(regions.to_vec())?;
            Some(format!("copy data set {data_set} to region {region} (fits now)"))
        })
    }

    fn other_types(&self) -> Vec<String> {
        let mut help = Vec::new();
        let asks = |kind: &Name| {
            let mut requests = self.spec.groups.iter().filter_map(|g| g.request.accelerators.as_ref());
            requests.any(|request| !request.accepts(kind))
        };
        let kinds: alloc::collections::BTreeSet<&Name> =
            sites::pools(self.state, self.spec).iter().filter_map(|(key, _)| key.kind.as_ref()).collect();
        for kind in kinds.into_iter().filter(|kind| asks(kind)) {
            let mut draft = self.spec.clone().into_draft();
            let mut shown = None;
            for request in draft.groups.iter_mut().filter_map(|g| g.request.accelerators.as_mut()) {
                if !request.accepts(kind) {
                    let throughput_milli = muster_types::demand::THROUGHPUT_MILLI;
                    let choice = muster_types::AcceleratorChoice { kind: kind.clone(), throughput_milli };
                    request.choices.push(choice);
                    let names: Vec<String> = request.choices.iter().map(|c| c.kind.to_string()).collect();
                    shown.get_or_insert(names.join("|"));
                }
            }
            let Ok(varied) = draft.check() else { continue };
            if let (Some(shown), Some(_)) = (shown, self.plan(&varied, self.terms)) {
                help.push(format!("{shown} (fits now on {kind})"));
            }
        }
        help
    }

    fn fewer_workers(&self, wanted: u32) -> Option<String> {
        let [group] = self.spec.groups.as_slice() else { return None };
        if group.slice.is_some() || wanted < 2 {
            return None;
        }
        let mut draft = self.spec.clone().into_draft();
        let unit = draft.topology.segment_workers.max(1);
        for group in &mut draft.groups {
            group.workers_min = unit;
        }
        let plan = self.plan(&draft.check().ok()?, &Terms { elastic: true, ..*self.terms })?;
        Some(format!("{} would fit now", Workers(plan.workers.len() as u32)))
    }

    fn more_quota(&self) -> Option<String> {
        let plan = self.without_quota()?;
        let node = self.state.node(plan.workers.first()?.node)?;
        let key = PoolKey::of(&node.spec);
        let extra = self.milli(&plan).saturating_sub((self.terms.room_milli)(&key));
        if extra == 0 {
            return None;
        }
        let raised = |pool: &PoolKey| {
            let room = (self.terms.room_milli)(pool);
            let concerned = pool.kind == key.kind && pool.region == key.region;
            if concerned { room.saturating_add(extra) } else { room }
        };
        self.plan(self.spec, &Terms { room_milli: &raised, ..*self.terms })?;
        let kind = key.kind.as_ref().map_or("", |kind| kind.as_str());
        Some(format!("quota {} devices higher for {kind} in {}", Milli(extra), key.region))
    }

    /// Nodes of the usual size that would be enough if they came free, where no rule says how they have to
    /// lie to the others.
    fn more_nodes(&self, clusters: &[ClusterReport], wanted: u32) -> Option<String> {
        let [group] = self.spec.groups.as_slice() else { return None };
        let best = closest(clusters)?;
        let whole = matches!(group.request.accelerators.as_ref()?.amount, DeviceAmount::Whole(_));
        if !whole || group.slice.is_some() || !self.spec.topology.is_free() || !best.could_hold_placeable {
            return None;
        }
        let key =
            PoolKey { region: best.region.clone(), cluster: best.cluster.clone(), kind: best.kind.clone() };
        let (_, pool) = self.state.pools().find(|(pool, _)| **pool == key)?;
        let (shape, _) = pool.placeable_shapes.iter().max_by_key(|(_, hosts)| **hosts)?;
        let by_devices = u32::from(shape.devices / group.request.device_count().max(1));
        let by_cpu = shape.cpu_milli / group.request.cpu_milli.max(1);
        let by_memory = shape.memory_bytes / group.request.memory_bytes.max(1);
        let each = by_devices.min(u32::try_from(by_cpu.min(by_memory)).unwrap_or(u32::MAX));
        let missing = wanted.checked_sub(best.workers_that_fit).filter(|missing| *missing > 0)?;
        if each == 0 {
            return None;
        }
        let nodes = missing.div_ceil(each);
        // The others have to fit beside them: tried with as many workers less.
        let rest = wanted.saturating_sub(nodes.saturating_mul(each));
        let quota = u64::from(wanted) * group.request.device_milli() <= best.room_milli;
        if best.nodes.full < nodes || !quota || (rest > 0 && !self.fits_there(&key, rest)) {
            return None;
        }
        let plural = if nodes == 1 { "node" } else { "nodes" };
        let kind = best.kind.as_ref()?;
        Some(format!(
            "{nodes} more {plural} of {} {kind} in {}/{} becoming free",
            shape.devices, best.region, best.cluster
        ))
    }

    /// Whether so many workers fit in one pool now.
    fn fits_there(&self, key: &PoolKey, workers: u32) -> bool {
        let mut draft = self.spec.clone().into_draft();
        draft.regions = alloc::vec![key.region.clone()];
        for group in &mut draft.groups {
            group.workers = workers;
            group.workers_min = workers;
        }
        let Ok(varied) = draft.check() else { return false };
        let room_milli = |pool: &PoolKey| if pool == key { (self.terms.room_milli)(pool) } else { 0 };
        self.plan(&varied, &Terms { room_milli: &room_milli, ..*self.terms }).is_some()
    }
}
