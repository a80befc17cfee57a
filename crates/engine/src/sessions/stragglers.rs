//! Which ranks take longer for their steps than their gang: what workers say of their steps, in the leader's memory.
//!
//! Only a change is recorded in the log. A new leader knows nothing of it and learns it within some steps.

use muster_types::{FencingToken, JobId};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Steps of a rank that count.
const STEPS: usize = 8;
/// A rank is looked at once it has reported this many.
const STEPS_MIN: usize = 4;
/// Ranks that must have said something, so that there is a gang to compare with.
const RANKS_MIN: usize = 3;
/// A rank is slow from this on, in thousandths of the gang's median.
const SLOW_MILLI: u64 = 1_500;
/// And keeps up again below this.
const GOOD_MILLI: u64 = 1_200;
/// Looks in a row that a change is seen in before it is believed.
const LOOKS: u8 = 3;
/// Differences below this are noise, whatever their ratio.
const NOISE_MS: u64 = 5;
/// Gangs that are followed at a time.
const GANGS_MAX: usize = 4_096;

/// A rank has become slow, or is so no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) rank: u32,
    /// None when it keeps up again.
    pub(crate) slow_milli: Option<u32>,
}

#[derive(Default)]
struct Rank {
    last_step: u64,
    durations_ms: [u32; STEPS],
    count: usize,
    /// Looks in a row that speak for a change.
    looks: u8,
    is_slow: bool,
}

impl Rank {
    fn note(&mut self, step: u64, duration_ms: u64) -> bool {
        if step <= self.last_step {
            return false;
        }
        self.last_step = step;
        self.durations_ms[self.count % STEPS] = u32::try_from(duration_ms).unwrap_or(u32::MAX);
        self.count += 1;
        true
    }

    fn median_ms(&self) -> Option<u64> {
        let mut known: Vec<u32> = self.durations_ms[..self.count.min(STEPS)].to_vec();
        if known.len() < STEPS_MIN {
            return None;
        }
        known.sort_unstable();
        known.get(known.len() / 2).map(|ms| u64::from(*ms))
    }

    /// What a look at it changes.
    fn look(&mut self, own_ms: u64, gang_ms: u64) -> Option<Option<u32>> {
        let milli = own_ms.saturating_mul(1_000) / gang_ms.max(1);
        let other = if self.is_slow {
            milli < GOOD_MILLI
        } else {
            milli >= SLOW_MILLI && own_ms - gang_ms.min(own_ms) >= NOISE_MS
        };
        self.looks = if other { self.looks + 1 } else { 0 };
        if self.looks < LOOKS {
            return None;
        }
        self.looks = 0;
        self.is_slow = !self.is_slow;
        Some(self.is_slow.then(|| u32::try_from(milli).unwrap_or(u32::MAX)))
    }
}

struct Gang {
    token: FencingToken,
    ranks: BTreeMap<u32, Rank>,
    /// Steps that were reported since the last look.
    news: usize,
}

/// What is known of the gangs that run.
#[derive(Default)]
pub(crate) struct StragglerDetector {
    gangs: Mutex<BTreeMap<JobId, Gang>>,
}

impl StragglerDetector {
    /// A rank has done a step; the time is that of its work alone, without waiting for others. What changes by it.
    /// `runs` says whether a gang still runs under a token; those that do not are forgotten when another gang comes.
    pub(crate) fn note(
        &self,
        (job, token): (JobId, FencingToken),
        rank: u32,
        (step, duration_ms): (u64, u64),
        runs: impl Fn(JobId, FencingToken) -> bool,
    ) -> Vec<Change> {
        let mut gangs = self.gangs.lock();
        let is_known = gangs.get(&job).is_some_and(|gang| gang.token == token);
        if !is_known {
            gangs.retain(|job, gang| runs(*job, gang.token));
            if gangs.len() >= GANGS_MAX {
                return Vec::new();
            }
            gangs.insert(job, Gang { token, ranks: BTreeMap::new(), news: 0 });
        }
        let Some(gang) = gangs.get_mut(&job) else { return Vec::new() };
        if gang.ranks.entry(rank).or_default().note(step, duration_ms) {
            gang.news += 1;
        }
        // A look costs as much as the gang is large: one for every few steps of all.
        if gang.news < STEPS_MIN * gang.ranks.len() || gang.ranks.len() < RANKS_MIN {
            return Vec::new();
        }
        gang.news = 0;
        look(&mut gang.ranks)
    }

    /// The last step that a rank of this placement has reported; none where none has. Not every step is reported.
    pub(crate) fn last_step(&self, job: JobId, token: FencingToken) -> Option<u64> {
        let gangs = self.gangs.lock();
        let gang = gangs.get(&job).filter(|gang| gang.token == token)?;
        gang.ranks.values().map(|rank| rank.last_step).max()
    }

    /// The leadership has ended.
    pub(crate) fn forget(&self) {
        self.gangs.lock().clear();
    }
}

fn look(ranks: &mut BTreeMap<u32, Rank>) -> Vec<Change> {
    let mut medians: Vec<u64> = ranks.values().filter_map(Rank::median_ms).collect();
    if medians.len() < RANKS_MIN {
        return Vec::new();
    }
    medians.sort_unstable();
    // Of two in the middle the smaller: half of a gang that is slow is slow.
    let gang_ms = medians[(medians.len() - 1) / 2];
    let mut changes = Vec::new();
    for (rank, known) in ranks.iter_mut() {
        let Some(own_ms) = known.median_ms() else { continue };
        if let Some(slow_milli) = known.look(own_ms, gang_ms) {
            changes.push(Change { rank: *rank, slow_milli });
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::{Change, GANGS_MAX, StragglerDetector};
    use muster_types::{FencingToken, JobId, LogIndex};

    fn token(index: u64) -> FencingToken {
        FencingToken { generation: 1, log_index: LogIndex(index) }
    }

    /// All ranks do these steps, each in its own time.
    fn run(detector: &StragglerDetector, numbers: std::ops::Range<u64>, durations_ms: &[u64]) -> Vec<Change> {
        let mut changes = Vec::new();
        for number in numbers {
            for (rank, duration_ms) in durations_ms.iter().enumerate() {
                let said = (number, *duration_ms);
                changes.extend(detector.note((JobId(1), token(1)), rank as u32, said, |_, _| true));
            }
        }
        changes
    }

    #[test]
    fn a_rank_that_takes_much_longer_is_named_once_and_let_off_once() {
        let detector = StragglerDetector::default();
        assert_eq!(run(&detector, 1..50, &[100, 102, 98, 104]), []);
        let slow = run(&detector, 50..120, &[100, 102, 170, 104]);
        assert_eq!(slow.len(), 1, "{slow:?}");
        assert_eq!(slow[0].rank, 2);
        assert!((1_600..=1_750).contains(&slow[0].slow_milli.unwrap()), "{slow:?}");
        let good = run(&detector, 120..200, &[100, 102, 98, 104]);
        assert_eq!(good, [Change { rank: 2, slow_milli: None }]);
    }

    #[test]
    fn one_slow_step_noise_and_repeated_steps_say_nothing() {
        let detector = StragglerDetector::default();
        for round in 0..20u64 {
            let from = 1 + round * 20;
            assert_eq!(run(&detector, from..from + 1, &[100, 100, 900, 100]), []);
            assert_eq!(run(&detector, from + 1..from + 20, &[100, 100, 100, 100]), []);
        }
        let detector = StragglerDetector::default();
        assert_eq!(run(&detector, 1..100, &[2, 2, 4, 2]), [], "two milliseconds are noise");
        let detector = StragglerDetector::default();
        for _ in 0..100 {
            assert_eq!(run(&detector, 1..2, &[100, 100, 900, 100]), [], "it is one step, said again");
        }
    }

    #[test]
    fn two_ranks_have_no_median_to_be_slower_than() {
        assert_eq!(run(&StragglerDetector::default(), 1..200, &[100, 500]), []);
    }

    #[test]
    fn the_last_step_is_that_of_the_rank_that_is_furthest_in_this_placement() {
        let detector = StragglerDetector::default();
        assert_eq!(detector.last_step(JobId(1), token(1)), None);
        run(&detector, 1..8, &[100, 100]);
        detector.note((JobId(1), token(1)), 1, (9, 100), |_, _| true);
        assert_eq!(detector.last_step(JobId(1), token(1)), Some(9));
        assert_eq!(detector.last_step(JobId(1), token(2)), None, "another attempt");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let detector = StragglerDetector::default();
        for job in 0..2 * GANGS_MAX as u64 {
            assert_eq!(detector.note((JobId(job), token(job)), 0, (1, 1), |_, _| true), []);
        }
        assert_eq!(detector.gangs.lock().len(), GANGS_MAX);
        // Those that run no more are forgotten first.
        detector.note((JobId(0), token(9)), 0, (1, 1), |_, _| false);
        assert_eq!(detector.gangs.lock().len(), 1);
        detector.forget();
        assert!(detector.gangs.lock().is_empty());
    }
}
