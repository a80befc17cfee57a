//! Which pending submission groups are to be given another turn, and when to look at them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use muster_state::{LinePlace, State};
use muster_types::{JobId, LogTime, QueueKey};

use crate::estimate::{burst_turn, urgent_at};
use crate::predict::ages_ms;

/// Submission groups of which something is known to have happened that one call looks at.
const LOOKS_MAX: usize = 256;
/// Other groups that one call looks at, one after the other: what the history has learned moves them too.
const ROUNDS_MAX: usize = 32;
/// Groups whose times one call notes after a leadership has begun.
const NOTED_MAX: usize = 512;
/// The first age of a running job at which its group is looked at; then half as long again and twice as long.
const FIRST_AGE_MS: u64 = 64_000;

/// What the leader remembers between two looks at the line. It is made from the state when a leadership
/// begins, told of what happens, and never replicated: what it leads to is in the log.
///
/// A submission group is looked at when one of its jobs has started or ended, when a running one crosses an
/// age of 64 seconds, 96, 128, 192 and so on, and when the first of its waiting jobs becomes urgent. All
/// others take turns.
#[derive(Clone, Debug, Default)]
pub struct Refresh {
    /// When to look at which submission group; each is there once.
    due: BTreeSet<(LogTime, JobId)>,
    at: BTreeMap<JobId, LogTime>,
    /// Where going round the line has come to.
    place: Option<LinePlace>,
    /// Whether the times of groups that were pending when the leadership began are still being noted, and
    /// how far that has come.
    noting: Option<Option<LinePlace>>,
}

impl Refresh {
    /// What is to be looked at in a state: first the groups with jobs that run. The times of the others are
    /// noted bit by bit, so that a leadership begins at once however long the line.
    #[must_use]
    pub fn of(state: &State, now: LogTime) -> Refresh {
        let mut refresh = Refresh { noting: Some(None), ..Refresh::default() };
        for group in state.bursts_running() {
            refresh.look_at(group, now);
        }
        refresh
    }

    /// A job was submitted, placed or released, has started, waits again or is over. Costs the logarithm of
    /// what is remembered.
    pub fn note(&mut self, state: &State, job: JobId) {
        let Some(row) = state.job(job) else { return };
        let group = row.submission_group(job);
        if state.submission_group(group).is_some() {
            self.look_at(group, state.log_time());
        } else {
            // Of one job alone nothing is learned by what becomes of it.
            self.look_again(state, group, state.log_time());
        }
    }

    /// Groups whose turn is to change, with the turn; groups ascending, at most as many as are looked at.
    #[must_use]
    pub fn due(&mut self, state: &State, now: LogTime) -> Vec<(JobId, QueueKey)> {
        self.go_on_noting(state, now);
        let mut moved: BTreeMap<JobId, QueueKey> = BTreeMap::new();
        for _ in 0..LOOKS_MAX {
            let Some((_, group)) = self.due.first().copied().filter(|(at, _)| *at <= now) else { break };
            self.forget(group);
            if state.first_in_line(group).is_none() {
                continue;
            }
            if let Some(turn) = changed_turn(state, group, now, 64) {
                moved.insert(group, turn);
            }
            self.look_again(state, group, now);
        }
        let (groups, place) = state.in_line_behind(self.place.as_ref(), ROUNDS_MAX);
        self.place = place;
        for group in groups {
            if let Some(turn) = changed_turn(state, group, now, 5) {
                moved.insert(group, turn);
            }
        }
        moved.into_iter().collect()
    }

    /// When something is due next; none when nothing is.
    #[must_use]
    pub fn next(&self) -> Option<LogTime> {
        self.due.first().map(|(at, _)| *at)
    }

    fn go_on_noting(&mut self, state: &State, now: LogTime) {
        let Some(place) = self.noting.take() else { return };
        let (groups, next) = state.in_line_behind(place.as_ref(), NOTED_MAX);
        for group in groups {
            self.look_again(state, group, now);
        }
        self.noting = next.map(Some);
    }

    fn forget(&mut self, group: JobId) {
        if let Some(at) = self.at.remove(&group) {
            self.due.remove(&(at, group));
        }
    }

    /// Not later than then.
    fn look_at(&mut self, group: JobId, at: LogTime) {
        if self.at.get(&group).is_none_or(|known| *known > at) {
            self.forget(group);
            self.at.insert(group, at);
            self.due.insert((at, group));
        }
    }

    /// The next time by which the turn of a pending group changes by itself.
    fn look_again(&mut self, state: &State, group: JobId, now: LogTime) {
        let older = ages_ms(state, group, now).map(|age_ms| now.plus_ms(next_age_ms(age_ms) - age_ms));
        let urgent = state.first_in_line(group).and_then(|job| {
            let (row, spec) = (state.job(job)?, state.spec(job)?);
            Some(urgent_at(state, spec, state.waits_since(job)?, row.estimate.run_ms, now))
        });
        let next = older.chain(urgent).filter(|at| *at > now).min();
        if let Some(at) = next {
            self.look_at(group, at);
        }
    }
}

/// The first of the ages that is beyond an age.
fn next_age_ms(age_ms: u64) -> u64 {
    let doublings = (age_ms / FIRST_AGE_MS).checked_ilog2();
    let Some(doublings) = doublings else { return FIRST_AGE_MS };
    let begin = FIRST_AGE_MS << doublings;
    let middle = begin + begin / 2;
    if age_ms < middle { middle } else { 2 * begin }
}

/// The turn that a pending group should have, unless what is expected of it has changed by less than one
/// part in `parts`.
fn changed_turn(state: &State, group: JobId, now: LogTime, parts: u64) -> Option<QueueKey> {
    let (is, should_be) = (state.turn_of(group)?, burst_turn(state, group, now)?);
    let moved = if let (Some(is), Some(should_be)) = (is.work(), should_be.work()) {
        let age = state.policy().policy.order.ageing_milli;
        let first = state.first_in_line(group)?;
        let submitted = u128::from(state.job(first)?.submitted_at.0) * u128::from(age);
        let work = u64::try_from(u128::from(should_be).saturating_sub(submitted));
        is.abs_diff(should_be) > work.unwrap_or(u64::MAX) / parts
    } else {
        is != should_be
    };
    moved.then_some(should_be)
}
