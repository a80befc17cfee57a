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
mod admission;
mod bookings;
mod calls;
mod channel;
mod connection;
mod controls;
mod drill;
pub mod endpoint;
mod error;
mod exec;
pub mod forward;
mod http;
mod job_handle;
mod job_spec;
mod log;
mod output;
mod pages;
mod planted;
mod quotas;
mod read;
mod retry;
mod schedules;
mod submitter;
mod tokens;
mod watch;

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

pub use admin::BackupStream;
pub use channel::Channel;
pub use drill::ReplicaDrills;
pub use endpoint::{ConnectError, Endpoints, EndpointsError};
pub use error::{AttemptError, CallError};
pub use exec::{Exec, ExecInput};
pub use forward::PortForward;
pub use http::HttpAnswer;
pub use job_handle::{JobHandle, LogOptions};
pub use job_spec::{CheckpointPolicy, JobSpec, RetryPolicy, TaskGroup, TopologyRule};
pub use log::{LogItem, LogReader, oldest_kept};
pub use muster_wire::status::Refused;
/// The messages of the protocol, so that a program needs no other crate for them.
pub use muster_wire::v1;
pub use output::LogStream;
pub use pages::{ListedJobs, ListedNodes, NodePages, Page, Paged, Pages};
pub use read::Read;
pub use submitter::Submitter;
pub use watch::{
    NodeItem, NodeWatch, OfJobs, OfNodes, OfQueues, QueueItem, QueueWatch, Watch, WatchItem, Watched,
};

use connection::Connection;

/// How patient a client is. Write it with `..Options::STANDARD`: fields may be added.
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
    /// Whether reads wait for what this client (and its clones) has seen before, on whichever replica:
    /// the highest log index of all answers goes along as `min_log_index`. Not for reads of the past.
    pub read_your_writes: bool,
    /// How reads are answered that do not say it themselves.
    pub read: Read,
}

impl Options {
    /// What suits a person at a terminal and a program alike: 30 s over all, 10 s for an attempt,
    /// pauses of 30 to 500 ms. A leader is replaced within a few seconds, so a failover is ridden out.
    /// Reads are answered by any replica, and never with less than this client has seen.
    pub const STANDARD: Options = Options {
        deadline: Duration::from_secs(30),
        attempt_timeout: Duration::from_secs(10),
        pause_min: Duration::from_millis(30),
        pause_max: Duration::from_millis(500),
        read_your_writes: true,
        read: Read::NOTHING_SAID,
    };
}

/// Longest time for one replica to confirm a read: more than an election in one region takes, and about
/// that of one across regions.
const UNCONFIRMED_MAX: Duration = Duration::from_secs(3);

/// How far the answers of one generation of the cluster have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    /// 0 while no answer has said it.
    generation: u32,
    log_index: u64,
}

impl Progress {
    /// Takes note of an answer. A position of a later generation replaces what was seen before: that may be lost, and a read
    /// that asks for it would wait until the new log is as long. An answer of an earlier generation is ignored.
    fn take(&mut self, generation: u32, log_index: u64) {
        if generation > self.generation {
            *self = Progress { generation, log_index };
        } else if generation == self.generation || generation == 0 {
            self.log_index = self.log_index.max(log_index);
        }
    }
}

/// A client of one cluster. Clones share the connection and what was seen.
#[derive(Clone)]
pub struct Client {
    connection: Arc<Connection>,
    options: Options,
    /// The highest position any answer carried.
    seen: Arc<Mutex<Progress>>,
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
        Client { connection, options, seen: Arc::default() }
    }

    /// The same client, connection and memory, with other patience.
    #[must_use]
    pub fn with_options(&self, options: Options) -> Client {
        Client { options, ..self.clone() }
    }

    /// The same client, connection and memory, whose reads are answered like this unless they say
    /// otherwise themselves.
    #[must_use]
    pub fn reading(&self, read: Read) -> Client {
        self.with_options(Options { read, ..self.options.clone() })
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
        self.seen().log_index
    }

    /// Makes later reads wait for `log_index`, for example one another process was told.
    pub fn observe_log_index(&self, log_index: u64) {
        self.see(0, log_index);
    }

    fn seen(&self) -> Progress {
        *self.seen.lock()
    }

    fn see(&self, generation: u32, log_index: u64) {
        self.seen.lock().take(generation, log_index);
    }

    fn observe(&self, freshness: Option<&v1::Freshness>) {
        if let Some(freshness) = freshness {
            self.see(freshness.generation, freshness.log_index);
        }
    }

    /// What a read asks for in the end.
    fn wanted_read(&self, asked: Option<v1::ReadOptions>) -> v1::ReadOptions {
        let mut read = asked.unwrap_or(self.options.read.into());
        if self.options.read_your_writes && !read::is_past(&read) {
            let seen = self.seen();
            // A position that the caller names is one of the generation that it names, or of the present one.
            // One of an earlier generation asks for nothing any more.
            let is_lost = read.generation > 0 && read.generation < seen.generation;
            let is_before = read.generation <= seen.generation && seen.log_index > read.min_log_index;
            if is_lost || is_before {
                (read.min_log_index, read.generation) = (seen.log_index, seen.generation);
            }
        }
        read
    }

    /// How long one replica may hold up a read that waits for a leader; none for the usual limit of an
    /// attempt. A replica that is cut off waits in vain, while another would answer.
    fn confirmed_within(&self, read: &v1::ReadOptions) -> Option<Duration> {
        let limit = UNCONFIRMED_MAX.min(self.options.attempt_timeout).min(self.options.deadline);
        read::needs_others(read).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn what_was_seen_of_an_earlier_generation_is_forgotten() {
        let mut seen = Progress::default();
        let mut after = |generation, log_index| {
            seen.take(generation, log_index);
            (seen.generation, seen.log_index)
        };
        assert_eq!(after(1, 900), (1, 900));
        assert_eq!(after(1, 800), (1, 900));
        assert_eq!(after(0, 950), (1, 950), "of a replica that does not say it, or told by another process");
        // Rebuilt from a backup: the log is shorter.
        assert_eq!(after(2, 500), (2, 500));
        assert_eq!(after(1, 990), (2, 500), "it is late");
        assert_eq!(after(2, 501), (2, 501));
    }
}
