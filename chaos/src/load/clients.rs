//! The clients of one region: submissions, cancellations, reads of every consistency, and watches.
//!
//! **Invariant:** operations are due at fixed times; an operation's time counts from when it was due.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use muster_client::{Client, Endpoints, Options, Read, Watch, WatchItem};
use muster_drill::history::{
    Call, Consistency, JobSeen, Observation, Operation, Outcome, Query, WatchChange, WatchEvent,
    digest_of_jobs,
};
use muster_transport::Security;
use muster_types::{JobId, RequestId};
use muster_wire::time::{span_ms, timestamp};
use muster_wire::v1;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::pace::{Counts, Pace, Stop, open_loop};
use super::record::{Record, failed, malformed, now_us, seen, us_of};

/// Names of jobs that clients submit begin so.
pub const PREFIX: &str = "load-";
/// A submission may take so long: through any outage of a minority it is late and does not fail.
const WRITE_DEADLINE: Duration = Duration::from_secs(20);
/// A read that needs a leader.
const READ_DEADLINE: Duration = Duration::from_secs(10);
/// A read of whatever one replica has: a replica that is slower does not answer.
const ANY_DEADLINE: Duration = Duration::from_millis(1_000);
/// What bounded reads ask for.
const STALENESS: Duration = Duration::from_secs(2);
/// Jobs on a page that is read.
const PAGE: u32 = 10;
/// Submitted jobs wait so long for their time, which never comes: they are cancelled before.
const NOT_BEFORE_MS: u64 = 6 * 3_600_000;

const SUBMIT_EVERY: Duration = Duration::from_millis(100);
const LINEARIZABLE_EVERY: Duration = Duration::from_millis(100);
const ANY_EVERY: Duration = Duration::from_millis(200);
const BOUNDED_EVERY: Duration = Duration::from_millis(500);
const CANCEL_EVERY: Duration = Duration::from_millis(1_000);

/// Between the numbers of a region's two watches.
const WATCHES_APART: u32 = 50;
/// How one of them comes and goes.
const LOOKS: Looks = Looks { watches: Duration::from_millis(1_500), away: Duration::from_millis(500) };

/// A watch that is not always there.
#[derive(Clone, Copy)]
struct Looks {
    /// It looks for so long,
    watches: Duration,
    /// and is away for so long before it goes on where it was.
    away: Duration,
}

/// What all clients of a drill know of one another's work: reads look for what was acknowledged anywhere.
#[derive(Clone, Default)]
pub struct Known {
    newest: Arc<AtomicU64>,
}

impl Known {
    fn job(&self) -> Option<JobId> {
        let id = self.newest.load(Ordering::Acquire);
        (id > 0).then_some(JobId(id))
    }

    fn learn(&self, job: JobId) {
        self.newest.fetch_max(job.0, Ordering::AcqRel);
    }
}

/// Where clients are and whom they ask.
pub struct Setting {
    /// Their region.
    pub region: String,
    /// Every replica, those of their region first.
    pub endpoints: Vec<String>,
    /// Each of them by id.
    pub each: Vec<(u64, String)>,
    /// What they show to replicas.
    pub security: Security,
    /// The first of the numbers that tell clients apart: fewer than a hundred.
    pub first_number: u32,
    /// What is known of the work of all.
    pub known: Known,
    /// Where everything is written down.
    pub record: Record,
}

/// How many operations there were, by kind.
pub type Made = Vec<(&'static str, Counts)>;

struct Region {
    region: String,
    known: Known,
    record: Record,
    next: AtomicU64,
    /// Jobs of these clients that are acknowledged and not cancelled yet.
    open: Mutex<std::collections::VecDeque<JobId>>,
}

/// One client.
#[derive(Clone)]
struct One {
    region: Arc<Region>,
    client: Client,
    number: u32,
    replica: Option<u64>,
    /// The newest position that it was shown, where it never wants to see an older one: a session.
    session: Option<Arc<AtomicU64>>,
}

impl One {
    fn write(&self, call: Call, due: Instant, outcome: Outcome) {
        self.region.record.operation(Operation {
            id: self.region.next.fetch_add(1, Ordering::Relaxed),
            client: self.number,
            region: self.region.region.clone(),
            replica: self.replica,
            call,
            invoked_us: us_of(due),
            completed_us: now_us(),
            outcome,
        });
    }

    fn open(&self) -> parking_lot::MutexGuard<'_, std::collections::VecDeque<JobId>> {
        // What is behind the lock is whole between two calls.
        self.region.open.lock()
    }

    async fn submit(self, number: u64, due: Instant) {
        let id = uuid::Uuid::new_v4();
        let name = format!("{PREFIX}{}-{number}", self.region.region);
        let request = v1::SubmitJobRequest {
            request_id: id.to_string(),
            job: Some(waiting_job(name)),
            ..Default::default()
        };
        let outcome = match self.client.submit_job(request).await {
            Ok(answer) => {
                let jobs: Result<Vec<JobId>, _> = answer.job_ids.iter().map(|id| id.parse()).collect();
                match (jobs, answer.freshness) {
                    (Ok(jobs), Some(fresh)) => {
                        for job in &jobs {
                            self.region.known.learn(*job);
                            self.open().push_back(*job);
                        }
                        Outcome::Acknowledged { log_index: fresh.log_index, jobs }
                    }
                    _ => malformed("a submission without ids or position"),
                }
            }
            Err(error) => failed(&error),
        };
        self.write(Call::Submit { request: RequestId(id.as_u128()), jobs: 1 }, due, outcome);
    }

    async fn cancel(self, job: JobId, due: Instant) {
        let id = uuid::Uuid::new_v4();
        let request = v1::CancelJobRequest { request_id: id.to_string(), job_id: job.to_string() };
        let outcome = match self.client.cancel_job(request).await {
            Ok(answer) => match answer.freshness {
                Some(fresh) => Outcome::Acknowledged { log_index: fresh.log_index, jobs: Vec::new() },
                None => malformed("a cancellation without a position"),
            },
            Err(error) => failed(&error),
        };
        self.write(Call::Cancel { request: RequestId(id.as_u128()), job }, due, outcome);
    }

    /// By turns a job, a page and a status.
    async fn read(self, number: u64, due: Instant, consistency: Consistency) {
        let read = match consistency {
            Consistency::Any => Read::any(),
            Consistency::Bounded { max_staleness_ms } => {
                Read::bounded(Duration::from_millis(max_staleness_ms))
            }
            Consistency::Linearizable => Read::linearizable(),
        };
        let query = match (number % 4, self.region.known.job()) {
            (0, _) | (_, None) => Query::Status,
            (1, _) => Query::Jobs { count: PAGE, tenant: None },
            (_, Some(job)) => Query::Job { job },
        };
        let min_log_index = self.session.as_ref().map_or(0, |seen| seen.load(Ordering::Acquire));
        let read = if min_log_index > 0 { read.at_least(min_log_index) } else { read };
        let answer = match &query {
            Query::Status => self.status(read).await,
            Query::Jobs { .. } => self.page(read).await,
            Query::Job { job } => self.job(*job, read).await,
        };
        if let (Some(session), Outcome::Answered { log_index, .. }) = (&self.session, &answer) {
            session.fetch_max(*log_index, Ordering::AcqRel);
        }
        self.write(Call::Read { query, consistency, min_log_index }, due, answer);
    }

    async fn status(&self, read: Read) -> Outcome {
        match self.client.get_status(v1::GetStatusRequest { read: read.into() }).await {
            Ok(answer) => {
                let digest = u64::from_str_radix(&answer.state_digest, 16);
                match digest {
                    Ok(digest) => {
                        let seen = Observation::Status {
                            digest,
                            pending: answer.jobs_pending,
                            active: answer.jobs_active,
                            finished: answer.jobs_finished,
                        };
                        answered(answer.freshness, seen)
                    }
                    Err(_) => malformed("a digest that is no number"),
                }
            }
            Err(error) => failed(&error),
        }
    }

    async fn page(&self, read: Read) -> Outcome {
        let request = v1::ListJobsRequest { page_size: PAGE, read: read.into(), ..Default::default() };
        match self.client.list_jobs(request).await {
            Ok(answer) => match answer.jobs.iter().map(seen).collect::<Option<Vec<JobSeen>>>() {
                Some(page) => {
                    let seen = Observation::Jobs { count: page.len() as u32, digest: digest_of_jobs(&page) };
                    answered(answer.freshness, seen)
                }
                None => malformed("a page with a job that is none"),
            },
            Err(error) => failed(&error),
        }
    }

    async fn job(&self, job: JobId, read: Read) -> Outcome {
        let request = v1::GetJobRequest { job_id: job.to_string(), read: read.into() };
        match self.client.get_job(request).await {
            Ok(answer) => match answer.job.as_ref().and_then(seen) {
                Some(seen) => answered(answer.freshness, Observation::Job(seen)),
                None => malformed("an answer without the job"),
            },
            Err(error) => failed(&error),
        }
    }
}

fn answered(freshness: Option<v1::Freshness>, seen: Observation) -> Outcome {
    match freshness {
        Some(fresh) => {
            Outcome::Answered { log_index: fresh.log_index, staleness_ms: span_ms(fresh.staleness), seen }
        }
        None => malformed("a read without a position"),
    }
}

/// A job that takes part in everything but is never started.
fn waiting_job(name: String) -> v1::Job {
    let group = v1::TaskGroup {
        workers: 1,
        runtime: muster_wire::process(vec!["true".to_owned()]),
        resources: Some(v1::Resources { cpu_milli: 100, memory_bytes: 1 << 20, ..Default::default() }),
        ..Default::default()
    };
    let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let not_before_ms = u64::try_from(now_ms.as_millis()).unwrap_or_default() + NOT_BEFORE_MS;
    v1::Job {
        name,
        spec: Some(v1::JobSpec {
            groups: vec![group],
            not_before: Some(timestamp(not_before_ms)),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Makes operations until it is told to stop, then ends those under way and cancels what was submitted.
///
/// # Errors
/// When an endpoint is no address.
pub async fn run(setting: Setting, stop: Stop) -> Result<Made> {
    let Setting { region, endpoints, each, security, first_number, known, record } = setting;
    let make = |list: &[String], deadline: Duration, own_writes: bool| -> Result<Client> {
        let endpoints = Endpoints::parse_with(list, security.clone()).context("endpoints of clients")?;
        let options = Options {
            deadline,
            attempt_timeout: deadline.min(Options::STANDARD.attempt_timeout),
            read_your_writes: own_writes,
            ..Options::STANDARD
        };
        Ok(Client::lazy(endpoints, options))
    };
    let shared = Arc::new(Region {
        region: region.clone(),
        known,
        record: record.clone(),
        next: AtomicU64::new(1),
        open: Mutex::default(),
    });
    let mut number = first_number;
    let mut one = |client: Client, replica: Option<u64>| {
        number += 1;
        One { region: Arc::clone(&shared), client, number, replica, session: None }
    };
    let writer = one(make(&endpoints, WRITE_DEADLINE, false)?, None);
    let canceller = writer.clone();
    let linear = one(make(&endpoints, READ_DEADLINE, false)?, None);
    let mut bounded = one(make(&endpoints, READ_DEADLINE, false)?, None);
    bounded.session = Some(Arc::default());
    let watching = one(make(&endpoints, Duration::from_secs(120), false)?, None);
    let mut loops: JoinSet<(&'static str, Counts)> = JoinSet::new();
    // Loops of the regions and of the kinds begin a little apart.
    let offset = move |place: u64| Duration::from_millis(u64::from(first_number) % 37 + 7 * place);
    let pace = move |every, place| Pace { every, offset: offset(place) };
    let submitter = writer.clone();
    let stops = stop.clone();
    loops.spawn(async move {
        let submit = move |number, due| submitter.clone().submit(number, due);
        ("submissions", open_loop(pace(SUBMIT_EVERY, 0), stops, submit).await)
    });
    for (reader, kind, consistency, every, place) in [
        (linear, "linearizable reads", Consistency::Linearizable, LINEARIZABLE_EVERY, 1),
        (
            bounded,
            "bounded reads",
            Consistency::Bounded { max_staleness_ms: STALENESS.as_millis() as u64 },
            BOUNDED_EVERY,
            2,
        ),
    ] {
        let stops = stop.clone();
        loops.spawn(async move {
            let read = move |number, due| reader.clone().read(number, due, consistency);
            (kind, open_loop(pace(every, place), stops, read).await)
        });
    }
    for (place, (replica, endpoint)) in (3..).zip(&each) {
        let reader = one(make(std::slice::from_ref(endpoint), ANY_DEADLINE, false)?, Some(*replica));
        let stops = stop.clone();
        loops.spawn(async move {
            let read = move |number, due| reader.clone().read(number, due, Consistency::Any);
            ("reads of any staleness", open_loop(pace(ANY_EVERY, place), stops, read).await)
        });
    }
    let cancels = canceller.clone();
    let stops = stop.clone();
    loops.spawn(async move {
        let cancel = move |_, due| {
            let one = cancels.clone();
            async move {
                let oldest = one.open().pop_front();
                if let Some(job) = oldest {
                    one.cancel(job, due).await;
                }
            }
        };
        ("cancellations", open_loop(pace(CANCEL_EVERY, 20), stops, cancel).await)
    });
    let watched_region = shared.region.clone();
    let watches = [(first_number, None), (first_number + WATCHES_APART, Some(LOOKS))];
    let mut watchers: JoinSet<Result<()>> = JoinSet::new();
    for (number, looks) in watches {
        let (client, record, stop) = (watching.client.clone(), record.clone(), stop.clone());
        let region = watched_region.clone();
        watchers.spawn(async move { watch(client, (number, &region), record, stop, looks).await });
    }
    let mut made = Vec::new();
    while let Some(counts) = loops.join_next().await {
        made.push(counts.context("a loop of clients")?);
    }
    while let Some(watched) = watchers.join_next().await {
        watched.context("a watch")??;
    }
    Ok(made)
}

/// Follows every job until it is told to stop: without a break, or as a client does that looks, goes away, and
/// continues later where it stopped. A client that comes back has missed changes each time; one that changes replicas
/// because one died has missed some only seldom.
async fn watch(
    client: Client,
    (number, region): (u32, &str),
    record: Record,
    mut stop: Stop,
    looks: Option<Looks>,
) -> Result<()> {
    let mut resume_token = String::new();
    loop {
        let request = v1::WatchJobsRequest { resume_token, ..Default::default() };
        let mut watch = client.watch_jobs(request);
        let over = async {
            match looks {
                Some(looks) => tokio::time::sleep(looks.watches).await,
                None => std::future::pending().await,
            }
        };
        let stopped = follow(&mut watch, (number, region), &record, &mut stop, over).await?;
        if stopped {
            return Ok(());
        }
        resume_token = watch.resume_token().to_owned();
        if resume_token.is_empty() {
            // The present state had not been sent completely: the watch begins again.
            let change = WatchChange::Restarted;
            record.watch(event(number, region, (0, change)));
        }
        drop(watch);
        if let Some(looks) = looks {
            tokio::time::sleep(looks.away).await;
        }
    }
}

/// Until it is over, or stopped, which is returned.
async fn follow(
    watch: &mut Watch,
    (number, region): (u32, &str),
    record: &Record,
    stop: &mut Stop,
    over: impl Future<Output = ()>,
) -> Result<bool> {
    tokio::pin!(over);
    loop {
        let item = tokio::select! {
            item = watch.next() => item.context("a watch of jobs")?,
            () = &mut over => return Ok(false),
            _ = stop.wait_for(|stop| *stop) => return Ok(true),
        };
        let (log_index, change) = match item {
            WatchItem::Changed { log_index, job } => {
                (log_index, WatchChange::Changed(seen(&job).context("a watch with a job that is none")?))
            }
            WatchItem::Forgotten { log_index, job_id } => {
                (log_index, WatchChange::Forgotten { job: job_id.parse().context("a job id of a watch")? })
            }
            WatchItem::SyncEnd { log_index } => (log_index, WatchChange::SyncEnd),
            WatchItem::Bookmark { log_index } => (log_index, WatchChange::Bookmark),
            WatchItem::Restarted => (0, WatchChange::Restarted),
            other => anyhow::bail!("a watch of jobs with an item that drills do not know: {other:?}"),
        };
        record.watch(event(number, region, (log_index, change)));
    }
}

fn event(watch: u32, region: &str, (log_index, change): (u64, WatchChange)) -> WatchEvent {
    WatchEvent { watch, region: region.to_owned(), tenant: None, at_us: now_us(), log_index, change }
}

/// Cancels every job that clients of a drill have left waiting.
///
/// # Errors
/// When the cluster does not do it.
pub async fn cancel_all(client: &Client) -> Result<u64> {
    const TOGETHER: usize = 16;
    let mut cancelled = 0;
    loop {
        let request = v1::ListJobsRequest {
            page_size: 500,
            read: Read::linearizable().into(),
            filter: Some(v1::JobFilter {
                phases: vec![v1::JobPhase::Pending.into()],
                name_prefix: PREFIX.to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let page = client.list_jobs(request).await.context("listing what clients submitted")?.jobs;
        if page.is_empty() {
            return Ok(cancelled);
        }
        let mut calls = futures::stream::FuturesUnordered::new();
        for job in page {
            if calls.len() >= TOGETHER {
                finish(&mut calls).await?;
            }
            let client = client.clone();
            calls.push(async move {
                let request = v1::CancelJobRequest { job_id: job.id.clone(), ..Default::default() };
                client.cancel_job(request).await.map(|_| ()).with_context(|| format!("cancelling {}", job.id))
            });
            cancelled += 1;
        }
        while !calls.is_empty() {
            finish(&mut calls).await?;
        }
    }
}

async fn finish(calls: &mut (impl futures::Stream<Item = Result<()>> + Unpin)) -> Result<()> {
    use futures::StreamExt as _;
    calls.next().await.unwrap_or(Ok(()))
}
