//! What one replica serves over HTTP while it holds many jobs and hosts: web pages, `/metrics`, pages of the past, and streams of
//! events with readers that take nothing.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{SinkExt as _, StreamExt as _};
use muster_client::Client;
use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::agent::session_request::Message as Request;
use muster_wire::agent::session_response::Message as Response;
use muster_wire::{agent, v1};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tonic::transport::Channel;

use super::{Common, agents};
use crate::cluster::{Cluster, Leases, Settings};
use crate::figures::Latencies;
use crate::load::{self, Load};
use crate::machine;
use crate::muster::{DEADLINE, Submitter, Via, job};
use crate::place::{self, Bar, Figure};

/// Sessions that share a connection, and registrations under way at a time.
const SESSIONS_PER_CONNECTION: u32 = 250;
const REGISTERING_MAX: usize = 256;
/// All hosts, replicas and clients have the processors of one machine, which the heartbeats of ten thousand hosts would take up:
/// hosts have longer leases here than a cluster gives by itself, so that none loses its lease to a load that only this machine has.
const LEASES: Leases = Leases { ttl: Duration::from_secs(120), heartbeat_interval: HEARTBEAT };
/// Between two heartbeats of a host.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Before a host registers again whose session has ended, at least, and how long it is known who leads.
const REGISTERS_AGAIN: Duration = Duration::from_secs(1);
const LEADER_KNOWN: Duration = Duration::from_secs(1);
/// Until all hosts have a session at the end.
const STAND_WITHIN: Duration = Duration::from_secs(60);
/// Devices of a host.
const DEVICES: u32 = 10;
/// Jobs in one batch, and batches under way at a time.
const BATCH: usize = 500;
const BATCHES_AT_ONCE: usize = 8;
/// Requests for each page, and for a page of the past.
const REQUESTS: usize = 50;
const PAST_REQUESTS: usize = 10;
/// Pairs of a load with scrapes and one without.
const PAIRS: usize = 3;
/// Clients of that load.
const CLIENTS: u32 = 64;
/// Bytes of the buffer of a reader that takes nothing.
const SLOW_READER_BYTES: u32 = 4 << 10;
/// How long changes come while readers take nothing, and how many a second. A replica cuts such a reader after 20 s.
const STALLED: Duration = Duration::from_secs(60);
/// How long one stream is read behind that, to see whether it ends.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
const CHANGES_PER_S: f64 = 500.0;
/// Longest wait for one answer, and for all hosts.
const PATIENCE: Duration = Duration::from_secs(180);
/// Bars, in milliseconds, bytes and thousandths.
const PAGE_MS_MAX: f64 = 200.0;
const SCRAPE_MS_MAX: f64 = 20.0;
const SCRAPE_BYTES_MAX: f64 = 1_048_576.0;
const SCRAPE_PERCENT_MAX: f64 = 2.0;
const PAST_MS_MAX: f64 = 3_000.0;

#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "EXAMPLES:\n  muster-bench pages --save\n  muster-bench pages --jobs 10000 --hosts 1000 --records 50000 --seconds 3"
)]
pub(crate) struct PagesArgs {
    #[command(flatten)]
    common: Common,
    /// Jobs: half of them ask for a whole host, so that most of those wait
    #[arg(long, default_value_t = 100_000)]
    jobs: usize,
    /// Hosts of ten devices
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    hosts: u32,
    /// Records between the page of the past and the present
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Streams of events that are asked for; a replica has places for fewer
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    streams: u32,
}

/// One answer over HTTP.
struct Answer {
    code: u16,
    first_byte: Duration,
    whole: Duration,
    /// Bytes of the answer, its head included.
    bytes: usize,
}

async fn ask(stream: &mut TcpStream, address: SocketAddr, path: &str) -> Result<()> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.context("sending a request")
}

/// The code in the first line of an answer.
fn code_of(head: &[u8]) -> Result<u16> {
    let code = head.get(9..12).and_then(|code| std::str::from_utf8(code).ok());
    code.and_then(|code| code.parse().ok()).context("an answer without a code")
}

/// Asks for a page on a new connection, and reads all of it.
async fn get(address: SocketAddr, path: &str) -> Result<Answer> {
    let asked = async {
        let begun = Instant::now();
        let mut stream = TcpStream::connect(address).await.context("connecting")?;
        ask(&mut stream, address, path).await?;
        let mut buffer = vec![0; 64 << 10];
        let mut bytes = stream.read(&mut buffer).await.context("reading an answer")?;
        let first_byte = begun.elapsed();
        let code = code_of(&buffer[..bytes])?;
        loop {
            match stream.read(&mut buffer).await.context("reading an answer")? {
                0 => break,
                more => bytes += more,
            }
        }
        Ok(Answer { code, first_byte, whole: begun.elapsed(), bytes })
    };
    tokio::time::timeout(PATIENCE, asked).await.with_context(|| format!("{path} was not answered"))?
}

/// The replica that led when that was asked last.
struct KnownLeader {
    replica: usize,
    asked_at: Instant,
}

/// What the hosts have in common.
struct Hosts {
    client: Client,
    endpoints: Vec<String>,
    leader: Mutex<KnownLeader>,
    /// Connections by replica and group of hosts.
    connections: Mutex<HashMap<(usize, u32), Channel>>,
    registering: Semaphore,
    /// Hosts that have a session.
    stand: AtomicU32,
    /// Sessions that have ended, and why the first of them did.
    ended: AtomicU64,
    first_end: OnceLock<String>,
}

/// A session that stands, until this is dropped.
struct StandingHost<'a>(&'a Hosts);

impl<'a> StandingHost<'a> {
    fn of(hosts: &'a Hosts) -> StandingHost<'a> {
        hosts.stand.fetch_add(1, Ordering::Relaxed);
        StandingHost(hosts)
    }
}

impl Drop for StandingHost<'_> {
    fn drop(&mut self) {
        self.0.stand.fetch_sub(1, Ordering::Relaxed);
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// The workers of one host, which its process keeps from session to session.
#[derive(Default)]
struct HostWorkers {
    running: Vec<agent::WorkerState>,
    /// How many of these the leader has not acknowledged in this session, which are the last.
    unacknowledged: usize,
    /// How many of these are in the report that is on its way.
    reported: usize,
    sequence: u64,
}

impl HostWorkers {
    fn registration(&mut self, mut first: agent::SessionRequest) -> agent::SessionRequest {
        if let Some(Request::Register(register)) = &mut first.message {
            register.workers.clone_from(&self.running);
        }
        *self = HostWorkers { running: std::mem::take(&mut self.running), ..HostWorkers::default() };
        first
    }

    fn begin(&mut self, order: &agent::StartOrder) {
        let states = order.workers.iter().map(|worker| agent::WorkerState {
            job_id: order.job_id.clone(),
            token: order.token,
            subject: Some(agent::worker_state::Subject::Rank(worker.rank)),
            ..Default::default()
        });
        let before = self.running.len();
        self.running.extend(states);
        self.unacknowledged += self.running.len() - before;
    }

    /// The next report: one is on its way at a time, with all that has begun since the one before.
    fn report(&mut self) -> Option<Request> {
        if self.reported > 0 || self.unacknowledged == 0 {
            return None;
        }
        self.reported = self.unacknowledged;
        self.sequence += 1;
        let workers = self.running[self.running.len() - self.unacknowledged..].to_vec();
        Some(Request::Report(agent::Report { sequence: self.sequence, workers }))
    }

    fn acknowledged(&mut self) {
        self.unacknowledged -= self.reported;
        self.reported = 0;
    }

    fn heartbeat(&mut self) -> Request {
        self.sequence += 1;
        Request::Heartbeat(agent::Heartbeat { sequence: self.sequence })
    }
}

impl Hosts {
    /// Who leads by now: it may change under load, and a real agent finds it as well.
    async fn leader(&self) -> Result<usize> {
        let mut known = self.leader.lock().await;
        if known.asked_at.elapsed() > LEADER_KNOWN {
            let status = self.client.get_status(v1::GetStatusRequest::default()).await;
            let freshness = status.context("asking who leads")?.freshness;
            if let Some(leader) = freshness.map(|freshness| freshness.leader_id).filter(|id| *id > 0) {
                known.replica = leader as usize - 1;
            }
            known.asked_at = Instant::now();
        }
        Ok(known.replica)
    }

    /// The connection of a host to the leader; others have the same one.
    async fn connection(&self, n: u32) -> Result<Channel> {
        let replica = self.leader().await?;
        let mut connections = self.connections.lock().await;
        let key = (replica, n / SESSIONS_PER_CONNECTION);
        if let Some(known) = connections.get(&key) {
            return Ok(known.clone());
        }
        let endpoint = self.endpoints.get(replica).context("a replica that is not known")?;
        let made = agents::connect(endpoint).await?;
        connections.insert(key, made.clone());
        Ok(made)
    }

    /// One session of a host, until it ends; why it did. Who waits for the host to stand is told once.
    async fn session(
        &self,
        n: u32,
        (registration, workers): (agent::SessionRequest, &mut HostWorkers),
        ready: &mut Option<mpsc::Sender<()>>,
    ) -> Result<Infallible> {
        let turn = self.registering.acquire().await.context("the semaphore is never closed")?;
        let channel = self.connection(n).await?;
        let (mut to_leader, stream) = futures::channel::mpsc::channel(4);
        to_leader.send(registration).await.context("the stream is closed")?;
        let mut client = NodeServiceClient::new(channel);
        let mut answers = client.session(stream).await.context("a session was refused")?.into_inner();
        answers.message().await.context("a registration was refused")?.context("a session ended")?;
        drop(turn);
        let _standing = StandingHost::of(self);
        if let Some(ready) = ready.take() {
            let _ = ready.send(()).await;
        }
        // All over the interval, as those of a fleet are.
        let offset = HEARTBEAT.mul_f64(f64::from(n % 256) / 256.0);
        let mut ticks = tokio::time::interval_at((Instant::now() + offset).into(), HEARTBEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let message = tokio::select! {
                _ = ticks.tick() => Some(workers.heartbeat()),
                // Nothing is carried out, but the host reports that what begins runs, as the jobs of a full fleet do.
                answer = answers.message() => {
                    match answer.context("a session broke")?.context("a session ended")?.message {
                        Some(Response::Start(order)) => workers.begin(&order),
                        Some(Response::ReportAck(_)) => workers.acknowledged(),
                        _ => {}
                    }
                    workers.report()
                }
            };
            if let Some(message) = message {
                let message = agent::SessionRequest { message: Some(message) };
                to_leader.send(message).await.context("a session takes nothing any more")?;
            }
        }
    }

    /// How many have a session by now, once all have or the time for that is over, and how many sessions have ended.
    async fn figures(&self, count: u32) -> Vec<Figure> {
        let begun = Instant::now();
        while self.stand.load(Ordering::Relaxed) < count && begun.elapsed() < STAND_WITHIN {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (stand, ended) = (self.stand.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed));
        let detail = json!({ "sessions_ended": ended, "first_end": self.first_end.get() });
        if let Some(first) = self.first_end.get() {
            println!("{ended} sessions of hosts have ended; the first: {first}");
        }
        let text = format!("hosts of {count} that stand at the end");
        vec![
            Figure::new("pages", text, stand.into(), "").bar(Bar::AtLeast(count.into())).detail(detail),
            Figure::new("pages", "sessions of hosts that ended", ended as f64, ""),
        ]
    }
}

/// A host of which nothing is known but that it is there. Like an agent it registers again when its session ends, or cannot begin.
async fn host(n: u32, hosts: Arc<Hosts>, ready: mpsc::Sender<()>) -> Result<()> {
    // The same process all the time, by its holder.
    let registration = agents::registration(n, DEVICES);
    let mut ready = Some(ready);
    let mut workers = HostWorkers::default();
    loop {
        let first = workers.registration(registration.clone());
        let Err(ended) = hosts.session(n, (first, &mut workers), &mut ready).await;
        hosts.first_end.get_or_init(|| format!("host {n}: {ended:#}"));
        tokio::time::sleep(REGISTERS_AGAIN.mul_f64(1.0 + f64::from(n % 256) / 256.0)).await;
    }
}

/// Registers the hosts; they stand as long as the tasks do.
async fn hosts(cluster: &Cluster, leader: usize, count: u32) -> Result<(Arc<Hosts>, JoinSet<Result<()>>)> {
    let hosts = Arc::new(Hosts {
        client: cluster.client(leader, DEADLINE)?,
        endpoints: cluster.endpoints(),
        leader: Mutex::new(KnownLeader { replica: leader, asked_at: Instant::now() }),
        connections: Mutex::default(),
        registering: Semaphore::new(REGISTERING_MAX),
        stand: AtomicU32::new(0),
        ended: AtomicU64::new(0),
        first_end: OnceLock::new(),
    });
    let (ready, mut stand) = mpsc::channel(REGISTERING_MAX);
    let mut sessions = JoinSet::new();
    for n in 0..count {
        sessions.spawn(host(n, Arc::clone(&hosts), ready.clone()));
    }
    let all = async {
        for _ in 0..count {
            tokio::select! {
                _ = stand.recv() => {}
                Some(ended) = sessions.join_next() => {
                    return Err(ended.context("a session panicked")?.err().context("a session ended")?);
                }
            }
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, all).await.context("not all hosts stand")??;
    Ok((hosts, sessions))
}

/// Submits the jobs; the id of one of them.
async fn jobs(cluster: &Cluster, leader: usize, count: usize) -> Result<String> {
    let client = cluster.client(leader, DEADLINE)?;
    let sizes = (0..count.div_ceil(BATCH)).map(|n| (n, BATCH.min(count - n * BATCH)));
    let mut done = futures::stream::iter(sizes)
        .map(|(n, size)| {
            let client = client.clone();
            async move {
                let mut one = job();
                let group = one.spec.as_mut().and_then(|spec| spec.groups.first_mut());
                if let Some(resources) = group.and_then(|group| group.resources.as_mut()) {
                    // All of a host's processors, or less than a tenth of them: ten such jobs leave some for what the load submits.
                    resources.cpu_milli = if n % 2 == 1 { 192_000 } else { 19_000 };
                }
                let request = v1::SubmitJobsRequest { jobs: vec![one; size], ..Default::default() };
                client.submit_jobs(request).await
            }
        })
        .buffer_unordered(BATCHES_AT_ONCE);
    let mut known = None;
    while let Some(answer) = done.next().await {
        known = answer.context("a batch of jobs")?.job_ids.into_iter().next().or(known);
    }
    known.context("no job was submitted")
}

/// A figure for the first byte and for the whole of a page, asked for several times.
async fn page(address: SocketAddr, (name, path): (&str, &str), ms_max: f64) -> Result<Vec<Figure>> {
    let (mut first, mut whole) = (Latencies::new()?, Latencies::new()?);
    let mut bytes = 0;
    for _ in 0..REQUESTS {
        let answer = get(address, path).await?;
        if answer.code != 200 {
            let figure =
                Figure::new("pages", format!("{name}, {path}"), f64::from(answer.code), "as its code");
            return Ok(vec![figure.bar(Bar::AtMost(ms_max)).undone()]);
        }
        first.record(answer.first_byte);
        whole.record(answer.whole);
        bytes = bytes.max(answer.bytes);
    }
    let detail = json!({ "path": path, "bytes": bytes, "first_byte": first.json(), "whole": whole.json() });
    let figure = |what: &str, latency: &Latencies, quantile| {
        Figure::new("pages", format!("{name}, {bytes} bytes, {what}"), latency.ms(quantile), "ms")
    };
    Ok(vec![
        figure("first byte, p50", &first, 0.5),
        figure("first byte, p99", &first, 0.99),
        figure("whole, p50", &whole, 0.5),
        figure("whole, p99", &whole, 0.99).bar(Bar::AtMost(ms_max)).detail(detail),
    ])
}

async fn pages(address: SocketAddr, job_id: &str, past: u64) -> Result<Vec<Figure>> {
    let (job, past) = (format!("/jobs/{job_id}"), format!("/jobs?at={past}"));
    let mut figures = Vec::new();
    for (name, path) in [
        ("overview", "/"),
        ("jobs", "/jobs"),
        ("a job", job.as_str()),
        ("queues", "/queues"),
        ("nodes", "/nodes"),
        ("a node", "/nodes/sim-0"),
        ("fleet", "/fleet"),
        ("map", "/fleet/map"),
        ("timeline", "/timeline"),
        ("plan", "/plan"),
        ("events", "/events"),
        ("cluster", "/cluster"),
        ("jobs of a moment ago", past.as_str()),
    ] {
        // A state of the past is made for the first who asks for it, which has a separate promise.
        let ms_max = if path.contains("?at=") { PAST_MS_MAX } else { PAGE_MS_MAX };
        let found = page(address, (name, path), ms_max).await?;
        for figure in &found {
            println!("{}", figure.line());
        }
        figures.extend(found);
    }
    Ok(figures)
}

/// Scrapes one after another.
async fn scrapes(address: SocketAddr) -> Result<Vec<Figure>> {
    let mut latency = Latencies::new()?;
    let mut bytes = 0;
    for _ in 0..REQUESTS {
        let answer = get(address, "/metrics").await?;
        ensure!(answer.code == 200, "/metrics is answered with {}", answer.code);
        latency.record(answer.whole);
        bytes = bytes.max(answer.bytes);
    }
    let time = Figure::new("metrics", "a scrape, p99", latency.ms(0.99), "ms");
    let size = Figure::new("metrics", "its size", bytes as f64, "bytes");
    Ok(vec![
        time.bar(Bar::AtMost(SCRAPE_MS_MAX)).detail(latency.json()),
        size.bar(Bar::AtMost(SCRAPE_BYTES_MAX)),
    ])
}

/// Submissions per second without and with a scrape each second, alternately.
async fn scraped_load(cluster: &Cluster, leader: usize, length: Duration) -> Result<Vec<Figure>> {
    let connections = Submitter::connections(cluster, 16, &[leader], 1, Via::Stream)?;
    let address = cluster.pages_of(leader);
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let mut answered = 0u32;
    for _ in 0..PAIRS {
        for is_scraped in [false, true] {
            let what = if is_scraped { "with a scrape each second" } else { "without" };
            let load = Load { what: what.to_owned(), each: 1, length, processes: Vec::new() };
            let scraping = async {
                let mut ticks = tokio::time::interval(Duration::from_secs(1));
                loop {
                    ticks.tick().await;
                    // One that fails is a result of the scrapes above, not of this load.
                    let answer = get(address, "/metrics").await;
                    answered += u32::from(answer.is_ok_and(|answer| answer.code == 200));
                }
            };
            let submitting = load::closed(&load, &connections, CLIENTS);
            let part = if is_scraped {
                tokio::select! {
                    part = submitting => part?,
                    () = scraping => unreachable!("it never ends"),
                }
            } else {
                submitting.await?
            };
            let parts = if is_scraped { &mut with } else { &mut without };
            parts.push(part.per_s);
        }
    }
    let (without, with) = (crate::figures::median(&without), crate::figures::median(&with));
    let loss = (without - with) / without.max(1.0) * 100.0;
    let taken = Figure::new("metrics", "what the scrapes take of them", loss, "%")
        .bar(Bar::AtMost(SCRAPE_PERCENT_MAX))
        .detail(json!({ "scrapes_answered": answered }));
    // Without answers nothing was measured.
    let asked_s = length.as_secs().saturating_mul(PAIRS as u64);
    let taken = if u64::from(answered) * 2 < asked_s { taken.undone() } else { taken };
    Ok(vec![
        Figure::new("metrics", "submissions without scrapes", without, "per s"),
        Figure::new("metrics", "submissions with a scrape each second", with, "per s"),
        taken,
    ])
}

async fn log_index(cluster: &Cluster, replica: usize) -> Result<u64> {
    let answer = cluster.client_of(replica)?.get_status(v1::GetStatusRequest::default()).await;
    Ok(answer.context("asking a replica")?.freshness.map_or(0, |freshness| freshness.log_index))
}

/// A page of the past with this number of records behind it.
async fn past(cluster: &Cluster, leader: usize, (from, records): (u64, u64)) -> Result<Vec<Figure>> {
    let connections = Submitter::connections(cluster, 16, &[leader], 1, Via::Stream)?;
    let length = Duration::from_secs(5);
    while log_index(cluster, leader).await?.saturating_sub(from) < records {
        let load = Load { what: "more records".to_owned(), each: 1, length, processes: Vec::new() };
        load::closed(&load, &connections, CLIENTS).await?;
    }
    let behind = log_index(cluster, leader).await?.saturating_sub(from);
    let mut latency = Latencies::new()?;
    let mut codes = Vec::new();
    for _ in 0..PAST_REQUESTS {
        let answer = get(cluster.pages_of(leader), &format!("/jobs?at={from}")).await?;
        latency.record(answer.whole);
        codes.push(answer.code);
    }
    let text = format!("jobs as of {behind} records ago, the slowest of {PAST_REQUESTS}");
    let figure = Figure::new("past", text, latency.max_ms(), "ms").bar(Bar::AtMost(PAST_MS_MAX));
    let figure = if codes.iter().all(|code| *code == 200) { figure } else { figure.undone() };
    Ok(vec![figure.detail(json!({ "codes": codes, "latency": latency.json() }))])
}

/// A stream of events whose reader has a small buffer and takes nothing; none where the replica has no place for it.
async fn event_stream(address: SocketAddr) -> Result<Option<TcpStream>> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.context("making a socket")?;
    socket.set_recv_buffer_size(SLOW_READER_BYTES).context("setting a buffer")?;
    let mut stream = socket.connect(address).await.context("connecting")?;
    ask(&mut stream, address, "/events/stream").await?;
    let mut head = [0; 12];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut head))
        .await
        .context("a stream was not answered")?
        .context("reading an answer")?;
    Ok((code_of(&head)? == 200).then_some(stream))
}

/// Whether a stream has ended behind what is left of it. One that is not cut has news for ever.
async fn has_ended(mut stream: TcpStream) -> bool {
    let (mut buffer, begun) = (vec![0; 64 << 10], Instant::now());
    loop {
        if begun.elapsed() > ENDS_WITHIN {
            return false;
        }
        match tokio::time::timeout(Duration::from_secs(2), stream.read(&mut buffer)).await {
            Ok(Ok(0) | Err(_)) => return true,
            Ok(Ok(_)) => {}
            Err(_) => return false,
        }
    }
}

/// Idle streams of events: memory, and how many readers are cut off that take nothing while much happens.
async fn streams(cluster: &Cluster, leader: usize, asked: u32) -> Result<Vec<Figure>> {
    let (address, process) = (cluster.pages_of(leader), cluster.process(leader)?);
    let before = machine::resident_bytes_of(process);
    let mut open = Vec::new();
    for _ in 0..asked {
        open.extend(event_stream(address).await?);
    }
    let grown = machine::resident_bytes_of(process).saturating_sub(before);
    let connections = Submitter::connections(cluster, 4, &[leader], 1, Via::Call)?;
    let load = Load { what: "changes".to_owned(), each: 1, length: STALLED, processes: Vec::new() };
    load::open(&load, &connections, CHANGES_PER_S).await?;
    let taken = open.len();
    let ended = futures::future::join_all(open.into_iter().map(has_ended)).await;
    let cut = ended.into_iter().filter(|ended| *ended).count();
    let all_cut = Figure::new("events", "readers that took nothing and were cut", cut as f64, "")
        .bar(Bar::AtLeast(taken as f64));
    Ok(vec![
        Figure::new("events", format!("streams that were taken of {asked} by one reader"), taken as f64, ""),
        Figure::new("events", "memory of an idle stream", grown as f64 / taken.max(1) as f64, "bytes"),
        // None of none is no result.
        if taken == 0 { all_cut.undone() } else { all_cut },
    ])
}

pub(crate) async fn run(args: PagesArgs) -> Result<()> {
    let settings = Settings { has_pages: true, leases: Some(LEASES), ..Settings::default() };
    let cluster = Cluster::start(args.common.dir.as_deref(), settings).await?;
    let machine = machine::describe_with_disk(cluster.directory())?;
    println!("{}", machine::sentence(&machine));
    let leader = cluster.wait_for_leader().await?;
    let (fleet, sessions) = hosts(&cluster, leader, args.hosts).await?;
    let job_id = jobs(&cluster, leader, args.jobs).await?;
    cluster.rest().await;
    let from = log_index(&cluster, leader).await?;
    let mut figures = pages(cluster.pages_of(leader), &job_id, from).await?;
    let mut rest = scrapes(cluster.pages_of(leader)).await?;
    rest.extend(scraped_load(&cluster, leader, args.common.length()).await?);
    // One record before what the pages have asked for: a replica keeps the states that were asked for lately.
    rest.extend(past(&cluster, leader, (from.saturating_sub(1), args.records)).await?);
    rest.extend(streams(&cluster, leader, args.streams).await?);
    rest.extend(fleet.figures(args.hosts).await);
    for figure in &rest {
        println!("{}", figure.line());
    }
    figures.extend(rest);
    drop(sessions);
    let mut report = place::report(machine, &figures);
    report["scenario"] = json!("pages");
    report["jobs"] = json!(args.jobs);
    report["hosts"] = json!(args.hosts);
    report["devices"] = json!(u64::from(args.hosts) * u64::from(DEVICES));
    args.common.output.write("pages", &report)
}
