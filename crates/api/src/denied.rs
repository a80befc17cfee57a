//! The calls that this replica has denied, as it has recorded them. What reads the record is given by the one who writes it.

use std::io;
use std::sync::Arc;

use muster_types::{ReplicaId, Violation};
use muster_wire::admin;
use muster_wire::time::{Timestamp, timestamp, timestamp_from_proto};
use tonic::Status;

use crate::read::invalid;
use crate::refusals::failed;

/// Bytes of a text that is searched for.
const TEXT_BYTES_MAX: usize = 256;
/// Lines of one answer.
const LINES_MAX: u32 = 1_000;
/// About what the longest answer takes in memory.
pub(crate) const ANSWER_BYTES_MAX: usize = LINES_MAX as usize * 1_024;

/// Which denied calls are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeniedQuery {
    /// Only calls that may have come at this time or later, in milliseconds since the Unix epoch.
    pub from_ms: Option<u64>,
    /// Only calls that may have come at this time or before.
    pub to_ms: Option<u64>,
    /// Only calls of this caller: a name as it is shown, or the user at its end. Empty for all.
    pub caller: String,
    /// Only calls with this code, or with this text in the sentence that was answered. Empty for all.
    pub reason: String,
    /// Lines at most: the newest.
    pub limit: usize,
}

/// Calls of one caller that ended the same way, within a minute or so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeniedCalls {
    /// When the first was, in milliseconds since the Unix epoch.
    pub first_ms: Option<u64>,
    /// When the last was.
    pub last_ms: Option<u64>,
    /// Who called; empty where calls were counted together.
    pub caller: String,
    /// The role by which it was judged; empty where nobody knows.
    pub role: String,
    /// From where the last came.
    pub address: String,
    /// Which call.
    pub call: String,
    /// The stable code of the refusal.
    pub code: String,
    /// What the last was answered.
    pub reason: String,
    /// How many calls there were.
    pub count: u64,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeniedPage {
    /// The newest lines that were asked for, oldest first.
    pub calls: Vec<DeniedCalls>,
    /// Whether older lines were left out.
    pub is_cut: bool,
    /// Lines that cannot be read.
    pub unread: u64,
}

/// The record of denied calls. It may be slow: it is read on a thread for such work.
pub trait DeniedCallLog: Send + Sync {
    /// Finds calls, newest first where there are more than were asked for.
    ///
    /// # Errors
    /// When the record is there and cannot be read.
    fn find(&self, query: &DeniedQuery) -> io::Result<DeniedPage>;
}

/// The record of one replica; none where it keeps none.
pub(crate) type DeniedLog = Option<Arc<dyn DeniedCallLog>>;

/// What a message asks for, or every field that is wrong.
pub(crate) fn query(message: &admin::ListDeniedCallsRequest) -> Result<DeniedQuery, Status> {
    let mut violations = Vec::new();
    let mut time = |field: &str, moment: Option<Timestamp>| {
        let ms = moment.map(|moment| timestamp_from_proto(field, moment)).transpose();
        ms.map_err(|violation| violations.push(violation)).ok().flatten()
    };
    let from_ms = time("from_time", message.from_time);
    let to_ms = time("to_time", message.to_time);
    for (field, text) in [("caller", &message.caller), ("reason", &message.reason)] {
        if text.len() > TEXT_BYTES_MAX {
            let rule = format!("must be at most {TEXT_BYTES_MAX} bytes, got {}", text.len());
            violations.push(Violation::new(field, rule));
        }
    }
    if message.limit > LINES_MAX {
        violations.push(Violation::limit("limit", message.limit.into(), 0, LINES_MAX.into()));
    }
    if !violations.is_empty() {
        return Err(invalid(violations));
    }
    let limit = if message.limit == 0 { LINES_MAX } else { message.limit };
    let (caller, reason) = (message.caller.clone(), message.reason.clone());
    Ok(DeniedQuery { from_ms, to_ms, caller, reason, limit: limit as usize })
}

/// Looks into the record.
pub(crate) fn list(
    log: &DeniedLog,
    replica: ReplicaId,
    query: &DeniedQuery,
) -> Result<admin::ListDeniedCallsResponse, Status> {
    let page = log.as_ref().map_or_else(|| Ok(DeniedPage::default()), |log| log.find(query));
    let page = page.map_err(|error| {
        tracing::warn!(%error, "the record of denied calls cannot be read");
        failed("the record of denied calls cannot be read; the log of the replica has the reason")
    })?;
    let message = |calls: DeniedCalls| admin::DeniedCalls {
        first_time: calls.first_ms.map(timestamp),
        last_time: calls.last_ms.map(timestamp),
        caller: calls.caller,
        role: calls.role,
        address: calls.address,
        call: calls.call,
        code: calls.code,
        reason: calls.reason,
        count: calls.count,
    };
    Ok(admin::ListDeniedCallsResponse {
        replica_id: replica.0,
        calls: page.calls.into_iter().map(message).collect(),
        is_cut: page.is_cut,
        unread_lines: page.unread,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_bounded_and_checked_whole() {
        let message =
            admin::ListDeniedCallsRequest { limit: 7, caller: "eve".to_owned(), ..Default::default() };
        let found = query(&message).expect("it is good");
        assert_eq!((found.limit, found.caller.as_str(), found.from_ms), (7, "eve", None));
        assert_eq!(query(&admin::ListDeniedCallsRequest::default()).expect("it is good").limit, 1_000);
        let wrong = admin::ListDeniedCallsRequest {
            from_time: Some(Timestamp { seconds: -1, nanos: 0 }),
            reason: "x".repeat(257),
            limit: 1_001,
            ..Default::default()
        };
        let status = query(&wrong).expect_err("three fields are wrong");
        let refused = muster_wire::status::Refused::from_status(&status);
        assert_eq!(refused.violations.len(), 3, "{refused:?}");
    }
}
