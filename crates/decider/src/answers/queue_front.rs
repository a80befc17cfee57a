//! The front of the pending queue, as the next pass walks it.

use alloc::vec::Vec;
use muster_policy::Line;
use muster_state::State;
use muster_types::{JobId, LogTime, Name, PriorityTier};

/// A request that is offered capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontRequest {
    /// The first of the jobs that ask for it.
    pub job: JobId,
    /// Whose job it is.
    pub tenant: Name,
    /// Its tier.
    pub tier: PriorityTier,
    /// Whether its tenant has nominal quota left for it.
    pub within_nominal: bool,
}

/// The front of the pending queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueFront {
    /// In the order in which they are offered capacity.
    pub requests: Vec<FrontRequest>,
    /// Whether the walk ended before it had found as many as were asked for, and before the end of the queue.
    pub is_cut: bool,
}

/// The requests that are offered capacity first at `now`, in that order, at most `count`. Jobs that ask for the same in one
/// queue are one request. No more than `steps_max` requests are stepped over: under quotas every request of a tenant that has
/// no nominal quota left is one, and each may differ. Next to those the cost grows with tenants that have pending jobs and with
/// `count`.
#[must_use]
pub fn queue_front(state: &State, now: LogTime, count: usize, steps_max: u64) -> QueueFront {
    let mut queue = Line::form(state, now);
    let mut requests = Vec::new();
    while requests.len() < count {
        let Some(candidate) = queue.take_within(state, steps_max) else { break };
        // None of them is placed here: each waits, so that the next one comes.
        queue.waits(state, &candidate);
        let (job, tier, within_nominal) = (candidate.turn.job, candidate.tier, candidate.within_nominal);
        requests.push(FrontRequest { job, tenant: candidate.tenant, tier, within_nominal });
    }
    QueueFront { requests, is_cut: queue.is_cut() }
}
