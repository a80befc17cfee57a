//! What the users of a tenant have used, where they share what the tenant gets.
//!
//! It is counted as the use of tenants is, with the same half-life. Only tenants are counted whose policy states shares of users,
//! and a count begins with what runs when they are stated for the first time.
//!
//! **Bound.** Of a user of whom something runs there is a row. The others have one until their use has decayed to next to nothing,
//! or until the tenant has as many rows as it may and another user begins to use something: then the one goes whose use was counted
//! last the longest time ago.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_types::token::user_of;
use muster_types::{JobId, LogTime, Name, limits};

use crate::index::{Indexes, UserKey};
use crate::rows::Charge;
use crate::state::State;
use crate::usage::{Capacity, TenantUsage};
use crate::verify::BrokenInvariant;

impl State {
    /// What a user of a tenant has used; none where that is nothing, or users of the tenant do not share what it gets.
    #[must_use]
    pub fn user_usage(&self, tenant: &Name, user: &str) -> Option<&TenantUsage> {
        self.user_usage.get(&(tenant.clone(), String::from(user_of(user))))
    }

    /// The share of a user for its weight, by which the users of its tenant take turns: the least goes first. Zero where they do not.
    #[must_use]
    pub fn user_share(&self, tenant: &Name, user: &str, now: LogTime, capacity: &Capacity) -> u64 {
        let Some(shares) = self.policy.policy.user_shares(tenant) else { return 0 };
        let user = user_of(user);
        let weight_milli = shares.weight_milli(tenant, user);
        self.user_usage(tenant, user).map_or(0, |usage| usage.share(now, capacity, weight_milli))
    }

    /// Users of a tenant who have used something that still counts, by name, with what that is.
    pub fn users_with_usage(&self, tenant: &Name) -> impl Iterator<Item = (&str, &TenantUsage)> {
        let from: UserKey = (tenant.clone(), String::new());
        let tenant = tenant.clone();
        let rows = self.user_usage.range(from..).take_while(move |((of, _), _)| *of == tenant);
        rows.map(|((_, user), usage)| (user.as_str(), usage))
    }

    /// A job is charged for something else from now on.
    pub(crate) fn count_user(
        &mut self,
        job: JobId,
        tenant: &Name,
        before: Option<&Charge>,
        after: Option<&Charge>,
    ) {
        let policy = Arc::clone(&self.policy.policy);
        if policy.user_shares(tenant).is_none() || (before.is_none() && after.is_none()) {
            return;
        }
        let now = self.meta.log_time;
        let half_life_ms = policy.order.usage_half_life_ms;
        let key: UserKey = (tenant.clone(), String::from(user_of(self.creator(job))));
        let known = self.user_usage.get(&key).cloned();
        if known.is_none() {
            self.make_room_for_user(tenant);
        }
        let mut row = known.unwrap_or_else(|| TenantUsage::new(now, half_life_ms));
        row.advance(now, half_life_ms);
        for rate in before.iter().flat_map(|charge| charge.rates()) {
            row.stop(now, rate);
        }
        for rate in after.iter().flat_map(|charge| charge.rates()) {
            row.start(now, rate);
        }
        self.set_user_usage(key, row);
    }

    /// A tenant that has as many rows of users as it may forgets the idle one whose use was counted last the longest time ago.
    fn make_room_for_user(&mut self, tenant: &Name) {
        if self.users_with_usage(tenant).count() < limits::SHARING_USERS_MAX {
            return;
        }
        let idle = self.users_with_usage(tenant).filter(|(_, usage)| usage.is_idle());
        let oldest =
            idle.min_by_key(|(user, usage)| (usage.as_of(), *user)).map(|(user, _)| String::from(user));
        if let Some(user) = oldest {
            self.drop_user_usage(&(tenant.clone(), user));
        }
    }

    fn set_user_usage(&mut self, key: UserKey, row: TenantUsage) {
        self.drop_user_usage(&key);
        if !row.is_spent() {
            self.indexes.add_user_usage(&key, &row);
            self.user_usage.insert(key, row);
        }
    }

    fn drop_user_usage(&mut self, key: &UserKey) {
        if let Some(row) = self.user_usage.get(key) {
            self.indexes.idle_users.remove(&(row.as_of(), key.clone()));
        }
        self.user_usage.remove(key);
    }

    /// Counts what runs for users as a new policy says, from now on. What those have used stays counted whose tenant goes on with it.
    pub(crate) fn recount_users(&mut self) {
        let now = self.meta.log_time;
        let policy = Arc::clone(&self.policy.policy);
        if self.user_usage.is_empty() && !policy.has_user_shares() {
            return;
        }
        let half_life_ms = policy.order.usage_half_life_ms;
        let mut rows: BTreeMap<UserKey, TenantUsage> = BTreeMap::new();
        let old: Vec<(UserKey, TenantUsage)> =
            self.user_usage.iter().map(|(key, row)| (key.clone(), row.clone())).collect();
        for (key, mut row) in old {
            self.drop_user_usage(&key);
            if policy.user_shares(&key.0).is_some() {
                row.advance(now, half_life_ms);
                row.stop_all(now);
                rows.insert(key, row);
            }
        }
        let new = || TenantUsage::new(now, half_life_ms);
        self.each_users_charge(|key, charge| {
            let row = rows.entry(key).or_insert_with(new);
            for rate in charge.rates() {
                row.start(now, rate);
            }
        });
        for (key, row) in rows {
            self.set_user_usage(key, row);
        }
    }

    /// What jobs are charged for of tenants whose users share what they get, with the user of each.
    fn each_users_charge(&self, mut each: impl FnMut(UserKey, &Charge)) {
        let policy = &self.policy.policy;
        if !policy.has_user_shares() {
            return;
        }
        let holders: BTreeSet<JobId> = self.active().chain(self.promised()).collect();
        for job in holders {
            let (Some(row), Some(spec)) = (self.jobs.get(&job), self.specs.get(&job)) else { continue };
            let Some((_, charge)) = row.charge() else { continue };
            if policy.user_shares(&spec.tenant).is_some() {
                each((spec.tenant.clone(), String::from(user_of(self.creator(job)))), charge);
            }
        }
    }

    /// Forgets users of whom nothing runs and whose past use has decayed to next to nothing. Only those are looked at whose use was
    /// counted last the longest time ago.
    pub(crate) fn sweep_users(&mut self) {
        let now = self.meta.log_time;
        let oldest = self.indexes.idle_users.iter().take(limits::PRUNE_ROWS_MAX as usize);
        let spent =
            oldest.filter(|(_, key)| self.user_usage.get(key).is_some_and(|row| row.is_negligible(now)));
        let spent: Vec<UserKey> = spent.map(|(_, key)| key.clone()).collect();
        for key in spent {
            self.drop_user_usage(&key);
        }
    }

    /// Whether the use of the user that was counted last the longest time ago has decayed to next to nothing.
    #[must_use]
    pub fn has_users_to_forget(&self, now: LogTime) -> bool {
        let oldest = self.indexes.idle_users.first().and_then(|(_, key)| self.user_usage.get(key));
        oldest.is_some_and(|row| row.is_negligible(now))
    }

    /// Rows are of tenants whose users share what they get, say something, and count what runs.
    pub(crate) fn verify_user_usage(&self) -> Result<(), BrokenInvariant> {
        let policy = &self.policy.policy;
        if self.user_usage.is_empty() && !policy.has_user_shares() {
            return Ok(());
        }
        let broken = |(tenant, user): &UserKey, what: &str| {
            BrokenInvariant(format!("the row of use of user {user} of tenant {tenant} {what}"))
        };
        let mut fresh: BTreeMap<UserKey, TenantUsage> = BTreeMap::new();
        let new = || TenantUsage::new(LogTime(0), policy.order.usage_half_life_ms);
        // Not the indexes: they may not be made yet.
        for (job, row) in self.jobs.iter() {
            let (Some((_, charge)), Some(spec)) = (row.charge(), self.specs.get(job)) else { continue };
            if policy.user_shares(&spec.tenant).is_none() {
                continue;
            }
            let user = String::from(user_of(self.creator(*job)));
            let row = fresh.entry((spec.tenant.clone(), user)).or_insert_with(new);
            for rate in charge.rates() {
                row.start(LogTime(0), rate);
            }
        }
        for (key, row) in self.user_usage.iter() {
            if policy.user_shares(&key.0).is_none()
                || row.is_spent()
                || key.1.len() > limits::CREATOR_BYTES_MAX
            {
                return Err(broken(key, "has no meaning"));
            }
            let counted = fresh.remove(key).unwrap_or_else(new);
            if !is_same_rate(&counted, row) {
                return Err(broken(key, "does not count what runs"));
            }
        }
        let missing = fresh.iter().find(|(_, row)| !row.is_idle());
        missing.map_or(Ok(()), |(key, _)| Err(broken(key, "is missing")))
    }
}

/// Whether the same runs of both.
fn is_same_rate(one: &TenantUsage, other: &TenantUsage) -> bool {
    fn running(of: &TenantUsage) -> Vec<(&Name, u64)> {
        of.running().filter(|(_, milli)| *milli > 0).collect()
    }
    running(one) == running(other)
        && one.running_cpu_milli() == other.running_cpu_milli()
        && one.running_memory_bytes() == other.running_memory_bytes()
}

impl Indexes {
    pub(crate) fn add_user_usage(&mut self, key: &UserKey, row: &TenantUsage) {
        if row.is_idle() {
            self.idle_users.insert((row.as_of(), key.clone()));
        }
    }
}
