//! Quota as time goes by: what will be left of it for a tenant when what runs ends and what is reserved
//! begins, and what reservations keep of it.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_planner::{Budget, Holds, Lane};
use muster_state::quota::{QuotaStatus, QuotaUsage};
use muster_state::{JobRow, State};
use muster_types::{JobId, JobSpec, LogTime, Name};

use super::outlooks::releases;
use super::{ClusterKey, Future, Reservation};

/// What a reservation takes of quota.
#[derive(Clone, Debug)]
struct QuotaTaken {
    tenant: Name,
    region: Name,
    /// Thousandths of devices, by type.
    charge: Vec<(Name, u64)>,
}

/// The quota of a reservation.
#[derive(Clone, Debug)]
pub(super) struct KeptQuota {
    own: Arc<QuotaTaken>,
    /// What everybody is expected to use when it starts, itself included.
    usage: QuotaUsage,
    /// The same without it, if it would borrow then: nobody's nominal quota is kept for that.
    without: Option<QuotaUsage>,
    /// What these count of other reservations, by job: just that is taken out of them again, whatever has become of the others.
    counted: BTreeMap<JobId, Arc<QuotaTaken>>,
}

impl KeptQuota {
    /// Whether it takes what others are promised.
    pub(super) fn borrows(&self) -> bool {
        self.without.is_some()
    }

    /// What it leaves a tenant when it starts, in thousandths of devices.
    fn left_for(
        &self,
        capacity: &impl Fn(&Name, Option<&Name>) -> u64,
        tenant: &Name,
        kind: &Name,
        region: &Name,
    ) -> u64 {
        let total = self.usage.headroom(capacity, tenant, kind, region).total_milli();
        let nominal = |without: &QuotaUsage| without.headroom(capacity, tenant, kind, region).nominal_milli;
        self.without.as_ref().map_or(total, |without| total.max(nominal(without)))
    }

    /// Whether it takes devices of a type.
    fn takes(&self, kind: &Name) -> bool {
        self.own.charge.iter().any(|(taken, _)| taken == kind)
    }

    /// Whose it is.
    pub(super) fn tenant(&self) -> &Name {
        &self.own.tenant
    }

    /// Counts another reservation, once.
    fn count(&mut self, job: JobId, taken: &Arc<QuotaTaken>) {
        if let Entry::Vacant(place) = self.counted.entry(job) {
            place.insert(Arc::clone(taken));
            self.change(&taken.tenant, &taken.region, &taken.charge, QuotaUsage::add);
        }
    }

    /// Counts it no more.
    fn uncount(&mut self, job: JobId) {
        if let Some(taken) = self.counted.remove(&job) {
            self.change(&taken.tenant, &taken.region, &taken.charge, QuotaUsage::remove);
        }
    }

    fn change(&mut self, tenant: &Name, region: &Name, charge: &[(Name, u64)], change: Change) {
        for (kind, milli) in charge {
            change(&mut self.usage, tenant, kind, region, *milli);
            if let Some(without) = &mut self.without {
                change(without, tenant, kind, region, *milli);
            }
        }
    }
}

/// Gangs of other types that are passed over for one visit.
const ENDS_PER_VISIT: u64 = 16;

/// [`QuotaUsage::add`] or [`QuotaUsage::remove`].
type Change = fn(&mut QuotaUsage, &Name, &Name, &Name, u64);

impl Future {
    /// Leaves a tenant what it may use of quota in addition to a reservation.
    pub(super) fn keep_quota(
        &self,
        state: &State,
        tenant: &Name,
        reservation: &Reservation,
        holds: &mut Holds,
    ) {
        let Some(quota) = &reservation.quota else { return };
        let capacity = |kind: &Name, region: Option<&Name>| state.registered_milli(kind, region);
        let from = if reservation.is_closed() { self.now } else { reservation.start.at };
        let mut seen: BTreeSet<(&Name, &Name)> = BTreeSet::new();
        for (key, _) in state.pools() {
            let Some(kind) = key.kind.as_ref().filter(|kind| quota.takes(kind)) else {
                continue;
            };
            if !seen.insert((kind, &key.region)) {
                continue;
            }
            holds.keep_quota(from, kind, &key.region, quota.left_for(&capacity, tenant, kind, &key.region));
        }
    }

    /// What a gang may use of every type that it accepts, as time goes by; nothing where there are no quotas.
    pub(super) fn lanes(&mut self, state: &State, spec: &JobSpec, budget: &mut Budget) -> Vec<Lane> {
        let mut found: Vec<Lane> = Vec::new();
        if !state.has_quotas() {
            return found;
        }
        for (kind, region) in flavours(state, spec) {
            let steps = self.steps(state, spec, (kind, region), budget);
            found.push(Lane { region: region.clone(), kind: kind.clone(), steps });
        }
        found
    }

    /// What there is for a gang from each time on, until there is enough for good.
    fn steps(
        &mut self,
        state: &State,
        spec: &JobSpec,
        (kind, region): (&Name, &Name),
        budget: &mut Budget,
    ) -> Vec<(LogTime, u64)> {
        self.make_ends(state, budget);
        let mut usage = state.quota_usage().clone();
        let capacity = |kind: &Name, region: Option<&Name>| state.registered_milli(kind, region);
        let need = spec.device_milli();
        // A closed reservation keeps its quota from now on, as [`Future::keep_quota`] does: a start before it that took
        // of that would be found at every turn, and never be had.
        let closed = self.reservations.iter().filter(|other| other.is_closed());
        let closed = closed.filter_map(|other| Some((other.start.at, other.quota.as_ref()?)));
        let mut closed: Vec<(LogTime, u64)> = closed
            .filter(|(at, quota)| *at > self.now && quota.takes(kind))
            .map(|(at, quota)| (at, quota.left_for(&capacity, &spec.tenant, kind, region)))
            .collect();
        closed.sort_unstable();
        let headroom = |usage: &QuotaUsage, closed: &[(LogTime, u64)]| {
            let left = usage.headroom(capacity, &spec.tenant, kind, region).total_milli();
            closed.iter().fold(left, |left, (_, most)| left.min(*most))
        };
        let mut takes = self.quota_events(kind);
        takes.sort_unstable_by_key(|(at, takes, reservation)| (*at, *takes, reservation.job));
        let mut takes = takes.into_iter().peekable();
        let mut ends = self.ends.iter().flat_map(|ends| ends.iter()).copied().peekable();
        let mut steps = alloc::vec![(self.now, headroom(&usage, &closed))];
        let mut looked_at = 0;
        loop {
            let last = steps.last().map_or(0, |(_, milli)| *milli);
            if last >= need && takes.peek().is_none() {
                break;
            }
            let next = [ends.peek().map(|(at, _)| *at), takes.peek().map(|(at, ..)| *at)];
            let Some(at) = next.into_iter().flatten().min() else { break };
            // Its own start counts it from then on.
            let begun = closed.partition_point(|(start, _)| *start <= at);
            let mut is_changed = begun > 0;
            closed.drain(..begun);
            while let Some((_, job)) = ends.next_if(|(end, _)| *end <= at) {
                looked_at += 1;
                is_changed |= end_use(state, &mut usage, job, kind, budget);
            }
            while let Some((_, takes, reservation)) = takes.next_if(|(time, ..)| *time <= at) {
                let Some(quota) = &reservation.quota else { continue };
                let change: Change = if takes { QuotaUsage::add } else { QuotaUsage::remove };
                for (kind, milli) in &quota.own.charge {
                    change(&mut usage, &quota.own.tenant, kind, &quota.own.region, *milli);
                }
                is_changed = true;
            }
            if is_changed {
                let milli = headroom(&usage, &closed);
                if milli != last {
                    steps.push((at, milli));
                }
            }
        }
        budget.take(looked_at / ENDS_PER_VISIT);
        steps
    }

    /// When reservations take quota of a type, and when they give it back.
    fn quota_events(&self, kind: &Name) -> Vec<(LogTime, bool, &Reservation)> {
        let mut events = Vec::new();
        for reservation in &self.reservations {
            if reservation.quota.as_ref().is_some_and(|quota| quota.takes(kind)) {
                // Nothing gives back before it takes, whatever its start and its end are.
                let begins = reservation.start.at.max(self.now);
                let ends = reservation.until.map(|until| until.max(begins.plus_ms(1)));
                events.push((begins, true, reservation));
                events.extend(ends.map(|ends| (ends, false, reservation)));
            }
        }
        events
    }

    /// What is expected to be in use when a reservation begins.
    pub(super) fn quota_then(
        &mut self,
        state: &State,
        reservation: &Reservation,
        budget: &mut Budget,
    ) -> Option<KeptQuota> {
        if !state.has_quotas() {
            return None;
        }
        let spec = state.spec(reservation.job)?;
        let charge = charge(state, spec, reservation);
        if charge.is_empty() {
            return None;
        }
        self.make_ends(state, budget);
        let mut usage = state.quota_usage().clone();
        let at = reservation.start.at;
        for (_, job) in self.ends.iter().flat_map(|ends| ends.iter()).take_while(|(end, _)| *end <= at) {
            for (kind, _) in &charge {
                end_use(state, &mut usage, *job, kind, budget);
            }
        }
        let (tenant, region) = (spec.tenant.clone(), reservation.place.0.clone());
        let own = Arc::new(QuotaTaken { tenant, region, charge });
        let mut quota = KeptQuota { own: Arc::clone(&own), usage, without: None, counted: BTreeMap::new() };
        self.count_those_before(at, &mut quota);
        let without = quota.usage.clone();
        let mut borrows = false;
        for (kind, milli) in &own.charge {
            quota.usage.add(&own.tenant, kind, &own.region, *milli);
            let status = quota.usage.standing(&own.tenant, kind, &own.region);
            borrows |= matches!(status, QuotaStatus::Borrowing { .. });
        }
        quota.without = borrows.then_some(without);
        Some(quota)
    }

    /// Counts the reservations that have begun by a time and last longer.
    fn count_those_before(&self, at: LogTime, quota: &mut KeptQuota) {
        for other in self.reservations.iter().filter(|other| other.start.at <= at) {
            let theirs = other.quota.as_ref().filter(|_| other.until.is_none_or(|until| until > at));
            if let Some(theirs) = theirs {
                quota.count(other.job, &theirs.own);
            }
        }
    }

    /// The quota of a reservation was known before it is made: of the others it counts those that there are now.
    pub(super) fn count_again(&self, own: &mut Reservation) {
        let (at, Some(quota)) = (own.start.at, &mut own.quota) else { return };
        let before: Vec<JobId> = quota.counted.keys().copied().collect();
        before.into_iter().for_each(|job| quota.uncount(job));
        self.count_those_before(at, quota);
    }

    /// A reservation is made: those that begin later count it.
    pub(super) fn count_quota(&mut self, own: &Reservation) {
        let Some(quota) = &own.quota else { return };
        let counts = |other: &&mut Reservation| {
            other.start.at >= own.start.at && own.until.is_none_or(|until| until > other.start.at)
        };
        for other in self.reservations.iter_mut().filter(counts) {
            if let Some(other) = &mut other.quota {
                other.count(own.job, &quota.own);
            }
        }
    }

    /// A reservation is given up: nobody counts it any more.
    pub(super) fn uncount_quota(&mut self, job: JobId) {
        for quota in self.reservations.iter_mut().filter_map(|other| other.quota.as_mut()) {
            quota.uncount(job);
        }
    }

    /// A gang was placed that may still run when reservations begin.
    pub(super) fn count_placed(&mut self, row: &JobRow, tenant: &Name) {
        let late = self.now.plus_ms(row.estimate.run_high_ms);
        let Some((region, charge)) = row.charge() else { return };
        for reservation in self.reservations.iter_mut().filter(|other| other.start.at < late) {
            if let Some(quota) = &mut reservation.quota {
                quota.change(tenant, region, &charge.devices_milli, QuotaUsage::add);
            }
        }
    }

    fn make_ends(&mut self, state: &State, budget: &mut Budget) {
        if self.ends.is_some() {
            return;
        }
        if let Some(ends) = &self.foreseen.ends {
            budget.take(ends.len() as u64);
            self.ends = Some(Arc::clone(ends));
            return;
        }
        let mut clusters: Vec<ClusterKey> = Vec::new();
        for (key, _) in state.pools() {
            if clusters.last().is_none_or(|last| last.0 != key.region || last.1 != key.cluster) {
                clusters.push((key.region.clone(), key.cluster.clone()));
            }
        }
        let (now, pace) = (self.now, self.pace);
        let mut ends: Vec<(LogTime, JobId)> =
            clusters.iter().flat_map(|place| releases(state, place, now, pace)).collect();
        ends.sort_unstable();
        budget.take(ends.len() as u64);
        self.looks.count(ends.len() as u64);
        self.ends = Some(Arc::new(ends));
    }
}

/// A gang gives back what it uses of a type; whether it used any.
fn end_use(state: &State, usage: &mut QuotaUsage, job: JobId, kind: &Name, budget: &mut Budget) -> bool {
    let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { return false };
    let Some((region, charge)) = row.charge() else { return false };
    let mut any = false;
    for (_, milli) in charge.devices_milli.iter().filter(|(used, _)| used == kind) {
        budget.take(1);
        usage.remove(&spec.tenant, kind, region, *milli);
        any = true;
    }
    any
}

/// Thousandths of devices that a gang takes at the start of its reservation, by type.
fn charge(state: &State, spec: &JobSpec, reservation: &Reservation) -> Vec<(Name, u64)> {
    let mut found: Vec<(Name, u64)> = Vec::new();
    for group in &spec.groups {
        let Some(request) = &group.request.accelerators else { continue };
        let kinds = reservation.start.nodes.iter().filter_map(|(node, _)| {
            let accelerators = state.node(*node)?.spec.accelerators.as_ref()?;
            request.accepts(&accelerators.kind).then(|| accelerators.kind.clone())
        });
        let Some(kind) = kinds.into_iter().next() else { continue };
        let milli = u64::from(group.workers_min) * group.request.device_milli();
        match found.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, sum)) => *sum += milli,
            None => found.push((kind, milli)),
        }
    }
    found
}

/// Types and regions that a job accepts and the fleet has, each once.
fn flavours<'a>(state: &'a State, spec: &JobSpec) -> BTreeSet<(&'a Name, &'a Name)> {
    let accepts = |kind: &Name| {
        let mut requests = spec.groups.iter().filter_map(|group| group.request.accelerators.as_ref());
        requests.any(|request| request.accepts(kind))
    };
    let allowed = |region: &Name| spec.regions.is_empty() || spec.regions.contains(region);
    let pools = state.pools().filter_map(|(key, _)| Some((key.kind.as_ref()?, &key.region)));
    pools.filter(|(kind, region)| accepts(kind) && allowed(region)).collect()
}

/// Whether a job would be within nominal where its tenant and another one part, if need be at the cost of its tenant's
/// lower tiers. What others borrow of that makes no difference: it can be taken back.
pub(super) fn is_promised_beside(state: &State, spec: &JobSpec, other: &Name) -> bool {
    let need = spec.device_milli();
    let keeps = |usage: &QuotaUsage| {
        let Some((our, _)) = usage.sides(&spec.tenant, other) else { return false };
        let keeps = |(kind, region)| usage.keeps_within(&our, &spec.tenant, kind, region, need);
        need > 0 && flavours(state, spec).into_iter().any(keeps)
    };
    let is_lower = |job: &JobId| state.spec(*job).is_some_and(|other| other.tier < spec.tier);
    keeps(state.quota_usage()) || keeps(&state.usage_without(state.charged_of(&spec.tenant).filter(is_lower)))
}

/// Whether the limits of its tenant, and of those above, would let a job start now, were there devices enough.
pub(super) fn has_quota_now(state: &State, spec: &JobSpec) -> bool {
    let capacity = |_: &Name, _: Option<&Name>| u64::MAX;
    let headroom = |(kind, region)| state.quota_usage().headroom(capacity, &spec.tenant, kind, region);
    let need = spec.device_milli();
    need == 0 || flavours(state, spec).into_iter().any(|flavour| headroom(flavour).total_milli() >= need)
}
