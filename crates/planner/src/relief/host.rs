//! One host: what the gangs on it hold there, and the cheapest of them without which workers fit.

use alloc::vec::Vec;
use muster_state::{Free, NodeRow};
use muster_types::{DeviceAmount, DeviceSet, JobId, WorkerRequest};

use super::harm::{PreemptionCost, order};
use crate::terms::Spare;

/// Steps of the exact search on one host. Eight gangs of like size take fewer than a hundred; beyond it the
/// best that was found counts.
const STEPS_MAX: u32 = 512;

/// What a gang that may be preempted holds on a host.
#[derive(Clone, Debug)]
pub(super) struct Held<'a> {
    pub(super) job: JobId,
    pub(super) harm: PreemptionCost,
    pub(super) slots: Vec<(&'a WorkerRequest, DeviceSet)>,
}

/// A host that is open to the claimant.
#[derive(Clone, Debug)]
pub(super) struct Host<'a> {
    pub(super) row: &'a NodeRow,
    /// What the claimant may have of it at most; none when nothing is kept from it.
    pub(super) spare: Option<Spare>,
    /// Gangs that may be preempted, least harm first.
    pub(super) gangs: Vec<Held<'a>>,
}

/// Workers of the claimant on one host, by request.
pub(super) type Workers<'a> = [(&'a WorkerRequest, u32)];

impl<'a> Host<'a> {
    /// What nobody would hold without these gangs.
    pub(super) fn free_without(&self, is_gone: impl Fn(JobId) -> bool) -> Free {
        let mut free = self.row.free.clone();
        for gang in self.gangs.iter().filter(|gang| is_gone(gang.job)) {
            give(&mut free, gang);
        }
        free
    }

    /// How many workers fit into what nobody holds, up to a number.
    pub(super) fn workers(&self, free: &Free, request: &WorkerRequest, most: u32) -> u32 {
        let mut workers = free.workers(request).min(most);
        while workers > 0 && !self.holds(free, &[(request, workers)]) {
            workers -= 1;
        }
        workers
    }

    /// Whether the workers fit into what nobody holds, less what is promised and kept for others.
    pub(super) fn holds(&self, free: &Free, workers: &Workers<'_>) -> bool {
        let mut offer = free.clone();
        if !self.row.promised.is_empty() {
            offer = offer.without_promised(&self.row.promised);
        }
        if !self.row.restricted.takes_nothing() {
            offer = offer.without(&self.row.restricted);
        }
        if let [(request, count)] = workers
            && offer.workers(request) < *count
        {
            return false;
        }
        let (mut spare, mut shared) = (self.spare, DeviceSet::EMPTY);
        for (request, count) in workers {
            let is_share =
                matches!(request.accelerators.as_ref().map(|a| a.amount), Some(DeviceAmount::Share(_)));
            for _ in 0..*count {
                let Some(devices) = offer.pick(request) else { return false };
                if let Some(spare) = &mut spare
                    && !spare.take(request, devices, shared)
                {
                    return false;
                }
                offer.take(request, devices);
                if is_share {
                    shared = shared.union(devices);
                }
            }
        }
        true
    }

    /// The cheapest gangs without which the workers fit, in addition to those that stop anyway; none when
    /// there are no such gangs below a limit. With the steps that it took.
    pub(super) fn cheapest(
        &self,
        workers: &Workers<'_>,
        stops: impl Fn(JobId) -> bool,
        limit: Option<&PreemptionCost>,
    ) -> (Option<(PreemptionCost, Vec<JobId>)>, u32) {
        let free = self.free_without(&stops);
        let asked: Vec<&Held<'a>> = self.gangs.iter().filter(|gang| !stops(gang.job)).collect();
        let mut search = Subsets {
            host: self,
            workers,
            asked,
            best: limit.map(|limit| (*limit, None)),
            chosen: Vec::new(),
            steps: 0,
        };
        search.run(&free);
        let steps = search.steps;
        (search.best.and_then(|(harm, chosen)| Some((harm, chosen?))), steps)
    }
}

fn give(free: &mut Free, gang: &Held<'_>) {
    for (request, devices) in &gang.slots {
        free.give(request, *devices);
    }
}

/// A search through the sets of gangs on one host.
struct Subsets<'s, 'a> {
    host: &'s Host<'a>,
    workers: &'s Workers<'s>,
    /// Least harm first.
    asked: Vec<&'s Held<'a>>,
    /// The least harm that is known to do, or the limit that it has to stay below.
    best: Option<(PreemptionCost, Option<Vec<JobId>>)>,
    chosen: Vec<usize>,
    steps: u32,
}

impl Subsets<'_, '_> {
    fn run(&mut self, free: &Free) {
        if self.fits(free) {
            self.keep(PreemptionCost::default());
            return;
        }
        let all = (0..self.asked.len()).fold(free.clone(), |free, at| self.with(free, at));
        if !self.fits(&all) {
            return;
        }
        self.greedy(free);
        self.descend(free, 0, PreemptionCost::default());
    }

    fn with(&self, mut free: Free, at: usize) -> Free {
        give(&mut free, self.asked[at]);
        free
    }

    fn fits(&mut self, free: &Free) -> bool {
        self.steps += 1;
        self.host.holds(free, self.workers)
    }

    fn is_better(&self, harm: &PreemptionCost) -> bool {
        self.best.as_ref().is_none_or(|(best, _)| harm < best)
    }

    fn keep(&mut self, harm: PreemptionCost) {
        if self.is_better(&harm) {
            let jobs = self.chosen.iter().map(|at| self.asked[*at].job).collect();
            self.best = Some((harm, Some(jobs)));
        }
    }

    /// One gang after another until the workers fit, then without those that are not needed: something to
    /// beat.
    fn greedy(&mut self, free: &Free) {
        let (mut taken, mut sum) = (Vec::new(), free.clone());
        for at in 0..self.asked.len() {
            taken.push(at);
            sum = self.with(sum, at);
            if self.fits(&sum) {
                break;
            }
        }
        for left_out in (0..taken.len()).rev() {
            let others = taken.iter().enumerate().filter(|(place, _)| *place != left_out);
            let without = others.fold(free.clone(), |free, (_, at)| self.with(free, *at));
            if self.fits(&without) {
                taken.remove(left_out);
            }
        }
        let harm = taken.iter().fold(PreemptionCost::default(), |sum, at| sum.plus(&self.asked[*at].harm));
        self.chosen = taken;
        self.keep(harm);
        self.chosen = Vec::new();
    }

    /// Every set of the gangs from `next` on that could be better than what is known.
    fn descend(&mut self, free: &Free, next: usize, harm: PreemptionCost) {
        if self.steps >= STEPS_MAX || next == self.asked.len() {
            return;
        }
        let with = harm.plus(&self.asked[next].harm);
        // Those behind it cost at least as much.
        if !self.is_better(&with) {
            return;
        }
        let taken = self.with(free.clone(), next);
        self.chosen.push(next);
        if self.fits(&taken) {
            self.keep(with);
        } else {
            self.descend(&taken, next + 1, with);
        }
        self.chosen.pop();
        let rest = (next + 1..self.asked.len()).fold(free.clone(), |free, at| self.with(free, at));
        if self.fits(&rest) {
            self.descend(free, next + 1, harm);
        }
    }
}

/// Least harm first.
pub(super) fn sort(gangs: &mut [Held<'_>]) {
    gangs.sort_by(|a, b| order((&a.harm, a.job), (&b.harm, b.job)));
}
