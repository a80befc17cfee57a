//! Leader discovery, retries with request ids, watch resumption.
//!
//! A cluster of three or five replicas takes any call at any replica. What a caller must do for that
//! to feel like one server is done here once, for the command line, the agent and programs: find a
//! replica that answers, repeat a mutation under the *same* request id until its outcome is known,
//! read what was just written from whichever replica comes next, and go on with a watch behind the
//! last event that was seen.
//!
//! **Invariant:** one call of a mutation has one effect, however often it is sent: every attempt of it
//! carries the request id of the first.
#![deny(missing_docs)]

mod admin;
mod calls;
pub mod endpoint;
mod error;
mod repeat;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_wire::v1;

pub use admin::BackupStream;
pub use endpoint::{ConnectError, Endpoints, EndpointsError};
pub use error::{AttemptError, CallError};
pub use muster_wire::status::Refused;
pub use watch::{LogStream, Watch, WatchItem};

use repeat::Connection;

/// How patient a client is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Longest time of one call, with all its repetitions. Of a watch: longest time without any
    /// progress in reconnecting.
    pub deadline: Duration,
    /// Longest time of one attempt; then another replica is asked.
    pub attempt_timeout: Duration,
    /// The first pause between two attempts; it doubles, with jitter.
    pub pause_min: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// Whether reads wait for what this client (and its clones) has seen before, on whichever replica.
    pub read_your_writes: bool,
}

impl Options {
    /// What suits a person at a terminal and a program alike: 30 s over all, 10 s for an attempt,
    /// pauses of 30 to 500 ms. A leader is replaced within a few seconds, so a failover is ridden out.
    pub const STANDARD: Options = Options {
        deadline: Duration::from_secs(30),
        attempt_timeout: Duration::from_secs(10),
        pause_min: Duration::from_millis(30),
        pause_max: Duration::from_millis(500),
        read_your_writes: true,
    };
}

/// A client of one cluster. Clones share the connection and what was seen.
#[derive(Clone)]
pub struct Client {
    connection: Arc<Connection>,
    options: Options,
    /// The highest log index any answer carried.
    seen: Arc<AtomicU64>,
}

impl Client {
    /// A client that is connected to one of the endpoints.
    ///
    /// # Errors
    /// When none can be reached now. Later losses of the connection are ridden out by each call.
    pub async fn connect(endpoints: Endpoints, options: Options) -> Result<Client, ConnectError> {
        let client = Client::lazy(endpoints, options);
        client.connection.current_within(client.options.deadline).await?;
        Ok(client)
    }

    /// A client that connects with its first call.
    #[must_use]
    pub fn lazy(endpoints: Endpoints, options: Options) -> Client {
        let connection = Arc::new(Connection::new(endpoints));
        Client { connection, options, seen: Arc::new(AtomicU64::new(0)) }
    }

    /// The same client, connection and memory, with other patience.
    #[must_use]
    pub fn with_options(&self, options: Options) -> Client {
        Client { options, ..self.clone() }
    }

    /// How patient it is.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The addresses it knows.
    #[must_use]
    pub fn endpoints(&self) -> &Endpoints {
        self.connection.endpoints()
    }

    /// The highest log index any answer to this client or its clones carried.
    #[must_use]
    pub fn seen_log_index(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    /// Makes later reads wait for `log_index`, for example one another process was told.
    pub fn observe_log_index(&self, log_index: u64) {
        self.seen.fetch_max(log_index, Ordering::AcqRel);
    }

    fn observe(&self, freshness: Option<&v1::Freshness>) {
        if let Some(freshness) = freshness {
            self.observe_log_index(freshness.log_index);
        }
    }

    /// What a read has to wait for.
    fn wanted_log_index(&self, asked: u64) -> u64 {
        if self.options.read_your_writes { asked.max(self.seen_log_index()) } else { asked }
    }
}
