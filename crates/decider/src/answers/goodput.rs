//! What checkpoints are worth: how often to save, and how much of its time a job will make use of.
//!
//! With failures at random, one in `mttf_ms` on average, of a job that stands still for `save_ms` at each checkpoint, is
//! back `restart_ms` after a failure and saves every `interval_ms`, this part of the time is work that is kept:
//!
//! ```text
//! interval / (mttf · e^(restart/mttf) · (e^((interval+save)/mttf) − 1))
//! ```
//!
//! (Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006); it is largest near
//! √(2 · save · mttf) (Young, 1974). In whole numbers with 32 binary digits behind the point: the same everywhere.

use muster_state::State;
use muster_types::{JobId, LogTime};

use crate::rules::faults::FAULT_WINDOW_MS;

/// Failures that are taken for granted in [`PRIOR_NODE_DAYS`]: what large fleets have published.
const PRIOR_FAILURES_MILLI: u64 = 6_500;
/// Node-days that the above stands for; it weighs the less, the more was seen here.
const PRIOR_NODE_DAYS: u64 = 1_000;

const ONE: u128 = 1 << 32;
/// Euler's number.
const E: u128 = 11_674_931_555;

/// What is expected of a job that saves its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointAdvice {
    /// Nodes of the gang.
    pub nodes: u64,
    /// Mean time from one failure of any of them to the next.
    pub mttf_ms: u64,
    /// How long the work stands still while it is saved.
    pub save_ms: u64,
    /// From a failure to work again: detection, and a restore that takes as long as a save.
    pub restart_ms: u64,
    /// As the job says; none when it does not.
    pub interval_ms: Option<u64>,
    /// Part of the time that is work which is kept, in thousandths, at that interval.
    pub ettr_milli: Option<u32>,
    /// The interval that loses least.
    pub advised_interval_ms: u64,
    /// The same part at that interval.
    pub advised_ettr_milli: u32,
}

/// What is expected of a job, when it says how long it takes to save its work.
#[must_use]
pub fn checkpoint_advice(state: &State, job: JobId, now: LogTime) -> Option<CheckpointAdvice> {
    let rules = &state.contract(job)?.checkpoint;
    let save_ms = rules.save_ms?;
    let row = state.job(job)?;
    let nodes = match &row.placement {
        Some(placement) => placement.slots.chunk_by(|a, b| a.node == b.node).count() as u64,
        None => u64::from(state.spec(job)?.worker_count()),
    };
    let mttf_ms = fleet_mttf_ms(state, now) / nodes.max(1);
    let parameters = state.parameters();
    let restart_ms =
        save_ms.saturating_add(parameters.lease_ttl_ms).saturating_add(parameters.lease_margin_ms);
    let advised_interval_ms = young_ms(save_ms, mttf_ms);
    let ettr = |interval_ms| ettr_milli(mttf_ms, save_ms, restart_ms, interval_ms);
    Some(CheckpointAdvice {
        nodes,
        mttf_ms,
        save_ms,
        restart_ms,
        interval_ms: rules.interval_ms,
        ettr_milli: rules.interval_ms.map(ettr),
        advised_interval_ms,
        advised_ettr_milli: ettr(advised_interval_ms),
    })
}

/// Mean time between failures of one node: what others have seen, and what was seen here in the last day.
fn fleet_mttf_ms(state: &State, now: LogTime) -> u64 {
    let since = now.minus_ms(FAULT_WINDOW_MS);
    let seen =
        state.node_faults().flat_map(|(_, times)| times.iter()).filter(|at| **at >= since).count() as u64;
    let failures_milli = PRIOR_FAILURES_MILLI + seen * 1_000;
    let node_days = PRIOR_NODE_DAYS + state.nodes().len() as u64;
    node_days.saturating_mul(FAULT_WINDOW_MS).saturating_mul(1_000) / failures_milli
}

/// The interval that loses least, to first order; at least as long as a save.
#[must_use]
pub fn young_ms(save_ms: u64, mttf_ms: u64) -> u64 {
    let square = 2 * u128::from(save_ms) * u128::from(mttf_ms);
    u64::try_from(square.isqrt()).unwrap_or(u64::MAX).max(save_ms)
}

/// Part of the time that is work which is kept, in thousandths, rounded down.
#[must_use]
pub fn ettr_milli(mttf_ms: u64, save_ms: u64, restart_ms: u64, interval_ms: u64) -> u32 {
    let mttf = u128::from(mttf_ms.max(1));
    let part = || -> Option<u128> {
        let restart = exp(u128::from(restart_ms) * ONE / mttf)?;
        let cycle = exp((u128::from(interval_ms) + u128::from(save_ms)) * ONE / mttf)? - ONE;
        let lost = (mttf.checked_mul(restart)? / ONE).checked_mul(cycle)?;
        // A cycle too short to be told from none loses nothing that could be counted.
        (u128::from(interval_ms) * ONE * 1_000).checked_div(lost)
    };
    part().and_then(|milli| u32::try_from(milli).ok()).map_or(0, |milli| milli.min(1_000))
}

/// e to the power of a number with 32 binary digits behind the point; none when nobody could tell it from infinity.
fn exp(power: u128) -> Option<u128> {
    let (whole, rest) = (power / ONE, power % ONE);
    if whole > 30 {
        return None;
    }
    let (mut sum, mut term) = (ONE, ONE);
    for n in 1..=16 {
        term = term * rest / ONE / n;
        sum += term;
    }
    for _ in 0..whole {
        sum = sum.checked_mul(E)? / ONE;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::{ettr_milli, young_ms};

    const MINUTE: u64 = 60_000;

    #[test]
    fn the_closed_form_agrees_with_simulated_values() {
        // Hours between failures, minutes to save, to restart and between checkpoints; thousandths, simulated.
        let table = [
            (28_440_000, 1, 5, 1_848_000, 927),
            (28_440_000, 1, 5, 60 * MINUTE, 912),
            (6_480_000, 1, 5, 882_000, 831),
            (11_124_000, 1, 10, 1_158_000, 852),
            (86_400_000, 2, 15, 4_554_000, 939),
            (810_000, 1, 5, 312_000, 457),
        ];
        for (mttf_ms, save, restart, interval_ms, simulated) in table {
            let ettr = ettr_milli(mttf_ms, save * MINUTE, restart * MINUTE, interval_ms);
            assert!(ettr.abs_diff(simulated) <= 2, "{mttf_ms}: {ettr} and {simulated}");
        }
    }

    #[test]
    fn the_advised_interval_is_near_the_best() {
        for (mttf_ms, save_ms) in [(28_440_000, MINUTE), (6_480_000, MINUTE), (86_400_000, 2 * MINUTE)] {
            let advised = young_ms(save_ms, mttf_ms);
            let at = |interval_ms| ettr_milli(mttf_ms, save_ms, 5 * MINUTE, interval_ms);
            let best = (1..200).map(|part| at(advised * part / 50)).max().unwrap();
            assert!(at(advised) + 2 >= best, "{} and {best}", at(advised));
        }
        assert_eq!(young_ms(MINUTE, 28_440_000) / 6_000, 307);
    }

    #[test]
    fn extremes_are_numbers() {
        for mttf_ms in [0, 1, 1_000, u64::MAX] {
            for other_ms in [0, 1, 600_000, u64::MAX] {
                for interval_ms in [0, 1, 600_000, u64::MAX] {
                    assert!(ettr_milli(mttf_ms, other_ms, other_ms, interval_ms) <= 1_000);
                }
            }
        }
    }
}
