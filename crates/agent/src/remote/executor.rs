//! Workers of one node of another scheduler, behind the trait that processes of a host are behind too.
//!
//! **Invariant:** a placement's share exists on disk before its task does; a task is the only one that
//! changes it.

use super::files::ShareFiles;
use super::lease::RunnerLease;
use super::link::{Errand, ToRunner};
use super::record::{Directories, Record};
use super::scheduler::{Allocation, Registered, Scheduler, ToShare};
use super::streams::{self, FarPort, Stream};
use crate::disk::lease::Lease;
use crate::disk::state_dir::StateDir;
use crate::executor::{
    Adopted, ExecInput, ExecOutput, ExecRequest, Executor, ExecutorError, ExecutorEvent, Foreign,
    KeptArtifacts, OutputChunk, OutputRequest, PortStream, StopRequest,
};
use crate::limits;
use crate::node_loop::Event;
use crate::offload::blocking;
use crate::process::EndedWorkers;
use crate::process::task::{self, TaskDir};
use crate::rules::{DEVICE_MILLI, Placement, WorkerKey, detail};
use muster_transport::SharedIdentity;
use muster_types::{ExitStatus, NodeSpec};
use parking_lot::Mutex;
use std::io;
use std::sync::{Arc, OnceLock};
use tokio::sync::{mpsc, watch};

/// Messages that wait for one share.
const SHARE_QUEUED_MAX: usize = 256;

/// Runs workers on one node of another scheduler.
#[derive(Debug)]
pub struct RemoteExecutor<S: Scheduler> {
    backend: Arc<S>,
    /// The node as the other scheduler names it.
    place: String,
    /// The node in Muster, and the type of its accelerators.
    node: String,
    accelerator: String,
    directories: Directories,
    ended: EndedWorkers,
    lease: Arc<Mutex<Lease>>,
    events: mpsc::Sender<ExecutorEvent>,
    /// Where notes of workers go, once there is somebody to take them.
    notes: Arc<OnceLock<mpsc::Sender<Event>>>,
    /// What became of the files of its workers.
    kept: KeptArtifacts,
    /// What others hold of the node.
    foreign: watch::Sender<Foreign>,
    /// Shares are begun one after another: the same one may be asked for twice.
    beginning: Arc<tokio::sync::Mutex<()>>,
}

impl<S: Scheduler> Clone for RemoteExecutor<S> {
    fn clone(&self) -> RemoteExecutor<S> {
        RemoteExecutor {
            backend: Arc::clone(&self.backend),
            place: self.place.clone(),
            node: self.node.clone(),
            accelerator: self.accelerator.clone(),
            directories: self.directories.clone(),
            ended: self.ended.clone(),
            lease: Arc::clone(&self.lease),
            events: self.events.clone(),
            notes: Arc::clone(&self.notes),
            kept: self.kept.clone(),
            foreign: self.foreign.clone(),
            beginning: Arc::clone(&self.beginning),
        }
    }
}

impl<S: Scheduler> RemoteExecutor<S> {
    /// An executor for one of its nodes, which is `spec` in Muster, and the stream of its events.
    pub(crate) fn for_node(
        backend: &Arc<S>,
        place: &str,
        spec: &NodeSpec,
        state: &StateDir,
        lease: Arc<Mutex<Lease>>,
    ) -> (RemoteExecutor<S>, mpsc::Receiver<ExecutorEvent>) {
        let (events, told) = mpsc::channel(limits::ORDERS_QUEUED_MAX);
        let (backend, place) = (Arc::clone(backend), place.to_owned());
        let node = spec.name.to_string();
        let accelerator = spec.accelerators.as_ref().map(|a| a.kind.to_string()).unwrap_or_default();
        let directories = Directories { shares: state.shares(), tasks: state.tasks() };
        // Closed until the other scheduler has said how it is.
        let foreign = watch::Sender::new(Foreign { closed: true, ..Foreign::default() });
        let follow = Arc::clone(&backend).follow(place.clone(), foreign.clone());
        backend.common().spawn(follow);
        let ended = EndedWorkers::new(directories.tasks.clone(), backend.common().logs.clone());
        let executor = RemoteExecutor {
            backend,
            place,
            node,
            accelerator,
            directories,
            ended,
            lease,
            events,
            notes: Arc::default(),
            kept: KeptArtifacts::default(),
            foreign,
            beginning: Arc::default(),
        };
        (executor, told)
    }

    /// What workers say of themselves goes there from now on.
    pub(crate) fn tell_notes_to(&self, events: mpsc::Sender<Event>) {
        // It is set once, by the task that serves the node.
        let _ = self.notes.set(events);
    }

    fn share(&self, key: WorkerKey) -> Option<Registered<S>> {
        self.backend.common().share_of((key.job, key.token), &self.place)
    }

    /// Starts the share's task.
    fn take_up(&self, record: Record<S::Stage>) {
        let (inbox, messages) = mpsc::channel(SHARE_QUEUED_MAX);
        let placement = &record.placement;
        let name = self.backend.share_name(placement, &self.place);
        let key = (placement.job, placement.token);
        let promise = Arc::new(RunnerLease::new(Arc::clone(&self.lease), record.epoch));
        let holds = S::holds(placement, &self.place);
        let store = self.backend.common().files.as_ref();
        let each_max = store.map_or(0, |store| store.config.artifacts_bytes_max);
        let files = Arc::new(ShareFiles::of(placement, each_max));
        let share = Allocation {
            backend: Arc::clone(&self.backend),
            name: name.clone(),
            directories: self.directories.clone(),
            holds: holds.clone(),
            promise: Arc::clone(&promise),
            inbox: messages,
            own_inbox: inbox.downgrade(),
            events: self.events.clone(),
            notes: Arc::clone(&self.notes),
            files: Arc::clone(&files),
            kept: self.kept.clone(),
            place: self.place.clone(),
            node: self.node.clone(),
            accelerator: self.accelerator.clone(),
            record,
        };
        let identity = share.record.identity.clone();
        let place = self.place.clone();
        let registered = Registered { identity, inbox, promise, key, place, holds, files };
        self.backend.common().register(name, registered);
        self.backend.common().spawn(S::run(share));
    }

    async fn failed(&self, placement: &Placement, why: &str) {
        for rank in placement.ranks() {
            self.refuse(placement.key(rank), why.to_owned()).await;
        }
    }

    /// A connection on which the runner of a worker does something there.
    async fn dialled(&self, key: WorkerKey, work: Errand) -> Result<Stream, String> {
        let ended = || format!("worker {key} does not run any more");
        let share = self.share(key).ok_or_else(ended)?;
        let awaited = self.backend.common().streams.expect(share.key, &share.place)?;
        let dial = ToShare::Tell(ToRunner::Dial { errand: awaited.errand, work });
        share.inbox.send(dial).await.map_err(|_| ended())?;
        awaited.stream().await
    }

    fn prune(&self) {
        self.ended.look();
    }

    /// Whether workers of this node are under way, here or there.
    pub(crate) fn is_busy(&self) -> bool {
        !self.backend.common().held_on(&self.place).is_empty()
    }
}

impl<S: Scheduler> Executor for RemoteExecutor<S> {
    async fn start(&self, placement: Arc<Placement>, epoch: u64) {
        let identity = match SharedIdentity::generate() {
            Ok(identity) => identity,
            Err(error) => return self.failed(&placement, &error.to_string()).await,
        };
        let stage = S::wanted();
        let record = Record { placement: (*placement).clone(), epoch, identity, stage, granted: None };
        let (directories, kept) = (self.directories.clone(), record.clone());
        let _turn = self.beginning.lock().await;
        match blocking(move || directories.begin(&kept)).await {
            Ok(true) => self.take_up(record),
            // Started, or refused, before: never again.
            Ok(false) => {}
            Err(error) => {
                tracing::error!(job = %placement.job, node = self.node, %error, "a share cannot be made durable");
                self.failed(&placement, &format!("make the record of the share: {error}")).await;
            }
        }
    }

    fn foreign(&self) -> Option<watch::Receiver<Foreign>> {
        Some(self.foreign.subscribe())
    }

    fn is_on_this_host(&self) -> bool {
        false
    }

    fn kept_artifacts(&self) -> KeptArtifacts {
        self.kept.clone()
    }

    async fn refuse(&self, key: WorkerKey, reason: String) {
        let status = ExitStatus::LaunchFailed(detail(&reason));
        let (directories, kept) = (self.directories.clone(), status.clone());
        if let Err(error) = blocking(move || directories.end(key, &kept)).await {
            tracing::warn!(
                job = %key.job,
                node = self.node,
                worker = %key,
                %error,
                "a refusal is not durable; a restarted agent says vanished"
            );
        }
        // The receiver is gone only while the agent shuts down.
        let _ = self.events.send(ExecutorEvent::Ended(key, status)).await;
    }

    async fn stop(&self, key: WorkerKey, request: StopRequest) -> Result<(), ExecutorError> {
        let Some(share) = self.share(key) else {
            let ended = matches!(self.directories.task(key).exit(), Ok(Some(_)));
            return if ended { Ok(()) } else { Err(ExecutorError::Unknown(key)) };
        };
        let stop = ToShare::Stop { rank: key.rank, request };
        share.inbox.send(stop).await.map_err(|_| ExecutorError::Unknown(key))
    }

    async fn adopt(&self) -> Result<Vec<Adopted>, ExecutorError> {
        let directories = self.directories.clone();
        let (records, keys) = blocking(move || -> io::Result<_> {
            std::fs::create_dir_all(&directories.shares)?;
            // A record that cannot be read stands for workers that may be running: none is passed over.
            let records = directories.records::<S::Stage>().map_err(io::Error::other)?;
            Ok((records, task::list(&directories.tasks)?))
        })
        .await
        .map_err(ExecutorError::List)?;
        let mut found = Vec::new();
        for key in keys {
            let task = self.directories.task(key);
            let record =
                records.iter().find(|r| (r.placement.job, r.placement.token) == (key.job, key.token));
            let exit = task.exit().map_err(|e| ExecutorError::List(io::Error::other(e)))?;
            if exit.is_some() && task.is_acked() {
                continue;
            }
            let exit = match (exit, record) {
                (Some(exit), _) => Some(exit.status),
                (None, Some(_)) => None,
                // The agent died before the record was there: nothing was asked for.
                (None, None) => {
                    self.directories.end(key, &ExitStatus::NotStarted).map_err(ExecutorError::List)?;
                    Some(ExitStatus::NotStarted)
                }
            };
            let launch = record.and_then(|r| r.placement.workers.iter().find(|w| w.rank == key.rank));
            let devices = launch.map(|worker| worker.devices).unwrap_or_default();
            let device_milli = launch.map_or(DEVICE_MILLI, |worker| worker.device_milli);
            let epoch = record.map_or(0, |record| record.epoch);
            if let Some(kept) = exit.as_ref().and_then(|_| self.directories.kept(key)) {
                self.kept.put(key, kept);
            }
            found.push(Adopted { key, devices, device_milli, exit, epoch });
        }
        for record in records {
            self.take_up(record);
        }
        self.prune();
        Ok(found)
    }

    async fn acknowledge(&self, key: WorkerKey) {
        let task: TaskDir = self.directories.task(key);
        if let Err(error) = blocking(move || task.write_acked()).await {
            tracing::warn!(
                job = %key.job,
                node = self.node,
                worker = %key,
                %error,
                "an acknowledgement is not durable; the end is told again"
            );
        }
        self.kept.forget(key);
        if let Some(share) = self.share(key) {
            // A share that is gone needs to hear nothing.
            let _ = share.inbox.send(ToShare::Acknowledged).await;
        }
        self.prune();
    }

    async fn read_output(
        &self,
        request: OutputRequest,
        sink: mpsc::Sender<OutputChunk>,
    ) -> Result<(), ExecutorError> {
        let task = self.directories.task(request.key);
        if !task.path().is_dir() {
            return Err(ExecutorError::Unknown(request.key));
        }
        crate::process::read_output(&task, &request, &sink).await.map_err(ExecutorError::Output)
    }

    async fn exec(
        &self,
        request: ExecRequest,
        inputs: mpsc::Receiver<ExecInput>,
        outputs: mpsc::Sender<ExecOutput>,
    ) -> Result<(), String> {
        let ExecRequest { key, command, environment, terminal } = request;
        let work = Errand::Exec { rank: key.rank, command, environment, terminal };
        let stream = tokio::select! {
            stream = self.dialled(key, work) => stream?,
            () = outputs.closed() => return Ok(()),
        };
        streams::exec(stream, inputs, &outputs).await
    }

    async fn listens(&self, key: WorkerKey, port: u16) -> Result<(), String> {
        let mut stream = self.dialled(key, Errand::Listens { rank: key.rank, port }).await?;
        streams::started(&mut stream).await
    }

    async fn connect(&self, key: WorkerKey, port: u16) -> Result<Box<dyn PortStream>, String> {
        let mut stream = self.dialled(key, Errand::Connect { rank: key.rank, port }).await?;
        streams::started(&mut stream).await?;
        Ok(Box::new(FarPort::over(stream)))
    }

    async fn ended(&self, key: WorkerKey) {
        loop {
            let task = self.directories.task(key);
            if blocking(move || crate::process::has_ended(&task)).await {
                return;
            }
            tokio::time::sleep(limits::PORT_WORKER_LOOK).await;
        }
    }
}
