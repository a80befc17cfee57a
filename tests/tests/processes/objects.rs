//! Files of jobs and artifacts of workers through a bucket of a real server that speaks S3's protocol.
//!
//! `.ci/objects` installs the server, and names its Python in `MUSTER_OBJECTS`. Without it the test says that it is skipped.

use muster_wire::v1::JobPhase;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::support::{Agents, Cluster, Ran, is_finished, muster, run_program_to_end, say, wait_for_job};

/// The bucket of the server, and what all names in it begin with.
const BUCKET: &str = "muster-files";
const STORE: &str = "s3://muster-files/prod";
/// What must be in no output and in no file of an agent.
const SECRET: &str = "hunter2-of-the-bucket";
/// Of a file that is sent in parts.
const LARGE_BYTES: usize = 20 << 20;

/// The server, until this is dropped.
struct Server {
    _child: Child,
    endpoint: String,
}

impl Server {
    async fn start(python: &Path) -> Server {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("objects/server.py");
        let mut command = Command::new(python);
        command.arg(script).arg(BUCKET).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the server's Python runs");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let endpoint = lines.next_line().await.expect("it is text").expect("the server starts");
        Server { _child: child, endpoint }
    }
}

/// A configuration of a client that names the bucket; and the lines about it for an agent.
fn configure(scratch: &Path, endpoint: &str) -> (PathBuf, String) {
    let keys = scratch.join("keys");
    let text = format!("aws_access_key_id = test\naws_secret_access_key = {SECRET}\n");
    std::fs::write(&keys, text).expect("a file");
    let reached = format!("endpoint = {endpoint:?}\nallow_http = true\ncredentials_file = {keys:?}\n");
    let home = scratch.join("config");
    std::fs::create_dir_all(home.join("muster")).expect("a directory");
    let own = format!("store = {STORE:?}\n\n[s3]\n{reached}");
    std::fs::write(home.join("muster/config.toml"), own).expect("a file");
    let of_agent = format!(
        "files = {{ store = {STORE:?}, s3 = {{ endpoint = {endpoint:?}, allow_http = true, credentials_file = {keys:?} }} }}\n"
    );
    (home, of_agent)
}

/// A command with that configuration.
async fn run(home: &Path, endpoint: &str, words: &[&str]) -> Ran {
    let homes = ["XDG_CONFIG_HOME", "XDG_CACHE_HOME"].map(|name| format!("{name}={}", home.display()));
    let program = muster().to_str().expect("a path that is text");
    let before = [homes[0].as_str(), homes[1].as_str(), program, "--endpoint", endpoint];
    run_program_to_end(Path::new("/usr/bin/env"), &[&before[..], words].concat(), "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_artifacts_travel_through_a_bucket() {
    let Some(python) = std::env::var_os("MUSTER_OBJECTS") else {
        return say("skipped: files of jobs in a bucket (MUSTER_OBJECTS and .ci/objects)");
    };
    let server = Server::start(Path::new(&python)).await;
    let mut cluster = Cluster::start(1).await;
    let scratch = cluster.scratch.path().to_owned();
    let (home, of_agent) = configure(&scratch, &server.endpoint);
    let endpoints = cluster.shown_endpoints();
    let _agents = Agents::start_with(&cluster, &["h1"], |_| endpoints.clone(), |_, _| of_agent.clone()).await;
    let (client, endpoint) = (cluster.client(), endpoints.join(","));

    let directory = scratch.join("project");
    std::fs::create_dir(&directory).expect("a directory");
    let large: Vec<u8> =
        (0..LARGE_BYTES as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(directory.join("large"), large).expect("a file");
    std::fs::write(directory.join("train.sh"), "wc -c < large; mkdir out; echo 0.9 > out/score")
        .expect("a file");
    let job = directory.join("job.yaml");
    let file = "apiVersion: muster.dev/v1\nkind: Job\nmetadata: {name: shipped, tenant: research}\nspec:\n  command: [sh, train.sh]\n  \
                cpu: 100m\n  memory: 16Mi\n  artifacts: {paths: [out], required: true}\n";
    std::fs::write(&job, file).expect("a file");
    let (at, file) = (directory.to_str().expect("text"), job.to_str().expect("text"));

    let sent = run(&home, &endpoint, &["submit", file, "--workdir", at]).await;
    assert_eq!(sent.code, Some(0), "{sent:#?}");
    let id = sent.out.trim().rsplit('/').next().unwrap_or_default().to_owned();
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    let again = run(&home, &endpoint, &["submit", file, "--workdir", at]).await;
    assert!(again.err.contains("the store has all of them"), "{again:#?}");

    let back = scratch.join("back");
    let into = back.to_str().expect("text");
    let got = run(&home, &endpoint, &["artifacts", "get", &id, "--rank", "0", "-d", into]).await;
    assert_eq!(got.code, Some(0), "{got:#?}");
    assert_eq!(std::fs::read_to_string(back.join("out/score")).expect("it came back"), "0.9\n");
    let old = run(&home, &endpoint, &["artifacts", "expire", "--older-than", "90d", "--dry-run"]).await;
    assert_eq!(old.code, Some(0), "{old:#?}");
    assert!(old.out.starts_with("0 objects"), "{old:#?}");
    for ran in [&sent, &again, &got, &old] {
        assert!(!ran.out.contains(SECRET) && !ran.err.contains(SECRET), "{ran:#?}");
    }
    cluster.assert_digests_agree().await;
}
