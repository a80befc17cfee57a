//! Budgets in dollars: what a tenant and each of its users are charged for by the prices of the policy in a window of log time.
//!
//! They are counted as budgets of accelerator time are (see `budget.rs`): only for those for whom the policy states one,
//! for tenants that the policy does not name together, and from zero where a budget is new or its windows get another length. A
//! new price counts from the record that sets it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use muster_types::policy::{Policy, SpendBudget};
use muster_types::token::user_of;
use muster_types::{JobId, LogTime, Name, limits};

use crate::budget::{BudgetUse, SpentBudget};
use crate::index::Indexes;
use crate::rows::{Charge, QuotaKey, QuotaRow, SpendPart, SpendRow};
use crate::state::State;

impl State {
    /// What a tenant, or one of its users, has spent at a moment in the window of that moment, in millionths of a dollar an hour
    /// times thousandths of a device times milliseconds; zero where no budget in dollars is stated.
    #[must_use]
    pub fn spend_used(&self, tenant: &Name, user: Option<&str>, now: LogTime) -> u128 {
        let holder = self.budget_holder(tenant).clone();
        let key = QuotaKey::Spend(holder, user.map(|user| String::from(user_of(user))));
        self.spend_row(&key).map_or(0, |row| row.used_at(now, self.policy.policy.price_table()))
    }

    /// The budget in dollars of a tenant, where it is used up at a moment.
    pub(crate) fn spent_dollars(&self, tenant: &Name, now: LogTime) -> Option<SpentBudget> {
        let budget = self.policy.policy.spend(tenant)?;
        let used = self.spend_used(tenant, None, now);
        let holder = self.budget_holder(tenant);
        (used >= budget.price_milli_ms()).then(|| spent(holder, None, budget, used, now))
    }

    /// The budget in dollars of a user of a tenant, where it is used up at a moment.
    pub(crate) fn spent_user_dollars(&self, tenant: &Name, user: &str, now: LogTime) -> Option<SpentBudget> {
        let budget = self.policy.policy.user_spend(tenant)?;
        let holder = self.budget_holder(tenant);
        let user = user_of(user);
        let row = self.spend_row(&QuotaKey::Spend(holder.clone(), Some(String::from(user))));
        let used = row.map_or(0, |row| row.used_at(now, self.policy.policy.price_table()));
        let is_full =
            || self.indexes.spend_users.get(holder).is_some_and(|count| *count >= limits::BUDGET_USERS_MAX);
        let is_spent = used >= budget.price_milli_ms() || (row.is_none() && is_full());
        is_spent.then(|| spent(holder, Some(user), budget, used, now))
    }

    fn spend_row(&self, key: &QuotaKey) -> Option<&SpendRow> {
        match self.quotas.get(key)? {
            QuotaRow::Spend(row) => Some(row),
            QuotaRow::Grant(_) | QuotaRow::Budget(_) => None,
        }
    }

    /// The budgets in dollars that a job of a tenant counts in.
    fn spends_of(&self, job: JobId, tenant: &Name) -> Vec<(QuotaKey, SpendBudget)> {
        let policy = &self.policy.policy;
        let holder = self.budget_holder(tenant);
        let of_tenant = policy.spend(tenant).map(|budget| (QuotaKey::Spend(holder.clone(), None), budget));
        let of_user = policy.user_spend(tenant).map(|budget| {
            let user = String::from(user_of(self.creator(job)));
            (QuotaKey::Spend(holder.clone(), Some(user)), budget)
        });
        of_tenant.into_iter().chain(of_user).collect()
    }

    /// A job is charged for something else, or elsewhere, from now on.
    pub(crate) fn count_spend(
        &mut self,
        job: JobId,
        tenant: &Name,
        before: Option<(&Name, &Charge)>,
        after: Option<(&Name, &Charge)>,
    ) {
        let spends = self.spends_of(job, tenant);
        if spends.is_empty() {
            return;
        }
        let parts = |charged: Option<(&Name, &Charge)>| {
            charged.map_or_else(Vec::new, |(region, charge)| SpendPart::of(region, charge))
        };
        let (less, more) = (parts(before), parts(after));
        if less == more {
            return;
        }
        let now = self.meta.log_time;
        for (key, budget) in spends {
            let known = self.spend_row(&key).filter(|row| row.window_ms == budget.window_ms).cloned();
            let mut row = known.unwrap_or_else(|| SpendRow::new(budget.window_ms, now));
            row.advance(now, self.policy.policy.price_table());
            less.iter().for_each(|part| row.stop(part));
            more.iter().for_each(|part| row.start(part.clone()));
            self.set_spend(key, row);
        }
    }

    fn set_spend(&mut self, key: QuotaKey, row: SpendRow) {
        self.drop_spend(&key);
        if row.is_blank() {
            return;
        }
        self.indexes.add_spend(&key, &row);
        self.quotas.insert(key, QuotaRow::Spend(row));
    }

    pub(crate) fn drop_spend(&mut self, key: &QuotaKey) {
        let Some(row) = self.spend_row(key).cloned() else { return };
        self.indexes.remove_spend(key, &row);
        self.quotas.remove(key);
    }

    /// Counts what is charged for the budgets in dollars that a new policy states. What was spent in the window stays counted
    /// where windows are as long as before, by the prices of the policy before.
    pub(crate) fn recount_spends(&mut self, before: &Policy) {
        let now = self.meta.log_time;
        let mut rows: BTreeMap<QuotaKey, SpendRow> = BTreeMap::new();
        let old: Vec<(QuotaKey, SpendRow)> =
            self.spend_rows().map(|(key, row)| (key.clone(), row.clone())).collect();
        for (key, mut row) in old {
            let QuotaKey::Spend(tenant, user) = &key else { continue };
            let policy = &self.policy.policy;
            let budget = if user.is_some() { policy.user_spend(tenant) } else { policy.spend(tenant) };
            let is_kept = self.budget_holder(tenant) == tenant
                && budget.is_some_and(|budget| budget.window_ms == row.window_ms);
            self.drop_spend(&key);
            if is_kept {
                row.advance(now, before.price_table());
                row.running.clear();
                rows.insert(key, row);
            }
        }
        let holders: BTreeSet<JobId> = self.active().chain(self.promised()).collect();
        for job in holders {
            let (Some(row), Some(spec)) = (self.jobs.get(&job), self.specs.get(&job)) else { continue };
            let Some((region, charge)) = row.charge() else { continue };
            let parts = SpendPart::of(region, charge);
            for (key, budget) in self.spends_of(job, &spec.tenant) {
                let row = rows.entry(key).or_insert_with(|| SpendRow::new(budget.window_ms, now));
                parts.iter().for_each(|part| row.start(part.clone()));
            }
        }
        for (key, row) in rows {
            self.set_spend(key, row);
        }
    }

    pub(crate) fn spend_rows(&self) -> impl Iterator<Item = (&QuotaKey, &SpendRow)> {
        // They come behind everything else.
        let all = self.quotas.iter().rev();
        all.map_while(|(key, row)| match row {
            QuotaRow::Spend(row) => Some((key, row)),
            QuotaRow::Grant(_) | QuotaRow::Budget(_) => None,
        })
    }
}

fn spent(tenant: &Name, user: Option<&str>, budget: SpendBudget, used: u128, now: LogTime) -> SpentBudget {
    SpentBudget {
        tenant: tenant.clone(),
        user: user.map(String::from),
        of: BudgetUse::Dollars { budget, used },
        renews_at: budget.renews_at(now),
    }
}

impl Indexes {
    pub(crate) fn add_spend(&mut self, key: &QuotaKey, row: &SpendRow) {
        row.over_at().inspect(|at| self.budget_ends.insert((*at, key.clone())));
        if let QuotaKey::Spend(tenant, Some(_)) = key {
            let count = self.spend_users.get(tenant).copied().unwrap_or(0);
            self.spend_users.insert(tenant.clone(), count + 1);
        }
    }

    fn remove_spend(&mut self, key: &QuotaKey, row: &SpendRow) {
        row.over_at().inspect(|at| _ = self.budget_ends.remove(&(*at, key.clone())));
        if let QuotaKey::Spend(tenant, Some(_)) = key {
            match self.spend_users.get(tenant).copied().unwrap_or(0) {
                0 | 1 => _ = self.spend_users.remove(tenant),
                count => self.spend_users.insert(tenant.clone(), count - 1),
            }
        }
    }
}
