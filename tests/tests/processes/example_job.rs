//! The shortest program that there is for the client, while the leader dies under it.

use muster_client::Read;
use muster_wire::v1;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStdout, Command};

use crate::support::{Agents, Cluster, PATIENCE, all_jobs, example_job, heavy, say};

/// The rest of the next line that the program prints, which begins with `what`.
async fn said(lines: &mut Lines<BufReader<ChildStdout>>, what: &str) -> String {
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
    let line = line.unwrap_or_else(|_| panic!("it does not come so far that it has {what}"));
    let line = line.expect("what it prints can be read").unwrap_or_default();
    let (first, rest) = line.split_once(' ').unwrap_or((&line, ""));
    assert_eq!(first, what, "{line:?}");
    rest.to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_of_the_client_survives_the_loss_of_the_leader() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    // The job prints nothing before the leader is gone.
    let gate = cluster.scratch.path().join("gate");
    let script = format!("while [ ! -e {gate:?} ]; do sleep 0.1; done; echo released; sleep 600");
    let mut program = Command::new(example_job())
        .args(["sh", "-c", &script])
        .env("MUSTER_ENDPOINTS", cluster.endpoints().join(","))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the example starts");
    let mut lines = BufReader::new(program.stdout.take().expect("it is piped")).lines();
    let job_id = said(&mut lines, "submitted").await;
    let reason = said(&mut lines, "explained").await;
    let leader = cluster.leader().await;
    cluster.kill(leader).await;
    std::fs::write(&gate, "").expect("the gate can be opened");
    assert_eq!(said(&mut lines, "printed").await, "released");
    assert_eq!(said(&mut lines, "ended").await, "cancelled");
    let ended = tokio::time::timeout(PATIENCE, program.wait()).await.expect("it ends");
    assert!(ended.expect("it can be waited for").success());

    // One job, however often it was sent, and cancelled however often that was.
    let jobs = all_jobs(&cluster.client().reading(Read::linearizable())).await;
    let known: Vec<(&str, v1::JobPhase)> = jobs.iter().map(|job| (job.id.as_str(), job.phase())).collect();
    assert_eq!(known, [(job_id.as_str(), v1::JobPhase::Cancelled)]);
    cluster.start_replica(leader);
    cluster.assert_digests_agree().await;
    say(&format!("a program of the client: {reason} explained, one job through the loss of its leader"));
}
