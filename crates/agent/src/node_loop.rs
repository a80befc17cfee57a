//! The agent's one loop: it brings orders, reports of executors and session changes to the [node](crate::rules::node), and
//! carries out the actions that follow.
//!
//! **Invariant:** the actions of one event are carried out in order, and before the next event is taken; a stop is
//! delivered and a token durable before the node decides what follows from it.

use crate::clock::BootTime;
use crate::disk::fencing::Fences;
use crate::disk::lease::Lease;
use crate::executor::Executor;
use crate::launches::Launches;
use crate::limits;
use crate::monitoring::{NodeMonitor, end_cause};
use crate::probe::Prober;
use crate::process::socket::WorkerReport;
use crate::rules::node::{self, Action, Message, Node, Session, Stop, View};
use crate::rules::{
    Adopted, ExecutorEvent, Foreign, OutputRequest, Ticket, WorkerEvent, WorkerKey, WorkerState,
};
use crate::{relays, uploads, wire};
use muster_metrics::StartOutcome;
use muster_types::{ExitStatus, Features, FencingToken, JobId, NodeSpec};
use muster_wire::agent;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id, JoinSet};

/// What others tell the loop.
#[derive(Debug)]
pub(crate) enum Event {
    /// A session was opened.
    Opened(SessionHandle),
    /// It was closed.
    Closed(u64),
    /// From the session of this number.
    Order(u64, node::Order),
    /// The lease moved.
    LeaseRenewed,
    /// A worker reported something.
    Worker(WorkerReport),
    /// The worker list for a registration.
    Holdings(oneshot::Sender<Vec<WorkerState>>),
}

impl From<WorkerReport> for Event {
    fn from(report: WorkerReport) -> Event {
        Event::Worker(report)
    }
}

/// A session, as the loop uses it.
#[derive(Clone, Debug)]
pub(crate) struct SessionHandle {
    pub(crate) number: u64,
    pub(crate) outgoing: mpsc::Sender<agent::SessionRequest>,
    /// The replica it goes through.
    pub(crate) endpoint: String,
    /// How it was reached.
    pub(crate) endpoints: muster_client::Endpoints,
    pub(crate) stop_grace: Duration,
    /// What the leader takes.
    pub(crate) takes: Features,
}

/// The workers that wait for an answer.
#[derive(Debug, Default)]
struct Answers {
    issued: u64,
    waiting: BTreeMap<Ticket, Waiting>,
}

/// A caller that waits for an answer, and whether it committed a checkpoint.
#[derive(Debug)]
struct Waiting {
    answer: oneshot::Sender<Result<(), String>>,
    is_checkpoint: bool,
}

impl Answers {
    fn expect(&mut self, answer: oneshot::Sender<Result<(), String>>, event: WorkerEvent) -> Ticket {
        self.issued += 1;
        let ticket = Ticket(self.issued);
        let is_checkpoint = matches!(event, WorkerEvent::CheckpointCommitted { .. });
        self.waiting.insert(ticket, Waiting { answer, is_checkpoint });
        ticket
    }

    /// Whether a checkpoint is refused by it.
    fn give(&mut self, ticket: Ticket, outcome: Result<(), String>) -> bool {
        let Some(Waiting { answer, is_checkpoint }) = self.waiting.remove(&ticket) else { return false };
        let is_refused = outcome.is_err();
        // The worker may have gone; then nobody is told.
        let _ = answer.send(outcome);
        is_checkpoint && is_refused
    }

    /// Forgets those that nobody waits for any more, once there are many.
    fn abandoned(&mut self) -> BTreeSet<Ticket> {
        if self.waiting.len() < limits::NOTES_WAITING_MAX {
            return BTreeSet::new();
        }
        let gone = self.waiting.extract_if(.., |_, waiting| waiting.answer.is_closed());
        gone.map(|(ticket, _)| ticket).collect()
    }
}

/// The loop, with everything it acts on.
pub(crate) struct NodeLoop<E> {
    node: Node,
    executor: Arc<E>,
    fences: Arc<Mutex<Fences>>,
    lease: Arc<Mutex<Lease>>,
    started: Instant,
    session: Option<SessionHandle>,
    foreign: Option<watch::Receiver<Foreign>>,
    answers: Answers,
    uploads: JoinSet<()>,
    /// The number of the upload that each task sends.
    upload_numbers: BTreeMap<Id, u64>,
    prober: Prober,
    launches: Launches,
    monitor: NodeMonitor,
}

/// The next change of what others hold; never where nobody else can.
async fn changed(foreign: &mut Option<watch::Receiver<Foreign>>) -> Foreign {
    if let Some(receiver) = foreign {
        if receiver.changed().await.is_ok() {
            return *receiver.borrow_and_update();
        }
        // The sender is gone; what it told last stands.
        *foreign = None;
    }
    std::future::pending().await
}

/// For ever where there is no such moment.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

fn locked<T>(mutex: &Mutex<T>) -> parking_lot::MutexGuard<'_, T> {
    // A panic while holding one of these locks leaves whole values: they are replaced, not edited.
    mutex.lock()
}

impl<E: Executor> NodeLoop<E> {
    pub(crate) fn new(
        executor: Arc<E>,
        fences: Fences,
        lease: Arc<Mutex<Lease>>,
        spec: NodeSpec,
        adopted: Vec<Adopted>,
        monitor: NodeMonitor,
    ) -> NodeLoop<E> {
        let foreign = executor.foreign();
        let held = foreign.as_ref().map(|receiver| *receiver.borrow());
        monitor.lease_until(locked(&lease).standing(BootTime::now()).map(|slot| slot.deadline));
        NodeLoop {
            node: Node::new(spec, executor.is_on_this_host(), held, adopted),
            executor,
            fences: Arc::new(Mutex::new(fences)),
            lease,
            started: Instant::now(),
            session: None,
            foreign,
            answers: Answers::default(),
            uploads: JoinSet::new(),
            upload_numbers: BTreeMap::new(),
            prober: Prober::new(None),
            launches: Launches::default(),
            monitor,
        }
    }

    /// Where it listens for probes. Without, it takes no part in any: an agent that runs workers on other
    /// machines would measure its own network.
    pub(crate) fn probing_at(mut self, listen_at: SocketAddr) -> NodeLoop<E> {
        self.prober = Prober::new(Some(listen_at));
        self
    }

    /// Turns until all senders of events are gone.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        mut reports: mpsc::Receiver<ExecutorEvent>,
    ) {
        let mut ticks = tokio::time::interval(limits::OVERDUE_LOOK);
        loop {
            self.show();
            let due = self.node.events_due().map(|due| self.started + due);
            let event = tokio::select! {
                () = sleep_until(due) => node::Event::EventsDue,
                _ = ticks.tick() => node::Event::Tick,
                event = events.recv() => match event.map(|event| self.translate(event)) {
                    Some(Some(event)) => event,
                    Some(None) => continue,
                    None => return,
                },
                Some(event) = reports.recv() => node::Event::Executor(event),
                Some(ended) = self.uploads.join_next_with_id() => {
                    let task = ended.map_or_else(|error| error.id(), |(task, ())| task);
                    match self.upload_numbers.remove(&task) {
                        Some(number) => node::Event::UploadEnded(number),
                        None => continue,
                    }
                }
                foreign = changed(&mut self.foreign) => node::Event::Foreign(foreign),
            };
            self.measure(&event);
            self.handle(event).await;
        }
    }

    /// What monitoring systems see of this node from now on.
    fn show(&self) {
        let foreign = self.foreign.as_ref().map_or(0, |receiver| receiver.borrow().devices);
        self.monitor.holds(self.node.worker_counts(), self.uploads.len(), foreign);
    }

    /// Counts what an event says, before the node takes it.
    fn measure(&mut self, event: &node::Event) {
        let metrics = &self.monitor.metrics;
        match event {
            node::Event::Order(_, node::Order::Start(placement)) => {
                self.launches.ordered(placement, Instant::now());
            }
            node::Event::Order(_, node::Order::Stop { job, token, .. }) => {
                self.launches.stopped(*job, *token)
            }
            node::Event::Executor(ExecutorEvent::Running(key)) => {
                if let Some(ordered) = self.launches.running(*key) {
                    metrics.launched(ordered.map(|at| at.elapsed()));
                }
            }
            node::Event::Executor(ExecutorEvent::Ended(key, status)) if self.node.is_live(*key) => {
                if self.launches.ended(*key) {
                    let is_stopped = matches!(status, ExitStatus::NotStarted);
                    let outcome = if is_stopped { StartOutcome::Stopped } else { StartOutcome::Failed };
                    metrics.not_launched(outcome);
                }
                metrics.ended(end_cause(status));
            }
            _ => {}
        }
    }

    /// An event as the node takes it; none where the loop has dealt with it.
    fn translate(&mut self, event: Event) -> Option<node::Event> {
        Some(match event {
            Event::Opened(session) => {
                let SessionHandle { number, stop_grace, takes, .. } = session;
                self.session = Some(session);
                node::Event::Opened(Session { number, stop_grace, takes })
            }
            Event::Closed(number) => {
                self.session.take_if(|session| session.number == number);
                node::Event::Closed(number)
            }
            Event::Order(number, order) => node::Event::Order(number, order),
            Event::LeaseRenewed => node::Event::LeaseRenewed,
            Event::Worker(WorkerReport { key, event, answer }) => {
                let ticket = self.answers.expect(answer, event);
                node::Event::Worker { key, event, ticket }
            }
            Event::Holdings(answer) => {
                // A session that has given up waiting asks again.
                let _ = answer.send(self.node.states());
                return None;
            }
        })
    }

    async fn handle(&mut self, event: node::Event) {
        let abandoned = self.answers.abandoned();
        if !abandoned.is_empty() {
            // It leads to no action.
            self.decide(|node, view| node.handle(node::Event::Abandoned(abandoned), view));
        }
        let actions = self.decide(|node, view| node.handle(event, view));
        self.perform(actions).await;
        let actions = self.decide(Node::report);
        self.perform(actions).await;
    }

    /// Has the node decide something by what is known now.
    fn decide(&mut self, decide: impl FnOnce(&mut Node, &View<'_>) -> Vec<Action>) -> Vec<Action> {
        let now = BootTime::now();
        let lease = locked(&self.lease).standing(now).map(|slot| slot.term());
        let fences = locked(&self.fences);
        let view = View { now, uptime: self.started.elapsed(), lease, fences: fences.table() };
        decide(&mut self.node, &view)
    }

    async fn perform(&mut self, actions: Vec<Action>) {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            let following = self.perform_one(action).await;
            // What follows from an action goes before the next one.
            following.into_iter().rev().for_each(|action| actions.push_front(action));
        }
    }

    async fn perform_one(&mut self, action: Action) -> Vec<Action> {
        let executor = Arc::clone(&self.executor);
        match action {
            Action::Send(message) => return self.send(message),
            Action::SendIfTaken(message) => {
                if let Some(session) = &self.session {
                    let _ =
                        session.outgoing.try_send(wire::request(message, &self.executor.kept_artifacts()));
                }
            }
            Action::Answer((ticket, outcome)) => {
                if self.answers.give(ticket, outcome) {
                    self.monitor.metrics.checkpoint_note_refused();
                }
            }
            Action::Fence { job, token, ranks, then } => {
                let outcome = self.raise_fence(job, token, ranks).await;
                return self.node.fenced(then, outcome);
            }
            Action::Stop(stops) => self.stop(stops).await,
            Action::DecideStart { job, token } => {
                return self.decide(|node, view| node.decide_start(job, token, view));
            }
            // In a task: a slow launch must not delay a stop.
            Action::Start { placement, epoch } => {
                self.launches.begun(&placement);
                tokio::spawn(async move { executor.start(placement, epoch).await });
            }
            Action::Refuse { key, reason } => {
                self.launches.refused(key);
                tokio::spawn(async move { executor.refuse(key, reason).await });
            }
            Action::Acknowledge(key) => {
                tokio::spawn(async move { executor.acknowledge(key).await });
            }
            Action::Upload { number, read_id, request, refused } => {
                return self.upload(number, read_id, request, refused);
            }
            Action::Exec { number, relay_id, key, refused } => {
                return self.exec(number, relay_id, key, refused);
            }
            Action::ListenForProbe(probe) => {
                if let Some(session) = &self.session {
                    self.prober.listen(probe, session.outgoing.clone());
                }
            }
            Action::RunProbe(probe, plan) => self.prober.begin(probe, plan),
        }
        Vec::new()
    }

    fn send(&mut self, message: Message) -> Vec<Action> {
        let Some(session) = &self.session else { return Vec::new() };
        match session.outgoing.try_send(wire::request(message, &self.executor.kept_artifacts())) {
            Ok(()) => return Vec::new(),
            Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                // The network does not take the messages: a new session starts from what is outstanding.
                tracing::warn!(node = %self.node.spec().name, "the session takes no more messages; closing it");
            }
        }
        let number = session.number;
        self.session = None;
        self.decide(|node, view| node.handle(node::Event::Closed(number), view))
    }

    /// Makes the token durable, or returns why it is not.
    async fn raise_fence(&self, job: JobId, token: FencingToken, ranks: BTreeSet<u32>) -> Result<(), String> {
        let fences = Arc::clone(&self.fences);
        let raised = tokio::task::spawn_blocking(move || locked(&fences).raise(job, token, ranks)).await;
        match raised {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%job, %token, node = %self.node.spec().name, %error, source, "the fencing token is not durable");
                Err(error.to_string())
            }
            Err(_) => Err("the agent is shutting down".to_owned()),
        }
    }

    /// Delivers stops, all at the same time.
    async fn stop(&self, stops: Vec<Stop>) {
        let mut deliveries = JoinSet::new();
        for Stop { key, request, is_launching } in stops {
            let executor = Arc::clone(&self.executor);
            let node = self.node.spec().name.clone();
            deliveries.spawn(async move {
                if let Err(error) = executor.stop(key, request).await
                    && !is_launching
                {
                    let source = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::error!(
                        job = %key.job,
                        %node,
                        worker = %key,
                        %error,
                        source,
                        "a stop could not be delivered"
                    );
                }
            });
        }
        while deliveries.join_next().await.is_some() {}
    }

    fn upload(
        &mut self,
        number: u64,
        read_id: u64,
        request: OutputRequest,
        refused: Option<String>,
    ) -> Vec<Action> {
        let Some(session) = &self.session else {
            return self.decide(|node, view| node.handle(node::Event::UploadEnded(number), view));
        };
        let upload = uploads::Upload {
            endpoint: session.endpoint.clone(),
            endpoints: session.endpoints.clone(),
            node_name: self.node.spec().name.to_string(),
            read_id,
            request,
            refused,
        };
        let task = self.uploads.spawn(uploads::run(upload, Arc::clone(&self.executor)));
        self.upload_numbers.insert(task.id(), number);
        Vec::new()
    }

    fn exec(&mut self, number: u64, relay_id: u64, key: WorkerKey, refused: Option<String>) -> Vec<Action> {
        let Some(session) = &self.session else {
            return self.decide(|node, view| node.handle(node::Event::UploadEnded(number), view));
        };
        let relay = relays::Relay {
            endpoint: session.endpoint.clone(),
            endpoints: session.endpoints.clone(),
            node_name: self.node.spec().name.to_string(),
            relay_id,
            key,
            refused,
        };
        let task = self.uploads.spawn(relays::run(relay, Arc::clone(&self.executor)));
        self.upload_numbers.insert(task.id(), number);
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_have_gone_are_forgotten_once_many_wait() {
        let mut answers = Answers::default();
        let mut waiting = Vec::new();
        let mut tickets = Vec::new();
        for _ in 0..limits::NOTES_WAITING_MAX {
            let (answer, answered) = oneshot::channel();
            tickets.push(answers.expect(answer, WorkerEvent::CheckpointCommitted { step: 1 }));
            waiting.push(answered);
        }
        assert_eq!(answers.abandoned(), BTreeSet::new(), "all of them wait");
        waiting.pop();
        assert_eq!(answers.abandoned(), tickets.pop().into_iter().collect());
        assert_eq!(answers.waiting.len(), limits::NOTES_WAITING_MAX - 1);
        assert!(answers.give(tickets[0], Err("no".to_owned())), "a checkpoint is refused");
        assert!(!answers.give(tickets[1], Ok(())) && !answers.give(tickets[1], Err("no".to_owned())));
        assert_eq!(waiting[0].try_recv(), Ok(Err("no".to_owned())));
    }
}
