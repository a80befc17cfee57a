//! Outcomes and refusals of the consensus interface.

use crate::config::ConfigError;
use crate::leader::NotLeader;
use muster_store::StoreError;
use muster_types::ReplicaId;
use thiserror::Error;

/// A proposal is committed on a quorum, durably, and applied here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its position in the log.
    pub raft_index: u64,
}

/// What became of a proposal that was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProposeError {
    /// Certainly not appended: this replica does not lead, or not under that leadership.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// Certainly not appended: too many proposals wait.
    #[error("too many proposals wait")]
    Overloaded,
    /// Certainly not appended: the payload is too large.
    #[error("the payload has {bytes} bytes, more than {bytes_max}")]
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// It may or may not be committed, now or later.
    #[error("the outcome of the proposal is unknown: the leadership ended first")]
    Unknown,
    /// The replica stops; whether it was appended is unknown.
    #[error("the replica stops")]
    Shutdown,
}

/// Why consensus could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The cluster that was to be founded exists.
    #[error(
        "{peer} has this cluster already, and a second one must not be founded: a replica whose disk was \
         lost or replaced comes back with --rebuild, and a new one with --join"
    )]
    Exists {
        /// Who has it.
        peer: ReplicaId,
    },
    /// The data directory could not be marked.
    #[error("the founding cannot be written to the data directory")]
    Mark(#[source] StoreError),
    /// The configuration was refused.
    #[error("the consensus configuration was refused")]
    Config(#[from] ConfigError),
    /// The protocol refused what storage holds.
    #[error("starting the protocol failed: {detail}")]
    Raft {
        /// What it said.
        detail: String,
    },
    /// The first membership was refused.
    #[error("initialising the cluster failed: {detail}")]
    Initialize {
        /// What it said.
        detail: String,
    },
    /// A stored snapshot could not be restored.
    #[error("restoring the newest snapshot failed")]
    Restore(#[from] crate::application::ApplicationError),
    /// Storage refused.
    #[error("opening storage failed")]
    Store(#[from] StoreError),
}

/// Why a change of membership or leadership was not made.
#[derive(Clone, Debug, Error)]
pub enum MembershipError {
    /// Another replica leads.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// Another change is being made.
    #[error("another change is being made: {running}")]
    Busy {
        /// Which.
        running: String,
    },
    /// There is no such member.
    #[error("{replica} is not a member")]
    NotMember {
        /// Who was named.
        replica: ReplicaId,
    },
    /// It is a member already, elsewhere.
    #[error("{replica} is a member already, at {peer_endpoint}")]
    AlreadyMember {
        /// Who was named.
        replica: ReplicaId,
        /// Where it is reached.
        peer_endpoint: String,
    },
    /// A learner lacks too much to vote.
    #[error("{replica} lacks {lag_entries} entries; a voter may lack {lag_entries_max}")]
    NotCaughtUp {
        /// The learner.
        replica: ReplicaId,
        /// What it lacks.
        lag_entries: u64,
        /// What it may lack.
        lag_entries_max: u64,
    },
    /// The voters that answer would not be a quorum.
    #[error(
        "the change would lose the quorum: {needed} of the voters {voters:?} have to answer, and {healthy} do ({silent:?} do not)"
    )]
    WouldLoseQuorum {
        /// Who would vote.
        voters: Vec<ReplicaId>,
        /// How many of them answered lately.
        healthy: usize,
        /// How many have to.
        needed: usize,
        /// Those that did not.
        silent: Vec<ReplicaId>,
    },
    /// The protocol refused it; nothing changed.
    #[error("the change was refused: {detail}")]
    Refused {
        /// Why.
        detail: String,
    },
    /// It may or may not take effect.
    #[error("the outcome of the change is unknown: {detail}")]
    Unknown {
        /// Why.
        detail: String,
    },
    /// The replica stops.
    #[error("the replica stops")]
    Shutdown,
}
