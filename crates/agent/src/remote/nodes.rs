//! The nodes of another scheduler as nodes of Muster: which there are, and a session for each.
//!
//! What a node is was written down when it was first seen, so an agent that is restarted while the other
//! scheduler gives no answer still keeps the leases of what runs.
//!
//! **Invariant:** a node's description does not change while anything of it is under way.

use super::executor::RemoteExecutor;
use super::record::Directories;
use super::scheduler::{Candidate, Scheduler};
use crate::disk::durable::{read_record, write_record};
use crate::disk::fencing;
use crate::disk::lease::Lease;
use crate::disk::state_dir::StateDir;
use crate::executor::Executor as _;
use crate::monitoring::AgentMonitor;
use crate::session::{HealthLink, Sessions};
use crate::{limits, node_loop};
use muster_client::Endpoints;
use muster_types::NodeSpec;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

/// Sessions that share a connection to a replica: a connection each would be most of what an agent of thousands of nodes has in memory.
const SESSIONS_PER_CONNECTION: usize = 250;
/// Nodes of one agent, more than the 5,000 that Kubernetes supports in a cluster. A session each costs a stream, and a few tasks.
const NODES_MAX: usize = 6_000;
const _: () = assert!(NODES_MAX >= 5_000, "a whole cluster of Kubernetes is one agent's");

/// One node that is served.
struct ServedNode<S: Scheduler> {
    spec: NodeSpec,
    executor: RemoteExecutor<S>,
    task: AbortHandle,
}

/// Where it is written down what nodes there are, and which boot this is.
pub(crate) struct NodePaths {
    pub(crate) root: PathBuf,
    pub(crate) boot_id_path: PathBuf,
}

/// All nodes of one cluster.
pub(crate) struct Nodes<S: Scheduler> {
    backend: Arc<S>,
    paths: NodePaths,
    endpoints: Endpoints,
    monitor: AgentMonitor,
    served: BTreeMap<String, ServedNode<S>>,
    tasks: JoinSet<()>,
    /// Nodes that cannot be served, and why, said once.
    said: BTreeMap<String, String>,
}

impl<S: Scheduler> Nodes<S> {
    pub(crate) fn new(
        backend: Arc<S>,
        paths: NodePaths,
        endpoints: Endpoints,
        monitor: AgentMonitor,
    ) -> Nodes<S> {
        Nodes {
            backend,
            paths,
            endpoints: endpoints.sharing(SESSIONS_PER_CONNECTION),
            monitor,
            served: BTreeMap::new(),
            tasks: JoinSet::new(),
            said: BTreeMap::new(),
        }
    }

    /// For ever.
    pub(crate) async fn run(mut self) {
        for (place, spec) in self.known() {
            self.serve(&place, spec).await;
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
                    if let Some(found) = self.backend.candidates(&view) {
                        self.follow(found).await;
                    }
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
                    tracing::warn!(place = name, %error, "what this node is is asked for again")
                }
            }
        }
        known
    }

    /// Brings the sessions into line with what there is.
    async fn follow(&mut self, all: Vec<Candidate>) {
        let mut seen = BTreeSet::new();
        for found in all {
            if !found.is_offered && !self.served.contains_key(&found.place) {
                continue;
            }
            let spec = match found.spec {
                Ok(spec) => spec,
                Err(why) => {
                    self.say_once(&found.place, why);
                    continue;
                }
            };
            seen.insert(found.place.clone());
            match self.served.get(&found.place) {
                Some(served) if served.spec == spec => {}
                Some(served) if served.executor.is_busy() => {
                    self.say_once(
                        &found.place,
                        "it has changed; that is taken over when nothing runs there".into(),
                    );
                }
                Some(_) => {
                    tracing::info!(place = found.place, node = %spec.name, "the node has changed");
                    self.end(&found.place).await;
                    self.serve(&found.place, spec).await;
                }
                None if self.served.len() >= NODES_MAX => {
                    self.say_once(&found.place, format!("an agent serves at most {NODES_MAX} nodes"));
                }
                None => self.serve(&found.place, spec).await,
            }
        }
        let gone: Vec<String> = self.served.keys().filter(|name| !seen.contains(*name)).cloned().collect();
        for name in gone {
            let busy = self.served.get(&name).is_some_and(|served| served.executor.is_busy());
            if !busy {
                tracing::info!(place = name, "{} has this node no more", S::NAME);
                self.end(&name).await;
                // Or a restarted agent would serve it again until it has asked.
                let _ = std::fs::remove_file(self.paths.root.join(&name).join("spec"));
            }
        }
    }

    fn say_once(&mut self, name: &str, why: String) {
        if self.said.get(name) != Some(&why) {
            tracing::warn!(place = name, why, "a node of {}", S::NAME);
            self.said.insert(name.to_owned(), why);
        }
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
    async fn serve(&mut self, place: &str, spec: NodeSpec) {
        match self.open(place, &spec).await {
            Ok((executor, work)) => {
                let task = self.tasks.spawn(work);
                tracing::info!(node = %spec.name, place, "serving a node of {}", S::NAME);
                self.said.remove(place);
                let served = ServedNode { spec, executor, task };
                self.served.insert(place.to_owned(), served);
            }
            Err(error) => {
                self.say_once(place, format!("it is not served: {}", crate::chain::chain(error.as_ref())));
            }
        }
    }

    async fn open(
        &self,
        place: &str,
        spec: &NodeSpec,
    ) -> Result<
        (RemoteExecutor<S>, impl Future<Output = ()> + Send + use<S>),
        Box<dyn std::error::Error + Send + Sync>,
    > {
        let directory = self.paths.root.join(place);
        let state = Arc::new(StateDir::open_for_remote(&directory, &self.paths.boot_id_path)?);
        write_record(&directory.join("spec"), spec)?;
        let fences = fencing::Fences::open(&state.jobs(), limits::FENCED_JOBS_MAX)?;
        // The highest epoch that anything belongs to, before there is a lease to be asked.
        let floor = Directories { shares: state.shares(), tasks: state.tasks() };
        let floor = floor.epoch_floor::<S::Stage>()?;
        let lease = Arc::new(Mutex::new(Lease::open(&state.lease(), state.holder().0, floor)?));
        let (executor, told) =
            RemoteExecutor::for_node(&self.backend, place, spec, &state, Arc::clone(&lease));
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
        let images = None;
        let sessions = Sessions { endpoints, state, spec, lease, events, speaking, images, monitor, kept };
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
