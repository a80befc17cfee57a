//! Every range of bytes of every file, damaged in every way: what is opened is what was
//! acknowledged, or nothing.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use muster_store::{Damage, Entry, LogId, ReplicaStore, StoreError, StoreOptions, Vote};
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use support::*;

/// What a replica knows, as far as it is promised.
#[derive(Debug, PartialEq)]
struct Content {
    entries: Vec<Entry>,
    vote: Option<Vote>,
    floor: Option<LogId>,
    snapshot: Option<Vec<u8>>,
}

async fn content(store: &ReplicaStore) -> Content {
    let mut log = store.log.clone();
    let snapshot = store
        .snapshots
        .current()
        .map(|snapshot| snapshot.chunks().flat_map(|chunk| chunk.unwrap().to_vec()).collect::<Vec<u8>>());
    Content {
        entries: log.try_get_log_entries(..).await.unwrap(),
        vote: log.read_vote().await.unwrap(),
        floor: store.log.floor(),
        snapshot,
    }
}

/// What became of a damaged replica.
#[derive(Debug, PartialEq)]
enum Outcome {
    Identical,
    Damaged,
    /// Fewer entries at the end, and nothing else is different.
    Shorter(usize),
}

async fn outcome(dir: &Path, whole: &Content) -> Outcome {
    let store = match open(dir) {
        Ok(store) => store,
        Err(StoreError::Damaged { .. }) => return Outcome::Damaged,
        Err(error) => panic!("neither damaged nor whole: {error}"),
    };
    let found = content(&store).await;
    store.log.close().await;
    if found == *whole {
        return Outcome::Identical;
    }
    let lost = whole.entries.len() - found.entries.len();
    let kept = found.entries.len();
    let prefix = Content { entries: whole.entries[..kept].to_vec(), ..found };
    assert_eq!(found.entries, prefix.entries, "what is served is what was written");
    assert_eq!((prefix.vote, prefix.floor, &prefix.snapshot), (whole.vote, whole.floor, &whole.snapshot));
    Outcome::Shorter(lost)
}

#[derive(Clone, Copy, Debug)]
enum Corruption {
    FlipBit(u64),
    Zero(u64, u64),
    Truncate(u64),
    Delete,
}

fn harm(path: &Path, harm: Corruption) {
    if let Corruption::Delete = harm {
        std::fs::remove_file(path).unwrap();
        return;
    }
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    match harm {
        Corruption::FlipBit(at) => {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        }
        Corruption::Zero(at, len) => file.write_all_at(&vec![0; len as usize], at).unwrap(),
        Corruption::Truncate(len) => file.set_len(len).unwrap(),
        Corruption::Delete => {}
    }
}

/// sled says by panicking that a file is corrupt; the test is that it goes no further.
fn without_panic_messages() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let by_sled = info.location().is_some_and(|location| location.file().contains("sled"));
            if !by_sled && std::thread::current().name() != Some("muster-meta-open") {
                hook(info);
            }
        }));
    });
}

/// Where each envelope of a segment starts.
fn envelopes(path: &Path) -> Vec<u64> {
    let bytes = std::fs::read(path).unwrap();
    let starts = bytes.windows(4).enumerate().filter(|(_, word)| word == b"MLG1");
    starts.map(|(at, _)| at as u64).collect()
}

/// A replica with a vote, a snapshot, a purged beginning and entries in several segments, closed.
async fn replica() -> (tempfile::TempDir, Content) {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 60, 200).await;
    publish(&store, 20, b"state");
    store.log.clone().purge(log_id(20)).await.unwrap();
    append(&mut store.log.clone(), vec![entry(60, 90)]).await.unwrap();
    let content = content(&store).await;
    store.log.close().await;
    drop(store);
    // Opening finishes the purge.
    open(dir.path()).unwrap().log.close().await;
    assert_eq!(content.entries.len(), 40);
    assert_eq!(segments(dir.path()).len(), 3, "entries 16..=60 in segments of 16");
    (dir, content)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_class_of_damage_is_seen_or_does_not_matter() {
    without_panic_messages();
    let (dir, whole) = replica().await;
    let relative = |path: &Path| path.strip_prefix(dir.path()).unwrap().to_path_buf();
    let files = segments(dir.path());
    let (middle, last) = (relative(&files[1]), relative(&files[2]));
    let in_middle = envelopes(&files[1]);
    let in_last = envelopes(&files[2]);
    let end = in_last.last().unwrap() + 44 + 90;
    let snapshot = std::fs::read_dir(dir.path().join("snapshots")).unwrap().next().unwrap().unwrap().path();
    let snapshot_len = snapshot.metadata().unwrap().len();
    let snapshot = relative(&snapshot);
    let mark = PathBuf::from("HIGHWATER");
    let identity = PathBuf::from("IDENTITY");
    use Corruption::{Delete, FlipBit, Truncate, Zero};
    let seen: Vec<(&str, &PathBuf, Corruption)> = vec![
        ("segment header", &middle, FlipBit(9)),
        ("segment header", &middle, Zero(0, 4_096)),
        ("header of the last segment", &last, FlipBit(17)),
        ("envelope magic", &middle, FlipBit(in_middle[3])),
        ("envelope length", &middle, FlipBit(in_middle[3] + 8)),
        ("envelope chain", &middle, FlipBit(in_middle[3] + 12)),
        ("envelope term", &middle, FlipBit(in_middle[3] + 16)),
        ("envelope index", &middle, FlipBit(in_middle[3] + 32)),
        ("envelope checksum", &middle, FlipBit(in_middle[3] + 40)),
        ("payload", &middle, FlipBit(in_middle[3] + 60)),
        ("an envelope", &middle, Zero(in_middle[3], in_middle[4] - in_middle[3])),
        ("a block", &middle, Zero(12_288, 4_096)),
        ("end of a sealed segment", &middle, Truncate(*in_middle.last().unwrap())),
        ("middle of an envelope", &middle, Truncate(in_middle[5] + 50)),
        ("a whole segment", &middle, Delete),
        ("all of a segment", &middle, Truncate(0)),
        ("last entry's header", &last, FlipBit(*in_last.last().unwrap() + 20)),
        ("last entry's payload", &last, FlipBit(end - 1)),
        ("last entry", &last, Zero(*in_last.last().unwrap(), 134)),
        ("last entry cut off", &last, Truncate(end - 1)),
        ("last entry gone without a trace", &last, Truncate(*in_last.last().unwrap())),
        ("last segment", &last, Delete),
        ("both marks", &mark, Zero(0, 8_192)),
        ("the marks' file", &mark, Truncate(0)),
        ("the marks' file", &mark, Delete),
        ("identity", &identity, FlipBit(30)),
        ("identity", &identity, Truncate(20)),
        ("identity", &identity, Delete),
        ("snapshot header", &snapshot, FlipBit(2)),
        ("snapshot description", &snapshot, FlipBit(30)),
        ("snapshot chunk", &snapshot, FlipBit(snapshot_len - 25)),
        ("snapshot chunk header", &snapshot, FlipBit(snapshot_len - 35)),
        ("snapshot trailer", &snapshot, FlipBit(snapshot_len - 3)),
        ("snapshot trailer", &snapshot, Truncate(snapshot_len - 1)),
        ("snapshot", &snapshot, Delete),
    ];
    for (what, file, how) in seen {
        let copy = copy_of(dir.path());
        harm(&copy.path().join(file), how);
        for _ in 0..2 {
            // Opening it changed nothing about that.
            assert_eq!(outcome(copy.path(), &whole).await, Outcome::Damaged, "{what}: {how:?}");
        }
    }
    let harmless: Vec<(&str, &PathBuf, Corruption)> = vec![
        ("unused space of a header's page", &middle, FlipBit(3_000)),
        ("a mark in a segment", &last, FlipBit(4_096 + 10)),
        ("space that was never written", &last, FlipBit(end + 500)),
        ("space that was never written", &last, Truncate(end)),
        ("one of two marks", &mark, FlipBit(20)),
        ("one of two marks", &mark, FlipBit(4_096 + 20)),
    ];
    for (what, file, how) in harmless {
        let copy = copy_of(dir.path());
        harm(&copy.path().join(file), how);
        assert_eq!(outcome(copy.path(), &whole).await, Outcome::Identical, "{what}: {how:?}");
    }
    let copy = copy_of(dir.path());
    for name in ["log", "meta"] {
        std::fs::remove_dir_all(copy.path().join(name)).unwrap();
        assert_eq!(outcome(copy.path(), &whole).await, Outcome::Damaged, "{name}");
    }
    // Without any sign of who it was it still is not a directory to begin afresh in.
    for name in ["HIGHWATER", "IDENTITY"] {
        std::fs::remove_file(copy.path().join(name)).unwrap();
    }
    let found = damage(open(copy.path()));
    assert!(matches!(&found, Damage::FileMissing { path } if path.ends_with("IDENTITY")), "{found:?}");
}

/// sled's own files hold the vote and the floor.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_database_is_seen_or_does_not_matter() {
    without_panic_messages();
    let (dir, whole) = replica().await;
    let mut damaged = 0;
    let mut trials = 0;
    for file in std::fs::read_dir(dir.path().join("meta")).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let len = path.metadata().unwrap().len();
        let mut harms = vec![
            Corruption::Delete,
            Corruption::Truncate(0),
            Corruption::Truncate(len / 2),
            Corruption::Truncate(len - 1),
        ];
        let used = std::fs::read(&path).unwrap().iter().rposition(|byte| *byte != 0).unwrap_or(0) as u64;
        harms.extend((0..16).map(|part| Corruption::FlipBit(used * part / 16)));
        harms.extend((0..8).map(|part| Corruption::Zero(used * part / 8, (used / 8).max(1))));
        for how in harms {
            let copy = copy_of(dir.path());
            harm(&copy.path().join("meta").join(path.file_name().unwrap()), how);
            let found = outcome(copy.path(), &whole).await;
            assert!(!matches!(found, Outcome::Shorter(_)), "{}: {how:?}: {found:?}", path.display());
            trials += 1;
            damaged += u32::from(found == Outcome::Damaged);
        }
    }
    assert!(damaged >= 10, "only {damaged} of {trials} were seen");
}

/// Every single byte of a small log: the log is whole, or damaged, or, only for what was written
/// after the last mark and never flushed with one, shorter.
#[tokio::test(flavor = "multi_thread")]
async fn every_byte_of_a_small_log_turned_over() {
    without_panic_messages();
    let dir = tempfile::tempdir().unwrap();
    let small = || StoreOptions { segment_bytes: 13_200, ..options() };
    let store = open_with(dir.path(), small()).unwrap();
    let mut log = store.log.clone();
    log.save_vote(&Vote::new_committed(1, 1)).await.unwrap();
    for index in 0..3 {
        append(&mut log, vec![entry(index, 7)]).await.unwrap();
    }
    store.log.close().await;
    // As a power cut under load leaves it: the marks say less than the log has.
    let marked = copy_of(dir.path());
    let store = open_with(dir.path(), small()).unwrap();
    let mut log = store.log.clone();
    append(&mut log, vec![entry(3, 7), entry(4, 7)]).await.unwrap();
    let whole = content(&store).await;
    store.log.close().await;
    let name = segments(dir.path()).pop().unwrap();
    let name = name.strip_prefix(dir.path()).unwrap();
    let mut bytes = std::fs::read(dir.path().join(name)).unwrap();
    bytes[4_096..12_288].fill(0);
    std::fs::write(marked.path().join(name), &bytes).unwrap();
    let unmarked = envelopes(&marked.path().join(name))[3] as usize;
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let mut counts = [0; 3];
    let positions = (0..26).chain([4_096, 4_130, 8_192]).chain(12_288..end).chain([end + 1, bytes.len() - 1]);
    for at in positions {
        let copy = copy_of(marked.path());
        let mut harmed = bytes.clone();
        harmed[at] ^= 1 << (at % 8);
        std::fs::write(copy.path().join(name), harmed).unwrap();
        match outcome(copy.path(), &whole).await {
            Outcome::Identical => {
                assert!(!(12_288..end).contains(&at) && at >= 24, "byte {at} is not covered");
                counts[0] += 1;
            }
            Outcome::Damaged => {
                assert!(at < unmarked, "byte {at} was never acknowledged");
                counts[1] += 1;
            }
            Outcome::Shorter(lost) => {
                assert!(at >= unmarked && lost <= 2, "byte {at}: {lost} entries were lost");
                counts[2] += 1;
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}
