//! A cluster of Kubernetes whose agent reaches no replica: nothing passes between them, and no connection ends.

use muster_wire::v1::{self, JobPhase};
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::lab::{Lab, PodAgent, Witness, nodes_up};
use super::{HOLD, is_running};
use crate::support::{Cluster, heavy, is_finished, submit, wait_for_job};

/// A network to one replica that can be cut.
struct Network {
    address: SocketAddr,
    passes: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Drop for Network {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Network {
    async fn start(onward: SocketAddr) -> Network {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let (passes, seen) = watch::channel(true);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass(stream, onward, seen.clone()));
            }
        });
        Network { address, passes, accepting }
    }
}

/// Passes one connection on. One that is cut stays open and silent, and ends when others can pass.
async fn pass(mut from: TcpStream, onward: SocketAddr, mut passes: watch::Receiver<bool>) {
    if passes.wait_for(|passes| *passes).await.is_err() {
        return;
    }
    let Ok(mut to) = TcpStream::connect(onward).await else { return };
    let is_cut = tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut from, &mut to) => false,
        is_cut = async { passes.wait_for(|passes| !*passes).await.is_ok() } => is_cut,
    };
    if is_cut {
        let _ = passes.wait_for(|passes| *passes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_cluster_that_is_cut_off_end_with_their_lease() {
    let Some(lab) = Lab::open_or_skip("a cluster of Kubernetes that is cut off").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, witness, endpoints) = (cluster.client(), Witness::start().await, cluster.shown_endpoints());
    let onward = endpoints[0].trim_start_matches("http://").parse().expect("an endpoint has an address");
    let network = Network::start(onward).await;
    let mut agent = PodAgent::lay_out(&cluster, &lab, "agent", "muster.test/pods=true", lab.kubeconfig());
    let through = [format!("http://{}", network.address)];
    agent.configure(|text| {
        let changed = text.replace(&format!("{endpoints:?}"), &format!("{through:?}"));
        assert_ne!(changed, text, "it has other endpoints");
        changed
    });
    agent.start();
    nodes_up(&client, lab.nodes.len()).await;
    let id = submit(&client, witness.job("held", HOLD, (1, 1))).await;
    witness.living(&id, 1).await;
    wait_for_job(&client, &id, is_running).await;

    network.passes.send_replace(false);
    // Nobody tells the worker, nor the leader: both count the lease.
    witness.all_ended(&id).await;
    wait_for_job(&client, &id, |job| !is_running(job)).await;
    network.passes.send_replace(true);
    witness.living(&id, 1).await;
    let again = wait_for_job(&client, &id, is_running).await;
    assert_eq!(again.status().attempt, 2, "{again:#?}");

    client.cancel_job(v1::CancelJobRequest { job_id: id.clone(), ..Default::default() }).await.unwrap();
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Cancelled, "{ended:#?}");
    lab.nothing_left().await;
    witness.assert_once();
    drop(agent);
    cluster.assert_digests_agree().await;
}
