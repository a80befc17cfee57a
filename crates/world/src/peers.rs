//! Messages between replicas: what `muster-consensus` carries over gRPC, carried over the simulated network.
//! Which of them a replica answers at all, the product says: its gate, its rejoin gate, its reception of
//! snapshots.

use crate::cluster::{Cluster, lock};
use crate::log_store::SimLog;
use crate::raft_runtime::SimConfig;
use crate::replica::Replica;
use crate::runtime::{Host, event, sleep_ms};
use bytes::Bytes;
use muster_consensus::shortcut::{self, Shortcuts, Way};
use muster_consensus::{
    Announced, Ballot, Gate, Ground as _, PeerError, PeerLink, PeerReport, Peers, ReadPoint, Readmitted,
    Reception, ReturnRequest, SnapshotPart,
};
use muster_store::{ReplicaNode, SnapshotDigest, SnapshotHandle, Vote, encode_snapshot_meta};
use muster_types::ReplicaId;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::storage::RaftLogReader as _;
use openraft::type_config::alias::SnapshotOf;
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

type RpcError = RPCError<SimConfig>;

/// A part of a snapshot that is not answered for so long ends the upload.
const PART_PATIENCE: Duration = Duration::from_secs(3);
/// Taking a replica in anew needs two changes of the membership.
const READMIT_PATIENCE: Duration = Duration::from_secs(30);
/// Any other question.
const PATIENCE: Duration = Duration::from_secs(3);

/// The ways from one replica to its peers. Clones share them.
#[derive(Clone)]
pub struct SimPeers {
    /// The cluster.
    pub cluster: Arc<Cluster>,
    /// This replica.
    pub host: Host,
    /// Its gate.
    pub gate: Gate<SimConfig>,
    /// Uploads under way.
    pub uploading: Arc<AtomicUsize>,
    /// Where the logs of voters end.
    pub shortcuts: Shortcuts,
    /// Its own log.
    pub log: SimLog,
}

/// The way to one peer.
#[derive(Clone)]
pub struct Peer {
    peers: SimPeers,
    to: Host,
}

impl Peers for SimPeers {
    type Link = Peer;

    fn link(&self, target: ReplicaId, _node: &ReplicaNode) -> Peer {
        Peer { peers: self.clone(), to: Host::try_from(target.0).unwrap_or(Host::MAX) }
    }

    fn are_uploading(&self) -> bool {
        self.uploading.load(Ordering::Relaxed) > 0
    }
}

impl RaftNetworkFactory<SimConfig> for SimPeers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &ReplicaNode) -> Peer {
        self.link(ReplicaId(target), node)
    }
}

fn unreachable(reason: &str) -> RpcError {
    RPCError::Unreachable(Unreachable::from_string(reason))
}

fn lost(reason: &str) -> StreamingError<SimConfig> {
    StreamingError::Unreachable(Unreachable::from_string(reason))
}

impl Peer {
    /// Asks the peer; none when no answer came in time or it refused.
    async fn ask<T, E, F, Fut>(&self, what: &'static str, ttl: Duration, f: F) -> Option<Result<T, E>>
    where
        F: Fn(Arc<Replica>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        self.peers.cluster.call(self.peers.host, self.to, ttl, what, f).await
    }

    async fn call<T, E, F, Fut>(&self, what: &'static str, ttl: Duration, f: F) -> Result<T, RpcError>
    where
        F: Fn(Arc<Replica>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        match self.ask(what, ttl, f).await {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(_refused)) => Err(unreachable("the peer refuses or has stopped")),
            None => Err(unreachable("no answer")),
        }
    }

    async fn append(
        &self,
        rpc: AppendEntriesRequest<SimConfig>,
        ttl: Duration,
    ) -> Result<AppendEntriesResponse<SimConfig>, RpcError> {
        self.call("append", ttl, move |peer| {
            let rpc = rpc.clone();
            async move {
                peer.consensus.may_acknowledge().map_err(drop)?;
                let answer = peer.consensus.raft().append_entries(rpc).await.map_err(drop)?;
                if matches!(answer, AppendEntriesResponse::Success) {
                    peer.consensus.leader_heard();
                }
                Ok::<_, ()>(answer)
            }
        })
        .await
    }

    async fn question<T, F, Fut>(&self, what: &'static str, ttl: Duration, f: F) -> Result<T, PeerError>
    where
        F: Fn(Arc<Replica>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, PeerError>> + Send + 'static,
        T: Send + 'static,
    {
        let silent = || PeerError { detail: "no answer".to_owned(), may_have_begun: true };
        self.ask(what, ttl, f).await.unwrap_or_else(|| Err(silent()))
    }
}

impl PeerLink for Peer {
    async fn keep_open(&mut self) {
        // Messages here need no connection.
    }

    async fn describe(&mut self) -> Result<PeerReport, PeerError> {
        self.question("describe", PATIENCE, |peer| async move { peer.describe() }).await
    }

    async fn read_index(self) -> Result<ReadPoint, PeerError> {
        self.question("read index", PATIENCE, |peer| async move {
            let refused = |error: muster_consensus::NotLeader| PeerError {
                detail: error.to_string(),
                may_have_begun: false,
            };
            peer.consensus.confirm_leadership().await.map_err(refused)
        })
        .await
    }

    async fn readmit(&mut self, request: ReturnRequest) -> Result<Readmitted, PeerError> {
        let source = ReplicaId(u64::from(self.peers.host));
        self.question("readmit", READMIT_PATIENCE, move |peer| {
            let request = request.clone();
            async move { peer.consensus.readmit_or_promote(source, request).await }
        })
        .await
    }
}

/// Which snapshot a message is of, as it crosses the network.
#[derive(Clone)]
struct Named {
    meta: Bytes,
    digest: SnapshotDigest,
}

/// What a replica receives of a snapshot, one at a time.
#[derive(Default)]
pub struct Receiving {
    /// Which upload it is of.
    upload: u64,
    reception: Option<Reception>,
}

impl Replica {
    /// How many chunks of a snapshot are held here.
    fn held(&self, named: &Named) -> Result<u64, ()> {
        self.consensus.may_acknowledge().map_err(drop)?;
        let announced = Announced::new(&named.meta, named.digest).map_err(drop)?;
        // One that is being received goes on only in its own upload.
        *lock(&self.receiving) = Receiving::default();
        Ok(announced.held(&self.machine.snapshots()))
    }

    fn take_part(&self, upload: u64, named: &Named, first: u64, part: &SnapshotPart) -> Result<(), ()> {
        self.consensus.may_acknowledge().map_err(drop)?;
        let mut receiving = lock(&self.receiving);
        if receiving.upload != upload {
            // What was received of another is kept before this one looks for its own.
            *receiving = Receiving::default();
            let announced = Announced::new(&named.meta, named.digest).map_err(drop)?;
            let reception = announced.receive(&self.machine.snapshots(), first).map_err(drop)?;
            *receiving = Receiving { upload, reception: Some(reception) };
        }
        receiving.reception.as_mut().ok_or(())?.take(part).map_err(drop)
    }

    fn complete(&self, upload: u64, chunks: u64) -> Result<SnapshotHandle, ()> {
        let mut receiving = lock(&self.receiving);
        if receiving.upload != upload {
            return Err(());
        }
        let reception = receiving.reception.take().ok_or(())?;
        reception.finish(chunks).map_err(drop)
    }
}

impl Peer {
    /// Sends what the receiver does not hold, chunk by chunk, and waits until it is installed.
    async fn upload(
        &self,
        vote: Vote,
        snapshot: &SnapshotHandle,
    ) -> Result<SnapshotResponse<SimConfig>, StreamingError<SimConfig>> {
        let named = Named { meta: encode_snapshot_meta(snapshot.meta()).into(), digest: snapshot.digest() };
        let asked = named.clone();
        let held = self.call("snapshot held", PART_PATIENCE, move |peer| {
            let asked = asked.clone();
            async move { peer.held(&asked) }
        });
        let chunks = named.digest.chunks;
        let first = held.await.map_err(|_| lost("no answer"))?.min(chunks);
        let upload = self.peers.cluster.next_upload();
        event(
            "send snapshot",
            format_args!("n{} to n{} from {first} of {chunks} chunks", self.peers.host, self.to),
        );
        if first > 0 {
            self.peers.cluster.checks.count(|counts| counts.resumed += 1);
        }
        let parts = snapshot.chunks_from(first).map_err(|_| lost("the snapshot cannot be read"))?;
        for (number, content) in (first..).zip(parts) {
            let content = content.map_err(|_| lost("the snapshot cannot be read"))?;
            let (named, part) = (named.clone(), SnapshotPart::new(number, content));
            let taken = self.call("snapshot part", PART_PATIENCE, move |peer| {
                let (named, part) = (named.clone(), part.clone());
                async move { peer.take_part(upload, &named, first, &part) }
            });
            taken.await.map_err(|_| lost("a part was not taken"))?;
        }
        let installed = self.call("snapshot end", PART_PATIENCE, move |peer| async move {
            let handle = peer.complete(upload, chunks)?;
            let meta = handle.meta().clone();
            let snapshot = SnapshotOf::<SimConfig, SnapshotHandle> { meta, snapshot: handle };
            peer.consensus.raft().install_full_snapshot(vote, snapshot).await.map_err(drop)
        });
        installed.await.map_err(|_| lost("it was not installed"))
    }
}

/// Counted while it lives.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RaftNetworkV2<SimConfig> for Peer {
    type SnapshotData = SnapshotHandle;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<SimConfig>, RpcError> {
        if !self.peers.gate.is_open() {
            sleep_ms(50).await;
            return Err(unreachable("the gate is closed"));
        }
        let peer = ReplicaId(u64::from(self.to));
        match self.peers.shortcuts.way(peer, &rpc, SimConfig::instant()) {
            Way::Plain => return self.append(rpc, option.hard_ttl()).await,
            Way::Held(_) => return Ok(AppendEntriesResponse::Success),
            Way::From(end) => {
                let own = self.peers.log.try_get_log_entries(shortcut::range(end)).await.unwrap_or_default();
                if let Some(asked) = shortcut::from_end(&rpc, end, own) {
                    let through = asked.entries.last().map_or(end, |entry| entry.log_id);
                    let answer = self.append(asked, option.hard_ttl()).await?;
                    if matches!(answer, AppendEntriesResponse::Success) {
                        self.peers.shortcuts.held(peer, &rpc, through, SimConfig::instant());
                    }
                }
            }
        }
        match self.peers.shortcuts.way(peer, &rpc, SimConfig::instant()) {
            Way::Held(_) => Ok(AppendEntriesResponse::Success),
            Way::Plain | Way::From(_) => self.append(rpc, option.hard_ttl()).await,
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<SimConfig>, RpcError> {
        let candidate = rpc.vote.leader_id;
        let answer = self
            .call("vote", option.hard_ttl(), move |peer| {
                let rpc = rpc.clone();
                async move {
                    peer.consensus.may_vote().map_err(drop)?;
                    peer.consensus.answer_candidate(Ballot::Vote, rpc).await.map_err(drop)
                }
            })
            .await?;
        if answer.vote_granted {
            let peer = ReplicaId(u64::from(self.to));
            self.peers.shortcuts.voted(peer, candidate, answer.last_log_id);
        }
        Ok(answer)
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<SimConfig>, RpcError> {
        self.call("prevote", option.hard_ttl(), move |peer| {
            let rpc = rpc.clone();
            async move {
                peer.consensus.may_vote().map_err(drop)?;
                peer.consensus.answer_candidate(Ballot::PreVote, rpc).await.map_err(drop)
            }
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
        self.peers.uploading.fetch_add(1, Ordering::Relaxed);
        let _running = Running(Arc::clone(&self.peers.uploading));
        tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = self.upload(vote, &snapshot.snapshot) => sent,
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<SimConfig>, RpcError> {
        self.call("transfer", option.hard_ttl(), move |peer| {
            let request = request.clone();
            async move {
                peer.consensus.may_vote().map_err(drop)?;
                peer.consensus.raft().handle_transfer_leader(request).await.map_err(drop)
            }
        })
        .await
    }
}
