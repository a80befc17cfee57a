//! What runs workers: processes of this host today, another scheduler's jobs behind the same trait.
//!
//! The unit of a start is this node's share of one placement, so an executor for a Slurm or Kubernetes
//! cluster can turn it into one batch job or job set that covers many machines; ends are told worker
//! by worker.
//!
//! **Invariant:** an executor never launches one worker key twice, over any number of restarts, and
//! tells an end only when nothing of the worker is left.

pub use crate::rules::{Adopted, ExecutorEvent, Foreign, OutputRequest, StopRequest};
use crate::rules::{OutputStream, Placement, WorkerKey};
use muster_types::Artifacts;
use muster_types::terminal::TerminalSize;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};

/// A piece of output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputChunk {
    /// None when there is no data.
    pub stream: Option<OutputStream>,
    /// At most [`LOG_CHUNK_BYTES`](crate::limits::LOG_CHUNK_BYTES).
    pub data: Vec<u8>,
    /// Bytes of output right before `data` that were not kept.
    pub dropped_bytes: u64,
    /// Bytes of output, of both streams, from the worker's start to the end of `data`.
    pub position: u64,
}

/// A command to run next to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecRequest {
    /// The worker next to which it runs.
    pub key: WorkerKey,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Variables beyond those of the worker, or in their place.
    pub environment: BTreeMap<String, String>,
    /// The terminal that it has; none for pipes.
    pub terminal: Option<TerminalSize>,
}

/// What a caller tells such a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecInput {
    /// For its standard input.
    Data(Vec<u8>),
    /// No more input follows.
    End,
    /// A signal, by its number.
    Signal(i32),
    /// The size of its terminal from now on.
    Resize(TerminalSize),
}

/// What such a command tells its caller: its output, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecOutput {
    /// Its process is there. Output can come before this.
    Started,
    /// Of its standard output; at most [`LOG_CHUNK_BYTES`](crate::limits::LOG_CHUNK_BYTES).
    Stdout(Vec<u8>),
    /// Of its standard error, as much.
    Stderr(Vec<u8>),
    /// It has ended with this code. The last of all.
    Exited(i32),
    /// This signal has ended it. The last of all.
    Signaled(i32),
}

/// Bytes to and from a port of a worker.
pub trait PortStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> PortStream for T {}

/// What became of the artifacts of workers that have ended, until their ends are acknowledged.
#[derive(Clone, Debug, Default)]
pub struct KeptArtifacts(Arc<Mutex<BTreeMap<WorkerKey, Artifacts>>>);

impl KeptArtifacts {
    /// What became of those of this worker; none where its job wants none.
    #[must_use]
    pub fn of(&self, key: WorkerKey) -> Option<Artifacts> {
        self.0.lock().get(&key).copied()
    }

    pub(crate) fn put(&self, key: WorkerKey, artifacts: Artifacts) {
        self.0.lock().insert(key, artifacts);
    }

    pub(crate) fn forget(&self, key: WorkerKey) {
        self.0.lock().remove(&key);
    }
}

/// What an executor could not do.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The executor has nothing of this worker.
    #[error("nothing is known of worker {0}")]
    Unknown(WorkerKey),
    /// The directory of all workers.
    #[error("list the workers")]
    List(#[source] io::Error),
    /// Reading output.
    #[error("read a worker's output")]
    Output(#[source] io::Error),
}

/// Runs workers.
pub trait Executor: Send + Sync + 'static {
    /// Launches every worker of the placement that is not launched yet, in lease epoch `epoch`. What becomes
    /// of each is told as an event; a launch that fails is an end.
    fn start(&self, placement: Arc<Placement>, epoch: u64) -> impl Future<Output = ()> + Send;

    /// Whether its workers run on the host of the agent. Only then do measurements of this host's network apply to them.
    fn is_on_this_host(&self) -> bool {
        true
    }

    /// What others hold of the node, as it changes; none where it is Muster's alone.
    fn foreign(&self) -> Option<watch::Receiver<Foreign>> {
        None
    }

    /// What became of the artifacts of its workers; always the same one, which is told of an end before that is.
    fn kept_artifacts(&self) -> KeptArtifacts {
        KeptArtifacts::default()
    }

    /// Records that this worker will not be launched, and tells it as an end.
    fn refuse(&self, key: WorkerKey, reason: String) -> impl Future<Output = ()> + Send;

    /// Asks a worker to stop: SIGTERM or its like now, SIGKILL after the grace. Repeating can only
    /// shorten the grace.
    ///
    /// # Errors
    /// When the request could not be delivered; the worker may still be running.
    fn stop(
        &self,
        key: WorkerKey,
        request: StopRequest,
    ) -> impl Future<Output = Result<(), ExecutorError>> + Send;

    /// Takes over what an earlier agent left: running workers, and ends that are not acknowledged.
    ///
    /// # Errors
    /// When that cannot be listed: then nothing may be started either.
    fn adopt(&self) -> impl Future<Output = Result<Vec<Adopted>, ExecutorError>> + Send;

    /// The leader knows this end; what is kept of the worker is kept for its output alone.
    fn acknowledge(&self, key: WorkerKey) -> impl Future<Output = ()> + Send;

    /// Sends a worker's output until it is at its end, or the worker's when following.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read_output(
        &self,
        request: OutputRequest,
        sink: mpsc::Sender<OutputChunk>,
    ) -> impl Future<Output = Result<(), ExecutorError>> + Send;

    /// Runs a command next to a worker, with what the worker has and no more, until it ends, the worker ends, or nobody takes
    /// its output any more.
    ///
    /// # Errors
    /// One sentence, when it cannot be run or its end is not known.
    fn exec(
        &self,
        request: ExecRequest,
        inputs: mpsc::Receiver<ExecInput>,
        outputs: mpsc::Sender<ExecOutput>,
    ) -> impl Future<Output = Result<(), String>> + Send {
        drop((inputs, outputs));
        let key = request.key;
        async move {
            Err(format!("no command can be run next to worker {key}: it is not on a host of this agent"))
        }
    }

    /// Attaches to the terminal of a worker that has one, until the worker ends or nobody takes its output any more. The worker goes on
    /// without.
    ///
    /// # Errors
    /// One sentence, when it has none or its end is not known.
    fn attach(
        &self,
        key: WorkerKey,
        size: TerminalSize,
        inputs: mpsc::Receiver<ExecInput>,
        outputs: mpsc::Sender<ExecOutput>,
    ) -> impl Future<Output = Result<(), String>> + Send {
        drop((inputs, outputs));
        // There is no terminal here that could have it.
        let _ = size;
        async move {
            Err(format!(
                "nobody can attach to worker {key}: it is not on a host of this agent, but in a pod or in a job of Slurm; \
                 `muster logs` shows what it writes"
            ))
        }
    }

    /// Looks whether processes of this worker listen on a port.
    ///
    /// # Errors
    /// One sentence with the ports on which they do.
    fn listens(&self, key: WorkerKey, port: u16) -> impl Future<Output = Result<(), String>> + Send {
        let text =
            format!("port {port} of worker {key} cannot be reached: it is not on a host of this agent");
        async move { Err(text) }
    }

    /// A connection to a port on which processes of this worker listen, and to no other process.
    ///
    /// # Errors
    /// One sentence, as [`Executor::listens`], or why none was made.
    fn connect(
        &self,
        key: WorkerKey,
        port: u16,
    ) -> impl Future<Output = Result<Box<dyn PortStream>, String>> + Send {
        let text = format!("nothing connects to port {port} of worker {key}");
        async move { Err(text) }
    }

    /// Waits until this worker has ended.
    fn ended(&self, key: WorkerKey) -> impl Future<Output = ()> + Send {
        let _ = key;
        std::future::pending()
    }
}
