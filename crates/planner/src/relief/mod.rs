//! Who would have to stop so that a gang fits: the cheapest set of gangs for each place that could take it,
//! and the cheapest of these places.
//!
//! A place is a host, or for a gang with a required level the rack or the block, or for a slice of TPUs its
//! cubes or its box. On one host the cheapest set is found exactly ([`host`]). Over several hosts the host
//! goes first that costs least for each worker; a gang that runs on several of them is paid for once. In the end
//! everybody is let go on without whom the workers fit as well. Where few gangs could do better than that, all their
//! sets are searched ([`few`]); where many could, those in whose place several workers fit are tried as the
//! first to stop.
//!
//! Which gangs may be asked and what that costs is the caller's to say: nothing here knows a tenant. Hosts are
//! looked at from the emptiest on; once [`HOSTS_ENOUGH`] were looked at and the gang would fit, the best of
//! what was found is taken, unless it is a last resort.
//!
//! **Invariant:** proposes only. Whether the gang fits is for [`crate::plan`] to say, in the state without them.

mod few;
mod harm;
mod host;
mod slices;

use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap};
use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};
use muster_state::{FreeKey, PoolKey, RackKey, State};
use muster_types::{DeviceSet, JobId, JobSpec, Level, LogTime, Name, NodeId, Segment, WorkerRequest};

pub use harm::{HARM_RANKS, PreemptionCost};
use harm::{PerWorker, order};
use host::{Held, Host};

use crate::fill::{Scope, closed_to, racks_of};
use crate::sites::{self, Site};
use crate::terms::{ClosedPlaces, Terms};
use crate::{Budget, Spent};

/// Hosts after which no more are looked at for a gang that would fit on what was found.
pub const HOSTS_ENOUGH: usize = 1_024;

/// Hosts up to which one budget is enough for a search, whatever runs on them.
const HOSTS_OF_A_PASS: usize = 8_192;

/// How long searches over more hosts begin at the same one.
const TURN_MS: u64 = 10_000;

/// Ways that are proposed: one that is cheap may still turn out not to do.
const WAYS_MAX: usize = 3;

/// Gangs in whose place several workers fit, of which each is tried as the first to stop.
const FIRST_TO_STOP_MAX: usize = 8;

/// Steps of the search on a host that cost one visit.
const STEPS_PER_VISIT: u32 = 8;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct ReliefQuestion<'a> {
    /// The state, in which some gangs may have been ended already.
    pub state: &'a State,
    /// Those.
    pub gone: &'a BTreeSet<JobId>,
    /// The gang that needs the capacity.
    pub spec: &'a JobSpec,
    /// What policy allows it.
    pub terms: &'a Terms<'a>,
    /// Hosts that are looked at; none for all. Only for a gang that goes on one host.
    pub only: Option<&'a BTreeSet<NodeId>>,
}

/// Gangs that could be preempted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relief {
    /// The region of the place.
    pub region: Name,
    /// Its cluster.
    pub cluster: Name,
    /// Who would stop, least harm first. None of them can be left out on the hosts that were looked for.
    pub stops: Vec<JobId>,
    /// What it costs.
    pub harm: PreemptionCost,
}

/// What looking came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReliefVerdict {
    /// The best ways, least harm first.
    Ways(Vec<Relief>),
    /// All that may be preempted together do not free enough capacity.
    NotEnough,
    /// The budget ran out before an answer.
    OutOfBudget,
}

/// Whether a gang needs one host and no more.
#[must_use]
pub fn needs_one_host(spec: &JobSpec) -> bool {
    spec.groups.iter().all(|group| group.slice.is_none())
        && (spec.worker_count_min() == 1 || spec.topology.required == Some(Level::Host))
}

/// Who would have to stop so that a gang fits. `harm_of` says what it costs that a gang stops, and nothing of
/// one that may not be asked. Three quarters of the budget are spent on it at most: the rest is for planning.
#[must_use]
pub fn relief(
    question: ReliefQuestion<'_>,
    harm_of: &mut dyn FnMut(JobId) -> Option<PreemptionCost>,
    budget: &mut Budget,
) -> ReliefVerdict {
    let floor = budget.left() / 4;
    let pools = sites::pools(question.state, question.spec);
    let mut search = Search {
        question,
        harm_of,
        floor,
        budget,
        known: BTreeMap::new(),
        hosts: BTreeMap::new(),
        needs: question.spec.groups.iter().map(|group| group.request.clone()).collect(),
        end: LogTime(0),
        closed: ClosedPlaces::default(),
        ways: Vec::new(),
    };
    let mut is_spent = false;
    for cluster in sites::clusters(&pools) {
        for site in Site::of_cluster(cluster, question.spec) {
            is_spent |= search.look_at(&site).is_err();
        }
    }
    let ways: Vec<Relief> = core::mem::take(&mut search.ways);
    match (ways.is_empty(), is_spent) {
        (false, _) => ReliefVerdict::Ways(ways),
        (true, true) => ReliefVerdict::OutOfBudget,
        (true, false) => ReliefVerdict::NotEnough,
    }
}

/// A gang that was asked about.
struct Known<'a> {
    harm: PreemptionCost,
    /// What it holds, by host.
    by_node: BTreeMap<NodeId, Vec<(&'a WorkerRequest, DeviceSet)>>,
}

/// What has been decided so far of one way.
#[derive(Clone, Debug, Default)]
struct Trial {
    stopped: BTreeSet<JobId>,
    harm: PreemptionCost,
    /// Workers of the claimant, by host: group and number.
    taken: BTreeMap<NodeId, Vec<(usize, u32)>>,
}

impl Trial {
    fn workers_on(&self, node: NodeId) -> u32 {
        self.taken.get(&node).map_or(0, |taken| taken.iter().map(|(_, count)| count).sum())
    }

    fn take(&mut self, node: NodeId, group: usize, count: u32) {
        let taken = self.taken.entry(node).or_default();
        match taken.iter_mut().find(|(of, _)| *of == group) {
            Some((_, workers)) => *workers += count,
            None => taken.push((group, count)),
        }
    }
}

/// Workers that one host could take, and who would stop for it.
struct Offer {
    cost: PerWorker,
    /// Place of the host in the list.
    at: usize,
    version: u32,
    stops: Vec<JobId>,
}

impl Ord for Offer {
    fn cmp(&self, other: &Offer) -> Ordering {
        self.cost.compare(&other.cost).then(self.at.cmp(&other.at))
    }
}

impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Offer) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Offer {
    fn eq(&self, other: &Offer) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Offer {}

struct Search<'a, 'b> {
    question: ReliefQuestion<'a>,
    harm_of: &'b mut dyn FnMut(JobId) -> Option<PreemptionCost>,
    budget: &'b mut Budget,
    /// Visits that are not to be spent here.
    floor: u64,
    known: BTreeMap<JobId, Option<Known<'a>>>,
    /// Hosts of the site that were looked at; none for those that are not open to the claimant.
    hosts: BTreeMap<NodeId, Option<Host<'a>>>,
    /// By group: what a worker needs of its host. For a slice that is all devices.
    needs: Vec<WorkerRequest>,
    end: LogTime,
    closed: ClosedPlaces<'a>,
    /// Least harm first.
    ways: Vec<Relief>,
}

impl<'a> Search<'a, '_> {
    fn spend(&mut self, visits: u64) -> Result<(), Spent> {
        for _ in 0..visits {
            if self.budget.left() <= self.floor || !self.budget.visit() {
                return Err(Spent);
            }
        }
        Ok(())
    }

    /// All ways at one site.
    fn look_at(&mut self, site: &Site<'a>) -> Result<(), Spent> {
        self.spend(1)?;
        let spec = self.question.spec;
        let terms = self.question.terms;
        if !self.has_quota(site) || terms.excludes_cluster(site.region, site.cluster) {
            return Ok(());
        }
        self.hosts.clear();
        self.end = terms.end(spec, site.slowest_milli);
        self.closed = closed_to(terms, self.end, site.region, site.cluster);
        if needs_one_host(spec) {
            return self.on_one_host(site);
        }
        match spec.topology.required {
            None | Some(Level::Host) => self.try_scope(site, Scope::Cluster),
            Some(level) => {
                for scope in domains(site, level, primary(spec)) {
                    self.try_scope(site, scope)?;
                }
                Ok(())
            }
        }
    }

    /// Whether quota leaves headroom for the workers that the gang needs at least.
    fn has_quota(&self, site: &Site<'a>) -> bool {
        let spec = self.question.spec;
        site.used_pools().all(|(key, _)| {
            let of_pool = spec
                .groups
                .iter()
                .zip(&site.pool_of)
                .filter(|(_, of)| of.is_some_and(|of| site.pools[of].0 == key));
            let milli: u64 =
                of_pool.map(|(group, _)| u64::from(group.workers_min) * group.request.device_milli()).sum();
            (self.question.terms.room_milli)(key) >= milli
        })
    }

    /// Each host on its own.
    fn on_one_host(&mut self, site: &Site<'a>) -> Result<(), Spent> {
        let spec = self.question.spec;
        let workers: Vec<(usize, u32)> =
            spec.groups.iter().enumerate().map(|(group, of)| (group, of.workers_min)).collect();
        let mut nodes = self.nodes(site, primary(spec), Scope::Cluster)?;
        if nodes.len() > HOSTS_OF_A_PASS {
            // More than one budget may be enough for: every while from elsewhere, so that all are looked at.
            let turn = usize::try_from(self.question.terms.now.0 / TURN_MS).unwrap_or(0);
            let from = turn.wrapping_mul(HOSTS_OF_A_PASS / 4) % nodes.len();
            nodes.rotate_left(from);
        }
        for (looked_at, node) in nodes.into_iter().enumerate() {
            let is_good = self.ways.first().is_some_and(|way| !way.harm.is_last_resort());
            if looked_at >= HOSTS_ENOUGH && is_good {
                break;
            }
            let limit = self.limit();
            let found = self.cheapest(node, &workers, &Trial::default(), limit.as_ref())?;
            if let Some((harm, stops)) = found {
                self.propose(site, harm, stops);
            }
        }
        Ok(())
    }

    /// What a way has to stay below to be among the best.
    fn limit(&self) -> Option<PreemptionCost> {
        self.ways.get(WAYS_MAX - 1).map(|way| way.harm)
    }

    fn propose(&mut self, site: &Site<'a>, harm: PreemptionCost, stops: Vec<JobId>) {
        let at = self.ways.partition_point(|way| way.harm <= harm);
        if stops.is_empty() || at >= WAYS_MAX {
            return;
        }
        let (region, cluster) = (site.region.clone(), site.cluster.clone());
        self.ways.insert(at, Relief { region, cluster, stops, harm });
        self.ways.truncate(WAYS_MAX);
    }

    /// The whole gang in one part of the cluster.
    fn try_scope(&mut self, site: &Site<'a>, scope: Scope<'a>) -> Result<(), Spent> {
        let Some(trial) = self.place_all(site, scope, Trial::default())? else { return Ok(()) };
        self.propose_trial(site, &trial);
        if self.question.spec.groups.iter().any(|group| group.slice.is_some()) {
            return Ok(());
        }
        if !self.is_split(scope) {
            let nodes = self.nodes(site, 0, scope)?;
            let found = self.cheapest_of_few(&nodes, &trial)?;
            if let Some((harm, stops)) = found.as_ref().and_then(|found| found.better.clone()) {
                self.propose(site, harm, stops);
            }
            if found.is_some_and(|found| found.is_exact) {
                return Ok(());
            }
        }
        for (harm, job) in self.first_to_stop(&trial) {
            let first = Trial { stopped: BTreeSet::from([job]), harm, ..Trial::default() };
            if let Some(trial) = self.place_all(site, scope, first)? {
                self.propose_trial(site, &trial);
            }
        }
        Ok(())
    }

    /// The cheapest placement that agrees with the hosts chosen so far, host by host; `None` when the gang does not fit.
    fn place_all(
        &mut self,
        site: &Site<'a>,
        scope: Scope<'a>,
        mut trial: Trial,
    ) -> Result<Option<Trial>, Spent> {
        let spec = self.question.spec;
        let mut groups: Vec<usize> = (0..spec.groups.len()).collect();
        // Workers without devices have more choice.
        groups.sort_by_key(|group| Reverse(spec.groups[*group].request.device_milli()));
        for group in groups {
            let placed = match &spec.groups[group].slice {
                Some(slice) => self.place_slices(site, &mut trial, group, slice, scope)?,
                None => {
                    let count = spec.groups[group].workers_min;
                    self.place_workers(site, &mut trial, (group, count), scope)?
                }
            };
            if !placed {
                return Ok(None);
            }
        }
        self.leave_out(&mut trial)?;
        Ok(Some(trial))
    }

    fn propose_trial(&mut self, site: &Site<'a>, trial: &Trial) {
        let mut stops: Vec<(PreemptionCost, JobId)> =
            trial.stopped.iter().map(|job| (self.harm(*job), *job)).collect();
        stops.sort_by(|a, b| order((&a.0, a.1), (&b.0, b.1)));
        let stops: Vec<JobId> = stops.into_iter().map(|(_, job)| job).collect();
        // Another beginning may lead to the same end.
        if self.ways.iter().all(|way| way.stops != stops) {
            self.propose(site, trial.harm, stops);
        }
    }

    /// Gangs that could do better than a trial, those with the least harm first. One in whose place several
    /// workers fit may cost more for each host, or for the first worker, than others there do, so host by host it is never
    /// asked, and for all of them it may cost less.
    fn first_to_stop(&self, trial: &Trial) -> Vec<(PreemptionCost, JobId)> {
        let mut found: Vec<(PreemptionCost, JobId)> = Vec::new();
        for (job, known) in &self.known {
            if let Some(known) = known
                && known.harm < trial.harm
                && !trial.stopped.contains(job)
                && self.may_give_way_to_several(known)
            {
                found.push((known.harm, *job));
            }
        }
        found.sort_by(|a, b| order((&a.0, a.1), (&b.0, b.1)));
        found.truncate(FIRST_TO_STOP_MAX);
        found
    }

    /// Whether a gang is on several of the hosts, or holds more devices of one than a worker needs.
    fn may_give_way_to_several(&self, known: &Known<'_>) -> bool {
        let worker = self.needs.iter().map(WorkerRequest::device_count).filter(|count| *count > 0).min();
        let here = known.by_node.iter().filter(|(node, _)| self.hosts.contains_key(*node));
        let devices = here.map(|(_, slots)| {
            slots.iter().fold(DeviceSet::EMPTY, |sum, (_, devices)| sum.union(*devices)).count()
        });
        let (mut hosts, mut most) = (0, 0);
        for count in devices {
            hosts += 1;
            most = most.max(count);
        }
        hosts > 1 || worker.is_some_and(|worker| most > worker)
    }

    /// Whether workers go to a part of the cluster in segments.
    fn is_split(&self, scope: Scope<'_>) -> bool {
        self.next_segment(scope).is_some() || self.unit_of_hosts(scope) > 1
    }

    /// The outermost segments that lie in racks or blocks inside a part of the cluster.
    fn next_segment(&self, scope: Scope<'_>) -> Option<Segment> {
        let spec = self.question.spec;
        let is_inside = |level: Level| match scope {
            Scope::Cluster => level < Level::Host,
            Scope::Block(_) => level == Level::Rack,
            Scope::Rack(_) | Scope::Node(_) => false,
        };
        let mut segments = spec.topology.all_segments().filter(|_| spec.groups.len() == 1);
        segments.find(|segment| is_inside(segment.level))
    }

    /// The number whose multiples are the numbers of workers that a host of a part of the cluster may have.
    fn unit_of_hosts(&self, scope: Scope<'_>) -> u32 {
        let spec = self.question.spec;
        let is_split = spec.groups.len() == 1 && !matches!(scope, Scope::Node(_));
        if is_split { spec.topology.unit_in(Level::Host) } else { 1 }
    }

    /// How many workers a host may have at most, however many fit.
    fn workers_on_one_host_max(&self) -> u32 {
        let spread = self.question.spec.topology.spread.filter(|spread| spread.level == Level::Host);
        spread.map_or(u32::MAX, |spread| spread.workers_max)
    }

    /// Workers of one group, segment by segment where there are segments.
    fn place_workers(
        &mut self,
        site: &Site<'a>,
        trial: &mut Trial,
        (group, count): (usize, u32),
        scope: Scope<'a>,
    ) -> Result<bool, Spent> {
        let Some(segment) = self.next_segment(scope) else {
            let (nodes, unit) = (self.nodes(site, group, scope)?, self.unit_of_hosts(scope));
            return self.fill(trial, (group, count.next_multiple_of(unit)), unit, &nodes);
        };
        let places = domains(site, segment.level, group);
        // Every rack is listed for them, for each segment outside of these again.
        let racks: u64 = site.pools_of_group(group).iter().map(|(_, pool)| pool.racks.size() as u64).sum();
        self.spend(1 + racks / u64::from(STEPS_PER_VISIT))?;
        for _ in 0..count.div_ceil(segment.workers.max(1)) {
            let mut best: Option<Trial> = None;
            self.spend(places.len() as u64 / u64::from(STEPS_PER_VISIT))?;
            for domain in places.iter().filter(|domain| is_inside(domain, scope)) {
                let mut tried = trial.clone();
                if self.place_workers(site, &mut tried, (group, segment.workers), *domain)?
                    && best.as_ref().is_none_or(|best| tried.harm < best.harm)
                {
                    best = Some(tried);
                }
            }
            let Some(best) = best else { return Ok(false) };
            *trial = best;
        }
        Ok(true)
    }

    /// `count` workers of one group on some of these hosts, those that cost least for each worker first, and on each a
    /// multiple of `unit`.
    fn fill(
        &mut self,
        trial: &mut Trial,
        (group, count): (usize, u32),
        unit: u32,
        nodes: &[NodeId],
    ) -> Result<bool, Spent> {
        let mut rest = count;
        let mut offers: BinaryHeap<Reverse<Offer>> = BinaryHeap::new();
        let mut versions: Vec<u32> = alloc::vec![0; nodes.len()];
        let mut capacity: u64 = 0;
        let mut places: BTreeMap<NodeId, usize> = BTreeMap::new();
        for (at, node) in nodes.iter().enumerate() {
            // Several times as many as are needed, so that there is a choice.
            if at >= HOSTS_ENOUGH && capacity >= 4 * u64::from(count) {
                break;
            }
            places.insert(*node, at);
            capacity += u64::from(self.offer(trial, group, (rest, unit), (at, *node, 0), &mut offers)?);
        }
        while rest > 0 {
            let Some(Reverse(offer)) = offers.pop() else { return Ok(false) };
            let (at, node) = (offer.at, nodes[offer.at]);
            if offer.version != versions[at] {
                continue;
            }
            let mut changed: BTreeSet<usize> = BTreeSet::from([at]);
            if offer.cost.workers <= rest {
                rest -= offer.cost.workers;
                trial.take(node, group, offer.cost.workers);
                for job in offer.stops {
                    trial.harm = trial.harm.plus(&self.harm(job));
                    trial.stopped.insert(job);
                    changed.extend(self.nodes_of(job).filter_map(|node| places.get(&node)));
                }
            }
            for at in changed {
                versions[at] += 1;
                self.offer(trial, group, (rest, unit), (at, nodes[at], versions[at]), &mut offers)?;
            }
        }
        Ok(true)
    }

    /// What a host could take of a group for the least harm: one worker, or as many as go together, and as many as it can.
    /// Returns how many it could take without the last resort.
    fn offer(
        &mut self,
        trial: &Trial,
        group: usize,
        (rest, unit): (u32, u32),
        (at, node, version): (usize, NodeId, u32),
        offers: &mut BinaryHeap<Reverse<Offer>>,
    ) -> Result<u32, Spent> {
        let most = self.most_workers(node, group, rest, trial)? / unit * unit;
        let mut good = 0;
        let mut numbers = alloc::vec![unit, most];
        numbers.dedup();
        for workers in numbers.into_iter().filter(|workers| (1..=most).contains(workers)) {
            if let Some((harm, stops)) = self.cheapest(node, &[(group, workers)], trial, None)? {
                if !harm.is_last_resort() {
                    good = workers;
                }
                let cost = PerWorker { harm, workers };
                offers.push(Reverse(Offer { cost, at, version, stops }));
            }
        }
        Ok(good)
    }

    /// The most workers of a group that a host could take in addition to those it has, at most `rest`.
    fn most_workers(&mut self, node: NodeId, group: usize, rest: u32, trial: &Trial) -> Result<u32, Spent> {
        let by_spread = self.workers_on_one_host_max().saturating_sub(trial.workers_on(node));
        if !self.look(node)? {
            return Ok(0);
        }
        let Some(Some(host)) = self.hosts.get(&node) else { return Ok(0) };
        let all = host.free_without(|_| true);
        let there = trial.taken.get(&node);
        let mut most = all.workers(&self.needs[group]).min(rest).min(by_spread);
        while most > 0 {
            let mut workers: Vec<(&WorkerRequest, u32)> = Vec::new();
            workers.extend(there.into_iter().flatten().map(|(group, count)| (&self.needs[*group], *count)));
            workers.push((&self.needs[group], most));
            if host.holds(&all, &workers) {
                break;
            }
            most -= 1;
        }
        Ok(most)
    }

    /// The cheapest gangs without which these workers fit on a host in addition to those it has.
    fn cheapest(
        &mut self,
        node: NodeId,
        more: &[(usize, u32)],
        trial: &Trial,
        limit: Option<&PreemptionCost>,
    ) -> Result<Option<(PreemptionCost, Vec<JobId>)>, Spent> {
        if !self.look(node)? {
            return Ok(None);
        }
        let Some(Some(host)) = self.hosts.get(&node) else { return Ok(None) };
        let there = trial.taken.get(&node).into_iter().flatten();
        let workers: Vec<(&WorkerRequest, u32)> =
            there.chain(more).map(|(group, count)| (&self.needs[*group], *count)).collect();
        let (found, steps) = host.cheapest(&workers, |job| trial.stopped.contains(&job), limit);
        self.spend(u64::from(steps / STEPS_PER_VISIT))?;
        Ok(found)
    }

    /// Those without whom it fits as well go on, who would lose most first.
    fn leave_out(&mut self, trial: &mut Trial) -> Result<(), Spent> {
        let mut asked: Vec<(PreemptionCost, JobId)> = Vec::new();
        for job in &trial.stopped {
            asked.push((self.harm(*job), *job));
        }
        asked.sort_by(|a, b| order((&b.0, b.1), (&a.0, a.1)));
        for (_, job) in asked {
            let nodes: Vec<NodeId> =
                self.nodes_of(job).filter(|node| trial.taken.contains_key(node)).collect();
            let mut is_needed = false;
            for node in nodes {
                self.spend(1)?;
                let Some(Some(host)) = self.hosts.get(&node) else { continue };
                let free = host.free_without(|other| other != job && trial.stopped.contains(&other));
                let workers: Vec<(&WorkerRequest, u32)> =
                    trial.taken[&node].iter().map(|(group, count)| (&self.needs[*group], *count)).collect();
                is_needed |= !host.holds(&free, &workers);
            }
            if !is_needed {
                trial.stopped.remove(&job);
            }
        }
        trial.harm =
            trial.stopped.iter().fold(PreemptionCost::default(), |sum, job| sum.plus(&self.harm(*job)));
        Ok(())
    }

    fn harm(&self, job: JobId) -> PreemptionCost {
        self.known.get(&job).and_then(Option::as_ref).map(|known| known.harm).unwrap_or_default()
    }

    fn nodes_of(&self, job: JobId) -> impl Iterator<Item = NodeId> {
        let known = self.known.get(&job).and_then(Option::as_ref);
        known.into_iter().flat_map(|known| known.by_node.keys().copied())
    }

    /// Looks at a host, once; whether it is open to the claimant.
    fn look(&mut self, node: NodeId) -> Result<bool, Spent> {
        if let Some(host) = self.hosts.get(&node) {
            return Ok(host.is_some());
        }
        self.spend(1)?;
        let question = self.question;
        let row = question.state.node(node).expect("an indexed node has a row");
        let is_open = row.is_placeable()
            && question.terms.allows(&row.spec, question.spec)
            && !self.closed.cover(question.state, &row.spec);
        if !is_open {
            self.hosts.insert(node, None);
            return Ok(false);
        }
        let mut gangs: Vec<Held<'a>> = Vec::new();
        let there: BTreeSet<JobId> =
            question.state.gangs_on(node).chain(question.state.spares_on(node)).collect();
        for job in there {
            self.ask(job)?;
            if let Some(Some(known)) = self.known.get(&job)
                && let Some(slots) = known.by_node.get(&node)
            {
                gangs.push(Held { job, harm: known.harm, slots: slots.clone() });
            }
        }
        host::sort(&mut gangs);
        let spare = question.terms.holds.spare(node, self.end);
        self.hosts.insert(node, Some(Host { row, spare, gangs }));
        Ok(true)
    }

    /// Asks whether a gang may be preempted, once.
    fn ask(&mut self, job: JobId) -> Result<(), Spent> {
        if self.known.contains_key(&job) {
            return Ok(());
        }
        self.spend(1)?;
        let question = self.question;
        let harm = if question.gone.contains(&job) { None } else { (self.harm_of)(job) };
        let found = harm.and_then(|harm| {
            let placement = question.state.job(job)?.placement.as_deref()?;
            let spec = question.state.spec(job)?;
            let mut by_node: BTreeMap<NodeId, Vec<(&'a WorkerRequest, DeviceSet)>> = BTreeMap::new();
            let ranks = placement.slots.iter().zip(&placement.ranks).enumerate();
            let live = ranks.filter(|(_, (_, rank))| !rank.is_over()).map(|(rank, (slot, _))| (rank, slot));
            let spares = question.state.spares(job).iter().enumerate();
            let spares = spares.map(|(place, slot)| (spec.worker_count() as usize + place, slot));
            for (rank, slot) in live.chain(spares) {
                let group = spec.group_of_slot(u32::try_from(rank).ok()?, placement.slots.len())?;
                by_node.entry(slot.node).or_default().push((&group.request, slot.devices));
            }
            Some(Known { harm, by_node })
        });
        let hosts = found.as_ref().map_or(0, |known| known.by_node.len() as u64);
        self.known.insert(job, found);
        self.spend(hosts / u64::from(STEPS_PER_VISIT))
    }

    /// Hosts of a part of the cluster that workers of a group may be on, the emptiest first.
    fn nodes(&mut self, site: &Site<'a>, group: usize, scope: Scope<'a>) -> Result<Vec<NodeId>, Spent> {
        let mut found: Vec<NodeId> = Vec::new();
        let state = self.question.state;
        // Where other jobs decide which hosts are the only ones, the others need no look.
        let by_others = self.closed.only_hosts(site.region, site.cluster);
        let by_others: Option<BTreeSet<NodeId>> =
            by_others.map(|names| names.into_iter().filter_map(|name| state.node_named(name)).collect());
        let only = self.question.only.or(by_others.as_ref());
        if let (Some(only), true) = (only, matches!(scope, Scope::Cluster)) {
            let pools = site.pools_of_group(group);
            let mut by_free: Vec<(FreeKey, NodeId)> = Vec::new();
            for node in only {
                let Some(row) = state.node(*node).filter(|row| row.is_placeable()) else { continue };
                let pool = PoolKey::of(&row.spec);
                if pools.iter().any(|(key, _)| **key == pool) {
                    by_free.push((row.offer().key(), *node));
                }
            }
            self.spend(only.len() as u64 / u64::from(STEPS_PER_VISIT))?;
            by_free.sort_unstable();
            found.extend(by_free.into_iter().rev().map(|(_, node)| node));
            return Ok(found);
        }
        for (_, pool) in site.pools_of_group(group) {
            match scope {
                Scope::Cluster => found.extend(pool.by_free.iter().map(|(_, node)| *node)),
                Scope::Block(block) => {
                    for (_, rack) in racks_of(pool, block) {
                        found.extend(rack.by_idle.iter().map(|(_, node)| *node));
                    }
                }
                Scope::Rack(key) => {
                    let rack = pool.racks.get(key).into_iter();
                    found.extend(rack.flat_map(|rack| rack.by_idle.iter().map(|(_, node)| *node)));
                }
                Scope::Node(node) => found.push(node),
            }
        }
        found.reverse();
        self.spend(found.len() as u64 / u64::from(STEPS_PER_VISIT))?;
        Ok(found)
    }
}

/// The place of the group that says which pool's racks are looked at: the first with devices.
fn primary(spec: &JobSpec) -> usize {
    spec.groups.iter().position(|group| group.request.accelerators.is_some()).unwrap_or(0)
}

/// The domains of a level, those with the most idle devices first, then by name.
fn domains<'a>(site: &Site<'a>, level: Level, group: usize) -> Vec<Scope<'a>> {
    let mut blocks: BTreeMap<&'a Name, u64> = BTreeMap::new();
    let mut racks: BTreeMap<&'a RackKey, u64> = BTreeMap::new();
    for (_, pool) in site.pools_of_group(group) {
        for (key, rack) in pool.racks.iter() {
            *blocks.entry(&key.block).or_default() += rack.idle_devices;
            *racks.entry(key).or_default() += rack.idle_devices;
        }
    }
    let mut found: Vec<(u64, Scope<'a>)> = match level {
        Level::Block => blocks.into_iter().map(|(block, idle)| (idle, Scope::Block(block))).collect(),
        Level::Rack | Level::Host => racks.into_iter().map(|(key, idle)| (idle, Scope::Rack(key))).collect(),
    };
    // Stable, so that equals stay in the order of their names.
    found.sort_by_key(|(idle, _)| Reverse(*idle));
    found.into_iter().map(|(_, scope)| scope).collect()
}

fn is_inside(rack: &Scope<'_>, scope: Scope<'_>) -> bool {
    match (rack, scope) {
        (Scope::Rack(key), Scope::Block(block)) => key.block == *block,
        (Scope::Rack(key), Scope::Rack(other)) => *key == other,
        _ => true,
    }
}
