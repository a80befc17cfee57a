//! System calls of a running process that take long or fail, by strace: a slow disk, or one that reports errors.

use super::FaultError;
use super::tools::Tool;
use crate::unsupported::{Means, Unsupported};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// Leaving a process takes as long as a call that is being delayed at that moment.
const LEAVE_WITHIN: Duration = Duration::from_secs(30);
const SAID_LINES_MAX: usize = 100;

/// What becomes of system calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Injection {
    /// The calls are delayed.
    Delay {
        /// Names of system calls.
        calls: Vec<String>,
        /// How much later.
        by: Duration,
    },
    /// They are not made, and report this error.
    Fail {
        /// Names of system calls.
        calls: Vec<String>,
        /// The error.
        error: Errno,
    },
}

impl Injection {
    /// Every flush of a file takes so much longer.
    pub fn slow_flushes(by: Duration) -> Injection {
        Injection::Delay { calls: flushes(), by }
    }

    /// No flush of a file succeeds: the disk reports an error.
    pub fn failing_flushes() -> Injection {
        Injection::Fail { calls: flushes(), error: Errno::EIO }
    }

    fn calls(&self) -> &[String] {
        match self {
            Injection::Delay { calls, .. } | Injection::Fail { calls, .. } => calls,
        }
    }

    fn expression(&self) -> String {
        let calls = self.calls().join(",");
        match self {
            Injection::Delay { by, .. } => format!("inject={calls}:delay_enter={}", by.as_micros()),
            Injection::Fail { error, .. } => format!("inject={calls}:error={error:?}"),
        }
    }
}

fn flushes() -> Vec<String> {
    ["fdatasync", "fsync", "sync_file_range"].map(str::to_owned).to_vec()
}

/// A process whose system calls are changed, until this is detached or dropped.
#[derive(Debug)]
pub struct Traced {
    pid: Pid,
    strace: Child,
    log: PathBuf,
    /// Calls that were being held when the process was killed; none before.
    held: Option<usize>,
}

impl Traced {
    /// Changes the calls of every thread of a running process, and of what it starts. Returns when all its threads
    /// are reached. What was met is written to the log file. Every other system call costs the process some fifty
    /// microseconds meanwhile: a running process can only be stopped at each of them.
    pub async fn attach(pid: Pid, injections: &[Injection], log: &Path) -> Result<Traced, FaultError> {
        let program = Tool::Strace.find()?;
        let watched: Vec<&str> = injections.iter().flat_map(Injection::calls).map(String::as_str).collect();
        let mut command = Command::new(program);
        command.args(["-f", "-p", &pid.to_string(), "-o"]).arg(log);
        command.args(["-e", &format!("trace={}", watched.join(","))]).args(["-e", "signal=none"]);
        for injection in injections {
            command.args(["-e", &injection.expression()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut strace = command
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(FaultError::on("starting", "strace"))?;
        let said = strace.stderr.take().expect("it was asked for");
        let mut said = BufReader::new(said).lines();
        let mut so_far = Vec::new();
        while let Ok(Some(line)) = said.next_line().await {
            if line.contains("attached") {
                // Nobody reads the rest, and nobody must wait for a reader.
                tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });
                return Ok(Traced { pid, strace, log: log.to_owned(), held: None });
            }
            if so_far.len() < SAID_LINES_MAX {
                so_far.push(line);
            }
        }
        Err(Unsupported::because(Means::Strace, so_far.join("; ")).into())
    }

    /// Calls that met the fault so far.
    pub fn met(&self) -> Result<usize, FaultError> {
        let log = std::fs::read(&self.log).map_err(FaultError::on_path("reading", &self.log))?;
        let log = String::from_utf8_lossy(&log);
        // A process that is killed within a call that is being delayed has met it, and its end is not known.
        let met = |line: &&str| ["(DELAYED)", "(INJECTED)", "= ?"].iter().any(|mark| line.contains(mark));
        // One that was held when all was over may stand in the log or not.
        Ok(log.lines().filter(met).count().max(self.held.unwrap_or(0)))
    }

    /// Kills the process as it stands: what it is held in never happens. Left to its tracer, it would die only when
    /// the call's time is over.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub fn kill(&mut self) -> Result<(), FaultError> {
        if self.held.is_some() {
            // Its number may be another process's by now.
            return Ok(());
        }
        self.held = Some(held_calls(self.pid));
        let killing = |error: Errno| FaultError::on("killing", self.pid)(error.into());
        match kill(self.pid, Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(killing(error)),
        }
        // Otherwise the process would stay with its tracer until the delay is over.
        self.strace.start_kill().map_err(FaultError::on("ending", "strace"))
    }

    /// Lets the process be, and answers how many calls met the fault.
    pub async fn detach(mut self) -> Result<usize, FaultError> {
        if let Some(id) = self.strace.id() {
            // It ends by itself with the process that it watches.
            let _ = kill(Pid::from_raw(id.cast_signed()), Signal::SIGTERM);
        }
        if tokio::time::timeout(LEAVE_WITHIN, self.strace.wait()).await.is_err() {
            // The system lets the process go on when its tracer is gone.
            self.strace.kill().await.map_err(FaultError::on("ending", "strace"))?;
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map(str::trim);
        if tracer.is_some_and(|tracer| tracer != "0") {
            return Err(FaultError::NoEffect(format!("process {} is still traced", self.pid)));
        }
        self.met()
    }
}

/// Threads of a process that its tracer holds in a flush.
fn held_calls(pid: Pid) -> usize {
    let numbers = [nix::libc::SYS_fdatasync, nix::libc::SYS_fsync, nix::libc::SYS_sync_file_range];
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let call = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("syscall")).ok();
    let number = |text: String| text.split_whitespace().next()?.parse().ok();
    threads.filter_map(call).filter_map(number).filter(|number| numbers.contains(number)).count()
}
