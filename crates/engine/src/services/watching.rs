//! Followers of the changes: from the hub, and before that from the archive.

use muster_types::{LogIndex, Refusal, RefusalCode};
use std::sync::Arc;
use tokio::sync::watch;

use crate::apply::replicated::View;
use crate::engine::Engine;
use crate::services::historical_changes::HistoricalChanges;
use crate::watch::changes::{Change, Event, WatchPosition};
use crate::watch::hub::WatchHub;

/// One follower's place in the changes.
pub struct Subscription {
    hub: Arc<WatchHub>,
    at: WatchPosition,
    end: watch::Receiver<LogIndex>,
    /// Until it has come to what the hub has.
    past: Option<HistoricalChanges>,
}

impl Subscription {
    /// Begins with what is no longer in the hub.
    fn from_past(hub: &Arc<WatchHub>, past: HistoricalChanges) -> Subscription {
        Subscription { hub: Arc::clone(hub), at: past.from(), end: hub.end(), past: Some(past) }
    }

    /// Whether its next changes are no longer in memory: until it has come to those that are it takes a whole state.
    #[must_use]
    pub fn is_past(&self) -> bool {
        self.past.is_some() && !self.hub.keeps(self.at)
    }

    /// The next changes, in order; waits until there are some or the log has moved on. Returns them
    /// with the place reached, which may be further than the last of them.
    ///
    /// # Errors
    /// When the follower was so slow that its place has been dropped, or the past cannot be read.
    pub async fn next(&mut self) -> Result<(Vec<Event>, WatchPosition), Refusal> {
        loop {
            self.end.mark_unchanged();
            let (events, reached) = match &mut self.past {
                Some(past) if !self.hub.keeps(self.at) => past.next(self.at).await?,
                _ => {
                    // A whole state, which is of no use any more.
                    self.past = None;
                    self.hub.batch(self.at)?
                }
            };
            if !events.is_empty() || reached > self.at {
                self.at = reached;
                return Ok((events, reached));
            }
            self.changed().await?;
        }
    }
}

impl Subscription {
    /// The last changes since then that are wanted, at most `count` and in order, and the number of those that were left out;
    /// waits until the log has moved on. Only for one whose next changes are in memory.
    ///
    /// # Errors
    /// As [`Subscription::next`].
    pub async fn last(
        &mut self,
        count: usize,
        wanted: impl Fn(&Change) -> bool,
    ) -> Result<(Vec<Event>, usize), Refusal> {
        loop {
            self.end.mark_unchanged();
            let (events, skipped, reached) = self.hub.last(self.at, count, &wanted)?;
            if reached > self.at {
                self.at = reached;
                return Ok((events, skipped));
            }
            self.changed().await?;
        }
    }

    async fn changed(&mut self) -> Result<(), Refusal> {
        self.end.changed().await.map_err(|_| {
            let text = "the replica stops; watch again through another";
            Refusal::new(RefusalCode::ReplicaStopping, text)
        })
    }
}

/// Follows the changes behind a place that the hub still has.
pub(crate) fn follow(hub: &Arc<WatchHub>, from: WatchPosition) -> Result<Subscription, Refusal> {
    let at = hub.enter(from)?;
    Ok(Subscription { hub: Arc::clone(hub), at, end: hub.end(), past: None })
}

impl View {
    /// Follows the changes behind a position.
    ///
    /// # Errors
    /// `RESUME_TOKEN_COMPACTED` when what follows it is not kept any more.
    pub fn subscribe(&self, from: WatchPosition) -> Result<Subscription, Refusal> {
        follow(&self.shared.hub, from)
    }
}

impl Engine {
    /// The newest changes in memory of records up to `at` that are wanted, newest first, at most `count`.
    #[must_use]
    pub fn newest_changes(&self, count: usize, at: LogIndex, wanted: impl Fn(&Change) -> bool) -> Vec<Event> {
        self.inner.shared.hub.newest(count, at, wanted)
    }

    /// Follows the changes behind a position of the log; what is not in memory any more comes from the
    /// archive.
    ///
    /// # Errors
    /// When that position is not kept any more, or not yet reached.
    pub fn watch(&self, from: WatchPosition) -> Result<Subscription, Refusal> {
        let at = self.view().log_index();
        if from.log_index > at {
            let text = format!("the token is from log index {}, this replica is at {at}", from.log_index);
            return Err(Refusal::new(RefusalCode::LogIndexNotReached, text));
        }
        let hub = &self.inner.shared.hub;
        follow(hub, from).or_else(|compacted| match self.historical_changes(from) {
            Some(past) => Ok(Subscription::from_past(hub, past)),
            None => Err(compacted),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::hub::EVENTS_MAX;
    use muster_types::{JobId, LogIndex, RefusalCode};

    fn forgotten(log_index: u64, ordinal: u32) -> Event {
        let position = WatchPosition { log_index: LogIndex(log_index), ordinal };
        let change = Change::JobForgotten(JobId(ordinal.into()));
        Event { position, change, occurrence: None, named: Arc::default() }
    }

    fn record(log_index: u64, changes: u32) -> Vec<Event> {
        (1..=changes).map(|ordinal| forgotten(log_index, ordinal)).collect()
    }

    fn hub(records: &[(u64, u32)]) -> Arc<WatchHub> {
        let hub = Arc::new(WatchHub::new(LogIndex::ZERO));
        for (index, changes) in records {
            hub.append(LogIndex(*index), record(*index, *changes));
        }
        hub
    }

    async fn read(hub: &Arc<WatchHub>, from: WatchPosition, count: usize) -> Vec<WatchPosition> {
        let mut follower = follow(hub, from).expect("the place is kept");
        let mut seen = Vec::new();
        while seen.len() < count {
            let (events, reached) = follower.next().await.expect("it is kept");
            seen.extend(events.iter().map(|e| e.position));
            assert!(events.last().is_none_or(|last| reached >= last.position));
        }
        seen
    }

    #[tokio::test]
    async fn a_follower_goes_on_exactly_behind_any_change_of_a_large_record() {
        let hub = hub(&[(1, 3), (2, 1_000), (4, 2)]);
        let all: Vec<WatchPosition> = record(1, 3)
            .into_iter()
            .chain(record(2, 1_000))
            .chain(record(4, 2))
            .map(|e| e.position)
            .collect();
        assert_eq!(read(&hub, WatchPosition::after(LogIndex::ZERO), all.len()).await, all);
        for seen in [1, 2, 3, 4, 258, 259, 260, 700, 1_003, 1_004] {
            assert_eq!(read(&hub, all[seen - 1], all.len() - seen).await, all[seen..], "behind {seen}");
        }
        assert_eq!(read(&hub, WatchPosition::after(LogIndex(2)), 2).await, all[1_003..]);
    }

    #[tokio::test]
    async fn the_place_moves_on_where_nothing_changed() {
        let hub = hub(&[(1, 1)]);
        hub.append(LogIndex(9), Vec::new());
        let mut follower = follow(&hub, WatchPosition::after(LogIndex(1))).expect("it is kept");
        let (events, reached) = follower.next().await.expect("it is kept");
        assert_eq!((events.len(), reached), (0, WatchPosition::after(LogIndex(9))));
    }

    #[test]
    fn a_record_is_kept_whole_or_not_at_all() {
        let hub = hub(&[(1, 1_000), (2, 1_000)]);
        hub.append(LogIndex(3), record(3, (EVENTS_MAX - 1_500) as u32));
        let code = |from| follow(&hub, from).err().map(|refusal| refusal.code);
        // Half of the first record had to go, so all of it has.
        let inside = WatchPosition { log_index: LogIndex(1), ordinal: 999 };
        assert_eq!(code(inside), Some(RefusalCode::ResumeTokenCompacted));
        assert_eq!(code(WatchPosition::after(LogIndex::ZERO)), Some(RefusalCode::ResumeTokenCompacted));
        assert_eq!(code(WatchPosition::after(LogIndex(1))), None);
        assert_eq!(code(WatchPosition { log_index: LogIndex(2), ordinal: 0 }), None);
    }

    #[tokio::test]
    async fn a_snapshot_sends_followers_back_to_the_list() {
        let hub = hub(&[(1, 1), (2, 1)]);
        let mut follower = follow(&hub, WatchPosition::after(LogIndex(2))).expect("it is kept");
        let mut level = follow(&hub, WatchPosition::after(LogIndex(2))).expect("it is kept");
        hub.reset(LogIndex(2));
        hub.append(LogIndex(3), record(3, 1));
        let (events, _) = level.next().await.expect("nothing was skipped for it");
        assert_eq!(events.len(), 1);
        hub.reset(LogIndex(50));
        let refusal = follower.next().await.expect_err("what came between is not known here");
        assert_eq!(refusal.code, RefusalCode::ResumeTokenCompacted);
    }
}
