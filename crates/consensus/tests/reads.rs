//! Reads on every replica: read index through followers, and how fresh a replica knows itself to be.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use muster_consensus::{Consensus, ReadPoint};
use std::time::{Duration, Instant};
use support::{Cluster, Disk, Fault, guarded};

const LOST: Fault = Fault { lose_requests: true, lose_answers: true, break_after_bytes: None };
/// Longer than the rounds without reads are apart, several times.
const A_WHILE: Duration = Duration::from_millis(800);

/// Reads until it succeeds: on a busy machine a round may not come back in time.
async fn confirmed(consensus: &Consensus) -> ReadPoint {
    loop {
        match consensus.read_index().await {
            Ok(point) => return point,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

impl Cluster {
    fn isolate(&self, id: u64) {
        for other in (1..=3).filter(|other| *other != id) {
            self.set_fault(id, other, LOST);
            self.set_fault(other, id, LOST);
        }
    }

    /// Everything applied on a replica by now, without waiting.
    fn payloads(&self, id: u64) -> Vec<bytes::Bytes> {
        self.replicas[&id].journal.borrow().iter().filter_map(|entry| entry.payload.clone()).collect()
    }

    /// Reads on a replica until it succeeds.
    async fn read(&self, id: u64) -> ReadPoint {
        guarded("a read is confirmed", confirmed(&self.replicas[&id].consensus)).await
    }

    /// Waits until a replica knows itself to be as fresh as this.
    async fn fresh(&self, id: u64, as_of: Instant) {
        guarded("freshness is measured", async {
            while self.replicas[&id].consensus.fresh_as_of().is_none_or(|fresh| fresh < as_of) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_on_any_replica_sees_every_write_acknowledged_before_it() {
    let cluster = Cluster::start(3, 3, Disk::memory).await;
    for number in 0..50u32 {
        let payload = format!("write {number}");
        let index = cluster.write(&[1, 2, 3], payload.clone()).await;
        for id in 1..=3 {
            let before = Instant::now();
            let point = cluster.read(id).await;
            assert!(point.raft_index >= index, "{point:?} for entry {index}");
            assert_eq!(cluster.payloads(id).last().unwrap(), payload.as_bytes(), "replica {id}");
            let fresh = cluster.replicas[&id].consensus.fresh_as_of().unwrap();
            assert!(fresh >= before && fresh <= Instant::now(), "the read measured it");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reads_on_a_follower_are_all_answered_while_writes_go_on() {
    let cluster = Cluster::start(3, 3, Disk::memory).await;
    let leadership = cluster.leader().await;
    let follower = leadership.replica.0 % 3 + 1;
    cluster.write(&[1, 2, 3], "first").await;
    let consensus = cluster.replicas[&follower].consensus.clone();
    let reading = async {
        let mut lowest = 0;
        for _ in 0..20 {
            let reads = futures::future::join_all((0..500).map(|_| confirmed(&consensus))).await;
            let points: Vec<u64> = reads.into_iter().map(|point| point.raft_index).collect();
            let (least, most) = (*points.iter().min().unwrap(), *points.iter().max().unwrap());
            assert!(least >= lowest, "later reads are not answered with less");
            lowest = least;
            assert!(*consensus.applied().borrow() >= most, "what was promised is applied");
        }
    };
    let writing = async {
        for number in 0..100u32 {
            cluster.write(&[1, 2, 3], number.to_string()).await;
        }
    };
    guarded("reads and writes", async { tokio::join!(reading, writing) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn freshness_is_measured_without_reads_and_stands_still_behind_a_partition() {
    let cluster = Cluster::start(3, 3, Disk::memory).await;
    let leadership = cluster.leader().await;
    cluster.write(&[1, 2, 3], "one").await;
    for id in 1..=3 {
        cluster.fresh(id, Instant::now()).await;
    }
    let follower = leadership.replica.0 % 3 + 1;
    cluster.isolate(follower);
    let parted = Instant::now();
    // What the others agree on from now on cannot be known there.
    let rest: Vec<u64> = (1..=3).filter(|id| *id != follower).collect();
    let index = cluster.write(&rest, "two").await;
    let read = cluster.replicas[&follower].consensus.read_index();
    assert!(!matches!(tokio::time::timeout(A_WHILE, read).await, Ok(Ok(_))), "nothing confirms a read there");
    tokio::time::sleep(A_WHILE.saturating_sub(parted.elapsed())).await;
    let fresh = cluster.replicas[&follower].consensus.fresh_as_of().unwrap();
    assert!(fresh <= parted, "freshness is claimed {:?} after the partition", fresh - parted);
    for id in &rest {
        cluster.fresh(*id, parted + A_WHILE / 2).await;
    }
    cluster.heal();
    assert!(cluster.read(follower).await.raft_index >= index);
    assert_eq!(cluster.payloads(follower).last().unwrap(), "two");
    cluster.fresh(follower, Instant::now()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_replaced_without_noticing_confirms_nothing_and_claims_nothing() {
    let cluster = Cluster::start(3, 3, Disk::memory).await;
    let old = cluster.leader().await;
    cluster.write(&[1, 2, 3], "one").await;
    cluster.fresh(old.replica.0, Instant::now()).await;
    cluster.isolate(old.replica.0);
    let parted = Instant::now();
    let read = tokio::spawn({
        let consensus = cluster.consensus(old.replica).clone();
        async move { consensus.read_index().await }
    });
    let rest: Vec<u64> = (1..=3).filter(|id| *id != old.replica.0).collect();
    let new = cluster.leader_among(&rest).await;
    assert_ne!(new.replica, old.replica);
    cluster.write(&rest, "two").await;
    guarded("the read ends", read).await.unwrap().unwrap_err();
    let fresh = cluster.consensus(old.replica).fresh_as_of().unwrap();
    assert!(fresh <= parted, "freshness is claimed {:?} after the partition", fresh - parted);
    // A follower that knew the old leader finds the new one.
    let follower = *rest.iter().find(|id| **id != new.replica.0).unwrap();
    let point = cluster.read(follower).await;
    assert_eq!(point.leadership, new);
    assert_eq!(cluster.payloads(follower).last().unwrap(), "two");
    cluster.heal();
    cluster.read(old.replica.0).await;
    assert_eq!(cluster.payloads(old.replica.0).last().unwrap(), "two");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_alone_confirms_and_measures_by_itself() {
    let cluster = Cluster::start(1, 1, Disk::memory).await;
    let index = cluster.write(&[1], "one").await;
    assert!(cluster.read(1).await.raft_index >= index);
    cluster.fresh(1, Instant::now()).await;
}

/// How much gets through: printed, not judged, because the machine is shared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_per_second() {
    let cluster = Cluster::start(3, 3, Disk::memory).await;
    let leadership = cluster.leader().await;
    cluster.write(&[1, 2, 3], "one").await;
    for (name, id) in [("leader", leadership.replica.0), ("follower", leadership.replica.0 % 3 + 1)] {
        cluster.read(id).await;
        for clients in [1u32, 64] {
            let started = Instant::now();
            let each = if clients == 1 { 200 } else { 100 };
            let reading = (0..clients).map(|_| {
                let consensus = cluster.replicas[&id].consensus.clone();
                tokio::spawn(async move {
                    for _ in 0..each {
                        confirmed(&consensus).await;
                    }
                })
            });
            for done in guarded("reads", futures::future::join_all(reading)).await {
                done.unwrap();
            }
            let rate = f64::from(each * clients) / started.elapsed().as_secs_f64();
            println!("{name}, {clients} clients: {rate:.0} read indexes/s");
        }
    }
}
