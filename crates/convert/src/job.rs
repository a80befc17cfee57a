//! The Job of Kubernetes: batch/v1.

use super::Options;
use super::draft::{Draft, FAILURES_MAX};
use super::field::Field;
use super::gang::{Part, assemble};
use super::pod::{self, Pod, Program};
use super::variables::{Export, Index};
use super::{finding, metadata};

/// New attempts where a Job states none.
const BACKOFF_LIMIT: u32 = 6;
/// What Kubernetes sets in the pods of an Indexed Job.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// What the pods of a Job are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One pod.
    One,
    /// Members of an array, of which only some run at a time.
    Array {
        /// How many.
        members: u32,
        /// At a time; none for all.
        throttle: Option<u32>,
    },
    /// One gang.
    Gang(u32),
}

/// Converts a Job.
pub fn convert(object: &Field<'_>, options: &Options) -> Draft {
    let mut draft = metadata::read(object, options);
    let spec = object.get("spec");
    let template = spec.get("template");
    let mut pod = pod::read(&template, &[], Program::Needed, &mut draft.labels, options);
    let is_indexed = mode(&spec);
    let shape = shape(&spec, is_indexed, &pod);
    if is_indexed {
        pod.exports.insert(0, (INDEX_VARIABLE.to_owned(), Export::CompletionIndex));
    }
    failures(&spec, &template, shape, &mut draft);
    let limit = limit(&spec, pod.rules.run_time_limit_s, shape);
    match shape {
        Shape::One => single(&mut draft, pod, &template, &Index::Only),
        Shape::Array { members, throttle } => {
            draft.array =
                Some(throttle.map_or(members.to_string(), |throttle| format!("{members}%{throttle}")));
            single(&mut draft, pod, &template, &Index::Member);
        }
        Shape::Gang(workers) => {
            let part = Part { name: String::new(), workers, per_job: 0, pod, template };
            assemble(&mut draft, &[part]);
        }
    }
    draft.rules.run_time_limit_s = limit;
    suspended(&spec, !draft.tenant.is_empty());
    draft
}

/// One worker, or one for each member of an array. A slice of one host has its shape all the same.
fn single(draft: &mut Draft, pod: Pod, template: &Field<'_>, index: &Index) {
    let group = pod.group("", 1, index);
    let part = Part { name: String::new(), workers: 1, per_job: 0, pod, template: template.clone() };
    assemble(draft, &[part]);
    draft.groups[0].command = group.command;
    if draft.groups[0].slice.is_none() {
        draft.groups[0].workers = None;
    }
}

/// Whether the pods have indices.
pub fn mode(spec: &Field<'_>) -> bool {
    let mode = spec.get("completionMode");
    match mode.text() {
        None | Some("NonIndexed") => false,
        Some("Indexed") => true,
        Some(other) => {
            mode.refuse(format!("must be Indexed or NonIndexed, got {:?}", finding::shown(other)));
            false
        }
    }
}

fn shape(spec: &Field<'_>, is_indexed: bool, pod: &Pod) -> Shape {
    let (parallelism, completions) = (spec.get("parallelism"), spec.get("completions"));
    let at_a_time = parallelism.count().unwrap_or(1);
    let Some(all) = completions.count() else {
        if is_indexed {
            spec.get("completionMode").refuse("an Indexed Job has `completions`");
        }
        if at_a_time > 1 {
            parallelism.approximate(
                "without `completions` one pod ends the work of all; here they are an array, all of whose members have to succeed",
            );
            return Shape::Array { members: at_a_time, throttle: None };
        }
        if at_a_time == 0 {
            parallelism.refuse("no pod would run; leave it out for one");
        }
        return Shape::One;
    };
    if all == 0 || at_a_time == 0 {
        let field = if all == 0 { completions } else { parallelism };
        field.refuse("no pod would run; leave it out for one");
        return Shape::One;
    }
    if all > 1 && at_a_time >= all && pod.slice.is_some() {
        return Shape::Gang(all);
    }
    if all > 1 && at_a_time >= all && is_indexed && pod.has_names {
        spec.at(["template", "spec", "subdomain"]).approximate(
            "pods that find each other by names are one gang here: all start together, and find each other by MASTER_ADDR and \
             MUSTER_RANK_MAP",
        );
        return Shape::Gang(all);
    }
    match all {
        1 => Shape::One,
        members => Shape::Array { members, throttle: Some(at_a_time).filter(|most| *most < members) },
    }
}

fn failures(spec: &Field<'_>, template: &Field<'_>, shape: Shape, draft: &mut Draft) {
    let (of_job, of_index) = (spec.get("backoffLimit"), spec.get("backoffLimitPerIndex"));
    let is_array = matches!(shape, Shape::Array { .. });
    let per_index = of_index.count();
    let failures = match (per_index, of_job.count()) {
        (Some(failures), of_all) if is_array => {
            if of_all.is_some() {
                of_job.drop("each member of an array fails for itself, as `backoffLimitPerIndex` counts");
            }
            failures
        }
        (Some(_), Some(failures)) => {
            of_index.drop("there is one worker or one gang, which fails as a whole");
            failures
        }
        (Some(failures), None) => failures,
        (None, Some(failures)) => {
            if is_array && failures > 0 {
                of_job
                    .approximate("each member of an array may fail this often, and not all of them together");
            } else if matches!(shape, Shape::Gang(_)) && failures > 0 {
                of_job.approximate("a gang starts again as a whole this often");
            }
            failures
        }
        (None, None) => BACKOFF_LIMIT,
    };
    if failures > FAILURES_MAX {
        let field = if of_job.is_given() { of_job } else { of_index };
        field.approximate(format!("a job is tried again at most {FAILURES_MAX} times"));
    }
    draft.failures_max = Some(failures.min(FAILURES_MAX));
    let policy = template.at(["spec", "restartPolicy"]);
    match policy.text() {
        None | Some("Never" | "OnFailure") => {}
        Some(other) => policy.refuse(format!("must be Never or OnFailure, got {:?}", finding::shown(other))),
    }
}

/// The limit of one attempt: the pod's, and the Job's where that is shorter.
pub fn limit(spec: &Field<'_>, of_pod: Option<u64>, shape: Shape) -> Option<u64> {
    let field = spec.get("activeDeadlineSeconds");
    let of_job = field.count().map(u64::from).filter(|seconds| *seconds > 0);
    if of_job.is_some() {
        field.approximate(match shape {
            Shape::Array { .. } => {
                "it limits each attempt of each member of the array, and not the time of all together"
            }
            Shape::One | Shape::Gang(_) => {
                "it limits each attempt, and not the time of all attempts together"
            }
        });
    }
    of_job.into_iter().chain(of_pod).min()
}

/// A Job that waits for somebody to let it go: for Kueue that is how a queue is entered.
pub fn suspended(spec: &Field<'_>, has_queue: bool) {
    let field = spec.get("suspend");
    if field.flag() == Some(true) {
        if has_queue {
            field.approximate("a queue lets the job go; here it is pending until it is placed");
        } else {
            field.drop("the job starts when there is capacity; `muster job hold JOB-ID` keeps it");
        }
    }
}
