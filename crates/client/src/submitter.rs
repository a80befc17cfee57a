//! Many submissions over one stream.
//!
//! A program that submits much, one job at a time, pays for a separate call each time: headers, trailers and a
//! few wake-ups on both sides, more than most submissions cost the cluster. A submitter keeps one stream
//! to the leader and sends its submissions over that; each is still answered by itself, when it is durable.
//!
//! **Invariant:** a submission that the stream left without an answer is repeated as a separate call, under
//! the same request id, so it has one effect and one answer whatever became of the stream.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use muster_wire::status::Refused;
use muster_wire::v1::submit_stream_response::Outcome;
use muster_wire::{features, v1};
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status, Streaming};

use crate::calls::{ensure_request_id, jobs};
use crate::connection::{LEADER, Link};
use crate::error::CallError;
use crate::retry::{Subject, Verdict};
use crate::{Client, planted};

/// Submissions of one stream that may be on their way; more wait for their turn here.
const UNDER_WAY_MAX: usize = 1_024;
/// For opening a stream: a connection, and the leader's behind it. Until one is open submissions wait for it,
/// so one that takes longer is not waited for: they go out as calls.
const OPEN_MAX: Duration = Duration::from_millis(1_500);

type Answered = oneshot::Sender<Result<v1::SubmitJobResponse, Status>>;

/// Who waits for an answer of a stream.
#[derive(Default)]
struct Waiting {
    next: u64,
    answers: HashMap<u64, Answered>,
    /// Nothing will be answered any more.
    over: bool,
}

/// One open stream.
#[derive(Clone)]
struct Pipe {
    link: Link,
    outbound: mpsc::Sender<v1::SubmitStreamRequest>,
    waiting: Arc<Mutex<Waiting>>,
}

impl Pipe {
    fn lock(&self) -> parking_lot::MutexGuard<'_, Waiting> {
        // Nothing below panics while it holds the lock.
        self.waiting.lock()
    }

    /// The answer of the stream; none when it is over without one.
    async fn submit(&self, request: v1::SubmitJobRequest) -> Option<Result<v1::SubmitJobResponse, Status>> {
        let (answer, answered) = oneshot::channel();
        let sequence = {
            let mut waiting = self.lock();
            if waiting.over {
                return None;
            }
            waiting.next += 1;
            let sequence = waiting.next;
            waiting.answers.insert(sequence, answer);
            sequence
        };
        let forget = Forget { pipe: self, sequence };
        let message = v1::SubmitStreamRequest { sequence, submission: Some(request) };
        self.outbound.send(message).await.ok()?;
        let answer = answered.await.ok();
        drop(forget);
        answer
    }

    /// Hands out answers until the stream is over.
    async fn receive(self, mut inbound: Streaming<v1::SubmitStreamResponse>) {
        loop {
            let message = match inbound.message().await {
                Ok(Some(message)) => message,
                Ok(None) => break,
                // What it was refused for concerns one submission at most, and as a call that is told it again.
                Err(status) => {
                    tracing::debug!(%status, "a stream of submissions was ended");
                    break;
                }
            };
            // A refusal may say no more than that nobody is known to lead.
            if matches!(message.outcome, Some(Outcome::Accepted(_))) {
                self.link.heard_now();
            }
            let Some(answer) = self.lock().answers.remove(&message.sequence) else { continue };
            let outcome = match message.outcome {
                Some(Outcome::Accepted(response)) => Ok(response),
                Some(Outcome::Refused(refused)) => {
                    let code = Code::from_i32(refused.code);
                    Err(Status::with_details(code, refused.message, refused.details.into()))
                }
                None => Err(Status::internal("an answer without an outcome")),
            };
            // The caller that asked may have given up.
            let _ = answer.send(outcome);
        }
        let mut waiting = self.lock();
        waiting.over = true;
        // Those who wait repeat their submissions by themselves.
        waiting.answers.clear();
    }
}

/// Takes a submission off the list of those who wait, also when its caller gives up.
struct Forget<'a> {
    pipe: &'a Pipe,
    sequence: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.pipe.lock().answers.remove(&self.sequence);
    }
}

/// Submits jobs one at a time over one stream to the leader. Clones share the stream.
#[derive(Clone)]
pub struct Submitter {
    client: Client,
    pipe: Arc<tokio::sync::Mutex<Option<Pipe>>>,
}

impl Client {
    /// A faster way to submit many jobs one at a time. Opens its stream with the first submission.
    #[must_use]
    pub fn submitter(&self) -> Submitter {
        Submitter { client: self.clone(), pipe: Arc::default() }
    }
}

impl Submitter {
    /// Submits one job, or one array of jobs: the same as [`Client::submit_job`], with the same answers.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn submit_job(
        &self,
        mut request: v1::SubmitJobRequest,
    ) -> Result<v1::SubmitJobResponse, CallError> {
        let request_id = ensure_request_id(&mut request.request_id);
        // A stream names no features: it is opened before anybody knows what its submissions need.
        if !features::required_by(&request.job).is_empty() {
            return self.client.submit_job(request).await;
        }
        let Some(pipe) = self.pipe().await else { return self.client.submit_job(request).await };
        let limit = self.client.options.attempt_timeout.min(self.client.options.deadline);
        let answer = tokio::select! {
            answer = tokio::time::timeout(limit, pipe.submit(request.clone())) => answer.ok().flatten(),
            // The separate call goes by other ways too.
            () = pipe.link.silence(tokio::time::Instant::now()) => None,
        };
        match answer {
            Some(Ok(answer)) => {
                self.client.observe(answer.freshness.as_ref());
                return Ok(answer);
            }
            Some(Err(status)) => {
                let refused = Refused::from_status(&status);
                let subject = Subject { operation: "submit job", request_id };
                if subject.judge(&refused, false) == Verdict::Final {
                    let endpoint = pipe.link.address.to_string();
                    return Err(CallError::Refused { operation: subject.operation, endpoint, refused });
                }
            }
            // The stream broke, or its replica is silent: the next submission opens another.
            None => self.give_up(&pipe).await,
        }
        if planted::repeats_under_a_new_id() {
            request.request_id.clear();
        }
        self.client.submit_job(request).await
    }

    async fn pipe(&self) -> Option<Pipe> {
        let mut pipe = self.pipe.lock().await;
        if let Some(pipe) = pipe.as_ref() {
            return Some(pipe.clone());
        }
        let limit = OPEN_MAX.min(self.client.options.attempt_timeout).min(self.client.options.deadline);
        *pipe = tokio::time::timeout(limit, self.open()).await.ok()?;
        pipe.clone()
    }

    /// A stream to the leader where it can be reached, else to a replica that passes on.
    async fn open(&self) -> Option<Pipe> {
        let limit = self.client.options.attempt_timeout;
        let link = self.client.connection.current_within(limit).await.ok()?;
        let (pipe, inbound, leader) = open_at(link).await?;
        let epoch = self.client.endpoints().security().epoch();
        if let Some(leader) = leader
            && let Ok(found) = self.client.endpoints().connect_to(&leader).await
            && let Some((pipe, inbound, None)) = open_at(Link::new(found, epoch)).await
        {
            tokio::spawn(pipe.clone().receive(inbound));
            return Some(pipe);
        }
        tokio::spawn(pipe.clone().receive(inbound));
        Some(pipe)
    }

    async fn give_up(&self, failed: &Pipe) {
        let mut pipe = self.pipe.lock().await;
        if pipe.as_ref().is_some_and(|pipe| Arc::ptr_eq(&pipe.waiting, &failed.waiting)) {
            *pipe = None;
        }
    }
}

type Opened = (Pipe, Streaming<v1::SubmitStreamResponse>, Option<String>);

/// A stream to a replica, and the leader that it names when that is another.
async fn open_at(link: Link) -> Option<Opened> {
    let (outbound, messages) = mpsc::channel(UNDER_WAY_MAX);
    let messages = futures::stream::unfold(messages, |mut messages| async move {
        let next: v1::SubmitStreamRequest = messages.recv().await?;
        Some((next, messages))
    });
    let opened = jobs(link.channel.clone()).submit_stream(messages).await;
    let response = opened.inspect_err(|status| tracing::debug!(%status, "no stream of submissions")).ok()?;
    let leader = response.metadata().get(LEADER);
    let leader = leader.and_then(|leader| leader.to_str().ok()).map(str::to_owned);
    let pipe = Pipe { link, outbound, waiting: Arc::default() };
    Some((pipe, response.into_inner(), leader))
}
