//! The pages for monitoring systems and probes, over HTTP: `/metrics`, `/livez`, `/readyz`.
//!
//! The listener is separate: a monitoring system need not reach the calls of clients. With certificates it asks for
//! them as the other listeners do; without, it listens on loopback addresses alone. Nothing here changes anything.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use muster_engine::Engine;
use muster_metrics::{CONTENT_TYPE, ReplicaMetrics};
use muster_transport::{AcceptLimits, PeerInfo, Security};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::access::may_call;
use crate::facts::{facts, readiness};
use crate::server::ServeError;

/// Scrapes at a time. Each takes a processor for milliseconds; others are told to come back.
const SCRAPES_MAX: usize = 2;
/// Requests of one connection at a time.
const REQUESTS_PER_CONNECTION_MAX: usize = 16;
/// How long one request may take.
const REQUEST_MAX: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct Pages {
    engine: Engine,
    metrics: ReplicaMetrics,
    scrapes: Arc<Semaphore>,
}

/// Serves the pages until `shutdown`.
///
/// # Errors
/// When the listener fails.
pub async fn serve_pages(
    engine: Engine,
    metrics: ReplicaMetrics,
    security: Security,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let incoming = security.accept(listener, AcceptLimits::DEFAULT);
    let pages = Pages { engine, metrics, scrapes: Arc::new(Semaphore::new(SCRAPES_MAX)) };
    let router = Router::new()
        .route("/metrics", get(scrape))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .with_state(pages);
    let served = Server::builder()
        // Most monitoring systems and probes speak it.
        .accept_http1(true)
        .timeout(REQUEST_MAX)
        .concurrency_limit_per_connection(REQUESTS_PER_CONNECTION_MAX)
        .add_routes(Routes::from(router))
        .serve_with_incoming_shutdown(incoming, shutdown)
        .await;
    served.map_err(ServeError::Transport)
}

fn text(status: StatusCode, text: String) -> Response {
    let mut response = (status, text).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A caller that may list the queues of all tenants may also read how full they are.
fn may_scrape(request: &Request) -> bool {
    let peer = request.extensions().get::<PeerInfo>();
    peer.is_some_and(|peer| {
        may_call("/muster.v1beta1.TenantService/ListTenants", &peer.principal) == Some(true)
    })
}

async fn scrape(State(pages): State<Pages>, request: Request) -> Response {
    if !may_scrape(&request) {
        return text(StatusCode::FORBIDDEN, "a certificate of a user is needed\n".to_owned());
    }
    let Ok(_permit) = Arc::clone(&pages.scrapes).try_acquire_owned() else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "other scrapes are under way\n".to_owned());
    };
    let made = tokio::task::spawn_blocking(move || pages.metrics.scrape(facts(&pages.engine))).await;
    let Ok(body) = made else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "the scrape ended without an answer\n".to_owned());
    };
    let mut response = text(StatusCode::OK, body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    response
}

/// Whether the process is worth keeping: one that has stopped taking part is not.
async fn livez(State(pages): State<Pages>) -> Response {
    match pages.engine.consensus().status().stopped {
        None => text(StatusCode::OK, "ok\n".to_owned()),
        Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("stopped: {why}\n")),
    }
}

/// Whether calls had better come here, and what this replica does.
async fn readyz(State(pages): State<Pages>) -> Response {
    let (is_ready, what) = readiness(&pages.engine);
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    text(status, format!("{what}\n"))
}
