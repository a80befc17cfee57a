//! Rights and limits of tenants.

use serde::{Deserialize, Serialize};

use super::Policy;
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

    /// Everything.
    pub const ALL: Rights =
        Rights { tier_max: PriorityTier::Critical, non_preemptible: NonPreemptible::Always, deadlines: true };
}

impl Policy {
    /// How much a tenant may have at a time.
    #[must_use]
    pub fn limits(&self, tenant: &Name) -> TenantLimits {
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
