//! The sending side: one connection each for replication, heartbeats and snapshots to every peer,
//! so that bulk data never delays a heartbeat.
//!
//! **Invariant:** nothing is sent to followers while the gate is closed.
//! **Invariant:** answers are returned in the order of their requests.

use super::channel::{PeerChannel, PeerNetwork, Purpose};
use super::convert;
use super::snapshots::{self, Upload, UploadError, Uploads};
use super::transport::{Arriving, Connection as _, Transport};
use crate::environment::{Environment, Storage as _};
use crate::fault_injection::Traffic;
use crate::follower_hint::{self, FollowerHints, SendPlan};
use crate::leadership::CheckQuorum;
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt};
use muster_store::{LogId, ReplicaNode, SnapshotHandle, Vote};
use muster_types::ReplicaId;
use muster_wire::raft::v1 as wire;
use openraft::errors::{ErrorSource as _, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::{ErrorSourceOf, SnapshotOf};
use openraft::{OptionalSend, RPCTypes, RaftNetworkFactory, RaftNetworkV2, StorageError};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Status;

impl<E: Environment, T: Transport> RaftNetworkFactory<E> for PeerNetwork<E, T> {
    type Network = PeerClient<E, T>;

    async fn new_client(&mut self, target: u64, node: &ReplicaNode) -> PeerClient<E, T> {
        self.client(ReplicaId(target), node, Purpose::Log)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &ReplicaNode) -> PeerClient<E, T> {
        self.client(ReplicaId(target), node, Purpose::Heartbeats)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &ReplicaNode) -> PeerClient<E, T> {
        self.client(ReplicaId(target), node, Purpose::Snapshot)
    }
}

impl<E: Environment, T: Transport> PeerNetwork<E, T> {
    fn client(&self, target: ReplicaId, node: &ReplicaNode, purpose: Purpose) -> PeerClient<E, T> {
        PeerClient {
            source: self.config.replica_id,
            channel: self.channel(target, node, purpose),
            calls: self.channel(target, node, Purpose::Calls),
            check_quorum: self.check_quorum.clone(),
            traffic: self.traffic.clone(),
            stall_max: self.config.timing.stall_max(),
            uploads: self.uploads.clone(),
            hints: self.hints.clone(),
            store: self.store.clone(),
        }
    }
}

/// One use of the ways to one peer.
pub struct PeerClient<E: Environment, T: Transport> {
    source: ReplicaId,
    /// For the log, heartbeats or a snapshot.
    channel: PeerChannel<E, T>,
    /// For votes.
    calls: PeerChannel<E, T>,
    check_quorum: CheckQuorum<E>,
    traffic: Traffic,
    stall_max: Duration,
    uploads: Uploads,
    hints: FollowerHints,
    store: E::Storage,
}

type RpcError<E> = RPCError<E>;

fn unreachable<E: Environment>(reason: impl ToString) -> RpcError<E> {
    RPCError::Unreachable(Unreachable::from_string(reason))
}

/// Bytes of what is sent from the end of a peer's log on, at most; and one entry.
const FROM_END_BYTES_MAX: usize = 1 << 20;

/// Requests that were sent and not answered, and why sending ended.
#[derive(Default)]
struct InFlight {
    sent_at: VecDeque<Instant>,
    held_back: bool,
}

type SharedInFlight = Arc<Mutex<InFlight>>;

fn with_in_flight<T>(shared: &SharedInFlight, f: impl FnOnce(&mut InFlight) -> T) -> T {
    f(&mut shared.lock())
}

impl<E: Environment, T: Transport> PeerClient<E, T> {
    fn client(&mut self) -> Result<T::Connection, RpcError<E>> {
        self.channel.client().map_err(unreachable)
    }

    fn failed(&mut self, status: &Status) -> RpcError<E> {
        self.channel.note_refusal(status);
        unreachable(format!("{}: {}", status.code(), status.message()))
    }

    /// Runs a single call within the time the protocol gives it.
    async fn call<A: Send>(
        &mut self,
        action: RPCTypes,
        option: &RPCOption,
        call: impl Future<Output = Result<A, Status>> + Send,
    ) -> Result<A, RpcError<E>> {
        match E::within(option.hard_ttl(), call).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(status)) => Err(self.failed(&status)),
            Err(_) => Err(self.timed_out(action, option.hard_ttl())),
        }
    }

    fn timed_out(&self, action: RPCTypes, timeout: Duration) -> RpcError<E> {
        RPCError::Timeout(Timeout { action, id: self.source.0, target: self.channel.target().0, timeout })
    }

    fn outbound<S>(
        &self,
        input: S,
        in_flight: SharedInFlight,
    ) -> impl Stream<Item = wire::AppendRequest> + Send + 'static
    where
        S: Stream<Item = AppendEntriesRequest<E>> + OptionalSend + Unpin + 'static,
    {
        let (check_quorum, traffic) = (self.check_quorum.clone(), self.traffic.clone());
        let first_peer = Some(self.channel.peer());
        futures::stream::unfold((input, first_peer), move |(mut input, mut peer)| {
            let (check_quorum, traffic) = (check_quorum.clone(), traffic.clone());
            let in_flight = Arc::clone(&in_flight);
            async move {
                let request = input.next().await?;
                if !check_quorum.may_send() || traffic.peers_out_refused().is_some() {
                    with_in_flight(&in_flight, |in_flight| in_flight.held_back = true);
                    return None;
                }
                with_in_flight(&in_flight, |in_flight| in_flight.sent_at.push_back(E::instant()));
                Some((convert::append_to_wire(peer.take(), &request), (input, peer)))
            }
        })
    }

    /// Opens a stream of requests, the first of which is there, and sends all of them.
    async fn send_all<'s>(&'s mut self, input: Requests<E>) -> Result<AppendAnswers<'s, E>, RpcError<E>> {
        let in_flight = SharedInFlight::default();
        let outbound = self.outbound(input, Arc::clone(&in_flight));
        let mut client = self.client()?;
        let opened = E::within(self.stall_max, client.append(outbound.boxed())).await;
        let inbound = match opened {
            Ok(Ok(inbound)) => inbound,
            Ok(Err(status)) => return Err(self.failed(&status)),
            Err(_) => return Err(self.timed_out(RPCTypes::AppendEntries, self.stall_max)),
        };
        let answers = Answers { client: self, inbound, in_flight, done: false };
        let stream = futures::stream::unfold(answers, |mut answers| async move {
            let next = answers.next().await?;
            Some((next, answers))
        });
        Ok(stream.boxed())
    }

    /// Through where the peer is known to hold a request, asking it from the end of its log on where that is known.
    async fn already_replicated(
        &mut self,
        request: &AppendEntriesRequest<E>,
    ) -> Result<Option<LogId>, RpcError<E>> {
        let peer = self.channel.target();
        let end = match self.hints.plan(peer, request, E::instant()) {
            SendPlan::AsIs => return Ok(None),
            SendPlan::AlreadyReplicated(through) => return Ok(Some(through)),
            SendPlan::ResumeFrom(end) => end,
        };
        // A log that cannot be read is the protocol's matter, which reads it next.
        let range = follower_hint::range(end);
        let own = self.store.read(range.start, range.end, FROM_END_BYTES_MAX).await.unwrap_or_default();
        let Some(asked) = follower_hint::from_end(request, end, own) else { return Ok(None) };
        let through = asked.entries.last().map_or(end, |entry| entry.log_id);
        let once = futures::stream::once(futures::future::ready(asked)).boxed();
        let sent = E::instant();
        let answer = self.send_all(once).await?.next().await;
        match answer {
            Some(Ok(Ok(Some(matched)))) if matched == through => {
                self.hints.acknowledged(peer, request, through, sent);
            }
            Some(Err(error)) => return Err(error),
            // The protocol asks in its own way, and hears why not.
            _ => return Ok(None),
        }
        Ok(self.hints.resumed(peer, request))
    }

    async fn open_append<'s, S>(&'s mut self, mut input: S) -> Result<AppendAnswers<'s, E>, RpcError<E>>
    where
        S: Stream<Item = AppendEntriesRequest<E>> + OptionalSend + Unpin + 'static,
    {
        // The first request may be long in coming: an idle leader has nothing to send. Only once it
        // is there does the peer owe an answer. It is waited for before anything is refused, because the
        // protocol pauses after an error where it makes the next request: without that, a leader behind a
        // closed gate would try again at once, for ever.
        let Some(first) = input.next().await else { return Ok(futures::stream::empty().boxed()) };
        if !self.check_quorum.may_send() {
            return Err(unreachable("no quorum is heard"));
        }
        let Some(through) = self.already_replicated(&first).await? else {
            return self.send_all(with_first(first, input.boxed())).await;
        };
        let answering = Phase::Answering { client: self, input: input.boxed(), through: Some(through) };
        Ok(futures::stream::unfold(answering, Phase::next).boxed())
    }
}

type Requests<E> = BoxStream<'static, AppendEntriesRequest<E>>;
type AppendAnswer<E> = Result<StreamAppendResult<E>, RpcError<E>>;
type AppendAnswers<'s, E> = BoxStream<'s, AppendAnswer<E>>;

fn with_first<E: Environment>(first: AppendEntriesRequest<E>, rest: Requests<E>) -> Requests<E> {
    futures::stream::once(futures::future::ready(first)).chain(rest).boxed()
}

/// How far a stream is whose first requests the peer is known to hold.
enum Phase<'s, E: Environment, T: Transport> {
    /// Requests are answered without being sent; one is to be answered so now.
    Answering { client: &'s mut PeerClient<E, T>, input: Requests<E>, through: Option<LogId> },
    /// Every request is sent.
    Sending(AppendAnswers<'s, E>),
    /// An error was the last answer.
    Over,
}

impl<'s, E: Environment, T: Transport> Phase<'s, E, T> {
    async fn next(self) -> Option<(AppendAnswer<E>, Phase<'s, E, T>)> {
        match self {
            Phase::Answering { client, input, through: Some(through) } => {
                Some((Ok(Ok(Some(through))), Phase::Answering { client, input, through: None }))
            }
            Phase::Answering { client, mut input, through: None } => {
                let request = input.next().await?;
                match client.already_replicated(&request).await {
                    Ok(Some(through)) => {
                        Some((Ok(Ok(Some(through))), Phase::Answering { client, input, through: None }))
                    }
                    Ok(None) => match client.send_all(with_first(request, input)).await {
                        Ok(mut answers) => {
                            answers.next().await.map(|answer| (answer, Phase::Sending(answers)))
                        }
                        Err(error) => Some((Err(error), Phase::Over)),
                    },
                    Err(error) => Some((Err(error), Phase::Over)),
                }
            }
            Phase::Sending(mut answers) => {
                answers.next().await.map(|answer| (answer, Phase::Sending(answers)))
            }
            Phase::Over => None,
        }
    }
}

/// The answers of one stream of requests.
struct Answers<'s, E: Environment, T: Transport> {
    client: &'s mut PeerClient<E, T>,
    inbound: Arriving<wire::AppendResponse>,
    in_flight: SharedInFlight,
    done: bool,
}

impl<E: Environment, T: Transport> Answers<'_, E, T> {
    async fn next(&mut self) -> Option<Result<StreamAppendResult<E>, RpcError<E>>> {
        if self.done {
            return None;
        }
        let next = self.receive().await;
        self.done = !matches!(next, Some(Ok(Ok(_))));
        next
    }

    async fn receive(&mut self) -> Option<Result<StreamAppendResult<E>, RpcError<E>>> {
        let stall_max = self.client.stall_max;
        loop {
            let Ok(message) = E::within(stall_max / 2, self.inbound.next()).await else {
                let stalled = with_in_flight(&self.in_flight, |in_flight| {
                    let now = E::instant();
                    let oldest = in_flight.sent_at.front();
                    oldest.is_some_and(|sent| now.saturating_duration_since(*sent) > stall_max)
                });
                if stalled {
                    return Some(Err(self.client.timed_out(RPCTypes::AppendEntries, stall_max)));
                }
                continue;
            };
            return match message {
                Some(Ok(message)) => {
                    with_in_flight(&self.in_flight, |in_flight| in_flight.sent_at.pop_front());
                    Some(convert::append_result(message).map_err(|status| self.client.failed(&status)))
                }
                None if with_in_flight(&self.in_flight, |in_flight| in_flight.held_back) => {
                    Some(Err(unreachable("no quorum is heard, or this replica is to be silent")))
                }
                None => None,
                Some(Err(status)) => Some(Err(self.client.failed(&status))),
            };
        }
    }
}

impl<E: Environment, T: Transport> RaftNetworkV2<E> for PeerClient<E, T> {
    type SnapshotData = SnapshotHandle;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<E>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<E>, RpcError<E>> {
        let once = futures::stream::once(async move { rpc }).boxed();
        let mut answers = self.open_append(once).await?;
        match answers.next().await {
            Some(answer) => answer.map(AppendEntriesResponse::from),
            None => Err(unreachable("the stream ended without an answer")),
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> futures::future::BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<E>, RpcError<E>>>, RpcError<E>>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<E>> + OptionalSend + Unpin + 'static,
    {
        self.open_append(input).boxed()
    }

    async fn vote(&mut self, rpc: VoteRequest<E>, option: RPCOption) -> Result<VoteResponse<E>, RpcError<E>> {
        let mut client = self.calls.client().map_err(unreachable)?;
        let request = convert::vote_request_to_wire(self.calls.peer(), &rpc);
        let message = self.call(RPCTypes::Vote, &option, client.vote(request)).await?;
        let answer = convert::vote_response(message).map_err(|status| self.failed(&status))?;
        if answer.vote_granted {
            self.hints.voted(self.calls.target(), rpc.vote.leader_id, answer.last_log_id);
        }
        Ok(answer)
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<E>,
        option: RPCOption,
    ) -> Result<VoteResponse<E>, RpcError<E>> {
        let mut client = self.calls.client().map_err(unreachable)?;
        let request = convert::vote_request_to_wire(self.calls.peer(), &rpc);
        let message = self.call(RPCTypes::Vote, &option, client.pre_vote(request)).await?;
        convert::vote_response(message).map_err(|status| self.failed(&status))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<E, SnapshotHandle>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<E>, StreamingError<E>> {
        let upload = Upload::<E, T::Connection> {
            client: self.client()?,
            peer: self.channel.peer(),
            vote,
            snapshot,
            part_wait: self.stall_max.max(snapshots::PART_WAIT),
        };
        let (uploads, traffic) = (self.uploads.clone(), self.traffic.clone());
        let uploaded = tokio::select! {
            closed = cancel => return Err(StreamingError::Closed(closed)),
            () = traffic.until_peers_out_refused() => {
                return Err(unreachable("this replica calls no peer for a while, for a drill").into());
            }
            uploaded = upload.run(&uploads) => uploaded,
        };
        match uploaded {
            Ok(vote) => Ok(SnapshotResponse::new(vote)),
            // A snapshot that cannot be read is this replica's own failure, not the network's.
            Err(UploadError::Read(error)) => {
                let source = ErrorSourceOf::<E>::from_error(&error);
                Err(StreamingError::StorageError(StorageError::read_snapshot(None, source)))
            }
            Err(UploadError::Refused(status)) => Err(self.failed(&status).into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<E>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<E>, RpcError<E>> {
        let mut client = self.calls.client().map_err(unreachable)?;
        let message = convert::transfer_to_wire(self.calls.peer(), &request);
        let response = self.call(RPCTypes::TransferLeader, &option, client.transfer_leader(message)).await?;
        convert::transfer_response(response).map_err(|status| self.failed(&status))
    }
}
