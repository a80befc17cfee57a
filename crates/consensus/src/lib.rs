//! openraft wiring: network over tonic, leadership watch, fenced propose pipeline, membership.
//!
//! One [`Consensus`] is one replica's part in the agreement. The application proposes opaque payloads, bound to the
//! leadership that they were decided under, and receives committed entries in log order, the same on every replica.
//!
//! **Invariant:** an entry is applied once, in log order, or the replica stops; none is skipped.
//! **Invariant:** a proposal is refused as certainly not appended, or its outcome is known, or it is
//! reported as unknown; these are never mixed up.
//! **Invariant:** a term alone never fences: two replicas can lead in one term, so a [`Leadership`](muster_types::Leadership)
//! is the pair of term and replica.
//! **Invariant:** this crate never knows a job; payloads are opaque.

mod application;
mod bootstrap;
mod config;
mod consensus;
mod environment;
mod error;
mod fault_injection;
pub mod follower_hint;
mod leader;
mod leadership;
mod log_reader;
mod marks;
mod membership;
mod messages;
mod network;
pub mod offline;
mod peers;
mod proposals;
mod reads;
mod rejoin;
mod snapshots;
mod state_machine;
mod status;
mod stop;
mod tokio_env;

pub use application::{
    Application, ApplicationError, CommittedEntry, Halt, SnapshotData, SnapshotSource, halt,
};
pub use config::{
    Advertise, ConfigError, ConsensusConfig, Dial, LeaderPolicy, Limits, MEMBERS_MAX, SnapshotPolicy, Timing,
};
pub use consensus::{Consensus, Parts};
pub use environment::{Elapsed, Environment, Metrics, PeerError, PeerLink, Peers, Raft, Storage, TokioEnv};
pub use error::{Committed, MembershipError, ProposeError, StartError};
pub use fault_injection::{Traffic, TrafficScope};
pub use leader::{Leader, LeadershipView, NotLeader, ReadPoint};
pub use leadership::{CheckQuorum, VoteKind};
pub use log_reader::{LogSlice, ReadLogError};
pub use marks::{StateMark, StateMarks};
pub use membership::{ChangeOptions, ChangeProgress, ChangeStep, Changed, VOTER_LAG_ENTRIES_MAX};
pub use messages::{FormerVote, PeerReport, RejoinGrant, RejoinRequest, RejoinStep};
pub use muster_store::{FlushProgress, ReplicaNode, Space, StorageHealth};
pub use muster_transport::Principal;
pub use muster_wire::raft::v1 as wire;
pub use network::{
    Arriving, Connection, Grpc, PeerChannel, PeerClient, PeerNetwork, PeerService, Transport, peer_server,
};
pub use proposals::Proposal;
pub use rejoin::{RejoinRefusal, mark_behind_entry, may_acknowledge, may_vote};
pub use snapshots::{AnnouncedSnapshot, AppliedBytes, ReceiveError, SnapshotPart, SnapshotReceiver};
pub use status::{Member, ReplicaStatus, Role};
pub use stop::StopReason;
pub use tonic::Status;
