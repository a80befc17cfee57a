//! Replicas agree: elections, order, fences, faults of the network, restarts.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use bytes::Bytes;
use muster_consensus::{ProposeError, Role};
use muster_types::{Leadership, ReplicaId};
use support::{Cluster, Disk, Fault, guarded, node};

async fn elects_and_commits_in_call_order(disk: fn() -> Disk) {
    let cluster = Cluster::start(3, 3, disk).await;
    let leadership = cluster.leader().await;
    let leader = cluster.consensus(leadership.replica);
    guarded("the barrier", leader.barrier(leadership)).await.unwrap();
    let proposals: Vec<_> =
        (0..500u32).map(|number| leader.propose(Bytes::from(number.to_string()), leadership)).collect();
    let mut last = 0;
    for proposal in proposals {
        let committed = guarded("a proposal", proposal).await.unwrap();
        assert!(committed.raft_index > last, "in the order of the calls");
        last = committed.raft_index;
    }
    let expected: Vec<Bytes> = (0..500u32).map(|number| Bytes::from(number.to_string())).collect();
    for id in 1..=3 {
        assert_eq!(cluster.applied(id, last).await, expected, "replica {id}");
    }
    // Where disks are slow, another may have been elected since.
    let (leadership, status) = guarded("the leader's status", async {
        loop {
            let leadership = cluster.leader().await;
            let status = cluster.consensus(leadership.replica).status();
            if (status.role, status.term) == (Role::Leader, leadership.term) {
                break (leadership, status);
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(status.members.len(), 3);
    assert!(status.members.iter().all(|member| member.votes && member.node == node(member.replica.0)));
    let mut view = cluster.replicas[&(leadership.replica.0 % 3 + 1)].consensus.leadership();
    let known = guarded("a follower knows the leader", view.wait_for(|view| view.leader.is_some())).await;
    let known = known.unwrap().leader.clone().unwrap();
    assert_eq!(known.client_endpoint, Some(node(known.replica.0).client_endpoint));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_in_memory_elect_and_commit_in_call_order() {
    elects_and_commits_in_call_order(Disk::memory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_on_disk_elect_and_commit_in_call_order() {
    elects_and_commits_in_call_order(Disk::directory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_replica_is_a_cluster() {
    let mut cluster = Cluster::start(1, 1, Disk::directory).await;
    let leadership = cluster.leader().await;
    let leader = cluster.consensus(leadership.replica);
    guarded("the barrier", leader.barrier(leadership)).await.unwrap();
    cluster.write(&[1], "one").await;
    cluster.stop_replica(1).await;
    cluster.start_replica(1).await;
    let last = cluster.write(&[1], "two").await;
    let point =
        guarded("the confirmation", cluster.replicas[&1].consensus.confirm_leadership()).await.unwrap();
    assert!(point.raft_index >= last);
    assert_eq!(cluster.applied(1, last).await, ["one", "two"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_bound_to_an_old_leadership_is_refused() {
    let mut cluster = Cluster::start(3, 3, Disk::memory).await;
    let old = cluster.leader().await;
    let index = cluster.write(&[1, 2, 3], "one").await;
    cluster.stop_replica(old.replica.0).await;
    let rest: Vec<u64> = cluster.replicas.keys().copied().collect();
    let new = cluster.leader_among(&rest).await;
    assert!(new > old);
    let leader = cluster.consensus(new.replica);
    for stale in
        [old, Leadership { term: old.term, replica: new.replica }, Leadership { term: new.term + 1, ..new }]
    {
        let refused = leader.propose(Bytes::from_static(b"stale"), stale).await;
        assert!(matches!(refused, Err(ProposeError::NotLeader(_))), "{refused:?}");
        assert!(leader.barrier(stale).await.is_err());
    }
    let follower = rest.iter().find(|id| **id != new.replica.0).unwrap();
    let refused = cluster.replicas[follower].consensus.propose(Bytes::from_static(b"elsewhere"), new).await;
    assert!(matches!(refused, Err(ProposeError::NotLeader(_))), "{refused:?}");
    let last = cluster.write(&rest, "two").await;
    assert!(last > index);
    assert_eq!(
        cluster.applied(*follower, last).await,
        [Bytes::from_static(b"one"), Bytes::from_static(b"two")]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_leader_leads_only_after_an_election() {
    let mut cluster = Cluster::start(3, 3, Disk::directory).await;
    let old = cluster.leader().await;
    cluster.write(&[1, 2, 3], "one").await;
    cluster.stop_replica(old.replica.0).await;
    cluster.start_replica(old.replica.0).await;
    let new = cluster.leader().await;
    assert!(new.term > old.term, "{new:?} after {old:?}");
    let index = cluster.write(&[1, 2, 3], "two").await;
    for id in 1..=3 {
        assert_eq!(cluster.applied(id, index).await.len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_replicas_restart_and_keep_what_was_committed() {
    let mut cluster = Cluster::start(3, 3, Disk::directory).await;
    let mut last = 0;
    for number in 0..150u32 {
        last = cluster.write(&[1, 2, 3], number.to_string()).await;
    }
    for id in 1..=3 {
        cluster.stop_replica(id).await;
    }
    for id in 1..=3 {
        cluster.start_replica(id).await;
    }
    let after = cluster.write(&[1, 2, 3], "after").await;
    assert!(after > last);
    let mut expected: Vec<Bytes> = (0..150u32).map(|number| Bytes::from(number.to_string())).collect();
    expected.push(Bytes::from_static(b"after"));
    for id in 1..=3 {
        assert_eq!(cluster.applied(id, after).await, expected, "replica {id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deaf_leader_falls_silent_and_another_is_elected() {
    let cluster = Cluster::start(3, 3, Disk::memory).await;
    let old = cluster.leader().await;
    let before = cluster.write(&[1, 2, 3], "before").await;
    let rest: Vec<u64> = (1..=3).filter(|id| *id != old.replica.0).collect();
    // Its requests arrive; no answer and no request of others reaches it.
    for id in &rest {
        cluster.set_fault(old.replica.0, *id, Fault { lose_answers: true, ..Fault::default() });
        cluster.set_fault(*id, old.replica.0, Fault { lose_requests: true, ..Fault::default() });
    }
    let started = std::time::Instant::now();
    // The deaf leader keeps trying to replicate all the while.
    let pending = cluster.consensus(old.replica).propose(Bytes::from_static(b"lost or not"), old);
    let new = cluster.leader_among(&rest).await;
    let during = cluster.write(&rest, "during").await;
    println!("a deaf leader was replaced, and a write acknowledged, after {:?}", started.elapsed());
    assert!(new > old);
    assert!(during > before);
    let outcome = guarded("the old proposal resolves", pending).await;
    assert!(matches!(outcome, Err(ProposeError::Unknown)), "{outcome:?}");
    cluster.heal();
    let after = cluster.write(&[1, 2, 3], "after").await;
    let expected = cluster.applied(new.replica.0, after).await;
    for id in 1..=3 {
        assert_eq!(cluster.applied(id, after).await, expected, "replica {id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_isolated_leader_confirms_nothing() {
    let cluster = Cluster::start(3, 3, Disk::memory).await;
    let old = cluster.leader().await;
    let index = cluster.write(&[1, 2, 3], "one").await;
    let leader = cluster.consensus(old.replica);
    let confirmed: Vec<_> = futures::future::join_all((0..100).map(|_| leader.confirm_leadership())).await;
    for point in confirmed {
        let point = point.unwrap();
        assert!(point.raft_index >= index);
        assert_eq!(point.leadership, old);
    }
    let lost = Fault { lose_requests: true, lose_answers: true, ..Fault::default() };
    for id in (1..=3).filter(|id| *id != old.replica.0) {
        cluster.set_fault(old.replica.0, id, lost);
        cluster.set_fault(id, old.replica.0, lost);
    }
    guarded("the confirmation fails", leader.confirm_leadership()).await.unwrap_err();
    let mut view = leader.leadership();
    guarded("it notices", view.wait_for(|view| view.mine.is_none())).await.unwrap();
    assert!(leader.barrier(old).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over() {
    let cluster = Cluster::start(3, 3, Disk::memory).await;
    let old = cluster.leader().await;
    cluster.write(&[1, 2, 3], "one").await;
    let to = ReplicaId(old.replica.0 % 3 + 1);
    guarded("the transfer", cluster.consensus(old.replica).transfer_leadership(to)).await.unwrap();
    let new = cluster.leader_among(&[to.0]).await;
    assert!(new > old);
    cluster.write(&[1, 2, 3], "two").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panicking_application_stops_its_replica() {
    let mut cluster = Cluster::prepare(3, Disk::memory).await;
    for id in 1..=3 {
        cluster.panic_on = (id == 2).then(|| Bytes::from_static(b"poison"));
        cluster.start_replica(id).await;
    }
    cluster.initialize(3).await;
    cluster.write(&[1, 2, 3], "fine").await;
    // If the second replica leads, another takes over first; its own answer never comes.
    let leadership = cluster.leader().await;
    drop(cluster.consensus(leadership.replica).propose(Bytes::from_static(b"poison"), leadership));
    let mut stopped = cluster.replicas[&2].consensus.stopped();
    let reason = guarded("it stops", stopped.wait_for(Option::is_some)).await.unwrap().clone();
    assert!(reason.unwrap().to_string().contains("told to"));
    let index = cluster.write(&[1, 3], "later").await;
    let applied = cluster.applied(1, index).await;
    assert_eq!(
        applied,
        [Bytes::from_static(b"fine"), Bytes::from_static(b"poison"), Bytes::from_static(b"later")]
    );
}
