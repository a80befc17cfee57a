//! The file that fencing records are appended to: laid out ahead, so that a record is durable by one flush of
//! data. A launch waits for that flush; a separate file or directory for each job would cost three, each of which
//! waits for whatever else the file system has under way.
//!
//! A record is its length, its checksum and that of these two, four bytes each, and a JSON body. Behind the last
//! one there are zeros.
//!
//! **Invariant:** a record that was acknowledged is read back or the log is refused. What a power cut left of a
//! record that was not may be dropped: it is the last one, and its boot is over.

use crate::disk::durable::DurableError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const HEADER_BYTES: usize = 12;
/// Laid out at a time.
const STEP_BYTES: u64 = 256 << 10;
/// Largest record: every rank of the largest share of a gang, and far more.
const RECORD_BYTES_MAX: usize = 1 << 20;
/// Largest log that is read; it is rewritten long before.
const LOG_BYTES_MAX: u64 = 256 << 20;

/// An open log.
#[derive(Debug)]
pub(crate) struct FenceLog {
    path: PathBuf,
    file: File,
    end: u64,
    laid_out: u64,
}

fn fail(path: &Path) -> impl Fn(io::Error) -> DurableError {
    let path = path.to_owned();
    move |source| DurableError::Write { path: path.clone(), source }
}

fn framed<T: Serialize>(path: &Path, record: &T) -> Result<Vec<u8>, DurableError> {
    let body = serde_json::to_vec(record).map_err(|e| fail(path)(io::Error::other(e)))?;
    if body.len() > RECORD_BYTES_MAX {
        return Err(fail(path)(io::Error::other("larger than a record may be")));
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    // A damaged length must not swallow the records behind it.
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

impl FenceLog {
    /// The log at `path` with its records, oldest first; none when there is no such file.
    ///
    /// # Errors
    /// When it cannot be read, or a record in it is damaged.
    pub(crate) fn open<T: DeserializeOwned>(path: &Path) -> Result<Option<(FenceLog, Vec<T>)>, DurableError> {
        let read = |source| DurableError::Read { path: path.to_owned(), source };
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(read(source)),
        };
        let bytes = crate::disk::durable::read_bounded(path, LOG_BYTES_MAX).map_err(read)?;
        let corrupt = |at: usize, reason: &str| DurableError::Corrupt {
            path: path.to_owned(),
            reason: format!("the record at byte {at}: {reason}"),
        };
        let is_end = |from: usize| bytes.get(from..).is_none_or(|rest| rest.iter().all(|byte| *byte == 0));
        let (mut records, mut at) = (Vec::new(), 0);
        while !is_end(at) {
            let header = bytes.get(at..at + HEADER_BYTES).ok_or_else(|| corrupt(at, "it is cut off"))?;
            let word = |from: usize| {
                header[from..from + 4].iter().rev().fold(0u32, |all, b| (all << 8) | u32::from(*b))
            };
            let is_whole = crc32fast::hash(&header[..8]) == word(8);
            let body_end = at + HEADER_BYTES + if is_whole { word(0) as usize } else { 0 };
            let body = bytes.get(at + HEADER_BYTES..body_end);
            match body.filter(|body| is_whole && crc32fast::hash(body) == word(4)) {
                Some(body) => {
                    records.push(serde_json::from_slice(body).map_err(|e| corrupt(at, &e.to_string()))?)
                }
                None if is_end(body_end) => {
                    // What is left of it must not end up behind a shorter one.
                    let length = body_end.min(bytes.len()) - at;
                    file.write_all_at(&vec![0; length], at as u64)
                        .and_then(|()| file.sync_data())
                        .map_err(fail(path))?;
                    tracing::warn!(path = %path.display(), "the last fencing record was never finished");
                    break;
                }
                None => return Err(corrupt(at, "a checksum does not match")),
            }
            at = body_end;
        }
        let log = FenceLog { path: path.to_owned(), file, end: at as u64, laid_out: bytes.len() as u64 };
        Ok(Some((log, records)))
    }

    /// A log of these records in the place of whatever is at `path`, durably.
    ///
    /// # Errors
    /// When any step fails; what was there before is then still whole.
    pub(crate) fn replace<T: Serialize>(
        path: &Path,
        records: impl IntoIterator<Item = T>,
    ) -> Result<FenceLog, DurableError> {
        let mut bytes = Vec::new();
        for record in records {
            bytes.extend(framed(path, &record)?);
        }
        let end = bytes.len() as u64;
        let laid_out = (end / STEP_BYTES + 1) * STEP_BYTES;
        bytes.resize(laid_out as usize, 0);
        let aside = path.with_extension("new");
        let options = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true).mode(0o600);
            options
        };
        let file = options().open(&aside).map_err(fail(&aside))?;
        file.write_all_at(&bytes, 0).and_then(|()| file.sync_all()).map_err(fail(&aside))?;
        muster_files::rename_durably(&aside, path).map_err(fail(path))?;
        Ok(FenceLog { path: path.to_owned(), file, end, laid_out })
    }

    /// Adds a record, durably.
    ///
    /// # Errors
    /// When any step fails: then it may be there or not.
    pub(crate) fn append<T: Serialize>(&mut self, record: &T) -> Result<(), DurableError> {
        let failed = fail(&self.path);
        let bytes = framed(&self.path, record)?;
        // Zeros are left behind it, by which its end is known.
        while self.end + bytes.len() as u64 + HEADER_BYTES as u64 > self.laid_out {
            self.file.write_all_at(&vec![0; STEP_BYTES as usize], self.laid_out).map_err(&failed)?;
            self.file.sync_all().map_err(&failed)?;
            self.laid_out += STEP_BYTES;
        }
        self.file.write_all_at(&bytes, self.end).map_err(&failed)?;
        self.file.sync_data().map_err(&failed)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Bytes of its records.
    pub(crate) fn bytes(&self) -> u64 {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(dir: &Path, count: u32) -> PathBuf {
        let path = dir.join("log");
        let mut log = FenceLog::replace::<u32>(&path, []).unwrap();
        for number in 0..count {
            log.append(&format!("record {number}")).unwrap();
        }
        path
    }

    fn read(path: &Path) -> Result<Vec<String>, DurableError> {
        FenceLog::open(path).map(|found| found.unwrap().1)
    }

    #[test]
    fn records_come_back_in_order_over_many_steps_and_restarts() {
        let dir = tempfile::tempdir().unwrap();
        assert!(FenceLog::open::<String>(&dir.path().join("log")).unwrap().is_none());
        let path = log(dir.path(), 3);
        let (mut again, records) = FenceLog::open::<String>(&path).unwrap().unwrap();
        assert_eq!(records, ["record 0", "record 1", "record 2"]);
        let long = "x".repeat(STEP_BYTES as usize);
        for _ in 0..3 {
            again.append(&long).unwrap();
        }
        let records = read(&path).unwrap();
        assert_eq!((records.len(), records[5] == long), (6, true));
        let small = FenceLog::replace(&path, ["only"]).unwrap();
        assert!(small.bytes() < 100);
        assert_eq!(read(&path).unwrap(), ["only"]);
    }

    #[test]
    fn a_damaged_record_is_refused_and_an_unfinished_last_one_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = log(dir.path(), 3);
        let whole = std::fs::read(&path).unwrap();
        let record = HEADER_BYTES + "\"record 0\"".len();
        for at in 0..2 * record {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x41;
            std::fs::write(&path, &bytes).unwrap();
            assert!(read(&path).is_err(), "a flip at {at} of a record that others follow");
        }
        // The last one as a power cut may leave it: its beginning, and zeros.
        for kept in 2 * record + 4..3 * record {
            let mut bytes = whole.clone();
            bytes[kept..3 * record].fill(0);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(read(&path).unwrap().len(), 2, "cut at {kept}");
            // And it is written over.
            let (mut log, _) = FenceLog::open::<String>(&path).unwrap().unwrap();
            log.append(&"x").unwrap();
            assert_eq!(read(&path).unwrap().last().map(String::as_str), Some("x"));
        }
    }
}
