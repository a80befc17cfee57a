//! One replica, whole: consensus on a log in memory, no network.

use muster_consensus::{Consensus, ConsensusConfig, ReplicaNode, SnapshotPolicy, Timing};
use muster_decider::{Answer, BootstrapConfig, Command};
use muster_journal::FORMAT_MAX;
use muster_state::State;
use muster_store::{MemoryDisk, ReplicaStore, SnapshotStore, StoreOptions};
use muster_types::probe::{Link, LinkOutcome};
use muster_types::{
    ClusterId, Features, FencingToken, HolderId, JobId, Parameters, Refusal, RefusalCode, ReplicaId,
    RequestId, ScheduleKey,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::sample::{host, job, name};
use crate::{
    Engine, EngineConfig, Inbound, Opening, Outbound, ProbeOrder, ProbeReport, ReplicaInfo, Session,
    WorkerReport, replicated,
};

mod commands;
mod history;
mod rounds;
mod sessions;
mod unheard;

const CLUSTER: ClusterId = ClusterId(0xe6);
const REPLICA: ReplicaId = ReplicaId(1);
const GUARD: Duration = Duration::from_secs(30);

pub(crate) async fn guarded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(GUARD, future).await {
        Ok(value) => value,
        Err(_) => panic!("nothing happened: {what}"),
    }
}

/// Short leases: a session runs out 900 ms after its last renewal.
pub(crate) fn parameters() -> Parameters {
    Parameters { lease_ttl_ms: 600, lease_margin_ms: 300, heartbeat_interval_ms: 100, ..Parameters::DEFAULT }
}

fn config(client_commands_waiting_max: usize) -> EngineConfig {
    let founding = BootstrapConfig::new(CLUSTER, parameters());
    EngineConfig {
        founding,
        client_commands_waiting_max,
        node_commands_waiting_max: 64,
        contain_faults: false,
    }
}

async fn consensus(application: crate::Replicated) -> Consensus {
    let options = StoreOptions::small();
    let snapshots = SnapshotStore::memory(&options);
    let store = ReplicaStore::in_memory(MemoryDisk::default(), snapshots, options).expect("memory opens");
    let mut settings = ConsensusConfig::new(CLUSTER, REPLICA);
    settings.timing =
        Timing { heartbeat_interval_ms: 20, election_timeout_min_ms: 50, election_timeout_max_ms: 100 };
    settings.snapshots = SnapshotPolicy::ON_DEMAND;
    Consensus::start(settings, store, application).await.expect("it starts")
}

async fn form(consensus: &Consensus) {
    let node = ReplicaNode {
        region: "eu".to_owned(),
        peer_endpoint: "here".to_owned(),
        client_endpoint: "http://here".to_owned(),
    };
    consensus.initialize(BTreeMap::from([(REPLICA, node)])).await.expect("it forms");
}

async fn engine_with(config: EngineConfig) -> Engine {
    let (application, view) = replicated(FORMAT_MAX);
    let consensus = consensus(application).await;
    let info = ReplicaInfo { replica: REPLICA, region: name("eu") };
    let engine = Engine::start(config, info, view, consensus.clone());
    form(&consensus).await;
    engine
}

/// A replica that leads a cluster of one.
pub(crate) async fn leader() -> Engine {
    let engine = engine_with(config(64)).await;
    until(&engine, "the cluster is founded", |view| view.cluster().is_some()).await;
    engine
}

/// Waits on applied records until the state is as wanted.
pub(crate) async fn until(engine: &Engine, what: &str, wanted: impl Fn(&State) -> bool) -> Arc<State> {
    let mut applied = engine.inner.shared.applied.subscribe();
    guarded(what, async {
        loop {
            applied.mark_unchanged();
            let view = engine.view();
            if wanted(&view) {
                return view;
            }
            applied.changed().await.expect("the replica stands");
        }
    })
    .await
}

fn submit(request: u128, count: usize, workers: u32) -> Command {
    let specs: Vec<_> = (0..count).map(|n| job(&format!("job-{n}"), workers)).collect();
    Command::submit(RequestId(request), muster_types::Submission::plain(specs))
}

pub(crate) async fn submitted(engine: &Engine, request: u128, workers: u32) -> JobId {
    let answer = guarded("a submission", engine.execute(submit(request, 1, workers))).await;
    let Ok(Answer::Submitted { jobs, .. }) = answer else { panic!("{answer:?}") };
    jobs[0]
}

pub(crate) fn opening(host_name: &str, holder: u128) -> Opening {
    let (spec, holder) = (host(host_name), HolderId(holder));
    Opening { spec, holder, start: None, workers: Vec::new(), takes: Features::all() }
}

pub(crate) async fn open(engine: &Engine, opening: Opening) -> Session {
    let mut session = guarded("a session", engine.open_session(opening)).await.expect("it is opened");
    let first = guarded("the registration", session.next()).await;
    assert!(matches!(first, Some(Outbound::Registered { .. })), "{first:?}");
    session
}

/// The next message that is wanted, whatever comes before it.
pub(crate) async fn told<T>(session: &mut Session, what: &str, wanted: impl Fn(Outbound) -> Option<T>) -> T {
    guarded(what, async {
        loop {
            let message = session.next().await.expect("the session stands");
            if let Some(found) = wanted(message) {
                return found;
            }
        }
    })
    .await
}

pub(crate) async fn say(session: &Session, message: Inbound) {
    session.inbound().send(message).await.expect("the session stands");
}

pub(crate) fn token_of(view: &State, job: JobId) -> FencingToken {
    view.job(job).and_then(|row| row.placement.as_ref()).expect("it is placed").token
}

pub(crate) fn running(job: JobId, token: FencingToken, rank: u32) -> WorkerReport {
    WorkerReport { job, token, rank: Some(rank), exit: None, artifacts: None }
}

pub(crate) fn code<T>(result: Result<T, Refusal>) -> Option<RefusalCode> {
    result.err().map(|refusal| refusal.code)
}

/// Heartbeats of a session, until it is aborted.
pub(crate) fn beating(session: &Session) -> tokio::task::JoinHandle<()> {
    let inbound = session.inbound();
    tokio::spawn(async move {
        for sequence in 1.. {
            if inbound.send(Inbound::Heartbeat { sequence }).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
}

/// Plays one probe of two nodes: the link from the first to the second carries `rate`.
pub(crate) async fn probed(sessions: &mut [Session; 2], rate: u64) {
    measured(sessions, |link| if link == (0, 1) { rate } else { 1 << 30 }).await;
}

/// Plays one probe of these nodes, whose links carry what `rate` says.
pub(crate) async fn measured(sessions: &mut [Session], rate: impl Fn((u32, u32)) -> u64) {
    let count = sessions.len() as u32;
    for (at, session) in sessions.iter_mut().enumerate() {
        let probe = told(session, "an order to listen", |message| match message {
            Outbound::Probe(ProbeOrder::Listen { probe }) => Some(probe),
            _ => None,
        })
        .await;
        let port = Ok(5_000 + at as u16);
        say(session, Inbound::Probe(ProbeReport::Listening { probe, port })).await;
    }
    for session in sessions.iter_mut() {
        let (probe, own, peers) = told(session, "an order to measure", |message| match message {
            Outbound::Probe(ProbeOrder::Run { probe, own, peers, .. }) => Some((probe, own, peers)),
            _ => None,
        })
        .await;
        assert_eq!((peers.len(), peers[own as usize].1 > 0), (count as usize, true), "{peers:?}");
        let link = |from, to, rate| Link {
            from,
            to,
            outcome: LinkOutcome::Measured { rate, round_trip_us: 9 },
            load_milli: 0,
        };
        let led = (own + 1..count).flat_map(|other| [(own, other), (other, own)]);
        let mut links: Vec<Link> = led.map(|(from, to)| link(from, to, rate((from, to)))).collect();
        if own > 0 {
            // An agent that reports what it did not lead is ignored.
            links.push(link(0, 1, 1));
        }
        say(session, Inbound::Probe(ProbeReport::Measured { probe, links, ring: None, load_milli: 0 })).await;
    }
}

/// A command that meets a broken invariant, for the tests below.
pub(crate) fn poison_command(command: &Command) {
    match command {
        Command::Submit { jobs, .. } => {
            let is_sound = jobs.iter().all(|job| job.spec.name.as_str() != "poison");
            assert!(is_sound, "an invariant that no job may break");
        }
        Command::PlanSchedule { schedule, .. } => {
            let is_sound = !schedule.name.as_str().starts_with("b-poison");
            assert!(is_sound, "an invariant that no moment may break");
        }
        _ => {}
    }
}

/// A schedule whose moments meet a broken invariant, for the tests below.
pub(crate) fn poison_schedule(schedule: &ScheduleKey) {
    assert_ne!(schedule.name.as_str(), "a-poison", "an invariant that no schedule may break");
}

/// A step that meets a broken invariant as long as there is a job of its name, for the tests below.
pub(crate) fn poison_step(step: &str, state: &State) {
    let name_of = |job: &JobId| state.spec(*job).map(|spec| spec.name.as_str().to_owned());
    let names = state.jobs().iter().filter_map(|(job, _)| name_of(job));
    for name in names {
        assert_ne!(name.strip_prefix("poison-"), Some(step), "an invariant that no step may break");
    }
}
