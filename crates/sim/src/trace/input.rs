//! Bytes of a file, unpacked when it is packed, with a bound on the length of a line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::TraceError;

/// Longest line of a trace. A file without line breaks would be read into memory as one.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// What [`Bounded`] says of a line that is too long; recognised again in [`failed`].
const TOO_LONG: &str = "a line is too long";

pub(super) type Input = BufReader<Bounded>;

/// Opens a file, packed or not; `expected` says what a file with nothing in it lacks.
pub(super) fn open(path: &Path, expected: &'static str) -> Result<Input, TraceError> {
    let not_opened = |source| TraceError::Open { file: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(not_opened)?);
    let begin = file.fill_buf().map_err(not_opened)?;
    // RFC 1952: the two bytes that every gzip member begins with.
    let is_packed = begin.starts_with(&[0x1f, 0x8b]);
    let inner: Box<dyn Read> = if is_packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut input = BufReader::new(Bounded { inner, in_line: 0, is_quoted: false, last: b'\n' });
    let begin = input.fill_buf().map_err(|error| failed(path, 0, error))?;
    if begin.is_empty() {
        return Err(TraceError::Empty { file: path.to_owned(), expected });
    }
    Ok(input)
}

/// An error of reading as an error of the trace.
pub(super) fn failed(path: &Path, line: u64, source: io::Error) -> TraceError {
    let file = path.to_owned();
    if source.kind() == io::ErrorKind::UnexpectedEof {
        return TraceError::Truncated { file, line };
    }
    if source.get_ref().is_some_and(|inner| inner.to_string() == TOO_LONG) {
        let reason = format!("is longer than {LINE_BYTES_MAX} bytes");
        return TraceError::Line { file, line: line + 1, reason };
    }
    TraceError::Read { file, line, source }
}

/// Fails in a line that goes on for too long. Line breaks between quotes do not end a line: a quote that is
/// never closed makes the rest of the file one cell.
pub(super) struct Bounded {
    inner: Box<dyn Read>,
    in_line: usize,
    is_quoted: bool,
    last: u8,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        for byte in &buffer[..read] {
            match byte {
                b'\n' if !self.is_quoted => self.in_line = 0,
                b'"' => {
                    // Quotes mean something around a whole cell, and a pair of them within it is one.
                    let may_open = matches!(self.last, b'\n' | b',' | b'"');
                    self.is_quoted = !self.is_quoted && may_open;
                    self.in_line += 1;
                }
                _ => self.in_line += 1,
            }
            self.last = *byte;
            if self.in_line > LINE_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, TOO_LONG));
            }
        }
        Ok(read)
    }
}
