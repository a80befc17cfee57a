//! Wall time, as the caller measures it.

use std::time::Duration;

/// Says how much time has passed since some moment, the same at every call. A replay asks it how long the
/// scheduler took, and for nothing else: virtual time comes from the trace.
pub type Clock<'a> = &'a dyn Fn() -> Duration;

/// A clock that stands still, for replays whose result must be the same to the byte.
#[must_use]
pub fn stopped() -> Duration {
    Duration::ZERO
}

/// The time spent between starts and stops.
pub(crate) struct Stopwatch<'a> {
    clock: Clock<'a>,
    total: Duration,
}

impl<'a> Stopwatch<'a> {
    pub(crate) fn new(clock: Clock<'a>) -> Stopwatch<'a> {
        Stopwatch { clock, total: Duration::ZERO }
    }

    /// Does something and counts the time it takes.
    pub(crate) fn around<T>(&mut self, act: impl FnOnce() -> T) -> T {
        let begin = (self.clock)();
        let result = act();
        self.total += (self.clock)().saturating_sub(begin);
        result
    }

    pub(crate) fn total(&self) -> Duration {
        self.total
    }
}

/// Things per second; zero when no time was measured.
pub(crate) fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { (count as f64 / time.as_secs_f64()).round() }
}
