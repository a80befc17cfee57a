//! A real browser opens the web pages of a real cluster.
//!
//! It runs where `MUSTER_BROWSER=1` asks for it (`.ci/browser` does, and installs what it takes), and says that it is skipped
//! otherwise.

use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;

use crate::support::{Agents, Cluster, accelerators, heavy, job, say, submit, wait_for_job};
use muster_client::Client;
use muster_wire::v1;

/// Jobs that wait while the first paint of each page is measured, and those of one submission.
const JOBS: usize = 100_000;
const BATCH_JOBS: usize = 1_000;

/// A job that asks for devices of a host and sleeps.
fn sleeping(name: &str, devices: u32) -> v1::Job {
    let mut job = job(name, &["sleep", "600"]);
    let group = &mut job.spec_mut().groups[0];
    group.resources_mut().accelerators = Some(accelerators("h100", devices));
    job
}

/// Jobs that wait for devices, until the cluster has [`JOBS`] of them.
async fn submit_many(client: &Client) {
    let mut taken = 0;
    while taken < JOBS {
        let batch = taken..JOBS.min(taken + BATCH_JOBS);
        let jobs = batch.map(|n| sleeping(&format!("waits-{n}"), 4)).collect();
        let request = v1::SubmitJobsRequest { jobs, ..Default::default() };
        taken += client.submit_jobs(request).await.expect("jobs that fit are accepted").job_ids.len();
    }
    assert_eq!(taken, JOBS);
}

/// Runs the script in the browser; with a number of jobs it measures, without one it looks for barriers.
async fn check(cluster: &Cluster, leader: usize, paths: &[String], jobs: Option<usize>) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("browser/check.mjs");
    let mut node = Command::new("node");
    node.arg(script)
        .env("MUSTER_PAGES", format!("http://{}", cluster.replicas[leader].http))
        .env("MUSTER_PATHS", paths.join(" "))
        .env_remove("MUSTER_JOBS")
        .stdin(Stdio::null());
    if let Some(jobs) = jobs {
        node.env("MUSTER_JOBS", jobs.to_string());
    }
    let checked = node.status().await.expect("node runs");
    assert!(checked.success(), "see the findings above");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_finds_no_barrier_on_any_page_and_paints_each_soon_with_100_000_jobs() {
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
    check(&cluster, leader, &paths, None).await;
    submit_many(&client).await;
    // Another replica may lead by now.
    let leader = cluster.leader().await;
    check(&cluster, leader, &paths, Some(JOBS)).await;
}
