//! Messages between replicas, with the gate that silences a leader that hears nobody.

use crate::cluster::Cluster;
use crate::machine::{decode, wire_bytes};
use crate::raft_runtime::{LocalTime, SimConfig};
use crate::replica::{Metrics, Replica};
use crate::runtime::{Host, event, sleep_ms};
use muster_store::{ReplicaNode, SnapshotHandle, Vote};
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;
use openraft::{Instant as _, OptionalSend, RaftNetworkFactory, RaftNetworkV2, ServerState};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

type RpcError = RPCError<SimConfig>;

/// Silent phases, then one in which requests pass.
const PHASES: u128 = 3;
/// A snapshot that takes longer is tried again.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(5);

/// Whether requests to followers may be sent now: the same rule as the gate of `muster-consensus`.
#[derive(Clone)]
pub struct Gate {
    phase: Duration,
    metrics: Arc<Mutex<Option<Metrics>>>,
    leading: Arc<Mutex<Option<(u64, LocalTime)>>>,
}

impl Gate {
    /// Phases of this length.
    pub fn new(phase: Duration) -> Gate {
        Gate { phase, metrics: Arc::default(), leading: Arc::default() }
    }

    /// Once the protocol runs.
    pub fn watch(&self, metrics: Metrics) {
        *self.metrics.lock().unwrap_or_else(PoisonError::into_inner) = Some(metrics);
    }

    fn is_open(&self) -> bool {
        let metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(metrics) = metrics.as_ref().map(|metrics| metrics.borrow_watched()) else { return true };
        let mut leading = self.leading.lock().unwrap_or_else(PoisonError::into_inner);
        if metrics.state != ServerState::Leader {
            *leading = None;
            return true;
        }
        let since = match *leading {
            Some((term, since)) if term == metrics.current_term => since,
            _ => leading.insert((metrics.current_term, LocalTime::now())).1,
        };
        let acked = metrics.last_quorum_acked.as_ref().map(|acked| **acked);
        let silence = acked.unwrap_or(since).elapsed();
        (silence.as_millis() / self.phase.as_millis().max(1)).is_multiple_of(PHASES)
    }
}

/// Makes the ways to peers.
pub struct Peers {
    /// The cluster.
    pub cluster: Arc<Cluster>,
    /// This replica.
    pub host: Host,
    /// Its gate.
    pub gate: Gate,
}

/// The way to one peer.
pub struct Peer {
    cluster: Arc<Cluster>,
    from: Host,
    to: Host,
    gate: Gate,
}

impl RaftNetworkFactory<SimConfig> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, _node: &ReplicaNode) -> Peer {
        let to = Host::try_from(target).unwrap_or(Host::MAX);
        Peer { cluster: Arc::clone(&self.cluster), from: self.host, to, gate: self.gate.clone() }
    }
}

fn unreachable(reason: &str) -> RpcError {
    RPCError::Unreachable(Unreachable::from_string(reason))
}

impl Peer {
    async fn call<T, E, F, Fut>(&self, what: &'static str, ttl: Duration, f: F) -> Result<T, RpcError>
    where
        F: Fn(Arc<Replica>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        match self.cluster.call(self.from, self.to, ttl, what, f).await {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(_stopped)) => Err(unreachable("the peer has stopped")),
            None => Err(unreachable("no answer")),
        }
    }
}

impl RaftNetworkV2<SimConfig> for Peer {
    type SnapshotData = SnapshotHandle;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<SimConfig>, RpcError> {
        if !self.gate.is_open() {
            sleep_ms(50).await;
            return Err(unreachable("the gate is closed"));
        }
        self.call("append", option.hard_ttl(), move |peer| {
            let rpc = rpc.clone();
            async move { peer.raft.append_entries(rpc).await }
        })
        .await
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<SimConfig>, RpcError> {
        self.call("vote", option.hard_ttl(), move |peer| {
            let rpc = rpc.clone();
            async move { peer.raft.vote(rpc).await }
        })
        .await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<SimConfig>, RpcError> {
        self.call("prevote", option.hard_ttl(), move |peer| {
            let rpc = rpc.clone();
            async move { peer.raft.pre_vote(rpc).await }
        })
        .await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<SimConfig, SnapshotHandle>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<SimConfig>, StreamingError<SimConfig>> {
        let bytes = wire_bytes(&snapshot.snapshot)
            .map_err(|error| StreamingError::Unreachable(Unreachable::from_string(error)))?;
        let bytes = Arc::new(bytes);
        event("send snapshot", format_args!("n{} to n{} {} bytes", self.from, self.to, bytes.len()));
        let sent = self.call("snapshot", SNAPSHOT_PATIENCE, move |peer| {
            let bytes = Arc::clone(&bytes);
            async move {
                // Received beside what is there; whoever dies meanwhile has the old one.
                sleep_ms(5).await;
                let Some(handle) = decode(&peer.machine.snapshots(), &bytes) else { return Err(()) };
                let meta = handle.meta().clone();
                let snapshot = SnapshotOf::<SimConfig, SnapshotHandle> { meta, snapshot: handle };
                peer.raft.install_full_snapshot(vote, snapshot).await.map_err(drop)
            }
        });
        tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = sent => sent.map_err(|_| StreamingError::Unreachable(Unreachable::from_string("no answer"))),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<SimConfig>, RpcError> {
        self.call("transfer", option.hard_ttl(), move |peer| {
            let request = request.clone();
            async move { peer.raft.handle_transfer_leader(request).await }
        })
        .await
    }
}
