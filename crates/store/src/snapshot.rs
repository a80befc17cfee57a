//! Snapshots: one file each, in chunks, every chunk with its checksum.
//!
//! A snapshot is written under a temporary name, made durable, and only then published under its
//! own; a received one is published after it was installed. In memory the same contract holds
//! without files.
//!
//! File: magic `MSNP`, version, length and bytes of the description, then chunks of
//! `length, CRC-32, bytes`, then a zero length, the number of chunks, their bytes, and a CRC-32 of
//! these and of all chunk checksums.
//!
//! **Invariant:** what [`SnapshotStore::current`] returns is durable and was verified.
//! **Invariant:** a reader yields exactly the chunks that were written, or an error.

use crate::codec::{self, Reader};
use crate::error::StoreError;
use crate::identity::{file_error, sync_folder};
use crate::options::{FileSync, StoreOptions};
use crate::raft_types::SnapshotMeta;
use bytes::Bytes;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MAGIC: [u8; 4] = *b"MSNP";
const VERSION: u32 = 1;
const EXTENSION: &str = "snapshot";
const TEMPORARY_EXTENSION: &str = "tmp";
/// Larger pieces of an application are cut to this, so that a chunk fits a message.
pub(crate) const CHUNK_BYTES_MAX: usize = 1 << 20;
const META_BYTES_MAX: u32 = 4 << 20;

/// The snapshots of one replica. Clones share them.
#[derive(Clone)]
pub struct SnapshotStore(Arc<Inner>);

struct Inner {
    place: Place,
    kept: usize,
    bytes_max: u64,
    next_temporary: AtomicU64,
    /// Newest last.
    published: Mutex<Vec<SnapshotHandle>>,
    partial: Mutex<Option<(Bytes, SnapshotWriter)>>,
}

/// Tells the content of one snapshot from that of any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotDigest {
    /// Chunks.
    pub chunks: u64,
    /// Bytes.
    pub bytes: u64,
    /// Checksum.
    pub checksum: u32,
}

enum Place {
    Folder { dir: PathBuf, sync: Arc<dyn FileSync> },
    Memory,
}

/// One complete snapshot. Clones share it; it stays readable while a handle lives.
#[derive(Clone)]
pub struct SnapshotHandle(Arc<Snapshot>);

struct Snapshot {
    meta: SnapshotMeta,
    bytes: u64,
    content: Content,
    published: AtomicBool,
}

enum Content {
    File { file: File, path: Mutex<PathBuf>, first_chunk: u64 },
    Memory(Vec<Bytes>),
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Content::File { path, .. } = &self.content
            && !self.published.load(Ordering::Acquire)
        {
            let path = path.lock().unwrap_or_else(PoisonError::into_inner);
            // A leftover is removed at the next open.
            let _ = std::fs::remove_file(&*path);
        }
    }
}

fn name_of(meta: &SnapshotMeta) -> String {
    meta.last_log_id.map_or_else(
        || "empty".to_owned(),
        |last| {
            let leader = last.committed_leader_id();
            format!("{:020}-{:020}-{}", last.index(), leader.term, leader.node_id)
        },
    )
}

fn corrupt(name: impl Into<String>, detail: impl ToString) -> StoreError {
    StoreError::SnapshotCorrupt { name: name.into(), detail: detail.to_string() }
}

impl SnapshotStore {
    /// Snapshots in memory.
    #[must_use]
    pub fn memory(options: &StoreOptions) -> Self {
        SnapshotStore::new(Place::Memory, options)
    }

    fn new(place: Place, options: &StoreOptions) -> Self {
        SnapshotStore(Arc::new(Inner {
            place,
            kept: options.snapshots_kept.max(1),
            bytes_max: options.snapshot_bytes_max,
            next_temporary: AtomicU64::new(0),
            published: Mutex::new(Vec::new()),
            partial: Mutex::new(None),
        }))
    }

    /// Opens the snapshots in `dir`: leftovers are removed, and the newest that verifies is
    /// current. One that does not verify is reported and passed over.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn open(dir: &Path, options: &StoreOptions) -> Result<Self, StoreError> {
        std::fs::create_dir_all(dir).map_err(|source| file_error("creating", dir, source))?;
        let place = Place::Folder { dir: dir.to_path_buf(), sync: options.sync.clone() };
        let store = SnapshotStore::new(place, options);
        let mut files = Vec::new();
        for file in std::fs::read_dir(dir).map_err(|source| file_error("listing", dir, source))? {
            let path = file.map_err(|source| file_error("listing", dir, source))?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some(EXTENSION) => files.push(path),
                Some(TEMPORARY_EXTENSION) => {
                    std::fs::remove_file(&path).map_err(|source| file_error("removing", &path, source))?;
                }
                _ => {}
            }
        }
        // Names sort by index.
        files.sort();
        let mut published = Vec::new();
        for path in files.into_iter().rev() {
            match SnapshotHandle::open(&path).and_then(|handle| handle.verify().map(|()| handle)) {
                Ok(handle) => {
                    published.push(handle);
                    break;
                }
                Err(error) => tracing::error!(
                    path = %path.display(),
                    error = &error as &dyn std::error::Error,
                    "a snapshot is not intact; an older one is used if the log reaches back to it"
                ),
            }
        }
        *store.lock() = published;
        Ok(store)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SnapshotHandle>> {
        self.0.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest published snapshot.
    #[must_use]
    pub fn current(&self) -> Option<SnapshotHandle> {
        self.lock().last().cloned()
    }

    /// Keeps what was received.
    pub fn keep_partial(&self, writer: SnapshotWriter, key: Bytes) {
        let earlier = self.0.partial.lock().unwrap_or_else(PoisonError::into_inner).replace((key, writer));
        drop(earlier);
    }

    /// What was kept.
    #[must_use]
    pub fn take_partial(&self, key: &[u8]) -> Option<SnapshotWriter> {
        let kept = self.0.partial.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.filter(|(kept, _)| kept == key).map(|(_, writer)| writer)
    }

    /// Starts writing a snapshot. Blocks, as all of writing does.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(&self, meta: SnapshotMeta) -> Result<SnapshotWriter, StoreError> {
        let target = match &self.0.place {
            Place::Memory => Target::Memory(Vec::new()),
            Place::Folder { dir, sync } => {
                let number = self.0.next_temporary.fetch_add(1, Ordering::Relaxed);
                let path = dir.join(format!("{}-{number}.{TEMPORARY_EXTENSION}", name_of(&meta)));
                let file = File::options()
                    .create_new(true)
                    .read(true)
                    .write(true)
                    .open(&path)
                    .map_err(|source| file_error("creating", &path, source))?;
                let encoded = codec::encode_snapshot_meta(&meta);
                let mut header = MAGIC.to_vec();
                header.extend_from_slice(&VERSION.to_le_bytes());
                header.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
                header.extend_from_slice(&encoded);
                let first_chunk = header.len() as u64;
                let mut target =
                    Target::File { file, path, first_chunk, sync: Arc::clone(sync), finished: false };
                target.put(&header)?;
                target
            }
        };
        let checksums = crc32fast::Hasher::new();
        Ok(SnapshotWriter { meta, target, chunks: 0, bytes: 0, bytes_max: self.0.bytes_max, checksums })
    }

    /// Makes a finished snapshot the current one, and removes the oldest beyond the number kept.
    /// One that is older than the current one is left alone.
    ///
    /// # Errors
    /// When the file cannot be given its name.
    pub fn publish(&self, handle: &SnapshotHandle) -> Result<(), StoreError> {
        let mut published = self.lock();
        if handle.0.published.load(Ordering::Acquire) {
            return Ok(());
        }
        if published.last().is_some_and(|newest| newest.meta().last_log_id > handle.meta().last_log_id) {
            return Ok(());
        }
        if let (Place::Folder { dir, .. }, Content::File { path, .. }) = (&self.0.place, &handle.0.content) {
            let name = dir.join(format!("{}.{EXTENSION}", name_of(handle.meta())));
            let mut path = path.lock().unwrap_or_else(PoisonError::into_inner);
            std::fs::rename(&*path, &name).map_err(|source| file_error("naming", &name, source))?;
            path.clone_from(&name);
            sync_folder(dir)?;
        }
        handle.0.published.store(true, Ordering::Release);
        // The same snapshot may be built again; its file was just replaced.
        published.retain(|older| older.meta().last_log_id != handle.meta().last_log_id);
        published.push(handle.clone());
        drop(published);
        self.remove_old()
    }

    fn remove_old(&self) -> Result<(), StoreError> {
        let mut published = self.lock();
        let surplus = published.len().saturating_sub(self.0.kept);
        published.drain(..surplus);
        let Place::Folder { dir, .. } = &self.0.place else { return Ok(()) };
        let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
            .map_err(|source| file_error("listing", dir, source))?
            .flatten()
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION))
            .collect();
        files.sort();
        let surplus = files.len().saturating_sub(self.0.kept);
        // Ones that are not intact may be named as the newest; what is published stays all the same.
        let kept: Vec<_> = published.iter().map(|handle| name_of(handle.meta())).collect();
        for path in files.drain(..surplus) {
            if path.file_stem().is_some_and(|stem| kept.iter().any(|name| stem == name.as_str())) {
                continue;
            }
            std::fs::remove_file(&path).map_err(|source| file_error("removing", &path, source))?;
        }
        Ok(())
    }
}

enum Target {
    File { file: File, path: PathBuf, first_chunk: u64, sync: Arc<dyn FileSync>, finished: bool },
    Memory(Vec<Bytes>),
}

impl Target {
    fn put(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        match self {
            Target::File { file, path, .. } => {
                file.write_all(bytes).map_err(|source| file_error("writing", path, source))
            }
            Target::Memory(_) => Ok(()),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Target::File { path, finished: false, .. } = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A snapshot being written. Dropping it removes what was written.
pub struct SnapshotWriter {
    meta: SnapshotMeta,
    target: Target,
    chunks: u64,
    bytes: u64,
    bytes_max: u64,
    checksums: crc32fast::Hasher,
}

impl SnapshotWriter {
    /// Chunks written so far.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends bytes; large pieces are cut.
    ///
    /// # Errors
    /// When the file cannot be written or the snapshot grows past its limit.
    pub fn write(&mut self, piece: &Bytes) -> Result<(), StoreError> {
        let mut rest = piece.clone();
        while !rest.is_empty() {
            let chunk = rest.split_to(rest.len().min(CHUNK_BYTES_MAX));
            self.bytes += chunk.len() as u64;
            if self.bytes > self.bytes_max {
                return Err(StoreError::SnapshotTooLarge { bytes_max: self.bytes_max });
            }
            self.chunks += 1;
            let crc = crc32fast::hash(&chunk).to_le_bytes();
            self.checksums.update(&crc);
            if let Target::Memory(chunks) = &mut self.target {
                chunks.push(chunk);
                continue;
            }
            self.target.put(&(chunk.len() as u32).to_le_bytes())?;
            self.target.put(&crc)?;
            self.target.put(&chunk)?;
        }
        Ok(())
    }

    /// Makes the snapshot durable. It is current only once published.
    ///
    /// # Errors
    /// When the file cannot be written or flushed.
    pub fn finish(mut self) -> Result<SnapshotHandle, StoreError> {
        let mut end = 0u32.to_le_bytes().to_vec();
        end.extend_from_slice(&trailer(self.chunks, self.bytes, self.checksums.clone()));
        self.target.put(&end)?;
        let content = match &mut self.target {
            Target::Memory(chunks) => Content::Memory(std::mem::take(chunks)),
            Target::File { file, path, first_chunk, sync, finished } => {
                sync.sync_data(file).map_err(|source| file_error("flushing", path, source))?;
                let file = file.try_clone().map_err(|source| file_error("reopening", path, source))?;
                *finished = true;
                Content::File { file, path: Mutex::new(path.clone()), first_chunk: *first_chunk }
            }
        };
        let snapshot = Snapshot {
            meta: self.meta.clone(),
            bytes: self.bytes,
            content,
            published: AtomicBool::new(false),
        };
        Ok(SnapshotHandle(Arc::new(snapshot)))
    }
}

const TRAILER_BYTES: usize = 20;

fn trailer(chunks: u64, bytes: u64, mut checksums: crc32fast::Hasher) -> [u8; TRAILER_BYTES] {
    let mut out = [0; TRAILER_BYTES];
    out[..8].copy_from_slice(&chunks.to_le_bytes());
    out[8..16].copy_from_slice(&bytes.to_le_bytes());
    checksums.update(&out[..16]);
    out[16..].copy_from_slice(&checksums.finalize().to_le_bytes());
    out
}

impl SnapshotHandle {
    /// What the snapshot covers.
    #[must_use]
    pub fn meta(&self) -> &SnapshotMeta {
        &self.0.meta
    }

    /// Bytes of its content.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Tells its content from that of any other.
    #[must_use]
    pub fn digest(&self) -> SnapshotDigest {
        let mut digest = SnapshotDigest { chunks: 0, bytes: 0, checksum: 0 };
        let mut crc = crc32fast::Hasher::new();
        for chunk in self.chunks().flatten() {
            digest.chunks += 1;
            digest.bytes += chunk.len() as u64;
            crc.update(&chunk);
        }
        digest.checksum = crc.finalize();
        digest
    }

    /// From chunk `first` on.
    ///
    /// # Errors
    /// When it is corrupt.
    pub fn chunks_from(&self, first: u64) -> Result<SnapshotReader, StoreError> {
        let mut reader = self.chunks();
        for _ in 0..first {
            let _ = reader.next();
        }
        Ok(reader)
    }

    /// Its content, chunk by chunk. Blocks.
    #[must_use]
    pub fn chunks(&self) -> SnapshotReader {
        let offset = match &self.0.content {
            Content::File { first_chunk, .. } => *first_chunk,
            Content::Memory(_) => 0,
        };
        SnapshotReader {
            handle: self.clone(),
            offset,
            chunks: 0,
            bytes: 0,
            checksums: crc32fast::Hasher::new(),
            done: false,
        }
    }

    fn open(path: &Path) -> Result<SnapshotHandle, StoreError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = File::open(path).map_err(|source| file_error("opening", path, source))?;
        let mut header = [0; 12];
        file.read_exact_at(&mut header, 0).map_err(|error| corrupt(&name, error))?;
        let mut reader = Reader(&header);
        let magic = reader.take(4, "the magic").map_err(|error| corrupt(&name, error))?;
        let version = reader.u32("the version").map_err(|error| corrupt(&name, error))?;
        let meta_len = reader.u32("the length").map_err(|error| corrupt(&name, error))?;
        if magic != MAGIC || version != VERSION || meta_len > META_BYTES_MAX {
            return Err(corrupt(&name, "its header is not one of a snapshot"));
        }
        let mut meta = vec![0; meta_len as usize];
        file.read_exact_at(&mut meta, 12).map_err(|error| corrupt(&name, error))?;
        let meta = codec::decode_snapshot_meta(&meta).map_err(|error| corrupt(&name, error))?;
        let first_chunk = 12 + u64::from(meta_len);
        let content = Content::File { file, path: Mutex::new(path.to_path_buf()), first_chunk };
        let mut snapshot = Snapshot { meta, bytes: 0, content, published: AtomicBool::new(true) };
        let len = path.metadata().map_err(|source| file_error("reading", path, source))?.len();
        snapshot.bytes = len.saturating_sub(first_chunk);
        Ok(SnapshotHandle(Arc::new(snapshot)))
    }

    fn verify(&self) -> Result<(), StoreError> {
        self.chunks().try_for_each(|chunk| chunk.map(drop))
    }
}

/// Reads a snapshot's chunks; after an error there is nothing more.
pub struct SnapshotReader {
    handle: SnapshotHandle,
    offset: u64,
    chunks: u64,
    bytes: u64,
    checksums: crc32fast::Hasher,
    done: bool,
}

impl SnapshotReader {
    fn read_exact(&mut self, file: &File, len: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, self.offset)?;
        self.offset += len as u64;
        Ok(bytes)
    }

    fn read_chunk(&mut self, file: &File) -> Result<Option<Bytes>, String> {
        let text = |error: std::io::Error| error.to_string();
        let word = |bytes: Vec<u8>| Reader(&bytes).u32("a number").map_err(|error| error.to_string());
        let len = word(self.read_exact(file, 4).map_err(text)?)? as usize;
        if len == 0 {
            let found = self.read_exact(file, TRAILER_BYTES).map_err(text)?;
            if found != trailer(self.chunks, self.bytes, self.checksums.clone()) {
                return Err("its end does not match its chunks".to_owned());
            }
            return Ok(None);
        }
        if len > CHUNK_BYTES_MAX {
            return Err("a chunk is too long".to_owned());
        }
        let crc = word(self.read_exact(file, 4).map_err(text)?)?;
        let chunk = self.read_exact(file, len).map_err(text)?;
        if crc32fast::hash(&chunk) != crc {
            return Err(format!("the checksum of chunk {} does not hold", self.chunks));
        }
        self.checksums.update(&crc.to_le_bytes());
        self.chunks += 1;
        self.bytes += chunk.len() as u64;
        Ok(Some(Bytes::from(chunk)))
    }
}

impl Iterator for SnapshotReader {
    type Item = Result<Bytes, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let handle = self.handle.clone();
        let next = match &handle.0.content {
            Content::Memory(chunks) => {
                let chunk = chunks.get(self.chunks as usize).cloned();
                self.chunks += 1;
                Ok(chunk)
            }
            Content::File { file, .. } => self.read_chunk(file),
        };
        let item = next.map_err(|detail| corrupt(name_of(handle.meta()), detail)).transpose();
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}
