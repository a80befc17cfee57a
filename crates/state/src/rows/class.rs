//! Classes of jobs that ask for the same.

use alloc::collections::BTreeMap;
use alloc::string::String;
use muster_journal::hash;
use muster_types::{JobSpec, TaskGroup};
use serde::{Serialize, Serializer};

use super::history::bucket_of;

/// Jobs with one class ask for the same and get the same answer, so that a deep queue costs per class and
/// not per job. A hash: two classes that collide share their turns, and nothing worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct GangClass(u64);

impl GangClass {
    /// Behind every class.
    pub(crate) const LAST: GangClass = GangClass(u64::MAX);

    /// The class of a job: everything that decides where it can go. Jobs that policy must not stop are a separate class:
    /// they do not borrow.
    #[must_use]
    pub fn of(spec: &JobSpec) -> GangClass {
        GangClass::of_request(GangClass::request(spec), spec)
    }

    /// The class of a job for which its labels decide as well where it can go, because of other jobs.
    #[must_use]
    pub fn with_labels(self, labels: &BTreeMap<String, String>) -> GangClass {
        GangClass(hash(&(self.0, labels)))
    }

    pub(crate) fn of_request(request: u64, spec: &JobSpec) -> GangClass {
        let request = if spec.preemptible { request } else { hash(&(request, spec.preemptible)) };
        // Other jobs decide where it can go, and for each of its like the same ones.
        GangClass(if spec.affinity.is_empty() { request } else { hash(&(request, &spec.affinity)) })
    }

    /// What a job asks for, and for how long: a hash, and part of the keys of submission groups in the state.
    pub(crate) fn request(spec: &JobSpec) -> u64 {
        let groups = Groups(&spec.groups);
        let place = (&spec.regions, &spec.node_selector, &spec.tolerations, &spec.datasets);
        // A job that ends in time may use capacity that is kept for others.
        let times = (spec.expected_run_ms.map(bucket_of), spec.run_time_limit_ms.map(bucket_of));
        let request = hash(&(groups, place, &spec.nodes, &spec.topology, times));
        // It has other nodes than its like, and its own answer.
        let request = spec.booking.as_ref().map_or(request, |booking| hash(&(request, booking)));
        // Who asks for licences waits for them, and its like without do not.
        let request = if spec.licences.is_empty() { request } else { hash(&(request, &spec.licences)) };
        // Somebody has asked for another size than its group has.
        let request = spec.size.map_or(request, |size| hash(&(request, "size", size)));
        // Whether a fallback is open is a part of it: from then on there is more to choose from.
        spec.capacity.as_deref().map_or(request, |capacity| hash(&(request, capacity)))
    }
}

/// The parts of task groups that decide where they can go; a sequence, without making one.
struct Groups<'a>(&'a [TaskGroup]);

impl Serialize for Groups<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(
            self.0.iter().map(|g| (g.workers, g.workers_min, &g.request, &g.slice, g.container.is_some())),
        )
    }
}
