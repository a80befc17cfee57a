//! A recording that is made while the log grows: what a change would have come to up to now.
//!
//! It is a [`Recorder`] whose range has no end yet. Each look at it replays the range from its beginning, so that it says what
//! the same range of an archive says, whenever and how often it was looked at.
//!
//! **Invariant:** memory is bounded by the range: a range that is full is looked at for the last time, and another one begins.

use muster_journal::Decision;
use muster_state::{Applied, State};
use muster_types::{LogIndex, LogTime};

use crate::whatif::recorder::{Recorder, Recording};
use crate::whatif::{Range, WhatifError};

/// Inputs of one range, at most: with each its jobs are kept as they were submitted.
pub const SHADOW_INPUTS_MAX: usize = 100_000;
/// Jobs of one range, at most.
pub const SHADOW_JOBS_MAX: usize = 500_000;

/// Follows a log, record by record.
#[derive(Clone, Debug)]
pub struct Shadow {
    recorder: Recorder,
    from: LogTime,
    first: LogIndex,
}

impl Shadow {
    /// Begins behind the last record of a state.
    #[must_use]
    pub fn begin(state: &State) -> Shadow {
        let (from, first) = (state.log_time(), state.log_index().next());
        let recorder = Recorder::begin(state, Range { from, to: LogTime(u64::MAX) });
        Shadow { recorder, from, first }
    }

    /// When its range begins.
    #[must_use]
    pub fn from(&self) -> LogTime {
        self.from
    }

    /// The first record of its range.
    #[must_use]
    pub fn first(&self) -> LogIndex {
        self.first
    }

    /// Before a record.
    pub fn before(&mut self, state: &State, decision: &Decision) {
        self.recorder.before(state, decision);
    }

    /// Behind a record.
    pub fn after(&mut self, state: &State, applied: &Applied) {
        self.recorder.after(state, applied);
    }

    /// Behind the last record of a round.
    pub fn round_over(&mut self, state: &State) {
        self.recorder.round_over(state);
    }

    /// Whether its range should end: it holds as much as it may, or cannot be replayed any more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let (inputs, jobs) = self.recorder.size();
        inputs >= SHADOW_INPUTS_MAX || jobs >= SHADOW_JOBS_MAX || self.recorder.error().is_some()
    }

    /// The range up to the last record of the state; following goes on.
    ///
    /// # Errors
    /// When something in it cannot be replayed, such as a recovery of the cluster.
    pub fn so_far(&self, state: &State) -> Result<Recording, WhatifError> {
        self.recorder.so_far(state, state.log_time())
    }
}
