//! `muster job when`: when a job starts, or has started.

use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, moment};
use muster_wire::time::unix_ms;
use muster_wire::v1;
use serde::Serialize;

use super::explanation::start_of;
use crate::job_files::now_ms;
use crate::reading::ReadArgs;

/// Content of `JobStart`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JobStart {
    job: String,
    reason: String,
    message: String,
    /// Of its current or last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p10: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p90: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    basis: String,
}

/// Asks when a job starts and prints it.
pub async fn when(
    client: &Client,
    console: &Console,
    job_id: String,
    read: &ReadArgs,
) -> Result<Exit, Failure> {
    let request = v1::ExplainJobRequest { job_id: job_id.clone(), read: None };
    let answer = client.explain_job(request).await?;
    let request = v1::GetJobRequest { job_id: job_id.clone(), read: None };
    let job = client.get_job(request).await?.job.unwrap_or_default();
    let explanation = answer.explanation.unwrap_or_default();
    // A job that waits again has started before, too.
    let started = Some(job.status().start_time).filter(|_| job.phase() != v1::JobPhase::Pending).flatten();
    match console.format {
        Format::Json | Format::Yaml => {
            let start = explanation.start.clone().unwrap_or_default();
            let view = JobStart {
                job: job_id,
                reason: explanation.reason,
                message: explanation.message,
                started: moment(started),
                p10: moment(start.p10),
                p50: moment(start.p50),
                p90: moment(start.p90),
                basis: start.basis,
            };
            console.object(&Document::new("JobStart", answer.freshness, view))?;
        }
        Format::Name | Format::Table | Format::Wide | Format::Html | Format::Csv => {
            let asked_ms = match read.is_past() {
                true => unix_ms(answer.freshness.and_then(|freshness| freshness.log_time)),
                false => None,
            };
            for line in lines(&job_id, &explanation, moment(started), asked_ms.unwrap_or_else(now_ms)) {
                console.line(&line)?;
            }
        }
    }
    read.tell_age(console, answer.freshness.as_ref());
    Ok(Exit::Ok)
}

/// The same for people, as it is at `now_ms`.
fn lines(job: &str, explanation: &v1::Explanation, started: Option<String>, now_ms: u64) -> Vec<String> {
    let Some(start) = &explanation.start else {
        return match started {
            Some(at) => vec![format!("{job} started at {at}: {}", explanation.reason)],
            None => vec![format!("when {job} starts is not known: {}", explanation.message)],
        };
    };
    let mut lines = vec![format!("{job}: {}", explanation.reason)];
    for (name, at) in [("p10", start.p10), ("p50", start.p50), ("p90", start.p90)] {
        match start_of(at, now_ms) {
            Some(at) => lines.push(format!("  {name}  {at}")),
            None => lines.push(format!("  {name}  not known")),
        }
    }
    lines.push(format!("  {}", start.basis));
    lines.push("  `muster report predictions` says how well such predictions did".to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use muster_wire::time::timestamp;

    use super::*;

    #[test]
    fn a_prediction_a_start_and_neither_are_told_apart() {
        let start = v1::StartEstimate {
            p10: Some(timestamp(60_000)),
            p50: Some(timestamp(120_000)),
            p90: None,
            basis: "as what runs ends".to_owned(),
        };
        let (reason, message) = ("QUOTA".to_owned(), "the quota is used".to_owned());
        let waits = v1::Explanation { reason, message, start: Some(start), ..Default::default() };
        let shown = lines("job-1", &waits, None, 30_000);
        assert_eq!(shown[0], "job-1: QUOTA");
        assert_eq!(shown[1], "  p10  1970-01-01T00:01:00Z (in 30s)");
        assert_eq!(shown[3], "  p90  not known");
        let unknown = v1::Explanation { start: None, ..waits.clone() };
        assert_eq!(lines("job-1", &unknown, None, 0), ["when job-1 starts is not known: the quota is used"]);
        let runs = v1::Explanation { reason: "RUNNING".to_owned(), ..unknown };
        let shown = lines("job-1", &runs, Some("1970-01-01T00:00:09Z".to_owned()), 0);
        assert_eq!(shown, ["job-1 started at 1970-01-01T00:00:09Z: RUNNING"]);
    }
}
