//! Many submissions over one stream.
//!
//! A call costs both sides more than most submissions do: headers, trailers, a task and a few wake-ups each.
//! A stream pays that once. What it carries is the same: every message is a submission with its own request id,
//! checked, decided and made durable like a call, and answered as soon as that call would be.
//!
//! **Invariant:** a submission is answered at most once, and one that is not answered may be repeated
//! under its request id.
//! **Invariant:** a stream ends with OK only where its client ended it and everything in it was answered.

use futures::stream::{BoxStream, FuturesUnordered};
use futures::{Stream, StreamExt};
use muster_metrics::ReplicaMetrics;
use muster_types::{Refusal, RefusalCode};
use muster_wire::status::to_status;
use muster_wire::v1;
use muster_wire::v1::submit_stream_response::Outcome;
use std::time::Instant;
use tonic::{Response, Status, Streaming};

use crate::forward::Router;
use crate::guard::ours;
use crate::measure::count_streamed;
use crate::recorded::StreamRecorder;

/// Submissions of one stream that may be under way: as many as calls of one connection. More are left
/// in the connection's flow control, where they hold up their sender.
pub(crate) const UNDER_WAY_MAX: usize = 1_024;

/// Tells the client of another replica where the leader is, so that it may go there by itself.
pub(crate) const LEADER: &str = "muster-leader";

/// An answer that names the leader when this replica is not it.
pub(crate) fn naming_leader<T>(router: &Router, answer: T) -> Response<T> {
    let mut response = Response::new(answer);
    let engine = router.engine();
    if engine.is_leader() {
        return response;
    }
    let endpoint = engine.leader().and_then(|leader| leader.client_endpoint);
    if let Some(endpoint) = endpoint.and_then(|endpoint| endpoint.parse().ok()) {
        response.metadata_mut().insert(LEADER, endpoint);
    }
    response
}

fn answered(sequence: u64, outcome: Result<v1::SubmitJobResponse, Status>) -> v1::SubmitStreamResponse {
    let outcome = match outcome {
        Ok(response) => Outcome::Accepted(response),
        Err(status) => Outcome::Refused(v1::StreamedStatus {
            code: status.code().into(),
            message: status.message().to_owned(),
            details: status.details().to_vec(),
        }),
    };
    v1::SubmitStreamResponse { sequence, outcome: Some(outcome) }
}

struct Submissions<S, F> {
    router: Router,
    metrics: ReplicaMetrics,
    inbound: Streaming<v1::SubmitStreamRequest>,
    submit: S,
    under_way: FuturesUnordered<F>,
    /// The client may send more.
    open: bool,
    /// Why no more of it is read, where its client has not ended it.
    failed: Option<Status>,
}

/// Answers to what comes in, each made by `submit` and counted; those that are denied are recorded as well. The task that sends them polls this: it needs no other.
pub(crate) fn answers<S, F>(
    router: Router,
    (metrics, recorder): (ReplicaMetrics, Option<StreamRecorder>),
    inbound: Streaming<v1::SubmitStreamRequest>,
    submit: S,
) -> BoxStream<'static, Result<v1::SubmitStreamResponse, Status>>
where
    S: Fn(v1::SubmitJobRequest) -> F + Send + 'static,
    F: Future<Output = Result<v1::SubmitJobResponse, Status>> + Send + 'static,
{
    let counted = metrics.clone();
    let submit = move |message: v1::SubmitStreamRequest| {
        let (begun, metrics, recorder) = (Instant::now(), metrics.clone(), recorder.clone());
        let sequence = message.sequence;
        let outcome = message.submission.map(&submit);
        async move {
            let outcome = match outcome {
                Some(outcome) => outcome.await,
                None => Err(to_status(&Refusal::fields(vec![muster_types::Violation::new(
                    "submission",
                    "must be given",
                )]))),
            };
            count_streamed(&metrics, begun, &outcome);
            if let (Some(recorder), Err(status)) = (&recorder, &outcome) {
                recorder.note(status);
            }
            answered(sequence, outcome)
        }
    };
    let under_way = FuturesUnordered::new();
    let submissions =
        Submissions { router, metrics: counted, inbound, submit, under_way, open: true, failed: None };
    unfold(submissions).boxed()
}

fn unfold<S, F>(
    submissions: Submissions<S, F>,
) -> impl Stream<Item = Result<v1::SubmitStreamResponse, Status>>
where
    S: Fn(v1::SubmitStreamRequest) -> F,
    F: Future<Output = v1::SubmitStreamResponse>,
{
    futures::stream::unfold(Some(submissions), |state| async move {
        let mut state = state?;
        match state.next().await {
            Some(Ok(answer)) => Some((Ok(answer), Some(state))),
            Some(Err(status)) => Some((Err(status), None)),
            None => None,
        }
    })
}

impl<S, F> Submissions<S, F>
where
    S: Fn(v1::SubmitStreamRequest) -> F,
    F: Future<Output = v1::SubmitStreamResponse>,
{
    /// The next answer. None once the client has ended the stream and has all its answers. A stream that cannot be read any further
    /// ends with the reason, after the answers to everything that arrived whole.
    async fn next(&mut self) -> Option<Result<v1::SubmitStreamResponse, Status>> {
        loop {
            if !self.open && self.under_way.is_empty() {
                return self.failed.take().map(Err);
            }
            let takes_more = self.open && self.under_way.len() < UNDER_WAY_MAX;
            tokio::select! {
                biased;
                // First, so that what is there goes to the decision loop before anything is answered.
                message = self.inbound.message(), if takes_more => match message {
                    Ok(Some(message)) => self.under_way.push((self.submit)(message)),
                    Ok(None) => self.open = false,
                    Err(status) => {
                        self.open = false;
                        self.failed = Some(ours(status));
                    }
                },
                Some(answer) = self.under_way.next() => return Some(Ok(answer)),
                () = self.router.engine().stopping() => {
                    let text = "this replica stops; repeat what was not answered at another";
                    let stopping = to_status(&Refusal::new(RefusalCode::ReplicaStopping, text));
                    let answer: Result<(), Status> = Err(stopping.clone());
                    // A call would have been told so.
                    (0..self.under_way.len()).for_each(|_| count_streamed(&self.metrics, Instant::now(), &answer));
                    return Some(Err(stopping));
                }
            }
        }
    }
}
