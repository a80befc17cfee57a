//! Workers with the root directory of an image: what they find, what they cannot reach, and that they die with their shims.
//! Needs root, podman and a static busybox; a machine without them reports it and skips.

// A panic is a test's report, in its helpers too.
#![allow(clippy::unwrap_used)]

mod support;

use muster_wire::agent::StartOrder;
use muster_wire::agent::session_response::Message as Response;
use muster_wire::v1;
use muster_wire::v1::exit_status::Kind;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use support::*;

const JOB: &str = "job-9";
const UID: u32 = 271_829;

fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

fn ran(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|ran| ran.status.success())
}

/// An image of busybox alone, in podman's storage as long as this is there.
struct Image(String);

impl Drop for Image {
    fn drop(&mut self) {
        ran("podman", &["rmi", "--force", &self.0]);
    }
}

impl Image {
    /// None, with the reason on standard error, where this machine has no such image.
    fn make(name: &str) -> Option<Image> {
        if !nix::unistd::geteuid().is_root() {
            say("skipped: images need root here");
            return None;
        }
        if !ran("podman", &["version"]) || !ran("tar", &["--version"]) {
            say("skipped: podman is not installed");
            return None;
        }
        let is_static = |path: &&&str| is_static(&std::fs::read(path).unwrap_or_default());
        let Some(busybox) = ["/bin/busybox", "/usr/bin/busybox"].iter().find(is_static) else {
            say("skipped: there is no static busybox");
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::create_dir(root.join("etc")).unwrap();
        std::fs::copy(busybox, root.join("bin/busybox")).unwrap();
        for applet in ["sh", "cat", "ls", "sleep", "setsid", "env", "id", "grep", "wc"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
        std::fs::write(root.join("etc/marker"), "of the image\n").unwrap();
        // A link out of the image, where the agent makes a directory.
        std::os::unix::fs::symlink("/../../../../../..", root.join("up")).unwrap();
        let file = directory.path().join("root.tar");
        let (root, file) = (root.display().to_string(), file.display().to_string());
        assert!(ran("tar", &["--create", "--file", &file, "--directory", &root, "."]));
        let image = format!("localhost/muster-{name}-{}:1", std::process::id());
        let changes = [
            "ENTRYPOINT [\"/bin/sh\", \"-c\"]",
            "CMD [\"cat /etc/marker; exit 5\"]",
            "ENV KIND=image",
            "ENV PATH=/bin",
            "WORKDIR /etc",
        ];
        let changes = changes.iter().flat_map(|change| ["--change", *change]);
        let arguments: Vec<&str> =
            ["import", "--quiet"].into_iter().chain(changes).chain([&*file, &*image]).collect();
        if !ran("podman", &arguments) {
            say("skipped: podman imports no image here");
            return None;
        }
        Some(Image(image))
    }

    /// A start order whose workers have it.
    fn order(&self, token: u64, scripts: &[&str], mounts: &[(&Path, &str)]) -> StartOrder {
        let mut order = start(JOB, token, scripts, &[]);
        let mount = |(source, target): &(&Path, &str)| v1::ContainerMount {
            source: source.display().to_string(),
            target: (*target).to_owned(),
            read_only: false,
        };
        for worker in &mut order.workers {
            worker.command[0] = "/bin/sh".to_owned();
            worker.container = Some(v1::ContainerRuntime {
                image: self.0.clone(),
                pull: v1::PullRule::Never.into(),
                mounts: mounts.iter().map(mount).collect(),
                ..Default::default()
            });
        }
        order
    }
}

async fn host(leader: &Leader, workers: serde_json::Value) -> Host {
    let mut host = Host::new(leader);
    host.workers = workers;
    std::fs::set_permissions(host.dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    host
}

fn output(host: &Host, token: u64, rank: u32) -> String {
    let output = std::fs::read(host.task(JOB, token, rank).join("output")).unwrap_or_default();
    String::from_utf8_lossy(&output).into_owned()
}

/// Whether no image can be mounted here, which is then reported.
fn is_impossible(end: &Kind) -> bool {
    let impossible = matches!(end, Kind::LaunchFailed(why) if why.contains("mount the image"));
    if impossible {
        say(&format!("skipped: no overlay can be mounted where this test's directory is: {end:?}"));
    }
    impossible
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_in_an_image_finds_the_image_and_dies_with_its_shims() {
    let Some(image) = Image::make("gang") else { return };
    let mut leader = Leader::start(Manner::patient()).await;
    let host = host(&leader, serde_json::json!({"isolation": "required"})).await;
    let mut agent = host.agent();
    let labels = leader.registered().await.node.unwrap().labels;
    assert_eq!(labels["container.runtime"], "podman");
    assert!(labels["container.version"].starts_with(|first: char| first.is_ascii_digit()), "{labels:?}");

    let script = "cat /etc/marker; echo variable $KIND end; echo at $(cat /proc/self/cmdline | wc -c); ls /; \
                  echo x > /etc/written && echo wrote; cat $MUSTER_RANK_MAP > /dev/null && echo map; \
                  [ -e /usr ] && echo HOST; exit 3";
    leader.send(Response::Start(image.order(7, &[script, script], &[])));
    let ends = leader.exits_of(7, &[0, 1]).await;
    if ends.iter().any(is_impossible) {
        return;
    }
    assert_eq!(ends, [Kind::Code(3), Kind::Code(3)], "{}", output(&host, 7, 0));
    for rank in [0, 1] {
        let text = output(&host, 7, rank);
        for good in ["of the image", "variable image end", "wrote", "map"] {
            assert!(text.contains(good), "{good}: {text}");
        }
        assert!(!text.contains("HOST"), "{text}");
    }
    // What one has written is in its own layer.
    let images: Vec<_> = std::fs::read_dir(host.state().join("images")).unwrap().flatten().collect();
    assert_eq!(images.len(), 1);
    assert!(!images[0].path().join("rootfs/etc/written").exists());
    // Without a command it is the image's.
    let mut order = image.order(8, &["x"], &[]);
    order.workers[0].command.clear();
    leader.send(Response::Start(order));
    assert_eq!(leader.exit_of(8, 0).await, Kind::Code(5));
    // Memory that it shares with nobody has the asked size.
    let script = "echo x > /dev/shm/own && while read -r what at kind how rest; do \
                  [ $at = /dev/shm ] && echo $kind $how; done < /proc/mounts; exit 3";
    let mut order = image.order(9, &[script], &[]);
    order.workers[0].container.as_mut().expect("an image").shared_memory_bytes = 1 << 20;
    leader.send(Response::Start(order));
    assert_eq!(leader.exit_of(9, 0).await, Kind::Code(3), "{}", output(&host, 9, 0));
    let text = output(&host, 9, 0);
    assert!(text.contains("size=1024k"), "{text}");

    // One that shares nothing with its shim, and one below.
    let shared = host.file("shared");
    std::fs::create_dir(&shared).unwrap();
    let fifo = shared.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let deaf = "trap \"\" TERM; exec 3> /seen/fifo; sleep 600 & sleep 600";
    let script = format!("env -i PATH=/bin setsid sh -c '{deaf}' & sleep 600");
    leader.send(Response::Start(image.order(10, &[&script], &[(shared.as_path(), "/seen")])));
    leader.running(10, 0).await;
    let mut fifo = within_patience("the worker", move || std::fs::File::open(fifo).unwrap()).await;
    agent.kill();
    let text = std::fs::read_to_string(host.task(JOB, 10, 0).join("running")).unwrap();
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
    assert_eq!(leader.exit_of(10, 0).await, Kind::Vanished(v1::Vanished {}));
    assert!(!alive(worker));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_reaches_nothing_that_its_user_could_not() {
    let Some(image) = Image::make("mounts") else { return };
    let mut leader = Leader::start(Manner::patient()).await;
    // The directories that are shown are in the `/tmp` of the host.
    let users = serde_json::json!({
        "isolation": "required", "uid_range": {"first": UID, "count": 1}, "private_tmp": false,
    });
    let host = host(&leader, users).await;
    let _agent = host.agent();
    leader.registered().await;
    let (open, shut) = (host.file("open"), host.file("shut"));
    for (directory, mode) in [(&open, 0o777), (&shut, 0o700)] {
        std::fs::create_dir(directory).unwrap();
        std::fs::create_dir(directory.join("below")).unwrap();
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::symlink("/proc/1/root", open.join("link")).unwrap();
    let script = "id -u; echo x > /seen/file && echo wrote; exit 3";
    leader.send(Response::Start(image.order(7, &[script], &[(open.as_path(), "/seen")])));
    let end = leader.exit_of(7, 0).await;
    if is_impossible(&end) {
        return;
    }
    assert_eq!(end, Kind::Code(3), "{}", output(&host, 7, 0));
    let text = output(&host, 7, 0);
    assert!(
        text.contains(&UID.to_string()) && text.contains("wrote") && open.join("file").exists(),
        "{text}"
    );
    // A target through a link of the image is a place of the image.
    let above = host.dir.path().join("made-by-a-link");
    let through = format!("/up{}", above.display());
    leader.send(Response::Start(image.order(8, &["exit 3"], &[(open.as_path(), through.as_str())])));
    assert_eq!(leader.exit_of(8, 0).await, Kind::Code(3));
    assert!(!above.exists());
    let state = host.state();
    for (token, source, target, why) in [
        (9, shut.join("below"), "/seen", "Permission denied"),
        (10, open.join("link"), "/seen", "show"),
        (11, open.join("none"), "/seen", "No such file"),
        (12, open.clone(), state.to_str().unwrap(), "container.mounts"),
    ] {
        leader.send(Response::Start(image.order(token, &["exit 3"], &[(source.as_path(), target)])));
        let Kind::LaunchFailed(text) = leader.exit_of(token, 0).await else {
            panic!("{why}: it was launched")
        };
        assert!(text.contains(why), "{why}: {text}");
    }
    let mut order = image.order(13, &["exit 3"], &[]);
    order.workers[0].container.as_mut().unwrap().image = "localhost/muster-none:1".to_owned();
    leader.send(Response::Start(order));
    let Kind::LaunchFailed(text) = leader.exit_of(13, 0).await else { panic!("it was launched") };
    assert!(text.starts_with("IMAGE_NOT_ON_NODE: localhost/muster-none:1"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_never_answers_ends_a_start_and_holds_no_other_up() {
    let Some(image) = Image::make("hanging") else { return };
    let mut leader = Leader::start(Manner::patient()).await;
    let mut host = host(&leader, serde_json::json!({"isolation": "required"})).await;
    host.images = serde_json::json!({"pull_timeout": "10s"});
    let _agent = host.agent();
    leader.registered().await;
    leader.send(Response::Start(image.order(7, &["exit 3"], &[])));
    let end = leader.exit_of(7, 0).await;
    if is_impossible(&end) {
        return;
    }
    assert_eq!(end, Kind::Code(3), "{}", output(&host, 7, 0));
    // It takes connections, and says nothing.
    let registry = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let reference = format!("{}/team/train:1", registry.local_addr().unwrap());
    let mut hanging = image.order(8, &["exit 3"], &[]);
    let container = hanging.workers[0].container.as_mut().unwrap();
    container.image = reference.clone();
    container.pull = v1::PullRule::Missing.into();
    leader.send(Response::Start(hanging));
    // What is there begins meanwhile.
    let mut other = image.order(9, &["exit 4"], &[]);
    other.job_id = "job-10".to_owned();
    leader.send(Response::Start(other));
    assert_eq!(leader.exit_of(9, 0).await, Kind::Code(4));
    let Kind::LaunchFailed(text) = leader.exit_of(8, 0).await else { panic!("it was launched") };
    assert!(text.starts_with(&format!("IMAGE_TIMED_OUT: {reference}")), "{text}");
    drop(registry);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_hidden_from_workers_no_image_shows() {
    let Some(image) = Image::make("hidden") else { return };
    let mut leader = Leader::start(Manner::patient()).await;
    let users = serde_json::json!({"isolation": "required", "uid_range": {"first": UID, "count": 1}});
    let host = host(&leader, users).await;
    let _agent = host.agent();
    leader.registered().await;
    // Below it is the `/var/tmp` of the host, which a mount hides.
    leader.send(Response::Start(image.order(7, &["exit 3"], &[(Path::new("/var"), "/seen")])));
    let end = leader.exit_of(7, 0).await;
    if is_impossible(&end) {
        return;
    }
    let Kind::LaunchFailed(text) = end else { panic!("it was launched") };
    assert!(text.contains("show /var: /var/tmp in it is hidden from workers"), "{text}");
    // Its own is there.
    let script = "echo x > /seen/file && [ -e /seen/file ] && exit 3";
    leader.send(Response::Start(image.order(8, &[script], &[(Path::new("/var/tmp"), "/seen")])));
    assert_eq!(leader.exit_of(8, 0).await, Kind::Code(3), "{}", output(&host, 8, 0));
    assert!(!Path::new("/var/tmp/file").exists());
}

/// Whether a program of 64 bits names no loader: none of its program headers is `PT_INTERP`.
fn is_static(program: &[u8]) -> bool {
    const PT_INTERP: [u8; 4] = 3_u32.to_le_bytes();
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let field = program.get(at..at + bytes)?;
        Some(field.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
    };
    let headers = || Some((number(32, 8)?, number(54, 2)?, number(56, 2)?));
    let Some((first, size, count)) = headers().filter(|_| program.starts_with(b"\x7fELF\x02")) else {
        return false;
    };
    let kind = |place: usize| program.get(first + place * size..first + place * size + 4);
    (0..count).all(|place| kind(place).is_some_and(|kind| kind != PT_INTERP.as_slice()))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_fetched_ahead_and_what_workers_wait_for_is_told() {
    use muster_wire::agent::{PrefetchImage, PrefetchOrder, StartStage};
    let Some(image) = Image::make("ahead") else { return };
    let mut leader = Leader::start(Manner::patient()).await;
    let host = host(&leader, serde_json::json!({"isolation": "required"})).await;
    let _agent = host.agent();
    leader.registered().await;
    let wanted = |image: &str| PrefetchImage {
        tenant: "research".to_owned(),
        image: image.to_owned(),
        ..Default::default()
    };
    // The other one has no registry; nobody learns of that, and nothing waits for it.
    let images = vec![wanted("127.0.0.1:1/none:1"), wanted(&image.0)];
    leader.send(Response::Prefetch(PrefetchOrder { images }));
    let held = |message| match message {
        AgentMessage::Images(held) => Some(held.references),
        _ => None,
    };
    leader.send(Response::Prefetch(PrefetchOrder { images: vec![wanted(&image.0)] }));
    assert_eq!(leader.hear("the images of the host", held).await, std::slice::from_ref(&image.0));
    assert!(!host.task(JOB, 7, 0).exists(), "nothing starts by it");
    leader.send(Response::Start(image.order(7, &["exit 3"], &[])));
    let stage = |message| match message {
        AgentMessage::StartStage(report) => Some(report),
        _ => None,
    };
    let report = leader.hear("what a worker waits for", stage).await;
    assert_eq!((report.job_id.as_str(), report.stage()), (JOB, StartStage::Starting), "its image is there");
    let end = leader.exit_of(7, 0).await;
    assert!(end == Kind::Code(3) || is_impossible(&end), "{end:?}");
}
