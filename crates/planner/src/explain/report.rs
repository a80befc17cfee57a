//! What keeps a gang from the nodes of each cluster, counted.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use muster_state::{NodeRow, NodeStatus, PoolKey, State};
use muster_types::policy::Guarantee;
use muster_types::{JobSpec, Level, Name, NodeId, TopologyRule};

use crate::Budget;
use crate::ever::{NodeFilter, holds_somewhere, workers_on_empty};
use crate::fill::{Attempt, Scope};
use crate::score::Score;
use crate::selection::Condition;
use crate::sites::Site;
use crate::terms::{AffinityTerm, Terms};

/// Registered nodes by the first thing that keeps the gang from them, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// All; the sum of the others.
    pub registered: u32,
    /// Lost.
    pub not_up: u32,
    /// Taken out of placement by an operator.
    pub cordoned: u32,
    /// Without the labels or the names that the job selects, or without a container runtime where it has an image.
    pub wrong_labels: u32,
    /// Bought in another way than the job asks for, or taken away more often.
    pub wrong_purchase: u32,
    /// With a taint that the job does not tolerate.
    pub tainted: u32,
    /// Without the isolation of workers that policy requires.
    pub not_isolated: u32,
    /// Too small for one worker, even when empty.
    pub too_small: u32,
    /// In a window that begins before the gang would end.
    pub in_window: u32,
    /// Where other jobs are from which the gang has to keep away, or are not with which it has to be.
    pub kept_away: u32,
    /// Kept for gangs before it, or to take the place of failed hosts of its rack.
    pub held: u32,
    /// Without capacity for one worker now.
    pub full: u32,
    /// With capacity for one worker at least.
    pub fit: u32,
}

/// Reasons of operators that are told of one fleet cluster.
const REASONS_SHOWN_MAX: usize = 4;

/// Adds why operators took a node out of placement, where they said something new.
fn note_reasons(known: &mut Vec<String>, row: &NodeRow) {
    let Some(reasons) = &row.reasons else { return };
    for said in [&reasons.cordon, &reasons.drain].into_iter().flatten() {
        if known.len() < REASONS_SHOWN_MAX && !said.reason.is_empty() && !known.contains(&said.reason) {
            known.push(said.reason.clone());
        }
    }
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
    /// Taints of its nodes that the job does not tolerate and that keep it from them.
    pub taints: BTreeSet<Name>,
    /// Conditions on labels and names of nodes that the job has, each with the number of registered nodes that do not meet
    /// it; then that their slices have its shape, where some have not; then the same of what it has to be with, or away from. A
    /// node may miss several.
    pub unmet: Vec<(String, u32)>,
    /// Why operators took nodes of it out of placement: at most 4, none twice.
    pub out_because: Vec<String>,
    /// How many of its nodes have no container runtime, where the job has an image.
    pub without_runtime: u32,
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
    pub(super) fn place(&self) -> (Name, Name) {
        (self.region.clone(), self.cluster.clone())
    }
}

pub(super) fn closest(reports: &[ClusterReport]) -> Option<&ClusterReport> {
    let rank =
        |r: &&ClusterReport| (r.could_hold_placeable, r.could_hold, r.workers_that_fit, r.total_devices);
    // The last maximum of the reverse is the first by name.
    reports.iter().rev().max_by_key(rank)
}

/// Region, cluster, and the type of accelerator where that matters.
type PlaceKey<'a> = (&'a Name, &'a Name, Option<&'a Name>);

/// Block, rack and host, as far down as the level that is counted.
type DomainKey<'a> = (Option<&'a Name>, Option<&'a Name>, Option<NodeId>);

/// The condition that nodes of slices in another shape do not meet.
const SLICE_SHAPE: &str = "the shape of the provider's slice";

/// A report in the making.
pub(super) struct Counting<'a> {
    nodes: NodeCounts,
    lacking_isolation: BTreeSet<Guarantee>,
    taints: BTreeSet<Name>,
    /// What the job asks of labels and names of nodes, and how many nodes do not meet it.
    unmet: Vec<(Condition<'a>, u32)>,
    /// Nodes of slices that a provider has made in other shapes than the job asks for.
    of_other_slices: u32,
    /// What it has to be with or away from, and how many nodes do not meet it.
    kept_away: Vec<(String, u32)>,
    out_because: Vec<String>,
    without_runtime: u32,
    reserved_devices: u64,
    workers_that_fit: u32,
    /// Workers of the first group, by domain of the rule: on empty registered nodes, on empty placeable
    /// ones, now.
    domains: BTreeMap<DomainKey<'a>, [u64; 3]>,
}

/// The level whose domains are counted.
fn counted_level(rule: &TopologyRule) -> Option<Level> {
    let by_part = rule.all_segments().map(|segment| segment.level).next();
    let by_part = by_part.or(rule.balanced.then_some(Level::Rack));
    rule.required.or(by_part).or(rule.preferred)
}

/// What a gang has to be with or away from.
fn required<'t>(terms: &'t Terms<'_>) -> impl Iterator<Item = &'t AffinityTerm<'t>> {
    let all: &'t [AffinityTerm<'t>] = terms.affinity;
    all.iter().filter(|term| term.is_required())
}

/// Whether the workers that fit are the sum of what fits on each node.
fn is_counted_by_node(spec: &JobSpec) -> bool {
    spec.groups.len() == 1 && spec.groups.iter().all(|group| group.slice.is_none())
}

impl<'a> Counting<'a> {
    pub(super) fn new(
        state: &'a State,
        spec: &'a JobSpec,
        terms: &Terms<'_>,
        site: &Site<'_>,
        budget: &mut Budget,
    ) -> Counting<'a> {
        let mut counting = Counting {
            nodes: NodeCounts::default(),
            lacking_isolation: BTreeSet::new(),
            taints: BTreeSet::new(),
            unmet: Condition::all(spec).into_iter().map(|condition| (condition, 0)).collect(),
            of_other_slices: 0,
            kept_away: required(terms).map(|term| (term.text.clone(), 0)).collect(),
            out_because: Vec::new(),
            without_runtime: 0,
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

    pub(super) fn report(
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
            && !rule.has_segments()
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
            let holds = |filter| holds_somewhere(state, spec, filter, Some(&key));
            (holds(NodeFilter::Registered), holds(NodeFilter::Placeable))
        };
        let mut workers_that_fit = self.workers_that_fit;
        if is_counted_by_node(spec) {
            let everywhere = by_cluster(2).min(u64::from(spec.worker_count()));
            workers_that_fit = u32::try_from(everywhere).unwrap_or(u32::MAX);
        }
        let unmet = self.unmet.into_iter().map(|(condition, nodes)| (condition.to_string(), nodes));
        let of_other_slices = self.of_other_slices;
        let shape = (of_other_slices > 0).then(|| (String::from(SLICE_SHAPE), of_other_slices));
        ClusterReport {
            region: key.region.clone(),
            cluster: key.cluster.clone(),
            kind: key.kind.clone(),
            nodes: self.nodes,
            lacking_isolation: self.lacking_isolation,
            taints: self.taints,
            unmet: unmet.chain(shape).chain(self.kept_away).collect(),
            out_because: self.out_because,
            without_runtime: self.without_runtime,
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
pub(super) fn count_nodes<'a>(
    state: &'a State,
    spec: &'a JobSpec,
    terms: &'a Terms<'a>,
    all_sites: &'a [Vec<Site<'a>>],
    counting: &mut [Counting<'a>],
) {
    let mut budget = Budget::new(u64::MAX);
    let mut budgets: Vec<Budget> = all_sites.iter().flatten().map(|_| budget).collect();
    let mut attempts: Vec<Attempt<'_, '_>> = Vec::new();
    let mut of_place: BTreeMap<PlaceKey<'_>, usize> = BTreeMap::new();
    for (number, (site, budget)) in all_sites.iter().flatten().zip(&mut budgets).enumerate() {
        of_place.insert((site.region, site.cluster, site.kind), number);
        attempts.push(Attempt::new(state, spec, terms, site, budget));
    }
    budget.visit();
    let is_plain = spec.groups.iter().all(|group| group.request.accelerators.is_none());
    let level = counted_level(&spec.topology);
    // Neighbours are most often of one place, and of one domain: they are added up before anything is looked up.
    let mut last: Option<(PlaceKey<'_>, usize)> = None;
    let mut open: Option<(usize, DomainKey<'a>, [u64; 3])> = None;
    for (id, row) in state.nodes().iter() {
        let node = &row.spec;
        let kind = node.accelerators.as_ref().map(|a| &a.kind).filter(|_| !is_plain);
        let place: PlaceKey<'_> = (&node.region, &node.cluster, kind);
        let known = last.filter(|(known, _)| *known == place).map(|(_, number)| number);
        let Some(number) = known.or_else(|| of_place.get(&place).copied()) else { continue };
        last = Some((place, number));
        let (mut now, mut empty) = (0, 0);
        count_node(*id, row, &attempts[number], &mut counting[number], &mut now, &mut empty);
        if empty == 0 {
            continue;
        }
        let domain = (
            level.map(|_| &node.block),
            level.filter(|level| *level >= Level::Rack).map(|_| &node.rack),
            level.filter(|level| *level == Level::Host).map(|_| *id),
        );
        let placeable = if row.is_placeable() { empty } else { 0 };
        let more = [empty, placeable, now].map(u64::from);
        if let Some((of, known, sums)) = &mut open
            && *of == number
            && *known == domain
        {
            add(sums, more);
            continue;
        }
        if let Some((of, known, sums)) = open.replace((number, domain, more)) {
            add(counting[of].domains.entry(known).or_default(), sums);
        }
    }
    if let Some((of, known, sums)) = open {
        add(counting[of].domains.entry(known).or_default(), sums);
    }
}

fn add(sums: &mut [u64; 3], more: [u64; 3]) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum += more;
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
    let contained = attempt.has_runtime(row);
    counting.without_runtime += u32::from(!contained);
    let selected = attempt.is_selected(row) && contained;
    for (condition, nodes) in &mut counting.unmet {
        *nodes += u32::from(!condition.is_met(&row.spec));
    }
    counting.of_other_slices += u32::from(!muster_state::fit::is_of_its_slices(&row.spec, spec));
    for (term, (_, nodes)) in required(attempt.terms).zip(&mut counting.kept_away) {
        *nodes += u32::from(term.excludes(&row.spec));
    }
    let tolerated = attempt.is_tolerated(row);
    let isolated = attempt.is_isolated(row);
    let bought = attempt.is_bought_for(row);
    counting.lacking_isolation.extend(attempt.terms.policy.lacking_isolation(&row.spec));
    let groups = || spec.groups.iter().filter(concerned);
    let of_first = groups().next().map_or(0, |group| workers_on_empty(&row.spec, &group.request));
    if selected && bought && tolerated && isolated {
        *empty = of_first;
    }
    if row.status != NodeStatus::Up {
        counts.not_up += 1;
        return;
    }
    // Drained, in quarantine, in repair or unfit: placement sees no difference.
    if row.cordoned || row.restricted.blocked {
        counts.cordoned += 1;
        note_reasons(&mut counting.out_because, row);
        return;
    }
    let offer = row.offer();
    let spare = attempt.spare(id);
    let idle = u64::from(offer.devices.count());
    let kept = spare.map_or(0, |spare| idle.saturating_sub(u64::from(spare.devices)));
    counting.reserved_devices += kept + u64::from(row.promised.devices.count());
    let (mut fits_empty, mut fits_hold, mut fits_now) = (false, false, false);
    let mut first = None;
    for (number, group) in groups().enumerate() {
        let request = &group.request;
        let by_hold = spare.map_or(u32::MAX, |spare| spare.workers(request, muster_types::DeviceSet::EMPTY));
        let by_free =
            if muster_state::fit::has_kind(&row.spec, request) { offer.workers(request) } else { 0 };
        let on_empty = if number == 0 { of_first } else { workers_on_empty(&row.spec, request) };
        fits_empty |= on_empty > 0;
        fits_hold |= by_hold > 0;
        let fits = by_hold.min(by_free);
        fits_now |= fits > 0;
        first.get_or_insert(fits);
    }
    let place = if !selected {
        &mut counts.wrong_labels
    } else if !bought {
        &mut counts.wrong_purchase
    } else if !tolerated {
        let taints = row.spec.taints.iter().filter(|taint| !spec.tolerations.contains(*taint));
        counting.taints.extend(taints.cloned());
        &mut counts.tainted
    } else if !isolated {
        &mut counts.not_isolated
    } else if !fits_empty {
        &mut counts.too_small
    } else if attempt.is_in_window(row) {
        &mut counts.in_window
    } else if attempt.is_kept_away(row) {
        &mut counts.kept_away
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
