//! What run times were seen, as counts in the log: what predictions are made from.
//!
//! Only facts are kept here; what follows from them is `policy`'s to say, so that a later release may
//! predict otherwise from the same rows.

use alloc::vec::Vec;
use muster_journal::{Outcome, StopCause, hash};
use muster_types::{JobId, JobSpec, LogTime, Name};
use serde::{Deserialize, Serialize};

use crate::apply::State;
use crate::rows::Phase;

/// Rows kept at most; the one that was not touched for the longest time goes first.
pub const HISTORY_ROWS_MAX: usize = 1 << 16;

/// Weight of one new observation.
pub const OBSERVATION: u32 = 1 << 10;

/// Observations that a row is about: with more, each new one makes the others lose one part in so many.
pub const OBSERVATIONS_KEPT: u32 = 16;

/// Buckets of run times: two to a doubling, from one second up to more than any run-time limit.
pub const RUN_BUCKETS: u8 = 50;

/// Run times below are all in the first bucket.
const FIRST_BUCKET_MS: u64 = 1_000;

/// How narrowly a job is described, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HistoryLevel {
    /// Tenant, name without trailing digits, and size.
    Name,
    /// Tenant and size.
    Size,
    /// Tenant.
    Tenant,
    /// Size, over all tenants.
    Everyone,
    /// Everything.
    All,
}

impl HistoryLevel {
    /// Every level, narrowest first.
    pub const ALL: [HistoryLevel; 5] = [
        HistoryLevel::Name,
        HistoryLevel::Size,
        HistoryLevel::Tenant,
        HistoryLevel::Everyone,
        HistoryLevel::All,
    ];
}

/// Jobs that are described alike at one level; a hash, so that the table's rows are small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HistoryKey(u64);

impl HistoryKey {
    /// The key of a job at a level.
    #[must_use]
    pub fn of(level: HistoryLevel, spec: &JobSpec) -> HistoryKey {
        // Sizes within a factor of two are alike.
        let size = spec.device_milli().next_power_of_two();
        let tenant: &Name = &spec.tenant;
        HistoryKey(match level {
            HistoryLevel::Name => hash(&(level, tenant, stem(&spec.name), size)),
            HistoryLevel::Size => hash(&(level, tenant, size)),
            HistoryLevel::Tenant => hash(&(level, tenant)),
            HistoryLevel::Everyone => hash(&(level, size)),
            HistoryLevel::All => hash(&level),
        })
    }
}

/// A name without its trailing number: what the jobs of one sweep or series have in common.
pub(crate) fn stem(name: &Name) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '-' | '_' | '.'))
}

/// Run times of jobs that are described alike, as a histogram that forgets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryRow {
    /// When the last was seen.
    pub last: LogTime,
    /// Weight by bucket, [`OBSERVATION`] for a fresh one; buckets ascending. See [`bucket_of`]. A job that was stopped
    /// at its limit is shared out among the longer ones.
    pub ended: Vec<(u8, u32)>,
}

/// The bucket of a run time: bucket `b` begins at `2^(b/2)` seconds.
#[must_use]
pub fn bucket_of(run_ms: u64) -> u8 {
    let seconds = run_ms / FIRST_BUCKET_MS;
    if seconds == 0 {
        return 0;
    }
    let doublings = seconds.ilog2();
    let begin = u128::from(FIRST_BUCKET_MS) << doublings;
    // Past `begin * sqrt(2)` it is the upper half of the doubling.
    let upper = u128::from(run_ms) * u128::from(run_ms) >= 2 * begin * begin;
    let bucket = 2 * doublings + u32::from(upper);
    bucket.min(u32::from(RUN_BUCKETS) - 1) as u8
}

/// Counts more of a bucket.
pub(crate) fn add(buckets: &mut Vec<(u8, u32)>, bucket: u8, weight: u32) {
    let at = buckets.partition_point(|(known, _)| *known < bucket);
    match buckets.get_mut(at).filter(|(known, _)| *known == bucket) {
        Some((_, sum)) => *sum = sum.saturating_add(weight),
        None => buckets.insert(at, (bucket, weight)),
    }
}

impl HistoryRow {
    /// Adds a run time. What the row says follows its jobs: about the last [`OBSERVATIONS_KEPT`] count.
    fn observe(&mut self, lesson: Lesson, now: LogTime) {
        self.last = now;
        if self.weight() + u64::from(OBSERVATION) > u64::from(OBSERVATIONS_KEPT * OBSERVATION) {
            for (_, weight) in &mut self.ended {
                *weight -= weight.div_ceil(OBSERVATIONS_KEPT);
            }
            self.ended.retain(|(_, weight)| *weight > 0);
        }
        match lesson {
            Lesson::Ran(_) => add(&mut self.ended, lesson.bucket(), OBSERVATION),
            Lesson::Outlived(run_ms) => self.outlived(bucket_of(run_ms), lesson.bucket()),
        }
    }

    /// Of a job that lived to leave a bucket it is known only that it would have ended in a later one: it counts among
    /// those that did, in proportion; alone it counts in the next.
    fn outlived(&mut self, bucket: u8, next: u8) {
        let longer = self.ended.iter_mut().filter(|(known, _)| *known > bucket);
        let sum: u64 = longer.map(|(_, weight)| u64::from(*weight)).sum();
        let Some(last) = self.ended.last().map(|(known, _)| *known).filter(|_| sum > 0) else {
            add(&mut self.ended, next, OBSERVATION);
            return;
        };
        let mut left = OBSERVATION;
        for (known, weight) in &mut self.ended {
            if *known > bucket {
                // At most OBSERVATION, since the weight is part of the sum.
                let part = (u64::from(OBSERVATION) * u64::from(*weight) / sum) as u32;
                *weight = weight.saturating_add(part);
                left -= part;
            }
        }
        // What was rounded away.
        add(&mut self.ended, last, left);
    }

    /// Weight of all observations; [`OBSERVATION`] for each fresh one.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.ended.iter().map(|(_, weight)| u64::from(*weight)).sum()
    }
}

/// What the end of a job says of how long jobs like it run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lesson {
    /// It ran for so long.
    Ran(u64),
    /// It would have run for longer.
    Outlived(u64),
}

impl Lesson {
    /// The bucket that it counts in by itself.
    fn bucket(self) -> u8 {
        match self {
            Lesson::Ran(run_ms) => bucket_of(run_ms),
            Lesson::Outlived(run_ms) => (bucket_of(run_ms) + 1).min(RUN_BUCKETS - 1),
        }
    }
}

impl State {
    /// Takes the run time of a job that is about to be over into the history; the bucket of run times that it is in,
    /// none when nothing was learned.
    pub(crate) fn learn(&mut self, job: JobId, outcome: &Outcome) -> Option<u8> {
        let now = self.meta.log_time;
        let lesson = self.lesson(job, outcome)?;
        let spec = self.specs.get(&job).expect("a job has a spec").clone();
        for level in HistoryLevel::ALL {
            let key = HistoryKey::of(level, &spec);
            let observed = self.history.change(&key, |row, ()| {
                let last = row.last;
                row.observe(lesson, now);
                last
            });
            match observed {
                Some(last) if last == now => {}
                Some(last) => {
                    self.indexes.history_by_time.remove(&(last, key));
                    self.indexes.history_by_time.insert((now, key));
                }
                None => {
                    let mut row = HistoryRow::default();
                    row.observe(lesson, now);
                    self.history.insert(key, row);
                    self.indexes.history_by_time.insert((now, key));
                }
            }
        }
        while self.history.len() > HISTORY_ROWS_MAX {
            let oldest = self.indexes.history_by_time.first().copied();
            let (last, key) = oldest.expect("every row of the history is indexed");
            self.indexes.history_by_time.remove(&(last, key));
            self.history.remove(&key);
        }
        Some(lesson.bucket())
    }

    /// What there is to learn. Until format 5 the last attempt counted, however it ended: jobs that were cancelled or
    /// failed early made all jobs like them look short.
    fn lesson(&self, job: JobId, outcome: &Outcome) -> Option<Lesson> {
        let row = self.jobs.get(&job)?;
        let last_ms = self.meta.log_time.since_ms(row.started_at?);
        if !self.has_rules() {
            return Some(Lesson::Ran(last_ms));
        }
        let run_ms = self.times(job).ran_ms.saturating_add(last_ms);
        match (outcome, &row.phase) {
            (Outcome::Succeeded, _) => Some(Lesson::Ran(run_ms)),
            (Outcome::Failed { .. }, Phase::Stopping(StopCause::RunTimeLimit)) => {
                Some(Lesson::Outlived(run_ms))
            }
            (Outcome::Failed { .. } | Outcome::Cancelled, _) => None,
        }
    }

    /// A gang that was stopped waits again: since when, and how much of what it has done it will not have to do once
    /// more. To be called while its row still says when it began.
    pub(crate) fn note_waiting_again(&mut self, job: JobId) {
        let now = self.meta.log_time;
        let kept_ms = self.kept_run_ms(job);
        self.change_times(job, |times| {
            times.waits_since = Some(now);
            times.ran_ms = times.ran_ms.saturating_add(kept_ms);
        });
    }

    /// How long the present attempt ran until it saved its work. One that has somewhere to save it, and never says
    /// when it does, is taken to have saved it just now.
    fn kept_run_ms(&self, job: JobId) -> u64 {
        let Some((row, started)) = self.jobs.get(&job).and_then(|row| Some((row, row.started_at?))) else {
            return 0;
        };
        let says_when = self.recovery(job).is_some_and(|known| known.saved.is_some());
        match row.checkpointed_at {
            Some(saved) => saved.since_ms(started),
            None if self.saves_its_work(job) && !says_when => self.meta.log_time.since_ms(started),
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_stopped_at_its_limit_counts_among_those_that_ran_longer() {
        let hour = 3_600_000;
        let mut row = HistoryRow::default();
        row.observe(Lesson::Outlived(hour), LogTime(1));
        assert_eq!(row.ended, [(bucket_of(hour) + 1, OBSERVATION)], "nobody is known to have run longer");

        let mut row = HistoryRow::default();
        for run_ms in [hour / 2, 2 * hour, 2 * hour, 8 * hour] {
            row.observe(Lesson::Ran(run_ms), LogTime(1));
        }
        row.observe(Lesson::Outlived(hour), LogTime(2));
        let weight =
            |run_ms| row.ended.iter().find(|(bucket, _)| *bucket == bucket_of(run_ms)).map(|(_, w)| *w);
        assert_eq!(weight(hour / 2), Some(OBSERVATION), "it says nothing of shorter ones");
        assert_eq!(weight(2 * hour), Some(2 * OBSERVATION + OBSERVATION * 2 / 3));
        assert_eq!(weight(8 * hour), Some(OBSERVATION + OBSERVATION / 3 + 1));
        assert_eq!((row.weight(), row.last), (5 * u64::from(OBSERVATION), LogTime(2)));
    }
}
