//! Tenants and tiers whose jobs a policy would keep from ever starting, by its limits and weights. What quotas and rights do is
//! looked at next to this.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use muster_state::JobAboveLimit;
use muster_types::policy::{OnLimit, Policy, TenantLimits, TenantPolicy};
use muster_types::{JobId, JobSpec, Name, PriorityTier};

use super::{Look, PolicyWarningCode};

/// A limit of a tenant that stops its work where it is zero.
struct Limit {
    field: &'static str,
    of: fn(&TenantLimits) -> Option<u64>,
    /// What follows from zero.
    follows: &'static str,
}

const NOTHING_STARTS: &str = "none of its jobs would start";
const NOTHING_IS_TAKEN: &str = "none of its jobs would be taken";

const LIMITS: [Limit; 13] = [
    Limit { field: "running_jobs", of: |of| of.running_jobs.map(u64::from), follows: NOTHING_STARTS },
    Limit {
        field: "user.running_jobs",
        of: |of| of.user.running_jobs.map(u64::from),
        follows: NOTHING_STARTS,
    },
    Limit { field: "cpu_milli", of: |of| of.cpu_milli, follows: NOTHING_STARTS },
    Limit { field: "memory_bytes", of: |of| of.memory_bytes, follows: NOTHING_STARTS },
    Limit {
        field: "user.devices",
        of: |of| of.user.devices.map(u64::from),
        follows: "none of its jobs with devices would start",
    },
    // A job that waits already may start where such jobs are refused.
    Limit {
        field: "job.max_workers",
        of: |of| of.job.workers_max.map(u64::from),
        follows: "none of its new jobs would start, except in tiers with another limit",
    },
    Limit {
        field: "job.max_devices",
        of: |of| of.job.devices_max.map(u64::from),
        follows: "none of its new jobs with devices would start, except in tiers with another limit",
    },
    Limit { field: "pending_jobs", of: |of| of.pending_jobs.map(u64::from), follows: NOTHING_IS_TAKEN },
    Limit { field: "unfinished_jobs", of: |of| of.unfinished_jobs.map(u64::from), follows: NOTHING_IS_TAKEN },
    Limit {
        field: "requests_per_minute",
        of: |of| of.requests_per_minute.map(u64::from),
        follows: NOTHING_IS_TAKEN,
    },
    Limit {
        field: "user.pending_jobs",
        of: |of| of.user.pending_jobs.map(u64::from),
        follows: NOTHING_IS_TAKEN,
    },
    Limit {
        field: "user.unfinished_jobs",
        of: |of| of.user.unfinished_jobs.map(u64::from),
        follows: NOTHING_IS_TAKEN,
    },
    Limit {
        field: "user.submissions_per_minute",
        of: |of| of.user.submissions_per_minute.map(u64::from),
        follows: NOTHING_IS_TAKEN,
    },
];

/// Jobs that wait now, and those of them that ask for more than a limit lets any job have.
#[derive(Default)]
pub(super) struct Waiting<'a> {
    jobs: BTreeMap<(&'a Name, PriorityTier), u64>,
    /// By tenant, tier and limit: how many, and the first of them.
    above: BTreeMap<(&'a Name, PriorityTier, &'static str), (u64, &'a Name)>,
}

impl<'a> Waiting<'a> {
    /// One more that waits.
    pub(super) fn add(&mut self, look: &Look<'a>, id: JobId, spec: &'a JobSpec) {
        *self.jobs.entry((&spec.tenant, spec.tier)).or_default() += 1;
        if let Some(limit) = limit_above(look, look.policy, id, spec) {
            self.above.entry((&spec.tenant, spec.tier, limit)).or_insert((0, &spec.name)).0 += 1;
        }
    }

    /// How many there are, of one tier or of all, by the tenant that states something which holds for them: the nearest above
    /// each.
    fn by_stating(
        &self,
        policy: &'a Policy,
        tier: Option<PriorityTier>,
        states: impl Fn(&TenantPolicy) -> bool,
    ) -> BTreeMap<&'a Name, u64> {
        let mut counts: BTreeMap<&Name, u64> = BTreeMap::new();
        let counted = self.jobs.iter().filter(|((_, of), _)| tier.is_none_or(|tier| tier == *of));
        for (&(tenant, _), count) in counted {
            let mut above = policy.ancestry(tenant);
            if let Some(stating) = above.find(|name| policy.tenants.get(*name).is_some_and(&states)) {
                *counts.entry(stating).or_default() += count;
            }
        }
        counts
    }
}

/// The limit that a waiting job is above, whatever else runs, where such a job waits for the limit to change.
fn limit_above(look: &Look<'_>, policy: &Policy, id: JobId, spec: &JobSpec) -> Option<&'static str> {
    if !policy.has_limits() {
        return None;
    }
    let devices = policy.user_devices(&spec.tenant).map(|most| u64::from(most) * 1_000);
    if devices.is_some_and(|most_milli| spec.device_milli() > most_milli) {
        return Some("user.devices");
    }
    if policy.on_limit(&spec.tenant) != Some(OnLimit::Hold) {
        return None;
    }
    let spares = look.state.contract(id).map_or(0, |contract| contract.spares);
    let limits = policy.job_limits_of_user(&spec.tenant, spec.tier, look.state.creator(id));
    let above = JobAboveLimit::of(limits, spec, spares).next()?;
    let is_of_all = above.is_above_one_of(policy.job_limits(&spec.tenant, spec.tier));
    Some(if is_of_all { "job" } else { "users" })
}

/// Adds what is to be said of tenants and tiers that would starve.
pub(super) fn look_at<'a>(look: &mut Look<'a>, waiting: Waiting<'a>) {
    zero_limits(look, &waiting);
    tiers_without_submissions(look, &waiting);
    no_weight(look, &waiting);
    let policy = look.policy;
    for ((tenant, tier, limit), (count, first)) in waiting.above {
        let text = format!(
            "{count} waiting {tier} jobs of tenant {tenant}, such as {first}, ask for more than limits.{limit} lets a \
             job have: they would wait for as long as it holds"
        );
        let states = |name: &&Name| policy.tenants.contains_key(*name);
        let stating = policy.ancestry(tenant).find(states);
        let field = stating.map_or_else(String::new, |name| format!("tenants.{name}.limits"));
        look.warn(PolicyWarningCode::TierStarved, field, text);
    }
}

/// How many jobs wait, for the end of a sentence; nothing where none does.
fn waits(count: u64) -> String {
    if count == 0 { String::new() } else { format!("; {count} of its jobs and of those below it wait now") }
}

fn zero_limits<'a>(look: &mut Look<'a>, waiting: &Waiting<'a>) {
    let policy = look.policy;
    for limit in &LIMITS {
        let stated = |tenant: &TenantPolicy| (limit.of)(&tenant.limits);
        let zero = policy.tenants.iter().filter(|(_, tenant)| stated(tenant) == Some(0));
        let mut zero = zero.map(|(name, _)| name).peekable();
        if zero.peek().is_none() {
            continue;
        }
        let counts = waiting.by_stating(policy, None, |tenant| stated(tenant).is_some());
        for tenant in zero {
            let count = waits(counts.get(tenant).copied().unwrap_or_default());
            let field = format!("tenants.{tenant}.limits.{}", limit.field);
            let text = format!("tenant {tenant} has a limit of 0: {}{count}", limit.follows);
            look.warn(PolicyWarningCode::TenantStarved, field, text);
        }
    }
}

/// Tiers of which a tenant may name jobs and submit none.
fn tiers_without_submissions<'a>(look: &mut Look<'a>, waiting: &Waiting<'a>) {
    let policy = look.policy;
    for tier in PriorityTier::ALL {
        let stated = |tenant: &TenantPolicy| tenant.tier_submissions.get(&tier).copied();
        let zero = policy.tenants.iter().filter(|(_, tenant)| stated(tenant) == Some(0));
        let zero = zero.map(|(name, _)| name);
        let mut zero = zero.filter(|name| tier <= policy.rights(name).tier_max).peekable();
        if zero.peek().is_none() {
            continue;
        }
        let counts = waiting.by_stating(policy, Some(tier), |tenant| stated(tenant).is_some());
        for tenant in zero {
            let count = waits(counts.get(tenant).copied().unwrap_or_default());
            let text = format!(
                "tenant {tenant} may make 0 submissions with {tier} jobs in a minute: none would be taken{count}"
            );
            look.warn(PolicyWarningCode::TierStarved, format!("tenants.{tenant}.limits.tiers"), text);
        }
    }
}

/// Tenants with jobs that go behind all those of their siblings, and are guaranteed nothing.
fn no_weight<'a>(look: &mut Look<'a>, waiting: &Waiting<'a>) {
    let policy = look.policy;
    if !policy.order.fair_share || policy.tenants.values().all(|tenant| tenant.weight_milli > 0) {
        return;
    }
    let weighted = policy.tenants.values().filter(|tenant| tenant.weight_milli > 0);
    let with_weight: BTreeSet<Option<&Name>> = weighted.map(|tenant| tenant.parent.as_ref()).collect();
    let counts = waiting.by_stating(policy, None, |tenant| tenant.weight_milli == 0);
    for (name, count) in counts {
        let Some(settings) = policy.tenants.get(name) else { continue };
        let is_guaranteed = settings.quotas.iter().any(|quota| quota.nominal_milli > 0);
        if is_guaranteed || !with_weight.contains(&settings.parent.as_ref()) {
            continue;
        }
        let text = format!(
            "tenant {name} has the weight 0 and is guaranteed nothing: its {count} waiting jobs go behind all those of its \
             siblings, and may never start"
        );
        look.warn(PolicyWarningCode::TenantStarved, format!("tenants.{name}.weight_milli"), text);
    }
}
