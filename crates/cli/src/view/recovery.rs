//! What became of a job's attempts, and what it asks of whoever runs it, as commands show it.

use muster_console::{moment, span};
use muster_manifest::quantity::show_about;
use muster_types::{FailureClass, LaunchForm, Preflight};
use muster_wire::closed::word;
use muster_wire::time::{Duration, span_ms};
use muster_wire::v1;
use serde::Serialize;
use std::collections::BTreeMap;

/// Content of `Recovery`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<Failure>,
    /// By class; left out in lists.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u32>,
    /// Failures in a row, without an attempt that made headway.
    pub streak: u32,
    /// Not to be placed again before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_time: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub avoided: Vec<Avoided>,
    /// When it last saved its work, in whatever attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_attempt: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stragglers: Vec<Straggler>,
}

/// How an attempt came to its end before its work was done.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    pub class: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    pub detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    pub attempt: u32,
}

/// A node that a job keeps away from.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Avoided {
    pub node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_time: Option<String>,
}

/// A rank that takes much longer for its steps than its gang.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Straggler {
    pub rank: u32,
    pub node: String,
    /// In thousandths of what the steps take the median rank.
    pub slow_milli: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
}

/// Content of `CheckpointAdvice`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    pub nodes: u64,
    pub mttf: String,
    pub save: String,
    pub restart: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// Part of the time that is work which is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ettr_milli: Option<u32>,
    pub advised_interval: String,
    pub advised_ettr_milli: u32,
}

/// Content of `JobContract`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Contract {
    pub launch: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub retry_limits: BTreeMap<String, u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_max: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub avoid: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub checkpoint_place: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    pub spares: u32,
    pub preflight: String,
}

impl From<v1::Recovery> for Recovery {
    fn from(message: v1::Recovery) -> Recovery {
        let failure = |failure: v1::Failure| Failure {
            class: word::<FailureClass>(failure.failure_class).to_owned(),
            rank: failure.rank,
            node: failure.node_name,
            detail: failure.detail,
            time: moment(failure.time),
            attempt: failure.attempt,
        };
        let avoided =
            |node: v1::AvoidedNode| Avoided { node: node.node_name, expire_time: moment(node.expire_time) };
        let straggler = |slow: v1::Straggler| Straggler {
            rank: slow.rank,
            node: slow.node_name,
            slow_milli: slow.slow_milli,
            start_time: moment(slow.start_time),
        };
        Recovery {
            last_failure: message.last_failure.map(failure),
            failures: message
                .failures
                .into_iter()
                .map(|f| (word::<FailureClass>(f.failure_class).to_owned(), f.count))
                .collect(),
            streak: message.streak,
            retry_time: moment(message.retry_time),
            avoided: message.avoided.into_iter().map(avoided).collect(),
            checkpoint_time: moment(message.checkpoint_time),
            saved_attempt: Some(message.saved_attempt).filter(|attempt| *attempt > 0),
            stragglers: message.stragglers.into_iter().map(straggler).collect(),
        }
    }
}

impl From<v1::CheckpointAdvice> for Advice {
    fn from(advice: v1::CheckpointAdvice) -> Advice {
        let about = |span: Option<Duration>| show_about(span_ms(span).unwrap_or_default());
        Advice {
            nodes: advice.nodes,
            mttf: about(advice.mttf),
            save: about(advice.save),
            restart: about(advice.restart),
            interval: advice.interval.map(|interval| about(Some(interval))),
            ettr_milli: advice.ettr_milli,
            advised_interval: about(advice.advised_interval),
            advised_ettr_milli: advice.advised_ettr_milli,
        }
    }
}

impl From<v1::JobContract> for Contract {
    fn from(contract: v1::JobContract) -> Contract {
        let retry = contract.retry.unwrap_or_default();
        let checkpoint = contract.checkpoint.unwrap_or_default();
        Contract {
            launch: word::<LaunchForm>(contract.launch).to_owned(),
            retry_limits: retry
                .limits
                .into_iter()
                .map(|limit| (word::<FailureClass>(limit.failure_class).to_owned(), limit.retries))
                .collect(),
            backoff: span(retry.backoff),
            backoff_max: span(retry.backoff_max),
            avoid: span(retry.avoid),
            checkpoint_place: checkpoint.place,
            step: span(checkpoint.step),
            save: span(checkpoint.save),
            interval: span(checkpoint.interval),
            notice: contract
                .notice
                .map(|to| format!("POST http://127.0.0.1:{}{}", to.http_port, to.http_path)),
            spares: contract.spares,
            preflight: word::<Preflight>(contract.preflight).to_owned(),
        }
    }
}

/// What people are told of a job's attempts: a name and a text each.
pub fn lines(recovery: &Recovery) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Some(last) = &recovery.last_failure {
        let rank = last.rank.map(|rank| format!(" of rank {rank}")).unwrap_or_default();
        let node = if last.node.is_empty() { String::new() } else { format!(" on {}", last.node) };
        let Failure { class, detail, attempt, .. } = last;
        lines.push(("last failure", format!("attempt {attempt}: {class}{rank}{node}: {detail}")));
    }
    if !recovery.failures.is_empty() {
        let counts = recovery.failures.iter().map(|(class, count)| format!("{class} {count}"));
        lines.push(("failed attempts", counts.collect::<Vec<_>>().join(", ")));
    }
    if recovery.streak > 1 {
        lines.push(("failed in a row", recovery.streak.to_string()));
    }
    if let Some(until) = &recovery.retry_time {
        lines.push(("tried again", format!("not before {until}")));
    }
    for Avoided { node, expire_time } in &recovery.avoided {
        let until = expire_time.as_deref().unwrap_or_default();
        lines.push(("keeps away from", format!("{node} until {until}")));
    }
    for slow in &recovery.stragglers {
        let (whole, tenths) = (slow.slow_milli / 1_000, slow.slow_milli % 1_000 / 100);
        let text = format!("rank {} on {}: {whole}.{tenths} times as long for a step", slow.rank, slow.node);
        lines.push(("straggler", text));
    }
    lines.extend(recovery.checkpoint_time.as_ref().map(|at| {
        let attempt = recovery.saved_attempt.map(|n| format!(" in attempt {n}")).unwrap_or_default();
        ("last saved", format!("{at}{attempt}"))
    }));
    lines
}

/// What people are told of checkpoints.
pub fn advice_lines(advice: &Advice) -> Vec<String> {
    let percent = |milli: u32| format!("{}.{} %", milli / 10, milli % 10);
    let mut lines = vec![format!(
        "one failure in {} on {} nodes; a save takes {}, a restart {}",
        advice.mttf, advice.nodes, advice.save, advice.restart
    )];
    if let (Some(interval), Some(ettr)) = (&advice.interval, advice.ettr_milli) {
        lines.push(format!("saved every {interval}, {} of its time is work that is kept", percent(ettr)));
    }
    let (interval, ettr) = (&advice.advised_interval, percent(advice.advised_ettr_milli));
    lines.push(format!("saving every {interval} would keep most: {ettr}"));
    lines
}

#[cfg(test)]
mod tests {
    use super::{Advice, advice_lines};
    use muster_wire::time::duration;
    use muster_wire::v1;

    #[test]
    fn advice_says_what_is_expected_and_what_would_be_best() {
        let advice = v1::CheckpointAdvice {
            nodes: 1_024,
            mttf: Some(duration(28_440_000)),
            save: Some(duration(60_000)),
            restart: Some(duration(300_000)),
            interval: Some(duration(3_600_000)),
            ettr_milli: Some(912),
            advised_interval: Some(duration(1_847_000)),
            advised_ettr_milli: 926,
        };
        let lines = advice_lines(&Advice::from(advice));
        assert!(lines[1].contains("91.2 % of its time"), "{lines:?}");
        assert!(lines[2].contains("92.6 %"), "{lines:?}");
        let silent = v1::CheckpointAdvice { nodes: 1, advised_ettr_milli: 999, ..Default::default() };
        assert_eq!(advice_lines(&Advice::from(silent)).len(), 2, "nothing was said of an interval");
    }
}
