//! Passing writes on to the leader.

use muster_engine::Engine;
use muster_types::{Refusal, RefusalCode};
use muster_wire::status::to_status;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::server::ApiConfig;

/// On a request that another replica passed on: carried out here or refused, never passed on again.
const FORWARDED: &str = "muster-forwarded";
/// How long a replica that knows no leader waits before it looks again, when nothing wakes it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Between two attempts at the same leader.
const PAUSE: Duration = Duration::from_millis(10);
/// Replicas whose channels are kept: more than a cluster ever has.
const CHANNELS_MAX: usize = 64;

/// Where a write is carried out.
pub(crate) enum Route {
    /// Here.
    Local,
    /// At the leader.
    Remote(Channel),
}

struct Inner {
    engine: Engine,
    config: ApiConfig,
    channels: Mutex<BTreeMap<String, Channel>>,
}

/// Finds the leader. Clones share the channels.
#[derive(Clone)]
pub(crate) struct Router {
    inner: Arc<Inner>,
}

/// What the caller said besides the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    forwarded: bool,
    deadline: Instant,
}

impl Router {
    pub(crate) fn new(engine: Engine, config: ApiConfig) -> Router {
        Router { inner: Arc::new(Inner { engine, config, channels: Mutex::default() }) }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// Deadline and origin of a request.
    pub(crate) fn caller<T>(&self, request: &Request<T>) -> Caller {
        let own = self.inner.config.write_timeout;
        let asked =
            request.metadata().get("grpc-timeout").and_then(|v| v.to_str().ok()).and_then(grpc_timeout);
        let forwarded = request.metadata().contains_key(FORWARDED);
        Caller { forwarded, deadline: Instant::now() + asked.unwrap_or(own).min(own) }
    }

    /// A request to be passed on.
    pub(crate) fn onward<T>(message: T, caller: Caller) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(FORWARDED, tonic::metadata::MetadataValue::from_static("1"));
        request.set_timeout(caller.deadline.saturating_duration_since(Instant::now()));
        request
    }

    /// Where to carry out a write, waiting for a leader while the caller does.
    pub(crate) async fn route(&self, caller: Caller) -> Result<Route, Status> {
        let mut leadership = self.inner.engine.leadership();
        loop {
            let view = leadership.borrow_and_update().clone();
            if view.mine.is_some() {
                return Ok(Route::Local);
            }
            let endpoint = view.leader.and_then(|leader| leader.client_endpoint);
            if caller.forwarded {
                // Whoever passed it on knows more, or will soon; a second hop could go in circles.
                return Err(to_status(&not_leader(endpoint)));
            }
            if let Some(endpoint) = endpoint.filter(|_| view.mine.is_none())
                && let Some(channel) = self.channel(&endpoint)
            {
                return Ok(Route::Remote(channel));
            }
            let left = caller.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(to_status(&not_leader(None)));
            }
            // The sender lives as long as the engine; either way the loop looks again.
            let _ = tokio::time::timeout(left.min(LOOK_AGAIN), leadership.changed()).await;
        }
    }

    fn channel(&self, endpoint: &str) -> Option<Channel> {
        let mut channels = self.inner.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(endpoint) {
            return Some(channel.clone());
        }
        let uri = if endpoint.contains("://") { endpoint.to_owned() } else { format!("http://{endpoint}") };
        let channel = match Endpoint::from_shared(uri) {
            Ok(to) => to
                .connect_timeout(Duration::from_millis(1_000))
                .http2_keep_alive_interval(Duration::from_millis(500))
                .keep_alive_timeout(Duration::from_millis(1_000))
                .keep_alive_while_idle(true)
                .tcp_nodelay(true)
                .connect_lazy(),
            Err(error) => {
                tracing::warn!(endpoint, %error, "the leader's client endpoint is not an address");
                return None;
            }
        };
        if channels.len() >= CHANNELS_MAX {
            channels.clear();
        }
        channels.insert(endpoint.to_owned(), channel.clone());
        Some(channel)
    }

    /// Carries out a write that is safe to repeat: here or at the leader, again when the leader
    /// changes on the way, until the caller's deadline.
    pub(crate) async fn write<T, L, R>(
        &self,
        caller: Caller,
        mut local: impl FnMut() -> L,
        mut remote: impl FnMut(Channel) -> R,
    ) -> Result<T, Status>
    where
        L: Future<Output = Result<T, Refusal>>,
        R: Future<Output = Result<T, Status>>,
    {
        loop {
            let failed = match self.route(caller).await? {
                Route::Local => match local().await {
                    Ok(done) => return Ok(done),
                    Err(refusal) if caller.forwarded || !is_transient(refusal.code) => {
                        return Err(to_status(&refusal));
                    }
                    Err(refusal) => to_status(&refusal),
                },
                Route::Remote(channel) => match remote(channel).await {
                    Ok(done) => return Ok(done),
                    Err(status) if !is_transient_status(&status) => return Err(status),
                    Err(status) => status,
                },
            };
            if caller.deadline <= Instant::now() + PAUSE {
                return Err(failed);
            }
            let mut leadership = self.inner.engine.leadership();
            leadership.mark_unchanged();
            let _ = tokio::time::timeout(PAUSE, leadership.changed()).await;
        }
    }
}

/// Whether the same request may succeed at once elsewhere or a moment later.
fn is_transient(code: RefusalCode) -> bool {
    matches!(code, RefusalCode::NotLeader | RefusalCode::OutcomeUnknown)
}

/// The same of an answer from the leader, or of none.
fn is_transient_status(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable => true,
        // What a connection that broke under the call looks like.
        Code::Unknown | Code::Internal | Code::Cancelled => {
            status.metadata().get("grpc-status-details-bin").is_none()
        }
        _ => false,
    }
}

pub(crate) fn not_leader(leader_endpoint: Option<String>) -> Refusal {
    let refusal =
        Refusal::new(RefusalCode::NotLeader, "this replica does not lead; try the leader or wait for one");
    match leader_endpoint {
        Some(endpoint) => refusal.with("leader_endpoint", endpoint),
        None => refusal,
    }
}

/// The `grpc-timeout` header: at most eight digits and a unit.
fn grpc_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3_600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::grpc_timeout;
    use std::time::Duration;

    #[test]
    fn timeouts_are_read_or_left_alone() {
        assert_eq!(grpc_timeout("250m"), Some(Duration::from_millis(250)));
        assert_eq!(grpc_timeout("2S"), Some(Duration::from_secs(2)));
        assert_eq!(grpc_timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
        for text in ["", "S", "1", "-1S", "999999999S", "1é", "é", "1 S"] {
            assert_eq!(grpc_timeout(text), None, "{text:?}");
        }
    }
}
