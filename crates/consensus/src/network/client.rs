//! The sending side: one connection each for replication, heartbeats and snapshots to every peer,
//! so that bulk data never delays a heartbeat.
//!
//! **Invariant:** nothing is sent to followers while the gate is closed.
//! **Invariant:** answers are returned in the order of their requests.

use super::convert;
use crate::config::ConsensusConfig;
use crate::error::ReadPoint;
use crate::gate::Gate;
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt};
use muster_store::{RaftConfig, ReplicaNode, SnapshotHandle, Vote, encode_snapshot_meta};
use muster_types::ReplicaId;
use muster_wire::raft::v1 as wire;
use muster_wire::raft::v1::raft_service_client::RaftServiceClient;
use openraft::errors::{ErrorSource as _, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;
use openraft::{OptionalSend, RPCTypes, RaftNetworkFactory, RaftNetworkV2, StorageError};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

/// Chunks read ahead of the network.
const SNAPSHOT_CHUNKS_AHEAD: usize = 4;

/// Makes connections to peers.
#[derive(Clone)]
pub(crate) struct PeerNetwork {
    pub(crate) config: ConsensusConfig,
    pub(crate) gate: Gate,
}

impl PeerNetwork {
    fn connect(&self, target: ReplicaId, node: &ReplicaNode) -> PeerClient {
        let address = match &self.config.dial {
            Some(dial) => dial(target, node),
            None => node.peer_endpoint.clone(),
        };
        let address = if address.contains("://") { address } else { format!("http://{address}") };
        let timing = self.config.timing;
        let lease = timing.lease();
        let client = Endpoint::from_shared(address)
            .map(|endpoint| {
                endpoint
                    .connect_timeout(lease.max(Duration::from_millis(250)))
                    .tcp_nodelay(true)
                    // A peer that died without a word is noticed within seconds, also while idle; a
                    // busy stream notices sooner, by its own unanswered requests.
                    .http2_keep_alive_interval(lease.max(Duration::from_millis(500)))
                    .keep_alive_timeout((lease * 2).max(Duration::from_millis(1_000)))
                    .keep_alive_while_idle(true)
                    .initial_stream_window_size(8 << 20)
                    .initial_connection_window_size(16 << 20)
                    .connect_lazy()
            })
            .map(|channel: Channel| {
                let bytes_max = self.config.limits.message_bytes_max;
                RaftServiceClient::new(channel)
                    .max_decoding_message_size(bytes_max)
                    .max_encoding_message_size(bytes_max)
            })
            .map_err(|error| error.to_string());
        PeerClient {
            source: self.config.replica_id,
            target,
            peer: convert::peer(self.config.cluster_id, self.config.replica_id, target),
            client,
            gate: self.gate.clone(),
            stall_max: timing.stall_max(),
            refused: false,
        }
    }
}

impl PeerNetwork {
    /// A connection for reads, apart from those of the protocol.
    pub(crate) fn reader(&self, target: ReplicaId, node: &ReplicaNode) -> PeerReader {
        let PeerClient { peer, client, .. } = self.connect(target, node);
        PeerReader { peer, client }
    }
}

/// Asks one peer how far reads have to wait. Clones share the connection.
#[derive(Clone)]
pub(crate) struct PeerReader {
    peer: wire::Peer,
    client: Result<RaftServiceClient<Channel>, String>,
}

impl PeerReader {
    pub(crate) async fn read_index(self) -> Result<ReadPoint, Status> {
        let mut client = self.client.map_err(Status::unavailable)?;
        let request = wire::ReadIndexRequest { peer: Some(self.peer) };
        convert::read_point(client.read_index(request).await?.into_inner())
    }
}

impl RaftNetworkFactory<RaftConfig> for PeerNetwork {
    type Network = PeerClient;

    async fn new_client(&mut self, target: u64, node: &ReplicaNode) -> PeerClient {
        self.connect(ReplicaId(target), node)
    }
}

/// One connection to one peer; opened when first used, and again whenever it broke.
pub(crate) struct PeerClient {
    source: ReplicaId,
    target: ReplicaId,
    peer: wire::Peer,
    client: Result<RaftServiceClient<Channel>, String>,
    gate: Gate,
    stall_max: Duration,
    /// The peer refused this replica, and that was logged.
    refused: bool,
}

type RpcError = RPCError<RaftConfig>;

fn unreachable(reason: impl ToString) -> RpcError {
    RPCError::Unreachable(Unreachable::from_string(reason))
}

/// Requests that were sent and not answered, and why sending ended.
#[derive(Default)]
struct InFlight {
    sent_at: VecDeque<Instant>,
    gate_closed: bool,
}

type SharedInFlight = Arc<Mutex<InFlight>>;

fn with_in_flight<T>(shared: &SharedInFlight, f: impl FnOnce(&mut InFlight) -> T) -> T {
    f(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
}

impl PeerClient {
    fn client(&self) -> Result<RaftServiceClient<Channel>, RpcError> {
        self.client.clone().map_err(unreachable)
    }

    fn failed(&mut self, status: &Status) -> RpcError {
        if status.code() == Code::FailedPrecondition && !self.refused {
            self.refused = true;
            tracing::error!(target = %self.target, reason = status.message(), "a peer refuses this replica");
        }
        unreachable(format!("{}: {}", status.code(), status.message()))
    }

    /// Runs a single call within the time the protocol gives it.
    async fn call<T>(
        &mut self,
        action: RPCTypes,
        option: &RPCOption,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, RpcError> {
        match tokio::time::timeout(option.hard_ttl(), call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.failed(&status)),
            Err(_) => Err(self.timed_out(action, option.hard_ttl())),
        }
    }

    fn timed_out(&self, action: RPCTypes, timeout: Duration) -> RpcError {
        RPCError::Timeout(Timeout { action, id: self.source.0, target: self.target.0, timeout })
    }

    fn outbound<S>(
        &self,
        input: S,
        in_flight: SharedInFlight,
    ) -> impl Stream<Item = wire::AppendRequest> + Send + 'static
    where
        S: Stream<Item = AppendEntriesRequest<RaftConfig>> + OptionalSend + Unpin + 'static,
    {
        let gate = self.gate.clone();
        let first_peer = Some(self.peer.clone());
        futures::stream::unfold((input, first_peer), move |(mut input, mut peer)| {
            let gate = gate.clone();
            let in_flight = Arc::clone(&in_flight);
            async move {
                let request = input.next().await?;
                if !gate.is_open() {
                    with_in_flight(&in_flight, |in_flight| in_flight.gate_closed = true);
                    return None;
                }
                with_in_flight(&in_flight, |in_flight| in_flight.sent_at.push_back(Instant::now()));
                Some((convert::append_to_wire(peer.take(), &request), (input, peer)))
            }
        })
    }

    async fn open_append<'s, S>(
        &'s mut self,
        mut input: S,
    ) -> Result<BoxStream<'s, Result<StreamAppendResult<RaftConfig>, RpcError>>, RpcError>
    where
        S: Stream<Item = AppendEntriesRequest<RaftConfig>> + OptionalSend + Unpin + 'static,
    {
        if !self.gate.is_open() {
            return Err(unreachable("no quorum is heard"));
        }
        // The first request may be long in coming: an idle leader has nothing to send. Only once it
        // is there does the peer owe an answer.
        let Some(first) = input.next().await else { return Ok(futures::stream::empty().boxed()) };
        let input = futures::stream::once(futures::future::ready(first)).chain(input);
        let in_flight = SharedInFlight::default();
        let outbound = self.outbound(input, Arc::clone(&in_flight));
        let mut client = self.client()?;
        let opened = tokio::time::timeout(self.stall_max, client.append(outbound)).await;
        let inbound = match opened {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return Err(self.failed(&status)),
            Err(_) => return Err(self.timed_out(RPCTypes::AppendEntries, self.stall_max)),
        };
        self.refused = false;
        let answers = Answers { client: self, inbound, in_flight, done: false };
        let stream = futures::stream::unfold(answers, |mut answers| async move {
            let next = answers.next().await?;
            Some((next, answers))
        });
        Ok(stream.boxed())
    }
}

/// The answers of one stream of requests.
struct Answers<'s> {
    client: &'s mut PeerClient,
    inbound: Streaming<wire::AppendResponse>,
    in_flight: SharedInFlight,
    done: bool,
}

impl Answers<'_> {
    async fn next(&mut self) -> Option<Result<StreamAppendResult<RaftConfig>, RpcError>> {
        if self.done {
            return None;
        }
        let next = self.receive().await;
        self.done = !matches!(next, Some(Ok(Ok(_))));
        next
    }

    async fn receive(&mut self) -> Option<Result<StreamAppendResult<RaftConfig>, RpcError>> {
        let stall_max = self.client.stall_max;
        loop {
            let Ok(message) = tokio::time::timeout(stall_max / 2, self.inbound.message()).await else {
                let stalled = with_in_flight(&self.in_flight, |in_flight| {
                    in_flight.sent_at.front().is_some_and(|sent| sent.elapsed() > stall_max)
                });
                if stalled {
                    return Some(Err(self.client.timed_out(RPCTypes::AppendEntries, stall_max)));
                }
                continue;
            };
            return match message {
                Ok(Some(message)) => {
                    with_in_flight(&self.in_flight, |in_flight| in_flight.sent_at.pop_front());
                    Some(convert::append_result(message).map_err(|status| self.client.failed(&status)))
                }
                Ok(None) if with_in_flight(&self.in_flight, |in_flight| in_flight.gate_closed) => {
                    Some(Err(unreachable("no quorum is heard")))
                }
                Ok(None) => None,
                Err(status) => Some(Err(self.client.failed(&status))),
            };
        }
    }
}

impl RaftNetworkV2<RaftConfig> for PeerClient {
    type SnapshotData = SnapshotHandle;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<RaftConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<RaftConfig>, RpcError> {
        let once = futures::stream::once(async move { rpc }).boxed();
        let mut answers = self.open_append(once).await?;
        match answers.next().await {
            Some(answer) => answer.map(AppendEntriesResponse::from),
            None => Err(unreachable("the stream ended without an answer")),
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> futures::future::BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<RaftConfig>, RpcError>>, RpcError>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<RaftConfig>> + OptionalSend + Unpin + 'static,
    {
        self.open_append(input).boxed()
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<RaftConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<RaftConfig>, RpcError> {
        let mut client = self.client()?;
        let request = convert::vote_request_to_wire(self.peer.clone(), &rpc);
        let message = self.call(RPCTypes::Vote, &option, client.vote(request)).await?;
        convert::vote_response(message).map_err(|status| self.failed(&status))
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<RaftConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<RaftConfig>, RpcError> {
        let mut client = self.client()?;
        let request = convert::vote_request_to_wire(self.peer.clone(), &rpc);
        let message = self.call(RPCTypes::Vote, &option, client.pre_vote(request)).await?;
        convert::vote_response(message).map_err(|status| self.failed(&status))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<RaftConfig, SnapshotHandle>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<RaftConfig>, StreamingError<RaftConfig>> {
        let mut client = self.client()?;
        let start = wire::SnapshotStart {
            peer: Some(self.peer.clone()),
            vote: Some(convert::vote_to_wire(&vote)),
            meta: encode_snapshot_meta(&snapshot.meta).into(),
        };
        let (parts, outbound) = tokio::sync::mpsc::channel(SNAPSHOT_CHUNKS_AHEAD);
        let reading = tokio::task::spawn_blocking(move || send_parts(&snapshot.snapshot, start, &parts));
        let upload = client.install_snapshot(tokio_stream::wrappers::ReceiverStream::new(outbound));
        let uploaded = tokio::select! {
            closed = cancel => return Err(StreamingError::Closed(closed)),
            uploaded = upload => uploaded,
        };
        // A snapshot that cannot be read is this replica's own failure, not the network's.
        if let Ok(Err(error)) = reading.await {
            let source = openraft::impls::BoxedErrorSource::from_error(&error);
            return Err(StreamingError::StorageError(StorageError::read_snapshot(None, source)));
        }
        match uploaded {
            Ok(response) => match convert::vote(response.into_inner().vote) {
                Ok(vote) => Ok(SnapshotResponse::new(vote)),
                Err(status) => Err(self.failed(&status).into()),
            },
            Err(status) => Err(self.failed(&status).into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<RaftConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<RaftConfig>, RpcError> {
        let mut client = self.client()?;
        let message = convert::transfer_to_wire(self.peer.clone(), &request);
        let response = self.call(RPCTypes::TransferLeader, &option, client.transfer_leader(message)).await?;
        convert::transfer_response(response).map_err(|status| self.failed(&status))
    }
}

/// Reads a snapshot into the upload until it is complete or nobody listens any more.
fn send_parts(
    snapshot: &SnapshotHandle,
    start: wire::SnapshotStart,
    parts: &tokio::sync::mpsc::Sender<wire::SnapshotRequest>,
) -> Result<(), muster_store::StoreError> {
    use wire::snapshot_request::Part;
    let send = |part| parts.blocking_send(wire::SnapshotRequest { part: Some(part) }).is_ok();
    if !send(Part::Start(start)) {
        return Ok(());
    }
    let mut number = 0;
    for chunk in snapshot.chunks() {
        let content = chunk?;
        let checksum = crc32fast::hash(&content);
        if !send(Part::Chunk(wire::SnapshotChunk { number, content, checksum })) {
            return Ok(());
        }
        number += 1;
    }
    send(Part::End(wire::SnapshotEnd { chunks: number }));
    Ok(())
}
