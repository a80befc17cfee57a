//! The changes of jobs.
//!
//! A watch outlives the replica that serves it: each event carries a token, and a new stream opened
//! with the last token goes on exactly behind that event.
//!
//! **Invariant:** between two [`WatchItem::Restarted`] every change is delivered once and in log order.

use muster_types::RefusalCode;
use muster_wire::v1;
use tonic::{Status, Streaming};
use v1::watch_jobs_response::Event;

use crate::Client;
use crate::calls::jobs;
use crate::error::{AttemptError, CallError};
use crate::repeat::{Failure, Link, Patience, Subject, Verdict};

/// One step of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchItem {
    /// A job was added or changed; before [`WatchItem::SyncEnd`]: a job as it is at the beginning.
    Changed {
        /// The record that did it.
        log_index: u64,
        /// The job after it.
        job: Box<v1::Job>,
    },
    /// The jobs as they were at the beginning have all been delivered.
    SyncEnd {
        /// The position they are complete up to.
        log_index: u64,
    },
    /// Nothing changed up to here.
    Bookmark {
        /// Up to where.
        log_index: u64,
    },
    /// A finished job was dropped from the state.
    Forgotten {
        /// The record that did it.
        log_index: u64,
        /// Which job.
        job_id: String,
    },
    /// The place in the log was lost (its history is no longer kept, or the first sync broke off). What
    /// follows is a new sync of the present state; changes in between were not delivered one by one.
    Restarted,
}

/// Changes of jobs, across the loss of replicas.
pub struct Watch {
    client: Client,
    request: v1::WatchJobsRequest,
    stream: Option<(Link, Streaming<v1::WatchJobsResponse>)>,
    /// Since the last event; a watch that makes progress never runs out of it.
    patience: Patience,
    /// Whether anything was delivered since the last start from nothing.
    delivered: bool,
}

impl Client {
    /// Watches the jobs that match. With a resume token, goes on behind the event that carried it.
    /// Nothing is sent before the first [`Watch::next`].
    #[must_use]
    pub fn watch_jobs(&self, request: v1::WatchJobsRequest) -> Watch {
        let patience = Patience::new(&self.options);
        let delivered = !request.resume_token.is_empty();
        Watch { client: self.clone(), request, stream: None, patience, delivered }
    }
}

impl Watch {
    /// Hand this to [`Client::watch_jobs`] later, in another process if need be, to go on behind the
    /// last item. Empty before the first one.
    #[must_use]
    pub fn resume_token(&self) -> &str {
        &self.request.resume_token
    }

    /// The next item; waits for it. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Refusals at once; everything else when there was no progress for the deadline.
    pub async fn next(&mut self) -> Result<WatchItem, CallError> {
        loop {
            let failure = match &mut self.stream {
                Some((link, stream)) => match stream.message().await {
                    Ok(Some(message)) => {
                        if let Some(item) = self.accept(message) {
                            return Ok(item);
                        }
                        continue;
                    }
                    // A replica that shuts down or rebalances its connections ends streams so.
                    Ok(None) => {
                        Failure::answer(link, &Status::unavailable("the stream ended"), &subject(true))
                    }
                    Err(status) => Failure::answer(link, &status, &subject(true)),
                },
                None => match self.open().await {
                    Ok(()) => {
                        if self.request.resume_token.is_empty() && std::mem::take(&mut self.delivered) {
                            return Ok(WatchItem::Restarted);
                        }
                        continue;
                    }
                    Err(failure) => failure,
                },
            };
            self.stream = None;
            self.recover(failure).await?;
        }
    }

    async fn open(&mut self) -> Result<(), Failure> {
        self.patience.attempts += 1;
        let subject = subject(!self.request.resume_token.is_empty());
        let link =
            self.client.connection.current_within(self.patience.left()).await.map_err(Failure::connect)?;
        let limit = self.patience.left().min(self.client.options.attempt_timeout);
        let mut jobs = jobs(link.channel.clone());
        match tokio::time::timeout(limit, jobs.watch_jobs(self.request.clone())).await {
            Ok(Ok(response)) => {
                self.stream = Some((link, response.into_inner()));
                Ok(())
            }
            Ok(Err(status)) => Err(Failure::answer(&link, &status, &subject)),
            Err(_) => Err(Failure::silence(&link)),
        }
    }

    async fn recover(&mut self, failure: Failure) -> Result<(), CallError> {
        let subject = subject(true);
        if is_compacted(&failure.error) && !self.request.resume_token.is_empty() {
            // What lies behind the token is gone everywhere: begin again with the present state.
            self.request.resume_token.clear();
            self.delivered = true;
            return Ok(());
        }
        debug_assert!(failure.link.is_some() || failure.verdict == Verdict::Stay);
        self.client.after_failure(&subject, &mut self.patience, failure).await
    }

    /// Takes in a message; none for one that only a newer version understands.
    fn accept(&mut self, message: v1::WatchJobsResponse) -> Option<WatchItem> {
        let v1::WatchJobsResponse { resume_token, log_index, event } = message;
        self.patience = Patience::new(&self.client.options);
        if !resume_token.is_empty() {
            self.request.resume_token = resume_token;
        }
        self.client.observe_log_index(log_index);
        let item = match event? {
            Event::Changed(job) => WatchItem::Changed { log_index, job: Box::new(job) },
            Event::SyncEnd(_) => WatchItem::SyncEnd { log_index },
            Event::Bookmark(_) => WatchItem::Bookmark { log_index },
            Event::Forgotten(job_id) => WatchItem::Forgotten { log_index, job_id },
        };
        self.delivered = true;
        Some(item)
    }
}

fn subject(names_log_index: bool) -> Subject {
    Subject { operation: "watch jobs", request_id: None, names_log_index }
}

fn is_compacted(error: &AttemptError) -> bool {
    matches!(error, AttemptError::Answer { refused, .. } if refused.code == Some(RefusalCode::ResumeTokenCompacted))
}
