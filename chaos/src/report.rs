//! `chaos/REPORT.md`: what many runs of drills came to, beside their bars and beside etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use muster_drill::judge::Verdict;
use muster_drill::report::{Summary, text};

use crate::run::evidence::Collected;

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

/// The page, of runs with their verdicts.
#[must_use]
pub fn markdown(runs: &[(Collected, Verdict)], command: &str, load: &str) -> String {
    let summary = Summary::of(runs.iter().map(|(run, verdict)| (&run.scenario, verdict)));
    let said = |of: fn(&Collected) -> &str| {
        let all: BTreeSet<&str> = runs.iter().map(|(run, _)| of(run)).collect();
        all.into_iter().collect::<Vec<_>>().join("; ")
    };
    let mut page = String::from("# Drills on real processes\n\n");
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "{} runs of {} drills. Machine: {}; load average {load} when this was written. Release: {}.\n\n\
         Replicas 2, 2 and 1 in three regions with round trips of 30, 80 and 140 ms, two hosts with accelerators in each, \
         all with certificates; replicas, agents, workers, clients and the network between them share this machine's \
         processors. In every region 10 submissions/s, 10 linearizable reads/s, 5 reads/s of any staleness to each \
         replica, 2 bounded reads/s, a cancellation/s and two watches of every job, one of which comes and goes. Times count from the fault on, as clients \
         of regions that are there saw them; `held` means that nothing was found wrong: nothing acknowledged was lost or \
         done twice, reads were linearizable and fresh where they say so, every answer was what a replay of its prefix of \
         the log gives, watches were exact, workers of one job never overlapped, and every bar was met.\n\n\
         ```\n{command}\n```\n\n",
        runs.len(),
        summary.rows.len(),
        said(|run| &run.run.place),
        said(|run| &run.run.version)
    );
    page.push_str(&summary.markdown());
    troubles(runs, &mut page);
    anchors(&summary, &mut page);
    page
}

/// What drills and seeds notice of rules that are broken on purpose, as `muster-chaos bugs` has written it down.
#[must_use]
pub fn rules_broken(table: &str) -> String {
    format!(
        "\n## Rules broken on purpose\n\nOne at a time, on clusters of three replicas, by `muster-chaos bugs`:\n\n{}\n",
        table.trim()
    )
}

/// What went wrong beside what the judge finds: processes that ended, tools that failed.
fn troubles(runs: &[(Collected, Verdict)], page: &mut String) {
    let mut all: BTreeMap<(&str, String), u32> = BTreeMap::new();
    for (run, _) in runs {
        for trouble in run.harness.findings() {
            *all.entry((&run.scenario.name, trouble)).or_default() += 1;
        }
    }
    if all.is_empty() {
        return;
    }
    page.push_str("\nWhat else went wrong:\n\n");
    for ((drill, trouble), count) in all {
        let _ = writeln!(page, "- {}: {} ({count} times)", text::markdown(drill), text::markdown(&trouble));
    }
}

fn anchors(summary: &Summary, page: &mut String) {
    page.push_str(
        "\netcd 3.4 with five members on a network of the same shape, longest silence of writes in milliseconds, median / \
         worst. Anchors from another day, with its own clients:\n\n| drill | runs | etcd |\n|---|---:|---:|\n",
    );
    for (drill, runs, figures) in
        ETCD.iter().filter(|(name, _, _)| summary.rows.iter().any(|r| r.drill == *name))
    {
        let _ = writeln!(page, "| {drill} | {runs} | {figures} |");
    }
}
