//! Machines with accelerators: an agent, and beside it the worker processes with their guards.
//!
//! Agent and workers live on two hosts of the simulation, with one clock: an agent can die or stand still
//! while its workers go on, and the guard of each worker stops it when the lease runs out, agent or not. What
//! an agent would have on disk (fences) and in memory of the machine (lease, workers) outlives it as there.

use crate::checks::WorkerKey;
use crate::cluster::{Cluster, FIRST_AGENT, FIRST_MACHINE, lock};
use crate::replica::{Opened, OrderKey, SessionId};
use crate::runtime::{self, Host, Sleep, below, event, local_ns, pick, sleep_ms, spawn, spawn_on};
use crate::settings::PlantedBug;
use muster_engine::{Order, StartOrder, StopOrder, WorkerReport};
use muster_types::{
    Accelerators, DeviceSet, ExitStatus, FencingToken, HolderId, JobId, Name, NodeDraft, NodeSpec, Parameters,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

/// Devices of each machine.
pub const DEVICES: u16 = 4;
/// The one type there is.
pub const KIND: &str = "h100";
/// A confirmation is asked for so often.
const CONFIRM_TRIES: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Running,
}

struct Worker {
    exit: Option<ExitStatus>,
    told: Told,
    stop: Arc<Notify>,
    devices: DeviceSet,
}

#[derive(Default)]
struct Inner {
    holder: u128,
    fences: BTreeMap<JobId, FencingToken>,
    /// Epoch and deadline, by the machine's clock.
    lease: Option<(u64, u64)>,
    epochs: u64,
    workers: BTreeMap<WorkerKey, Worker>,
    starting: BTreeSet<(JobId, FencingToken)>,
    /// Placements of which nothing is here and nothing will be.
    none_here: BTreeSet<(JobId, FencingToken)>,
}

/// One machine.
pub struct Machine {
    /// The agent's host.
    pub agent: Host,
    /// The host of its workers.
    pub machine: Host,
    /// What the agent says of it.
    pub spec: NodeSpec,
    inner: Mutex<Inner>,
    news: Notify,
}

fn spec(place: u32) -> NodeSpec {
    let draft = NodeDraft {
        name: Name::new(&format!("m{place}")).expect("it is a name"),
        region: Name::literal("eu"),
        cluster: Name::literal(if place.is_multiple_of(2) { "eu-1" } else { "eu-2" }),
        block: Name::literal("b"),
        rack: Name::literal("k"),
        address: format!("10.0.0.{}", place + 1),
        accelerators: Some(Accelerators { kind: Name::literal(KIND), count: DEVICES }),
        cpu_milli: 64_000,
        memory_bytes: 64 << 30,
        labels: BTreeMap::new(),
        taints: BTreeSet::new(),
        pod: None,
    };
    draft.check().expect("it is a host")
}

impl Machine {
    /// Not started yet.
    pub fn new(place: u32) -> Machine {
        Machine {
            agent: FIRST_AGENT + place,
            machine: FIRST_MACHINE + place,
            spec: spec(place),
            inner: Mutex::new(Inner { holder: u128::from(place) << 64, ..Inner::default() }),
            news: Notify::new(),
        }
    }

    /// The agent starts, on a machine that runs.
    pub fn start_agent(self: &Arc<Self>, cluster: &Arc<Cluster>) {
        event("agent", format_args!("{} starts", self.agent));
        let this = Agent { machine: Arc::clone(self), cluster: Arc::clone(cluster) };
        spawn_on(self.agent, async move { this.run().await });
    }

    /// The agent dies; the workers go on.
    pub fn kill_agent(&self) {
        event("agent", format_args!("{} dies", self.agent));
        runtime::kill(self.agent);
        let mut inner = lock(&self.inner);
        inner.starting.clear();
        inner.none_here.clear();
    }

    /// The machine loses power and comes back: nothing runs, the disk is as it was, and it is another boot.
    pub fn reboot(self: &Arc<Self>, cluster: &Arc<Cluster>) {
        self.kill_agent();
        runtime::kill(self.machine);
        cluster.checks.machine_lost(self.machine);
        {
            let mut inner = lock(&self.inner);
            inner.holder += 1;
            inner.lease = None;
            inner.workers.clear();
        }
        self.start_agent(cluster);
    }

    /// Both hosts stand still, as a virtual machine that is paused.
    pub fn freeze(&self, cluster: &Cluster) {
        runtime::freeze(self.agent);
        runtime::freeze(self.machine);
        cluster.checks.set_suspended(self.machine, true);
    }

    /// Both go on; a moment later the guards have seen what time it is.
    pub async fn thaw(&self, cluster: &Cluster) {
        runtime::thaw(self.agent);
        runtime::thaw(self.machine);
        sleep_ms(200).await;
        cluster.checks.set_suspended(self.machine, false);
    }

    /// The leader acknowledged what was sent at `sent`.
    fn renew(&self, sent: u64, parameters: Parameters) {
        let (now, deadline) = (local_ns(), sent + parameters.lease_ttl_ms * 1_000_000);
        let mut inner = lock(&self.inner);
        match inner.lease {
            Some((_, until)) if now < until && deadline <= until => {}
            Some((epoch, until)) if now < until => inner.lease = Some((epoch, deadline)),
            _ if deadline <= now => {}
            // What ran under the lease that lapsed is being stopped.
            _ => {
                inner.epochs += 1;
                inner.lease = Some((inner.epochs, deadline));
            }
        }
    }

    /// The epoch that a worker may be started in now.
    fn live_epoch(&self) -> Option<u64> {
        let now = local_ns();
        lock(&self.inner).lease.filter(|(_, deadline)| now < *deadline).map(|(epoch, _)| epoch)
    }

    fn reports(&self, all: bool) -> Vec<WorkerReport> {
        let inner = lock(&self.inner);
        let due = inner
            .workers
            .iter()
            .filter(|(_, worker)| all || worker.exit.is_some() || worker.told == Told::Nothing);
        let of_worker = |((job, token, rank), worker): (&WorkerKey, &Worker)| WorkerReport {
            job: *job,
            token: *token,
            rank: Some(*rank),
            exit: worker.exit.clone(),
        };
        let none = inner.none_here.iter().map(|(job, token)| WorkerReport {
            job: *job,
            token: *token,
            rank: None,
            exit: Some(ExitStatus::NotStarted),
        });
        due.map(of_worker).chain(none).collect()
    }

    fn reported(&self, reports: &[WorkerReport]) {
        let mut inner = lock(&self.inner);
        for report in reports {
            match report.rank {
                None => _ = inner.none_here.remove(&(report.job, report.token)),
                Some(rank) => {
                    let key = (report.job, report.token, rank);
                    if report.exit.is_some() {
                        inner.workers.remove(&key);
                    } else if let Some(worker) = inner.workers.get_mut(&key) {
                        worker.told = Told::Running;
                    }
                }
            }
        }
    }
}

/// How long a worker runs, and how it ends: the same for every rank and attempt.
fn fate(job: JobId) -> (u64, i32) {
    let hash = muster_journal::hash(&job);
    // Some outlast a lease, so that one that does not hold is seen.
    let long_ms = if hash.is_multiple_of(8) { 7_000 } else { 0 };
    (200 + hash % 2_300 + long_ms, i32::from(hash.is_multiple_of(23)))
}

/// A worker and its guard, in one task of the machine.
struct Guard {
    machine: Arc<Machine>,
    cluster: Arc<Cluster>,
    key: WorkerKey,
    epoch: u64,
    stop: Arc<Notify>,
    grace_ns: u64,
}

impl Guard {
    /// When everything of this epoch is to be stopped.
    fn deadline(&self) -> u64 {
        if self.cluster.settings.bug == Some(PlantedBug::AgentIgnoresLease) {
            return u64::MAX;
        }
        let lease = lock(&self.machine.inner).lease;
        lease.filter(|(epoch, _)| *epoch == self.epoch).map_or(0, |(_, deadline)| deadline)
    }

    async fn run(self) {
        let (run_ms, code) = fate(self.key.0);
        let end = local_ns() + run_ms * 1_000_000;
        let exit = loop {
            let (now, deadline) = (local_ns(), self.deadline());
            if now >= deadline {
                // Asked to end at the deadline, made to end a grace later.
                let last = deadline.saturating_add(below(self.grace_ns));
                Sleep::until(last).await;
                break ExitStatus::LeaseExpired;
            }
            if now >= end {
                break ExitStatus::Code(code);
            }
            tokio::select! {
                biased;
                () = self.stop.notified() => {
                    Sleep::until(now + below(self.grace_ns)).await;
                    break ExitStatus::Signal(15);
                }
                () = Sleep::until(end.min(deadline)) => {}
            }
        };
        self.cluster.checks.process_ended(self.key);
        if let Some(worker) = lock(&self.machine.inner).workers.get_mut(&self.key) {
            worker.exit = Some(exit);
        }
        self.machine.news.notify_one();
    }
}

#[derive(Clone)]
struct Agent {
    machine: Arc<Machine>,
    cluster: Arc<Cluster>,
}

impl Agent {
    async fn run(self) {
        let mut hint: Option<Host> = None;
        loop {
            let replica = match hint.take() {
                Some(hint) => hint,
                None => pick(&self.cluster.replica_hosts()).unwrap_or(1),
            };
            let sent = local_ns();
            let (spec, holder) = (self.machine.spec.clone(), HolderId(lock(&self.machine.inner).holder + 1));
            let workers = self.machine.reports(true);
            let opened = self.cluster.call(self.machine.agent, replica, Duration::from_secs(2), "open", {
                move |replica| {
                    let (spec, workers) = (spec.clone(), workers.clone());
                    async move {
                        let hint = replica.leader_hint();
                        (replica.open_session(spec, holder, workers).await, hint)
                    }
                }
            });
            match opened.await {
                Some((Ok(opened), _)) => {
                    self.machine.renew(sent, opened.parameters);
                    self.session(replica, opened).await;
                }
                Some((Err(_refusal), told)) => hint = told.filter(|told| *told != replica),
                None => {}
            }
            sleep_ms(50 + below(250)).await;
        }
    }

    async fn session(&self, replica: Host, opened: Opened) {
        for stop in opened.stops {
            self.stop(stop);
        }
        tokio::select! {
            biased;
            () = self.heartbeats(replica, opened.session, opened.parameters) => {}
            () = self.orders(replica, opened.session, opened.node, opened.parameters) => {}
            () = self.tell(replica, opened.session) => {}
        }
    }

    async fn heartbeats(&self, replica: Host, session: SessionId, parameters: Parameters) {
        let interval = parameters.heartbeat_interval_ms;
        let mut missed = 0;
        loop {
            sleep_ms(interval).await;
            let sent = local_ns();
            let ttl = Duration::from_millis(interval * 3 / 2);
            let beat =
                self.cluster.call(self.machine.agent, replica, ttl, "heartbeat", move |replica| async move {
                    replica.heartbeat(session).await
                });
            match beat.await {
                Some(true) => {
                    missed = 0;
                    self.machine.renew(sent, parameters);
                }
                Some(false) => return,
                None => missed += 1,
            }
            if missed > 2 {
                return;
            }
        }
    }

    async fn orders(
        &self,
        replica: Host,
        session: SessionId,
        node: muster_types::NodeId,
        parameters: Parameters,
    ) {
        let mut known: BTreeSet<OrderKey> = BTreeSet::new();
        let mut missed = 0;
        loop {
            let asked = known.clone();
            let ttl = Duration::from_millis(2_000);
            let orders = self.cluster.call(self.machine.agent, replica, ttl, "orders", move |replica| {
                let asked = asked.clone();
                async move { replica.orders(session, asked).await }
            });
            let Some(answer) = orders.await else {
                missed += 1;
                if missed > 2 {
                    return;
                }
                continue;
            };
            let Some(orders) = answer else { return };
            missed = 0;
            let keys: BTreeSet<OrderKey> = orders.iter().map(Order::key).collect();
            for order in orders {
                if known.contains(&order.key()) {
                    continue;
                }
                match order {
                    Order::Stop(stop) => self.stop(stop),
                    Order::Start(start) => {
                        let this = self.clone();
                        spawn(async move { this.start(replica, session, node, start, parameters).await });
                    }
                }
            }
            known = keys;
        }
    }

    /// Tells what became of workers until the session is over.
    async fn tell(&self, replica: Host, session: SessionId) {
        let mut missed = 0;
        loop {
            let reports = self.machine.reports(false);
            if reports.is_empty() {
                self.machine.news.notified().await;
                continue;
            }
            let sent = reports.clone();
            let ttl = Duration::from_millis(2_000);
            let told = self.cluster.call(self.machine.agent, replica, ttl, "report", move |replica| {
                let reports = reports.clone();
                async move { replica.report(session, reports).await }
            });
            match told.await {
                Some(true) => {
                    missed = 0;
                    self.machine.reported(&sent);
                }
                Some(false) => return,
                None => missed += 1,
            }
            if missed > 2 {
                return;
            }
        }
    }

    /// Stops what there is of a job up to a token; nothing older starts any more.
    fn stop(&self, stop: StopOrder) {
        let mut inner = lock(&self.machine.inner);
        let fence = inner.fences.entry(stop.job).or_default();
        *fence = (*fence).max(stop.token);
        inner.starting.retain(|(job, token)| *job != stop.job || *token > stop.token);
        let mut found = false;
        for ((job, token, _), worker) in &inner.workers {
            if *job == stop.job && *token <= stop.token {
                worker.stop.notify_one();
                found |= *token == stop.token;
            }
        }
        if !found {
            inner.none_here.insert((stop.job, stop.token));
        }
        drop(inner);
        self.machine.news.notify_one();
    }

    fn give_up(&self, job: JobId, token: FencingToken) {
        let mut inner = lock(&self.machine.inner);
        inner.starting.remove(&(job, token));
        if !inner.workers.keys().any(|(other, of, _)| (*other, *of) == (job, token)) {
            inner.none_here.insert((job, token));
        }
        drop(inner);
        self.machine.news.notify_one();
    }

    async fn start(
        &self,
        replica: Host,
        session: SessionId,
        node: muster_types::NodeId,
        order: StartOrder,
        parameters: Parameters,
    ) {
        let (job, token) = (order.job, order.placement.token);
        let fresh = {
            let mut inner = lock(&self.machine.inner);
            let fence = inner.fences.get(&job).copied().unwrap_or_default();
            if token < fence || inner.starting.contains(&(job, token)) {
                return;
            }
            let fresh = token > fence;
            inner.fences.insert(job, token);
            if fresh {
                inner.starting.insert((job, token));
            }
            fresh
        };
        if !fresh {
            // Persisted before, and whoever did so is gone: it is never launched a second time.
            self.give_up(job, token);
            return;
        }
        sleep_ms(1 + below(4)).await;
        let ignores = self.cluster.settings.bug == Some(PlantedBug::AgentIgnoresLease);
        let mut current = ignores.then_some(true);
        for _ in 0..CONFIRM_TRIES {
            if current.is_some() {
                break;
            }
            let ttl = Duration::from_millis(1_500);
            let confirm =
                self.cluster.call(self.machine.agent, replica, ttl, "confirm", move |replica| async move {
                    replica.confirm_start(session, job, token).await
                });
            current = confirm.await.flatten();
        }
        let epoch = self.machine.live_epoch().or(ignores.then_some(0));
        let (Some(true), Some(epoch)) = (current, epoch) else { return self.give_up(job, token) };
        self.launch(node, &order, epoch, parameters);
    }

    /// All ranks that are here, unless a stop came in between.
    fn launch(&self, node: muster_types::NodeId, order: &StartOrder, epoch: u64, parameters: Parameters) {
        let (job, token) = (order.job, order.placement.token);
        let mut guards = Vec::new();
        {
            let mut inner = lock(&self.machine.inner);
            if !inner.starting.remove(&(job, token)) {
                return;
            }
            for (rank, slot) in order.placement.slots.iter().enumerate() {
                if slot.node != node {
                    continue;
                }
                let key = (job, token, rank as u32);
                let stop = Arc::new(Notify::new());
                let worker = Worker {
                    exit: None,
                    told: Told::Nothing,
                    stop: Arc::clone(&stop),
                    devices: slot.devices,
                };
                inner.workers.insert(key, worker);
                let grace_ns =
                    parameters.lease_stop_grace_ms().min(order.spec.stop_grace_ms.max(1)) * 1_000_000;
                guards.push(Guard {
                    machine: Arc::clone(&self.machine),
                    cluster: Arc::clone(&self.cluster),
                    key,
                    epoch,
                    stop,
                    grace_ns,
                });
            }
        }
        for guard in guards {
            let devices =
                lock(&self.machine.inner).workers.get(&guard.key).map_or(DeviceSet::EMPTY, |w| w.devices);
            self.cluster.checks.process_started(guard.key, self.machine.machine, devices);
            spawn_on(self.machine.machine, guard.run());
        }
        self.machine.news.notify_one();
    }
}
