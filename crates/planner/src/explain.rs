//! Why a gang waits, and whether it could ever run.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use muster_state::{Pool, Shape, State, fit};
use muster_types::{JobSpec, Name, TaskGroup, WorkerRequest};

use crate::gang::{Candidate, candidates};

/// One fleet cluster, for a gang that does not fit now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterReport {
    /// Where.
    pub region: Name,
    /// The fleet cluster there.
    pub cluster: Name,
    /// Workers that would fit now.
    pub workers_that_fit: u32,
    /// Free devices of the types asked for.
    pub free_devices: u64,
    /// Devices of those types, free or not, up or not.
    pub total_devices: u64,
    /// Whether the cluster could hold the gang if it were empty and all of it up.
    pub could_hold: bool,
    /// Whether its placeable nodes alone could, if they were empty: only then is it worth keeping
    /// others out of it. Nodes that are lost or cordoned may never come back.
    pub could_hold_placeable: bool,
    /// Whether a gang before this one waits for the cluster.
    pub claimed: bool,
}

impl ClusterReport {
    /// `fit` is how many workers fit now; none where a gang before this one waits.
    pub(crate) fn new(candidate: &Candidate<'_>, spec: &JobSpec, fit: Option<u32>) -> ClusterReport {
        let asks = |kind: &Name| spec.groups.iter().any(|g| kind_of(g) == Some(kind));
        let mut report = ClusterReport {
            region: candidate.region.clone(),
            cluster: candidate.cluster.clone(),
            workers_that_fit: fit.unwrap_or(0),
            free_devices: 0,
            total_devices: 0,
            could_hold: holds_when_empty(candidate, spec, |pool| pool.shapes.iter()),
            could_hold_placeable: holds_when_empty(candidate, spec, |pool| pool.placeable_shapes.iter()),
            claimed: fit.is_none(),
        };
        for (key, pool) in &candidate.pools {
            if key.kind.as_ref().is_some_and(asks) {
                report.free_devices += pool.free_devices;
                report.total_devices += pool.total_devices;
            }
        }
        report
    }
}

fn kind_of(group: &TaskGroup) -> Option<&Name> {
    group.request.accelerators.as_ref().map(|a| &a.kind)
}

/// Why a gang waits, cluster by cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Workers of the gang.
    pub workers_wanted: u32,
    /// Clusters it may use.
    pub clusters: Vec<ClusterReport>,
}

impl Explanation {
    /// The unclaimed cluster that could hold it where most of it fits now; then where most devices
    /// are; then by name.
    #[must_use]
    pub fn closest(&self) -> Option<&ClusterReport> {
        let open = self.clusters.iter().filter(|c| !c.claimed && c.could_hold);
        // max_by_key returns the last maximum; reversing makes it the first by name.
        open.rev().max_by_key(|c| (c.workers_that_fit, c.total_devices))
    }

    /// The cluster to keep open for it: like [`Explanation::closest`], but only one that will have
    /// room once what runs there has ended. Without that, a gang that waits for a dead host would
    /// keep the rest of its cluster idle.
    #[must_use]
    pub fn worth_claiming(&self) -> Option<&ClusterReport> {
        let open = self.clusters.iter().filter(|c| !c.claimed && c.could_hold_placeable);
        open.rev().max_by_key(|c| (c.workers_that_fit, c.total_devices))
    }

    /// Stable code of the reason.
    #[must_use]
    pub fn code(&self) -> &'static str {
        if self.clusters.is_empty() {
            "NO_CLUSTER_ALLOWED"
        } else if !self.clusters.iter().any(|c| c.could_hold) {
            "NO_CLUSTER_LARGE_ENOUGH"
        } else if self.clusters.iter().filter(|c| c.could_hold).all(|c| c.claimed) {
            "BEHIND_OTHER_GANGS"
        } else if !self.clusters.iter().any(|c| c.could_hold_placeable) {
            "WAITING_FOR_NODES"
        } else {
            "WAITING_FOR_CAPACITY"
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = self.workers_wanted;
        match self.closest() {
            Some(c) if self.code() == "WAITING_FOR_NODES" => write!(
                f,
                "nodes of {}/{}, which is closest, are lost or cordoned, and the others could not hold its {wanted} workers",
                c.region, c.cluster
            ),
            Some(c) => write!(
                f,
                "{} of {wanted} workers fit now in {}/{}, which is closest ({} of {} devices free)",
                c.workers_that_fit, c.region, c.cluster, c.free_devices, c.total_devices
            ),
            None if self.clusters.is_empty() => f.write_str("no cluster of the fleet is in its regions"),
            None if !self.clusters.iter().any(|c| c.could_hold) => {
                write!(f, "no cluster it may use could hold its {wanted} workers, even if it were empty")
            }
            None => write!(f, "gangs before it wait for every cluster it may use ({})", self.clusters.len()),
        }
    }
}

/// Verdict on a job that no state of the registered fleet could hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Never {
    /// The group that does not fit.
    pub group: Name,
    /// What was asked for, in words.
    pub wanted: String,
    /// The closest shape that would fit, in words.
    pub closest: String,
}

impl fmt::Display for Never {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}: {} can never fit; {}", self.group, self.wanted, self.closest)
    }
}

/// Whether an empty fleet, everything registered being up, could hold the job in one cluster.
///
/// Exact for one group. Several groups are checked one by one, and their devices together: a job
/// that passes this and still never fits is admitted and waits with its reason, but keeps nobody
/// from a cluster.
///
/// # Errors
/// The verdict with the closest shape.
pub fn could_ever(state: &State, spec: &JobSpec) -> Result<(), Never> {
    let clusters = candidates(state, spec);
    let holds =
        |c: &Candidate<'_>, group: &TaskGroup| workers_when_empty(c, group) >= u64::from(group.workers);
    if clusters.iter().any(|c| has_enough_devices(c, spec) && spec.groups.iter().all(|g| holds(c, g))) {
        return Ok(());
    }
    // Name the group that fails everywhere, or else the first that fails in the best cluster.
    let everywhere = spec.groups.iter().find(|g| !clusters.iter().any(|c| holds(c, g)));
    if everywhere.is_none() && spec.groups.len() > 1 {
        return Err(never_together(&clusters, spec));
    }
    let group = everywhere.or_else(|| spec.groups.last()).expect("a checked job has a group");
    Err(Never {
        group: group.name.clone(),
        wanted: describe(group, group.workers),
        closest: closest(state, spec, &clusters, group),
    })
}

/// Whether a cluster has as many devices of every type as all groups ask for together.
fn has_enough_devices(candidate: &Candidate<'_>, spec: &JobSpec) -> bool {
    let mut wanted: BTreeMap<&Name, u64> = BTreeMap::new();
    for group in &spec.groups {
        if let Some(accelerators) = &group.request.accelerators {
            *wanted.entry(&accelerators.kind).or_default() +=
                u64::from(group.workers) * u64::from(accelerators.count);
        }
    }
    let total = |kind: &Name| -> u64 {
        let pools = candidate.pools.iter().filter(|(key, _)| key.kind.as_ref() == Some(kind));
        pools.map(|(_, pool)| pool.total_devices).sum()
    };
    wanted.into_iter().all(|(kind, count)| count <= total(kind))
}

/// Every group alone has room somewhere, but not in one cluster.
fn never_together(clusters: &[Candidate<'_>], spec: &JobSpec) -> Never {
    let asks = |kind: &Name| spec.groups.iter().any(|g| kind_of(g) == Some(kind));
    let devices = |c: &Candidate<'_>| -> u64 {
        let pools = c.pools.iter().filter(|(key, _)| key.kind.as_ref().is_some_and(asks));
        pools.map(|(_, pool)| pool.total_devices).sum()
    };
    let best = clusters.iter().rev().max_by_key(|c| devices(c)).expect("a group has room in some cluster");
    let parts: Vec<String> = spec.groups.iter().map(|g| describe(g, g.workers)).collect();
    Never {
        group: spec.groups.last().expect("a checked job has a group").name.clone(),
        wanted: format!("{} together in one cluster", parts.join(" and ")),
        closest: format!(
            "the most devices of these types in one cluster are {}, in {}/{}",
            devices(best),
            best.region,
            best.cluster
        ),
    }
}

fn describe(group: &TaskGroup, workers: u32) -> String {
    let plural = if workers == 1 { "worker" } else { "workers" };
    let devices = group.request.accelerators.as_ref().map_or_else(String::new, |a| format!(" x {a}"));
    format!(
        "{workers} {plural}{devices} ({} mCPU, {} MiB each)",
        group.request.cpu_milli,
        group.request.memory_bytes >> 20
    )
}

/// Whether hosts of these sizes, all empty, hold every group at once. Groups are filled one after
/// the other, like the planner does it; exact for one group.
fn holds_when_empty<'a, S>(candidate: &Candidate<'a>, spec: &JobSpec, shapes: impl Fn(&'a Pool) -> S) -> bool
where
    S: Iterator<Item = (&'a Shape, &'a u32)>,
{
    let mut hosts: BTreeMap<(Option<&Name>, Shape), u64> = BTreeMap::new();
    for (key, pool) in &candidate.pools {
        for (shape, count) in shapes(pool) {
            *hosts.entry((key.kind.as_ref(), *shape)).or_default() += u64::from(*count);
        }
    }
    spec.groups.iter().all(|group| take_group(&mut hosts, group))
}

/// Takes a group's workers from the hosts; whether all found room. Devices go last for workers that
/// need none: the map's order has plain hosts and small ones first.
fn take_group(hosts: &mut BTreeMap<(Option<&Name>, Shape), u64>, group: &TaskGroup) -> bool {
    let request = &group.request;
    let kind = kind_of(group);
    let mut rest = u64::from(group.workers);
    let fitting: Vec<(Option<&Name>, Shape)> =
        hosts.keys().filter(|(has, _)| kind.is_none() || *has == kind).copied().collect();
    for place in fitting {
        let (has, shape) = place;
        let each =
            u64::from(fit::workers_per_host(shape.devices, shape.cpu_milli, shape.memory_bytes, request));
        if each == 0 {
            continue;
        }
        let there = hosts.remove(&place).unwrap_or(0);
        // So many hosts are filled; at most one more is begun.
        let full = there.min(rest / each);
        let partial = if full < there { rest % each } else { 0 };
        let begun = u64::from(partial > 0);
        for (count, workers) in [(there - full - begun, 0), (full, each), (begun, partial)] {
            if count > 0 {
                *hosts.entry((has, less(shape, request, workers))).or_default() += count;
            }
        }
        rest -= full * each + partial;
        if rest == 0 {
            return true;
        }
    }
    false
}

/// What is left of a host under so many workers, which fit on it.
fn less(shape: Shape, request: &WorkerRequest, workers: u64) -> Shape {
    let devices = request.accelerators.as_ref().map_or(0, |a| u64::from(a.count)) * workers;
    Shape {
        devices: shape.devices - u16::try_from(devices).expect("no more devices are taken than a host has"),
        cpu_milli: shape.cpu_milli - request.cpu_milli * workers,
        memory_bytes: shape.memory_bytes - request.memory_bytes * workers,
    }
}

fn workers_when_empty(candidate: &Candidate<'_>, group: &TaskGroup) -> u64 {
    let kind = kind_of(group);
    let pools = candidate.pools.iter().filter(|(key, _)| kind.is_none() || key.kind.as_ref() == kind);
    pools.map(|(_, pool)| workers_in_empty_pool(pool, group)).sum()
}

fn workers_in_empty_pool(pool: &Pool, group: &TaskGroup) -> u64 {
    let per_shape = pool.shapes.iter().map(|(shape, hosts)| {
        let each = fit::workers_per_host(shape.devices, shape.cpu_milli, shape.memory_bytes, &group.request);
        u64::from(each) * u64::from(*hosts)
    });
    per_shape.sum()
}

fn closest(state: &State, spec: &JobSpec, clusters: &[Candidate<'_>], group: &TaskGroup) -> String {
    if clusters.is_empty() {
        let regions: alloc::collections::BTreeSet<&Name> =
            state.pools().map(|(key, _)| &key.region).collect();
        return format!(
            "no node is registered in the regions it allows; regions with nodes: {}",
            list(regions.iter())
        );
    }
    // max_by_key returns the last maximum; reversing makes it the first by name.
    let best =
        clusters.iter().rev().max_by_key(|c| workers_when_empty(c, group)).expect("there is a cluster");
    let most = workers_when_empty(best, group);
    if most > 0 && spec.groups.len() == 1 {
        let workers = u32::try_from(most).unwrap_or(u32::MAX);
        return format!(
            "closest that would: {} in {}/{}",
            describe(group, workers),
            best.region,
            best.cluster
        );
    }
    if most > 0 {
        return format!(
            "the most of this group in one cluster is {most}, in {}/{}",
            best.region, best.cluster
        );
    }
    largest_hosts(clusters, group)
}

/// No host holds even one worker: say what hosts there are.
fn largest_hosts(clusters: &[Candidate<'_>], group: &TaskGroup) -> String {
    let mut largest: BTreeMap<Option<&Name>, (u16, u64, u64)> = BTreeMap::new();
    for (key, pool) in clusters.iter().flat_map(|c| &c.pools) {
        let entry = largest.entry(key.kind.as_ref()).or_default();
        for (shape, _) in pool.shapes.iter() {
            *entry =
                (entry.0.max(shape.devices), entry.1.max(shape.cpu_milli), entry.2.max(shape.memory_bytes));
        }
    }
    let Some(kind) = kind_of(group) else {
        // A worker without accelerators may go to any host.
        let cpu = largest.values().map(|l| l.1).max().unwrap_or(0);
        let memory = largest.values().map(|l| l.2).max().unwrap_or(0);
        return format!("the largest host it may use has {cpu} mCPU and {} MiB", memory >> 20);
    };
    match largest.get(&Some(kind)) {
        None => {
            let known = list(largest.keys().flatten());
            format!("no node it may use has {kind}; accelerator types there: {known}")
        }
        Some((devices, cpu, memory)) => {
            let memory = memory >> 20;
            format!("the largest host it may use has {devices} x {kind}, {cpu} mCPU and {memory} MiB")
        }
    }
}

fn list<T: ToString>(items: impl Iterator<Item = T>) -> String {
    let texts: Vec<String> = items.map(|i| i.to_string()).collect();
    if texts.is_empty() { "none".to_string() } else { texts.join(", ") }
}
