//! Log time goes on.
//!
//! It is what run limits, waits before retries and windows are counted in. The product lets it go at half the pace
//! behind a leader whose clock was ahead, and never stands still; a third tolerates a clock whose rate is off. The
//! clock of the harness is the measure, so the rule holds whatever the clocks of replicas say: between a change that was
//! acknowledged and one that was asked for behind that, their records are as far apart as the two were, or a third of it.

use std::collections::BTreeMap;

use super::evidence::shown;
use super::log::LogRound;
use super::{Checked, Findings, Rule};
use crate::history::{History, Operation, Outcome};
use crate::run::Run;

/// Changes that are nearer to one another say little.
const APART_US: u64 = 4_000_000;
/// At least the time between them, divided by this, has to pass in the log.
const PACE: u64 = 3;
/// Records of one round have one time, and rounds have their own.
const SLACK_MS: u64 = 1_000;

/// When something was acknowledged or asked for, and the time of its record.
struct TimedOperation<'a> {
    at_us: u64,
    log_time_ms: u64,
    operation: &'a Operation,
}

/// Holds acknowledged changes against the times of their records.
pub(super) fn check(
    run: &Run,
    history: &History,
    rounds: &[LogRound],
    checked: &mut Checked,
    findings: &mut Findings,
) {
    // What cannot be read is reported where the log is replayed.
    let decoded = rounds.iter().filter_map(|round| round.round.decode().ok());
    let times: BTreeMap<u64, u64> = decoded.map(|round| (round.first_index.0, round.log_time.0)).collect();
    let time_of = |index: u64| times.range(..=index).next_back().map(|(_, time)| *time);
    let (mut asked, mut acknowledged) = (Vec::new(), Vec::new());
    // Positions of a previous generation were assigned again.
    let begins_us = run.recovered_us.unwrap_or(0);
    for operation in history.operations.iter().filter(|operation| operation.invoked_us >= begins_us) {
        let Outcome::Acknowledged { log_index, .. } = &operation.outcome else { continue };
        let Some(log_time_ms) = time_of(*log_index) else { continue };
        asked.push(TimedOperation { at_us: operation.invoked_us, log_time_ms, operation });
        acknowledged.push(TimedOperation { at_us: operation.completed_us, log_time_ms, operation });
    }
    asked.sort_by_key(|moment| moment.at_us);
    acknowledged.sort_by_key(|moment| moment.at_us);
    for later in &asked {
        let known = acknowledged.partition_point(|earlier| earlier.at_us + APART_US <= later.at_us);
        let Some(earlier) = known.checked_sub(1).map(|at| &acknowledged[at]) else { continue };
        checked.log_times += 1;
        let apart_ms = (later.at_us - earlier.at_us) / 1_000;
        let passed_ms = later.log_time_ms.saturating_sub(earlier.log_time_ms);
        if passed_ms + SLACK_MS >= apart_ms / PACE {
            continue;
        }
        findings.add(Rule::LogTimeStands, || {
            let text = format!("in {apart_ms} ms only {passed_ms} ms passed in the log");
            (text, vec![shown(earlier.operation), shown(later.operation)])
        });
    }
}
