//! A sandbox for the harness: separate process and mount namespaces, in which everything ends with it.
//!
//! Agents start shims that outlive them by design, and drills mount file systems. So that nothing of it stays
//! behind even when the harness is killed, the program starts itself again in two steps: the *door* stays outside,
//! waits and passes on the exit code; the *first* process of the sandbox reaps orphans; below it runs the
//! harness. When any of the three dies the kernel ends every process of the sandbox, and with them go mounts
//! and networks.
//!
//! **Invariant:** entered before the first thread is started.

use crate::unsupported::{Means, Unsupported};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getegid, geteuid};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Names by which a process of this module knows which of the three it is.
const FIRST: &str = "muster-chaos: first";
const INSIDE: &str = "muster-chaos: inside";

/// The first process could not set up the sandbox; it has reported why.
const NO_SANDBOX: i32 = 125;

/// Enters a sandbox. It returns in the harness; the processes around it end within. Call it first in `main`.
pub fn enter() -> Result<(), Unsupported> {
    match std::env::args().next().as_deref() {
        Some(FIRST) => std::process::exit(first()),
        Some(INSIDE) => {
            let unblocked = SigSet::all().thread_unblock();
            unblocked.map_err(|error| Unsupported::new(Means::Sandbox, &error))
        }
        _ => {
            let code = door().map_err(|error| Unsupported::new(Means::Sandbox, &error))?;
            match code {
                NO_SANDBOX => Err(Unsupported::because(Means::Sandbox, "its first process could not begin")),
                code => std::process::exit(code),
            }
        }
    }
}

fn door() -> io::Result<i32> {
    make_namespaces()?;
    watched_signals().thread_block()?;
    let first = again(FIRST)?.spawn()?;
    Ok(outlast(Pid::from_raw(first.id().cast_signed()))?)
}

fn first() -> i32 {
    let begun = || -> io::Result<Pid> {
        set_pdeathsig(Signal::SIGKILL)?;
        // What the processes of the sandbox see of one another.
        mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), None::<&str>)?;
        watched_signals().thread_block()?;
        let harness = again(INSIDE)?.spawn()?;
        Ok(Pid::from_raw(harness.id().cast_signed()))
    };
    match begun().and_then(|harness| Ok(outlast(harness)?)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("muster-chaos: no sandbox: {error}");
            NO_SANDBOX
        }
    }
}

/// Without rights over the machine, in a user namespace where we are root.
fn make_namespaces() -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    let mut flags = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    if !user.is_root() {
        flags |= CloneFlags::CLONE_NEWUSER;
    }
    unshare(flags)?;
    if !user.is_root() {
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    }
    // Mounts of ours are nobody else's.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    Ok(())
}

fn again(name: &str) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(name).args(std::env::args_os().skip(1));
    Ok(command)
}

/// Those that must not end the processes around the harness. An interrupt reaches the harness by itself.
fn watched_signals() -> SigSet {
    [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT].into_iter().collect()
}

/// Waits for a child, reaping every other; hands on requests to end. Answers the child's exit code.
fn outlast(child: Pid) -> nix::Result<i32> {
    let signals = watched_signals();
    loop {
        match signals.wait()? {
            Signal::SIGCHLD => {
                if let Some(code) = reap(child)? {
                    return Ok(code);
                }
            }
            signal @ (Signal::SIGTERM | Signal::SIGHUP) => match kill(child, signal) {
                // Its end is about to be told.
                Ok(()) | Err(Errno::ESRCH) => (),
                Err(error) => return Err(error),
            },
            _ => (),
        }
    }
}

fn reap(child: Pid) -> nix::Result<Option<i32>> {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => return Ok(Some(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => return Ok(Some(128 + signal as i32)),
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(None),
            Ok(_) => (),
            Err(error) => return Err(error),
        }
    }
}
