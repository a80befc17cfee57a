//! One replica: `muster-consensus` and `muster-engine` in the simulated environment. Nothing is decided here.

use crate::link::End;
use crate::log_store::{Abort, SimLog};
use crate::machine::SimMachine;
use crate::peers::{FindPeer, SimPeers, SimTransport};
use crate::raft_runtime::SimConfig;
use crate::runtime::{Host, event, local_ns, spawn, thawed_at, timeout};
use crate::site::Site;
use crate::storage::SimStorage;
use muster_consensus::{CheckQuorum, Consensus, Environment, Parts, PeerService, Raft};
use muster_decider::{Answer, BootstrapConfig, Command};
use muster_engine::{
    Engine, EngineConfig, Event, Inbound, Opening, Outbound, ReplicaInfo, View, WatchPosition,
};
use muster_types::{ClusterId, Consistency, LogIndex, Name, Refusal, RefusalCode, ReplicaId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Commands that may wait in each lane.
const LANE_MAX: usize = 4_096;
/// How long a read may take.
const READ_PATIENCE: Duration = Duration::from_secs(3);
/// From the end of a pause until a replica has heard again how the others fare, in addition to the bound itself.
const PAUSE_KNOWN_MS: u64 = 1_000;
/// How long a call that waits for news waits for it.
const NEWS_PATIENCE: Duration = Duration::from_millis(900);

/// What a replica says to an agent.
pub enum ToAgent {
    /// There is no session here; perhaps there is one at that replica.
    Refused(Option<Host>),
    /// What the session says.
    Said(Outbound),
}

/// One start of a replica.
pub struct Replica {
    site: Arc<Site>,
    /// Its host.
    pub host: Host,
    /// Which start of any replica this is.
    pub start: u64,
    /// Its share in the agreement.
    pub consensus: Consensus<SimConfig>,
    /// Its services.
    pub engine: Engine<SimConfig>,
    /// The state machine.
    pub machine: SimMachine,
    /// The state.
    pub view: View,
    /// What its peers call.
    pub service: PeerService<SimConfig>,
}

/// What a replica has around it.
pub struct Surroundings {
    /// What all hosts share.
    pub site: Arc<Site>,
    /// Finds its peers.
    pub peers: FindPeer,
    /// Ends its process.
    pub abort: Abort,
}

/// Why a replica does not start.
#[derive(Debug)]
pub enum BootError {
    /// Its disk has less than it acknowledged.
    Damaged,
    /// The protocol said no.
    Refused(String),
}

impl Replica {
    /// Starts a replica from what its disk has. Runs on its own host.
    ///
    /// # Errors
    /// When the disk is damaged.
    pub async fn boot(around: Surroundings, host: Host, start: u64) -> Result<Arc<Replica>, BootError> {
        let Surroundings { site, peers: find_peer, abort } = around;
        let disk = site.disk(host);
        let Ok(log) = SimLog::open(&site, abort, host, &disk) else { return Err(BootError::Damaged) };
        let Some(machine) = SimMachine::open(&site, host, &disk) else { return Err(BootError::Damaged) };
        if log.floor() > machine.last() {
            return Err(BootError::Damaged);
        }
        let storage = SimStorage::new(host, &disk, &log, machine.snapshots());
        let config = site.consensus_config(host);
        let check_quorum = CheckQuorum::new(config.timing);
        let transport = SimTransport { site: Arc::clone(&site), peers: find_peer, host };
        let peers = SimPeers::new(config.clone(), check_quorum.clone(), storage.clone(), transport);
        let mut protocol = site.protocol_config(&config).map_err(BootError::Refused)?;
        protocol.enable_elect = Consensus::<SimConfig>::may_elect(&storage);
        let raft: Raft<SimConfig> =
            Raft::<SimConfig>::new(u64::from(host), Arc::new(protocol), peers.clone(), log, machine.clone())
                .await
                .map_err(|error| BootError::Refused(error.to_string()))?;
        check_quorum.watch(raft.metrics());
        peers.watch(raft.metrics());
        let parts = Parts {
            raft,
            storage,
            peers,
            applied: machine.applied(),
            applied_bytes: machine.applied_bytes(),
            stop: Arc::new(watch::Sender::new(None)),
        };
        let consensus = Consensus::assemble(config, parts);
        let engine_config = EngineConfig {
            founding: BootstrapConfig::new(ClusterId(1), site.settings.parameters()),
            client_commands_waiting_max: LANE_MAX,
            node_commands_waiting_max: LANE_MAX,
            contain_faults: false,
        };
        let info = ReplicaInfo { replica: ReplicaId(u64::from(host)), region: Name::literal("eu") };
        let engine = Engine::start(engine_config, info, machine.view(), consensus.clone());
        let service = consensus.peer_calls();
        let replica = Arc::new(Replica {
            view: machine.view(),
            site,
            host,
            start,
            consensus,
            engine,
            machine,
            service,
        });
        spawn(Arc::clone(&replica).watch_over());
        Ok(replica)
    }

    /// Tells the judge who leads, and of a decision loop that stops by itself.
    async fn watch_over(self: Arc<Self>) {
        let mut leadership = self.consensus.leadership();
        let mut failed = self.engine.failed();
        loop {
            let mine = leadership.borrow_and_update().mine;
            if let Some(mine) = mine {
                event("leads", format_args!("n{} term {}", self.host, mine.term));
                self.site.checks.leads(mine.term, mine.replica.0, self.start);
            }
            tokio::select! {
                biased;
                changed = leadership.changed() => if changed.is_err() { return },
                _ = failed.wait_for(Option::is_some) => {
                    let why = self.engine.failed().borrow().clone();
                    self.site.checks.fail(format!("n{} decides nothing any more: {why:?}", self.host));
                    return;
                }
            }
        }
    }

    /// Who leads, as far as this replica knows.
    pub fn leader_hint(&self) -> Option<Host> {
        self.engine.leader_id().and_then(|leader| Host::try_from(leader.0).ok())
    }

    /// A client's command.
    pub async fn command(&self, command: Command) -> Result<Answer, Refusal> {
        self.engine.execute(command).await
    }

    /// A linearizable read of everything: where the log was, and the digest of the state there.
    pub async fn read(&self) -> Option<(LogIndex, u64)> {
        let deadline = Instant::from_std(SimConfig::instant() + READ_PATIENCE);
        let consistency = Consistency::Linearizable;
        let reading = self.engine.read_present(consistency, LogIndex::ZERO, deadline).await.ok()?;
        Some((reading.state().log_index(), reading.state().digest()))
    }

    /// A read that is complete up to so long before it arrived: where the log was, and the digest of the state there. None as well
    /// from a host that has just stood still: its clock may not know of that, and the bound is one by its clock.
    pub async fn read_bounded(&self, max_staleness_ms: u64) -> Option<(LogIndex, u64)> {
        let pause_counts_ns = (2 * max_staleness_ms + PAUSE_KNOWN_MS) * 1_000_000;
        let deadline = Instant::from_std(SimConfig::instant() + READ_PATIENCE);
        let consistency = Consistency::Bounded { max_staleness_ms };
        let reading = self.engine.read_present(consistency, LogIndex::ZERO, deadline).await.ok()?;
        if thawed_at(self.host).is_some_and(|at_ns| local_ns() < at_ns + pause_counts_ns) {
            return None;
        }
        Some((reading.state().log_index(), reading.state().digest()))
    }

    /// Changes behind a place; waits a moment for some.
    pub async fn changes(&self, from: WatchPosition) -> Result<(Vec<Event>, WatchPosition), Refusal> {
        if from.log_index > self.view.state().log_index() {
            return Err(Refusal::new(RefusalCode::LogIndexNotReached, "not applied here yet"));
        }
        let mut subscription = self.view.subscribe(from)?;
        match timeout(NEWS_PATIENCE, subscription.next()).await {
            Ok(news) => news,
            Err(_quiet) => Ok((Vec::new(), from)),
        }
    }

    /// The place behind everything that is applied here.
    pub fn end(&self) -> WatchPosition {
        WatchPosition::after(self.view.state().log_index())
    }

    /// Serves an agent that has connected, until one of them has enough.
    pub async fn serve(self: Arc<Self>, opening: Opening, mut agent: End<ToAgent, Inbound>) {
        let mut session = match self.engine.open_session(opening).await {
            Ok(session) => session,
            Err(_refusal) => {
                agent.send(ToAgent::Refused(self.leader_hint()));
                // The answer is on its way; the agent ends the connection.
                let _ = timeout(NEWS_PATIENCE, agent.next()).await;
                return;
            }
        };
        event(
            "session",
            format_args!("n{} node {} incarnation {}", self.host, session.node, session.incarnation),
        );
        let inbound = session.inbound();
        loop {
            tokio::select! {
                biased;
                message = session.next() => match message {
                    Some(message) => if !agent.send(ToAgent::Said(message)) { return },
                    None => return,
                },
                message = agent.next() => match message {
                    Some(message) => if inbound.send(message).await.is_err() { return },
                    None => return,
                },
            }
        }
    }
}
