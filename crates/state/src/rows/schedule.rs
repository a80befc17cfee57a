//! Rows of schedules.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_types::{JobId, LogIndex, LogTime, Name, NextRun, OwnerRole, Requester, Schedule, ScheduleRun};
use serde::{Deserialize, Serialize};

/// A schedule, and what has become of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleRow {
    /// As it was asked for.
    pub schedule: Arc<Schedule>,
    /// Who set it last: the owner of its jobs.
    pub by: Requester,
    /// The tenant that the owner acts for, and for those below it; none acts for all.
    pub acts_for: Option<Name>,
    /// The role of the policy that the owner had when it was set; none for a whole built-in role, and for a certificate.
    pub role: Option<OwnerRole>,
    /// Whether the policy listed its tenant when it was set.
    pub tenant_was_listed: bool,
    /// The record that set it last.
    pub set_index: LogIndex,
    /// When that was.
    pub set_at: LogTime,
    /// What it waits for.
    pub next: NextRun,
    /// Why it makes no jobs; none while it does.
    pub suspension: Option<ScheduleSuspension>,
    /// Its jobs that were not over when the last of them was made; at most `limits::SCHEDULE_JOBS_MAX`.
    pub jobs: Vec<JobId>,
    /// The newest of its runs, oldest first; at most as many as it lists.
    pub runs: Vec<ScheduleRunRow>,
    /// Jobs that it has made.
    pub submitted: u64,
    /// Moments that it has left out.
    pub skipped: u64,
}

/// Why and since when a schedule makes no jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleSuspension {
    /// Who asked for it; nobody where the leader found that the owner may not have such jobs any more.
    pub by: Requester,
    /// Why, in a sentence.
    pub reason: String,
    /// Since when.
    pub since: LogTime,
}

/// One run of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleRunRow {
    /// The moment; none for a run that somebody asked for.
    pub due: Option<LogTime>,
    /// When it was decided.
    pub at: LogTime,
    /// What became of it.
    pub run: ScheduleRun,
}
