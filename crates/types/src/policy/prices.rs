//! Prices of devices: from one time to another, by region and by how a node was bought.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use super::{PRICE_MICRO_DOLLARS_MAX, PRICES_MAX, check_bound, check_count};
use crate::name::Name;
use crate::purchase::PurchaseKind;
use crate::reason::Violation;
use crate::time::LogTime;

/// Longest time over which a device is written off: 50 years.
pub const DEPRECIATION_MONTHS_MAX: u32 = 600;
/// Most power of a device with its part of the host.
pub const DEVICE_WATTS_MAX: u32 = 100_000;
/// Least ratio of the power of a data centre to that of its computers: 1.
pub const PUE_MILLI_MIN: u32 = 1_000;
/// Largest such ratio: 10.
pub const PUE_MILLI_MAX: u32 = 10_000;
/// Largest price of a kilowatt-hour: a thousand dollars.
pub const KWH_MICRO_DOLLARS_MAX: u64 = 1_000_000_000;

/// Hours of two months: a month is a twelfth of 365.25 days, which is 730.5 hours.
const HOURS_OF_TWO_MONTHS: u128 = 1_461;

/// What an owned device costs, from which the price of an hour follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnedCost {
    /// What the device and its part of the host cost, in millionths of a dollar.
    pub micro_dollars_per_device: u64,
    /// Over how many months that is written off, from 1.
    pub depreciation_months: u32,
    /// The power of the device and its part of the host, in watts.
    pub watts: u32,
    /// The power of the data centre relative to that of its computers, in thousandths, from 1,000.
    pub pue_milli: u32,
    /// The price of a kilowatt-hour, in millionths of a dollar.
    pub micro_dollars_per_kwh: u64,
}

impl OwnedCost {
    /// Millionths of a dollar for one device and one hour, rounded once to the nearest and a half up:
    ///
    /// `price / (months × 730.5) + watts × pue × price of a kWh / 1,000`
    #[must_use]
    pub fn micro_dollars_per_device_hour(&self) -> u64 {
        let hours_twice = u128::from(self.depreciation_months.max(1)) * HOURS_OF_TWO_MONTHS;
        let device = u128::from(self.micro_dollars_per_device) * 2 * 1_000_000;
        // The watts and the ratio count in thousandths of their units, together in millionths.
        let power = (u128::from(self.watts) * u128::from(self.pue_milli))
            .saturating_mul(u128::from(self.micro_dollars_per_kwh));
        let whole = hours_twice * 1_000_000;
        let sum = power.saturating_mul(hours_twice).saturating_add(device).saturating_add(whole / 2);
        u64::try_from(sum / whole).unwrap_or(u64::MAX)
    }

    fn check(&self, at: &str, found: &mut Vec<Violation>) {
        let field = |name: &str| format!("{at}.{name}");
        let (months, kwh) = (self.depreciation_months.into(), self.micro_dollars_per_kwh);
        let pue = (PUE_MILLI_MIN.into(), PUE_MILLI_MAX.into());
        let device = self.micro_dollars_per_device;
        check_bound(&field("micro_dollars_per_device"), device, 0, PRICE_MICRO_DOLLARS_MAX, found);
        check_bound(&field("depreciation_months"), months, 1, DEPRECIATION_MONTHS_MAX.into(), found);
        check_bound(&field("watts"), self.watts.into(), 0, DEVICE_WATTS_MAX.into(), found);
        check_bound(&field("pue_milli"), self.pue_milli.into(), pue.0, pue.1, found);
        check_bound(&field("micro_dollars_per_kwh"), kwh, 0, KWH_MICRO_DOLLARS_MAX, found);
    }
}

/// What a device costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The type of accelerator.
    pub kind: Name,
    /// Where; none for every region without a separate price.
    pub region: Option<Name>,
    /// Millionths of a dollar for one device and one hour; zero where `owned` states the price.
    pub micro_dollars_per_device_hour: u64,
    /// Of nodes that were bought in this way; none for all that no other price is for.
    pub purchase: Option<PurchaseKind>,
    /// From when on it is in force, as log time in milliseconds; none for always.
    pub from: Option<LogTime>,
    /// The first moment at which it is not in force any more; none for never.
    pub until: Option<LogTime>,
    /// What the price of an owned device is made of.
    pub owned: Option<OwnedCost>,
}

impl Price {
    /// A price that is always in force, however a node was bought.
    #[must_use]
    pub fn new(kind: Name, region: Option<Name>, micro_dollars_per_device_hour: u64) -> Price {
        Price {
            kind,
            region,
            micro_dollars_per_device_hour,
            purchase: None,
            from: None,
            until: None,
            owned: None,
        }
    }

    /// Millionths of a dollar for one device and one hour, however that is stated.
    #[must_use]
    pub fn hourly(&self) -> u64 {
        let stated = self.micro_dollars_per_device_hour;
        self.owned.as_ref().map_or(stated, OwnedCost::micro_dollars_per_device_hour)
    }

    /// Whether it is in force at a time.
    #[must_use]
    pub fn is_in_force(&self, at: LogTime) -> bool {
        self.from.is_none_or(|from| from <= at) && self.until.is_none_or(|until| at < until)
    }

    /// From when to when, for comparison with others.
    fn span(&self) -> (LogTime, LogTime) {
        (self.from.unwrap_or_default(), self.until.unwrap_or(LogTime(u64::MAX)))
    }

    /// The span in words.
    fn span_text(&self) -> String {
        match (self.from, self.until) {
            (None, None) => "always".into(),
            (Some(from), None) => format!("from {from} on"),
            (None, Some(until)) => format!("until {until}"),
            (Some(from), Some(until)) => format!("from {from} until {until}"),
        }
    }

    /// What one price alone may be wrong in.
    fn check(&self, at: &str, found: &mut Vec<Violation>) {
        let field = format!("{at}.micro_dollars_per_device_hour");
        let (from, until) = self.span();
        if from >= until {
            found.push(Violation::new(format!("{at}.end_time"), "must be after the start"));
        }
        let Some(owned) = &self.owned else {
            check_bound(&field, self.micro_dollars_per_device_hour, 0, PRICE_MICRO_DOLLARS_MAX, found);
            return;
        };
        if self.micro_dollars_per_device_hour != 0 {
            found.push(Violation::new(&field, "must not be given where the parts of the price are"));
        }
        if self.purchase != Some(PurchaseKind::Owned) {
            let rule = "must be owned where the parts of the price are given";
            found.push(Violation::new(format!("{at}.purchase"), rule));
        }
        let before = found.len();
        owned.check(&format!("{at}.owned"), found);
        if found.len() == before {
            check_bound(&format!("{at}.owned"), self.hourly(), 0, PRICE_MICRO_DOLLARS_MAX, found);
        }
    }
}

/// Checks the prices of a policy one by one and against each other.
pub(super) fn check_prices(prices: &[Price], found: &mut Vec<Violation>) {
    type Rivals<'a> = (&'a Name, Option<&'a Name>, Option<PurchaseKind>);
    check_count("prices", prices.len(), PRICES_MAX, found);
    let mut rivals: BTreeMap<Rivals<'_>, Vec<(LogTime, usize)>> = BTreeMap::new();
    for (index, price) in prices.iter().enumerate() {
        price.check(&format!("prices[{index}]"), found);
        let (from, until) = price.span();
        if from < until {
            let subject = (&price.kind, price.region.as_ref(), price.purchase);
            rivals.entry(subject).or_default().push((from, index));
        }
    }
    for mut spans in rivals.into_values() {
        spans.sort_unstable();
        // The one so far that ends last.
        let mut last: Option<(LogTime, usize)> = None;
        for (from, index) in spans {
            let Some(price) = prices.get(index) else { continue };
            let (_, until) = price.span();
            if let Some((_, other)) = last.filter(|(end, _)| from < *end) {
                found.push(overlap(prices, index, other));
            }
            if last.is_none_or(|(end, _)| end < until) {
                last = Some((until, index));
            }
        }
    }
}

/// Names the one that comes later in the list, and the other in its text.
fn overlap(prices: &[Price], one: usize, other: usize) -> Violation {
    let (earlier, later) = (one.min(other), one.max(other));
    let span = |index: usize| prices.get(index).map(Price::span_text).unwrap_or_default();
    let (of_earlier, of_later) = (span(earlier), span(later));
    Violation::new(
        format!("prices[{later}]"),
        format!(
            "must be the only price for its type, region and purchase at a time: it is in force {of_later}, and \
             prices[{earlier}] {of_earlier}"
        ),
    )
}

/// A price from one time to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DatedPrice {
    from: LogTime,
    until: LogTime,
    hourly: u64,
}

type Subject = (Option<PurchaseKind>, Option<Name>);

/// The prices of a policy, to look them up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriceTable {
    /// By type, then by purchase and region, in the order of time.
    kinds: BTreeMap<Name, BTreeMap<Subject, Vec<DatedPrice>>>,
    /// [`PriceTable::boundaries`].
    moments: Vec<LogTime>,
}

impl PriceTable {
    /// Of prices that are checked.
    pub(super) fn of(prices: &[Price]) -> PriceTable {
        let mut table = PriceTable::default();
        for price in prices {
            let (from, until) = price.span();
            let subjects = table.kinds.entry(price.kind.clone()).or_default();
            let dated = subjects.entry((price.purchase, price.region.clone())).or_default();
            dated.push(DatedPrice { from, until, hourly: price.hourly() });
        }
        for dated in table.kinds.values_mut().flat_map(BTreeMap::values_mut) {
            dated.sort_unstable_by_key(|dated| dated.from);
        }
        table.moments = table.boundaries();
        table
    }

    /// Millionths of a dollar for one device and one hour at a time. The most specific price that is in force counts: for
    /// purchase and region, then for the purchase in every region, then for the region, then for the type; none when there
    /// is none of these.
    #[must_use]
    pub fn get(
        &self,
        kind: &Name,
        region: &Name,
        purchase: Option<PurchaseKind>,
        at: LogTime,
    ) -> Option<u64> {
        let subjects = self.kinds.get(kind)?;
        let places = [Some(region.clone()), None];
        let at_place = |purchase: Option<PurchaseKind>, place: &Option<Name>| {
            let dated = subjects.get(&(purchase, place.clone()))?;
            let behind = dated.partition_point(|dated| dated.from <= at);
            let last = dated.get(behind.checked_sub(1)?)?;
            (at < last.until).then_some(last.hourly)
        };
        let of = |purchase: Option<PurchaseKind>| places.iter().find_map(|place| at_place(purchase, place));
        let bought = purchase.and_then(|purchase| of(Some(purchase)));
        bought.or_else(|| of(None))
    }

    /// What decisions compare, which know a type and a region and not yet a node: the price that is for no purchase, or else
    /// the lowest of those that are for one.
    #[must_use]
    pub fn compared(&self, kind: &Name, region: &Name, at: LogTime) -> Option<u64> {
        let plain = self.get(kind, region, None, at);
        let bought = || PurchaseKind::ALL.into_iter().filter_map(|one| self.get(kind, region, Some(one), at));
        plain.or_else(|| bought().min())
    }

    /// Every moment at which some price begins or ends to be in force, ascending.
    #[must_use]
    pub fn boundaries(&self) -> Vec<LogTime> {
        let all = self.kinds.values().flat_map(BTreeMap::values).flatten();
        let moments: BTreeSet<LogTime> = all.flat_map(|dated| [dated.from, dated.until]).collect();
        moments.into_iter().filter(|moment| (1..u64::MAX).contains(&moment.0)).collect()
    }

    /// Those of them that are after one moment and before another.
    #[must_use]
    pub fn boundaries_between(&self, from: LogTime, until: LogTime) -> &[LogTime] {
        let first = self.moments.partition_point(|moment| *moment <= from);
        let end = self.moments.partition_point(|moment| *moment < until);
        self.moments.get(first..end).unwrap_or_default()
    }

    /// Whether there is no price at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}
