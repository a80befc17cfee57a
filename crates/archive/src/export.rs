//! Records as lines of JSON or CSV.

use serde_json::{Value, json};

use crate::record::Record;
use crate::render;

/// The first line of a CSV export, without its end.
pub const CSV_HEADER: &str = "log_index,log_time_ms,term,leader,raft_index,generation,decision,content";

/// A record as one JSON object without line breaks.
#[must_use]
pub fn json_line(record: &Record) -> String {
    to_json(record).to_string()
}

fn to_json(record: &Record) -> Value {
    json!({
        "logIndex": record.log_index.0,
        "logTimeMs": record.log_time.0,
        "term": record.term,
        "leader": record.leader.0,
        "raftIndex": record.raft_index,
        "generation": record.generation,
        "decision": record.decision.name(),
        "content": render::content(&record.decision),
    })
}

/// A record as one line of CSV without its end (RFC 4180): the content as JSON in quotes.
#[must_use]
pub fn csv_line(record: &Record) -> String {
    let content = render::content(&record.decision).to_string().replace('"', "\"\"");
    format!(
        "{},{},{},{},{},{},{},\"{content}\"",
        record.log_index.0,
        record.log_time.0,
        record.term,
        record.leader.0,
        record.raft_index,
        record.generation,
        record.decision.name(),
    )
}
