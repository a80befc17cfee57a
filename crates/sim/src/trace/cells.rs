//! Rows of a CSV file with columns found by name, and cells with errors that say where they stand.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use csv::{ErrorKind, Reader, ReaderBuilder, StringRecord};

use super::TraceError;
use super::input::{self, Input};

/// Longest id: one name per row is kept in memory.
const ID_BYTES_MAX: usize = 256;

/// Rows of a file; empty once it is over or wrong.
#[derive(Default)]
pub(super) struct Rows {
    open: Option<Open>,
    file: PathBuf,
    line: u64,
    columns: BTreeMap<&'static str, usize>,
}

struct Open {
    reader: Reader<Input>,
    record: StringRecord,
}

impl Rows {
    /// Opens a file that must have all of `required` in its header and may have those of `optional`.
    pub(super) fn open(
        path: &Path,
        required: &[&'static str],
        optional: &[&'static str],
    ) -> Result<Rows, TraceError> {
        let input = input::open(path, "a header row")?;
        let mut rows = Rows { file: path.to_owned(), ..Rows::default() };
        let mut reader = ReaderBuilder::new().from_reader(input);
        let header = match reader.headers() {
            Ok(header) => header.clone(),
            Err(error) => return Err(rows.failed(error)),
        };
        let wrong = |column: &str, reason: String| TraceError::Header {
            file: path.to_owned(),
            column: column.to_owned(),
            reason,
        };
        for name in required.iter().chain(optional) {
            let mut places = header.iter().enumerate().filter(|(_, title)| title.trim() == *name);
            if let Some((place, _)) = places.next() {
                rows.columns.insert(name, place);
            } else if required.contains(name) {
                let known = shorten(&header.iter().collect::<Vec<_>>().join(","));
                return Err(wrong(name, format!("there is no column {name}; the header is {known:?}")));
            }
            if places.next().is_some() {
                return Err(wrong(name, format!("column {name} is there twice")));
            }
        }
        rows.line = 1;
        rows.open = Some(Open { reader, record: StringRecord::new() });
        Ok(rows)
    }

    /// The next row as `read` sees it; none at the end of the file and behind an error.
    pub(super) fn next_row<T>(
        &mut self,
        read: impl FnOnce(&Row<'_>) -> Result<T, TraceError>,
    ) -> Option<Result<T, TraceError>> {
        let mut open = self.open.take()?;
        match open.reader.read_record(&mut open.record) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(Err(self.failed(error))),
        }
        self.line = open.record.position().map_or(self.line + 1, csv::Position::line);
        let result = read(&Row { rows: self, record: &open.record });
        if result.is_ok() {
            self.open = Some(open);
        }
        Some(result)
    }

    /// Something wrong with the line read last.
    pub(super) fn line_error(&self, reason: String) -> TraceError {
        TraceError::Line { file: self.file.clone(), line: self.line, reason }
    }

    fn failed(&self, error: csv::Error) -> TraceError {
        let at = error.position().map(csv::Position::line);
        let line =
            |reason| TraceError::Line { file: self.file.clone(), line: at.unwrap_or(self.line + 1), reason };
        match error.into_kind() {
            ErrorKind::Io(source) => input::failed(&self.file, self.line, source),
            ErrorKind::Utf8 { .. } => line("is not UTF-8 text".to_owned()),
            ErrorKind::UnequalLengths { expected_len, len, .. } => {
                line(format!("has {len} cells, the header has {expected_len}"))
            }
            other => line(format!("is not CSV: {other:?}")),
        }
    }
}

/// One row.
pub(super) struct Row<'a> {
    rows: &'a Rows,
    record: &'a StringRecord,
}

impl<'a> Row<'a> {
    /// A cell; empty when there is no such column.
    pub(super) fn text(&self, column: &str) -> &'a str {
        let place = self.rows.columns.get(column);
        place.and_then(|place| self.record.get(*place)).unwrap_or_default().trim()
    }

    /// The error for a cell.
    pub(super) fn wrong(&self, column: &'static str, reason: String) -> TraceError {
        let (file, line) = (self.rows.file.clone(), self.rows.line);
        TraceError::Cell { file, line, column, value: shorten(self.text(column)), reason }
    }

    /// A whole number.
    pub(super) fn number(&self, column: &'static str, min: u64, max: u64) -> Result<u64, TraceError> {
        let text = self.text(column);
        // `parse` would take a sign.
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let value = if is_plain { text.parse::<u64>().ok() } else { None };
        match value {
            Some(value) if (min..=max).contains(&value) => Ok(value),
            _ => Err(self.wrong(column, format!("must be a whole number from {min} to {max}"))),
        }
    }

    /// A whole number that fits in 32 bits.
    pub(super) fn small(&self, column: &'static str, min: u32, max: u32) -> Result<u32, TraceError> {
        let value = self.number(column, u64::from(min), u64::from(max))?;
        Ok(u32::try_from(value).expect("a number up to a u32 is one"))
    }

    /// A whole number, or none where the cell is empty.
    pub(super) fn optional(
        &self,
        column: &'static str,
        min: u64,
        max: u64,
    ) -> Result<Option<u64>, TraceError> {
        if self.text(column).is_empty() { Ok(None) } else { self.number(column, min, max).map(Some) }
    }

    /// An id that was not there before.
    pub(super) fn id(&self, column: &'static str, known: &mut HashSet<String>) -> Result<String, TraceError> {
        let text = self.text(column);
        if text.is_empty() || text.len() > ID_BYTES_MAX {
            return Err(self.wrong(column, format!("must have 1 to {ID_BYTES_MAX} bytes")));
        }
        if !known.insert(text.to_owned()) {
            return Err(self.wrong(column, "must be unique, and was there before".into()));
        }
        Ok(text.to_owned())
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}
