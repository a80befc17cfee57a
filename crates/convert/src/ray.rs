//! The RayJob of KubeRay: ray.io/v1.

use super::Options;
use super::draft::{Draft, FAILURES_MAX};
use super::field::Field;
use super::finding::shown;
use super::gang::{Part, assemble};
use super::job::{self, Shape};
use super::metadata;
use super::pod::{self, Program};

/// Characters for which a shell does something.
const OF_SHELLS: &str = "|&;<>()$`\\\"'*?[]#~=%{}!\n\t";

/// Converts a RayJob.
pub fn convert(object: &Field<'_>, options: &Options) -> Draft {
    let mut draft = metadata::read(object, options);
    let spec = object.get("spec");
    let Some(command) = entrypoint(&spec.get("entrypoint")) else {
        spec.refuse("must have an `entrypoint`, the command of the driver");
        return draft;
    };
    if spec.get("clusterSelector").is_given() {
        spec.get("clusterSelector")
            .refuse("the Ray cluster of a job begins and ends with it; others are not known here");
    }
    let cluster = spec.get("rayClusterSpec");
    let mut parts = vec![head(&cluster.get("headGroupSpec"), &mut draft, options)];
    for group in cluster.get("workerGroupSpecs").items() {
        parts.push(workers(&group, &mut draft, options));
    }
    let mut parts: Vec<Part<'_>> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        spec.refuse("must have `rayClusterSpec` with a `headGroupSpec`");
        return draft;
    }
    for part in &mut parts {
        part.pod.command.clone_from(&command);
    }
    draft.failures_max = Some(failures(&spec.get("backoffLimit")));
    let limit = job::limit(&spec, None, Shape::Gang(1));
    assemble(&mut draft, &parts);
    draft.rules.run_time_limit_s = limit.into_iter().chain(draft.rules.run_time_limit_s).min();
    draft.launch = Some("ray");
    about(&spec, &draft);
    draft
}

/// The command of the driver: words where it is no more than that, and else a line for a shell.
fn entrypoint(field: &Field<'_>) -> Option<Vec<String>> {
    let line = field.text()?.trim();
    if line.is_empty() {
        return None;
    }
    if line.contains(|c| OF_SHELLS.contains(c)) {
        return Some(["/bin/sh", "-c", line].map(ToOwned::to_owned).to_vec());
    }
    Some(line.split_whitespace().map(ToOwned::to_owned).collect())
}

fn about(spec: &Field<'_>, draft: &Draft) {
    let ends = spec.get("shutdownAfterJobFinishes");
    if ends.flag() == Some(false) {
        ends.approximate("the Ray cluster of a job ends with its driver");
    }
    let mode = spec.get("submissionMode");
    if mode.text().is_some_and(|mode| mode != "K8sJobMode") {
        mode.approximate("the driver runs in rank 0, next to the head");
    }
    job::suspended(spec, !draft.tenant.is_empty());
    for (key, field) in spec.get("metadata").entries() {
        field.drop(format!(
            "metadata of Ray's own job is not kept; `labels` and `annotations` are: {}",
            shown(key)
        ));
    }
    let version = spec.at(["rayClusterSpec", "rayVersion"]);
    if version.is_given() {
        version.drop("the Ray of the nodes counts");
    }
}

fn failures(field: &Field<'_>) -> u32 {
    let failures = field.count().unwrap_or_default();
    if failures > FAILURES_MAX {
        field.approximate(format!("a job is tried again at most {FAILURES_MAX} times"));
    }
    failures.min(FAILURES_MAX)
}

fn head<'a>(group: &Field<'a>, draft: &mut Draft, options: &Options) -> Option<Part<'a>> {
    if !group.is_given() {
        return None;
    }
    let template = group.get("template");
    let pod = pod::read(&template, &["ray-head"], Program::OfFramework, &mut draft.labels, options);
    restart_policy(&template);
    if pod.needs.accelerators.is_none() {
        template
            .at(["spec", "containers"])
            .approximate("the head is a worker of the job, too, and tasks run on its CPUs");
    }
    Some(Part { name: "head".to_owned(), workers: 1, per_job: 0, pod, template })
}

fn workers<'a>(group: &Field<'a>, draft: &mut Draft, options: &Options) -> Option<Part<'a>> {
    let name = group.get("groupName").text().and_then(super::draft::name_of);
    let Some(name) = name else {
        group.refuse("must have a `groupName` of letters, digits and '-'");
        return None;
    };
    let replicas = group.get("replicas").count();
    let (least, most) = (group.get("minReplicas"), group.get("maxReplicas"));
    let count = replicas.or_else(|| least.count()).unwrap_or(1);
    for bound in [least, most] {
        if bound.count().is_some_and(|bound| bound != count) {
            bound.drop(format!("the Ray cluster of a job keeps its size: {count} workers in this group"));
        }
    }
    let hosts = group.get("numOfHosts").count().unwrap_or(1);
    let workers = count.saturating_mul(hosts);
    if workers == 0 {
        group.approximate("there are no workers of this group");
        return None;
    }
    let template = group.get("template");
    let pod = pod::read(&template, &["ray-worker"], Program::OfFramework, &mut draft.labels, options);
    restart_policy(&template);
    Some(Part { name, workers, per_job: 0, pod, template })
}

fn restart_policy(template: &Field<'_>) {
    let policy = template.at(["spec", "restartPolicy"]);
    if policy.text().is_some_and(|text| text != "Never") {
        policy.approximate("a worker does not start again alone: the gang does as a whole");
    }
}
