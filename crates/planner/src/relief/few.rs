//! Few gangs on the hosts of a place: every set of them that could cost less than what is known.
//!
//! Host by host the cheapest gangs of each host are found, and not always the cheapest of all: a gang in whose
//! place two workers fit may cost more for the first than others do, and less than they do for both. Where few gangs could
//! do better than what was found, their sets are searched.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use muster_types::{JobId, NodeId, WorkerRequest};

use super::harm::{Harm, order};
use super::host::Host;
use super::{STEPS_PER_VISIT, Search, Trial};
use crate::Spent;

/// Gangs of which every set is tried.
const GANGS_MAX: usize = 24;

/// Hosts that are counted in the search; beyond it the best that was found counts.
const STEPS_MAX: u32 = 4_096;

/// What the search came to.
pub(super) struct Cheapest {
    /// A set that costs less than what was known.
    pub(super) better: Option<(Harm, Vec<JobId>)>,
    /// Whether there is none that costs still less.
    pub(super) is_exact: bool,
}

impl<'a> Search<'a, '_> {
    /// The cheapest set of gangs without which the claimant's only group fits on these hosts, if it costs less than a
    /// trial does; none when too many gangs cost less each for a search of their sets.
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

/// What is decided of a gang on the way through the sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Open,
    Stops,
    GoesOn,
}

struct Gang {
    job: JobId,
    harm: Harm,
    /// Those of the place that it is on.
    hosts: BTreeSet<NodeId>,
    part: Part,
}

/// Workers of the claimant that fit.
#[derive(Clone, Copy, Debug, Default)]
struct Fitting {
    /// Without the gangs that stop.
    now: u64,
    /// Without all but those that go on.
    most: u64,
}

struct Sets<'s, 'a> {
    hosts: BTreeMap<NodeId, &'s Host<'a>>,
    /// Least harm first.
    gangs: Vec<Gang>,
    places: BTreeMap<JobId, usize>,
    request: &'s WorkerRequest,
    /// Most workers on one host.
    workers_max: u32,
    wanted: u64,
    fitting: BTreeMap<NodeId, Fitting>,
    sums: Fitting,
    limit: Harm,
    best: Option<(Harm, Vec<JobId>)>,
    steps: u32,
}

impl Sets<'_, '_> {
    fn run(&mut self) {
        let nodes: BTreeSet<NodeId> = self.hosts.keys().copied().collect();
        // That much is counted whatever comes of it.
        self.count(&nodes);
        if self.sums.now < self.wanted && self.sums.most >= self.wanted {
            self.descend(0, Harm::default());
        }
    }

    /// Every set of the gangs from `next` on, with those that stop already, that could cost less than what is known.
    fn descend(&mut self, next: usize, harm: Harm) {
        if self.steps >= STEPS_MAX || next == self.gangs.len() {
            return;
        }
        let with = harm.plus(&self.gangs[next].harm);
        // Those behind it cost at least as much.
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

    /// Counts the workers that fit on some hosts again.
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
