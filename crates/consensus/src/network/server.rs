//! The receiving side.
//!
//! **Invariant:** a call that names another cluster or another replica is refused before anything
//! of it is looked at.

use super::convert;
use crate::config::Limits;
use crate::confirm::{Confirmations, confirmed};
use crate::state_machine::Raft;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use muster_store::{RaftConfig, SnapshotHandle, SnapshotStore, SnapshotWriter, decode_snapshot_meta};
use muster_types::{ClusterId, ReplicaId};
use muster_wire::raft::v1 as wire;
use muster_wire::raft::v1::raft_service_server::{RaftService, RaftServiceServer};
use openraft::type_config::alias::SnapshotOf;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tonic::{Request, Response, Status, Streaming};

/// Chunks received ahead of the disk.
const SNAPSHOT_CHUNKS_AHEAD: usize = 4;
/// Strangers whose refusal is logged; more are refused silently.
const STRANGERS_LOGGED_MAX: usize = 64;

/// What peers call. Clones share it.
#[derive(Clone)]
pub struct PeerService {
    shared: Arc<Shared>,
}

struct Shared {
    cluster_id: ClusterId,
    replica_id: ReplicaId,
    raft: Raft,
    confirmations: Confirmations,
    snapshots: SnapshotStore,
    /// One snapshot is received at a time.
    receiving: Semaphore,
    strangers: Mutex<BTreeSet<(String, u64, u64)>>,
}

impl PeerService {
    pub(crate) fn new(
        cluster_id: ClusterId,
        replica_id: ReplicaId,
        raft: Raft,
        confirmations: Confirmations,
        snapshots: SnapshotStore,
    ) -> Self {
        let shared = Shared {
            cluster_id,
            replica_id,
            raft,
            confirmations,
            snapshots,
            receiving: Semaphore::new(1),
            strangers: Mutex::new(BTreeSet::new()),
        };
        PeerService { shared: Arc::new(shared) }
    }

    pub(crate) fn into_server(self, limits: &Limits) -> RaftServiceServer<PeerService> {
        RaftServiceServer::new(self)
            .max_decoding_message_size(limits.message_bytes_max)
            .max_encoding_message_size(limits.message_bytes_max)
    }

    /// Refuses whoever does not belong here; returns the sender.
    fn check(&self, peer: Option<wire::Peer>) -> Result<u64, Status> {
        let peer = peer.ok_or_else(|| convert::missing("peer"))?;
        let ours =
            peer.cluster_id.parse() == Ok(self.shared.cluster_id) && peer.target == self.shared.replica_id.0;
        if ours {
            return Ok(peer.source);
        }
        let reason = format!(
            "this is replica {} of cluster {}; the call was for replica {} of cluster {}",
            self.shared.replica_id,
            self.shared.cluster_id,
            ReplicaId(peer.target),
            // Named by a stranger, so no longer than an id.
            peer.cluster_id.chars().take(32).collect::<String>(),
        );
        let mut strangers = self.shared.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if strangers.len() < STRANGERS_LOGGED_MAX
            && strangers.insert((peer.cluster_id.chars().take(32).collect(), peer.source, peer.target))
        {
            tracing::error!(source = peer.source, reason, "a call from a stranger is refused");
        }
        Err(Status::failed_precondition(reason))
    }

    fn candidate(
        &self,
        message: wire::VoteRequest,
    ) -> Result<openraft::raft::VoteRequest<RaftConfig>, Status> {
        let source = self.check(message.peer.clone())?;
        let request = convert::vote_request(message)?;
        // A vote that says it was granted would be taken for a leader's.
        if request.vote.leader_id.node_id != source || request.vote.committed {
            return Err(Status::invalid_argument("a candidate asks in its own name, before it is elected"));
        }
        Ok(request)
    }
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("the replica stops: {error}"))
}

#[tonic::async_trait]
impl RaftService for PeerService {
    async fn vote(
        &self,
        request: Request<wire::VoteRequest>,
    ) -> Result<Response<wire::VoteResponse>, Status> {
        let request = self.candidate(request.into_inner())?;
        let response = self.shared.raft.vote(request).await.map_err(stopped)?;
        Ok(Response::new(convert::vote_response_to_wire(&response)))
    }

    async fn pre_vote(
        &self,
        request: Request<wire::VoteRequest>,
    ) -> Result<Response<wire::VoteResponse>, Status> {
        let request = self.candidate(request.into_inner())?;
        let response = self.shared.raft.pre_vote(request).await.map_err(stopped)?;
        Ok(Response::new(convert::vote_response_to_wire(&response)))
    }

    type AppendStream = BoxStream<'static, Result<wire::AppendResponse, Status>>;

    async fn append(
        &self,
        request: Request<Streaming<wire::AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let mut inbound = request.into_inner();
        let first = inbound.message().await?.ok_or_else(|| convert::missing("the first request"))?;
        let source = self.check(first.peer.clone())?;
        let first = convert::append(first, source)?;
        // Why the input ended, where that was not the peer's wish.
        let refusal = Arc::new(Mutex::new(None));
        let refused = Arc::clone(&refusal);
        let rest = futures::stream::unfold((inbound, refused), move |(mut inbound, refused)| async move {
            let next = match inbound.message().await {
                Ok(Some(message)) => convert::append(message, source),
                Ok(None) => return None,
                Err(status) => Err(status),
            };
            match next {
                Ok(request) => Some((request, (inbound, refused))),
                Err(status) => {
                    *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
                    None
                }
            }
        });
        let requests = futures::stream::once(async move { first }).chain(rest);
        let answers = self
            .shared
            .raft
            .stream_append(requests)
            .map(|answer| answer.map(|result| convert::append_result_to_wire(&result)).map_err(stopped));
        let ending = async move { refusal.lock().unwrap_or_else(PoisonError::into_inner).take().map(Err) };
        let ending = ending.into_stream().filter_map(futures::future::ready);
        Ok(Response::new(answers.chain(ending).boxed()))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<wire::SnapshotRequest>>,
    ) -> Result<Response<wire::SnapshotResponse>, Status> {
        use wire::snapshot_request::Part;
        let mut inbound = request.into_inner();
        let first = inbound.message().await?.and_then(|message| message.part);
        let Some(Part::Start(start)) = first else {
            return Err(convert::missing("the start of the snapshot"));
        };
        let source = self.check(start.peer)?;
        let vote = convert::vote(start.vote)?;
        if !vote.committed || vote.leader_id.node_id != source {
            return Err(Status::invalid_argument("only a leader sends snapshots, in its own name"));
        }
        let meta = decode_snapshot_meta(&start.meta).map_err(|error| {
            Status::invalid_argument(format!("the description cannot be decoded: {error}"))
        })?;
        let named = [meta.last_log_id, *meta.last_membership.log_id()];
        if !named.iter().flatten().all(|log_id| convert::is_held_by(log_id, &vote)) {
            return Err(Status::invalid_argument(
                "no log of this leader's can hold what the snapshot covers",
            ));
        }
        let _turn = self
            .shared
            .receiving
            .try_acquire()
            .map_err(|_| Status::resource_exhausted("another snapshot is being received"))?;
        let snapshots = self.shared.snapshots.clone();
        let (parts, received) = mpsc::channel(SNAPSHOT_CHUNKS_AHEAD);
        let writing = tokio::task::spawn_blocking(move || {
            let writer = snapshots.create(meta).map_err(internal)?;
            write_parts(writer, received)
        });
        while let Some(message) = inbound.message().await? {
            let Some(part) = message.part else { break };
            if parts.send(part).await.is_err() {
                break;
            }
        }
        drop(parts);
        let handle = writing.await.map_err(internal)??;
        let snapshot =
            SnapshotOf::<RaftConfig, SnapshotHandle> { meta: handle.meta().clone(), snapshot: handle };
        let response = self.shared.raft.install_full_snapshot(vote, snapshot).await.map_err(stopped)?;
        Ok(Response::new(wire::SnapshotResponse { vote: Some(convert::vote_to_wire(&response.vote)) }))
    }

    async fn transfer_leader(
        &self,
        request: Request<wire::TransferLeaderRequest>,
    ) -> Result<Response<wire::TransferLeaderResponse>, Status> {
        let message = request.into_inner();
        let source = self.check(message.peer.clone())?;
        let request = convert::transfer(message)?;
        if !request.from_leader().committed || request.from_leader().leader_id.node_id != source {
            return Err(Status::invalid_argument("only a leader hands over, in its own name"));
        }
        let response = self.shared.raft.handle_transfer_leader(request).await.map_err(stopped)?;
        Ok(Response::new(convert::transfer_response_to_wire(&response)))
    }

    async fn read_index(
        &self,
        request: Request<wire::ReadIndexRequest>,
    ) -> Result<Response<wire::ReadIndexResponse>, Status> {
        self.check(request.into_inner().peer)?;
        // Never passed on: whoever asks has to know the leader itself.
        let point = confirmed(&self.shared.confirmations).await;
        let point = point.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(Response::new(convert::read_point_to_wire(&point)))
    }
}

fn internal(error: impl std::fmt::Display) -> Status {
    Status::internal(format!("storing the snapshot failed: {error}"))
}

/// Writes what arrives, and returns it only when it is complete and durable.
fn write_parts(
    mut writer: SnapshotWriter,
    mut parts: mpsc::Receiver<wire::snapshot_request::Part>,
) -> Result<SnapshotHandle, Status> {
    use wire::snapshot_request::Part;
    let mut chunks = 0;
    while let Some(part) = parts.blocking_recv() {
        match part {
            Part::Chunk(chunk) => {
                if chunk.number != chunks || crc32fast::hash(&chunk.content) != chunk.checksum {
                    return Err(Status::data_loss("a chunk of the snapshot is missing or corrupt"));
                }
                chunks += 1;
                writer.write(&chunk.content).map_err(internal)?;
            }
            Part::End(end) if end.chunks == chunks => return writer.finish().map_err(internal),
            Part::End(_) | Part::Start(_) => {
                return Err(Status::invalid_argument("the parts of the snapshot do not fit together"));
            }
        }
    }
    Err(Status::aborted("the snapshot ended early"))
}

/// Serves peers on a listener until `shutdown` resolves.
///
/// # Errors
/// When the listener fails.
pub async fn peer_server(
    service: RaftServiceServer<PeerService>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error> {
    let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(2)))
        .http2_keepalive_timeout(Some(Duration::from_secs(2)))
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, shutdown)
        .await
}
