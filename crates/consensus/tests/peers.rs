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
use std::time::{Duration, Instant};
use support::{CLUSTER, Cluster, Disk, Recorder, guarded, until};
use tokio::net::TcpListener;
use tonic::Code;

async fn served() -> (Consensus, RaftServiceClient<tonic::transport::Channel>) {
    served_on(Disk::memory()).await
}

async fn served_on(disk: Disk) -> (Consensus, RaftServiceClient<tonic::transport::Channel>) {
    let (application, _) = Recorder::new();
    let config = ConsensusConfig::new(CLUSTER, ReplicaId(1));
    let consensus = Consensus::start(config, disk.open(ReplicaId(1)), application).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = consensus.clone();
    tokio::spawn(async move { serving.serve_peers(listener, std::future::pending()).await });
    let client = RaftServiceClient::connect(format!("http://{address}")).await.unwrap();
    (consensus, client)
}

fn peer(cluster: ClusterId, target: u64) -> Option<wire::Peer> {
    Some(wire::Peer { cluster_id: cluster.to_string(), source: 2, target, generation: 1, founding: None })
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
        let read = wire::ReadIndexRequest { peer: peer.clone() };
        assert_eq!(client.read_index(read).await.unwrap_err().code(), Code::FailedPrecondition);
        let transfer = wire::TransferLeaderRequest { peer, from_leader: leader, to: 1, last_log_id: None };
        assert_eq!(client.transfer_leader(transfer).await.unwrap_err().code(), Code::FailedPrecondition);
    }
    assert_eq!(client.vote(wire::VoteRequest::default()).await.unwrap_err().code(), Code::InvalidArgument);
    // One that belongs here learns at once that this replica does not lead.
    let read = wire::ReadIndexRequest { peer: peer(CLUSTER, 1) };
    assert_eq!(client.read_index(read).await.unwrap_err().code(), Code::Unavailable);
    let read = wire::ReadIndexRequest { peer: None };
    assert_eq!(client.read_index(read).await.unwrap_err().code(), Code::InvalidArgument);
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

/// What tells a refusal of the peer as such from any other.
fn refusal(status: &tonic::Status) -> Option<&str> {
    status.metadata().get("muster-refusal").map(|name| name.to_str().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_of_before_a_recovery_is_refused_and_a_blank_replica_takes_the_generation_over() {
    let (consensus, mut client) = served().await;
    let of = |generation| Some(wire::Peer { generation, ..peer(CLUSTER, 1).unwrap() });
    let vote = Some(wire::BallotVote { term: 9, replica: 2, committed: false });
    let leader = Some(wire::BallotVote { term: 9, replica: 2, committed: true });
    let asks = |generation| wire::VoteRequest { peer: of(generation), vote, ..Default::default() };
    let refused = client.vote(asks(0)).await.unwrap_err();
    assert_eq!((refused.code(), refusal(&refused)), (Code::FailedPrecondition, Some("old-generation")));
    // A candidate does not make it take anything over; a leader does.
    let refused = client.vote(asks(4)).await.unwrap_err();
    assert_eq!(refusal(&refused), Some("newer-generation"));
    assert_eq!(consensus.generation(), 1);
    let append =
        |generation| wire::AppendRequest { peer: of(generation), vote: leader, ..Default::default() };
    let mut answers = client.append(futures::stream::iter([append(4)])).await.unwrap().into_inner();
    assert_eq!(consensus.generation(), 4);
    // Until the leader's vote is stored it is blank, and would take over a generation that is newer still.
    answers.message().await.unwrap().expect("an answer to what was appended");
    // Now it is of that generation, and has a vote: neither an older nor a newer one is believed.
    for (generation, name) in [(3, "old-generation"), (5, "newer-generation")] {
        let refused = client.append(futures::stream::iter([append(generation)])).await.unwrap_err();
        assert_eq!(refusal(&refused), Some(name));
        assert!(refused.message().contains("generation 4"), "{refused}");
    }
    assert_eq!(consensus.generation(), 4);
}

/// A blank replica grants any vote; one that was emptied must not, for it may have granted another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lost_its_storage_refuses_every_promise() {
    let vote = Some(wire::BallotVote { term: 9, replica: 2, committed: false });
    let leader = Some(wire::BallotVote { term: 9, replica: 2, committed: true });
    let asks = wire::VoteRequest { peer: peer(CLUSTER, 1), vote, ..Default::default() };
    let (_, mut blank) = served().await;
    assert!(blank.vote(asks.clone()).await.unwrap().into_inner().granted);

    let (consensus, mut client) = served_on(Disk::memory().emptied(ReplicaId(1)).await).await;
    let append = wire::AppendRequest { peer: peer(CLUSTER, 1), vote: leader, ..Default::default() };
    let start = wire::SnapshotStart { peer: peer(CLUSTER, 1), vote: leader, ..Default::default() };
    let part = wire::SnapshotRequest { part: Some(Part::Start(start)) };
    let transfer =
        wire::TransferLeaderRequest { peer: peer(CLUSTER, 1), from_leader: leader, to: 1, last_log_id: None };
    let refused = [
        client.vote(asks.clone()).await.unwrap_err(),
        client.pre_vote(asks).await.unwrap_err(),
        client.append(futures::stream::iter([append])).await.unwrap_err(),
        client.install_snapshot(futures::stream::iter([part])).await.unwrap_err(),
        client.transfer_leader(transfer).await.unwrap_err(),
    ];
    for refused in refused {
        assert_eq!(refusal(&refused), Some("rejoining"), "{refused}");
    }
    let status = consensus.status();
    assert_eq!((status.term, status.last_log_index), (0, None));
    let about = wire::DescribeRequest { peer: peer(CLUSTER, 1), found: None };
    assert!(client.describe(about).await.unwrap().into_inner().rejoining, "it reports that");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_not_what_was_announced_is_refused() {
    let (consensus, mut client) = served().await;
    let leader = Some(wire::BallotVote { term: 9, replica: 2, committed: true });
    let meta =
        SnapshotMeta { last_log_id: Some(LogId::new(LeaderId::new(9, 2), 5)), ..SnapshotMeta::default() };
    let digest = Some(wire::SnapshotDigest { chunks: 2, bytes: 6, checksum: 1 });
    let start = |first_chunk| {
        Part::Start(wire::SnapshotStart {
            peer: peer(CLUSTER, 1),
            vote: leader,
            meta: encode_snapshot_meta(&meta).into(),
            first_chunk,
            digest,
        })
    };
    let chunk = |number, checksum| {
        Part::Chunk(wire::SnapshotChunk { number, content: Bytes::from_static(b"abc"), checksum })
    };
    let good = 0x3524_41c2;
    let end = Part::End(wire::SnapshotEnd { chunks: 2 });
    let cases = [
        (vec![start(0), chunk(0, good + 1)], Code::DataLoss),
        (vec![start(0), chunk(1, good)], Code::InvalidArgument),
        (vec![start(0), end.clone()], Code::InvalidArgument),
        (vec![start(1), chunk(1, good)], Code::Aborted),
        (vec![start(0), chunk(0, good)], Code::Aborted),
        (vec![start(1), chunk(1, good), chunk(2, good)], Code::InvalidArgument),
        (vec![start(2), end], Code::DataLoss),
    ];
    for (parts, code) in cases {
        let said = format!("{parts:?}");
        let parts: Vec<_> =
            parts.into_iter().map(|part| wire::SnapshotRequest { part: Some(part) }).collect();
        let refused = guarded("a refusal", client.install_snapshot(futures::stream::iter(parts))).await;
        assert_eq!(refused.unwrap_err().code(), code, "{said}");
    }
    let held = wire::SnapshotHeldRequest {
        peer: peer(CLUSTER, 1),
        meta: encode_snapshot_meta(&meta).into(),
        digest,
    };
    assert_eq!(client.snapshot_held(held).await.unwrap().into_inner().chunks, 0, "what is wrong is not kept");
    let status = consensus.status();
    assert_eq!((status.snapshot_index, status.last_log_index, status.term), (None, None, 0));
}

/// Only a replica whose removal was the first half of its rejoin may add itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_being_taken_in_anew_is_completed_and_strangers_do_not_add_themselves() {
    let (consensus, mut client) = served().await;
    let members = [(ReplicaId(1), support::node(1))].into();
    consensus.initialize(members).await.unwrap();
    let mut view = consensus.leadership();
    guarded("it leads", view.wait_for(|view| view.mine.is_some())).await.unwrap();
    let asks = |begun, step: wire::readmit_request::Step| wire::ReadmitRequest {
        peer: peer(CLUSTER, 1),
        step: step.into(),
        begun,
        region: "region-2".to_owned(),
        peer_endpoint: "replica-2".to_owned(),
        client_endpoint: "http://client-2".to_owned(),
        voted: 0,
    };
    use wire::readmit_request::Step;
    assert_eq!(client.readmit(asks(false, Step::Readmit)).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(client.readmit(asks(false, Step::Promote)).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(
        client.readmit(asks(true, Step::Unspecified)).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    let long = wire::ReadmitRequest { region: "x".repeat(5_000), ..asks(true, Step::Readmit) };
    assert_eq!(client.readmit(long).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(consensus.members().len(), 1);
    // The members with which it was founded are committed a moment after it leads; until then they cannot change.
    until("its first entries are committed", || consensus.status().applied_index >= Some(1)).await;
    let added = client.readmit(asks(true, Step::Readmit)).await.unwrap().into_inner();
    let members = consensus.members();
    assert_eq!((members.len(), members[1].votes), (2, false));
    assert_eq!(members[1].node, support::node(2));
    assert_eq!(added.vote.map(|vote| (vote.replica, vote.committed)), Some((1, true)));
    // Asked again, as a member, it is removed and added once more: its earlier state does not matter.
    let again = client.readmit(asks(false, Step::Readmit)).await.unwrap().into_inner();
    assert!(again.from_index > added.from_index);
    // It has nothing yet, so it does not vote.
    let refused = client.readmit(asks(false, Step::Promote)).await.unwrap_err();
    assert!(refused.message().contains("lacks"), "{refused}");
}

/// A message that comes twice, or late, changes nothing any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_come_again_or_too_late_change_nothing() {
    let (consensus, mut client) = served().await;
    let vote = |term, replica, committed| Some(wire::BallotVote { term, replica, committed });
    let entry = |term, index| {
        let entry = Entry { log_id: LogId::new(LeaderId::new(term, 2), index), payload: EntryPayload::Blank };
        encode_entry(&entry, 0)
    };
    let append = |term, previous: Option<(u64, u64)>, entries| wire::AppendRequest {
        peer: peer(CLUSTER, 1),
        vote: vote(term, 2, true),
        previous: previous.map(|(term, index)| wire::LogId { term, replica: 2, index }),
        entries,
        leader_commit: None,
    };
    let first = append(9, None, vec![entry(9, 0), entry(9, 1)]);
    let second = append(9, Some((9, 1)), vec![entry(9, 2)]);
    // Out of order: the entry before is not there yet.
    let answer = one_answer(&mut client, second.clone()).await;
    assert!(matches!(answer, wire::append_response::Outcome::Conflict(_)), "{answer:?}");
    for request in [&first, &second, &first, &second] {
        let answer = one_answer(&mut client, request.clone()).await;
        assert!(matches!(answer, wire::append_response::Outcome::Matched(_)), "{answer:?}");
    }
    let mut metrics = consensus.flush_progress();
    guarded("all is flushed", metrics.wait_for(|flushed| flushed.last_index == Some(2))).await.unwrap();
    let before = consensus.status();
    assert_eq!((before.last_log_index, before.term), (Some(2), 9));
    // An earlier leader, and its vote, come too late.
    let stale = append(8, None, vec![entry(8, 0)]);
    let answer = one_answer(&mut client, stale).await;
    assert!(matches!(answer, wire::append_response::Outcome::HigherVote(_)), "{answer:?}");
    let asks = wire::VoteRequest { peer: peer(CLUSTER, 1), vote: vote(8, 2, false), ..Default::default() };
    assert!(!client.vote(asks).await.unwrap().into_inner().granted);
    // In the name of another.
    let asks = wire::VoteRequest { peer: peer(CLUSTER, 1), vote: vote(10, 3, false), ..Default::default() };
    assert_eq!(client.vote(asks).await.unwrap_err().code(), Code::InvalidArgument);
    let after = consensus.status();
    assert_eq!(
        (after.last_log_index, after.term, after.committed_index),
        (Some(2), 9, before.committed_index)
    );
}

async fn one_answer(
    client: &mut RaftServiceClient<tonic::transport::Channel>,
    request: wire::AppendRequest,
) -> wire::append_response::Outcome {
    let mut answers = client.append(futures::stream::iter([request])).await.unwrap().into_inner();
    guarded("an answer", answers.message()).await.unwrap().unwrap().outcome.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_leader_is_replaced_soon() {
    let mut cluster = Cluster::start(3, 3, Disk::directory).await;
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
    // On a busy machine as well: an election's timeout and a few rounds, not somebody's patience.
    assert!(gaps[gaps.len() / 2] < Duration::from_secs(10), "{gaps:?}");
}
