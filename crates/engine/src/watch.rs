//! The watch hub: recent changes by log index, for any number of followers of the log.

use muster_state::JobRow;
use muster_types::{JobId, JobSpec, LogIndex, NodeId, Refusal, RefusalCode};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Changes kept in memory. Older ones are answered with `RESUME_TOKEN_COMPACTED`.
const EVENTS_MAX: usize = 65_536;
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
    },
    /// A finished job was dropped.
    Forgotten(JobId),
    /// A node.
    Node(NodeId),
}

/// One change and its place.
#[derive(Clone, Debug)]
pub struct Event {
    /// Behind this change.
    pub position: WatchPosition,
    /// What changed.
    pub change: Change,
}

struct Inner {
    /// Everything up to here has been dropped.
    floor: LogIndex,
    /// Everything up to here is in.
    end: LogIndex,
    events: VecDeque<Event>,
}

/// Recent changes.
pub(crate) struct WatchHub {
    inner: RwLock<Inner>,
    end: watch::Sender<LogIndex>,
}

impl WatchHub {
    pub(crate) fn new(at: LogIndex) -> WatchHub {
        let inner = Inner { floor: at, end: at, events: VecDeque::new() };
        WatchHub { inner: RwLock::new(inner), end: watch::Sender::new(at) }
    }

    /// Adds the changes of records up to `end`; waking the followers is the caller's next step.
    pub(crate) fn append(&self, end: LogIndex, events: Vec<Event>) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.end = inner.end.max(end);
        inner.events.extend(events);
        while inner.events.len() > EVENTS_MAX {
            if let Some(dropped) = inner.events.pop_front() {
                inner.floor = dropped.position.log_index;
            }
        }
        // A record is kept whole or not at all.
        while inner.events.front().is_some_and(|e| e.position.log_index == inner.floor) {
            inner.events.pop_front();
        }
        drop(inner);
        self.end.send_replace(end);
    }

    /// A snapshot replaced the state: what led to it is not known here.
    pub(crate) fn reset(&self, at: LogIndex) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        *inner = Inner { floor: at, end: at, events: VecDeque::new() };
        drop(inner);
        self.end.send_replace(at);
    }

    /// Follows the changes behind `from`.
    pub(crate) fn subscribe(self: &Arc<Self>, from: WatchPosition) -> Result<Subscription, Refusal> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        check_position(&inner, from)?;
        drop(inner);
        Ok(Subscription { hub: Arc::clone(self), at: from, end: self.end.subscribe() })
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
}

impl Subscription {
    /// The next changes, in order; waits until there are some or the log has moved on. Returns them
    /// with the place reached, which may be further than the last of them.
    ///
    /// # Errors
    /// When the follower was so slow that its place has been dropped.
    pub async fn next(&mut self) -> Result<(Vec<Event>, WatchPosition), Refusal> {
        loop {
            self.end.mark_unchanged();
            let (events, reached) = self.hub.batch(self.at)?;
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
