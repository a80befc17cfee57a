//! Processes whose standard error cannot be written: the disk below it is full, or its reader has gone.

use muster_wire::v1::JobPhase;

use crate::support::{Agents, Cluster, heavy, is_finished, job, wait_for_job};

/// Starts a program with a standard error that takes nothing.
const FULL: &[&str] = &["sh", "-c", "exec \"$@\" 2> /dev/full", "sh"];
/// With one whose reader is gone by the time of the first line.
const CLOSED: &[&str] = &["bash", "-c", "exec \"$@\" 2> >(exec true)", "bash"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_written_ends_no_process() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let mut agents = Agents::start(&cluster, &["h1", "h2"]).await;
    for (at, wrapper) in [FULL, CLOSED, FULL].into_iter().enumerate() {
        cluster.kill(at).await;
        cluster.start_replica_below(wrapper, at, &[]);
        cluster.leader().await;
    }
    for (host, wrapper) in [("h1", FULL), ("h2", CLOSED)] {
        agents.kill(host).await;
        agents.start_agent_below(wrapper, host);
        agents.wait_status(host, muster_wire::v1::NodeStatus::Up).await;
    }
    let client = cluster.client();
    for host in ["h1", "h2"] {
        let mut wanted = job("quiet", &["sh", "-c", "echo fine"]);
        let values = muster_wire::v1::LabelValues { values: vec![host.to_owned()] };
        wanted.spec_mut().node_selector.insert("host".to_owned(), values);
        let request = muster_wire::v1::SubmitJobRequest { job: Some(wanted), ..Default::default() };
        let id = client.submit_job(request).await.expect("it is taken").job_ids.remove(0);
        let ended = wait_for_job(&client, &id, is_finished).await;
        assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    }
    // A change of leaders makes every replica write of it.
    let leader = cluster.leader().await;
    cluster.kill(leader).await;
    cluster.start_replica_below(FULL, leader, &[]);
    cluster.leader().await;
    cluster.assert_alive();
    for host in ["h1", "h2"] {
        assert!(!agents.processes(host).is_empty(), "agent {host} has ended");
        agents.wait_status(host, muster_wire::v1::NodeStatus::Up).await;
    }
    drop(agents);
    cluster.assert_digests_agree().await;
}
