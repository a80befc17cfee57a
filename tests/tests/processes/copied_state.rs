//! An agent's state directory that is copied, or set back to a copy, while workers run that the copy does not know: no work
//! runs twice at a time.

use muster_client::Client;
use muster_example::intervals;
use muster_wire::v1::{self, JobPhase, NodeStatus};
use std::path::Path;

use crate::support::{
    Agents, Cluster, eventually, heavy, is_finished, say, spawn, submit, wait_for_job, work,
};

/// How long each worker runs: longer than a lease and everything that follows one.
const WORK_MS: u64 = 12_000;

/// Copies a directory with everything that `cp -a` keeps, though shims that wait for workers come and go in it meanwhile.
async fn copy(from: &Path, to: &Path) {
    eventually("no whole copy was made", || async {
        let done = std::process::Command::new("cp").arg("-a").args([from, to]).output();
        if done.expect("cp can be run").status.success() {
            return Some(());
        }
        std::fs::remove_dir_all(to).expect("a copy of this test");
        None
    })
    .await;
}

/// Submits work of one worker on the only host, and waits until that runs.
async fn running(client: &Client, name: &str, evidence: &Path) -> String {
    let id = submit(client, work(name, evidence, WORK_MS, 0, (1, 1))).await;
    wait_for_job(client, &id, |job| job.phase() == JobPhase::Running).await;
    eventually("the worker did not begin", || async {
        let all = intervals::read(evidence).expect("evidence can be read");
        all.iter().any(|one| one.job == id).then_some(())
    })
    .await;
    id
}

/// The job in the end, which has succeeded.
async fn succeeded(client: &Client, id: &str) -> v1::Job {
    let ended = wait_for_job(client, id, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    ended
}

fn assert_never_twice(evidence: &Path, what: &str) {
    let report = intervals::check(&intervals::read(evidence).expect("evidence can be read"));
    assert!(report.overlaps.is_empty(), "{what}: {report}");
    say(&format!("{what}: {report}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_a_copied_state_directory_does_not_know_never_runs_twice() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let mut agents = Agents::start(&cluster, &["h1"]).await;
    let client = cluster.client();
    let evidence = cluster.scratch.path().join("intervals");
    std::fs::create_dir(&evidence).unwrap();
    let (home, state) = (agents.home("h1").to_owned(), agents.state_of("h1"));
    let backup = home.join("backup");
    copy(&state, &backup).await;

    // The contents are put back into the same directory, as a file system that is set back does it.
    let id = running(&client, "set-back", &evidence).await;
    agents.kill("h1").await;
    eventually("the state directory was not emptied", || async {
        for entry in std::fs::read_dir(&state).ok()? {
            let path = entry.ok()?.path();
            // A shim that ends may put something there meanwhile, which is found again.
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.ok()?;
        }
        Some(())
    })
    .await;
    copy(&backup.join("."), &state).await;
    agents.start_agent("h1");
    assert!(succeeded(&client, &id).await.status().attempt > 1, "its worker was lost with the records of it");
    assert_never_twice(&evidence, "contents put back");

    // The directory is another one, with the same contents.
    let id = running(&client, "replaced", &evidence).await;
    agents.kill("h1").await;
    std::fs::rename(&state, home.join("away")).unwrap();
    copy(&backup, &state).await;
    agents.start_agent("h1");
    assert!(succeeded(&client, &id).await.status().attempt > 1, "its worker was lost with the records of it");
    assert_never_twice(&evidence, "directory put back");

    // A second agent on a copy, on the same host and boot: it has no part in what the first one does.
    agents.wait_status("h1", NodeStatus::Up).await;
    let id = running(&client, "next-to-a-twin", &evidence).await;
    let twin = home.join("twin");
    std::fs::create_dir(&twin).unwrap();
    copy(&state, &twin.join("state")).await;
    let config = std::fs::read_to_string(home.join("agent.toml")).unwrap();
    let own = format!("state_dir = {state:?}");
    assert!(config.contains(&own), "{config}");
    let config = config.replace(&own, &format!("state_dir = {:?}", twin.join("state")));
    std::fs::write(twin.join("agent.toml"), config).unwrap();
    let config = twin.join("agent.toml").display().to_string();
    let mut second = spawn(&twin, &["agent", "--config", &config]);
    eventually("the second agent was not refused", || async {
        let log = std::fs::read_to_string(twin.join("log")).unwrap_or_default();
        log.contains("another agent holds h1").then_some(())
    })
    .await;
    assert_eq!(succeeded(&client, &id).await.status().attempt, 1, "the first one's work goes on");
    second.start_kill().unwrap();
    second.wait().await.unwrap();
    assert_never_twice(&evidence, "a second agent");
    cluster.assert_digests_agree().await;
}
