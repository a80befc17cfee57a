//! What all hosts of a simulated cluster share: the settings of the run, the judge, the network, and the disks.
//!
//! A part that needs a replica of another host gets a handle that finds it: nothing here knows what a replica is.

use crate::checks::Checks;
use crate::disk::Disk;
use crate::network::Network;
use crate::runtime::{self, HARNESS, Host, event, sleep_true_ns, spawn_on, timeout};
use crate::settings::Settings;
use muster_consensus::{ConsensusConfig, LeaderPolicy, SnapshotPolicy};
use muster_store::ReplicaNode;
use muster_types::{ClusterId, ReplicaId};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
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
    mutex.lock()
}

/// The parts of a cluster that every host uses.
pub struct Site {
    /// What the run is made of.
    pub settings: Settings,
    /// The judge.
    pub checks: Checks,
    /// What connects the hosts.
    pub network: Mutex<Network>,
    disks: BTreeMap<Host, Disk>,
}

impl Site {
    /// With every host placed.
    pub fn new(settings: Settings) -> Arc<Site> {
        let mut network = Network::default();
        let replicas = 1..=settings.replicas;
        let region = |replica: Host| match (settings.replicas, replica) {
            (5, 1 | 2) => 0,
            (5, 3 | 4) => 1,
            (5, _) => 2,
            (_, replica) => replica as usize - 1,
        };
        replicas.clone().for_each(|replica| network.place(replica, region(replica)));
        for place in 0..settings.agents {
            network.place(FIRST_AGENT + place, place as usize % 3);
        }
        (0..10).for_each(|client| network.place(FIRST_CLIENT + client, client as usize % 3));
        Arc::new(Site {
            settings,
            checks: Checks::default(),
            network: Mutex::new(network),
            disks: replicas.map(|replica| (replica, Disk::default())).collect(),
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
            .map(|host| (ReplicaId(u64::from(host)), Site::node(host)))
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

    /// Asks something of what `find` finds at a host, over the network. The request is under way whatever becomes of the asker; it
    /// may come twice, or never. None when no answer came in time.
    pub async fn call<R, T, F, Fut>(
        self: &Arc<Self>,
        find: impl Fn(Host) -> Option<R> + Send + 'static,
        (from, to): (Host, Host),
        ttl: Duration,
        what: &'static str,
        f: F,
    ) -> Option<T>
    where
        R: Clone + Send + 'static,
        F: Fn(R) -> Fut + Send + 'static,
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
            let Some(found) = find(to) else { return };
            event("rpc", format_args!("{from} > {to} {what}"));
            if twice {
                let again = (sleep_true_ns(runtime::below(40_000_000)), f(found.clone()));
                spawn_on(to, async move {
                    again.0.await;
                    again.1.await;
                });
            }
            let Ok(answer) = spawn_on(to, f(found)).await else { return };
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
