//! Submissions that are a part of a trace, and when they went through the stages of the leader.
//!
//! **Invariant:** nothing is decided by it, and without an observer that wants it nothing of it is looked at.

use muster_journal::{Decision, Round};
use muster_state::{RequestAnswer, State};
use muster_types::{JobId, LogIndex, TraceParent};
use std::time::Instant;

/// Jobs of one submission whose round was decided, proposed and applied here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedSubmission {
    /// The span that they were submitted in.
    pub parent: TraceParent,
    /// The first of them.
    pub job: JobId,
    /// How many.
    pub jobs: u32,
    /// The record of the submission.
    pub log_index: LogIndex,
    /// The term of the leader.
    pub term: u64,
    /// When this replica worked on them.
    pub stages: Stages,
}

/// When a round of this replica reached each stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    /// The decision began.
    pub begun: Instant,
    /// The round was proposed.
    pub proposed: Instant,
    /// A quorum had it, and it began to be applied.
    pub committed: Instant,
}

/// The submissions of a round that are a part of a trace. `state` is the one behind the round.
pub(crate) fn traced(state: &State, round: &Round, stages: Stages) -> Vec<TracedSubmission> {
    let mut found = Vec::new();
    let mut log_index = round.first_index;
    let mut note = |parent, job, jobs, log_index| {
        found.push(TracedSubmission { parent, job, jobs, log_index, term: round.term, stages });
    };
    for (decision, index) in round.decisions.iter().zip(round.first_index.0..) {
        match decision {
            Decision::JobsSubmitted { .. } => log_index = LogIndex(index),
            // Right behind their jobs.
            Decision::JobContractsSet { contracts } => {
                let of_traces =
                    contracts.iter().filter_map(|(job, contract)| Some((*job, contract.trace_parent?)));
                let of_traces: Vec<(JobId, TraceParent)> = of_traces.collect();
                for run in of_traces.chunk_by(|(_, a), (_, b)| a == b) {
                    if let [(job, parent), ..] = run {
                        note(*parent, *job, u32::try_from(run.len()).unwrap_or(u32::MAX), log_index);
                    }
                }
            }
            Decision::ArraysSubmitted { request, parts, .. } => {
                let parent = parts.iter().find_map(|part| part.contract.as_ref()?.trace_parent);
                let answer = state.request(request.id).map(|row| &row.answer);
                if let (Some(parent), Some(RequestAnswer::Submitted { first, jobs })) = (parent, answer) {
                    note(parent, *first, *jobs, LogIndex(index));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::{JobContract, LogTime, ReplicaId};
    use std::sync::Arc;

    #[test]
    fn jobs_of_one_span_are_one_submission_and_those_without_are_none() {
        let parent = |byte| TraceParent::new([byte; 16], [byte; 8], 1);
        let contract =
            |trace_parent| Arc::new(JobContract { trace_parent, spares: 1, ..JobContract::default() });
        let contracts = [parent(1), parent(1), None, parent(2)].into_iter().zip(5..);
        let contracts = contracts.map(|(parent, job)| (JobId(job), contract(parent))).collect();
        let round = Round {
            format: muster_journal::FORMAT_MIN,
            term: 3,
            replica: ReplicaId(1),
            first_index: LogIndex(9),
            basis_index: LogIndex(8),
            log_time: LogTime(9),
            decisions: vec![Decision::JobContractsSet { contracts }],
        };
        let now = Instant::now();
        let stages = Stages { begun: now, proposed: now, committed: now };
        let found = traced(&State::default(), &round, stages);
        let of = |found: &TracedSubmission| (found.parent, found.job, found.jobs);
        let expected = [(parent(1), JobId(5), 2), (parent(2), JobId(8), 1)]
            .map(|(parent, job, jobs)| (parent.expect("good"), job, jobs));
        assert_eq!(found.iter().map(of).collect::<Vec<_>>(), expected);
        assert!(found.iter().all(|found| (found.term, found.log_index) == (3, LogIndex(9))));
    }
}
