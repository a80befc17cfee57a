//! A tenant that asks for what costs most, hundreds of times at once: explanations, plans, states of the past, readers of
//! the log, watches and output, of which it takes no answer or all of them as fast as it can. A replica has to bound what
//! this takes of its memory, and what others need has to go on: heartbeats, the session of the victim's node, the
//! victim's job in its first attempt, and its submissions.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use muster_client::Client;
use muster_types::JobId;
use muster_wire::v1;
use muster_wire::v1::fleet_service_client::FleetServiceClient;
use muster_wire::v1::history_service_client::HistoryServiceClient;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::v1::tenant_service_client::TenantServiceClient;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::transport::Channel;

use super::replicas::{Town, endless, of_tenant, request_id, resident_mib, submitted};
use super::table::{Kind, Table};
use crate::support::{eventually, heavy, say, wait_for_job};

/// Old records are in the archive soon, and the log begins behind them.
const EAGER: &str =
    "[snapshots]\nevery_entries = 200\nkept_entries = 50\n\n[archive]\nsegment_age = \"500ms\"\n";
/// Calls of the tenant that are open at a time, and the certificates that they come by.
const CALLS: usize = 300;
const USERS: [&str; 4] = ["eve", "eve2", "eve3", "eve4"];
/// Jobs that the tenant has submitted before, and what each has in its environment.
const BATCHES: usize = 9;
const BATCH_JOBS: usize = 40;
const VARIABLES: usize = 8;
const VARIABLE_BYTES: usize = 3_000;
/// How long one kind of call is made, and all of them together.
const ONE_FOR: Duration = Duration::from_millis(2_000);
const ALL_FOR: Duration = Duration::from_millis(6_000);
/// What all of it may take of a replica's memory, in MiB: see `SECURITY.md`, "What a member can take of a replica".
const GROWTH_MIB_MAX: u64 = 192;
/// Longest that a submission of another tenant may take. Of a machine with two processors, one is the flood's own.
const SUBMISSION_MAX: Duration = Duration::from_secs(5);

/// What is asked for again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Explanation,
    Plan,
    /// A job as it was: a moment that nobody else asks for.
    Past,
    /// Why a job waited, at such a moment.
    PastExplanation,
    /// The log from its first record on, taken as fast as it comes.
    Log,
    /// The same, of which nothing is taken.
    LogUntaken,
    Jobs,
    Nodes,
    Queues,
    Watch,
    /// A watch that goes on far in the past.
    WatchOfPast,
    Output,
}

impl Asked {
    const ALL: [Asked; 12] = [
        Asked::Explanation,
        Asked::Plan,
        Asked::Past,
        Asked::PastExplanation,
        Asked::Log,
        Asked::LogUntaken,
        Asked::Jobs,
        Asked::Nodes,
        Asked::Queues,
        Asked::Watch,
        Asked::WatchOfPast,
        Asked::Output,
    ];
}

/// What the tenant knows of the cluster.
#[derive(Clone)]
struct Known {
    /// Its jobs that wait.
    jobs: Vec<String>,
    /// One that runs.
    running: String,
    /// The first and last record to ask for.
    records: (u64, u64),
    /// Of a watch, long ago.
    token: String,
}

/// What came of the calls.
#[derive(Default)]
struct Tally {
    answered: AtomicU64,
    refused: AtomicU64,
    codes: parking_lot::Mutex<BTreeMap<String, u64>>,
}

impl Tally {
    fn note<T>(&self, answer: Result<T, Status>) -> Option<T> {
        match answer {
            Ok(answer) => {
                self.answered.fetch_add(1, Ordering::Relaxed);
                Some(answer)
            }
            Err(status) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                *self.codes.lock().entry(format!("{:?}", status.code())).or_default() += 1;
                None
            }
        }
    }
}

/// A stream is held open without taking anything of it, or taken to its end.
async fn held<M>(stream: Option<tonic::Response<tonic::Streaming<M>>>, takes: bool) {
    let Some(stream) = stream else { return tokio::time::sleep(Duration::from_millis(20)).await };
    let mut stream = stream.into_inner();
    while takes && let Ok(Some(_)) = stream.message().await {}
    if !takes {
        std::future::pending::<()>().await;
    }
}

/// One call after the other.
async fn ask(what: Asked, channel: Channel, known: Arc<Known>, number: usize, tally: Arc<Tally>) {
    let mut jobs = JobServiceClient::new(channel.clone());
    let mut log = HistoryServiceClient::new(channel.clone());
    let mut fleet = FleetServiceClient::new(channel.clone());
    let mut queues = TenantServiceClient::new(channel);
    for turn in 0.. {
        let at = number * 31 + turn * 7;
        let job_id = known.jobs[at % known.jobs.len()].clone();
        let (first, last) = known.records;
        let at_log_index = first + at as u64 % (last - first);
        let then = Some(muster_client::Read::at_log_index(at_log_index).into());
        match what {
            Asked::Explanation => {
                let request = v1::ExplainJobRequest { job_id, ..Default::default() };
                tally.note(jobs.explain_job(request).await);
            }
            Asked::Plan => {
                let wanted = Some(endless("planned", "vision", "true"));
                tally.note(jobs.plan_job(v1::PlanJobRequest { job: wanted, read: None }).await);
            }
            Asked::Past => {
                let request = v1::GetJobRequest { job_id, read: then };
                tally.note(jobs.get_job(request).await);
            }
            Asked::PastExplanation => {
                let request = v1::ExplainJobRequest { job_id, read: then };
                tally.note(jobs.explain_job(request).await);
            }
            Asked::Log | Asked::LogUntaken => {
                let request = v1::ReadDecisionsRequest { from_index: 1, ..Default::default() };
                held(tally.note(log.read_decisions(request).await), what == Asked::Log).await;
            }
            Asked::Jobs => {
                let request = v1::ListJobsRequest { page_size: 1_000, ..Default::default() };
                tally.note(jobs.list_jobs(request).await);
            }
            Asked::Nodes => {
                let request = v1::ListNodesRequest { page_size: 1_000, ..Default::default() };
                tally.note(fleet.list_nodes(request).await);
            }
            Asked::Queues => {
                let request = v1::ListTenantsRequest { page_size: 1_000, ..Default::default() };
                tally.note(queues.list_tenants(request).await);
            }
            Asked::Watch => {
                held(tally.note(jobs.watch_jobs(v1::WatchJobsRequest::default()).await), false).await;
            }
            Asked::WatchOfPast => {
                let resume_token = known.token.clone();
                let request = v1::WatchJobsRequest { resume_token, ..Default::default() };
                held(tally.note(jobs.watch_jobs(request).await), false).await;
            }
            Asked::Output => {
                let job_id = known.running.clone();
                let request = v1::ReadLogsRequest { job_id, follow: true, ..Default::default() };
                held(tally.note(jobs.read_logs(request).await), false).await;
            }
        }
        // A call that is refused at once is made again, and leaves the test itself some time.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Samples the memory of a process for as long as it runs.
struct Meter {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Meter {
    fn of(pid: u32) -> Meter {
        let (stop, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stops, noted) = (Arc::clone(&stop), Arc::clone(&most));
        let thread = std::thread::spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                noted.fetch_max(resident_mib(pid), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Meter { stop, most, thread: Some(thread) }
    }

    fn most(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.most.load(Ordering::Relaxed)
    }
}

/// Submits for the victim's tenant, one job after the other; the longest that one took.
async fn submits(
    mut jobs: JobServiceClient<Channel>,
    stop: Arc<AtomicBool>,
) -> Result<(u64, Duration), Status> {
    let (mut answered, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let request_id = request_id();
        let mut wanted = endless("asked-meanwhile", "speech", "true");
        wanted.spec_mut().groups[0].resources_mut().cpu_milli = 50;
        let began = Instant::now();
        let request = v1::SubmitJobRequest { request_id, job: Some(wanted), validate_only: false };
        jobs.submit_job(request).await?;
        (answered, longest) = (answered + 1, longest.max(began.elapsed()));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok((answered, longest))
}

struct Flooded {
    mib: u64,
    submitted: u64,
    longest: Duration,
}

/// Makes such calls for a while.
async fn flood(town: &Town, leader: usize, kinds: &[Asked], known: &Arc<Known>, time: Duration) -> Flooded {
    let mut channels = Vec::new();
    for user in USERS {
        channels.push(town.channel(leader, of_tenant("vision", user)).await);
    }
    let tally = Arc::new(Tally::default());
    let meter = Meter::of(town.cluster.pid(leader).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let bob = JobServiceClient::new(town.channel(leader, of_tenant("speech", "bob")).await);
    let victim = tokio::spawn(submits(bob, Arc::clone(&stop)));
    let mut calls = JoinSet::new();
    for number in 0..CALLS {
        let (what, channel) = (kinds[number % kinds.len()], channels[number % channels.len()].clone());
        calls.spawn(ask(what, channel, Arc::clone(known), number, Arc::clone(&tally)));
    }
    tokio::time::sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    let (submitted, longest) = victim.await.unwrap().expect("the victim's submissions are answered");
    calls.shutdown().await;
    let mib = meter.most();
    say(&format!(
        "{kinds:?}: {mib} MiB at most; {} answers, {} refusals {:?}; {submitted} submissions of another, the longest {longest:?}",
        tally.answered.load(Ordering::Relaxed),
        tally.refused.load(Ordering::Relaxed),
        tally.codes.lock(),
    ));
    Flooded { mib, submitted, longest }
}

/// Jobs of the tenant that wait, with much in their environments.
async fn waiting(eve: &Client) -> Vec<String> {
    let mut ids = Vec::new();
    for batch in 0..BATCHES {
        let specs = (0..BATCH_JOBS).map(|number| {
            let mut wanted = endless(&format!("waits-{batch}-{number}"), "vision", "true");
            wanted.spec_mut().groups[0].resources_mut().cpu_milli = 15_950;
            wanted.spec_mut().groups[0].environment = (0..VARIABLES)
                .map(|at| (format!("V{at}"), format!("{batch}-{number}-").repeat(VARIABLE_BYTES / 5)).into())
                .collect();
            wanted
        });
        let request = v1::SubmitJobsRequest { jobs: specs.collect(), ..Default::default() };
        ids.extend(eve.submit_jobs(request).await.expect("they are taken").job_ids);
    }
    ids
}

/// The first token of a watch: from before the jobs were there.
async fn token(town: &Town, leader: usize) -> String {
    let mut jobs = JobServiceClient::new(town.channel(leader, of_tenant("vision", "eve")).await);
    let mut watch = jobs.watch_jobs(v1::WatchJobsRequest::default()).await.unwrap().into_inner();
    loop {
        let message = watch.message().await.unwrap().expect("a watch goes on");
        if !message.resume_token.is_empty() {
            return message.resume_token;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_costly_calls_takes_no_more_than_a_share() {
    let _heavy = heavy().await;
    let mut town = Town::open_with(EAGER).await;
    let (bob, eve) = (town.client(of_tenant("speech", "bob")), town.client(of_tenant("vision", "eve")));
    let node = || async {
        let request = v1::GetNodeRequest { node: "h1".to_owned(), ..Default::default() };
        let node = bob.get_node(request).await.ok()?.node?;
        (node.status() == v1::NodeStatus::Up).then_some(node)
    };
    eventually("the node does not come up", node).await;
    let runs = |job: &v1::Job| job.phase() == v1::JobPhase::Running;
    let victim = submitted(&bob, endless("victim", "speech", "exec sleep 600")).await;
    let victim = wait_for_job(&bob, &victim, runs).await;
    let running = submitted(&eve, endless("own", "vision", "exec sleep 600")).await;
    wait_for_job(&eve, &running, runs).await;
    let leader = town.cluster.leader().await;
    let token = token(&town, leader).await;
    let first = town.index().await;
    let jobs = waiting(&eve).await;
    assert!(jobs.iter().all(|id| id.parse::<JobId>().is_ok()));
    let known = Arc::new(Known { jobs, running, records: (first, town.index().await), token });
    let before = node().await.expect("it is up");
    let usual = resident_mib(town.cluster.pid(leader).unwrap());
    say(&format!("the leader has {usual} MiB, and {} records", known.records.1));

    let mut attacks = Table::default();
    for kinds in Asked::ALL.iter().map(std::slice::from_ref).chain([&Asked::ALL[..]]) {
        let time = if kinds.len() == 1 { ONE_FOR } else { ALL_FOR };
        let flooded = flood(&town, leader, kinds, &known, time).await;
        let grown = flooded.mib.saturating_sub(usual);
        let is_served = flooded.submitted > 0 && flooded.longest < SUBMISSION_MAX;
        let told = format!(
            "{usual} MiB became {}, a submission of another took {} ms at most",
            flooded.mib,
            flooded.longest.as_millis()
        );
        let outcome = if grown <= GROWTH_MIB_MAX && is_served { Ok(told) } else { Err(told) };
        let name = match kinds {
            [one] => format!("{CALLS} calls at once: {one:?}"),
            _ => format!("{CALLS} calls at once, of every kind"),
        };
        attacks.note(Kind::Exhaust, &name, outcome);
    }
    let after = eventually("the node is not up", node).await;
    let held = if (after.incarnation, after.status()) == (before.incarnation, before.status()) {
        Ok("its session went on".to_owned())
    } else {
        Err(format!("it registered again: {after:#?}"))
    };
    attacks.note(Kind::Stop, "another tenant's node, by a flood", held);
    let now = bob
        .get_job(v1::GetJobRequest { job_id: victim.id, ..Default::default() })
        .await
        .unwrap()
        .job
        .unwrap();
    let held = if runs(&now) && now.status().attempt == 1 {
        Ok("it ran on in its first attempt".to_owned())
    } else {
        Err(format!("{now:#?}"))
    };
    attacks.note(Kind::Stop, "another tenant's job, by a flood", held);
    attacks.conclude("a flood of costly calls");
    town.cluster.assert_digests_agree().await;
}
