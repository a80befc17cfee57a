//! Pages: what a drill did, what was seen, and what that proves; for people (HTML, Markdown) and programs (JSON).
//!
//! **Invariant:** a page is one file without scripts, fonts or pictures from elsewhere.
//! **Invariant:** every text that came from outside is escaped for where it stands.

mod html;
mod markdown;
mod picture;
mod summary;
pub mod text;
mod timeline;

use serde::Serialize;

use crate::history::History;
use crate::judge::{Kind, Verdict};
use crate::run::Run;
use crate::scenario::{MeasuredFrom, Scenario};

pub use summary::{Bar, Summary, SummaryRow};
pub use timeline::{Bin, Term, Timeline};

/// One run of one drill, as a page shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Page<'a> {
    title: &'a str,
    story: &'a str,
    runbook: &'a str,
    run: &'a Run,
    verdict: &'a Verdict,
    timeline: Timeline,
    #[serde(skip)]
    scenario: &'a Scenario,
}

/// A figure and its bar.
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) bar: String,
    /// None where there is no bar.
    pub(crate) is_met: Option<bool>,
}

impl<'a> Page<'a> {
    /// Puts a page together.
    #[must_use]
    pub fn new(scenario: &'a Scenario, run: &'a Run, history: &History, verdict: &'a Verdict) -> Page<'a> {
        Page {
            title: &scenario.title,
            story: &scenario.story,
            runbook: &scenario.runbook,
            run,
            verdict,
            timeline: Timeline::of(run, history, verdict),
            scenario,
        }
    }

    /// As one file for a browser, light or dark as its reader has it.
    #[must_use]
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// For a terminal, a ticket or a wiki.
    #[must_use]
    pub fn markdown(&self) -> String {
        markdown::page(self)
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts, numbers and maps by text are JSON")
    }

    /// The figures that are worth a glance, with their bars.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let (expect, figures) = (&self.scenario.expect, &self.verdict.figures);
        let since = |since: Option<MeasuredFrom>| match since {
            Some(MeasuredFrom::Heal) => "from the end of the fault",
            _ => "without an answer",
        };
        let mut all = Vec::new();
        let kinds = [
            (Kind::Submission, expect.submission_again),
            (Kind::LinearizableRead, expect.linearizable_read_again),
        ];
        for (kind, again) in kinds {
            let from = again.map(|again| again.since);
            let measured = figures.again_ms(kind, from.unwrap_or_default());
            let name = format!("{}: longest time {}", kind.words(), since(from));
            all.push(within(name, measured, again.map(|again| again.worst_ms)));
        }
        let survivors = "reads on survivors: longest silence".to_owned();
        all.push(within(survivors, figures.survivors_silence_ms, expect.reads_on_survivors_silence_ms));
        let slowest = "submissions behind the fault: slowest".to_owned();
        all.push(within(slowest, figures.submission_worst_ms, expect.acknowledged_within_ms));
        let settled = expect.submissions_settle.map(|settled| settled.p50_ms);
        if settled.is_some() {
            all.push(within(
                "submissions while the fault lasts: p50".into(),
                figures.settled_p50_ms,
                settled,
            ));
        }
        let failed = "submissions behind the fault that failed".to_owned();
        let bar = expect.acknowledged_within_ms.map(|_| 0);
        all.push(count(failed, figures.submissions_failed, bar));
        all.push(count("acknowledged changes lost".into(), figures.lost, Some(0)));
        all.push(within("age of the oldest of them (RPO)".into(), Some(figures.rpo_ms), None));
        all.push(within("submissions in the log: longest gap (RTO)".into(), figures.rto_log_ms, None));
        all.push(count("runs of one job at the same time".into(), self.verdict.overlaps(), Some(0)));
        all.push(count("gangs interrupted".into(), self.verdict.ledger.total.interruptions, None));
        all
    }
}

fn within(name: String, ms: Option<u64>, bar_ms: Option<u64>) -> Figure {
    Figure {
        name,
        value: ms.map_or("not measured".to_owned(), text::milliseconds),
        bar: bar_ms.map(text::milliseconds).unwrap_or_default(),
        is_met: bar_ms.map(|bar_ms| ms.is_some_and(|ms| ms <= bar_ms)),
    }
}

fn count(name: String, value: u64, bar: Option<u64>) -> Figure {
    let is_met = bar.map(|bar| value <= bar);
    Figure { name, value: value.to_string(), bar: bar.map(|bar| bar.to_string()).unwrap_or_default(), is_met }
}

/// What was looked at, for a page: name and number.
pub(crate) fn looked_at(verdict: &Verdict) -> Vec<(&'static str, u64)> {
    let checked = &verdict.checked;
    vec![
        ("operations of clients", checked.operations),
        ("records replayed", checked.records),
        ("records whose accelerator time was charged", checked.charged),
        ("acknowledgements looked for in the log", checked.acknowledgements),
        ("changes held against real time", checked.order),
        ("changes whose records are as far apart as they were", checked.log_times),
        ("linearizable reads held against real time", checked.linearizable_reads),
        ("bounded reads held against their bound", checked.bounded_reads),
        ("answers held against the age they told", checked.staleness_told),
        ("reads of sessions", checked.session_reads),
        ("answers compared with a replay of their prefix", checked.contents),
        ("answers of a previous generation of the cluster, not compared", checked.of_ended_life),
        ("messages of watches", checked.watch_events),
        ("intervals of workers", checked.intervals),
        ("placements looked for in the log", checked.placements),
        ("states of replicas compared with the log", checked.replica_states),
        ("digests of leaders that the replay came to", checked.digests_of_leaders),
        ("changes whose client does not know", checked.unknown),
        ("of them, in the log", checked.unknown_done),
        ("expectations measured", checked.expectations),
    ]
}
