//! Reading the decision log, across the loss of replicas.
//!
//! **Invariant:** every record is delivered once and in order: a new stream begins right behind what was
//! delivered before.

use admin::archive_service_client::ArchiveServiceClient;
use futures::stream::{self, Stream};
use muster_types::RefusalCode;
use muster_wire::v1::read_decisions_response::Event;
use muster_wire::{admin, v1};
use tonic::{Status, Streaming};
use v1::history_service_client::HistoryServiceClient;

use crate::Client;
use crate::calls::ANSWER_BYTES_MAX;
use crate::channel::Channel;
use crate::connection::Link;
use crate::error::CallError;
use crate::retry::{Failure, RetryBudget, Subject};

/// One step of a read of the log.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LogItem {
    /// A record.
    Record(Box<v1::LogRecord>),
    /// Nothing that was asked for, up to this index.
    Bookmark {
        /// Up to where.
        log_index: u64,
    },
    /// Everything that there was has been delivered; new records follow, for who follows.
    SyncEnd {
        /// The newest record then.
        log_index: u64,
    },
}

/// Records of the log.
pub struct LogReader {
    client: Client,
    /// Its `from_index` is always the next record that is wanted.
    request: v1::ReadDecisionsRequest,
    stream: Option<(Link, Streaming<v1::ReadDecisionsResponse>)>,
    budget: RetryBudget,
    ended: bool,
}

fn log(channel: Channel) -> HistoryServiceClient<Channel> {
    HistoryServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

fn archive(channel: Channel) -> ArchiveServiceClient<Channel> {
    ArchiveServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

const SUBJECT: Subject = Subject { operation: "read log", request_id: None };

impl Client {
    /// Reads the decision log. Nothing is sent before the first [`LogReader::next`].
    #[must_use]
    pub fn read_decisions(&self, mut request: v1::ReadDecisionsRequest) -> LogReader {
        request.from_index = request.from_index.max(1);
        LogReader {
            client: self.clone(),
            request,
            stream: None,
            budget: RetryBudget::new(&self.options),
            ended: false,
        }
    }

    /// Encoded rounds of the log from a Raft index on, as far as a segment or a megabyte reaches, and where
    /// the next ones begin: the same index when there are none behind it.
    ///
    /// # Errors
    /// Refusals at once, among them that they are not kept any more; everything else when the deadline
    /// has passed.
    pub async fn read_rounds(&self, from_raft_index: u64) -> Result<(Vec<admin::LogRound>, u64), CallError> {
        let subject = Subject { operation: "read rounds", request_id: None };
        let send = |channel| async move {
            let answer = archive(channel).read_rounds(admin::ReadRoundsRequest { from_raft_index }).await?;
            let (mut messages, mut rounds, mut next) = (answer.into_inner(), Vec::new(), from_raft_index);
            while let Some(message) = messages.message().await? {
                next = message.next_raft_index;
                rounds.extend(message.rounds);
            }
            Ok(tonic::Response::new((rounds, next)))
        };
        self.retry(subject, send).await
    }

    /// How some replica's archive stands.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn get_archive_status(&self) -> Result<admin::GetArchiveStatusResponse, CallError> {
        let subject = Subject { operation: "get archive status", request_id: None };
        let send = |channel| async move {
            archive(channel).get_archive_status(admin::GetArchiveStatusRequest {}).await
        };
        self.retry(subject, send).await
    }

    /// How the archive of the replica at one address stands; asked once, not through the rotation.
    ///
    /// # Errors
    /// When that replica cannot be reached or does not answer in time.
    pub async fn get_archive_status_of(
        &self,
        address: &str,
    ) -> Result<admin::GetArchiveStatusResponse, crate::AttemptError> {
        use crate::AttemptError;
        let (endpoint, channel) =
            self.endpoints().connect_to(address).await.map_err(AttemptError::Connect)?;
        let limit = self.options.attempt_timeout.min(self.options.deadline);
        let mut archive = archive(channel);
        match tokio::time::timeout(limit, archive.get_archive_status(admin::GetArchiveStatusRequest {})).await
        {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => {
                let refused = muster_wire::status::Refused::from_status(&status);
                Err(AttemptError::Answer { endpoint, refused })
            }
            Err(_) => Err(AttemptError::Timeout { endpoint }),
        }
    }
}

impl LogReader {
    /// The next record that was not delivered yet.
    #[must_use]
    pub fn next_index(&self) -> u64 {
        self.request.from_index
    }

    /// The next item; none at the end of what was asked for, which never comes for who follows. Dropping
    /// the future loses nothing.
    ///
    /// # Errors
    /// Refusals at once, among them that the next record is not kept any more; everything else when
    /// there was no progress for the deadline.
    pub async fn next(&mut self) -> Result<Option<LogItem>, CallError> {
        loop {
            if self.ended {
                return Ok(None);
            }
            let failure = match &mut self.stream {
                Some((link, stream)) => match stream.message().await {
                    Ok(Some(message)) => {
                        if let Some(item) = self.accept(message) {
                            return Ok(Some(item));
                        }
                        continue;
                    }
                    Ok(None) => Failure::answer(link, &Status::unavailable("the stream ended"), &SUBJECT),
                    Err(status) => Failure::answer(link, &status, &SUBJECT),
                },
                None => match self.open().await {
                    Ok(()) => continue,
                    Err(failure) => failure,
                },
            };
            self.stream = None;
            self.client.after_failure(&SUBJECT, &mut self.budget, failure).await?;
        }
    }

    /// The same as a stream, which ends with what was asked for or behind its first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<LogItem, CallError>> + Send {
        stream::try_unfold(self, |mut log| async move {
            let item = log.next().await?;
            Ok(item.map(|item| (item, log)))
        })
    }

    async fn open(&mut self) -> Result<(), Failure> {
        self.budget.attempts += 1;
        let link =
            self.client.connection.current_within(self.budget.left()).await.map_err(Failure::connect)?;
        let limit = self.budget.left().min(self.client.options.attempt_timeout);
        let mut log = log(link.channel.clone());
        match tokio::time::timeout(limit, log.read_decisions(self.request.clone())).await {
            Ok(Ok(response)) => {
                self.stream = Some((link, response.into_inner()));
                Ok(())
            }
            Ok(Err(status)) => Err(Failure::answer(&link, &status, &SUBJECT)),
            Err(_) => Err(Failure::silence(&link)),
        }
    }

    /// Takes in a message; none for one that only a newer version understands.
    fn accept(&mut self, message: v1::ReadDecisionsResponse) -> Option<LogItem> {
        let v1::ReadDecisionsResponse { log_index, event } = message;
        self.budget = RetryBudget::new(&self.client.options);
        self.client.observe_log_index(log_index);
        let event = event?;
        self.request.from_index = self.request.from_index.max(log_index.saturating_add(1));
        let last = self.request.to_index != 0 && self.request.from_index > self.request.to_index;
        Some(match event {
            Event::Record(record) => LogItem::Record(Box::new(record)),
            Event::Bookmark(_) => LogItem::Bookmark { log_index },
            Event::SyncEnd(_) => {
                self.ended = !self.request.follow || last;
                LogItem::SyncEnd { log_index }
            }
        })
    }
}

/// The oldest record that is still kept, when a refusal states it.
#[must_use]
pub fn oldest_kept(error: &CallError) -> Option<u64> {
    match error {
        CallError::Refused { refused, .. } if refused.code == Some(RefusalCode::ResumeTokenCompacted) => {
            refused.metadata.get("oldest_log_index")?.parse().ok()
        }
        _ => None,
    }
}
