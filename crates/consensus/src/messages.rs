//! What replicas tell and ask one another next to the protocol, as values.
//!
//! **Invariant:** a report never decides what is committed; it is advice, with its age.

use crate::marks::StateMark;
use muster_store::{ReplicaNode, Space, StorageHealth, Vote};
use muster_types::ReplicaId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Bytes of a version that are passed on.
const VERSION_BYTES_MAX: usize = 64;

/// What a replica reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// The release it runs.
    pub version: String,
    /// The newest record format it reads.
    pub format_max: u32,
    /// The cluster's generation as it knows it.
    pub generation: u32,
    /// How its storage fares.
    pub storage: StorageHealth,
    /// The last entry it applied.
    pub applied_index: Option<u64>,
    /// The last entry of its log.
    pub last_log_index: Option<u64>,
    /// Where its newest snapshot ends.
    pub snapshot_index: Option<u64>,
    /// Its storage lost what it had promised, and it has not rejoined yet.
    pub rejoining: bool,
    /// What its wall clock showed, in milliseconds since 1970; `None` from a release that does not report it.
    pub unix_ms: Option<u64>,
    /// Which founding of the cluster it belongs to, where it knows.
    pub founding: Option<u64>,
    /// Its storage is in memory, and lost with its machine.
    pub is_volatile: bool,
    /// The digest of its state, where it states one.
    pub state: Option<StateMark>,
    /// Whether that is another than the leader's behind the same entry.
    pub has_diverged: bool,
    /// When the report arrived here.
    pub received_at: Instant,
}

/// The newest report of each replica.
pub(crate) type Reports = BTreeMap<ReplicaId, PeerReport>;

impl PeerReport {
    /// How old the report is.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age_at(Instant::now())
    }

    /// How old the report is at a time.
    pub(crate) fn age_at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.received_at)
    }

    /// What the replica's wall clock says at a time, in milliseconds since 1970, if it has gone on since the report.
    #[must_use]
    pub fn unix_ms_at(&self, now: Instant) -> Option<u64> {
        self.unix_ms.map(|then| then.saturating_add(millis(self.age_at(now))))
    }

    /// Whether storage takes new work and keeps up.
    #[must_use]
    pub fn storage_is_well(&self) -> bool {
        self.storage.space == Space::Enough && self.storage.stalled_ms.is_none() && !self.rejoining
    }
}

/// As much of a version as is passed on.
pub(crate) fn bounded_version(text: &str) -> String {
    let mut end = text.len().min(VERSION_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What a replica that lost its storage asks the leader for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejoinStep {
    /// To be removed and added again as a learner.
    AddAsLearner,
    /// To get its vote back.
    RestoreVote,
}

/// What a replica that lost its storage knows of whether it voted. The leader that took its vote may end before it gives
/// the vote back, and no later one could know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormerVote {
    /// An earlier release does not report it.
    Unreported,
    /// The replica asks, and nothing is to be changed yet.
    Queried,
    /// A leader has told it.
    Known(bool),
}

/// The request of a replica that lost its storage to the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejoinRequest {
    /// For what.
    pub step: RejoinStep,
    /// What it knows of its vote.
    pub voted: FormerVote,
    /// Whether an earlier attempt may have removed it and not added it again.
    pub begun: bool,
    /// Its endpoints, for a leader that no longer has it as a member.
    pub node: ReplicaNode,
}

/// What a leader has done for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejoinGrant {
    /// The entry that added it again; 0 where it only asked whether it voted.
    pub from_index: u64,
    /// The leadership that did so.
    pub vote: Vote,
    /// Whether it voted before.
    pub voted: bool,
}
