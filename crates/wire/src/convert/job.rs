//! Jobs.
//!
//! Defaults are filled in here, once, so that what is logged and shown is complete: a later release
//! may choose other defaults without changing what an accepted job means.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use muster_types::{
    ArrayId, Container, Dependency, DependencyRule, DependencyScope, JobContract, JobDraft, JobId,
    JobMetadata, JobSpec, Name, NamedDependency, Submission, TaskGroup, Violation, WorkerRequest,
    fleet::checked_name, limits,
};

use super::affinity::{affinity, affinity_to_proto};
use super::array::{array, array_to_proto};
use super::capacity::{capacity, capacity_to_proto};
use super::container::{container_from_proto, container_to_proto};
use super::contract::{contract, contract_to_proto};
use super::demand::{
    self, accelerator_request_to_proto, slice_to_proto, slice_workers, topology, topology_to_proto,
};
use super::id::{array_id, job_id};
use super::licence::{licences, licences_to_proto};
use super::node_requirements::{node_requirements, node_requirements_to_proto};
use super::{Found, below, bound, moment, one_of, shown, span};
use crate::closed::{number, value_from_proto};
use crate::shape::process;
use crate::time::{duration, timestamp};
use crate::v1;
use crate::v1::env_var::Source;
use crate::v1::task_group::Runtime;

const TENANT_DEFAULT: &str = "default";
const GROUP_NAME_DEFAULT: &str = "workers";
const STOP_GRACE_MS_DEFAULT: u64 = 30_000;
const CPU_MILLI_DEFAULT: u64 = 1_000;
const MEMORY_BYTES_DEFAULT: u64 = 1 << 30;

/// What stands before the name of a secret in the environment of a recorded job.
const SECRET: &str = "muster-secret://";

/// What one message submits: a job or an array. `at` is the path of the message, for example `job`.
///
/// # Errors
/// Lists every field that breaks a rule, up to [`VIOLATIONS_MAX`](super::VIOLATIONS_MAX).
pub fn submissions_from_proto(at: &str, message: Option<v1::Job>) -> Result<Vec<Submission>, Vec<Violation>> {
    let mut found = Found::default();
    let mut specs = Vec::new();
    match message {
        Some(message) => convert_into(&mut specs, at, message, &mut found),
        None => found.push(Violation::new(at, "must be given")),
    }
    if found.is_empty() { Ok(specs) } else { Err(found.into_violations()) }
}

/// The jobs and arrays of a batch. `at` is the path of the list, for example `jobs`.
///
/// # Errors
/// Lists every field that breaks a rule, up to [`VIOLATIONS_MAX`](super::VIOLATIONS_MAX).
pub fn jobs_from_proto(at: &str, messages: Vec<v1::Job>) -> Result<Vec<Submission>, Vec<Violation>> {
    let max = limits::BATCH_JOBS_MAX;
    if messages.is_empty() || messages.len() > max {
        return Err(vec![Violation::limit(at, messages.len() as u64, 1, max as u64)]);
    }
    let mut found = Found::default();
    let mut specs = Vec::new();
    for (index, message) in messages.into_iter().enumerate() {
        if found.is_full() {
            break;
        }
        convert_into(&mut specs, &format!("{at}[{index}]"), message, &mut found);
    }
    let jobs: u64 = specs.iter().map(|job: &Submission| u64::from(job.job_count())).sum();
    let most = u64::from(limits::ARRAY_MEMBERS_MAX);
    if jobs > most {
        let text = format!("must be at most {most} jobs together, members of arrays counted, got {jobs}");
        found.push(Violation::new(at, text));
    }
    if found.is_empty() { Ok(specs) } else { Err(found.into_violations()) }
}

/// The message that a job can be submitted by again.
#[must_use]
pub fn submission_to_proto(job: &Submission) -> v1::Job {
    let texts = |texts: Option<&BTreeMap<String, String>>| {
        texts.map(|texts| texts.clone().into_iter().collect()).unwrap_or_default()
    };
    let metadata = job.metadata.as_deref();
    v1::Job {
        name: job.spec.name.to_string(),
        tenant: job.spec.tenant.to_string(),
        labels: texts(metadata.map(|metadata| &metadata.labels)),
        annotations: texts(metadata.map(|metadata| &metadata.annotations)),
        spec: Some(with_named(
            v1::JobSpec {
                array: job.array.as_ref().map(array_to_proto),
                ..job_spec_to_proto(&job.spec, Some(&job.contract))
            },
            &job.named_dependencies,
        )),
        hold: job.held,
        ..v1::Job::default()
    }
}

/// With the dependencies on other jobs of the request, in the places that they had there.
fn with_named(mut spec: v1::JobSpec, named: &[NamedDependency]) -> v1::JobSpec {
    for on in named {
        let NamedDependency { name, rule, by_member, place } = on;
        let message = v1::Dependency {
            job_name: name.to_string(),
            rule: number(*rule),
            by_member: *by_member,
            ..Default::default()
        };
        spec.dependencies.insert((*place as usize).min(spec.dependencies.len()), message);
    }
    spec
}

/// What an accepted job asks for, without the array that it may be in.
#[must_use]
pub fn job_spec_to_proto(spec: &JobSpec, contract: Option<&JobContract>) -> v1::JobSpec {
    let said = contract.map(contract_to_proto).unwrap_or_default();
    let retry = v1::RetryPolicy { max_failures: spec.failure_retries_max, ..said.retry.unwrap_or_default() };
    let checkpoint = v1::CheckpointPolicy {
        directory: spec.checkpoint_directory.clone().unwrap_or_default(),
        ..said.checkpoint.unwrap_or_default()
    };
    v1::JobSpec {
        tier: number(spec.tier),
        groups: spec.groups.iter().map(group_to_proto).collect(),
        regions: spec.regions.iter().map(Name::to_string).collect(),
        run_time_limit: spec.run_time_limit_ms.map(duration),
        stop_grace: Some(duration(spec.stop_grace_ms)),
        working_directory: spec.working_directory.clone().unwrap_or_default(),
        array: None,
        topology: topology_to_proto(&spec.topology),
        node_selector: spec.node_selector.iter().map(selector_to_proto).collect(),
        tolerations: spec.tolerations.iter().map(Name::to_string).collect(),
        preemptible: Some(spec.preemptible),
        dependencies: spec.dependencies.iter().map(dependency_to_proto).collect(),
        not_before: spec.not_before.map(|time| timestamp(time.0)),
        deadline: spec.deadline.map(|time| timestamp(time.0)),
        expected_run: spec.expected_run_ms.map(duration),
        datasets: spec.datasets.iter().map(Name::to_string).collect(),
        nodes: spec.nodes.as_deref().map(node_requirements_to_proto),
        booking: spec.booking.as_ref().map(Name::to_string).unwrap_or_default(),
        capacity: spec.capacity.as_deref().map(capacity_to_proto),
        affinity: spec.affinity.iter().map(affinity_to_proto).collect(),
        licences: licences_to_proto(&spec.licences),
        nice: spec.nice.into(),
        exclusive: spec.is_exclusive(),
        scratch_bytes: spec.scratch_bytes(),
        readiness: spec.readiness_ms.map(|ms| v1::ReadinessRule { timeout: Some(duration(ms)) }),
        retry: (retry != v1::RetryPolicy::default()).then_some(retry),
        checkpoint: (checkpoint != v1::CheckpointPolicy::default()).then_some(checkpoint),
        ..said
    }
}

fn selector_to_proto((label, values): (&Name, &BTreeSet<String>)) -> (String, v1::LabelValues) {
    (label.to_string(), v1::LabelValues { values: values.iter().cloned().collect() })
}

fn dependency_to_proto(dependency: &Dependency) -> v1::Dependency {
    let rule = number(dependency.rule);
    let array_id = ArrayId(dependency.job.0).to_string();
    match dependency.scope {
        DependencyScope::Job => {
            v1::Dependency { job_id: dependency.job.to_string(), rule, ..Default::default() }
        }
        DependencyScope::Array => v1::Dependency { array_id, rule, ..Default::default() },
        DependencyScope::Member => v1::Dependency { array_id, rule, by_member: true, ..Default::default() },
    }
}

fn group_to_proto(group: &TaskGroup) -> v1::TaskGroup {
    let variable = |(name, value): (&String, &String)| match value.strip_prefix(SECRET) {
        Some(secret) => v1::EnvVar::secret(name, secret),
        None => v1::EnvVar::new(name, value),
    };
    v1::TaskGroup {
        name: group.name.to_string(),
        workers: group.workers,
        min_workers: group.workers_min,
        runtime: match &group.container {
            None => process(group.command.clone()),
            Some(container) => Some(Runtime::Container(v1::ContainerRuntime {
                command: group.command.clone(),
                ..container_to_proto(container)
            })),
        },
        environment: group.environment.iter().map(variable).collect(),
        resources: Some(v1::Resources {
            accelerators: group.request.accelerators.as_ref().map(accelerator_request_to_proto),
            cpu_milli: group.request.cpu_milli,
            memory_bytes: group.request.memory_bytes,
        }),
        slice: group.slice.as_ref().map(slice_to_proto),
    }
}

/// Appends what one message submits when nothing was found so far; else only looks for more.
fn convert_into(jobs: &mut Vec<Submission>, at: &str, message: v1::Job, found: &mut Found) {
    let v1::Job { name, tenant, labels, annotations, spec, hold: held, .. } = message;
    let Some(mut spec) = spec else {
        found.push(Violation::new(below(at, "spec"), "must be given"));
        return;
    };
    let array = spec.array.take().and_then(|message| array(&below(at, "spec.array"), message, found));
    let named_dependencies = named_dependencies(&below(at, "spec"), &spec.dependencies, found);
    let contract = contract(&below(at, "spec"), &mut spec, found);
    let metadata = metadata(at, labels, annotations, found);
    let mut draft = draft(at, (name, tenant), spec, found);
    // Jobs that save in different places go different ways: so it counts among what a job reads.
    if let Some(place) = contract.checkpoint.place.as_ref().filter(|place| !draft.datasets.contains(place)) {
        draft.datasets.push(place.clone());
    }
    let Some(checked) = check(at, draft, found) else { return };
    check_contract(at, &checked, &contract, found);
    if found.is_empty() {
        jobs.push(Submission { spec: checked, contract, metadata, array, named_dependencies, held });
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
        found.extend(contract.violations(spec).into_iter().map(|v| in_message(v).under(at)).collect());
    }
}

/// The same rule by the message's field names.
fn in_message(violation: Violation) -> Violation {
    let field = violation.field.as_str();
    let field = match field {
        "name" | "tenant" => return violation,
        "failure_retries_max" => "retry.max_failures".to_owned(),
        "checkpoint_directory" => "checkpoint.directory".to_owned(),
        "checkpoint.place" => "checkpoint.dataset".to_owned(),
        "retry.backoff_max" => "retry.max_backoff".to_owned(),
        "topology.spread.workers_max" => "topology.spread.max_workers".to_owned(),
        "spares" => "spare_workers".to_owned(),
        of_group if of_group.starts_with("groups[") => {
            let in_group = [
                ("].request.", "].resources."),
                ("].command", "].process.command"),
                ("].workers_min", "].min_workers"),
            ];
            in_group.iter().fold(of_group.to_owned(), |field, (name, message)| {
                let is_it = field.split_once(name).is_some_and(|(group, _)| !group.contains(']'));
                if is_it { field.replacen(name, message, 1) } else { field }
            })
        }
        other => other.to_owned(),
    };
    Violation { field: format!("spec.{field}"), description: violation.description }
}

/// A draft with stand-ins for what is wrong, so that the remaining rules are checked too.
pub(super) fn draft(
    at: &str,
    (name, tenant): (String, String),
    message: v1::JobSpec,
    found: &mut Found,
) -> JobDraft {
    let name = found.take(name_below(at, "name", &name));
    let tenant = if tenant.is_empty() { TENANT_DEFAULT } else { &tenant };
    let tenant = found.take(name_below(at, "tenant", tenant));
    let at = &below(at, "spec");
    let tier = one_of(at, "tier", message.tier, found);
    let mut groups = groups(at, message.groups, found);
    for group in &mut groups {
        (group.request.exclusive, group.request.scratch_bytes) = (message.exclusive, message.scratch_bytes);
    }
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
        failure_retries_max: message.retry.map_or(0, |retry| retry.max_failures),
        checkpoint_directory: message.checkpoint.and_then(|checkpoint| given(checkpoint.directory)),
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
        nodes: node_requirements(at, message.nodes, found),
        booking: match message.booking.as_str() {
            "" => None,
            text => found.take(name_below(at, "booking", text)),
        },
        capacity: capacity(at, message.capacity, found),
        affinity: affinity(at, message.affinity, found),
        licences: licences(at, message.licences, found),
        nice: nice(at, message.nice, found),
        front: None,
        size: None,
        readiness_ms: readiness(at, message.readiness, found),
    }
}

/// Within which time workers have to be ready.
fn readiness(at: &str, rule: Option<v1::ReadinessRule>, found: &mut Found) -> Option<u64> {
    let rule = rule?;
    let at = below(at, "readiness");
    if rule.timeout.is_none() {
        found.push(Violation::new(below(&at, "timeout"), "must be given"));
    }
    span(&at, "timeout", rule.timeout, found)
}

/// A nice value. What an `i8` has beyond the bounds, the rules of a job refuse.
fn nice(at: &str, nice: i32, found: &mut Found) -> i8 {
    i8::try_from(nice).unwrap_or_else(|_| {
        let max = limits::NICE_MAX;
        let text = format!("must be between -{max} and {max}, got {nice}");
        found.push(Violation::new(below(at, "nice"), text));
        0
    })
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
    for (index, message) in messages.iter().enumerate().filter(|(_, on)| on.job_name.is_empty()) {
        let at = format!("{at}[{index}]");
        let on = waited_for(&at, message, found);
        let rule = found.take(value_from_proto(&below(&at, "rule"), message.rule));
        let rule = rule.map(|rule| rule.unwrap_or(DependencyRule::Succeeded));
        dependencies.extend(on.zip(rule).map(|((job, scope), rule)| Dependency { job, rule, scope }));
    }
    dependencies
}

/// Those on other jobs of the same request. What is beyond the bound is not looked at: [`dependencies`] reports it.
fn named_dependencies(at: &str, messages: &[v1::Dependency], found: &mut Found) -> Vec<NamedDependency> {
    let all = messages.iter().take(limits::JOB_DEPENDENCIES_MAX).enumerate();
    let mut named = Vec::new();
    for (place, message) in all.filter(|(_, on)| !on.job_name.is_empty()) {
        let at = format!("{}[{place}]", below(at, "dependencies"));
        if !(message.job_id.is_empty() && message.array_id.is_empty()) {
            found.push(Violation::new(&at, "must have one of job_id, array_id and job_name"));
            continue;
        }
        let name = found.take(name_below(&at, "job_name", &message.job_name));
        let rule = found.take(value_from_proto(&below(&at, "rule"), message.rule));
        let rule = rule.map(|rule| rule.unwrap_or(DependencyRule::Succeeded));
        let by_member = message.by_member;
        let on = name.zip(rule);
        named.extend(on.map(|(name, rule)| NamedDependency { name, rule, by_member, place: place as u32 }));
    }
    named
}

/// The job or array that a dependency is on.
fn waited_for(at: &str, message: &v1::Dependency, found: &mut Found) -> Option<(JobId, DependencyScope)> {
    if message.array_id.is_empty() {
        if message.by_member {
            found.push(Violation::new(below(at, "by_member"), "needs array_id or job_name"));
        }
        let job = found.take(job_id(&below(at, "job_id"), &message.job_id));
        return job.map(|job| (job, DependencyScope::Job));
    }
    if !message.job_id.is_empty() {
        found.push(Violation::new(at, "must have one of job_id, array_id and job_name"));
        return None;
    }
    let scope = if message.by_member { DependencyScope::Member } else { DependencyScope::Array };
    let array = found.take(array_id(&below(at, "array_id"), &message.array_id));
    array.map(|array| (JobId(array.0), scope))
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
    // A separate stand-in per group: two wrong names are not one name used twice.
    let stand_in = || Name::new(&format!("invalid-{index}")).unwrap_or_else(|| Name::literal("invalid"));
    let name = found.take(name).unwrap_or_else(stand_in);
    let (command, container) = runtime(at, message.runtime, found);
    let asked_slice = message.slice.is_some();
    let slice = message.slice.and_then(|slice| demand::slice(&below(at, "slice"), &slice, found));
    // What a slice that cannot be read would have said is not reported as missing too.
    let chips = asked_slice.then(|| slice.as_ref().map_or(1, demand::slice_chips));
    let asked = message.resources.unwrap_or_default();
    let accelerators = asked
        .accelerators
        .map(|request| demand::accelerators(&below(at, "resources.accelerators"), request, chips, found));
    let workers = match (message.workers, &slice) {
        (0, Some(slice)) => slice_workers(slice, accelerators.as_ref()),
        (0, None) if asked_slice => 1,
        (workers, _) => workers,
    };
    TaskGroup {
        name,
        workers,
        workers_min: if message.min_workers == 0 { workers } else { message.min_workers },
        command,
        environment: environment(&below(at, "environment"), message.environment, found),
        request: WorkerRequest {
            accelerators,
            cpu_milli: if asked.cpu_milli == 0 { CPU_MILLI_DEFAULT } else { asked.cpu_milli },
            memory_bytes: if asked.memory_bytes == 0 { MEMORY_BYTES_DEFAULT } else { asked.memory_bytes },
            exclusive: false,
            scratch_bytes: 0,
        },
        slice,
        container,
    }
}

/// The command of a worker, and its image if it has one.
fn runtime(at: &str, runtime: Option<Runtime>, found: &mut Found) -> (Vec<String>, Option<Container>) {
    match runtime {
        Some(Runtime::Process(v1::ProcessRuntime { mut command })) => {
            bound_below(at, "process.command", &mut command, limits::COMMAND_WORDS_MAX, found);
            (command, None)
        }
        Some(Runtime::Container(mut message)) => {
            let mut command = std::mem::take(&mut message.command);
            bound_below(at, "container.command", &mut command, limits::COMMAND_WORDS_MAX, found);
            (command, Some(container_from_proto(&below(at, "container"), message, found)))
        }
        None => (Vec::new(), None),
    }
}

/// Variables by name. A reference to a secret is recorded as a text that no value may have.
fn environment(at: &str, mut messages: Vec<v1::EnvVar>, found: &mut Found) -> BTreeMap<String, String> {
    bound(at, &mut messages, limits::ENVIRONMENT_MAX, found);
    let mut variables = BTreeMap::new();
    for (index, v1::EnvVar { name, source }) in messages.into_iter().enumerate() {
        let field = |part: &str| format!("{at}[{index}].{part}");
        let value = match source {
            Some(Source::Value(value)) if value.starts_with(SECRET) => {
                found.push(Violation::new(field("value"), "names a secret; use `secret_ref`"));
                continue;
            }
            Some(Source::Value(value)) => value,
            Some(Source::SecretRef(secret)) if secret.is_empty() => {
                found.push(Violation::new(field("secret_ref"), "must be given"));
                continue;
            }
            Some(Source::SecretRef(secret)) => format!("{SECRET}{secret}"),
            None => String::new(),
        };
        if variables.contains_key(&name) {
            found.push(Violation::new(field("name"), format!("must not name {} twice", shown(&name))));
            continue;
        }
        variables.insert(name, value);
    }
    variables
}
