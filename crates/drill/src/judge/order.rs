//! Real time: what one client was answered binds what others see later.
//!
//! Every answer shows the position of the log that it is complete up to, so no search over orders is needed: one pass
//! over all answers by time, with the greatest position shown so far, decides every rule in n log n.
//!
//! *Shown before t* is the greatest position in any answer, to a read or a write, that was complete before `t`: it was
//! committed by then. The rules:
//!
//! - a linearizable read that began at `t` is complete up to what was shown before `t`;
//! - a read bounded by `d` that began at `t`: up to what was shown before `t - d`. The cluster counts `d` from the
//!   arrival of the request, which is not before `t`, by monotonic clocks; with clocks that run up to `p` thousandths
//!   wrong, `d` is taken `p` thousandths longer;
//! - an answer that calls itself at most `s` old was made behind `t`: the same with `s`;
//! - a change that was asked for at `t` for the first time stands in the log behind all that was shown before `t`;
//! - a read that asked for a position is complete up to it.
//!
//! All times are of the one clock of the history; nothing is taken from clocks of replicas.

use std::collections::HashMap;

use muster_types::RequestId;

use super::evidence::shown;
use super::{Checked, Findings, Rule};
use crate::history::{Call, Consistency, History, Operation, Outcome, Query};
use crate::run::Run;

/// A position that somebody was shown.
#[derive(Clone, Copy)]
struct ShownPosition {
    at_us: u64,
    log_index: u64,
    operation: usize,
}

/// What is to be held against what was shown before a time.
#[derive(Clone, Copy)]
struct Question {
    before_us: u64,
    operation: usize,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Linearizable,
    /// A linearizable read of a job that, as the answer was, is not there.
    Missing,
    Bounded,
    Staleness,
}

/// A job that a linearizable read did not find though it had been submitted before: right only if it was dropped.
pub(super) struct MissingJob {
    pub(super) job: muster_types::JobId,
    pub(super) operation: usize,
}

/// Holds all operations against the rules above. Gives the jobs that must have been dropped for all to be well.
pub(super) fn check(
    run: &Run,
    history: &History,
    checked: &mut Checked,
    findings: &mut Findings,
) -> Vec<MissingJob> {
    let operations = &history.operations;
    // Behind a recovery the log goes on from survivors: what was shown before binds nobody.
    let mut missing = Vec::new();
    let recovered = run.recovered_us.unwrap_or(0);
    let generations: &[(u64, u64)] = &[(0, recovered), (recovered, u64::MAX)];
    for (from_us, to_us) in generations.iter().copied().filter(|(from, to)| from < to) {
        let within =
            |operation: &Operation| operation.invoked_us >= from_us && operation.completed_us < to_us;
        let mut all_shown: Vec<ShownPosition> = Vec::new();
        for (place, operation) in operations.iter().enumerate().filter(|(_, operation)| within(operation)) {
            if let Some(log_index) = operation.log_index() {
                let at_us = operation.completed_us;
                all_shown.push(ShownPosition { at_us, log_index: log_index.0, operation: place });
            }
        }
        all_shown.sort_unstable_by_key(|shown| shown.at_us);
        let mut questions = questions(run, operations, within, checked);
        questions.sort_unstable_by_key(|question| question.before_us);
        let mut upcoming = all_shown.iter().peekable();
        let mut newest: Option<ShownPosition> = None;
        for question in questions {
            while let Some(next) = upcoming.next_if(|next| next.at_us < question.before_us) {
                if newest.is_none_or(|newest| next.log_index > newest.log_index) {
                    newest = Some(*next);
                }
            }
            if let Some(newest) = newest {
                answer(operations, question, newest, findings, &mut missing);
            }
        }
    }
    sessions(operations, checked, findings);
    missing
}

/// Everything that is to be held against something.
fn questions(
    run: &Run,
    operations: &[Operation],
    within: impl Fn(&Operation) -> bool,
    checked: &mut Checked,
) -> Vec<Question> {
    let mut questions = Vec::with_capacity(operations.len());
    let first_asked = first_asked(operations);
    let longer = |ms: u64| ms.saturating_mul(1_000 + u64::from(run.clock_drift_milli));
    for (place, operation) in operations.iter().enumerate().filter(|(_, operation)| within(operation)) {
        let mut ask = |before_us, kind| questions.push(Question { before_us, operation: place, kind });
        match (&operation.call, &operation.outcome) {
            (Call::Submit { request, .. } | Call::Cancel { request, .. }, Outcome::Acknowledged { .. }) => {
                // A repetition is answered with the record of the first time.
                ask(first_asked[request], Kind::Write);
                checked.order += 1;
            }
            (Call::Read { consistency, query, .. }, outcome) => {
                if let (Consistency::Linearizable, Outcome::Answered { .. }) = (consistency, outcome) {
                    ask(operation.invoked_us, Kind::Linearizable);
                    checked.linearizable_reads += 1;
                }
                if let (Consistency::Linearizable, Query::Job { .. }, Outcome::Refused { code }) =
                    (consistency, query, outcome)
                    && code == "JOB_NOT_FOUND"
                {
                    ask(operation.invoked_us, Kind::Missing);
                    checked.linearizable_reads += 1;
                }
                if let (Consistency::Bounded { max_staleness_ms }, Outcome::Answered { .. }) =
                    (consistency, outcome)
                {
                    ask(operation.invoked_us.saturating_sub(longer(*max_staleness_ms)), Kind::Bounded);
                    checked.bounded_reads += 1;
                }
                if let Outcome::Answered { staleness_ms: Some(staleness_ms), .. } = outcome {
                    ask(operation.invoked_us.saturating_sub(longer(*staleness_ms)), Kind::Staleness);
                    checked.staleness_told += 1;
                }
            }
            _ => {}
        }
    }
    questions
}

/// When each request was made for the first time, whatever came of it.
fn first_asked(operations: &[Operation]) -> HashMap<RequestId, u64> {
    let mut first = HashMap::new();
    for operation in operations {
        if let Some(request) = operation.request() {
            let known = first.entry(request).or_insert(operation.invoked_us);
            *known = operation.invoked_us.min(*known);
        }
    }
    first
}

fn answer(
    operations: &[Operation],
    question: Question,
    newest: ShownPosition,
    findings: &mut Findings,
    missing: &mut Vec<MissingJob>,
) {
    let operation = &operations[question.operation];
    if question.kind == Kind::Missing {
        if let Call::Read { query: Query::Job { job }, .. } = &operation.call
            && job.submitted_at().0 <= newest.log_index
        {
            missing.push(MissingJob { job: *job, operation: question.operation });
        }
        return;
    }
    let Some(own) = operation.log_index() else { return };
    let (own, before) = (own.0, newest.log_index);
    let (rule, words) = match question.kind {
        Kind::Write if own <= before => (
            Rule::OrderBroken,
            "a change stands in the log no later than what was shown before it was asked for",
        ),
        Kind::Linearizable if own < before => {
            (Rule::StaleLinearizableRead, "a linearizable read misses what was shown before it began")
        }
        Kind::Bounded if own < before => {
            (Rule::StaleBoundedRead, "a bounded read misses what was shown longer before than its bound")
        }
        Kind::Staleness if own < before => {
            (Rule::StalenessUntrue, "an answer misses what was shown longer before than it says it is old")
        }
        _ => return,
    };
    findings.add(rule, || {
        let text = format!("{words}: position {own}, and {before} had been shown");
        (text, vec![shown(operation), format!("shown before by {}", shown(&operations[newest.operation]))])
    });
}

fn sessions(operations: &[Operation], checked: &mut Checked, findings: &mut Findings) {
    for operation in operations {
        let Call::Read { min_log_index, .. } = &operation.call else { continue };
        let (Some(log_index), min_log_index @ 1..) = (operation.log_index(), *min_log_index) else {
            continue;
        };
        checked.session_reads += 1;
        if log_index.0 < min_log_index {
            findings.add(Rule::SessionWentBack, || {
                let text =
                    format!("position {log_index} was shown to a session that asked for {min_log_index}");
                (text, vec![shown(operation)])
            });
        }
    }
}
