//! One replica's share in the agreement, as the application sees it: the owner of all its parts.
//!
//! Each part has a handle with what it needs; only this file knows all of them.

use crate::application::Application;
use crate::bootstrap::{self, Bootstrap};
use crate::config::ConsensusConfig;
use crate::environment::{Environment, PeerError, Peers as _, Raft, Storage as _, TokioEnv};
use crate::error::{MembershipError, StartError};
use crate::fault_injection::Traffic;
use crate::leader::{LeadershipHandle, LeadershipView, NotLeader, ReadPoint};
use crate::leadership::{CheckQuorum, Elections, LeadershipTransfer, watch_leadership};
use crate::log_reader::{LogReader, LogSlice, ReadLogError};
use crate::membership::{ChangeOptions, ChangeProgress, Changed, Membership};
use crate::messages::{PeerReport, RejoinGrant, RejoinRequest, Reports, millis};
use crate::network::{Grpc, PeerNetwork, PeerService, ServedReplica, peer_server};
use crate::peers::{self, Describer, poll_peers};
use crate::proposals::{Proposal, Proposals};
use crate::reads::{
    Caller, Confirmation, Confirmations, FreshAsOf, Source, confirmed, run_confirmations, run_reads,
};
use crate::rejoin::{RejoinGate, RejoinTask};
use crate::snapshots::{AppliedBytes, compact};
use crate::state_machine::StateMachine;
use crate::status::{Member, Members, ReplicaStatus, Role};
use crate::stop::{StopHandle, StopReason};
use bytes::Bytes;
use muster_store::{FlushProgress, ReplicaNode, ReplicaStore};
use muster_transport::AcceptLimits;
use muster_types::{Leadership, ReplicaId};
use muster_wire::raft::v1::raft_service_server::RaftServiceServer;
use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

/// One replica's share in the agreement. Clones are handles to the same replica.
pub struct Consensus<E: Environment = TokioEnv> {
    inner: Arc<Inner<E>>,
}

impl<E: Environment> Clone for Consensus<E> {
    fn clone(&self) -> Self {
        Consensus { inner: Arc::clone(&self.inner) }
    }
}

/// The protocol and what it runs on, for [`Consensus::assemble`].
pub struct Parts<E: Environment> {
    /// The protocol, started.
    pub raft: Raft<E>,
    /// Where its log is.
    pub storage: E::Storage,
    /// How it reaches its peers.
    pub peers: E::Peers,
    /// The last applied entry, as it changes.
    pub applied: watch::Receiver<u64>,
    /// How much was applied.
    pub applied_bytes: AppliedBytes,
    /// Why the replica takes no part any more, once it does not.
    pub stop: Arc<watch::Sender<Option<StopReason>>>,
}

struct Inner<E: Environment> {
    config: ConsensusConfig,
    raft: Raft<E>,
    store: E::Storage,
    network: E::Peers,
    leadership: LeadershipHandle,
    applied: watch::Receiver<u64>,
    stop: StopHandle,
    confirmations: Confirmations,
    reads: mpsc::Sender<Caller<Confirmation>>,
    fresh: Arc<FreshAsOf>,
    rejoin: RejoinGate<E>,
    describer: Describer<E>,
    members: Members<E>,
    elections: Elections<E>,
    membership: Membership<E>,
    transfer: LeadershipTransfer<E>,
    proposals: Arc<Proposals<E>>,
}

impl Consensus {
    /// Starts the replica: restores the newest snapshot into the application and applies the log as
    /// far as it is known to be committed. Peers reach it once [`Consensus::peer_service`] is served.
    ///
    /// # Errors
    /// When the configuration is refused or storage cannot be read.
    pub async fn start(
        config: ConsensusConfig,
        store: ReplicaStore,
        application: impl Application,
    ) -> Result<Consensus, StartError> {
        let mut openraft_config = config.to_openraft()?;
        // One that lost its storage might take itself for a voter before it knows better.
        openraft_config.enable_elect = Consensus::<TokioEnv>::may_elect(&store);
        let stop = Arc::new(watch::Sender::new(None));
        let (applied_sender, applied) = watch::channel(0);
        let machine = StateMachine::new(
            Box::new(application),
            store.snapshots.clone(),
            config.limits.apply_entries_max,
            applied_sender,
            StopHandle::new(Arc::clone(&stop)),
        );
        let applied_bytes = machine.applied_bytes();
        let check_quorum = CheckQuorum::new(config.timing);
        let transport = Grpc::new(config.timing, &config.limits, &config.security);
        let network = PeerNetwork::new(config.clone(), check_quorum.clone(), store.clone(), transport);
        let log = store.log.clone();
        let raft = Raft::new(config.replica_id.0, Arc::new(openraft_config), network.clone(), log, machine)
            .await
            .map_err(|error| StartError::Raft { detail: error.to_string() })?;
        check_quorum.watch(raft.metrics());
        network.watch(raft.metrics());
        let parts = Parts { raft, storage: store, peers: network, applied, applied_bytes, stop };
        Ok(Consensus::assemble(config, parts))
    }

    /// What peers call, to be mounted on the peer listener.
    #[must_use]
    pub fn peer_service(&self) -> RaftServiceServer<PeerService> {
        self.peer_calls().into_server(&self.inner.config.limits)
    }

    /// Serves peers on `listener` until `shutdown` resolves.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve_peers(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), tonic::transport::Error> {
        let incoming = self.inner.config.security.accept(listener, AcceptLimits::DEFAULT);
        peer_server(self.peer_service(), incoming, shutdown).await
    }

    /// Founds the cluster of `members`, all voters, or waits until the member with the lowest id has done so. Every
    /// replica of a new cluster calls this with the same members. A replica that has a log, or that waits to be added
    /// to a running cluster, does nothing.
    ///
    /// # Errors
    /// [`StartError::Exists`] when a member has this cluster already: this replica lost its disk.
    pub async fn found(&self, members: BTreeMap<ReplicaId, ReplicaNode>) -> Result<(), StartError> {
        let Inner { config, store, raft, network, rejoin, .. } = self.inner.as_ref();
        // A replica that lost its storage does not remember that there is a cluster.
        if rejoin.is_closed() {
            return Ok(());
        }
        Bootstrap { own: config.replica_id, store, raft, network }.found(members).await
    }

    fn log_reader(&self) -> LogReader {
        LogReader::new(self.inner.store.log.clone(), self.inner.applied.clone())
    }

    /// Applied entries from raft index `from` on, about a megabyte of them: at least one, unless none
    /// is applied.
    ///
    /// # Errors
    /// When storage fails or was closed.
    pub async fn read_applied(&self, from: u64) -> Result<LogSlice, ReadLogError> {
        self.log_reader().read_applied(from).await
    }

    /// The last index that was purged from the log; `None` when nothing was purged.
    #[must_use]
    pub fn log_floor(&self) -> Option<u64> {
        self.log_reader().floor()
    }

    /// Keeps entries behind `hold` in the log, whatever snapshots there are: another reader does not have them yet.
    /// `None` holds nothing back.
    pub fn hold_purge(&self, hold: Option<u64>) {
        self.inner.store.log.hold_purge(hold);
    }
}

impl<E: Environment> Consensus<E> {
    /// Whether a replica with this storage may campaign at all when it starts.
    pub fn may_elect(storage: &E::Storage) -> bool {
        !RejoinGate::<E>::new(storage.clone()).is_closed()
    }

    /// Puts a replica together around a protocol that was started.
    #[must_use]
    pub fn assemble(config: ConsensusConfig, parts: Parts<E>) -> Consensus<E> {
        let Parts { raft, storage: store, peers: network, applied, applied_bytes, stop } = parts;
        let stop = StopHandle::new(stop);
        let (view_sender, view) = watch::channel(LeadershipView::unknown(E::instant()));
        let leadership = LeadershipHandle::new(view);
        E::detach(watch_leadership::<E>(raft.metrics(), config.timing, view_sender));
        E::detach(watch_stop::<E>(raft.clone(), stop.clone()));
        let (confirmations, callers) = mpsc::channel(config.limits.confirmations_waiting_max);
        let pace = config.timing.read_pace();
        let (confirming, reaching) = (raft.clone(), network.clone());
        E::detach(run_confirmations::<E>(confirming, reaching, leadership.clone(), callers, pace.pause));
        let (reads, readers) = mpsc::channel(config.limits.confirmations_waiting_max);
        let fresh = Arc::new(FreshAsOf::new(E::instant()));
        let source = Source {
            own: config.replica_id,
            raft: raft.clone(),
            network: network.clone(),
            leadership: leadership.clone(),
            confirmations: confirmations.clone(),
            answer_max: config.timing.stall_max(),
            link: Mutex::new(None),
        };
        E::detach(run_reads(source, readers, applied.clone(), Arc::clone(&fresh), pace));
        let rejoin = RejoinGate::new(store.clone());
        let describer = Describer {
            advertise: config.advertise.clone(),
            store: store.clone(),
            storage: config.storage_health.clone().unwrap_or_else(|| store.health()),
            metrics: raft.metrics(),
            rejoin: rejoin.clone(),
        };
        let (reports_sender, reports) = watch::channel(Reports::new());
        let members = Members::new(raft.metrics(), reports);
        let (id, timing) = (config.replica_id, config.timing);
        let inner = Inner {
            elections: Elections::new(config.clone(), raft.clone()),
            membership: Membership::new(id, timing, raft.clone(), leadership.clone(), members.clone()),
            transfer: LeadershipTransfer {
                config: config.clone(),
                raft: raft.clone(),
                leadership: leadership.clone(),
                stop: stop.clone(),
                members: members.clone(),
                describer: describer.clone(),
            },
            proposals: Arc::new(Proposals {
                raft: raft.clone(),
                leadership: leadership.clone(),
                stop: stop.clone(),
                lease: timing.lease(),
                payload_bytes_max: config.limits.payload_bytes_max,
            }),
            config,
            raft,
            store,
            network,
            leadership,
            applied,
            stop,
            confirmations,
            reads,
            fresh,
            rejoin,
            describer,
            members,
        };
        inner.run_in_background(applied_bytes, reports_sender);
        Consensus { inner: Arc::new(inner) }
    }

    /// The calls of peers, for a transport that carries them.
    #[must_use]
    pub fn peer_calls(&self) -> PeerService<E> {
        let inner = self.inner.as_ref();
        PeerService::new(ServedReplica {
            cluster_id: inner.config.cluster_id,
            replica_id: inner.config.replica_id,
            security: inner.config.security.clone(),
            raft: inner.raft.clone(),
            store: inner.store.clone(),
            traffic: inner.network.traffic().clone(),
            rejoin: inner.rejoin.clone(),
            elections: inner.elections.clone(),
            membership: inner.membership.clone(),
            confirmations: inner.confirmations.clone(),
            describer: inner.describer.clone(),
        })
    }

    /// The traffic that this replica refuses on purpose.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        self.inner.network.traffic()
    }

    /// Forms the cluster of `members`, all voters. Every replica may call this at its first start
    /// with the same list: only the one with the lowest id acts, so that there is one first entry,
    /// and only while its log is empty. The others learn the membership from it.
    ///
    /// # Errors
    /// When this replica is not in the list, or it stops.
    pub async fn initialize(&self, members: BTreeMap<ReplicaId, ReplicaNode>) -> Result<(), StartError> {
        // A replica that lost its storage does not remember that there is a cluster.
        if self.inner.rejoin.is_closed() {
            return Ok(());
        }
        bootstrap::initialize(self.inner.config.replica_id, &self.inner.raft, members).await
    }

    /// Who leads, as it changes.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<LeadershipView> {
        self.inner.leadership.subscribe()
    }

    /// The last applied entry, as it changes; 0 before anything was applied. Entry 0 is always the
    /// cluster's first membership.
    #[must_use]
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.inner.applied.clone()
    }

    /// How far this replica's log is durable, as it changes.
    #[must_use]
    pub fn flush_progress(&self) -> watch::Receiver<FlushProgress> {
        self.inner.store.flushed()
    }

    /// Why the replica takes no part any more, once it does not.
    #[must_use]
    pub fn stopped(&self) -> watch::Receiver<Option<StopReason>> {
        self.inner.stop.subscribe()
    }

    /// Queues a payload, bound to `leadership`. It is queued when this returns, so proposals are appended in the
    /// order of the calls.
    ///
    /// The future resolves with `Ok` once the entry is committed and applied on this replica.
    pub fn propose(&self, payload: Bytes, leadership: Leadership) -> Proposal {
        self.inner.proposals.propose(payload, leadership)
    }

    /// Waits until everything appended before this call, under any leadership, is applied here.
    /// It commits an entry that belongs to the protocol, so it also proves the leadership.
    ///
    /// # Errors
    /// When `leadership` is over before that.
    pub async fn barrier(&self, leadership: Leadership) -> Result<ReadPoint, NotLeader> {
        self.inner.proposals.barrier(leadership).await
    }

    /// Has a quorum confirm that this replica leads. All callers that wait share one round.
    ///
    /// # Errors
    /// When it does not lead or no quorum answers within a lease.
    pub async fn confirm_leadership(&self) -> Result<ReadPoint, NotLeader> {
        confirmed(&self.inner.confirmations).await
    }

    /// Waits until what is applied here holds everything that was committed before this call, on
    /// whichever replica: then a read of it is linearizable. On a follower the leader is asked, once for
    /// all callers that wait.
    ///
    /// # Errors
    /// When no leader is known or it confirms nothing; a moment later another may. It has no deadline while apply
    /// catches up.
    pub async fn read_index(&self) -> Result<ReadPoint, NotLeader> {
        confirmed(&self.inner.reads).await
    }

    /// What is applied here is known to hold everything that was committed before this instant; none
    /// before the first proof. Read it before the state that it is to speak of. Measured by every
    /// [`Consensus::read_index`] and, without any, about every second heartbeat; stands still while no
    /// leader is heard.
    #[must_use]
    pub fn fresh_as_of(&self) -> Option<Instant> {
        self.inner.fresh.get()
    }

    /// The replica's state now.
    #[must_use]
    pub fn status(&self) -> ReplicaStatus {
        let mut status = self.inner.members.status();
        if status.role != Role::Leader {
            let heard = self.inner.elections.leader_heard_at();
            // A replica that has led until now has heard itself.
            let since = heard.map(|at| at.max(self.inner.leadership.since()));
            status.leader_silent_ms = since.map(|at| millis(E::instant().saturating_duration_since(at)));
        }
        status.rejoining = self.inner.rejoin.is_closed();
        status
    }

    /// The newest report of each replica: of this one always, of the others while it leads. Each has the moment at
    /// which it arrived.
    #[must_use]
    pub fn peer_reports(&self) -> watch::Receiver<BTreeMap<ReplicaId, PeerReport>> {
        self.inner.members.reports().clone()
    }

    /// Whether the wall clocks of a quorum, this replica's among them, are no further apart from this one than `apart`.
    /// Only a leader knows those of the others.
    #[must_use]
    pub fn clock_agrees(&self, apart: Duration) -> bool {
        let Inner { config, describer, members, .. } = self.inner.as_ref();
        peers::clock_agrees::<E>(config.replica_id.0, &describer.metrics, &members.reports().borrow(), apart)
    }

    /// The generation of the cluster, as this replica knows it.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.inner.store.generation()
    }

    /// All members, in the order of their ids, with what is known of them.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.inner.members.all()
    }

    /// Where a running change of the membership stands, as it goes on; `None` while none is made.
    #[must_use]
    pub fn change_progress(&self) -> watch::Receiver<Option<ChangeProgress>> {
        self.inner.membership.progress()
    }

    /// Adds a replica that follows without a vote. It is a member when this returns; see
    /// [`Consensus::wait_caught_up`].
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or it is a member elsewhere.
    pub async fn add_learner(&self, id: ReplicaId, node: ReplicaNode) -> Result<Changed, MembershipError> {
        self.inner.membership.add_learner(id, node).await
    }

    /// Waits until a member has almost everything; [`Consensus::members`] shows the progress.
    ///
    /// # Errors
    /// When this replica does not lead, stops leading, or the member is removed.
    pub async fn wait_caught_up(&self, id: ReplicaId) -> Result<(), MembershipError> {
        self.inner.membership.wait_caught_up(id).await
    }

    /// Gives a learner that has caught up a vote.
    ///
    /// # Errors
    /// [`MembershipError::NotCaughtUp`] with its lag, or a refusal of [`Consensus::change_voters`].
    pub async fn promote(&self, id: ReplicaId) -> Result<Changed, MembershipError> {
        self.inner.membership.promote(id).await
    }

    /// Removes a voter or a learner. A leader that removes itself gives up leadership when it is done.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or the quorum would be lost.
    pub async fn remove(&self, id: ReplicaId, options: ChangeOptions) -> Result<Changed, MembershipError> {
        self.inner.membership.remove(id, options).await
    }

    /// Makes exactly `voters` vote; each has to be a member that has caught up.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or the quorum would be lost.
    pub async fn change_voters(
        &self,
        voters: BTreeSet<ReplicaId>,
        options: ChangeOptions,
    ) -> Result<Changed, MembershipError> {
        self.inner.membership.change_voters(voters, options).await
    }

    /// Replaces a voter that is gone by a new replica: adds it, waits until it has caught up, and changes the voters
    /// once. Asked again after an interruption, it goes on.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or the quorum would be lost.
    pub async fn replace(
        &self,
        gone: ReplicaId,
        id: ReplicaId,
        node: ReplicaNode,
        options: ChangeOptions,
    ) -> Result<Changed, MembershipError> {
        self.inner.membership.replace(gone, id, node, options).await
    }

    /// Changes the endpoints and the region of a member; connections follow.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or there is no such member.
    pub async fn update_member(&self, id: ReplicaId, node: ReplicaNode) -> Result<Changed, MembershipError> {
        self.inner.membership.update_member(id, node).await
    }

    /// Lets a replica rejoin that lost its storage, or gives it its vote back, while this replica leads.
    ///
    /// # Errors
    /// When it does not lead, or the membership refuses. The error tells whether half of it may be done.
    pub async fn grant_rejoin(
        &self,
        source: ReplicaId,
        request: RejoinRequest,
    ) -> Result<RejoinGrant, PeerError> {
        self.inner.membership.grant_rejoin(source, request).await
    }

    /// The voter that should lead next, if this replica may not go on: healthy, caught up, in the
    /// best region.
    #[must_use]
    pub fn successor(&self) -> Option<ReplicaId> {
        self.inner.transfer.successor()
    }

    /// Transfers leadership to another voter and waits until this replica no longer leads, or for two leases.
    ///
    /// # Errors
    /// When this replica does not lead or still leads afterwards.
    pub async fn transfer_leadership(&self, to: ReplicaId) -> Result<(), MembershipError> {
        self.inner.transfer.transfer(to).await
    }

    /// The protocol underneath, for those who carry its messages.
    #[must_use]
    pub fn raft(&self) -> &Raft<E> {
        &self.inner.raft
    }

    /// Asks for a snapshot now; it is made in the background.
    pub async fn trigger_snapshot(&self) {
        // A replica that stops makes no snapshot, and reports its stop elsewhere.
        let _ = self.inner.raft.trigger().snapshot().await;
    }

    /// Stops taking part, finishes what storage has queued and releases it.
    pub async fn shutdown(&self) {
        self.inner.stop.stop(StopReason::Shutdown);
        if let Err(error) = self.inner.raft.shutdown().await {
            tracing::error!(%error, "the protocol's task ended badly");
        }
        self.inner.store.close().await;
    }
}

impl<E: Environment> Inner<E> {
    /// Starts what runs next to the protocol, until it stops.
    fn run_in_background(&self, applied_bytes: AppliedBytes, reports: watch::Sender<Reports>) {
        let Inner { config, raft, network, leadership, describer, rejoin, .. } = self;
        E::detach(compact::<E>(
            config.snapshots,
            raft.clone(),
            raft.metrics(),
            applied_bytes,
            network.clone(),
            self.applied.clone(),
        ));
        let storage = describer.storage.clone();
        let (describer, peers) = (describer.clone(), network.clone());
        E::detach(poll_peers::<E>(config.clone(), peers, describer, leadership.clone(), reports));
        E::detach(self.elections.clone().run_staggered(rejoin.clone(), storage));
        E::detach(self.transfer.clone().run_policy());
        E::detach(self.membership.clone().finish_changes(self.stop.clone()));
        if rejoin.is_pending() {
            let (config, raft, peers) = (config.clone(), raft.clone(), network.clone());
            let task = RejoinTask { config, raft, peers, gate: rejoin.clone() };
            E::detach(task.run(self.stop.clone()));
        }
    }
}

/// Notices when the protocol stops by itself.
async fn watch_stop<E: Environment>(raft: Raft<E>, stop: StopHandle) {
    let mut metrics = raft.metrics();
    loop {
        let failed = metrics.borrow_watched().running_state.as_ref().err().map(ToString::to_string);
        let reason = match failed {
            Some(detail) => StopReason::Raft { detail },
            None if metrics.changed().await.is_ok() => continue,
            None => StopReason::Shutdown,
        };
        if stop.stop(reason.clone()) && reason != StopReason::Shutdown {
            tracing::error!(%reason, "this replica takes no part any more");
        }
        return;
    }
}
