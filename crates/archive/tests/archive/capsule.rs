//! Incident capsules: they replay to the same digests, and damage is found wherever it is.

use muster_archive::capsule::{Capsule, CapsuleError, CapsuleSpan, capture, read_capsule, write_capsule};
use muster_types::LogIndex;
use proptest::prelude::*;
use std::path::Path;

use crate::support::{Log, open, write};

fn span(first: u64, last: u64) -> CapsuleSpan {
    CapsuleSpan { first: LogIndex(first), last: LogIndex(last), around: LogIndex(first) }
}

fn captured(steps: usize, first: u64, dir: &Path) -> Capsule {
    let log = Log::of_steps(steps);
    let archive = open(dir);
    write(&archive, &log.rounds, 3, 2);
    let last = archive.summary().last.unwrap().0;
    capture(&archive, span(first.min(last), last), 7, ("1.2.3", 99)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_span_is_read_as_it_was_written_and_replays(
        steps in proptest::collection::vec(any::<u8>(), 1..40),
        ends in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let mut log = Log::founded();
        for step in steps {
            log.step(step);
        }
        let dir = tempfile::tempdir().unwrap();
        let archive = open(&dir.path().join("archive"));
        write(&archive, &log.rounds, 4, 2);
        let records = archive.summary().last.unwrap().0;
        let ends = [ends.0, ends.1].map(|end| end.index(records as usize) as u64 + 1);
        let span = span(ends[0].min(ends[1]), ends[0].max(ends[1]));
        let capsule = capture(&archive, span, 7, ("1.2.3", 99)).unwrap();
        prop_assert_eq!(capsule.header.original_digest_after, log.digests[span.last.0 as usize - 1]);
        let path = dir.path().join("capsule");
        write_capsule(&path, &capsule).unwrap();
        let read = read_capsule(&path).unwrap();
        prop_assert_eq!(&read.header, &capsule.header);
        prop_assert_eq!(&read.records, &capsule.records);
        let mut shown = Vec::new();
        let state = read.replay(None, |_, record, _| shown.push(record.log_index)).unwrap();
        prop_assert_eq!(state.log_index(), span.last);
        prop_assert_eq!(shown.len() as u64, span.last.0 + 1 - span.first.0);
        let part = read.replay(Some(span.first), |_, _, _| {}).unwrap();
        prop_assert_eq!(part.log_index(), span.first);
    }
}

#[test]
fn a_file_that_is_cut_or_changed_is_refused_and_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let capsule = captured(12, 3, &dir.path().join("archive"));
    let path = dir.path().join("capsule");
    write_capsule(&path, &capsule).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let damaged = dir.path().join("damaged");
    let refused = |bytes: &[u8]| {
        std::fs::write(&damaged, bytes).unwrap();
        read_capsule(&damaged).err()
    };
    for end in 0..bytes.len() {
        assert!(refused(&bytes[..end]).is_some(), "cut at {end}");
    }
    let mut changed = bytes.clone();
    for at in 0..bytes.len() {
        changed[at] ^= 0x55;
        assert!(refused(&changed).is_some(), "changed at {at}");
        changed[at] ^= 0x55;
    }
    changed.push(0);
    assert!(refused(&changed).is_some());
    assert!(matches!(refused(b"a text"), Some(CapsuleError::Foreign { .. })));
    let mut newer = bytes;
    newer[4] = 9;
    assert!(matches!(refused(&newer), Some(CapsuleError::Newer { found: 9, .. })));
}

#[test]
fn a_capsule_replaces_no_file_and_states_what_it_replays_to() {
    let dir = tempfile::tempdir().unwrap();
    let mut capsule = captured(6, 1, &dir.path().join("archive"));
    let path = dir.path().join("capsule");
    write_capsule(&path, &capsule).unwrap();
    assert!(matches!(write_capsule(&path, &capsule), Err(CapsuleError::File { .. })));
    capsule.header.digest_after ^= 1;
    assert!(matches!(capsule.replay(None, |_, _, _| {}), Err(CapsuleError::Diverged { .. })));
}

#[test]
fn a_span_behind_the_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let archive = open(dir.path());
    write(&archive, &Log::of_steps(5).rounds, 3, 0);
    let last = archive.summary().last.unwrap().0;
    assert!(matches!(capture(&archive, span(1, last + 1), 7, ("1", 0)), Err(CapsuleError::Archive(_))));
    assert!(matches!(capture(&archive, span(1, 1_000_000), 7, ("1", 0)), Err(CapsuleError::TooLarge { .. })));
}
