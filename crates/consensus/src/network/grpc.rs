//! Connections of a server: gRPC, with certificates where they are configured.

use super::transport::{Arriving, Connection, Transport};
use crate::config::{Limits, Timing};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use muster_transport::{Expect, Security};
use muster_types::ReplicaId;
use muster_wire::raft::v1 as wire;
use muster_wire::raft::v1::raft_service_client::RaftServiceClient;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// Makes gRPC connections. Clones make the same ones.
#[derive(Clone)]
pub struct Grpc {
    timing: Timing,
    security: Security,
    message_bytes_max: usize,
}

impl Grpc {
    pub(crate) fn new(timing: Timing, limits: &Limits, security: &Security) -> Grpc {
        Grpc { timing, security: security.clone(), message_bytes_max: limits.message_bytes_max }
    }
}

impl Transport for Grpc {
    type Connection = RaftServiceClient<Channel>;

    fn connect(&self, target: ReplicaId, address: &str) -> Result<RaftServiceClient<Channel>, String> {
        let lease = self.timing.lease();
        let connector = self.security.connector(Expect::Replica(target));
        let address = self.security.address(address).map_err(|error| error.to_string())?;
        let endpoint = Endpoint::from_shared(address).map_err(|error| error.to_string())?;
        let channel = endpoint
            // A request for a vote waits for the connection attempt that is under way: an attempt that began while
            // no packet passed must not last longer than a vote may take. Three round trips between regions fit.
            .connect_timeout((lease / 2).max(Duration::from_millis(250)))
            .tcp_nodelay(true)
            // A peer that died silently is noticed within seconds, also while idle; a busy stream notices sooner,
            // by its own unanswered requests.
            .http2_keep_alive_interval(lease.max(Duration::from_millis(500)))
            .keep_alive_timeout((lease * 2).max(Duration::from_millis(1_000)))
            .keep_alive_while_idle(true)
            .initial_stream_window_size(8 << 20)
            .initial_connection_window_size(16 << 20)
            .connect_with_connector_lazy(connector);
        Ok(RaftServiceClient::new(channel)
            .max_decoding_message_size(self.message_bytes_max)
            .max_encoding_message_size(self.message_bytes_max))
    }

    fn epoch(&self) -> u64 {
        self.security.epoch()
    }
}

/// Outgoing messages, as a type without a lifetime parameter.
struct Outgoing<T>(BoxStream<'static, T>);

impl<T> Stream for Outgoing<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_next_unpin(context)
    }
}

impl Connection for RaftServiceClient<Channel> {
    async fn append(
        &mut self,
        requests: BoxStream<'static, wire::AppendRequest>,
    ) -> Result<Arriving<wire::AppendResponse>, Status> {
        RaftServiceClient::append(self, Outgoing(requests)).await.map(|answers| answers.into_inner().boxed())
    }

    async fn vote(&mut self, request: wire::VoteRequest) -> Result<wire::VoteResponse, Status> {
        RaftServiceClient::vote(self, request).await.map(Response::into_inner)
    }

    async fn pre_vote(&mut self, request: wire::VoteRequest) -> Result<wire::VoteResponse, Status> {
        RaftServiceClient::pre_vote(self, request).await.map(Response::into_inner)
    }

    async fn transfer_leader(
        &mut self,
        request: wire::TransferLeaderRequest,
    ) -> Result<wire::TransferLeaderResponse, Status> {
        RaftServiceClient::transfer_leader(self, request).await.map(Response::into_inner)
    }

    async fn snapshot_held(
        &mut self,
        request: wire::SnapshotHeldRequest,
    ) -> Result<wire::SnapshotHeldResponse, Status> {
        RaftServiceClient::snapshot_held(self, request).await.map(Response::into_inner)
    }

    async fn install_snapshot(
        &mut self,
        parts: BoxStream<'static, wire::SnapshotRequest>,
    ) -> Result<wire::SnapshotResponse, Status> {
        RaftServiceClient::install_snapshot(self, Outgoing(parts)).await.map(Response::into_inner)
    }

    async fn describe(&mut self, request: wire::DescribeRequest) -> Result<wire::DescribeResponse, Status> {
        RaftServiceClient::describe(self, request).await.map(Response::into_inner)
    }

    async fn read_index(
        &mut self,
        request: wire::ReadIndexRequest,
    ) -> Result<wire::ReadIndexResponse, Status> {
        RaftServiceClient::read_index(self, request).await.map(Response::into_inner)
    }

    async fn readmit(&mut self, request: wire::ReadmitRequest) -> Result<wire::ReadmitResponse, Status> {
        RaftServiceClient::readmit(self, request).await.map(Response::into_inner)
    }
}
