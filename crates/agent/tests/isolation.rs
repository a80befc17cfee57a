//! What keeps a worker from its host: namespaces that end with its shim, a separate user without privileges, directories
//! and devices that are not its own. With root and without; what a machine cannot do is reported and skipped.

// A panic is a test's report, in its helpers too.
#![allow(clippy::unwrap_used)]

mod support;

use muster_wire::agent::session_response::Message as Response;
use muster_wire::v1::exit_status::Kind;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use support::*;

const JOB: &str = "job-9";
const UID: u32 = 271_828;

fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Whether namespaces can be made here, as this user.
fn has_namespaces() -> bool {
    let root = if nix::unistd::geteuid().is_root() { "--mount" } else { "--map-root-user" };
    let made = std::process::Command::new("unshare")
        .args([root, "--mount", "--pid", "--fork", "--mount-proc", "true"])
        .output();
    let made = made.is_ok_and(|ran| ran.status.success());
    if !made {
        say("skipped: no namespaces can be made here");
    }
    made
}

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        say("skipped: users of workers need root");
    }
    root
}

async fn host(leader: &Leader, workers: serde_json::Value) -> Host {
    let mut host = Host::new(leader);
    host.workers = workers;
    // For users of workers, on the way to their directories.
    std::fs::set_permissions(host.dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    host
}

/// What a worker said, once it has ended.
async fn said(leader: &mut Leader, host: &Host, token: u64, script: &str) -> (Kind, String) {
    leader.send(Response::Start(start(JOB, token, &[script], &[])));
    let end = leader.exit_of(token, 0).await;
    // Behind the headers of its pieces stands what it said.
    let output = std::fs::read(host.task(JOB, token, 0).join("output")).unwrap_or_default();
    (end, String::from_utf8_lossy(&output).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_sees_its_own_processes_alone_and_dies_with_its_shim() {
    if !has_namespaces() {
        return;
    }
    let mut leader = Leader::start(Manner::patient()).await;
    let host = host(&leader, serde_json::json!({"isolation": "required"})).await;
    let mut agent = host.agent();
    let register = leader.registered().await;
    assert_eq!(register.node.unwrap().labels["isolation.pid"], "namespace");
    // Nothing of the host, no way to signal or to stop the first process, and its own end told as it is.
    let script = "echo pids $(ls /proc | grep -c '^[0-9]'); kill -9 1; kill -STOP 1; kill -9 -1; exit 7";
    let (end, text) = said(&mut leader, &host, 7, script).await;
    assert_eq!(end, Kind::Code(7), "{text}");
    let count: u32 = text.split("pids ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert!(count <= 6, "{text}");

    // One that shares nothing with its shim, not even the mark in its environment, and one below.
    let fifo = host.file("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let deaf = format!("trap \"\" TERM; exec 3> {}; sleep 600 & wait; sleep 600", fifo.display());
    let script = format!("env -i PATH=$PATH setsid sh -c '{deaf}' & sleep 600");
    leader.send(Response::Start(start(JOB, 8, &[&script], &[])));
    leader.running(8, 0).await;
    let mut fifo = within_patience("the worker", move || std::fs::File::open(fifo).unwrap()).await;
    agent.kill();
    let text = std::fs::read_to_string(host.task(JOB, 8, 0).join("running")).unwrap();
    let running: serde_json::Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
    let shim = i32::try_from(running["shim_pid"].as_i64().unwrap()).unwrap();
    let worker = i32::try_from(running["worker_pid"].as_i64().unwrap()).unwrap();
    assert!(alive(worker));
    kill(Pid::from_raw(shim), Signal::SIGKILL).unwrap();
    let read =
        within_patience("the worker's end", move || std::io::Read::read(&mut fifo, &mut [0u8; 1]).unwrap());
    assert_eq!(read.await, 0);
    let _agent = host.agent();
    leader.registered().await;
    assert_eq!(leader.exit_of(8, 0).await, Kind::Vanished(muster_wire::v1::Vanished {}));
    assert!(!alive(worker));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_has_a_user_of_its_own_and_no_privileges() {
    if !is_root() || !has_namespaces() {
        return;
    }
    let mut leader = Leader::start(Manner::patient()).await;
    let workers = serde_json::json!({"isolation": "required", "uid_range": {"first": UID, "count": 1}});
    let host = host(&leader, workers).await;
    let _agent = host.agent();
    let register = leader.registered().await;
    assert_eq!(register.node.unwrap().labels["isolation.user"], "own");
    let outside = tempfile::tempdir().unwrap();
    std::fs::set_permissions(outside.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "echo user $(id -u) groups $(id -G) end; grep -E '^(Cap(Prm|Eff|Bnd|Amb)|NoNewPrivs)' /proc/self/status; \
         echo home $HOME of $USER $LOGNAME end; pwd; echo mine > file && echo wrote; echo x > /tmp/here && echo tmp; ls {} 2>&1; \
         touch /dev/shm/x && echo shm; cat $MUSTER_RANK_MAP > /dev/null && echo map; \
         for path in ../spec ../lock ../running ../control ../output {state}/lease {state}/holder {state}/jobs/log; do \
         head -c 1 $path > /dev/null 2>&1 && echo READ $path; echo x 2> /dev/null > $path && echo WROTE $path; done; \
         ls .. {state} {state}/tasks > /dev/null 2>&1 && echo LISTED; umount /proc 2> /dev/null && echo UMOUNTED; \
         mount -t tmpfs x /mnt 2> /dev/null && echo MOUNTED; exit 3",
        outside.path().display(),
        state = host.state().display()
    );
    let (end, text) = said(&mut leader, &host, 7, &script).await;
    assert_eq!(end, Kind::Code(3), "{text}");
    assert!(text.contains(&format!("user {UID} groups {UID} end")), "{text}");
    assert!(
        text.contains("CapEff:\t0000000000000000") && text.contains("CapBnd:\t0000000000000000"),
        "{text}"
    );
    assert!(text.contains("NoNewPrivs:\t1"), "{text}");
    for good in ["wrote", "tmp\n", "shm\n", "map\n", "cannot access"] {
        assert!(text.contains(good), "{good}: {text}");
    }
    let work = host.task(JOB, 7, 0).join("work");
    assert!(text.contains(&format!("home {} of default default end", work.display())), "{text}");
    for bad in ["READ ", "WROTE ", "LISTED", "UMOUNTED", "MOUNTED"] {
        assert!(!text.contains(bad), "{bad}: {text}");
    }
    assert!(!std::path::Path::new("/tmp/here").exists());
    let shared =
        |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().ends_with(&format!("_{JOB}_1.7"));
    assert_eq!(std::fs::read_dir("/dev/shm").unwrap().flatten().filter(shared).count(), 0);

    // Why a program could not be executed is told though its user may not write there.
    let mut order = start(JOB, 8, &[""], &[]);
    order.workers[0].command = vec!["/no/such/program".to_owned()];
    leader.send(Response::Start(order));
    let Kind::LaunchFailed(why) = leader.exit_of(8, 0).await else { panic!("it was launched") };
    assert!(why.contains("execute /no/such/program"), "{why}");
    // Another tenant has the same number here: nothing is started.
    let mut order = start("job-10", 9, &["true"], &[]);
    order.tenant = "other".to_owned();
    leader.send(Response::Start(order));
    let Kind::LaunchFailed(why) = leader.exit_of(9, 0).await else { panic!("it was launched") };
    assert!(why.contains("workers.uids"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_has_a_scratch_directory_that_is_its_users_and_no_other() {
    if !is_root() || !has_namespaces() {
        return;
    }
    let mut leader = Leader::start(Manner::patient()).await;
    let workers = serde_json::json!({"isolation": "required", "uid_range": {"first": UID, "count": 1}});
    let mut host = host(&leader, workers).await;
    host.scratch = Some("1Gi");
    let _agent = host.agent();
    leader.registered().await;
    let others = host.file("scratch").join("of-others");
    std::fs::create_dir(&others).unwrap();
    std::fs::set_permissions(&others, std::fs::Permissions::from_mode(0o700)).unwrap();
    let script = format!(
        "echo x > $MUSTER_SCRATCH/mine && echo mode $(stat -c %a $MUSTER_SCRATCH) of $(stat -c %u $MUSTER_SCRATCH); \
         ls {} 2> /dev/null && echo SEES; exit 3",
        others.display()
    );
    let mut order = start(JOB, 7, &[&script], &[]);
    order.scratch_bytes = 1 << 20;
    leader.send(Response::Start(order));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(3));
    let output = std::fs::read(host.task(JOB, 7, 0).join("output")).unwrap_or_default();
    let text = String::from_utf8_lossy(&output).into_owned();
    assert!(text.contains(&format!("mode 700 of {UID}")) && !text.contains("SEES"), "{text}");
}

/// Four devices below `root`, whose files have other numbers than they have, which anybody could open.
fn make_devices(root: &std::path::Path) {
    std::fs::create_dir_all(root.join("dev")).unwrap();
    for (number, minor) in [2, 0, 3, 1].into_iter().enumerate() {
        let bus = root.join(format!("proc/driver/nvidia/gpus/0000:0{number}:00.0"));
        std::fs::create_dir_all(&bus).unwrap();
        std::fs::write(bus.join("information"), format!("Device Minor: \t {minor}\n")).unwrap();
        let device = root.join(format!("dev/nvidia{minor}"));
        let mut make = std::process::Command::new("mknod");
        let made = make.args(["-m", "0666"]).arg(device).args(["c", "1", "3"]).status();
        assert!(made.unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_opens_its_own_devices_alone() {
    if !is_root() || !has_namespaces() {
        return;
    }
    let mut leader = Leader::start(Manner::patient()).await;
    let workers = serde_json::json!({
        "isolation": "required", "uid_range": {"first": UID, "count": 1}, "private_tmp": false,
        "rlimits": {"open_files": 333, "core_size": 0, "processes": 5_000},
    });
    let mut host = host(&leader, workers).await;
    host.host_root = host.file("root");
    make_devices(&host.host_root);
    if std::fs::File::open(host.host_root.join("dev/nvidia0")).is_err() {
        return say("skipped: no device can be opened where this test's directory is");
    }
    let _agent = host.agent();
    let register = leader.registered().await;
    // Without control groups it is the files that are out of reach.
    assert_eq!(register.node.unwrap().labels["isolation.devices"], "hidden");
    let script = format!(
        "for n in 0 1 2 3; do true < {}/dev/nvidia$n && echo opened $n; done; echo sees $CUDA_VISIBLE_DEVICES end; \
         echo limits $(ulimit -n) $(ulimit -c); ulimit -Hn 400 || echo no more; \
         grep '^Max processes' /proc/self/limits; exit 3",
        host.host_root.display()
    );
    let order = start(JOB, 7, &[&script], &[&[1]]);
    leader.send(Response::Start(order));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(3));
    let output = |token, rank| {
        let bytes = std::fs::read(host.task(JOB, token, rank).join("output")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let text = output(7, 0);
    assert!(text.contains("opened 0\n") && text.matches("opened").count() == 1, "{text}");
    assert!(text.contains("Permission denied") && text.contains("sees 0 end"), "{text}");
    // On one line, which is one write: two could be two frames of the transcript.
    assert!(text.contains("limits 333 0\n") && text.contains("no more"), "{text}");
    assert!(text.contains("5000"), "{text}");
    // Workers with one device each see those of their gang, in the order of their ranks.
    leader.send(Response::Start(start(JOB, 8, &[&script, &script], &[&[3], &[0]])));
    assert_eq!(leader.exits_of(8, &[0, 1]).await, [Kind::Code(3), Kind::Code(3)]);
    for rank in [0, 1] {
        let text = output(8, rank);
        assert!(text.contains("opened 1\n") && text.contains("opened 2\n"), "{text}");
        assert!(text.matches("opened").count() == 2 && text.contains("sees 1,0 end"), "{text}");
    }
    // One without devices has none.
    let (end, text) = said(&mut leader, &host, 9, &script).await;
    assert_eq!(end, Kind::Code(3), "{text}");
    assert!(!text.contains("opened") && text.contains("sees end"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_bound_runs_on_the_processors_that_it_is_told() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = host(&leader, serde_json::json!({"isolation": "auto"})).await;
    let _agent = host.agent();
    leader.registered().await;
    let script = "echo told $MUSTER_CPUS has $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status) end; exit 3";
    let mut order = start(JOB, 7, &[script], &[]);
    order.host = Some(muster_wire::v1::HostRules {
        binding: muster_wire::v1::CpuBinding::Cores.into(),
        shell: muster_wire::v1::CommandShell::Login.into(),
        ..Default::default()
    });
    leader.send(Response::Start(order));
    let end = leader.exit_of(7, 0).await;
    if let Kind::LaunchFailed(why) = &end
        && why.contains("does not tell")
    {
        return say("skipped: this machine does not tell which processors it has");
    }
    assert_eq!(end, Kind::Code(3));
    let bytes = std::fs::read(host.task(JOB, 7, 0).join("output")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let line = text.lines().find_map(|line| line.split_once("told ")).expect("it says something").1;
    let (told, has) = line.trim_end_matches(" end").split_once(" has ").expect("it says both");
    assert!(!told.is_empty() && told == has, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_has_the_limits_that_it_asks_for_and_no_more_than_its_host_allows() {
    let mut leader = Leader::start(Manner::patient()).await;
    let workers = serde_json::json!({
        "isolation": "auto", "rlimits": {"open_files": 300}, "rlimits_max": {"open_files": 400},
    });
    let host = host(&leader, workers).await;
    let _agent = host.agent();
    leader.registered().await;
    let script = "echo limits $(ulimit -n) $(ulimit -Hn) $(ulimit -s) $(ulimit -c); exit 3";
    let limits =
        |open_files, stack_bytes| muster_wire::v1::Ulimits { open_files, stack_bytes, ..Default::default() };
    let cases = [
        (7, None, "limits 300 300 "),
        (8, Some(limits(Some(200), Some(4 << 20))), "limits 200 200 4096 0\n"),
        (9, Some(limits(Some(400), None)), "limits 400 400 "),
    ];
    for (token, ulimits, said) in cases {
        let mut order = start(JOB, token, &[script], &[]);
        order.ulimits = ulimits;
        leader.send(Response::Start(order));
        assert_eq!(leader.exit_of(token, 0).await, Kind::Code(3));
        let bytes = std::fs::read(host.task(JOB, token, 0).join("output")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(text.contains(said), "{said}: {text}");
    }
    let mut order = start(JOB, 10, &["true"], &[]);
    order.ulimits = Some(limits(Some(401), None));
    leader.send(Response::Start(order));
    let Kind::LaunchFailed(why) = leader.exit_of(10, 0).await else { panic!("it was launched") };
    assert!(why.contains("ulimits.open_files") && why.contains("rlimits_max"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_root_has_namespaces_of_its_user() {
    if !is_root() || !has_namespaces() {
        return;
    }
    let mut leader = Leader::start(Manner::patient()).await;
    let mut host = host(&leader, serde_json::json!({"isolation": "auto"})).await;
    std::os::unix::fs::chown(host.dir.path(), Some(UID), Some(UID)).unwrap();
    host.user = Some(UID);
    let _agent = host.agent();
    let register = leader.registered().await;
    let labels = register.node.unwrap().labels;
    if labels["isolation.pid"] == "none" {
        return say("skipped: no namespaces can be made here without root");
    }
    assert_eq!(labels["isolation.user"], "none");
    let script = "echo user $(id -u) end; grep -E '^(CapEff|NoNewPrivs)' /proc/self/status; kill -9 1; \
                  umount /proc 2> /dev/null && echo UMOUNTED; echo x > file && echo wrote; exit 4";
    let (end, text) = said(&mut leader, &host, 7, script).await;
    assert_eq!(end, Kind::Code(4), "{text}");
    assert!(text.contains(&format!("user {UID} end")) && text.contains("wrote"), "{text}");
    assert!(text.contains("CapEff:\t0000000000000000") && text.contains("NoNewPrivs:\t1"), "{text}");
    assert!(!text.contains("UMOUNTED"), "{text}");
    // It is stopped as any other.
    leader.send(Response::Start(start(JOB, 8, &["sleep 600 & wait"], &[])));
    leader.running(8, 0).await;
    leader.send(stop(JOB, 8, 60_000));
    assert_eq!(leader.exit_of(8, 0).await, Kind::Signal(15));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_says_what_it_lacks_of_what_was_wanted() {
    let mut leader = Leader::start(Manner::patient()).await;
    let workers = serde_json::json!({"isolation": "off", "wanted": ["user", "devices"]});
    let host = host(&leader, workers).await;
    let _agent = host.agent();
    let node = leader.registered().await.node.unwrap();
    let facts: Vec<&str> = ["user", "pid", "tmp", "devices"]
        .map(|name| node.labels[&format!("isolation.{name}")].as_str())
        .into();
    assert_eq!(facts, ["none"; 4]);
    let mut taints = node.taints;
    taints.sort();
    assert_eq!(taints, ["lacks-isolation.devices", "lacks-isolation.user"]);
}
