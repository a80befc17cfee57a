//! What run times were seen, as counts in the log: what predictions are made from.
//!
//! Only facts are kept here; what follows from them is `policy`'s to say, so that a later release may
//! predict otherwise from the same rows.

use alloc::vec::Vec;
use muster_journal::hash;
use muster_types::{JobId, JobSpec, LogTime, Name};
use serde::{Deserialize, Serialize};

use crate::apply::State;

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
    /// Weight by bucket, [`OBSERVATION`] for a fresh one; buckets ascending. See [`bucket_of`].
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
    fn observe(&mut self, run_ms: u64, now: LogTime) {
        self.last = now;
        if self.weight() + u64::from(OBSERVATION) > u64::from(OBSERVATIONS_KEPT * OBSERVATION) {
            for (_, weight) in &mut self.ended {
                *weight -= weight.div_ceil(OBSERVATIONS_KEPT);
            }
            self.ended.retain(|(_, weight)| *weight > 0);
        }
        add(&mut self.ended, bucket_of(run_ms), OBSERVATION);
    }

    /// Weight of all observations; [`OBSERVATION`] for each fresh one.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.ended.iter().map(|(_, weight)| u64::from(*weight)).sum()
    }
}

impl State {
    /// Takes the run time of a job that is about to be over into the history; none when it never ran.
    pub(crate) fn learn(&mut self, job: JobId) -> Option<u64> {
        let now = self.meta.log_time;
        let started = self.jobs.get(&job).and_then(|row| row.started_at)?;
        let run_ms = now.since_ms(started);
        let spec = self.specs.get(&job).expect("a job has a spec").clone();
        for level in HistoryLevel::ALL {
            let key = HistoryKey::of(level, &spec);
            let observed = self.history.change(&key, |row, ()| {
                let last = row.last;
                row.observe(run_ms, now);
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
                    row.observe(run_ms, now);
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
        Some(run_ms)
    }
}
