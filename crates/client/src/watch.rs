//! Streams: the changes of jobs, nodes and queues.
//!
//! A watch outlives the replica that serves it: each event carries a token, and a new stream opened
//! with the last token goes on exactly behind that event.
//!
//! **Invariant:** between two `Restarted` every change is delivered once and in log order.

use futures::stream::{self, Stream};
use muster_types::RefusalCode;
use muster_wire::v1;
use tonic::{Response, Status, Streaming};

use crate::Client;
use crate::calls::{fleet, jobs, queues};
use crate::channel::Channel;
use crate::connection::Link;
use crate::error::{AttemptError, CallError};
use crate::retry::{Failure, RetryBudget, Subject, Verdict};

/// One step of a watch of jobs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
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

/// One step of a watch of nodes; as [`WatchItem`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NodeItem {
    /// A node was added or changed, or is there at the beginning.
    Changed {
        /// The record that did it.
        log_index: u64,
        /// The node after it.
        node: Box<v1::Node>,
    },
    /// The beginning is complete.
    SyncEnd {
        /// Up to where.
        log_index: u64,
    },
    /// Nothing changed up to here.
    Bookmark {
        /// Up to where.
        log_index: u64,
    },
    /// A lost node was dropped from the state.
    Forgotten {
        /// The record that did it.
        log_index: u64,
        /// Its id.
        node_id: String,
    },
    /// The place in the log was lost; the present state follows.
    Restarted,
}

/// One step of a watch of queues; as [`WatchItem`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum QueueItem {
    /// What one round of decisions did, or a queue as it is at the beginning.
    Changed {
        /// The last record of the round.
        log_index: u64,
        /// Queues that were added or changed, as they are after it.
        queues: Vec<v1::TenantUsage>,
        /// Tenants whose queues are gone.
        forgotten: Vec<String>,
    },
    /// The beginning is complete.
    SyncEnd {
        /// Up to where.
        log_index: u64,
    },
    /// Nothing changed up to here.
    Bookmark {
        /// Up to where.
        log_index: u64,
    },
    /// The place in the log was lost; the present state follows.
    Restarted,
}

/// What differs between watches.
pub trait Watched: Send + 'static {
    /// What is asked for, with the token.
    type Request: Clone + Send + Sync;
    /// One message of the stream.
    type Response: Send;
    /// What the caller gets of it.
    type Item;
    #[doc(hidden)]
    const OPERATION: &'static str;

    #[doc(hidden)]
    fn open(
        channel: Channel,
        request: Self::Request,
    ) -> impl Future<Output = Result<Response<Streaming<Self::Response>>, Status>> + Send;

    #[doc(hidden)]
    fn token(request: &Self::Request) -> &str;

    #[doc(hidden)]
    fn set_token(request: &mut Self::Request, token: String);

    /// The token and the index that the message carries, and the item; none for one that only a newer
    /// version understands.
    #[doc(hidden)]
    fn read(message: Self::Response) -> (String, u64, Option<Self::Item>);

    #[doc(hidden)]
    fn restarted() -> Self::Item;
}

/// Of jobs.
pub struct OfJobs;

impl Watched for OfJobs {
    type Request = v1::WatchJobsRequest;
    type Response = v1::WatchJobsResponse;
    type Item = WatchItem;
    const OPERATION: &'static str = "watch jobs";

    async fn open(
        channel: Channel,
        request: v1::WatchJobsRequest,
    ) -> Result<Response<Streaming<v1::WatchJobsResponse>>, Status> {
        jobs(channel).watch_jobs(request).await
    }

    fn token(request: &v1::WatchJobsRequest) -> &str {
        &request.resume_token
    }

    fn set_token(request: &mut v1::WatchJobsRequest, token: String) {
        request.resume_token = token;
    }

    fn read(message: v1::WatchJobsResponse) -> (String, u64, Option<WatchItem>) {
        use v1::watch_jobs_response::Event;
        let v1::WatchJobsResponse { resume_token, log_index, event } = message;
        let item = event.map(|event| match event {
            Event::Changed(job) => WatchItem::Changed { log_index, job: Box::new(job) },
            Event::SyncEnd(_) => WatchItem::SyncEnd { log_index },
            Event::Bookmark(_) => WatchItem::Bookmark { log_index },
            Event::Forgotten(job_id) => WatchItem::Forgotten { log_index, job_id },
        });
        (resume_token, log_index, item)
    }

    fn restarted() -> WatchItem {
        WatchItem::Restarted
    }
}

/// Of nodes.
pub struct OfNodes;

impl Watched for OfNodes {
    type Request = v1::WatchNodesRequest;
    type Response = v1::WatchNodesResponse;
    type Item = NodeItem;
    const OPERATION: &'static str = "watch nodes";

    async fn open(
        channel: Channel,
        request: v1::WatchNodesRequest,
    ) -> Result<Response<Streaming<v1::WatchNodesResponse>>, Status> {
        fleet(channel).watch_nodes(request).await
    }

    fn token(request: &v1::WatchNodesRequest) -> &str {
        &request.resume_token
    }

    fn set_token(request: &mut v1::WatchNodesRequest, token: String) {
        request.resume_token = token;
    }

    fn read(message: v1::WatchNodesResponse) -> (String, u64, Option<NodeItem>) {
        use v1::watch_nodes_response::Event;
        let v1::WatchNodesResponse { resume_token, log_index, event } = message;
        let item = event.map(|event| match event {
            Event::Changed(node) => NodeItem::Changed { log_index, node: Box::new(node) },
            Event::SyncEnd(_) => NodeItem::SyncEnd { log_index },
            Event::Bookmark(_) => NodeItem::Bookmark { log_index },
            Event::Forgotten(node_id) => NodeItem::Forgotten { log_index, node_id },
        });
        (resume_token, log_index, item)
    }

    fn restarted() -> NodeItem {
        NodeItem::Restarted
    }
}

/// Of queues.
pub struct OfQueues;

impl Watched for OfQueues {
    type Request = v1::WatchTenantsRequest;
    type Response = v1::WatchTenantsResponse;
    type Item = QueueItem;
    const OPERATION: &'static str = "watch queues";

    async fn open(
        channel: Channel,
        request: v1::WatchTenantsRequest,
    ) -> Result<Response<Streaming<v1::WatchTenantsResponse>>, Status> {
        queues(channel).watch_tenants(request).await
    }

    fn token(request: &v1::WatchTenantsRequest) -> &str {
        &request.resume_token
    }

    fn set_token(request: &mut v1::WatchTenantsRequest, token: String) {
        request.resume_token = token;
    }

    fn read(message: v1::WatchTenantsResponse) -> (String, u64, Option<QueueItem>) {
        use v1::watch_tenants_response::Event;
        let v1::WatchTenantsResponse { resume_token, log_index, event } = message;
        let item = event.map(|event| match event {
            Event::Changed(v1::TenantChanges { changed, forgotten }) => {
                QueueItem::Changed { log_index, queues: changed, forgotten }
            }
            Event::SyncEnd(_) => QueueItem::SyncEnd { log_index },
            Event::Bookmark(_) => QueueItem::Bookmark { log_index },
        });
        (resume_token, log_index, item)
    }

    fn restarted() -> QueueItem {
        QueueItem::Restarted
    }
}

/// Changes, across the loss of replicas: of jobs, unless it says otherwise.
pub struct Watch<W: Watched = OfJobs> {
    client: Client,
    request: W::Request,
    stream: Option<(Link, Streaming<W::Response>)>,
    /// Since the last event; a watch that makes progress never runs out of it.
    budget: RetryBudget,
    /// Whether anything was delivered since the last start from nothing.
    delivered: bool,
}

/// Changes of nodes.
pub type NodeWatch = Watch<OfNodes>;
/// Changes of queues.
pub type QueueWatch = Watch<OfQueues>;

impl Client {
    /// Watches the jobs that match. With a resume token, goes on behind the event that carried it.
    /// Nothing is sent before the first [`Watch::next`].
    #[must_use]
    pub fn watch_jobs(&self, request: v1::WatchJobsRequest) -> Watch {
        Watch::new(self, request)
    }

    /// Watches the nodes that match; as [`Client::watch_jobs`].
    #[must_use]
    pub fn watch_nodes(&self, request: v1::WatchNodesRequest) -> NodeWatch {
        Watch::new(self, request)
    }

    /// Watches the queues that match; as [`Client::watch_jobs`].
    #[must_use]
    pub fn watch_tenants(&self, request: v1::WatchTenantsRequest) -> QueueWatch {
        Watch::new(self, request)
    }
}

impl<W: Watched> Watch<W> {
    fn new(client: &Client, request: W::Request) -> Watch<W> {
        let budget = RetryBudget::new(&client.options);
        let delivered = !W::token(&request).is_empty();
        Watch { client: client.clone(), request, stream: None, budget, delivered }
    }

    /// Put this into the request of a later watch, in another process if need be, to go on behind the
    /// last item. Empty before the first one.
    #[must_use]
    pub fn resume_token(&self) -> &str {
        W::token(&self.request)
    }

    fn goes_on(&self) -> bool {
        !self.resume_token().is_empty()
    }

    /// The next item; waits for it. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Refusals at once; everything else when there was no progress for the deadline.
    pub async fn next(&mut self) -> Result<W::Item, CallError> {
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
                        let ended = Status::unavailable("the stream ended");
                        Failure::answer(link, &ended, &subject::<W>())
                    }
                    Err(status) => Failure::answer(link, &status, &subject::<W>()),
                },
                None => match self.open().await {
                    Ok(()) => {
                        if !self.goes_on() && std::mem::take(&mut self.delivered) {
                            return Ok(W::restarted());
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

    /// The same as a stream, which ends behind its first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<W::Item, CallError>> + Send {
        stream::try_unfold(self, |mut watch| async move {
            let item = watch.next().await?;
            Ok(Some((item, watch)))
        })
    }

    async fn open(&mut self) -> Result<(), Failure> {
        self.budget.attempts += 1;
        let subject = subject::<W>();
        let link =
            self.client.connection.current_within(self.budget.left()).await.map_err(Failure::connect)?;
        let limit = self.budget.left().min(self.client.options.attempt_timeout);
        let opening = W::open(link.channel.clone(), self.request.clone());
        match tokio::time::timeout(limit, opening).await {
            Ok(Ok(response)) => {
                self.stream = Some((link, response.into_inner()));
                Ok(())
            }
            Ok(Err(status)) => Err(Failure::answer(&link, &status, &subject)),
            Err(_) => Err(Failure::silence(&link)),
        }
    }

    async fn recover(&mut self, failure: Failure) -> Result<(), CallError> {
        let subject = subject::<W>();
        if is_compacted(&failure.error) && self.goes_on() {
            // What lies behind the token is gone everywhere: begin again with the present state.
            W::set_token(&mut self.request, String::new());
            self.delivered = true;
            return Ok(());
        }
        debug_assert!(failure.link.is_some() || failure.verdict == Verdict::Stay);
        self.client.after_failure(&subject, &mut self.budget, failure).await
    }

    /// Takes in a message; none for one that only a newer version understands.
    fn accept(&mut self, message: W::Response) -> Option<W::Item> {
        let (resume_token, log_index, item) = W::read(message);
        self.budget = RetryBudget::new(&self.client.options);
        if !resume_token.is_empty() {
            W::set_token(&mut self.request, resume_token);
        }
        self.client.observe_log_index(log_index);
        self.delivered |= item.is_some();
        item
    }
}

fn subject<W: Watched>() -> Subject {
    Subject { operation: W::OPERATION, request_id: None }
}

fn is_compacted(error: &AttemptError) -> bool {
    matches!(error, AttemptError::Answer { refused, .. } if refused.code == Some(RefusalCode::ResumeTokenCompacted))
}
