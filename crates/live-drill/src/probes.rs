//! What users of the cluster would see: submissions and reads of the drill's own, while it runs.
//!
//! Open loop: a probe is made when its time has come, whether or not the ones before were answered, so that a
//! silence is seen as what it is to people who do not wait for one another.
//!
//! Probes are jobs that never start (their time lies a hundred years ahead) and are cancelled as soon as they are
//! acknowledged; they are the tenant's that the operator names, and carry the drill's id in their name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use muster_client::{AttemptError, CallError, Client, Endpoints, Options, Read};
use muster_drill::history::{Call, Consistency, Observation, Operation, Outcome, Query};
use muster_types::{JobId, RefusalCode, RequestId};
use muster_wire::time::{span_ms, timestamp};
use muster_wire::v1;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::cluster_snapshot::ClusterSnapshot;

/// Probes that are not answered yet, at most; more are not made, and counted.
const OPEN_MAX: usize = 4_096;
/// Results on their way to who writes them down.
const RESULTS_MAX: usize = 16_384;
/// How long a submission is repeated; longer than any drill takes a leader away.
const SUBMIT_MAX: Duration = Duration::from_secs(30);
/// How long a read on one replica may take.
const READ_MAX: Duration = Duration::from_secs(2);
/// Until a probe's time comes.
const NEVER_MS: u64 = 100 * 365 * 24 * 3_600_000;

/// Where probes are made: where the command runs, which is in no region of the cluster's.
const HERE: &str = "operator";
/// Number of the client that submits; readers have the numbers behind it.
const SUBMITTER: u32 = 1;

/// Which probes are made.
#[derive(Clone, Debug)]
pub struct Load {
    pub name: String,
    pub tenant: String,
    /// Submissions and linearizable reads of each replica in a second; half as many of any age.
    pub per_second: u32,
    /// When the drill's clock began, and what it showed then, in microseconds.
    pub clock: (Instant, u64),
}

struct Shared {
    load: Load,
    numbers: AtomicU64,
    unmade: AtomicU64,
    open: Arc<Semaphore>,
    results: mpsc::Sender<Operation>,
    /// When a submission was acknowledged last.
    acknowledged: watch::Sender<Instant>,
}

/// Probes that are made until this is dropped or finished.
pub struct Probes {
    shared: Arc<Shared>,
    makers: Vec<JoinHandle<JoinSet<()>>>,
    stop: watch::Sender<bool>,
    acknowledged: watch::Receiver<Instant>,
}

impl Shared {
    fn us(&self, at: Instant) -> u64 {
        let (began, shown_us) = self.load.clock;
        let since = at.saturating_duration_since(began).as_micros();
        shown_us.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Writes an operation down.
    async fn tell(&self, of: (u32, Option<u64>), call: Call, began: Instant, outcome: Outcome) {
        let (client, replica) = of;
        let operation = Operation {
            id: self.numbers.fetch_add(1, Ordering::Relaxed),
            client,
            region: HERE.to_owned(),
            replica,
            call,
            invoked_us: self.us(began),
            completed_us: self.us(Instant::now()),
            outcome,
        };
        // Nobody writes it down any more only when the drill is over.
        let _ = self.results.send(operation).await;
    }

    fn job(&self) -> v1::Job {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let not_before_ms = u64::try_from(now.as_millis()).unwrap_or(0) + NEVER_MS;
        let group = v1::TaskGroup {
            workers: 1,
            runtime: muster_wire::process(vec!["true".to_owned()]),
            resources: Some(v1::Resources { cpu_milli: 1, memory_bytes: 1 << 20, ..Default::default() }),
            ..Default::default()
        };
        v1::Job {
            name: self.load.name.clone(),
            tenant: self.load.tenant.clone(),
            spec: Some(v1::JobSpec {
                tier: v1::Tier::Free.into(),
                groups: vec![group],
                not_before: Some(timestamp(not_before_ms)),
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

/// What became of a call that was not answered. With attempts before the last, a refusal says nothing of those.
fn failed(error: &CallError) -> Outcome {
    let unknown = |last: &AttemptError| match last {
        AttemptError::Timeout { .. } => Outcome::TimedOut,
        other => {
            let source = std::error::Error::source(other).map(ToString::to_string);
            Outcome::Unknown { error: source.unwrap_or_else(|| other.to_string()) }
        }
    };
    match error {
        CallError::Refused { refused, .. } => Outcome::Refused { code: refused.reason.clone() },
        CallError::DeadlineExceeded { last, .. } | CallError::StreamBroken { last, .. } => unknown(last),
        other => Outcome::Unknown { error: other.to_string() },
    }
}

fn log_index(freshness: Option<v1::Freshness>) -> u64 {
    freshness.map_or(0, |fresh| fresh.log_index)
}

fn strange(what: &str) -> Outcome {
    Outcome::Malformed { what: format!("the answer has no {what}") }
}

async fn submit(shared: Arc<Shared>, client: Client) {
    let of = (SUBMITTER, None);
    let began = Instant::now();
    let id = uuid::Uuid::new_v4();
    let call = Call::Submit { request: RequestId(id.as_u128()), jobs: 1 };
    let request =
        v1::SubmitJobRequest { request_id: id.to_string(), job: Some(shared.job()), validate_only: false };
    let mut job = None;
    let outcome = match client.submit_job(request).await {
        Ok(done) => {
            let now = Instant::now();
            shared.acknowledged.send_modify(|last| *last = now.max(*last));
            job = done.job_ids.first().and_then(|id| id.parse::<JobId>().ok());
            let acknowledged =
                |job| Outcome::Acknowledged { log_index: log_index(done.freshness), jobs: vec![job] };
            job.map_or_else(|| strange("job"), acknowledged)
        }
        Err(error) => failed(&error),
    };
    shared.tell(of, call, began, outcome).await;
    let Some(job) = job else { return };
    let began = Instant::now();
    let id = uuid::Uuid::new_v4();
    let call = Call::Cancel { request: RequestId(id.as_u128()), job };
    let request = v1::CancelJobRequest { request_id: id.to_string(), job_id: job.to_string() };
    let outcome = match client.cancel_job(request).await {
        Ok(done) => Outcome::Acknowledged { log_index: log_index(done.freshness), jobs: Vec::new() },
        // An attempt before did it, and its answer was lost.
        Err(error) if error.refused().is_some_and(|r| r.code == Some(RefusalCode::JobFinished)) => {
            Outcome::Unknown { error: "the job was over".to_owned() }
        }
        Err(error) => failed(&error),
    };
    shared.tell(of, call, began, outcome).await;
}

async fn read(shared: Arc<Shared>, client: Client, reader: u32, replica: u64, consistency: Consistency) {
    let began = Instant::now();
    let read = if consistency == Consistency::Linearizable { Read::linearizable() } else { Read::any() };
    let call = Call::Read { query: Query::Status, consistency, min_log_index: 0 };
    let outcome = match client.get_status(v1::GetStatusRequest { read: read.into() }).await {
        Ok(status) => match u64::from_str_radix(&status.state_digest, 16) {
            Ok(digest) => Outcome::Answered {
                log_index: log_index(status.freshness),
                staleness_ms: status.freshness.and_then(|fresh| span_ms(fresh.staleness)),
                seen: Observation::Status {
                    digest,
                    pending: status.jobs_pending,
                    active: status.jobs_active,
                    finished: status.jobs_finished,
                },
            },
            Err(_) => strange("digest"),
        },
        Err(error) => failed(&error),
    };
    shared.tell((reader, Some(replica)), call, began, outcome).await;
}

/// Makes a probe whenever its time has come, until it is told to stop; those that are open then.
async fn make<F>(
    shared: Arc<Shared>,
    per_second: f64,
    mut stop: watch::Receiver<bool>,
    probe: impl Fn() -> F,
) -> JoinSet<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut open = JoinSet::new();
    let mut due = tokio::time::interval(Duration::from_secs_f64(1.0 / per_second));
    // What was late is made up for: that is what an open loop is.
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    loop {
        tokio::select! {
            _ = due.tick() => {}
            _ = stop.changed() => return open,
        }
        while open.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&shared.open).try_acquire_owned() else {
            shared.unmade.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let probe = probe();
        open.spawn(async move {
            probe.await;
            drop(permit);
        });
    }
}

/// A client with no memory of what others have seen, that asks one replica only or whichever answers.
fn client(endpoints: Endpoints, deadline: Duration) -> Client {
    let options = Options {
        deadline,
        attempt_timeout: Options::STANDARD.attempt_timeout.min(deadline),
        read_your_writes: false,
        ..Options::STANDARD
    };
    Client::lazy(endpoints, options)
}

impl Probes {
    /// Begins; what comes of each probe is received.
    ///
    /// # Errors
    /// When a replica's address is none.
    pub fn begin(
        cluster: &Client,
        snapshot: &ClusterSnapshot,
        load: Load,
    ) -> Result<(Probes, mpsc::Receiver<Operation>), muster_client::EndpointsError> {
        let security = cluster.endpoints().security().clone();
        let all: Vec<String> = snapshot.replicas.iter().map(|replica| replica.endpoint.clone()).collect();
        let all = Endpoints::parse_with(&all, security.clone())?.spread();
        let (results, received) = mpsc::channel(RESULTS_MAX);
        let (acknowledged, heard) = watch::channel(Instant::now());
        let per_second = f64::from(load.per_second.max(1));
        let shared = Arc::new(Shared {
            load,
            numbers: AtomicU64::new(0),
            unmade: AtomicU64::new(0),
            open: Arc::new(Semaphore::new(OPEN_MAX)),
            results,
            acknowledged,
        });
        let (stop, stopped) = watch::channel(false);
        let mut makers = Vec::new();
        let submitter = client(all, SUBMIT_MAX);
        let (of, watched) = (Arc::clone(&shared), stopped.clone());
        makers.push(tokio::spawn(make(Arc::clone(&shared), per_second, watched, move || {
            submit(Arc::clone(&of), submitter.clone())
        })));
        let mut readers = SUBMITTER;
        for replica in &snapshot.replicas {
            let one = Endpoints::parse_with(std::slice::from_ref(&replica.endpoint), security.clone())?;
            let kinds = [(Consistency::Linearizable, per_second), (Consistency::Any, per_second / 2.0)];
            for (consistency, rate) in kinds {
                // Apart: a connection that one gives up is not the other's.
                let client = client(one.clone(), READ_MAX);
                readers += 1;
                let (of, reader, id) = (Arc::clone(&shared), readers, replica.id);
                makers.push(tokio::spawn(make(Arc::clone(&shared), rate, stopped.clone(), move || {
                    read(Arc::clone(&of), client.clone(), reader, id, consistency)
                })));
            }
        }
        Ok((Probes { shared, makers, stop, acknowledged: heard }, received))
    }

    /// How long ago a submission was acknowledged last.
    pub fn silence(&self) -> Duration {
        self.acknowledged.borrow().elapsed()
    }

    /// Makes no more and waits for those that are open; how many were not made because too many were.
    pub async fn finish(self) -> u64 {
        self.stop.send_replace(true);
        for maker in self.makers {
            if let Ok(open) = maker.await {
                open.join_all().await;
            }
        }
        self.shared.unmade.load(Ordering::Relaxed)
    }
}
