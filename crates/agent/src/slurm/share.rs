//! One share: this node's part of one placement, from the intent to the moment when neither Slurm nor the
//! leader has anything of it any more.
//!
//! A share is one task that owns one record. It submits a batch job, sees by the poll what becomes of it,
//! and gives the first runner that connects what there is to launch. What is certain is the grant: the
//! workers run only where a grant was made, and only one is ever made. So whatever Slurm does with the
//! batch job (loses it, starts it twice, starts it after it was given up), nothing runs twice.
//!
//! **Invariant:** at most one runner is ever told to launch, and that is durable before it hears it; an
//! end is told only when the runner said that nothing is left, when none was ever told to launch, or when
//! no lease that was promised to it can still stand.

use super::backend::{Backend, Held, RunnerLease, ToShare, View};
use super::batch::{Cancellation, Progress, Submission};
use super::command::CallError;
use super::ends;
use super::link::{Frame, Grant, Ticket, ToAgent, ToRunner};
use super::output::Outputs;
use super::parse::SlurmJob;
use super::record::{Directories, Record, Stage};
use crate::executor::{ExecutorEvent, StopRequest};
use crate::limits;
use crate::node_loop::Event;
use crate::offload::blocking;
use crate::process::socket::WorkerReport;
use crate::rules::WorkerEvent;
use crate::rules::{WorkerKey, detail};
use muster_metrics::OutputFate;
use muster_types::ExitStatus;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// First and longest wait between two attempts to submit.
const SUBMIT_WAIT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));
/// A job that Slurm has forgotten is submitted again so often.
const RESUBMISSIONS_MAX: u32 = 5;
/// How long a stop waits for a runner to connect before Slurm is asked to end the batch job.
const UNHEARD_MAX: Duration = Duration::from_secs(5);
/// How long a node may be out of use before nothing is expected of it any more.
const VAIN_MAX: Duration = Duration::from_secs(30);
/// What a runner gets to exit by itself once its workers have ended, and between two cancellations.
const CANCEL_WAIT: Duration = Duration::from_secs(10);
/// After an attempt to submit whose outcome is not known, a job may still show up for so long.
const LATE_MAX: Duration = Duration::from_secs(10);
/// Beyond the end of a lease and its grace: the kill itself, and scheduling.
const REST_MARGIN: Duration = Duration::from_secs(1);

/// A runner's connection.
#[derive(Debug)]
struct Linked {
    connection: u64,
    out: mpsc::Sender<ToRunner>,
}

/// What one share is made of; see [`Allocation::run`].
pub(super) struct Allocation {
    pub(super) backend: Arc<Backend>,
    pub(super) name: String,
    pub(super) record: Record,
    pub(super) directories: Directories,
    pub(super) holds: Held,
    pub(super) promise: Arc<RunnerLease>,
    pub(super) inbox: mpsc::Receiver<ToShare>,
    pub(super) own_inbox: mpsc::WeakSender<ToShare>,
    pub(super) events: mpsc::Sender<ExecutorEvent>,
    /// Where notes of workers go; empty where nobody takes them.
    pub(super) notes: Arc<OnceLock<mpsc::Sender<Event>>>,
    /// What the node is called in Muster, and the type of its accelerators.
    pub(super) node: String,
    pub(super) accelerator: String,
}

/// The share at work.
struct Work {
    share: Allocation,
    views: watch::Receiver<Arc<View>>,
    /// Ranks whose end is not durable yet.
    open: BTreeSet<u32>,
    /// How each was asked to stop, and since when.
    stops: BTreeMap<u32, (StopRequest, Instant)>,
    linked: Option<Linked>,
    outputs: Outputs,
    /// The last word taken from the runner.
    heard: u64,
    /// Notes that wait for the cluster's answer.
    noting: usize,
    submission: Submission,
    progress: Progress,
    cancellation: Cancellation,
    begun: Instant,
    acknowledged_at: Option<Instant>,
    /// The end of the last call that submitted it.
    last_attempt: Option<Instant>,
    /// The pause after the next call that fails.
    wait: Duration,
    resubmissions: u32,
    /// All ends are told since.
    ended_since: Option<Instant>,
    /// What the last call said that failed.
    said: String,
}

impl Allocation {
    /// Until nothing of it is left.
    pub(super) async fn run(self) {
        let open = self.record.placement.ranks().filter(|rank| self.is_open(*rank)).collect();
        let now = Instant::now();
        let mut work = Work {
            views: self.backend.views(),
            open,
            stops: BTreeMap::new(),
            linked: None,
            outputs: Outputs::default(),
            heard: 0,
            noting: 0,
            submission: Submission::Due { at: now },
            progress: Progress::Unseen,
            cancellation: Cancellation::NotAsked,
            begun: now,
            acknowledged_at: None,
            last_attempt: None,
            wait: SUBMIT_WAIT.0,
            resubmissions: 0,
            ended_since: None,
            said: String::new(),
            share: self,
        };
        work.run().await;
    }

    fn key(&self, rank: u32) -> WorkerKey {
        self.record.placement.key(rank)
    }

    fn is_open(&self, rank: u32) -> bool {
        !matches!(self.directories.task(self.key(rank)).exit(), Ok(Some(_)))
    }
}

impl Work {
    async fn run(&mut self) {
        loop {
            if self.settle().await {
                break;
            }
            let until = self.next_look();
            tokio::select! {
                message = self.share.inbox.recv() => match message {
                    Some(message) => self.on_message(message).await,
                    // The agent is going down.
                    None => return,
                },
                changed = self.views.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.on_view().await;
                }
                () = tokio::time::sleep_until(until) => {}
            }
        }
        self.share.backend.remove(&self.share.name);
        let (directories, placement) = (self.share.directories.clone(), &self.share.record.placement);
        let key = (placement.job, placement.token);
        if let Err(error) = blocking(move || directories.forget(key)).await {
            tracing::warn!(share = self.share.name, %error, "the record of a share stays behind");
        }
    }

    /// When something is due although nothing happens.
    fn next_look(&self) -> Instant {
        let soon = Instant::now() + Duration::from_secs(1);
        match self.submission {
            Submission::Due { at } if self.wants_submission() => at.min(soon),
            _ => soon,
        }
    }

    fn wants_submission(&self) -> bool {
        matches!(self.share.record.stage, Stage::Wanted { .. }) && !self.open.is_empty()
    }

    /// Does what is due; whether nothing is left to do.
    async fn settle(&mut self) -> bool {
        if !self.open.is_empty() {
            if self.wants_submission() && self.submission.is_due(Instant::now()) {
                self.submit().await;
            }
            self.check_lease().await;
            self.check_patience().await;
            self.check_stops();
            self.conclude_if_over().await;
            return false;
        }
        self.share.promise.end();
        self.ended_since.get_or_insert_with(Instant::now);
        self.is_gone_from_slurm() && self.is_acknowledged()
    }

    fn is_acknowledged(&self) -> bool {
        let placement = &self.share.record.placement;
        placement.ranks().all(|rank| self.share.directories.task(placement.key(rank)).is_acked())
    }

    /// Whether Slurm has nothing of it; sees to it that it will not.
    fn is_gone_from_slurm(&mut self) -> bool {
        if self.submission.is_in_flight() || self.cancellation.is_in_flight() {
            return false;
        }
        let ended = self.ended_since.unwrap_or_else(Instant::now);
        let view = Arc::clone(&self.views.borrow());
        let Some(attempt) = self.last_attempt else {
            // Not submitted by this agent: an earlier one may have.
            if self.share.record.stage == (Stage::Wanted { tried: false }) {
                return true;
            }
            self.last_attempt = Some(Instant::now());
            return false;
        };
        if view.number == 0 || view.began < ended {
            self.share.backend.poke();
            return false;
        }
        let left = view.jobs.get(&self.share.name).and_then(|jobs| jobs.iter().find(|job| !job.is_over()));
        match left {
            Some(job) => {
                // A runner that is connected is about to exit by itself.
                let patience = if self.linked.is_some() { CANCEL_WAIT } else { Duration::ZERO };
                if ended.elapsed() >= patience {
                    self.cancel(job.id);
                }
                false
            }
            None => {
                let certain = matches!(self.share.record.stage, Stage::Submitted { .. });
                certain || attempt.elapsed() > LATE_MAX
            }
        }
    }

    fn cancel(&mut self, id: u32) {
        let Some(inbox) = self.share.own_inbox.upgrade() else { return };
        if !self.cancellation.begin(Instant::now(), CANCEL_WAIT) {
            return;
        }
        let (backend, name) = (Arc::clone(&self.share.backend), self.share.name.clone());
        self.share.backend.spawn(async move {
            let result = backend.cancel(&name, id).await;
            // The share is gone only when the agent is.
            let _ = inbox.send(ToShare::Cancelled(result)).await;
            backend.poke();
        });
    }

    async fn submit(&mut self) {
        let view = Arc::clone(&self.views.borrow());
        let (stage, name) = (self.share.record.stage, self.share.name.clone());
        let tried = stage != (Stage::Wanted { tried: false });
        // An attempt whose outcome is not known is looked up first, by a poll that began after it.
        let since = self.last_attempt.or(tried.then_some(self.begun));
        if view.number == 0 || since.is_some_and(|at| view.began < at) {
            self.submission = Submission::AwaitsPoll;
            self.share.backend.poke();
            return;
        }
        if tried && view.jobs.contains_key(&name) {
            return self.on_view().await;
        }
        let arguments = match self.share.backend.arguments(&name, &self.share.holds, stage, &view) {
            Ok(arguments) => arguments,
            Err(why) => return self.give_up(&ExitStatus::LaunchFailed(detail(&why))).await,
        };
        let Some(inbox) = self.share.own_inbox.upgrade() else { return };
        // From here on a batch job may exist, whatever happens to this agent.
        if !tried && !self.set_stage(Stage::Wanted { tried: true }).await {
            return self
                .give_up(&ExitStatus::LaunchFailed("the intent to submit is not durable".into()))
                .await;
        }
        self.submission = Submission::InFlight;
        let (backend, script) = (Arc::clone(&self.share.backend), self.script());
        self.share.backend.spawn(async move {
            let began = Instant::now();
            let result = backend.cli.submit(&arguments, &script).await;
            // The share is gone only when the agent is.
            let _ = inbox.send(ToShare::Submitted { began, result }).await;
            backend.poke();
        });
    }

    /// The batch job: it becomes the runner, which finds its ticket on its standard input, where no list
    /// of processes shows it.
    fn script(&self) -> String {
        let settings = &self.share.backend.settings;
        let ticket = Ticket {
            share: self.share.name.clone(),
            identity: self.share.record.identity.clone(),
            agent: settings.advertise.clone(),
            directory: settings.written.runner_directory.clone(),
            patience_ms: settings.written.runner_wait_ms,
        };
        let ticket = serde_json::to_string(&ticket).expect("a ticket is texts and numbers");
        let command: Vec<String> = settings.runner_command.iter().map(|word| quoted(word)).collect();
        format!("#!/bin/sh\nexec {} <<'MUSTER_TICKET'\n{ticket}\nMUSTER_TICKET\n", command.join(" "))
    }

    async fn set_stage(&mut self, stage: Stage) -> bool {
        self.share.record.stage = stage;
        self.persist().await
    }

    async fn persist(&self) -> bool {
        let (directories, record) = (self.share.directories.clone(), self.share.record.clone());
        match blocking(move || directories.write(&record)).await {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(share = self.share.name, %error, "the record of a share is not durable");
                false
            }
        }
    }

    /// A lease that has lapsed is never picked up again, and this share belongs to it.
    async fn check_lease(&mut self) {
        if self.progress.is_over() || !self.share.promise.has_lapsed() {
            return;
        }
        tracing::warn!(share = self.share.name, "the lease of a share has run out");
        if self.share.record.granted.is_none() {
            return self.give_up(&ExitStatus::LeaseExpired).await;
        }
        self.progress.lapsed(Instant::now());
        self.tell(ToRunner::Lapsed);
    }

    /// Ends what waits for too long.
    async fn check_patience(&mut self) {
        if self.share.record.granted.is_some() {
            return;
        }
        let settings = &self.share.backend.settings;
        let (start_wait, runner_wait) = (settings.start_wait, settings.runner_wait);
        let (job, runs_since) = match &self.progress {
            Progress::Unseen => (None, None),
            Progress::Live { job, runs_since, .. } => (Some(job), *runs_since),
            // Its end is told in any case.
            Progress::Over { .. } => return,
        };
        let status = match (job, runs_since) {
            (Some(job), Some(since)) if since.elapsed() > runner_wait + CANCEL_WAIT => {
                let seconds = since.elapsed().as_secs();
                let text = format!(
                    "batch job {} runs on {} for {seconds} s, and its runner has not reported; see runner_command and \
                     advertise",
                    job.id, job.nodes
                );
                ExitStatus::LaunchFailed(detail(&text))
            }
            (job, None) if self.begun.elapsed() > start_wait => {
                let why = match (job, self.said.as_str()) {
                    (Some(job), _) => format!("batch job {} is {} ({})", job.id, job.state, job.reason),
                    (None, "") => "it has no batch job for it".to_owned(),
                    (None, said) => said.to_owned(),
                };
                let seconds = start_wait.as_secs();
                ends::lost(&format!("Slurm started nothing within {seconds} s: {why}"))
            }
            _ => return,
        };
        self.give_up(&status).await;
    }

    /// Nothing was launched and nothing will be: a runner that connects from now on is turned away.
    async fn give_up(&mut self, status: &ExitStatus) {
        for rank in self.open.clone() {
            self.end(rank, status.clone()).await;
        }
    }

    async fn end(&mut self, rank: u32, status: ExitStatus) {
        if !self.open.contains(&rank) {
            return;
        }
        let (directories, key, kept) = (self.share.directories.clone(), self.share.key(rank), status.clone());
        if let Err(error) = blocking(move || directories.end(key, &kept)).await {
            // It stays open: the next look tries again.
            tracing::error!(worker = %key, %error, "an end is not durable");
            return;
        }
        self.open.remove(&rank);
        // The receiver is gone only while the agent shuts down; the disk has it.
        let _ = self.share.events.send(ExecutorEvent::Ended(key, status)).await;
    }

    /// A stop that the runner does not carry out, or never hears.
    fn check_stops(&mut self) {
        let all = self.open.iter().all(|rank| self.stops.contains_key(rank));
        let Some(job) = self.progress.job().filter(|job| !job.is_over()) else { return };
        let latest = self.stops.values().map(|(request, since)| *since + request.grace + CANCEL_WAIT).max();
        // A runner that lost its link dials again within a second or two.
        let first = self.stops.values().map(|(_, since)| *since).min();
        let unheard = self.linked.is_none() && first.is_some_and(|at| at.elapsed() > UNHEARD_MAX);
        if all && (unheard || latest.is_some_and(|at| at <= Instant::now())) {
            let id = job.id;
            self.cancel(id);
        }
    }

    /// The batch job is over, or unknown to Slurm, and its runner has not said how its workers ended.
    async fn conclude_if_over(&mut self) {
        let Progress::Over { job, since, lapsed } = &self.progress else { return };
        let (job, since, lapsed) = (job.clone(), *since, *lapsed);
        let granted = self.share.record.granted.is_some();
        if granted {
            // Its last words may be on their way.
            if self.linked.is_some() && since.elapsed() < CANCEL_WAIT {
                return;
            }
            self.share.promise.end();
            let rest = self.share.promise.rest();
            if rest.is_none_or(|rest| !rest.is_zero()) || since.elapsed() < REST_MARGIN {
                return;
            }
        }
        for rank in self.open.clone() {
            let asked = self.stops.contains_key(&rank) || self.cancellation.is_asked();
            let status = match &job {
                _ if lapsed => ExitStatus::LeaseExpired,
                Some(job) if granted => ends::after_launch(job, asked),
                Some(_) if asked => ExitStatus::NotStarted,
                Some(job) => ends::before_launch(job),
                None => ends::lost("Slurm has no trace of the batch job that ran it"),
            };
            self.end(rank, status).await;
        }
    }

    async fn on_view(&mut self) {
        self.submission.polled(Instant::now());
        let view = Arc::clone(&self.views.borrow_and_update());
        let jobs = view.jobs.get(&self.share.name).map_or(&[][..], Vec::as_slice);
        if let Stage::Wanted { tried: true } = self.share.record.stage
            && !self.submission.is_in_flight()
        {
            // The answer was lost, the job is here.
            if let Some(job) = jobs.iter().max_by_key(|job| (!job.is_over(), job.id)) {
                tracing::info!(share = self.share.name, slurm_job = job.id, "found the batch job again");
                self.acknowledged(job.id).await;
            }
            return;
        }
        let Stage::Submitted { id } = self.share.record.stage else { return };
        for other in jobs.iter().filter(|job| job.id != id && !job.is_over()) {
            // A second one under the same name; only one of them could be given anything to run.
            if !self.open.is_empty() && self.share.record.granted.is_none() && other.holds_node() {
                continue;
            }
            let other = other.id;
            self.cancel(other);
        }
        match jobs.iter().find(|job| job.id == id) {
            Some(job) => self.on_job(job.clone()).await,
            None if self.acknowledged_at.is_none_or(|at| view.began > at) => self.on_lost(id).await,
            None => {}
        }
    }

    async fn on_job(&mut self, job: SlurmJob) {
        self.progress.seen(job, Instant::now());
        let Progress::Live { job, vain_since, .. } = &self.progress else { return };
        if self.share.record.granted.is_some() {
            return;
        }
        let status = if job.is_refused() {
            let text =
                format!("Slurm refuses batch job {}, which would wait for ever: {}", job.id, job.reason);
            ExitStatus::LaunchFailed(detail(&text))
        } else if vain_since.is_some_and(|since| since.elapsed() > VAIN_MAX) {
            // Nodes that have not registered yet, after a restart of the controller, look the same.
            ends::lost(&format!("Slurm's batch job {} would wait for ever: {}", job.id, job.reason))
        } else {
            return;
        };
        self.give_up(&status).await;
    }

    /// Slurm acknowledged the job, and now it has none of that id, or somebody else's.
    async fn on_lost(&mut self, id: u32) {
        if self.open.is_empty() || self.progress.is_over() {
            return;
        }
        if self.share.record.granted.is_some() {
            tracing::error!(share = self.share.name, slurm_job = id, "Slurm has lost a batch job that runs");
            self.progress.lost(Instant::now());
            // It would be stopped anyway, once Slurm finds it on the node: its resources count as free.
            self.share.promise.end();
            self.tell(ToRunner::Lapsed);
            return;
        }
        tracing::warn!(share = self.share.name, slurm_job = id, "Slurm has lost an acknowledged batch job");
        self.resubmissions += 1;
        if self.resubmissions > RESUBMISSIONS_MAX {
            let text = format!("Slurm has lost its batch job {} times", self.resubmissions);
            return self.give_up(&ends::lost(&text)).await;
        }
        self.progress = Progress::Unseen;
        if self.set_stage(Stage::Wanted { tried: true }).await && !self.submission.is_in_flight() {
            self.submission = Submission::Due { at: Instant::now() };
        }
    }

    async fn acknowledged(&mut self, id: u32) {
        self.acknowledged_at = Some(Instant::now());
        self.said.clear();
        self.wait = SUBMIT_WAIT.0;
        // Not durable: a restarted agent looks it up by its name.
        self.set_stage(Stage::Submitted { id }).await;
    }

    async fn on_message(&mut self, message: ToShare) {
        match message {
            ToShare::Stop { rank, request } => self.on_stop(rank, request).await,
            ToShare::Acknowledged => {}
            ToShare::Cancelled(result) => {
                self.cancellation.ended();
                if let Err(error) = result {
                    tracing::warn!(share = self.share.name, %error, "a cancellation failed; trying again");
                }
            }
            ToShare::Submitted { began, result } => self.on_submitted(began, result).await,
            ToShare::Hello { connection, runner, slurm_job, out } => {
                self.on_hello(Linked { connection, out }, runner, &slurm_job).await;
            }
            ToShare::Frame(connection, frame) => {
                if self.linked.as_ref().is_some_and(|linked| linked.connection == connection) {
                    self.on_frame(frame).await;
                }
            }
            ToShare::Noted { id, refused } => {
                self.noting = self.noting.saturating_sub(1);
                self.tell(ToRunner::Noted { id, refused });
            }
            ToShare::Gone(connection) => {
                self.linked.take_if(|linked| linked.connection == connection);
            }
        }
    }

    async fn on_submitted(&mut self, began: Instant, result: Result<u32, CallError>) {
        // Only a poll that begins after this can say that there is none.
        let now = Instant::now();
        self.last_attempt = Some(now);
        self.submission = Submission::Due { at: now };
        match result {
            Ok(id) => {
                tracing::info!(
                    share = self.share.name,
                    slurm_job = id,
                    took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                    "submitted"
                );
                self.acknowledged(id).await;
            }
            Err(error @ (CallError::Unreachable(_) | CallError::Busy(_))) => {
                tracing::warn!(share = self.share.name, %error, uncertain = error.is_uncertain(), "not submitted; trying again");
                self.said = error.to_string();
                self.submission = Submission::Due { at: now + self.wait };
                self.wait = (self.wait * 2).min(SUBMIT_WAIT.1);
            }
            Err(error) => self.give_up(&ExitStatus::LaunchFailed(detail(&error.to_string()))).await,
        }
    }

    async fn on_stop(&mut self, rank: u32, request: StopRequest) {
        if !self.open.contains(&rank) {
            return;
        }
        if self.share.record.granted.is_none() {
            return self.end(rank, ExitStatus::NotStarted).await;
        }
        let now = Instant::now();
        let slot = self.stops.entry(rank).or_insert((request, now));
        slot.0 = request.behind(Some(slot.0));
        let stop = to_runner(rank, slot.0);
        self.tell(stop);
    }

    /// To the runner, when there is one; a full queue is a connection that does not move, and ends.
    fn tell(&mut self, message: ToRunner) {
        let sent = self.linked.as_ref().map(|linked| linked.out.try_send(message));
        if let Some(Err(_)) = sent {
            self.linked = None;
        }
    }

    async fn on_hello(&mut self, linked: Linked, runner: String, slurm_job: &str) {
        let answer = self.answer(&runner, slurm_job).await;
        if matches!(answer, ToRunner::Refused { .. }) {
            // It is told and goes; the one that is linked stays.
            let _ = linked.out.try_send(answer);
            return;
        }
        tracing::info!(share = self.share.name, slurm_job, "its runner is connected");
        let again = matches!(answer, ToRunner::GoOn { .. });
        self.linked = Some(linked);
        self.tell(answer);
        if !again {
            self.heard = 0;
        }
        let stops: Vec<ToRunner> =
            self.stops.iter().map(|(rank, (request, _))| to_runner(*rank, *request)).collect();
        for stop in stops {
            self.tell(stop);
        }
    }

    /// What a runner that connects is told to do.
    async fn answer(&mut self, runner: &str, slurm_job: &str) -> ToRunner {
        let refused = |reason: &str| ToRunner::Refused { reason: reason.to_owned() };
        match &self.share.record.granted {
            Some(granted) if granted == runner => {
                return match self.share.promise.left() {
                    Some(left) => ToRunner::GoOn { left },
                    // It may still tell how its workers ended.
                    None => ToRunner::GoOn { left: super::link::LeaseRemainder { nanos: 0, grace_ms: 0 } },
                };
            }
            Some(_) => return refused("another runner has this placement"),
            None => {}
        }
        if self.open.is_empty() {
            return refused("the placement is over");
        }
        if self.progress.is_over() {
            return refused("Slurm says that its batch job is over");
        }
        let Some(left) = self.share.promise.left() else {
            return refused("the node's lease has run out");
        };
        let mut placement = self.share.record.placement.clone();
        placement.workers.retain(|worker| self.open.contains(&worker.rank));
        self.share.record.granted = Some(runner.to_owned());
        if !self.persist().await {
            // A later runner must not be granted what this one may remember.
            self.give_up(&ExitStatus::LaunchFailed("the grant is not durable".into())).await;
            return refused("the agent cannot keep what it grants");
        }
        if let Ok(id) = slurm_job.parse()
            && self.share.record.stage != (Stage::Submitted { id })
        {
            // Its word comes before sbatch's own answer, or it is the other one of two.
            self.acknowledged(id).await;
        }
        ToRunner::Launch(Box::new(Grant {
            placement,
            left,
            node: self.share.node.clone(),
            accelerator: self.share.accelerator.clone(),
            logs: self.share.backend.logs.clone(),
            pass_environment: self.share.backend.pass_environment.clone(),
            takes_notes: self.share.notes.get().is_some(),
        }))
    }

    async fn on_frame(&mut self, frame: Frame) {
        let number = match &frame {
            Frame::Output(piece) => piece.number,
            Frame::Message(ToAgent::Running { number, .. } | ToAgent::Ended { number, .. }) => *number,
            Frame::Message(ToAgent::Done) => {
                self.linked = None;
                return;
            }
            Frame::Message(ToAgent::Note { id, rank, note }) => {
                self.on_note(*id, *rank, *note);
                return;
            }
            // The connection's own.
            Frame::Message(ToAgent::Hello { .. } | ToAgent::Renew { .. }) => return,
        };
        // Said again after a broken connection.
        if number > self.heard {
            self.heard = number;
            match frame {
                Frame::Output(piece) => {
                    let (key, limits) = (self.share.key(piece.rank), &self.share.backend.logs);
                    if self.share.record.placement.ranks().any(|rank| rank == piece.rank) {
                        let tally = self.outputs.write(&self.share.directories, key, &piece, limits);
                        let metrics = &self.share.backend.metrics;
                        metrics.output(OutputFate::Kept, tally.kept);
                        metrics.output(OutputFate::Dropped, tally.dropped);
                    }
                }
                Frame::Message(ToAgent::Running { rank, .. }) if self.open.contains(&rank) => {
                    let running = ExecutorEvent::Running(self.share.key(rank));
                    // The receiver is gone only while the agent shuts down.
                    let _ = self.share.events.send(running).await;
                }
                Frame::Message(ToAgent::Ended { rank, status, .. }) => {
                    self.outputs.end(rank);
                    let status = self.verdict(rank, status);
                    self.end(rank, status).await;
                }
                Frame::Message(_) => {}
            }
        }
        self.tell(ToRunner::Ack { number });
    }
}

impl Work {
    /// What a worker says goes to the node's loop, as if it had been said on this host.
    fn on_note(&mut self, id: u64, rank: u32, note: WorkerEvent) {
        let is_ours = self.share.record.placement.ranks().any(|own| own == rank);
        let Some(notes) = self.share.notes.get().filter(|_| is_ours) else {
            let refused = Some(format!("rank {rank} is none of this node's, or its notes are not taken"));
            return self.tell(ToRunner::Noted { id, refused });
        };
        let (answer, answered) = oneshot::channel();
        let said = Event::Worker(WorkerReport { key: self.share.key(rank), event: note, answer });
        if id == 0 {
            // The next one will do where the queue is full.
            let _ = notes.try_send(said);
            return;
        }
        if self.noting >= limits::NOTES_WAITING_MAX {
            let refused = Some("too many checkpoints wait for the cluster's answer".to_owned());
            return self.tell(ToRunner::Noted { id, refused });
        }
        let Some(inbox) = self.share.own_inbox.upgrade() else { return };
        self.noting += 1;
        let notes = notes.clone();
        self.share.backend.spawn(async move {
            // Without an answer the agent is going down; the runner says it again to the next one.
            if notes.send(said).await.is_ok()
                && let Ok(outcome) = answered.await
            {
                let _ = inbox.send(ToShare::Noted { id, refused: outcome.err() }).await;
            }
        });
    }

    /// What a worker made of being told to stop is not its result, unless the leader told it.
    fn verdict(&self, rank: u32, status: ExitStatus) -> ExitStatus {
        let asked = self.stops.contains_key(&rank);
        match status {
            // Cancelled by ourselves, because the stop did not get through.
            ExitStatus::BackendLost(_) if asked => ExitStatus::Signal(15),
            ExitStatus::Code(_) | ExitStatus::Signal(_) if self.share.promise.has_lapsed() => {
                ExitStatus::LeaseExpired
            }
            ExitStatus::Code(_) | ExitStatus::Signal(_)
                if matches!(self.progress, Progress::Over { job: None, .. }) =>
            {
                ends::lost("Slurm has no trace of the batch job that ran it")
            }
            status => status,
        }
    }
}

/// A word for `sh`.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn to_runner(rank: u32, request: StopRequest) -> ToRunner {
    let grace_ms = u64::try_from(request.grace.as_millis()).unwrap_or(u64::MAX);
    ToRunner::Stop { rank, grace_ms, reason: request.reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_shells_as_they_are() {
        for word in ["plain", "with space", "it's", "$HOME `x` \\ \" *"] {
            let out = std::process::Command::new("sh")
                .arg("-c")
                .arg(format!("printf %s {}", quoted(word)))
                .output();
            assert_eq!(String::from_utf8(out.unwrap().stdout).unwrap(), word);
        }
    }
}
