//! Numbers as reports show them.

use std::time::Duration;

use serde::Serialize;

/// How long something took many times over, in seconds.
///
/// A percentile is the nearest rank: of `n` values in ascending order the p-th percentile is the one at
/// place ⌈p·n/100⌉, counted from 1. It is always a value that was there, never one between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// How many values there are.
    pub count: u64,
    /// Their mean.
    pub avg_s: f64,
    /// Half of them are at most this.
    pub p50_s: f64,
    /// Nine in ten.
    pub p90_s: f64,
    /// Ninety-nine in a hundred.
    pub p99_s: f64,
    /// All of them.
    pub max_s: f64,
}

impl Quantiles {
    /// Of milliseconds in ascending order; all zero when there are none.
    pub(crate) fn of(sorted_ms: &[u64]) -> Quantiles {
        let total: u128 = sorted_ms.iter().map(|ms| u128::from(*ms)).sum();
        let count = sorted_ms.len() as u64;
        let at = |percent| ms_as_s(nearest_rank(sorted_ms, percent));
        Quantiles {
            count,
            avg_s: if count == 0 { 0.0 } else { round(total as f64 / count as f64 / 1_000.0, 1_000.0) },
            p50_s: at(50),
            p90_s: at(90),
            p99_s: at(99),
            max_s: at(100),
        }
    }
}

/// The value at place ⌈percent·n/100⌉; zero when there is none.
pub(crate) fn nearest_rank(sorted: &[u64], percent: u64) -> u64 {
    let rank = (percent as usize * sorted.len()).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

pub(crate) fn ms_as_s(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

pub(crate) fn seconds(time: Duration) -> f64 {
    round(time.as_secs_f64(), 1_000.0)
}

/// A part in percent, to the ten-thousandth.
pub(crate) fn percent(part: u128, whole: u128) -> f64 {
    if whole == 0 { 0.0 } else { round(100.0 * part as f64 / whole as f64, 10_000.0) }
}

/// A part of one, to the millionth.
pub(crate) fn share(part: u128, whole: u128) -> f64 {
    if whole == 0 { 0.0 } else { round(part as f64 / whole as f64, 1_000_000.0) }
}

/// Milli-devices times milliseconds as device-hours, to the thousandth.
pub(crate) fn device_hours(milli_ms: u128) -> f64 {
    round(milli_ms as f64 / 3_600_000.0 / 1_000.0, 1_000.0)
}

fn round(value: f64, scale: f64) -> f64 {
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_there() {
        let values: Vec<u64> = (1..=10).map(|n| n * 1_000).collect();
        let found = Quantiles::of(&values);
        assert_eq!((found.avg_s, found.p50_s, found.p90_s), (5.5, 5.0, 9.0));
        assert_eq!((found.p99_s, found.max_s, found.count), (10.0, 10.0, 10));
        assert_eq!(Quantiles::of(&[]), Quantiles::default());
        assert_eq!(nearest_rank(&[7], 1), 7);
        assert_eq!(nearest_rank(&[1, 2, 3, 4], 50), 2);
    }
}
