//! Processes of the host.

use crate::suite::{Behaviour, Subject, conforms};
use muster_agent::clock::BootTime;
use muster_agent::executor::ExecutorEvent;
use muster_agent::lease::Lease;
use muster_agent::process::{ProcessExecutor, ProcessSettings};
use muster_agent::rules::WorkerKey;
use muster_agent::{ControlGroups, LogLimits, MemoryLimit};
use muster_types::HolderId;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

pub const HOLDER: u128 = 7;
/// Long enough for a loaded machine to keep it, short enough to watch it run out.
const TTL: Duration = Duration::from_secs(8);

/// A shell that behaves so, and leaves a line in `launches/<key>` when it is launched.
pub fn shell(directory: &Path, key: WorkerKey, behaviour: Behaviour) -> Vec<String> {
    let rank = key.rank;
    let then = match behaviour {
        Behaviour::Missing => return vec!["/nonexistent/program".into()],
        Behaviour::Exit(code) => format!("echo rank {rank}; exit {code}"),
        Behaviour::Signal(signal) => format!("kill -{signal} $$"),
        // A shell takes a signal only when what it waits for ends: it waits for a background sleep.
        Behaviour::Hold | Behaviour::Stubborn => "while :; do sleep 600 & wait $!; done".to_owned(),
    };
    // Before the line is written: who has seen it may send the signal.
    let first = match behaviour {
        Behaviour::Hold => "trap 'kill $!; exit 0' TERM",
        Behaviour::Stubborn => "trap '' TERM",
        _ => "true",
    };
    let file = launch_file(directory, key);
    vec!["sh".into(), "-c".into(), format!("{first}; echo x >> '{}'; {then}", file.display())]
}

fn launch_file(directory: &Path, key: WorkerKey) -> PathBuf {
    directory.join("launches").join(format!("{}_{}_{}", key.job, key.token, key.rank))
}

pub fn launches(directory: &Path, key: WorkerKey) -> usize {
    std::fs::read_to_string(launch_file(directory, key)).unwrap_or_default().lines().count()
}

/// A lease that the test keeps, as heartbeats would.
pub struct Keeper {
    pub lease: Arc<Mutex<Lease>>,
    paused: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Keeper {
    pub fn start(path: &Path) -> Keeper {
        let lease = Arc::new(Mutex::new(Lease::open(path, HOLDER, 0).unwrap()));
        renew(&lease);
        let paused = Arc::new(AtomicBool::new(false));
        let over = Arc::new(AtomicBool::new(false));
        let (kept, pause, end) = (Arc::clone(&lease), Arc::clone(&paused), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::SeqCst) {
                if !pause.load(Ordering::SeqCst) {
                    renew(&kept);
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Keeper { lease, paused, over, thread: Some(thread) }
    }

    pub fn epoch(&self) -> u64 {
        self.lease.lock().standing(BootTime::now()).expect("the lease is kept").epoch
    }

    /// No heartbeat is acknowledged until the lease has run out; then again.
    pub async fn lapse(&self) {
        self.paused.store(true, Ordering::SeqCst);
        let over = || self.lease.lock().standing(BootTime::now()).is_none();
        while !over() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.paused.store(false, Ordering::SeqCst);
        while over() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn renew(lease: &Mutex<Lease>) {
    let now = BootTime::now();
    lease.lock().renew(now, TTL, Duration::from_millis(300), now).unwrap();
}

struct Processes {
    directory: tempfile::TempDir,
    keeper: Keeper,
}

impl Subject for Processes {
    type Executor = ProcessExecutor;

    async fn open(&mut self) -> (ProcessExecutor, mpsc::Receiver<ExecutorEvent>) {
        let binary = env!("CARGO_BIN_EXE_muster-agent-process");
        ProcessExecutor::new(ProcessSettings {
            tasks: self.directory.path().join("tasks"),
            lease: self.directory.path().join("lease"),
            holder: HolderId(HOLDER),
            shim_command: vec![binary.into(), "shim".into()],
            guard_command: vec![binary.into(), "shim".into()],
            ready_max: 2,
            node: "host-a".into(),
            accelerator: String::new(),
            environment: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
            secrets_dir: None,
            scratch_dir: None,
            logs: LogLimits::usual(),
            control_groups: ControlGroups::Off,
            memory_limit: MemoryLimit::Off,
            metrics: muster_metrics::AgentMetrics::default(),
            agent_socket: None,
            isolating: Arc::new(muster_agent::isolation::Isolating::off()),
            shown: Vec::new(),
            images: None,
            files: None,
            is_in_job: false,
            host_commands: None,
        })
    }

    fn command(&self, key: WorkerKey, behaviour: Behaviour) -> Vec<String> {
        shell(self.directory.path(), key, behaviour)
    }

    fn launches(&self, key: WorkerKey) -> usize {
        launches(self.directory.path(), key)
    }

    fn epoch(&self) -> u64 {
        self.keeper.epoch()
    }

    fn break_backend(&mut self, _broken: bool) -> bool {
        false
    }

    async fn lapse(&mut self) {
        self.keeper.lapse().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn processes_conform() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["tasks", "launches"] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
    }
    let keeper = Keeper::start(&directory.path().join("lease"));
    conforms(&mut Processes { directory, keeper }).await;
}
