//! Members come and go while the cluster serves; one that lost its storage comes back safely.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use muster_consensus::{ChangeOptions, ChangeStep, MembershipError, ReplicaNode};
use muster_types::ReplicaId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use support::{Cluster, Disk, guarded, node, until};

fn ids(ids: &[u64]) -> BTreeSet<ReplicaId> {
    ids.iter().copied().map(ReplicaId).collect()
}

/// Everybody in `of` but `id`.
fn others(of: &[u64], id: ReplicaId) -> Vec<u64> {
    of.iter().copied().filter(|other| *other != id.0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_grows_from_three_to_five_and_shrinks_again() {
    let mut cluster = Cluster::start(5, 3, Disk::memory).await;
    cluster.write(&[1, 2, 3], "three").await;
    cluster.start_replica(4).await;
    cluster.start_replica(5).await;
    let leader = cluster.consensus(cluster.leader_among(&[1, 2, 3]).await.replica).clone();
    for id in [4, 5] {
        leader.add_learner(ReplicaId(id), node(id)).await.unwrap();
        guarded("a learner catches up", leader.wait_caught_up(ReplicaId(id))).await.unwrap();
    }
    let grown = leader.change_voters(ids(&[1, 2, 3, 4, 5]), ChangeOptions::default()).await.unwrap();
    assert_eq!((grown.voters, grown.learners), (ids(&[1, 2, 3, 4, 5]), ids(&[])));
    assert_eq!(grown.warnings, Vec::<String>::new());
    cluster.write(&[1, 2, 3, 4, 5], "five").await;
    let leader = cluster.consensus(cluster.leader().await.replica).clone();
    let keep = ChangeOptions { keep_as_learners: true, ..ChangeOptions::default() };
    let shrunk = leader.change_voters(ids(&[1, 2, 3]), keep).await.unwrap();
    assert_eq!((shrunk.voters, shrunk.learners), (ids(&[1, 2, 3]), ids(&[4, 5])));
    let gone = leader.remove(ReplicaId(5), ChangeOptions::default()).await;
    let last = cluster.write(&[1, 2, 3], "three again").await;
    if let Ok(gone) = gone {
        assert_eq!(gone.learners, ids(&[4]));
    }
    assert_eq!(cluster.applied(4, last).await, ["three", "five", "three again"], "learners follow");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_that_lacks_entries_gets_no_vote() {
    let cluster = Cluster::start(4, 3, Disk::memory).await;
    let last = cluster.write(&[1, 2, 3], "one").await;
    let leader = cluster.consensus(cluster.leader().await.replica).clone();
    let strange = leader.promote(ReplicaId(4)).await;
    assert!(matches!(strange, Err(MembershipError::NotMember { replica: ReplicaId(4) })), "{strange:?}");
    leader.add_learner(ReplicaId(4), node(4)).await.unwrap();
    let refused = leader.promote(ReplicaId(4)).await;
    let Err(MembershipError::NotCaughtUp { replica: ReplicaId(4), lag_entries, .. }) = refused else {
        panic!("it never answered: {refused:?}")
    };
    assert!(lag_entries > last, "all of the log, {lag_entries}");
    let elsewhere = ReplicaNode { peer_endpoint: "elsewhere".to_owned(), ..node(4) };
    let refused = leader.add_learner(ReplicaId(4), elsewhere).await;
    assert!(matches!(refused, Err(MembershipError::AlreadyMember { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_loses_the_quorum_unless_forced() {
    let mut cluster = Cluster::start(3, 3, Disk::memory).await;
    cluster.write(&[1, 2, 3], "one").await;
    let leadership = cluster.leader().await;
    let rest = others(&[1, 2, 3], leadership.replica);
    let (dead, live) = (ReplicaId(rest[0]), ReplicaId(rest[1]));
    cluster.stop_replica(dead.0).await;
    let leader = cluster.consensus(leadership.replica).clone();
    until("the dead one's silence counts", || {
        let members = leader.members();
        let silent = members.iter().find(|member| member.replica == dead).and_then(|member| member.silent_ms);
        silent.is_none_or(|ms| ms > 1_000)
    })
    .await;
    let refused = leader.remove(live, ChangeOptions::default()).await;
    let Err(MembershipError::WouldLoseQuorum { healthy, needed, silent, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((healthy, needed, silent), (1, 2, vec![dead]));
    assert_eq!(leader.members().len(), 3, "nothing changed");
    let removed = leader.remove(dead, ChangeOptions::default()).await.unwrap();
    assert_eq!(removed.voters, [leadership.replica, live].into());
    assert!(removed.warnings[0].contains("no replica may fail"), "{:?}", removed.warnings);
    cluster.write(&rest[1..].iter().copied().chain([leadership.replica.0]).collect::<Vec<_>>(), "two").await;
    let refused = leader.change_voters(ids(&[9]), ChangeOptions { force: true, ..Default::default() }).await;
    assert!(matches!(refused, Err(MembershipError::NotMember { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_replica_is_replaced_by_one_command() {
    let mut cluster = Cluster::start(4, 3, Disk::memory).await;
    cluster.write(&[1, 2, 3], "one").await;
    let leadership = cluster.leader().await;
    let rest = others(&[1, 2, 3], leadership.replica);
    cluster.stop_replica(rest[0]).await;
    let leader = cluster.consensus(leadership.replica).clone();
    let mut progress = leader.change_progress();
    let replacing = {
        let leader = leader.clone();
        let dead = ReplicaId(rest[0]);
        tokio::spawn(
            async move { leader.replace(dead, ReplicaId(4), node(4), ChangeOptions::default()).await },
        )
    };
    let waits = |progress: &Option<muster_consensus::ChangeProgress>| {
        progress.as_ref().is_some_and(|progress| matches!(progress.step, ChangeStep::CatchingUp { .. }))
    };
    guarded("the new one is waited for", progress.wait_for(waits)).await.unwrap();
    let busy = leader.remove(ReplicaId(rest[1]), ChangeOptions::default()).await;
    assert!(matches!(busy, Err(MembershipError::Busy { .. })), "one change at a time: {busy:?}");
    cluster.start_replica(4).await;
    let replaced = guarded("the replacement", replacing).await.unwrap().unwrap();
    assert_eq!(replaced.voters, [leadership.replica, ReplicaId(rest[1]), ReplicaId(4)].into());
    guarded("nothing runs any more", progress.wait_for(Option::is_none)).await.unwrap();
    // The new one is needed for the quorum from here on.
    cluster.stop_replica(rest[1]).await;
    let last = cluster.write(&[leadership.replica.0, 4], "two").await;
    assert_eq!(cluster.applied(4, last).await, ["one", "two"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_moved_is_reached_at_its_new_address() {
    let mut cluster = Cluster::prepare(3, Disk::memory).await;
    for id in 1..=3 {
        cluster.start_replica(id).await;
    }
    let mut members: std::collections::BTreeMap<_, _> = (1..=3).map(|id| (ReplicaId(id), node(id))).collect();
    members.insert(ReplicaId(3), ReplicaNode { peer_endpoint: "nowhere".to_owned(), ..node(3) });
    cluster.replicas[&1].consensus.initialize(members).await.unwrap();
    let last = cluster.write(&[1, 2], "one").await;
    assert_eq!(cluster.replicas[&3].consensus.status().last_log_index, None, "nobody reaches it");
    let leader = cluster.consensus(cluster.leader_among(&[1, 2]).await.replica).clone();
    leader.update_member(ReplicaId(3), node(3)).await.unwrap();
    assert_eq!(cluster.applied(3, last).await, ["one"]);
    let refused = leader.update_member(ReplicaId(7), node(7)).await;
    assert!(matches!(refused, Err(MembershipError::NotMember { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_knows_how_its_peers_fare() {
    let mut cluster = Cluster::prepare(3, Disk::memory).await;
    cluster.tune = Arc::new(|id, config| {
        config.advertise.version = format!("1.0.{id}");
        config.advertise.format_max = 7;
    });
    for id in 1..=3 {
        cluster.start_replica(id).await;
    }
    cluster.initialize(3).await;
    let leader = cluster.consensus(cluster.leader().await.replica).clone();
    let mut reports = leader.peer_reports();
    let all = guarded("all report", reports.wait_for(|reports| reports.len() == 3)).await.unwrap().clone();
    for (id, report) in &all {
        assert_eq!(report.version, format!("1.0.{}", id.0));
        assert_eq!((report.format_max, report.generation, report.rejoining), (7, 1, false));
        assert!(report.storage_is_well());
    }
    let members = leader.members();
    assert_eq!(members.iter().filter(|member| member.leads).count(), 1);
    assert!(members.iter().all(|member| member.report.is_some()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_replica_promises_nothing_before_it_is_taken_in_anew() {
    let mut cluster = Cluster::start(3, 3, Disk::memory).await;
    let first = cluster.write(&[1, 2, 3], "first").await;
    let old = cluster.leader().await;
    let rest = others(&[1, 2, 3], old.replica);
    let (emptied, other) = (rest[0], rest[1]);
    for id in 1..=3 {
        cluster.applied(id, first).await;
    }
    cluster.stop_replica(emptied).await;
    let disk = cluster.disks[&emptied].emptied(ReplicaId(emptied));
    cluster.disks.insert(emptied, disk);
    // It knows nobody to ask, so it stays outside.
    cluster.tune = Arc::new(|_, config| config.known_peers.clear());
    cluster.start_replica(emptied).await;
    let outside = cluster.replicas[&emptied].consensus.clone();
    assert!(outside.status().rejoining);
    // Not even at its first start's command does it form the cluster anew.
    outside.initialize((1..=3).map(|id| (ReplicaId(id), node(id))).collect()).await.unwrap();
    // Without the leader, the other and the emptied one would be a quorum of the old voters.
    cluster.stop_replica(old.replica.0).await;
    let mut view = cluster.replicas[&other].consensus.leadership();
    let elected = tokio::time::timeout(Duration::from_secs(3), view.wait_for(|view| view.mine.is_some()));
    assert!(elected.await.is_err(), "the emptied one must not vote");
    let status = outside.status();
    assert_eq!((status.term, status.last_log_index), (0, None), "it took nothing");
    // With the old leader back there is a quorum without it, and it is taken in anew.
    cluster.start_replica(old.replica.0).await;
    let between = cluster.write(&[old.replica.0, other], "between").await;
    cluster.stop_replica(emptied).await;
    cluster.tune = Arc::new(|_, _| {});
    cluster.start_replica(emptied).await;
    let back = cluster.replicas[&emptied].consensus.clone();
    cluster.applied(emptied, between).await;
    until("it votes again", || {
        let status = back.status();
        let votes = status.members.iter().any(|member| member.replica.0 == emptied && member.votes);
        // Not between the old voters and the new ones: there the leader is still needed.
        votes && !status.rejoining && status.membership_settled
    })
    .await;
    // From here on its vote counts.
    cluster.stop_replica(other).await;
    let last = cluster.write(&[old.replica.0, emptied], "last").await;
    assert_eq!(cluster.applied(emptied, last).await, ["first", "between", "last"]);
}
