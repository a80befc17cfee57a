//! Another scheduler below Muster: what it has to answer, and what all of its nodes share.
//!
//! **Invariant:** a share is known by its name to at most one task; a task ends with its cluster and not with its caller.

use super::files::{OwnStore, SecretsAndFiles, ShareFiles};
use super::lease::RunnerLease;
use super::link::{Frame, ToRunner};
use super::record::{Directories, Record, ShareKey};
use super::streams::Streams;
use crate::executor::{ExecutorEvent, Foreign, KeptArtifacts, StopRequest};
use crate::node_loop::Event;
use crate::rules::Placement;
use crate::settings::LogLimits;
use muster_metrics::AgentMetrics;
use muster_transport::SharedIdentity;
use muster_types::NodeSpec;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// What a share's task is told.
#[derive(Debug)]
pub(crate) enum ToShare<C> {
    /// Stop a worker.
    Stop { rank: u32, request: StopRequest },
    /// A worker's end is acknowledged by the leader.
    Acknowledged,
    /// A call to the other scheduler has ended.
    Call(C),
    /// A runner has opened a connection.
    Hello { connection: u64, runner: String, job: String, out: mpsc::Sender<ToRunner> },
    /// What it sent on that connection.
    Frame(u64, Frame),
    /// Has its runner told this, where one is connected.
    Tell(ToRunner),
    /// What became of a note of its runner's.
    Noted { id: u64, refused: Option<String> },
    /// The connection is over.
    Gone(u64),
}

/// A share that something may connect to or ask for.
#[derive(Debug)]
pub(crate) struct Registered<S: Scheduler> {
    pub(crate) identity: SharedIdentity,
    pub(crate) inbox: mpsc::Sender<ToShare<S::Call>>,
    pub(crate) promise: Arc<RunnerLease>,
    /// Of which placement, and on which node, as the other scheduler names it.
    pub(crate) key: ShareKey,
    pub(crate) place: String,
    pub(crate) holds: S::Holds,
    /// What its runner may have of the agent's store.
    pub(crate) files: Arc<ShareFiles>,
}

impl<S: Scheduler> Clone for Registered<S> {
    fn clone(&self) -> Registered<S> {
        Registered {
            identity: self.identity.clone(),
            inbox: self.inbox.clone(),
            promise: Arc::clone(&self.promise),
            key: self.key,
            place: self.place.clone(),
            holds: self.holds.clone(),
            files: Arc::clone(&self.files),
        }
    }
}

/// What one share is made of.
pub struct Allocation<S: Scheduler> {
    pub(crate) backend: Arc<S>,
    pub(crate) name: String,
    pub(crate) record: Record<S::Stage>,
    pub(crate) directories: Directories,
    pub(crate) holds: S::Holds,
    pub(crate) promise: Arc<RunnerLease>,
    pub(crate) inbox: mpsc::Receiver<ToShare<S::Call>>,
    pub(crate) own_inbox: mpsc::WeakSender<ToShare<S::Call>>,
    pub(crate) events: mpsc::Sender<ExecutorEvent>,
    /// Where notes of workers go; empty where nobody takes them.
    pub(crate) notes: Arc<OnceLock<mpsc::Sender<Event>>>,
    /// What its runner may have of the agent's store, and has sent.
    pub(crate) files: Arc<ShareFiles>,
    /// Where it is kept what became of the files of its workers.
    pub(crate) kept: KeptArtifacts,
    /// What the node is called by the other scheduler.
    pub(crate) place: String,
    /// What the node is called in Muster, and the type of its accelerators.
    pub(crate) node: String,
    pub(crate) accelerator: String,
}

/// A node of the other scheduler as it was last seen.
#[derive(Debug)]
pub struct Candidate {
    /// As the other scheduler names it.
    pub(crate) place: String,
    /// Whether it is to be served where it is not served yet.
    pub(crate) is_offered: bool,
    /// What it is in Muster, or why it cannot be any.
    pub(crate) spec: Result<NodeSpec, String>,
}

/// Another scheduler.
pub trait Scheduler: Debug + Send + Sync + Sized + 'static {
    /// What people call it.
    const NAME: &'static str;
    /// How far a share's job is known there.
    type Stage: Clone + Debug + PartialEq + Eq + Serialize + DeserializeOwned + Send + Sync;
    /// What its calls answer, told to a share.
    type Call: Debug + Send;
    /// What a share holds of its node.
    type Holds: Clone + Debug + Send + Sync;
    /// What one look at it shows.
    type View: Debug + Send + Sync;

    /// What all of its nodes share.
    fn common(&self) -> &Common<Self>;

    /// The name of a placement's share on one of its nodes: its job there has that name too, and its runner states it.
    fn share_name(&self, placement: &Placement, place: &str) -> String;

    /// How far a share is that nothing was asked for.
    fn wanted() -> Self::Stage;

    /// What a placement asks of its node.
    fn holds(placement: &Placement, place: &str) -> Self::Holds;

    /// Runs a share until nothing of it is left.
    fn run(share: Allocation<Self>) -> impl Future<Output = ()> + Send;

    /// Polls or watches the other scheduler. Never ends.
    fn poll(self: Arc<Self>) -> impl Future<Output = ()> + Send;

    /// What the looks show.
    fn views(&self) -> watch::Receiver<Arc<Self::View>>;

    /// The nodes that one of them shows; none while nothing is known.
    fn candidates(&self, view: &Self::View) -> Option<Vec<Candidate>>;

    /// Keeps what others hold of a node up to date. Never ends.
    fn follow(
        self: Arc<Self>,
        place: String,
        said: watch::Sender<Foreign>,
    ) -> impl Future<Output = ()> + Send;
}

/// What all nodes of one other scheduler share.
#[derive(Debug)]
pub struct Common<S: Scheduler> {
    /// Tells what this agent has made from what another has, under the same user.
    pub(crate) scope: String,
    pub(crate) logs: LogLimits,
    pub(crate) pass_environment: Vec<String>,
    /// Where output that arrives is counted.
    pub(crate) metrics: AgentMetrics,
    /// Where secrets of tenants are, each in a directory of its tenant's; none where there are none.
    pub(crate) secrets_dir: Option<PathBuf>,
    /// Where files of jobs are; none where there is no such store.
    pub(crate) files: Option<Arc<OwnStore>>,
    /// Connections that runners were asked for.
    pub(crate) streams: Streams,
    shares: Mutex<BTreeMap<String, Registered<S>>>,
    /// Every task but the poll: they end with the cluster, not with their caller.
    work: Mutex<JoinSet<()>>,
}

impl<S: Scheduler> Common<S> {
    pub(crate) fn new(
        scope: String,
        logs: LogLimits,
        pass_environment: Vec<String>,
        metrics: AgentMetrics,
        given: SecretsAndFiles,
    ) -> Common<S> {
        let (shares, work) = (Mutex::new(BTreeMap::new()), Mutex::new(JoinSet::new()));
        let files = OwnStore::of(&given.files).map(Arc::new);
        let (secrets_dir, streams) = (given.secrets_dir, Streams::default());
        Common { scope, logs, pass_environment, metrics, secrets_dir, files, streams, shares, work }
    }

    /// Runs something until it is done or the cluster is dropped.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.work.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }

    /// Ends everything at once: what is on disk is what the next agent goes on from.
    pub(crate) fn abort(&self) {
        self.work.lock().abort_all();
    }

    pub(crate) fn register(&self, name: String, share: Registered<S>) {
        self.shares.lock().insert(name, share);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.shares.lock().remove(name);
    }

    pub(crate) fn share(&self, name: &str) -> Option<Registered<S>> {
        self.shares.lock().get(name).cloned()
    }

    /// The share of a placement on a node.
    pub(crate) fn share_of(&self, key: ShareKey, place: &str) -> Option<Registered<S>> {
        self.shares.lock().values().find(|share| share.key == key && share.place == place).cloned()
    }

    pub(crate) fn is_known(&self, name: &str) -> bool {
        self.shares.lock().contains_key(name)
    }

    /// What the shares on a node hold, by their names.
    pub(crate) fn held_on(&self, place: &str) -> Vec<(String, S::Holds)> {
        let shares = self.shares.lock();
        let here = shares.iter().filter(|(_, share)| share.place == place);
        here.map(|(name, share)| (name.clone(), share.holds.clone())).collect()
    }
}
