//! The prolog and the epilog of a host, with a real agent and real workers.

// A panic is a test's report, in its helpers too.
#![allow(clippy::unwrap_used)]

mod support;

use muster_wire::agent::session_response::Message as Response;
use muster_wire::v1::exit_status::Kind;
use nix::sys::stat::Mode;
use std::path::PathBuf;
use support::*;

const JOB: &str = "job-9";

fn command(script: &str) -> serde_json::Value {
    serde_json::json!({"command": ["/bin/sh", "-c", script]})
}

fn fifo(host: &Host, name: &str) -> PathBuf {
    let path = host.file(name);
    nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prolog_comes_before_the_worker_and_an_epilog_after_all_of_it() {
    let mut leader = Leader::start(Manner::patient()).await;
    let mut host = Host::new(&leader);
    let (order, done) = (host.file("order").display().to_string(), fifo(&host, "done"));
    host.prolog = command(&format!(
        "echo prolog $MUSTER_JOB_ID $MUSTER_TENANT $MUSTER_ATTEMPT $MUSTER_RANK $MUSTER_DEVICES \
         $(test -d $MUSTER_WORKER_DIRECTORY/work && echo made) >> {order}; echo a line for the log"
    ));
    host.epilog = command(&format!("echo epilog $MUSTER_RANK >> {order}; echo > {}", done.display()));
    let _agent = host.agent();
    leader.registered().await;
    // What it leaves behind is ended before the epilog begins.
    let script = format!("echo work >> {order}; sleep 600 & echo $! >> {}", host.file("pids").display());
    leader.send(Response::Start(start(JOB, 7, &[&script], &[&[1, 2]])));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(0));
    read_fifo(done).await;
    host.assert_gone("pids", 1);
    let text = std::fs::read_to_string(&order).unwrap();
    assert_eq!(text, format!("prolog {JOB} default 1 0 1,2 made\nwork\nepilog 0\n"));
    let log = std::fs::read_to_string(host.task(JOB, 7, 0).join("prolog.log")).unwrap();
    assert_eq!(log, "a line for the log\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_prolog_fails_is_at_fault_and_a_finding_says_so_when_it_goes_on() {
    let mut leader = Leader::start(Manner::patient()).await;
    let mut host = Host::new(&leader);
    let done = fifo(&host, "done");
    host.prolog = command("echo the fabric is down >&2; exit 3");
    host.epilog = command(&format!("echo > {}", done.display()));
    let _agent = host.agent();
    leader.registered().await;
    let script = format!("echo $$ >> {}", host.file("pids").display());
    for log_index in 7..10 {
        leader.send(Response::Start(start(JOB, log_index, &[&script], &[&[0]])));
        let Kind::NodeFault(why) = leader.exit_of(log_index, 0).await else { panic!("no fault of the node") };
        assert_eq!(why, "the prolog of its host failed: exit status: 3: the fabric is down");
        // What was begun is ended, and the next worker waits for that.
        read_fifo(done.clone()).await;
    }
    let told = leader.hear("a finding", |heard| match heard {
        AgentMessage::Health(report) => report.findings.into_iter().next(),
        _ => None,
    });
    let told = told.await;
    assert_eq!((told.finding.as_str(), told.device), ("host-command", None));
    assert!(told.detail.ends_with("exit status: 3: the fabric is down"), "{}", told.detail);
    host.assert_gone("pids", 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prolog_that_hangs_holds_up_neither_a_stop_nor_other_workers() {
    let mut leader = Leader::start(Manner::patient()).await;
    let mut host = Host::new(&leader);
    let (pids, begun) = (host.file("pids").display().to_string(), fifo(&host, "begun"));
    host.prolog = command(&format!(
        "test $MUSTER_RANK = 1 && exit; trap '' TERM; sleep 600 & echo $! >> {pids}; echo > {}; wait",
        begun.display()
    ));
    let _agent = host.agent();
    leader.registered().await;
    leader.send(Response::Start(start(JOB, 7, &["exit 4", "exit 5"], &[&[0], &[1]])));
    assert_eq!(leader.exit_of(7, 1).await, Kind::Code(5));
    read_fifo(begun).await;
    leader.send(stop(JOB, 7, 0));
    assert!(matches!(leader.exit_of(7, 0).await, Kind::NotStarted(_)));
    host.assert_gone("pids", 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epilog_that_an_agent_owed_is_run_by_the_next() {
    let mut leader = Leader::start(Manner::patient()).await;
    let mut host = Host::new(&leader);
    let (begun, done) = (fifo(&host, "begun"), fifo(&host, "done"));
    let pids = host.file("pids").display().to_string();
    host.epilog = command(&format!("echo $$ >> {pids}; echo > {}; exec sleep 600", begun.display()));
    let mut agent = host.agent();
    leader.registered().await;
    // The first has ended when the agent is killed, and the other not.
    let (go, runs) = (fifo(&host, "go"), fifo(&host, "runs"));
    let waits = format!("echo > {}; cat {} > /dev/null", runs.display(), go.display());
    leader.send(Response::Start(start(JOB, 7, &["exit 4", &waits], &[&[0], &[1]])));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(4));
    read_fifo(begun).await;
    read_fifo(runs).await;
    agent.kill();
    host.epilog = command(&format!("echo $MUSTER_RANK > {}", done.display()));
    let _agent = host.agent();
    leader.registered().await;
    let ran = |path: PathBuf| within_patience("an epilog", move || std::fs::read_to_string(path).unwrap());
    assert_eq!(ran(done.clone()).await, "0\n");
    host.assert_gone("pids", 1);
    write_fifo(go).await;
    assert_eq!(ran(done).await, "1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_worker_waits_for_the_epilog_on_its_devices_alone() {
    let mut leader = Leader::start(Manner::patient()).await;
    let mut host = Host::new(&leader);
    let (begun, go) = (fifo(&host, "begun"), fifo(&host, "go"));
    host.epilog = command(&format!(
        "test $MUSTER_DEVICES = 0 || exit 0; echo > {}; cat {} > /dev/null",
        begun.display(),
        go.display()
    ));
    let _agent = host.agent();
    leader.registered().await;
    leader.send(Response::Start(start(JOB, 7, &["exit 4"], &[&[0]])));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(4), "its end waits for no epilog");
    read_fifo(begun.clone()).await;
    let order = host.file("order").display().to_string();
    let script = format!("echo $MUSTER_RANK >> {order}");
    leader.send(Response::Start(start(JOB, 8, &[&script, &script], &[&[0], &[1]])));
    assert_eq!(leader.exit_of(8, 1).await, Kind::Code(0));
    assert_eq!(std::fs::read_to_string(&order).unwrap(), "1\n");
    write_fifo(go.clone()).await;
    assert_eq!(leader.exit_of(8, 0).await, Kind::Code(0));
    assert_eq!(std::fs::read_to_string(&order).unwrap(), "1\n0\n");
    // The epilog of that one waits in the same way, and is to end with this test.
    read_fifo(begun).await;
    write_fifo(go).await;
}
