//! What is counted for all nodes together, and asked for before a place is: licences, and limits of tenants on CPUs and memory.

use alloc::borrow::Cow;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_state::{HostResource, State};
use muster_types::{JobId, JobSpec, Name};

/// Something that there is a number of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counted {
    /// A counted resource of the policy.
    Licence(Name),
    /// What a tenant and everyone below it may be charged for.
    Host(Name, HostResource),
}

impl Counted {
    /// How much there is.
    fn most(&self, state: &State) -> u64 {
        match self {
            Counted::Licence(name) => state.policy().policy.resource_count(name),
            Counted::Host(tenant, resource) => {
                state.host_limit(tenant, *resource).map_or(u64::MAX, |limit| limit.most)
            }
        }
    }

    /// How much nobody holds.
    pub(crate) fn free(&self, state: &State) -> u64 {
        match self {
            Counted::Licence(name) => state.licences_free(name),
            Counted::Host(tenant, resource) => {
                state.host_limit(tenant, *resource).map_or(u64::MAX, |limit| limit.free())
            }
        }
    }
}

/// What a job needs at least of everything that is counted.
pub(crate) fn needed(state: &State, spec: &JobSpec) -> Vec<(Counted, u64)> {
    let mut needed: Vec<(Counted, u64)> = Vec::new();
    needed.extend(
        spec.licences.iter().map(|(name, count)| (Counted::Licence(name.clone()), u64::from(*count))),
    );
    for limit in state.host_limits(&spec.tenant) {
        let least = state.host_asked(spec, limit.resource, fewest(spec));
        needed.push((Counted::Host(limit.tenant.clone(), limit.resource), least));
    }
    needed
}

/// Whether there is as much as a job needs, if nobody held any: one that needs more would keep it from all others for good.
pub(crate) fn are_there(state: &State, needed: &[(Counted, u64)]) -> bool {
    needed.iter().all(|(what, count)| *count <= what.most(state))
}

/// Whether less of something is free than a job needs.
pub(crate) fn lacks(state: &State, spec: &JobSpec) -> bool {
    needed(state, spec).iter().any(|(what, count)| *count > what.free(state))
}

/// Fewest workers that a job may have under limits. An elastic gang of several groups starts with as much as all of its workers
/// take: what it has at a step between is not known before it has a place.
pub(crate) fn fewest(spec: &JobSpec) -> u32 {
    match spec.groups.as_slice() {
        [only] => only.workers_min,
        _ => spec.worker_count(),
    }
}

/// The same job with as few workers as limits leave to it, what it is charged for already counted as its own. None for an elastic
/// gang of several groups that could become larger than that.
pub(crate) fn within_limits<'a>(state: &State, job: JobId, spec: &'a JobSpec) -> Option<Cow<'a, JobSpec>> {
    if !spec.is_elastic() {
        return Some(Cow::Borrowed(spec));
    }
    let mut workers = spec.worker_count();
    for limit in state.host_limits(&spec.tenant) {
        let own = state.host_charge(job, limit.resource);
        let room = limit.most.saturating_sub(limit.used.saturating_sub(own)).max(own);
        let fits = |workers: u32| state.host_asked_by(job, spec, limit.resource, workers) <= room;
        let [only] = spec.groups.as_slice() else {
            // Before it is placed, whether it may start is asked by itself.
            if own > 0 && !fits(workers) {
                return None;
            }
            continue;
        };
        // Each worker takes as much: the largest number that fits.
        let (mut low, mut high) = (only.workers_min, workers.max(only.workers_min));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        workers = low;
    }
    smaller(spec, workers)
}

/// The same job with as few workers as it may have, where it has one group.
pub(crate) fn smallest(spec: &Arc<JobSpec>) -> Arc<JobSpec> {
    match smaller(spec, fewest(spec)) {
        Some(Cow::Owned(spec)) => Arc::new(spec),
        Some(Cow::Borrowed(_)) | None => Arc::clone(spec),
    }
}

/// The same job with no more workers than it has, where limits hold for it: several gangs of one record could exceed them
/// together otherwise. None for an elastic gang of several groups.
pub(crate) fn no_larger<'a>(state: &State, job: JobId, spec: &'a JobSpec) -> Option<Cow<'a, JobSpec>> {
    if !spec.is_elastic() || state.host_limits(&spec.tenant).next().is_none() {
        return Some(Cow::Borrowed(spec));
    }
    let placement = state.job(job).and_then(|row| row.placement.as_ref());
    let workers = placement.map_or(0, |placement| placement.slots.len());
    let [only] = spec.groups.as_slice() else { return None };
    smaller(spec, u32::try_from(workers).unwrap_or(u32::MAX).max(only.workers_min))
}

/// With this number of workers, or the next smaller one that its rules allow for.
fn smaller(spec: &JobSpec, workers: u32) -> Option<Cow<'_, JobSpec>> {
    /// Numbers of workers that are tried.
    const TRIED_MAX: usize = 64;
    let [only] = spec.groups.as_slice() else { return Some(Cow::Borrowed(spec)) };
    if workers >= only.workers {
        return Some(Cow::Borrowed(spec));
    }
    let mut sizes = (only.workers_min..=workers).rev().take(TRIED_MAX);
    sizes.find_map(|workers| {
        let mut draft = spec.clone().into_draft();
        draft.groups.first_mut()?.workers = workers;
        draft.check().ok().map(Cow::Owned)
    })
}
