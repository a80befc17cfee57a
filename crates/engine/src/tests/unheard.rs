//! Nodes by when they were heard of last, and what pairs of nodes measure of each other.

use muster_decider::Command;
use muster_state::{NodeStatus, Phase, State};
use muster_types::{ExitStatus, RefusalCode, RequestId};
use std::time::Duration;

use crate::services::probe::AGAIN_MAX;
use crate::tests::{
    beating, code, guarded, leader, measured, open, opening, parameters, probed, say, submitted, token_of,
    told, until,
};
use crate::{Inbound, Outbound, ProbeOrder, ProbeReport, Session, WorkerReport};

#[tokio::test]
async fn a_pair_that_is_slow_beside_others_is_measured_again_alone() {
    let engine = leader().await;
    let mut sessions = Vec::new();
    for (at, name) in (1..).zip(["h1", "h2", "h3"]) {
        sessions.push(open(&engine, opening(name, at)).await);
    }
    let beats: Vec<_> = sessions.iter().map(beating).collect();
    let nodes: Vec<_> = sessions.iter().map(|session| session.node).collect();
    for alone in [1 << 30, 1_000_000] {
        let play = async {
            measured(&mut sessions, |link| if link == (1, 2) { 1_000_000 } else { 1 << 30 }).await;
            // Nobody is blamed before it was slow each time.
            let again = if alone == 1 << 30 { 1 } else { AGAIN_MAX };
            for _ in 0..again {
                measured(&mut sessions[1..], |_| alone).await;
            }
        };
        let (probed, ()) = tokio::join!(guarded("a probe", engine.probe(&nodes)), play);
        let found = probed.expect("all take part").findings;
        let found: Vec<_> = found.into_iter().map(|f| (f.host, f.other, f.is_blamed)).collect();
        // Two hosts and no third one that is slow to either: nobody is blamed.
        let expected = if alone == 1 << 30 { vec![] } else { vec![(1, Some(2), false)] };
        assert_eq!(found, expected);
    }
    for beat in beats {
        beat.abort();
    }
}

#[tokio::test]
async fn a_gang_begins_where_somebody_was_heard_of_lately() {
    let engine = leader().await;
    let silence = Duration::from_millis(parameters().silence_ms());
    // A test that stands still for longer than a lease shows nothing, and is tried again.
    for attempt in 1..=10 {
        let quiet = open(&engine, opening(&format!("quiet-{attempt}"), 1)).await;
        let heard = open(&engine, opening(&format!("heard-{attempt}"), 2)).await;
        let beats = [beating(&quiet), beating(&heard)];
        let place_of = async |request: u128| {
            let id = submitted(&engine, request, 1).await;
            let placed = |view: &State| view.job(id).is_some_and(|row| row.placement.is_some());
            let view = until(&engine, "it is placed", placed).await;
            let node =
                view.job(id).and_then(|row| row.placement.as_ref()).expect("it is placed").slots[0].node;
            let is_up = view.node(quiet.node).is_some_and(|row| row.status == NodeStatus::Up);
            (node, is_up)
        };
        let (first, _) = place_of(2 * attempt).await;
        beats[0].abort();
        guarded("nobody is silent", async {
            while !engine.inner.liveness.silent(tokio::time::Instant::now(), silence, 8).contains(&quiet.node)
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        let (second, is_up) = place_of(2 * attempt + 1).await;
        beats[1].abort();
        if is_up && first == quiet.node {
            // Packed next to the first it would be where that is.
            return assert_eq!(second, heard.node);
        }
        let gone = |view: &State| view.nodes().iter().all(|(_, row)| row.status != NodeStatus::Up);
        until(&engine, "both are lost", gone).await;
    }
    panic!("no attempt came to anything");
}

#[tokio::test]
async fn a_job_that_only_a_lapsed_node_could_take_begins_when_that_is_heard_of() {
    let engine = leader().await;
    // A test that stands still for longer than a margin shows nothing, and is tried again.
    for attempt in 1..=10 {
        let quiet = open(&engine, opening(&format!("quiet-{attempt}"), 1)).await;
        guarded("the lease lapses", async {
            while !engine.inner.liveness.lapsed(tokio::time::Instant::now(), 8).contains(&quiet.node) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        // The round that took it has looked for a place for it as well.
        let id = submitted(&engine, attempt, 1).await;
        let waits = engine.view().job(id).is_some_and(|row| row.placement.is_none());
        let beat = beating(&quiet);
        let begun_or_lost = |view: &State| {
            let is_lost = view.node(quiet.node).is_none_or(|row| row.status != NodeStatus::Up);
            is_lost || view.job(id).is_some_and(|row| row.placement.is_some())
        };
        // Long before anything else has the queue looked at again.
        let begins = until(&engine, "it begins, or its node is lost", begun_or_lost);
        let view =
            tokio::time::timeout(Duration::from_secs(10), begins).await.expect("it is looked at again");
        beat.abort();
        if view.job(id).is_some_and(|row| row.placement.is_some()) {
            return assert!(waits, "it began on a node whose agent had no lease");
        }
        let cancel = Command::cancel(RequestId(100 + attempt), id);
        guarded("it is cancelled", engine.execute(cancel)).await.expect("it waits");
    }
    panic!("no attempt came to anything");
}

async fn verdict(session: &mut Session) -> Option<String> {
    told(session, "a verdict", |message| match message {
        Outbound::Probe(ProbeOrder::Verdict { fault, .. }) => Some(fault),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn a_gang_starts_behind_the_check_and_not_on_a_node_that_others_find_at_fault() {
    let engine = leader().await;
    let mut sessions = [open(&engine, opening("h1", 1)).await, open(&engine, opening("h2", 2)).await];
    let mut beats: Vec<_> = sessions.iter().map(beating).collect();
    let mut witness: Option<Session> = None;
    // Sound; slow with nobody to tell which of the two; slow with a witness.
    for (request, rate, with_witness) in [(1, 1 << 30, false), (2, 1_000_000, false), (3, 1_000_000, true)] {
        let id = submitted(&engine, request, 16).await;
        let placed = |view: &State| view.job(id).is_some_and(|row| row.phase == Phase::Starting);
        let token = token_of(&*until(&engine, "it is placed on both", placed).await, id);
        if with_witness {
            let third = open(&engine, opening("h3", 3)).await;
            beats.push(beating(&third));
            witness = Some(third);
        }
        let waiting = ProbeReport::Waiting { job: id, token };
        for session in &sessions {
            say(session, Inbound::Probe(waiting.clone())).await;
        }
        probed(&mut sessions, rate).await;
        for _ in 0..if rate < 1 << 30 { AGAIN_MAX } else { 0 } {
            probed(&mut sessions, rate).await;
        }
        let [mut first, mut second] = sessions;
        if let Some(third) = witness.take() {
            let mut all = [first, second, third];
            for _ in 0..=AGAIN_MAX {
                measured(&mut all, |(from, to)| if from == 1 || to == 1 { rate } else { 1 << 30 }).await;
            }
            [first, second] = {
                let [first, second, _third] = all;
                [first, second]
            };
            let fault = verdict(&mut second).await;
            assert!(fault.as_ref().is_some_and(|f| f.contains("h2: slow to 2 of 2 hosts")), "{fault:?}");
            // A node that comes back is told what was found out, and nothing is measured again.
            say(&second, Inbound::Probe(waiting)).await;
            assert!(verdict(&mut second).await.is_some());
        } else {
            assert_eq!((verdict(&mut first).await, verdict(&mut second).await), (None, None));
            say(&first, Inbound::Probe(waiting)).await;
            assert_eq!(verdict(&mut first).await, None);
        }
        sessions = [first, second];
        let cancel = Command::cancel(RequestId(10 + request), id);
        guarded("a cancel", engine.execute(cancel)).await.expect("it is taken");
        for (session, sequence) in sessions.iter().zip(1..) {
            let none_here = WorkerReport {
                job: id,
                token,
                rank: None,
                exit: Some(ExitStatus::Vanished),
                artifacts: None,
            };
            say(session, Inbound::Report { sequence, workers: vec![none_here] }).await;
        }
        let over = |view: &State| view.job(id).is_some_and(|row| matches!(row.phase, Phase::Finished(_)));
        until(&engine, "the cancelled job is over", over).await;
    }
    let nodes = [sessions[0].node, sessions[1].node];
    let (probing, played) = tokio::join!(engine.probe(&nodes), probed(&mut sessions, 1 << 30));
    assert_eq!((probing.expect("both take part").findings, played), (Vec::new(), ()));
    for beat in beats {
        beat.abort();
    }
    drop(sessions);
    let refused = guarded("a refusal", engine.probe(&nodes)).await;
    assert_eq!(code(refused), Some(RefusalCode::ProbeUnavailable));
}
