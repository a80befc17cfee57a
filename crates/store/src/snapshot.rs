//! Snapshots: one file each, in chunks, every chunk with its checksum.
//!
//! A snapshot is written under a temporary name, made durable, and only then published under its
//! own; a received one is published after it was installed. A reception that was interrupted can be
//! kept and taken up again. In memory the same contract holds without files.
//!
//! File: magic `MSNP`, version, length of the description, when it was made (Unix milliseconds), the
//! description, CRC-32 of all these; then chunks of `length, CRC-32, bytes`, then a zero length, the
//! number of chunks, their bytes, and a CRC-32 of these and of all chunk checksums.
//!
//! **Invariant:** what [`SnapshotStore::current`] returns is durable and was verified.
//! **Invariant:** a reader yields exactly the chunks that were written, or an error.
//! **Invariant:** a partial reception is only ever taken up under the key it was kept for.

use crate::codec::{self, CodecError, Reader};
use crate::error::StoreError;
use crate::files::FileLayer;
use crate::identity::{create_directory, file_error, room_error, sync_directory};
use crate::options::StoreOptions;
use crate::raft_types::SnapshotMeta;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

const MAGIC: [u8; 4] = *b"MSNP";
const VERSION: u32 = 1;
const EXTENSION: &str = "snapshot";
const TEMPORARY_EXTENSION: &str = "tmp";
/// Larger pieces of an application are cut to this, so that a chunk fits a message.
pub(crate) const CHUNK_BYTES_MAX: usize = 1 << 20;
const META_BYTES_MAX: u32 = 4 << 20;
/// Magic, version, length of the description, time.
const HEADER_BYTES: usize = 20;
/// Free space is measured again after this many bytes of a snapshot.
const SPACE_CHECK_BYTES: u64 = 4 << 20;

/// The snapshots of one replica. Clones share them.
#[derive(Clone)]
pub struct SnapshotStore(Arc<Inner>);

struct Inner {
    place: Location,
    kept: usize,
    bytes_max: u64,
    reserve_bytes: u64,
    next_temporary: AtomicU64,
    /// Newest last.
    published: Mutex<Vec<SnapshotHandle>>,
    partial: Mutex<Option<Partial>>,
}

/// A reception that was interrupted.
struct Partial {
    key: Bytes,
    writer: SnapshotWriter,
}

enum Location {
    Directory { dir: PathBuf, files: Arc<dyn FileLayer> },
    Memory,
}

/// One complete snapshot. Clones share it; it stays readable as long as there is a handle.
#[derive(Clone)]
pub struct SnapshotHandle(Arc<Snapshot>);

/// Tells the content of one snapshot from that of any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotDigest {
    /// Chunks it has.
    pub chunks: u64,
    /// Bytes of its content.
    pub bytes: u64,
    /// Over the chunks, their number and their bytes.
    pub checksum: u32,
}

struct Snapshot {
    meta: SnapshotMeta,
    digest: SnapshotDigest,
    created: SystemTime,
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
            let path = path.lock();
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

fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl SnapshotStore {
    /// Snapshots in memory.
    #[must_use]
    pub fn memory(options: &StoreOptions) -> Self {
        SnapshotStore::new(Location::Memory, options)
    }

    fn new(place: Location, options: &StoreOptions) -> Self {
        SnapshotStore(Arc::new(Inner {
            place,
            kept: options.snapshots_kept.max(1),
            bytes_max: options.snapshot_bytes_max,
            reserve_bytes: options.space_hard_bytes,
            next_temporary: AtomicU64::new(0),
            published: Mutex::new(Vec::new()),
            partial: Mutex::new(None),
        }))
    }

    /// Opens the snapshots in `dir`: leftovers are removed, and the newest that verifies is
    /// current. One that does not verify is reported and passed over.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn open(dir: &Path, options: &StoreOptions) -> Result<Self, StoreError> {
        create_directory(dir, options.files.as_ref())?;
        let place = Location::Directory { dir: dir.to_path_buf(), files: options.files.clone() };
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
        self.0.published.lock()
    }

    /// The newest published snapshot.
    #[must_use]
    pub fn current(&self) -> Option<SnapshotHandle> {
        self.lock().last().cloned()
    }

    /// Keeps what was received of a snapshot, so that the rest can follow. `key` says which snapshot
    /// it is: what it covers and its digest. At most one is kept; an earlier one is dropped.
    pub fn keep_partial(&self, writer: SnapshotWriter, key: Bytes) {
        let partial = Partial { key, writer };
        let earlier = self.partial().replace(partial);
        // Outside the lock: it removes a file.
        drop(earlier);
    }

    /// What was kept of the snapshot `key` names; it goes on after [`SnapshotWriter::chunks`]. What
    /// was kept of any other is dropped.
    #[must_use]
    pub fn take_partial(&self, key: &[u8]) -> Option<SnapshotWriter> {
        let kept = self.partial().take();
        kept.filter(|partial| partial.key == key).map(|partial| partial.writer)
    }

    fn partial(&self) -> MutexGuard<'_, Option<Partial>> {
        self.0.partial.lock()
    }

    /// Starts writing a snapshot. Blocks, as all of writing does.
    ///
    /// # Errors
    /// When the file cannot be made; [`StoreError::NoSpace`] when the disk has no space for it, now or
    /// while it is written: a replica goes on without the snapshot.
    pub fn create(&self, meta: SnapshotMeta) -> Result<SnapshotWriter, StoreError> {
        let created = SystemTime::now();
        let target = match &self.0.place {
            Location::Memory => Target::Memory(Vec::new()),
            Location::Directory { dir, files } => {
                require_room(dir, files.as_ref(), self.0.reserve_bytes)?;
                let number = self.0.next_temporary.fetch_add(1, Ordering::Relaxed);
                let path = dir.join(format!("{}-{number}.{TEMPORARY_EXTENSION}", name_of(&meta)));
                let file = files.create(&path).map_err(|source| room_error("creating", &path, source))?;
                let encoded = codec::encode_snapshot_meta(&meta);
                let mut header = MAGIC.to_vec();
                header.extend_from_slice(&VERSION.to_le_bytes());
                header.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
                header.extend_from_slice(&unix_ms(created).to_le_bytes());
                header.extend_from_slice(&encoded);
                let header = codec::seal(header);
                let first_chunk = header.len() as u64;
                let files = Arc::clone(files);
                let mut target = Target::File { file, path, first_chunk, offset: 0, files, finished: false };
                target.put(&header)?;
                target
            }
        };
        Ok(SnapshotWriter {
            meta,
            created,
            target,
            chunks: 0,
            bytes: 0,
            bytes_max: self.0.bytes_max,
            reserve_bytes: self.0.reserve_bytes,
            unchecked_bytes: 0,
            checksums: crc32fast::Hasher::new(),
        })
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
        if let (Location::Directory { dir, files }, Content::File { path, .. }) =
            (&self.0.place, &handle.0.content)
        {
            let name = dir.join(format!("{}.{EXTENSION}", name_of(handle.meta())));
            let mut path = path.lock();
            files.rename(&path, &name).map_err(|source| file_error("naming", &name, source))?;
            path.clone_from(&name);
            sync_directory(dir, files.as_ref())?;
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
        let Location::Directory { dir, files } = &self.0.place else { return Ok(()) };
        let mut paths: Vec<PathBuf> = std::fs::read_dir(dir)
            .map_err(|source| file_error("listing", dir, source))?
            .flatten()
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION))
            .collect();
        paths.sort();
        let surplus = paths.len().saturating_sub(self.0.kept);
        // Ones that are not intact may be named as the newest; what is published stays all the same.
        let kept: Vec<_> = published.iter().map(|handle| name_of(handle.meta())).collect();
        for path in paths.drain(..surplus) {
            if path.file_stem().is_some_and(|stem| kept.iter().any(|name| stem == name.as_str())) {
                continue;
            }
            files.remove(&path).map_err(|source| file_error("removing", &path, source))?;
        }
        Ok(())
    }
}

fn require_room(dir: &Path, files: &dyn FileLayer, reserve_bytes: u64) -> Result<(), StoreError> {
    // A disk that does not say is written to until it refuses.
    if files.free_bytes(dir).is_ok_and(|free| free < reserve_bytes) {
        let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
        return Err(room_error("writing a snapshot in", dir, source));
    }
    Ok(())
}

enum Target {
    File {
        file: File,
        path: PathBuf,
        first_chunk: u64,
        offset: u64,
        files: Arc<dyn FileLayer>,
        finished: bool,
    },
    Memory(Vec<Bytes>),
}

impl Target {
    fn put(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        if let Target::File { file, path, offset, files, .. } = self {
            files
                .write_at(file, path, bytes, *offset)
                .map_err(|source| room_error("writing", path, source))?;
            *offset += bytes.len() as u64;
        }
        Ok(())
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
    created: SystemTime,
    target: Target,
    chunks: u64,
    bytes: u64,
    bytes_max: u64,
    reserve_bytes: u64,
    /// Written since free space was last looked at.
    unchecked_bytes: u64,
    checksums: crc32fast::Hasher,
}

impl SnapshotWriter {
    /// What the snapshot covers.
    #[must_use]
    pub fn meta(&self) -> &SnapshotMeta {
        &self.meta
    }

    /// Chunks written so far.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Bytes of content written so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends bytes; large pieces are cut. After an error the writer is good for nothing but to be
    /// dropped.
    ///
    /// # Errors
    /// When the file cannot be written or the snapshot grows past its limit.
    pub fn write(&mut self, piece: &Bytes) -> Result<(), StoreError> {
        let mut rest = piece.clone();
        while !rest.is_empty() {
            let chunk = rest.split_to(rest.len().min(CHUNK_BYTES_MAX));
            let bytes = self.bytes + chunk.len() as u64;
            if bytes > self.bytes_max {
                return Err(StoreError::SnapshotTooLarge { bytes_max: self.bytes_max });
            }
            self.require_room(chunk.len() as u64)?;
            let crc = crc32fast::hash(&chunk).to_le_bytes();
            if let Target::Memory(chunks) = &mut self.target {
                chunks.push(chunk);
            } else {
                let mut header = (chunk.len() as u32).to_le_bytes().to_vec();
                header.extend_from_slice(&crc);
                self.target.put(&header)?;
                self.target.put(&chunk)?;
            }
            self.bytes = bytes;
            self.chunks += 1;
            self.checksums.update(&crc);
        }
        Ok(())
    }

    fn require_room(&mut self, bytes: u64) -> Result<(), StoreError> {
        self.unchecked_bytes += bytes;
        if let Target::File { path, files, .. } = &self.target
            && self.unchecked_bytes >= SPACE_CHECK_BYTES
        {
            let directory = path.parent().unwrap_or(Path::new("."));
            require_room(directory, files.as_ref(), self.reserve_bytes)?;
            self.unchecked_bytes = 0;
        }
        Ok(())
    }

    /// Makes the snapshot durable. It is current only once published.
    ///
    /// # Errors
    /// When the file cannot be written or flushed.
    pub fn finish(mut self) -> Result<SnapshotHandle, StoreError> {
        let mut end = 0u32.to_le_bytes().to_vec();
        let (trailer, digest) = trailer(self.chunks, self.bytes, self.checksums.clone());
        end.extend_from_slice(&trailer);
        self.target.put(&end)?;
        let content = match &mut self.target {
            Target::Memory(chunks) => Content::Memory(std::mem::take(chunks)),
            Target::File { file, path, first_chunk, files, finished, .. } => {
                files.sync_data(file, path).map_err(|source| file_error("flushing", path, source))?;
                let file = file.try_clone().map_err(|source| file_error("reopening", path, source))?;
                *finished = true;
                Content::File { file, path: Mutex::new(path.clone()), first_chunk: *first_chunk }
            }
        };
        let snapshot = Snapshot {
            meta: self.meta.clone(),
            digest,
            created: self.created,
            content,
            published: AtomicBool::new(false),
        };
        Ok(SnapshotHandle(Arc::new(snapshot)))
    }
}

const TRAILER_BYTES: usize = 20;

fn trailer(
    chunks: u64,
    bytes: u64,
    mut checksums: crc32fast::Hasher,
) -> ([u8; TRAILER_BYTES], SnapshotDigest) {
    let mut out = [0; TRAILER_BYTES];
    out[..8].copy_from_slice(&chunks.to_le_bytes());
    out[8..16].copy_from_slice(&bytes.to_le_bytes());
    checksums.update(&out[..16]);
    let checksum = checksums.finalize();
    out[16..].copy_from_slice(&checksum.to_le_bytes());
    (out, SnapshotDigest { chunks, bytes, checksum })
}

fn read_header(file: &File) -> Result<(SnapshotMeta, SystemTime, u64), String> {
    let text = |error: CodecError| error.to_string();
    let mut header = vec![0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).map_err(|error| error.to_string())?;
    let mut reader = Reader(&header);
    let magic = reader.take(4, "the magic").map_err(text)?;
    let version = reader.u32("the version").map_err(text)?;
    let meta_len = reader.u32("the length").map_err(text)?;
    let created_ms = reader.u64("the time").map_err(text)?;
    if magic != MAGIC || version != VERSION || meta_len > META_BYTES_MAX {
        return Err("its header is not one of a snapshot".to_owned());
    }
    header.resize(HEADER_BYTES + meta_len as usize + 4, 0);
    file.read_exact_at(&mut header, 0).map_err(|error| error.to_string())?;
    let sealed = codec::unseal(&header, "the header").map_err(text)?;
    let meta = codec::decode_snapshot_meta(&sealed[HEADER_BYTES..]).map_err(text)?;
    let created = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(created_ms));
    Ok((meta, created.unwrap_or(SystemTime::UNIX_EPOCH), header.len() as u64))
}

/// What the end of the file says; whether it is true shows when all of it is read.
fn read_trailer(file: &File) -> Result<SnapshotDigest, String> {
    let len = file.metadata().map_err(|error| error.to_string())?.len();
    let offset = len.checked_sub(TRAILER_BYTES as u64).ok_or("it has no end")?;
    let mut bytes = [0; TRAILER_BYTES];
    file.read_exact_at(&mut bytes, offset).map_err(|error| error.to_string())?;
    let mut reader = Reader(&bytes);
    let mut word = || reader.u64("the end").map_err(|error| error.to_string());
    let (chunks, bytes) = (word()?, word()?);
    let checksum = reader.u32("the end").map_err(|error| error.to_string())?;
    Ok(SnapshotDigest { chunks, bytes, checksum })
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
        self.0.digest.bytes
    }

    /// Tells its content from that of any other.
    #[must_use]
    pub fn digest(&self) -> SnapshotDigest {
        self.0.digest
    }

    /// When this replica began to write it, by its own clock.
    #[must_use]
    pub fn created(&self) -> SystemTime {
        self.0.created
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

    /// Its content from chunk number `first` on, counted from 0; nothing when it has fewer chunks. What is left out is not read, only stepped over. Blocks.
    ///
    /// # Errors
    /// [`StoreError::SnapshotCorrupt`] when what is stepped over does not fit together.
    pub fn chunks_from(&self, first: u64) -> Result<SnapshotReader, StoreError> {
        let mut reader = self.chunks();
        while reader.chunks < first && !reader.done {
            reader.step_over().map_err(|detail| corrupt(name_of(self.meta()), detail))?;
        }
        Ok(reader)
    }

    fn open(path: &Path) -> Result<SnapshotHandle, StoreError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = File::open(path).map_err(|source| file_error("opening", path, source))?;
        let (meta, created, first_chunk) = read_header(&file).map_err(|detail| corrupt(&name, detail))?;
        let digest = read_trailer(&file).map_err(|detail| corrupt(&name, detail))?;
        let content = Content::File { file, path: Mutex::new(path.to_path_buf()), first_chunk };
        let published = AtomicBool::new(true);
        Ok(SnapshotHandle(Arc::new(Snapshot { meta, digest, created, content, published })))
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

/// What stands in front of a chunk.
enum Ahead {
    Chunk { len: usize, crc: u32 },
    End,
}

impl SnapshotReader {
    fn read_exact(&mut self, file: &File, len: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, self.offset).map_err(|error| error.to_string())?;
        self.offset += len as u64;
        Ok(bytes)
    }

    fn read_ahead(&mut self, file: &File) -> Result<Ahead, String> {
        let word = |bytes: &[u8]| Reader(bytes).u32("a number").map_err(|error| error.to_string());
        let len = word(&self.read_exact(file, 4)?)? as usize;
        if len > CHUNK_BYTES_MAX {
            return Err("a chunk is too long".to_owned());
        }
        if len > 0 {
            return Ok(Ahead::Chunk { len, crc: word(&self.read_exact(file, 4)?)? });
        }
        let found = self.read_exact(file, TRAILER_BYTES)?;
        if found != trailer(self.chunks, self.bytes, self.checksums.clone()).0 {
            return Err("its end does not match its chunks".to_owned());
        }
        match file.metadata() {
            Ok(metadata) if metadata.len() == self.offset => Ok(Ahead::End),
            Ok(_) => Err("something follows its end".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn counted(&mut self, len: usize, crc: u32) {
        self.checksums.update(&crc.to_le_bytes());
        self.chunks += 1;
        self.bytes += len as u64;
    }

    fn read_chunk(&mut self, file: &File) -> Result<Option<Bytes>, String> {
        let Ahead::Chunk { len, crc } = self.read_ahead(file)? else { return Ok(None) };
        let chunk = self.read_exact(file, len)?;
        if crc32fast::hash(&chunk) != crc {
            return Err(format!("the checksum of chunk {} does not hold", self.chunks));
        }
        self.counted(len, crc);
        Ok(Some(Bytes::from(chunk)))
    }

    fn step_over(&mut self) -> Result<(), String> {
        let handle = self.handle.clone();
        match &handle.0.content {
            Content::Memory(chunks) => match chunks.get(self.chunks as usize) {
                Some(_) => self.chunks += 1,
                None => self.done = true,
            },
            Content::File { file, .. } => match self.read_ahead(file)? {
                Ahead::Chunk { len, crc } => {
                    self.offset += len as u64;
                    self.counted(len, crc);
                }
                Ahead::End => self.done = true,
            },
        }
        Ok(())
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
