//! What an operator tells an agent that stands for a Slurm cluster.
//!
//! **Invariant:** every refusal names the key and what the key needs.

use crate::settings::{ConfigError, broken, first_block, first_rack};
use muster_types::config_value::span_ms;
use muster_types::{Name, Violation};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The `[slurm]` table.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlurmConfig {
    /// Node `n1` of Slurm is node `<name>.n1` of Muster; the agent's certificate is for this name.
    pub name: String,
    /// Region of its nodes.
    pub region: String,
    /// Fleet cluster of its nodes: one network that a gang can use.
    pub cluster: String,
    /// Spine block of its nodes.
    #[serde(default = "first_block")]
    pub block: String,
    /// Rack of its nodes.
    #[serde(default = "first_rack")]
    pub rack: String,
    /// Facts about all of its nodes; the partitions of each come as label `slurm-partition.<name>`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Taints of all of its nodes.
    #[serde(default)]
    pub taints: Vec<String>,
    /// Partitions whose nodes are used, the preferred first; all that are up when empty.
    #[serde(default)]
    pub partitions: Vec<String>,
    /// Types of GRES `gpu` to accelerator types of Muster (`a100_80gb` to `a100`); key `""` for those that
    /// Slurm gives no type. A type that is not named keeps its name.
    #[serde(default)]
    pub accelerator_types: BTreeMap<String, String>,
    /// Account that is charged; Slurm's default for the user when absent.
    #[serde(default)]
    pub account: Option<String>,
    /// Quality of service.
    #[serde(default)]
    pub qos: Option<String>,
    /// Where this agent waits for what it started inside allocations.
    pub listen: SocketAddr,
    /// `host:port` at which Slurm's nodes reach that; `listen` itself when absent.
    #[serde(default)]
    pub advertise: Option<String>,
    /// Program and arguments of the runner, as found on Slurm's nodes; `shim_command` and `slurm` when empty.
    #[serde(default)]
    pub runner_command: Vec<String>,
    /// A directory on Slurm's nodes, on a local disk; each runner makes its own below and removes it. What one leaves that
    /// is killed goes with the next on that node.
    #[serde(default = "runner_directory")]
    pub runner_directory: PathBuf,
    /// Where Slurm writes what the runner itself prints: a pattern for `sbatch --output`.
    #[serde(default = "runner_output")]
    pub runner_output: String,
    /// Where `sbatch` and its kind are; looked up in PATH when absent.
    #[serde(default)]
    pub bin_directory: Option<PathBuf>,
    /// Variables for those commands, for example `SLURM_CONF`.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Between two looks at Slurm's queue and nodes.
    #[serde(default = "poll_interval", rename = "poll_interval", with = "span_ms")]
    pub poll_interval_ms: u64,
    /// What one call may take; a stopped controller makes commands wait 10 to 18 s by themselves.
    #[serde(default = "call_timeout", rename = "call_timeout", with = "span_ms")]
    pub call_timeout_ms: u64,
    /// Calls at once.
    #[serde(default = "calls_at_once")]
    pub calls_at_once: usize,
    /// Submissions a second at most.
    #[serde(default = "submissions_per_second")]
    pub submissions_per_second: u32,
    /// How long Slurm may keep a submitted job waiting before the place is given up.
    #[serde(default = "start_wait", rename = "start_wait", with = "span_ms")]
    pub start_wait_ms: u64,
    /// From the start of a batch job to its runner's first word.
    #[serde(default = "runner_wait", rename = "runner_wait", with = "span_ms")]
    pub runner_wait_ms: u64,
}

fn runner_directory() -> PathBuf {
    PathBuf::from("/tmp")
}

fn runner_output() -> String {
    "/dev/null".to_owned()
}

fn poll_interval() -> u64 {
    2_000
}

fn call_timeout() -> u64 {
    30_000
}

fn calls_at_once() -> usize {
    4
}

fn submissions_per_second() -> u32 {
    50
}

fn start_wait() -> u64 {
    120_000
}

fn runner_wait() -> u64 {
    60_000
}

/// The same, checked.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) name: Name,
    pub(super) region: Name,
    pub(super) cluster: Name,
    pub(super) block: Name,
    pub(super) rack: Name,
    pub(super) labels: BTreeMap<Name, String>,
    pub(super) taints: BTreeSet<Name>,
    pub(super) advertise: String,
    pub(super) runner_command: Vec<String>,
    pub(super) poll_interval: Duration,
    pub(super) start_wait: Duration,
    pub(super) runner_wait: Duration,
    pub(super) written: SlurmConfig,
}

impl SlurmConfig {
    /// The first key that breaks its rule.
    pub(crate) fn violation(&self, shim_command: &[String]) -> Option<ConfigError> {
        self.check(shim_command).err()
    }

    /// Checks every key.
    ///
    /// # Errors
    /// The first that breaks its rule.
    pub(super) fn check(&self, shim_command: &[String]) -> Result<Settings, ConfigError> {
        let name = |key: &str, text: &str| {
            Name::new(text).ok_or_else(|| broken(key, format!("must be {}", muster_types::name::NAME_RULE)))
        };
        self.check_words()?;
        self.check_numbers()?;
        let mut labels = BTreeMap::new();
        for (key, value) in &self.labels {
            labels.insert(name("slurm.labels", key)?, value.clone());
        }
        let mut taints = BTreeSet::new();
        for taint in &self.taints {
            taints.insert(name("slurm.taints", taint)?);
        }
        for kind in self.accelerator_types.values() {
            name("slurm.accelerator_types", kind)?;
        }
        let runner_command = match self.runner_command.as_slice() {
            [] => [shim_command, &["slurm".to_owned()]].concat(),
            words => words.to_vec(),
        };
        if runner_command.first().is_none_or(|program| !program.starts_with('/')) {
            return Err(broken("slurm.runner_command", "must begin with the absolute path of a program"));
        }
        let advertise = self.advertise.clone().unwrap_or_else(|| self.listen.to_string());
        if self.advertise.is_none() && self.listen.ip().is_unspecified() {
            return Err(broken("slurm.advertise", "must say what to dial where `listen` is every address"));
        }
        if advertise
            .rsplit_once(':')
            .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
        {
            return Err(broken("slurm.advertise", "must be host:port"));
        }
        Ok(Settings {
            name: name("slurm.name", &self.name)?,
            region: name("slurm.region", &self.region)?,
            cluster: name("slurm.cluster", &self.cluster)?,
            block: name("slurm.block", &self.block)?,
            rack: name("slurm.rack", &self.rack)?,
            labels,
            taints,
            advertise,
            runner_command,
            poll_interval: Duration::from_millis(self.poll_interval_ms),
            start_wait: Duration::from_millis(self.start_wait_ms),
            runner_wait: Duration::from_millis(self.runner_wait_ms),
            written: self.clone(),
        })
    }

    /// What ends up as an argument of a command: no options may be slipped in, no lines be broken.
    fn check_words(&self) -> Result<(), ConfigError> {
        let words = self
            .partitions
            .iter()
            .map(|word| ("slurm.partitions", word))
            .chain(self.account.iter().map(|word| ("slurm.account", word)))
            .chain(self.qos.iter().map(|word| ("slurm.qos", word)));
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        for (key, word) in words {
            if word.is_empty() || word.len() > 128 || word.starts_with('-') || !word.bytes().all(plain) {
                return Err(broken(key, format!("{word:?} is no name that Slurm could have")));
            }
        }
        if self.runner_output.is_empty() || self.runner_output.chars().any(char::is_control) {
            return Err(broken("slurm.runner_output", "must be a file name"));
        }
        if !self.runner_directory.is_absolute() {
            return Err(broken("slurm.runner_directory", "must be an absolute path"));
        }
        if self.bin_directory.as_ref().is_some_and(|path| !path.is_absolute()) {
            return Err(broken("slurm.bin_directory", "must be an absolute path"));
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        let ranges = [
            ("slurm.calls_at_once", self.calls_at_once as u64, 1, 64),
            ("slurm.submissions_per_second", u64::from(self.submissions_per_second), 1, 1_000),
        ];
        let spans = [
            ("slurm.poll_interval", self.poll_interval_ms, 100, 60_000),
            ("slurm.call_timeout", self.call_timeout_ms, 1_000, 600_000),
            ("slurm.start_wait", self.start_wait_ms, 1_000, 86_400_000),
            ("slurm.runner_wait", self.runner_wait_ms, 1_000, 3_600_000),
        ];
        for (key, ms, least, most) in spans {
            if !(least..=most).contains(&ms) {
                return Err(broken(key, Violation::span(key, ms, least, most).description));
            }
        }
        for (key, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(broken(key, format!("must be {least} to {most}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn good() -> SlurmConfig {
        serde_json::from_value(serde_json::json!({
            "name": "slurm-a", "region": "eu", "cluster": "eu-a", "listen": "127.0.0.1:7500",
        }))
        .unwrap()
    }

    fn shim() -> Vec<String> {
        vec!["/usr/bin/muster".into(), "shim".into()]
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let settings = good().check(&shim()).unwrap();
        assert_eq!(settings.advertise, "127.0.0.1:7500");
        assert_eq!(settings.runner_command, ["/usr/bin/muster", "shim", "slurm"]);
        assert_eq!(settings.poll_interval, Duration::from_secs(2));
    }

    #[test]
    fn durations_have_their_unit_in_the_value() {
        let read = |key: &str, value: serde_json::Value| -> Result<Duration, String> {
            let mut file = serde_json::to_value(good()).unwrap();
            file[key] = value;
            let config: SlurmConfig = serde_json::from_value(file).map_err(|error| error.to_string())?;
            config.check(&shim()).map(|settings| settings.start_wait).map_err(|error| error.to_string())
        };
        assert_eq!(read("start_wait", "1m30s".into()), Ok(Duration::from_secs(90)));
        for (value, parts) in [
            (serde_json::json!(90_000), ["`90000`", "expected a duration like 90s"]),
            (serde_json::json!("90"), ["\"90\"", "expected a duration like 90s"]),
            (serde_json::json!("64Mi"), ["\"64Mi\"", "expected a duration like 90s"]),
            (serde_json::json!("2d"), ["slurm.start_wait: must be between 1s and 1d", "got 2d"]),
        ] {
            let said = read("start_wait", value).unwrap_err();
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        }
    }

    #[test]
    fn the_broken_key_is_named() {
        let key = |change: fn(&mut SlurmConfig)| {
            let mut config = good();
            change(&mut config);
            config.check(&shim()).unwrap_err().key
        };
        assert_eq!(key(|c| c.name = "No".into()), "slurm.name");
        assert_eq!(key(|c| c.account = Some("--uid=0".into())), "slurm.account");
        assert_eq!(key(|c| c.partitions = vec!["a b".into()]), "slurm.partitions");
        assert_eq!(key(|c| c.listen = "0.0.0.0:1".parse().unwrap()), "slurm.advertise");
        assert_eq!(key(|c| c.advertise = Some("host".into())), "slurm.advertise");
        assert_eq!(key(|c| c.poll_interval_ms = 1), "slurm.poll_interval");
        assert_eq!(key(|c| c.call_timeout_ms = 1), "slurm.call_timeout");
        assert_eq!(key(|c| c.runner_command = vec!["muster".into()]), "slurm.runner_command");
        assert_eq!(key(|c| c.runner_output = "a\nb".into()), "slurm.runner_output");
        assert_eq!(key(|c| c.runner_directory = "tmp".into()), "slurm.runner_directory");
        assert_eq!(key(|c| c.taints = vec!["No".into()]), "slurm.taints");
    }
}
