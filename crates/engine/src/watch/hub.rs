//! The watch hub: recent changes by log index, for any number of followers of the log.

use muster_planted::{Rule, breaks};
use muster_types::{LogIndex, Refusal, RefusalCode};
use parking_lot::RwLock;
use std::collections::VecDeque;
use tokio::sync::watch;

use crate::watch::changes::{Event, WatchPosition};

/// Changes kept in memory. Older ones are answered with `RESUME_TOKEN_COMPACTED`.
pub(crate) const EVENTS_MAX: usize = 65_536;
/// Sum of [`Event::weight`] of the changes kept: every change of a gang of thousands carries a placement
/// of its own, some 50 bytes a worker, and every registration a description, so that counting changes
/// alone would not bound memory.
const EVENT_WEIGHT_MAX: usize = 4 << 20;
/// Changes handed out at once.
const BATCH_MAX: usize = 256;

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
    use crate::watch::changes::Change;
    use muster_state::{JobRow, Phase, Placement, RankState};
    use muster_types::{DeviceSet, FencingToken, JobId, LogTime, Name, NodeId};
    use std::sync::Arc;

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
            hub.append(LogIndex(index), vec![Event { position, change }]);
        }
        let inner = hub.inner.read();
        assert_eq!((inner.events.len(), inner.weight), (fitting, fitting * workers));
        assert_eq!(inner.floor, LogIndex(10));
    }
}
