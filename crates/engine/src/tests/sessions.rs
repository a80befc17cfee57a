//! Sessions of nodes: leases, orders and reports.

use muster_decider::{Answer, Command};
use muster_state::{NodeStatus, Phase, RankState, State};
use muster_types::health::{HealthAction, HealthReport};
use muster_types::{
    AgentStart, Artifacts, DeviceSet, ExitStatus, Features, FencingToken, ForeignLoad, HolderId, JobId,
    LogIndex, NodeId, RefusalCode, RequestId, StartId, StopReason,
};
use std::time::{Duration, Instant};

use crate::apply::orders::outstanding;
use crate::sample::{host, name};
use crate::tests::{
    beating, code, guarded, leader, open, opening, probed, running, say, submitted, token_of, told, until,
};
use crate::{Attempt, Engine, Inbound, LogRequest, Opening, Order, Outbound, WorkerReport};

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

/// Two agents on copies of one state directory, whose holder is the same.
#[tokio::test]
async fn an_agent_of_an_older_copy_is_refused_while_the_lease_stands() {
    let engine = leader().await;
    let started = |id: u64, before: u64| {
        let start = AgentStart { id: StartId(id), before: (before > 0).then_some(StartId(before)) };
        Opening { start: Some(start), ..opening("h1", 1) }
    };
    let first = open(&engine, started(7, 0)).await;
    let twin = open(&engine, started(8, 7)).await;
    assert_eq!(
        (twin.node, twin.incarnation),
        (first.node, first.incarnation),
        "it was started after the first"
    );
    let refused = guarded("the first again", engine.open_session(started(7, 0))).await;
    let refusal = refused.err().expect("the other one is known");
    assert_eq!(refusal.code, RefusalCode::NodeHeldByAnother);
    assert!(refusal.message.contains("empty state directory"), "{refusal}");
    let node = twin.node;
    drop((first, twin));
    let lost = |view: &State| view.node(node).is_some_and(|n| n.status == NodeStatus::Lost);
    until(&engine, "the session runs out", lost).await;
    // What it says to run is of an earlier incarnation.
    assert_eq!(open(&engine, started(7, 0)).await.incarnation, 2);
    let refused = guarded("the other one again", engine.open_session(started(8, 7))).await;
    assert_eq!(code(refused), Some(RefusalCode::NodeHeldByAnother));
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
        say(&session, Inbound::CheckpointCommitted { sequence, job: id, token: asked, step: Some(7) }).await;
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

    let cancel = Command::cancel(RequestId(2), id);
    guarded("a cancel", engine.execute(cancel)).await.expect("it is taken");
    let stop = told(&mut session, "a stop order", |message| match message {
        Outbound::Order(Order::Stop(stop)) => Some(stop),
        _ => None,
    })
    .await;
    assert_eq!((stop.job, stop.token), (id, token));
    // "Nothing of it is here, and none will start" ends every rank of the node.
    let none_here =
        WorkerReport { job: id, token, rank: None, exit: Some(ExitStatus::Vanished), artifacts: None };
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
        (
            Attempt::Token(FencingToken { generation: 1, log_index: LogIndex(u64::MAX) }),
            "not one of the last two",
        ),
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
        assert_eq!(refusal.code, RefusalCode::OutputNotFound);
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

    // A repair waits for an agent that can be told of it.
    let order = muster_decider::RepairOrder::Begin {
        action: Some(HealthAction::ResetGpu),
        devices: DeviceSet(1),
        deadline_ms: None,
    };
    let command = Command::SetRepair {
        request: RequestId(9),
        by: muster_types::Requester::default(),
        node: nodes[0],
        order,
    };
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
async fn findings_that_come_and_go_are_paced_and_delay_no_report_of_workers() {
    let engine = leader().await;
    let mut session = open(&engine, opening("h1", 1)).await;
    let beat = beating(&session);
    let report = |boot| Box::new(HealthReport { boot, ..HealthReport::default() });
    // What is new is taken over at once.
    for (sequence, boot) in [(1, 1), (2, 2)] {
        say(&session, Inbound::Health { sequence, report: report(boot) }).await;
        told(&mut session, "the health ack", |message| match message {
            Outbound::HealthAck { sequence: acked } => (acked == sequence).then_some(()),
            _ => None,
        })
        .await;
    }
    // What was taken over a moment ago waits, and reports of workers behind it do not.
    say(&session, Inbound::Health { sequence: 3, report: report(1) }).await;
    say(&session, Inbound::Report { sequence: 1, workers: Vec::new() }).await;
    told(&mut session, "the report's ack", |message| match message {
        Outbound::HealthAck { sequence } => panic!("health report {sequence} was taken over again at once"),
        Outbound::ReportAck { sequence: 1 } => Some(()),
        _ => None,
    })
    .await;
    beat.abort();
}

#[tokio::test]
async fn a_stop_says_why() {
    let engine = leader().await;
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
            StopReason::Cancelled => Command::cancel(RequestId(10), id),
            _ => {
                let order = muster_decider::DrainOrder::Begin { deadline_ms: Some(0) };
                Command::SetDrain {
                    request: RequestId(11),
                    by: muster_types::Requester::default(),
                    node: session.node,
                    order,
                    reason: None,
                }
            }
        };
        guarded("a reason to stop", engine.execute(command)).await.expect("it is taken");
        assert_eq!(told(&mut session, "a stop", reason).await, Some(wanted));
        let none_here =
            WorkerReport { job: id, token, rank: None, exit: Some(ExitStatus::Vanished), artifacts: None };
        say(&session, Inbound::Report { sequence: request as u64, workers: vec![none_here] }).await;
        until(&engine, "it has stopped", |view| {
            view.job(id).is_some_and(|row| !matches!(row.phase, Phase::Stopping(_)))
        })
        .await;
    }
    beat.abort();
}

/// An agent that reports another load with each message must not fill the log.
#[tokio::test]
async fn what_others_hold_of_a_node_is_recorded_at_most_once_a_second() {
    let engine = leader().await;
    let session = open(&engine, opening("h1", 1)).await;
    let (node, beat) = (session.node, beating(&session));
    let begun = Instant::now();
    for cpu_milli in 1..=3 {
        say(&session, Inbound::ForeignLoad(ForeignLoad { cpu_milli, ..ForeignLoad::default() })).await;
        let recorded = |view: &State| view.foreign_load(node).cpu_milli == cpu_milli;
        until(&engine, "the newest load is recorded", recorded).await;
    }
    assert!(begun.elapsed() >= Duration::from_secs(2), "three records took {:?}", begun.elapsed());
    beat.abort();
}

#[tokio::test]
async fn images_of_a_host_are_known_as_long_as_its_session_stands() {
    let engine = leader().await;
    let mut session = open(&engine, opening("h1", 1)).await;
    let node = session.node;
    say(&session, Inbound::Images(vec!["localhost/a:1".to_owned()])).await;
    say(&session, Inbound::Heartbeat { sequence: 1 }).await;
    // Messages are taken in their order.
    told(&mut session, "an acknowledgement", |message| match message {
        Outbound::HeartbeatAck { .. } => Some(()),
        _ => None,
    })
    .await;
    let held = || engine.inner.sessions.images.held().holders("localhost/a:1").collect::<Vec<_>>();
    assert_eq!(held(), [node]);
    drop(session);
    let lost = |view: &State| view.node(node).is_some_and(|n| n.status == NodeStatus::Lost);
    until(&engine, "the session runs out", lost).await;
    assert_eq!(held(), []);
}

#[test]
fn files_are_kept_of_a_worker_that_has_ended() {
    let token = FencingToken { generation: 1, log_index: LogIndex(9) };
    let exit = Some(ExitStatus::Code(0));
    let artifacts = Some(Artifacts::default());
    let ended = WorkerReport { job: JobId(1), token, rank: Some(3), exit, artifacts };
    assert_eq!(ended.kept(), Some((3, Artifacts::default())));
    for other in [
        WorkerReport { exit: None, ..ended.clone() },
        WorkerReport { rank: None, ..ended.clone() },
        WorkerReport { artifacts: None, ..ended.clone() },
    ] {
        assert_eq!(other.kept(), None, "{other:?}");
    }
}
