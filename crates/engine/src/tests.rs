//! One replica, whole: consensus on a log in memory, no network.

use muster_consensus::{
    Application as _, CommittedEntry, Consensus, ConsensusConfig, ReplicaNode, SnapshotPolicy, Timing,
};
use muster_decider::{Answer, Command, Founding};
use muster_journal::{Decision, FORMAT_MAX, FORMAT_MIN, Round, encode_round};
use muster_state::{NodeStatus, Phase, RankState, State};
use muster_store::{MemoryDisk, ReplicaStore, SnapshotStore, StoreOptions};
use muster_types::health::HealthAction;
use muster_types::probe::{Link, LinkOutcome};
use muster_types::{
    ClusterId, DeviceSet, ExitStatus, Features, FencingToken, HolderId, JobDraft, JobId, LogIndex, LogTime,
    NodeId, Parameters, Refusal, RefusalCode, ReplicaId, RequestId, StopReason,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::orders::outstanding;
use crate::probe::{ProbeOrder, ProbeReport};
use crate::sample::{host, job, name};
use crate::session::{Inbound, Opening, Outbound, Session, WorkerReport};
use crate::watch::{Change, WatchPosition};
use crate::{Attempt, Engine, EngineConfig, LogRequest, Order, ReplicaInfo, replicated};

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
    let founding = Founding::new(CLUSTER, parameters());
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
    Command::Submit { request: RequestId(request), jobs: muster_types::Submission::plain(specs) }
}

pub(crate) async fn submitted(engine: &Engine, request: u128, workers: u32) -> JobId {
    let answer = guarded("a submission", engine.execute(submit(request, 1, workers))).await;
    let Ok(Answer::Submitted { jobs, .. }) = answer else { panic!("{answer:?}") };
    jobs[0]
}

pub(crate) fn opening(host_name: &str, holder: u128) -> Opening {
    Opening { spec: host(host_name), holder: HolderId(holder), workers: Vec::new(), takes: Features::all() }
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
    WorkerReport { job, token, rank: Some(rank), exit: None }
}

pub(crate) fn code<T>(result: Result<T, Refusal>) -> Option<RefusalCode> {
    result.err().map(|refusal| refusal.code)
}

#[tokio::test]
async fn a_submission_is_answered_when_it_can_be_read_and_repeats_its_answer() {
    let engine = leader().await;
    let _session = open(&engine, opening("h1", 1)).await;
    let first = guarded("a submission", engine.execute(submit(7, 3, 1))).await.expect("it is taken");
    let Answer::Submitted { jobs, at } = &first else { panic!("{first:?}") };
    let view = engine.view();
    assert!(view.log_index() >= *at && jobs.iter().all(|id| view.job(*id).is_some()));
    let again = guarded("the same again", engine.execute(submit(7, 3, 1))).await.expect("it is repeated");
    assert_eq!(again, first);
    let other = guarded("another under its id", engine.execute(submit(7, 2, 1))).await;
    assert_eq!(code(other), Some(RefusalCode::RequestIdReused));
    assert_eq!(engine.view().jobs().len(), 3);
}

#[tokio::test]
async fn a_job_whose_time_comes_waits_for_nothing_else() {
    let engine = leader().await;
    let _session = open(&engine, opening("h1", 1)).await;
    let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_millis(400);
    let mut draft = JobDraft::clone(&job("later", 1));
    draft.not_before = Some(LogTime(u64::try_from(soon.as_millis()).unwrap()));
    let jobs = muster_types::Submission::plain(vec![draft.check().unwrap()]);
    let answer = guarded("it", engine.execute(Command::Submit { request: RequestId(1), jobs })).await;
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(engine.view().not_before().count(), 1);
    // What is done now and then is done every ten seconds.
    let released = until(&engine, "its time", |view| view.not_before().next().is_none());
    tokio::time::timeout(Duration::from_secs(6), released).await.expect("nothing else has to happen");
}

#[tokio::test]
async fn a_refusal_changes_nothing_and_is_told() {
    let engine = leader().await;
    let before = engine.view().jobs().len();
    let refused = guarded("a job without a fleet", engine.execute(submit(1, 1, 1))).await;
    assert_eq!(code(refused), Some(RefusalCode::NeverFits));
    assert_eq!(engine.view().jobs().len(), before);
}

#[tokio::test]
async fn a_watch_goes_on_exactly_inside_a_batch_of_a_thousand() {
    let engine = leader().await;
    let _session = open(&engine, opening("h1", 1)).await;
    let start = WatchPosition::after(engine.view().log_index());
    let answer = guarded("a batch", engine.execute(submit(1, 1_000, 8))).await.expect("it is taken");
    let Answer::Submitted { jobs, at } = answer else { panic!("{answer:?}") };
    let mut places: Vec<(WatchPosition, JobId)> = Vec::new();
    let mut watch = engine.watch(start).expect("the place is kept");
    while places.len() < 1_000 {
        let (events, _) = guarded("changes", watch.next()).await.expect("they are kept");
        let of_batch = events.into_iter().filter(|e| e.position.log_index == at);
        places.extend(of_batch.filter_map(|e| match e.change {
            Change::Job { id, .. } => Some((e.position, id)),
            // What became of the queue, behind all of them.
            Change::Queues(_) => None,
            other => panic!("{other:?}"),
        }));
    }
    assert_eq!(places.iter().map(|(_, id)| *id).collect::<Vec<_>>(), jobs, "each once, in order");
    for behind in [0, 255, 256, 511, 998] {
        let mut again = engine.watch(places[behind].0).expect("the place is kept");
        let (events, _) = guarded("changes", again.next()).await.expect("they are kept");
        assert_eq!(events[0].position, places[behind + 1].0);
    }
    let future = WatchPosition::after(LogIndex(engine.view().log_index().0 + 1_000));
    assert_eq!(code(engine.watch(future)), Some(RefusalCode::LogIndexNotReached));
}

#[tokio::test]
async fn a_read_waits_for_its_index_and_not_for_ever() {
    let engine = leader().await;
    let next = engine.view().log_index().next();
    let waiting = engine.wait_applied(next, GUARD);
    let (view, _session) = tokio::join!(waiting, open(&engine, opening("h1", 1)));
    assert!(view.expect("it came").log_index() >= next);
    let never = engine.wait_applied(LogIndex(u64::MAX), Duration::from_millis(50)).await;
    let refusal = never.expect_err("that far nobody is");
    assert_eq!(refusal.code, RefusalCode::LogIndexNotReached);
    assert!(refusal.metadata.iter().any(|(key, _)| *key == "applied_log_index"));
}

#[tokio::test]
async fn a_session_lives_by_its_heartbeats_and_dies_without() {
    let engine = leader().await;
    let mut session = open(&engine, opening("h1", 1)).await;
    let node = session.node;
    for sequence in 1..=15 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        say(&session, Inbound::Heartbeat { sequence }).await;
        told(&mut session, "an acknowledgement", |message| match message {
            Outbound::HeartbeatAck { sequence: acked } => (acked == sequence).then_some(()),
            _ => None,
        })
        .await;
    }
    assert_eq!(engine.view().node(node).map(|n| n.status), Some(NodeStatus::Up), "longer than one lease");
    let lost = |view: &State| view.node(node).is_some_and(|n| n.status == NodeStatus::Lost);
    until(&engine, "the session runs out", lost).await;
    // A heartbeat that comes too late is not acknowledged: the session ends.
    let _ = session.inbound().send(Inbound::Heartbeat { sequence: 99 }).await;
    guarded("the session ends", async {
        while let Some(message) = session.next().await {
            assert!(!matches!(message, Outbound::HeartbeatAck { sequence: 99 }));
        }
    })
    .await;
    let again = open(&engine, opening("h1", 1)).await;
    assert_eq!((again.node, again.incarnation), (node, session.incarnation + 1));
}

#[tokio::test]
async fn a_second_holder_is_refused_while_the_lease_stands() {
    let engine = leader().await;
    let first = open(&engine, opening("h1", 1)).await;
    let refused = guarded("the second holder", engine.open_session(opening("h1", 2))).await;
    let refusal = refused.err().expect("the lease stands");
    assert_eq!(refusal.code, RefusalCode::NodeHeldByAnother);
    let hint = refusal.metadata.iter().find(|(key, _)| *key == "retry_after_ms").expect("a hint");
    assert!((1..=900).contains(&hint.1.parse::<u64>().expect("a number")), "{hint:?}");
    let node = first.node;
    drop(first);
    let lost = |view: &State| view.node(node).is_some_and(|n| n.status == NodeStatus::Lost);
    until(&engine, "the session runs out", lost).await;
    assert_eq!(open(&engine, opening("h1", 2)).await.incarnation, 2);
}

#[tokio::test]
async fn a_registration_that_was_given_up_runs_out_like_any_session() {
    let engine = leader().await;
    // The agent goes away between the decision and the answer.
    let command = Command::Register { spec: host("h1"), holder: HolderId(1), other_session_is_over: false };
    let registered = guarded("a registration", engine.execute_for_node(command)).await;
    let Ok(Answer::Registered { node, .. }) = registered else { panic!("{registered:?}") };
    let lost = |view: &State| view.node(node).is_some_and(|n| n.status == NodeStatus::Lost);
    until(&engine, "a node that nobody serves is lost", lost).await;
}

#[tokio::test]
async fn the_same_agent_takes_its_session_over() {
    let engine = leader().await;
    let mut first = open(&engine, opening("h1", 1)).await;
    let second = open(&engine, opening("h1", 1)).await;
    assert_eq!(second.incarnation, first.incarnation, "nothing was given up");
    guarded("the first ends", first.ended()).await;
    guarded("nothing more comes", async { while first.next().await.is_some() {} }).await;
    assert!(engine.inner.sessions.outbound(second.node).is_some(), "the second is not taken down with it");
}

#[tokio::test]
async fn a_gang_is_started_confirmed_and_reported() {
    let engine = leader().await;
    let mut session = open(&engine, opening("h1", 1)).await;
    let id = submitted(&engine, 1, 2).await;
    let token = told(&mut session, "a start order", |message| match message {
        Outbound::Order(Order::Start(start)) => Some(start.placement.token),
        _ => None,
    })
    .await;
    let stale = FencingToken { log_index: LogIndex(token.log_index.0 - 1), ..token };
    for (asked, expected) in [(token, true), (stale, false)] {
        say(&session, Inbound::ConfirmStart { job: id, token: asked }).await;
        let current = told(&mut session, "a confirmation", |message| match message {
            Outbound::StartConfirmed { token, current, .. } => (token == asked).then_some(current),
            _ => None,
        })
        .await;
        assert_eq!(current, expected);
    }
    let workers = vec![running(id, token, 0), running(id, token, 1)];
    say(&session, Inbound::Report { sequence: 1, workers }).await;
    told(&mut session, "the report is taken", |m| matches!(m, Outbound::ReportAck { .. }).then_some(()))
        .await;
    // The acknowledgement came after the records: they can be read now.
    assert_eq!(engine.view().job(id).map(|row| row.phase.clone()), Some(Phase::Running));
    assert!(outstanding(&engine.view(), session.node).is_empty(), "nothing is left to start");

    // A step is not answered; a committed checkpoint is, once it is in the log, and never for another token.
    say(&session, Inbound::Step { job: id, token, rank: 1, number: 1, duration_ms: 5 }).await;
    for (sequence, asked, expected) in [(1, token, true), (2, stale, false)] {
        say(&session, Inbound::CheckpointCommitted { sequence, job: id, token: asked }).await;
        let taken = told(&mut session, "an answer to the note", |message| match message {
            Outbound::NoteAck { sequence: answered, refused } => {
                (answered == sequence).then_some(refused.is_none())
            }
            _ => None,
        })
        .await;
        assert_eq!(taken, expected);
    }
    assert!(engine.view().job(id).is_some_and(|row| row.checkpointed_at.is_some()));

    let cancel = Command::Cancel { request: RequestId(2), job: id };
    guarded("a cancel", engine.execute(cancel)).await.expect("it is taken");
    let stop = told(&mut session, "a stop order", |message| match message {
        Outbound::Order(Order::Stop(stop)) => Some(stop),
        _ => None,
    })
    .await;
    assert_eq!((stop.job, stop.token), (id, token));
    // "Nothing of it is here, and none will start" ends every rank of the node.
    let none_here = WorkerReport { job: id, token, rank: None, exit: Some(ExitStatus::Vanished) };
    say(&session, Inbound::Report { sequence: 2, workers: vec![none_here] }).await;
    let over = |view: &State| view.job(id).is_some_and(|row| matches!(row.phase, Phase::Finished(_)));
    until(&engine, "the cancelled job is over", over).await;
}

#[tokio::test]
async fn what_an_agent_has_is_squared_with_the_state_when_it_opens() {
    let engine = leader().await;
    let session = open(&engine, opening("h1", 1)).await;
    let id = submitted(&engine, 1, 2).await;
    let placed = |view: &State| view.job(id).is_some_and(|row| row.phase == Phase::Starting);
    let token = token_of(&*until(&engine, "it is placed", placed).await, id);
    let workers = vec![running(id, token, 0), running(id, token, 1)];
    say(&session, Inbound::Report { sequence: 1, workers }).await;
    let runs = |view: &State| view.job(id).is_some_and(|row| row.phase == Phase::Running);
    until(&engine, "it runs", runs).await;
    // The agent comes back with rank 0 and with something that nobody knows; rank 1 is gone.
    let unknown = JobId(id.0 + 1);
    let workers = vec![running(id, token, 0), running(unknown, token, 0)];
    let mut again = open(&engine, Opening { workers, ..opening("h1", 1) }).await;
    let stop = told(&mut again, "the stop of what is unknown", |message| match message {
        Outbound::Order(Order::Stop(stop)) => Some(stop),
        _ => None,
    })
    .await;
    assert_eq!((stop.job, stop.grace_ms), (unknown, 0));
    let vanished = |view: &State| {
        let ranks = view.job(id).and_then(|row| row.placement.as_ref()).map(|p| p.ranks.clone());
        ranks.is_some_and(|ranks| ranks[1] == RankState::Exited(ExitStatus::Vanished))
    };
    until(&engine, "rank 1 is known to be gone", vanished).await;
}

#[tokio::test]
async fn workers_of_an_earlier_incarnation_are_stopped_even_while_their_peers_go_on() {
    let engine = leader().await;
    let keep_alive = |engine: &Engine, text: &str, holder| {
        let (engine, opening) = (engine.clone(), opening(text, holder));
        tokio::spawn(async move {
            let mut session = open(&engine, opening).await;
            let inbound = session.inbound();
            let mut sequence = 0;
            loop {
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(100)) => {
                        sequence += 1;
                        inbound.send(Inbound::Heartbeat { sequence }).await.expect("it stands");
                    }
                    message = session.next() => drop(message.expect("it stands")),
                }
            }
        })
    };
    let peer = keep_alive(&engine, "h1", 1);
    let other = keep_alive(&engine, "h2", 2);
    until(&engine, "both are up", |view| view.nodes_up() == 2).await;
    let id = submitted(&engine, 1, 16).await;
    let placed = |view: &State| view.job(id).is_some_and(|row| row.phase == Phase::Starting);
    let view = until(&engine, "it is placed on both", placed).await;
    let token = token_of(&view, id);
    let node = view.node_named(&name("h2")).expect("it is known");
    other.abort();
    let lost = |view: &State| view.node(node).is_some_and(|n| n.status == NodeStatus::Lost);
    let view = until(&engine, "one of them is lost", lost).await;
    assert!(view.job(id).and_then(|row| row.placement.as_ref()).is_some_and(|p| p.live > 0));
    // Its agent is back, and a worker of the lost incarnation with it.
    let workers = vec![running(id, token, 15)];
    let mut again = open(&engine, Opening { workers, ..opening("h2", 2) }).await;
    let stop = told(&mut again, "a stop", |message| match message {
        Outbound::Order(Order::Stop(stop)) => Some(stop),
        _ => None,
    })
    .await;
    assert_eq!((stop.job, stop.token), (id, token));
    peer.abort();
}

#[tokio::test]
async fn a_session_whose_agent_takes_nothing_still_ends() {
    let engine = leader().await;
    let session = open(&engine, opening("h1", 1)).await;
    // Far more answers than its queue holds, and nobody takes one.
    for sequence in 0..2_000 {
        let inbound = session.inbound();
        let sent = inbound.send(Inbound::Heartbeat { sequence });
        if tokio::time::timeout(Duration::from_millis(200), sent).await.is_err() {
            break;
        }
    }
    engine.stop();
    guarded("the session ends", session.ended()).await;
    guarded("its task is over", session.inbound().closed()).await;
}

#[tokio::test]
async fn full_lanes_refuse_with_a_hint_and_nodes_have_their_own() {
    let engine = leader().await;
    let _session = open(&engine, opening("h1", 1)).await;
    // One task at a time runs here: the loop takes nothing while these are put in line.
    let mut waiting: Vec<_> = (0..65).map(|n| Box::pin(engine.execute(submit(100 + n, 1, 1)))).collect();
    for call in &mut waiting[..64] {
        assert!(futures::poll!(call.as_mut()).is_pending());
    }
    let std::task::Poll::Ready(Err(refused)) = futures::poll!(waiting[64].as_mut()) else {
        panic!("the lane is full")
    };
    assert_eq!(refused.code, RefusalCode::Overloaded);
    assert!(refused.metadata.iter().any(|(key, value)| *key == "retry_after_ms" && value == "100"));
    let mut registration = Box::pin(engine.open_session(opening("h2", 2)));
    assert!(futures::poll!(registration.as_mut()).is_pending(), "nodes are not refused for that");
    waiting.pop();
    let answers = guarded("what waited is answered", futures::future::join_all(waiting)).await;
    assert!(answers.iter().all(Result::is_ok));
    guarded("the node's session", registration).await.expect("it is opened");
}

/// The nodes' lane is bounded by size as well, and its room goes round by arrival.
#[tokio::test]
async fn what_nodes_say_is_bounded_by_its_size_and_waits_for_its_turn() {
    let engine = leader().await;
    let session = open(&engine, opening("h1", 1)).await;
    let large = || {
        let exit = muster_types::ExitStatus::LaunchFailed("x".repeat(40 << 20));
        Command::Report {
            node: session.node,
            incarnation: session.incarnation,
            job: JobId::derive(LogIndex(1), 0),
            token: FencingToken::default(),
            updates: vec![(0, muster_journal::RankUpdate::Exited(exit))],
        }
    };
    let mut first = Box::pin(engine.execute_for_node(large()));
    let mut second = Box::pin(engine.execute_for_node(large()));
    let mut third = Box::pin(engine.open_session(opening("h2", 2)));
    assert!(futures::poll!(first.as_mut()).is_pending());
    assert!(futures::poll!(second.as_mut()).is_pending() && futures::poll!(third.as_mut()).is_pending());
    let kib = engine.inner.node_room.available_permits();
    assert!(kib < 24 << 10, "the first alone is in line: {kib} KiB are left");
    // All of them are answered, one behind the other; nobody knows the job.
    drop(guarded("the first", first).await);
    drop(guarded("the second", second).await);
    guarded("the small one behind them", third).await.expect("it is opened");
}

#[tokio::test]
async fn waiting_submissions_are_bounded_by_their_size_too() {
    let engine = leader().await;
    let large = |request: u128| {
        let mut spec = muster_types::JobDraft::clone(&job("large", 1));
        spec.groups[0].command = vec!["x".repeat(4_000); 8];
        let spec = spec.check().expect("it is a job");
        Command::Submit {
            request: RequestId(request),
            jobs: muster_types::Submission::plain(vec![spec; 1_000]),
        }
    };
    let mut first = Box::pin(engine.execute(large(1)));
    let mut second = Box::pin(engine.execute(large(2)));
    let mut third = Box::pin(engine.execute(large(3)));
    assert!(futures::poll!(first.as_mut()).is_pending() && futures::poll!(second.as_mut()).is_pending());
    let std::task::Poll::Ready(refused) = futures::poll!(third.as_mut()) else { panic!("96 MB wait") };
    assert_eq!(code(refused), Some(RefusalCode::Overloaded));
    // Too large for a record each; the room they took is free again.
    assert_eq!(code(guarded("the first", first).await), Some(RefusalCode::InvalidField));
    assert_eq!(code(guarded("the second", second).await), Some(RefusalCode::InvalidField));
    assert_eq!(code(guarded("again", engine.execute(large(4))).await), Some(RefusalCode::InvalidField));
}

#[tokio::test]
async fn the_sessions_of_a_whole_fleet_end_in_rounds_that_fit() {
    let engine = leader().await;
    let registrations = (0..3_000u32).map(|n| {
        let engine = engine.clone();
        async move {
            let command = Command::Register {
                spec: host(&format!("h{n}")),
                holder: HolderId(u128::from(n)),
                other_session_is_over: false,
            };
            engine.execute_for_node(command).await
        }
    });
    let answers = guarded("the fleet registers", futures::future::join_all(registrations)).await;
    assert!(answers.iter().all(Result::is_ok));
    // All at once: 3,000 times the most bytes of a loss are more than one round takes.
    until(&engine, "all are lost", |view| view.nodes_up() == 0).await;
    assert!(engine.failed().borrow().is_none());
}

#[tokio::test]
async fn output_is_waited_for_and_given_up_with_a_reason() {
    let engine = leader().await;
    let session = open(&engine, opening("h1", 1)).await;
    let id = submitted(&engine, 1, 1).await;
    let placed = |view: &State| view.job(id).is_some_and(|row| row.placement.is_some());
    until(&engine, "it is placed", placed).await;
    let read = |engine: &Engine| {
        let request = LogRequest {
            read_id: 0,
            job: id,
            token: FencingToken::default(),
            rank: 0,
            follow: false,
            stream: String::new(),
            tail_bytes: 0,
            from_position: 0,
        };
        let engine = engine.clone();
        tokio::spawn(async move { engine.read_logs(id, 0, Attempt::Current, request).await })
    };
    drop(session);
    let gone = |engine: &Engine| engine.inner.sessions.outbound(NodeId(1)).is_none();
    guarded("the session is gone", async {
        while !gone(&engine) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Only the placements that are known have output.
    for (attempt, text) in [
        (Attempt::Previous, "no attempt before"),
        (Attempt::Token(FencingToken { generation: 1, log_index: LogIndex(u64::MAX) }), "newer attempts"),
    ] {
        let request = LogRequest {
            read_id: 0,
            job: id,
            token: FencingToken::default(),
            rank: 0,
            follow: false,
            stream: String::new(),
            tail_bytes: 0,
            from_position: 0,
        };
        let refusal = engine.read_logs(id, 0, attempt, request).await.expect_err("there is none");
        assert_eq!(refusal.code, RefusalCode::LogsUnavailable);
        assert!(refusal.message.contains(text), "{refusal}");
    }
    // The node is up and its session is not back: the read waits, and goes on with the next one.
    let waiting = read(&engine);
    let mut session = open(&engine, opening("h1", 1)).await;
    let read_id = told(&mut session, "the order to send output", |message| match message {
        Outbound::ReadLogs(request) => Some(request.read_id),
        _ => None,
    })
    .await;
    let (token, mut chunks) = guarded("the read", waiting).await.expect("it ran").expect("it is on its way");
    let placed = engine.view().job(id).and_then(|row| row.placement.as_ref().map(|p| p.token));
    assert_eq!(Some(token), placed);
    // The agent goes away before it has sent anything.
    drop(session);
    let refusal = guarded("the read ends", chunks.recv()).await.expect("with a word").expect_err("no output");
    assert_eq!(refusal.code, RefusalCode::LogsUnavailable);
    assert!(engine.log_reader(read_id).is_none(), "nobody waits any more");
    until(&engine, "the node is lost", |view| view.nodes_up() == 0).await;
    assert_eq!(
        code(guarded("a lost node", read(&engine)).await.expect("it ran")),
        Some(RefusalCode::LogsUnavailable)
    );
}

#[tokio::test]
async fn a_replica_that_does_not_lead_refuses_what_only_a_leader_can() {
    let engine = engine_without_cluster().await;
    assert_eq!(
        code(guarded("a submission", engine.execute(submit(1, 1, 1))).await),
        Some(RefusalCode::NotLeader)
    );
    let session = guarded("a session", engine.open_session(opening("h1", 1))).await;
    assert_eq!(code(session), Some(RefusalCode::NotLeader));
    assert_eq!(code(guarded("a read", engine.linearizable_view()).await), Some(RefusalCode::NotLeader));
    engine.stop();
    guarded("it stops", engine.stopping()).await;
    let late = guarded("too late", engine.execute(submit(2, 1, 1))).await;
    assert!(matches!(code(late), Some(RefusalCode::OutcomeUnknown | RefusalCode::NotLeader)));
}

async fn engine_without_cluster() -> Engine {
    let (application, view) = replicated(FORMAT_MAX);
    let consensus = consensus(application).await;
    Engine::start(config(8), ReplicaInfo { replica: REPLICA, region: name("eu") }, view, consensus)
}

#[tokio::test]
async fn a_decision_loop_that_breaks_off_ends_the_sessions_and_is_noticed() {
    let engine = leader().await;
    let session = open(&engine, opening("h1", 1)).await;
    let broken = async { panic!("the guard refused the leader's own record at {}", 7) };
    guarded("it is noticed", engine.clone().supervise(broken)).await;
    let detail = engine.failed().borrow().clone();
    assert_eq!(detail.as_deref(), Some("the guard refused the leader's own record at 7"));
    guarded("no agent is kept alive", session.ended()).await;
    assert!(engine.is_stopping());
}

#[test]
fn rounds_of_a_lost_leadership_answer_nobody_and_publish_nothing() {
    use muster_consensus::Application;
    let (mut application, view) = replicated(FORMAT_MAX);
    let entry = |raft_index, round: &Round| CommittedEntry {
        raft_index,
        term: round.term,
        leader: round.replica,
        payload: Some(encode_round(round).into()),
    };
    let round = |term, first_index, decisions| Round {
        format: FORMAT_MIN,
        term,
        replica: REPLICA,
        first_index: LogIndex(first_index),
        basis_index: LogIndex(first_index - 1),
        log_time: LogTime(1),
        decisions,
    };
    let created =
        Decision::ClusterCreated { cluster: CLUSTER, generation: 1, parameters: Parameters::DEFAULT };
    application.apply(&[
        entry(1, &round(2, 1, vec![Decision::LeaderStarted, created])),
        entry(2, &round(3, 3, vec![Decision::LeaderStarted])),
    ]);
    let shared = &view.shared;
    let mut follower = shared.hub.subscribe(WatchPosition::after(LogIndex(3))).expect("it is kept");
    let (reply, mut told) = tokio::sync::oneshot::channel();
    let new = muster_state::Leadership { term: 3, replica: REPLICA };
    shared.waiters.add(LogIndex(4), new, reply, Ok(Answer::Done { at: LogIndex(4) }));
    // Appended late, of the leadership before: takes no position.
    application.apply(&[entry(3, &round(2, 3, vec![Decision::LeaderStarted]))]);
    assert_eq!(shared.view.load().log_index(), LogIndex(3));
    assert!(told.try_recv().is_err(), "not yet");
    application.apply(&[entry(4, &round(3, 4, vec![Decision::LeaderStarted]))]);
    // A leadership begins once: the guard refused that one, and no position was taken either.
    assert_eq!(shared.view.load().log_index(), LogIndex(3));
    let mark = |raft_index| muster_consensus::StateMark { raft_index, digest: shared.view.load().digest() };
    assert_eq!(view.marks().last(), Some(mark(4)));
    assert_eq!(view.marks().differs(muster_consensus::StateMark { digest: 1, ..mark(4) }), Some(true));
    let digest = shared.view.load().rows_digest();
    application.apply(&[entry(5, &round(3, 4, vec![Decision::DigestRecorded { digest }]))]);
    assert!(told.try_recv().is_ok_and(|answer| answer.is_ok()), "its own record is applied");
    let place = futures::executor::block_on(follower.next()).expect("it is kept").1;
    assert_eq!(place, WatchPosition::after(LogIndex(4)));
}

/// A node that is gone is declared lost though every leader ends before a whole lease has passed under it.
#[test]
fn a_node_that_no_leader_hears_is_over_though_leaders_change_faster_than_a_lease() {
    use muster_consensus::Application;
    use muster_decider::{Speculation, handle};
    use std::cell::Cell;
    thread_local!(static SECONDS: Cell<u64> = const { Cell::new(0) });
    fn clock() -> std::time::Instant {
        static BASE: std::sync::LazyLock<std::time::Instant> =
            std::sync::LazyLock::new(std::time::Instant::now);
        *BASE + Duration::from_secs(SECONDS.get())
    }
    let (application, view) = replicated(FORMAT_MAX);
    let mut application = application.with_clock(clock);
    let mut raft_index = 0;
    let leases = crate::liveness::Liveness::default();
    let parameters = Parameters { lease_ttl_ms: 10_000, lease_margin_ms: 3_000, ..Parameters::DEFAULT };
    let founding = Founding { new_cluster_format: Some(FORMAT_MAX), ..config(1).founding };
    // One leadership: what it decides is applied, and a leader of its term counts leases from there.
    let mut lead = |term: u64, second: u64, agents: &[&str]| -> Vec<String> {
        SECONDS.set(second);
        let mine = muster_state::Leadership { term, replica: REPLICA };
        let state = State::clone(&view.shared.view.load());
        let mut speculation = Speculation::begin(state, mine, LogTime(second * 1_000), founding);
        let begun = speculation.take_round();
        for agent in agents {
            let command =
                Command::Register { spec: host(agent), holder: HolderId(7), other_session_is_over: false };
            handle(&mut speculation, &command).expect("it is registered");
        }
        let entries: Vec<CommittedEntry> = begun
            .into_iter()
            .chain(speculation.take_round())
            .map(|round| {
                raft_index += 1;
                let payload = Some(encode_round(&round).into());
                CommittedEntry { raft_index, term, leader: REPLICA, payload }
            })
            .collect();
        let (began, opened) = entries.split_at(1);
        application.apply(began);
        let (state, contacts) = (view.shared.view.load(), view.shared.contacts());
        let now = tokio::time::Instant::from_std(clock());
        let heard = |node| contacts.last_before(mine, node).map_or(now, tokio::time::Instant::from_std);
        let up = state.nodes().iter().map(|(id, row)| (*id, row.incarnation, heard(*id)));
        leases.begin(mine, &parameters, up);
        drop(contacts);
        application.apply(opened);
        let over = std::iter::from_fn(|| leases.next_expired(now));
        over.map(|(node, _)| state.node(node).expect("it is known").spec.name.to_string()).collect()
    };
    assert!(lead(2, 0, &[]).is_empty());
    assert!(lead(3, 3, &["dead", "alive"]).is_empty());
    // The dead one was last heard before the fourth term began, at 6 s.
    for (term, second) in (4..).zip([6, 9, 12, 15, 18]) {
        assert!(lead(term, second, &["alive"]).is_empty(), "its lease may stand, at {second} s");
    }
    assert_eq!(lead(9, 19, &["alive"]), ["dead"]);
}

#[test]
fn a_state_that_differs_and_a_record_that_cannot_be_read_stop_the_replica() {
    use muster_consensus::Application;
    let apply = |payload: Vec<u8>| {
        let (mut application, _view) = replicated(FORMAT_MAX);
        let entry = CommittedEntry { raft_index: 1, term: 1, leader: REPLICA, payload: Some(payload.into()) };
        let run = std::panic::AssertUnwindSafe(|| application.apply(&[entry]));
        let panic = std::panic::catch_unwind(run).expect_err("it must not go on");
        muster_consensus::Halt::detail_of(panic.as_ref())
    };
    let created =
        Decision::ClusterCreated { cluster: CLUSTER, generation: 1, parameters: Parameters::DEFAULT };
    let decisions = vec![Decision::LeaderStarted, created, Decision::DigestRecorded { digest: 7 }];
    let round = Round {
        format: FORMAT_MIN,
        term: 1,
        replica: REPLICA,
        first_index: LogIndex(1),
        basis_index: LogIndex(0),
        log_time: LogTime(1),
        decisions,
    };
    let said = apply(encode_round(&round));
    assert!(said.contains("diverged at log index 3") && said.contains("0000000000000007"), "{said}");
    let said = apply(b"not a round".to_vec());
    assert!(said.contains("raft index 1 cannot be applied"), "{said}");
}

/// Formats are raised by a record that older binaries can read; what comes after it they must not touch.
#[test]
fn a_replica_that_is_held_back_stops_before_the_first_round_it_does_not_know() {
    use muster_consensus::Application;
    let (mut application, view) = replicated(1);
    let entry = |raft_index, round: &Round| CommittedEntry {
        raft_index,
        term: 1,
        leader: REPLICA,
        payload: Some(encode_round(round).into()),
    };
    let created =
        Decision::ClusterCreated { cluster: CLUSTER, generation: 1, parameters: Parameters::DEFAULT };
    let first = Round {
        format: FORMAT_MIN,
        term: 1,
        replica: REPLICA,
        first_index: LogIndex(1),
        basis_index: LogIndex(0),
        log_time: LogTime(1),
        decisions: vec![Decision::LeaderStarted, created, Decision::FormatRaised { format: 2 }],
    };
    application.apply(&[entry(1, &first)]);
    let digest = view.shared.view.load().rows_digest();
    let decisions = vec![Decision::DigestRecorded { digest }];
    let next = Round { format: 2, first_index: LogIndex(4), basis_index: LogIndex(3), decisions, ..first };
    let run = std::panic::AssertUnwindSafe(|| application.apply(&[entry(2, &next)]));
    let panic = std::panic::catch_unwind(run).expect_err("it must not go on");
    let said = muster_consensus::Halt::detail_of(panic.as_ref());
    assert!(said.contains("format 2 is needed") && said.contains("upgrade this replica"), "{said}");
    assert_eq!(view.shared.view.load().log_index(), LogIndex(3), "everything before it is applied");
}

/// A replica whose folder is of a later generation than its log: nothing is decided before every lease of the
/// earlier one has run out, and then everything of it is over.
#[tokio::test]
async fn a_recovered_cluster_waits_for_old_leases_and_begins_its_generation() {
    use muster_consensus::Application;
    let (mut application, view) = replicated(FORMAT_MAX);
    let created = Decision::ClusterCreated { cluster: CLUSTER, generation: 1, parameters: parameters() };
    let registered = Decision::NodeRegistered { spec: host("n1"), holder: HolderId(1) };
    let backup = Round {
        format: FORMAT_MIN,
        // Of a log that is gone; the first leadership here is newer.
        term: 0,
        replica: REPLICA,
        first_index: LogIndex(1),
        basis_index: LogIndex(0),
        log_time: LogTime(1),
        decisions: vec![Decision::LeaderStarted, created, registered],
    };
    let payload = Some(encode_round(&backup).into());
    application.apply(&[CommittedEntry { raft_index: 0, term: 0, leader: REPLICA, payload }]);
    let began = Instant::now();
    let consensus = consensus(application).await;
    let mut config = config(64);
    config.founding.generation = 2;
    let info = ReplicaInfo { replica: REPLICA, region: name("eu") };
    let engine = Engine::start(config, info, view, consensus.clone());
    form(&consensus).await;
    until(&engine, "a leadership begins", |view| view.log_index() >= LogIndex(5)).await;
    let refused = guarded("a session", engine.open_session(opening("n1", 1))).await;
    assert_eq!(refused.err().map(|refusal| refusal.code), Some(RefusalCode::ClusterRecovering));
    let view = until(&engine, "the generation begins", |view| view.generation() == 2).await;
    assert!(began.elapsed() >= Duration::from_millis(900), "one lease and its margin");
    assert_eq!(view.nodes_up(), 0);
    let session = open(&engine, opening("n1", 1)).await;
    assert_eq!(session.incarnation, 2, "registered anew");
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
            // Whoever speaks of what it did not lead is not heard.
            links.push(link(0, 1, 1));
        }
        say(session, Inbound::Probe(ProbeReport::Measured { probe, links, ring: None, load_milli: 0 })).await;
    }
}

#[tokio::test]
async fn an_older_agent_is_sent_nothing_that_it_has_not_shown_to_take() {
    let engine = leader().await;
    let older = |name, holder| Opening { takes: Features::NONE, ..opening(name, holder) };
    let mut sessions = [open(&engine, older("h1", 1)).await, open(&engine, older("h2", 2)).await];
    let beats = sessions.each_ref().map(beating);
    let nodes = [sessions[0].node, sessions[1].node];
    let begun = std::time::Instant::now();
    let refused = guarded("a refusal", engine.probe(&nodes)).await.expect_err("neither says that it can");
    assert!(refused.to_string().contains("the agent of h1 is of a release that cannot probe"), "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(4), "it was asked all the same");

    let raise = Command::RaiseFormat { format: FORMAT_MAX };
    guarded("the newest format", engine.execute(raise)).await.expect("it is raised");
    // A repair waits for an agent that can be told of it.
    let order = muster_decider::RepairOrder::Begin {
        action: Some(HealthAction::ResetGpu),
        devices: DeviceSet(1),
        deadline_ms: None,
    };
    let command = Command::SetRepair { request: RequestId(9), node: nodes[0], order };
    guarded("a repair", engine.execute(command)).await.expect("it is taken");
    until(&engine, "the repair may begin", |view| {
        let phase = view.restriction(nodes[0]).and_then(|row| row.repair.as_ref()).map(|r| r.phase.clone());
        phase == Some(muster_types::health::RepairPhase::Working)
    })
    .await;
    for beat in 0..3 {
        let next = guarded("an acknowledgement", sessions[0].next()).await;
        assert!(matches!(next, Some(Outbound::HeartbeatAck { .. })), "{beat}: {next:?}");
    }
    // One that brings a report of its health is of the release that had all of it.
    for (session, sequence) in sessions.iter().zip(1..) {
        say(session, Inbound::Health { sequence, report: Box::default() }).await;
    }
    told(&mut sessions[0], "the repair", |m| matches!(m, Outbound::Repair(_)).then_some(())).await;
    told(&mut sessions[1], "the health ack", |m| matches!(m, Outbound::HealthAck { .. }).then_some(())).await;
    let (probing, ()) = tokio::join!(engine.probe(&nodes), probed(&mut sessions, 1 << 30));
    probing.expect("both take part");
    for beat in beats {
        beat.abort();
    }
}

#[tokio::test]
async fn a_stop_says_why() {
    let engine = leader().await;
    let raise = Command::RaiseFormat { format: FORMAT_MAX };
    guarded("the newest format", engine.execute(raise)).await.expect("it is raised");
    let mut session = open(&engine, opening("h1", 1)).await;
    let beat = beating(&session);
    let reason = |message| match message {
        Outbound::Order(Order::Stop(stop)) => Some(stop.reason),
        _ => None,
    };
    for (request, wanted) in [(1, StopReason::Cancelled), (2, StopReason::Drained)] {
        let id = submitted(&engine, request, 1).await;
        let placed = |view: &State| view.job(id).is_some_and(|row| row.phase == Phase::Starting);
        let token = token_of(&*until(&engine, "it is placed", placed).await, id);
        let command = match wanted {
            StopReason::Cancelled => Command::Cancel { request: RequestId(10), job: id },
            _ => {
                let order = muster_decider::DrainOrder::Begin { deadline_ms: Some(0) };
                Command::SetDrain { request: RequestId(11), node: session.node, order }
            }
        };
        guarded("a reason to stop", engine.execute(command)).await.expect("it is taken");
        assert_eq!(told(&mut session, "a stop", reason).await, Some(wanted));
        let none_here = WorkerReport { job: id, token, rank: None, exit: Some(ExitStatus::Vanished) };
        say(&session, Inbound::Report { sequence: request as u64, workers: vec![none_here] }).await;
        until(&engine, "it has stopped", |view| {
            view.job(id).is_some_and(|row| !matches!(row.phase, Phase::Stopping(_)))
        })
        .await;
    }
    beat.abort();
}

#[test]
fn a_round_of_the_leadership_in_force_that_begins_elsewhere_stops_the_replica() {
    let begin = |term: u64, replica: u64, first: u64, decisions: Vec<Decision>| {
        let (format, log_time) = (FORMAT_MIN, LogTime(1));
        let (first_index, basis_index) = (LogIndex(first), LogIndex(first - 1));
        let replica = ReplicaId(replica);
        let round = Round { format, term, replica, first_index, basis_index, log_time, decisions };
        let payload = Some(encode_round(&round).into());
        CommittedEntry { raft_index: 1, term, leader: replica, payload }
    };
    let created = || Decision::ClusterCreated { cluster: CLUSTER, generation: 1, parameters: parameters() };
    let founding = || begin(1, 1, 1, vec![Decision::LeaderStarted, created()]);
    let applies = |round: CommittedEntry| {
        let (mut replicated, view) = replicated(FORMAT_MAX);
        replicated.apply(&[founding()]);
        let applied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| replicated.apply(&[round])));
        applied
            .map(|()| view.state().log_index().0)
            .map_err(|panic| muster_consensus::Halt::detail_of(panic.as_ref()))
    };
    let refused = |round: CommittedEntry| {
        let why = applies(round).expect_err("the replica has to stop");
        assert!(why.contains("has diverged at log index 2") && why.contains("--rebuild"), "{why}");
    };
    let digest = || vec![Decision::HistoryPruned { requests_before: LogTime(0), jobs_before: LogTime(0) }];
    refused(begin(1, 1, 1, digest()));
    refused(begin(1, 1, 2, digest()));
    refused(begin(2, 2, 2, vec![Decision::LeaderStarted]));
    refused(begin(2, 2, 4, vec![Decision::LeaderStarted]));
    // Of leaderships that have ended, behind a proposal that was left out, and as it should be.
    assert_eq!(applies(begin(1, 0, 1, digest())), Ok(2));
    assert_eq!(applies(begin(1, 1, 4, digest())), Ok(2));
    assert_eq!(applies(begin(2, 2, 3, digest())), Ok(2));
    assert_eq!(applies(begin(1, 1, 3, digest())), Ok(3));
    assert_eq!(applies(begin(2, 2, 3, vec![Decision::LeaderStarted])), Ok(3));
}

/// A command that meets a broken invariant, for the tests below.
pub(crate) fn poison_command(command: &Command) {
    let Command::Submit { jobs, .. } = command else { return };
    assert!(jobs.iter().all(|job| job.spec.name.as_str() != "poison"), "an invariant that no job may break");
}

#[tokio::test]
async fn a_command_that_meets_a_broken_invariant_costs_itself_alone() {
    let engine = engine_with(EngineConfig { contain_faults: true, ..config(64) }).await;
    until(&engine, "the cluster is founded", |view| view.cluster().is_some()).await;
    let _session = open(&engine, opening("h1", 1)).await;
    let poison = || {
        let jobs = muster_types::Submission::plain([job("poison", 1)]);
        Command::Submit { request: RequestId(9), jobs }
    };
    // In one round with others, which are carried out all the same.
    let (before, poisoned, behind) = guarded("all three", async {
        tokio::join!(
            engine.execute(submit(1, 3, 1)),
            engine.execute(poison()),
            engine.execute(submit(2, 3, 1))
        )
    })
    .await;
    assert!(before.is_ok() && behind.is_ok(), "{before:?} {behind:?}");
    let refusal = poisoned.expect_err("it must not be carried out");
    assert_eq!(refusal.code, RefusalCode::Internal);
    let fingerprint = refusal.metadata.iter().find(|(name, _)| *name == "fingerprint").expect("it has one");
    assert!(engine.local_facts().decision_fault.is_some_and(|fault| fault.contains(&fingerprint.1)));
    // The client repeats it, and the leader goes on.
    assert_eq!(code(guarded("the same again", engine.execute(poison())).await), Some(RefusalCode::Internal));
    assert_eq!(engine.view().jobs().len(), 6);
    submitted(&engine, 3, 1).await;
    assert!(engine.is_leader() && engine.failed().borrow().is_none());
}
