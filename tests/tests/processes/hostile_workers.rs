//! What jobs do to the nodes they run on, by mistake or worse: each time the job says what happened, the
//! node goes on, and nothing is left behind.

use muster_client::Client;
use muster_types::RefusalCode;
use muster_wire::closed::word;
use muster_wire::time::duration;
use muster_wire::v1::exit_status::Kind;
use muster_wire::v1::{self, JobPhase};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{
    Agents, Cluster, eventually, follow_until, heavy, is_finished, job, say, submit, wait_for_job,
};

/// Output kept of each worker of `h1`.
const KEPT_BYTES: u64 = 64 << 10;
/// Size of the file system of `h2`, and what output leaves free of it.
const SMALL_DISK_BYTES: u64 = 16 << 20;
const SMALL_DISK_FREE_MIN: u64 = 8 << 20;

/// A shell script on one host.
fn script(host: &str, text: &str) -> v1::Job {
    let mut wanted = job("hostile", &["sh", "-c", text]);
    let values = v1::LabelValues { values: vec![host.to_owned()] };
    wanted.spec_mut().node_selector.insert("host".to_owned(), values);
    wanted
}

async fn run(client: &Client, wanted: v1::Job) -> v1::Job {
    let id = submit(client, wanted).await;
    let ended = follow_until(client, &id, is_finished).await.pop().expect("its end was seen");
    let request = v1::GetJobRequest { job_id: ended.id.clone(), read: None };
    client.get_job(request).await.expect("it is kept").job.expect("with all of it")
}

#[track_caller]
fn exit_of(job: &v1::Job) -> &Kind {
    let workers = job.status().placement.iter().flat_map(|placement| &placement.workers);
    let mut kinds = workers.filter_map(|worker| worker.exit.as_ref()?.kind.as_ref());
    kinds.next().unwrap_or_else(|| panic!("without an end: {job:#?}"))
}

/// All that is kept of a worker's output, by stream, and how much is reported as missing.
async fn output(client: &Client, id: &str) -> (BTreeMap<String, String>, u64) {
    let request = v1::ReadLogsRequest { job_id: id.to_owned(), ..Default::default() };
    let mut logs = client.read_logs(request).await.expect("output can be read");
    let (mut text, mut dropped) = (BTreeMap::<String, String>::new(), 0);
    while let Some(piece) = logs.next().await.expect("output comes to its end") {
        dropped += piece.dropped_bytes;
        let stream = word::<v1::OutputStream>(piece.stream).to_owned();
        text.entry(stream).or_default().push_str(&String::from_utf8_lossy(&piece.data));
    }
    (text, dropped)
}

/// Living processes with this in their command line.
fn processes_with(text: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).filter(|l| l.contains(text)).collect()
}

/// A separate file system, where one may be mounted; it is unmounted when this is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<SmallDisk> {
        std::fs::create_dir_all(at).expect("a directory can be made");
        let size = format!("size={SMALL_DISK_BYTES},mode=0755");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "muster-test"]).arg(at).output();
        mounted.is_ok_and(|ran| ran.status.success()).then(|| SmallDisk(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: what still has a file open there is killed with the test's directory.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_misbehave_harm_nobody() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let small = cluster.scratch.path().join("agent-h2/state");
    let disk = SmallDisk::mount(&small);
    let settings = |host: &str| match host {
        "h1" => format!("logs = {{ worker_size_max = {KEPT_BYTES} }}\n"),
        _ => format!("logs = {{ free_space_min = {SMALL_DISK_FREE_MIN} }}\n"),
    };
    let endpoints = |_: &str| cluster.endpoints();
    let agents = Agents::start_with(&cluster, &["h1", "h2"], endpoints, |host, _| settings(host)).await;
    let client = cluster.client();

    cannot_start(&client, cluster.scratch.path()).await;
    too_much_environment(&client).await;
    too_much_output(&client, &agents).await;
    match &disk {
        Some(_) => full_disk(&client, &small).await,
        None => say("skipped: a full disk below an agent (no file system can be mounted here)"),
    }
    will_not_go(&client).await;
    too_much_memory(&client).await;

    // The nodes are as they were.
    for host in ["h1", "h2"] {
        agents.wait_status(host, v1::NodeStatus::Up).await;
        let ended = run(&client, script(host, "echo fine")).await;
        assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
        let tasks = agents.state_of(host).join("tasks");
        for task in std::fs::read_dir(tasks).expect("the agent's directory").flatten() {
            let said = std::fs::read_to_string(task.path().join("shim.log")).unwrap_or_default();
            assert!(!said.contains("stays behind") && !said.contains("panicked"), "{said}");
        }
    }
    let state = cluster.scratch.path().to_str().expect("text").to_owned();
    // What is left are shims that wait for a worker: no worker uses the directory yet that each was started for.
    eventually("shims of ended workers are left", || async {
        let waits = |line: &String| {
            // Behind the directory may stand the worker's control group.
            let directory = line.split_once(" wait ").and_then(|(_, rest)| rest.split_whitespace().next());
            directory.is_some_and(|directory| Path::new(directory).exists())
        };
        let shims = ["run", "wait"].map(|word| processes_with(&format!("shim {word} {state}")));
        shims.iter().flatten().all(waits).then_some(())
    })
    .await;
    cluster.assert_digests_agree().await;
}

async fn cannot_start(client: &Client, scratch: &Path) {
    let failed = |job: &v1::Job, text: &str| {
        assert_eq!((job.phase(), job.status().attempt), (JobPhase::Failed, 1), "{job:#?}");
        let Kind::LaunchFailed(why) = exit_of(job) else { panic!("{job:#?}") };
        assert!(why.contains(text) && job.status().message.contains(text), "{text:?} is not said: {job:#?}");
    };
    let mut wanted = script("h1", "");
    *wanted.spec_mut().groups[0].command_mut() = vec!["/no/such/program".to_owned(), "--fast".to_owned()];
    failed(&run(client, wanted).await, "execute /no/such/program: No such file or directory");
    let mut wanted = script("h1", "");
    let file = scratch.join("no-program-and-no-directory");
    std::fs::write(&file, "").expect("a file can be written");
    *wanted.spec_mut().groups[0].command_mut() = vec![file.to_str().expect("text").to_owned()];
    failed(&run(client, wanted).await, &format!("execute {}: Permission denied", file.display()));

    let absent = PathBuf::from("/no/such/directory");
    for (directory, text) in [(&absent, "No such file or directory"), (&file, "Not a directory")] {
        let mut wanted = script("h1", "true");
        wanted.spec_mut().working_directory = directory.to_str().expect("text").to_owned();
        failed(&run(client, wanted).await, &format!("working directory {}: {text}", directory.display()));
    }
    let closed = scratch.join("closed");
    std::fs::create_dir(&closed).expect("a directory can be made");
    std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o000))
        .expect("own directory");
    if std::fs::read_dir(&closed).is_ok() {
        say("skipped: an unreadable working directory (this user may read everything)");
        return;
    }
    let mut wanted = script("h1", "true");
    wanted.spec_mut().working_directory = closed.to_str().expect("text").to_owned();
    failed(&run(client, wanted).await, &format!("working directory {}: Permission denied", closed.display()));
}

async fn too_much_environment(client: &Client) {
    let refused = |wanted: v1::Job| async {
        let request = v1::SubmitJobRequest { job: Some(wanted), ..Default::default() };
        let error = client.submit_job(request).await.expect_err("too much");
        let refused = error.refused().expect("a server refuses it").clone();
        assert_eq!(refused.code, Some(RefusalCode::InvalidField), "{refused:?}");
        refused.violations.into_iter().map(|violation| violation.field).collect::<Vec<_>>()
    };
    let mut many = script("h1", "true");
    many.spec_mut().groups[0].environment =
        (0..=128).map(|i| v1::EnvVar::new(format!("V{i}"), "x")).collect();
    assert_eq!(refused(many).await, ["job.spec.groups[0].environment"]);
    let mut long = script("h1", "true");
    long.spec_mut().groups[0].set_variable("LONG", "x".repeat(4_097));
    assert_eq!(refused(long).await, ["job.spec.groups[0].environment.LONG"]);
    let mut large = script("h1", "true");
    large.spec_mut().groups[0].environment =
        (0..9).map(|i| v1::EnvVar::new(format!("V{i}"), "x".repeat(4_096))).collect();
    assert_eq!(refused(large).await, ["job.spec.groups"]);
}

async fn too_much_output(client: &Client, agents: &Agents) {
    let ended =
        run(client, script("h1", "head -c 4000000 /dev/zero | tr '\\0' 'x'; echo; echo the end")).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    let (text, dropped) = output(client, &ended.id).await;
    let kept = &text["stdout"];
    assert!(kept.ends_with("x\nthe end\n"), "the newest is kept");
    let length = kept.len() as u64;
    assert_eq!(length + dropped, 4_000_009, "all of it is accounted for");
    assert!((KEPT_BYTES / 4..=KEPT_BYTES).contains(&length), "{length}");
    let tasks = agents.state_of("h1").join("tasks");
    let mut directories =
        std::fs::read_dir(tasks).expect("the agent's directory").flatten().map(|entry| entry.path());
    let task = directories.find(|path| path.to_string_lossy().contains(&format!("/{}_", ended.id)));
    let size =
        |name: &str| std::fs::metadata(task.as_ref().expect("it is kept").join(name)).map_or(0, |m| m.len());
    assert!(size("output") + size("output.1") <= KEPT_BYTES);
}

async fn full_disk(client: &Client, state: &Path) {
    // 30 MB of output against 16 MiB of disk, of which 8 must stay free.
    let ended = run(client, script("h2", "echo begun; head -c 30000000 /dev/zero; echo over >&2")).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    let (text, dropped) = output(client, &ended.id).await;
    assert!(text["stdout"].starts_with("begun\n"), "what came first is kept");
    let kept: usize = text.values().map(String::len).sum();
    assert_eq!(kept as u64 + dropped, 30_000_011, "all of it is accounted for");
    assert!(dropped > 20_000_000, "{dropped}");
    let free = nix::sys::statvfs::statvfs(state).expect("a file system");
    let free = free.blocks_available() * free.fragment_size();
    assert!(free + (64 << 10) >= SMALL_DISK_FREE_MIN, "{free} bytes are free");
    // The worker fills the rest itself: also then its end is told.
    let fill = "head -c 30000000 /dev/zero > filler; echo $?; rm filler";
    let ended = run(client, script("h2", fill)).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
}

async fn will_not_go(client: &Client) {
    // A worker, a child of it and a daemon that shares nothing with them, all deaf to SIGTERM.
    let sleeper = format!("6{:09}", u64::from(std::process::id()));
    let away = format!("setsid env -i sh -c 'trap \"\" TERM; sleep {sleeper}' > /dev/null 2>&1 &");
    let mut wanted = script(
        "h1",
        &format!(
            "trap '' TERM; {away} sh -c 'trap \"\" TERM; sleep {sleeper}' & echo ready; wait; wait; sleep {sleeper}"
        ),
    );
    wanted.spec_mut().stop_grace = Some(duration(500));
    let id = submit(client, wanted).await;
    wait_for_job(client, &id, |job| job.phase() == JobPhase::Running).await;
    let request = v1::ReadLogsRequest { job_id: id.clone(), follow: true, ..Default::default() };
    let mut logs = client.read_logs(request).await.expect("output can be read");
    let first = logs.next().await.expect("output comes").expect("it says that it is ready");
    assert_eq!(first.data, b"ready\n");
    client
        .cancel_job(v1::CancelJobRequest { job_id: id.clone(), ..Default::default() })
        .await
        .expect("cancelled");
    let ended = wait_for_job(client, &id, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Cancelled, "{ended:#?}");
    let left = processes_with(&sleeper);
    assert!(left.is_empty(), "{left:?}");

    // One that ends well, and has left a daemon behind.
    let ended = run(client, script("h1", &format!("{away} echo done"))).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    let left = processes_with(&sleeper);
    assert!(left.is_empty(), "{left:?}");
}

async fn too_much_memory(client: &Client) {
    // `tail` keeps what nobody takes: 300 MB where 64 MiB were asked for.
    let eat = "head -c 300000000 /dev/zero | tail -c 300000000 | (sleep 600; cat)";
    let mut wanted = script("h1", eat);
    wanted.spec_mut().groups[0].resources_mut().memory_bytes = 64 << 20;
    let ended = run(client, wanted).await;
    assert_eq!(
        (ended.phase(), exit_of(&ended)),
        (JobPhase::Failed, &Kind::OutOfMemory(v1::OutOfMemory {})),
        "{ended:#?}"
    );
    assert!(ended.status().message.contains("used more memory than it had asked for"), "{ended:#?}");
    let (text, _) = output(client, &ended.id).await;
    assert!(text["stderr"].contains("muster: the "), "{text:?}");
    // One that stays within what it asked for is left alone.
    let mut wanted =
        script("h1", "head -c 30000000 /dev/zero | tail -c 30000000 | (sleep 2; cat > /dev/null)");
    wanted.spec_mut().groups[0].resources_mut().memory_bytes = 256 << 20;
    let ended = run(client, wanted).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
}
