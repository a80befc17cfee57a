//! One share: this node's part of one placement, from the intent to the moment when neither Kubernetes nor the leader has anything
//! of it any more.
//!
//! A share is one task that owns one record. It makes a pod, sees by the watch what becomes of it, and gives the first runner that
//! connects what there is to launch. What is certain is the grant: the workers run only where a grant was made, and only one is
//! ever made. So whatever Kubernetes does with the pod (loses it, makes it twice, starts it after it was given up), nothing runs
//! twice.
//!
//! **Invariant:** an end is told only when the runner said that nothing is left, when none was ever told to launch, when the node
//! says that the container has ended, or when no lease that was promised to it can still stand.

use super::backend::{Backend, Call, View};
use super::client::CallError;
use super::objects::PodObject;
use super::pod::WORK_DIRECTORY;
use super::progress::{Cause, Deletion, Progress, Times};
use super::stage::Stage;
use super::{describe, ends, pod};
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

/// First and longest wait between two attempts to make the pod.
const CREATE_WAIT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));
/// How long a stop waits for a runner to connect before the pod is deleted.
const UNHEARD_MAX: Duration = Duration::from_secs(5);
/// How long an image may fail to come before nothing is expected of it any more.
const HINDERED_MAX: Duration = Duration::from_secs(30);
/// What a runner gets to exit by itself once its workers have ended, and between two deletions.
const DELETE_WAIT: Duration = Duration::from_secs(10);
/// How long a node may take to end a pod that is being deleted before it is deleted without its word, where the node is lost.
const FORCE_WAIT: Duration = Duration::from_secs(30);
/// How long a pod may be missing from the watch before it is looked up, and between two such calls.
const LOOK_UP_WAIT: Duration = Duration::from_secs(5);
/// Beyond the end of a lease and its grace: the kill itself, and scheduling.
const REST_MARGIN: Duration = Duration::from_secs(1);

/// The next call that makes the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Creation {
    /// Not before this time.
    Due { at: Instant },
    /// The call runs.
    InFlight,
}

/// The share at work.
struct Work {
    workers: Workers<Backend>,
    views: watch::Receiver<Arc<View>>,
    creation: Creation,
    progress: Progress,
    deletion: Deletion,
    /// When a look-up began that has not ended; and when the last one did.
    is_looking_up: bool,
    looked_up_at: Instant,
    /// A look-up has found nothing, after all ends were told.
    is_gone: bool,
    begun: Instant,
    /// The pause after the next call that fails.
    wait: Duration,
    /// What the last call said that failed.
    said: String,
    /// What its runner was promised has been over since.
    unheard_since: Option<Instant>,
    /// All ends are told since.
    ended_since: Option<Instant>,
}

/// Until nothing of it is left.
pub(super) async fn run(share: Allocation<Backend>) {
    let now = Instant::now();
    let mut work = Work {
        views: share.backend.views(),
        creation: Creation::Due { at: now },
        progress: Progress::Unseen,
        deletion: Deletion::NotAsked,
        is_looking_up: false,
        looked_up_at: now,
        is_gone: false,
        begun: now,
        wait: CREATE_WAIT.0,
        said: String::new(),
        unheard_since: None,
        ended_since: None,
        workers: Workers::new(share),
    };
    work.run().await;
}

impl Work {
    async fn run(&mut self) {
        self.on_view();
        loop {
            if self.settle().await {
                break;
            }
            let soon = Instant::now() + Duration::from_secs(1);
            let until = match self.creation {
                Creation::Due { at } if self.wants_creation() => at.min(soon),
                _ => soon,
            };
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
                    self.on_view();
                }
                () = tokio::time::sleep_until(until) => {}
            }
        }
        self.workers.forget().await;
    }

    fn stage(&self) -> &Stage {
        &self.workers.share.record.stage
    }

    fn wants_creation(&self) -> bool {
        matches!(self.stage(), Stage::Wanted { .. }) && !self.workers.open.is_empty()
    }

    /// Does what is due; whether nothing is left to do.
    async fn settle(&mut self) -> bool {
        if !self.workers.open.is_empty() {
            let is_due = matches!(self.creation, Creation::Due { at } if at <= Instant::now());
            if self.wants_creation() && is_due {
                self.create().await;
            }
            self.check_lease().await;
            self.check_patience().await;
            self.check_heard();
            self.check_stops();
            self.conclude_if_over().await;
            return false;
        }
        self.workers.share.promise.end();
        self.ended_since.get_or_insert_with(Instant::now);
        self.is_gone_from_kubernetes() && self.workers.is_acknowledged()
    }

    /// Whether Kubernetes has nothing of it; sees to it that it will not.
    fn is_gone_from_kubernetes(&mut self) -> bool {
        if self.creation == Creation::InFlight || self.deletion.is_in_flight() {
            return false;
        }
        if self.is_gone || *self.stage() == (Stage::Wanted { tried: false }) {
            return true;
        }
        let view = self.workers.share.backend.view();
        let Some(pod) = view.picture.own.get(&self.workers.share.name).cloned() else {
            // The watch may be behind.
            self.look_up(if view.number == 0 { LOOK_UP_WAIT } else { Duration::from_secs(1) });
            return false;
        };
        let ended = self.ended_since.map_or(Duration::ZERO, |since| since.elapsed());
        let has_ended = pod.terminated.is_some() || pod.phase.is_over() || pod.node.is_none();
        // A runner that was there exits by itself. Its node tells that sooner than it carries a deletion out.
        if self.workers.is_granted() && !has_ended && ended < DELETE_WAIT {
            return false;
        }
        let node = view.picture.nodes.get(&self.workers.share.place);
        let is_lost = node.is_none_or(|node| !node.is_ready) && ended > FORCE_WAIT;
        // No node is waited for that has nothing to end, or whose lease ended long ago.
        let grace = if has_ended || is_lost { Duration::ZERO } else { Duration::from_secs(1) };
        if !pod.is_deleting || is_lost || self.deletion.is_asked() {
            self.delete(&pod, grace);
        }
        false
    }

    fn delete(&mut self, pod: &PodObject, grace: Duration) {
        let Some(inbox) = self.workers.share.own_inbox.upgrade() else { return };
        if !self.deletion.begin(Instant::now(), DELETE_WAIT) {
            return;
        }
        let backend = Arc::clone(&self.workers.share.backend);
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        self.workers.share.backend.common.spawn(async move {
            let result = backend.server.delete(&name, &uid, grace).await;
            // The share is gone only when the agent is.
            let _ = inbox.send(ToShare::Call(Call::Deleted(result))).await;
        });
    }

    /// Asks whether the pod is there, unless that was asked less than `pause` ago.
    fn look_up(&mut self, pause: Duration) {
        if self.is_looking_up || self.looked_up_at.elapsed() < pause {
            return;
        }
        let Some(inbox) = self.workers.share.own_inbox.upgrade() else { return };
        self.is_looking_up = true;
        let (backend, name) = (Arc::clone(&self.workers.share.backend), self.workers.share.name.clone());
        self.workers.share.backend.common.spawn(async move {
            let found = backend.server.find(&name).await;
            let uid = found.map(|pod| pod.map(|pod| pod.uid));
            // The share is gone only when the agent is.
            let _ = inbox.send(ToShare::Call(Call::Found(uid))).await;
        });
    }

    async fn create(&mut self) {
        let share = &self.workers.share;
        let (backend, view) = (Arc::clone(&share.backend), share.backend.view());
        if view.number == 0 {
            self.creation = Creation::Due { at: Instant::now() + CREATE_WAIT.0 };
            return;
        }
        let (settings, placement) = (&backend.settings, &share.record.placement);
        let Some(node) = view.picture.nodes.get(&share.place) else {
            let why = format!("Kubernetes has no node {} any more", share.place);
            return self.workers.give_up(&lost(&why)).await;
        };
        let offered = describe::offered(settings, node);
        let scope = &backend.common.scope;
        let made = pod::pod(settings, scope, &share.name, placement, &share.place, offered.as_ref());
        let made = match made {
            Ok(made) => made,
            Err(why) => return self.workers.give_up(&ExitStatus::LaunchFailed(detail(&why))).await,
        };
        let ticket = self.ticket();
        let Some(inbox) = share.own_inbox.upgrade() else { return };
        let (name, placement) = (share.name.clone(), placement.clone());
        // From here on a pod may exist, whatever happens to this agent.
        if *self.stage() == (Stage::Wanted { tried: false })
            && !self.set_stage(Stage::Wanted { tried: true }).await
        {
            let status = ExitStatus::LaunchFailed("the intent to make a pod is not durable".into());
            return self.workers.give_up(&status).await;
        }
        self.creation = Creation::InFlight;
        let making = Arc::clone(&backend);
        backend.common.spawn(async move {
            let created = async {
                let uid = making.server.create(&made).await?;
                let of = (name.as_str(), uid.as_str());
                let secret = pod::secret(&making.settings, &making.common.scope, &placement, of, &ticket);
                making.server.create_secret(&secret.map_err(CallError::Refused)?).await?;
                Ok(uid)
            };
            let created = created.await;
            // The share is gone only when the agent is.
            let _ = inbox.send(ToShare::Call(Call::Created(created))).await;
        });
    }

    /// What the runner in the pod is given.
    fn ticket(&self) -> String {
        let share = &self.workers.share;
        let ticket = Ticket {
            share: share.name.clone(),
            identity: share.record.identity.clone(),
            agent: share.backend.settings.advertise.clone(),
            directory: WORK_DIRECTORY.into(),
            patience_ms: share.backend.settings.written.runner_wait_ms,
            within: Within::Kubernetes,
        };
        serde_json::to_string(&ticket).expect("a ticket is texts and numbers")
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
        if !self.workers.is_granted() {
            return self.workers.give_up(&ExitStatus::LeaseExpired).await;
        }
        self.progress.end(Cause::Lapsed, Instant::now());
        self.workers.tell(ToRunner::Lapsed);
    }

    /// Ends what waits for too long.
    async fn check_patience(&mut self) {
        if self.workers.is_granted() || self.progress.is_over() {
            return;
        }
        let settings = &self.workers.share.backend.settings;
        let (pod, times) = match &self.progress {
            Progress::Live { pod, times } => (Some(Arc::clone(pod)), *times),
            Progress::Unseen | Progress::Over { .. } => (None, Times::default()),
        };
        let hindrance = pod.as_deref().and_then(ends::hindrance);
        let lasts = times.hindered.is_some_and(|since| since.elapsed() > HINDERED_MAX);
        let status = match (hindrance, times) {
            (Some((at_once, status)), _) if at_once || lasts => status,
            (_, Times { runs: Some(since), .. }) if since.elapsed() > settings.runner_wait + DELETE_WAIT => {
                let seconds = since.elapsed().as_secs();
                let text = format!(
                    "pod {} runs for {seconds} s, and its runner has not reported; see kubernetes.advertise",
                    self.workers.share.name
                );
                ExitStatus::LaunchFailed(detail(&text))
            }
            (_, Times { placed: Some(since), runs: None, .. }) if since.elapsed() > settings.image_wait => {
                let seconds = since.elapsed().as_secs();
                lost(&format!("pod {} was not started within {seconds} s", self.workers.share.name))
            }
            (_, Times { placed: None, .. }) if self.begun.elapsed() > settings.start_wait => {
                let unschedulable = pod.as_ref().and_then(|pod| pod.unschedulable.clone());
                let said = Some(self.said.clone()).filter(|said| !said.is_empty());
                let why = unschedulable.or(said).unwrap_or_else(|| "it says nothing of the pod".to_owned());
                let seconds = settings.start_wait.as_secs();
                lost(&format!("Kubernetes found no place within {seconds} s: {why}"))
            }
            _ => return,
        };
        self.workers.give_up(&status).await;
    }

    /// A runner that has not asked for its lease counts on what it was promised last, connected or not. When that is over, its
    /// workers are.
    fn check_heard(&mut self) {
        let rest = self.workers.share.promise.rest();
        if !self.workers.is_granted() || rest.is_none_or(|rest| !rest.is_zero()) {
            self.unheard_since = None;
            return;
        }
        let since = *self.unheard_since.get_or_insert_with(Instant::now);
        // One that comes back tells it better.
        if since.elapsed() > DELETE_WAIT && !self.progress.is_over() {
            tracing::warn!(
                job = %self.workers.job(),
                node = self.workers.share.node,
                share = self.workers.share.name,
                "nothing was heard of a runner for as long as its lease stood"
            );
            self.progress.end(Cause::Unheard, Instant::now());
            self.workers.share.promise.end();
            self.workers.tell(ToRunner::Lapsed);
        }
    }

    /// A stop that the runner does not carry out, or never hears.
    fn check_stops(&mut self) {
        let (open, stops) = (&self.workers.open, &self.workers.stops);
        let all = open.iter().all(|rank| stops.contains_key(rank));
        let pod = self.progress.pod().filter(|pod| !pod.phase.is_over() && pod.terminated.is_none());
        let Some(pod) = pod.cloned().filter(|_| all) else { return };
        let now = Instant::now();
        let ends = stops.values().map(|(request, since)| *since + request.grace);
        let latest = ends.max().unwrap_or(now);
        // A runner that lost its link dials again within a second or two.
        let first = stops.values().map(|(_, since)| *since).min();
        let unheard = self.workers.linked.is_none() && first.is_some_and(|at| at.elapsed() > UNHEARD_MAX);
        if unheard || latest + DELETE_WAIT <= now {
            self.delete(&pod, latest.saturating_duration_since(now).max(Duration::from_secs(1)));
        }
    }

    /// The pod is over, or nobody knows it any more, and its runner has not said how its workers ended.
    async fn conclude_if_over(&mut self) {
        let Progress::Over { pod, since, cause } = &self.progress else { return };
        let (pod, since, cause) = (pod.clone(), *since, *cause);
        let granted = self.workers.is_granted();
        if granted {
            // Its last words may be on their way.
            if self.workers.linked.is_some() && since.elapsed() < DELETE_WAIT {
                return;
            }
            self.workers.share.promise.end();
            // Its node says that nothing is left; else only the end of the lease does.
            let has_ended = pod.as_ref().is_some_and(|pod| {
                pod.terminated.as_ref().is_some_and(|ended| ended.reason != "ContainerStatusUnknown")
            });
            let rest = self.workers.share.promise.rest();
            let may_run = rest.is_none_or(|rest| !rest.is_zero()) || since.elapsed() < REST_MARGIN;
            if !has_ended && may_run {
                return;
            }
        }
        let share = &self.workers.share;
        let view = share.backend.view();
        let node = view.picture.nodes.get(&share.place).map(|node| &**node);
        for rank in self.workers.open.clone() {
            let asked = self.workers.stops.contains_key(&rank) || self.deletion.is_asked();
            let status = match (&pod, cause) {
                (_, Cause::Lapsed) => ExitStatus::LeaseExpired,
                (_, Cause::Unheard) => {
                    ends::unheard(&self.workers.share.name, &self.workers.share.place, node)
                }
                (Some(pod), _) if granted => ends::after_launch(pod, asked),
                (Some(_), _) if asked => ExitStatus::NotStarted,
                (Some(pod), _) => ends::before_launch(pod),
                (None, _) => lost("Kubernetes has no trace of the pod that ran it"),
            };
            self.workers.end(rank, status).await;
        }
    }

    fn on_view(&mut self) {
        let view = Arc::clone(&self.views.borrow_and_update());
        let Stage::Created { uid } = self.stage() else { return };
        let found = view.picture.own.get(&self.workers.share.name).filter(|pod| pod.uid == *uid).cloned();
        let now = Instant::now();
        match found {
            Some(pod) => {
                let is_hindered = ends::hindrance(&pod).is_some();
                self.progress.seen(&pod, is_hindered, now);
            }
            // It was there, and is not any more.
            None if self.progress.pod().is_some() => self.progress.end(Cause::Gone, now),
            None if view.number > 0 && !self.workers.open.is_empty() => self.look_up(LOOK_UP_WAIT),
            None => {}
        }
    }

    async fn on_message(&mut self, message: ToShare<Call>) {
        match message {
            ToShare::Stop { rank, request } => self.workers.stop(rank, request).await,
            ToShare::Acknowledged => {}
            ToShare::Call(Call::Created(result)) => self.on_created(result).await,
            ToShare::Call(Call::Found(result)) => self.on_found(result),
            ToShare::Call(Call::Deleted(result)) => {
                self.deletion.ended();
                if let Err(error) = result {
                    tracing::warn!(job = %self.workers.job(), node = self.workers.share.node, share = self.workers.share.name, %error, "a deletion failed; trying again");
                }
            }
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

    async fn on_created(&mut self, result: Result<String, CallError>) {
        let now = Instant::now();
        self.creation = Creation::Due { at: now };
        self.looked_up_at = now;
        let wait = match &result {
            Err(CallError::Busy { wait, .. }) => *wait,
            _ => Duration::ZERO,
        };
        match result {
            Ok(uid) => {
                tracing::info!(job = %self.workers.job(), node = self.workers.share.node, share = self.workers.share.name, uid, "its pod is made");
                self.said.clear();
                self.wait = CREATE_WAIT.0;
                // Not durable: a restarted agent finds it by its name.
                self.set_stage(Stage::Created { uid }).await;
                self.on_view();
            }
            Err(CallError::Refused(why)) => {
                let text = format!("Kubernetes refuses the pod: {why}");
                self.workers.give_up(&ExitStatus::LaunchFailed(detail(&text))).await;
            }
            Err(error) => {
                tracing::warn!(job = %self.workers.job(), node = self.workers.share.node, share = self.workers.share.name, %error, "its pod is not made; trying again");
                self.said = error.to_string();
                self.creation = Creation::Due { at: now + self.wait.max(wait) };
                self.wait = (self.wait * 2).min(CREATE_WAIT.1);
            }
        }
    }

    /// A look-up says what the watch did not.
    fn on_found(&mut self, result: Result<Option<String>, CallError>) {
        self.is_looking_up = false;
        self.looked_up_at = Instant::now();
        match (result, self.stage()) {
            (Ok(None), _) if self.workers.open.is_empty() => self.is_gone = true,
            (Ok(None), Stage::Created { .. }) => self.progress.end(Cause::Gone, Instant::now()),
            // Another one under that name, or the same: the watch will show it.
            (Ok(_), _) => {}
            (Err(error), _) => {
                tracing::warn!(job = %self.workers.job(), node = self.workers.share.node, share = self.workers.share.name, %error, "its pod was not found out about")
            }
        }
    }

    async fn on_hello(&mut self, linked: Linked, runner: String, uid: &str) {
        let other = matches!(self.stage(), Stage::Created { uid: own } if own != uid);
        let refusal = if other {
            Some("another pod has this placement")
        } else if self.progress.is_over() {
            Some("Kubernetes says that its pod is over")
        } else if self.progress.pod().is_some_and(|pod| pod.is_deleting) {
            Some("its pod is being deleted")
        } else {
            None
        };
        let greeting = self.workers.greet(linked, runner, refusal).await;
        if greeting == Greeting::Refused {
            return;
        }
        tracing::info!(job = %self.workers.job(), node = self.workers.share.node, share = self.workers.share.name, uid, "its runner is connected");
        if greeting == Greeting::Launch && matches!(self.stage(), Stage::Wanted { .. }) && !uid.is_empty() {
            // Its word comes before the server's own answer.
            self.set_stage(Stage::Created { uid: uid.to_owned() }).await;
        }
    }

    /// What a worker made of being told to stop is not its result, unless the leader told it.
    fn verdict(&self, rank: u32, status: ExitStatus) -> ExitStatus {
        let asked = self.workers.stops.contains_key(&rank);
        match status {
            // Deleted by ourselves, because the stop did not get through.
            ExitStatus::BackendLost(_) if asked => ExitStatus::Signal(15),
            ExitStatus::BackendLost(why) => {
                // The pod knows better why it was told to end.
                let disruption = self.progress.pod().and_then(|pod| pod.disruption.clone());
                disruption.map_or(ExitStatus::BackendLost(why), |text| {
                    lost(&format!("its pod was told to end: {text}"))
                })
            }
            ExitStatus::Code(_) | ExitStatus::Signal(_) if self.workers.share.promise.has_lapsed() => {
                ExitStatus::LeaseExpired
            }
            status => status,
        }
    }
}
