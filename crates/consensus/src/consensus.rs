//! One replica's share in the agreement, as the application sees it.
//!
//! **Invariant:** proposals are appended in the order of the calls of [`Consensus::propose`].
//! **Invariant:** a proposal is appended only under the leadership it was made for.

use crate::application::Application;
use crate::check_quorum::CheckQuorum;
use crate::compaction::{AppliedBytes, compact};
use crate::config::ConsensusConfig;
use crate::confirm::{Confirmation, Confirmations, confirmed, run_confirmations};
use crate::election::{self, LastContact, VoteKind, run_staggered_elections};
use crate::environment::{Environment, Peers as _, Raft, Storage as _, TokioEnv};
use crate::error::{Committed, MembershipError, NotLeader, ProposeError, ReadPoint, StartError, StopReason};
use crate::fault_injection::Traffic;
use crate::leadership::{Leadership, LeadershipView, watch_leadership};
use crate::leadership_transfer::run_transfer_policy;
use crate::membership::{ChangeLock, finish_changes};
use crate::network::{Grpc, PeerNetwork, PeerService, peer_server};
use crate::peers::{self, Describer, PeerReport, Reports, poll_peers};
use crate::reads::{FreshAsOf, Source, run_reads};
use crate::rejoin::{RejoinGate, run_rejoin};
use crate::rounds::Caller;
use crate::state_machine::StateMachine;
use crate::status::{ReplicaStatus, Role, millis};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use muster_planted::{Rule, breaks};
use muster_store::{FlushProgress, LeaderId, Payload, ReplicaNode, ReplicaStore};
use muster_transport::AcceptLimits;
use muster_types::ReplicaId;
use muster_wire::raft::v1::raft_service_server::RaftServiceServer;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, InitializeError, RaftError};
use openraft::raft::{ClientWriteResult, VoteRequest, VoteResponse};
use openraft::type_config::TypeConfigExt as _;
use openraft::vote::RaftLeaderId;
use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

/// The outcome of a proposal that is already in line. Dropping it gives up the answer, not the
/// proposal.
pub type Proposal = BoxFuture<'static, Result<Committed, ProposeError>>;

/// One replica's share in the agreement. Clones are handles to the same replica.
pub struct Consensus<E: Environment = TokioEnv> {
    pub(crate) inner: Arc<Inner<E>>,
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

pub(crate) struct Inner<E: Environment> {
    pub(crate) config: ConsensusConfig,
    pub(crate) raft: Raft<E>,
    pub(crate) store: E::Storage,
    pub(crate) network: E::Peers,
    pub(crate) view: watch::Receiver<LeadershipView>,
    pub(crate) applied: watch::Receiver<u64>,
    stop: Arc<watch::Sender<Option<StopReason>>>,
    pub(crate) confirmations: Confirmations,
    reads: mpsc::Sender<Caller<Confirmation>>,
    fresh: Arc<FreshAsOf>,
    pub(crate) changing: ChangeLock,
    pub(crate) rejoin: RejoinGate<E>,
    pub(crate) describer: Describer<E>,
    pub(crate) reports: watch::Receiver<Reports>,
    pub(crate) last_contact: LastContact,
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
            Arc::clone(&stop),
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
        PeerService::new(self.clone()).into_server(&self.inner.config.limits)
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
}

impl<E: Environment> Consensus<E> {
    /// What traffic this replica refuses on purpose.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        self.inner.network.traffic()
    }

    /// Whether a replica with this storage may campaign at all when it starts.
    pub fn may_elect(storage: &E::Storage) -> bool {
        !RejoinGate::<E>::new(storage.clone()).is_closed()
    }

    /// Puts a replica together around a protocol that was started.
    #[must_use]
    pub fn assemble(config: ConsensusConfig, parts: Parts<E>) -> Consensus<E> {
        let Parts { raft, storage: store, peers: network, applied, applied_bytes, stop } = parts;
        let rejoin = RejoinGate::new(store.clone());
        let (view_sender, view) = watch::channel(LeadershipView::unknown(E::instant()));
        E::detach(watch_leadership::<E>(raft.metrics(), config.timing, view_sender));
        E::detach(watch_stop::<E>(raft.clone(), Arc::clone(&stop)));
        let (confirmations, callers) = mpsc::channel(config.limits.confirmations_waiting_max);
        let pace = config.timing.read_pace();
        E::detach(run_confirmations::<E>(raft.clone(), network.clone(), view.clone(), callers, pace.pause));
        let (reads, readers) = mpsc::channel(config.limits.confirmations_waiting_max);
        let fresh = Arc::new(FreshAsOf::new(E::instant()));
        let source = Source {
            own: config.replica_id,
            raft: raft.clone(),
            network: network.clone(),
            view: view.clone(),
            confirmations: confirmations.clone(),
            answer_max: config.timing.stall_max(),
            link: Mutex::new(None),
        };
        E::detach(run_reads(source, readers, applied.clone(), Arc::clone(&fresh), pace));
        let storage = config.storage_health.clone().unwrap_or_else(|| store.health());
        let describer = Describer {
            advertise: config.advertise.clone(),
            store: store.clone(),
            storage,
            metrics: raft.metrics(),
            rejoin: rejoin.clone(),
        };
        let (reports_sender, reports) = watch::channel(Reports::new());
        let inner = Inner {
            config,
            raft,
            store,
            network,
            view,
            applied,
            stop,
            confirmations,
            reads,
            fresh,
            changing: ChangeLock::new(),
            rejoin,
            describer,
            reports,
            last_contact: LastContact::default(),
        };
        let consensus = Consensus { inner: Arc::new(inner) };
        consensus.run_in_background(applied_bytes, reports_sender);
        consensus
    }

    /// What goes on beside the protocol, until it stops.
    fn run_in_background(&self, applied_bytes: AppliedBytes, reports: watch::Sender<Reports>) {
        let Inner { config, raft, network, view, describer, rejoin, last_contact, .. } = self.inner.as_ref();
        E::detach(compact::<E>(
            config.snapshots,
            raft.clone(),
            raft.metrics(),
            applied_bytes,
            network.clone(),
            self.inner.applied.clone(),
        ));
        let describer = describer.clone();
        E::detach(poll_peers::<E>(config.clone(), network.clone(), describer, view.clone(), reports));
        E::detach(run_staggered_elections::<E>(
            config.clone(),
            raft.clone(),
            raft.metrics(),
            last_contact.clone(),
            rejoin.clone(),
            self.inner.describer.storage.clone(),
        ));
        E::detach(run_transfer_policy(self.clone()));
        E::detach(finish_changes(self.clone()));
        if rejoin.is_pending() {
            E::detach(run_rejoin(self.clone()));
        }
    }

    /// Forms the cluster of `members`, all voters. Every replica may call this at its first start
    /// with the same list: only the one with the lowest id acts, so that there is one first entry,
    /// and only while its log is empty. The others learn the membership from it.
    ///
    /// # Errors
    /// When this replica is not in the list, or it stops.
    pub async fn initialize(&self, members: BTreeMap<ReplicaId, ReplicaNode>) -> Result<(), StartError> {
        // An emptied replica does not remember that there is a cluster.
        if self.inner.rejoin.is_closed() {
            return Ok(());
        }
        let own = self.inner.config.replica_id;
        if !members.contains_key(&own) {
            return Err(StartError::Initialize { detail: format!("{own} is not among the members") });
        }
        if members.keys().next() != Some(&own) {
            return Ok(());
        }
        let members: BTreeMap<u64, ReplicaNode> =
            members.into_iter().map(|(id, node)| (id.0, node)).collect();
        match self.inner.raft.initialize(members).await {
            // Already part of a cluster.
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(StartError::Initialize { detail: error.to_string() }),
        }
    }

    /// Who leads, as it changes.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<LeadershipView> {
        self.inner.view.clone()
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

    pub(crate) fn not_leader(&self) -> NotLeader {
        let view = self.inner.view.borrow();
        NotLeader { leader: view.leader.clone().filter(|_| view.mine.is_none()) }
    }

    fn leads(&self, leadership: Leadership) -> bool {
        self.inner.view.borrow().mine == Some(leadership)
    }

    fn is_stopped(&self) -> bool {
        self.inner.stop.borrow().is_some()
    }

    /// Puts a payload in line, bound to `leadership`. It is in line when this returns, so proposals
    /// are appended in the order of the calls; the future says what became of it.
    ///
    /// The future resolves with `Ok` once the entry is committed and applied on this replica.
    pub fn propose(&self, payload: Bytes, leadership: Leadership) -> Proposal {
        let refuse = |error: ProposeError| futures::future::ready(Err(error)).boxed();
        let bytes_max = self.inner.config.limits.payload_bytes_max;
        if payload.len() > bytes_max {
            return refuse(ProposeError::TooLarge { bytes: payload.len(), bytes_max });
        }
        let bound = !breaks(Rule::SkipGuard);
        if bound && !self.leads(leadership) {
            return refuse(self.not_leader().into());
        }
        let (responder, answer) = E::responder();
        let mut write = self.inner.raft.write(Payload(payload)).responder(responder);
        if bound {
            write = write.with_leader(LeaderId::new(leadership.term, leadership.replica.0));
        }
        let enqueue = write.into_future();
        // One poll puts it in line or finds the line full; nothing was sent in the second case.
        // Unconstrained, because a task that used up its budget would see a full line.
        match tokio::task::unconstrained(enqueue).now_or_never() {
            Some(Ok(())) => {}
            Some(Err(_)) => return refuse(ProposeError::Shutdown),
            None if self.is_stopped() => return refuse(ProposeError::Shutdown),
            None => return refuse(ProposeError::Overloaded),
        }
        let this = self.clone();
        async move {
            tokio::select! {
                biased;
                answer = answer => this.outcome(answer),
                () = this.leadership_over(leadership) => Err(ProposeError::Unknown),
                () = this.until_stopped() => Err(ProposeError::Shutdown),
            }
        }
        .boxed()
    }

    fn outcome(&self, answer: Option<ClientWriteResult<E>>) -> Result<Committed, ProposeError> {
        match answer {
            Some(Ok(response)) => Ok(Committed { raft_index: response.log_id.index() }),
            // Refused before it was appended.
            Some(Err(ClientWriteError::ForwardToLeader(_))) => Err(self.not_leader().into()),
            Some(Err(_)) => Err(ProposeError::Unknown),
            None if self.is_stopped() => Err(ProposeError::Shutdown),
            None => Err(ProposeError::Unknown),
        }
    }

    /// Resolves one lease after a leadership ended: by then whatever could still be answered was.
    async fn leadership_over(&self, leadership: Leadership) {
        let mut view = self.inner.view.clone();
        loop {
            let _ = view.wait_for(|view| view.mine != Some(leadership)).await;
            E::sleep(self.inner.config.timing.lease()).await;
            // A leader that missed its quorum for a moment leads on under the same leadership.
            if view.borrow().mine != Some(leadership) {
                return;
            }
        }
    }

    async fn until_stopped(&self) {
        let _ = self.inner.stop.subscribe().wait_for(Option::is_some).await;
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
    /// When no leader is known or it confirms nothing; a moment later another may. Has no deadline of
    /// its own while apply catches up.
    pub async fn read_index(&self) -> Result<ReadPoint, NotLeader> {
        confirmed(&self.inner.reads).await
    }

    /// What is applied here is known to hold everything that was committed before this instant; none
    /// before the first proof. Read it before the state it is to speak of. Measured by every
    /// [`Consensus::read_index`] and, without any, about every second heartbeat; stands still while no
    /// leader is heard.
    #[must_use]
    pub fn fresh_as_of(&self) -> Option<Instant> {
        self.inner.fresh.get()
    }

    /// Waits until everything appended before this call, under any leadership, is applied here.
    /// It commits an entry of the protocol's own, so it also proves the leadership.
    ///
    /// # Errors
    /// When `leadership` is over before that.
    pub async fn barrier(&self, leadership: Leadership) -> Result<ReadPoint, NotLeader> {
        if !self.leads(leadership) {
            return Err(self.not_leader());
        }
        let written = tokio::select! {
            biased;
            written = self.inner.raft.write_blank() => written,
            () = self.leadership_over(leadership) => return Err(self.not_leader()),
            () = self.until_stopped() => return Err(NotLeader::default()),
        };
        let response = written.map_err(|error| {
            tracing::debug!(%error, "a barrier was refused");
            self.not_leader()
        })?;
        let leader = response.log_id.committed_leader_id();
        if (leader.term, leader.node_id) != (leadership.term, leadership.replica.0) {
            return Err(self.not_leader());
        }
        Ok(ReadPoint { raft_index: response.log_id.index(), leadership })
    }

    /// The replica's state now.
    #[must_use]
    pub fn status(&self) -> ReplicaStatus {
        let reports = self.peer_reports();
        let mut status = ReplicaStatus::of(&self.inner.raft.metrics().borrow_watched(), &reports.borrow());
        if status.role != Role::Leader {
            let heard = self.inner.last_contact.leader();
            // One that has led until now has heard itself.
            let since = heard.map(|at| at.max(self.inner.view.borrow().since));
            status.leader_silent_ms = since.map(|at| millis(E::instant().saturating_duration_since(at)));
        }
        status.rejoining = self.inner.rejoin.is_closed();
        status
    }

    /// What the replicas say of themselves: this one always, the others while it leads. Each with
    /// the moment it was said.
    #[must_use]
    pub fn peer_reports(&self) -> watch::Receiver<BTreeMap<ReplicaId, PeerReport>> {
        self.inner.reports.clone()
    }

    /// Whether the wall clocks of a quorum, this replica's among them, are no further apart from this one than `apart`.
    /// Only a leader knows those of the others.
    #[must_use]
    pub fn clock_agrees(&self, apart: Duration) -> bool {
        let Inner { config, describer, reports, .. } = self.inner.as_ref();
        peers::clock_agrees::<E>(config.replica_id.0, &describer.metrics, &reports.borrow(), apart)
    }

    /// The generation of the cluster, as this replica knows it.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.inner.store.generation()
    }

    /// Hands leadership to another voter and waits until this replica does not lead any more, or
    /// for two leases.
    ///
    /// # Errors
    /// When this replica does not lead or still leads afterwards.
    pub async fn transfer_leadership(&self, to: ReplicaId) -> Result<(), MembershipError> {
        let mut view = self.inner.view.clone();
        let Some(mine) = view.borrow_and_update().mine else { return Err(self.not_leader().into()) };
        self.inner.raft.trigger().transfer_leader(to.0).await.map_err(|_| MembershipError::Shutdown)?;
        let lost = async { view.wait_for(|view| view.mine != Some(mine)).await.is_ok() };
        match E::within(self.inner.config.timing.lease() * 2, lost).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(MembershipError::Shutdown),
            Err(_) => Err(MembershipError::Refused { detail: format!("{to} did not take over") }),
        }
    }

    /// A leader's request was acknowledged just now: turns in an election are counted from here.
    pub(crate) fn leader_heard(&self) {
        self.inner.last_contact.at(E::instant());
    }

    /// Answers a candidate: at the end of this replica's lease where that is near, at once otherwise.
    ///
    /// # Errors
    /// When the protocol has stopped.
    pub(crate) async fn answer_candidate(
        &self,
        kind: VoteKind,
        request: VoteRequest<E>,
    ) -> Result<VoteResponse<E>, RaftError<E>> {
        let inner = &self.inner;
        election::answer(&inner.config, &inner.raft, &inner.last_contact, kind, request).await
    }

    /// The protocol underneath, for those who carry its messages.
    #[must_use]
    pub fn raft(&self) -> &Raft<E> {
        &self.inner.raft
    }

    /// Asks for a snapshot now; it is made in the background.
    pub async fn trigger_snapshot(&self) {
        // A replica that stops makes no snapshot, and says so elsewhere.
        let _ = self.inner.raft.trigger().snapshot().await;
    }

    /// Stops taking part, finishes what storage has in line and releases it.
    pub async fn shutdown(&self) {
        self.inner.stop.send_modify(|current| *current = current.take().or(Some(StopReason::Shutdown)));
        if let Err(error) = self.inner.raft.shutdown().await {
            tracing::error!(%error, "the protocol's task ended badly");
        }
        self.inner.store.close().await;
    }
}

/// Notices when the protocol stops by itself.
async fn watch_stop<E: Environment>(raft: Raft<E>, stop: Arc<watch::Sender<Option<StopReason>>>) {
    let mut metrics = raft.metrics();
    loop {
        let failed = metrics.borrow_watched().running_state.as_ref().err().map(ToString::to_string);
        let reason = match failed {
            Some(detail) => StopReason::Raft { detail },
            None if metrics.changed().await.is_ok() => continue,
            None => StopReason::Shutdown,
        };
        stop.send_if_modified(|current| {
            if current.is_some() {
                return false;
            }
            if reason != StopReason::Shutdown {
                tracing::error!(%reason, "this replica takes no part any more");
            }
            *current = Some(reason);
            true
        });
        return;
    }
}
