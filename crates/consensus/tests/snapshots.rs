//! Snapshots: made while apply goes on, installed where the log does not reach, survived by restarts.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use bytes::Bytes;
use muster_consensus::SnapshotPolicy;
use muster_types::ReplicaId;
use std::collections::BTreeSet;
use support::{Cluster, Disk, guarded, node};

const EVERY_ENTRIES: u64 = 40;

async fn compacting(count: u64, voters: u64, disk: fn() -> Disk) -> Cluster {
    let mut cluster = Cluster::prepare(count, disk).await;
    cluster.snapshots =
        SnapshotPolicy { every_entries: Some(EVERY_ENTRIES), kept_entries: 5, ..SnapshotPolicy::ON_DEMAND };
    for id in 1..=voters {
        cluster.start_replica(id).await;
    }
    cluster.initialize(voters).await;
    cluster
}

/// Waits until a replica has made a snapshot and purged the log behind it.
async fn purged(cluster: &Cluster, id: u64) {
    let consensus = cluster.replicas[&id].consensus.clone();
    let mut applied = consensus.applied();
    guarded("the log is purged", async {
        loop {
            applied.borrow_and_update();
            if consensus.status().purged_index.is_some_and(|index| index > 0) {
                return;
            }
            // Purging follows the snapshot, not an entry: something has to be written to look again.
            let ids: Vec<u64> = cluster.replicas.keys().copied().collect();
            cluster.write(&ids, "filler").await;
        }
    })
    .await;
}

async fn a_fresh_replica_gets_a_snapshot(disk: fn() -> Disk) {
    let mut cluster = compacting(4, 3, disk).await;
    let payload = Bytes::from(vec![7; 20_000]);
    for _ in 0..3 * EVERY_ENTRIES {
        cluster.write(&[1, 2, 3], payload.clone()).await;
    }
    let leadership = cluster.leader().await;
    purged(&cluster, leadership.replica.0).await;
    cluster.start_replica(4).await;
    let leader = cluster.consensus(cluster.leader().await.replica).clone();
    guarded("the learner is added", leader.add_learner(ReplicaId(4), node(4))).await.unwrap();
    guarded("the learner catches up", leader.wait_caught_up(ReplicaId(4))).await.unwrap();
    let changed = guarded("the learner becomes a voter", leader.promote(ReplicaId(4))).await.unwrap();
    assert_eq!(changed.voters, (1..=4).map(ReplicaId).collect::<BTreeSet<_>>());
    assert!(cluster.replicas[&4].consensus.status().snapshot_index.is_some(), "it was given a snapshot");
    let last = cluster.write(&[1, 2, 3, 4], "last").await;
    let expected = cluster.applied(1, last).await;
    assert_eq!(cluster.applied(4, last).await, expected);
    // The others restart from their own snapshots and the rest of the log.
    for id in 1..=4 {
        cluster.stop_replica(id).await;
    }
    for id in 1..=4 {
        cluster.start_replica(id).await;
    }
    let after = cluster.write(&[1, 2, 3, 4], "after").await;
    for id in 1..=4 {
        let applied = cluster.applied(id, after).await;
        assert_eq!(applied[..expected.len()], expected[..], "replica {id}");
        assert_eq!(applied.last().unwrap(), "after");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_replica_gets_a_snapshot_in_memory() {
    a_fresh_replica_gets_a_snapshot(Disk::memory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_replica_gets_a_snapshot_on_disk() {
    a_fresh_replica_gets_a_snapshot(Disk::directory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_away_catches_up_by_snapshot() {
    let mut cluster = compacting(3, 3, Disk::directory).await;
    cluster.write(&[1, 2, 3], "first").await;
    let away = cluster.leader().await.replica.0 % 3 + 1;
    cluster.stop_replica(away).await;
    let rest: Vec<u64> = cluster.replicas.keys().copied().collect();
    for number in 0..3 * EVERY_ENTRIES {
        cluster.write(&rest, number.to_string()).await;
    }
    for id in &rest {
        purged(&cluster, *id).await;
    }
    cluster.start_replica(away).await;
    let last = cluster.write(&rest, "last").await;
    let expected = cluster.applied(rest[0], last).await;
    assert_eq!(cluster.applied(away, last).await, expected);
}
