//! Machines with accelerators: an agent, and beside it the worker processes with their guards.
//!
//! Agent and workers live on two hosts of the simulation, with one clock: an agent can die or stand still
//! while its workers go on, and the guard of each worker stops it when the lease runs out, agent or not. What
//! an agent would have on disk (fences) and in memory of the machine (lease, workers) outlives it as there.

use crate::checks::WorkerKey;
use crate::cluster::{Cluster, FIRST_AGENT, FIRST_MACHINE, lock};
use crate::link::{End, connect};
use crate::replica::ToAgent;
use crate::runtime::{self, HARNESS, Host, Sleep, below, event, local_ns, pick, sleep_ms, spawn, spawn_on};
use muster_engine::{Inbound, Opening, Order, Outbound, StartOrder, StopOrder, WorkerReport};
use muster_planted::Rule;
use muster_types::health::{Finding, HealthReport, Observation, Repair, RepairEnd};
use muster_types::{
    Accelerators, DeviceSet, ExitStatus, Features, FencingToken, HolderId, JobId, Name, NodeDraft, NodeId,
    NodeSpec, Parameters,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// Devices of each machine.
pub const DEVICES: u16 = 4;
/// The one type there is.
pub const KIND: &str = "h100";
/// Heartbeats that may go unanswered before an agent looks for another leader.
const HEARTBEATS_MISSED_MAX: usize = 3;
/// How long an agent waits for a session to begin.
const OPEN_PATIENCE: Duration = Duration::from_secs(3);
/// Checkpoints waiting to be noted.
const NOTES_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Running,
}

struct Worker {
    exit: Option<ExitStatus>,
    told: Told,
    stop: Arc<Notify>,
    /// From being asked to stop to being made to.
    notice_ms: u64,
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
    /// Checkpoints that the leader is to be told of.
    notes: VecDeque<(JobId, FencingToken)>,
    boot: u64,
    /// What is wrong with the machine.
    ills: Vec<Observation>,
    /// How the repair that was ordered has ended.
    repaired: Option<RepairEnd>,
    /// Rises with every change of these; and which the leader was told of in this session.
    health: u64,
    health_told: Option<u64>,
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
            inner.boot += 1;
            inner.ills.clear();
            inner.health += 1;
            inner.lease = None;
            inner.workers.clear();
        }
        self.start_agent(cluster);
    }

    /// Something is wrong with a device, until the machine is repaired or starts anew.
    pub fn fall_ill(&self, finding: Finding) {
        event("ill", format_args!("{} {finding:?}", self.machine));
        let mut inner = lock(&self.inner);
        inner.ills.push(Observation {
            finding,
            device: Some(below(u64::from(DEVICES)) as u16),
            group: DeviceSet::EMPTY,
            recovery: None,
            count: 1,
            detail: "simulated".to_owned(),
        });
        inner.health += 1;
        drop(inner);
        self.news.notify_one();
    }

    /// Nothing is wrong any more.
    pub fn recover(&self) {
        let mut inner = lock(&self.inner);
        inner.ills.clear();
        inner.health += 1;
        drop(inner);
        self.news.notify_one();
    }

    /// What the leader does not know yet of how the machine is.
    fn health_to_tell(&self) -> Option<(u64, HealthReport)> {
        let inner = lock(&self.inner);
        if inner.health_told == Some(inner.health) {
            return None;
        }
        let report = HealthReport {
            boot: inner.boot,
            findings: inner.ills.clone(),
            events: Vec::new(),
            reset: DeviceSet::EMPTY,
            maintenance_at: None,
            repair: inner.repaired.clone(),
        };
        Some((inner.health, report))
    }

    /// The node is empty: it is repaired at once.
    fn repair(&self, repair: &Repair) {
        event("repair", format_args!("{} {:?}", self.machine, repair.action));
        let mut inner = lock(&self.inner);
        inner.ills.clear();
        inner.repaired = Some(RepairEnd::Done);
        inner.health += 1;
        drop(inner);
        self.news.notify_one();
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

    /// A gang's work is saved; the leader is to hear of it.
    fn save(&self, (job, token, _): WorkerKey) {
        let mut inner = lock(&self.inner);
        if inner.notes.len() < NOTES_MAX && !inner.notes.contains(&(job, token)) {
            inner.notes.push_back((job, token));
        }
        drop(inner);
        self.news.notify_one();
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

/// A worker that runs so long saves its work half way.
const LONG_MS: u64 = 1_500;

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
        if self.cluster.settings.bug == Some(Rule::AgentIgnoresLease) {
            return u64::MAX;
        }
        let lease = lock(&self.machine.inner).lease;
        lease.filter(|(epoch, _)| *epoch == self.epoch).map_or(0, |(_, deadline)| deadline)
    }

    /// Told to stop, it saves its work and ends within its notice, and never outlives its lease.
    async fn save_and_stop(&self, now: u64) {
        let notice_ms = lock(&self.machine.inner).workers.get(&self.key).map_or(0, |worker| worker.notice_ms);
        let last = now + below(notice_ms.max(1) * 1_000_000);
        let lease_over = self.deadline().saturating_add(below(self.grace_ns));
        if self.key.2 == 0 && notice_ms > 0 {
            self.machine.save(self.key);
        }
        Sleep::until(last.min(lease_over)).await;
    }

    async fn run(self) {
        let (run_ms, code) = fate(self.key.0);
        let end = local_ns() + run_ms * 1_000_000;
        let half = end - run_ms * 500_000;
        let mut saved = self.key.2 != 0 || run_ms < LONG_MS;
        let exit = loop {
            let (now, deadline) = (local_ns(), self.deadline());
            if now >= deadline {
                // Asked to end at the deadline, made to end a grace later.
                let last = deadline.saturating_add(below(self.grace_ns));
                Sleep::until(last).await;
                break ExitStatus::LeaseExpired;
            }
            if now >= half && !saved {
                // The rank that speaks for the gang saves its work half way.
                saved = true;
                self.machine.save(self.key);
            }
            if now >= end {
                break ExitStatus::Code(code);
            }
            let next = if saved { end } else { half };
            tokio::select! {
                biased;
                () = self.stop.notified() => {
                    self.save_and_stop(now).await;
                    break ExitStatus::Signal(15);
                }
                () = Sleep::until(next.min(deadline)) => {}
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

/// What a session waits for.
struct Live {
    link: End<Inbound, ToAgent>,
    parameters: Parameters,
    sequence: u64,
    /// When each heartbeat that is not answered was sent, by the machine's clock.
    beats: BTreeMap<u64, u64>,
    /// What is being reported.
    reporting: Option<(u64, Vec<WorkerReport>)>,
    /// Which checkpoint is being noted.
    noting: Option<(u64, JobId, FencingToken)>,
    /// Which report of its health is under way.
    ailing: Option<(u64, u64)>,
    /// Starts whose token is being confirmed.
    confirming: BTreeMap<(JobId, FencingToken), StartOrder>,
    node: NodeId,
}

impl Live {
    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
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
            let mut link = self.dial(replica);
            match runtime::timeout(OPEN_PATIENCE, link.next()).await {
                Ok(Some(ToAgent::Said(Outbound::Registered { node, parameters, .. }))) => {
                    self.machine.renew(sent, parameters);
                    self.session(link, node, parameters).await;
                }
                Ok(Some(ToAgent::Refused(told))) => hint = told.filter(|told| *told != replica),
                Ok(Some(ToAgent::Said(other))) => {
                    self.cluster.checks.fail(format!("a session began with {other:?}"));
                }
                Ok(None) | Err(_) => {}
            }
            sleep_ms(50 + below(250)).await;
        }
    }

    /// Connects to a replica, which serves the session if it leads.
    fn dial(&self, replica: Host) -> End<Inbound, ToAgent> {
        let (mine, theirs) = connect(&self.cluster, self.machine.agent, replica);
        let holder = HolderId(lock(&self.machine.inner).holder + 1);
        let opening = Opening {
            spec: self.machine.spec.clone(),
            holder,
            workers: self.machine.reports(true),
            takes: Features::all(),
        };
        let (cluster, agent) = (Arc::clone(&self.cluster), self.machine.agent);
        spawn_on(HARNESS, async move {
            let leg = lock(&cluster.network).leg(agent, replica);
            let Some(leg) = leg else {
                // Nobody says that it is lost.
                return runtime::sleep_true_ns(5_000_000_000).await;
            };
            runtime::sleep_true_ns(leg).await;
            if let Some(replica) = cluster.replica(replica) {
                event("rpc", format_args!("{agent} > {} session", replica.host));
                spawn_on(replica.host, replica.serve(opening, theirs));
            }
        });
        mine
    }

    async fn session(&self, link: End<Inbound, ToAgent>, node: NodeId, parameters: Parameters) {
        let mut live = Live {
            link,
            parameters,
            sequence: 0,
            beats: BTreeMap::new(),
            reporting: None,
            noting: None,
            ailing: None,
            confirming: BTreeMap::new(),
            node,
        };
        lock(&self.machine.inner).health_told = None;
        self.serve(&mut live).await;
        // Nobody answers for what was on its way to be started.
        let starting = lock(&self.machine.inner).starting.clone();
        for (job, token) in starting {
            self.give_up(job, token);
        }
    }

    async fn serve(&self, live: &mut Live) {
        let (persisted, mut fenced) = mpsc::unbounded_channel();
        let interval = live.parameters.heartbeat_interval_ms * 1_000_000;
        let mut beat = local_ns() + interval;
        loop {
            if !self.tell(live) {
                return;
            }
            tokio::select! {
                biased;
                message = live.link.next() => match message {
                    Some(ToAgent::Said(message)) => self.hear(live, message, &persisted),
                    Some(ToAgent::Refused(_)) | None => return,
                },
                Some(order) = fenced.recv() => {
                    let order: StartOrder = order;
                    let (job, token) = (order.job, order.placement.token);
                    if self.cluster.settings.bug == Some(Rule::AgentIgnoresLease) {
                        self.launch(live.node, &order, self.machine.live_epoch().unwrap_or(0), live.parameters);
                    } else {
                        live.confirming.insert((job, token), order);
                        if !live.link.send(Inbound::ConfirmStart { job, token }) {
                            return;
                        }
                    }
                }
                () = Sleep::until(beat) => {
                    if live.beats.len() > HEARTBEATS_MISSED_MAX {
                        return;
                    }
                    let sequence = live.next();
                    live.beats.insert(sequence, local_ns());
                    if !live.link.send(Inbound::Heartbeat { sequence }) {
                        return;
                    }
                    beat = local_ns() + interval;
                }
                () = self.machine.news.notified() => {}
            }
        }
    }

    /// Says what there is to say; one report, one note and one word of its health at a time.
    fn tell(&self, live: &mut Live) -> bool {
        let mut goes = true;
        if live.reporting.is_none() {
            let workers = self.machine.reports(false);
            if !workers.is_empty() {
                let sequence = live.next();
                live.reporting = Some((sequence, workers.clone()));
                goes &= live.link.send(Inbound::Report { sequence, workers });
            }
        }
        let note = lock(&self.machine.inner).notes.front().copied();
        if let (None, Some((job, token))) = (live.noting, note) {
            let sequence = live.next();
            live.noting = Some((sequence, job, token));
            goes &= live.link.send(Inbound::CheckpointCommitted { sequence, job, token });
        }
        if live.ailing.is_none()
            && let Some((version, report)) = self.machine.health_to_tell()
        {
            let sequence = live.next();
            live.ailing = Some((sequence, version));
            goes &= live.link.send(Inbound::Health { sequence, report: Box::new(report) });
        }
        goes
    }

    fn hear(&self, live: &mut Live, message: Outbound, persisted: &mpsc::UnboundedSender<StartOrder>) {
        match message {
            Outbound::HeartbeatAck { sequence } => {
                if let Some(sent) = live.beats.remove(&sequence) {
                    live.beats.retain(|earlier, _| *earlier > sequence);
                    self.machine.renew(sent, live.parameters);
                }
            }
            Outbound::ReportAck { sequence } => {
                if let Some((_, workers)) = live.reporting.take_if(|(asked, _)| *asked == sequence) {
                    self.machine.reported(&workers);
                }
            }
            Outbound::NoteAck { sequence, refused } => {
                if let Some((_, job, token)) = live.noting.take_if(|(asked, ..)| *asked == sequence) {
                    lock(&self.machine.inner).notes.pop_front();
                    if refused.is_none() {
                        self.cluster.checks.checkpointed(job, token);
                    }
                }
            }
            Outbound::HealthAck { sequence } => {
                if let Some((_, version)) = live.ailing.take_if(|(asked, _)| *asked == sequence) {
                    let mut inner = lock(&self.machine.inner);
                    inner.health_told = Some(version);
                    if inner.health == version {
                        inner.repaired = None;
                    }
                }
            }
            Outbound::StartConfirmed { job, token, current } => {
                let Some(order) = live.confirming.remove(&(job, token)) else { return };
                match (current, self.machine.live_epoch()) {
                    (true, Some(epoch)) => self.launch(live.node, &order, epoch, live.parameters),
                    _ => self.give_up(job, token),
                }
            }
            Outbound::Order(Order::Stop(stop)) => self.stop(stop),
            Outbound::Order(Order::Start(start)) => self.fence(start, persisted.clone()),
            Outbound::Repair(repair) => self.machine.repair(&repair),
            Outbound::Registered { .. } | Outbound::ReadLogs(_) | Outbound::Probe(_) => {}
        }
    }

    /// Persists the token; whoever finds it persisted before never launches it a second time.
    fn fence(&self, order: StartOrder, persisted: mpsc::UnboundedSender<StartOrder>) {
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
            return self.give_up(job, token);
        }
        let this = self.clone();
        spawn(async move {
            sleep_ms(1 + below(4)).await;
            // The session that asked for it is over: nobody can confirm it any more.
            if persisted.send(order).is_err() {
                this.give_up(job, token);
            }
        });
    }

    /// Stops what there is of a job up to a token; nothing older starts any more.
    fn stop(&self, stop: StopOrder) {
        let mut inner = lock(&self.machine.inner);
        let fence = inner.fences.entry(stop.job).or_default();
        *fence = (*fence).max(stop.token);
        inner.starting.retain(|(job, token)| *job != stop.job || *token > stop.token);
        let mut found = false;
        for ((job, token, _), worker) in &mut inner.workers {
            if *job == stop.job && *token <= stop.token {
                worker.notice_ms = stop.grace_ms;
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

    /// All ranks that are here, unless a stop came in between.
    fn launch(&self, node: NodeId, order: &StartOrder, epoch: u64, parameters: Parameters) {
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
                    notice_ms: 0,
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
