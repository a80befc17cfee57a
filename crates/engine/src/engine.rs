//! The engine: one replica's services, put together.

use futures::FutureExt;
use muster_consensus::{Consensus, Environment, Leader, LeadershipView, Space, TokioEnv};
use muster_decider::{Answer, BootstrapConfig, Command, JobPath, ModifyOrder, QueueForecast};
use muster_journal::RankUpdate;
use muster_state::{JobRow, NodeStatus, Phase, State};
use muster_types::policy::{NotificationEvent, NotificationProgress};
use muster_types::{
    AdmissionMode, ExitStatus, FencingToken, JobId, JobSpec, LogIndex, LogTime, Name, NodeId, Refusal,
    RefusalCode, ReplicaId, Submission, Violation,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::apply::replicated::{Shared, View};
use crate::clock;
use crate::decide::containment::{Faults, panic_text};
use crate::decide::leader::{DecisionLoop, Intake};
use crate::history::historical_states::HistoricalStates;
use crate::history::records::History;
use crate::refusals::{overloaded, stopping, storage_full};
use crate::sessions::checkpoints::Checkpoints;
use crate::sessions::execs::ExecRelay;
use crate::sessions::liveness::Liveness;
use crate::sessions::logs::{Attempt, LogChunk, LogRelay, LogRequest, UPLOAD_BEGINS_MAX};
use crate::sessions::messages::Outbound;
use crate::sessions::pending::{Pending, PendingNode};
use crate::sessions::probes::Probes;
use crate::sessions::registry::Sessions;
use crate::sessions::stragglers::StragglerDetector;

/// What an engine is started with.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// For the first leader of a new cluster.
    pub founding: BootstrapConfig,
    /// Client commands that may wait for the decision loop.
    pub client_commands_waiting_max: usize,
    /// Node commands that may wait for it, in their own lane.
    pub node_commands_waiting_max: usize,
    /// Whether a broken invariant costs only the command or the step that met it. Without it the decision loop
    /// stops, which tests and simulations want.
    pub contain_faults: bool,
}

/// Facts about this replica that its services show.
#[derive(Clone, Debug)]
pub struct ReplicaInfo {
    /// Its id.
    pub replica: ReplicaId,
    /// Its region.
    pub region: Name,
}

/// What this replica knows of itself apart from the agreement: for its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalFacts {
    /// Age of its newest snapshot, in milliseconds.
    pub snapshot_age_ms: Option<u64>,
    /// Up to which record its archive of the log is complete.
    pub archive_log_index: Option<u64>,
    /// Days until the first of its certificates runs out.
    pub certificate_days_left: Option<i64>,
    /// Objects of its archive that were set aside at its start, since they are damaged.
    pub archive_damaged: Vec<String>,
    /// Objects of its archive that are damaged or gone and not yet rebuilt.
    pub archive_unmended: Vec<String>,
    /// The number of objects of its archive that were rebuilt since its start.
    pub archive_mended: u64,
    /// Why its archive cannot be opened or written at present; none when it can.
    pub archive_failing: Option<String>,
    /// Why old segments of its archive cannot be moved away at present; none when they can.
    pub archive_offload_failing: Option<String>,
    /// The generation that this replica's directory begins, while leases of the one before may still be held.
    pub recovers_as: Option<u32>,
    /// How full the state is, once finished jobs are forgotten before their time, as a sentence.
    pub retention_cut: Option<String>,
    /// What last met a broken invariant while this replica decided, as a sentence.
    pub decision_fault: Option<String>,
    /// How often that has happened since its start.
    pub decision_faults: u64,
    /// Leaderships that began within the last [`LEADERSHIPS_COUNTED_FOR`], by this replica's log.
    pub leaderships_begun: usize,
    /// What this replica, as the leader, has done for receivers of notifications, by their names; empty on others.
    pub deliveries: BTreeMap<Name, Delivery>,
}

/// What the leader has done for one receiver of notifications. How far the receiver has come by the log is in the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// How far it has come.
    pub progress: NotificationProgress,
    /// Attempts that failed, since this leadership began.
    pub failed_attempts: u64,
    /// Why the last attempt failed; none once one has succeeded.
    pub last_error: Option<String>,
    /// What became of its last events, at most [`DELIVERIES_KEPT`], the newest last. It is shared between copies.
    pub recent: Arc<VecDeque<Delivered>>,
}

/// Events of one receiver that the leader remembers.
pub const DELIVERIES_KEPT: usize = 64;

/// What became of one event for one receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Log index, position within the record, and receiver: what the receiver gets with every attempt.
    pub id: String,
    /// What has happened.
    pub event: NotificationEvent,
    /// The job's id, the node's name, or the schedule's tenant and name.
    pub subject: String,
    /// What became of it.
    pub result: DeliveryResult,
    /// Attempts so far.
    pub attempts: u32,
    /// When the last of them ended, by this replica's clock.
    pub at_ms: u64,
    /// Why the last of them failed; none for one that was taken.
    pub error: Option<String>,
}

/// What became of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    /// Its last attempt failed, and another one follows.
    Retrying,
    /// The receiver has taken it.
    Taken,
    /// It did not take it in the time that it is tried for.
    GivenUp,
}

impl Delivery {
    /// Notes what became of an event, in the place of what is known of the same one. The oldest is forgotten.
    pub fn note(&mut self, delivered: Delivered) {
        let recent = Arc::make_mut(&mut self.recent);
        if recent.back().is_some_and(|last| last.id == delivered.id) {
            recent.pop_back();
        }
        if recent.len() >= DELIVERIES_KEPT {
            recent.pop_front();
        }
        recent.push_back(delivered);
    }
}

/// Commands that wait for the decision loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InboxDepth {
    /// Of clients.
    pub clients: usize,
    /// Of nodes, and of the replica itself about them.
    pub nodes: usize,
}

/// How far back leaderships are counted for [`LocalFacts`].
pub const LEADERSHIPS_COUNTED_FOR: Duration = Duration::from_secs(10 * 60);

/// Explanations that are made at a time. Each takes a processor for a moment, and heartbeats and decisions
/// are more urgent than any of them.
const EXPLANATIONS_MAX: usize = 2;
/// Memory that commands waiting for the decision loop may take together, in KiB. Their number alone
/// bounds nothing: one submission can be a thousand times another.
const CLIENT_MEMORY_KIB: u32 = 64 << 10;
/// The same of what nodes say. A report of the largest gang's ranks can have some MiB.
const NODE_MEMORY_KIB: u32 = 64 << 10;
/// How long a read of output waits for the session of a node that is up: after a change of leader
/// the agents come back within a heartbeat or two.
const SESSION_RETURNS_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Inner<G: Environment> {
    pub(crate) consensus: Consensus<G>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) sessions: Arc<Sessions>,
    clients: mpsc::Sender<Intake>,
    nodes: mpsc::Sender<Intake>,
    client_memory: Arc<Semaphore>,
    pub(crate) node_memory: Arc<Semaphore>,
    pub(crate) explainers: Arc<Semaphore>,
    /// What explanations of the newest state have in common, since somebody last asked for one.
    pub(crate) queue_forecast: Arc<Mutex<Option<QueueForecast>>>,
    /// Begins tasks from threads that are not of it; none where the replica was started outside of one.
    pub(crate) runtime: Option<tokio::runtime::Handle>,
    logs: LogRelay,
    pub(crate) execs: ExecRelay,
    pub(crate) probes: Probes,
    pub(crate) stragglers: Arc<StragglerDetector>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) pending: Pending,
    /// What is asked of nodes that register while no operator has set it.
    admission: AdmissionMode,
    info: ReplicaInfo,
    format_max: u16,
    /// The generation of the cluster that the replica's directory is of.
    pub(crate) generation: u32,
    facts: watch::Sender<LocalFacts>,
    faults: Arc<Faults>,
    pub(crate) shutdown: CancellationToken,
    failed: watch::Sender<Option<String>>,
    pub(crate) history: OnceLock<Arc<History>>,
    pub(crate) historical_states: HistoricalStates,
}

/// One replica's services. Clones share it.
pub struct Engine<G: Environment = TokioEnv> {
    pub(crate) inner: Arc<Inner<G>>,
}

impl<G: Environment> Clone for Engine<G> {
    fn clone(&self) -> Self {
        Engine { inner: Arc::clone(&self.inner) }
    }
}

impl<G: Environment> Engine<G> {
    /// Starts the decision loop over a consensus that applies to the same replicated state.
    #[must_use]
    pub fn start(config: EngineConfig, info: ReplicaInfo, view: View, consensus: Consensus<G>) -> Engine<G> {
        let (clients, from_clients) = mpsc::channel(config.client_commands_waiting_max);
        let (nodes, from_nodes) = mpsc::channel(config.node_commands_waiting_max);
        let liveness = Arc::new(Liveness::default());
        let sessions = Arc::new(Sessions::default());
        let shutdown = CancellationToken::new();
        let stragglers = Arc::new(StragglerDetector::default());
        let faults = Arc::new(Faults::default());
        let decisions = DecisionLoop {
            faults: Arc::clone(&faults),
            contain_faults: config.contain_faults,
            stragglers: Arc::clone(&stragglers),
            consensus: consensus.clone(),
            shared: Arc::clone(&view.shared),
            liveness: Arc::clone(&liveness),
            sessions: Arc::clone(&sessions),
            founding: config.founding,
            clients: from_clients,
            nodes: from_nodes,
            shutdown: shutdown.clone(),
        };
        let engine = Engine {
            inner: Arc::new(Inner {
                consensus,
                shared: view.shared,
                liveness,
                sessions,
                clients,
                nodes,
                client_memory: Arc::new(Semaphore::new(CLIENT_MEMORY_KIB as usize)),
                node_memory: Arc::new(Semaphore::new(NODE_MEMORY_KIB as usize)),
                explainers: Arc::new(Semaphore::new(EXPLANATIONS_MAX)),
                queue_forecast: Arc::default(),
                runtime: tokio::runtime::Handle::try_current().ok(),
                logs: LogRelay::default(),
                execs: ExecRelay::default(),
                probes: Probes::default(),
                stragglers,
                checkpoints: Checkpoints::default(),
                pending: Pending::default(),
                admission: config.founding.admission,
                info,
                format_max: config.founding.format_max,
                generation: config.founding.generation,
                facts: watch::Sender::default(),
                faults,
                shutdown,
                failed: watch::Sender::new(None),
                history: OnceLock::new(),
                historical_states: HistoricalStates::default(),
            }),
        };
        G::detach(engine.clone().supervise(decisions.run()));
        engine
    }

    /// Notices when the decision loop stops on a broken invariant. Without it this replica would lead
    /// on, keep its agents alive, and decide nothing.
    pub(crate) async fn supervise(self, decisions: impl Future<Output = ()> + Send) {
        let Err(panic) = AssertUnwindSafe(decisions).catch_unwind().await else { return };
        let detail = panic_text(panic.as_ref());
        self.inner.liveness.end();
        self.stop();
        self.inner.failed.send_replace(Some(detail));
    }

    /// Why the decision loop has stopped by itself, once it has: then the process must end.
    #[must_use]
    pub fn failed(&self) -> watch::Receiver<Option<String>> {
        self.inner.failed.subscribe()
    }

    /// Resolves when this replica stops serving.
    pub fn stopping(&self) -> WaitForCancellationFuture<'_> {
        self.inner.shutdown.cancelled()
    }

    /// Whether this replica stops serving.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.inner.shutdown.is_cancelled()
    }

    /// Stops deciding. Consensus is stopped by the one that started it.
    pub fn stop(&self) {
        self.inner.shutdown.cancel();
        self.inner.sessions.close_all();
    }

    /// Facts about this replica.
    #[must_use]
    pub fn info(&self) -> &ReplicaInfo {
        &self.inner.info
    }

    /// The highest record format this replica reads.
    #[must_use]
    pub fn format_max(&self) -> u16 {
        self.inner.format_max
    }

    /// What this replica asks of nodes that register while no operator has set it.
    #[must_use]
    pub fn usual_admission(&self) -> AdmissionMode {
        self.inner.admission
    }

    /// Sessions of nodes that are open here: this replica must lead.
    #[must_use]
    pub fn open_sessions(&self) -> usize {
        self.inner.sessions.count()
    }

    /// Nodes that have tried to register here within the last minutes and are not admitted, by name. This replica must
    /// lead: agents register at the leader.
    #[must_use]
    pub fn pending_nodes(&self) -> Vec<PendingNode> {
        self.inner.pending.list(clock::now::<G>())
    }

    /// One of them.
    #[must_use]
    pub fn pending_node(&self, name: &Name) -> Option<PendingNode> {
        self.inner.pending.get(name)
    }

    /// Leaves it out of them: an operator has answered. It is there again should it try again and be refused.
    pub fn forget_pending_node(&self, name: &Name) {
        self.inner.pending.forget(name);
    }

    /// What this replica knows of itself apart from the agreement.
    #[must_use]
    pub fn local_facts(&self) -> LocalFacts {
        LocalFacts {
            decision_fault: self.inner.faults.last(),
            decision_faults: self.inner.faults.count(),
            recovers_as: self.recovers_as(),
            retention_cut: retention_cut(&self.view()),
            leaderships_begun: self.leaderships_begun(),
            ..self.inner.facts.borrow().clone()
        }
    }

    fn recovers_as(&self) -> Option<u32> {
        let (view, own) = (self.view(), self.inner.generation);
        (view.cluster().is_some() && view.generation() < own).then_some(own)
    }

    fn leaderships_begun(&self) -> usize {
        let counted_ms = LEADERSHIPS_COUNTED_FOR.as_millis() as u64;
        let now = clock::now::<G>().max(self.view().log_time());
        self.inner.shared.contacts().begun_since(now.minus_ms(counted_ms))
    }

    /// Changes what this replica knows of itself.
    pub fn update_local_facts(&self, update: impl FnOnce(&mut LocalFacts)) {
        self.inner.facts.send_modify(update);
    }

    /// How many commands wait for the decision loop.
    #[must_use]
    pub fn inbox(&self) -> InboxDepth {
        let waiting = |lane: &mpsc::Sender<Intake>| lane.max_capacity().saturating_sub(lane.capacity());
        InboxDepth { clients: waiting(&self.inner.clients), nodes: waiting(&self.inner.nodes) }
    }

    /// Whether this replica's disk has too little free space for new work: then submissions are refused here.
    #[must_use]
    pub fn lacks_space(&self) -> bool {
        let reports = self.inner.consensus.peer_reports();
        let reports = reports.borrow();
        reports.get(&self.inner.info.replica).is_some_and(|report| report.storage.space != Space::Enough)
    }

    /// The consensus underneath, for its status.
    #[must_use]
    pub fn consensus(&self) -> &Consensus<G> {
        &self.inner.consensus
    }

    /// The applied state. It never changes; ask again for a newer one.
    #[must_use]
    pub fn view(&self) -> Arc<State> {
        self.inner.shared.view.load_full()
    }

    /// Who leads, as far as this replica knows.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<LeadershipView> {
        self.inner.consensus.leadership()
    }

    /// The leader, as far as this replica knows.
    #[must_use]
    pub fn leader(&self) -> Option<Leader> {
        self.inner.consensus.leadership().borrow().leader.clone()
    }

    /// The leader's id, as far as this replica knows.
    #[must_use]
    pub fn leader_id(&self) -> Option<ReplicaId> {
        self.inner.consensus.leadership().borrow().leader.as_ref().map(|leader| leader.replica)
    }

    /// Whether this replica leads, as far as it knows.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.inner.consensus.leadership().borrow().mine.is_some()
    }

    /// Carries out a client's command at this replica, which must lead. It is queued when this returns; the
    /// answer comes after its record was applied here, durable on a quorum.
    ///
    /// # Errors
    /// A refusal; `NOT_LEADER` and `OVERLOADED` certainly changed nothing, `OUTCOME_UNKNOWN` may have.
    pub fn execute(&self, command: Command) -> impl Future<Output = Result<Answer, Refusal>> + Send + use<G> {
        // The command is moved to the queue here, so that the future is small: there are thousands of them.
        let answer = self.enqueue(command);
        async move { answer?.await.unwrap_or_else(|_| Err(stopping())) }
    }

    fn enqueue(&self, command: Command) -> Result<oneshot::Receiver<Result<Answer, Refusal>>, Refusal> {
        let (reply, answer) = oneshot::channel();
        // Only what adds to the log for good is refused: what is there goes on, and what frees space as well.
        let adds = matches!(
            command,
            Command::Submit { .. } | Command::SetPolicy { .. } | Command::UpdatePolicy { .. }
        );
        if adds && self.lacks_space() {
            return Err(storage_full());
        }
        let memory = Arc::clone(&self.inner.client_memory).try_acquire_many_owned(memory_kib(&command));
        let Ok(memory) = memory else { return Err(overloaded()) };
        match self.inner.clients.try_send(Intake { command, reply, _memory: Some(memory) }) {
            Ok(()) => Ok(answer),
            Err(mpsc::error::TrySendError::Full(_)) => Err(overloaded()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(stopping()),
        }
    }

    /// The same in the nodes' lane. It waits for free memory, since sessions are bounded themselves. Commands get it
    /// in order of arrival, so a node that says much waits behind those that came before it, and they never wait
    /// behind what it says next.
    pub(crate) async fn execute_for_node(&self, command: Command) -> Result<Answer, Refusal> {
        let (reply, answer) = oneshot::channel();
        let memory = Arc::clone(&self.inner.node_memory).acquire_many_owned(node_memory_kib(&command)).await;
        let memory = memory.map_err(|_| stopping())?;
        let intake = Intake { command, reply, _memory: Some(memory) };
        self.inner.nodes.send(intake).await.map_err(|_| stopping())?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Takes a worker's report that it has finished a step, with the time that its own work took, without waiting for
    /// others of its gang. If this makes a rank slow, or one that was slow keeps up again, the log records it. Reports
    /// about ranks that are not on the node are ignored.
    pub async fn note_step(
        &self,
        node: NodeId,
        (job, token): (JobId, FencingToken),
        rank: u32,
        (step, duration_ms): (u64, u64),
    ) {
        let view = self.view();
        let runs = |job: JobId, token: FencingToken| {
            let row = view.job(job).filter(|row| row.phase == Phase::Running);
            row.and_then(|row| row.placement.as_ref()).filter(|placement| placement.token == token).is_some()
        };
        let placement = view.job(job).and_then(|row| row.placement.as_ref());
        let slot = placement.and_then(|placement| placement.slots.get(rank as usize));
        if !runs(job, token) || slot.is_none_or(|slot| slot.node != node) {
            return;
        }
        for change in self.inner.stragglers.note((job, token), rank, (step, duration_ms), runs) {
            let (rank, slow_milli) = (change.rank, change.slow_milli);
            tracing::info!(%job, rank, slow_milli, "a rank's pace against its gang's has changed");
            // Who does not lead any more has nothing to say; the next leader sees for itself.
            let _ = self.execute_for_node(Command::NoteStraggler { job, token, rank, slow_milli }).await;
        }
    }

    /// Waits until this replica has applied the log up to `index`.
    ///
    /// # Errors
    /// When it has not within `timeout`.
    pub async fn wait_applied(&self, index: LogIndex, timeout: Duration) -> Result<Arc<State>, Refusal> {
        let mut applied = self.inner.shared.applied.subscribe();
        let reached = async { applied.wait_for(|at| *at >= index).await.is_ok() };
        match G::within(timeout, reached).await {
            Ok(true) => Ok(self.view()),
            Ok(false) => Err(stopping()),
            Err(_) => {
                let at = self.view().log_index();
                let text = format!("this replica has applied the log up to {at}, not yet up to {index}");
                Err(Refusal::new(RefusalCode::LogIndexNotReached, text).with("applied_log_index", at))
            }
        }
    }

    /// The applied state after everything that was committed before this call, proved by a quorum.
    ///
    /// # Errors
    /// When this replica cannot prove to lead.
    pub async fn linearizable_view(&self) -> Result<Arc<State>, Refusal> {
        let point = self.inner.consensus.confirm_leadership().await;
        let point = point.map_err(|error| Refusal::new(RefusalCode::NotLeader, error.to_string()))?;
        let mut applied = self.inner.consensus.applied();
        applied.wait_for(|at| *at >= point.raft_index).await.map_err(|_| stopping())?;
        Ok(self.view())
    }
}

impl Engine {
    /// Whether the job (or array of jobs) of a request could be submitted, without doing it.
    ///
    /// # Errors
    /// The refusal that a submission would get from this state.
    pub fn check_submission(&self, view: &State, jobs: &[Submission], path: JobPath) -> Result<(), Refusal> {
        // Like the leader's: never before what is in the log.
        let now = clock::now::<TokioEnv>().max(view.log_time());
        muster_decider::check_submission(view, jobs, path, now)
    }

    /// The later of this replica's clock and of what is in the log: for what may be refused early and never late.
    #[must_use]
    pub fn now(&self, view: &State) -> LogTime {
        clock::now::<TokioEnv>().max(view.log_time())
    }

    /// Whether a job could be changed, without doing it.
    ///
    /// # Errors
    /// The refusal that the change would get from this state.
    pub fn check_modify(&self, view: &State, order: &ModifyOrder) -> Result<(), Refusal> {
        let now = clock::now::<TokioEnv>().max(view.log_time());
        muster_decider::check_modify(view, order, now).map(|_| ())
    }

    /// Asks the agent of a worker for its output; also says which placement's it is. This replica must lead:
    /// sessions are here.
    ///
    /// # Errors
    /// When there is no such worker, or its node has no session.
    pub async fn read_logs(
        &self,
        job: JobId,
        rank: u32,
        attempt: Attempt,
        request: LogRequest,
    ) -> Result<(FencingToken, mpsc::Receiver<Result<LogChunk, Refusal>>), Refusal> {
        let view = self.view();
        let row = view.job(job).ok_or_else(|| {
            Refusal::new(RefusalCode::JobNotFound, format!("there is no job {job}")).with("job_id", job)
        })?;
        let placement = attempt.of(row).ok_or_else(|| not_placed(row, job, rank, attempt))?;
        let slot = placement.slots.get(rank as usize).ok_or_else(|| {
            let last = placement.slots.len().saturating_sub(1);
            let text = format!("{job} has no rank {rank}; its ranks are 0 to {last}");
            Refusal::fields(vec![Violation::new("rank", text)])
        })?;
        let token: FencingToken = placement.token;
        let of_worker = |refusal: Refusal| match refusal.code {
            RefusalCode::OutputNotFound => refusal.with("job_id", job).with("rank", rank),
            _ => refusal,
        };
        let outbound = self.session_of(slot.node).await.map_err(of_worker)?;
        let (read_id, chunks) = self.inner.logs.open()?;
        let request = LogRequest { read_id, job, token, rank, ..request };
        if outbound.try_send(Outbound::ReadLogs(request)).is_err() {
            self.inner.logs.give_up(read_id, "the node's session takes no order at present");
            return Ok((token, chunks));
        }
        let engine = self.clone();
        tokio::spawn(async move {
            // An upload that has begun ends by itself; one that does not begin is noticed by nobody.
            tokio::select! {
                () = tokio::time::sleep(UPLOAD_BEGINS_MAX) => {}
                () = outbound.closed() => {}
                () = engine.stopping() => {}
            }
            engine.inner.logs.give_up(read_id, "the node's agent did not send the output");
        });
        Ok((token, chunks))
    }
}

impl<G: Environment> Engine<G> {
    /// The session of a node, waiting a moment for that of a node that is up.
    pub(crate) async fn session_of(&self, node: NodeId) -> Result<mpsc::Sender<Outbound>, Refusal> {
        let deadline = clock::instant::<G>() + SESSION_RETURNS_MAX;
        let mut opened = self.inner.sessions.opened();
        loop {
            opened.mark_unchanged();
            if let Some(outbound) = self.inner.sessions.outbound(node) {
                return Ok(outbound);
            }
            if !self.is_leader() {
                return Err(Refusal::new(
                    RefusalCode::NotLeader,
                    "the leader changed; sessions are at the next",
                ));
            }
            let view = self.view();
            let row = view.node(node);
            let is_up = row.is_some_and(|row| row.status == NodeStatus::Up);
            let waited = !is_up || G::within(clock::until::<G>(deadline), opened.changed()).await.is_err();
            if waited {
                let Some(row) = row else {
                    let text = format!("the output was on {node}, which has been forgotten");
                    return Err(Refusal::new(RefusalCode::OutputNotFound, text));
                };
                let name = &row.spec.name;
                let text = format!("the output is on {name}, which has no session at present");
                return Err(Refusal::new(RefusalCode::LogsUnavailable, text).with("node", name));
            }
        }
    }

    /// Where the upload of a read goes; none when nobody waits for it any more.
    #[must_use]
    pub fn log_reader(&self, read_id: u64) -> Option<mpsc::Sender<Result<LogChunk, Refusal>>> {
        self.inner.logs.take(read_id)
    }
}

/// Above nine tenths of the jobs that the state may hold, housekeeping forgets finished ones before their time.
pub(crate) fn retention_cut(view: &State) -> Option<String> {
    // Arrays and the ends of their members take rows too, and are counted by what forgets.
    let (held, max) = (view.rows_held(), view.parameters().jobs_held_max);
    let days = view.parameters().job_retention_ms / 86_400_000;
    // Housekeeping brings it down to nine tenths, so it stands there or above.
    (held >= max - max / 10).then(|| {
        format!(
            "the state holds {held} of at most {max} jobs and arrays, so finished jobs are forgotten before their {days} days; \
             their records are in the archive"
        )
    })
}

/// Why an attempt has no output: it has not come so far, or it is not known any more.
fn not_placed(row: &JobRow, job: JobId, rank: u32, attempt: Attempt) -> Refusal {
    let waits = !matches!(row.phase, Phase::Finished(_));
    let (code, text) = match attempt {
        Attempt::Current if waits && row.previous.is_some() => (
            RefusalCode::WorkerNotStarted,
            format!("{job} waits for its next attempt; the one before has output (--previous)"),
        ),
        Attempt::Current if waits => {
            (RefusalCode::WorkerNotStarted, format!("{job} has not been placed so far"))
        }
        Attempt::Current => (RefusalCode::OutputNotFound, format!("{job} ended before it was placed")),
        Attempt::Previous => {
            (RefusalCode::OutputNotFound, format!("{job} has had no attempt before the current one"))
        }
        Attempt::Token(token) => (
            RefusalCode::OutputNotFound,
            format!("the attempt of token {token} is not one of the last two of {job}"),
        ),
    };
    Refusal::new(code, text).with("job_id", job).with("rank", rank)
}

/// About what a waiting command takes in memory, in KiB.
fn memory_kib(command: &Command) -> u32 {
    let kib = match command {
        Command::Submit { jobs, .. } => submission_kib(jobs),
        // The largest that there may be.
        Command::SetSchedule(_) => (muster_types::limits::SCHEDULE_BYTES_MAX >> 10) as u64,
        _ => return 1,
    };
    // Whatever its size, one that is alone may wait; the decider refuses what is too large.
    u32::try_from(kib).unwrap_or(CLIENT_MEMORY_KIB).clamp(1, CLIENT_MEMORY_KIB)
}

/// About what a node's word takes in memory while it waits for the decision loop, in KiB.
fn node_memory_kib(command: &Command) -> u32 {
    let bytes = match command {
        Command::Report { updates, .. } => {
            let of_one = |update: &RankUpdate| match update {
                RankUpdate::Running | RankUpdate::Ready => 64,
                RankUpdate::Exited(exit) => 64 + exit_bytes(exit),
            };
            updates.iter().map(|(_, update)| of_one(update)).sum()
        }
        Command::ReportHealth { report, .. } => {
            report.findings.iter().chain(&report.events).map(|seen| 96 + seen.detail.len()).sum()
        }
        Command::Register { spec, .. } | Command::RegisterStart { spec, .. } => {
            spec.labels.iter().map(|(name, value)| 96 + name.len() + value.len()).sum::<usize>()
        }
        Command::NoteSoundNetwork { nodes } => nodes.len() * 8,
        _ => 0,
    };
    u32::try_from(bytes >> 10).unwrap_or(NODE_MEMORY_KIB).clamp(1, NODE_MEMORY_KIB)
}

fn exit_bytes(exit: &ExitStatus) -> usize {
    match exit {
        ExitStatus::LaunchFailed(detail)
        | ExitStatus::NodeFault(detail)
        | ExitStatus::BackendLost(detail)
        | ExitStatus::PreflightFailed(detail) => detail.len(),
        _ => 0,
    }
}

/// About what a submission takes in memory while it waits for the decision loop, in KiB.
#[must_use]
pub fn submission_kib(jobs: &[Submission]) -> u64 {
    let texts = |job: &Submission| job.metadata.as_ref().map_or(0, |metadata| metadata.text_bytes());
    let paths = |job: &Submission| -> usize {
        let rules = job.contract.artifacts.iter();
        rules.flat_map(|rules| &rules.paths).map(|path| path.len() + 24).sum()
    };
    let bytes: usize = jobs.iter().map(|job| spec_bytes(&job.spec) + texts(job) + paths(job)).sum();
    (bytes >> 10) as u64
}

fn spec_bytes(spec: &JobSpec) -> usize {
    let texts = spec.groups.iter().map(|group| {
        let words: usize = group.command.iter().map(|word| word.len() + 24).sum();
        let variables: usize = group.environment.iter().map(|(k, v)| k.len() + v.len() + 64).sum();
        let of_mount = |mount: &muster_types::Mount| mount.source.len() + mount.target.len() + 64;
        let mounts = group.container.iter().flat_map(|container| &container.mounts).map(of_mount);
        let image = group.container.as_ref().map_or(0, |container| container.image.len());
        words + variables + image + mounts.sum::<usize>() + 256
    });
    texts.sum::<usize>() + 512
}
