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
mod compaction;
mod config;
mod confirm;
mod consensus;
mod election;
mod error;
mod founding;
mod gate;
mod ground;
mod handover;
mod leadership;
mod log_reader;
mod marks;
mod membership;
mod network;
pub mod offline;
mod peers;
mod reads;
mod reception;
mod rejoin;
mod rounds;
pub mod shortcut;
mod state_machine;
mod status;
mod traffic;

pub use application::{
    Application, ApplicationError, CommittedEntry, Halt, SnapshotData, SnapshotSource, halt,
};
pub use compaction::Weights;
pub use config::{
    Advertise, ConfigError, ConsensusConfig, Dial, LeaderPolicy, Limits, SnapshotPolicy, Timing,
};
pub use consensus::{Consensus, Parts, Proposal};
pub use election::Ballot;
pub use error::{Committed, MembershipError, NotLeader, ProposeError, ReadPoint, StartError, StopReason};
pub use gate::Gate;
pub use ground::{Ground, Late, Metrics, PeerError, PeerLink, Peers, Process, Raft, Storage};
pub use leadership::{Leader, Leadership, LeadershipView};
pub use log_reader::{LogSlice, ReadLogError};
pub use marks::{StateMark, StateMarks};
pub use membership::{
    ChangeOptions, ChangeProgress, ChangeStep, Changed, MEMBERS_MAX, Readmission, VOTER_LAG_ENTRIES_MAX,
};
pub use muster_store::{FlushProgress, ReplicaNode, Space, StorageHealth};
pub use muster_transport::Principal;
pub use muster_wire::raft::v1 as wire;
pub use network::{
    Arriving, Connection, Grpc, PeerChannel, PeerClient, PeerNetwork, PeerService, Transport, peer_server,
};
pub use peers::PeerReport;
pub use reception::{Announced, Reception, ReceptionError, SnapshotPart};
pub use rejoin::{
    Readmitted, ReturnRequest, ReturnStep, Unable, Voted, mark_behind_entry, may_acknowledge, may_vote,
};
pub use status::{Member, ReplicaStatus, Role};
pub use tonic::Status;
pub use traffic::{Traffic, TrafficScope};
