//! What a replay comes to for each tenant.

use std::collections::BTreeMap;

use muster_types::Name;
use muster_types::policy::Policy;
use serde::Serialize;

use crate::summary::{Quantiles, device_hours};

/// What came of one tenant's jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantReport {
    /// The tenant, as the policy names it.
    pub tenant: String,
    /// Whether the policy lists it; one that it does not list is below the tenant `unlisted`.
    pub listed: bool,
    /// Jobs in the trace.
    pub jobs: u64,
    /// Jobs that ran to their end.
    pub finished: u64,
    /// Jobs that the policy refused at submission.
    pub refused: u64,
    /// Jobs that still waited when nothing more was to come.
    pub unfinished: u64,
    /// From submission to the start of the run that counted, of jobs that ran to their end.
    pub queueing: Quantiles,
    /// Device-hours held by gangs within nominal quota, or of types that nobody has a quota for.
    pub device_hours_within_nominal: f64,
    /// Device-hours held by gangs that borrow.
    pub device_hours_borrowed: f64,
    /// Times that one of its gangs was stopped by policy: preempted, moved, or for a window.
    pub stopped_by_policy: u64,
    /// Device-hours of the runs that were lost so.
    pub device_hours_lost: f64,
}

/// Counts of one tenant.
#[derive(Default)]
struct Count {
    jobs: u64,
    refused: u64,
    unfinished: u64,
    stopped: u64,
    waits_ms: Vec<u64>,
    held_milli: u64,
    borrowed_milli: u64,
    since_ms: u64,
    /// Milli-devices times milliseconds.
    held: u128,
    borrowed: u128,
    lost: u128,
}

impl Count {
    /// Counts what was held until now.
    fn until(&mut self, now_ms: u64) {
        let ms = u128::from(now_ms - self.since_ms);
        self.held += u128::from(self.held_milli) * ms;
        self.borrowed += u128::from(self.borrowed_milli.min(self.held_milli)) * ms;
        self.since_ms = now_ms;
    }
}

/// Sums by tenant. Time given never goes back.
#[derive(Default)]
pub(crate) struct Tenants {
    counts: BTreeMap<Name, Count>,
}

impl Tenants {
    fn count(&mut self, tenant: &Name) -> &mut Count {
        if !self.counts.contains_key(tenant) {
            self.counts.insert(tenant.clone(), Count::default());
        }
        self.counts.get_mut(tenant).expect("it was inserted if it was not there")
    }

    pub(crate) fn submitted(&mut self, tenant: &Name) {
        self.count(tenant).jobs += 1;
    }

    pub(crate) fn refused(&mut self, tenant: &Name) {
        self.count(tenant).refused += 1;
    }

    pub(crate) fn unfinished(&mut self, tenant: &Name) {
        self.count(tenant).unfinished += 1;
    }

    pub(crate) fn finished(&mut self, tenant: &Name, wait_ms: u64) {
        self.count(tenant).waits_ms.push(wait_ms);
    }

    pub(crate) fn stopped(&mut self, tenant: &Name) {
        self.count(tenant).stopped += 1;
    }

    /// A run of this many milli-devices times milliseconds was for nothing, because policy stopped it.
    pub(crate) fn lost(&mut self, tenant: &Name, milli_ms: u128) {
        self.count(tenant).lost += milli_ms;
    }

    pub(crate) fn hold(&mut self, tenant: &Name, now_ms: u64, milli: u64) {
        let count = self.count(tenant);
        count.until(now_ms);
        count.held_milli += milli;
    }

    pub(crate) fn release(&mut self, tenant: &Name, now_ms: u64, milli: u64) {
        let count = self.count(tenant);
        count.until(now_ms);
        count.held_milli -= milli;
    }

    /// What each tenant borrows from now on; those that are not named borrow nothing.
    pub(crate) fn borrowing(&mut self, now_ms: u64, borrowed: &BTreeMap<Name, u64>) {
        for (tenant, count) in &mut self.counts {
            let milli = borrowed.get(tenant).copied().unwrap_or_default();
            if milli != count.borrowed_milli {
                count.until(now_ms);
                count.borrowed_milli = milli;
            }
        }
    }

    /// The report, those that held most first. `policy` is the one that says who is listed.
    pub(crate) fn close(mut self, now_ms: u64, policy: Option<&Policy>) -> Vec<TenantReport> {
        self.counts.values_mut().for_each(|count| count.until(now_ms));
        let mut counts: Vec<(Name, Count)> = self.counts.into_iter().collect();
        counts.sort_by(|(a, one), (b, other)| other.held.cmp(&one.held).then_with(|| a.cmp(b)));
        let report = |(tenant, mut count): (Name, Count)| {
            count.waits_ms.sort_unstable();
            TenantReport {
                listed: policy.is_some_and(|policy| policy.tenants.contains_key(&tenant)),
                tenant: tenant.to_string(),
                jobs: count.jobs,
                finished: count.waits_ms.len() as u64,
                refused: count.refused,
                unfinished: count.unfinished,
                queueing: Quantiles::of(&count.waits_ms),
                device_hours_within_nominal: device_hours(count.held - count.borrowed),
                device_hours_borrowed: device_hours(count.borrowed),
                stopped_by_policy: count.stopped,
                device_hours_lost: device_hours(count.lost),
            }
        };
        counts.into_iter().map(report).collect()
    }

    /// Tenants of the policy that no job of the trace was for.
    pub(crate) fn without_jobs<'a>(&self, policy: &'a Policy) -> Vec<&'a Name> {
        let has_jobs = |name: &Name| self.counts.get(name).is_some_and(|count| count.jobs > 0);
        // A tenant with others below it need not have any jobs itself.
        let groups = |name: &Name| policy.tenants.values().any(|tenant| tenant.parent.as_ref() == Some(name));
        let unused = |name: &&Name| !has_jobs(name) && !groups(name) && *name != policy.unlisted();
        policy.tenants.keys().filter(unused).collect()
    }

    /// Tenants of the trace that the policy does not list.
    pub(crate) fn unlisted(&self, policy: &Policy) -> Vec<&Name> {
        self.counts.keys().filter(|name| !policy.tenants.contains_key(*name)).collect()
    }
}
