//! `muster.v1beta1.HistoryService`.

use futures::StreamExt;
use futures::stream::BoxStream;
use muster_archive::{Record, content, summary};
use muster_engine::{Engine, LogFollower};
use muster_journal::canonical;
use muster_state::State;
use muster_types::{LogIndex, Name, PastPoint, Refusal, RefusalCode, Violation};
use muster_wire::shared::encoded_len;
use muster_wire::status::to_status;
use muster_wire::time::log_time;
use muster_wire::v1;
use muster_wire::v1::history_service_server::HistoryService;
use muster_wire::v1::read_decisions_response::Event;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::forward::Router;
use crate::read::invalid;
use crate::refusals::failed;
use crate::shares::{Account, Pool, PoolPermit};
use crate::turns::QueuePermit;
use crate::visibility::Visibility;

mod archive;

pub(crate) use archive::Archives;
pub use archive::RemoteHistory;

/// Readers of the log that one replica serves at a time.
const READERS_MAX: u64 = 2_048;
/// Of one tenant, or of one certificate that is of no tenant.
const READERS_EACH_MAX: u64 = 256;
/// Messages made for a reader that it has not taken.
const MESSAGES_WAITING_MAX: usize = 64;
/// The least memory that a reader waits for before a piece is made for it.
const PIECE_BYTES_MIN: usize = 16 << 10;
/// Records of at most this many bytes in the log are rendered on the thread that serves their reader.
const RENDERED_HERE_BYTES: usize = 4 << 10;
/// How long a reader may take nothing before it is cut.
const STALL_MAX: Duration = Duration::from_secs(60);
/// Between two messages that only say that nothing was found so far.
const BOOKMARK_INTERVAL: Duration = Duration::from_millis(500);
/// Names of decisions that one request may ask for.
const DECISIONS_MAX: usize = 64;

pub(crate) struct Logs {
    router: Router,
    readers: Pool,
}

impl Logs {
    pub(crate) fn new(router: Router) -> Logs {
        let readers = Pool::new(READERS_MAX, READERS_EACH_MAX);
        Logs { router, readers }
    }
}

fn decisions(names: &[String]) -> Result<BTreeSet<String>, Status> {
    if names.len() > DECISIONS_MAX {
        let violation = Violation::limit("decisions", names.len() as u64, 0, DECISIONS_MAX as u64);
        return Err(invalid(vec![violation]));
    }
    let wrong = names.iter().enumerate().filter(|(_, name)| Name::new(name).is_none());
    let violations: Vec<Violation> =
        wrong.map(|(at, _)| Violation::new(format!("decisions[{at}]"), "is no name of a decision")).collect();
    if violations.is_empty() { Ok(names.iter().cloned().collect()) } else { Err(invalid(violations)) }
}

/// A record as a message, as it is shown to a caller.
pub(crate) fn render(record: &Record, raw: bool, view: &State, visibility: Visibility) -> v1::LogRecord {
    let mut content = content(&record.decision);
    let redacted = visibility.redact(view, &record.decision, &mut content);
    v1::LogRecord {
        log_index: record.log_index.0,
        log_time: log_time(record.log_time),
        term: record.term,
        leader_id: record.leader.0,
        raft_index: record.raft_index,
        generation: record.generation,
        decision: record.decision.name().to_owned(),
        summary: summary(&content),
        content_json: content.to_string(),
        raw: if raw && !redacted { canonical(&record.decision) } else { Vec::new() },
        redacted,
    }
}

/// One stream of records.
struct Reader {
    router: Router,
    account: Account,
    engine: Engine,
    follower: LogFollower,
    to: LogIndex,
    follow: bool,
    decisions: Arc<BTreeSet<String>>,
    raw: bool,
    /// Whose jobs it is shown whole.
    visibility: Visibility,
    /// What the last piece took of memory, which is what the next one waits for.
    piece_bytes: usize,
    _place: PoolPermit,
}

/// A message, with the memory that its piece takes until the last of it is taken.
type Item = (Result<v1::ReadDecisionsResponse, Status>, Option<QueuePermit>);
type ToClient = mpsc::Sender<Item>;

/// Some records as messages.
struct Piece {
    messages: Vec<v1::ReadDecisionsResponse>,
    /// Up to here all of them are in it that are wanted.
    reached: LogIndex,
    is_over: bool,
    at_end: bool,
    memory: QueuePermit,
}

/// Why a stream ends.
enum Ended {
    /// Everything was sent.
    Done,
    /// The reader has gone.
    Gone,
    /// The reader is told.
    Refused(Status),
}

impl From<Refusal> for Ended {
    fn from(refusal: Refusal) -> Ended {
        Ended::Refused(to_status(&refusal))
    }
}

impl Reader {
    /// Runs until everything is sent, the client goes or falls too far behind, or the replica stops.
    async fn run(mut self, to_client: ToClient) {
        // Kept free for the last word: who is cut because the line is full is told as well.
        let Ok(last_word) = to_client.clone().reserve_owned().await else { return };
        let engine = self.engine.clone();
        let ended = tokio::select! {
            () = to_client.closed() => Ended::Gone,
            ended = self.send_all(&to_client) => ended.err().unwrap_or(Ended::Done),
            () = engine.stopping() => {
                let text = "this replica stops; read on through another";
                Refusal::new(RefusalCode::ReplicaStopping, text).into()
            }
        };
        if let Ended::Refused(status) = ended {
            last_word.send((Err(status), None));
        }
    }

    async fn send_all(&mut self, to_client: &ToClient) -> Result<(), Ended> {
        let mut synced = false;
        let mut sent = LogIndex::ZERO;
        let mut told_at = Instant::now();
        loop {
            let Piece { messages, reached, is_over, at_end, memory } = self.piece().await?;
            let mut memory = Some(memory);
            let count = messages.len();
            for (at, message) in messages.into_iter().enumerate() {
                let index = LogIndex(message.log_index);
                let memory = if at + 1 == count { memory.take() } else { None };
                self.send(to_client, (message, memory), sent).await?;
                (sent, told_at) = (index, Instant::now());
            }
            drop(memory);
            let word = |event| (v1::ReadDecisionsResponse { log_index: reached.0, event: Some(event) }, None);
            if is_over || (at_end && !self.follow) {
                return self.send(to_client, word(Event::SyncEnd(v1::SyncEnd {})), sent).await;
            }
            if at_end && !synced {
                self.send(to_client, word(Event::SyncEnd(v1::SyncEnd {})), sent).await?;
                (synced, sent, told_at) = (true, reached, Instant::now());
            } else if reached > sent && told_at.elapsed() >= BOOKMARK_INTERVAL {
                self.send(to_client, word(Event::Bookmark(v1::Bookmark {})), sent).await?;
                (sent, told_at) = (reached, Instant::now());
            }
            if at_end {
                let untold = reached > sent;
                tokio::select! {
                    more = self.follower.more() => more?,
                    () = tokio::time::sleep(BOOKMARK_INTERVAL), if untold => {}
                }
            }
        }
    }

    /// The next records as messages. They are made in the caller's turn, and only where there is memory for them until they
    /// are taken; where they turn out larger than that, they are made again once there is.
    async fn piece(&mut self) -> Result<Piece, Ended> {
        loop {
            let memory = self.router.memory(self.account, self.piece_bytes).await?;
            let turn = self.router.costly_piece(self.account).await?;
            let before = self.follower.position();
            let batch = self.follower.next().await?;
            let (reached, at_end) = (LogIndex(batch.next.0 - 1).min(self.to), batch.records.is_empty());
            let is_over = batch.next > self.to;
            let is_small = batch.bytes <= RENDERED_HERE_BYTES;
            let (engine, decisions) = (self.engine.clone(), Arc::clone(&self.decisions));
            let (to, raw, visibility) = (self.to, self.raw, self.visibility);
            let render = move || {
                let wanted = |record: &&Record| {
                    record.log_index <= to
                        && (decisions.is_empty() || decisions.contains(record.decision.name()))
                };
                let view = engine.view();
                let message = |record: &Record| v1::ReadDecisionsResponse {
                    log_index: record.log_index.0,
                    event: Some(Event::Record(render(record, raw, &view, visibility))),
                };
                let messages: Vec<_> = batch.records.iter().filter(wanted).map(message).collect();
                let bytes = messages.iter().map(encoded_len).sum::<usize>();
                (messages, bytes)
            };
            let (messages, bytes) = if is_small {
                render()
            } else {
                let rendered = muster_engine::in_background(render).await;
                rendered.map_err(|_| Ended::Refused(failed("the records could not be shown")))?
            };
            drop(turn);
            if bytes > self.piece_bytes {
                self.piece_bytes = bytes;
                self.follower.go_back(before);
                continue;
            }
            self.piece_bytes = bytes.max(PIECE_BYTES_MIN);
            return Ok(Piece { messages, reached, is_over, at_end, memory });
        }
    }

    async fn send(
        &self,
        to: &ToClient,
        (message, memory): (v1::ReadDecisionsResponse, Option<QueuePermit>),
        last: LogIndex,
    ) -> Result<(), Ended> {
        match to.send_timeout((Ok(message), memory), STALL_MAX).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(Ended::Gone),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                let text = format!(
                    "nothing was taken from this stream for {} s; read on behind record {last}",
                    STALL_MAX.as_secs()
                );
                Err(Refusal::new(RefusalCode::Overloaded, text).with("last_log_index", last).into())
            }
        }
    }
}

#[tonic::async_trait]
impl HistoryService for Logs {
    type ReadDecisionsStream = BoxStream<'static, Result<v1::ReadDecisionsResponse, Status>>;

    async fn read_decisions(
        &self,
        request: Request<v1::ReadDecisionsRequest>,
    ) -> Result<Response<Self::ReadDecisionsStream>, Status> {
        let (caller, deadline) = (self.router.caller(&request), self.router.read_deadline(&request));
        let (visibility, account) = (caller.visibility(), caller.account());
        let place = self.readers.enter(account, 1).ok_or_else(|| {
            let text =
                format!("{account} reads the log of this replica as often at once as its share allows");
            to_status(&Refusal::new(RefusalCode::Overloaded, text).with("account", account))
        })?;
        let message = request.into_inner();
        let decisions = decisions(&message.decisions)?;
        let from = LogIndex(message.from_index.max(1));
        let to = if message.to_index == 0 { LogIndex(u64::MAX) } else { LogIndex(message.to_index) };
        if to < from {
            let text = format!("must not be below from_index, {from}");
            return Err(invalid(vec![Violation::new("to_index", text)]));
        }
        let engine = self.router.engine();
        let follower = match engine.read_log(from) {
            Ok(follower) => follower,
            Err(refusal) => {
                let refusal =
                    engine.unless_future("from_index", PastPoint::Index(from), refusal, deadline).await;
                return Err(to_status(&refusal));
            }
        };
        let engine = engine.clone();
        let reader = Reader {
            router: self.router.clone(),
            account,
            engine,
            follower,
            to,
            follow: message.follow,
            decisions: Arc::new(decisions),
            raw: message.raw,
            visibility,
            piece_bytes: PIECE_BYTES_MIN,
            _place: place,
        };
        let (to_client, messages) = mpsc::channel(MESSAGES_WAITING_MAX);
        tokio::spawn(reader.run(to_client));
        // What it took of its account's memory is free again once the last message of it is taken.
        Ok(Response::new(ReceiverStream::new(messages).map(|(message, _)| message).boxed()))
    }
}
