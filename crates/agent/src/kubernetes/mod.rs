//! A whole Kubernetes cluster as capacity of the fleet.
//!
//! One agent stands for the cluster's nodes: each of them is a node of Muster with a session and a separate lease, and its
//! accelerators, CPUs and memory are what the scheduler places gangs on. This node's share of a placement becomes one pod on that
//! very node; the pod runs a small [runner](crate::remote::runner), which is handed the workers and runs each below a shim, as any
//! agent does. What the pods of others hold is reported, and not free.
//!
//! | file | what |
//! |---|---|
//! | `config.rs` | the `[kubernetes]` table |
//! | `decoded.rs`, `objects.rs`, `quantity.rs`, `observe.rs` | nodes and pods as far as they are looked at, and what is known of the cluster |
//! | `describe.rs`, `kept_back.rs`, `tpu.rs`, `pod.rs`, `names.rs`, `ends.rs` | what a node is in Muster and which part is no capacity, where the hosts of a TPU slice are, the pod of a share, and what its end means |
//! | `client.rs` | the API server |
//! | `backend.rs`, `scheduler.rs` | the watches, and what the agent asks of them |
//! | `share.rs`, `progress.rs`, `stage.rs` | one pod, from the intent to the end |
//!
//! What it shares with other schedulers is in [`remote`](crate::remote).
//!
//! **Invariant:** Kubernetes is never believed about what runs: a worker runs because a runner was told to launch it, once, under a
//! lease.

mod backend;
mod client;
mod config;
mod decoded;
mod describe;
mod ends;
mod kept_back;
mod names;
mod objects;
mod observe;
mod pod;
mod progress;
mod quantity;
mod scheduler;
mod share;
mod stage;
mod tpu;

pub use config::{KubernetesConfig, TolerationConfig};

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

/// What workers cannot have in a pod: nobody attaches to one, and Kubernetes binds them or not.
const LACKING: [WorkerFeature; 2] = [WorkerFeature::Binding, WorkerFeature::Terminal];

/// Runs workers on one node of Kubernetes.
pub type KubernetesExecutor = RemoteExecutor<Backend>;

/// Serves the nodes of a Kubernetes cluster, until it is dropped; pods go on as long as their leases do.
///
/// # Errors
/// When it cannot start; it does not end otherwise.
pub(crate) async fn serve(kubernetes: &KubernetesConfig, around: Surroundings) -> Result<(), AgentError> {
    let Surroundings { state_dir, boot_id_path, endpoints, logs, pass_environment, given, monitor, .. } =
        around;
    let metrics = monitor.metrics().clone();
    let opened = KubernetesCluster::open(kubernetes, &state_dir, logs, pass_environment, metrics, given);
    let cluster = opened.await?;
    let paths = NodePaths { root: state_dir.join("nodes"), boot_id_path };
    let nodes = Nodes::new(Arc::clone(&cluster.backend), paths, endpoints, monitor);
    nodes.run().await;
    Ok(())
}

/// Whether an object is a node or a pod, and whether all that is made of it can be made.
pub(crate) fn takes_object(bytes: &[u8]) -> bool {
    use objects::{NodeObject, PodObject};
    let node = serde_json::from_slice(bytes).ok().and_then(|node| NodeObject::of(&node));
    let pod = serde_json::from_slice(bytes).ok().and_then(|pod| PodObject::of(&pod));
    let ends =
        pod.map(|pod| (ends::hindrance(&pod), ends::before_launch(&pod), ends::after_launch(&pod, false)));
    let settings = KubernetesConfig::sample().and_then(|config| config.check().ok());
    let described = settings.zip(node).map(|(settings, node)| {
        let position = tpu::positions(&settings, [&node]).remove(&node.name);
        let spec = describe::describe(&settings, &node, Some(&node.allocatable), position);
        (spec.is_ok(), describe::foreign(&settings, Some(&node), Some(&node.allocatable)))
    });
    ends.is_some() || described.is_some()
}

/// A Kubernetes cluster without sessions: what runs workers there, for leases that the caller holds.
#[derive(Debug)]
pub struct KubernetesCluster {
    backend: Arc<Backend>,
    /// Tasks that serve runners; they end when this is dropped.
    _server: JoinSet<()>,
    /// One agent per directory.
    _lock: std::fs::File,
}

impl Drop for KubernetesCluster {
    fn drop(&mut self) {
        self.backend.common.abort();
    }
}

impl KubernetesCluster {
    /// Locks the directory and listens for runners. Kubernetes itself is asked nothing before [`KubernetesCluster::poll`].
    ///
    /// # Errors
    /// When the configuration breaks a rule, or the directory, the address or the account cannot be used.
    pub async fn open(
        kubernetes: &KubernetesConfig,
        state_dir: &Path,
        logs: LogLimits,
        pass_environment: Vec<String>,
        metrics: AgentMetrics,
        given: SecretsAndFiles,
    ) -> Result<KubernetesCluster, AgentError> {
        let mut settings = kubernetes.check()?;
        given.label(&mut settings.labels);
        label_lacking(&mut settings.labels, &LACKING);
        let lock = state_dir::lock(state_dir)?;
        let scope = scope(state_dir)?;
        let (file, timeout) = (kubernetes.kubeconfig.as_deref(), settings.call_timeout);
        let client = client::Server::open(file, &kubernetes.namespace, timeout).await;
        let client = client.map_err(|error| AgentError::Kubernetes(Box::new(error)))?;
        let listener = tokio::net::TcpListener::bind(kubernetes.listen).await.map_err(AgentError::Listen)?;
        tracing::info!(cluster = %settings.name, listen = settings.advertise, scope, "runners are awaited");
        let common = Common::new(scope, logs, pass_environment, metrics, given);
        let backend = Arc::new(Backend::new(settings, client, common));
        let mut server = JoinSet::new();
        server.spawn(server::serve(Arc::clone(&backend), listener));
        Ok(KubernetesCluster { backend, _server: server, _lock: lock })
    }

    /// Watches the cluster, for ever. To be called when what earlier agents left is adopted: a pod that no adopted placement
    /// stands behind is deleted.
    pub fn poll(&self) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(&self.backend).poll()
    }

    /// What runs workers on one of the cluster's nodes, for the lease of that node.
    #[must_use]
    pub fn executor(
        &self,
        place: &str,
        spec: &NodeSpec,
        state: &StateDir,
        lease: Arc<Mutex<Lease>>,
    ) -> (KubernetesExecutor, mpsc::Receiver<ExecutorEvent>) {
        RemoteExecutor::for_node(&self.backend, place, spec, state, lease)
    }
}
