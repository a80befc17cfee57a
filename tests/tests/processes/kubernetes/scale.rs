//! One agent for many nodes of Kubernetes, and what it needs for them. No kubelet is behind the nodes.
//!
//! `MUSTER_TEST_KUBERNETES_NODES=5000 .ci/kubernetes cargo test --release --locked --test processes -- kubernetes::scale --nocapture`
//! takes that many nodes, and prints what their agent has in memory.

use muster_client::Client;
use muster_wire::v1;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

use super::lab::{DEVICES, Lab, PodAgent};
use crate::support::{Cluster, heavy, say};

/// Nodes where the environment names no number.
const NODES: usize = 100;
/// Pods of others on each, with one device each.
const PODS: u32 = 2;
/// Objects that are made at once.
const BATCH: usize = 500;
/// What is waited for: this, and as much again for each thousand of nodes.
const LEAST_WAIT: Duration = Duration::from_secs(120);

fn named(at: usize) -> String {
    format!("many-{at}")
}

fn node(lab: &Lab, at: usize) -> Value {
    let labels = json!({
        "kubernetes.io/hostname": named(at), "muster.test/declared": "true", "muster.test/in": lab.namespace(),
    });
    let amounts =
        json!({ "cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": DEVICES.to_string() });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": named(at), "labels": labels },
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
            "conditions": [{ "type": "Ready", "status": "True", "reason": "Declared", "message": "by a test" }],
        },
    })
}

fn pod(lab: &Lab, at: usize, number: u32) -> Value {
    let mut pod = lab.foreign(&format!("other-{at}-{number}"), &named(at), 1);
    pod["metadata"]["namespace"] = lab.namespace().into();
    pod["spec"]["nodeName"] = named(at).into();
    pod
}

/// How many nodes are up with what the pods of others leave.
async fn seen(client: &Client) -> usize {
    let mut request = v1::ListNodesRequest { page_size: 1_000, ..Default::default() };
    let mut count = 0;
    loop {
        let page = client.list_nodes(request.clone()).await.expect("nodes can be listed");
        let here = page
            .nodes
            .iter()
            .filter(|node| node.status() == v1::NodeStatus::Up && node.free_devices == DEVICES - PODS);
        count += here.count();
        if page.next_page_token.is_empty() {
            return count;
        }
        request.page_token = page.next_page_token;
    }
}

/// A line of what the kernel says of a process, in KiB.
fn kib(pid: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let found = status.lines().find_map(|text| text.strip_prefix(line));
    let number = found.and_then(|text| text.trim_start_matches(':').split_whitespace().next());
    number.and_then(|text| text.parse().ok()).expect("the kernel says it")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_of_many_nodes_knows_what_is_free_on_each() {
    let Some(lab) = Lab::open_or_skip("many nodes").await else { return };
    let asked = std::env::var("MUSTER_TEST_KUBERNETES_NODES").ok().filter(|text| !text.is_empty());
    let nodes: usize = asked.map_or(NODES, |text| text.parse().expect("a number of nodes"));
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let client = cluster.client();
    let mut objects: Vec<Value> = (0..nodes).map(|at| node(&lab, at)).collect();
    objects.extend(
        (0..nodes)
            .flat_map(|at| (0..PODS).map(move |number| (at, number)))
            .map(|(at, number)| pod(&lab, at, number)),
    );
    for batch in objects.chunks(BATCH) {
        lab.create(batch).await;
    }

    let mut agent = PodAgent::lay_out(&cluster, &lab, "agent", &lab.declared(), lab.kubeconfig());
    let begun = Instant::now();
    agent.start();
    let end =
        tokio::time::Instant::now() + LEAST_WAIT * (1 + u32::try_from(nodes / 1_000).unwrap_or(u32::MAX));
    loop {
        let count = seen(&client).await;
        if count == nodes {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "{count} of {nodes} nodes have what is free");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let pid = agent.pid().expect("it runs");
    say(&format!(
        "an agent with {nodes} nodes and {} pods of others has all of them after {} ms and {} MiB in memory, {} MiB at most; to be at most 40 MiB with 5000 nodes and 10000 pods",
        nodes * PODS as usize,
        begun.elapsed().as_millis(),
        kib(pid, "VmRSS") >> 10,
        kib(pid, "VmHWM") >> 10
    ));
    drop(agent);
    cluster.assert_digests_agree().await;
}
