//! The parts of a job's contract that decide where it goes: the spec that is planned in place of the one that was
//! submitted.

use alloc::borrow::Cow;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_planner::Holds;
use muster_state::State;
use muster_types::{JobId, JobSpec, LogTime, Name, NodeId};

use crate::rules::counted::within_limits;

/// The job as it is to be planned: with no more workers than somebody has asked for while it ran, only in regions where its
/// checkpoints can be read and that its licences are for, and no larger than limits on CPUs and memory allow. None when there is
/// no such region or size.
pub(crate) fn planned_spec(state: &State, job: JobId) -> Option<Arc<JobSpec>> {
    let sized = state.spec(job)?.at_size().map(Arc::new);
    let spec = sized.as_ref().or_else(|| state.spec(job))?;
    let readable = match state.contract(job).and_then(|contract| contract.checkpoint.place.as_ref()) {
        Some(place) => narrowed(state, spec, place).map(Arc::new)?,
        None => Arc::clone(spec),
    };
    let narrowed = replaced(&readable, licensed(state, &readable)?);
    Some(replaced(&narrowed, within_limits(state, job, &narrowed)?))
}

/// A spec in place of another, without a copy where it is the same.
fn replaced(before: &Arc<JobSpec>, after: Cow<'_, JobSpec>) -> Arc<JobSpec> {
    match after {
        Cow::Owned(spec) => Arc::new(spec),
        Cow::Borrowed(_) => Arc::clone(before),
    }
}

/// The same job in the only region that its licences are for; none when it may not be there, or when there are two such regions.
pub(crate) fn licensed<'a>(state: &State, spec: &'a JobSpec) -> Option<Cow<'a, JobSpec>> {
    let policy = &state.policy().policy;
    let mut named = spec.licences.keys().filter_map(|name| policy.resource(name)?.region.as_ref());
    let Some(region) = named.next() else { return Some(Cow::Borrowed(spec)) };
    let is_allowed = spec.regions.is_empty() || spec.regions.contains(region);
    if !is_allowed || named.any(|other| other != region) {
        return None;
    }
    let mut draft = spec.clone().into_draft();
    draft.regions = alloc::vec![region.clone()];
    draft.check().ok().map(Cow::Owned)
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

/// Nodes whose sessions stand and that were not heard for a while. A hint that is in no record: what is decided with it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unheard {
    /// Not heard for longer than usual: used only where there is nothing else.
    pub(crate) silent: Arc<BTreeSet<NodeId>>,
    /// Those of them whose leases have lapsed by their agents' count: they start nothing before they are heard of.
    pub(crate) lapsed: Arc<BTreeSet<NodeId>>,
}

/// What is kept from a job, in the order in which it is to be tried: without the nodes that failed under it and those
/// that nobody has heard of for a while, without those that failed alone, and without either. A node whose lease has
/// lapsed is in none of them: what began there would be lost with it, or wait until it is heard of.
pub(crate) fn choices(
    state: &State,
    job: JobId,
    holds: &Holds,
    unheard: &Unheard,
    now: LogTime,
) -> Vec<Holds> {
    let Unheard { silent, lapsed } = unheard;
    let failed: BTreeSet<NodeId> =
        state.recovery(job).into_iter().flat_map(|recovery| recovery.avoided_at(now)).collect();
    let with = |nodes: &Arc<BTreeSet<NodeId>>, more: &BTreeSet<NodeId>| {
        if more.is_empty() { Arc::clone(nodes) } else { Arc::new(nodes.union(more).copied().collect()) }
    };
    let mut choices = Vec::new();
    if !silent.is_empty() {
        choices.push(holds.round(with(silent, &failed)));
    }
    if !failed.is_empty() {
        choices.push(holds.round(with(lapsed, &failed)));
    }
    choices.push(if lapsed.is_empty() { holds.clone() } else { holds.round(Arc::clone(lapsed)) });
    choices
}
