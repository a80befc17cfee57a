//! Shims that wait for a worker: directory made, lock taken, the process there that becomes the worker. A start that
//! finds one writes a few small files and a name into a pipe; without one it makes a dozen files and executes two
//! programs first.
//!
//! As many wait as the last start on this host needed, two at least, and never more than workers could still come: a host
//! that is full has none. Those of an agent that has ended go by themselves, for their standard input ends.
//!
//! **Invariant:** a waiting shim knows no worker, so it needs no token and has no lease; it gets one worker, after
//! that one's token is durable, and looks at its lease as any other does.

use crate::limits;
use crate::offload::blocking;
use crate::process::isolation::Namespaces;
use crate::process::shim;
use crate::process::task::{Blank, TaskDir};
use crate::rules::WorkerKey;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};

/// Jobs of one worker that come one behind another find a shim each, while another is being made.
const EXPECTED_MIN: usize = 2;

/// A shim that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) blank: Blank,
    pub(crate) shim: Shim,
    /// Takes the directory's final name.
    pub(crate) order: File,
}

/// A shim that was started.
#[derive(Debug)]
pub(crate) struct Shim {
    pub(crate) child: Child,
    /// What it says to the agent.
    pub(crate) said: BufReader<ChildStdout>,
}

/// Names the worker that a waiting shim is to have. The pipe is empty and the name short: it never waits.
///
/// # Errors
/// When the shim has died; then it has launched nothing.
pub(crate) fn order(mut pipe: File, task: &TaskDir) -> io::Result<()> {
    let mut name = task.path().as_os_str().as_bytes().to_vec();
    name.push(0);
    io::Write::write_all(&mut pipe, &name)
}

/// The next line, of a bounded length; empty at the end of the stream.
pub(crate) async fn next_line(said: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    // An unreadable line is as good as none.
    let _ = said.take(256).read_line(&mut line).await;
    line.trim_end().to_owned()
}

/// The shims that wait on this host.
#[derive(Debug)]
pub(crate) struct Pool {
    tasks: PathBuf,
    /// Program and first arguments of a shim.
    command: Vec<String>,
    /// What the worker will be in.
    namespaces: Namespaces,
    /// Where the control groups of workers are made.
    cgroup_parent: Option<PathBuf>,
    /// Waiting shims and workers together, where a worker counts as many as it has devices.
    max: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: Vec<Waiting>,
    /// What the next start may need.
    expected: usize,
    /// Workers whose end the leader does not know yet, with what each counts.
    held: BTreeMap<WorkerKey, usize>,
    held_count: usize,
    /// Somebody makes more of them right now.
    is_making: bool,
    made: u64,
    complained: bool,
}

impl Inner {
    /// How many are to wait.
    fn wanted(&self, max: usize) -> usize {
        self.expected.max(EXPECTED_MIN).min(max.saturating_sub(self.held_count))
    }
}

/// Starts a shim.
pub(crate) fn start(
    command: &[String],
    word: &str,
    directory: &TaskDir,
    namespaces: Option<Namespaces>,
    cgroup_parent: Option<&Path>,
    stdin: Stdio,
) -> io::Result<Child> {
    let (program, first) = command.split_first().ok_or_else(|| io::Error::other("the command is empty"))?;
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(directory.shim_log())?;
    Command::new(program)
        .args(first)
        .arg(word)
        .arg(directory.path())
        .args(namespaces.map(Namespaces::word))
        .args(cgroup_parent)
        .env_clear()
        .current_dir("/")
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
}

impl Pool {
    pub(crate) fn new(
        tasks: PathBuf,
        command: Vec<String>,
        namespaces: Namespaces,
        cgroup_parent: Option<PathBuf>,
        max: usize,
    ) -> Pool {
        Pool { tasks, command, namespaces, cgroup_parent, max, inner: Mutex::default() }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Inner> {
        // A panic while holding it leaves whole values.
        self.inner.lock()
    }

    /// A start of this many workers has come; the next one may well be like it.
    pub(crate) fn expect(&self, workers: usize) {
        self.lock().expected = workers;
    }

    /// A worker is here, or will be, with this many devices.
    pub(crate) fn hold(&self, key: WorkerKey, devices: usize) {
        let mut inner = self.lock();
        let count = devices.max(1);
        let before = inner.held.insert(key, count).unwrap_or(0);
        inner.held_count = inner.held_count + count - before;
    }

    /// A worker is no more.
    pub(crate) fn release(&self, key: WorkerKey) {
        let mut inner = self.lock();
        let count = inner.held.remove(&key).unwrap_or(0);
        inner.held_count -= count;
    }

    /// Has those go that nobody could need.
    pub(crate) async fn trim(&self) {
        let surplus = {
            let mut inner = self.lock();
            let wanted = inner.wanted(self.max).min(inner.waiting.len());
            inner.waiting.split_off(wanted)
        };
        for Waiting { blank, shim, order } in surplus {
            // Its standard input ends, and it with it; the runtime collects it.
            drop((order, shim));
            blocking(move || blank.discard()).await;
        }
    }

    /// One of them, if there is one.
    pub(crate) fn take(&self) -> Option<Waiting> {
        loop {
            let mut waiting = self.lock().waiting.pop()?;
            match waiting.shim.child.try_wait() {
                Ok(None) => return Some(waiting),
                // Somebody killed it.
                ended => {
                    tracing::warn!(?ended, "a waiting shim has ended");
                    waiting.blank.discard();
                }
            }
        }
    }

    /// Makes as many as are lacking, one after another; at once where somebody does already.
    pub(crate) async fn fill(self: Arc<Self>) {
        loop {
            let number = {
                let mut inner = self.lock();
                if inner.is_making || inner.waiting.len() >= inner.wanted(self.max) {
                    return;
                }
                (inner.is_making, inner.made) = (true, inner.made + 1);
                inner.made
            };
            let made = self.make(number).await;
            let mut inner = self.lock();
            inner.is_making = false;
            match made {
                // It may have become one too many meanwhile: the next worker has it.
                Ok(waiting) => {
                    inner.complained = false;
                    inner.waiting.push(waiting);
                }
                Err(reason) => {
                    if !std::mem::replace(&mut inner.complained, true) {
                        tracing::warn!(reason, "no shim waits for the next worker; its start takes longer");
                    }
                    return;
                }
            }
        }
    }

    async fn make(&self, number: u64) -> Result<Waiting, String> {
        let tasks = self.tasks.clone();
        let blank = blocking(move || Blank::make(&tasks, &format!("ready_{number}"))).await;
        let blank = blank.map_err(|error| crate::chain::chain(&error))?;
        match self.begin(blank.directory()).await {
            Ok((shim, order)) => Ok(Waiting { blank, shim, order }),
            Err(reason) => {
                blocking(move || blank.discard()).await;
                Err(reason)
            }
        }
    }

    async fn begin(&self, directory: &TaskDir) -> Result<(Shim, File), String> {
        let program = self.command.first().map_or("", String::as_str);
        let mut child = start(
            &self.command,
            shim::WAIT,
            directory,
            Some(self.namespaces),
            self.cgroup_parent.as_deref(),
            Stdio::piped(),
        )
        .map_err(|e| format!("start the shim {program}: {e}"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else {
            return Err("a shim without pipes".to_owned());
        };
        let order = stdin.into_owned_fd().map_err(|e| format!("keep the pipe to a shim: {e}"))?;
        let mut said = BufReader::new(stdout);
        let line = tokio::time::timeout(limits::SHIM_START_MAX, next_line(&mut said)).await;
        if line.is_ok_and(|line| line == shim::READY_LINE) {
            return Ok((Shim { child, said }, File::from(order)));
        }
        // It hangs, or has ended; either way it is collected.
        let _ = child.start_kill();
        let status = child.wait().await;
        Err(format!("the shim {program} did not become ready: {status:?}"))
    }
}

/// Whether a program guards workers as this agent has them guarded.
pub(crate) async fn speaks(program: &Path) -> Result<(), String> {
    let asked = Command::new(program)
        .arg(shim::SPEAKS)
        .env_clear()
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    match tokio::time::timeout(limits::SHIM_START_MAX, asked).await {
        Ok(Ok(said)) if said.stdout.trim_ascii() == shim::SPEECH.as_bytes() => Ok(()),
        Ok(Ok(said)) => {
            let theirs = String::from_utf8_lossy(&said.stdout[..said.stdout.len().min(64)]).into_owned();
            Err(format!("it says {theirs:?}, this agent {:?}", shim::SPEECH))
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it does not answer".to_owned()),
    }
}
