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

use super::{Described, Indexes, JobIndexKeys, QueuePosition, TenantLine};
use crate::rows::GangClass;
use crate::state::State;
use crate::tree::Map;

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
    fn has_user_lines(&self, tenant: &Name) -> bool {
        self.effective.user_shares(tenant).is_some()
    }

    pub(super) fn join_user_line(
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

impl State {
    /// Makes the lanes of users again, for the policy that the indexes know.
    pub(crate) fn line_up_users(&self, indexes: &mut Indexes) {
        indexes.user_lines = Map::default();
        indexes.waiting_by_user = Map::default();
        if !indexes.effective.has_user_shares() {
            return;
        }
        for (id, row) in self.jobs.iter().filter(|(_, row)| row.is_in_line()) {
            let Some(spec) = self.described(*id).filter(|spec| indexes.has_user_lines(&spec.tenant)) else {
                continue;
            };
            let keys = JobIndexKeys::of(row, &spec, self.burst_turn(*id, row), self.retry_wait(*id));
            if let Some((group, turn)) = keys.line {
                indexes.join_user_line(*id, &spec, group, turn);
            }
        }
    }

    /// Users with pending jobs of a tenant and tier, with the first turn of each, where the users of the tenant share what it gets.
    pub fn users_in_line(
        &self,
        tier: PriorityTier,
        tenant: &Name,
    ) -> impl Iterator<Item = (&str, QueuePosition)> {
        let from = (Reverse(tier), tenant.clone(), String::new());
        let of_tenant = (Reverse(tier), tenant.clone());
        let lines = self.indexes.user_lines.range(from..);
        let lines =
            lines.take_while(move |((tier, name, _), _)| (*tier, name) == (of_tenant.0, &of_tenant.1));
        lines.filter_map(|((.., user), line)| line.heads.first().map(|(turn, _)| (user.as_str(), *turn)))
    }

    /// The next behind `after` among the first of every class that a user of such a tenant has pending; the very first without it.
    #[must_use]
    pub fn user_head_behind(
        &self,
        tier: PriorityTier,
        tenant: &Name,
        user: &str,
        after: Option<QueuePosition>,
    ) -> Option<(QueuePosition, GangClass)> {
        let line = self.user_line(tier, tenant, user)?;
        let from = match after {
            Some(turn) => Bound::Excluded((turn, GangClass::LAST)),
            None => Bound::Unbounded,
        };
        line.heads.range((from, Bound::Unbounded)).next().copied()
    }

    /// The next pending job of a user of such a tenant that asks for the same: see [`State::next_alike`].
    #[must_use]
    pub fn next_alike_of_user(
        &self,
        of: UserLane<'_>,
        place: QueuePosition,
        job: JobId,
    ) -> Option<(QueuePosition, JobId)> {
        let group = self.burst_of(job)?;
        let in_group = |job| (group, String::from(of.user), job);
        let rest = (Bound::Excluded(in_group(job)), Bound::Included(in_group(JobId(u64::MAX))));
        if let Some(((_, _, next), _)) = self.indexes.waiting_by_user.range(rest).next() {
            return Some((place, *next));
        }
        let lanes = &self.user_line(of.tier, of.tenant, of.user)?.lanes;
        let (class, next) =
            lanes.range((Bound::Excluded((of.class, place)), Bound::Unbounded)).next().copied()?;
        (class == of.class).then_some((next, next.job))
    }

    fn user_line(&self, tier: PriorityTier, tenant: &Name, user: &str) -> Option<&TenantLine> {
        self.indexes.user_lines.get(&(Reverse(tier), tenant.clone(), String::from(user)))
    }
}
