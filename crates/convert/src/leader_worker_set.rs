//! The LeaderWorkerSet of Kubernetes SIGs: leaderworkerset.x-k8s.io/v1.

use super::Options;
use super::draft::{Draft, FAILURES_MAX};
use super::field::Field;
use super::finding::shown;
use super::gang::{Part, assemble};
use super::metadata;
use super::pod::{self, Program};

/// Converts a LeaderWorkerSet: each of its groups is a gang, and several are an array of gangs.
pub fn convert(object: &Field<'_>, options: &Options) -> Draft {
    let mut draft = metadata::read(object, options);
    let spec = object.get("spec");
    let replicas = spec.get("replicas").count().unwrap_or(1);
    let template = spec.get("leaderWorkerTemplate");
    let size = template.get("size").count().unwrap_or(1);
    if replicas == 0 || size == 0 {
        let field = if size == 0 { template.get("size") } else { spec.get("replicas") };
        field.refuse("no worker would run");
        return draft;
    }
    let (leader, worker) = (template.get("leaderTemplate"), template.get("workerTemplate"));
    let mut parts = Vec::new();
    if leader.is_given() {
        parts.push(part("leader", 1, &leader, &mut draft, options));
        if size > 1 {
            parts.push(part("worker", size - 1, &worker, &mut draft, options));
        } else if worker.is_given() {
            worker.drop("a group of size 1 is its leader alone");
        }
    } else {
        parts.push(part("", size, &worker, &mut draft, options));
    }
    assemble(&mut draft, &parts);
    if replicas > 1 {
        draft.array = Some(replicas.to_string());
    }
    restarts(&spec, &template, &mut draft);
    rollout(&spec, &template);
    draft
}

fn part<'a>(
    name: &str,
    workers: u32,
    template: &Field<'a>,
    draft: &mut Draft,
    options: &Options,
) -> Part<'a> {
    let pod = pod::read(template, &[], Program::Needed, &mut draft.labels, options);
    let policy = template.at(["spec", "restartPolicy"]);
    if policy.text().is_some_and(|text| text != "Always") {
        policy.approximate("a worker does not start again alone: the gang does as a whole");
    }
    Part { name: name.to_owned(), workers, per_job: 0, pod, template: template.clone() }
}

fn restarts(spec: &Field<'_>, template: &Field<'_>, draft: &mut Draft) {
    draft.failures_max = Some(FAILURES_MAX);
    let policy = template.get("restartPolicy");
    match policy.text() {
        None | Some("RecreateGroupOnPodRestart" | "Default") => {}
        Some("None" | "RecreateGroupAfterStart") => {
            policy.approximate("a group starts again as a whole when one of its workers fails");
        }
        Some(other) => {
            policy.refuse(format!("must be RecreateGroupOnPodRestart or None, got {:?}", shown(other)))
        }
    }
    spec.get("replicas").approximate(format!(
        "a service here is a job that does not end by itself: it is tried again at most {FAILURES_MAX} times, and the number of \
         its groups does not change; `muster cancel` ends it"
    ));
}

fn rollout(spec: &Field<'_>, template: &Field<'_>) {
    let strategy = spec.get("rolloutStrategy");
    if strategy.is_given() {
        strategy.drop("a job is not replaced step by step: submit the next one, and cancel this one");
    }
    let startup = spec.get("startupPolicy");
    if startup.text().is_some_and(|policy| policy != "LeaderCreated") {
        startup.approximate("all workers of a gang start together");
    }
    let groups = template.get("subGroupPolicy");
    if groups.is_given() {
        groups.drop(
            "use `topology: {segments: [{level, workers}]}`: consecutive ranks on one host or in one rack",
        );
    }
}
