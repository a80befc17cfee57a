//! Roles that a policy defines next to the built-in ones: a part of a built-in role, perhaps for some regions alone.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use super::{check_bound, check_count};
use crate::name::Name;
use crate::reason::Violation;
use crate::token::TokenRole;

/// Roles of one policy.
pub const OWN_ROLES_MAX: usize = 64;
/// Regions that one role may be restricted to.
pub const ROLE_REGIONS_MAX: usize = 16;

/// Calls that a role may have or lack, as one. The permission table of `api` says which call has which verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Verb {
    /// Look at jobs, nodes, queues, policy and the log.
    Read,
    /// Submit jobs, and set schedules that do.
    Submit,
    /// Cancel jobs.
    Cancel,
    /// Hold, release, requeue, suspend and change jobs; suspend, resume and delete schedules.
    Control,
    /// Commit checkpoints.
    Checkpoint,
    /// Read output of workers.
    Output,
    /// Run commands next to workers.
    Exec,
    /// Take nodes out of placement, and back.
    Cordon,
    /// Drain nodes, and end that.
    Drain,
    /// Begin and end repairs of nodes.
    Repair,
    /// Quarantine nodes, and release them.
    Quarantine,
    /// Set labels and taints of nodes.
    Label,
    /// Forget nodes that are gone.
    Forget,
    /// Look at nodes that wait for admission.
    Admission,
    /// Measure the network between nodes.
    Probe,
    /// Announce and end drills, and make replicas silent for them.
    Drill,
    /// Move the leadership.
    Leadership,
    /// Copy the archive of the log, with all parts of every job.
    Archive,
}

impl Verb {
    /// Every one.
    pub const ALL: [Verb; 18] = [
        Verb::Read,
        Verb::Submit,
        Verb::Cancel,
        Verb::Control,
        Verb::Checkpoint,
        Verb::Output,
        Verb::Exec,
        Verb::Cordon,
        Verb::Drain,
        Verb::Repair,
        Verb::Quarantine,
        Verb::Label,
        Verb::Forget,
        Verb::Admission,
        Verb::Probe,
        Verb::Drill,
        Verb::Leadership,
        Verb::Archive,
    ];

    /// As people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Read => "read",
            Verb::Submit => "submit",
            Verb::Cancel => "cancel",
            Verb::Control => "control",
            Verb::Checkpoint => "checkpoint",
            Verb::Output => "output",
            Verb::Exec => "exec",
            Verb::Cordon => "cordon",
            Verb::Drain => "drain",
            Verb::Repair => "repair",
            Verb::Quarantine => "quarantine",
            Verb::Label => "label",
            Verb::Forget => "forget",
            Verb::Admission => "admission",
            Verb::Probe => "probe",
            Verb::Drill => "drill",
            Verb::Leadership => "leadership",
            Verb::Archive => "archive",
        }
    }

    /// Whether a built-in role has some call of it.
    #[must_use]
    pub fn is_of(self, role: TokenRole) -> bool {
        let (submits, operates, drills) = match role {
            TokenRole::Viewer => (false, false, false),
            TokenRole::Submitter | TokenRole::TenantAdmin => (true, false, false),
            TokenRole::Operator => (true, true, false),
            TokenRole::Drill => (false, false, true),
            TokenRole::Admin => (true, true, true),
        };
        match self {
            Verb::Read => true,
            Verb::Submit | Verb::Cancel => submits || drills,
            Verb::Control | Verb::Checkpoint | Verb::Output | Verb::Exec => submits,
            Verb::Cordon
            | Verb::Drain
            | Verb::Repair
            | Verb::Label
            | Verb::Forget
            | Verb::Admission
            | Verb::Probe => operates,
            Verb::Quarantine => operates || drills,
            Verb::Drill | Verb::Leadership | Verb::Archive => drills,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A role that a policy defines. Its holder may what both the built-in role and one of the verbs allow, so that it is never more
/// than the built-in role; for tenants and for what is shown, it counts as the built-in one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnRole {
    /// The built-in role that it is a part of; not admin, which could change the policy, and with it its own role.
    pub part_of: TokenRole,
    /// What it may do; at least one.
    pub verbs: BTreeSet<Verb>,
    /// Regions that it operates and drills in; empty for all. Jobs are not restricted.
    pub regions: BTreeSet<Name>,
}

impl OwnRole {
    /// Whether it may operate a node or a replica of a region.
    #[must_use]
    pub fn is_for_region(&self, region: &str) -> bool {
        self.regions.is_empty() || self.regions.iter().any(|own| own.as_str() == region)
    }
}

pub(super) fn check_roles(roles: &BTreeMap<Name, OwnRole>, found: &mut Vec<Violation>) {
    check_count("roles", roles.len(), OWN_ROLES_MAX, found);
    for (name, role) in roles.iter().take(OWN_ROLES_MAX) {
        if TokenRole::from_name(name).is_some() {
            let text = "must not have the name of a built-in role";
            found.push(Violation::new(format!("roles.{name}"), text));
        }
        if role.part_of == TokenRole::Admin {
            let text = "must not be admin: who may change the policy could give itself more";
            found.push(Violation::new(format!("roles.{name}.part_of"), text));
            continue;
        }
        let (verbs, regions) = (role.verbs.len() as u64, role.regions.len() as u64);
        check_bound(&format!("roles.{name}.verbs"), verbs, 1, Verb::ALL.len() as u64, found);
        check_bound(&format!("roles.{name}.regions"), regions, 0, ROLE_REGIONS_MAX as u64, found);
        if let Some(beyond) = role.verbs.iter().find(|verb| !verb.is_of(role.part_of)) {
            let text = format!("must be verbs that the role {} has, got {beyond}", role.part_of);
            found.push(Violation::new(format!("roles.{name}.verbs"), text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyDraft;

    fn role(part_of: TokenRole, verbs: &[Verb]) -> OwnRole {
        OwnRole { part_of, verbs: verbs.iter().copied().collect(), regions: BTreeSet::new() }
    }

    fn fields(name: &str, role: OwnRole) -> Vec<alloc::string::String> {
        let roles = [(Name::new(name).expect("a name"), role)].into();
        let checked = PolicyDraft { roles, ..PolicyDraft::default() }.check();
        checked.err().unwrap_or_default().into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn a_role_is_a_part_of_a_built_in_one() {
        assert!(fields("ci", role(TokenRole::Submitter, &[Verb::Read, Verb::Submit])).is_empty());
        assert_eq!(fields("ci", role(TokenRole::Submitter, &[])), ["roles.ci.verbs"]);
        assert_eq!(fields("ci", role(TokenRole::Submitter, &[Verb::Drain])), ["roles.ci.verbs"]);
        assert_eq!(fields("ci", role(TokenRole::Viewer, &[Verb::Submit])), ["roles.ci.verbs"]);
        assert_eq!(fields("ci", role(TokenRole::Admin, &[Verb::Read])), ["roles.ci.part_of"]);
        assert_eq!(fields("viewer", role(TokenRole::Viewer, &[Verb::Read])), ["roles.viewer"]);
    }

    #[test]
    fn a_role_has_few_regions() {
        let region = |number: usize| Name::new(&format!("r{number}")).expect("a name");
        let mut most = role(TokenRole::Operator, &[Verb::Cordon]);
        assert!(most.is_for_region("r0"), "it names none");
        most.regions = (0..ROLE_REGIONS_MAX).map(region).collect();
        assert!(most.is_for_region("r0") && !most.is_for_region("elsewhere"));
        assert!(fields("eu", most.clone()).is_empty());
        most.regions.insert(region(ROLE_REGIONS_MAX));
        assert_eq!(fields("eu", most), ["roles.eu.regions"]);
    }
}
