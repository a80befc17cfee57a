//! The nodes of a Slurm cluster as nodes of Muster: which there are, and a session for each.
//!
//! What a node is was written down when it was first seen, so an agent that is restarted while Slurm gives
//! no answer still keeps the leases of what runs.
//!
//! **Invariant:** a node's description does not change while anything of it is under way.

use super::backend::{Backend, View};
use super::executor::SlurmExecutor;
use super::parse::SlurmNode;
use super::record::Directories;
use crate::disk::durable::{read_record, write_record};
use crate::disk::fencing;
use crate::disk::lease::Lease;
use crate::disk::state_dir::StateDir;
use crate::executor::Executor as _;
use crate::monitoring::AgentMonitor;
use crate::session::{HealthLink, Sessions};
use crate::{limits, node_loop};
use muster_client::Endpoints;
use muster_types::{Accelerators, Name, NodeDraft, NodeSpec};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

/// Nodes of one agent. A session each costs a stream, and a few tasks.
const NODES_MAX: usize = 4_096;

/// One node that is served.
struct ServedNode {
    spec: NodeSpec,
    executor: SlurmExecutor,
    task: AbortHandle,
}

/// Where it is written down what nodes there are, and which boot this is.
pub(super) struct NodePaths {
    pub(super) root: PathBuf,
    pub(super) boot_id_path: PathBuf,
}

/// All nodes of one cluster.
pub(super) struct Nodes {
    backend: Arc<Backend>,
    paths: NodePaths,
    endpoints: Endpoints,
    monitor: AgentMonitor,
    served: BTreeMap<String, ServedNode>,
    tasks: JoinSet<()>,
    /// Nodes that cannot be served, and why, said once.
    said: BTreeMap<String, String>,
}

impl Nodes {
    pub(super) fn new(
        backend: Arc<Backend>,
        paths: NodePaths,
        endpoints: Endpoints,
        monitor: AgentMonitor,
    ) -> Nodes {
        Nodes {
            backend,
            paths,
            endpoints,
            monitor,
            served: BTreeMap::new(),
            tasks: JoinSet::new(),
            said: BTreeMap::new(),
        }
    }

    /// For ever.
    pub(super) async fn run(mut self) {
        for (slurm_node, spec) in self.known() {
            self.serve(&slurm_node, spec).await;
        }
        let mut views = self.backend.views();
        // After the records are taken up: what has no share behind it by then has none.
        let poll = tokio::spawn(Arc::clone(&self.backend).poll());
        let _poll = Abort(poll.abort_handle());
        loop {
            tokio::select! {
                changed = views.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let view = Arc::clone(&views.borrow_and_update());
                    self.follow(&view).await;
                }
                Some(ended) = self.tasks.join_next() => {
                    if ended.is_ok() {
                        tracing::debug!("a node is not served any more");
                    }
                }
            }
        }
    }

    /// Nodes that were served before.
    fn known(&self) -> Vec<(String, NodeSpec)> {
        let Ok(entries) = std::fs::read_dir(&self.paths.root) else { return Vec::new() };
        let mut known = Vec::new();
        for entry in entries.flatten().take(NODES_MAX) {
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            match read_record::<NodeSpec>(&entry.path().join("spec")) {
                Ok(Some(spec)) => known.push((name, spec)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(node = name, %error, "what this node is is read from Slurm again")
                }
            }
        }
        known
    }

    /// Brings the sessions into line with what Slurm has.
    async fn follow(&mut self, view: &View) {
        let mut seen = BTreeSet::new();
        for found in &view.nodes {
            if self.backend.partition_for(view, found).is_none() && !self.served.contains_key(&found.name) {
                continue;
            }
            let spec = match self.describe(found) {
                Ok(spec) => spec,
                Err(why) => {
                    self.say_once(&found.name, why);
                    continue;
                }
            };
            seen.insert(found.name.clone());
            match self.served.get(&found.name) {
                Some(served) if served.spec == spec => {}
                Some(served) if served.executor.is_busy() => {
                    self.say_once(
                        &found.name,
                        "it has changed; that is taken over when nothing runs there".into(),
                    );
                }
                Some(_) => {
                    tracing::info!(node = found.name, "the node has changed");
                    self.end(&found.name).await;
                    self.serve(&found.name, spec).await;
                }
                None if self.served.len() >= NODES_MAX => {
                    self.say_once(&found.name, format!("an agent serves at most {NODES_MAX} nodes"));
                }
                None => self.serve(&found.name, spec).await,
            }
        }
        let gone: Vec<String> = self.served.keys().filter(|name| !seen.contains(*name)).cloned().collect();
        for name in gone {
            let busy = self.served.get(&name).is_some_and(|served| served.executor.is_busy());
            if !busy {
                tracing::info!(node = name, "Slurm has this node no more");
                self.end(&name).await;
                // Or a restarted agent would serve it again until it has asked.
                let _ = std::fs::remove_file(self.paths.root.join(&name).join("spec"));
            }
        }
    }

    fn say_once(&mut self, name: &str, why: String) {
        if self.said.get(name) != Some(&why) {
            tracing::warn!(node = name, why, "a node of Slurm");
            self.said.insert(name.to_owned(), why);
        }
    }

    /// What a node of Slurm is in Muster.
    fn describe(&self, found: &SlurmNode) -> Result<NodeSpec, String> {
        let settings = &self.backend.settings;
        let text = format!("{}.{}", settings.name, found.name.to_ascii_lowercase());
        let rule = || format!("{text} is no name: it must be {}", muster_types::name::NAME_RULE);
        let name = Name::new(&text).ok_or_else(rule)?;
        if found.gpus.iter().filter(|gres| gres.count > 0).count() > 1 {
            tracing::debug!(%name, "has GPUs of several types; those there are most of are used");
        }
        let accelerators = match self.backend.offered(found) {
            None => None,
            Some(gres) => {
                let kind = settings.written.accelerator_types.get(&gres.kind).unwrap_or(&gres.kind);
                let kind = Name::new(&kind.to_ascii_lowercase()).ok_or_else(|| {
                    format!("GPUs of type {kind:?} have no name in Muster; see slurm.accelerator_types")
                })?;
                Some(Accelerators { kind, count: gres.count })
            }
        };
        let mut labels = settings.labels.clone();
        for partition in &found.partitions {
            if let Some(label) = Name::new(&format!("slurm-partition.{}", partition.to_ascii_lowercase())) {
                labels.insert(label, "true".to_owned());
            }
        }
        let draft = NodeDraft {
            name,
            region: settings.region.clone(),
            cluster: settings.cluster.clone(),
            block: settings.block.clone(),
            rack: settings.rack.clone(),
            address: found.address.clone(),
            accelerators,
            cpu_milli: found.cpus.saturating_mul(1_000),
            memory_bytes: found.memory_mib.saturating_mul(1 << 20),
            labels,
            taints: settings.taints.clone(),
            pod: None,
        };
        draft.check().map_err(|found| match found.into_iter().next() {
            Some(first) => format!("{}: {}", first.field, first.description),
            None => "breaks a rule".to_owned(),
        })
    }

    async fn end(&mut self, name: &str) {
        if let Some(served) = self.served.remove(name) {
            served.task.abort();
            // Its directory is locked until the task is gone.
            while !served.task.is_finished() {
                if self.tasks.join_next().await.is_none() {
                    break;
                }
            }
        }
    }

    /// Opens a session for a node, and takes up what an earlier agent left.
    async fn serve(&mut self, slurm_node: &str, spec: NodeSpec) {
        match self.open(slurm_node, &spec).await {
            Ok((executor, work)) => {
                let task = self.tasks.spawn(work);
                tracing::info!(node = %spec.name, slurm_node, "serving a node of Slurm");
                self.said.remove(slurm_node);
                let served = ServedNode { spec, executor, task };
                self.served.insert(slurm_node.to_owned(), served);
            }
            Err(error) => {
                self.say_once(
                    slurm_node,
                    format!("it is not served: {}", crate::chain::chain(error.as_ref())),
                );
            }
        }
    }

    async fn open(
        &self,
        slurm_node: &str,
        spec: &NodeSpec,
    ) -> Result<
        (SlurmExecutor, impl Future<Output = ()> + Send + use<>),
        Box<dyn std::error::Error + Send + Sync>,
    > {
        let directory = self.paths.root.join(slurm_node);
        let state = Arc::new(StateDir::open_for_remote(&directory, &self.paths.boot_id_path)?);
        write_record(&directory.join("spec"), spec)?;
        let fences = fencing::Fences::open(&state.jobs(), limits::FENCED_JOBS_MAX)?;
        // The highest epoch that anything belongs to, before there is a lease to be asked.
        let floor = Directories { shares: state.shares(), tasks: state.tasks() }.epoch_floor()?;
        let lease = Arc::new(Mutex::new(Lease::open(&state.lease(), state.holder().0, floor)?));
        let (executor, told) =
            SlurmExecutor::for_node(&self.backend, slurm_node, spec, &state, Arc::clone(&lease));
        let adopted = executor.adopt().await?;
        let monitor = self.monitor.node(spec);
        let (events, incoming) = mpsc::channel(limits::ORDERS_QUEUED_MAX);
        executor.tell_notes_to(events.clone());
        let node = node_loop::NodeLoop::new(
            Arc::new(executor.clone()),
            fences,
            Arc::clone(&lease),
            spec.clone(),
            adopted,
            monitor.clone(),
        );
        // Nobody here watches another host's health.
        let speaking = HealthLink { line: watch::Sender::new(None), of_health: mpsc::channel(1).0 };
        let endpoints = self.endpoints.clone();
        let (spec, kept) = (spec.clone(), executor.kept_artifacts());
        let sessions = Sessions { endpoints, state, spec, lease, events, speaking, monitor, kept };
        let work = async move {
            tokio::select! {
                () = node.run(incoming, told) => {}
                () = sessions.run() => {}
            }
        };
        Ok((executor, work))
    }
}

/// Ends a task with its owner.
struct Abort(AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}
