//! What is stored is compressed, and what a newer release stored is left alone.

use muster_archive::Archive;
use std::fs;

use crate::support::{CLUSTER, Log, files, open, store};

#[test]
fn segments_and_bases_become_smaller() {
    let mut log = Log::founded();
    for _ in 0..20 {
        log.submit(50);
    }
    let dir = tempfile::tempdir().unwrap();
    let archive = open(dir.path());
    archive.append(CLUSTER, &log.rounds, 0).unwrap();
    archive.put_base(CLUSTER, archive.end().unwrap(), &log.state).unwrap();
    let plain: usize = log.rounds.iter().map(|round| round.payload.len()).sum();
    let stats = archive.stats().unwrap();
    assert!(stats.segments.stored_bytes * 4 < plain as u64, "{stats:?} of {plain}");
    assert!(stats.segments.plain_bytes > plain as u64);
    assert!(stats.bases.stored_bytes * 3 < stats.bases.plain_bytes, "{stats:?}");
    let size = |kind: &str| fs::metadata(&files(&dir.path().join(kind))[0]).unwrap().len();
    assert_eq!(stats.segments.stored_bytes, size("segments"));
    assert_eq!(stats.bases.stored_bytes, size("bases"));
}

/// A segment of a newer version than this release knows is no damage: mending leaves it alone.
#[test]
fn a_newer_segment_is_not_set_aside() {
    let log = Log::of_steps(12);
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).append(CLUSTER, &log.rounds, 0).unwrap();
    let newest = files(&dir.path().join("segments")).pop().unwrap();
    let mut bytes = fs::read(&newest).unwrap();
    bytes[4] = 9;
    // All of the header but its checksum.
    let header = 73;
    let checksum = crc32fast::hash(&bytes[..header]);
    bytes[header..header + 4].copy_from_slice(&checksum.to_le_bytes());
    fs::write(&newest, bytes).unwrap();
    let error = Archive::open_and_mend(store(dir.path()), Some(CLUSTER)).err().unwrap();
    assert!(matches!(error, muster_archive::ArchiveError::Newer { found: 9, .. }), "{error}");
    assert!(newest.exists());
}
