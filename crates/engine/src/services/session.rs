//! Sessions of nodes, at the leader.
//!
//! A session is two tasks: one for what must never wait (heartbeats, confirmations, orders), one
//! for reports, which wait until their records are applied.

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use muster_consensus::{Consensus, Environment, NotLeader};
use muster_decider::{Answer, Command, PlannedImage};
use muster_journal::RankUpdate;
use muster_planted::{Rule, breaks};
use muster_state::{Phase, RankState, State};
use muster_types::health::{HealthReport, RepairPhase};
use muster_types::{
    ExitStatus, Feature, FencingToken, ForeignLoad, JobId, Leadership, Name, NodeId, Refusal, RefusalCode,
    limits,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::apply::orders::{Order, StopOrder, outstanding};
use crate::clock::{instant, now};
use crate::engine::Engine;
use crate::services::checkpoints::Lane;
use crate::sessions::messages::{Inbound, Opening, Outbound, WorkerReport};

/// Messages between a session and its transport that wait in either direction.
const MESSAGES_WAITING_MAX: usize = 256;
/// Steps of one session that are being looked at.
const STEPS_MAX: usize = 256;
/// Heartbeats and confirmations of one session that wait for the quorum.
const CONFIRMATIONS_MAX: usize = 64;
/// Reports of a node's health that wait for their time. An agent sends one at a time.
const HEALTH_HELD_MAX: usize = 16;
/// Least time between two records of what others hold of one node: an agent that reports something else each time fills no
/// log with it.
const FOREIGN_LOADS_APART: Duration = Duration::from_secs(1);

/// A session as its transport sees it. Dropping it ends it.
pub struct Session {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: u32,
    inbound: mpsc::Sender<Inbound>,
    outbound: mpsc::Receiver<Outbound>,
    end: CancellationToken,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end.cancel();
    }
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

    /// Resolves when the session has ended, whatever is still to be taken out of it.
    pub fn ended(&self) -> WaitForCancellationFutureOwned {
        self.end.clone().cancelled_owned()
    }
}

impl<G: Environment> Engine<G> {
    /// Opens a session at this replica, which must lead.
    ///
    /// # Errors
    /// When it does not, or the node may not be registered so.
    pub async fn open_session(&self, opening: Opening) -> Result<Session, Refusal> {
        let name = opening.spec.name.clone();
        // Another holder's session that is over was declared lost before: nobody is to be replaced.
        let spec = opening.spec.clone();
        let (spec_said, holder) = (opening.spec, opening.holder);
        let command = match opening.start {
            Some(start) => Command::RegisterStart { spec: spec_said, holder, start },
            None => Command::Register { spec: spec_said, holder, other_session_is_over: false },
        };
        let answer = self.execute_for_node(command).await.map_err(|refusal| {
            if refusal.code == RefusalCode::NodeNotAdmitted {
                self.inner.pending.note(spec, &refusal, now::<G>());
            }
            self.held(&name, refusal)
        })?;
        self.inner.pending.forget(&name);
        let Answer::Registered { node, incarnation, .. } = answer else {
            return Err(Refusal::new(RefusalCode::Fenced, "the registration was answered as something else"));
        };
        // The answer may rest on no new record at all: prove that this replica still leads.
        let leadership = confirm(&self.inner.consensus).await?;
        if !self.inner.liveness.renew(instant::<G>(), leadership, node, incarnation) {
            let text = "the session ran out or was replaced meanwhile; register again";
            return Err(Refusal::new(RefusalCode::Fenced, text));
        }
        tracing::info!(%node, %name, incarnation, "session opened");
        let end = CancellationToken::new();
        let (inbound, from_agent) = mpsc::channel(MESSAGES_WAITING_MAX);
        let (to_agent, outbound) = mpsc::channel(MESSAGES_WAITING_MAX);
        // Queued before anybody else finds the session: an agent takes nothing else first.
        let view = self.view();
        let generation = view.cluster().map_or(0, |c| c.generation);
        let registered =
            Outbound::Registered { node, incarnation, generation, parameters: view.parameters() };
        to_agent.try_send(registered).expect("a new queue has capacity and its receiver is here");
        let session = self.inner.sessions.add(node, opening.takes, to_agent.clone(), end.clone());
        if !self.inner.liveness.counts(leadership) {
            // The sessions of that leadership were closed before this one was added.
            end.cancel();
        }
        let (reports, to_report) = mpsc::channel(MESSAGES_WAITING_MAX);
        let out = AgentSender { messages: to_agent, end: end.clone() };
        let reporter = Reporter { engine: self.clone(), node, incarnation, out: out.clone() };
        let (foreign, load) = watch::channel(None);
        G::detach(report_foreign(self.clone(), node, incarnation, (load, end.clone())));
        let work =
            Work { engine: self.clone(), node, session, incarnation, leadership, out, reports, foreign };
        G::detach(reporter.run(to_report));
        G::detach({
            let (end, sessions) = (end.clone(), Arc::clone(&self.inner.sessions));
            async move {
                work.run(opening.workers, from_agent).await;
                sessions.remove(node, session);
                end.cancel();
                tracing::info!(%node, "session closed");
            }
        });
        Ok(Session { node, incarnation, inbound, outbound, end })
    }

    /// A refusal because of another holder says when its lease runs out.
    fn held(&self, name: &Name, refusal: Refusal) -> Refusal {
        if refusal.code != RefusalCode::NodeHeldByAnother {
            return refusal;
        }
        let node = self.view().node_named(name);
        let left = node.and_then(|node| self.inner.liveness.remaining(instant::<G>(), node));
        refusal.with("retry_after_ms", left.unwrap_or_default().as_millis())
    }
}

/// Proves to be the leader, now.
async fn confirm<G: Environment>(consensus: &Consensus<G>) -> Result<Leadership, Refusal> {
    let confirmed = consensus.confirm_leadership().await;
    let refusal = |error: NotLeader| Refusal::new(RefusalCode::NotLeader, error.to_string());
    confirmed.map(|point| point.leadership).map_err(refusal)
}

/// The way to the agent. An agent that takes nothing must not keep a session that is over.
#[derive(Clone)]
struct AgentSender {
    messages: mpsc::Sender<Outbound>,
    end: CancellationToken,
}

impl AgentSender {
    /// None when the session has ended.
    async fn send(&self, message: Outbound) -> Option<()> {
        tokio::select! {
            biased;
            () = self.end.cancelled() => None,
            sent = self.messages.send(message) => sent.ok(),
        }
    }
}

/// What must never wait.
struct Work<G: Environment> {
    engine: Engine<G>,
    node: NodeId,
    session: u64,
    incarnation: u32,
    leadership: Leadership,
    out: AgentSender,
    reports: mpsc::Sender<AgentReport>,
    foreign: watch::Sender<Option<ForeignLoad>>,
}

/// What an agent says that is to reach the log.
enum AgentReport {
    /// Of workers; acknowledged by the number, if it has one.
    Workers(Option<u64>, Vec<WorkerReport>),
    /// Of its host.
    Health(u64, Box<HealthReport>),
}

/// Takes what others hold of a node to the log, the newest report alone and at most one a second, until the session is over.
async fn report_foreign<G: Environment>(
    engine: Engine<G>,
    node: NodeId,
    incarnation: u32,
    (mut load, end): (watch::Receiver<Option<ForeignLoad>>, CancellationToken),
) {
    while load.changed().await.is_ok() {
        let Some(load) = *load.borrow_and_update() else { continue };
        let command = Command::ReportForeignLoad { node, incarnation, load };
        if let Err(refusal) = engine.execute_for_node(command).await {
            // The next word, or the next session, says it again.
            tracing::info!(%node, %refusal, "what others hold of a node was not taken over");
        }
        tokio::select! {
            biased;
            // What was reported last in this session must not come behind what the next one reports.
            () = end.cancelled() => return,
            () = G::pause(FOREIGN_LOADS_APART) => {}
        }
    }
}

type Confirmation = BoxFuture<'static, Option<Outbound>>;

impl<G: Environment> Work<G> {
    async fn run(&self, workers: Vec<WorkerReport>, mut inbound: mpsc::Receiver<Inbound>) {
        let notify = self.engine.inner.shared.orders.subscribe(self.node);
        if self.open(workers).await.is_some() {
            self.serve(&notify, &mut inbound).await;
        }
        self.engine.inner.shared.orders.unsubscribe(self.node, &notify);
    }

    async fn serve(&self, notify: &Notify, inbound: &mut mpsc::Receiver<Inbound>) {
        let mut sent = BTreeSet::new();
        let mut repairing = None;
        let mut ahead = Arc::default();
        let mut waiting: FuturesUnordered<Confirmation> = FuturesUnordered::new();
        let mut steps = FuturesUnordered::new();
        loop {
            let sent_all = self.send_orders(&mut sent).await.is_some();
            if !sent_all || self.send_repair(&mut repairing).await.is_none() {
                return;
            }
            if self.send_prefetch(&mut ahead).await.is_none() {
                return;
            }
            tokio::select! {
                biased;
                () = self.out.end.cancelled() => return,
                () = self.out.messages.closed() => return,
                Some(()) = steps.next() => {}
                Some(answer) = waiting.next() => match answer {
                    Some(message) => if self.out.send(message).await.is_none() { return },
                    // The lease could not be renewed: the agent is to look for the leader.
                    None => return,
                },
                message = inbound.recv(), if waiting.len() < CONFIRMATIONS_MAX => match message.inspect(|m| self.learn(m)) {
                    Some(Inbound::Heartbeat { sequence }) => {
                        waiting.push(self.renew(sequence));
                        self.engine.recheck(self.node);
                    }
                    Some(Inbound::ConfirmStart { job, token }) => waiting.push(self.confirm_start(job, token)),
                    Some(Inbound::Step { job, token, rank, number, duration_ms }) => {
                        // A heartbeat of the work: beyond the bound it is dropped, and the next one heard.
                        if steps.len() < STEPS_MAX {
                            let (engine, node) = (self.engine.clone(), self.node);
                            steps.push(async move {
                                engine.note_step(node, (job, token), rank, (number, duration_ms)).await;
                            });
                        }
                    }
                    Some(Inbound::CheckpointCommitted { sequence, job, token, step }) => {
                        waiting.push(self.commit_checkpoint(sequence, (job, token), step));
                    }
                    Some(Inbound::Ready { sequence, job, token, rank }) => {
                        waiting.push(self.report_ready(sequence, (job, token), rank));
                    }
                    Some(Inbound::Probe(report)) => self.engine.probe_reported(self.node, report),
                    // Only the newest counts.
                    Some(Inbound::ForeignLoad(load)) => drop(self.foreign.send_replace(Some(load))),
                    Some(Inbound::Images(references)) => {
                        self.engine.inner.sessions.images.holds(self.node, references);
                    }
                    Some(Inbound::StartStage { job, token, stage }) => {
                        let (view, images) = (self.engine.view(), &self.engine.inner.sessions.images);
                        images.reached(&view, self.node, (job, token), stage);
                    }
                    Some(Inbound::Report { sequence, workers }) => {
                        if !self.pass_on(AgentReport::Workers(Some(sequence), workers)) {
                            return;
                        }
                    }
                    Some(Inbound::Health { sequence, report }) => {
                        if !self.pass_on(AgentReport::Health(sequence, report)) {
                            return;
                        }
                    }
                    None => return,
                },
                () = notify.notified() => {}
            }
        }
    }

    /// What an agent brings shows what it takes.
    fn learn(&self, message: &Inbound) {
        let shows = match message {
            Inbound::Heartbeat { .. } | Inbound::Report { .. } | Inbound::ConfirmStart { .. } => false,
            Inbound::Health { .. }
            | Inbound::CheckpointCommitted { .. }
            | Inbound::Ready { .. }
            | Inbound::Step { .. }
            | Inbound::Probe(_)
            | Inbound::ForeignLoad(_)
            | Inbound::Images(_)
            | Inbound::StartStage { .. } => true,
        };
        if shows {
            self.engine.inner.sessions.show(self.node, self.session);
        }
    }

    /// Passes a report on; whether the queue had capacity for it.
    fn pass_on(&self, report: AgentReport) -> bool {
        let is_queued = self.reports.try_send(report).is_ok();
        if !is_queued {
            tracing::warn!(node = %self.node, "reports come faster than they may; session ends");
        }
        is_queued
    }

    /// Sends the order to repair the node, once a session.
    async fn send_repair(&self, sent: &mut Option<u64>) -> Option<()> {
        let view = self.engine.view();
        let repair = view.restriction(self.node).and_then(|row| row.repair.clone());
        let due =
            repair.filter(|repair| repair.phase == RepairPhase::Working && *sent != Some(repair.number));
        let takes = || self.engine.inner.sessions.takes(self.node).has(Feature::Health);
        if let Some(repair) = due.filter(|_| takes()) {
            *sent = Some(repair.number);
            self.out.send(Outbound::Repair(repair)).await?;
        }
        Some(())
    }

    /// Sends what the node is to fetch ahead, where that has changed. It waits for no change: a heartbeat comes soon.
    async fn send_prefetch(&self, sent: &mut Arc<Vec<PlannedImage>>) -> Option<()> {
        let sessions = &self.engine.inner.sessions;
        let planned = sessions.images.planned_of(self.node);
        if planned == *sent || !sessions.takes(self.node).has(Feature::Images) {
            return Some(());
        }
        sent.clone_from(&planned);
        self.out.send(Outbound::Prefetch(planned)).await
    }

    /// Squares what the agent has with the state.
    async fn open(&self, workers: Vec<WorkerReport>) -> Option<()> {
        let (reports, stops) = square(&self.engine.view(), self.node, self.incarnation, &workers);
        for stop in stops {
            self.out.send(Outbound::Order(Order::Stop(stop))).await?;
        }
        if !reports.is_empty() {
            self.reports.try_send(AgentReport::Workers(None, reports)).ok()?;
        }
        Some(())
    }

    /// Sends the orders that were not sent in this session.
    async fn send_orders(&self, sent: &mut BTreeSet<(JobId, FencingToken, bool)>) -> Option<()> {
        let orders = outstanding(&self.engine.view(), self.node);
        let keys: BTreeSet<_> = orders.iter().map(Order::key).collect();
        sent.retain(|key| keys.contains(key));
        for order in orders {
            if sent.insert(order.key()) {
                self.out.send(Outbound::Order(order)).await?;
            }
        }
        Some(())
    }

    /// Renews the lease: confirmed by a quorum first, counted before it is acknowledged.
    fn renew(&self, sequence: u64) -> Confirmation {
        let engine = self.engine.clone();
        let (node, incarnation, leadership) = (self.node, self.incarnation, self.leadership);
        Box::pin(async move {
            let confirmed = if breaks(Rule::HeartbeatWithoutQuorum) {
                leadership
            } else {
                confirm(&engine.inner.consensus).await.ok()?
            };
            let renewed = confirmed == leadership
                && engine.inner.liveness.renew(instant::<G>(), leadership, node, incarnation);
            renewed.then_some(Outbound::HeartbeatAck { sequence })
        })
    }

    /// Logs that a gang with a worker on this node has saved its work. Ends the session where this replica cannot
    /// say: the agent asks again on its next one.
    fn commit_checkpoint(
        &self,
        sequence: u64,
        (job, token): (JobId, FencingToken),
        step: Option<u64>,
    ) -> Confirmation {
        let engine = self.engine.clone();
        let (node, incarnation) = (self.node, self.incarnation);
        Box::pin(async move {
            let placed = engine.view().job(job).and_then(|row| row.placement.clone()).is_some_and(|p| {
                p.token == token && p.slots.iter().any(|s| s.node == node && s.incarnation == incarnation)
            });
            if !placed {
                let text = format!("{job} is not placed on this node with token {token}");
                let refused = Some(Refusal::new(RefusalCode::Fenced, text));
                return Some(Outbound::NoteAck { sequence, refused });
            }
            match engine.commit_checkpoint_in(Lane::Nodes, (job, token), step).await {
                Ok(_) => Some(Outbound::NoteAck { sequence, refused: None }),
                Err(Refusal {
                    code: RefusalCode::NotLeader | RefusalCode::Overloaded | RefusalCode::OutcomeUnknown,
                    ..
                }) => None,
                Err(refusal) => Some(Outbound::NoteAck { sequence, refused: Some(refusal) }),
            }
        })
    }

    /// Logs that a worker is ready, where its job asks for that.
    fn report_ready(&self, sequence: u64, (job, token): (JobId, FencingToken), rank: u32) -> Confirmation {
        let engine = self.engine.clone();
        let (node, incarnation) = (self.node, self.incarnation);
        Box::pin(async move {
            let updates = vec![(rank, RankUpdate::Ready)];
            let command = Command::Report { node, incarnation, job, token, updates };
            match engine.execute_for_node(command).await {
                Ok(_) => Some(Outbound::NoteAck { sequence, refused: None }),
                Err(Refusal {
                    code: RefusalCode::NotLeader | RefusalCode::Overloaded | RefusalCode::OutcomeUnknown,
                    ..
                }) => None,
                Err(refusal) => Some(Outbound::NoteAck { sequence, refused: Some(refusal) }),
            }
        })
    }

    /// Whether a placement is still to be started, by state that a quorum confirmed to be current.
    fn confirm_start(&self, job: JobId, token: FencingToken) -> Confirmation {
        let engine = self.engine.clone();
        let (node, incarnation) = (self.node, self.incarnation);
        Box::pin(async move {
            let view = engine.linearizable_view().await.ok()?;
            let current = may_start(&view, node, incarnation, job, token);
            Some(Outbound::StartConfirmed { job, token, current })
        })
    }
}

/// Whether a node is to start what a placement has on it, by this state.
#[must_use]
pub fn may_start(view: &State, node: NodeId, incarnation: u32, job: JobId, token: FencingToken) -> bool {
    let row = view.job(job).filter(|row| matches!(row.phase, Phase::Starting | Phase::Running));
    let placement = row.and_then(|row| row.placement.as_ref()).filter(|p| p.token == token);
    placement.is_some_and(|p| p.slots.iter().any(|s| s.node == node && s.incarnation == incarnation))
}

/// What the agent's list says that the state does not know, and what it must stop.
#[must_use]
pub fn square(
    view: &State,
    node: NodeId,
    incarnation: u32,
    workers: &[WorkerReport],
) -> (Vec<WorkerReport>, Vec<StopOrder>) {
    let mut reports = workers.to_vec();
    let mut stops: BTreeMap<JobId, StopOrder> = BTreeMap::new();
    let mut held: BTreeSet<(JobId, FencingToken, u32)> = BTreeSet::new();
    for worker in workers {
        let placement = view.job(worker.job).and_then(|row| row.placement.as_ref());
        let placement = placement.filter(|p| p.token == worker.token && p.live > 0);
        // What this node ran in an earlier incarnation was given up with it, even while peers of
        // the gang go on elsewhere.
        let current =
            placement.is_some_and(|p| p.slots.iter().any(|s| s.node == node && s.incarnation == incarnation));
        if let Some(rank) = worker.rank {
            held.insert((worker.job, worker.token, rank));
        }
        if worker.exit.is_none() && !current {
            let stop = StopOrder { job: worker.job, token: worker.token, grace_ms: 0, reason: None };
            let known = stops.entry(worker.job).or_insert(stop);
            known.token = known.token.max(worker.token);
        }
    }
    // What the state believes to run here and the agent has no trace of.
    for job in view.gangs_on(node) {
        let Some(placement) = view.job(job).and_then(|row| row.placement.clone()) else { continue };
        for (rank, (slot, state)) in placement.slots.iter().zip(&placement.ranks).enumerate() {
            let rank = rank as u32;
            let expected = slot.node == node && *state == RankState::Running;
            if expected && !held.contains(&(job, placement.token, rank)) {
                let exit = Some(ExitStatus::Vanished);
                reports.push(WorkerReport {
                    job,
                    token: placement.token,
                    rank: Some(rank),
                    exit,
                    artifacts: None,
                });
            }
        }
    }
    (reports, stops.into_values().collect())
}

/// Reports, one after another.
struct Reporter<G: Environment> {
    engine: Engine<G>,
    node: NodeId,
    incarnation: u32,
    out: AgentSender,
}

impl<G: Environment> Reporter<G> {
    async fn run(self, mut reports: mpsc::Receiver<AgentReport>) {
        let mut held = VecDeque::new();
        while let Some(next) = self.next(&mut reports, &mut held).await {
            let (taken, answer) = match next {
                AgentReport::Workers(sequence, workers) => {
                    let answer = sequence.map(|sequence| Outbound::ReportAck { sequence });
                    (self.carry_out(workers).await, answer)
                }
                AgentReport::Health(sequence, report) => {
                    (self.take_over(report).await, Some(Outbound::HealthAck { sequence }))
                }
            };
            if let Err(refusal) = taken {
                tracing::info!(node = %self.node, %refusal, "a report was refused; session ends");
                self.out.end.cancel();
                return;
            }
            if let Some(answer) = answer
                && self.out.send(answer).await.is_none()
            {
                return;
            }
        }
    }

    /// The next report whose time has come; none when the session is over. Those of health keep their order, and those of workers
    /// pass them while they wait.
    async fn next(
        &self,
        reports: &mut mpsc::Receiver<AgentReport>,
        held: &mut VecDeque<(u64, Box<HealthReport>)>,
    ) -> Option<AgentReport> {
        let pace = &self.engine.inner.sessions.health;
        loop {
            if self.out.end.is_cancelled() {
                return None;
            }
            let wait = held.front().map(|(_, report)| pace.wait(self.node, report, instant::<G>()));
            if wait == Some(Duration::ZERO) {
                let (sequence, report) = held.pop_front()?;
                return Some(AgentReport::Health(sequence, report));
            }
            let received = tokio::select! {
                biased;
                () = self.out.end.cancelled() => return None,
                received = reports.recv() => received?,
                () = G::pause(wait.unwrap_or_default()), if wait.is_some() => continue,
            };
            match received {
                AgentReport::Health(..) if held.len() >= HEALTH_HELD_MAX => {
                    tracing::warn!(node = %self.node, "reports of health come faster than they may; session ends");
                    self.out.end.cancel();
                    return None;
                }
                AgentReport::Health(sequence, report) => held.push_back((sequence, report)),
                workers @ AgentReport::Workers(..) => return Some(workers),
            }
        }
    }

    async fn take_over(&self, report: Box<HealthReport>) -> Result<(), Refusal> {
        let (node, incarnation) = (self.node, self.incarnation);
        let taken = HealthReport::clone(&report);
        self.engine.execute_for_node(Command::ReportHealth { node, incarnation, report }).await?;
        self.engine.inner.sessions.health.note(node, taken, instant::<G>());
        Ok(())
    }

    /// Logs what became of the artifacts of workers of this node, before their ends: then the workers are still there.
    async fn keep_artifacts(&self, workers: &[WorkerReport]) -> Result<(), Refusal> {
        let view = self.engine.view();
        let is_here = |job: JobId, token: FencingToken, rank: u32| {
            let placement = view.job(job).and_then(|row| row.placement.as_ref()).filter(|p| p.token == token);
            let slot = placement.and_then(|placement| placement.slots.get(rank as usize));
            slot.is_some_and(|slot| slot.node == self.node && slot.incarnation == self.incarnation)
        };
        let said = workers.iter().filter_map(|worker| {
            let (rank, artifacts) = worker.kept()?;
            let (job, token) = (worker.job, worker.token);
            is_here(job, token, rank).then_some(Command::KeepArtifacts { job, token, rank, artifacts })
        });
        let said: Vec<Command> = said.collect();
        let results = said.into_iter().map(|command| self.engine.execute_for_node(command));
        futures::future::try_join_all(results).await?;
        Ok(())
    }

    async fn carry_out(&self, workers: Vec<WorkerReport>) -> Result<(), Refusal> {
        self.keep_artifacts(&workers).await?;
        let mut by_gang: BTreeMap<(JobId, FencingToken), Vec<(u32, RankUpdate)>> = BTreeMap::new();
        for worker in workers {
            let updates = by_gang.entry((worker.job, worker.token)).or_default();
            match (worker.rank, worker.exit) {
                (Some(rank), Some(exit)) => updates.push((rank, RankUpdate::Exited(exit))),
                (Some(rank), None) => updates.push((rank, RankUpdate::Running)),
                (None, exit) => {
                    let view = self.engine.view();
                    updates.extend(none_here(&view, self.node, worker.job, worker.token, exit));
                }
            }
        }
        // One record takes a limited number of ranks; a node can have more of one gang.
        let commands = by_gang.iter().flat_map(|((job, token), updates)| {
            updates.chunks(limits::REPORT_RANKS_MAX).map(move |part| (*job, *token, part.to_vec()))
        });
        // All at once: they share a round.
        let results = commands.map(|(job, token, updates)| {
            let (node, incarnation) = (self.node, self.incarnation);
            self.engine.execute_for_node(Command::Report { node, incarnation, job, token, updates })
        });
        futures::future::try_join_all(results).await?;
        Ok(())
    }
}

/// The agent has nothing of the placement and will start nothing of it: every rank that is not
/// over has ended so.
#[must_use]
pub fn none_here(
    view: &State,
    node: NodeId,
    job: JobId,
    token: FencingToken,
    exit: Option<ExitStatus>,
) -> Vec<(u32, RankUpdate)> {
    let exit = exit.unwrap_or(ExitStatus::NotStarted);
    let placement = view.job(job).and_then(|row| row.placement.clone()).filter(|p| p.token == token);
    let Some(placement) = placement else { return Vec::new() };
    let ranks = placement.slots.iter().zip(&placement.ranks).enumerate();
    ranks
        .filter(|(_, (slot, state))| slot.node == node && !state.is_over())
        .map(|(rank, _)| (rank as u32, RankUpdate::Exited(exit.clone())))
        .collect()
}
