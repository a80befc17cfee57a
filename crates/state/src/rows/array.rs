//! Arrays of like jobs: what their members are made from, and how far they have come.

use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::{Estimate, Outcome, hash};
use muster_types::{
    ArrayId, ArraySpec, JobContract, JobId, JobMetadata, JobSpec, LogIndex, LogTime, Requester, limits,
};
use serde::{Deserialize, Serialize};

use super::control::HoldRow;
use super::spec::SpecFacts;
use crate::table::Derived;

/// What the members of an array are made from. Nothing of it changes but the throttle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayTemplate {
    /// What each of them asks for.
    pub spec: Arc<JobSpec>,
    /// The contract of each; none for the default one.
    pub contract: Option<Arc<JobContract>>,
    /// Labels, annotations and creator of each; none without any.
    pub metadata: Option<Arc<JobMetadata>>,
    /// Which members there are.
    pub array: ArraySpec,
}

/// An array: one row, however many members wait.
///
/// A member is *created* when it has a row among the jobs. A member is not created when it has no such row and has not
/// ended: then its ordinal is `next` or above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayRow {
    /// What its members are made from.
    pub template: Arc<ArrayTemplate>,
    /// What the leader expected of each member when the array was admitted, and the array's position.
    pub estimate: Estimate,
    /// When it was submitted.
    pub submitted_at: LogTime,
    /// Whether its members may be created as far as dependencies and times are concerned.
    pub released: bool,
    /// Who keeps it from creating members; none when nobody does.
    pub hold: Option<HoldRow>,
    /// Since when its members wait, where its tenant held it or a throttle of it was changed; none leaves that to the submission.
    pub waits_since: Option<LogTime>,
    /// Who asked to cancel members that were not created, each user once and without the token that spoke for it, at most
    /// [`limits::ARRAY_CANCELLERS_MAX`]: the last place is that of the last who was not among the first. Empty when nobody did, or
    /// nobody knows who.
    pub cancelled_by: Vec<Requester>,
    /// How often one gave up the last place among these to another.
    pub cancellers_left_out: u32,
    /// Why members that were not created failed; none when they did not.
    pub detail: Option<Arc<str>>,
    /// The lowest ordinal of a member that may still have to be created.
    pub next: u32,
    /// Members that are not created.
    pub uncreated: u32,
    /// Members that have succeeded.
    pub succeeded: u32,
    /// Members that have failed.
    pub failed: u32,
    /// Members that were cancelled.
    pub cancelled: u32,
    /// When the last member ended.
    pub finished_at: Option<LogTime>,
    /// The record that changed it last, without those that changed its members alone.
    pub changed_at: LogIndex,
}

impl ArrayRow {
    /// Members of the array.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.template.array.size()
    }

    /// Members that have ended.
    #[must_use]
    pub fn ended(&self) -> u32 {
        self.succeeded + self.failed + self.cancelled
    }

    /// Members that exist as jobs and are not over.
    #[must_use]
    pub fn unfinished(&self) -> u32 {
        self.size() - self.uncreated - self.ended()
    }

    /// Whether members may be created now as far as the array itself is concerned.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.uncreated > 0 && self.released && self.hold.is_none()
    }

    /// Its submission group.
    #[must_use]
    pub fn submission_group(&self, own: ArrayId) -> JobId {
        self.estimate.burst.unwrap_or(JobId(own.0))
    }

    /// How it has ended as a whole; none while a member has not ended.
    #[must_use]
    pub fn end(&self) -> Option<MemberEnd> {
        self.finished_at?;
        Some(match (self.failed, self.cancelled) {
            (0, 0) => MemberEnd::Succeeded,
            (0, _) => MemberEnd::Cancelled,
            _ => MemberEnd::Failed,
        })
    }

    pub(crate) fn count(&mut self, how: MemberEnd, members: u32) {
        match how {
            MemberEnd::Succeeded => self.succeeded += members,
            MemberEnd::Failed => self.failed += members,
            MemberEnd::Cancelled => self.cancelled += members,
        }
    }
}

/// The hash of an array's template, which is most of its row, and what follows from its spec. A template is replaced with
/// its row, and changes in no other way.
#[derive(Clone, Debug)]
pub struct ArrayFacts {
    hash: u64,
    pub(crate) spec: SpecFacts,
}

impl Derived<ArrayId, ArrayRow> for ArrayFacts {
    fn of(row: &ArrayRow) -> ArrayFacts {
        ArrayFacts { hash: hash(&row.template), spec: SpecFacts::of(&row.template.spec) }
    }

    fn hash(&self, id: &ArrayId, row: &ArrayRow) -> u64 {
        let ArrayRow {
            template: _,
            estimate,
            submitted_at,
            released,
            hold,
            waits_since,
            cancelled_by,
            cancellers_left_out,
            detail,
            next,
            uncreated,
            succeeded,
            failed,
            cancelled,
            finished_at,
            changed_at,
        } = row;
        let asked = (released, hold, waits_since, cancelled_by, cancellers_left_out, detail);
        let counts = (next, uncreated, succeeded, failed, cancelled);
        hash(&(id, self.hash, estimate, submitted_at, asked, counts, finished_at, changed_at))
    }
}

/// Rows that an array of a size comes to: its own, and those of how its members ended once all have.
#[must_use]
pub fn rows_of_array(size: u32) -> u64 {
    1 + u64::from(size.div_ceil(limits::ARRAY_ENDS_PER_ROW))
}

/// How a member of an array ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MemberEnd {
    /// Every worker ended with code 0.
    Succeeded,
    /// It failed.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl MemberEnd {
    /// Of a job that ended so.
    #[must_use]
    pub fn of(outcome: &Outcome) -> MemberEnd {
        match outcome {
            Outcome::Succeeded => MemberEnd::Succeeded,
            Outcome::Failed { .. } => MemberEnd::Failed,
            Outcome::Cancelled => MemberEnd::Cancelled,
        }
    }
}

/// Members side by side that ended alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRun {
    /// The first ordinal.
    pub first: u32,
    /// The last ordinal.
    pub last: u32,
    /// How they ended.
    pub how: MemberEnd,
}

impl EndRun {
    /// The same, cut where rows of ends begin.
    pub(crate) fn by_row(self) -> impl Iterator<Item = EndRun> {
        let rows = MemberEnds::row_of(self.first)..=MemberEnds::row_of(self.last);
        rows.map(move |row| {
            let begin = row * limits::ARRAY_ENDS_PER_ROW;
            let end = begin + (limits::ARRAY_ENDS_PER_ROW - 1);
            EndRun { first: self.first.max(begin), last: self.last.min(end), how: self.how }
        })
    }
}

/// How members of an array ended whose ordinals, divided by [`limits::ARRAY_ENDS_PER_ROW`], give one number: at most that number of
/// runs, and one where all ended alike. A row without a run is not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberEnds {
    /// Ordinals ascending.
    pub(crate) runs: Vec<EndRun>,
}

impl MemberEnds {
    /// The number of the row that an ordinal is in.
    pub(crate) fn row_of(ordinal: u32) -> u32 {
        ordinal / limits::ARRAY_ENDS_PER_ROW
    }

    pub(crate) fn end_of(&self, ordinal: u32) -> Option<MemberEnd> {
        let place = self.runs.partition_point(|run| run.last < ordinal);
        self.runs.get(place).filter(|run| run.first <= ordinal).map(|run| run.how)
    }

    /// Adds members of this row that have ended just now.
    pub(crate) fn add(&mut self, new: EndRun) {
        let place = self.runs.partition_point(|run| run.last < new.first);
        assert!(self.runs.get(place).is_none_or(|run| run.first > new.last), "a member ends once");
        let joins = |run: Option<&EndRun>, is_before: bool| {
            run.is_some_and(|run| {
                let touches = if is_before { run.last + 1 == new.first } else { new.last + 1 == run.first };
                touches && run.how == new.how
            })
        };
        let before = place.checked_sub(1);
        let joins_before = joins(before.and_then(|at| self.runs.get(at)), true);
        let joins_behind = joins(self.runs.get(place), false);
        match (before.filter(|_| joins_before), joins_behind) {
            (Some(at), true) => {
                self.runs[at].last = self.runs[place].last;
                self.runs.remove(place);
            }
            (Some(at), false) => self.runs[at].last = new.last,
            (None, true) => self.runs[place].first = new.first,
            (None, false) => self.runs.insert(place, new),
        }
    }

    /// Adds many, ordinals ascending, with one walk over the row.
    pub(crate) fn add_all(&mut self, new: &[EndRun]) {
        let old = core::mem::take(&mut self.runs);
        let (mut old, mut new) = (old.into_iter().peekable(), new.iter().copied().peekable());
        loop {
            let is_old = match (old.peek(), new.peek()) {
                (Some(before), Some(after)) => before.first < after.first,
                (before, _) => before.is_some(),
            };
            let Some(run) = (if is_old { old.next() } else { new.next() }) else { return };
            match self.runs.last_mut() {
                Some(last) if last.last + 1 == run.first && last.how == run.how => last.last = run.last,
                last => {
                    assert!(last.is_none_or(|last| last.last < run.first), "a member ends once");
                    self.runs.push(run);
                }
            }
        }
    }

    /// Whether the runs are ascending, disjoint, joined where they can be, and those of the row with this number.
    pub(crate) fn is_valid(&self, row: u32) -> bool {
        let is_of_row = |run: &EndRun| {
            run.first <= run.last
                && MemberEnds::row_of(run.first) == row
                && MemberEnds::row_of(run.last) == row
        };
        let follows = |pair: &[EndRun]| {
            pair[0].last < pair[1].first && (pair[0].last + 1 < pair[1].first || pair[0].how != pair[1].how)
        };
        !self.runs.is_empty() && self.runs.iter().all(is_of_row) && self.runs.windows(2).all(follows)
    }
}

/// Members of an array that exist as jobs and wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayLoad {
    /// All of them.
    pub pending: u32,
    /// Those that somebody holds.
    pub held: u32,
    /// Those that may be offered capacity: nobody holds them, they wait for no time and for no other job, and nothing is promised
    /// to them.
    pub in_line: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_their_neighbours_that_ended_alike() {
        let mut ends = MemberEnds::default();
        let run = |first, last, how| EndRun { first, last, how };
        ends.add(run(5, 5, MemberEnd::Succeeded));
        ends.add(run(7, 9, MemberEnd::Succeeded));
        ends.add(run(6, 6, MemberEnd::Failed));
        assert_eq!(ends.runs.len(), 3);
        assert_eq!(ends.end_of(6), Some(MemberEnd::Failed));
        assert_eq!(ends.end_of(10), None);
        ends.add(run(3, 4, MemberEnd::Succeeded));
        ends.add(run(0, 0, MemberEnd::Succeeded));
        ends.add(run(1, 2, MemberEnd::Succeeded));
        assert_eq!(ends.runs[0], run(0, 5, MemberEnd::Succeeded));
        assert!(ends.is_valid(0));
        assert!(!ends.is_valid(1));
    }
}
