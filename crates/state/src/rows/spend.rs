//! What was spent in one window of log time.

use alloc::vec::Vec;
use muster_types::policy::{PriceTable, PurchaseKind};
use muster_types::{LogTime, Name};
use serde::{Deserialize, Serialize};

use super::Charge;

/// Devices that are charged now and cost the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SpendPart {
    /// Their type.
    pub kind: Name,
    /// Where they are.
    pub region: Name,
    /// How their nodes were bought, as they stated it at the time; none for those that stated nothing.
    pub purchase: Option<PurchaseKind>,
    /// How many, in thousandths; never zero.
    pub milli: u64,
}

impl SpendPart {
    /// The parts of a charge in a region that cost the same each.
    pub(crate) fn of(region: &Name, charge: &Charge) -> Vec<SpendPart> {
        let part = |kind: &Name, purchase: Option<PurchaseKind>, milli: u64| SpendPart {
            kind: kind.clone(),
            region: region.clone(),
            purchase,
            milli,
        };
        let bought = charge.bought_milli.iter();
        let mut parts: Vec<SpendPart> =
            bought.map(|(kind, purchase, milli)| part(kind, Some(*purchase), *milli)).collect();
        for (kind, milli) in &charge.devices_milli {
            let of_kind = charge.bought_milli.iter().filter(|(known, ..)| known == kind);
            let stated = of_kind.fold(0_u64, |sum, (.., milli)| sum.saturating_add(*milli));
            let rest = milli.saturating_sub(stated);
            parts.extend((rest > 0).then(|| part(kind, None, rest)));
        }
        parts
    }

    fn is_alike(&self, other: &SpendPart) -> bool {
        (&self.kind, &self.region, self.purchase) == (&other.kind, &other.region, other.purchase)
    }
}

/// What is spent in one window, in millionths of a dollar an hour times thousandths of a device times milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpendRow {
    /// The length of a window, in milliseconds; from 1.
    pub window_ms: u64,
    /// Up to when it is counted.
    pub as_of: LogTime,
    /// What was charged in the window of that moment, up to it.
    pub used: u128,
    /// What is charged now; ascending, no two of them alike.
    pub running: Vec<SpendPart>,
}

impl SpendRow {
    /// Nothing used yet.
    #[must_use]
    pub fn new(window_ms: u64, now: LogTime) -> SpendRow {
        SpendRow { window_ms: window_ms.max(1), as_of: now, used: 0, running: Vec::new() }
    }

    /// What is charged at a moment for a millisecond, by the prices that are in force then.
    fn rate(&self, prices: &PriceTable, at: LogTime) -> u128 {
        let price = |part: &SpendPart| prices.get(&part.kind, &part.region, part.purchase, at).unwrap_or(0);
        let rates = self.running.iter().map(|part| u128::from(part.milli) * u128::from(price(part)));
        rates.fold(0, u128::saturating_add)
    }

    /// What was used at a moment in the window of that moment; at [`SpendRow::as_of`] for an earlier one. Each price counts for
    /// the time for which it is in force.
    #[must_use]
    pub fn used_at(&self, now: LogTime, prices: &PriceTable) -> u128 {
        let now = now.max(self.as_of);
        let window_start = LogTime(now.0 - now.0 % self.window_ms.max(1));
        let (mut sum, mut from) = match window_start > self.as_of {
            true => (0, window_start),
            false => (self.used, self.as_of),
        };
        if self.running.is_empty() {
            return sum;
        }
        let boundaries = prices.boundaries_between(from, now).iter().copied();
        for until in boundaries.chain([now]) {
            let more = self.rate(prices, from).saturating_mul(u128::from(until.since_ms(from)));
            sum = sum.saturating_add(more);
            from = until;
        }
        sum
    }

    /// Counts up to a moment; nothing where that is not later.
    pub(crate) fn advance(&mut self, now: LogTime, prices: &PriceTable) {
        self.used = self.used_at(now, prices);
        self.as_of = now.max(self.as_of);
    }

    /// So much more is charged from the moment up to which it is counted.
    pub(crate) fn start(&mut self, part: SpendPart) {
        match self.running.iter_mut().find(|known| known.is_alike(&part)) {
            Some(known) => known.milli = known.milli.saturating_add(part.milli),
            None => {
                self.running.push(part);
                self.running.sort_unstable();
            }
        }
    }

    /// So much less is. One that began to be counted while the job was charged already has less.
    pub(crate) fn stop(&mut self, part: &SpendPart) {
        if let Some(known) = self.running.iter_mut().find(|known| known.is_alike(part)) {
            known.milli = known.milli.saturating_sub(part.milli);
        }
        self.running.retain(|part| part.milli > 0);
    }

    /// When the window ends up to which it is counted and nothing of it counts any more; none while something is charged.
    #[must_use]
    pub(crate) fn over_at(&self) -> Option<LogTime> {
        let window_ms = self.window_ms.max(1);
        let window_start = LogTime(self.as_of.0 - self.as_of.0 % window_ms);
        self.running.is_empty().then(|| window_start.plus_ms(window_ms))
    }

    /// Whether nothing is charged, and nothing was in the window up to which it is counted.
    #[must_use]
    pub(crate) fn is_blank(&self) -> bool {
        self.running.is_empty() && self.used == 0
    }

    /// Whether it keeps its own rules.
    pub(crate) fn is_sound(&self) -> bool {
        let is_apart = |pair: &[SpendPart]| match pair {
            [one, other] => one < other && !one.is_alike(other),
            _ => true,
        };
        self.window_ms > 0
            && self.running.iter().all(|part| part.milli > 0)
            && self.running.windows(2).all(is_apart)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use muster_types::policy::{PolicyDraft, Price};

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn part(kind: &str, purchase: Option<PurchaseKind>, milli: u64) -> SpendPart {
        SpendPart { kind: name(kind), region: name("eu"), purchase, milli }
    }

    /// Two dollars until 10,500, three from then on, and half a dollar for spot.
    fn prices() -> PriceTable {
        let price = |dollars_milli: u64| Price::new(name("h100"), None, dollars_milli * 1_000);
        let draft = PolicyDraft {
            prices: vec![
                Price { until: Some(LogTime(10_500)), ..price(2_000) },
                Price { from: Some(LogTime(10_500)), ..price(3_000) },
                Price { purchase: Some(PurchaseKind::Spot), ..price(500) },
            ],
            ..PolicyDraft::default()
        };
        draft.check().expect("it breaks no rule").price_table().clone()
    }

    #[test]
    fn each_price_counts_for_its_time() {
        let prices = prices();
        let mut row = SpendRow::new(1_000, LogTime(10_200));
        row.start(part("h100", None, 1_000));
        assert_eq!(row.used_at(LogTime(10_400), &prices), 200 * 1_000 * 2_000_000);
        let both = 300 * 1_000 * 2_000_000 + 100 * 1_000 * 3_000_000;
        assert_eq!(row.used_at(LogTime(10_600), &prices), both);
        assert_eq!(row.used_at(LogTime(11_010), &prices), 10 * 1_000 * 3_000_000, "another window");
        row.start(part("h100", Some(PurchaseKind::Spot), 2_000));
        row.start(part("a100", None, 8_000));
        let spot = 100 * 2_000 * 500_000;
        assert_eq!(
            row.used_at(LogTime(10_300), &prices),
            100 * 1_000 * 2_000_000 + spot,
            "a100 has no price"
        );
        assert!(row.is_sound());
    }

    #[test]
    fn how_often_it_is_advanced_makes_no_difference() {
        let prices = prices();
        let mut start = SpendRow::new(997, LogTime(10_001));
        start.start(part("h100", None, 7));
        start.start(part("h100", Some(PurchaseKind::Spot), 5));
        for until in [10_002, 10_499, 10_500, 10_501, 10_967, 11_200, 14_000] {
            let (mut often, mut once) = (start.clone(), start.clone());
            for now in 10_001..=until {
                often.advance(LogTime(now), &prices);
            }
            once.advance(LogTime(until), &prices);
            assert_eq!(often, once, "{until}");
        }
    }

    #[test]
    fn a_charge_is_split_by_how_its_nodes_were_bought() {
        let charge = Charge {
            devices_milli: vec![(name("a100"), 2_000), (name("h100"), 8_000)],
            bought_milli: vec![
                (name("h100"), PurchaseKind::Owned, 3_000),
                (name("h100"), PurchaseKind::Spot, 1_000),
            ],
            ..Charge::default()
        };
        let parts = SpendPart::of(&name("eu"), &charge);
        let expected = [
            part("h100", Some(PurchaseKind::Owned), 3_000),
            part("h100", Some(PurchaseKind::Spot), 1_000),
            part("a100", None, 2_000),
            part("h100", None, 4_000),
        ];
        assert_eq!(parts, expected);
        let mut row = SpendRow::new(1_000, LogTime(0));
        parts.iter().cloned().for_each(|part| row.start(part));
        assert!(row.is_sound() && row.over_at().is_none());
        parts.iter().for_each(|part| row.stop(part));
        assert!(row.is_blank());
        assert_eq!(row.over_at(), Some(LogTime(1_000)));
    }
}
