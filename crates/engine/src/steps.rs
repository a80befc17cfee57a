//! Which ranks of a running gang are slower than their peers, by the steps they tell: in the leader's memory,
//! and gone with it.
//!
//! The ranks of a synchronous run do the same work in a step, so one that takes much longer than the median is on a
//! slow host or device. Durations are smoothed over some eight steps; the first ones (compilation, caches) are not
//! counted.
//!
//! **Invariant:** nothing is decided by this. It is bounded by what runs, and what it says of a job is of one placement.

use muster_types::{FencingToken, JobId};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Jobs that are kept; beyond, those that spoke first go.
const JOBS_MAX: usize = 10_000;
/// Steps of a rank that are not counted, and those that are before it is judged.
const STEPS_SKIPPED: u32 = 2;
const STEPS_MIN: u32 = 8;
/// Ranks of a gang that must have told so many before any is judged.
const RANKS_MIN: usize = 3;
/// A rank is slow from 150 % of the median on, and not any more below 125 %: no flapping in between.
const SLOW_PERCENT: u64 = 150;
const FINE_PERCENT: u64 = 125;
/// A step counts for an eighth.
const SMOOTHING: u64 = 8;

/// A step that a worker has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepDone {
    /// Which job.
    pub job: JobId,
    /// Which placement.
    pub token: FencingToken,
    /// Which worker.
    pub rank: u32,
    /// Which step, from 1.
    pub number: u64,
    /// How long it took; 0 when it does not say, and then it is not judged.
    pub duration_ms: u64,
}

/// A rank that is slower than its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Straggler {
    /// Which rank.
    pub rank: u32,
    /// Its smoothed step.
    pub step_ms: u64,
    /// The median of the gang.
    pub median_ms: u64,
}

#[derive(Clone, Copy, Default)]
struct Rank {
    number: u64,
    told: u32,
    /// Microseconds, smoothed.
    step_us: u64,
    slow: bool,
}

struct Gang {
    token: FencingToken,
    since: u64,
    ranks: BTreeMap<u32, Rank>,
}

impl Gang {
    fn median_us(&self) -> Option<u64> {
        let mut steps: Vec<u64> =
            self.ranks.values().filter(|rank| rank.told >= STEPS_MIN).map(|rank| rank.step_us).collect();
        if steps.len() < RANKS_MIN {
            return None;
        }
        let middle = steps.len() / 2;
        Some(*steps.select_nth_unstable(middle).1)
    }
}

#[derive(Default)]
struct Board {
    gangs: BTreeMap<JobId, Gang>,
    so_far: u64,
}

/// The steps of everything that runs.
#[derive(Default)]
pub(crate) struct Steps {
    inner: Mutex<Board>,
}

/// A rank became slow, or is not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Slow(Straggler),
    Fine,
}

impl Steps {
    fn lock(&self) -> MutexGuard<'_, Board> {
        // Its rows are replaced whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a step of a rank that runs; what it changes in the judgement of that rank.
    pub(crate) fn done(&self, step: StepDone) -> Option<Turn> {
        let mut board = self.lock();
        board.so_far += 1;
        let since = board.so_far;
        if !board.gangs.contains_key(&step.job) && board.gangs.len() >= JOBS_MAX {
            let oldest = board.gangs.iter().min_by_key(|(_, gang)| gang.since).map(|(job, _)| *job);
            oldest.map(|job| board.gangs.remove(&job));
        }
        let fresh = || Gang { token: step.token, since, ranks: BTreeMap::new() };
        let gang = board.gangs.entry(step.job).or_insert_with(fresh);
        if gang.token < step.token {
            *gang = fresh();
        } else if gang.token > step.token {
            return None;
        }
        let rank = gang.ranks.entry(step.rank).or_default();
        // Said twice, or late.
        if step.number <= rank.number || step.duration_ms == 0 {
            return None;
        }
        rank.number = step.number;
        rank.told = rank.told.saturating_add(1);
        let took = step.duration_ms.saturating_mul(1_000);
        rank.step_us = match rank.told {
            ..=STEPS_SKIPPED => took,
            _ => (rank.step_us.saturating_mul(SMOOTHING - 1).saturating_add(took)) / SMOOTHING,
        };
        let (told, step_us, was) = (rank.told, rank.step_us, rank.slow);
        let median = gang.median_us().filter(|_| told >= STEPS_MIN)?;
        let share = step_us.saturating_mul(100) / median.max(1);
        let slow = if was { share >= FINE_PERCENT } else { share >= SLOW_PERCENT };
        if slow == was {
            return None;
        }
        gang.ranks.entry(step.rank).or_default().slow = slow;
        let straggler = Straggler { rank: step.rank, step_ms: step_us / 1_000, median_ms: median / 1_000 };
        Some(if slow { Turn::Slow(straggler) } else { Turn::Fine })
    }

    /// The slow ranks of a placement, in rank order.
    pub(crate) fn stragglers(&self, job: JobId, token: FencingToken) -> Vec<Straggler> {
        let board = self.lock();
        let Some(gang) = board.gangs.get(&job).filter(|gang| gang.token == token) else { return Vec::new() };
        let Some(median) = gang.median_us() else { return Vec::new() };
        let slow = gang.ranks.iter().filter(|(_, rank)| rank.slow);
        slow.map(|(number, rank)| Straggler {
            rank: *number,
            step_ms: rank.step_us / 1_000,
            median_ms: median / 1_000,
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::LogIndex;

    fn token(index: u64) -> FencingToken {
        FencingToken { generation: 1, log_index: LogIndex(index) }
    }

    fn told(steps: &Steps, rank: u32, number: u64, duration_ms: u64) -> Option<Turn> {
        steps.done(StepDone { job: JobId(1), token: token(7), rank, number, duration_ms })
    }

    /// So many steps of four ranks, the last of which takes as long as said.
    fn run(steps: &Steps, numbers: std::ops::Range<u64>, last_ms: u64) -> Vec<(u64, Turn)> {
        let mut turns = Vec::new();
        for number in numbers {
            for rank in 0..3 {
                assert_eq!(told(steps, rank, number, 100 + u64::from(rank)), None);
            }
            turns.extend(told(steps, 3, number, last_ms).map(|turn| (number, turn)));
        }
        turns
    }

    #[test]
    fn a_slow_rank_is_named_once_and_taken_back_once() {
        let steps = Steps::default();
        assert_eq!(run(&steps, 1..20, 110), []);
        let slow = run(&steps, 20..60, 200);
        assert_eq!(slow.len(), 1, "{slow:?}");
        let found = steps.stragglers(JobId(1), token(7));
        assert_eq!((found.len(), found[0].rank, found[0].median_ms), (1, 3, 102));
        assert!(found[0].step_ms > 190, "{found:?}");
        let fine = run(&steps, 60..100, 100);
        assert!(matches!(fine.as_slice(), [(_, Turn::Fine)]), "{fine:?}");
        assert_eq!(steps.stragglers(JobId(1), token(7)), []);
    }

    #[test]
    fn the_first_steps_and_small_gangs_are_not_judged() {
        let steps = Steps::default();
        // Compiling: twenty times as long, twice.
        for number in 1..=2 {
            for rank in 0..4 {
                told(&steps, rank, number, if rank == 3 { 20_000 } else { 100 });
            }
        }
        let judged = run(&steps, 3..9, 100);
        assert_eq!(judged.iter().filter(|(number, _)| *number < u64::from(STEPS_MIN)).count(), 0);
        let pair = Steps::default();
        for number in 1..40 {
            assert_eq!(told(&pair, 0, number, 100), None);
            assert_eq!(told(&pair, 1, number, 1_000), None);
        }
    }

    #[test]
    fn another_placement_begins_anew_and_an_older_one_is_not_heard() {
        let steps = Steps::default();
        run(&steps, 1..40, 300);
        assert_eq!(steps.stragglers(JobId(1), token(7)).len(), 1);
        let newer = StepDone { job: JobId(1), token: token(9), rank: 0, number: 1, duration_ms: 5 };
        assert_eq!(steps.done(newer), None);
        assert_eq!(
            (steps.stragglers(JobId(1), token(9)).len(), steps.stragglers(JobId(1), token(7)).len()),
            (0, 0)
        );
        assert_eq!(told(&steps, 3, 41, 300), None);
    }
}
