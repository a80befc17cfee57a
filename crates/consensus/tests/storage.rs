//! Snapshots by size and age, uploads that go on, builds that fail, and leaders whose storage is unwell.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use bytes::Bytes;
use muster_consensus::{SnapshotPolicy, Space, StorageHealth};
use muster_types::ReplicaId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use support::{Cluster, Disk, Fault, Hang, guarded, node, until};
use tokio::sync::watch;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_breaks_goes_on_where_it_was() {
    const PAYLOAD_BYTES: usize = 20_000;
    const ENTRIES: u64 = 120;
    let mut cluster = Cluster::prepare(4, Disk::memory).await;
    cluster.snapshots = SnapshotPolicy { kept_bytes: Some(0), ..SnapshotPolicy::ON_DEMAND };
    for id in 1..=3 {
        cluster.start_replica(id).await;
    }
    cluster.initialize(3).await;
    for _ in 0..ENTRIES {
        cluster.write(&[1, 2, 3], Bytes::from(vec![7; PAYLOAD_BYTES])).await;
    }
    let leader = cluster.consensus(cluster.leader().await.replica).clone();
    for id in 1..=3 {
        let consensus = cluster.replicas[&id].consensus.clone();
        consensus.trigger_snapshot().await;
        until("a snapshot is made", || consensus.status().snapshot_index >= Some(ENTRIES)).await;
        until("the log behind it is gone", || consensus.status().purged_index >= Some(ENTRIES)).await;
    }
    // No connection lasts long enough for the whole.
    let breaks = Fault { break_after_bytes: Some(700_000), ..Fault::default() };
    for source in 1..=3 {
        cluster.set_fault(source, 4, breaks);
    }
    cluster.start_replica(4).await;
    leader.add_learner(ReplicaId(4), node(4)).await.unwrap();
    guarded("the learner has the snapshot", leader.wait_caught_up(ReplicaId(4))).await.unwrap();
    assert_eq!(cluster.applied(4, ENTRIES).await.len() as u64, ENTRIES);
    let carried: u64 = (1..=3).map(|id| cluster.proxies[&(id, 4)].carried.load(Ordering::Relaxed)).sum();
    let whole = ENTRIES * PAYLOAD_BYTES as u64;
    println!("{carried} bytes were carried for a snapshot of {whole}");
    // That it ends at all shows that it goes on; how much of the last parts is lost with each connection is a matter of
    // how fast the receiver writes.
    assert!(carried > whole && carried < whole * 2, "{carried} bytes for a snapshot of {whole}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_cut_by_size() {
    const PAYLOAD_BYTES: u64 = 10_000;
    const KEPT_BYTES: u64 = 100_000;
    let mut cluster = Cluster::prepare(3, Disk::memory).await;
    cluster.snapshots = SnapshotPolicy {
        every_bytes: Some(300_000),
        kept_bytes: Some(KEPT_BYTES),
        kept_entries: 1_000_000,
        ..SnapshotPolicy::ON_DEMAND
    };
    for id in 1..=3 {
        cluster.start_replica(id).await;
    }
    cluster.initialize(3).await;
    for _ in 0..70 {
        cluster.write(&[1, 2, 3], Bytes::from(vec![1; PAYLOAD_BYTES as usize])).await;
    }
    for id in 1..=3 {
        let consensus = cluster.replicas[&id].consensus.clone();
        until("the log behind the snapshot is at most what is kept", || {
            let status = consensus.status();
            let (snapshot, purged) = (status.snapshot_index.unwrap_or(0), status.purged_index.unwrap_or(0));
            snapshot >= 30 && purged > 0 && (snapshot - purged) * PAYLOAD_BYTES <= KEPT_BYTES
        })
        .await;
        let status = consensus.status();
        let kept = status.snapshot_index.unwrap() - status.purged_index.unwrap();
        assert!(kept >= KEPT_BYTES / PAYLOAD_BYTES / 2, "about as much as asked for stays: {kept}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_made_at_its_age() {
    let mut cluster = Cluster::prepare(1, Disk::memory).await;
    cluster.snapshots = SnapshotPolicy { every_ms: Some(100), ..SnapshotPolicy::ON_DEMAND };
    cluster.start_replica(1).await;
    cluster.initialize(1).await;
    let index = cluster.write(&[1], "one").await;
    let consensus = cluster.replicas[&1].consensus.clone();
    until("a snapshot is made", || consensus.status().snapshot_index >= Some(index)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_cannot_be_written_is_made_later() {
    let mut cluster = Cluster::prepare(1, Disk::directory).await;
    cluster.snapshots = SnapshotPolicy { every_entries: Some(10), ..SnapshotPolicy::ON_DEMAND };
    cluster.start_replica(1).await;
    cluster.initialize(1).await;
    let Disk::Directory(dir) = cluster.disks[&1].clone() else { panic!("it is a directory") };
    let directory = dir.path().join("snapshots");
    std::fs::remove_dir_all(&directory).unwrap();
    let mut last = 0;
    for _ in 0..40 {
        last = cluster.write(&[1], "more").await;
    }
    let consensus = cluster.replicas[&1].consensus.clone();
    consensus.trigger_snapshot().await;
    last = last.max(cluster.write(&[1], "it goes on").await);
    assert_eq!(consensus.status().snapshot_index, None);
    assert!(consensus.stopped().borrow().is_none());
    std::fs::create_dir(&directory).unwrap();
    until("it is tried again", || consensus.status().snapshot_index.is_some()).await;
    cluster.stop_replica(1).await;
    cluster.start_replica(1).await;
    assert_eq!(cluster.applied(1, last).await.len(), 41);
}

/// Replicas whose storage says what the test wants.
async fn with_health(count: u64) -> (Cluster, BTreeMap<u64, watch::Sender<StorageHealth>>) {
    let mut cluster = Cluster::prepare(count, Disk::memory).await;
    let health: BTreeMap<u64, watch::Sender<StorageHealth>> =
        (1..=count).map(|id| (id, watch::Sender::default())).collect();
    let receivers: BTreeMap<_, _> = health.iter().map(|(id, health)| (*id, health.subscribe())).collect();
    cluster.tune = Arc::new(move |id, config| config.storage_health = receivers.get(&id).cloned());
    (cluster, health)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_storage_is_unwell_hands_over_to_one_whose_is_not() {
    let (mut cluster, health) = with_health(3).await;
    for id in 1..=3 {
        cluster.start_replica(id).await;
    }
    cluster.initialize(3).await;
    cluster.write(&[1, 2, 3], "one").await;
    let first = cluster.leader().await;
    let rest: Vec<u64> = (1..=3).filter(|id| *id != first.replica.0).collect();
    // One of the others is unwell as well: it must not be chosen.
    let full = StorageHealth { space: Space::Full, ..StorageHealth::default() };
    health[&rest[0]].send_replace(full);
    let mut reports = cluster.consensus(first.replica).peer_reports();
    let known = |reports: &BTreeMap<ReplicaId, muster_consensus::PeerReport>| {
        reports.len() == 3 && reports[&ReplicaId(rest[0])].storage.space == Space::Full
    };
    guarded("the leader hears of it", reports.wait_for(known)).await.unwrap();
    health[&first.replica.0]
        .send_replace(StorageHealth { stalled_ms: Some(5_000), ..StorageHealth::default() });
    let second = cluster.leader_among(&rest[1..]).await;
    assert!(second > first);
    cluster.write(&rest[1..], "two").await;
    // The two others are not healthy, so that leadership is not transferred.
    health[&rest[1]].send_replace(full);
    let mut view = cluster.consensus(second.replica).leadership();
    let lost = view.wait_for(|view| view.mine != Some(second));
    let lost = tokio::time::timeout(std::time::Duration::from_millis(1_500), lost).await;
    assert!(lost.is_err(), "it leads on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_flush_hangs_hands_over() {
    let mut cluster = Cluster::prepare(3, Disk::memory).await;
    let hangs: BTreeMap<u64, Arc<Hang>> = (1..=3).map(|id| (id, Arc::default())).collect();
    for id in 1..=3 {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        cluster.disks.insert(id, Disk::Hanging(dir, hangs[&id].clone()));
        cluster.start_replica(id).await;
    }
    cluster.initialize(3).await;
    cluster.write(&[1, 2, 3], "one").await;
    let first = cluster.leader().await;
    let mut reports = cluster.consensus(first.replica).peer_reports();
    guarded("all report", reports.wait_for(|reports| reports.len() == 3)).await.unwrap();
    hangs[&first.replica.0].set(true);
    let leader = cluster.consensus(first.replica).clone();
    let held = leader.propose(Bytes::from_static(b"two"), first);
    let rest: Vec<u64> = (1..=3).filter(|id| *id != first.replica.0).collect();
    let second = cluster.leader_among(&rest).await;
    assert!(second > first);
    let index = cluster.write(&rest, "three").await;
    hangs[&first.replica.0].set(false);
    // Said to be unknown or committed; never lost in silence.
    let outcome = guarded("the earlier proposal is resolved", held).await;
    let applied = cluster.applied(first.replica.0, index).await;
    if outcome.is_ok() {
        assert!(applied.contains(&Bytes::from_static(b"two")));
    }
    assert_eq!(applied, cluster.applied(rest[0], index).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_preferred_region_leads_while_it_is_well() {
    let (mut cluster, health) = with_health(3).await;
    let tune = Arc::clone(&cluster.tune);
    cluster.tune = Arc::new(move |id, config| {
        tune(id, config);
        config.leader.preferred_regions = vec!["region-3".to_owned(), "region-2".to_owned()];
        config.leader.settle_ms = 200;
    });
    for id in 1..=3 {
        cluster.start_replica(id).await;
    }
    cluster.initialize(3).await;
    cluster.leader_among(&[3]).await;
    health[&3].send_replace(StorageHealth { space: Space::Low, ..StorageHealth::default() });
    cluster.leader_among(&[2]).await;
    health[&3].send_replace(StorageHealth::default());
    let leadership = cluster.leader_among(&[3]).await;
    assert_eq!(leadership.replica, ReplicaId(3));
    cluster.write(&[1, 2, 3], "one").await;
}
