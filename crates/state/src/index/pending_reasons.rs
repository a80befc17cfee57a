//! How many pending jobs each of a few causes holds back, kept in step by the fold.

use muster_types::{JobSpec, LogTime};

use crate::rows::{ArrayRow, JobRow, Phase};

/// What holds a pending job back, as far as its row says. The names are those of explanations, for causes that lie in the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingReason {
    /// Capacity is promised to it, and other jobs are being preempted for it.
    Preempting,
    /// Somebody holds it.
    Held,
    /// It waits for other jobs, and perhaps for a time behind them.
    Dependency,
    /// It failed, and is tried again after a wait.
    RetryBackoff,
    /// It may not start before a time.
    NotBefore,
    /// It is a member of an array that may begin, and is created once members before it are placed.
    Array,
    /// Nothing of that: it waits for capacity, quota or its turn.
    Eligible,
}

impl PendingReason {
    const ALL: [PendingReason; 7] = [
        PendingReason::Preempting,
        PendingReason::Held,
        PendingReason::Dependency,
        PendingReason::RetryBackoff,
        PendingReason::NotBefore,
        PendingReason::Array,
        PendingReason::Eligible,
    ];

    fn name(self) -> &'static str {
        match self {
            PendingReason::Preempting => "preempting",
            PendingReason::Held => "held",
            PendingReason::Dependency => "dependency",
            PendingReason::RetryBackoff => "retry_backoff",
            PendingReason::NotBefore => "not_before",
            PendingReason::Array => "array",
            PendingReason::Eligible => "eligible",
        }
    }

    /// What holds a job back; `time` is when it may start at the earliest, if it waits for a time. None when it is not pending.
    pub(super) fn of(row: &JobRow, spec: &JobSpec, time: Option<LogTime>) -> Option<PendingReason> {
        if row.phase != Phase::Pending {
            return None;
        }
        Some(if row.promise.is_some() {
            PendingReason::Preempting
        } else if row.held {
            PendingReason::Held
        } else if row.released {
            PendingReason::Eligible
        } else if time.is_some() && time != spec.not_before {
            // Its own time was before its first attempt.
            PendingReason::RetryBackoff
        } else {
            PendingReason::of_unreleased(spec)
        })
    }

    /// Of the members of an array that are not created.
    pub(super) fn of_array(row: &ArrayRow) -> PendingReason {
        if row.hold.is_some() {
            PendingReason::Held
        } else if row.released {
            PendingReason::Array
        } else {
            PendingReason::of_unreleased(&row.template.spec)
        }
    }

    fn of_unreleased(spec: &JobSpec) -> PendingReason {
        if spec.dependencies.is_empty() { PendingReason::NotBefore } else { PendingReason::Dependency }
    }
}

/// Jobs by what holds them back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingCounts([u64; PendingReason::ALL.len()]);

impl PendingCounts {
    /// Jobs that were held back by one cause are held back by another.
    pub(super) fn shift(
        &mut self,
        before: Option<(PendingReason, u64)>,
        after: Option<(PendingReason, u64)>,
    ) {
        // First what is more: what goes was added before.
        if let Some((reason, jobs)) = after {
            self.0[reason as usize] += jobs;
        }
        if let Some((reason, jobs)) = before {
            self.0[reason as usize] -= jobs;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.0;
        PendingReason::ALL.into_iter().map(move |reason| (reason.name(), counts[reason as usize]))
    }
}
