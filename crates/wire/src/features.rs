//! Features that requests need, by the names that replicas list in `GetServerInfo`.
//!
//! A replica drops fields that it does not know when it reads a message. A request names what it cannot do without in its
//! metadata, and a replica that does not know one of the names refuses the call.

use crate::v1;

/// In the metadata of a call: the features that it requires, between commas.
pub const REQUIRED_FEATURES: &str = "muster-required-features";

/// What a replica has to know so that it leaves nothing out of these jobs, each name once. Empty for most jobs.
#[must_use]
pub fn required_by<'a>(jobs: impl IntoIterator<Item = &'a v1::Job>) -> Vec<&'static str> {
    let mut required = Vec::new();
    for (job, spec) in jobs.into_iter().filter_map(|job| Some((job, job.spec.as_ref()?))) {
        let uses = [
            (job.hold, "job-hold"),
            (spec.nice != 0, "job-nice"),
            (spec.exclusive, "job-exclusive"),
            (spec.scratch_bytes > 0, "job-scratch"),
            (spec.readiness.is_some(), "job-readiness"),
            (spec.nodes.is_some(), "job-nodes"),
            (spec.workdir.is_some(), "job-workdir"),
            (spec.artifacts.is_some(), "job-artifacts"),
            (spec.ulimits.is_some(), "job-ulimits"),
            (spec.host.is_some(), "job-host"),
            (spec.capacity.is_some(), "job-capacity"),
            (!spec.affinity.is_empty(), "job-affinity"),
            (!spec.licences.is_empty(), "job-licences"),
            (spec.groups.iter().any(has_credentials), "container-credentials"),
            (spec.terminal, "job-terminal"),
            (!spec.notify.is_empty(), "job-notify"),
            (spec.topology.as_ref().is_some_and(|rule| !rule.segments.is_empty()), "job-segments"),
        ];
        required.extend(uses.into_iter().filter_map(|(is_used, name)| is_used.then_some(name)));
    }
    required.sort_unstable();
    required.dedup();
    required
}

fn has_credentials(group: &v1::TaskGroup) -> bool {
    group.container().is_some_and(|container| !container.credentials.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(spec: v1::JobSpec) -> v1::Job {
        v1::Job { spec: Some(spec), ..v1::Job::default() }
    }

    #[test]
    fn each_feature_is_named_once_and_only_where_it_is_used() {
        assert!(required_by(&[job(v1::JobSpec::default()), v1::Job::default()]).is_empty());
        let nodes =
            || job(v1::JobSpec { nodes: Some(v1::NodeRequirements::default()), ..Default::default() });
        let apart = job(v1::JobSpec { affinity: vec![v1::JobAffinity::default()], ..Default::default() });
        assert_eq!(required_by(&[nodes(), apart, nodes()]), ["job-affinity", "job-nodes"]);
        let placed = |rule| job(v1::JobSpec { topology: Some(rule), ..Default::default() });
        let plain = v1::TopologyRule { balanced: true, segment_workers: 2, ..Default::default() };
        assert!(required_by(&[placed(plain)]).is_empty());
        let nested = v1::TopologyRule { segments: vec![v1::Segment::default()], ..Default::default() };
        assert_eq!(required_by(&[placed(nested)]), ["job-segments"]);
    }
}
