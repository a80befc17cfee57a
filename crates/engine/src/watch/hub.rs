//! The watch hub: recent changes by log index, for any number of followers of the log.

use muster_planted::{Rule, breaks};
use muster_types::{LogIndex, Refusal, RefusalCode};
use parking_lot::RwLock;
use std::collections::VecDeque;
use tokio::sync::watch;

use crate::watch::changes::{Change, Event, WatchPosition};

/// Changes kept in memory. Older ones are answered with `RESUME_TOKEN_COMPACTED`.
pub(crate) const EVENTS_MAX: usize = 65_536;
/// Sum of [`Event::weight`] of the changes kept: every change of a gang of thousands carries a separate
/// placement, some 50 bytes a worker, and every registration a description, so that counting changes
/// alone would not bound memory.
const EVENT_WEIGHT_MAX: usize = 4 << 20;
/// Changes handed out at once.
const BATCH_MAX: usize = 256;
/// Changes that are looked at for the newest ones of a kind.
const NEWEST_LOOKED_AT_MAX: usize = 16_384;
/// Changes that are looked at under one hold of the lock, from the newest back: apply and every other follower wait as long as that
/// takes, and a thread of the lowest priority may be suspended meanwhile.
const NEWEST_PIECE: usize = 512;

struct Inner {
    /// Everything up to here has been dropped.
    floor: LogIndex,
    /// Everything up to here is in.
    end: LogIndex,
    events: VecDeque<Event>,
    /// Sum of [`Event::weight`].
    weight: usize,
}

impl Inner {
    fn new(at: LogIndex) -> Inner {
        Inner { floor: at, end: at, events: VecDeque::new(), weight: 0 }
    }

    fn drop_first(&mut self) {
        if let Some(dropped) = self.events.pop_front() {
            self.weight -= dropped.weight();
            self.floor = dropped.position.log_index;
        }
    }
}

/// Recent changes.
pub(crate) struct WatchHub {
    inner: RwLock<Inner>,
    end: watch::Sender<LogIndex>,
}

impl WatchHub {
    pub(crate) fn new(at: LogIndex) -> WatchHub {
        WatchHub { inner: RwLock::new(Inner::new(at)), end: watch::Sender::new(at) }
    }

    /// Adds the changes of records up to `end`; waking the followers is the caller's next step.
    pub(crate) fn append(&self, end: LogIndex, events: Vec<Event>) {
        let mut inner = self.inner.write();
        inner.end = inner.end.max(end);
        inner.weight += events.iter().map(Event::weight).sum::<usize>();
        inner.events.extend(events);
        while inner.events.len() > EVENTS_MAX || inner.weight > EVENT_WEIGHT_MAX {
            inner.drop_first();
        }
        // A record is kept whole or not at all.
        while inner.events.front().is_some_and(|e| e.position.log_index == inner.floor) {
            inner.drop_first();
        }
        drop(inner);
        self.end.send_replace(end);
    }

    /// A snapshot replaced the state: what led to it is not known here.
    pub(crate) fn reset(&self, at: LogIndex) {
        let mut inner = self.inner.write();
        *inner = Inner::new(at);
        drop(inner);
        self.end.send_replace(at);
    }

    /// Where a follower of the changes behind `from` begins.
    pub(crate) fn enter(&self, from: WatchPosition) -> Result<WatchPosition, Refusal> {
        let inner = self.inner.read();
        check_position(&inner, from)?;
        Ok(match inner.events.iter().find(|event| event.position > from) {
            Some(skipped) if breaks(Rule::WatchSkips) => skipped.position,
            _ => from,
        })
    }

    /// Up to which record the changes are in, as it moves on.
    pub(crate) fn end(&self) -> watch::Receiver<LogIndex> {
        self.end.subscribe()
    }

    /// Whether everything behind a place is here.
    pub(crate) fn keeps(&self, from: WatchPosition) -> bool {
        let inner = self.inner.read();
        check_position(&inner, from).is_ok()
    }

    /// The newest changes of records up to `at` that are wanted, newest first, at most `count`.
    pub(crate) fn newest(&self, count: usize, at: LogIndex, wanted: impl Fn(&Change) -> bool) -> Vec<Event> {
        let mut newest: Vec<Event> = Vec::new();
        let (mut behind, mut looked_at) = (WatchPosition::after(at), 0);
        while newest.len() < count && looked_at < NEWEST_LOOKED_AT_MAX {
            let inner = self.inner.read();
            let end = inner.events.partition_point(|event| event.position <= behind);
            let start = end.saturating_sub(NEWEST_PIECE);
            let piece = inner.events.range(start..end).rev();
            newest.extend(piece.filter(|event| wanted(&event.change)).take(count - newest.len()).cloned());
            let before = start.checked_sub(1).and_then(|before| inner.events.get(before));
            let Some(before) = before.map(|event| event.position) else { break };
            looked_at += NEWEST_PIECE;
            behind = before;
        }
        newest
    }

    /// The last changes behind a place that are wanted, in order and at most `count`; how many of them came before those, and
    /// the place reached. Only those that are handed out are copied. All changes behind the place are looked at, at most
    /// [`EVENTS_MAX`], and [`NEWEST_PIECE`] of them under one hold of the lock.
    pub(crate) fn last(
        &self,
        from: WatchPosition,
        count: usize,
        wanted: impl Fn(&Change) -> bool,
    ) -> Result<(Vec<Event>, usize, WatchPosition), Refusal> {
        let reached = WatchPosition::after(self.inner.read().end).max(from);
        let (mut last, mut skipped): (Vec<Event>, usize) = (Vec::new(), 0);
        // What comes in from now on is behind the place reached, and is looked at next time.
        let mut behind = reached;
        loop {
            let inner = self.inner.read();
            // What has been dropped meanwhile cannot be counted.
            check_position(&inner, from)?;
            let first = inner.events.partition_point(|event| event.position <= from);
            let end = inner.events.partition_point(|event| event.position <= behind);
            let start = first.max(end.saturating_sub(NEWEST_PIECE));
            for event in inner.events.range(start..end).rev().filter(|event| wanted(&event.change)) {
                if last.len() < count {
                    last.push(event.clone());
                } else {
                    skipped += 1;
                }
            }
            let before = start.checked_sub(1).filter(|_| start > first);
            let Some(before) = before.and_then(|before| inner.events.get(before)) else { break };
            behind = before.position;
        }
        last.reverse();
        Ok((last, skipped, reached))
    }

    /// Changes behind a place, at most some of them, and the place reached.
    pub(crate) fn batch(&self, from: WatchPosition) -> Result<(Vec<Event>, WatchPosition), Refusal> {
        let inner = self.inner.read();
        check_position(&inner, from)?;
        let start = inner.events.partition_point(|e| e.position <= from);
        let events: Vec<Event> = inner.events.range(start..).take(BATCH_MAX).cloned().collect();
        let reached = match events.last() {
            Some(last) if events.len() == BATCH_MAX => last.position,
            _ => WatchPosition::after(inner.end).max(from),
        };
        Ok((events, reached))
    }
}

fn check_position(inner: &Inner, from: WatchPosition) -> Result<(), Refusal> {
    let whole = from.ordinal == u32::MAX;
    if from.log_index < inner.floor || (from.log_index == inner.floor && !whole) {
        let text =
            format!("changes up to {} are not kept any more; list again and watch from there", inner.floor);
        return Err(
            Refusal::new(RefusalCode::ResumeTokenCompacted, text).with("oldest_log_index", inner.floor)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_state::{JobRow, Phase, Placement, RankState};
    use muster_types::{DeviceSet, FencingToken, JobId, LogTime, Name, NodeId};
    use std::sync::Arc;

    fn forgotten(index: u64) -> Event {
        let position = WatchPosition { log_index: LogIndex(index), ordinal: 1 };
        let change = Change::JobForgotten(JobId(index));
        Event { position, change, occurrence: None, named: Arc::default() }
    }

    #[test]
    fn the_newest_changes_come_first_and_only_those_that_are_wanted() {
        let hub = WatchHub::new(LogIndex::ZERO);
        for index in 1..=9 {
            hub.append(LogIndex(index), vec![forgotten(index)]);
        }
        let even = |change: &Change| matches!(change, Change::JobForgotten(JobId(id)) if id % 2 == 0);
        let indexes = |events: &[Event]| -> Vec<u64> {
            events.iter().map(|event| event.position.log_index.0).collect()
        };
        assert_eq!(indexes(&hub.newest(3, LogIndex(9), even)), [8, 6, 4]);
        assert!(hub.newest(3, LogIndex(9), |_| false).is_empty());
        assert_eq!(
            indexes(&hub.newest(3, LogIndex(7), even)),
            [6, 4, 2],
            "nothing behind the state of a page"
        );
        assert!(hub.newest(3, LogIndex::ZERO, even).is_empty());
        let from = WatchPosition::after(LogIndex(3));
        let (last, skipped, reached) = hub.last(from, 2, |_| true).expect("it is kept");
        assert_eq!((indexes(&last), skipped, reached), (vec![8, 9], 4, WatchPosition::after(LogIndex(9))));
        let (last, skipped, _) = hub.last(from, 9, even).expect("it is kept");
        assert_eq!((indexes(&last), skipped), (vec![4, 6, 8], 0));
        assert!(hub.last(WatchPosition { log_index: LogIndex::ZERO, ordinal: 0 }, 1, even).is_err());
    }

    #[test]
    fn the_newest_changes_are_found_across_pieces_and_no_further_than_is_looked() {
        let hub = WatchHub::new(LogIndex::ZERO);
        let many = NEWEST_LOOKED_AT_MAX as u64 + 2 * NEWEST_PIECE as u64;
        for index in 1..=many {
            hub.append(LogIndex(index), vec![forgotten(index)]);
        }
        let is = |wanted: u64| move |change: &Change| matches!(change, Change::JobForgotten(JobId(id)) if *id == wanted);
        let found = |wanted: u64| hub.newest(1, LogIndex(many), is(wanted)).len();
        let piece = NEWEST_PIECE as u64;
        assert_eq!([many, many - piece + 1, many - piece, many - 2 * piece].map(found), [1; 4]);
        assert_eq!((found(many - NEWEST_LOOKED_AT_MAX as u64 + 1), found(1)), (1, 0));
        let from = WatchPosition::after(LogIndex::ZERO);
        for left in [0, 2, NEWEST_PIECE, NEWEST_PIECE + 1] {
            let (last, skipped, reached) = hub.last(from, left, |_| true).expect("it is kept");
            assert_eq!((last.len(), last.len() + skipped), (left, many as usize), "each is counted once");
            assert!(last.is_sorted_by(|a, b| a.position < b.position), "in order");
            assert_eq!(reached, WatchPosition::after(LogIndex(many)));
        }
        let all = hub.newest(usize::MAX, LogIndex(many), |_| true);
        assert_eq!(all.len(), NEWEST_LOOKED_AT_MAX);
        assert!(all.is_sorted_by(|a, b| a.position > b.position), "each once, newest first");
    }

    #[test]
    fn large_gangs_are_bounded_by_their_workers() {
        let hub = WatchHub::new(LogIndex::ZERO);
        let name = |text: &str| Name::new(text).expect("it is a name");
        let workers = 16_384;
        let slot = muster_journal::WorkerSlot { node: NodeId(1), incarnation: 1, devices: DeviceSet::EMPTY };
        let placement = Placement {
            token: FencingToken::default(),
            region: name("r"),
            cluster: name("c"),
            placed_at: LogTime(0),
            slots: vec![slot; workers],
            ranks: vec![RankState::Running; workers],
            live: 1,
            unstarted: 0,
            charge: muster_state::Charge::default(),
            ready: Default::default(),
        };
        let spec = crate::sample::job("large", 1);
        let row = JobRow {
            phase: Phase::Running,
            attempt: 1,
            changed_at: LogIndex(1),
            placement: Some(Arc::new(placement)),
            ..JobRow::submitted(LogTime(0), muster_journal::Estimate::default(), &spec)
        };
        let (row, spec) = (Arc::new(row), Arc::new(spec));
        let fitting = EVENT_WEIGHT_MAX / workers;
        for index in 1..=fitting as u64 + 10 {
            let change = Change::Job {
                id: JobId(1),
                row: Arc::clone(&row),
                spec: Arc::clone(&spec),
                metadata: None,
                before: None,
            };
            let position = WatchPosition { log_index: LogIndex(index), ordinal: 1 };
            hub.append(
                LogIndex(index),
                vec![Event { position, change, occurrence: None, named: Arc::default() }],
            );
        }
        let inner = hub.inner.read();
        assert_eq!((inner.events.len(), inner.weight), (fitting, fitting * workers));
        assert_eq!(inner.floor, LogIndex(10));
    }
}
