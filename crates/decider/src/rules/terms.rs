//! The terms under which policy lets a job be planned: what a plan may use of quotas, and what it keeps for others.

use alloc::collections::BTreeMap;
use core::cell::RefCell;
use muster_planner::{Budget, Holds, Terms};
use muster_state::{CapacityKey, Interruptions, JobRow, PoolKey, State};
use muster_types::{JobId, JobSpec, LogTime, Name};

use crate::rules::affinity;
use crate::rules::bookings::closures;

/// How much of what its quota allows a gang is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaPart {
    /// What is left of its tenant's nominal quota.
    Nominal,
    /// That, and what it may borrow.
    All,
}

/// The terms under which policy lets a job be planned in this state.
pub(crate) fn with_terms<T>(
    state: &State,
    now: LogTime,
    (job, spec, row): (JobId, &JobSpec, &JobRow),
    holds: &Holds,
    plan: impl FnOnce(&Terms<'_>) -> T,
) -> T {
    with_terms_of(state, now, (job, spec, row), holds, QuotaPart::All, plan)
}

/// The same, and the budget pays for the look at other jobs: for who asks in a state after the other.
pub(crate) fn with_paid_terms<T>(
    state: &State,
    now: LogTime,
    (job, spec, row): (JobId, &JobSpec, &JobRow),
    holds: &Holds,
    budget: &mut Budget,
    plan: impl FnOnce(&Terms<'_>, &mut Budget) -> T,
) -> T {
    with_counted_terms(state, now, (job, spec, row), holds, QuotaPart::All, |terms, looked_at| {
        budget.take(looked_at);
        plan(terms, budget)
    })
}

/// The same with a part of what its quota allows it.
pub(crate) fn with_terms_of<T>(
    state: &State,
    now: LogTime,
    (job, spec, row): (JobId, &JobSpec, &JobRow),
    holds: &Holds,
    quota: QuotaPart,
    plan: impl FnOnce(&Terms<'_>) -> T,
) -> T {
    with_counted_terms(state, now, (job, spec, row), holds, quota, |terms, _| plan(terms))
}

/// The same with how much was looked at of other jobs.
fn with_counted_terms<T>(
    state: &State,
    now: LogTime,
    (job, spec, row): (JobId, &JobSpec, &JobRow),
    holds: &Holds,
    quota: QuotaPart,
    plan: impl FnOnce(&Terms<'_>, u64) -> T,
) -> T {
    // Quota is asked once for each type and region.
    let known: RefCell<BTreeMap<(Name, Name), u64>> = RefCell::default();
    let room_milli = |pool: &PoolKey| -> u64 {
        let Some(kind) = pool.kind.as_ref().filter(|_| state.has_quotas()) else { return u64::MAX };
        let mut known = known.borrow_mut();
        *known.entry((kind.clone(), pool.region.clone())).or_insert_with(|| {
            let capacity = |kind: &Name, region: Option<&Name>| state.registered_milli(kind, region);
            let headroom =
                state.quota_usage().headroom(capacity, &spec.tenant, kind, &pool.region).total_milli();
            let headroom = match quota {
                QuotaPart::Nominal => {
                    let nominal = state.quota_usage().nominal_room_milli(&spec.tenant, kind, &pool.region);
                    headroom.min(nominal.unwrap_or(0))
                }
                QuotaPart::All => headroom,
            };
            // What policy must not stop is not to borrow: nobody could take it back.
            if spec.preemptible {
                return headroom;
            }
            headroom.min(state.fixed_room_milli(&spec.tenant, kind, &pool.region))
        })
    };
    let own_work = |region: &Name, cluster: &Name| {
        let (here, everywhere) = state.work_of(&spec.tenant, region, cluster);
        // Of a gang with devices they are what counts.
        if spec.device_milli() > 0 {
            (here.devices_milli, everywhere.devices_milli)
        } else {
            (here.cpu_milli, everywhere.cpu_milli)
        }
    };
    let seen = OncePerKey::default();
    let interruptions = |key: &CapacityKey| seen.get(key, || state.interruptions(key, now));
    let closures = closures(state, spec, now);
    let affinity = affinity::resolve(state, job, spec);
    let terms = Terms {
        now,
        run_ms: row.estimate.run_high_ms,
        room_milli: &room_milli,
        lanes: &[],
        holds,
        closures: &closures,
        closures_are_indexed: true,
        affinity: &affinity.terms,
        openings: &[],
        image: None,
        policy: &state.policy().policy,
        own_work: &own_work,
        interruptions: &interruptions,
        elastic: spec.is_elastic(),
        valuation: None,
    };
    plan(&terms, affinity.looked_at)
}

/// How often nodes are taken away, each key asked for once: a question may look at very many nodes, which have few keys.
#[derive(Default)]
struct OncePerKey(RefCell<BTreeMap<CapacityKey, Interruptions>>);

impl OncePerKey {
    fn get(&self, key: &CapacityKey, ask: impl FnOnce() -> Interruptions) -> Interruptions {
        if let Some(known) = self.0.borrow().get(key) {
            return *known;
        }
        let answer = ask();
        self.0.borrow_mut().insert(key.clone(), answer);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use muster_types::policy::PurchaseKind;

    #[test]
    fn each_key_is_asked_for_once() {
        let name = |text| Name::new(text).expect("a name");
        let key = |purchase| CapacityKey { region: name("eu"), kind: Some(name("h100")), purchase };
        let (seen, asked) = (OncePerKey::default(), Cell::new(0));
        for _ in 0..1_000 {
            for purchase in [PurchaseKind::Spot, PurchaseKind::OnDemand] {
                let answer = seen.get(&key(purchase), || {
                    asked.set(asked.get() + 1);
                    Interruptions { nodes_up: asked.get(), ..Interruptions::default() }
                });
                assert_eq!(answer.nodes_up, if purchase == PurchaseKind::Spot { 1 } else { 2 });
            }
        }
        assert_eq!(asked.get(), 2);
    }
}
