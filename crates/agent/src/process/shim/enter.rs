//! The first process of a worker's namespaces.
//!
//! A shim starts `enter`, which makes the namespaces and, in them, `init`; it then goes, and `init` becomes the shim's own
//! child, for the shim collects orphans. `init` starts the process that becomes the worker, collects what is orphaned,
//! hands on the request to stop, and tells how the worker ended. Where there are no namespaces, `enter` is `init` itself.
//!
//! Shim and `init` speak on a socket, which is the standard input of `init`. Its end is the end of the shim, and of
//! `init`: with it the kernel ends everything in its namespace.
//!
//! **Invariant:** no process of the worker outlives `init` where it has a namespace; nothing in that can signal it.

use super::init_report::{InitReport, STOP};
use super::namespaces::{enter_user_namespace, failed};
use super::stage;
use crate::own_program;
use crate::process::cgroup;
use crate::process::isolation::Namespaces;
use crate::process::processes;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::{set_child_subreaper, set_dumpable};
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getegid, geteuid};
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};

/// The socket, which is this process's standard input.
fn socket() -> io::Result<UnixStream> {
    Ok(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// `enter`: makes the namespaces and `init` in them. Returns the exit code.
pub(super) fn main(
    directory: &OsStr,
    namespaces: Namespaces,
    oom_score: &OsStr,
    cgroup: Option<&Path>,
) -> i32 {
    let entered = (|| {
        if let Some(group) = cgroup {
            cgroup::join(group).map_err(|e| format!("join control group {}: {e}", group.display()))?;
        }
        let mut socket = socket().map_err(|e| format!("keep the shim's socket: {e}"))?;
        if namespaces == Namespaces::Host {
            let own = std::process::id().cast_signed();
            socket
                .write_all(&InitReport::Made(own).encode())
                .map_err(|e| format!("speak to the shim: {e}"))?;
            return Ok(true);
        }
        make(namespaces)?;
        let before = super::before_own_arguments();
        let mut init = own_program::again();
        init.args(before).arg(super::INIT).arg(directory).arg(namespaces.word()).arg(oom_score).env_clear();
        // All three are handed on: `init` hands the other two to the worker.
        let child = init.spawn().map_err(|e| format!("start the first process: {e}"))?;
        let made = InitReport::Made(child.id().cast_signed());
        socket.write_all(&made.encode()).map_err(|e| format!("speak to the shim: {e}"))?;
        Ok(false)
    })();
    match entered {
        Ok(true) => init_main(directory, namespaces, oom_score),
        Ok(false) => 0,
        Err::<_, String>(why) => {
            super::complain(&why);
            stage::NOT_EXECUTED
        }
    }
}

fn make(namespaces: Namespaces) -> Result<(), String> {
    let own = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    if namespaces == Namespaces::User {
        // Root inside, so that what is mounted there outlives the next programs; the worker is not.
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        enter_user_namespace(own, (0, uid), (0, gid))?;
    } else {
        unshare(own).map_err(failed("make namespaces"))?;
    }
    // What is mounted here stays here; what the host mounts later appears here too.
    let flags = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).map_err(failed("keep mounts inside"))
}

/// `init`. Returns the exit code, when nothing of the worker is left or the shim has gone.
pub(super) fn init_main(directory: &OsStr, namespaces: Namespaces, oom_score: &OsStr) -> i32 {
    let outcome = Init::start(directory, namespaces, oom_score).and_then(Init::watch);
    if namespaces == Namespaces::Host {
        // Without a namespace nobody else does.
        processes::kill_all(&processes::descendants(std::process::id().cast_signed()));
    }
    match outcome {
        Ok(()) => 0,
        Err(why) => {
            super::complain(&why);
            stage::NOT_EXECUTED
        }
    }
}

struct Init {
    socket: UnixStream,
    signals: SignalFd,
    worker: Child,
    /// The order as far as it has come; none once the worker's process has it.
    order: Option<Vec<u8>>,
    ended: bool,
}

impl Init {
    fn start(directory: &OsStr, namespaces: Namespaces, oom_score: &OsStr) -> Result<Init, String> {
        let mut set = super::watched_signals();
        set.add(Signal::SIGPIPE);
        set.thread_block().map_err(failed("block signals"))?;
        let mut child_ends = SigSet::empty();
        child_ends.add(Signal::SIGCHLD);
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let signals = SignalFd::with_flags(&child_ends, flags).map_err(failed("watch signals"))?;
        set_child_subreaper(true).map_err(failed("become the reaper of descendants"))?;
        if namespaces != Namespaces::Host {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>).map_err(failed("mount /proc"))?;
        }
        let mut socket = socket().map_err(|e| format!("keep the shim's socket: {e}"))?;
        let before = super::before_own_arguments();
        let mut worker = own_program::again();
        worker
            .args(before)
            .arg(super::STAGE)
            .arg(directory)
            .arg(std::process::id().to_string())
            .arg(oom_score);
        let worker = worker.arg(namespaces.word()).env_clear().stdin(Stdio::piped()).spawn();
        let worker = worker.map_err(|e| format!("start the worker's process: {e}"))?;
        // What is here is nothing for a debugger of the same user.
        let _ = set_dumpable(false);
        socket.write_all(&InitReport::Ready.encode()).map_err(|e| format!("speak to the shim: {e}"))?;
        Ok(Init { socket, signals, worker, order: Some(Vec::new()), ended: false })
    }

    fn watch(mut self) -> Result<(), String> {
        loop {
            let mut fds = [
                PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(format!("wait for what happens: {error}")),
            }
            let heard = fds[0].revents().is_some_and(|events| !events.is_empty());
            while let Ok(Some(_)) = self.signals.read_signal() {}
            if self.reap() {
                return Ok(());
            }
            if heard && !self.hear()? {
                return Ok(());
            }
        }
    }

    /// What the shim says; false at its end.
    fn hear(&mut self) -> Result<bool, String> {
        let mut bytes = [0u8; 4_096];
        let read = match self.socket.read(&mut bytes) {
            Ok(0) => return Ok(false),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(format!("listen to the shim: {error}")),
        };
        let mut rest = &bytes[..read];
        if let Some(order) = &mut self.order {
            while stage::lacks(order) {
                let Some((byte, others)) = rest.split_first() else { return Ok(true) };
                order.push(*byte);
                rest = others;
            }
            let order = std::mem::take(order);
            self.order = None;
            // Closed behind it: that is the order's end. A process that has gone tells so by its end.
            let _ = self.worker.stdin.take().map(|mut stdin| stdin.write_all(&order));
        }
        if rest.contains(&STOP) && !self.ended {
            let group = Pid::from_raw(self.worker.id().cast_signed());
            // A stopped worker must wake to see the request.
            for signal in [Signal::SIGTERM, Signal::SIGCONT] {
                // It leads its group from shortly before it becomes the worker; what it is sent until then waits for that.
                if killpg(group, signal).is_err() {
                    let _ = kill(group, signal);
                }
            }
        }
        Ok(true)
    }

    /// Takes every ended child; whether none is left.
    fn reap(&mut self) -> bool {
        let worker = Pid::from_raw(self.worker.id().cast_signed());
        loop {
            match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => return false,
                Ok(WaitStatus::Exited(pid, code)) if pid == worker => self.tell(InitReport::Exited(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == worker => {
                    self.tell(InitReport::Signaled(signal as i32));
                }
                // Some child was ended by a real-time signal, which the wrapper cannot name; collected it is.
                // When it was the worker, its number is free now.
                Err(Errno::EINVAL) => {
                    if !self.ended && kill(worker, None) == Err(Errno::ESRCH) {
                        self.tell(InitReport::Signaled(Signal::SIGKILL as i32));
                    }
                }
                // An orphan.
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return true,
            }
        }
    }

    fn tell(&mut self, end: InitReport) {
        self.ended = true;
        // A shim that has gone is seen by the end of the socket.
        let _ = self.socket.write_all(&end.encode());
    }
}
