//! Which processors of this host workers are bound to: near their devices, and of some none that another has.
//!
//! What the host has is read once, from sysfs. A worker keeps its processors from its launch to its end, also where the agent is
//! another by then: its launch on disk names them.
//!
//! **Invariant:** no two workers that are bound to cores have a processor in common.

use crate::contract::Family;
use crate::disk::durable;
use crate::rules::WorkerKey;
use muster_types::{CpuBinding, DeviceSet};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The variable that lists a worker's processors, as in `0-7,64-71`.
pub const CPUS_VARIABLE: &str = "MUSTER_CPUS";
/// Most entries of a directory that are looked at.
const ENTRIES_MAX: usize = 4_096;
/// Most bytes of a file of sysfs.
const TEXT_BYTES_MAX: u64 = 64 << 10;

/// A core with the processors that are its threads.
type Core = Vec<u16>;

/// The processors of this host, and who has which.
#[derive(Debug, Default)]
pub struct HostCores {
    /// Cores by NUMA node, each in the order of its first processor; empty where the host does not tell them.
    nodes: BTreeMap<u16, Vec<Core>>,
    /// The NUMA node of each device; none where it is not known.
    of_device: Vec<Option<u16>>,
    taken: Mutex<BTreeMap<WorkerKey, Vec<u16>>>,
}

impl HostCores {
    /// Those of the host below `root` that this process may run on, where `count` devices of a family are.
    #[must_use]
    pub fn find(root: &Path, family: Family, count: u16) -> HostCores {
        let allowed = sched_getaffinity(Pid::from_raw(0)).map(|set| {
            let all = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false));
            all.filter_map(|cpu| u16::try_from(cpu).ok()).collect()
        });
        match allowed {
            Ok(allowed) => HostCores::of(root, &allowed, (family, count)),
            Err(error) => {
                tracing::info!(%error, "which processors this host has is not known: no worker is bound to some");
                HostCores::default()
            }
        }
    }

    fn of(root: &Path, allowed: &BTreeSet<u16>, (family, count): (Family, u16)) -> HostCores {
        let mut nodes: BTreeMap<u16, Vec<Core>> = BTreeMap::new();
        for (node, listed) in numa_nodes(root) {
            let mut left: BTreeSet<u16> = listed.intersection(allowed).copied().collect();
            let mut cores = Vec::new();
            while let Some(first) = left.first().copied() {
                let siblings = siblings(root, first);
                let core: Core =
                    left.iter().copied().filter(|cpu| *cpu == first || siblings.contains(cpu)).collect();
                core.iter().for_each(|cpu| _ = left.remove(cpu));
                cores.push(core);
            }
            if !cores.is_empty() {
                nodes.insert(node, cores);
            }
        }
        let of_device = device_nodes(root, family, count);
        HostCores { nodes, of_device, taken: Mutex::default() }
    }

    /// How many NUMA nodes have processors that workers may run on; 0 where the host does not tell.
    #[must_use]
    pub fn numa_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The processors of a worker with these devices and this promise of processor time; empty for any. Those of one that has some
    /// already are the same.
    ///
    /// # Errors
    /// Why it cannot be bound as its job asks.
    pub fn bind(
        &self,
        binding: CpuBinding,
        key: WorkerKey,
        (devices, cpu_milli): (DeviceSet, u64),
    ) -> Result<Vec<u16>, String> {
        if binding == CpuBinding::None {
            return Ok(Vec::new());
        }
        if self.nodes.is_empty() {
            return Err(format!(
                "the job asks for binding {binding}, and this host does not tell which processors it has"
            ));
        }
        let near: BTreeSet<u16> = devices
            .iter()
            .filter_map(|device| self.of_device.get(usize::from(device)).copied().flatten())
            .filter(|node| self.nodes.contains_key(node))
            .collect();
        if binding == CpuBinding::Numa {
            let is_near = |node: &u16| near.is_empty() || near.contains(node);
            let cores = self.nodes.iter().filter(|(node, _)| is_near(node)).flat_map(|(_, cores)| cores);
            let all: BTreeSet<u16> = cores.flatten().copied().collect();
            return Ok(all.into_iter().collect());
        }
        let wanted = usize::try_from(cpu_milli.div_ceil(1_000).max(1)).unwrap_or(usize::MAX);
        let mut taken = self.taken.lock();
        if let Some(own) = taken.get(&key) {
            return Ok(own.clone());
        }
        let used: BTreeSet<u16> = taken.values().flatten().copied().collect();
        let chosen = self.choose(&near, wanted, &used)?;
        taken.insert(key, chosen.clone());
        Ok(chosen)
    }

    /// As many free processors: whole cores near the devices first, then threads of cores that others have a part of there, then
    /// elsewhere.
    fn choose(&self, near: &BTreeSet<u16>, wanted: usize, used: &BTreeSet<u16>) -> Result<Vec<u16>, String> {
        let free_of = |node: &u16| {
            let cores = self.nodes.get(node).into_iter().flatten();
            cores.flatten().filter(|cpu| !used.contains(*cpu)).count()
        };
        let mut order: Vec<u16> = self.nodes.keys().copied().collect();
        // Of those that are far, the one with the least that is enough: the others stay together.
        order.sort_by_key(|node| {
            let free = free_of(node);
            (!near.contains(node), free < wanted, if free < wanted { usize::MAX - free } else { free })
        });
        let (nearest, far): (Vec<u16>, Vec<u16>) = order.into_iter().partition(|node| near.contains(node));
        let mut chosen: BTreeSet<u16> = BTreeSet::new();
        let elsewhere: Vec<&Core> = far.iter().filter_map(|node| self.nodes.get(node)).flatten().collect();
        for places in [interleaved(&self.nodes, &nearest), elsewhere] {
            let is_whole = |core: &&Core| core.iter().all(|cpu| !used.contains(cpu));
            let (whole, parts): (Vec<&Core>, Vec<&Core>) = places.into_iter().partition(is_whole);
            for cpu in whole.into_iter().chain(parts).flatten().filter(|cpu| !used.contains(*cpu)) {
                if chosen.len() < wanted {
                    chosen.insert(*cpu);
                }
            }
        }
        if chosen.len() < wanted {
            let free = chosen.len();
            return Err(format!(
                "the job asks for {wanted} processors for each worker alone, and {free} of this host are bound to no other"
            ));
        }
        Ok(chosen.into_iter().collect())
    }

    /// A worker that an earlier agent launched has these.
    pub fn adopt(&self, key: WorkerKey, cpus: &[u16], binding: CpuBinding) {
        if binding == CpuBinding::Cores && !cpus.is_empty() {
            self.taken.lock().insert(key, cpus.to_vec());
        }
    }

    /// A worker has ended: its processors are free.
    pub fn release(&self, key: WorkerKey) {
        self.taken.lock().remove(&key);
    }
}

/// Cores of several nodes, one of each by rotation: a worker with devices at two nodes has as many at each.
fn interleaved<'a>(nodes: &'a BTreeMap<u16, Vec<Core>>, of: &[u16]) -> Vec<&'a Core> {
    let longest = of.iter().filter_map(|node| nodes.get(node)).map(Vec::len).max().unwrap_or(0);
    let turn = move |place: usize| of.iter().filter_map(move |node| nodes.get(node)?.get(place));
    (0..longest).flat_map(turn).collect()
}

/// Processors as the kernel lists them, as in `0-7,64-71`.
#[must_use]
pub fn cpu_list(cpus: &[u16]) -> String {
    let mut parts: Vec<(u16, u16)> = Vec::new();
    for cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*cpu) => *last = *cpu,
            _ => parts.push((*cpu, *cpu)),
        }
    }
    let text = |(first, last): (u16, u16)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.into_iter().map(text).collect::<Vec<_>>().join(",")
}

/// The other way round; what cannot be read is left out.
fn parse_list(text: &str) -> BTreeSet<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u16>().ok()?..=last.trim().parse::<u16>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

fn text(path: &Path) -> Option<String> {
    let bytes = durable::read_bounded(path, TEXT_BYTES_MAX).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The NUMA nodes with their processors; one of all processors where the host has no such nodes.
fn numa_nodes(root: &Path) -> BTreeMap<u16, BTreeSet<u16>> {
    let entries = std::fs::read_dir(root.join("sys/devices/system/node"));
    let numbered = entries.into_iter().flatten().flatten().take(ENTRIES_MAX).filter_map(|entry| {
        let node = entry.file_name().to_str()?.strip_prefix("node")?.parse::<u16>().ok()?;
        Some((node, parse_list(&text(&entry.path().join("cpulist"))?)))
    });
    let nodes: BTreeMap<u16, BTreeSet<u16>> = numbered.collect();
    if !nodes.is_empty() {
        return nodes;
    }
    let online = text(&root.join("sys/devices/system/cpu/online"));
    online.map(|online| (0, parse_list(&online))).into_iter().collect()
}

/// The processors that are threads of the same core.
fn siblings(root: &Path, cpu: u16) -> BTreeSet<u16> {
    let listed = root.join(format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
    text(&listed).map(|listed| parse_list(&listed)).unwrap_or_default()
}

/// The NUMA node of each device, in the order of device numbers.
fn device_nodes(root: &Path, family: Family, count: u16) -> Vec<Option<u16>> {
    let node_of = |directory: std::path::PathBuf| {
        // The kernel says -1 where it does not know.
        text(&directory.join("numa_node"))?.trim().parse::<u16>().ok()
    };
    let nodes: Vec<Option<u16>> = match family {
        Family::Nvidia => {
            let entries = std::fs::read_dir(root.join("proc/driver/nvidia/gpus"));
            let names = entries.into_iter().flatten().flatten().take(ENTRIES_MAX);
            let mut buses: Vec<String> =
                names.filter_map(|entry| Some(entry.file_name().to_str()?.to_ascii_lowercase())).collect();
            buses.sort_unstable();
            buses.iter().map(|bus| node_of(root.join("sys/bus/pci/devices").join(bus))).collect()
        }
        Family::Tpu => {
            let chip = |number: u16| root.join(format!("sys/class/accel/accel{number}/device"));
            (0..count).map(|number| node_of(chip(number))).collect()
        }
        Family::Amd | Family::Other => Vec::new(),
    };
    // Numbers that the driver counts in another way would be those of other devices.
    if nodes.len() == usize::from(count) { nodes } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::{FencingToken, JobId, LogIndex};

    /// Two NUMA nodes with four cores of two threads each, and four GPUs, two at each node.
    fn host() -> (tempfile::TempDir, HostCores) {
        let root = tempfile::tempdir().unwrap();
        let write = |path: String, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("sys/devices/system/node/node0/cpulist".to_owned(), "0-3,8-11\n");
        write("sys/devices/system/node/node1/cpulist".to_owned(), "4-7,12-15\n");
        for cpu in 0..16 {
            let (first, second) = (cpu % 8, cpu % 8 + 8);
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            write(path, &format!("{first},{second}\n"));
        }
        for (bus, node) in
            [("0000:17:00.0", "0"), ("0000:31:00.0", "0"), ("0000:B1:00.0", "1"), ("0000:CA:00.0", "1")]
        {
            write(format!("proc/driver/nvidia/gpus/{bus}/information"), "");
            write(format!("sys/bus/pci/devices/{}/numa_node", bus.to_ascii_lowercase()), node);
        }
        let cores = HostCores::of(root.path(), &(0..16).collect(), (Family::Nvidia, 4));
        (root, cores)
    }

    fn key(rank: u32) -> WorkerKey {
        WorkerKey { job: JobId(1), token: FencingToken { generation: 1, log_index: LogIndex(9) }, rank }
    }

    fn devices(numbers: &[u16]) -> DeviceSet {
        let only = |number: u16| DeviceSet::first(number + 1).difference(DeviceSet::first(number));
        numbers.iter().fold(DeviceSet::EMPTY, |set, number| set.union(only(*number)))
    }

    #[test]
    fn lists_are_as_the_kernel_writes_them() {
        for text in ["0", "0-3", "0-3,8-11", "1,3,5-6"] {
            let cpus: Vec<u16> = parse_list(text).into_iter().collect();
            assert_eq!(cpu_list(&cpus), text);
        }
        assert_eq!(cpu_list(&[]), "");
        assert_eq!(parse_list("x,1-,2\n").into_iter().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_worker_is_bound_near_its_devices() {
        let (_root, cores) = host();
        assert_eq!(cores.numa_nodes(), 2);
        let numa =
            |numbers: &[u16]| cpu_list(&cores.bind(CpuBinding::Numa, key(0), (devices(numbers), 1)).unwrap());
        assert_eq!(numa(&[0]), "0-3,8-11");
        assert_eq!(numa(&[2, 3]), "4-7,12-15");
        assert_eq!(numa(&[0, 3]), "0-15");
        assert_eq!(numa(&[]), "0-15", "it has no devices to be near to");
        assert_eq!(cores.bind(CpuBinding::None, key(0), (devices(&[0]), 1)), Ok(Vec::new()));
    }

    #[test]
    fn no_two_workers_have_a_processor_in_common() {
        let (_root, cores) = host();
        let bind = |rank: u32, numbers: &[u16], milli: u64| {
            cores.bind(CpuBinding::Cores, key(rank), (devices(numbers), milli)).map(|cpus| cpu_list(&cpus))
        };
        // Whole cores: both threads of each.
        assert_eq!(bind(0, &[2], 4_000).as_deref(), Ok("4-5,12-13"));
        assert_eq!(bind(0, &[2], 4_000).as_deref(), Ok("4-5,12-13"), "it keeps what it has");
        assert_eq!(bind(1, &[3], 2_500).as_deref(), Ok("6-7,14"));
        // What is left near its device, and the rest elsewhere.
        assert_eq!(bind(2, &[3], 3_000).as_deref(), Ok("0,8,15"));
        assert_eq!(bind(3, &[], 6_000).as_deref(), Ok("1-3,9-11"));
        let refused = bind(4, &[], 1_000).unwrap_err();
        assert!(refused.contains("1 processors") && refused.contains("0 of this host"), "{refused}");
        cores.release(key(1));
        assert_eq!(bind(4, &[], 1_000).as_deref(), Ok("6"));
    }

    #[test]
    fn a_host_that_tells_nothing_binds_nobody() {
        let cores = HostCores::default();
        assert!(cores.bind(CpuBinding::Numa, key(0), (DeviceSet::EMPTY, 1)).is_err());
        assert_eq!(cores.bind(CpuBinding::None, key(0), (DeviceSet::EMPTY, 1)), Ok(Vec::new()));
        cores.adopt(key(1), &[1, 2], CpuBinding::Cores);
        assert_eq!(cores.taken.lock().len(), 1);
    }
}
