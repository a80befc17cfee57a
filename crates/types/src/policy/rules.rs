//! Rights of tenants, and the other parts of a policy that records before format 5 cannot say.

use alloc::collections::{BTreeMap, BTreeSet};
use serde::{Deserialize, Serialize};

use super::{BackfillPolicy, Guarantee, OrderPolicy, Policy, PolicyDraft, PreemptionPolicy};
use crate::job::PriorityTier;
use crate::name::Name;

/// The tenant that every tenant is below which the policy does not name. A policy may list a tenant of this
/// name, to give all of them together a weight, quotas and rights; otherwise it has the default weight, no
/// quota and the least rights.
pub const UNLISTED_TENANT: &str = "unlisted";

/// Which jobs of a tenant may say that policy must not stop them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NonPreemptible {
    /// None: such a job is refused at submission.
    #[default]
    Never,
    /// All, but such a job starts only within the tenant's nominal quota: what it holds cannot be taken back.
    WithinNominal,
    /// All, also where they borrow what others are promised.
    Always,
}

impl NonPreemptible {
    /// Every value, the least first.
    pub const ALL: [NonPreemptible; 3] =
        [NonPreemptible::Never, NonPreemptible::WithinNominal, NonPreemptible::Always];

    /// As people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            NonPreemptible::Never => "never",
            NonPreemptible::WithinNominal => "within_nominal",
            NonPreemptible::Always => "always",
        }
    }

    /// The value that a person named.
    #[must_use]
    pub fn parse(text: &str) -> Option<NonPreemptible> {
        NonPreemptible::ALL.into_iter().find(|value| value.as_str() == text)
    }
}

/// What a policy says of a tenant's rights. A right that is not stated is that of the nearest tenant above that
/// states it, and the least where none does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantRights {
    /// The highest tier that the tenant's jobs may name.
    pub tier_max: Option<PriorityTier>,
    /// Which jobs may say that they must not be stopped.
    pub non_preemptible: Option<NonPreemptible>,
    /// Whether a deadline moves a job ahead of the tenant's others as it draws near.
    pub deadlines: Option<bool>,
}

impl TenantRights {
    /// Every right, stated.
    pub const ALL: TenantRights = TenantRights {
        tier_max: Some(PriorityTier::Critical),
        non_preemptible: Some(NonPreemptible::Always),
        deadlines: Some(true),
    };

    fn is_blank(&self) -> bool {
        *self == TenantRights::default()
    }
}

/// How much a tenant may have at a time, beside devices. A limit that is not stated is that of the nearest tenant above
/// that states it, and none where none does. Each tenant has it for itself: what is counted are its own jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantLimits {
    /// Jobs that wait. A submission after which more of them would wait is refused.
    pub pending_jobs: Option<u32>,
    /// Jobs that are not over: those that wait, and those that run.
    pub unfinished_jobs: Option<u32>,
    /// Jobs that are placed. One that would be more waits, whatever is free.
    pub running_jobs: Option<u32>,
    /// Submissions in a minute, as many at once as in a minute; a cancellation counts where the job is being cancelled
    /// already. Each leaves a request id behind. The leader counts them, so that a change of leader begins a new minute.
    /// Tenants that the policy does not name are counted together.
    pub requests_per_minute: Option<u32>,
}

impl TenantLimits {
    fn is_blank(&self) -> bool {
        *self == TenantLimits::default()
    }
}

/// The rights of a tenant, once the tree has been asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The highest tier that its jobs may name.
    pub tier_max: PriorityTier,
    /// Which of its jobs may say that they must not be stopped.
    pub non_preemptible: NonPreemptible,
    /// Whether a deadline moves a job ahead of the tenant's others.
    pub deadlines: bool,
}

impl Rights {
    /// What everybody may do.
    pub const LEAST: Rights =
        Rights { tier_max: PriorityTier::Standard, non_preemptible: NonPreemptible::Never, deadlines: false };

    /// Everything, as before rights were asked for.
    pub const ALL: Rights =
        Rights { tier_max: PriorityTier::Critical, non_preemptible: NonPreemptible::Always, deadlines: true };
}

/// What a policy says that its record cannot: the record's layout is that of format 1. It stands in a record of its
/// own, right behind the policy's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRules {
    /// By tenant; one that states none is not here. Every tenant here is in the policy.
    pub rights: BTreeMap<Name, TenantRights>,
    /// By tenant, in the same way.
    pub limits: BTreeMap<Name, TenantLimits>,
    /// See [`BackfillPolicy::end_overrunners`].
    pub end_overrunners: bool,
    /// See [`PreemptionPolicy::backoff_ms`].
    pub backoff_ms: u64,
    /// See [`PreemptionPolicy::stopping_deadline_ms`].
    pub stopping_deadline_ms: u64,
    /// See [`PreemptionPolicy::starting_deadline_ms`].
    pub starting_deadline_ms: u64,
    /// See [`PolicyDraft::required_isolation`].
    pub required_isolation: BTreeSet<Guarantee>,
}

impl PolicyDraft {
    /// The policy that every cluster begins with in formats below 5. It is part of their digests, so it never
    /// changes.
    #[must_use]
    pub fn before_format_5() -> PolicyDraft {
        PolicyDraft {
            order: OrderPolicy::default(),
            backfill: BackfillPolicy {
                reservations_max: 16,
                depth_max: 1_000,
                reserve_after_ms: 24 * 3_600 * 1_000,
                reserve_after_runs_milli: 20_000,
                end_overrunners: false,
            },
            preemption: PreemptionPolicy { backoff_ms: 0, ..PreemptionPolicy::default() },
            ..PolicyDraft::default()
        }
    }

    /// What of it stands in the second record.
    #[must_use]
    pub fn rules(&self) -> PolicyRules {
        let stated = self.tenants.iter().filter(|(_, tenant)| !tenant.rights.is_blank());
        let limited = self.tenants.iter().filter(|(_, tenant)| !tenant.limits.is_blank());
        PolicyRules {
            rights: stated.map(|(name, tenant)| (name.clone(), tenant.rights)).collect(),
            limits: limited.map(|(name, tenant)| (name.clone(), tenant.limits)).collect(),
            end_overrunners: self.backfill.end_overrunners,
            backoff_ms: self.preemption.backoff_ms,
            stopping_deadline_ms: self.preemption.stopping_deadline_ms,
            starting_deadline_ms: self.preemption.starting_deadline_ms,
            required_isolation: self.required_isolation.clone(),
        }
    }
}

impl Policy {
    /// The same policy with what its second record says; none when a rule of it is broken.
    #[must_use]
    pub fn with_rules(&self, rules: &PolicyRules) -> Option<Policy> {
        let mut draft = self.draft.clone();
        for tenant in draft.tenants.values_mut() {
            tenant.rights = TenantRights::default();
            tenant.limits = TenantLimits::default();
        }
        for (name, rights) in &rules.rights {
            draft.tenants.get_mut(name)?.rights = *rights;
        }
        for (name, limits) in &rules.limits {
            draft.tenants.get_mut(name)?.limits = *limits;
        }
        draft.backfill.end_overrunners = rules.end_overrunners;
        draft.preemption.backoff_ms = rules.backoff_ms;
        draft.preemption.stopping_deadline_ms = rules.stopping_deadline_ms;
        draft.preemption.starting_deadline_ms = rules.starting_deadline_ms;
        draft.required_isolation = rules.required_isolation.clone();
        draft.check().ok()
    }

    /// The same policy as its own record says it, with the defaults for what stands in the second.
    #[must_use]
    pub fn as_recorded(&self) -> Policy {
        self.with_rules(&PolicyDraft::default().rules()).expect("the default rules suit every policy")
    }

    /// The same policy as formats below 5 know it: nobody is asked for rights, and tenants that it does not name
    /// stand on the first level.
    #[must_use]
    pub fn without_rules(&self) -> Policy {
        let mut policy = self.clone();
        policy.has_rules = false;
        policy.draft.backfill.end_overrunners = false;
        policy.draft.preemption.backoff_ms = 0;
        policy
    }

    /// Whether tenants have the rights that the policy gives them, and those it does not name stand below one of
    /// their own: since format 5.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.has_rules
    }

    /// How much a tenant may have at a time.
    #[must_use]
    pub fn limits(&self, tenant: &Name) -> TenantLimits {
        if !self.has_rules {
            return TenantLimits::default();
        }
        let stated = || self.ancestry(tenant).filter_map(|name| self.tenants.get(name)).map(|t| t.limits);
        TenantLimits {
            pending_jobs: stated().find_map(|limits| limits.pending_jobs),
            unfinished_jobs: stated().find_map(|limits| limits.unfinished_jobs),
            running_jobs: stated().find_map(|limits| limits.running_jobs),
            requests_per_minute: stated().find_map(|limits| limits.requests_per_minute),
        }
    }

    /// What a tenant's jobs may ask for.
    #[must_use]
    pub fn rights(&self, tenant: &Name) -> Rights {
        if !self.has_rules {
            return Rights::ALL;
        }
        let stated = || self.ancestry(tenant).filter_map(|name| self.tenants.get(name)).map(|t| t.rights);
        Rights {
            tier_max: stated().find_map(|rights| rights.tier_max).unwrap_or(Rights::LEAST.tier_max),
            non_preemptible: stated()
                .find_map(|rights| rights.non_preemptible)
                .unwrap_or(Rights::LEAST.non_preemptible),
            deadlines: stated().find_map(|rights| rights.deadlines).unwrap_or(Rights::LEAST.deadlines),
        }
    }
}
