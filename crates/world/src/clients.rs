//! Clients: submissions under request ids, repeated until they are answered; linearizable reads; watches that
//! go on exactly where they were, through any replica.

mod asks;
mod controls;
mod requests;
mod sizes;

use crate::agent::KIND;
use crate::asked::asked_of;
use crate::cluster::Cluster;
use crate::runtime::{Host, JoinHandle, below, chance, elapsed_ms, pick, random, sleep_ms, spawn_on};
use crate::settings::Settings;
use crate::site::{FIRST_CLIENT, lock};
use muster_decider::{Answer, Command};
use muster_engine::WatchPosition;
use muster_planted::Rule;
use muster_types::policy::{PolicyDraft, Quota, TenantPolicy, TenantRights};
use muster_types::{ArrayId, JobId, Name, PriorityTier, Refusal, RefusalCode, RequestId};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The tenant that may never borrow.
pub const BOUND_TENANT: &str = "bound";
/// Thousandths of devices that it may hold.
pub const BOUND_MILLI: u64 = 8_000;
const FREE_TENANT: &str = "free";
/// A tenant without quota that is in the policy now and then. It has no jobs.
pub const GUEST_TENANT: &str = "guest";
/// The client that asks things of jobs that exist.
const CONTROLLER: Host = 8;
/// The client that changes the sizes of gangs.
const RESIZER: Host = 9;
/// One attempt at a call.
const PATIENCE: Duration = Duration::from_millis(2_500);

/// Whether the tenant that may never borrow is granted more quota in this run: then what it may hold changes. Never where a rule
/// is broken on purpose: nothing but jobs is asked for then.
fn grants_to_bound(settings: &Settings) -> bool {
    settings.bug.is_none() && settings.seed.is_multiple_of(3)
}

/// Requests of the client that asks things of jobs, the last of them: for one that uses an id twice.
const REQUESTS_KEPT: usize = 8;

/// What was submitted last.
#[derive(Debug, Default)]
struct Recent {
    /// Of controls, the last ones.
    requests: Vec<RequestId>,
    /// Members of arrays, too, whether or not they are created.
    jobs: Vec<JobId>,
    arrays: Vec<ArrayId>,
}

/// All clients of a run.
pub struct Clients {
    cluster: Arc<Cluster>,
    stop: Arc<AtomicBool>,
    asked: Arc<Mutex<BTreeSet<RequestId>>>,
    /// What was submitted recently, for the client that asks something of it.
    recent: Arc<Mutex<Recent>>,
    tasks: Vec<JoinHandle<()>>,
}

/// One tenant that may borrow, one that may not.
pub fn policy() -> PolicyDraft {
    policy_of(12_000)
}

/// The same, with so much for the one that may borrow.
pub fn policy_of(free_milli: u64) -> PolicyDraft {
    let quota = |nominal_milli, borrowing_limit_milli| Quota {
        kind: Name::literal(KIND),
        region: None,
        nominal_milli,
        borrowing_limit_milli,
        lending_limit_milli: None,
    };
    let rights = TenantRights {
        tier_max: Some(PriorityTier::Production),
        bookings: Some(true),
        ..TenantRights::default()
    };
    let tenant = |quota| TenantPolicy { quotas: vec![quota], rights, ..TenantPolicy::default() };
    PolicyDraft {
        tenants: [
            (Name::literal(BOUND_TENANT), tenant(quota(BOUND_MILLI, Some(0)))),
            (Name::literal(FREE_TENANT), tenant(quota(free_milli, None))),
            (Name::literal(GUEST_TENANT), TenantPolicy::default()),
        ]
        .into(),
        ..PolicyDraft::default()
    }
}

/// Asks replica after replica until one says more than that it does not lead. None when the patience of
/// `tries` is over.
pub async fn ask(
    cluster: &Arc<Cluster>,
    who: Host,
    tries: usize,
    mut command: impl FnMut(usize) -> Command,
) -> Option<Result<Answer, Refusal>> {
    let mut hint: Option<Host> = None;
    for attempt in 0..tries {
        let replica = match hint.take() {
            Some(hint) => hint,
            None => pick(&cluster.site.replica_hosts())?,
        };
        let command = command(attempt);
        if attempt == 0
            && let Some(name) = asked_of(&command)
        {
            cluster.site.checks.sent(name);
        }
        let call = cluster.call(who, replica, PATIENCE, "command", move |replica| {
            let command = command.clone();
            async move {
                let answer = replica.command(command).await;
                (answer, replica.leader_hint())
            }
        });
        match call.await {
            Some((Err(refusal), told))
                if matches!(
                    refusal.code,
                    RefusalCode::NotLeader
                        | RefusalCode::OutcomeUnknown
                        | RefusalCode::ClusterRecovering
                        | RefusalCode::Overloaded
                        | RefusalCode::StorageFull
                ) =>
            {
                hint = told.filter(|told| *told != replica);
                sleep_ms(20 + below(100)).await;
            }
            Some((answer, _)) => return Some(answer),
            None => sleep_ms(20 + below(100)).await,
        }
    }
    None
}

impl Clients {
    /// Starts them.
    pub fn start(cluster: &Arc<Cluster>) -> Clients {
        let mut clients = Clients {
            cluster: Arc::clone(cluster),
            stop: Arc::default(),
            asked: Arc::default(),
            recent: Arc::default(),
            tasks: Vec::new(),
        };
        // Where it is granted more, only what is placed is held against its quota.
        if !grants_to_bound(&cluster.site.settings) {
            cluster.site.checks.set_hard_quota(Name::literal(BOUND_TENANT), BOUND_MILLI);
        }
        for place in 0..3 {
            let client = clients.client(FIRST_CLIENT + place);
            clients.tasks.push(spawn_on(FIRST_CLIENT + place, async move { client.submit_all().await }));
        }
        for place in 3..5 {
            let client = clients.client(FIRST_CLIENT + place);
            clients.tasks.push(spawn_on(FIRST_CLIENT + place, async move { client.read_all().await }));
        }
        for place in 5..6 {
            let client = clients.client(FIRST_CLIENT + place);
            clients.tasks.push(spawn_on(FIRST_CLIENT + place, async move { client.watch_all().await }));
        }
        let client = clients.client(FIRST_CLIENT + CONTROLLER);
        clients.tasks.push(spawn_on(FIRST_CLIENT + CONTROLLER, controls::control_all(client)));
        if sizes::changes_sizes(&cluster.site.settings) {
            let client = clients.client(FIRST_CLIENT + RESIZER);
            clients.tasks.push(spawn_on(FIRST_CLIENT + RESIZER, sizes::change_sizes(client)));
        }
        clients
    }

    fn client(&self, host: Host) -> Client {
        Client {
            cluster: Arc::clone(&self.cluster),
            host,
            stop: Arc::clone(&self.stop),
            asked: Arc::clone(&self.asked),
            recent: Arc::clone(&self.recent),
        }
    }

    /// Every request id that was ever used; others than the clients add theirs.
    pub fn asked(&self) -> Arc<Mutex<BTreeSet<RequestId>>> {
        Arc::clone(&self.asked)
    }

    /// Nothing new is begun; returns once everything that was begun is over.
    pub async fn finish(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks.drain(..) {
            if task.await.is_err() {
                self.cluster.site.checks.fail("a client was lost".to_owned());
            }
        }
    }

    /// Submits one job, and says how long that took; none when nobody took it in time.
    pub async fn probe(&self, tries: usize) -> Option<u64> {
        let begun = elapsed_ms();
        let client = self.client(FIRST_CLIENT + 7);
        client.submit(tries).await.then(|| elapsed_ms() - begun)
    }
}

struct Client {
    cluster: Arc<Cluster>,
    host: Host,
    stop: Arc<AtomicBool>,
    asked: Arc<Mutex<BTreeSet<RequestId>>>,
    recent: Arc<Mutex<Recent>>,
}

impl Client {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn new_request(&self) -> RequestId {
        let request = RequestId(u128::from(random()) << 64 | u128::from(random()));
        lock(&self.asked).insert(request);
        request
    }

    /// Of something that may be asked or not: a new one, and now and then one that was used before.
    fn request_of_control(&self) -> RequestId {
        let used = if chance(40) { pick(&lock(&self.recent).requests) } else { None };
        let request = used.unwrap_or_else(|| self.new_request());
        let mut recent = lock(&self.recent);
        recent.requests.push(request);
        let surplus = recent.requests.len().saturating_sub(REQUESTS_KEPT);
        recent.requests.drain(..surplus);
        request
    }

    async fn submit_all(self) {
        while self.goes_on() {
            sleep_ms(below(2_400)).await;
            self.submit(12).await;
        }
    }

    /// One submission, repeated until somebody answers; whether it was acknowledged.
    async fn submit(&self, tries: usize) -> bool {
        let floor = self.cluster.site.checks.floor();
        let mut request = self.new_request();
        let jobs = requests::submissions(request, self.cluster.site.settings.bug.is_some());
        let forgets = self.cluster.site.settings.bug == Some(Rule::RetryUnderNewId);
        let mut newest = request;
        let answer = ask(&self.cluster, self.host, tries, |attempt| {
            if forgets && attempt > 0 {
                newest = self.new_request();
            }
            Command::submit(newest, Arc::clone(&jobs))
        })
        .await;
        request = newest;
        let submitted = jobs;
        match answer {
            Some(Ok(Answer::Submitted { jobs, at })) => {
                self.cluster.site.checks.acknowledged(floor, request, jobs.clone(), at);
                self.remember(requests::arrays(&submitted, &jobs), &jobs);
                // Some while they start.
                if chance(120) {
                    sleep_ms(below(400)).await;
                    self.cancel(&jobs).await;
                }
                true
            }
            Some(Ok(other)) => {
                self.cluster.site.checks.fail(format!("a submission was answered with {other:?}"));
                false
            }
            Some(Err(refusal)) => {
                self.cluster.site.checks.fail(format!("a submission was refused: {refusal}"));
                false
            }
            None => false,
        }
    }

    fn remember(&self, arrays: Vec<ArrayId>, jobs: &[JobId]) {
        let mut recent = lock(&self.recent);
        recent.arrays.extend(arrays);
        recent.jobs.extend(jobs);
    }

    async fn cancel(&self, jobs: &[JobId]) {
        let Some(job) = pick(jobs) else { return };
        let request = self.new_request();
        // Whatever becomes of it: a job may be over before.
        let _ = ask(&self.cluster, self.host, 6, |_| Command::cancel(request, job)).await;
    }

    async fn read_all(self) {
        while self.goes_on() {
            sleep_ms(below(250)).await;
            let Some(replica) = pick(&self.cluster.site.replica_hosts()) else { continue };
            if self.cluster.site.settings.bug.is_none() && chance(300) {
                self.read_bounded(replica).await;
                continue;
            }
            let floor = self.cluster.site.checks.floor();
            let read = self
                .cluster
                .call(self.host, replica, PATIENCE, "read", |replica| async move { replica.read().await });
            if let Some(Some((log_index, digest))) = read.await {
                self.cluster.site.checks.read(self.host, floor, log_index, digest);
            }
        }
    }

    /// A read whose state may be older than what is committed by a bounded time.
    async fn read_bounded(&self, replica: Host) {
        let max_staleness_ms = 200 + below(2_000);
        let begun_ms = elapsed_ms();
        let read =
            self.cluster.call(self.host, replica, PATIENCE, "bounded read", move |replica| async move {
                replica.read_bounded(max_staleness_ms).await
            });
        if let Some(Some((log_index, digest))) = read.await {
            let checks = &self.cluster.site.checks;
            checks.read_bounded(self.host, (begun_ms, max_staleness_ms), log_index, digest);
        }
    }

    async fn watch_all(self) {
        let mut place: Option<WatchPosition> = None;
        while self.goes_on() {
            let Some(replica) = pick(&self.cluster.site.replica_hosts()) else { continue };
            match place {
                None => {
                    let end = self
                        .cluster
                        .call(self.host, replica, PATIENCE, "list", |replica| async move { replica.end() });
                    place = end.await;
                }
                Some(from) => {
                    let news =
                        self.cluster.call(self.host, replica, PATIENCE, "watch", move |replica| async move {
                            replica.changes(from).await
                        });
                    match news.await {
                        Some(Ok((events, reached))) => {
                            self.cluster.site.checks.watched(self.host, from, reached, &events);
                            place = Some(reached);
                        }
                        Some(Err(refusal)) if refusal.code == RefusalCode::ResumeTokenCompacted => {
                            place = None;
                        }
                        // A replica that is behind: another may not be.
                        Some(Err(refusal)) if refusal.code == RefusalCode::LogIndexNotReached => {}
                        Some(Err(refusal)) => {
                            self.cluster.site.checks.fail(format!("a watch was refused: {refusal}"));
                        }
                        None => {}
                    }
                }
            }
            sleep_ms(10).await;
        }
    }
}
