//! Workers of hosts in an image: the job of `ops/examples/anywhere`, and how soon a worker begins in an image that is there.
//!
//! `.ci/images` installs what they need. A machine without podman or without a static busybox reports that they are skipped.

use muster_client::Client;
use muster_wire::v1;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

use crate::anywhere;
use crate::support::{Agents, Cluster, heavy, is_finished, job, say, submit, wait_for_job};

/// Starts that are timed.
const STARTS: usize = 20;
/// What the median of them may take with programs without optimisation, next to other tests; 150 ms on a machine that does nothing else.
const MEDIAN_MAX: Duration = Duration::from_secs(1);

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).stdin(Stdio::null()).output().is_ok_and(|ran| ran.status.success())
}

fn skip(why: &str) {
    say(&format!("skipped: workers of hosts in an image: {why}"));
}

/// An image of busybox alone, in podman's storage as long as this is there.
struct Image(String);

impl Drop for Image {
    fn drop(&mut self) {
        succeeds("podman", &["rmi", "--force", &self.0]);
    }
}

impl Image {
    /// None, with the reason on standard error, where this machine can have no such image.
    fn make_or_skip(scratch: &Path) -> Option<Image> {
        if !nix::unistd::geteuid().is_root() {
            skip("they need root here");
            return None;
        }
        if !succeeds("podman", &["version"]) {
            skip("podman is not installed");
            return None;
        }
        // What has no libraries makes `ldd` fail.
        let is_static = |path: &&&str| Path::new(path).exists() && !succeeds("ldd", &[**path]);
        let Some(busybox) = ["/bin/busybox", "/usr/bin/busybox"].iter().find(is_static) else {
            skip("there is no static busybox");
            return None;
        };
        let (root, file) = (scratch.join("root"), scratch.join("root.tar"));
        std::fs::create_dir_all(root.join("bin")).expect("a directory");
        std::fs::copy(busybox, root.join("bin/busybox")).expect("a file");
        for applet in ["sh", "awk", "mkdir", "nc", "true"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).expect("a link");
        }
        let (root, file) = (root.display().to_string(), file.display().to_string());
        assert!(succeeds("tar", &["--create", "--file", &file, "--directory", &root, "."]));
        let image = format!("localhost/muster-anywhere-{}:1", std::process::id());
        let import = ["import", "--quiet", "--change", "ENV PATH=/bin", &file, &image];
        if !succeeds("podman", &import) {
            skip("podman imports no image here");
            return None;
        }
        Some(Image(image))
    }

    /// From the submission of a worker to its connection, which is the first that its program does; none, with the reason on
    /// standard error, where no image can be mounted.
    async fn start(&self, client: &Client, listener: &TcpListener) -> Option<Duration> {
        let port = listener.local_addr().expect("a listener has an address").port().to_string();
        let mut wanted = job("timed", &[]);
        let command = ["/bin/nc", "127.0.0.1", &port, "-e", "/bin/true"];
        let container = v1::ContainerRuntime {
            image: self.0.clone(),
            command: command.map(str::to_owned).into(),
            pull: v1::PullRule::Never.into(),
            ..Default::default()
        };
        let group = &mut wanted.spec_mut().groups[0];
        group.resources_mut().memory_bytes = 64 << 20;
        group.runtime = Some(v1::task_group::Runtime::Container(container));
        let begun = Instant::now();
        let id = submit(client, wanted).await;
        let failed = tokio::select! {
            biased;
            _ = listener.accept() => None,
            ended = wait_for_job(client, &id, is_finished) => Some(ended),
        };
        let took = begun.elapsed();
        if let Some(ended) = failed {
            assert!(ended.status().message.contains("mount the image"), "{ended:#?}");
            skip("no overlay can be mounted where the files of tests are");
            return None;
        }
        wait_for_job(client, &id, is_finished).await;
        Some(took)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_job_runs_in_an_image_on_hosts_and_begins_soon() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let Some(image) = Image::make_or_skip(directory.path()) else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, endpoints) = (cluster.client(), cluster.shown_endpoints());
    let settings =
        format!("{}workers = {{ isolation = \"required\" }}\n", anywhere::lay_out(cluster.scratch.path()));
    let _agents = Agents::start_with(&cluster, &["h1"], |_| endpoints.clone(), |_, _| settings.clone()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    // The first one unpacks it.
    if image.start(&client, &listener).await.is_none() {
        return;
    }
    let mut took = Vec::new();
    for _ in 0..STARTS {
        took.push(image.start(&client, &listener).await.expect("it was mounted before"));
    }
    took.sort_unstable();
    let (median, worst) = (took[STARTS / 2], took[STARTS - 1]);
    say(&format!(
        "a worker in an image that is there begins {} ms after its submission (median of {STARTS}, worst {} ms), to be at most 150 ms",
        median.as_millis(),
        worst.as_millis()
    ));
    assert!(median < MEDIAN_MAX, "{took:?}");

    anywhere::run(&cluster, "container", |text| text.replace("registry.example.org/team/train:1", &image.0))
        .await;
    cluster.assert_digests_agree().await;
}
