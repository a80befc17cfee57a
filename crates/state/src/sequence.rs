//! Validation of record headers: which leader's records are accepted next, and at which index.
//!
//! A process that follows the log without the state (an archive, a reader of its records) needs no more than
//! this to know which records have a position and which are those of a leadership that had ended.
//!
//! **Invariant:** the one rule about headers; the guard itself asks it.

use muster_journal::Decision;
use muster_types::{Leadership, LogIndex, LogTime};

use crate::guard_error::GuardError;
use crate::state::State;

/// A place in the log, between two records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Whose records are accepted.
    pub leadership: Option<Leadership>,
    /// The last record.
    pub log_index: LogIndex,
    /// Its time.
    pub log_time: LogTime,
}

impl Sequence {
    /// Whether a record with this header has the next position.
    ///
    /// # Errors
    /// Which part of the header is not current.
    pub fn check(
        &self,
        leadership: Leadership,
        index: LogIndex,
        time: LogTime,
        decision: &Decision,
    ) -> Result<(), GuardError> {
        let begins = matches!(decision, Decision::LeaderStarted);
        let current = match self.leadership {
            Some(current) if begins => leadership > current,
            None => begins,
            Some(current) => leadership == current,
        };
        if !current {
            Err(GuardError::StaleLeadership)
        } else if index != self.log_index.next() {
            Err(GuardError::OutOfSequence)
        } else if time < self.log_time {
            Err(GuardError::TimeWentBack)
        } else {
            Ok(())
        }
    }

    /// Goes on behind a record, when it has the next position; says whether it has.
    pub fn step(
        &mut self,
        leadership: Leadership,
        index: LogIndex,
        time: LogTime,
        decision: &Decision,
    ) -> bool {
        if self.check(leadership, index, time, decision).is_err() {
            return false;
        }
        *self = Sequence {
            // Nothing refuses the beginning of a leadership whose header is current.
            leadership: Some(leadership),
            log_index: index,
            log_time: time,
        };
        true
    }
}

impl State {
    /// Its place in the log.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        Sequence {
            leadership: self.meta.leadership,
            log_index: self.meta.log_index,
            log_time: self.meta.log_time,
        }
    }
}
