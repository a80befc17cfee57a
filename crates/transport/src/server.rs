//! Taking connections.
//!
//! **Invariant:** handshakes and connections are bounded, those of one address or one name too, so that
//! nobody can take the places of all others; a peer that says nothing is given up after a time.

use crate::name::{Principal, Role};
use crate::security::{Security, Tls};
use crate::validity::{PeerKind, Validity, over};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// Finished handshakes that wait to be served.
const READY_MAX: usize = 64;
/// After a failure to accept (no descriptors, say), which would otherwise repeat at once.
const PAUSE: Duration = Duration::from_millis(50);
/// Refused peers that are told of one by one; the rest is silence, or a stranger could fill the log.
const REFUSED_LOGGED_MAX: u64 = 256;
/// Of all connections, one part of this many may be of callers without a certificate: others always find a place.
const ANONYMOUS_PART: usize = 4;

/// Bounds of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptLimits {
    /// Connections at once.
    pub connections_max: usize,
    /// Of one client, operator or agent.
    pub connections_per_principal_max: usize,
    /// Of one agent that speaks for many nodes: each of them has its own connection.
    pub connections_per_group_max: usize,
    /// Peers that have not shown who they are yet.
    pub handshakes_max: usize,
    /// Of one address.
    pub handshakes_per_address_max: usize,
    /// How long a peer may take for it.
    pub handshake_timeout: Duration,
}

impl AcceptLimits {
    /// What a listener gets that says nothing: a fleet of ten thousand hosts fits through one replica.
    pub const DEFAULT: AcceptLimits = AcceptLimits {
        connections_max: 16_384,
        connections_per_principal_max: 256,
        connections_per_group_max: 8_192,
        handshakes_max: 512,
        handshakes_per_address_max: 128,
        handshake_timeout: Duration::from_secs(5),
    };
}

/// Whom a request came from; among the extensions of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Who.
    pub principal: Principal,
    /// From where.
    pub address: SocketAddr,
}

impl Security {
    /// Takes connections until the stream is dropped. Needs a runtime.
    #[must_use]
    pub fn accept(&self, listener: TcpListener, limits: AcceptLimits) -> Incoming {
        self.accept_from(listener, limits, false)
    }

    /// The same, also from callers that show no certificate: those are [`Principal::Anonymous`], and what
    /// serves them asks each call for a token.
    #[must_use]
    pub fn accept_with_tokens(&self, listener: TcpListener, limits: AcceptLimits) -> Incoming {
        self.accept_from(listener, limits, true)
    }

    fn accept_from(&self, listener: TcpListener, limits: AcceptLimits, is_open: bool) -> Incoming {
        let (ready, connections) = mpsc::channel(READY_MAX);
        let gate = Gate {
            security: self.clone(),
            limits,
            connections: Arc::new(Semaphore::new(limits.connections_max)),
            handshakes: Arc::new(Semaphore::new(limits.handshakes_max)),
            addresses: Counts::default(),
            principals: Counts::default(),
            is_open,
            anonymous: Arc::new(Semaphore::new(limits.connections_max / ANONYMOUS_PART)),
            anonymous_addresses: Counts::default(),
            refused: Arc::default(),
        };
        tokio::spawn(gate.run(listener, ready));
        Incoming { connections }
    }
}

/// Connections whose peers are known.
pub struct Incoming {
    connections: mpsc::Receiver<io::Result<PeerConnection>>,
}

impl Stream for Incoming {
    type Item = io::Result<PeerConnection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.connections.poll_recv(context)
    }
}

/// How many of each there are; nothing is kept of those that have none.
struct Counts<K>(Arc<Mutex<HashMap<K, usize>>>);

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Counts(Arc::default())
    }
}

impl<K> Clone for Counts<K> {
    fn clone(&self) -> Self {
        Counts(Arc::clone(&self.0))
    }
}

impl<K: Copy + Eq + Hash> Counts<K> {
    fn enter(&self, key: K, max: usize) -> Option<CountGuard<K>> {
        let mut counts = self.0.lock();
        let count = counts.entry(key).or_insert(0);
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(CountGuard { counts: self.clone(), key })
    }
}

/// One of them, until it is dropped.
struct CountGuard<K: Copy + Eq + Hash> {
    counts: Counts<K>,
    key: K,
}

impl<K: Copy + Eq + Hash> Drop for CountGuard<K> {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[derive(Clone)]
struct Gate {
    security: Security,
    limits: AcceptLimits,
    connections: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
    addresses: Counts<IpAddr>,
    principals: Counts<Principal>,
    /// Whether callers may come without a certificate.
    is_open: bool,
    /// Connections of those.
    anonymous: Arc<Semaphore>,
    anonymous_addresses: Counts<IpAddr>,
    refused: Arc<std::sync::atomic::AtomicU64>,
}

impl Gate {
    async fn run(self, listener: TcpListener, ready: mpsc::Sender<io::Result<PeerConnection>>) {
        loop {
            let accepted = tokio::select! {
                () = ready.closed() => return,
                accepted = listener.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            self.admit(stream, address, &ready).await;
        }
    }

    /// Excess connections are closed at once: later callers must not wait behind them.
    async fn admit(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        ready: &mpsc::Sender<io::Result<PeerConnection>>,
    ) {
        let Ok(place) = Arc::clone(&self.connections).try_acquire_owned() else {
            return self.say(address, "there are as many connections as there may be");
        };
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let tls = match &self.security {
            Security::Plaintext => {
                let info = PeerInfo { principal: Principal::Plaintext, address };
                let io = Io::Plain(stream);
                let connection = PeerConnection {
                    io,
                    info,
                    validity: None,
                    _place: place,
                    _principal: None,
                    _anonymous: None,
                };
                let _ = ready.send(Ok(connection)).await;
                return;
            }
            Security::Tls(tls) => tls.clone(),
        };
        let handshake = Arc::clone(&self.handshakes).try_acquire_owned().ok();
        let of_address = self.addresses.enter(address.ip(), self.limits.handshakes_per_address_max);
        let (Some(handshake), Some(of_address)) = (handshake, of_address) else {
            return self.say(address, "too many peers have not shown who they are yet");
        };
        let (gate, ready) = (self.clone(), ready.clone());
        tokio::spawn(async move {
            let limit = gate.limits.handshake_timeout;
            let connection = tokio::time::timeout(limit, gate.secure(&tls, stream, address, place)).await;
            drop((handshake, of_address));
            match connection {
                Ok(Ok(connection)) => {
                    let _ = ready.send(Ok(connection)).await;
                }
                Ok(Err(error)) => gate.say(address, &error.to_string()),
                Err(_) => gate.say(address, "it did not show who it is in time"),
            }
        });
    }

    async fn secure(
        &self,
        tls: &Tls,
        stream: TcpStream,
        address: SocketAddr,
        place: OwnedSemaphorePermit,
    ) -> io::Result<PeerConnection> {
        let changes = tls.changes();
        let config = tls.material().server(self.is_open);
        let config = config.ok_or_else(|| io::Error::other("this process has no certificate"))?;
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        let chain: Vec<_> = stream
            .get_ref()
            .1
            .peer_certificates()
            .unwrap_or_default()
            .iter()
            .map(|c| c.clone().into_owned())
            .collect();
        if chain.is_empty() && self.is_open {
            return self.anonymous(stream, address, place);
        }
        // The verifier has read the same name from it.
        let nameless = || io::Error::new(io::ErrorKind::InvalidData, "no certificate");
        let facts = crate::verify::facts(chain.first().ok_or_else(nameless)?).map_err(io::Error::other)?;
        let principal = Principal::Named(facts.name);
        let max = match facts.name.role {
            // A replica carries what its own clients and agents send on; it bounds them itself.
            Role::Replica(_) => usize::MAX,
            Role::AgentGroup(_) => self.limits.connections_per_group_max,
            Role::Agent(_)
            | Role::Client(_)
            | Role::AllTenants(_)
            | Role::Admin(_)
            | Role::TenantClient { .. } => self.limits.connections_per_principal_max,
        };
        let of_principal = self.principals.enter(principal, max).ok_or_else(|| {
            io::Error::new(io::ErrorKind::QuotaExceeded, format!("{principal} has too many connections"))
        })?;
        let validity = Validity::new(tls.clone(), changes, chain, facts.not_after, PeerKind::Client);
        Ok(PeerConnection {
            io: Io::Tls(Box::new(stream)),
            info: PeerInfo { principal, address },
            validity: Some(validity),
            _place: place,
            _principal: Some(of_principal),
            _anonymous: None,
        })
    }

    /// A connection of a caller that has shown no certificate.
    fn anonymous(
        &self,
        stream: TlsStream<TcpStream>,
        address: SocketAddr,
        place: OwnedSemaphorePermit,
    ) -> io::Result<PeerConnection> {
        let full =
            || io::Error::new(io::ErrorKind::QuotaExceeded, "too many connections without a certificate");
        let one = Arc::clone(&self.anonymous).try_acquire_owned().map_err(|_| full())?;
        let max = self.limits.connections_per_principal_max;
        let of_address = self.anonymous_addresses.enter(address.ip(), max).ok_or_else(full)?;
        Ok(PeerConnection {
            io: Io::Tls(Box::new(stream)),
            info: PeerInfo { principal: Principal::Anonymous, address },
            validity: None,
            _place: place,
            _principal: None,
            _anonymous: Some((one, of_address)),
        })
    }

    fn say(&self, address: SocketAddr, reason: &str) {
        let before = self.refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if before < REFUSED_LOGGED_MAX {
            tracing::warn!(%address, reason, "a connection is refused");
        }
    }
}

enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection whose peer is known.
pub struct PeerConnection {
    io: Io,
    info: PeerInfo,
    validity: Option<Validity>,
    _place: OwnedSemaphorePermit,
    _principal: Option<CountGuard<Principal>>,
    _anonymous: Option<(OwnedSemaphorePermit, CountGuard<IpAddr>)>,
}

impl Connected for PeerConnection {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        self.info
    }
}

impl AsyncRead for PeerConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(validity) = &mut self.validity
            && validity.poll_over(context).is_ready()
        {
            return Poll::Ready(Err(over()));
        }
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Io::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for PeerConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Io::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Io::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(context),
            Io::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
