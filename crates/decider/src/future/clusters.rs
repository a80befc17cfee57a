//! Clusters that a job may use.

use alloc::vec::Vec;
use muster_state::State;
use muster_types::JobSpec;

use super::ClusterKey;

/// Clusters that a job may use.
pub(super) fn places(state: &State, spec: &JobSpec) -> Vec<ClusterKey> {
    let mut found: Vec<ClusterKey> = Vec::new();
    for (key, _) in state.pools() {
        let allowed = spec.regions.is_empty() || spec.regions.contains(&key.region);
        let wanted = spec.groups.iter().any(|group| match (&group.request.accelerators, &key.kind) {
            (Some(request), Some(kind)) => request.accepts(kind),
            (Some(_), None) => false,
            (None, _) => true,
        });
        let is_new = found.last().is_none_or(|last| last.0 != key.region || last.1 != key.cluster);
        if allowed && wanted && is_new {
            found.push((key.region.clone(), key.cluster.clone()));
        }
    }
    found
}
