//! Latencies as percentiles, and reports as JSON together with the description of the machine.

use std::time::Duration;

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Longest latency that is told apart.
const LATENCY_MAX_US: u64 = 120_000_000;

/// Latencies, in microseconds, with three digits.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    /// None so far.
    ///
    /// # Errors
    /// Never, with these bounds.
    pub(crate) fn new() -> Result<Latencies> {
        Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).map(Latencies).context("making a histogram")
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record((latency.as_micros() as u64).clamp(1, LATENCY_MAX_US));
    }

    pub(crate) fn add(&mut self, others: &Latencies) {
        // Both have the same bounds, so nothing is out of range.
        let _ = self.0.add(&others.0);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency in milliseconds that this part of them does not exceed.
    pub(crate) fn ms(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1_000.0
    }

    pub(crate) fn max_ms(&self) -> f64 {
        self.0.max() as f64 / 1_000.0
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "count": self.count(),
            "p50_ms": self.ms(0.5),
            "p90_ms": self.ms(0.9),
            "p99_ms": self.ms(0.99),
            "p999_ms": self.ms(0.999),
            "max_ms": self.max_ms(),
        })
    }
}

/// Two digits after the point: more than any of these figures means.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// The middle one.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}
