//! What a grant of quota would displace, on the fleet and the jobs as they are.
//!
//! **Invariant:** the rules are the state's ([`NominalCover`]); nothing here decides, and what is looked at is bounded.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use muster_state::{Forecast, NominalCover, State};
use muster_types::policy::{NonPreemptible, QuotaGrant};
use muster_types::{JobId, Name};

/// Jobs that one answer looks at.
const LOOKED_AT_MAX: usize = 10_000;

/// Tenants, and jobs of all of them, that one answer lists.
const LISTED_MAX: usize = 16;

/// What a tenant holds that another could take back once it is granted more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisplacedBorrower {
    /// Who borrows.
    pub tenant: Name,
    /// In thousandths of a device.
    pub devices_milli: u64,
    /// The number of jobs that hold them.
    pub jobs: u64,
}

/// What a grant would mean at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaImpact {
    /// Thousandths of devices of the type that are registered where the grant is for.
    pub capacity_milli: u64,
    /// Those of them that nobody is charged for.
    pub free_milli: u64,
    /// What all tenants would be guaranteed together.
    pub guaranteed_milli: u64,
    /// How much of the grant could be had at once only from others: it less what is free, at most what those below hold.
    pub displaced_milli: u64,
    /// Those whose jobs could be stopped for the tenant that cannot be now, who hold most first; at most 16.
    pub borrowers: Vec<DisplacedBorrower>,
    /// Such jobs, the first of them; at most 16.
    pub jobs: Vec<JobId>,
    /// How many such jobs there are.
    pub jobs_count: u64,
    /// Whether there are more jobs on the cluster than were looked at.
    pub is_cut: bool,
}

/// What a grant that is not in force would displace.
#[must_use]
pub fn quota_impact(state: &State, grant: &QuotaGrant) -> QuotaImpact {
    let mut with = Forecast::new(state);
    with.grant(grant);
    let region = grant.region.as_ref();
    let capacity_milli = state.registered_milli(&grant.kind, region);
    let mut used_milli: u64 = 0;
    for ((_, kind, place), milli) in with.quota_usage().own() {
        if *kind == grant.kind && region.is_none_or(|region| region == place) {
            used_milli = used_milli.saturating_add(milli);
        }
    }
    let free_milli = capacity_milli.saturating_sub(used_milli);
    let mut impact = QuotaImpact {
        capacity_milli,
        free_milli,
        guaranteed_milli: with.quota_usage().promised_to_all(&grant.kind, region).unwrap_or(0),
        ..QuotaImpact::default()
    };
    if state.policy().policy.preemption.reclaim_borrowed {
        look_at_jobs(state, &with, grant, &mut impact);
    }
    let held = impact.borrowers.iter().fold(0u64, |sum, borrower| sum.saturating_add(borrower.devices_milli));
    impact.displaced_milli = grant.amount_milli.saturating_sub(free_milli).min(held);
    impact.borrowers.sort_by_key(|borrower| (Reverse(borrower.devices_milli), borrower.tenant.clone()));
    impact.borrowers.truncate(LISTED_MAX);
    impact
}

fn look_at_jobs(state: &State, with: &State, grant: &QuotaGrant, impact: &mut QuotaImpact) {
    let (now_cover, then_cover) = (NominalCover::of(state), NominalCover::of(with));
    let mut by_tenant: BTreeMap<Name, DisplacedBorrower> = BTreeMap::new();
    let mut active = state.active();
    for job in active.by_ref().take(LOOKED_AT_MAX) {
        let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { continue };
        let Some((region, charge)) = row.charge() else { continue };
        let is_there = grant.region.as_ref().is_none_or(|wanted| wanted == region);
        let milli =
            charge.devices_milli.iter().find(|(kind, _)| *kind == grant.kind).map_or(0, |(_, milli)| *milli);
        let always = || state.policy().policy.rights(&spec.tenant).non_preemptible == NonPreemptible::Always;
        if !is_there || milli == 0 || spec.tenant == grant.tenant || (!spec.preemptible && always()) {
            continue;
        }
        let is_taken =
            |cover: &NominalCover<'_>| could_be_taken(cover, grant, &spec.tenant, job, (region, milli));
        if is_taken(&now_cover) || !is_taken(&then_cover) {
            continue;
        }
        impact.jobs_count += 1;
        if impact.jobs.len() < LISTED_MAX {
            impact.jobs.push(job);
        }
        let fresh = || DisplacedBorrower { tenant: spec.tenant.clone(), devices_milli: 0, jobs: 0 };
        let borrower = by_tenant.entry(spec.tenant.clone()).or_insert_with(fresh);
        borrower.devices_milli = borrower.devices_milli.saturating_add(milli);
        borrower.jobs += 1;
    }
    impact.is_cut = active.next().is_some();
    impact.borrowers = by_tenant.into_values().collect();
}

/// Whether a job borrows on its tenant's side what the grant's tenant could use within its own quota: the job's devices, or
/// what the grant is of them.
fn could_be_taken(
    cover: &NominalCover<'_>,
    grant: &QuotaGrant,
    tenant: &Name,
    job: JobId,
    (region, milli): (&Name, u64),
) -> bool {
    let usage = cover.state().quota_usage();
    let Some((our, their)) = usage.sides(&grant.tenant, tenant) else { return false };
    let wanted = milli.min(grant.amount_milli);
    !cover.is_within(&their, job) && usage.keeps_within(&our, &grant.tenant, &grant.kind, region, wanted)
}
