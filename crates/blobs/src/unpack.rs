//! A new directory with the files of a list.
//!
//! The directory is made here and is open to nobody else until the caller gives it away, so no other process can put a link in
//! the way. Links of the list are made when everything else is there, so nothing is written through them.

use crate::store::{BlobError, BlobStore, get};
use crate::tree::{Entry, LIST_BYTES_MAX, Tree, TreeError, ancestors};
use muster_types::BlobDigest;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};

/// Why files could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// Of the store, or of what it returned.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The list breaks a rule.
    #[error("the list of the files: {0}")]
    Tree(#[from] TreeError),
    /// A file of the list is not as large as the list says.
    #[error("{path} has {found} bytes, and {expected} in the list")]
    Size {
        /// Which.
        path: String,
        /// What came.
        found: u64,
        /// What the list says.
        expected: u64,
    },
    /// This host could not write it.
    #[error("write {path}: {error}")]
    Write {
        /// What.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The caller has given up.
    #[error("it was given up")]
    GivenUp,
}

/// How files are unpacked.
pub struct Unpacking<'a> {
    /// What their list is called.
    pub digest: BlobDigest,
    /// A directory that does not exist yet, in one that only the caller can write.
    pub into: &'a Path,
    /// Bytes that the files may have together.
    pub bytes_max: u64,
    /// Their user and group; none for those of this process.
    pub owner: Option<(u32, u32)>,
    /// Whether the caller has given up. Asked between pieces.
    pub is_given_up: &'a dyn Fn() -> bool,
}

/// The list of this digest, whose files have at most `bytes_max` bytes together.
///
/// # Errors
/// When it cannot be had, is not what its digest names, or breaks a rule of lists.
pub fn list(store: &dyn BlobStore, digest: &BlobDigest, bytes_max: u64) -> Result<Tree, UnpackError> {
    let mut list = Vec::new();
    get(store, digest, LIST_BYTES_MAX, &mut |piece| {
        list.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(Tree::decode(&list, bytes_max)?)
}

/// Makes the directory with all files. What is there after an error is not whole, and is the caller's to remove.
///
/// # Errors
/// When something cannot be had, is not what its digest names, breaks a rule of lists, or cannot be written.
pub fn unpack(store: &dyn BlobStore, asked: &Unpacking<'_>) -> Result<(), UnpackError> {
    let tree = list(store, &asked.digest, asked.bytes_max)?;
    let mut target = Target { asked, made: BTreeSet::new() };
    let root = fs::DirBuilder::new().mode(0o700).create(asked.into);
    root.map_err(|error| target.failed("", error))?;
    for entry in tree.entries() {
        if (asked.is_given_up)() {
            return Err(UnpackError::GivenUp);
        }
        match entry {
            Entry::File { path, size, digest, executable } => {
                target.parents(path)?;
                target.file(store, path, (*digest, *size), *executable)?;
            }
            Entry::Directory { path } => {
                target.parents(path)?;
                target.directory(path)?;
            }
            Entry::Link { path, .. } => target.parents(path)?,
        }
    }
    for entry in tree.entries() {
        if let Entry::Link { path, target: to } = entry {
            let at = asked.into.join(path);
            symlink(to, &at).and_then(|()| target.give(&at)).map_err(|error| target.failed(path, error))?;
        }
    }
    Ok(())
}

/// The directory that is unpacked into.
struct Target<'a> {
    asked: &'a Unpacking<'a>,
    /// Directories that are there.
    made: BTreeSet<String>,
}

impl Target<'_> {
    fn failed(&self, path: &str, error: io::Error) -> UnpackError {
        UnpackError::Write { path: self.asked.into.join(path), error }
    }

    fn give(&self, at: &Path) -> io::Result<()> {
        match self.asked.owner {
            Some((user, group)) => lchown(at, Some(user), Some(group)),
            None => Ok(()),
        }
    }

    fn parents(&mut self, path: &str) -> Result<(), UnpackError> {
        ancestors(path).try_for_each(|above| self.directory(above))
    }

    fn directory(&mut self, path: &str) -> Result<(), UnpackError> {
        if self.made.contains(path) {
            return Ok(());
        }
        let at = self.asked.into.join(path);
        // A mask of this process is none of the worker's.
        let made = fs::create_dir(&at)
            .and_then(|()| fs::set_permissions(&at, Permissions::from_mode(0o755)))
            .and_then(|()| self.give(&at));
        made.map_err(|error| self.failed(path, error))?;
        self.made.insert(path.to_owned());
        Ok(())
    }

    fn file(
        &self,
        store: &dyn BlobStore,
        path: &str,
        (digest, size): (BlobDigest, u64),
        executable: bool,
    ) -> Result<(), UnpackError> {
        let at = self.asked.into.join(path);
        let failed = |error| self.failed(path, error);
        let mut options = OpenOptions::new();
        let mut file: File = options.write(true).create_new(true).mode(0o600).open(&at).map_err(failed)?;
        let mut unwritten = None;
        let fetched = get(store, &digest, size, &mut |piece| {
            // The store is asked for no more of what nobody wants.
            if (self.asked.is_given_up)() {
                return Err(BlobError::Changed);
            }
            file.write_all(piece).map_err(|error| {
                unwritten = Some(error);
                BlobError::Changed
            })
        });
        if let Some(error) = unwritten {
            return Err(failed(error));
        }
        let found = match fetched {
            Ok(found) => found,
            Err(_) if (self.asked.is_given_up)() => return Err(UnpackError::GivenUp),
            Err(error) => return Err(error.into()),
        };
        if found != size {
            return Err(UnpackError::Size { path: path.to_owned(), found, expected: size });
        }
        let mode = if executable { 0o755 } else { 0o644 };
        fs::set_permissions(&at, Permissions::from_mode(mode)).and_then(|()| self.give(&at)).map_err(failed)
    }
}
