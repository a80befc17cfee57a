//! The cheapest sets of gangs whose preemption would do.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use muster_planner::{Budget, PreemptionCost, ReliefQuestion, ReliefVerdict, Terms, needs_one_host, relief};
use muster_policy::{Costing, has_victims};
use muster_state::{Forecast, PoolKey, State};
use muster_types::policy::QueuePreemption;
use muster_types::{JobId, Name, NodeId, PriorityTier, limits};

use crate::memory::searches::Look;
use crate::passes::claimant::{Claimant, Means, Spent};
use crate::passes::preemption::SPARED_ONE_BY_ONE_MAX;
use crate::rules::affinity::{self, KeptPart};
use crate::rules::terms::with_paid_terms;

/// Gangs that may be asked, up to which only their hosts are looked at.
const FEW_GANGS_MAX: usize = 128;

/// Parts of the fleet from which others keep the claimant away, of which each is tried in one search.
const PARTS_TRIED_MAX: usize = 16;
/// Of these, those in which it is looked for others to stop as well.
const PARTS_SEARCHED_MAX: usize = 4;
/// How long searches with more parts begin at the same one.
const PARTS_TURN_MS: u64 = 10_000;

/// Gangs that would stop together, and what that costs.
type Set = (PreemptionCost, Vec<JobId>);

/// Type and region of a quota that is short, and those who leave some of it, least harm first.
type Leavers = ((Name, Name), Vec<(PreemptionCost, JobId)>);

/// A part of the fleet that is open to the claimant once these gangs have stopped.
struct Part<'a> {
    part: KeptPart<'a>,
    set: Set,
}

/// A search for gangs to preempt.
pub(super) struct Ways<'s, 'a> {
    claimant: &'s Claimant<'a>,
    means: Means,
    /// Gangs that are not asked: they were found not to do.
    passed_over: &'s BTreeSet<JobId>,
    costing: Costing<'a>,
}

impl<'s, 'a> Ways<'s, 'a> {
    pub(super) fn new(
        claimant: &'s Claimant<'a>,
        means: Means,
        passed_over: &'s BTreeSet<JobId>,
    ) -> Ways<'s, 'a> {
        Ways { claimant, means, passed_over, costing: Costing::new(claimant.cover, claimant.now) }
    }

    /// The cheapest sets of gangs without whom the claimant would fit, least harm first.
    pub(super) fn find(&self, budget: &mut Budget) -> Result<Vec<Vec<JobId>>, Spent> {
        let state = self.claimant.state;
        let mut found = self.on_hosts(state, &BTreeSet::new(), None, true, &|job| self.harm(job), budget)?;
        if found.is_empty() && state.has_quotas() && self.means != Means::Move {
            for pool in self.short_of_quota() {
                self.with_quota(&pool, &mut found, budget)?;
            }
        }
        // What was found without them is good whatever becomes of this.
        if self.with_parts(&mut found, budget).is_err() && found.is_empty() {
            return Err(Spent);
        }
        // Stable: of equals the host that was looked at first.
        found.sort_by_key(|(harm, _)| *harm);
        Ok(found.into_iter().map(|(_, stops)| stops).collect())
    }

    /// What the preemption of a gang costs; none when it may not be preempted.
    fn harm(&self, job: JobId) -> Option<PreemptionCost> {
        let may = self.claimant.may_ask(job, self.claimant.state.quota_usage(), self.means);
        if !may || self.passed_over.contains(&job) {
            return None;
        }
        let cost = self.costing.of(job)?;
        Some(PreemptionCost::new(cost.rank, cost.amount))
    }

    /// The cheapest sets by where they are, in a state in which some are gone already; on one host where that is the only one
    /// that is looked at.
    fn on_hosts(
        &self,
        state: &State,
        gone: &BTreeSet<JobId>,
        host: Option<NodeId>,
        heeds_quota: bool,
        harm_of: &dyn Fn(JobId) -> Option<PreemptionCost>,
        budget: &mut Budget,
    ) -> Result<Vec<Set>, Spent> {
        let Claimant { job, spec, row, now, holds, .. } = *self.claimant;
        let few = match (host, self.claimant.look) {
            (Some(host), _) => Some(BTreeSet::from([host])),
            (None, Look::Only(changed)) => Some(changed.clone()),
            (None, Look::Everywhere | Look::Nowhere) => self.few_hosts(),
        };
        let verdict = with_paid_terms(state, now, (job, spec, row), holds, budget, |terms, budget| {
            let no_limit = |_: &PoolKey| u64::MAX;
            let room_milli = if heeds_quota { terms.room_milli } else { &no_limit };
            let terms = Terms { room_milli, ..*terms };
            let question = ReliefQuestion { state, gone, spec, terms: &terms, only: few.as_ref() };
            relief(question, &mut |job| harm_of(job), budget)
        });
        match verdict {
            ReliefVerdict::Ways(ways) => Ok(ways.into_iter().map(|way| (way.harm, way.stops)).collect()),
            ReliefVerdict::NotEnough => Ok(Vec::new()),
            ReliefVerdict::OutOfBudget => Err(Spent),
        }
    }
}

impl Ways<'_, '_> {
    /// The hosts of everybody who may be asked, where these are few and the claimant needs one host: then the
    /// others are not looked at.
    fn few_hosts(&self) -> Option<BTreeSet<NodeId>> {
        let Claimant { state, spec, .. } = *self.claimant;
        let rules = &state.policy().policy.preemption;
        let evens_out = state.policy().policy.queue_preemption(&spec.tenant) == QueuePreemption::FairShare;
        let takes_back = (rules.reclaim_borrowed || evens_out) && state.has_quotas();
        let tier = match self.means {
            Means::Move => Some(spec.tier),
            Means::Stop | Means::StopLater if takes_back => None,
            Means::Stop | Means::StopLater => {
                PriorityTier::ALL.into_iter().rev().find(|tier| *tier < spec.tier)
            }
        };
        let tier = tier.filter(|_| needs_one_host(spec))?;
        let jobs: Vec<JobId> = state.preemptible(tier).take(FEW_GANGS_MAX + 1).collect();
        if jobs.len() > FEW_GANGS_MAX {
            return None;
        }
        let placements = jobs.iter().filter_map(|job| state.job(*job)?.placement.as_ref());
        Some(placements.flat_map(|placement| placement.slots.iter().map(|slot| slot.node)).collect())
    }
}

/// Where quota is short.
impl Ways<'_, '_> {
    /// Types and regions in which quota leaves less than the claimant needs.
    fn short_of_quota(&self) -> BTreeSet<(Name, Name)> {
        let Claimant { state, spec, .. } = *self.claimant;
        let mut found = BTreeSet::new();
        for (key, _) in state.pools() {
            let Some(kind) = &key.kind else { continue };
            let is_allowed = spec.regions.is_empty() || spec.regions.contains(&key.region);
            let pool = (kind.clone(), key.region.clone());
            if is_allowed && spec.least_milli_of(kind) > self.room_milli(state, &pool) {
                found.insert(pool);
            }
        }
        found
    }

    fn room_milli(&self, state: &State, (kind, region): &(Name, Name)) -> u64 {
        let capacity = |kind: &Name, region: Option<&Name>| state.registered_milli(kind, region);
        state.quota_usage().headroom(capacity, &self.claimant.spec.tenant, kind, region).total_milli()
    }

    /// Either those who leave quota are looked for on the hosts, or quota is made first and the hosts are
    /// looked for in what is left then: the one may stop fewer, the other those who lose less.
    fn with_quota(
        &self,
        pool: &(Name, Name),
        found: &mut Vec<Set>,
        budget: &mut Budget,
    ) -> Result<(), Spent> {
        let state = self.claimant.state;
        let leave = self.who_leave_quota(pool, budget)?;
        let of: BTreeMap<JobId, PreemptionCost> = leave.iter().map(|(harm, job)| (*job, *harm)).collect();
        let harm_of = |job: JobId| of.get(&job).copied();
        for (harm, stops) in self.on_hosts(state, &BTreeSet::new(), None, false, &harm_of, budget)? {
            let mut forecast = Forecast::new(state);
            stops.iter().for_each(|job| forecast.end(*job));
            if let Some(more) = self.make_quota(&mut forecast, pool, &leave, &stops) {
                found.push(joined((harm, stops), more));
            }
        }
        let mut forecast = Forecast::new(state);
        let Some(first) = self.make_quota(&mut forecast, pool, &leave, &[]) else { return Ok(()) };
        if self.claimant.plan_on(&forecast, budget)?.is_some() {
            found.push(first);
            return Ok(());
        }
        let gone: BTreeSet<JobId> = first.1.iter().copied().collect();
        for way in self.on_hosts(&forecast, &gone, None, true, &|job| self.harm(job), budget)? {
            found.push(joined(first.clone(), way));
        }
        Ok(())
    }

    /// Gangs whose end leaves the claimant more quota, least harm first.
    fn who_leave_quota(
        &self,
        pool: &(Name, Name),
        budget: &mut Budget,
    ) -> Result<Vec<(PreemptionCost, JobId)>, Spent> {
        let Claimant { state, spec, .. } = *self.claimant;
        if !has_victims(state, spec) {
            return Ok(Vec::new());
        }
        let before = self.room_milli(state, pool);
        // Whether it does is the same for all gangs of a tenant.
        let mut by_tenant: BTreeMap<Name, bool> = BTreeMap::new();
        let mut found = Vec::new();
        for job in state.active() {
            if !budget.visit() {
                return Err(Spent);
            }
            let charge = state.job(job).and_then(|row| row.charge());
            let is_of_pool = charge.is_some_and(|(region, charge)| {
                *region == pool.1 && charge.devices_milli.iter().any(|(kind, _)| *kind == pool.0)
            });
            let Some(tenant) = state.spec(job).map(|spec| &spec.tenant).filter(|_| is_of_pool) else {
                continue;
            };
            let Some(harm) = self.harm(job) else { continue };
            let leaves = match by_tenant.get(tenant) {
                Some(leaves) => *leaves,
                None => {
                    let mut forecast = Forecast::new(state);
                    forecast.end(job);
                    let leaves = self.room_milli(&forecast, pool) > before;
                    by_tenant.insert(tenant.clone(), leaves);
                    leaves
                }
            };
            if leaves {
                found.push((harm, job));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        Ok(found)
    }

    /// Ends gangs until quota is enough, those that lose least first; none when that is not to be had.
    fn make_quota(
        &self,
        forecast: &mut Forecast,
        pool: &(Name, Name),
        leave: &[(PreemptionCost, JobId)],
        ended: &[JobId],
    ) -> Option<Set> {
        let wanted = self.claimant.spec.least_milli_of(&pool.0);
        let mut set: Set = (PreemptionCost::default(), Vec::new());
        for (harm, job) in leave.iter().filter(|(_, job)| !ended.contains(job)) {
            if self.room_milli(forecast, pool) >= wanted {
                return Some(set);
            }
            if self.claimant.may_ask(*job, forecast.quota_usage(), self.means) {
                forecast.end(*job);
                set = (set.0.plus(harm), set.1);
                set.1.push(*job);
            }
        }
        (self.room_milli(forecast, pool) >= wanted).then_some(set)
    }
}

/// Where others keep the claimant away.
impl Ways<'_, '_> {
    /// Sets of which those stop first that keep the claimant away from a part of the fleet: who else has to is looked for in
    /// what is left then. A gang that does not fit into one such part may need several.
    fn with_parts(&self, found: &mut Vec<Set>, budget: &mut Budget) -> Result<(), Spent> {
        let Claimant { state, spec, .. } = *self.claimant;
        if !affinity::may_be_kept_away(state, spec) {
            return Ok(());
        }
        let parts = self.parts_to_open(budget)?;
        if parts.is_empty() {
            return Ok(());
        }
        let mut leavers: Vec<Leavers> = Vec::new();
        if state.has_quotas() && self.means != Means::Move {
            for pool in self.short_of_quota() {
                let who = self.who_leave_quota(&pool, budget)?;
                leavers.push((pool, who));
            }
        }
        for (at, part) in self.parts_of_turn(&parts).enumerate() {
            let best = found.iter().map(|(harm, _)| *harm).min();
            if best.is_none_or(|best| part.set.0 < best) {
                let is_searched = at < PARTS_SEARCHED_MAX;
                let host = part.part.host;
                self.try_without(&part.set.1, (host, is_searched), &leavers, found, budget)?;
            }
        }
        let mut several = 2;
        while found.is_empty() && !needs_one_host(spec) && several < 2 * parts.len() {
            self.try_several(&parts[..several.min(parts.len())], &leavers, found, budget)?;
            several *= 2;
        }
        Ok(())
    }

    /// Those of the parts that could be opened of which each has its turn now: the cheapest, and where there are many, others
    /// as time goes by.
    fn parts_of_turn<'p, 's>(&self, parts: &'p [Part<'s>]) -> impl Iterator<Item = &'p Part<'s>> {
        let first = parts.len().min(PARTS_TRIED_MAX / 2);
        let others = parts.len() - first;
        let turn = usize::try_from(self.claimant.now.0 / PARTS_TURN_MS).unwrap_or(0);
        let from = turn.wrapping_mul(PARTS_TRIED_MAX / 2) % others.max(1);
        let rest = parts[first..].iter().cycle().skip(from).take(others.min(PARTS_TRIED_MAX / 2));
        parts[..first].iter().chain(rest)
    }

    /// The parts of the fleet from which others keep the claimant away of whom each may stop, the cheapest first.
    fn parts_to_open(&self, budget: &mut Budget) -> Result<Vec<Part<'_>>, Spent> {
        let Claimant { state, job, spec, .. } = *self.claimant;
        let (parts, looked_at) = affinity::kept_parts(state, job, spec);
        budget.take(looked_at);
        let mut known: BTreeMap<JobId, Option<PreemptionCost>> = BTreeMap::new();
        let mut found: Vec<Part<'_>> = Vec::new();
        for part in parts {
            let mut set: Set = (PreemptionCost::default(), Vec::with_capacity(part.jobs.len()));
            for job in &part.jobs {
                if !budget.visit() {
                    return Err(Spent);
                }
                let Some(harm) = *known.entry(*job).or_insert_with(|| self.harm(*job)) else { break };
                set.0 = set.0.plus(&harm);
                set.1.push(*job);
            }
            // Where one of them may not stop, it stays closed.
            if !set.1.is_empty() && set.1.len() == part.jobs.len() {
                found.push(Part { part, set });
            }
        }
        // Stable: of equals in the order of the domains.
        found.sort_by_key(|part| part.set.0);
        Ok(found)
    }

    /// The state without these gangs, and without those that have to leave quota then; with who has stopped. None where quota
    /// is not to be had.
    fn without(&self, jobs: &[JobId], leavers: &[Leavers]) -> Option<(Forecast, Set)> {
        let mut set: Set = (PreemptionCost::default(), Vec::new());
        let mut forecast = Forecast::new(self.claimant.state);
        for job in jobs {
            // Asked again as the list goes on: what was taken back so far may have been all of it.
            if self.claimant.may_ask(*job, forecast.quota_usage(), self.means)
                && let Some(harm) = self.harm(*job)
            {
                forecast.end(*job);
                set.0 = set.0.plus(&harm);
                set.1.push(*job);
            }
        }
        for (pool, who) in leavers {
            let more = self.make_quota(&mut forecast, pool, who, &set.1)?;
            set = joined(set, more);
        }
        Some((forecast, set))
    }

    /// What there is for the claimant once these gangs have stopped: a place, or else, where that is searched, a place for which
    /// others stop as well.
    fn try_without(
        &self,
        jobs: &[JobId],
        (host, is_searched): (Option<NodeId>, bool),
        leavers: &[Leavers],
        found: &mut Vec<Set>,
        budget: &mut Budget,
    ) -> Result<(), Spent> {
        let Some((forecast, set)) = self.without(jobs, leavers) else { return Ok(()) };
        if self.claimant.plan_on(&forecast, budget)?.is_some() {
            found.push(set);
            return Ok(());
        }
        if !is_searched {
            return Ok(());
        }
        let gone: BTreeSet<JobId> = set.1.iter().copied().collect();
        let host = host.filter(|_| needs_one_host(self.claimant.spec));
        for way in self.on_hosts(&forecast, &gone, host, true, &|job| self.harm(job), budget)? {
            found.push(joined(set.clone(), way));
        }
        Ok(())
    }

    /// The same for several parts at once, of which those stay closed in which the claimant would have no worker. Others stop as
    /// well only where it can be tried without each of them.
    fn try_several(
        &self,
        parts: &[Part<'_>],
        leavers: &[Leavers],
        found: &mut Vec<Set>,
        budget: &mut Budget,
    ) -> Result<(), Spent> {
        let state = self.claimant.state;
        let all = jobs_of(parts.iter());
        let Some((forecast, _)) = self.without(&all, leavers) else { return Ok(()) };
        let Some(plan) = self.claimant.plan_on(&forecast, budget)? else {
            let is_searched = all.len() <= SPARED_ONE_BY_ONE_MAX;
            return if is_searched {
                self.try_without(&all, (None, true), leavers, found, budget)
            } else {
                Ok(())
            };
        };
        let nodes: BTreeSet<NodeId> = plan.workers.iter().map(|slot| slot.node).collect();
        let rows: Vec<_> = nodes.iter().filter_map(|node| state.node(*node)).collect();
        let is_used = |part: &&Part<'_>| rows.iter().any(|row| part.part.has(&row.spec));
        let used = jobs_of(parts.iter().filter(is_used));
        self.try_without(&used, (None, false), leavers, found, budget)
    }
}

/// Who stops for several parts, each once.
fn jobs_of<'p, 'a: 'p>(parts: impl Iterator<Item = &'p Part<'a>>) -> Vec<JobId> {
    let jobs: BTreeSet<JobId> = parts.flat_map(|part| part.set.1.iter().copied()).collect();
    jobs.into_iter().take(limits::REARRANGED_STOPS_MAX).collect()
}

fn joined((harm, mut stops): Set, (more, others): Set) -> Set {
    stops.extend(others);
    (harm.plus(&more), stops)
}
