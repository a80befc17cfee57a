//! Who makes room.

use alloc::vec::Vec;
use muster_state::{JobRow, Phase, State};
use muster_types::{JobId, JobSpec, LogTime, PriorityTier, TaskGroup};

/// Running gangs that are looked at for one claimant, those of the lowest tiers that were submitted first.
pub const LOOKED_AT_MAX: usize = 4_096;

/// A running gang that could make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Victim {
    /// Lower tiers go first.
    pub tier: PriorityTier,
    /// Work that would have to be done again, in thousandths of a device times milliseconds.
    pub lost_device_ms: u64,
    /// Which job; of two that lose the same the one submitted last goes first.
    pub job: core::cmp::Reverse<JobId>,
}

/// Work that is lost when a gang is stopped now: its devices times the time since its last checkpoint, or
/// since it began.
#[must_use]
pub fn lost_device_ms(row: &JobRow, spec: &JobSpec, now: LogTime) -> u64 {
    let begun = row.started_at.or(row.placement.as_ref().map(|p| p.placed_at)).unwrap_or(now);
    let saved = row.checkpointed_at.filter(|_| spec.is_checkpointed()).unwrap_or(begun);
    let workers = row.placement.as_ref().map_or(0, |p| p.slots.len() as u64);
    let per_worker = spec.device_milli() / u64::from(spec.worker_count()).max(1);
    // A worker without devices still loses its time.
    per_worker.max(1).saturating_mul(workers).saturating_mul(now.since_ms(saved))
}

/// Whether policy lets `victim` make room for `claimant`.
///
/// A lower tier always; the same tier only when the victim's tenant borrows what the claimant's is
/// promised, in a type and region that the victim holds; a higher tier never.
#[must_use]
pub fn may_make_room(state: &State, claimant: &JobSpec, victim: JobId, now: LogTime) -> bool {
    let rules = &state.policy().policy.preemption;
    let (Some(row), Some(spec)) = (state.job(victim), state.spec(victim)) else { return false };
    if !spec.preemptible || row.cancel_requested || !matches!(row.phase, Phase::Starting | Phase::Running) {
        return false;
    }
    let begun = row.started_at.or(row.placement.as_ref().map(|p| p.placed_at)).unwrap_or(now);
    if now.since_ms(begun) < rules.minimum_run_ms || spec.tier > claimant.tier {
        return false;
    }
    if spec.tier < claimant.tier {
        return rules.enabled;
    }
    let Some((region, charge)) = row.charge() else { return false };
    let usage = state.quota_usage();
    rules.reclaim_borrowed
        && spec.tenant != claimant.tenant
        && charge.devices_milli.iter().any(|(kind, _)| {
            let of_group = |group: &TaskGroup| {
                let accepts = group.request.accelerators.as_ref().is_some_and(|a| a.accepts(kind));
                if accepts { u64::from(group.workers_min) * group.request.device_milli() } else { 0 }
            };
            let wanted: u64 = claimant.groups.iter().map(of_group).sum();
            wanted > 0 && usage.may_reclaim(&claimant.tenant, &spec.tenant, kind, region, wanted)
        })
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

/// The highest tier in which there can be anybody to make room, so that nobody else is looked at.
fn highest_victim_tier(state: &State, claimant: &JobSpec) -> Option<PriorityTier> {
    let rules = &state.policy().policy.preemption;
    if rules.reclaim_borrowed && state.has_quotas() {
        return Some(claimant.tier);
    }
    if !rules.enabled {
        return None;
    }
    PriorityTier::ALL.into_iter().rev().find(|tier| *tier < claimant.tier)
}

/// Gangs that may make room for a claimant, those that lose least of the lowest tier first.
#[must_use]
pub fn victims(state: &State, claimant: &JobSpec, now: LogTime) -> Vec<Victim> {
    let mut found: Vec<Victim> = Vec::new();
    let Some(tier_max) = highest_victim_tier(state, claimant) else { return found };
    let useful = state.preemptible(tier_max).filter(|job| holds_what_is_wanted(state, claimant, *job));
    for job in useful.take(LOOKED_AT_MAX) {
        if !may_make_room(state, claimant, job, now) {
            continue;
        }
        let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { continue };
        found.push(Victim {
            tier: spec.tier,
            lost_device_ms: lost_device_ms(row, spec, now),
            job: core::cmp::Reverse(job),
        });
    }
    found.sort_unstable();
    found
}
