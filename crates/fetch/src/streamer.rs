//! Requests with any method to one server, several at the same time, whose answers may have any length.
//!
//! An answer's body comes in pieces over a channel that holds one of them: who does not read holds the connection, and who stops
//! reading closes it.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use muster_transport::PublicTls;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

use crate::error::FetchError;
use crate::exchange::{Connection, FetchRules, Target, open};

/// Connections that are kept for the next requests.
const IDLE_MAX: usize = 8;

/// The pieces of an answer's body, as they come.
pub type Pieces = mpsc::Receiver<Result<Bytes, FetchError>>;

/// Sends requests to one server.
#[derive(Clone)]
pub struct Streamer {
    shared: Arc<Shared>,
}

struct Shared {
    rules: FetchRules,
    tls: Arc<Result<PublicTls, String>>,
    idle: Mutex<Vec<Connection>>,
}

impl fmt::Debug for Streamer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Streamer(..)")
    }
}

impl Streamer {
    /// One without a connection. Of the rules, the time is that for an answer's head, and between two pieces of its body. `tls` says why
    /// where there are no authorities: then nothing is reached over TLS.
    #[must_use]
    pub fn new(rules: FetchRules, tls: Arc<Result<PublicTls, String>>) -> Streamer {
        Streamer { shared: Arc::new(Shared { rules, tls, idle: Mutex::new(Vec::new()) }) }
    }

    /// Sends a request to where its URI says, and waits for the head of the answer. To be called on a runtime of tokio, on which the
    /// body is read.
    ///
    /// # Errors
    /// When the address is not allowed, or no answer comes. An answer that is no success is an answer; so is a redirect.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Pieces>, FetchError> {
        let limit = self.shared.rules.timeout;
        let answered = tokio::time::timeout(limit, self.exchange(request)).await;
        let (answer, connection) = answered.unwrap_or(Err(FetchError::TimedOut(limit)))?;
        let (head, body) = answer.into_parts();
        let (pieces, coming) = mpsc::channel(1);
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            if pass_on(body, &pieces, limit).await {
                shared.give_back(connection);
            }
        });
        Ok(Response::from_parts(head, coming))
    }

    async fn exchange(
        &self,
        request: Request<Bytes>,
    ) -> Result<(Response<Incoming>, Connection), FetchError> {
        let rules = &self.shared.rules;
        let target = Target::of(&request.uri().to_string(), rules)?;
        let (mut head, body) = request.into_parts();
        let wrong = |error: http::Error| FetchError::Request(error);
        head.uri = Uri::try_from(target.path.as_str()).map_err(|error| wrong(error.into()))?;
        if !head.headers.contains_key(header::HOST) {
            let host = HeaderValue::from_str(&target.authority).map_err(|error| wrong(error.into()))?;
            head.headers.insert(header::HOST, host);
        }
        let has_body = !matches!(head.method, Method::GET | Method::HEAD);
        if has_body && !head.headers.contains_key(header::CONTENT_LENGTH) {
            // An empty one too: some servers wait for it.
            head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        let agent = HeaderValue::from_static(concat!("muster/", env!("CARGO_PKG_VERSION")));
        head.headers.insert(header::USER_AGENT, agent);
        let mut connection = match self.shared.kept(&target).await {
            Some(connection) => connection,
            None => open(&target, rules, &self.shared.tls).await?,
        };
        let request = Request::from_parts(head, Full::new(body));
        let answer = connection.sender.send_request(request).await.map_err(FetchError::Exchange)?;
        Ok((answer, connection))
    }
}

impl Shared {
    /// A connection of an earlier request that is still good for this one.
    async fn kept(&self, target: &Target) -> Option<Connection> {
        loop {
            let connection = self.idle.lock().pop()?;
            if let Some(connection) = connection.if_good(target).await {
                return Some(connection);
            }
        }
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }
}

/// Passes an answer's body on, and whether all of it came: only then is the connection good for another request.
async fn pass_on(
    mut body: Incoming,
    pieces: &mpsc::Sender<Result<Bytes, FetchError>>,
    silence_max: Duration,
) -> bool {
    loop {
        let next = match tokio::time::timeout(silence_max, body.frame()).await {
            Ok(None) => return true,
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => Ok(data),
                // Trailers.
                Err(_) => continue,
            },
            Ok(Some(Err(error))) => Err(FetchError::Exchange(error)),
            Err(_) => Err(FetchError::TimedOut(silence_max)),
        };
        let is_over = next.is_err();
        if pieces.send(next).await.is_err() || is_over {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    fn streamer() -> Streamer {
        let rules = FetchRules {
            allow_http: true,
            allowed_hosts: BTreeSet::from(["127.0.0.1".to_owned()]),
            timeout: Duration::from_millis(500),
        };
        Streamer::new(rules, Arc::new(Err("none in tests".to_owned())))
    }

    /// Answers every request with the same bytes; gives its port and what it was asked.
    async fn server(answer: Vec<u8>) -> (u16, mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (asked, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (asked, answer) = (asked.clone(), answer.clone());
                tokio::spawn(async move {
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                        let _ = asked.send(String::from_utf8_lossy(&buffer[..read]).into_owned());
                        if stream.write_all(&answer).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        (port, requests)
    }

    fn asked(method: Method, port: u16, body: &'static [u8]) -> Request<Bytes> {
        let request = Request::builder().method(method).uri(format!("http://127.0.0.1:{port}/bucket/a?b=c"));
        request.body(Bytes::from_static(body)).expect("a request")
    }

    async fn all(mut pieces: Pieces) -> Result<Vec<u8>, FetchError> {
        let mut all = Vec::new();
        while let Some(piece) = pieces.recv().await {
            all.extend_from_slice(&piece?);
        }
        Ok(all)
    }

    #[tokio::test]
    async fn an_answer_of_any_length_comes_in_pieces_and_the_connection_is_used_again() {
        let long = vec![b'x'; 300_000];
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", long.len());
        let (port, mut requests) = server([head.as_bytes(), &long].concat()).await;
        let streamer = streamer();
        for method in [Method::GET, Method::PUT] {
            let answer = streamer.send(asked(method.clone(), port, b"")).await.expect("it answers");
            assert_eq!(answer.status().as_u16(), 200);
            assert_eq!(all(answer.into_body()).await.expect("it comes whole"), long);
            let request = requests.recv().await.expect("it was asked").to_ascii_lowercase();
            let line = format!("{} /bucket/a?b=c http/1.1\r\n", method.as_str().to_ascii_lowercase());
            assert!(request.starts_with(&line), "{request}");
            assert_eq!(request.contains("content-length: 0\r\n"), method == Method::PUT, "{request}");
        }
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_or_stops_is_an_error() {
        let (port, _requests) = server(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok".to_vec()).await;
        let answer = streamer().send(asked(Method::GET, port, b"")).await.expect("it answers");
        assert!(matches!(all(answer.into_body()).await, Err(FetchError::TimedOut(_))));
        let (port, _requests) = server(Vec::new()).await;
        let silent = streamer().send(asked(Method::PUT, port, b"body")).await;
        assert!(matches!(silent, Err(FetchError::TimedOut(_))));
    }

    #[tokio::test]
    async fn a_host_that_is_not_named_is_not_reached() {
        let rules = FetchRules {
            allow_http: true,
            allowed_hosts: BTreeSet::new(),
            timeout: Duration::from_millis(500),
        };
        let streamer = Streamer::new(rules, Arc::new(Err("none in tests".to_owned())));
        let result = streamer.send(asked(Method::GET, 1, b"")).await;
        assert!(matches!(result, Err(FetchError::Refused(_))));
    }
}
