//! The agent's one loop: orders, executor events and session changes in, confirmations, reports and
//! launches out.
//!
//! A start order is first confirmed against the leader, then held against what runs here, then
//! persisted, then launched. Whatever keeps it waiting (an older attempt, a dying holder of its
//! devices, a lease about to run out) sends it back to the confirmation, so that nothing starts on an
//! answer from before the wait.
//!
//! **Invariant:** no launch without a token above everything persisted for its job, confirmed on the
//! current session after the last wait, with its devices free and more lease left than a stop takes.
//! Orders of an earlier session are never acted on.

use crate::clock::BootTime;
use crate::executor::{Executor, ExecutorEvent, Foreign, OutputRequest, StopRequest};
use crate::fencing::{Fences, Standing};
use crate::lease::Lease;
use crate::limits;
use crate::notes::{self, Notes};
use crate::order::{self, DeviceLoad, Placement, WorkerKey, state_message};
use crate::probe::{self, Plan, Prober};
use crate::rules::{Admission, Fit, Held, Wait, admit, epoch_for_start, room_for, withdraw};
use crate::socket::{Note, Said};
use crate::uploads;
use muster_types::limits::REPORT_RANKS_MAX;
use muster_types::{
    DeviceSet, ExitStatus, Feature, Features, FencingToken, ForeignLoad, JobId, NodeSpec, StopReason,
};
use muster_wire::convert::{fencing_token_to_proto, foreign_load_to_proto};
use muster_wire::v1;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// The rank of a report that no worker of a placement is here and none will start.
pub const WHOLE_PLACEMENT: u32 = muster_wire::convert::WHOLE_PLACEMENT;

/// What a worker is told whose cluster is older than its agent.
const NOTES_NOT_TAKEN: &str = "the cluster's leader is of a release that takes no checkpoints yet";

/// An order, checked.
#[derive(Debug)]
pub(crate) enum Order {
    Start(Box<Placement>),
    /// A start order that breaks a rule: its workers cannot be launched.
    Malformed {
        job: JobId,
        token: FencingToken,
        ranks: BTreeSet<u32>,
        reason: String,
    },
    Stop {
        job: JobId,
        token: FencingToken,
        request: StopRequest,
    },
    StartConfirmed {
        job: JobId,
        token: FencingToken,
        current: bool,
    },
    ReportAck(u64),
    /// What became of a note; the reason where it can never be taken.
    NoteAck(u64, Option<String>),
    ReadLogs {
        read_id: u64,
        request: OutputRequest,
    },
    ProbeListen(u64),
    ProbeRun(u64, Plan),
    /// What came of the check of a placement's network; the fault of this node.
    Verdict {
        job: JobId,
        token: FencingToken,
        fault: Option<String>,
    },
}

/// What the loop reacts to; there is nothing else.
#[derive(Debug)]
pub(crate) enum Event {
    /// The session stands.
    Opened(SessionHandle),
    /// It does not any more.
    Closed(u64),
    /// From the session of this number.
    Order(u64, Order),
    /// The lease moved.
    LeaseRenewed,
    /// A worker said something.
    Said(Said),
    /// The worker list for a registration.
    Holdings(oneshot::Sender<Vec<v1::WorkerState>>),
}

impl From<Said> for Event {
    fn from(said: Said) -> Event {
        Event::Said(said)
    }
}

/// How the loop speaks on a session.
#[derive(Clone, Debug)]
pub(crate) struct SessionHandle {
    pub(crate) number: u64,
    pub(crate) outgoing: mpsc::Sender<v1::SessionRequest>,
    /// The replica it goes through.
    pub(crate) endpoint: String,
    /// How it was reached.
    pub(crate) endpoints: muster_client::Endpoints,
    pub(crate) stop_grace: Duration,
    /// What the leader takes: a session that brings something else is ended, and its lease with it.
    pub(crate) takes: Features,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// From the decision to the executor's word.
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
    stop_by: Option<Instant>,
    /// Rises with everything there is to report; equal to `acked` when the leader knows all of it.
    version: u32,
    acked: u32,
}

impl Worker {
    fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    fn message(&self, key: WorkerKey) -> v1::WorkerState {
        match &self.phase {
            Phase::Ended(status) => state_message(key, Some(status)),
            Phase::Launching | Phase::Running => state_message(key, None),
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
    since: Instant,
}

/// One report on its way.
#[derive(Debug)]
struct InFlight {
    sequence: u64,
    versions: Vec<(WorkerKey, u32)>,
}

/// The loop's state.
pub(crate) struct Node<E> {
    executor: Arc<E>,
    fences: Arc<Mutex<Fences>>,
    lease: Arc<Mutex<Lease>>,
    spec: NodeSpec,
    session: Option<SessionHandle>,
    workers: BTreeMap<WorkerKey, Worker>,
    pending: BTreeMap<(JobId, FencingToken), Pending>,
    report_sequence: u64,
    in_flight: Option<InFlight>,
    /// States of workers that are not here, said once on the session that asked.
    extras: VecDeque<v1::WorkerState>,
    uploads: JoinSet<()>,
    sending: uploads::Sending,
    prober: Prober,
    foreign: Option<watch::Receiver<Foreign>>,
    /// What the leader was told of it in this session, and when.
    foreign_said: Option<(ForeignLoad, Instant)>,
    notes: Notes,
}

/// The next change of what others hold; never where nobody else can.
async fn changed(foreign: &mut Option<watch::Receiver<Foreign>>) {
    let Some(receiver) = foreign else { return std::future::pending().await };
    if receiver.changed().await.is_err() {
        // Whoever told it is gone; what was told last stands.
        *foreign = None;
    }
}

/// For ever where there is no such moment.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic while holding one of these locks leaves whole values: they are replaced, not edited.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E: Executor> Node<E> {
    pub(crate) fn new(
        executor: Arc<E>,
        fences: Fences,
        lease: Arc<Mutex<Lease>>,
        spec: NodeSpec,
        adopted: Vec<crate::executor::Adopted>,
    ) -> Node<E> {
        let foreign = executor.foreign();
        let workers = adopted.into_iter().map(|found| {
            let phase = found.exit.map_or(Phase::Running, Phase::Ended);
            let (devices, device_milli) = (found.devices, found.device_milli);
            let epoch = found.epoch;
            let (stop, stop_by) = (None, None);
            let worker = Worker { devices, device_milli, epoch, phase, stop, stop_by, version: 1, acked: 0 };
            (found.key, worker)
        });
        Node {
            executor,
            fences: Arc::new(Mutex::new(fences)),
            lease,
            spec,
            session: None,
            workers: workers.collect(),
            pending: BTreeMap::new(),
            report_sequence: 0,
            in_flight: None,
            extras: VecDeque::new(),
            foreign,
            foreign_said: None,
            uploads: JoinSet::new(),
            sending: uploads::Sending::default(),
            prober: Prober::new(None),
            notes: Notes::default(),
        }
    }

    /// Where it listens for probes. Without, it takes no part in any: an agent that runs workers on other
    /// machines would measure its own network.
    pub(crate) fn probing_at(mut self, listen_at: SocketAddr) -> Node<E> {
        self.prober = Prober::new(Some(listen_at));
        self
    }

    /// Turns until both senders are gone.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        mut told: mpsc::Receiver<ExecutorEvent>,
    ) {
        let mut looks = tokio::time::interval(limits::OVERDUE_LOOK);
        loop {
            let due = self.notes.next_due();
            tokio::select! {
                () = sleep_until(due) => self.send_notes(),
                _ = looks.tick() => self.give_up_overdue().await,
                event = events.recv() => match event {
                    Some(event) => self.on_event(event).await,
                    None => return,
                },
                Some(event) = told.recv() => self.on_executor(event).await,
                Some(ended) = self.uploads.join_next_with_id() => {
                    self.sending.end(ended.map_or_else(|error| error.id(), |(task, ())| task));
                }
                () = changed(&mut self.foreign) => {}
            }
            self.send_report();
            self.send_foreign();
        }
    }

    async fn on_event(&mut self, event: Event) {
        match event {
            Event::Opened(session) => self.on_opened(session),
            Event::Closed(number) => {
                if self.session.as_ref().is_some_and(|s| s.number == number) {
                    self.session = None;
                }
            }
            Event::Order(number, order) => {
                if self.session.as_ref().is_some_and(|s| s.number == number) {
                    self.on_order(order).await;
                } else {
                    tracing::debug!(?order, "an order of an earlier session is dropped: it is sent again");
                }
            }
            Event::LeaseRenewed => self.reconfirm(Wait::Lease),
            Event::Said(said) => self.on_said(said),
            Event::Holdings(answer) => {
                let held = self.workers.iter().map(|(key, worker)| worker.message(*key)).collect();
                // The session has given up waiting: it asks again.
                let _ = answer.send(held);
            }
        }
    }

    fn on_opened(&mut self, session: SessionHandle) {
        // Outstanding orders, their confirmations and acknowledgements belong to the session before.
        self.pending.clear();
        self.extras.clear();
        self.in_flight = None;
        self.foreign_said = None;
        let takes_notes = session.takes.has(Feature::Notes);
        self.session = Some(session);
        if !takes_notes {
            self.notes.refuse_all(NOTES_NOT_TAKEN);
        }
        for note in self.notes.unanswered() {
            self.send(v1::session_request::Message::Note(note));
        }
    }

    fn on_said(&mut self, said: Said) {
        let Said { key, note, answer } = said;
        let outcome = match self.workers.get(&key) {
            None => Some(Err(format!("{key} does not run on this node"))),
            Some(worker) if worker.has_ended() => Some(Err(format!("{key} has ended"))),
            Some(_) => None,
        };
        if let Some(outcome) = outcome {
            // Whoever asked has gone: nobody is to be told.
            let _ = answer.send(outcome);
            return;
        }
        if self.session.as_ref().is_some_and(|session| !session.takes.has(Feature::Notes)) {
            let outcome = match note {
                // Nobody waits for one.
                Note::Step { .. } => Ok(()),
                Note::CheckpointCommitted { .. } => Err(NOTES_NOT_TAKEN.to_owned()),
            };
            let _ = answer.send(outcome);
            return;
        }
        match note {
            Note::Step { number, duration_ms } => {
                let _ = answer.send(Ok(()));
                if let Some(session) = &self.session
                    && self.notes.passes_step(key, Instant::now())
                {
                    let step = v1::worker_note::Note::Step(v1::StepNote { number, duration_ms });
                    let request = v1::session_request::Message::Note(notes::message(key, 0, step));
                    // The next one will do where the queue is full.
                    let _ = session.outgoing.try_send(v1::SessionRequest { message: Some(request) });
                }
            }
            Note::CheckpointCommitted { step } => {
                self.notes.save(key, step, answer);
                self.send_notes();
            }
        }
    }

    /// Sends those that are due.
    fn send_notes(&mut self) {
        for note in self.notes.due(Instant::now()) {
            self.send(v1::session_request::Message::Note(note));
        }
    }

    fn on_note_ack(&mut self, sequence: u64, refused: Option<&str>) {
        self.notes.answered(sequence, refused);
        self.send_notes();
    }

    async fn on_order(&mut self, order: Order) {
        match order {
            Order::Start(placement) => self.on_start(*placement),
            Order::Malformed { job, token, ranks, reason } => {
                tracing::error!(%job, %token, reason, "a start order is refused");
                for rank in ranks {
                    let status = ExitStatus::LaunchFailed(order::detail(&reason));
                    let key = WorkerKey { job, token, rank };
                    if !self.workers.contains_key(&key) {
                        self.extras.push_back(state_message(key, Some(&status)));
                    }
                }
            }
            Order::StartConfirmed { job, token, current } => {
                self.on_confirmed(job, token, current).await;
            }
            Order::Stop { job, token, request } => self.on_stop(job, token, request).await,
            Order::ReportAck(sequence) => self.on_report_ack(sequence),
            Order::NoteAck(sequence, refused) => self.on_note_ack(sequence, refused.as_deref()),
            Order::ReadLogs { read_id, request } => self.on_read_logs(read_id, request),
            Order::ProbeListen(probe) => {
                if let Some(session) = &self.session {
                    self.prober.listen(probe, session.outgoing.clone());
                }
            }
            Order::ProbeRun(probe, plan) => self.prober.begin(probe, plan),
            Order::Verdict { job, token, fault } => self.on_verdict(job, token, fault).await,
        }
    }

    fn on_start(&mut self, placement: Placement) {
        let (job, token) = (placement.job, placement.token);
        let standing = locked(&self.fences).standing(job, token);
        match admit(&mut self.pending, limits::PENDING_PLACEMENTS_MAX, standing, job, token) {
            Admission::Known(standing) => {
                if standing == Standing::Older {
                    // Its leader is behind, or it is below the floor and needs a new token.
                    tracing::warn!(%job, %token, "a start order with a token older than one seen is refused");
                }
                return self.say_again(&placement);
            }
            Admission::Waiting => return,
            Admission::Outdated => {
                tracing::warn!(%job, %token, "a start order older than a waiting one is dropped");
                return;
            }
            Admission::Full => {
                tracing::error!(%job, %token, "too many placements wait; this one is dropped until it is sent again");
                return;
            }
            Admission::New => {}
        }
        let (wait, since) = (Wait::Confirmation, Instant::now());
        let pending = Pending { placement: Arc::new(placement), wait, checked: false, since };
        self.pending.insert((job, token), pending);
        self.ask(job, token);
    }

    /// The order is known: says what became of each of its workers. One that is not here was persisted
    /// and never launched, or is acknowledged; either way it will not start.
    fn say_again(&mut self, placement: &Placement) {
        for rank in placement.ranks() {
            let key = placement.key(rank);
            match self.workers.get_mut(&key) {
                Some(worker) => worker.version += 1,
                None => self.extras.push_back(state_message(key, Some(&ExitStatus::Vanished))),
            }
        }
    }

    fn ask(&mut self, job: JobId, token: FencingToken) {
        use v1::session_request::Message;
        let ask = v1::ConfirmStart { job_id: job.to_string(), token: Some(fencing_token_to_proto(token)) };
        self.send(Message::ConfirmStart(ask));
    }

    fn send(&mut self, message: v1::session_request::Message) {
        let Some(session) = &self.session else { return };
        let request = v1::SessionRequest { message: Some(message) };
        match session.outgoing.try_send(request) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Closed(_)) => self.session = None,
            Err(mpsc::error::TrySendError::Full(_)) => {
                // The network does not take what we say: a new session starts from what is outstanding.
                tracing::warn!("the session takes no more messages; closing it");
                self.session = None;
            }
        }
    }

    async fn on_confirmed(&mut self, job: JobId, token: FencingToken, current: bool) {
        let Some(pending) = self.pending.get_mut(&(job, token)) else { return };
        if pending.wait != Wait::Confirmation {
            return;
        }
        let (placement, checked) = (Arc::clone(&pending.placement), pending.checked);
        if !current {
            self.pending.remove(&(job, token));
            tracing::info!(%job, %token, "the placement is not current any more; not started");
            return;
        }
        self.stop_older(&placement).await;
        match self.fit(&placement) {
            Fit::Wait(wait) => {
                tracing::info!(%job, %token, ?wait, "the start waits");
                if let Some(pending) = self.pending.get_mut(&(job, token)) {
                    pending.wait = wait;
                }
            }
            Fit::Refuse(reason) => {
                self.pending.remove(&(job, token));
                tracing::warn!(%job, %token, reason, "the start is refused");
                self.refuse(&placement, &reason).await;
            }
            Fit::Go { .. } if !checked && self.can_check(&placement) => {
                if let Some(pending) = self.pending.get_mut(&(job, token)) {
                    pending.wait = Wait::Preflight;
                }
                self.wait_for_check(job, token);
            }
            Fit::Go { epoch } => {
                self.pending.remove(&(job, token));
                self.launch(placement, epoch).await;
            }
        }
    }

    /// Whether the gang's network is to be checked first. A leader that takes no word of it gives no verdict.
    fn can_check(&self, placement: &Placement) -> bool {
        let takes = self.session.as_ref().is_some_and(|session| session.takes.has(Feature::Preflight));
        placement.preflight && self.executor.is_on_this_host() && takes
    }

    /// Says that nothing but the check of the gang's network is missing here.
    fn wait_for_check(&mut self, job: JobId, token: FencingToken) {
        let token = Some(fencing_token_to_proto(token));
        let waiting = v1::PreflightWaiting { job_id: job.to_string(), token };
        let step = Some(v1::preflight_report::Step::Waiting(waiting));
        self.send(v1::session_request::Message::PreflightReport(v1::PreflightReport { step }));
    }

    /// Starts what waited for the check, by a new confirmation; or reports it as this node's fault.
    async fn on_verdict(&mut self, job: JobId, token: FencingToken, fault: Option<String>) {
        let Some(pending) = self.pending.get_mut(&(job, token)) else { return };
        if pending.wait != Wait::Preflight {
            return;
        }
        let Some(fault) = fault else {
            (pending.checked, pending.wait) = (true, Wait::Confirmation);
            return self.ask(job, token);
        };
        self.fail_pending(job, token, fault).await;
    }

    /// Reports a start that waits here as this node's fault.
    async fn fail_pending(&mut self, job: JobId, token: FencingToken, fault: String) {
        let Some(Pending { placement, .. }) = self.pending.remove(&(job, token)) else { return };
        tracing::warn!(%job, %token, fault, "not started: this node is at fault");
        let ranks: BTreeSet<u32> = placement.ranks().collect();
        if self.raise_fence(job, token, ranks.clone()).await.is_err() {
            // Unfenced it could be started after all; the leader asks for it again.
            return;
        }
        let status = ExitStatus::PreflightFailed(order::detail(&fault));
        let states =
            ranks.into_iter().map(|rank| state_message(WorkerKey { job, token, rank }, Some(&status)));
        self.extras.extend(states);
    }

    /// A newer placement of a job is the end of its older ones, whether or not the order to stop them
    /// has come yet.
    async fn stop_older(&mut self, placement: &Placement) {
        let older: Vec<WorkerKey> = self
            .workers
            .iter()
            .filter(|(key, worker)| {
                key.job == placement.job
                    && key.token < placement.token
                    && !worker.has_ended()
                    && worker.stop.is_none()
            })
            .map(|(key, _)| *key)
            .collect();
        self.stop_workers(&older, placement.stop_grace.into()).await;
    }

    fn fit(&self, placement: &Placement) -> Fit {
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
        let now = BootTime::now();
        let grace = self.session.as_ref().map_or(Duration::ZERO, |s| s.stop_grace);
        let lease = locked(&self.lease).standing(now).map(|slot| slot.term());
        let Some(epoch) = epoch_for_start(lease, now, grace) else { return Fit::Wait(Wait::Lease) };
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

    async fn launch(&mut self, placement: Arc<Placement>, epoch: u64) {
        let (job, token) = (placement.job, placement.token);
        if let Err(reason) = self.raise_fence(job, token, placement.ranks().collect()).await {
            return self.refuse(&placement, &format!("persist the fencing token: {reason}")).await;
        }
        for worker in &placement.workers {
            let entry = Worker {
                devices: worker.devices,
                device_milli: worker.device_milli,
                epoch,
                phase: Phase::Launching,
                stop: None,
                stop_by: None,
                version: 0,
                acked: 0,
            };
            self.workers.insert(placement.key(worker.rank), entry);
        }
        tracing::info!(%job, %token, workers = placement.workers.len(), "launching");
        let executor = Arc::clone(&self.executor);
        // On its own: a slow launch must not hold up a stop.
        tokio::spawn(async move { executor.start(placement, epoch).await });
    }

    /// Makes the token durable, or says why it is not.
    async fn raise_fence(&self, job: JobId, token: FencingToken, ranks: BTreeSet<u32>) -> Result<(), String> {
        let fences = Arc::clone(&self.fences);
        let raised = tokio::task::spawn_blocking(move || locked(&fences).raise(job, token, ranks)).await;
        match raised {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%job, %token, %error, source, "the fencing token is not durable");
                Err(error.to_string())
            }
            Err(_) => Err("the agent is shutting down".to_owned()),
        }
    }

    async fn refuse(&mut self, placement: &Placement, reason: &str) {
        // A refusal is this token's last word too. Where it is not durable, only the report is lost.
        let ranks = placement.ranks().collect();
        let _ = self.raise_fence(placement.job, placement.token, ranks).await;
        for rank in placement.ranks() {
            let key = placement.key(rank);
            let entry = Worker {
                devices: DeviceSet::EMPTY,
                device_milli: order::DEVICE_MILLI,
                epoch: 0,
                phase: Phase::Launching,
                stop: None,
                stop_by: None,
                version: 0,
                acked: 0,
            };
            self.workers.insert(key, entry);
            let (executor, reason) = (Arc::clone(&self.executor), reason.to_owned());
            tokio::spawn(async move { executor.refuse(key, reason).await });
        }
    }

    async fn on_stop(&mut self, job: JobId, token: FencingToken, request: StopRequest) {
        let pending = self.pending.get(&(job, token)).map(|p| Arc::clone(&p.placement));
        let never: BTreeSet<u32> = pending.iter().flat_map(|p| p.ranks()).collect();
        let mut ranks = never.clone();
        withdraw(&mut self.pending, job, token);
        if let Some(fence) = locked(&self.fences).of(job).filter(|fence| fence.token == token) {
            ranks.extend(&fence.ranks);
        }
        let (from, to) = (
            WorkerKey { job, token: FencingToken::default(), rank: 0 },
            WorkerKey { job, token, rank: u32::MAX },
        );
        let held: Vec<WorkerKey> = self.workers.range(from..=to).map(|(key, _)| *key).collect();
        // First the stop, which waits for no disk; then the fence against a start that comes later.
        self.stop_workers(&held, request).await;
        if self.raise_fence(job, token, ranks.clone()).await.is_err() {
            // Unfenced, "none will start" would be a promise that a restart could break.
            return;
        }
        let here: BTreeSet<u32> = held.iter().filter(|k| k.token == token).map(|k| k.rank).collect();
        if ranks.is_empty() && here.is_empty() {
            ranks.insert(WHOLE_PLACEMENT);
        }
        for rank in ranks.difference(&here) {
            let key = WorkerKey { job, token, rank: *rank };
            let status = if never.contains(rank) { ExitStatus::NotStarted } else { ExitStatus::Vanished };
            self.extras.push_back(state_message(key, Some(&status)));
        }
    }

    /// Stops workers, all at a time: what one of them waits for holds up no other.
    async fn stop_workers(&mut self, keys: &[WorkerKey], request: StopRequest) {
        let mut stops = JoinSet::new();
        for key in keys {
            let Some(request) = self.begin_stop(*key, request) else { continue };
            let launching = self.workers.get(key).is_some_and(|worker| worker.phase == Phase::Launching);
            let (executor, key) = (Arc::clone(&self.executor), *key);
            stops.spawn(async move {
                if let Err(error) = executor.stop(key, request).await {
                    // One that is being launched is told again when it runs.
                    if !launching {
                        let source = std::error::Error::source(&error).map(ToString::to_string);
                        tracing::error!(worker = %key, %error, source, "a stop could not be delivered");
                    }
                }
            });
        }
        while stops.join_next().await.is_some() {}
    }

    /// Notes that a worker has to stop; how it is to be told, if it is there.
    fn begin_stop(&mut self, key: WorkerKey, request: StopRequest) -> Option<StopRequest> {
        let worker = self.workers.get_mut(&key)?;
        if worker.has_ended() {
            worker.version += 1;
            return None;
        }
        if worker.stop.is_none() {
            let reason = request.reason.map(StopReason::name);
            let grace_ms = u64::try_from(request.grace.as_millis()).unwrap_or(u64::MAX);
            tracing::info!(worker = %key, reason, grace_ms, "told to stop");
        }
        let request = request.behind(worker.stop);
        worker.stop = Some(request);
        let by = Instant::now() + request.grace;
        worker.stop_by = Some(worker.stop_by.map_or(by, |before| before.min(by)));
        Some(request)
    }

    /// Gives up starts that wait for a worker which does not end, though everything was done to end it: the fault is this
    /// node's, and the gang can start elsewhere.
    async fn give_up_overdue(&mut self) {
        let now = Instant::now();
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
                if now.saturating_duration_since(since) > limits::END_OVERDUE_MAX {
                    overdue.push((
                        *id,
                        format!("{key}, which was to have ended, is still on the devices of this node"),
                    ));
                    break;
                }
            }
        }
        for ((job, token), fault) in overdue {
            self.fail_pending(job, token, fault).await;
        }
    }

    async fn on_executor(&mut self, event: ExecutorEvent) {
        match event {
            ExecutorEvent::Running(key) => {
                let Some(worker) = self.workers.get_mut(&key) else { return };
                if worker.phase != Phase::Launching {
                    return;
                }
                worker.phase = Phase::Running;
                worker.version += 1;
                if let Some(request) = worker.stop {
                    self.stop_workers(&[key], request).await;
                }
            }
            ExecutorEvent::Ended(key, status) => {
                let Some(worker) = self.workers.get_mut(&key) else { return };
                if worker.has_ended() {
                    return;
                }
                tracing::info!(worker = %key, %status, "ended");
                worker.phase = Phase::Ended(status);
                worker.version += 1;
                self.notes.forget(key);
                self.reconfirm(Wait::End);
            }
        }
    }

    /// Asks anew for every start that waited for this.
    fn reconfirm(&mut self, waited: Wait) {
        let mut again = Vec::new();
        for (id, pending) in self.pending.iter_mut().filter(|(_, p)| p.wait == waited) {
            pending.wait = Wait::Confirmation;
            again.push(*id);
        }
        for (job, token) in again {
            self.ask(job, token);
        }
    }

    /// Says what others hold of the node, when that is news. Of devices only the number is known: those that
    /// count as theirs are ones that no worker here has, the same ones as long as that is so.
    fn send_foreign(&mut self) {
        let Some(foreign) = self.foreign.as_ref().map(|receiver| *receiver.borrow()) else { return };
        if !self.session.as_ref().is_some_and(|session| session.takes.has(Feature::ForeignLoad)) {
            return;
        }
        let live = self.workers.values().filter(|worker| !worker.has_ended());
        let held = live.fold(DeviceSet::EMPTY, |set, worker| set.union(worker.devices));
        let before = self.foreign_said.map_or(DeviceSet::EMPTY, |(load, _)| load.devices);
        let kept = before.iter().count() == usize::from(foreign.devices) && before.is_disjoint(held);
        let devices = if kept {
            before
        } else {
            let left: Vec<u16> = DeviceSet::first(self.spec.device_count()).difference(held).iter().collect();
            let theirs = left.into_iter().rev().take(usize::from(foreign.devices));
            theirs.fold(DeviceSet::EMPTY, |set, device| set.union(DeviceSet(1 << device)))
        };
        let load = ForeignLoad {
            closed: foreign.closed,
            devices,
            cpu_milli: foreign.cpu_milli,
            memory_bytes: foreign.memory_bytes,
        };
        // Again after a while: a leader whose records cannot say it yet forgets it.
        let is_known =
            |(said, at): (ForeignLoad, Instant)| said == load && at.elapsed() < limits::FOREIGN_LOAD_AGAIN;
        if !self.foreign_said.is_some_and(is_known) {
            self.foreign_said = Some((load, Instant::now()));
            self.send(v1::session_request::Message::ForeignLoad(foreign_load_to_proto(load)));
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
            states.push(worker.message(*key));
            versions.push((*key, worker.version));
        }
        let room = REPORT_RANKS_MAX - states.len();
        states.extend(self.extras.drain(..self.extras.len().min(room)));
        if states.is_empty() {
            return;
        }
        self.report_sequence += 1;
        let sequence = self.report_sequence;
        self.in_flight = Some(InFlight { sequence, versions });
        self.send(v1::session_request::Message::Report(v1::Report { sequence, workers: states }));
    }

    fn on_report_ack(&mut self, sequence: u64) {
        let Some(report) = self.in_flight.take_if(|report| report.sequence == sequence) else { return };
        for (key, version) in report.versions {
            let Some(worker) = self.workers.get_mut(&key) else { continue };
            worker.acked = version;
            if worker.has_ended() && worker.version == version {
                self.workers.remove(&key);
                let executor = Arc::clone(&self.executor);
                tokio::spawn(async move { executor.acknowledge(key).await });
            }
        }
    }

    fn on_read_logs(&mut self, read_id: u64, request: OutputRequest) {
        let Some(session) = &self.session else { return };
        let job = request.key.job;
        let Some(refused) = self.sending.admit(job) else {
            tracing::warn!(read_id, "too many requests for output; one is dropped");
            return;
        };
        let upload = uploads::Upload {
            endpoint: session.endpoint.clone(),
            endpoints: session.endpoints.clone(),
            node_name: self.spec.name.to_string(),
            read_id,
            request,
            refused,
        };
        let task = self.uploads.spawn(uploads::run(upload, Arc::clone(&self.executor)));
        self.sending.begin(task.id(), job);
    }
}

/// An order from the wire; none for what the session itself handles.
pub(crate) fn order_of(message: v1::session_response::Message) -> Result<Option<Order>, order::OrderError> {
    use v1::session_response::Message;
    Ok(Some(match message {
        Message::Start(start) => {
            let (job, token) = (order::job(&start.job_id)?, order::token(start.token)?);
            let ranks = start.workers.iter().map(|w| w.rank).take(REPORT_RANKS_MAX).collect();
            match order::placement(start) {
                Ok(placement) => Order::Start(Box::new(placement)),
                Err(error) => Order::Malformed { job, token, ranks, reason: error.to_string() },
            }
        }
        Message::Stop(stop) => Order::Stop {
            job: order::job(&stop.job_id)?,
            token: order::token(stop.token)?,
            request: StopRequest {
                grace: order::grace(stop.grace_ms),
                reason: StopReason::of_name(&stop.reason),
            },
        },
        Message::StartConfirmed(confirmed) => Order::StartConfirmed {
            job: order::job(&confirmed.job_id)?,
            token: order::token(confirmed.token)?,
            current: confirmed.current,
        },
        Message::ReportAck(ack) => Order::ReportAck(ack.sequence),
        Message::NoteAck(ack) => {
            Order::NoteAck(ack.sequence, (!ack.refused.is_empty()).then(|| order::detail(&ack.refused)))
        }
        Message::ReadLogs(read) => {
            Order::ReadLogs { read_id: read.read_id, request: uploads::request(read)? }
        }
        Message::PreflightOrder(order) => return preflight_order(order),
        Message::Registered(_) | Message::HeartbeatAck(_) | Message::HealthAck(_) | Message::Repair(_) => {
            return Ok(None);
        }
    }))
}

fn preflight_order(order: v1::PreflightOrder) -> Result<Option<Order>, order::OrderError> {
    use v1::preflight_order::Step;
    Ok(Some(match order.step {
        Some(Step::Listen(listen)) => Order::ProbeListen(listen.probe_id),
        Some(Step::Run(run)) => {
            let (probe, broken) =
                (run.probe_id, |rule| order::OrderError { field: "preflight_order.run", rule });
            Order::ProbeRun(probe, probe::plan_of(run).map_err(broken)?)
        }
        Some(Step::Verdict(verdict)) => Order::Verdict {
            job: order::job(&verdict.job_id)?,
            token: order::token(verdict.token)?,
            fault: (!verdict.fault.is_empty()).then_some(verdict.fault),
        },
        // A step that this version does not know.
        None => return Ok(None),
    }))
}
