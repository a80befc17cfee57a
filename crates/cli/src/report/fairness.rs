//! What tenants were entitled to, what they asked for and what they got, moment by moment, as far as the log tells.
//!
//! Between two rounds nothing changes, so each sum is exact. A tenant counts with everyone below it, as its quota does.
//! **Invariant:** what is borrowed, lent and waited for is compared for each tenant and type, whatever the sums are divided by.

use std::collections::{BTreeMap, BTreeSet};

use muster_ledger::Window;
use muster_state::{Applied, Effect, Phase, State};
use muster_types::policy::Policy;
use muster_types::{ArrayId, JobId, JobSpec, LogTime, Name};

/// What a job or the members of an array have and ask for: thousandths of accelerators by type.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    tenant: Name,
    used: Vec<(String, u64)>,
    asked: Vec<(String, u64)>,
}

impl Claim {
    /// Of a job, as quotas count it; none when it neither has nor asks for anything.
    fn of_job(state: &State, id: JobId) -> Option<Claim> {
        let (row, spec) = (state.job(id)?, state.spec(id)?);
        let charge = row.charge().map(|(_, charge)| charge.devices_milli.as_slice()).unwrap_or_default();
        let used: Vec<_> = charge.iter().map(|(kind, milli)| (kind.to_string(), *milli)).collect();
        // What capacity is kept for is charged already.
        let waits = row.phase == Phase::Pending && row.released && !row.held && row.promise.is_none();
        let asked: Vec<_> = waits.then(|| asked(spec, 1)).flatten().into_iter().collect();
        let is_nothing = used.is_empty() && asked.is_empty();
        (!is_nothing).then(|| Claim { tenant: spec.tenant.clone(), used, asked })
    }

    /// Of the members of an array that could start and are not created as jobs.
    fn of_array(state: &State, id: ArrayId) -> Option<Claim> {
        let row = state.array(id)?;
        let counted = row.unfinished().saturating_sub(state.array_load(id).held);
        let is_throttled = row.template.array.throttle.is_some_and(|most| counted >= most);
        if row.hold.is_some() || !row.released || is_throttled {
            return None;
        }
        let spec = &row.template.spec;
        let asked = Vec::from([asked(spec, row.uncreated)?]);
        Some(Claim { tenant: spec.tenant.clone(), used: Vec::new(), asked })
    }
}

/// What jobs with a specification ask for; none where that is nothing.
fn asked(spec: &JobSpec, jobs: u32) -> Option<(String, u64)> {
    let milli = spec.device_milli().saturating_mul(jobs.into());
    if milli == 0 {
        return None;
    }
    let requests = || spec.groups.iter().filter_map(|group| group.request.accelerators.as_ref());
    let kinds: BTreeSet<&Name> =
        requests().flat_map(|request| request.choices.iter().map(|choice| &choice.kind)).collect();
    let kind = match kinds.first() {
        _ if requests().any(|request| request.choices.is_empty()) => "(any)".to_owned(),
        Some(kind) if kinds.len() == 1 => kind.to_string(),
        _ => "(several)".to_owned(),
    };
    Some((kind, milli))
}

/// A tenant and a type of accelerator.
type Key = (Name, String);

/// Which sums there are. Without tenants, those of the first level are added up, because each counts with everyone below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    /// One for each tenant.
    pub(super) by_tenant: bool,
    /// One for each type of accelerator.
    pub(super) by_type: bool,
}

impl Default for Division {
    fn default() -> Division {
        Division { by_tenant: true, by_type: true }
    }
}

/// What a sum is of; none stands for all tenants of the first level, and for all types.
type SumKey = (Option<Name>, Option<String>);

impl Division {
    /// The sum that a tenant with a tenant above it, or without, counts in; none where the tenant above counts for it.
    fn key(self, parent: Option<&Name>, tenant: &Name, kind: &str) -> Option<SumKey> {
        if !self.by_tenant && parent.is_some() {
            return None;
        }
        Some((self.by_tenant.then(|| tenant.clone()), self.by_type.then(|| kind.to_owned())))
    }
}

/// Of one tenant and type, thousandths of accelerators at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Balance {
    nominal: u64,
    used: u64,
    asked: u64,
}

/// Of one tenant and type, thousandths of accelerators times milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FairnessSum {
    /// What its quotas guarantee.
    pub(super) nominal: u128,
    /// What its jobs were charged for against quotas: from the placement, or from when capacity is kept for them, until they
    /// end or are preempted.
    pub(super) received: u128,
    /// What its jobs that could start and waited asked for.
    pub(super) asked: u128,
    /// What it held beyond its quotas.
    pub(super) borrowed: u128,
    /// What it left unused of its quotas and its siblings borrowed.
    pub(super) lent: u128,
    /// What its waiting jobs asked for and its quotas had left.
    pub(super) entitled: u128,
    /// For how many milliseconds that was not zero.
    pub(super) entitled_ms: u128,
}

impl FairnessSum {
    /// What its jobs held or asked for.
    pub(super) fn demand(&self) -> u128 {
        self.received + self.asked
    }
}

/// Adds up what is so from round to round.
#[derive(Debug, Default)]
pub(super) struct Fairness {
    division: Division,
    window: Window,
    since: LogTime,
    jobs: BTreeMap<JobId, Claim>,
    arrays: BTreeMap<ArrayId, Claim>,
    /// Sums of both by tenant and type, without those below a tenant.
    own: BTreeMap<Key, Balance>,
    /// What quotas guarantee under the policy and the grants in force.
    nominal: BTreeMap<Key, u64>,
    /// By the tenant above and the type, those who share there.
    groups: BTreeMap<(Option<Name>, String), BTreeMap<Name, Balance>>,
    is_stale: bool,
    sums: BTreeMap<SumKey, FairnessSum>,
}

impl Fairness {
    /// Nothing is counted yet.
    pub(super) fn divided(division: Division) -> Fairness {
        Fairness { division, ..Fairness::default() }
    }

    /// Goes on from a state; nothing is counted between the last one and this.
    pub(super) fn begin(&mut self, state: &State, window: Window) {
        (self.window, self.since) = (window, state.log_time());
        let jobs = state.jobs().iter();
        self.jobs = jobs.filter_map(|(id, _)| Some((*id, Claim::of_job(state, *id)?))).collect();
        let arrays = state.arrays().iter();
        self.arrays = arrays.filter_map(|(id, _)| Some((*id, Claim::of_array(state, *id)?))).collect();
        self.own.clear();
        for claim in self.jobs.values().chain(self.arrays.values()) {
            count(&mut self.own, claim, u64::saturating_add);
        }
        self.nominal = nominal(state.effective_policy());
        self.look(state);
    }

    /// Behind each record.
    pub(super) fn after(&mut self, state: &State, applied: &Applied) {
        self.pass(state.log_time());
        self.is_stale |= !applied.effects.is_empty();
        for effect in &applied.effects {
            match effect {
                Effect::JobChanged(job) | Effect::JobForgotten(job) => {
                    let claim = Claim::of_job(state, *job);
                    exchange(&mut self.own, &mut self.jobs, *job, claim);
                    // Members that are created are the array's no more, and others count for its throttle.
                    let member = state.spec(*job).and_then(|spec| spec.array);
                    if let Some(member) = member {
                        self.array(state, ArrayId::of_member(*job, member.ordinal));
                    }
                }
                Effect::ArrayChanged(array) => self.array(state, *array),
                Effect::PolicyChanged => self.nominal = nominal(state.effective_policy()),
                Effect::ClusterChanged
                | Effect::NodeChanged(_)
                | Effect::NodeForgotten(_)
                | Effect::OrdersChanged(_)
                | Effect::HealthPolicyChanged
                | Effect::Diverged { .. } => {}
            }
        }
    }

    /// Behind each round.
    pub(super) fn round_over(&mut self, state: &State) {
        if self.is_stale {
            self.look(state);
        }
    }

    fn array(&mut self, state: &State, id: ArrayId) {
        exchange(&mut self.own, &mut self.arrays, id, Claim::of_array(state, id));
    }

    /// Takes what is so from now on.
    fn look(&mut self, state: &State) {
        self.is_stale = false;
        let policy = &state.policy().policy;
        let mut balances: BTreeMap<Key, Balance> = BTreeMap::new();
        for ((tenant, kind), own) in &self.own {
            for above in policy.ancestry(tenant) {
                let balance = balances.entry((above.clone(), kind.clone())).or_default();
                balance.used = balance.used.saturating_add(own.used);
                balance.asked = balance.asked.saturating_add(own.asked);
            }
        }
        for (key, milli) in &self.nominal {
            balances.entry(key.clone()).or_default().nominal = *milli;
        }
        self.groups.clear();
        for ((tenant, kind), balance) in balances {
            let parent = policy.parent(&tenant).cloned();
            self.groups.entry((parent, kind)).or_default().insert(tenant, balance);
        }
    }

    /// Counts what was so until a time.
    fn pass(&mut self, now: LogTime) {
        let (from, until) = (self.since, now);
        self.since = now;
        let begin = from.max(self.window.from);
        let end = self.window.until.map_or(until, |end| until.min(end));
        let ms = u128::from(end.since_ms(begin));
        if ms == 0 {
            return;
        }
        // Where a sum is of several types or tenants, a moment counts once, however many of them are entitled then.
        let mut entitled_now: BTreeSet<SumKey> = BTreeSet::new();
        for ((parent, kind), members) in &self.groups {
            let unused = |balance: &Balance| balance.nominal.saturating_sub(balance.used);
            let borrowed = |balance: &Balance| balance.used.saturating_sub(balance.nominal);
            let all_unused: u128 = members.values().map(|balance| u128::from(unused(balance))).sum();
            let all_borrowed: u128 = members.values().map(|balance| u128::from(borrowed(balance))).sum();
            let all_lent = all_unused.min(all_borrowed);
            for (tenant, balance) in members {
                // Nobody can tell whose part is lent to whom: each lends in proportion to what it leaves unused.
                let lent = (u128::from(unused(balance)) * all_lent).checked_div(all_unused).unwrap_or(0);
                let entitled = balance.asked.min(unused(balance));
                let Some(key) = self.division.key(parent.as_ref(), tenant, kind) else { continue };
                if entitled > 0 {
                    entitled_now.insert(key.clone());
                }
                let sum = self.sums.entry(key).or_default();
                sum.nominal += u128::from(balance.nominal) * ms;
                sum.received += u128::from(balance.used) * ms;
                sum.asked += u128::from(balance.asked) * ms;
                sum.borrowed += u128::from(borrowed(balance)) * ms;
                sum.lent += lent * ms;
                sum.entitled += u128::from(entitled) * ms;
            }
        }
        for key in entitled_now {
            self.sums.entry(key).or_default().entitled_ms += ms;
        }
    }

    /// The sums that are not all zero, each with its tenant and its type where they are divided by those.
    pub(super) fn sums(&self) -> impl Iterator<Item = (Option<&Name>, Option<&str>, &FairnessSum)> {
        let all = self.sums.iter().filter(|(_, fair)| **fair != FairnessSum::default());
        all.map(|((tenant, kind), fair)| (tenant.as_ref(), kind.as_deref(), fair))
    }
}

/// Adds a claim, or takes it away.
fn count(own: &mut BTreeMap<Key, Balance>, claim: &Claim, by: fn(u64, u64) -> u64) {
    for (kind, milli) in &claim.used {
        let balance = own.entry((claim.tenant.clone(), kind.clone())).or_default();
        balance.used = by(balance.used, *milli);
    }
    for (kind, milli) in &claim.asked {
        let balance = own.entry((claim.tenant.clone(), kind.clone())).or_default();
        balance.asked = by(balance.asked, *milli);
    }
}

/// A claim is this from now on.
fn exchange<K: Ord>(
    own: &mut BTreeMap<Key, Balance>,
    claims: &mut BTreeMap<K, Claim>,
    key: K,
    claim: Option<Claim>,
) {
    if let Some(claim) = &claim {
        count(own, claim, u64::saturating_add);
    }
    let before = match claim {
        Some(claim) => claims.insert(key, claim),
        None => claims.remove(&key),
    };
    if let Some(before) = before {
        count(own, &before, u64::saturating_sub);
        // Tenants come and go with their jobs.
        for (kind, _) in before.used.iter().chain(&before.asked) {
            let key = (before.tenant.clone(), kind.clone());
            if own.get(&key) == Some(&Balance::default()) {
                own.remove(&key);
            }
        }
    }
}

/// What the quotas of each tenant guarantee of a type in all regions: the quota for all regions, or else those of single
/// regions together. A tenant without any is guaranteed what those below it are together.
fn nominal(policy: &Policy) -> BTreeMap<Key, u64> {
    let mut deepest_first: Vec<(usize, &Name)> =
        policy.tenants.keys().map(|name| (policy.ancestry(name).count(), name)).collect();
    deepest_first.sort_by(|a, b| b.cmp(a));
    let mut below: BTreeMap<Key, u64> = BTreeMap::new();
    let mut all = BTreeMap::new();
    for (_, name) in deepest_first {
        let Some(tenant) = policy.tenants.get(name) else { continue };
        let (mut everywhere, mut regions) = (BTreeMap::new(), BTreeMap::new());
        for quota in &tenant.quotas {
            let sums = if quota.region.is_none() { &mut everywhere } else { &mut regions };
            let sum: &mut u64 = sums.entry(quota.kind.to_string()).or_default();
            *sum = sum.saturating_add(quota.nominal_milli);
        }
        let mut stated = regions;
        stated.append(&mut everywhere);
        let behind = below.range((name.clone(), String::new())..);
        for ((_, kind), milli) in behind.take_while(|((parent, _), _)| parent == name) {
            stated.entry(kind.clone()).or_insert(*milli);
        }
        for (kind, milli) in stated {
            if let Some(parent) = &tenant.parent {
                let sum = below.entry((parent.clone(), kind.clone())).or_default();
                *sum = sum.saturating_add(milli);
            }
            all.insert((name.clone(), kind), milli);
        }
    }
    all
}

#[cfg(test)]
#[path = "fairness_tests.rs"]
mod tests;
