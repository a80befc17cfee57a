//! Leases: what lets at most one incarnation of a gang run.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

use crate::ids::{LogIndex, ParseIdError};
use crate::reason::Violation;

/// What a holder must present. Tokens order lexicographically; a lower one than any seen for a job
/// is refused. The generation rises only when a cluster is rebuilt from a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FencingToken {
    /// The generation of the cluster, from 1.
    pub generation: u32,
    /// The record that granted the lease.
    pub log_index: LogIndex,
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.log_index)
    }
}

impl FromStr for FencingToken {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // One text per token: no sign and no leading zeros, which `parse` would let through.
        let plain = |number: &str| {
            number.bytes().all(|b| b.is_ascii_digit()) && (number == "0" || !number.starts_with('0'))
        };
        let parse = || {
            let (generation, index) = text.split_once('.')?;
            if !plain(generation) || !plain(index) {
                return None;
            }
            Some(FencingToken {
                generation: generation.parse().ok()?,
                log_index: LogIndex(index.parse().ok()?),
            })
        };
        parse().ok_or(ParseIdError { expected: "a fencing token: <generation>.<log index>" })
    }
}

/// How one worker process ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ExitStatus {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// The agent ended it because the node's session lease ran out.
    LeaseExpired,
    /// It never started; the text says why.
    LaunchFailed(String),
    /// The agent has no trace of it (restart of the machine, lost state directory).
    Vanished,
    /// The gang was stopped before this worker's process existed.
    NotStarted,
    /// It used more memory than it had asked for.
    OutOfMemory,
    /// It wrote more to its scratch directory than it had asked for.
    OutOfScratch,
    /// A device or the host failed under it; the text says how.
    NodeFault(String),
    /// The cluster below, another scheduler, lost it; the text says how.
    BackendLost(String),
    /// It never started: the check of its gang's network found its node at fault; the text says how.
    PreflightFailed(String),
}

impl ExitStatus {
    /// Whether the worker did what it was asked to.
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, ExitStatus::Code(0))
    }

    /// Whether the end says something about the application, rather than about the place it ran.
    #[must_use]
    pub fn is_application(&self) -> bool {
        matches!(
            self,
            ExitStatus::Code(_)
                | ExitStatus::Signal(_)
                | ExitStatus::LaunchFailed(_)
                | ExitStatus::OutOfMemory
                | ExitStatus::OutOfScratch
        )
    }

    /// Whether the place it ran in was at fault.
    #[must_use]
    pub fn is_eviction(&self) -> bool {
        matches!(
            self,
            ExitStatus::LeaseExpired
                | ExitStatus::Vanished
                | ExitStatus::NodeFault(_)
                | ExitStatus::BackendLost(_)
                | ExitStatus::PreflightFailed(_)
        )
    }

    /// The text that comes with it.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            ExitStatus::LaunchFailed(text)
            | ExitStatus::NodeFault(text)
            | ExitStatus::BackendLost(text)
            | ExitStatus::PreflightFailed(text) => Some(text),
            _ => None,
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExitStatus::Code(code) => write!(f, "exit code {code}"),
            ExitStatus::Signal(signal) => write!(f, "signal {signal}"),
            ExitStatus::LeaseExpired => f.write_str("stopped: the node's lease ran out"),
            ExitStatus::LaunchFailed(why) => write!(f, "could not start: {why}"),
            ExitStatus::Vanished => f.write_str("vanished with its node's state"),
            ExitStatus::NotStarted => f.write_str("not started: the gang was stopped first"),
            ExitStatus::OutOfMemory => f.write_str("used more memory than it had asked for"),
            ExitStatus::OutOfScratch => {
                f.write_str("wrote more to its scratch directory than it had asked for")
            }
            ExitStatus::NodeFault(how) => write!(f, "its node failed: {how}"),
            ExitStatus::BackendLost(how) => write!(f, "lost by the cluster below: {how}"),
            ExitStatus::PreflightFailed(how) => write!(f, "not started: {how}"),
        }
    }
}

/// Replicated parameters, fixed when the cluster is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// A node's session: the agent stops everything this long after it *sent* the last heartbeat
    /// that was acknowledged.
    pub lease_ttl_ms: u64,
    /// Beyond the time to live, from the *acknowledgement*: the time an agent needs to stop its
    /// workers, plus the drift allowed between two clocks over one time to live.
    pub lease_margin_ms: u64,
    /// How often an agent sends a heartbeat.
    pub heartbeat_interval_ms: u64,
    /// How long a request id is remembered; less under pressure, see [`Parameters::requests_held_max`].
    pub request_retention_ms: u64,
    /// How long a finished job is kept in the state; less under pressure, see [`Parameters::jobs_held_max`].
    pub job_retention_ms: u64,
    /// How long a lost node is kept before it is forgotten by itself.
    pub node_retention_ms: u64,
    /// Records between two state digests in the log.
    pub digest_interval_records: u64,
    /// Jobs in the state, finished ones among them. When it fills up, the oldest finished jobs go before their
    /// time; when there are none, submissions are refused.
    pub jobs_held_max: u64,
    /// Request ids in the state. When it fills up, the oldest go before their time, but none is younger than
    /// [`Parameters::REQUEST_RETENTION_MIN_MS`]; beyond that, submissions are refused.
    pub requests_held_max: u64,
}

impl Parameters {
    /// How long a request id is remembered whatever the pressure: longer than any client repeats a call.
    pub const REQUEST_RETENTION_MIN_MS: u64 = 600_000;

    /// What a cluster gets that says nothing: sessions of 10 s, request ids for a day, jobs and
    /// lost nodes for a week.
    pub const DEFAULT: Parameters = Parameters {
        lease_ttl_ms: 10_000,
        lease_margin_ms: 3_000,
        heartbeat_interval_ms: 2_000,
        request_retention_ms: 24 * 3_600 * 1_000,
        job_retention_ms: 7 * 24 * 3_600 * 1_000,
        node_retention_ms: 7 * 24 * 3_600 * 1_000,
        digest_interval_records: 1_000,
        jobs_held_max: 4_000_000,
        requests_held_max: 8_000_000,
    };

    /// How long an agent may take to stop a worker once its lease has run out: SIGTERM, this long,
    /// SIGKILL. Half of the margin; the other half is for clock drift and the kill itself.
    #[must_use]
    pub fn lease_stop_grace_ms(&self) -> u64 {
        self.lease_margin_ms / 2
    }

    /// A node whose last heartbeat is older than this is silent: two did not come, and not for being late. Its
    /// lease stands, but what has a choice does not begin there.
    #[must_use]
    pub fn silence_ms(&self) -> u64 {
        self.heartbeat_interval_ms * 5 / 2
    }

    /// Every rule that is broken, by the key that it has in a configuration file.
    #[must_use]
    pub fn violations(&self) -> alloc::vec::Vec<Violation> {
        let mut found = alloc::vec::Vec::new();
        let mut bound = |field: &'static str, value: u64, min: u64, max: u64| {
            if value < min || value > max {
                found.push(Violation::limit(field, value, min, max));
            }
        };
        bound("digest_interval_records", self.digest_interval_records, 1, 1_000_000);
        bound("jobs_held_max", self.jobs_held_max, 1_000, 100_000_000);
        bound("requests_held_max", self.requests_held_max, 1_000, 100_000_000);
        let mut bound = |field: &'static str, ms: u64, min: u64, max: u64| {
            if ms < min || ms > max {
                found.push(Violation::span(field, ms, min, max));
            }
        };
        bound("lease_ttl", self.lease_ttl_ms, 500, 3_600_000);
        bound("lease_margin", self.lease_margin_ms, 200, 600_000);
        // At least three heartbeats to a time to live: two may be lost before the agent stops its work.
        bound("heartbeat_interval", self.heartbeat_interval_ms, 50, self.lease_ttl_ms / 3);
        bound("request_retention", self.request_retention_ms, 60_000, 366 * 24 * 3_600_000);
        bound("job_retention", self.job_retention_ms, 60_000, 366 * 24 * 3_600_000);
        // Far above any session: who is forgotten has been silent for long.
        bound("node_retention", self.node_retention_ms, 3_600_000, 366 * 24 * 3_600_000);
        found
    }
}
