//! Parts of a Kubernetes cluster that stand still for a while: its storage, and a node's kubelet and container runtime.

use muster_wire::v1::{self, JobPhase};
use std::time::Duration;

use super::lab::{DEVICES, Lab, PodAgent, Stopped, Witness, holds_for};
use super::{HOLD, assert_first_attempt, is_running};
use crate::support::{Cluster, heavy, is_finished, say, submit, wait_for_job};

/// For so long. Calls to the API server may take longer.
const STILL: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_goes_on_while_parts_of_the_cluster_stand_still() {
    let Some(lab) = Lab::open_or_skip("parts of Kubernetes that stand still").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, witness) = (cluster.client(), Witness::start().await);
    let agent = PodAgent::start_for(&cluster, &client, &lab).await;
    // One worker on each node, with devices left for another job.
    let workers = lab.nodes.len() as u32;
    let held = submit(&client, witness.job("held", HOLD, (workers, DEVICES / 2 + 1))).await;
    witness.living(&held, workers as usize).await;
    wait_for_job(&client, &held, is_running).await;

    let parts = [
        ("etcd", lab.part("etcd")),
        ("kubelet", lab.process_of_node("--hostname-override=node-1")),
        ("containerd", lab.process_of_node("nodes/1/containerd.toml")),
    ];
    for (name, part) in parts {
        let Some(part) = part else {
            say(&format!("skipped: {name} that stands still (it was not started by .ci/kubernetes)"));
            continue;
        };
        let stopped = Stopped::stop(part);
        let next = submit(&client, witness.job("next", "sleep 1", (1, 1))).await;
        holds_for(STILL, "a worker ended", || {
            witness.intervals(&held).iter().all(|interval| interval.ended.is_none())
        })
        .await;
        drop(stopped);
        let ended = wait_for_job(&client, &next, is_finished).await;
        assert_eq!(ended.phase(), JobPhase::Succeeded, "{name}: {ended:#?}");
        let still = wait_for_job(&client, &held, |_| true).await;
        assert_eq!((still.phase(), still.status().attempt), (JobPhase::Running, 1), "{name}: {still:#?}");
    }
    client.cancel_job(v1::CancelJobRequest { job_id: held.clone(), ..Default::default() }).await.unwrap();
    wait_for_job(&client, &held, is_finished).await;
    let last = submit(&client, witness.job("last", "sleep 1", (workers, DEVICES))).await;
    assert_first_attempt(&wait_for_job(&client, &last, is_finished).await);
    lab.nothing_left().await;
    witness.assert_once();
    drop(agent);
    cluster.assert_digests_agree().await;
}
