//! Who was served out of turn: at each placement of a log, the order of the pending queue is recomputed from the shares that follow
//! from the log, and the requests that go before the placed one are asked whether they fit.
//!
//! A leader remembers what no record has: reservations, and where a pass that ended early goes on. So a request that fits and was
//! passed over is a finding to look at, and not a proof.
//!
//! **Invariant:** no rule of scheduling is written here: order and fit are those of `muster_decider`.

use std::sync::Arc;

use muster_decider::{KeptReservations, explain_job, queue_front};
use muster_journal::Decision;
use muster_planner::WaitReason;
use muster_state::{Applied, GangClass, State};
use muster_types::{JobId, JobSpec, LogIndex, Name};

/// Requests at the front of the queue that are looked at for one placement.
const REQUESTS_MAX: usize = 8;
/// Requests that are stepped over for one placement.
const STEPS_MAX: u64 = 10_000;
/// Placements for which requests are asked whether they fit.
const ASKED_MAX: u64 = 2_000;
/// Findings that are kept.
const FINDINGS_MAX: usize = 100;

/// A placement that went before a request that fitted and had its turn earlier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfTurn {
    /// The record of the placement.
    pub log_index: LogIndex,
    /// Who was placed.
    pub placed: (JobId, Name),
    /// Who was passed over; the first of them.
    pub passed_over: (JobId, Name),
}

/// Counts of placements, as far as they were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnCounts {
    /// Of a job that was the first in the queue.
    pub first: u64,
    /// Of a job behind others that did not fit then.
    pub behind_waiting: u64,
    /// Of a job for which capacity had been kept.
    pub held_for: u64,
    /// Of a job behind one that fitted.
    pub out_of_turn: u64,
    /// That were not looked at, because there were too many.
    pub not_asked: u64,
}

/// How a placement stands to the queue.
#[derive(Clone, Debug)]
enum PlacementOrder {
    First,
    BehindWaiting,
    HeldFor,
    OutOfTurn(OutOfTurn),
    NotAsked,
}

/// Looks at the placements of a log.
#[derive(Clone, Debug, Default)]
pub struct TurnCheck {
    counts: TurnCounts,
    asked: u64,
    findings: Vec<OutOfTurn>,
    /// Of the decision that is being applied.
    order: Option<PlacementOrder>,
}

impl TurnCheck {
    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> &TurnCounts {
        &self.counts
    }

    /// The first findings, in the order of the log.
    #[must_use]
    pub fn findings(&self) -> &[OutOfTurn] {
        &self.findings
    }

    /// Looks at a decision before it is applied to the state.
    pub fn before(&mut self, state: &State, decision: &Decision) {
        self.order = match decision {
            Decision::GangPlaced { job, .. } => self.order_of(state, *job),
            _ => None,
        };
    }

    /// Counts it when it has been applied.
    pub fn after(&mut self, applied: &Applied) {
        let order = self.order.take().filter(|_| applied.log_index.is_some() && applied.rejection.is_none());
        match order {
            None => {}
            Some(PlacementOrder::First) => self.counts.first += 1,
            Some(PlacementOrder::BehindWaiting) => self.counts.behind_waiting += 1,
            Some(PlacementOrder::HeldFor) => self.counts.held_for += 1,
            Some(PlacementOrder::NotAsked) => self.counts.not_asked += 1,
            Some(PlacementOrder::OutOfTurn(finding)) => {
                self.counts.out_of_turn += 1;
                if self.findings.len() < FINDINGS_MAX {
                    self.findings.push(finding);
                }
            }
        }
    }

    fn order_of(&mut self, state: &State, job: JobId) -> Option<PlacementOrder> {
        let (row, spec) = (state.job(job)?, state.spec(job)?);
        if row.promise.is_some() {
            return Some(PlacementOrder::HeldFor);
        }
        let now = state.log_time();
        let front = queue_front(state, now, REQUESTS_MAX, STEPS_MAX);
        // A job that is not the first of its request has the place of its request.
        let class = GangClass::of(spec);
        let is_alike = |other: &Arc<JobSpec>| {
            (other.tier, &other.tenant) == (spec.tier, &spec.tenant) && GangClass::of(other) == class
        };
        let is_own = |first: JobId| first == job || state.spec(first).is_some_and(is_alike);
        let place = front.requests.iter().position(|request| is_own(request.job));
        let first_of_own = place.and_then(|place| front.requests.get(place)).map(|request| request.job);
        let is_first = first_of_own == Some(job);
        if place == Some(0) && is_first {
            return Some(PlacementOrder::First);
        }
        if self.asked >= ASKED_MAX {
            return Some(PlacementOrder::NotAsked);
        }
        self.asked += 1;
        let fits = |other: JobId| {
            let explained = explain_job(state, now, other, &KeptReservations::default());
            explained.is_some_and(|explained| explained.reason == WaitReason::InLine)
        };
        // The first of the same request was before it too.
        let count = place.map_or(REQUESTS_MAX, |place| place + usize::from(!is_first));
        let mut earlier = front.requests.iter().take(count);
        let Some(passed_over) = earlier.find(|request| fits(request.job)) else {
            return Some(PlacementOrder::BehindWaiting);
        };
        Some(PlacementOrder::OutOfTurn(OutOfTurn {
            log_index: state.log_index().next(),
            placed: (job, spec.tenant.clone()),
            passed_over: (passed_over.job, passed_over.tenant.clone()),
        }))
    }
}
