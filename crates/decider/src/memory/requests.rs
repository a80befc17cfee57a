//! Counts the requests of each tenant whose ids have to be remembered, so that no tenant fills the table of request ids.
//!
//! Each leader counts for itself. The counts are not in the log, so a change of leader forgets them: with each change a tenant
//! gains at most one minute's requests.
//!
//! **Invariant:** a request that is refused is not counted; one that is repeated is answered before it comes here.
//! **Invariant:** what is kept is bounded by the tenants that the policy names, by [`USERS_COUNTED_MAX`], and by a few minutes.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_state::State;
use muster_types::metadata::ANONYMOUS;
use muster_types::policy::Policy;
use muster_types::{LogTime, Name, Parameters, PriorityTier, Refusal, RefusalCode};

const MINUTE_MS: u64 = 60_000;

/// Minutes that are counted: as long as a request id is kept under any pressure. Older ids are dropped when the table is
/// full.
const MINUTES_COUNTED: usize = (Parameters::REQUEST_RETENTION_MIN_MS / MINUTE_MS) as usize + 1;

/// Users whose submissions are counted one by one; those beyond are one user of their tenant.
const USERS_COUNTED_MAX: usize = 65_536;

/// A user of a tenant; the name is empty for those that nobody knows.
type User = (Name, String);

/// What tenants have asked for of late, under one leadership.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    /// What each tenant with a limit has used of it.
    used: BTreeMap<Name, Used>,
    /// The same of each user with a limit.
    used_by_users: BTreeMap<User, Used>,
    /// The same of each tenant's submissions with jobs of a tier that has a limit.
    used_by_tiers: BTreeMap<(Name, PriorityTier), Used>,
    /// By minute, the oldest first.
    minutes: VecDeque<(u64, BTreeMap<Name, u64>)>,
}

/// What is used of a limit: it goes down with time, by the limit in a minute.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    /// Requests times milliseconds of a minute.
    level: u64,
    at: LogTime,
}

impl Used {
    /// What is left of it by now.
    fn by(self, now: LogTime, limit: u32) -> u64 {
        self.level.saturating_sub(u64::from(limit).saturating_mul(now.since_ms(self.at)))
    }

    /// The part of a limit that is used with one more request. Where that is too much, the time after which it is not.
    fn with_one_more(used: Option<&Used>, limit: u32, now: LogTime) -> Result<u64, u64> {
        let most = u64::from(limit) * MINUTE_MS;
        let with_one = used.map_or(0, |used| used.by(now, limit)) + MINUTE_MS;
        if with_one <= most {
            return Ok(with_one);
        }
        // A limit of nothing is looked at again in a minute.
        Err((with_one - most).div_ceil(u64::from(limit).max(1)).min(MINUTE_MS))
    }
}

/// Under which name a tenant's requests are counted: those that the policy does not name are one.
pub(super) fn counted<'a>(policy: &'a Policy, tenant: &'a Name) -> &'a Name {
    if policy.tenants.contains_key(tenant) { tenant } else { policy.unlisted() }
}

impl Requests {
    /// Counts one request of these tenants, for each of them.
    ///
    /// # Errors
    /// `OVERLOADED` if a tenant has made as many requests in a minute as the policy allows; `STATE_FULL` if it holds as many
    /// request ids as are free. Nothing is counted then.
    pub(crate) fn take<'a>(
        &mut self,
        state: &State,
        now: LogTime,
        tenants: impl IntoIterator<Item = &'a Name>,
    ) -> Result<(), Refusal> {
        self.take_as(state, now, tenants, &BTreeSet::new(), &BTreeSet::new())
    }

    /// Counts one submission of these users, for each of them and for each of their tenants, and for each tier of its jobs.
    ///
    /// # Errors
    /// Those of [`Requests::take`], and `OVERLOADED` if as many submissions of a user or with jobs of a tier were made in a minute
    /// as the policy allows.
    /// Nothing is counted then.
    pub(crate) fn take_submission<'a>(
        &mut self,
        state: &State,
        now: LogTime,
        users: &BTreeSet<(&'a Name, &'a str)>,
        tiers: &BTreeSet<(&'a Name, PriorityTier)>,
    ) -> Result<(), Refusal> {
        self.take_as(state, now, users.iter().map(|(tenant, _)| *tenant), users, tiers)
    }

    fn take_as<'a>(
        &mut self,
        state: &State,
        now: LogTime,
        tenants: impl IntoIterator<Item = &'a Name>,
        users: &BTreeSet<(&'a Name, &'a str)>,
        tiers: &BTreeSet<(&'a Name, PriorityTier)>,
    ) -> Result<(), Refusal> {
        let policy = &state.policy().policy;
        if policy.tenants.is_empty() {
            return Ok(());
        }
        let mut user_levels: BTreeMap<User, u64> = BTreeMap::new();
        for (tenant, user) in users {
            let tenant = counted(policy, tenant);
            if let Some(limit) = policy.limit(tenant, |limits| limits.user.submissions_per_minute) {
                let user = self.counted_user(tenant, user);
                let level = self.check_user(&user, limit, now)?;
                user_levels.insert(user, level);
            }
        }
        let mut tier_levels: BTreeMap<(Name, PriorityTier), u64> = BTreeMap::new();
        for (tenant, tier) in tiers {
            let tenant = counted(policy, tenant);
            if let Some(limit) = policy.tier_submissions(tenant, *tier) {
                let counted_as = (tenant.clone(), *tier);
                let level = self.check_tier(&counted_as, limit, now)?;
                tier_levels.insert(counted_as, level);
            }
        }
        let named: BTreeSet<&Name> = tenants.into_iter().map(|tenant| counted(policy, tenant)).collect();
        let free = state.parameters().requests_held_max.saturating_sub(state.requests_count() as u64);
        // Far below the bound nobody is asked.
        let is_scarce = free < state.parameters().requests_held_max / 2;
        let mut levels: Vec<(Name, u64)> = Vec::new();
        for tenant in &named {
            if let Some(limit) = policy.limit(tenant, |limits| limits.requests_per_minute) {
                levels.push(((*tenant).clone(), self.check_rate(tenant, limit, now)?));
            }
            if is_scarce {
                self.check_share(tenant, free, now)?;
            }
        }
        for (tenant, level) in levels {
            self.used.insert(tenant, Used { level, at: now });
        }
        for (user, level) in user_levels {
            self.used_by_users.insert(user, Used { level, at: now });
        }
        for (counted_as, level) in tier_levels {
            self.used_by_tiers.insert(counted_as, Used { level, at: now });
        }
        self.count(&named, now);
        Ok(())
    }

    /// The part of its limit that a tenant has used with one more request.
    fn check_rate(&mut self, tenant: &Name, limit: u32, now: LogTime) -> Result<u64, Refusal> {
        let wait_ms = match Used::with_one_more(self.used.get(tenant), limit, now) {
            Ok(level) => return Ok(level),
            Err(wait_ms) => wait_ms,
        };
        let text = format!(
            "tenant {tenant} may make {limit} requests in a minute (`limits.requestsPerMinute` in the policy) and has made \
             them; try again in {wait_ms} ms"
        );
        Err(Refusal::new(RefusalCode::Overloaded, text)
            .with("tenant", tenant)
            .with("limit", "requestsPerMinute")
            .with("limit_max", limit)
            .with("retry_after_ms", wait_ms))
    }

    /// Under which name the submissions of a user are counted.
    fn counted_user(&self, tenant: &Name, user: &str) -> User {
        let own = (tenant.clone(), String::from(user));
        if self.used_by_users.len() < USERS_COUNTED_MAX || self.used_by_users.contains_key(&own) {
            return own;
        }
        (tenant.clone(), String::new())
    }

    /// The part of its limit that a user has used with one more submission.
    fn check_user(&self, user: &User, limit: u32, now: LogTime) -> Result<u64, Refusal> {
        let wait_ms = match Used::with_one_more(self.used_by_users.get(user), limit, now) {
            Ok(level) => return Ok(level),
            Err(wait_ms) => wait_ms,
        };
        let (tenant, name) = user;
        let name = if name.is_empty() { ANONYMOUS } else { name.as_str() };
        let text = format!(
            "user {name} of tenant {tenant} may make {limit} submissions in a minute (`limits.user.submissionsPerMinute` in \
             the policy) and has made them; try again in {wait_ms} ms"
        );
        Err(Refusal::new(RefusalCode::Overloaded, text)
            .with("tenant", tenant)
            .with("user", name)
            .with("limit", "user.submissionsPerMinute")
            .with("limit_max", limit)
            .with("retry_after_ms", wait_ms))
    }

    /// The part of its limit that a tenant has used with one more submission with jobs of a tier.
    fn check_tier(
        &self,
        counted_as: &(Name, PriorityTier),
        limit: u32,
        now: LogTime,
    ) -> Result<u64, Refusal> {
        let wait_ms = match Used::with_one_more(self.used_by_tiers.get(counted_as), limit, now) {
            Ok(level) => return Ok(level),
            Err(wait_ms) => wait_ms,
        };
        let (tenant, tier) = counted_as;
        let text = format!(
            "tenant {tenant} may make {limit} submissions with {tier} jobs in a minute (`limits.tiers` in the policy) and has \
             made them; try again in {wait_ms} ms, or submit in another tier"
        );
        Err(Refusal::new(RefusalCode::Overloaded, text)
            .with("tenant", tenant)
            .with("limit", format!("tiers.{tier}.submissionsPerMinute"))
            .with("limit_max", limit)
            .with("retry_after_ms", wait_ms))
    }

    /// Whether more request ids are free than the tenant has taken recently.
    fn check_share(&mut self, tenant: &Name, free: u64, now: LogTime) -> Result<(), Refusal> {
        let oldest = (now.0 / MINUTE_MS).saturating_sub(MINUTES_COUNTED as u64);
        let minutes = self.minutes.iter().filter(|(minute, _)| *minute >= oldest);
        let own: u64 = minutes.filter_map(|(_, counts)| counts.get(tenant)).sum();
        if own < free {
            return Ok(());
        }
        let text = format!(
            "tenant {tenant} has made {own} recent requests whose ids are remembered, and {free} ids are free: these are kept for \
             other tenants; try again later"
        );
        Err(Refusal::new(RefusalCode::StateFull, text)
            .with("limit", "requests_held_share")
            .with("tenant", tenant)
            .with("held", own)
            .with("held_max", free)
            .with("retry_after_ms", 5_000))
    }

    fn count(&mut self, tenants: &BTreeSet<&Name>, now: LogTime) {
        let minute = now.0 / MINUTE_MS;
        if self.minutes.back().is_none_or(|(newest, _)| *newest < minute) {
            self.minutes.push_back((minute, BTreeMap::new()));
            while self.minutes.len() > MINUTES_COUNTED {
                self.minutes.pop_front();
            }
            // Who has used nothing of its limit, or is not named any more, is not kept. A minute uses up the largest one.
            self.used.retain(|_, used| now.since_ms(used.at) < MINUTE_MS);
            self.used_by_users.retain(|_, used| now.since_ms(used.at) < MINUTE_MS);
            self.used_by_tiers.retain(|_, used| now.since_ms(used.at) < MINUTE_MS);
        }
        let Some((_, counts)) = self.minutes.back_mut() else { return };
        for tenant in tenants {
            match counts.get_mut(*tenant) {
                Some(count) => *count += 1,
                None => _ = counts.insert((*tenant).clone(), 1),
            }
        }
    }
}
