//! The package as it is applied: the agent is a pod with the rights in the package, and makes pods of a gang.
//!
//! What every cluster changes is changed here as well: names of images and addresses. Beyond that, this machine has no way from a pod
//! to an address of the cluster's services or of the test's replicas, and makes no volumes: so the agent has the network of its node, is
//! told where the API server is, and its volume is laid out.

use muster_wire::v1::{self, JobPhase};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::lab::Lab;
use super::plain;
use crate::support::{Cluster, eventually, free_address, heavy, is_finished, output, submit, wait_for_job};

/// The user of the agent in the package.
const USER: u32 = 65_532;
/// Prefix of nodes in the package.
const GROUP: &str = "k8s-a.";

/// What was applied; taken away with it.
struct Applied<'a> {
    lab: &'a Lab,
    package: PathBuf,
}

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        let package = self.package.to_string_lossy();
        let nodes: Vec<&str> = self.lab.nodes.iter().map(String::as_str).collect();
        let label = [&["label", "node"][..], &nodes[..], &["muster.dev/workers-"][..]].concat();
        let all: [&[&str]; 3] = [
            &["delete", "-k", &package, "--ignore-not-found", "--timeout=60s"],
            &["delete", "persistentvolume", "muster-test-state", "--ignore-not-found", "--wait=false"],
            &label,
        ];
        for arguments in all {
            let mut command = self.lab.command(arguments);
            let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

/// The port of the API server.
fn port_of_server(kubeconfig: &Path) -> String {
    let text = std::fs::read_to_string(kubeconfig).expect("it can be read");
    let (_, behind) = text.split_once("server: \"https://127.0.0.1:").expect("it is on this machine");
    behind.chars().take_while(char::is_ascii_digit).collect()
}

/// The configuration of the package, for these replicas and this address.
fn configuration(text: &str, endpoints: &[String], listen: &str, image: &str) -> String {
    let (head, rest) = text.split_once("endpoints = [").expect("it names replicas");
    let (_, rest) = rest.split_once("]\n").expect("the list ends");
    let (_, table) = rest.split_once("[kubernetes]\n").expect("it is for Kubernetes");
    let lines = table.lines().map(|line| match line.split_once(" = ") {
        Some(("listen" | "advertise", _)) => String::new(),
        Some(("shim_image", _)) => format!("shim_image = {image:?}\ndefault_image = {image:?}"),
        _ => line.to_owned(),
    });
    let table: Vec<String> = lines.collect();
    format!(
        "{head}endpoints = {endpoints:?}\n\n[kubernetes]\n{}\nlisten = {listen:?}\nadvertise = {listen:?}\n",
        table.join("\n")
    )
}

/// A copy of the package, changed.
fn lay_out(cluster: &Cluster, lab: &Lab) -> PathBuf {
    let package = cluster.scratch.path().join("workers");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/packages/kubernetes/workers");
    let copied = std::process::Command::new("cp").arg("-r").arg(from).arg(&package).status();
    assert!(copied.expect("it can be copied").success());
    let change = |file: &str, change: &dyn Fn(String) -> String| {
        let path = package.join(file);
        let text = std::fs::read_to_string(&path).expect("the package has it");
        std::fs::write(&path, change(text)).expect("own file");
    };
    let listen = free_address([127, 0, 0, 1].into()).to_string();
    let endpoints = cluster.shown_endpoints();
    change("config/agent.toml", &|text| configuration(&text, &endpoints, &listen, lab.image()));
    let (name, tag) = lab.image().rsplit_once(':').expect("an image has a tag");
    change("kustomization.yaml", &|text| {
        let named = text.replace("newName: registry.example.org/muster", &format!("newName: {name}"));
        named.replace("newTag: 0.1.0", &format!("newTag: {tag}")) + "patchesStrategicMerge: [here.yaml]\n"
    });
    let patch = format!(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: muster-workers-agent}}\nspec:\n  template:\n    spec:\n      \
         hostNetwork: true\n      containers:\n        - name: agent\n          env:\n            \
         - {{name: KUBERNETES_SERVICE_HOST, value: \"127.0.0.1\"}}\n            \
         - {{name: KUBERNETES_SERVICE_PORT, value: \"{}\"}}\n",
        port_of_server(lab.kubeconfig())
    );
    std::fs::write(package.join("here.yaml"), patch).expect("own file");
    package
}

async fn succeeds(lab: &Lab, arguments: &[&str], input: &str) {
    let ran = lab.kubectl(arguments, input).await;
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_packaged_agent_makes_pods_of_a_gang() {
    let Some(lab) = Lab::open_or_skip("an agent that is a pod").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let client = cluster.client();
    let package = lay_out(&cluster, &lab);
    let state = cluster.scratch.path().join("state-of-agent");
    std::fs::create_dir(&state).expect("a directory");
    std::os::unix::fs::chown(&state, Some(USER), Some(USER)).expect("this is root");
    let applied = Applied { lab: &lab, package };
    for node in &lab.nodes {
        lab.label(node, "muster.dev/workers=true").await;
    }
    let volume = serde_json::json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "muster-test-state" },
        "spec": {
            "capacity": { "storage": "10Gi" }, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": { "path": state },
            "claimRef": { "namespace": "muster-workers", "name": "state-muster-workers-agent-0" },
        },
    });
    succeeds(&lab, &["apply", "-f", "-"], &volume.to_string()).await;
    let path = applied.package.to_str().expect("a temporary path is text");
    succeeds(&lab, &["apply", "-k", path], "").await;
    // Its replicas are without certificates here; the package mounts some all the same.
    let secret = ["-n", "muster-workers", "create", "secret", "generic", "muster-workers-agent-tls"];
    succeeds(&lab, &[&secret[..], &["--from-literal=none=none"][..]].concat(), "").await;

    eventually("the packaged agent has no nodes", || async {
        let nodes = client.list_nodes(v1::ListNodesRequest::default()).await.ok()?.nodes;
        let is_own = |node: &&v1::Node| {
            let name = node.description.as_ref().map_or("", |description| description.name.as_str());
            name.starts_with(GROUP) && node.status() == v1::NodeStatus::Up
        };
        (nodes.iter().filter(is_own).count() == lab.nodes.len()).then_some(())
    })
    .await;
    let mut gang = plain("inside", &["/bin/sh", "-c", "echo rank $MUSTER_RANK on $MUSTER_NODE"]);
    gang.spec_mut().groups[0].workers = 2;
    let id = submit(&client, gang).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    let said = output(&client, &id).await;
    assert!(said.starts_with("rank 0 on k8s-a."), "{said:?}");
    drop(applied);
    cluster.assert_digests_agree().await;
}
