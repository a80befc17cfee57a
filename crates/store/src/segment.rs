//! One file of the log: a header, two slots of marks, and envelopes one after the other.
//!
//! | offset | content |
//! |---|---|
//! | 0 | header: magic `MSEG`, version, index of the first entry, what that entry chains to, CRC-32 |
//! | 4096, 8192 | slots of marks, see `high_water` |
//! | 12288 | envelopes, see `codec`; zeros follow the last |
//!
//! The file has all its space from the start, so that a flush changes no size and needs no free space. A file
//! under its final name was complete once: it is made under another.
//!
//! **Invariant:** an envelope counts only when everything before it in the file does.

use crate::codec::{self, CodecError, Reader};
use crate::error::StoreError;
use crate::files::FileLayer;
use crate::high_water::{SLOT_BYTES, SLOTS};
use crate::identity::{file_error, room_error, sync_directory};
use crate::raft_types::LogId;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 4] = *b"MSEG";
const VERSION: u32 = 1;
const EXTENSION: &str = "segment";
const TEMPORARY_EXTENSION: &str = "tmp";
const PAGE_BYTES: u64 = 4_096;
const HEADER_BYTES: usize = 24;
/// Where the slots of marks start.
pub(crate) const MARKS_OFFSET: u64 = PAGE_BYTES;
/// Where the envelopes start.
pub(crate) const DATA_OFFSET: u64 = MARKS_OFFSET + SLOTS * SLOT_BYTES as u64;
/// Zeros are written in pieces of this size.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// What is known of one file of the log.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    pub(crate) first_index: u64,
    /// Where each entry starts: four bytes of memory per retained entry.
    offsets: Vec<u32>,
    /// Where the next entry starts.
    pub(crate) end: u64,
    /// Nothing was ever written from here on.
    pub(crate) written_end: u64,
    /// The size of the file.
    pub(crate) len: u64,
}

/// What reading a whole file found.
pub(crate) struct Scanned {
    pub(crate) segment: Segment,
    /// What the first entry chains to.
    pub(crate) first_chain: u32,
    /// Every intact entry, with the checksum of its envelope.
    pub(crate) entries: Vec<(LogId, u32)>,
    /// Something follows the last intact entry.
    pub(crate) torn: bool,
}

/// Why a file is not a segment.
pub(crate) enum ScanError {
    /// It could not be read.
    Store(StoreError),
    /// It is not what was written.
    Corrupt(String),
}

pub(crate) fn path_of(directory: &Path, first_index: u64) -> PathBuf {
    // Fixed width, so that the names sort like the numbers.
    directory.join(format!("{first_index:020}.{EXTENSION}"))
}

fn first_index_of(path: &Path) -> Option<u64> {
    if path.extension()? != EXTENSION {
        return None;
    }
    let stem = path.file_stem()?.to_str()?;
    stem.parse().ok().filter(|_| stem.len() == 20)
}

/// The first indexes of the segments in a directory, in order. Leftovers of interrupted creations are
/// removed.
pub(crate) fn list(directory: &Path, files: &dyn FileLayer) -> Result<Vec<u64>, StoreError> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(directory).map_err(|source| file_error("listing", directory, source))? {
        let path = file.map_err(|source| file_error("listing", directory, source))?.path();
        if let Some(first_index) = first_index_of(&path) {
            found.push(first_index);
        } else if path.extension().is_some_and(|extension| extension == TEMPORARY_EXTENSION) {
            files.remove(&path).map_err(|source| file_error("removing", &path, source))?;
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn header(first_index: u64, chain: u32) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&first_index.to_le_bytes());
    header.extend_from_slice(&chain.to_le_bytes());
    let header = codec::seal(header);
    debug_assert_eq!(header.len(), HEADER_BYTES, "what is written is what is read");
    header
}

fn read_header(bytes: &[u8]) -> Result<(u64, u32), CodecError> {
    let mut reader = Reader(bytes);
    let mut reader = Reader(codec::unseal(reader.take(HEADER_BYTES, "the header")?, "the header")?);
    let magic = reader.take(4, "the magic")?;
    let version = reader.u32("version")?;
    if magic != MAGIC || version != VERSION {
        return Err(CodecError::Invalid("the header"));
    }
    Ok((reader.u64("the first index")?, reader.u32("the chain")?))
}

pub(crate) fn open_file(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|source| file_error("opening", path, source))
}

impl Segment {
    /// Makes a segment of `len` bytes, durably. Nothing has changed when the disk is full.
    pub(crate) fn create(
        directory: &Path,
        first_index: u64,
        chain: u32,
        len: u64,
        files: &dyn FileLayer,
    ) -> Result<(Segment, File), StoreError> {
        let path = path_of(directory, first_index);
        let temporary = path.with_extension(TEMPORARY_EXTENSION);
        if temporary.exists() {
            files.remove(&temporary).map_err(|source| file_error("removing", &temporary, source))?;
        }
        let file = files.create(&temporary).map_err(|source| room_error("creating", &temporary, source))?;
        let prepared = files
            .allocate(&file, &temporary, len)
            .and_then(|()| files.write_at(&file, &temporary, &header(first_index, chain), 0));
        if let Err(source) = prepared {
            // Whatever was allocated goes back; a leftover is removed at the next open.
            let _ = files.remove(&temporary);
            return Err(room_error("allocating", &path, source));
        }
        files
            .sync_data(&file, &temporary)
            .and_then(|()| files.rename(&temporary, &path))
            .map_err(|source| file_error("creating", &path, source))?;
        sync_directory(directory, files)?;
        let offsets = Vec::new();
        let segment = Segment { path, first_index, offsets, end: DATA_OFFSET, written_end: DATA_OFFSET, len };
        Ok((segment, file))
    }

    /// Reads a whole segment. `buffer` is only there to be used again.
    pub(crate) fn scan(
        directory: &Path,
        first_index: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<(Scanned, File), ScanError> {
        let path = path_of(directory, first_index);
        let mut file = open_file(&path).map_err(ScanError::Store)?;
        buffer.clear();
        file.read_to_end(buffer).map_err(|source| ScanError::Store(file_error("reading", &path, source)))?;
        let (named, first_chain) =
            read_header(buffer).map_err(|error| ScanError::Corrupt(error.to_string()))?;
        if named != first_index {
            return Err(ScanError::Corrupt(format!("it starts with entry {named}")));
        }
        let len = buffer.len() as u64;
        let mut segment = Segment {
            path,
            first_index,
            offsets: Vec::new(),
            end: DATA_OFFSET.min(len),
            written_end: DATA_OFFSET.min(len),
            len,
        };
        let mut entries: Vec<(LogId, u32)> = Vec::new();
        let mut chain = first_chain;
        while let Some(envelope) = buffer.get(segment.end as usize..)
            && let Ok(found) = codec::check_envelope(envelope)
            && found.log_id.index() == segment.next_index()
            && found.chain == chain
            && let Ok(offset) = u32::try_from(segment.end)
        {
            chain = found.checksum;
            entries.push((found.log_id, found.checksum));
            segment.offsets.push(offset);
            segment.end += found.len as u64;
        }
        let rest = buffer.get(segment.end as usize..).unwrap_or_default();
        let dirty = rest.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1);
        segment.written_end = segment.end + dirty;
        Ok((Scanned { segment, first_chain, entries, torn: dirty > 0 }, file))
    }

    pub(crate) fn entries(&self) -> u64 {
        self.offsets.len() as u64
    }

    pub(crate) fn next_index(&self) -> u64 {
        self.first_index + self.entries()
    }

    /// Where an entry starts; where the next would, for the one after the last.
    pub(crate) fn offset(&self, index: u64) -> Option<u64> {
        let at = usize::try_from(index.checked_sub(self.first_index)?).ok()?;
        match self.offsets.get(at) {
            Some(offset) => Some(u64::from(*offset)),
            None if at == self.offsets.len() => Some(self.end),
            None => None,
        }
    }

    /// Counts entries that were just written: where each starts, and where the last ends.
    pub(crate) fn accept(&mut self, offsets: &[u32], end: u64) {
        self.offsets.extend_from_slice(offsets);
        self.end = end;
    }

    /// Forgets every entry from `index` on and overwrites them with zeros, durably.
    pub(crate) fn cut(&mut self, index: u64, file: &File, files: &dyn FileLayer) -> Result<(), StoreError> {
        let Some(end) = self.offset(index) else {
            return Err(StoreError::EntryMissing { index });
        };
        let mut at = end;
        while at < self.written_end {
            let piece = &ZEROS[..ZEROS.len().min((self.written_end - at) as usize)];
            files
                .write_at(file, &self.path, piece, at)
                .map_err(|source| file_error("zeroing", &self.path, source))?;
            at += piece.len() as u64;
        }
        files.sync_data(file, &self.path).map_err(|source| file_error("flushing", &self.path, source))?;
        self.offsets.truncate((index - self.first_index) as usize);
        self.end = end;
        self.written_end = end;
        Ok(())
    }
}
