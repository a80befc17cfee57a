//! Which gangs are within nominal quota, and who may be stopped for whom.
//!
//! A gang is *within nominal* on a side of the tenant tree as a whole, or it *borrows* there. A [`Side`] is a
//! tenant with everyone below it, or what a tenant with others below it runs itself; the nominal quota of the
//! latter is what the tenant has beyond the quotas of those below it. The gangs of a side are ranked: first those
//! that policy must not stop, then those within nominal on the side directly below, then higher tiers, then those
//! placed earlier. In that order each gang is within nominal if it fits, with those before it, into the nominal
//! quota of every flavour that the side has one in. So nothing that a tenant is promised is taken from outside
//! its group while a sibling borrows.
//! So the answer depends on what is placed and on the policy alone, and changes with them: when a gang ends, the
//! next that fits is within nominal from then on.
//!
//! A claimant may have these gangs stopped, of other tenants and only on their side of the lowest tenant that both
//! are below:
//!
//! - of a lower tier, unless it is within nominal there;
//! - of any tier, if it borrows there and the claimant's side stays within its nominal quota with the claimant
//!   counted in: what was borrowed is taken back;
//! - of no higher tier, if it borrows there and has outlived what was expected of it: for the owner of a
//!   reservation;
//! - of no higher tier, if it borrows there and their side holds more than its part by weight without it, while the
//!   claimant's side holds no more than its own with the claimant counted in: where the claimant's tenant has chosen that.
//!
//! A tenant may also have chosen that nobody is stopped for it.
//!
//! Of the same tenant, those of a lower tier, and for the owner of a reservation those of no higher tier that have
//! outlived what was expected of them, within nominal or not: the quota is their tenant's, whichever of its gangs uses
//! it. The guard holds every preemption to that.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::cmp::Reverse;
use muster_types::policy::{NonPreemptible, QueuePreemption};
use muster_types::{JobId, JobSpec, LogIndex, LogTime, Name, PriorityTier};

use muster_journal::{RearrangeCause, Stop, WorkerSlot};

use crate::guard_error::{GuardError, require};
use crate::quota::{QuotaUsage, Side};
use crate::rows::{Charge, JobRow, Phase};
use crate::state::State;

/// Why a gang may be stopped for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PreemptionReason {
    /// It borrows what the claimant's side is promised.
    Reclaim,
    /// It is of a lower tier.
    Tier,
    /// It has outlived what was expected of it, and borrows the time.
    Overrun,
    /// Its side holds more than its part by weight, and the claimant's side less than its own.
    FairShare,
}

/// Whether a gang is a part of the use that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    Yes,
    No,
}

/// Whether a gang is within nominal quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangStanding {
    /// On its own tenant's side and on those of all tenants above.
    WithinNominal,
    /// On some side it borrows what others are promised, or nobody is.
    Borrowing,
    /// Nobody is promised anything of what it holds.
    Unpromised,
}

/// Which gangs of a state are within nominal, side by side; each side is counted when it is first asked about.
#[derive(Debug)]
pub struct NominalCover<'a> {
    state: &'a State,
    /// Gangs and sides counted since it was last asked.
    counted: Cell<u64>,
    known: RefCell<BTreeMap<Side, Arc<BTreeSet<JobId>>>>,
    /// By a side and a type, what all sides next to it hold of that, and their weights: see [`NominalCover::held_next_to`].
    held: RefCell<BTreeMap<(Side, Name), (u128, u128)>>,
}

/// A gang's place in the order in which those of a side are counted: whether it may be stopped, whether it borrows on
/// the side directly below, its tier, and when it was placed.
type Rank = (bool, bool, Reverse<PriorityTier>, LogIndex, JobId);

impl<'a> NominalCover<'a> {
    /// Nothing counted yet.
    #[must_use]
    pub fn of(state: &'a State) -> NominalCover<'a> {
        NominalCover { state, counted: Cell::new(0), known: RefCell::default(), held: RefCell::default() }
    }

    /// The state that it is about.
    #[must_use]
    pub fn state(&self) -> &'a State {
        self.state
    }

    /// How many gangs and sides have been counted since this was last asked, for those who have a budget.
    #[must_use]
    pub fn take_counted(&self) -> u64 {
        self.counted.take()
    }

    /// Whether a gang that holds devices, or is promised some, is within nominal on a side.
    #[must_use]
    pub fn is_within(&self, side: &Side, job: JobId) -> bool {
        self.side(side).contains(&job)
    }

    /// Whether a gang that holds devices is within nominal on every side; none when it holds none.
    #[must_use]
    pub fn standing(&self, job: JobId) -> Option<GangStanding> {
        let (row, spec) = (self.state.job(job)?, self.state.spec(job)?);
        let (region, charge) = row.charge()?;
        let usage = self.state.quota_usage();
        let kinds = charge.devices_milli.iter().map(|(kind, _)| kind);
        let sides: BTreeSet<Side> =
            kinds.flat_map(|kind| usage.sides_of(&spec.tenant, kind, region)).collect();
        if sides.is_empty() {
            return Some(GangStanding::Unpromised);
        }
        let within = sides.iter().all(|side| self.is_within(side, job));
        Some(if within { GangStanding::WithinNominal } else { GangStanding::Borrowing })
    }

    /// Why a gang may be stopped for a claimant, with this in use once those are gone that have been chosen before
    /// it; none when it may not. How long it has run is not asked here.
    #[must_use]
    pub fn may_stop(
        &self,
        usage: &QuotaUsage,
        claimant: &JobSpec,
        victim: JobId,
        now: LogTime,
    ) -> Option<PreemptionReason> {
        let row = self.state.job(victim)?;
        if row.cancel_requested || !matches!(row.phase, Phase::Starting | Phase::Running) {
            return None;
        }
        self.ground(usage, claimant, (victim, Counted::Yes), has_overrun(row, now))
    }

    /// The same for a gang that is not counted in `usage` any more, nor are others that are stopped with it.
    fn may_have_stopped(
        &self,
        usage: &QuotaUsage,
        claimant: &JobSpec,
        victim: JobId,
        now: LogTime,
    ) -> Option<PreemptionReason> {
        let row = self.state.job(victim)?;
        if row.cancel_requested || !matches!(row.phase, Phase::Starting | Phase::Running) {
            return None;
        }
        self.ground(usage, claimant, (victim, Counted::No), has_overrun(row, now))
    }

    /// Why a claimant may take over the capacity that is promised to a gang which holds nothing yet, when `usage` is in use
    /// without the gangs that were chosen before. The grounds are those for stopping the gang once it had begun.
    #[must_use]
    pub fn may_take_over(
        &self,
        usage: &QuotaUsage,
        claimant: &JobSpec,
        holder: JobId,
    ) -> Option<PreemptionReason> {
        let row = self.state.job(holder)?;
        let waits = row.phase == Phase::Pending && row.placement.is_none() && row.promise.is_some();
        if !waits || row.cancel_requested {
            return None;
        }
        self.ground(usage, claimant, (holder, Counted::Yes), false)
    }

    /// Why a claimant goes before a gang that is charged for devices.
    fn ground(
        &self,
        usage: &QuotaUsage,
        claimant: &JobSpec,
        (victim, counted): (JobId, Counted),
        has_overrun: bool,
    ) -> Option<PreemptionReason> {
        let (row, spec) = (self.state.job(victim)?, self.state.spec(victim)?);
        let policy = &self.state.policy().policy;
        let choice = policy.queue_preemption(&claimant.tenant);
        if choice == QueuePreemption::None {
            return None;
        }
        let rules = &policy.preemption;
        let by_tier = rules.enabled && spec.preemptible && spec.tier < claimant.tier;
        let overran =
            has_overrun && policy.backfill.end_overrunners && spec.preemptible && spec.tier <= claimant.tier;
        let without_quota = || {
            if by_tier { Some(PreemptionReason::Tier) } else { overran.then_some(PreemptionReason::Overrun) }
        };
        if spec.tenant == claimant.tenant || !self.state.has_quotas() {
            return without_quota();
        }
        let (our, their) = usage.sides(&claimant.tenant, &spec.tenant)?;
        let (region, charge) = row.charge()?;
        if self.is_within(&their, victim) {
            return None;
        }
        let may_be_taken_back =
            spec.preemptible || policy.rights(&spec.tenant).non_preemptible != NonPreemptible::Always;
        if rules.reclaim_borrowed && may_be_taken_back && stays_within(usage, &our, claimant, region, charge)
        {
            return Some(PreemptionReason::Reclaim);
        }
        // Before overruns: those are stopped by owners of reservations alone.
        let may_even_out =
            choice == QueuePreemption::FairShare && spec.preemptible && spec.tier <= claimant.tier;
        if may_even_out && !by_tier && self.evens_out(usage, (&our, claimant), (&their, charge, counted)) {
            return Some(PreemptionReason::FairShare);
        }
        without_quota()
    }

    /// Whether it brings the shares of two sides nearer to their parts by weight when a claimant of one gets the place of a gang of
    /// the other: the one holds no more than its part with the claimant, and the other no less than its own without the gang. So the
    /// one that gave way has no such right against the other afterwards. A part is of what all sides next to these hold of the type,
    /// by the weights of those that hold some of it, and of the claimant's.
    fn evens_out(
        &self,
        usage: &QuotaUsage,
        (our, claimant): (&Side, &JobSpec),
        (their, charge, counted): (&Side, &Charge, Counted),
    ) -> bool {
        let of_kind = |(kind, milli): &(Name, u64)| {
            let wanted = claimant.least_milli_of(kind);
            if wanted == 0 {
                return false;
            }
            let (all, weights) = self.held_next_to(our, kind);
            let without = usage.used_on(their, kind, None);
            let without = match counted {
                Counted::Yes => without.saturating_sub(*milli),
                Counted::No => without,
            };
            let with = usage.used_on(our, kind, None).saturating_add(wanted);
            // Their parts are all of it times a weight by all weights.
            let is_within = u128::from(with) * weights <= all * u128::from(self.weight_milli(our));
            let is_above = u128::from(without) * weights >= all * u128::from(self.weight_milli(their));
            is_within && is_above
        };
        charge.devices_milli.iter().any(of_kind)
    }

    /// What a side and all next to it hold of a type, and the weights of those that hold some of it and of that side. It is summed up
    /// once: there may be very many tenants, and very many gangs of whom each is asked about.
    fn held_next_to(&self, our: &Side, kind: &Name) -> (u128, u128) {
        let key = (our.clone(), kind.clone());
        if let Some(known) = self.held.borrow().get(&key) {
            return *known;
        }
        let usage = self.state.quota_usage();
        let sides = usage.next_to(our);
        let (mut all, mut weights) = (0_u128, 0_u128);
        for side in &sides {
            let used = usage.used_on(side, kind, None);
            all += u128::from(used);
            if used > 0 || side == our {
                weights += u128::from(self.weight_milli(side));
            }
        }
        self.counted.set(self.counted.get() + sides.len() as u64);
        self.held.borrow_mut().insert(key, (all, weights));
        (all, weights)
    }

    /// The weight of a side next to others; a tenant's own work has the ordinary one.
    fn weight_milli(&self, side: &Side) -> u32 {
        match side {
            Side::Subtree(tenant) => self.state.policy().policy.weight_milli(tenant),
            Side::Own(_) => 1_000,
        }
    }

    /// Whether a gang holds what a claimant's side is promised: it borrows there, and the claimant's side stays within
    /// its nominal quota with the claimant counted in. Whether it may be stopped for that is another question: see
    /// [`NominalCover::may_stop`].
    #[must_use]
    pub fn borrows_from(&self, claimant: &JobSpec, holder: JobId) -> bool {
        let (Some(row), Some(spec)) = (self.state.job(holder), self.state.spec(holder)) else { return false };
        if spec.tenant == claimant.tenant || !self.state.has_quotas() {
            return false;
        }
        let usage = self.state.quota_usage();
        let Some((our, their)) = usage.sides(&claimant.tenant, &spec.tenant) else { return false };
        let Some((region, charge)) = row.charge() else { return false };
        !self.is_within(&their, holder) && stays_within(usage, &our, claimant, region, charge)
    }

    /// Those of a side that are within nominal there.
    fn side(&self, side: &Side) -> Arc<BTreeSet<JobId>> {
        if let Some(known) = self.known.borrow().get(side) {
            return Arc::clone(known);
        }
        let found = Arc::new(self.count(side));
        self.known.borrow_mut().insert(side.clone(), Arc::clone(&found));
        found
    }

    fn count(&self, side: &Side) -> BTreeSet<JobId> {
        let usage = self.state.quota_usage();
        let mut within = BTreeSet::new();
        if !usage.has_promise(side) {
            return within;
        }
        let mut gangs: Vec<(Rank, &Name, &Charge)> = Vec::new();
        // Where nobody below is promised anything of a type, nobody borrows it there.
        let mut is_shared_out: BTreeMap<(&Name, &Name), bool> = BTreeMap::new();
        for tenant in self.state.charged_tenants(side) {
            let below = usage.side_below(side, &tenant).map(|below| self.side(&below));
            for job in self.state.charged_of(&tenant) {
                let Some((rank, region, charge)) = self.ranked(job) else { continue };
                let borrows = below.as_ref().is_some_and(|within| !within.contains(&job)) && {
                    let mut kinds = charge.devices_milli.iter().map(|(kind, _)| kind);
                    kinds.any(|kind| {
                        let known = is_shared_out.entry((kind, region));
                        *known.or_insert_with(|| usage.is_shared_out(side, kind, region))
                    })
                };
                let (is_preemptible, _, tier, since, job) = rank;
                gangs.push(((is_preemptible, borrows, tier, since, job), region, charge));
            }
        }
        self.counted.set(self.counted.get() + gangs.len() as u64);
        gangs.sort_unstable_by_key(|(rank, _, _)| *rank);
        let mut used: BTreeMap<(&Name, Option<&Name>), u64> = BTreeMap::new();
        for ((.., job), region, charge) in gangs {
            if fits(usage, side, &used, region, charge) {
                for (kind, milli) in &charge.devices_milli {
                    *used.entry((kind, Some(region))).or_default() += milli;
                    *used.entry((kind, None)).or_default() += milli;
                }
                within.insert(job);
            }
        }
        within
    }

    fn ranked(&self, job: JobId) -> Option<(Rank, &Name, &Charge)> {
        let (row, spec) = (self.state.job(job)?, self.state.spec(job)?);
        let (region, charge) = row.charge()?;
        let since = match (&row.promise, &row.placement) {
            (Some(promise), _) => promise.since,
            (None, Some(placement)) => placement.token.log_index,
            (None, None) => return None,
        };
        Some(((spec.preemptible, false, Reverse(spec.tier), since, job), region, charge))
    }
}

/// Whether a charge fits into what a side is promised, in addition to its usage. It fits only where the side is
/// promised something of each type.
fn fits(
    usage: &QuotaUsage,
    side: &Side,
    used: &BTreeMap<(&Name, Option<&Name>), u64>,
    region: &Name,
    charge: &Charge,
) -> bool {
    let of_kind = |(kind, milli): &(Name, u64)| {
        let mut promised = false;
        for place in [Some(region), None] {
            let Some(nominal) = usage.nominal_of(side, kind, place) else { continue };
            promised = true;
            let before = used.get(&(kind, place)).copied().unwrap_or(0);
            if before.saturating_add(*milli) > nominal {
                return false;
            }
        }
        promised
    };
    !charge.devices_milli.is_empty() && charge.devices_milli.iter().all(of_kind)
}

/// Whether the claimant's side stays within nominal with it counted in, for some type that the victim holds.
fn stays_within(usage: &QuotaUsage, our: &Side, claimant: &JobSpec, region: &Name, charge: &Charge) -> bool {
    charge.devices_milli.iter().any(|(kind, _)| {
        let wanted = claimant.least_milli_of(kind);
        wanted > 0 && usage.keeps_within(our, &claimant.tenant, kind, region, wanted)
    })
}

/// Whether a gang has run for longer than the p90 of its expected run time.
#[must_use]
pub fn has_overrun(row: &JobRow, now: LogTime) -> bool {
    row.phase == Phase::Running
        && row.started_at.is_some_and(|begun| now.since_ms(begun) > row.estimate.run_high_ms)
}

impl State {
    /// Jobs of a tenant, not of those below it, that are charged for devices.
    pub fn charged_of(&self, tenant: &Name) -> impl Iterator<Item = JobId> {
        self.indexes.charged.get(tenant).into_iter().flat_map(|jobs| jobs.iter().copied())
    }

    /// Tenants of a side that are charged for devices.
    fn charged_tenants(&self, side: &Side) -> Vec<Name> {
        let usage = self.quota_usage();
        match side {
            Side::Own(tenant) => Vec::from([tenant.clone()]),
            Side::Subtree(tenant) => {
                let mut found = usage.listed_below(tenant);
                if usage.is_unlisted(tenant) {
                    found.extend(self.unlisted_tenants());
                }
                found
            }
        }
    }

    /// Tenants that the policy does not name and that are charged for something.
    fn unlisted_tenants(&self) -> Vec<Name> {
        let policy = &self.policy().policy;
        let is_unlisted =
            |tenant: &&Name| !policy.tenants.contains_key(*tenant) && *tenant != policy.unlisted();
        self.indexes.charged.keys().filter(is_unlisted).cloned().collect()
    }

    /// Thousandths of devices that a gang which policy must not stop may have of a type in a region: what its tenant
    /// and those above it have of nominal quota beyond what other such gangs hold. `u64::MAX` where nobody is
    /// promised any, and for a tenant whose gangs may borrow and not be stopped all the same.
    #[must_use]
    pub fn fixed_room_milli(&self, tenant: &Name, kind: &Name, region: &Name) -> u64 {
        self.fixed_room_beside(&self.indexes.fixed_quota, tenant, kind, region)
    }

    /// The same while gangs that policy must not stop hold so much.
    fn fixed_room_beside(&self, fixed: &QuotaUsage, tenant: &Name, kind: &Name, region: &Name) -> u64 {
        let policy = &self.policy().policy;
        let is_free = policy.rights(tenant).non_preemptible == NonPreemptible::Always;
        if is_free || !self.has_quotas() {
            return u64::MAX;
        }
        let headroom = |side: &Side| {
            let places = [Some(region), None];
            let of_place = |place: &Option<&Name>| {
                let nominal = fixed.nominal_of(side, kind, *place)?;
                Some(nominal.saturating_sub(fixed.used_on(side, kind, *place)))
            };
            places.iter().filter_map(of_place).min().unwrap_or(0)
        };
        fixed.sides_of(tenant, kind, region).iter().map(headroom).min().unwrap_or(u64::MAX)
    }
}

/// What the guard holds decisions to.
impl State {
    /// Every gang that is preempted may be stopped for who gets its place.
    pub(crate) fn check_grounds(&self, stops: &[Stop]) -> Result<(), GuardError> {
        let preempted = || {
            stops.iter().filter_map(|stop| match stop.cause {
                RearrangeCause::Preempted { by } => Some((stop.job, by)),
                _ => None,
            })
        };
        if preempted().next().is_none() {
            return Ok(());
        }
        let cover = NominalCover::of(self);
        let usage = self.usage_without(preempted().map(|(job, _)| job));
        for (job, by) in preempted() {
            let claimant = self.specs.get(&by).ok_or(GuardError::JobUnknown)?;
            let ground = cover.may_have_stopped(&usage, claimant, job, self.log_time());
            require(ground.is_some(), GuardError::Protected)?;
        }
        Ok(())
    }

    /// What is used once some gangs are gone.
    #[must_use]
    pub fn usage_without(&self, gone: impl IntoIterator<Item = JobId>) -> QuotaUsage {
        let mut usage = self.quota_usage().clone();
        if !self.has_quotas() {
            return usage;
        }
        for job in gone {
            let (Some(row), Some(spec)) = (self.job(job), self.spec(job)) else { continue };
            let Some((region, charge)) = row.charge() else { continue };
            for (kind, milli) in &charge.devices_milli {
                usage.remove(&spec.tenant, kind, region, *milli);
            }
        }
        usage
    }

    /// Gangs that policy must not stop are within nominal once those that are stopped are gone, unless their tenants
    /// have the right to borrow with them. Those that were stopped themselves and go on elsewhere had it before.
    pub(crate) fn check_fixed(
        &self,
        stopped: &BTreeSet<JobId>,
        gangs: &[(JobId, &JobSpec, &[WorkerSlot])],
    ) -> Result<(), GuardError> {
        let is_fixed = |spec: &JobSpec| !spec.preemptible;
        let is_asked = gangs.iter().any(|(_, spec, _)| is_fixed(spec));
        if !is_asked || !self.has_quotas() {
            return Ok(());
        }
        let mut fixed = self.indexes.fixed_quota.clone();
        for job in stopped {
            let (Some(row), Some(spec)) = (self.job(*job), self.spec(*job)) else { continue };
            let Some((region, charge)) = row.charge().filter(|_| is_fixed(spec)) else { continue };
            for (kind, milli) in &charge.devices_milli {
                fixed.remove(&spec.tenant, kind, region, *milli);
            }
        }
        let asked = gangs.iter().copied().filter(|(_, spec, _)| is_fixed(spec));
        let (goes_on, new): (Vec<_>, Vec<_>) = asked.partition(|(job, _, _)| stopped.contains(job));
        for (job, spec, workers) in goes_on.into_iter().chain(new) {
            let region = self.region_of(workers);
            for (kind, milli) in &self.charge_for(spec, workers).devices_milli {
                let headroom = self.fixed_room_beside(&fixed, &spec.tenant, kind, &region);
                require(stopped.contains(&job) || *milli <= headroom, GuardError::FixedBorrower)?;
                fixed.add(&spec.tenant, kind, &region, *milli);
            }
        }
        Ok(())
    }
}
