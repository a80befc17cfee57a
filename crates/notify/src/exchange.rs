//! One request to a receiver: over HTTP/1.1, to an address that was checked, with everything bounded.

use bytes::Bytes;
use http::{HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use muster_transport::PublicTls;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::address::is_public;
use crate::error::DeliveryError;
use crate::settings::NotifySettings;

/// How long the connection alone may take, TLS included.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Bytes of an answer's body that are read. Nothing in it counts.
const ANSWER_BYTES_MAX: usize = 4 << 10;
/// Bytes of an answer's head, and of what is read at once.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// A connection is not used for longer than this: the name may have another address by then.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(60);

/// Where a request goes.
struct Target {
    is_tls: bool,
    /// As the certificate names it: without brackets.
    host: String,
    port: u16,
    /// As the header has it.
    authority: String,
    /// What the request asks for.
    path: String,
}

impl Target {
    fn of(url: &str, settings: &NotifySettings) -> Result<Target, DeliveryError> {
        let refused = |text: &str| DeliveryError::Refused(text.to_owned());
        let uri: Uri = url.parse().map_err(|_| refused("its address is none of HTTP"))?;
        let is_tls = uri.scheme_str() == Some("https");
        if !is_tls && !settings.allow_http {
            return Err(refused("its address is not https, and notifications.allow_http is not set"));
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
    async fn resolve(&self, settings: &NotifySettings) -> Result<SocketAddr, DeliveryError> {
        let found: Vec<SocketAddr> = match self.host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, self.port)],
            Err(_) => {
                let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
                found.map_err(DeliveryError::Unresolved)?.collect()
            }
        };
        let is_listed = settings.allowed_hosts.contains(&self.host);
        let allowed = found.into_iter().find(|address| is_listed || is_public(address.ip()));
        allowed.ok_or_else(|| {
            let text = "its host has no public address; notifications.allowed_hosts can name the host";
            DeliveryError::Refused(text.to_owned())
        })
    }
}

/// A connection that can be used again.
struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// Scheme, host and port that it is for.
    origin: (bool, String),
    opened: Instant,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Sends requests to one receiver, one after another.
pub(crate) struct Sender {
    settings: Arc<NotifySettings>,
    tls: Arc<Result<PublicTls, String>>,
    connection: Option<Connection>,
}

impl Sender {
    pub(crate) fn new(settings: Arc<NotifySettings>, tls: Arc<Result<PublicTls, String>>) -> Sender {
        Sender { settings, tls, connection: None }
    }

    /// Posts a body of JSON, and waits for the answer at most as long as the configuration says.
    pub(crate) async fn post(
        &mut self,
        url: &str,
        headers: &[(&'static str, String)],
        body: Vec<u8>,
    ) -> Result<(), DeliveryError> {
        let limit = self.settings.request_timeout;
        let result = tokio::time::timeout(limit, self.exchange(url, headers, body)).await;
        result.unwrap_or(Err(DeliveryError::TimedOut(limit)))
    }

    /// A connection that is begun and not put back is closed, whatever interrupts this.
    async fn exchange(
        &mut self,
        url: &str,
        headers: &[(&'static str, String)],
        body: Vec<u8>,
    ) -> Result<(), DeliveryError> {
        let target = Target::of(url, &self.settings)?;
        let mut request = Request::post(target.path.as_str())
            .header(header::HOST, target.authority.as_str())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("muster/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|error| DeliveryError::Request(error.into()))?;
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(DeliveryError::Request)?;
        let mut connection = match self.reused(&target).await {
            Some(connection) => connection,
            None => self.open(&target).await?,
        };
        let answer = connection.sender.send_request(request).await.map_err(DeliveryError::Exchange)?;
        let status = answer.status();
        if is_read_whole(answer.into_body()).await {
            self.connection = Some(connection);
        }
        // A redirect would go to an address that nobody has checked: it is a failure like others.
        if status.is_success() { Ok(()) } else { Err(DeliveryError::Status(status)) }
    }

    /// The connection of the request before, when it is still good for this one.
    async fn reused(&mut self, target: &Target) -> Option<Connection> {
        let mut connection = self.connection.take()?;
        let is_same = connection.origin.0 == target.is_tls && connection.origin.1 == target.authority;
        let is_good = is_same
            && connection.opened.elapsed() < CONNECTION_AGE_MAX
            && connection.sender.ready().await.is_ok();
        is_good.then_some(connection)
    }

    async fn open(&self, target: &Target) -> Result<Connection, DeliveryError> {
        let timed_out = |_| DeliveryError::TimedOut(CONNECT_MAX);
        let connect = async {
            let address = target.resolve(&self.settings).await?;
            let stream = TcpStream::connect(address).await.map_err(DeliveryError::Connect)?;
            stream.set_nodelay(true).map_err(DeliveryError::Connect)?;
            let origin = (target.is_tls, target.authority.clone());
            if !target.is_tls {
                return begin(origin, stream).await;
            }
            let tls = match &*self.tls {
                Ok(tls) => tls,
                Err(text) => return Err(DeliveryError::Authorities(text.clone())),
            };
            begin(origin, tls.connect(&target.host, stream).await.map_err(DeliveryError::Connect)?).await
        };
        tokio::time::timeout(CONNECT_MAX, connect).await.map_err(timed_out)?
    }
}

async fn begin<S>(origin: (bool, String), stream: S) -> Result<Connection, DeliveryError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = http1::Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(DeliveryError::Exchange)?;
    let driver = tokio::spawn(async move {
        // What goes wrong with it is an error of the request that is under way.
        let _ = connection.await;
    });
    Ok(Connection { sender, origin, opened: Instant::now(), driver })
}

/// Reads an answer's body to its end; false when it is longer than what is read, or breaks off.
async fn is_read_whole(mut body: Incoming) -> bool {
    let mut read = 0_usize;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        read = read.saturating_add(frame.data_ref().map_or(0, |data| data.len()));
        if read > ANSWER_BYTES_MAX {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    fn sender(settings: NotifySettings) -> Sender {
        Sender::new(Arc::new(settings), Arc::new(Err("none in tests".to_owned())))
    }

    fn local() -> NotifySettings {
        NotifySettings {
            allow_http: true,
            allowed_hosts: BTreeSet::from(["127.0.0.1".to_owned()]),
            request_timeout: Duration::from_millis(500),
            ..NotifySettings::default()
        }
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
        let mut sender = sender(local());
        let url = format!("http://127.0.0.1:{port}/hook?a=b");
        let headers = [("muster-delivery", "7-1-ops".to_owned())];
        for _ in 0..2 {
            sender.post(&url, &headers, b"{\"a\":1}".to_vec()).await.expect("it is taken");
            let request = requests.recv().await.expect("it was asked");
            let lower = request.to_ascii_lowercase();
            assert!(lower.starts_with("post /hook?a=b http/1.1\r\n"), "{request}");
            assert!(lower.contains(&format!("host: 127.0.0.1:{port}\r\n")), "{request}");
            assert!(lower.contains("muster-delivery: 7-1-ops\r\n"), "{request}");
            assert!(sender.connection.is_some(), "the answer was read to its end");
        }
    }

    #[tokio::test]
    async fn what_is_no_success_is_a_failure_and_no_redirect_is_followed() {
        for status in [301_u16, 302, 307, 400, 401, 404, 410, 429, 500, 503] {
            let answer =
                format!("HTTP/1.1 {status} X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n");
            let (port, _requests) = server(answer.into_bytes()).await;
            let url = format!("http://127.0.0.1:{port}/");
            let result = sender(local()).post(&url, &[], Vec::new()).await;
            assert!(matches!(result, Err(DeliveryError::Status(found)) if found == status), "{status}");
        }
        for garbage in [&b"garbage\r\n\r\n"[..], b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"] {
            let (port, _requests) = server(garbage.to_vec()).await;
            let url = format!("http://127.0.0.1:{port}/");
            let result = sender(local()).post(&url, &[], Vec::new()).await;
            assert!(matches!(result, Err(DeliveryError::Exchange(_))), "{result:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_is_silent_or_says_too_much_holds_nobody_up() {
        let (port, _requests) = server(Vec::new()).await;
        let mut client = sender(local());
        let result = client.post(&format!("http://127.0.0.1:{port}/"), &[], Vec::new()).await;
        assert!(matches!(result, Err(DeliveryError::TimedOut(_))), "{result:?}");
        assert!(client.connection.is_none(), "what it may still say answers nothing");
        let mut long = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n".to_vec();
        long.resize(long.len() + 100_000, b'x');
        let (port, _requests) = server(long).await;
        client.post(&format!("http://127.0.0.1:{port}/"), &[], Vec::new()).await.expect("the status counts");
        assert!(client.connection.is_none(), "the rest is not waited for");
    }

    #[tokio::test]
    async fn addresses_of_this_machine_and_plaintext_are_refused_unless_they_are_allowed() {
        let (port, mut requests) = server(ok()).await;
        let refused = |settings: NotifySettings, url: String| async move {
            let result = sender(settings).post(&url, &[], Vec::new()).await;
            assert!(matches!(result, Err(DeliveryError::Refused(_))), "{url}: {result:?}");
        };
        let unlisted = || NotifySettings { allowed_hosts: BTreeSet::new(), ..local() };
        for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"] {
            refused(unlisted(), format!("http://{host}:{port}/")).await;
        }
        refused(NotifySettings { allow_http: false, ..local() }, format!("http://127.0.0.1:{port}/")).await;
        assert!(requests.try_recv().is_err(), "nobody connected");
        let https = sender(local()).post(&format!("https://127.0.0.1:{port}/"), &[], Vec::new()).await;
        assert!(matches!(https, Err(DeliveryError::Authorities(_))), "{https:?}");
    }
}
