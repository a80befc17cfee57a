//! One replica: the protocol, the state, and what it does for nodes and clients.
//!
//! The pieces that decide anything are the product's: [`Liveness`], [`Waiters`](muster_engine::parts::Waiters),
//! [`square`], [`may_start`], [`outstanding`]. What is between them and the runtime is written anew here, as
//! thin as it can be, and follows `muster-engine` and `muster-consensus` step by step.

use crate::cluster::Cluster;
use crate::leader::{Intake, run_decisions};
use crate::log_store::SimLog;
use crate::machine::SimMachine;
use crate::raft_network::{Gate, Peers};
use crate::raft_runtime::{LocalTime, SimConfig};
use crate::runtime::{Host, event, local_ns, sleep_ms, spawn, timeout};
use crate::settings::PlantedBug;
use muster_decider::{Answer, Command};
use muster_engine::parts::{Liveness, may_start, none_here, outstanding, square};
use muster_engine::{Event, Order, StopOrder, View, WatchPosition, WorkerReport};
use muster_journal::RankUpdate;
use muster_state::Leadership;
use muster_types::{
    FencingToken, HolderId, JobId, LogIndex, NodeId, NodeSpec, Parameters, Refusal, RefusalCode, ReplicaId,
    limits,
};
use openraft::async_runtime::WatchReceiver;
use openraft::raft::ReadPolicy;
use openraft::{Instant as _, RaftMetrics, ServerState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// The protocol on the simulated runtime.
pub type Raft = openraft::Raft<SimConfig, SimMachine>;
/// What it says of itself.
pub type Metrics = openraft::type_config::alias::WatchReceiverOf<SimConfig, RaftMetrics<SimConfig>>;

/// Commands that may wait in each lane.
const LANE_MAX: usize = 4_096;
/// Entries applied since the last snapshot that call for another.
const SNAPSHOT_EVERY: u64 = 80;
/// How long a read waits for this replica to catch up.
const CATCH_UP: Duration = Duration::from_secs(3);
/// How long a call that waits for news waits for it.
const NEWS_PATIENCE: Duration = Duration::from_millis(900);

/// The present host's monotonic clock as the type that the product's pieces take.
pub fn instant() -> Instant {
    base() + Duration::from_nanos(local_ns())
}

/// The reading of a host's clock at which this instant comes.
pub fn local_of(instant: Instant) -> u64 {
    u64::try_from(instant.saturating_duration_since(base()).as_nanos()).unwrap_or(u64::MAX)
}

/// Some instant: only differences to it mean anything.
fn base() -> Instant {
    static BASE: OnceLock<Instant> = OnceLock::new();
    *BASE.get_or_init(Instant::now)
}

/// Who leads, as this replica sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The newest term it knows.
    pub term: u64,
    /// Who leads.
    pub leader: Option<u64>,
    /// Set while this replica leads and a quorum was heard.
    pub mine: Option<Leadership>,
}

/// A session that stands here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId {
    node: NodeId,
    incarnation: u32,
    number: u64,
    leadership: Leadership,
}

/// What an agent is told when its session begins.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The session.
    pub session: SessionId,
    /// The node's id.
    pub node: NodeId,
    /// Lease and heartbeat times.
    pub parameters: Parameters,
    /// What it has and must not.
    pub stops: Vec<StopOrder>,
}

/// An order's name: job, token, whether it is a start.
pub type OrderKey = (JobId, FencingToken, bool);

/// One start of a replica.
pub struct Replica {
    /// The cluster.
    pub cluster: Arc<Cluster>,
    /// Its host.
    pub host: Host,
    /// Which start of any replica this is.
    pub start: u64,
    /// The protocol.
    pub raft: Raft,
    /// The state machine.
    pub machine: SimMachine,
    /// The log.
    pub log: SimLog,
    /// The state.
    pub view: Arc<View>,
    /// Leases, while it leads.
    pub liveness: Liveness,
    /// Who leads.
    pub standing: watch::Receiver<Standing>,
    clients: mpsc::Sender<Intake>,
    nodes: mpsc::Sender<Intake>,
    sessions: Mutex<BTreeMap<NodeId, SessionId>>,
    next_session: AtomicU64,
}

/// Why a replica does not start.
#[derive(Debug)]
pub enum BootError {
    /// Its disk has less than it acknowledged.
    Damaged,
    /// The protocol said no.
    Refused(String),
}

fn refusal(code: RefusalCode, text: &str) -> Refusal {
    Refusal::new(code, text)
}

fn standing_of(metrics: &RaftMetrics<SimConfig>, leading_since: LocalTime, lease: Duration) -> Standing {
    let stopped = metrics.running_state.is_err();
    let alone = metrics.membership_config.voter_ids().count() <= 1;
    let acked = metrics.last_quorum_acked.as_ref().map(|acked| **acked);
    let silence = acked.unwrap_or(leading_since).elapsed();
    let deaf = !alone && (acked.is_none() || silence > lease);
    let elected = metrics.state == ServerState::Leader
        && metrics.vote.leader_id.term > 0
        && metrics.vote.committed
        && metrics.vote.leader_id.node_id == metrics.id;
    let mine = (elected && !deaf && !stopped)
        .then_some(Leadership { term: metrics.vote.leader_id.term, replica: ReplicaId(metrics.id) });
    let leader =
        metrics.current_leader.filter(|leader| !stopped && (*leader != metrics.id || mine.is_some()));
    Standing { term: metrics.current_term, leader, mine }
}

async fn watch_standing(mut metrics: Metrics, lease: Duration, view: watch::Sender<Standing>) {
    let mut leading_since = LocalTime::now();
    let mut led = false;
    loop {
        let (now, running) = {
            let metrics = metrics.borrow_watched();
            let leads = metrics.state == ServerState::Leader;
            if leads && !led {
                leading_since = LocalTime::now();
            }
            led = leads;
            (standing_of(&metrics, leading_since, lease), metrics.running_state.is_ok())
        };
        view.send_if_modified(|current| std::mem::replace(current, now) != now);
        if !running {
            return;
        }
        let pause = if led { lease / 4 } else { Duration::from_secs(3_600) };
        tokio::select! {
            biased;
            changed = metrics.changed() => if changed.is_err() { return },
            () = crate::runtime::sleep(pause) => {}
        }
    }
}

/// Snapshots when enough was applied since the last; the protocol purges behind them.
async fn compact(raft: Raft, metrics: Metrics) {
    loop {
        sleep_ms(200).await;
        let due = {
            let metrics = metrics.borrow_watched();
            let index = |id: &Option<muster_store::LogId>| id.map_or(0, |id| id.index());
            index(&metrics.last_applied) >= index(&metrics.snapshot) + SNAPSHOT_EVERY
        };
        if due && raft.trigger().snapshot().await.is_err() {
            return;
        }
    }
}

impl Replica {
    /// Starts a replica from what its disk has. Runs on its own host.
    ///
    /// # Errors
    /// When the disk is damaged.
    pub async fn boot(cluster: Arc<Cluster>, host: Host, start: u64) -> Result<Arc<Replica>, BootError> {
        let disk = cluster.disk(host);
        let Ok(log) = SimLog::open(&cluster, host, &disk) else { return Err(BootError::Damaged) };
        let Some(machine) = SimMachine::open(&cluster, host, &disk) else { return Err(BootError::Damaged) };
        if log.floor() > machine.last() {
            return Err(BootError::Damaged);
        }
        let timing = cluster.settings.timing();
        let gate = Gate::new(Duration::from_millis(timing.election_timeout_max_ms * 5 / 4));
        let peers = Peers { cluster: Arc::clone(&cluster), host, gate: gate.clone() };
        let config = cluster.raft_config(host).map_err(BootError::Refused)?;
        let raft = Raft::new(u64::from(host), config, peers, log.clone(), machine.clone())
            .await
            .map_err(|error| BootError::Refused(error.to_string()))?;
        gate.watch(raft.metrics());
        let lease = Duration::from_millis(timing.election_timeout_max_ms);
        let (sender, standing) = watch::channel(Standing::default());
        spawn(watch_standing(raft.metrics(), lease, sender));
        spawn(compact(raft.clone(), raft.metrics()));
        let (clients, from_clients) = mpsc::channel(LANE_MAX);
        let (nodes, from_nodes) = mpsc::channel(LANE_MAX);
        let replica = Arc::new(Replica {
            view: machine.view(),
            cluster,
            host,
            start,
            raft,
            machine,
            log,
            liveness: Liveness::default(),
            standing,
            clients,
            nodes,
            sessions: Mutex::default(),
            next_session: AtomicU64::new(1),
        });
        spawn(run_decisions(Arc::clone(&replica), from_clients, from_nodes));
        Ok(replica)
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<NodeId, SessionId>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A leadership is over, and every session with it.
    pub fn close_sessions(&self) {
        self.sessions().clear();
    }

    /// Who leads, as far as this replica knows.
    pub fn leader_hint(&self) -> Option<Host> {
        self.standing.borrow().leader.and_then(|leader| Host::try_from(leader).ok())
    }

    async fn execute(lane: &mpsc::Sender<Intake>, command: Command) -> Result<Answer, Refusal> {
        let (reply, answer) = oneshot::channel();
        if lane.try_send(Intake { command, reply }).is_err() {
            return Err(refusal(RefusalCode::NotLeader, "the lane is full"));
        }
        answer.await.unwrap_or_else(|_| Err(refusal(RefusalCode::OutcomeUnknown, "the replica has stopped")))
    }

    /// A client's command.
    pub async fn command(&self, command: Command) -> Result<Answer, Refusal> {
        Replica::execute(&self.clients, command).await
    }

    async fn node_command(&self, command: Command) -> Result<Answer, Refusal> {
        Replica::execute(&self.nodes, command).await
    }

    /// A quorum says that this replica leads, and what it has committed at least.
    pub async fn confirm(&self) -> Option<(Leadership, u64)> {
        let linearizer = self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await.ok()?;
        let point = linearizer.read_log_id();
        let leader = point.committed_leader_id();
        let leadership = Leadership { term: leader.term, replica: ReplicaId(leader.node_id) };
        Some((leadership, point.index()))
    }

    /// Waits until the state here holds everything that was committed before the call.
    async fn read_index(&self) -> Option<()> {
        let index = if self.standing.borrow().mine.is_some() {
            self.confirm().await?.1
        } else {
            let leader = self.leader_hint().filter(|leader| *leader != self.host)?;
            let asked = |peer: Arc<Replica>| async move { peer.confirm().await };
            self.cluster.call(self.host, leader, CATCH_UP, "read index", asked).await??.1
        };
        let mut applied = self.machine.applied();
        let reached = timeout(CATCH_UP, applied.wait_for(|applied| *applied >= index)).await;
        reached.ok()?.ok().map(drop)
    }

    /// A linearizable read of everything: where the log was, and the digest of the state there.
    pub async fn read(&self) -> Option<(LogIndex, u64)> {
        self.read_index().await?;
        let state = self.view.state();
        Some((state.log_index(), state.digest()))
    }

    /// Changes behind a place; waits a moment for some.
    pub async fn changes(&self, from: WatchPosition) -> Result<(Vec<Event>, WatchPosition), Refusal> {
        let mut subscription = self.view.subscribe(from)?;
        match timeout(NEWS_PATIENCE, subscription.next()).await {
            Ok(news) => news,
            Err(_quiet) => Ok((Vec::new(), from)),
        }
    }

    /// The place behind everything that is applied here.
    pub fn end(&self) -> WatchPosition {
        WatchPosition::after(self.view.state().log_index())
    }

    /// An agent opens a session.
    pub async fn open_session(
        self: Arc<Self>,
        spec: NodeSpec,
        holder: HolderId,
        workers: Vec<WorkerReport>,
    ) -> Result<Opened, Refusal> {
        let command = Command::Register { spec, holder, other_session_is_over: false };
        let answer = self.node_command(command).await?;
        let Answer::Registered { node, incarnation, .. } = answer else {
            return Err(refusal(RefusalCode::Fenced, "the registration was answered as something else"));
        };
        let not_leader = || refusal(RefusalCode::NotLeader, "no quorum confirms");
        let leadership = self.confirm().await.ok_or_else(not_leader)?.0;
        if !self.liveness.renew(instant(), leadership, node, incarnation) {
            return Err(refusal(RefusalCode::Fenced, "the session ran out or was replaced meanwhile"));
        }
        let number = self.next_session.fetch_add(1, Ordering::Relaxed);
        let session = SessionId { node, incarnation, number, leadership };
        self.sessions().insert(node, session);
        if !self.liveness.counts(leadership) {
            self.sessions().remove(&node);
        }
        let view = self.view.state();
        let (reports, stops) = square(&view, node, incarnation, &workers);
        let this = Arc::clone(&self);
        spawn(async move { this.carry_out(session, reports).await });
        event("session", format_args!("n{} node {node} incarnation {incarnation}", self.host));
        Ok(Opened { session, node, parameters: view.parameters(), stops })
    }

    fn stands(&self, session: SessionId) -> bool {
        self.sessions().get(&session.node) == Some(&session)
    }

    /// Renews a lease: confirmed by a quorum first, counted before it is acknowledged.
    pub async fn heartbeat(&self, session: SessionId) -> bool {
        if !self.stands(session) {
            return false;
        }
        let confirmed = if self.cluster.settings.bug == Some(PlantedBug::HeartbeatWithoutQuorum) {
            session.leadership
        } else {
            match self.confirm().await {
                Some((confirmed, _)) => confirmed,
                None => return false,
            }
        };
        confirmed == session.leadership
            && self.liveness.renew(instant(), session.leadership, session.node, session.incarnation)
    }

    /// Whether a placement is still to be started; none when nobody can say.
    pub async fn confirm_start(&self, session: SessionId, job: JobId, token: FencingToken) -> Option<bool> {
        if !self.stands(session) {
            return None;
        }
        self.read_index().await?;
        Some(may_start(&self.view.state(), session.node, session.incarnation, job, token))
    }

    /// What a node is asked to do, when that is not what it knows already.
    pub async fn orders(&self, session: SessionId, known: BTreeSet<OrderKey>) -> Option<Vec<Order>> {
        let notify = self.view.orders().subscribe(session.node);
        let news = async {
            loop {
                let orders = outstanding(&self.view.state(), session.node);
                if orders.iter().map(Order::key).collect::<BTreeSet<_>>() != known {
                    return orders;
                }
                notify.notified().await;
            }
        };
        let orders = timeout(NEWS_PATIENCE, news).await;
        self.view.orders().unsubscribe(session.node, &notify);
        if !self.stands(session) {
            return None;
        }
        Some(orders.unwrap_or_else(|_quiet| outstanding(&self.view.state(), session.node)))
    }

    /// What became of workers is in the log.
    pub async fn report(&self, session: SessionId, workers: Vec<WorkerReport>) -> bool {
        self.stands(session) && self.carry_out(session, workers).await
    }

    async fn carry_out(&self, session: SessionId, workers: Vec<WorkerReport>) -> bool {
        let SessionId { node, incarnation, .. } = session;
        let mut by_gang: BTreeMap<(JobId, FencingToken), Vec<(u32, RankUpdate)>> = BTreeMap::new();
        for worker in workers {
            let updates = by_gang.entry((worker.job, worker.token)).or_default();
            match (worker.rank, worker.exit) {
                (Some(rank), Some(exit)) => updates.push((rank, RankUpdate::Exited(exit))),
                (Some(rank), None) => updates.push((rank, RankUpdate::Running)),
                (None, exit) => {
                    let view = self.view.state();
                    updates.extend(none_here(&view, node, worker.job, worker.token, exit));
                }
            }
        }
        let commands = by_gang.iter().flat_map(|((job, token), updates)| {
            updates.chunks(limits::REPORT_RANKS_MAX).map(move |part| (*job, *token, part.to_vec()))
        });
        let results = commands.map(|(job, token, updates)| {
            self.node_command(Command::Report { node, incarnation, job, token, updates })
        });
        futures::future::join_all(results).await.iter().all(Result::is_ok)
    }
}
