//! What a replica's share in the agreement is started with.
//!
//! How long a failover takes follows from two numbers. A follower refuses every vote for one lease
//! (= `election_timeout_max_ms`) after it last heard the leader, and campaigns a random
//! `election_timeout_min_ms..max_ms` after that. So with a heartbeat every `h`, a killed leader is
//! replaced after about `max + min..max − h/2`: at 80/160/320 ms some 0.5 s, at 300/700/1200 ms
//! about 2 s. A heartbeat's answer counts only if it returns within one heartbeat interval, so the
//! interval has to exceed the round trip to the nearest quorum; and a stall of a process, not of its
//! disk, counts as silence.
//!
//! **Invariant:** every limit is finite.

use crate::reads::Pace;
use muster_store::ReplicaNode;
use muster_types::{ClusterId, ReplicaId};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Where to reach a replica, when that is not its own `peer_endpoint`: for address translation,
/// split names, and fault injection between two replicas.
pub type Dial = Arc<dyn Fn(ReplicaId, &ReplicaNode) -> String + Send + Sync>;

/// Heartbeats and elections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How often a leader is heard. Larger than the round trip to the nearest quorum.
    pub heartbeat_interval_ms: u64,
    /// The earliest a follower campaigns after the lease lapsed.
    pub election_timeout_min_ms: u64,
    /// The latest; also the leader's lease.
    pub election_timeout_max_ms: u64,
}

impl Timing {
    /// Replicas on one machine or in one region, round trips below 20 ms.
    pub const LOCAL: Timing =
        Timing { heartbeat_interval_ms: 80, election_timeout_min_ms: 160, election_timeout_max_ms: 320 };
    /// Replicas in several regions, round trips up to 150 ms.
    pub const WIDE: Timing =
        Timing { heartbeat_interval_ms: 300, election_timeout_min_ms: 700, election_timeout_max_ms: 1_200 };

    pub(crate) fn lease(self) -> Duration {
        Duration::from_millis(self.election_timeout_max_ms)
    }

    /// After this much silence of the quorum a leader counts as deaf: longer than a lease, so that
    /// a leader that merely missed a heartbeat is left alone.
    pub(crate) fn silence_max(self) -> Duration {
        self.lease() + self.lease() / 4
    }

    /// Rounds of reads: a twentieth of a heartbeat apart while another runs, so that a round trip to
    /// another region is shared by a few rounds and one inside a region by none; and one for every
    /// second heartbeat without reads, which is as good as a measure needs to be.
    pub(crate) fn read_pace(self) -> Pace {
        let heartbeat = Duration::from_millis(self.heartbeat_interval_ms.max(1));
        Pace { pause: heartbeat / 20, sample: heartbeat * 2 }
    }

    /// A request that was not answered for this long ends its stream.
    pub(crate) fn stall_max(self) -> Duration {
        (self.lease() * 2).max(Duration::from_millis(1_000))
    }
}

/// When snapshots are made and what of the log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// A snapshot is made after this many entries; `None` only on demand.
    pub every_entries: Option<u64>,
    /// Entries kept behind a snapshot, so that a follower that was away briefly needs none.
    pub kept_entries: u64,
}

/// Bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one payload.
    pub payload_bytes_max: usize,
    /// Bytes of one message between replicas. An entry at its limit has to fit.
    pub message_bytes_max: usize,
    /// Proposals that may wait for the protocol.
    pub proposals_waiting_max: u64,
    /// Entries in one request between replicas.
    pub request_entries_max: u64,
    /// Entries in one call of apply.
    pub apply_entries_max: usize,
    /// Callers that may wait for one confirmation of leadership.
    pub confirmations_waiting_max: usize,
}

/// What [`Consensus::start`](crate::Consensus::start) needs to know.
#[derive(Clone)]
pub struct ConsensusConfig {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// This replica.
    pub replica_id: ReplicaId,
    /// Heartbeats and elections.
    pub timing: Timing,
    /// Snapshots.
    pub snapshots: SnapshotPolicy,
    /// Bounds.
    pub limits: Limits,
    /// How peers are reached, when not at their `peer_endpoint`.
    pub dial: Option<Dial>,
}

/// Why a configuration was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// The timing does not let elections work.
    #[error("the timing is not usable: {0}")]
    Timing(String),
    /// A limit is zero or contradicts another.
    #[error("the limits are not usable: {0}")]
    Limits(&'static str),
}

impl ConsensusConfig {
    /// The values a server in one region runs with.
    #[must_use]
    pub fn new(cluster_id: ClusterId, replica_id: ReplicaId) -> Self {
        ConsensusConfig {
            cluster_id,
            replica_id,
            timing: Timing::LOCAL,
            snapshots: SnapshotPolicy { every_entries: Some(20_000), kept_entries: 5_000 },
            limits: Limits {
                payload_bytes_max: 2 << 20,
                message_bytes_max: 8 << 20,
                proposals_waiting_max: 8_192,
                request_entries_max: 1_024,
                apply_entries_max: 256,
                confirmations_waiting_max: 65_536,
            },
            dial: None,
        }
    }

    pub(crate) fn to_openraft(&self) -> Result<openraft::Config, ConfigError> {
        let limits = &self.limits;
        if limits.payload_bytes_max == 0
            || limits.apply_entries_max == 0
            || limits.confirmations_waiting_max == 0
        {
            return Err(ConfigError::Limits("a limit is zero"));
        }
        // A read returns up to 1 MiB and then one more entry; the rest is framing.
        if limits.message_bytes_max < limits.payload_bytes_max + (2 << 20) {
            return Err(ConfigError::Limits("a message cannot hold an entry at its limit"));
        }
        let snapshots = self.snapshots;
        let config = openraft::Config {
            cluster_name: self.cluster_id.to_string(),
            heartbeat_interval: self.timing.heartbeat_interval_ms,
            election_timeout_min: self.timing.election_timeout_min_ms,
            election_timeout_max: self.timing.election_timeout_max_ms,
            max_payload_entries: limits.request_entries_max,
            max_append_entries: Some(1_024),
            snapshot_policy: snapshots
                .every_entries
                .map_or(openraft::SnapshotPolicy::Never, openraft::SnapshotPolicy::LogsSinceLast),
            max_in_snapshot_log_to_keep: snapshots.kept_entries,
            purge_batch_size: 1_024.min(snapshots.every_entries.unwrap_or(1_024)).max(1),
            // A follower that lags further than the log reaches needs a snapshot anyway; one that
            // lags less is better served from the log, so the threshold never forces it.
            replication_lag_threshold: u64::MAX / 2,
            api_channel_size: Some(limits.proposals_waiting_max),
            enable_pre_vote: Some(true),
            // A leader that restarts within its term could answer reads from half-replayed state.
            enable_leader_restore: Some(false),
            // A leader that lost its quorum falls silent for a while, so that others can elect.
            quorum_loss_probe_interval: Some(self.timing.election_timeout_max_ms * 2),
            // An unreachable peer is tried again soon: coming back fast matters more than a few connects.
            backoff: "20ms 50ms 100ms ..250ms".to_owned(),
            // The installing side takes as long as it takes; a stall is the stream's matter.
            install_snapshot_timeout: 600_000,
            ..openraft::Config::default()
        };
        config.validate().map_err(|error| ConfigError::Timing(error.to_string()))
    }
}
