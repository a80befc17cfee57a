//! Histories as files.

use muster_drill::history::{
    Call, Consistency, History, HistoryError, JobPhase, JobSeen, LINE_BYTES_MAX, Line, Observation,
    Operation, Outcome, Query, WatchChange, WatchEvent, Writer,
};
use muster_types::{JobId, RequestId};
use proptest::prelude::*;

fn operation(id: u64, call: Call, outcome: Outcome) -> Line {
    let region = "eu".to_owned();
    Line::Operation(Operation {
        id,
        client: 1,
        region,
        replica: Some(2),
        call,
        invoked_us: 10,
        completed_us: 20,
        outcome,
    })
}

fn read(query: Query, seen: Observation) -> (Call, Outcome) {
    let consistency = Consistency::Bounded { max_staleness_ms: 500 };
    let call = Call::Read { query, consistency, min_log_index: 3 };
    (call, Outcome::Answered { log_index: 9, staleness_ms: Some(12), seen })
}

/// One line of each kind.
fn lines() -> Vec<Line> {
    let job = JobId(70_000);
    let seen = JobSeen { job, phase: JobPhase::Running, attempt: 2, changed_at_index: 8 };
    let submit = Call::Submit { request: RequestId(u128::MAX), jobs: 1 };
    let status = Observation::Status { digest: u64::MAX, pending: 1, active: 2, finished: 3 };
    let page = Query::Jobs { count: 10, tenant: Some("lab".into()) };
    let reads = [
        read(Query::Job { job }, Observation::Job(seen.clone())),
        read(page, Observation::Jobs { count: 1, digest: 5 }),
        read(Query::Status, status),
    ];
    let mut lines = vec![
        operation(1, submit.clone(), Outcome::Acknowledged { log_index: 7, jobs: vec![job] }),
        operation(2, submit.clone(), Outcome::TimedOut),
        operation(3, submit.clone(), Outcome::Unknown { error: "reset \"by\" peer\n".into() }),
        operation(4, submit, Outcome::Refused { code: "OVERLOADED".into() }),
    ];
    let more = reads.into_iter().enumerate();
    lines.extend(more.map(|(i, (call, outcome))| operation(5 + i as u64, call, outcome)));
    let changes = [
        WatchChange::Changed(seen),
        WatchChange::Forgotten { job },
        WatchChange::SyncEnd,
        WatchChange::Bookmark,
        WatchChange::Restarted,
    ];
    lines.extend(changes.map(|change| {
        Line::Watch(WatchEvent {
            watch: 1,
            region: "a".to_owned(),
            tenant: None,
            at_us: 30,
            log_index: 9,
            change,
        })
    }));
    lines
}

fn written(lines: &[Line]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for line in lines {
        writer.append(line).expect("memory takes it");
    }
    writer.into_inner()
}

fn from(bytes: &[u8]) -> Result<History, HistoryError> {
    let mut history = History::default();
    history.read("a.jsonl", bytes).map(|()| history)
}

#[test]
fn what_is_written_is_read() {
    let history = from(&written(&lines())).expect("it is a history");
    let operations = history.operations.iter().cloned().map(Line::Operation);
    let read: Vec<Line> = operations.chain(history.watch_events.iter().cloned().map(Line::Watch)).collect();
    assert_eq!(read, lines());
    assert!(history.torn.is_empty() && history.repeated().is_empty());
}

#[test]
fn lines_are_for_people_too() {
    let text = String::from_utf8(written(&lines()[..1])).expect("text");
    assert_eq!(
        text,
        "{\"operation\":{\"id\":1,\"client\":1,\"region\":\"eu\",\"replica\":2,\"call\":{\"submit\":{\"request\":\"ffffffff-ffff-ffff-ffff-ffffffffffff\",\"jobs\":1}},\"invoked_us\":10,\"completed_us\":20,\"outcome\":{\"acknowledged\":{\"log_index\":7,\"jobs\":[\"job-24bg\"]}}}}\n"
    );
}

#[test]
fn a_torn_last_line_is_said_and_not_fatal() {
    let bytes = written(&lines());
    let history = from(&bytes[..bytes.len() - 5]).expect("it is a history");
    assert_eq!(history.watch_events.len(), 4);
    assert_eq!((history.torn[0].file.as_str(), history.torn[0].line), ("a.jsonl", 12));
    // Two files make one history.
    let mut both = history;
    both.read("b.jsonl", bytes.as_slice()).expect("it is a history");
    assert_eq!((both.operations.len(), both.repeated().len()), (14, 7));
}

#[test]
fn anything_else_names_its_line() {
    let good = String::from_utf8(written(&lines()[..1])).expect("text");
    let cases = [
        ("nonsense".to_owned(), "a.jsonl:2: not a line of a history: expected"),
        ("{}".to_owned(), "a.jsonl:2:"),
        (good.trim_end().replace("\"completed_us\":20", "\"completed_us\":2"), "it was over before it began"),
        (good.trim_end().replace("\"jobs\":1}", "\"jobs\":2}"), "its outcome does not answer its call"),
        (good.trim_end().replace("\"id\":1", "\"id\":1,\"mood\":2"), "unknown field `mood`"),
        (good.trim_end().replace("job-24bg", "task-7"), "expected job-"),
        (" ".repeat(LINE_BYTES_MAX + 5), "longer than"),
    ];
    for (line, words) in cases {
        let said = from(format!("{good}{line}\n{good}").as_bytes()).expect_err("must be refused").to_string();
        assert!(said.contains(words), "expected {words}, got {said}");
    }
}

#[test]
fn a_line_has_a_bound() {
    let call = Call::Submit { request: RequestId(1), jobs: 1 };
    let line = operation(1, call, Outcome::Unknown { error: "x".repeat(LINE_BYTES_MAX) });
    assert!(Writer::new(Vec::new()).append(&line).is_err());
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..2_000, at in 0usize..2_000) {
        let _ = from(&bytes);
        let mut damaged = written(&lines());
        let at = at % damaged.len();
        damaged[at] ^= 0x15;
        let _ = from(&damaged[..cut.min(damaged.len())]);
    }
}
