//! What became of a job's attempts, as commands show it.

use muster_console::moment;
use muster_manifest::quantity::show_about;
use muster_types::FailureClass;
use muster_wire::closed::word;
use muster_wire::time::{Duration, span_ms};
use muster_wire::v1;
use serde::Serialize;
use std::collections::BTreeMap;

/// Ranks whose artifacts were not all kept that a person is told of; `muster artifacts list` has the others.
const FAULTS_SHOWN_MAX: usize = 8;

/// Content of `AttemptHistory`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptHistory {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<Failure>,
    /// By class; left out in lists.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u32>,
    /// Failures in a row, without an attempt that made headway.
    pub consecutive_failures: u32,
    /// Not to be placed again before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_time: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub avoided: Vec<Avoided>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stragglers: Vec<Straggler>,
    /// What became of the files of workers that have ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifacts>,
}

/// What became of the artifacts of one worker.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Artifacts {
    pub rank: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub digest: String,
    pub files: u32,
    pub bytes: u64,
    /// Links, devices and files of other users.
    pub left_out: u32,
    /// Why not all were kept, and by which path of the job that was seen.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fault: String,
    pub fault_path: u32,
}

impl From<v1::WorkerArtifacts> for Artifacts {
    fn from(kept: v1::WorkerArtifacts) -> Artifacts {
        let v1::WorkerArtifacts { rank, token: _, digest, files, bytes, left_out, fault, fault_path } = kept;
        Artifacts { rank, digest, files, bytes, left_out, fault, fault_path }
    }
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
    pub message: String,
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

impl From<v1::AttemptHistory> for AttemptHistory {
    fn from(message: v1::AttemptHistory) -> AttemptHistory {
        let failure = |failure: v1::Failure| Failure {
            class: word::<FailureClass>(failure.failure_class).to_owned(),
            rank: failure.rank,
            node: failure.node_name,
            message: failure.message,
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
        AttemptHistory {
            last_failure: message.last_failure.map(failure),
            failures: message
                .failures
                .into_iter()
                .map(|f| (word::<FailureClass>(f.failure_class).to_owned(), f.count))
                .collect(),
            consecutive_failures: message.consecutive_failures,
            retry_time: moment(message.retry_time),
            avoided: message.avoided.into_iter().map(avoided).collect(),
            stragglers: message.stragglers.into_iter().map(straggler).collect(),
            artifacts: message.artifacts.into_iter().map(Artifacts::from).collect(),
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

/// What people are told of a job's attempts: a name and a text each.
pub fn lines(history: &AttemptHistory) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Some(last) = &history.last_failure {
        let rank = last.rank.map(|rank| format!(" of rank {rank}")).unwrap_or_default();
        let node = if last.node.is_empty() { String::new() } else { format!(" on {}", last.node) };
        let Failure { class, message, attempt, .. } = last;
        lines.push(("last failure", format!("attempt {attempt}: {class}{rank}{node}: {message}")));
    }
    if !history.failures.is_empty() {
        let counts = history.failures.iter().map(|(class, count)| format!("{class} {count}"));
        lines.push(("failed attempts", counts.collect::<Vec<_>>().join(", ")));
    }
    if history.consecutive_failures > 1 {
        lines.push(("failed in a row", history.consecutive_failures.to_string()));
    }
    if let Some(until) = &history.retry_time {
        lines.push(("tried again", format!("not before {until}")));
    }
    for Avoided { node, expire_time } in &history.avoided {
        let until = expire_time.as_deref().unwrap_or_default();
        lines.push(("keeps away from", format!("{node} until {until}")));
    }
    for slow in &history.stragglers {
        let (whole, tenths) = (slow.slow_milli / 1_000, slow.slow_milli % 1_000 / 100);
        let text = format!("rank {} on {}: {whole}.{tenths} times as long for a step", slow.rank, slow.node);
        lines.push(("straggler", text));
    }
    for kept in history.artifacts.iter().filter(|kept| !kept.fault.is_empty()).take(FAULTS_SHOWN_MAX) {
        let Artifacts { rank, fault, fault_path, .. } = kept;
        lines.push(("not kept", format!("rank {rank}: {fault} at path {fault_path} of its artifacts")));
    }
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
