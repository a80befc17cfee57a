//! What of a job's contract decides where it goes: the spec that is planned in place of the one that was submitted.

use alloc::borrow::Cow;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_planner::{Hold, Holds};
use muster_state::State;
use muster_types::{JobId, JobSpec, LogTime, Name, NodeId};

/// The job as it is to be planned: only in regions where its checkpoints can be read. None when there is no such
/// region.
pub(crate) fn planned_spec(state: &State, job: JobId) -> Option<Arc<JobSpec>> {
    let spec = state.spec(job)?;
    match state.contract(job).and_then(|contract| contract.checkpoint.place.as_ref()) {
        Some(place) => narrowed(state, spec, place).map(Arc::new),
        None => Some(Arc::clone(spec)),
    }
}

/// The same job in regions that have a copy of a data set alone.
pub(crate) fn narrowed(state: &State, spec: &JobSpec, place: &Name) -> Option<JobSpec> {
    let copies = &state.policy().policy.datasets.get(place)?.regions;
    let allowed = |region: &&Name| spec.regions.is_empty() || spec.regions.contains(region);
    let regions: Vec<Name> = copies.iter().filter(allowed).cloned().collect();
    if regions.is_empty() {
        return None;
    }
    let mut draft = spec.clone().into_draft();
    draft.regions = regions;
    draft.check().ok()
}

/// What is kept from a job, with the nodes that it keeps away from because they failed under it and with those that
/// nobody has heard of for a while; as it was when there are none.
pub(crate) fn with_avoided<'a>(
    state: &State,
    job: JobId,
    holds: &'a Holds,
    silent: &BTreeSet<NodeId>,
    now: LogTime,
) -> Cow<'a, Holds> {
    let failed = state.recovery(job).into_iter().flat_map(|recovery| recovery.avoided_at(now));
    let mut avoided = failed.chain(silent.iter().copied()).peekable();
    if avoided.peek().is_none() {
        return Cow::Borrowed(holds);
    }
    let mut holds = holds.clone();
    for node in avoided {
        let nothing = Hold { from: LogTime(0), spare_devices: 0, spare_cpu_milli: 0, spare_memory_bytes: 0 };
        holds.add(node, nothing);
    }
    Cow::Owned(holds)
}
