//! The addresses of the replicas, and one channel at a time to one of them.
//!
//! One channel per replica rather than a balancing one over all: a caller must know *which* replica
//! failed it to avoid that one next, and the sessions of agents stay on one replica anyway.
//!
//! **Invariant:** a replica that stops answering without closing its connection (power, partition)
//! fails the calls on its channel after at most [`KEEPALIVE_INTERVAL`] + [`KEEPALIVE_TIMEOUT`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use muster_transport::{AddressError, Bearer, Expect, Security, TokenSecret};
use muster_types::TraceParent;
use tonic::codegen::http::HeaderValue;
use tonic::transport::{Endpoint, Uri};

use crate::channel::Channel;

/// Most endpoints one client may be given: replicas are three or five; the rest is for names of the same ones.
pub const ENDPOINTS_MAX: usize = 64;

/// Time for one connection to one endpoint. A replica in another region is 300 ms away at most, and a
/// TCP and an HTTP/2 handshake are two round trips.
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_000);

/// An endpoint that has not answered for so long is not waited for alone. Above what a TCP, a TLS and an
/// HTTP/2 handshake take between neighbouring regions, so that near replicas are not passed over.
pub const CONNECT_STAGGER: Duration = Duration::from_millis(300);

/// A ping goes out when the connection was silent for this long.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_millis(500);

/// The connection is given up when the ping was not answered for this long.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_millis(1_000);

/// Why a list of endpoints was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EndpointsError {
    /// Nothing to connect to.
    #[error("no endpoint given; expected host:port or http://host:port")]
    NoEndpoint,
    /// More than [`ENDPOINTS_MAX`].
    #[error("more than {ENDPOINTS_MAX} endpoints given")]
    TooMany,
    /// One of them is not an address.
    #[error("endpoint {text:?}: {problem}; expected host:port, http://host:port or https://host:port")]
    ParseEndpoint {
        /// As it was given, shortened.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// One of them asks for what goes against the certificates given or not given.
    #[error("endpoint {text:?}: {problem}")]
    Scheme {
        /// As it was given, shortened.
        text: String,
        /// What to write instead.
        problem: AddressError,
    },
}

/// Why no replica could be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Every endpoint was tried once.
    #[error("no endpoint could be reached: {}", describe(.attempts))]
    ConnectAny {
        /// Each endpoint with its failure, in the order they were tried.
        attempts: Vec<(String, String)>,
    },
    /// The caller's time ran out first.
    #[error("no endpoint could be reached within {} ms", .waited.as_millis())]
    ConnectInTime {
        /// That time.
        waited: Duration,
    },
}

fn describe(attempts: &[(String, String)]) -> String {
    attempts.iter().map(|(at, why)| format!("{at} ({why})")).collect::<Vec<_>>().join(", ")
}

/// The addresses of the replicas. Clones share the place in the rotation.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Normalised to `http://host:port` or `https://host:port`, without repetitions.
    list: Arc<[String]>,
    cursor: Arc<AtomicUsize>,
    security: Security,
    /// Shown with each call.
    authorization: Option<HeaderValue>,
    /// The span that each call is a part of.
    trace_parent: Option<HeaderValue>,
    /// None where each caller has a separate connection.
    shared: Option<Arc<SharedConnections>>,
}

/// Connections that several callers share.
#[derive(Debug)]
struct SharedConnections {
    /// Most callers of one connection.
    each_max: usize,
    /// By the place of their address in the list. Locked while one is made, so that those who wait share it.
    by_place: Vec<tokio::sync::Mutex<Vec<SharedConnection>>>,
}

#[derive(Debug)]
struct SharedConnection {
    channel: Channel,
    /// Each caller has another one of it.
    user: Arc<()>,
}

impl Endpoints {
    /// Reads endpoints as people write them: `host:port` or `http://host:port`, several also separated
    /// by commas.
    ///
    /// # Errors
    /// Names the first endpoint that is not an address.
    pub fn parse(texts: &[String]) -> Result<Endpoints, EndpointsError> {
        Endpoints::parse_with(texts, Security::Plaintext)
    }

    /// The same for a cluster with certificates (`https`) or without (`http`); an address that says
    /// neither is taken as what `security` is.
    ///
    /// # Errors
    /// Names the first endpoint that is not an address, or one of the other kind.
    pub fn parse_with(texts: &[String], security: Security) -> Result<Endpoints, EndpointsError> {
        let mut list: Vec<String> = Vec::new();
        for text in texts.iter().flat_map(|t| t.split(',')).map(str::trim).filter(|t| !t.is_empty()) {
            let normalised = normalise(text, &security)?;
            if !list.contains(&normalised) {
                list.push(normalised);
            }
            if list.len() > ENDPOINTS_MAX {
                return Err(EndpointsError::TooMany);
            }
        }
        if list.is_empty() {
            return Err(EndpointsError::NoEndpoint);
        }
        let cursor = Arc::new(AtomicUsize::new(0));
        let list = list.into();
        Ok(Endpoints { list, cursor, security, authorization: None, trace_parent: None, shared: None })
    }

    /// Shows a token with each call from now on. Over plaintext it goes to this machine alone; a connection elsewhere is refused.
    #[must_use]
    pub fn with_token(self, secret: &TokenSecret) -> Endpoints {
        self.with_bearer(&Bearer::from(secret))
    }

    /// The same for a token of an issuer.
    #[must_use]
    pub fn with_bearer(self, bearer: &Bearer) -> Endpoints {
        // Both forms have only characters that a header may have.
        let authorization =
            HeaderValue::from_str(&format!("Bearer {}", bearer.reveal())).ok().map(|mut value| {
                value.set_sensitive(true);
                value
            });
        Endpoints { authorization, ..self }
    }

    /// Has each call from now on be a part of this span. Jobs that are submitted pass it on to their workers.
    #[must_use]
    pub fn with_trace_parent(self, parent: TraceParent) -> Endpoints {
        // It has only characters that a header may have.
        Endpoints { trace_parent: HeaderValue::from_str(&parent.to_string()).ok(), ..self }
    }

    /// Has up to `each_max` callers at a time share one connection to a replica, for a program with many streams that say
    /// little. Clones share them as well. Set everything else first: a connection keeps what it was made with.
    #[must_use]
    pub fn sharing(self, each_max: usize) -> Endpoints {
        let by_place = self.list.iter().map(|_| tokio::sync::Mutex::default()).collect();
        Endpoints { shared: Some(Arc::new(SharedConnections { each_max, by_place })), ..self }
    }

    /// The same endpoints with a separate connection for each caller.
    #[must_use]
    pub fn unshared(&self) -> Endpoints {
        Endpoints { shared: None, ..self.clone() }
    }

    /// Whether a token is shown.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.authorization.is_some()
    }

    async fn connect(&self, address: &str) -> Result<Channel, String> {
        if self.authorization.is_some()
            && matches!(self.security, Security::Plaintext)
            && !is_loopback(address)
        {
            return Err("a token is sent over TLS only; give --ca and an https:// endpoint".to_owned());
        }
        let channel = connect(address, &self.security).await?;
        Ok(Channel::new(channel, self.authorization.clone(), self.trace_parent.clone()))
    }

    /// The same to an endpoint of the list: over a connection that is there, where callers share.
    async fn connect_at(&self, place: usize) -> Result<Channel, String> {
        let address = &self.list[place];
        let Some((shared, known)) =
            self.shared.as_ref().and_then(|shared| Some((shared, shared.by_place.get(place)?)))
        else {
            return self.connect(address).await;
        };
        let mut known = known.lock().await;
        // One that nobody uses any more may be dead.
        known.retain(|one| Arc::strong_count(&one.user) > 1);
        // The list has one of the marks itself.
        let free = known.iter().find(|one| Arc::strong_count(&one.user) <= shared.each_max);
        if let Some(one) = free {
            return Ok(one.channel.for_user(&one.user));
        }
        let (channel, user) = (self.connect(address).await?, Arc::new(()));
        let mine = channel.for_user(&user);
        known.push(SharedConnection { channel, user });
        Ok(mine)
    }

    /// Starts the rotation anywhere, so that many holders of the same list do not all begin with its
    /// first entry.
    #[must_use]
    pub fn spread(self) -> Endpoints {
        let random = uuid::Uuid::new_v4().as_u128() as usize;
        self.cursor.store(random % self.list.len(), Ordering::Relaxed);
        self
    }

    /// What the replicas are spoken to with.
    #[must_use]
    pub fn security(&self) -> &Security {
        &self.security
    }

    /// The addresses, as `http://host:port` or `https://host:port`.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(String::as_str)
    }

    /// How many there are; never none.
    #[must_use]
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// A channel to the next endpoint of the rotation that can be reached, with its address. Each is
    /// tried once, for [`CONNECT_TIMEOUT`] at most; the next one's turn comes when one has failed, or has
    /// said nothing for [`CONNECT_STAGGER`]: in a region that is lost several in a row may be silent.
    ///
    /// # Errors
    /// When none could be reached; names each with its failure.
    pub async fn connect_next(&self) -> Result<(String, Channel), ConnectError> {
        self.connect_next_but(&[]).await
    }

    /// The same, to none of these addresses where there are others.
    pub(crate) async fn connect_next_but(&self, not: &[&str]) -> Result<(String, Channel), ConnectError> {
        let first = self.cursor.fetch_add(1, Ordering::Relaxed);
        let all = (0..self.list.len()).map(|turn| first.wrapping_add(turn) % self.list.len());
        let others: Vec<usize> =
            all.clone().filter(|place| !not.contains(&self.list[*place].as_str())).collect();
        let mut turns = if others.is_empty() { all.collect() } else { others }.into_iter();
        let mut under_way = FuturesUnordered::new();
        let mut attempts = Vec::new();
        loop {
            if let Some(place) = turns.next() {
                under_way.push(async move { (place, self.connect_at(place).await) });
            }
            let patience = if turns.len() == 0 { CONNECT_TIMEOUT * 2 } else { CONNECT_STAGGER };
            match tokio::time::timeout(patience, under_way.next()).await {
                Ok(Some((place, Ok(channel)))) => {
                    // The rotation goes on behind the one that was found.
                    self.cursor.store(place + 1, Ordering::Relaxed);
                    return Ok((self.list[place].clone(), channel));
                }
                Ok(Some((place, Err(why)))) => attempts.push((self.list[place].clone(), why)),
                Ok(None) => return Err(ConnectError::ConnectAny { attempts }),
                Err(_) => {}
            }
        }
    }

    /// A channel to one address, for following a hint; need not be one of the list.
    ///
    /// # Errors
    /// When it is not an address or cannot be reached.
    pub async fn connect_to(&self, address: &str) -> Result<(String, Channel), ConnectError> {
        let failed = |why: String| ConnectError::ConnectAny { attempts: vec![(shorten(address), why)] };
        let address = normalise(address, &self.security).map_err(|e| failed(e.to_string()))?;
        match self.connect(&address).await {
            Ok(channel) => Ok((address, channel)),
            Err(why) => Err(failed(why)),
        }
    }
}

/// Enough of a user's text to recognise it by.
fn shorten(text: &str) -> String {
    text.chars().take(120).collect()
}

fn normalise(text: &str, security: &Security) -> Result<String, EndpointsError> {
    let refuse = |problem: &'static str| EndpointsError::ParseEndpoint { text: shorten(text), problem };
    let text = text.trim();
    if text.len() > 512 {
        return Err(refuse("it is longer than 512 bytes"));
    }
    let full =
        security.address(text).map_err(|problem| EndpointsError::Scheme { text: shorten(text), problem })?;
    let uri: Uri = full.parse().map_err(|_| refuse("it is not an address"))?;
    let Some(authority) = uri.authority() else {
        return Err(refuse("it names no host"));
    };
    if authority.as_str().contains('@') {
        return Err(refuse("it must not carry credentials"));
    }
    if authority.host().is_empty() {
        return Err(refuse("it names no host"));
    }
    if authority.port_u16().is_none_or(|port| port == 0) {
        return Err(refuse("it names no port from 1 to 65535"));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(refuse("it must not have a path"));
    }
    Ok(format!("{}://{authority}", security.scheme().as_str()))
}

/// Whether an address is one of this machine by its text alone.
fn is_loopback(address: &str) -> bool {
    let uri: Option<Uri> = address.parse().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

/// One connection; the failure as text with its causes, since callers can only show it.
async fn connect(address: &str, security: &Security) -> Result<tonic::transport::Channel, String> {
    let endpoint = Endpoint::from_shared(address.to_owned())
        .map_err(|e| chain(&e))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    // The timeout of the endpoint covers TCP only: a listener that accepts and says nothing would
    // otherwise hold the rotation.
    match tokio::time::timeout(
        CONNECT_TIMEOUT,
        endpoint.connect_with_connector(security.connector(Expect::AnyReplica)),
    )
    .await
    {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("no answer within {} ms", CONNECT_TIMEOUT.as_millis())),
    }
}

/// The innermost cause says most ("Connection refused"); the outer layers say "transport error".
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[&str]) -> Result<Vec<String>, EndpointsError> {
        let texts: Vec<String> = texts.iter().map(|t| (*t).to_owned()).collect();
        Endpoints::parse(&texts).map(|e| e.iter().map(str::to_owned).collect())
    }

    #[test]
    fn reads_what_people_write() {
        assert_eq!(
            parse(&["a:1, http://b:2/", "[::1]:3", "a:1"]).unwrap(),
            ["http://a:1", "http://b:2", "http://[::1]:3"]
        );
    }

    #[test]
    fn refuses_what_is_no_address() {
        for text in
            ["", " , ", "a", "https://a:1", "http://a", "a:0", "a:99999", "http://u@a:1", "a:1/x", "http://"]
        {
            assert!(parse(&[text]).is_err(), "{text:?} was accepted");
        }
        let long = "a".repeat(600);
        assert!(parse(&[&long]).is_err());
        let many: Vec<String> = (0..65).map(|n| format!("h:{}", n + 1)).collect();
        assert_eq!(Endpoints::parse(&many).unwrap_err(), EndpointsError::TooMany);
    }

    #[tokio::test]
    async fn a_dead_endpoint_is_passed_over_and_the_rotation_goes_on() {
        let live = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (live_at, dead_at) = (live.local_addr().unwrap(), dead.local_addr().unwrap());
        drop(dead);
        let endpoints = Endpoints::parse(&[dead_at.to_string(), live_at.to_string()]).unwrap();
        let server = tonic::transport::Server::builder()
            .add_routes(tonic::service::Routes::default())
            .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(live));
        let server = tokio::spawn(server);
        for _ in 0..3 {
            let (address, _channel) = endpoints.connect_next().await.unwrap();
            assert_eq!(address, format!("http://{live_at}"));
        }
        server.abort();
        let _ = server.await;
    }

    #[tokio::test]
    async fn callers_share_connections_up_to_a_bound() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = tonic::transport::Server::builder()
            .add_routes(tonic::service::Routes::default())
            .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener));
        let server = tokio::spawn(server);
        let endpoints = Endpoints::parse(&[address]).unwrap().sharing(2);
        let shared = Arc::clone(endpoints.shared.as_ref().unwrap());
        let mut channels = Vec::new();
        for _ in 0..5 {
            let (_, channel) = endpoints.clone().connect_next().await.unwrap();
            channels.push(channel);
        }
        assert_eq!(shared.by_place[0].lock().await.len(), 3, "two, two and one");
        channels.truncate(1);
        channels.push(endpoints.connect_next().await.unwrap().1);
        assert_eq!(shared.by_place[0].lock().await.len(), 1, "what nobody uses is gone");
        let (_, _apart) = endpoints.unshared().connect_next().await.unwrap();
        assert_eq!(shared.by_place[0].lock().await.len(), 1);
        drop(channels);
        let _again = endpoints.connect_next().await.unwrap();
        assert_eq!(shared.by_place[0].lock().await.len(), 1, "a new one in the place of the old");
        server.abort();
        let _ = server.await;
    }

    #[tokio::test]
    async fn a_token_goes_to_this_machine_alone_in_plaintext() {
        for (address, is_own) in [
            ("http://127.0.0.1:1", true),
            ("http://[::1]:1", true),
            ("http://localhost:1", true),
            ("http://10.0.0.1:1", false),
            ("http://localhost.example.org:1", false),
            ("http://127.0.0.1.example.org:1", false),
        ] {
            assert_eq!(is_loopback(address), is_own, "{address}");
        }
        let secret = TokenSecret::generate().unwrap();
        let endpoints = Endpoints::parse(&["192.0.2.1:1".to_owned()]).unwrap().with_token(&secret);
        assert!(!format!("{endpoints:?}").contains(secret.reveal()), "nothing prints it");
        let error = endpoints.connect_next().await.unwrap_err();
        assert!(error.to_string().contains("over TLS only"), "{error}");
    }

    #[tokio::test]
    async fn all_dead_names_each() {
        let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = dead.local_addr().unwrap();
        drop(dead);
        let error = Endpoints::parse(&[at.to_string()]).unwrap().connect_next().await.unwrap_err();
        assert!(error.to_string().contains(&at.to_string()), "{error}");
    }
}
