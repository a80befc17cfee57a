//! An agent of this release with replicas of earlier ones, which end a session that brings what they do not know.

// A panic is a test's report, in its helpers too.
#![allow(clippy::unwrap_used)]

mod support;

use muster_types::Feature;
use muster_wire::agent;
use muster_wire::agent::session_response::Message as Response;
use muster_wire::v1::exit_status::Kind;
use std::io::{BufRead, BufReader, Write};
use support::*;

const JOB: &str = "job-9";

fn say(host: &Host, token: u64, said: &str) -> tokio::task::JoinHandle<String> {
    let path = host.state().join("agent.sock");
    let line = format!("{{\"job_id\":\"{JOB}\",\"fencing_token\":\"1.{token}\",\"rank\":0,{said}}}\n");
    tokio::task::spawn_blocking(move || {
        let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    })
}

const SAVED: &str = r#""checkpoint_committed":{"step":12}"#;
const STEP: &str = r#""step":{"number":3,"duration_ms":40}"#;

/// A worker that stays until it is told to stop.
async fn stays(leader: &mut Leader, host: &Host, token: u64) {
    let ready = host.file(&format!("ready-{token}"));
    nix::unistd::mkfifo(&ready, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("echo > {}; exec sleep 600", ready.display());
    let order = agent::StartOrder { preflight: true, ..start(JOB, token, &[&script], &[]) };
    leader.send(Response::Start(order));
    leader.running(token, 0).await;
    read_fifo(ready).await;
}

/// Everything that an agent may report unasked, to a leader that knows none of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_keeps_its_session_with_a_leader_of_the_first_release() {
    let mut leader = Leader::start(Manner::first_release()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    let register = leader.registered().await;
    assert_eq!(register.takes.len(), Feature::ALL.len(), "an older leader skips it");
    // The check that such a leader never asks for would never have a verdict.
    stays(&mut leader, &host, 7).await;
    assert_eq!(say(&host, 7, STEP).await.unwrap(), r#"{"ok":true}"#);
    // Such a leader asks nobody who is ready, so nobody waits for its answer.
    assert_eq!(say(&host, 7, r#""ready":{}"#).await.unwrap(), r#"{"ok":true}"#);
    let answer = say(&host, 7, SAVED).await.unwrap();
    assert!(answer.contains("takes no checkpoints"), "{answer}");
    leader.quiet_for(5, |h| matches!(h, AgentMessage::Unknown | AgentMessage::SessionEnded)).await;
    leader.send(stop(JOB, 7, 0));
    assert!(matches!(leader.exit_of(7, 0).await, Kind::Signal(_)));
}

/// A checkpoint that waits for its answer finds an older leader behind a newer one.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_newer_leader_is_answered_when_an_older_one_follows() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    let ready = host.file("ready");
    nix::unistd::mkfifo(&ready, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("echo > {}; exec sleep 600", ready.display());
    leader.send(Response::Start(start(JOB, 7, &[&script], &[])));
    leader.running(7, 0).await;
    read_fifo(ready).await;
    let waiting = say(&host, 7, SAVED);
    leader.note().await;
    leader.change(|manner| *manner = Manner::first_release());
    leader.drop_session();
    leader.registered().await;
    assert!(waiting.await.unwrap().contains("takes no checkpoints"));
    leader.quiet_for(3, |h| matches!(h, AgentMessage::Unknown)).await;
    // And back: a newer one is told everything again.
    leader.change(|manner| *manner = Manner::patient());
    leader.drop_session();
    leader.registered().await;
    leader.hear("a health report", |h| matches!(h, AgentMessage::Health(_)).then_some(())).await;
    let waiting = say(&host, 7, SAVED);
    let sequence = leader.note().await.sequence;
    leader.send(Response::NoteAck(agent::NoteAck { sequence, refused: String::new() }));
    assert_eq!(waiting.await.unwrap(), r#"{"ok":true}"#);
}

/// One that names what it takes is told nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_names_some_is_told_those_alone() {
    let takes = [Feature::Notes].into_iter().collect();
    let mut leader = Leader::start(Manner { takes, ..Manner::patient() }).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    stays(&mut leader, &host, 7).await;
    say(&host, 7, STEP).await.unwrap();
    leader.note().await;
    leader
        .quiet_for(5, |h| {
            matches!(h, AgentMessage::Unknown | AgentMessage::Health(_) | AgentMessage::SessionEnded)
        })
        .await;
}
