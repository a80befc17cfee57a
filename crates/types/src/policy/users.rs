//! Shares of the users of one tenant.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use super::queue::QueueOrder;
use super::{JobLimits, Policy, TenantPolicy, WEIGHT_MILLI_MAX, check_bound, check_count};
use crate::job::PriorityTier;
use crate::limits;
use crate::name::Name;
use crate::reason::Violation;
use crate::token::user_of;

/// Most users of one tenant that a policy gives a weight.
pub const USER_WEIGHTS_MAX: usize = 1_024;

/// How the users of a tenant share what it gets: its waiting jobs of one tier are ordered by users first, the one that has used least
/// for its weight before all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserShares {
    /// The weight of a user without one in `weights_milli`, in thousandths.
    pub default_weight_milli: u32,
    /// The weights of some users, in thousandths. A user is given by its name in the tenant, or as the creator of jobs, without a token.
    pub weights_milli: BTreeMap<String, u32>,
}

impl Default for UserShares {
    fn default() -> Self {
        UserShares { default_weight_milli: 1_000, weights_milli: BTreeMap::new() }
    }
}

impl UserShares {
    pub(super) fn check(&self, at: &str, found: &mut Vec<Violation>) {
        let max = u64::from(WEIGHT_MILLI_MAX);
        check_bound(&format!("{at}.default_weight_milli"), self.default_weight_milli.into(), 1, max, found);
        let field = format!("{at}.weights_milli");
        check_count(&field, self.weights_milli.len(), USER_WEIGHTS_MAX, found);
        for (user, weight_milli) in &self.weights_milli {
            if !check_user(&field, user, found) {
                return;
            }
            if !(1..=WEIGHT_MILLI_MAX).contains(weight_milli) {
                let text = format!("of {user} must be between 1 and {max}, got {weight_milli}");
                found.push(Violation::new(&field, text));
            }
        }
    }

    /// The weight of a user of a tenant, given as the creator of its jobs without a token.
    #[must_use]
    pub fn weight_milli(&self, tenant: &Name, user: &str) -> u32 {
        let own = || self.weights_milli.get(name_in(tenant, user)?);
        self.weights_milli.get(user).or_else(own).copied().unwrap_or(self.default_weight_milli)
    }
}

/// Whether a policy may give something to a user by this name; a violation where not.
fn check_user(field: &str, user: &str, found: &mut Vec<Violation>) -> bool {
    let is_user = !user.is_empty()
        && user.len() <= limits::CREATOR_BYTES_MAX
        && user.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'+');
    if !is_user {
        let max = limits::CREATOR_BYTES_MAX;
        let text =
            format!("must name users as the creators of jobs do, without a token, in at most {max} bytes");
        found.push(Violation::new(field, text));
    }
    is_user
}

/// Checks what a tenant states of jobs of single users.
pub(super) fn check_user_limits(tenant: &TenantPolicy, at: &str, found: &mut Vec<Violation>) {
    let field = format!("{at}.limits.users");
    check_count(&field, tenant.user_limits.len(), USER_WEIGHTS_MAX, found);
    for (user, limits) in &tenant.user_limits {
        if !check_user(&field, user, found) {
            return;
        }
        let mut of_user = Vec::new();
        limits.check("job", &mut of_user);
        found
            .extend(of_user.into_iter().map(|broken| Violation::new(&field, format!("of {user}, {broken}"))));
    }
}

/// The name of a user in its tenant; none for who is not one of the tenant.
fn name_in<'a>(tenant: &Name, user: &'a str) -> Option<&'a str> {
    user.strip_prefix("tenant/")?.strip_prefix(tenant.as_str())?.strip_prefix('/')
}

/// Checks what a tenant states of its users next to the order of its queue.
pub(super) fn check_users(tenant: &TenantPolicy, at: &str, found: &mut Vec<Violation>) {
    let Some(users) = &tenant.users else { return };
    let field = format!("{at}.users");
    users.check(&field, found);
    if tenant.queue.order == Some(QueueOrder::Strict) {
        found.push(Violation::new(
            field,
            "must be left out with `queue.order: strict`: in strict order no job goes past another, also not one of another user",
        ));
    }
}

impl TenantPolicy {
    /// What it states of one job of a user, given as the creator of the job without a token, and by the name that it knows the user
    /// by.
    fn limits_of_user(&self, name: Option<&str>, user: &str) -> Option<JobLimits> {
        let own = || self.user_limits.get(name?);
        self.user_limits.get(user).or_else(own).copied()
    }
}

impl Policy {
    /// What one job of a user of a tenant may ask for in a tier, given its creator. What is stated of the user holds in addition to
    /// what is stated of every job: the lower of both. Its default run time goes before that of every job.
    #[must_use]
    pub fn job_limits_of_user(&self, tenant: &Name, tier: PriorityTier, creator: &str) -> JobLimits {
        let of_all = self.job_limits(tenant, tier);
        if !self.queues.has_user_limits {
            return of_all;
        }
        let (user, mut name) = (user_of(creator), None);
        let mut stated = JobLimits::default();
        for above in self.ancestry(tenant) {
            // A tenant and those above it know its users by their names, also where these submit for a tenant below: else they
            // would be rid of their limits there.
            name = name.or_else(|| name_in(above, user));
            let of_user = self.tenants.get(above).and_then(|above| above.limits_of_user(name, user));
            stated = stated.or(of_user.unwrap_or_default());
        }
        stated.within(of_all)
    }

    /// Whether some tenant states what one job of some user may ask for.
    #[must_use]
    pub fn has_user_limits(&self) -> bool {
        self.queues.has_user_limits
    }

    /// How the users of a tenant share what it gets; none where they do not, and in strict order.
    #[must_use]
    pub fn user_shares(&self, tenant: &Name) -> Option<&UserShares> {
        if !self.queues.has_user_shares {
            return None;
        }
        let shares = self.tenants.get(tenant)?.users.as_ref()?;
        (self.queue_order(tenant) != QueueOrder::Strict).then_some(shares)
    }

    /// Whether users of some tenant share what it gets.
    #[must_use]
    pub fn has_user_shares(&self) -> bool {
        self.queues.has_user_shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyDraft;
    use crate::policy::queue::QueueChoices;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn draft(tenant: TenantPolicy) -> PolicyDraft {
        let mut draft = PolicyDraft::default();
        draft.tenants.insert(name("lab"), tenant);
        draft
    }

    fn shares(weights: &[(&str, u32)]) -> UserShares {
        let weights = weights.iter().map(|(user, weight)| (String::from(*user), *weight));
        UserShares { weights_milli: weights.collect(), ..UserShares::default() }
    }

    #[test]
    fn a_user_has_its_weight_by_either_name() {
        let shares = shares(&[("ada", 2_000), ("operator/eve", 3_000)]);
        let lab = name("lab");
        assert_eq!(shares.weight_milli(&lab, "tenant/lab/ada"), 2_000);
        assert_eq!(shares.weight_milli(&lab, "tenant/other/ada"), 1_000);
        assert_eq!(shares.weight_milli(&lab, "operator/eve"), 3_000);
        assert_eq!(shares.weight_milli(&lab, ""), 1_000);
    }

    #[test]
    fn weights_are_within_bounds_and_strict_order_has_no_shares() {
        let fields = |tenant: TenantPolicy| -> Vec<String> {
            let found = draft(tenant).check().err().unwrap_or_default();
            found.into_iter().map(|violation| violation.field).collect()
        };
        let with = |users: UserShares| TenantPolicy { users: Some(users), ..TenantPolicy::default() };
        assert_eq!(fields(with(shares(&[("ada", 0)]))), ["tenants.lab.users.weights_milli"]);
        assert_eq!(fields(with(shares(&[("a+token/1", 1)]))), ["tenants.lab.users.weights_milli"]);
        let limited = |user: &str, limits| TenantPolicy {
            user_limits: [(String::from(user), limits)].into(),
            ..TenantPolicy::default()
        };
        let endless = JobLimits { run_time_max_ms: Some(0), ..JobLimits::default() };
        assert!(fields(limited("ada", JobLimits::default())).is_empty());
        assert_eq!(fields(limited("ada", endless)), ["tenants.lab.limits.users"]);
        assert_eq!(fields(limited("a+token/1", JobLimits::default())), ["tenants.lab.limits.users"]);
        let zero = UserShares { default_weight_milli: 0, ..UserShares::default() };
        assert_eq!(fields(with(zero)), ["tenants.lab.users.default_weight_milli"]);
        let strict = QueueChoices { order: Some(QueueOrder::Strict), ..QueueChoices::default() };
        let both = TenantPolicy { queue: strict.clone(), ..with(UserShares::default()) };
        assert_eq!(fields(both), ["tenants.lab.users"]);
        // Below a tenant in strict order the order of that holds.
        let mut above = draft(TenantPolicy { parent: Some(name("org")), ..with(UserShares::default()) });
        above.tenants.insert(name("org"), TenantPolicy { queue: strict, ..TenantPolicy::default() });
        let policy = above.check().expect("it breaks no rule");
        assert!(policy.has_user_shares() && policy.user_shares(&name("lab")).is_none());
    }
}
