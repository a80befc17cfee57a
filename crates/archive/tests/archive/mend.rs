//! Damaged and missing objects are rebuilt as they were, or not at all.

use bytes::Bytes;
use muster_archive::{Archive, ArchiveError, ArchivedRound, Bounds, Lack, ObjectInfo, ObjectStore};
use muster_types::LogIndex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

use crate::support::{CLUSTER, Log, files, open, store, write};

fn small() -> (Log, tempfile::TempDir) {
    let log = Log::of_steps(16);
    let dir = tempfile::tempdir().unwrap();
    write(&open(dir.path()), &log.rounds, 4, 2);
    (log, dir)
}

fn of(dir: &Path, directory: &str) -> Vec<PathBuf> {
    files(&dir.join(directory))
}

/// Damages a file at a place, a part of its length.
fn harm(file: &Path, tenths: usize) -> Vec<u8> {
    let good = fs::read(file).unwrap();
    let mut bad = good.clone();
    let at = (bad.len() - 1) * tenths / 10;
    bad[at] ^= 4;
    fs::write(file, bad).unwrap();
    good
}

/// What another replica has of the entries that a segment covers.
fn rounds(log: &Log, lack: &Lack) -> Vec<ArchivedRound> {
    let covers = |round: &&ArchivedRound| (lack.first_raft()..lack.next_raft()).contains(&round.raft_index);
    log.rounds.iter().filter(covers).cloned().collect()
}

fn look_over(archive: &Archive) {
    let mut number = 0;
    while archive.look_over(number).is_some() {
        number += 1;
    }
}

/// Rebuilds objects until none is left that can be; returns their number.
fn mend(archive: &Archive, log: &Log) -> u64 {
    loop {
        let lacks = archive.lacks().unwrap();
        for lack in &lacks {
            archive.mend(CLUSTER, lack, &rounds(log, lack)).unwrap();
        }
        if lacks.is_empty() {
            break;
        }
    }
    for base in archive.damaged_bases() {
        archive.mend_base(CLUSTER, &base).unwrap();
    }
    archive.mended()
}

#[test]
fn every_damaged_segment_is_named_and_made_anew_as_it_was() {
    let (log, dir) = small();
    let segments = of(dir.path(), "segments");
    assert!(segments.len() > 3, "one in the middle among them");
    for (number, file) in segments.iter().enumerate() {
        for tenths in [0, 2, 5, 10] {
            let archive = open(dir.path());
            let good = harm(file, tenths);
            look_over(&archive);
            let named = archive.unmended();
            assert!(named.len() == 1 && file.ends_with(&named[0]), "{named:?} of {}", file.display());
            assert_eq!(mend(&archive, &log), 1, "segment {number}, {tenths}");
            assert_eq!(fs::read(file).unwrap(), good);
            assert!(archive.unmended().is_empty() && archive.verify(|_| true).is_whole());
        }
    }
    assert_eq!(of(dir.path(), "damaged").len(), segments.len(), "kept for an examination");
    assert!(open(dir.path()).verify(|_| true).is_whole());
}

#[test]
fn a_segment_that_is_gone_is_made_anew_from_its_neighbours() {
    let (log, dir) = small();
    let segments = of(dir.path(), "segments");
    for file in &segments[..segments.len() - 1] {
        let good = fs::read(file).unwrap();
        fs::remove_file(file).unwrap();
        // A process that was not there when it went.
        let archive = open(dir.path());
        assert_eq!(archive.summary().gaps.len(), 1);
        assert_eq!(mend(&archive, &log), 1);
        assert_eq!(fs::read(file).unwrap(), good);
        assert!(archive.summary().gaps.is_empty() && archive.verify(|_| true).is_whole());
    }
}

#[test]
fn several_in_a_row_are_made_anew_one_behind_the_other() {
    let (log, dir) = small();
    let segments = of(dir.path(), "segments");
    let archive = open(dir.path());
    let good: Vec<Vec<u8>> = segments.iter().map(|file| fs::read(file).unwrap()).collect();
    for file in &segments {
        // Nothing of them can be believed, not even where they begin.
        fs::write(file, b"nothing").unwrap();
    }
    look_over(&archive);
    assert_eq!(archive.unmended().len(), segments.len());
    assert_eq!(mend(&archive, &log), segments.len() as u64);
    let now: Vec<Vec<u8>> = segments.iter().map(|file| fs::read(file).unwrap()).collect();
    assert!(now == good);
}

/// A peer that is wrong, or lies, does not get into the history.
#[test]
fn rounds_that_are_not_those_that_were_written_are_refused_and_change_nothing() {
    let (log, dir) = small();
    let segments = of(dir.path(), "segments");
    let archive = open(dir.path());
    harm(&segments[1], 5);
    let bad = fs::read(&segments[1]).unwrap();
    look_over(&archive);
    let lacks = archive.lacks().unwrap();
    let lack = &lacks[0];
    let right = rounds(&log, lack);
    let mut altered = right.clone();
    let mut round = altered[0].decode().unwrap();
    round.log_time.0 += 1;
    altered[0].payload = muster_journal::encode_round(&round).into();
    let mut of_another_term = right.clone();
    of_another_term[0].term += 1;
    let mut exchanged = right.clone();
    exchanged.swap(0, 1);
    let mut garbage = right.clone();
    garbage[0].payload = bytes::Bytes::from_static(b"garbage");
    let mut beyond = right.clone();
    beyond.last_mut().unwrap().raft_index = lack.next_raft();
    let tries = [
        altered,
        of_another_term,
        exchanged,
        garbage,
        beyond,
        right[1..].to_vec(),
        right[..1].to_vec(),
        vec![],
    ];
    for (number, rounds) in tries.iter().enumerate() {
        let refused = archive.mend(CLUSTER, lack, rounds).expect_err("they are not the same");
        let expected = matches!(refused, ArchiveError::Differs { .. } | ArchiveError::Round { .. });
        assert!(expected, "{number}: {refused}");
        assert_eq!(fs::read(&segments[1]).unwrap(), bad);
    }
    assert_eq!((archive.mended(), archive.unmended().len()), (0, 1));
    archive.mend(CLUSTER, lack, &right).unwrap();
    assert!(archive.verify(|_| true).is_whole());
}

#[test]
fn a_damaged_base_is_made_anew_by_a_replay() {
    let (log, dir) = small();
    let bases = of(dir.path(), "bases");
    for file in &bases {
        for tenths in [0, 5, 10] {
            let archive = open(dir.path());
            let good = harm(file, tenths);
            look_over(&archive);
            assert_eq!(archive.damaged_bases().len(), 1);
            assert_eq!(mend(&archive, &log), 1);
            assert_eq!(fs::read(file).unwrap(), good);
            assert!(archive.verify(|_| true).is_whole());
        }
    }
}

/// What stays behind a move begins with a base: a damaged one would leave it without a beginning.
#[test]
fn segments_are_not_moved_away_from_before_a_damaged_base() {
    let (log, dir) = small();
    let archive = open(dir.path());
    let bounds = Bounds { bytes_max: Some(0), age_ms_max: None };
    let through = archive.offload_due(bounds, log.state.log_time()).unwrap();
    let last = archive.newest_base().unwrap();
    let through = through.min(LogIndex(last.log_index.0));
    assert!(archive.has_base_from(through));
    harm(&dir.path().join(last.object()), 5);
    assert!(!archive.has_base_from(through), "it is read before it is relied on");
    assert_ne!(archive.newest_base().map(|base| base.log_index), Some(last.log_index));
    assert_eq!(mend(&archive, &log), 1);
    assert!(archive.has_base_from(through));
}

/// What was moved away or removed since it was found is no damage.
#[test]
fn what_is_not_in_the_archive_any_more_is_not_missed() {
    let (log, dir) = small();
    let there = tempfile::tempdir().unwrap();
    let archive = open(dir.path());
    let bounds = Bounds { bytes_max: Some(0), age_ms_max: None };
    let through = archive.offload_due(bounds, log.state.log_time()).unwrap();
    archive.offload(CLUSTER, store(there.path()).as_ref(), through).unwrap();
    look_over(&archive);
    assert!(archive.lacks().unwrap().is_empty() && archive.unmended().is_empty());
    assert_eq!(open(dir.path()).lacks().unwrap().len(), 0);
}

/// A store that takes nothing while its disk is full.
struct Full {
    inner: Arc<dyn ObjectStore>,
    is_full: AtomicBool,
}

impl ObjectStore for Full {
    fn put(&self, name: &str, content: &mut dyn Iterator<Item = io::Result<Bytes>>) -> io::Result<()> {
        match self.is_full.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.inner.put(name, content),
        }
    }

    fn get(&self, name: &str, from: u64, length: usize) -> io::Result<Bytes> {
        self.inner.get(name, from, length)
    }

    fn size(&self, name: &str) -> io::Result<u64> {
        self.inner.size(name)
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<ObjectInfo>> {
        self.inner.list(prefix)
    }

    fn set_aside(&self, name: &str) -> io::Result<()> {
        self.inner.set_aside(name)
    }

    fn place(&self) -> String {
        self.inner.place()
    }
}

/// Between setting aside and writing, the disk may be full or the process end: what is gone then is rebuilt too.
#[test]
fn an_interrupted_repair_goes_on() {
    let (log, dir) = small();
    let segments = of(dir.path(), "segments");
    let store = Arc::new(Full { inner: store(dir.path()), is_full: AtomicBool::new(false) });
    for file in &segments {
        let archive = Archive::open(Arc::clone(&store) as Arc<dyn ObjectStore>, Some(CLUSTER)).unwrap();
        let good = harm(file, 5);
        look_over(&archive);
        let lacks = archive.lacks().unwrap();
        store.is_full.store(true, Ordering::Relaxed);
        let refused = archive.mend(CLUSTER, &lacks[0], &rounds(&log, &lacks[0])).expect_err("it is full");
        assert!(matches!(refused, ArchiveError::Store { .. }), "{refused}");
        store.is_full.store(false, Ordering::Relaxed);
        assert!(!file.exists() && archive.unmended().len() == 1);
        assert_eq!(mend(&archive, &log), 1, "{}", file.display());
        assert_eq!(fs::read(file).unwrap(), good);
    }
    assert!(open(dir.path()).verify(|_| true).is_whole());
}
