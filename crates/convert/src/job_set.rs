//! The JobSet of Kubernetes SIGs: jobset.x-k8s.io/v1alpha2.

use serde_json::json;

use super::Options;
use super::draft::{Draft, FAILURES_MAX, name_of};
use super::field::Field;
use super::finding::shown;
use super::gang::{Part, assemble};
use super::job::{self, Shape};
use super::metadata;
use super::pod::{self, Program};
use super::topology;
use super::variables::Export;

/// Converts a JobSet: one gang, or jobs that wait for each other.
pub fn convert(object: &Field<'_>, options: &Options) -> Vec<Draft> {
    let mut whole = metadata::read(object, options);
    let spec = object.get("spec");
    let jobs = spec.get("replicatedJobs").items();
    if jobs.is_empty() {
        spec.refuse("must have `replicatedJobs`");
        return Vec::new();
    }
    job::suspended(&spec, !whole.tenant.is_empty());
    order(&spec);
    let restarts = restarts(&spec);
    whole.failures_max = Some(restarts.unwrap_or_default());
    let is_pipeline = jobs.iter().any(|job| waits_for_end(&job.get("dependsOn")));
    let mut parts: Vec<(Part<'_>, Field<'_>, Option<u64>)> = Vec::new();
    for job in &jobs {
        if let Some((part, limit)) = part(job, &mut whole, options, restarts.is_some()) {
            parts.push((part, job.clone(), limit));
        }
    }
    if !is_pipeline {
        for (_, job, _) in &parts {
            for dependency in job.get("dependsOn").items() {
                dependency.approximate(
                    "all groups of a gang start together, and none waits for another one to be ready",
                );
            }
        }
        let limits = parts.iter().filter_map(|(_, _, limit)| *limit).min();
        let parts: Vec<Part<'_>> = parts.into_iter().map(|(part, _, _)| part).collect();
        let mut draft = whole;
        assemble(&mut draft, &parts);
        keep_each_job_together(object, &mut draft, &sizes(&parts));
        draft.rules.run_time_limit_s = limits;
        return vec![draft];
    }
    let step = |(part, job, limit): (Part<'_>, Field<'_>, Option<u64>)| {
        let sizes = sizes(std::slice::from_ref(&part));
        let mut draft = step(&whole, part, &job, limit);
        keep_each_job_together(object, &mut draft, &sizes);
        draft
    };
    parts.into_iter().map(step).collect()
}

/// How many workers each job of the entries has, and whether the entry has several jobs.
fn sizes(parts: &[Part<'_>]) -> Vec<(u32, bool)> {
    let size = |part: &Part<'_>| if part.per_job > 0 { (part.per_job, true) } else { (part.workers, false) };
    parts.iter().map(size).collect()
}

/// A JobSet keeps each of its jobs within one domain, and not all of them together: of several of one size, each is a segment. A
/// slice has its place in one pod anyway.
fn keep_each_job_together(object: &Field<'_>, draft: &mut Draft, sizes: &[(u32, bool)]) {
    let is_asked = object.at(["metadata", "annotations", topology::JOB_SET_EXCLUSIVE]).is_given();
    let Some(level) = draft.rules.required.filter(|_| is_asked) else { return };
    if draft.groups.iter().any(|group| group.slice.is_some()) {
        draft.rules.required = None;
        return;
    }
    let has_several = sizes.len() > 1 || sizes.iter().any(|(_, is_several)| *is_several);
    let Some((size, _)) = sizes.first().copied().filter(|_| has_several) else { return };
    // With a leader in front, say, the jobs do not begin at multiples of one size: then all are kept together.
    if sizes.iter().any(|(other, _)| *other != size) || draft.rules.segment_level.is_some() {
        return;
    }
    draft.rules.required = None;
    if size > 1 {
        (draft.rules.segment_level, draft.rules.segment_workers) = (Some(level), Some(size));
    }
}

/// One job of a pipeline.
fn step(whole: &Draft, mut part: Part<'_>, job: &Field<'_>, limit: Option<u64>) -> Draft {
    let mut draft = whole.clone();
    let name = |own: &str| format!("{}-{own}", whole.name);
    if let Some(own) = name_of(&name(&part.name)) {
        if own != name(&part.name) {
            job.get("name").approximate(format!("names have at most 63 letters: {own}"));
        }
        draft.name = own;
    }
    for dependency in job.get("dependsOn").items() {
        let (on, status) = (dependency.get("name"), dependency.get("status"));
        match (on.text().and_then(|text| name_of(&name(text))), status.text()) {
            (Some(on), Some("Complete")) => draft.after.push(json!({ "name": on, "when": "succeeded" })),
            (_, Some("Ready")) => {
                dependency.refuse("jobs wait for the end of others, and not for others to be ready; make them groups of one job");
            }
            _ => dependency.refuse("must have the name of a job and the status Complete or Ready"),
        }
    }
    part.name = String::new();
    assemble(&mut draft, &[part]);
    draft.rules.run_time_limit_s = limit;
    draft
}

fn waits_for_end(dependencies: &Field<'_>) -> bool {
    dependencies.items().iter().any(|dependency| dependency.get("status").peek() == Some("Complete"))
}

/// The workers of one entry of `replicatedJobs`.
fn part<'a>(
    job: &Field<'a>,
    whole: &mut Draft,
    options: &Options,
    has_restarts: bool,
) -> Option<(Part<'a>, Option<u64>)> {
    let name_field = job.get("name");
    let Some(name) = name_field.text().and_then(name_of) else {
        job.refuse("must have a name of lower-case letters, digits and '-'");
        return None;
    };
    let replicas = job.get("replicas").count().unwrap_or(1);
    let spec = job.at(["template", "spec"]);
    for (key, field) in job.at(["template", "metadata", "labels"]).entries() {
        if let Some(value) = field.text() {
            metadata::label(key, value, &field, &mut whole.labels);
        }
    }
    let template = spec.get("template");
    let mut pod = pod::read(&template, &[], Program::Needed, &mut whole.labels, options);
    if job::mode(&spec) || !spec.get("completionMode").is_given() {
        pod.exports.insert(0, ("JOB_COMPLETION_INDEX".to_owned(), Export::CompletionIndex));
    }
    let (parallelism, completions) = (spec.get("parallelism"), spec.get("completions"));
    let at_a_time = parallelism.count().unwrap_or(1);
    let per_job = completions.count().unwrap_or(at_a_time);
    if per_job != at_a_time {
        completions.refuse("all pods of a gang run at a time; `parallelism` has to be the same number");
    }
    let workers = per_job.saturating_mul(replicas);
    if workers == 0 {
        job.refuse("no pod would run");
        return None;
    }
    let backoff = spec.get("backoffLimit");
    if let Some(failures) = backoff.count().filter(|failures| *failures > 0) {
        if has_restarts {
            backoff.drop("a gang starts again as a whole, as often as `failurePolicy.maxRestarts` says");
        } else {
            whole.failures_max = whole.failures_max.max(Some(failures.min(FAILURES_MAX)));
            backoff.approximate("a gang starts again as a whole this often");
        }
    }
    restart_policy(&template);
    let limit = job::limit(&spec, pod.rules.run_time_limit_s, Shape::Gang(workers));
    let per_job = if replicas > 1 { per_job } else { 0 };
    Some((Part { name, workers, per_job, pod, template }, limit))
}

fn restart_policy(template: &Field<'_>) {
    let policy = template.at(["spec", "restartPolicy"]);
    match policy.text() {
        None | Some("Never") => {}
        Some("OnFailure") => {
            policy.approximate("a worker does not start again alone: the gang does as a whole")
        }
        Some(other) => policy.refuse(format!("must be Never or OnFailure, got {:?}", shown(other))),
    }
}

fn restarts(spec: &Field<'_>) -> Option<u32> {
    let field = spec.at(["failurePolicy", "maxRestarts"]);
    let restarts = field.count()?;
    if restarts > FAILURES_MAX {
        field.approximate(format!("a job is tried again at most {FAILURES_MAX} times"));
    }
    Some(restarts.min(FAILURES_MAX))
}

fn order(spec: &Field<'_>) {
    let order = spec.at(["startupPolicy", "startupPolicyOrder"]);
    match order.text() {
        None | Some("AnyOrder") => {}
        Some(_) => order.approximate("all workers of a gang start together; rank 0 is of the first group"),
    }
    let operator = spec.at(["successPolicy", "operator"]);
    match operator.text() {
        None | Some("All") => {}
        Some(_) => operator.drop("a job has succeeded when every worker ended with code 0"),
    }
}
