//! Jobs of a cluster that is none.

use muster_wire::time::timestamp;
use muster_wire::v1;
use v1::JobPhase;

/// How many jobs a submission comes to.
pub(super) fn jobs_of(submissions: &[muster_types::Submission]) -> usize {
    submissions.iter().map(|submission| submission.job_count() as usize).sum()
}

/// A job as the cluster shows it.
pub(super) fn job(id: &str, name: &str, phase: JobPhase) -> v1::Job {
    v1::Job {
        id: id.into(),
        name: name.into(),
        tenant: "default".into(),
        status: Some(v1::JobStatus {
            tier: v1::Tier::Standard.into(),
            phase: phase.into(),
            worker_count: 4,
            device_count: 8,
            attempt: 1,
            changed_at_index: 12,
            create_time: Some(timestamp(1_700_000_000_000)),
            ..Default::default()
        }),
        ..Default::default()
    }
}
