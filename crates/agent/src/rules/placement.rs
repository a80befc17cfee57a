//! This node's share of one placement, as values that were checked.

use super::worker::WorkerKey;
use muster_types::job::ArrayMember;
use muster_types::tpu::SliceShape;
use muster_types::{
    ArtifactRules, BlobDigest, Container, DeviceSet, FencingToken, HostRules, IndexRange, JobId, LaunchForm,
    TraceParent, Ulimits,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Where one rank of the gang is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPlace {
    /// Unique in the Muster cluster.
    pub node_name: String,
    /// Without a port.
    pub address: String,
    /// Devices of the rank's worker.
    pub devices: u16,
}

/// Consecutive ranks that form TPU slices of one shape, one worker to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slices {
    /// Of the first slice.
    pub first_rank: u32,
    /// Hosts of one slice, from 1.
    pub hosts: u32,
    /// Slices, from 1.
    pub count: u32,
    /// Chips of one slice along each axis.
    pub shape: SliceShape,
}

impl Slices {
    /// The ranks of all slices.
    #[must_use]
    pub fn ranks(&self) -> std::ops::Range<u32> {
        self.first_rank..self.first_rank + self.hosts * self.count
    }
}

/// One worker to launch here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Its rank in the gang.
    pub rank: u32,
    /// The task group it belongs to.
    pub group: String,
    /// Program and arguments; empty for those of its image.
    pub command: Vec<String>,
    /// The user's variables.
    pub environment: BTreeMap<String, String>,
    /// Local device numbers.
    pub devices: DeviceSet,
    /// Empty when it asked for none.
    pub accelerator_type: String,
    /// Milli-CPUs it was promised.
    pub cpu_milli: u64,
    /// Bytes of memory it was promised.
    pub memory_bytes: u64,
    /// What it holds of each of its devices, in thousandths: all of it, or a share of its one device.
    #[serde(default = "super::worker::whole_device")]
    pub device_milli: u16,
    /// The image whose root directory it has; none for that of the host.
    #[serde(default)]
    pub container: Option<Container>,
}

/// How many workers a group has in a placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSize {
    /// The group's name.
    pub name: String,
    /// From 1.
    pub workers: u32,
}

/// A start order, checked: this node's share of one placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The job.
    pub job: JobId,
    /// What the placement holds its devices with.
    pub token: FencingToken,
    /// The job's name, for people.
    pub job_name: String,
    /// Whose it is.
    pub tenant: String,
    /// Placements of the job so far, this one included.
    pub attempt: u32,
    /// The whole gang, by rank.
    pub rank_map: Vec<RankPlace>,
    /// Those of this node, by rank.
    pub workers: Vec<Launch>,
    /// On rank 0's address.
    pub rendezvous_port: u16,
    /// SIGTERM to SIGKILL when a stop does not say otherwise.
    pub stop_grace: Duration,
    /// Empty when the job has none.
    pub checkpoint_directory: String,
    /// Empty for the worker's own directory.
    pub working_directory: String,
    /// Files that each worker finds in its own directory; none for no files. Then it starts there.
    #[serde(default)]
    pub workdir: Option<BlobDigest>,
    /// Files of workers that are kept when these have ended; none for no files.
    #[serde(default)]
    pub artifacts: Option<ArtifactRules>,
    /// Most bytes of these, of each worker, by the policy; none for as many as this agent keeps.
    #[serde(default)]
    pub artifacts_bytes_max: Option<u64>,
    /// What the job asks to have its processes bounded by.
    #[serde(default)]
    pub ulimits: Ulimits,
    /// How its workers are run on this host.
    #[serde(default)]
    pub host: HostRules,
    /// The span that the job was submitted in; none for no trace.
    #[serde(default)]
    pub trace_parent: Option<TraceParent>,
    /// Whether each worker has a terminal.
    #[serde(default)]
    pub terminal: bool,
    /// Bytes of each worker's scratch directory; 0 for none.
    #[serde(default)]
    pub scratch_bytes: u64,
    /// For a job of an array.
    pub array: Option<ArrayMember>,
    /// All indices of that array; none outside of one, and from older replicas.
    #[serde(default)]
    pub array_indices: Option<IndexRange>,
    /// Where the gang runs.
    pub region: String,
    /// The fleet cluster in that region.
    pub cluster: String,
    /// Whether the gang's network is checked before its workers start.
    pub preflight: bool,
    /// What the command is brought together with its framework by.
    pub form: LaunchForm,
    /// Fewest ranks that the gang can go on with; 0 for all.
    pub world_size_min: u32,
    /// The groups of a gang that has several, in the order of their ranks; empty for one group, and from older replicas.
    #[serde(default)]
    pub groups: Vec<GroupSize>,
    /// The TPU slices of the gang.
    pub slices: Vec<Slices>,
    /// How its workers are told to stop, in addition to SIGTERM and a file.
    pub notice: Option<HttpNotice>,
    /// How it saves its work, and what is saved.
    pub checkpoint: Checkpoint,
    /// What its workers know each other by; empty from older replicas.
    #[serde(default)]
    pub gang_secret: String,
}

/// A call that tells a worker to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpNotice {
    /// On the loopback address. Of the first worker of the gang on a node; the next one has the next port.
    pub port: u16,
    /// Begins with `/`.
    pub path: String,
}

/// What a worker that starts is told of checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The data set of policy that they are in; empty for a directory that every place can read.
    pub place: String,
    /// How long the job means to work from one to the next; 0 where it does not say.
    pub interval_ms: u64,
    /// When an attempt of the job last saved its work, milliseconds since the Unix epoch; 0 when none has.
    pub saved_at_ms: u64,
    /// Which attempt that was.
    pub saved_attempt: u32,
}

impl Placement {
    /// The key of one of its workers.
    #[must_use]
    pub fn key(&self, rank: u32) -> WorkerKey {
        WorkerKey { job: self.job, token: self.token, rank }
    }

    /// Ranks launched here.
    pub fn ranks(&self) -> impl Iterator<Item = u32> {
        self.workers.iter().map(|w| w.rank)
    }

    /// The span of a worker's launch, which the worker goes on from: it follows from the job, the attempt and the rank. None
    /// where the job is a part of no trace.
    #[must_use]
    pub fn span_of(&self, rank: u32) -> Option<TraceParent> {
        let numbers = [self.job.0, self.attempt.into(), rank.into()];
        self.trace_parent.map(|parent| parent.derived(&numbers))
    }
}
