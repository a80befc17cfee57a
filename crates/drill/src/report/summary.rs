//! Many runs of many drills, a row for each drill.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::text;
use crate::judge::{Checked, Kind, Rule, Verdict};
use crate::scenario::{RecoveryTime, Scenario};

/// A bar over many runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bar {
    /// Runs in which it was measured.
    pub measured: u64,
    /// Median of them; of an even number the upper one of the two in the middle.
    pub median_ms: Option<u64>,
    /// The worst.
    pub worst_ms: Option<u64>,
    /// What the median may be.
    pub median_bar_ms: Option<u64>,
    /// What the worst may be.
    pub worst_bar_ms: Option<u64>,
    /// Whether both are met and it was measured in every run; none without a bar.
    pub is_met: Option<bool>,
}

impl Bar {
    fn of(values: &[Option<u64>], median_bar_ms: Option<u64>, worst_bar_ms: Option<u64>) -> Bar {
        let mut measured: Vec<u64> = values.iter().copied().flatten().collect();
        measured.sort_unstable();
        let (median_ms, worst_ms) = (measured.get(measured.len() / 2).copied(), measured.last().copied());
        let within =
            |value: Option<u64>, bar: Option<u64>| bar.is_none_or(|bar| value.is_some_and(|ms| ms <= bar));
        let has_bar = median_bar_ms.is_some() || worst_bar_ms.is_some();
        let is_met = measured.len() == values.len()
            && !measured.is_empty()
            && within(median_ms, median_bar_ms)
            && within(worst_ms, worst_bar_ms);
        let is_met = has_bar.then_some(is_met);
        let measured = measured.len() as u64;
        Bar { measured, median_ms, worst_ms, median_bar_ms, worst_bar_ms, is_met }
    }
}

/// All runs of one drill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryRow {
    /// Name of the drill.
    pub drill: String,
    /// Its title.
    pub title: String,
    /// Runs.
    pub runs: u64,
    /// Runs in which nothing was found.
    pub held: u64,
    /// Time to the next acknowledged submission.
    pub submissions: Bar,
    /// Time to the next answered linearizable read.
    pub linearizable_reads: Bar,
    /// The slowest submission.
    pub slowest_submission: Bar,
    /// Silence of reads on survivors.
    pub survivors: Bar,
    /// Acknowledged changes lost.
    pub lost: u64,
    /// Submissions that failed.
    pub failed: u64,
    /// Runs of one job at the same time.
    pub overlaps: u64,
    /// Runs that were linearizable.
    pub linearizable: u64,
    /// Operations that were judged.
    pub operations: u64,
    /// Accelerator time lost, in all runs.
    pub lost_accelerator_ms: u64,
    /// Rules that were broken, with the number of runs.
    pub broken: BTreeMap<Rule, u64>,
}

impl SummaryRow {
    /// Whether everything held in every run, and every bar over them all is met.
    #[must_use]
    pub fn is_met(&self) -> bool {
        let bars = [&self.submissions, &self.linearizable_reads, &self.slowest_submission, &self.survivors];
        self.runs > 0 && self.held == self.runs && bars.iter().all(|bar| bar.is_met != Some(false))
    }
}

/// A row for each drill that was run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// In the order of their names.
    pub rows: Vec<SummaryRow>,
    /// How much was looked at in all runs, by the names of [`Checked`]'s fields. What is 0 was held against nothing: the
    /// rules about it could not be broken.
    #[serde(default)]
    pub looked_at: BTreeMap<String, u64>,
}

/// Adds up what the judge looked at.
fn looked_at<'a>(all: impl Iterator<Item = &'a Checked>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for checked in all {
        let fields = serde_json::to_value(checked).expect("numbers by name are JSON");
        for (name, count) in fields.as_object().into_iter().flatten() {
            *sums.entry(name.clone()).or_default() += count.as_u64().unwrap_or_default();
        }
    }
    sums
}

impl Summary {
    /// Of runs with their scenarios, in any order.
    #[must_use]
    pub fn of<'a>(runs: impl IntoIterator<Item = (&'a Scenario, &'a Verdict)>) -> Summary {
        let mut by_name: BTreeMap<&str, (&Scenario, Vec<&Verdict>)> = BTreeMap::new();
        let mut checked = Vec::new();
        for (scenario, verdict) in runs {
            checked.push(&verdict.checked);
            by_name.entry(&scenario.name).or_insert((scenario, Vec::new())).1.push(verdict);
        }
        let rows = by_name.into_values().map(|(scenario, verdicts)| row(scenario, &verdicts)).collect();
        Summary { rows, looked_at: looked_at(checked.into_iter()) }
    }

    /// As a table of Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = String::from(
            "| drill | runs | held | submissions again, median / worst | bar | linearizable reads again | reads on survivors silent | slowest submission | lost | failed | overlaps | linearizable | all bars met |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n",
        );
        for row in &self.rows {
            let bar = pair(row.submissions.median_bar_ms, row.submissions.worst_bar_ms);
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {bar} | {} | {} | {} | {} | {} | {} | {} of {} | {} |",
                text::markdown(&row.drill),
                row.runs,
                row.held,
                pair(row.submissions.median_ms, row.submissions.worst_ms),
                pair(row.linearizable_reads.median_ms, row.linearizable_reads.worst_ms),
                pair(row.survivors.median_ms, row.survivors.worst_ms),
                pair(row.slowest_submission.median_ms, row.slowest_submission.worst_ms),
                row.lost,
                row.failed,
                row.overlaps,
                row.linearizable,
                row.runs,
                if row.is_met() { "yes" } else { "**no**" }
            );
        }
        let broken: Vec<&SummaryRow> = self.rows.iter().filter(|row| !row.broken.is_empty()).collect();
        if !broken.is_empty() {
            out.push_str("\nWhat was broken:\n\n");
        }
        for row in broken {
            let rules: Vec<String> =
                row.broken.iter().map(|(rule, runs)| format!("{rule} in {runs} of {}", row.runs)).collect();
            let _ = writeln!(out, "- {}: {}", text::markdown(&row.drill), text::markdown(&rules.join(", ")));
        }
        self.write_looked_at(&mut out);
        out
    }

    fn write_looked_at(&self, out: &mut String) {
        let words = |name: &String| name.replace('_', " ");
        let (never, some): (Vec<_>, Vec<_>) = self.looked_at.iter().partition(|(_, count)| **count == 0);
        if !some.is_empty() {
            let some: Vec<String> =
                some.iter().map(|(name, count)| format!("{} {count}", words(name))).collect();
            let _ = writeln!(out, "\nLooked at in all runs: {}.", some.join(", "));
        }
        if !never.is_empty() {
            let never: Vec<String> = never.iter().map(|(name, _)| words(name)).collect();
            let _ = writeln!(
                out,
                "\n**Never looked at, so that no rule about it could be broken:** {}.",
                never.join(", ")
            );
        }
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts, numbers and maps by text are JSON")
    }
}

fn pair(median_ms: Option<u64>, worst_ms: Option<u64>) -> String {
    match (median_ms, worst_ms) {
        (None, None) => String::new(),
        (median, worst) => {
            let shown = |ms: Option<u64>| ms.map_or("-".to_owned(), text::milliseconds);
            format!("{} / {}", shown(median), shown(worst))
        }
    }
}

fn row(scenario: &Scenario, verdicts: &[&Verdict]) -> SummaryRow {
    let expect = &scenario.expect;
    let again = |kind: Kind, bar: Option<RecoveryTime>| {
        let since = bar.map(|bar| bar.since).unwrap_or_default();
        let values: Vec<Option<u64>> =
            verdicts.iter().map(|verdict| verdict.figures.again_ms(kind, since)).collect();
        Bar::of(&values, bar.and_then(|bar| bar.median_ms), bar.map(|bar| bar.worst_ms))
    };
    let worst = |of: fn(&Verdict) -> Option<u64>, bar: Option<u64>| {
        let values: Vec<Option<u64>> = verdicts.iter().map(|verdict| of(verdict)).collect();
        Bar::of(&values, None, bar)
    };
    let sum = |of: fn(&Verdict) -> u64| -> u64 { verdicts.iter().map(|verdict| of(verdict)).sum() };
    let mut broken: BTreeMap<Rule, u64> = BTreeMap::new();
    for rule in verdicts.iter().flat_map(|verdict| verdict.findings.rules()) {
        *broken.entry(rule).or_default() += 1;
    }
    SummaryRow {
        drill: scenario.name.clone(),
        title: scenario.title.clone(),
        runs: verdicts.len() as u64,
        held: sum(|verdict| u64::from(verdict.held)),
        submissions: again(Kind::Submission, expect.submission_again),
        linearizable_reads: again(Kind::LinearizableRead, expect.linearizable_read_again),
        slowest_submission: worst(|v| v.figures.submission_worst_ms, expect.acknowledged_within_ms),
        survivors: worst(|v| v.figures.survivors_silence_ms, expect.reads_on_survivors_silence_ms),
        lost: sum(|verdict| verdict.figures.lost),
        failed: sum(|verdict| verdict.figures.submissions_failed),
        overlaps: sum(Verdict::overlaps),
        linearizable: sum(|verdict| u64::from(verdict.is_linearizable())),
        operations: sum(|verdict| verdict.checked.operations),
        lost_accelerator_ms: sum(|verdict| verdict.ledger.total.accelerator_ms),
        broken,
    }
}
