//! What run times were seen, as counts in the log: what predictions are made from.
//!
//! Only facts are kept here; `policy` predicts from them, so that a later release may predict otherwise from the same
//! rows.

use alloc::vec::Vec;
use muster_journal::hash;
use muster_types::{JobSpec, LogTime, Name};
use serde::{Deserialize, Serialize};

/// Rows kept at most; the one that was not touched for the longest time goes first.
pub const HISTORY_ROWS_MAX: usize = 1 << 16;

/// Weight of one new observation.
pub const OBSERVATION: u32 = 1 << 10;

/// Observations that a row is about: with more, each new one makes the others lose one part in this number.
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
    pub(crate) fn observe(&mut self, lesson: Lesson, now: LogTime) {
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
pub(crate) enum Lesson {
    /// How long it ran.
    Ran(u64),
    /// It would have run for longer.
    Outlived(u64),
}

impl Lesson {
    /// The bucket that it counts in by itself.
    pub(crate) fn bucket(self) -> u8 {
        match self {
            Lesson::Ran(run_ms) => bucket_of(run_ms),
            Lesson::Outlived(run_ms) => (bucket_of(run_ms) + 1).min(RUN_BUCKETS - 1),
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
