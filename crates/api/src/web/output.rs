//! The last lines of a worker's output and what follows them, as a stream of events for the page of its job.
//!
//! **Invariant:** who may not read an output with a call may not read it here; a reader that takes nothing is cut off.

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use muster_monitoring::Peer;
use muster_types::JobId;
use muster_wire::status::Refused;
use muster_wire::v1;
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::query::parameters;
use super::{Attachment, Problem, Reader, Scene, Web};
use crate::access::may_call;
use crate::outputs::{Output, Outputs};
use crate::verbs::has_call;

/// The call that says the same.
const CALL: &str = "/muster.v1beta1.JobService/ReadLogs";
/// Outputs that pages read at a time, and those of one account.
const OUTPUTS_MAX: u64 = 256;
const OUTPUTS_EACH_MAX: u64 = 32;
/// Bytes at the end of an output that a page begins with.
const TAIL_BYTES: u64 = 16 << 10;
/// Pieces made for a reader that it has not taken.
const PIECES_WAITING_MAX: usize = 4;
/// Between two pieces that say nothing.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Places for outputs.
pub(super) fn places() -> Outputs {
    Outputs::new(OUTPUTS_MAX, OUTPUTS_EACH_MAX)
}

/// Whether the reader of a page may read the output of a job's workers.
pub(super) fn is_allowed(scene: &Scene, job: JobId) -> bool {
    let Reader(principal) = scene.reader;
    let may = may_call(CALL, &principal) == Some(true) && has_call(&scene.state, &principal, CALL);
    may && scene.reader.caller().check_job_there(&scene.state, job).is_ok()
}

pub(super) async fn stream(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let [rank] = parameters(request.uri(), ["rank"])?;
    let rank = match rank.as_str() {
        "" => 0,
        text => text.parse().map_err(|_| Problem::field("rank", "must be the number of a worker"))?,
    };
    let id: Option<JobId> = id.ok().and_then(|Path(text)| text.parse().ok());
    let no_id = || Problem::new(StatusCode::NOT_FOUND, "Not found", "The address names no job.");
    let id = id.ok_or_else(no_id)?;
    let Reader(principal) = reader;
    let view = web.engine().view();
    if may_call(CALL, &principal) != Some(true) || !has_call(&view, &principal, CALL) {
        let text = format!("{principal} may not read the output of workers.");
        return Err(Problem::new(StatusCode::FORBIDDEN, "Not allowed", text));
    }
    // The leader checks it again by a state that is ahead of this one.
    reader.caller().check_job_there(&view, id)?;
    drop(view);
    let place = web.streams.enter(reader.account(), 1).ok_or_else(|| {
        let text = format!(
            "{} has as many streams open at this replica as it may, or all are taken.",
            reader.account()
        );
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Not now", text)
    })?;
    let asked = v1::ReadLogsRequest {
        job_id: id.to_string(),
        rank,
        follow: true,
        tail_bytes: TAIL_BYTES,
        ..Default::default()
    };
    let output = web.outputs.open(&web.router, reader.caller(), asked).await?;
    let (to_reader, pieces) = mpsc::channel(PIECES_WAITING_MAX);
    let peer = request.extensions().get::<Peer>().cloned();
    tokio::spawn(follow(web.clone(), output, to_reader, peer));
    let pieces = ReceiverStream::new(pieces).map(Ok::<Bytes, Infallible>);
    let mut response = Body::from_stream(pieces).into_response();
    response.extensions_mut().insert(Attachment::Place(Arc::new(place)));
    let own = response.headers_mut();
    own.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    own.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Passes an output on until it ends, or its reader has gone or takes nothing.
async fn follow(web: Web, mut output: Output, to_reader: mpsc::Sender<Bytes>, peer: Option<Peer>) {
    let (engine, stall) = (web.engine().clone(), web.timeouts.connection.stall);
    let mut text = ": the output begins\n\n".to_owned();
    loop {
        let is_last = text.starts_with("event: end");
        if to_reader.send_timeout(Bytes::from(std::mem::take(&mut text)), stall).await.is_err() {
            peer.iter().for_each(Peer::end);
            return;
        }
        if is_last {
            return;
        }
        text = tokio::select! {
            () = to_reader.closed() => return,
            () = engine.stopping() => end("this replica stops."),
            piece = tokio::time::timeout(KEEP_ALIVE, output.next()) => match piece {
                Err(_) => ": nothing new\n\n".to_owned(),
                Ok(Some(Ok(piece))) => sent(&piece),
                Ok(Some(Err(status))) => end(&why(&status)),
                Ok(None) => end("the worker has ended."),
            },
        };
    }
}

fn why(status: &Status) -> String {
    format!("{}.", Refused::from_status(status).message.trim_end_matches('.'))
}

fn end(message: &str) -> String {
    format!("event: end\ndata: {}\n\n", json!({ "message": message }))
}

/// A piece as the stream sends it. A letter that is cut between two pieces is shown as unknown.
fn sent(piece: &v1::ReadLogsResponse) -> String {
    let data = json!({ "text": String::from_utf8_lossy(&piece.data), "dropped": piece.dropped_bytes });
    format!("event: output\ndata: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_writes_is_data_of_one_event() {
        let piece = v1::ReadLogsResponse {
            data: b"one\n\nevent: end\n<script>\xff".to_vec(),
            dropped_bytes: 7,
            ..Default::default()
        };
        let sent = sent(&piece);
        assert_eq!(sent.matches('\n').count(), 3, "{sent:?}");
        assert!(sent.starts_with("event: output\ndata: {") && sent.contains("\"dropped\":7"), "{sent:?}");
    }
}
