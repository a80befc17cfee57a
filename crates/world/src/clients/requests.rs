//! What clients submit: single jobs, arrays, and jobs that wait for others of the same request by name.

use super::{BOUND_TENANT, FREE_TENANT};
use crate::agent::KIND;
use crate::runtime::{below, chance, pick};
use muster_types::contract::{CheckpointRules, JobContract};
use muster_types::{
    Accelerators, ArrayId, ArraySpec, DependencyRule, JobDraft, JobId, JobSpec, LabelTest, Name,
    NamedDependency, NodeExpression, NodeRequirements, PriorityTier, RequestId, Submission, TaskGroup,
    WorkerRequest,
};
use std::sync::Arc;

/// What one request asks for.
/// Only single jobs where a rule is broken on purpose: the seeds that are known to show it stay the same.
pub(super) fn submissions(request: RequestId, has_bug: bool) -> Arc<[Submission]> {
    let names: Vec<String> = (0..3).map(|place| format!("j{:x}-{place}", request.0 >> 88)).collect();
    let single = |place: usize| Submission::new(job(&names[place]), contract());
    if has_bug {
        return (0..=below(2) as usize).map(single).collect();
    }
    match below(12) {
        0..=6 => (0..=below(2) as usize).map(|place| on_some_nodes(single(place))).collect(),
        7 | 8 => [array(&names[0], 2 + below(4) as u32)].into(),
        // The last of them waits for the others.
        9 | 10 => {
            [single(0), single(1), waiting(single(2), &[(&names[0], false), (&names[1], false)])].into()
        }
        _ => {
            let size = 2 + below(3) as u32;
            let second = waiting(array(&names[1], size), &[(&names[0], true)]);
            let third = waiting(single(2), &[(&names[1], false)]);
            [array(&names[0], size), second, third].into()
        }
    }
}

/// A job of one worker with one device, of the tenant that may borrow.
pub(super) fn small(name: &str) -> Submission {
    let tenant = Name::literal(FREE_TENANT);
    let draft = JobDraft { tenant, tier: PriorityTier::Standard, ..draft(name, 1, 1) };
    Submission::new(draft.check().expect("it is a job"), JobContract::default())
}

/// The job, mostly as it is, and else not on one of the hosts, whose cluster is one of two.
fn on_some_nodes(mut submission: Submission) -> Submission {
    if chance(800) {
        return submission;
    }
    let exclude = Name::new(&format!("m{}", below(6)));
    let slow = NodeExpression { label: Name::literal("slow"), test: LabelTest::DoesNotExist };
    let nodes = NodeRequirements {
        expressions: vec![slow],
        exclude: exclude.into_iter().collect(),
        ..NodeRequirements::default()
    };
    let draft = JobDraft { nodes: Some(Box::new(nodes)), ..submission.spec.into_draft() };
    submission.spec = draft.check().expect("it is a job");
    submission
}

/// The arrays of a request, whose jobs and members have these ids.
pub(super) fn arrays(submitted: &[Submission], ids: &[JobId]) -> Vec<ArrayId> {
    let mut place = 0;
    let mut found = Vec::new();
    for job in submitted {
        if let (Some(_), Some(first)) = (&job.array, ids.get(place)) {
            found.push(ArrayId(first.0));
        }
        place += job.job_count() as usize;
    }
    found
}

/// Members of one worker with one device, so that a run has capacity for the others.
fn array(name: &str, size: u32) -> Submission {
    let draft = draft(name, 1, 1);
    let mut submission = Submission::new(draft.check().expect("it is a job"), JobContract::default());
    let throttle = chance(500).then(|| 1 + below(2) as u32);
    submission.array = Some(ArraySpec { throttle, ..ArraySpec::of_size(size) });
    submission
}

/// This job, behind those; whether each member waits for the member with its index.
fn waiting(mut submission: Submission, others: &[(&str, bool)]) -> Submission {
    let on = |(place, &(name, by_member)): (usize, &(&str, bool))| NamedDependency {
        name: Name::new(name).expect("it is a name"),
        rule: if chance(700) { DependencyRule::Finished } else { DependencyRule::Succeeded },
        by_member,
        place: place as u32,
    };
    submission.named_dependencies = others.iter().enumerate().map(on).collect();
    submission
}

/// The contract of a job: mostly the default one.
fn contract() -> JobContract {
    let checkpoint = CheckpointRules {
        step_ms: Some(20 + below(60)),
        save_ms: Some(50 + below(300)),
        ..CheckpointRules::default()
    };
    match below(5) {
        0 => JobContract { spares: 1, ..JobContract::default() },
        1 => JobContract { checkpoint, ..JobContract::default() },
        2 => JobContract { spares: 1, checkpoint, ..JobContract::default() },
        _ => JobContract::default(),
    }
}

fn job(name: &str) -> JobSpec {
    let devices = pick(&[1u16, 1, 2, 4]).unwrap_or(1);
    let workers = 1 + below(if devices == 4 { 2 } else { 4 }) as u32;
    draft(name, workers, devices).check().expect("it is a job")
}

fn draft(name: &str, workers: u32, devices: u16) -> JobDraft {
    let request = WorkerRequest {
        accelerators: Some(Accelerators { kind: Name::literal(KIND), count: devices }.into()),
        cpu_milli: 100,
        memory_bytes: 1 << 20,
        exclusive: false,
        scratch_bytes: 0,
    };
    let group = TaskGroup::new(Name::literal("main"), workers, vec!["work".to_owned()], request);
    let tenant = if chance(400) { BOUND_TENANT } else { FREE_TENANT };
    let tier = pick(&[
        PriorityTier::Standard,
        PriorityTier::Standard,
        PriorityTier::Batch,
        PriorityTier::Production,
    ]);
    JobDraft {
        tier: tier.unwrap_or_default(),
        stop_grace_ms: 300,
        failure_retries_max: 1,
        ..JobDraft::new(Name::new(name).expect("it is a name"), Name::literal(tenant), vec![group])
    }
}
