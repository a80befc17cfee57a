//! An exact search for the cheapest victims on some hosts, for the case that few gangs come into question.
//!
//! The greedy search takes the cheapest gang of one host after the other and can miss the cheapest set: a gang that
//! frees space for two workers may cost more than another does for one worker, and less than two others together. Where
//! few gangs could be cheaper than what the greedy search found, this module tries all sets of them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use muster_types::{JobId, NodeId, WorkerRequest};

use super::harm::{PreemptionCost, order};
use super::host::Host;
use super::{STEPS_PER_VISIT, Search, Trial};
use crate::Spent;

/// The largest number of gangs whose sets are all tried.
const GANGS_MAX: usize = 24;

/// The largest number of hosts that a search counts. A search that reaches it returns the best set that it found.
const STEPS_MAX: u32 = 4_096;

/// The result of a search.
pub(super) struct Cheapest {
    /// The cheapest set that was found, when it costs less than the trial did.
    pub(super) better: Option<(PreemptionCost, Vec<JobId>)>,
    /// Whether all sets were tried, so that no other set costs less.
    pub(super) is_exact: bool,
}

impl<'a> Search<'a, '_> {
    /// Finds the cheapest set of gangs that leaves space on these hosts for the claimant's only group when it stops, if
    /// that set costs less than `trial`. Returns `None` when more than [`GANGS_MAX`] gangs cost less than `trial` each.
    pub(super) fn cheapest_of_few(
        &mut self,
        nodes: &[NodeId],
        trial: &Trial,
    ) -> Result<Option<Cheapest>, Spent> {
        let spec = self.question.spec;
        let [group] = spec.groups.as_slice() else { return Ok(None) };
        let hosts: BTreeMap<NodeId, &Host<'a>> =
            nodes.iter().filter_map(|node| Some((*node, self.hosts.get(node)?.as_ref()?))).collect();
        let mut gangs: Vec<Gang> = Vec::new();
        for (job, known) in &self.known {
            let Some(known) = known.as_ref().filter(|known| known.harm < trial.harm) else { continue };
            let there: BTreeSet<NodeId> =
                known.by_node.keys().copied().filter(|node| hosts.contains_key(node)).collect();
            if there.is_empty() {
                continue;
            }
            if gangs.len() == GANGS_MAX {
                return Ok(None);
            }
            gangs.push(Gang { job: *job, harm: known.harm, hosts: there, part: Part::Open });
        }
        gangs.sort_by(|a, b| order((&a.harm, a.job), (&b.harm, b.job)));
        let mut sets = Sets {
            places: gangs.iter().enumerate().map(|(at, gang)| (gang.job, at)).collect(),
            gangs,
            request: &self.needs[0],
            workers_max: group.workers_min.min(self.workers_on_one_host_max()),
            wanted: u64::from(group.workers_min),
            fitting: BTreeMap::new(),
            sums: Fitting::default(),
            limit: trial.harm,
            best: None,
            steps: 0,
            hosts,
        };
        sets.run();
        let (better, steps) = (sets.best, sets.steps);
        self.spend(u64::from(steps / STEPS_PER_VISIT))?;
        Ok(Some(Cheapest { better, is_exact: steps < STEPS_MAX }))
    }
}

/// What the present branch of the search has decided about a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Open,
    Stops,
    GoesOn,
}

struct Gang {
    job: JobId,
    harm: PreemptionCost,
    /// The hosts of the search on which it has workers.
    hosts: BTreeSet<NodeId>,
    part: Part,
}

/// How many workers of the claimant fit.
#[derive(Clone, Copy, Debug, Default)]
struct Fitting {
    /// Once the gangs that stop are gone.
    now: u64,
    /// Once every gang is gone that may still stop: an upper bound for this branch.
    most: u64,
}

struct Sets<'s, 'a> {
    hosts: BTreeMap<NodeId, &'s Host<'a>>,
    /// Ordered by the harm that stopping them does, the least first.
    gangs: Vec<Gang>,
    places: BTreeMap<JobId, usize>,
    request: &'s WorkerRequest,
    /// The largest number of workers on one host.
    workers_max: u32,
    wanted: u64,
    fitting: BTreeMap<NodeId, Fitting>,
    sums: Fitting,
    limit: PreemptionCost,
    best: Option<(PreemptionCost, Vec<JobId>)>,
    steps: u32,
}

impl Sets<'_, '_> {
    fn run(&mut self) {
        let nodes: BTreeSet<NodeId> = self.hosts.keys().copied().collect();
        // This first count is charged even when the search ends at once.
        self.count(&nodes);
        if self.sums.now < self.wanted && self.sums.most >= self.wanted {
            self.descend(0, PreemptionCost::default());
        }
    }

    /// Tries the sets of the gangs from `next` on, together with those that stop already. A branch that cannot cost less
    /// than the best set is left out.
    fn descend(&mut self, next: usize, harm: PreemptionCost) {
        if self.steps >= STEPS_MAX || next == self.gangs.len() {
            return;
        }
        let with = harm.plus(&self.gangs[next].harm);
        // The gangs after it cost at least as much.
        if with >= self.limit {
            return;
        }
        let hosts = self.gangs[next].hosts.clone();
        self.decide(next, Part::Stops, &hosts);
        if self.sums.now >= self.wanted {
            let stops = self.gangs.iter().filter(|gang| gang.part == Part::Stops);
            self.best = Some((with, stops.map(|gang| gang.job).collect()));
            self.limit = with;
        } else {
            self.descend(next + 1, with);
        }
        self.decide(next, Part::GoesOn, &hosts);
        if self.sums.most >= self.wanted {
            self.descend(next + 1, harm);
        }
        self.decide(next, Part::Open, &hosts);
    }

    fn decide(&mut self, gang: usize, part: Part, hosts: &BTreeSet<NodeId>) {
        self.gangs[gang].part = part;
        self.count(hosts);
    }

    /// Updates the numbers of workers that fit on some hosts.
    fn count(&mut self, nodes: &BTreeSet<NodeId>) {
        for node in nodes {
            let host = self.hosts[node];
            let part = |job: JobId| self.places.get(&job).map(|at| self.gangs[*at].part);
            let now = host.free_without(|job| part(job) == Some(Part::Stops));
            let most = host.free_without(|job| matches!(part(job), Some(Part::Stops | Part::Open)));
            let fitting = Fitting {
                now: u64::from(host.workers(&now, self.request, self.workers_max)),
                most: u64::from(host.workers(&most, self.request, self.workers_max)),
            };
            let before = self.fitting.insert(*node, fitting).unwrap_or_default();
            self.sums.now = self.sums.now + fitting.now - before.now;
            self.sums.most = self.sums.most + fitting.most - before.most;
            self.steps += 1;
        }
    }
}
