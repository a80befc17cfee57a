//! The types openraft is instantiated with, and short names for them.
//!
//! **Invariant:** the payload is a type of ours, opaque bytes, so openraft's own layout never
//! reaches a disk or a wire.

use bytes::Bytes;
use openraft::RaftTypeConfig;
use openraft::type_config::alias;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What an application proposed, opaque to storage and consensus.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Payload(pub Bytes);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// The region of a replica and how it is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaNode {
    /// The region the replica stands in.
    pub region: String,
    /// Where other replicas reach it, `host:port` or a URL.
    pub peer_endpoint: String,
    /// Where clients and agents reach it, `host:port` or a URL.
    pub client_endpoint: String,
}

openraft::declare_raft_types!(
    /// How openraft is instantiated. The default leader id is kept: two replicas can then lead in
    /// one term, so a fence is always the pair of term and replica.
    pub RaftConfig:
        D = Payload,
        R = (),
        NodeId = u64,
        Node = ReplicaNode,
);

/// How openraft may be instantiated over this log: entries, votes and members are the same types, and only the runtime
/// may be another.
pub trait LogConfig:
    RaftTypeConfig<
        D = Payload,
        R = (),
        NodeId = u64,
        Node = ReplicaNode,
        Term = u64,
        LeaderId = LeaderId,
        Vote = Vote,
        Entry = Entry,
    >
{
}

impl<C> LogConfig for C where
    C: RaftTypeConfig<
            D = Payload,
            R = (),
            NodeId = u64,
            Node = ReplicaNode,
            Term = u64,
            LeaderId = LeaderId,
            Vote = Vote,
            Entry = Entry,
        >
{
}

/// Position of an entry: who led when it was appended, and its index.
pub type LogId = alias::LogIdOf<RaftConfig>;
/// Term and replica of a leader.
pub type LeaderId = alias::LeaderIdOf<RaftConfig>;
/// A vote, granted or committed.
pub type Vote = alias::VoteOf<RaftConfig>;
/// One entry of the log.
pub type Entry = alias::EntryOf<RaftConfig>;
/// What an entry carries.
pub type EntryPayload = alias::EntryPayloadOf<RaftConfig>;
/// Who votes and who listens.
pub type Membership = openraft::Membership<u64, ReplicaNode>;
/// A membership and the entry that set it.
pub type StoredMembership = alias::StoredMembershipOf<RaftConfig>;
/// What a snapshot covers.
pub type SnapshotMeta = alias::SnapshotMetaOf<RaftConfig>;
