//! The state as it was: made from the archive of the decision log, and from the log behind it.
//!
//! **Invariant:** a past state is made apart from the threads that serve, one at a time: the place is given back when the
//! work is over, however long its caller waits.

use muster_archive::{ArchiveError, ArchivedRound, Replay};
use muster_consensus::{LogSlice, TokioEnv};
use muster_state::State;
use muster_types::{LogIndex, PastPoint, Refusal, RefusalCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::background::in_background;
use crate::clock;
use crate::engine::Engine;
use crate::history::records::{History, round};
use crate::refusals::stopping_reads;

/// A past state that is being made goes on for so long behind the last caller who waits for it: callers ask again.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(60);

impl Engine {
    /// The state as it was at a moment of the past.
    ///
    /// # Errors
    /// `LOG_INDEX_NOT_REACHED` for the future, `RESUME_TOKEN_COMPACTED` for what is not kept here,
    /// `ARCHIVE_UNAVAILABLE` on a replica that keeps no archive of its log or cannot read it.
    pub async fn view_at(&self, at: PastPoint) -> Result<Arc<State>, Refusal> {
        let view = self.view();
        match at {
            PastPoint::Index(index) if index == view.log_index() => return Ok(view),
            PastPoint::Index(index) if index > view.log_index() => return Err(future(at, &view)),
            PastPoint::Time(time) if time > clock::now::<TokioEnv>().max(view.log_time()) => {
                return Err(future(at, &view));
            }
            PastPoint::Time(time) if time >= view.log_time() => return Ok(view),
            _ => {}
        }
        // Not held while the past is made: it keeps alive what was replaced since.
        drop(view);
        if let Some(state) = self.inner.historical_states.find(at) {
            return Ok(state);
        }
        let making = Arc::clone(&self.inner.historical_states.making)
            .acquire_owned()
            .await
            .map_err(|_| stopping_reads())?;
        if let Some(state) = self.inner.historical_states.find(at) {
            return Ok(state);
        }
        let replay = self.make(at, making).await?;
        let state = Arc::new(replay.state().clone());
        if state.log_index() == LogIndex::ZERO {
            let text = "that is before the first record of the log";
            return Err(Refusal::new(RefusalCode::ResumeTokenCompacted, text).with("oldest_log_index", 1));
        }
        Ok(state)
    }

    /// Makes a past state in the one place for that, and keeps it for the next who asks. It goes on without its
    /// caller for a while.
    pub(super) async fn make(&self, at: PastPoint, making: OwnedSemaphorePermit) -> Result<Replay, Refusal> {
        let (made, mut waits) = oneshot::channel();
        let (engine, history) = (self.clone(), Arc::clone(self.history()?));
        let known = self.inner.historical_states.before(at);
        tokio::spawn(async move {
            let mut made = made;
            let goes_on = Arc::new(AtomicBool::new(true));
            let given_up = async {
                made.closed().await;
                tokio::time::sleep(GIVEN_UP_AFTER).await;
            };
            let stops = Arc::clone(&goes_on);
            let work = make(&history, at, known, goes_on);
            tokio::pin!(work);
            let replay = tokio::select! {
                replay = &mut work => replay,
                () = async { tokio::select! { () = given_up => {}, () = engine.stopping() => {} } } => {
                    stops.store(false, Ordering::Relaxed);
                    // The thread that replays ends with its segment; until then the place is taken.
                    work.await
                }
            };
            if let Ok(replay) = &replay {
                let state = Arc::new(replay.state().clone());
                if state.log_index() > LogIndex::ZERO {
                    engine.inner.historical_states.keep(at, replay.clone(), state);
                }
            }
            drop(making);
            // The caller that asked may have gone.
            let _ = made.send(replay);
        });
        (&mut waits).await.unwrap_or_else(|_| Err(stopping_reads()))
    }
}

fn future(at: PastPoint, view: &State) -> Refusal {
    let text = match at {
        PastPoint::Index(index) => {
            format!("log index {index} lies in the future; this replica is at {}", view.log_index())
        }
        PastPoint::Time(time) => format!("{} ms lies in the future", time.0),
    };
    Refusal::new(RefusalCode::LogIndexNotReached, text).with("newest_log_index", view.log_index())
}

/// Replays the archive, and behind it the log.
async fn make(
    history: &Arc<History>,
    at: PastPoint,
    known: Option<Replay>,
    goes_on: Arc<AtomicBool>,
) -> Result<Replay, Refusal> {
    let Some(archive) = history.archive().cloned() else {
        let text = match &history.status.borrow().failing {
            Some(reason) => format!("the archive of this replica cannot be opened: {reason}"),
            None => "this replica keeps no archive of its log, so it knows no state but the present one"
                .to_owned(),
        };
        return Err(Refusal::new(RefusalCode::ArchiveUnavailable, text));
    };
    let asked = Arc::clone(&goes_on);
    let replayed = in_background(move || archive.replay_while(at, known, || asked.load(Ordering::Relaxed)));
    let replayed = replayed.await.map_err(|_| stopping_reads())?;
    let (mut replay, mut reached) = replayed.map_err(|error| history.refusal(&error))?;
    while !reached {
        if !goes_on.load(Ordering::Relaxed) {
            return Err(history.refusal(&ArchiveError::GivenUp));
        }
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
                Err(_) => return Err(stopping_reads()),
            };
        let applied = in_background(move || {
            for round in &rounds {
                if replay.apply(round, Some(at))? {
                    return Ok((replay, true));
                }
            }
            replay.pass(next);
            Ok((replay, false))
        });
        let applied = applied.await.map_err(|_| stopping_reads())?;
        (replay, reached) = applied.map_err(|error| history.refusal(&error))?;
    }
    match at {
        PastPoint::Index(index) if replay.state().log_index() != index => Err(history.compacted(index)),
        _ => Ok(replay),
    }
}
