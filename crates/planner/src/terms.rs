//! What policy allows a gang.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::cmp::Reverse;
use core::fmt;
use muster_state::{CapacityKey, Interruptions, PoolKey, State, fit};
use muster_types::policy::{Policy, Window, WindowPurpose};
use muster_types::{
    AffinityDomain, AffinityLevel, AffinityRule, DeviceAmount, DeviceSet, FleetPart, HoldTarget, JobSpec,
    LogTime, Name, NodeDraft, NodeId, NodeSpec, WorkerRequest,
};

use crate::valuation::Valuation;

/// What policy allows a gang; the planner does not know why.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// Log time.
    pub now: LogTime,
    /// How long it is expected to run on a type of throughput 1,000.
    pub run_ms: u64,
    /// Thousandths of devices that it may use in a pool; `u64::MAX` for no limit.
    pub room_milli: &'a dyn Fn(&PoolKey) -> u64,
    /// The same for a gang that begins later, pool by pool where there is a limit: asked for a start in the
    /// future.
    pub lanes: &'a [Lane],
    /// What is kept of nodes for others.
    pub holds: &'a Holds,
    /// Nodes that are closed to the gang for some time because they are booked, or because it has to be on booked ones.
    pub closures: &'a [Closure<'a>],
    /// Whether these are of bookings of the state, so that its index of nodes tells which of them cover one. Otherwise each is
    /// compared.
    pub closures_are_indexed: bool,
    /// Where the gang has to be, or rather to be, with respect to other jobs.
    pub affinity: &'a [AffinityTerm<'a>],
    /// When domains are expected to be open again that the gang has to be out of, in ascending order; one that is not here stays
    /// closed. Asked for a start in the future.
    pub openings: &'a [Opening<'a>],
    /// The hosts that hold its images already, as a wish that goes behind all others and that a better place outweighs; none where
    /// nobody knows of such hosts, or every host is one.
    pub image: Option<&'a AffinityTerm<'a>>,
    /// Weights, prices, data sets, spare hosts and windows.
    pub policy: &'a Policy,
    /// How much of the work of the gang's owner is in a cluster, by region and name, and how much there is of it in all:
    /// in whatever unit.
    pub own_work: &'a dyn Fn(&Name, &Name) -> (u64, u64),
    /// How many nodes there are that were bought so, and how often they are taken away.
    pub interruptions: &'a dyn Fn(&CapacityKey) -> Interruptions,
    /// Whether it may have fewer workers than it asks for, down to its least: then it gets as many as fit.
    pub elastic: bool,
    /// What free devices are worth, for jobs of one worker; without it they go by best fit.
    pub valuation: Option<&'a RefCell<Valuation>>,
}

impl fmt::Debug for Terms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Terms");
        fields.field("now", &self.now).field("run_ms", &self.run_ms).field("elastic", &self.elastic);
        fields.field("holds", &self.holds).finish_non_exhaustive()
    }
}

impl<'a> Terms<'a> {
    /// What the gang wants of where other jobs are and can have somewhere, the heaviest first.
    pub(crate) fn wishes(&self) -> Vec<&'a AffinityTerm<'a>> {
        let could_be_met =
            |term: &&AffinityTerm<'_>| term.rule == AffinityRule::Apart || !term.domains.is_empty();
        let wishes = self.affinity.iter().filter(|term| !term.is_required()).filter(could_be_met);
        let mut wishes: Vec<&'a AffinityTerm<'a>> = wishes.collect();
        // Stable: of equals the one that stands first.
        wishes.sort_by_key(|term| Reverse(term.weight));
        wishes
    }
}

impl Terms<'_> {
    /// Whether a job may be on a node at all, and the node is taken away as seldom as the job asks for.
    pub(crate) fn allows(&self, node: &NodeSpec, spec: &JobSpec) -> bool {
        fit::allows(node, spec, self.policy) && self.is_steady(node, spec)
    }

    /// Whether a node is taken away as seldom as a job asks for. One of which nobody knows how often it is, is.
    pub(crate) fn is_steady(&self, node: &NodeSpec, spec: &JobSpec) -> bool {
        let Some(most) = spec.capacity.as_deref().and_then(|asked| asked.interruptions_milli_max) else {
            return true;
        };
        let Some(key) = CapacityKey::of(node) else { return true };
        (self.interruptions)(&key).per_day_milli.is_none_or(|milli| milli <= most)
    }

    /// Whether no node of a cluster is where the gang has to be with respect to other jobs.
    pub(crate) fn excludes_cluster(&self, region: &Name, cluster: &Name) -> bool {
        self.affinity.iter().any(|term| term.is_required() && term.excludes_cluster(region, cluster))
    }

    /// Whether other jobs decide which hosts are the only ones for the gang.
    pub(crate) fn has_only_hosts(&self) -> bool {
        self.affinity.iter().any(|term| term.is_required() && term.has_only_hosts())
    }

    /// Thousandths of devices that the gang may use in a pool if it starts now and ends then.
    pub(crate) fn room_until(&self, pool: &PoolKey, end: LogTime) -> u64 {
        (self.room_milli)(pool).min(self.holds.room_milli(pool, end))
    }

    /// When the gang is expected to end if it starts now on types of which the slowest has this throughput.
    pub(crate) fn end(&self, spec: &JobSpec, throughput_milli: u32) -> LogTime {
        self.now.plus_ms(self.run_on(spec, throughput_milli))
    }

    /// How long the gang is expected to run there.
    pub(crate) fn run_on(&self, spec: &JobSpec, throughput_milli: u32) -> u64 {
        let run_ms = u128::from(self.run_ms) * 1_000 / u128::from(throughput_milli.max(1));
        let run_ms = u64::try_from(run_ms).unwrap_or(u64::MAX);
        run_ms.min(spec.run_time_limit_ms.unwrap_or(u64::MAX))
    }
}

/// A domain of a level from which other jobs are expected to be gone at a time.
pub type Opening<'a> = ((AffinityLevel, AffinityDomain<'a>), LogTime);

/// Where a gang has to be with respect to other jobs, as domains of the fleet: what these jobs are the planner does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffinityTerm<'a> {
    /// What asks for it, as a part of a sentence: an entry of the job, or other jobs that keep it away.
    pub text: String,
    /// The level of the domains.
    pub level: AffinityLevel,
    /// Whether to be in them, or out of them.
    pub rule: AffinityRule,
    /// Of a wish its weight; none where the gang starts only in places that meet it.
    pub weight: Option<u8>,
    /// The domains in which the others are.
    pub domains: BTreeSet<AffinityDomain<'a>>,
}

impl<'a> AffinityTerm<'a> {
    /// The only hosts of a cluster on which workers meet it; none where it does not name hosts.
    fn only_hosts(&self, region: &'a Name, cluster: &'a Name) -> Option<Vec<&'a Name>> {
        if !self.has_only_hosts() {
            return None;
        }
        let whole: AffinityDomain<'a> = (region, Some(cluster), None, None, None);
        let there = self.domains.range(whole..);
        let there = there.take_while(|domain| (domain.0, domain.1) == (region, Some(cluster)));
        Some(there.filter_map(|domain| domain.4).collect())
    }
}

impl AffinityTerm<'_> {
    fn has_only_hosts(&self) -> bool {
        (self.level, self.rule) == (AffinityLevel::Host, AffinityRule::Together)
    }

    /// Whether no worker in a cluster meets it.
    fn excludes_cluster(&self, region: &Name, cluster: &Name) -> bool {
        let cluster = Some(cluster).filter(|_| self.level > AffinityLevel::Region);
        let whole: AffinityDomain<'_> = (region, cluster, None, None, None);
        match self.rule {
            // The domains in it follow behind it.
            AffinityRule::Together => {
                let first = self.domains.range(whole..).next();
                first.is_none_or(|first| (first.0, first.1) != (region, cluster))
            }
            AffinityRule::Apart => self.level <= AffinityLevel::Cluster && self.domains.contains(&whole),
        }
    }

    /// Whether a worker on a node does not meet it.
    #[must_use]
    pub fn excludes(&self, node: &NodeDraft) -> bool {
        self.domains.contains(&self.level.domain(node)) == (self.rule == AffinityRule::Apart)
    }

    /// When a worker on a node that does not meet it is expected to do so; none where nobody knows.
    #[must_use]
    pub fn opens_at(&self, node: &NodeDraft, openings: &[Opening<'_>]) -> Option<LogTime> {
        if self.rule == AffinityRule::Together {
            return None;
        }
        let wanted = (self.level, self.level.domain(node));
        let at = openings.binary_search_by(|(key, _)| key.cmp(&wanted)).ok()?;
        openings.get(at).map(|(_, time)| *time)
    }

    /// Whether the gang starts only in places that meet it.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.weight.is_none()
    }
}

/// What closes nodes to a gang for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosureCause<'a> {
    /// A booking of a tenant, by its name.
    Booking(&'a Name),
    /// Maintenance, by the name of its booking.
    Maintenance(&'a Name),
    /// An operator holds this, and why.
    Hold(&'a HoldTarget, &'a str),
}

impl<'a> ClosureCause<'a> {
    /// The booking that brings it about.
    #[must_use]
    pub fn booking(self) -> Option<&'a Name> {
        match self {
            ClosureCause::Booking(name) | ClosureCause::Maintenance(name) => Some(name),
            ClosureCause::Hold(..) => None,
        }
    }
}

/// Nodes on which a gang must not begin from one time up to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closure<'a> {
    /// What brings it about.
    pub cause: ClosureCause<'a>,
    /// From when on.
    pub from: LogTime,
    /// Up to when; [`LogTime`] of `u64::MAX` for good.
    pub until: LogTime,
    /// Names of nodes, in ascending order.
    pub nodes: &'a [Name],
    /// The part of the fleet that is closed as a whole; then no nodes are named.
    pub part: Option<&'a FleetPart>,
    /// Whether it is all other nodes that are closed.
    pub is_outside: bool,
}

impl Closure<'_> {
    /// Whether a node is closed while this lasts.
    #[must_use]
    pub fn covers(&self, node: &NodeDraft) -> bool {
        match self.part {
            Some(part) => part.covers(node),
            None => self.nodes.binary_search(&node.name).is_ok() != self.is_outside,
        }
    }

    /// Whether it closes the nodes that it names, and no others.
    #[must_use]
    pub fn is_by_name(&self) -> bool {
        !self.is_outside && self.part.is_none()
    }

    /// Whether it lasts at a time.
    #[must_use]
    pub fn lasts_at(&self, now: LogTime) -> bool {
        self.from <= now && now < self.until
    }
}

/// Why nodes are closed to a gang that begins now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClosedPlace<'a> {
    /// It would meet this window of the policy before its end.
    Window(&'a Window),
    /// It must not begin there now.
    Booking(&'a Closure<'a>),
    /// Other jobs are there, or are not.
    Affinity(&'a AffinityTerm<'a>),
}

impl<'a> ClosedPlace<'a> {
    /// The nodes that are closed by it, where it names them.
    pub(crate) fn names(&self) -> Option<&'a [Name]> {
        match self {
            ClosedPlace::Booking(closure) if closure.is_by_name() => Some(closure.nodes),
            ClosedPlace::Booking(_) | ClosedPlace::Window(_) | ClosedPlace::Affinity(_) => None,
        }
    }

    /// Whether a node is closed by it.
    pub(crate) fn covers(&self, node: &NodeDraft) -> bool {
        match self {
            ClosedPlace::Window(window) => window.scope.covers(node),
            ClosedPlace::Booking(closure) => closure.covers(node),
            ClosedPlace::Affinity(term) => term.excludes(node),
        }
    }
}

/// Everything that is closed to a gang that begins now.
#[derive(Debug, Default)]
pub(crate) struct ClosedPlaces<'a> {
    /// What each node is asked of: windows, closures of all nodes but some, and closures that no index knows.
    asked: Vec<ClosedPlace<'a>>,
    /// The other closures, by booking.
    by_booking: Vec<&'a Closure<'a>>,
}

impl<'a> ClosedPlaces<'a> {
    /// Of windows, of what bookings close now, and of where other jobs are that the gang has to be with or apart from.
    pub(crate) fn new(terms: &Terms<'a>, windows: impl Iterator<Item = &'a Window>) -> ClosedPlaces<'a> {
        let mut places =
            ClosedPlaces { asked: windows.map(ClosedPlace::Window).collect(), by_booking: Vec::new() };
        let now = terms.now;
        for closure in terms.closures.iter().filter(|closure| closure.lasts_at(now)) {
            if terms.closures_are_indexed && closure.is_by_name() {
                places.by_booking.push(closure);
            } else {
                places.asked.push(ClosedPlace::Booking(closure));
            }
        }
        places.by_booking.sort_by(|a, b| a.cause.booking().cmp(&b.cause.booking()));
        places.require(terms.affinity.iter().filter(|term| term.is_required()));
        places
    }

    /// Closes what these entries exclude as well.
    pub(crate) fn require(&mut self, entries: impl Iterator<Item = &'a AffinityTerm<'a>>) {
        self.asked.extend(entries.map(ClosedPlace::Affinity));
    }

    /// The only hosts of a cluster that may be open to the gang, where other jobs decide that; of several such entries those
    /// of the one with the fewest.
    pub(crate) fn only_hosts(&self, region: &'a Name, cluster: &'a Name) -> Option<Vec<&'a Name>> {
        let hosts = self.asked.iter().filter_map(|place| match place {
            ClosedPlace::Affinity(term) => term.only_hosts(region, cluster),
            ClosedPlace::Window(_) | ClosedPlace::Booking(_) => None,
        });
        hosts.min_by_key(Vec::len)
    }

    /// Whether a node is closed to the gang.
    pub(crate) fn cover(&self, state: &State, node: &NodeDraft) -> bool {
        self.asked.iter().any(|place| place.covers(node)) || self.is_booked(state, node)
    }

    /// Whether a window or a booking closes a node to the gang, wherever other jobs are.
    pub(crate) fn cover_without_others(&self, state: &State, node: &NodeDraft) -> bool {
        let mut places = self.asked.iter().filter(|place| !matches!(place, ClosedPlace::Affinity(_)));
        places.any(|place| place.covers(node)) || self.is_booked(state, node)
    }

    /// Whether one of the bookings that the index of nodes tells covers a node.
    fn is_booked(&self, state: &State, node: &NodeDraft) -> bool {
        let is_listed = |booking: &Name| {
            self.by_booking.binary_search_by(|closure| closure.cause.booking().cmp(&Some(booking))).is_ok()
        };
        !self.by_booking.is_empty() && state.bookings_of_node(&node.name).iter().any(is_listed)
    }
}

/// How much of a type in a region a gang may use as time goes by, if what runs ends as expected and what is
/// reserved begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The region.
    pub region: Name,
    /// The type.
    pub kind: Name,
    /// Thousandths of devices from each time on, ascending; before the first nothing is known, behind the last
    /// nothing changes any more.
    pub steps: Vec<(LogTime, u64)>,
}

impl Lane {
    /// The least that there is at any moment from one time up to another.
    pub(crate) fn least_milli(&self, from: LogTime, until: LogTime) -> u64 {
        let first = self.steps.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        let during = self.steps[first..].iter().enumerate().take_while(|(n, (at, _))| *n == 0 || *at < until);
        during.map(|(_, (_, milli))| *milli).min().unwrap_or(u64::MAX)
    }
}

/// A limit on a type in a region from a time on: what a gang that runs beyond it may use of it at most,
/// because the rest is kept for others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeptQuota {
    from: LogTime,
    kind: Name,
    region: Name,
    room_milli: u64,
}

/// What is kept of a node for others from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// A gang that is expected to end by then is free to use the node.
    pub from: LogTime,
    /// Devices that one which ends later may still have; a device of which it has a share counts whole.
    pub spare_devices: u16,
    /// Milli-CPUs that it may have.
    pub spare_cpu_milli: u64,
    /// Bytes that it may have.
    pub spare_memory_bytes: u64,
    /// Bytes of scratch that it may have.
    pub spare_scratch_bytes: u64,
}

/// What is kept of the fleet for others. A clone costs nothing.
#[derive(Clone, Debug, Default)]
pub struct Holds {
    by_node: Arc<BTreeMap<NodeId, Vec<Hold>>>,
    /// Quota that is kept, as what is left of it.
    quotas: Arc<Vec<KeptQuota>>,
    open: Arc<BTreeSet<Name>>,
    /// Nodes of which nothing is had at all.
    gone_round: Arc<BTreeSet<NodeId>>,
    /// Whether windows are not looked at: for asking what difference they make.
    ignores_windows: bool,
    /// Whether spare hosts of racks are had like all others: for asking the same of them.
    opens_spares: bool,
}

impl Holds {
    /// Nothing is kept.
    #[must_use]
    pub fn new() -> Holds {
        Holds::default()
    }

    /// Keeps something of a node. Where several holds concern a gang, the least of each amount counts.
    pub fn add(&mut self, node: NodeId, hold: Hold) {
        Arc::make_mut(&mut self.by_node).entry(node).or_default().push(hold);
    }

    /// Leaves a gang that runs beyond a time at most so much of a type in a region.
    pub fn keep_quota(&mut self, from: LogTime, kind: &Name, region: &Name, room_milli: u64) {
        let (kind, region) = (kind.clone(), region.clone());
        Arc::make_mut(&mut self.quotas).push(KeptQuota { from, kind, region, room_milli });
    }

    /// How much of a pool is left to a gang that ends at this time by quota that is kept for others.
    pub(crate) fn room_milli(&self, pool: &PoolKey, end: LogTime) -> u64 {
        let concerns = |kept: &&KeptQuota| {
            kept.from < end && pool.kind.as_ref() == Some(&kept.kind) && pool.region == kept.region
        };
        self.quotas.iter().filter(concerns).map(|kept| kept.room_milli).min().unwrap_or(u64::MAX)
    }

    /// What is kept of a node.
    #[must_use]
    pub fn get(&self, node: NodeId) -> &[Hold] {
        self.by_node.get(&node).map_or(&[], Vec::as_slice)
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_node.is_empty() && self.quotas.is_empty()
    }

    /// Nodes of which something is kept, by id.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &[Hold])> {
        self.by_node.iter().map(|(node, holds)| (*node, holds.as_slice()))
    }

    /// The same for a gang that may use these reservation windows of the policy. To every other gang a
    /// reservation window is closed like one for maintenance.
    #[must_use]
    pub fn with_open_windows(&self, windows: impl IntoIterator<Item = Name>) -> Holds {
        Holds { open: Arc::new(windows.into_iter().collect()), ..self.clone() }
    }

    /// The same for a gang that is to avoid these nodes, in place of those it avoided before.
    #[must_use]
    pub fn round(&self, nodes: Arc<BTreeSet<NodeId>>) -> Holds {
        Holds { gone_round: nodes, ..self.clone() }
    }

    /// The same with nothing kept of nodes and of quota.
    pub(crate) fn without_nodes(&self) -> Holds {
        let quotas = Arc::default();
        Holds { by_node: Arc::default(), quotas, gone_round: Arc::default(), ..self.clone() }
    }

    /// The same with all windows open.
    pub(crate) fn without_windows(&self) -> Holds {
        Holds { ignores_windows: true, ..self.clone() }
    }

    /// The same with the spare hosts of racks.
    pub(crate) fn with_spare_hosts(&self) -> Holds {
        Holds { opens_spares: true, ..self.clone() }
    }

    /// Whether spare hosts of racks are had like all others.
    pub(crate) fn opens_spares(&self) -> bool {
        self.opens_spares
    }

    /// Whether nothing of the gang may run in a window while it lasts.
    pub(crate) fn is_closed(&self, window: &Window) -> bool {
        if self.ignores_windows {
            return false;
        }
        match window.purpose {
            WindowPurpose::Maintenance => true,
            WindowPurpose::ReservedFor { .. } => !self.open.contains(&window.name),
        }
    }

    /// What a gang that ends at this time may have of a node; none when nothing is kept from it.
    pub(crate) fn spare(&self, node: NodeId, end: LogTime) -> Option<Spare> {
        if self.gone_round.contains(&node) {
            return Some(Spare::NOTHING);
        }
        if self.by_node.is_empty() {
            return None;
        }
        let concerning = self.get(node).iter().filter(|hold| hold.from < end);
        concerning.fold(None, |least: Option<Spare>, hold| {
            let least = least.unwrap_or(Spare::ALL);
            Some(Spare {
                devices: least.devices.min(hold.spare_devices),
                cpu_milli: least.cpu_milli.min(hold.spare_cpu_milli),
                memory_bytes: least.memory_bytes.min(hold.spare_memory_bytes),
                scratch_bytes: least.scratch_bytes.min(hold.spare_scratch_bytes),
            })
        })
    }
}

/// What a gang may have of a node that is kept for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spare {
    pub(crate) devices: u16,
    pub(crate) cpu_milli: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) scratch_bytes: u64,
}

impl Spare {
    const ALL: Spare =
        Spare { devices: u16::MAX, cpu_milli: u64::MAX, memory_bytes: u64::MAX, scratch_bytes: u64::MAX };
    const NOTHING: Spare = Spare { devices: 0, cpu_milli: 0, memory_bytes: 0, scratch_bytes: 0 };

    /// How many such workers it holds at most. Shares of devices that the gang has already are not
    /// counted here but by [`Spare::take`].
    pub(crate) fn workers(&self, request: &WorkerRequest, touched: DeviceSet) -> u32 {
        // It would take what is kept, too.
        if request.exclusive {
            return 0;
        }
        let by_device = match request.accelerators.as_ref().map(|a| a.amount) {
            None => u64::MAX,
            Some(DeviceAmount::Whole(count)) => u64::from(self.devices / count.max(1)),
            Some(DeviceAmount::Share(milli)) => {
                let devices = u64::from(self.devices) + u64::from(touched.count());
                devices * u64::from(1_000 / milli.max(1))
            }
        };
        let by_cpu = self.cpu_milli / request.cpu_milli.max(1);
        let by_memory = self.memory_bytes / request.memory_bytes.max(1);
        let by_scratch = self.scratch_bytes.checked_div(request.scratch_bytes).unwrap_or(u64::MAX);
        u32::try_from(by_device.min(by_cpu).min(by_memory).min(by_scratch)).unwrap_or(u32::MAX)
    }

    /// Takes what a worker holds; false when there is not as much. `touched` are devices of which the
    /// gang has shares already: they are counted.
    pub(crate) fn take(&mut self, request: &WorkerRequest, devices: DeviceSet, touched: DeviceSet) -> bool {
        let more = devices.difference(touched).count();
        let enough = !request.exclusive
            && self.devices >= more
            && self.cpu_milli >= request.cpu_milli
            && self.memory_bytes >= request.memory_bytes
            && self.scratch_bytes >= request.scratch_bytes;
        if enough {
            self.devices -= more;
            self.cpu_milli -= request.cpu_milli;
            self.memory_bytes -= request.memory_bytes;
            self.scratch_bytes -= request.scratch_bytes;
        }
        enough
    }
}
