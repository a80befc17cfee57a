//! Workers as processes of this host, each under a separate shim.
//!
//! **Invariant:** what is on disk decides: a worker exists from the moment its directory does, runs as long
//! as its shim holds the lock, and has ended when there is an exit record; nothing is believed of a
//! process id alone.

mod preparing;
mod spec;

use crate::chain::chain;
use crate::clock::BootTime;
use crate::contract;
use crate::executor::{
    Adopted, ExecInput, ExecOutput, ExecRequest, Executor, ExecutorError, ExecutorEvent, KeptArtifacts,
    OutputChunk, OutputRequest, PortStream, StopRequest,
};
use crate::limits;
use crate::offload::blocking;
use crate::process::artifacts;
use crate::process::cgroup::{self, Cgroup};
use crate::process::ended_workers::{self, EndedWorkers};
use crate::process::exec;
use crate::process::guards::{self, Guarded};
use crate::process::host_commands::{HostCommands, NotReady, WorkerRecord};
use crate::process::isolation::{Isolating, Namespaces};
use crate::process::notice;
use crate::process::ports;
use crate::process::prewarm_pool::{self, Pool, Shim, Waiting, next_line};
use crate::process::processes;
use crate::process::runtime::Images;
use crate::process::secrets;
use crate::process::shim;
use crate::process::task::{self, Blank, Exit, GangFiles, TaskDir, TaskError, TaskSpec};
use crate::process::terminal;
use crate::process::transcript::OutputTally;
use crate::process::unlisted;
use crate::process::work_files::{Staged, WorkFiles};
use crate::rules::{DEVICE_MILLI, Launch, Placement, WorkerKey, detail};
use crate::settings::{ControlGroups, LogLimits, MemoryLimit};
use muster_metrics::{AgentMetrics, OutputFate};
use muster_types::terminal::TerminalSize;
use muster_types::{DeviceSet, ExitStatus, HolderId, StartStage};
use parking_lot::Mutex;
use preparing::{StageClock, waits};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, mpsc};

/// What the executor is made of.
#[derive(Clone, Debug)]
pub struct ProcessSettings {
    /// The directory of the workers' directories.
    pub tasks: PathBuf,
    /// The lease file.
    pub lease: PathBuf,
    /// Whose lease.
    pub holder: HolderId,
    /// Program and first arguments of a shim, which launchers of frameworks are part of.
    pub shim_command: Vec<String>,
    /// Program and first arguments of what guards a worker: the same, or a separate small program.
    pub guard_command: Vec<String>,
    /// Shims that wait for workers, and workers, together: beyond, none waits.
    pub ready_max: usize,
    /// This node's name.
    pub node: String,
    /// Type of its accelerators; empty for none.
    pub accelerator: String,
    /// The base environment of every worker.
    pub environment: BTreeMap<String, String>,
    /// Where secrets of tenants are, each in a directory of its tenant's; none where there are none.
    pub secrets_dir: Option<PathBuf>,
    /// Where the scratch directories of workers are; none where the host gives no scratch.
    pub scratch_dir: Option<PathBuf>,
    /// How much output is kept.
    pub logs: LogLimits,
    /// Whether and where control groups are made.
    pub control_groups: ControlGroups,
    /// What holds workers to their memory.
    pub memory_limit: MemoryLimit,
    /// Where output is counted.
    pub metrics: AgentMetrics,
    /// Where the agent takes notes of workers; none when it takes none.
    pub agent_socket: Option<PathBuf>,
    /// What keeps workers from the host and from each other.
    pub isolating: Arc<Isolating>,
    /// What workers see though `/tmp` is their own: the agent's directory.
    pub shown: Vec<PathBuf>,
    /// Images that workers can have the root directories of; none where the host has no container runtime.
    pub images: Option<Arc<Images>>,
    /// Where files of jobs are; none where the host has no such store.
    pub files: Option<Arc<WorkFiles>>,
    /// What is run before and after each worker; none for nothing.
    pub host_commands: Option<Arc<HostCommands>>,
    /// Whether this process and all workers are in a job of another scheduler, which ends what is left of them.
    pub is_in_job: bool,
}

/// Runs workers as processes.
#[derive(Clone, Debug)]
pub struct ProcessExecutor {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: ProcessSettings,
    cgroup_parent: Option<PathBuf>,
    events: mpsc::Sender<ExecutorEvent>,
    /// Workers whose directory is being made.
    beginning: Mutex<BTreeSet<WorkerKey>>,
    /// Workers that wait for their image or files. Who takes one out launches it, or tells its end.
    waiting: Mutex<BTreeSet<WorkerKey>>,
    /// One of these was told to stop.
    stopped_waiting: Notify,
    pool: Arc<Pool>,
    ended: EndedWorkers,
    /// When the grace of a worker that was told to stop is over.
    stop_by: Mutex<BTreeMap<WorkerKey, BootTime>>,
    kept: KeptArtifacts,
}

impl ProcessExecutor {
    /// An executor and the stream of what it tells.
    #[must_use]
    pub fn new(settings: ProcessSettings) -> (ProcessExecutor, mpsc::Receiver<ExecutorEvent>) {
        let (events, told) = mpsc::channel(limits::ORDERS_QUEUED_MAX);
        let cgroup_parent = cgroup::parent(&settings.control_groups)
            .inspect_err(|why| tracing::info!(why, "workers run without separate control groups"))
            .ok();
        if let Some(parent) = &cgroup_parent
            && let Err(why) = cgroup::delegate(parent)
        {
            tracing::info!(why, "the control groups of workers have no separate limits");
        }
        if let Some(parent) = &cgroup_parent {
            cgroup::prefer_agent(parent);
        }
        let limits_disks = cgroup_parent.as_deref().is_some_and(cgroup::limits_disks);
        if !limits_disks && !settings.isolating.io().is_empty() {
            tracing::warn!("workers.io limits nothing: control groups of workers have no `io` controller");
        }
        let ended = EndedWorkers::new(settings.tasks.clone(), settings.logs.clone());
        let (tasks, guard) = (settings.tasks.clone(), settings.guard_command.clone());
        let namespaces = settings.isolating.namespaces();
        let pool = Pool::new(tasks, guard, namespaces, cgroup_parent.clone(), settings.ready_max);
        (
            ProcessExecutor {
                shared: Arc::new(Shared {
                    pool: Arc::new(pool),
                    ended,
                    settings,
                    cgroup_parent,
                    events,
                    beginning: Mutex::default(),
                    waiting: Mutex::default(),
                    stopped_waiting: Notify::new(),
                    stop_by: Mutex::default(),
                    kept: KeptArtifacts::default(),
                }),
            },
            told,
        )
    }

    async fn tell(&self, event: ExecutorEvent) {
        self.shared.settings.isolating.note(&event);
        // The receiver is gone only while the agent shuts down; the disk has it all.
        let _ = self.shared.events.send(event).await;
    }

    fn task(&self, key: WorkerKey) -> TaskDir {
        TaskDir::of(&self.shared.settings.tasks, key)
    }

    /// Launches a worker whose image is prepared, if it is still wanted.
    async fn launch(&self, placement: &Placement, worker: &Launch, spec: TaskSpec, files: Arc<GangFiles>) {
        let staged = tokio::select! {
            staged = self.files_of(placement, &spec) => staged,
            () = self.stopped_while_waiting(spec.key), if waits(placement, worker) => return,
        };
        if !self.is_wanted(placement, worker) {
            return;
        }
        let record = WorkerRecord {
            key: spec.key,
            job_name: placement.job_name.clone(),
            tenant: placement.tenant.clone(),
            attempt: placement.attempt,
            devices: spec.devices,
            user: spec.isolation.user,
            directory: self.task(spec.key).path().to_owned(),
        };
        match staged {
            Ok(staged) => self.start_one(spec, files, staged, &record).await,
            Err(reason) => self.refuse(spec.key, reason).await,
        }
    }

    /// Has the host made ready for a worker whose directory is made; its end, where it is not launched then.
    async fn end_before_launch(&self, record: &WorkerRecord, epoch: u64) -> Option<ExitStatus> {
        let commands = self.shared.settings.host_commands.as_ref()?;
        let unwanted = async {
            tokio::select! {
                () = self.told_to_stop(record.key) => {}
                () = guards::lease_over(&self.shared.settings.lease, epoch) => {}
            }
        };
        let ready = commands.before(record, unwanted).await;
        let is_told = self.stop_by().contains_key(&record.key);
        match ready {
            Ok(()) => None,
            Err(NotReady::Stopped) if is_told => Some(ExitStatus::NotStarted),
            Err(NotReady::Stopped) => Some(ExitStatus::LeaseExpired),
            Err(NotReady::Failed(why)) => Some(ExitStatus::NodeFault(detail(&why))),
        }
    }

    /// Ends when a worker was told to stop, by what `is_told` looks at.
    async fn until_told(&self, is_told: impl Fn() -> bool) {
        loop {
            // Listens before it looks: no stop is missed between the two.
            let told = self.shared.stopped_waiting.notified();
            if is_told() {
                return;
            }
            told.await;
        }
    }

    /// Ends when a worker that has a directory was told to stop.
    async fn told_to_stop(&self, key: WorkerKey) {
        self.until_told(|| self.stop_by().contains_key(&key)).await;
    }

    /// Nothing of a worker is left, and its end is on record.
    fn begin_epilog(&self, key: WorkerKey) {
        if let Some(commands) = &self.shared.settings.host_commands {
            commands.worker_ended(key);
        }
    }

    /// Records the end of a worker that was never launched, and tells it.
    async fn end_without_launch(&self, key: WorkerKey, status: ExitStatus) {
        let (task, recorded) = (self.task(key), status.clone());
        let written = blocking(move || -> Result<(), TaskError> {
            match std::fs::create_dir(task.path()) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(TaskError::Io { doing: "make", path: task.path().to_owned(), source: e });
                }
                _ => {}
            }
            if task.exit()?.is_none() {
                task.write_exit(recorded)?;
            }
            Ok(())
        })
        .await;
        if let Err(error) = written {
            let error = chain(&error);
            tracing::warn!(
                job = %key.job,
                worker = %key,
                error,
                "a refusal is not durable; a restarted agent says vanished"
            );
        }
        self.tell(ExecutorEvent::Ended(key, status)).await;
    }

    /// Puts the values that stand in files of this host into a worker's environment, and its mark, which comes last: where that is
    /// found depends on the others.
    async fn complete_environment(&self, spec: &mut TaskSpec, tenant: &str) -> Result<(), String> {
        if secrets::are_asked_for(&spec.environment) {
            let mut environment = std::mem::take(&mut spec.environment);
            let (dir, tenant) = (self.shared.settings.secrets_dir.clone(), tenant.to_owned());
            let filled = blocking(move || {
                secrets::fill(&mut environment, dir.as_deref(), &tenant).map(|()| environment)
            });
            spec.environment = filled.await?;
        }
        processes::mark_environment(&mut spec.environment, mark(spec.key, self.shared.settings.holder))
    }

    /// Tells a worker that it has to stop, before the signal does.
    async fn give_notice(&self, key: WorkerKey, task: TaskDir, request: StopRequest) {
        let text = notice::text(key, request);
        let (file, words) = (task.clone(), text.clone());
        let written = blocking(move || {
            let written = notice::write(&file, &words);
            (written, notice::wanted(&file))
        });
        match tokio::time::timeout(notice::FILE_MAX, written).await {
            Ok((written, call)) => {
                if let Err(error) = written {
                    tracing::warn!(job = %key.job, worker = %key, %error, "the notice could not be written");
                }
                if let Some((to, shim)) = call {
                    tokio::spawn(notice::call(key, shim, to, text));
                }
            }
            Err(_) => tracing::warn!(
                job = %key.job,
                worker = %key,
                "the disk is slow; the signal goes before the notice"
            ),
        }
    }

    /// `staged` is what is in its own directory when it starts; none for nothing.
    async fn start_one(
        &self,
        spec: TaskSpec,
        files: Arc<GangFiles>,
        staged: Option<Staged>,
        record: &WorkerRecord,
    ) {
        let (key, epoch) = (spec.key, spec.epoch);
        let beginning = || self.shared.beginning.lock();
        if !beginning().insert(key) {
            // Another call makes the directory right now: it is that one's to launch.
            return;
        }
        let (tasks, pool) = (self.shared.settings.tasks.clone(), Arc::clone(&self.shared.pool));
        let created = blocking(move || {
            // Launched before, or refused: never again.
            if TaskDir::of(&tasks, key).path().exists() {
                return Ok(None);
            }
            pool.hold(key, spec.devices.iter().count());
            let put = |blank: &Blank| staged.as_ref().map_or(Ok(()), |staged| blank.put_work(staged.path()));
            let Some(Waiting { blank, shim, order }) = pool.take() else {
                let blank = Blank::of(&tasks, spec.key)?;
                put(&blank)?;
                return blank.fill(&tasks, &spec, &files).map(|task| Some((task, None)));
            };
            put(&blank)?;
            let task = blank.fill(&tasks, &spec, &files)?;
            Ok(Some((task, Some((shim, order)))))
        })
        .await;
        beginning().remove(&key);
        let (task, waiting) = match created {
            Ok(Some(created)) => created,
            Ok(None) => return,
            Err(error) => {
                let error = chain(&error);
                tracing::error!(
                    job = %key.job,
                    worker = %key,
                    error,
                    "a worker's directory could not be made"
                );
                return self.refuse(key, format!("make the worker's directory: {error}")).await;
            }
        };
        if let Some(end) = self.end_before_launch(record, epoch).await {
            // A shim that waits goes with its standard input.
            drop(waiting);
            return self.conclude(key, &task, Some(end)).await;
        }
        // One that has died has launched nothing: another takes its place.
        let shim = waiting.and_then(|(shim, order)| match prewarm_pool::order(order, &task) {
            Ok(()) => Some(shim),
            Err(error) => {
                tracing::warn!(job = %key.job, worker = %key, %error, "the waiting shim has ended");
                None
            }
        });
        match self.run_shim(&task, shim).await {
            Ok(()) => {
                self.tell(ExecutorEvent::Running(key)).await;
                self.watch(key, task);
            }
            Err(reason) => {
                let end = ExitStatus::LaunchFailed(detail(&reason));
                self.conclude(key, &task, Some(end)).await;
            }
        }
    }

    /// Waits until the shim has launched the worker or given up; starts one where none is.
    async fn run_shim(&self, task: &TaskDir, shim: Option<Shim>) -> Result<(), String> {
        let Shim { mut child, mut said } = match shim {
            Some(shim) => shim,
            None => self.start_shim(task)?,
        };
        let line = tokio::time::timeout(limits::SHIM_START_MAX, next_line(&mut said)).await;
        let launched = matches!(&line, Ok(line) if line == shim::RUNNING_LINE);
        if line.is_err() {
            // Hangs before the launch. Its worker, if there is one by now, dies with it.
            let _ = child.start_kill();
        }
        // Someone must reap it, whenever it ends.
        let ended = tokio::spawn(async move { child.wait().await });
        if launched {
            return Ok(());
        }
        match ended.await {
            Ok(Ok(status)) => Err(format!("the shim ended before the launch: {status}")),
            Ok(Err(error)) => Err(format!("wait for the shim: {error}")),
            Err(_) => Err("the wait for the shim was given up".to_owned()),
        }
    }

    fn start_shim(&self, task: &TaskDir) -> Result<Shim, String> {
        let command = &self.shared.settings.guard_command;
        let program = command.first().map_or("", String::as_str);
        let mut child = prewarm_pool::start(command, shim::RUN, task, None, None, Stdio::null())
            .map_err(|e| format!("start the shim {program}: {e}"))?;
        let said = child.stdout.take().ok_or("a shim without a pipe")?;
        Ok(Shim { child, said: BufReader::new(said) })
    }

    /// Makes shims that wait, as many as the host could get workers.
    fn make_ready(&self) {
        tokio::spawn(Arc::clone(&self.shared.pool).fill());
    }

    /// Tells the end of a worker whose shim runs.
    fn watch(&self, key: WorkerKey, task: TaskDir) {
        let executor = self.clone();
        tokio::spawn(async move {
            let gone = async {
                if let Err(error) = shim_gone(&task).await {
                    tracing::error!(
                        job = %key.job,
                        worker = %key,
                        %error,
                        "the shim cannot be watched; waiting for its lock"
                    );
                    wait_for_lock(&task).await;
                }
            };
            let guarding = executor.guard(key, &task);
            tokio::select! {
                () = gone => {}
                () = guarding => {}
            }
            executor.conclude(key, &task, None).await;
        });
    }

    /// Looks at a shim again and again; never ends.
    async fn guard(&self, key: WorkerKey, task: &TaskDir) {
        let mut guarded = Guarded::new(key, task.clone(), self.shared.settings.lease.clone());
        loop {
            tokio::time::sleep(guards::LOOK).await;
            let stop_by = self.stop_by().get(&key).copied();
            guarded = blocking(move || {
                guarded.look(stop_by);
                guarded
            })
            .await;
        }
    }

    fn stop_by(&self) -> parking_lot::MutexGuard<'_, BTreeMap<WorkerKey, BootTime>> {
        // A panic while holding it leaves a whole map.
        self.shared.stop_by.lock()
    }

    /// No shim is there (any more): finds out how the worker ended, ends what is left of it, and records
    /// the end. `unlaunched` is the end of one that was not launched.
    async fn conclude(&self, key: WorkerKey, task: &TaskDir, unlaunched: Option<ExitStatus>) {
        let holder = self.shared.settings.holder;
        let mut pause = Duration::from_millis(20);
        let status = loop {
            let (task, unlaunched) = (task.clone(), unlaunched.clone());
            let is_overdue = self.stop_by().contains_key(&key);
            match blocking(move || conclude_once(key, &task, holder, unlaunched, is_overdue)).await {
                Ok(Some(exit)) => break self.count_output(exit),
                // Something of it is still there, for example stuck in a driver: its devices are not free.
                Ok(None) => {}
                Err(error) => {
                    let error = chain(&error);
                    tracing::error!(
                        job = %key.job,
                        worker = %key,
                        error,
                        "a worker's end could not be settled; trying again"
                    );
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        };
        let files = self.shared.settings.files.as_deref();
        let stop_by = || self.stop_by().get(&key).copied();
        let (status, kept) = artifacts::keep(task, files, status, stop_by).await;
        if let Some(kept) = kept {
            self.shared.kept.put(key, kept);
        }
        self.stop_by().remove(&key);
        // Before anybody learns that the devices are free.
        self.begin_epilog(key);
        self.tell(ExecutorEvent::Ended(key, status)).await;
    }

    fn count_output(&self, exit: Exit) -> ExitStatus {
        let OutputTally { kept, dropped } = exit.output.unwrap_or_default();
        let metrics = &self.shared.settings.metrics;
        metrics.output(OutputFate::Kept, kept);
        metrics.output(OutputFate::Dropped, dropped);
        exit.status
    }

    fn adopt_one(&self, key: WorkerKey) -> Result<Option<Adopted>, TaskError> {
        let task = self.task(key);
        let exit = task.exit()?;
        if exit.is_some() && task.is_acked() {
            return Ok(None);
        }
        // A refusal has no launch; a damaged one cannot be judged by its devices, and has no shim that
        // could go on without it.
        let spec = task.spec().unwrap_or_else(|error| {
            tracing::error!(job = %key.job, worker = %key, %error, "the launch is damaged");
            None
        });
        let none = (DeviceSet::EMPTY, DEVICE_MILLI, 0);
        let (exit, kept) = artifacts::recorded(&task, spec.as_ref(), exit.map(|exit| exit.status));
        if let Some(kept) = kept {
            self.shared.kept.put(key, kept);
        }
        self.shared.settings.isolating.adopt(spec.as_ref().filter(|_| exit.is_none()));
        let (devices, device_milli, epoch) = spec.map_or(none, |s| (s.devices, s.device_milli, s.epoch));
        Ok(Some(Adopted { key, devices, device_milli, exit, epoch }))
    }
}

impl Executor for ProcessExecutor {
    fn kept_artifacts(&self) -> KeptArtifacts {
        self.shared.kept.clone()
    }

    async fn start(&self, placement: Arc<Placement>, epoch: u64) {
        let files = Arc::new(GangFiles {
            rank_map: contract::rank_map_json(&placement),
            hostfile: contract::by_address(&placement),
            rank_hostfile: contract::by_rank(&placement),
        });
        self.shared.pool.expect(placement.workers.len());
        let mut launches = tokio::task::JoinSet::new();
        let isolation = match self.shared.settings.isolating.of(&placement, &self.shared.settings.shown) {
            Ok(isolation) => isolation,
            Err(reason) => {
                for rank in placement.ranks() {
                    self.refuse(placement.key(rank), reason.clone()).await;
                }
                return;
            }
        };
        let waiting = placement.workers.iter().filter(|worker| waits(&placement, worker));
        self.shared.waiting.lock().extend(waiting.map(|worker| placement.key(worker.rank)));
        let mut images = Vec::new();
        let clock = StageClock::begin(&self.shared.settings, &placement);
        for (place, worker) in placement.workers.iter().enumerate() {
            let Some(image) = self.image_of(&placement, worker, &clock).await else { continue };
            let spec = image.and_then(|image| {
                let spec = self.spec(&placement, worker, epoch, &isolation, image.as_ref());
                // Nobody removes it before a shim holds it.
                images.extend(image);
                spec
            });
            let filled = match spec {
                Ok(mut spec) => self.complete_environment(&mut spec, &placement.tenant).await.map(|()| spec),
                Err(reason) => Err(reason),
            };
            let spec = match filled {
                Ok(spec) => spec,
                Err(reason) => {
                    if self.is_wanted(&placement, worker) {
                        self.refuse(placement.key(worker.rank), reason).await;
                    }
                    continue;
                }
            };
            let (executor, files, placement) = (self.clone(), Arc::clone(&files), Arc::clone(&placement));
            launches.spawn(async move {
                let Some(worker) = placement.workers.get(place) else { return };
                executor.launch(&placement, worker, spec, files).await;
            });
        }
        clock.enter(StartStage::Starting, "");
        while launches.join_next().await.is_some() {}
        drop(clock);
        drop(images);
        self.shared.pool.trim().await;
    }

    async fn refuse(&self, key: WorkerKey, reason: String) {
        self.end_without_launch(key, ExitStatus::LaunchFailed(detail(&reason))).await;
    }

    async fn stop(&self, key: WorkerKey, request: StopRequest) -> Result<(), ExecutorError> {
        let task = self.task(key);
        let was_waiting = self.shared.waiting.lock().remove(&key);
        if was_waiting {
            self.shared.stopped_waiting.notify_waiters();
            self.end_without_launch(key, ExitStatus::NotStarted).await;
            return Ok(());
        }
        if !task.path().is_dir() {
            return Err(ExecutorError::Unknown(key));
        }
        let by = BootTime::now().after(request.grace);
        self.stop_by().entry(key).and_modify(|before| *before = (*before).min(by)).or_insert(by);
        self.shared.stopped_waiting.notify_waiters();
        self.give_notice(key, task.clone(), request).await;
        let told = task.tell_to_stop(request.grace);
        // For a shim that does not listen yet. No stop waits for a disk: where this one hangs, the agent says it
        // again when the worker runs.
        tokio::spawn(async move {
            if let Err(error) = blocking(move || task.record_stop(request.grace)).await {
                let error = chain(&error);
                tracing::warn!(
                    job = %key.job,
                    worker = %key,
                    error,
                    told = told.is_ok(),
                    "a stop could not be recorded"
                );
            }
        });
        Ok(())
    }

    async fn adopt(&self) -> Result<Vec<Adopted>, ExecutorError> {
        let mut found = Vec::new();
        let (tasks, parent) = (self.shared.settings.tasks.clone(), self.shared.cgroup_parent.clone());
        let holder = self.shared.settings.holder;
        let commands = self.shared.settings.host_commands.clone();
        let scratch = self.shared.settings.scratch_dir.clone();
        let listed = blocking(move || {
            let of_holder = holder_mark(holder);
            let ended = unlisted::end(&tasks, |mark| mark.ends_with(&of_holder))?;
            if !ended.processes.is_empty() {
                tracing::error!(
                    processes = ended.processes.len(),
                    "workers ran that the state directory does not list, as if it was set back to an older copy: they were ended"
                );
            }
            shim::remove_unused_shared_memory(holder);
            let listed = task::list(&tasks)?;
            let is_listed = |key: &WorkerKey| listed.binary_search(key).is_ok();
            for key in ended.workers.iter().filter(|key| !is_listed(key)) {
                ended_workers::remove_temporary_of(*key, holder, scratch.clone());
            }
            if let Some(parent) = parent {
                cgroup::remove_unused(&parent, |name| {
                    let own = shim::worker_of_group(name, holder);
                    name.starts_with(shim::WAITING_GROUP) || own.is_some_and(|key| !is_listed(&key))
                });
            }
            let owed = commands.map_or_else(|| Ok(Vec::new()), |commands| commands.take_over())?;
            Ok((listed, owed))
        });
        let (listed, owed) = listed.await.map_err(ExecutorError::List)?;
        // Those without a directory ended before a reboot.
        for key in owed.into_iter().filter(|key| listed.binary_search(key).is_err()) {
            self.begin_epilog(key);
        }
        for key in listed {
            let executor = self.clone();
            let adopted = blocking(move || executor.adopt_one(key)).await;
            let adopted = match adopted {
                Ok(Some(adopted)) => adopted,
                Ok(None) => {
                    self.begin_epilog(key);
                    continue;
                }
                // A damaged exit record: what is left is stopped, and the end told as vanished.
                Err(error) => {
                    tracing::error!(job = %key.job, worker = %key, error = chain(&error), "no valid record");
                    let (devices, device_milli) = (DeviceSet::EMPTY, DEVICE_MILLI);
                    Adopted { key, devices, device_milli, exit: None, epoch: 0 }
                }
            };
            if adopted.exit.is_none() {
                self.watch(key, self.task(key));
            } else {
                self.begin_epilog(key);
            }
            self.shared.pool.hold(key, adopted.devices.iter().count());
            found.push(adopted);
        }
        self.shared.ended.look();
        self.make_ready();
        Ok(found)
    }

    async fn acknowledge(&self, key: WorkerKey) {
        let task = self.task(key);
        let acked = task.clone();
        if let Err(error) = blocking(move || acked.write_acked()).await {
            tracing::warn!(
                job = %key.job,
                worker = %key,
                %error,
                "an acknowledgement is not durable; the end is told again"
            );
        }
        self.shared.kept.forget(key);
        self.shared.ended.keep(&task);
        self.shared.pool.release(key);
        self.make_ready();
    }

    async fn read_output(
        &self,
        request: OutputRequest,
        sink: mpsc::Sender<OutputChunk>,
    ) -> Result<(), ExecutorError> {
        let task = self.task(request.key);
        if !task.path().is_dir() {
            return Err(ExecutorError::Unknown(request.key));
        }
        crate::process::follow::read(&task, &request, &sink).await.map_err(ExecutorError::Output)
    }

    async fn exec(
        &self,
        request: ExecRequest,
        inputs: mpsc::Receiver<ExecInput>,
        outputs: mpsc::Sender<ExecOutput>,
    ) -> Result<(), String> {
        let ExecRequest { key, command, environment, terminal } = request;
        let task = self.task(key);
        if !task.path().is_dir() {
            return Err(format!("nothing is known of worker {key}"));
        }
        let request = exec::Request { command, environment, terminal };
        exec::run(&self.shared.settings.guard_command, &task, request, inputs, &outputs).await
    }

    async fn attach(
        &self,
        key: WorkerKey,
        size: TerminalSize,
        inputs: mpsc::Receiver<ExecInput>,
        outputs: mpsc::Sender<ExecOutput>,
    ) -> Result<(), String> {
        terminal::attach(&self.task(key), size, inputs, &outputs).await
    }

    async fn listens(&self, key: WorkerKey, port: u16) -> Result<(), String> {
        let task = self.task(key);
        blocking(move || ports::look(&task, port)).await
    }

    async fn connect(&self, key: WorkerKey, port: u16) -> Result<Box<dyn PortStream>, String> {
        let task = self.task(key);
        let stream = blocking(move || ports::connect(&task, port)).await?;
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        let stream = stream.map_err(|e| e.to_string())?;
        Ok(Box::new(stream))
    }

    async fn ended(&self, key: WorkerKey) {
        loop {
            let task = self.task(key);
            if blocking(move || ports::has_ended(&task)).await {
                return;
            }
            tokio::time::sleep(limits::PORT_WORKER_LOOK).await;
        }
    }
}

/// A value that is this worker's alone and can be made again after a restart.
fn mark(key: WorkerKey, holder: HolderId) -> String {
    format!("{}_{}_{}{}", key.job, key.token, key.rank, holder_mark(holder))
}

/// How the marks of all workers of a holder end.
fn holder_mark(holder: HolderId) -> String {
    // The holder itself is nothing for a worker to know: what its gang is known by follows from it.
    let hash =
        Sha256::new().chain_update(b"muster worker mark\0").chain_update(holder.0.to_le_bytes()).finalize();
    let of_holder: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("_{of_holder}")
}

/// Waits for the end-of-file of the FIFO that the shim holds open.
async fn shim_gone(task: &TaskDir) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(task.alive())?;
    // A FIFO that had no writer when it was opened never reports a hang-up: ask it once directly.
    let mut byte = [0u8; 1];
    match file.read(&mut byte) {
        Ok(0) => return Ok(()),
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
        Err(e) => return Err(e),
    }
    let mut alive = pipe::Receiver::from_file(file)?;
    loop {
        match alive.read(&mut byte).await {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// The slow way: no event exists for a lock.
async fn wait_for_lock(task: &TaskDir) {
    loop {
        let task = task.clone();
        if let Ok(Some(_)) = blocking(move || task.try_lock()).await {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// One attempt at a conclusion; none when something of the worker is still there.
fn conclude_once(
    key: WorkerKey,
    task: &TaskDir,
    holder: HolderId,
    unlaunched: Option<ExitStatus>,
    is_overdue: bool,
) -> Result<Option<Exit>, TaskError> {
    let _lock: File = match task.try_lock() {
        Ok(Some(lock)) => lock,
        Ok(None) => return Ok(None),
        Err(error) => return Err(error),
    };
    match task.exit() {
        Ok(Some(exit)) => return Ok(Some(exit)),
        Ok(None) => {}
        Err(error) => tracing::error!(job = %key.job, worker = %key, %error, "the exit record is damaged"),
    }
    // The shim died without a word, and its worker with it; what the worker had started may be left.
    let running = task.running().unwrap_or_else(|error| {
        tracing::error!(job = %key.job, worker = %key, %error, "the record of the launch is damaged");
        None
    });
    let group = running.as_ref().and_then(|r| r.cgroup.clone()).map(Cgroup::at);
    if let Some(group) = &group {
        group.kill();
    }
    let left = processes::left_behind(running.as_ref().map(|r| r.shim_pid), &mark(key, holder));
    processes::kill_all(&left);
    if !left.is_empty() || group.as_ref().is_some_and(|g| !g.processes().is_empty()) {
        return Ok(None);
    }
    if let Some(group) = &group {
        // An empty group that stays behind costs a directory.
        let _ = group.remove();
    }
    let status = match unlaunched {
        Some(status) if running.is_none() => status,
        // Nobody ends a shim but the agent, for a reason, and a worker that can: without a separate namespace. That is
        // the worker's failure, which counts against its retries, not a loss of the node.
        None if running.is_some() && !is_overdue && could_kill_its_guard(task) => {
            tracing::warn!(job = %key.job, worker = %key, "the worker's shim was killed");
            ExitStatus::Signal(nix::libc::SIGKILL)
        }
        _ => ExitStatus::Vanished,
    };
    let exit = Exit { status, output: None };
    task.write_end(&exit)?;
    Ok(Some(exit))
}

/// Whether the worker could reach the process that guards it.
fn could_kill_its_guard(task: &TaskDir) -> bool {
    let spec = task.spec().ok().flatten();
    spec.is_none_or(|spec| spec.isolation.namespaces == Namespaces::Host)
}
