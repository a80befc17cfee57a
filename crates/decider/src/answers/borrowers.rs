//! Who borrows what a waiting job's tenant is promised, and what keeps it from coming back.
//!
//! **Invariant:** the rules are the state's ([`NominalCover`]); nothing here decides.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use muster_policy::holds_what_is_wanted;
use muster_state::{JobRow, NominalCover, Phase, PreemptionReason, State};
use muster_types::{JobId, JobSpec, LogTime, Name, Span};

/// Groups of borrowers that are listed.
const BORROWERS_MAX: usize = 8;

/// What gangs have in common that are listed together: tenant, type, region, and the code of what hinders.
type Group = (Name, Name, Name, Option<&'static str>);

/// Gangs that one explanation looks at.
const LOOKED_AT_MAX: usize = 10_000;

/// What keeps borrowed devices from coming back now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hindrance {
    /// Policy stops nobody who has run for so short a time.
    MinimumRun {
        /// When the first of these gangs has run for long enough.
        until: LogTime,
        /// The time until then.
        left_ms: u64,
    },
    /// They are stopping.
    Stopping,
    /// Their tenant has the right to borrow for gangs that policy must not stop.
    NotPreemptible,
    /// The policy takes nothing back.
    ReclaimOff,
}

impl Hindrance {
    /// Stable code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Hindrance::MinimumRun { .. } => "MINIMUM_RUN",
            Hindrance::Stopping => "STOPPING",
            Hindrance::NotPreemptible => "NOT_PREEMPTIBLE",
            Hindrance::ReclaimOff => "RECLAIM_OFF",
        }
    }
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hindrance::MinimumRun { left_ms, .. } => {
                let left = Span(left_ms.div_ceil(1_000) * 1_000);
                write!(f, "they may run for the policy's minimum first, the first of them for {left} more")
            }
            Hindrance::Stopping => f.write_str("they are stopping"),
            Hindrance::NotPreemptible => {
                f.write_str("they must not be stopped: the tenant has that right even where it borrows")
            }
            Hindrance::ReclaimOff => f.write_str("the policy takes nothing back: reclaimBorrowed is off"),
        }
    }
}

/// What a tenant borrows of what the job's tenant is promised, of one type in one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Borrower {
    /// Who borrows.
    pub tenant: Name,
    /// The type of accelerator.
    pub kind: Name,
    /// The region.
    pub region: Name,
    /// In thousandths of a device.
    pub devices_milli: u64,
    /// The number of jobs that hold them.
    pub jobs: u64,
    /// The largest of these jobs.
    pub largest: JobId,
    /// What keeps them from coming back now; none where they can be taken back.
    pub hindrance: Option<Hindrance>,
}

impl fmt::Display for Borrower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Borrower { tenant, kind, region, jobs, largest, .. } = self;
        let plural = if *jobs == 1 { "job" } else { "jobs" };
        let devices = devices(self.devices_milli);
        write!(
            f,
            "tenant {tenant} borrows {devices} {kind} in {region} in {jobs} {plural} (such as {largest})"
        )?;
        match self.hindrance {
            Some(hindrance) => write!(f, "; {hindrance}"),
            None => f.write_str("; they can be taken back"),
        }
    }
}

/// Thousandths of devices as people write them.
pub(crate) fn devices(milli: u64) -> String {
    let (whole, rest) = (milli / 1_000, milli % 1_000);
    let plural = if milli == 1_000 { "device" } else { "devices" };
    if rest == 0 {
        return format!("{whole} {plural} of");
    }
    let digits = format!("{rest:03}");
    format!("{whole}.{} {plural} of", digits.trim_end_matches('0'))
}

/// Those that hold what a job could use and its tenant is promised, those that hold most first.
pub(crate) fn borrowers(state: &State, now: LogTime, claimant: &JobSpec) -> Vec<Borrower> {
    if !state.has_quotas() {
        return Vec::new();
    }
    let cover = NominalCover::of(state);
    let mut found: BTreeMap<Group, (Borrower, u64)> = BTreeMap::new();
    for job in state.active().take(LOOKED_AT_MAX) {
        let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { continue };
        if !holds_what_is_wanted(state, claimant, job) || !cover.borrows_from(claimant, job) {
            continue;
        }
        let Some((region, charge)) = row.charge() else { continue };
        let hindrance = hindrance(&cover, claimant, job, row, now);
        for (kind, milli) in &charge.devices_milli {
            let key = (spec.tenant.clone(), kind.clone(), region.clone(), hindrance.map(Hindrance::code));
            let fresh = || {
                let borrower = Borrower {
                    tenant: spec.tenant.clone(),
                    kind: kind.clone(),
                    region: region.clone(),
                    devices_milli: 0,
                    jobs: 0,
                    largest: job,
                    hindrance,
                };
                (borrower, 0)
            };
            let (borrower, largest) = found.entry(key).or_insert_with(fresh);
            borrower.devices_milli = borrower.devices_milli.saturating_add(*milli);
            borrower.jobs += 1;
            // Of those that have yet to run for their minimum, the first time counts.
            borrower.hindrance = borrower.hindrance.min(hindrance);
            if *milli > *largest {
                (borrower.largest, *largest) = (job, *milli);
            }
        }
    }
    let mut found: Vec<Borrower> = found.into_values().map(|(borrower, _)| borrower).collect();
    found.sort_by(|one, other| {
        let rank = |b: &Borrower| (core::cmp::Reverse(b.devices_milli), b.largest);
        rank(one).cmp(&rank(other))
    });
    found.truncate(BORROWERS_MAX);
    found
}

fn hindrance(
    cover: &NominalCover<'_>,
    claimant: &JobSpec,
    job: JobId,
    row: &JobRow,
    now: LogTime,
) -> Option<Hindrance> {
    let state = cover.state();
    let rules = &state.policy().policy.preemption;
    if matches!(row.phase, Phase::Stopping(_)) || row.cancel_requested {
        return Some(Hindrance::Stopping);
    }
    if !rules.reclaim_borrowed {
        return Some(Hindrance::ReclaimOff);
    }
    match cover.may_stop(state.quota_usage(), claimant, job, now) {
        Some(PreemptionReason::Reclaim | PreemptionReason::Tier | PreemptionReason::FairShare) => {
            let begun = row.started_at.or(row.placement.as_ref().map(|placement| placement.placed_at));
            let until = begun.unwrap_or(now).plus_ms(rules.minimum_run_ms);
            (until > now).then(|| Hindrance::MinimumRun { until, left_ms: until.since_ms(now) })
        }
        Some(PreemptionReason::Overrun) | None => Some(Hindrance::NotPreemptible),
    }
}

/// The same as a clause behind the reason why a job waits; empty where nobody borrows.
pub(crate) fn clause(borrowers: &[Borrower], tenant: &Name) -> String {
    let Some(first) = borrowers.first() else { return String::new() };
    let more = if borrowers.len() > 1 { "; and others borrow as well" } else { "" };
    format!("; of what tenant {tenant} is promised, {first}{more}")
}
