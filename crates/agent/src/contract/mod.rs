//! Launch contracts: what a worker is started with, rendered from the one rank map.
//!
//! Every framework reads its own variables, files and arguments; all of them are rendered from the same
//! order, so a worker needs no knowledge of Muster. `forms.rs` holds the variables of each framework,
//! `devices.rs` the visibility of devices, `hostfile.rs` the files, `command.rs` what wraps the command.
//!
//! A job chooses one [`LaunchForm`](muster_types::LaunchForm). Under `environment` a worker *is* a process of its framework: it finds
//! `RANK`, `SLURM_PROCID`, `PMI_RANK`, the coordinator of JAX and so on, and its command is executed as it
//! stands. Under every other form a worker is what its framework calls a node or a host, and
//! starts one process for each of its devices (one, where it has none): those get their identity from the
//! framework's own launcher, so none of the variables that would contradict it are set.
//!
//! Who wins: the base environment, then the forms, then the user's variables (so `NCCL_*`, `MASTER_PORT`
//! and the like can be set), then `MUSTER_*` and the device visibility, which a user cannot override:
//! the first would lie about who the worker is, the second would reach into another job's devices.
//!
//! **Invariant:** a pure function of its arguments; nothing of the agent's own environment gets in.

mod command;
mod devices;
mod forms;
mod hostfile;
#[cfg(test)]
mod tests;

pub use command::command;
pub use devices::{Family, family};
pub use hostfile::{by_address, by_rank, rank_name};

use crate::rules::{Launch, Placement, RankPlace};
use muster_types::job::ArrayMember;
use muster_types::{DeviceSet, IndexRange, LaunchForm as Form};
use std::collections::BTreeMap;
use std::path::Path;

/// What this node adds to a contract.
#[derive(Clone, Debug)]
pub struct NodeContext<'a> {
    /// This node's name.
    pub node: &'a str,
    /// Type of this node's accelerators; empty for none.
    pub node_accelerator: &'a str,
    /// PATH, HOME and the like, and what the configuration passes on.
    pub base: &'a BTreeMap<String, String>,
    /// Where the rank map file will be.
    pub rank_map_path: &'a Path,
    /// Where the host file by addresses will be.
    pub hostfile_path: &'a Path,
    /// Where the host file by ranks will be.
    pub rank_hostfile_path: &'a Path,
    /// Where a notice to stop will be.
    pub notice_path: &'a Path,
    /// Where the agent takes notes; none when it takes none.
    pub agent_socket: Option<&'a Path>,
    /// Whether a worker with devices cannot open the others of the host: its programs then count its own from 0.
    pub hides_devices: bool,
    /// Program and first arguments of the launcher that wraps commands; see [`crate::launch`].
    pub launcher: &'a [String],
}

/// A rank's place among the ranks of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Local {
    rank: usize,
    world_size: usize,
    node_rank: usize,
}

/// The gang by nodes, in order of each node's first rank.
struct Layout<'a> {
    /// Node name to (node rank, ranks there).
    nodes: BTreeMap<&'a str, (usize, Vec<usize>)>,
    /// By node rank.
    by_rank: Vec<Host<'a>>,
}

/// One node of the gang.
struct Host<'a> {
    address: &'a str,
    ranks: usize,
    /// Processes that the node's workers have devices for.
    slots: usize,
}

impl<'a> Layout<'a> {
    fn of(rank_map: &'a [RankPlace]) -> Layout<'a> {
        let mut nodes: BTreeMap<&str, (usize, Vec<usize>)> = BTreeMap::new();
        let mut by_rank: Vec<Host<'_>> = Vec::new();
        for (rank, place) in rank_map.iter().enumerate() {
            let (node_rank, ranks) = nodes.entry(&place.node_name).or_insert_with(|| {
                by_rank.push(Host { address: &place.address, ranks: 0, slots: 0 });
                (by_rank.len() - 1, Vec::new())
            });
            ranks.push(rank);
            by_rank[*node_rank].ranks += 1;
            by_rank[*node_rank].slots += place.slots();
        }
        Layout { nodes, by_rank }
    }

    fn local(&self, node: &str, rank: usize) -> Local {
        // The rank is in the map by construction of the placement; a rank alone is the harmless answer.
        let alone = Local { rank: 0, world_size: 1, node_rank: 0 };
        self.nodes.get(node).map_or(alone, |(node_rank, ranks)| Local {
            rank: ranks.binary_search(&rank).unwrap_or(0),
            world_size: ranks.len(),
            node_rank: *node_rank,
        })
    }
}

/// The devices of this node that one worker sees: its own, and under one form those of its gang's other workers here.
#[must_use]
pub fn seen_devices(placement: &Placement, worker: &Launch, node: &str) -> DeviceSet {
    let local = Layout::of(&placement.rank_map).local(node, worker.rank as usize);
    devices::seen(placement, worker, local)
        .into_iter()
        .fold(DeviceSet::EMPTY, |all, device| all.union(DeviceSet(1 << device)))
}

/// The whole environment of one worker.
#[must_use]
pub fn environment(
    placement: &Placement,
    worker: &Launch,
    here: &NodeContext<'_>,
) -> BTreeMap<String, String> {
    let layout = Layout::of(&placement.rank_map);
    let local = layout.local(here.node, worker.rank as usize);
    let mut variables = here.base.clone();
    let (jax_devices, visibility) = devices::visible(placement, worker, local, here);
    if placement.form == Form::Environment {
        variables.extend(forms::torchrun(placement, worker, &layout, local));
        variables.extend(forms::slurm(placement, worker, &layout, local, here));
        variables.extend(forms::no_slurm_for_mpi());
        variables.extend(forms::pmi(placement, worker, local));
        variables.extend(forms::leader_worker_set(placement, worker));
        variables.extend(forms::jax(placement, jax_devices));
    }
    variables.extend(forms::tpu(placement, worker));
    variables.extend(layout_of_size(worker, placement.rank_map.len()));
    // A program that records traces goes on from it.
    let span = placement.span_of(worker.rank);
    variables.extend(span.map(|span| (muster_traces::header::VARIABLE.to_owned(), span.to_string())));
    for (key, value) in &worker.environment {
        if !key.starts_with("MUSTER_") && !key.starts_with(LAYOUTS) {
            variables.insert(key.clone(), value.clone());
        }
    }
    variables.extend(visibility);
    variables.extend(muster(placement, worker, local, here));
    variables
}

/// The directory that a worker starts in, by the name under which scripts of `sbatch` change to it: the files that its job has
/// sent are there. None under the other forms, and where the job sets it.
#[must_use]
pub fn submit_directory(
    placement: &Placement,
    worker: &Launch,
    starts_in: &Path,
) -> Option<(String, String)> {
    const NAME: &str = "SLURM_SUBMIT_DIR";
    let is_told = placement.form == Form::Environment && !worker.environment.contains_key(NAME);
    is_told.then(|| (NAME.to_owned(), starts_in.display().to_string()))
}

/// Variables that hold what a job planned for one of the sizes that it may have: the number of workers follows, and the
/// value is a JSON object of variables.
const LAYOUTS: &str = "PARALLEL_LAYOUT_";

/// What the job planned for a gang of this number of workers: nothing outside of what a plan sets, and nothing from a value that
/// is not read.
fn layout_of_size(worker: &Launch, workers: usize) -> BTreeMap<String, String> {
    let planned = worker.environment.get(&format!("{LAYOUTS}{workers}"));
    let variables = planned.and_then(|text| serde_json::from_str::<BTreeMap<String, String>>(text).ok());
    let is_of_plan = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        (name.starts_with("PARALLEL_") || name.starts_with("NCCL_")) && name.bytes().all(plain)
    };
    variables
        .unwrap_or_default()
        .into_iter()
        .filter(|(name, value)| is_of_plan(name) && !name.starts_with(LAYOUTS) && !value.contains('\0'))
        .collect()
}

type Pairs = Vec<(String, String)>;

fn pairs<const N: usize>(list: [(&str, String); N]) -> Pairs {
    list.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn comma<T: ToString>(list: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = list.into_iter().map(|item| item.to_string()).collect();
    words.join(",")
}

fn master(placement: &Placement) -> &str {
    placement.rank_map.first().map_or("", |place| place.address.as_str())
}

/// Host and port as one word; an IPv6 address needs its brackets before a port.
fn endpoint(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn muster(placement: &Placement, worker: &Launch, local: Local, here: &NodeContext<'_>) -> Pairs {
    let mut found = pairs([
        ("MUSTER_JOB_ID", placement.job.to_string()),
        ("MUSTER_JOB_NAME", placement.job_name.clone()),
        ("MUSTER_TENANT", placement.tenant.clone()),
        ("MUSTER_ATTEMPT", placement.attempt.to_string()),
        ("MUSTER_FENCING_TOKEN", placement.token.to_string()),
        ("MUSTER_GROUP", worker.group.clone()),
        ("MUSTER_RANK", worker.rank.to_string()),
        ("MUSTER_WORLD_SIZE", placement.rank_map.len().to_string()),
        ("MUSTER_LOCAL_RANK", local.rank.to_string()),
        ("MUSTER_NODE", here.node.to_owned()),
        ("MUSTER_REGION", placement.region.clone()),
        ("MUSTER_CLUSTER", placement.cluster.clone()),
        ("MUSTER_RANK_MAP", here.rank_map_path.display().to_string()),
        ("MUSTER_HOSTFILE", here.hostfile_path.display().to_string()),
        ("MUSTER_DEVICES", comma(worker.devices.iter())),
        ("MUSTER_ACCELERATOR", worker.accelerator_type.clone()),
        ("MUSTER_CPU_MILLI", worker.cpu_milli.to_string()),
        ("MUSTER_MEMORY_BYTES", worker.memory_bytes.to_string()),
        ("MUSTER_STOP_GRACE_MS", placement.stop_grace.as_millis().to_string()),
    ]);
    if matches!(placement.form, Form::Mpi | Form::Ray) && !placement.gang_secret.is_empty() {
        found.extend(pairs([("MUSTER_GANG_SECRET", placement.gang_secret.clone())]));
    }
    if placement.groups.len() > 1 {
        let sizes = placement.groups.iter().map(|group| format!("{}={}", group.name, group.workers));
        found.extend(pairs([("MUSTER_GROUP_SIZES", comma(sizes))]));
    }
    found.extend(checkpoints(placement));
    found.extend(notices(placement, local, here));
    if let Some(ArrayMember { index, size, .. }) = placement.array {
        found.extend(pairs([
            ("MUSTER_ARRAY_INDEX", index.to_string()),
            ("MUSTER_ARRAY_SIZE", size.to_string()),
        ]));
    }
    if let Some(IndexRange { first, last, step }) = placement.array_indices {
        found.extend(pairs([
            ("MUSTER_ARRAY_INDEX_MIN", first.to_string()),
            ("MUSTER_ARRAY_INDEX_MAX", last.to_string()),
            ("MUSTER_ARRAY_INDEX_STEP", step.to_string()),
        ]));
    }
    found
}

/// Where the work is saved, and whether there is anything to go on from.
fn checkpoints(placement: &Placement) -> Pairs {
    let facts = &placement.checkpoint;
    let mut found = pairs([("MUSTER_RESUME", u8::from(facts.saved_at_ms > 0).to_string())]);
    if facts.saved_at_ms > 0 {
        found.extend(pairs([
            ("MUSTER_CHECKPOINT_ATTEMPT", facts.saved_attempt.to_string()),
            ("MUSTER_CHECKPOINT_SAVED_AT_MS", facts.saved_at_ms.to_string()),
        ]));
    }
    if !placement.checkpoint_directory.is_empty() {
        found.extend(pairs([("MUSTER_CHECKPOINT_DIR", placement.checkpoint_directory.clone())]));
    }
    if !facts.place.is_empty() {
        found.extend(pairs([("MUSTER_CHECKPOINT_PLACE", facts.place.clone())]));
    }
    if facts.interval_ms > 0 {
        found.extend(pairs([("MUSTER_CHECKPOINT_INTERVAL_MS", facts.interval_ms.to_string())]));
    }
    found
}

/// The port of the call that tells a worker to stop; none when the numbers run out.
#[must_use]
pub fn notice_port(first: u16, local_rank: usize) -> Option<u16> {
    u16::try_from(local_rank).ok().and_then(|rank| first.checked_add(rank))
}

/// How the worker is told to stop, and whom it tells what.
fn notices(placement: &Placement, local: Local, here: &NodeContext<'_>) -> Pairs {
    let mut found = pairs([("MUSTER_NOTICE_FILE", here.notice_path.display().to_string())]);
    if let Some(notice) = &placement.notice
        && let Some(port) = notice_port(notice.port, local.rank)
    {
        found.extend(pairs([
            ("MUSTER_NOTICE_PORT", port.to_string()),
            ("MUSTER_NOTICE_PATH", notice.path.clone()),
        ]));
    }
    found.extend(here.agent_socket.map(|at| ("MUSTER_AGENT_SOCKET".to_owned(), at.display().to_string())));
    found
}

/// Who of the gang is on a node before this rank: its number there.
#[must_use]
pub fn local_rank(placement: &Placement, node: &str, rank: u32) -> usize {
    Layout::of(&placement.rank_map).local(node, rank as usize).rank
}

/// The rank map file: the whole gang, for programs that want more than their own place.
#[must_use]
pub fn rank_map_json(placement: &Placement) -> String {
    let layout = Layout::of(&placement.rank_map);
    let ranks: Vec<serde_json::Value> = placement
        .rank_map
        .iter()
        .enumerate()
        .map(|(rank, place)| {
            let local = layout.local(&place.node_name, rank);
            serde_json::json!({
                "rank": rank,
                "node": place.node_name,
                "address": place.address,
                "local_rank": local.rank,
                "node_rank": local.node_rank,
                "devices": place.devices,
            })
        })
        .collect();
    let map = serde_json::json!({
        "job_id": placement.job.to_string(),
        "fencing_token": placement.token.to_string(),
        "attempt": placement.attempt,
        "master_address": master(placement),
        "rendezvous_port": placement.rendezvous_port,
        "ranks": ranks,
    });
    format!("{map:#}\n")
}
