//! Sessions: dialling, registering, heartbeats, and passing orders on.
//!
//! Heartbeats have a task and a separate queue, and the outgoing stream takes from that queue first:
//! no report, launch or full queue is ever ahead of one. Acknowledgements renew the lease where they
//! arrive, not behind orders.
//!
//! **Invariant:** only an acknowledgement renews, from the time its own heartbeat was stamped, which is
//! before it was sent. A reader that cannot pass an order on closes the session rather than wait.

use crate::clock::BootTime;
use crate::disk::lease::{Lease, Renewal};
use crate::disk::state_dir::{StateDir, StateDirError};
use crate::executor::KeptArtifacts;
use crate::health::{FromLeader, Line};
use crate::limits;
use crate::monitoring::NodeMonitor;
use crate::node_loop::{Event, SessionHandle};
use crate::process::runtime::ImageLink;
use crate::rules::{Beats, WorkerState};
use crate::wire::{grace, order_of, state_message};
use muster_client::Endpoints;
use muster_metrics::SessionOutcome;
use muster_types::{ClusterId, Feature, Features, Name, NodeSpec};
use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::agent::session_request::Message as Request;
use muster_wire::agent::session_response::Message as Response;
use muster_wire::{agent, convert};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;
use tokio_stream::Stream;
use tonic::Streaming;

/// Why a session could not be opened or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("reach a replica")]
    Connect(#[source] muster_client::ConnectError),
    #[error("the session was refused or broken")]
    Status(#[source] Box<tonic::Status>),
    #[error("the replica ended the session")]
    Ended,
    #[error("no answer to the registration within {} s", limits::REGISTER_MAX.as_secs())]
    NoAnswer,
    #[error("the answer to the registration is unusable: {0}")]
    Registered(&'static str),
    #[error("this node must not serve that cluster")]
    Cluster(#[source] StateDirError),
    #[error("no heartbeat was acknowledged for {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("orders come faster than they can be taken")]
    Overrun,
    #[error("the agent is shutting down")]
    ShuttingDown,
}

impl SessionError {
    /// What it counts as, where no session was opened.
    fn outcome(&self) -> SessionOutcome {
        match self {
            SessionError::Connect(_) => SessionOutcome::Unreachable,
            SessionError::NoAnswer => SessionOutcome::Unanswered,
            SessionError::Registered(_) => SessionOutcome::Unusable,
            SessionError::Cluster(_) => SessionOutcome::ForeignCluster,
            SessionError::Status(_)
            | SessionError::Ended
            | SessionError::Silent(_)
            | SessionError::Overrun
            | SessionError::ShuttingDown => SessionOutcome::Refused,
        }
    }
}

/// What every session of one agent shares.
pub(crate) struct Sessions {
    pub(crate) endpoints: Endpoints,
    pub(crate) state: Arc<StateDir>,
    pub(crate) spec: NodeSpec,
    pub(crate) lease: Arc<Mutex<Lease>>,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) speaking: HealthLink,
    /// How images are spoken of; none where another scheduler has them.
    pub(crate) images: Option<ImageLink>,
    pub(crate) monitor: NodeMonitor,
    /// What became of the artifacts of workers that have ended.
    pub(crate) kept: KeptArtifacts,
}

/// How sessions and the health of the host know of one another.
pub(crate) struct HealthLink {
    pub(crate) line: watch::Sender<Option<Line>>,
    pub(crate) of_health: mpsc::Sender<FromLeader>,
}

/// The terms of one session, checked.
#[derive(Clone, Copy, Debug)]
struct Terms {
    ttl: Duration,
    interval: Duration,
    stop_grace: Duration,
}

impl Terms {
    fn of(registered: &agent::Registered) -> Result<Terms, SessionError> {
        let (ttl, interval) = (registered.lease_ttl_ms, registered.heartbeat_interval_ms);
        if !(100..=3_600_000).contains(&ttl) {
            return Err(SessionError::Registered("lease_ttl_ms must be 100 ms to one hour"));
        }
        if interval < 10 || interval > ttl / 2 {
            return Err(SessionError::Registered(
                "heartbeat_interval_ms must be 10 ms to half a time to live",
            ));
        }
        Ok(Terms {
            ttl: Duration::from_millis(ttl),
            interval: Duration::from_millis(interval),
            stop_grace: grace(registered.lease_stop_grace_ms),
        })
    }

    /// Without an acknowledgement for this long, another replica is tried while the lease still stands.
    fn silence_max(&self) -> Duration {
        Beats::silence_max(self.ttl, self.interval)
    }
}

impl Sessions {
    /// Opens one session after another, for ever.
    pub(crate) async fn run(self) {
        let (first, longest) = limits::RECONNECT_WAIT;
        let mut wait = first;
        let mut number = 0u64;
        let mut said = String::new();
        loop {
            number += 1;
            let begun = tokio::time::Instant::now();
            let mut stood = false;
            let ended = self.one(number, &mut stood).await;
            self.speaking.line.send_replace(None);
            if let Some(images) = &self.images {
                images.closed();
            }
            self.monitor.session(false);
            if self.events.send(Event::Closed(number)).await.is_err() {
                return;
            }
            let Err(error) = ended;
            if matches!(error, SessionError::ShuttingDown) {
                return;
            }
            if stood {
                wait = first;
                said.clear();
            } else {
                self.monitor.metrics.session(error.outcome());
            }
            say_once(&self.spec.name, &error, &mut said);
            // A replica that knows of no leader has waited for one already; and where nobody listens, asking costs
            // nobody anything.
            let waited = begun.elapsed();
            let most = if matches!(error, SessionError::Connect(_)) {
                limits::RECONNECT_WAIT_ALONE
            } else {
                longest
            };
            let pause = wait.min(most).saturating_sub(waited).max(first);
            // Half to all of it: a fleet that lost its leader must not come back in step.
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..=1.0))).await;
            wait = (wait * 2).min(longest);
        }
    }

    async fn one(&self, number: u64, stood: &mut bool) -> Result<std::convert::Infallible, SessionError> {
        let (endpoint, channel) = self.endpoints.connect_next().await.map_err(SessionError::Connect)?;
        let (ask, held) = oneshot::channel();
        self.events.send(Event::Holdings(ask)).await.map_err(|_| SessionError::ShuttingDown)?;
        let workers = held.await.map_err(|_| SessionError::ShuttingDown)?;
        let (beats, beats_out) = mpsc::channel(4);
        let (outgoing, others_out) = mpsc::channel(limits::OUTGOING_QUEUED_MAX);
        let register = Request::Register(self.register(workers));
        let stream = Outgoing { first: Some(request(register)), beats: beats_out, others: others_out };
        let mut client = NodeServiceClient::new(channel).max_decoding_message_size(limits::MESSAGE_BYTES_MAX);

        let sent = BootTime::now();
        let opened = tokio::time::timeout(limits::REGISTER_MAX, async {
            let mut answers = client.session(stream).await.map_err(refused)?.into_inner();
            let registered = match answers.message().await.map_err(refused)?.and_then(|m| m.message) {
                Some(Response::Registered(registered)) => registered,
                Some(_) => return Err(SessionError::Registered("the first message must be `registered`")),
                None => return Err(SessionError::Ended),
            };
            Ok((answers, registered))
        });
        let (answers, registered) = opened.await.map_err(|_| SessionError::NoAnswer)??;
        let terms = Terms::of(&registered)?;
        self.bind(&registered).await?;
        *stood = true;
        self.monitor.metrics.session(SessionOutcome::Opened);
        self.renew(sent, terms);
        tracing::info!(
            endpoint,
            node = %self.spec.name,
            registered_as = registered.node_id,
            incarnation = registered.incarnation,
            lease_ttl_ms = registered.lease_ttl_ms,
            "registered"
        );
        // Output and files of workers have separate connections: they would be in the way of heartbeats.
        let endpoints = self.endpoints.unshared();
        let takes = convert::features_from_proto(&registered.takes);
        if takes.has(Feature::Health) {
            self.speaking.line.send_replace(Some(Line { number, outgoing: outgoing.clone() }));
        }
        if let Some(images) = self.images.as_ref().filter(|_| takes.has(Feature::Images)) {
            images.opened(Line { number, outgoing: outgoing.clone() });
        }
        let handle =
            SessionHandle { number, outgoing, endpoint, endpoints, stop_grace: terms.stop_grace, takes };
        self.events.send(Event::Opened(handle)).await.map_err(|_| SessionError::ShuttingDown)?;
        self.monitor.session(true);
        let (acks, acked) = mpsc::channel(64);
        tokio::select! {
            end = self.read(answers, number, acks) => end,
            end = self.beat(terms, beats, acked) => end,
        }
    }

    fn register(&self, workers: Vec<WorkerState>) -> agent::Register {
        let start = self.state.start();
        agent::Register {
            node: Some(convert::node_spec_to_proto(&self.spec)),
            holder_id: convert::holder_id_to_text(self.state.holder()),
            workers: workers.into_iter().map(|state| state_message(state, &self.kept)).collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            takes: convert::features_to_proto(Features::all()),
            start_id: start.id.0,
            start_before_id: start.before.map_or(0, |before| before.0),
        }
    }

    /// Puts an acknowledged sending time into the lease.
    fn renew(&self, sent: BootTime, terms: Terms) {
        let now = BootTime::now();
        let (renewed, standing) = {
            let mut lease = self.lease.lock();
            (lease.renew(sent, terms.ttl, terms.stop_grace, now), lease.standing(now))
        };
        self.monitor.lease_until(standing.map(|slot| slot.deadline));
        match renewed {
            Ok(Renewal::Stale) => return,
            Ok(Renewal::Extended) => {}
            Ok(Renewal::Restarted) => {
                tracing::info!(node = %self.spec.name, "a new lease epoch: workers of an earlier one are being stopped");
            }
            Err(error) => {
                // The shims go by the file: without it they stop, which is the safe side.
                tracing::error!(node = %self.spec.name, %error, "the lease could not be renewed");
                return;
            }
        }
        // A full queue will look at the lease anyway.
        let _ = self.events.try_send(Event::LeaseRenewed);
    }

    /// Sends heartbeats and renews by their acknowledgements.
    async fn beat(
        &self,
        terms: Terms,
        beats: mpsc::Sender<agent::SessionRequest>,
        mut acked: mpsc::Receiver<u64>,
    ) -> Result<std::convert::Infallible, SessionError> {
        let mut interval = tokio::time::interval(terms.interval);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // One per interval of the allowed silence at most.
        let mut unanswered = Beats::default();
        loop {
            tokio::select! {
                biased;
                ack = acked.recv() => {
                    let Some(ack) = ack else { return Err(SessionError::Ended) };
                    if let Some(at) = unanswered.acknowledged(ack) {
                        self.renew(at, terms);
                    }
                }
                _ = interval.tick() => {
                    let now = BootTime::now();
                    if unanswered.is_silent(now, terms.silence_max()) {
                        return Err(SessionError::Silent(terms.silence_max()));
                    }
                    let sequence = unanswered.next_sequence();
                    let beat = Request::Heartbeat(agent::Heartbeat { sequence });
                    match beats.try_send(request(beat)) {
                        Ok(()) => unanswered.sent(sequence, now),
                        Err(mpsc::error::TrySendError::Closed(_)) => return Err(SessionError::Ended),
                        // The network takes nothing; the silence will be noticed by those already out.
                        Err(mpsc::error::TrySendError::Full(_)) => {}
                    }
                }
            }
        }
    }

    async fn bind(&self, registered: &agent::Registered) -> Result<(), SessionError> {
        let theirs: ClusterId = registered
            .cluster_id
            .parse()
            .map_err(|_| SessionError::Registered("cluster_id must be 32 hexadecimal digits"))?;
        let state = Arc::clone(&self.state);
        let bound = move || -> Result<(), StateDirError> {
            state.bind_cluster(theirs)?;
            if let Err(error) = state.note_registered() {
                // The next session tries again.
                tracing::warn!(%error, "it could not be written down that this start is registered");
            }
            Ok(())
        };
        tokio::task::spawn_blocking(bound)
            .await
            .map_err(|_| SessionError::ShuttingDown)?
            .map_err(SessionError::Cluster)
    }
}

fn request(message: Request) -> agent::SessionRequest {
    agent::SessionRequest { message: Some(message) }
}

fn refused(status: tonic::Status) -> SessionError {
    SessionError::Status(Box::new(status))
}

/// The same reason again is logged once; another cluster is always an operator's mistake.
fn say_once(node: &Name, error: &SessionError, said: &mut String) {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    if *said == text {
        tracing::debug!(%node, error = text, "no session; trying again");
        return;
    }
    match error {
        SessionError::Cluster(_) => tracing::error!(%node, error = text, "no session; trying again"),
        _ => tracing::warn!(%node, error = text, "no session; trying again"),
    }
    *said = text;
}

impl Sessions {
    /// Passes on what comes in; never waits for its receiver.
    async fn read(
        &self,
        mut answers: Streaming<agent::SessionResponse>,
        number: u64,
        acks: mpsc::Sender<u64>,
    ) -> Result<std::convert::Infallible, SessionError> {
        let (events, of_health) = (&self.events, &self.speaking.of_health);
        loop {
            let message = answers.message().await.map_err(refused)?.ok_or(SessionError::Ended)?;
            // A kind of message that this version does not know.
            let Some(message) = message.message else { continue };
            if let Response::HeartbeatAck(ack) = &message {
                // A full queue holds later ones already.
                let _ = acks.try_send(ack.sequence);
                continue;
            }
            let message = match message {
                // What does not fit comes again: an acknowledgement that is missed lets the next session report it again.
                Response::HealthAck(ack) => {
                    let _ = of_health.try_send(FromLeader::Ack(ack.sequence));
                    continue;
                }
                Response::Repair(order) => {
                    let _ = of_health.try_send(FromLeader::Repair(order));
                    continue;
                }
                Response::Prefetch(order) => {
                    if let Some(images) = &self.images {
                        images.order(order);
                    }
                    continue;
                }
                other => other,
            };
            match order_of(message) {
                Ok(None) => {}
                Ok(Some(order)) => {
                    if events.try_send(Event::Order(number, order)).is_err() {
                        return Err(SessionError::Overrun);
                    }
                }
                Err(error) => tracing::error!(node = %self.spec.name, %error, "an order is dropped"),
            }
        }
    }
}

/// The outgoing messages: the registration, then heartbeats before all else.
struct Outgoing {
    first: Option<agent::SessionRequest>,
    beats: mpsc::Receiver<agent::SessionRequest>,
    others: mpsc::Receiver<agent::SessionRequest>,
}

impl Stream for Outgoing {
    type Item = agent::SessionRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        match self.beats.poll_recv(context) {
            Poll::Ready(item) => Poll::Ready(item),
            // The loop drops its end to close a session: then the stream ends.
            Poll::Pending => self.others.poll_recv(context),
        }
    }
}
