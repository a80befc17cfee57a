//! Connections to peers, and where they lead.
//!
//! Between every two replicas there is one connection for each purpose, and it is kept open by those who do not lead
//! as well: opening one takes three round trips, and an election over regions has no time for that.
//!
//! **Invariant:** a connection follows the membership: when a member is described anew, the next
//! call goes to its new address.

use super::convert;
use super::refusal::Refusal;
use super::snapshots::Uploads;
use crate::config::ConsensusConfig;
use crate::error::ReadPoint;
use crate::gate::Gate;
use crate::ground::{Metrics, PeerError, PeerLink, Peers, Process};
use crate::membership::MEMBERS_MAX;
use crate::peers::{self, PeerReport};
use crate::rejoin::{Readmitted, ReturnRequest, ReturnStep};
use crate::shortcut::Shortcuts;
use crate::traffic::Traffic;
use muster_store::{ReplicaNode, ReplicaStore};
use muster_transport::Expect;
use muster_types::ReplicaId;
use muster_wire::raft::v1 as wire;
use muster_wire::raft::v1::raft_service_client::RaftServiceClient;
use openraft::async_runtime::WatchReceiver;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// A refusal that goes on is logged again after this long.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(300);

/// What a connection is for. None waits for another's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// Votes, and what replicas ask one another.
    Calls,
    /// A leader's entries.
    Log,
    /// A leader's heartbeats.
    Heartbeats,
    /// One snapshot; opened for it and given up with it.
    Snapshot,
}

/// A connection that is kept.
struct Kept {
    address: String,
    /// Of the certificates it was made with.
    epoch: u64,
    client: RaftServiceClient<Channel>,
}

/// A few for each member. More are those of former members.
const KEPT_MAX: usize = 4 * MEMBERS_MAX;

/// When which refusal by which peer was logged.
type LoggedAt = BTreeMap<(ReplicaId, Option<Refusal>), Instant>;

/// Makes connections to peers. Clones share what it knows of them.
#[derive(Clone)]
pub struct PeerNetwork {
    pub(super) config: ConsensusConfig,
    pub(super) gate: Gate<Process>,
    pub(super) traffic: Traffic,
    pub(super) store: ReplicaStore,
    pub(super) shortcuts: Shortcuts,
    /// Set once the protocol runs.
    metrics: Arc<OnceLock<Metrics<Process>>>,
    pub(super) uploads: Uploads,
    kept: Arc<Mutex<BTreeMap<(ReplicaId, Purpose), Kept>>>,
    /// When a peer's refusal of this replica as such was last logged.
    refusals: Arc<Mutex<LoggedAt>>,
}

impl PeerNetwork {
    pub(crate) fn new(config: ConsensusConfig, gate: Gate<Process>, store: ReplicaStore) -> PeerNetwork {
        let uploads = Uploads::new(config.snapshots.send_bytes_per_s);
        PeerNetwork {
            shortcuts: Shortcuts::new(config.timing),
            config,
            gate,
            traffic: Traffic::default(),
            store,
            metrics: Arc::default(),
            uploads,
            kept: Arc::default(),
            refusals: Arc::default(),
        }
    }

    pub(crate) fn watch(&self, metrics: Metrics<Process>) {
        // Started once; a second protocol on this network does not exist.
        let _ = self.metrics.set(metrics);
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// The connection to `target` for a purpose, at `node` until the membership says otherwise; opened when first
    /// used, and again whenever it broke.
    pub(super) fn channel(&self, target: ReplicaId, node: &ReplicaNode, purpose: Purpose) -> PeerChannel {
        let address = self.address(target, node);
        let client = self.connection(target, &address, purpose);
        PeerChannel { network: self.clone(), target, node: node.clone(), purpose, address, client }
    }

    /// The connection that is kept, or a new one where there is none to this address with these certificates.
    fn connection(
        &self,
        target: ReplicaId,
        address: &str,
        purpose: Purpose,
    ) -> Result<RaftServiceClient<Channel>, String> {
        if purpose == Purpose::Snapshot {
            return self.connect(target, address);
        }
        let epoch = self.config.security.epoch();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = kept.get(&(target, purpose))
            && kept.address == address
            && kept.epoch == epoch
        {
            return Ok(kept.client.clone());
        }
        let client = self.connect(target, address)?;
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        let connection = Kept { address: address.to_owned(), epoch, client: client.clone() };
        kept.insert((target, purpose), connection);
        Ok(client)
    }

    fn address(&self, target: ReplicaId, node: &ReplicaNode) -> String {
        match &self.config.dial {
            Some(dial) => dial(target, node),
            None => node.peer_endpoint.clone(),
        }
    }

    fn connect(&self, target: ReplicaId, address: &str) -> Result<RaftServiceClient<Channel>, String> {
        let lease = self.config.timing.lease();
        let connector = self.config.security.connector(Expect::Replica(target));
        let address = self.config.security.address(address).map_err(|error| error.to_string());
        address
            .and_then(|address| Endpoint::from_shared(address).map_err(|error| error.to_string()))
            .map(|endpoint| {
                endpoint
                    // Who waits for a vote waits for the attempt that is under way: one that began while nothing came
                    // through must not last longer than a vote may take. Three round trips between regions fit.
                    .connect_timeout((lease / 2).max(Duration::from_millis(250)))
                    .tcp_nodelay(true)
                    // A peer that died without a word is noticed within seconds, also while idle; a
                    // busy stream notices sooner, by its own unanswered requests.
                    .http2_keep_alive_interval(lease.max(Duration::from_millis(500)))
                    .keep_alive_timeout((lease * 2).max(Duration::from_millis(1_000)))
                    .keep_alive_while_idle(true)
                    .initial_stream_window_size(8 << 20)
                    .initial_connection_window_size(16 << 20)
                    .connect_with_connector_lazy(connector)
            })
            .map(|channel: Channel| {
                let bytes_max = self.config.limits.message_bytes_max;
                RaftServiceClient::new(channel)
                    .max_decoding_message_size(bytes_max)
                    .max_encoding_message_size(bytes_max)
            })
            .inspect_err(|error| tracing::error!(%target, error, "a peer's endpoint cannot be used"))
    }

    /// Where the membership says a member lives.
    fn node(&self, target: ReplicaId) -> Option<ReplicaNode> {
        let metrics = self.metrics.get()?.borrow_watched();
        metrics.membership_config.get_node(&target.0).cloned()
    }
}

/// One connection to one peer.
#[derive(Clone)]
pub struct PeerChannel {
    network: PeerNetwork,
    target: ReplicaId,
    node: ReplicaNode,
    purpose: Purpose,
    address: String,
    client: Result<RaftServiceClient<Channel>, String>,
}

impl PeerChannel {
    pub(super) fn target(&self) -> ReplicaId {
        self.target
    }

    /// Who talks to whom.
    pub(super) fn peer(&self) -> wire::Peer {
        wire::Peer {
            cluster_id: self.network.config.cluster_id.to_string(),
            source: self.network.config.replica_id.0,
            target: self.target.0,
            generation: self.network.store.identity().generation,
        }
    }

    /// A client at the peer's present address; none while this replica calls nobody.
    pub(super) fn client(&mut self) -> Result<RaftServiceClient<Channel>, String> {
        if self.network.traffic.peers_out_refused().is_some() {
            return Err("this replica calls no peer for a while, for a drill".to_owned());
        }
        if let Some(node) = self.network.node(self.target)
            && node != self.node
        {
            self.node = node;
            let address = self.network.address(self.target, &self.node);
            if address != self.address {
                tracing::info!(target = %self.target, address, "a peer is reached elsewhere from now on");
                self.client = self.network.connection(self.target, &address, self.purpose);
                self.address = address;
            }
        }
        self.client.clone()
    }

    /// Logs a refusal of this replica as such; one that goes on, once in a while.
    pub(super) fn note_refusal(&self, status: &Status) {
        if status.code() != Code::FailedPrecondition {
            return;
        }
        let refusal = Refusal::of(status);
        let mut refusals = self.network.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let logged = refusals.get(&(self.target, refusal));
        if logged.is_some_and(|logged| logged.elapsed() < REFUSAL_LOG_INTERVAL) {
            return;
        }
        refusals.insert((self.target, refusal), Instant::now());
        if refusal == Some(Refusal::Rejoining) {
            tracing::warn!(target = %self.target, reason = status.message(), "a peer lost its storage");
        } else {
            tracing::error!(target = %self.target, reason = status.message(), "a peer refuses this replica");
        }
    }

    async fn call<T>(
        &mut self,
        call: impl AsyncFnOnce(RaftServiceClient<Channel>, wire::Peer) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, Status> {
        let answer = self.ask(call).await;
        if let Err(status) = &answer {
            self.note_refusal(status);
        }
        answer
    }

    /// The same; what a refusal means is for the caller to say.
    async fn ask<T>(
        &mut self,
        call: impl AsyncFnOnce(RaftServiceClient<Channel>, wire::Peer) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, Status> {
        let client = self.client().map_err(Status::unavailable)?;
        call(client, self.peer()).await.map(tonic::Response::into_inner)
    }
}

impl Peers for PeerNetwork {
    type Link = PeerChannel;

    fn link(&self, target: ReplicaId, node: &ReplicaNode) -> PeerChannel {
        self.channel(target, node, Purpose::Calls)
    }

    fn are_uploading(&self) -> bool {
        self.uploads.are_running()
    }
}

impl From<Status> for PeerError {
    fn from(status: Status) -> Self {
        let may_have_begun = matches!(
            status.code(),
            Code::Aborted | Code::Unknown | Code::Internal | Code::Cancelled | Code::DeadlineExceeded
        );
        PeerError { detail: status.message().to_owned(), may_have_begun }
    }
}

impl PeerLink for PeerChannel {
    async fn describe(&mut self) -> Result<PeerReport, PeerError> {
        let request = |peer| wire::DescribeRequest { peer: Some(peer) };
        let answer = self.call(async |mut client, peer| client.describe(request(peer)).await).await?;
        Ok(peers::from_wire(answer))
    }

    async fn keep_open(&mut self) {
        if let Some(node) = self.network.node(self.target) {
            self.node = node;
        }
        let request = |peer| wire::DescribeRequest { peer: Some(peer) };
        let ways =
            [Purpose::Calls, Purpose::Log, Purpose::Heartbeats].map(|purpose| {
                let mut way = self.network.channel(self.target, &self.node, purpose);
                async move {
                    way.ask(async |mut client, peer| client.describe(request(peer)).await).await.map(drop)
                }
            });
        // What cannot be reached now is tried again the next time. A refusal says nothing yet: one that has just been
        // taken in learns from its leader of which generation it is.
        futures::future::join_all(ways).await;
    }

    async fn read_index(mut self) -> Result<ReadPoint, PeerError> {
        let request = |peer| wire::ReadIndexRequest { peer: Some(peer) };
        let answer = self.call(async |mut client, peer| client.read_index(request(peer)).await).await?;
        Ok(convert::read_point(answer)?)
    }

    async fn readmit(&mut self, request: ReturnRequest) -> Result<Readmitted, PeerError> {
        let ReturnRequest { step, begun, node } = request;
        let step = match step {
            ReturnStep::Readmit => wire::readmit_request::Step::Readmit,
            ReturnStep::Promote => wire::readmit_request::Step::Promote,
        };
        let request = |peer| wire::ReadmitRequest {
            peer: Some(peer),
            step: step.into(),
            begun,
            region: node.region,
            peer_endpoint: node.peer_endpoint,
            client_endpoint: node.client_endpoint,
        };
        let answer = self.ask(async |mut client, peer| client.readmit(request(peer)).await).await?;
        let vote = convert::vote(answer.vote)?;
        Ok(Readmitted { from_index: answer.from_index, vote, voted: answer.voted })
    }
}
