//! Where the objects of an archive are kept.
//!
//! The interface is what every object store has: put whole, get a range, list by prefix. No append and
//! no rename, so that a bucket can implement it as well as a directory.

use bytes::Bytes;
use muster_files::{Manner, WAITING, WholeFile, sync_directory};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::layout::{BASES, RETENTION, SEGMENTS};

/// Bytes of an object's name.
const NAME_BYTES_MAX: usize = 512;
/// Objects that one listing returns at most: at 8 MiB each, half a petabyte.
const LISTED_MAX: usize = 1 << 26;
/// Levels of directories that a listing descends.
const DEPTH_MAX: usize = 8;
/// The directory of damaged objects.
const ASIDE: &str = "damaged";
/// Bytes that are copied at a time.
const PIECE_BYTES: usize = 1 << 20;

/// One object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// A store of objects. Calls block; nobody calls it from a thread that serves.
pub trait ObjectStore: Send + Sync + 'static {
    /// Writes an object, whole or not at all, and returns when it would survive the loss of power. One
    /// of the same name is replaced.
    ///
    /// # Errors
    /// What the store, or the iterator, said; then there is no new object of this name.
    fn put(&self, name: &str, content: &mut dyn Iterator<Item = io::Result<Bytes>>) -> io::Result<()>;

    /// Bytes of an object from `from` on: `length` of them, fewer only at its end.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without such an object, else what the store said.
    fn get(&self, name: &str, from: u64, length: usize) -> io::Result<Bytes>;

    /// An object's size in bytes.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without such an object, else what the store said.
    fn size(&self, name: &str) -> io::Result<u64>;

    /// Every object whose name begins with `prefix`, by name.
    ///
    /// # Errors
    /// What the store said.
    fn list(&self, prefix: &str) -> io::Result<Vec<ObjectInfo>>;

    /// Keeps a damaged object where no listing finds it, so that it can be examined. A missing object is not an error.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] in a store that cannot, else what the store said.
    fn set_aside(&self, name: &str) -> io::Result<()> {
        let _ = name;
        Err(ErrorKind::Unsupported.into())
    }

    /// Removes an object, durably. A missing object is not an error.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] in a store that is only read, else what the store said.
    fn remove(&self, name: &str) -> io::Result<()> {
        let _ = name;
        Err(ErrorKind::Unsupported.into())
    }

    /// Where it is, for messages.
    fn place(&self) -> String;
}

/// Several stores that are read as one: an archive and what it gave away. An object is taken from the first that has it.
pub struct JoinedStores(Vec<Arc<dyn ObjectStore>>);

impl JoinedStores {
    /// Reads these, in this order.
    #[must_use]
    pub fn new(stores: Vec<Arc<dyn ObjectStore>>) -> JoinedStores {
        JoinedStores(stores)
    }

    fn first<T>(&self, read: impl Fn(&dyn ObjectStore) -> io::Result<T>) -> io::Result<T> {
        let mut last = ErrorKind::NotFound.into();
        for store in &self.0 {
            match read(store.as_ref()) {
                Err(error) if error.kind() == ErrorKind::NotFound => last = error,
                other => return other,
            }
        }
        Err(last)
    }
}

impl ObjectStore for JoinedStores {
    fn put(&self, _: &str, _: &mut dyn Iterator<Item = io::Result<Bytes>>) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn get(&self, name: &str, from: u64, length: usize) -> io::Result<Bytes> {
        self.first(|store| store.get(name, from, length))
    }

    fn size(&self, name: &str) -> io::Result<u64> {
        self.first(|store| store.size(name))
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<ObjectInfo>> {
        let mut found: Vec<ObjectInfo> = Vec::new();
        for store in &self.0 {
            found.extend(store.list(prefix)?);
        }
        // Stable: of one name, that of the first store stays.
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found.dedup_by(|a, b| a.name == b.name);
        Ok(found)
    }

    fn place(&self) -> String {
        self.0.iter().map(|store| store.place()).collect::<Vec<_>>().join(" and ")
    }
}

/// Whether a name is one that every store can keep: lower-case letters, digits, `-`, `.` and `/`, no
/// empty part and none that begins with a dot.
#[must_use]
pub fn object_name_is_valid(name: &str) -> bool {
    let part_fits = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'))
    };
    name.len() <= NAME_BYTES_MAX && name.split('/').all(part_fits)
}

fn check_name(name: &str) -> io::Result<()> {
    if object_name_is_valid(name) {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "not the name of an object"))
}

/// A directory as an object store: each object is a file below it.
#[derive(Debug)]
pub struct DirectoryStore {
    root: PathBuf,
}

impl DirectoryStore {
    /// Opens the directory, makes it where there is none, and removes what an earlier process left half
    /// written. One process writes into a directory at a time.
    ///
    /// # Errors
    /// When the directory cannot be made or read.
    pub fn open(root: &Path) -> io::Result<DirectoryStore> {
        fs::create_dir_all(root)?;
        let store = DirectoryStore { root: root.to_path_buf() };
        store.walk(root, 0, &mut |path, _| {
            // No object's name has this character.
            let is_waiting = path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.contains(WAITING));
            if is_waiting { fs::remove_file(path) } else { Ok(()) }
        })?;
        Ok(store)
    }

    /// Opens a directory to read it, and changes nothing in it: an archive that a replica writes, or a copy.
    ///
    /// # Errors
    /// When there is no such directory.
    pub fn open_read_only(root: &Path) -> io::Result<DirectoryStore> {
        if !fs::metadata(root)?.is_dir() {
            return Err(io::Error::new(ErrorKind::NotADirectory, "not a directory"));
        }
        Ok(DirectoryStore { root: root.to_path_buf() })
    }

    /// Copies every object of another archive's directory, unchanged; an object that is here already under the same name
    /// and with the same size stays. Objects never change, so where the system can, both directories share one file. How
    /// many were taken in, and their bytes. `told` hears behind each object how many bytes of how many are here.
    ///
    /// # Errors
    /// When either directory cannot be read or written; what was copied by then is whole, and calling again
    /// goes on.
    pub fn take_in(&self, from: &DirectoryStore, told: &mut dyn FnMut(u64, u64)) -> io::Result<(u64, u64)> {
        let (mut taken, mut bytes, mut here) = (0, 0, 0);
        let objects = [from.list(SEGMENTS)?, from.list(BASES)?, from.list(RETENTION)?].concat();
        let all: u64 = objects.iter().map(|object| object.bytes).sum();
        for object in objects {
            told(here, all);
            here += object.bytes;
            if self.size(&object.name).is_ok_and(|size| size == object.bytes) {
                continue;
            }
            let path = self.path(&object.name)?;
            let directory = path.parent().unwrap_or(&self.root);
            create_directories(&self.root, directory)?;
            match fs::hard_link(from.path(&object.name)?, &path) {
                Ok(()) => sync_directory(directory)?,
                // Another disk, or a system without links; or half of it is here.
                Err(_) => self.put(&object.name, &mut from.pieces(&object)?)?,
            }
            (taken, bytes) = (taken + 1, bytes + object.bytes);
        }
        Ok((taken, bytes))
    }

    /// An object's content, piece by piece.
    fn pieces(&self, object: &ObjectInfo) -> io::Result<impl Iterator<Item = io::Result<Bytes>>> {
        let mut file = File::open(self.path(&object.name)?)?;
        Ok(std::iter::from_fn(move || {
            let mut piece = vec![0; PIECE_BYTES];
            match file.read(&mut piece) {
                Ok(0) => None,
                Ok(length) => {
                    piece.truncate(length);
                    Some(Ok(piece.into()))
                }
                Err(error) => Some(Err(error)),
            }
        }))
    }

    fn path(&self, name: &str) -> io::Result<PathBuf> {
        check_name(name)?;
        Ok(self.root.join(name))
    }

    fn walk(
        &self,
        directory: &Path,
        depth: usize,
        visit: &mut dyn FnMut(&Path, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            // Links are not followed: what is not a file or a directory is no object.
            let kind = entry.file_type()?;
            if kind.is_dir() && depth < DEPTH_MAX {
                self.walk(&entry.path(), depth + 1, visit)?;
            } else if kind.is_file() {
                match entry.metadata() {
                    Ok(metadata) => visit(&entry.path(), metadata.len())?,
                    // Written under another name meanwhile.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

/// Makes a directory and everything above it up to `root`, durably.
fn create_directories(root: &Path, directory: &Path) -> io::Result<()> {
    if directory.is_dir() || directory == root {
        return Ok(());
    }
    if let Some(above) = directory.parent() {
        create_directories(root, above)?;
        match fs::create_dir(directory) {
            Ok(()) => sync_directory(above)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl ObjectStore for DirectoryStore {
    fn put(&self, name: &str, content: &mut dyn Iterator<Item = io::Result<Bytes>>) -> io::Result<()> {
        let path = self.path(name)?;
        let directory = path.parent().unwrap_or(&self.root);
        create_directories(&self.root, directory)?;
        let mut file = WholeFile::begin(&path, Manner::PUBLIC)?;
        for piece in content {
            file.write_all(&piece?)?;
        }
        file.finish()
    }

    fn get(&self, name: &str, from: u64, length: usize) -> io::Result<Bytes> {
        let mut file = File::open(self.path(name)?)?;
        let size = file.metadata()?.len();
        let there = usize::try_from(size.saturating_sub(from)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length.min(there)];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut bytes)?;
        Ok(Bytes::from(bytes))
    }

    fn size(&self, name: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.path(name)?)?.len())
    }

    fn set_aside(&self, name: &str) -> io::Result<()> {
        let path = self.path(name)?;
        let directory = self.root.join(ASIDE);
        create_directories(&self.root, &directory)?;
        match fs::rename(&path, directory.join(name.replace('/', "."))) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                sync_directory(&directory)?;
                sync_directory(path.parent().unwrap_or(&self.root))
            }
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path(name)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => sync_directory(path.parent().unwrap_or(&self.root)),
        }
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<ObjectInfo>> {
        // Only the directory that the prefix names is walked, not the whole store.
        let directory = match prefix.rfind('/') {
            Some(at) => {
                check_name(&prefix[..at])?;
                self.root.join(&prefix[..at])
            }
            None => self.root.clone(),
        };
        let mut found = Vec::new();
        self.walk(&directory, 0, &mut |path, bytes| {
            let relative = path.strip_prefix(&self.root).ok().and_then(Path::to_str);
            if let Some(name) = relative.filter(|name| name.starts_with(prefix) && object_name_is_valid(name))
            {
                if found.len() >= LISTED_MAX {
                    return Err(io::Error::other("more objects than an archive can have"));
                }
                found.push(ObjectInfo { name: name.to_owned(), bytes });
            }
            Ok(())
        })?;
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn place(&self) -> String {
        self.root.display().to_string()
    }
}
