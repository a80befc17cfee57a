//! How the nodes of jobs may have been bought.

use muster_types::policy::{InterruptionRate, PurchaseKind};
use muster_types::{CapacityFallback, CapacityRules, PurchaseSet, Violation, fleet::checked_name, policy};

use super::{Found, below, bound, span};
use crate::closed::{given_from_proto, number};
use crate::v1;

/// None where nothing is asked.
pub(super) fn capacity(
    at: &str,
    message: Option<v1::CapacityRules>,
    found: &mut Found,
) -> Option<Box<CapacityRules>> {
    let v1::CapacityRules { purchases, fallback, max_interruptions_per_day_milli } = message?;
    let at = &below(at, "capacity");
    let rules = CapacityRules {
        purchases: purchase_set(&below(at, "purchases"), purchases, found),
        fallback: fallback.map(|fallback| {
            let at = &below(at, "fallback");
            CapacityFallback {
                purchases: purchase_set(&below(at, "purchases"), fallback.purchases, found),
                // A wait that was left out is none of those that may be.
                after_ms: span(at, "after", fallback.after, found).unwrap_or(0),
                is_open: false,
            }
        }),
        interruptions_milli_max: max_interruptions_per_day_milli,
    };
    (!rules.is_empty()).then(|| Box::new(rules))
}

/// The message of what is asked. Whether a fallback is open already is not a part of it.
pub(super) fn capacity_to_proto(rules: &CapacityRules) -> v1::CapacityRules {
    v1::CapacityRules {
        purchases: purchases_to_proto(rules.purchases),
        fallback: rules.fallback.map(|fallback| v1::CapacityFallback {
            purchases: purchases_to_proto(fallback.purchases),
            after: Some(crate::time::duration(fallback.after_ms)),
        }),
        max_interruptions_per_day_milli: rules.interruptions_milli_max,
    }
}

/// A list of purchases, each at most once.
pub(super) fn purchase_set(at: &str, mut numbers: Vec<i32>, found: &mut Found) -> PurchaseSet {
    bound(at, &mut numbers, PurchaseKind::ALL.len(), found);
    let mut set = PurchaseSet::EMPTY;
    for (index, number) in numbers.into_iter().enumerate() {
        let field = format!("{at}[{index}]");
        let Some(kind) = found.take(given_from_proto::<PurchaseKind>(&field, number)) else { continue };
        if set.contains(kind) {
            found.push(Violation::new(field, format!("must not name {kind} twice")));
        }
        set = set.union([kind].into_iter().collect());
    }
    set
}

/// The message of a set of purchases.
pub(super) fn purchases_to_proto(set: PurchaseSet) -> Vec<i32> {
    set.iter().map(number).collect()
}

/// The rates of interruptions that a policy states.
pub(super) fn interruption_rates(
    at: &str,
    mut messages: Vec<v1::InterruptionRate>,
    found: &mut Found,
) -> Vec<InterruptionRate> {
    bound(at, &mut messages, policy::INTERRUPTION_RATES_MAX, found);
    let mut rates = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        let purchase =
            found.take(given_from_proto::<PurchaseKind>(&below(&at, "purchase"), message.purchase));
        let region = Some(message.region.as_str()).filter(|region| !region.is_empty());
        let region = region.and_then(|region| found.take(checked_name(&below(&at, "region"), region)));
        let rate = |purchase| InterruptionRate { purchase, region, per_day_milli: message.per_day_milli };
        // Where one is left out, the places of those behind it are not theirs: the policy is refused anyway.
        rates.extend(purchase.map(rate));
    }
    rates
}

/// The message of one of them.
pub(super) fn interruption_rate_to_proto(rate: &InterruptionRate) -> v1::InterruptionRate {
    v1::InterruptionRate {
        purchase: number(rate.purchase),
        region: rate.region.as_ref().map(ToString::to_string).unwrap_or_default(),
        per_day_milli: rate.per_day_milli,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: v1::CapacityRules) -> (Option<Box<CapacityRules>>, Vec<String>) {
        let mut found = Found::default();
        let read = capacity("spec", Some(message), &mut found);
        (read, found.into_violations().iter().map(|violation| violation.field.clone()).collect())
    }

    #[test]
    fn what_is_asked_is_read_and_shown() {
        let message = v1::CapacityRules {
            purchases: vec![v1::Purchase::Spot.into()],
            fallback: Some(v1::CapacityFallback {
                purchases: vec![v1::Purchase::OnDemand.into()],
                after: Some(crate::time::duration(1_800_000)),
            }),
            max_interruptions_per_day_milli: Some(500),
        };
        let (asked, found) = read(message.clone());
        assert_eq!(found, Vec::<String>::new());
        assert_eq!(capacity_to_proto(&asked.expect("something is asked")), message);
        assert_eq!(read(v1::CapacityRules::default()), (None, Vec::new()));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let spot = i32::from(v1::Purchase::Spot);
        let message = v1::CapacityRules { purchases: vec![spot, 99, spot, 0], ..Default::default() };
        let fields = ["purchases[1]", "purchases[2]", "purchases[3]"];
        let (_, found) = read(message);
        assert_eq!(found, fields.map(|field| format!("spec.capacity.{field}")));
        let (_, found) = read(v1::CapacityRules { purchases: vec![spot; 5], ..Default::default() });
        assert!(found.contains(&"spec.capacity.purchases".to_owned()), "{found:?}");
    }
}
