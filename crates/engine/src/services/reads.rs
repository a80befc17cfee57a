//! Which state a read is answered from, and how current it is.
//!
//! **Invariant:** a read takes a version of the state that was published; it never waits for apply to
//! pause, and apply never waits for it.
//! **Invariant:** the proof of freshness is read before the state it speaks of: the state may be newer
//! than the proof says, never older.

use muster_consensus::{Environment, TokioEnv};
use muster_state::State;
use muster_types::{Consistency, JobId, LogIndex, PastPoint, ReadFrom, Refusal, RefusalCode, Violation};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use crate::clock::{self, instant, until};
use crate::engine::Engine;
use crate::refusals::stopping_reads;

/// How long a read waits for this replica to reach what the caller has already seen.
const CATCH_UP_MAX: Duration = Duration::from_secs(5);
/// How long a bounded read that is not answered at once tries to hear of the leader.
const BOUNDED_TRY_MAX: Duration = Duration::from_secs(1);
/// A time further ahead than this is no difference between clocks.
const CLOCKS_APART_MS: u64 = 60_000;
/// Between two attempts at a leader: the first, and the longest it grows to. A change of leadership
/// cuts it short.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(200);

/// A state and what is known of its age.
#[derive(Clone)]
pub struct Reading {
    state: Arc<State>,
    as_of: Option<Instant>,
    is_past: bool,
}

impl Reading {
    /// The state; it never changes.
    #[must_use]
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Whether it is a state of the past, which was asked for: what holds now says nothing of it.
    #[must_use]
    pub fn is_past(&self) -> bool {
        self.is_past
    }

    /// It holds everything that was committed so long ago; none when nothing is proved, or of the past.
    /// Grows with time: ask when the answer is made.
    #[must_use]
    pub fn staleness(&self) -> Option<Duration> {
        self.as_of.map(|as_of| as_of.elapsed())
    }
}

impl Deref for Reading {
    type Target = Arc<State>;

    fn deref(&self) -> &Arc<State> {
        &self.state
    }
}

impl Engine {
    /// The state that a read asks for. Waits no longer than `deadline`, and less where waiting longer
    /// would not help.
    ///
    /// # Errors
    /// `LOG_INDEX_NOT_REACHED` when this replica does not reach the position asked for, `TOO_STALE` when
    /// a bounded read cannot be proved here, `READ_UNCONFIRMED` when no leader confirms a linearizable
    /// one, and the refusals of [`Engine::view_at`].
    pub async fn read_view(&self, from: ReadFrom, deadline: Instant) -> Result<Reading, Refusal> {
        match from {
            ReadFrom::Past(at) => {
                let made = tokio::time::timeout_at(deadline, self.view_at(at)).await;
                match made.map_err(|_| unmade())? {
                    Ok(state) => Ok(Reading { state, as_of: None, is_past: true }),
                    Err(refusal) => Err(self.unless_future("read.past", at, refusal, deadline).await),
                }
            }
            ReadFrom::Present { consistency, min_log_index } => {
                self.read_present(consistency, min_log_index, deadline).await
            }
        }
    }
}

impl Engine {
    /// The refusal of a position that this replica has not reached: where the whole cluster has not, no other replica is to
    /// be asked, and the field is wrong.
    pub async fn unless_future(
        &self,
        field: &str,
        at: PastPoint,
        refusal: Refusal,
        deadline: Instant,
    ) -> Refusal {
        if refusal.code != RefusalCode::LogIndexNotReached {
            return refusal;
        }
        let Ok(newest) = self.linearizable(deadline).await else { return refusal };
        let (is_future, named) = match at {
            PastPoint::Index(index) => (index > newest.log_index().next(), format!("record {index}")),
            PastPoint::Time(time) => {
                let by_clock = clock::now::<TokioEnv>().max(newest.log_time());
                (time > by_clock.plus_ms(CLOCKS_APART_MS), format!("the time {time}"))
            }
        };
        if !is_future {
            return refusal;
        }
        let text = format!("{named} lies in the future; the newest record is {}", newest.log_index());
        Refusal::fields(vec![Violation::new(field, text)])
    }
}

impl<G: Environment> Engine<G> {
    /// The present state with the proof of its age: one atomic load each, no waiting.
    #[must_use]
    pub fn reading(&self) -> Reading {
        let as_of = self.inner.consensus.fresh_as_of().map(Instant::from_std);
        Reading { as_of, state: self.view(), is_past: false }
    }

    /// The state of now or later that a read asks for; see [`Engine::read_view`].
    ///
    /// # Errors
    /// Those of [`Engine::read_view`] that are not about the past.
    pub async fn read_present(
        &self,
        consistency: Consistency,
        min_log_index: LogIndex,
        deadline: Instant,
    ) -> Result<Reading, Refusal> {
        // Bounds count from here.
        let arrived = instant::<G>();
        self.reach(min_log_index, arrived, deadline).await?;
        match consistency {
            Consistency::Any => Ok(self.reading()),
            Consistency::Bounded { max_staleness_ms } => {
                let max_staleness = Duration::from_millis(max_staleness_ms);
                self.bounded(arrived, max_staleness, deadline).await
            }
            Consistency::Linearizable => self.linearizable(deadline).await,
        }
    }

    async fn reach(&self, index: LogIndex, arrived: Instant, deadline: Instant) -> Result<(), Refusal> {
        if self.view().log_index() >= index {
            return Ok(());
        }
        let patience = deadline.saturating_duration_since(arrived).min(CATCH_UP_MAX);
        self.wait_applied(index, patience).await.map(drop)
    }

    async fn bounded(
        &self,
        arrived: Instant,
        max_staleness: Duration,
        deadline: Instant,
    ) -> Result<Reading, Refusal> {
        let reading = self.reading();
        if is_within(&reading, arrived, max_staleness) {
            return Ok(reading);
        }
        let tried = deadline.min(arrived + BOUNDED_TRY_MAX);
        // Whatever came of it, the measure may have moved meanwhile.
        let _ = G::within(until::<G>(tried), self.inner.consensus.read_index()).await;
        let reading = self.reading();
        if is_within(&reading, arrived, max_staleness) {
            return Ok(reading);
        }
        let allowed = max_staleness.as_millis();
        let refusal = match reading.staleness() {
            Some(staleness) => {
                let staleness = staleness_ms(staleness);
                let text = format!("the state here may be {staleness} ms old, the read allows {allowed} ms");
                Refusal::new(RefusalCode::TooStale, text).with("staleness_ms", staleness)
            }
            None => {
                let text = format!("how old the state here is cannot be told; the read allows {allowed} ms");
                Refusal::new(RefusalCode::TooStale, text)
            }
        };
        Err(refusal.with("applied_log_index", reading.log_index()))
    }

    /// The present state where it has this job, and otherwise one that is confirmed: a leader that was replaced and has not
    /// noticed knows nothing of a job that another one has acknowledged, and must not deny that there is one.
    ///
    /// # Errors
    /// `READ_UNCONFIRMED` when no leader confirms a state before `deadline`.
    pub async fn view_with_job(&self, job: JobId, deadline: Instant) -> Result<Arc<State>, Refusal> {
        let view = self.view();
        if view.tenant_of(job).is_some() {
            return Ok(view);
        }
        Ok(self.linearizable(deadline).await?.state)
    }

    /// Holds the read through an election: a leader that is elected before the deadline answers it.
    async fn linearizable(&self, deadline: Instant) -> Result<Reading, Refusal> {
        let mut leadership = self.leadership();
        let mut pause = PAUSE_FIRST;
        loop {
            leadership.mark_unchanged();
            match G::within(until::<G>(deadline), self.inner.consensus.read_index()).await {
                Ok(Ok(_)) => return Ok(self.reading()),
                Ok(Err(_)) if self.is_stopping() => return Err(stopping_reads()),
                Ok(Err(_)) => {}
                Err(_) => return Err(too_late(self)),
            }
            if instant::<G>() + pause >= deadline {
                return Err(too_late(self));
            }
            tokio::select! {
                biased;
                () = self.stopping() => return Err(stopping_reads()),
                _ = G::within(pause, leadership.changed()) => {}
            }
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }
}

/// Whether the state holds everything that was committed `max_staleness` before the read arrived.
fn is_within(reading: &Reading, arrived: Instant, max_staleness: Duration) -> bool {
    reading.as_of.is_some_and(|as_of| arrived.saturating_duration_since(as_of) <= max_staleness)
}

/// In whole milliseconds, rounded up: never fresher than it is.
#[must_use]
pub fn staleness_ms(staleness: Duration) -> u64 {
    u64::try_from(staleness.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn unmade() -> Refusal {
    let text = "the state of the past was not made within the deadline; allow more time";
    Refusal::new(RefusalCode::ArchiveUnavailable, text)
}

fn too_late<G: Environment>(engine: &Engine<G>) -> Refusal {
    let text = "no leader confirmed within the deadline that the state here is current";
    let refusal = Refusal::new(RefusalCode::ReadUnconfirmed, text);
    match engine.reading().staleness() {
        Some(staleness) => refusal.with("staleness_ms", staleness_ms(staleness)),
        None => refusal,
    }
}
