//! Parts of a policy that are set by themselves.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use super::{Policy, PolicyDraft};
use crate::name::Name;
use crate::reason::Violation;

/// Parts that one update may name.
pub const POLICY_PARTS_MAX: usize = 1_000;

/// A part of a policy that can be set without the others, so that the people who keep the prices do not have to read,
/// repeat and perhaps undo what others have set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PolicyPart {
    /// The whole tenant tree.
    Tenants,
    /// One tenant: set, or removed where the update does not have it.
    Tenant(Name),
    /// Who goes first.
    Order,
    /// Reservations and backfill.
    Backfill,
    /// Preemption, reclaim and defragmentation.
    Preemption,
    /// What a good place is.
    Weights,
    /// All prices of devices.
    Prices,
    /// All data sets.
    Datasets,
    /// One data set: set, or removed where the update does not have it.
    Dataset(Name),
    /// All prices and speeds between regions.
    Transfers,
    /// Spare hosts of all accelerator types.
    SpareHostsPerRack,
    /// Spare hosts of one accelerator type: set, or removed where the update does not have it.
    SpareHostsOf(Name),
    /// All maintenance and reservations.
    Windows,
    /// What nodes must isolate their workers by.
    Isolation,
    /// All receivers of notifications.
    Notifications,
    /// All roles next to the built-in ones.
    Roles,
    /// One of them: set, or removed where the update does not have it.
    OwnRole(Name),
    /// All rates of interruptions.
    InterruptionRates,
    /// All counted resources.
    Resources,
}

const NAME_RULE: &str =
    "a name is 1 to 63 of a-z, 0-9, -, _ and ., and begins and ends with a letter or digit";

/// Parts that are not entries of a map.
const WHOLE: [PolicyPart; 15] = [
    PolicyPart::Tenants,
    PolicyPart::Order,
    PolicyPart::Backfill,
    PolicyPart::Preemption,
    PolicyPart::Weights,
    PolicyPart::Prices,
    PolicyPart::Datasets,
    PolicyPart::Transfers,
    PolicyPart::SpareHostsPerRack,
    PolicyPart::Windows,
    PolicyPart::Isolation,
    PolicyPart::Notifications,
    PolicyPart::Roles,
    PolicyPart::InterruptionRates,
    PolicyPart::Resources,
];

impl PolicyPart {
    /// The part at a path: `prices`, `tenants.vision`. What follows the first dot is a name, which may have dots too.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn at(path: &str) -> Result<PolicyPart, String> {
        let Some((field, name)) = path.split_once('.') else {
            let found = WHOLE.into_iter().find(|part| part.field() == path);
            return found.ok_or_else(|| unknown(path));
        };
        let of: fn(Name) -> PolicyPart = match field {
            "tenants" => PolicyPart::Tenant,
            "datasets" => PolicyPart::Dataset,
            "spare_hosts_per_rack" => PolicyPart::SpareHostsOf,
            "roles" => PolicyPart::OwnRole,
            _ => return Err(unknown(path)),
        };
        Name::new(name).map(of).ok_or_else(|| format!("`{path}` does not name an entry: {NAME_RULE}"))
    }

    /// The field of the policy that it is, or is an entry of.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            PolicyPart::Tenants | PolicyPart::Tenant(_) => "tenants",
            PolicyPart::Order => "order",
            PolicyPart::Backfill => "backfill",
            PolicyPart::Preemption => "preemption",
            PolicyPart::Weights => "weights",
            PolicyPart::Prices => "prices",
            PolicyPart::Datasets | PolicyPart::Dataset(_) => "datasets",
            PolicyPart::Transfers => "transfers",
            PolicyPart::SpareHostsPerRack | PolicyPart::SpareHostsOf(_) => "spare_hosts_per_rack",
            PolicyPart::Windows => "windows",
            PolicyPart::Isolation => "isolation",
            PolicyPart::Notifications => "notifications",
            PolicyPart::Roles | PolicyPart::OwnRole(_) => "roles",
            PolicyPart::InterruptionRates => "interruption_rates",
            PolicyPart::Resources => "resources",
        }
    }

    /// The entry of its field that it is.
    #[must_use]
    pub fn entry(&self) -> Option<&Name> {
        match self {
            PolicyPart::Tenant(name)
            | PolicyPart::Dataset(name)
            | PolicyPart::SpareHostsOf(name)
            | PolicyPart::OwnRole(name) => Some(name),
            _ => None,
        }
    }

    /// Copies this part of `from` into `into`.
    ///
    /// # Errors
    /// An entry that neither of them has.
    fn copy(&self, from: &PolicyDraft, into: &mut PolicyDraft) -> Result<(), Violation> {
        match self {
            PolicyPart::Tenants => into.tenants.clone_from(&from.tenants),
            PolicyPart::Tenant(name) => return self.copy_entry(name, &from.tenants, &mut into.tenants),
            PolicyPart::Order => into.order.clone_from(&from.order),
            PolicyPart::Backfill => into.backfill.clone_from(&from.backfill),
            PolicyPart::Preemption => into.preemption.clone_from(&from.preemption),
            PolicyPart::Weights => into.weights.clone_from(&from.weights),
            PolicyPart::Prices => into.prices.clone_from(&from.prices),
            PolicyPart::Datasets => into.datasets.clone_from(&from.datasets),
            PolicyPart::Dataset(name) => return self.copy_entry(name, &from.datasets, &mut into.datasets),
            PolicyPart::Transfers => into.transfers.clone_from(&from.transfers),
            PolicyPart::SpareHostsPerRack => into.spare_hosts_per_rack.clone_from(&from.spare_hosts_per_rack),
            PolicyPart::SpareHostsOf(name) => {
                return self.copy_entry(name, &from.spare_hosts_per_rack, &mut into.spare_hosts_per_rack);
            }
            PolicyPart::Windows => into.windows.clone_from(&from.windows),
            PolicyPart::Isolation => into.required_isolation.clone_from(&from.required_isolation),
            PolicyPart::Notifications => into.notifications.clone_from(&from.notifications),
            PolicyPart::Roles => into.roles.clone_from(&from.roles),
            PolicyPart::OwnRole(name) => return self.copy_entry(name, &from.roles, &mut into.roles),
            PolicyPart::InterruptionRates => into.interruption_rates.clone_from(&from.interruption_rates),
            PolicyPart::Resources => into.resources.clone_from(&from.resources),
        }
        Ok(())
    }

    fn copy_entry<V: Clone>(
        &self,
        name: &Name,
        from: &BTreeMap<Name, V>,
        into: &mut BTreeMap<Name, V>,
    ) -> Result<(), Violation> {
        match from.get(name) {
            Some(value) => {
                into.insert(name.clone(), value.clone());
            }
            None if into.remove(name).is_none() => {
                let text = format!("`{self}` is in neither the update nor the policy in force");
                return Err(Violation::new("update_mask", text));
            }
            None => {}
        }
        Ok(())
    }
}

impl fmt::Display for PolicyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field())?;
        self.entry().map_or(Ok(()), |name| write!(f, ".{name}"))
    }
}

fn unknown(path: &str) -> String {
    format!(
        "`{path}` is no part of a policy: use tenants, tenants.NAME, order, backfill, preemption, weights, prices, datasets, \
         datasets.NAME, transfers, spare_hosts_per_rack, spare_hosts_per_rack.TYPE, windows, isolation, \
         notifications, roles, roles.NAME, interruption_rates or resources"
    )
}

/// Parts of a policy, to be put in the place of those of the policy in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyUpdate {
    /// In ascending order, each once.
    parts: Vec<PolicyPart>,
    /// Nothing but these parts of it differs from the default.
    given: PolicyDraft,
}

impl PolicyUpdate {
    /// An update of these parts, each as `given` has it. Other parts of `given` are not read.
    ///
    /// # Errors
    /// No part at all or too many, a part that is named twice, and an entry of a field that is named as a whole.
    pub fn new(given: &PolicyDraft, mut parts: Vec<PolicyPart>) -> Result<PolicyUpdate, Violation> {
        let wrong = |text: String| Err(Violation::new("update_mask", text));
        if parts.is_empty() || parts.len() > POLICY_PARTS_MAX {
            return wrong(format!("must name 1 to {POLICY_PARTS_MAX} parts, got {}", parts.len()));
        }
        parts.sort_unstable();
        if let Some([part, _]) = parts.array_windows().find(|[a, b]| a == b) {
            return wrong(format!("must name `{part}` once"));
        }
        let whole: BTreeSet<&str> =
            parts.iter().filter(|part| part.entry().is_none()).map(PolicyPart::field).collect();
        if let Some(part) = parts.iter().find(|part| part.entry().is_some() && whole.contains(part.field())) {
            return wrong(format!("names both `{}` and `{part}`, which is in it", part.field()));
        }
        let mut kept = PolicyDraft::default();
        for part in &parts {
            // An entry that is absent is to be removed from the policy in force: whether it is there is seen then.
            let _ = part.copy(given, &mut kept);
        }
        Ok(PolicyUpdate { parts, given: kept })
    }

    /// The policy in force with these parts.
    ///
    /// # Errors
    /// Every rule that it would break, by its path in a request.
    pub fn apply(&self, in_force: &Policy) -> Result<Policy, Vec<Violation>> {
        let mut draft = PolicyDraft::clone(in_force);
        for part in &self.parts {
            part.copy(&self.given, &mut draft).map_err(|violation| vec![violation])?;
        }
        draft.check().map_err(|found| found.into_iter().map(|violation| violation.under("policy")).collect())
    }
}
