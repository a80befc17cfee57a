//! What accelerator time costs, by the prices of the policy: exact sums, and millionths of a dollar that add up.

use std::collections::BTreeMap;

use clap::ValueEnum;
use muster_ledger::{Activity, DAY_MS, UsageRow, View};
use muster_types::LogTime;
use muster_types::policy::PriceTable;
use serde::Serialize;
use serde::ser::SerializeMap;

/// Thousandths of an accelerator times milliseconds in one accelerator-hour.
pub(super) const HOUR: u128 = 3_600_000_000;

/// What a report of cost can be divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CostDimension {
    /// The tenant of the job; (idle) for accelerators that nobody holds
    Tenant,
    /// The type of accelerator
    Type,
    /// The region
    Region,
    /// The tier of the job
    Tier,
    /// The job
    Job,
    /// How the nodes were bought, by their label `purchase`
    Purchase,
    /// The day, in UTC
    Day,
}

impl CostDimension {
    pub(super) fn title(self) -> &'static str {
        match self {
            CostDimension::Tenant => "TENANT",
            CostDimension::Type => "TYPE",
            CostDimension::Region => "REGION",
            CostDimension::Tier => "TIER",
            CostDimension::Job => "JOB",
            CostDimension::Purchase => "PURCHASE",
            CostDimension::Day => "DAY",
        }
    }

    fn key(self, row: &UsageRow) -> String {
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        match self {
            // No tenant has such a name.
            CostDimension::Tenant => {
                row.tenant.as_ref().map_or("(idle)", |tenant| tenant.as_str()).to_owned()
            }
            CostDimension::Type => row.kind.to_string(),
            CostDimension::Region => row.region.to_string(),
            CostDimension::Tier => text(row.tier.map(|tier| tier.to_string())),
            CostDimension::Job => text(row.job.map(|job| job.to_string())),
            CostDimension::Purchase => text(row.purchase.map(|purchase| purchase.to_string())),
            CostDimension::Day => {
                day_start(row.day).to_string().split('T').next().unwrap_or_default().to_owned()
            }
        }
    }
}

/// The first moment of a day.
pub(super) fn day_start(day: u32) -> LogTime {
    LogTime(u64::from(day) * DAY_MS)
}

/// Prices, and the moments at which they change.
#[derive(Clone, Debug, Default)]
pub(super) struct Prices {
    table: PriceTable,
    boundaries: Vec<LogTime>,
}

impl Prices {
    pub(super) fn new(table: PriceTable) -> Prices {
        let boundaries = table.boundaries();
        Prices { table, boundaries }
    }

    /// The moments at which the ledger begins a new period.
    pub(super) fn boundaries(&self) -> &[LogTime] {
        &self.boundaries
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// A period from its first moment to its end, which is not in it.
    pub(super) fn period(&self, period: u32) -> (LogTime, LogTime) {
        let period = period as usize;
        let begin = period.checked_sub(1).and_then(|before| self.boundaries.get(before)).copied();
        let end = self.boundaries.get(period).copied().unwrap_or(LogTime(u64::MAX));
        (begin.unwrap_or_default(), end)
    }

    /// Millionths of a dollar for an accelerator-hour of a row. No price changes within a period.
    pub(super) fn of(&self, row: &UsageRow) -> Option<u64> {
        let (begin, _) = self.period(row.period);
        self.table.get(&row.kind, &row.region, row.purchase, begin)
    }
}

/// A sum of accelerator time and of what it costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    /// Thousandths of accelerators times milliseconds that have a price.
    pub(super) priced: u128,
    /// The same of those that have none.
    pub(super) unpriced: u128,
    /// `priced`, each part times its millionths of a dollar for an hour. At the highest price this holds the time of 10^13
    /// accelerators for a year.
    pub(super) exact: u128,
}

impl Amount {
    pub(super) fn add(&mut self, milli_ms: u128, price: Option<u64>) {
        match price {
            Some(price) => {
                self.priced += milli_ms;
                self.exact = self.exact.saturating_add(milli_ms.saturating_mul(price.into()));
            }
            None => self.unpriced += milli_ms,
        }
    }

    /// Millionths of a dollar, rounded down.
    pub(super) fn micro_dollars(&self) -> u128 {
        self.exact / HOUR
    }
}

/// The sum of amounts.
pub(super) fn total<'a>(amounts: impl Iterator<Item = &'a Amount>) -> Amount {
    amounts.fold(Amount::default(), |sum, amount| Amount {
        priced: sum.priced + amount.priced,
        unpriced: sum.unpriced + amount.unpriced,
        exact: sum.exact.saturating_add(amount.exact),
    })
}

/// Whole millionths of a dollar for each amount, which add up to those of their sum: each is rounded down, and what is then
/// missing goes, one millionth each, to the amounts that lost most by it, the first of equal ones first.
pub(super) fn shares(amounts: &[Amount]) -> Vec<u128> {
    let mut shares: Vec<u128> = amounts.iter().map(Amount::micro_dollars).collect();
    let whole = total(amounts.iter()).micro_dollars();
    let missing = whole.saturating_sub(shares.iter().sum());
    let mut order: Vec<usize> = (0..amounts.len()).collect();
    let lost = |at: &usize| amounts.get(*at).map_or(0, |amount| amount.exact % HOUR);
    order.sort_by_key(|at| (std::cmp::Reverse(lost(at)), *at));
    // Fewer than there are amounts are missing, since each lost less than one.
    for at in order.into_iter().take(usize::try_from(missing).unwrap_or(usize::MAX)) {
        if let Some(share) = shares.get_mut(at) {
            *share += 1;
        }
    }
    shares
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CostRow {
    /// What it is the sum of, in the order that was asked for.
    pub(super) keys: Vec<(&'static str, String)>,
    pub(super) state: String,
    pub(super) amount: Amount,
    pub(super) micro_dollars: u128,
}

impl CostRow {
    /// Dollars, or that nothing of it has a price.
    pub(super) fn dollars(&self) -> String {
        match self.amount.priced {
            0 => "unpriced".to_owned(),
            _ => dollars(self.micro_dollars),
        }
    }
}

/// One object, with amounts as text: they may be above what numbers of JSON hold.
impl Serialize for CostRow {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let of_price = if self.amount.priced > 0 { 2 } else { 0 };
        let mut map = serializer.serialize_map(Some(self.keys.len() + 3 + of_price))?;
        for (key, value) in &self.keys {
            map.serialize_entry(&key.to_lowercase(), value)?;
        }
        map.serialize_entry("state", &self.state)?;
        map.serialize_entry("priced", &self.amount.priced.to_string())?;
        map.serialize_entry("unpriced", &self.amount.unpriced.to_string())?;
        if self.amount.priced > 0 {
            map.serialize_entry("microDollars", &self.micro_dollars.to_string())?;
            map.serialize_entry("exact", &self.amount.exact.to_string())?;
        }
        map.end()
    }
}

/// Dollars with all six decimals.
pub(super) fn dollars(micro_dollars: u128) -> String {
    format!("{}.{:06}", micro_dollars / 1_000_000, micro_dollars % 1_000_000)
}

/// The word for a state; causes of idle time are one.
pub(super) fn state_word(activity: Activity) -> String {
    match activity {
        Activity::Idle(_) => "idle".to_owned(),
        other => other.to_string(),
    }
}

/// The lines of a report. Idle time comes last in each group.
pub(super) fn rows(views: &[View], prices: &Prices, by: &[CostDimension]) -> Vec<CostRow> {
    let mut sums: BTreeMap<(Vec<String>, bool, Option<Activity>), Amount> = BTreeMap::new();
    for row in views.iter().flat_map(|view| &view.usage) {
        let keys = by.iter().map(|by| by.key(row)).collect();
        let shown = (!matches!(row.activity, Activity::Idle(_))).then_some(row.activity);
        sums.entry((keys, shown.is_none(), shown)).or_default().add(row.milli_ms, prices.of(row));
    }
    let amounts: Vec<Amount> = sums.values().copied().collect();
    let sums = sums.into_iter().zip(shares(&amounts));
    let rows = sums.map(|(((keys, _, shown), amount), micro_dollars)| CostRow {
        keys: by.iter().map(|by| by.title()).zip(keys).collect(),
        state: shown.map_or_else(|| "idle".to_owned(), state_word),
        amount,
        micro_dollars,
    });
    rows.collect()
}

/// A charge of one day at one price, for FOCUS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    /// A row of the ledger that stands for all of its kind.
    pub(super) row: UsageRow,
    pub(super) price: u64,
    pub(super) amount: Amount,
    pub(super) micro_dollars: u128,
}

/// Charges by day, period of prices, owner, type, region, purchase, state and, where they are kept apart, job; and the time
/// that has no price, by type and region.
pub(super) fn charges(views: &[View], prices: &Prices) -> (Vec<Charge>, Vec<(String, u128)>) {
    let mut sums: BTreeMap<UsageRow, (u64, Amount)> = BTreeMap::new();
    let mut unpriced: BTreeMap<String, u128> = BTreeMap::new();
    for row in views.iter().flat_map(|view| &view.usage) {
        let Some(price) = prices.of(row) else {
            *unpriced.entry(format!("{} in {}", row.kind, row.region)).or_default() += row.milli_ms;
            continue;
        };
        let key = UsageRow { milli_ms: 0, ..row.clone() };
        let (_, amount) = sums.entry(key).or_insert((price, Amount::default()));
        amount.add(row.milli_ms, Some(price));
    }
    let amounts: Vec<Amount> = sums.values().map(|(_, amount)| *amount).collect();
    let charges = sums.into_iter().zip(shares(&amounts));
    let charges =
        charges.map(|((row, (price, amount)), micro_dollars)| Charge { row, price, amount, micro_dollars });
    (charges.collect(), unpriced.into_iter().collect())
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;
