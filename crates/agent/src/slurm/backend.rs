//! What all nodes of one Slurm cluster share: the commands, the poll, and the shares by name.
//!
//! One poll asks for everything: our batch jobs, the nodes, the partitions. Nothing else looks anything
//! up, so a thousand jobs cost Slurm as much as one.
//!
//! **Invariant:** a view is published only whole; a look-up counts as an answer to a call only when its
//! poll began after that call had ended.

use super::command::{CallError, Cli};
use super::config::Settings;
use super::link::{LeaseRemainder, ToRunner};
use super::parse::{self, JOB_FIELDS, Partition, SlurmJob, SlurmNode};
use super::record::Stage;
use crate::clock::BootTime;
use crate::disk::lease::Lease;
use crate::executor::StopRequest;
use crate::rules::WorkerKey;
use crate::settings::LogLimits;
use muster_metrics::AgentMetrics;
use muster_transport::SharedIdentity;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Between two polls, however many ask for one.
const POLL_GAP: Duration = Duration::from_millis(200);

/// What one poll saw.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// Rises by one; 0 before the first.
    pub(super) number: u64,
    /// When it began to ask.
    pub(super) began: Instant,
    /// Our batch jobs by name.
    pub(super) jobs: BTreeMap<String, Vec<SlurmJob>>,
    pub(super) nodes: Vec<SlurmNode>,
    pub(super) partitions: Vec<Partition>,
}

/// What a share's task is told.
#[derive(Debug)]
pub(super) enum ToShare {
    /// Stop a worker.
    Stop { rank: u32, request: StopRequest },
    /// A worker's end is acknowledged by the leader.
    Acknowledged,
    /// `sbatch` has ended, begun at this moment.
    Submitted { began: Instant, result: Result<u32, CallError> },
    /// `scancel` has ended.
    Cancelled(Result<(), CallError>),
    /// A runner has opened a connection.
    Hello { connection: u64, runner: String, slurm_job: String, out: mpsc::Sender<ToRunner> },
    /// What it sent on that connection.
    Frame(u64, super::link::Frame),
    /// What became of a note of its runner's.
    Noted { id: u64, refused: Option<String> },
    /// The connection is over.
    Gone(u64),
}

/// The lease as a share's runner may count on it.
#[derive(Debug)]
pub(super) struct RunnerLease {
    lease: Arc<Mutex<Lease>>,
    epoch: u64,
    state: Mutex<RunnerLeaseState>,
}

#[derive(Debug)]
struct RunnerLeaseState {
    /// Set once: nothing is promised any more.
    over: bool,
    /// Up to when anything launched may run, the grace of the lease's end included; none when this agent
    /// has promised nothing yet.
    until: Option<BootTime>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole values are replaced under these locks, never edited in steps.
    mutex.lock()
}

impl RunnerLease {
    /// For workers of one epoch of a lease.
    pub(super) fn new(lease: Arc<Mutex<Lease>>, epoch: u64) -> RunnerLease {
        RunnerLease { lease, epoch, state: Mutex::new(RunnerLeaseState { over: false, until: None }) }
    }

    /// What is left now; none when the share's lease is over.
    pub(super) fn left(&self) -> Option<LeaseRemainder> {
        let mut state = locked(&self.state);
        let now = BootTime::now();
        let slot =
            locked(&self.lease).standing(now).filter(|slot| slot.epoch == self.epoch && !state.over)?;
        let end = slot.deadline.after(Duration::from_millis(slot.grace_ms));
        state.until = Some(state.until.map_or(end, |before| before.max(end)));
        let nanos = u64::try_from(now.until(slot.deadline).as_nanos()).unwrap_or(u64::MAX);
        Some(LeaseRemainder { nanos, grace_ms: slot.grace_ms })
    }

    /// Whether the share's lease is over: it never comes back.
    pub(super) fn has_lapsed(&self) -> bool {
        locked(&self.lease).standing(BootTime::now()).is_none_or(|slot| slot.epoch != self.epoch)
    }

    /// Promises nothing more.
    pub(super) fn end(&self) {
        locked(&self.state).over = true;
    }

    /// How long until nothing that was launched under it can be running, if nothing more is promised.
    /// None when there is no telling yet.
    pub(super) fn rest(&self) -> Option<Duration> {
        let state = locked(&self.state);
        let now = BootTime::now();
        // What an earlier agent promised ended before what is promised now would.
        let until = state.until.or_else(|| {
            let slot = locked(&self.lease).standing(now)?;
            Some(slot.deadline.after(Duration::from_millis(slot.grace_ms)))
        })?;
        Some(now.until(until))
    }
}

/// A share that something may connect to or ask for.
#[derive(Clone, Debug)]
pub(super) struct Registered {
    pub(super) identity: SharedIdentity,
    pub(super) inbox: mpsc::Sender<ToShare>,
    pub(super) promise: Arc<RunnerLease>,
    pub(super) holds: Held,
}

/// What a share holds of its node in Slurm while its batch job runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// The node in Slurm.
    pub(super) node: String,
    pub(super) cpus: u64,
    pub(super) memory_mib: u64,
    pub(super) devices: u16,
}

/// One Slurm cluster.
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) settings: Settings,
    pub(super) cli: Cli,
    /// Tells our batch jobs from those of another agent under the same user.
    pub(super) scope: String,
    pub(super) logs: LogLimits,
    pub(super) pass_environment: Vec<String>,
    /// Where output that arrives is counted.
    pub(super) metrics: AgentMetrics,
    shares: Mutex<BTreeMap<String, Registered>>,
    view: watch::Sender<Arc<View>>,
    poke: Notify,
    /// Every task but the poll: they end with the cluster, not with their caller.
    work: Mutex<JoinSet<()>>,
}

impl Backend {
    pub(super) fn new(
        settings: Settings,
        scope: String,
        logs: LogLimits,
        pass_environment: Vec<String>,
        metrics: AgentMetrics,
    ) -> Backend {
        let none = View {
            number: 0,
            began: Instant::now(),
            jobs: BTreeMap::new(),
            nodes: Vec::new(),
            partitions: Vec::new(),
        };
        Backend {
            cli: Cli::new(&settings.written),
            settings,
            scope,
            logs,
            pass_environment,
            metrics,
            shares: Mutex::new(BTreeMap::new()),
            view: watch::Sender::new(Arc::new(none)),
            poke: Notify::new(),
            work: Mutex::new(JoinSet::new()),
        }
    }

    /// Runs something until it is done or the cluster is dropped.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = locked(&self.work);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }

    /// Ends everything at once: what is on disk is what the next agent goes on from.
    pub(super) fn abort(&self) {
        locked(&self.work).abort_all();
    }

    /// The name of a share: of its batch job too, and what its runner shows.
    pub(super) fn share_name(&self, key: WorkerKey, slurm_node: &str) -> String {
        format!("muster-{}-{}-{}-{slurm_node}", &self.scope[..8], key.job, key.token)
    }

    /// The comment by which a batch job is known to be ours, whatever its id.
    pub(super) fn comment(&self, share: &str) -> String {
        format!("muster:{}/{share}", self.scope)
    }

    pub(super) fn register(&self, name: String, share: Registered) {
        locked(&self.shares).insert(name, share);
    }

    pub(super) fn remove(&self, name: &str) {
        locked(&self.shares).remove(name);
    }

    /// Whether anything of this node is under way.
    pub(super) fn has_shares_on(&self, node: &str) -> bool {
        locked(&self.shares).values().any(|share| share.holds.node == node)
    }

    pub(super) fn share(&self, name: &str) -> Option<Registered> {
        locked(&self.shares).get(name).cloned()
    }

    /// What our running batch jobs hold of a node.
    pub(super) fn held_on(&self, node: &str, view: &View) -> Held {
        let mut sum = Held { node: node.to_owned(), cpus: 0, memory_mib: 0, devices: 0 };
        let shares = locked(&self.shares);
        for (name, share) in shares.iter().filter(|(_, share)| share.holds.node == node) {
            let runs = view.jobs.get(name).is_some_and(|jobs| jobs.iter().any(SlurmJob::holds_node));
            if runs {
                sum.cpus += share.holds.cpus;
                sum.memory_mib += share.holds.memory_mib;
                sum.devices += share.holds.devices;
            }
        }
        sum
    }

    pub(super) fn views(&self) -> watch::Receiver<Arc<View>> {
        self.view.subscribe()
    }

    /// Asks for a poll soon.
    pub(super) fn poke(&self) {
        self.poke.notify_one();
    }

    /// Polls for ever.
    pub(super) async fn poll(self: Arc<Self>) {
        let mut silent = false;
        loop {
            let began = Instant::now();
            match self.look(began).await {
                Ok(view) => {
                    if std::mem::replace(&mut silent, false) {
                        tracing::info!("Slurm answers again");
                    }
                    self.sweep(&view);
                    self.view.send_replace(Arc::new(view));
                }
                Err(error) => {
                    if !std::mem::replace(&mut silent, true) {
                        tracing::warn!(%error, "Slurm gives no answer; what runs goes on");
                    }
                }
            }
            tokio::time::sleep_until(began + POLL_GAP).await;
            tokio::select! {
                () = tokio::time::sleep_until(began + self.settings.poll_interval) => {}
                () = self.poke.notified() => {}
            }
        }
    }

    async fn look(&self, began: Instant) -> Result<View, CallError> {
        let (jobs, nodes, partitions) = tokio::try_join!(
            self.cli.call("squeue", &["--me", "-h", "-t", "all", "-O", JOB_FIELDS]),
            self.cli.call("scontrol", &["show", "node", "-d", "-o"]),
            self.cli.call("scontrol", &["show", "partition", "-o"]),
        )?;
        let mut by_name: BTreeMap<String, Vec<SlurmJob>> = BTreeMap::new();
        for job in parse::jobs(&jobs) {
            // A name that is ours with a comment that is not: an id given out a second time.
            if job.comment == self.comment(&job.name) {
                by_name.entry(job.name.clone()).or_default().push(job);
            }
        }
        let number = self.view.borrow().number + 1;
        let (nodes, partitions) = (parse::nodes(&nodes), parse::partitions(&partitions));
        Ok(View { number, began, jobs: by_name, nodes, partitions })
    }

    /// Cancels batch jobs of ours that no share stands behind: their runners would be turned away.
    fn sweep(self: &Arc<Self>, view: &View) {
        let strays: Vec<(String, u32)> = {
            let shares = locked(&self.shares);
            let unknown = view.jobs.iter().filter(|(name, _)| !shares.contains_key(*name));
            let running = unknown.flat_map(|(_, jobs)| jobs.iter().filter(|job| !job.is_over()));
            running.map(|job| (job.name.clone(), job.id)).collect()
        };
        for (name, id) in strays.into_iter().take(16) {
            tracing::warn!(slurm_job = id, "a batch job of ours that nobody waits for is cancelled");
            let backend = Arc::clone(self);
            self.spawn(async move {
                if let Err(error) = backend.cancel(&name, id).await {
                    tracing::warn!(slurm_job = id, %error, "it could not be cancelled; trying again");
                }
            });
        }
    }

    /// Cancels the batch job of a share; one that is unknown or over is none to cancel. Both the id and the name have to be its
    /// own: a controller that lost its state gives ids out a second time.
    ///
    /// # Errors
    /// When Slurm does not take it.
    pub(super) async fn cancel(&self, name: &str, id: u32) -> Result<(), CallError> {
        self.cli.call("scancel", &["--quiet", "--name", name, &id.to_string()]).await.map(drop)
    }

    /// The partition for a node: the first that was named, else the default, else any that is up.
    pub(super) fn partition_for<'a>(&self, view: &'a View, node: &SlurmNode) -> Option<&'a Partition> {
        let wanted = &self.settings.written.partitions;
        let here = |p: &&Partition| p.is_up && node.partitions.contains(&p.name);
        if wanted.is_empty() {
            let mut here: Vec<&Partition> = view.partitions.iter().filter(here).collect();
            here.sort_by_key(|p| !p.is_default);
            return here.into_iter().next();
        }
        wanted.iter().find_map(|name| view.partitions.iter().filter(here).find(|p| p.name == *name))
    }

    /// The arguments of `sbatch` for a share; `again` after an attempt whose outcome is not known.
    ///
    /// # Errors
    /// Says why there is no place to submit it to.
    pub(super) fn arguments(
        &self,
        share: &str,
        holds: &Held,
        stage: Stage,
        view: &View,
    ) -> Result<Vec<String>, String> {
        let written = &self.settings.written;
        let node = view.nodes.iter().find(|node| node.name == holds.node);
        let node = node.ok_or_else(|| format!("Slurm has no node {} any more", holds.node))?;
        let partition = self
            .partition_for(view, node)
            .ok_or_else(|| format!("no partition of node {} may be used and is up", node.name))?;
        let mut arguments: Vec<String> = [
            "--parsable",
            "--no-requeue",
            "--export=NIL",
            "--open-mode=append",
            "--signal=B:TERM@30",
            "--kill-on-invalid-dep=yes",
            "--nodes=1",
            "--ntasks=1",
            "--chdir=/",
        ]
        .map(str::to_owned)
        .into();
        arguments.extend([
            format!("--job-name={share}"),
            format!("--comment={}", self.comment(share)),
            format!("--output={}", written.runner_output),
            format!("--time={}", partition.time_max),
            format!("--cpus-per-task={}", holds.cpus),
            format!("--mem={}M", holds.memory_mib),
            format!("--nodelist={}", holds.node),
            format!("--partition={}", partition.name),
        ]);
        if holds.devices > 0 {
            let gres =
                self.offered(node).ok_or_else(|| format!("node {} has no GPUs any more", node.name))?;
            let kind = if gres.kind.is_empty() { String::new() } else { format!("{}:", gres.kind) };
            arguments.push(format!("--gres=gpu:{kind}{}", holds.devices));
        }
        arguments.extend(written.account.iter().map(|account| format!("--account={account}")));
        arguments.extend(written.qos.iter().map(|qos| format!("--qos={qos}")));
        if stage != (Stage::Wanted { tried: false }) {
            // The earlier one, should it exist, goes first; only one of them is given anything to run.
            arguments.push("--dependency=singleton".to_owned());
        }
        Ok(arguments)
    }

    /// The GPUs of a node that Muster uses: of several types the one there is most of.
    pub(super) fn offered<'a>(&self, node: &'a SlurmNode) -> Option<&'a parse::Gres> {
        node.gpus.iter().filter(|gres| gres.count > 0).max_by_key(|gres| gres.count)
    }
}
