//! Replicas come and go while clients submit: no call fails, and no change that would stop the cluster is
//! made.

use std::collections::BTreeSet;

use crate::support::{Cluster, Load, eventually, heavy, say};

/// The exit code of what the state of things does not permit.
const CONFLICT: i32 = 5;

impl Cluster {
    /// Runs `muster cluster add` for a replica that is laid out.
    async fn add(&self, at: usize) -> String {
        let id = self.replicas[at].id.to_string();
        let address = self.address_of(at);
        let address: Vec<&str> = address.iter().map(String::as_str).collect();
        self.operated(&[&["cluster", "add", &id], address.as_slice()].concat()).await
    }

    /// Who votes, as one replica knows it.
    async fn voters(&self, at: usize) -> BTreeSet<u64> {
        let status = self.status_of(at).await.unwrap_or_else(|error| panic!("replica {at}: {error:?}"));
        status.replicas.iter().filter(|replica| replica.voter).map(|replica| replica.id).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_become_five_and_three_again_under_load() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start_with(3, 2, "").await;
    let mut load = Load::start(&cluster);
    load.progress().await;
    for at in [3, 4] {
        cluster.start_replica_with(at, &["--join"]);
        let said = cluster.add(at).await;
        assert!(said.starts_with("voters 1 2 3"), "{said}");
        load.progress().await;
    }
    let leader = cluster.leader().await;
    assert_eq!(cluster.voters(leader).await, [1, 2, 3, 4, 5].into());

    // The command states that there will be fewer voters before it removes one.
    let ran = cluster.operate(&["cluster", "voters", "1"]).await;
    ran.assert_refused(CONFLICT, &["voters are 1 2 3 4 5 now, and 1 then", "none of them may fail", "--yes"]);
    let ran = cluster.operated(&["cluster", "remove", "1", "--dry-run"]).await;
    assert!(ran.starts_with("voters are 1 2 3 4 5 now, and 2 3 4 5 then"), "{ran}");
    let away = ["--region", "eu", "--peer", "away:1", "--client", "away:2"];
    let replace = [["cluster", "replace", "2", "--with", "9", "--dry-run"].as_slice(), &away].concat();
    let ran = cluster.operated(&replace).await;
    assert!(ran.starts_with("voters are 1 2 3 4 5 now, and 1 3 4 5 9 then"), "{ran}");
    // And what cannot be taken back.
    let ran = cluster.operated(&["cluster", "upgrade", "--to", "99", "--dry-run"]).await;
    assert!(ran.contains("is in force, and 99 would be"), "{ran}");
    assert_eq!(cluster.voters(leader).await, [1, 2, 3, 4, 5].into(), "nothing was changed");

    // Back, the leader among those that go.
    let said = cluster.operated(&["cluster", "voters", "3", "4", "5", "--yes"]).await;
    assert_eq!(said, "voters 3 4 5\n");
    load.progress().await;
    for at in [0, 1] {
        cluster.stop(at).await;
        load.progress().await;
    }
    let leader = cluster.leader().await;
    assert!(leader >= 2, "one that does not vote leads");
    assert_eq!(cluster.voters(leader).await, [3, 4, 5].into());
    let acknowledged = load.finish().await;
    cluster.assert_digests_agree().await;
    say(&format!("three to five to three: {acknowledged} submissions acknowledged, none failed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_replica_is_replaced_with_one_command_under_load() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start_with(3, 1, "").await;
    let mut load = Load::start(&cluster);
    load.progress().await;
    let dead = cluster.leader().await;
    cluster.kill(dead).await;
    cluster.start_replica_with(3, &["--join"]);
    let gone = cluster.replicas[dead].id.to_string();
    let address = cluster.address_of(3);
    let address: Vec<&str> = address.iter().map(String::as_str).collect();
    let command = [&["cluster", "replace", &gone, "--with", "4"], address.as_slice()].concat();
    cluster.operated(&command).await;
    load.progress().await;
    let leader = cluster.leader().await;
    let expected: BTreeSet<u64> = (1..=4).filter(|id| *id != cluster.replicas[dead].id).collect();
    assert_eq!(cluster.voters(leader).await, expected);
    // Given again, it finds its work done.
    let said = cluster.operated(&command).await;
    assert!(said.contains("(as before)"), "{said}");
    let acknowledged = load.finish().await;
    cluster.assert_digests_agree().await;
    say(&format!("replacing a dead leader: {acknowledged} submissions acknowledged, none failed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_would_stop_the_cluster_is_refused() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start_with(3, 1, "").await;
    let dead = cluster.follower().await;
    cluster.kill(dead).await;
    let leader = cluster.leader().await;
    eventually("the leader does not miss the dead replica", || async {
        let status = cluster.status_of(leader).await.ok()?;
        status.warnings.iter().any(|warning| warning.code == "NO_SPARE_VOTER").then_some(())
    })
    .await;
    let status = cluster.operated(&["cluster", "status"]).await;
    assert!(status.contains("2 of 3 voters healthy: a further loss stops the cluster"), "{status}");

    // Of the two that were left, one would be a dead one.
    let healthy = (0..3).find(|at| *at != dead && *at != leader).unwrap();
    let healthy = cluster.replicas[healthy].id.to_string();
    let ran = cluster.operate(&["cluster", "remove", &healthy, "--yes"]).await;
    let silent = format!("r{}", cluster.replicas[dead].id);
    ran.assert_refused(CONFLICT, &["MS-7001 WOULD_LOSE_QUORUM", &silent, "next: ", "--force"]);
    // One that is not there, and one that has no entry of the log.
    let ran = cluster.operate(&["cluster", "remove", "9"]).await;
    ran.assert_refused(3, &["MS-7002 REPLICA_UNKNOWN", "r9"]);
    let address = cluster.address_of(3);
    let address: Vec<&str> = address.iter().map(String::as_str).collect();
    cluster.operated(&[&["cluster", "add", "4", "--learner"], address.as_slice()].concat()).await;
    let ran = cluster.operate(&["cluster", "promote", "4", "--no-wait"]).await;
    ran.assert_refused(CONFLICT, &["MS-7003 REPLICA_NOT_CAUGHT_UP", "r4"]);
    cluster.operated(&["cluster", "remove", "4"]).await;

    // The dead one may go: the two that are left are all there is.
    let gone = cluster.replicas[dead].id.to_string();
    cluster.operated(&["cluster", "remove", &gone, "--yes"]).await;
    assert_eq!(cluster.voters(leader).await.len(), 2);
    cluster.assert_digests_agree().await;
}

/// One that was told to join waits: it forms no cluster and leads none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_joins_does_nothing_by_itself() {
    let mut cluster = Cluster::lay_out_with(3, 0, "");
    for at in 0..2 {
        // A majority of the first members, but none that may form the cluster.
        cluster.start_replica_with(at, &["--join"]);
    }
    for at in 0..2 {
        // It serves a moment before it knows how it is.
        let (health, status) = eventually("the replica does not say how it is", || async {
            let status = cluster.status_of(at).await.ok()?;
            Some((status.health.clone()?, status))
        })
        .await;
        assert!(health.rejoining, "{health:?}");
        assert_eq!((status.cluster_id.as_str(), status.term), ("", 0), "it has formed a cluster or voted");
    }
    // The one that may form it does, and they are still not taken for its voters.
    cluster.start_replica_with(2, &["--bootstrap"]);
    let status = eventually("the replica does not serve", || async { cluster.status_of(2).await.ok() }).await;
    assert!(status.replicas.iter().all(|replica| !replica.leader), "{status:?}");
    cluster.assert_alive();
}
