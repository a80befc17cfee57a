//! Who may use how many devices: nominal quotas, borrowing and lending in the tree of tenants.
//!
//! Everything is counted once for each *flavour*: a type of accelerator in one region, and the same
//! type in all regions together. A use must be admitted in both, and the two know nothing of each
//! other. In one flavour, for a tenant `t`:
//!
//! - `N(t)` is its nominal quota. A tenant that states none has what the tenants below it have
//!   together, so a tenant that only groups others takes nothing from them; without any it is zero.
//! - `R(t)` is the part of it that is never lent: nominal less lending limit.
//! - `C(t)`, the *committed* amount, is what `t` itself uses, plus for each tenant `s` directly below
//!   it the greater of `C(s)` and `R(s)`: what is in use, and what must stay free for someone. For a
//!   tenant without tenants below it that is its use.
//! - `t` is *within nominal* while `C(t) <= N(t)`; beyond that it borrows from its parent's unused.
//! - Those on the first level stand below the fleet, whose committed amount is counted alike.
//!
//! A use is admitted when, counted in, `C(t) <= N(t) + borrowing limit` for every tenant from the user
//! up, `C(fleet) <= capacity`, and the sum of all uses is at most the capacity. A level whose committed
//! amount does not rise is not asked: use inside one's own reserve takes nothing from anyone.
//!
//! Hence, for uses that were all admitted, under a policy and a capacity that did not shrink: no limit
//! is ever broken, and one within its nominal quota that is refused is refused because of someone who
//! borrows, or because more was promised than exists. In the first case [`QuotaUsage::sides`] and
//! [`QuotaUsage::keeps_within`] say from whom it may be taken back ([`crate::NominalCover`] says which of their
//! gangs), and taking it back is enough. (A quota over all regions promises no
//! single one of them: a region can be full of others' work within their nominal quotas.)

use crate::tree::Map;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_types::Name;
use muster_types::policy::{Policy, Quota, UNLISTED_TENANT};

use crate::rows::PolicyRow;

/// A part of the tenant tree that a quota is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// A tenant and everyone below it.
    Subtree(Name),
    /// What a tenant with others below it runs itself.
    Own(Name),
}

/// Accelerator type, and region or all of them.
type Flavour = (Name, Option<Name>);

/// What one tenant, or the fleet, is promised in one flavour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entitlement {
    nominal_milli: u64,
    /// Nominal plus borrowing limit.
    most_milli: Option<u64>,
    reserve_milli: u64,
    /// The committed amount while nobody uses anything: the reserves below it.
    kept_milli: u64,
}

/// The promises of a policy, by flavour and tenant; the fleet is the tenant that has no name.
#[derive(Debug, PartialEq, Eq)]
struct Tree {
    parents: BTreeMap<Name, Name>,
    /// Of tenants that the policy names; those of the first level without a name.
    children: BTreeMap<Option<Name>, Vec<Name>>,
    /// Those that the policy names; all others are below `unlisted`.
    listed: BTreeSet<Name>,
    unlisted: Name,
    promises: BTreeMap<Flavour, BTreeMap<Option<Name>, Entitlement>>,
}

impl Default for Tree {
    fn default() -> Tree {
        Tree {
            parents: BTreeMap::new(),
            children: BTreeMap::new(),
            listed: BTreeSet::new(),
            unlisted: Name::literal(UNLISTED_TENANT),
            promises: BTreeMap::new(),
        }
    }
}

impl Tree {
    fn new(policy: &Policy) -> Tree {
        let mut deepest_first: Vec<_> = policy.tenants.keys().collect();
        deepest_first.sort_by_key(|name| core::cmp::Reverse(policy.ancestry(name).count()));
        let mut tree = Tree { listed: policy.tenants.keys().cloned().collect(), ..Tree::default() };
        // Of each tenant, and of the fleet, what the tenants below it add up to: nominal and kept.
        let mut below: BTreeMap<Option<&Name>, BTreeMap<Flavour, (u64, u64)>> = BTreeMap::new();
        for name in deepest_first {
            let Some(tenant) = policy.tenants.get(name) else { continue };
            tree.children.entry(tenant.parent.clone()).or_default().push(name.clone());
            if let Some(parent) = &tenant.parent {
                tree.parents.insert(name.clone(), parent.clone());
            }
            let mut sums = below.remove(&Some(name)).unwrap_or_default();
            let mut promises: Vec<(Flavour, Entitlement)> = Vec::new();
            for quota in &tenant.quotas {
                let flavour = (quota.kind.clone(), quota.region.clone());
                let (_, kept_milli) = sums.remove(&flavour).unwrap_or_default();
                promises.push((flavour, Entitlement::stated(quota, kept_milli)));
            }
            promises.extend(sums.into_iter().map(|(flavour, (nominal_milli, kept_milli))| {
                (flavour, Entitlement { nominal_milli, kept_milli, ..Entitlement::default() })
            }));
            let above = below.entry(tenant.parent.as_ref()).or_default();
            for (flavour, promise) in promises {
                let sum = above.entry(flavour.clone()).or_default();
                // At most QUOTAS_MAX terms of at most QUOTA_MILLI_MAX: far below 2^64.
                sum.0 += promise.nominal_milli;
                sum.1 += promise.kept_milli.max(promise.reserve_milli);
                tree.promises.entry(flavour).or_default().insert(Some(name.clone()), promise);
            }
        }
        for (flavour, (nominal_milli, kept_milli)) in below.remove(&None).unwrap_or_default() {
            let fleet = Entitlement { nominal_milli, kept_milli, ..Entitlement::default() };
            tree.promises.entry(flavour).or_default().insert(None, fleet);
        }
        tree
    }

    fn promise(&self, flavour: &Flavour, tenant: &Option<Name>) -> Option<&Entitlement> {
        self.promises.get(flavour)?.get(tenant)
    }

    fn parent(&self, tenant: &Name) -> Option<&Name> {
        let unlisted = || Some(&self.unlisted).filter(|unlisted| *unlisted != tenant);
        if self.listed.contains(tenant) { self.parents.get(tenant) } else { unlisted() }
    }

    /// The tenant and those above it, itself first.
    fn ancestry<'a>(&'a self, tenant: &'a Name) -> impl Iterator<Item = &'a Name> {
        core::iter::successors(Some(tenant), |below| self.parent(below))
    }

    /// The same, then the fleet.
    fn path<'a>(&'a self, tenant: &'a Name) -> impl Iterator<Item = Option<Name>> + 'a {
        self.ancestry(tenant).cloned().map(Some).chain([None])
    }
}

impl Entitlement {
    fn stated(quota: &Quota, kept_milli: u64) -> Entitlement {
        Entitlement {
            nominal_milli: quota.nominal_milli,
            most_milli: quota.borrowing_limit_milli.map(|limit| quota.nominal_milli + limit),
            reserve_milli: quota.reserve_milli(),
            kept_milli,
        }
    }
}

/// What is counted of one tenant, or the fleet, in one flavour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    /// By the tenant and everyone below it.
    used_milli: u64,
    committed_milli: u64,
}

/// How a tenant's usage compares with its nominal quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaStatus {
    /// It is within the quota of every flavour for which the tenant has one.
    WithinNominal,
    /// It exceeds one of them, so the tenant uses capacity that others are promised or that is promised to nobody.
    Borrowing {
        /// How much, in the flavour where that is most.
        by_milli: u64,
    },
}

/// Which rule refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaLimit {
    /// The tenant's nominal quota: it may not borrow.
    Nominal,
    /// The tenant's nominal quota and borrowing limit.
    Borrowing,
    /// What a tenant above it may use in all, or the devices of the fleet.
    ParentCapacity,
    /// What is free is kept for those who do not lend it.
    LentReserve,
}

/// What refuses use, with the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaBlock {
    /// Whose limit; none for the fleet.
    pub tenant: Option<Name>,
    /// The type of accelerator.
    pub kind: Name,
    /// The region; none for the count over all regions.
    pub region: Option<Name>,
    /// Which rule.
    pub limit: QuotaLimit,
    /// In use below that limit, by everyone it holds for.
    pub used_milli: u64,
    /// Not in use, but kept for tenants that do not lend it.
    pub kept_milli: u64,
    /// The limit.
    pub limit_milli: u64,
}

/// How much more a tenant may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaHeadroom {
    /// Within its nominal quota, and free.
    pub nominal_milli: u64,
    /// Beyond that.
    pub borrowable_milli: u64,
    /// What would refuse a thousandth more than both: of several, the level nearest to the tenant, and
    /// the region before all regions.
    pub blocked_by: QuotaBlock,
}

impl QuotaHeadroom {
    /// All of it.
    #[must_use]
    pub fn total_milli(&self) -> u64 {
        self.nominal_milli + self.borrowable_milli
    }
}

/// What every tenant uses, counted against one policy. Cloning is constant-time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUsage {
    tree: Arc<Tree>,
    /// A tenant's own use, by tenant, type and region.
    own: Map<(Name, Name, Name), u64>,
    /// Where something is in use; elsewhere the level is what its promise says.
    levels: Map<(Flavour, Option<Name>), Level>,
}

impl Default for QuotaUsage {
    /// Nothing in use, against the policy that every cluster begins with.
    fn default() -> Self {
        QuotaUsage::new(&PolicyRow::default().policy)
    }
}

impl QuotaUsage {
    /// Nothing in use.
    #[must_use]
    pub fn new(policy: &Policy) -> QuotaUsage {
        QuotaUsage { tree: Arc::new(Tree::new(policy)), own: Map::default(), levels: Map::default() }
    }

    /// The same use, counted against another policy: once through the policy and everything in use.
    #[must_use]
    pub fn under(&self, policy: &Policy) -> QuotaUsage {
        let mut counted = QuotaUsage::new(policy);
        for ((tenant, kind, region), &milli) in &self.own {
            counted.add(tenant, kind, region, milli);
        }
        counted
    }

    /// Own use by tenant, accelerator type and region, in this order.
    pub fn own(&self) -> impl Iterator<Item = ((&Name, &Name, &Name), u64)> {
        self.own.iter().map(|((tenant, kind, region), &milli)| ((tenant, kind, region), milli))
    }

    /// What a tenant and everyone below it use in a region, or in all.
    #[must_use]
    pub fn used_milli(&self, tenant: &Name, kind: &Name, region: Option<&Name>) -> u64 {
        self.level(&(kind.clone(), region.cloned()), &Some(tenant.clone())).used_milli
    }

    /// Counts use that begins, admitted or not. Uses are of devices that exist: no sum of them comes
    /// near 2^64 thousandths.
    pub fn add(&mut self, tenant: &Name, kind: &Name, region: &Name, milli: u64) {
        if milli == 0 {
            return;
        }
        let key = (tenant.clone(), kind.clone(), region.clone());
        let before = self.own.get(&key).copied().unwrap_or(0);
        self.own.insert(key, before + milli);
        self.change(tenant, kind, region, |counted, by| counted + by, milli);
    }

    /// Counts use that ends.
    ///
    /// # Panics
    /// When the tenant does not use that much: what is given back was taken before.
    pub fn remove(&mut self, tenant: &Name, kind: &Name, region: &Name, milli: u64) {
        if milli == 0 {
            return;
        }
        let key = (tenant.clone(), kind.clone(), region.clone());
        let before = self.own.get(&key).copied().unwrap_or(0);
        let left = before.checked_sub(milli).expect("a tenant gives back only what it uses");
        if left == 0 {
            self.own.remove(&key);
        } else {
            self.own.insert(key, left);
        }
        self.change(tenant, kind, region, |counted, by| counted - by, milli);
    }

    /// Carries a change of own use up the tree. What a reserve absorbs goes no further.
    fn change(
        &mut self,
        tenant: &Name,
        kind: &Name,
        region: &Name,
        apply: impl Fn(u64, u64) -> u64,
        milli: u64,
    ) {
        let tree = Arc::clone(&self.tree);
        for flavour in flavours(kind, region) {
            let mut by = milli;
            for node in tree.path(tenant) {
                let before = self.level(&flavour, &node);
                let level = Level {
                    used_milli: apply(before.used_milli, milli),
                    committed_milli: apply(before.committed_milli, by),
                };
                let reserve = tree.promise(&flavour, &node).map_or(0, |promise| promise.reserve_milli);
                by = level.committed_milli.max(reserve).abs_diff(before.committed_milli.max(reserve));
                let key = (flavour.clone(), node);
                if level.used_milli == 0 {
                    self.levels.remove(&key);
                } else {
                    self.levels.insert(key, level);
                }
            }
        }
    }

    fn level(&self, flavour: &Flavour, node: &Option<Name>) -> Level {
        let kept = || self.tree.promise(flavour, node).map_or(0, |promise| promise.kept_milli);
        let counted = self.levels.get(&(flavour.clone(), node.clone())).copied();
        counted.unwrap_or_else(|| Level { used_milli: 0, committed_milli: kept() })
    }

    /// How much more a tenant may use of a type in a region, in thousandths of a device. `capacity` says
    /// how many thousandths of a type are registered in a region, or in all.
    #[must_use]
    pub fn headroom(
        &self,
        capacity: impl Fn(&Name, Option<&Name>) -> u64,
        tenant: &Name,
        kind: &Name,
        region: &Name,
    ) -> QuotaHeadroom {
        let [first, second] = flavours(kind, region).map(|flavour| {
            let capacity_milli = capacity(&flavour.0, flavour.1.as_ref());
            self.room_in(capacity_milli, tenant, &flavour)
        });
        let (total, blocked_by) = if second.0 < first.0 { second } else { first };
        let tenant = Some(tenant.clone());
        let unused = |flavour: &Flavour| {
            let promise = self.tree.promise(flavour, &tenant)?;
            Some(promise.nominal_milli.saturating_sub(self.level(flavour, &tenant).committed_milli))
        };
        let nominal = flavours(kind, region).iter().filter_map(unused).min().unwrap_or(0).min(total);
        QuotaHeadroom { nominal_milli: nominal, borrowable_milli: total - nominal, blocked_by }
    }

    /// Whether a tenant may use so much more.
    ///
    /// # Errors
    /// What refuses it.
    pub fn admits(
        &self,
        capacity: impl Fn(&Name, Option<&Name>) -> u64,
        tenant: &Name,
        kind: &Name,
        region: &Name,
        milli: u64,
    ) -> Result<(), QuotaBlock> {
        let headroom = self.headroom(capacity, tenant, kind, region);
        if milli <= headroom.total_milli() { Ok(()) } else { Err(headroom.blocked_by) }
    }

    /// How much is admitted in one flavour, and what refuses more.
    fn room_in(&self, capacity_milli: u64, tenant: &Name, flavour: &Flavour) -> (u64, QuotaBlock) {
        let mut tightest: Option<(u64, QuotaBlock)> = None;
        // What reserves on the way up absorb: a use of no more than that does not reach this level.
        let mut absorbed = 0u64;
        for (height, node) in self.tree.path(tenant).enumerate() {
            let promise = self.tree.promise(flavour, &node).copied().unwrap_or_default();
            let level = self.level(flavour, &node);
            let limit_milli = if node.is_none() { Some(capacity_milli) } else { promise.most_milli };
            if let Some(limit_milli) = limit_milli {
                let mut headroom = absorbed.saturating_add(limit_milli.saturating_sub(level.committed_milli));
                if node.is_none() {
                    headroom = headroom.min(capacity_milli.saturating_sub(level.used_milli));
                }
                if tightest.as_ref().is_none_or(|(least, _)| headroom < *least) {
                    let limit = if level.used_milli.saturating_add(headroom) < limit_milli {
                        QuotaLimit::LentReserve
                    } else if height > 0 {
                        QuotaLimit::ParentCapacity
                    } else if limit_milli == promise.nominal_milli {
                        QuotaLimit::Nominal
                    } else {
                        QuotaLimit::Borrowing
                    };
                    let block = QuotaBlock {
                        tenant: node,
                        kind: flavour.0.clone(),
                        region: flavour.1.clone(),
                        limit,
                        used_milli: level.used_milli,
                        kept_milli: level.committed_milli - level.used_milli,
                        limit_milli,
                    };
                    tightest = Some((headroom, block));
                }
            }
            absorbed += promise.reserve_milli.saturating_sub(level.committed_milli);
        }
        tightest.expect("the path ends at the fleet, which has a limit")
    }

    /// Whether a tenant, with everyone below it, stays within its nominal quotas for a type in a region.
    /// One without any borrows whatever it uses.
    #[must_use]
    pub fn standing(&self, tenant: &Name, kind: &Name, region: &Name) -> QuotaStatus {
        match self.above_nominal(tenant, kind, region) {
            0 => QuotaStatus::WithinNominal,
            by_milli => QuotaStatus::Borrowing { by_milli },
        }
    }

    fn above_nominal(&self, tenant: &Name, kind: &Name, region: &Name) -> u64 {
        let node = Some(tenant.clone());
        let flavours = flavours(kind, region);
        let above = |flavour: &Flavour| {
            let promise = self.tree.promise(flavour, &node)?;
            Some(self.level(flavour, &node).committed_milli.saturating_sub(promise.nominal_milli))
        };
        let [in_region, _] = &flavours;
        flavours.iter().filter_map(above).max().unwrap_or_else(|| self.level(in_region, &node).used_milli)
    }

    /// Whether `node` has nominal quota, and stays within all it has, when `tenant`, at or below it, uses
    /// so much more.
    fn stays_within_nominal(
        &self,
        node: &Name,
        tenant: &Name,
        kind: &Name,
        region: &Name,
        milli: u64,
    ) -> bool {
        let mut promised = false;
        for flavour in flavours(kind, region) {
            let mut rise = milli;
            for on_path in self.tree.ancestry(tenant) {
                let at = Some(on_path.clone());
                let promise = self.tree.promise(&flavour, &at);
                let committed = self.level(&flavour, &at).committed_milli;
                if on_path == node {
                    if let Some(promise) = promise {
                        promised = true;
                        if committed.saturating_add(rise) > promise.nominal_milli {
                            return false;
                        }
                    }
                    break;
                }
                let slack = promise.map_or(0, |p| p.reserve_milli.saturating_sub(committed));
                rise = rise.saturating_sub(slack);
            }
        }
        promised
    }
}

impl QuotaUsage {
    /// The sides of the tree on which a claimant and a victim of another tenant meet: directly below the lowest
    /// tenant, or the fleet, that both are below.
    #[must_use]
    pub fn sides(&self, claimant: &Name, victim: &Name) -> Option<(Side, Side)> {
        let mut ours: Vec<&Name> = self.tree.ancestry(claimant).collect();
        let mut theirs: Vec<&Name> = self.tree.ancestry(victim).collect();
        while let (Some(our), Some(their)) = (ours.last(), theirs.last())
            && our == their
        {
            ours.pop();
            theirs.pop();
        }
        let side = |rest: &[&Name], tenant: &Name| match rest.last() {
            Some(top) => Side::Subtree((*top).clone()),
            None => Side::Own(tenant.clone()),
        };
        (claimant != victim).then(|| (side(&ours, claimant), side(&theirs, victim)))
    }

    /// Every side that a tenant's own work is on, from its own up, where a sibling of it is promised something of a
    /// type in a region or in all: elsewhere nobody is kept from anything.
    #[must_use]
    pub fn sides_of(&self, tenant: &Name, kind: &Name, region: &Name) -> Vec<Side> {
        let is_promised = |side: &Side| {
            [Some(region), None].into_iter().any(|place| self.nominal_of(side, kind, place).is_some())
        };
        let any_below = |parent: Option<Name>| {
            let mut children = self.tree.children.get(&parent).into_iter().flatten();
            children.any(|child| is_promised(&Side::Subtree(child.clone())))
        };
        let own = any_below(Some(tenant.clone())).then(|| Side::Own(tenant.clone()));
        let up = self.tree.ancestry(tenant).filter(|node| any_below(self.tree.parent(node).cloned()));
        own.into_iter().chain(up.cloned().map(Side::Subtree)).collect()
    }

    /// What a side is promised of a type in a region or in all; none when that is not stated for it.
    #[must_use]
    pub fn nominal_of(&self, side: &Side, kind: &Name, region: Option<&Name>) -> Option<u64> {
        let flavour = (kind.clone(), region.cloned());
        let promises = self.tree.promises.get(&flavour)?;
        match side {
            Side::Subtree(tenant) => Some(promises.get(&Some(tenant.clone()))?.nominal_milli),
            Side::Own(tenant) => {
                let all = promises.get(&Some(tenant.clone()))?.nominal_milli;
                let children = self.tree.children.get(&Some(tenant.clone())).into_iter().flatten();
                let below: u64 = children
                    .filter_map(|child| promises.get(&Some(child.clone())))
                    .map(|p| p.nominal_milli)
                    .sum();
                Some(all.saturating_sub(below))
            }
        }
    }

    /// How much more a tenant may use of a type in a region without borrowing: on its own side and on all above. None
    /// where no sibling of any of them is promised anything, so that there is nothing to borrow.
    #[must_use]
    pub fn nominal_room_milli(&self, tenant: &Name, kind: &Name, region: &Name) -> Option<u64> {
        let of_side = |side: &Side| {
            let headrooms =
                flavours(kind, region).map(|flavour| self.nominal_room_of(side, tenant, &flavour));
            headrooms.into_iter().flatten().min().unwrap_or(0)
        };
        self.sides_of(tenant, kind, region).iter().map(of_side).min()
    }

    /// The same once others have given back what they borrow of it: on the sides above its own, what somebody below
    /// them uses beyond its own nominal quota does not count.
    #[must_use]
    pub fn promised_room_milli(&self, tenant: &Name, kind: &Name, region: &Name) -> Option<u64> {
        let of_side = |side: &Side| {
            let headroom = |flavour: &Flavour| match side {
                Side::Subtree(node) if self.is_shared_out(side, kind, region) => {
                    let nominal = self.nominal_of(side, &flavour.0, flavour.1.as_ref())?;
                    Some(nominal.saturating_sub(self.unborrowed_milli(flavour, node)))
                }
                _ => self.nominal_room_of(side, tenant, flavour),
            };
            flavours(kind, region).iter().filter_map(headroom).min().unwrap_or(0)
        };
        self.sides_of(tenant, kind, region).iter().map(of_side).min()
    }

    /// What a tenant and those below it use in one flavour, or reserve for themselves, without what any of them borrows of
    /// the tenant's quota from its siblings. The policy bounds the depth of the tree.
    fn unborrowed_milli(&self, flavour: &Flavour, node: &Name) -> u64 {
        let node = Some(node.clone());
        let children = self.tree.children.get(&node).into_iter().flatten();
        let promised = children.filter_map(|child| {
            let promise = self.tree.promise(flavour, &Some(child.clone()))?;
            Some((child, promise))
        });
        let mut below: Option<u64> = None;
        for (child, promise) in promised {
            let uses = self.unborrowed_milli(flavour, child).min(promise.nominal_milli);
            below = Some(below.unwrap_or(0).saturating_add(uses.max(promise.reserve_milli)));
        }
        match (below, node) {
            (Some(below), Some(node)) => {
                let side = Side::Own(node);
                let (kind, region) = (&flavour.0, flavour.1.as_ref());
                let own = self.used_on(&side, kind, region);
                below.saturating_add(own.min(self.nominal_of(&side, kind, region).unwrap_or(0)))
            }
            (_, node) => self.level(flavour, &node).committed_milli,
        }
    }

    /// Whether anybody directly below a tenant is promised something of a type in a region or in all.
    pub(crate) fn is_shared_out(&self, side: &Side, kind: &Name, region: &Name) -> bool {
        let Side::Subtree(tenant) = side else { return false };
        let mut children = self.tree.children.get(&Some(tenant.clone())).into_iter().flatten();
        children.any(|child| {
            let side = Side::Subtree(child.clone());
            [Some(region), None].into_iter().any(|place| self.nominal_of(&side, kind, place).is_some())
        })
    }

    /// The side directly below one that a tenant of it is on: none below a tenant's own work, and none where nobody is
    /// below the tenant.
    pub(crate) fn side_below(&self, side: &Side, tenant: &Name) -> Option<Side> {
        let Side::Subtree(node) = side else { return None };
        let below = self.tree.ancestry(tenant).take_while(|above| *above != node).last();
        match below {
            Some(below) => Some(Side::Subtree(below.clone())),
            None => self.tree.children.contains_key(&Some(tenant.clone())).then(|| Side::Own(tenant.clone())),
        }
    }

    /// A side and all next to it: those of the tenants below the same one, and what that one runs itself.
    pub(crate) fn next_to(&self, side: &Side) -> Vec<Side> {
        let parent = match side {
            Side::Subtree(tenant) => self.tree.parent(tenant).cloned(),
            Side::Own(tenant) => Some(tenant.clone()),
        };
        let children = self.tree.children.get(&parent).into_iter().flatten();
        let mut found: BTreeSet<Side> = children.cloned().map(Side::Subtree).collect();
        // Those that the policy does not name.
        match parent {
            Some(parent) => _ = found.insert(Side::Own(parent)),
            None => _ = found.insert(Side::Subtree(self.tree.unlisted.clone())),
        }
        found.insert(side.clone());
        found.into_iter().collect()
    }

    /// All that a tenant is promised of a type in a region, on its own side and on all above; zero where no sibling
    /// of any of them is promised anything.
    #[must_use]
    pub fn nominal_milli(&self, tenant: &Name, kind: &Name, region: &Name) -> u64 {
        let of_side = |side: &Side| {
            let places = [Some(region), None];
            let stated = places.into_iter().filter_map(|place| self.nominal_of(side, kind, place));
            stated.min().unwrap_or(0)
        };
        self.sides_of(tenant, kind, region).iter().map(of_side).min().unwrap_or(0)
    }

    /// What a side has left of what it is promised in one flavour, for a tenant of it: what the reserves on the way
    /// absorb does not count there.
    fn nominal_room_of(&self, side: &Side, tenant: &Name, flavour: &Flavour) -> Option<u64> {
        let nominal = self.nominal_of(side, &flavour.0, flavour.1.as_ref())?;
        let node = match side {
            Side::Own(own) => {
                return Some(nominal.saturating_sub(self.own_milli(own, &flavour.0, flavour.1.as_ref())));
            }
            Side::Subtree(node) => node,
        };
        let mut absorbed = 0u64;
        for on_path in self.tree.ancestry(tenant) {
            let at = Some(on_path.clone());
            let committed = self.level(flavour, &at).committed_milli;
            if on_path == node {
                return Some(absorbed.saturating_add(nominal.saturating_sub(committed)));
            }
            let reserve = self.tree.promise(flavour, &at).map_or(0, |promise| promise.reserve_milli);
            absorbed = absorbed.saturating_add(reserve.saturating_sub(committed));
        }
        None
    }

    /// What the tenants of the first level are promised together of a type in a region or in all; none where nobody is.
    #[must_use]
    pub fn promised_to_all(&self, kind: &Name, region: Option<&Name>) -> Option<u64> {
        let flavour = (kind.clone(), region.cloned());
        self.tree.promise(&flavour, &None).map(|promise| promise.nominal_milli)
    }

    /// Whether a side is promised anything at all.
    pub(crate) fn has_promise(&self, side: &Side) -> bool {
        let (Side::Subtree(tenant) | Side::Own(tenant)) = side;
        let key = Some(tenant.clone());
        self.tree.promises.values().any(|promises| promises.contains_key(&key))
    }

    /// A tenant and those of the policy below it.
    pub(crate) fn listed_below(&self, tenant: &Name) -> Vec<Name> {
        let mut found = Vec::from([tenant.clone()]);
        let mut at = 0;
        while let Some(next) = found.get(at) {
            let children = self.tree.children.get(&Some(next.clone())).cloned();
            found.extend(children.into_iter().flatten());
            at += 1;
        }
        found
    }

    /// Whether tenants that the policy does not name are below this one.
    pub(crate) fn is_unlisted(&self, tenant: &Name) -> bool {
        self.tree.unlisted == *tenant
    }

    /// Whether a side is promised something of a type, and stays within all that it is promised when a tenant of it
    /// uses so much more in a region.
    #[must_use]
    pub fn keeps_within(&self, side: &Side, tenant: &Name, kind: &Name, region: &Name, milli: u64) -> bool {
        match side {
            Side::Subtree(node) => self.stays_within_nominal(node, tenant, kind, region, milli),
            Side::Own(own) => {
                let within = |place: Option<&Name>| {
                    let nominal = self.nominal_of(side, kind, place)?;
                    let used = self.own_milli(own, kind, place);
                    Some(used.saturating_add(milli) <= nominal)
                };
                let within = [within(Some(region)), within(None)];
                within.iter().any(Option::is_some) && within.into_iter().flatten().all(|fits| fits)
            }
        }
    }

    /// What those of a side use of a type in a region, or in all.
    pub(crate) fn used_on(&self, side: &Side, kind: &Name, region: Option<&Name>) -> u64 {
        match side {
            Side::Subtree(tenant) => self.used_milli(tenant, kind, region),
            Side::Own(tenant) => self.own_milli(tenant, kind, region),
        }
    }

    /// What a tenant uses itself of a type in a region, or in all: of these as many as it has devices in.
    fn own_milli(&self, tenant: &Name, kind: &Name, region: Option<&Name>) -> u64 {
        if let Some(region) = region {
            return self.own.get(&(tenant.clone(), kind.clone(), region.clone())).copied().unwrap_or(0);
        }
        // No name is before this one.
        let first = (tenant.clone(), kind.clone(), Name::literal("0"));
        let own = self.own.range(first..).take_while(|((of, known, _), _)| of == tenant && known == kind);
        own.map(|(_, milli)| *milli).sum()
    }
}

/// The two a use is counted in.
fn flavours(kind: &Name, region: &Name) -> [Flavour; 2] {
    [(kind.clone(), Some(region.clone())), (kind.clone(), None)]
}
