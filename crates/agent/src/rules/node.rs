//! The decisions of an agent's one loop, as a state machine: events in, actions out.
//!
//! A start order is first confirmed against the leader, then compared with what runs here, then its token is persisted,
//! then it is launched. Whatever keeps it waiting (an older attempt, a dying holder of its devices, a lease about to run
//! out) sends it back to the confirmation, so that nothing starts on an answer from before the wait.
//!
//! The loop ([`node_loop`](crate::node_loop)) carries out the actions in order, and takes no other event meanwhile. Where
//! a decision depends on an outcome, the action names it: [`Node::fenced`] goes on after a token was persisted, and
//! [`Node::decide_start`] after stops were delivered.
//!
//! **Invariant:** no launch without a token above everything persisted for its job, confirmed on the
//! current session after the last wait, with its devices free and more lease left than a stop takes.
//! Orders of an earlier session are never acted on.

mod connections;
use super::boot_time::BootTime;
use super::fences::{FenceTable, TokenOrder};
use super::placement::Placement;
use super::probe_plan::Plan;
use super::starts::{Admission, Fit, Held, Wait, admit, epoch_for_start, room_for, withdraw};
use super::term::LeaseTerm;
use super::uploads::Uploads;
use super::worker::{
    Adopted, DEVICE_MILLI, DeviceLoad, ExecutorEvent, Foreign, OutputRequest, StopRequest, WorkerCounts,
    WorkerEvent, WorkerKey, WorkerState, detail,
};
use super::worker_events::{Answer, SequencedEvent, Ticket, WorkerEvents};
use crate::limits;
use muster_types::limits::REPORT_RANKS_MAX;
use muster_types::{
    DeviceSet, ExitStatus, Feature, Features, FencingToken, ForeignLoad, JobId, NodeSpec, StopReason,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The rank of a report that no worker of a placement is here and none will start.
pub const WHOLE_PLACEMENT: u32 = u32::MAX;

/// The answer to a worker whose cluster is older than its agent.
const EVENTS_NOT_TAKEN: &str = "the cluster's leader is of a release that takes no checkpoints yet";

/// An order, checked.
#[derive(Debug)]
pub enum Order {
    /// Start workers.
    Start(Box<Placement>),
    /// A start order that breaks a rule: its workers cannot be launched.
    Malformed {
        /// The job.
        job: JobId,
        /// The placement.
        token: FencingToken,
        /// Its workers here.
        ranks: BTreeSet<u32>,
        /// Which rule.
        reason: String,
    },
    /// Stop what there is of a job up to a token.
    Stop {
        /// The job.
        job: JobId,
        /// Up to this placement.
        token: FencingToken,
        /// How.
        request: StopRequest,
    },
    /// The answer to [`Message::ConfirmStart`].
    StartConfirmed {
        /// The job.
        job: JobId,
        /// The placement.
        token: FencingToken,
        /// Whether it may start.
        current: bool,
    },
    /// A report is in the log.
    ReportAck(u64),
    /// What became of a worker's event; the reason where it can never be taken.
    EventAck(u64, Option<String>),
    /// Send output.
    ReadLogs {
        /// For which request.
        read_id: u64,
        /// Which output.
        request: OutputRequest,
    },
    /// Run a command next to this worker, over the relay of this number.
    Exec(u64, WorkerKey),
    /// Listen for a probe.
    ProbeListen(u64),
    /// Carry out a probe.
    ProbeRun(u64, Plan),
    /// What came of the check of a placement's network.
    Verdict {
        /// The job.
        job: JobId,
        /// The placement.
        token: FencingToken,
        /// The fault of this node, where there is one.
        fault: Option<String>,
    },
}

/// What the decisions depend on, in addition to the node's own state, at the time of an event.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// By the clock of leases.
    pub now: BootTime,
    /// Since the agent's start, without the time that the host was suspended.
    pub uptime: Duration,
    /// The lease, while it stands.
    pub lease: Option<LeaseTerm>,
    /// The persisted tokens.
    pub fences: &'a FenceTable,
}

/// Everything the node reacts to.
#[derive(Debug)]
pub enum Event {
    /// A session was opened.
    Opened(Session),
    /// It was closed, or takes no more messages.
    Closed(u64),
    /// From the session of this number.
    Order(u64, Order),
    /// The lease moved.
    LeaseRenewed,
    /// A worker reported something.
    Worker {
        /// Which worker.
        key: WorkerKey,
        /// What it reported.
        event: WorkerEvent,
        /// Stands for the worker until it is answered.
        ticket: Ticket,
    },
    /// Nobody waits for these answers any more.
    Abandoned(BTreeSet<Ticket>),
    /// Events of workers may be due.
    EventsDue,
    /// What runs workers reported something.
    Executor(ExecutorEvent),
    /// Others hold this much of the node.
    Foreign(Foreign),
    /// An upload has ended.
    UploadEnded(u64),
    /// Time has passed.
    Tick,
}

/// The terms of a session.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Rises from one to the next.
    pub number: u64,
    /// What a stop takes of the lease.
    pub stop_grace: Duration,
    /// What the leader takes: a session that brings something else is ended, and its lease with it.
    pub takes: Features,
}

/// A message to the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Does this placement still hold?
    ConfirmStart {
        /// The job.
        job: JobId,
        /// The placement.
        token: FencingToken,
    },
    /// What became of workers.
    Report {
        /// Repeated in the acknowledgement.
        sequence: u64,
        /// The workers.
        workers: Vec<WorkerState>,
    },
    /// What a worker reported.
    WorkerEvent(SequencedEvent),
    /// Only the check of its gang's network is missing.
    PreflightWaiting {
        /// The job.
        job: JobId,
        /// The placement.
        token: FencingToken,
    },
    /// What others hold of the node.
    ForeignLoad(ForeignLoad),
}

/// How a worker is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Which worker.
    pub key: WorkerKey,
    /// How.
    pub request: StopRequest,
    /// It is being launched: where the stop cannot be delivered, it is delivered once the worker runs.
    pub is_launching: bool,
}

/// What follows once a token is durable, or cannot be made so.
#[derive(Debug)]
pub enum AfterFence {
    /// Its workers start.
    Launch {
        /// What starts.
        placement: Arc<Placement>,
        /// The epoch of the lease that they belong to.
        epoch: u64,
    },
    /// Its workers are refused.
    Refuse {
        /// What is refused.
        placement: Arc<Placement>,
        /// Why.
        reason: String,
    },
    /// This node is at fault.
    Fault {
        /// What does not start.
        placement: Arc<Placement>,
        /// The fault.
        fault: String,
    },
    /// The stop is reported.
    Stopped {
        /// The job.
        job: JobId,
        /// Up to this placement.
        token: FencingToken,
        /// Its workers on this node.
        ranks: BTreeSet<u32>,
        /// Those that waited to be started.
        never: BTreeSet<u32>,
        /// Those that are held here.
        here: BTreeSet<u32>,
    },
}

/// What the loop is to do.
#[derive(Debug)]
pub enum Action {
    /// A session that does not take the message is closed: a new one starts from what is outstanding.
    Send(Message),
    /// The next message of its kind will do where this one is not taken.
    SendIfTaken(Message),
    /// The answer to a worker.
    Answer(Answer),
    /// Persist the token, and call [`Node::fenced`].
    Fence {
        /// The job.
        job: JobId,
        /// The token.
        token: FencingToken,
        /// The workers of that placement on this node.
        ranks: BTreeSet<u32>,
        /// What follows.
        then: AfterFence,
    },
    /// Stop all of these at the same time, and wait until the stops are delivered.
    Stop(Vec<Stop>),
    /// Call [`Node::decide_start`].
    DecideStart {
        /// The job.
        job: JobId,
        /// The placement.
        token: FencingToken,
    },
    /// Launch the workers, without waiting for them.
    Start {
        /// What is launched.
        placement: Arc<Placement>,
        /// The epoch of the lease.
        epoch: u64,
    },
    /// Record that a worker will not be launched.
    Refuse {
        /// Which worker.
        key: WorkerKey,
        /// Why.
        reason: String,
    },
    /// The leader knows the end of this worker.
    Acknowledge(WorkerKey),
    /// Send output, or the reason why it is not sent.
    Upload {
        /// Which upload.
        number: u64,
        /// For which request.
        read_id: u64,
        /// Which output.
        request: OutputRequest,
        /// Why none is sent.
        refused: Option<String>,
    },
    /// Run a command next to a worker, or say why it is not run.
    Exec {
        /// Its number among the uploads.
        number: u64,
        /// For which relay.
        relay_id: u64,
        /// Which worker.
        key: WorkerKey,
        /// Why none is run.
        refused: Option<String>,
    },
    /// Listen for a probe.
    ListenForProbe(u64),
    /// Carry out a probe.
    RunProbe(u64, Plan),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// From the decision to the executor's report.
    Launching,
    Running,
    Ended(ExitStatus),
}

#[derive(Debug)]
struct Worker {
    devices: DeviceSet,
    /// Thousandths of each.
    device_milli: u16,
    epoch: u64,
    phase: Phase,
    /// How it was asked to stop, with the shortest grace.
    stop: Option<StopRequest>,
    /// When its grace is over.
    stop_by: Option<Duration>,
    /// Rises with everything there is to report; equal to `acked` when the leader knows all of it.
    version: u32,
    acked: u32,
}

impl Worker {
    fn launching(devices: DeviceSet, device_milli: u16, epoch: u64) -> Worker {
        let phase = Phase::Launching;
        Worker { devices, device_milli, epoch, phase, stop: None, stop_by: None, version: 0, acked: 0 }
    }

    fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    fn state(&self, key: WorkerKey) -> WorkerState {
        match &self.phase {
            Phase::Ended(status) => WorkerState { key, exit: Some(status.clone()) },
            Phase::Launching | Phase::Running => WorkerState { key, exit: None },
        }
    }
}

#[derive(Debug)]
struct Pending {
    placement: Arc<Placement>,
    wait: Wait,
    /// The gang's network was checked.
    checked: bool,
    /// Since when it is here.
    since: Duration,
}

/// One report on its way.
#[derive(Debug)]
struct InFlight {
    sequence: u64,
    versions: Vec<(WorkerKey, u32)>,
}

/// The node's state.
#[derive(Debug)]
pub struct Node {
    spec: NodeSpec,
    /// Its workers run on the host of the agent.
    is_on_this_host: bool,
    session: Option<Session>,
    workers: BTreeMap<WorkerKey, Worker>,
    pending: BTreeMap<(JobId, FencingToken), Pending>,
    report_sequence: u64,
    in_flight: Option<InFlight>,
    /// States of workers that are not here, reported once on the session that asked.
    extras: VecDeque<WorkerState>,
    uploads: Uploads,
    /// What others hold of the node; none where nobody else can.
    foreign: Option<Foreign>,
    /// What the leader was told of it in this session, and when.
    foreign_reported: Option<(ForeignLoad, Duration)>,
    events: WorkerEvents,
    /// What the present event leads to.
    actions: Vec<Action>,
}

impl Node {
    /// Without a session; `foreign` is what others hold of it, none where nobody else can, and `adopted` are the workers
    /// that an earlier agent left.
    #[must_use]
    pub fn new(
        spec: NodeSpec,
        is_on_this_host: bool,
        foreign: Option<Foreign>,
        adopted: Vec<Adopted>,
    ) -> Node {
        let workers = adopted.into_iter().map(|found| {
            let phase = found.exit.map_or(Phase::Running, Phase::Ended);
            let launched = Worker::launching(found.devices, found.device_milli, found.epoch);
            (found.key, Worker { phase, version: 1, ..launched })
        });
        Node {
            spec,
            is_on_this_host,
            session: None,
            workers: workers.collect(),
            pending: BTreeMap::new(),
            report_sequence: 0,
            in_flight: None,
            extras: VecDeque::new(),
            uploads: Uploads::default(),
            foreign,
            foreign_reported: None,
            events: WorkerEvents::default(),
            actions: Vec::new(),
        }
    }

    /// What the leader is told of it.
    #[must_use]
    pub fn spec(&self) -> &NodeSpec {
        &self.spec
    }

    /// All workers, for a registration.
    #[must_use]
    pub fn states(&self) -> Vec<WorkerState> {
        self.workers.iter().map(|(key, worker)| worker.state(*key)).collect()
    }

    /// Its workers by state.
    #[must_use]
    pub fn worker_counts(&self) -> WorkerCounts {
        let of = |w: &Worker| WorkerCounts::of(w.has_ended(), w.stop.is_some(), w.phase == Phase::Running);
        self.workers.values().map(of).fold(WorkerCounts::default(), WorkerCounts::plus)
    }

    /// Whether a worker is here and has not ended.
    #[must_use]
    pub fn is_live(&self, key: WorkerKey) -> bool {
        self.workers.get(&key).is_some_and(|worker| !worker.has_ended())
    }

    /// When events of workers are due next.
    #[must_use]
    pub fn events_due(&self) -> Option<Duration> {
        self.events.next_due()
    }

    /// Takes an event.
    pub fn handle(&mut self, event: Event, view: &View<'_>) -> Vec<Action> {
        match event {
            Event::Opened(session) => self.on_opened(session),
            Event::Closed(number) => self.session = self.session.filter(|s| s.number != number),
            Event::Order(number, order) => {
                if self.session.is_some_and(|s| s.number == number) {
                    self.on_order(order, view);
                } else {
                    tracing::debug!(node = %self.spec.name, ?order, "an order of an earlier session is dropped: it is sent again");
                }
            }
            Event::LeaseRenewed => self.reconfirm(Wait::Lease),
            Event::Worker { key, event, ticket } => self.on_worker_event(key, event, ticket, view),
            Event::Abandoned(tickets) => self.events.abandon(&tickets),
            Event::EventsDue => self.send_events(view),
            Event::Executor(event) => self.on_executor(event, view),
            Event::Foreign(foreign) => self.foreign = Some(foreign),
            Event::UploadEnded(number) => self.uploads.end(number),
            Event::Tick => self.give_up_overdue(view),
        }
        self.take_actions()
    }

    /// The reports that are due: to be called once the actions of an event are carried out.
    pub fn report(&mut self, view: &View<'_>) -> Vec<Action> {
        self.send_report();
        self.send_foreign(view);
        self.take_actions()
    }

    fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    fn send(&mut self, message: Message) {
        self.actions.push(Action::Send(message));
    }

    fn answer(&mut self, answers: impl IntoIterator<Item = Answer>) {
        self.actions.extend(answers.into_iter().map(Action::Answer));
    }

    fn takes(&self, feature: Feature) -> bool {
        self.session.is_some_and(|session| session.takes.has(feature))
    }

    fn on_opened(&mut self, session: Session) {
        // Outstanding orders, their confirmations and acknowledgements belong to the previous session.
        self.pending.clear();
        self.extras.clear();
        self.in_flight = None;
        self.foreign_reported = None;
        self.session = Some(session);
        if !session.takes.has(Feature::Readiness) {
            let known = self.events.drop_ready();
            self.answer(known);
        }
        if !session.takes.has(Feature::Notes) {
            let refused = self.events.refuse_all(EVENTS_NOT_TAKEN);
            self.answer(refused);
        }
        for event in self.events.unanswered() {
            self.send(Message::WorkerEvent(event));
        }
    }

    fn on_worker_event(&mut self, key: WorkerKey, event: WorkerEvent, ticket: Ticket, view: &View<'_>) {
        let refused = match self.workers.get(&key) {
            None => Some(format!("{key} does not run on this node")),
            Some(worker) if worker.has_ended() => Some(format!("{key} has ended")),
            Some(_) => None,
        };
        if let Some(reason) = refused {
            return self.answer([(ticket, Err(reason))]);
        }
        if self.session.is_some() && !self.takes(Feature::Notes) {
            let outcome = match event {
                // Nobody waits for a step, and a leader that does not know of readiness does not ask for it.
                WorkerEvent::Step { .. } | WorkerEvent::Ready => Ok(()),
                WorkerEvent::CheckpointCommitted { .. } => Err(EVENTS_NOT_TAKEN.to_owned()),
            };
            return self.answer([(ticket, outcome)]);
        }
        match event {
            WorkerEvent::Step { .. } => {
                self.answer([(ticket, Ok(()))]);
                if self.session.is_some() && self.events.passes_step(key, view.uptime) {
                    let message = Message::WorkerEvent(SequencedEvent { key, sequence: 0, event });
                    self.actions.push(Action::SendIfTaken(message));
                }
            }
            WorkerEvent::Ready if self.session.is_some() && !self.takes(Feature::Readiness) => {
                self.answer([(ticket, Ok(()))]);
            }
            WorkerEvent::Ready => match self.events.ready(key, ticket) {
                Ok(Some(event)) => self.send(Message::WorkerEvent(event)),
                Ok(None) => {}
                Err(refused) => self.answer([refused]),
            },
            WorkerEvent::CheckpointCommitted { step } => {
                let refused = self.events.save(key, step, ticket);
                self.answer(refused);
                self.send_events(view);
            }
        }
    }

    /// Sends those that are due.
    fn send_events(&mut self, view: &View<'_>) {
        for event in self.events.due(view.uptime) {
            self.send(Message::WorkerEvent(event));
        }
    }

    fn on_order(&mut self, order: Order, view: &View<'_>) {
        match order {
            Order::Start(placement) => self.on_start(*placement, view),
            Order::Malformed { job, token, ranks, reason } => {
                tracing::error!(%job, %token, node = %self.spec.name, reason, "a start order is refused");
                for rank in ranks {
                    let exit = Some(ExitStatus::LaunchFailed(detail(&reason)));
                    let key = WorkerKey { job, token, rank };
                    if !self.workers.contains_key(&key) {
                        self.extras.push_back(WorkerState { key, exit });
                    }
                }
            }
            Order::StartConfirmed { job, token, current } => self.on_confirmed(job, token, current, view),
            Order::Stop { job, token, request } => self.on_stop(job, token, request, view),
            Order::ReportAck(sequence) => self.on_report_ack(sequence),
            Order::EventAck(sequence, refused) => {
                let answers = self.events.answered(sequence, refused.as_deref());
                self.answer(answers);
                self.send_events(view);
            }
            Order::ReadLogs { read_id, request } => self.on_read_logs(read_id, request),
            Order::Exec(relay_id, key) => self.on_exec(relay_id, key),
            Order::ProbeListen(probe) => self.actions.push(Action::ListenForProbe(probe)),
            Order::ProbeRun(probe, plan) => self.actions.push(Action::RunProbe(probe, plan)),
            Order::Verdict { job, token, fault } => self.on_verdict(job, token, fault),
        }
    }

    fn on_start(&mut self, placement: Placement, view: &View<'_>) {
        let (job, token) = (placement.job, placement.token);
        let standing = view.fences.standing(job, token);
        match admit(&mut self.pending, limits::PENDING_PLACEMENTS_MAX, standing, job, token) {
            Admission::Known(standing) => {
                if standing == TokenOrder::Older {
                    // Its leader is behind, or it is below the floor and needs a new token.
                    tracing::warn!(%job, %token, node = %self.spec.name, "a start order with a token older than one seen is refused");
                }
                return self.report_again(&placement);
            }
            Admission::Waiting => return,
            Admission::Outdated => {
                tracing::warn!(%job, %token, node = %self.spec.name, "a start order older than a waiting one is dropped");
                return;
            }
            Admission::Full => {
                tracing::error!(%job, %token, node = %self.spec.name, "too many placements wait; this one is dropped until it is sent again");
                return;
            }
            Admission::New => {}
        }
        let (wait, since) = (Wait::Confirmation, view.uptime);
        let pending = Pending { placement: Arc::new(placement), wait, checked: false, since };
        self.pending.insert((job, token), pending);
        self.send(Message::ConfirmStart { job, token });
    }

    /// The order is known: reports what became of each of its workers. One that is not here was persisted
    /// and never launched, or is acknowledged; either way it will not start.
    fn report_again(&mut self, placement: &Placement) {
        for rank in placement.ranks() {
            let key = placement.key(rank);
            match self.workers.get_mut(&key) {
                Some(worker) => worker.version += 1,
                None => self.extras.push_back(WorkerState { key, exit: Some(ExitStatus::Vanished) }),
            }
        }
    }

    fn on_confirmed(&mut self, job: JobId, token: FencingToken, current: bool, view: &View<'_>) {
        let Some(pending) = self.pending.get(&(job, token)) else { return };
        if pending.wait != Wait::Confirmation {
            return;
        }
        let placement = Arc::clone(&pending.placement);
        if !current {
            self.pending.remove(&(job, token));
            tracing::info!(%job, %token, node = %self.spec.name, "the placement is not current any more; not started");
            return;
        }
        self.stop_older(&placement, view);
        // After the stops, which take time: the lease must stand then.
        self.actions.push(Action::DecideStart { job, token });
    }

    /// Starts a placement that is confirmed, or says what it waits for.
    pub fn decide_start(&mut self, job: JobId, token: FencingToken, view: &View<'_>) -> Vec<Action> {
        let Some(pending) = self.pending.get(&(job, token)) else { return Vec::new() };
        let (placement, checked) = (Arc::clone(&pending.placement), pending.checked);
        match self.fit(&placement, view) {
            Fit::Wait(wait) => {
                tracing::info!(%job, %token, node = %self.spec.name, ?wait, "the start waits");
                self.set_wait(job, token, wait);
            }
            Fit::Refuse(reason) => {
                self.pending.remove(&(job, token));
                tracing::warn!(%job, %token, node = %self.spec.name, reason, "the start is refused");
                self.refuse(placement, reason);
            }
            Fit::Go { .. } if !checked && self.can_check(&placement) => {
                self.set_wait(job, token, Wait::Preflight);
                // Nothing but the check of the gang's network is missing here.
                self.send(Message::PreflightWaiting { job, token });
            }
            Fit::Go { epoch } => {
                self.pending.remove(&(job, token));
                let ranks = placement.ranks().collect();
                let then = AfterFence::Launch { placement, epoch };
                self.actions.push(Action::Fence { job, token, ranks, then });
            }
        }
        self.take_actions()
    }

    fn set_wait(&mut self, job: JobId, token: FencingToken, wait: Wait) {
        if let Some(pending) = self.pending.get_mut(&(job, token)) {
            pending.wait = wait;
        }
    }

    /// Whether the gang's network is to be checked first. A leader that knows nothing of it gives no verdict.
    fn can_check(&self, placement: &Placement) -> bool {
        placement.preflight && self.is_on_this_host && self.takes(Feature::Preflight)
    }

    /// Starts what waited for the check, by a new confirmation; or reports it as this node's fault.
    fn on_verdict(&mut self, job: JobId, token: FencingToken, fault: Option<String>) {
        let Some(pending) = self.pending.get_mut(&(job, token)) else { return };
        if pending.wait != Wait::Preflight {
            return;
        }
        let Some(fault) = fault else {
            (pending.checked, pending.wait) = (true, Wait::Confirmation);
            return self.send(Message::ConfirmStart { job, token });
        };
        self.fail_pending(job, token, fault);
    }

    /// Reports a start that waits here as this node's fault.
    fn fail_pending(&mut self, job: JobId, token: FencingToken, fault: String) {
        let Some(Pending { placement, .. }) = self.pending.remove(&(job, token)) else { return };
        tracing::warn!(%job, %token, node = %self.spec.name, fault, "not started: this node is at fault");
        let ranks = placement.ranks().collect();
        self.actions.push(Action::Fence { job, token, ranks, then: AfterFence::Fault { placement, fault } });
    }

    /// A newer placement of a job is the end of its older ones, whether or not the order to stop them
    /// has come yet.
    fn stop_older(&mut self, placement: &Placement, view: &View<'_>) {
        let is_older = |key: &WorkerKey| key.job == placement.job && key.token < placement.token;
        let running = |worker: &Worker| !worker.has_ended() && worker.stop.is_none();
        let older = self.workers.iter().filter(|(key, worker)| is_older(key) && running(worker));
        let older: Vec<WorkerKey> = older.map(|(key, _)| *key).collect();
        self.stop_workers(&older, placement.stop_grace.into(), view);
    }

    fn fit(&self, placement: &Placement, view: &View<'_>) -> Fit {
        let own = DeviceSet::first(self.spec.device_count());
        let kind = self.spec.accelerators.as_ref().map_or("", |a| a.kind.as_str());
        let (mut wanted, mut load) = (DeviceSet::EMPTY, DeviceLoad::NONE);
        for worker in &placement.workers {
            wanted = wanted.union(worker.devices);
            load.add(worker.devices, worker.device_milli);
            let typed = !worker.accelerator_type.is_empty() && !worker.devices.is_empty();
            if typed && worker.accelerator_type != kind {
                return Fit::Refuse(format!(
                    "this node has no accelerators of type {}",
                    worker.accelerator_type
                ));
            }
        }
        if !own.contains(wanted) {
            let missing: Vec<u16> = wanted.difference(own).iter().collect();
            return Fit::Refuse(format!("this node has no devices {missing:?}"));
        }
        if self.workers.len() + placement.workers.len() > limits::WORKERS_HELD_MAX {
            return Fit::Refuse("this node holds too many workers".to_owned());
        }
        let grace = self.session.map_or(Duration::ZERO, |s| s.stop_grace);
        let Some(epoch) = epoch_for_start(view.lease, view.now, grace) else { return Fit::Wait(Wait::Lease) };
        let live = self.workers.iter().filter(|(_, worker)| !worker.has_ended());
        let held = live.map(|(key, worker)| Held {
            key: *key,
            devices: worker.devices,
            device_milli: worker.device_milli,
            epoch: worker.epoch,
            is_stopping: worker.stop.is_some(),
        });
        room_for(held, placement.job, placement.token, &load, epoch)
    }

    /// Goes on once the token is durable, or is not: then nothing was started with it.
    pub fn fenced(&mut self, then: AfterFence, outcome: Result<(), String>) -> Vec<Action> {
        match (then, outcome) {
            (AfterFence::Launch { placement, epoch }, Ok(())) => self.launch(placement, epoch),
            (AfterFence::Launch { placement, .. }, Err(reason)) => {
                self.refuse(placement, format!("persist the fencing token: {reason}"));
            }
            // A refusal is this token's last word too. Where it is not durable, only the report is lost.
            (AfterFence::Refuse { placement, reason }, _) => self.refused(&placement, &reason),
            (AfterFence::Fault { placement, fault }, Ok(())) => {
                let exit = Some(ExitStatus::PreflightFailed(detail(&fault)));
                let states = placement.ranks().collect::<BTreeSet<u32>>().into_iter();
                let states = states.map(|rank| WorkerState { key: placement.key(rank), exit: exit.clone() });
                self.extras.extend(states);
            }
            // Unfenced it could be started after all; the leader asks for it again.
            (AfterFence::Fault { .. }, Err(_)) => {}
            (AfterFence::Stopped { job, token, ranks, never, here }, Ok(())) => {
                self.stopped(job, token, ranks, &never, &here);
            }
            // Unfenced, "none will start" would be a promise that a restart could break.
            (AfterFence::Stopped { .. }, Err(_)) => {}
        }
        self.take_actions()
    }

    fn launch(&mut self, placement: Arc<Placement>, epoch: u64) {
        for worker in &placement.workers {
            let entry = Worker::launching(worker.devices, worker.device_milli, epoch);
            self.workers.insert(placement.key(worker.rank), entry);
        }
        let (job, token) = (placement.job, placement.token);
        tracing::info!(%job, %token, node = %self.spec.name, workers = placement.workers.len(), "launching");
        self.actions.push(Action::Start { placement, epoch });
    }

    fn refuse(&mut self, placement: Arc<Placement>, reason: String) {
        let (job, token, ranks) = (placement.job, placement.token, placement.ranks().collect());
        let then = AfterFence::Refuse { placement, reason };
        self.actions.push(Action::Fence { job, token, ranks, then });
    }

    fn refused(&mut self, placement: &Placement, reason: &str) {
        for rank in placement.ranks() {
            let key = placement.key(rank);
            self.workers.insert(key, Worker::launching(DeviceSet::EMPTY, DEVICE_MILLI, 0));
            self.actions.push(Action::Refuse { key, reason: reason.to_owned() });
        }
    }

    fn on_stop(&mut self, job: JobId, token: FencingToken, request: StopRequest, view: &View<'_>) {
        let pending = self.pending.get(&(job, token)).map(|p| Arc::clone(&p.placement));
        let never: BTreeSet<u32> = pending.iter().flat_map(|p| p.ranks()).collect();
        let mut ranks = never.clone();
        withdraw(&mut self.pending, job, token);
        if let Some(fence) = view.fences.of(job).filter(|fence| fence.token == token) {
            ranks.extend(&fence.ranks);
        }
        let (from, to) = (
            WorkerKey { job, token: FencingToken::default(), rank: 0 },
            WorkerKey { job, token, rank: u32::MAX },
        );
        let held: Vec<WorkerKey> = self.workers.range(from..=to).map(|(key, _)| *key).collect();
        let here = held.iter().filter(|k| k.token == token).map(|k| k.rank).collect();
        // First the stop, which waits for no disk; then the fence against a start that comes later.
        self.stop_workers(&held, request, view);
        let then = AfterFence::Stopped { job, token, ranks: ranks.clone(), never, here };
        self.actions.push(Action::Fence { job, token, ranks, then });
    }

    fn stopped(
        &mut self,
        job: JobId,
        token: FencingToken,
        mut ranks: BTreeSet<u32>,
        never: &BTreeSet<u32>,
        here: &BTreeSet<u32>,
    ) {
        if ranks.is_empty() && here.is_empty() {
            ranks.insert(WHOLE_PLACEMENT);
        }
        for rank in ranks.difference(here) {
            let key = WorkerKey { job, token, rank: *rank };
            let exit = if never.contains(rank) { ExitStatus::NotStarted } else { ExitStatus::Vanished };
            self.extras.push_back(WorkerState { key, exit: Some(exit) });
        }
    }

    /// Stops workers, all at the same time: what one of them waits for delays no other.
    fn stop_workers(&mut self, keys: &[WorkerKey], request: StopRequest, view: &View<'_>) {
        let stops: Vec<Stop> = keys.iter().filter_map(|key| self.begin_stop(*key, request, view)).collect();
        if !stops.is_empty() {
            self.actions.push(Action::Stop(stops));
        }
    }

    /// Notes that a worker has to stop; none where it has ended.
    fn begin_stop(&mut self, key: WorkerKey, request: StopRequest, view: &View<'_>) -> Option<Stop> {
        let worker = self.workers.get_mut(&key)?;
        if worker.has_ended() {
            worker.version += 1;
            return None;
        }
        if worker.stop.is_none() {
            let reason = request.reason.map(StopReason::name);
            let grace_ms = u64::try_from(request.grace.as_millis()).unwrap_or(u64::MAX);
            tracing::info!(job = %key.job, node = %self.spec.name, worker = %key, reason, grace_ms, "told to stop");
        }
        let request = request.behind(worker.stop);
        worker.stop = Some(request);
        let by = view.uptime.saturating_add(request.grace);
        worker.stop_by = Some(worker.stop_by.map_or(by, |earlier| earlier.min(by)));
        Some(Stop { key, request, is_launching: worker.phase == Phase::Launching })
    }

    /// Gives up starts that wait for a worker which does not end, though everything was done to end it: the fault is this
    /// node's, and the gang can start elsewhere.
    fn give_up_overdue(&mut self, view: &View<'_>) {
        let mut overdue = Vec::new();
        for (id, pending) in self.pending.iter().filter(|(_, pending)| pending.wait == Wait::End) {
            let wanted =
                pending.placement.workers.iter().fold(DeviceSet::EMPTY, |all, w| all.union(w.devices));
            let in_the_way = self.workers.iter().filter(|(key, worker)| {
                let older = key.job == id.0 && key.token < id.1;
                !worker.has_ended() && (older || !worker.devices.is_disjoint(wanted))
            });
            for (key, worker) in in_the_way {
                let since = worker.stop_by.unwrap_or(pending.since);
                if view.uptime.saturating_sub(since) > limits::END_OVERDUE_MAX {
                    overdue.push((
                        *id,
                        format!("{key}, which was to have ended, is still on the devices of this node"),
                    ));
                    break;
                }
            }
        }
        for ((job, token), fault) in overdue {
            self.fail_pending(job, token, fault);
        }
    }

    fn on_executor(&mut self, event: ExecutorEvent, view: &View<'_>) {
        match event {
            ExecutorEvent::Running(key) => {
                let Some(worker) = self.workers.get_mut(&key) else { return };
                if worker.phase != Phase::Launching {
                    return;
                }
                worker.phase = Phase::Running;
                worker.version += 1;
                if let Some(request) = worker.stop {
                    self.stop_workers(&[key], request, view);
                }
            }
            ExecutorEvent::Ended(key, status) => {
                let Some(worker) = self.workers.get_mut(&key) else { return };
                if worker.has_ended() {
                    return;
                }
                tracing::info!(job = %key.job, node = %self.spec.name, worker = %key, %status, "ended");
                worker.phase = Phase::Ended(status);
                worker.version += 1;
                self.events.forget(key);
                self.reconfirm(Wait::End);
            }
        }
    }

    /// Asks again for every start that waited for this.
    fn reconfirm(&mut self, waited: Wait) {
        let mut again = Vec::new();
        for (id, pending) in self.pending.iter_mut().filter(|(_, p)| p.wait == waited) {
            pending.wait = Wait::Confirmation;
            again.push(*id);
        }
        for (job, token) in again {
            self.send(Message::ConfirmStart { job, token });
        }
    }

    /// Reports what others hold of the node, when that is news.
    fn send_foreign(&mut self, view: &View<'_>) {
        let Some(foreign) = self.foreign.filter(|_| self.takes(Feature::ForeignLoad)) else { return };
        let live = self.workers.values().filter(|worker| !worker.has_ended());
        let held = live.fold(DeviceSet::EMPTY, |set, worker| set.union(worker.devices));
        let before = self.foreign_reported.map_or(DeviceSet::EMPTY, |(load, _)| load.devices);
        let load = foreign.load(before, held, self.spec.device_count());
        // Again after a while: a leader whose records cannot hold it yet forgets it.
        let is_known = |(reported, at): (ForeignLoad, Duration)| {
            reported == load && view.uptime.saturating_sub(at) < limits::FOREIGN_LOAD_AGAIN
        };
        if !self.foreign_reported.is_some_and(is_known) {
            self.foreign_reported = Some((load, view.uptime));
            self.send(Message::ForeignLoad(load));
        }
    }

    /// One report at a time: what changes meanwhile goes with the next.
    fn send_report(&mut self) {
        if self.session.is_none() || self.in_flight.is_some() {
            return;
        }
        let news = self.workers.iter().filter(|(_, worker)| worker.version != worker.acked);
        let (mut states, mut versions) = (Vec::new(), Vec::new());
        for (key, worker) in news.take(REPORT_RANKS_MAX) {
            states.push(worker.state(*key));
            versions.push((*key, worker.version));
        }
        let left = REPORT_RANKS_MAX - states.len();
        states.extend(self.extras.drain(..self.extras.len().min(left)));
        if states.is_empty() {
            return;
        }
        self.report_sequence += 1;
        let sequence = self.report_sequence;
        self.in_flight = Some(InFlight { sequence, versions });
        self.send(Message::Report { sequence, workers: states });
    }

    fn on_report_ack(&mut self, sequence: u64) {
        let Some(report) = self.in_flight.take_if(|report| report.sequence == sequence) else { return };
        for (key, version) in report.versions {
            let Some(worker) = self.workers.get_mut(&key) else { continue };
            worker.acked = version;
            if worker.has_ended() && worker.version == version {
                self.workers.remove(&key);
                self.actions.push(Action::Acknowledge(key));
            }
        }
    }
}
