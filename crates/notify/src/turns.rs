//! Events that wait for one receiver, and whose is sent next: a tenant after the other, so that no tenant waits behind all events of
//! another one. The events of one tenant stay in the order of the log.

use muster_types::{LogIndex, Name};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

/// Events of one receiver that wait in memory. What is behind them stays in the log.
const WAITING_MAX: usize = 2_048;
/// Events of one tenant among them that jobs have asked for, at a receiver that jobs of others may name too.
const WAITING_OF_TENANT_MAX: usize = 512;

/// How an event was taken that has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queued {
    /// It waits.
    Waits,
    /// It is not sent, for too many of its tenant wait. Whether it is the first since none of these has waited.
    Dropped {
        /// Whether people are to be told.
        is_first: bool,
    },
}

/// Events by tenant; those of nodes have none.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    waiting: BTreeMap<Option<Name>, VecDeque<(LogIndex, T)>>,
    count: usize,
    /// Whose event was taken last.
    last: Option<Name>,
    /// Tenants of which events were dropped since none of theirs has waited.
    dropping: BTreeSet<Option<Name>>,
}

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns { waiting: BTreeMap::new(), count: 0, last: None, dropping: BTreeSet::new() }
    }
}

impl<T> Turns<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether more is to be read of the log before some of this is sent.
    pub(crate) fn has_room(&self) -> bool {
        self.count < WAITING_MAX
    }

    /// Takes an event of the record at `log_index`, behind all of its tenant. One that a job has asked for may be dropped.
    pub(crate) fn push(
        &mut self,
        tenant: Option<Name>,
        log_index: LogIndex,
        event: T,
        is_asked: bool,
    ) -> Queued {
        let held = self.waiting.get(&tenant).map_or(0, VecDeque::len);
        if is_asked && held >= WAITING_OF_TENANT_MAX {
            return Queued::Dropped { is_first: self.dropping.insert(tenant) };
        }
        self.waiting.entry(tenant).or_default().push_back((log_index, event));
        self.count += 1;
        Queued::Waits
    }

    /// The next event: the oldest of the tenant behind the one whose turn it was.
    pub(crate) fn take(&mut self) -> Option<T> {
        let behind = (Bound::Excluded(self.last.clone()), Bound::Unbounded);
        let next = self.waiting.range(behind).next().or_else(|| self.waiting.iter().next());
        let tenant = next?.0.clone();
        let events = self.waiting.get_mut(&tenant)?;
        let taken = events.pop_front();
        if events.is_empty() {
            self.waiting.remove(&tenant);
            self.dropping.remove(&tenant);
        }
        self.last = tenant;
        self.count = self.count.saturating_sub(1);
        taken.map(|(_, event)| event)
    }

    /// The record of the oldest event that waits.
    pub(crate) fn oldest(&self) -> Option<LogIndex> {
        self.waiting.values().filter_map(|events| Some(events.front()?.0)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Name> {
        Some(Name::new(text).expect("a name"))
    }

    #[test]
    fn tenants_take_turns_and_each_keeps_the_order_of_the_log() {
        let mut turns = Turns::default();
        for (tenant, at) in [("a", 1), ("a", 2), ("a", 3), ("c", 4), ("a", 5), ("b", 6), ("b", 6)] {
            assert_eq!(turns.push(of(tenant), LogIndex(at), at, false), Queued::Waits);
        }
        turns.push(None, LogIndex(7), 7, false);
        assert_eq!(turns.oldest(), Some(LogIndex(1)));
        let taken: Vec<u64> = std::iter::from_fn(|| turns.take()).collect();
        assert_eq!(taken, [1, 6, 4, 7, 2, 6, 3, 5]);
        assert!(turns.is_empty() && turns.oldest().is_none());
    }

    #[test]
    fn a_flood_of_one_tenant_costs_nobody_else_an_event() {
        let mut turns = Turns::default();
        let mut dropped = (0, 0);
        for at in 0..10_000 {
            if let Queued::Dropped { is_first } = turns.push(of("flood"), LogIndex(at), at, true) {
                dropped = (dropped.0 + 1, dropped.1 + u64::from(is_first));
            }
        }
        assert_eq!(dropped, (10_000 - 512, 1), "people are told once");
        assert!(turns.has_room());
        assert_eq!(turns.push(of("other"), LogIndex(10_000), 10_000, true), Queued::Waits);
        let soon = [turns.take(), turns.take()];
        assert!(soon.contains(&Some(10_000)), "{soon:?}");
        while turns.take().is_some() {}
        assert_eq!(turns.push(of("flood"), LogIndex(10_001), 1, true), Queued::Waits);
        // What the operator has asked for is never dropped: the log is read further when it is sent.
        for at in 0..3_000 {
            assert_eq!(turns.push(of("jobs"), LogIndex(20_000 + at), at, false), Queued::Waits);
        }
        assert!(!turns.has_room());
    }
}
