//! Evidence as lines for people.

use crate::history::{Call, Consistency, Operation, Outcome, Query};

/// Bytes of a text of others that are shown.
const TEXT_CHARS_MAX: usize = 120;

/// Microseconds as seconds.
pub(super) fn seconds(us: u64) -> String {
    format!("{}.{:06} s", us / 1_000_000, us % 1_000_000)
}

/// An operation.
pub(super) fn shown(operation: &Operation) -> String {
    let call = match &operation.call {
        Call::Submit { request, jobs } => format!("submit of {jobs} job(s) as {request}"),
        Call::Cancel { request, job } => format!("cancel of {job} as {request}"),
        Call::Read { query, consistency, .. } => {
            let what = match query {
                Query::Job { job } => job.to_string(),
                Query::Jobs { count, .. } => format!("the newest {count} jobs"),
                Query::Status => "the digest of the state".to_owned(),
            };
            let how = match consistency {
                Consistency::Any => "any".to_owned(),
                Consistency::Bounded { max_staleness_ms } => format!("at most {max_staleness_ms} ms old"),
                Consistency::Linearizable => "linearizable".to_owned(),
            };
            format!("read of {what} ({how})")
        }
    };
    let short = |text: &String| text.chars().take(TEXT_CHARS_MAX).collect::<String>();
    let outcome = match &operation.outcome {
        Outcome::Acknowledged { log_index, .. } => format!("acknowledged at {log_index}"),
        Outcome::Answered { log_index, staleness_ms: None, .. } => format!("answered at {log_index}"),
        Outcome::Answered { log_index, staleness_ms: Some(ms), .. } => {
            format!("answered at {log_index}, at most {ms} ms old")
        }
        Outcome::Refused { code } => format!("refused: {}", short(code)),
        Outcome::Unknown { error } => format!("unknown: {}", short(error)),
        Outcome::TimedOut => "no answer".to_owned(),
        Outcome::Malformed { what } => format!("makes no sense: {}", short(what)),
    };
    let asked = operation.replica.map(|id| format!(" on r{id}")).unwrap_or_default();
    format!(
        "client {} in {}, operation {}: {call}{asked}, {} to {}: {outcome}",
        operation.client,
        operation.region,
        operation.id,
        seconds(operation.invoked_us),
        seconds(operation.completed_us)
    )
}
