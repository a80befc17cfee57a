//! The output of workers, across the loss of replicas and of agents.
//!
//! Every piece says of which placement it is and where in its output it ends, so a stream that breaks is
//! opened again behind the last piece, through whichever replica comes next.
//!
//! **Invariant:** every byte that was kept is delivered once and in order; what was not kept is reported.

use futures::stream::{self, Stream};
use muster_types::RefusalCode;
use muster_wire::v1;
use tonic::Streaming;

use crate::Client;
use crate::calls::jobs;
use crate::connection::Link;
use crate::error::{AttemptError, CallError};
use crate::retry::{Failure, RetryBudget, Subject, Verdict};

const SUBJECT: Subject = Subject { operation: "read logs", request_id: None };

/// Output of one worker, as it was written.
pub struct LogStream {
    client: Client,
    /// Always what is still wanted.
    request: v1::ReadLogsRequest,
    stream: Option<(Link, Streaming<v1::ReadLogsResponse>)>,
    budget: RetryBudget,
    bytes: u64,
    ended: bool,
}

impl Client {
    /// Reads the output of one worker.
    ///
    /// # Errors
    /// Refusals at once, as far as a replica can tell before it has asked the worker's node; everything
    /// else when the deadline has passed.
    pub async fn read_logs(&self, request: v1::ReadLogsRequest) -> Result<LogStream, CallError> {
        let budget = RetryBudget::new(&self.options);
        let client = self.clone();
        let mut logs = LogStream { client, request, stream: None, budget, bytes: 0, ended: false };
        while logs.stream.is_none() {
            if let Err(failure) = logs.open().await {
                logs.recover(failure).await?;
            }
        }
        Ok(logs)
    }
}

impl LogStream {
    /// The next piece; none at the end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Refusals that come before anything was read; afterwards when the rest cannot be had within the
    /// deadline. What was delivered before is good.
    pub async fn next(&mut self) -> Result<Option<v1::ReadLogsResponse>, CallError> {
        while !self.ended {
            let failure = match &mut self.stream {
                Some((link, stream)) => match stream.message().await {
                    Ok(Some(piece)) => {
                        if let Some(piece) = self.accept(piece) {
                            return Ok(Some(piece));
                        }
                        continue;
                    }
                    Ok(None) => {
                        self.ended = true;
                        break;
                    }
                    Err(status) => Failure::answer(link, &status, &SUBJECT),
                },
                None => match self.open().await {
                    Ok(()) => continue,
                    Err(failure) => failure,
                },
            };
            self.stream = None;
            self.recover(failure).await?;
        }
        Ok(None)
    }

    /// The same as a stream, which ends with the output or behind its first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<v1::ReadLogsResponse, CallError>> + Send {
        stream::try_unfold(self, |mut output| async move {
            let piece = output.next().await?;
            Ok(piece.map(|piece| (piece, output)))
        })
    }

    async fn open(&mut self) -> Result<(), Failure> {
        self.budget.attempts += 1;
        let link =
            self.client.connection.current_within(self.budget.left()).await.map_err(Failure::connect)?;
        let limit = self.budget.left().min(self.client.options.attempt_timeout);
        let mut jobs = jobs(link.channel.clone());
        match tokio::time::timeout(limit, jobs.read_logs(self.request.clone())).await {
            Ok(Ok(response)) => {
                self.stream = Some((link, response.into_inner()));
                Ok(())
            }
            Ok(Err(status)) => Err(Failure::answer(&link, &status, &SUBJECT)),
            Err(_) => Err(Failure::silence(&link)),
        }
    }

    /// Takes in a piece; none for the last one, which only says that there is no more.
    fn accept(&mut self, piece: v1::ReadLogsResponse) -> Option<v1::ReadLogsResponse> {
        self.budget = RetryBudget::new(&self.client.options);
        if let Some(token) = piece.token
            && piece.position > 0
        {
            self.request.token = Some(token);
            self.request.previous = false;
            self.request.from_position = piece.position;
            // What it was the tail of is on its way.
            self.request.tail_bytes = 0;
        }
        self.bytes += piece.data.len() as u64;
        (!piece.data.is_empty() || piece.dropped_bytes > 0).then_some(piece)
    }

    async fn recover(&mut self, mut failure: Failure) -> Result<(), CallError> {
        let begun = self.bytes > 0 || self.request.from_position > 0;
        if self.request.follow && has_code(&failure.error, RefusalCode::WorkerNotStarted) {
            // Who follows a worker waits for its start, however long the job waits.
            (failure.verdict, self.budget) = (Verdict::Stay, RetryBudget::new(&self.client.options));
        }
        if !begun {
            return self.client.after_failure(&SUBJECT, &mut self.budget, failure).await;
        }
        if self.request.token.is_none() {
            // A server that names no positions: what follows cannot be told from what was read.
            return Err(CallError::StreamBroken {
                operation: SUBJECT.operation,
                bytes: self.bytes,
                last: failure.error,
            });
        }
        if has_code(&failure.error, RefusalCode::LogsUnavailable) && failure.verdict == Verdict::Final {
            // The agent of the worker or its session may be back in a moment.
            failure.verdict = Verdict::Stay;
        }
        let after = self.client.after_failure(&SUBJECT, &mut self.budget, failure).await;
        after.map_err(|error| match error {
            CallError::DeadlineExceeded { operation, last, .. } => {
                CallError::StreamBroken { operation, bytes: self.bytes, last }
            }
            other => other,
        })
    }
}

fn has_code(error: &AttemptError, code: RefusalCode) -> bool {
    matches!(error, AttemptError::Answer { refused, .. } if refused.code == Some(code))
}
