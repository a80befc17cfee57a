//! Whether a gang could ever run.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use muster_state::{Free, NodeRow, Pool, PoolKey, RackKey, Shape, State, fit};
use muster_types::policy::Guarantee;
use muster_types::tpu::{Generation, PodPosition, SliceRequest};
use muster_types::{DeviceSet, JobSpec, Level, Name, NodeId, NodeSpec, TaskGroup, WorkerRequest};

use crate::Budget;
use crate::awaited::awaited;
use crate::selection::Condition;
use crate::sites::{self, KeyedPool};
use crate::slices::{SliceVerdict, find_slices};

/// Taints that a sentence names; a cluster may have any number.
const TAINTS_NAMED: usize = 8;

/// Verdict on a job that no state of the registered fleet could hold, and that asks for nothing else that the policy names.
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

/// Hosts of one rack.
#[derive(Clone, Debug, Default)]
struct Hosts {
    /// What is left of each host, when it is empty but for the previous groups.
    left: Vec<(Option<Name>, Free)>,
}

/// The part of the fleet that the job's workers may be in together: a cluster, or a domain of the level it
/// requires.
type Domain<'a> = (&'a Name, &'a Name, Option<&'a Name>, Option<&'a Name>, Option<NodeId>);

/// Whether an empty fleet, everything registered being up, could hold the job in one cluster, or the job asks for a
/// type or a region that the policy names and that no registered node has yet.
///
/// Exact for one group, apart from a limit per rack or block together with segments. Several groups are
/// filled one after the other: a job that passes this and still never fits is admitted and waits with its
/// reason, but keeps nobody from a cluster. Nodes that register later may make the impossible possible;
/// the verdict is about the fleet as it is registered now and as the policy names it.
///
/// # Errors
/// The verdict with the closest shape.
pub fn could_ever(state: &State, spec: &JobSpec) -> Result<(), Never> {
    // Once it has waited it takes more.
    let opened = spec.with_open_fallback();
    let spec = opened.as_ref().unwrap_or(spec);
    let mut by_counts = None;
    if let [group] = spec.groups.as_slice()
        && group.slice.is_none()
    {
        by_counts = holds_by_counts(state, spec, group);
    }
    // Neither looks at a node.
    if by_counts == Some(true) || !awaited(state, spec).is_empty() {
        return Ok(());
    }
    if by_counts == Some(false) {
        return Err(never(state, spec));
    }
    if let [group] = spec.groups.as_slice()
        && group.slice.is_none()
        && is_simple(spec)
        && state.policy().policy.spare_hosts_per_rack.is_empty()
    {
        return if holds_one_group(state, spec, group) { Ok(()) } else { Err(never(state, spec)) };
    }
    if spec.groups.iter().any(|group| group.slice.is_some()) {
        return slices_ever(state, spec);
    }
    if holds_somewhere(state, spec, NodeFilter::Registered, None) { Ok(()) } else { Err(never(state, spec)) }
}

/// The most workers of a group that one domain holds when it is empty, by the pools' own counts and without
/// looking at a node; none where these do not say: labels, taints, isolation, images, hosts of several sizes under a rule,
/// other rules than a required level.
fn most_by_counts<'a>(
    state: &'a State,
    spec: &JobSpec,
    group: &TaskGroup,
) -> Option<(u64, Option<(&'a Name, &'a Name)>)> {
    let rule = &spec.topology;
    if fit::is_selective(spec) || rule.balanced || rule.has_segments() || rule.spread.is_some() {
        return None;
    }
    let policy = &state.policy().policy;
    if !policy.required_isolation.is_empty() || policy.has_partitions() || spec.needs_container_runtime() {
        return None;
    }
    // Workers without devices mix hosts of every type.
    let request = group.request.accelerators.as_ref()?;
    let mut most: (u64, Option<(&Name, &Name)>) = (0, None);
    for (key, pool) in sites::pools(state, spec) {
        if !key.kind.as_ref().is_some_and(|kind| request.accepts(kind)) {
            continue;
        }
        // Nor how many hosts of each rack may be used.
        let has_spares = state.policy().policy.spare_hosts_per_rack.contains_key(key.kind.as_ref()?);
        if pool.tainted > 0 || has_spares {
            return None;
        }
        let on = |shape: &Shape| {
            let free = Free {
                devices: DeviceSet::first(shape.devices),
                shares: Vec::new(),
                cpu_milli: shape.cpu_milli,
                memory_bytes: shape.memory_bytes,
                cpu_milli_total: shape.cpu_milli,
                memory_bytes_total: shape.memory_bytes,
                scratch_bytes: shape.scratch_bytes,
            };
            u64::from(free.workers(&group.request))
        };
        let here = match rule.required {
            None => pool.shapes.iter().map(|(shape, hosts)| on(shape) * u64::from(*hosts)).sum(),
            Some(Level::Host) => pool.shapes.keys().map(on).max().unwrap_or(0),
            Some(level) => {
                let mut shapes = pool.shapes.keys();
                let (Some(shape), None) = (shapes.next(), shapes.next()) else { return None };
                on(shape) * most_hosts(pool, level)
            }
        };
        if here > most.0 {
            most = (here, Some((&key.region, &key.cluster)));
        }
    }
    Some(most)
}

/// Hosts of the largest rack or block of a pool.
fn most_hosts(pool: &Pool, level: Level) -> u64 {
    if level == Level::Rack {
        return pool.racks.values().map(|rack| u64::from(rack.nodes)).max().unwrap_or(0);
    }
    let mut most = 0;
    let mut current: Option<(&Name, u64)> = None;
    for (key, rack) in pool.racks.iter() {
        let hosts = u64::from(rack.nodes);
        current = match current {
            Some((block, sum)) if *block == key.block => Some((block, sum + hosts)),
            _ => Some((&key.block, hosts)),
        };
        most = most.max(current.map_or(0, |(_, sum)| sum));
    }
    most
}

/// Whether some domain holds the group when it is empty, where the pools' counts tell that.
fn holds_by_counts(state: &State, spec: &JobSpec, group: &TaskGroup) -> Option<bool> {
    Some(most_by_counts(state, spec, group)?.0 >= u64::from(group.workers_min))
}

/// Whether the only rule is a required level.
fn is_simple(spec: &JobSpec) -> bool {
    let rule = &spec.topology;
    let bounded = rule.required.is_some_and(|level| level != Level::Host);
    !rule.balanced && !rule.has_segments() && rule.spread.is_none() && !bounded
}

/// Which nodes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeFilter {
    /// Every registered one.
    Registered,
    /// Those that are up and not cordoned.
    Placeable,
}

impl NodeFilter {
    fn counts(self, row: &NodeRow) -> bool {
        self == NodeFilter::Registered || row.is_placeable()
    }
}

/// One group without a rule that looks at racks: nodes are counted until there are enough.
fn holds_one_group(state: &State, spec: &JobSpec, group: &TaskGroup) -> bool {
    let one_host = spec.topology.required == Some(Level::Host);
    let wanted = u64::from(group.workers_min);
    let mut found: BTreeMap<(&Name, &Name, Option<&Name>), u64> = BTreeMap::new();
    for (_, row) in state.nodes().iter() {
        let each = u64::from(workers_on_empty(&row.spec, &group.request));
        if each == 0 || !fit::allows(&row.spec, spec, &state.policy().policy) {
            continue;
        }
        let has = row.spec.accelerators.as_ref().map(|a| &a.kind);
        let kind = has.filter(|_| group.request.accelerators.is_some());
        let sum = found.entry((&row.spec.region, &row.spec.cluster, kind)).or_default();
        *sum = if one_host { (*sum).max(each) } else { *sum + each };
        if *sum >= wanted {
            return true;
        }
    }
    false
}

/// How many such workers a host holds when it is empty; none of a type it has not.
pub(crate) fn workers_on_empty(node: &NodeSpec, request: &WorkerRequest) -> u32 {
    if fit::has_kind(node, request) { Free::all_of(node).workers(request) } else { 0 }
}

/// Whether some domain, empty, holds every group. `within` limits it to one cluster and type.
pub(crate) fn holds_somewhere(
    state: &State,
    spec: &JobSpec,
    filter: NodeFilter,
    within: Option<&PoolKey>,
) -> bool {
    let mut domains: BTreeMap<Domain<'_>, BTreeMap<RackKey, Hosts>> = BTreeMap::new();
    let required = spec.topology.required;
    for (id, row) in state.nodes().iter() {
        let node = &row.spec;
        let here = within.is_none_or(|key| key.region == node.region && key.cluster == node.cluster);
        if !here || !filter.counts(row) || !fit::allows(node, spec, &state.policy().policy) {
            continue;
        }
        let block = required.map(|_| &node.block);
        let rack = required.filter(|level| *level >= Level::Rack).map(|_| &node.rack);
        let host = required.filter(|level| *level == Level::Host).map(|_| *id);
        let domain = (&node.region, &node.cluster, block, rack, host);
        let hosts = domains.entry(domain).or_default().entry(RackKey::of(node)).or_default();
        hosts.left.push((node.accelerators.as_ref().map(|a| a.kind.clone()), Free::all_of(node)));
    }
    let pools = sites::pools(state, spec);
    domains.into_iter().any(|((region, cluster, ..), racks)| {
        let of_cluster = |(key, _): &&KeyedPool<'_>| key.region == *region && key.cluster == *cluster;
        let of_cluster: Vec<KeyedPool<'_>> = pools.iter().filter(of_cluster).copied().collect();
        let kinds = of_cluster.iter().filter_map(|(key, _)| key.kind.as_ref());
        let kinds: Vec<&Name> = kinds
            .filter(|kind| within.and_then(|key| key.kind.as_ref()).is_none_or(|own| own == *kind))
            .collect();
        holds_with_kinds(state, spec, &of_cluster, &racks, &kinds)
    })
}

/// Whether these racks hold every group with the first group's devices of one of these types.
fn holds_with_kinds(
    state: &State,
    spec: &JobSpec,
    pools: &[KeyedPool<'_>],
    racks: &BTreeMap<RackKey, Hosts>,
    kinds: &[&Name],
) -> bool {
    let primary = spec.groups.iter().find(|group| group.request.accelerators.is_some());
    let Some(primary) = primary else { return fill_empty(state, spec, pools, racks.clone(), None) };
    kinds
        .iter()
        .filter(|kind| sites::accepts(primary, kind))
        .any(|kind| fill_empty(state, spec, pools, racks.clone(), Some(kind)))
}

fn fill_empty(
    state: &State,
    spec: &JobSpec,
    pools: &[KeyedPool<'_>],
    mut racks: BTreeMap<RackKey, Hosts>,
    kind: Option<&Name>,
) -> bool {
    let spare = kind.and_then(|kind| state.policy().policy.spare_hosts_per_rack.get(kind)).copied();
    let rule = &spec.topology;
    if let Some(spare) = spare {
        for (key, hosts) in &mut racks {
            let of_kind = |(pool, _): &&KeyedPool<'_>| pool.kind.as_ref() == kind;
            let rack = pools.iter().find(of_kind).and_then(|(_, pool)| pool.racks.get(key));
            // Hosts that are in use go on being used, even if they are too many.
            let most = rack.map_or(0, |rack| rack.nodes.saturating_sub(u32::from(spare)).max(rack.in_use));
            // The largest hosts are used.
            hosts.left.sort_by_key(|(_, free)| (u16::MAX - free.devices.count(), u64::MAX - free.cpu_milli));
            let mut of_kind = 0;
            hosts.left.retain(|(has, _)| {
                of_kind += u32::from(has.as_ref() == kind);
                has.as_ref() != kind || of_kind <= most
            });
        }
    }
    if rule.balanced || rule.has_segments() {
        return holds_segments(spec, &racks, kind) || holds_on_one_host(spec, &racks, kind);
    }
    let mut groups: Vec<&TaskGroup> = spec.groups.iter().collect();
    // Those without devices have more choice.
    groups.sort_by_key(|group| group.request.accelerators.is_none());
    let mut used: BTreeMap<(Name, Option<Name>), u32> = BTreeMap::new();
    groups.into_iter().all(|group| take_group(spec, group, kind, &mut racks, &mut used))
}

/// Whether one host holds several groups: nothing is apart there, and no worker counts for a larger one.
fn holds_on_one_host(spec: &JobSpec, racks: &BTreeMap<RackKey, Hosts>, kind: Option<&Name>) -> bool {
    let mut hosts = racks.iter().flat_map(|(key, hosts)| hosts.left.iter().map(move |host| (key, host)));
    spec.groups.len() > 1
        && hosts.any(|(key, host)| {
            let alone = Hosts { left: alloc::vec![host.clone()] };
            let mut racks = BTreeMap::from([(key.clone(), alone)]);
            let mut used = BTreeMap::new();
            spec.groups.iter().all(|group| take_group(spec, group, kind, &mut racks, &mut used))
        })
}

/// Takes the least workers of a group from empty hosts; whether all fit.
fn take_group(
    spec: &JobSpec,
    group: &TaskGroup,
    kind: Option<&Name>,
    racks: &mut BTreeMap<RackKey, Hosts>,
    used: &mut BTreeMap<(Name, Option<Name>), u32>,
) -> bool {
    let own = match (&group.request.accelerators, kind) {
        (Some(request), Some(kind)) if request.accepts(kind) => Some(kind.clone()),
        _ => None,
    };
    let mut rest = group.workers_min;
    for wants_plain in [true, false] {
        for (key, hosts) in racks.iter_mut() {
            for (has, free) in &mut hosts.left {
                let fits = match (&group.request.accelerators, &own) {
                    (None, _) => has.is_none() == wants_plain,
                    (Some(_), Some(own)) => wants_plain && has.as_ref() == Some(own),
                    (Some(request), None) => {
                        wants_plain && has.as_ref().is_some_and(|has| request.accepts(has))
                    }
                };
                if !fits || rest == 0 {
                    continue;
                }
                let mut count = free.workers(&group.request).min(rest);
                if let Some(spread) = spec.topology.spread {
                    let domain = match spread.level {
                        Level::Block => Some((key.block.clone(), None)),
                        Level::Rack => Some((key.block.clone(), Some(key.rack.clone()))),
                        Level::Host => None,
                    };
                    count = count.min(spread.workers_max);
                    if let Some(domain) = domain {
                        let there = used.entry(domain).or_default();
                        count = count.min(spread.workers_max.saturating_sub(*there));
                        *there += count;
                    }
                }
                for _ in 0..count {
                    let Some(devices) = free.pick(&group.request) else { break };
                    free.take(&group.request, devices);
                    rest -= 1;
                }
            }
        }
    }
    rest == 0
}

/// Whether racks hold whole segments, evenly where that is asked for.
fn holds_segments(spec: &JobSpec, racks: &BTreeMap<RackKey, Hosts>, kind: Option<&Name>) -> bool {
    let rule = &spec.topology;
    let [of_block, of_rack, of_host] = Level::ALL.map(|level| rule.unit_in(level));
    // Of the parts that racks have a number of, and of a whole segment.
    let per_segment = rule.segment_unit() / of_rack;
    let wanted = least_in_segments(spec).div_ceil(rule.segment_unit()).saturating_mul(per_segment);
    let mut capacities: Vec<u32> = Vec::with_capacity(racks.len());
    let mut by_block: BTreeMap<&Name, u32> = BTreeMap::new();
    for (key, hosts) in racks {
        // Each worker is counted like the largest of them.
        let each =
            hosts.left.iter().filter(|(has, _)| kind.is_none() || has.as_ref() == kind).map(|(_, free)| {
                let workers = spec.groups.iter().map(|group| free.workers(&group.request)).min().unwrap_or(0);
                workers / of_host * of_host
            });
        let parts = each.fold(0, u32::saturating_add) / of_rack;
        capacities.push(parts);
        let of_its_block = by_block.entry(&key.block).or_default();
        *of_its_block = of_its_block.saturating_add(parts);
    }
    if !rule.balanced {
        let each = of_block / of_rack;
        let parts = by_block.values().map(|parts| u64::from(parts / each * each));
        return parts.sum::<u64>() >= u64::from(wanted);
    }
    (1..=wanted.min(capacities.len() as u32)).any(|count| {
        let (floor, larger) = (wanted / count, (wanted % count) as usize);
        let holds = |part: u32| capacities.iter().filter(|capacity| **capacity >= part).count();
        holds(floor) >= count as usize && (larger == 0 || holds(floor + 1) >= larger)
    })
}

/// The fewest workers with which a gang has whole segments: several groups have no sizes between their steps.
fn least_in_segments(spec: &JobSpec) -> u32 {
    if spec.groups.len() == 1 {
        return spec.worker_count_min();
    }
    let is_whole = |workers: &u32| workers.is_multiple_of(spec.topology.segment_unit());
    let mut sizes = (0..=spec.size_steps()).map(|step| spec.workers_at(step));
    sizes.find(is_whole).unwrap_or_else(|| spec.worker_count())
}

/// Slices: an empty fleet of all registered hosts is searched.
fn slices_ever(state: &State, spec: &JobSpec) -> Result<(), Never> {
    let pools = sites::pools(state, spec);
    for group in &spec.groups {
        let Some(slice) = &group.slice else { continue };
        let mut closest: Option<String> = None;
        let mut fits = false;
        for (key, _) in &pools {
            let Some(kind) = key.kind.as_ref().filter(|kind| sites::accepts(group, kind)) else { continue };
            let Some(generation) = Generation::of_kind(kind) else { continue };
            if let Err(illegal) = slice.shape.check(generation) {
                closest = Some(illegal.to_string());
                continue;
            }
            match slices_in_empty(state, spec, group, slice, generation, key) {
                None => fits = true,
                Some(short) => closest = Some(format!("in {}/{}, empty, {short}", key.region, key.cluster)),
            }
            if fits {
                break;
            }
        }
        if !fits {
            let known = known_kinds(&pools);
            return Err(Never {
                group: group.name.clone(),
                wanted: format!("{} slices of {} ({})", slice.count, slice.shape, kinds_of(group)),
                closest: closest
                    .unwrap_or_else(|| format!("no TPU pod it may use has this type; types there: {known}")),
            });
        }
    }
    Ok(())
}

/// What is missing for slices in an empty cluster; none when they fit.
fn slices_in_empty(
    state: &State,
    spec: &JobSpec,
    group: &TaskGroup,
    slice: &SliceRequest,
    generation: Generation,
    key: &PoolKey,
) -> Option<String> {
    let mut shortest = None;
    let mut of_other_shapes: BTreeSet<NodeId> = BTreeSet::new();
    for chips in generation.chips_per_host() {
        if slice.workers(*chips) != Some(group.workers) {
            continue;
        }
        let mut hosts: BTreeMap<PodPosition, NodeId> = BTreeMap::new();
        for (id, row) in state.nodes().iter() {
            let is_of_pool = PoolKey::of(&row.spec) == *key && row.spec.device_count() == *chips;
            if is_of_pool && !fit::is_of_its_slices(&row.spec, spec) {
                of_other_shapes.insert(*id);
            }
            let fits = is_of_pool
                && fit::allows(&row.spec, spec, &state.policy().policy)
                && workers_on_empty(&row.spec, &group.request) > 0;
            if let Some(position) = row.spec.pod.as_ref().filter(|_| fits) {
                hosts.insert(position.clone(), *id);
            }
        }
        match find_slices(generation, slice, *chips, &hosts, &mut Budget::new(u64::MAX)) {
            SliceVerdict::Fits(_) => return None,
            SliceVerdict::Short(short) => shortest = Some(short.to_string()),
            SliceVerdict::OutOfBudget => {}
        }
    }
    let others = match of_other_shapes.len() {
        0 => String::new(),
        count => format!("; {count} more hosts are of slices of other shapes, which jobs use as a whole"),
    };
    let short = shortest.unwrap_or_else(|| {
        format!("hosts of {} chips do not make this slice with {} workers", generation, group.workers)
    });
    Some(short + &others)
}

fn kinds_of(group: &TaskGroup) -> String {
    group.request.accelerators.as_ref().map_or_else(|| "no accelerators".to_string(), ToString::to_string)
}

fn known_kinds(pools: &[KeyedPool<'_>]) -> String {
    let kinds: BTreeSet<&Name> = pools.iter().filter_map(|(key, _)| key.kind.as_ref()).collect();
    list(kinds.iter())
}

/// Says what is closest.
fn never(state: &State, spec: &JobSpec) -> Never {
    let alone = |group: &&TaskGroup| most_workers(state, spec, group).0 < u64::from(group.workers_min);
    let everywhere = spec.groups.iter().find(alone);
    if everywhere.is_none() && spec.groups.len() > 1 {
        return never_together(state, spec);
    }
    let group = everywhere.or_else(|| spec.groups.last()).expect("a checked job has a group");
    let rule = rule_in_words(spec);
    Never {
        group: group.name.clone(),
        wanted: format!("{}{rule}", describe(group, group.workers_min)),
        closest: closest(state, spec, group)
            + &without_isolation(state, spec)
            + &without_runtime(state, spec),
    }
}

fn rule_in_words(spec: &JobSpec) -> String {
    let rule = &spec.topology;
    let mut text = String::new();
    if let Some(level) = rule.required {
        text.push_str(&format!(" in one {level}"));
    }
    if rule.balanced {
        text.push_str(" balanced over racks");
    }
    if rule.segment_workers > 0 {
        text.push_str(&format!(" in segments of {}", rule.segment_workers));
    }
    for (place, segment) in rule.segments.iter().enumerate() {
        let start = if place == 0 { " in segments of" } else { " and of" };
        text.push_str(&format!("{start} {} in a {}", segment.workers, segment.level));
    }
    if let Some(spread) = rule.spread {
        text.push_str(&format!(" with at most {} in a {}", spread.workers_max, spread.level));
    }
    text
}

/// The most workers of a group, alone, that one empty cluster holds by the job's rule, and where. On one
/// type of accelerator, as all workers of a group are.
fn most_workers<'a>(
    state: &'a State,
    spec: &JobSpec,
    group: &TaskGroup,
) -> (u64, Option<(&'a Name, &'a Name)>) {
    if let Some(found) = most_by_counts(state, spec, group) {
        return found;
    }
    let rule = &spec.topology;
    type ClusterKey<'a> = (&'a Name, &'a Name, Option<&'a Name>);
    type Part<'a> = (Option<&'a Name>, Option<&'a Name>, Option<NodeId>);
    let mut parts: BTreeMap<ClusterKey<'a>, BTreeMap<Part<'a>, u64>> = BTreeMap::new();
    for (id, row) in state.nodes().iter() {
        let node = &row.spec;
        let mut each = u64::from(workers_on_empty(node, &group.request));
        if each == 0 || !fit::allows(node, spec, &state.policy().policy) {
            continue;
        }
        if let Some(spread) = rule.spread.filter(|spread| spread.level == Level::Host) {
            each = each.min(u64::from(spread.workers_max));
        }
        let level = rule.required;
        let has =
            node.accelerators.as_ref().map(|a| &a.kind).filter(|_| group.request.accelerators.is_some());
        let part = (
            level.map(|_| &node.block),
            level.filter(|level| *level >= Level::Rack).map(|_| &node.rack),
            level.filter(|level| *level == Level::Host).map(|_| *id),
        );
        let place = (&node.region, &node.cluster, has);
        *parts.entry(place).or_default().entry(part).or_default() += each;
    }
    let most = |parts: &BTreeMap<_, u64>| parts.values().max().copied().unwrap_or(0);
    // The last maximum of the reverse is the first by name.
    let best = parts.iter().rev().map(|(place, parts)| (most(parts), place)).max_by_key(|(most, _)| *most);
    best.map_or((0, None), |(most, (region, cluster, _))| (most, Some((*region, *cluster))))
}

/// Every group alone fits somewhere, but not in one cluster, or not by the rule.
fn never_together(state: &State, spec: &JobSpec) -> Never {
    let pools = sites::pools(state, spec);
    let asks =
        |key: &PoolKey| key.kind.as_ref().is_some_and(|k| spec.groups.iter().any(|g| sites::accepts(g, k)));
    let devices = |cluster: &[KeyedPool<'_>]| -> u64 {
        cluster.iter().filter(|(key, _)| asks(key)).map(|(_, pool)| pool.total_devices).sum()
    };
    let mut best: Option<(u64, &PoolKey)> = None;
    for cluster in sites::clusters(&pools) {
        let have = devices(cluster);
        if best.is_none_or(|(most, _)| have > most) {
            best = cluster.first().map(|(key, _)| (have, *key));
        }
    }
    let parts: Vec<String> = spec.groups.iter().map(|g| describe(g, g.workers_min)).collect();
    let closest = match best {
        Some((most, key)) => format!(
            "the most devices of these types in one cluster are {most}, in {}/{}",
            key.region, key.cluster
        ),
        None => "no cluster is in its regions".to_string(),
    };
    Never {
        group: spec.groups.last().expect("a checked job has a group").name.clone(),
        wanted: format!("{} together in one cluster{}", parts.join(" and "), rule_in_words(spec)),
        closest: closest + &without_isolation(state, spec) + &without_runtime(state, spec),
    }
}

pub(crate) fn describe(group: &TaskGroup, workers: u32) -> String {
    let plural = if workers == 1 { "worker" } else { "workers" };
    let devices = group.request.accelerators.as_ref().map_or_else(String::new, |a| format!(" x {a}"));
    let scratch = match group.request.scratch_bytes {
        0 => String::new(),
        bytes => format!(", {} MiB of scratch", bytes >> 20),
    };
    format!(
        "{workers} {plural}{devices} ({} mCPU, {} MiB each{scratch}{})",
        group.request.cpu_milli,
        group.request.memory_bytes >> 20,
        if group.request.exclusive { ", with a host to itself" } else { "" }
    )
}

fn closest(state: &State, spec: &JobSpec, group: &TaskGroup) -> String {
    let pools = sites::pools(state, spec);
    if pools.is_empty() {
        let regions: BTreeSet<&Name> = state.pools().map(|(key, _)| &key.region).collect();
        return format!(
            "no node is registered in the regions it allows; regions with nodes: {}",
            list(regions.iter())
        );
    }
    let (most, place) = most_workers(state, spec, group);
    if let Some((region, cluster)) = place.filter(|_| most > 0) {
        if most >= u64::from(group.workers_min) {
            return match largest_by_rule(state, spec) {
                Some(workers) => {
                    format!("closest that would: {}{}", describe(group, workers), rule_in_words(spec))
                }
                None => format!("{region}/{cluster} could hold its workers, but not by this rule"),
            };
        }
        let rule = rule_in_words(spec);
        if spec.groups.len() == 1 {
            let workers = u32::try_from(most).unwrap_or(u32::MAX);
            return format!("closest that would: {}{rule} in {region}/{cluster}", describe(group, workers));
        }
        return format!("the most of this group in one cluster is {most}{rule}, in {region}/{cluster}");
    }
    excluded(state, spec, group).unwrap_or_else(|| largest_hosts(&pools, group))
}

/// The most workers, below what the one group asks for, that the rule lets an empty cluster hold. Found by
/// bisection.
fn largest_by_rule(state: &State, spec: &JobSpec) -> Option<u32> {
    let [group] = spec.groups.as_slice() else { return None };
    let unit = spec.topology.segment_unit();
    let holds = |units: u32| {
        let mut draft = spec.clone().into_draft();
        for group in &mut draft.groups {
            group.workers = units * unit;
            group.workers_min = units * unit;
        }
        draft.check().is_ok_and(|varied| holds_somewhere(state, &varied, NodeFilter::Registered, None))
    };
    let (mut works, mut fails) = (0, group.workers_min.div_ceil(unit));
    while works + 1 < fails {
        let middle = works.midpoint(fails);
        if holds(middle) { works = middle } else { fails = middle }
    }
    (works > 0).then_some(works * unit)
}

/// How many nodes lack isolation of workers that policy requires, and what they lack; empty where none does.
fn without_isolation(state: &State, spec: &JobSpec) -> String {
    let policy = &state.policy().policy;
    if policy.required_isolation.is_empty() {
        return String::new();
    }
    let in_region = |node: &&NodeSpec| spec.regions.is_empty() || spec.regions.contains(&node.region);
    let (mut nodes, mut lacking) = (0, BTreeSet::new());
    for node in state.nodes().iter().map(|(_, row)| &*row.spec).filter(in_region) {
        nodes += u32::from(policy.lacking_isolation(node).next().is_some());
        lacking.extend(policy.lacking_isolation(node));
    }
    isolation_note(nodes, &lacking)
}

/// How many nodes have no container runtime for a job with an image; empty where it has none, or all of them do.
fn without_runtime(state: &State, spec: &JobSpec) -> String {
    if !spec.needs_container_runtime() {
        return String::new();
    }
    let in_region = |node: &&NodeSpec| spec.regions.is_empty() || spec.regions.contains(&node.region);
    let nodes = state.nodes().iter().map(|(_, row)| &*row.spec).filter(in_region);
    let lacking = nodes.filter(|node| !muster_types::container::has_runtime(node)).count();
    runtime_note(u32::try_from(lacking).unwrap_or(u32::MAX))
}

/// The end of a sentence about why a gang with an image finds no place; empty where every node has a container runtime.
pub(crate) fn runtime_note(nodes: u32) -> String {
    match nodes {
        0 => String::new(),
        1 => "; 1 node has no container runtime".to_string(),
        _ => format!("; {nodes} nodes have no container runtime"),
    }
}

/// The end of a sentence about why a gang finds no place; empty where isolation keeps it from no node.
pub(crate) fn isolation_note(nodes: u32, lacking: &BTreeSet<Guarantee>) -> String {
    match nodes {
        0 => String::new(),
        1 => format!("; 1 node lacks isolation that policy requires ({})", list(lacking.iter())),
        _ => format!("; {nodes} nodes lack isolation that policy requires ({})", list(lacking.iter())),
    }
}

/// The end of a sentence about why a gang finds no place; empty where taints keep it from no node.
pub(crate) fn taint_note(nodes: u32, taints: &BTreeSet<&Name>) -> String {
    let have = match nodes {
        0 => return String::new(),
        1 => "1 node has".to_string(),
        _ => format!("{nodes} nodes have"),
    };
    format!("; {have} a taint it does not tolerate ({})", list(taints.iter().take(TAINTS_NAMED)))
}

/// Hosts are large enough, but labels, names or taints keep the job from all of them.
fn excluded(state: &State, spec: &JobSpec, group: &TaskGroup) -> Option<String> {
    let policy = &state.policy().policy;
    let has_taints = state.pools().any(|(_, pool)| pool.tainted > 0);
    if !fit::is_selective(spec) && !has_taints && !policy.has_partitions() {
        return None;
    }
    let in_region = |node: &NodeSpec| spec.regions.is_empty() || spec.regions.contains(&node.region);
    let (mut large, mut tainted, mut closed) = (0u64, 0u64, 0u64);
    let mut conditions: Vec<(Condition<'_>, u64)> =
        Condition::all(spec).into_iter().map(|condition| (condition, 0)).collect();
    let mut taints: BTreeSet<&Name> = BTreeSet::new();
    for (_, row) in state.nodes().iter() {
        let node = &row.spec;
        if !in_region(node) || workers_on_empty(node, &group.request) == 0 {
            continue;
        }
        large += 1;
        closed += u64::from(!policy.opens(node, &spec.tenant));
        for (condition, met) in &mut conditions {
            *met += u64::from(condition.is_met(node));
        }
        let not_tolerated = |taint: &&Name| !spec.tolerations.contains(*taint);
        tainted += u64::from(node.taints.iter().any(|taint| not_tolerated(&taint)));
        taints.extend(node.taints.iter().filter(not_tolerated));
    }
    if large == 0 {
        return None;
    }
    let mut parts: Vec<String> =
        conditions.iter().map(|(condition, met)| condition.count(*met, large)).collect();
    if tainted > 0 {
        parts.push(format!("{tainted} have a taint it does not tolerate ({})", list(taints.iter())));
    }
    if closed > 0 {
        parts.push(format!("{closed} are not nodes of its tenant (`queue.nodes` in the policy)"));
    }
    if parts.is_empty() {
        return None;
    }
    Some(format!("of {large} hosts that are large enough, {}", parts.join(", ")))
}

/// No host holds even one worker: say what hosts there are.
fn largest_hosts(pools: &[KeyedPool<'_>], group: &TaskGroup) -> String {
    let shapes = pools.iter().flat_map(|(_, pool)| pool.shapes.iter());
    let most_scratch = shapes.map(|(shape, _)| shape.scratch_bytes).max().unwrap_or(0);
    if group.request.scratch_bytes > most_scratch {
        return format!("the host with most scratch that it may use gives {} MiB", most_scratch >> 20);
    }
    let mut largest: BTreeMap<Option<&Name>, (u16, u64, u64)> = BTreeMap::new();
    for (key, pool) in pools {
        let entry = largest.entry(key.kind.as_ref()).or_default();
        for (shape, _) in pool.shapes.iter() {
            *entry =
                (entry.0.max(shape.devices), entry.1.max(shape.cpu_milli), entry.2.max(shape.memory_bytes));
        }
    }
    let Some(request) = &group.request.accelerators else {
        if group.request.exclusive {
            let Some((_, cpu, memory)) = largest.get(&None) else {
                return "every host that it may use has accelerators, which `exclusive` keeps away from"
                    .to_string();
            };
            return format!("the largest host without accelerators has {cpu} mCPU and {} MiB", memory >> 20);
        }
        // A worker without accelerators may go to any host.
        let cpu = largest.values().map(|l| l.1).max().unwrap_or(0);
        let memory = largest.values().map(|l| l.2).max().unwrap_or(0);
        return format!("the largest host it may use has {cpu} mCPU and {} MiB", memory >> 20);
    };
    let accepted: Vec<String> = largest
        .iter()
        .filter_map(|(kind, sizes)| kind.filter(|kind| request.accepts(kind)).map(|kind| (kind, sizes)))
        .map(|(kind, (devices, cpu, memory))| {
            format!("{devices} x {kind}, {cpu} mCPU and {} MiB", memory >> 20)
        })
        .collect();
    if accepted.is_empty() {
        let kinds: Vec<&str> = request.choices.iter().map(|choice| choice.kind.as_str()).collect();
        let wanted = if kinds.is_empty() { "accelerators".to_string() } else { kinds.join(" or ") };
        return format!("no node it may use has {wanted}; accelerator types there: {}", known_kinds(pools));
    }
    format!("the largest host it may use has {}", accepted.join("; or "))
}

pub(crate) fn list<T: ToString>(items: impl Iterator<Item = T>) -> String {
    let texts: Vec<String> = items.map(|i| i.to_string()).collect();
    if texts.is_empty() { "none".to_string() } else { texts.join(", ") }
}
