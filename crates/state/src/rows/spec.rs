//! What follows from what was submitted.

use alloc::sync::Arc;
use muster_journal::hash;
use muster_types::{JobId, JobSpec};

use super::class::GangClass;
use super::submission_group::BurstKey;
use crate::table::Derived;

/// What a spec says of the order, made once: making it costs hashes of most of the spec.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpecFacts {
    pub(crate) class: GangClass,
    pub(crate) group_key: BurstKey,
}

impl Derived<JobId, Arc<JobSpec>> for SpecFacts {
    fn of(spec: &Arc<JobSpec>) -> SpecFacts {
        let (group_key, class) = BurstKey::with_class(spec);
        SpecFacts { class, group_key }
    }

    fn hash(&self, id: &JobId, spec: &Arc<JobSpec>) -> u64 {
        hash(&(id, spec))
    }
}
