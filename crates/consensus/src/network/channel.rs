//! Connections to peers, and where they lead.
//!
//! Between every two replicas there is one connection for each purpose, and it is kept open by those who do not lead
//! as well: opening one takes three round trips, and an election over regions has no time for that.
//!
//! **Invariant:** a connection follows the membership: when the address of a member changes, the next
//! call goes to the new one.

use super::convert;
use super::refusal::Refusal;
use super::snapshots::Uploads;
use super::transport::{Connection as _, Transport};
use crate::config::{ConsensusConfig, MEMBERS_MAX};
use crate::environment::{Environment, Metrics, PeerError, PeerLink, Peers, Storage as _};
use crate::fault_injection::Traffic;
use crate::follower_hint::FollowerHints;
use crate::leader::ReadPoint;
use crate::leadership::CheckQuorum;
use crate::messages::{FormerVote, PeerReport, RejoinGrant, RejoinRequest, RejoinStep};
use muster_store::ReplicaNode;
use muster_types::ReplicaId;
use muster_wire::raft::v1 as wire;
use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
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

/// A connection that is kept open.
struct CachedConnection<C> {
    address: String,
    /// Of the certificates it was made with.
    epoch: u64,
    client: C,
}

/// The connections that are kept, by peer and purpose.
type CachedConnections<C> = BTreeMap<(ReplicaId, Purpose), CachedConnection<C>>;

/// A few for each member. More belong to former members.
const CACHED_MAX: usize = 4 * MEMBERS_MAX;

/// When which refusal by which peer was logged.
type LoggedAt = BTreeMap<(ReplicaId, Option<Refusal>), Instant>;

/// The connections to peers over a transport. Clones share them.
#[derive(Clone)]
pub struct PeerNetwork<E: Environment, T: Transport> {
    pub(super) config: ConsensusConfig,
    pub(super) check_quorum: CheckQuorum<E>,
    pub(super) traffic: Traffic,
    pub(super) store: E::Storage,
    pub(super) hints: FollowerHints,
    transport: T,
    /// Set once the protocol runs.
    metrics: Arc<OnceLock<Metrics<E>>>,
    pub(super) uploads: Uploads,
    kept: Arc<Mutex<CachedConnections<T::Connection>>>,
    /// When a peer's refusal of this replica as such was last logged.
    refusals: Arc<Mutex<LoggedAt>>,
}

impl<E: Environment, T: Transport> PeerNetwork<E, T> {
    /// The connections of the replica with this configuration.
    pub fn new(
        config: ConsensusConfig,
        check_quorum: CheckQuorum<E>,
        store: E::Storage,
        transport: T,
    ) -> Self {
        let uploads = Uploads::new(config.snapshots.send_bytes_per_s);
        PeerNetwork {
            hints: FollowerHints::new(config.timing),
            config,
            check_quorum,
            traffic: Traffic::default(),
            store,
            transport,
            metrics: Arc::default(),
            uploads,
            kept: Arc::default(),
            refusals: Arc::default(),
        }
    }

    /// Follows the membership that the protocol knows; called once, when it runs.
    pub fn watch(&self, metrics: Metrics<E>) {
        // Started once; a second protocol on this network does not exist.
        let _ = self.metrics.set(metrics);
    }

    /// The connection to `target` for a purpose, at `node` until the membership says otherwise; opened when first
    /// used, and again whenever it broke.
    pub(super) fn channel(
        &self,
        target: ReplicaId,
        node: &ReplicaNode,
        purpose: Purpose,
    ) -> PeerChannel<E, T> {
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
    ) -> Result<T::Connection, String> {
        if purpose == Purpose::Snapshot {
            return self.connect(target, address);
        }
        let epoch = self.transport.epoch();
        let mut kept = self.kept.lock();
        if let Some(kept) = kept.get(&(target, purpose))
            && kept.address == address
            && kept.epoch == epoch
        {
            return Ok(kept.client.clone());
        }
        let client = self.connect(target, address)?;
        if kept.len() >= CACHED_MAX {
            kept.clear();
        }
        let connection = CachedConnection { address: address.to_owned(), epoch, client: client.clone() };
        kept.insert((target, purpose), connection);
        Ok(client)
    }

    fn address(&self, target: ReplicaId, node: &ReplicaNode) -> String {
        match &self.config.dial {
            Some(dial) => dial(target, node),
            None => node.peer_endpoint.clone(),
        }
    }

    fn connect(&self, target: ReplicaId, address: &str) -> Result<T::Connection, String> {
        let connected = self.transport.connect(target, address);
        connected.inspect_err(|error| tracing::error!(%target, error, "a peer's endpoint cannot be used"))
    }

    /// The description of a member in the membership.
    fn node(&self, target: ReplicaId) -> Option<ReplicaNode> {
        let metrics = self.metrics.get()?.borrow_watched();
        metrics.membership_config.get_node(&target.0).cloned()
    }
}

/// One connection to one peer.
#[derive(Clone)]
pub struct PeerChannel<E: Environment, T: Transport> {
    network: PeerNetwork<E, T>,
    target: ReplicaId,
    node: ReplicaNode,
    purpose: Purpose,
    address: String,
    client: Result<T::Connection, String>,
}

impl<E: Environment, T: Transport> PeerChannel<E, T> {
    pub(super) fn target(&self) -> ReplicaId {
        self.target
    }

    /// Who talks to whom.
    pub(super) fn peer(&self) -> wire::Peer {
        wire::Peer {
            cluster_id: self.network.config.cluster_id.to_string(),
            source: self.network.config.replica_id.0,
            target: self.target.0,
            generation: self.network.store.generation(),
            founding: self.network.store.founding().id(),
        }
    }

    /// A client at the peer's present address; none while this replica calls nobody.
    pub(super) fn client(&mut self) -> Result<T::Connection, String> {
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
        let mut refusals = self.network.refusals.lock();
        let (logged, now) = (refusals.get(&(self.target, refusal)), E::instant());
        if logged.is_some_and(|logged| now.saturating_duration_since(*logged) < REFUSAL_LOG_INTERVAL) {
            return;
        }
        refusals.insert((self.target, refusal), now);
        if refusal == Some(Refusal::Rejoining) {
            tracing::warn!(target = %self.target, reason = status.message(), "a peer lost its storage");
        } else {
            tracing::error!(target = %self.target, reason = status.message(), "a peer refuses this replica");
        }
    }

    /// What is needed for a call.
    fn ready(&mut self) -> Result<(T::Connection, wire::Peer), Status> {
        let client = self.client().map_err(Status::unavailable)?;
        Ok((client, self.peer()))
    }

    /// The answer, after a refusal of this replica was noted.
    fn noted<A>(&self, answer: Result<A, Status>) -> Result<A, Status> {
        answer.inspect_err(|status| self.note_refusal(status))
    }

    /// Asks a replica that waits for a founding to belong to `founding`; how it is then.
    pub(crate) async fn found(&mut self, founding: Option<u64>) -> Result<PeerReport, PeerError> {
        let (mut client, peer) = self.ready()?;
        let answer = client.describe(wire::DescribeRequest { peer: Some(peer), found: founding }).await;
        Ok(convert::report(self.noted(answer)?, E::instant()))
    }
}

impl<E: Environment, T: Transport> Peers for PeerNetwork<E, T> {
    type Link = PeerChannel<E, T>;

    fn link(&self, target: ReplicaId, node: &ReplicaNode) -> PeerChannel<E, T> {
        self.channel(target, node, Purpose::Calls)
    }

    fn are_uploading(&self) -> bool {
        self.uploads.are_running()
    }

    fn answered_unsent(&self) -> u64 {
        self.hints.answered()
    }

    fn traffic(&self) -> &Traffic {
        &self.traffic
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

impl<E: Environment, T: Transport> PeerLink for PeerChannel<E, T> {
    async fn describe(&mut self) -> Result<PeerReport, PeerError> {
        self.found(None).await
    }

    async fn keep_open(&mut self) {
        if let Some(node) = self.network.node(self.target) {
            self.node = node;
        }
        let opened = [Purpose::Calls, Purpose::Log, Purpose::Heartbeats].map(|purpose| {
            let mut channel = self.network.channel(self.target, &self.node, purpose);
            async move {
                let Ok((mut client, peer)) = channel.ready() else { return };
                // A peer that cannot be reached now is tried again the next time. A refusal proves nothing yet: a
                // replica that was just added learns its generation from its leader.
                let _ = client.describe(wire::DescribeRequest { peer: Some(peer), found: None }).await;
            }
        });
        futures::future::join_all(opened).await;
    }

    async fn read_index(mut self) -> Result<ReadPoint, PeerError> {
        let (mut client, peer) = self.ready()?;
        let answer = client.read_index(wire::ReadIndexRequest { peer: Some(peer) }).await;
        Ok(convert::read_point(self.noted(answer)?)?)
    }

    async fn readmit(&mut self, request: RejoinRequest) -> Result<RejoinGrant, PeerError> {
        let RejoinRequest { step, begun, voted, node } = request;
        let voted = match voted {
            FormerVote::Unreported => wire::readmit_request::Voted::Unspecified,
            FormerVote::Queried => wire::readmit_request::Voted::Asked,
            FormerVote::Known(true) => wire::readmit_request::Voted::Yes,
            FormerVote::Known(false) => wire::readmit_request::Voted::No,
        };
        let step = match step {
            RejoinStep::AddAsLearner => wire::readmit_request::Step::Readmit,
            RejoinStep::RestoreVote => wire::readmit_request::Step::Promote,
        };
        let (mut client, peer) = self.ready()?;
        let request = wire::ReadmitRequest {
            peer: Some(peer),
            step: step.into(),
            begun,
            region: node.region,
            peer_endpoint: node.peer_endpoint,
            client_endpoint: node.client_endpoint,
            voted: voted.into(),
        };
        // What a refusal means is for the caller to say.
        let answer = client.readmit(request).await?;
        let vote = convert::vote(answer.vote)?;
        Ok(RejoinGrant { from_index: answer.from_index, vote, voted: answer.voted })
    }
}
