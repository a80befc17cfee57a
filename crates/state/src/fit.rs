//! Whether a worker fits on a node and whether placed workers are the gang that was asked for: the one
//! feasibility function, used by the planner and the guard.

use alloc::collections::BTreeMap;
use muster_types::container;
use muster_types::policy::Policy;
use muster_types::tpu::{Generation, PodPosition, SLICE_LABEL, SliceShape, forms_slice};
use muster_types::{DeviceSet, JobSpec, Level, Name, NodeSpec, TaskGroup, WorkerRequest};

use crate::rows::NodeRow;

/// Why placed workers are not the gang that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangFault {
    /// A node has not the type asked for, or the workers of a group have several.
    Kind,
    /// A node has not the labels, the name or the purchase asked for, a taint that is not tolerated, not the isolation that policy requires,
    /// or no container runtime for a job with an image.
    Node,
    /// Outside the regions, or in several clusters.
    Place,
    /// The workers are not as close together or as far apart as asked for.
    Topology,
    /// The hosts of a group do not form its slices.
    Slice,
}

/// The devices of `node` that a worker could have right now in addition to what is promised; `None` when it
/// does not fit. Status and cordon are the caller's to check.
#[must_use]
pub fn devices_for(node: &NodeRow, request: &WorkerRequest) -> Option<DeviceSet> {
    if !has_kind(&node.spec, request) {
        return None;
    }
    node.offer().pick(request)
}

/// Whether exactly these devices of `node` satisfy the request right now, in addition to what is promised.
#[must_use]
pub fn admits(node: &NodeRow, request: &WorkerRequest, devices: DeviceSet) -> bool {
    has_kind(&node.spec, request) && node.offer().admits(request, devices)
}

/// Whether the node's accelerators are of a type the worker accepts, or it has none where the worker must have none.
#[must_use]
pub fn has_kind(node: &NodeSpec, request: &WorkerRequest) -> bool {
    match (&request.accelerators, &node.accelerators) {
        // One that has its host to itself keeps away from devices, for which it is not charged.
        (None, has) => has.is_none() || !request.exclusive,
        (Some(wanted), Some(has)) => wanted.accepts(&has.kind),
        (Some(_), None) => false,
    }
}

/// Whether a node has the labels and the name that a job asks for.
#[must_use]
pub fn selects(node: &NodeSpec, spec: &JobSpec) -> bool {
    let has = |label: &Name| node.labels.get(label);
    spec.node_selector.iter().all(|(label, values)| has(label).is_some_and(|value| values.contains(value)))
        && spec.nodes.as_ref().is_none_or(|nodes| nodes.allows(node))
}

/// Whether a node was bought as a job asks for now.
#[must_use]
pub fn is_bought_for(node: &NodeSpec, spec: &JobSpec) -> bool {
    spec.capacity.as_ref().is_none_or(|capacity| capacity.allows(node))
}

/// Whether a job selects nodes by what is their own: labels, names or purchases.
#[must_use]
pub fn is_selective(spec: &JobSpec) -> bool {
    !spec.node_selector.is_empty() || spec.nodes.is_some() || spec.capacity.is_some()
}

/// Whether the slices of a job may be on a node. A provider's slice of several hosts is used as a whole, because nobody knows which of
/// its hosts are neighbours: an agent refuses a slice of another shape there, again and again if it was placed there.
#[must_use]
pub fn is_of_its_slices(node: &NodeSpec, spec: &JobSpec) -> bool {
    if spec.groups.iter().all(|group| group.slice.is_none()) {
        return true;
    }
    let label = node.labels.iter().find(|(label, _)| label.as_str() == SLICE_LABEL);
    let Some(shape) = label.and_then(|(_, text)| SliceShape::parse(text)) else { return true };
    if shape.hosts(node.device_count()).is_none_or(|hosts| hosts == 1) {
        return true;
    }
    // Workers with devices that form no slice may be on any host of it. Those without are no reason to open it: it is not asked for
    // which group a host is, and the slices of the same job would be there too.
    let may_take = |group: &TaskGroup| group.slice.as_ref().is_none_or(|asked| asked.shape == shape);
    let takes = |group: &&TaskGroup| group.request.accelerators.is_some() && has_kind(node, &group.request);
    let mut takers = spec.groups.iter().filter(takes).peekable();
    takers.peek().is_none() || takers.any(may_take)
}

/// Whether a job may be on a node at all: labels, name, purchase, taints, region, a container runtime where the job has an image, the
/// isolation that policy requires, no accelerators where each worker has its host to itself, the shape of its slices, and whether the
/// nodes of tenants leave it to this one.
#[must_use]
pub fn allows(node: &NodeSpec, spec: &JobSpec, policy: &Policy) -> bool {
    let tolerated = node.taints.iter().all(|taint| spec.tolerations.contains(taint));
    let region = spec.regions.is_empty() || spec.regions.contains(&node.region);
    let contained = !spec.needs_container_runtime() || container::has_runtime(node);
    let selected = selects(node, spec) && is_bought_for(node, spec);
    // It would keep devices from others without being charged for any.
    let alone = node.accelerators.is_none() || !spec.is_exclusive();
    selected
        && alone
        && tolerated
        && region
        && contained
        && is_of_its_slices(node, spec)
        && policy.lacking_isolation(node).next().is_none()
        && policy.opens(node, &spec.tenant)
}

/// The domain of a node at a level; hosts are told apart by their name.
#[must_use]
pub fn domain(node: &NodeSpec, level: Level) -> (&Name, Option<&Name>, Option<&Name>) {
    match level {
        Level::Block => (&node.block, None, None),
        Level::Rack => (&node.block, Some(&node.rack), None),
        Level::Host => (&node.block, Some(&node.rack), Some(&node.name)),
    }
}

/// Whether workers on these nodes, by rank, are what the job asks for, apart from capacity.
///
/// # Errors
/// What is wrong first.
pub fn forms_gang(spec: &JobSpec, nodes: &[&NodeSpec], policy: &Policy) -> Result<(), GangFault> {
    let Some(first) = nodes.first() else { return Err(GangFault::Place) };
    if nodes.iter().any(|node| node.region != first.region || node.cluster != first.cluster) {
        return Err(GangFault::Place);
    }
    if nodes.iter().any(|node| !allows(node, spec, policy)) {
        return Err(GangFault::Node);
    }
    // Groups of an elastic job may be shorter than they ask for.
    let count = u32::try_from(nodes.len()).map_err(|_| GangFault::Kind)?;
    let sizes = spec.sizes_of(count).ok_or(GangFault::Kind)?;
    let mut begin = 0;
    for (group, workers) in spec.groups.iter().zip(sizes) {
        let end = begin + workers as usize;
        let Some(of_group) = nodes.get(begin..end) else { return Err(GangFault::Kind) };
        check_kinds(group, of_group)?;
        check_slices(group, of_group)?;
        begin = end;
    }
    check_topology(spec, nodes)
}

/// Workers of a group have accelerators of one type that they accept.
fn check_kinds(group: &TaskGroup, nodes: &[&NodeSpec]) -> Result<(), GangFault> {
    if group.request.accelerators.is_none() {
        return Ok(());
    }
    let kind = |node: &NodeSpec| node.accelerators.as_ref().map(|a| a.kind.clone());
    let first = nodes.first().and_then(|node| kind(node));
    let good = nodes.iter().all(|node| has_kind(node, &group.request) && kind(node) == first);
    if good { Ok(()) } else { Err(GangFault::Kind) }
}

fn check_slices(group: &TaskGroup, nodes: &[&NodeSpec]) -> Result<(), GangFault> {
    let Some(slice) = &group.slice else { return Ok(()) };
    let Some(accelerators) = nodes.first().and_then(|node| node.accelerators.as_ref()) else {
        return Err(GangFault::Slice);
    };
    let generation = Generation::of_kind(&accelerators.kind).ok_or(GangFault::Slice)?;
    let chips_per_host = accelerators.count;
    let positions: Option<alloc::vec::Vec<PodPosition>> = nodes.iter().map(|node| node.pod.clone()).collect();
    let positions = positions.ok_or(GangFault::Slice)?;
    let hosts = positions.len() / usize::from(slice.count.max(1));
    if hosts == 0 || hosts * usize::from(slice.count) != positions.len() {
        return Err(GangFault::Slice);
    }
    let formed = positions
        .chunks(hosts)
        .all(|of_slice| forms_slice(generation, slice.shape, chips_per_host, of_slice).is_ok());
    if formed { Ok(()) } else { Err(GangFault::Slice) }
}

fn check_topology(spec: &JobSpec, nodes: &[&NodeSpec]) -> Result<(), GangFault> {
    let rule = &spec.topology;
    let one = |nodes: &[&NodeSpec], level: Level| {
        nodes.windows(2).all(|pair| domain(pair[0], level) == domain(pair[1], level))
    };
    if let Some(level) = rule.required
        && !one(nodes, level)
    {
        return Err(GangFault::Topology);
    }
    for segment in rule.all_segments() {
        if !nodes.chunks(segment.workers.max(1) as usize).all(|nodes| one(nodes, segment.level)) {
            return Err(GangFault::Topology);
        }
    }
    if rule.balanced {
        let counts = counts(nodes, Level::Rack);
        let most = counts.values().max().copied().unwrap_or(0);
        let least = counts.values().min().copied().unwrap_or(0);
        if most - least > rule.unit_in(Level::Rack) {
            return Err(GangFault::Topology);
        }
    }
    if let Some(spread) = rule.spread
        && counts(nodes, spread.level).values().any(|count| *count > spread.workers_max)
    {
        return Err(GangFault::Topology);
    }
    Ok(())
}

type Domain<'a> = (&'a Name, Option<&'a Name>, Option<&'a Name>);

fn counts<'a>(nodes: &[&'a NodeSpec], level: Level) -> BTreeMap<Domain<'a>, u32> {
    let mut counts = BTreeMap::new();
    for node in nodes {
        *counts.entry(domain(node, level)).or_insert(0) += 1;
    }
    counts
}
