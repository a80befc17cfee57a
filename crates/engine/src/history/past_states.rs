//! States of the past that are kept for a while, and the places in which they are made.

use muster_archive::Replay;
use muster_state::State;
use muster_types::{At, LogIndex};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Past states that are kept. Each can be as large as the present one, so few: they serve whoever turns
/// the pages of one list, or looks around a moment.
const KEPT_MAX: usize = 2;

/// Past states made at a time: each takes a processor, and the memory of a whole state.
const MADE_AT_A_TIME: usize = 1;

/// A past state that nobody asks for is kept for so long.
const KEPT_FOR: Duration = Duration::from_secs(120);

/// Followers of changes of the past at a time: each has the memory of a whole state.
const FOLLOWED_AT_A_TIME: usize = 2;

/// States of the past that were asked for lately.
pub(crate) struct PastStates {
    pub(crate) making: Arc<Semaphore>,
    pub(crate) followed: Arc<Semaphore>,
    /// The last one used is the last.
    kept: Arc<Mutex<VecDeque<Kept>>>,
}

struct Kept {
    used: Instant,
    index: LogIndex,
    replay: Replay,
    state: Arc<State>,
}

impl Default for PastStates {
    fn default() -> PastStates {
        PastStates {
            making: Arc::new(Semaphore::new(MADE_AT_A_TIME)),
            followed: Arc::new(Semaphore::new(FOLLOWED_AT_A_TIME)),
            kept: Arc::default(),
        }
    }
}

impl PastStates {
    /// The state at a record, if it is kept.
    pub(crate) fn find(&self, index: LogIndex) -> Option<Arc<State>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|kept| kept.index == index)?;
        let found = Kept { used: Instant::now(), ..kept.remove(at)? };
        let state = Arc::clone(&found.state);
        kept.push_back(found);
        Some(state)
    }

    /// The nearest one before: going on from it is often shorter than from a base.
    pub(crate) fn before(&self, at: At) -> Option<Replay> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |kept: &&Kept| match at {
            At::Index(index) => kept.index <= index,
            At::Time(time) => kept.state.log_time() <= time,
        };
        kept.iter().filter(fits).max_by_key(|kept| kept.index).map(|kept| kept.replay.clone())
    }

    /// Keeps a state for the next who asks.
    pub(crate) fn keep(&self, replay: Replay, state: Arc<State>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let index = state.log_index();
        kept.retain(|kept| kept.index != index);
        while kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(Kept { used: Instant::now(), index, replay, state });
        drop(kept);
        // Each is as large as the present state: none outlives its use for long.
        let kept = Arc::downgrade(&self.kept);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(KEPT_FOR / 2).await;
                let Some(kept) = kept.upgrade() else { return };
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.retain(|kept| kept.used.elapsed() < KEPT_FOR);
                if kept.iter().all(|kept| kept.index != index) {
                    return;
                }
            }
        });
    }
}
