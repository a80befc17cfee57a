//! `chaos/REPORT.md`: what many runs of drills came to, beside their bars and beside etcd.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::summary::Row;

/// etcd 3.4.23 with five members on a network of the same shape (two regions of two, one of one; round trips of 30, 80
/// and 140 ms; heartbeats of 140 ms and elections of 1.4 s, pre-vote on): longest silence of writes, median and worst,
/// measured on one machine like this one, on another day. Anchors, not a race: its clients, its load and its machine
/// were not those of these drills.
const ETCD: [(&str, u32, &str); 8] = [
    ("leader-region-lost", 24, "1,950 / 5,610"),
    ("leader-killed", 10, "1,630 / 1,930"),
    ("leader-deaf", 10, "2,060 / 4,700"),
    ("leader-mute", 5, "2,000 / 2,260"),
    ("leader-isolated-with-agents", 3, "1,610 / 2,560"),
    ("blackout", 10, "5,870 / 6,990"),
    ("slow-disk", 6, "970 / 1,000; leadership never moved, p50 72 to 1,593"),
    ("lossy-links", 2, "100; p50 66 to 79"),
];

/// What a run is held to, besides what always holds.
#[derive(Clone, Debug, Default)]
pub struct Promised {
    /// Median and worst of the silence of submissions.
    pub submission: Option<(Option<u64>, u64)>,
    /// Of every single submission.
    pub acknowledged_within_ms: Option<u64>,
}

/// A run with its bars.
pub struct Judged {
    /// What it came to.
    pub row: Row,
    /// What it was held to.
    pub bars: Promised,
    /// On which machine.
    pub place: String,
    /// Which release.
    pub version: String,
}

/// The page.
#[must_use]
pub fn markdown(runs: &[Judged], commands: &[String], load: &str) -> String {
    let mut drills: BTreeMap<&str, Vec<&Judged>> = BTreeMap::new();
    for run in runs {
        drills.entry(&run.row.drill).or_default().push(run);
    }
    let mut text = String::from("# Drills on real processes\n\n");
    let places: std::collections::BTreeSet<&str> = runs.iter().map(|run| run.place.as_str()).collect();
    let versions: std::collections::BTreeSet<&str> = runs.iter().map(|run| run.version.as_str()).collect();
    let joined = |set: std::collections::BTreeSet<&str>| set.into_iter().collect::<Vec<_>>().join("; ");
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "{} runs of {} drills. Machine: {}; load average {load}. Release: {}.\n\n\
         Replicas 2, 2 and 1 in three regions with round trips of 30, 80 and 140 ms, two hosts with accelerators in each, \
         all with certificates; replicas, agents, workers, clients and the network between them share this machine's \
         processors. In every region 10 submissions/s, 10 linearizable reads/s, 5 reads/s of any staleness to each \
         replica, 2 bounded reads/s, a cancellation/s and a watch of every job. Times are milliseconds from the fault on, \
         as clients of regions that are there saw them; `held` means that nothing was found wrong: nothing acknowledged \
         was lost or done twice, reads were linearizable and fresh where they say so, every answer was what a replay of \
         its prefix of the log gives, watches were exact, workers of one job never overlapped, and every bar was met.\n\n",
        runs.len(),
        drills.len(),
        joined(places),
        joined(versions)
    );
    text.push_str("```\n");
    for command in commands {
        let _ = writeln!(text, "{command}");
    }
    text.push_str("```\n\n| drill | n | held | submissions silent, median / worst | bar | etcd, same topology (anchor) | linearizable reads silent | slowest submission | failed | survivors' reads silent | lost | overlaps |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (drill, runs) in &drills {
        let of =
            |value: fn(&Row) -> Option<u64>| middle_and_worst(runs.iter().filter_map(|run| value(&run.row)));
        let worst = |value: fn(&Row) -> Option<u64>| {
            runs.iter().filter_map(|run| value(&run.row)).max().map_or("-".to_owned(), |ms| ms.to_string())
        };
        let sum = |value: fn(&Row) -> u64| runs.iter().map(|run| value(&run.row)).sum::<u64>();
        let bar =
            runs.first().and_then(|run| run.bars.submission).map_or("-".to_owned(), |(median, worst)| {
                format!("{} / {worst}", median.map_or("-".to_owned(), |ms| ms.to_string()))
            });
        let anchor = ETCD.iter().find(|(name, _, _)| name == drill);
        let anchor = anchor.map_or("-".to_owned(), |(_, n, figures)| format!("{figures} (n {n})"));
        let held = runs.iter().filter(|run| run.row.held).count();
        let _ = writeln!(
            text,
            "| {drill} | {} | {held} | {} | {bar} | {anchor} | {} | {} | {} | {} | {} | {} |",
            runs.len(),
            of(|row| row.submission_silence_ms),
            of(|row| row.read_silence_ms),
            worst(|row| row.submission_worst_ms),
            sum(|row| row.submissions_failed),
            worst(|row| row.survivors_silence_ms),
            sum(|row| row.lost),
            sum(|row| row.overlaps),
        );
    }
    text.push_str("\n## What did not hold\n\n");
    let mut broken: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for run in runs {
        for what in &run.row.broken {
            *broken.entry((&run.row.drill, what)).or_default() += 1;
        }
    }
    if broken.is_empty() {
        text.push_str("Nothing.\n");
    }
    for ((drill, what), count) in broken {
        let _ = writeln!(text, "- {drill}, {count} times: {}", what.replace('\n', " "));
    }
    text
}

/// The median and the worst, as text.
#[must_use]
pub fn middle_and_worst(values: impl Iterator<Item = u64>) -> String {
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
