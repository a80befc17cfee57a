//! What all nodes of one Slurm cluster share: the commands, the poll, and the shares by name.
//!
//! One poll asks for everything: our batch jobs, the nodes, the partitions. Nothing else looks anything
//! up, so a thousand jobs cost Slurm as much as one.
//!
//! **Invariant:** a view is published only whole; a look-up counts as an answer to a call only when its
//! poll began after that call had ended.

use super::command::{CallError, Cli};
use super::config::Settings;
use super::parse::{self, JOB_FIELDS, Partition, SlurmJob, SlurmNode};
use super::stage::Stage;
use crate::remote::scheduler::Common;
use muster_types::{Accelerators, Name, NodeDraft, NodeSpec, limits};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Between two polls, however many ask for one.
const POLL_GAP: Duration = Duration::from_millis(200);

/// What one poll saw.
#[derive(Clone, Debug)]
pub struct View {
    /// Rises by one; 0 before the first.
    pub(super) number: u64,
    /// When it began to ask.
    pub(super) began: Instant,
    /// Our batch jobs by name.
    pub(super) jobs: BTreeMap<String, Vec<SlurmJob>>,
    pub(super) nodes: Vec<SlurmNode>,
    pub(super) partitions: Vec<Partition>,
}

/// A call to Slurm that has ended.
#[derive(Debug)]
pub enum Call {
    /// `sbatch`, begun at this moment.
    Submitted { began: Instant, result: Result<u32, CallError> },
    /// `scancel`.
    Cancelled(Result<(), CallError>),
}

/// What a share holds of its node in Slurm while its batch job runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The node in Slurm.
    pub(super) node: String,
    pub(super) cpus: u64,
    pub(super) memory_mib: u64,
    pub(super) devices: u16,
}

/// One Slurm cluster.
#[derive(Debug)]
pub struct Backend {
    pub(super) settings: Settings,
    pub(super) cli: Cli,
    /// What its nodes share.
    pub(super) common: Common<Backend>,
    view: watch::Sender<Arc<View>>,
    poke: Notify,
}

impl Backend {
    pub(super) fn new(settings: Settings, common: Common<Backend>) -> Backend {
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
            common,
            view: watch::Sender::new(Arc::new(none)),
            poke: Notify::new(),
        }
    }

    /// The comment by which a batch job is known to be ours, whatever its id.
    pub(super) fn comment(&self, share: &str) -> String {
        format!("muster:{}/{share}", self.common.scope)
    }

    /// What our running batch jobs hold of a node.
    pub(super) fn held_on(&self, node: &str, view: &View) -> Held {
        let mut sum = Held { node: node.to_owned(), cpus: 0, memory_mib: 0, devices: 0 };
        for (name, holds) in self.common.held_on(node) {
            let runs = view.jobs.get(&name).is_some_and(|jobs| jobs.iter().any(SlurmJob::holds_node));
            if runs {
                sum.cpus += holds.cpus;
                sum.memory_mib += holds.memory_mib;
                sum.devices += holds.devices;
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
    pub(super) async fn poll_for_ever(self: Arc<Self>) {
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
        let unknown = view.jobs.iter().filter(|(name, _)| !self.common.is_known(name));
        let running = unknown.flat_map(|(_, jobs)| jobs.iter().filter(|job| !job.is_over()));
        let strays: Vec<(String, u32)> = running.map(|job| (job.name.clone(), job.id)).collect();
        for (name, id) in strays.into_iter().take(16) {
            tracing::warn!(slurm_job = id, "a batch job of ours that nobody waits for is cancelled");
            let backend = Arc::clone(self);
            self.common.spawn(async move {
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

    /// What a node of Slurm is in Muster.
    pub(super) fn describe(&self, found: &SlurmNode) -> Result<NodeSpec, String> {
        let settings = &self.settings;
        let text = format!("{}.{}", settings.name, found.name.to_ascii_lowercase());
        let rule = || format!("{text} is no name: it must be {}", muster_types::name::NAME_RULE);
        let name = Name::new(&text).ok_or_else(rule)?;
        if found.gpus.iter().filter(|gres| gres.count > 0).count() > 1 {
            tracing::debug!(%name, "has GPUs of several types; those there are most of are used");
        }
        let accelerators = match self.offered(found) {
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
            scratch_bytes: found.tmp_disk_mib.saturating_mul(1 << 20).min(limits::SCRATCH_BYTES_MAX),
        };
        draft.check().map_err(|found| match found.into_iter().next() {
            Some(first) => format!("{}: {}", first.field, first.description),
            None => "breaks a rule".to_owned(),
        })
    }
}
