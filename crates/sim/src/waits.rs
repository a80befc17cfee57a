//! Why jobs are pending that could start: what policy and planner say of the first requests in the pending queue, at bounded moments
//! of a log that is replayed.
//!
//! Between two moments the answer for a job holds, until a record changes the job.
//!
//! **Invariant:** no rule of scheduling is written here: each reason is that of [`muster_decider::explain_job_in`].
//! **Invariant:** what nobody was asked about stays unexplained, and the sums of the ledger stay as they are.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_decider::{KeptReservations, QueueForecast, explain_job_in, queue_front_listed};
use muster_ledger::Ledger;
use muster_state::State;
use muster_types::{JobId, LogTime};

use crate::idle::{REQUESTS_MAX, STEPS_MAX, reason_anywhere};

/// Jobs of one request that get its reason.
const ALIKE_MAX: usize = 10_000;

/// Asks why jobs are pending, and tells a ledger.
#[derive(Clone, Debug)]
pub struct WaitReasons {
    interval_ms: u64,
    asked_at: Option<LogTime>,
    moments: u64,
    /// Jobs that had a reason at the last moment.
    explained: BTreeSet<JobId>,
}

impl WaitReasons {
    /// Asks no two times within this many milliseconds of log time; 0 for behind each round.
    #[must_use]
    pub fn every(interval_ms: u64) -> WaitReasons {
        WaitReasons { interval_ms, asked_at: None, moments: 0, explained: BTreeSet::new() }
    }

    /// At how many moments it has asked.
    #[must_use]
    pub fn moments(&self) -> u64 {
        self.moments
    }

    /// The least time between two of them, in milliseconds of log time.
    #[must_use]
    pub fn interval_ms(&self) -> u64 {
        self.interval_ms
    }

    /// Another ledger begins; nothing is known of what is before it.
    pub fn begin(&mut self) {
        self.asked_at = None;
        self.explained.clear();
    }

    /// Looks at the state behind a round that the ledger has charged.
    pub fn look(&mut self, ledger: &mut Ledger, state: &State) {
        let now = state.log_time();
        let is_due = self.asked_at.is_none_or(|at| now.since_ms(at) >= self.interval_ms);
        if !is_due || state.pending_count() == 0 {
            return;
        }
        (self.asked_at, self.moments) = (Some(now), self.moments + 1);
        // What explanations of one state have in common is made once.
        let mut forecast = QueueForecast::new(state, now, Arc::new(KeptReservations::default()));
        let mut explained = BTreeSet::new();
        for jobs in queue_front_listed(state, now, (REQUESTS_MAX, STEPS_MAX), ALIKE_MAX) {
            let Some(first) = jobs.first().copied() else { continue };
            let Some(spec) = state.spec(first) else { continue };
            let why = explain_job_in(state, first, &mut forecast);
            let Some(reason) = why.and_then(|why| reason_anywhere(spec, &why)) else { continue };
            for job in jobs {
                ledger.explain_wait(job, Some(reason));
                explained.insert(job);
            }
        }
        // Those are further back in the queue now.
        for job in self.explained.difference(&explained) {
            ledger.explain_wait(*job, None);
        }
        self.explained = explained;
    }
}
