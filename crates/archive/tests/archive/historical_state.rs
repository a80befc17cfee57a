//! States of the past are the ones that were.

use muster_archive::Replay;
use muster_types::{LogIndex, LogTime, PastPoint};
use proptest::prelude::*;

use crate::support::{Log, open, write};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_state_behind_every_record_is_the_one_that_was(
        steps in proptest::collection::vec(any::<u8>(), 1..40),
        each in 1usize..9,
        base_every in 0usize..4,
    ) {
        let mut log = Log::founded();
        for step in steps {
            log.step(step);
        }
        let dir = tempfile::tempdir().unwrap();
        let archive = open(dir.path());
        write(&archive, &log.rounds, each, base_every);
        let last = archive.summary().last.unwrap();
        let mut known: Option<Replay> = None;
        for (place, digest) in log.digests.iter().enumerate() {
            let index = LogIndex(place as u64 + 1);
            // The last rounds may all be of an ended leadership; they wait for one that counts.
            prop_assert!(index <= last);
            let (fresh, reached) = archive.replay(PastPoint::Index(index), None).unwrap();
            prop_assert!(reached);
            prop_assert_eq!(fresh.state().digest(), *digest, "at {}", index);
            let (onward, _) = archive.replay(PastPoint::Index(index), known.take()).unwrap();
            prop_assert_eq!(onward.state().digest(), *digest, "from the state before, at {}", index);
            known = Some(onward);
        }
        // Reopened, it goes on where it ended.
        prop_assert_eq!(open(dir.path()).end(), archive.end());
        prop_assert!(archive.verify(|_| true).is_whole());
    }

    #[test]
    fn a_time_is_the_last_record_that_is_not_later(
        steps in proptest::collection::vec(any::<u8>(), 1..25),
        offset in 0u64..9,
    ) {
        let mut log = Log::founded();
        for step in steps {
            log.step(step);
        }
        let dir = tempfile::tempdir().unwrap();
        let archive = open(dir.path());
        write(&archive, &log.rounds, 4, 2);
        for time in log.times.iter().map(|time| LogTime(time.0 + offset)) {
            let expected = log.times.iter().rposition(|t| *t <= time).unwrap();
            let (replay, _) = archive.replay(PastPoint::Time(time), None).unwrap();
            prop_assert_eq!(replay.state().log_index(), LogIndex(expected as u64 + 1));
        }
    }
}

#[test]
fn behind_its_end_an_archive_gives_what_it_has() {
    let log = Log::of_steps(8);
    let dir = tempfile::tempdir().unwrap();
    let archive = open(dir.path());
    write(&archive, &log.rounds[..4], 2, 0);
    let (mut replay, reached) = archive.replay(PastPoint::Index(log.state.log_index()), None).unwrap();
    assert!(!reached);
    // The rest comes from the log itself.
    for round in &log.rounds {
        replay.apply(round, None).unwrap();
    }
    assert_eq!(replay.state().digest(), log.state.digest());
}
