//! Grants of quota: requests, what became of them, and the effective policy that follows from those in force.
//!
//! **Invariant:** the grants in force can all be added to the policy: no tenant's quota is less than what those below it have
//! together. Whatever would break that ends grants: of those on one level of the tree, the latest first.
//!
//! Time alone ends no grant: the leader records that its time is over.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use muster_journal::RequestKey;
use muster_types::policy::{GrantFault, GrantedPolicy, Policy, QuotaGrant, QuotaSource, reason_violation};
use muster_types::token::user_of;
use muster_types::{LogIndex, LogTime, Name, Requester, limits};

use crate::effect::Effect;
use crate::forecast::Forecast;
use crate::guard_error::{GuardError, require};
use crate::index::Indexes;
use crate::rows::{
    QuotaAnswer, QuotaGrantEnd, QuotaGrantRow, QuotaGrantStatus, QuotaKey, QuotaRow, RequestAnswer,
};
use crate::state::State;
use crate::verify::BrokenInvariant;

/// Why a grant is not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantObstacle {
    /// It cannot be added to the policy and to what is granted already.
    Fault(GrantFault),
    /// The administrator's tenant has no quota of this type and region that it could come out of.
    NothingToGive,
    /// It fits now; when grants end that it would come out of, it would not fit any more.
    Outlives {
        /// When the first of them ends.
        until: LogTime,
        /// What it comes out of, as it is then.
        source: QuotaSource,
    },
    /// There are as many grants in force as there may be.
    Full {
        /// The limit.
        limit: &'static str,
        /// How many there are.
        held: usize,
        /// How many there may be.
        most: usize,
    },
}

/// Who granted or denied something, and why.
struct GrantAnswer<'a> {
    by: &'a Requester,
    giver: Option<&'a Name>,
    reason: &'a str,
}

impl State {
    /// The policy in force with every grant in force added to its quotas: what tenants are guaranteed.
    #[must_use]
    pub fn effective_policy(&self) -> &Arc<Policy> {
        &self.indexes.effective
    }

    /// Requests for quota and grants, also those that are over, by the record that made each.
    pub fn quota_grants(&self) -> impl Iterator<Item = (LogIndex, &QuotaGrantRow)> {
        // Their keys come before those of budgets, which can be very many.
        self.quotas.iter().map_while(|(key, row)| match (key, row) {
            (QuotaKey::Grant(id), QuotaRow::Grant(row)) => Some((*id, row)),
            _ => None,
        })
    }

    /// A request for quota or a grant.
    #[must_use]
    pub fn quota_grant(&self, id: LogIndex) -> Option<&QuotaGrantRow> {
        match self.quotas.get(&QuotaKey::Grant(id))? {
            QuotaRow::Grant(row) => Some(row),
            QuotaRow::Budget(_) | QuotaRow::Spend(_) => None,
        }
    }

    /// Grants in force.
    pub fn grants_in_force(&self) -> impl Iterator<Item = (LogIndex, &QuotaGrantRow)> {
        self.quota_grants().filter(|(_, row)| row.status == QuotaGrantStatus::Granted)
    }

    /// Requests and grants whose time is over at a moment and that are not over yet, the first to end first.
    pub fn due_grants(&self, now: LogTime) -> impl Iterator<Item = LogIndex> {
        self.indexes.grant_ends.iter().take_while(move |(until, _)| *until <= now).map(|(_, id)| *id)
    }

    /// When the next request or grant that is not over ends.
    #[must_use]
    pub fn next_grant_end(&self) -> Option<LogTime> {
        self.indexes.grant_ends.iter().next().map(|(until, _)| *until)
    }

    /// Whether an administrator of one tenant answers for another: one that is below its own.
    #[must_use]
    pub fn may_give_quota(&self, giver: &Name, tenant: &Name) -> bool {
        self.policy.policy.ancestry(tenant).skip(1).any(|above| above == giver)
    }

    /// What keeps a grant from being made; none where it can be made. An administrator gives what its tenant has.
    #[must_use]
    pub fn grant_obstacle(&self, grant: &QuotaGrant, giver: Option<&Name>) -> Option<GrantObstacle> {
        let (all, of_tenant) = self.grant_counts(&grant.tenant);
        let given = giver.map_or(0, |giver| self.grants_given(giver));
        let bounds = [
            ("tenant_quota_grants_max", of_tenant, limits::TENANT_QUOTA_GRANTS_MAX),
            ("quota_grants_given_max", given, limits::QUOTA_GRANTS_GIVEN_MAX),
            ("quota_grants_max", all, limits::QUOTA_GRANTS_MAX),
        ];
        if let Some((limit, held, most)) = bounds.into_iter().find(|(_, held, most)| held >= most) {
            return Some(GrantObstacle::Full { limit, held, most });
        }
        let policy = &self.policy.policy;
        let in_force: Vec<&QuotaGrant> = self.grants_in_force().map(|(_, row)| &row.grant).collect();
        let mut granted = GrantedPolicy::of(policy);
        for known in policy.in_order(in_force.iter().copied(), |known| *known) {
            // All of them can be added.
            let _ = granted.add(known);
        }
        let source = granted.source(&grant.tenant, &grant.kind, grant.region.as_ref());
        if let Some(giver) = giver {
            let is_below = |source: &QuotaSource| policy.ancestry(&source.tenant).any(|above| above == giver);
            if !source.as_ref().is_some_and(is_below) {
                return Some(GrantObstacle::NothingToGive);
            }
        }
        if let Err(fault) = granted.add(grant) {
            return Some(GrantObstacle::Fault(fault));
        }
        // Those of tenants below come behind it, and may not fit any more.
        let mut granted = GrantedPolicy::of(policy);
        for known in policy.in_order(in_force.into_iter().chain([grant]), |known| *known) {
            if let Err(fault) = granted.add(known) {
                return Some(GrantObstacle::Fault(fault));
            }
        }
        if granted.finish().is_err() {
            return Some(GrantObstacle::Fault(GrantFault::TooLarge));
        }
        self.outlived(grant, source?)
    }

    /// What a grant would outlive of what it comes out of, where it does not fit without.
    fn outlived(&self, grant: &QuotaGrant, source: QuotaSource) -> Option<GrantObstacle> {
        let is_alike = |other: &QuotaGrant| {
            let flavour = (&other.tenant, &other.kind, &other.region);
            flavour == (&source.tenant, &grant.kind, &grant.region) && other.until < grant.until
        };
        let ending: Vec<&QuotaGrant> =
            self.grants_in_force().map(|(_, row)| &row.grant).filter(|other| is_alike(other)).collect();
        let until = ending.iter().map(|other| other.until).min()?;
        let less = ending.iter().fold(0u64, |sum, other| sum.saturating_add(other.amount_milli));
        let source = QuotaSource { nominal_milli: source.nominal_milli.saturating_sub(less), ..source };
        (grant.amount_milli > source.left_milli()).then_some(GrantObstacle::Outlives { until, source })
    }

    /// Grants in force: of all tenants, and of one.
    fn grant_counts(&self, tenant: &Name) -> (usize, usize) {
        self.grants_in_force().fold((0, 0), |(all, of_tenant), (_, row)| {
            (all + 1, of_tenant + usize::from(row.grant.tenant == *tenant))
        })
    }

    /// Grants in force that administrators of tenants below the same tenant of the first level have made.
    fn grants_given(&self, giver: &Name) -> usize {
        let policy = &self.policy.policy;
        let topmost = |tenant| policy.ancestry(tenant).last();
        let own = topmost(giver);
        let givers = self.grants_in_force().filter_map(|(_, row)| row.answer.as_ref()?.giver.as_ref());
        givers.filter(|giver| topmost(*giver) == own).count()
    }

    /// Requests for quota of one user that nobody has answered.
    #[must_use]
    pub fn open_quota_requests_of_user(&self, by: &str) -> usize {
        let is_open = |row: &QuotaGrantRow| {
            row.status == QuotaGrantStatus::Requested && user_of(&row.by) == user_of(by)
        };
        self.quota_grants().filter(|(_, row)| is_open(row)).count()
    }

    /// Requests of a tenant that nobody has answered.
    #[must_use]
    pub fn open_quota_requests(&self, tenant: &Name) -> usize {
        let is_open =
            |row: &QuotaGrantRow| row.status == QuotaGrantStatus::Requested && row.grant.tenant == *tenant;
        self.quota_grants().filter(|(_, row)| is_open(row)).count()
    }

    /// How many requests and grants are not over.
    #[must_use]
    pub fn live_quota_rows(&self) -> usize {
        self.indexes.grant_ends.iter().count()
    }

    /// What every request and every grant must keep.
    fn check_grant(
        &self,
        (request, by): (RequestKey, &Requester),
        grant: &QuotaGrant,
    ) -> Result<(), GuardError> {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        require(by.is_valid() && grant.violations().is_empty(), GuardError::Limit)?;
        // The log time here is that of the record before.
        require(grant.until > self.meta.log_time, GuardError::Limit)?;
        require(self.policy.policy.tenants.contains_key(&grant.tenant), GuardError::TenantUnlisted)?;
        require(self.live_quota_rows() < limits::QUOTA_ROWS_MAX, GuardError::Limit)
    }

    fn check_giver(&self, giver: Option<&Name>, tenant: &Name) -> Result<(), GuardError> {
        require(giver.is_none_or(|giver| self.may_give_quota(giver, tenant)), GuardError::RightMissing)
    }

    pub(crate) fn check_quota_requested(
        &self,
        (request, by): (RequestKey, &Requester),
        grant: &QuotaGrant,
    ) -> Result<(), GuardError> {
        self.check_grant((request, by), grant)?;
        // One user can ask for many tenants, and all users together leave places for grants.
        require(self.live_quota_rows() < limits::QUOTA_REQUESTS_MAX, GuardError::Limit)?;
        let of_user = self.open_quota_requests_of_user(&by.name);
        require(of_user < limits::USER_QUOTA_REQUESTS_MAX, GuardError::Limit)?;
        let open = self.open_quota_requests(&grant.tenant);
        require(open < limits::TENANT_QUOTA_REQUESTS_MAX, GuardError::Limit)
    }

    pub(crate) fn check_quota_granted(
        &self,
        (request, by): (RequestKey, &Requester),
        giver: Option<&Name>,
        grant: &QuotaGrant,
    ) -> Result<(), GuardError> {
        self.check_grant((request, by), grant)?;
        self.check_giver(giver, &grant.tenant)?;
        require(self.grant_obstacle(grant, giver).is_none(), GuardError::QuotaUnavailable)
    }

    pub(crate) fn check_quota_answered(
        &self,
        (request, by): (RequestKey, &Requester),
        id: LogIndex,
        giver: Option<&Name>,
        approved: bool,
        reason: &str,
    ) -> Result<(), GuardError> {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        require(by.is_valid() && reason_violation("reason", reason).is_none(), GuardError::Limit)?;
        let row = self.quota_grant(id).ok_or(GuardError::QuotaGrantUnknown)?;
        self.check_giver(giver, &row.grant.tenant)?;
        match (row.status, approved) {
            (QuotaGrantStatus::Requested | QuotaGrantStatus::Granted, false) => Ok(()),
            (QuotaGrantStatus::Requested, true) => {
                require(row.grant.until > self.meta.log_time, GuardError::QuotaGrantOver)?;
                let obstacle = self.grant_obstacle(&row.grant, giver);
                require(obstacle.is_none(), GuardError::QuotaUnavailable)
            }
            _ => Err(GuardError::QuotaGrantOver),
        }
    }

    pub(crate) fn check_quota_ended(&self, ids: &[LogIndex]) -> Result<(), GuardError> {
        require(!ids.is_empty() && ids.len() <= limits::QUOTA_GRANTS_ENDED_MAX, GuardError::Limit)?;
        require(ids.is_sorted_by(|a, b| a < b), GuardError::Limit)?;
        let rows = ids.iter().map(|id| self.quota_grant(*id));
        for row in rows {
            let row = row.ok_or(GuardError::QuotaGrantUnknown)?;
            require(!row.status.is_over(), GuardError::QuotaGrantOver)?;
        }
        Ok(())
    }

    pub(crate) fn fold_quota_requested(
        &mut self,
        request: RequestKey,
        by: &Requester,
        grant: &QuotaGrant,
    ) -> Vec<Effect> {
        self.remember(request, RequestAnswer::Done);
        let (id, made_at) = (self.meta.log_index, self.meta.log_time);
        let status = QuotaGrantStatus::Requested;
        let row = QuotaGrantRow { grant: grant.clone(), by: by.name.clone(), made_at, status, answer: None };
        self.indexes.grant_ends.insert((grant.until, id));
        self.quotas.insert(QuotaKey::Grant(id), QuotaRow::Grant(row));
        Vec::new()
    }

    pub(crate) fn fold_quota_granted(
        &mut self,
        request: RequestKey,
        by: &Requester,
        giver: Option<&Name>,
        grant: &QuotaGrant,
    ) -> Vec<Effect> {
        self.fold_quota_requested(request, by, grant);
        let reason = &*grant.reason;
        self.answer_grant(self.meta.log_index, QuotaGrantStatus::Granted, GrantAnswer { by, giver, reason });
        self.apply_grants();
        vec![Effect::PolicyChanged]
    }

    pub(crate) fn fold_quota_answered(
        &mut self,
        (request, by): (RequestKey, &Requester),
        id: LogIndex,
        giver: Option<&Name>,
        approved: bool,
        reason: &str,
    ) -> Vec<Effect> {
        self.remember(request, RequestAnswer::Done);
        let before = self.quota_grant(id).map(|row| row.status);
        let at = self.meta.log_time;
        let status = match (approved, before) {
            (true, _) => QuotaGrantStatus::Granted,
            (false, Some(QuotaGrantStatus::Granted)) => {
                QuotaGrantStatus::Ended { at, cause: QuotaGrantEnd::Withdrawn }
            }
            (false, _) => QuotaGrantStatus::Denied,
        };
        self.answer_grant(id, status, GrantAnswer { by, giver, reason });
        if status == QuotaGrantStatus::Denied {
            self.forget_grants();
            return Vec::new();
        }
        self.keep_grants(QuotaGrantEnd::SourceEnded, |_| true);
        self.forget_grants();
        self.apply_grants();
        vec![Effect::PolicyChanged]
    }

    pub(crate) fn fold_quota_ended(&mut self, ids: &[LogIndex]) -> Vec<Effect> {
        let is_granted =
            |id: &LogIndex| self.quota_grant(*id).is_some_and(|row| row.status == QuotaGrantStatus::Granted);
        // Requests that nobody answered leave what is guaranteed as it is.
        let is_changed = ids.iter().any(is_granted);
        for id in ids {
            self.end_grant(*id, QuotaGrantEnd::Expired);
        }
        if !is_changed {
            self.forget_grants();
            return Vec::new();
        }
        self.keep_grants(QuotaGrantEnd::SourceEnded, |_| true);
        self.forget_grants();
        self.apply_grants();
        vec![Effect::PolicyChanged]
    }

    /// Ends the grants of tenants that a new policy lists elsewhere or not at all, and those that it leaves nothing for.
    pub(crate) fn keep_grants_under(&mut self, before: &Policy) {
        let after = Arc::clone(&self.policy.policy);
        let stays = |tenant: &Name| {
            after.tenants.contains_key(tenant) && before.ancestry(tenant).eq(after.ancestry(tenant))
        };
        self.keep_grants(QuotaGrantEnd::PolicySet, stays);
        let open = self.quota_grants().filter(|(_, row)| row.status == QuotaGrantStatus::Requested);
        let lapsed = open.filter(|(_, row)| !after.tenants.contains_key(&row.grant.tenant));
        let lapsed: Vec<LogIndex> = lapsed.map(|(id, _)| id).collect();
        for id in lapsed {
            self.end_grant(id, QuotaGrantEnd::PolicySet);
        }
        self.forget_grants();
    }

    /// Ends grants that cannot be added to the policy any more, and those of tenants that do not stay where they are.
    fn keep_grants(&mut self, cause: QuotaGrantEnd, stays: impl Fn(&Name) -> bool) {
        let policy = Arc::clone(&self.policy.policy);
        let ended = grants_to_end(&policy, self.grants_in_force(), stays);
        for id in ended {
            self.end_grant(id, cause);
        }
    }

    /// Which grants another policy would end, were it set now.
    #[must_use]
    pub fn grants_ended_by(&self, policy: &Policy) -> Vec<LogIndex> {
        let before = &self.policy.policy;
        let stays = |tenant: &Name| {
            policy.tenants.contains_key(tenant) && before.ancestry(tenant).eq(policy.ancestry(tenant))
        };
        grants_to_end(policy, self.grants_in_force(), stays)
    }

    /// What would be guaranteed under another policy with the grants that it would leave in force.
    #[must_use]
    pub fn effective_under(&self, policy: &Policy) -> Policy {
        let ended = self.grants_ended_by(policy);
        let kept = self.grants_in_force().filter(|(id, _)| !ended.contains(id)).map(|(_, row)| &row.grant);
        policy.with_grants(kept).unwrap_or_else(|_| policy.clone())
    }

    fn answer_grant(&mut self, id: LogIndex, status: QuotaGrantStatus, answer: GrantAnswer<'_>) {
        let GrantAnswer { by, giver, reason } = answer;
        let answer = QuotaAnswer {
            by: by.name.clone(),
            giver: giver.cloned(),
            at: self.meta.log_time,
            reason: String::from(reason),
        };
        self.change_grant(id, |row| {
            row.status = status;
            row.answer = Some(answer);
        });
    }

    fn end_grant(&mut self, id: LogIndex, cause: QuotaGrantEnd) {
        let at = self.meta.log_time;
        self.change_grant(id, |row| {
            row.status = match row.status {
                QuotaGrantStatus::Requested => QuotaGrantStatus::Lapsed { at },
                _ => QuotaGrantStatus::Ended { at, cause },
            };
        });
    }

    fn change_grant(&mut self, id: LogIndex, change: impl FnOnce(&mut QuotaGrantRow)) {
        let over = self.quotas.change(&QuotaKey::Grant(id), |row, ()| match row {
            QuotaRow::Grant(row) => {
                change(row);
                row.status.is_over().then_some(row.grant.until)
            }
            QuotaRow::Budget(_) | QuotaRow::Spend(_) => None,
        });
        if let Some(until) = over.flatten() {
            self.indexes.grant_ends.remove(&(until, id));
        }
    }

    /// Forgets the oldest of those that are over of each tenant, and of all, where there are too many. One record can end a
    /// thousand, so this is done once, when all of them have.
    fn forget_grants(&mut self) {
        let mut over: Vec<(LogIndex, &Name)> = Vec::new();
        for (id, row) in self.quota_grants() {
            if row.status.is_over() {
                over.push((id, &row.grant.tenant));
            }
        }
        let mut of_tenants: BTreeMap<&Name, usize> = BTreeMap::new();
        let (mut kept, mut forgotten) = (0usize, Vec::new());
        for (id, tenant) in over.into_iter().rev() {
            let of_tenant = of_tenants.entry(tenant).or_default();
            if *of_tenant >= limits::TENANT_QUOTA_HISTORY_MAX || kept >= limits::QUOTA_ROWS_MAX {
                forgotten.push(id);
                continue;
            }
            *of_tenant += 1;
            kept += 1;
        }
        for id in forgotten {
            self.quotas.remove(&QuotaKey::Grant(id));
        }
    }

    /// Counts what is in use against the effective policy once the grants in force have changed.
    fn apply_grants(&mut self) {
        let had_quotas = self.indexes.has_quotas;
        let mut indexes = self.indexes.clone();
        self.set_effective(&mut indexes);
        if had_quotas && indexes.has_quotas {
            indexes.quota = indexes.quota.under(&indexes.effective);
            indexes.fixed_quota = indexes.fixed_quota.under(&indexes.effective);
        } else {
            self.count_quotas(&mut indexes);
        }
        self.indexes = indexes;
    }

    fn set_grant_ends(&self, indexes: &mut Indexes) {
        let live = self.quota_grants().filter(|(_, row)| !row.status.is_over());
        indexes.grant_ends = crate::tree::Set::default();
        for (id, row) in live {
            indexes.grant_ends.insert((row.grant.until, id));
        }
    }

    /// The effective policy and what follows from it alone, from the rows.
    pub(crate) fn set_effective(&self, indexes: &mut Indexes) {
        self.set_grant_ends(indexes);
        let in_force: Vec<&QuotaGrant> = self.grants_in_force().map(|(_, row)| &row.grant).collect();
        let policy = &self.policy.policy;
        indexes.effective = if in_force.is_empty() {
            Arc::clone(policy)
        } else {
            // Rows that cannot be added are found by the check of the invariants.
            policy.with_grants(in_force).map_or_else(|_| Arc::clone(policy), Arc::new)
        };
        let mut tenants = indexes.effective.tenants.values();
        // Where shares are evened out, what everybody uses is counted.
        indexes.has_quotas =
            tenants.any(|tenant| !tenant.quotas.is_empty()) || indexes.effective.has_fair_share_preemption();
    }

    /// Keys and rows are of one kind, and every row keeps its rules.
    pub(crate) fn check_quota_rows(&self) -> Result<(), String> {
        for (key, row) in self.quotas.iter() {
            let is_sound = match (key, row) {
                (QuotaKey::Grant(_), QuotaRow::Grant(row)) => {
                    row.grant.violations().is_empty()
                        && (row.answer.is_some() || row.status != QuotaGrantStatus::Granted)
                }
                (QuotaKey::Budget(..), QuotaRow::Budget(row)) => row.window_ms > 0,
                (QuotaKey::Spend(..), QuotaRow::Spend(row)) => row.is_sound(),
                _ => false,
            };
            if !is_sound {
                return Err(format!("row of quotas {key:?} is one that it may not be"));
            }
        }
        Ok(())
    }

    /// All grants in force can be added to the policy, and budgets are counted for those who have one.
    pub(crate) fn verify_grants(&self) -> Result<(), BrokenInvariant> {
        let in_force = self.grants_in_force().map(|(_, row)| &row.grant);
        self.policy.policy.with_grants(in_force).map_err(|fault| {
            BrokenInvariant(format!("the grants in force are more than the policy allows: {fault}"))
        })?;
        let policy = &self.policy.policy;
        for (key, row) in self.budget_rows() {
            let QuotaKey::Budget(tenant, user) = key else { continue };
            let budget = if user.is_some() { policy.user_budget(tenant) } else { policy.budget(tenant) };
            if budget.is_none_or(|budget| budget.window_ms != row.window_ms) {
                return Err(BrokenInvariant(format!("{key:?} is counted and has no such budget")));
            }
        }
        for (key, row) in self.spend_rows() {
            let QuotaKey::Spend(tenant, user) = key else { continue };
            let budget = if user.is_some() { policy.user_spend(tenant) } else { policy.spend(tenant) };
            if budget.is_none_or(|budget| budget.window_ms != row.window_ms) {
                return Err(BrokenInvariant(format!("{key:?} is counted and has no such budget")));
            }
        }
        Ok(())
    }
}

/// Which grants cannot be added to a policy in their order, or are of tenants that do not stay where they are.
fn grants_to_end<'a>(
    policy: &Policy,
    in_force: impl Iterator<Item = (LogIndex, &'a QuotaGrantRow)>,
    stays: impl Fn(&Name) -> bool,
) -> Vec<LogIndex> {
    let mut granted = GrantedPolicy::of(policy);
    let mut ended = Vec::new();
    for (id, row) in policy.in_order(in_force, |(_, row)| &row.grant) {
        if !stays(&row.grant.tenant) || granted.add(&row.grant).is_err() {
            ended.push(id);
        }
    }
    ended
}

impl Forecast {
    /// A grant is in force, whether or not it can be made.
    pub fn grant(&mut self, grant: &QuotaGrant) {
        let state = self.state_mut();
        let effective = state.indexes.effective.with_grants([grant]);
        let Ok(effective) = effective.map(Arc::new) else { return };
        let mut indexes = state.indexes.clone();
        indexes.effective = effective;
        indexes.has_quotas = true;
        if state.indexes.has_quotas {
            indexes.quota = indexes.quota.under(&indexes.effective);
            indexes.fixed_quota = indexes.fixed_quota.under(&indexes.effective);
        } else {
            state.charge_all(&mut indexes);
        }
        state.indexes = indexes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administrators_below_one_tenant_leave_grants_to_operators() {
        let name = |text: &str| Name::new(text).expect("a name");
        let grant = |number: usize| QuotaGrant {
            tenant: name(&format!("team{}", number % 100)),
            kind: name("h100"),
            region: None,
            amount_milli: 1,
            until: LogTime(1_000),
            reason: String::from("a deadline"),
        };
        let answer = QuotaAnswer {
            by: String::from("tenant/lab/ada"),
            giver: Some(name("lab")),
            at: LogTime(1),
            reason: String::from("a deadline"),
        };
        let mut state = State::default();
        let limit_of = |state: &State, giver: Option<&Name>| match state.grant_obstacle(&grant(0), giver) {
            Some(GrantObstacle::Full { limit, .. }) => Some(limit),
            _ => None,
        };
        for number in 0..limits::QUOTA_GRANTS_GIVEN_MAX {
            assert_eq!(limit_of(&state, Some(&name("lab"))), None, "{number}");
            let row = QuotaGrantRow {
                grant: grant(number),
                by: String::from("tenant/lab/ada"),
                made_at: LogTime(1),
                status: QuotaGrantStatus::Granted,
                answer: Some(answer.clone()),
            };
            state.quotas.insert(QuotaKey::Grant(LogIndex(number as u64)), QuotaRow::Grant(row));
        }
        // The policy lists neither of the two, so that both stand below the tenant of all that it does not list.
        assert_eq!(limit_of(&state, Some(&name("lab"))), Some("quota_grants_given_max"));
        assert_eq!(limit_of(&state, Some(&name("video"))), Some("quota_grants_given_max"));
        assert_eq!(limit_of(&state, None), None);
    }
}
