//! The listener for monitoring systems and probes: `/metrics`, `/livez` and `/readyz`.
//!
//! A process has a listener for them that is separate from all others: a monitoring system need not reach the calls of
//! clients. With certificates it asks for them as the other listeners do.
//!
//! **Invariant:** nothing here changes anything; a request has no body, and everything that a caller can hold is bounded.
#![deny(missing_docs)]

mod connection;
mod process;

pub use connection::{ConnectionTimeouts, Peer, Unwritten};
pub use process::process_facts;

use axum::Router;
use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::StreamExt;
use muster_metrics::CONTENT_TYPE;
use muster_transport::{AcceptLimits, Principal, Role, Security};
use nix::sys::socket::{setsockopt, sockopt};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tonic::service::Routes;
use tonic::transport::Server;

use connection::Watched;

/// Scrapes at a time. Each takes a processor for milliseconds; others are told to come back.
const SCRAPES_MAX: usize = 2;
/// Requests of one connection at a time.
const REQUESTS_PER_CONNECTION_MAX: usize = 16;
/// Streams of one HTTP/2 connection: each may have an answer that its reader does not take.
const STREAMS_PER_CONNECTION_MAX: u32 = 32;
/// How long one request may take. Pages answer before that.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Between two questions of HTTP/2 whether the other end is there, and how long it may take to answer. Of HTTP/1 the server ends
/// a connection whose next head is not complete after 30 s.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Bytes of an answer that the kernel takes for a reader who does not read; Linux keeps twice that, for its bookkeeping. Without a
/// bound it goes up to megabytes for each connection: the stream of a reader that takes nothing would look as if it were read for
/// minutes, and a few hundred such readers would hold a gigabyte that no account of the process knows of. It is enough for 5 MB/s at
/// 25 ms from one end to the other and back.
const SEND_BUFFER_BYTES: usize = 128 << 10;

/// The connections of a listener that only a monitoring system and probes use.
pub const FEW_CONNECTIONS: AcceptLimits = AcceptLimits {
    connections_max: 64,
    connections_per_principal_max: 32,
    connections_per_group_max: 1,
    handshakes_max: 16,
    handshakes_per_address_max: 8,
    handshake_timeout: Duration::from_secs(5),
};

/// The answer to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Whether all is well.
    pub is_good: bool,
    /// What the process does, or what is not well, in a few words.
    pub text: String,
}

impl Condition {
    /// All is well.
    #[must_use]
    pub fn good(text: impl Into<String>) -> Condition {
        Condition { is_good: true, text: text.into() }
    }

    /// Something is not.
    #[must_use]
    pub fn bad(text: impl Into<String>) -> Condition {
        Condition { is_good: false, text: text.into() }
    }
}

/// A process that is monitored. Clones share it.
pub trait Monitored: Clone + Send + Sync + 'static {
    /// Everything that is measured, in the text format. It is called on a thread that may wait.
    fn scrape(&self) -> String;

    /// Whether the process is worth keeping. It does not wait for anything.
    fn live(&self) -> Condition;

    /// Whether it does what it is for. It does not wait for anything.
    fn ready(&self) -> Condition;

    /// Whether this caller may read what is measured.
    fn may_scrape(&self, principal: &Principal) -> bool;
}

/// Whether this is a user, or a listener without certificates.
#[must_use]
pub fn is_user(principal: &Principal) -> bool {
    match principal.role() {
        // A listener for tokens has them, and this is none.
        _ if *principal == Principal::Anonymous => false,
        Some(Role::Replica(_) | Role::Agent(_) | Role::AgentGroup(_)) => false,
        None | Some(Role::Client(_) | Role::AllTenants(_) | Role::Admin(_) | Role::TenantClient { .. }) => {
            true
        }
    }
}

#[derive(Clone)]
struct Pages<M> {
    monitored: M,
    scrapes: Arc<Semaphore>,
}

/// The pages of a process. They are served by [`serve`], which says on which connection a request came.
pub fn routes<M: Monitored>(monitored: M) -> Router {
    let pages = Pages { monitored, scrapes: Arc::new(Semaphore::new(SCRAPES_MAX)) };
    Router::new()
        .route("/metrics", get(scrape::<M>))
        .route("/livez", get(livez::<M>))
        .route("/readyz", get(readyz::<M>))
        .layer(from_fn(without_body))
        .with_state(pages)
}

/// Serves these pages until `shutdown`.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    pages: Router,
    bounds: AcceptLimits,
    timeouts: ConnectionTimeouts,
    security: &Security,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), tonic::transport::Error> {
    bound_send_buffers(&listener);
    let incoming = security.accept(listener, bounds);
    let incoming = incoming.map(move |taken| taken.map(|taken| Watched::new(taken, timeouts)));
    Server::builder()
        // Most monitoring systems and probes speak it.
        .accept_http1(true)
        .timeout(REQUEST_MAX)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .concurrency_limit_per_connection(REQUESTS_PER_CONNECTION_MAX)
        .add_routes(Routes::from(pages))
        .serve_with_incoming_shutdown(incoming, shutdown)
        .await
}

/// Bounds what the kernel keeps for the readers of the connections of a listener: each has the buffer of its listener from the
/// beginning. A kernel that refuses that keeps to its usual bound, and the pages are served all the same.
fn bound_send_buffers(listener: &impl AsFd) {
    let _ = setsockopt(listener, sockopt::SndBuf, &SEND_BUFFER_BYTES);
}

fn text(status: StatusCode, text: String) -> Response {
    let mut response = (status, text).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// No page takes anything, so nothing is read.
async fn without_body(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    text(StatusCode::PAYLOAD_TOO_LARGE, "a request for this page has no body\n".to_owned())
}

async fn scrape<M: Monitored>(State(pages): State<Pages<M>>, request: Request) -> Response {
    let peer = request.extensions().get::<Peer>();
    if !peer.is_some_and(|peer| pages.monitored.may_scrape(&peer.info.principal)) {
        return text(StatusCode::FORBIDDEN, "a certificate of a user is needed\n".to_owned());
    }
    let Ok(permit) = Arc::clone(&pages.scrapes).try_acquire_owned() else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "other scrapes are under way\n".to_owned());
    };
    let made = tokio::task::spawn_blocking(move || {
        // Given back when the work is over, not when its caller has gone.
        let _permit = permit;
        pages.monitored.scrape()
    });
    let made = made.await;
    let Ok(body) = made else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "the scrape ended without an answer\n".to_owned());
    };
    let mut response = text(StatusCode::OK, body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    response
}

fn probed(condition: &Condition) -> Response {
    let status = if condition.is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    text(status, format!("{}\n", condition.text))
}

async fn livez<M: Monitored>(State(pages): State<Pages<M>>) -> Response {
    probed(&pages.monitored.live())
}

async fn readyz<M: Monitored>(State(pages): State<Pages<M>>) -> Response {
    probed(&pages.monitored.ready())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::getsockopt;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpSocket, TcpStream};

    /// What the kernel makes of that number: twice of it at most, and no more than an administrator allows.
    const KEPT_MAX: usize = 2 * SEND_BUFFER_BYTES;

    #[tokio::test]
    async fn what_the_kernel_keeps_for_a_reader_is_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        bound_send_buffers(&listener);
        let address = listener.local_addr().expect("it has an address");
        let (reader, taken) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (_reader, (taken, _)) = (reader.expect("it connects"), taken.expect("it is taken"));
        let kept = getsockopt(&taken, sockopt::SndBuf).expect("it can be read");
        assert!((4_096..=KEPT_MAX).contains(&kept), "{kept} bytes");
    }

    #[tokio::test]
    async fn a_reader_that_takes_nothing_is_noticed_after_a_few_hundred_kilobytes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        bound_send_buffers(&listener);
        let address = listener.local_addr().expect("it has an address");
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4 << 10).expect("a small buffer");
        let (reader, taken) = tokio::join!(socket.connect(address), listener.accept());
        let (_reader, (mut taken, _)) = (reader.expect("it connects"), taken.expect("it is taken"));
        let piece = vec![0; 16 << 10];
        let mut written = 0;
        // The socket stays full once it is: the wait ends without a write then.
        while let Ok(bytes) = tokio::time::timeout(Duration::from_millis(500), taken.write(&piece)).await {
            written += bytes.expect("the connection stands");
            assert!(written <= 4 * KEPT_MAX, "{written} bytes were taken for a reader that takes nothing");
        }
        assert!(written > 0);
    }
}
