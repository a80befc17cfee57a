//! The environment of a replica: clock, tasks, storage, and connections to its peers.
//!
//! In a server these are tokio, a data directory and gRPC ([`TokioEnv`]). The simulation of whole clusters runs the same
//! code in another environment, where time jumps from one event to the next and every choice has a seed.
//!
//! **Invariant:** outside of `network::grpc`, `bootstrap`, `offline`, `tokio_env` and
//! [`Consensus::start`](crate::Consensus::start) nothing in this crate waits, starts a task or asks for the time except
//! through its environment.

use crate::fault_injection::Traffic;
use crate::leader::ReadPoint;
use crate::messages::{PeerReport, RejoinGrant, RejoinRequest};
use futures::future::BoxFuture;
use muster_store::{
    Entry, FlushProgress, FoundingId, LogConfig, Rejoin, ReplicaNode, SnapshotHandle, SnapshotStore,
    StorageHealth, StoreError,
};
use muster_types::ReplicaId;
use openraft::raft::ClientWriteResult;
use openraft::storage::RaftStateMachine;
use openraft::type_config::TypeConfigExt as _;
use openraft::type_config::alias::WriteResponderOf;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::watch;

/// The environment of a server.
pub use muster_store::RaftConfig as TokioEnv;

/// The environment of a replica. Entries, votes and members are the same types in all of them.
pub trait Environment: LogConfig {
    /// What applies the log.
    type Machine: RaftStateMachine<Self, SnapshotData = SnapshotHandle>;
    /// Where the log is.
    type Storage: Storage;
    /// How peers are reached.
    type Peers: Peers;

    /// Where the protocol reports the outcome of a proposal, and the outcome; `None` when it reported none.
    fn responder() -> (WriteResponderOf<Self>, BoxFuture<'static, Option<ClientWriteResult<Self>>>);

    /// Resolves once the duration has passed.
    fn pause(duration: Duration) -> impl Future<Output = ()> + Send {
        Self::sleep(duration)
    }

    /// Awaits `future`, and gives up after `duration`.
    fn within<T, F>(duration: Duration, future: F) -> impl Future<Output = Result<T, Elapsed>> + Send
    where
        F: Future<Output = T> + Send,
    {
        async move { Self::timeout(duration, future).await.map_err(|_| Elapsed) }
    }

    /// Starts a task that nobody waits for.
    fn detach(task: impl Future<Output = ()> + Send + 'static) {
        drop(Self::spawn(task));
    }

    /// The time of this host's monotonic clock. Only differences mean anything.
    fn instant() -> Instant;

    /// What this host's wall clock says, in milliseconds since 1970; 0 where it is before that.
    fn unix_ms() -> u64;
}

/// The protocol in an environment.
pub type Raft<E> = openraft::Raft<E, <E as Environment>::Machine>;

/// The state of the protocol, as it changes.
pub type Metrics<E> = openraft::type_config::alias::WatchReceiverOf<E, openraft::RaftMetrics<E>>;

/// What a replica needs of storage next to the log itself. Clones share it.
pub trait Storage: Clone + Send + Sync + 'static {
    /// The generation of the cluster that this storage belongs to.
    fn generation(&self) -> u32;

    /// The founding of the cluster that this storage belongs to.
    fn founding(&self) -> FoundingId {
        FoundingId::Unknown
    }

    /// How it fares, as it changes.
    fn health(&self) -> watch::Receiver<StorageHealth>;

    /// How far the log is durable, as it changes.
    fn flushed(&self) -> watch::Receiver<FlushProgress>;

    /// The mark of a storage that lost what it had promised, as it changes.
    fn rejoin(&self) -> watch::Receiver<Option<Rejoin>>;

    /// Changes that mark; durable once this returns.
    fn set_rejoin(&self, mark: Option<Rejoin>) -> impl Future<Output = Result<(), String>> + Send;

    /// Finishes what is queued and takes nothing more.
    fn close(&self) -> impl Future<Output = ()> + Send;

    /// Whether nothing was ever promised or stored.
    fn is_blank(&self) -> bool;

    /// Where snapshots are received.
    fn snapshots(&self) -> SnapshotStore;

    /// Entries from `start` until before `end`, in order, until they have `bytes_max` bytes; at least one, unless the
    /// log does not have the first.
    fn read(
        &self,
        start: u64,
        end: u64,
        bytes_max: usize,
    ) -> impl Future<Output = Result<Vec<Entry>, StoreError>> + Send;

    /// Takes over the generation of the cluster, where this storage has nothing of another; durable once this returns.
    fn adopt_generation(&self, generation: u32) -> impl Future<Output = Result<(), String>> + Send;

    /// Belongs to a founding from now on; durable once this returns.
    fn belong_to(&self, founding: u64) -> impl Future<Output = Result<(), String>> + Send;
}

/// The connections to peers. Clones share them.
pub trait Peers: Clone + Send + Sync + 'static {
    /// The connection to one of them.
    type Link: PeerLink;

    /// The connection to a peer, at `node` until the membership names another address.
    fn link(&self, target: ReplicaId, node: &ReplicaNode) -> Self::Link;

    /// Whether a peer is being sent a snapshot, or waits for one.
    fn are_uploading(&self) -> bool;

    /// How many requests of the protocol were answered without being sent, so far. Such an answer proves nothing of
    /// the present.
    fn answered_unsent(&self) -> u64;

    /// The traffic that this replica refuses on purpose.
    fn traffic(&self) -> &Traffic;
}

/// The calls to a peer next to the protocol.
pub trait PeerLink: Clone + Send + Sync + 'static {
    /// What the peer is and how it fares.
    fn describe(&mut self) -> impl Future<Output = Result<PeerReport, PeerError>> + Send;

    /// Keeps the connections open that a vote, or the first request as leader, would need.
    fn keep_open(&mut self) -> impl Future<Output = ()> + Send;

    /// How far reads have to wait, by the peer if it leads.
    fn read_index(self) -> impl Future<Output = Result<ReadPoint, PeerError>> + Send;

    /// Asks the peer, if it leads, to let this replica rejoin.
    fn readmit(
        &mut self,
        request: RejoinRequest,
    ) -> impl Future<Output = Result<RejoinGrant, PeerError>> + Send;
}

/// What was waited for has not come in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not in time")]
pub struct Elapsed;

/// A peer did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{detail}")]
pub struct PeerError {
    /// Why.
    pub detail: String,
    /// Whether it may have begun to.
    pub may_have_begun: bool,
}
