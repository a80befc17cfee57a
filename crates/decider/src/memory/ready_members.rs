//! Members of arrays that are ready before their turn: those of other arrays that they waited for are over.
//!
//! An array makes its members jobs in their order, and some wait as jobs. Where the counterpart of a member behind these is over first,
//! that member is noted here, and goes before those that wait. Of an array no more are noted than it makes jobs at once. Where there
//! are more, the lowest of them is kept. They are looked for from there on when those that were noted are jobs, some at a time, and by
//! ticks.
//!
//! Kept by the leader alone and in no record: a new leader has its ticks look from the first member on.
//!
//! **Invariant:** a ready member of an array that waits for others member by member is noted, or is not below where the next look at
//! its array begins, or comes next in order.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use muster_state::State;
use muster_types::{ArrayId, limits};

/// Members of an array that are noted.
const NOTED_MAX: usize = limits::ARRAY_WINDOW as usize;

/// What is known of one array.
#[derive(Clone, Debug, Default)]
struct OfArray {
    noted: BTreeSet<u32>,
    /// The first member that may be ready and is not noted. None if there is no such member.
    more_from: Option<u32>,
    /// Whether it is among those that ticks look at.
    is_queued: bool,
}

impl OfArray {
    fn is_full(&self) -> bool {
        self.noted.len() >= NOTED_MAX
    }

    fn is_empty(&self) -> bool {
        self.noted.is_empty() && self.more_from.is_none() && !self.is_queued
    }

    /// Looks at members of which the counterpart has ended, while looks are left.
    fn look(&mut self, state: &State, array: ArrayId, left: &mut u32) {
        let Some(from) = self.more_from.take() else { return };
        let row = state.array(array).filter(|row| row.uncreated > 0);
        let other = row.and_then(|row| row.template.spec.dependencies.iter().find(|on| on.is_of_members()));
        let Some(other) = other.map(|on| ArrayId(on.job.0)) else { return };
        for run in state.member_ends_from(other, from) {
            for ordinal in run.first.max(from)..=run.last {
                if *left == 0 || self.is_full() {
                    self.more_from = Some(ordinal);
                    return;
                }
                *left -= 1;
                if state.is_ready_member(array, ordinal) {
                    self.noted.insert(ordinal);
                }
            }
        }
    }
}

/// The notes about all arrays that wait for others member by member.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadyMembers {
    arrays: BTreeMap<ArrayId, OfArray>,
    /// Arrays that are to be looked at, the next one first. One that is over by now may be among them.
    to_look_at: VecDeque<ArrayId>,
    /// Whether the last look ended before it had seen all, because it had done as much as one tick may.
    is_cut: bool,
}

impl ReadyMembers {
    /// A member is ready.
    pub(crate) fn note(&mut self, array: ArrayId, ordinal: u32) {
        let of_array = self.arrays.entry(array).or_default();
        if of_array.is_full() {
            self.look_from(array, ordinal);
        } else {
            of_array.noted.insert(ordinal);
        }
    }

    /// Members from this one on may be ready.
    pub(crate) fn look_from(&mut self, array: ArrayId, ordinal: u32) {
        let of_array = self.arrays.entry(array).or_default();
        if !of_array.is_queued {
            of_array.is_queued = true;
            self.to_look_at.push_back(array);
        }
        of_array.more_from = Some(of_array.more_from.map_or(ordinal, |from| from.min(ordinal)));
    }

    /// No member of an array is left to be created.
    pub(crate) fn forget(&mut self, array: ArrayId) {
        self.arrays.remove(&array);
    }

    /// Takes the first members of an array that are ready, up to a number.
    pub(crate) fn take(&mut self, state: &State, array: ArrayId, most: u32) -> Vec<u32> {
        let mut found = Vec::new();
        let Some(of_array) = self.arrays.get_mut(&array) else { return found };
        while found.len() < most as usize {
            let Some(ordinal) = of_array.noted.pop_first() else { break };
            if state.is_ready_member(array, ordinal) {
                found.push(ordinal);
            }
        }
        if of_array.is_empty() {
            self.arrays.remove(&array);
        }
        found
    }

    /// Looks for more members of one array that are ready, while looks are left; whether some are noted now.
    pub(crate) fn look_at(&mut self, state: &State, array: ArrayId, left: &mut u32) -> bool {
        let Some(of_array) = self.arrays.get_mut(&array) else { return false };
        of_array.look(state, array, left);
        !of_array.noted.is_empty()
    }

    /// Looks for more that are ready, with a number of looks; the arrays of which some are.
    pub(crate) fn look(&mut self, state: &State, looks: u32) -> Vec<ArrayId> {
        let (mut left, mut found, mut has_looked) = (looks, Vec::new(), false);
        for _ in 0..self.to_look_at.len() {
            if left == 0 {
                break;
            }
            left -= 1;
            let Some(array) = self.to_look_at.pop_front() else { break };
            let Some(of_array) = self.arrays.get_mut(&array) else { continue };
            of_array.is_queued = false;
            if !of_array.is_full() {
                has_looked = true;
                let before = of_array.noted.len();
                of_array.look(state, array, &mut left);
                if of_array.noted.len() > before {
                    found.push(array);
                }
            }
            if of_array.more_from.is_some() {
                of_array.is_queued = true;
                self.to_look_at.push_back(array);
            } else if of_array.is_empty() {
                self.arrays.remove(&array);
            }
        }
        self.is_cut = has_looked && left == 0 && !self.to_look_at.is_empty();
        found
    }

    /// Whether the last look had more to look at than it was allowed to.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }
}
