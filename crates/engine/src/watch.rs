//! The watch hub: recent changes by log index, for any number of followers of the log.

use muster_planted::{Rule, breaks};
use muster_state::{JobRow, NodeRow, QueueRow, RestrictionRow};
use muster_types::{JobId, JobMetadata, JobSpec, LogIndex, Name, NodeId, NodeSpec, Refusal, RefusalCode};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

use crate::past_changes::PastChanges;

/// Changes kept in memory. Older ones are answered with `RESUME_TOKEN_COMPACTED`.
const EVENTS_MAX: usize = 65_536;
/// Sum of [`Event::weight`] of the changes kept: every change of a gang of thousands carries a placement
/// of its own, some 50 bytes a worker, and every registration a description, so that counting changes
/// alone would not bound memory.
const EVENT_WEIGHT_MAX: usize = 4 << 20;
/// Weight of a node's description without its labels and taints.
const NODE_WEIGHT: usize = 16;
/// Weight of a queue without its quotas, and of a quota.
const QUEUE_WEIGHT: usize = 8;
const QUOTA_WEIGHT: usize = 2;
/// Weight of one thing that is wrong with a node.
const CONDITION_WEIGHT: usize = 6;
/// Weight of one label or taint: a key and a value of at most 63 bytes each.
const LABEL_WEIGHT: usize = 4;
/// Changes handed out at once.
const BATCH_MAX: usize = 256;

/// A place between two changes: behind the `ordinal`-th change of the record at `log_index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchPosition {
    /// The record.
    pub log_index: LogIndex,
    /// Changes of that record already seen; `u32::MAX` for all.
    pub ordinal: u32,
}

impl WatchPosition {
    /// Behind everything of the record.
    #[must_use]
    pub fn after(log_index: LogIndex) -> WatchPosition {
        WatchPosition { log_index, ordinal: u32::MAX }
    }
}

/// What changed.
#[derive(Clone, Debug)]
pub enum Change {
    /// A job, as it was after the record.
    Job {
        /// Which.
        id: JobId,
        /// Its row then.
        row: Arc<JobRow>,
        /// What was submitted.
        spec: Arc<JobSpec>,
        /// Its labels, annotations and creator.
        metadata: Option<Arc<JobMetadata>>,
    },
    /// A finished job was dropped.
    JobForgotten(JobId),
    /// A node, as it was after the record.
    Node {
        /// Which.
        id: NodeId,
        /// Its row then.
        row: Arc<NodeRow>,
        /// What restricted it then.
        restriction: Option<Arc<RestrictionRow>>,
        /// The gangs with workers on it then, by id.
        gangs: Arc<[JobId]>,
        /// What it said of itself before, where the record is its registration anew.
        before: Option<Arc<NodeSpec>>,
    },
    /// A lost node was dropped.
    NodeForgotten {
        /// Which.
        id: NodeId,
        /// What it had said of itself.
        spec: Arc<NodeSpec>,
    },
    /// What a round did to queues, by name: as they were after it, none for those that were dropped.
    Queues(Arc<[(Name, Option<Arc<QueueRow>>)]>),
}

/// One change and its place.
#[derive(Clone, Debug)]
pub struct Event {
    /// Behind this change.
    pub position: WatchPosition,
    /// What changed.
    pub change: Change,
}

impl Event {
    /// What it may keep in memory that nothing else does, in workers' states of some 50 bytes.
    fn weight(&self) -> usize {
        match &self.change {
            Change::Job { row, .. } => row.placement.as_ref().map_or(0, |placement| placement.slots.len()),
            Change::Node { row, restriction, gangs, before, .. } => {
                let restriction = restriction.as_ref().map_or(0, |row| restriction_weight(row));
                restriction
                    + description_weight(&row.spec)
                    + before.as_ref().map_or(0, |spec| description_weight(spec))
                    + gangs.len()
            }
            Change::NodeForgotten { spec, .. } => description_weight(spec),
            Change::JobForgotten(_) => 0,
            Change::Queues(queues) => {
                let quotas = |row: &Option<Arc<QueueRow>>| row.as_ref().map_or(0, |row| row.quotas.len());
                queues.iter().map(|(_, row)| QUEUE_WEIGHT + QUOTA_WEIGHT * quotas(row)).sum()
            }
        }
    }
}

fn restriction_weight(row: &RestrictionRow) -> usize {
    CONDITION_WEIGHT * (row.health.conditions.len() + row.health.recent.len())
}

fn description_weight(spec: &NodeSpec) -> usize {
    NODE_WEIGHT + LABEL_WEIGHT * (spec.labels.len() + spec.taints.len())
}

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
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
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
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        *inner = Inner::new(at);
        drop(inner);
        self.end.send_replace(at);
    }

    /// Follows the changes behind `from`.
    pub(crate) fn subscribe(self: &Arc<Self>, from: WatchPosition) -> Result<Subscription, Refusal> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        check_position(&inner, from)?;
        let from = match inner.events.iter().find(|event| event.position > from) {
            Some(skipped) if breaks(Rule::WatchSkips) => skipped.position,
            _ => from,
        };
        drop(inner);
        Ok(Subscription { hub: Arc::clone(self), at: from, end: self.end.subscribe(), past: None })
    }

    /// Whether everything behind a place is here.
    fn keeps(&self, from: WatchPosition) -> bool {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        check_position(&inner, from).is_ok()
    }

    fn batch(&self, from: WatchPosition) -> Result<(Vec<Event>, WatchPosition), Refusal> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
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

/// One follower's place in the changes.
pub struct Subscription {
    hub: Arc<WatchHub>,
    at: WatchPosition,
    end: watch::Receiver<LogIndex>,
    /// Until it has come to what the hub has.
    past: Option<PastChanges>,
}

impl Subscription {
    /// Begins with what is no longer in the hub.
    pub(crate) fn from_past(hub: &Arc<WatchHub>, past: PastChanges) -> Subscription {
        Subscription { hub: Arc::clone(hub), at: past.from(), end: hub.end.subscribe(), past: Some(past) }
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
            if self.end.changed().await.is_err() {
                let text = "the replica stops; watch again through another";
                return Err(Refusal::new(RefusalCode::NotLeader, text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_state::{Phase, Placement, RankState};
    use muster_types::{DeviceSet, FencingToken, LogTime, Name};

    fn forgotten(log_index: u64, ordinal: u32) -> Event {
        let position = WatchPosition { log_index: LogIndex(log_index), ordinal };
        Event { position, change: Change::JobForgotten(JobId(ordinal.into())) }
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
        let mut follower = hub.subscribe(from).expect("the place is kept");
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
        let mut follower = hub.subscribe(WatchPosition::after(LogIndex(1))).expect("it is kept");
        let (events, reached) = follower.next().await.expect("it is kept");
        assert_eq!((events.len(), reached), (0, WatchPosition::after(LogIndex(9))));
    }

    #[test]
    fn a_record_is_kept_whole_or_not_at_all() {
        let hub = hub(&[(1, 1_000), (2, 1_000)]);
        hub.append(LogIndex(3), record(3, (EVENTS_MAX - 1_500) as u32));
        let code = |from| hub.subscribe(from).err().map(|refusal| refusal.code);
        // Half of the first record had to go, so all of it has.
        let inside = WatchPosition { log_index: LogIndex(1), ordinal: 999 };
        assert_eq!(code(inside), Some(RefusalCode::ResumeTokenCompacted));
        assert_eq!(code(WatchPosition::after(LogIndex::ZERO)), Some(RefusalCode::ResumeTokenCompacted));
        assert_eq!(code(WatchPosition::after(LogIndex(1))), None);
        assert_eq!(code(WatchPosition { log_index: LogIndex(2), ordinal: 0 }), None);
    }

    #[test]
    fn large_gangs_are_bounded_by_their_workers() {
        let hub = hub(&[]);
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
            let change =
                Change::Job { id: JobId(1), row: Arc::clone(&row), spec: Arc::clone(&spec), metadata: None };
            let position = WatchPosition { log_index: LogIndex(index), ordinal: 1 };
            hub.append(LogIndex(index), vec![Event { position, change }]);
        }
        let inner = hub.inner.read().expect("nobody panicked");
        assert_eq!((inner.events.len(), inner.weight), (fitting, fitting * workers));
        assert_eq!(inner.floor, LogIndex(10));
    }

    #[tokio::test]
    async fn a_snapshot_sends_followers_back_to_the_list() {
        let hub = hub(&[(1, 1), (2, 1)]);
        let mut follower = hub.subscribe(WatchPosition::after(LogIndex(2))).expect("it is kept");
        let mut level = hub.subscribe(WatchPosition::after(LogIndex(2))).expect("it is kept");
        hub.reset(LogIndex(2));
        hub.append(LogIndex(3), record(3, 1));
        let (events, _) = level.next().await.expect("nothing was skipped for it");
        assert_eq!(events.len(), 1);
        hub.reset(LogIndex(50));
        let refusal = follower.next().await.expect_err("what came between is not known here");
        assert_eq!(refusal.code, RefusalCode::ResumeTokenCompacted);
    }
}
