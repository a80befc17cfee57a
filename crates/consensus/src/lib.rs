//! openraft wiring: network over tonic, leadership watch, fenced propose pipeline, membership.
//!
//! One [`Consensus`] is one replica's share in the agreement. The application proposes opaque
//! payloads, bound to the leadership it decided under, and is told of committed entries in log
//! order, the same on every replica.
//!
//! **Invariant:** an entry is applied once, in log order, or the replica stops; none is skipped.
//! **Invariant:** a proposal is refused as certainly not appended, or its outcome is known, or it is
//! said to be unknown; these are never mixed up.
//! **Invariant:** a term alone never fences: two replicas can lead in one term, so a [`Leadership`]
//! is the pair of term and replica.
//! **Invariant:** this crate never knows a job; payloads are opaque.

mod application;
mod bootstrap;
mod check_quorum;
mod compaction;
mod config;
mod confirm;
mod consensus;
mod election;
mod environment;
mod error;
mod fault_injection;
pub mod follower_hint;
mod leadership;
mod leadership_transfer;
mod log_reader;
mod membership;
mod network;
pub mod offline;
mod peers;
mod reads;
mod rejoin;
mod rounds;
mod snapshot_receiver;
mod state_machine;
mod status;

pub use application::{
    Application, ApplicationError, CommittedEntry, Halt, SnapshotData, SnapshotSource, halt,
};
pub use check_quorum::CheckQuorum;
pub use compaction::AppliedBytes;
pub use config::{
    Advertise, ConfigError, ConsensusConfig, Dial, LeaderPolicy, Limits, SnapshotPolicy, Timing,
};
pub use consensus::{Consensus, Parts, Proposal};
pub use election::VoteKind;
pub use environment::{Elapsed, Environment, Metrics, PeerError, PeerLink, Peers, Raft, Storage, TokioEnv};
pub use error::{Committed, MembershipError, NotLeader, ProposeError, ReadPoint, StartError, StopReason};
pub use fault_injection::{Traffic, TrafficScope};
pub use leadership::{Leader, Leadership, LeadershipView};
pub use log_reader::{LogSlice, ReadLogError};
pub use membership::{
    ChangeOptions, ChangeProgress, ChangeStep, Changed, MEMBERS_MAX, ReaddedMember, VOTER_LAG_ENTRIES_MAX,
};
pub use muster_store::{FlushProgress, ReplicaNode, Space, StorageHealth};
pub use muster_transport::Principal;
pub use muster_wire::raft::v1 as wire;
pub use network::{
    Arriving, Connection, Grpc, PeerChannel, PeerClient, PeerNetwork, PeerService, Transport, peer_server,
};
pub use peers::PeerReport;
pub use rejoin::{
    FormerVote, RejoinGrant, RejoinRefusal, RejoinRequest, RejoinStep, mark_behind_entry, may_acknowledge,
    may_vote,
};
pub use snapshot_receiver::{AnnouncedSnapshot, ReceiveError, SnapshotPart, SnapshotReceiver};
pub use status::{Member, ReplicaStatus, Role};
pub use tonic::Status;
