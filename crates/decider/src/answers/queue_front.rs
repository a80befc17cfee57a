//! The front of the pending queue, as the next pass walks it.

use alloc::vec::Vec;
use muster_policy::{Candidate, Line};
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
    /// How many jobs ask for it, as far as they were counted; one at least.
    pub alike: u64,
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
/// `count`. The jobs of a request are not counted.
#[must_use]
pub fn queue_front(state: &State, now: LogTime, count: usize, steps_max: u64) -> QueueFront {
    queue_front_counted(state, now, (count, steps_max), 1)
}

/// The same, with up to `alike_max` jobs of each request counted.
#[must_use]
pub fn queue_front_counted(
    state: &State,
    now: LogTime,
    (count, steps_max): (usize, u64),
    alike_max: u64,
) -> QueueFront {
    let mut queue = Line::form(state, now);
    let mut requests = Vec::new();
    while requests.len() < count {
        let Some(candidate) = queue.take_within(state, steps_max) else { break };
        // None of them is placed here: each waits, so that the next one comes.
        queue.waits(state, &candidate);
        let alike = jobs_alike(state, &candidate, alike_max);
        let (job, tier, within_nominal) = (candidate.turn.job, candidate.tier, candidate.within_nominal);
        requests.push(FrontRequest { job, tenant: candidate.tenant, tier, within_nominal, alike });
    }
    QueueFront { requests, is_cut: queue.is_cut() }
}

/// The jobs of the requests that are offered capacity first, request by request, at most `alike_max` of each.
#[must_use]
pub fn queue_front_listed(
    state: &State,
    now: LogTime,
    (count, steps_max): (usize, u64),
    alike_max: usize,
) -> Vec<Vec<JobId>> {
    let mut queue = Line::form(state, now);
    let mut requests = Vec::new();
    while requests.len() < count {
        let Some(candidate) = queue.take_within(state, steps_max) else { break };
        queue.waits(state, &candidate);
        requests.push(alike(state, &candidate).take(alike_max).collect());
    }
    requests
}

/// How many jobs of a queue ask for the same as the candidate, itself among them, at most `alike_max`.
fn jobs_alike(state: &State, candidate: &Candidate, alike_max: u64) -> u64 {
    let most = usize::try_from(alike_max).unwrap_or(usize::MAX);
    u64::try_from(alike(state, candidate).take(most).count()).unwrap_or(u64::MAX)
}

/// Jobs of a queue that ask for the same as the candidate, which is the first of them.
fn alike<'a>(state: &'a State, candidate: &'a Candidate) -> impl Iterator<Item = JobId> + 'a {
    let of = (candidate.tier, &candidate.tenant, candidate.class);
    let first = (candidate.turn, candidate.turn.job);
    core::iter::successors(Some(first), move |(place, job)| state.next_alike(of, *place, *job))
        .map(|(_, job)| job)
}
