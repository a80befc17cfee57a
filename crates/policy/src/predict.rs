//! How long jobs run, from the run times of jobs like them.
//!
//! Run times are known by bucket, half a doubling wide. What is known at one level is a list of hazards: of
//! the jobs that lived to see a bucket, how many ended in it. Jobs that still run count among those that
//! lived; without them a submission group would look as short as the shortest of its jobs, which end first.
//! Levels are blended from the general to the particular: the wider one's distribution counts like
//! [`TABLE_PRIOR`] or [`BURST_PRIOR`] observations of the narrower one, bucket by bucket (the posterior of a
//! beta-Stacy process: `h_b = (e_b + m p_b) / (r_b + m S_b)`, with `e` ended and `r` alive in bucket `b`, and
//! `p` and `S` the wider level's mass and survival).

use muster_state::{HistoryKey, HistoryLevel, OBSERVATION, Phase, RUN_BUCKETS, State, bucket_of};
use muster_types::{JobId, JobSpec, LogTime};

/// Observations of a narrower row of the history that a wider one is worth.
const TABLE_PRIOR: u64 = 4;
/// Observations of a submission group that the history is worth: its jobs are much more alike.
const BURST_PRIOR: u64 = 1;
/// Running jobs of a submission group that are looked at, those submitted first.
pub(crate) const RUNNING_MAX: usize = 256;

const BUCKETS: usize = RUN_BUCKETS as usize;
/// One, as a probability.
const ONE: u64 = 1 << 24;
/// One observation, as a count.
const COUNT: u64 = OBSERVATION as u64;
/// Counts are kept below, so that products stay within 64 bits.
const COUNT_MAX: u64 = COUNT << 16;
/// Nothing is known: any run time from one minute to one day, each bucket alike.
const UNKNOWN_MS: (u64, u64) = (60_000, 86_400_000);
/// `2^(k/4)` in units of 2^-30.
const QUARTER_ROOTS: [u64; 4] = [1_073_741_824, 1_276_901_417, 1_518_500_250, 1_805_811_301];

/// How long a job is expected to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// Probability by bucket, in units of 2^-24; the sum is one less what was rounded away.
    mass: [u64; BUCKETS],
}

impl Prediction {
    /// A time that this many thousandths of jobs like it do not exceed; linear interpolation in a bucket.
    #[must_use]
    pub fn quantile_ms(&self, milli: u64) -> u64 {
        let wanted = self.mass.iter().sum::<u64>() * milli / 1_000;
        let mut seen = 0u64;
        for (bucket, mass) in self.mass.iter().enumerate() {
            if seen + mass > wanted {
                let (from, to) = (quarters_ms(2 * bucket as u64), quarters_ms(2 * bucket as u64 + 2));
                // At most 2^35 times 2^24.
                return from + (to - from) * (wanted - seen) / mass;
            }
            seen += mass;
        }
        quarters_ms(2 * BUCKETS as u64)
    }

    /// The geometric mean, `2^E[log2 t]`: moves with everything that is learned, and a few very long jobs do
    /// not outweigh the rest.
    #[must_use]
    pub fn typical_ms(&self) -> u64 {
        let mass: u64 = self.mass.iter().sum::<u64>().max(1);
        let middles = self.mass.iter().enumerate();
        let sum: u64 = middles.map(|(bucket, mass)| mass * (2 * bucket as u64 + 1)).sum();
        let (quarters, rest) = (sum / mass, sum % mass);
        let (from, to) = (quarters_ms(quarters), quarters_ms(quarters + 1));
        from + (to - from) * rest / mass
    }
}

/// What is known at one level, in units of [`COUNT`].
struct Evidence {
    /// Ended in the bucket.
    ended: [u64; BUCKETS],
    /// Lived to leave the bucket, without being known to end later.
    outlived: [u64; BUCKETS],
}

impl Evidence {
    fn of(rows: &[(u8, u32)], unit: u64) -> Evidence {
        let mut ended = [0; BUCKETS];
        for (bucket, weight) in rows {
            ended[usize::from(*bucket).min(BUCKETS - 1)] += u64::from(*weight) * unit;
        }
        Evidence { ended, outlived: [0; BUCKETS] }
    }

    /// A job runs that is so old.
    fn still_runs(&mut self, age_ms: u64) {
        for count in &mut self.outlived[..usize::from(bucket_of(age_ms))] {
            *count += COUNT;
        }
    }
}

/// The distribution of a level from that of the wider one.
fn blend(wider: &mut [u64; BUCKETS], evidence: &Evidence, prior: u64) {
    let total: u64 = evidence.ended.iter().sum::<u64>() + evidence.outlived[0];
    if total == 0 {
        return;
    }
    let shift = (total / COUNT_MAX).checked_ilog2().map_or(0, |bits| bits + 1);
    let mut alive_ended: u64 = evidence.ended.iter().sum();
    let mut wider_survival: u64 = wider.iter().sum();
    let mut survival = ONE;
    let mut last = 0;
    for (bucket, mass) in wider.iter_mut().enumerate() {
        let alive = alive_ended + evidence.outlived[bucket];
        if alive > 0 {
            last = bucket;
        }
        // A count has 10 bits behind the point, a probability 24: both are brought to 20.
        let counted = |count: u64| (count >> shift) << 10;
        let hazard_of = counted(evidence.ended[bucket]) + ((prior * *mass) >> 4);
        let hazard_to = counted(alive) + ((prior * wider_survival) >> 4);
        wider_survival -= *mass;
        alive_ended -= evidence.ended[bucket];
        // At most 2^24 times 2^37.
        *mass = survival.min(survival * hazard_of / hazard_to.max(1));
        survival -= *mass;
    }
    // It has outlived everything that is known: another doubling.
    wider[(last + 2).min(BUCKETS - 1)] += survival;
}

/// What is expected of a job at `now`, as a member of a submission group if it is one.
#[must_use]
pub fn predict(state: &State, spec: &JobSpec, group: Option<JobId>, now: LogTime) -> Prediction {
    let (first, last) = (usize::from(bucket_of(UNKNOWN_MS.0)), usize::from(bucket_of(UNKNOWN_MS.1)));
    let mut mass = [0; BUCKETS];
    mass[first..=last].fill(ONE / (last - first + 1) as u64);
    for level in HistoryLevel::ALL.into_iter().rev() {
        if let Some(row) = state.history().get(&HistoryKey::of(level, spec)) {
            blend(&mut mass, &Evidence::of(&row.ended, 1), TABLE_PRIOR);
        }
    }
    if let Some(group) = group {
        let ended = state.submission_group(group).map_or([].as_slice(), |row| row.ended.as_slice());
        let mut evidence = Evidence::of(ended, COUNT);
        for age_ms in ages_ms(state, group, now) {
            evidence.still_runs(age_ms);
        }
        blend(&mut mass, &evidence, BURST_PRIOR);
    }
    Prediction { mass }
}

/// How long the running jobs of a submission group have run.
pub(crate) fn ages_ms(state: &State, group: JobId, now: LogTime) -> impl Iterator<Item = u64> {
    let running = state.running_in(group).take(RUNNING_MAX);
    let running = running.filter_map(move |job| Some((state.job(job)?, state.times(job).ran_ms)));
    let runs = running.filter(|(row, _)| row.phase == Phase::Running);
    runs.filter_map(move |(row, ran_ms)| Some(now.since_ms(row.started_at?).saturating_add(ran_ms)))
}

/// `2^(quarters/4)` seconds in milliseconds.
fn quarters_ms(quarters: u64) -> u64 {
    let doublings = quarters / 4;
    let root = QUARTER_ROOTS[(quarters % 4) as usize];
    (((1_000u128 << doublings) * u128::from(root)) >> 30) as u64
}
