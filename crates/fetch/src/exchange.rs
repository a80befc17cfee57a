//! One request to a server: over HTTP/1.1, to an address that was checked, with everything bounded.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use muster_transport::PublicTls;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::address::is_public;
use crate::error::FetchError;

/// How long the connection alone may take, TLS included.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Bytes of an answer's head, and of what is read at once.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// A connection is not used for longer than this: the name may have another address by then.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(60);

/// Which servers may be asked, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchRules {
    /// Whether a server may be reached without TLS.
    pub allow_http: bool,
    /// Hosts that may have any address, in lower case.
    pub allowed_hosts: BTreeSet<String>,
    /// How long one request may take.
    pub timeout: Duration,
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// GET without a body, else POST.
    pub url: &'a str,
    /// Headers in addition to those of every request.
    pub headers: &'a [(&'static str, String)],
    /// The kind of the body and the body; none for GET.
    pub body: Option<(&'static str, Vec<u8>)>,
    /// Bytes of the answer's body that are read.
    pub answer_bytes_max: usize,
}

/// What was answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status; a redirect is one like others.
    pub status: StatusCode,
    /// What was read of its body.
    pub body: Vec<u8>,
    /// Whether that is all of it.
    pub is_whole: bool,
}

/// Where a request goes.
pub(crate) struct Target {
    is_tls: bool,
    /// As the certificate names it: without brackets.
    host: String,
    port: u16,
    /// As the header has it.
    pub(crate) authority: String,
    /// What the request asks for.
    pub(crate) path: String,
}

impl Target {
    pub(crate) fn of(url: &str, rules: &FetchRules) -> Result<Target, FetchError> {
        let refused = |text: &str| FetchError::Refused(text.to_owned());
        let uri: Uri = url.parse().map_err(|_| refused("its address is none of HTTP"))?;
        let is_tls = uri.scheme_str() == Some("https");
        if !is_tls && !rules.allow_http {
            return Err(refused("its address is not https, and `allow_http` is not set"));
        }
        let authority = uri.authority().ok_or_else(|| refused("its address names no host"))?;
        let host = authority.host();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Target {
            is_tls,
            host: host.to_ascii_lowercase(),
            port: authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            authority: authority.as_str().to_owned(),
            path: if path.is_empty() { "/".to_owned() } else { path.to_owned() },
        })
    }

    /// The address to connect to: of those that the host has, the first that is allowed.
    async fn resolve(&self, rules: &FetchRules) -> Result<SocketAddr, FetchError> {
        let found: Vec<SocketAddr> = match self.host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, self.port)],
            Err(_) => {
                let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
                found.map_err(FetchError::Unresolved)?.collect()
            }
        };
        let is_listed = rules.allowed_hosts.contains(&self.host);
        let allowed = found.into_iter().find(|address| is_listed || is_public(address.ip()));
        allowed.ok_or_else(|| {
            let text = "its host has no public address; `allowed_hosts` can name the host";
            FetchError::Refused(text.to_owned())
        })
    }
}

/// A connection that can be used again.
pub(crate) struct Connection {
    pub(crate) sender: http1::SendRequest<Full<Bytes>>,
    /// Scheme, host and port that it is for.
    origin: (bool, String),
    opened: Instant,
    driver: JoinHandle<()>,
}

impl Connection {
    /// It, when it is still good for a request to this target.
    pub(crate) async fn if_good(mut self, target: &Target) -> Option<Connection> {
        let is_same = self.origin.0 == target.is_tls && self.origin.1 == target.authority;
        let is_good =
            is_same && self.opened.elapsed() < CONNECTION_AGE_MAX && self.sender.ready().await.is_ok();
        is_good.then_some(self)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Sends requests to one server, one after another.
pub struct Fetcher {
    rules: FetchRules,
    tls: Arc<Result<PublicTls, String>>,
    connection: Option<Connection>,
}

impl Fetcher {
    /// One without a connection. `tls` says why where there are no authorities: then nothing is reached over TLS.
    #[must_use]
    pub fn new(rules: FetchRules, tls: Arc<Result<PublicTls, String>>) -> Fetcher {
        Fetcher { rules, tls, connection: None }
    }

    /// Asks, and waits for the answer at most as long as the rules say.
    ///
    /// # Errors
    /// When the address is not allowed, or no answer comes. An answer that is no success is an answer.
    pub async fn ask(&mut self, ask: Ask<'_>) -> Result<Answer, FetchError> {
        let limit = self.rules.timeout;
        let result = tokio::time::timeout(limit, self.exchange(ask)).await;
        result.unwrap_or(Err(FetchError::TimedOut(limit)))
    }

    /// A connection that is begun and not put back is closed, whatever interrupts this.
    async fn exchange(&mut self, ask: Ask<'_>) -> Result<Answer, FetchError> {
        let target = Target::of(ask.url, &self.rules)?;
        let method = if ask.body.is_some() { Method::POST } else { Method::GET };
        let mut request = Request::builder()
            .method(method)
            .uri(target.path.as_str())
            .header(header::HOST, target.authority.as_str())
            .header(header::USER_AGENT, concat!("muster/", env!("CARGO_PKG_VERSION")));
        for (name, value) in ask.headers {
            let value = HeaderValue::from_str(value).map_err(|error| FetchError::Request(error.into()))?;
            request = request.header(*name, value);
        }
        let body = match ask.body {
            Some((kind, body)) => {
                request = request.header(header::CONTENT_TYPE, kind);
                body
            }
            None => Vec::new(),
        };
        let request = request.body(Full::new(Bytes::from(body))).map_err(FetchError::Request)?;
        let mut connection = match self.reused(&target).await {
            Some(connection) => connection,
            None => open(&target, &self.rules, &self.tls).await?,
        };
        let answer = connection.sender.send_request(request).await.map_err(FetchError::Exchange)?;
        let status = answer.status();
        let (body, is_whole) = read(answer.into_body(), ask.answer_bytes_max).await;
        if is_whole {
            self.connection = Some(connection);
        }
        // A redirect would go to an address that nobody has checked: it is an answer like others.
        Ok(Answer { status, body, is_whole })
    }

    /// The connection of the request before, when it is still good for this one.
    async fn reused(&mut self, target: &Target) -> Option<Connection> {
        self.connection.take()?.if_good(target).await
    }
}

/// A new connection to a target.
pub(crate) async fn open(
    target: &Target,
    rules: &FetchRules,
    tls: &Result<PublicTls, String>,
) -> Result<Connection, FetchError> {
    let timed_out = |_| FetchError::TimedOut(CONNECT_MAX);
    let connect = async {
        let address = target.resolve(rules).await?;
        let stream = TcpStream::connect(address).await.map_err(FetchError::Connect)?;
        stream.set_nodelay(true).map_err(FetchError::Connect)?;
        let origin = (target.is_tls, target.authority.clone());
        if !target.is_tls {
            return begin(origin, stream).await;
        }
        let tls = match tls {
            Ok(tls) => tls,
            Err(text) => return Err(FetchError::Authorities(text.clone())),
        };
        begin(origin, tls.connect(&target.host, stream).await.map_err(FetchError::Connect)?).await
    };
    tokio::time::timeout(CONNECT_MAX, connect).await.map_err(timed_out)?
}

async fn begin<S>(origin: (bool, String), stream: S) -> Result<Connection, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = http1::Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(FetchError::Exchange)?;
    let driver = tokio::spawn(async move {
        // What goes wrong with it is an error of the request that is under way.
        let _ = connection.await;
    });
    Ok(Connection { sender, origin, opened: Instant::now(), driver })
}

/// Reads an answer's body, and whether that is all of it: it may be longer than what is read, or break off.
async fn read(mut body: Incoming, bytes_max: usize) -> (Vec<u8>, bool) {
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return (read, false) };
        let Some(data) = frame.data_ref() else { continue };
        if data.len() > bytes_max.saturating_sub(read.len()) {
            return (read, false);
        }
        read.extend_from_slice(data);
    }
    (read, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    const BODY_BYTES_MAX: usize = 4 << 10;

    fn fetcher(rules: FetchRules) -> Fetcher {
        Fetcher::new(rules, Arc::new(Err("none in tests".to_owned())))
    }

    fn local() -> FetchRules {
        FetchRules {
            allow_http: true,
            allowed_hosts: BTreeSet::from(["127.0.0.1".to_owned()]),
            timeout: Duration::from_millis(500),
        }
    }

    fn post(url: &str) -> Ask<'_> {
        let body = Some(("application/json", b"{\"a\":1}".to_vec()));
        Ask { url, headers: &[], body, answer_bytes_max: BODY_BYTES_MAX }
    }

    /// Answers every request on one connection after another with the same bytes; gives its port and what it was asked.
    async fn server(answer: Vec<u8>) -> (u16, tokio::sync::mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (asked, requests) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (asked, answer) = (asked.clone(), answer.clone());
                tokio::spawn(async move {
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                        let _ = asked.send(String::from_utf8_lossy(&buffer[..read]).into_owned());
                        if answer.is_empty() || stream.write_all(&answer).await.is_err() {
                            std::future::pending::<()>().await;
                        }
                    }
                });
            }
        });
        (port, requests)
    }

    fn ok() -> Vec<u8> {
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_vec()
    }

    #[tokio::test]
    async fn a_request_has_its_headers_and_its_body_and_the_connection_is_used_again() {
        let (port, mut requests) = server(ok()).await;
        let mut fetcher = fetcher(local());
        let url = format!("http://127.0.0.1:{port}/hook?a=b");
        let headers = [("muster-delivery", "7-1-ops".to_owned())];
        for _ in 0..2 {
            let answer = fetcher.ask(Ask { headers: &headers, ..post(&url) }).await.expect("it is taken");
            assert_eq!((answer.status.as_u16(), &answer.body[..], answer.is_whole), (200, &b"ok"[..], true));
            let request = requests.recv().await.expect("it was asked");
            let lower = request.to_ascii_lowercase();
            assert!(lower.starts_with("post /hook?a=b http/1.1\r\n"), "{request}");
            assert!(lower.contains(&format!("host: 127.0.0.1:{port}\r\n")), "{request}");
            assert!(lower.contains("muster-delivery: 7-1-ops\r\n"), "{request}");
            assert!(fetcher.connection.is_some(), "the answer was read to its end");
        }
        let ask = Ask { body: None, ..post(&url) };
        fetcher.ask(ask).await.expect("it is taken");
        let request = requests.recv().await.expect("it was asked");
        assert!(request.starts_with("GET /hook?a=b HTTP/1.1\r\n"), "{request}");
    }

    #[tokio::test]
    async fn no_redirect_is_followed_and_what_is_no_answer_is_an_error() {
        for status in [301_u16, 302, 307, 400, 401, 404, 410, 429, 500, 503] {
            let answer =
                format!("HTTP/1.1 {status} X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n");
            let (port, _requests) = server(answer.into_bytes()).await;
            let url = format!("http://127.0.0.1:{port}/");
            let answer = fetcher(local()).ask(post(&url)).await.expect("it answers");
            assert_eq!(answer.status.as_u16(), status);
        }
        for garbage in [&b"garbage\r\n\r\n"[..], b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"] {
            let (port, _requests) = server(garbage.to_vec()).await;
            let url = format!("http://127.0.0.1:{port}/");
            let result = fetcher(local()).ask(post(&url)).await;
            assert!(matches!(result, Err(FetchError::Exchange(_))), "{result:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_is_silent_or_says_too_much_holds_nobody_up() {
        let (port, _requests) = server(Vec::new()).await;
        let mut client = fetcher(local());
        let url = format!("http://127.0.0.1:{port}/");
        let result = client.ask(post(&url)).await;
        assert!(matches!(result, Err(FetchError::TimedOut(_))), "{result:?}");
        assert!(client.connection.is_none(), "what it may still say answers nothing");
        let mut long = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n".to_vec();
        long.resize(long.len() + 100_000, b'x');
        let (port, _requests) = server(long).await;
        let url = format!("http://127.0.0.1:{port}/");
        let answer = client.ask(post(&url)).await.expect("it answers");
        assert!(!answer.is_whole && answer.body.len() <= BODY_BYTES_MAX);
        assert!(client.connection.is_none(), "the rest is not waited for");
    }

    #[tokio::test]
    async fn addresses_of_this_machine_and_plaintext_are_refused_unless_they_are_allowed() {
        let (port, mut requests) = server(ok()).await;
        let refused = |rules: FetchRules, url: String| async move {
            let result = fetcher(rules).ask(post(&url)).await;
            assert!(matches!(result, Err(FetchError::Refused(_))), "{url}: {result:?}");
        };
        let unlisted = || FetchRules { allowed_hosts: BTreeSet::new(), ..local() };
        for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"] {
            refused(unlisted(), format!("http://{host}:{port}/")).await;
        }
        refused(FetchRules { allow_http: false, ..local() }, format!("http://127.0.0.1:{port}/")).await;
        assert!(requests.try_recv().is_err(), "nobody connected");
        let url = format!("https://127.0.0.1:{port}/");
        let https = fetcher(local()).ask(post(&url)).await;
        assert!(matches!(https, Err(FetchError::Authorities(_))), "{https:?}");
    }
}
