//! What does not stay is elsewhere first, and who asks for it is told where.

use muster_archive::{Archive, ArchiveError, Bounds, DirectoryStore, JoinedStores, ObjectStore};
use muster_types::{LogIndex, LogTime, PastPoint};
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::support::{CLUSTER, Log, files, open, store, write};

fn joined(dirs: &[&Path]) -> Arc<Archive> {
    let stores = dirs.iter().map(|dir| store(dir)).collect();
    Arc::new(Archive::open(Arc::new(JoinedStores::new(stores)), Some(CLUSTER)).unwrap())
}

const ALL_BUT_THE_NEWEST: Bounds = Bounds { bytes_max: Some(0), age_ms_max: None };

/// An archive that has given away all but its newest segment, and where that is now.
fn offloaded() -> (Log, tempfile::TempDir, tempfile::TempDir) {
    let log = Log::of_steps(20);
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let archive = open(here.path());
    write(&archive, &log.rounds, 4, 1);
    let through = archive.offload_due(ALL_BUT_THE_NEWEST, log.state.log_time()).unwrap();
    assert!(archive.has_base_from(through));
    let done = archive.offload(CLUSTER, store(there.path()).as_ref(), through).unwrap();
    assert!(done.objects > 2 && done.bytes > 0, "{done:?}");
    (log, here, there)
}

#[test]
fn what_was_given_away_is_there_and_the_rest_is_whole() {
    let (mut log, here, there) = offloaded();
    let archive = open(here.path());
    let floor = archive.floor().unwrap();
    let summary = archive.summary();
    assert_eq!((summary.first, summary.segments), (Some(floor.through.next()), 1));
    assert_eq!((summary.gaps.len(), Path::new(&floor.place)), (0, there.path()));
    assert_eq!(archive.offload_due(ALL_BUT_THE_NEWEST, log.state.log_time()), None);

    // Who asks for what is not here is told where it is.
    for index in [LogIndex(1), floor.through] {
        let error = archive.slice_with(index).err().unwrap();
        assert!(matches!(&error, ArchiveError::BelowFloor { floor: named } if *named == floor), "{error}");
        assert!(error.to_string().contains(&floor.place), "{error}");
    }
    assert!(matches!(
        archive.replay(PastPoint::Index(LogIndex(1)), None),
        Err(ArchiveError::BelowFloor { .. })
    ));
    let last = log.state.log_index();
    let (replay, reached) = archive.replay(PastPoint::Index(last), None).unwrap();
    assert!(reached && replay.state().digest() == log.state.digest());

    // Alone, each part is what it is; together they are the whole history.
    let report = archive.verify(|_| true);
    assert!(report.is_whole() && report.floor == Some(floor.clone()), "{report:?}");
    assert_eq!(report.replayed, Some((last, log.state.digest())), "from the base that stayed");
    let elsewhere = open(there.path()).verify(|_| true);
    assert!(elsewhere.is_whole() && elsewhere.floor.is_none(), "{elsewhere:?}");
    let both = joined(&[here.path(), there.path()]);
    let report = both.verify(|_| true);
    assert!(report.is_whole() && report.floor.is_none(), "{report:?}");
    assert_eq!((report.records, report.replayed), (last.0, Some((last, log.state.digest()))));
    assert_eq!(both.records(LogIndex(1), last).map(Result::unwrap).count() as u64, last.0);

    // It goes on behind what stayed.
    let written = log.rounds.len();
    log.submit(3);
    log.digest();
    archive.append(CLUSTER, &log.rounds[written..], 0).unwrap();
    assert!(joined(&[there.path(), here.path()]).verify(|_| true).is_whole());
}

/// Between the floor and the removal, the process may end.
#[test]
fn an_interrupted_move_goes_on() {
    let (log, here, there) = offloaded();
    let floor = open(here.path()).floor().unwrap();
    // Everything is here again but for the floor, as before the first removal.
    for file in files(there.path()) {
        let to = here.path().join(file.strip_prefix(there.path()).unwrap());
        fs::copy(&file, to).unwrap();
    }
    let archive = open(here.path());
    assert_eq!(archive.records(LogIndex(1), log.state.log_index()).count() as u64, log.state.log_index().0);
    let through = archive.offload_due(ALL_BUT_THE_NEWEST, log.state.log_time()).unwrap();
    assert_eq!(through, floor.through);
    archive.offload(CLUSTER, store(there.path()).as_ref(), through).unwrap();
    assert_eq!(open(here.path()).summary().segments, 1);
}

#[test]
fn nothing_is_removed_that_could_not_be_copied() {
    let log = Log::of_steps(20);
    let here = tempfile::tempdir().unwrap();
    let archive = open(here.path());
    write(&archive, &log.rounds, 4, 1);
    let before = files(here.path());
    let through = archive.offload_due(ALL_BUT_THE_NEWEST, log.state.log_time()).unwrap();
    let nowhere = JoinedStores::new(Vec::new());
    assert!(archive.offload(CLUSTER, &nowhere, through).is_err());
    assert_eq!((files(here.path()), archive.floor()), (before.clone(), None));
    // Neither is what is damaged: nobody could tell it there.
    let there = tempfile::tempdir().unwrap();
    let first = before.iter().find(|file| file.to_string_lossy().contains("segments")).unwrap();
    let mut bytes = fs::read(first).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(first, bytes).unwrap();
    assert!(archive.offload(CLUSTER, store(there.path()).as_ref(), through).is_err());
    assert_eq!((files(here.path()), archive.floor()), (before, None));
}

#[test]
fn every_flipped_byte_of_the_floor_is_seen_and_costs_only_the_floor() {
    let (_, here, _there) = offloaded();
    let file = here.path().join("retention/floor");
    let good = fs::read(&file).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&file, &bad).unwrap();
        assert!(Archive::open(store(here.path()), Some(CLUSTER)).is_err(), "byte {at}");
    }
    let archive = Archive::open_and_mend(store(here.path()), Some(CLUSTER)).unwrap();
    assert_eq!((archive.damaged().len(), archive.floor(), archive.summary().gaps.len()), (1, None, 1));
    assert!(!file.exists() && files(&here.path().join("damaged")).len() == 1);
}

#[test]
fn a_store_that_is_only_read_removes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let own: Arc<dyn ObjectStore> = Arc::new(DirectoryStore::open(dir.path()).unwrap());
    own.put("a/b", &mut std::iter::empty()).unwrap();
    let joined = JoinedStores::new(vec![Arc::clone(&own)]);
    assert!(joined.remove("a/b").is_err() && joined.size("a/b").is_ok());
    own.remove("a/b").unwrap();
    own.remove("a/b").unwrap();
    assert!(joined.size("a/b").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Whatever stays is within the bounds, as far as the newest segment and its base let it.
    #[test]
    fn what_is_due_leaves_what_the_bounds_allow(
        steps in proptest::collection::vec(any::<u8>(), 8..40),
        bytes_max in 0u64..6_000,
        age_ms in 0u64..400,
        by_age: bool,
    ) {
        let mut log = Log::founded();
        for step in steps {
            log.step(step);
        }
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let archive = open(here.path());
        write(&archive, &log.rounds, 3, 1);
        let bounds = Bounds {
            bytes_max: (!by_age).then_some(bytes_max),
            age_ms_max: by_age.then_some(age_ms),
        };
        let now = log.state.log_time();
        if let Some(through) = archive.offload_due(bounds, now).filter(|through| archive.has_base_from(*through)) {
            archive.offload(CLUSTER, store(there.path()).as_ref(), through).unwrap();
            prop_assert_eq!(archive.summary().first, Some(through.next()));
            prop_assert!(joined(&[here.path(), there.path()]).verify(|_| true).is_whole());
            prop_assert!(open(here.path()).verify(|_| true).is_whole());
        }
        if archive.offload_due(bounds, now).is_none() && archive.summary().segments > 1 {
            let summary = archive.summary();
            prop_assert!(by_age || summary.segment_bytes + summary.base_bytes <= bytes_max);
            let oldest: LogTime = archive.slice_with(summary.first.unwrap()).unwrap().end.sequence.log_time;
            prop_assert!(!by_age || oldest >= now.minus_ms(age_ms));
        }
    }
}
