//! Who keeps counted resources from others, as the leader's last pass has left it.

use alloc::collections::{BTreeMap, BTreeSet};
use muster_state::State;
use muster_types::{JobId, Name};

/// Who keeps licences from others, and who keeps none, as a pass has left it: for explanations and lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct LicenceKeepers {
    /// The first that keeps what is free of each.
    first: BTreeMap<Name, JobId>,
    /// Jobs that have no start near.
    without_start: BTreeSet<JobId>,
}

impl LicenceKeepers {
    /// The first that keeps what is free of each, and jobs that have no start near.
    pub(crate) fn new(first: BTreeMap<Name, JobId>, without_start: BTreeSet<JobId>) -> LicenceKeepers {
        LicenceKeepers { first, without_start }
    }

    /// The job that keeps what is free of a licence, as long as it waits.
    pub(crate) fn first(&self, state: &State, licence: &Name) -> Option<JobId> {
        let waits = |job: &JobId| {
            state.job(*job).is_some_and(|row| row.is_in_line())
                && state.spec(*job).is_some_and(|spec| spec.licences.contains_key(licence))
        };
        self.first.get(licence).copied().filter(waits)
    }

    /// Whether a job keeps nothing, because no start of it is near.
    pub(crate) fn keeps_nothing(&self, job: JobId) -> bool {
        self.without_start.contains(&job)
    }
}
