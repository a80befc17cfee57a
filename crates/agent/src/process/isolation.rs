//! The isolation of a worker from its host and from other workers, and which parts of it this host supports.
//!
//! A worker runs in a separate process namespace, whose first process its shim holds: when that one ends, the kernel
//! ends everything in it, and nothing in it can see or signal a process outside. Where the agent is root, a worker may
//! also have a user of its tenant, without privileges, so that what the agent and other tenants own is out of its
//! reach. What the host cannot do is a fact of the node: its labels state it, and jobs and policy may ask for more.
//!
//! **Invariant:** what was found possible when the agent started is what every worker gets: one that cannot be isolated
//! so is not started.

use crate::process::cores::{CPUS_VARIABLE, HostCores, cpu_list};
use crate::process::devices::{CharacterDevices, DeviceFiles};
use crate::process::disk_io::{GroupIo, IoLimits};
use crate::process::task::TaskSpec;
use crate::rules::{ExecutorEvent, Launch, Placement, WorkerKey};
use muster_types::config_value::bytes;
use muster_types::limits::ULIMIT_STACK_BYTES_MIN;
use muster_types::quantity::ByteCount;
use muster_types::worker_features::WorkerFeature;
use muster_types::{CpuBinding, DeviceSet, Ulimits};
use nix::unistd::geteuid;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Which separate namespaces a worker has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Namespaces {
    /// None: it is a process of the host like any other.
    #[default]
    Host,
    /// Of processes and mounts, made by root.
    Root,
    /// The same, inside a user namespace, for an agent that is not root.
    User,
}

impl Namespaces {
    /// The word on a shim's command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Namespaces::Host => "host",
            Namespaces::Root => "root",
            Namespaces::User => "user",
        }
    }

    /// The other way round.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Namespaces> {
        [Namespaces::Host, Namespaces::Root, Namespaces::User].into_iter().find(|known| known.word() == word)
    }
}

/// How one worker is isolated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// What its shim is to start it in.
    pub namespaces: Namespaces,
    /// The user and group that it runs as; none for the agent's own.
    #[serde(default)]
    pub user: Option<u32>,
    /// Whether `/tmp` and `/var/tmp` are its own, and `/dev/shm` is its gang's on this host.
    #[serde(default)]
    pub private_tmp: bool,
    /// Directories that stay where they are though `/tmp` is another.
    #[serde(default)]
    pub shown: Vec<PathBuf>,
    /// Device files that cannot be opened where it sees them.
    #[serde(default)]
    pub hidden: Vec<PathBuf>,
    /// Sockets of the host that nothing answers at where it sees them.
    #[serde(default)]
    pub closed_sockets: Vec<PathBuf>,
    /// The only devices that its control group lets it open; none where the group asks nobody.
    #[serde(default)]
    pub allowed: Option<Vec<CharacterDevices>>,
    /// What the kernel bounds of each of its processes.
    #[serde(default)]
    pub rlimits: Rlimits,
    /// The only processors that it runs on; empty for any.
    #[serde(default)]
    pub cpus: Vec<u16>,
    /// How its job asks for them.
    #[serde(default)]
    pub binding: CpuBinding,
    /// Bytes of the `/dev/shm` that it has for itself; 0 for none.
    #[serde(default)]
    pub shared_memory_bytes: u64,
}

impl Isolation {
    /// What a worker is told of the processors that it is bound to, and one with its tenant's user of that user, apart from what its
    /// job sets itself: its home, for the agent's would be every tenant's, and the tenant as its name. The host's list of users has no name for it, so programs that ask for
    /// one would fail (Python's `getpass.getuser`, and with it the compiler of PyTorch).
    #[must_use]
    pub fn variables(
        &self,
        tenant: &str,
        home: &Path,
        of_job: &BTreeMap<String, String>,
    ) -> Vec<(String, String)> {
        let cpus = (!self.cpus.is_empty()).then(|| (CPUS_VARIABLE.to_owned(), cpu_list(&self.cpus)));
        if self.user.is_none() {
            return cpus.into_iter().collect();
        }
        let home = home.display().to_string();
        let all = [("HOME", home), ("USER", tenant.to_owned()), ("LOGNAME", tenant.to_owned())];
        let told = all.into_iter().filter(|(name, _)| !of_job.contains_key(*name));
        told.map(|(name, value)| (name.to_owned(), value)).chain(cpus).collect()
    }
}

/// How a worker is kept from devices that it was not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceGuard {
    /// By environment variables alone, or by what it could undo.
    #[default]
    None,
    /// The files cannot be opened where it sees them.
    Hidden,
    /// The kernel refuses to open them, wherever the worker may have a file of theirs.
    Filtered,
}

/// What a worker's processes may take, one by one (`setrlimit`(2)). No more than the agent may itself, unless it is root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rlimits {
    /// Open files of one process.
    pub open_files: u64,
    /// Processes and threads of one user. It applies to workers with a separate user, and counts all processes of that user
    /// on the host.
    pub processes: u64,
    /// Bytes of one core file. With 0 none is written: a core file can be as large as the worker's memory, and is in its directory.
    #[serde(rename = "core_size", with = "bytes")]
    pub core_bytes: u64,
    /// Bytes that cannot be swapped out; no bound when not said: InfiniBand needs them, and a worker's memory has its own.
    #[serde(rename = "locked_memory", with = "bytes", skip_serializing_if = "Option::is_none")]
    pub locked_bytes: Option<u64>,
    /// Bytes of the stack; as the agent's own when not said.
    #[serde(rename = "stack_size", with = "bytes", skip_serializing_if = "Option::is_none")]
    pub stack_bytes: Option<u64>,
}

impl Default for Rlimits {
    fn default() -> Rlimits {
        Rlimits {
            open_files: 1 << 20,
            processes: 65_536,
            core_bytes: 0,
            locked_bytes: None,
            stack_bytes: None,
        }
    }
}

/// The most that a job may ask for in place of [`Rlimits`]. What is not said is no more than those are, and without a bound where
/// they have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RlimitsMax {
    /// Open files of one process.
    pub open_files: Option<u64>,
    /// Bytes of one core file.
    #[serde(rename = "core_size", with = "bytes", skip_serializing_if = "Option::is_none")]
    pub core_bytes: Option<u64>,
    /// Bytes that cannot be swapped out.
    #[serde(rename = "locked_memory", with = "bytes", skip_serializing_if = "Option::is_none")]
    pub locked_bytes: Option<u64>,
    /// Bytes of the stack.
    #[serde(rename = "stack_size", with = "bytes", skip_serializing_if = "Option::is_none")]
    pub stack_bytes: Option<u64>,
}

impl Rlimits {
    /// What a job gets that asks for other limits.
    ///
    /// # Errors
    /// The first that is above what this host's configuration lets it have.
    fn asked(self, ulimits: &Ulimits, most: &RlimitsMax) -> Result<Rlimits, String> {
        let bound = |name: &str, asked: Option<u64>, most: Option<u64>| match (asked, most) {
            (Some(asked), Some(most)) if asked > most => Err(format!(
                "the job asks for {name} of {asked}, and workers.rlimits and workers.rlimits_max of this host allow {most}"
            )),
            _ => Ok(asked),
        };
        let files = most.open_files.unwrap_or(self.open_files).max(self.open_files);
        let core = most.core_bytes.unwrap_or(self.core_bytes).max(self.core_bytes);
        let open_files = bound("ulimits.open_files", ulimits.open_files, Some(files))?;
        let core_bytes = bound("ulimits.core_bytes", ulimits.core_bytes, Some(core))?;
        // A maximum below what every worker gets takes nothing away.
        let at_least =
            |most: Option<u64>, usual: Option<u64>| most.map(|most| most.max(usual.unwrap_or(0))).or(usual);
        let locked = at_least(most.locked_bytes, self.locked_bytes);
        let locked_bytes = bound("ulimits.locked_bytes", ulimits.locked_bytes, locked)?;
        let stack = at_least(most.stack_bytes, self.stack_bytes);
        let stack_bytes = bound("ulimits.stack_bytes", ulimits.stack_bytes, stack)?;
        Ok(Rlimits {
            open_files: open_files.unwrap_or(self.open_files),
            processes: self.processes,
            core_bytes: core_bytes.unwrap_or(self.core_bytes),
            locked_bytes: locked_bytes.or(self.locked_bytes),
            stack_bytes: stack_bytes.or(self.stack_bytes),
        })
    }
}

/// What a promise of processor time means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuLimit {
    /// Its part of what others want as well; more of what is idle.
    #[default]
    Share,
    /// That much and no more.
    Ceiling,
}

/// What an operator asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkersConfig {
    /// Whether workers get separate namespaces.
    pub isolation: IsolationMode,
    /// Users that workers run as: one for each tenant, the same on every host that has the same range. Needs root.
    pub uid_range: Option<UidRange>,
    /// Users of tenants by name, which go before the range.
    pub uids: BTreeMap<String, u32>,
    /// Whether `/tmp`, `/var/tmp` and `/dev/shm` are a worker's own; as `uid_range` when not said.
    pub private_tmp: Option<bool>,
    /// Device files, or directories of them, that every worker may open in addition to those that every program needs, its own
    /// accelerators and the fabric of the hosts; for example `/dev/fuse`.
    pub devices: Vec<PathBuf>,
    /// Whether workers find the sockets of container daemons. Who may speak to one of these is the host's root in effect, and what it
    /// starts is in no namespace of the worker and outlives its lease.
    pub container_sockets: bool,
    /// What the kernel bounds of each process of a worker.
    pub rlimits: Rlimits,
    /// The most that a job may ask for in their place.
    pub rlimits_max: RlimitsMax,
    /// What a promise of processor time means.
    pub cpu: CpuLimit,
    /// Bytes of the disk that the files of one worker may take: in the directory that it starts in, and in `/tmp`, `/var/tmp` and
    /// `/dev/shm` where these are its own. They are counted again and again; who has more is killed. No bound with 0.
    #[serde(rename = "disk_size_max", with = "bytes")]
    pub disk_bytes_max: u64,
    /// What the disks do for one worker at most, where its control group has that controller.
    pub io: IoLimits,
    /// What this host is to keep its workers apart by: `user`, `pid`, `tmp`, `devices`. For each that it cannot, its node
    /// has a taint, `lacks-isolation.user` and so on: only jobs that tolerate it are placed here.
    pub wanted: Vec<String>,
}

/// Whether workers get separate namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IsolationMode {
    /// Where this host has them.
    #[default]
    Auto,
    /// Or the agent does not start.
    Required,
    /// None.
    Off,
}

/// Consecutive numbers of users that nobody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UidRange {
    /// The first of them.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// Where the daemons that start containers listen; `/var/run` is `/run` on most hosts.
pub const CONTAINER_SOCKETS: [&str; 8] = [
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/run/buildkit/buildkitd.sock",
    "/run/lxd/unix.socket",
];

/// The label of a node whose workers can be bound to processors: how many NUMA nodes it has.
const NUMA_LABEL: &str = "cpu.numa-nodes";
const FACT_PREFIX: &str = "isolation.";
/// Labels of a node: what its workers are isolated by.
const FACTS: [&str; 4] = ["isolation.user", "isolation.pid", "isolation.tmp", "isolation.devices"];
/// The value of a guarantee that the host lacks.
const LACKING: &str = "none";

/// Below are users of the system and of people.
const UID_MIN: u32 = 1_000;
/// A shell with less cannot do much.
const OPEN_FILES_MIN: u64 = 64;
const PROCESSES_MIN: u64 = 16;

impl WorkersConfig {
    /// The first key that breaks its rule, and the rule.
    #[must_use]
    pub fn violation(&self) -> Option<(&'static str, String)> {
        if let Some(range) = self.uid_range {
            let end = range.first.checked_add(range.count);
            if range.first < UID_MIN || range.count == 0 || end.is_none_or(|end| end >= u32::MAX - 1) {
                return Some(("workers.uid_range", format!("must be users from {UID_MIN}, one at least")));
            }
        }
        if self.uids.values().any(|uid| *uid < UID_MIN || *uid >= u32::MAX - 1) {
            return Some(("workers.uids", format!("must be numbers of users from {UID_MIN}")));
        }
        let wants_user = self.uid_range.is_some() || !self.uids.is_empty();
        if wants_user && !geteuid().is_root() {
            return Some(("workers.uid_range", "needs an agent that is root".to_owned()));
        }
        if self
            .wanted
            .iter()
            .any(|name| !FACTS.iter().any(|fact| fact.strip_prefix(FACT_PREFIX) == Some(name.as_str())))
        {
            return Some(("workers.wanted", "must be among user, pid, tmp and devices".to_owned()));
        }
        if self.devices.iter().any(|path| !path.is_absolute()) {
            return Some(("workers.devices", "must be absolute paths".to_owned()));
        }
        if self.rlimits.open_files < OPEN_FILES_MIN || self.rlimits.processes < PROCESSES_MIN {
            let rule =
                format!("must leave {OPEN_FILES_MIN} open files and {PROCESSES_MIN} processes at least");
            return Some(("workers.rlimits", rule));
        }
        if self.rlimits.stack_bytes.is_some_and(|bytes| bytes < ULIMIT_STACK_BYTES_MIN) {
            let rule = format!("must leave {} of stack at least", ByteCount(ULIMIT_STACK_BYTES_MIN));
            return Some(("workers.rlimits", rule));
        }
        if self.isolation == IsolationMode::Off && self.private_tmp == Some(true) {
            return Some(("workers.private_tmp", "needs workers.isolation".to_owned()));
        }
        self.io.violation()
    }

    fn uid_of(&self, tenant: &str) -> Option<u32> {
        if let Some(uid) = self.uids.get(tenant) {
            return Some(*uid);
        }
        let range = self.uid_range?;
        // The same on every host, so that files on shared storage stay a tenant's own.
        Some(range.first + crc32fast::hash(tenant.as_bytes()) % range.count)
    }

    fn has_users(&self) -> bool {
        self.uid_range.is_some() || !self.uids.is_empty()
    }
}

/// What this host does for every worker.
#[derive(Debug, Default)]
pub struct Isolating {
    config: WorkersConfig,
    namespaces: Namespaces,
    /// What the control groups of workers say of disks.
    io: GroupIo,
    /// The accelerators' files of this host.
    files: DeviceFiles,
    /// Whether control groups of workers let them open only what they are told.
    has_filter: bool,
    /// The host's processors, and which workers have which.
    cores: HostCores,
    /// Which tenant each user was first given to since the agent started.
    given: Mutex<BTreeMap<u32, String>>,
}

impl Isolating {
    /// None at all.
    #[must_use]
    pub fn off() -> Isolating {
        Isolating::default()
    }

    /// What `config` asks for and the host allows; `try_out` starts a first process in such namespaces.
    ///
    /// # Errors
    /// Why there are none, where they are required.
    pub fn find(
        config: &WorkersConfig,
        try_out: impl Fn(Namespaces) -> Result<(), String>,
    ) -> Result<Isolating, String> {
        let io = config.io.of_group()?;
        let wanted = if geteuid().is_root() { Namespaces::Root } else { Namespaces::User };
        let namespaces = match config.isolation {
            IsolationMode::Off => Namespaces::Host,
            mode => match (try_out(wanted), mode) {
                (Ok(()), _) => wanted,
                (Err(why), IsolationMode::Required) => return Err(why),
                (Err(why), _) => {
                    tracing::warn!(
                        why,
                        "workers have no separate namespaces: a worker may outlive its guard"
                    );
                    Namespaces::Host
                }
            },
        };
        Ok(Isolating { config: config.clone(), namespaces, io, ..Isolating::default() })
    }

    /// The same on a host with these files of accelerators; `try_filter` has a control group hold a process to devices.
    #[must_use]
    pub fn with_devices(
        mut self,
        files: DeviceFiles,
        try_filter: impl FnOnce() -> Result<(), String>,
    ) -> Isolating {
        self.files = files;
        // Who is root in the host's own namespace of users could take it off.
        self.has_filter = self.has_users()
            && try_filter()
                .inspect_err(|why| tracing::info!(why, "control groups keep no worker from devices"))
                .is_ok();
        if let Some(why) = self.files.why_not_told_apart() {
            tracing::warn!(
                why,
                "which device file is whose is not known: workers with accelerators see all of them"
            );
        } else if !self.files.can_be_hidden() && !self.has_filter {
            tracing::warn!(
                "only control groups keep workers from these accelerators: workers with some see all of them"
            );
        }
        for (label, fact) in self.facts() {
            tracing::info!(label, fact, "isolation of workers");
        }
        self
    }

    /// The same on a host with these processors.
    #[must_use]
    pub fn with_cores(mut self, cores: HostCores) -> Isolating {
        self.cores = cores;
        self
    }

    /// The label of the node that says how many NUMA nodes its workers can be bound to; none where it binds nobody.
    #[must_use]
    pub fn binding_fact(&self) -> Option<(String, String)> {
        let nodes = self.cores.numa_nodes();
        (nodes > 0).then(|| (NUMA_LABEL.to_owned(), nodes.to_string()))
    }

    /// The labels of the node that keep jobs away whose workers it would refuse, for what it cannot do.
    pub fn lacking_facts(&self) -> impl Iterator<Item = (String, String)> + use<> {
        let binding = (self.cores.numa_nodes() == 0).then_some(WorkerFeature::Binding);
        let memory = (self.namespaces == Namespaces::Host).then_some(WorkerFeature::SharedMemory);
        let facts = [binding, memory].into_iter().flatten().map(WorkerFeature::lacking_fact);
        facts.map(|(label, value)| (label.to_owned(), value.to_owned()))
    }

    /// A worker that an earlier agent launched has what its launch says.
    pub fn adopt(&self, launch: Option<&TaskSpec>) {
        if let Some(launch) = launch {
            self.cores.adopt(launch.key, &launch.isolation.cpus, launch.isolation.binding);
        }
    }

    /// What a worker has of the host is free where it has ended.
    pub fn note(&self, event: &ExecutorEvent) {
        if let ExecutorEvent::Ended(key, _) = event {
            self.cores.release(*key);
        }
    }

    /// What keeps workers from devices that they were not given.
    #[must_use]
    pub fn device_guard(&self) -> DeviceGuard {
        // A worker that is root can do everything here to itself that its agent can undo.
        let can_undo = !self.has_users() && self.namespaces != Namespaces::User;
        if can_undo || !self.hides_devices() {
            DeviceGuard::None
        } else if self.has_filter {
            DeviceGuard::Filtered
        } else {
            DeviceGuard::Hidden
        }
    }

    /// Whether a worker that has some of the host's devices finds no others: programs then count from 0.
    #[must_use]
    pub fn hides_devices(&self) -> bool {
        let can_hide = self.namespaces != Namespaces::Host && self.files.can_be_hidden();
        self.files.why_not_told_apart().is_none() && (self.has_filter || can_hide)
    }

    /// What the files of a worker may take of the disk; 0 for no bound.
    #[must_use]
    pub fn disk_bytes_max(&self) -> u64 {
        self.config.disk_bytes_max
    }

    /// What the control group of each worker says of disks.
    #[must_use]
    pub fn io(&self) -> &GroupIo {
        &self.io
    }

    /// The processor time that a worker with this promise is held to, in thousandths; 0 for no ceiling.
    #[must_use]
    pub fn cpu_max_milli(&self, cpu_milli: u64) -> u64 {
        if self.config.cpu == CpuLimit::Ceiling { cpu_milli } else { 0 }
    }

    /// Which namespaces workers get.
    #[must_use]
    pub fn namespaces(&self) -> Namespaces {
        self.namespaces
    }

    /// Whether workers run as separate users.
    #[must_use]
    pub fn has_users(&self) -> bool {
        self.config.has_users()
    }

    fn has_private_tmp(&self) -> bool {
        let wanted = self.config.private_tmp.unwrap_or_else(|| self.has_users());
        wanted && self.namespaces != Namespaces::Host
    }

    fn closed_sockets(&self) -> Vec<PathBuf> {
        let are_closed = self.namespaces != Namespaces::Host && !self.config.container_sockets;
        if are_closed { CONTAINER_SOCKETS.map(PathBuf::from).to_vec() } else { Vec::new() }
    }

    /// Labels of the node and their values: what its workers are isolated by.
    #[must_use]
    pub fn facts(&self) -> [(&'static str, &'static str); 4] {
        let own = |has: bool, word: &'static str| if has { word } else { LACKING };
        let devices = match self.device_guard() {
            DeviceGuard::None => LACKING,
            DeviceGuard::Hidden => "hidden",
            DeviceGuard::Filtered => "filtered",
        };
        let [user, pid, tmp, device] = FACTS;
        [
            (user, own(self.has_users(), "own")),
            (pid, own(self.namespaces != Namespaces::Host, "namespace")),
            (tmp, own(self.has_private_tmp(), "private")),
            (device, devices),
        ]
    }

    /// Taints of the node: the guarantees that the configuration wants and this host lacks.
    pub fn taints(&self) -> impl Iterator<Item = String> {
        let lacking = self.facts().into_iter().filter(|(_, fact)| *fact == LACKING);
        let wanted = |label: &str| {
            let name = label.strip_prefix(FACT_PREFIX);
            self.config.wanted.iter().any(|wanted| Some(wanted.as_str()) == name)
        };
        lacking.filter(move |(label, _)| wanted(label)).map(|(label, _)| format!("lacks-{label}"))
    }

    /// How the workers of a placement are isolated.
    ///
    /// # Errors
    /// When its tenant's user is another tenant's too, or its job asks for more than the host allows.
    pub fn of(&self, placement: &Placement, shown: &[PathBuf]) -> Result<Isolation, String> {
        let user = self.config.uid_of(&placement.tenant);
        if let Some(uid) = user {
            let mut given = self.given.lock();
            let holder = given.entry(uid).or_insert_with(|| placement.tenant.clone());
            if *holder != placement.tenant {
                return Err(format!(
                    "user {uid} of this host is tenant {holder}'s already: give one of them another in workers.uids"
                ));
            }
        }
        let private_tmp = self.has_private_tmp();
        let shared_memory_bytes = placement.host.shared_memory_bytes;
        if shared_memory_bytes > 0 && self.namespaces == Namespaces::Host {
            let why = "the job asks for a size of shared memory, and workers of this host have no namespaces of mounts";
            return Err(why.to_owned());
        }
        Ok(Isolation {
            namespaces: self.namespaces,
            user,
            private_tmp,
            shown: if private_tmp { shown.to_vec() } else { Vec::new() },
            hidden: Vec::new(),
            closed_sockets: self.closed_sockets(),
            allowed: None,
            rlimits: self.config.rlimits.asked(&placement.ulimits, &self.config.rlimits_max)?,
            cpus: Vec::new(),
            binding: placement.host.binding,
            shared_memory_bytes,
        })
    }

    /// The same for one of its workers, which is to see these devices, with the processors that it is bound to.
    ///
    /// # Errors
    /// When this host cannot bind it as its job asks.
    pub fn of_worker(
        &self,
        isolation: &Isolation,
        (key, worker): (WorkerKey, &Launch),
        seen: DeviceSet,
    ) -> Result<Isolation, String> {
        let cpus = self.cores.bind(isolation.binding, key, (worker.devices, worker.cpu_milli))?;
        Ok(Isolation { cpus, ..self.with_seen(isolation, seen) })
    }

    /// The same for one of its workers, which is to see these devices.
    #[must_use]
    pub fn with_seen(&self, isolation: &Isolation, devices: DeviceSet) -> Isolation {
        let hides = isolation.namespaces != Namespaces::Host;
        Isolation {
            hidden: if hides { self.files.hidden_from(devices) } else { Vec::new() },
            allowed: self.has_filter.then(|| self.files.allowed(devices)),
            ..isolation.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Family;

    fn placement(tenant: &str) -> Placement {
        let mut order = crate::wire::tests::order();
        order.tenant = tenant.to_owned();
        crate::wire::placement(order).unwrap()
    }

    #[test]
    fn a_tenant_has_one_user_and_two_never_share_one() {
        let config = WorkersConfig {
            uid_range: Some(UidRange { first: 70_000, count: 1 }),
            uids: BTreeMap::from([("ada".to_owned(), 80_000)]),
            ..WorkersConfig::default()
        };
        let isolating = Isolating { config, ..Isolating::default() };
        let user = |tenant: &str| isolating.of(&placement(tenant), &[]).map(|isolation| isolation.user);
        assert_eq!(user("bob"), Ok(Some(70_000)));
        assert_eq!(user("bob"), Ok(Some(70_000)));
        assert_eq!(user("ada"), Ok(Some(80_000)));
        assert!(user("eve").unwrap_err().contains("tenant bob's already"));
        assert_eq!(isolating.facts()[0], ("isolation.user", "own"));
        assert_eq!(Isolating::off().of(&placement("bob"), &[]), Ok(Isolation::default()));
    }

    #[test]
    fn what_a_host_cannot_do_is_refused_and_a_bound_worker_is_told_its_processors() {
        let isolating = Isolating::off();
        let mut placement = placement("bob");
        placement.host.shared_memory_bytes = 1 << 30;
        assert!(isolating.of(&placement, &[]).unwrap_err().contains("namespaces of mounts"));
        placement.host.shared_memory_bytes = 0;
        placement.host.binding = CpuBinding::Cores;
        let isolation = isolating.of(&placement, &[]).unwrap();
        let worker = placement.workers.first().unwrap();
        let key = placement.key(worker.rank);
        let refused = isolating.of_worker(&isolation, (key, worker), DeviceSet::EMPTY).unwrap_err();
        assert!(refused.contains("binding cores"), "{refused}");
        assert_eq!(isolating.binding_fact(), None);
        let lacking: BTreeMap<String, String> = isolating.lacking_facts().collect();
        let none = |label: &str| (label.to_owned(), "none".to_owned());
        assert_eq!(lacking, [none("worker.binding"), none("worker.shared-memory")].into());
        let bound = Isolation { cpus: vec![0, 1, 8], ..isolation };
        let told = bound.variables("bob", Path::new("/work"), &BTreeMap::new());
        assert_eq!(told, [("MUSTER_CPUS".to_owned(), "0-1,8".to_owned())]);
    }

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_separate_user_has_a_home_and_a_name_unless_its_job_sets_them() {
        let work = "/var/lib/muster/tasks/7/work";
        let told = |isolation: &Isolation, of_job: &[(&str, &str)]| -> BTreeMap<String, String> {
            isolation.variables("ada", Path::new(work), &variables(of_job)).into_iter().collect()
        };
        let own = Isolation { user: Some(70_000), ..Isolation::default() };
        assert_eq!(told(&own, &[]), variables(&[("HOME", work), ("USER", "ada"), ("LOGNAME", "ada")]));
        let of_job = [("HOME", "/shared/ada"), ("USER", "ada.l")];
        assert_eq!(told(&own, &of_job), variables(&[("LOGNAME", "ada")]));
        assert!(told(&Isolation::default(), &[]).is_empty(), "it is the agent's user, and has its variables");
    }

    #[test]
    fn what_a_worker_could_undo_is_no_guarantee() {
        let files = |family, count| DeviceFiles::find(std::path::Path::new("/nowhere"), family, count, &[]);
        let users = Some(UidRange { first: 70_000, count: 1 });
        let guard_of = |family, uid_range, namespaces, can_filter: bool, count| {
            let config = WorkersConfig { uid_range, ..WorkersConfig::default() };
            let isolating = Isolating { config, namespaces, ..Isolating::default() };
            let filter = || if can_filter { Ok(()) } else { Err("no".to_owned()) };
            isolating.with_devices(files(family, count), filter).device_guard()
        };
        let guard = |uid_range, namespaces, can_filter, count| {
            guard_of(Family::Nvidia, uid_range, namespaces, can_filter, count)
        };
        assert_eq!(guard(users, Namespaces::Root, true, 0), DeviceGuard::Filtered);
        assert_eq!(guard(users, Namespaces::Host, true, 0), DeviceGuard::Filtered);
        assert_eq!(guard(users, Namespaces::Root, false, 0), DeviceGuard::Hidden);
        assert_eq!(guard(None, Namespaces::User, true, 0), DeviceGuard::Hidden);
        assert_eq!(guard(None, Namespaces::Root, true, 0), DeviceGuard::None);
        assert_eq!(guard(users, Namespaces::Host, false, 0), DeviceGuard::None);
        // AMD's library does not pass by files that are hidden.
        assert_eq!(guard_of(Family::Amd, users, Namespaces::Root, false, 0), DeviceGuard::None);
        assert_eq!(guard_of(Family::Amd, users, Namespaces::Root, true, 0), DeviceGuard::Filtered);
        // Which file is whose is not known.
        assert_eq!(guard(users, Namespaces::Root, true, 8), DeviceGuard::None);
    }

    #[test]
    fn limits_too_small_for_a_shell_are_refused() {
        let key =
            |rlimits| WorkersConfig { rlimits, ..WorkersConfig::default() }.violation().map(|(key, _)| key);
        let usual = Rlimits::default();
        assert_eq!(key(usual), None);
        assert_eq!(key(Rlimits { open_files: 3, ..usual }), Some("workers.rlimits"));
        assert_eq!(key(Rlimits { processes: 1, ..usual }), Some("workers.rlimits"));
        assert_eq!(key(Rlimits { stack_bytes: Some(9), ..usual }), Some("workers.rlimits"));
        let wanted = |name: &str| WorkersConfig { wanted: vec![name.to_owned()], ..WorkersConfig::default() };
        assert_eq!(wanted("devices").violation(), None);
        assert_eq!(wanted("isolation.user").violation().map(|(key, _)| key), Some("workers.wanted"));
        let config = WorkersConfig { devices: vec!["dev/fuse".into()], ..WorkersConfig::default() };
        assert_eq!(config.violation().map(|(key, _)| key), Some("workers.devices"));
    }

    #[test]
    fn a_job_gets_the_limits_that_it_asks_for_up_to_those_of_the_host() {
        let usual = Rlimits { open_files: 1_000, ..Rlimits::default() };
        let most =
            RlimitsMax { open_files: Some(5_000), locked_bytes: Some(1 << 20), ..RlimitsMax::default() };
        let asked = |ulimits: Ulimits| usual.asked(&ulimits, &most);
        assert_eq!(asked(Ulimits::default()), Ok(usual));
        let fewer = Ulimits { open_files: Some(100), stack_bytes: Some(1 << 26), ..Ulimits::default() };
        assert_eq!(asked(fewer), Ok(Rlimits { open_files: 100, stack_bytes: Some(1 << 26), ..usual }));
        assert_eq!(
            asked(Ulimits { open_files: Some(5_000), ..Ulimits::default() }),
            Ok(Rlimits { open_files: 5_000, ..usual })
        );
        for (ulimits, name) in [
            (Ulimits { open_files: Some(5_001), ..Ulimits::default() }, "ulimits.open_files"),
            (Ulimits { core_bytes: Some(1), ..Ulimits::default() }, "ulimits.core_bytes"),
            (Ulimits { locked_bytes: Some((1 << 20) + 1), ..Ulimits::default() }, "ulimits.locked_bytes"),
        ] {
            assert!(asked(ulimits).unwrap_err().contains(name), "{name}");
        }
        // A maximum below what every worker gets takes nothing away.
        let less = RlimitsMax {
            open_files: Some(10),
            locked_bytes: Some(1 << 20),
            stack_bytes: Some(1 << 20),
            ..RlimitsMax::default()
        };
        assert!(usual.asked(&Ulimits { open_files: Some(1_000), ..Ulimits::default() }, &less).is_ok());
        let bounded = Rlimits { locked_bytes: Some(1 << 30), stack_bytes: Some(1 << 30), ..usual };
        let same = Ulimits { locked_bytes: Some(1 << 30), stack_bytes: Some(1 << 30), ..Ulimits::default() };
        assert_eq!(bounded.asked(&same, &less), Ok(bounded));
    }

    #[test]
    fn bad_ranges_are_named() {
        let range = |first, count| {
            let config =
                WorkersConfig { uid_range: Some(UidRange { first, count }), ..WorkersConfig::default() };
            config.violation().map(|(key, _)| key)
        };
        for (first, count) in [(0, 10), (999, 1), (70_000, 0), (u32::MAX, 2), (u32::MAX - 5, 5)] {
            assert_eq!(range(first, count), Some("workers.uid_range"), "{first} {count}");
        }
    }
}
