//! Writing a backup.

use super::error::{BackupError, file_error};
use super::{BackupHeader, LAYOUT, MAGIC, PIECE_BYTES_MAX, piece_checksum};
use muster_files::{directory_of, sync_directory};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// A backup that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Pieces in it.
    pub pieces: u64,
    /// Bytes of the state in it.
    pub bytes: u64,
}

/// A backup being written. Dropping it removes what was written.
pub struct BackupWriter {
    path: PathBuf,
    temporary: PathBuf,
    file: BufWriter<File>,
    pieces: u64,
    bytes: u64,
    checksums: crc32fast::Hasher,
    named: bool,
}

impl Drop for BackupWriter {
    fn drop(&mut self) {
        if !self.named {
            // A file that is left over carries a temporary name, and the next attempt replaces it.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

impl BackupWriter {
    /// Begins a backup that will be named `path`.
    ///
    /// # Errors
    /// When there is such a file already, or no temporary file can be made next to it.
    pub fn create(path: &Path, header: &BackupHeader) -> Result<BackupWriter, BackupError> {
        if path.symlink_metadata().is_ok() {
            return Err(BackupError::Exists { path: path.to_path_buf() });
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let temporary = directory_of(path).join(name);
        let file = File::create(&temporary).map_err(|source| file_error("creating", &temporary, source))?;
        let mut writer = BackupWriter {
            path: path.to_path_buf(),
            temporary,
            file: BufWriter::new(file),
            pieces: 0,
            bytes: 0,
            checksums: crc32fast::Hasher::new(),
            named: false,
        };
        let encoded = header.encode();
        let mut start = MAGIC.to_vec();
        start.extend_from_slice(&LAYOUT.to_le_bytes());
        start.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
        start.extend_from_slice(&encoded);
        let checksum = crc32fast::hash(&start);
        start.extend_from_slice(&checksum.to_le_bytes());
        writer.put(&start)?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.file.write_all(bytes).map_err(|source| file_error("writing", &self.temporary, source))
    }

    /// Appends bytes of the state; many are cut into several pieces.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        for piece in bytes.chunks(PIECE_BYTES_MAX) {
            let checksum = piece_checksum(self.pieces, piece).to_le_bytes();
            self.put(&(piece.len() as u32).to_le_bytes())?;
            self.put(&checksum)?;
            self.put(piece)?;
            self.checksums.update(&checksum);
            self.pieces += 1;
            self.bytes += piece.len() as u64;
        }
        Ok(())
    }

    /// Flushes the file, gives it its name and flushes that. Until then there is no such file, and
    /// after it there is a complete one.
    ///
    /// # Errors
    /// When the file cannot be flushed or named, or one of that name has come into being meanwhile.
    pub fn finish(mut self) -> Result<Written, BackupError> {
        let mut end = self.pieces.to_le_bytes().to_vec();
        end.extend_from_slice(&self.bytes.to_le_bytes());
        end.extend_from_slice(&self.checksums.clone().finalize().to_le_bytes());
        let checksum = crc32fast::hash(&end);
        end.extend_from_slice(&checksum.to_le_bytes());
        self.put(&0u32.to_le_bytes())?;
        self.put(&end)?;
        let flushed = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        flushed.map_err(|source| file_error("flushing", &self.temporary, source))?;
        // A second name fails where the first exists; a rename would replace it.
        match std::fs::hard_link(&self.temporary, &self.path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(BackupError::Exists { path: self.path.clone() });
            }
            // File systems without second names.
            Err(_) => {
                std::fs::rename(&self.temporary, &self.path)
                    .map_err(|source| file_error("naming", &self.path, source))?;
                self.named = true;
            }
        }
        sync_directory(directory_of(&self.path))
            .map_err(|source| file_error("flushing the directory of", &self.path, source))?;
        Ok(Written { pieces: self.pieces, bytes: self.bytes })
    }
}
