//! Sessions of nodes, at the leader.
//!
//! A session is two tasks: one for what must never wait (heartbeats, confirmations, orders), one
//! for reports, which wait until their records are applied.

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use muster_consensus::Consensus;
use muster_decider::{Answer, Command};
use muster_journal::RankUpdate;
use muster_state::{Leadership, RankState};
use muster_types::{
    ExitStatus, FencingToken, HolderId, JobId, NodeId, NodeSpec, Parameters, Refusal, RefusalCode,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;

use crate::logs::LogRequest;
use crate::orders::{Order, StopOrder, outstanding};

/// Messages between a session and its transport that wait in either direction.
const MESSAGES_WAITING_MAX: usize = 256;
/// Heartbeats and confirmations of one session that wait for the quorum.
const CONFIRMATIONS_MAX: usize = 64;

/// One worker as its agent sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerReport {
    /// Which job.
    pub job: JobId,
    /// Which placement.
    pub token: FencingToken,
    /// Which worker; none for "nothing of this placement is here, and none will start".
    pub rank: Option<u32>,
    /// How it ended; none while it runs.
    pub exit: Option<ExitStatus>,
}

/// What an agent opens a session with.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Its host.
    pub spec: NodeSpec,
    /// Itself.
    pub holder: HolderId,
    /// What it still has.
    pub workers: Vec<WorkerReport>,
}

/// From the agent.
#[derive(Clone, Debug)]
pub enum Inbound {
    /// Renew the lease.
    Heartbeat {
        /// To be repeated in the acknowledgement.
        sequence: u64,
    },
    /// Transitions of workers.
    Report {
        /// To be repeated in the acknowledgement.
        sequence: u64,
        /// What happened.
        workers: Vec<WorkerReport>,
    },
    /// Is this token still the current one?
    ConfirmStart {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
    },
}

/// To the agent.
#[derive(Clone, Debug)]
pub enum Outbound {
    /// The session stands.
    Registered {
        /// The node's id.
        node: NodeId,
        /// Its incarnation.
        incarnation: u32,
        /// The cluster's generation.
        generation: u32,
        /// Lease and heartbeat times.
        parameters: Parameters,
    },
    /// The lease is renewed.
    HeartbeatAck {
        /// The heartbeat's.
        sequence: u64,
    },
    /// The report is in the log.
    ReportAck {
        /// The report's.
        sequence: u64,
    },
    /// The answer to `ConfirmStart`.
    StartConfirmed {
        /// Which job.
        job: JobId,
        /// Which placement.
        token: FencingToken,
        /// Whether it may start.
        current: bool,
    },
    /// Something to do.
    Order(Order),
    /// Output to upload.
    ReadLogs(LogRequest),
}

struct Registered {
    session: u64,
    outbound: mpsc::Sender<Outbound>,
    end: CancellationToken,
}

/// Sessions that stand at this replica.
#[derive(Default)]
pub(crate) struct Sessions {
    next: AtomicU64,
    by_node: Mutex<BTreeMap<NodeId, Registered>>,
}

impl Sessions {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, Registered>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A later session of a node takes the place of the one before.
    fn add(&self, node: NodeId, outbound: mpsc::Sender<Outbound>, end: CancellationToken) -> u64 {
        let session = self.next.fetch_add(1, Ordering::Relaxed);
        if let Some(old) = self.lock().insert(node, Registered { session, outbound, end }) {
            old.end.cancel();
        }
        session
    }

    fn remove(&self, node: NodeId, session: u64) {
        let mut by_node = self.lock();
        if by_node.get(&node).is_some_and(|r| r.session == session) {
            by_node.remove(&node);
        }
    }

    pub(crate) fn close_all(&self) {
        let all = std::mem::take(&mut *self.lock());
        for registered in all.into_values() {
            registered.end.cancel();
        }
    }

    pub(crate) fn outbound(&self, node: NodeId) -> Option<mpsc::Sender<Outbound>> {
        self.lock().get(&node).map(|r| r.outbound.clone())
    }
}

/// A session as its transport sees it. Dropping it ends it.
pub struct Session {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: u32,
    inbound: mpsc::Sender<Inbound>,
    outbound: mpsc::Receiver<Outbound>,
    _end: tokio_util::sync::DropGuard,
}

impl Session {
    /// Where the agent's messages go. Full only when the agent sends faster than it may.
    #[must_use]
    pub fn inbound(&self) -> mpsc::Sender<Inbound> {
        self.inbound.clone()
    }

    /// The next message for the agent; none when the session has ended.
    pub async fn next(&mut self) -> Option<Outbound> {
        self.outbound.recv().await
    }
}

impl Engine {
    /// Opens a session at this replica, which must lead.
    ///
    /// # Errors
    /// When it does not, or the node may not be registered so.
    pub async fn open_session(&self, opening: Opening) -> Result<Session, Refusal> {
        let name = opening.spec.name.clone();
        let other_session_is_over = self.other_session_is_over(&opening)?;
        let command = Command::Register { spec: opening.spec, holder: opening.holder, other_session_is_over };
        let Answer::Registered { node, incarnation, .. } = self.execute_for_node(command).await? else {
            return Err(Refusal::new(RefusalCode::Fenced, "the registration was answered as something else"));
        };
        // The answer may rest on no new record at all: prove that this replica still leads.
        let leadership = confirm(&self.inner.consensus).await?;
        if !self.inner.liveness.register(node, incarnation) {
            return Err(Refusal::new(RefusalCode::Fenced, "the session was replaced meanwhile"));
        }
        tracing::info!(%node, %name, incarnation, "session opened");
        let end = CancellationToken::new();
        let (inbound, from_agent) = mpsc::channel(MESSAGES_WAITING_MAX);
        let (to_agent, outbound) = mpsc::channel(MESSAGES_WAITING_MAX);
        let session = self.inner.sessions.add(node, to_agent.clone(), end.clone());
        let (reports, to_report) = mpsc::channel(MESSAGES_WAITING_MAX);
        let work = Work { engine: self.clone(), node, incarnation, leadership, out: to_agent, reports };
        let reporter =
            Reporter { engine: self.clone(), node, incarnation, out: work.out.clone(), end: end.clone() };
        tokio::spawn(reporter.run(to_report));
        tokio::spawn({
            let (end, sessions) = (end.clone(), Arc::clone(&self.inner.sessions));
            async move {
                work.run(opening.workers, from_agent, end.clone()).await;
                sessions.remove(node, session);
                end.cancel();
                tracing::info!(%node, "session closed");
            }
        });
        Ok(Session { node, incarnation, inbound, outbound, _end: end.drop_guard() })
    }

    /// Whether nobody else can be running on the node. Refuses, with the time left, while the lease
    /// of another holder stands.
    fn other_session_is_over(&self, opening: &Opening) -> Result<bool, Refusal> {
        let view = self.view();
        let Some(node) = view.node_named(&opening.spec.name) else { return Ok(true) };
        let same_holder = view.node(node).is_some_and(|row| row.holder == opening.holder);
        match self.inner.liveness.remaining(node) {
            Some(left) if !same_holder => {
                let text =
                    format!("another agent holds {}, and its lease has not run out", opening.spec.name);
                let left_ms = left.as_millis();
                Err(Refusal::new(RefusalCode::NodeHeldByAnother, text).with("retry_after_ms", left_ms))
            }
            Some(_) => Ok(false),
            None => Ok(true),
        }
    }
}

/// Proves to be the leader, now.
async fn confirm(consensus: &Consensus) -> Result<Leadership, Refusal> {
    match consensus.confirm_leadership().await {
        Ok(point) => Ok(Leadership { term: point.leadership.term, replica: point.leadership.replica }),
        Err(error) => Err(Refusal::new(RefusalCode::NotLeader, error.to_string())),
    }
}

/// What must never wait.
struct Work {
    engine: Engine,
    node: NodeId,
    incarnation: u32,
    leadership: Leadership,
    out: mpsc::Sender<Outbound>,
    reports: mpsc::Sender<(Option<u64>, Vec<WorkerReport>)>,
}

type Confirmation = BoxFuture<'static, Option<Outbound>>;

impl Work {
    async fn run(
        &self,
        workers: Vec<WorkerReport>,
        mut inbound: mpsc::Receiver<Inbound>,
        end: CancellationToken,
    ) {
        let notify = self.engine.inner.shared.orders.subscribe(self.node);
        let mut sent = BTreeSet::new();
        let mut waiting: FuturesUnordered<Confirmation> = FuturesUnordered::new();
        if self.open(workers).await.is_none() {
            return;
        }
        loop {
            if self.send_orders(&mut sent).await.is_none() {
                break;
            }
            tokio::select! {
                () = end.cancelled() => break,
                () = self.out.closed() => break,
                Some(answer) = waiting.next() => match answer {
                    Some(message) => if self.out.send(message).await.is_err() { break },
                    // The lease could not be renewed: the agent is to look for the leader.
                    None => break,
                },
                message = inbound.recv(), if waiting.len() < CONFIRMATIONS_MAX => match message {
                    Some(Inbound::Heartbeat { sequence }) => waiting.push(self.renew(sequence)),
                    Some(Inbound::ConfirmStart { job, token }) => waiting.push(self.confirm_start(job, token)),
                    Some(Inbound::Report { sequence, workers }) => {
                        if self.reports.try_send((Some(sequence), workers)).is_err() {
                            tracing::warn!(node = %self.node, "reports come faster than they may; session ends");
                            break;
                        }
                    }
                    None => break,
                },
                () = notify.notified() => {}
            }
        }
        self.engine.inner.shared.orders.unsubscribe(self.node, &notify);
    }

    /// Tells the agent that the session stands, and squares what it has with the state.
    async fn open(&self, workers: Vec<WorkerReport>) -> Option<()> {
        let view = self.engine.view();
        let generation = view.cluster().map_or(0, |c| c.generation);
        let parameters = view.parameters();
        let (node, incarnation) = (self.node, self.incarnation);
        self.out.send(Outbound::Registered { node, incarnation, generation, parameters }).await.ok()?;
        let (reports, stops) = self.square(&workers);
        for stop in stops {
            self.out.send(Outbound::Order(Order::Stop(stop))).await.ok()?;
        }
        if !reports.is_empty() {
            self.reports.try_send((None, reports)).ok()?;
        }
        Some(())
    }

    /// What the agent's list says that the state does not know, and what it must stop.
    fn square(&self, workers: &[WorkerReport]) -> (Vec<WorkerReport>, Vec<StopOrder>) {
        let view = self.engine.view();
        let mut reports = workers.to_vec();
        let mut stops: BTreeMap<JobId, StopOrder> = BTreeMap::new();
        let mut held: BTreeSet<(JobId, FencingToken, u32)> = BTreeSet::new();
        for worker in workers {
            let placement = view.job(worker.job).and_then(|row| row.placement.clone());
            let current = placement.filter(|p| p.token == worker.token && p.live > 0).is_some();
            if let Some(rank) = worker.rank {
                held.insert((worker.job, worker.token, rank));
            }
            if worker.exit.is_none() && !current {
                let stop = StopOrder { job: worker.job, token: worker.token, grace_ms: 0 };
                let known = stops.entry(worker.job).or_insert(stop);
                known.token = known.token.max(worker.token);
            }
        }
        // What the state believes to run here and the agent has no trace of.
        for job in view.gangs_on(self.node) {
            let Some(placement) = view.job(job).and_then(|row| row.placement.clone()) else { continue };
            for (rank, (slot, state)) in placement.slots.iter().zip(&placement.ranks).enumerate() {
                let rank = rank as u32;
                let expected = slot.node == self.node && *state == RankState::Running;
                if expected && !held.contains(&(job, placement.token, rank)) {
                    let exit = Some(ExitStatus::Vanished);
                    reports.push(WorkerReport { job, token: placement.token, rank: Some(rank), exit });
                }
            }
        }
        (reports, stops.into_values().collect())
    }

    /// Sends the orders that were not sent in this session.
    async fn send_orders(&self, sent: &mut BTreeSet<(JobId, FencingToken, bool)>) -> Option<()> {
        let orders = outstanding(&self.engine.view(), self.node);
        let keys: BTreeSet<_> = orders.iter().map(Order::key).collect();
        sent.retain(|key| keys.contains(key));
        for order in orders {
            if sent.insert(order.key()) {
                self.out.send(Outbound::Order(order)).await.ok()?;
            }
        }
        Some(())
    }

    /// Renews the lease: confirmed by a quorum first, counted before it is acknowledged.
    fn renew(&self, sequence: u64) -> Confirmation {
        let engine = self.engine.clone();
        let (node, incarnation, leadership) = (self.node, self.incarnation, self.leadership);
        Box::pin(async move {
            let confirmed = confirm(&engine.inner.consensus).await.ok()?;
            let renewed = confirmed == leadership && engine.inner.liveness.renew(node, incarnation);
            renewed.then_some(Outbound::HeartbeatAck { sequence })
        })
    }

    /// Whether a placement is still to be started, by state that a quorum confirmed to be current.
    fn confirm_start(&self, job: JobId, token: FencingToken) -> Confirmation {
        let engine = self.engine.clone();
        let (node, incarnation) = (self.node, self.incarnation);
        Box::pin(async move {
            let view = engine.linearizable_view().await.ok()?;
            let placement =
                view.job(job).filter(|row| is_startable(&row.phase)).and_then(|row| row.placement.clone());
            let current = placement.is_some_and(|p| {
                p.token == token && p.slots.iter().any(|s| s.node == node && s.incarnation == incarnation)
            });
            Some(Outbound::StartConfirmed { job, token, current })
        })
    }
}

fn is_startable(phase: &muster_state::Phase) -> bool {
    matches!(phase, muster_state::Phase::Starting | muster_state::Phase::Running)
}

/// Reports, one after another.
struct Reporter {
    engine: Engine,
    node: NodeId,
    incarnation: u32,
    out: mpsc::Sender<Outbound>,
    end: CancellationToken,
}

impl Reporter {
    async fn run(self, mut reports: mpsc::Receiver<(Option<u64>, Vec<WorkerReport>)>) {
        loop {
            let next = tokio::select! {
                () = self.end.cancelled() => None,
                next = reports.recv() => next,
            };
            let Some((sequence, workers)) = next else { return };
            if let Err(refusal) = self.carry_out(workers).await {
                tracing::info!(node = %self.node, %refusal, "a report was refused; session ends");
                self.end.cancel();
                return;
            }
            if let Some(sequence) = sequence
                && self.out.send(Outbound::ReportAck { sequence }).await.is_err()
            {
                return;
            }
        }
    }

    async fn carry_out(&self, workers: Vec<WorkerReport>) -> Result<(), Refusal> {
        let mut by_gang: BTreeMap<(JobId, FencingToken), Vec<(u32, RankUpdate)>> = BTreeMap::new();
        for worker in workers {
            let updates = by_gang.entry((worker.job, worker.token)).or_default();
            match (worker.rank, worker.exit) {
                (Some(rank), Some(exit)) => updates.push((rank, RankUpdate::Exited(exit))),
                (Some(rank), None) => updates.push((rank, RankUpdate::Running)),
                (None, exit) => updates.extend(self.none_here(worker.job, worker.token, exit)),
            }
        }
        let commands = by_gang.into_iter().filter(|(_, updates)| !updates.is_empty());
        // All at once: they share a round.
        let results = commands.map(|((job, token), updates)| {
            let (node, incarnation) = (self.node, self.incarnation);
            self.engine.execute_for_node(Command::Report { node, incarnation, job, token, updates })
        });
        futures::future::try_join_all(results).await?;
        Ok(())
    }

    /// The agent has nothing of the placement and will start nothing of it: every rank that is not
    /// over has ended so.
    fn none_here(&self, job: JobId, token: FencingToken, exit: Option<ExitStatus>) -> Vec<(u32, RankUpdate)> {
        let exit = exit.unwrap_or(ExitStatus::NotStarted);
        let view = self.engine.view();
        let placement = view.job(job).and_then(|row| row.placement.clone()).filter(|p| p.token == token);
        let Some(placement) = placement else { return Vec::new() };
        let ranks = placement.slots.iter().zip(&placement.ranks).enumerate();
        ranks
            .filter(|(_, (slot, state))| slot.node == self.node && !state.is_over())
            .map(|(rank, _)| (rank as u32, RankUpdate::Exited(exit.clone())))
            .collect()
    }
}
