//! Between messages of the wire and types of the protocol.

use crate::environment::Environment;
use crate::leader::ReadPoint;
use crate::marks::StateMark;
use crate::messages::{PeerReport, bounded_version};
use muster_store::{Entry, LeaderId, LogId, Space, StorageHealth, Vote, decode_entry, encode_entry};
use muster_types::{Leadership, ReplicaId};
use muster_wire::raft::v1 as wire;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, TransferLeaderError, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::vote::RaftLeaderId;
use std::time::Instant;
use tonic::Status;

pub(crate) type AppendResult<E> = Result<Option<LogId>, StreamAppendError<E>>;

pub(crate) fn missing(field: &'static str) -> Status {
    Status::invalid_argument(format!("{field} is missing"))
}

pub(crate) fn vote_to_wire(vote: &Vote) -> wire::BallotVote {
    wire::BallotVote { term: vote.leader_id.term, replica: vote.leader_id.node_id, committed: vote.committed }
}

pub(crate) fn vote(message: Option<wire::BallotVote>) -> Result<Vote, Status> {
    let vote = message.ok_or_else(|| missing("vote"))?;
    Ok(if vote.committed {
        Vote::new_committed(vote.term, vote.replica)
    } else {
        Vote::new(vote.term, vote.replica)
    })
}

pub(crate) fn log_id_to_wire(log_id: &LogId) -> wire::LogId {
    let leader = log_id.committed_leader_id();
    wire::LogId { term: leader.term, replica: leader.node_id, index: log_id.index() }
}

pub(crate) fn log_id(message: wire::LogId) -> LogId {
    LogId::new(LeaderId::new(message.term, message.replica), message.index)
}

pub(crate) fn read_point_to_wire(point: &ReadPoint) -> wire::ReadIndexResponse {
    let Leadership { term, replica } = point.leadership;
    wire::ReadIndexResponse { point: Some(wire::LogId { term, replica: replica.0, index: point.raft_index }) }
}

pub(crate) fn read_point(message: wire::ReadIndexResponse) -> Result<ReadPoint, Status> {
    let point = message.point.ok_or_else(|| missing("point"))?;
    let leadership = Leadership { term: point.term, replica: ReplicaId(point.replica) };
    Ok(ReadPoint { raft_index: point.index, leadership })
}

pub(crate) fn vote_request_to_wire<E: Environment>(
    peer: wire::Peer,
    request: &VoteRequest<E>,
) -> wire::VoteRequest {
    wire::VoteRequest {
        peer: Some(peer),
        vote: Some(vote_to_wire(&request.vote)),
        last_log_id: request.last_log_id.as_ref().map(log_id_to_wire),
        leadership_transfer: request.leadership_transfer,
    }
}

pub(crate) fn vote_request<E: Environment>(message: wire::VoteRequest) -> Result<VoteRequest<E>, Status> {
    let mut request = VoteRequest::new(vote(message.vote)?, message.last_log_id.map(log_id));
    request.leadership_transfer = message.leadership_transfer;
    Ok(request)
}

pub(crate) fn vote_response_to_wire<E: Environment>(response: &VoteResponse<E>) -> wire::VoteResponse {
    wire::VoteResponse {
        vote: Some(vote_to_wire(&response.vote)),
        granted: response.vote_granted,
        last_log_id: response.last_log_id.as_ref().map(log_id_to_wire),
    }
}

pub(crate) fn vote_response<E: Environment>(message: wire::VoteResponse) -> Result<VoteResponse<E>, Status> {
    Ok(VoteResponse::new(vote(message.vote)?, message.last_log_id.map(log_id), message.granted))
}

pub(crate) fn append_to_wire<E: Environment>(
    peer: Option<wire::Peer>,
    request: &AppendEntriesRequest<E>,
) -> wire::AppendRequest {
    wire::AppendRequest {
        peer,
        vote: Some(vote_to_wire(&request.vote)),
        previous: request.prev_log_id.as_ref().map(log_id_to_wire),
        entries: request.entries.iter().map(|entry| encode_entry(entry, 0)).collect(),
        leader_commit: request.leader_commit.as_ref().map(log_id_to_wire),
    }
}

/// Far above any log; the protocol adds to an index without looking.
const INDEX_MAX: u64 = u64::MAX / 2;

/// Whether the log of the leader with this vote can hold such an entry. The protocol takes it for
/// granted, and some of it panics otherwise.
pub(crate) fn is_held_by(log_id: &LogId, vote: &Vote) -> bool {
    let leader = log_id.committed_leader_id();
    (leader.term, leader.node_id) <= (vote.leader_id.term, vote.leader_id.node_id)
        && log_id.index() <= INDEX_MAX
}

/// Decodes a request and checks what the protocol takes for granted: that a leader sends it, that
/// its log can hold what is named, and that its entries follow one another.
pub(crate) fn append<E: Environment>(
    message: wire::AppendRequest,
    source: u64,
) -> Result<AppendEntriesRequest<E>, Status> {
    let vote = vote(message.vote)?;
    if !vote.committed || vote.leader_id.node_id != source {
        return Err(Status::invalid_argument("only a leader appends, in its own name"));
    }
    let prev_log_id = message.previous.map(log_id);
    let mut last = prev_log_id;
    let mut entries = Vec::with_capacity(message.entries.len());
    for envelope in &message.entries {
        let (entry, _): (Entry, u32) = decode_entry(envelope)
            .map_err(|error| Status::invalid_argument(format!("an entry cannot be decoded: {error}")))?;
        let next = last.map_or(Some(0), |last| last.index().checked_add(1));
        if Some(entry.log_id.index()) != next || Some(entry.log_id) <= last {
            return Err(Status::invalid_argument("entries do not follow one another"));
        }
        last = Some(entry.log_id);
        entries.push(entry);
    }
    let leader_commit = message.leader_commit.map(log_id);
    // Entries rise, so the last speaks for all of them.
    if ![prev_log_id, last, leader_commit].iter().flatten().all(|log_id| is_held_by(log_id, &vote)) {
        return Err(Status::invalid_argument("no log of this leader's can hold these entries"));
    }
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

pub(crate) fn append_result_to_wire<E: Environment>(result: &AppendResult<E>) -> wire::AppendResponse {
    use wire::append_response::Outcome;
    let outcome = match result {
        Ok(matched) => Outcome::Matched(wire::Matched { log_id: matched.as_ref().map(log_id_to_wire) }),
        Err(StreamAppendError::Conflict(at)) => Outcome::Conflict(log_id_to_wire(at)),
        Err(StreamAppendError::HigherVote(vote)) => Outcome::HigherVote(vote_to_wire(vote)),
    };
    wire::AppendResponse { outcome: Some(outcome) }
}

pub(crate) fn append_result<E: Environment>(
    message: wire::AppendResponse,
) -> Result<AppendResult<E>, Status> {
    use wire::append_response::Outcome;
    Ok(match message.outcome.ok_or_else(|| missing("outcome"))? {
        Outcome::Matched(matched) => Ok(matched.log_id.map(log_id)),
        Outcome::Conflict(at) => Err(StreamAppendError::Conflict(log_id(at))),
        Outcome::HigherVote(higher) => Err(StreamAppendError::HigherVote(vote(Some(higher))?)),
    })
}

pub(crate) fn transfer_to_wire<E: Environment>(
    peer: wire::Peer,
    request: &TransferLeaderRequest<E>,
) -> wire::TransferLeaderRequest {
    wire::TransferLeaderRequest {
        peer: Some(peer),
        from_leader: Some(vote_to_wire(request.from_leader())),
        to: *request.to_node_id(),
        last_log_id: request.last_log_id().map(log_id_to_wire),
    }
}

pub(crate) fn transfer<E: Environment>(
    message: wire::TransferLeaderRequest,
) -> Result<TransferLeaderRequest<E>, Status> {
    let from = vote(message.from_leader)?;
    Ok(TransferLeaderRequest::new(from, message.to, message.last_log_id.map(log_id)))
}

pub(crate) fn transfer_response_to_wire<E: Environment>(
    response: &TransferLeaderResponse<E>,
) -> wire::TransferLeaderResponse {
    use wire::transfer_leader_response::{Accepted, LogNotFlushed, Outcome, VoteChanged};
    let outcome = match response {
        Ok(()) => Outcome::Accepted(Accepted {}),
        Err(TransferLeaderError::VoteChanged { expected, actual }) => Outcome::VoteChanged(VoteChanged {
            expected: Some(vote_to_wire(expected)),
            actual: Some(vote_to_wire(actual)),
        }),
        Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
            Outcome::LogNotFlushed(LogNotFlushed {
                expected: expected.as_ref().map(log_id_to_wire),
                actual: actual.as_ref().map(log_id_to_wire),
            })
        }
    };
    wire::TransferLeaderResponse { outcome: Some(outcome) }
}

pub(crate) fn transfer_response<E: Environment>(
    message: wire::TransferLeaderResponse,
) -> Result<TransferLeaderResponse<E>, Status> {
    use wire::transfer_leader_response::Outcome;
    Ok(match message.outcome.ok_or_else(|| missing("outcome"))? {
        Outcome::Accepted(_) => Ok(()),
        Outcome::VoteChanged(changed) => Err(TransferLeaderError::VoteChanged {
            expected: vote(changed.expected)?,
            actual: vote(changed.actual)?,
        }),
        Outcome::LogNotFlushed(log) => Err(TransferLeaderError::LogNotFlushed {
            expected: log.expected.map(log_id),
            actual: log.actual.map(log_id),
        }),
    })
}

pub(crate) fn report_to_wire(report: &PeerReport) -> wire::DescribeResponse {
    let space = match report.storage.space {
        Space::Enough => wire::Space::Enough,
        Space::Low => wire::Space::Low,
        Space::Full => wire::Space::Full,
    };
    wire::DescribeResponse {
        version: report.version.clone(),
        format_max: report.format_max,
        generation: report.generation,
        space: space.into(),
        free_bytes: report.storage.free_bytes,
        stalled_ms: report.storage.stalled_ms,
        flush_us: report.storage.flush_mean_us,
        applied_index: report.applied_index,
        last_log_index: report.last_log_index,
        snapshot_index: report.snapshot_index,
        rejoining: report.rejoining,
        unix_ms: report.unix_ms,
        founding: report.founding,
        volatile: report.is_volatile,
        state_entry: report.state.map(|mark| mark.raft_index),
        state_digest: report.state.map_or(0, |mark| mark.digest),
    }
}

pub(crate) fn report(message: wire::DescribeResponse, received_at: Instant) -> PeerReport {
    let space = match message.space() {
        wire::Space::Enough => Space::Enough,
        wire::Space::Low => Space::Low,
        // One that says what nobody here knows is not to be relied on.
        wire::Space::Full | wire::Space::Unspecified => Space::Full,
    };
    let storage = StorageHealth {
        free_bytes: message.free_bytes,
        space,
        stalled_ms: message.stalled_ms,
        flush_mean_us: message.flush_us,
        ..StorageHealth::default()
    };
    PeerReport {
        version: bounded_version(&message.version),
        format_max: message.format_max,
        generation: message.generation,
        storage,
        applied_index: message.applied_index,
        last_log_index: message.last_log_index,
        snapshot_index: message.snapshot_index,
        rejoining: message.rejoining,
        unix_ms: message.unix_ms,
        founding: message.founding,
        is_volatile: message.volatile,
        state: message.state_entry.map(|raft_index| StateMark { raft_index, digest: message.state_digest }),
        has_diverged: false,
        received_at,
    }
}
