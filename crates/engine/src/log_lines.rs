//! What a leader writes to its log of some of its decisions: the gangs that are evicted, and the nodes that are lost.
//!
//! Each is a line with job and node as fields, so that one search finds it next to the lines of the agents.

use muster_journal::{Decision, NodeLostCause, RearrangeCause, Round, StopCause};
use muster_types::{JobId, LogIndex, NodeId};
use tracing::field::display;

/// A gang that stops although it has done nothing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Eviction {
    job: JobId,
    cause: &'static str,
    /// The node that it has to leave.
    node: Option<NodeId>,
    /// The job that gets its capacity.
    by_job: Option<JobId>,
}

/// Writes the lines of a round that this leader proposes.
pub(crate) fn of_round(round: &Round) {
    let term = round.term;
    for (ordinal, decision) in (0_u64..).zip(&round.decisions) {
        let log_index = LogIndex(round.first_index.0.saturating_add(ordinal));
        if let Decision::NodeLost { node, incarnation, cause } = decision {
            let cause = match cause {
                NodeLostCause::LeaseExpired => "lease_expired",
                NodeLostCause::Replaced => "replaced",
            };
            tracing::warn!(%log_index, term, %node, incarnation, cause, "a node is lost");
        }
        for Eviction { job, cause, node, by_job } in evictions(decision) {
            let (node, by_job) = (node.map(display), by_job.map(display));
            tracing::info!(%log_index, term, %job, node, by_job, cause, "a gang is evicted");
        }
    }
}

/// The job and the node that a decision is about; none where it is about none, or about several.
pub(crate) fn subject(decision: &Decision) -> (Option<JobId>, Option<NodeId>) {
    match decision {
        Decision::GangPlaced { job, .. }
        | Decision::GangStopRequested { job, .. }
        | Decision::JobRequeued { job, .. }
        | Decision::JobFinished { job, .. }
        | Decision::PromiseDropped { job, .. } => (Some(*job), None),
        Decision::AttemptFailed { job, node, .. } => (Some(*job), *node),
        Decision::WorkersReported { job, node, .. } => (Some(*job), Some(*node)),
        Decision::NodeLost { node, .. } | Decision::NodeCordonSet { node, .. } => (None, Some(*node)),
        _ => (None, None),
    }
}

fn evictions(decision: &Decision) -> Vec<Eviction> {
    match decision {
        Decision::GangStopRequested { job, cause, .. } => {
            let of = |cause, node| Eviction { job: *job, cause, node: Some(node), by_job: None };
            match cause {
                StopCause::Evicted { node } => vec![of("evicted", *node)],
                StopCause::Fault { node, .. } => vec![of("fault", *node)],
                StopCause::Rearranged(cause) => vec![rearranged(*job, *cause)],
                _ => Vec::new(),
            }
        }
        Decision::Rearranged { stops, .. } => {
            stops.iter().map(|stop| rearranged(stop.job, stop.cause)).collect()
        }
        _ => Vec::new(),
    }
}

fn rearranged(job: JobId, cause: RearrangeCause) -> Eviction {
    let (cause, node, by_job) = match cause {
        RearrangeCause::Preempted { by } => ("preempted", None, Some(by)),
        RearrangeCause::Moved { by } => ("moved", None, Some(by)),
        RearrangeCause::Resized => ("resized", None, None),
        RearrangeCause::Drained { node } => ("drained", Some(node), None),
    };
    Eviction { job, cause, node, by_job }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_journal::Stop;
    use muster_types::FencingToken;

    #[test]
    fn an_eviction_names_its_job_with_the_job_or_the_node_that_it_is_for() {
        let (job, other, node, token) = (JobId(1), JobId(2), NodeId(3), FencingToken::default());
        let stop = |cause| Stop { job, token, cause };
        let stops = vec![
            stop(RearrangeCause::Preempted { by: other }),
            stop(RearrangeCause::Drained { node }),
            stop(RearrangeCause::Resized),
        ];
        let found = evictions(&Decision::Rearranged { stops, promises: Vec::new() });
        let of = |cause, node, by_job| Eviction { job, cause, node, by_job };
        let wanted =
            [of("preempted", None, Some(other)), of("drained", Some(node), None), of("resized", None, None)];
        assert_eq!(found, wanted);
        let of_cause = |cause| evictions(&Decision::GangStopRequested { job, token, cause });
        assert_eq!(of_cause(StopCause::Evicted { node }), [of("evicted", Some(node), None)]);
        assert!(of_cause(StopCause::Cancelled).is_empty());
    }

    #[test]
    fn a_decision_says_which_job_and_node_it_is_about() {
        let (job, node, token) = (JobId(1), NodeId(3), FencingToken::default());
        let reported = Decision::WorkersReported { node, incarnation: 1, job, token, updates: Vec::new() };
        assert_eq!(subject(&reported), (Some(job), Some(node)));
        assert_eq!(subject(&Decision::PromiseDropped { job }), (Some(job), None));
        assert_eq!(subject(&Decision::LeaderStarted), (None, None));
    }
}
