//! What monitoring systems and probes learn of this agent.
//!
//! Each node that the agent stands for has a [`NodeMonitor`]. What changes is put there when it does, by the part that changes
//! it, so that a scrape waits for no loop, no disk and no driver; what happens is counted in [`AgentMetrics`].
//!
//! **Invariant:** nothing is decided by what is here.

use crate::clock::BootTime;
use crate::rules::WorkerCounts;
use muster_metrics::{AgentFacts, AgentMetrics, DeviceFacts, DeviceHealth, EndCause, WorkerPhase};
use muster_monitoring::{Condition, ConnectionTimeouts, FEW_CONNECTIONS, Monitored, is_user, process_facts};
use muster_transport::{Principal, Security};
use muster_types::{DeviceSet, ExitStatus, NodeSpec};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use tokio::net::TcpListener;

/// Devices of a host with which something is wrong, as the agent observes it. The leader decides what follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceConditions {
    /// They do not work, or need a repair.
    pub(crate) failed: DeviceSet,
    /// They work, and not as they should.
    pub(crate) degraded: DeviceSet,
}

/// One node at a moment.
#[derive(Debug, Default)]
struct NodeReading {
    /// Type of its accelerators; none without any.
    kind: Option<String>,
    devices: u16,
    is_connected: bool,
    /// When the lease runs out, as it was renewed last.
    lease_until: Option<BootTime>,
    workers: WorkerCounts,
    uploads: usize,
    /// Devices that others than Muster hold.
    foreign: u16,
    conditions: DeviceConditions,
}

impl NodeReading {
    fn has_lease(&self, now: BootTime) -> bool {
        self.lease_until.is_some_and(|until| until > now)
    }

    /// Its devices by what is observed of them; each counts once.
    fn devices(&self) -> [(DeviceHealth, u64); 4] {
        let own = DeviceSet::first(self.devices);
        let within = |set: DeviceSet| u64::from(own.difference(own.difference(set)).count());
        let failed = within(self.conditions.failed);
        let degraded = within(self.conditions.degraded.difference(self.conditions.failed));
        let sound = u64::from(self.devices).saturating_sub(failed + degraded);
        let foreign = u64::from(self.foreign).min(sound);
        [
            (DeviceHealth::Healthy, sound - foreign),
            (DeviceHealth::Degraded, degraded),
            (DeviceHealth::Failed, failed),
            (DeviceHealth::Foreign, foreign),
        ]
    }
}

/// One node, as its parts report it. Clones share it; when the last is dropped, the node is not among those of the agent.
#[derive(Clone, Debug)]
pub(crate) struct NodeMonitor {
    reading: Arc<Mutex<NodeReading>>,
    pub(crate) metrics: AgentMetrics,
}

impl NodeMonitor {
    pub(crate) fn session(&self, is_connected: bool) {
        self.reading.lock().is_connected = is_connected;
    }

    pub(crate) fn lease_until(&self, deadline: Option<BootTime>) {
        self.reading.lock().lease_until = deadline;
    }

    pub(crate) fn holds(&self, workers: WorkerCounts, uploads: usize, foreign: u16) {
        let mut reading = self.reading.lock();
        (reading.workers, reading.uploads, reading.foreign) = (workers, uploads, foreign);
    }

    pub(crate) fn devices_are(&self, conditions: DeviceConditions) {
        self.reading.lock().conditions = conditions;
    }
}

#[derive(Debug, Default)]
struct Inner {
    nodes: Mutex<Vec<Weak<Mutex<NodeReading>>>>,
    metrics: AgentMetrics,
    state_dir: PathBuf,
}

/// Everything that this agent is asked about. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct AgentMonitor {
    inner: Arc<Inner>,
    security: Security,
}

impl AgentMonitor {
    pub(crate) fn new(state_dir: PathBuf, security: Security) -> AgentMonitor {
        AgentMonitor { inner: Arc::new(Inner { state_dir, ..Inner::default() }), security }
    }

    pub(crate) fn metrics(&self) -> &AgentMetrics {
        &self.inner.metrics
    }

    /// The agent stands for this node from now on, until all of its monitors are dropped.
    pub(crate) fn node(&self, spec: &NodeSpec) -> NodeMonitor {
        let reading = NodeReading {
            kind: spec.accelerators.as_ref().map(|accelerators| accelerators.kind.to_string()),
            devices: spec.device_count(),
            ..NodeReading::default()
        };
        let reading = Arc::new(Mutex::new(reading));
        let mut nodes = self.inner.nodes.lock();
        nodes.retain(|node| node.strong_count() > 0);
        nodes.push(Arc::downgrade(&reading));
        NodeMonitor { reading, metrics: self.inner.metrics.clone() }
    }

    fn nodes(&self) -> Vec<Arc<Mutex<NodeReading>>> {
        self.inner.nodes.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn facts(&self) -> AgentFacts {
        let now = BootTime::now();
        let mut facts = AgentFacts {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state_free_bytes: free_bytes(&self.inner.state_dir),
            certificate_days_left: self.security.days_left(),
            process: process_facts(),
            ..AgentFacts::default()
        };
        let mut workers = WorkerCounts::default();
        let mut devices: BTreeMap<String, BTreeMap<DeviceHealth, u64>> = BTreeMap::new();
        for node in self.nodes() {
            let node = node.lock();
            facts.nodes += 1;
            facts.sessions_connected += u64::from(node.is_connected);
            facts.uploads_pending += node.uploads as u64;
            if let Some(until) = node.lease_until.filter(|until| *until > now) {
                let left_ms = u64::try_from(now.until(until).as_millis()).unwrap_or(u64::MAX);
                facts.lease_left_ms = Some(facts.lease_left_ms.map_or(left_ms, |least| least.min(left_ms)));
            }
            workers = workers.plus(node.workers);
            if let Some(kind) = &node.kind {
                let of_kind = devices.entry(kind.clone()).or_default();
                for (health, count) in node.devices() {
                    *of_kind.entry(health).or_default() += count;
                }
            }
        }
        facts.workers = vec![
            (WorkerPhase::Launching, workers.launching as u64),
            (WorkerPhase::Running, workers.running as u64),
            (WorkerPhase::Stopping, workers.stopping as u64),
            (WorkerPhase::Ended, workers.ended as u64),
        ];
        let of_kinds = devices.into_iter().flat_map(|(kind, counts)| {
            counts.into_iter().map(move |(health, count)| DeviceFacts { kind: kind.clone(), health, count })
        });
        facts.devices = of_kinds.collect();
        facts
    }

    /// Serves the pages, for ever. Should their listener fail, the agent goes on.
    pub(crate) async fn serve(self, listener: Option<TcpListener>) {
        if let Some(listener) = listener {
            let security = self.security.clone();
            let served = muster_monitoring::serve(
                muster_monitoring::routes(self),
                FEW_CONNECTIONS,
                ConnectionTimeouts::DEFAULT,
                &security,
                listener,
                std::future::pending(),
            );
            if let Err(error) = served.await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "http_listen: serving the pages for monitoring systems failed");
            }
        }
        std::future::pending().await
    }
}

impl Monitored for AgentMonitor {
    fn scrape(&self) -> String {
        self.inner.metrics.scrape(self.facts())
    }

    /// An agent that answers is worth keeping: what it cannot do, another process of it cannot do either.
    fn live(&self) -> Condition {
        Condition::good("ok")
    }

    /// Whether work can be placed on each of its nodes and goes on there.
    fn ready(&self) -> Condition {
        let (nodes, now) = (self.nodes(), BootTime::now());
        let without_session = nodes.iter().filter(|node| !node.lock().is_connected).count();
        let without_lease = nodes.iter().filter(|node| !node.lock().has_lease(now)).count();
        let of = |count: usize| match nodes.len() {
            1 => String::new(),
            all => format!(" for {count} of {all} nodes"),
        };
        match (nodes.len(), without_session, without_lease) {
            (0, ..) => Condition::good("no node to stand for"),
            (_, 0, 0) => Condition::good("session open, lease stands"),
            (_, 0, lapsed) => Condition::bad(format!("session open, no lease{}", of(lapsed))),
            (_, closed, _) => Condition::bad(format!("no session with the cluster{}", of(closed))),
        }
    }

    fn may_scrape(&self, principal: &Principal) -> bool {
        is_user(principal)
    }
}

/// Space on the disk of a directory.
fn free_bytes(directory: &std::path::Path) -> Option<u64> {
    let disk = nix::sys::statvfs::statvfs(directory).ok()?;
    Some(disk.blocks_available().saturating_mul(disk.fragment_size()))
}

/// What an end counts as.
pub(crate) fn end_cause(status: &ExitStatus) -> EndCause {
    match status {
        ExitStatus::Code(0) => EndCause::Succeeded,
        ExitStatus::Code(_) => EndCause::Failed,
        ExitStatus::Signal(_) => EndCause::Signal,
        ExitStatus::LeaseExpired => EndCause::LeaseExpired,
        ExitStatus::LaunchFailed(_) => EndCause::LaunchFailed,
        ExitStatus::Vanished => EndCause::Vanished,
        ExitStatus::NotStarted => EndCause::NotStarted,
        ExitStatus::OutOfMemory => EndCause::OutOfMemory,
        ExitStatus::OutOfScratch => EndCause::OutOfScratch,
        ExitStatus::NodeFault(_) => EndCause::NodeFault,
        ExitStatus::BackendLost(_) => EndCause::BackendLost,
        ExitStatus::PreflightFailed(_) => EndCause::PreflightFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::{Accelerators, Name, NodeDraft};
    use std::collections::BTreeSet;
    use std::time::Duration;

    fn monitor() -> AgentMonitor {
        AgentMonitor::new(std::env::temp_dir(), Security::Plaintext)
    }

    fn spec(devices: u16) -> NodeSpec {
        let kind = Name::literal("h100");
        let draft = NodeDraft {
            name: Name::literal("n"),
            region: Name::literal("eu"),
            cluster: Name::literal("eu-1"),
            block: Name::literal("b"),
            rack: Name::literal("k"),
            address: "10.0.0.1".to_owned(),
            accelerators: (devices > 0).then_some(Accelerators { kind, count: devices }),
            cpu_milli: 64_000,
            memory_bytes: 64 << 30,
            labels: BTreeMap::new(),
            taints: BTreeSet::new(),
            pod: None,
            scratch_bytes: 0,
        };
        draft.check().unwrap()
    }

    #[test]
    fn an_agent_is_ready_with_a_session_and_a_lease() {
        let monitor = monitor();
        assert_eq!(monitor.ready(), Condition::good("no node to stand for"));
        let node = monitor.node(&spec(8));
        assert_eq!(monitor.ready(), Condition::bad("no session with the cluster"));
        node.session(true);
        assert_eq!(monitor.ready(), Condition::bad("session open, no lease"));
        node.lease_until(Some(BootTime::now().after(Duration::from_secs(9))));
        assert_eq!(monitor.ready(), Condition::good("session open, lease stands"));
        let second = monitor.node(&spec(0));
        assert_eq!(monitor.ready(), Condition::bad("no session with the cluster for 1 of 2 nodes"));
        drop(second);
        assert!(monitor.ready().is_good, "it does not stand for that node any more");
        node.lease_until(Some(BootTime(1)));
        assert_eq!(monitor.ready(), Condition::bad("session open, no lease"));
    }

    #[test]
    fn devices_count_once_by_the_worst_that_is_seen() {
        let monitor = monitor();
        let node = monitor.node(&spec(8));
        let (failed, degraded) = (DeviceSet(0b11), DeviceSet(0b110));
        node.devices_are(DeviceConditions { failed, degraded });
        node.holds(WorkerCounts { running: 2, ..WorkerCounts::default() }, 1, 3);
        let facts = monitor.facts();
        let counted: Vec<(DeviceHealth, u64)> =
            facts.devices.iter().map(|device| (device.health, device.count)).collect();
        assert_eq!(
            counted,
            [
                (DeviceHealth::Healthy, 2),
                (DeviceHealth::Degraded, 1),
                (DeviceHealth::Failed, 2),
                (DeviceHealth::Foreign, 3)
            ]
        );
        assert_eq!((facts.nodes, facts.sessions_connected, facts.uploads_pending), (1, 0, 1));
        assert!(facts.workers.contains(&(WorkerPhase::Running, 2)), "{facts:?}");
        assert!(facts.state_free_bytes.is_some_and(|bytes| bytes > 0) && facts.lease_left_ms.is_none());
    }
}
