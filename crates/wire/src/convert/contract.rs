//! What jobs ask of the node that runs them.

use std::collections::{BTreeMap, BTreeSet};

use muster_types::policy::NotificationEvent;
use muster_types::{
    ArtifactRules, BlobDigest, CheckpointRules, CommandShell, CpuBinding, FailureClass, HostRules,
    JobContract, JobNotification, NoticeRules, RetryRules, TraceParent, Ulimits, Violation,
    fleet::checked_name,
};

use super::{Found, below, bound, one_of, span};
use crate::closed::{given_from_proto, number};
use crate::time::duration;
use crate::v1;

/// What the message of a job says of its contract, checked as far as that needs no job; what it says of the job
/// itself stays. `at` is the path of the message.
pub(super) fn contract(at: &str, message: &mut v1::JobSpec, found: &mut Found) -> JobContract {
    let field = |name: &str| below(at, name);
    let launch = one_of(at, "launch", message.launch, found);
    let preflight = one_of(at, "preflight", message.preflight, found);
    let rules = message.retry.as_mut();
    let retry = rules.map(|rules| retry(&field("retry"), rules, found)).unwrap_or_default();
    let rules = message.checkpoint.as_mut();
    let checkpoint = rules.map(|rules| checkpoint(&field("checkpoint"), rules, found)).unwrap_or_default();
    let rules = message.notice.take();
    let notice = rules.map(|rules| notice(&field("notice"), rules, found)).unwrap_or_default();
    let asked = message.workdir.take();
    let workdir = asked.and_then(|asked| found.take(workdir_from_proto(&field("workdir"), &asked)));
    let artifacts = message.artifacts.take().map(|mut asked| {
        let at = below(&field("artifacts"), "paths");
        bound(&at, &mut asked.paths, muster_types::limits::ARTIFACT_PATHS_MAX, found);
        artifacts_from_proto(asked)
    });
    let ulimits = message.ulimits.take().map(ulimits_from_proto).unwrap_or_default();
    let host = message.host.take().map(|asked| host_rules(&field("host"), &asked, found)).unwrap_or_default();
    let spares = message.spare_workers;
    let said = trace_parent_from_proto(&field("trace_parent"), &message.trace_parent);
    let trace_parent = found.take(said).flatten();
    let notify = notifications(&field("notify"), std::mem::take(&mut message.notify), found);
    JobContract {
        launch,
        retry,
        checkpoint,
        notice,
        spares,
        preflight,
        workdir,
        artifacts,
        ulimits,
        host,
        trace_parent,
        terminal: message.terminal,
        notify,
    }
}

/// The span that a field names; none when it is empty.
///
/// # Errors
/// The rule that it breaks.
fn trace_parent_from_proto(at: &str, text: &str) -> Result<Option<TraceParent>, Violation> {
    match text {
        "" => Ok(None),
        text => TraceParent::parse(text).map(Some).map_err(|rule| Violation::new(at, rule)),
    }
}

fn host_rules(at: &str, message: &v1::HostRules, found: &mut Found) -> HostRules {
    HostRules {
        binding: one_of(at, "binding", message.binding, found),
        shell: one_of(at, "shell", message.shell, found),
        shared_memory_bytes: message.shared_memory_bytes,
    }
}

/// How workers are run on their hosts. A value that this version does not know is refused: the worker would run in another way.
///
/// # Errors
/// The first field that breaks a rule.
pub fn host_rules_from_proto(message: &v1::HostRules) -> Result<HostRules, Violation> {
    let mut found = Found::default();
    let rules = host_rules("", message, &mut found);
    let mut broken = found.into_violations();
    rules.check(&mut broken);
    broken.into_iter().next().map_or(Ok(rules), Err)
}

/// The same as a message; none when they say nothing.
#[must_use]
pub fn host_rules_to_proto(rules: &HostRules) -> Option<v1::HostRules> {
    (!rules.is_default()).then(|| v1::HostRules {
        binding: if rules.binding == CpuBinding::None { 0 } else { number(rules.binding) },
        shell: if rules.shell == CommandShell::None { 0 } else { number(rules.shell) },
        shared_memory_bytes: rules.shared_memory_bytes,
    })
}

/// Receivers that a job names.
fn notifications(
    at: &str,
    mut messages: Vec<v1::JobNotification>,
    found: &mut Found,
) -> Vec<JobNotification> {
    bound(at, &mut messages, muster_types::limits::JOB_NOTIFICATIONS_MAX, found);
    let mut entries = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        let receiver = found.take(checked_name(&below(&at, "receiver"), &message.receiver));
        let events = notification_events(&below(&at, "events"), message.events, found);
        entries.extend(receiver.map(|receiver| JobNotification { receiver, events }));
    }
    entries
}

/// Events of notifications, each once.
pub(super) fn notification_events(
    at: &str,
    mut numbers: Vec<i32>,
    found: &mut Found,
) -> BTreeSet<NotificationEvent> {
    bound(at, &mut numbers, NotificationEvent::ALL.len(), found);
    let mut events = BTreeSet::new();
    for (index, number) in numbers.iter().enumerate() {
        events.extend(found.take(given_from_proto::<NotificationEvent>(&format!("{at}[{index}]"), *number)));
    }
    events
}

/// The limits that a message has, not checked.
#[must_use]
pub fn ulimits_from_proto(message: v1::Ulimits) -> Ulimits {
    let v1::Ulimits { open_files, core_bytes, locked_bytes, stack_bytes } = message;
    Ulimits { open_files, core_bytes, locked_bytes, stack_bytes }
}

/// The same as a message; none when they say nothing.
#[must_use]
pub fn ulimits_to_proto(ulimits: &Ulimits) -> Option<v1::Ulimits> {
    let Ulimits { open_files, core_bytes, locked_bytes, stack_bytes } = *ulimits;
    (!ulimits.is_default()).then_some(v1::Ulimits { open_files, core_bytes, locked_bytes, stack_bytes })
}

/// Which files of its workers a job wants back. Its check finds what is wrong with it.
#[must_use]
pub fn artifacts_from_proto(message: v1::ArtifactRules) -> ArtifactRules {
    let v1::ArtifactRules { paths, required } = message;
    ArtifactRules { paths, required }
}

/// The same as a message.
#[must_use]
pub fn artifacts_to_proto(rules: &ArtifactRules) -> v1::ArtifactRules {
    v1::ArtifactRules { paths: rules.paths.clone(), required: rules.required }
}

/// The files that a message names.
///
/// # Errors
/// The rule that their digest breaks.
pub fn workdir_from_proto(at: &str, message: &v1::Workdir) -> Result<BlobDigest, Violation> {
    BlobDigest::parse(&message.digest).map_err(|rule| Violation::new(below(at, "digest"), rule))
}

/// The same as a message.
#[must_use]
pub fn workdir_to_proto(digest: BlobDigest) -> v1::Workdir {
    v1::Workdir { digest: digest.to_string() }
}

fn limits(at: &str, mut messages: Vec<v1::RetryLimit>, found: &mut Found) -> BTreeMap<FailureClass, u32> {
    bound(at, &mut messages, FailureClass::ALL.len(), found);
    let mut limits = BTreeMap::new();
    for (index, message) in messages.iter().enumerate() {
        let field = format!("{at}[{index}].failure_class");
        let class = found.take(given_from_proto::<FailureClass>(&field, message.failure_class));
        if let Some(class) = class
            && limits.insert(class, message.retries).is_some()
        {
            found.push(Violation::new(field, format!("must not name {class} twice")));
        }
    }
    limits
}

fn retry(at: &str, message: &mut v1::RetryPolicy, found: &mut Found) -> RetryRules {
    RetryRules {
        limits: limits(&below(at, "limits"), std::mem::take(&mut message.limits), found),
        backoff_ms: span(at, "backoff", message.backoff, found),
        backoff_max_ms: span(at, "max_backoff", message.max_backoff, found),
        avoid_ms: span(at, "avoid", message.avoid, found),
    }
}

fn checkpoint(at: &str, message: &v1::CheckpointPolicy, found: &mut Found) -> CheckpointRules {
    let dataset = Some(message.dataset.as_str()).filter(|dataset| !dataset.is_empty());
    CheckpointRules {
        place: dataset.and_then(|dataset| found.take(checked_name(&below(at, "dataset"), dataset))),
        step_ms: span(at, "step", message.step, found),
        save_ms: span(at, "save", message.save, found),
        interval_ms: span(at, "interval", message.interval, found),
    }
}

fn notice(at: &str, message: v1::NoticeRules, found: &mut Found) -> NoticeRules {
    let port = u16::try_from(message.http_port);
    if port.is_err() {
        let max = u64::from(u16::MAX);
        found.push(Violation::limit(&below(at, "http_port"), message.http_port.into(), 0, max));
    }
    NoticeRules { http_port: port.ok().filter(|port| *port != 0), http_path: message.http_path }
}

/// What the message of a job says of its contract.
pub(super) fn contract_to_proto(contract: &JobContract) -> v1::JobSpec {
    if contract.is_default() {
        return v1::JobSpec::default();
    }
    let JobContract {
        launch,
        retry,
        checkpoint,
        notice,
        spares,
        preflight,
        workdir,
        artifacts,
        ulimits,
        host,
        trace_parent,
        terminal,
        notify,
    } = contract;
    let limits = retry
        .limits
        .iter()
        .map(|(class, retries)| v1::RetryLimit { failure_class: number(*class), retries: *retries });
    let rules = v1::RetryPolicy {
        max_failures: 0,
        limits: limits.collect(),
        backoff: retry.backoff_ms.map(duration),
        max_backoff: retry.backoff_max_ms.map(duration),
        avoid: retry.avoid_ms.map(duration),
    };
    let saves = v1::CheckpointPolicy {
        directory: String::new(),
        dataset: checkpoint.place.as_ref().map(ToString::to_string).unwrap_or_default(),
        step: checkpoint.step_ms.map(duration),
        save: checkpoint.save_ms.map(duration),
        interval: checkpoint.interval_ms.map(duration),
    };
    v1::JobSpec {
        launch: number(*launch),
        retry: Some(rules),
        checkpoint: Some(saves),
        notice: notice_to_proto(notice),
        spare_workers: *spares,
        preflight: number(*preflight),
        workdir: workdir.map(workdir_to_proto),
        artifacts: artifacts.as_ref().map(artifacts_to_proto),
        ulimits: ulimits_to_proto(ulimits),
        host: host_rules_to_proto(host),
        trace_parent: trace_parent.map(|parent| parent.to_string()).unwrap_or_default(),
        terminal: *terminal,
        notify: notify.iter().map(notification_to_proto).collect(),
        ..v1::JobSpec::default()
    }
}

fn notification_to_proto(entry: &JobNotification) -> v1::JobNotification {
    v1::JobNotification {
        receiver: entry.receiver.to_string(),
        events: entry.events.iter().map(|event| number(*event)).collect(),
    }
}

/// As a message; none when there is no other way than SIGTERM and a file.
#[must_use]
pub fn notice_to_proto(notice: &NoticeRules) -> Option<v1::NoticeRules> {
    let port = notice.http_port?;
    Some(v1::NoticeRules { http_port: port.into(), http_path: notice.http_path.clone() })
}
