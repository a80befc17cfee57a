//! The cluster: its hosts, what connects them, and who watches over them.

use crate::agent::Machine;
use crate::checks::Checks;
use crate::disk::Disk;
use crate::network::Network;
use crate::replica::{BootError, Replica};
use crate::runtime::{self, HARNESS, Host, event, sleep_true_ns, spawn_on, timeout};
use crate::settings::Settings;
use muster_consensus::{ConsensusConfig, LeaderPolicy, SnapshotPolicy};
use muster_planted::Rule;
use muster_store::ReplicaNode;
use muster_types::{ClusterId, ReplicaId};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// A snapshot is made after this many entries.
const SNAPSHOT_EVERY: u64 = 80;
/// Entries kept behind a snapshot: few, so that who was away needs one.
const KEPT_ENTRIES: u64 = 30;
/// Replicas ask their leader how they fare, and are asked, so often.
const REPORT_INTERVAL_MS: u64 = 500;

/// Agents have hosts from here on.
pub const FIRST_AGENT: Host = 100;
/// Clients have hosts from here on.
pub const FIRST_CLIENT: Host = 200;
/// The processes of a machine other than its agent have a separate host: they outlive the agent.
pub const FIRST_MACHINE: Host = 300;

/// Locks; nothing panics while it holds one.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything.
pub struct Cluster {
    /// What the run is made of.
    pub settings: Settings,
    /// The judge.
    pub checks: Checks,
    /// What connects the hosts.
    pub network: Mutex<Network>,
    /// Machines with accelerators.
    pub machines: Vec<Arc<Machine>>,
    disks: BTreeMap<Host, Disk>,
    replicas: Mutex<BTreeMap<Host, Arc<Replica>>>,
    /// Replicas whose disk has less than they acknowledged.
    damaged: Mutex<BTreeSet<Host>>,
    returning: Mutex<BTreeSet<Host>>,
    starts: Mutex<u64>,
}

impl Cluster {
    /// With every host placed and none started.
    pub fn new(settings: Settings) -> Arc<Cluster> {
        let mut network = Network::default();
        let replicas = 1..=settings.replicas;
        let region = |replica: Host| match (settings.replicas, replica) {
            (5, 1 | 2) => 0,
            (5, 3 | 4) => 1,
            (5, _) => 2,
            (_, replica) => replica as usize - 1,
        };
        replicas.clone().for_each(|replica| network.place(replica, region(replica)));
        let machines: Vec<_> = (0..settings.agents).map(|place| Arc::new(Machine::new(place))).collect();
        for place in 0..settings.agents {
            network.place(FIRST_AGENT + place, place as usize % 3);
        }
        (0..8).for_each(|client| network.place(FIRST_CLIENT + client, client as usize % 3));
        Arc::new(Cluster {
            settings,
            checks: Checks::default(),
            network: Mutex::new(network),
            machines,
            disks: replicas.map(|replica| (replica, Disk::default())).collect(),
            replicas: Mutex::default(),
            damaged: Mutex::default(),
            returning: Mutex::default(),
            starts: Mutex::default(),
        })
    }

    /// A host's disk.
    pub fn disk(&self, host: Host) -> Disk {
        self.disks.get(&host).cloned().unwrap_or_default()
    }

    /// The hosts of all replicas, started or not.
    pub fn replica_hosts(&self) -> Vec<Host> {
        self.disks.keys().copied().collect()
    }

    /// A replica that is started.
    pub fn replica(&self, host: Host) -> Option<Arc<Replica>> {
        lock(&self.replicas).get(&host).cloned()
    }

    /// Every replica that is started.
    pub fn replicas(&self) -> Vec<Arc<Replica>> {
        lock(&self.replicas).values().cloned().collect()
    }

    /// The replica with the newest leadership, if any leads.
    pub fn leader(&self) -> Option<Arc<Replica>> {
        let leading = |replica: &Arc<Replica>| {
            let mine = replica.consensus.leadership().borrow().mine?;
            Some((mine, Arc::clone(replica)))
        };
        self.replicas().iter().filter_map(leading).max_by_key(|(mine, _)| *mine).map(|(_, replica)| replica)
    }

    /// Replicas whose disk is damaged.
    pub fn damaged(&self) -> BTreeSet<Host> {
        lock(&self.damaged).clone()
    }

    /// A member as the protocol knows it.
    pub fn node(host: Host) -> ReplicaNode {
        let endpoint = format!("replica-{host}");
        ReplicaNode { region: "eu".to_owned(), peer_endpoint: endpoint.clone(), client_endpoint: endpoint }
    }

    /// A replica's settings: those of production, with what a run of a minute needs.
    pub fn consensus_config(&self, host: Host) -> ConsensusConfig {
        let mut config = ConsensusConfig::new(ClusterId(1), ReplicaId(u64::from(host)));
        config.timing = self.settings.timing();
        config.snapshots = SnapshotPolicy {
            every_entries: Some(SNAPSHOT_EVERY),
            kept_entries: KEPT_ENTRIES,
            ..SnapshotPolicy::ON_DEMAND
        };
        config.leader = LeaderPolicy {
            report_interval_ms: REPORT_INTERVAL_MS,
            // In some seeds the turns in an election are not those of the ids.
            election_ranks: self.ranks(),
            ..LeaderPolicy::default()
        };
        config.known_peers = self
            .replica_hosts()
            .into_iter()
            .map(|host| (ReplicaId(u64::from(host)), Cluster::node(host)))
            .collect();
        config
    }

    fn ranks(&self) -> BTreeMap<ReplicaId, u32> {
        let hosts = self.replica_hosts();
        let first = (self.settings.seed / 5 % (hosts.len() as u64 + 1)) as u32;
        hosts.into_iter().filter(|host| *host == first).map(|host| (ReplicaId(u64::from(host)), 0)).collect()
    }

    /// The protocol's own settings.
    ///
    /// # Errors
    /// When they are refused.
    pub fn protocol_config(&self, config: &ConsensusConfig) -> Result<openraft::Config, String> {
        config.to_openraft().map_err(|error| error.to_string())
    }

    /// Starts a replica; whether it runs.
    pub async fn boot(self: &Arc<Self>, host: Host) -> bool {
        let start = {
            let mut starts = lock(&self.starts);
            *starts += 1;
            *starts
        };
        event("boot", format_args!("n{host} start {start}"));
        match spawn_on(host, Replica::boot(Arc::clone(self), host, start)).await {
            Ok(Ok(replica)) => {
                lock(&self.replicas).insert(host, replica);
                true
            }
            Ok(Err(BootError::Damaged)) => {
                event("damaged", format_args!("n{host}"));
                if self.settings.bug == Some(Rule::VoteAfterLoss) {
                    // As if nothing had been there.
                    runtime::kill(host);
                    self.disk(host).wipe();
                } else {
                    runtime::kill(host);
                    lock(&self.damaged).insert(host);
                }
                false
            }
            Ok(Err(BootError::Refused(why))) => {
                self.checks.fail(format!("n{host} does not start: {why}"));
                false
            }
            Err(_gone) => {
                self.checks.fail(format!("n{host} was lost while it started"));
                false
            }
        }
    }

    /// What is left on a damaged disk is set aside: the replica starts empty under its old name, with the mark
    /// of a lost storage, and has to rejoin.
    pub fn empty(&self, host: Host) {
        let disk = self.disk(host);
        disk.wipe();
        crate::storage::mark_as_lost(&disk);
        self.checks.emptied(host);
        self.checks.count(|counts| counts.replaced += 1);
        lock(&self.damaged).remove(&host);
        lock(&self.returning).insert(host);
    }

    /// Replicas that lost their storage and are not seen to be full members again.
    pub fn returning(&self) -> BTreeSet<Host> {
        lock(&self.returning).clone()
    }

    /// They all are.
    pub fn all_returned(&self) {
        lock(&self.returning).clear();
    }

    /// Power loss of a replica.
    pub fn crash(&self, host: Host) {
        event("crash", format_args!("n{host}"));
        let gone = lock(&self.replicas).remove(&host);
        runtime::kill(host);
        self.disk(host).cut_power();
        drop(gone);
    }

    /// A replica ends itself.
    pub fn abort(self: &Arc<Self>, host: Host, why: &'static str) {
        event("abort", format_args!("n{host}: {why}"));
        let this = Arc::clone(self);
        spawn_on(HARNESS, async move { this.crash(host) });
    }

    /// Asks a replica something over the network. The request is under way whatever becomes of the asker; it
    /// may come twice, or never. None when no answer came in time.
    pub async fn call<T, F, Fut>(
        self: &Arc<Self>,
        from: Host,
        to: Host,
        ttl: Duration,
        what: &'static str,
        f: F,
    ) -> Option<T>
    where
        F: Fn(Arc<Replica>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let this = Arc::clone(self);
        let ttl_ns = u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        spawn_on(HARNESS, async move {
            let (out, twice) = {
                let network = lock(&this.network);
                (network.leg(from, to), network.comes_twice())
            };
            let Some(out) = out else {
                // Lost without a word: who asked waits for as long as it is patient.
                sleep_true_ns(ttl_ns.saturating_mul(2)).await;
                return;
            };
            sleep_true_ns(out).await;
            let Some(replica) = this.replica(to) else { return };
            event("rpc", format_args!("{from} > {to} {what}"));
            if twice {
                let again = (sleep_true_ns(runtime::below(40_000_000)), f(Arc::clone(&replica)));
                spawn_on(to, async move {
                    again.0.await;
                    again.1.await;
                });
            }
            let Ok(answer) = spawn_on(to, f(replica)).await else { return };
            let back = lock(&this.network).leg(to, from);
            let Some(back) = back else {
                sleep_true_ns(ttl_ns.saturating_mul(2)).await;
                return;
            };
            sleep_true_ns(back).await;
            // Who asked may have given up.
            let _ = sender.send(answer);
        });
        timeout(ttl, receiver).await.ok()?.ok()
    }
}
