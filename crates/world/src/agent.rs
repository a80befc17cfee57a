//! Machines with accelerators: an agent, and the worker processes with their guards.
//!
//! Agent and workers live on two hosts of the simulation, with one clock: an agent can die or stand still
//! while its workers go on, and the guard of each worker stops it when the lease runs out, agent or not. What
//! an agent would have on disk (fences) and in memory of the machine (lease, workers) outlives it as there.
//!
//! What is decided about leases, tokens and starts is the product's (`muster_agent::rules`): when a lease stands and in which
//! epoch, until when a worker may run, what becomes of a start order, when devices are free, when a leader is silent.
//! Sessions, reports and processes are written here a second time.

use crate::checks::WorkerKey;
use crate::cluster::Cluster;
use crate::link::{End, connect};
use crate::replica::ToAgent;
use crate::runtime::{self, HARNESS, Host, Sleep, below, event, local_ns, pick, sleep_ms, spawn_on};
use crate::site::{FIRST_AGENT, FIRST_MACHINE, lock};
use muster_agent::clock::BootTime;
use muster_agent::rules::{
    self, Admission, Beats, Fence, FenceTable, Fit, Held, LeaseTerm, Wait, admit, deadline_of,
    epoch_for_start, renewed, room_for, withdraw,
};
use muster_engine::{Inbound, Opening, Order, Outbound, StartOrder, StopOrder, WorkerReport};
use muster_types::health::{Finding, HealthReport, Observation, Repair, RepairEnd};
use muster_types::{
    Accelerators, DeviceSet, ExitStatus, Features, FencingToken, HolderId, JobId, Name, NodeDraft, NodeId,
    NodeSpec, Parameters,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

/// Devices of each machine.
pub const DEVICES: u16 = 4;
/// The one type there is.
pub const KIND: &str = "h100";
/// Fences that are kept one by one: few, so that those below the floor come about.
const FENCES_MAX: usize = 24;
/// Placements that may wait to be started.
const WAITING_MAX: usize = 64;
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
    is_stopping: bool,
    devices: DeviceSet,
    /// The epoch of the lease that it was started in.
    epoch: u64,
    /// When it ends by itself, by the machine's clock.
    ends_at: u64,
}

struct Inner {
    holder: u128,
    fences: FenceTable,
    lease: Option<LeaseTerm>,
    /// The highest epoch that any worker belonged to.
    epoch_floor: u64,
    workers: BTreeMap<WorkerKey, Worker>,
    /// How many have ended.
    ended: u64,
    /// What became of workers that are not here; without a rank, of a whole placement.
    elsewhere: BTreeMap<(JobId, FencingToken, Option<u32>), ExitStatus>,
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

impl Inner {
    fn new(holder: u128) -> Inner {
        Inner {
            holder,
            fences: FenceTable::new(FENCES_MAX),
            lease: None,
            epoch_floor: 0,
            workers: BTreeMap::new(),
            ended: 0,
            elsewhere: BTreeMap::new(),
            notes: VecDeque::new(),
            boot: 0,
            ills: Vec::new(),
            repaired: None,
            health: 0,
            health_told: None,
        }
    }
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
            inner: Mutex::new(Inner::new(u128::from(place) << 64)),
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
        lock(&self.inner).elsewhere.clear();
    }

    /// When the last of its workers ends by itself, by the machine's clock; none where none runs.
    pub fn busy_until(&self) -> Option<u64> {
        let inner = lock(&self.inner);
        inner.workers.values().filter(|worker| worker.exit.is_none()).map(|worker| worker.ends_at).max()
    }

    /// The machine loses power and comes back: nothing runs, the disk is as it was, and it is another boot.
    pub fn reboot(self: &Arc<Self>, cluster: &Arc<Cluster>) {
        self.kill_agent();
        runtime::kill(self.machine);
        cluster.site.checks.machine_lost(self.machine);
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

    /// Something is wrong with a device, until the machine is repaired or restarts.
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
        cluster.site.checks.set_suspended(self.machine, true);
    }

    /// Both go on; a moment later the guards have seen what time it is.
    pub async fn thaw(&self, cluster: &Cluster) {
        runtime::thaw(self.agent);
        runtime::thaw(self.machine);
        sleep_ms(200).await;
        cluster.site.checks.set_suspended(self.machine, false);
    }

    /// The leader acknowledged what was sent at `sent`.
    fn renew(&self, sent: BootTime, parameters: Parameters) {
        let ttl = Duration::from_millis(parameters.lease_ttl_ms);
        let mut inner = lock(&self.inner);
        let (_, lease) = renewed(inner.lease, inner.epoch_floor, sent, ttl, now());
        if let Some(lease) = lease {
            inner.lease = Some(lease);
            inner.epoch_floor = inner.epoch_floor.max(lease.epoch);
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
        let elsewhere = inner.elsewhere.iter().map(|((job, token, rank), exit)| WorkerReport {
            job: *job,
            token: *token,
            rank: *rank,
            exit: Some(exit.clone()),
        });
        due.map(of_worker).chain(elsewhere).collect()
    }

    fn reported(&self, reports: &[WorkerReport]) {
        let mut inner = lock(&self.inner);
        for report in reports {
            inner.elsewhere.remove(&(report.job, report.token, report.rank));
            let Some(rank) = report.rank else { continue };
            let key = (report.job, report.token, rank);
            if report.exit.is_some() {
                inner.workers.remove(&key);
            } else if let Some(worker) = inner.workers.get_mut(&key) {
                worker.told = Told::Running;
            }
        }
    }
}

/// The present host's clock, as the agent reads it.
fn now() -> BootTime {
    BootTime(local_ns())
}

/// A worker that runs so long saves its work half way.
const LONG_MS: u64 = 1_500;

/// How long a worker runs, and how it ends: the same for every rank and attempt.
fn fate(job: JobId) -> (u64, i32) {
    let hash = muster_journal::hash(&job);
    // Some outlast a lease, and some an election and a lease, so that one that does not hold is seen.
    let long_ms = match hash % 16 {
        0 => 7_000,
        1 => 18_000,
        _ => 0,
    };
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
    /// When the worker ends by itself, by the machine's clock.
    end: u64,
}

impl Guard {
    /// When everything of this epoch is to be stopped; long ago where it is over.
    fn deadline(&self) -> u64 {
        deadline_of(lock(&self.machine.inner).lease, self.epoch).map_or(0, |deadline| deadline.0)
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
        let end = self.end;
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
        self.cluster.site.checks.process_ended(self.key);
        let mut inner = lock(&self.machine.inner);
        inner.ended += 1;
        if let Some(worker) = inner.workers.get_mut(&self.key) {
            worker.exit = Some(exit);
        }
        drop(inner);
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
    beats: Beats,
    /// What is being reported.
    reporting: Option<(u64, Vec<WorkerReport>)>,
    /// Which checkpoint is being noted.
    noting: Option<(u64, JobId, FencingToken)>,
    /// Which report of its health is under way.
    ailing: Option<(u64, u64)>,
    /// Starts that are not decided, and what they wait for.
    waiting: BTreeMap<(JobId, FencingToken), (StartOrder, Wait)>,
    /// How many workers had ended when starts that wait for one were looked at.
    ended: u64,
    node: NodeId,
}

impl Live {
    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Longest silence of a leader.
    fn silence_max(&self) -> Duration {
        let ttl = Duration::from_millis(self.parameters.lease_ttl_ms);
        Beats::silence_max(ttl, Duration::from_millis(self.parameters.heartbeat_interval_ms))
    }

    /// Asks again about every start that waited for this; whether the link takes it.
    fn reconfirm(&mut self, waited: Wait) -> bool {
        let mut goes = true;
        for ((job, token), (_, wait)) in self.waiting.iter_mut().filter(|(_, (_, wait))| *wait == waited) {
            *wait = Wait::Confirmation;
            goes &= self.link.send(Inbound::ConfirmStart { job: *job, token: *token });
        }
        goes
    }
}

/// Ranks of a placement that are on a node.
fn ranks_on(order: &StartOrder, node: NodeId) -> impl Iterator<Item = (u32, DeviceSet)> {
    let slots = (0u32..).zip(&order.placement.slots);
    slots.filter(move |(_, slot)| slot.node == node).map(|(rank, slot)| (rank, slot.devices))
}

fn held_of((key, worker): (&WorkerKey, &Worker)) -> Held {
    Held {
        key: rules::WorkerKey { job: key.0, token: key.1, rank: key.2 },
        devices: worker.devices,
        device_milli: rules::DEVICE_MILLI,
        epoch: worker.epoch,
        is_stopping: worker.is_stopping,
    }
}

impl Agent {
    async fn run(self) {
        let mut hint: Option<Host> = None;
        loop {
            let replica = match hint.take() {
                Some(hint) => hint,
                None => pick(&self.cluster.site.replica_hosts()).unwrap_or(1),
            };
            let sent = now();
            let mut link = self.dial(replica);
            match runtime::timeout(OPEN_PATIENCE, link.next()).await {
                Ok(Some(ToAgent::Said(Outbound::Registered { node, parameters, .. }))) => {
                    self.machine.renew(sent, parameters);
                    self.session(link, node, parameters).await;
                }
                Ok(Some(ToAgent::Refused(told))) => hint = told.filter(|told| *told != replica),
                Ok(Some(ToAgent::Said(other))) => {
                    self.cluster.site.checks.fail(format!("a session began with {other:?}"));
                }
                Ok(None) | Err(_) => {}
            }
            sleep_ms(50 + below(250)).await;
        }
    }

    /// Connects to a replica, which serves the session if it leads.
    fn dial(&self, replica: Host) -> End<Inbound, ToAgent> {
        let (mine, theirs) = connect(&self.cluster.site, self.machine.agent, replica);
        let holder = HolderId(lock(&self.machine.inner).holder + 1);
        let opening = Opening {
            spec: self.machine.spec.clone(),
            holder,
            workers: self.machine.reports(true),
            takes: Features::all(),
        };
        let (cluster, agent) = (Arc::clone(&self.cluster), self.machine.agent);
        spawn_on(HARNESS, async move {
            let leg = lock(&cluster.site.network).leg(agent, replica);
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
        let live = Live {
            link,
            parameters,
            sequence: 0,
            beats: Beats::default(),
            reporting: None,
            noting: None,
            ailing: None,
            waiting: BTreeMap::new(),
            ended: lock(&self.machine.inner).ended,
            node,
        };
        lock(&self.machine.inner).health_told = None;
        self.serve(live).await;
    }

    async fn serve(&self, mut live: Live) {
        let interval = live.parameters.heartbeat_interval_ms * 1_000_000;
        let mut beat = local_ns() + interval;
        loop {
            if !self.look_again(&mut live) || !self.tell(&mut live) {
                return;
            }
            tokio::select! {
                biased;
                message = live.link.next() => match message {
                    Some(ToAgent::Said(message)) => if !self.hear(&mut live, message).await { return },
                    Some(ToAgent::Refused(_)) | None => return,
                },
                () = Sleep::until(beat) => {
                    if live.beats.is_silent(now(), live.silence_max()) {
                        return;
                    }
                    let sequence = live.beats.next_sequence();
                    live.beats.sent(sequence, now());
                    if !live.link.send(Inbound::Heartbeat { sequence }) {
                        return;
                    }
                    beat = local_ns() + interval;
                }
                () = self.machine.news.notified() => {}
            }
        }
    }

    /// Asks again about starts that waited for an end, once there was one; whether the link takes it.
    fn look_again(&self, live: &mut Live) -> bool {
        let ended = lock(&self.machine.inner).ended;
        ended == std::mem::replace(&mut live.ended, ended) || live.reconfirm(Wait::End)
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

    /// Does what a message asks for; whether the session goes on.
    async fn hear(&self, live: &mut Live, message: Outbound) -> bool {
        match message {
            Outbound::HeartbeatAck { sequence } => {
                if let Some(sent) = live.beats.acknowledged(sequence) {
                    self.machine.renew(sent, live.parameters);
                    return live.reconfirm(Wait::Lease);
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
                        self.cluster.site.checks.checkpointed(job, token);
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
                self.confirmed(live, (job, token), current).await;
            }
            Outbound::Order(Order::Stop(stop)) => self.stop(live, stop).await,
            Outbound::Order(Order::Start(start)) => return self.start(live, start),
            Outbound::Repair(repair) => self.machine.repair(&repair),
            Outbound::Registered { .. } | Outbound::ReadLogs(_) | Outbound::Probe(_) => {}
        }
        true
    }

    /// A start order: the leader is asked whether it still holds; whether the link takes it.
    fn start(&self, live: &mut Live, order: StartOrder) -> bool {
        let (job, token) = (order.job, order.placement.token);
        let standing = lock(&self.machine.inner).fences.standing(job, token);
        match admit(&mut live.waiting, WAITING_MAX, standing, job, token) {
            Admission::New => {
                live.waiting.insert((job, token), (order, Wait::Confirmation));
                live.link.send(Inbound::ConfirmStart { job, token })
            }
            Admission::Known(_) => {
                self.say_again(live.node, &order);
                true
            }
            Admission::Waiting | Admission::Outdated | Admission::Full => true,
        }
    }

    /// The order is known: says what became of each of its workers. One that is not here will not start.
    fn say_again(&self, node: NodeId, order: &StartOrder) {
        let (job, token) = (order.job, order.placement.token);
        let mut inner = lock(&self.machine.inner);
        for (rank, _) in ranks_on(order, node) {
            match inner.workers.get_mut(&(job, token, rank)) {
                Some(worker) => worker.told = Told::Nothing,
                None => _ = inner.elsewhere.insert((job, token, Some(rank)), ExitStatus::Vanished),
            }
        }
        drop(inner);
        self.machine.news.notify_one();
    }

    /// The leader's word about a start that waits for it.
    async fn confirmed(&self, live: &mut Live, id: (JobId, FencingToken), current: bool) {
        let Some((order, wait)) = live.waiting.get_mut(&id).filter(|(_, wait)| *wait == Wait::Confirmation)
        else {
            return;
        };
        if current {
            self.stop_older(order);
            let grace = Duration::from_millis(live.parameters.lease_stop_grace_ms());
            match self.fit(live.node, order, grace) {
                Fit::Wait(waits) => *wait = waits,
                Fit::Go { epoch } => {
                    let (order, _) = live.waiting.remove(&id).expect("it was just there");
                    self.launch(live.node, &order, epoch, live.parameters).await;
                }
                Fit::Refuse(why) => {
                    let (order, _) = live.waiting.remove(&id).expect("it was just there");
                    self.refuse(live.node, &order, &why).await;
                }
            }
        } else {
            live.waiting.remove(&id);
        }
    }

    /// A newer placement of a job is the end of its older ones.
    fn stop_older(&self, order: &StartOrder) {
        let mut inner = lock(&self.machine.inner);
        let older = inner.workers.iter_mut().filter(|((job, token, _), worker)| {
            *job == order.job
                && *token < order.placement.token
                && worker.exit.is_none()
                && !worker.is_stopping
        });
        for (_, worker) in older {
            (worker.is_stopping, worker.notice_ms) = (true, order.spec.stop_grace_ms);
            worker.stop.notify_one();
        }
    }

    fn fit(&self, node: NodeId, order: &StartOrder, grace: Duration) -> Fit {
        let inner = lock(&self.machine.inner);
        let mut load = rules::DeviceLoad::NONE;
        for (_, devices) in ranks_on(order, node) {
            load.add(devices, rules::DEVICE_MILLI);
        }
        let lease = inner.lease.filter(|lease| lease.stands(now()));
        let Some(epoch) = epoch_for_start(lease, now(), grace) else { return Fit::Wait(Wait::Lease) };
        let live = inner.workers.iter().filter(|(_, worker)| worker.exit.is_none());
        room_for(live.map(held_of), order.job, order.placement.token, &load, epoch)
    }

    /// Makes a token durable: from then on nothing up to it is launched.
    async fn raise(&self, job: JobId, token: FencingToken, ranks: BTreeSet<u32>) {
        sleep_ms(1 + below(4)).await;
        let mut inner = lock(&self.machine.inner);
        inner.fences.raise(job, Fence { token, ranks });
        inner.fences.fold(job);
    }

    async fn refuse(&self, node: NodeId, order: &StartOrder, why: &str) {
        let (job, token) = (order.job, order.placement.token);
        let ranks: BTreeSet<u32> = ranks_on(order, node).map(|(rank, _)| rank).collect();
        event("refuse", format_args!("{job} {token} on {}: {why}", self.machine.agent));
        self.raise(job, token, ranks.clone()).await;
        let mut inner = lock(&self.machine.inner);
        for rank in ranks {
            inner.elsewhere.insert((job, token, Some(rank)), ExitStatus::LaunchFailed(why.to_owned()));
        }
        drop(inner);
        self.machine.news.notify_one();
    }

    /// Stops what there is of a job up to a token; nothing older starts any more.
    async fn stop(&self, live: &mut Live, stop: StopOrder) {
        let (job, token) = (stop.job, stop.token);
        let order = live.waiting.get(&(job, token)).map(|(order, _)| order);
        let never: BTreeSet<u32> =
            order.into_iter().flat_map(|order| ranks_on(order, live.node)).map(|(rank, _)| rank).collect();
        withdraw(&mut live.waiting, job, token);
        let (mut ranks, mut here) = (never.clone(), BTreeSet::new());
        {
            let mut inner = lock(&self.machine.inner);
            if let Some(fence) = inner.fences.of(job).filter(|fence| fence.token == token) {
                ranks.extend(&fence.ranks);
            }
            let held = inner.workers.range_mut((job, FencingToken::default(), 0)..=(job, token, u32::MAX));
            for (key, worker) in held {
                if key.1 == token {
                    here.insert(key.2);
                }
                if worker.exit.is_some() {
                    worker.told = Told::Nothing;
                    continue;
                }
                (worker.is_stopping, worker.notice_ms) = (true, stop.grace_ms);
                worker.stop.notify_one();
            }
        }
        self.raise(job, token, ranks.clone()).await;
        let mut inner = lock(&self.machine.inner);
        if ranks.is_empty() && here.is_empty() {
            inner.elsewhere.insert((job, token, None), ExitStatus::NotStarted);
        }
        for rank in ranks.difference(&here) {
            let exit = if never.contains(rank) { ExitStatus::NotStarted } else { ExitStatus::Vanished };
            inner.elsewhere.insert((job, token, Some(*rank)), exit);
        }
        drop(inner);
        self.machine.news.notify_one();
    }

    /// Persists the token, and starts all ranks that are here.
    async fn launch(&self, node: NodeId, order: &StartOrder, epoch: u64, parameters: Parameters) {
        let (job, token) = (order.job, order.placement.token);
        self.raise(job, token, ranks_on(order, node).map(|(rank, _)| rank).collect()).await;
        let grace_ns = parameters.lease_stop_grace_ms().min(order.spec.stop_grace_ms.max(1)) * 1_000_000;
        let end = local_ns() + fate(job).0 * 1_000_000;
        for (rank, devices) in ranks_on(order, node) {
            let key = (job, token, rank);
            let mut inner = lock(&self.machine.inner);
            if deadline_of(inner.lease, epoch).is_none_or(|deadline| deadline <= now()) {
                // Its guard finds no lease, and starts nothing.
                let exit = ExitStatus::LaunchFailed("the lease had run out before the launch".to_owned());
                inner.elsewhere.insert((job, token, Some(rank)), exit);
                continue;
            }
            let stop = Arc::new(Notify::new());
            let worker = Worker {
                exit: None,
                told: Told::Nothing,
                stop: Arc::clone(&stop),
                notice_ms: 0,
                is_stopping: false,
                devices,
                epoch,
                ends_at: end,
            };
            inner.workers.insert(key, worker);
            drop(inner);
            let (machine, cluster) = (Arc::clone(&self.machine), Arc::clone(&self.cluster));
            let guard = Guard { machine, cluster, key, epoch, stop, grace_ns, end };
            self.cluster.site.checks.process_started(key, self.machine.machine, devices);
            spawn_on(self.machine.machine, guard.run());
        }
        self.machine.news.notify_one();
    }
}
