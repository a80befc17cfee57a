//! How well predictions of starts did: what policy and planner said of jobs right behind their submission, at bounded moments of a
//! log that is replayed, next to when those jobs started.
//!
//! A job that starts in the round of its submission is not predicted. What the leader kept for others is not in the log, so
//! reservations are made again from the state.
//!
//! **Invariant:** no rule of scheduling is written here: each prediction is that of [`muster_decider::explain_job`].

use std::collections::BTreeMap;

use muster_decider::{KeptReservations, StartEstimate, explain_job};
use muster_journal::Decision;
use muster_state::{Applied, Effect, Phase, State};
use muster_types::{JobId, LogTime};

/// Predictions that are made, at most: each costs a plan.
const ASKED_MAX: u64 = 2_000;

/// How predictions did, as far as the log tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PredictionCounts {
    /// Jobs that were asked about.
    pub asked: u64,
    /// Of those, jobs of which nothing was predicted.
    pub unpredicted: u64,
    /// Predicted jobs that have started.
    pub started: u64,
    /// Of those, the ones that started at p10 or earlier.
    pub by_q10: u64,
    /// The same of p50.
    pub by_q50: u64,
    /// The same of p90.
    pub by_q90: u64,
    /// Started jobs for which no p90 was known.
    pub without_q90: u64,
    /// Predicted jobs that ended without a start.
    pub never: u64,
    /// Predicted jobs that still wait.
    pub open: u64,
    /// Of those, the ones that wait beyond p90.
    pub overdue: u64,
}

/// Asks when jobs will start, and looks at when they did.
#[derive(Clone, Debug)]
pub struct PredictionCheck {
    interval_ms: u64,
    asked_at: Option<LogTime>,
    /// Whether the record that is being applied submits jobs.
    is_submission: bool,
    /// The job that was submitted last.
    newest: Option<JobId>,
    predicted: BTreeMap<JobId, StartEstimate>,
    counts: PredictionCounts,
    /// Between p50 and the start, in milliseconds.
    errors_ms: Vec<u64>,
    now: LogTime,
}

impl PredictionCheck {
    /// Asks no two times within this many milliseconds of log time; 0 for behind each submission.
    #[must_use]
    pub fn every(interval_ms: u64) -> PredictionCheck {
        PredictionCheck {
            interval_ms,
            asked_at: None,
            is_submission: false,
            newest: None,
            predicted: BTreeMap::new(),
            counts: PredictionCounts::default(),
            errors_ms: Vec::new(),
            now: LogTime(0),
        }
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> PredictionCounts {
        let overdue = self.predicted.values().filter(|start| start.q90.is_some_and(|q90| q90 < self.now));
        PredictionCounts { open: self.predicted.len() as u64, overdue: overdue.count() as u64, ..self.counts }
    }

    /// How far starts were from p50, in milliseconds: the median and what nine in ten do not
    /// exceed. None without a start.
    #[must_use]
    pub fn errors_ms(&self) -> Option<(u64, u64)> {
        let mut sorted = self.errors_ms.clone();
        sorted.sort_unstable();
        let at = |tenths: usize| sorted.get((sorted.len() * tenths).div_ceil(10).max(1) - 1).copied();
        at(5).zip(at(9))
    }

    /// Another part of the log begins: what became of the jobs before it is not known.
    pub fn begin(&mut self) {
        (self.asked_at, self.is_submission, self.newest) = (None, false, None);
        self.counts.asked -= self.predicted.len() as u64;
        self.predicted.clear();
    }

    /// Looks at a decision before it is applied to the state.
    pub fn before(&mut self, decision: &Decision) {
        self.is_submission = matches!(decision, Decision::JobsSubmitted { .. });
    }

    /// Looks at it when it has been applied.
    pub fn after(&mut self, state: &State, applied: &Applied) {
        self.now = state.log_time();
        let mut newest = None;
        for effect in &applied.effects {
            let Effect::JobChanged(job) = effect else { continue };
            newest = Some(*job);
            let Some(start) = self.predicted.get(job).copied() else { continue };
            let row = state.job(*job);
            match row.map(|row| (row.attempt > 0, row.phase == Phase::Pending)) {
                Some((true, _)) => self.started(start, state.log_time()),
                Some((false, true)) => continue,
                Some((false, false)) | None => self.counts.never += 1,
            }
            self.predicted.remove(job);
        }
        if std::mem::take(&mut self.is_submission) {
            self.newest = newest.or(self.newest);
        }
    }

    fn started(&mut self, start: StartEstimate, now: LogTime) {
        let counts = &mut self.counts;
        counts.started += 1;
        counts.by_q10 += u64::from(now <= start.q10);
        counts.by_q50 += u64::from(now <= start.q50);
        counts.by_q90 += u64::from(start.q90.is_some_and(|q90| now <= q90));
        counts.without_q90 += u64::from(start.q90.is_none());
        self.errors_ms.push(now.0.abs_diff(start.q50.0));
    }

    /// Behind a round: asks about the job that was submitted last, if it still waits and it is time.
    pub fn round_over(&mut self, state: &State) {
        let now = state.log_time();
        let is_time = self.asked_at.is_none_or(|at| now.since_ms(at) >= self.interval_ms);
        if !is_time || self.counts.asked >= ASKED_MAX {
            return;
        }
        let Some(job) = self.newest.take() else { return };
        if state.job(job).is_none_or(|row| row.phase != Phase::Pending) {
            return;
        }
        let Some(explained) = explain_job(state, now, job, &KeptReservations::default()) else { return };
        self.asked_at = Some(now);
        self.counts.asked += 1;
        match explained.start {
            Some(start) => _ = self.predicted.insert(job, start),
            None => self.counts.unpredicted += 1,
        }
    }
}
