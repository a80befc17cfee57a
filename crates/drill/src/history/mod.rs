//! What clients did and what they were answered, as they wrote it down.
//!
//! A history is lines of JSON, one for each operation (written when it is over, or at the end of the drill) and one
//! for each message of a watch, appended in any order by any number of clients; several files make one history. All
//! times are microseconds of one clock that all clients of a drill share: `CLOCK_BOOTTIME`, which does not jump and
//! which workers write their intervals by.
//!
//! Every answer of the cluster carries the position of the log that it is complete up to. That is what makes a
//! history checkable: an answer must equal what a replay of exactly that prefix gives.
//!
//! **Invariant:** append-only; a torn last line is reported and not fatal; any other line that is not ours is fatal.

mod file;

use muster_journal::{Outcome as JobOutcome, hash};
use muster_state::{JobRow, Phase};
use muster_types::{JobId, LogIndex, RequestId};
use serde::{Deserialize, Serialize};

use crate::text;

pub use file::{HistoryError, LINE_BYTES_MAX, LINES_MAX, Torn, Writer};

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// One operation, when it is over.
    Operation(Operation),
    /// One message of a watch.
    Watch(WatchEvent),
}

/// One operation of one client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// Unique among those of its client.
    pub id: u64,
    /// Unique in the drill.
    pub client: u32,
    /// Where the client is.
    pub region: String,
    /// The replica that was asked, where it was one alone; none for whichever answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<u64>,
    /// What was asked.
    pub call: Call,
    /// Right before the request was made.
    pub invoked_us: u64,
    /// Right behind the answer; when it was given up where there was none.
    pub completed_us: u64,
    /// What came of it.
    pub outcome: Outcome,
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    /// Jobs, all or none.
    Submit {
        /// The client's name for it, the same in all its attempts.
        #[serde(with = "text::shown")]
        request: RequestId,
        /// How many, arrays expanded.
        jobs: u32,
    },
    /// A job is to end.
    Cancel {
        /// The client's name for it, the same in all its attempts.
        #[serde(with = "text::shown")]
        request: RequestId,
        /// Which.
        #[serde(with = "text::shown")]
        job: JobId,
    },
    /// Something is looked at.
    Read {
        /// What.
        query: Query,
        /// How current the answer has to be.
        consistency: Consistency,
        /// The answer must be complete up to here; 0 where nothing was asked. This is what a session carries along
        /// that must never see the past again.
        #[serde(default)]
        min_log_index: u64,
    },
}

/// What is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Query {
    /// `GetJob`.
    Job {
        /// Which.
        #[serde(with = "text::shown")]
        job: JobId,
    },
    /// The first page of `ListJobs`: the newest jobs.
    Jobs {
        /// Size of the page.
        count: u32,
        /// Only this tenant's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant: Option<String>,
    },
    /// `ClusterService.GetStatus`: the digest of the whole state, and counts.
    Status,
}

/// How current an answer has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Consistency {
    /// Whatever the replica has.
    Any,
    /// Everything that was committed so long before.
    Bounded {
        /// So long.
        max_staleness_ms: u64,
    },
    /// Everything that was committed before the request.
    Linearizable,
}

/// What came of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// A change is durable.
    Acknowledged {
        /// Its record.
        log_index: u64,
        /// Ids of submitted jobs; none for a cancellation.
        #[serde(default, with = "text::shown_list", skip_serializing_if = "Vec::is_empty")]
        jobs: Vec<JobId>,
    },
    /// A read has an answer.
    Answered {
        /// The answer is complete up to here.
        log_index: u64,
        /// How old it may be, as it says itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        staleness_ms: Option<u64>,
        /// What was seen.
        seen: Observation,
    },
    /// The cluster said no, and that nothing was changed. Only for codes that mean that for certain, in the first
    /// attempt or in all of them: with an attempt before whose end nobody knows, it is [`Outcome::Unknown`].
    Refused {
        /// The stable code of the refusal.
        code: String,
    },
    /// The answer was lost, or says nothing of what was done: it may be in the log or not.
    Unknown {
        /// What was said.
        error: String,
    },
    /// No answer in the client's time: it may be in the log or not.
    TimedOut,
    /// The answer does not fit the question: it lacks its position, or shows a value that nothing has. What was
    /// asked for may be in the log or not.
    Malformed {
        /// What is wrong with it.
        what: String,
    },
}

/// What an answer showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Observation {
    /// Answer to [`Query::Job`].
    Job(JobSeen),
    /// Answer to [`Query::Jobs`].
    Jobs {
        /// Jobs on the page.
        count: u32,
        /// [`digest_of_jobs`] of the page, in its order.
        #[serde(with = "text::hexadecimal")]
        digest: u64,
    },
    /// Answer to [`Query::Status`].
    Status {
        /// Digest of the state.
        #[serde(with = "text::hexadecimal")]
        digest: u64,
        /// Jobs that wait.
        pending: u64,
        /// Jobs that hold devices.
        active: u64,
        /// Jobs that are over and still kept.
        finished: u64,
    },
}

/// What a client may know of one job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSeen {
    /// Which.
    #[serde(with = "text::shown")]
    pub job: JobId,
    /// Its phase.
    pub phase: JobPhase,
    /// Placements so far.
    pub attempt: u32,
    /// The record that changed it last.
    pub changed_at_index: u64,
}

/// The phase of a job, numbered as in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
#[expect(missing_docs, reason = "the names say it")]
pub enum JobPhase {
    Pending = 1,
    Starting = 2,
    Running = 3,
    Stopping = 4,
    Succeeded = 5,
    Failed = 6,
    Cancelled = 7,
}

/// One message of a watch of jobs. Its messages stand in one file in the order in which they came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchEvent {
    /// Which watch; unique in the drill, and the same over all streams that it was resumed on.
    pub watch: u32,
    /// The region of the client; empty where that is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub region: String,
    /// Only this tenant's jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// When it was there.
    pub at_us: u64,
    /// The position that it speaks of.
    pub log_index: u64,
    /// What it said.
    pub change: WatchChange,
}

/// What a message of a watch says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum WatchChange {
    /// A job was added or changed; before `sync_end`, is there.
    Changed(JobSeen),
    /// A job was dropped.
    Forgotten {
        /// Which.
        #[serde(with = "text::shown")]
        job: JobId,
    },
    /// The present is complete.
    SyncEnd,
    /// Nothing changed up to here.
    Bookmark,
    /// The position was lost; the present state follows from the beginning.
    Restarted,
}

/// Everything that was written down of one drill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// In the order of the files.
    pub operations: Vec<Operation>,
    /// Each watch's in order.
    pub watch_events: Vec<WatchEvent>,
    /// Files whose last line has no end.
    pub torn: Vec<Torn>,
}

impl JobPhase {
    /// As a state has it.
    #[must_use]
    pub fn of(phase: &Phase) -> JobPhase {
        match phase {
            Phase::Pending => JobPhase::Pending,
            Phase::Starting => JobPhase::Starting,
            Phase::Running => JobPhase::Running,
            Phase::Stopping(_) => JobPhase::Stopping,
            Phase::Finished(JobOutcome::Succeeded) => JobPhase::Succeeded,
            Phase::Finished(JobOutcome::Failed { .. }) => JobPhase::Failed,
            Phase::Finished(JobOutcome::Cancelled) => JobPhase::Cancelled,
        }
    }

    /// By its number in the protocol; none for a number that no phase has.
    #[must_use]
    pub fn from_number(number: i32) -> Option<JobPhase> {
        Some(match number {
            1 => JobPhase::Pending,
            2 => JobPhase::Starting,
            3 => JobPhase::Running,
            4 => JobPhase::Stopping,
            5 => JobPhase::Succeeded,
            6 => JobPhase::Failed,
            7 => JobPhase::Cancelled,
            _ => return None,
        })
    }
}

impl JobSeen {
    /// What a client is told of a row.
    #[must_use]
    pub fn of(job: JobId, row: &JobRow) -> JobSeen {
        JobSeen {
            job,
            phase: JobPhase::of(&row.phase),
            attempt: row.attempt,
            changed_at_index: row.changed_at.0,
        }
    }
}

/// What stands for a page of jobs: equal for equal pages, in the order of the page.
#[must_use]
pub fn digest_of_jobs<'a>(page: impl IntoIterator<Item = &'a JobSeen>) -> u64 {
    let rows: Vec<(u64, u8, u32, u64)> = page
        .into_iter()
        .map(|seen| (seen.job.0, seen.phase as u8, seen.attempt, seen.changed_at_index))
        .collect();
    hash(&rows)
}

impl Operation {
    /// The position that the answer showed or got; none without one.
    #[must_use]
    pub fn log_index(&self) -> Option<LogIndex> {
        match &self.outcome {
            Outcome::Acknowledged { log_index, .. } | Outcome::Answered { log_index, .. } => {
                Some(LogIndex(*log_index))
            }
            _ => None,
        }
    }

    /// Whether it changes something.
    #[must_use]
    pub fn is_write(&self) -> bool {
        !matches!(self.call, Call::Read { .. })
    }

    /// The request id of a change.
    #[must_use]
    pub fn request(&self) -> Option<RequestId> {
        match &self.call {
            Call::Submit { request, .. } | Call::Cancel { request, .. } => Some(*request),
            Call::Read { .. } => None,
        }
    }

    /// From request to answer.
    #[must_use]
    pub fn took_us(&self) -> u64 {
        self.completed_us.saturating_sub(self.invoked_us)
    }
}
