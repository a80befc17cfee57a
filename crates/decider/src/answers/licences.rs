//! Who waits for counted resources of the policy, and who is next.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use muster_policy::Line;
use muster_state::State;
use muster_types::{JobId, JobSpec, LogTime, Name};

use crate::future::KeptReservations;
use crate::rules::planned::licensed;

/// Different requests of the queue that are looked at for the first one that asks for a resource.
const LOOKED_AT_MAX: usize = 4_096;

/// Steps over jobs that have no turn, as the pending queue counts them.
const STEPS_MAX: u64 = 200_000;

/// The job that is next for each of these counted resources: the one for which the leader keeps what is free of it, else the first of
/// the pending queue that asks for it, as far as the queue is looked at. A job is neither while the leader knows no start of it that
/// is near: nothing is kept for it.
#[must_use]
pub fn first_for_licences<'a>(
    state: &State,
    now: LogTime,
    kept: &KeptReservations,
    names: impl IntoIterator<Item = &'a Name>,
) -> BTreeMap<Name, JobId> {
    let keepers = kept.licence_keepers();
    let mut wanted: BTreeSet<&Name> = BTreeSet::new();
    let mut found = BTreeMap::new();
    for name in names {
        match keepers.first(state, name) {
            Some(job) => _ = found.insert(name.clone(), job),
            None => _ = wanted.insert(name),
        }
    }
    if wanted.is_empty() {
        return found;
    }
    let mut line = Line::form(state, now);
    for _ in 0..LOOKED_AT_MAX {
        let Some(candidate) = line.take_within(state, STEPS_MAX).filter(|_| !wanted.is_empty()) else {
            break;
        };
        let job = candidate.turn.job;
        let spec = state.spec(job).filter(|_| !keepers.keeps_nothing(job));
        for name in spec.into_iter().flat_map(|spec| spec.licences.keys()) {
            if wanted.remove(name) {
                found.insert(name.clone(), job);
            }
        }
        line.waits(state, &candidate);
    }
    found
}

/// Why a job waits that asks for more of a counted resource than is free, or than is left by the first that waits for it.
pub(super) fn why_it_waits(
    state: &State,
    (now, kept): (LogTime, &KeptReservations),
    job: Option<JobId>,
    spec: &JobSpec,
) -> Option<String> {
    if spec.licences.is_empty() {
        return None;
    }
    // One walk over the queue for all of them: it may be long.
    let firsts = first_for_licences(state, now, kept, spec.licences.keys());
    let first = |name: &Name| firsts.get(name).copied();
    let lacking = |(name, count): (&Name, &u32)| lacks(state, (first(name), kept), job, (name, *count));
    spec.licences.iter().find_map(lacking).or_else(|| {
        let is_nowhere = licensed(state, spec).is_none();
        is_nowhere.then(|| {
            String::from(
                "the policy has the licences that it asks for in no region that it may use; name that region, or none",
            )
        })
    })
}

/// What there is of one resource where that is too little. `first` is the first job of the queue that asks for it.
fn lacks(
    state: &State,
    (first, kept): (Option<JobId>, &KeptReservations),
    job: Option<JobId>,
    (name, asked): (&Name, u32),
) -> Option<String> {
    let most = state.policy().policy.resource_count(name);
    let (held, free) = (state.licences_held(name), state.licences_free(name));
    if u64::from(asked) > most {
        return Some(format!(
            "it asks for {asked} of licence {name}, and the policy has {most} (`resources` in the policy); it starts once the \
             policy has more"
        ));
    }
    let other = first.filter(|first| Some(*first) != job);
    let of_other =
        other.and_then(|other| state.spec(other)?.licences.get(name).copied()).map_or(0, u64::from);
    // The first in the queue keeps what is free once that is too little for it, and then until it starts.
    let keepers = kept.licence_keepers();
    let is_kept = of_other > free || (other.is_some() && keepers.first(state, name) == other);
    let kept = if is_kept { of_other.min(free) } else { 0 };
    if u64::from(asked) <= free - kept {
        return None;
    }
    let next = match (first, other) {
        (_, Some(other)) => format!("{other} is the first in the queue that asks for it"),
        (Some(_), None) => {
            String::from("it is the first in the queue that asks for it, and keeps what is freed")
        }
        (None, None) if job.is_some_and(|job| keepers.keeps_nothing(job)) => String::from(
            "none is kept for it while its start is not near; it starts once enough of it is free with the rest that \
             it needs",
        ),
        (None, None) => String::from("it starts once enough of it is given back"),
    };
    let mut by_tenant: Vec<(&Name, u64)> = state.licences_by_tenant(name).collect();
    by_tenant.sort_by_key(|(tenant, held)| (Reverse(*held), (*tenant).clone()));
    let holder = by_tenant.first().map(|(tenant, held)| format!(", {held} of them by tenant {tenant}"));
    Some(format!(
        "it asks for {asked} of licence {name}, of which {held} of {most} are in use{}; {next}",
        holder.unwrap_or_default()
    ))
}
