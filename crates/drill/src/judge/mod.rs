//! What a drill proves: the history held against the log, against real time, and against what the scenario expects.
//!
//! **Invariant:** nothing counts as held that was not looked at: how much was looked at is part of the verdict, and
//! nothing looked at is a finding.
//! **Invariant:** the log is replayed once, from its beginning, through the guard and the fold of the replicas.

mod accounts;
mod books;
mod controls;
mod evidence;
mod expectation;
mod finding;
mod intervals;
mod leases;
mod ledger;
mod log;
mod order;
mod outage;
mod pace;
mod replayed;
mod watches;

use serde::{Deserialize, Serialize};

use crate::history::{Call, Consistency, History, Outcome};
use crate::run::Run;
use crate::scenario::{Expectations, Scenario};

pub use books::LogBooks;
pub use finding::{Breaches, Finding, Findings, Rule};
pub use intervals::{Interval, IntervalError, read_intervals};
pub use ledger::{Interruption, Ledger, Loss};
pub use log::{LogRound, rounds_of};
pub use outage::{Delays, Figures, Kind, KindFigures};

/// Everything that was seen of one run of one drill.
#[derive(Clone, Copy)]
pub struct Evidence<'a> {
    /// What was to be done and to hold.
    pub scenario: &'a Scenario,
    /// What was done.
    pub run: &'a Run,
    /// What clients wrote down.
    pub history: &'a History,
    /// All rounds from the founding of the cluster on, in the order of their application; none where the log cannot be
    /// had, as of a live cluster without an archive. Then nothing is judged that needs it, and that is a finding.
    pub log: Option<&'a [LogRound]>,
    /// What workers wrote down; none where workers write nothing.
    pub intervals: Option<&'a [Interval]>,
    /// What went wrong with the drill itself, one sentence each: a step without effect, a process that ended by
    /// itself, an error in a log. Each is a finding, so that `held` has one meaning wherever it is shown.
    pub troubles: &'a [String],
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Operations in the history.
    pub operations: u64,
    /// Records that were replayed.
    pub records: u64,
    /// Records whose accelerator time was charged, for the sums over all states to be held against the capacity.
    #[serde(default)]
    pub charged: u64,
    /// Acknowledged changes that were looked for in the log.
    pub acknowledgements: u64,
    /// Changes of which the client does not know what became.
    pub unknown: u64,
    /// Of them, those that are in the log.
    pub unknown_done: u64,
    /// Changes whose place in the log was held against real time.
    pub order: u64,
    /// Changes whose records were held against the time between them.
    #[serde(default)]
    pub log_times: u64,
    /// Linearizable reads that were held against real time.
    pub linearizable_reads: u64,
    /// Reads with a bound that were held against it.
    pub bounded_reads: u64,
    /// Answers that told their own age, and were held against that.
    pub staleness_told: u64,
    /// Reads that asked for a position.
    pub session_reads: u64,
    /// Answers that were held against a replay of their prefix.
    pub contents: u64,
    /// Answers from a previous generation of the cluster, whose prefix is no longer in the log.
    pub of_ended_life: u64,
    /// Watches, counted again where their position was lost.
    pub watches: u64,
    /// Messages of watches that were held against the log.
    pub watch_events: u64,
    /// Watches that were held against what was acknowledged ten seconds before clients stopped.
    #[serde(default)]
    pub watches_reached: u64,
    /// Intervals of workers.
    pub intervals: u64,
    /// Intervals whose token was looked for in the log.
    pub placements: u64,
    /// Places of workers that were counted again, without the guard.
    #[serde(default)]
    pub leases: u64,
    /// Digests of replicas that were held against the log.
    pub replica_states: u64,
    /// Digests that leaders recorded and the replay came to as well.
    pub digests_of_leaders: u64,
    /// Expectations of the scenario that were measured.
    pub expectations: u64,
}

/// The beginning of a leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderBegan {
    /// Its record.
    pub log_index: u64,
    /// When, by its own clock.
    pub log_time_ms: u64,
    /// Its term.
    pub term: u64,
    /// Who.
    pub replica: u64,
}

/// What a run of a drill proves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Name of the scenario.
    pub scenario: String,
    /// Which run of it.
    pub number: u32,
    /// Whether nothing was found wrong.
    pub held: bool,
    /// What was.
    pub findings: Findings,
    /// How much was looked at.
    pub checked: Checked,
    /// What was measured.
    pub figures: Figures,
    /// What it cost the gangs.
    pub ledger: Ledger,
    /// Gangs that ran when the fault began.
    pub gangs_at_fault: u64,
}

impl Verdict {
    /// Whether no rule of time and content was broken, and some were looked at.
    #[must_use]
    pub fn is_linearizable(&self) -> bool {
        const RULES: [Rule; 7] = [
            Rule::AcknowledgementLost,
            Rule::OrderBroken,
            Rule::StaleLinearizableRead,
            Rule::AnswerFromNowhere,
            Rule::ContentDiffers,
            Rule::WrongRecord,
            Rule::DoneTwice,
        ];
        let whole = self.checked.linearizable_reads > 0 && self.checked.contents > 0;
        whole && RULES.iter().all(|rule| self.findings.count(*rule) == 0)
    }

    /// Intervals of one job that overlap.
    #[must_use]
    pub fn overlaps(&self) -> u64 {
        self.findings.count(Rule::Overlap)
    }
}

/// Judges one run.
#[must_use]
pub fn judge(evidence: Evidence<'_>) -> Verdict {
    let Evidence { scenario, run, history, log, intervals, troubles } = evidence;
    let (mut checked, mut findings) = (Checked::default(), Findings::default());
    checked.operations = history.operations.len() as u64;
    form(scenario, run, history, &mut findings);
    for trouble in troubles {
        findings.say(Rule::DrillIncomplete, || trouble.clone());
    }
    watches::check_reach(run, history, &mut checked, &mut findings);
    let missing = order::check(run, history, &mut checked, &mut findings);
    let told = match log {
        Some(rounds) => {
            pace::check(run, history, rounds, &mut checked, &mut findings);
            replayed::check(run, history, rounds, &missing, &mut checked, &mut findings)
        }
        None => replayed::LogSummary::default(),
    };
    if let Some(intervals) = intervals {
        intervals::check(intervals, &mut checked, &mut findings);
        if log.is_some() {
            intervals::check_placed(intervals, &told, &mut checked, &mut findings);
        }
    }
    let settle_ms = scenario.expect.submissions_settle.map(|settled| settled.within_ms);
    let figures = outage::measure(run, history, &told, settle_ms);
    let (expect, has_log) = (&scenario.expect, log.is_some());
    let measured = expectation::Measured { expect, run, history, told: &told, has_log, figures: &figures };
    expectation::check(measured, &mut checked, &mut findings);
    looked_at(expect, history, evidence, &checked, &mut findings);
    Verdict {
        scenario: run.scenario.clone(),
        number: run.number,
        held: findings.is_empty(),
        findings,
        checked,
        figures,
        gangs_at_fault: told.gangs_at_fault,
        ledger: told.ledger,
    }
}

/// Whether the history is one that can be judged.
fn form(scenario: &Scenario, run: &Run, history: &History, findings: &mut Findings) {
    if run.scenario != scenario.name {
        findings.say(Rule::History, || format!("a run of {} is judged by {}", run.scenario, scenario.name));
    }
    let repeated = history.repeated();
    if let Some((client, id)) = repeated.first() {
        let count = repeated.len();
        findings.say(Rule::History, || {
            format!("{count} operations are written down twice, first {id} of client {client}")
        });
    }
    for operation in &history.operations {
        if let Outcome::Malformed { what } = &operation.outcome {
            findings.add(Rule::ContentDiffers, || {
                (format!("an answer makes no sense: {what}"), vec![evidence::shown(operation)])
            });
        }
    }
    for torn in &history.torn {
        findings.say(Rule::History, || {
            format!(
                "{}:{}: the last line has no end ({} bytes of it are there)",
                torn.file, torn.line, torn.bytes
            )
        });
    }
    let times = [run.start_us, run.fault_us, run.end_us];
    if !times.is_sorted() || run.heal_us.is_some_and(|at| at < run.fault_us) {
        findings.say(Rule::History, || format!("start, fault and end are not in order: {times:?} us"));
    }
}

/// Says what was not looked at though it should have been.
fn looked_at(
    expect: &Expectations,
    history: &History,
    evidence: Evidence<'_>,
    checked: &Checked,
    findings: &mut Findings,
) {
    let mut missing = |is_missing: bool, what: &str| {
        if is_missing {
            findings.say(Rule::NotChecked, || what.to_owned());
        }
    };
    missing(checked.linearizable_reads == 0, "linearizable reads: none was answered");
    missing(checked.order == 0, "changes: none was acknowledged");
    let bounded = history.operations.iter().any(|operation| {
        matches!(operation.call, Call::Read { consistency: Consistency::Bounded { .. }, .. })
            && matches!(operation.outcome, Outcome::Answered { .. })
    });
    missing(bounded && checked.bounded_reads == 0, "bounded reads: none was held against its bound");
    match evidence.log {
        None => missing(true, "the log: it was not given, so that no acknowledgement was looked for in it"),
        Some(_) => {
            missing(checked.records == 0, "the log: it is empty");
            missing(checked.charged == 0, "accelerator time: that of no record was charged");
            missing(checked.acknowledgements == 0, "acknowledgements: none was looked for in the log");
            missing(checked.contents == 0, "contents of answers: none was held against the log");
            let quiet = checked.watches > 0 && checked.watch_events == 0;
            missing(quiet, "watches: no message of any was held against the log");
        }
    }
    let needs_gangs = expect.gangs_untouched || expect.gangs_elsewhere_after_lease_ms.is_some();
    missing(
        needs_gangs && evidence.intervals.is_some_and(<[_]>::is_empty),
        "workers: none wrote down when it ran",
    );
    missing(needs_gangs && evidence.log.is_none(), "gangs: without the log nothing is known of them");
}
