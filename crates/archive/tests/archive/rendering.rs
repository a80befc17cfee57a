//! Records as people and programs read them.

use muster_archive::{content, csv_line, json_line, summary};
use muster_journal::{Decision, RequestKey, StopCause, WorkerSlot};
use muster_types::{
    DeviceSet, ExitStatus, FencingToken, JobId, LogIndex, Name, NodeId, RequestId, Requester,
};
use serde_json::json;

use crate::support::{Log, job, open, write};

#[test]
fn ids_look_as_everywhere_else() {
    let decision = Decision::JobCancelRequested {
        request: RequestKey { id: RequestId(0x1234 << 100), fingerprint: 9 },
        by: Requester {
            name: "admin/ops".to_owned(),
            is_operator: true,
            address: Some([192, 0, 2, 7].into()),
            role: None,
        },
        jobs: vec![JobId(33)],
    };
    let by = json!({ "name": "admin/ops", "is_operator": true, "address": "192.0.2.7" });
    let request = json!({ "id": RequestId(0x1234 << 100).to_string(), "fingerprint": 9 });
    assert_eq!(content(&decision), json!({ "request": request, "by": by, "jobs": ["job-11"] }));
    assert_eq!(summary(&content(&decision)), "by=admin/ops jobs=job-11");
}

#[test]
fn a_record_shows_the_role_of_who_asked_where_there_is_one() {
    let role = Name::new("on-call");
    let by = Requester { role, ..Requester::named("tenant/lab/ada+oidc/corp".to_owned(), false) };
    let decision = Decision::FormatRaised { by, format: 2 };
    assert_eq!(content(&decision)["by"]["role"], json!("on-call"));
    let decision = Decision::FormatRaised { by: Requester::default(), format: 2 };
    assert_eq!(content(&decision)["by"].get("role"), None);
}

#[test]
fn nested_choices_keep_their_names() {
    let token = FencingToken { generation: 1, log_index: LogIndex(7) };
    let exit = ExitStatus::Code(3);
    let cause = StopCause::WorkerFailed { rank: 2, exit };
    let decision = Decision::GangStopRequested { job: JobId(1), token, cause };
    let cause = json!({ "worker_failed": { "rank": 2, "exit": { "code": 3 } } });
    let token = json!({ "generation": 1, "log_index": 7 });
    assert_eq!(content(&decision), json!({ "job": "job-1", "token": token, "cause": cause }));
    let slot = WorkerSlot { node: NodeId(4), incarnation: 2, devices: DeviceSet(0b101) };
    let decision = Decision::GangPlaced { job: JobId(1), workers: vec![slot] };
    let workers = json!([{ "node": "node-4", "incarnation": 2, "devices": [0, 2] }]);
    assert_eq!(content(&decision), json!({ "job": "job-1", "workers": workers }));
}

#[test]
fn a_decision_without_fields_is_an_empty_object() {
    assert_eq!(content(&Decision::LeaderStarted), json!({}));
    assert_eq!(summary(&content(&Decision::LeaderStarted)), "");
}

#[test]
fn a_submitted_job_is_told_by_its_name() {
    let decision = Decision::JobsSubmitted {
        request: RequestKey { id: RequestId(1), fingerprint: 0 },
        by: muster_types::Requester::default(),
        specs: vec![std::sync::Arc::new(job("train"))],
        estimates: vec![muster_journal::Estimate::default()],
    };
    assert!(summary(&content(&decision)).contains("specs=train"), "{}", summary(&content(&decision)));
    assert_eq!(content(&decision)["specs"][0]["tenant"], json!("lab"));
}

#[test]
fn an_export_has_every_record_on_a_line_of_its_own() {
    let log = Log::of_steps(10);
    let dir = tempfile::tempdir().unwrap();
    let archive = open(dir.path());
    write(&archive, &log.rounds, 3, 0);
    for (place, record) in archive.records(LogIndex(1), LogIndex(u64::MAX)).enumerate() {
        let record = record.unwrap();
        let line: serde_json::Value = serde_json::from_str(&json_line(&record)).unwrap();
        assert_eq!(line["logIndex"], json!(place as u64 + 1));
        assert_eq!(line["decision"], json!(record.decision.name()));
        let csv = csv_line(&record);
        assert!(!csv.contains('\n') && csv.starts_with(&format!("{},", place + 1)), "{csv}");
        let quoted = csv.split_once(",\"").unwrap().1.strip_suffix('"').unwrap().replace("\"\"", "\"");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&quoted).unwrap(), line["content"]);
    }
}
