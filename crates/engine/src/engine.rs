//! The engine: one replica's services, put together.

use muster_consensus::{Consensus, Leader, LeadershipView};
use muster_decider::{Answer, Command, Founding};
use muster_planner::{Budget, Verdict, plan};
use muster_state::{Phase, State};
use muster_types::{FencingToken, JobId, JobSpec, LogIndex, Name, Refusal, RefusalCode, ReplicaId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::leader::{DecisionLoop, Intake, own};
use crate::liveness::Liveness;
use crate::logs::{LogChunk, LogRelay, LogRequest};
use crate::replicated::{Shared, View};
use crate::session::{Outbound, Sessions};
use crate::watch::{Subscription, WatchPosition};

/// What an engine is started with.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// For the first leader of a new cluster.
    pub founding: Founding,
    /// Client commands that may wait for the decision loop.
    pub client_commands_waiting_max: usize,
    /// Node commands that may wait for it, in their own lane.
    pub node_commands_waiting_max: usize,
}

/// Facts about this replica that its services show.
#[derive(Clone, Debug)]
pub struct ReplicaInfo {
    /// Its id.
    pub replica: ReplicaId,
    /// Its region.
    pub region: Name,
}

/// Why a job waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReason {
    /// Stable code.
    pub code: &'static str,
    /// One sentence with numbers.
    pub text: String,
}

/// Work one explanation may cost, in visits.
const EXPLAIN_VISITS: u64 = 50_000;

pub(crate) struct Inner {
    pub(crate) consensus: Consensus,
    pub(crate) shared: Arc<Shared>,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) sessions: Arc<Sessions>,
    clients: mpsc::Sender<Intake>,
    nodes: mpsc::Sender<Intake>,
    logs: LogRelay,
    info: ReplicaInfo,
    shutdown: CancellationToken,
}

/// One replica's services. Clones share it.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

impl Engine {
    /// Starts the decision loop over a consensus that applies to the same replicated state.
    #[must_use]
    pub fn start(config: EngineConfig, info: ReplicaInfo, view: View, consensus: Consensus) -> Engine {
        let (clients, from_clients) = mpsc::channel(config.client_commands_waiting_max);
        let (nodes, from_nodes) = mpsc::channel(config.node_commands_waiting_max);
        let liveness = Arc::new(Liveness::default());
        let sessions = Arc::new(Sessions::default());
        let shutdown = CancellationToken::new();
        let decisions = DecisionLoop {
            consensus: consensus.clone(),
            shared: Arc::clone(&view.shared),
            liveness: Arc::clone(&liveness),
            sessions: Arc::clone(&sessions),
            founding: config.founding,
            clients: from_clients,
            nodes: from_nodes,
            shutdown: shutdown.clone(),
        };
        tokio::spawn(decisions.run());
        let shared = view.shared;
        let logs = LogRelay::default();
        Engine {
            inner: Arc::new(Inner {
                consensus,
                shared,
                liveness,
                sessions,
                clients,
                nodes,
                logs,
                info,
                shutdown,
            }),
        }
    }

    /// Stops deciding. Consensus is stopped by whoever started it.
    pub fn stop(&self) {
        self.inner.shutdown.cancel();
        self.inner.sessions.close_all();
    }

    /// Facts about this replica.
    #[must_use]
    pub fn info(&self) -> &ReplicaInfo {
        &self.inner.info
    }

    /// The consensus underneath, for its status.
    #[must_use]
    pub fn consensus(&self) -> &Consensus {
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

    /// Whether this replica leads, as far as it knows.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        own(&self.inner.consensus.leadership().borrow()).is_some()
    }

    /// Carries out a client's command at this replica, which must lead. The answer comes after its
    /// record was applied here, durable on a quorum.
    ///
    /// # Errors
    /// A refusal; `NOT_LEADER` and `OVERLOADED` certainly changed nothing, `OUTCOME_UNKNOWN` may have.
    pub async fn execute(&self, command: Command) -> Result<Answer, Refusal> {
        let (reply, answer) = oneshot::channel();
        match self.inner.clients.try_send(Intake { command, reply }) {
            Ok(()) => answer.await.unwrap_or_else(|_| Err(stopping())),
            Err(mpsc::error::TrySendError::Full(_)) => {
                let text = "too many requests wait for the leader; try again";
                Err(Refusal::new(RefusalCode::Overloaded, text).with("retry_after_ms", 100))
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(stopping()),
        }
    }

    /// The same in the nodes' lane; waits for its turn, since sessions are bounded themselves.
    pub(crate) async fn execute_for_node(&self, command: Command) -> Result<Answer, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.inner.nodes.send(Intake { command, reply }).await.map_err(|_| stopping())?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Waits until this replica has applied the log up to `index`.
    ///
    /// # Errors
    /// When it has not within `timeout`.
    pub async fn wait_applied(&self, index: LogIndex, timeout: Duration) -> Result<Arc<State>, Refusal> {
        let mut applied = self.inner.shared.applied.subscribe();
        let reached = tokio::time::timeout(timeout, applied.wait_for(|at| *at >= index)).await;
        match reached {
            Ok(Ok(_)) => Ok(self.view()),
            Ok(Err(_)) => Err(stopping()),
            Err(_) => {
                let at = self.view().log_index();
                let text = format!("this replica has applied the log up to {at}, not yet up to {index}");
                Err(Refusal::new(RefusalCode::ResumeTokenInvalid, text).with("applied_log_index", at))
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

    /// Whether jobs could be submitted, without doing it.
    ///
    /// # Errors
    /// The refusal that a submission would get from this state.
    pub fn check_submission(&self, view: &State, specs: &[JobSpec]) -> Result<(), Refusal> {
        muster_decider::check_submission(view, specs)
    }

    /// Why a pending job waits, by the state of `view`; none when it does not wait.
    #[must_use]
    pub fn explain(&self, view: &State, job: JobId) -> Option<WaitReason> {
        if view.job(job)?.phase != Phase::Pending {
            return None;
        }
        let mut budget = Budget::new(EXPLAIN_VISITS);
        Some(match plan(view, view.spec(job)?, |_, _| true, &mut budget) {
            Verdict::Waits(explanation) => {
                WaitReason { code: explanation.code(), text: explanation.to_string() }
            }
            Verdict::Fits(plan) => WaitReason {
                code: "BEHIND_OTHER_GANGS",
                text: format!(
                    "it would fit in {}/{}; gangs before it have their turn first",
                    plan.region, plan.cluster
                ),
            },
            Verdict::OutOfBudget => {
                WaitReason { code: "WAITING_FOR_CAPACITY", text: "the fleet is being searched".to_owned() }
            }
        })
    }

    /// Follows the changes behind a position of the log.
    ///
    /// # Errors
    /// When that position is not kept any more, or not yet reached.
    pub fn watch(&self, from: WatchPosition) -> Result<Subscription, Refusal> {
        let at = self.view().log_index();
        if from.log_index > at {
            let text = format!("the token is from log index {}, this replica is at {at}", from.log_index);
            return Err(Refusal::new(RefusalCode::ResumeTokenInvalid, text));
        }
        self.inner.shared.hub.subscribe(from)
    }

    /// Asks the agent of a worker for its output. This replica must lead: sessions are here.
    ///
    /// # Errors
    /// When there is no such worker, or its node has no session.
    pub async fn read_logs(
        &self,
        job: JobId,
        rank: u32,
        previous: bool,
        request: LogRequest,
    ) -> Result<mpsc::Receiver<Result<LogChunk, Refusal>>, Refusal> {
        let view = self.view();
        let row = view
            .job(job)
            .ok_or_else(|| Refusal::new(RefusalCode::JobNotFound, format!("there is no job {job}")))?;
        let placement = if previous { &row.previous } else { &row.placement };
        let gone = |text: String| Refusal::new(RefusalCode::LogsUnavailable, text);
        let placement =
            placement.as_ref().ok_or_else(|| gone(format!("{job} has not been placed so far")))?;
        let slot = placement.slots.get(rank as usize).ok_or_else(|| {
            gone(format!(
                "{job} has no rank {rank}; its ranks are 0 to {}",
                placement.slots.len().saturating_sub(1)
            ))
        })?;
        let token: FencingToken = placement.token;
        let outbound = self.inner.sessions.outbound(slot.node).ok_or_else(|| {
            let name =
                view.node(slot.node).map_or_else(|| slot.node.to_string(), |n| n.spec.name.to_string());
            gone(format!("the output is on {name}, which has no session at present"))
        })?;
        let (read_id, chunks) = self.inner.logs.open();
        let request = LogRequest { read_id, job, token, rank, ..request };
        outbound
            .send(Outbound::ReadLogs(request))
            .await
            .map_err(|_| gone("the node's session ended".to_owned()))?;
        Ok(chunks)
    }

    /// Where the upload of a read goes; none when nobody waits for it any more.
    #[must_use]
    pub fn log_reader(&self, read_id: u64) -> Option<mpsc::Sender<Result<LogChunk, Refusal>>> {
        self.inner.logs.take(read_id)
    }
}

fn stopping() -> Refusal {
    Refusal::new(RefusalCode::OutcomeUnknown, "this replica stops; repeat the request at another")
}
