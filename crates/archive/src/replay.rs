//! A state of the past: rounds of the archive through the guard and the fold of a replica.
//!
//! **Invariant:** what the leader recorded of its state is compared on the way; a replay that comes to
//! another state is an error, never an answer.

use muster_journal::Decision;
use muster_state::{Applied, Effect, State};
use muster_types::{Leadership, LogIndex, PastPoint};

use crate::error::ArchiveError;
use crate::record::ArchivedRound;

/// Sees each record as it is applied.
pub trait Observer {
    /// Before a decision.
    fn before(&mut self, state: &State, decision: &Decision);

    /// Behind it; the state has it, unless it had no position or was refused.
    fn after(&mut self, state: &State, applied: &Applied);

    /// Behind the last decision of a round.
    fn round_over(&mut self, state: &State);
}

/// Nobody looks.
impl Observer for () {
    fn before(&mut self, _: &State, _: &Decision) {}

    fn after(&mut self, _: &State, _: &Applied) {}

    fn round_over(&mut self, _: &State) {}
}

/// A state on its way through the log.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    state: State,
    /// The first entry of which something is still to be applied.
    next_raft: u64,
    /// Decisions of that entry that were applied already.
    done: usize,
    digests_compared: u64,
}

impl Replay {
    /// Before the first record.
    #[must_use]
    pub fn founding() -> Replay {
        Replay::default()
    }

    /// Goes on from a state that covers every entry before `next_raft`.
    #[must_use]
    pub fn from_state(state: State, next_raft: u64) -> Replay {
        Replay { state, next_raft, done: 0, digests_compared: 0 }
    }

    /// The state that was reached.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The first entry that is not applied whole.
    #[must_use]
    pub fn next_raft(&self) -> u64 {
        self.next_raft
    }

    /// The entry of which some decisions are applied and others are not; none between two entries.
    #[must_use]
    pub fn open_round(&self) -> Option<u64> {
        (self.done > 0).then_some(self.next_raft)
    }

    /// Goes on behind entries that have no round.
    pub fn pass(&mut self, next_raft: u64) {
        if next_raft > self.next_raft {
            (self.next_raft, self.done) = (next_raft, 0);
        }
    }

    /// Digests of the leader that were compared so far.
    #[must_use]
    pub fn digests_compared(&self) -> u64 {
        self.digests_compared
    }

    /// Applies a round, no further than `until`; says whether that is reached. One that was applied
    /// before is passed over.
    ///
    /// # Errors
    /// When the round cannot be read, or the state is not the one that the leader recorded.
    pub fn apply(&mut self, round: &ArchivedRound, until: Option<PastPoint>) -> Result<bool, ArchiveError> {
        self.apply_observed(round, until, &mut ())
    }

    /// The same while somebody looks.
    ///
    /// # Errors
    /// As [`Replay::apply`].
    pub fn apply_observed(
        &mut self,
        round: &ArchivedRound,
        until: Option<PastPoint>,
        observer: &mut impl Observer,
    ) -> Result<bool, ArchiveError> {
        if round.raft_index < self.next_raft {
            return Ok(false);
        }
        if until == Some(PastPoint::Index(self.state.log_index())) {
            return Ok(true);
        }
        let decoded = round.decode()?;
        if round.raft_index > self.next_raft {
            self.done = 0;
        }
        self.next_raft = round.raft_index;
        let leadership = Leadership { term: decoded.term, replica: decoded.replica };
        for (ordinal, decision) in decoded.decisions.iter().enumerate().skip(self.done) {
            let index = LogIndex(decoded.first_index.0.saturating_add(ordinal as u64));
            if let Some(PastPoint::Time(time)) = until
                && decoded.log_time > time
                && self.state.sequence().check(leadership, index, decoded.log_time, decision).is_ok()
            {
                return Ok(true);
            }
            observer.before(&self.state, decision);
            let applied = self.state.apply(leadership, index, decoded.log_time, decision);
            self.done = ordinal + 1;
            for effect in &applied.effects {
                if let Effect::Diverged { expected, actual } = *effect {
                    return Err(ArchiveError::Diverged { at: index, expected, actual });
                }
            }
            observer.after(&self.state, &applied);
            if applied.log_index.is_none() {
                continue;
            }
            if matches!(decision, Decision::DigestRecorded { .. }) {
                self.digests_compared += 1;
            }
            if until == Some(PastPoint::Index(index)) {
                return Ok(true);
            }
        }
        observer.round_over(&self.state);
        (self.next_raft, self.done) = (round.raft_index.saturating_add(1), 0);
        Ok(false)
    }
}
