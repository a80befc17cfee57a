//! A whole Slurm cluster as capacity of the fleet.
//!
//! One agent next to slurmctld stands for all of its nodes: each of them is a node of Muster with a session
//! and a separate lease, and its GPUs, CPUs and memory are what the scheduler places gangs on. This
//! node's share of a placement becomes one batch job on that very node; the job runs a small
//! [runner](crate::remote::runner) which is handed the workers and runs each below a shim, as any agent does. What
//! other users of the cluster hold is reported, and not free.
//!
//! | file | what |
//! |---|---|
//! | `config.rs` | the `[slurm]` table |
//! | `command.rs`, `parse.rs` | Slurm's commands, and what they print |
//! | `backend.rs`, `scheduler.rs` | one poll for all, and what the agent asks of it |
//! | `share.rs`, `stage.rs`, `ends.rs` | one batch job, from the intent to the end |
//! | `batch.rs` | what is known of the batch job: submission, progress and cancellation as states |
//! | `load.rs` | what others hold of a node |
//!
//! What it shares with other schedulers is in [`remote`](crate::remote).
//!
//! **Invariant:** Slurm is never believed about what runs: a worker runs because a runner was told to
//! launch it, once, under a lease; see [`share`].

mod backend;
mod batch;
mod command;
mod config;
mod ends;
mod load;
mod parse;
mod scheduler;
mod share;
mod stage;

pub use config::SlurmConfig;

use crate::disk::lease::Lease;
use crate::disk::state_dir::{self, StateDir};
use crate::error::AgentError;
use crate::executor::ExecutorEvent;
use crate::remote::executor::RemoteExecutor;
use crate::remote::files::SecretsAndFiles;
use crate::remote::nodes::{NodePaths, Nodes};
use crate::remote::scheduler::{Common, Scheduler as _};
use crate::remote::{Surroundings, label_lacking, scope, server};
use crate::settings::LogLimits;
use backend::Backend;
use muster_metrics::AgentMetrics;
use muster_types::NodeSpec;
use muster_types::worker_features::WorkerFeature;
use parking_lot::Mutex;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Runs workers on one node of Slurm.
pub type SlurmExecutor = RemoteExecutor<Backend>;

/// Serves the nodes of a Slurm cluster, until it is dropped; batch jobs go on as long as their leases do.
///
/// # Errors
/// When it cannot start; it does not end otherwise.
pub(crate) async fn serve(slurm: &SlurmConfig, around: Surroundings) -> Result<(), AgentError> {
    let Surroundings {
        state_dir,
        boot_id_path,
        endpoints,
        shim_command,
        logs,
        pass_environment,
        given,
        monitor,
    } = around;
    let metrics = monitor.metrics().clone();
    let opened = SlurmCluster::open(slurm, &shim_command, &state_dir, logs, pass_environment, metrics, given);
    let cluster = opened.await?;
    let paths = NodePaths { root: state_dir.join("nodes"), boot_id_path };
    let nodes = Nodes::new(Arc::clone(&cluster.backend), paths, endpoints, monitor);
    nodes.run().await;
    Ok(())
}

impl Drop for SlurmCluster {
    fn drop(&mut self) {
        self.backend.common.abort();
    }
}

/// A Slurm cluster without sessions: what runs workers there, for leases that the caller holds.
#[derive(Debug)]
pub struct SlurmCluster {
    backend: Arc<Backend>,
    /// Tasks that serve runners; they end when this is dropped.
    _server: JoinSet<()>,
    /// One agent per directory.
    _lock: std::fs::File,
}

impl SlurmCluster {
    /// Locks the directory and listens for runners. Slurm itself is asked nothing before [`SlurmCluster::poll`].
    ///
    /// # Errors
    /// When the configuration breaks a rule, or the directory or the address cannot be used.
    pub async fn open(
        slurm: &SlurmConfig,
        shim_command: &[String],
        state_dir: &Path,
        logs: LogLimits,
        pass_environment: Vec<String>,
        metrics: AgentMetrics,
        given: SecretsAndFiles,
    ) -> Result<SlurmCluster, AgentError> {
        let mut settings = slurm.check(shim_command)?;
        given.label(&mut settings.labels);
        label_lacking(&mut settings.labels, &WorkerFeature::ALL);
        let lock = state_dir::lock(state_dir)?;
        let scope = scope(state_dir)?;
        let listener = tokio::net::TcpListener::bind(slurm.listen).await.map_err(AgentError::Listen)?;
        if slurm.advertise.is_none() {
            // Port 0 is any.
            settings.advertise = listener.local_addr().map_err(AgentError::Listen)?.to_string();
        }
        tracing::info!(cluster = %settings.name, listen = settings.advertise, scope, "runners are awaited");
        let common = Common::new(scope, logs, pass_environment, metrics, given);
        let backend = Arc::new(Backend::new(settings, common));
        let mut server = JoinSet::new();
        server.spawn(server::serve(Arc::clone(&backend), listener));
        Ok(SlurmCluster { backend, _server: server, _lock: lock })
    }

    /// Looks at Slurm, for ever. To be called when what earlier agents left is adopted: a batch job that no
    /// adopted placement stands behind is cancelled.
    pub fn poll(&self) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(&self.backend).poll()
    }

    /// What runs workers on one of Slurm's nodes, for the lease of that node.
    #[must_use]
    pub fn executor(
        &self,
        slurm_node: &str,
        spec: &NodeSpec,
        state: &StateDir,
        lease: Arc<Mutex<Lease>>,
    ) -> (SlurmExecutor, mpsc::Receiver<ExecutorEvent>) {
        RemoteExecutor::for_node(&self.backend, slurm_node, spec, state, lease)
    }
}

/// Whether what Slurm's commands print names anything.
pub(crate) fn takes_text(text: &str) -> bool {
    let jobs = parse::jobs(text);
    let states = jobs.iter().filter(|job| job.is_pending() || job.is_over() || job.waits_in_vain()).count();
    let nodes = parse::nodes(text);
    let usable = nodes.iter().filter(|node| node.is_usable()).count();
    let others = parse::partitions(text).len() + usize::from(parse::submitted(text).is_some());
    jobs.len() + nodes.len() + others > 0 && states <= jobs.len() && usable <= nodes.len()
}
