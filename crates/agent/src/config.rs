//! What an operator tells the agent, checked before anything is done.
//!
//! **Invariant:** every refusal names the key and what the key needs; nothing is guessed.

use crate::discovery;
use crate::former_keys::FORMER_KEYS;
use crate::health::{HealthConfig, Inventory};
use crate::kubernetes::KubernetesConfig;
use crate::limits;
use crate::process::host_commands::HostCommandConfig;
use crate::process::isolation::WorkersConfig;
use crate::process::runtime::ImagesConfig;
use crate::process::work_files::FilesConfig;
use crate::settings::{
    ConfigError, ControlGroups, LogLimits, MemoryLimit, base_environment, broken, first_block, first_rack,
};
use crate::slurm::SlurmConfig;
use crate::temporary::SCRATCH_BASE_BYTES_MAX;
use muster_traces::TracesFile;
use muster_types::config_value::{bytes, cpu_milli};
use muster_types::former_key::WrittenKeys;
use muster_types::tpu::PodPosition;
use muster_types::{Accelerators, LogFormat, Name, NodeDraft, NodeSpec, Violation};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// What may be kept of one worker's output, in bytes.
const WORKER_BYTES_MIN: u64 = 4 << 10;
const WORKER_BYTES_MAX: u64 = 1 << 40;

/// The agent's configuration, as written.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// The agent's own directory; on a local disk, one per agent.
    pub state_dir: PathBuf,
    /// Replicas to dial, any of them: `http://host:port` or `host:port`.
    pub endpoints: Vec<String>,
    /// This host; absent where the agent stands for the nodes of another scheduler.
    #[serde(default)]
    pub node: Option<NodeConfig>,
    /// The Slurm cluster whose nodes this agent stands for.
    #[serde(default)]
    pub slurm: Option<SlurmConfig>,
    /// The Kubernetes cluster whose nodes this agent stands for.
    #[serde(default)]
    pub kubernetes: Option<KubernetesConfig>,
    /// Program and first arguments of a shim; the binary that mounts this crate fills it in.
    #[serde(default)]
    pub shim_command: Vec<String>,
    /// The small program that guards a worker, two processes of it for each: `muster-shim`, where it is installed
    /// next to the binary that mounts this crate. Without it, or where it is of another release, `shim_command`.
    #[serde(default)]
    pub shim_program: Option<PathBuf>,
    /// Shims that wait for workers, so that a start need not make them: as many as the last start needed, and at most
    /// this many, workers that run included, each for as many as it has devices. As many as there are devices, 8 at
    /// most, when not said; 0 for none at all.
    #[serde(default)]
    pub ready_workers: Option<usize>,
    /// How much output is kept.
    #[serde(default = "LogLimits::usual")]
    pub logs: LogLimits,
    /// Variables of the agent's own environment that every worker gets.
    #[serde(default)]
    pub pass_environment: Vec<String>,
    /// Where secrets are that jobs name in their environment as `muster-secret://NAME`: each a file, readable by the
    /// agent alone, in a directory that has its tenant's name. Without it such jobs do not start here.
    #[serde(default)]
    pub secrets_dir: Option<PathBuf>,
    /// Where workers have their scratch directories, on a local disk of which `node.scratch` is for them alone. The directory is there, and
    /// the agent may write to it.
    #[serde(default)]
    pub scratch_dir: Option<PathBuf>,
    /// Whether and where workers get control groups.
    #[serde(default = "ControlGroups::auto")]
    pub control_groups: ControlGroups,
    /// What holds workers to the memory they were promised.
    #[serde(default)]
    pub memory_limit: MemoryLimit,
    /// What keeps workers from this host and from each other.
    #[serde(default)]
    pub workers: WorkersConfig,
    /// Images that workers have the root directories of.
    #[serde(default)]
    pub images: ImagesConfig,
    /// Files of jobs, which clients send.
    #[serde(default)]
    pub files: FilesConfig,
    /// What is run on this host before each worker.
    #[serde(default)]
    pub prolog: HostCommandConfig,
    /// What is run on this host after each worker.
    #[serde(default)]
    pub epilog: HostCommandConfig,
    /// What is run on this host before the first rank of each gang. The other ranks do not wait for it.
    #[serde(default)]
    pub job_prolog: HostCommandConfig,
    /// What is run on this host after the first rank of each gang, whether or not the other ranks have ended.
    #[serde(default)]
    pub job_epilog: HostCommandConfig,
    /// The agent's certificate, its key, and the cluster's authorities; without them it speaks plaintext.
    #[serde(default)]
    pub tls: Option<muster_transport::TlsFiles>,
    /// Where probes of the network reach this host, at `node.address`: a separate address, and a port or 0
    /// for any. It listens only while a probe lasts.
    #[serde(default = "probe_listen")]
    pub probe_listen: SocketAddr,
    /// Where monitoring systems and probes connect, over HTTP: `/metrics`, `/livez` and `/readyz`. Without certificates a
    /// loopback address. Nowhere when not said.
    #[serde(default)]
    pub http_listen: Option<SocketAddr>,
    /// Where spans of this agent are sent.
    #[serde(default)]
    pub traces: TracesFile,
    /// The form of log lines on standard error.
    #[serde(default)]
    pub log_format: LogFormat,
    /// A directory on memory for the lease, which must be renewed while disks hang; `/run/muster-agent` when not said, where
    /// `/run` is on memory and the agent root. Else the lease is in the state directory.
    #[serde(default)]
    pub runtime_dir: Option<PathBuf>,
    /// How the host's health is watched.
    #[serde(default)]
    pub health: HealthConfig,
    /// Where the host's `/dev` and `/proc` are, for an agent in a container that has them elsewhere.
    #[serde(default = "host_root")]
    pub host_root: PathBuf,
    /// Where the kernel says which boot this is.
    #[serde(default = "boot_id_path")]
    pub boot_id_path: PathBuf,
}

/// What the agent says of its host.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Unique in the Muster cluster.
    pub name: String,
    /// Region.
    pub region: String,
    /// Fleet cluster: one network that a gang can use.
    pub cluster: String,
    /// Spine block.
    #[serde(default = "first_block")]
    pub block: String,
    /// Rack or NVLink domain.
    #[serde(default = "first_rack")]
    pub rack: String,
    /// What other hosts of the cluster reach it by, without a port.
    pub address: String,
    /// Declared, or found by the agent.
    #[serde(default)]
    pub accelerators: AcceleratorConfig,
    /// CPUs for workers, in thousandths.
    #[serde(rename = "cpu", with = "cpu_milli")]
    pub cpu_milli: u64,
    /// Bytes of memory for workers.
    #[serde(rename = "memory", with = "bytes")]
    pub memory_bytes: u64,
    /// Bytes of the disk of `scratch_dir` for workers.
    #[serde(default, rename = "scratch", with = "bytes")]
    pub scratch_bytes: u64,
    /// Free-form facts.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Only jobs that tolerate every one of these are placed here.
    #[serde(default)]
    pub taints: Vec<String>,
    /// Its place in a TPU pod.
    #[serde(default)]
    pub pod: Option<PodConfig>,
}

/// Where a host is in a TPU pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodConfig {
    /// Unique in the fleet cluster.
    pub pod: String,
    /// The cube in its pod, from 0; a grid pod has none.
    #[serde(default)]
    pub cube: u16,
    /// Coordinates x, y, z of its first chip, inside the cube or on the grid.
    pub at: [u8; 3],
}

/// Where the knowledge of accelerators comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcceleratorConfig {
    /// There is none.
    #[default]
    None,
    /// The agent looks; a host without accelerators is fine.
    Discover,
    /// As declared.
    #[serde(untagged)]
    Declared {
        /// For example `h100`.
        r#type: String,
        /// How many.
        count: u32,
    },
}

impl AcceleratorConfig {
    /// What was found, so that nobody looks again.
    pub(crate) fn of(found: Option<&Accelerators>) -> AcceleratorConfig {
        found.map_or(AcceleratorConfig::None, |found| AcceleratorConfig::Declared {
            r#type: found.kind.to_string(),
            count: found.count.into(),
        })
    }
}

fn probe_listen() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 0))
}

fn host_root() -> PathBuf {
    PathBuf::from("/")
}

fn boot_id_path() -> PathBuf {
    PathBuf::from("/proc/sys/kernel/random/boot_id")
}

impl AgentConfig {
    /// The commands that are run around workers and jobs, by the tables that state them.
    pub(crate) fn host_commands(&self) -> [(&'static str, &HostCommandConfig); 4] {
        [
            ("prolog", &self.prolog),
            ("epilog", &self.epilog),
            ("job_prolog", &self.job_prolog),
            ("job_epilog", &self.job_epilog),
        ]
    }

    /// Refuses a key of an earlier form, which had the unit in the key, with the one that replaced it. A reader asks this
    /// before it reads the file as a configuration, which knows the present keys alone.
    ///
    /// # Errors
    /// The first such key.
    pub fn refuse_former(written: &WrittenKeys) -> Result<(), ConfigError> {
        written.former(&FORMER_KEYS).map_or(Ok(()), |(key, rule)| Err(broken(key, rule)))
    }

    /// Checks every key and settles what this host is. `root` is `/`, but for tests of discovery.
    ///
    /// # Errors
    /// The first key that breaks its rule.
    pub fn check(&self, root: &Path) -> Result<NodeSpec, ConfigError> {
        self.check_with(root, None)
    }

    /// The same with what the driver's library lists: what it knows better than files do.
    ///
    /// # Errors
    /// The first key that breaks its rule.
    pub fn check_with(&self, root: &Path, listed: Option<&Inventory>) -> Result<NodeSpec, ConfigError> {
        self.check_own()?;
        self.check_alone()?;
        match &self.node {
            Some(node) if node.scratch_bytes > 0 && self.scratch_dir.is_none() => {
                Err(broken("scratch_dir", "must be given where the node gives scratch"))
            }
            Some(node) => node.check(root, listed),
            None => Err(broken("node", "must describe this host")),
        }
    }

    /// Checks that the agent is for one thing: this host, or the nodes of one other scheduler.
    ///
    /// # Errors
    /// The key that is one too many.
    pub(crate) fn check_alone(&self) -> Result<(), ConfigError> {
        let rule = "an agent is for a host or for one cluster: not together with";
        match (&self.node, &self.slurm, &self.kubernetes) {
            (_, Some(_), Some(_)) => Err(broken("kubernetes", format!("{rule} slurm"))),
            (Some(_), Some(_), None) => Err(broken("slurm", format!("{rule} node"))),
            (Some(_), None, Some(_)) => Err(broken("kubernetes", format!("{rule} node"))),
            _ => Ok(()),
        }
    }

    /// Checks the keys that every agent has.
    ///
    /// # Errors
    /// The first key that breaks its rule.
    pub(crate) fn check_own(&self) -> Result<(), ConfigError> {
        if let Some((key, rule)) = self.health.violation() {
            return Err(broken(key, rule));
        }
        if let Some((key, rule)) = self.workers.violation() {
            return Err(broken(key, rule));
        }
        if let Some((key, rule)) = self.images.violation() {
            return Err(broken(key, rule));
        }
        if let Some((key, rule)) = self.files.violation() {
            return Err(broken(key, rule));
        }
        self.traces.check().map_err(|error| broken(error.key, error.rule))?;
        for (table, command) in self.host_commands() {
            if let Some((key, rule)) = command.violation(table) {
                return Err(broken(&key, rule));
            }
        }
        if !self.state_dir.is_absolute() {
            return Err(broken("state_dir", "must be an absolute path"));
        }
        if !self.host_root.is_absolute() {
            return Err(broken("host_root", "must be an absolute path"));
        }
        if self.runtime_dir.as_ref().is_some_and(|directory| !directory.is_absolute()) {
            return Err(broken("runtime_dir", "must be an absolute path"));
        }
        if self.endpoints.is_empty() || self.endpoints.len() > 64 {
            return Err(broken("endpoints", "must name 1 to 64 replicas"));
        }
        if self.shim_command.first().is_none_or(|program| !program.starts_with('/')) {
            return Err(broken("shim_command", "must begin with the absolute path of a program"));
        }
        if self.shim_program.as_ref().is_some_and(|program| !program.is_absolute()) {
            return Err(broken("shim_program", "must be an absolute path"));
        }
        let is_open = |address: &SocketAddr| self.tls.is_none() && !address.ip().is_loopback();
        if let Some(address) = self.http_listen.filter(is_open) {
            let rule = format!(
                "{address} can be reached from other machines, and without certificates this is plaintext: must be a loopback \
                 address, or `tls` be there"
            );
            return Err(broken("http_listen", rule));
        }
        if self.ready_workers.is_some_and(|workers| workers > limits::READY_WORKERS_MAX) {
            let rule = format!("must be at most {}", limits::READY_WORKERS_MAX);
            return Err(broken("ready_workers", rule));
        }
        let (key, size) = ("logs.worker_size_max", self.logs.worker_bytes_max);
        if !(WORKER_BYTES_MIN..=WORKER_BYTES_MAX).contains(&size) {
            let violation = Violation::size(key, size, WORKER_BYTES_MIN, WORKER_BYTES_MAX);
            return Err(broken(key, violation.description));
        }
        if self.logs.ended_workers_max > 10_000 {
            return Err(broken("logs.ended_workers_max", "must be at most 10000"));
        }
        if self.secrets_dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
            return Err(broken("secrets_dir", "must be an absolute path"));
        }
        let is_short = |dir: &PathBuf| dir.as_os_str().len() <= SCRATCH_BASE_BYTES_MAX;
        if self.scratch_dir.as_ref().is_some_and(|dir| !dir.is_absolute() || !is_short(dir)) {
            let rule = format!("must be an absolute path of at most {SCRATCH_BASE_BYTES_MAX} bytes");
            return Err(broken("scratch_dir", rule));
        }
        if self.pass_environment.len() > 64 {
            return Err(broken("pass_environment", "must name at most 64 variables"));
        }
        if let Some(bad) = self.pass_environment.iter().find(|name| !is_variable(name)) {
            return Err(broken("pass_environment", format!("{bad:?} is no variable that may be passed on")));
        }
        if let ControlGroups::Below(parent) = &self.control_groups
            && !parent.join("cgroup.procs").exists()
        {
            return Err(broken("control_groups", "must be a directory of a version 2 hierarchy"));
        }
        Ok(())
    }

    /// PATH, HOME, USER, LOGNAME, LANG and TMPDIR as the agent has them, and the variables that are passed on.
    #[must_use]
    pub(crate) fn base_environment(&self) -> BTreeMap<String, String> {
        base_environment(&self.pass_environment)
    }
}

fn is_variable(name: &str) -> bool {
    let form = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    !name.is_empty() && name.len() <= 256 && name.bytes().all(form) && !name.starts_with("MUSTER_")
}

impl NodeConfig {
    fn check(&self, root: &Path, listed: Option<&Inventory>) -> Result<NodeSpec, ConfigError> {
        let name = |key: &str, text: &str| {
            Name::new(text).ok_or_else(|| broken(key, format!("must be {}", muster_types::name::NAME_RULE)))
        };
        let divided = listed.map(Inventory::divided).unwrap_or_default();
        let accelerators = match &self.accelerators {
            AcceleratorConfig::None => None,
            // The numbers of devices say nothing there: a worker would get an instance that is another's, or none.
            AcceleratorConfig::Discover if !divided.is_empty() => None,
            AcceleratorConfig::Declared { .. } if !divided.is_empty() => {
                return Err(broken(
                    "node.accelerators",
                    format!(
                        "must be `none`: devices {divided:?} are divided into instances (MIG), which no worker can be given; end \
                         that with `nvidia-smi -mig 0`, and accelerators can be offered again"
                    ),
                ));
            }
            AcceleratorConfig::Discover => {
                listed.and_then(discovery::listed).or_else(|| discovery::discover(root))
            }
            AcceleratorConfig::Declared { r#type, count } => Some(Accelerators {
                kind: name("node.accelerators.type", r#type)?,
                count: u16::try_from(*count)
                    .map_err(|_| broken("node.accelerators.count", "must be 1 to 64"))?,
            }),
        };
        // What an operator says goes before what was found.
        let mut labels = listed.map(Inventory::labels).unwrap_or_default();
        for (key, value) in &self.labels {
            labels.insert(name("node.labels", key)?, value.clone());
        }
        let mut taints = BTreeSet::new();
        for (index, taint) in self.taints.iter().enumerate() {
            if !taints.insert(name(&format!("node.taints[{index}]"), taint)?) {
                return Err(broken(&format!("node.taints[{index}]"), format!("names {taint} again")));
            }
        }
        let pod = match &self.pod {
            None => None,
            Some(PodConfig { pod, cube, at }) => {
                Some(PodPosition { pod: name("node.pod.pod", pod)?, cube: *cube, at: *at })
            }
        };
        let draft = NodeDraft {
            name: name("node.name", &self.name)?,
            region: name("node.region", &self.region)?,
            cluster: name("node.cluster", &self.cluster)?,
            block: name("node.block", &self.block)?,
            rack: name("node.rack", &self.rack)?,
            address: self.address.clone(),
            accelerators,
            cpu_milli: self.cpu_milli,
            memory_bytes: self.memory_bytes,
            scratch_bytes: self.scratch_bytes,
            labels,
            taints,
            pod,
        };
        draft.check().map_err(|found| match found.into_iter().next() {
            Some(first) => {
                let key = match first.field.as_str() {
                    "cpu_milli" => "cpu",
                    "memory_bytes" => "memory",
                    "scratch_bytes" => "scratch",
                    field => field,
                };
                broken(&format!("node.{key}"), first.description)
            }
            None => broken("node", "breaks a rule"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> serde_json::Value {
        serde_json::json!({
            "state_dir": "/var/lib/muster-agent",
            "endpoints": ["127.0.0.1:7070"],
            "shim_command": ["/usr/bin/muster", "shim"],
            "node": {
                "name": "gpu-a", "region": "eu", "cluster": "eu-a", "address": "10.0.0.1",
                "accelerators": {"type": "h100", "count": 8}, "cpu": 8, "memory": "1Gi",
            },
        })
    }

    fn check(change: impl FnOnce(&mut serde_json::Value)) -> Result<NodeSpec, ConfigError> {
        let mut value = good();
        change(&mut value);
        serde_json::from_value::<AgentConfig>(value).unwrap().check(Path::new("/nowhere"))
    }

    #[test]
    fn a_good_configuration_and_the_forms_of_accelerators() {
        assert_eq!(check(|_| ()).unwrap().device_count(), 8);
        assert_eq!(check(|v| v["node"]["accelerators"] = "discover".into()).unwrap().device_count(), 0);
        assert_eq!(check(|v| v["node"]["accelerators"] = "none".into()).unwrap().device_count(), 0);
    }

    #[test]
    fn a_host_that_gives_scratch_says_where_it_is() {
        assert_eq!(check(|_| ()).unwrap().scratch_bytes, 0);
        let gives = |value: &mut serde_json::Value| value["node"]["scratch"] = "2Ti".into();
        let refused = |found: Result<NodeSpec, ConfigError>| found.unwrap_err().to_string();
        assert!(refused(check(gives)).contains("scratch_dir"));
        let there = check(|value| {
            gives(value);
            value["scratch_dir"] = "/local/scratch".into();
        });
        assert_eq!(there.unwrap().scratch_bytes, 2 << 40);
        for bad in ["scratch", &format!("/{}", "x".repeat(SCRATCH_BASE_BYTES_MAX))] {
            assert!(refused(check(|value| value["scratch_dir"] = bad.into())).contains("scratch_dir"));
        }
    }

    #[test]
    fn a_host_that_is_divided_into_instances_is_not_described_by_hand() {
        let device = |divided| crate::health::ListedDevice {
            uuid: "GPU-1".into(),
            model: "NVIDIA H100".into(),
            memory_bytes: 80 << 30,
            bus: None,
            clique: None,
            divided,
        };
        let devices = vec![Some(device(false)), Some(device(true))];
        let listed = Inventory { driver: "570.1".into(), devices };
        let check = |accelerators: serde_json::Value| {
            let mut value = good();
            value["node"]["accelerators"] = accelerators;
            let config = serde_json::from_value::<AgentConfig>(value).unwrap();
            config.check_with(Path::new("/nowhere"), Some(&listed))
        };
        let refused = check(serde_json::json!({"type": "h100-1g", "count": 7})).unwrap_err().to_string();
        assert!(refused.contains("node.accelerators") && refused.contains("[1]"), "{refused}");
        for offered in ["discover", "none"] {
            let spec = check(offered.into()).unwrap();
            assert_eq!((spec.device_count(), spec.labels.len()), (0, 4), "{:?}", spec.labels);
        }
    }

    #[test]
    fn taints_and_a_place_in_a_pod() {
        let place = |at: [u8; 3]| {
            check(move |v| {
                v["node"]["accelerators"] = serde_json::json!({"type": "v5p", "count": 4});
                v["node"]["taints"] = serde_json::json!(["spot"]);
                v["node"]["pod"] = serde_json::json!({"pod": "pod-a", "cube": 3, "at": at});
            })
        };
        let spec = place([2, 0, 1]).unwrap();
        assert_eq!(spec.taints.iter().map(Name::as_str).collect::<Vec<_>>(), ["spot"]);
        assert_eq!(spec.pod.as_ref().map(ToString::to_string).as_deref(), Some("pod-a/3/(2, 0, 1)"));
        // Hosts of 2x2x1 chips lie side by side.
        let error = place([1, 0, 0]).unwrap_err();
        assert!(error.key.starts_with("node."), "{error}");
        assert!(error.rule.contains("(1, 0, 0) is no place of a v5p host of 4 chips"), "{error}");
        let gpu = check(|v| v["node"]["pod"] = serde_json::json!({"pod": "p", "at": [0, 0, 0]})).unwrap_err();
        assert_eq!(gpu.key, "node.pod");
        assert!(gpu.rule.contains("h100 is no TPU generation"), "{gpu}");
    }

    #[test]
    fn the_broken_key_is_named() {
        let key = |change: fn(&mut serde_json::Value)| check(change).unwrap_err().key;
        assert_eq!(key(|v| v["state_dir"] = "relative".into()), "state_dir");
        assert_eq!(key(|v| v["endpoints"] = serde_json::json!([])), "endpoints");
        assert_eq!(key(|v| v["shim_command"] = serde_json::json!(["muster"])), "shim_command");
        assert_eq!(key(|v| v["shim_program"] = "muster-shim".into()), "shim_program");
        assert_eq!(key(|v| v["ready_workers"] = 65.into()), "ready_workers");
        assert_eq!(key(|v| v["http_listen"] = "0.0.0.0:7470".into()), "http_listen");
        assert!(check(|v| v["http_listen"] = "127.0.0.1:0".into()).is_ok());
        assert_eq!(key(|v| v["node"]["name"] = "No".into()), "node.name");
        assert_eq!(key(|v| v["node"]["cpu"] = 0.into()), "node.cpu");
        assert_eq!(key(|v| v["node"]["taints"] = serde_json::json!(["ok", "No"])), "node.taints[1]");
        assert_eq!(key(|v| v["node"]["taints"] = serde_json::json!(["a", "a"])), "node.taints[1]");
        assert_eq!(key(|v| v["pass_environment"] = serde_json::json!(["A=B"])), "pass_environment");
        assert_eq!(key(|v| v["logs"] = serde_json::json!({"worker_size_max": 1})), "logs.worker_size_max");
        assert_eq!(key(|v| v["prolog"] = serde_json::json!({"command": ["true"]})), "prolog.command");
        assert_eq!(key(|v| v["traces"] = serde_json::json!({"endpoint": "collector"})), "traces.endpoint");
        assert_eq!(key(|v| v["epilog"] = serde_json::json!({"timeout": "1d"})), "epilog.timeout");
        assert_eq!(key(|v| v["job_prolog"] = serde_json::json!({"command": ["true"]})), "job_prolog.command");
        let unknown = serde_json::from_value::<AgentConfig>(serde_json::json!({"stat_dir": "/x"}));
        assert!(unknown.is_err());
    }

    /// The refusal of a configuration with this value of this key in this table, if any; a dot leads to a table in a table.
    fn said_of(table: &str, key: &str, value: &serde_json::Value) -> Result<(), String> {
        let mut file = good();
        let mut place = &mut file;
        for name in table.split('.') {
            place = &mut place[name];
        }
        place[key] = value.clone();
        let written: WrittenKeys = serde_json::from_value(file.clone()).unwrap();
        AgentConfig::refuse_former(&written).map_err(|error| error.to_string())?;
        let config: AgentConfig = serde_json::from_value(file).map_err(|error| error.to_string())?;
        config.check(Path::new("/nowhere")).map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn quantities_are_read_and_refused_with_the_form_that_is_needed() {
        for (table, key, value) in [
            ("node", "cpu", "500m"),
            ("node", "memory", "1.5Gi"),
            ("logs", "worker_size_max", "4Ki"),
            ("logs", "free_space_min", "0"),
            ("logs", "ended_size_max", "64G"),
            ("workers", "disk_size_max", "200G"),
            ("workers.rlimits", "core_size", "1Mi"),
            ("workers.rlimits", "locked_memory", "64GiB"),
            ("workers.rlimits_max", "stack_size", "1Gi"),
            ("health", "hang", "1m30s"),
        ] {
            assert_eq!(said_of(table, key, &value.into()), Ok(()), "{table}.{key}");
        }
        let (span, bytes) = ("expected a duration like 90s", "expected bytes like 64MiB");
        for (table, key, value, parts) in [
            (
                "node",
                "cpu",
                serde_json::json!("8 cores"),
                ["\"8 cores\"", "expected CPUs like 2, 0.5 or 500m"],
            ),
            ("node", "memory", serde_json::json!("1h"), ["\"1h\"", bytes]),
            ("logs", "ended_size_max", serde_json::json!("8 GB"), ["\"8 GB\"", bytes]),
            ("logs", "worker_size_max", serde_json::json!("2Ti"), ["must be between 4Ki and 1Ti", "got 2Ti"]),
            ("workers", "disk_size_max", serde_json::json!(-1), ["`-1`", bytes]),
            ("workers.rlimits", "locked_memory", serde_json::json!("much"), ["\"much\"", bytes]),
            ("health", "hang", serde_json::json!(30_000), ["`30000`", span]),
            ("health", "poll_interval", serde_json::json!("2h"), ["must be between 10ms and 1h", "got 2h"]),
            ("health", "slowdown_window", serde_json::json!("2d"), ["must be between 5s and 1d", "got 2d"]),
        ] {
            let said = said_of(table, key, &value).unwrap_err();
            assert!(parts.iter().all(|part| said.contains(part)), "{table}.{key}: {said}");
        }
    }

    #[test]
    fn every_earlier_key_is_refused_with_one_that_is_read() {
        for former in FORMER_KEYS {
            let (table, was) = former.was().rsplit_once('.').unwrap();
            let said = said_of(table, was, &serde_json::json!(64_000)).unwrap_err();
            let expected =
                format!("configuration key {table}.{was}: is now `{}`, with the unit", former.now());
            assert!(said.starts_with(&expected), "{said}");
            // What it says to write is a key: the list of those that are known has it, and not the earlier one.
            let known = said_of(table, "no_such_key", &serde_json::json!(1)).unwrap_err();
            assert!(known.contains(&format!("`{}`", former.now())), "{known}");
            assert!(!known.contains(&format!("`{was}`")), "{known}");
        }
        let said = said_of("health", "hang_ms", &serde_json::json!(30_000)).unwrap_err();
        assert!(said.contains("hang = \"30s\"; takes a duration like 90s"), "{said}");
    }
}
