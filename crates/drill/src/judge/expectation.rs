//! What a scenario expects beyond what always holds.

use std::collections::BTreeSet;

use super::outage::{Figures, Kind};
use super::replayed::LogSummary;
use super::{Checked, Findings, Rule};
use crate::history::{History, Operation, Outcome};
use crate::run::{Run, Runs};
use crate::scenario::{Expectations, Leadership, MeasuredFrom, RecoveryTime};

/// An answer that was given before a majority was lost may arrive this much later.
const IN_FLIGHT_US: u64 = 500_000;
/// Submissions that a median is told from.
const SETTLED_MIN: u64 = 5;

/// What a run is held against its expectations with.
#[derive(Clone, Copy)]
pub(super) struct Measured<'a> {
    pub(super) expect: &'a Expectations,
    pub(super) run: &'a Run,
    pub(super) history: &'a History,
    /// Empty where there was no log.
    pub(super) told: &'a LogSummary,
    pub(super) has_log: bool,
    pub(super) figures: &'a Figures,
}

/// Holds one run against the expectations. Medians over many runs are for the summary.
pub(super) fn check(measured: Measured<'_>, checked: &mut Checked, findings: &mut Findings) {
    let Measured { expect, run, history, told, has_log, figures } = measured;
    lost(expect, run, history, told, checked, findings);
    minority(run, history, checked, findings);
    again(expect.submission_again, Kind::Submission, Rule::SubmissionsLate, figures, checked, findings);
    again(
        expect.linearizable_read_again,
        Kind::LinearizableRead,
        Rule::ReadsLate,
        figures,
        checked,
        findings,
    );
    submissions(expect, run, figures, checked, findings);
    if let Some(bar_ms) = expect.reads_on_survivors_silence_ms {
        match (figures.survivors_silence_ms, figures.survivors_silence_replica) {
            (Some(ms), Some(replica)) => {
                checked.expectations += 1;
                if ms > bar_ms {
                    findings.say(Rule::SurvivorsSilent, || {
                        format!("reads on r{replica} were silent for {ms} ms; the bar is {bar_ms} ms")
                    });
                }
            }
            _ => unchecked(findings, "reads on survivors: not every replica that survived was asked"),
        }
    }
    if let Some(leadership) = expect.leadership {
        leaders(leadership, figures, run, checked, findings);
    }
    if has_log {
        gangs(expect, run, told, checked, findings);
    }
    warnings(expect, run, checked, findings);
    if let Some(bar_ms) = expect.replicas_equal_within_ms {
        replicas(bar_ms, run, history, told, checked, findings);
    }
}

fn unchecked(findings: &mut Findings, what: &str) {
    findings.say(Rule::NotChecked, || what.to_owned());
}

/// Acknowledged changes that the log does not have: none, or only those right before the fault.
fn lost(
    expect: &Expectations,
    run: &Run,
    history: &History,
    told: &LogSummary,
    checked: &mut Checked,
    findings: &mut Findings,
) {
    checked.expectations += 1;
    let allowed_us = expect.lost_at_most_ms.saturating_mul(1_000);
    let gone_us = majority_gone_us(run);
    for place in &told.lost {
        let operation = &history.operations[*place];
        let age_us = run.fault_us.saturating_sub(operation.completed_us);
        let before_loss = gone_us.is_some_and(|at_us| operation.completed_us < at_us + IN_FLIGHT_US);
        if before_loss && allowed_us > 0 && age_us <= allowed_us {
            continue;
        }
        findings.add(Rule::AcknowledgementLost, || {
            let since_ms = run.since_fault_ms(operation.completed_us);
            let text = match since_ms {
                ..0 => format!("acknowledged {} ms before the fault, and not in the log", -since_ms),
                _ => format!("acknowledged {since_ms} ms after the fault, and not in the log"),
            };
            (text, vec![super::evidence::shown(operation)])
        });
    }
}

/// When the last step before a recovery was done: from then on what is left is no majority. None without a recovery.
fn majority_gone_us(run: &Run) -> Option<u64> {
    let recovered_us = run.recovered_us?;
    let before = run.steps.iter().map(|step| step.at_us).filter(|at_us| *at_us < recovered_us);
    Some(before.max().unwrap_or(run.fault_us))
}

/// What is left without a majority acknowledges no change and answers no linearizable read.
fn minority(run: &Run, history: &History, checked: &mut Checked, findings: &mut Findings) {
    let Some((gone_us, recovered_us)) = majority_gone_us(run).zip(run.recovered_us) else { return };
    let meanwhile = gone_us.saturating_add(IN_FLIGHT_US)..recovered_us;
    let asked = |operation: &&Operation| meanwhile.contains(&operation.completed_us);
    let mut looked_at = 0;
    for operation in history.operations.iter().filter(asked) {
        // That there is no such job is an answer too, which only a majority can know.
        let denies = matches!(&operation.outcome, Outcome::Refused { code } if code == "JOB_NOT_FOUND");
        let needs_majority = !matches!(Kind::of(operation), Kind::AnyRead | Kind::BoundedRead);
        looked_at += 1;
        if needs_majority && (denies || operation.log_index().is_some()) {
            findings.add(Rule::MinorityDecided, || {
                let since_ms = run.since_fault_ms(operation.completed_us);
                let text = format!("answered {since_ms} ms after the fault, without a majority");
                (text, vec![super::evidence::shown(operation)])
            });
        }
    }
    match looked_at {
        0 => unchecked(findings, "the minority: nothing was asked of it before the recovery"),
        _ => checked.expectations += 1,
    }
}

fn again(
    again: Option<RecoveryTime>,
    kind: Kind,
    rule: Rule,
    figures: &Figures,
    checked: &mut Checked,
    findings: &mut Findings,
) {
    let Some(RecoveryTime { worst_ms, since, .. }) = again else { return };
    let measured = figures.again_ms(kind, since);
    let from = if since == MeasuredFrom::Heal { "the end of the fault" } else { "the fault" };
    match measured {
        Some(ms) => {
            checked.expectations += 1;
            if ms > worst_ms {
                let words = kind.words();
                findings.say(rule, || format!("{words} took {ms} ms from {from}; the bar is {worst_ms} ms"));
            }
        }
        None => unchecked(findings, &format!("{}: none was made behind {from}", kind.words())),
    }
}

impl Figures {
    /// Time to the next answer of a kind: the longest silence from the fault on, or from the end of the fault to the
    /// first answer behind it.
    #[must_use]
    pub fn again_ms(&self, kind: Kind, since: MeasuredFrom) -> Option<u64> {
        let figures = self.kinds.get(&kind)?;
        match since {
            MeasuredFrom::Fault => figures.silence_ms,
            MeasuredFrom::Heal => figures.after_heal_ms,
        }
    }
}

fn submissions(
    expect: &Expectations,
    run: &Run,
    figures: &Figures,
    checked: &mut Checked,
    findings: &mut Findings,
) {
    if let Some(bar_ms) = expect.acknowledged_within_ms {
        match figures.submission_worst_ms {
            Some(worst_ms) => {
                checked.expectations += 1;
                if figures.submissions_failed > 0 {
                    let failed = figures.submissions_failed;
                    findings.say(Rule::SubmissionFailed, || {
                        format!("{failed} submissions were not acknowledged")
                    });
                }
                if worst_ms > bar_ms {
                    findings.say(Rule::SubmissionFailed, || {
                        format!("a submission took {worst_ms} ms; the bar is {bar_ms} ms")
                    });
                }
            }
            None => unchecked(findings, "submissions: none was made behind the fault"),
        }
    }
    if let Some(settled) = expect.submissions_settle {
        let enough = run.fault_us.saturating_add(settled.within_ms * 1_000) < run.fault_end_us();
        let made = figures.kinds.get(&Kind::Submission).map_or(0, |kind| kind.during.answered);
        match figures.settled_p50_ms.filter(|_| enough && made >= SETTLED_MIN) {
            Some(p50_ms) => {
                checked.expectations += 1;
                if p50_ms > settled.p50_ms {
                    let (within_ms, bar_ms) = (settled.within_ms, settled.p50_ms);
                    findings.say(Rule::SubmissionsSlow, || {
                        format!(
                            "from {within_ms} ms behind the fault p50 is {p50_ms} ms; the bar is {bar_ms} ms"
                        )
                    });
                }
            }
            None => unchecked(findings, "submissions while the fault lasts: too few were answered"),
        }
    }
}

fn leaders(
    leadership: Leadership,
    figures: &Figures,
    run: &Run,
    checked: &mut Checked,
    findings: &mut Findings,
) {
    let Some(before) = figures.leaders.first().filter(|leader| leader.log_time_ms < run.fault_unix_ms) else {
        return unchecked(findings, "leadership: the log has none before the fault");
    };
    checked.expectations += 1;
    let end_ms = run.unix_ms(run.fault_end_us());
    let at_end = figures.leaders.iter().rev().find(|leader| leader.log_time_ms <= end_ms).unwrap_or(before);
    match leadership {
        Leadership::Moves if at_end.replica == before.replica => {
            let replica = before.replica;
            findings.say(Rule::Leadership, || format!("r{replica} still led at the end of the fault"));
        }
        Leadership::Stays if figures.leaders.len() > 1 => {
            let changes = figures.leaders.len() - 1;
            findings
                .say(Rule::Leadership, || format!("leadership changed {changes} time(s) and was to stay"));
        }
        _ => {}
    }
}

fn gangs(
    expect: &Expectations,
    run: &Run,
    told: &LogSummary,
    checked: &mut Checked,
    findings: &mut Findings,
) {
    let interruptions = &told.ledger.interruptions;
    if expect.gangs_untouched {
        if told.gangs_at_fault == 0 {
            unchecked(findings, "gangs: none ran when the fault began");
        } else {
            checked.expectations += 1;
        }
        for interruption in interruptions {
            findings.say(Rule::GangTouched, || {
                let (job, cause) = (interruption.job, &interruption.cause);
                format!("{job} was interrupted ({cause}) though nothing was done to its hosts")
            });
        }
    }
    let Some(bar_ms) = expect.gangs_elsewhere_after_lease_ms else { return };
    // The last renewal was before the fault, so that the lease had ended by then.
    let lease_end_ms = run.fault_unix_ms.saturating_add(run.lease_ttl_ms).saturating_add(run.lease_margin_ms);
    let mut looked_at = 0;
    for interruption in interruptions.iter().filter(|i| i.touched && !i.ended) {
        looked_at += 1;
        let late = match interruption.running_ms {
            Some(running_ms) if running_ms <= lease_end_ms.saturating_add(bar_ms) => continue,
            Some(running_ms) => {
                format!("ran again {} ms behind the end of its lease", running_ms - lease_end_ms)
            }
            None => "did not run again".to_owned(),
        };
        let job = interruption.job;
        findings.say(Rule::GangsLate, || format!("{job} {late}; the bar is {bar_ms} ms"));
    }
    match looked_at {
        0 => unchecked(findings, "gangs elsewhere: no gang on a touched host was interrupted"),
        _ => checked.expectations += 1,
    }
}

fn warnings(expect: &Expectations, run: &Run, checked: &mut Checked, findings: &mut Findings) {
    for code in &expect.warnings {
        checked.expectations += 1;
        let said = run.warnings.iter().any(|seen| seen.code == *code && seen.at_us >= run.fault_us);
        if !said {
            findings.say(Rule::WarningMissing, || format!("no replica said {code} behind the fault"));
        }
    }
}

/// Every replica that is still there has the log's state, as far as it was committed when the fault ended.
fn replicas(
    bar_ms: u64,
    run: &Run,
    history: &History,
    told: &LogSummary,
    checked: &mut Checked,
    findings: &mut Findings,
) {
    let end_us = run.fault_end_us();
    let shown = history.operations.iter().filter(|operation| operation.completed_us < end_us);
    let committed = shown.filter_map(|operation| operation.log_index()).map(|index| index.0);
    // Positions of a previous generation prove nothing.
    let target = committed.max().unwrap_or(0).min(told.recovered_index.unwrap_or(u64::MAX));
    let there = run.hosts.iter().filter(|host| !host.gone);
    let replicas: BTreeSet<u64> =
        there.filter_map(|host| if let Runs::Replica(id) = host.runs { Some(id) } else { None }).collect();
    if replicas.is_empty() {
        unchecked(findings, "states of replicas: no replica is named");
    }
    for replica in replicas {
        checked.expectations += 1;
        let equal = run.states.iter().enumerate().filter(|(place, seen)| {
            seen.replica == replica
                && seen.at_us >= end_us
                && seen.log_index >= target
                && told.states_equal.contains(place)
        });
        match equal.map(|(_, seen)| (seen.at_us - end_us).div_ceil(1_000)).min() {
            Some(ms) if ms <= bar_ms => {}
            Some(ms) => findings.say(Rule::ReplicasApart, || {
                format!("r{replica} had the log's state {ms} ms behind the end of the fault; the bar is {bar_ms} ms")
            }),
            None => findings.say(Rule::ReplicasApart, || {
                format!("r{replica} was not seen with the log's state (up to {target}) behind the end of the fault")
            }),
        }
    }
}
