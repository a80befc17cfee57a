//! The parts of the fleet that are kept for later: reservations of gangs that wait, and windows.
//!
//! A reservation is capacity promised to a future start: nodes, with what the gang takes of each, and quota. It
//! is no record. The leader remembers it from pass to pass, so that it keeps its nodes; a new leader makes it
//! from the state, and so do explanations on the other replicas.
//!
//! Others may use its nodes if their expected end (p90) is early enough, until its start has slipped once: from then
//! on nobody else gets any more of them. For a gang that is overdue, which is when it goes before all that do not wait
//! as long, additional nodes are kept as well, as strict order would keep them: it starts on whichever are free first,
//! and one long run does not hold it up.

mod clusters;
mod foreseen;
mod lent;
mod licence_keepers;
mod looks;
mod outlooks;
mod quota;
mod taken_up;

pub(crate) use foreseen::Foreseen;
pub(crate) use lent::LaterCapacity;
pub(crate) use licence_keepers::LicenceKeepers;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_planner::{Budget, CapacityTimeline, Hold, Holds, Plan, Start, Terms};
use muster_policy::{expected_end, headroom, overdue_since};
use muster_state::{Forecast, GangClass, JobRow, State};
use muster_types::{AcceleratorRequest, JobId, JobSpec, LogIndex, LogTime, Name, NodeId, PriorityTier};

use crate::rules::affinity;
use crate::rules::bookings::is_open_to;
use crate::rules::counted::lacks;
use crate::rules::images::HeldImages;
use crate::rules::planned::planned_spec;
use crate::rules::terms::with_terms;
use crate::rules::windows::is_owner;
use clusters::places;
use lent::Lent;
use looks::{LastLook, Looks};
use outlooks::{ReservedNodes, RunEnd, scaled};
use quota::{KeptQuota, has_quota_now, is_promised_beside};

/// A cluster, by its region and name.
type ClusterKey = (Name, Name);

/// An overdue gang keeps this many times the nodes that it needs, if the cluster has them.
const KEPT_FOR_OVERDUE: usize = 4;
/// A reservation goes to other nodes only for a start that is earlier by this much, and by a quarter of the
/// time that is left.
const HOP_MS: u64 = 600_000;
/// Gangs remembered as having no start; beyond it everybody is tried again.
const WITHOUT_START_MAX: usize = 4_096;
/// Reservations that were made for one pass, and are remembered.
const PASSING_MAX: usize = 64;
/// Visits that it costs to end a gang in a forecast.
const VISITS_PER_END: u64 = 8;

/// Capacity promised to a future start.
#[derive(Clone, Debug)]
pub(crate) struct Reservation {
    /// For whom.
    pub(crate) job: JobId,
    /// Where.
    pub(crate) place: ClusterKey,
    /// When, on what.
    pub(crate) start: Start,
    /// When it is expected to have ended (p90): reservations behind it rely on that. None keeps what it takes for good.
    until: Option<LogTime>,
    tier: PriorityTier,
    /// Since when it is on these nodes.
    made_at: LogTime,
    /// When it was first expected to start on these nodes.
    promised_at: LogTime,
    /// Whether that has become later.
    has_slipped: bool,
    /// Since when it waits, once it is overdue: then it goes before all that do not wait as long.
    overdue_since: Option<LogTime>,
    /// Whether it is kept beyond the pass.
    is_kept: bool,
    /// What an overdue gang keeps in addition.
    extra: Vec<(NodeId, Hold)>,
    quota: Option<KeptQuota>,
}

impl Reservation {
    /// Whether others get nothing more of its nodes, however soon they would be gone: its start has slipped.
    pub(crate) fn is_closed(&self) -> bool {
        self.has_slipped
    }
}

/// How what runs is expected to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// So early with a probability of 10 % (p10).
    Early,
    /// As likely earlier as later (p50).
    Expected,
    /// By then with a probability of 90 % (p90).
    Late,
}

/// What the leader remembers of reservations between two passes. The passes of a new leader make it again.
/// With it, explanations know which nodes a reservation keeps, and which have slipped. Without it they make
/// reservations from the state.
#[derive(Clone, Debug, Default)]
pub struct KeptReservations {
    reservations: Vec<Reservation>,
    /// Gangs for which no start was found since everybody who has the right to one was last tried.
    without_start: BTreeSet<JobId>,
    /// Whether some of those who have the right to a start were not tried since.
    has_left_out: bool,
    /// Reservations that were made for one pass alone. The next ones make them again until starts are looked for that are known.
    passing: Vec<Reservation>,
    /// Timelines of many nodes that are reserved, to be gone on with until then as well.
    reserved_nodes: BTreeMap<ClusterKey, ReservedNodes>,
    last_look: LastLook,
    lent: Lent,
    /// Whether a pass has left it: nothing is known of reservations before.
    is_of_a_pass: bool,
    /// Which hosts hold which images, for explanations.
    images: Arc<HeldImages>,
    /// Who keeps licences from others.
    licence_keepers: Arc<LicenceKeepers>,
    /// Where gangs are expected for which nothing is kept beyond the pass.
    expected: Vec<(JobId, Start)>,
}

impl KeptReservations {
    /// Whether a pass has left it, so that it tells which nodes are kept and which starts have slipped. It is false on
    /// replicas that do not lead, and on a leader before its first complete pass.
    #[must_use]
    pub fn is_of_a_pass(&self) -> bool {
        self.is_of_a_pass
    }

    /// Adds which hosts hold which images, so that an explanation places a gang as the leader does.
    pub fn set_images(&mut self, images: Arc<HeldImages>) {
        self.images = images;
    }

    pub(crate) fn images(&self) -> &HeldImages {
        &self.images
    }

    /// Gangs were moved, or let grow, of which the timelines of reserved nodes do not know.
    pub(crate) fn forget_reserved_nodes(&mut self) {
        self.reserved_nodes.clear();
    }

    pub(crate) fn set_licence_keepers(&mut self, keepers: LicenceKeepers) {
        self.licence_keepers = Arc::new(keepers);
    }

    pub(crate) fn licence_keepers(&self) -> &LicenceKeepers {
        &self.licence_keepers
    }

    /// The jobs that wait with a reservation, with when and where they are to start, in the order of the pass; behind them those that
    /// were first among the others that could not start.
    pub(crate) fn reserved_starts(&self) -> impl Iterator<Item = (JobId, &Start)> {
        let kept = self.reservations.iter().map(|kept| (kept.job, &kept.start));
        kept.chain(self.expected.iter().map(|(job, start)| (*job, start)))
    }
}

/// What is kept for later during one pass.
#[derive(Clone, Debug)]
pub(crate) struct Future {
    now: LogTime,
    pace: Pace,
    /// Of the pass before, not looked at yet.
    remembered: Vec<Reservation>,
    /// Made for one of the passes before alone: they are made again if their gangs are owed one, unless starts are looked for that are
    /// known.
    passing: Vec<Reservation>,
    reservations: Vec<Reservation>,
    /// That of the gang whose turn it is: nothing is kept from itself.
    own: Option<Reservation>,
    /// Gangs that have had their turn in this pass.
    had_turn: BTreeSet<JobId>,
    /// How many gangs a start was looked for in this pass.
    tried: usize,
    /// Whether a gang had to be left out because there were too many.
    has_left_out: bool,
    without_start: BTreeSet<JobId>,
    /// What those ask for who were the first that could not start.
    firsts: BTreeSet<(Option<AcceleratorRequest>, Vec<Name>)>,
    /// Gangs for which capacity is to be kept during this pass, once any gang behind them could take it: until then it
    /// makes no difference, and to foresee it costs a look at all that runs.
    owed: Vec<JobId>,
    /// What reservations keep of nodes; none when it is to be computed again. The planner looks at windows itself.
    holds: Option<Holds>,
    /// Made when first asked for, and kept in step with what is placed.
    outlooks: BTreeMap<ClusterKey, CapacityTimeline>,
    /// What these were made of.
    runs: BTreeMap<ClusterKey, Arc<Vec<RunEnd>>>,
    /// Timelines of the nodes that are reserved alone, in clusters of which there is no other, kept in step as well.
    reserved_nodes: BTreeMap<ClusterKey, ReservedNodes>,
    /// Those of the pass before, which nobody has compared with the state yet.
    known_nodes: BTreeMap<ClusterKey, ReservedNodes>,
    /// The nodes of all reservations of the pass before, and of those that were taken up again in this one.
    taken_up: BTreeMap<ClusterKey, BTreeSet<NodeId>>,
    /// Whether starts are looked for that are known.
    looks: Looks,
    /// Everything that holds devices by the time it is expected to end, for quota; made when first asked for.
    ends: Option<Arc<Vec<(LogTime, JobId)>>>,
    /// The state without what is stopping, and where in the log it was made.
    stopped: Option<(LogIndex, Forecast)>,
    /// The same for [`Future::with_leavers`].
    with_leavers: Option<(LogIndex, Forecast)>,
    /// What is stopping for gangs of this pass, kept for them until it is over.
    coming: Vec<(NodeId, Hold)>,
    /// What is kept for gangs within nominal until they can take the rest back.
    lent: Lent,
    /// What somebody else has made of the same state already.
    foreseen: Arc<Foreseen>,
}

impl Future {
    /// Nothing reserved yet.
    pub(crate) fn of(now: LogTime) -> Future {
        Future::at_pace(now, Pace::Expected)
    }

    /// The same, if what runs ends at this pace.
    pub(crate) fn at_pace(now: LogTime, pace: Pace) -> Future {
        Future {
            now,
            pace,
            remembered: Vec::new(),
            passing: Vec::new(),
            reservations: Vec::new(),
            own: None,
            had_turn: BTreeSet::new(),
            tried: 0,
            has_left_out: false,
            without_start: BTreeSet::new(),
            firsts: BTreeSet::new(),
            owed: Vec::new(),
            holds: Some(Holds::new()),
            outlooks: BTreeMap::new(),
            reserved_nodes: BTreeMap::new(),
            known_nodes: BTreeMap::new(),
            taken_up: BTreeMap::new(),
            looks: Looks::default(),
            runs: BTreeMap::new(),
            ends: None,
            stopped: None,
            with_leavers: None,
            coming: Vec::new(),
            lent: Lent::default(),
            foreseen: Arc::default(),
        }
    }

    /// For a pass, with what was kept at the end of the one before.
    pub(crate) fn of_pass(state: &State, now: LogTime, mut kept: KeptReservations) -> Future {
        let looks = Looks::begin(state, now, core::mem::take(&mut kept.last_look));
        if looks.are_due() {
            return Future { looks, ..Future::resume(now, kept) };
        }
        let (passing, has_left_out) = (core::mem::take(&mut kept.passing), kept.has_left_out);
        let known_nodes = core::mem::take(&mut kept.reserved_nodes);
        // Nobody is tried again who was tried in vain.
        let without_start = core::mem::take(&mut kept.without_start);
        let resumed = Future::resume(now, kept);
        Future { looks, passing, known_nodes, has_left_out, without_start, ..resumed }
    }

    /// With what was kept at the end of the pass before.
    pub(crate) fn resume(now: LogTime, kept: KeptReservations) -> Future {
        Future::resume_at(now, kept, Pace::Expected)
    }

    /// The same, if what runs ends at this pace.
    pub(crate) fn resume_at(now: LogTime, kept: KeptReservations, pace: Pace) -> Future {
        let KeptReservations { reservations: remembered, mut without_start, has_left_out, lent, .. } = kept;
        if !has_left_out {
            without_start.clear();
        }
        Future { remembered, without_start, lent, holds: None, ..Future::at_pace(now, pace) }
    }

    /// What the next pass is to begin with.
    pub(crate) fn remember(mut self) -> KeptReservations {
        self.put_back();
        let (mut without_start, has_left_out) = (self.without_start, self.has_left_out);
        if without_start.len() > WITHOUT_START_MAX {
            without_start.clear();
        }
        let mut reservations = self.reservations;
        reservations.append(&mut self.remembered);
        let (reservations, mut passing): (Vec<_>, Vec<_>) =
            reservations.into_iter().partition(|reservation| reservation.is_kept);
        let expected = passing.iter().map(|passing| (passing.job, passing.start.clone())).collect();
        passing.append(&mut self.passing);
        passing.truncate(PASSING_MAX);
        let to_be_kept = |(place, nodes): (ClusterKey, ReservedNodes)| Some((place, nodes.to_be_kept()?));
        let reserved_nodes = self.reserved_nodes.into_iter().filter_map(to_be_kept).collect();
        let last_look = self.looks.end(self.now);
        let (lent, images, licence_keepers, is_of_a_pass) = (self.lent, Arc::default(), Arc::default(), true);
        KeptReservations {
            reservations,
            without_start,
            has_left_out,
            passing,
            reserved_nodes,
            last_look,
            lent,
            is_of_a_pass,
            images,
            licence_keepers,
            expected,
        }
    }

    /// Gives up what is kept for gangs that may not start whatever is free: their tenant or their user has as many jobs
    /// placed as it may, the booking that they name is not open, or less is free of what is counted than they need.
    pub(crate) fn give_up_at_limit(&mut self, state: &State, budget: &mut Budget) {
        let now = self.now;
        let is_short = |job: JobId| state.spec(job).is_some_and(|spec| lacks(state, spec));
        self.give_up(state, &|job| is_at_limit(state, job, now) || is_short(job), budget);
    }

    /// Gives up what is kept for all gangs of a tenant that has as many jobs placed as it may.
    pub(crate) fn give_up_of(&mut self, state: &State, tenant: &Name, budget: &mut Budget) {
        let is_its_own = |job: JobId| state.spec(job).is_some_and(|spec| spec.tenant == *tenant);
        self.give_up(state, &is_its_own, budget);
    }

    /// Gives up what is kept for one gang, which may not start whatever is free.
    pub(crate) fn give_up_job(&mut self, state: &State, job: JobId, budget: &mut Budget) {
        if self.reservations.iter().any(|reservation| reservation.job == job) {
            self.give_up(state, &|other| other == job, budget);
        }
    }

    fn give_up(&mut self, state: &State, is_given_up: &dyn Fn(JobId) -> bool, budget: &mut Budget) {
        let own = self.own.as_ref().and_then(|own| self.timeline(&own.place));
        budget.take(own.map_or(0, CapacityTimeline::walk_visits));
        self.put_back();
        self.take_up(state, budget);
        budget.take(self.reservations.len() as u64);
        let kept = self.reservations.iter().map(|reservation| reservation.job);
        let given_up: Vec<JobId> = kept.filter(|job| is_given_up(*job)).collect();
        for job in given_up {
            self.take_out(job);
            self.own = None;
        }
        if self.lent.give_up(is_given_up) {
            self.holds = None;
        }
    }

    fn overdue_since(&self, state: &State, job: JobId, spec: &JobSpec, row: &JobRow) -> Option<LogTime> {
        // Time that it ran before it was stopped was no waiting.
        let since = state.waits_since(job).unwrap_or(row.submitted_at);
        overdue_since(state, spec, since, row.estimate.run_ms, self.now)
    }

    fn install(&mut self, state: &State, mut reservation: Reservation, budget: &mut Budget) {
        let outlook = self.timeline_for(state, &reservation.place, &reservation.start, budget);
        outlook.reserve(reservation.job, &reservation.start, reservation.until);
        budget.take(outlook.walk_visits());
        if reservation.is_closed() {
            outlook.close(reservation.job);
        }
        if reservation.quota.is_some() {
            self.count_again(&mut reservation);
        } else {
            reservation.quota = self.quota_then(state, &reservation, budget);
        }
        self.count_quota(&reservation);
        self.reservations.push(reservation);
        self.holds = None;
    }

    /// Takes the gang's own reservation out: it is its turn. What becomes of it says [`Future::reserve`] or
    /// [`Future::placed`]; without a word of them it stays as it was.
    pub(crate) fn turn_of(&mut self, state: &State, job: JobId, within_nominal: bool, budget: &mut Budget) {
        self.begin_turn(state, job, within_nominal, budget);
        self.take_over(state, job, budget);
        self.take_out(job);
    }

    /// The same for a gang whose like do not wait for it: what is kept for them stays theirs.
    pub(crate) fn turn_alone(
        &mut self,
        state: &State,
        job: JobId,
        within_nominal: bool,
        budget: &mut Budget,
    ) {
        self.begin_turn(state, job, within_nominal, budget);
        self.take_out(job);
    }

    fn begin_turn(&mut self, state: &State, job: JobId, within_nominal: bool, budget: &mut Budget) {
        if self.lent.set_turn(job, within_nominal) {
            self.holds = None;
        }
        let own = self.own.as_ref().and_then(|own| self.timeline(&own.place));
        budget.take(own.map_or(0, CapacityTimeline::walk_visits));
        self.put_back();
        self.take_up(state, budget);
        self.had_turn.insert(job);
    }

    /// Hands what is kept for a gang that has had no turn to a gang before it of the same tenant that asks for the same
    /// and has nothing kept. The gang behind has no turn while the one before it waits. So nobody would use what is kept
    /// for it, others would wait for that, and the one before it could wait for them, for ever.
    fn take_over(&mut self, state: &State, job: JobId, budget: &mut Budget) {
        let Some(spec) = state.spec(job) else { return };
        budget.take(self.reservations.len() as u64);
        if self.reservations.iter().any(|own| own.job == job) {
            return;
        }
        // A class is a hash over the whole request, so it is made where everything else agrees.
        let is_behind = |other: &&Reservation| {
            if !other.is_kept || other.tier != spec.tier || self.had_turn.contains(&other.job) {
                return false;
            }
            let theirs = state.spec(other.job).filter(|theirs| theirs.tenant == spec.tenant);
            theirs.is_some_and(|theirs| GangClass::of(theirs) == GangClass::of(spec))
        };
        let Some(other) = self.reservations.iter().find(is_behind).map(|other| other.job) else { return };
        self.take_out(other);
        if let Some(own) = &mut self.own {
            own.job = job;
        }
    }

    /// Whether anything is kept for a gang.
    pub(crate) fn keeps_for(&self, job: JobId) -> bool {
        let mut reserved = self.reservations.iter().chain(&self.remembered).chain(&self.own);
        reserved.any(|reservation| reservation.job == job) || self.lent.is_for(job)
    }

    /// When a gang is to start for which anything is kept.
    pub(crate) fn start_kept_for(&self, job: JobId) -> Option<LogTime> {
        let mut reserved = self.reservations.iter().chain(&self.remembered).chain(&self.own);
        let start = reserved.find(|reservation| reservation.job == job).map(|kept| kept.start.at);
        start.or_else(|| self.lent.is_for(job).then_some(self.now))
    }

    /// Whether capacity is kept for the gang whose turn it is.
    pub(crate) fn has_own(&self) -> bool {
        self.own.is_some()
    }

    fn take_out(&mut self, job: JobId) {
        let Some(at) = self.reservations.iter().position(|reservation| reservation.job == job) else {
            return;
        };
        let own = self.reservations.remove(at);
        if let Some(outlook) = self.timeline_mut(&own.place) {
            outlook.give_back(job);
        }
        self.uncount_quota(job);
        self.own = Some(own);
        self.holds = None;
    }

    /// Gangs that were started on the nodes kept for the gang whose turn it is, once they were kept: they have borrowed
    /// the time until it starts.
    pub(crate) fn borrowed_time(&self, state: &State) -> Vec<JobId> {
        let Some(own) = self.own.as_ref().filter(|own| own.is_kept) else { return Vec::new() };
        let there = own.start.nodes.iter().flat_map(|(node, _)| state.gangs_on(*node));
        let since = |job: &JobId| {
            let placement = state.job(*job).and_then(|row| row.placement.as_ref());
            placement.is_some_and(|placement| placement.placed_at > own.made_at)
        };
        let gangs: BTreeSet<JobId> = there.filter(since).collect();
        gangs.into_iter().collect()
    }

    /// The gang whose turn it was keeps what it had.
    fn put_back(&mut self) {
        let Some(own) = self.own.take() else { return };
        if let Some(outlook) = self.timeline_mut(&own.place) {
            outlook.reserve(own.job, &own.start, own.until);
            if own.is_closed() {
                outlook.close(own.job);
            }
        }
        self.count_quota(&own);
        self.reservations.push(own);
        self.holds = None;
    }

    /// What is kept from a tenant: everything reserved, and the windows that are not its own.
    pub(crate) fn holds_for(&self, state: &State, tenant: &Name) -> Holds {
        self.holds_from(state, tenant, &|_| true)
    }

    /// What is kept from a gang whose turn it is: what those have reserved whom it does not go before.
    pub(crate) fn holds_for_job(&mut self, state: &State, job: JobId, spec: &JobSpec, row: &JobRow) -> Holds {
        let behind = self.who_gives_way(state, job, spec, row);
        if self.holds.is_none() && behind.is_empty() {
            self.holds = Some(self.node_holds(&|_| true));
        }
        self.holds_from(state, &spec.tenant, &|other| !behind.contains(&other.job))
    }

    /// Those whose reservations keep nothing from a gang.
    fn who_gives_way(&self, state: &State, job: JobId, spec: &JobSpec, row: &JobRow) -> BTreeSet<JobId> {
        if self.reservations.is_empty() {
            return BTreeSet::new();
        }
        let overdue = self.overdue_since(state, job, spec, row);
        // By tenant that has reserved what it would borrow.
        let borrowers = self.reservations.iter().filter_map(|other| other.quota.as_ref());
        let borrowers: BTreeSet<&Name> =
            borrowers.filter(|quota| quota.borrows()).map(KeptQuota::tenant).collect();
        // Every reservation of a gang that borrows gives way, also inside its own group: what it borrows can be taken back.
        let is_promised = !borrowers.is_empty() && headroom(state, spec).is_promised;
        let behind =
            borrowers.into_iter().filter(|other| is_promised || is_promised_beside(state, spec, other));
        let behind: BTreeSet<&Name> = behind.collect();
        // Of two gangs of a tier that both have a reservation, the one that was promised its start first goes before the
        // other: each would keep the other out otherwise, for ever, once both have slipped.
        let own = self.own.as_ref().filter(|own| own.job == job && own.is_kept);
        let own = own.map(|own| (overdue.unwrap_or(LogTime(u64::MAX)), own.promised_at, job));
        let goes_before = |other: &&Reservation| {
            let theirs = (other.overdue_since.unwrap_or(LogTime(u64::MAX)), other.promised_at, other.job);
            let is_owed_first = other.is_kept && own.is_some_and(|own| own < theirs);
            let quota = other.quota.as_ref().filter(|quota| quota.borrows());
            let gives_way = quota.is_some_and(|quota| behind.contains(quota.tenant()));
            let is_later =
                overdue.is_some_and(|at| other.overdue_since.is_none_or(|o| (at, job) < (o, other.job)));
            // Between equals the order decides, and not who was first to reserve: what the one ahead asks for is as much.
            let is_ahead = !self.had_turn.contains(&other.job) && other.tier <= spec.tier && {
                let asked = state.spec(other.job).map(|other| other.device_milli());
                asked.is_some_and(|asked| asked <= spec.device_milli())
            };
            let is_before_in_tier = is_later || is_owed_first;
            // On the nodes of the booking that it names, a gang that waits for the end of the window goes behind it.
            let is_booked = spec.booking.is_some()
                && state.spec(other.job).is_some_and(|theirs| theirs.booking != spec.booking);
            is_booked
                || spec.tier > other.tier
                || gives_way
                || is_ahead
                || (spec.tier == other.tier && is_before_in_tier)
        };
        self.reservations.iter().filter(goes_before).map(|other| other.job).collect()
    }

    /// Gives up what those have reserved who have had no turn and whose reservations keep nothing from a gang, for
    /// estimates of when it starts.
    pub(crate) fn forget_who_gives_way(&mut self, state: &State, job: JobId, spec: &JobSpec, row: &JobRow) {
        let own = self.own.take();
        for other in self.who_gives_way(state, job, spec, row) {
            if !self.had_turn.contains(&other) {
                self.take_out(other);
            }
        }
        self.own = own;
    }

    fn node_holds(&self, concerns: &dyn Fn(&Reservation) -> bool) -> Holds {
        let mut holds = Holds::new();
        for (node, hold) in self.coming.iter().chain(self.lent.holds()) {
            holds.add(*node, *hold);
        }
        let owners: BTreeSet<JobId> =
            self.reservations.iter().filter(|r| concerns(r)).map(|r| r.job).collect();
        let reserved = self.reserved_nodes.values().map(ReservedNodes::timeline);
        for outlook in self.outlooks.values().chain(reserved) {
            outlook.add_holds(&mut holds, |owner| owners.contains(&owner));
        }
        for reservation in self.reservations.iter().filter(|reservation| concerns(reservation)) {
            for (node, hold) in &reservation.extra {
                holds.add(*node, *hold);
            }
        }
        holds
    }

    fn holds_from(&self, state: &State, tenant: &Name, concerns: &dyn Fn(&Reservation) -> bool) -> Holds {
        let policy = &state.policy().policy;
        let own = policy.windows.iter().filter(|window| is_owner(policy, window, tenant));
        let mut own = own.map(|window| window.name.clone()).peekable();
        let mut holds = match &self.holds {
            Some(holds) if self.reservations.iter().all(concerns) => holds.clone(),
            _ => self.node_holds(concerns),
        };
        for reservation in self.reservations.iter().filter(|reservation| concerns(reservation)) {
            self.keep_quota(state, tenant, reservation, &mut holds);
        }
        if own.peek().is_none() { holds } else { holds.with_open_windows(own) }
    }

    /// Gangs were or will be preempted: what was expected of the cluster is out of date.
    pub(crate) fn changed(&mut self, region: &Name, cluster: &Name) {
        let place = (region.clone(), cluster.clone());
        self.ends = None;
        self.forget_foreseen();
        self.outlooks.remove(&place);
        self.reserved_nodes.remove(&place);
        // Taken up again, they are reserved in what is expected then.
        for reservation in core::mem::take(&mut self.reservations) {
            if let Some(outlook) = self.timeline_mut(&reservation.place) {
                outlook.give_back(reservation.job);
            }
            self.remembered.push(reservation);
        }
        self.holds = None;
    }

    /// A gang was placed in this pass.
    pub(crate) fn placed(&mut self, state: &State, job: JobId) {
        self.lent.forget(job);
        self.own.take_if(|own| own.job == job);
        self.forget_foreseen();
        let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { return };
        let (Some(placement), Some(end)) = (&row.placement, expected_end(row, spec, self.now)) else {
            return;
        };
        let end = scaled(end, (row.estimate.run_ms, row.estimate.run_high_ms), self.now, self.pace);
        let place = (placement.region.clone(), placement.cluster.clone());
        if let Some(outlook) = self.timeline_mut(&place) {
            let mut workers = placement.slots.clone();
            workers.extend_from_slice(state.spares(job));
            if !outlook.begin(spec, &workers, end) {
                self.changed(&place.0, &place.1);
            }
        }
        if let Some(ends) = &mut self.ends {
            let ends = Arc::make_mut(ends);
            // A pass that was interrupted may have known it where it ran before: what it uses comes back once.
            ends.retain(|(_, known)| *known != job);
            let behind = ends.partition_point(|known| *known < (end, job));
            ends.insert(behind, (end, job));
        }
        self.count_placed(row, &spec.tenant);
    }

    /// The state once everything that is stopping has stopped: made once for each state that a pass comes to.
    /// None when the budget runs out.
    pub(crate) fn without_stopping(&mut self, state: &State, budget: &mut Budget) -> Option<Forecast> {
        let at = state.log_index();
        if let Some((made_at, forecast)) = &self.stopped
            && *made_at == at
        {
            return Some(forecast.clone());
        }
        let mut forecast = Forecast::new(state);
        for job in state.stopping() {
            if budget.is_spent() {
                return None;
            }
            budget.take(VISITS_PER_END);
            forecast.end(job);
        }
        self.stopped = Some((at, forecast.clone()));
        Some(forecast)
    }

    /// The state in which what gangs will leave that are stopping counts for what is promised: made once for each state that a pass
    /// comes to.
    pub(crate) fn with_leavers(&mut self, state: &State, budget: &mut Budget) -> Forecast {
        let at = state.log_index();
        if let Some((made_at, forecast)) = &self.with_leavers
            && *made_at == at
        {
            return forecast.clone();
        }
        budget.take(state.stopping().count() as u64);
        let forecast = Forecast::with_leavers(state);
        self.with_leavers = Some((at, forecast.clone()));
        forecast
    }

    /// Keeps what gangs that are stopping will leave for the gang that waits for it, until the pass is over:
    /// what is free of it already is not for those behind. `forecast` is the state without those gangs.
    pub(crate) fn keep_coming(&mut self, forecast: &State, spec: &JobSpec, plan: &Plan) {
        self.coming.extend(lent::left_beside(forecast, spec, plan, self.now));
        self.holds = None;
    }

    /// Who has reserved what.
    pub(crate) fn reservations(&self) -> &[Reservation] {
        &self.reservations
    }

    /// What a copy of it costs, in nodes that are reserved.
    pub(crate) fn weight(&self) -> usize {
        let of_one = |own: &Reservation| 1 + own.start.nodes.len() + own.extra.len();
        self.reservations.iter().chain(&self.own).map(of_one).sum()
    }

    /// Keeps capacity for a gang that waits, where it can start first, once it has the right to that: when it is
    /// overdue; at once if its tier is above the default; and during this pass if it is the first of those that
    /// ask for the same type and cannot start. In the last case that is done when [`Future::keep_what_is_owed`] asks.
    pub(crate) fn reserve(
        &mut self,
        state: &State,
        job: JobId,
        spec: &JobSpec,
        row: &JobRow,
        budget: &mut Budget,
    ) {
        let wanted = spec.groups.iter().find_map(|group| group.request.accelerators.clone());
        let is_first = self.firsts.insert((wanted, spec.regions.clone()));
        let overdue_since = self.overdue_since(state, job, spec, row);
        let is_kept = overdue_since.is_some() || spec.tier > PriorityTier::default();
        if is_kept {
            // In the order of their turns.
            self.keep_what_is_owed(state, budget);
            self.reserve_now(state, job, spec, row, overdue_since, budget);
            return;
        }
        self.own.take_if(|own| own.job == job);
        if is_first {
            self.owed.push(job);
        }
    }

    /// Whether it was put off to look where a gang could start whose hosts would fetch its images ahead.
    pub(crate) fn owes_images(&self, state: &State) -> bool {
        let has_image = |job: &JobId| state.spec(*job).is_some_and(|spec| spec.needs_container_runtime());
        self.owed.iter().any(has_image)
    }

    /// Keeps capacity for the first of those that could not start so far, if that was put off; whether anything may be
    /// kept now that was not.
    pub(crate) fn keep_what_is_owed(&mut self, state: &State, budget: &mut Budget) -> bool {
        let owed = core::mem::take(&mut self.owed);
        if owed.is_empty() {
            return false;
        }
        let turn = self.own.as_ref().map(|own| own.job);
        self.put_back();
        for job in owed {
            let waits = state.job(job).filter(|row| row.is_in_line() && !row.cancel_requested);
            let waits = waits.filter(|_| !is_at_limit(state, job, self.now));
            let planned = planned_spec(state, job).filter(|spec| !lacks(state, spec));
            if let (Some(row), Some(spec)) = (waits, planned) {
                self.reserve_now(state, job, &spec, row, None, budget);
            }
        }
        turn.inspect(|job| self.take_out(*job));
        true
    }

    fn reserve_now(
        &mut self,
        state: &State,
        job: JobId,
        spec: &JobSpec,
        row: &JobRow,
        overdue_since: Option<LogTime>,
        budget: &mut Budget,
    ) {
        let mut own = self.own.take_if(|own| own.job == job);
        let most = state.policy().policy.backfill.reservations_max as usize;
        let is_kept = overdue_since.is_some() || spec.tier > PriorityTier::default();
        if most == 0 {
            return;
        }
        if let Some(known) = own.take_if(|_| !self.looks.are_due()) {
            self.keep_own(state, known, (row, is_kept, overdue_since), budget);
            return;
        }
        if own.is_none() {
            let may_try = self.may_try(job, most, overdue_since.is_some());
            if !may_try || (!is_kept && self.make_again(state, job, budget)) {
                return;
            }
        }
        let Some((place, fresh)) = self.earliest(state, (job, spec, row), budget) else {
            self.without_start.insert(job);
            return;
        };
        // On other nodes it is as little to be kept waiting.
        let has_slipped = own.as_ref().is_some_and(|own| own.has_slipped);
        let mut reservation = match own.filter(|own| self.stays(own, &fresh)) {
            Some(mut own) => {
                // Its nodes may be free before there is quota. At a start without quota it would count as a gang that
                // borrows, and keep none of what it is promised.
                own.start.at = own.start.at.max(fresh.at);
                own
            }
            None => Reservation {
                job,
                place,
                made_at: self.now,
                promised_at: fresh.at,
                start: fresh,
                until: None,
                tier: spec.tier,
                has_slipped,
                overdue_since,
                is_kept,
                extra: Vec::new(),
                quota: None,
            },
        };
        reservation.is_kept = is_kept;
        reservation.until = Some(reservation.start.at.plus_ms(row.estimate.run_high_ms.max(1)));
        reservation.overdue_since = overdue_since;
        reservation.quota = None;
        reservation.extra = Vec::new();
        if overdue_since.is_some() {
            reservation.extra = self.extra_nodes(state, spec, row, &reservation, budget);
        }
        self.install(state, reservation, budget);
    }

    /// Whether a start is looked for: there is a reservation to be had, and not too many were tried already. Who
    /// was tried in vain lets those go first who were not.
    fn may_try(&mut self, job: JobId, most: usize, is_overdue: bool) -> bool {
        // Nobody gives up a reservation for one that is not tried before the next look.
        if !self.looks.are_due() && self.without_start.contains(&job) {
            return false;
        }
        if self.reservations.len() >= most {
            let last = |reservation: &&Reservation| reservation.overdue_since.is_none();
            let last =
                self.reservations.iter().filter(last).max_by_key(|r| (r.start.at, r.job)).map(|r| r.job);
            let Some(last) = last.filter(|_| is_overdue) else { return false };
            self.take_out(last);
            self.own = None;
        }
        // It had its try in this round, and is not left out: otherwise the round would never end, and none of these
        // would be tried again.
        if self.without_start.contains(&job) {
            return false;
        }
        if self.tried >= 2 * most {
            self.has_left_out = true;
            return false;
        }
        self.tried += 1;
        true
    }

    /// Whether a reservation stays where it is although there is a start on other nodes.
    fn stays(&self, own: &Reservation, fresh: &Start) -> bool {
        // Those nodes are free, and it did not start on them.
        if own.start.at <= self.now {
            return false;
        }
        let left = own.start.at.since_ms(self.now);
        fresh.at.plus_ms(HOP_MS.max(left / 4)) >= own.start.at
    }

    /// The nodes that an overdue gang keeps in addition to those of its start. Where it is quota that it waits for,
    /// nodes are of no use to it.
    fn extra_nodes(
        &mut self,
        state: &State,
        spec: &JobSpec,
        row: &JobRow,
        reservation: &Reservation,
        budget: &mut Budget,
    ) -> Vec<(NodeId, Hold)> {
        let is_small = spec.device_milli() <= 1_000 || spec.groups.iter().any(|group| group.slice.is_some());
        let has_quota = !state.has_quotas() || has_quota_now(state, spec);
        let Some(outlook) = self.outlooks.get(&reservation.place).filter(|_| !is_small && has_quota) else {
            return Vec::new();
        };
        let most = reservation.start.nodes.len() * (KEPT_FOR_OVERDUE - 1);
        let own = Future::of(self.now).holds_for(state, &spec.tenant);
        budget.take(outlook.walk_visits());
        with_terms(state, self.now, (reservation.job, spec, row), &own, |terms| {
            let mut others = outlook.others_like(&reservation.start, spec, terms, most);
            if !reservation.is_closed() {
                others.iter_mut().for_each(|(_, hold)| hold.from = reservation.start.at);
            }
            others
        })
    }

    /// Gives a gang the capacity where it can start first, until it is expected to end, for estimates of when each
    /// gang starts. When that is; none where nothing it could use comes free.
    pub(crate) fn expect_start(
        &mut self,
        state: &State,
        job: JobId,
        spec: &JobSpec,
        row: &JobRow,
        budget: &mut Budget,
    ) -> Option<LogTime> {
        let (place, start) = self.earliest(state, (job, spec, row), budget)?;
        // What is kept for it stays where it is, as in a pass.
        let own = self.own.take_if(|own| own.job == job);
        let has_slipped = own.as_ref().is_some_and(|own| own.has_slipped);
        if let Some(own) = own.filter(|own| self.stays(own, &start)) {
            let (at, until) = (own.start.at, Some(own.start.at.plus_ms(row.estimate.run_ms.max(1))));
            self.install(state, Reservation { until, ..own }, budget);
            return Some(at);
        }
        let at = start.at;
        let until = Some(start.at.plus_ms(row.estimate.run_ms.max(1)));
        let reservation = Reservation {
            job,
            place,
            made_at: self.now,
            promised_at: start.at,
            start,
            until,
            tier: spec.tier,
            has_slipped,
            overdue_since: None,
            is_kept: false,
            extra: Vec::new(),
            quota: None,
        };
        self.install(state, reservation, budget);
        Some(at)
    }

    /// Where and when a gang can start first if what runs ends as expected.
    pub(crate) fn earliest(
        &mut self,
        state: &State,
        (job, spec, row): (JobId, &JobSpec, &JobRow),
        budget: &mut Budget,
    ) -> Option<(ClusterKey, Start)> {
        let now = self.now;
        // Reservations are in the outlook itself; of windows the tenant's own are open.
        let own = Future::of(now).holds_for(state, &spec.tenant);
        let lanes = self.lanes(state, spec, budget);
        let (openings, looked_at) = affinity::openings(state, job, spec, now);
        budget.take(looked_at);
        let mut best: Option<(ClusterKey, Start)> = None;
        with_terms(state, now, (job, spec, row), &own, |terms| {
            let terms = Terms { lanes: &lanes, openings: &openings, ..*terms };
            for place in places(state, spec) {
                let outlook = self.outlook(state, &place, budget);
                let (walk_visits, found) = (outlook.walk_visits(), outlook.earliest(spec, &terms, budget));
                self.looks.count(walk_visits);
                let Some(start) = found else { continue };
                if best.as_ref().is_none_or(|(_, first)| start.at < first.at) {
                    best = Some((place, start));
                }
            }
        });
        best
    }
}

/// Whether a gang may not start whatever is free, because its tenant or its user has as many jobs placed as it may, or has used up
/// its accelerator time, or because the booking that it names is not open.
pub(crate) fn is_at_limit(state: &State, job: JobId, now: LogTime) -> bool {
    let is_barred =
        |spec: &JobSpec| state.running_limit_reached(&spec.tenant).is_some() || !is_open_to(state, spec);
    state.spec(job).is_some_and(|spec| is_barred(spec))
        || state.is_user_at_limit(job)
        || state.is_held_by_limit(job)
        || state.is_over_budget(job, now)
}
