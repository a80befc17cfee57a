//! One small process per worker, which outlives the agent and enforces the lease without it.
//!
//! The agent may crash, hang or be replaced; the workers go on, as far as the lease does. What stops
//! them when it runs out must therefore be neither the agent nor anything that waits for a disk: the
//! shim's main thread owns a timer on CLOCK_BOOTTIME and signals, and leaves reading the lease file and
//! writing output to other threads.
//!
//! **Invariant:** no worker runs past its lease's deadline and grace while its shim gets the processor;
//! the worker dies with its shim; `exit` is written only when no descendant is left.

mod guard;
mod output;
mod stage;

use crate::cgroup::Cgroup;
use crate::limits;
use crate::order::detail;
use crate::task::{Running, TaskDir, TaskSpec};
use crate::transcript::{OutputStream, Writer};
use muster_types::ExitStatus;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigSet, Signal};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// First argument of a shim.
pub(crate) const RUN: &str = "run";
/// First argument of the worker's process before it becomes the worker.
const STAGE: &str = "stage";
/// First argument of the runner inside an allocation of Slurm.
pub(crate) const SLURM: &str = "slurm";
/// What the shim writes to its standard output once the worker is launched.
pub(crate) const RUNNING_LINE: &str = "running";
/// The kernel's OOM killer takes a shim last but for the unkillable: it holds no memory to speak of,
/// and its death ends its worker.
const SHIM_OOM_SCORE: &str = "-950";

/// The hidden subcommand: `args` are those after it. Returns the exit code. To be called on the main
/// thread, before any runtime or other thread exists.
pub fn shim_main(args: impl IntoIterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.into_iter().collect();
    let words: Vec<&str> = args.iter().filter_map(|a| a.to_str()).collect();
    match words.as_slice() {
        [RUN, task] if args.len() == 2 => match run(&TaskDir::at(PathBuf::from(task))) {
            Ok(()) => 0,
            Err(reason) => {
                complain(&reason);
                1
            }
        },
        [STAGE, task, shim_pid, oom_score, cgroup] if args.len() == 5 => {
            let Ok(shim_pid) = shim_pid.parse() else { return usage() };
            let cgroup = (!cgroup.is_empty()).then(|| Path::new(*cgroup));
            stage::main(&stage::Arguments { task: Path::new(task), shim_pid, oom_score, cgroup })
        }
        [SLURM] if args.len() == 1 => crate::slurm::runner_main(),
        [crate::launch::LAUNCH, rest @ ..] if words.len() == args.len() => crate::launch::main(rest),
        _ => usage(),
    }
}

fn usage() -> i32 {
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
    // Another thread could take the signals that the guard waits for, and the parent-death signal follows
    // the thread that forks: this must be the first and only one.
    if std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) > 1 {
        return Err("a shim must be started before its process has other threads".to_owned());
    }
    // Blocked before any thread exists, so that no thread takes one.
    watched_signals().thread_block().map_err(|e| format!("block signals: {e}"))?;
    // An own session: neither a terminal nor the agent's process group can reach it. It fails only for
    // a group leader, which a process started by the agent is not.
    nix::unistd::setsid().map_err(|e| format!("start a session: {e}"))?;
    set_child_subreaper(true).map_err(|e| format!("become the reaper of descendants: {e}"))?;
    let oom_score = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    // Needs a privilege that an agent without root lacks; then the shim is as mortal as any process.
    let _ = std::fs::write("/proc/self/oom_score_adj", SHIM_OOM_SCORE);

    // Before the lock: who finds the lock held finds this end of the FIFO open.
    let _alive = open_fifo(&task.alive())?;
    let control = open_fifo(&task.control())?;
    let Some(_lock) = task.try_lock().map_err(|e| format!("{e}: {}", chain(&e)))? else {
        return Err("another shim has this worker".to_owned());
    };
    if task.exit().map_err(|e| e.to_string())?.is_some() {
        return Err("this worker's end is recorded already; it is not launched again".to_owned());
    }
    let spec = task.spec().map_err(|e| e.to_string())?.ok_or("there is no launch")?;
    let status = worker_life(task, &spec, control, oom_score.trim());
    task.write_exit(status).map_err(|e| format!("{e}: {}", chain(&e)))
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

/// Launches, guards and ends the worker; nothing of it is left when this returns.
fn worker_life(task: &TaskDir, spec: &TaskSpec, control: File, oom_score: &str) -> ExitStatus {
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
    let (cgroup, cgroup_absent) = make_cgroup(spec);
    let watch = match guard::Events::open(control) {
        Ok(watch) => watch,
        Err(why) => return failed(why),
    };
    let mut child = match launch(task, spec, cgroup.as_ref(), oom_score) {
        Ok(child) => child,
        Err(why) => {
            remove_cgroup(cgroup.as_ref());
            return failed(why);
        }
    };
    let (copying, note) = copy_output(task, spec, &mut child);
    let worker_pid = child.id().cast_signed();
    let running = Running {
        shim_pid: std::process::id().cast_signed(),
        worker_pid,
        cgroup: cgroup.as_ref().map(|g| g.path().to_owned()),
        cgroup_absent,
    };
    // Without the record an agent would know less of the leavings of a killed shim; the mark in the
    // environment still finds them.
    if let Err(error) = task.write_running(&running) {
        complain(&format!("{error}: {}", chain(&error)));
    }
    announce();
    let memory_max = memory_max(spec, cgroup.as_ref());
    let end = guard::Guard::new(lease, watch, worker_pid, cgroup.as_ref(), spec.stop_grace_ms)
        .with_memory(memory_max, note)
        .watch();
    copying.finish(limits::OUTPUT_DRAIN_MAX);
    remove_cgroup(cgroup.as_ref());
    match crate::durable::read_bounded(&task.launch_error(), 64 << 10) {
        Ok(why) if !matches!(end, ExitStatus::LeaseExpired) => {
            failed(String::from_utf8_lossy(&why).into_owned())
        }
        _ => end,
    }
}

/// What the shim holds the worker to itself; none where the kernel does or nobody should.
fn memory_max(spec: &TaskSpec, cgroup: Option<&Cgroup>) -> Option<u64> {
    let by_kernel = cgroup.is_some_and(Cgroup::limits_memory);
    (spec.memory_watched && spec.memory_bytes > 0 && !by_kernel).then_some(spec.memory_bytes)
}

fn make_cgroup(spec: &TaskSpec) -> (Option<Cgroup>, Option<String>) {
    let Some(parent) = &spec.cgroup_parent else {
        return (None, Some("not configured".to_owned()));
    };
    let key = spec.key;
    // Two agents on one machine (tests, drills) may have the same job ids of different clusters.
    let name = format!("muster_{}_{}_{}_{:08x}", key.job, key.token, key.rank, spec.holder.0 >> 96);
    match Cgroup::create(parent, &name, spec.memory_bytes, spec.cpu_milli) {
        Ok(group) => (Some(group), None),
        Err(error) => (None, Some(format!("{}: {error}", parent.display()))),
    }
}

fn remove_cgroup(cgroup: Option<&Cgroup>) {
    if let Some(group) = cgroup
        && !group.remove()
    {
        complain(&format!("control group {} stays behind", group.path().display()));
    }
}

/// Starts the stage that becomes the worker. From the main thread: the parent-death signal follows the
/// thread that forked, and this one lives as long as the shim.
fn launch(task: &TaskDir, spec: &TaskSpec, cgroup: Option<&Cgroup>, oom: &str) -> Result<Child, String> {
    let oom = if oom.is_empty() { "0" } else { oom };
    Command::new("/proc/self/exe")
        .args(&spec.shim_arguments)
        .arg(STAGE)
        .arg(task.path())
        .arg(std::process::id().to_string())
        .arg(oom)
        .arg(cgroup.map(|g| g.path().as_os_str().to_owned()).unwrap_or_default())
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|e| format!("start the worker's process: {e}"))
}

/// What is kept of the worker's output, and where the shim adds a line of its own to it.
fn copy_output(task: &TaskDir, spec: &TaskSpec, child: &mut Child) -> (output::Copying, Option<PipeWriter>) {
    let writer = Writer::new(task.output(), task.output_before(), spec.log_bytes_max, spec.log_free_min);
    let stdout = child.stdout.take().map(|pipe| (OwnedFd::from(pipe), OutputStream::Stdout));
    let stderr = child.stderr.take().map(|pipe| (OwnedFd::from(pipe), OutputStream::Stderr));
    // Without it the worker's output only lacks the reason of its end.
    let (said, note) = std::io::pipe().ok().unzip();
    let said = said.map(|pipe: PipeReader| (OwnedFd::from(pipe), OutputStream::Stderr));
    let pipes = [stdout, stderr, said].into_iter().flatten().collect();
    (output::Copying::start(pipes, writer), note)
}

/// Tells the agent that started this shim, if it is still there.
fn announce() {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{RUNNING_LINE}").and_then(|()| out.flush());
}
