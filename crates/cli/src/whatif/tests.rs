use std::path::{Path, PathBuf};

use clap::Parser;
use muster_console::Format;

use super::*;
use crate::report::archives::{START, archive};

/// Options as a command line gives them.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: WhatifArgs,
}

/// Compares, from a second to another one of the archive.
fn whatif(dir: &Path, (from, to): (u64, u64), change: &[&str]) -> Result<Comparison, Failure> {
    let time = |second: u64| LogTime(START + second * 1_000).to_string();
    let (dir, from, to) = (dir.display().to_string(), time(from), time(to));
    let mut words = vec!["whatif", "--archive", dir.as_str(), "--from", from.as_str(), "--to", to.as_str()];
    words.extend(change);
    let line = Line::try_parse_from(words).map_err(|error| Failure::usage(error.to_string()))?;
    let source = line.args.source.open_at_hand()?;
    compare(&Console::new(Format::Table, true, true), &line.args, &source)
}

fn archived() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    archive(&dir.path().join("archive"));
    dir
}

fn headline(outcome: Result<Comparison, Failure>) -> String {
    match outcome {
        Ok(_) => panic!("it has to be refused"),
        Err(failure) => failure.headline().to_owned(),
    }
}

#[test]
fn the_record_the_replay_and_the_error_between_them_are_told_apart() {
    let dir = archived();
    let found = whatif(dir.path(), (5, 150), &[]).unwrap();
    // In the record the job was submitted at 10, placed at 20, and over at 100.
    let record = &found.record;
    assert_eq!((record.submitted, record.started, record.finished), (1, 1, 1));
    assert_eq!((record.waits.p50_ms, record.types[0].held_seconds), (10_000, 8 * 80));
    // The scheduler places it at once, and it runs for as long.
    assert_eq!((found.unchanged.finished, found.unchanged.waits.p50_ms), (1, 0));
    assert_eq!(found.unchanged.types[0].held_seconds, 8 * 80);
    assert_eq!((found.error.waits.p50_ms, found.error.finished), (-10_000, 0));
    assert!(found.changed.is_none() && found.difference.is_none());
}

#[test]
fn a_job_that_runs_where_the_range_begins_ends_when_it_did() {
    let dir = archived();
    let found = whatif(dir.path(), (50, 150), &["--fleet", "+8xh100@eu/c1"]).unwrap();
    assert_eq!(found.record.types[0].held_seconds, 8 * 50);
    assert!(found.error.is_none(), "{:?}", found.error);
    let changed = found.changed.unwrap();
    assert_eq!((changed.finished, changed.types[0].capacity_seconds), (1, 2 * 800));
    // What is behind the end of the range says how long it ran.
    let cut = whatif(dir.path(), (50, 60), &[]).unwrap();
    assert_eq!((cut.unchanged.running, cut.unchanged.estimated_runs), (1, 0));
}

#[test]
fn several_changes_of_the_fleet_are_one_list_or_many_options() {
    let dir = archived();
    let found = whatif(dir.path(), (50, 150), &["--fleet", "+8xh100@eu/c1,-n1"]).unwrap();
    let apart = whatif(dir.path(), (50, 150), &["--fleet", "+8xh100@eu/c1", "--fleet", "-n1"]).unwrap();
    assert_eq!((found.change.len(), &found.change), (2, &apart.change));
    let capacity = |found: Comparison| found.changed.unwrap().types[0].capacity_seconds;
    assert_eq!(capacity(found), capacity(apart));
}

#[test]
fn a_node_that_fails_loses_its_job_and_comes_back() {
    let dir = archived();
    let at = |second: u64| LogTime(START + second * 1_000);
    let failure = format!("n1@{}..{}", at(60), at(90));
    let found = whatif(dir.path(), (50, 150), &["--failures", &failure]).unwrap();
    assert_eq!(found.change, [format!("failure {failure}")]);
    let changed = found.changed.unwrap();
    // Without the failure the job ends at 100; its work is lost at 60, and it starts again at 90.
    assert_eq!((found.unchanged.finished, changed.finished), (1, 0));
    assert!(changed.types[0].capacity_seconds < found.unchanged.types[0].capacity_seconds);
    let refused = |failure: String| headline(whatif(dir.path(), (50, 150), &["--failures", &failure]));
    assert_eq!(
        refused(format!("n9@{}..{}", at(60), at(90))),
        "there is no node n9 where the range begins; there are n1"
    );
    assert!(refused(format!("n1@{}..{}", at(90), at(60))).contains("ends before it begins"));
    assert!(refused("n1@5..9".to_owned()).contains("expected NODE@FROM..UNTIL"));
    let twice =
        ["--failures", &failure, "--failures", &format!("n1@{}..{}", at(80), at(95))].map(str::to_owned);
    let twice: Vec<&str> = twice.iter().map(String::as_str).collect();
    assert_eq!(headline(whatif(dir.path(), (50, 150), &twice)), "two failures of node n1 overlap");
}

#[test]
fn what_is_not_in_the_log_is_refused() {
    let dir = archived();
    let refused = |range, change: &[&str]| headline(whatif(dir.path(), range, change));
    let end = LogTime(START + 200_000);
    assert_eq!(refused((20, 10), &[]), "--from has to be before --to");
    let late = LogTime(START + 300_000);
    assert_eq!(refused((20, 300), &[]), format!("the range ends at {late}, and the log ends at {end}"));
    let dirs = [dir.path().join("archive")];
    let archive = crate::log::open_archive(&dirs).unwrap();
    let early = (LogTime(START - 60_000), end);
    let console = Console::new(Format::Table, true, true);
    let mut progress = Progress { console: &console, last: Instant::now() };
    let before = Reading::of(&archive, early, &mut progress).err().unwrap();
    assert!(before.headline().ends_with("before the first record of the archive"), "{}", before.headline());
    assert_eq!(refused((5, 150), &["--fleet", "-n9"]), "there is no node n9 in the range; there are n1");
    assert_eq!(refused((5, 150), &["--quota", "lab=+8"]), "the policy names no tenant lab; it names none");
    assert_eq!(
        refused((5, 150), &["--fleet", "+8xb200@eu/c1"]),
        "the fleet has no accelerator of type b200; it has h100"
    );
    assert!(refused((5, 150), &["--fleet", "n1"]).contains("expected +COUNTxTYPE@REGION/CLUSTER or -NODE"));
    assert!(refused((5, 150), &["--policy", "/nowhere.yaml"]).starts_with("/nowhere.yaml could not be read"));
}

#[test]
fn a_gap_in_the_range_is_refused_and_one_behind_it_is_noted() {
    let dir = archived();
    let segments = dir.path().join("archive/segments");
    let mut files = walk(&segments);
    files.sort();
    // The second of three: the record of second 25.
    std::fs::remove_file(&files[1]).unwrap();
    let text = headline(whatif(dir.path(), (5, 150), &[]));
    assert!(text.ends_with("are not in the archive, and the range needs them"), "{text}");
    let found = whatif(dir.path(), (5, 15), &[]).unwrap();
    assert!(found.caveats.iter().any(|caveat| caveat.contains("behind the range")), "{:?}", found.caveats);
}

/// The files below a directory.
fn walk(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
