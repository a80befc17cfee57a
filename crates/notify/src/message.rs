//! What a receiver is sent.

use muster_engine::{Change, Event};
use muster_journal::{Outcome, StopCause};
use muster_state::{JobRow, Phase, State};
use muster_types::policy::{NotificationBody, NotificationEvent, Receiver};
use muster_types::{JobId, JobSpec, Name, NodeId};
use serde_json::{Value, json};

/// One event for one receiver, whole.
pub(crate) struct Message {
    /// `LOGINDEX-ORDINAL-RECEIVER`: the same for every attempt, by whichever leader, so that receivers can tell repetitions.
    pub(crate) id: String,
    /// The job's id, the node's name, or the schedule's tenant and name.
    pub(crate) subject: String,
    /// JSON.
    pub(crate) body: Vec<u8>,
}

/// The tenant of the job or schedule that an event happened to; none for one of a node.
pub(crate) fn tenant(event: &Event) -> Option<&Name> {
    match &event.change {
        Change::Job { spec, .. } => Some(&spec.tenant),
        Change::ScheduleSuspended { schedule, .. } => Some(&schedule.tenant),
        _ => None,
    }
}

/// The job or the node that an event happened to, for a line of the log.
pub(crate) fn about(event: &Event) -> (Option<JobId>, Option<NodeId>) {
    match &event.change {
        Change::Job { id, .. } => (Some(*id), None),
        Change::Node { id, .. } => (None, Some(*id)),
        _ => (None, None),
    }
}

/// The message of an event; none for changes that are no event of a job, schedule or node.
pub(crate) fn message(
    state: &State,
    receiver: &Receiver,
    event: &Event,
    occurrence: NotificationEvent,
) -> Option<Message> {
    let (row, line, subject) = match &event.change {
        Change::Job { id, row, spec, .. } => {
            let detail = job_detail(state, row);
            let line = job_line(spec, &id.to_string(), detail.as_deref());
            let job = json!({
                "id": id.to_string(),
                "name": spec.name.as_str(),
                "tenant": spec.tenant.as_str(),
                "attempt": row.attempt,
                "failures": row.failures,
                "detail": detail,
            });
            (("job", job), line, id.to_string())
        }
        Change::Node { id, row, restriction, .. } => {
            let quarantine = restriction.as_ref().and_then(|row| row.quarantine.as_ref());
            let detail = quarantine.map(|quarantine| quarantine.reason.clone());
            let name = row.spec.name.as_str();
            let line = match &detail {
                Some(detail) => format!("node {name}: {detail}"),
                None => format!("node {name}"),
            };
            let node = json!({
                "id": id.to_string(),
                "name": name,
                "region": row.spec.region.as_str(),
                "cluster": row.spec.cluster.as_str(),
                "detail": detail,
            });
            (("node", node), line, name.to_owned())
        }
        Change::ScheduleSuspended { schedule, by, reason } => {
            let line = format!("schedule {} of tenant {}: {reason}", schedule.name, schedule.tenant);
            let by = Some(by.name.as_str()).filter(|name| !name.is_empty());
            let row = json!({
                "name": schedule.name.as_str(),
                "tenant": schedule.tenant.as_str(),
                "by": by,
                "detail": &**reason,
            });
            (("schedule", row), line, schedule.to_string())
        }
        Change::JobForgotten(_) | Change::NodeForgotten { .. } | Change::Queues(_) => return None,
    };
    let position = event.position;
    let id = format!("{}-{}-{}", position.log_index, position.ordinal, receiver.name);
    let body = match receiver.body {
        NotificationBody::Generic => generic(state, &id, position.log_index.0, occurrence, row),
        NotificationBody::Slack => json!({ "text": escaped(&format!("{occurrence}: {line}")) }),
    };
    Some(Message { id, subject, body: body.to_string().into_bytes() })
}

fn generic(
    state: &State,
    id: &str,
    log_index: u64,
    occurrence: NotificationEvent,
    (kind, subject): (&str, Value),
) -> Value {
    let cluster = state.cluster().map(|cluster| cluster.cluster.to_string());
    let mut body = json!({
        "version": 1,
        "id": id,
        "event": occurrence.as_str(),
        "cluster": cluster,
        "logIndex": log_index,
    });
    body[kind] = subject;
    body
}

/// Why it ended, or why its workers are being stopped.
fn job_detail(state: &State, row: &JobRow) -> Option<String> {
    let node = |id| state.node(id).map_or_else(|| format!("{id}"), |row| row.spec.name.to_string());
    match &row.phase {
        Phase::Finished(Outcome::Failed { detail }) => Some(detail.clone()),
        Phase::Stopping(StopCause::Evicted { node: id }) => {
            Some(format!("node {} was lost or failed", node(*id)))
        }
        Phase::Stopping(StopCause::Fault { node: id, detail, .. }) => {
            Some(format!("node {}: {detail}", node(*id)))
        }
        _ => None,
    }
}

fn job_line(spec: &JobSpec, id: &str, detail: Option<&str>) -> String {
    let who = format!("job {} ({id}) of tenant {}", spec.name, spec.tenant);
    match detail {
        Some(detail) => format!("{who}: {detail}"),
        None => who,
    }
}

/// Text in which nothing is a link or a mention.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_engine::WatchPosition;
    use muster_journal::Estimate;
    use muster_types::{JobDraft, JobId, LogIndex, LogTime};
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn event(draft: JobDraft, detail: &str) -> Event {
        let spec = Arc::new(draft.check().expect("a job"));
        let phase = Phase::Finished(Outcome::Failed { detail: detail.to_owned() });
        let row = JobRow { phase, attempt: 2, ..JobRow::submitted(LogTime(0), Estimate::default(), &spec) };
        Event {
            position: WatchPosition { log_index: LogIndex(42), ordinal: 3 },
            change: Change::Job { id: JobId(7), row: Arc::new(row), spec, metadata: None, before: None },
            occurrence: Some(NotificationEvent::JobFailed),
            named: Arc::default(),
        }
    }

    fn receiver(body: NotificationBody) -> Receiver {
        Receiver {
            name: Name::new("ops").expect("a name"),
            url: "https://hooks.example".to_owned(),
            tenant: None,
            events: BTreeSet::from([NotificationEvent::JobFailed]),
            body,
            for_jobs: false,
        }
    }

    #[test]
    fn bodies_are_as_the_receiver_takes_them() {
        let event = event(crate::sample::job("train"), "exited with 1 <!channel> & more");
        let body = |kind| {
            let message = message(&State::default(), &receiver(kind), &event, NotificationEvent::JobFailed);
            let message = message.expect("it is an event of a job");
            assert_eq!(message.id, "42-3-ops");
            assert_eq!(message.subject, JobId(7).to_string());
            serde_json::from_slice::<Value>(&message.body).expect("it is JSON")
        };
        let generic = body(NotificationBody::Generic);
        assert_eq!(generic["event"], "job_failed");
        assert_eq!(generic["logIndex"], 42);
        assert_eq!(generic["id"], "42-3-ops");
        assert_eq!(generic["job"]["name"], "train");
        assert_eq!(generic["job"]["attempt"], 2);
        assert_eq!(generic["job"]["detail"], "exited with 1 <!channel> & more");
        let slack = body(NotificationBody::Slack);
        let text = slack["text"].as_str().expect("a text");
        assert!(text.starts_with("job_failed: job train (") && !text.contains('<'), "{text}");
        assert_eq!(slack.as_object().map(|object| object.len()), Some(1));
    }

    #[test]
    fn changes_without_a_job_or_node_are_no_message() {
        let event =
            Event { change: Change::JobForgotten(JobId(7)), ..event(crate::sample::job("train"), "") };
        assert!(tenant(&event).is_none());
        let receiver = receiver(NotificationBody::Generic);
        assert!(message(&State::default(), &receiver, &event, NotificationEvent::JobFailed).is_none());
    }
}
