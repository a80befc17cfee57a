//! How fast jobs did their steps, as their checkpoints state it.
//!
//! A checkpoint may state the step that the work is saved up to. Between two of them of one attempt lie some steps and some
//! time: a span. What a step of a job takes at best is what it took in the fastest tenth of its steps.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_journal::Decision;
use muster_state::{Applied, State};
use muster_types::{FencingToken, JobId, LogTime};

use crate::calendar::Window;

/// Spans of one job that are kept apart; beyond it neighbours become one.
const SPANS_MAX: usize = 512;
/// A job with fewer spans has nothing that its speed could be compared with.
const SPANS_MIN: usize = 4;

/// What is known of the steps of one job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSums {
    /// Steps between checkpoints.
    pub steps: u64,
    /// How long they took, in milliseconds.
    pub actual_ms: u64,
    /// How long they would have taken at the speed of the fastest tenth of them; never more than they took.
    pub ideal_ms: u64,
}

/// Steps between two checkpoints of an attempt, and the time between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    steps: u64,
    ms: u64,
}

impl Span {
    fn plus(self, other: Span) -> Span {
        Span { steps: self.steps.saturating_add(other.steps), ms: self.ms.saturating_add(other.ms) }
    }

    /// Whether its steps took less time than those of another one: a product instead of a quotient, so it is exact.
    fn compare(self, other: Span) -> core::cmp::Ordering {
        let product = |ms: u64, steps: u64| u128::from(ms) * u128::from(steps);
        product(self.ms, other.steps).cmp(&product(other.ms, self.steps)).then(self.steps.cmp(&other.steps))
    }
}

#[derive(Clone, Debug, Default)]
struct Progress {
    /// The last checkpoint with a step: whose, which step, and when.
    last: Option<(FencingToken, u64, LogTime)>,
    spans: Vec<Span>,
}

impl Progress {
    fn saved(&mut self, token: FencingToken, step: u64, at: LogTime, window: Window) {
        let before = self.last.replace((token, step, at));
        let Some((_, from, since)) = before.filter(|(of, from, _)| *of == token && *from < step) else {
            return;
        };
        // One that is cut by the window has an unknown number of steps in it.
        if window.clip(since, at) != (since, at) || since >= at {
            return;
        }
        if self.spans.len() >= SPANS_MAX {
            self.spans =
                self.spans.chunks(2).filter_map(|pair| pair.iter().copied().reduce(Span::plus)).collect();
        }
        self.spans.push(Span { steps: step - from, ms: at.since_ms(since) });
    }

    fn sums(&self) -> Option<StepSums> {
        if self.spans.len() < SPANS_MIN {
            return None;
        }
        let all = self.spans.iter().copied().reduce(Span::plus)?;
        let mut sorted = self.spans.clone();
        sorted.sort_unstable_by(|a, b| a.compare(*b));
        let rank = u128::from(all.steps).div_ceil(10);
        let mut passed = 0u128;
        let best = sorted.into_iter().find(|span| {
            passed += u128::from(span.steps);
            passed >= rank
        })?;
        let ideal = u128::from(all.steps) * u128::from(best.ms) / u128::from(best.steps.max(1));
        let ideal_ms = u64::try_from(ideal).unwrap_or(u64::MAX).min(all.ms);
        Some(StepSums { steps: all.steps, actual_ms: all.ms, ideal_ms })
    }
}

/// Follows the checkpoints of a log. Memory is bounded by the running jobs, and a sum for each job that is over.
#[derive(Clone, Debug, Default)]
pub struct StepTimes {
    window: Window,
    running: BTreeMap<JobId, Progress>,
    ended: BTreeMap<JobId, StepSums>,
    /// The record that is being applied.
    next: Option<Record>,
}

#[derive(Clone, Copy, Debug)]
enum Record {
    Saved(JobId, FencingToken, u64),
    Ended(JobId),
}

impl StepTimes {
    /// A part of a log begins, of which this window counts. No span goes from one part into another.
    pub fn begin(&mut self, window: Window) {
        (self.window, self.next) = (window, None);
        self.running.values_mut().for_each(|job| job.last = None);
    }

    /// Looks at a decision before it is applied.
    pub fn before(&mut self, decision: &Decision) {
        self.next = match decision {
            Decision::CheckpointCommitted { job, token, step: Some(step) } => {
                Some(Record::Saved(*job, *token, *step))
            }
            Decision::JobFinished { job, .. } => Some(Record::Ended(*job)),
            _ => None,
        };
    }

    /// Takes it when it has been applied.
    pub fn after(&mut self, state: &State, applied: &Applied) {
        let record = self.next.take().filter(|_| applied.log_index.is_some() && applied.rejection.is_none());
        match record {
            Some(Record::Saved(job, token, step)) => {
                let progress = self.running.entry(job).or_default();
                progress.saved(token, step, state.log_time(), self.window);
            }
            Some(Record::Ended(job)) => {
                let sums = self.running.remove(&job).and_then(|progress| progress.sums());
                self.ended.extend(sums.map(|sums| (job, sums)));
            }
            None => {}
        }
    }

    /// What is known of each job whose checkpoints state enough steps.
    #[must_use]
    pub fn sums(&self) -> BTreeMap<JobId, StepSums> {
        let running = self.running.iter().filter_map(|(job, progress)| Some((*job, progress.sums()?)));
        self.ended.iter().map(|(job, sums)| (*job, *sums)).chain(running).collect()
    }
}

#[cfg(test)]
mod tests {
    use muster_types::LogIndex;

    use super::*;

    fn token(index: u64) -> FencingToken {
        FencingToken { generation: 1, log_index: LogIndex(index) }
    }

    /// Checkpoints of one attempt: the step, and the second.
    fn progress(saved: &[(u64, u64)]) -> Progress {
        let mut progress = Progress::default();
        for (step, second) in saved {
            progress.saved(token(1), *step, LogTime(second * 1_000), Window::default());
        }
        progress
    }

    #[test]
    fn the_ideal_is_the_speed_of_the_fastest_tenth() {
        // Ten steps took 10 s four times, and 20 s once.
        let found = progress(&[(10, 10), (20, 20), (30, 30), (40, 50), (50, 60), (60, 70)]).sums().unwrap();
        assert_eq!(found, StepSums { steps: 50, actual_ms: 60_000, ideal_ms: 50_000 });
        let even = progress(&[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]).sums().unwrap();
        assert_eq!(even, StepSums { steps: 4, actual_ms: 4_000, ideal_ms: 4_000 });
    }

    #[test]
    fn too_little_says_nothing_and_a_step_back_begins_again() {
        assert_eq!(progress(&[(10, 10), (20, 20), (30, 30)]).sums(), None);
        let mut job = progress(&[(10, 10), (20, 20), (30, 30), (15, 40), (25, 50), (35, 60)]);
        let found = job.sums().unwrap();
        assert_eq!((found.steps, found.actual_ms), (40, 40_000));
        // Another attempt begins again as well.
        job.saved(token(2), 100, LogTime(100_000), Window::default());
        assert_eq!(job.sums().unwrap(), found);
    }

    #[test]
    fn a_span_that_the_window_cuts_does_not_count() {
        let window = Window { from: LogTime(15_000), until: Some(LogTime(60_000)) };
        let mut job = Progress::default();
        for second in 1..8 {
            job.saved(token(1), second, LogTime(second * 10_000), window);
        }
        assert_eq!(job.spans.len(), 4, "from 20 s to 60 s");
    }

    #[test]
    fn spans_beyond_the_bound_are_joined_and_nothing_is_lost() {
        let saved: Vec<(u64, u64)> = (0..4 * SPANS_MAX as u64).map(|step| (step, step * 2 + 1)).collect();
        let job = progress(&saved);
        assert!(job.spans.len() <= SPANS_MAX);
        let (found, last) = (job.sums().unwrap(), saved[saved.len() - 1]);
        assert_eq!((found.steps, found.actual_ms, found.ideal_ms), (last.0, last.0 * 2_000, last.0 * 2_000));
    }

    #[test]
    fn steps_of_any_size_do_not_overflow() {
        let mut job = Progress::default();
        for turn in 0..6u64 {
            job.saved(token(1), turn * (u64::MAX / 6), LogTime(turn * (u64::MAX / 6)), Window::default());
        }
        assert!(job.sums().is_some_and(|sums| sums.ideal_ms <= sums.actual_ms));
    }
}
