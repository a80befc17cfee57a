//! Who borrows and who may be stopped for whom, worked out from the rows of jobs and the policy alone.
//!
//! Written from what policy promises, by the simplest means there are: every question goes through all gangs
//! again. Worlds have one region, and a gang has one type of device.
//!
//! Gangs of a tenant and of all tenants below it are ranked: those that may not be preempted first, then those within
//! nominal one level below, then higher tiers, then who was placed earlier. In this order each is *within nominal* at
//! that tenant if it still fits into the tenant's nominal quota together with those that did. What a tenant with others
//! below it uses itself counts as a separate child next to them, whose nominal quota is what theirs leave.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use muster_state::{Phase, State};
use muster_types::policy::{Policy, QueuePreemption};
use muster_types::{JobId, JobSpec, LogTime, Name, PriorityTier};

/// A gang that is charged for devices.
#[derive(Clone, Debug)]
pub struct Gang {
    pub job: JobId,
    pub tenant: Name,
    pub tier: PriorityTier,
    pub preemptible: bool,
    /// The record that gave it its devices, or promised them.
    pub since: u64,
    pub kind: Name,
    pub milli: u64,
    /// When it will have run for longer than the p90 of its expected run time.
    pub overrun_at: Option<LogTime>,
}

/// A tenant with all below it, or its own work alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side<'a> {
    Subtree(&'a Name),
    Own(&'a Name),
}

type Known = BTreeMap<(Name, bool, Name), Rc<BTreeSet<JobId>>>;

#[derive(Clone, Debug)]
pub struct Book {
    policy: Arc<Policy>,
    pub gangs: Vec<Gang>,
    /// Of those that are to be stopped, who goes on with fewer workers: no more than that one alone is asked for its share then.
    pub resized: BTreeSet<JobId>,
    /// What was worked out so far: a tenant, whether all below it too, and a type.
    known: RefCell<Known>,
}

impl Book {
    pub fn of(state: &State) -> Book {
        let mut gangs = Vec::new();
        for (job, row) in state.jobs().iter() {
            let Some((_, charge)) = row.charge() else { continue };
            let spec = state.spec(*job).expect("a job has a spec");
            let placed = row.placement.as_ref().map(|placement| placement.token.log_index);
            let since = row.promise.as_ref().map(|promise| promise.since).or(placed);
            for (kind, milli) in &charge.devices_milli {
                gangs.push(Gang {
                    job: *job,
                    tenant: spec.tenant.clone(),
                    tier: spec.tier,
                    preemptible: spec.preemptible,
                    since: since.expect("who is charged was placed or promised").0,
                    kind: kind.clone(),
                    milli: *milli,
                    overrun_at: (row.phase == Phase::Running)
                        .then_some(row.started_at)
                        .flatten()
                        .map(|begun| begun.plus_ms(row.estimate.run_high_ms)),
                });
            }
        }
        let (policy, resized) = (Arc::clone(state.effective_policy()), BTreeSet::new());
        Book { policy, gangs, resized, known: RefCell::default() }
    }

    pub fn gang(&self, job: JobId) -> Option<&Gang> {
        self.gangs.iter().find(|gang| gang.job == job)
    }

    /// The tenant and those above it, itself first.
    pub fn path<'a>(&'a self, tenant: &'a Name) -> Vec<&'a Name> {
        self.policy.ancestry(tenant).collect()
    }

    fn children(&self, tenant: &Name) -> Vec<&Name> {
        let below = self.policy.tenants.iter();
        below.filter(|(_, policy)| policy.parent.as_ref() == Some(tenant)).map(|(name, _)| name).collect()
    }

    /// What a tenant is promised; one that states nothing has what those below it have together.
    pub fn nominal(&self, tenant: &Name, kind: &Name) -> Option<u64> {
        let stated = self.policy.tenants.get(tenant)?.quotas.iter().find(|quota| quota.kind == *kind);
        if let Some(quota) = stated {
            return Some(quota.nominal_milli);
        }
        let below: Vec<u64> =
            self.children(tenant).iter().filter_map(|child| self.nominal(child, kind)).collect();
        (!below.is_empty()).then(|| below.iter().sum())
    }

    pub fn nominal_of(&self, side: Side<'_>, kind: &Name) -> u64 {
        match side {
            Side::Subtree(tenant) => self.nominal(tenant, kind).unwrap_or(0),
            Side::Own(tenant) => {
                let children = self.children(tenant);
                let below: u64 = children.iter().filter_map(|child| self.nominal(child, kind)).sum();
                self.nominal(tenant, kind).unwrap_or(0).saturating_sub(below)
            }
        }
    }

    fn is_on(&self, side: Side<'_>, tenant: &Name) -> bool {
        match side {
            Side::Subtree(node) => self.path(tenant).contains(&node),
            Side::Own(node) => tenant == node,
        }
    }

    /// What a side uses.
    pub fn used(&self, side: Side<'_>, kind: &Name) -> u64 {
        let there = self.gangs.iter().filter(|gang| gang.kind == *kind && self.is_on(side, &gang.tenant));
        there.map(|gang| gang.milli).sum()
    }

    /// Gangs within nominal at a side.
    pub fn within(&self, side: Side<'_>, kind: &Name) -> Rc<BTreeSet<JobId>> {
        let key = match side {
            Side::Subtree(tenant) => (tenant.clone(), true, kind.clone()),
            Side::Own(tenant) => (tenant.clone(), false, kind.clone()),
        };
        if let Some(known) = self.known.borrow().get(&key) {
            return Rc::clone(known);
        }
        let found = Rc::new(self.rank(side, kind));
        self.known.borrow_mut().insert(key, Rc::clone(&found));
        found
    }

    fn rank(&self, side: Side<'_>, kind: &Name) -> BTreeSet<JobId> {
        let mut ranked: Vec<&Gang> =
            self.gangs.iter().filter(|gang| gang.kind == *kind && self.is_on(side, &gang.tenant)).collect();
        ranked.sort_by_key(|gang| {
            let borrows = self.borrows_below(side, kind, gang);
            (gang.preemptible, borrows, core::cmp::Reverse(gang.tier), gang.since, gang.job)
        });
        let mut left = self.nominal_of(side, kind);
        let mut found = BTreeSet::new();
        for gang in ranked {
            if gang.milli <= left {
                left -= gang.milli;
                found.insert(gang.job);
            }
        }
        found
    }

    /// Whether a gang borrows one level below a tenant from somebody who is promised something there.
    fn borrows_below(&self, side: Side<'_>, kind: &Name, gang: &Gang) -> bool {
        let Side::Subtree(tenant) = side else { return false };
        if !self.children(tenant).into_iter().any(|child| self.nominal(child, kind).is_some()) {
            return false;
        }
        let path = self.path(&gang.tenant);
        let at = path.iter().position(|node| *node == tenant).expect("it is of this side");
        let below = match at.checked_sub(1) {
            Some(below) => Side::Subtree(path[below]),
            None => Side::Own(tenant),
        };
        !self.within(below, kind).contains(&gang.job)
    }

    /// What a tenant and those below it use, without what any of those borrows of the tenant's quota from others of
    /// them.
    pub fn unborrowed(&self, tenant: &Name, kind: &Name) -> u64 {
        let children = self.children(tenant);
        if !children.iter().any(|child| self.nominal(child, kind).is_some()) {
            return self.used(Side::Subtree(tenant), kind);
        }
        let nominal = |child: &Name| self.nominal(child, kind).unwrap_or(0);
        let below: u64 =
            children.into_iter().map(|child| self.unborrowed(child, kind).min(nominal(child))).sum();
        let own = Side::Own(tenant);
        below + self.used(own, kind).min(self.nominal_of(own, kind))
    }

    /// Where two tenants part: the side of each below the lowest tenant they have in common; none when they
    /// are the same.
    pub fn sides<'a>(&'a self, one: &'a Name, other: &'a Name) -> Option<(Side<'a>, Side<'a>)> {
        if one == other {
            return None;
        }
        let (mut ones, mut others) = (self.path(one), self.path(other));
        while let (Some(a), Some(b)) = (ones.last(), others.last())
            && a == b
        {
            ones.pop();
            others.pop();
        }
        let side =
            |rest: &[&'a Name], own: &'a Name| rest.last().map_or(Side::Own(own), |node| Side::Subtree(node));
        Some((side(&ones, one), side(&others, other)))
    }

    /// Whether a tenant may use so much more of a type of which the fleet has `capacity`, once these are gone.
    ///
    /// What a tenant uses and what tenants below it keep for themselves is *committed*: with the use counted in, it
    /// has to stay within nominal and borrowing limit wherever it rises, and within the fleet.
    ///
    /// # Errors
    /// The level that forbids it.
    pub fn admits(
        &self,
        tenant: &Name,
        kind: &Name,
        milli: u64,
        capacity: u64,
        gone: &[JobId],
    ) -> Result<(), String> {
        let with = self.after(tenant, kind, milli, gone);
        let mut without = with.clone();
        without.gangs.pop();
        for node in with.path(tenant) {
            let (before, after) = (without.committed(node, kind), with.committed(node, kind));
            let limit = with
                .quota(node, kind)
                .and_then(|quota| Some(quota.nominal_milli + quota.borrowing_limit_milli?));
            if after > before && limit.is_some_and(|limit| after > limit) {
                return Err(format!("{node} would have committed {after} of {limit:?}"));
            }
        }
        let first_level: BTreeSet<&Name> = with
            .policy
            .tenants
            .iter()
            .filter(|(_, policy)| policy.parent.is_none())
            .map(|(name, _)| name)
            .chain(with.gangs.iter().filter_map(|gang| with.path(&gang.tenant).pop()))
            .collect();
        let fleet = |book: &Book| -> u64 {
            first_level.iter().map(|top| book.committed(top, kind).max(book.reserve(top, kind))).sum()
        };
        let (before, after) = (fleet(&without), fleet(&with));
        let used: u64 = with.gangs.iter().filter(|gang| gang.kind == *kind).map(|gang| gang.milli).sum();
        if used > capacity || (after > before && after > capacity) {
            return Err(format!("the fleet would have committed {after} of {capacity}"));
        }
        Ok(())
    }

    /// Whether a tenant and all above it would be within nominal with so much more, once these are gone.
    pub fn stays_within(&self, tenant: &Name, kind: &Name, milli: u64, gone: &[JobId]) -> bool {
        let after = self.after(tenant, kind, milli, gone);
        let own = Side::Own(tenant);
        let stands_beside_children = !after.children(tenant).is_empty();
        after.path(tenant).into_iter().all(|node| after.keeps_within(Side::Subtree(node), kind))
            && (!stands_beside_children || after.keeps_within(own, kind))
    }

    fn quota(&self, tenant: &Name, kind: &Name) -> Option<&muster_types::policy::Quota> {
        self.policy.tenants.get(tenant)?.quotas.iter().find(|quota| quota.kind == *kind)
    }

    /// The part of its nominal quota that a tenant never lends.
    fn reserve(&self, tenant: &Name, kind: &Name) -> u64 {
        let quota = self.quota(tenant, kind);
        quota.map_or(0, |q| q.lending_limit_milli.map_or(0, |lent| q.nominal_milli.saturating_sub(lent)))
    }

    fn committed(&self, tenant: &Name, kind: &Name) -> u64 {
        let below: BTreeSet<&Name> = self
            .children(tenant)
            .into_iter()
            // Those that policy does not name stand below one that it may name.
            .chain(self.gangs.iter().filter_map(|gang| {
                let path = self.path(&gang.tenant);
                let at = path.iter().position(|node| *node == tenant)?;
                at.checked_sub(1).map(|below| path[below])
            }))
            .collect();
        let below: u64 =
            below.into_iter().map(|child| self.committed(child, kind).max(self.reserve(child, kind))).sum();
        self.used(Side::Own(tenant), kind) + below
    }

    /// Whether policy lets these be stopped for a claimant that asks for so much. At `now` it may also stop who has
    /// outlived what was expected of him, for the owner of a reservation; without a time that is not asked.
    ///
    /// By the choice of its tenant nobody is stopped for it, or also those that borrow of a tenant which holds more than its part.
    ///
    /// # Errors
    /// The first that may not, and why.
    pub fn may_stop(
        &self,
        claimant: &JobSpec,
        kind: &Name,
        milli: u64,
        victims: &[JobId],
        now: Option<LogTime>,
    ) -> Result<(), String> {
        let rules = &self.policy.preemption;
        let choice = self.policy.queue_preemption(&claimant.tenant);
        let after = self.after(&claimant.tenant, kind, milli, victims);
        let mut evened_out: Vec<(Side<'_>, Side<'_>, &Gang)> = Vec::new();
        for victim in victims {
            let Some(gang) = self.gang(*victim) else { return Err(format!("{victim} holds nothing")) };
            let may_not = |error: &str| {
                let fixed = if gang.preemptible { "" } else { ", not preemptible" };
                let (whose, tier) = (&gang.tenant, gang.tier);
                let (by, by_tier) = (&claimant.tenant, claimant.tier);
                Err(format!("{victim} of {whose} ({tier}{fixed}) for {by} ({by_tier}): {error}"))
            };
            if choice == QueuePreemption::None {
                return may_not("the claimant's tenant has nobody stopped");
            }
            let overran =
                gang.overrun_at.zip(now).is_some_and(|(at, now)| at < now) && gang.tier <= claimant.tier;
            let may_be_stopped =
                gang.preemptible && ((rules.enabled && gang.tier < claimant.tier) || overran);
            let Some((ours, theirs)) = self.sides(&claimant.tenant, &gang.tenant) else {
                if !may_be_stopped {
                    return may_not("it is of the same tenant, and of no lower tier or not preemptible");
                }
                continue;
            };
            if self.within(theirs, &gang.kind).contains(victim) {
                return may_not("it is within nominal");
            }
            let takes_back = rules.reclaim_borrowed && after.keeps_within(ours, kind);
            if takes_back || may_be_stopped {
                continue;
            }
            if choice != QueuePreemption::FairShare || !gang.preemptible || gang.tier > claimant.tier {
                return may_not("the claimant's side would borrow, and its tier is not higher");
            }
            evened_out.push((ours, theirs, gang));
        }
        // All that are stopped for that reason alone, together: the last of them left its side with no less than its part.
        for (ours, theirs, gang) in &evened_out {
            let is_there = |side: &Side<'_>, other: &Gang| side == theirs && other.kind == gang.kind;
            let there = evened_out.iter().filter(|(_, side, other)| is_there(side, other));
            let stopped = there.filter(|(.., other)| !self.resized.contains(&other.job));
            let stopped: u64 = stopped.map(|(.., other)| other.milli).sum();
            let given_up = if self.resized.contains(&gang.job) { gang.milli } else { stopped };
            if !self.evens_out((*ours, claimant), (*theirs, given_up), &gang.kind, victims) {
                let (job, whose, by) = (gang.job, &gang.tenant, &claimant.tenant);
                return Err(format!("{job} of {whose} for {by}: shares come no nearer to their parts by it"));
            }
        }
        Ok(())
    }

    /// Whether a side holds no more than its part by weight with a claimant of it, and another no less than its own without so much.
    fn evens_out(
        &self,
        (ours, claimant): (Side<'_>, &JobSpec),
        (theirs, given_up): (Side<'_>, u64),
        kind: &Name,
        victims: &[JobId],
    ) -> bool {
        let weight = |side: Side<'_>| match side {
            Side::Subtree(tenant) => u128::from(self.policy.weight_milli(tenant)),
            Side::Own(_) => 1_000,
        };
        let (mut all, mut weights) = (0, 0);
        for side in self.next_to(ours) {
            let used = self.used(side, kind);
            all += u128::from(used);
            weights += if used > 0 || side == ours { weight(side) } else { 0 };
        }
        let gone = self.gangs.iter().filter(|gang| victims.contains(&gang.job) && gang.kind == *kind);
        let gone: u64 = gone.filter(|gang| self.is_on(ours, &gang.tenant)).map(|gang| gang.milli).sum();
        let with = self.used(ours, kind) - gone + claimant.least_milli_of(kind);
        let without = self.used(theirs, kind) - given_up;
        let is_within = u128::from(with) * weights <= all * weight(ours);
        is_within && u128::from(without) * weights >= all * weight(theirs)
    }

    /// A side and all on the same level below the same tenant, those without a gang left out as they hold nothing.
    fn next_to<'a>(&'a self, side: Side<'a>) -> Vec<Side<'a>> {
        let above = match side {
            Side::Subtree(tenant) => self.path(tenant).get(1).copied(),
            Side::Own(tenant) => Some(tenant),
        };
        let mut found: Vec<Side<'a>> = vec![side];
        for gang in &self.gangs {
            let path = self.path(&gang.tenant);
            let below = match above {
                None => path.last().map(|top| Side::Subtree(top)),
                Some(above) => {
                    path.iter().position(|node| *node == above).map(|at| match at.checked_sub(1) {
                        Some(below) => Side::Subtree(path[below]),
                        None => Side::Own(above),
                    })
                }
            };
            found.extend(below.filter(|side| !found.contains(side)));
        }
        found
    }

    /// The book once these are gone and a tenant uses so much more.
    fn after(&self, tenant: &Name, kind: &Name, milli: u64, gone: &[JobId]) -> Book {
        let mut after = Book {
            policy: Arc::clone(&self.policy),
            gangs: self.gangs.iter().filter(|gang| !gone.contains(&gang.job)).cloned().collect(),
            resized: BTreeSet::new(),
            known: RefCell::default(),
        };
        after.gangs.push(Gang {
            job: JobId(u64::MAX),
            tenant: tenant.clone(),
            tier: PriorityTier::Free,
            preemptible: true,
            since: u64::MAX,
            kind: kind.clone(),
            milli,
            overrun_at: None,
        });
        after
    }

    /// Whether a side has committed no more than it is promised.
    fn keeps_within(&self, side: Side<'_>, kind: &Name) -> bool {
        let committed = match side {
            Side::Subtree(tenant) => self.committed(tenant, kind),
            Side::Own(_) => self.used(side, kind),
        };
        committed <= self.nominal_of(side, kind)
    }
}
