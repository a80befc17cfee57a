//! What a job asks of its host: how it is started, what becomes of it when it fails, how it saves its work and
//! how it is told that it has to stop. Separate from the [`JobSpec`], whose layout in the log is older.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;
use serde::{Deserialize, Serialize};

use crate::array::ArraySpec;
use crate::artifacts::ArtifactRules;
use crate::blob::BlobDigest;
use crate::host_rules::{CpuBinding, HostRules};
use crate::job::{JobSpec, NamedDependency};
use crate::job_notification::JobNotification;
use crate::limits;
use crate::metadata::JobMetadata;
use crate::name::Name;
use crate::reason::Violation;
use crate::trace::TraceParent;

/// The first wait before another attempt, where a job does not say.
pub const BACKOFF_MS_DEFAULT: u64 = 1_000;
/// The longest wait before another attempt, where a job does not say: five minutes.
pub const BACKOFF_MAX_MS_DEFAULT: u64 = 300_000;
/// How long the node of a failure is avoided, where a job does not say: half an hour.
pub const AVOID_MS_DEFAULT: u64 = 1_800_000;

/// Texts of a closed set of values, as users write them.
macro_rules! texts {
    ($name:ident: $($variant:ident = $text:literal),* $(,)?) => {
        impl $name {
            /// Every value, in order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// As users write it.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// The value a user named.
            #[must_use]
            pub fn parse(text: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|known| known.as_str() == text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// Why an attempt of a gang came to its end before its work was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FailureClass {
    /// A worker ended with another code than 0, or by a signal.
    Application,
    /// A worker used more memory than it had asked for.
    OutOfMemory,
    /// A worker could not be started.
    LaunchFailed,
    /// A device or the host failed under it.
    NodeFault,
    /// The gang's nodes did not pass the check before the start.
    Preflight,
    /// It was preempted by a job that goes before it.
    Preempted,
    /// Its node was taken out of service.
    Evicted,
    /// The session of one of its nodes ran out, or a node lost its trace.
    Lost,
    /// The cluster below, another scheduler, lost it.
    BackendLost,
}

texts!(FailureClass:
    Application = "application",
    OutOfMemory = "out_of_memory",
    LaunchFailed = "launch_failed",
    NodeFault = "node_fault",
    Preflight = "preflight",
    Preempted = "preempted",
    Evicted = "evicted",
    Lost = "lost",
    BackendLost = "backend_lost",
);

impl FailureClass {
    /// Whether the job itself is to blame, so that repeating it may well fail again.
    #[must_use]
    pub fn is_of_application(self) -> bool {
        matches!(self, FailureClass::Application | FailureClass::OutOfMemory | FailureClass::LaunchFailed)
    }

    /// Whether it speaks against the node it happened on.
    #[must_use]
    pub fn is_of_node(self) -> bool {
        matches!(self, FailureClass::NodeFault | FailureClass::Preflight | FailureClass::Lost)
    }

    /// Whether somebody decided it for reasons that lie outside the job and its place: it says nothing of how the next
    /// attempt will go.
    #[must_use]
    pub fn is_planned(self) -> bool {
        matches!(self, FailureClass::Preempted | FailureClass::Evicted)
    }

    /// Whether another attempt is better made on other nodes: what cannot be started in one place may be started in
    /// another.
    #[must_use]
    pub fn avoids_node(self) -> bool {
        self.is_of_node() || self == FailureClass::LaunchFailed
    }
}

/// What the command of a worker is wrapped in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LaunchForm {
    /// Nothing: the command finds the variables of every framework in its environment.
    #[default]
    Environment,
    /// PyTorch's launcher in every worker, with the ranks of the placement.
    Torchrun,
    /// A Ray cluster of the workers; the command is its driver, run once, next to the head.
    Ray,
    /// `mpirun` in rank 0, its daemons in the workers; the command is the program.
    Mpi,
    /// DeepSpeed's launcher in every worker.
    DeepSpeed,
    /// PyTorch's launcher with its own rendezvous, which goes on with fewer workers.
    TorchrunElastic,
}

texts!(LaunchForm:
    Environment = "environment",
    Torchrun = "torchrun",
    Ray = "ray",
    Mpi = "mpi",
    DeepSpeed = "deepspeed",
    TorchrunElastic = "torchrun_elastic",
);

/// Whether the nodes of a gang are checked before its workers start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Preflight {
    /// When the gang is on [`Preflight::NODES_MIN`] nodes or more.
    #[default]
    Default,
    /// Never.
    Off,
    /// Whenever it is on more than one node.
    On,
}

texts!(Preflight: Default = "default", Off = "off", On = "on");

impl Preflight {
    /// Nodes from which on a gang is checked that does not say.
    pub const NODES_MIN: usize = 8;

    /// Whether a gang on this many nodes is checked.
    #[must_use]
    pub fn applies_to(self, nodes: usize) -> bool {
        match self {
            Preflight::Default => nodes >= Preflight::NODES_MIN,
            Preflight::Off => false,
            Preflight::On => nodes > 1,
        }
    }
}

/// What becomes of a job when an attempt fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryRules {
    /// New attempts after failures of a class, at most [`limits::FAILURE_RETRIES_MAX`]. Of the classes that are not
    /// named, those that are the application's fault share `failure_retries_max` of the job; the others are always
    /// tried again.
    pub limits: BTreeMap<FailureClass, u32>,
    /// The wait before the first repetition; twice as long with every failure in a row. None for
    /// [`BACKOFF_MS_DEFAULT`], zero for no wait.
    pub backoff_ms: Option<u64>,
    /// The longest wait; none for [`BACKOFF_MAX_MS_DEFAULT`].
    pub backoff_max_ms: Option<u64>,
    /// How long the job keeps away from a node that failed under it, unless it fits nowhere else. None for
    /// [`AVOID_MS_DEFAULT`], zero for not at all.
    pub avoid_ms: Option<u64>,
}

impl RetryRules {
    /// How long to wait before another attempt behind `streak` failures in a row, the last of this class. What the
    /// place is to blame for is repeated at once the first time.
    #[must_use]
    pub fn wait_ms(&self, class: FailureClass, streak: u32) -> u64 {
        if class.is_planned() {
            return 0;
        }
        let doublings = if class.is_of_application() { streak.checked_sub(1) } else { streak.checked_sub(2) };
        let Some(doublings) = doublings else { return 0 };
        let first = self.backoff_ms.unwrap_or(BACKOFF_MS_DEFAULT);
        let most = self.backoff_max_ms.unwrap_or(BACKOFF_MAX_MS_DEFAULT);
        // Beyond 2^20 every wait is the longest.
        first.saturating_mul(1 << doublings.min(20)).min(most)
    }

    /// How long the node of a failure is avoided.
    #[must_use]
    pub fn avoid_ms(&self) -> u64 {
        self.avoid_ms.unwrap_or(AVOID_MS_DEFAULT)
    }

    fn check(&self, found: &mut Vec<Violation>) {
        for (class, retries) in &self.limits {
            if *retries > limits::FAILURE_RETRIES_MAX {
                let max = limits::FAILURE_RETRIES_MAX.into();
                found.push(Violation::limit(&format!("retry.limits.{class}"), (*retries).into(), 0, max));
            }
        }
        let times = [
            ("retry.backoff", self.backoff_ms, limits::BACKOFF_MS_MAX),
            ("retry.backoff_max", self.backoff_max_ms, limits::BACKOFF_MS_MAX),
            ("retry.avoid", self.avoid_ms, limits::AVOID_MS_MAX),
        ];
        check_times(&times, 0, found);
    }
}

/// How a job saves its work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRules {
    /// The data set of policy that its checkpoints are in: the job runs only where policy has a copy of it. None for a
    /// directory that every place can read.
    pub place: Option<Name>,
    /// How long one step takes.
    pub step_ms: Option<u64>,
    /// How long the work stands still while it is saved.
    pub save_ms: Option<u64>,
    /// How long it works from one checkpoint to the next.
    pub interval_ms: Option<u64>,
}

impl CheckpointRules {
    fn check(&self, found: &mut Vec<Violation>) {
        let max = limits::CHECKPOINT_MS_MAX;
        let times = [
            ("checkpoint.step", self.step_ms, max),
            ("checkpoint.save", self.save_ms, max),
            ("checkpoint.interval", self.interval_ms, max),
        ];
        check_times(&times, 1, found);
    }
}

/// How a worker is told, in addition to SIGTERM and a file, that it has to save its work and stop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeRules {
    /// A port of the worker on the loopback address that takes a POST; none for no such call.
    pub http_port: Option<u16>,
    /// The path of that call; empty for `/`.
    pub http_path: String,
}

impl NoticeRules {
    fn check(&self, found: &mut Vec<Violation>) {
        if self.http_port == Some(0) {
            found.push(Violation::limit("notice.http_port", 0, 1, u16::MAX.into()));
        }
        let path = &self.http_path;
        let form = path.is_empty() || path.starts_with('/');
        if !form || path.len() > limits::NOTICE_PATH_BYTES_MAX || !path.bytes().all(|b| b.is_ascii_graphic())
        {
            let max = limits::NOTICE_PATH_BYTES_MAX;
            let text = format!("must begin with '/' and have at most {max} visible ASCII characters");
            found.push(Violation::new("notice.http_path", text));
        }
        if !path.is_empty() && self.http_port.is_none() {
            found.push(Violation::new("notice.http_port", "must be given where a path is"));
        }
    }
}

/// What the kernel bounds of each process of a job's workers (`setrlimit`(2)), both as the soft and as the hard limit. What a job does
/// not say is as the configuration of the host has it. A host starts no worker that asks for more than its configuration lets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ulimits {
    /// Open files of one process.
    pub open_files: Option<u64>,
    /// Bytes of one core file; 0 for none.
    pub core_bytes: Option<u64>,
    /// Bytes that cannot be swapped out.
    pub locked_bytes: Option<u64>,
    /// Bytes of the stack of its first thread, and of others unless their makers say.
    pub stack_bytes: Option<u64>,
}

impl Ulimits {
    /// Whether they say nothing.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Ulimits::default()
    }

    /// Every rule that they break, by fields of the contract.
    pub fn check(&self, found: &mut Vec<Violation>) {
        let max = limits::ULIMIT_BYTES_MAX;
        let (fewest, most) = (limits::ULIMIT_OPEN_FILES_MIN, limits::ULIMIT_OPEN_FILES_MAX);
        if let Some(files) = self.open_files.filter(|files| !(fewest..=most).contains(files)) {
            found.push(Violation::limit("ulimits.open_files", files, fewest, most));
        }
        let sizes = [
            ("ulimits.core_bytes", self.core_bytes, 0),
            ("ulimits.locked_bytes", self.locked_bytes, 0),
            ("ulimits.stack_bytes", self.stack_bytes, limits::ULIMIT_STACK_BYTES_MIN),
        ];
        for (field, bytes, min) in sizes {
            if let Some(bytes) = bytes.filter(|bytes| !(min..=max).contains(bytes)) {
                found.push(Violation::size(field, bytes, min, max));
            }
        }
    }
}

/// What a job asks of its host. The default says nothing, and nothing is logged for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobContract {
    /// What its command is wrapped in.
    pub launch: LaunchForm,
    /// What becomes of it when an attempt fails.
    pub retry: RetryRules,
    /// How it saves its work.
    pub checkpoint: CheckpointRules,
    /// How it is told to stop.
    pub notice: NoticeRules,
    /// For how many more workers capacity is held next to the gang, to replace ranks whose node fails; at
    /// most [`limits::SPARES_MAX`].
    pub spares: u32,
    /// Whether its nodes are checked before it starts.
    pub preflight: Preflight,
    /// The list of the files that each worker finds in its own directory, where it then starts; none for no files.
    pub workdir: Option<BlobDigest>,
    /// Files of its workers that it wants back; none for no files.
    pub artifacts: Option<ArtifactRules>,
    /// What the kernel bounds of each of its processes.
    pub ulimits: Ulimits,
    /// How its workers are run on their hosts.
    pub host: HostRules,
    /// The span that it was submitted in, which its workers go on from; none for no trace. It decides nothing.
    pub trace_parent: Option<TraceParent>,
    /// Whether each worker has a terminal, which people attach to; otherwise it reads nothing.
    pub terminal: bool,
    /// Receivers of the policy that are told of what happens to it, in addition to those that are told of all jobs of its tenant; at
    /// most [`limits::JOB_NOTIFICATIONS_MAX`].
    pub notify: Vec<JobNotification>,
}

impl JobContract {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_default(&self) -> bool {
        // Part by part: it is asked several times for every job that is submitted, and nearly always it is so.
        let JobContract {
            launch,
            retry,
            checkpoint,
            notice,
            spares,
            preflight,
            workdir,
            artifacts,
            ulimits,
            host,
            trace_parent,
            terminal,
            notify,
        } = self;
        *spares == 0
            && workdir.is_none()
            && artifacts.is_none()
            && trace_parent.is_none()
            && !terminal
            && notify.is_empty()
            && *launch == LaunchForm::default()
            && *retry == RetryRules::default()
            && *checkpoint == CheckpointRules::default()
            && *notice == NoticeRules::default()
            && *preflight == Preflight::default()
            && ulimits.is_default()
            && *host == HostRules::default()
    }

    /// The same without the trace it is a part of: what was asked for, however often it is asked.
    #[must_use]
    pub fn without_trace(&self) -> Cow<'_, JobContract> {
        match self.trace_parent {
            None => Cow::Borrowed(self),
            Some(_) => Cow::Owned(JobContract { trace_parent: None, ..self.clone() }),
        }
    }

    /// Every rule that it breaks together with its job, by fields of the contract.
    #[must_use]
    pub fn violations(&self, spec: &JobSpec) -> Vec<Violation> {
        let mut found = Vec::new();
        self.retry.check(&mut found);
        self.checkpoint.check(&mut found);
        self.notice.check(&mut found);
        self.ulimits.check(&mut found);
        self.host.check(&mut found);
        // Each would have a whole processor for itself, and be charged for a part of one.
        let is_part = |cpu_milli: u64| !cpu_milli.is_multiple_of(1_000);
        if self.host.binding == CpuBinding::Cores
            && spec.groups.iter().any(|group| is_part(group.request.cpu_milli))
        {
            let text = "may be `cores` only where each worker asks for whole CPUs, because it has as many processors for itself; ask for whole ones, or for binding `numa`";
            found.push(Violation::new("host.binding", text));
        }
        let has_image = spec.needs_container_runtime();
        if has_image && self.host.shared_memory_bytes > 0 {
            let text = "must be given in the container where there is one: `container.shared_memory_bytes`";
            found.push(Violation::new("host.shared_memory_bytes", text));
        }
        // A worker with a host to itself has all of its memory.
        let promised = spec.groups.iter().filter(|group| !group.request.exclusive);
        let least = promised.map(|group| group.request.memory_bytes).min().unwrap_or(u64::MAX);
        if !has_image && self.host.shared_memory_bytes > least {
            let text = format!("must be at most the memory of each worker, {least} bytes: it counts as that");
            found.push(Violation::new("host.shared_memory_bytes", text));
        }
        JobNotification::check(&self.notify, &mut found);
        if self.spares > limits::SPARES_MAX {
            found.push(Violation::limit("spares", self.spares.into(), 0, limits::SPARES_MAX.into()));
        }
        if self.spares > 0 && (spec.groups.len() > 1 || spec.groups.iter().any(|g| g.slice.is_some())) {
            let text = "may be asked for only in a job of one group that forms no slice";
            found.push(Violation::new("spares", text));
        } else if (1..=limits::SPARES_MAX).contains(&self.spares) && spec.with_spares(self.spares).is_none() {
            let text = "its topology, or the most workers that a job may have, leave no place for more workers, in whole segments where it has segments; ask for fewer workers or no spares";
            found.push(Violation::new("spares", text));
        }
        if self.workdir.is_some() && spec.working_directory.is_some() {
            let text = "must not be given with a working directory: the workers start where its files are";
            found.push(Violation::new("workdir", text));
        }
        if let Some(artifacts) = &self.artifacts {
            artifacts.check(&mut found);
            if spec.worker_count() > limits::ARTIFACT_WORKERS_MAX {
                let text = format!(
                    "must not be given in a job of more than {} workers",
                    limits::ARTIFACT_WORKERS_MAX
                );
                found.push(Violation::new("artifacts", text));
            }
        }
        // They start through a program of the host, which an image does not have.
        if spec.needs_container_runtime() && matches!(self.launch, LaunchForm::Mpi | LaunchForm::Ray) {
            let text =
                "must be environment, torchrun, torchrun_elastic or deepspeed where workers have an image";
            found.push(Violation::new("launch", text));
        }
        found
    }

    /// From SIGTERM to SIGKILL: as long as the job says, and at least two steps and a save where it says how long those
    /// take.
    #[must_use]
    pub fn stop_grace_ms(&self, spec: &JobSpec) -> u64 {
        let steps = self.checkpoint.step_ms.unwrap_or(0).saturating_mul(2);
        let save = self.checkpoint.save_ms.map_or(0, |save| save.saturating_add(steps));
        spec.stop_grace_ms.max(save.min(limits::STOP_GRACE_MS_MAX))
    }
}

fn check_times(times: &[(&str, Option<u64>, u64)], min: u64, found: &mut Vec<Violation>) {
    for (field, value, max) in times {
        if let Some(value) = value.filter(|value| !(min..=*max).contains(value)) {
            found.push(Violation::span(field, value, min, *max));
        }
    }
}

/// A job with its contract: what is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The job.
    pub spec: JobSpec,
    /// What it asks of the agents that run it; checked at admission.
    pub contract: JobContract,
    /// Its labels, annotations and creator; none when it has none of them.
    pub metadata: Option<Arc<JobMetadata>>,
    /// The array of which this is the template; none for one job.
    pub array: Option<ArraySpec>,
    /// Other jobs and arrays of the same request that it waits for. They have no ids yet.
    pub named_dependencies: Vec<NamedDependency>,
    /// Whether it is held from the beginning.
    pub held: bool,
}

impl Submission {
    /// A job with its contract, without labels, annotations or a creator.
    #[must_use]
    pub fn new(spec: JobSpec, contract: JobContract) -> Submission {
        let named_dependencies = Vec::new();
        Submission { spec, contract, metadata: None, array: None, named_dependencies, held: false }
    }

    /// How many jobs it comes to.
    #[must_use]
    pub fn job_count(&self) -> u32 {
        self.array.as_ref().map_or(1, ArraySpec::size)
    }

    /// Says who submits these jobs, whatever they said of it themselves. Jobs that shared their metadata go on sharing
    /// it.
    pub fn set_creator(jobs: &mut [Submission], creator: &str) {
        type Shared = Option<Arc<JobMetadata>>;
        let mut last: Option<(Shared, Shared)> = None;
        for job in jobs {
            if let Some((_, made)) = last.as_ref().filter(|(before, _)| *before == job.metadata) {
                job.metadata.clone_from(made);
                continue;
            }
            let before = job.metadata.take();
            let mut metadata = before.as_deref().cloned().unwrap_or_default();
            metadata.creator = String::from(creator);
            job.metadata = (!metadata.is_default()).then(|| Arc::new(metadata));
            last = Some((before, job.metadata.clone()));
        }
    }

    /// Has jobs that name no span be a part of this one.
    pub fn set_trace_parent(jobs: &mut [Submission], parent: TraceParent) {
        for job in jobs {
            job.contract.trace_parent = job.contract.trace_parent.or(Some(parent));
        }
    }

    /// Submissions of jobs with the default contract.
    #[must_use]
    pub fn plain(specs: impl IntoIterator<Item = JobSpec>) -> Arc<[Submission]> {
        specs.into_iter().map(Submission::from).collect()
    }
}

impl From<JobSpec> for Submission {
    fn from(spec: JobSpec) -> Submission {
        Submission::new(spec, JobContract::default())
    }
}

impl Deref for Submission {
    type Target = JobSpec;

    fn deref(&self) -> &JobSpec {
        &self.spec
    }
}
