//! The receiving side.
//!
//! **Invariant:** a call that names another cluster or another replica, or comes from another
//! generation of the cluster, is refused before anything of it is looked at.
//! **Invariant:** a replica that lost its storage promises nothing; see `rejoin`.

use super::convert;
use super::refusal::Refusal;
use super::snapshots;
use super::transport::Arriving;
use crate::config::Limits;
use crate::environment::{Environment, Raft, Storage as _, TokioEnv};
use crate::fault_injection::{Traffic, silent};
use crate::leadership::{Elections, VoteKind};
use crate::membership::Membership;
use crate::messages::{FormerVote, RejoinRequest, RejoinStep};
use crate::peers::Describer;
use crate::reads::{Confirmations, confirmed};
use crate::rejoin::{RejoinGate, RejoinRefusal};
use futures::{FutureExt, StreamExt};
use muster_store::{FoundingId, ReplicaNode, SnapshotHandle, Vote};
use muster_transport::{Incoming, PeerInfo, Principal, Role, Security};
use muster_types::{ClusterId, ReplicaId};
use muster_wire::raft::v1 as wire;
use muster_wire::raft::v1::raft_service_server::{RaftService, RaftServiceServer};
use openraft::async_runtime::WatchReceiver;
use openraft::type_config::TypeConfigExt as _;
use openraft::type_config::alias::SnapshotOf;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status, Streaming};

/// Peers whose refusal is logged; more are refused silently.
const REFUSALS_LOGGED_MAX: usize = 64;
/// Bytes of a region or an endpoint.
const ENDPOINT_BYTES_MAX: usize = 1_024;

/// What peers call. Clones share it.
#[derive(Clone)]
pub struct PeerService<E: Environment = TokioEnv> {
    shared: Arc<Shared<E>>,
}

/// What the calls of peers reach in this replica, and nothing more.
pub(crate) struct ServedReplica<E: Environment> {
    pub(crate) cluster_id: ClusterId,
    pub(crate) replica_id: ReplicaId,
    pub(crate) security: Security,
    pub(crate) raft: Raft<E>,
    pub(crate) store: E::Storage,
    pub(crate) traffic: Traffic,
    pub(crate) rejoin: RejoinGate<E>,
    pub(crate) elections: Elections<E>,
    pub(crate) membership: Membership<E>,
    pub(crate) confirmations: Confirmations,
    pub(crate) describer: Describer<E>,
}

struct Shared<E: Environment> {
    replica: ServedReplica<E>,
    /// One snapshot is received at a time.
    receiving: Semaphore,
    /// What was logged: why, the cluster named, source, target.
    refused: Mutex<BTreeSet<(Refusal, String, u64, u64)>>,
}

impl PeerService {
    pub(crate) fn into_server(self, limits: &Limits) -> RaftServiceServer<PeerService> {
        RaftServiceServer::new(self)
            .max_decoding_message_size(limits.message_bytes_max)
            .max_encoding_message_size(limits.message_bytes_max)
    }
}

impl<E: Environment> PeerService<E> {
    /// The service of a replica.
    pub(crate) fn new(replica: ServedReplica<E>) -> Self {
        let shared = Shared { replica, receiving: Semaphore::new(1), refused: Mutex::new(BTreeSet::new()) };
        PeerService { shared: Arc::new(shared) }
    }

    fn raft(&self) -> &Raft<E> {
        &self.shared.replica.raft
    }

    fn traffic(&self) -> &Traffic {
        &self.shared.replica.traffic
    }

    /// Refuses callers that do not belong here, and all callers while peers are refused; returns the sender.
    fn check(&self, from: Principal, peer: Option<wire::Peer>) -> Result<u64, Status> {
        self.traffic().admit_peer()?;
        let peer = peer.ok_or_else(|| convert::missing("peer"))?;
        let replica = &self.shared.replica;
        let (cluster_id, replica_id) = (replica.cluster_id, replica.replica_id);
        self.check_name(from, &peer)?;
        if peer.cluster_id.parse() != Ok(cluster_id) || peer.target != replica_id.0 {
            let text = format!(
                "this is replica {replica_id} of cluster {cluster_id}; the call was for replica {} of cluster {}",
                ReplicaId(peer.target),
                // Named by a stranger, so no longer than an id.
                peer.cluster_id.chars().take(32).collect::<String>(),
            );
            return Err(self.refuse(Refusal::Stranger, &peer, text));
        }
        let own = replica.store.generation();
        if peer.generation < own {
            let text = format!(
                "the cluster was rebuilt and is in generation {own}; the caller is of generation {}, from before \
                 that, and has to be set up from the beginning",
                peer.generation
            );
            return Err(self.refuse(Refusal::OldGeneration, &peer, text));
        }
        if peer.generation > own {
            let text = format!(
                "this replica is of generation {own}, from before the cluster was rebuilt as generation {}: its \
                 data must not be mixed with what came after; set it aside and add the replica again",
                peer.generation
            );
            return Err(self.refuse(Refusal::NewerGeneration, &peer, text));
        }
        if let (Some(theirs), FoundingId::Of(own)) = (peer.founding, replica.store.founding())
            && theirs != own
        {
            let text = format!(
                "this replica and {} belong to two foundings of cluster {cluster_id}: some of its replicas lost their \
                 disks and founded it a second time; find out which of them hold the data, and start the others with \
                 --rebuild",
                ReplicaId(peer.source)
            );
            return Err(self.refuse(Refusal::OtherFounding, &peer, text));
        }
        Ok(peer.source)
    }

    /// A replica whose cluster is not founded so far promises nothing: its disk may have been lost.
    fn check_founded(&self) -> Result<(), Status> {
        match self.shared.replica.store.founding() {
            FoundingId::Awaited => {
                let text = "this replica waits for its cluster to be founded (--bootstrap)";
                Err(Refusal::Unfounded.status(text))
            }
            FoundingId::Unknown | FoundingId::Of(_) => Ok(()),
        }
    }

    /// Belongs to the founding that the founder of a new cluster asks for, if this replica waits for one.
    async fn be_founded(&self, founding: u64) -> Result<(), Status> {
        let store = self.shared.replica.store.clone();
        if store.founding() != FoundingId::Awaited {
            return Ok(());
        }
        store.belong_to(founding).await.map_err(stopped)?;
        tracing::info!(founding = format!("{founding:016x}"), "this replica belongs to a new cluster");
        Ok(())
    }

    /// With certificates, nobody speaks in another's name.
    fn check_name(&self, from: Principal, peer: &wire::Peer) -> Result<(), Status> {
        let secured = matches!(self.shared.replica.security, Security::Tls(_));
        let named = matches!(from.role(), Some(Role::Replica(id)) if id.0 == peer.source);
        if secured && !named {
            let text = format!("{from} speaks as {}", ReplicaId(peer.source));
            return Err(self.refuse(Refusal::Impostor, peer, text));
        }
        Ok(())
    }

    /// The same for calls of a leader: a replica that has nothing yet takes over the generation.
    async fn check_leader(&self, from: Principal, peer: Option<wire::Peer>) -> Result<u64, Status> {
        self.traffic().admit_peer()?;
        let replica = &self.shared.replica;
        if let Some(peer) = &peer {
            self.check_name(from, peer)?;
        }
        if let Some(peer) = &peer
            && peer.cluster_id.parse() == Ok(replica.cluster_id)
            && peer.target == replica.replica_id.0
            && peer.generation > replica.store.generation()
        {
            let generation = peer.generation;
            match replica.store.adopt_generation(generation).await {
                Ok(()) => tracing::info!(generation, "this replica takes over the cluster's generation"),
                // What follows refuses it, with the reason.
                Err(error) => tracing::debug!(%error, "the generation is not taken over"),
            }
        }
        let founding = peer.as_ref().and_then(|peer| peer.founding);
        let source = self.check(from, peer)?;
        self.check_founded()?;
        // A replica that waits to be added belongs to the founding of the leader that adds it.
        if let Some(founding) =
            founding.filter(|_| replica.store.founding() == FoundingId::Unknown && replica.store.is_blank())
            && let Err(error) = replica.store.belong_to(founding).await
        {
            tracing::debug!(%error, "the founding is not taken over");
        }
        Ok(source)
    }

    fn refuse(&self, refusal: Refusal, peer: &wire::Peer, text: String) -> Status {
        let cluster: String = peer.cluster_id.chars().take(32).collect();
        let mut refused = self.shared.refused.lock();
        if refused.len() < REFUSALS_LOGGED_MAX && refused.insert((refusal, cluster, peer.source, peer.target))
        {
            tracing::warn!(source = peer.source, reason = text, "a call from a peer is refused");
        }
        refusal.status(text)
    }

    fn candidate(
        &self,
        from: Principal,
        message: wire::VoteRequest,
    ) -> Result<openraft::raft::VoteRequest<E>, Status> {
        let source = self.check(from, message.peer.clone())?;
        self.check_founded()?;
        self.shared.replica.rejoin.may_vote().map_err(unable)?;
        let request = convert::vote_request::<E>(message)?;
        // A vote that says it was granted would be taken for a leader's.
        let vote: Vote = request.vote;
        if vote.leader_id.node_id != source || vote.committed {
            return Err(Status::invalid_argument("a candidate asks in its own name, before it is elected"));
        }
        Ok(request)
    }

    /// The permit for the one snapshot that is received at a time.
    fn receive_permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, Status> {
        let busy = |_| Status::resource_exhausted("another snapshot is being received");
        self.shared.receiving.try_acquire().map_err(busy)
    }
}

/// The refusal of a replica that lost its storage, in a form that the other side can tell apart.
fn unable(unable: RejoinRefusal) -> Status {
    Refusal::Rejoining.status(unable.to_string())
}

/// The principal whose certificate the request came with.
fn sender<T>(request: &Request<T>) -> Principal {
    request.extensions().get::<PeerInfo>().map_or(Principal::Plaintext, |peer| peer.principal)
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("the replica stops: {error}"))
}

/// The calls, as they come from a peer with this certificate.
///
/// # Errors
/// A refusal, with its reason.
impl<E: Environment> PeerService<E> {
    /// A candidate asks for a vote, or whether it would have one.
    pub async fn handle_vote(
        &self,
        from: Principal,
        kind: VoteKind,
        message: wire::VoteRequest,
    ) -> Result<wire::VoteResponse, Status> {
        let request = self.candidate(from, message)?;
        let response = self.shared.replica.elections.answer(kind, request).await.map_err(stopped)?;
        Ok(convert::vote_response_to_wire(&response))
    }

    /// A leader appends.
    pub async fn handle_append(
        &self,
        from: Principal,
        mut inbound: Arriving<wire::AppendRequest>,
    ) -> Result<Arriving<wire::AppendResponse>, Status> {
        let first = inbound.next().await.transpose()?.ok_or_else(|| convert::missing("the first request"))?;
        let source = self.check_leader(from, first.peer.clone()).await?;
        self.shared.replica.rejoin.may_acknowledge().map_err(unable)?;
        let first = convert::append(first, source)?;
        // Why the input ended, where that was not the peer's wish.
        let refusal = Arc::new(Mutex::new(None));
        let (refused, traffic) = (Arc::clone(&refusal), self.traffic().clone());
        let from = (inbound, refused, traffic);
        let rest = futures::stream::unfold(from, move |(mut inbound, refused, traffic)| async move {
            let next = match inbound.next().await {
                Some(Ok(message)) => traffic.admit_peer().and_then(|()| convert::append(message, source)),
                None => return None,
                Some(Err(status)) => Err(status),
            };
            match next {
                Ok(request) => Some((request, (inbound, refused, traffic))),
                Err(status) => {
                    *refused.lock() = Some(status);
                    None
                }
            }
        });
        let requests = futures::stream::once(async move { first }).chain(rest);
        let elections = self.shared.replica.elections.clone();
        let answers = self.raft().stream_append(requests).map(move |answer| {
            if let Ok(Ok(_)) = &answer {
                elections.leader_heard();
            }
            answer.map(|result| convert::append_result_to_wire(&result)).map_err(stopped)
        });
        let ending = async move { refusal.lock().take().map(Err) };
        let ending = ending.into_stream().filter_map(futures::future::ready);
        Ok(answers.chain(ending).boxed())
    }

    /// A leader sends a snapshot.
    pub async fn handle_snapshot(
        &self,
        from: Principal,
        mut inbound: Arriving<wire::SnapshotRequest>,
    ) -> Result<wire::SnapshotResponse, Status> {
        use wire::snapshot_request::Part;
        let first = inbound.next().await.transpose()?.and_then(|message| message.part);
        let Some(Part::Start(start)) = first else {
            return Err(convert::missing("the start of the snapshot"));
        };
        let source = self.check_leader(from, start.peer).await?;
        self.shared.replica.rejoin.may_acknowledge().map_err(unable)?;
        let vote = convert::vote(start.vote)?;
        if !vote.committed || vote.leader_id.node_id != source {
            return Err(Status::invalid_argument("only a leader sends snapshots, in its own name"));
        }
        // A snapshot of an earlier leader would be refused only after all of it was written.
        let known = self.raft().metrics().borrow_watched().vote;
        if (vote.leader_id, vote.committed) < (known.leader_id, known.committed) {
            return Ok(wire::SnapshotResponse { vote: Some(convert::vote_to_wire(&known)) });
        }
        let announced = snapshots::announced(&start.meta, start.digest)?;
        let named = [announced.meta().last_log_id, *announced.meta().last_membership.log_id()];
        if !named.iter().flatten().all(|log_id| convert::is_held_by(log_id, &vote)) {
            return Err(Status::invalid_argument(
                "no log of this leader's can hold what the snapshot covers",
            ));
        }
        let _permit = self.receive_permit()?;
        let store = self.shared.replica.store.snapshots();
        let handle = tokio::select! {
            received = snapshots::receive::<E>(announced, store, start.first_chunk, inbound) => received?,
            () = self.traffic().until_peers_in_refused() => return Err(silent()),
        };
        let snapshot = SnapshotOf::<E, SnapshotHandle> { meta: handle.meta().clone(), snapshot: handle };
        let response = self.raft().install_full_snapshot(vote, snapshot).await.map_err(stopped)?;
        Ok(wire::SnapshotResponse { vote: Some(convert::vote_to_wire(&response.vote)) })
    }

    /// A leader asks how much of a snapshot is held here.
    pub async fn handle_snapshot_held(
        &self,
        from: Principal,
        message: wire::SnapshotHeldRequest,
    ) -> Result<wire::SnapshotHeldResponse, Status> {
        self.check_leader(from, message.peer).await?;
        self.shared.replica.rejoin.may_acknowledge().map_err(unable)?;
        let announced = snapshots::announced(&message.meta, message.digest)?;
        let _permit = self.receive_permit()?;
        let store = self.shared.replica.store.snapshots();
        let held = E::spawn_blocking(move || announced.held(&store)).await;
        Ok(wire::SnapshotHeldResponse { chunks: held.map_err(stopped)? })
    }

    /// What this replica is and how it fares.
    pub async fn handle_describe(
        &self,
        from: Principal,
        message: wire::DescribeRequest,
    ) -> Result<wire::DescribeResponse, Status> {
        self.check(from, message.peer)?;
        if let Some(founding) = message.found {
            self.be_founded(founding).await?;
        }
        Ok(convert::report_to_wire(&self.shared.replica.describer.report()))
    }

    /// A replica that lost its storage asks to be taken in again.
    pub async fn handle_rejoin(
        &self,
        from: Principal,
        message: wire::ReadmitRequest,
    ) -> Result<wire::ReadmitResponse, Status> {
        let source = ReplicaId(self.check(from, message.peer.clone())?);
        let texts = [&message.region, &message.peer_endpoint, &message.client_endpoint];
        if texts.iter().any(|text| text.len() > ENDPOINT_BYTES_MAX) {
            return Err(Status::invalid_argument("a region or an endpoint is too long"));
        }
        let step = match message.step() {
            wire::readmit_request::Step::Readmit => RejoinStep::AddAsLearner,
            wire::readmit_request::Step::Promote => RejoinStep::RestoreVote,
            wire::readmit_request::Step::Unspecified => return Err(convert::missing("step")),
        };
        let voted = match message.voted() {
            wire::readmit_request::Voted::Unspecified => FormerVote::Unreported,
            wire::readmit_request::Voted::Asked => FormerVote::Queried,
            wire::readmit_request::Voted::Yes => FormerVote::Known(true),
            wire::readmit_request::Voted::No => FormerVote::Known(false),
        };
        let node = ReplicaNode {
            region: message.region,
            peer_endpoint: message.peer_endpoint,
            client_endpoint: message.client_endpoint,
        };
        let request = RejoinRequest { step, begun: message.begun, voted, node };
        let membership = self.shared.replica.membership.clone();
        // It goes on when the caller does not wait: half of it would leave the caller out.
        let running = E::spawn(async move { membership.grant_rejoin(source, request).await });
        let readmitted = running.await.map_err(stopped)?.map_err(|error| match error.may_have_begun {
            true => Status::aborted(error.detail),
            false => Status::unavailable(error.detail),
        })?;
        Ok(wire::ReadmitResponse {
            from_index: readmitted.from_index,
            vote: Some(convert::vote_to_wire(&readmitted.vote)),
            voted: readmitted.voted,
        })
    }

    /// A leader transfers its leadership.
    pub async fn handle_transfer(
        &self,
        from: Principal,
        message: wire::TransferLeaderRequest,
    ) -> Result<wire::TransferLeaderResponse, Status> {
        let source = self.check(from, message.peer.clone())?;
        self.check_founded()?;
        self.shared.replica.rejoin.may_vote().map_err(unable)?;
        let request = convert::transfer::<E>(message)?;
        let from_leader: &Vote = request.from_leader();
        if !from_leader.committed || from_leader.leader_id.node_id != source {
            return Err(Status::invalid_argument("only a leader transfers leadership, in its own name"));
        }
        let response = self.raft().handle_transfer_leader(request).await.map_err(stopped)?;
        Ok(convert::transfer_response_to_wire(&response))
    }

    /// How far reads have to wait, while this replica leads.
    pub async fn handle_read_index(
        &self,
        from: Principal,
        message: wire::ReadIndexRequest,
    ) -> Result<wire::ReadIndexResponse, Status> {
        self.check(from, message.peer)?;
        // Never passed on: the caller has to know the leader itself.
        let point = confirmed(&self.shared.replica.confirmations).await;
        let point = point.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(convert::read_point_to_wire(&point))
    }
}

#[tonic::async_trait]
impl RaftService for PeerService {
    async fn vote(
        &self,
        request: Request<wire::VoteRequest>,
    ) -> Result<Response<wire::VoteResponse>, Status> {
        let from = sender(&request);
        self.handle_vote(from, VoteKind::Vote, request.into_inner()).await.map(Response::new)
    }

    async fn pre_vote(
        &self,
        request: Request<wire::VoteRequest>,
    ) -> Result<Response<wire::VoteResponse>, Status> {
        let from = sender(&request);
        self.handle_vote(from, VoteKind::PreVote, request.into_inner()).await.map(Response::new)
    }

    type AppendStream = Arriving<wire::AppendResponse>;

    async fn append(
        &self,
        request: Request<Streaming<wire::AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let from = sender(&request);
        self.handle_append(from, request.into_inner().boxed()).await.map(Response::new)
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<wire::SnapshotRequest>>,
    ) -> Result<Response<wire::SnapshotResponse>, Status> {
        let from = sender(&request);
        self.handle_snapshot(from, request.into_inner().boxed()).await.map(Response::new)
    }

    async fn snapshot_held(
        &self,
        request: Request<wire::SnapshotHeldRequest>,
    ) -> Result<Response<wire::SnapshotHeldResponse>, Status> {
        let from = sender(&request);
        self.handle_snapshot_held(from, request.into_inner()).await.map(Response::new)
    }

    async fn describe(
        &self,
        request: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::DescribeResponse>, Status> {
        let from = sender(&request);
        self.handle_describe(from, request.into_inner()).await.map(Response::new)
    }

    async fn readmit(
        &self,
        request: Request<wire::ReadmitRequest>,
    ) -> Result<Response<wire::ReadmitResponse>, Status> {
        let from = sender(&request);
        self.handle_rejoin(from, request.into_inner()).await.map(Response::new)
    }

    async fn transfer_leader(
        &self,
        request: Request<wire::TransferLeaderRequest>,
    ) -> Result<Response<wire::TransferLeaderResponse>, Status> {
        let from = sender(&request);
        self.handle_transfer(from, request.into_inner()).await.map(Response::new)
    }

    async fn read_index(
        &self,
        request: Request<wire::ReadIndexRequest>,
    ) -> Result<Response<wire::ReadIndexResponse>, Status> {
        let from = sender(&request);
        self.handle_read_index(from, request.into_inner()).await.map(Response::new)
    }
}

/// With certificates, replicas alone are heard, before anything of a call is looked at.
fn replicas_alone(request: Request<()>) -> Result<Request<()>, Status> {
    match sender(&request) {
        Principal::Plaintext => Ok(request),
        Principal::Named(name) if matches!(name.role, Role::Replica(_)) => Ok(request),
        other => {
            Err(Refusal::Impostor.status(format!("{other} is no replica, and only replicas speak here")))
        }
    }
}

/// Serves the peers that come until `shutdown` resolves.
///
/// # Errors
/// When the listener fails.
pub async fn peer_server(
    service: RaftServiceServer<PeerService>,
    incoming: Incoming,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error> {
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(2)))
        .http2_keepalive_timeout(Some(Duration::from_secs(2)))
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
        .add_service(InterceptedService::new(service, replicas_alone))
        .serve_with_incoming_shutdown(incoming, shutdown)
        .await
}
