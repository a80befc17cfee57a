//! What a policy changes at once for what runs, against the one in force.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use muster_state::Phase;
use muster_types::policy::{NonPreemptible, Quota, Window};
use muster_types::{JobId, Name};

use super::{Devices, JOBS_LOOKED_AT_MAX, Look, PolicyWarningCode, place};
use crate::rules::bookings::booked_milli;
use crate::rules::windows::{is_open, may_stay};

/// Adds what is to be said of the change.
pub(super) fn look_at(look: &mut Look<'_>) {
    guarantees(look);
    grants(look);
    bookings(look);
    windows(look);
    rights(look);
}

/// Tenants that would be guaranteed less than before and than they use.
fn guarantees(look: &mut Look<'_>) {
    let before = look.state.effective_policy().clone();
    let after = look.state.effective_under(look.policy);
    for (tenant, settings) in &before.tenants {
        for quota in &settings.quotas {
            let Quota { kind, region, nominal_milli: had, .. } = quota;
            let new = after.tenants.get(tenant);
            let stated = |q: &&Quota| q.kind == *kind && q.region == *region;
            let stated = new.and_then(|new| new.quotas.iter().find(stated));
            // One that states none has what those below it have.
            let groups = || look.policy.tenants.values().any(|below| below.parent.as_ref() == Some(tenant));
            if stated.is_none() && groups() {
                continue;
            }
            let gets = stated.map_or(0, |quota| quota.nominal_milli);
            let used = look.state.quota_usage().used_milli(tenant, kind, region.as_ref());
            if gets >= *had || gets >= used {
                continue;
            }
            let text = format!(
                "tenant {tenant} uses {} devices of type {kind} in {} and would be guaranteed {}, and no longer {}; \
                 what exceeds that can be stopped for others",
                Devices(used),
                place(region.as_ref()),
                Devices(gets),
                Devices(*had)
            );
            look.warn(PolicyWarningCode::GuaranteeBelowUse, look.field_of(tenant), text);
        }
    }
}

/// Grants of quota that would end, because their tenant goes or is moved or because nothing is left for them.
fn grants(look: &mut Look<'_>) {
    let state = look.state;
    for id in state.grants_ended_by(look.policy) {
        let Some(row) = state.quota_grant(id) else { continue };
        let (kind, region) = (&row.grant.kind, &row.grant.region);
        let tenant = &row.grant.tenant;
        let text = format!(
            "grant {id} of {} devices of type {kind} in {} to tenant {tenant} until {} would end at once",
            Devices(row.grant.amount_milli),
            place(region.as_ref()),
            row.grant.until
        );
        look.warn(PolicyWarningCode::GrantEnded, look.field_of(tenant), text);
    }
}

/// Tenants of whose devices more would be booked than they are promised. What is booked stays.
fn bookings(look: &mut Look<'_>) {
    let (state, policy) = (look.state, look.policy);
    if state.booking_count() == 0 {
        return;
    }
    for (tenant, settings) in &state.policy().policy.tenants {
        // The bookings of a tenant that is not listed are over.
        let Some(new) = policy.tenants.get(tenant) else { continue };
        let booked = booked_milli(state, tenant, &[]);
        for Quota { kind, region, nominal_milli: had, .. } in &settings.quotas {
            let stated = new.quotas.iter().find(|quota| quota.kind == *kind && quota.region == *region);
            let gets = stated.map_or(0, |quota| quota.nominal_milli);
            let milli = booked.get(&(kind, region.as_ref())).copied().unwrap_or_default();
            if gets >= *had || gets >= milli {
                continue;
            }
            let text = format!(
                "{} devices of type {kind} in {} are booked for tenant {tenant} and those below it, which would be guaranteed {}, \
                 and no longer {}; the bookings stay, and the tenant books no more until they are within its quota",
                Devices(milli),
                place(region.as_ref()),
                Devices(gets),
                Devices(*had)
            );
            look.warn(PolicyWarningCode::BookingsAboveQuota, look.field_of(tenant), text);
        }
    }
}

/// Windows that stop jobs as soon as the policy is set.
fn windows(look: &mut Look<'_>) {
    let (state, policy) = (look.state, look.policy);
    let now = state.log_time();
    let before = &state.policy().policy.windows;
    let open = policy.windows.iter().enumerate();
    let open = open.filter(|(_, window)| is_open(window, now) && !before.contains(window));
    let open: Vec<(usize, &Window)> = open.collect();
    if open.is_empty() {
        return;
    }
    let mut stopped: BTreeMap<usize, BTreeSet<JobId>> = BTreeMap::new();
    for job in state.active().take(JOBS_LOOKED_AT_MAX) {
        let slots = state.job(job).and_then(|row| row.placement.as_ref()).map(|placement| &placement.slots);
        for slot in slots.into_iter().flatten() {
            for (index, window) in &open {
                if !may_stay(state, policy, &[*window], job, slot.node) {
                    stopped.entry(*index).or_default().insert(job);
                }
            }
        }
    }
    for (index, jobs) in stopped {
        let Some(window) = policy.windows.get(index) else { continue };
        let count = jobs.len();
        let text = format!(
            "window {} is open already: {count} {} there would be stopped at once",
            window.name,
            if count == 1 { "job that runs" } else { "jobs that run" }
        );
        look.warn(PolicyWarningCode::WindowStopsJobs, format!("windows[{index}]"), text);
    }
}

/// Running jobs that say they must not be stopped, of tenants that lose the right to that.
fn rights(look: &mut Look<'_>) {
    let (state, policy) = (look.state, look.policy);
    let before = &state.policy().policy;
    let mut found: BTreeMap<&Name, (u64, &Name)> = BTreeMap::new();
    for job in state.active().take(JOBS_LOOKED_AT_MAX) {
        let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { continue };
        let runs = matches!(row.phase, Phase::Starting | Phase::Running);
        let never = |right: NonPreemptible| right == NonPreemptible::Never;
        if runs
            && !spec.preemptible
            && never(policy.rights(&spec.tenant).non_preemptible)
            && !never(before.rights(&spec.tenant).non_preemptible)
        {
            found.entry(&spec.tenant).or_insert((0, &spec.name)).0 += 1;
        }
    }
    for (tenant, (count, first)) in found {
        let text = format!(
            "{count} running jobs of tenant {tenant}, such as {first}, must not be stopped, and the tenant would \
             lose that right; they stay, and those of them that borrow can be stopped for others"
        );
        look.warn(PolicyWarningCode::RunningWithoutRight, look.field_of(tenant), text);
    }
}
