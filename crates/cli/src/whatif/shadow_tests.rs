use clap::Parser;
use muster_archive::Archive;
use muster_types::{LogIndex, LogTime};

use super::super::Comparison;
use super::*;
use crate::report::archives::{START, archive};

/// Options as a command line gives them.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ShadowArgs,
}

fn parsed(words: &[&str]) -> Result<ShadowArgs, String> {
    let words = std::iter::once("shadow").chain(words.iter().copied());
    Line::try_parse_from(words).map(|line| line.args).map_err(|error| error.to_string())
}

/// Follows the archive from a record on, round by round, looking after each of them.
fn followed(log: &Archive, from: u64) -> (Replay, Shadow) {
    let (mut replay, _) = log.replay(PastPoint::Index(LogIndex(from)), None).unwrap();
    let mut shadow = Shadow::begin(replay.state());
    while let Some(slice) = log.slice_with_raft(replay.next_raft()).unwrap() {
        for round in &slice.rounds {
            replay.apply_observed(round, None, &mut Watcher(&mut shadow)).unwrap();
            shadow.so_far(replay.state()).unwrap();
        }
        replay.pass(slice.end.next_raft);
    }
    (replay, shadow)
}

#[test]
fn a_shadow_of_an_archive_is_what_whatif_says_of_it() {
    let dir = tempfile::tempdir().unwrap();
    archive(dir.path());
    let log = crate::log::open_archive(&[dir.path().to_owned()]).unwrap();
    let (replay, shadow) = followed(&log, 3);
    let (from, to) = (shadow.from(), replay.state().log_time());
    assert_eq!((from, to), (LogTime(START), LogTime(START + 200_000)));
    let console = Console::new(muster_console::Format::Table, true, true);
    let mut progress = Progress { console: &console, last: Instant::now() };
    let whole = Reading::of(&log, (from, to), &mut progress).unwrap();
    let piecewise = Reading { recording: shadow.so_far(replay.state()).unwrap(), note: None };
    let args = parsed(&["--fleet", "+8xh100@eu/c1"]).unwrap();
    let change = change_of(&args.change, from).unwrap();
    let mut compare = |reading: &Reading| -> Comparison {
        let change = (&change, words(&args.change));
        compare_reading(&mut progress, reading, change, (from, to), (9, &[])).unwrap()
    };
    let (whole, piecewise) = (compare(&whole), compare(&piecewise));
    assert_eq!(piecewise.record, whole.record);
    assert_eq!((&piecewise.unchanged, &piecewise.changed), (&whole.unchanged, &whole.changed));
    assert_eq!(piecewise.caveats, whole.caveats);
}

#[test]
fn a_foreign_cluster_and_another_generation_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    archive(dir.path());
    let log = crate::log::open_archive(&[dir.path().to_owned()]).unwrap();
    let (replay, _) = log.replay(PastPoint::Index(LogIndex(3)), None).unwrap();
    let own = ClusterId(0xa1).to_string();
    let headline = |cluster: &str, generation| {
        check(replay.state(), cluster, generation).map_err(|failure| failure.headline().to_owned())
    };
    assert_eq!(headline(&own, 1), Ok(()));
    assert!(headline(&ClusterId(0xa2).to_string(), 1).unwrap_err().starts_with("the log is of cluster"));
    assert!(headline("nonsense", 1).unwrap_err().starts_with("the log is of cluster"));
    assert_eq!(headline(&own, 2).unwrap_err(), "the log is of generation 1, and the cluster is in 2");
    let empty = check(&State::default(), &own, 1).unwrap_err();
    assert_eq!(empty.headline(), "the log has no record of a cluster yet");
}

#[test]
fn spans_of_options_are_bounded() {
    let args = parsed(&["--policy", "next.yaml", "--for", "7d", "--every", "1h"]).unwrap();
    assert_eq!((args.lasts_ms, args.every_ms, args.window_ms), (604_800_000, 3_600_000, 86_400_000));
    for wrong in ["0s", "500ms", "400d", "soon"] {
        assert!(parsed(&["--policy", "next.yaml", "--for", wrong]).is_err(), "{wrong}");
    }
}
