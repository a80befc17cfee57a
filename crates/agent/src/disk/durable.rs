//! Small files that survive a power cut. And such that have to survive only the processes that write them, with no flush
//! that a launch would wait for. Both appear whole (`muster-files`).
//!
//! A record is one header line (`muster-record 1 <crc32> <length>`) and a JSON body, so that a
//! person can read it and a torn or rotten one is told from a whole one.
//!
//! **Invariant:** a reader sees the old record or the new one, never a mixture; bytes that do not
//! match their checksum are an error, never a value.

use muster_files::{Lasting, Manner};
pub use muster_files::{read_bounded, sync_directory};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};

/// Largest record: far above a launch with every text at its bound.
pub const RECORD_BYTES_MAX: u64 = 8 << 20;
const MAGIC: &str = "muster-record 1";

/// What kept a record from being written or read.
#[derive(Debug, thiserror::Error)]
pub enum DurableError {
    /// Writing failed before the rename: the old record stands.
    #[error("write {path}")]
    Write {
        /// The record.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Reading failed for another reason than absence.
    #[error("read {path}")]
    Read {
        /// The record.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The bytes are not a whole record of the expected form.
    #[error("{path} is not a whole record: {reason}")]
    Corrupt {
        /// The record.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Replaces the record at `path`, durably.
///
/// # Errors
/// When any step fails; the old record, if there was one, is then still whole.
pub fn write_record<T: Serialize>(path: &Path, value: &T) -> Result<(), DurableError> {
    record(path, value, Lasting::PowerLoss)
}

/// Replaces the record at `path`. Every process sees the old one or the new one; after a power cut there may be
/// neither, so it is for what means nothing in another boot.
///
/// # Errors
/// When any step fails; the old record, if there was one, is then still whole.
pub fn write_record_of_boot<T: Serialize>(path: &Path, value: &T) -> Result<(), DurableError> {
    record(path, value, Lasting::Processes)
}

fn record<T: Serialize>(path: &Path, value: &T, lasting: Lasting) -> Result<(), DurableError> {
    let fail = |source| DurableError::Write { path: path.to_owned(), source };
    let bytes = encode_record(value).map_err(fail)?;
    replace(path, &bytes, lasting).map_err(fail)
}

/// The bytes of a record, for a file that nobody reads yet.
///
/// # Errors
/// When the value has no JSON form or is larger than a record may be.
pub(crate) fn encode_record<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(value).map_err(io::Error::other)?;
    if body.len() as u64 > RECORD_BYTES_MAX {
        return Err(io::Error::other("larger than a record may be"));
    }
    let mut bytes = format!("{MAGIC} {:08x} {}\n", crc32fast::hash(&body), body.len()).into_bytes();
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// Replaces a file through a sibling; not for what has to survive a power cut.
///
/// # Errors
/// When any step fails.
pub fn write_file_of_boot(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, Lasting::Processes)
}

fn replace(path: &Path, bytes: &[u8], lasting: Lasting) -> io::Result<()> {
    muster_files::write_whole(path, bytes, Manner { lasting, ..Manner::PRIVATE })
}

/// The record at `path`; none when there is no file.
///
/// # Errors
/// When it cannot be read or is not whole.
pub fn read_record<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, DurableError> {
    let bytes = match read_bounded(path, RECORD_BYTES_MAX + 64) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(DurableError::Read { path: path.to_owned(), source }),
    };
    let corrupt = |reason: &str| DurableError::Corrupt { path: path.to_owned(), reason: reason.to_owned() };
    let body = checked_body(&bytes).map_err(corrupt)?;
    serde_json::from_slice(body).map(Some).map_err(|e| corrupt(&e.to_string()))
}

fn checked_body(bytes: &[u8]) -> Result<&[u8], &'static str> {
    let split = bytes.iter().position(|b| *b == b'\n').ok_or("no header")?;
    let header = std::str::from_utf8(&bytes[..split]).map_err(|_| "the header is not text")?;
    let body = &bytes[split + 1..];
    let rest = header.strip_prefix(MAGIC).ok_or("another kind of file")?;
    let mut words = rest.split_ascii_whitespace();
    let sum = words.next().and_then(|w| u32::from_str_radix(w, 16).ok()).ok_or("no checksum")?;
    let length: usize = words.next().and_then(|w| w.parse().ok()).ok_or("no length")?;
    if body.len() != length {
        return Err("cut short or extended");
    }
    if crc32fast::hash(body) != sum {
        return Err("the checksum does not match");
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_every_flipped_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        assert!(read_record::<Vec<u32>>(&path).unwrap().is_none());
        write_record(&path, &vec![1u32, 2, 3]).unwrap();
        assert_eq!(read_record::<Vec<u32>>(&path).unwrap(), Some(vec![1, 2, 3]));
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x41;
            std::fs::write(&path, &bytes).unwrap();
            // A changed header letter may still read as the same record; the value never differs.
            if let Ok(Some(value)) = read_record::<Vec<u32>>(&path) {
                assert_eq!(value, vec![1, 2, 3], "byte {at}");
            }
        }
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(read_record::<Vec<u32>>(&path).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn nothing_is_left_beside_the_record() {
        let dir = tempfile::tempdir().unwrap();
        write_record(&dir.path().join("r"), &1u8).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
