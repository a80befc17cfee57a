//! A real browser opens the web pages of a real cluster.
//!
//! It runs where `MUSTER_BROWSER=1` asks for it (`.ci/browser` does, and installs what it takes), and says that it is skipped
//! otherwise.

use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;

use crate::support::{Agents, Cluster, accelerators, heavy, job, say, submit, wait_for_job};
use muster_wire::v1;

/// A job that asks for devices of a host and sleeps.
fn sleeping(name: &str, devices: u32) -> v1::Job {
    let mut job = job(name, &["sleep", "600"]);
    let group = &mut job.spec_mut().groups[0];
    group.resources_mut().accelerators = Some(accelerators("h100", devices));
    job
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_finds_no_barrier_on_any_page() {
    if std::env::var("MUSTER_BROWSER").is_err() {
        return say("skipped: the web pages in a browser (MUSTER_BROWSER=1 and .ci/browser)");
    }
    let _heavy = heavy().await;
    let cluster = Cluster::start_with(3, 0, "").await;
    let leader = cluster.leader().await;
    let _agents = Agents::start_in(&cluster, &[("host-a", "r1"), ("host-b", "r2")]).await;
    let client = cluster.client();
    let long = "a-name-of-sixty-three-characters-which-is-as-long-as-a-name-may-b";
    let running = submit(&client, job(&long[..63], &["sleep", "600"])).await;
    wait_for_job(&client, &running, |job| job.status().phase() == v1::JobPhase::Running).await;
    let waiting = submit(&client, sleeping("waits-for-devices", 4)).await;
    let past = client.seen_log_index();
    let paths = [
        "/".to_owned(),
        "/jobs".to_owned(),
        "/jobs?group=tenant".to_owned(),
        "/jobs?group=phase&tenant=default".to_owned(),
        format!("/jobs/{waiting}"),
        format!("/jobs/{running}"),
        format!("/jobs?open={waiting}"),
        "/queues".to_owned(),
        "/nodes".to_owned(),
        "/nodes/host-a".to_owned(),
        "/fleet".to_owned(),
        "/events".to_owned(),
        "/cluster".to_owned(),
        "/timeline".to_owned(),
        "/timeline?by=job".to_owned(),
        "/plan".to_owned(),
        "/plan?accelerators=h100%3A4&workers=2".to_owned(),
        format!("/?at={past}"),
        format!("/events?at={past}"),
        format!("/jobs/{waiting}?at={past}"),
    ];
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("browser/check.mjs");
    let checked = Command::new("node")
        .arg(script)
        .env("MUSTER_PAGES", format!("http://{}", cluster.replicas[leader].http))
        .env("MUSTER_PATHS", paths.join(" "))
        .stdin(Stdio::null())
        .status()
        .await
        .expect("node runs");
    assert!(checked.success(), "see the findings above");
}
