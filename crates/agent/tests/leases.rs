//! The lease: who stops what when it runs out, with the agent alive, dead, restarted, and with
//! processes that slept through it.

// A panic is a test's report, in its helpers too.
#![allow(clippy::unwrap_used)]

mod support;

use muster_agent::clock::BootTime;
use muster_wire::agent::session_response::Message as Response;
use muster_wire::v1::exit_status::Kind;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::Duration;
use support::*;

const JOB: &str = "job-9";
/// What a loaded machine may add to a deadline in these tests; the shim itself adds none.
const SLACK: Duration = Duration::from_secs(5);

/// Ignores SIGTERM, so that only the end of the grace stops it. Reports it through the FIFO, which must be
/// read, once it does.
fn stubborn(host: &Host, ready: &str) -> String {
    let (pids, ready) = (host.file("pids"), host.file(ready));
    nix::unistd::mkfifo(&ready, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (pids, ready) = (pids.display(), ready.display());
    format!("trap '' TERM; echo $$ >> {pids}; echo > {ready}; while :; do sleep 1; done")
}

/// Two stubborn workers, running.
async fn two_running(leader: &mut Leader, host: &Host) {
    let scripts = ["ready0", "ready1"].map(|ready| stubborn(host, ready));
    leader.send(Response::Start(start(JOB, 7, &[&scripts[0], &scripts[1]], &[&[0], &[1]])));
    // By the shims' word, which comes after their records, and by the workers' own.
    let mut running = [false; 2];
    while running.contains(&false) {
        leader
            .hear("that both run", |h| {
                for rank in 0..2 {
                    running[rank as usize] |= state_in(&h, 7, rank).is_some();
                }
                Some(())
            })
            .await;
    }
    for ready in ["ready0", "ready1"] {
        read_fifo(host.file(ready)).await;
    }
}

fn assert_in_time(deadline: BootTime, grace_ms: u64) {
    let late = deadline.after(Duration::from_millis(grace_ms)).until(BootTime::now());
    assert!(late < SLACK, "stopped {late:?} after deadline and grace");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_acknowledgements_everything_stops_and_is_told_later() {
    let mut leader = Leader::start(Manner::short_leases()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    two_running(&mut leader, &host).await;
    leader.change(|m| {
        m.ack_heartbeats = false;
        m.refuse = Some(tonic::Status::unavailable("no quorum"));
    });
    for rank in 0..2 {
        host.shim_gone(&host.task(JOB, 7, rank)).await;
    }
    // The deadline that was in force is in the file: nothing moved it after the last acknowledgement.
    assert_in_time(host.lease().deadline, 400);
    assert!(host.lease().deadline <= BootTime::now());
    host.assert_gone("pids", 2);
    leader.change(|m| {
        m.ack_heartbeats = true;
        m.refuse = None;
    });
    let register = leader.registered().await;
    let expired = register.workers.iter().filter(|w| {
        matches!(
            w.exit,
            Some(muster_wire::v1::ExitStatus {
                kind: Some(Kind::LeaseExpired(muster_wire::v1::LeaseExpired {}))
            })
        )
    });
    assert_eq!(expired.count(), 2, "{:?}", register.workers);
}

#[tokio::test(flavor = "multi_thread")]
async fn shims_stop_the_workers_though_the_agent_is_killed() {
    let mut leader = Leader::start(Manner::short_leases()).await;
    let host = Host::new(&leader);
    let mut agent = host.agent();
    leader.registered().await;
    two_running(&mut leader, &host).await;
    agent.kill();
    let deadline = host.lease().deadline;
    assert!(host.pids("pids").iter().all(|pid| alive(*pid)), "the workers outlive the agent");
    for rank in 0..2 {
        host.shim_gone(&host.task(JOB, 7, rank)).await;
    }
    assert_in_time(deadline, 400);
    host.assert_gone("pids", 2);
    // The next agent tells it.
    let _agent = host.agent();
    leader.registered().await;
    assert_eq!(leader.exit_of(7, 0).await, Kind::LeaseExpired(muster_wire::v1::LeaseExpired {}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_agent_takes_over_and_tells_what_happened_meanwhile() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let mut agent = host.agent();
    leader.registered().await;
    let go = host.file("go");
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let ends = format!("cat {} > /dev/null; exit 5", go.display());
    let stays = stubborn(&host, "ready");
    leader.send(Response::Start(start(JOB, 7, &[&ends, &stays], &[&[0], &[1]])));
    leader.running(7, 0).await;
    read_fifo(host.file("ready")).await;
    let epoch = host.lease().epoch;
    agent.kill();
    write_fifo(go).await;
    host.shim_gone(&host.task(JOB, 7, 0)).await;
    let _agent = host.agent();
    let register = leader.registered().await;
    assert_eq!(register.workers.len(), 2);
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(5));
    assert_eq!(host.lease().epoch, epoch, "the lease goes on");
    // The one that still runs is known, and can be stopped.
    leader.send(stop(JOB, 7, 0));
    assert_eq!(leader.exit_of(7, 1).await, Kind::Signal(9));
    host.assert_gone("pids", 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_of_an_old_heartbeat_does_not_extend() {
    let mut leader = Leader::start(Manner::short_leases()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    two_running(&mut leader, &host).await;
    // From now on every heartbeat is answered, but always for the first one.
    leader.change(|m| m.ack_always = Some(1));
    leader.hear("a heartbeat", |h| matches!(h, AgentMessage::Heartbeat(_)).then_some(())).await;
    leader.hear("a heartbeat", |h| matches!(h, AgentMessage::Heartbeat(_)).then_some(())).await;
    // Whatever was acknowledged properly before is in by now; no later session may add to it.
    leader.change(|m| m.refuse = Some(tonic::Status::unavailable("once is enough")));
    let deadline = host.lease().deadline;
    for rank in 0..2 {
        host.shim_gone(&host.task(JOB, 7, rank)).await;
    }
    assert_eq!(host.lease().deadline, deadline);
    assert_in_time(deadline, 400);
}

/// A process id from the record of a launched worker.
fn pid_of(host: &Host, rank: u32, key: &str) -> Pid {
    let text = std::fs::read_to_string(host.task(JOB, 7, rank).join("running")).unwrap();
    let running: serde_json::Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
    Pid::from_raw(i32::try_from(running[key].as_i64().unwrap()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_slept_through_a_lapse_stops_its_worker_though_the_lease_stands_again() {
    let mut leader = Leader::start(Manner::short_leases()).await;
    let host = Host::new(&leader);
    let mut agent = host.agent();
    leader.registered().await;
    two_running(&mut leader, &host).await;
    let (shim, worker) = (pid_of(&host, 0, "shim_pid"), pid_of(&host, 0, "worker_pid"));
    // Without an agent nobody wakes them.
    agent.kill();
    for frozen in [shim, worker] {
        kill(frozen, Signal::SIGSTOP).unwrap();
    }
    let epoch = host.lease().epoch;
    // The other shim sees the lapse: the same deadline.
    host.shim_gone(&host.task(JOB, 7, 1)).await;
    assert!(alive(worker.as_raw()), "nobody could stop the sleeper yet");
    // The next agent has a new lease, and wakes the shim alone: that ends its worker as it stands there.
    let _agent = host.agent();
    leader.registered().await;
    assert_eq!(leader.exit_of(7, 0).await, Kind::LeaseExpired(muster_wire::v1::LeaseExpired {}));
    let lease = host.lease();
    assert!(lease.epoch > epoch && lease.deadline > BootTime::now(), "a new lease stands");
    host.assert_gone("pids", 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_stands_still_is_woken_and_one_that_is_kept_from_it_is_killed() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    two_running(&mut leader, &host).await;
    kill(pid_of(&host, 0, "shim_pid"), Signal::SIGSTOP).unwrap();
    leader.send(stop(JOB, 7, 0));
    let mut ended = [false; 2];
    while ended.contains(&false) {
        leader
            .hear("that both have ended", |heard| {
                for rank in 0..2 {
                    let exit =
                        state_in(&heard, 7, rank).and_then(|state| state.exit).and_then(|exit| exit.kind);
                    assert!(matches!(exit, None | Some(Kind::Signal(9))), "{exit:?}");
                    ended[rank as usize] |= exit.is_some();
                }
                Some(())
            })
            .await;
    }
    host.assert_gone("pids", 2);

    // Somebody stops it again as often as it is woken.
    leader.send(Response::Start(start(JOB, 8, &["exec sleep 600"], &[&[0]])));
    leader.running(8, 0).await;
    let text = std::fs::read_to_string(host.task(JOB, 8, 0).join("running")).unwrap();
    let running: serde_json::Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
    let pid = |key: &str| i32::try_from(running[key].as_i64().unwrap()).unwrap();
    let (shim, worker) = (pid("shim_pid"), pid("worker_pid"));
    let stopping = std::thread::spawn(move || {
        while alive(shim) {
            let _ = kill(Pid::from_raw(shim), Signal::SIGSTOP);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    // Its worker has no separate namespace here, so it may have been the worker that did it.
    assert_eq!(leader.exit_of(8, 0).await, Kind::Signal(9));
    assert!(!alive(worker));
    within_patience("the end of the shim", move || stopping.join().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_shim_takes_its_worker_and_its_leavings_with_it() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    let (pids, ready) = (host.file("pids"), host.file("ready"));
    nix::unistd::mkfifo(&ready, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!(
        "P={}; echo $$ >> $P; (setsid sh -c 'echo $$ >> '$P'; echo > {}; exec sleep 600' &); exec sleep 600",
        pids.display(),
        ready.display()
    );
    leader.send(Response::Start(start(JOB, 7, &[&script], &[])));
    leader.running(7, 0).await;
    read_fifo(ready).await;
    let text = std::fs::read_to_string(host.task(JOB, 7, 0).join("running")).unwrap();
    let running: serde_json::Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
    let shim = i32::try_from(running["shim_pid"].as_i64().unwrap()).unwrap();
    kill(Pid::from_raw(shim), Signal::SIGKILL).unwrap();
    // Without a separate namespace the worker may have done it: its failure, not the node's.
    assert_eq!(leader.exit_of(7, 0).await, Kind::Signal(9));
    host.assert_gone("pids", 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_dies_with_its_shim_though_no_agent_is_there() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let mut agent = host.agent();
    leader.registered().await;
    let alive = host.file("alive");
    nix::unistd::mkfifo(&alive, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("exec 3> {}; exec sleep 600", alive.display());
    leader.send(Response::Start(start(JOB, 7, &[&script], &[])));
    leader.running(7, 0).await;
    // Open once the worker has it open; at its end once the worker is gone.
    let mut alive = within_patience("the worker", move || std::fs::File::open(alive).unwrap()).await;
    agent.kill();
    let text = std::fs::read_to_string(host.task(JOB, 7, 0).join("running")).unwrap();
    let running: serde_json::Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
    let shim = i32::try_from(running["shim_pid"].as_i64().unwrap()).unwrap();
    kill(Pid::from_raw(shim), Signal::SIGKILL).unwrap();
    let read =
        within_patience("the worker's end", move || std::io::Read::read(&mut alive, &mut [0u8; 1]).unwrap());
    assert_eq!(read.await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_grace_of_a_stop_does_not_outlast_the_lease() {
    let mut leader = Leader::start(Manner::short_leases()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    two_running(&mut leader, &host).await;
    leader.send(stop(JOB, 7, 600_000));
    leader.change(|m| {
        m.ack_heartbeats = false;
        m.refuse = Some(tonic::Status::unavailable("no quorum"));
    });
    for rank in 0..2 {
        host.shim_gone(&host.task(JOB, 7, rank)).await;
    }
    assert_in_time(host.lease().deadline, 400);
    host.assert_gone("pids", 2);
}
