//! Jobs.
//!
//! Defaults are filled in here, once, so that what is logged and shown is complete: a later release
//! may choose other defaults without changing what an accepted job means.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use muster_types::job::ArrayMember;
use muster_types::{
    Dependency, DependencyRule, JobContract, JobDraft, JobMetadata, JobSpec, Name, Submission, TaskGroup,
    Violation, WorkerRequest, fleet::checked_name, limits,
};

use super::contract::{contract, contract_to_proto};
use super::demand::{
    self, accelerator_request_to_proto, slice_to_proto, slice_workers, topology, topology_to_proto,
};
use super::id::job_id;
use super::{Found, below, bound, moment, one_of, span};
use crate::closed::{number, value_from_proto};
use crate::time::{duration, timestamp};
use crate::v1;

const TENANT_DEFAULT: &str = "default";
const GROUP_NAME_DEFAULT: &str = "workers";
const STOP_GRACE_MS_DEFAULT: u64 = 30_000;
const CPU_MILLI_DEFAULT: u64 = 1_000;
const MEMORY_BYTES_DEFAULT: u64 = 1 << 30;

/// The jobs of one submission: one, or as many as the array has. `at` is the path of the message,
/// for example `spec`.
///
/// # Errors
/// Lists every field that breaks a rule, up to [`VIOLATIONS_MAX`](super::VIOLATIONS_MAX).
pub fn submissions_from_proto(
    at: &str,
    message: Option<v1::JobSpec>,
) -> Result<Vec<Submission>, Vec<Violation>> {
    let mut found = Found::default();
    let mut specs = Vec::new();
    match message {
        Some(message) => convert_into(&mut specs, at, message, limits::BATCH_JOBS_MAX, &mut found),
        None => found.push(Violation::new(at, "must be given")),
    }
    if found.is_empty() { Ok(specs) } else { Err(found.into_violations()) }
}

/// The jobs of a batch, arrays expanded in place. `at` is the path of the list, for example `specs`.
///
/// # Errors
/// Lists every field that breaks a rule, up to [`VIOLATIONS_MAX`](super::VIOLATIONS_MAX).
pub fn jobs_from_proto(at: &str, messages: Vec<v1::JobSpec>) -> Result<Vec<Submission>, Vec<Violation>> {
    let max = limits::BATCH_JOBS_MAX;
    // Each message is at least one job, so the count alone bounds what is converted at all.
    if messages.is_empty() || messages.len() > max {
        return Err(vec![Violation::limit(at, messages.len() as u64, 1, max as u64)]);
    }
    // Arrays count as what they expand to, whether or not the rest of their spec is right.
    let jobs: u64 = messages.iter().map(|m| u64::from(m.array_size.max(1))).sum();
    let mut found = Found::default();
    if jobs > max as u64 {
        found.push(Violation::new(
            at,
            format!("must be at most {max} jobs together, arrays expanded, got {jobs}"),
        ));
    }
    let mut specs = Vec::new();
    for (index, message) in messages.into_iter().enumerate() {
        if found.is_full() {
            break;
        }
        // Nothing of a batch that is refused as a whole is expanded; its fields are still checked.
        let expand_max = if found.is_empty() { max } else { 0 };
        convert_into(&mut specs, &format!("{at}[{index}]"), message, expand_max, &mut found);
    }
    if found.is_empty() { Ok(specs) } else { Err(found.into_violations()) }
}

/// The message of a job with its contract, labels and annotations.
#[must_use]
pub fn submission_to_proto(job: &Submission) -> v1::JobSpec {
    described_to_proto(&job.spec, Some(&job.contract), job.metadata.as_deref())
}

/// The same of a job that was taken apart.
#[must_use]
pub fn described_to_proto(
    spec: &JobSpec,
    contract: Option<&JobContract>,
    metadata: Option<&JobMetadata>,
) -> v1::JobSpec {
    let texts = |texts: Option<&BTreeMap<String, String>>| {
        texts.map(|texts| texts.clone().into_iter().collect()).unwrap_or_default()
    };
    v1::JobSpec {
        contract: contract.and_then(contract_to_proto),
        labels: texts(metadata.map(|metadata| &metadata.labels)),
        annotations: texts(metadata.map(|metadata| &metadata.annotations)),
        ..job_spec_to_proto(spec)
    }
}

/// The message of an accepted job, without its contract, labels and annotations. A job of an array shows the array's size; its own place in it is
/// `Job.array_index`.
#[must_use]
pub fn job_spec_to_proto(spec: &JobSpec) -> v1::JobSpec {
    v1::JobSpec {
        name: spec.name.to_string(),
        tenant: spec.tenant.to_string(),
        tier: number(spec.tier),
        groups: spec.groups.iter().map(group_to_proto).collect(),
        regions: spec.regions.iter().map(Name::to_string).collect(),
        run_time_limit: spec.run_time_limit_ms.map(duration),
        stop_grace: Some(duration(spec.stop_grace_ms)),
        failure_retries_max: spec.failure_retries_max,
        checkpoint_directory: spec.checkpoint_directory.clone().unwrap_or_default(),
        working_directory: spec.working_directory.clone().unwrap_or_default(),
        array_size: spec.array.map_or(0, |array| array.size),
        topology: topology_to_proto(&spec.topology),
        node_selector: spec.node_selector.iter().map(selector_to_proto).collect(),
        tolerations: spec.tolerations.iter().map(Name::to_string).collect(),
        preemptible: Some(spec.preemptible),
        dependencies: spec.dependencies.iter().map(dependency_to_proto).collect(),
        not_before: spec.not_before.map(|time| timestamp(time.0)),
        deadline: spec.deadline.map(|time| timestamp(time.0)),
        expected_run: spec.expected_run_ms.map(duration),
        datasets: spec.datasets.iter().map(Name::to_string).collect(),
        contract: None,
        labels: HashMap::new(),
        annotations: HashMap::new(),
    }
}

fn selector_to_proto((label, values): (&Name, &BTreeSet<String>)) -> (String, v1::LabelValues) {
    (label.to_string(), v1::LabelValues { values: values.iter().cloned().collect() })
}

fn dependency_to_proto(dependency: &Dependency) -> v1::Dependency {
    v1::Dependency { job_id: dependency.job.to_string(), rule: number(dependency.rule) }
}

fn group_to_proto(group: &TaskGroup) -> v1::TaskGroup {
    v1::TaskGroup {
        name: group.name.to_string(),
        workers: group.workers,
        command: group.command.clone(),
        environment: group.environment.clone().into_iter().collect(),
        accelerators: group.request.accelerators.as_ref().map(accelerator_request_to_proto),
        cpu_milli: group.request.cpu_milli,
        memory_bytes: group.request.memory_bytes,
        workers_min: group.workers_min,
        slice: group.slice.as_ref().map(slice_to_proto),
    }
}

/// Appends the jobs of one message when nothing was found so far; else only looks for more.
fn convert_into(
    jobs: &mut Vec<Submission>,
    at: &str,
    mut message: v1::JobSpec,
    expand_max: usize,
    found: &mut Found,
) {
    let array_size = message.array_size;
    if array_size as usize > limits::BATCH_JOBS_MAX {
        let max = limits::BATCH_JOBS_MAX as u64;
        found.push(Violation::limit(&below(at, "array_size"), array_size.into(), 0, max));
    }
    let below_contract = below(at, "contract");
    let contract = contract(&below_contract, message.contract.take(), found);
    let (labels, annotations) =
        (std::mem::take(&mut message.labels), std::mem::take(&mut message.annotations));
    let metadata = metadata(at, labels, annotations, found);
    let mut draft = draft(at, message, found);
    // Jobs that save in different places go different ways: so it counts among what a job reads.
    if let Some(place) = contract.checkpoint.place.as_ref().filter(|place| !draft.datasets.contains(place)) {
        draft.datasets.push(place.clone());
    }
    let Some(checked) = check(at, draft, found) else { return };
    check_contract(&below_contract, &checked, &contract, found);
    if !found.is_empty() || array_size as usize > expand_max {
        return;
    }
    if array_size == 0 {
        jobs.push(Submission { spec: checked, contract, metadata });
        return;
    }
    for index in 0..array_size {
        let mut member = checked.clone().into_draft();
        member.array = Some(ArrayMember { index, size: array_size });
        // Cannot fail: the index is below the size, the size in bounds, the rest checked above.
        let member = check(at, member, found);
        jobs.extend(member.map(|spec| Submission {
            spec,
            contract: contract.clone(),
            metadata: metadata.clone(),
        }));
    }
}

fn check(at: &str, draft: JobDraft, found: &mut Found) -> Option<JobSpec> {
    let violations = match draft.check() {
        Ok(spec) => return Some(spec),
        Err(violations) => violations,
    };
    found.extend(violations.into_iter().map(|v| in_message(v).under(at)).collect());
    None
}

/// Labels and annotations; none when there are none. Too many are not looked at one by one: which of them would be, a
/// hash map cannot say.
pub(super) fn metadata(
    at: &str,
    labels: HashMap<String, String>,
    annotations: HashMap<String, String>,
    found: &mut Found,
) -> Option<Arc<JobMetadata>> {
    if labels.is_empty() && annotations.is_empty() {
        return None;
    }
    let sorted = |texts: HashMap<String, String>| texts.into_iter().collect();
    let metadata =
        JobMetadata { labels: sorted(labels), annotations: sorted(annotations), creator: String::new() };
    found.extend(metadata.violations().into_iter().map(|violation| violation.under(at)).collect());
    Some(Arc::new(metadata))
}

/// Most jobs say nothing, and cost nothing here.
fn check_contract(at: &str, spec: &JobSpec, contract: &JobContract, found: &mut Found) {
    if !contract.is_default() {
        found.extend(contract.violations(spec).into_iter().map(|violation| violation.under(at)).collect());
    }
}

/// The same rule by the message's field names: a worker's request is not a message of its own.
fn in_message(violation: Violation) -> Violation {
    let field = match violation.field.as_str() {
        "array" => "array_size".to_owned(),
        other => other.replacen("].request.", "].", 1),
    };
    Violation { field, description: violation.description }
}

/// A draft with stand-ins for what is wrong, so that the remaining rules are checked too.
pub(super) fn draft(at: &str, message: v1::JobSpec, found: &mut Found) -> JobDraft {
    let name = found.take(name_below(at, "name", &message.name));
    let tenant = if message.tenant.is_empty() { TENANT_DEFAULT } else { &message.tenant };
    let tenant = found.take(name_below(at, "tenant", tenant));
    let tier = one_of(at, "tier", message.tier, found);
    let groups = groups(at, message.groups, found);
    let mut names_in = |field: &str, texts: Vec<String>, max| match texts.as_slice() {
        [] => Vec::new(),
        _ => names(&below(at, field), texts, max, found),
    };
    let regions = names_in("regions", message.regions, limits::JOB_REGIONS_MAX);
    let tolerations = names_in("tolerations", message.tolerations, limits::NODE_TAINTS_MAX);
    let datasets = names_in("datasets", message.datasets, limits::JOB_DATASETS_MAX);
    JobDraft {
        name: name.unwrap_or_else(|| Name::literal("invalid")),
        tenant: tenant.unwrap_or_else(|| Name::literal(TENANT_DEFAULT)),
        tier,
        groups,
        regions,
        run_time_limit_ms: span(at, "run_time_limit", message.run_time_limit, found),
        stop_grace_ms: span(at, "stop_grace", message.stop_grace, found).unwrap_or(STOP_GRACE_MS_DEFAULT),
        failure_retries_max: message.failure_retries_max,
        checkpoint_directory: given(message.checkpoint_directory),
        working_directory: given(message.working_directory),
        array: None,
        topology: topology(&below(at, "topology"), message.topology, found),
        node_selector: node_selector(at, message.node_selector, found),
        tolerations: tolerations.into_iter().collect(),
        preemptible: message.preemptible.unwrap_or(true),
        dependencies: dependencies(at, message.dependencies, found),
        not_before: moment(at, "not_before", message.not_before, found),
        deadline: moment(at, "deadline", message.deadline, found),
        expected_run_ms: span(at, "expected_run", message.expected_run, found),
        datasets,
    }
}

/// A name in a field. The path is made only for the violation: a batch has thousands of fields that are right.
fn name_below(at: &str, field: &str, text: &str) -> Result<Name, Violation> {
    match Name::new(text) {
        Some(name) => Ok(name),
        None => checked_name(&below(at, field), text),
    }
}

/// [`bound`] for a field below a message.
fn bound_below<T>(at: &str, field: &str, list: &mut Vec<T>, max: usize, found: &mut Found) {
    if list.len() > max {
        bound(&below(at, field), list, max, found);
    }
}

fn given(text: String) -> Option<String> {
    if text.is_empty() { None } else { Some(text) }
}

fn names(field: &str, mut texts: Vec<String>, max: usize, found: &mut Found) -> Vec<Name> {
    bound(field, &mut texts, max, found);
    let checked = texts.iter().enumerate().map(|(i, text)| checked_name(&format!("{field}[{i}]"), text));
    checked.filter_map(|result| found.take(result)).collect()
}

/// Too many labels are not looked at one by one: which of them would be, a hash map cannot say.
fn node_selector(
    at: &str,
    messages: HashMap<String, v1::LabelValues>,
    found: &mut Found,
) -> BTreeMap<Name, BTreeSet<String>> {
    if messages.is_empty() {
        return BTreeMap::new();
    }
    let field = &below(at, "node_selector");
    let max = limits::NODE_LABELS_MAX;
    if messages.len() > max {
        found.push(Violation::limit(field, messages.len() as u64, 0, max as u64));
        return BTreeMap::new();
    }
    let mut selector = BTreeMap::new();
    // By label, so that the same message always leads to the same answer.
    for (label, v1::LabelValues { mut values }) in messages.into_iter().collect::<BTreeMap<_, _>>() {
        let Some(label) = found.take(checked_name(field, &label)) else { continue };
        bound(&format!("{field}.{label}"), &mut values, limits::SELECTOR_VALUES_MAX, found);
        selector.insert(label, values.into_iter().collect());
    }
    selector
}

fn dependencies(at: &str, mut messages: Vec<v1::Dependency>, found: &mut Found) -> Vec<Dependency> {
    if messages.is_empty() {
        return Vec::new();
    }
    let at = &below(at, "dependencies");
    bound(at, &mut messages, limits::JOB_DEPENDENCIES_MAX, found);
    let mut dependencies = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let at = format!("{at}[{index}]");
        let job = found.take(job_id(&below(&at, "job_id"), &message.job_id));
        let rule = found.take(value_from_proto(&below(&at, "rule"), message.rule));
        let rule = rule.map(|rule| rule.unwrap_or(DependencyRule::Succeeded));
        dependencies.extend(job.zip(rule).map(|(job, rule)| Dependency { job, rule }));
    }
    dependencies
}

fn groups(at: &str, mut messages: Vec<v1::TaskGroup>, found: &mut Found) -> Vec<TaskGroup> {
    bound_below(at, "groups", &mut messages, limits::TASK_GROUPS_MAX, found);
    let only = messages.len() == 1;
    let mut groups = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let at = if at.is_empty() { format!("groups[{index}]") } else { format!("{at}.groups[{index}]") };
        groups.push(group(&at, index, only, message, found));
    }
    groups
}

fn group(at: &str, index: usize, only: bool, message: v1::TaskGroup, found: &mut Found) -> TaskGroup {
    let name = match message.name.as_str() {
        "" if only => Ok(Name::literal(GROUP_NAME_DEFAULT)),
        "" => Err(Violation::new(below(at, "name"), "must be given when a job has several groups")),
        text => name_below(at, "name", text),
    };
    // A stand-in of its own per group: two wrong names are not one name used twice.
    let stand_in = || Name::new(&format!("invalid-{index}")).unwrap_or_else(|| Name::literal("invalid"));
    let name = found.take(name).unwrap_or_else(stand_in);
    let mut command = message.command;
    bound_below(at, "command", &mut command, limits::COMMAND_WORDS_MAX, found);
    let asked_slice = message.slice.is_some();
    let slice = message.slice.and_then(|slice| demand::slice(&below(at, "slice"), &slice, found));
    // What a slice that cannot be read would have said is not missing besides.
    let chips = asked_slice.then(|| slice.as_ref().map_or(1, demand::slice_chips));
    let accelerators = message
        .accelerators
        .map(|request| demand::accelerators(&below(at, "accelerators"), request, chips, found));
    let workers = match (message.workers, &slice) {
        (0, Some(slice)) => slice_workers(slice, accelerators.as_ref()),
        (0, None) if asked_slice => 1,
        (workers, _) => workers,
    };
    TaskGroup {
        name,
        workers,
        workers_min: if message.workers_min == 0 { workers } else { message.workers_min },
        command,
        environment: environment(at, message.environment, found).into_iter().collect(),
        request: WorkerRequest {
            accelerators,
            cpu_milli: if message.cpu_milli == 0 { CPU_MILLI_DEFAULT } else { message.cpu_milli },
            memory_bytes: if message.memory_bytes == 0 { MEMORY_BYTES_DEFAULT } else { message.memory_bytes },
        },
        slice,
    }
}

/// Too many variables are not looked at one by one: which of them would be, a hash map cannot say.
fn environment(at: &str, variables: HashMap<String, String>, found: &mut Found) -> HashMap<String, String> {
    let max = limits::ENVIRONMENT_MAX;
    if variables.len() > max {
        found.push(Violation::limit(&below(at, "environment"), variables.len() as u64, 0, max as u64));
        return HashMap::new();
    }
    variables
}
