//! Objects by the digest of their content, and the store that is a directory which clients and nodes share.
//!
//! A store keeps bytes under a digest and does not look at them. Compression and checks are the same for every store: see
//! [`put`] and [`get`].

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use muster_files::{Existing, Lasting, Manner, WholeFile};
use muster_types::BlobDigest;
use nix::fcntl::OFlag;
use sha2::{Digest as _, Sha256};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The file that shows that a directory is a store, and that it is mounted.
const MARKER: &str = "muster-store";
/// What stands in it.
const MARKER_TEXT: &[u8] = b"muster store 1\n";
/// The directory of the objects, below that of the store.
const OBJECTS: &str = "objects";
/// An object whose last use is recorded less long ago is not touched again.
const TOUCH_AFTER: Duration = Duration::from_secs(24 * 3_600);
/// Bytes that are read and written at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes of a compressed object beyond its content and a quarter of that.
const COMPRESSED_MORE_BYTES: u64 = 4_096;

/// Why an object cannot be had or put.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The store answers and does not have it.
    #[error(
        "{0} is not in the store; it may have been removed from there, and submitting again sends it again"
    )]
    NotFound(BlobDigest),
    /// The store has something else under this digest.
    #[error("what the store has for {0} is damaged or something else; remove that object and submit again")]
    Mismatch(BlobDigest),
    /// It is larger than it may be.
    #[error("{digest} has more than {max} bytes")]
    TooLarge {
        /// Which object.
        digest: BlobDigest,
        /// Its bound.
        max: u64,
    },
    /// The store does not answer; worth another attempt.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// A directory that holds something else.
    #[error(
        "{0} is not a store: it holds other files and no file `muster-store`; name an empty directory, or one that is a store"
    )]
    NoStore(PathBuf),
    /// What was to be put has changed since its digest was computed.
    #[error("it was changed while it was sent")]
    Changed,
    /// Reading what is put, or writing what is fetched.
    #[error("{0}")]
    Local(io::Error),
}

/// Where objects are: a directory, a bucket, or the store of an agent elsewhere.
pub trait BlobStore {
    /// Whether the object is there. One that is counts as used now, as far as the store can record that.
    ///
    /// # Errors
    /// When the store does not answer.
    fn has(&self, digest: &BlobDigest) -> Result<bool, BlobError>;

    /// Puts the bytes that `write` writes. The object appears whole, or not at all where `write` fails.
    ///
    /// # Errors
    /// Those of `write`, and when the store does not take the object.
    fn put(
        &self,
        digest: &BlobDigest,
        write: &mut dyn FnMut(&mut dyn Write) -> Result<(), BlobError>,
    ) -> Result<(), BlobError>;

    /// The bytes that were put.
    ///
    /// # Errors
    /// [`BlobError::NotFound`] where the store answers and does not have it, else [`BlobError::Unreachable`].
    fn open(&self, digest: &BlobDigest) -> Result<Box<dyn Read>, BlobError>;
}

/// Puts content under its digest, compressed.
///
/// # Errors
/// [`BlobError::Changed`] when the content has another digest; else when it cannot be read or put.
pub(crate) fn put(
    store: &dyn BlobStore,
    digest: &BlobDigest,
    content: &mut dyn Read,
) -> Result<(), BlobError> {
    store.put(digest, &mut |to: &mut dyn Write| {
        let mut hash = Sha256::new();
        let mut encoder = ZlibEncoder::new(to, Compression::fast());
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let count = read_some(content, &mut piece).map_err(BlobError::Local)?;
            if count == 0 {
                break;
            }
            let read = piece.get(..count).unwrap_or_default();
            hash.update(read);
            encoder.write_all(read).map_err(no_answer)?;
        }
        encoder.finish().map_err(no_answer)?;
        if BlobDigest::new(hash.finalize().into()) == *digest { Ok(()) } else { Err(BlobError::Changed) }
    })
}

/// Fetches an object of at most `bytes_max` bytes, piece by piece. Its bytes may be believed once this returns without an
/// error, and not before. The answer is how many there were.
///
/// # Errors
/// When it cannot be had, is larger, or is not what the digest names; and those of `take`.
pub(crate) fn get(
    store: &dyn BlobStore,
    digest: &BlobDigest,
    bytes_max: u64,
    take: &mut dyn FnMut(&[u8]) -> Result<(), BlobError>,
) -> Result<u64, BlobError> {
    let mut opened = store.open(digest)?;
    content_of(digest, bytes_max, &mut *opened, take)
}

/// The content of an object as a store has it, checked like that of [`get`].
fn content_of(
    digest: &BlobDigest,
    bytes_max: u64,
    stored: &mut dyn Read,
    take: &mut dyn FnMut(&[u8]) -> Result<(), BlobError>,
) -> Result<u64, BlobError> {
    // Content has little more bytes compressed, at worst. An object with many more could be read for hours and hold nothing.
    let compressed_max = bytes_max.saturating_add(bytes_max / 4).saturating_add(COMPRESSED_MORE_BYTES);
    let mut decoder = ZlibDecoder::new(stored.take(compressed_max));
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut bytes = 0u64;
    loop {
        let count = read_some(&mut decoder, &mut piece).map_err(|error| fault(digest, &error))?;
        if count == 0 {
            break;
        }
        bytes = bytes.saturating_add(count as u64);
        if bytes > bytes_max {
            return Err(BlobError::TooLarge { digest: *digest, max: bytes_max });
        }
        let read = piece.get(..count).unwrap_or_default();
        hash.update(read);
        take(read)?;
    }
    if BlobDigest::new(hash.finalize().into()) == *digest {
        Ok(bytes)
    } else {
        Err(BlobError::Mismatch(*digest))
    }
}

/// Puts an object that comes as a store has it, of at most `bytes_max` bytes of content. It appears whole and checked, or not at
/// all; the answer is how many bytes of content it has.
///
/// # Errors
/// When what comes is not what the digest names, or is larger; when the store does not take it; and those of `count`, which is
/// told how many bytes of content have come since it was asked last.
pub fn take_in(
    store: &dyn BlobStore,
    digest: &BlobDigest,
    bytes_max: u64,
    stored: &mut dyn Read,
    count: &mut dyn FnMut(u64) -> Result<(), BlobError>,
) -> Result<u64, BlobError> {
    let mut bytes = 0;
    store.put(digest, &mut |to: &mut dyn Write| {
        let mut encoder = ZlibEncoder::new(to, Compression::fast());
        bytes = content_of(digest, bytes_max, &mut *stored, &mut |piece: &[u8]| {
            count(piece.len() as u64)?;
            encoder.write_all(piece).map_err(no_answer)
        })?;
        encoder.finish().map_err(no_answer)?;
        Ok(())
    })?;
    Ok(bytes)
}

/// The digest of some bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> BlobDigest {
    BlobDigest::new(Sha256::digest(bytes).into())
}

/// The digest of what can be read, and how many bytes that is.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn digest_of_all(content: &mut dyn Read) -> io::Result<(BlobDigest, u64)> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut bytes = 0u64;
    loop {
        let count = read_some(content, &mut piece)?;
        if count == 0 {
            return Ok((BlobDigest::new(hash.finalize().into()), bytes));
        }
        bytes = bytes.saturating_add(count as u64);
        hash.update(piece.get(..count).unwrap_or_default());
    }
}

fn read_some(from: &mut dyn Read, piece: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// What it means that an object could not be read to its end.
fn fault(digest: &BlobDigest, error: &io::Error) -> BlobError {
    match error.kind() {
        // What is there cannot be decompressed: that is not the store's silence.
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            BlobError::Mismatch(*digest)
        }
        _ => BlobError::Unreachable(error.to_string()),
    }
}

fn no_answer(error: io::Error) -> BlobError {
    // What is written to may be a store that says more than that it does not answer.
    error.downcast().unwrap_or_else(|error| BlobError::Unreachable(error.to_string()))
}

fn failed(path: &Path, error: &io::Error) -> BlobError {
    BlobError::Unreachable(format!("{}: {error}", path.display()))
}

/// Opens what has a name itself, and nothing that a link there leads to: other users write to a store, and may put any there.
fn open_itself(path: &Path, more: OFlag) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | more;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
}

/// A store in a directory that clients and nodes share, at whatever path each of them has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobDirectory {
    root: PathBuf,
}

impl BlobDirectory {
    /// The store at a path, which may not be mounted at the moment.
    #[must_use]
    pub fn at(root: PathBuf) -> BlobDirectory {
        BlobDirectory { root }
    }

    /// The store in a directory that is there. One that is empty becomes a store.
    ///
    /// # Errors
    /// When there is no such directory, it holds something else, or it cannot be written.
    pub fn open_or_make(root: PathBuf) -> Result<BlobDirectory, BlobError> {
        let at = |error: io::Error| BlobError::Unreachable(format!("{}: {error}", root.display()));
        if !fs::metadata(&root).map_err(at)?.is_dir() {
            return Err(BlobError::Unreachable(format!("{}: it is not a directory", root.display())));
        }
        let store = BlobDirectory { root: root.clone() };
        if !store.is_mounted() {
            for entry in fs::read_dir(&root).map_err(at)? {
                let name = entry.map_err(at)?.file_name();
                // Another client may make it a store at this moment.
                let is_own = name == OBJECTS || name.to_string_lossy().contains(MARKER);
                if !is_own && name != "lost+found" {
                    return Err(BlobError::NoStore(root));
                }
            }
            store.write(&root.join(MARKER), &mut |to| to.write_all(MARKER_TEXT).map_err(no_answer))?;
        }
        store.make(&root.join(OBJECTS))?;
        Ok(store)
    }

    /// Whether the directory is a store. A directory where one is to be mounted is none.
    fn is_mounted(&self) -> bool {
        self.root.join(MARKER).is_file()
    }

    fn path_of(&self, digest: &BlobDigest) -> PathBuf {
        let digits = digest.digits();
        // Few entries in each directory.
        let (first, _) = digits.split_at(2);
        self.root.join(OBJECTS).join(first).join(&digits)
    }

    /// Permissions of the store's directory: who may use it may use what is in it.
    fn mode(&self) -> Result<u32, BlobError> {
        let found = fs::metadata(&self.root).map_err(|error| failed(&self.root, &error))?;
        Ok(found.permissions().mode() & 0o7777)
    }

    /// Makes a directory with the permissions of the store's.
    fn make(&self, directory: &Path) -> Result<(), BlobError> {
        let made = match fs::create_dir(directory) {
            // A mask of this process would keep the other users out. One of them may have put a link in its place already.
            Ok(()) => {
                let permissions = Permissions::from_mode(self.mode()?);
                open_itself(directory, OFlag::O_DIRECTORY).and_then(|made| made.set_permissions(permissions))
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        };
        made.map_err(|error| failed(directory, &error))
    }

    /// Writes a file that everyone can read who can read the store's directory, and that only its writer can change.
    fn write(
        &self,
        path: &Path,
        write: &mut dyn FnMut(&mut dyn Write) -> Result<(), BlobError>,
    ) -> Result<(), BlobError> {
        let mode = (self.mode()? & 0o444) | 0o600;
        let manner = Manner { mode, lasting: Lasting::PowerLoss, existing: Existing::Replaced };
        let mut file = WholeFile::begin(path, manner).map_err(|error| failed(path, &error))?;
        write(&mut file)?;
        // Before it has its name, under which another user may put a link to some other file of this one.
        file.set_mode(mode).and_then(|()| file.finish()).map_err(|error| failed(path, &error))
    }

    /// What it means that there is no such file.
    fn absent(&self, digest: &BlobDigest) -> BlobError {
        if self.is_mounted() {
            return BlobError::NotFound(*digest);
        }
        let text = format!("{} has no file {MARKER:?}; is it mounted?", self.root.display());
        BlobError::Unreachable(text)
    }
}

impl BlobStore for BlobDirectory {
    fn has(&self, digest: &BlobDigest) -> Result<bool, BlobError> {
        let path = self.path_of(digest);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => {
                let now = SystemTime::now();
                let age = found.modified().ok().and_then(|last| now.duration_since(last).ok());
                if age.is_some_and(|age| age > TOUCH_AFTER) {
                    // Only its owner may. Of another user's it is not known how long it is needed.
                    let _ = open_itself(&path, OFlag::O_NONBLOCK).and_then(|file| file.set_modified(now));
                }
                Ok(true)
            }
            // What is put takes its place.
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match self.absent(digest) {
                BlobError::NotFound(_) => Ok(false),
                other => Err(other),
            },
            Err(error) => Err(failed(&path, &error)),
        }
    }

    fn put(
        &self,
        digest: &BlobDigest,
        write: &mut dyn FnMut(&mut dyn Write) -> Result<(), BlobError>,
    ) -> Result<(), BlobError> {
        let path = self.path_of(digest);
        if let Some(directory) = path.parent() {
            self.make(directory)?;
        }
        self.write(&path, write)
    }

    fn open(&self, digest: &BlobDigest) -> Result<Box<dyn Read>, BlobError> {
        let path = self.path_of(digest);
        // Opening a pipe would wait for who writes into it, and nobody may.
        match open_itself(&path, OFlag::O_NONBLOCK) {
            Ok(file) if file.metadata().is_ok_and(|found| found.is_file()) => Ok(Box::new(file)),
            Ok(_) => Err(BlobError::Mismatch(*digest)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.absent(digest)),
            Err(_) if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) => {
                Err(BlobError::Mismatch(*digest))
            }
            Err(error) => Err(failed(&path, &error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetched(store: &BlobDirectory, digest: &BlobDigest, max: u64) -> Result<Vec<u8>, BlobError> {
        let mut all = Vec::new();
        get(store, digest, max, &mut |piece| {
            all.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn an_object_comes_back_whole_or_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let store = BlobDirectory::open_or_make(directory.path().to_owned()).unwrap();
        let content = vec![7u8; 200_000];
        let digest = digest_of(&content);
        assert!(!store.has(&digest).unwrap());
        assert!(matches!(fetched(&store, &digest, 1), Err(BlobError::NotFound(_))));
        put(&store, &digest, &mut content.as_slice()).unwrap();
        assert!(store.has(&digest).unwrap());
        assert_eq!(fetched(&store, &digest, 200_000).unwrap(), content);
        // Its compressed size says nothing.
        assert!(matches!(fetched(&store, &digest, 199_999), Err(BlobError::TooLarge { .. })));
        let path = store.path_of(&digest);
        assert!(fs::metadata(&path).unwrap().len() < 10_000);
        let stored = fs::read(&path).unwrap();
        let cut = stored.get(..stored.len() / 2).unwrap();
        let other = fs::read(store.path_of(&digest)).unwrap().iter().map(|byte| !byte).collect::<Vec<_>>();
        for damaged in [cut, &other[..], b""] {
            fs::write(&path, damaged).unwrap();
            assert!(matches!(fetched(&store, &digest, 200_000), Err(BlobError::Mismatch(_))));
        }
        // Another object under its name.
        let strange = digest_of(b"strange");
        put(&store, &strange, &mut &b"strange"[..]).unwrap();
        fs::copy(store.path_of(&strange), &path).unwrap();
        assert!(matches!(fetched(&store, &digest, 200_000), Err(BlobError::Mismatch(_))));
    }

    #[test]
    fn what_changes_while_it_is_put_does_not_appear() {
        let directory = tempfile::tempdir().unwrap();
        let store = BlobDirectory::open_or_make(directory.path().to_owned()).unwrap();
        let digest = digest_of(b"before");
        assert!(matches!(put(&store, &digest, &mut &b"behind"[..]), Err(BlobError::Changed)));
        assert!(!store.has(&digest).unwrap());
        let objects: Vec<_> = fs::read_dir(store.path_of(&digest).parent().unwrap()).unwrap().collect();
        assert!(objects.is_empty(), "{objects:?}");
    }

    #[test]
    fn what_another_store_had_is_taken_in_only_if_it_is_what_its_digest_names() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let from = BlobDirectory::open_or_make(one.path().to_owned()).unwrap();
        let to = BlobDirectory::open_or_make(other.path().to_owned()).unwrap();
        let content = vec![7u8; 200_000];
        let (digest, wrong) = (digest_of(&content), digest_of(b"wrong"));
        put(&from, &digest, &mut content.as_slice()).unwrap();
        let stored = fs::read(from.path_of(&digest)).unwrap();
        let taken = |digest: &BlobDigest, max: u64, bytes: &[u8]| {
            take_in(&to, digest, max, &mut &bytes[..], &mut |_| Ok(()))
        };
        assert!(matches!(taken(&wrong, 1 << 20, &stored), Err(BlobError::Mismatch(_))));
        assert!(matches!(taken(&digest, 199_999, &stored), Err(BlobError::TooLarge { .. })));
        assert!(taken(&digest, 1 << 20, &stored[..stored.len() - 9]).is_err());
        assert!(!to.has(&digest).unwrap() && !to.has(&wrong).unwrap(), "nothing of them appears");
        assert_eq!(taken(&digest, 200_000, &stored).unwrap(), 200_000);
        assert_eq!(fetched(&to, &digest, 200_000).unwrap(), content);
    }

    #[test]
    fn what_is_no_file_is_no_object_and_is_waited_for_by_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let store = BlobDirectory::open_or_make(directory.path().to_owned()).unwrap();
        let digest = digest_of(b"content");
        put(&store, &digest, &mut &b"content"[..]).unwrap();
        let path = store.path_of(&digest);
        let aside = directory.path().join("aside");
        fs::rename(&path, &aside).unwrap();
        // A link, even to the right content: it could lead to a device, whose opening does something.
        std::os::unix::fs::symlink(&aside, &path).unwrap();
        assert!(!store.has(&digest).unwrap());
        assert!(matches!(fetched(&store, &digest, 100), Err(BlobError::Mismatch(_))));
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(!store.has(&digest).unwrap());
        assert!(matches!(fetched(&store, &digest, 100), Err(BlobError::Mismatch(_))));
        // Sent once more, it is there again, for who may read the store.
        put(&store, &digest, &mut &b"content"[..]).unwrap();
        assert!(store.has(&digest).unwrap());
        assert_eq!(fetched(&store, &digest, 100).unwrap(), b"content");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), (mode(directory.path()) & 0o444) | 0o600);
    }

    #[test]
    fn an_object_that_is_long_and_holds_nothing_is_not_read_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let store = BlobDirectory::open_or_make(directory.path().to_owned()).unwrap();
        let digest = digest_of(b"x");
        put(&store, &digest, &mut &b"x"[..]).unwrap();
        let path = store.path_of(&digest);
        let head: &[u8] = &[0x78, 0x01];
        let block_of_nothing: &[u8] = &[0, 0, 0, 0xff, 0xff];
        let last: &[u8] = &[1, 1, 0, 0xfe, 0xff, b'x', 0, 0x79, 0, 0x79];
        let object = |blocks: usize| [head, block_of_nothing.repeat(blocks).as_slice(), last].concat();
        fs::write(&path, object(10)).unwrap();
        assert_eq!(fetched(&store, &digest, 100).unwrap(), b"x");
        fs::write(&path, object(1_000)).unwrap();
        assert!(matches!(fetched(&store, &digest, 100), Err(BlobError::Mismatch(_))));
    }

    #[test]
    fn a_directory_of_something_else_is_no_store_and_one_without_a_mark_is_not_mounted() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("other");
        fs::create_dir(&other).unwrap();
        let unmounted = BlobDirectory::at(other.clone());
        assert!(matches!(unmounted.has(&digest_of(b"x")), Err(BlobError::Unreachable(_))));
        assert!(matches!(unmounted.open(&digest_of(b"x")), Err(BlobError::Unreachable(_))));
        fs::write(other.join("thesis.tex"), "x").unwrap();
        assert!(matches!(BlobDirectory::open_or_make(other), Err(BlobError::NoStore(_))));
        let absent = BlobDirectory::open_or_make(directory.path().join("absent"));
        assert!(matches!(absent, Err(BlobError::Unreachable(_))));
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(BlobDirectory::open_or_make(file), Err(BlobError::Unreachable(_))));
    }
}
