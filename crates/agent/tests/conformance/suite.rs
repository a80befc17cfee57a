//! The suite. It knows nothing of what runs the workers but what [`Subject`] says.

use muster_agent::executor::{Executor, ExecutorError, ExecutorEvent, OutputRequest};
use muster_agent::rules::{Checkpoint, Launch, Placement, RankPlace, WorkerKey};
use muster_agent::transcript::OutputStream;
use muster_types::{Container, DeviceSet, ExitStatus, FencingToken, JobId, LaunchForm, LogIndex};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Nothing takes this long; a loaded machine may.
pub const PATIENCE: Duration = Duration::from_secs(90);
pub const GRACE: Duration = Duration::from_secs(20);

/// What a worker does.
#[derive(Clone, Copy, Debug)]
pub enum Behaviour {
    /// Prints its rank and returns this code.
    Exit(i32),
    /// Ends itself by this signal.
    Signal(i32),
    /// Runs until it is told to stop, and returns 0 then.
    Hold,
    /// Runs, whatever it is told.
    Stubborn,
    /// Its program does not exist.
    Missing,
}

/// One kind of executor, and the world around it.
pub trait Subject {
    type Executor: Executor;

    /// A new agent over what an earlier one left; the earlier one is gone by then.
    fn open(&mut self) -> impl Future<Output = (Self::Executor, mpsc::Receiver<ExecutorEvent>)>;

    /// What makes a worker of this placement behave so.
    fn command(&self, key: WorkerKey, behaviour: Behaviour) -> Vec<String>;

    /// The image that its workers need; none where they run without.
    fn container(&self) -> Option<Container> {
        None
    }

    /// How often the worker was launched, ever.
    fn launches(&self, key: WorkerKey) -> usize;

    /// The epoch of the lease that stands.
    fn epoch(&self) -> u64;

    /// Makes what is behind the executor unreachable, or whole again; false when nothing is behind it.
    fn break_backend(&mut self, broken: bool) -> bool;

    /// Lets the lease lapse, and a new one begin.
    fn lapse(&mut self) -> impl Future<Output = ()>;
}

/// One executor and what it tells.
pub struct Bench<'a, S: Subject> {
    pub subject: &'a mut S,
    pub executor: Arc<S::Executor>,
    told: mpsc::Receiver<ExecutorEvent>,
    next: u64,
    /// What was told and not asked for yet.
    running: BTreeSet<WorkerKey>,
    ends: BTreeMap<WorkerKey, ExitStatus>,
}

/// Runs everything.
pub async fn conforms<S: Subject>(subject: &mut S) {
    let mut bench = Bench::open(subject).await;
    bench.ends_are_told_as_they_were().await;
    bench.a_token_starts_once().await;
    bench.stops_are_carried_out().await;
    bench.unknown_workers_are_said_to_be().await;
    bench.a_new_agent_takes_over().await;
    bench.a_lost_backend_neither_ends_nor_doubles().await;
    bench.many_at_once_are_each_launched_once().await;
    bench.a_lapsed_lease_ends_what_ran_under_it().await;
}

impl<'a, S: Subject> Bench<'a, S> {
    /// A first agent, which finds nothing.
    pub async fn open(subject: &'a mut S) -> Bench<'a, S> {
        let (executor, told) = subject.open().await;
        let bench = Bench {
            subject,
            executor: Arc::new(executor),
            told,
            next: 100,
            running: BTreeSet::new(),
            ends: BTreeMap::new(),
        };
        assert!(bench.executor.adopt().await.unwrap().is_empty(), "nothing was left by anybody");
        bench
    }

    pub fn placement(&mut self, behaviours: &[Behaviour]) -> Arc<Placement> {
        self.next += 1;
        let (job, token) =
            (JobId(self.next * 1_024), FencingToken { generation: 1, log_index: LogIndex(self.next) });
        let place = RankPlace { node_name: "host-a".into(), address: "127.0.0.1".into(), devices: 0 };
        let workers = behaviours.iter().enumerate().map(|(rank, behaviour)| {
            let key = WorkerKey { job, token, rank: rank as u32 };
            Launch {
                rank: rank as u32,
                group: "main".into(),
                command: self.subject.command(key, *behaviour),
                environment: BTreeMap::new(),
                devices: DeviceSet::EMPTY,
                accelerator_type: String::new(),
                cpu_milli: 100,
                memory_bytes: 1 << 24,
                device_milli: muster_agent::rules::DEVICE_MILLI,
                container: self.subject.container(),
            }
        });
        Arc::new(Placement {
            job,
            token,
            job_name: "conformance".into(),
            tenant: "default".into(),
            attempt: 1,
            rank_map: vec![place; behaviours.len()],
            workers: workers.collect(),
            rendezvous_port: 61_440,
            stop_grace: GRACE,
            checkpoint_directory: String::new(),
            working_directory: String::new(),
            workdir: None,
            artifacts: None,
            artifacts_bytes_max: None,
            ulimits: muster_types::Ulimits::default(),
            host: muster_types::HostRules::default(),
            terminal: false,
            scratch_bytes: 0,
            trace_parent: None,
            array: None,
            array_indices: None,
            preflight: false,
            form: LaunchForm::default(),
            world_size_min: 0,
            groups: Vec::new(),
            slices: Vec::new(),
            notice: None,
            checkpoint: Checkpoint::default(),
            gang_secret: String::new(),
            region: "r".into(),
            cluster: "c".into(),
        })
    }

    pub async fn start(&mut self, behaviours: &[Behaviour]) -> Arc<Placement> {
        let placement = self.placement(behaviours);
        self.executor.start(Arc::clone(&placement), self.subject.epoch()).await;
        placement
    }

    async fn hear(&mut self) {
        match self.told.recv().await.expect("the executor is there") {
            ExecutorEvent::Running(key) => {
                assert!(!self.ends.contains_key(&key), "{key} runs after its end");
                assert!(self.running.insert(key), "{key} is launched twice");
            }
            ExecutorEvent::Ended(key, status) => {
                let before = self.ends.insert(key, status);
                assert_eq!(before, None, "{key} ended twice");
            }
        }
    }

    pub async fn end_of(&mut self, key: WorkerKey) -> ExitStatus {
        let waiting = async {
            while !self.ends.contains_key(&key) {
                self.hear().await;
            }
        };
        let ended = tokio::time::timeout(PATIENCE, waiting).await;
        ended.unwrap_or_else(|_| panic!("the end of {key} was never told"));
        self.ends[&key].clone()
    }

    pub async fn runs(&mut self, key: WorkerKey) {
        let waiting = async {
            while !self.running.contains(&key) {
                self.hear().await;
                assert!(!self.ends.contains_key(&key), "{key} ended: {:?}", self.ends.get(&key));
            }
        };
        let told = tokio::time::timeout(PATIENCE, waiting).await;
        told.unwrap_or_else(|_| panic!("that {key} runs was never told"));
        // It also has to have come so far as to take signals as it means to.
        while self.subject.launches(key) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The agent is gone, and another takes its place.
    pub async fn restart(&mut self) -> Vec<muster_agent::executor::Adopted> {
        let (_gone, told) = mpsc::channel(1);
        self.told = told;
        let (executor, told) = {
            let subject = &mut *self.subject;
            subject.open().await
        };
        (self.executor, self.told) = (Arc::new(executor), told);
        (self.running, self.ends) = (BTreeSet::new(), BTreeMap::new());
        self.executor.adopt().await.expect("what was left can be listed")
    }

    async fn ends_are_told_as_they_were(&mut self) {
        use Behaviour::{Exit, Missing, Signal};
        let gang = self.start(&[Exit(0), Exit(3), Signal(9), Missing]).await;
        assert_eq!(self.end_of(gang.key(0)).await, ExitStatus::Code(0));
        assert_eq!(self.end_of(gang.key(1)).await, ExitStatus::Code(3));
        assert_eq!(self.end_of(gang.key(2)).await, ExitStatus::Signal(9));
        let missing = self.end_of(gang.key(3)).await;
        assert!(matches!(missing, ExitStatus::LaunchFailed(_)), "{missing:?}");
        let (sink, mut chunks) = mpsc::channel(16);
        let request = OutputRequest {
            key: gang.key(1),
            streams: vec![OutputStream::Stdout, OutputStream::Stderr],
            follow: true,
            tail_bytes: 0,
            from_position: 0,
        };
        let executor = Arc::clone(&self.executor);
        let read = tokio::spawn(async move { executor.read_output(request, sink).await });
        let mut output = Vec::new();
        while let Some(chunk) = chunks.recv().await {
            output.extend(chunk.data);
        }
        read.await.unwrap().expect("its output can be read");
        assert_eq!(String::from_utf8_lossy(&output).trim(), "rank 1");
        for rank in 0..4 {
            self.executor.acknowledge(gang.key(rank)).await;
        }
    }

    async fn a_token_starts_once(&mut self) {
        let gang = self.placement(&[Behaviour::Exit(0)]);
        let epoch = self.subject.epoch();
        let all: Vec<_> = (0..4)
            .map(|_| {
                let (executor, gang) = (Arc::clone(&self.executor), Arc::clone(&gang));
                tokio::spawn(async move { executor.start(gang, epoch).await })
            })
            .collect();
        for start in all {
            start.await.unwrap();
        }
        assert_eq!(self.end_of(gang.key(0)).await, ExitStatus::Code(0));
        self.executor.start(Arc::clone(&gang), epoch).await;
        let refused = self.placement(&[Behaviour::Exit(0)]);
        self.executor.refuse(refused.key(0), "not here".into()).await;
        let why = self.end_of(refused.key(0)).await;
        assert_eq!(why, ExitStatus::LaunchFailed("not here".into()));
        self.executor.start(Arc::clone(&refused), epoch).await;
        // A later one comes to its end: what was wrongly started before would have by then.
        let later = self.start(&[Behaviour::Exit(0)]).await;
        self.end_of(later.key(0)).await;
        assert_eq!(self.subject.launches(gang.key(0)), 1);
        assert_eq!(self.subject.launches(refused.key(0)), 0);
    }

    async fn stops_are_carried_out(&mut self) {
        let gang = self.start(&[Behaviour::Hold, Behaviour::Stubborn]).await;
        for rank in 0..2 {
            self.runs(gang.key(rank)).await;
        }
        self.executor.stop(gang.key(0), GRACE.into()).await.expect("it can be told");
        assert_eq!(self.end_of(gang.key(0)).await, ExitStatus::Code(0));
        assert!(!self.ends.contains_key(&gang.key(1)), "only one was told to stop");
        self.executor.stop(gang.key(1), Duration::from_secs(3_600).into()).await.expect("it can be told");
        // Repeating shortens the grace.
        self.executor.stop(gang.key(1), Duration::ZERO.into()).await.expect("it can be told again");
        assert_eq!(self.end_of(gang.key(1)).await, ExitStatus::Signal(9));
        self.executor.stop(gang.key(1), Duration::ZERO.into()).await.expect("one that is over is stopped");
    }

    async fn unknown_workers_are_said_to_be(&mut self) {
        let never = self.placement(&[Behaviour::Hold]).key(0);
        let stop = self.executor.stop(never, GRACE.into()).await;
        assert!(matches!(stop, Err(ExecutorError::Unknown(key)) if key == never), "{stop:?}");
        let (sink, _chunks) = mpsc::channel(1);
        let streams = vec![OutputStream::Stdout];
        let request = OutputRequest { key: never, streams, follow: false, tail_bytes: 0, from_position: 0 };
        let read = self.executor.read_output(request, sink).await;
        assert!(matches!(read, Err(ExecutorError::Unknown(key)) if key == never), "{read:?}");
    }

    async fn a_new_agent_takes_over(&mut self) {
        let held = self.start(&[Behaviour::Hold]).await;
        let ended = self.start(&[Behaviour::Exit(4)]).await;
        let known = self.start(&[Behaviour::Exit(5)]).await;
        self.runs(held.key(0)).await;
        self.end_of(ended.key(0)).await;
        self.end_of(known.key(0)).await;
        self.executor.acknowledge(known.key(0)).await;
        let epoch = self.subject.epoch();
        let adopted = self.restart().await;
        let of = |key: WorkerKey| adopted.iter().find(|found| found.key == key);
        let running = of(held.key(0)).expect("the running one is taken over");
        assert_eq!((&running.exit, running.epoch), (&None, epoch));
        let over = of(ended.key(0)).expect("an end that was not acknowledged is told again");
        assert_eq!(over.exit, Some(ExitStatus::Code(4)));
        assert!(of(known.key(0)).is_none(), "an acknowledged end is not");
        self.executor.start(Arc::clone(&held), epoch).await;
        self.executor.stop(held.key(0), GRACE.into()).await.expect("it is still there to be stopped");
        assert_eq!(self.end_of(held.key(0)).await, ExitStatus::Code(0));
        assert_eq!(self.subject.launches(held.key(0)), 1);
        self.executor.acknowledge(held.key(0)).await;
        self.executor.acknowledge(ended.key(0)).await;
    }

    async fn a_lost_backend_neither_ends_nor_doubles(&mut self) {
        let before = self.start(&[Behaviour::Hold]).await;
        self.runs(before.key(0)).await;
        if !self.subject.break_backend(true) {
            self.executor.stop(before.key(0), GRACE.into()).await.expect("it can be told");
            self.end_of(before.key(0)).await;
            return;
        }
        let during = self.start(&[Behaviour::Exit(0)]).await;
        // Long enough for an attempt to fail.
        let quiet = tokio::time::timeout(Duration::from_secs(4), self.hear()).await;
        assert!(quiet.is_err(), "told while nothing can be known: {:?} {:?}", self.running, self.ends);
        self.subject.break_backend(false);
        assert_eq!(self.end_of(during.key(0)).await, ExitStatus::Code(0));
        assert_eq!(self.subject.launches(during.key(0)), 1);
        self.executor.stop(before.key(0), GRACE.into()).await.expect("it can be told");
        assert_eq!(self.end_of(before.key(0)).await, ExitStatus::Code(0));
    }

    async fn many_at_once_are_each_launched_once(&mut self) {
        let mut all = Vec::new();
        for _ in 0..12 {
            all.push(self.start(&[Behaviour::Exit(0)]).await);
        }
        for placement in all {
            assert_eq!(self.end_of(placement.key(0)).await, ExitStatus::Code(0));
            assert_eq!(self.subject.launches(placement.key(0)), 1);
        }
    }

    async fn a_lapsed_lease_ends_what_ran_under_it(&mut self) {
        let gang = self.start(&[Behaviour::Hold]).await;
        self.runs(gang.key(0)).await;
        self.subject.lapse().await;
        assert_eq!(self.end_of(gang.key(0)).await, ExitStatus::LeaseExpired);
        let next = self.start(&[Behaviour::Exit(0)]).await;
        assert_eq!(self.end_of(next.key(0)).await, ExitStatus::Code(0));
    }
}
