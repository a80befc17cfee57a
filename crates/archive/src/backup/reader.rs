//! Reading a backup, checked piece by piece and as a whole.

use super::error::{BackupError, file_error};
use super::{BackupHeader, HEADER_BYTES_MAX, LAYOUT, MAGIC, PIECE_BYTES_MAX, piece_checksum};
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// What a complete reading found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Pieces in the file.
    pub pieces: u64,
    /// Bytes of the state in it.
    pub bytes: u64,
}

/// The pieces of a backup, in their order. After an error there are no more; only when the last piece
/// was followed by `None` was the whole file as it was written.
pub struct BackupReader {
    path: PathBuf,
    file: BufReader<File>,
    header: BackupHeader,
    offset: u64,
    pieces: u64,
    bytes: u64,
    checksums: crc32fast::Hasher,
    verified: Option<Verified>,
    over: bool,
}

impl BackupReader {
    /// Opens a backup and checks its header.
    ///
    /// # Errors
    /// When the file cannot be read, is no backup, is newer than this release, or its header is damaged.
    pub fn open(path: &Path) -> Result<BackupReader, BackupError> {
        let file = File::open(path).map_err(|source| file_error("opening", path, source))?;
        let mut file = BufReader::new(file);
        let damaged = |offset, detail| BackupError::Damaged { path: path.to_path_buf(), offset, detail };
        let mut read = |bytes: &mut [u8], offset| match file.read_exact(bytes) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(damaged(offset, "the file ends")),
            read => read.map_err(|source| file_error("reading", path, source)),
        };
        let mut start = [0u8; 12];
        read(&mut start[..4], 0).map_err(|_| BackupError::Foreign { path: path.to_path_buf() })?;
        if start[..4] != MAGIC {
            return Err(BackupError::Foreign { path: path.to_path_buf() });
        }
        read(&mut start[4..], 4)?;
        let number = |at: usize| u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]);
        let layout = number(4);
        if layout > LAYOUT {
            return Err(BackupError::Newer { path: path.to_path_buf(), found: layout, supported: LAYOUT });
        }
        let length = number(8) as usize;
        if layout == 0 || length > HEADER_BYTES_MAX {
            return Err(damaged(4, "the header's layout or length"));
        }
        let mut encoded = vec![0u8; length];
        read(&mut encoded, 12)?;
        let mut checksum = [0u8; 4];
        let offset = 12 + length as u64;
        read(&mut checksum, offset)?;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&start);
        hasher.update(&encoded);
        if hasher.finalize() != u32::from_le_bytes(checksum) {
            return Err(damaged(offset, "the header's checksum"));
        }
        let header = BackupHeader::decode(&encoded).ok_or_else(|| damaged(12, "the header"))?;
        Ok(BackupReader {
            path: path.to_path_buf(),
            file,
            header,
            offset: offset + 4,
            pieces: 0,
            bytes: 0,
            checksums: crc32fast::Hasher::new(),
            verified: None,
            over: false,
        })
    }

    /// What the backup says of itself.
    #[must_use]
    pub fn header(&self) -> &BackupHeader {
        &self.header
    }

    /// What was read, once the end was reached and everything matched.
    #[must_use]
    pub fn verified(&self) -> Option<Verified> {
        self.verified
    }

    fn damaged(&self, detail: &'static str) -> BackupError {
        BackupError::Damaged { path: self.path.clone(), offset: self.offset, detail }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], BackupError> {
        let mut bytes = [0u8; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), BackupError> {
        match self.file.read_exact(bytes) {
            Ok(()) => {
                self.offset += bytes.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(self.damaged("the file ends")),
            Err(source) => Err(file_error("reading", &self.path, source)),
        }
    }

    fn next_piece(&mut self) -> Result<Option<Vec<u8>>, BackupError> {
        let length = u32::from_le_bytes(self.take()?) as usize;
        if length == 0 {
            return self.end().map(|()| None);
        }
        if length > PIECE_BYTES_MAX {
            return Err(self.damaged("the length of a piece"));
        }
        let checksum: [u8; 4] = self.take()?;
        let mut bytes = vec![0u8; length];
        self.fill(&mut bytes)?;
        if piece_checksum(self.pieces, &bytes) != u32::from_le_bytes(checksum) {
            return Err(self.damaged("the checksum of the piece before it"));
        }
        self.checksums.update(&checksum);
        self.pieces += 1;
        self.bytes += length as u64;
        Ok(Some(bytes))
    }

    fn end(&mut self) -> Result<(), BackupError> {
        let end: [u8; 20] = self.take()?;
        let checksum: [u8; 4] = self.take()?;
        if crc32fast::hash(&end) != u32::from_le_bytes(checksum) {
            return Err(self.damaged("the checksum of the end"));
        }
        let mut expected = self.pieces.to_le_bytes().to_vec();
        expected.extend_from_slice(&self.bytes.to_le_bytes());
        expected.extend_from_slice(&self.checksums.clone().finalize().to_le_bytes());
        if end[..] != expected[..] {
            return Err(self.damaged("what was read is not what was counted at the end"));
        }
        match self.file.read(&mut [0u8; 1]) {
            Ok(0) => {}
            Ok(_) => return Err(self.damaged("something follows the end")),
            Err(source) => return Err(file_error("reading", &self.path, source)),
        }
        self.verified = Some(Verified { pieces: self.pieces, bytes: self.bytes });
        Ok(())
    }
}

impl Iterator for BackupReader {
    type Item = Result<Vec<u8>, BackupError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.next_piece().transpose();
        self.over = !matches!(next, Some(Ok(_)));
        next
    }
}
