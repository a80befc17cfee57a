//! `chaos/REPORT.md`: what many runs of drills came to, next to their bars.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use muster_drill::judge::Verdict;
use muster_drill::report::{Summary, text};
use muster_types::LogTime;

use crate::run::evidence::{Collected, Unfinished};

/// The page, of runs with their verdicts, and of those that came to none.
#[must_use]
pub fn markdown(runs: &[(Collected, Verdict)], left: &[Unfinished], command: &str, load: &str) -> String {
    let summary = Summary::of(runs.iter().map(|(run, verdict)| (&run.scenario, verdict)));
    let said = |of: fn(&Collected) -> &str| {
        let all: BTreeSet<&str> = runs.iter().map(|(run, _)| of(run)).collect();
        all.into_iter().collect::<Vec<_>>().join("; ")
    };
    let mut page = String::from("# Drills on real processes\n\n");
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "{} runs of {} drills came to a verdict{}; {} broke off, {} drills were skipped. Machine: {}; load average {load} when this was written. Release: {}.\n\n\
         Replicas 2, 2 and 1 in three regions with round trips of 30, 80 and 140 ms, two hosts with accelerators in each, \
         all with certificates; replicas, agents, workers, clients and the network between them share this machine's \
         processors. The data of each replica lies on its own disk in memory, where a flush costs nothing, unless the drill needs another disk or `--disks` named one. In every region 10 submissions/s, 10 linearizable reads/s, 5 reads/s of any staleness to each \
         replica, 2 bounded reads/s, a cancellation/s and two watches of every job, one of which comes and goes. Times count from the fault on, as clients \
         of regions that are there saw them; `held` means that nothing was found wrong: the drill was carried out whole, nothing acknowledged was lost or \
         done twice, reads were linearizable and fresh where they claim to be, every answer was what a replay of its prefix of \
         the log gives, watches were exact, workers of one job never overlapped, and every bar was met.\n\n\
         ```\n{command}\n```\n\n",
        runs.len(),
        summary.rows.len(),
        days(runs.iter().map(|(run, _)| run.run.fault_unix_ms)),
        left.iter().filter(|run| !run.is_skipped).count(),
        left.iter().filter(|run| run.is_skipped).count(),
        said(|run| &run.run.place),
        said(|run| &run.run.version)
    );
    page.push_str(&summary.markdown());
    unfinished(left, &mut page);
    troubles(runs, &mut page);
    page
}

/// The days of these times, for people; empty where there are none.
fn days(times_ms: impl Iterator<Item = u64>) -> String {
    let days: BTreeSet<String> =
        times_ms.map(|ms| LogTime(ms).to_string().chars().take(10).collect()).collect();
    match (days.first(), days.last()) {
        (Some(first), Some(last)) if first == last => format!(" on {first}"),
        (Some(first), Some(last)) => format!(" from {first} to {last}"),
        _ => String::new(),
    }
}

/// What drills and seeds notice of rules that are broken on purpose, as `muster-chaos bugs` has written it down.
#[must_use]
pub fn rules_broken(table: &str) -> String {
    format!(
        "\n## Rules broken on purpose\n\nOne at a time, on clusters of three replicas, by `muster-chaos bugs`:\n\n{}\n",
        table.trim()
    )
}

/// What went wrong apart from what the judge finds: processes that ended, tools that failed.
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

/// Runs without a verdict, each with its reason.
fn unfinished(left: &[Unfinished], page: &mut String) {
    if left.is_empty() {
        return;
    }
    page.push_str("\nWithout a verdict:\n\n");
    for Unfinished { scenario, is_skipped, why } in left {
        let word = if *is_skipped { "skipped" } else { "broke off" };
        let _ = writeln!(page, "- {} {word}: {}", text::markdown(scenario), text::markdown(why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_of_which_days_its_runs_are() {
        let day = 24 * 3_600 * 1_000;
        assert_eq!(days([20_000 * day].into_iter()), " on 2024-10-04");
        assert_eq!(days([20_001 * day, 20_000 * day + 7].into_iter()), " from 2024-10-04 to 2024-10-05");
        assert_eq!(days(std::iter::empty()), "");
    }

    /// Who repeats the command of the page gets as many runs as it has.
    #[test]
    fn the_command_of_the_page_makes_the_runs_that_it_shows() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("REPORT.md");
        let page = std::fs::read_to_string(path).expect("the page can be read");
        let counts = page.lines().find(|line| line.contains(" runs of ")).expect("it counts its runs");
        if !counts.contains("; 0 broke off, 0 drills were skipped") {
            return;
        }
        let command =
            page.lines().find(|line| line.starts_with("chaos/run-all")).expect("it has its command");
        let behind = |text: &str, word: &str| -> u64 {
            let mut words = text.split_whitespace().skip_while(|found| *found != word).skip(1);
            words.next().and_then(|number| number.parse().ok()).unwrap_or_default()
        };
        let runs: u64 = counts.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or_default();
        // Three drills are awaited the longest, and run first.
        let wanted = 3 * behind(command, "--repeat") + behind(counts, "of") * behind(command, "--few");
        assert_eq!(runs, wanted, "{command}");
    }
}
