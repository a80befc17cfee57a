//! Whose jobs of a tenant are next where its users share what it gets: the lanes of its users, made and asked.

use alloc::string::String;
use core::cmp::Reverse;
use core::ops::Bound;
use muster_types::{JobId, Name, PriorityTier};

use crate::index::{Indexes, JobIndexKeys, QueuePosition, TenantLine, UserLane};
use crate::rows::GangClass;
use crate::state::State;
use crate::tree::Map;

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
