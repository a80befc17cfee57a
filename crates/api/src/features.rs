//! Features that a request may require.
//!
//! A field that a replica does not know is dropped when a message is read, so a request of a later release would be carried
//! out without it. A client that cannot accept that names the feature in the metadata of its request; a replica that does
//! not know the feature refuses the call before it reads the message. The header is passed on with the call, so it reaches
//! the leader through any follower.
//!
//! **Invariant:** a name that has been listed here keeps its meaning and is never removed.

use muster_types::{Refusal, RefusalCode};
use tonic::Status;
use tonic::codegen::http::{HeaderMap, HeaderValue};

use crate::headers::REQUIRED_FEATURES;

/// What this release knows: for each, its name and the calls and fields that need it. `job-controls`: the calls that take a
/// `JobSelector`, with `after_job_id`. `job-limits`: `TenantLimits.user`, `.job` and `.tiers`. `policy-parts`: `UpdatePolicy`.
/// `job-nodes`: `JobSpec.nodes`. `job-workdir`: `JobSpec.workdir`. `accelerator-budgets`: `accelerator_hours` of limits.
/// `quota-grants`: `QuotaService`. `job-artifacts`: `JobSpec.artifacts`.
/// `job-ulimits`: `JobSpec.ulimits`. `job-host`: `JobSpec.host`. `job-capacity`: `JobSpec.capacity`. `job-affinity`: `JobSpec.affinity`.
/// `job-segments`: `TopologyRule.segments`. `elastic-groups`: `TaskGroup.min_workers` in jobs of several groups. `booking-rules`:
/// `BookingSpec.rule`. `job-licences`: `JobSpec.licences`. `spend-budgets`: `spend` and `on_limit` of limits, `devices` of limits of
/// users, `submissions_per_minute` of tiers. `tenant-queues`: `TenantPolicy.queue`. `job-hold`: `Job.hold`. `job-nice`:
/// `JobSpec.nice`. `job-exclusive`: `JobSpec.exclusive`. `job-readiness`: `JobSpec.readiness`. `container-credentials`:
/// `ContainerRuntime.credentials`. `job-terminal`: `JobSpec.terminal`, `ExecStart.attach`. `job-notify`: `JobSpec.notify`, and receivers
/// with `for_jobs`. `job-scratch`: `JobSpec.scratch_bytes`.
pub(crate) const FEATURES: [&str; 26] = [
    "job-controls",
    "job-limits",
    "policy-parts",
    "job-nodes",
    "job-workdir",
    "accelerator-budgets",
    "quota-grants",
    "job-artifacts",
    "job-ulimits",
    "job-host",
    "job-capacity",
    "job-affinity",
    "job-segments",
    "elastic-groups",
    "booking-rules",
    "job-licences",
    "spend-budgets",
    "tenant-queues",
    "job-hold",
    "job-nice",
    "job-exclusive",
    "job-readiness",
    "container-credentials",
    "job-terminal",
    "job-notify",
    "job-scratch",
];

/// Bytes of all names that a request may have.
const NAMES_BYTES_MAX: usize = 1_024;

/// The names as a request has them, to be passed on.
pub(crate) fn required(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(REQUIRED_FEATURES)
}

/// Refuses a request that requires what this release does not know.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), Status> {
    let mut values = headers.get_all(REQUIRED_FEATURES).iter();
    let Some(value) = values.next() else { return Ok(()) };
    let refused = |feature: &str, text: String| {
        let refusal = Refusal::new(RefusalCode::FeatureUnknown, text).with("feature", feature);
        Err(muster_wire::status::to_status(&refusal.with("field", REQUIRED_FEATURES)))
    };
    let names = value.to_str().ok().filter(|names| names.len() <= NAMES_BYTES_MAX);
    let (Some(names), None) = (names, values.next()) else {
        return refused(
            "",
            format!("`{REQUIRED_FEATURES}` must be given once, in at most {NAMES_BYTES_MAX} bytes of ASCII"),
        );
    };
    match names.split(',').map(str::trim).find(|name| !FEATURES.contains(name)) {
        None => Ok(()),
        Some(unknown) => {
            let text = format!(
                "the request requires `{unknown}`, which this release does not know; upgrade the replicas, or leave it out"
            );
            refused(unknown, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_wire::status::Refused;
    use muster_wire::v1;

    fn checked(values: &[&str]) -> Result<(), String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(REQUIRED_FEATURES, value.parse().expect("a header"));
        }
        check(&headers).map_err(|status| {
            let refused = Refused::from_status(&status);
            assert_eq!(refused.code, Some(RefusalCode::FeatureUnknown));
            refused.metadata.get("feature").cloned().unwrap_or_default()
        })
    }

    #[test]
    fn what_clients_require_is_known() {
        let container = v1::ContainerRuntime { credentials: "hub".to_owned(), ..Default::default() };
        let runtime = Some(v1::task_group::Runtime::Container(container));
        let nested = v1::TopologyRule { segments: vec![v1::Segment::default()], ..Default::default() };
        let spec = v1::JobSpec {
            nodes: Some(v1::NodeRequirements::default()),
            workdir: Some(v1::Workdir::default()),
            artifacts: Some(v1::ArtifactRules::default()),
            ulimits: Some(v1::Ulimits::default()),
            host: Some(v1::HostRules::default()),
            capacity: Some(v1::CapacityRules::default()),
            affinity: vec![v1::JobAffinity::default()],
            notify: vec![v1::JobNotification::default()],
            licences: vec![v1::LicenceRequest::default()],
            nice: 1,
            exclusive: true,
            scratch_bytes: 1,
            readiness: Some(v1::ReadinessRule::default()),
            terminal: true,
            topology: Some(nested),
            groups: vec![v1::TaskGroup { runtime, ..Default::default() }],
            ..Default::default()
        };
        let job = v1::Job { spec: Some(spec), hold: true, ..Default::default() };
        let names = muster_wire::features::required_by(&[job]);
        assert_eq!(names.len(), 17);
        // A field of a job that replicas list as a feature, and that no client requires, would be left out unseen.
        let listed: Vec<&str> = FEATURES.into_iter().filter(|name| name.starts_with("job-")).collect();
        let calls = ["job-controls", "job-limits"];
        for name in listed.iter().filter(|name| !calls.contains(name)) {
            assert!(names.contains(name), "{name} is required by no job");
        }
        assert_eq!(checked(&[&names.join(",")]), Ok(()));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert_eq!(checked(&[]), Ok(()));
        assert_eq!(checked(&["job-controls"]), Ok(()));
        assert_eq!(checked(&["policy-parts, job-controls"]), Ok(()));
        assert_eq!(
            checked(&["job-segments, elastic-groups, booking-rules, spend-budgets, tenant-queues"]),
            Ok(())
        );
        assert_eq!(checked(&["job-controls,time-travel"]), Err("time-travel".to_owned()));
        assert_eq!(checked(&["job-controls", "policy-parts"]), Err(String::new()));
        assert_eq!(checked(&[""]), Err(String::new()));
        assert_eq!(checked(&[&"a".repeat(1_025)]), Err(String::new()));
    }
}
