//! Settings that parts of the agent share, and how a key that breaks its rule is refused.
//!
//! The parts depend on their own settings only; [`config`](crate::AgentConfig) puts them together.

use muster_types::config_value::bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How much output is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLimits {
    /// Bytes of one worker's output, both streams together; the newest half of it at least is kept.
    #[serde(default = "worker_bytes", rename = "worker_size_max", with = "bytes")]
    pub worker_bytes_max: u64,
    /// Free bytes that output leaves on the disk of the state directory: what would take more of it is
    /// dropped, and counted. 0 for no such care.
    #[serde(default = "free_bytes", rename = "free_space_min", with = "bytes")]
    pub free_bytes_min: u64,
    /// Ended workers whose directories are kept.
    #[serde(default = "ended_workers")]
    pub ended_workers_max: usize,
    /// Bytes that the directories of ended workers may take together.
    #[serde(default = "ended_bytes", rename = "ended_size_max", with = "bytes")]
    pub ended_bytes_max: u64,
}

/// Whether and where workers get separate control groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlGroups {
    /// Below the agent's own group, where that may be done.
    Auto,
    /// None.
    Off,
    /// Below this directory of a version 2 hierarchy.
    Below(PathBuf),
}

/// What holds workers to the memory they were promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryLimit {
    /// Their control groups where these have the controller, else their shims, which look at what they
    /// use.
    #[default]
    Enforced,
    /// Their control groups alone.
    Group,
    /// Nothing.
    Off,
}

pub(crate) fn first_block() -> String {
    "block-0".to_owned()
}

pub(crate) fn first_rack() -> String {
    "rack-0".to_owned()
}

fn worker_bytes() -> u64 {
    64 << 20
}

fn free_bytes() -> u64 {
    512 << 20
}

fn ended_workers() -> usize {
    256
}

fn ended_bytes() -> u64 {
    8 << 30
}

impl LogLimits {
    /// 64 MiB a worker, with 512 MiB left free; 256 ended workers and 8 GiB of them.
    #[must_use]
    pub fn usual() -> LogLimits {
        LogLimits {
            worker_bytes_max: worker_bytes(),
            free_bytes_min: free_bytes(),
            ended_workers_max: ended_workers(),
            ended_bytes_max: ended_bytes(),
        }
    }
}

impl ControlGroups {
    pub(crate) fn auto() -> ControlGroups {
        ControlGroups::Auto
    }
}

/// A key that breaks its rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("configuration key {key}: {rule}")]
pub struct ConfigError {
    /// The key, dotted.
    pub key: String,
    /// What it needs.
    pub rule: String,
}

pub(crate) fn broken(key: &str, rule: impl Into<String>) -> ConfigError {
    ConfigError { key: key.to_owned(), rule: rule.into() }
}

/// PATH, HOME, USER, LOGNAME, LANG and TMPDIR as this process has them, and the variables named.
#[must_use]
pub(crate) fn base_environment(pass: &[String]) -> BTreeMap<String, String> {
    let usual = [
        ("PATH", Some("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")),
        ("HOME", Some("/")),
        // Programs ask for the name of their user, and the host's list of users is slow or lacks it on some hosts.
        ("USER", None),
        ("LOGNAME", None),
        ("LANG", Some("C.UTF-8")),
        ("TMPDIR", None),
    ];
    let usual = usual.into_iter().filter_map(|(name, otherwise)| {
        let value = std::env::var(name).ok().or(otherwise.map(str::to_owned))?;
        Some((name.to_owned(), value))
    });
    let passed = pass.iter().filter_map(|name| std::env::var(name).ok().map(|value| (name.clone(), value)));
    usual.chain(passed).collect()
}
