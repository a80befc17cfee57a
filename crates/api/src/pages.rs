//! The listener for HTTP: the pages of `muster-monitoring` for monitoring systems and probes, and the web pages.
//!
//! The listener is separate: a monitoring system need not reach the calls of clients. With certificates it asks for
//! them as the other listeners do; without, it listens on loopback addresses alone. Nothing here changes anything.

use axum::middleware::{from_fn_with_state, map_response};
use muster_engine::Engine;
use muster_metrics::ReplicaMetrics;
use muster_monitoring::{Condition, Monitored};
use muster_transport::{AcceptLimits, Principal};
use tokio::net::TcpListener;

use crate::access::may_call;
use crate::facts::{facts, readiness};
use crate::server::ServeError;
use crate::shared::Shared;
use crate::web::{self, Timeouts, Web};

#[derive(Clone)]
struct Pages {
    engine: Engine,
    metrics: ReplicaMetrics,
}

impl Monitored for Pages {
    fn scrape(&self) -> String {
        self.metrics.scrape(facts(&self.engine))
    }

    /// A process that has stopped taking part is not worth keeping.
    fn live(&self) -> Condition {
        match self.engine.consensus().status().stopped {
            None => Condition::good("ok"),
            Some(why) => Condition::bad(format!("stopped: {why}")),
        }
    }

    /// Whether calls had better come here, and what this replica does.
    fn ready(&self) -> Condition {
        let (is_good, text) = readiness(&self.engine);
        Condition { is_good, text }
    }

    /// A caller that may list the queues of all tenants may also read how full they are.
    fn may_scrape(&self, principal: &Principal) -> bool {
        may_call("/muster.v1beta1.TenantService/ListTenants", principal) == Some(true)
    }
}

/// Serves the pages until `shutdown`.
///
/// # Errors
/// When the listener fails.
pub async fn serve_pages(
    shared: Shared,
    metrics: ReplicaMetrics,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    serve_web(Web::new(shared, Timeouts::DEFAULT), metrics, listener, shutdown).await
}

/// The same with pages that are made already.
pub(crate) async fn serve_web(
    web: Web,
    metrics: ReplicaMetrics,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let (security, timeouts) = (web.security().clone(), web.connection_timeouts());
    let web = web.counting(metrics.clone());
    let pages = Pages { engine: web.engine().clone(), metrics };
    let recorded = from_fn_with_state(web.recorder().clone(), web::note_denied);
    let router = muster_monitoring::routes(pages).merge(web::routes(web)).layer(recorded);
    let router = router.layer(map_response(web::with_headers));
    let bounds = AcceptLimits::DEFAULT;
    let served = muster_monitoring::serve(router, bounds, timeouts, &security, listener, shutdown).await;
    served.map_err(ServeError::Transport)
}
