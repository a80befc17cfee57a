//! The agent against a leader: what it starts, refuses, stops and reports.
//!
//! The scripts of workers write their process ids to files, and a FIFO lets one wait for the test
//! without a clock.

// A panic is a test's report, in its helpers too.
#![allow(clippy::unwrap_used)]

mod support;

use muster_wire::agent;
use muster_wire::agent::session_response::Message as Response;
use muster_wire::v1::exit_status::Kind;
use support::*;

const JOB: &str = "job-9";

/// Writes its process id, reports it through a FIFO, which must be read, and stays until it is stopped.
fn stay(host: &Host, name: &str, ready: &std::path::Path) -> String {
    nix::unistd::mkfifo(ready, nix::sys::stat::Mode::S_IRWXU).unwrap();
    format!("echo $$ >> {}; echo > {}; exec sleep 600", host.file(name).display(), ready.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_starts_after_confirmation_and_its_end_is_reported() {
    let mut leader = Leader::start(Manner { confirm: None, ..Manner::patient() }).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    let register = leader.registered().await;
    assert_eq!(register.node.unwrap().accelerators.unwrap().count, 4);
    assert!(register.workers.is_empty());

    let script = format!("env > {}; pwd; exit 3", host.file("env").display());
    leader.send(Response::Start(start(JOB, 7, &[&script, "exit 0"], &[&[1], &[2]])));
    let confirm = leader.confirm_asked().await;
    assert!(!host.task(JOB, 7, 0).exists(), "nothing starts before the confirmation");
    leader.send(confirmed(&confirm, true));
    let mut ends = std::collections::BTreeMap::new();
    while ends.len() < 2 {
        let report = leader
            .hear("reports", |h| match h {
                AgentMessage::Report(report) => Some(report),
                _ => None,
            })
            .await;
        ends.extend(report.workers.into_iter().filter_map(|w| Some((rank_of(&w), w.exit?.kind?))));
    }
    assert_eq!(ends[&0], Kind::Code(3));
    assert_eq!(ends[&1], Kind::Code(0));
    let env = std::fs::read_to_string(host.file("env")).unwrap();
    for line in [
        "MUSTER_FENCING_TOKEN=1.7",
        "CUDA_VISIBLE_DEVICES=1,2",
        "RANK=0",
        "WORLD_SIZE=2",
        "MASTER_PORT=61447",
    ] {
        assert!(env.lines().any(|l| l == line), "{line} in {env}");
    }
    assert!(!env.contains("CARGO"), "nothing of the agent's own environment");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_not_current_never_starts() {
    let mut leader = Leader::start(Manner { confirm: Some(false), ..Manner::patient() }).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    leader.send(Response::Start(start(JOB, 7, &["exit 0"], &[])));
    leader.confirm_asked().await;
    leader.quiet_for(3, |h| matches!(h, AgentMessage::Report(_))).await;
    assert!(!host.task(JOB, 7, 0).exists());
    let fences = muster_agent::fencing::Fences::open(&host.state().join("jobs"), 16).unwrap();
    assert!(fences.of(JOB.parse().unwrap()).is_none(), "a token was kept of an order that was not current");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_that_is_checked_waits_for_the_verdict_and_is_confirmed_anew() {
    use agent::preflight_order::Step;
    use agent::preflight_report::Step as Said;
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    let waits = |h: AgentMessage| match h {
        AgentMessage::Preflight(agent::PreflightReport { step: Some(Said::Waiting(waiting)) }) => {
            Some(waiting)
        }
        _ => None,
    };
    let verdict = |waiting: &agent::PreflightWaiting, fault: &str| {
        let agent::PreflightWaiting { job_id, token } = waiting.clone();
        let verdict = agent::PreflightVerdict { job_id, token, fault: fault.into() };
        Response::PreflightOrder(agent::PreflightOrder { step: Some(Step::Verdict(verdict)) })
    };
    let order = |token| agent::StartOrder { preflight: true, ..start(JOB, token, &["exit 0"], &[]) };

    leader.send(Response::Start(order(7)));
    let waiting = leader.hear("that it waits", waits).await;
    leader.quiet_for(2, |h| matches!(h, AgentMessage::Report(_) | AgentMessage::Confirm(_))).await;
    assert!(!host.task(JOB, 7, 0).exists(), "nothing starts before the verdict");
    leader.send(verdict(&waiting, ""));
    leader.confirm_asked().await;
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(0));

    // At fault: told as that, and a repetition of the order starts nothing.
    leader.send(Response::Start(order(8)));
    let waiting = leader.hear("that it waits", waits).await;
    leader.send(verdict(&waiting, "a slow link"));
    assert_eq!(leader.exit_of(8, 0).await, Kind::PreflightFailed("a slow link".into()));
    leader.send(Response::Start(order(8)));
    assert_eq!(leader.exit_of(8, 0).await, Kind::Vanished(muster_wire::v1::Vanished {}));
    assert!(!host.task(JOB, 8, 0).exists());

    // A stop while it waits, and a verdict that comes too late.
    leader.send(Response::Start(order(9)));
    let waiting = leader.hear("that it waits", waits).await;
    leader.send(stop(JOB, 9, 0));
    assert_eq!(leader.exit_of(9, 0).await, Kind::NotStarted(muster_wire::v1::NotStarted {}));
    leader.send(verdict(&waiting, ""));
    leader.quiet_for(2, |h| matches!(h, AgentMessage::Confirm(_))).await;
    assert!(!host.task(JOB, 9, 0).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_and_repeated_tokens_start_nothing() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    let ready = host.file("ready");
    let script = stay(&host, "pids", &ready);
    leader.send(Response::Start(start(JOB, 7, &[&script], &[])));
    leader.running(7, 0).await;
    read_fifo(ready).await;
    // The same order again: only the state is told again.
    leader.send(Response::Start(start(JOB, 7, &[&script], &[])));
    leader.running(7, 0).await;
    // An older one: told that it will not start, and not even asked for.
    leader.send(Response::Start(start(JOB, 6, &[&script], &[])));
    assert_eq!(leader.exit_of(6, 0).await, Kind::Vanished(muster_wire::v1::Vanished {}));
    leader.quiet_for(3, |h| matches!(h, AgentMessage::Confirm(_))).await;
    assert!(!host.task(JOB, 6, 0).exists());
    // A newer one takes over: the older worker is stopped first.
    leader.send(Response::Start(start(JOB, 8, &["exit 0"], &[])));
    let mut order = Vec::new();
    while order.len() < 2 {
        order.extend(
            leader
                .hear("both ends", |h| {
                    let AgentMessage::Report(report) = h else { return None };
                    let ended = report.workers.into_iter().filter(|w| w.exit.is_some());
                    Some(ended.map(|w| w.token.unwrap().log_index).collect::<Vec<_>>())
                })
                .await,
        );
    }
    assert_eq!(order, [7, 8]);
    host.assert_gone("pids", 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_the_worker_finish_within_its_grace() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    let ready = host.file("ready");
    nix::unistd::mkfifo(&ready, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("trap 'exit 7' TERM; echo > {}; while :; do sleep 1; done", ready.display());
    leader.send(Response::Start(start(JOB, 7, &[&script], &[])));
    leader.running(7, 0).await;
    // The trap is set once the FIFO is written.
    read_fifo(ready).await;
    leader.send(stop(JOB, 7, 60_000));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_told_to_stop_though_the_disk_of_their_notices_hangs() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    let ready = ["ready0", "ready1"].map(|name| host.file(name));
    for fifo in &ready {
        nix::unistd::mkfifo(fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    let scripts = [&ready[0], &ready[1]]
        .map(|ready| format!("trap 'exit 7' TERM; echo > {}; while :; do sleep 1; done", ready.display()));
    leader.send(Response::Start(start(JOB, 7, &[&scripts[0], &scripts[1]], &[&[0], &[1]])));
    let mut running = [false; 2];
    while running.contains(&false) {
        leader
            .hear("that both run", |heard| {
                for rank in 0..2 {
                    running[rank as usize] |= state_in(&heard, 7, rank).is_some();
                }
                Some(())
            })
            .await;
    }
    for fifo in ready {
        read_fifo(fifo).await;
    }
    // Where a notice is written before it gets its name: a FIFO that nobody reads takes nothing, like a disk that hangs.
    for rank in 0..2 {
        let aside = host.task(JOB, 7, rank).join("notice.part");
        nix::unistd::mkfifo(&aside, nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    leader.send(stop(JOB, 7, 60_000));
    assert_eq!(leader.exits_of(7, &[0, 1]).await, [Kind::Code(7), Kind::Code(7)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_shell_has_started_keeps_the_grace_though_the_shell_ends_at_once() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    let [ready, go, saved] = ["ready", "go", "saved"].map(|name| host.file(name));
    for fifo in [&ready, &go] {
        nix::unistd::mkfifo(fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    // The shell has no trap: SIGTERM ends it while its child saves. The child is told when it may go on.
    let program = "trap 'cat $1 > /dev/null; echo saved > $2; kill $!; exit 0' TERM; echo > $0; \
                   while :; do sleep 600 & wait $!; done";
    let [ready_text, go_text, saved_text] = [&ready, &go, &saved].map(|path| path.display().to_string());
    let script = format!("sh -c \"$PROGRAM\" {ready_text} {go_text} {saved_text}; exit 0");
    let mut order = start(JOB, 7, &[&script], &[]);
    order.workers[0].environment.insert("PROGRAM".to_owned(), program.to_owned());
    leader.send(Response::Start(order));
    leader.running(7, 0).await;
    read_fifo(ready).await;
    leader.send(stop(JOB, 7, 60_000));
    write_fifo(go).await;
    // How the shell ended stays what is told, and it is told once its child has saved.
    assert_eq!(leader.exit_of(7, 0).await, Kind::Signal(15));
    assert_eq!(std::fs::read_to_string(saved).unwrap_or_default(), "saved\n");
}

async fn stubborn_family(control_groups: &'static str) {
    let mut leader = Leader::start(Manner::patient()).await;
    let mut host = Host::new(&leader);
    host.control_groups = control_groups;
    let _agent = host.agent();
    leader.registered().await;
    let (pids, ready) = (host.file("pids"), host.file("ready"));
    nix::unistd::mkfifo(&ready, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // A child, an orphaned daemon in a separate session, and the worker: all ignore SIGTERM.
    let script = format!(
        "trap '' TERM; P={}; echo $$ >> $P; \
         sh -c 'echo $$ >> '$P'; exec sleep 600' & \
         (setsid sh -c 'echo $$ >> '$P'; echo > {}; exec sleep 600' &) ; \
         while :; do sleep 1; done",
        pids.display(),
        ready.display()
    );
    leader.send(Response::Start(start(JOB, 7, &[&script], &[])));
    leader.running(7, 0).await;
    read_fifo(ready).await;
    let before = std::time::Instant::now();
    leader.send(stop(JOB, 7, 700));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Signal(9));
    assert!(before.elapsed().as_millis() >= 700, "the grace is given");
    host.assert_gone("pids", 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stubborn_family_is_killed_after_the_grace_without_control_groups() {
    stubborn_family("off").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stubborn_family_is_killed_after_the_grace_with_control_groups_where_there_are_any() {
    stubborn_family("auto").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_finished_worker_leaves_behind_is_killed_before_its_end_is_told() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    let (pids, ready) = (host.file("pids"), host.file("ready"));
    nix::unistd::mkfifo(&ready, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!(
        "(setsid sh -c 'echo $$ >> {}; echo > {}; exec sleep 600' &); cat {} > /dev/null; exit 0",
        pids.display(),
        ready.display(),
        ready.display()
    );
    leader.send(Response::Start(start(JOB, 7, &[&script], &[])));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(0));
    host.assert_gone("pids", 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_for_what_was_never_here_is_answered_and_fences() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let mut agent = host.agent();
    leader.registered().await;
    leader.send(stop(JOB, 7, 0));
    assert_eq!(
        leader.exit_of(7, muster_agent::WHOLE_PLACEMENT).await,
        Kind::Vanished(muster_wire::v1::Vanished {})
    );
    // The order it was for arrives late: it is refused, also by the next agent.
    leader.send(Response::Start(start(JOB, 7, &["exit 0"], &[])));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Vanished(muster_wire::v1::Vanished {}));
    agent.kill();
    let _agent = host.agent();
    leader.registered().await;
    leader.send(Response::Start(start(JOB, 7, &["exit 0"], &[])));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Vanished(muster_wire::v1::Vanished {}));
    assert!(!host.task(JOB, 7, 0).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_overtakes_a_start_that_is_not_confirmed_yet() {
    let mut leader = Leader::start(Manner { confirm: None, ..Manner::patient() }).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    leader.send(Response::Start(start(JOB, 7, &["exit 0"], &[])));
    let confirm = leader.confirm_asked().await;
    leader.send(stop(JOB, 7, 0));
    assert_eq!(leader.exit_of(7, 0).await, Kind::NotStarted(muster_wire::v1::NotStarted {}));
    leader.send(confirmed(&confirm, true));
    leader.quiet_for(3, |h| matches!(h, AgentMessage::Report(_))).await;
    assert!(!host.task(JOB, 7, 0).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_are_checked_and_dying_holders_waited_for() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    let refused = |kind: Kind, text: &str| match kind {
        Kind::LaunchFailed(why) => assert!(why.contains(text), "{why}"),
        other => panic!("{other:?} instead of a refusal"),
    };
    leader.send(Response::Start(start("job-1", 5, &["exit 0"], &[&[4]])));
    refused(leader.exit_of(5, 0).await, "no devices [4]");
    let mut wrong = start("job-1", 6, &["exit 0"], &[&[0]]);
    wrong.workers[0].accelerator_type = "b200".into();
    leader.send(Response::Start(wrong));
    refused(leader.exit_of(6, 0).await, "b200");

    let ready = host.file("ready");
    nix::unistd::mkfifo(&ready, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let holder = format!("trap '' TERM; echo > {}; while :; do sleep 1; done", ready.display());
    leader.send(Response::Start(start("job-2", 7, &[&holder], &[&[0, 1]])));
    leader.running(7, 0).await;
    read_fifo(ready).await;
    leader.send(Response::Start(start("job-3", 8, &["exit 0"], &[&[1]])));
    refused(leader.exit_of(8, 0).await, "held by job-2@1.7/0");

    leader.send(stop("job-2", 7, 500));
    leader.send(Response::Start(start("job-3", 9, &["exit 0"], &[&[1]])));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Signal(9));
    assert_eq!(leader.exit_of(9, 0).await, Kind::Code(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_be_executed_is_a_failed_launch() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    let mut order = start(JOB, 7, &["", ""], &[]);
    order.workers[0].command = vec!["/no/such/program".into()];
    leader.send(Response::Start(order));
    match leader.exit_of(7, 0).await {
        Kind::LaunchFailed(why) => assert!(why.contains("/no/such/program"), "{why}"),
        other => panic!("{other:?}"),
    }
    let mut order = start(JOB, 9, &["exit 0"], &[]);
    order.workers[0].devices = vec![1, 1];
    leader.send(Response::Start(order));
    assert!(matches!(leader.exit_of(9, 0).await, Kind::LaunchFailed(_)), "a malformed order is answered");
    let mut order = start(JOB, 8, &["exit 0"], &[]);
    order.working_directory = "/no/such/directory".into();
    leader.send(Response::Start(order));
    assert!(matches!(leader.exit_of(8, 0).await, Kind::LaunchFailed(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_read_while_it_grows() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    let go = host.file("go");
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("echo one; echo wrong >&2; cat {} > /dev/null; echo two", go.display());
    leader.send(Response::Start(start(JOB, 7, &[&script], &[])));
    leader.running(7, 0).await;
    let read = agent::ReadLogsOrder {
        read_id: 42,
        job_id: JOB.into(),
        token: token(7),
        rank: 0,
        follow: true,
        ..Default::default()
    };
    leader.send(Response::ReadLogs(read.clone()));
    let mut text = std::collections::BTreeMap::<String, String>::new();
    let mut go = Some(go);
    loop {
        let heard = leader
            .hear("output", |h| match h {
                AgentMessage::Upload(_) | AgentMessage::UploadEnded => Some(h),
                _ => None,
            })
            .await;
        let AgentMessage::Upload(chunk) = heard else { break };
        assert_eq!((chunk.read_id, chunk.node_name.as_str(), chunk.error.as_str()), (42, "host-a", ""));
        text.entry(chunk.stream).or_default().push_str(&String::from_utf8(chunk.data).unwrap());
        let both = text.get("stdout").is_some_and(|t| t == "one\n")
            && text.get("stderr").is_some_and(|t| t == "wrong\n");
        if both && let Some(go) = go.take() {
            write_fifo(go).await;
        }
    }
    assert_eq!(text["stdout"], "one\ntwo\n");
    assert_eq!(text["stderr"], "wrong\n");
    // Both streams in the order in which they were written, and on from a position.
    for (read_id, from_position, expected) in [(44, 0, "one\nwrong\ntwo\n"), (45, 4, "wrong\ntwo\n")] {
        leader.send(Response::ReadLogs(agent::ReadLogsOrder { read_id, from_position, ..read.clone() }));
        let (mut text, mut position) = (String::new(), 0);
        loop {
            let chunk = leader
                .hear("output", |h| match h {
                    AgentMessage::Upload(chunk) if chunk.read_id == read_id => Some(chunk),
                    _ => None,
                })
                .await;
            if chunk.data.is_empty() {
                break;
            }
            position = chunk.position;
            text.push_str(std::str::from_utf8(&chunk.data).unwrap());
        }
        assert_eq!((text.as_str(), position), (expected, 14));
    }
    // A worker that is not here is an error text, not silence.
    leader.send(Response::ReadLogs(agent::ReadLogsOrder { read_id: 43, rank: 5, ..read }));
    let error = leader
        .hear("an error", |h| match h {
            AgentMessage::Upload(chunk) if chunk.read_id == 43 => Some(chunk.error),
            _ => None,
        })
        .await;
    assert!(error.contains("nothing is known"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_on_the_same_folder_is_refused() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    let mut second = host.agent();
    let status = within_patience("its end", move || second.child.wait().unwrap()).await;
    assert_eq!(status.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_is_refused() {
    let mut leader = Leader::start(Manner::patient()).await;
    let mut host = Host::new(&leader);
    let mut agent = host.agent();
    leader.registered().await;
    leader.quiet_for(1, |_| false).await;
    agent.kill();
    let other = Manner { cluster_id: "0000000000000000000000000000beef".into(), ..Manner::patient() };
    let mut other = Leader::start(other).await;
    host.endpoint = other.address.clone();
    let _agent = host.agent();
    let mut registrations = 0;
    while registrations < 3 {
        other
            .hear("registrations", |h| {
                assert!(!matches!(h, AgentMessage::Heartbeat(_)), "no heartbeat for another cluster");
                matches!(h, AgentMessage::Register(_)).then(|| registrations += 1)
            })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_makes_a_new_holder_and_a_restart_does_not() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let mut agent = host.agent();
    let first = leader.registered().await.holder_id;
    agent.kill();
    let mut agent = host.agent();
    assert_eq!(leader.registered().await.holder_id, first);
    agent.kill();
    std::fs::write(host.file("boot_id"), "boot-two").unwrap();
    let _agent = host.agent();
    let register = leader.registered().await;
    assert_ne!(register.holder_id, first);
    assert_eq!(register.holder_id.len(), 32);
}

#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_ends_are_told_again_on_the_next_session() {
    let mut leader = Leader::start(Manner { ack_reports: false, ..Manner::patient() }).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    leader.send(Response::Start(start(JOB, 7, &["exit 4"], &[])));
    // Without an acknowledgement of the first report there is no second: the end may only be in the list
    // of the next registration.
    leader.hear("a report", |h| matches!(h, AgentMessage::Report(_)).then_some(())).await;
    host.shim_gone(&host.task(JOB, 7, 0)).await;
    leader.change(|m| m.ack_reports = true);
    leader.drop_session();
    leader.registered().await;
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(4));
    // Acknowledged now: gone from the list.
    leader.quiet_for(2, |_| false).await;
    leader.drop_session();
    assert!(leader.registered().await.workers.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_session_is_tried_again() {
    let held = tonic::Status::failed_precondition("NODE_HELD_BY_ANOTHER");
    let mut leader = Leader::start(Manner { refuse: Some(held), ..Manner::patient() }).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.change(|m| m.refuse = None);
    leader.registered().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_of_an_earlier_session_is_dropped() {
    let mut leader = Leader::start(Manner { confirm: None, ..Manner::patient() }).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    leader.send(Response::Start(start(JOB, 7, &["exit 0"], &[])));
    let confirm = leader.confirm_asked().await;
    leader.drop_session();
    leader.registered().await;
    // The answer to the earlier question: nothing comes of it.
    leader.send(confirmed(&confirm, true));
    leader.quiet_for(3, |h| matches!(h, AgentMessage::Report(_) | AgentMessage::Confirm(_))).await;
    assert!(!host.task(JOB, 7, 0).exists());
    // Sent again, it is asked for again.
    leader.send(Response::Start(start(JOB, 7, &["exit 0"], &[])));
    let confirm = leader.confirm_asked().await;
    leader.send(confirmed(&confirm, true));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(0));
}

/// What the agent answers to one line on its socket; asked on a thread, because the answer may wait for the leader.
fn say(host: &Host, line: String) -> tokio::task::JoinHandle<String> {
    let path = host.state().join("agent.sock");
    tokio::task::spawn_blocking(move || {
        use std::io::{BufRead, BufReader, Write};
        let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_committed_checkpoint_waits_for_the_log_through_a_lost_session() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    let ready = host.file("ready");
    let script = stay(&host, "pids", &ready);
    leader.send(Response::Start(start(JOB, 7, &[&script], &[])));
    leader.running(7, 0).await;
    read_fifo(ready).await;

    let who = |token: &str, rank: u32, said: &str| {
        format!("{{\"job_id\":\"{JOB}\",\"fencing_token\":\"{token}\",\"rank\":{rank},{said}}}\n")
    };
    let saved = r#""checkpoint_committed":{"step":12}"#;
    // Another attempt's and another rank's word is refused here, and the leader never hears of it.
    for (token, rank) in [("1.6", 0), ("1.7", 1)] {
        let answer = say(&host, who(token, rank, saved)).await.unwrap();
        assert!(answer.contains("does not run on this node"), "{answer}");
    }
    let step = r#""step":{"number":3,"duration_ms":40}"#;
    assert_eq!(say(&host, who("1.7", 0, step)).await.unwrap(), r#"{"ok":true}"#);
    let note = leader.note().await;
    let wanted = agent::worker_note::Note::Step(agent::StepNote { number: 3, duration_ms: 40 });
    assert_eq!((note.rank, note.note), (0, Some(wanted)));

    let waiting = say(&host, who("1.7", 0, saved));
    let first = leader.note().await;
    let wanted = agent::worker_note::Note::CheckpointCommitted(agent::CheckpointNote { step: 12 });
    assert_eq!(first.note, Some(wanted));
    leader.drop_session();
    leader.registered().await;
    let again = leader.note().await;
    assert_eq!((again.sequence, &again.note), (first.sequence, &first.note));
    assert!(!waiting.is_finished(), "answered before the leader did");
    leader.send(Response::NoteAck(agent::NoteAck { sequence: again.sequence, refused: String::new() }));
    assert_eq!(waiting.await.unwrap(), r#"{"ok":true}"#);

    let refused = say(&host, who("1.7", 0, saved));
    let note = leader.note().await;
    let ack = agent::NoteAck { sequence: note.sequence, refused: "MS-3005 FENCED: gone".to_owned() };
    leader.send(Response::NoteAck(ack));
    assert_eq!(refused.await.unwrap(), r#"{"error":"MS-3005 FENCED: gone"}"#);

    // A worker that is ready waits for the log as well.
    let ready = say(&host, who("1.7", 0, r#""ready":{}"#));
    let note = leader.note().await;
    assert_eq!(note.note, Some(agent::worker_note::Note::Ready(agent::ReadyNote {})));
    assert!(!ready.is_finished(), "answered before the leader did");
    leader.send(Response::NoteAck(agent::NoteAck { sequence: note.sequence, refused: String::new() }));
    assert_eq!(ready.await.unwrap(), r#"{"ok":true}"#);

    // A notice is there before the worker is gone, and names the grace.
    leader.send(stop(JOB, 7, 20_000));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Signal(15));
    let notice = std::fs::read_to_string(host.task(JOB, 7, 0).join("notice.json")).unwrap();
    assert!(notice.contains("\"grace_ms\":20000") && notice.contains("\"reason\":\"preempted\""), "{notice}");
    let answer = say(&host, who("1.7", 0, saved)).await.unwrap();
    assert!(answer.contains("has ended") || answer.contains("does not run"), "{answer}");
}
