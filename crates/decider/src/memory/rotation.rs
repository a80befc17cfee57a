//! What passes over the pending queue leave for each other, so that a gang that is behind a limit of one pass has
//! a turn in a later one: how far each tenant's requests were looked at, what those who wait could use, and who grew
//! last. Searches for gangs to preempt have a separate memory, because what happens between passes is part of it:
//! [`super::searches`].
//!
//! Kept by the leader alone and in no record: a new leader begins without, and everybody has a turn again.

use alloc::collections::BTreeSet;
use muster_policy::{Marks, places_wanted};
use muster_state::{PoolKey, State};
use muster_types::{JobId, Name, TaskGroup};

use crate::memory::counted_waiters::CountedWaiters;
use crate::rules::planned::planned_spec;

/// What passes leave for each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct PassMemory {
    marks: Marks,
    /// What those who wait could use, as far as passes have seen that do not look at all of them.
    wanted: WantedPools,
    /// The gang that was last looked at for growing.
    last_grown: Option<JobId>,
    /// Who waits for licences, or for limits on CPUs and memory.
    waiters: CountedWaiters,
}

impl PassMemory {
    pub(crate) fn take_marks(&mut self) -> Marks {
        core::mem::take(&mut self.marks)
    }

    pub(crate) fn leave_marks(&mut self, marks: Marks) {
        self.marks = marks;
    }

    pub(crate) fn waiters(&mut self) -> &mut CountedWaiters {
        &mut self.waiters
    }

    pub(crate) fn last_grown(&self) -> Option<JobId> {
        self.last_grown
    }

    pub(crate) fn set_last_grown(&mut self, job: JobId) {
        self.last_grown = Some(job);
    }

    /// What those who wait could use, by a pass that has or has not looked at all of them.
    pub(crate) fn wanted_by_all(&mut self, seen: WantedPools, is_cut: bool) -> WantedPools {
        if is_cut {
            self.wanted.pools.extend(seen.pools);
            self.wanted.clone()
        } else {
            self.wanted = WantedPools::default();
            seen
        }
    }
}

/// Pools that gangs could use which wait for capacity.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedPools {
    pools: BTreeSet<PoolKey>,
    /// By tenant and places: seen already.
    seen: BTreeSet<(Name, u64)>,
}

impl WantedPools {
    pub(crate) fn contains(&self, pool: &PoolKey) -> bool {
        self.pools.contains(pool)
    }

    /// A gang waits.
    pub(crate) fn add(&mut self, state: &State, job: JobId) {
        // Where its checkpoints cannot be read it can use nothing.
        let Some(spec) = planned_spec(state, job) else { return };
        if !self.seen.insert((spec.tenant.clone(), places_wanted(&spec))) {
            return;
        }
        let accepts = |group: &TaskGroup, pool: &PoolKey| match (&group.request.accelerators, &pool.kind) {
            (None, _) => true,
            (Some(request), Some(kind)) => request.accepts(kind),
            (Some(_), None) => false,
        };
        for (pool, _) in state.pools() {
            let allowed = spec.regions.is_empty() || spec.regions.contains(&pool.region);
            if allowed
                && spec.groups.iter().any(|group| accepts(group, pool))
                && has_quota(state, &spec.tenant, pool)
            {
                self.pools.insert(pool.clone());
            }
        }
    }
}

/// Whether a tenant may use any more of what is in a pool.
fn has_quota(state: &State, tenant: &Name, pool: &PoolKey) -> bool {
    let Some(kind) = pool.kind.as_ref().filter(|_| state.has_quotas()) else { return true };
    let capacity = |kind: &Name, region: Option<&Name>| state.registered_milli(kind, region);
    state.quota_usage().headroom(capacity, tenant, kind, &pool.region).total_milli() > 0
}
