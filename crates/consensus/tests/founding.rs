//! A cluster is founded once.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use bytes::Bytes;
use muster_consensus::StartError;
use muster_store::ReplicaNode;
use muster_types::ReplicaId;
use std::collections::BTreeMap;
use support::{Cluster, Disk, guarded, node};

fn members() -> BTreeMap<ReplicaId, ReplicaNode> {
    (1..=3).map(|id| (ReplicaId(id), node(id))).collect()
}

/// What `--bootstrap` does, on one replica.
fn found(cluster: &Cluster, id: u64) -> tokio::task::JoinHandle<Result<(), StartError>> {
    let consensus = cluster.replicas[&id].consensus.clone();
    tokio::spawn(async move { consensus.found(members()).await })
}

async fn founded() -> Cluster {
    let mut cluster = Cluster::prepare(3, Disk::new).await;
    let mut founding = Vec::new();
    // The founder is the last to come.
    for id in [3, 2, 1] {
        cluster.start_replica(id).await;
        founding.push(found(&cluster, id));
    }
    for each in founding {
        guarded("the founding", each).await.unwrap().unwrap();
    }
    cluster.write(&[1, 2, 3], Bytes::from_static(b"acknowledged")).await;
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lost_its_disk_founds_nothing_beside_the_others() {
    for lost in [1, 2] {
        let mut cluster = founded().await;
        cluster.stop_replica(lost).await;
        cluster.disks.insert(lost, Disk::new());
        cluster.start_replica(lost).await;
        let refused = guarded("an answer", found(&cluster, lost)).await.unwrap().unwrap_err();
        assert!(matches!(refused, StartError::Exists { .. }), "{refused}");
        assert!(refused.to_string().contains("--rebuild"), "{refused}");
        let status = cluster.replicas[&lost].consensus.status();
        assert_eq!((status.last_log_index, status.term), (None, 0), "it has promised nothing");
    }
}

/// Two of three lost their disks, and the third, which has what was acknowledged, is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_founded_while_a_member_is_not_heard() {
    let mut cluster = founded().await;
    for id in 1..=3 {
        cluster.stop_replica(id).await;
    }
    for id in [1, 2] {
        cluster.disks.insert(id, Disk::new());
        cluster.start_replica(id).await;
    }
    let founding = [found(&cluster, 1), found(&cluster, 2)];
    cluster.start_replica(3).await;
    for each in founding {
        let refused = guarded("an answer", each).await.unwrap().unwrap_err();
        assert!(matches!(refused, StartError::Exists { peer: ReplicaId(3) }), "{refused}");
    }
}

/// The last entry of replica 3, once it has read what is on its disk.
async fn last_index(cluster: &Cluster) -> u64 {
    guarded("its log is read", async {
        loop {
            if let Some(index) = cluster.replicas[&3].consensus.status().last_log_index {
                break index;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// A cluster that was founded a second time all the same does not take the data of the first with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_the_first_founding_follows_no_leader_of_a_second() {
    let mut cluster = founded().await;
    for id in 1..=3 {
        cluster.stop_replica(id).await;
    }
    // Only what it has while it is alone is all that it has from the first: a write needs two of three, and a third may
    // have received its entry later, or the entry of one more election.
    cluster.start_replica(3).await;
    let before = last_index(&cluster).await;
    cluster.stop_replica(3).await;
    let kept = cluster.disks[&3].clone();
    for id in 1..=3 {
        cluster.disks.insert(id, Disk::new());
    }
    for id in 1..=3 {
        cluster.start_replica(id).await;
    }
    let founding: Vec<_> = (1..=3).map(|id| found(&cluster, id)).collect();
    for each in founding {
        guarded("the founding", each).await.unwrap().unwrap();
    }
    cluster.write(&[1, 2, 3], Bytes::from_static(b"of the second")).await;
    cluster.stop_replica(3).await;
    cluster.disks.insert(3, kept);
    cluster.start_replica(3).await;
    for number in 0..20 {
        cluster.write(&[1, 2], Bytes::from(format!("more {number}"))).await;
    }
    let after = last_index(&cluster).await;
    assert!(after <= before, "it had entries up to {before}, and took others up to {after}");
    let taken = cluster.replicas[&3].journal.borrow().clone();
    let of_second = Some(Bytes::from_static(b"of the second"));
    assert!(taken.iter().all(|entry| entry.payload != of_second), "{taken:?}");
}
