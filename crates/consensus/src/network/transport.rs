//! The seam to the transport of calls between replicas: making connections, and the calls over one.
//!
//! A server uses gRPC ([`Grpc`](super::Grpc)). The simulation of whole clusters carries the same messages over a
//! simulated network; everything above and below this seam is the same code there.
//!
//! **Invariant:** a connection carries messages and decides nothing: its users decide what is sent, what is believed and
//! when an attempt is given up.

use futures::stream::BoxStream;
use muster_types::ReplicaId;
use muster_wire::raft::v1 as wire;
use tonic::Status;

/// Messages that arrive; an error is the last.
pub type Arriving<T> = BoxStream<'static, Result<T, Status>>;

/// Makes connections. Clones make the same ones.
pub trait Transport: Clone + Send + Sync + 'static {
    /// What it makes.
    type Connection: Connection;

    /// A connection to a peer at an address, opened when it is first used and again whenever it broke.
    ///
    /// # Errors
    /// When the address is none.
    fn connect(&self, target: ReplicaId, address: &str) -> Result<Self::Connection, String>;

    /// Rises when connections made before are to be replaced: by other certificates, for instance.
    fn epoch(&self) -> u64;
}

/// What can be asked over a connection. Clones share it. A future or stream that is dropped ends the call.
///
/// Every call fails with the status that the peer gave, or with one that says why no answer came. None ends by
/// itself because it takes long: the caller sets the time.
pub trait Connection: Clone + Send + Sync + 'static {
    /// A stream of requests to append, and the answers in the order of the requests.
    fn append(
        &mut self,
        requests: BoxStream<'static, wire::AppendRequest>,
    ) -> impl Future<Output = Result<Arriving<wire::AppendResponse>, Status>> + Send;

    /// Asks for a vote.
    fn vote(
        &mut self,
        request: wire::VoteRequest,
    ) -> impl Future<Output = Result<wire::VoteResponse, Status>> + Send;

    /// Asks whether a vote would be given.
    fn pre_vote(
        &mut self,
        request: wire::VoteRequest,
    ) -> impl Future<Output = Result<wire::VoteResponse, Status>> + Send;

    /// Transfers leadership.
    fn transfer_leader(
        &mut self,
        request: wire::TransferLeaderRequest,
    ) -> impl Future<Output = Result<wire::TransferLeaderResponse, Status>> + Send;

    /// Asks how much of a snapshot the peer holds.
    fn snapshot_held(
        &mut self,
        request: wire::SnapshotHeldRequest,
    ) -> impl Future<Output = Result<wire::SnapshotHeldResponse, Status>> + Send;

    /// Sends a snapshot, and returns once it is installed.
    fn install_snapshot(
        &mut self,
        parts: BoxStream<'static, wire::SnapshotRequest>,
    ) -> impl Future<Output = Result<wire::SnapshotResponse, Status>> + Send;

    /// Asks what the peer is and how it fares.
    fn describe(
        &mut self,
        request: wire::DescribeRequest,
    ) -> impl Future<Output = Result<wire::DescribeResponse, Status>> + Send;

    /// Asks how far reads have to wait.
    fn read_index(
        &mut self,
        request: wire::ReadIndexRequest,
    ) -> impl Future<Output = Result<wire::ReadIndexResponse, Status>> + Send;

    /// Asks to rejoin.
    fn readmit(
        &mut self,
        request: wire::ReadmitRequest,
    ) -> impl Future<Output = Result<wire::ReadmitResponse, Status>> + Send;
}
