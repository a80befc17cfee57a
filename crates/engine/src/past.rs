//! The state as it was: made from the archive of the decision log, and from the log behind it.
//!
//! **Invariant:** a past state is made apart from the threads that serve, one at a time.

use muster_archive::{ArchivedRound, Replay};
use muster_consensus::{LogSlice, Process};
use muster_state::State;
use muster_types::{At, LogIndex, Refusal, RefusalCode};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

use crate::Engine;
use crate::clock;
use crate::engine::stopping;
use crate::history::{History, round};

/// Past states that are kept. Each can be as large as the present one, so few: they serve whoever turns
/// the pages of one list, or looks around a moment.
const KEPT_MAX: usize = 2;
/// Past states made at a time: each takes a processor, and the memory of a whole state.
const MADE_AT_A_TIME: usize = 1;
/// Followers of changes of the past at a time: each has the memory of a whole state.
const FOLLOWED_AT_A_TIME: usize = 2;

/// States of the past that were asked for lately.
pub(crate) struct PastStates {
    pub(crate) making: Semaphore,
    pub(crate) followed: Arc<Semaphore>,
    /// The last one used is the last.
    kept: Mutex<VecDeque<Kept>>,
}

struct Kept {
    index: LogIndex,
    replay: Replay,
    state: Arc<State>,
}

impl Default for PastStates {
    fn default() -> PastStates {
        PastStates {
            making: Semaphore::new(MADE_AT_A_TIME),
            followed: Arc::new(Semaphore::new(FOLLOWED_AT_A_TIME)),
            kept: Mutex::default(),
        }
    }
}

impl PastStates {
    fn find(&self, index: LogIndex) -> Option<Arc<State>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|kept| kept.index == index)?;
        let found = kept.remove(at)?;
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

    fn keep(&self, replay: Replay, state: Arc<State>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let index = state.log_index();
        kept.retain(|kept| kept.index != index);
        while kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(Kept { index, replay, state });
    }
}

impl Engine {
    /// The state as it was at a moment of the past.
    ///
    /// # Errors
    /// `RESUME_TOKEN_INVALID` for the future, `RESUME_TOKEN_COMPACTED` for what is not kept here,
    /// `ARCHIVE_UNAVAILABLE` on a replica that keeps no archive of its log or cannot read it.
    pub async fn view_at(&self, at: At) -> Result<Arc<State>, Refusal> {
        let view = self.view();
        match at {
            At::Index(index) if index == view.log_index() => return Ok(view),
            At::Index(index) if index > view.log_index() => return Err(future(at, &view)),
            At::Time(time) if time > clock::now::<Process>().max(view.log_time()) => {
                return Err(future(at, &view));
            }
            At::Time(time) if time >= view.log_time() => return Ok(view),
            _ => {}
        }
        // Not held while the past is made: it keeps alive what was replaced since.
        drop(view);
        if let At::Index(index) = at
            && let Some(state) = self.inner.past.find(index)
        {
            return Ok(state);
        }
        let _making = self.inner.past.making.acquire().await.map_err(|_| stopping())?;
        if let At::Index(index) = at
            && let Some(state) = self.inner.past.find(index)
        {
            return Ok(state);
        }
        let history = Arc::clone(self.history()?);
        let replay = make(&history, at, self.inner.past.before(at)).await?;
        let state = Arc::new(replay.state().clone());
        if state.log_index() == LogIndex::ZERO {
            let text = "that is before the first record of the log";
            return Err(Refusal::new(RefusalCode::ResumeTokenCompacted, text).with("oldest_log_index", 1));
        }
        if matches!(at, At::Index(_)) {
            // Behind a time may also lie rounds without a record; they would be in the state already.
            self.inner.past.keep(replay, Arc::clone(&state));
        }
        Ok(state)
    }
}

fn future(at: At, view: &State) -> Refusal {
    let text = match at {
        At::Index(index) => {
            format!("log index {index} lies in the future; this replica is at {}", view.log_index())
        }
        At::Time(time) => format!("{} ms lies in the future", time.0),
    };
    Refusal::new(RefusalCode::ResumeTokenInvalid, text).with("newest_log_index", view.log_index())
}

/// Replays the archive, and behind it the log.
pub(crate) async fn make(history: &Arc<History>, at: At, known: Option<Replay>) -> Result<Replay, Refusal> {
    let Some(archive) = history.archive.clone() else {
        let text = "this replica keeps no archive of its log, so it knows no state but the present one";
        return Err(Refusal::new(RefusalCode::ArchiveUnavailable, text));
    };
    let replayed = tokio::task::spawn_blocking(move || archive.replay(at, known)).await;
    let replayed = replayed.map_err(|_| stopping())?;
    let (mut replay, mut reached) = replayed.map_err(|error| history.refusal(&error))?;
    while !reached {
        let (rounds, next): (Vec<ArchivedRound>, u64) =
            match history.consensus.read_applied(replay.next_raft()).await {
                Ok(LogSlice::Entries(entries)) if !entries.is_empty() => {
                    let next = entries.last().map_or(0, |entry| entry.raft_index + 1);
                    (entries.into_iter().filter_map(round).collect(), next)
                }
                // The end of the log: no record is later than the time that was asked for.
                Ok(LogSlice::Entries(_)) => break,
                Ok(LogSlice::Purged { .. }) => {
                    return Err(history.compacted(replay.state().log_index().next()));
                }
                Err(_) => return Err(stopping()),
            };
        let applied = tokio::task::spawn_blocking(move || {
            for round in &rounds {
                if replay.apply(round, Some(at))? {
                    return Ok((replay, true));
                }
            }
            replay.pass(next);
            Ok((replay, false))
        });
        let applied = applied.await.map_err(|_| stopping())?;
        (replay, reached) = applied.map_err(|error| history.refusal(&error))?;
    }
    match at {
        At::Index(index) if replay.state().log_index() != index => Err(history.compacted(index)),
        _ => Ok(replay),
    }
}
