//! What every document of `-o json` and `-o yaml` begins with: its schema, its kind, and where in the log it stands.

use muster_manifest::quantity::show_duration;
use muster_wire::time::{Duration, Timestamp, span_ms, unix_ms};
use muster_wire::v1;
use serde::Serialize;

/// The schema of every document.
pub const SCHEMA: &str = "muster.dev/v1";

/// A document: its kind, where in the log it stands, and its content.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Document<T> {
    schema: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    position: Position,
    #[serde(flatten)]
    content: T,
}

impl<T> Document<T> {
    /// A document of this kind.
    pub fn new(kind: &'static str, position: impl Into<Position>, content: T) -> Document<T> {
        Document { schema: SCHEMA, kind, position: position.into(), content }
    }
}

/// Where in the log an answer stands and, of a read, how fresh it is.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Position {
    /// Left out when the answer has no position in the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    freshness: Option<Freshness>,
}

/// How fresh an answer is.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Freshness {
    /// The replica that answered.
    replica: u64,
    /// The leader it knows of; left out when it knows none.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u64>,
    /// How old the answer may be: it holds everything that was committed this long before. Left out when that is not known,
    /// and of the past.
    #[serde(skip_serializing_if = "Option::is_none")]
    staleness: Option<String>,
    /// Log time of the last record it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_time: Option<String>,
}

impl From<Option<u64>> for Position {
    fn from(log_index: Option<u64>) -> Position {
        Position { log_index, freshness: None }
    }
}

impl From<Option<v1::Freshness>> for Position {
    fn from(freshness: Option<v1::Freshness>) -> Position {
        let shown = |of: v1::Freshness| Freshness {
            replica: of.replica_id,
            leader: Some(of.leader_id).filter(|leader| *leader > 0),
            staleness: span(of.staleness),
            log_time: moment(of.log_time),
        };
        Position { log_index: freshness.map(|of| of.log_index), freshness: freshness.map(shown) }
    }
}

/// Content of `JobList`, `NodeList` and `QueueList`.
#[derive(Serialize)]
pub struct Items<T> {
    /// The objects.
    pub items: Vec<T>,
}

/// A moment of an answer as RFC 3339 text; `None` when the answer has none.
pub fn moment(at: Option<Timestamp>) -> Option<String> {
    time(unix_ms(at)?)
}

/// A span of an answer as job files write it; `None` when the answer has none.
pub fn span(span: Option<Duration>) -> Option<String> {
    span_ms(span).map(show_duration)
}

/// RFC 3339; none for 0 ("has not happened") and for what no calendar can say.
pub fn time(ms: u64) -> Option<String> {
    let ms = i64::try_from(ms).ok().filter(|ms| *ms > 0)?;
    jiff::Timestamp::from_millisecond(ms).ok().map(|time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_calendar_times_or_nothing() {
        assert_eq!(time(0), None);
        assert_eq!(time(1_700_000_000_123).as_deref(), Some("2023-11-14T22:13:20.123Z"));
        assert_eq!(time(u64::MAX), None);
        assert_eq!(time(i64::MAX as u64), None);
    }
}
