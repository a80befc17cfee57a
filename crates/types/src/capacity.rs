//! Capacity that a job asks for by how its nodes were bought, and what it takes instead after a wait.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::fleet::NodeDraft;
use crate::limits;
use crate::purchase::PurchaseKind;
use crate::reason::Violation;

/// A set of ways in which nodes are bought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "BTreeSet<PurchaseKind>", into = "BTreeSet<PurchaseKind>")]
pub struct PurchaseSet(u8);

impl PurchaseSet {
    /// None.
    pub const EMPTY: PurchaseSet = PurchaseSet(0);
    /// Every one.
    pub const ALL: PurchaseSet = PurchaseSet(0b1111);

    fn bit(kind: PurchaseKind) -> u8 {
        match kind {
            PurchaseKind::Owned => 1,
            PurchaseKind::OnDemand => 1 << 1,
            PurchaseKind::Spot => 1 << 2,
            PurchaseKind::Reserved => 1 << 3,
        }
    }

    /// Whether it has one.
    #[must_use]
    pub fn contains(self, kind: PurchaseKind) -> bool {
        self.0 & PurchaseSet::bit(kind) != 0
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What is in one of them at least.
    #[must_use]
    pub fn union(self, other: PurchaseSet) -> PurchaseSet {
        PurchaseSet(self.0 | other.0)
    }

    /// What is in this one and not in the other.
    #[must_use]
    pub fn without(self, other: PurchaseSet) -> PurchaseSet {
        PurchaseSet(self.0 & !other.0)
    }

    /// Those in it, in the order of [`PurchaseKind::ALL`].
    pub fn iter(self) -> impl Iterator<Item = PurchaseKind> {
        PurchaseKind::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<PurchaseKind> for PurchaseSet {
    fn from_iter<I: IntoIterator<Item = PurchaseKind>>(kinds: I) -> PurchaseSet {
        PurchaseSet(kinds.into_iter().fold(0, |set, kind| set | PurchaseSet::bit(kind)))
    }
}

impl From<BTreeSet<PurchaseKind>> for PurchaseSet {
    fn from(kinds: BTreeSet<PurchaseKind>) -> PurchaseSet {
        kinds.into_iter().collect()
    }
}

impl From<PurchaseSet> for BTreeSet<PurchaseKind> {
    fn from(set: PurchaseSet) -> BTreeSet<PurchaseKind> {
        set.iter().collect()
    }
}

impl fmt::Display for PurchaseSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = self.iter().map(PurchaseKind::as_str).collect();
        f.pad(&words.join(", "))
    }
}

/// How the nodes of a job may have been bought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CapacityRules {
    /// The only purchases that it takes; empty for any. A node that does not state how it was bought is in none of them.
    pub purchases: PurchaseSet,
    /// What it takes in addition after a wait.
    pub fallback: Option<CapacityFallback>,
    /// Thousandths of interruptions for each node and day: nodes of a region, a type and a purchase of which more is known
    /// are not used. None for no limit.
    pub interruptions_milli_max: Option<u32>,
}

/// What a job takes in addition once it has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CapacityFallback {
    /// The purchases.
    pub purchases: PurchaseSet,
    /// How long the job waits before, from when it could be placed on, in milliseconds; again from the beginning after it was stopped.
    pub after_ms: u64,
    /// Whether it has waited for that long: a record of the log states it. A job that is submitted has not.
    pub is_open: bool,
}

impl CapacityRules {
    /// Whether they ask for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == CapacityRules::default()
    }

    /// The purchases that are allowed now; none for any node, also one that does not state its purchase.
    #[must_use]
    pub fn allowed(&self) -> Option<PurchaseSet> {
        let opened = self.fallback.filter(|fallback| fallback.is_open);
        let more = opened.map_or(PurchaseSet::EMPTY, |fallback| fallback.purchases);
        (!self.purchases.is_empty()).then(|| self.purchases.union(more))
    }

    /// The purchases that it may ever take: with those of the fallback, whether that is open or not.
    #[must_use]
    pub fn ever(&self) -> PurchaseSet {
        if self.purchases.is_empty() {
            return PurchaseSet::ALL;
        }
        self.purchases.union(self.fallback.map_or(PurchaseSet::EMPTY, |fallback| fallback.purchases))
    }

    /// Whether a node was bought as the job wants it now.
    #[must_use]
    pub fn allows(&self, node: &NodeDraft) -> bool {
        let bought = || PurchaseKind::of_node(node);
        self.allowed().is_none_or(|allowed| bought().is_some_and(|kind| allowed.contains(kind)))
    }

    /// The fallback, while the job has not waited for long enough.
    #[must_use]
    pub fn closed_fallback(&self) -> Option<CapacityFallback> {
        self.fallback.filter(|fallback| !fallback.is_open)
    }

    /// The same with the fallback open.
    #[must_use]
    pub fn opened(&self) -> CapacityRules {
        let fallback = self.fallback.map(|fallback| CapacityFallback { is_open: true, ..fallback });
        CapacityRules { fallback, ..*self }
    }

    /// What it is wrong in.
    pub(crate) fn check(&self, found: &mut Vec<Violation>) {
        if let Some(fallback) = &self.fallback {
            let field = |name: &str| String::from("capacity.fallback.") + name;
            if fallback.purchases.is_empty() {
                found.push(Violation::new(field("purchases"), "must name at least one purchase"));
            } else if self.purchases.is_empty() {
                let rule = "adds nothing: without `purchases` every node is allowed; name in `capacity.purchases` what comes first";
                found.push(Violation::new(field("purchases"), rule));
            } else if fallback.purchases.without(self.purchases).is_empty() {
                let rule = "adds nothing: `capacity.purchases` has all of it; name what else the job takes";
                found.push(Violation::new(field("purchases"), rule));
            }
            let (least, most) = (limits::CAPACITY_FALLBACK_MS_MIN, limits::CAPACITY_FALLBACK_MS_MAX);
            if !(least..=most).contains(&fallback.after_ms) {
                found.push(Violation::span(&field("after"), fallback.after_ms, least, most));
            }
        }
        let most = limits::INTERRUPTIONS_MILLI_MAX;
        if let Some(milli) = self.interruptions_milli_max
            && !(1..=most).contains(&milli)
        {
            let rule =
                format!("must be between 1 and {most} thousandths of an interruption a day, got {milli}");
            found.push(Violation::new("capacity.max_interruptions_per_day_milli", rule));
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn set(kinds: &[PurchaseKind]) -> PurchaseSet {
        kinds.iter().copied().collect()
    }

    fn wrong(rules: CapacityRules) -> Vec<String> {
        let mut found = Vec::new();
        rules.check(&mut found);
        found.into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn a_fallback_is_allowed_once_it_is_open() {
        let (spot, both) = (set(&[PurchaseKind::Spot]), set(&[PurchaseKind::Spot, PurchaseKind::OnDemand]));
        let fallback =
            CapacityFallback { purchases: set(&[PurchaseKind::OnDemand]), after_ms: 1_000, is_open: false };
        let rules =
            CapacityRules { purchases: spot, fallback: Some(fallback), interruptions_milli_max: None };
        assert!(wrong(rules).is_empty());
        assert_eq!((rules.allowed(), rules.ever()), (Some(spot), both));
        let opened = rules.opened();
        assert_eq!((opened.allowed(), opened.closed_fallback()), (Some(both), None));
        assert_eq!(both.to_string(), "on_demand, spot");
    }

    #[test]
    fn rules_that_say_nothing_useful_are_refused() {
        let fallback = |purchases: &[PurchaseKind], after_ms| CapacityRules {
            purchases: set(&[PurchaseKind::Spot]),
            fallback: Some(CapacityFallback { purchases: set(purchases), after_ms, is_open: false }),
            interruptions_milli_max: None,
        };
        let on_demand = [PurchaseKind::OnDemand];
        assert_eq!(wrong(fallback(&[], 1_000)), ["capacity.fallback.purchases"]);
        assert_eq!(wrong(fallback(&[PurchaseKind::Spot], 1_000)), ["capacity.fallback.purchases"]);
        assert_eq!(wrong(fallback(&on_demand, 0)), ["capacity.fallback.after"]);
        let too_long = limits::CAPACITY_FALLBACK_MS_MAX + 1;
        assert_eq!(wrong(fallback(&on_demand, too_long)), ["capacity.fallback.after"]);
        let any = CapacityRules { purchases: PurchaseSet::EMPTY, ..fallback(&on_demand, 1_000) };
        assert_eq!(wrong(any), ["capacity.fallback.purchases"]);
        for milli in [0, limits::INTERRUPTIONS_MILLI_MAX + 1] {
            let rules = CapacityRules { interruptions_milli_max: Some(milli), ..CapacityRules::default() };
            assert_eq!(wrong(rules), ["capacity.max_interruptions_per_day_milli"]);
        }
    }
}
