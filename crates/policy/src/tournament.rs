//! The tournament over the tree of tenants: who of all leaves goes next.
//!
//! Every tenant with pending work below it has a seat next to its siblings, under its dominant share for its
//! weight. A tenant's own work has a seat among its children, with the use that is not its children's and the
//! ordinary weight. At each level the least share goes first, those of weight zero behind all others; equal shares fall to
//! the tier and the turn of the head that each would send.
//!
//! Serving a leaf computes the keys on its path again: a few shares and tree operations for each level.

use alloc::collections::{BTreeMap, BTreeSet};
use core::cmp::{Ordering, Reverse};
use muster_state::usage::{Capacity, TenantUsage};
use muster_state::{QueuePosition, State};
use muster_types::{LogTime, Name, PriorityTier};

/// Gangs that are ordered among themselves by tier and turn alone: those of one tenant, of all tenants that the
/// policy does not name, or, without fair share, all.
pub(crate) type Leaf = Option<Name>;

/// The place of a head in its leaf: its tier, its turn and its tenant.
pub(crate) type HeadKey = (Reverse<PriorityTier>, HeadTurn, Name);

/// The turn of a job that a tenant sends. It is compared with those of other tenants without what the tenant says of the order of
/// its jobs: nobody gains anything over others by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadTurn(pub(crate) QueuePosition);

impl Ord for HeadTurn {
    fn cmp(&self, other: &HeadTurn) -> Ordering {
        let key = |of: &HeadTurn| (of.0.turn, of.0.job, of.0.rank);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for HeadTurn {
    fn partial_cmp(&self, other: &HeadTurn) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What seats are compared by: whether the weight is zero, and the share.
type ShareKey = (bool, u64);

/// The weight of a tenant's own work next to its children: the ordinary one.
const OWN_WEIGHT_MILLI: u32 = 1_000;

/// Who sits below a tenant, or below the fleet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seat {
    /// The work that the tenant submits itself.
    Own,
    /// A tenant below it, with everybody below that.
    Child(Name),
}

/// Seats that compete with each other.
#[derive(Clone, Debug, Default)]
struct Group {
    order: BTreeSet<(ShareKey, HeadKey, Seat)>,
    keys: BTreeMap<Seat, (ShareKey, HeadKey)>,
    /// Whether there ever were two: a share that is compared with nothing need not be known.
    compares: bool,
}

/// What a tenant with others below it has used itself.
#[derive(Clone, Debug)]
struct OwnUse {
    usage: TenantUsage,
    /// The use of the tenant and everyone below it when that was last looked at.
    seen: TenantUsage,
}

#[derive(Clone, Debug)]
pub(crate) struct Tournament {
    now: LogTime,
    capacity: Capacity,
    /// By the tenant above; none for the fleet.
    groups: BTreeMap<Option<Name>, Group>,
    own: BTreeMap<Name, OwnUse>,
}

impl Tournament {
    pub(crate) fn new(now: LogTime, capacity: Capacity) -> Tournament {
        Tournament { now, capacity, groups: BTreeMap::new(), own: BTreeMap::new() }
    }

    /// What there is to share.
    pub(crate) fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Begins again with these leaves, each with its head.
    pub(crate) fn seat<'a>(
        &mut self,
        state: &State,
        leaves: impl Iterator<Item = (&'a Leaf, &'a HeadKey)> + Clone,
    ) {
        let mut seats: BTreeMap<Option<Name>, BTreeSet<Seat>> = BTreeMap::new();
        for (leaf, _) in leaves.clone() {
            for (above, seat) in path(state, leaf) {
                seats.entry(above).or_default().insert(seat);
            }
        }
        self.note_own_use(state, &seats);
        let group = |seats: BTreeSet<Seat>| Group { compares: seats.len() > 1, ..Group::default() };
        self.groups = seats.into_iter().map(|(above, seats)| (above, group(seats))).collect();
        for (leaf, head) in leaves {
            self.change(state, leaf, Some(head));
        }
    }

    /// Whose turn it is.
    pub(crate) fn first(&self) -> Option<Leaf> {
        let mut above = None;
        loop {
            match &self.groups.get(&above)?.order.first()?.2 {
                Seat::Own => return Some(above),
                Seat::Child(name) => above = Some(name.clone()),
            }
        }
    }

    /// A leaf has another head, or none any more, or its tenants have another share.
    pub(crate) fn change(&mut self, state: &State, leaf: &Leaf, head: Option<&HeadKey>) {
        let mut head = head.cloned();
        for (above, seat) in path(state, leaf) {
            let compares = self.groups.get(&above).is_some_and(|group| group.compares);
            let share = if compares { self.share(state, above.as_ref(), &seat) } else { ShareKey::default() };
            let group = self.groups.entry(above).or_default();
            if let Some((share, head)) = group.keys.remove(&seat) {
                group.order.remove(&(share, head, seat.clone()));
            }
            if let Some(head) = head {
                group.keys.insert(seat.clone(), (share, head.clone()));
                group.order.insert((share, head, seat));
            }
            head = group.order.first().map(|(_, head, _)| head.clone());
        }
    }

    /// A leaf was served: what its tenants use themselves has changed.
    pub(crate) fn served(&mut self, state: &State, leaf: &Leaf) {
        let Some(leaf) = leaf.as_ref().filter(|_| !self.own.is_empty()) else { return };
        let policy = &state.policy().policy;
        for tenant in policy.ancestry(leaf) {
            let Some(own) = self.own.get_mut(tenant) else { continue };
            let usage = usage_of(state, tenant, self.now);
            if tenant == leaf {
                own.usage = own.usage.with(&usage.without(&own.seen));
            }
            own.seen = usage;
        }
    }

    fn share(&self, state: &State, above: Option<&Name>, seat: &Seat) -> ShareKey {
        match seat {
            Seat::Child(name) => {
                let weight_milli = state.policy().policy.weight_milli(name);
                let usage = state.usage(name);
                let share = usage.map_or(0, |usage| usage.share(self.now, &self.capacity, weight_milli));
                (weight_milli == 0, share)
            }
            Seat::Own => {
                let own = above.and_then(|above| self.own.get(above));
                let share = own.map_or(0, |own| own.usage.share(self.now, &self.capacity, OWN_WEIGHT_MILLI));
                (false, share)
            }
        }
    }

    /// Finds out what those use themselves whose own work competes with that of tenants below them.
    fn note_own_use(&mut self, state: &State, seats: &BTreeMap<Option<Name>, BTreeSet<Seat>>) {
        let competes = |seats: &BTreeSet<Seat>| seats.len() > 1 && seats.contains(&Seat::Own);
        let parents =
            seats.iter().filter(|(_, seats)| competes(seats)).filter_map(|(above, _)| above.as_ref());
        let mut new: BTreeMap<Name, OwnUse> = BTreeMap::new();
        for parent in parents.filter(|parent| !self.own.contains_key(*parent)) {
            let usage = usage_of(state, parent, self.now);
            new.insert(parent.clone(), OwnUse { seen: usage.clone(), usage });
        }
        if new.is_empty() {
            return;
        }
        for (child, tenant) in &state.policy().policy.tenants {
            let parent = tenant.parent.as_ref().and_then(|parent| new.get_mut(parent));
            if let (Some(parent), Some(usage)) = (parent, state.usage(child)) {
                parent.usage = parent.usage.without(usage);
            }
        }
        self.own.append(&mut new);
    }
}

/// The seats of a leaf from its own up to the first level, each with the tenant above it.
fn path<'a>(state: &'a State, leaf: &'a Leaf) -> impl Iterator<Item = (Option<Name>, Seat)> + 'a {
    let policy = &state.policy().policy;
    let above = leaf.iter().flat_map(move |leaf| policy.ancestry(leaf));
    let above = above.map(move |tenant| (policy.parent(tenant).cloned(), Seat::Child(tenant.clone())));
    core::iter::once((leaf.clone(), Seat::Own)).chain(above)
}

fn usage_of(state: &State, tenant: &Name, now: LogTime) -> TenantUsage {
    let half_life_ms = state.policy().policy.order.usage_half_life_ms;
    let mut usage = state.usage(tenant).cloned().unwrap_or_else(|| TenantUsage::new(now, half_life_ms));
    usage.advance(now, half_life_ms);
    usage
}
