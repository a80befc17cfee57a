//! What guards work: it ends workers that a state directory does not list, has the processor before they have it, removes what they leave,
//! and keeps them from the daemons of their host.

// A panic is a test's report, in its helpers too.
#![allow(clippy::unwrap_used)]

mod support;

use muster_wire::agent::session_response::Message as Response;
use muster_wire::v1::exit_status::Kind;
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::*;

const JOB: &str = "job-9";
/// From one look at a file system to the next.
const LOOK: Duration = Duration::from_millis(20);

fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Writes down its process id, says through a FIFO that it runs, and runs on until it is killed.
fn running_on(host: &Host, fifo: &str) -> String {
    let (pids, fifo) = (host.file("pids"), host.file(fifo));
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    format!(
        "trap '' TERM; echo $$ >> {}; echo > {}; while :; do sleep 1; done",
        pids.display(),
        fifo.display()
    )
}

fn copy(from: &Path, to: &Path) -> bool {
    std::process::Command::new("cp").arg("-a").args([from, to]).output().unwrap().status.success()
}

/// A copy of the state directory of an agent that runs: what waits for workers comes and goes in it meanwhile.
async fn backup(host: &Host) -> PathBuf {
    let (state, backup) = (host.state(), host.file("backup"));
    within_patience("a whole copy of the state directory", move || {
        while !copy(&state, &backup) {
            std::fs::remove_dir_all(&backup).unwrap();
        }
        backup
    })
    .await
}

/// Removes everything in a directory, also what shims that end put there meanwhile.
fn clear(directory: &Path) {
    while let Some(entry) = std::fs::read_dir(directory).unwrap().next() {
        let path = entry.unwrap().path();
        // What could not be removed is found again.
        let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
}

/// A field of `/proc/<pid>/stat` behind the name, counted from the state, which is 0.
fn stat(pid: i32, field: usize) -> i32 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    text.rsplit(')').next().unwrap().split_ascii_whitespace().nth(field).unwrap().parse().unwrap()
}

/// Control groups of workers below the agent's, as the kernel shows them to a worker that wrote them down.
fn groups(host: &Host, file: &str) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = mounts.find_map(|fields| (fields.get(2) == Some(&"cgroup2")).then(|| fields[1].to_owned()));
    let Some(mount) = mount else { return Vec::new() };
    let text = std::fs::read_to_string(host.file(file)).unwrap();
    let own = text.lines().filter_map(|line| line.strip_prefix("0::/"));
    own.filter(|group| group.contains("muster_")).map(|group| Path::new(&mount).join(group)).collect()
}

/// The contents of the directory are those of a copy that is older than a worker: nobody is told that the worker is gone before
/// it is, though it is in no session and control group, and has no mark. Nothing that such a worker had stays behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_state_directory_that_is_set_back_leaves_no_worker_running() {
    let mut leader = Leader::start(Manner::patient()).await;
    let mut host = Host::new(&leader);
    host.control_groups = "auto";
    let mut agent = host.agent();
    leader.registered().await;
    let backup = backup(&host).await;
    let (groups_file, temporary_file) = (host.file("groups"), host.file("temporary"));
    let tell = format!(
        "cat /proc/self/cgroup >> {}; echo $TMPDIR >> {}; touch $TMPDIR/left",
        groups_file.display(),
        temporary_file.display()
    );
    let plain = format!("{tell}; {}", running_on(&host, "ready0"));
    let away = format!(
        "{tell}; exec env -i setsid -w sh -c \"{}\"",
        running_on(&host, "ready1").replace('$', "\\$")
    );
    leader.send(Response::Start(start(JOB, 7, &[&plain, &away], &[&[0], &[1]])));
    for rank in 0..2 {
        read_fifo(host.file(&format!("ready{rank}"))).await;
    }
    let groups = groups(&host, "groups");
    if groups.is_empty() {
        say("skipped: workers have no control groups here");
    }
    let told = std::fs::read_to_string(&temporary_file).unwrap();
    let temporary: Vec<PathBuf> = told.lines().map(PathBuf::from).collect();
    for directory in groups.iter().chain(&temporary) {
        assert!(directory.is_dir(), "{}", directory.display());
    }
    assert_eq!(temporary.len(), 2);
    let pids = host.pids("pids");
    assert!(pids.len() == 2 && pids.iter().all(|pid| alive(*pid)), "{pids:?}");
    agent.kill();
    let state = host.state();
    within_patience("the state directory to be empty", move || clear(&state)).await;
    assert!(copy(&backup.join("."), &host.state()));
    let _agent = host.agent();
    let register = leader.registered().await;
    assert!(register.workers.is_empty(), "{:?}", register.workers);
    host.assert_gone("pids", 2);
    for group in groups {
        assert!(!group.exists(), "{} stays behind", group.display());
    }
    // The thread that removes has its turn.
    within_patience("temporary files to be removed", move || {
        while temporary.iter().any(|directory| directory.exists()) {
            std::thread::sleep(LOOK);
        }
    })
    .await;
}

/// What ended workers have left may be millions of files, and the gangs of the host go on by heartbeats alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_starts_waits_for_nothing_that_ended_workers_left() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let mut agent = host.agent();
    leader.registered().await;
    leader.send(Response::Start(start(JOB, 7, &["exit 0"], &[])));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(0));
    // Its files are counted once its end is acknowledged, and what was counted is on record.
    let counted = host.task(JOB, 7, 0).join("kept");
    let record = counted.clone();
    within_patience("the files to be counted", move || {
        while !record.exists() {
            std::thread::sleep(LOOK);
        }
    })
    .await;
    agent.kill();
    // A count that never ends: nobody writes what it begins to read.
    std::fs::remove_file(&counted).unwrap();
    nix::unistd::mkfifo(&counted, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _agent = host.agent();
    leader.registered().await;
    leader.send(Response::Start(start(JOB, 8, &["exit 3"], &[])));
    assert_eq!(leader.exit_of(8, 0).await, Kind::Code(3));
}

/// Work that takes all processors delays neither heartbeats nor the end of a lease: agent and shim are less nice than it is.
#[tokio::test(flavor = "multi_thread")]
async fn agent_and_shim_have_the_processor_before_the_work() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let agent = host.agent();
    leader.registered().await;
    leader.send(Response::Start(start(JOB, 7, &[&running_on(&host, "ready")], &[&[0]])));
    read_fifo(host.file("ready")).await;
    let worker = host.pids("pids")[0];
    let (shim, niceness) = (stat(worker, 3), |pid| stat(pid, 16));
    assert_ne!(shim, worker, "the shim leads the session");
    assert!(niceness(shim) < niceness(worker), "{} {}", niceness(shim), niceness(worker));
    let agent = agent.child.id().cast_signed();
    for thread in std::fs::read_dir(format!("/proc/{agent}/task")).unwrap().flatten() {
        let thread = thread.file_name().to_str().unwrap().parse().unwrap();
        assert!(niceness(thread) < niceness(worker), "{} {}", niceness(thread), niceness(worker));
    }
}

/// What a worker that was stopped has left in its directory for temporary files goes with the attempt, where `/tmp` is its own and where
/// it is the host's.
#[tokio::test(flavor = "multi_thread")]
async fn temporary_files_go_with_the_attempt() {
    for private in [false, true] {
        let mut leader = Leader::start(Manner::patient()).await;
        let mut host = Host::new(&leader);
        if private {
            host.workers = serde_json::json!({"isolation": "auto", "private_tmp": true});
        }
        let _agent = host.agent();
        let register = leader.registered().await;
        let labels = register.node.unwrap().labels;
        if private && labels.get("isolation.tmp").map(String::as_str) != Some("private") {
            say("skipped: workers have no private /tmp here");
            continue;
        }
        let script =
            "d=$(mktemp -d); head -c 1000000 /dev/zero > $d/left; echo $d > new; mv new made; sleep 600";
        leader.send(Response::Start(start(JOB, 7, &[script], &[&[0]])));
        let task = host.task(JOB, 7, 0);
        let told = task.join("work/made");
        let made = within_patience("a worker to write", move || {
            loop {
                match std::fs::read_to_string(&told) {
                    Ok(made) => return PathBuf::from(made.trim()),
                    Err(_) => std::thread::sleep(LOOK),
                }
            }
        })
        .await;
        // As it is from outside.
        let at = if private { task.join("tmp").join(made.strip_prefix("/tmp").unwrap()) } else { made };
        assert!(at.join("left").exists(), "{}", at.display());
        let parent = at.parent().unwrap().to_owned();
        assert!(private || parent != Path::new("/tmp"), "it has a separate directory");
        leader.send(stop(JOB, 7, 100));
        leader.exit_of(7, 0).await;
        // The leader's acknowledgement has to be on its way, and the thread that removes has its turn.
        within_patience("temporary files to be removed", move || {
            while parent.exists() {
                std::thread::sleep(LOOK);
            }
        })
        .await;
        assert!(task.join("output").exists(), "its output stays");
    }
}

/// A socket where a daemon would listen; gone with this.
struct Daemon {
    socket: &'static Path,
    _listener: UnixListener,
}

impl Daemon {
    fn listen(socket: &'static Path) -> Daemon {
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        Daemon { socket, _listener: UnixListener::bind(socket).unwrap() }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.socket);
        // It stays where something else is in it.
        let _ = std::fs::remove_dir(self.socket.parent().unwrap());
    }
}

/// A daemon that starts containers would take a worker out of its namespaces, and out of its lease.
#[tokio::test(flavor = "multi_thread")]
async fn no_daemon_of_containers_answers_a_worker() {
    let socket = Path::new("/run/crio/crio.sock");
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root || socket.exists() {
        return say("skipped: the socket of a daemon cannot be made here");
    }
    let _daemon = Daemon::listen(socket);
    let ask = "perl -MIO::Socket::UNIX -e 'print IO::Socket::UNIX->new(\"/run/crio/crio.sock\") ? \"REACHED\" : \"stopped: $!\"'";
    let mut said = Vec::new();
    for workers in [
        serde_json::json!({"isolation": "auto"}),
        serde_json::json!({"isolation": "auto", "container_sockets": true}),
    ] {
        let mut leader = Leader::start(Manner::patient()).await;
        let mut host = Host::new(&leader);
        host.workers = workers;
        let _agent = host.agent();
        let register = leader.registered().await;
        if register.node.unwrap().labels.get("isolation.pid").map(String::as_str) != Some("namespace") {
            say("skipped: workers have no namespaces here");
            said.clear();
            break;
        }
        leader.send(Response::Start(start(JOB, 7, &[ask], &[])));
        assert_eq!(leader.exit_of(7, 0).await, Kind::Code(0));
        let output = std::fs::read(host.task(JOB, 7, 0).join("output")).unwrap_or_default();
        said.push(String::from_utf8_lossy(&output).into_owned());
    }
    if let [closed, open] = said.as_slice() {
        assert!(closed.contains("stopped: Connection refused"), "{closed}");
        assert!(open.contains("REACHED"), "an operator may leave it open: {open}");
    }
}
