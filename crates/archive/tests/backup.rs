//! What a backup promises: all of it or nothing, the same bytes or an error.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use muster_archive::backup::{
    BackupError, BackupHeader, BackupReader, BackupWriter, PIECE_BYTES_MAX, Verified,
};
use muster_types::ClusterId;
use std::path::Path;

fn header() -> BackupHeader {
    BackupHeader {
        cluster_id: ClusterId(0x77),
        cluster_generation: 3,
        log_index: 41,
        log_time_ms: 1_700_000_000_000,
        state_digest: 0xfeed,
        format: 1,
        replica_id: 2,
        created_at_ms: 1_700_000_000_001,
        version: "0.1.0".to_owned(),
    }
}

fn write(path: &Path, pieces: &[&[u8]]) {
    let mut writer = BackupWriter::create(path, &header()).unwrap();
    for piece in pieces {
        writer.write(piece).unwrap();
    }
    writer.finish().unwrap();
}

fn read(path: &Path) -> Result<(BackupHeader, Vec<u8>, Verified), BackupError> {
    let mut reader = BackupReader::open(path)?;
    let header = reader.header().clone();
    let mut bytes = Vec::new();
    for piece in reader.by_ref() {
        bytes.extend(piece?);
    }
    let verified = reader.verified().expect("the end was reached");
    Ok((header, bytes, verified))
}

#[test]
fn what_was_written_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.backup");
    let large = vec![7u8; PIECE_BYTES_MAX + 5];
    write(&path, &[b"one", b"", &large]);
    let (read_header, bytes, verified) = read(&path).unwrap();
    assert_eq!(read_header, header());
    assert_eq!(bytes, [b"one".as_slice(), &large].concat());
    assert_eq!(verified, Verified { pieces: 3, bytes: bytes.len() as u64 });
    let names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["a.backup"], "nothing temporary is left");
}

#[test]
fn every_flipped_bit_and_every_missing_byte_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.backup");
    write(&path, &[b"first piece", b"second"]);
    let genuine = std::fs::read(&path).unwrap();
    for at in 0..genuine.len() {
        for bit in 0..8 {
            let mut bytes = genuine.clone();
            bytes[at] ^= 1 << bit;
            std::fs::write(&path, &bytes).unwrap();
            assert!(read(&path).is_err(), "bit {bit} of byte {at} was turned over and nobody noticed");
        }
        std::fs::write(&path, &genuine[..at]).unwrap();
        assert!(read(&path).is_err(), "the file was cut to {at} bytes and nobody noticed");
    }
    std::fs::write(&path, [genuine.as_slice(), b"x"].concat()).unwrap();
    assert!(read(&path).is_err(), "a byte more was not noticed");
    std::fs::write(&path, &genuine).unwrap();
    assert!(read(&path).is_ok());
}

#[test]
fn pieces_cannot_change_places() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.backup");
    write(&path, &[b"AAAA", b"BBBB"]);
    let genuine = std::fs::read(&path).unwrap();
    let at = genuine.windows(4).position(|w| w == b"AAAA").unwrap() - 8;
    let mut bytes = genuine.clone();
    bytes[at..at + 12].copy_from_slice(&genuine[at + 12..at + 24]);
    bytes[at + 12..at + 24].copy_from_slice(&genuine[at..at + 12]);
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(read(&path), Err(BackupError::Damaged { .. })));
}

#[test]
fn nothing_is_replaced_and_nothing_half_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.backup");
    let writer = BackupWriter::create(&path, &header()).unwrap();
    assert!(!path.exists());
    drop(writer);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "what was given up is removed");

    let writer = BackupWriter::create(&path, &header()).unwrap();
    std::fs::write(&path, b"mine").unwrap();
    assert!(matches!(writer.finish(), Err(BackupError::Exists { .. })), "it came into being meanwhile");
    assert!(matches!(BackupWriter::create(&path, &header()), Err(BackupError::Exists { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

#[test]
fn foreign_and_newer_files_are_named_as_such() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.backup");
    for foreign in [&b""[..], b"MS", b"PK\x03\x04 something else"] {
        std::fs::write(&path, foreign).unwrap();
        assert!(matches!(read(&path), Err(BackupError::Foreign { .. })));
    }
    std::fs::write(&path, b"MSBK\x02\0\0\0 whatever layout two may be").unwrap();
    assert!(matches!(read(&path), Err(BackupError::Newer { found: 2, supported: 1, .. })));
}

#[test]
fn damaged_backups_never_panic() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.backup");
    write(&path, &[b"first piece", b"second"]);
    let seed = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    muster_fuzz::run(
        "backup",
        std::slice::from_ref(&seed),
        |_| {},
        |input| {
            std::fs::write(&path, input).unwrap();
            let is_taken = read(&path).is_ok();
            assert!(!is_taken || input == seed, "something else was taken");
            is_taken
        },
    );
}
