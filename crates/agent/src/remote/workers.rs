//! The workers of one share as the agent knows them: which have ended, what their runner is told, and what it tells.
//!
//! **Invariant:** at most one runner is ever told to launch, and that is durable before it hears it; an end is durable before it
//! is told, and the first one stands.

use super::link::{self, Frame, Grant, LeaseRemainder, ToAgent, ToRunner};
use super::output::Outputs;
use super::scheduler::{Allocation, Scheduler, ToShare};
use crate::executor::{ExecutorEvent, StopRequest};
use crate::limits;
use crate::node_loop::Event;
use crate::offload::blocking;
use crate::process::socket::WorkerReport;
use crate::process::{artifacts, secrets};
use crate::rules::{Placement, WorkerEvent, WorkerKey, detail};
use muster_metrics::OutputFate;
use muster_transport::FRAME_BYTES_MAX;
use muster_types::{Artifacts, ExitStatus, JobId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// A runner's connection.
#[derive(Debug)]
pub(crate) struct Linked {
    pub(crate) connection: u64,
    pub(crate) out: mpsc::Sender<ToRunner>,
}

/// What a runner that connects is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// To launch the workers, for the first and only time.
    Launch,
    /// To go on.
    GoOn,
    /// That there is nothing for it.
    Refused,
}

/// The workers of a share.
pub(crate) struct Workers<S: Scheduler> {
    pub(crate) share: Allocation<S>,
    /// Ranks whose end is not durable yet.
    pub(crate) open: BTreeSet<u32>,
    /// How each was asked to stop, and since when.
    pub(crate) stops: BTreeMap<u32, (StopRequest, Instant)>,
    pub(crate) linked: Option<Linked>,
    outputs: Outputs,
    /// The last word taken from the runner.
    heard: u64,
    /// Notes that wait for the cluster's answer.
    noting: usize,
    /// What became of the files of workers whose runner has told their end.
    artifacts: BTreeMap<u32, Artifacts>,
}

impl<S: Scheduler> Workers<S> {
    /// The workers of a share that have not ended.
    pub(crate) fn new(share: Allocation<S>) -> Workers<S> {
        let mut workers = Workers {
            share,
            open: BTreeSet::new(),
            stops: BTreeMap::new(),
            linked: None,
            outputs: Outputs::default(),
            heard: 0,
            noting: 0,
            artifacts: BTreeMap::new(),
        };
        let is_open = |rank: &u32| {
            let task = workers.share.directories.task(workers.key(*rank));
            !matches!(task.exit(), Ok(Some(_)))
        };
        workers.open = workers.share.record.placement.ranks().filter(is_open).collect();
        workers
    }

    /// The job that they work for.
    pub(crate) fn job(&self) -> JobId {
        self.share.record.placement.job
    }

    pub(crate) fn key(&self, rank: u32) -> WorkerKey {
        self.share.record.placement.key(rank)
    }

    /// Whether a runner was told to launch them.
    pub(crate) fn is_granted(&self) -> bool {
        self.share.record.granted.is_some()
    }

    /// Whether the leader knows every end.
    pub(crate) fn is_acknowledged(&self) -> bool {
        let placement = &self.share.record.placement;
        placement.ranks().all(|rank| self.share.directories.task(placement.key(rank)).is_acked())
    }

    /// Makes the record durable as it is; whether it is.
    pub(crate) async fn persist(&self) -> bool {
        let (directories, record) = (self.share.directories.clone(), self.share.record.clone());
        match blocking(move || directories.write(&record)).await {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(job = %self.job(), node = self.share.node, share = self.share.name, %error, "the record of a share is not durable");
                false
            }
        }
    }

    /// Nothing of the share is left.
    pub(crate) async fn forget(&self) {
        self.share.backend.common().remove(&self.share.name);
        let (directories, placement) = (self.share.directories.clone(), &self.share.record.placement);
        let key = (placement.job, placement.token);
        if let Err(error) = blocking(move || directories.forget(key)).await {
            tracing::warn!(job = %self.job(), node = self.share.node, share = self.share.name, %error, "the record of a share stays behind");
        }
    }

    /// Nothing was launched and nothing will be: a runner that connects from now on is turned away.
    pub(crate) async fn give_up(&mut self, status: &ExitStatus) {
        for rank in self.open.clone() {
            self.end(rank, status.clone()).await;
        }
    }

    /// Records and tells how a worker ended.
    pub(crate) async fn end(&mut self, rank: u32, status: ExitStatus) {
        if !self.open.contains(&rank) {
            return;
        }
        let (directories, key, told) = (self.share.directories.clone(), self.key(rank), status.clone());
        let kept = self.artifacts.get(&rank).copied();
        let recorded = blocking(move || {
            if let Some(kept) = &kept {
                directories.keep(key, kept)?;
            }
            directories.end(key, &told)
        });
        if let Err(error) = recorded.await {
            // It stays open: the next look tries again.
            tracing::error!(job = %key.job, node = self.share.node, worker = %key, %error, "an end is not durable");
            return;
        }
        self.open.remove(&rank);
        if let Some(kept) = kept {
            self.share.kept.put(key, kept);
        }
        // The receiver is gone only while the agent shuts down; the disk has it.
        let _ = self.share.events.send(ExecutorEvent::Ended(key, status)).await;
    }

    /// Asks a worker to stop.
    pub(crate) async fn stop(&mut self, rank: u32, request: StopRequest) {
        if !self.open.contains(&rank) {
            return;
        }
        if !self.is_granted() {
            return self.end(rank, ExitStatus::NotStarted).await;
        }
        let now = Instant::now();
        let slot = self.stops.entry(rank).or_insert((request, now));
        slot.0 = request.behind(Some(slot.0));
        let stop = to_runner(rank, slot.0);
        self.tell(stop);
    }

    /// To the runner, when there is one; a full queue is a connection that does not move, and ends.
    pub(crate) fn tell(&mut self, message: ToRunner) {
        let sent = self.linked.as_ref().map(|linked| linked.out.try_send(message));
        if let Some(Err(_)) = sent {
            self.linked = None;
        }
    }

    /// A runner connects; `refusal` says why nothing may be launched any more.
    pub(crate) async fn greet(&mut self, linked: Linked, runner: String, refusal: Option<&str>) -> Greeting {
        let answer = self.answer(&runner, refusal).await;
        let greeting = match &answer {
            ToRunner::Refused { .. } => {
                // It is told and goes; the one that is linked stays.
                let _ = linked.out.try_send(answer);
                return Greeting::Refused;
            }
            ToRunner::GoOn { .. } => Greeting::GoOn,
            _ => Greeting::Launch,
        };
        self.linked = Some(linked);
        self.tell(answer);
        if greeting == Greeting::Launch {
            self.heard = 0;
        }
        let stops: Vec<ToRunner> =
            self.stops.iter().map(|(rank, (request, _))| to_runner(*rank, *request)).collect();
        for stop in stops {
            self.tell(stop);
        }
        greeting
    }

    /// What a runner that connects is told to do.
    async fn answer(&mut self, runner: &str, refusal: Option<&str>) -> ToRunner {
        let refused = |reason: &str| ToRunner::Refused { reason: reason.to_owned() };
        match &self.share.record.granted {
            Some(granted) if granted == runner => {
                // Without a lease it may still tell how its workers ended.
                let none = LeaseRemainder { nanos: 0, grace_ms: 0 };
                return ToRunner::GoOn { left: self.share.promise.left().unwrap_or(none) };
            }
            Some(_) => return refused("another runner has this placement"),
            None => {}
        }
        if self.open.is_empty() {
            return refused("the placement is over");
        }
        if let Some(reason) = refusal {
            return refused(reason);
        }
        let Some(left) = self.share.promise.left() else {
            return refused("the node's lease has run out");
        };
        let mut placement = self.share.record.placement.clone();
        placement.workers.retain(|worker| self.open.contains(&worker.rank));
        let launch = match self.launch(placement, left).await {
            Ok(launch) => launch,
            Err(why) => {
                self.give_up(&ExitStatus::LaunchFailed(detail(&why))).await;
                return refused(&why);
            }
        };
        self.share.record.granted = Some(runner.to_owned());
        if !self.persist().await {
            // A later runner must not be granted what this one may remember.
            self.give_up(&ExitStatus::LaunchFailed("the grant is not durable".into())).await;
            return refused("the agent cannot keep what it grants");
        }
        launch
    }

    /// What a runner is to launch, with the values of secrets, which are on no disk but the agent's and that of the workers' node.
    ///
    /// # Errors
    /// Why it cannot be launched.
    async fn launch(&self, mut placement: Placement, left: LeaseRemainder) -> Result<ToRunner, String> {
        let common = self.share.backend.common();
        if placement.workers.iter().any(|worker| secrets::are_asked_for(&worker.environment)) {
            let dir = common.secrets_dir.clone();
            let filled = blocking(move || {
                for worker in &mut placement.workers {
                    secrets::fill(&mut worker.environment, dir.as_deref(), &placement.tenant)?;
                }
                Ok::<Placement, String>(placement)
            });
            placement = filled.await?;
        }
        let launch = ToRunner::Launch(Box::new(Grant {
            placement,
            left,
            node: self.share.node.clone(),
            accelerator: self.share.accelerator.clone(),
            logs: common.logs.clone(),
            pass_environment: common.pass_environment.clone(),
            takes_notes: self.share.notes.get().is_some(),
            files: common.files.as_ref().map(|files| files.config.bounds()),
        }));
        let bytes = link::encode(&launch).len();
        if bytes > FRAME_BYTES_MAX {
            return Err(format!(
                "what this node's workers are given has {bytes} bytes, secrets included, of at most {FRAME_BYTES_MAX}"
            ));
        }
        Ok(launch)
    }

    /// How a worker ended, in view of what became of its files, where its job wants some.
    async fn keep(&mut self, rank: u32, status: ExitStatus, said: Option<Artifacts>) -> ExitStatus {
        let placement = &self.share.record.placement;
        let Some((rules, said)) = placement.artifacts.as_ref().zip(said) else { return status };
        let store = self.share.backend.common().files.as_ref();
        let kept = self.share.files.checked(store, said).await;
        let status = artifacts::judged(Some(rules), &kept, status);
        self.artifacts.insert(rank, kept);
        status
    }

    /// The connection is over.
    pub(crate) fn gone(&mut self, connection: u64) {
        self.linked.take_if(|linked| linked.connection == connection);
    }

    /// A note was answered by the cluster.
    pub(crate) fn noted(&mut self, id: u64, refused: Option<String>) {
        self.noting = self.noting.saturating_sub(1);
        self.tell(ToRunner::Noted { id, refused });
    }

    /// Takes what the runner sent on a connection. Returns an end that it tells, to be judged before it is recorded with
    /// [`Workers::end`]; then it is acknowledged with [`Workers::heard`].
    pub(crate) async fn take(&mut self, connection: u64, frame: Frame) -> Option<(u32, ExitStatus)> {
        if self.linked.as_ref().is_none_or(|linked| linked.connection != connection) {
            return None;
        }
        let number = match &frame {
            Frame::Output(piece) => piece.number,
            Frame::Message(ToAgent::Running { number, .. } | ToAgent::Ended { number, .. }) => *number,
            Frame::Message(ToAgent::Done) => {
                self.linked = None;
                return None;
            }
            Frame::Message(ToAgent::Note { id, rank, note }) => {
                self.note(*id, *rank, *note);
                return None;
            }
            // The connection's own.
            Frame::Message(ToAgent::Hello { .. } | ToAgent::Renew { .. } | ToAgent::Stream(_)) => {
                return None;
            }
        };
        let mut ended = None;
        // Said again after a broken connection.
        if number > self.heard {
            self.heard = number;
            match frame {
                Frame::Output(piece) => {
                    if self.share.record.placement.ranks().any(|rank| rank == piece.rank) {
                        let (key, common) = (self.key(piece.rank), self.share.backend.common());
                        let tally = self.outputs.write(&self.share.directories, key, &piece, &common.logs);
                        common.metrics.output(OutputFate::Kept, tally.kept);
                        common.metrics.output(OutputFate::Dropped, tally.dropped);
                    }
                }
                Frame::Message(ToAgent::Running { rank, .. }) if self.open.contains(&rank) => {
                    let running = ExecutorEvent::Running(self.key(rank));
                    // The receiver is gone only while the agent shuts down.
                    let _ = self.share.events.send(running).await;
                }
                // A rank that is none of the share's, or that has ended, costs no look at the store and no memory.
                Frame::Message(ToAgent::Ended { rank, status, artifacts, .. })
                    if self.open.contains(&rank) =>
                {
                    self.outputs.end(rank);
                    let status = self.keep(rank, believed(status), artifacts).await;
                    ended = Some((rank, status));
                }
                Frame::Message(_) => {}
            }
        }
        if ended.is_none() {
            self.heard();
        }
        ended
    }

    /// Acknowledges what was taken from the runner so far.
    pub(crate) fn heard(&mut self) {
        self.tell(ToRunner::Ack { number: self.heard });
    }

    /// What a worker says goes to the node's loop, as if it had been said on this host.
    fn note(&mut self, id: u64, rank: u32, note: WorkerEvent) {
        let is_ours = self.share.record.placement.ranks().any(|own| own == rank);
        let Some(notes) = self.share.notes.get().filter(|_| is_ours) else {
            let refused = Some(format!("rank {rank} is none of this node's, or its notes are not taken"));
            return self.tell(ToRunner::Noted { id, refused });
        };
        let (answer, answered) = oneshot::channel();
        let said = Event::Worker(WorkerReport { key: self.key(rank), event: note, answer });
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
        let (notes, backend) = (notes.clone(), Arc::clone(&self.share.backend));
        backend.common().spawn(async move {
            // Without an answer the agent is going down; the runner says it again to the next one.
            if notes.send(said).await.is_ok()
                && let Ok(outcome) = answered.await
            {
                let _ = inbox.send(ToShare::Noted { id, refused: outcome.err() }).await;
            }
        });
    }
}

/// An end as a runner may tell it. It is somebody else's process: no text is longer than that of an end on this host, and what is at
/// fault is not the node.
fn believed(said: ExitStatus) -> ExitStatus {
    match said {
        ExitStatus::LaunchFailed(why) => ExitStatus::LaunchFailed(detail(&why)),
        ExitStatus::BackendLost(why) | ExitStatus::NodeFault(why) | ExitStatus::PreflightFailed(why) => {
            ExitStatus::BackendLost(detail(&why))
        }
        ExitStatus::Code(_)
        | ExitStatus::Signal(_)
        | ExitStatus::LeaseExpired
        | ExitStatus::Vanished
        | ExitStatus::NotStarted
        | ExitStatus::OutOfMemory
        | ExitStatus::OutOfScratch => said,
    }
}

fn to_runner(rank: u32, request: StopRequest) -> ToRunner {
    let grace_ms = u64::try_from(request.grace.as_millis()).unwrap_or(u64::MAX);
    ToRunner::Stop { rank, grace_ms, reason: request.reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::lease::Lease;
    use crate::executor::Foreign;
    use crate::remote::files::{SecretsAndFiles, ShareFiles};
    use crate::remote::lease::RunnerLease;
    use crate::remote::record::{Directories, Record};
    use crate::remote::scheduler::{Candidate, Common};
    use crate::settings::LogLimits;
    use crate::wire::{placement, tests::order};
    use muster_metrics::AgentMetrics;
    use muster_transport::SharedIdentity;
    use muster_types::ArtifactRules;
    use parking_lot::Mutex;
    use tokio::sync::watch;

    /// Another scheduler that is asked for nothing.
    #[derive(Debug)]
    struct Idle {
        common: Common<Idle>,
    }

    impl Scheduler for Idle {
        const NAME: &'static str = "Idle";
        type Stage = ();
        type Call = ();
        type Holds = ();
        type View = ();

        fn common(&self) -> &Common<Idle> {
            &self.common
        }

        fn share_name(&self, placement: &Placement, place: &str) -> String {
            format!("{}-{place}", placement.job)
        }

        fn wanted() {}

        fn holds(_placement: &Placement, _place: &str) {}

        async fn run(share: Allocation<Idle>) {
            drop(share);
        }

        async fn poll(self: Arc<Self>) {}

        fn views(&self) -> watch::Receiver<Arc<()>> {
            watch::Sender::new(Arc::new(())).subscribe()
        }

        fn candidates(&self, _view: &()) -> Option<Vec<Candidate>> {
            None
        }

        async fn follow(self: Arc<Self>, _place: String, _said: watch::Sender<Foreign>) {}
    }

    /// The workers of a share with one rank, 1, whose job wants artifacts; what they tell, and what their runner is told.
    fn workers(
        scratch: &std::path::Path,
    ) -> (Workers<Idle>, mpsc::Receiver<ExecutorEvent>, mpsc::Receiver<ToRunner>) {
        let (given, metrics) = (SecretsAndFiles::default(), AgentMetrics::default());
        let common = Common::new("scope".into(), LogLimits::usual(), Vec::new(), metrics, given);
        let mut placement = placement(order()).unwrap();
        placement.artifacts = Some(ArtifactRules { paths: vec!["out".into()], required: false });
        let lease = Arc::new(Mutex::new(Lease::open(&scratch.join("lease"), 7, 0).unwrap()));
        let (own_inbox, inbox) = mpsc::channel(1);
        let (events, told) = mpsc::channel(8);
        let files = Arc::new(ShareFiles::of(&placement, 1 << 20));
        let identity = SharedIdentity::generate().unwrap();
        let share = Allocation {
            backend: Arc::new(Idle { common }),
            name: "share".into(),
            record: Record { placement, epoch: 1, identity, stage: (), granted: None },
            directories: Directories { shares: scratch.join("shares"), tasks: scratch.join("tasks") },
            holds: (),
            promise: Arc::new(RunnerLease::new(lease, 1)),
            inbox,
            own_inbox: own_inbox.downgrade(),
            events,
            notes: Arc::default(),
            files,
            kept: crate::executor::KeptArtifacts::default(),
            place: "n1".into(),
            node: "n1".into(),
            accelerator: String::new(),
        };
        let mut workers = Workers::new(share);
        let (out, outgoing) = mpsc::channel(64);
        workers.linked = Some(Linked { connection: 1, out });
        (workers, told, outgoing)
    }

    #[tokio::test]
    async fn a_runner_tells_the_end_of_each_worker_of_its_share_once_and_of_no_other() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir(scratch.path().join("tasks")).unwrap();
        let (mut workers, mut told, _outgoing) = workers(scratch.path());
        let ended = |number: u64, rank: u32| {
            let artifacts = Some(Artifacts { files: rank, ..Artifacts::default() });
            Frame::Message(ToAgent::Ended { number, rank, status: ExitStatus::Code(0), artifacts })
        };
        assert_eq!(workers.take(1, ended(1, 0)).await, None, "it runs on another node");
        let end = workers.take(1, ended(2, 1)).await;
        assert_eq!(end, Some((1, ExitStatus::Code(0))));
        workers.end(1, ExitStatus::Code(0)).await;
        assert!(matches!(told.recv().await, Some(ExecutorEvent::Ended(..))));
        // As many as a runner likes, of ranks that it has not.
        for (number, rank) in (3..).zip([1, 1, 2, 3, 4, u32::MAX]) {
            assert_eq!(workers.take(1, ended(number, rank)).await, None, "rank {rank}");
        }
        let kept: Vec<(u32, u32)> =
            workers.artifacts.iter().map(|(rank, kept)| (*rank, kept.files)).collect();
        assert_eq!((kept, workers.heard), (vec![(1, 1)], 8));
    }

    #[tokio::test]
    async fn what_a_runner_says_of_an_end_is_bounded_and_accuses_no_node() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir(scratch.path().join("tasks")).unwrap();
        // A text of megabytes would end the session of its node each time that it is reported.
        let (mut workers, _told, _outgoing) = workers(scratch.path());
        let long = "x".repeat(8 << 20);
        let status = ExitStatus::NodeFault(long.clone());
        let end = ToAgent::Ended { number: 1, rank: 1, status, artifacts: None };
        let told = workers.take(1, Frame::Message(end)).await;
        assert_eq!(told, Some((1, ExitStatus::BackendLost(detail(&long)))));
    }
}
