//! Shims that wait for workers: how many there are, what they are used for, and that nothing hangs on them.

// A panic is a test's report, in its helpers too.
#![allow(clippy::unwrap_used)]

mod support;

use muster_agent::task::TaskDir;
use muster_wire::agent::session_response::Message as Response;
use muster_wire::v1::exit_status::Kind;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;
use support::*;

const JOB: &str = "job-9";
const DEVICES: usize = 4;

/// Living processes with this word before a path below the directory of workers, and their parents.
fn processes(host: &Host, word: &str) -> Vec<(i32, i32)> {
    let below = host.state().join("tasks").join(".new_ready_").display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split('\0').skip_while(|part| *part != word);
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().nth(1);
        let is_ours = words.next().is_some() && words.next().is_some_and(|path| path.starts_with(&below));
        if is_ours && alive(pid) {
            found.push((pid, parent.and_then(|parent| parent.parse().ok()).unwrap_or(0)));
        }
    }
    found
}

/// What the starter of this test has left open for every program below it.
fn inherited() -> BTreeSet<u32> {
    let goes_on = |number: &u32| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & nix::fcntl::OFlag::O_CLOEXEC.bits().cast_unsigned() == 0)
    };
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(goes_on).collect()
}

/// Processes that would become workers, each with the shim above it: between them is the first process of the worker.
fn stages(host: &Host) -> Vec<(i32, i32)> {
    let first: BTreeMap<i32, i32> = processes(host, "enter").into_iter().collect();
    let stages = processes(host, "stage").into_iter();
    stages.filter_map(|(stage, parent)| Some((stage, *first.get(&parent)?))).collect()
}

/// Shims in directories that are no worker's, each with the process that would become the worker.
fn waiting(host: &Host) -> BTreeSet<i32> {
    let stages: BTreeSet<i32> = stages(host).into_iter().map(|(_, shim)| shim).collect();
    let shims: BTreeSet<i32> = processes(host, "wait").into_iter().map(|(pid, _)| pid).collect();
    shims.intersection(&stages).copied().filter(|shim| !has_worker(host, *shim)).collect()
}

fn running(directory: PathBuf) -> Option<i32> {
    TaskDir::at(directory).running().ok().flatten().map(|running| running.shim_pid)
}

fn has_worker(host: &Host, shim: i32) -> bool {
    let directories = std::fs::read_dir(host.state().join("tasks")).unwrap().flatten();
    directories.into_iter().any(|directory| running(directory.path()) == Some(shim))
}

/// Looks until this many wait; no event tells of other processes.
async fn until_waiting(host: &Host, count: usize) -> BTreeSet<i32> {
    let looks = async {
        loop {
            let found = waiting(host);
            if found.len() == count {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(60), looks).await;
    found.unwrap_or_else(|_| panic!("not {count} wait but {:?}", waiting(host)))
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_wait_as_the_last_start_needed_none_on_a_full_host_and_they_go_with_the_agent() {
    let mut leader = Leader::start(Manner::patient()).await;
    let mut host = Host::new(&leader);
    host.control_groups = "auto";
    let mut agent = host.agent();
    leader.registered().await;
    let first = until_waiting(&host, 2).await;
    let go = host.file("go");
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // What it is started with is what a worker of a separate shim would have.
    let fds = host.file("fds").display().to_string();
    let script = format!(
        "exec > {fds}; pwd; readlink /proc/$$/fd/0; ls /proc/$$/fd; cat {} > /dev/null; exit 5",
        go.display()
    );
    leader.send(Response::Start(start(JOB, 7, &[&script, "sleep 600"], &[&[0], &[1]])));
    leader.running(7, 0).await;
    let directory = host.task(JOB, 7, 0);
    assert!(first.contains(&running(directory.clone()).unwrap()), "a shim of those that waited");
    // Both have a worker now, and no others are made while those run.
    until_waiting(&host, 0).await;
    let group = TaskDir::at(directory.clone()).running().unwrap().and_then(|running| running.cgroup);
    match &group {
        Some(group) => assert!(group.display().to_string().contains("muster_ready_"), "{group:?}"),
        None => {
            println!("skipped: that a worker's process waits in its control group (none can be made here)")
        }
    }
    write_fifo(go).await;
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(5));
    assert!(!group.is_some_and(|group| group.exists()));
    let work = directory.join("work").canonicalize().unwrap();
    let said = std::fs::read_to_string(host.file("fds")).unwrap();
    let mut lines = said.lines();
    assert_eq!(lines.next(), work.to_str());
    assert_eq!(lines.next(), Some("/dev/null"));
    let open: BTreeSet<u32> = lines.map(|line| line.parse().unwrap()).collect();
    assert_eq!(open, BTreeSet::from([0, 1, 2]).union(&inherited()).copied().collect());
    until_waiting(&host, 2).await;
    leader.send(stop(JOB, 7, 0));
    assert!(matches!(leader.exit_of(7, 1).await, Kind::Signal(_)));
    // A larger start, of which two workers find no shim that waits, and fewer wait than would be needed again.
    leader.send(Response::Start(start(JOB, 8, &["exit 0"; DEVICES], &[&[0], &[1], &[2], &[3]])));
    until_waiting(&host, DEVICES).await;
    // One worker that has them all.
    leader.send(Response::Start(start(JOB, 9, &["sleep 600"], &[&[0, 1, 2, 3]])));
    leader.running(9, 0).await;
    until_waiting(&host, 0).await;
    leader.send(stop(JOB, 9, 0));
    let last = until_waiting(&host, 2).await;
    agent.kill();
    until_waiting(&host, 0).await;
    assert!(processes(&host, "stage").is_empty());
    let _agent = host.agent();
    leader.registered().await;
    assert!(until_waiting(&host, 2).await.is_disjoint(&last));
    let names =
        std::fs::read_dir(host.state().join("tasks")).unwrap().flatten().map(|entry| entry.file_name());
    let unfinished = names.filter(|name| name.to_string_lossy().starts_with(".new_")).count();
    assert_eq!(unfinished, 2, "what the agent before had made is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_has_died_costs_time_and_no_worker() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    leader.registered().await;
    until_waiting(&host, 2).await;
    // Of one the process that would become the worker dies, the other itself.
    let stages = stages(&host);
    kill(Pid::from_raw(stages[0].0), Signal::SIGKILL).unwrap();
    kill(Pid::from_raw(stages[1].1), Signal::SIGKILL).unwrap();
    // A process that was killed takes a moment to go, and with each goes the first process of its worker.
    while !processes(&host, "enter").is_empty() || alive(stages[1].1) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    leader.send(Response::Start(start(JOB, 7, &["exit 3"; 2], &[&[0], &[1]])));
    let mut ends = [false; 2];
    while ends.contains(&false) {
        leader
            .hear("that all have ended", |heard| {
                for rank in 0..2 {
                    let exit = state_in(&heard, 7, rank).and_then(|state| state.exit);
                    let kind = exit.and_then(|exit| exit.kind);
                    assert!(matches!(kind, None | Some(Kind::Code(3))), "{kind:?}");
                    ends[rank as usize] |= kind.is_some();
                }
                Some(())
            })
            .await;
    }
    until_waiting(&host, 2).await;
}
