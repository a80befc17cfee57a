//! What jobs ask of whoever runs them.

use std::collections::{BTreeMap, HashMap};

use muster_types::{
    CheckpointRules, FailureClass, JobContract, LaunchForm, NoticeRules, Preflight, RetryRules, Violation,
    fleet::checked_name,
};

use super::{Found, below, shown};
use crate::v1;

/// The contract in a message, checked as far as it needs no job beside it. `at` is its path.
pub(super) fn contract(at: &str, message: Option<v1::JobContract>, found: &mut Found) -> JobContract {
    let Some(message) = message else { return JobContract::default() };
    let field = |name: &str| below(at, name);
    let launch = known(&field("launch"), &message.launch, LaunchForm::ALL, LaunchForm::as_str, found);
    let preflight = known(&field("preflight"), &message.preflight, Preflight::ALL, Preflight::as_str, found);
    JobContract {
        launch,
        retry: message.retry.map(|rules| retry(&field("retry"), rules, found)).unwrap_or_default(),
        checkpoint: message
            .checkpoint
            .map(|rules| checkpoint(&field("checkpoint"), rules, found))
            .unwrap_or_default(),
        notice: message.notice.map(|rules| notice(&field("notice"), rules, found)).unwrap_or_default(),
        spares: message.spares,
        preflight,
    }
}

/// One of a closed set; empty is the default.
fn known<T: Copy + Default>(
    field: &str,
    text: &str,
    all: &[T],
    as_str: impl Fn(T) -> &'static str,
    found: &mut Found,
) -> T {
    if text.is_empty() {
        return T::default();
    }
    all.iter().copied().find(|value| as_str(*value) == text).unwrap_or_else(|| {
        let known: Vec<&str> = all.iter().map(|value| as_str(*value)).collect();
        let text = format!("must be one of {}, got {}", known.join(", "), shown(text));
        found.push(Violation::new(field, text));
        T::default()
    })
}

/// Too many limits are not looked at one by one: which of them would be, a hash map cannot say.
fn limits(field: &str, messages: HashMap<String, u32>, found: &mut Found) -> BTreeMap<FailureClass, u32> {
    let max = FailureClass::ALL.len();
    if messages.len() > max {
        found.push(Violation::limit(field, messages.len() as u64, 0, max as u64));
        return BTreeMap::new();
    }
    let mut limits = BTreeMap::new();
    // By name, so that the same message always leads to the same answer.
    for (name, retries) in messages.into_iter().collect::<BTreeMap<_, _>>() {
        if let Some(class) = FailureClass::parse(&name) {
            limits.insert(class, retries);
        } else {
            let known: Vec<&str> = FailureClass::ALL.iter().map(|class| class.as_str()).collect();
            let text = format!("has classes {}, not {}", known.join(", "), shown(&name));
            found.push(Violation::new(field, text));
        }
    }
    limits
}

fn retry(at: &str, message: v1::RetryRules, found: &mut Found) -> RetryRules {
    RetryRules {
        limits: limits(&below(at, "limits"), message.limits, found),
        backoff_ms: message.backoff_ms,
        backoff_max_ms: message.backoff_max_ms,
        avoid_ms: message.avoid_ms,
    }
}

fn checkpoint(at: &str, message: v1::CheckpointRules, found: &mut Found) -> CheckpointRules {
    let given = |ms: u64| (ms != 0).then_some(ms);
    let place = Some(message.place).filter(|place| !place.is_empty());
    CheckpointRules {
        place: place.and_then(|place| found.take(checked_name(&below(at, "place"), &place))),
        step_ms: given(message.step_ms),
        save_ms: given(message.save_ms),
        interval_ms: given(message.interval_ms),
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

/// The message of a contract; none for one that says nothing.
#[must_use]
pub fn contract_to_proto(contract: &JobContract) -> Option<v1::JobContract> {
    if contract.is_default() {
        return None;
    }
    let JobContract { launch, retry, checkpoint, notice, spares, preflight } = contract;
    let limits = retry.limits.iter().map(|(class, retries)| (class.to_string(), *retries));
    let rules = v1::RetryRules {
        limits: limits.collect(),
        backoff_ms: retry.backoff_ms,
        backoff_max_ms: retry.backoff_max_ms,
        avoid_ms: retry.avoid_ms,
    };
    let saves = v1::CheckpointRules {
        place: checkpoint.place.as_ref().map(ToString::to_string).unwrap_or_default(),
        step_ms: checkpoint.step_ms.unwrap_or(0),
        save_ms: checkpoint.save_ms.unwrap_or(0),
        interval_ms: checkpoint.interval_ms.unwrap_or(0),
    };
    Some(v1::JobContract {
        launch: launch.to_string(),
        retry: (*retry != RetryRules::default()).then_some(rules),
        checkpoint: (*checkpoint != CheckpointRules::default()).then_some(saves),
        notice: notice_to_proto(notice),
        spares: *spares,
        preflight: preflight.to_string(),
    })
}

/// As a message; none when there is no other way than SIGTERM and a file.
#[must_use]
pub fn notice_to_proto(notice: &NoticeRules) -> Option<v1::NoticeRules> {
    let port = notice.http_port?;
    Some(v1::NoticeRules { http_port: port.into(), http_path: notice.http_path.clone() })
}
