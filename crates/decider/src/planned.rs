//! What of a job's contract decides where it goes: the spec that is planned in place of the one that was submitted.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_planner::Holds;
use muster_state::State;
use muster_types::{JobId, JobSpec, Name, NodeId};

use crate::speculation::Speculation;

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

/// What is kept from a job, in the order in which it is to be tried: without the nodes that failed under it and those
/// that nobody has heard of for a while, without those that failed alone, and without either. A node whose lease has
/// lapsed is in none of them: what began there would be lost with it, or wait until it is heard of.
pub(crate) fn choices(speculation: &Speculation, job: JobId, holds: &Holds) -> Vec<Holds> {
    let (silent, lapsed) = (speculation.silent(), speculation.lapsed());
    let recovery = speculation.state().recovery(job);
    let failed: BTreeSet<NodeId> =
        recovery.into_iter().flat_map(|recovery| recovery.avoided_at(speculation.now())).collect();
    let around = |nodes: &BTreeSet<NodeId>| {
        if nodes.is_empty() { Arc::clone(lapsed) } else { Arc::new(lapsed.union(nodes).copied().collect()) }
    };
    let mut choices = Vec::new();
    if !silent.is_empty() {
        let all = if failed.is_empty() {
            Arc::clone(silent)
        } else {
            Arc::new(silent.union(&failed).copied().collect())
        };
        choices.push(holds.round(all));
    }
    if !failed.is_empty() {
        choices.push(holds.round(around(&failed)));
    }
    choices.push(if lapsed.is_empty() { holds.clone() } else { holds.round(Arc::clone(lapsed)) });
    choices
}
