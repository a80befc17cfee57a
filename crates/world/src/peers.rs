//! What carries the calls between replicas: the simulated network in the place of gRPC.
//!
//! The messages are the product's, and so is everything at both ends of them: what is sent and when, what is answered
//! and to whom, what is given up. Here is only what a connection does: messages arrive in order, late, or never.

use crate::link::{End, connect};
use crate::raft_runtime::SimConfig;
use crate::runtime::{HARNESS, Host, event, sleep_true_ns, spawn, spawn_on};
use crate::site::{Site, lock};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use muster_consensus::{
    Arriving, Connection, PeerNetwork, PeerService, Principal, Status, Transport, VoteKind, wire,
};
use muster_types::ReplicaId;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A connection on which nothing is answered is given up, as keep-alives would.
const PATIENCE: Duration = Duration::from_secs(6);
/// The same for the answer to a rejoin, which needs two changes of the membership.
const REJOIN_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long the opening of a stream may take before the connection counts as broken.
const LOST_NS: u64 = 5_000_000_000;

/// The ways from one replica to its peers.
pub type SimPeers = PeerNetwork<SimConfig, SimTransport>;

/// What serves the calls of peers at a host; none where no replica runs.
pub type FindPeer = Arc<dyn Fn(Host) -> Option<PeerService<SimConfig>> + Send + Sync>;

/// Makes connections from one host. Clones make the same ones.
#[derive(Clone)]
pub struct SimTransport {
    /// What all hosts share.
    pub site: Arc<Site>,
    /// Finds the peers.
    pub peers: FindPeer,
    /// The host.
    pub host: Host,
}

impl Transport for SimTransport {
    type Connection = Wire;

    fn connect(&self, target: ReplicaId, _address: &str) -> Result<Wire, String> {
        let to = Host::try_from(target.0).map_err(|error| error.to_string())?;
        Ok(Wire { site: Arc::clone(&self.site), peers: Arc::clone(&self.peers), from: self.host, to })
    }

    fn epoch(&self) -> u64 {
        0
    }
}

/// A connection between two replicas.
#[derive(Clone)]
pub struct Wire {
    site: Arc<Site>,
    peers: FindPeer,
    from: Host,
    to: Host,
}

/// A message of a stream.
enum Frame<T> {
    /// The call was taken.
    Opened,
    /// The next message.
    Next(T),
    /// Why there is nothing more.
    Refused(Status),
    /// There is nothing more.
    End,
}

fn broken() -> Status {
    Status::unknown("the connection broke")
}

/// Messages as they arrive at one end. A stream that ends without a word was cut off.
fn arriving<S: Send + 'static, T: Send + 'static>(end: Incoming<S, T>) -> Arriving<T> {
    let next = |end: Option<Incoming<S, T>>| async move {
        let mut end = end?;
        match end.from.recv().await {
            Some(Frame::Opened) => Some((None, Some(end))),
            Some(Frame::Next(message)) => Some((Some(Ok(message)), Some(end))),
            Some(Frame::Refused(status)) => Some((Some(Err(status)), None)),
            Some(Frame::End) => None,
            None => Some((Some(Err(broken())), None)),
        }
    };
    futures::stream::unfold(Some(end), next).filter_map(futures::future::ready).boxed()
}

/// The receiving end of a stream, and what is dropped with it.
struct Incoming<S, T> {
    from: tokio::sync::mpsc::UnboundedReceiver<Frame<T>>,
    /// Dropping it ends the sending.
    _alive: Option<oneshot::Sender<S>>,
}

impl Wire {
    /// A call of one message. It is under way whatever becomes of the caller, may come twice, or never.
    async fn ask<T, F, Fut>(&self, what: &'static str, patience: Duration, f: F) -> Result<T, Status>
    where
        F: Fn(PeerService<SimConfig>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Status>> + Send + 'static,
        T: Send + 'static,
    {
        let peers = Arc::clone(&self.peers);
        let asked = self.site.call(move |host| peers(host), (self.from, self.to), patience, what, f);
        asked.await.unwrap_or_else(|| Err(broken()))
    }

    /// A call of many messages, and the stream of answers once the peer has taken it.
    async fn stream<S, T, F, Fut>(
        &self,
        what: &'static str,
        requests: impl Stream<Item = S> + Send + Unpin + 'static,
        serve: F,
    ) -> Result<Arriving<T>, Status>
    where
        S: Send + 'static,
        T: Send + 'static,
        F: FnOnce(PeerService<SimConfig>, Arriving<S>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Arriving<T>, Status>> + Send + 'static,
    {
        let (mine, theirs) = connect::<Frame<S>, Frame<T>>(&self.site, self.from, self.to);
        let (site, peers) = (Arc::clone(&self.site), Arc::clone(&self.peers));
        let (from, to) = (self.from, self.to);
        spawn_on(HARNESS, async move {
            let leg = lock(&site.network).leg(from, to);
            let Some(leg) = leg else { return sleep_true_ns(LOST_NS).await };
            sleep_true_ns(leg).await;
            // The connection is refused where no replica runs.
            let Some(service) = peers(to) else { return };
            event("rpc", format_args!("{from} > {to} {what}"));
            spawn_on(to, answer(service, theirs, serve));
        });
        let (say, mut hear) = mine.split();
        let (alive, gone) = oneshot::channel::<S>();
        spawn(async move {
            let mut requests = requests;
            let said = async {
                while let Some(request) = requests.next().await {
                    if !say.send(Frame::Next(request)) {
                        return;
                    }
                }
                say.send(Frame::End);
            };
            tokio::select! {
                biased;
                _ = gone => {}
                () = said => {}
            }
        });
        match hear.recv().await {
            Some(Frame::Opened) => Ok(arriving(Incoming { from: hear, _alive: Some(alive) })),
            Some(Frame::Refused(status)) => Err(status),
            Some(Frame::Next(_) | Frame::End) | None => Err(broken()),
        }
    }
}

/// Serves one stream.
async fn answer<S, T, F, Fut>(service: PeerService<SimConfig>, end: End<Frame<T>, Frame<S>>, serve: F)
where
    S: Send + 'static,
    T: Send + 'static,
    F: FnOnce(PeerService<SimConfig>, Arriving<S>) -> Fut,
    Fut: Future<Output = Result<Arriving<T>, Status>>,
{
    let (say, hear) = end.split();
    let inbound = arriving(Incoming::<(), S> { from: hear, _alive: None });
    let mut answers = match serve(service, inbound).await {
        Ok(answers) => answers,
        Err(status) => {
            say.send(Frame::Refused(status));
            return;
        }
    };
    let mut said = Frame::Opened;
    while say.send(said) {
        said = match answers.next().await {
            Some(Ok(answer)) => Frame::Next(answer),
            Some(Err(status)) => {
                say.send(Frame::Refused(status));
                return;
            }
            None => {
                say.send(Frame::End);
                return;
            }
        };
    }
}

/// In a simulated network nobody has a certificate.
const NOBODY: Principal = Principal::Plaintext;

impl Connection for Wire {
    async fn append(
        &mut self,
        requests: BoxStream<'static, wire::AppendRequest>,
    ) -> Result<Arriving<wire::AppendResponse>, Status> {
        let serve =
            |peer: PeerService<SimConfig>, inbound| async move { peer.handle_append(NOBODY, inbound).await };
        self.stream("append", requests, serve).await
    }

    async fn vote(&mut self, request: wire::VoteRequest) -> Result<wire::VoteResponse, Status> {
        let ask = move |peer: PeerService<SimConfig>| {
            let request = request.clone();
            async move { peer.handle_vote(NOBODY, VoteKind::Vote, request).await }
        };
        self.ask("vote", PATIENCE, ask).await
    }

    async fn pre_vote(&mut self, request: wire::VoteRequest) -> Result<wire::VoteResponse, Status> {
        let ask = move |peer: PeerService<SimConfig>| {
            let request = request.clone();
            async move { peer.handle_vote(NOBODY, VoteKind::PreVote, request).await }
        };
        self.ask("prevote", PATIENCE, ask).await
    }

    async fn transfer_leader(
        &mut self,
        request: wire::TransferLeaderRequest,
    ) -> Result<wire::TransferLeaderResponse, Status> {
        let ask = move |peer: PeerService<SimConfig>| {
            let request = request.clone();
            async move { peer.handle_transfer(NOBODY, request).await }
        };
        self.ask("transfer", PATIENCE, ask).await
    }

    async fn snapshot_held(
        &mut self,
        request: wire::SnapshotHeldRequest,
    ) -> Result<wire::SnapshotHeldResponse, Status> {
        let ask = move |peer: PeerService<SimConfig>| {
            let request = request.clone();
            async move { peer.handle_snapshot_held(NOBODY, request).await }
        };
        self.ask("snapshot held", PATIENCE, ask).await
    }

    async fn install_snapshot(
        &mut self,
        parts: BoxStream<'static, wire::SnapshotRequest>,
    ) -> Result<wire::SnapshotResponse, Status> {
        let (site, from, to) = (Arc::clone(&self.site), self.from, self.to);
        let parts = parts.inspect(move |message| {
            if let Some(wire::snapshot_request::Part::Start(start)) = &message.part {
                event("send snapshot", format_args!("n{from} to n{to} from chunk {}", start.first_chunk));
                site.checks.count(|counts| counts.resumed += u64::from(start.first_chunk > 0));
            }
        });
        let serve = |peer: PeerService<SimConfig>, inbound| async move {
            let installed = peer.handle_snapshot(NOBODY, inbound).await?;
            Ok(futures::stream::once(futures::future::ready(Ok(installed))).boxed())
        };
        let mut answers = self.stream("snapshot", parts, serve).await?;
        answers.next().await.unwrap_or_else(|| Err(broken()))
    }

    async fn describe(&mut self, request: wire::DescribeRequest) -> Result<wire::DescribeResponse, Status> {
        let ask = move |peer: PeerService<SimConfig>| {
            let request = request.clone();
            async move { peer.handle_describe(NOBODY, request).await }
        };
        self.ask("describe", PATIENCE, ask).await
    }

    async fn read_index(
        &mut self,
        request: wire::ReadIndexRequest,
    ) -> Result<wire::ReadIndexResponse, Status> {
        let ask = move |peer: PeerService<SimConfig>| {
            let request = request.clone();
            async move { peer.handle_read_index(NOBODY, request).await }
        };
        self.ask("read index", PATIENCE, ask).await
    }

    async fn readmit(&mut self, request: wire::ReadmitRequest) -> Result<wire::ReadmitResponse, Status> {
        let ask = move |peer: PeerService<SimConfig>| {
            let request = request.clone();
            async move { peer.handle_rejoin(NOBODY, request).await }
        };
        self.ask("rejoin", REJOIN_WAIT_MAX, ask).await
    }
}
