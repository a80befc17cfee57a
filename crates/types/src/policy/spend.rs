//! Budgets in dollars, and what becomes of work that meets a limit when it is submitted.

use alloc::format;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use super::{POLICY_DURATION_MS_MAX, Policy, USAGE_HALF_LIFE_MS_MIN};
use crate::name::Name;
use crate::reason::Violation;
use crate::time::LogTime;

/// How much may be spent in each window of log time, by the prices of the policy. Windows follow one another from the Unix epoch
/// on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpendBudget {
    /// Dollars.
    pub dollars: u32,
    /// The length of a window, in milliseconds.
    pub window_ms: u64,
}

impl SpendBudget {
    /// In millionths of a dollar an hour times thousandths of a device times milliseconds: what prices and charges multiply to.
    #[must_use]
    pub fn price_milli_ms(self) -> u128 {
        u128::from(self.dollars) * 1_000_000 * 1_000 * 3_600_000
    }

    /// When the window behind that of a moment begins.
    #[must_use]
    pub fn renews_at(self, now: LogTime) -> LogTime {
        let window_ms = self.window_ms.max(1);
        LogTime(now.0 - now.0 % window_ms).plus_ms(window_ms)
    }

    pub(super) fn check(self, at: &str, found: &mut Vec<Violation>) {
        if self.dollars == 0 {
            found.push(Violation::new(format!("{at}.most"), "must be at least 1 dollar"));
        }
        let (min, max) = (USAGE_HALF_LIFE_MS_MIN, POLICY_DURATION_MS_MAX);
        if !(min..=max).contains(&self.window_ms) {
            found.push(Violation::span(&format!("{at}.window"), self.window_ms, min, max));
        }
    }
}

/// What becomes of work that meets a limit when it is submitted. Where nothing is stated, jobs above `limits.job` are refused, and
/// jobs wait that meet a budget or a limit on what is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OnLimit {
    /// It is taken and waits, with the limit named, until the limit allows it. This is also true of jobs above `limits.job`.
    Hold,
    /// It is refused, with the limit named. This is also true where a budget is used up, or as much is placed as may be.
    Refuse,
}

impl OnLimit {
    /// Every value.
    pub const ALL: [OnLimit; 2] = [OnLimit::Hold, OnLimit::Refuse];

    /// As people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            OnLimit::Hold => "hold",
            OnLimit::Refuse => "refuse",
        }
    }

    /// The value that a person named.
    #[must_use]
    pub fn parse(text: &str) -> Option<OnLimit> {
        OnLimit::ALL.into_iter().find(|value| value.as_str() == text)
    }
}

impl Policy {
    /// How much the jobs of a tenant may spend in a window; none for no limit.
    #[must_use]
    pub fn spend(&self, tenant: &Name) -> Option<SpendBudget> {
        if !self.queues.has_spend {
            return None;
        }
        let mut stated = self.ancestry(tenant).filter_map(|name| self.tenants.get(name));
        stated.find_map(|tenant| tenant.limits.spend)
    }

    /// The same for each user of a tenant.
    #[must_use]
    pub fn user_spend(&self, tenant: &Name) -> Option<SpendBudget> {
        if !self.queues.has_user_spend {
            return None;
        }
        let mut stated = self.ancestry(tenant).filter_map(|name| self.tenants.get(name));
        stated.find_map(|tenant| tenant.limits.user.spend)
    }

    /// How many devices the placed jobs of a tenant's user may hold together; none for no limit.
    #[must_use]
    pub fn user_devices(&self, tenant: &Name) -> Option<u32> {
        if !self.queues.has_user_devices {
            return None;
        }
        let mut stated = self.ancestry(tenant).filter_map(|name| self.tenants.get(name));
        stated.find_map(|tenant| tenant.limits.user.devices)
    }

    /// What becomes of a tenant's work that meets a limit when it is submitted; none where every limit does what is usual for it.
    #[must_use]
    pub fn on_limit(&self, tenant: &Name) -> Option<OnLimit> {
        if !self.queues.has_on_limit {
            return None;
        }
        let mut stated = self.ancestry(tenant).filter_map(|name| self.tenants.get(name));
        stated.find_map(|tenant| tenant.limits.on_limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PolicyDraft, TenantPolicy};

    #[test]
    fn what_a_tenant_states_of_a_limit_is_true_of_those_below_it() {
        let name = |text: &str| Name::new(text).expect("a name");
        let mut draft = PolicyDraft::default();
        let mut above = TenantPolicy::default();
        let budget = SpendBudget { dollars: 5_000, window_ms: 7 * 86_400_000 };
        above.limits.spend = Some(budget);
        above.limits.on_limit = Some(OnLimit::Refuse);
        above.limits.user.devices = Some(16);
        let mut below = TenantPolicy { parent: Some(name("above")), ..TenantPolicy::default() };
        below.limits.on_limit = Some(OnLimit::Hold);
        draft.tenants.extend([(name("above"), above), (name("below"), below)]);
        let policy = draft.check().expect("it breaks no rule");
        let below = name("below");
        assert_eq!(policy.spend(&below), Some(budget));
        assert_eq!((policy.user_devices(&below), policy.user_spend(&below)), (Some(16), None));
        assert_eq!(policy.on_limit(&below), Some(OnLimit::Hold));
        assert_eq!(policy.on_limit(&name("above")), Some(OnLimit::Refuse));
        assert_eq!((policy.spend(&name("other")), policy.on_limit(&name("other"))), (None, None));
    }

    #[test]
    fn a_budget_of_nothing_and_a_window_without_a_length_are_refused() {
        let mut found = Vec::new();
        SpendBudget { dollars: 0, window_ms: 1 }.check("limits.spend", &mut found);
        let fields: Vec<&str> = found.iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, ["limits.spend.most", "limits.spend.window"]);
    }

    #[test]
    fn the_largest_budget_is_far_below_the_largest_number() {
        let most = SpendBudget { dollars: u32::MAX, window_ms: 60_000 };
        assert!(most.price_milli_ms() < u128::MAX >> 40);
        assert_eq!(most.renews_at(LogTime(60_001)), LogTime(120_000));
    }
}
