//! Whatever is done to the objects is seen, named, and never answered from.

use muster_archive::{Archive, ArchiveError, DirectoryStore, ObjectStore, RaftPosition, Start};
use muster_types::{ClusterId, LogIndex, PastPoint};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::support::{CLUSTER, Log, files, open, place_behind, store, write};

fn small() -> (Log, tempfile::TempDir) {
    let log = Log::of_steps(12);
    let dir = tempfile::tempdir().unwrap();
    write(&open(dir.path()), &log.rounds, 5, 2);
    (log, dir)
}

/// Everything that the archive has to say about itself; an archive that does not open is damaged too.
fn is_whole(dir: &Path) -> bool {
    match Archive::open(store(dir), Some(CLUSTER)) {
        Ok(archive) => archive.verify(|_| true).is_whole(),
        Err(_) => false,
    }
}

#[test]
fn an_archive_that_nobody_touched_is_whole() {
    let (log, dir) = small();
    let archive = open(dir.path());
    let report = archive.verify(|_| true);
    assert!(report.is_whole(), "{report:?}");
    assert_eq!(report.records, log.digests.len() as u64);
    assert_eq!(report.replayed, Some((log.state.log_index(), log.state.digest())));
    assert!(report.digests_compared > 0 && report.bases_good > 0, "{report:?}");
    let records: Vec<_> = archive.records(LogIndex(1), LogIndex(u64::MAX)).map(Result::unwrap).collect();
    let indexes: Vec<u64> = records.iter().map(|record| record.log_index.0).collect();
    assert_eq!(indexes, (1..=log.digests.len() as u64).collect::<Vec<_>>());
    let some: Vec<_> = archive.records(LogIndex(4), LogIndex(9)).map(Result::unwrap).collect();
    assert_eq!(some, records[3..9]);
}

#[test]
fn every_flipped_byte_is_seen() {
    let (_, dir) = small();
    for file in files(dir.path()) {
        let good = fs::read(&file).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&file, &bad).unwrap();
            assert!(!is_whole(dir.path()), "byte {at} of {}", file.display());
        }
        fs::write(&file, &good).unwrap();
    }
    assert!(is_whole(dir.path()));
}

#[test]
fn every_cut_and_every_addition_is_seen() {
    let (_, dir) = small();
    for file in files(dir.path()) {
        let good = fs::read(&file).unwrap();
        for length in (0..good.len()).step_by(3).chain([good.len() - 1]) {
            fs::write(&file, &good[..length]).unwrap();
            assert!(!is_whole(dir.path()), "{length} bytes of {}", file.display());
        }
        let longer = [&good[..], &[0]].concat();
        fs::write(&file, &longer).unwrap();
        assert!(!is_whole(dir.path()), "a byte more in {}", file.display());
        fs::write(&file, &good).unwrap();
    }
}

#[test]
fn a_missing_segment_is_a_gap_that_is_named() {
    let (_, dir) = small();
    let segments = files(&dir.path().join("segments"));
    let archive = open(dir.path());
    let all = archive.summary();
    for (number, file) in segments.iter().enumerate().take(segments.len() - 1) {
        let good = fs::read(file).unwrap();
        fs::remove_file(file).unwrap();
        let archive = open(dir.path());
        let report = archive.verify(|_| true);
        assert!(!report.is_whole());
        let gap = archive.summary().gaps[0];
        assert_eq!(gap.from == LogIndex(1), number == 0);
        let mut records = archive.records(gap.from, gap.to);
        let refused = records.next().unwrap().unwrap_err();
        assert!(matches!(refused, ArchiveError::Missing { from, to } if from == gap.from && to == gap.to));
        assert!(records.next().is_none(), "nothing follows an error");
        fs::write(file, &good).unwrap();
    }
    assert_eq!(open(dir.path()).summary(), all);
}

#[test]
fn exchanged_segments_are_seen() {
    let (_, dir) = small();
    let segments = files(&dir.path().join("segments"));
    let (first, second) = (fs::read(&segments[1]).unwrap(), fs::read(&segments[2]).unwrap());
    fs::write(&segments[1], &second).unwrap();
    fs::write(&segments[2], &first).unwrap();
    let report = open(dir.path()).verify(|_| true);
    let wrong: Vec<bool> = report.segments.iter().map(|segment| segment.problem.is_some()).collect();
    assert!(wrong[1] && wrong[2] && !wrong[0], "{report:?}");
}

/// A segment of another history, whole in itself and at the right place, does not follow.
#[test]
fn a_segment_of_another_history_is_seen() {
    let log = Log::of_steps(12);
    let mut other = Log::founded();
    for step in 0..12 {
        other.step((step * 5 % 7) as u8);
    }
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // The same places, other content: the state in the first round differs by its time alone.
    let rounds = &log.rounds[..10];
    write(&open(one.path()), rounds, 5, 0);
    let mut altered = rounds.to_vec();
    let mut first = altered[0].decode().unwrap();
    first.log_time = muster_types::LogTime(1);
    altered[0].payload = muster_journal::encode_round(&first).into();
    write(&open(two.path()), &altered, 5, 0);
    let (ours, theirs) = (files(one.path()), files(two.path()));
    assert_eq!(ours.len(), 2);
    fs::copy(&theirs[1], &ours[1]).unwrap();
    let report = open(one.path()).verify(|_| true);
    assert!(report.segments[1].problem.is_some(), "{report:?}");
}

#[test]
fn the_segments_of_two_clusters_do_not_mix() {
    let (_, dir) = small();
    let foreign = Archive::open(store(dir.path()), Some(ClusterId(0xb2))).err().unwrap();
    assert!(matches!(foreign, ArchiveError::Foreign { expected: ClusterId(0xb2), .. }), "{foreign}");
}

#[test]
fn only_what_follows_is_taken() {
    let (log, dir) = small();
    let archive = open(dir.path());
    let end = archive.end().unwrap();
    assert_eq!(end.sequence, log.state.sequence());
    let behind = place_behind(&log.rounds[..4]);
    assert!(archive.draft(CLUSTER, Start::Follows, behind).is_err());
    assert!(archive.draft(CLUSTER, Start::Gap, behind).is_err(), "in the same generation of the cluster");
    assert!(archive.draft(CLUSTER, Start::Founding, RaftPosition::default()).is_err());
    assert!(archive.draft(CLUSTER, Start::Follows, end).is_ok());
}

#[test]
fn a_damaged_base_is_passed_over_for_the_one_before() {
    let (log, dir) = small();
    let bases = files(&dir.path().join("bases"));
    let last = bases.last().unwrap();
    let mut bytes = fs::read(last).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(last, bytes).unwrap();
    let at = log.state.log_index();
    let (replay, reached) = open(dir.path()).replay(PastPoint::Index(at), None).unwrap();
    assert!(reached);
    assert_eq!(replay.state().digest(), log.state.digest());
}

/// A crash in the middle of a write leaves a temporary file: the next start removes it, and no reader
/// ever takes it for an object.
#[test]
fn what_was_half_written_is_no_object() {
    let (_, dir) = small();
    let half = dir.path().join("segments/0000000001/~0");
    fs::write(&half, b"half").unwrap();
    let read_only: Arc<dyn ObjectStore> = Arc::new(DirectoryStore::open_read_only(dir.path()).unwrap());
    assert!(Archive::open(read_only, None).unwrap().verify(|_| true).is_whole());
    assert!(half.exists(), "reading changes nothing");
    assert!(is_whole(dir.path()) && !half.exists());
}

#[test]
fn names_stay_inside_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirectoryStore::open(dir.path()).unwrap();
    for name in ["", "../a", "a/../b", "/a", "a//b", "A", "a b", ".a", "a/.b"] {
        assert!(store.put(name, &mut std::iter::empty()).is_err(), "{name:?}");
        assert!(store.get(name, 0, 1).is_err(), "{name:?}");
    }
    assert!(files(dir.path()).is_empty());
}

/// History that cannot be read must not keep a replica from starting.
#[test]
fn damaged_segments_at_the_end_are_set_aside_and_written_again() {
    let (log, dir) = small();
    let whole = open(dir.path());
    let (end, segments) = (whole.end().unwrap(), whole.summary().segments);
    drop(whole);
    let of_segments: Vec<_> =
        files(dir.path()).into_iter().filter(|f| f.to_string_lossy().contains("segments")).collect();
    for file in &of_segments[of_segments.len() - 2..] {
        let mut bad = fs::read(file).unwrap();
        let middle = bad.len() / 2;
        bad[middle] ^= 1;
        fs::write(file, &bad).unwrap();
    }
    assert!(Archive::open(store(dir.path()), Some(CLUSTER)).is_err(), "one who only reads changes nothing");
    let archive = Archive::open_and_mend(store(dir.path()), Some(CLUSTER)).unwrap();
    assert_eq!((archive.damaged().len(), archive.summary().segments), (2, segments - 2));
    let from = archive.end().unwrap();
    assert!(from.next_raft < end.next_raft);
    let rest: Vec<_> =
        log.rounds.iter().filter(|round| round.raft_index >= from.next_raft).cloned().collect();
    archive.append(CLUSTER, &rest, end.next_raft).unwrap();
    assert_eq!(archive.end().unwrap().sequence, end.sequence);
    drop(archive);
    assert!(is_whole(dir.path()));
    assert_eq!(Archive::open_and_mend(store(dir.path()), Some(CLUSTER)).unwrap().damaged().len(), 0);
    assert_eq!(fs::read_dir(dir.path().join("damaged")).unwrap().count(), 2, "kept for later examination");
}
