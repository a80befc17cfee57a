//! Bookings by hand, across the loss of a leader.

use serde_json::Value;

use crate::support::{Cluster, eventually};

async fn listed(cluster: &Cluster) -> Value {
    let text = cluster.operated(&["booking", "list", "-o", "json"]).await;
    serde_json::from_str(&text).expect("it is JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_booking_is_made_opens_and_outlives_its_leader() {
    let mut cluster = Cluster::start_with(3, 0, "").await;
    let path = cluster.scratch.path().join("policy.yaml");
    let policy = "apiVersion: muster.dev/v1\nkind: Policy\nspec:\n  tenants:\n    vision: {}\n";
    std::fs::write(&path, policy).expect("a file can be written");
    cluster.operated(&["policy", "set", path.to_str().expect("the path is text")]).await;
    let demo = ["booking", "create", "demo", "--tenant", "vision", "--node", "no-agent", "--for", "1h"];
    let planned = cluster.operated(&[&demo[..], &["--dry-run"]].concat()).await;
    assert!(planned.contains("nodes: no-agent"), "{planned}");
    assert_eq!(listed(&cluster).await["items"], Value::Array(Vec::new()), "nothing was changed");
    cluster.operated(&[&demo[..], &["--reason", "a demonstration"]].concat()).await;
    cluster.operate(&demo).await.assert_refused(5, &["MS-3009", "muster booking delete"]);
    let other = ["booking", "create", "other", "--tenant", "vision", "--node", "no-agent", "--for", "1h"];
    cluster.operate(&other).await.assert_refused(5, &["MS-3010", "demo"]);
    eventually("its window did not open", || async {
        (listed(&cluster).await["items"][0]["open"] == true).then_some(())
    })
    .await;
    let leader = cluster.leader().await;
    cluster.kill(leader).await;
    eventually("the booking is gone", || async {
        let shown = cluster.operate(&["booking", "show", "demo"]).await;
        (shown.code == Some(0) && shown.out.contains("a demonstration")).then_some(())
    })
    .await;
    let told = cluster.operated(&["booking", "delete", "demo", "--dry-run"]).await;
    assert!(told.contains("demo of tenant vision would be deleted") && told.contains("no-agent"), "{told}");
    assert_eq!(listed(&cluster).await["items"][0]["name"], "demo", "nothing was changed");
    cluster.operated(&["booking", "delete", "demo"]).await;
    cluster.operate(&["booking", "show", "demo"]).await.assert_refused(3, &["MS-3008"]);
    cluster.restart_all().await;
    cluster.assert_digests_agree().await;
}
