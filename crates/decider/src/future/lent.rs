//! What is kept for gangs within nominal until they can take the rest back.
//!
//! Policy stops nobody before its minimum run is over. A gang that needs what several borrowers hold would wait for
//! ever if what one of them leaves was lent again, to a gang whose minimum run then begins: some borrower would always
//! be too young. So what becomes free of the capacity that it will take back is kept from every gang that would borrow.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_planner::{Hold, Plan};
use muster_state::{Forecast, Free, State};
use muster_types::{JobId, JobSpec, LogTime, NodeId};

use super::Future;

/// Gangs that capacity is kept for in this way, at most.
const GANGS_MAX: usize = 64;

/// How long it is kept beyond the minimum runs that it waits for: by then the next search for capacity has come.
const SLACK_MS: u64 = 30_000;

/// Capacity that is kept, by the gang that waits for it, with the time until which it is kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Lent {
    kept: BTreeMap<JobId, (LogTime, Vec<(NodeId, Hold)>)>,
    /// Whose turn it is, and whether that is offered nominal quota alone.
    turn: Option<(JobId, bool)>,
}

impl Lent {
    /// Sets whose turn it is; whether that may change what is kept from it.
    pub(super) fn set_turn(&mut self, job: JobId, within_nominal: bool) -> bool {
        self.turn = Some((job, within_nominal));
        !self.kept.is_empty()
    }

    /// What is kept from the gang whose turn it is: nothing that is its own, and nothing at all while it is offered
    /// nominal quota alone.
    pub(super) fn holds(&self) -> impl Iterator<Item = &(NodeId, Hold)> {
        let is_kept = |job: &JobId| self.turn.is_none_or(|(turn, within)| !within && turn != *job);
        self.kept.iter().filter(move |(job, _)| is_kept(job)).flat_map(|(_, (_, holds))| holds)
    }

    /// Leaves those that still wait.
    pub(super) fn retain(&mut self, state: &State, now: LogTime) {
        let waits =
            |job: &JobId| state.job(*job).is_some_and(|row| row.is_in_line() && !row.cancel_requested);
        self.kept.retain(|job, (until, _)| now <= *until && waits(job));
    }

    /// Gives up what is kept for some; whether there was anything.
    pub(super) fn give_up(&mut self, is_given_up: impl Fn(JobId) -> bool) -> bool {
        let before = self.kept.len();
        self.kept.retain(|job, _| !is_given_up(*job));
        self.kept.len() < before
    }

    /// Whether anything is kept for a gang.
    pub(super) fn is_for(&self, job: JobId) -> bool {
        self.kept.contains_key(&job)
    }

    /// A gang has its place.
    pub(super) fn forget(&mut self, job: JobId) {
        self.kept.remove(&job);
    }
}

/// Capacity that there will be once gangs that may be preempted for the claimant have run for the policy's minimum.
pub(crate) struct LaterCapacity {
    /// The state without them.
    pub(crate) forecast: Forecast,
    /// Where the claimant would go.
    pub(crate) plan: Plan,
    /// When the last of these gangs has run for that minimum.
    pub(crate) at: LogTime,
}

impl Future {
    /// Nobody has the turn any more: what is kept is kept from everybody.
    pub(crate) fn end_turns(&mut self) {
        self.lent.turn = None;
        self.holds = None;
    }

    /// Keeps capacity for a gang within nominal until it can take all of it back.
    pub(crate) fn keep_back(&mut self, job: JobId, spec: &JobSpec, later: &LaterCapacity) {
        if self.lent.kept.len() >= GANGS_MAX && !self.lent.kept.contains_key(&job) {
            return;
        }
        let holds = left_beside(&later.forecast, spec, &later.plan, self.now);
        self.lent.kept.insert(job, (later.at.plus_ms(SLACK_MS), holds));
        self.holds = None;
    }
}

/// What a plan leaves of its nodes to others from now on, in the state that it was made for.
pub(super) fn left_beside(
    forecast: &State,
    spec: &JobSpec,
    plan: &Plan,
    now: LogTime,
) -> Vec<(NodeId, Hold)> {
    let mut left: BTreeMap<NodeId, Free> = BTreeMap::new();
    for (rank, slot) in plan.workers.iter().enumerate() {
        let group = spec.group_of_slot(rank as u32, plan.workers.len());
        let (Some(node), Some(group)) = (forecast.node(slot.node), group) else { continue };
        let free = left.entry(slot.node).or_insert_with(|| node.offer().into_owned());
        free.take(&group.request, slot.devices);
    }
    let hold = |free: Free| {
        let shared = u16::try_from(free.shares.len()).unwrap_or(u16::MAX);
        Hold {
            from: now,
            spare_devices: free.devices.count().saturating_add(shared),
            spare_cpu_milli: free.cpu_milli,
            spare_memory_bytes: free.memory_bytes,
            spare_scratch_bytes: free.scratch_bytes,
        }
    };
    left.into_iter().map(|(node, free)| (node, hold(free))).collect()
}
