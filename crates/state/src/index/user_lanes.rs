//! The pending queue of tenants whose users share what they get, user by user.
//!
//! It holds the same jobs as the pending queue of their tenants, which stays as it is: in a lane of a user, a submission group
//! stands where the first of its jobs that are this user's does. For other tenants nothing is kept here.

use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Bound;
use muster_types::token::user_of;
use muster_types::{JobId, Name, PriorityTier, QueueKey};

use super::{Described, Indexes, JobIndexKeys, QueuePosition};
use crate::rows::GangClass;

/// The part of the pending queue that is one user's: a tier, a tenant and the user.
pub(crate) type UserLineKey = (Reverse<PriorityTier>, Name, String);

/// The pending jobs of one class of a user.
#[derive(Clone, Copy, Debug)]
pub struct UserLane<'a> {
    /// Their tier.
    pub tier: PriorityTier,
    /// Whose they are.
    pub tenant: &'a Name,
    /// The user of the tenant.
    pub user: &'a str,
    /// What they ask for.
    pub class: GangClass,
}

impl Described {
    /// Who submitted the job, without the token; empty for those that nobody knows.
    pub(crate) fn user(&self) -> &str {
        self.metadata.as_deref().map_or("", |metadata| user_of(&metadata.creator))
    }
}

impl Indexes {
    pub(crate) fn has_user_lines(&self, tenant: &Name) -> bool {
        self.effective.user_shares(tenant).is_some()
    }

    pub(crate) fn join_user_line(
        &mut self,
        id: JobId,
        spec: &Described,
        group: Option<JobId>,
        turn: QueueKey,
    ) {
        if !self.has_user_lines(&spec.tenant) {
            return;
        }
        let (rank, class) = (spec.rank(), spec.facts.class);
        let own = (QueuePosition { rank, turn, job: id }, class);
        let Some(group) = group else {
            self.change_user_lane(spec, spec.user(), None, Some(own));
            return;
        };
        let user = spec.user();
        let first = self.first_of_user(group, user);
        self.waiting_by_user.insert((group, String::from(user), id), class);
        if first.is_none_or(|(first, _)| id < first) {
            let gone = first.map(|(job, class)| (QueuePosition { rank, turn, job }, class));
            self.change_user_lane(spec, user, gone, Some(own));
        }
    }

    pub(super) fn leave_user_line(
        &mut self,
        id: JobId,
        spec: &Described,
        group: Option<JobId>,
        turn: QueueKey,
    ) {
        if !self.has_user_lines(&spec.tenant) {
            return;
        }
        let (rank, class) = (spec.rank(), spec.facts.class);
        let own = (QueuePosition { rank, turn, job: id }, class);
        let Some(group) = group else {
            self.change_user_lane(spec, spec.user(), Some(own), None);
            return;
        };
        let user = spec.user();
        let first = self.first_of_user(group, user);
        let key = (group, String::from(user), id);
        assert!(self.waiting_by_user.remove(&key), "a pending job is known to its user and submission group");
        if first.is_some_and(|(first, _)| first == id) {
            let next = self.first_of_user(group, user);
            let next = next.map(|(job, class)| (QueuePosition { rank, turn, job }, class));
            self.change_user_lane(spec, user, Some(own), next);
        }
    }

    /// A pending job that was counted as nobody's is its creator's from now on.
    pub(crate) fn change_user_of_line(
        &mut self,
        id: JobId,
        before: &Described,
        after: &Described,
        keys: &JobIndexKeys,
    ) {
        if let Some((group, turn)) = keys.line {
            self.leave_user_line(id, before, group, turn);
            self.join_user_line(id, after, group, turn);
        }
    }

    /// A submission group has another turn. All of its jobs have one tenant, tier and rank.
    pub(crate) fn change_user_turns(
        &mut self,
        group: JobId,
        spec: &Described,
        before: QueueKey,
        after: QueueKey,
    ) {
        if !self.has_user_lines(&spec.tenant) {
            return;
        }
        let mut firsts: Vec<(String, JobId, GangClass)> = Vec::new();
        let mut from = Bound::Included((group, String::new(), JobId(0)));
        loop {
            let next = self.waiting_by_user.range((from, Bound::Unbounded)).next();
            let Some(((_, user, job), class)) = next.filter(|((of, ..), _)| *of == group) else { break };
            firsts.push((user.clone(), *job, *class));
            // The first of the next user.
            from = Bound::Excluded((group, user.clone(), JobId(u64::MAX)));
        }
        let rank = spec.rank();
        for (user, job, class) in firsts {
            let place = |turn| Some((QueuePosition { rank, turn, job }, class));
            self.change_user_lane(spec, &user, place(before), place(after));
        }
    }

    /// The first pending job of a user in a submission group of two or more, with its class.
    fn first_of_user(&self, group: JobId, user: &str) -> Option<(JobId, GangClass)> {
        let of_user = |job| (group, String::from(user), job);
        let range = of_user(JobId(0))..=of_user(JobId(u64::MAX));
        self.waiting_by_user.range(range).next().map(|((_, _, job), class)| (*job, *class))
    }

    /// Replaces a place in the lanes of a user.
    fn change_user_lane(
        &mut self,
        spec: &Described,
        user: &str,
        gone: Option<(QueuePosition, GangClass)>,
        new: Option<(QueuePosition, GangClass)>,
    ) {
        let key: UserLineKey = (Reverse(spec.tier), spec.tenant.clone(), String::from(user));
        let mut line = self.user_lines.take(&key).unwrap_or_default();
        if let Some((gone, class)) = gone {
            line.change(class, Some(gone), None);
        }
        if let Some((new, class)) = new {
            line.change(class, None, Some(new));
        }
        if !line.lanes.is_empty() {
            self.user_lines.insert(key, line);
        }
    }
}
