//! What was seen of nodes that their providers take away.

use alloc::vec::Vec;
use muster_types::policy::PurchaseKind;
use muster_types::{LogTime, Name, NodeSpec};
use serde::{Deserialize, Serialize};

/// How many days are kept, that of now among them.
pub const CAPACITY_DAYS: u64 = 14;
/// Milliseconds of a day.
const DAY_MS: u64 = 24 * 3_600 * 1_000;

/// Nodes that are taken away for like reasons.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CapacityKey {
    /// Where.
    pub region: Name,
    /// The type of accelerator; none for plain hosts.
    pub kind: Option<Name>,
    /// How they were bought.
    pub purchase: PurchaseKind,
}

impl CapacityKey {
    /// That of a node; none for one that does not state how it was bought.
    #[must_use]
    pub fn of(node: &NodeSpec) -> Option<CapacityKey> {
        let purchase = PurchaseKind::of_node(node)?;
        let kind = node.accelerators.as_ref().map(|has| has.kind.clone());
        Some(CapacityKey { region: node.region.clone(), kind, purchase })
    }
}

/// What was seen on one day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityDay {
    /// Days since the epoch of log time.
    pub day: u64,
    /// Nodes that were taken away.
    pub interruptions: u32,
    /// For how long the sessions of all nodes stood, together, in milliseconds.
    pub node_ms: u64,
}

/// What was seen of such nodes in the last days.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityRow {
    /// Nodes whose session stands.
    pub nodes_up: u32,
    /// Up to when their time is counted.
    pub counted_until: LogTime,
    /// In ascending order; at most [`CAPACITY_DAYS`]. A day on which nothing was seen is not here.
    pub days: Vec<CapacityDay>,
}

impl CapacityRow {
    /// Counts the time of its nodes up to now, and forgets what is too long ago.
    pub(crate) fn count_to(&mut self, now: LogTime) {
        let first = (now.0 / DAY_MS).saturating_sub(CAPACITY_DAYS - 1);
        let mut from = self.counted_until.0.max(first.saturating_mul(DAY_MS));
        while from < now.0 && self.nodes_up > 0 {
            let day = from / DAY_MS;
            let until = day.saturating_add(1).saturating_mul(DAY_MS).min(now.0);
            let ms = u64::from(self.nodes_up).saturating_mul(until - from);
            self.change_day(day, |of_day| of_day.node_ms = of_day.node_ms.saturating_add(ms));
            from = until;
        }
        self.counted_until = self.counted_until.max(now);
        self.days.retain(|of_day| of_day.day >= first);
    }

    /// One of its nodes was taken away.
    pub(crate) fn interrupt(&mut self, now: LogTime) {
        self.count_to(now);
        let day = self.counted_until.0 / DAY_MS;
        self.change_day(day, |of_day| of_day.interruptions = of_day.interruptions.saturating_add(1));
    }

    fn change_day(&mut self, day: u64, change: impl FnOnce(&mut CapacityDay)) {
        if let Some(last) = self.days.last_mut().filter(|last| last.day >= day) {
            return change(last);
        }
        let mut new = CapacityDay { day, ..CapacityDay::default() };
        change(&mut new);
        self.days.push(new);
    }

    /// Interruptions, and the time of nodes that they are counted against, in the days up to now.
    #[must_use]
    pub fn seen(&self, now: LogTime) -> (u64, u64) {
        // As if the time were counted up to now, without a copy of the row: this is asked for many nodes.
        let first = (now.0 / DAY_MS).saturating_sub(CAPACITY_DAYS - 1);
        let from = self.counted_until.0.max(first.saturating_mul(DAY_MS));
        let since = u64::from(self.nodes_up).saturating_mul(now.0.saturating_sub(from));
        let days = self.days.iter().filter(|of_day| of_day.day >= first);
        days.fold((0, since), |(interruptions, node_ms): (u64, u64), of_day| {
            let sum = interruptions.saturating_add(of_day.interruptions.into());
            (sum, node_ms.saturating_add(of_day.node_ms))
        })
    }

    /// Whether there is nothing left to know of it.
    pub(crate) fn is_over(&self, now: LogTime) -> bool {
        self.nodes_up == 0 && self.seen(now) == (0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_day_by_day_and_forgotten_after_two_weeks() {
        let mut row = CapacityRow { nodes_up: 2, ..CapacityRow::default() };
        row.count_to(LogTime(DAY_MS + DAY_MS / 2));
        let of = |day, node_ms| CapacityDay { day, interruptions: 0, node_ms };
        assert_eq!(row.days, [of(0, 2 * DAY_MS), of(1, DAY_MS)]);
        row.interrupt(LogTime(2 * DAY_MS - 1));
        assert_eq!(row.seen(LogTime(2 * DAY_MS)), (1, 4 * DAY_MS));
        row.count_to(LogTime(2 * DAY_MS));
        row.nodes_up = 0;
        // The first day is gone on the fifteenth, and the second one two days later.
        assert_eq!(row.seen(LogTime(14 * DAY_MS)), (1, 2 * DAY_MS));
        assert!(!row.is_over(LogTime(14 * DAY_MS)));
        assert!(row.is_over(LogTime(16 * DAY_MS)));
    }

    #[test]
    fn what_was_seen_is_what_counting_up_to_then_comes_to() {
        let mut row = CapacityRow { nodes_up: 3, ..CapacityRow::default() };
        for day in [0, 1, 4, 13] {
            row.interrupt(LogTime(day * DAY_MS + 7));
        }
        for now in [0, 7, DAY_MS, 13 * DAY_MS, 14 * DAY_MS + 1, 18 * DAY_MS, 40 * DAY_MS] {
            let mut counted = row.clone();
            counted.count_to(LogTime(now));
            let days = counted.days.iter();
            let sum = days.fold((0, 0), |(seen, ms), of_day| {
                (seen + u64::from(of_day.interruptions), ms + of_day.node_ms)
            });
            assert_eq!(row.seen(LogTime(now)), sum, "at {now}");
        }
    }

    #[test]
    fn a_long_silence_costs_no_more_than_the_days_that_are_kept() {
        let mut row = CapacityRow { nodes_up: 1, ..CapacityRow::default() };
        row.count_to(LogTime(u64::MAX));
        assert!(row.days.len() as u64 <= CAPACITY_DAYS);
        assert_eq!(row.counted_until, LogTime(u64::MAX));
    }
}
