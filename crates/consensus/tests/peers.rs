//! What the peer listener refuses, and how long a failover takes.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use bytes::Bytes;
use muster_consensus::{Consensus, ConsensusConfig};
use muster_store::{Entry, EntryPayload, LeaderId, LogId, SnapshotMeta, encode_entry, encode_snapshot_meta};
use muster_types::{ClusterId, ReplicaId};
use muster_wire::raft::v1 as wire;
use muster_wire::raft::v1::raft_service_client::RaftServiceClient;
use muster_wire::raft::v1::snapshot_request::Part;
use openraft::vote::RaftLeaderId;
use std::time::Instant;
use support::{CLUSTER, Cluster, Disk, Recorder, guarded};
use tokio::net::TcpListener;
use tonic::Code;

async fn served() -> (Consensus, RaftServiceClient<tonic::transport::Channel>) {
    let (application, _) = Recorder::new();
    let config = ConsensusConfig::new(CLUSTER, ReplicaId(1));
    let consensus = Consensus::start(config, Disk::memory().open(ReplicaId(1)), application).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = consensus.clone();
    tokio::spawn(async move { serving.serve_peers(listener, std::future::pending()).await });
    let client = RaftServiceClient::connect(format!("http://{address}")).await.unwrap();
    (consensus, client)
}

fn peer(cluster: ClusterId, target: u64) -> Option<wire::Peer> {
    Some(wire::Peer { cluster_id: cluster.to_string(), source: 2, target, generation: 1 })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_and_change_nothing() {
    let (consensus, mut client) = served().await;
    let before = consensus.status();
    let vote = Some(wire::BallotVote { term: 9, replica: 2, committed: false });
    let leader = Some(wire::BallotVote { term: 9, replica: 2, committed: true });
    for peer in [peer(ClusterId(1), 1), peer(CLUSTER, 3)] {
        let request =
            wire::VoteRequest { peer: peer.clone(), vote, last_log_id: None, leadership_transfer: true };
        let refused = client.vote(request.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains(&CLUSTER.to_string()), "{refused}");
        assert_eq!(client.pre_vote(request).await.unwrap_err().code(), Code::FailedPrecondition);
        let append = wire::AppendRequest { peer: peer.clone(), vote: leader, ..Default::default() };
        let refused = client.append(futures::stream::iter([append])).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let start = wire::SnapshotStart { peer: peer.clone(), vote: leader, ..Default::default() };
        let part = wire::SnapshotRequest { part: Some(wire::snapshot_request::Part::Start(start)) };
        let refused = client.install_snapshot(futures::stream::iter([part])).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let transfer = wire::TransferLeaderRequest { peer, from_leader: leader, to: 1, last_log_id: None };
        assert_eq!(client.transfer_leader(transfer).await.unwrap_err().code(), Code::FailedPrecondition);
    }
    assert_eq!(client.vote(wire::VoteRequest::default()).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(consensus.status(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_requests_are_refused() {
    let (consensus, mut client) = served().await;
    let leader = Some(wire::BallotVote { term: 9, replica: 2, committed: true });
    let in_another_name = Some(wire::BallotVote { term: 9, replica: 3, committed: true });
    let uncommitted = Some(wire::BallotVote { term: 9, replica: 2, committed: false });
    let good = wire::AppendRequest { peer: peer(CLUSTER, 1), vote: leader, ..Default::default() };
    let rubbish = vec![Bytes::from_static(b"not an envelope at all")];
    for bad in [
        wire::AppendRequest { vote: in_another_name, ..good.clone() },
        wire::AppendRequest { vote: uncommitted, ..good.clone() },
        wire::AppendRequest { vote: None, ..good.clone() },
        wire::AppendRequest { entries: rubbish, ..good.clone() },
    ] {
        let refused = client.append(futures::stream::iter([bad])).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    let vote = wire::VoteRequest { peer: peer(CLUSTER, 1), vote: leader, ..Default::default() };
    assert_eq!(client.vote(vote.clone()).await.unwrap_err().code(), Code::InvalidArgument, "not granted yet");
    assert_eq!(client.pre_vote(vote).await.unwrap_err().code(), Code::InvalidArgument);
    let transfer = wire::TransferLeaderRequest {
        peer: peer(CLUSTER, 1),
        from_leader: in_another_name,
        to: 1,
        last_log_id: None,
    };
    assert_eq!(client.transfer_leader(transfer).await.unwrap_err().code(), Code::InvalidArgument);
    assert!(consensus.stopped().borrow().is_none());
    assert_eq!(consensus.status().term, 0, "nothing of it was believed");
}

/// What no leader can have: the protocol takes it for granted and panics on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_leader_can_send_stops_nobody() {
    let (consensus, mut client) = served().await;
    let leader = Some(wire::BallotVote { term: 9, replica: 2, committed: true });
    let log_id = |term, index| LogId::new(LeaderId::new(term, 2), index);
    let meta =
        |term, index| SnapshotMeta { last_log_id: Some(log_id(term, index)), ..SnapshotMeta::default() };
    for meta in [meta(10, 5), meta(9, u64::MAX)] {
        let start = wire::SnapshotStart {
            peer: peer(CLUSTER, 1),
            vote: leader,
            meta: encode_snapshot_meta(&meta).into(),
            first_chunk: 0,
            digest: Some(wire::SnapshotDigest::default()),
        };
        let parts = [Part::Start(start), Part::End(wire::SnapshotEnd { chunks: 0 })];
        let parts = parts.map(|part| wire::SnapshotRequest { part: Some(part) });
        let refused = guarded("a refusal", client.install_snapshot(futures::stream::iter(parts))).await;
        assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    }
    let good = wire::AppendRequest { peer: peer(CLUSTER, 1), vote: leader, ..Default::default() };
    let later = Entry { log_id: log_id(10, 0), payload: EntryPayload::Blank };
    let far = Some(wire::LogId { term: 9, replica: 2, index: u64::MAX });
    for bad in [
        wire::AppendRequest { entries: vec![encode_entry(&later, 0)], ..good.clone() },
        wire::AppendRequest {
            previous: Some(wire::LogId { term: 10, replica: 2, index: 0 }),
            ..good.clone()
        },
        wire::AppendRequest { previous: far, ..good.clone() },
        wire::AppendRequest { leader_commit: far, ..good.clone() },
    ] {
        let refused = guarded("a refusal", client.append(futures::stream::iter([bad]))).await;
        assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    }
    assert!(consensus.stopped().borrow().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_leader_is_replaced_soon() {
    let mut cluster = Cluster::start(3, 3, Disk::folder).await;
    let mut gaps = Vec::new();
    for round in 0..5u32 {
        cluster.write(&[1, 2, 3], round.to_string()).await;
        let old = cluster.leader().await;
        let started = Instant::now();
        cluster.stop_replica(old.replica.0).await;
        let rest: Vec<u64> = cluster.replicas.keys().copied().collect();
        cluster.write(&rest, "next").await;
        gaps.push(started.elapsed());
        cluster.start_replica(old.replica.0).await;
        let index = cluster.write(&[1, 2, 3], "all").await;
        guarded("it catches up", cluster.applied(old.replica.0, index)).await;
    }
    gaps.sort();
    println!(
        "from a leader's stop to the next acknowledged write: median {:?}, all {gaps:?}",
        gaps[gaps.len() / 2]
    );
}
