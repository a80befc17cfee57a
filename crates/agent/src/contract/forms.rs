//! The variables that processes of a framework are told who they are by.
//!
//! Where each form is defined:
//!
//! - torchrun: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `GROUP_RANK`, `MASTER_ADDR`, `MASTER_PORT`,
//!   `TORCHELASTIC_*` (PyTorch, *torchrun (Elastic Launch)*, "Environment Variables").
//! - Slurm (`srun`(1), "OUTPUT ENVIRONMENT VARIABLES"). JAX detects a cluster by `SLURM_JOB_ID`,
//!   `SLURM_STEP_NODELIST`, `SLURM_NTASKS`, `SLURM_PROCID`, `SLURM_LOCALID`, takes the first host and the port
//!   `job id mod 4096 + 61440` (jax `_src/clusters/slurm_cluster.py`); the node lists hold *addresses*, for
//!   that first host is dialled. `SLURM_NODELIST`, the older name of the list, is not set: by it alone Open MPI 4 takes a
//!   program for one that `srun` has started, and ends it. The job id is the token's log index, so the port is the rendezvous port.
//! - PMI: `PMI_RANK`, `PMI_SIZE`, and Hydra's names for the place on a node.
//! - LeaderWorkerSet (Kubernetes SIGs, *LWS*, "Environment variables"): one worker is one pod.
//! - JAX: `JAX_COORDINATOR_ADDRESS`, `JAX_LOCAL_DEVICE_IDS` (jax `_src/distributed.py`).
//! - TPU: `TPU_WORKER_ID`, `TPU_WORKER_HOSTNAMES` and the `MEGASCALE_*` of multislice (jax
//!   `_src/clusters/cloud_tpu_cluster.py`; Ray `get_tpu_coordinator_env_vars`); bounds of hosts and
//!   processes as libtpu takes them. The metadata server is not asked: the slice is ours to describe.

use super::{Host, Layout, Local, NodeContext, Pairs, comma, endpoint, master, pairs};
use crate::rules::{Launch, Placement, RankPlace};
use muster_types::job::ArrayMember;
use muster_types::tpu::{Generation, host_extent};
use muster_types::{ArrayId, DeviceSet, IndexRange};
use std::fmt::Write as _;

/// Addresses of the nodes, in order of their first ranks.
fn addresses(layout: &Layout<'_>) -> String {
    comma(layout.by_rank.iter().map(|host| host.address))
}

/// Slurm's run-length form: `4(x2),3`.
pub(super) fn tasks_per_node(layout: &Layout<'_>) -> String {
    let mut text = String::new();
    for group in layout.by_rank.chunk_by(|a, b| a.ranks == b.ranks) {
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match group {
            [Host { ranks, .. }] => write!(text, "{comma}{ranks}"),
            many => write!(text, "{comma}{}(x{})", many[0].ranks, many.len()),
        };
    }
    text
}

pub(super) fn torchrun(placement: &Placement, worker: &Launch, layout: &Layout<'_>, local: Local) -> Pairs {
    let world = placement.rank_map.len().to_string();
    pairs([
        ("RANK", worker.rank.to_string()),
        ("WORLD_SIZE", world.clone()),
        ("LOCAL_RANK", local.rank.to_string()),
        ("LOCAL_WORLD_SIZE", local.world_size.to_string()),
        ("GROUP_RANK", local.node_rank.to_string()),
        ("GROUP_WORLD_SIZE", layout.by_rank.len().to_string()),
        ("ROLE_RANK", worker.rank.to_string()),
        ("ROLE_WORLD_SIZE", world),
        ("MASTER_ADDR", master(placement).to_owned()),
        ("MASTER_PORT", placement.rendezvous_port.to_string()),
        ("TORCHELASTIC_RUN_ID", placement.job.to_string()),
        ("TORCHELASTIC_RESTART_COUNT", placement.attempt.saturating_sub(1).to_string()),
    ])
}

pub(super) fn slurm(
    placement: &Placement,
    worker: &Launch,
    layout: &Layout<'_>,
    local: Local,
    here: &NodeContext<'_>,
) -> Pairs {
    let job_id = placement.token.log_index.to_string();
    let world = placement.rank_map.len().to_string();
    let nodes = layout.by_rank.len().to_string();
    let list = addresses(layout);
    let tasks = tasks_per_node(layout);
    let mut found = pairs([
        ("SLURM_JOB_ID", job_id.clone()),
        ("SLURM_JOBID", job_id.clone()),
        ("SLURM_JOB_NAME", placement.job_name.clone()),
        ("SLURM_JOB_NODELIST", list.clone()),
        ("SLURM_JOB_NUM_NODES", nodes.clone()),
        ("SLURM_NNODES", nodes.clone()),
        ("SLURM_NODEID", local.node_rank.to_string()),
        ("SLURM_NTASKS", world.clone()),
        ("SLURM_NPROCS", world.clone()),
        ("SLURM_PROCID", worker.rank.to_string()),
        ("SLURM_LOCALID", local.rank.to_string()),
        ("SLURM_RESTART_COUNT", placement.attempt.saturating_sub(1).to_string()),
        ("SLURM_STEP_ID", "0".to_owned()),
        ("SLURM_STEP_NODELIST", list),
        ("SLURM_STEP_NUM_NODES", nodes),
        ("SLURM_STEP_NUM_TASKS", world),
        ("SLURM_STEP_TASKS_PER_NODE", tasks.clone()),
        ("SLURM_TASKS_PER_NODE", tasks),
        ("SLURMD_NODENAME", here.node.to_owned()),
    ]);
    // Programs size their thread pools by the first of them. All workers of a group ask for the same, and a node's are of
    // one group nearly always.
    let cpus = (worker.cpu_milli / 1_000).max(1);
    let on_node = local.world_size as u64;
    found.extend(pairs([
        ("SLURM_CPUS_PER_TASK", cpus.to_string()),
        ("SLURM_CPUS_ON_NODE", (cpus * on_node).to_string()),
    ]));
    let devices = placement.workers.iter().fold(DeviceSet::default(), |all, other| all.union(other.devices));
    if !devices.is_empty() && Generation::of_kind(&worker.accelerator_type).is_none() {
        found.extend(pairs([("SLURM_GPUS_ON_NODE", devices.count().to_string())]));
    }
    if let Some(ArrayMember { index, ordinal, size }) = placement.array {
        found.extend(pairs([
            // The id of the first member, as the leader numbers them: the same for all members and attempts.
            ("SLURM_ARRAY_JOB_ID", ArrayId::of_member(placement.job, ordinal).0.to_string()),
            ("SLURM_ARRAY_TASK_ID", index.to_string()),
            ("SLURM_ARRAY_TASK_COUNT", size.to_string()),
        ]));
    }
    if let Some(IndexRange { first, last, step }) = placement.array_indices {
        found.extend(pairs([
            ("SLURM_ARRAY_TASK_MIN", first.to_string()),
            ("SLURM_ARRAY_TASK_MAX", last.to_string()),
            ("SLURM_ARRAY_TASK_STEP", step.to_string()),
        ]));
    }
    found
}

/// What keeps MPI implementations from taking the variables of Slurm for an allocation of Slurm's: a program that was
/// not started by `mpirun` is a separate gang, and `mpirun` starts processes on this host without `srun`. A gang
/// of MPI programs is what the form `mpi` is for. Open MPI 4 and 5 (`mpirun`(1), "MCA" parameters), and Hydra, which
/// starts MPICH and Intel MPI.
pub(super) fn no_slurm_for_mpi() -> Pairs {
    pairs([
        ("OMPI_MCA_plm", "^slurm".to_owned()),
        ("OMPI_MCA_ras", "^slurm".to_owned()),
        ("OMPI_MCA_schizo", "^slurm".to_owned()),
        ("PRTE_MCA_plm", "^slurm".to_owned()),
        ("PRTE_MCA_ras", "^slurm".to_owned()),
        ("HYDRA_BOOTSTRAP", "fork".to_owned()),
        ("HYDRA_RMK", "user".to_owned()),
        ("I_MPI_HYDRA_BOOTSTRAP", "fork".to_owned()),
    ])
}

pub(super) fn pmi(placement: &Placement, worker: &Launch, local: Local) -> Pairs {
    pairs([
        ("PMI_RANK", worker.rank.to_string()),
        ("PMI_SIZE", placement.rank_map.len().to_string()),
        ("MPI_LOCALRANKID", local.rank.to_string()),
        ("MPI_LOCALNRANKS", local.world_size.to_string()),
    ])
}

pub(super) fn leader_worker_set(placement: &Placement, worker: &Launch) -> Pairs {
    pairs([
        ("LWS_LEADER_ADDRESS", master(placement).to_owned()),
        ("LWS_GROUP_SIZE", placement.rank_map.len().to_string()),
        ("LWS_WORKER_INDEX", worker.rank.to_string()),
    ])
}

pub(super) fn jax(placement: &Placement, local_device_ids: Option<String>) -> Pairs {
    let at = endpoint(master(placement), placement.rendezvous_port);
    let mut found = pairs([("JAX_COORDINATOR_ADDRESS", at)]);
    found.extend(local_device_ids.map(|ids| ("JAX_LOCAL_DEVICE_IDS".to_owned(), ids)));
    found
}

/// Where slices meet; libtpu's own default.
const MEGASCALE_PORT: u16 = 8081;

/// What libtpu reads; empty for a worker without chips.
pub(super) fn tpu(placement: &Placement, worker: &Launch) -> Pairs {
    let Some(generation) = Generation::of_kind(&worker.accelerator_type) else { return Vec::new() };
    if worker.devices.is_empty() {
        return Vec::new();
    }
    let chips = worker.devices.count();
    let mut found = pairs([("TPU_SKIP_MDS_QUERY", "1".to_owned())]);
    let slices = placement.slices.iter().find(|s| s.ranks().contains(&worker.rank));
    let Some(slices) = slices else {
        // Chips of one host that no slice joins to others: this process has all there is.
        if let Some(bounds) = process_bounds(chips) {
            found.extend(pairs([
                ("TPU_CHIPS_PER_PROCESS_BOUNDS", bounds.to_owned()),
                ("TPU_PROCESS_BOUNDS", "1,1,1".to_owned()),
            ]));
        }
        return found;
    };
    let place = worker.rank - slices.first_rank;
    let (slice, host) = (place / slices.hosts, place % slices.hosts);
    let first = slices.first_rank + slice * slices.hosts;
    let names = placement.rank_map.iter().skip(first as usize).take(slices.hosts as usize);
    found.extend(pairs([
        ("TPU_WORKER_ID", host.to_string()),
        ("TPU_WORKER_HOSTNAMES", comma(names.map(|place: &RankPlace| place.address.as_str()))),
        ("TPU_TOPOLOGY", slices.shape.to_string()),
        ("TPU_ACCELERATOR_TYPE", generation.alias(slices.shape.chips())),
    ]));
    if let Some(extent) = host_extent(generation.is_cube_pod(), chips) {
        let shape = slices.shape.extent();
        let hosts = [0, 1, 2].map(|axis| (shape[axis] / extent[axis]).max(1));
        found
            .extend(pairs([("TPU_CHIPS_PER_HOST_BOUNDS", comma(extent)), ("TPU_HOST_BOUNDS", comma(hosts))]));
    }
    if slices.count > 1 {
        let coordinator = placement.rank_map.get(slices.first_rank as usize);
        found.extend(pairs([
            ("MEGASCALE_NUM_SLICES", slices.count.to_string()),
            ("MEGASCALE_SLICE_ID", slice.to_string()),
            // Without a port: JAX takes what comes before the first colon for its own coordinator.
            ("MEGASCALE_COORDINATOR_ADDRESS", coordinator.map(|at| at.address.clone()).unwrap_or_default()),
            ("MEGASCALE_PORT", MEGASCALE_PORT.to_string()),
        ]));
    }
    found
}

/// Chips of one process along x, y and z, for the numbers that a host can be carved into.
fn process_bounds(chips: u16) -> Option<&'static str> {
    match chips {
        1 => Some("1,1,1"),
        2 => Some("1,2,1"),
        4 => Some("2,2,1"),
        8 => Some("2,4,1"),
        _ => None,
    }
}
