//! The gang with something about it changed, planned again: which change would let it start is why it waits, or what
//! would help.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use muster_state::{Free, PoolKey, State};
use muster_types::{
    DeviceAmount, JobSpec, LogTime, Name, NodeId, NodeRequirements, Segment, TopologyRule, WorkerRequest,
};

use crate::Budget;
use crate::awaited::awaited;
use crate::candidate::Plan;
use crate::explain::finding::{Closest, Finding, Milli, SegmentShortage, Workers};
use crate::explain::report::{ClusterReport, closest};
use crate::fill::{Attempt, closed_windows};
use crate::gang::try_plan;
use crate::sites::{self, Site};
use crate::terms::{AffinityTerm, ClosureCause, Holds, Terms};

/// Visits that one of the plans made for an explanation may take.
const VISITS_MAX: u64 = 1_000_000;
/// Tests of labels that are left out one by one to see whether the gang would fit then.
const EXPRESSIONS_TRIED_MAX: usize = 8;

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

/// The gang with something about it changed, planned again.
pub(super) struct Variations<'a> {
    pub(super) state: &'a State,
    pub(super) spec: &'a JobSpec,
    pub(super) terms: &'a Terms<'a>,
    pub(super) checkpoints: Option<&'a Checkpoints<'a>>,
}

impl Variations<'_> {
    fn plan(&self, spec: &JobSpec, terms: &Terms<'_>) -> Option<Plan> {
        try_plan(self.state, spec, terms, &mut Budget::new(VISITS_MAX)).ok().flatten()
    }

    fn with_holds(&self, holds: &Holds) -> Option<Plan> {
        self.plan(self.spec, &Terms { holds, ..*self.terms })
    }

    fn without_bookings(&self) -> Option<Plan> {
        self.plan(self.spec, &Terms { closures: &[], ..*self.terms })
    }

    fn without_affinity(&self) -> Option<Plan> {
        let is_asked = self.terms.affinity.iter().any(AffinityTerm::is_required);
        is_asked.then(|| self.plan(self.spec, &Terms { affinity: &[], ..*self.terms })).flatten()
    }

    /// Which of what it has to be with or away from alone keeps it from starting; the first where several do together.
    fn decisive_term(&self) -> Option<&AffinityTerm<'_>> {
        let all = self.terms.affinity;
        let decides = |place: usize| {
            let mut others = all.to_vec();
            others.remove(place);
            self.plan(self.spec, &Terms { affinity: &others, ..*self.terms }).is_some()
        };
        let mut required = all.iter().enumerate().filter(|(_, term)| term.is_required());
        let first = required.clone().next().map(|(_, term)| term);
        required.find(|(place, _)| decides(*place)).map(|(_, term)| term).or(first)
    }

    fn without_quota(&self) -> Option<Plan> {
        self.plan(self.spec, &Terms { room_milli: &|_| u64::MAX, ..*self.terms })
    }

    /// The job on nodes that were bought in any way and are taken away however often.
    fn without_capacity(&self) -> Option<Plan> {
        self.spec.capacity.as_ref()?;
        let mut draft = self.spec.clone().into_draft();
        draft.capacity = None;
        self.plan(&draft.check().ok()?, self.terms)
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

    pub(super) fn reason(&self, clusters: &[ClusterReport], wanted: u32, has_pools: bool) -> Finding {
        if !has_pools {
            let by_checkpoints = self.checkpoints.filter(|checkpoints| {
                let allows =
                    |region: &Name| checkpoints.regions.is_empty() || checkpoints.regions.contains(region);
                self.state.pools().any(|(pool, _)| allows(&pool.region))
            });
            return by_checkpoints.map_or_else(
                || self.not_joined().unwrap_or(Finding::NoClusterAllowed),
                |checkpoints| Finding::CheckpointNotReadable { data_set: checkpoints.data_set.clone() },
            );
        }
        if clusters.iter().any(|report| report.score.is_some()) {
            return Finding::InLine;
        }
        if let Some(asked) = self.spec.capacity.as_deref()
            && let Some(plan) = self.without_capacity()
        {
            let there = |r: &&ClusterReport| r.region == plan.region && r.cluster == plan.cluster;
            let nodes = clusters.iter().filter(there).map(|report| report.nodes.wrong_purchase).sum();
            return Finding::Purchase { place: (plan.region, plan.cluster), nodes, asked: *asked };
        }
        let Some(best) = closest(clusters).filter(|best| best.could_hold) else {
            return self.not_joined().unwrap_or(Finding::NoClusterLargeEnough { wanted });
        };
        if !best.could_hold_placeable {
            let missing = best.nodes.not_up + best.nodes.cordoned;
            let reasons = best.out_because.clone();
            return Finding::WaitingForNodes { place: best.place(), missing, wanted, reasons };
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
            let open = open.max_by_key(|window| window.until);
            let open = open.map(|window| (window.name.clone(), window.until));
            return Finding::Window { place: (plan.region, plan.cluster), nodes, open };
        }
        if let Some(plan) = self.without_bookings() {
            let nodes = report_of(&plan).nodes.in_window;
            // Of several the one that keeps its nodes longest: the one that the job names, if it names one.
            let closed = self.terms.closures.iter().filter(|closure| closure.lasts_at(self.terms.now));
            if let Some(closure) = closed.max_by_key(|closure| closure.until) {
                let until = Some(closure.until).filter(|_| !closure.is_outside);
                let place = (plan.region, plan.cluster);
                return match closure.cause {
                    ClosureCause::Booking(booking) => {
                        Finding::Booked { place, nodes, booking: booking.clone(), until }
                    }
                    ClosureCause::Maintenance(booking) => {
                        let open = Some((booking.clone(), closure.until));
                        Finding::Window { place, nodes, open }
                    }
                    ClosureCause::Hold(target, why) => {
                        let until = Some(closure.until).filter(|until| *until < LogTime(u64::MAX));
                        Finding::PlaceHeld { place, held: format!("{target} is held ({why})"), until }
                    }
                };
            }
        }
        if let Some(plan) = self.without_affinity()
            && let Some(term) = self.decisive_term()
        {
            let report = report_of(&plan);
            let counted = report.unmet.iter().find(|(text, _)| *text == term.text);
            let excluded = counted.map_or(0, |(_, nodes)| *nodes);
            let nodes = report.nodes.registered;
            let text = term.text.clone();
            return Finding::Affinity { place: (plan.region, plan.cluster), text, excluded, nodes };
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
            let segments = self.segment_shortage(report, wanted);
            return Finding::Topology {
                closest,
                largest_domain_workers: report.largest_domain_workers,
                segments,
            };
        }
        if let Some(finding) = self.shortage_beside_devices(&report_of, wanted) {
            return finding;
        }
        let need = self.spec.device_milli_of(wanted);
        let is_enough = |report: &&ClusterReport| {
            report.could_hold_placeable && need > 0 && report.free_devices.saturating_mul(1_000) >= need
        };
        match clusters.iter().find(is_enough) {
            Some(report) => Finding::Fragmented(Closest::of(report, wanted)),
            None => Finding::WaitingForCapacity(Closest::of(best, wanted)),
        }
    }

    /// The segments that have no place in a cluster now: of the innermost level at which none has one, else of the
    /// outermost. None where the gang has no segments, or enough of them have a place.
    fn segment_shortage(&self, report: &ClusterReport, wanted: u32) -> Option<SegmentShortage> {
        let segments: Vec<Segment> = self.spec.topology.all_segments().collect();
        let outermost = *segments.first()?;
        let pools = sites::pools(self.state, self.spec);
        let mut all = sites::clusters(&pools).flat_map(|cluster| Site::of_cluster(cluster, self.spec));
        let site = all.find(|site| {
            (site.region, site.cluster, site.kind) == (&report.region, &report.cluster, report.kind.as_ref())
        })?;
        let mut budget = Budget::new(VISITS_MAX);
        let attempt = Attempt::new(self.state, self.spec, self.terms, &site, &mut budget);
        for (place, segment) in segments.iter().enumerate().rev() {
            if attempt.segments_that_fit(segment.level)? == 0 {
                return Some(SegmentShortage { segments: segments[place..].to_vec(), fit: 0, wanted: 1 });
            }
        }
        let fit = attempt.segments_that_fit(outermost.level)?;
        let wanted = u64::from(wanted.div_ceil(outermost.workers.max(1)));
        (fit < wanted).then_some(SegmentShortage { segments, fit, wanted })
    }

    /// The nodes that the job asks for, that the policy names and of which none has joined.
    fn not_joined(&self) -> Option<Finding> {
        Some(awaited(self.state, self.spec)).filter(|nodes| !nodes.is_empty()).map(Finding::NodesNotJoined)
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
        self.spec.device_milli_of(u32::try_from(plan.workers.len()).unwrap_or(u32::MAX))
    }

    pub(super) fn would_help(&self, clusters: &[ClusterReport], wanted: u32) -> Vec<String> {
        let mut help = Vec::new();
        help.extend(self.other_regions());
        help.extend(self.other_types());
        help.extend(self.other_nodes());
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

    /// The first condition on nodes without which it would fit now, else all of them together.
    fn other_nodes(&self) -> Option<String> {
        let asked = self.spec.nodes.as_deref()?;
        let fits = |nodes: NodeRequirements| {
            let mut draft = self.spec.clone().into_draft();
            draft.nodes = Some(Box::new(nodes)).filter(|nodes| !nodes.is_empty());
            draft.check().is_ok_and(|varied| self.plan(&varied, self.terms).is_some())
        };
        if !fits(NodeRequirements::default()) {
            return None;
        }
        for (place, expression) in asked.expressions.iter().enumerate().take(EXPRESSIONS_TRIED_MAX) {
            let mut others = asked.clone();
            others.expressions.remove(place);
            if fits(others) {
                return Some(format!("nodes without the condition {expression} (fits now)"));
            }
        }
        if !asked.only.is_empty() && fits(NodeRequirements { only: BTreeSet::new(), ..asked.clone() }) {
            return Some("other nodes than the only ones that it names (fits now)".to_string());
        }
        if !asked.exclude.is_empty() && fits(NodeRequirements { exclude: BTreeSet::new(), ..asked.clone() }) {
            return Some("nodes that it excludes (fits now)".to_string());
        }
        Some("any nodes, without its conditions on them (fits now)".to_string())
    }

    fn fewer_workers(&self, wanted: u32) -> Option<String> {
        let [group] = self.spec.groups.as_slice() else { return None };
        if group.slice.is_some() || wanted < 2 {
            return None;
        }
        let mut draft = self.spec.clone().into_draft();
        let unit = draft.topology.segment_unit();
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
            let capacity = (self.terms.room_milli)(pool);
            let concerned = pool.kind == key.kind && pool.region == key.region;
            if concerned { capacity.saturating_add(extra) } else { capacity }
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
        let by_scratch = shape.scratch_bytes.checked_div(group.request.scratch_bytes).unwrap_or(u64::MAX);
        let by_host = by_cpu.min(by_memory).min(by_scratch);
        let each = by_devices.min(u32::try_from(by_host).unwrap_or(u32::MAX));
        let missing = wanted.checked_sub(best.workers_that_fit).filter(|missing| *missing > 0)?;
        if each == 0 {
            return None;
        }
        let nodes = missing.div_ceil(each);
        // The others have to fit next to them: tried with as many workers less.
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

    /// Whether this many workers fit in one pool now.
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
