//! Changes of jobs and nodes: the newest, and a stream that goes on with them, fed by the hub of all watches.
//!
//! **Invariant:** the number of streams is bounded, for each account and in all; the connection of a reader that takes nothing
//! ends; a stream holds no state between two messages.

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use muster_engine::{Change, Engine, Event as Changed, Reading, Subscription, WatchPosition};
use muster_monitoring::Peer;
use muster_page::{Event, Subject};
use muster_state::State as Applied;
use muster_types::{LogIndex, Refusal};
use muster_wire::closed::phase_word;
use muster_wire::node_state::node_state;
use muster_wire::v1;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use super::query::parameters;
use super::time_travel::PageRequest;
use super::{Attachment, Origin, Problem, Reader, Scene, Web};
use crate::log_service;
use crate::render::{self, Detail};
use crate::shares::Pool;
use crate::visibility::Visibility;

/// Streams at once.
const STREAMS_MAX: u64 = 256;
/// Of one tenant, or of one certificate that is of no tenant.
const STREAMS_EACH_MAX: u64 = 64;
/// Rows of the page.
const EVENTS_SHOWN: usize = 200;
/// About what one of them takes.
const EVENT_BYTES: usize = 1 << 10;
/// Records of a page of the past, and about what one of them takes.
const RECORDS_SHOWN: usize = 100;
const RECORD_BYTES: usize = 1 << 10;
/// Pieces made for a reader that it has not taken, and changes of one piece: some 30 KiB.
const PIECES_WAITING_MAX: usize = 4;
const PIECE_CHANGES_MAX: usize = 64;
/// Between two pieces: nobody reads more than this.
const PIECE_INTERVAL: Duration = Duration::from_millis(250);
/// Changes that are kept as streams send them.
const RENDERED_MAX: usize = 4_096;
/// Between two pieces that say nothing, so that everyone on the way knows that the stream stands.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Places for streams.
pub(super) fn places() -> Pool {
    Pool::new(STREAMS_MAX, STREAMS_EACH_MAX)
}

/// Changes as streams send them, by their place and by whose jobs a reader sees: most streams send the same.
#[derive(Clone, Default)]
pub(super) struct Rendered(Arc<Mutex<RenderedChanges>>);

type RenderedChanges = HashMap<(WatchPosition, Visibility), Arc<str>>;

impl Rendered {
    fn get(&self, view: &Applied, changed: &Changed, visibility: Visibility) -> Arc<str> {
        let key = (changed.position, visibility);
        if let Some(known) = self.0.lock().get(&key) {
            return Arc::clone(known);
        }
        let made: Arc<str> = sent(view, changed, visibility).into();
        let mut kept = self.0.lock();
        if kept.len() >= RENDERED_MAX {
            kept.clear();
        }
        kept.insert(key, Arc::clone(&made));
        made
    }
}

/// A change as a stream sends it; empty for one that is not of a job or a node.
fn sent(view: &Applied, changed: &Changed, visibility: Visibility) -> String {
    let Some(event) = event(view, changed, visibility) else { return String::new() };
    let data = json!({
        "logIndex": event.log_index,
        "address": event.address(),
        "id": event.id,
        "name": event.name,
        "owner": event.owner,
        "state": event.state,
        "text": event.text,
    });
    let at = changed.position;
    format!("id: {}-{}\nevent: change\ndata: {data}\n\n", at.log_index, at.ordinal)
}

fn is_shown(change: &Change) -> bool {
    !matches!(change, Change::Queues(_) | Change::ScheduleSuspended { .. })
}

/// A change as a row says it; none for one that is not of a job or a node.
pub(super) fn event(view: &Applied, changed: &Changed, visibility: Visibility) -> Option<Event> {
    let log_index = changed.position.log_index.0;
    Some(match &changed.change {
        Change::Job { id, row, spec, .. } => {
            let job = render::job(view, *id, row, spec, (Detail::Basic, visibility));
            let status = job.status.unwrap_or_default();
            Event {
                log_index,
                subject: Subject::Job,
                id: job.id,
                name: job.name,
                owner: job.tenant,
                state: phase_word(status.phase()).to_owned(),
                text: if status.message.is_empty() {
                    status.reason
                } else {
                    muster_page::brief(&status.message).to_owned()
                },
            }
        }
        Change::Node { id, row, restriction, gangs, .. } => {
            let node = render::node_with(*id, row, restriction.as_deref(), gangs.iter().copied());
            Event {
                log_index,
                subject: Subject::Node,
                id: row.spec.name.to_string(),
                name: String::new(),
                owner: row.spec.region.to_string(),
                state: node_state(&node).to_owned(),
                text: format!("{} of {} devices free", node.free_devices, row.spec.device_count()),
            }
        }
        Change::JobForgotten(id) => forgotten(log_index, Subject::Job, id.to_string(), String::new()),
        Change::NodeForgotten { spec, .. } => {
            forgotten(log_index, Subject::Node, spec.name.to_string(), spec.region.to_string())
        }
        Change::Queues(_) | Change::ScheduleSuspended { .. } => return None,
    })
}

fn forgotten(log_index: u64, subject: Subject, id: String, owner: String) -> Event {
    let text = "not kept any more".to_owned();
    Event {
        log_index,
        subject,
        id,
        name: String::new(),
        owner,
        state: muster_page::FORGOTTEN.to_owned(),
        text,
    }
}

/// The newest of the changes that are wanted, as far as the state of the page has come. None for a page of the past: what is in
/// memory is of the present.
pub(super) fn newest(scene: &Scene, count: usize, wanted: impl Fn(&Change) -> bool) -> Vec<Event> {
    if scene.state.is_past() {
        return Vec::new();
    }
    let changes = scene.engine().newest_changes(count, scene.state.log_index(), wanted);
    changes.iter().filter_map(|change| event(&scene.state, change, scene.visibility())).collect()
}

/// The same of all jobs and nodes.
pub(super) fn newest_of_all(scene: &Scene, count: usize) -> Vec<Event> {
    newest(scene, count, is_shown)
}

pub(super) async fn page(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    request: Request,
) -> Result<Response, Problem> {
    let (asked, []) = PageRequest::of(reader, &request, [])?;
    if let Some(at) = asked.at {
        let past = web.past(reader, at).await?;
        let records = web.records_up_to(reader, Reading::clone(&past)).await?;
        let make = move |scene: &Scene| Ok(muster_page::records(&scene.frame(), &records));
        let origin = Origin { reader, travel: Some(asked.travel()), past: Some(past) };
        return web.made(origin, RECORDS_SHOWN * RECORD_BYTES, make).await;
    }
    let make = |scene: &Scene| {
        // The stream goes on behind the state of the page.
        let shown = newest_of_all(scene, EVENTS_SHOWN);
        Ok(muster_page::events(&scene.frame(), &shown, scene.state.log_index().0))
    };
    web.read(asked, EVENTS_SHOWN * EVENT_BYTES, make).await
}

impl Web {
    /// The last records of the log that a state of the past has, newest first, without their content.
    async fn records_up_to(&self, reader: Reader, past: Reading) -> Result<Vec<v1::LogRecord>, Problem> {
        let to = past.log_index();
        let (first, _) = self.engine().log_range()?;
        let from = LogIndex(to.0.saturating_sub(RECORDS_SHOWN as u64 - 1)).max(first);
        let mut follower = self.engine().read_log(from)?;
        let turn = self.router.costly(reader.account()).await?;
        let mut found = Vec::new();
        'reading: loop {
            let batch = follower.next().await?;
            if batch.records.is_empty() {
                break;
            }
            for record in &batch.records {
                if record.log_index > to || found.len() == RECORDS_SHOWN {
                    break 'reading;
                }
                // The content of one may be large, and is not shown.
                let rendered = log_service::render(record, false, &past, reader.visibility());
                found.push(v1::LogRecord { content_json: String::new(), ..rendered });
            }
        }
        drop(turn);
        found.reverse();
        Ok(found)
    }
}

pub(super) async fn stream(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Problem> {
    let [from] = parameters(request.uri(), ["from"])?;
    let from = match from.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|_| Problem::field("from", "must be a log index"))?),
    };
    let place = web.streams.enter(reader.account(), 1).ok_or_else(|| {
        let text = format!(
            "{} has as many streams of events open at this replica as it may, or all are taken.",
            reader.account()
        );
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Not now", text)
    })?;
    let engine = web.engine().clone();
    let at = engine.view().log_index();
    // A browser that connects again says where it was.
    let resumed = headers.get("last-event-id").and_then(|id| position(id.to_str().ok()?));
    let wanted = resumed.or(from.map(|index| WatchPosition::after(LogIndex(index))));
    let begin = wanted.unwrap_or(WatchPosition::after(at)).min(WatchPosition::after(at));
    let subscribed = engine.watch(begin);
    let (to_reader, pieces) = mpsc::channel(PIECES_WAITING_MAX);
    let stream = Stream {
        engine,
        visibility: reader.visibility(),
        to_reader,
        rendered: web.rendered.clone(),
        stall: web.timeouts.connection.stall,
        peer: request.extensions().get::<Peer>().cloned(),
    };
    tokio::spawn(stream.run(subscribed));
    let pieces = ReceiverStream::new(pieces).map(Ok::<Bytes, Infallible>);
    let mut response = Body::from_stream(pieces).into_response();
    // Until the reader has gone or has taken everything: what it left is in memory as long.
    response.extensions_mut().insert(Attachment::Place(Arc::new(place)));
    let own = response.headers_mut();
    own.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    own.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// A place between two changes as the id of an event has it.
fn position(text: &str) -> Option<WatchPosition> {
    let (index, ordinal) = text.split_once('-')?;
    Some(WatchPosition { log_index: LogIndex(index.parse().ok()?), ordinal: ordinal.parse().ok()? })
}

/// One stream.
struct Stream {
    engine: Engine,
    visibility: Visibility,
    to_reader: mpsc::Sender<Bytes>,
    rendered: Rendered,
    /// How long the reader may take nothing.
    stall: Duration,
    peer: Option<Peer>,
}

/// The reader has gone or takes nothing.
struct ReaderGone;

impl Stream {
    async fn run(self, subscribed: Result<Subscription, Refusal>) {
        let (engine, to_reader, stall) = (self.engine.clone(), self.to_reader.clone(), self.stall);
        let peer = self.peer.clone();
        let traffic = engine.consensus().traffic().clone();
        let ended = tokio::select! {
            () = to_reader.closed() => return,
            ended = self.follow(subscribed) => ended,
            () = engine.stopping() => Ok("this replica stops.".to_owned()),
            () = traffic.until_clients_refused() => Ok("this replica is silent for a drill.".to_owned()),
        };
        match ended {
            Ok(message) => {
                let last = format!("event: end\ndata: {}\n\n", json!({ "message": message }));
                let _ = to_reader.send_timeout(Bytes::from(last), stall).await;
            }
            // One that takes nothing is not told either: its connection ends.
            Err(ReaderGone) => peer.iter().for_each(Peer::end),
        }
    }

    /// Runs until the reader goes, or the changes end; why, in that case.
    async fn follow(&self, subscribed: Result<Subscription, Refusal>) -> Result<String, ReaderGone> {
        let mut changes = match subscribed {
            Ok(changes) if !changes.is_past() => changes,
            // A stream of the past would hold a whole state; the page has what is in memory.
            _ => return Ok("changes so old are not in memory any more.".to_owned()),
        };
        self.send(": the stream begins\n\n".to_owned()).await?;
        let mut sent_at = Instant::now();
        loop {
            let last = tokio::select! {
                last = changes.last(PIECE_CHANGES_MAX, is_shown) => last,
                () = tokio::time::sleep_until(sent_at + KEEP_ALIVE) => {
                    self.send(": nothing new\n\n".to_owned()).await?;
                    sent_at = Instant::now();
                    continue;
                }
            };
            let (newest, skipped) = match last {
                Ok(found) => found,
                Err(refusal) => return Ok(format!("{}.", refusal.message)),
            };
            let text = self.piece(&newest, skipped);
            if !text.is_empty() {
                self.send(text).await?;
                sent_at = Instant::now();
            }
            tokio::time::sleep(PIECE_INTERVAL).await;
        }
    }

    /// A piece of the stream; changes that came too fast to be read are counted.
    fn piece(&self, newest: &[Changed], skipped: usize) -> String {
        let view = self.engine.view();
        let mut text = String::new();
        if skipped > 0 {
            text.push_str(&format!("event: skipped\ndata: {skipped}\n\n"));
        }
        for changed in newest {
            text.push_str(&self.rendered.get(&view, changed, self.visibility));
        }
        text
    }

    async fn send(&self, text: String) -> Result<(), ReaderGone> {
        self.to_reader.send_timeout(Bytes::from(text), self.stall).await.map_err(|_| ReaderGone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        let place = WatchPosition { log_index: LogIndex(77), ordinal: 3 };
        assert_eq!(position("77-3"), Some(place));
        for text in ["", "77", "-", "a-1", "77-4294967296", "18446744073709551616-1"] {
            assert_eq!(position(text), None, "{text}");
        }
    }
}
