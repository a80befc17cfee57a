//! The policies that a replay can be run under.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use muster_types::Name;
use muster_types::policy::{
    BackfillPolicy, Order, OrderPolicy, Policy, PolicyDraft, PreemptionPolicy, TenantRights, UNLISTED_TENANT,
    WindowPurpose,
};
use serde::{Serialize, Serializer};

/// What a replay is run under: a preset, or the policy that an operator wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayPolicy {
    /// A preset, under which tenants have every right.
    Preset(Preset),
    /// A whole policy: its tenants, quotas, rights and windows hold for the jobs of the trace.
    Whole {
        /// What reports call it, such as the path of its file.
        label: String,
        /// The policy.
        policy: Box<Policy>,
    },
}

impl Default for ReplayPolicy {
    fn default() -> Self {
        ReplayPolicy::Preset(Preset::Default)
    }
}

impl From<Preset> for ReplayPolicy {
    fn from(preset: Preset) -> ReplayPolicy {
        ReplayPolicy::Preset(preset)
    }
}

impl fmt::Display for ReplayPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayPolicy::Preset(preset) => preset.fmt(f),
            ReplayPolicy::Whole { label, .. } => f.pad(label),
        }
    }
}

impl ReplayPolicy {
    /// The settings for the scheduler.
    pub(crate) fn settings(&self) -> PolicyDraft {
        match self {
            ReplayPolicy::Preset(preset) => preset.settings(),
            ReplayPolicy::Whole { policy, .. } => Policy::clone(policy).into_draft(),
        }
    }

    /// The policy that an operator wrote; none for a preset.
    pub(crate) fn whole(&self) -> Option<&Policy> {
        match self {
            ReplayPolicy::Preset(_) => None,
            ReplayPolicy::Whole { policy, .. } => Some(policy),
        }
    }
}

/// Names that a policy uses, by what they are names of. Whatever a trace writes alike means these.
#[derive(Debug, Default)]
pub(crate) struct KnownNames {
    pub(crate) tenants: BTreeSet<Name>,
    pub(crate) kinds: BTreeSet<Name>,
    pub(crate) regions: BTreeSet<Name>,
    pub(crate) clusters: BTreeSet<Name>,
    pub(crate) racks: BTreeSet<Name>,
    pub(crate) nodes: BTreeSet<Name>,
}

impl KnownNames {
    pub(crate) fn of(policy: &PolicyDraft) -> KnownNames {
        let mut known = KnownNames::default();
        for (name, tenant) in &policy.tenants {
            known.tenants.insert(name.clone());
            for quota in &tenant.quotas {
                known.kinds.insert(quota.kind.clone());
                known.regions.extend(quota.region.clone());
            }
        }
        for price in &policy.prices {
            known.kinds.insert(price.kind.clone());
            known.regions.extend(price.region.clone());
        }
        known.kinds.extend(policy.spare_hosts_per_rack.keys().cloned());
        for window in &policy.windows {
            let scope = &window.scope;
            known.regions.extend(scope.region.clone());
            known.clusters.extend(scope.cluster.clone());
            known.racks.extend(scope.block.iter().chain(&scope.rack).cloned());
            known.nodes.extend(scope.node.clone());
            if let WindowPurpose::ReservedFor { tenant } = &window.purpose {
                known.tenants.insert(tenant.clone());
            }
        }
        known
    }
}

/// A named set of the scheduler's own settings. A preset chooses settings; it never adds a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// What a new cluster does.
    #[default]
    Default,
    /// First submitted, first, and nobody passes another; nobody is preempted.
    Fifo,
    /// First submitted, first; jobs that do not delay the first that waits may pass; nobody is preempted.
    Easy,
    /// The least work first; nobody is preempted.
    Shortest,
    /// First submitted, first, within a tenant, and tenants by what they have used.
    Fair,
    /// What a new cluster does, but nobody is preempted.
    NoPreemption,
}

impl Preset {
    /// Every preset.
    pub const ALL: &'static [Preset] =
        &[Preset::Default, Preset::Fifo, Preset::Easy, Preset::Shortest, Preset::Fair, Preset::NoPreemption];

    /// As users write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Preset::Default => "default",
            Preset::Fifo => "fifo",
            Preset::Easy => "easy",
            Preset::Shortest => "shortest",
            Preset::Fair => "fair",
            Preset::NoPreemption => "no-preemption",
        }
    }

    /// The settings; those that are not named are a new cluster's. Everybody has every right: what a trace says of a
    /// job, its tenant was allowed.
    #[must_use]
    pub fn settings(self) -> PolicyDraft {
        let mut settings = self.rules();
        let unlisted = settings.tenants.entry(Name::literal(UNLISTED_TENANT)).or_default();
        unlisted.rights = TenantRights::ALL;
        settings
    }

    fn rules(self) -> PolicyDraft {
        let by = |order| OrderPolicy { order, fair_share: false, ..OrderPolicy::default() };
        match self {
            Preset::Default => PolicyDraft::default(),
            Preset::Fifo => PolicyDraft {
                order: by(Order::Submission),
                // The first that waits is the last that is looked at.
                backfill: BackfillPolicy { reservations_max: 0, depth_max: 1, ..BackfillPolicy::default() },
                preemption: still(),
                ..PolicyDraft::default()
            },
            Preset::Easy => PolicyDraft {
                order: by(Order::Submission),
                backfill: BackfillPolicy {
                    reservations_max: 1,
                    reserve_after_ms: 0,
                    reserve_after_runs_milli: 0,
                    ..BackfillPolicy::default()
                },
                preemption: still(),
                ..PolicyDraft::default()
            },
            Preset::Shortest => {
                PolicyDraft { order: by(Order::Predicted), preemption: still(), ..PolicyDraft::default() }
            }
            Preset::Fair => PolicyDraft {
                order: OrderPolicy { fair_share: true, ..by(Order::Submission) },
                ..PolicyDraft::default()
            },
            Preset::NoPreemption => PolicyDraft { preemption: still(), ..PolicyDraft::default() },
        }
    }
}

/// Nobody is preempted.
pub(crate) fn still() -> PreemptionPolicy {
    PreemptionPolicy {
        enabled: false,
        reclaim_borrowed: false,
        defragment: false,
        ..PreemptionPolicy::default()
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Preset {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// There is no such preset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPreset;

impl fmt::Display for UnknownPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<&str> = Preset::ALL.iter().map(|preset| preset.as_str()).collect();
        write!(f, "there is no policy of that name; known: {}", known.join(", "))
    }
}

impl std::error::Error for UnknownPreset {}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(text: &str) -> Result<Preset, UnknownPreset> {
        // What the program that is shipped does is the default, whatever that has become.
        if text == "shipping" {
            return Ok(Preset::Default);
        }
        Preset::ALL.iter().copied().find(|preset| preset.as_str() == text).ok_or(UnknownPreset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_named_and_allowed() {
        for preset in Preset::ALL {
            assert_eq!(preset.as_str().parse(), Ok(*preset));
            assert!(preset.settings().check().is_ok(), "{preset}");
        }
        assert_eq!("shipping".parse(), Ok(Preset::Default));
        let refused = "lifo".parse::<Preset>().map_err(|error| error.to_string());
        let known = "default, fifo, easy, shortest, fair, no-preemption";
        assert_eq!(refused, Err(format!("there is no policy of that name; known: {known}")));
    }
}
