//! What is on a machine next to its agent: worker processes with their guards, what an agent keeps on disk (fences and lease),
//! and how the machine's devices are.
//!
//! It has a separate host in the simulation, with the agent's clock: an agent can die or stand still while its workers
//! go on, and the guard of each worker stops it when the lease runs out, agent or not. An agent that starts again
//! finds all of it.

use crate::runtime::{self, Host, Sleep, below, event, local_ns, sleep_ms, spawn_on};
use crate::site::{Site, lock};
use muster_agent::clock::BootTime;
use muster_agent::rules::{
    Adopted, DEVICE_MILLI, ExecutorEvent, Fence, FenceTable, Launch, LeaseTerm, Placement, StopRequest,
    WorkerKey, deadline_of, renewed,
};
use muster_types::health::{Finding, HealthReport, Observation, Repair, RepairEnd};
use muster_types::{AgentStart, DeviceSet, ExitStatus, FencingToken, HolderId, JobId, Parameters, StartId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// Fences that are kept one by one: few, so that those below the floor come about.
const FENCES_MAX: usize = 24;
/// A worker that runs so long saves its work half way.
const LONG_MS: u64 = 1_500;

/// What an agent hears of its machine.
#[derive(Debug)]
pub enum News {
    /// What became of a worker.
    Executor(ExecutorEvent),
    /// A worker has saved its work.
    Saved(WorkerKey),
}

struct Worker {
    exit: Option<ExitStatus>,
    stop: Arc<Notify>,
    /// From being asked to stop to being made to.
    notice_ms: u64,
    devices: DeviceSet,
    device_milli: u16,
    /// The epoch of the lease that it was started in.
    epoch: u64,
    /// When it ends by itself, by the machine's clock.
    ends_at: u64,
}

impl Worker {
    /// What is on record of one that was never launched.
    fn not_launched(reason: String) -> Worker {
        Worker {
            exit: Some(ExitStatus::LaunchFailed(reason)),
            stop: Arc::default(),
            notice_ms: 0,
            devices: DeviceSet::EMPTY,
            device_milli: DEVICE_MILLI,
            epoch: 0,
            ends_at: 0,
        }
    }
}

struct Inner {
    holder: u128,
    /// Which start of the agent it is, and the one before that was registered; see `StateDir` of the agent. 0 is none.
    start: u64,
    start_before: u64,
    is_start_registered: bool,
    fences: FenceTable,
    lease: Option<LeaseTerm>,
    /// How long a worker may take to end behind its lease.
    lease_grace_ms: u64,
    /// The highest epoch that any worker belonged to.
    epoch_floor: u64,
    workers: BTreeMap<WorkerKey, Worker>,
    /// The agent that runs, or one that has died.
    agent: Option<mpsc::UnboundedSender<News>>,
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
    /// Nobody may listen.
    fn tell(&self, news: News) {
        if let Some(agent) = &self.agent {
            let _ = agent.send(news);
        }
    }

    fn ended(&mut self, key: WorkerKey, worker: Worker) {
        let exit = worker.exit.clone();
        self.workers.insert(key, worker);
        if let Some(exit) = exit {
            self.tell(News::Executor(ExecutorEvent::Ended(key, exit)));
        }
    }
}

/// What one machine has.
pub struct Workers {
    host: Host,
    /// Devices of the machine.
    devices: u16,
    inner: Mutex<Inner>,
    health_news: Notify,
}

/// The present host's clock, as agents and guards read it.
pub fn now() -> BootTime {
    BootTime(local_ns())
}

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

/// An agent's leases, fences and workers.
impl Workers {
    /// None, on a machine of a place in the fleet.
    pub fn new(host: Host, place: u32, devices: u16) -> Workers {
        let inner = Inner {
            holder: u128::from(place) << 64,
            start: 0,
            start_before: 0,
            is_start_registered: true,
            fences: FenceTable::new(FENCES_MAX),
            lease: None,
            lease_grace_ms: 0,
            epoch_floor: 0,
            workers: BTreeMap::new(),
            agent: None,
            boot: 0,
            ills: Vec::new(),
            repaired: None,
            health: 0,
            health_told: None,
        };
        Workers { host, devices, inner: Mutex::new(inner), health_news: Notify::new() }
    }

    /// Who holds the machine, until it restarts.
    pub fn holder(&self) -> HolderId {
        HolderId(lock(&self.inner).holder + 1)
    }

    /// Which start of the agent it is.
    pub fn agent_start(&self) -> AgentStart {
        let inner = lock(&self.inner);
        let before = (inner.start_before > 0).then_some(StartId(inner.start_before));
        AgentStart { id: StartId(inner.start), before }
    }

    /// A leader has registered this start.
    pub fn note_registered(&self, start: AgentStart) {
        let mut inner = lock(&self.inner);
        if start.id == StartId(inner.start) {
            inner.is_start_registered = true;
        }
    }

    /// What an earlier agent left, for one that hears from now on what comes.
    pub fn adopt(&self, agent: mpsc::UnboundedSender<News>) -> Vec<Adopted> {
        let mut inner = lock(&self.inner);
        if inner.is_start_registered {
            inner.start_before = inner.start;
            inner.start += 1;
            inner.is_start_registered = false;
        }
        inner.agent = Some(agent);
        let adopted = inner.workers.iter().map(|(key, worker)| Adopted {
            key: *key,
            devices: worker.devices,
            device_milli: worker.device_milli,
            exit: worker.exit.clone(),
            epoch: worker.epoch,
        });
        adopted.collect()
    }

    /// When the last of them ends by itself, by the machine's clock; none where none runs.
    pub fn busy_until(&self) -> Option<u64> {
        let inner = lock(&self.inner);
        inner.workers.values().filter(|worker| worker.exit.is_none()).map(|worker| worker.ends_at).max()
    }

    /// The machine loses power and comes back: nothing runs, the disk is as it was, and it is another boot.
    pub fn lose_power(&self, site: &Site) {
        runtime::kill(self.host);
        site.checks.machine_lost(self.host);
        let mut inner = lock(&self.inner);
        inner.holder += 1;
        // Another holder's starts begin with none before.
        (inner.start, inner.is_start_registered) = (0, true);
        inner.boot += 1;
        inner.ills.clear();
        inner.health += 1;
        inner.lease = None;
        inner.workers.clear();
    }

    /// The leader acknowledged what was sent at `sent`; whether the lease has changed.
    pub fn renew(&self, sent: BootTime, parameters: Parameters) -> bool {
        let ttl = Duration::from_millis(parameters.lease_ttl_ms);
        let mut inner = lock(&self.inner);
        let (_, lease) = renewed(inner.lease, inner.epoch_floor, sent, ttl, now());
        if let Some(lease) = lease {
            inner.lease = Some(lease);
            inner.lease_grace_ms = parameters.lease_stop_grace_ms();
            inner.epoch_floor = inner.epoch_floor.max(lease.epoch);
        }
        lease.is_some()
    }

    /// Decides something by the lease, while it stands, and the fences.
    pub fn decide<T>(&self, decide: impl FnOnce(Option<LeaseTerm>, &FenceTable) -> T) -> T {
        let inner = lock(&self.inner);
        decide(inner.lease.filter(|lease| lease.stands(now())), &inner.fences)
    }

    /// Makes a token durable: from then on nothing up to it is launched.
    pub async fn raise(&self, job: JobId, token: FencingToken, ranks: BTreeSet<u32>) {
        sleep_ms(1 + below(4)).await;
        let mut inner = lock(&self.inner);
        inner.fences.raise(job, Fence { token, ranks });
        inner.fences.fold(job);
    }

    /// Launches those of a placement that are not on record.
    pub async fn start(self: Arc<Self>, site: Arc<Site>, placement: Arc<Placement>, epoch: u64) {
        let end = local_ns() + fate(placement.job).0 * 1_000_000;
        for launch in &placement.workers {
            // A launch takes a moment, in which the agent may die.
            sleep_ms(below(3)).await;
            self.launch(&site, &placement, launch, (epoch, end));
        }
    }

    fn launch(
        self: &Arc<Self>,
        site: &Arc<Site>,
        placement: &Placement,
        launch: &Launch,
        (epoch, end): (u64, u64),
    ) {
        let key = placement.key(launch.rank);
        let mut inner = lock(&self.inner);
        if inner.workers.contains_key(&key) {
            return;
        }
        if deadline_of(inner.lease, epoch).is_none_or(|deadline| deadline <= now()) {
            // Its guard finds no lease, and starts nothing.
            return inner
                .ended(key, Worker::not_launched("the lease had run out before the launch".to_owned()));
        }
        let stop = Arc::new(Notify::new());
        let worker = Worker {
            exit: None,
            stop: Arc::clone(&stop),
            notice_ms: 0,
            devices: launch.devices,
            device_milli: launch.device_milli,
            epoch,
            ends_at: end,
        };
        inner.workers.insert(key, worker);
        inner.tell(News::Executor(ExecutorEvent::Running(key)));
        let stop_grace_ms = u64::try_from(placement.stop_grace.as_millis()).unwrap_or(u64::MAX);
        let grace_ns = inner.lease_grace_ms.min(stop_grace_ms.max(1)) * 1_000_000;
        drop(inner);
        let (workers, site) = (Arc::clone(self), Arc::clone(site));
        site.checks.process_started((key.job, key.token, key.rank), self.host, launch.devices);
        spawn_on(self.host, Guard { workers, site, key, epoch, stop, grace_ns, end }.run());
    }

    /// Records that a worker will not be launched.
    pub fn refuse(&self, key: WorkerKey, reason: String) {
        event("refuse", format_args!("{key} on {}: {reason}", self.host));
        lock(&self.inner).ended(key, Worker::not_launched(reason));
    }

    /// Asks a worker to stop, if there is one.
    pub fn stop(&self, key: WorkerKey, request: StopRequest) {
        let mut inner = lock(&self.inner);
        let Some(worker) = inner.workers.get_mut(&key).filter(|worker| worker.exit.is_none()) else { return };
        worker.notice_ms = u64::try_from(request.grace.as_millis()).unwrap_or(u64::MAX);
        worker.stop.notify_one();
    }

    /// The leader knows this end.
    pub fn acknowledge(&self, key: WorkerKey) {
        lock(&self.inner).workers.remove(&key);
    }
}

/// How the machine is.
impl Workers {
    /// Something is wrong with a device, until the machine is repaired or restarts.
    pub fn fall_ill(&self, finding: Finding) {
        event("ill", format_args!("{} {finding:?}", self.host));
        let observation = Observation {
            finding,
            device: Some(below(u64::from(self.devices)) as u16),
            group: DeviceSet::EMPTY,
            recovery: None,
            count: 1,
            detail: "simulated".to_owned(),
        };
        self.change_health(|inner| inner.ills.push(observation));
    }

    /// Nothing is wrong any more.
    pub fn recover(&self) {
        self.change_health(|inner| inner.ills.clear());
    }

    /// The node is empty: it is repaired at once.
    pub fn repair(&self, repair: &Repair) {
        event("repair", format_args!("{} {:?}", self.host, repair.action));
        self.change_health(|inner| {
            inner.ills.clear();
            inner.repaired = Some(RepairEnd::Done);
        });
    }

    fn change_health(&self, change: impl FnOnce(&mut Inner)) {
        let mut inner = lock(&self.inner);
        change(&mut inner);
        inner.health += 1;
        drop(inner);
        self.health_news.notify_one();
    }

    /// Returns once there may be something to tell.
    pub async fn health_changed(&self) {
        self.health_news.notified().await;
    }

    /// A new session: the leader knows nothing.
    pub fn forget_told(&self) {
        lock(&self.inner).health_told = None;
    }

    /// What the leader does not know, and which change that is.
    pub fn health_to_tell(&self) -> Option<(u64, HealthReport)> {
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

    /// The leader knows everything up to a change.
    pub fn health_told(&self, change: u64) {
        let mut inner = lock(&self.inner);
        inner.health_told = Some(change);
        if inner.health == change {
            inner.repaired = None;
        }
    }
}

/// A worker and its guard, in one task of the machine.
struct Guard {
    workers: Arc<Workers>,
    site: Arc<Site>,
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
        deadline_of(lock(&self.workers.inner).lease, self.epoch).map_or(0, |deadline| deadline.0)
    }

    /// A gang's work is saved; the leader is to hear of it.
    fn save(&self) {
        lock(&self.workers.inner).tell(News::Saved(self.key));
    }

    /// Told to stop, it saves its work and ends within its notice, and never outlives its lease.
    async fn save_and_stop(&self, now: u64) {
        let notice_ms = lock(&self.workers.inner).workers.get(&self.key).map_or(0, |worker| worker.notice_ms);
        let last = now + below(notice_ms.max(1) * 1_000_000);
        let lease_over = self.deadline().saturating_add(below(self.grace_ns));
        if self.key.rank == 0 && notice_ms > 0 {
            self.save();
        }
        Sleep::until(last.min(lease_over)).await;
    }

    async fn run(self) {
        let (run_ms, code) = fate(self.key.job);
        let end = self.end;
        let half = end.saturating_sub(run_ms * 500_000);
        let mut saved = self.key.rank != 0 || run_ms < LONG_MS;
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
                self.save();
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
        self.site.checks.process_ended((self.key.job, self.key.token, self.key.rank));
        let mut inner = lock(&self.workers.inner);
        if let Some(worker) = inner.workers.get_mut(&self.key) {
            worker.exit = Some(exit.clone());
        }
        inner.tell(News::Executor(ExecutorEvent::Ended(self.key, exit)));
    }
}
