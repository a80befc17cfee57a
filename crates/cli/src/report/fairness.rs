//! What tenants were entitled to, what they asked for and what they got, moment by moment, as far as the log tells.
//!
//! Between two rounds nothing changes, so each sum is exact. A tenant counts with everyone below it, as its quota does.

use std::collections::{BTreeMap, BTreeSet};

use muster_ledger::Window;
use muster_state::{Applied, Effect, Phase, State};
use muster_types::policy::Policy;
use muster_types::{ArrayId, JobId, JobSpec, LogTime, Name};

/// Thousandths of accelerators that waiting jobs ask for, of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ask {
    tenant: Name,
    kind: String,
    milli: u64,
}

impl Ask {
    /// None for a job without accelerators.
    fn of(spec: &JobSpec, jobs: u32) -> Option<Ask> {
        let milli = spec.device_milli();
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
        let milli = milli.saturating_mul(jobs.into());
        Some(Ask { tenant: spec.tenant.clone(), kind, milli })
    }

    /// Of a job that could start and is pending.
    fn of_job(state: &State, id: JobId) -> Option<Ask> {
        let (row, spec) = (state.job(id)?, state.spec(id)?);
        let waits = row.phase == Phase::Pending && row.released && !row.held;
        waits.then(|| Ask::of(spec, 1)).flatten()
    }

    /// Of the members of an array that could start and are not created as jobs.
    fn of_array(state: &State, id: ArrayId) -> Option<Ask> {
        let row = state.array(id)?;
        let counted = row.unfinished().saturating_sub(state.array_load(id).held);
        let is_throttled = row.template.array.throttle.is_some_and(|most| counted >= most);
        let waits = row.hold.is_none() && row.released && !is_throttled && row.uncreated > 0;
        waits.then(|| Ask::of(&row.template.spec, row.uncreated)).flatten()
    }
}

/// A tenant and a type of accelerator.
type Key = (Name, String);

/// Of one tenant and type, thousandths of accelerators at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moment {
    nominal: u64,
    used: u64,
    asked: u64,
}

/// Of one tenant and type, thousandths of accelerators times milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fair {
    /// What its quotas guarantee.
    pub(super) nominal: u128,
    /// What its jobs held.
    pub(super) received: u128,
    /// What its waiting jobs asked for.
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

impl Fair {
    /// What its jobs held or asked for.
    pub(super) fn demand(&self) -> u128 {
        self.received + self.asked
    }
}

/// Adds up what is so from round to round.
#[derive(Debug, Default)]
pub(super) struct Fairness {
    window: Window,
    since: LogTime,
    jobs: BTreeMap<JobId, Ask>,
    arrays: BTreeMap<ArrayId, Ask>,
    /// Sums of both by tenant and type.
    asked: BTreeMap<Key, u64>,
    /// What quotas guarantee under the policy in force.
    nominal: BTreeMap<Key, u64>,
    /// By the tenant above and the type, those who share there.
    groups: BTreeMap<(Option<Name>, String), BTreeMap<Name, Moment>>,
    is_stale: bool,
    sums: BTreeMap<Key, Fair>,
}

impl Fairness {
    /// Goes on from a state; nothing is counted between the last one and this.
    pub(super) fn begin(&mut self, state: &State, window: Window) {
        (self.window, self.since) = (window, state.log_time());
        self.jobs = state.jobs().iter().filter_map(|(id, _)| Some((*id, Ask::of_job(state, *id)?))).collect();
        self.arrays =
            state.arrays().iter().filter_map(|(id, _)| Some((*id, Ask::of_array(state, *id)?))).collect();
        self.asked.clear();
        for ask in self.jobs.values().chain(self.arrays.values()) {
            *self.asked.entry((ask.tenant.clone(), ask.kind.clone())).or_default() += ask.milli;
        }
        self.nominal = nominal(&state.policy().policy);
        self.look(state);
    }

    /// Behind each record.
    pub(super) fn after(&mut self, state: &State, applied: &Applied) {
        self.pass(state.log_time());
        self.is_stale |= !applied.effects.is_empty();
        for effect in &applied.effects {
            match effect {
                Effect::JobChanged(job) | Effect::JobForgotten(job) => {
                    let ask = Ask::of_job(state, *job);
                    let before = replaced(&mut self.jobs, *job, ask.clone());
                    self.change(before, ask);
                    // Members that are created are the array's no more, and others count for its throttle.
                    let member = state.spec(*job).and_then(|spec| spec.array);
                    if let Some(member) = member {
                        self.array(state, ArrayId::of_member(*job, member.ordinal));
                    }
                }
                Effect::ArrayChanged(array) => self.array(state, *array),
                Effect::PolicyChanged => self.nominal = nominal(&state.policy().policy),
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
        let ask = Ask::of_array(state, id);
        let before = replaced(&mut self.arrays, id, ask.clone());
        self.change(before, ask);
    }

    fn change(&mut self, before: Option<Ask>, after: Option<Ask>) {
        if before == after {
            return;
        }
        if let Some(ask) = before {
            let key = (ask.tenant, ask.kind);
            let left = self.asked.get(&key).copied().unwrap_or(0).saturating_sub(ask.milli);
            if left == 0 {
                self.asked.remove(&key);
            } else {
                self.asked.insert(key, left);
            }
        }
        if let Some(ask) = after {
            let sum = self.asked.entry((ask.tenant, ask.kind)).or_default();
            *sum = sum.saturating_add(ask.milli);
        }
    }

    /// Takes what is so from now on.
    fn look(&mut self, state: &State) {
        self.is_stale = false;
        let policy = &state.policy().policy;
        let mut moments: BTreeMap<Key, Moment> = BTreeMap::new();
        for ((tenant, kind, _), milli) in state.quota_usage().own() {
            for above in policy.ancestry(tenant) {
                moments.entry((above.clone(), kind.to_string())).or_default().used += milli;
            }
        }
        for ((tenant, kind), milli) in &self.asked {
            for above in policy.ancestry(tenant) {
                let moment = moments.entry((above.clone(), kind.clone())).or_default();
                moment.asked = moment.asked.saturating_add(*milli);
            }
        }
        for (key, milli) in &self.nominal {
            moments.entry(key.clone()).or_default().nominal = *milli;
        }
        self.groups.clear();
        for ((tenant, kind), moment) in moments {
            let parent = policy.parent(&tenant).cloned();
            self.groups.entry((parent, kind)).or_default().insert(tenant, moment);
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
        for ((_, kind), members) in &self.groups {
            let unused = |moment: &Moment| moment.nominal.saturating_sub(moment.used);
            let borrowed = |moment: &Moment| moment.used.saturating_sub(moment.nominal);
            let all_unused: u128 = members.values().map(|moment| u128::from(unused(moment))).sum();
            let all_borrowed: u128 = members.values().map(|moment| u128::from(borrowed(moment))).sum();
            let all_lent = all_unused.min(all_borrowed);
            for (tenant, moment) in members {
                // Nobody can tell whose part is lent to whom: each lends in proportion to what it leaves unused.
                let lent = (u128::from(unused(moment)) * all_lent).checked_div(all_unused).unwrap_or(0);
                let entitled = moment.asked.min(unused(moment));
                let sum = self.sums.entry((tenant.clone(), kind.clone())).or_default();
                sum.nominal += u128::from(moment.nominal) * ms;
                sum.received += u128::from(moment.used) * ms;
                sum.asked += u128::from(moment.asked) * ms;
                sum.borrowed += u128::from(borrowed(moment)) * ms;
                sum.lent += lent * ms;
                sum.entitled += u128::from(entitled) * ms;
                sum.entitled_ms += if entitled > 0 { ms } else { 0 };
            }
        }
    }

    /// The sums by tenant and type, those that are not all zero.
    pub(super) fn sums(&self) -> impl Iterator<Item = (&Name, &str, &Fair)> {
        let all = self.sums.iter().filter(|(_, fair)| **fair != Fair::default());
        all.map(|((tenant, kind), fair)| (tenant, kind.as_str(), fair))
    }
}

fn replaced<K: Ord>(asks: &mut BTreeMap<K, Ask>, key: K, ask: Option<Ask>) -> Option<Ask> {
    match ask {
        Some(ask) => asks.insert(key, ask),
        None => asks.remove(&key),
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
