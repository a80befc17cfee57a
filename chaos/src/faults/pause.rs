//! Processes that stand still: they hold what they hold and answer nothing, and do not know it afterwards.

use super::FaultError;
use crate::net::Host;
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A process in the middle of a write to a disk stops when that is done.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Stopped processes; they go on when this is dropped.
#[derive(Debug)]
pub struct Paused {
    processes: Vec<(Pid, OwnedFd)>,
}

impl Paused {
    /// Stops a process and everything below it, and returns when they stand still.
    pub fn tree(root: Pid) -> Result<Paused, FaultError> {
        Paused::all(|| tree(root))
    }

    /// Stops everything on a host, orphans too.
    pub fn host(host: &Host) -> Result<Paused, FaultError> {
        Paused::all(|| host.processes())
    }

    fn all(find: impl Fn() -> Vec<Pid>) -> Result<Paused, FaultError> {
        let mut paused = Paused { processes: Vec::new() };
        let mut seen = BTreeSet::new();
        // A process that started another one while we looked is stopped by now, so this ends.
        loop {
            let new: Vec<Pid> = find().into_iter().filter(|pid| seen.insert(*pid)).collect();
            if new.is_empty() {
                break;
            }
            for pid in new {
                paused.stop(pid)?;
            }
        }
        if paused.processes.is_empty() {
            return Err(FaultError::NoEffect("there is no process to stop".to_owned()));
        }
        Ok(paused)
    }

    fn stop(&mut self, pid: Pid) -> Result<(), FaultError> {
        let Some(number) = rustix::process::Pid::from_raw(pid.as_raw()) else { return Ok(()) };
        let stopped = pidfd_open(number, PidfdFlags::empty())
            .and_then(|handle| pidfd_send_signal(&handle, Signal::STOP).map(|()| handle));
        match stopped {
            Ok(handle) => self.processes.push((pid, handle)),
            // It ended before it was its turn.
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            Err(error) => return Err(FaultError::on("stopping process", pid)(error.into())),
        }
        // Nothing tells that somebody else's child has stopped, so we look.
        let began = Instant::now();
        while !stands_still(pid) {
            if began.elapsed() > STOP_WITHIN {
                return Err(FaultError::NoEffect(format!("process {pid} does not stop")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The processes that were stopped.
    pub fn processes(&self) -> impl Iterator<Item = Pid> {
        self.processes.iter().map(|(pid, _)| *pid)
    }

    /// Lets them go on.
    pub fn resume(mut self) -> Result<(), FaultError> {
        self.go_on()
    }

    fn go_on(&mut self) -> Result<(), FaultError> {
        let mut first_error = None;
        for (pid, handle) in self.processes.drain(..) {
            match pidfd_send_signal(&handle, Signal::CONT) {
                // It was killed while it stood still.
                Ok(()) | Err(rustix::io::Errno::SRCH) => (),
                Err(error) => {
                    first_error.get_or_insert(FaultError::on("resuming process", pid)(error.into()));
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        // A caller that wants to know the result calls `resume`.
        let _ = self.go_on();
    }
}

/// Whether every thread is stopped, or gone.
fn stands_still(pid: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut stats = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    stats.all(|stat| field(&stat, 0).is_some_and(|state| matches!(state, "T" | "t" | "Z" | "X")))
}

/// A field of a process's line behind its name, which may hold anything.
fn field(stat: &str, at: usize) -> Option<&str> {
    stat.rsplit_once(") ")?.1.split(' ').nth(at)
}

/// A process and everything below it, parents first.
fn tree(root: Pid) -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let Some(parent) = field(&stat, 1).and_then(|parent| parent.parse().ok()) else { continue };
        children.entry(parent).or_default().push(pid);
    }
    let mut found = vec![root.as_raw()];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        found.extend(children.remove(&pid).unwrap_or_default());
        next += 1;
    }
    found.into_iter().map(Pid::from_raw).collect()
}
