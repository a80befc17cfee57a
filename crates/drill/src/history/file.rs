//! Histories as files.

use std::collections::HashSet;
use std::io::{self, BufRead, Read, Write};

use super::{History, Line};

/// Bytes of one line.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Lines of one history.
pub const LINES_MAX: usize = 20_000_000;
/// Bytes of a text that a client took over from an error.
const TEXT_BYTES_MAX: usize = 4_096;

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The source failed.
    #[error("{file}:{line}: reading the history failed")]
    Read {
        /// As the caller named it.
        file: String,
        /// From 1.
        line: u64,
        /// What the system said.
        source: io::Error,
    },
    /// Something that is not a line of a history, before the last one.
    #[error("{file}:{line}: not a line of a history: {reason}")]
    Line {
        /// As the caller named it.
        file: String,
        /// From 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
}

/// A last line that was not written whole: its writer was stopped in the middle of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// As the caller named it.
    pub file: String,
    /// From 1.
    pub line: u64,
    /// Bytes of it that are there.
    pub bytes: usize,
}

/// Appends lines. Each is one call of `write_all`, so that lines of a file that is appended to never mix.
pub struct Writer<W> {
    inner: W,
    line: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Appends to `inner`.
    pub fn new(inner: W) -> Writer<W> {
        Writer { inner, line: Vec::new() }
    }

    /// Appends a line.
    ///
    /// # Errors
    /// When the line is too long, or writing fails.
    pub fn append(&mut self, line: &Line) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, line)?;
        if self.line.len() >= LINE_BYTES_MAX {
            let text =
                format!("a line of a history has at most {LINE_BYTES_MAX} bytes, got {}", self.line.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.line.push(b'\n');
        self.inner.write_all(&self.line)
    }

    /// What it appends to.
    pub fn into_inner(self) -> W {
        self.inner
    }
}

impl History {
    /// Reads one more file into this history. `file` is for messages.
    ///
    /// # Errors
    /// When reading fails, and at the first line but the last that is none of ours.
    pub fn read(&mut self, file: &str, mut reader: impl BufRead) -> Result<(), HistoryError> {
        let mut bytes = Vec::new();
        for line in 1u64.. {
            bytes.clear();
            let limit = LINE_BYTES_MAX as u64 + 1;
            let taken = (&mut reader).take(limit).read_until(b'\n', &mut bytes);
            taken.map_err(|source| HistoryError::Read { file: file.to_owned(), line, source })?;
            let bad = |reason: String| HistoryError::Line { file: file.to_owned(), line, reason };
            let Some(whole) = bytes.strip_suffix(b"\n") else {
                if bytes.len() > LINE_BYTES_MAX {
                    return Err(bad(format!("it is longer than {LINE_BYTES_MAX} bytes")));
                }
                if !bytes.is_empty() {
                    self.torn.push(Torn { file: file.to_owned(), line, bytes: bytes.len() });
                }
                break;
            };
            if self.operations.len() + self.watch_events.len() >= LINES_MAX {
                return Err(bad(format!("a history has at most {LINES_MAX} lines")));
            }
            match serde_json::from_slice(whole).map_err(|error| bad(error.to_string()))? {
                Line::Operation(operation) => {
                    check(&operation).map_err(bad)?;
                    self.operations.push(operation);
                }
                Line::Watch(event) => self.watch_events.push(event),
            }
        }
        Ok(())
    }

    /// Operations that are written down twice, by client and id: the files of one drill were mixed up.
    #[must_use]
    pub fn repeated(&self) -> Vec<(u32, u64)> {
        let mut known = HashSet::with_capacity(self.operations.len());
        let ids = self.operations.iter().map(|operation| (operation.client, operation.id));
        ids.filter(|id| !known.insert(*id)).collect()
    }
}

fn check(operation: &super::Operation) -> Result<(), String> {
    use super::{Call, Observation, Outcome, Query};

    if operation.completed_us < operation.invoked_us {
        return Err("it was over before it began".into());
    }
    let fits = match (&operation.call, &operation.outcome) {
        (Call::Submit { jobs, .. }, Outcome::Acknowledged { jobs: ids, .. }) => *jobs as usize == ids.len(),
        (Call::Cancel { .. }, Outcome::Acknowledged { jobs, .. }) => jobs.is_empty(),
        (
            Call::Read { query: Query::Job { job }, .. },
            Outcome::Answered { seen: Observation::Job(seen), .. },
        ) => seen.job == *job,
        (
            Call::Read { query: Query::Jobs { .. }, .. },
            Outcome::Answered { seen: Observation::Jobs { .. }, .. },
        )
        | (
            Call::Read { query: Query::Status, .. },
            Outcome::Answered { seen: Observation::Status { .. }, .. },
        ) => true,
        (_, Outcome::Acknowledged { .. } | Outcome::Answered { .. }) => false,
        (
            _,
            Outcome::Refused { code: text }
            | Outcome::Unknown { error: text }
            | Outcome::Malformed { what: text },
        ) => text.len() <= TEXT_BYTES_MAX,
        (_, Outcome::TimedOut) => true,
    };
    if fits { Ok(()) } else { Err("its outcome does not answer its call".into()) }
}
