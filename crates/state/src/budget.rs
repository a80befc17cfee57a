//! Budgets of accelerator time: what a tenant and each of its users are charged for in a window of log time.
//!
//! Tenants that the policy does not name are counted together, so that another name gains nothing.
//!
//! Only those are counted for whom the policy states a budget. A count begins with zero when the budget is stated for the
//! first time, and when the length of its windows changes.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use muster_types::policy::{AcceleratorBudget, SpendBudget};
use muster_types::token::user_of;
use muster_types::{JobId, LogIndex, LogTime, Name, limits};

use crate::index::Indexes;
use crate::rows::{BudgetRow, Charge, QuotaKey, QuotaRow};
use crate::state::State;

/// A budget that is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpentBudget {
    /// Whose; of tenants that the policy does not name the one that they are below.
    pub tenant: Name,
    /// Which of its users has it, where it is one of a user; empty for those that nobody knows.
    pub user: Option<String>,
    /// What may be used in a window, and what was. That is less than the budget only where as many users of the tenant were
    /// counted in this window as can be.
    pub of: BudgetUse,
    /// When the next window begins.
    pub renews_at: LogTime,
}

/// A budget, and what was used of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetUse {
    /// Of accelerator time.
    Hours {
        /// What may be used in a window.
        budget: AcceleratorBudget,
        /// What was, in thousandths of an accelerator times milliseconds.
        used_milli_ms: u128,
    },
    /// Of dollars.
    Dollars {
        /// What may be spent in a window.
        budget: SpendBudget,
        /// What was, in millionths of a dollar an hour times thousandths of a device times milliseconds.
        used: u128,
    },
}

impl BudgetUse {
    /// Whether it is used up.
    #[must_use]
    pub fn is_used_up(&self) -> bool {
        match self {
            BudgetUse::Hours { budget, used_milli_ms } => *used_milli_ms >= budget.milli_ms(),
            BudgetUse::Dollars { budget, used } => *used >= budget.price_milli_ms(),
        }
    }

    /// The length of its windows, in milliseconds.
    #[must_use]
    pub fn window_ms(&self) -> u64 {
        match self {
            BudgetUse::Hours { budget, .. } => budget.window_ms,
            BudgetUse::Dollars { budget, .. } => budget.window_ms,
        }
    }
}

impl SpentBudget {
    /// Its name in a policy.
    #[must_use]
    pub fn limit(&self) -> &'static str {
        match (&self.of, self.user.is_some()) {
            (BudgetUse::Hours { .. }, false) => "limits.acceleratorHours",
            (BudgetUse::Hours { .. }, true) => "limits.user.acceleratorHours",
            (BudgetUse::Dollars { .. }, false) => "limits.spend",
            (BudgetUse::Dollars { .. }, true) => "limits.user.spend",
        }
    }
}

impl Charge {
    fn accelerators_milli(&self) -> u64 {
        self.devices_milli.iter().fold(0, |sum, (_, milli)| sum.saturating_add(*milli))
    }
}

impl State {
    /// What a tenant, or one of its users, has used at a moment in the window of that moment, in thousandths of an
    /// accelerator times milliseconds; zero where no budget is stated.
    #[must_use]
    pub fn budget_used(&self, tenant: &Name, user: Option<&str>, now: LogTime) -> u128 {
        let holder = self.budget_holder(tenant).clone();
        let key = QuotaKey::Budget(holder, user.map(|user| String::from(user_of(user))));
        self.budget_row(&key).map_or(0, |row| row.used_at(now))
    }

    /// Who a tenant's use is counted for: itself, or all tenants together that the policy does not name.
    pub(crate) fn budget_holder<'a>(&'a self, tenant: &'a Name) -> &'a Name {
        let policy = &self.policy.policy;
        if policy.tenants.contains_key(tenant) { tenant } else { policy.unlisted() }
    }

    /// The budget of a tenant, where it is used up at a moment: that of accelerator time, or else that of dollars.
    #[must_use]
    pub fn spent_budget(&self, tenant: &Name, now: LogTime) -> Option<SpentBudget> {
        self.spent_hours(tenant, now).or_else(|| self.spent_dollars(tenant, now))
    }

    fn spent_hours(&self, tenant: &Name, now: LogTime) -> Option<SpentBudget> {
        let budget = self.policy.policy.budget(tenant)?;
        let used_milli_ms = self.budget_used(tenant, None, now);
        (used_milli_ms >= budget.milli_ms()).then(|| SpentBudget {
            tenant: self.budget_holder(tenant).clone(),
            user: None,
            of: BudgetUse::Hours { budget, used_milli_ms },
            renews_at: budget.renews_at(now),
        })
    }

    /// The budget of a job's user, where it is used up at a moment.
    #[must_use]
    pub fn spent_user_budget(&self, job: JobId, now: LogTime) -> Option<SpentBudget> {
        // It is asked for every job of a long queue, and few policies limit users.
        if !self.policy.policy.has_limits() {
            return None;
        }
        let tenant = &self.spec(job)?.tenant;
        self.spent_budget_of_user(tenant, self.creator(job), now)
    }

    /// The same of a user of a tenant: the budget of accelerator time, or else that of dollars.
    #[must_use]
    pub fn spent_budget_of_user(&self, tenant: &Name, user: &str, now: LogTime) -> Option<SpentBudget> {
        self.spent_user_hours(tenant, user, now).or_else(|| self.spent_user_dollars(tenant, user, now))
    }

    fn spent_user_hours(&self, tenant: &Name, user: &str, now: LogTime) -> Option<SpentBudget> {
        let budget = self.policy.policy.user_budget(tenant)?;
        let tenant = self.budget_holder(tenant);
        let user = user_of(user);
        let key = QuotaKey::Budget(tenant.clone(), Some(String::from(user)));
        let row = self.budget_row(&key);
        let used_milli_ms = row.map_or(0, |row| row.used_at(now));
        let is_full =
            || self.indexes.budget_users.get(tenant).is_some_and(|count| *count >= limits::BUDGET_USERS_MAX);
        let is_spent = used_milli_ms >= budget.milli_ms() || (row.is_none() && is_full());
        is_spent.then(|| SpentBudget {
            tenant: tenant.clone(),
            user: Some(String::from(user)),
            of: BudgetUse::Hours { budget, used_milli_ms },
            renews_at: budget.renews_at(now),
        })
    }

    /// Whether a job waits, whatever is free, because a budget of its tenant or its user is used up.
    #[must_use]
    pub fn is_over_budget(&self, job: JobId, now: LogTime) -> bool {
        let tenant = self.spec(job).map(|spec| &spec.tenant);
        tenant.is_some_and(|tenant| self.spent_budget(tenant, now).is_some())
            || self.spent_user_budget(job, now).is_some()
    }

    fn budget_row(&self, key: &QuotaKey) -> Option<&BudgetRow> {
        match self.quotas.get(key)? {
            QuotaRow::Budget(row) => Some(row),
            QuotaRow::Grant(_) | QuotaRow::Spend(_) => None,
        }
    }

    /// The budgets that a job of a tenant counts in.
    fn budgets_of(
        &self,
        job: JobId,
        tenant: &Name,
    ) -> impl Iterator<Item = (QuotaKey, AcceleratorBudget)> + use<> {
        let policy = &self.policy.policy;
        let holder = self.budget_holder(tenant);
        let of_tenant = policy.budget(tenant).map(|budget| (QuotaKey::Budget(holder.clone(), None), budget));
        let of_user = policy.user_budget(tenant).map(|budget| {
            let user = String::from(user_of(self.creator(job)));
            (QuotaKey::Budget(holder.clone(), Some(user)), budget)
        });
        of_tenant.into_iter().chain(of_user)
    }

    /// A job is charged for something else from now on.
    pub(crate) fn count_budget(
        &mut self,
        job: JobId,
        tenant: &Name,
        before: Option<&Charge>,
        after: Option<&Charge>,
    ) {
        let [less, more] = [before, after].map(|charge| charge.map_or(0, Charge::accelerators_milli));
        if less == more {
            return;
        }
        let now = self.meta.log_time;
        for (key, budget) in self.budgets_of(job, tenant) {
            let known = self.budget_row(&key).filter(|row| row.window_ms == budget.window_ms).cloned();
            let mut row = known.unwrap_or_else(|| BudgetRow::new(budget.window_ms, now));
            row.advance(now);
            // One that began to be counted while the job was charged already has less.
            row.running_milli = row.running_milli.saturating_sub(less).saturating_add(more);
            self.set_budget(key, row);
        }
    }

    fn set_budget(&mut self, key: QuotaKey, row: BudgetRow) {
        self.drop_budget(&key);
        if row.is_blank(row.as_of) {
            return;
        }
        self.indexes.add_budget(&key, &row);
        self.quotas.insert(key, QuotaRow::Budget(row));
    }

    fn drop_budget(&mut self, key: &QuotaKey) {
        let Some(row) = self.budget_row(key).cloned() else { return };
        self.indexes.remove_budget(key, &row);
        self.quotas.remove(key);
    }

    /// Counts what is charged for the budgets that a new policy states. What was used in the window stays counted where
    /// windows are as long as before.
    pub(crate) fn recount_budgets(&mut self) {
        let now = self.meta.log_time;
        let mut rows: BTreeMap<QuotaKey, BudgetRow> = BTreeMap::new();
        let old: Vec<(QuotaKey, BudgetRow)> =
            self.budget_rows().map(|(key, row)| (key.clone(), row.clone())).collect();
        for (key, mut row) in old {
            let QuotaKey::Budget(tenant, user) = &key else { continue };
            let policy = &self.policy.policy;
            let budget = if user.is_some() { policy.user_budget(tenant) } else { policy.budget(tenant) };
            let is_kept = self.budget_holder(tenant) == tenant
                && budget.is_some_and(|budget| budget.window_ms == row.window_ms);
            self.drop_budget(&key);
            if is_kept {
                row.advance(now);
                row.running_milli = 0;
                rows.insert(key, row);
            }
        }
        let holders: BTreeSet<JobId> = self.active().chain(self.promised()).collect();
        for job in holders {
            let (Some(row), Some(spec)) = (self.jobs.get(&job), self.specs.get(&job)) else { continue };
            let Some((_, charge)) = row.charge() else { continue };
            let milli = charge.accelerators_milli();
            for (key, budget) in self.budgets_of(job, &spec.tenant) {
                let row = rows.entry(key).or_insert_with(|| BudgetRow::new(budget.window_ms, now));
                row.running_milli = row.running_milli.saturating_add(milli);
            }
        }
        for (key, row) in rows {
            self.set_budget(key, row);
        }
    }

    /// Forgets what was used in windows that are over, of those that are charged for nothing.
    pub(crate) fn sweep_budgets(&mut self) {
        let over = self.budgets_over(self.meta.log_time).take(limits::PRUNE_ROWS_MAX as usize);
        let over: Vec<QuotaKey> = over.cloned().collect();
        for key in over {
            self.drop_budget(&key);
            self.drop_spend(&key);
        }
    }

    /// Whether something is remembered that was used in windows that are over at a moment. Until it is forgotten its users are
    /// among those of a tenant that are counted.
    #[must_use]
    pub fn has_budgets_over(&self, now: LogTime) -> bool {
        self.budgets_over(now).next().is_some()
    }

    fn budgets_over(&self, now: LogTime) -> impl Iterator<Item = &QuotaKey> {
        self.indexes.budget_ends.iter().take_while(move |(at, _)| *at <= now).map(|(_, key)| key)
    }

    pub(crate) fn budget_rows(&self) -> impl Iterator<Item = (&QuotaKey, &BudgetRow)> {
        // They come behind all requests and grants.
        self.quotas.range(QuotaKey::Grant(LogIndex(u64::MAX))..).filter_map(|(key, row)| match row {
            QuotaRow::Budget(row) => Some((key, row)),
            QuotaRow::Grant(_) | QuotaRow::Spend(_) => None,
        })
    }
}

impl Indexes {
    pub(crate) fn add_budget(&mut self, key: &QuotaKey, row: &BudgetRow) {
        row.over_at().inspect(|at| self.budget_ends.insert((*at, key.clone())));
        if let QuotaKey::Budget(tenant, Some(_)) = key {
            let count = self.budget_users.get(tenant).copied().unwrap_or(0);
            self.budget_users.insert(tenant.clone(), count + 1);
        }
    }

    fn remove_budget(&mut self, key: &QuotaKey, row: &BudgetRow) {
        row.over_at().inspect(|at| _ = self.budget_ends.remove(&(*at, key.clone())));
        if let QuotaKey::Budget(tenant, Some(_)) = key {
            match self.budget_users.get(tenant).copied().unwrap_or(0) {
                0 | 1 => _ = self.budget_users.remove(tenant),
                count => self.budget_users.insert(tenant.clone(), count - 1),
            }
        }
    }
}
