//! What a bundle says of jobs, nodes and decisions.
//!
//! **Invariant:** every field is named here one by one. Text that people or programs wrote is in none of them: names of jobs,
//! labels, annotations, commands, environments, messages. A field that is new in the protocol is left out until it is added here.

use muster_console::{moment, span};
use muster_types::{ArrayId, JobId, NodeId, PriorityTier};
use muster_wire::closed::{phase_word, word};
use muster_wire::v1;
use serde::Serialize;
use serde_json::{Map, Value};

/// A job.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Job {
    id: String,
    tenant: String,
    phase: &'static str,
    tier: &'static str,
    reason: String,
    attempt: u32,
    failures: u32,
    preemptions: u32,
    eligible: bool,
    workers: u32,
    devices: u64,
    create_time: Option<String>,
    start_time: Option<String>,
    end_time: Option<String>,
    region: Option<String>,
    cluster: Option<String>,
    array: Option<String>,
    changed_at_index: u64,
}

impl Job {
    pub(super) fn of(job: &v1::Job) -> Job {
        let status = job.status();
        let placement = status.placement.as_ref();
        Job {
            id: job.id.clone(),
            tenant: job.tenant.clone(),
            phase: phase_word(status.phase()),
            tier: word::<PriorityTier>(status.tier),
            reason: code(&status.reason),
            attempt: status.attempt,
            failures: status.failures,
            preemptions: status.preemptions,
            eligible: status.eligible,
            workers: status.worker_count,
            devices: status.device_count,
            create_time: moment(status.create_time),
            start_time: moment(status.start_time),
            end_time: moment(status.end_time),
            region: placement.map(|at| at.region.clone()),
            cluster: placement.map(|at| at.cluster.clone()),
            array: job.array.as_ref().map(|member| format!("{}[{}]", member.array_id, member.index)),
            changed_at_index: status.changed_at_index,
        }
    }
}

/// A stable code; anything else that stands in its place is left out.
fn code(text: &str) -> String {
    let is_code =
        text.len() <= 64 && text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    if is_code { text.to_owned() } else { "(left out)".to_owned() }
}

/// A node.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Node {
    id: String,
    name: String,
    region: String,
    cluster: String,
    block: String,
    rack: String,
    status: &'static str,
    cordoned: bool,
    incarnation: u32,
    accelerator: Option<String>,
    devices: u32,
    free_devices: u32,
    unusable_devices: Vec<u32>,
    cpu_milli: u64,
    free_cpu_milli: u64,
    memory_bytes: u64,
    free_memory_bytes: u64,
    job_ids: Vec<String>,
    draining: bool,
    quarantined: bool,
    in_repair: bool,
    out_of_service: bool,
    conditions: Vec<Condition>,
    change_time: Option<String>,
    changed_at_index: u64,
}

/// Something that an agent has found.
#[derive(Serialize)]
struct Condition {
    finding: String,
    device: Option<u32>,
    count: u32,
    since: Option<String>,
}

impl Node {
    pub(super) fn of(node: &v1::Node) -> Node {
        let described = node.description.clone().unwrap_or_default();
        let known = node.restriction.clone().unwrap_or_default();
        let condition = |found: v1::NodeCondition| Condition {
            finding: found.finding,
            device: found.device,
            count: found.count,
            since: moment(found.start_time),
        };
        Node {
            id: node.id.clone(),
            name: described.name,
            region: described.region,
            cluster: described.cluster,
            block: described.block,
            rack: described.rack,
            status: match node.status() {
                v1::NodeStatus::Up => "up",
                v1::NodeStatus::Lost => "lost",
                v1::NodeStatus::Unspecified => "unknown",
            },
            cordoned: node.cordoned,
            incarnation: node.incarnation,
            devices: described.accelerators.as_ref().map_or(0, |all| all.count),
            accelerator: described.accelerators.map(|all| all.r#type),
            free_devices: node.free_devices,
            unusable_devices: known.unusable_devices,
            cpu_milli: described.cpu_milli,
            free_cpu_milli: node.free_cpu_milli,
            memory_bytes: described.memory_bytes,
            free_memory_bytes: node.free_memory_bytes,
            job_ids: node.job_ids.clone(),
            draining: known.drain.is_some(),
            quarantined: known.quarantine.is_some(),
            in_repair: known.repair.is_some(),
            out_of_service: known.out_of_service,
            conditions: known.conditions.into_iter().map(condition).collect(),
            change_time: moment(node.change_time),
            changed_at_index: node.changed_at_index,
        }
    }
}

/// A decision: its name, its place in the log, and of its fields the numbers and ids.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Decision {
    log_index: u64,
    log_time: Option<String>,
    term: u64,
    leader: u64,
    raft_index: u64,
    generation: u32,
    decision: String,
    fields: Map<String, Value>,
}

impl Decision {
    pub(super) fn of(record: &v1::LogRecord) -> Decision {
        Decision {
            log_index: record.log_index,
            log_time: moment(record.log_time),
            term: record.term,
            leader: record.leader_id,
            raft_index: record.raft_index,
            generation: record.generation,
            decision: record.decision.clone(),
            fields: fields(&record.content_json),
        }
    }
}

/// Of a decision's fields those that hold nothing that somebody wrote: numbers, ids, and how long its lists are.
fn fields(content: &str) -> Map<String, Value> {
    let Ok(Value::Object(content)) = serde_json::from_str::<Value>(content) else { return Map::new() };
    let shown = |value: Value| match value {
        Value::Number(_) | Value::Bool(_) => Some(value),
        Value::String(text) if is_id(&text) => Some(Value::String(text)),
        Value::Array(items) => Some(serde_json::json!({ "count": items.len() })),
        Value::Null | Value::String(_) | Value::Object(_) => None,
    };
    content.into_iter().filter_map(|(name, value)| Some((name, shown(value)?))).collect()
}

fn is_id(text: &str) -> bool {
    text.parse::<JobId>().is_ok() || text.parse::<NodeId>().is_ok() || text.parse::<ArrayId>().is_ok()
}

/// A policy with the scheme and host of each receiver of notifications: of many chat services the rest of the address is all that it
/// takes to write there.
pub(super) fn without_receiver_paths(mut answer: v1::GetPolicyResponse) -> v1::GetPolicyResponse {
    for receiver in answer.policy.iter_mut().flat_map(|policy| &mut policy.notifications) {
        let Some((scheme, rest)) = receiver.url.split_once("://") else { continue };
        let host = rest.split(['/', '?']).next().unwrap_or_default();
        if host != rest {
            receiver.url = format!("{scheme}://{host}/(left-out)");
        }
    }
    answer
}

/// A replica.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Member {
    id: u64,
    region: String,
    client_endpoint: String,
    peer_endpoint: String,
    voter: bool,
    leader: bool,
    matched_index: u64,
    lag_entries: Option<u64>,
    silence: Option<String>,
}

impl Member {
    pub(super) fn of(replica: &v1::Replica) -> Member {
        Member {
            id: replica.id,
            region: replica.region.clone(),
            client_endpoint: replica.client_endpoint.clone(),
            peer_endpoint: replica.peer_endpoint.clone(),
            voter: replica.voter,
            leader: replica.leader,
            matched_index: replica.matched_index,
            lag_entries: replica.lag_entries,
            silence: span(replica.silence),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "CANARY-8f1c";

    #[test]
    fn a_job_is_shown_without_what_people_wrote() {
        let text = || CANARY.to_owned();
        let group = v1::TaskGroup {
            name: text(),
            environment: vec![v1::EnvVar { name: text(), source: Some(v1::env_var::Source::Value(text())) }],
            runtime: Some(v1::task_group::Runtime::Process(v1::ProcessRuntime { command: vec![text()] })),
            ..Default::default()
        };
        let failure = v1::Failure { message: text(), node_name: text(), ..Default::default() };
        let job = v1::Job {
            id: "job-1".into(),
            name: text(),
            tenant: "vision".into(),
            labels: [(text(), text())].into(),
            annotations: [(text(), text())].into(),
            creator: text(),
            spec: Some(v1::JobSpec { groups: vec![group], working_directory: text(), ..Default::default() }),
            status: Some(v1::JobStatus {
                reason: text(),
                message: text(),
                history: Some(v1::AttemptHistory { last_failure: Some(failure), ..Default::default() }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let said = serde_json::to_string(&Job::of(&job)).unwrap();
        assert!(!said.contains(CANARY), "{said}");
        assert!(said.contains("\"tenant\":\"vision\""), "{said}");
    }

    #[test]
    fn a_node_is_shown_without_what_people_wrote() {
        let text = || CANARY.to_owned();
        let node = v1::Node {
            description: Some(v1::NodeDescription {
                name: "n1".into(),
                address: text(),
                labels: [(text(), text())].into(),
                taints: vec![text()],
                ..Default::default()
            }),
            restriction: Some(v1::NodeRestriction {
                quarantine: Some(v1::NodeQuarantine { reason: text(), ..Default::default() }),
                repair: Some(v1::NodeRepair { message: text(), ..Default::default() }),
                conditions: vec![v1::NodeCondition {
                    finding: "xid_79".into(),
                    message: text(),
                    ..Default::default()
                }],
                ..Default::default()
            }),
            ..Default::default()
        };
        let said = serde_json::to_string(&Node::of(&node)).unwrap();
        assert!(!said.contains(CANARY), "{said}");
        assert!(said.contains("xid_79"), "{said}");
    }

    #[test]
    fn of_the_address_of_a_receiver_the_host_is_shown() {
        let receiver = |url: &str| v1::NotificationReceiver { url: url.to_owned(), ..Default::default() };
        let urls = [
            "https://hooks.example/T0/CANARY-8f1c",
            "https://hooks.example:8443?key=CANARY-8f1c",
            "https://hooks.example",
            "",
        ];
        let policy = v1::Policy { notifications: urls.map(receiver).to_vec(), ..Default::default() };
        let answer = v1::GetPolicyResponse { policy: Some(policy), ..Default::default() };
        let shown = without_receiver_paths(answer).policy.unwrap_or_default().notifications;
        let shown: Vec<&str> = shown.iter().map(|receiver| receiver.url.as_str()).collect();
        let expected = [
            "https://hooks.example/(left-out)",
            "https://hooks.example:8443/(left-out)",
            "https://hooks.example",
            "",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_decision_is_shown_by_numbers_ids_and_counts() {
        let content = r#"{"job":"job-3f0","attempt":2,"why":"CANARY-8f1c","jobs":[{"name":"CANARY-8f1c"}],"spec":{"CANARY-8f1c":"CANARY-8f1c"},"forced":true}"#;
        let record = v1::LogRecord {
            decision: "gang_placed".into(),
            summary: CANARY.into(),
            content_json: content.into(),
            ..Default::default()
        };
        let said = serde_json::to_string(&Decision::of(&record)).unwrap();
        assert!(!said.contains(CANARY), "{said}");
        for part in [r#""job":"job-3f0""#, r#""attempt":2"#, r#""jobs":{"count":1}"#, r#""forced":true"#] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(fields("[").is_empty() && fields("[1]").is_empty());
    }
}
