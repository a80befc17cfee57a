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

use super::backend::{Backend, Call, View};
use super::batch::{Cancellation, Progress, Submission};
use super::command::CallError;
use super::ends;
use super::parse::SlurmJob;
use super::stage::Stage;
use crate::remote::link::{Ticket, ToRunner, Within};
use crate::remote::lost;
use crate::remote::scheduler::{Allocation, ToShare};
use crate::remote::workers::{Greeting, Linked, Workers};
use crate::rules::detail;
use muster_types::ExitStatus;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
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

/// The share at work.
struct Work {
    workers: Workers<Backend>,
    views: watch::Receiver<Arc<View>>,
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

/// Until nothing of it is left.
pub(super) async fn run(share: Allocation<Backend>) {
    let now = Instant::now();
    let mut work = Work {
        views: share.backend.views(),
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
        workers: Workers::new(share),
    };
    work.run().await;
}

impl Work {
    async fn run(&mut self) {
        loop {
            if self.settle().await {
                break;
            }
            let until = self.next_look();
            tokio::select! {
                message = self.workers.share.inbox.recv() => match message {
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
        self.workers.forget().await;
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
        matches!(self.workers.share.record.stage, Stage::Wanted { .. }) && !self.workers.open.is_empty()
    }

    /// Does what is due; whether nothing is left to do.
    async fn settle(&mut self) -> bool {
        if !self.workers.open.is_empty() {
            if self.wants_submission() && self.submission.is_due(Instant::now()) {
                self.submit().await;
            }
            self.check_lease().await;
            self.check_patience().await;
            self.check_stops();
            self.conclude_if_over().await;
            return false;
        }
        self.workers.share.promise.end();
        self.ended_since.get_or_insert_with(Instant::now);
        self.is_gone_from_slurm() && self.workers.is_acknowledged()
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
            if self.workers.share.record.stage == (Stage::Wanted { tried: false }) {
                return true;
            }
            self.last_attempt = Some(Instant::now());
            return false;
        };
        if view.number == 0 || view.began < ended {
            self.workers.share.backend.poke();
            return false;
        }
        let left =
            view.jobs.get(&self.workers.share.name).and_then(|jobs| jobs.iter().find(|job| !job.is_over()));
        match left {
            Some(job) => {
                // A runner that is connected is about to exit by itself.
                let patience = if self.workers.linked.is_some() { CANCEL_WAIT } else { Duration::ZERO };
                if ended.elapsed() >= patience {
                    self.cancel(job.id);
                }
                false
            }
            None => {
                let certain = matches!(self.workers.share.record.stage, Stage::Submitted { .. });
                certain || attempt.elapsed() > LATE_MAX
            }
        }
    }

    fn cancel(&mut self, id: u32) {
        let Some(inbox) = self.workers.share.own_inbox.upgrade() else { return };
        if !self.cancellation.begin(Instant::now(), CANCEL_WAIT) {
            return;
        }
        let (backend, name) = (Arc::clone(&self.workers.share.backend), self.workers.share.name.clone());
        self.workers.share.backend.common.spawn(async move {
            let result = backend.cancel(&name, id).await;
            // The share is gone only when the agent is.
            let _ = inbox.send(ToShare::Call(Call::Cancelled(result))).await;
            backend.poke();
        });
    }

    async fn submit(&mut self) {
        let view = Arc::clone(&self.views.borrow());
        let (stage, name) = (self.workers.share.record.stage, self.workers.share.name.clone());
        let tried = stage != (Stage::Wanted { tried: false });
        // An attempt whose outcome is not known is looked up first, by a poll that began after it.
        let since = self.last_attempt.or(tried.then_some(self.begun));
        if view.number == 0 || since.is_some_and(|at| view.began < at) {
            self.submission = Submission::AwaitsPoll;
            self.workers.share.backend.poke();
            return;
        }
        if tried && view.jobs.contains_key(&name) {
            return self.on_view().await;
        }
        let arguments =
            match self.workers.share.backend.arguments(&name, &self.workers.share.holds, stage, &view) {
                Ok(arguments) => arguments,
                Err(why) => return self.workers.give_up(&ExitStatus::LaunchFailed(detail(&why))).await,
            };
        let Some(inbox) = self.workers.share.own_inbox.upgrade() else { return };
        // From here on a batch job may exist, whatever happens to this agent.
        if !tried && !self.set_stage(Stage::Wanted { tried: true }).await {
            return self
                .workers
                .give_up(&ExitStatus::LaunchFailed("the intent to submit is not durable".into()))
                .await;
        }
        self.submission = Submission::InFlight;
        let (backend, script) = (Arc::clone(&self.workers.share.backend), self.script());
        self.workers.share.backend.common.spawn(async move {
            let began = Instant::now();
            let result = backend.cli.submit(&arguments, &script).await;
            // The share is gone only when the agent is.
            let _ = inbox.send(ToShare::Call(Call::Submitted { began, result })).await;
            backend.poke();
        });
    }

    /// The batch job: it becomes the runner, which finds its ticket on its standard input, where no list
    /// of processes shows it.
    fn script(&self) -> String {
        let settings = &self.workers.share.backend.settings;
        let ticket = Ticket {
            share: self.workers.share.name.clone(),
            identity: self.workers.share.record.identity.clone(),
            agent: settings.advertise.clone(),
            directory: settings.written.runner_directory.clone(),
            patience_ms: settings.written.runner_wait_ms,
            within: Within::Slurm,
        };
        let ticket = serde_json::to_string(&ticket).expect("a ticket is texts and numbers");
        let command: Vec<String> = settings.runner_command.iter().map(|word| quoted(word)).collect();
        format!("#!/bin/sh\nexec {} <<'MUSTER_TICKET'\n{ticket}\nMUSTER_TICKET\n", command.join(" "))
    }

    async fn set_stage(&mut self, stage: Stage) -> bool {
        self.workers.share.record.stage = stage;
        self.workers.persist().await
    }

    /// A lease that has lapsed is never picked up again, and this share belongs to it.
    async fn check_lease(&mut self) {
        if self.progress.is_over() || !self.workers.share.promise.has_lapsed() {
            return;
        }
        tracing::warn!(job = %self.workers.job(), node = self.workers.share.node, share = self.workers.share.name, "the lease of a share has run out");
        if self.workers.share.record.granted.is_none() {
            return self.workers.give_up(&ExitStatus::LeaseExpired).await;
        }
        self.progress.lapsed(Instant::now());
        self.workers.tell(ToRunner::Lapsed);
    }

    /// Ends what waits for too long.
    async fn check_patience(&mut self) {
        if self.workers.share.record.granted.is_some() {
            return;
        }
        let settings = &self.workers.share.backend.settings;
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
                lost(&format!("Slurm started nothing within {seconds} s: {why}"))
            }
            _ => return,
        };
        self.workers.give_up(&status).await;
    }

    /// A stop that the runner does not carry out, or never hears.
    fn check_stops(&mut self) {
        let all = self.workers.open.iter().all(|rank| self.workers.stops.contains_key(rank));
        let Some(job) = self.progress.job().filter(|job| !job.is_over()) else { return };
        let latest =
            self.workers.stops.values().map(|(request, since)| *since + request.grace + CANCEL_WAIT).max();
        // A runner that lost its link dials again within a second or two.
        let first = self.workers.stops.values().map(|(_, since)| *since).min();
        let unheard = self.workers.linked.is_none() && first.is_some_and(|at| at.elapsed() > UNHEARD_MAX);
        if all && (unheard || latest.is_some_and(|at| at <= Instant::now())) {
            let id = job.id;
            self.cancel(id);
        }
    }

    /// The batch job is over, or unknown to Slurm, and its runner has not said how its workers ended.
    async fn conclude_if_over(&mut self) {
        let Progress::Over { job, since, lapsed } = &self.progress else { return };
        let (job, since, lapsed) = (job.clone(), *since, *lapsed);
        let granted = self.workers.share.record.granted.is_some();
        if granted {
            // Its last words may be on their way.
            if self.workers.linked.is_some() && since.elapsed() < CANCEL_WAIT {
                return;
            }
            self.workers.share.promise.end();
            let rest = self.workers.share.promise.rest();
            if rest.is_none_or(|rest| !rest.is_zero()) || since.elapsed() < REST_MARGIN {
                return;
            }
        }
        for rank in self.workers.open.clone() {
            let asked = self.workers.stops.contains_key(&rank) || self.cancellation.is_asked();
            let status = match &job {
                _ if lapsed => ExitStatus::LeaseExpired,
                Some(job) if granted => ends::after_launch(job, asked),
                Some(_) if asked => ExitStatus::NotStarted,
                Some(job) => ends::before_launch(job),
                None => lost("Slurm has no trace of the batch job that ran it"),
            };
            self.workers.end(rank, status).await;
        }
    }

    async fn on_view(&mut self) {
        self.submission.polled(Instant::now());
        let view = Arc::clone(&self.views.borrow_and_update());
        let jobs = view.jobs.get(&self.workers.share.name).map_or(&[][..], Vec::as_slice);
        if let Stage::Wanted { tried: true } = self.workers.share.record.stage
            && !self.submission.is_in_flight()
        {
            // The answer was lost, the job is here.
            if let Some(job) = jobs.iter().max_by_key(|job| (!job.is_over(), job.id)) {
                tracing::info!(
                    job = %self.workers.job(),
                    node = self.workers.share.node,
                    share = self.workers.share.name,
                    slurm_job = job.id,
                    "found the batch job again"
                );
                self.acknowledged(job.id).await;
            }
            return;
        }
        let Stage::Submitted { id } = self.workers.share.record.stage else { return };
        for other in jobs.iter().filter(|job| job.id != id && !job.is_over()) {
            // A second one under the same name; only one of them could be given anything to run.
            if !self.workers.open.is_empty()
                && self.workers.share.record.granted.is_none()
                && other.holds_node()
            {
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
        if self.workers.share.record.granted.is_some() {
            return;
        }
        let status = if job.is_refused() {
            let text =
                format!("Slurm refuses batch job {}, which would wait for ever: {}", job.id, job.reason);
            ExitStatus::LaunchFailed(detail(&text))
        } else if vain_since.is_some_and(|since| since.elapsed() > VAIN_MAX) {
            // Nodes that have not registered yet, after a restart of the controller, look the same.
            lost(&format!("Slurm's batch job {} would wait for ever: {}", job.id, job.reason))
        } else {
            return;
        };
        self.workers.give_up(&status).await;
    }

    /// Slurm acknowledged the job, and now it has none of that id, or somebody else's.
    async fn on_lost(&mut self, id: u32) {
        if self.workers.open.is_empty() || self.progress.is_over() {
            return;
        }
        if self.workers.share.record.granted.is_some() {
            tracing::error!(
                job = %self.workers.job(),
                node = self.workers.share.node,
                share = self.workers.share.name,
                slurm_job = id,
                "Slurm has lost a batch job that runs"
            );
            self.progress.lost(Instant::now());
            // It would be stopped anyway, once Slurm finds it on the node: its resources count as free.
            self.workers.share.promise.end();
            self.workers.tell(ToRunner::Lapsed);
            return;
        }
        tracing::warn!(
            job = %self.workers.job(),
            node = self.workers.share.node,
            share = self.workers.share.name,
            slurm_job = id,
            "Slurm has lost an acknowledged batch job"
        );
        self.resubmissions += 1;
        if self.resubmissions > RESUBMISSIONS_MAX {
            let text = format!("Slurm has lost its batch job {} times", self.resubmissions);
            return self.workers.give_up(&lost(&text)).await;
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

    async fn on_message(&mut self, message: ToShare<Call>) {
        match message {
            ToShare::Stop { rank, request } => self.workers.stop(rank, request).await,
            ToShare::Acknowledged => {}
            ToShare::Call(Call::Cancelled(result)) => {
                self.cancellation.ended();
                if let Err(error) = result {
                    tracing::warn!(job = %self.workers.job(), node = self.workers.share.node, share = self.workers.share.name, %error, "a cancellation failed; trying again");
                }
            }
            ToShare::Call(Call::Submitted { began, result }) => self.on_submitted(began, result).await,
            ToShare::Hello { connection, runner, job, out } => {
                self.on_hello(Linked { connection, out }, runner, &job).await;
            }
            ToShare::Frame(connection, frame) => {
                if let Some((rank, status)) = self.workers.take(connection, frame).await {
                    let status = self.verdict(rank, status);
                    self.workers.end(rank, status).await;
                    self.workers.heard();
                }
            }
            ToShare::Tell(message) => self.workers.tell(message),
            ToShare::Noted { id, refused } => self.workers.noted(id, refused),
            ToShare::Gone(connection) => self.workers.gone(connection),
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
                    job = %self.workers.job(),
                    node = self.workers.share.node,
                    share = self.workers.share.name,
                    slurm_job = id,
                    took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                    "submitted"
                );
                self.acknowledged(id).await;
            }
            Err(error @ (CallError::Unreachable(_) | CallError::Busy(_))) => {
                tracing::warn!(job = %self.workers.job(), node = self.workers.share.node, share = self.workers.share.name, %error, uncertain = error.is_uncertain(), "not submitted; trying again");
                self.said = error.to_string();
                self.submission = Submission::Due { at: now + self.wait };
                self.wait = (self.wait * 2).min(SUBMIT_WAIT.1);
            }
            Err(error) => self.workers.give_up(&ExitStatus::LaunchFailed(detail(&error.to_string()))).await,
        }
    }

    async fn on_hello(&mut self, linked: Linked, runner: String, slurm_job: &str) {
        let refusal = self.progress.is_over().then_some("Slurm says that its batch job is over");
        let greeting = self.workers.greet(linked, runner, refusal).await;
        if greeting == Greeting::Refused {
            return;
        }
        tracing::info!(job = %self.workers.job(), node = self.workers.share.node, share = self.workers.share.name, slurm_job, "its runner is connected");
        if greeting == Greeting::Launch
            && let Ok(id) = slurm_job.parse()
            && self.workers.share.record.stage != (Stage::Submitted { id })
        {
            // Its word comes before sbatch's own answer, or it is the other one of two.
            self.acknowledged(id).await;
        }
    }

    /// What a worker made of being told to stop is not its result, unless the leader told it.
    fn verdict(&self, rank: u32, status: ExitStatus) -> ExitStatus {
        let asked = self.workers.stops.contains_key(&rank);
        match status {
            // Cancelled by ourselves, because the stop did not get through.
            ExitStatus::BackendLost(_) if asked => ExitStatus::Signal(15),
            ExitStatus::Code(_) | ExitStatus::Signal(_) if self.workers.share.promise.has_lapsed() => {
                ExitStatus::LeaseExpired
            }
            ExitStatus::Code(_) | ExitStatus::Signal(_)
                if matches!(self.progress, Progress::Over { job: None, .. }) =>
            {
                lost("Slurm has no trace of the batch job that ran it")
            }
            status => status,
        }
    }
}

/// A word for `sh`.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
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
