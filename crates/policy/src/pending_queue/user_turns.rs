//! Turns of the users of one tenant, where they share what it gets.
//!
//! The tenant sends one job of a tier at a time: that of the user who has used least for its weight, the first of its jobs in the
//! order that they have anyway. When that one was placed, the share of its user is computed again. When it waits, the next job of the
//! same user has its turn: what is too large now hides nothing of its user that fits. Each user has an equal part of the depth of a
//! pass for requests that wait, so that one with many different requests does not use it up: once it has, the others go first.
//!
//! Behind the front of the queue the walk goes on where the pass before left off: at one job of one user, along all of its jobs,
//! and then along those of the users behind it by name, until it comes round.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use muster_state::{GangClass, QueuePosition, State, UserLane};
use muster_types::token::user_of;
use muster_types::{JobId, LogTime, Name, PriorityTier};

use super::{Candidate, ClassCursor, HeadTurn, Lane, Leaf, Line, Stage, asker, before};

/// A tier of a tenant.
pub(super) type UsersKey = (PriorityTier, Name);

/// Where a pass left off among the users of a tenant, by whether that was within nominal.
pub(super) type UserMarks = BTreeMap<(bool, PriorityTier, Name), (String, QueuePosition)>;

/// When it is a user's turn: how often it has used up its part of the depth, its share, its first job, and its name.
type UserTurn = (u64, u64, QueuePosition, String);

/// How far the walk along the jobs of one user has come.
#[derive(Clone, Debug, Default)]
struct UserWalk {
    /// The last that had a turn or was stepped over.
    behind: Option<QueuePosition>,
    /// How often its jobs waited in this stage, or behind the front, its place in the order of users.
    looks: u64,
    /// The first that was stepped over without a turn.
    first_skipped: Option<QueuePosition>,
    /// Classes of which some job does not stand for the others.
    passed: BTreeMap<GangClass, ClassCursor>,
    /// The next of each of these.
    alike: BTreeMap<QueuePosition, GangClass>,
}

/// Users of one tenant with jobs of one tier.
#[derive(Clone, Debug, Default)]
pub(super) struct UserTurns {
    walks: BTreeMap<String, UserWalk>,
    /// Those that have a job to send. The one whose job is in the pending queue now is not there.
    order: BTreeSet<UserTurn>,
    /// Requests of each user that may wait before others go first, one at least.
    part: u64,
    /// Whether the front is done.
    rotates: bool,
}

/// What became of a candidate, for the turns of its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It has its capacity.
    Served,
    /// It waits, or had no turn.
    Waits,
}

impl Line {
    /// The user of a job whose tenant has its users share what it gets.
    pub(super) fn sharing_user(state: &State, tenant: &Name, job: JobId) -> Option<String> {
        state.policy().policy.user_shares(tenant).map(|_| String::from(user_of(state.creator(job))))
    }

    /// All users of a tenant and tier begin, where they share what it gets; whether they do.
    pub(super) fn seat_users(
        &mut self,
        state: &State,
        leaf: &Leaf,
        tier: PriorityTier,
        tenant: &Name,
    ) -> bool {
        if state.policy().policy.user_shares(tenant).is_none() {
            return false;
        }
        let users: Vec<String> = state.users_in_line(tier, tenant).map(|(user, _)| user.into()).collect();
        let key = (tier, tenant.clone());
        let count = users.len() as u64;
        let walks = users.iter().map(|user| (user.clone(), UserWalk::default())).collect();
        let part = self.depth.map_or(u64::MAX, |depth| u64::from(depth) / count.max(1));
        self.users.insert(key.clone(), UserTurns { walks, part, ..UserTurns::default() });
        self.steps += count;
        for user in users {
            self.queue_user(state, &key, user);
        }
        self.send_user(state, leaf, &key);
        true
    }

    /// The candidate of a user had its turn, or none: the next user of its tenant sends a job.
    pub(super) fn step_user(
        &mut self,
        state: &State,
        leaf: &Leaf,
        (candidate, user): (&Candidate, &str),
        step: Step,
    ) {
        let key = (candidate.tier, candidate.tenant.clone());
        let is_waiting = self.waiting.contains(&self.request_of(state, candidate));
        let turns = self.users.entry(key.clone()).or_default();
        let rotates = turns.rotates;
        let walk = turns.walks.entry(String::from(user)).or_default();
        walk.behind = walk.behind.max(Some(candidate.turn));
        walk.looks += u64::from(step == Step::Waits && !rotates);
        if let Some(last) = walk.passed.get_mut(&candidate.class).filter(|_| !is_waiting) {
            let of =
                UserLane { tier: candidate.tier, tenant: &candidate.tenant, user, class: candidate.class };
            if let Some((place, job)) = state.next_alike_of_user(of, last.place, last.job) {
                *last = ClassCursor { place, job };
                walk.alike.insert(QueuePosition { job, ..place }, candidate.class);
            }
        }
        self.queue_user(state, &key, String::from(user));
        self.send_user(state, leaf, &key);
    }

    /// The candidate does not stand for those of its user that ask for the same.
    pub(super) fn note_passed_of_user(&mut self, candidate: &Candidate, user: &str) {
        let last = ClassCursor { place: candidate.turn, job: candidate.turn.job };
        let turns = self.users.entry((candidate.tier, candidate.tenant.clone())).or_default();
        turns.walks.entry(String::from(user)).or_default().passed.entry(candidate.class).or_insert(last);
    }

    /// The candidate had no turn, as the pass was deep enough without.
    pub(super) fn note_skipped(&mut self, candidate: &Candidate) {
        let Some(user) = &candidate.user else { return };
        let turns = self.users.entry((candidate.tier, candidate.tenant.clone())).or_default();
        turns.walks.entry(user.clone()).or_default().first_skipped.get_or_insert(candidate.turn);
    }

    /// The front is done: users go on where the pass before left off, or with the first that was stepped over; whether the tenant
    /// has its users share what it gets.
    pub(super) fn rotate_users(
        &mut self,
        state: &State,
        (leaf, tier, tenant): (&Leaf, PriorityTier, &Name),
        uses_mark: bool,
    ) -> bool {
        if state.policy().policy.user_shares(tenant).is_none() {
            return false;
        }
        let key = (tier, tenant.clone());
        let lane = (self.stage == Stage::WithinNominal, tier, tenant.clone());
        let mark = self.left_off.users.get(&lane).filter(|_| uses_mark).cloned();
        let turns = self.users.entry(key.clone()).or_default();
        turns.order.clear();
        turns.rotates = true;
        // From the one at the mark to the last, and then from the first to the one before.
        let begin = mark.as_ref().map_or("", |(user, _)| user.as_str());
        let behind = turns.walks.keys().filter(|user| user.as_str() >= begin);
        let users: Vec<String> =
            behind.chain(turns.walks.keys().filter(|user| user.as_str() < begin)).cloned().collect();
        for (place, user) in users.iter().enumerate() {
            let Some(walk) = turns.walks.get_mut(user) else { continue };
            walk.looks = place as u64;
            if let Some(skipped) = walk.first_skipped {
                walk.behind = before(skipped);
            }
            if let Some((_, turn)) = mark.as_ref().filter(|(of, _)| of == user) {
                walk.behind = walk.behind.max(before(*turn));
            }
        }
        self.steps += users.len() as u64;
        for user in users {
            self.queue_user(state, &key, user);
        }
        self.send_user(state, leaf, &key);
        true
    }

    /// The pass leaves a lane: the next one goes on at these jobs.
    pub(super) fn mark_users(&mut self, state: &State, lane: &Lane, candidate: &Candidate) {
        let (is_within, tier, leaf) = lane;
        let heads = self.heads.get(leaf).into_iter().flat_map(BTreeMap::keys);
        let heads = heads.filter(|(of, ..)| of.0 == *tier);
        let of_head = |tenant: &Name, turn: QueuePosition| {
            let user = Line::sharing_user(state, tenant, turn.job)?;
            Some(((*is_within, *tier, tenant.clone()), (user, turn)))
        };
        let others = heads.filter_map(|(_, turn, tenant)| of_head(tenant, turn.0));
        let marks: Vec<_> = others.chain(of_head(&candidate.tenant, candidate.turn)).collect();
        self.leaves_off.users.extend(marks);
    }

    /// A user has its place in the order, unless it has no job to send.
    fn queue_user(&mut self, state: &State, key: &UsersKey, user: String) {
        let Some((turn, _)) = self.next_of_user(state, key, &user) else { return };
        let capacity = self.tournament.capacity();
        let Some(turns) = self.users.get(key) else { return };
        let looks = turns.walks.get(&user).map_or(0, |walk| walk.looks);
        let (round, share) = if turns.rotates {
            (looks, 0)
        } else {
            (looks / turns.part.max(1), state.user_share(&key.1, &user, self.now, capacity))
        };
        if let Some(turns) = self.users.get_mut(key) {
            turns.order.insert((round, share, turn, user));
        }
    }

    /// The user whose turn it is sends its job.
    fn send_user(&mut self, state: &State, leaf: &Leaf, key: &UsersKey) {
        loop {
            let first = self.users.get_mut(key).and_then(|turns| turns.order.pop_first());
            let Some((.., user)) = first else { return };
            // Its like may have been found to wait since it came into the order.
            let Some((turn, class)) = self.next_of_user(state, key, &user) else { continue };
            if let Some(walk) = self.users.get_mut(key).and_then(|turns| turns.walks.get_mut(&user)) {
                walk.alike.remove(&turn);
            }
            let heads = self.heads.entry(leaf.clone()).or_default();
            heads.insert((Reverse(key.0), HeadTurn(turn), key.1.clone()), class);
            return;
        }
    }

    /// The next job that a user sends: the first of a class behind those that had their turn, or one of a class of which some do not
    /// stand for the others.
    fn next_of_user(&self, state: &State, key: &UsersKey, user: &str) -> Option<(QueuePosition, GangClass)> {
        let (tier, tenant) = (key.0, &key.1);
        let walk = self.users.get(key)?.walks.get(user)?;
        let asks = asker(&state.policy().policy, tenant);
        let mut behind = walk.behind;
        let of_lane = loop {
            match state.user_head_behind(tier, tenant, user, behind) {
                Some((turn, class)) if self.waiting.contains(&(tier, asks.clone(), class)) => {
                    behind = Some(turn);
                }
                next => break next,
            }
        };
        let alike = walk.alike.first_key_value().map(|(turn, class)| (*turn, *class));
        of_lane.into_iter().chain(alike).min_by_key(|(turn, _)| *turn)
    }
}

/// A user of a tenant with jobs that wait, where users share what it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserPlace {
    /// Who.
    pub user: String,
    /// What it has used for its weight: see [`State::user_share`].
    pub share: u64,
}

/// Users of a tenant with jobs of a tier that wait for capacity, in the order of their turns; none where users do not share what the
/// tenant gets.
#[must_use]
pub fn users_by_turn(state: &State, tier: PriorityTier, tenant: &Name, now: LogTime) -> Vec<UserPlace> {
    let capacity = state.capacity();
    let users = state.users_in_line(tier, tenant);
    let order: BTreeSet<(u64, QueuePosition, &str)> =
        users.map(|(user, turn)| (state.user_share(tenant, user, now, &capacity), turn, user)).collect();
    order.into_iter().map(|(share, _, user)| UserPlace { user: user.into(), share }).collect()
}
