//! What a job of another scheduler becomes: a small agent for one share, inside what that scheduler gave.
//!
//! It shows its ticket, is given what to launch, and launches it like any agent: every worker below a
//! shim that stops it when the lease runs out. The lease comes over the link as a duration that is left,
//! which the runner counts from the moment *before* it asked, on its own host's clock. When the link is
//! down the workers go on as far as that lease does.
//!
//! **Invariant:** nothing is launched but by a grant; a runner's lease never stands longer than the
//! agent's; when the runner ends nothing of its workers is left, or their shims are about to end them.

use super::far_store::FarStore;
use super::link::{self, Errand, Grant, LeaseRemainder, Piece, Ticket, ToAgent, ToRunner, Within};
use super::runner_notes::{next_said, take_notes};
use super::streams::{self, Dialling};
use crate::clock::BootTime;
use crate::disk::lease::Lease;
use crate::executor::{Executor, ExecutorEvent, OutputChunk, OutputRequest, StopRequest};
use crate::limits;
use crate::own_program;
use crate::process::cgroup;
use crate::process::socket::WorkerReport;
use crate::process::task::{self, TaskDir};
use crate::process::transcript::OutputStream;
use crate::process::work_files::WorkFiles;
use crate::process::{ProcessExecutor, ProcessSettings};
use crate::rules::WorkerEvent;
use crate::rules::{Placement, WorkerKey, detail};
use crate::settings::{ControlGroups, MemoryLimit};
use crate::temporary;
use muster_transport::{PinnedError, PinnedReader, PinnedWriter, dial};
use muster_types::{Artifacts, DeviceSet, ExitStatus, HolderId, HostRules, Ulimits};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Bytes of a ticket.
const TICKET_BYTES_MAX: u64 = 64 << 10;
/// What is told and not acknowledged, at most.
pub(super) const WINDOW: usize = 32;
/// Of a dial, and of the answer to a greeting.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// First and longest wait between two dials.
const DIAL_WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Between two renewals: a quarter of what is left, within these.
const RENEW: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// How long it goes on trying to tell, once all of its workers have ended.
const TELL_MAX: Duration = Duration::from_secs(60);
/// Entries of the place of its directory that a runner looks at.
const ENTRIES_LOOKED_AT_MAX: usize = 4_096;
/// How long an end waits for the rest of its worker's output.
const OUTPUT_MAX: Duration = Duration::from_secs(10);
/// Errands of the agent at the same time. What is beyond is not done, and the agent does not wait for long.
const ERRANDS_MAX: usize = 256;

/// Exit codes of a runner that launched nothing, from `sysexits.h`.
pub(crate) mod code {
    /// The agent cannot be reached.
    pub(crate) const UNREACHABLE: u8 = 69;
    /// The agent has nothing for it to run.
    pub(crate) const REFUSED: u8 = 70;
    /// Its directory or its input cannot be used.
    pub(crate) const SETUP: u8 = 71;
}

/// In the environment of a pod's runner: its ticket, as JSON.
pub(crate) const TICKET_VARIABLE: &str = "MUSTER_TICKET";
/// Next to it: what its pod is known by, whatever its name.
pub(crate) const POD_VARIABLE: &str = "MUSTER_POD_UID";
/// Next to it: the name of its node.
pub(crate) const POD_NODE_VARIABLE: &str = "MUSTER_POD_NODE";
/// Where the scratch directories of workers are, in a pod whose job asks for scratch.
pub(crate) const POD_SCRATCH_DIRECTORY: &str = "/muster-scratch";

/// The runner of a batch job, which finds its ticket on its standard input.
pub(crate) fn main_in_batch_job() -> i32 {
    main(ticket(std::io::stdin().lock()))
}

/// The runner of a pod, the first process of its container, which finds its ticket in its environment.
pub(crate) fn main_in_pod() -> i32 {
    let text = std::env::var(TICKET_VARIABLE).unwrap_or_default();
    main(ticket(text.as_bytes()))
}

/// Runs the runner to its end; its exit code is its workers', or tells why there were none.
fn main(ticket: Result<Ticket, String>) -> i32 {
    let ticket = match ticket {
        Ok(ticket) => ticket,
        Err(why) => return complain(code::SETUP, &why),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(run(ticket));
            // A read of a hanging disk must not keep the allocation.
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err((code::SETUP, format!("start: {error}"))),
    };
    match ended {
        Ok(code) => code,
        Err((code, why)) => complain(code, &why),
    }
}

pub(super) fn complain(code: u8, why: &str) -> i32 {
    use std::io::Write as _;
    // Into the output of the job itself; there is nobody else to tell.
    let _ = writeln!(std::io::stderr().lock(), "muster runner: {why}");
    i32::from(code)
}

fn ticket(from: impl Read) -> Result<Ticket, String> {
    let mut text = Vec::new();
    from.take(TICKET_BYTES_MAX).read_to_end(&mut text).map_err(|e| format!("read the ticket: {e}"))?;
    serde_json::from_slice(&text).map_err(|e| format!("this command is for jobs of an agent: no ticket: {e}"))
}

/// The runner's directory, removed with it. One that is killed leaves it to the next runner on its node.
struct Directory {
    path: PathBuf,
    /// Locked for as long as the runner is there.
    _held: File,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What cannot be removed is a directory in a temporary place. Workers may have filled it with directories that are deeper
        // than a stack.
        let _ = crate::disk::tree::remove(&self.path);
    }
}

/// Says in a runner's directory on which node of Slurm it is, should several of them share the place.
const HOST_FILE: &str = "muster-runner-host";
/// Stands before the name of a directory that its runner has not locked yet.
const UNFINISHED: &str = ".new-";

fn directory(below: &Path, share: &str, runner: u128, host: &str) -> Result<Directory, String> {
    let name = format!("{share}-{:08x}", runner >> 96);
    let (part, path) = (below.join(format!("{UNFINISHED}{name}")), below.join(name));
    let failed = |e: std::io::Error| format!("make {}: {e}", path.display());
    std::fs::DirBuilder::new().mode(0o700).create(&part).map_err(failed)?;
    let finish = || -> std::io::Result<File> {
        std::fs::create_dir(part.join("tasks"))?;
        std::fs::write(part.join(HOST_FILE), host)?;
        let held = File::open(&part)?;
        held.lock()?;
        std::fs::rename(&part, &path)?;
        Ok(held)
    };
    match finish() {
        Ok(held) => Ok(Directory { path, _held: held }),
        Err(error) => {
            let _ = std::fs::remove_dir_all(&part);
            Err(failed(error))
        }
    }
}

/// Removes the directories of runners of this user and node that were killed, once their shims have ended too. Slurm kills
/// what it does not know any more with SIGKILL, and with it every process that could have removed them.
fn remove_left(below: &Path, host: &str) {
    let entries = std::fs::read_dir(below).into_iter().flatten().flatten();
    for entry in entries.take(ENTRIES_LOOKED_AT_MAX) {
        let is_named = entry.file_name().to_str().is_some_and(is_of_runner);
        if is_named && is_left(&entry.path(), host) {
            let _ = crate::disk::tree::remove(&entry.path());
        }
    }
}

/// Whether a name is one that runners give.
fn is_of_runner(name: &str) -> bool {
    let end = name.rsplit_once('-').filter(|_| !name.starts_with(UNFINISHED));
    end.is_some_and(|(_, end)| end.len() == 8 && end.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn is_left(path: &Path, host: &str) -> bool {
    let own = std::fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw());
    let is_here = || std::fs::read(path.join(HOST_FILE)).is_ok_and(|of| of == host.as_bytes());
    let is_unused = || File::open(path).is_ok_and(|directory| directory.try_lock().is_ok());
    let tasks = path.join("tasks");
    let has_ended = |key: &WorkerKey| matches!(TaskDir::of(&tasks, *key).try_lock(), Ok(Some(_)));
    own && !host.is_empty()
        && is_here()
        && is_unused()
        && task::list(&tasks).is_ok_and(|keys| keys.iter().all(has_ended))
}

/// What differs with what a runner runs below.
impl Within {
    /// Where the scratch directories of workers are: what the other scheduler has mounted for that.
    fn scratch_dir(self) -> Option<PathBuf> {
        match self {
            Within::Slurm => Some(temporary::short_base()),
            Within::Kubernetes => Some(PathBuf::from(POD_SCRATCH_DIRECTORY)),
        }
    }

    /// The name that the other scheduler has for this host; empty where it gives none.
    fn host(self) -> String {
        let name = match self {
            Within::Slurm => "SLURMD_NODENAME",
            Within::Kubernetes => POD_NODE_VARIABLE,
        };
        std::env::var(name).unwrap_or_default()
    }

    /// What the other scheduler knows this job by.
    fn job(self) -> String {
        let name = match self {
            Within::Slurm => "SLURM_JOB_ID",
            Within::Kubernetes => POD_VARIABLE,
        };
        std::env::var(name).unwrap_or_default()
    }

    /// The numbers of the devices that were given, as far as they are stated.
    fn visible(self, meant: DeviceSet) -> Option<String> {
        match self {
            Within::Slurm => visible(),
            // A container sees what it was given and nothing else, numbered from 0.
            Within::Kubernetes => {
                let numbers: Vec<String> = (0..meant.count()).map(|number| number.to_string()).collect();
                Some(numbers.join(","))
            }
        }
    }

    /// What every worker gets: what its job has, or, in a container, what its image states.
    fn environment(self, pass: &[String]) -> BTreeMap<String, String> {
        let base = crate::settings::base_environment(pass);
        match self {
            Within::Slurm => base,
            Within::Kubernetes => {
                let own = [TICKET_VARIABLE, POD_VARIABLE, POD_NODE_VARIABLE];
                // What is not text is no variable that a worker could be given.
                let all = std::env::vars_os()
                    .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
                base.into_iter().chain(all.filter(|(name, _)| !own.contains(&name.as_str()))).collect()
            }
        }
    }

    /// How many processes of the container the kernel has ended for want of memory; 0 where the job has no container.
    fn memory_ends(self) -> u64 {
        match self {
            Within::Slurm => 0,
            Within::Kubernetes => cgroup::container_oom_kills(Path::new("/sys/fs/cgroup")),
        }
    }

    /// Why a worker ended whose job was told to end by somebody else.
    fn evicted(self) -> &'static str {
        match self {
            Within::Slurm => "its batch job was told to end: cancelled in Slurm, out of time, or preempted",
            Within::Kubernetes => "its pod was told to end: deleted, evicted, or preempted in Kubernetes",
        }
    }
}

type Failed = (u8, String);

async fn run(ticket: Ticket) -> Result<i32, Failed> {
    let runner: u128 = rand::random();
    let (below, host) = (ticket.directory.clone(), ticket.within.host());
    let directory = directory(&below, &ticket.share, runner, &host).map_err(|why| (code::SETUP, why))?;
    tokio::task::spawn_blocking(move || remove_left(&below, &host));
    let mut term = signal(SignalKind::terminate()).map_err(|e| (code::SETUP, format!("signals: {e}")))?;
    let patience = Instant::now() + Duration::from_millis(ticket.patience_ms);
    let within = ticket.within;
    let dialling = Dialling { ticket: Arc::new(ticket.clone()) };
    let mut dialler = Dialler { ticket, runner: format!("{runner:032x}"), wait: DIAL_WAIT.0 };
    let (link, sent, first) = tokio::select! {
        opened = dialler.open(Some(patience)) => opened.map_err(|why| (code::UNREACHABLE, why))?,
        _ = term.recv() => return Err((code::REFUSED, "told to stop before there was anything to run".into())),
    };
    let grant = match first {
        ToRunner::Launch(grant) => grant,
        ToRunner::Refused { reason } => return Err((code::REFUSED, reason)),
        _ => return Err((code::REFUSED, "the agent's answer is of another version".into())),
    };
    let running = Running::start(&directory.path, *grant, sent, runner, (within, dialling)).await;
    let running = running.map_err(|why| (code::SETUP, why))?;
    Ok(running.go_on(dialler, link, term).await)
}

/// One connection.
struct Link {
    messages: mpsc::Receiver<ToRunner>,
    writer: PinnedWriter<TcpStream>,
    /// Ends with the link.
    _reading: JoinSet<()>,
}

struct Dialler {
    ticket: Ticket,
    runner: String,
    wait: Duration,
}

impl Dialler {
    /// Dials until the agent answers: the link, when the greeting was sent, and its first word.
    async fn open(&mut self, until: Option<Instant>) -> Result<(Link, BootTime, ToRunner), String> {
        loop {
            let why = match tokio::time::timeout(ANSWER_MAX, self.once()).await {
                Ok(Ok(opened)) => {
                    self.wait = DIAL_WAIT.0;
                    return Ok(opened);
                }
                Ok(Err(why)) => why,
                Err(_) => "no answer in time".to_owned(),
            };
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(format!("the agent at {}: {why}", self.ticket.agent));
            }
            tokio::time::sleep(self.wait).await;
            self.wait = (self.wait * 2).min(DIAL_WAIT.1);
        }
    }

    async fn once(&self) -> Result<(Link, BootTime, ToRunner), String> {
        let stream = TcpStream::connect(&self.ticket.agent).await.map_err(|e| e.to_string())?;
        // Without it small frames would wait for each other; the connection works either way.
        let _ = stream.set_nodelay(true);
        let opened = dial(stream, &self.ticket.share, &self.ticket.identity).await;
        let (mut reader, mut writer) = opened.map_err(|e| e.to_string())?;
        let hello = ToAgent::Hello {
            runner: self.runner.clone(),
            job: self.ticket.within.job(),
            host: self.ticket.within.host(),
        };
        let sent = BootTime::now();
        writer.write(&link::encode(&hello)).await.map_err(|e| e.to_string())?;
        let first = reader.read().await.map_err(|e| e.to_string())?;
        let first = first.ok_or("it closed the connection")?;
        let first = link::decode(&first).ok_or("its answer is of another version")?;
        let (tell, messages) = mpsc::channel(WINDOW);
        let mut reading = JoinSet::new();
        reading.spawn(read(reader, tell));
        Ok((Link { messages, writer, _reading: reading }, sent, first))
    }
}

async fn read(mut from: PinnedReader<TcpStream>, tell: mpsc::Sender<ToRunner>) {
    while let Ok(Some(bytes)) = from.read().await {
        let Some(message) = link::decode(&bytes) else { continue };
        if tell.send(message).await.is_err() {
            return;
        }
    }
}

/// What is to be told, numbered when it is sent.
enum Word {
    Running(u32),
    Ended(u32, ExitStatus, Option<Artifacts>),
    Output(u32, OutputChunk),
}

/// A note that the agent has not answered, as it is told, and who waits for that.
struct Unanswered {
    frame: Vec<u8>,
    answer: oneshot::Sender<Result<(), String>>,
}

/// The workers, and what they have to say.
struct Running {
    within: Within,
    dialling: Dialling,
    /// What the agent has asked to be done at workers; it ends with this.
    errands: JoinSet<()>,
    executor: ProcessExecutor,
    placement: Placement,
    lease: Lease,
    /// What the lease was last said to leave, and when the next renewal is due.
    renew_at: Instant,
    renewals: BTreeMap<u64, BootTime>,
    renewal: u64,
    told: mpsc::Receiver<ExecutorEvent>,
    /// What workers say of themselves; none where nobody takes it.
    said: Option<mpsc::Receiver<WorkerReport>>,
    /// Notes that the agent has not answered, and the last id of one.
    notes: BTreeMap<u64, Unanswered>,
    note: u64,
    words: mpsc::Receiver<Word>,
    say: Option<mpsc::Sender<Word>>,
    output: BTreeMap<u32, tokio::task::JoinHandle<()>>,
    alive: BTreeSet<u32>,
    /// The shortest grace asked for: one that is being launched is told again when it runs.
    stops: BTreeMap<u32, StopRequest>,
    /// The other scheduler has told the job to end, and nobody else these workers.
    evicted: BTreeSet<u32>,
    /// How many processes of the container the kernel had ended for want of memory when that was last looked at.
    memory_ends: u64,
    ends: BTreeMap<u32, ExitStatus>,
    number: u64,
    unacknowledged: VecDeque<(u64, Vec<u8>)>,
}

/// What ended one connection.
enum Broken {
    /// All is told.
    Done,
    /// To be dialled again.
    Link,
}

impl Running {
    async fn start(
        directory: &Path,
        grant: Grant,
        sent: BootTime,
        runner: u128,
        (within, dialling): (Within, Dialling),
    ) -> Result<Running, String> {
        let Grant { mut placement, left, node, accelerator, logs, pass_environment, takes_notes, files } =
            grant;
        let files = files.map(|bounds| WorkFiles::with(&bounds, Arc::new(FarStore::over(dialling.clone()))));
        let mut lease = Lease::open(&directory.join("lease"), runner, 0).map_err(|e| e.to_string())?;
        renew(&mut lease, sent, left);
        let meant = placement.workers.iter().fold(DeviceSet::EMPTY, |set, worker| set.union(worker.devices));
        let devices = map_devices(&mut placement, within.visible(meant).as_deref());
        // The other scheduler has its own: a worker is not refused for what no configuration of this agent allows.
        placement.ulimits = Ulimits::default();
        // A job with another binding is not placed there, and the `/dev/shm` of a pod has its size already.
        placement.host = HostRules { shell: placement.host.shell, ..HostRules::default() };
        if within == Within::Kubernetes {
            // Its container has the image already.
            placement.workers.iter_mut().for_each(|worker| worker.container = None);
        }
        let (socket, said) = if takes_notes { take_notes(directory, &placement) } else { (None, None) };
        let mut shim_command = own_program::command().map_err(|e| format!("find this program: {e}"))?;
        shim_command.push("shim".to_owned());
        let (executor, told) = ProcessExecutor::new(ProcessSettings {
            tasks: directory.join("tasks"),
            lease: directory.join("lease"),
            holder: HolderId(runner),
            guard_command: shim_command.clone(),
            shim_command,
            // It starts what it was started for, and nothing after that.
            ready_max: 0,
            node,
            accelerator,
            environment: within.environment(&pass_environment),
            // They are with the agent, which has filled in the values already.
            secrets_dir: None,
            scratch_dir: within.scratch_dir(),
            logs,
            // The other scheduler has its own.
            control_groups: ControlGroups::Off,
            // What was asked for is held also where the other scheduler does not.
            memory_limit: MemoryLimit::Enforced,
            // Its agent counts what arrives there.
            metrics: muster_metrics::AgentMetrics::default(),
            agent_socket: socket,
            isolating: Arc::new(crate::process::isolation::Isolating::off()),
            shown: Vec::new(),
            // The nodes of another scheduler state no container runtime.
            images: None,
            files: files.map(Arc::new),
            host_commands: None,
            is_in_job: true,
        });
        let (say, words) = mpsc::channel(4);
        let alive = placement.ranks().collect();
        let shared = Arc::new(placement.clone());
        let launcher = executor.clone();
        let epoch = lease.standing(BootTime::now()).map_or(0, |slot| slot.epoch);
        tokio::spawn(async move {
            match devices {
                Ok(()) => launcher.start(shared, epoch).await,
                Err(why) => {
                    for rank in shared.ranks() {
                        launcher.refuse(shared.key(rank), why.clone()).await;
                    }
                }
            }
        });
        Ok(Running {
            within,
            dialling,
            errands: JoinSet::new(),
            executor,
            placement,
            lease,
            renew_at: Instant::now() + pause(left),
            renewals: BTreeMap::new(),
            renewal: 0,
            told,
            said,
            notes: BTreeMap::new(),
            note: 0,
            words,
            say: Some(say),
            output: BTreeMap::new(),
            alive,
            stops: BTreeMap::new(),
            evicted: BTreeSet::new(),
            memory_ends: within.memory_ends(),
            ends: BTreeMap::new(),
            number: 0,
            unacknowledged: VecDeque::new(),
        })
    }

    /// Until all is told, or there is no telling; the exit code.
    async fn go_on(mut self, mut dialler: Dialler, mut link: Link, mut term: Signal) -> i32 {
        loop {
            if let Broken::Done = self.serve(&mut link, &mut term).await {
                break;
            }
            drop(link);
            match self.without_link(&mut dialler, &mut term).await {
                Some(again) => link = again,
                None => break,
            }
        }
        exit_code(&self.ends)
    }

    /// Connects again while the workers run. Returns `None` when there is nothing left to report.
    async fn without_link(&mut self, dialler: &mut Dialler, term: &mut Signal) -> Option<Link> {
        loop {
            // While workers run there is no limit, because their lease is one.
            let until = self.alive.is_empty().then(|| Instant::now() + TELL_MAX);
            let opened = tokio::select! {
                opened = dialler.open(until) => opened,
                Some(event) = self.told.recv() => {
                    self.on_event(event).await;
                    continue;
                }
                _ = term.recv() => {
                    self.evict().await;
                    continue;
                }
            };
            let (link, sent, first) = match opened {
                Ok(opened) => opened,
                Err(why) => {
                    complain(code::UNREACHABLE, &why);
                    return None;
                }
            };
            match first {
                ToRunner::GoOn { left } => {
                    renew(&mut self.lease, sent, left);
                    self.renew_at = Instant::now();
                    return Some(link);
                }
                _ => {
                    complain(code::REFUSED, "the agent does not know this runner any more; stopping");
                    self.stop_all(Duration::ZERO).await;
                    while !self.alive.is_empty() {
                        let Some(event) = self.told.recv().await else { break };
                        self.on_event(event).await;
                    }
                    return None;
                }
            }
        }
    }

    async fn serve(&mut self, link: &mut Link, term: &mut Signal) -> Broken {
        self.notes.retain(|_, note| !note.answer.is_closed());
        let notes = self.notes.values().map(|note| &note.frame);
        for frame in self.unacknowledged.iter().map(|(_, frame)| frame).chain(notes) {
            if link.writer.write(frame).await.is_err() {
                return Broken::Link;
            }
        }
        loop {
            if self.notes.len() >= limits::NOTES_WAITING_MAX {
                self.notes.retain(|_, note| !note.answer.is_closed());
            }
            let told_all = self.say.is_none() && self.unacknowledged.is_empty() && self.words.is_empty();
            if told_all && self.words.is_closed() {
                // Lost with the connection, it would only cost the agent a look at the other scheduler.
                let _ = link.writer.write(&link::encode(&ToAgent::Done)).await;
                return Broken::Done;
            }
            let sent = tokio::select! {
                message = link.messages.recv() => match message {
                    Some(message) => {
                        self.on_message(message).await;
                        Ok(())
                    }
                    None => return Broken::Link,
                },
                Some(event) = self.told.recv(), if !self.alive.is_empty() => {
                    self.on_event(event).await;
                    Ok(())
                }
                Some(word) = self.words.recv(), if self.unacknowledged.len() < WINDOW => {
                    let frame = self.frame(word);
                    link.writer.write(&frame).await
                }
                said = next_said(&mut self.said), if self.notes.len() < limits::NOTES_WAITING_MAX => {
                    let frame = self.on_report(said);
                    link.writer.write(&frame).await
                }
                () = tokio::time::sleep_until(self.renew_at) => self.ask_for_lease(&mut link.writer).await,
                _ = term.recv() => {
                    self.evict().await;
                    Ok(())
                }
            };
            if sent.is_err() {
                return Broken::Link;
            }
        }
    }

    fn frame(&mut self, word: Word) -> Vec<u8> {
        self.number += 1;
        let number = self.number;
        let frame = match word {
            Word::Running(rank) => link::encode(&ToAgent::Running { number, rank }),
            Word::Ended(rank, status, artifacts) => {
                link::encode(&ToAgent::Ended { number, rank, status, artifacts })
            }
            Word::Output(rank, chunk) => {
                let OutputChunk { stream, data, dropped_bytes: lost, position: _ } = chunk;
                link::encode_piece(&Piece { number, rank, stream, lost, data })
            }
        };
        self.unacknowledged.push_back((number, frame.clone()));
        frame
    }

    /// A note as a frame, kept until it is answered where somebody waits for that.
    fn on_report(&mut self, report: WorkerReport) -> Vec<u8> {
        let WorkerReport { key, event, answer } = report;
        let waits = matches!(event, WorkerEvent::CheckpointCommitted { .. } | WorkerEvent::Ready);
        let id = if waits { self.note + 1 } else { 0 };
        let frame = link::encode(&ToAgent::Note { id, rank: key.rank, note: event });
        if waits {
            self.note = id;
            self.notes.insert(id, Unanswered { frame: frame.clone(), answer });
        }
        frame
    }

    async fn ask_for_lease(&mut self, writer: &mut PinnedWriter<TcpStream>) -> Result<(), PinnedError> {
        self.renewal += 1;
        let number = self.renewal;
        // Answers come in order: of what is old only the newest few can still be answered.
        while self.renewals.len() >= WINDOW {
            self.renewals.pop_first();
        }
        self.renewals.insert(number, BootTime::now());
        self.renew_at = Instant::now() + RENEW.1;
        writer.write(&link::encode(&ToAgent::Renew { number })).await
    }

    async fn on_message(&mut self, message: ToRunner) {
        match message {
            ToRunner::Lease { number, left } => {
                let Some(sent) = self.renewals.remove(&number) else { return };
                renew(&mut self.lease, sent, left);
                self.renew_at = Instant::now() + pause(left);
            }
            ToRunner::Lapsed | ToRunner::Refused { .. } => {
                let grace = self.placement.stop_grace;
                let slot = self.lease.standing(BootTime::now());
                self.stop_all(slot.map_or(Duration::ZERO, |s| Duration::from_millis(s.grace_ms)).min(grace))
                    .await;
                // Nothing renews any more; what is left of the lease ends the rest.
                self.renew_at = Instant::now() + RENEW.1;
            }
            ToRunner::Ack { number } => {
                while self.unacknowledged.front().is_some_and(|(first, _)| *first <= number) {
                    self.unacknowledged.pop_front();
                }
            }
            ToRunner::Noted { id, refused } => {
                if let Some(note) = self.notes.remove(&id) {
                    // The worker that asked may have ended.
                    let _ = note.answer.send(refused.map_or(Ok(()), Err));
                }
            }
            ToRunner::Stop { rank, grace_ms, reason } => {
                let grace = Duration::from_millis(grace_ms);
                self.stop(rank, StopRequest { grace, reason }).await;
            }
            ToRunner::Dial { errand, work } => self.run_errand(errand, work),
            ToRunner::Launch(_) | ToRunner::GoOn { .. } => {}
        }
    }

    /// Does something at a worker that the agent asks for.
    fn run_errand(&mut self, errand: u64, work: Errand) {
        while self.errands.try_join_next().is_some() {}
        let rank = work.rank();
        if self.errands.len() >= ERRANDS_MAX || !self.placement.ranks().any(|own| own == rank) {
            return;
        }
        let (dialling, executor, key) =
            (self.dialling.clone(), self.executor.clone(), self.placement.key(rank));
        self.errands.spawn(async move {
            if let Err(why) = streams::run(dialling, executor, key, errand, work).await {
                complain(0, &format!("an errand at rank {rank}: {why}"));
            }
        });
    }

    /// SIGTERM for the job itself.
    async fn evict(&mut self) {
        let unasked = self.alive.iter().filter(|rank| !self.stops.contains_key(rank));
        self.evicted = unasked.copied().collect();
        let grace = self.placement.stop_grace;
        self.stop_all(grace).await;
    }

    /// Whether the kernel has ended more of the container's processes for want of memory.
    fn lacked_memory(&mut self) -> bool {
        let ends = self.within.memory_ends();
        ends > std::mem::replace(&mut self.memory_ends, ends)
    }

    async fn stop_all(&mut self, grace: Duration) {
        for rank in self.alive.clone() {
            self.stop(rank, grace.into()).await;
        }
    }

    async fn stop(&mut self, rank: u32, request: StopRequest) {
        if !self.alive.contains(&rank) {
            return;
        }
        let request = request.behind(self.stops.get(&rank).copied());
        self.stops.insert(rank, request);
        if let Err(error) = self.executor.stop(self.placement.key(rank), request).await {
            // It has not been launched yet: it is told when it is.
            complain(0, &format!("stop rank {rank}: {error}"));
        }
    }

    async fn on_event(&mut self, event: ExecutorEvent) {
        match event {
            ExecutorEvent::Running(key) => {
                if let Some(request) = self.stops.get(&key.rank).copied() {
                    self.stop(key.rank, request).await;
                }
                let Some(say) = self.say.clone() else { return };
                let reader = tokio::spawn(read_output(self.executor.clone(), key, say));
                self.output.insert(key.rank, reader);
            }
            ExecutorEvent::Ended(key, status) => {
                if !self.alive.remove(&key.rank) {
                    return;
                }
                // What a program makes of being told to stop is not its result.
                let status = match status {
                    ExitStatus::Code(_) | ExitStatus::Signal(_) if self.evicted.contains(&key.rank) => {
                        ExitStatus::BackendLost(self.within.evicted().to_owned())
                    }
                    ExitStatus::Signal(9) if !self.stops.contains_key(&key.rank) && self.lacked_memory() => {
                        ExitStatus::OutOfMemory
                    }
                    status => status,
                };
                self.ends.insert(key.rank, status.clone());
                let artifacts = self.executor.kept_artifacts().of(key);
                let reader = self.output.remove(&key.rank);
                // The last of its senders ends what there is to say.
                let say = if self.alive.is_empty() { self.say.take() } else { self.say.clone() };
                let Some(say) = say else { return };
                tokio::spawn(async move {
                    if let Some(mut reader) = reader
                        && tokio::time::timeout(OUTPUT_MAX, &mut reader).await.is_err()
                    {
                        reader.abort();
                    }
                    // The receiver is gone when nothing can be told any more.
                    let _ = say.send(Word::Ended(key.rank, status, artifacts)).await;
                });
            }
        }
    }
}

/// First that it runs, then its output as it comes.
async fn read_output(executor: ProcessExecutor, key: WorkerKey, say: mpsc::Sender<Word>) {
    if say.send(Word::Running(key.rank)).await.is_err() {
        return;
    }
    let (sink, mut chunks) = mpsc::channel::<OutputChunk>(1);
    let streams = vec![OutputStream::Stdout, OutputStream::Stderr];
    let request = OutputRequest { key, streams, follow: true, tail_bytes: 0, from_position: 0 };
    let forward = async {
        while let Some(chunk) = chunks.recv().await {
            if say.send(Word::Output(key.rank, chunk)).await.is_err() {
                return;
            }
        }
    };
    let read = async {
        let sink = sink;
        executor.read_output(request, sink).await
    };
    if let (Err(error), ()) = tokio::join!(read, forward) {
        complain(0, &format!("output of rank {} is lost: {error}", key.rank));
    }
}

fn renew(lease: &mut Lease, sent: BootTime, left: LeaseRemainder) {
    let (ttl, grace) = (Duration::from_nanos(left.nanos), Duration::from_millis(left.grace_ms));
    if let Err(error) = lease.renew(sent, ttl, grace, BootTime::now()) {
        // The shims go by the file: without it they stop, which is the safe side.
        complain(0, &format!("the lease could not be renewed: {error}"));
    }
}

fn pause(left: LeaseRemainder) -> Duration {
    (Duration::from_nanos(left.nanos) / 4).clamp(RENEW.0, RENEW.1)
}

/// The numbers of the devices that Slurm gave this job, as it says itself.
fn visible() -> Option<String> {
    ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_JOB_GPUS"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|text| !text.is_empty()))
}

/// Muster knows how many devices of a Slurm node are free, Slurm which: the lowest that were meant
/// becomes the first that was given, and so on.
fn map_devices(placement: &mut Placement, given: Option<&str>) -> Result<(), String> {
    let meant = placement.workers.iter().fold(DeviceSet::EMPTY, |set, worker| set.union(worker.devices));
    if meant.is_empty() {
        return Ok(());
    }
    let given: Option<Vec<u16>> = given
        .unwrap_or_default()
        .split(',')
        .map(|text| text.trim().parse().ok().filter(|n| *n < 64))
        .collect();
    let given = given.ok_or("the devices that were given are named in a way that is not understood")?;
    if given.len() < meant.count() as usize {
        return Err(detail(&format!("{} devices were given of {}", given.len(), meant.count())));
    }
    let of: BTreeMap<u16, u16> = meant.iter().zip(given).collect();
    for worker in &mut placement.workers {
        let own = worker.devices.iter().filter_map(|device| of.get(&device));
        worker.devices = own.fold(DeviceSet::EMPTY, |set, device| set.union(DeviceSet(1 << device)));
    }
    Ok(())
}

/// That of the lowest rank that did not succeed.
fn exit_code(ends: &BTreeMap<u32, ExitStatus>) -> i32 {
    match ends.values().find(|end| !end.is_success()) {
        None => 0,
        Some(ExitStatus::Code(code)) => *code,
        Some(ExitStatus::Signal(signal)) => 128 + signal,
        Some(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{placement, tests::order};

    #[test]
    fn what_slurm_gave_takes_the_place_of_what_was_meant() {
        let with = |given: Option<&str>| {
            let mut placement = placement(order()).unwrap();
            placement.workers[0].devices = DeviceSet(0b1010_0000);
            map_devices(&mut placement, given).map(|()| placement.workers[0].devices.0)
        };
        assert_eq!(with(Some("0,3")), Ok(0b1001));
        assert_eq!(with(Some("2, 1,5")), Ok(0b0110));
        for bad in [None, Some(""), Some("1"), Some("GPU-1b2,GPU-33"), Some("1,64"), Some("1,-2")] {
            assert!(with(bad).is_err(), "{bad:?}");
        }
        let mut none = placement(order()).unwrap();
        none.workers[0].devices = DeviceSet::EMPTY;
        assert_eq!(map_devices(&mut none, None), Ok(()));
    }

    #[test]
    fn the_exit_code_is_that_of_the_first_that_failed() {
        let of = |list: &[ExitStatus]| {
            exit_code(&list.iter().enumerate().map(|(rank, end)| (rank as u32, end.clone())).collect())
        };
        assert_eq!(of(&[ExitStatus::Code(0), ExitStatus::Code(0)]), 0);
        assert_eq!(of(&[ExitStatus::Code(0), ExitStatus::Code(7), ExitStatus::Signal(9)]), 7);
        assert_eq!(of(&[ExitStatus::Signal(9)]), 137);
        assert_eq!(of(&[ExitStatus::LeaseExpired]), 1);
    }

    #[test]
    fn a_runner_removes_its_directory_whatever_workers_have_left_there() {
        let place = tempfile::tempdir().unwrap();
        let own = directory(place.path(), "c.n1-job-1", 7 << 96, "n1").unwrap();
        let path = own.path.clone();
        crate::disk::tree::tests::deep(&path.join("tasks/work"), 20_000);
        drop(own);
        assert!(!path.exists());
    }

    #[test]
    fn the_directory_of_a_runner_that_was_killed_goes_with_the_next() {
        let place = tempfile::tempdir().unwrap();
        let below = place.path();
        let living = directory(below, "c.n1-job-1", 7 << 96, "n1").unwrap();
        // As one leaves it that is killed.
        let left = |name: &str, host: &str| {
            let path = below.join(name);
            std::fs::create_dir_all(path.join("tasks")).unwrap();
            std::fs::write(path.join(HOST_FILE), host).unwrap();
            path
        };
        let killed = left("c.n1-job-1-0000beef", "n1");
        let elsewhere = left("c.n1-job-1-0000beee", "n2");
        let foreign = left("somebody-elses", "n1");
        let unmarked = below.join("x-0000bead");
        std::fs::create_dir(&unmarked).unwrap();
        // A shim of this one has not ended yet.
        let stops = left("c.n1-job-1-0000cafe", "n1");
        let key = WorkerKey {
            job: muster_types::JobId(1),
            token: muster_types::FencingToken { generation: 1, log_index: muster_types::LogIndex(9) },
            rank: 0,
        };
        let task = TaskDir::of(&stops.join("tasks"), key);
        std::fs::create_dir(task.path()).unwrap();
        let shim = task.try_lock().unwrap().expect("nobody has it");

        remove_left(below, "");
        assert!(killed.exists(), "without a name of the host nothing is known to be here");
        remove_left(below, "n1");
        assert!(!killed.exists());
        for stays in [&living.path, &elsewhere, &foreign, &unmarked, &stops] {
            assert!(stays.exists(), "{}", stays.display());
        }
        drop(shim);
        remove_left(below, "n1");
        assert!(!stops.exists());
        let path = living.path.clone();
        drop(living);
        assert!(!path.exists());
        remove_left(&below.join("nowhere"), "n1");
    }

    #[test]
    fn a_ticket_is_read_or_refused() {
        for bad in ["", "{}", "hello", "[1]", "{\"share\": 1}"] {
            assert!(ticket(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
