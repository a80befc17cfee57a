//! Changes that are no longer in memory: records of the archive, and of the log behind it, replayed from the
//! state at the place where a follower goes on.
//!
//! **Invariant:** the events are those that followers were told when the records were applied, at the same
//! places.
//! **Invariant:** a few followers at a time, apart from the threads that serve: each costs a whole state.

use muster_archive::{ArchivedRound, RaftPosition, Replay};
use muster_types::{LogIndex, PastPoint, Refusal, RefusalCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

use crate::background::in_background;
use crate::engine::Engine;
use crate::history::records::{History, generation_of};
use crate::refusals::stopping_reads;
use crate::watch::changes::{Event, WatchPosition};
use crate::watch::events::EventMaker;

/// Events made at once, about: a round is replayed whole.
const EVENTS_AT_ONCE: usize = 1_024;

/// How long a follower waits for one of the places.
const PLACE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Where one follower is in the past.
pub(super) struct HistoricalChanges {
    engine: Engine,
    history: Arc<History>,
    from: WatchPosition,
    /// None before the first changes are asked for.
    run: Option<Run>,
}

/// A replay that is going on.
struct Run {
    replay: Replay,
    maker: EventMaker,
    rounds: std::vec::IntoIter<ArchivedRound>,
    /// The entry to go on with once these are replayed.
    behind: u64,
    /// The last record of them that counts, where a later generation of the cluster goes on from there.
    cut: Option<PastPoint>,
    place: OwnedSemaphorePermit,
}

impl Engine {
    /// Changes behind a place of the past; none where nothing is known of it here.
    pub(super) fn historical_changes(&self, from: WatchPosition) -> Option<HistoricalChanges> {
        let history = self.history().ok()?;
        let (first, _) = history.range();
        let kept = history.archive().is_some() && state_before(from).next() >= first;
        kept.then(|| HistoricalChanges {
            engine: self.clone(),
            history: Arc::clone(history),
            from,
            run: None,
        })
    }
}

/// The last record that is in the state from which a place is reached.
fn state_before(from: WatchPosition) -> LogIndex {
    let whole = from == WatchPosition::after(from.log_index);
    if whole { from.log_index } else { LogIndex(from.log_index.0.saturating_sub(1)) }
}

impl HistoricalChanges {
    /// Where it begins.
    pub(super) fn from(&self) -> WatchPosition {
        self.from
    }

    /// The next changes behind `at` and the place reached; the same place at the end of the log.
    pub(super) async fn next(&mut self, at: WatchPosition) -> Result<(Vec<Event>, WatchPosition), Refusal> {
        self.try_next(at).await.map_err(|refusal| match refusal.code {
            RefusalCode::ArchiveUnavailable => {
                let text = format!("changes that old cannot be had here: {}", refusal.message);
                Refusal::new(RefusalCode::ResumeTokenCompacted, text)
            }
            _ => refusal,
        })
    }

    async fn try_next(&mut self, at: WatchPosition) -> Result<(Vec<Event>, WatchPosition), Refusal> {
        let mut run = match self.run.take() {
            Some(run) => run,
            None => self.begin().await?,
        };
        loop {
            if run.rounds.as_slice().is_empty() {
                run.replay.pass(run.behind);
                if !self.read(&mut run).await? {
                    self.run = Some(run);
                    return Ok((Vec::new(), at));
                }
            }
            let stepped = in_background(move || {
                let result = run.step();
                (run, result)
            });
            let result;
            (run, result) = stepped.await.map_err(|_| stopping_reads())?;
            result.map_err(|error| self.history.refusal(&error))?;
            // The first round may begin before the place.
            let events: Vec<Event> =
                run.maker.take().into_iter().filter(|event| event.position > at).collect();
            let reached = WatchPosition::after(run.replay.state().log_index());
            if !events.is_empty() || reached > at {
                self.run = Some(run);
                return Ok((events, reached.max(at)));
            }
        }
    }

    /// Makes the state that it begins with: that before the round which the place is in, for what a round does to queues
    /// is told behind all of its records.
    async fn begin(&self) -> Result<Run, Refusal> {
        let past = &self.engine.inner.historical_states;
        let place = Arc::clone(&past.followed).acquire_owned();
        let place = tokio::time::timeout(PLACE_WAIT_MAX, place).await.map_err(|_| {
            let text = "as many watches go on from the archive as may at a time; try again";
            Refusal::new(RefusalCode::Overloaded, text)
        })?;
        let place = place.map_err(|_| stopping_reads())?;
        let mut run = self.run_from(state_before(self.from), place).await?;
        if let Some(round) = run.replay.open_round()
            && self.read(&mut run).await?
            && let Some(round) = run.rounds.as_slice().iter().find(|archived| archived.raft_index == round)
        {
            let first = round.decode().map_err(|error| self.history.refusal(&error))?.first_index;
            return self.run_from(LogIndex(first.0.saturating_sub(1)), run.place).await;
        }
        Ok(run)
    }

    async fn run_from(&self, start: LogIndex, place: OwnedSemaphorePermit) -> Result<Run, Refusal> {
        let replay = match start {
            LogIndex::ZERO => Replay::founding(),
            start => {
                let making = Arc::clone(&self.engine.inner.historical_states.making).acquire_owned().await;
                self.engine.make(PastPoint::Index(start), making.map_err(|_| stopping_reads())?).await?
            }
        };
        let maker = EventMaker::behind(replay.state());
        let behind = replay.next_raft();
        let rounds = Vec::new().into_iter();
        Ok(Run { replay, maker, rounds, behind, cut: None, place })
    }

    /// Reads rounds behind what is replayed; whether there are any.
    async fn read(&self, run: &mut Run) -> Result<bool, Refusal> {
        let state = run.replay.state();
        let place = RaftPosition {
            next_raft: run.replay.next_raft(),
            sequence: state.sequence(),
            generation: generation_of(state),
        };
        let Some(slice) = self.history.read(place).await? else { return Ok(false) };
        run.cut = (slice.to < slice.end.sequence.log_index).then_some(PastPoint::Index(slice.to));
        (run.rounds, run.behind) = (slice.rounds.clone().into_iter(), slice.end.next_raft);
        Ok(true)
    }
}

impl Run {
    /// Replays some of the rounds that were read.
    fn step(&mut self) -> Result<(), muster_archive::ArchiveError> {
        while self.maker.waiting() < EVENTS_AT_ONCE {
            let Some(round) = self.rounds.next() else { break };
            if self.replay.apply_observed(&round, self.cut, &mut self.maker)? {
                // A later generation of the cluster goes on from here: the rest of these never was.
                self.rounds = Vec::new().into_iter();
                break;
            }
        }
        Ok(())
    }
}
