//! The line of waiting jobs.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use muster_state::usage::Capacity;
use muster_state::{GangClass, State, Turn};
use muster_types::{LogTime, Name, PriorityTier};

/// Whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The tier being served.
    pub tier: PriorityTier,
    /// Whose job.
    pub tenant: Name,
    /// The job and its place in the order.
    pub turn: Turn,
    /// What it asks for.
    pub class: GangClass,
}

/// A tenant's decayed share and those of the tenants above it, outermost first, each for its weight.
/// Siblings compare at the first level where they differ.
type SharePath = Vec<u64>;

/// Waiting jobs in the order in which they are offered capacity. Of jobs that ask for the same only the
/// first is in line, and the next steps up when that one was placed: a deep queue costs per request that
/// differs. The line holds its place between two calls, while the state goes on changing.
#[derive(Clone, Debug)]
pub struct Line {
    now: LogTime,
    capacity: Capacity,
    fair_share: bool,
    /// Index into [`PriorityTier::ALL`] of the tier being served, from the end.
    tier: usize,
    /// Whether only one tenant has jobs of the tier in line: then shares decide nothing.
    single: bool,
    /// Of the tier being served: the next of every tenant.
    next: BTreeMap<(SharePath, Turn, Name), GangClass>,
    /// Requests that have been found to wait: the rest of their class gets the same answer.
    waiting: BTreeSet<(PriorityTier, Name, GangClass)>,
}

impl Line {
    /// The line from its front.
    #[must_use]
    pub fn form(state: &State, now: LogTime) -> Line {
        let policy = &state.policy().policy;
        let mut line = Line {
            now,
            capacity: state.capacity(),
            fair_share: policy.order.fair_share,
            tier: PriorityTier::ALL.len(),
            single: false,
            next: BTreeMap::new(),
            waiting: BTreeSet::new(),
        };
        line.next_tier(state);
        line
    }

    /// Takes the first out of the line.
    pub fn take_next(&mut self, state: &State) -> Option<Candidate> {
        loop {
            if let Some(((_, turn, tenant), class)) = self.next.pop_first() {
                // It may have been cancelled or placed since it stepped up.
                if state.job(turn.job).is_none_or(|row| !row.is_in_line()) {
                    self.step_up(state, &tenant, turn);
                    continue;
                }
                return Some(Candidate { tier: self.served(), tenant, turn, class });
            }
            if self.tier == 0 {
                return None;
            }
            self.next_tier(state);
        }
    }

    /// The candidate was not served after all: it is the first again.
    pub fn put_back(&mut self, state: &State, candidate: Candidate) {
        let share = self.order_of(state, &candidate.tenant);
        self.next.insert((share, candidate.turn, candidate.tenant), candidate.class);
    }

    /// The candidate was placed: the tenant's next steps up, with the share that the tenant has now.
    pub fn placed(&mut self, state: &State, candidate: &Candidate) {
        self.step_up(state, &candidate.tenant, candidate.turn);
    }

    /// The candidate waits, and so does everyone of its tenant who asks for the same.
    pub fn waits(&mut self, state: &State, candidate: &Candidate) {
        self.waiting.insert((candidate.tier, candidate.tenant.clone(), candidate.class));
        self.step_up(state, &candidate.tenant, candidate.turn);
    }

    fn served(&self) -> PriorityTier {
        PriorityTier::ALL[self.tier]
    }

    fn next_tier(&mut self, state: &State) {
        while self.tier > 0 && self.next.is_empty() {
            self.tier -= 1;
            let tenants: Vec<Name> =
                state.tenants_in_line(self.served()).map(|(tenant, _)| tenant.clone()).collect();
            self.single = tenants.len() == 1;
            for tenant in tenants {
                self.join(state, tenant, None);
            }
        }
    }

    fn step_up(&mut self, state: &State, tenant: &Name, behind: Turn) {
        self.join(state, tenant.clone(), Some(behind));
    }

    /// The tenant's next behind a turn joins the line.
    fn join(&mut self, state: &State, tenant: Name, mut behind: Option<Turn>) {
        while let Some((turn, class)) = state.head_behind(self.served(), &tenant, behind) {
            if self.waiting.contains(&(self.served(), tenant.clone(), class)) {
                behind = Some(turn);
                continue;
            }
            let share = self.order_of(state, &tenant);
            self.next.insert((share, turn, tenant), class);
            return;
        }
    }

    fn order_of(&self, state: &State, tenant: &Name) -> SharePath {
        if !self.fair_share || self.single {
            return SharePath::new();
        }
        let policy = &state.policy().policy;
        let share = |name: &Name| {
            let usage = state.usage(name);
            usage.map_or(0, |usage| usage.share(self.now, &self.capacity, policy.weight_milli(name)))
        };
        let mut path: SharePath = policy.ancestry(tenant).map(share).collect();
        path.reverse();
        path
    }
}
