//! `muster quota` against a real cluster: asked for, granted, seen in the quotas, and over.

use serde_json::Value;
use std::path::Path;

use crate::support::{Cluster, eventually};

async fn told(cluster: &Cluster, words: &[&str]) -> Value {
    let told = cluster.operated(&[words, &["-o", "json"]].concat()).await;
    serde_json::from_str(&told).expect("it is JSON")
}

/// What a tenant is guaranteed, in thousandths of a device.
async fn guaranteed(cluster: &Cluster, tenant: &str) -> Option<u64> {
    let queues = told(cluster, &["queue", "list"]).await;
    let row = queues["items"].as_array()?.iter().find(|row| row["tenant"] == tenant)?.clone();
    row["quotas"][0]["nominalMilli"].as_u64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quota_is_asked_for_granted_and_over() {
    let cluster = Cluster::start(1).await;
    cluster.leader().await;
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/examples/policy.yaml");
    cluster.operated(&["policy", "set", policy.to_str().expect("a path")]).await;
    assert_eq!(guaranteed(&cluster, "vision").await, Some(48_000));
    let wanted = ["h100:4", "--region", "eu-north", "--until", "+1h", "--reason", "a review"];
    let shown =
        told(&cluster, &[&["quota", "request", "vision"][..], &wanted, &["--dry-run"]].concat()).await;
    assert_eq!((&shown["status"], &shown["impact"]["jobs"]), (&Value::from(""), &Value::from(0)), "{shown}");
    let asked = told(&cluster, &[&["quota", "request", "vision"][..], &wanted].concat()).await;
    assert_eq!(asked["status"], "requested", "{asked}");
    let id = asked["id"].as_u64().expect("a number").to_string();
    assert_eq!(guaranteed(&cluster, "vision").await, Some(48_000), "nobody has answered");
    let granted = told(&cluster, &["quota", "approve", &id, "--reason", "agreed"]).await;
    assert_eq!(granted["status"], "granted", "{granted}");
    assert_eq!(guaranteed(&cluster, "vision").await, Some(52_000));

    // Research has 64 in this region, of which vision has 52 by now.
    let above = ["quota", "grant", "language", "h100:13", "--region", "eu-north", "--until", "+1h"];
    let refused = cluster.operate(&[&above[..], &["--reason", "too much"]].concat()).await;
    assert_eq!(refused.code, Some(5), "{refused:#?}");
    let soon = ["quota", "grant", "language", "h100:12", "--region", "eu-north", "--until", "+3s"];
    told(&cluster, &[&soon[..], &["--reason", "as long as it takes"]].concat()).await;
    eventually("the grant did not end", || async {
        let history = told(&cluster, &["quota", "history", "--tenant", "language"]).await;
        (history["items"][0]["end"] == "expired").then_some(())
    })
    .await;
    told(&cluster, &["quota", "deny", &id, "--reason", "it is needed elsewhere"]).await;
    assert_eq!(guaranteed(&cluster, "vision").await, Some(48_000));
    let listed = told(&cluster, &["quota", "list"]).await;
    assert_eq!(listed["items"], Value::Array(Vec::new()), "nothing is open or in force");
}
