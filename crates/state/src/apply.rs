//! How a round from the log changes the state.

use alloc::vec::Vec;
use muster_journal::{Decision, Round, hash};
use muster_types::{Leadership, LogIndex, LogTime};
use serde::Serialize;

use crate::effect::Applied;
use crate::guard_error::GuardError;
use crate::sequence::Sequence;
use crate::state::State;

/// A decision that the guard has let through, and where in the log that was.
#[derive(Clone, Debug)]
pub struct CheckedDecision {
    decision: Decision,
    at: Sequence,
}

impl CheckedDecision {
    /// The decision.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The decision.
    #[must_use]
    pub fn into_decision(self) -> Decision {
        self.decision
    }
}

impl State {
    /// Applies a round from the log. `Applied` entries are in the order of its decisions.
    pub fn apply_round(&mut self, round: &Round) -> Vec<Applied> {
        let leadership = Leadership { term: round.term, replica: round.replica };
        let mut applied = Vec::with_capacity(round.decisions.len());
        for (ordinal, decision) in round.decisions.iter().enumerate() {
            let index = LogIndex(round.first_index.0.saturating_add(ordinal as u64));
            applied.push(self.apply(leadership, index, round.log_time, decision));
        }
        applied
    }

    /// Applies one record: what a round does for each of its decisions, and what the leader does
    /// with its own before they are in the log.
    pub fn apply(
        &mut self,
        leadership: Leadership,
        index: LogIndex,
        log_time: LogTime,
        decision: &Decision,
    ) -> Applied {
        if let Err(rejection) = self.check_header(leadership, index, log_time, decision) {
            // Not a position of the log: the leadership had ended, and its indexes are the next
            // leader's to give.
            self.meta.stale += 1;
            return Applied { log_index: None, rejection: Some(rejection), effects: Vec::new() };
        }
        let verdict = self.check(decision);
        self.carry_out(leadership, index, log_time, decision, verdict)
    }

    /// [`State::apply`] for a decision that the guard let through at this very position, so that it need not look again: what it
    /// looks at can be the whole policy. At any other position it looks again.
    pub fn apply_checked(
        &mut self,
        leadership: Leadership,
        index: LogIndex,
        log_time: LogTime,
        checked: &CheckedDecision,
    ) -> Applied {
        let decision = &checked.decision;
        let is_here = checked.at == self.sequence();
        if !is_here || self.check_header(leadership, index, log_time, decision).is_err() {
            return self.apply(leadership, index, log_time, decision);
        }
        self.carry_out(leadership, index, log_time, decision, Ok(()))
    }

    /// The guard, for a decision that follows at once.
    ///
    /// # Errors
    /// Like [`State::check`].
    pub fn check_next(&self, decision: Decision) -> Result<CheckedDecision, GuardError> {
        self.check(&decision)?;
        Ok(CheckedDecision { decision, at: self.sequence() })
    }

    fn carry_out(
        &mut self,
        leadership: Leadership,
        index: LogIndex,
        log_time: LogTime,
        decision: &Decision,
        verdict: Result<(), GuardError>,
    ) -> Applied {
        // From here on the record has its position, whether or not it is refused.
        self.meta.log_index = index;
        self.meta.log_time = log_time;
        match verdict {
            Ok(()) => {
                let effects = self.fold(leadership, decision);
                Applied { log_index: Some(index), rejection: None, effects }
            }
            Err(rejection) => {
                self.meta.rejected += 1;
                Applied { log_index: Some(index), rejection: Some(rejection), effects: Vec::new() }
            }
        }
    }

    /// Digest of everything replicated, at the present position.
    #[must_use]
    pub fn digest(&self) -> u64 {
        // The binary's own format stays out: two versions in one cluster have one digest.
        hash(&(&self.meta, self.table_digests()))
    }

    /// Of all rows: the tables, and what is not a table.
    pub(crate) fn table_digests(&self) -> impl Serialize {
        let [demand_sample, demand_sums] = self.demand.digests();
        (self.digests(), [demand_sample, demand_sums, self.policy_digest.get(&self.policy)])
    }
}
