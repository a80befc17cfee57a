//! The last step before the worker's program: a separate process that becomes it.
//!
//! Between fork and exec only this crate's code can tie the worker to its first process (parent-death signal), put it
//! into its control group and take its privileges, and doing that after a first exec needs no unsafe code: the program
//! starts itself again as the worker's process, and that one executes the worker's. Which one it learns on its
//! standard input, so that it can be started before there is any. `enter.rs` has what stands between it and its shim.
//!
//! **Invariant:** the program runs only while the process that started it runs: the signal is set first,
//! and one that died before that shows as another parent.

use super::init_report::{InitReport, REPORT_BYTES};
use crate::limits;
use crate::own_program;
use crate::process::cgroup;
use crate::process::isolation::Namespaces;
use crate::process::task::{TaskDir, TaskSpec};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getppid, setpgid};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdout, Command, Stdio};

/// A worker's process that waits for its order, below the first process of its namespaces.
pub(super) struct Stage {
    socket: UnixStream,
    pid: Pid,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
}

/// A worker, from its shim's side.
pub(super) struct Launched {
    /// Speaks with the first process of its namespaces.
    pub(super) socket: UnixStream,
    /// That process.
    pub(super) init: Pid,
    pub(super) stdout: Option<ChildStdout>,
    pub(super) stderr: Option<ChildStderr>,
}

/// Which worker it is to become: its directory, and its control group if it has one.
#[derive(Debug, PartialEq, Eq)]
struct Order {
    task: PathBuf,
    cgroup: Option<PathBuf>,
}

/// Two paths take no more.
const ORDER_BYTES_MAX: u64 = 2 * (4_096 + 1);

/// Whether an order is not whole yet.
pub(super) fn lacks(order: &[u8]) -> bool {
    order.iter().filter(|byte| **byte == 0).count() < 2 && (order.len() as u64) < ORDER_BYTES_MAX
}

/// How a process is started that becomes a worker.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    /// What stands before a shim's own arguments.
    pub(super) before: Vec<OsString>,
    pub(super) namespaces: Namespaces,
    pub(super) oom_score: String,
}

impl Stage {
    /// Starts one, and waits until it is there. `directory` identifies it in the list of processes. With a control
    /// group it is in that one before it gets its order.
    pub(super) fn start(manner: &Manner, directory: &Path, cgroup: Option<&Path>) -> Result<Stage, String> {
        let oom_score = if manner.oom_score.is_empty() { "0" } else { &manner.oom_score };
        let (socket, theirs) = UnixStream::pair().map_err(|e| format!("make a socket: {e}"))?;
        let mut child = own_program::again()
            .args(&manner.before)
            .arg(super::ENTER)
            .arg(directory)
            .arg(manner.namespaces.word())
            .arg(oom_score)
            .args(cgroup)
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("start the worker's process: {e}"))?;
        let own = Pid::from_raw(child.id().cast_signed());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut stage = Stage { socket, pid: own, stdout, stderr };
        // The one speaks while the other makes itself ready.
        let (mut is_made, mut is_ready) = (false, false);
        while !(is_made && is_ready) {
            match stage.hear() {
                Some(InitReport::Made(pid)) => {
                    stage.pid = Pid::from_raw(pid);
                    is_made = true;
                }
                Some(InitReport::Ready) => is_ready = true,
                _ => break,
            }
        }
        if stage.pid != own {
            // It has made the other, and goes.
            let _ = child.wait();
        }
        if is_made && is_ready { Ok(stage) } else { Err(stage.give_up()) }
    }

    fn hear(&mut self) -> Option<InitReport> {
        let mut bytes = [0; REPORT_BYTES];
        let read = self.socket.set_read_timeout(Some(limits::SHIM_START_MAX));
        read.and_then(|()| self.socket.read_exact(&mut bytes)).ok()?;
        InitReport::decode(bytes)
    }

    /// Ends one that did not come so far; why it did not.
    fn give_up(mut self) -> String {
        let mut why = String::new();
        // Whichever of them is there ends with this.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        self.end();
        if let Some(said) = self.stderr.take() {
            // Its end is the process's, which has just been ended.
            let _ = said.take(1_024).read_to_string(&mut why);
        }
        format!("the worker's process could not be prepared: {}", why.trim())
    }

    /// Tells it what to become. On an error it will become nothing.
    pub(super) fn become_worker(mut self, task: &Path, cgroup: Option<&Path>) -> Result<Launched, String> {
        let mut order = task.as_os_str().as_bytes().to_vec();
        order.push(0);
        order.extend_from_slice(cgroup.map_or(&[], |group| group.as_os_str().as_bytes()));
        order.push(0);
        let told = self.socket.set_read_timeout(None).and_then(|()| self.socket.write_all(&order));
        match told {
            Ok(()) => {
                Ok(Launched { socket: self.socket, init: self.pid, stdout: self.stdout, stderr: self.stderr })
            }
            Err(error) => {
                self.end();
                Err(format!("tell the worker's process what to execute: {error}"))
            }
        }
    }

    /// Ends it.
    pub(super) fn dismiss(self) {
        self.end();
    }

    fn end(&self) {
        // It may have ended by itself; either way it is collected, where it is this process's child.
        let _ = kill(self.pid, Signal::SIGKILL);
        let _ = waitpid(self.pid, None);
    }
}

/// Tries out whether workers can be started so, from a process that is no shim.
pub(crate) fn try_out(before: &[String], namespaces: Namespaces) -> Result<(), String> {
    let before = before.iter().map(OsString::from).collect();
    let manner = Manner { before, namespaces, oom_score: String::new() };
    let stage = Stage::start(&manner, Path::new("/"), None)?;
    // The end of the socket is its own; the process that reaps orphans here reaps it.
    drop(stage);
    Ok(())
}

/// Reads the order; none at an end without one.
fn read_order(from: impl Read) -> io::Result<Option<Order>> {
    let mut bytes = Vec::new();
    from.take(ORDER_BYTES_MAX).read_to_end(&mut bytes)?;
    let mut parts = bytes.split(|byte| *byte == 0);
    let whole = (parts.next(), parts.next(), parts.next(), parts.next());
    let (Some(task), Some(cgroup), Some([]), None) = whole else {
        return if bytes.is_empty() { Ok(None) } else { Err(io::Error::other("it is not whole")) };
    };
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    Ok(Some(Order { task: path(task), cgroup: (!cgroup.is_empty()).then(|| path(cgroup)) }))
}

/// The exit code of a program that could not be executed, as shells have it; never reported.
pub(super) const NOT_EXECUTED: i32 = 127;

/// Becomes the worker; returns only when that is impossible, or no order comes. `parent` is who started this
/// process, `oom_score` what the worker's is to be.
pub(super) fn main(parent: i32, oom_score: &OsStr) -> i32 {
    let tied = tie_to(parent);
    let order = match read_order(io::stdin().lock()) {
        Ok(Some(order)) => order,
        Ok(None) => return 0,
        Err(error) => {
            super::complain(&format!("the order could not be read: {error}"));
            return NOT_EXECUTED;
        }
    };
    let task = TaskDir::at(order.task.clone());
    let mut complaint = None;
    let executed =
        tied.and_then(|()| execute(&task, order.cgroup.as_deref(), oom_score, parent, &mut complaint));
    let reason = match executed {
        Ok(never) => match never {},
        Err(reason) => reason,
    };
    let recorded = match complaint {
        // This process may not write there any more, or does not find it, but it has had the file open since it could.
        Some(mut file) => file.write_all(reason.as_bytes()),
        None => crate::disk::durable::write_file_of_boot(&task.launch_error(), reason.as_bytes()),
    };
    if let Err(error) = recorded {
        super::complain(&format!("{reason}; and that could not be recorded: {error}"));
    }
    NOT_EXECUTED
}

fn tie_to(parent: i32) -> Result<(), String> {
    set_pdeathsig(Signal::SIGKILL).map_err(|e| format!("tie the worker to its shim: {e}"))?;
    if getppid().as_raw() != parent {
        return Err("its shim died during the launch".to_owned());
    }
    Ok(())
}

fn execute(
    task: &TaskDir,
    cgroup: Option<&Path>,
    oom_score: &OsStr,
    parent: i32,
    complaint: &mut Option<File>,
) -> Result<std::convert::Infallible, String> {
    if let Some(group) = cgroup {
        cgroup::join(group).map_err(|e| format!("join control group {}: {e}", group.display()))?;
    }
    // The shim is hard to kill for want of memory; its worker must not inherit that. Where it could
    // not be set, there is nothing to undo.
    let _ = std::fs::write("/proc/self/oom_score_adj", oom_score.as_bytes());
    crate::process::priority::step_back();
    let spec = task
        .spec()
        .map_err(|e| format!("read the launch: {e}"))?
        .ok_or_else(|| "the launch is not on disk".to_owned())?;
    if spec.isolation.user.is_some() || spec.image.is_some() {
        let path = task.launch_error();
        let kept = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        *complaint = Some(kept.map_err(|e| format!("open {}: {e}", path.display()))?);
    }
    let terminal = lead(task, &spec)?;
    super::confine::confine(task, &spec)?;
    // A change of the user undoes it.
    tie_to(parent)?;
    SigSet::empty().thread_set_mask().map_err(|e| format!("unblock signals: {e}"))?;
    std::env::set_current_dir(&spec.working_directory)
        .map_err(|e| format!("working directory {}: {e}", spec.working_directory.display()))?;
    let (program, rest) = spec.command.split_first().ok_or("the command is empty")?;
    // The order came on what is its standard input from here on.
    let mut command = Command::new(program);
    command.args(rest).env_clear().envs(&spec.environment).stdin(Stdio::null());
    if let Some(terminal) = terminal {
        super::terminal::give(terminal, &mut command)?;
    }
    let error = command.exec();
    Err(format!("execute {program}: {error}"))
}

/// Makes this process the leader of a group, which is told to stop; and of a session with a terminal, where the worker has one.
fn lead(task: &TaskDir, spec: &TaskSpec) -> Result<Option<File>, String> {
    if spec.terminal {
        return super::terminal::take(task).map(Some);
    }
    let own = Pid::from_raw(0);
    setpgid(own, own).map_err(|e| format!("lead a process group: {e}"))?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_whole_or_none() {
        let order = |bytes: &[u8]| read_order(bytes);
        let task = PathBuf::from("/t/a");
        assert_eq!(order(b"").unwrap(), None);
        let plain = Order { task: task.clone(), cgroup: None };
        assert_eq!(order(b"/t/a\0\0").unwrap(), Some(plain));
        assert_eq!(order(b"/t/a\0/c\0").unwrap(), Some(Order { task, cgroup: Some("/c".into()) }));
        for bad in [&b"/t/a"[..], b"/t/a\0", b"/t/a\0/c", b"/t/a\0\0\0", b"/t/a\0\0x"] {
            assert!(order(bad).is_err(), "{bad:?}");
        }
    }
}
