use muster_ledger::{CapacityRow, IdleCause, LossCause};
use muster_types::policy::{PolicyDraft, Price, PurchaseKind};
use muster_types::{JobId, Name, PriorityTier};

use super::*;

const GROUPINGS: [&[CostDimension]; 7] = [
    &[],
    &[CostDimension::Tenant],
    &[CostDimension::Type, CostDimension::Region],
    &[CostDimension::Purchase],
    &[CostDimension::Tier, CostDimension::Day],
    &[CostDimension::Job],
    &[CostDimension::Tenant, CostDimension::Job, CostDimension::Type, CostDimension::Day],
];

/// Numbers that follow from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn of<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize].clone()
    }
}

fn name(text: &'static str) -> Name {
    Name::literal(text)
}

fn purchases() -> Vec<Option<PurchaseKind>> {
    PurchaseKind::ALL.into_iter().map(Some).chain([None]).collect()
}

/// Prices of each purchase that change every few days; those of `h200` are not for every purchase.
fn prices(numbers: &mut Numbers) -> Prices {
    let mut prices = Vec::new();
    for purchase in purchases() {
        let mut from = numbers.below(5 * DAY_MS);
        for _ in 0..4 {
            let until = from + 1 + numbers.below(3 * DAY_MS);
            let kind = if purchase == Some(PurchaseKind::Spot) { "h200" } else { "h100" };
            let price = Price::new(name(kind), None, numbers.below(9_000_001));
            let (from_then, until_then) = (Some(LogTime(from)), Some(LogTime(until)));
            prices.push(Price { purchase, from: from_then, until: until_then, ..price });
            from = until + numbers.below(2) * numbers.below(DAY_MS);
        }
    }
    prices.push(Price { region: Some(name("eu")), ..Price::new(name("h100"), None, 2_000_003) });
    let policy = PolicyDraft { prices, ..PolicyDraft::default() }.check().unwrap();
    Prices::new(policy.price_table().clone())
}

fn views(numbers: &mut Numbers, prices: &Prices) -> Vec<View> {
    let activities = [
        Activity::Kept,
        Activity::Lost(LossCause::Preempted),
        Activity::Provisional,
        Activity::Idle(IdleCause::NoDemand),
        Activity::Idle(IdleCause::Fault),
    ];
    let mut usage = Vec::new();
    for _ in 0..200 {
        let period = numbers.below(prices.boundaries().len() as u64 + 1) as u32;
        let activity = numbers.of(&activities);
        let is_held = !matches!(activity, Activity::Idle(_));
        let tenant = numbers.of(&[name("a"), name("b")]);
        usage.push(UsageRow {
            day: numbers.below(9) as u32,
            tenant: is_held.then_some(tenant),
            tier: is_held.then_some(PriorityTier::Standard),
            kind: numbers.of(&[name("h100"), name("h200"), name("l4")]),
            region: numbers.of(&[name("eu"), name("us")]),
            activity,
            purchase: numbers.of(&purchases()),
            period,
            job: is_held.then(|| JobId(1 + numbers.below(5))),
            milli_ms: 1 + u128::from(numbers.below(9_000_000_000)),
        });
    }
    let capacity = usage.iter().map(|row| CapacityRow {
        day: row.day,
        kind: row.kind.clone(),
        region: row.region.clone(),
        purchase: row.purchase,
        milli_ms: row.milli_ms,
    });
    let capacity = capacity.collect();
    vec![View { usage, waits: Vec::new(), demand: Vec::new(), capacity }]
}

#[test]
fn groups_add_up_to_the_total_however_they_are_divided() {
    let mut bought = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let mut numbers = Numbers(seed);
        let prices = prices(&mut numbers);
        let views = views(&mut numbers, &prices);
        // Row by row, without any grouping.
        let (mut exact, mut priced, mut unpriced) = (0u128, 0u128, 0u128);
        for row in &views[0].usage {
            match prices.of(row) {
                Some(price) => {
                    exact += row.milli_ms * u128::from(price);
                    priced += row.milli_ms;
                    bought.insert(row.purchase);
                }
                None => unpriced += row.milli_ms,
            }
        }
        for by in GROUPINGS {
            let rows = rows(&views, &prices, by);
            let sum = total(rows.iter().map(|row| &row.amount));
            assert_eq!(sum, Amount { priced, unpriced, exact }, "seed {seed}, {by:?}");
            let micro_dollars: u128 = rows.iter().map(|row| row.micro_dollars).sum();
            assert_eq!(micro_dollars, exact / HOUR, "seed {seed}, {by:?}");
            for row in &rows {
                let down = row.amount.micro_dollars();
                assert!((down..=down + 1).contains(&row.micro_dollars), "{row:?}");
            }
        }
        let (charges, without) = charges(&views, &prices);
        assert_eq!(charges.iter().map(|charge| charge.micro_dollars).sum::<u128>(), exact / HOUR);
        assert_eq!(charges.iter().map(|charge| charge.amount.priced).sum::<u128>(), priced);
        assert_eq!(without.iter().map(|(_, milli_ms)| milli_ms).sum::<u128>(), unpriced);
    }
    assert_eq!(bought.len(), 5, "each purchase has a price somewhere: {bought:?}");
}

#[test]
fn what_is_lost_by_rounding_goes_to_those_who_lost_most() {
    let amount = |exact: u128| Amount { priced: 1, unpriced: 0, exact };
    let thirds = [amount(HOUR / 3), amount(HOUR * 2 / 3), amount(HOUR)];
    assert_eq!(shares(&thirds), [0, 1, 1]);
    // Of equal ones the first.
    assert_eq!(shares(&[amount(HOUR / 2), amount(HOUR / 2)]), [1, 0]);
    assert_eq!(shares(&[]), Vec::<u128>::new());
}

#[test]
fn time_without_a_price_is_not_free() {
    let mut numbers = Numbers(7);
    let views = views(&mut numbers, &Prices::default());
    let rows = rows(&views, &Prices::default(), &[CostDimension::Tenant]);
    assert!(rows.iter().all(|row| row.dollars() == "unpriced" && row.amount.unpriced > 0));
    assert!(rows.iter().any(|row| row.keys[0].1 == "(idle)" && row.state == "idle"));
    // A price of zero is a price.
    let mut free = Amount::default();
    free.add(5, Some(0));
    assert_eq!((free.priced, free.unpriced, free.exact), (5, 0, 0));
    assert_eq!(dollars(12_000_034), "12.000034");
}
