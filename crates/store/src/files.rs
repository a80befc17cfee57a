//! What the store asks of the file system for everything that must survive, behind one trait: a
//! seam for tests that count, fail, forget or tear it.
//!
//! **Invariant:** a failed [`FileLayer::sync_data`] is never tried again; a write or an allocation
//! that found the disk full may be.

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The operations. Each names the file by its path as well, for layers that record them; the default
/// of each is the system's.
pub trait FileLayer: Send + Sync {
    /// Creates a file that does not exist yet, for reading and writing.
    ///
    /// # Errors
    /// What the system said.
    fn create(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().create_new(true).read(true).write(true).open(path)
    }

    /// Reserves space so that later writes below `len` need none; the file is `len` long then.
    ///
    /// # Errors
    /// What the system reported; nothing has changed when the disk was full.
    fn allocate(&self, file: &File, path: &Path, len: u64) -> io::Result<()> {
        let _ = path;
        let bytes = i64::try_from(len).map_err(io::Error::other)?;
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => Ok(()),
            // Some file systems cannot: there a write may find the disk full, and its batch is parked.
            Err(nix::errno::Errno::EOPNOTSUPP | nix::errno::Errno::ENOSYS) => file.set_len(len),
            Err(error) => Err(error.into()),
        }
    }

    /// Cuts a file.
    ///
    /// # Errors
    /// What the system said.
    fn set_len(&self, file: &File, path: &Path, len: u64) -> io::Result<()> {
        let _ = path;
        file.set_len(len)
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// What the system said; any part may have been written.
    fn write_at(&self, file: &File, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
        let _ = path;
        file.write_all_at(bytes, offset)
    }

    /// Returns once the content would survive a power cut.
    ///
    /// # Errors
    /// What the system said; the caller never tries again.
    fn sync_data(&self, file: &File, path: &Path) -> io::Result<()> {
        let _ = path;
        file.sync_data()
    }

    /// Returns once the names in a directory would survive a power cut.
    ///
    /// # Errors
    /// What the system said; the caller never tries again.
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        muster_files::sync_directory(path)
    }

    /// Gives a file another name, in place of whatever had it.
    ///
    /// # Errors
    /// What the system said.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// What the system said.
    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    /// Bytes this process may still write to the disk that `dir` is on.
    ///
    /// # Errors
    /// What the system said.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let found = statvfs(dir)?;
        Ok(found.blocks_available().saturating_mul(found.fragment_size()))
    }
}

/// The system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFiles;

impl FileLayer for SystemFiles {}

/// Whether an operation failed for lack of space: of the disk, or of the quota of this user.
pub(crate) fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
