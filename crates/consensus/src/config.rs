//! What a replica's share in the agreement is started with.
//!
//! How long a failover takes follows from two numbers. A follower refuses every vote for one lease
//! (= `election_timeout_max_ms`) after it last heard the leader, and campaigns a random
//! `election_timeout_min_ms..max_ms` after that. So with a heartbeat every `h`, a killed leader is
//! replaced after about `max + min..max − h/2`: at 80/160/320 ms some 0.5 s, at 200/450/750 ms
//! about 1.2 s. A heartbeat's answer counts only if it returns within one heartbeat interval, so the
//! interval has to exceed the round trip to the nearest quorum; and a stall of a process, not of its
//! disk, counts as silence.
//!
//! **Invariant:** every limit is finite.

use crate::marks::StateMarks;
use muster_planted::{Rule, breaks};
use muster_store::{ReplicaNode, StorageHealth};
use muster_transport::Security;
use muster_types::{ClusterId, ReplicaId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;

/// Where to reach a replica, when that is not its own `peer_endpoint`: for address translation,
/// split names, and fault injection between two replicas.
pub type Dial = Arc<dyn Fn(ReplicaId, &ReplicaNode) -> String + Send + Sync>;

/// Members of one cluster, learners included.
pub const MEMBERS_MAX: usize = 16;

/// Pauses between the rounds of reads.
#[derive(Clone, Copy)]
pub(crate) struct ReadPace {
    /// Between the beginnings of two rounds that overlap.
    pub(crate) pause: Duration,
    /// Without reads, a round begins this long after the one before.
    pub(crate) sample: Duration,
}

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
        Timing { heartbeat_interval_ms: 200, election_timeout_min_ms: 450, election_timeout_max_ms: 750 };

    pub(crate) fn lease(self) -> Duration {
        Duration::from_millis(self.election_timeout_max_ms)
    }

    /// After this much silence of the quorum a leader counts as deaf. It is long enough that a leader that missed one
    /// heartbeat on a busy machine is left alone, and shorter than a lease: followers that still hear the leader
    /// refuse every vote for a lease after its last request.
    pub(crate) fn silence_max(self) -> Duration {
        (self.lease() * 3 / 4).max(Duration::from_millis(400))
    }

    /// One phase of a deaf leader: two of them are longer than a lease and an election after it.
    pub(crate) fn silent_phase(self) -> Duration {
        self.lease() + self.lease() / 4
    }

    /// Rounds of reads: a twentieth of a heartbeat apart while another runs, so that a round trip to
    /// another region is shared by a few rounds and one inside a region by none; and one for every
    /// second heartbeat without reads, which is as good as a measure needs to be.
    pub(crate) fn read_pace(self) -> ReadPace {
        let heartbeat = Duration::from_millis(self.heartbeat_interval_ms.max(1));
        ReadPace { pause: heartbeat / 20, sample: heartbeat * 2 }
    }

    /// A request that was not answered for this long ends its stream.
    pub(crate) fn stall_max(self) -> Duration {
        (self.lease() * 2).max(Duration::from_millis(1_000))
    }
}

/// When snapshots are made, and how much of the log is kept. The first limit that is reached makes one, as long as the
/// entries since the newest snapshot are in proportion to its bytes; the bounds on what a restart replays make one in any
/// case. The log behind a snapshot is cut to the tighter of the two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// A snapshot is made after this many entries.
    pub every_entries: Option<u64>,
    /// After this many bytes of entries.
    pub every_bytes: Option<u64>,
    /// At this age, in milliseconds, if anything was applied since.
    pub every_ms: Option<u64>,
    /// Percent of the newest snapshot's bytes that entries must have brought since, so that a large state is not written
    /// again for little; for the age alone, an eighth of that. None for no such proportion.
    pub share_percent: Option<u64>,
    /// Entries that a restart replays at most: a snapshot is made whatever the proportion.
    pub replay_entries_max: Option<u64>,
    /// Bytes of entries that a restart replays at most.
    pub replay_bytes_max: Option<u64>,
    /// Entries kept behind a snapshot, so that a follower that was away briefly needs none.
    pub kept_entries: u64,
    /// Bytes of entries kept behind a snapshot.
    pub kept_bytes: Option<u64>,
    /// Bytes a second that an upload of a snapshot to a peer may use, so that a follower that comes
    /// back does not slow the cluster.
    pub send_bytes_per_s: Option<u64>,
}

impl SnapshotPolicy {
    /// Snapshots are made on demand only, and nothing is kept behind them.
    pub const ON_DEMAND: SnapshotPolicy = SnapshotPolicy {
        every_entries: None,
        every_bytes: None,
        every_ms: None,
        share_percent: None,
        replay_entries_max: None,
        replay_bytes_max: None,
        kept_entries: 0,
        kept_bytes: None,
        send_bytes_per_s: None,
    };
    /// What a server runs with. Replay takes some 190,000 records a second, and a record has about 40 bytes in the log:
    /// what a restart replays at most takes it about ten seconds.
    pub const PRODUCTION: SnapshotPolicy = SnapshotPolicy {
        every_entries: Some(20_000),
        every_bytes: Some(16 << 20),
        every_ms: Some(3_600_000),
        share_percent: Some(50),
        replay_entries_max: Some(200_000),
        replay_bytes_max: Some(64 << 20),
        // The bytes are the bound: a follower that was away for a moment at full load still finds its place.
        kept_entries: 500_000,
        kept_bytes: Some(256 << 20),
        send_bytes_per_s: Some(64 << 20),
    };
}

/// What this replica says of itself to its peers.
#[derive(Clone, Debug, Default)]
pub struct Advertise {
    /// The release it runs; at most 64 bytes of it are passed on.
    pub version: String,
    /// The newest record format it reads.
    pub format_max: u32,
    /// What its state came to.
    pub marks: StateMarks,
    /// Whether its storage is in memory: then nothing of it survives a restart of the machine.
    pub is_volatile: bool,
}

/// Who should lead, and when leadership is transferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderPolicy {
    /// Regions in the order in which they should lead; none given, none preferred. A leader
    /// elsewhere transfers leadership to a healthy voter in the best region that has one.
    pub preferred_regions: Vec<String>,
    /// The order in which replicas campaign; who is not named comes after those who are, in the
    /// order of the ids. The same on every replica, or votes are split more often; nothing worse.
    pub election_ranks: BTreeMap<ReplicaId, u32>,
    /// How long leader and successor have to be well before leadership moves to a better region, in
    /// milliseconds, and how long nothing moves after that.
    pub settle_ms: u64,
    /// How often peers are asked how they fare, in milliseconds.
    pub report_interval_ms: u64,
}

impl Default for LeaderPolicy {
    fn default() -> Self {
        LeaderPolicy {
            preferred_regions: Vec::new(),
            election_ranks: BTreeMap::new(),
            settle_ms: 30_000,
            report_interval_ms: 1_000,
        }
    }
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
    /// What this replica says of itself to its peers.
    pub advertise: Advertise,
    /// Who should lead.
    pub leader: LeaderPolicy,
    /// Replicas to ask when this one's storage was emptied and it has to rejoin; those of the configuration
    /// file.
    pub known_peers: BTreeMap<ReplicaId, ReplicaNode>,
    /// How storage fares, where that is not what the store says of itself: for fault injection.
    pub storage_health: Option<watch::Receiver<StorageHealth>>,
    /// How replicas know one another. With certificates, each is dialled by its own name and heard under
    /// no other.
    pub security: Security,
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
    /// An interval is zero or a preference is named twice.
    #[error("the leader policy is not usable: {0}")]
    Leader(&'static str),
}

impl ConsensusConfig {
    /// The values a server in one region runs with.
    #[must_use]
    pub fn new(cluster_id: ClusterId, replica_id: ReplicaId) -> Self {
        ConsensusConfig {
            cluster_id,
            replica_id,
            timing: Timing::LOCAL,
            snapshots: SnapshotPolicy::PRODUCTION,
            limits: Limits {
                payload_bytes_max: 2 << 20,
                message_bytes_max: 8 << 20,
                proposals_waiting_max: 8_192,
                request_entries_max: 1_024,
                apply_entries_max: 256,
                confirmations_waiting_max: 65_536,
            },
            dial: None,
            advertise: Advertise::default(),
            leader: LeaderPolicy::default(),
            known_peers: BTreeMap::new(),
            storage_health: None,
            security: Security::Plaintext,
        }
    }

    /// The protocol's own settings.
    ///
    /// # Errors
    /// When they let no election work, or a limit contradicts another.
    pub fn to_openraft(&self) -> Result<openraft::Config, ConfigError> {
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
        let leader = &self.leader;
        if leader.report_interval_ms == 0 || leader.settle_ms == 0 {
            return Err(ConfigError::Leader("an interval is zero"));
        }
        if self.snapshots.send_bytes_per_s == Some(0) {
            return Err(ConfigError::Limits("a snapshot could never be sent"));
        }
        let config = openraft::Config {
            cluster_name: self.cluster_id.to_string(),
            heartbeat_interval: self.timing.heartbeat_interval_ms,
            election_timeout_min: self.timing.election_timeout_min_ms,
            election_timeout_max: self.timing.election_timeout_max_ms,
            max_payload_entries: limits.request_entries_max,
            max_append_entries: Some(1_024),
            // `compaction` asks for them, by size and age as well, and again after one failed.
            snapshot_policy: openraft::SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: self.snapshots.kept_entries,
            purge_batch_size: 1_024.min(self.snapshots.every_entries.unwrap_or(1_024)).max(1),
            // A follower that lags further than the log reaches needs a snapshot anyway; one that
            // lags less is better served from the log, so the threshold never forces it.
            replication_lag_threshold: u64::MAX / 2,
            api_channel_size: Some(limits.proposals_waiting_max),
            enable_pre_vote: Some(true),
            // A leader that restarts within its term could answer reads from half-replayed state.
            enable_leader_restore: Some(breaks(Rule::LeaderRestore)),
            // A leader that lost its quorum falls silent for a while, so that others can elect.
            quorum_loss_probe_interval: (!breaks(Rule::DeafLeaderSpeaks))
                .then_some(self.timing.election_timeout_max_ms * 2),
            // An unreachable peer is tried again soon: coming back fast matters more than a few connects.
            backoff: "20ms 50ms 100ms ..250ms".to_owned(),
            // The installing side takes as long as it takes; a stall is the stream's matter.
            install_snapshot_timeout: 600_000,
            ..openraft::Config::default()
        };
        config.validate().map_err(|error| ConfigError::Timing(error.to_string()))
    }
}
