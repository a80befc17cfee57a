//! Launch contracts: what a worker finds in its environment, rendered from the one rank map.
//!
//! Every framework reads its own variables; all of them are rendered from the same order, so a
//! worker needs no knowledge of Muster. The forms, and where each is defined:
//!
//! - torchrun, static (`--master-addr --node-rank`, no elasticity): `RANK`, `WORLD_SIZE`, `LOCAL_RANK`,
//!   `LOCAL_WORLD_SIZE`, `GROUP_RANK`, `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_*`
//!   (PyTorch, *torchrun (Elastic Launch)*, "Environment Variables"). The scheduler owns the rank order.
//! - Slurm (`srun`(1), "OUTPUT ENVIRONMENT VARIABLES"). JAX detects a cluster by `SLURM_JOB_ID`,
//!   `SLURM_STEP_NODELIST`, `SLURM_NTASKS`, `SLURM_PROCID`, `SLURM_LOCALID`, takes the first host and the port
//!   `job id mod 4096 + 61440` (jax `_src/clusters/slurm_cluster.py`); the node lists hold *addresses*, for
//!   that first host is dialled. The job id is the token's log index, so the port is the rendezvous port.
//! - JAX: `JAX_COORDINATOR_ADDRESS`, `JAX_LOCAL_DEVICE_IDS` (jax `_src/distributed.py`).
//! - `MUSTER_*`: our own, complete.
//!
//! Devices: `CUDA_VISIBLE_DEVICES` (CUDA C Programming Guide, "CUDA Environment Variables"),
//! `ROCR_VISIBLE_DEVICES` (ROCm, "GPU isolation techniques"), `TPU_VISIBLE_CHIPS` (libtpu; jax and Ray set
//! it the same way). Where every worker of the gang on this node has one device, each sees the devices
//! of all of them in local-rank order, as under torchrun: programs select device `LOCAL_RANK`, and peer
//! access needs the peers visible. Otherwise a worker sees its own devices only. TPU chips are always its own.
//!
//! Who wins: the base environment, then the forms, then the user's variables (so `NCCL_*`, `MASTER_PORT`
//! and the like can be set), then `MUSTER_*` and the device visibility, which a user cannot override:
//! the first would lie about who the worker is, the second would reach into another job's devices.
//!
//! **Invariant:** a pure function of its arguments; nothing of the agent's own environment gets in.

use crate::order::{Launch, Placement, RankPlace};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// What this node adds to a contract.
#[derive(Clone, Debug)]
pub struct Here<'a> {
    /// This node's name.
    pub node: &'a str,
    /// Type of this node's accelerators; empty for none.
    pub node_accelerator: &'a str,
    /// PATH, HOME and the like, and what the configuration passes on.
    pub base: &'a BTreeMap<String, String>,
    /// Where the rank map file will be.
    pub rank_map_path: &'a Path,
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
    /// By node rank: address and count of ranks.
    by_rank: Vec<(&'a str, usize)>,
}

impl<'a> Layout<'a> {
    fn of(rank_map: &'a [RankPlace]) -> Layout<'a> {
        let mut nodes: BTreeMap<&str, (usize, Vec<usize>)> = BTreeMap::new();
        let mut by_rank: Vec<(&str, usize)> = Vec::new();
        for (rank, place) in rank_map.iter().enumerate() {
            let (node_rank, ranks) = nodes.entry(&place.node_name).or_insert_with(|| {
                by_rank.push((&place.address, 0));
                (by_rank.len() - 1, Vec::new())
            });
            ranks.push(rank);
            by_rank[*node_rank].1 += 1;
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

    fn addresses(&self) -> String {
        let all: Vec<&str> = self.by_rank.iter().map(|(address, _)| *address).collect();
        all.join(",")
    }

    /// Slurm's run-length form: `4(x2),3`.
    fn tasks_per_node(&self) -> String {
        let mut text = String::new();
        for group in self.by_rank.chunk_by(|a, b| a.1 == b.1) {
            let comma = if text.is_empty() { "" } else { "," };
            let _ = match group {
                [(_, count)] => write!(text, "{comma}{count}"),
                many => write!(text, "{comma}{}(x{})", many[0].1, many.len()),
            };
        }
        text
    }
}

/// What a type of accelerator is driven by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// CUDA.
    Nvidia,
    /// ROCm.
    Amd,
    /// libtpu.
    Tpu,
    /// No variable is known to select its devices.
    Other,
}

/// The family of an accelerator type, by its name: `v4`, `v5p`, `v5litepod`, `7x` and `tpu…` are TPUs, `mi…` is
/// AMD, and NVIDIA's names begin with a letter of an architecture and a number (`a100`, `gb200`, `l40s`, `rtx…`).
#[must_use]
pub fn family(accelerator_type: &str) -> Family {
    let name = accelerator_type;
    let digits_after = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    // v100 is Volta; TPU generations have one digit.
    if name == "v100" {
        return Family::Nvidia;
    }
    if digits_after("v") || name == "7x" || name.starts_with("tpu") {
        return Family::Tpu;
    }
    if digits_after("mi") {
        return Family::Amd;
    }
    let nvidia = ["a", "b", "h", "l", "p", "t", "gb", "gh", "rtx", "k"];
    if nvidia.iter().any(|prefix| digits_after(prefix)) || name.starts_with("rtx") || name == "nvidia" {
        return Family::Nvidia;
    }
    Family::Other
}

/// The whole environment of one worker.
#[must_use]
pub fn environment(placement: &Placement, worker: &Launch, here: &Here<'_>) -> BTreeMap<String, String> {
    let layout = Layout::of(&placement.rank_map);
    let local = layout.local(here.node, worker.rank as usize);
    let mut variables = here.base.clone();
    variables.extend(torchrun(placement, worker, &layout, local));
    variables.extend(slurm(placement, worker, &layout, local, here));
    let (jax_devices, visibility) = devices(placement, worker, local, here);
    variables.extend(jax(placement, jax_devices));
    for (key, value) in &worker.environment {
        if !key.starts_with("MUSTER_") {
            variables.insert(key.clone(), value.clone());
        }
    }
    variables.extend(visibility);
    variables.extend(muster(placement, worker, local, here));
    variables
}

type Pairs = Vec<(String, String)>;

fn pairs<const N: usize>(list: [(&str, String); N]) -> Pairs {
    list.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn master(placement: &Placement) -> &str {
    placement.rank_map.first().map_or("", |place| place.address.as_str())
}

fn torchrun(placement: &Placement, worker: &Launch, layout: &Layout<'_>, local: Local) -> Pairs {
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

fn slurm(
    placement: &Placement,
    worker: &Launch,
    layout: &Layout<'_>,
    local: Local,
    here: &Here<'_>,
) -> Pairs {
    let job_id = placement.token.log_index.to_string();
    let world = placement.rank_map.len().to_string();
    let nodes = layout.by_rank.len().to_string();
    let list = layout.addresses();
    let tasks = layout.tasks_per_node();
    let mut found = pairs([
        ("SLURM_JOB_ID", job_id.clone()),
        ("SLURM_JOBID", job_id.clone()),
        ("SLURM_JOB_NAME", placement.job_name.clone()),
        ("SLURM_JOB_NODELIST", list.clone()),
        ("SLURM_JOB_NUM_NODES", nodes.clone()),
        ("SLURM_NNODES", nodes.clone()),
        ("SLURM_NODELIST", list.clone()),
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
    if let Some((index, size)) = placement.array {
        found.extend(pairs([
            ("SLURM_ARRAY_JOB_ID", job_id),
            ("SLURM_ARRAY_TASK_ID", index.to_string()),
            ("SLURM_ARRAY_TASK_COUNT", size.to_string()),
        ]));
    }
    found
}

fn jax(placement: &Placement, local_device_ids: Option<String>) -> Pairs {
    let host = master(placement);
    // An IPv6 address needs its brackets before a port.
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let mut found = pairs([("JAX_COORDINATOR_ADDRESS", format!("{host}:{}", placement.rendezvous_port))]);
    found.extend(local_device_ids.map(|ids| ("JAX_LOCAL_DEVICE_IDS".to_owned(), ids)));
    found
}

/// `JAX_LOCAL_DEVICE_IDS` (numbers among the visible devices) and the variables of visibility.
fn devices(placement: &Placement, worker: &Launch, local: Local, here: &Here<'_>) -> (Option<String>, Pairs) {
    if worker.devices.is_empty() {
        // A worker that asked for no device must not find the node's.
        let hidden = match family(here.node_accelerator) {
            Family::Nvidia => pairs([("CUDA_VISIBLE_DEVICES", String::new())]),
            Family::Amd => pairs([("ROCR_VISIBLE_DEVICES", "-1".to_owned())]),
            Family::Tpu | Family::Other => Vec::new(),
        };
        return (None, hidden);
    }
    let kind = family(&worker.accelerator_type);
    let own: Vec<u16> = worker.devices.iter().collect();
    let one_each = placement.workers.iter().all(|w| w.devices.count() == 1)
        && placement.workers.len() == local.world_size
        && matches!(kind, Family::Nvidia | Family::Amd);
    let (visible, ids) = if one_each {
        (placement.workers.iter().flat_map(|w| w.devices.iter()).collect(), comma([local.rank]))
    } else {
        (own.clone(), comma(0..own.len()))
    };
    let visible = comma(visible);
    let variables = match kind {
        // Device numbers are in the order of the PCI bus, as discovery and nvidia-smi have them.
        Family::Nvidia => {
            pairs([("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()), ("CUDA_VISIBLE_DEVICES", visible)])
        }
        Family::Amd => pairs([("ROCR_VISIBLE_DEVICES", visible)]),
        Family::Tpu => pairs([("TPU_VISIBLE_CHIPS", visible)]),
        Family::Other => Vec::new(),
    };
    (Some(ids), variables)
}

fn comma<T: ToString>(list: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = list.into_iter().map(|item| item.to_string()).collect();
    words.join(",")
}

fn muster(placement: &Placement, worker: &Launch, local: Local, here: &Here<'_>) -> Pairs {
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
        ("MUSTER_DEVICES", comma(worker.devices.iter())),
        ("MUSTER_CPU_MILLI", worker.cpu_milli.to_string()),
        ("MUSTER_MEMORY_BYTES", worker.memory_bytes.to_string()),
        ("MUSTER_STOP_GRACE_MS", placement.stop_grace.as_millis().to_string()),
    ]);
    if !placement.checkpoint_directory.is_empty() {
        found.extend(pairs([("MUSTER_CHECKPOINT_DIR", placement.checkpoint_directory.clone())]));
    }
    if let Some((index, size)) = placement.array {
        found.extend(pairs([
            ("MUSTER_ARRAY_INDEX", index.to_string()),
            ("MUSTER_ARRAY_SIZE", size.to_string()),
        ]));
    }
    found
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Placement;
    use muster_types::{DeviceSet, FencingToken, JobId, LogIndex};
    use std::time::Duration;

    fn place(node: &str, address: &str) -> RankPlace {
        RankPlace { node_name: node.into(), address: address.into() }
    }

    fn worker(rank: u32, devices: u64, kind: &str) -> Launch {
        Launch {
            rank,
            group: "train".into(),
            command: vec!["python3".into(), "train.py".into()],
            environment: BTreeMap::new(),
            devices: DeviceSet(devices),
            accelerator_type: kind.into(),
            cpu_milli: 8_000,
            memory_bytes: 64 << 30,
        }
    }

    fn placement(rank_map: Vec<RankPlace>, workers: Vec<Launch>) -> Placement {
        Placement {
            job: JobId(5 * 1024),
            token: FencingToken { generation: 1, log_index: LogIndex(4_101) },
            job_name: "llama".into(),
            tenant: "research".into(),
            attempt: 3,
            rank_map,
            workers,
            rendezvous_port: 61_445,
            stop_grace: Duration::from_secs(30),
            checkpoint_directory: "/ckpt/job-500".into(),
            working_directory: String::new(),
            array: None,
            region: "eu-west".into(),
            cluster: "eu-west-a".into(),
            preflight: false,
        }
    }

    fn check(file: &str, placement: &Placement, rank: u32, node: &str, node_accelerator: &str) {
        let base = BTreeMap::from([
            ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
            ("HOME".to_owned(), "/root".to_owned()),
        ]);
        let here = Here {
            node,
            node_accelerator,
            base: &base,
            rank_map_path: Path::new("/state/task/rank_map.json"),
        };
        let worker = placement.workers.iter().find(|w| w.rank == rank).expect("the rank is here");
        let text: String =
            environment(placement, worker, &here).iter().map(|(k, v)| format!("{k}={v}\n")).collect();
        golden(file, &text);
    }

    fn golden(file: &str, text: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, expected, "{file} differs; UPDATE_EXPECT=1 writes it anew");
    }

    #[test]
    fn eight_gpus_two_hosts_one_device_each() {
        let mut map = vec![place("gpu-a", "10.0.0.1"); 4];
        map.extend(vec![place("gpu-b", "10.0.0.2"); 4]);
        // Local devices are not in rank order: the visible list is.
        let devices = [1 << 5, 1 << 4, 1 << 7, 1 << 6];
        let workers = (4..8).zip(devices).map(|(rank, set)| worker(rank, set, "h100")).collect();
        let placement = placement(map, workers);
        check("torchrun_one_device_each.env", &placement, 6, "gpu-b", "h100");
        golden("rank_map.json", &rank_map_json(&placement));
    }

    #[test]
    fn one_process_per_host_with_all_its_devices() {
        let map = vec![place("gpu-a", "fd00::1"), place("gpu-b", "fd00::2")];
        let placement = placement(map, vec![worker(0, 0xff, "mi300x")]);
        check("jax_whole_host_amd_ipv6.env", &placement, 0, "gpu-a", "mi300x");
    }

    #[test]
    fn tpu_chips_are_always_the_workers_own() {
        let map = vec![place("tpu-0", "10.1.0.1"); 2];
        let placement = placement(map, vec![worker(0, 1, "v5e"), worker(1, 2, "v5e")]);
        check("tpu_one_chip_each.env", &placement, 1, "tpu-0", "v5e");
    }

    #[test]
    fn an_array_job_without_devices_on_a_gpu_host_with_variables_of_the_user() {
        let mut launch = worker(0, 0, "");
        launch.environment = BTreeMap::from([
            ("MUSTER_RANK".to_owned(), "99".to_owned()),
            ("CUDA_VISIBLE_DEVICES".to_owned(), "0".to_owned()),
            ("MASTER_PORT".to_owned(), "1234".to_owned()),
            ("NCCL_DEBUG".to_owned(), "INFO".to_owned()),
            ("PATH".to_owned(), "/opt/bin".to_owned()),
        ]);
        let mut placement = placement(vec![place("gpu-a", "10.0.0.1")], vec![launch]);
        placement.array = Some((4, 100));
        placement.checkpoint_directory.clear();
        check("array_user_variables.env", &placement, 0, "gpu-a", "a100");
    }

    #[test]
    fn the_slurm_job_id_gives_jax_the_rendezvous_port() {
        let placement = placement(vec![place("a", "10.0.0.1")], vec![worker(0, 1, "h100")]);
        let port = placement.token.log_index.0 % 4_096 + 61_440;
        assert_eq!(port, u64::from(placement.rendezvous_port));
    }

    #[test]
    fn uneven_nodes_are_counted_as_slurm_counts_them() {
        let map = ["a", "a", "b", "b", "c"].map(|n| place(n, n)).to_vec();
        let layout = Layout::of(&map);
        assert_eq!(layout.tasks_per_node(), "2(x2),1");
        assert_eq!(layout.local("b", 3), Local { rank: 1, world_size: 2, node_rank: 1 });
        assert_eq!(layout.addresses(), "a,b,c");
    }

    #[test]
    fn families_by_name() {
        for name in ["v4", "v5p", "v5e", "v6e", "7x", "tpu7x", "v5litepod"] {
            assert_eq!(family(name), Family::Tpu, "{name}");
        }
        for name in ["a100", "h100", "h200", "b200", "gb200", "l40s", "t4", "v100", "rtx-6000"] {
            assert_eq!(family(name), Family::Nvidia, "{name}");
        }
        assert_eq!(family("mi300x"), Family::Amd);
        assert_eq!(family("trainium2"), Family::Other);
        assert_eq!(family(""), Family::Other);
    }
}
