//! One small process per worker, which outlives the agent and enforces the lease without it.
//!
//! The agent may crash, hang or be replaced; the workers go on, as far as the lease does. What stops
//! them when it runs out must therefore be neither the agent nor anything that waits for a disk: the
//! shim's main thread owns a timer on CLOCK_BOOTTIME and signals, and leaves reading the lease file and
//! writing output to other threads.
//!
//! A shim may be started before there is a worker for it: it then has its directory, its lock and the process that
//! becomes the worker already, and waits for the directory's final name on its standard input. At its end there it
//! goes, for the agent that would have ordered something is gone.
//!
//! **Invariant:** no worker runs past its lease's deadline and grace while its shim gets the processor;
//! the worker dies with its shim; `exit` is written only when no descendant is left.

mod confine;
mod disk;
mod enter;
mod exec;
mod guard;
mod init_report;
mod namespaces;
mod output;
mod root;
mod stage;
mod terminal;

pub(crate) use confine::remove_unused_shared_memory;
pub(crate) use exec::{ENDED, Lineage, NOT_YET, lineage};
pub(crate) use stage::try_out;

use crate::clock::BootTime;
use crate::limits;
use crate::process::cgroup::Cgroup;
use crate::process::exec::EXEC;
use crate::process::isolation::Namespaces;
use crate::process::processes;
use crate::process::runtime::hold;
use crate::process::task::{Exit, Running, TaskDir, TaskSpec};
use crate::process::transcript::{OutputStream, OutputTally, Writer};
use crate::rules::{WorkerKey, detail};
use muster_types::{ExitStatus, HolderId};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigSet, Signal};
use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// First argument of a shim.
pub(crate) const RUN: &str = "run";
/// First argument of a shim that waits for its worker.
pub(crate) const WAIT: &str = "wait";
/// First argument of a shim that is to say what it understands.
pub(crate) const SPEAKS: &str = "speaks";
/// What agent and shim say to one another: rises with every change of it, so that an agent finds a program
/// of another release out that is installed next to it.
pub(crate) const SPEECH: &str = concat!(env!("CARGO_PKG_VERSION"), " 13");
/// How the control groups of workers begin whose shims waited for them.
pub(crate) const WAITING_GROUP: &str = "muster_ready_";
/// How the name of a worker's own group begins.
const GROUP: &str = "muster_";
/// What a waiting shim writes to its standard output once nothing but its worker is missing.
pub(crate) const READY_LINE: &str = "ready";
/// First argument of the process that makes the worker's namespaces.
const ENTER: &str = "enter";
/// First argument of the first process in them.
const INIT: &str = "init";
/// First argument of the worker's process before it becomes the worker.
const STAGE: &str = "stage";
/// First argument of the command's process before it becomes the command.
const BECOME: &str = "become";
/// What the shim writes to its standard output once the worker is launched.
pub(crate) const RUNNING_LINE: &str = "running";
/// Makes a shim the last choice of the kernel's OOM killer, before the processes that it never kills: a shim holds hardly any memory,
/// and its death ends its worker.
const SHIM_OOM_SCORE: &str = "-950";
/// Between two looks whether a worker's control group is empty: what is left then has been killed, or is stuck in the kernel.
const EMPTIED_LOOK: (Duration, Duration) = (Duration::from_millis(2), Duration::from_secs(1));
/// Bytes of a path with its end.
const PATH_BYTES_MAX: u64 = 4_096 + 1;

/// The part of the hidden subcommand that the processes around every worker are, and nothing else: for a program that
/// is small enough to be started often. As [`shim_main`](crate::shim_main).
pub fn guard_main(args: impl IntoIterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.into_iter().collect();
    let outcome = match args.as_slice() {
        [word, task] if word == RUN => run(&TaskDir::at(PathBuf::from(task))),
        [word, blank, namespaces, parent @ ..] if word == WAIT && parent.len() <= 1 => {
            let Some(namespaces) = namespaces_of(namespaces) else { return usage() };
            wait(&TaskDir::at(PathBuf::from(blank)), namespaces, parent.first().map(Path::new))
        }
        [word, directory, namespaces, oom_score, group @ ..] if word == ENTER && group.len() <= 1 => {
            let Some(namespaces) = namespaces_of(namespaces) else { return usage() };
            return enter::main(directory, namespaces, oom_score, group.first().map(Path::new));
        }
        [word, directory, namespaces, oom_score] if word == INIT => {
            let Some(namespaces) = namespaces_of(namespaces) else { return usage() };
            return enter::init_main(directory, namespaces, oom_score);
        }
        [word, _directory, parent, oom_score, _namespaces] if word == STAGE => {
            let parent = parent.to_str().and_then(|pid| pid.parse().ok());
            return parent.map_or_else(usage, |parent| stage::main(parent, oom_score));
        }
        [word, directory] if word == EXEC => return exec::main(Path::new(directory)),
        [word, words @ ..] if word == BECOME => {
            return exec::become_command(words).unwrap_or_else(usage);
        }
        [word] if word == SPEAKS => say(SPEECH).map_err(|error| error.to_string()),
        _ => return usage(),
    };
    match outcome {
        Ok(()) => 0,
        Err(reason) => {
            complain(&reason);
            1
        }
    }
}

fn namespaces_of(word: &std::ffi::OsStr) -> Option<Namespaces> {
    word.to_str().and_then(Namespaces::of_word)
}

/// Complains about the arguments; the exit code.
pub(crate) fn usage() -> i32 {
    complain("this command is the agent's own: it starts one for every worker");
    2
}

/// One line into the shim's log; there is nobody else to tell.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "muster shim: {line}");
}

/// The signals that the guard takes from its signalfd.
fn watched_signals() -> SigSet {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set
}

fn run(task: &TaskDir) -> Result<(), String> {
    begin()?;
    // Before any thread exists, so that no thread takes one.
    watched_signals().thread_block().map_err(|e| format!("block signals: {e}"))?;
    let oom_score = harden();
    let held = Held::take(task)?;
    live(task, held, &oom_score, Prepared::default())
}

/// What is there of a worker before it is known; goes unless it is taken out.
#[derive(Default)]
struct Prepared {
    stage: Option<stage::Stage>,
    /// Where that is.
    cgroup: Option<Cgroup>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some(stage) = self.stage.take() {
            stage.dismiss();
        }
        remove_cgroup(self.cgroup.take().as_ref());
    }
}

impl Prepared {
    /// With a control group below `parent`, where one can be made.
    fn make(blank: &TaskDir, parent: Option<&Path>, manner: &stage::Manner) -> Result<Prepared, String> {
        let name = format!("{WAITING_GROUP}{}_{:x}", std::process::id(), BootTime::now().0);
        let group = parent.and_then(|parent| Cgroup::create_unlimited(parent, &name).ok());
        if let Some(group) = group {
            let stage = stage::Stage::start(manner, blank.path(), Some(group.path()));
            let prepared = Prepared { stage: stage.ok(), cgroup: Some(group) };
            if prepared.stage.is_some() {
                return Ok(prepared);
            }
        }
        // Why there can be no group is told when the worker's own cannot be made.
        let stage = stage::Stage::start(manner, blank.path(), None)?;
        Ok(Prepared { stage: Some(stage), cgroup: None })
    }
}

/// Waits for a worker in a directory that is no worker's yet. Its control group is made below `parent`, if any.
fn wait(blank: &TaskDir, namespaces: Namespaces, parent: Option<&Path>) -> Result<(), String> {
    begin()?;
    let oom_score = harden();
    let held = Held::take(blank)?;
    let manner = stage::Manner { before: before_own_arguments(), namespaces, oom_score };
    let prepared = Prepared::make(blank, parent, &manner)?;
    say(READY_LINE).map_err(|e| format!("say that this shim is ready: {e}"))?;
    let Some(task) = ordered(std::io::stdin().lock())? else {
        return Ok(());
    };
    // Until here a signal just ends this process.
    watched_signals().thread_block().map_err(|e| format!("block signals: {e}"))?;
    name_after(&task);
    live(&task, held, &manner.oom_score, prepared)
}

/// What makes this process a shim.
fn begin() -> Result<(), String> {
    // Another thread could take the signals that the guard waits for, and the parent-death signal follows
    // the thread that forks: this must be the first and only one.
    if std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) > 1 {
        return Err("a shim must be started before its process has other threads".to_owned());
    }
    // An own session: neither a terminal nor the agent's process group can reach it. It fails only for
    // a group leader, which a process started by the agent is not.
    nix::unistd::setsid().map_err(|e| format!("start a session: {e}"))?;
    set_child_subreaper(true).map_err(|e| format!("become the reaper of descendants: {e}"))
}

/// Makes this process hard to kill for want of memory; says how hard it was before, for the worker.
fn harden() -> String {
    let before = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    // Needs a privilege that an agent without root lacks; then the shim is as mortal as any process.
    let _ = std::fs::write("/proc/self/oom_score_adj", SHIM_OOM_SCORE);
    before.trim().to_owned()
}

/// What a shim holds of its directory until it ends.
struct Held {
    _alive: File,
    control: File,
    _lock: File,
}

impl Held {
    fn take(task: &TaskDir) -> Result<Held, String> {
        // Before the lock: who finds the lock held finds this end of the FIFO open.
        let alive = open_fifo(&task.alive())?;
        let control = open_fifo(&task.control())?;
        match task.try_lock().map_err(|e| format!("{e}: {}", chain(&e)))? {
            Some(lock) => Ok(Held { _alive: alive, control, _lock: lock }),
            None => Err("another shim has this worker".to_owned()),
        }
    }
}

/// The directory of the worker that a waiting shim gets; none where the agent is gone.
fn ordered(from: impl Read) -> Result<Option<TaskDir>, String> {
    let mut bytes = Vec::new();
    let read = from.take(PATH_BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|e| format!("read which worker this shim gets: {e}"))?;
    // An order that broke off is none.
    let whole = bytes.strip_suffix(&[0]);
    Ok(whole.map(|path| TaskDir::at(PathBuf::from(OsString::from_vec(path.to_vec())))))
}

/// For the list of processes, where the command line still has the directory's first name.
fn name_after(task: &TaskDir) {
    let name = task.path().file_name().unwrap_or_default().as_bytes();
    if let Ok(name) = CString::new(name) {
        let _ = nix::sys::prctl::set_name(&name);
    }
}

/// What stands before the shim's own arguments on the command line of this process.
fn before_own_arguments() -> Vec<OsString> {
    let own = [WAIT, RUN, ENTER, INIT, STAGE, EXEC, BECOME];
    std::env::args_os().skip(1).take_while(|word| !own.iter().any(|own| word == own)).collect()
}

/// From the order to the record of the worker's end.
fn live(task: &TaskDir, held: Held, oom_score: &str, prepared: Prepared) -> Result<(), String> {
    if task.exit().map_err(|e| e.to_string())?.is_some() {
        return Err("this worker's end is recorded already; it is not launched again".to_owned());
    }
    let spec = task.spec().map_err(|e| e.to_string())?.ok_or("there is no launch")?;
    let Held { _alive, control, _lock } = held;
    let mut output = None;
    let status = worker_life(task, &spec, control, oom_score, prepared, &mut output);
    task.write_end(&Exit { status, output }).map_err(|e| format!("{e}: {}", chain(&e)))
}

fn chain(error: &dyn std::error::Error) -> String {
    error.source().map(ToString::to_string).unwrap_or_default()
}

/// Both ends, so that opening never waits and there is never an end-of-file.
fn open_fifo(path: &Path) -> Result<File, String> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)
        .map_err(|e| format!("open {}: {e}", path.display()))
}

/// Launches, guards and ends the worker; nothing of it is left when this returns. `output` is what became of its output.
fn worker_life(
    task: &TaskDir,
    spec: &TaskSpec,
    control: File,
    oom_score: &str,
    mut prepared: Prepared,
    output: &mut Option<OutputTally>,
) -> ExitStatus {
    let failed = |why: String| ExitStatus::LaunchFailed(detail(&why));
    let lease = match guard::LeaseWatch::start(spec) {
        Ok(lease) => lease,
        Err(why) => {
            complain(&why);
            return ExitStatus::LeaseExpired;
        }
    };
    // The control FIFO is open by now: a stop is either in this record or will be in the FIFO.
    match task.stop() {
        Ok(None) => {}
        Ok(Some(_)) => return ExitStatus::NotStarted,
        Err(error) => return failed(error.to_string()),
    }
    let watch = match guard::Events::open(control) {
        Ok(watch) => watch,
        Err(why) => return failed(why),
    };
    let waited_in = prepared.cgroup.take().filter(|group| group.path().exists());
    let stage = prepared.stage.take().map(|stage| (stage, waited_in.is_some()));
    let (cgroup, cgroup_absent) = worker_cgroup(spec, waited_in);
    let made = WorkerResources::around(task, spec, cgroup.as_ref(), cgroup_absent.as_deref());
    let WorkerResources { image, shared_memory, terminal } = match made {
        Ok(made) => made,
        Err(why) => {
            remove_cgroup(cgroup.as_ref());
            return failed(why);
        }
    };
    let mut launched = match launch(task, spec, cgroup.as_ref(), oom_score, stage) {
        Ok(launched) => launched,
        Err(why) => {
            remove_cgroup(cgroup.as_ref());
            return failed(why);
        }
    };
    let (copying, note) = copy_output(task, spec, &mut launched, terminal.as_ref());
    note_running(task, launched.init.as_raw(), cgroup.as_ref(), cgroup_absent);
    announce();
    let memory_max = memory_max(spec, cgroup.as_ref());
    let end = match guard::Guard::new(lease, watch, launched, cgroup.as_ref(), spec.stop_grace_ms) {
        Ok(guard) => {
            let shared = shared_memory.is_some().then(|| confine::shared_memory_of(spec));
            // What it has asked for on a disk is counted apart.
            let temporary = spec.temporary.clone().filter(|_| spec.scratch_bytes == 0);
            let others = shared.into_iter().chain(temporary);
            let disk = disk::DiskWatch::start(task, others, spec.disk_bytes_max);
            let scratch = disk::DiskWatch::of_scratch(spec);
            guard.with_memory(memory_max, note).with_disk(disk).with_scratch(scratch).watch()
        }
        Err(why) => failed(why),
    };
    if let Some(group) = &cgroup {
        empty(group);
    }
    // With it the other side of the terminal is closed here, which is the end of its output.
    drop(terminal);
    *output = copying.finish(limits::OUTPUT_DRAIN_MAX);
    drop((shared_memory, image));
    remove_cgroup(cgroup.as_ref());
    match crate::disk::durable::read_bounded(&task.launch_error(), 64 << 10) {
        Ok(why) if !why.is_empty() && !matches!(end, ExitStatus::LeaseExpired) => {
            failed(String::from_utf8_lossy(&why).into_owned())
        }
        _ => end,
    }
}

/// The group of a worker, with its limits: the one that its shim has waited in, or another; with why there is none.
fn worker_cgroup(spec: &TaskSpec, waited_in: Option<Cgroup>) -> (Option<Cgroup>, Option<String>) {
    let (group, absent) = match waited_in {
        Some(group) => {
            group.limit_to(spec.group_limits());
            group.limit_io(&spec.io);
            (Some(group), None)
        }
        None => make_cgroup(spec),
    };
    if let Some(group) = &group {
        group.bind_to(&spec.isolation.cpus);
    }
    (group, absent)
}

/// What a worker has as long as it runs, in addition to its group.
struct WorkerResources {
    /// Its image stays unpacked as long as this is there.
    image: Option<File>,
    shared_memory: Option<confine::SharedMemory>,
    terminal: Option<terminal::WorkerTerminal>,
}

impl WorkerResources {
    /// Makes it, behind what keeps the group to its devices.
    fn around(
        task: &TaskDir,
        spec: &TaskSpec,
        cgroup: Option<&Cgroup>,
        cgroup_absent: Option<&str>,
    ) -> Result<WorkerResources, String> {
        keep_devices(spec, cgroup, cgroup_absent)?;
        let image = spec.image.as_ref().map(|image| hold(&image.image)).transpose();
        let image = image.map_err(|error| format!("hold the worker's image: {error}"))?;
        let shared_memory = confine::SharedMemory::of(spec);
        let shared_memory =
            shared_memory.map_err(|error| format!("make the gang's shared memory: {error}"))?;
        let terminal = terminal::WorkerTerminal::open(task, spec)?;
        Ok(WorkerResources { image, shared_memory, terminal })
    }
}

/// Writes down what runs. Without the record an agent would know less of the leavings of a killed shim; the mark in the
/// environment still finds them.
fn note_running(task: &TaskDir, init_pid: i32, cgroup: Option<&Cgroup>, cgroup_absent: Option<String>) {
    let running = Running {
        shim_pid: std::process::id().cast_signed(),
        // Its first child, unless it is gone already.
        worker_pid: processes::children(init_pid).first().copied().unwrap_or(init_pid),
        cgroup: cgroup.map(|group| group.path().to_owned()),
        cgroup_absent,
    };
    if let Err(error) = task.write_running(&running) {
        complain(&format!("{error}: {}", chain(&error)));
    }
}

/// What the shim holds the worker to itself; none where the kernel does or nobody should.
fn memory_max(spec: &TaskSpec, cgroup: Option<&Cgroup>) -> Option<u64> {
    let by_kernel = cgroup.is_some_and(Cgroup::limits_memory);
    (spec.memory_watched && spec.memory_bytes > 0 && !by_kernel).then_some(spec.memory_bytes)
}

/// The group of a worker whose shim has not waited for it in one. Two agents on one machine (tests, drills) may have the same
/// job ids of different clusters.
fn group_name(key: WorkerKey, holder: HolderId) -> String {
    format!("{GROUP}{}_{}_{}{}", key.job, key.token, key.rank, holder_suffix(holder))
}

fn holder_suffix(holder: HolderId) -> String {
    format!("_{:08x}", holder.0 >> 96)
}

/// The worker of this holder whose group has such a name.
pub(crate) fn worker_of_group(name: &str, holder: HolderId) -> Option<WorkerKey> {
    TaskDir::key_of_name(name.strip_prefix(GROUP)?.strip_suffix(&holder_suffix(holder))?)
}

fn make_cgroup(spec: &TaskSpec) -> (Option<Cgroup>, Option<String>) {
    let Some(parent) = &spec.cgroup_parent else {
        return (None, Some("not configured".to_owned()));
    };
    match Cgroup::create(parent, &group_name(spec.key, spec.holder), spec.group_limits()) {
        Ok(group) => {
            group.limit_io(&spec.io);
            (Some(group), None)
        }
        Err(error) => (None, Some(format!("{}: {error}", parent.display()))),
    }
}

/// Has the kernel keep the worker to its devices, where that was promised.
fn keep_devices(spec: &TaskSpec, cgroup: Option<&Cgroup>, absent: Option<&str>) -> Result<(), String> {
    let Some(allowed) = &spec.isolation.allowed else { return Ok(()) };
    let what = "keep the worker from devices that are not its own";
    let Some(group) = cgroup else {
        return Err(format!("{what}: it has no control group: {}", absent.unwrap_or_default()));
    };
    group.allow_only(allowed).map_err(|error| format!("{what}: {error}"))
}

/// Ends the commands that were run next to the worker: they are no descendants of this process.
fn empty(group: &Cgroup) {
    let mut pause = EMPTIED_LOOK.0;
    while !group.processes().is_empty() {
        group.kill();
        std::thread::sleep(pause);
        pause = (pause * 2).min(EMPTIED_LOOK.1);
    }
}

fn remove_cgroup(cgroup: Option<&Cgroup>) {
    if let Some(group) = cgroup
        && !group.remove()
    {
        complain(&format!("control group {} stays behind", group.path().display()));
    }
}

/// Has the worker's process become the worker: the one that waits for it, in its control group or not yet, or where
/// that has died a new one.
fn launch(
    task: &TaskDir,
    spec: &TaskSpec,
    cgroup: Option<&Cgroup>,
    oom_score: &str,
    stage: Option<(stage::Stage, bool)>,
) -> Result<stage::Launched, String> {
    let group = cgroup.map(Cgroup::path);
    if let Some((stage, is_there)) = stage {
        match stage.become_worker(task.path(), group.filter(|_| !is_there)) {
            Ok(launched) => return Ok(launched),
            Err(why) => complain(&why),
        }
    }
    let before: Vec<OsString> = spec.shim_arguments.iter().map(OsString::from).collect();
    let manner =
        stage::Manner { before, namespaces: spec.isolation.namespaces, oom_score: oom_score.to_owned() };
    stage::Stage::start(&manner, task.path(), None)?.become_worker(task.path(), group)
}

/// What is kept of the worker's output, and where the shim adds a separate line to it.
fn copy_output(
    task: &TaskDir,
    spec: &TaskSpec,
    child: &mut stage::Launched,
    terminal: Option<&terminal::WorkerTerminal>,
) -> (output::Copying, Option<PipeWriter>) {
    let writer = Writer::new(task.output(), task.output_before(), spec.log_bytes_max, spec.log_free_min);
    let stdout = child.stdout.take().map(|pipe| (OwnedFd::from(pipe), OutputStream::Stdout));
    let stderr = child.stderr.take().map(|pipe| (OwnedFd::from(pipe), OutputStream::Stderr));
    // Without it the worker's output only lacks the reason of its end.
    let (said, note) = std::io::pipe().ok().unzip();
    let said = said.map(|pipe: PipeReader| (OwnedFd::from(pipe), OutputStream::Stderr));
    let shown = terminal.and_then(terminal::WorkerTerminal::output).map(|end| (end, OutputStream::Stdout));
    let pipes = [stdout, stderr, said, shown].into_iter().flatten().collect();
    (output::Copying::start(pipes, writer), note)
}

/// Tells the agent that started this shim, if it is still there.
fn announce() {
    let _ = say(RUNNING_LINE);
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_tells_whose_it_is() {
        let key = WorkerKey { job: muster_types::JobId(7), token: Default::default(), rank: 3 };
        let (holder, other) = (HolderId(5 << 96), HolderId(6 << 96));
        let name = group_name(key, holder);
        assert_eq!(worker_of_group(&name, holder), Some(key));
        for none in [
            worker_of_group(&name, other),
            worker_of_group(&format!("{WAITING_GROUP}12_ab"), holder),
            worker_of_group("muster-agent", holder),
        ] {
            assert_eq!(none, None);
        }
    }

    #[test]
    fn a_waiting_shim_takes_a_whole_path_or_goes() {
        let path = |bytes: &[u8]| ordered(bytes).unwrap().map(|task| task.path().to_owned());
        assert_eq!(path(b"/t/a\nb\0"), Some(PathBuf::from("/t/a\nb")));
        assert_eq!((path(b""), path(b"/t/a")), (None, None));
    }
}
