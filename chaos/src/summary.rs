//! What many runs of drills came to, as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use muster_drill::judge::{Kind, Rule, Verdict};
use serde::Serialize;

use crate::run::evidence::Collected;

/// What bars of time count for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bars {
    /// A run that does not meet them does not hold.
    Held,
    /// They are only reported: a build without optimisation, or a machine with other work, proves nothing about times.
    Said,
}

/// Whether a rule is about how long something takes. A submission that came late is; one that
/// was never acknowledged is not.
fn is_of_time(rule: Rule, verdict: &Verdict) -> bool {
    if rule == Rule::SubmissionFailed {
        return verdict.figures.submissions_failed == 0;
    }
    matches!(
        rule,
        Rule::SubmissionsLate
            | Rule::ReadsLate
            | Rule::SubmissionsSlow
            | Rule::SurvivorsSilent
            | Rule::GangsLate
    )
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Of which drill.
    pub drill: String,
    /// Which run of it.
    pub number: u32,
    /// Whether everything held.
    pub held: bool,
    /// Rules that were broken, and what else went wrong.
    pub broken: Vec<String>,
    /// Longest time without an acknowledged submission from the fault on.
    pub submission_silence_ms: Option<u64>,
    /// From the end of the fault to the next acknowledged submission.
    pub submission_after_heal_ms: Option<u64>,
    /// Longest time without an answered linearizable read from the fault on.
    pub read_silence_ms: Option<u64>,
    /// The slowest submission made during the fault.
    pub submission_worst_ms: Option<u64>,
    /// Half of all submissions before the fault were acknowledged in this time.
    pub submission_p50_before_ms: Option<u64>,
    /// The same during the fault.
    pub submission_p50_during_ms: Option<u64>,
    /// Submissions of the regions that are there that were never acknowledged.
    pub submissions_failed: u64,
    /// Longest silence of reads on survivors.
    pub survivors_silence_ms: Option<u64>,
    /// Acknowledged changes that are lost.
    pub lost: u64,
    /// Runs of one job at the same time.
    pub overlaps: u64,
    /// No rule of time and content was broken.
    pub linearizable: bool,
    /// Operations that were judged.
    pub operations: u64,
}

impl Row {
    /// What a run came to.
    #[must_use]
    pub fn of(collected: &Collected, verdict: &Verdict, bars: Bars) -> Row {
        let kind = |kind: Kind| verdict.figures.kinds.get(&kind);
        let submissions = kind(Kind::Submission);
        let mut broken: Vec<String> = verdict.findings.rules().map(|rule| rule.code().to_owned()).collect();
        broken.extend(collected.harness.findings());
        Row {
            drill: collected.run.scenario.clone(),
            number: collected.run.number,
            held: verdict.findings.rules().all(|rule| bars == Bars::Said && is_of_time(rule, verdict)),
            broken,
            submission_silence_ms: submissions.and_then(|kind| kind.silence_ms),
            submission_after_heal_ms: submissions.and_then(|kind| kind.after_heal_ms),
            read_silence_ms: kind(Kind::LinearizableRead).and_then(|kind| kind.silence_ms),
            submission_worst_ms: verdict.figures.submission_worst_ms,
            submission_p50_before_ms: submissions.map(|kind| kind.before.p50_us / 1_000),
            submission_p50_during_ms: submissions.map(|kind| kind.during.p50_us / 1_000),
            submissions_failed: verdict.figures.submissions_failed,
            survivors_silence_ms: verdict.figures.survivors_silence_ms,
            lost: verdict.figures.lost,
            overlaps: verdict.overlaps(),
            linearizable: verdict.is_linearizable(),
            operations: verdict.checked.operations,
        }
    }

    /// One line for people.
    #[must_use]
    pub fn line(&self) -> String {
        let ms = |ms: Option<u64>| ms.map_or("-".to_owned(), |ms| format!("{ms} ms"));
        let verdict =
            if self.held { "held".to_owned() } else { format!("DID NOT HOLD: {}", self.broken.join("; ")) };
        format!(
            "{verdict}; submissions silent {}, slowest {}, failed {}, reads silent {}, survivors silent {}, lost {}, overlaps {}, {} operations",
            ms(self.submission_silence_ms),
            ms(self.submission_worst_ms),
            self.submissions_failed,
            ms(self.read_silence_ms),
            ms(self.survivors_silence_ms),
            self.lost,
            self.overlaps,
            self.operations
        )
    }
}

/// All runs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    rows: Vec<Row>,
    skipped: BTreeMap<String, String>,
    broke: Vec<(String, u32, String)>,
}

impl Table {
    /// Adds a run.
    pub fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// A drill that this machine cannot carry out.
    pub fn skip(&mut self, drill: &str, why: &str) {
        self.skipped.insert(drill.to_owned(), why.to_owned());
    }

    /// A run that proves nothing.
    pub fn broke(&mut self, drill: &str, number: u32, why: &str) {
        self.broke.push((drill.to_owned(), number, why.to_owned()));
    }

    /// Whether every drill held or was skipped.
    #[must_use]
    pub fn held(&self) -> bool {
        self.broke.is_empty() && self.rows.iter().all(|row| row.held)
    }

    /// The table for people: one line for each drill.
    #[must_use]
    pub fn text(&self) -> String {
        let mut drills: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in &self.rows {
            drills.entry(&row.drill).or_default().push(row);
        }
        let mut text = format!(
            "{:<26} {:>3} {:>5}  {:>15} {:>15} {:>9} {:>6} {:>9} {:>4} {:>8}",
            "drill",
            "n",
            "held",
            "submission, ms",
            "read, ms",
            "slowest",
            "failed",
            "survivors",
            "lost",
            "overlaps"
        );
        for (drill, rows) in drills {
            let of =
                |value: fn(&Row) -> Option<u64>| middle_and_worst(rows.iter().filter_map(|row| value(row)));
            let worst = |value: fn(&Row) -> Option<u64>| {
                rows.iter().filter_map(|row| value(row)).max().map_or("-".to_owned(), |ms| ms.to_string())
            };
            let sum = |value: fn(&Row) -> u64| rows.iter().map(|row| value(row)).sum::<u64>();
            let held = rows.iter().filter(|row| row.held).count();
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "\n{drill:<26} {:>3} {held:>5}  {:>15} {:>15} {:>9} {:>6} {:>9} {:>4} {:>8}",
                rows.len(),
                of(|row| row.submission_silence_ms),
                of(|row| row.read_silence_ms),
                worst(|row| row.submission_worst_ms),
                sum(|row| row.submissions_failed),
                worst(|row| row.survivors_silence_ms),
                sum(|row| row.lost),
                sum(|row| row.overlaps),
            );
        }
        for (drill, why) in &self.skipped {
            let _ = write!(text, "\n{drill:<26} skipped: {why}");
        }
        for (drill, number, why) in &self.broke {
            let _ = write!(text, "\n{drill:<26} {number}: could not be carried out: {why}");
        }
        text
    }
}

/// The machine, for people: processors and their kind.
#[must_use]
pub fn machine() -> String {
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")).and_then(|rest| rest.split_once(':'));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    format!("{count} processors, {model}, Linux {}", kernel.trim())
}

/// The load of the machine, as it says itself.
#[must_use]
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}
/// The median and the worst, as text.
fn middle_and_worst(values: impl Iterator<Item = u64>) -> String {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    match (values.get(values.len() / 2), values.last()) {
        (Some(middle), Some(worst)) => format!("{middle} / {worst}"),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_that_of_the_sorted_values() {
        assert_eq!(middle_and_worst([9, 1, 5].into_iter()), "5 / 9");
        assert_eq!(middle_and_worst([].into_iter()), "-");
    }
}
