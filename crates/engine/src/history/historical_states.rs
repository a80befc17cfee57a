//! States of the past that are kept for a while, and the places in which they are made.

use muster_archive::Replay;
use muster_state::State;
use muster_types::PastPoint;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Past states that are kept. Each can be as large as the present one, so few: they serve a caller that turns
/// the pages of one list, or looks around a moment.
const KEPT_MAX: usize = 2;

/// Past states made at a time: each takes a processor, and the memory of a whole state.
const MADE_AT_A_TIME: usize = 1;

/// A past state that nobody asks for is kept for so long.
const KEPT_FOR: Duration = Duration::from_secs(120);

/// Followers of changes of the past at a time: each has the memory of a whole state.
const FOLLOWED_AT_A_TIME: usize = 2;

/// States of the past that were asked for lately.
pub(crate) struct HistoricalStates {
    pub(crate) making: Arc<Semaphore>,
    pub(crate) followed: Arc<Semaphore>,
    /// The last one used is the last.
    kept: Arc<Mutex<VecDeque<CachedState>>>,
}

struct CachedState {
    used: Instant,
    /// What was asked for.
    at: PastPoint,
    replay: Replay,
    state: Arc<State>,
}

impl Default for HistoricalStates {
    fn default() -> HistoricalStates {
        HistoricalStates {
            making: Arc::new(Semaphore::new(MADE_AT_A_TIME)),
            followed: Arc::new(Semaphore::new(FOLLOWED_AT_A_TIME)),
            kept: Arc::default(),
        }
    }
}

impl HistoricalStates {
    /// The state at a record or time, if it is kept.
    pub(crate) fn find(&self, at: PastPoint) -> Option<Arc<State>> {
        let mut kept = self.kept.lock();
        let place = kept.iter().position(|kept| kept.at == at)?;
        let found = CachedState { used: Instant::now(), ..kept.remove(place)? };
        let state = Arc::clone(&found.state);
        kept.push_back(found);
        Some(state)
    }

    /// The nearest one before: going on from it is often shorter than from a base. One of a time may have passed rounds
    /// without a record behind its last one, so nothing goes on from it.
    pub(crate) fn before(&self, at: PastPoint) -> Option<Replay> {
        let kept = self.kept.lock();
        let fits = |kept: &&CachedState| match (kept.at, at) {
            (PastPoint::Index(kept), PastPoint::Index(index)) => kept <= index,
            (PastPoint::Index(_), PastPoint::Time(time)) => kept.state.log_time() <= time,
            (PastPoint::Time(_), _) => false,
        };
        let nearest = kept.iter().filter(fits).max_by_key(|kept| kept.state.log_index());
        nearest.map(|kept| kept.replay.clone())
    }

    /// Keeps the state that was asked for, for the next who asks.
    pub(crate) fn keep(&self, at: PastPoint, replay: Replay, state: Arc<State>) {
        let mut kept = self.kept.lock();
        kept.retain(|kept| kept.at != at);
        while kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(CachedState { used: Instant::now(), at, replay, state });
        drop(kept);
        // Each is as large as the present state: none outlives its use for long.
        let kept = Arc::downgrade(&self.kept);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(KEPT_FOR / 2).await;
                let Some(kept) = kept.upgrade() else { return };
                let mut kept = kept.lock();
                kept.retain(|kept| kept.used.elapsed() < KEPT_FOR);
                if kept.iter().all(|kept| kept.at != at) {
                    return;
                }
            }
        });
    }
}
