//! Who is preempted, and how much harm that does.

use muster_state::quota::QuotaUsage;
use muster_state::{GangStanding, JobRow, NominalCover, PreemptionReason, State};
use muster_types::policy::{Price, QueuePreemption};
use muster_types::{JobId, JobSpec, LogTime, Name, PriorityTier};

/// Ranks of harm: one for gangs that were made to give way a short time ago, one for each tier of gangs that
/// are within their tenant's quota, and one for each tier of gangs that borrow.
pub const HARM_RANKS: usize = 1 + 2 * PriorityTier::ALL.len();

/// What a gang costs to begin again, in addition to what it loses and the time until it has stopped: it is
/// placed, launched and warms up.
const RESTART_MS: u64 = 60_000;

/// What it costs to preempt a gang now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Any cost of a lower rank is worse than every cost of a higher one; below [`HARM_RANKS`].
    pub rank: usize,
    /// Work that has to be done again, and time in which the devices do nothing of use: in thousandths of a
    /// device times milliseconds, times the price of its devices. Never zero.
    pub amount: u128,
}

/// When a gang last saved work that it can read again, in the attempt that runs; none when it has to begin
/// from where this attempt began. Saving is what counts, not where a job says that it will save.
#[must_use]
pub fn saved_at(state: &State, job: JobId) -> Option<LogTime> {
    let row = state.job(job)?;
    let place = state.contract(job).and_then(|contract| contract.checkpoint.place.as_ref());
    let can_be_read = place.is_none_or(|place| {
        let copies = state.policy().policy.datasets.get(place);
        copies.is_some_and(|dataset| !dataset.regions.is_empty())
    });
    row.checkpointed_at.filter(|_| can_be_read)
}

/// Whether a gang goes on from saved work when it is stopped and placed again: it has saved some, or says
/// that it does.
#[must_use]
pub fn resumes(state: &State, job: JobId) -> bool {
    let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { return false };
    let rules = state.contract(job).map(|contract| &contract.checkpoint);
    spec.is_checkpointed()
        || row.checkpointed_at.is_some()
        || state.recovery(job).is_some_and(|recovery| recovery.saved.is_some())
        || rules.is_some_and(|rules| rules.place.is_some() || rules.interval_ms.is_some())
}

/// Work that is lost when a gang is stopped now: its devices times the time since it last saved its work, or
/// since it began, in thousandths of a device times milliseconds.
#[must_use]
pub fn lost_milli_ms(state: &State, job: JobId, now: LogTime) -> u64 {
    let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { return 0 };
    let saved = saved_at(state, job).unwrap_or_else(|| begun_at(row, now));
    held_milli(row, spec).saturating_mul(now.since_ms(saved))
}

fn begun_at(row: &JobRow, now: LogTime) -> LogTime {
    row.started_at.or(row.placement.as_ref().map(|p| p.placed_at)).unwrap_or(now)
}

/// Thousandths of devices that a gang holds. A worker without devices still loses its time.
fn held_milli(row: &JobRow, spec: &JobSpec) -> u64 {
    let workers = row.placement.as_ref().map_or(0, |p| u32::try_from(p.slots.len()).unwrap_or(u32::MAX));
    spec.device_milli_of(workers).max(workers.into())
}

/// Says what it costs to preempt gangs now.
///
/// Work that borrows goes before work within quota, then the lowest tier, then what loses least: the price of
/// the devices times the time since it saved its work, the time that it may take to stop, and that to begin
/// again. A gang that policy stopped within its back-off goes behind all others.
#[derive(Clone, Copy, Debug)]
pub struct Costing<'a> {
    state: &'a State,
    cover: &'a NominalCover<'a>,
    now: LogTime,
    /// Of the types that have a price, in millionths of a dollar for one device and one hour.
    least_price: u64,
}

impl<'a> Costing<'a> {
    /// The costs in this state at this time.
    #[must_use]
    pub fn new(cover: &'a NominalCover<'a>, now: LogTime) -> Costing<'a> {
        let state = cover.state();
        let prices = state.policy().policy.prices.iter();
        let least = prices.filter(|price| price.is_in_force(now)).map(Price::hourly).min();
        Costing { state, cover, now, least_price: least.unwrap_or(1).max(1) }
    }

    /// What it costs to preempt a gang; none when it holds nothing.
    #[must_use]
    pub fn of(&self, job: JobId) -> Option<Cost> {
        let (row, spec) = (self.state.job(job)?, self.state.spec(job)?);
        let (region, charge) = row.charge()?;
        let begun = saved_at(self.state, job).unwrap_or_else(|| begun_at(row, self.now));
        let contract = self.state.contract(job);
        let grace_ms = contract.map_or(spec.stop_grace_ms, |contract| contract.stop_grace_ms(spec));
        let restore_ms = contract.and_then(|contract| contract.checkpoint.save_ms).unwrap_or(0);
        let idle_ms = [self.now.since_ms(begun), grace_ms, restore_ms, RESTART_MS];
        let idle_ms: u128 = idle_ms.into_iter().map(u128::from).sum();
        let price = charge.devices_milli.iter().map(|(kind, _)| self.price(kind, region)).max();
        let price = u128::from(price.unwrap_or(self.least_price));
        let amount = idle_ms.saturating_mul(u128::from(held_milli(row, spec))).saturating_mul(price);
        Some(Cost { rank: self.rank(job, spec), amount: amount.max(1) })
    }

    fn rank(&self, job: JobId, spec: &JobSpec) -> usize {
        if is_backing_off(self.state, job, self.now) {
            return 0;
        }
        let above = PriorityTier::ALL.iter().rev().position(|tier| *tier == spec.tier).unwrap_or(0);
        if self.cover.standing(job) == Some(GangStanding::Borrowing) {
            1 + PriorityTier::ALL.len() + above
        } else {
            1 + above
        }
    }

    /// The price of a device; where the policy names none, the least that it names.
    fn price(&self, kind: &Name, region: &Name) -> u64 {
        self.state.policy().policy.price(kind, region, self.now).unwrap_or(self.least_price).max(1)
    }
}

/// Whether a gang was stopped by policy so short a time ago that others are to go first: within the policy's
/// back-off, which doubles each time.
fn is_backing_off(state: &State, job: JobId, now: LogTime) -> bool {
    let Some(at) = state.times(job).preempted_at else { return false };
    let times = state.job(job).map_or(0, |row| row.preemptions);
    now.since_ms(at) < state.policy().policy.preemption.backoff_after_ms(times)
}

/// Whether policy lets `victim` be stopped for `claimant`, with this in use once those are gone that were chosen before
/// it: as [`NominalCover::may_stop`] says, and not before its minimum run is over.
#[must_use]
pub fn may_make_room(
    cover: &NominalCover<'_>,
    usage: &QuotaUsage,
    claimant: &JobSpec,
    victim: JobId,
    now: LogTime,
) -> bool {
    let has_run = minimum_run_ends(cover.state(), victim, now).is_some_and(|at| at <= now);
    has_run && may_make_room_later(cover, usage, claimant, victim, now)
}

/// The same once the minimum run of `victim` is over, if nothing else changes.
#[must_use]
pub fn may_make_room_later(
    cover: &NominalCover<'_>,
    usage: &QuotaUsage,
    claimant: &JobSpec,
    victim: JobId,
    now: LogTime,
) -> bool {
    cover.may_stop(usage, claimant, victim, now).is_some_and(|ground| ground != PreemptionReason::Overrun)
}

/// When the minimum run of a gang that holds devices is over; none where there is no such job.
#[must_use]
pub fn minimum_run_ends(state: &State, job: JobId, now: LogTime) -> Option<LogTime> {
    let minimum_run_ms = state.policy().policy.preemption.minimum_run_ms;
    state.job(job).map(|row| begun_at(row, now).plus_ms(minimum_run_ms))
}

/// Whether a gang holds anything that a claimant could use: in its regions, of a type it accepts.
#[must_use]
pub fn holds_what_is_wanted(state: &State, claimant: &JobSpec, victim: JobId) -> bool {
    let Some(placement) = state.job(victim).and_then(|row| row.placement.as_ref()) else { return false };
    let allowed = claimant.regions.is_empty() || claimant.regions.contains(&placement.region);
    allowed
        && claimant.groups.iter().any(|group| match &group.request.accelerators {
            None => true,
            Some(request) => placement.charge.devices_milli.iter().any(|(kind, _)| request.accepts(kind)),
        })
}

/// Whether there can be anybody to preempt for a claimant, as far as counters say.
#[must_use]
pub fn has_victims(state: &State, claimant: &JobSpec) -> bool {
    let rules = &state.policy().policy.preemption;
    let choice = state.policy().policy.queue_preemption(&claimant.tenant);
    if choice == QueuePreemption::None {
        return false;
    }
    let takes_back = rules.reclaim_borrowed || choice == QueuePreemption::FairShare;
    if takes_back && state.has_quotas() {
        return state.active().next().is_some();
    }
    let lower = PriorityTier::ALL.into_iter().rev().find(|tier| *tier < claimant.tier);
    rules.enabled && lower.is_some_and(|tier| state.preemptible(tier).next().is_some())
}
