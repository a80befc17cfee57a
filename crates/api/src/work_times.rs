//! How long the work of a leader takes, for monitoring systems.

use muster_engine::{TracedSubmission, WorkObserver};
use muster_metrics::ReplicaMetrics;
use std::time::{Duration, Instant};

use crate::spans;

/// Counts how long the rounds of this replica's leaderships take.
pub struct WorkTimes {
    metrics: ReplicaMetrics,
}

impl WorkTimes {
    /// Counted there.
    #[must_use]
    pub fn new(metrics: ReplicaMetrics) -> WorkTimes {
        WorkTimes { metrics }
    }
}

impl WorkObserver for WorkTimes {
    fn round_decided(&self, took: Duration) {
        self.metrics.round_decided(took);
    }

    fn proposal_applied(&self, took: Duration) {
        self.metrics.proposal_applied(took);
    }

    fn wants_traces(&self) -> bool {
        muster_traces::tracer().is_some()
    }

    fn submission_applied(&self, submission: &TracedSubmission, applied: Instant) {
        spans::submitted(submission, applied);
    }
}
