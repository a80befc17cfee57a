//! How often nodes are taken away, where too little was seen of them.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use super::{INTERRUPTION_RATES_MAX, PolicyDraft, PurchaseKind, check_bound, check_count};
use crate::limits;
use crate::name::Name;
use crate::reason::Violation;

/// How often nodes that were bought in one way are taken away, as far as nobody has seen it here yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterruptionRate {
    /// How they were bought.
    pub purchase: PurchaseKind,
    /// Where; none for every region without a separate rate.
    pub region: Option<Name>,
    /// Thousandths of interruptions for each node and day.
    pub per_day_milli: u32,
}

impl PolicyDraft {
    /// The rate that is stated for a purchase in a region: that of the region, else the one for all regions.
    #[must_use]
    pub fn stated_interruptions_milli(&self, purchase: PurchaseKind, region: &Name) -> Option<u32> {
        let stated = |region: Option<&Name>| {
            let mut rates = self.interruption_rates.iter();
            rates.find(|rate| rate.purchase == purchase && rate.region.as_ref() == region)
        };
        stated(Some(region)).or_else(|| stated(None)).map(|rate| rate.per_day_milli)
    }

    pub(super) fn check_interruption_rates(&self, found: &mut Vec<Violation>) {
        check_count("interruption_rates", self.interruption_rates.len(), INTERRUPTION_RATES_MAX, found);
        let mut named = BTreeSet::new();
        for (index, rate) in self.interruption_rates.iter().enumerate() {
            let at = format!("interruption_rates[{index}]");
            let most = limits::INTERRUPTIONS_MILLI_MAX.into();
            check_bound(&format!("{at}.per_day_milli"), rate.per_day_milli.into(), 0, most, found);
            if !named.insert((rate.purchase, rate.region.as_ref())) {
                found.push(Violation::new(at, "must be the only rate for its purchase and region"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn the_rate_of_a_region_goes_before_the_one_for_all() {
        let rate = |region: Option<&str>, per_day_milli| InterruptionRate {
            purchase: PurchaseKind::Spot,
            region: region.and_then(Name::new),
            per_day_milli,
        };
        let rates = vec![rate(None, 100), rate(Some("eu"), 50)];
        let draft = PolicyDraft { interruption_rates: rates, ..PolicyDraft::default() };
        let stated = |purchase, region| draft.stated_interruptions_milli(purchase, &Name::literal(region));
        assert_eq!(stated(PurchaseKind::Spot, "eu"), Some(50));
        assert_eq!(stated(PurchaseKind::Spot, "us"), Some(100));
        assert_eq!(stated(PurchaseKind::OnDemand, "eu"), None);
        let twice = vec![rate(Some("eu"), 1), rate(Some("eu"), 1_000_001)];
        let found = PolicyDraft { interruption_rates: twice, ..PolicyDraft::default() }.check().unwrap_err();
        let fields: Vec<&str> = found.iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, ["interruption_rates[1].per_day_milli", "interruption_rates[1]"]);
    }
}
