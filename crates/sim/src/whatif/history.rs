//! How long the jobs of a log ran.

use muster_types::LogTime;

/// Attempts of one job that ended by themselves, at most; the last one stands for those behind it.
const RUNS_MAX: usize = 64;

/// An attempt that ends by itself: what it takes from its placement on, saved work of attempts before it included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Milliseconds; none for one that only the scheduler ends.
    pub(super) need_ms: Option<u64>,
    /// The code that its workers end with.
    pub(super) code: i32,
    /// Whether the log does not contain its end.
    pub(super) is_estimated: bool,
}

/// What the log says of the runs of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    /// In their order.
    pub(super) runs: Vec<Run>,
    /// When the present attempt was placed.
    placed: Option<LogTime>,
    /// Saved work that is in a run before already.
    counted_ms: u64,
    /// How often work was saved.
    commits: u64,
    /// Whether the scheduler ended the present attempt for its limit.
    is_cut: bool,
}

impl History {
    /// The job has its devices.
    pub(super) fn placed(&mut self, at: LogTime) {
        (self.placed, self.is_cut) = (Some(at), false);
    }

    /// Its work was saved.
    pub(super) fn saved(&mut self) {
        self.commits += 1;
    }

    /// The scheduler ends the attempt, because it ran for its limit.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
    }

    /// The attempt was stopped by others: how long it would have run is not known from it.
    pub(super) fn stopped(&mut self) {
        self.placed = None;
    }

    /// The attempt ended by itself. `saved_ms` is the work of attempts before that it went on from, `left_ms` what the next one
    /// goes on from.
    pub(super) fn ended(&mut self, at: LogTime, code: i32, saved_ms: u64, left_ms: u64) {
        let Some(need_ms) = self.taken(at, saved_ms) else { return };
        let need_ms = (!self.is_cut).then_some(need_ms);
        self.push(Run { need_ms, code, is_estimated: false });
        self.counted_ms = left_ms;
    }

    /// The log ends, or somebody ended the attempt, before it did so itself.
    pub(super) fn unfinished(&mut self, at: LogTime, saved_ms: u64, expected_ms: u64) {
        let Some(taken_ms) = self.taken(at, saved_ms) else { return };
        self.push(Run { need_ms: Some(taken_ms.max(expected_ms)), code: 0, is_estimated: true });
    }

    /// What the present attempt has taken; none where there is none. It is over then.
    fn taken(&mut self, at: LogTime, saved_ms: u64) -> Option<u64> {
        let placed = self.placed.take()?;
        Some(saved_ms.saturating_sub(self.counted_ms).saturating_add(at.since_ms(placed)))
    }

    fn push(&mut self, run: Run) {
        if self.runs.len() < RUNS_MAX {
            self.runs.push(run);
        }
    }

    /// How much work lies between two times that it was saved; none where it never was.
    pub(super) fn interval_ms(&self) -> Option<u64> {
        let all: u64 = self.runs.iter().filter_map(|run| run.need_ms).fold(0, u64::saturating_add);
        (self.commits > 0).then(|| (all / (self.commits + 1)).max(1))
    }
}
