//! Whose data directory this is, which generation of the cluster it belongs to, and that only one process has it open.
//!
//! A replica that started on an empty or a foreign directory would vote as if it had promised nothing.
//! So the directory names its cluster, the generation of it and the replica; creating one is something
//! the operator allows, and the file is written last: a directory with it is complete.
//!
//! Whether the directory is a rebuild stands in the same file: were it a separate file, losing that file
//! would give the replica its vote back.
//!
//! **Invariant:** a directory is never opened as another cluster, generation or replica than it was
//! created for.
//! **Invariant:** a directory next to which evidence of damage is kept is only ever created as a rebuild.

use crate::codec::{CodecError, Reader, seal, unseal};
use crate::error::{Damage, StoreError};
use crate::files::{FileLayer, is_out_of_space};
use muster_types::{ClusterId, ReplicaId};
use parking_lot::{Mutex, MutexGuard};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;

/// The on-disk format this release writes, and the newest it reads.
pub const FORMAT_VERSION: u32 = 2;
/// The first that says which founding of the cluster a directory is of.
const FOUNDING_VERSION: u32 = 2;
/// The generation of a cluster that was never recovered.
pub const FIRST_GENERATION: u32 = 1;
const MAGIC: [u8; 8] = *b"MUSTERID";
pub(crate) const IDENTITY_FILE: &str = "IDENTITY";
const LOCK_FILE: &str = "LOCK";

/// Whose data a directory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The replica.
    pub replica_id: ReplicaId,
    /// The generation of the cluster: [`FIRST_GENERATION`], and one more each time the cluster was
    /// raised again from a survivor or a backup.
    pub generation: u32,
}

/// Which founding of its cluster a directory is of. A cluster id is configured, so that a cluster that is founded a second
/// time by mistake has the same one; the founding is drawn by the founder and differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FoundingId {
    /// Not known: a directory of an older release, or one that waits to be added to a cluster.
    #[default]
    Unknown,
    /// The directory was made for a new cluster that is not founded so far. It promises nothing.
    Awaited,
    /// This one.
    Of(u64),
}

impl FoundingId {
    /// The number of the founding, where it is known.
    #[must_use]
    pub fn id(self) -> Option<u64> {
        match self {
            FoundingId::Of(founding) => Some(founding),
            FoundingId::Unknown | FoundingId::Awaited => None,
        }
    }

    fn to_parts(self) -> (u8, u64) {
        match self {
            FoundingId::Unknown => (0, 0),
            FoundingId::Awaited => (1, 0),
            FoundingId::Of(founding) => (2, founding),
        }
    }

    fn from_parts(kind: u8, founding: u64) -> Result<FoundingId, CodecError> {
        match kind {
            0 => Ok(FoundingId::Unknown),
            1 => Ok(FoundingId::Awaited),
            2 => Ok(FoundingId::Of(founding)),
            value => Err(CodecError::Unknown { field: "the founding", value: value.into() }),
        }
    }
}

/// The directory was emptied and is being rebuilt from the peers: it may have forgotten promises that
/// it made under this id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rejoin {
    /// The cluster has not added the replica again: it neither votes nor accepts entries.
    #[default]
    Unknown,
    /// The replica may vote once a membership entry with this Raft index or a later one is in its log.
    From {
        /// The entry that added it again.
        index: u64,
        /// Whether it voted before it was emptied, so that it is to be given its vote back.
        voted: bool,
    },
    /// It may promise again like every other replica, and is to be given its vote back.
    AwaitingVote,
}

impl Rejoin {
    fn to_parts(self) -> (u8, u64) {
        match self {
            Rejoin::Unknown => (0, 0),
            Rejoin::From { index, voted: false } => (1, index),
            Rejoin::From { index, voted: true } => (2, index),
            Rejoin::AwaitingVote => (3, 0),
        }
    }

    fn from_parts(step: u8, index: u64) -> Result<Rejoin, CodecError> {
        match step {
            0 => Ok(Rejoin::Unknown),
            1 => Ok(Rejoin::From { index, voted: false }),
            2 => Ok(Rejoin::From { index, voted: true }),
            3 => Ok(Rejoin::AwaitingVote),
            value => Err(CodecError::Unknown { field: "the step of a rebuild", value: value.into() }),
        }
    }
}

/// Whether a directory may be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The replica ran before: a directory without it is refused, because a voter that lost its disk
    /// must not come back empty under its old id.
    Existing,
    /// Open what is there, create what is not.
    CreateIfMissing,
    /// Open what is there; create what is not as a member of a cluster that is not founded so far, with
    /// [`FoundingId::Awaited`].
    FoundIfMissing,
    /// Open what is there; create what is not as a rebuild, with [`Rejoin`] set.
    RebuildIfMissing,
}

pub(crate) fn file_error(operation: &'static str, path: &Path, source: std::io::Error) -> StoreError {
    StoreError::File { operation, path: path.to_path_buf(), source }
}

/// For operations that can be tried again once the disk has free space.
pub(crate) fn room_error(operation: &'static str, path: &Path, source: std::io::Error) -> StoreError {
    if is_out_of_space(&source) {
        StoreError::NoSpace { operation, path: path.to_path_buf(), source }
    } else {
        file_error(operation, path, source)
    }
}

pub(crate) fn damaged(dir: &Path, damage: Damage) -> StoreError {
    StoreError::Damaged { dir: dir.to_path_buf(), damage }
}

/// Makes the names in a directory durable.
pub(crate) fn sync_directory(path: &Path, files: &dyn FileLayer) -> Result<(), StoreError> {
    files.sync_directory(path).map_err(|source| file_error("flushing the directory", path, source))
}

/// Creates a directory and whatever of its parents is missing, durably.
pub(crate) fn create_directory(path: &Path, files: &dyn FileLayer) -> Result<(), StoreError> {
    let missing: Vec<&Path> = path
        .ancestors()
        .filter(|ancestor| !ancestor.as_os_str().is_empty())
        .take_while(|ancestor| !ancestor.exists())
        .collect();
    for directory in missing.into_iter().rev() {
        match std::fs::create_dir(directory) {
            Ok(()) => {}
            Err(source) if source.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(file_error("creating", directory, source)),
        }
        sync_directory(parent_of(directory), files)?;
    }
    Ok(())
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a whole file so that after a crash it is there completely or not at all.
pub(crate) fn write_file_atomically(
    path: &Path,
    content: &[u8],
    files: &dyn FileLayer,
) -> Result<(), StoreError> {
    let temporary = path.with_extension("tmp");
    let prepare = || -> std::io::Result<File> {
        if temporary.exists() {
            files.remove(&temporary)?;
        }
        let file = files.create(&temporary)?;
        files.write_at(&file, &temporary, content, 0)?;
        Ok(file)
    };
    let file = prepare().map_err(|source| room_error("writing", path, source))?;
    files
        .sync_data(&file, &temporary)
        .and_then(|()| files.rename(&temporary, path))
        .map_err(|source| file_error("writing", path, source))?;
    sync_directory(parent_of(path), files)
}

/// Holds the directory for this process; released when dropped, and by the system when the process dies.
#[derive(Debug)]
pub(crate) struct DirectoryLock(#[expect(dead_code, reason = "held for its lock")] File);

pub(crate) fn lock_directory(dir: &Path) -> Result<DirectoryLock, StoreError> {
    let path = dir.join(LOCK_FILE);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|source| file_error("opening", &path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(DirectoryLock(file)),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { dir: dir.to_path_buf() }),
        Err(TryLockError::Error(source)) => Err(file_error("locking", &path, source)),
    }
}

fn identity_path(dir: &Path) -> PathBuf {
    dir.join(IDENTITY_FILE)
}

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) identity: Identity,
    pub(crate) rejoin: Option<Rejoin>,
    pub(crate) founding: FoundingId,
}

/// What a directory says it is; the format is read before anything that a later format may change.
enum Found {
    Nothing,
    Newer(u32),
    Record(Record),
}

fn decode(bytes: &[u8]) -> Result<Found, CodecError> {
    let mut reader = Reader(unseal(bytes, "the identity")?);
    if reader.take(8, "the magic")? != MAGIC {
        return Err(CodecError::Invalid("the magic"));
    }
    let format = reader.u32("format")?;
    if format > FORMAT_VERSION {
        return Ok(Found::Newer(format));
    }
    let cluster_id = ClusterId(reader.u128("cluster")?);
    let replica_id = ReplicaId(reader.u64("replica")?);
    let generation = reader.u32("generation")?;
    let rejoin = if reader.bool("rejoin")? {
        let step = reader.u8("the step of a rebuild")?;
        Some(Rejoin::from_parts(step, reader.u64("the first index")?)?)
    } else {
        None
    };
    let founding = if format >= FOUNDING_VERSION {
        let kind = reader.u8("the kind of the founding")?;
        FoundingId::from_parts(kind, reader.u64("the founding")?)?
    } else {
        FoundingId::Unknown
    };
    reader.end()?;
    Ok(Found::Record(Record { identity: Identity { cluster_id, replica_id, generation }, rejoin, founding }))
}

fn encode(record: &Record, format: u32) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&format.to_le_bytes());
    out.extend_from_slice(&record.identity.cluster_id.0.to_le_bytes());
    out.extend_from_slice(&record.identity.replica_id.0.to_le_bytes());
    out.extend_from_slice(&record.identity.generation.to_le_bytes());
    out.push(u8::from(record.rejoin.is_some()));
    if let Some(rejoin) = record.rejoin {
        let (step, index) = rejoin.to_parts();
        out.push(step);
        out.extend_from_slice(&index.to_le_bytes());
    }
    if format >= FOUNDING_VERSION {
        let (kind, founding) = record.founding.to_parts();
        out.push(kind);
        out.extend_from_slice(&founding.to_le_bytes());
    }
    seal(out)
}

fn read(dir: &Path) -> Result<Found, StoreError> {
    let path = identity_path(dir);
    match std::fs::read(&path) {
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(Found::Nothing),
        Err(source) => Err(file_error("reading", &path, source)),
        Ok(bytes) => decode(&bytes)
            .map_err(|error| damaged(dir, Damage::FileCorrupt { path, detail: error.to_string() })),
    }
}

/// Whose directory this is; `None` where it holds no replica yet.
pub(crate) fn found_in(dir: &Path) -> Result<Option<Record>, StoreError> {
    match read(dir)? {
        Found::Nothing => Ok(None),
        Found::Newer(found) => {
            Err(StoreError::NewerFormat { dir: dir.to_path_buf(), found, supported: FORMAT_VERSION })
        }
        Found::Record(record) => Ok(Some(record)),
    }
}

/// The directory's record when it holds this replica; refuses any other. `None` where it holds none yet.
pub(crate) fn check(dir: &Path, expected: Identity) -> Result<Option<Record>, StoreError> {
    let Some(record) = found_in(dir)? else { return Ok(None) };
    let found = record.identity;
    let dir = dir.to_path_buf();
    if found.cluster_id != expected.cluster_id {
        let (found, expected) = (found.cluster_id, expected.cluster_id);
        return Err(StoreError::OtherCluster { dir, found, expected });
    }
    if found.replica_id != expected.replica_id {
        let (found, expected) = (found.replica_id, expected.replica_id);
        return Err(StoreError::OtherReplica { dir, found, expected });
    }
    if found.generation != expected.generation {
        let (found, expected) = (found.generation, expected.generation);
        return Err(StoreError::OtherGeneration { dir, found, expected });
    }
    Ok(Some(record))
}

/// Marks the directory as complete. Called last at creation.
pub(crate) fn write(dir: &Path, record: &Record, files: &dyn FileLayer) -> Result<(), StoreError> {
    write_file_atomically(&identity_path(dir), &encode(record, FORMAT_VERSION), files)
}

/// The record of an open directory. Clones share it.
#[derive(Clone)]
pub(crate) struct IdentityFile(Arc<Inner>);

struct Inner {
    /// `None` in memory.
    place: Option<(PathBuf, Arc<dyn FileLayer>)>,
    record: Mutex<Record>,
    rejoin: watch::Sender<Option<Rejoin>>,
}

impl IdentityFile {
    pub(crate) fn new(record: Record, place: Option<(PathBuf, Arc<dyn FileLayer>)>) -> Self {
        let rejoin = watch::Sender::new(record.rejoin);
        IdentityFile(Arc::new(Inner { place, record: Mutex::new(record), rejoin }))
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.record.lock()
    }

    pub(crate) fn identity(&self) -> Identity {
        self.lock().identity
    }

    pub(crate) fn founding(&self) -> FoundingId {
        self.lock().founding
    }

    pub(crate) fn rejoin(&self) -> watch::Receiver<Option<Rejoin>> {
        self.0.rejoin.subscribe()
    }

    /// Changes the record, durably; it is seen only once it is.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Record)) -> Result<(), StoreError> {
        let mut record = self.lock();
        let mut changed = *record;
        change(&mut changed);
        if changed == *record {
            return Ok(());
        }
        if let Some((dir, files)) = &self.0.place {
            write(dir, &changed, files.as_ref())?;
        }
        *record = changed;
        self.0.rejoin.send_if_modified(|rejoin| std::mem::replace(rejoin, changed.rejoin) != changed.rejoin);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::SystemFiles;

    const OURS: Identity = Identity { cluster_id: ClusterId(7), replica_id: ReplicaId(1), generation: 3 };

    fn record(identity: Identity) -> Record {
        Record { identity, rejoin: None, founding: FoundingId::Of(11) }
    }

    #[test]
    fn another_cluster_generation_or_replica_or_a_newer_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check(dir.path(), OURS).unwrap().is_none());
        write(dir.path(), &record(OURS), &SystemFiles).unwrap();
        assert_eq!(check(dir.path(), OURS).unwrap(), Some(record(OURS)));
        let other = Identity { cluster_id: ClusterId(8), ..OURS };
        let refusal = check(dir.path(), other).unwrap_err();
        assert!(matches!(
            refusal,
            StoreError::OtherCluster { found: ClusterId(7), expected: ClusterId(8), .. }
        ));
        let other = Identity { replica_id: ReplicaId(2), ..OURS };
        let refusal = check(dir.path(), other).unwrap_err();
        assert!(matches!(
            refusal,
            StoreError::OtherReplica { found: ReplicaId(1), expected: ReplicaId(2), .. }
        ));
        let other = Identity { generation: 4, ..OURS };
        let refusal = check(dir.path(), other).unwrap_err();
        assert!(matches!(refusal, StoreError::OtherGeneration { found: 3, expected: 4, .. }));
        std::fs::write(identity_path(dir.path()), encode(&record(OURS), FORMAT_VERSION + 1)).unwrap();
        let refusal = check(dir.path(), OURS).unwrap_err();
        assert!(matches!(refusal, StoreError::NewerFormat { found: 3, supported: 2, .. }));
    }

    #[test]
    fn a_file_of_the_first_format_says_nothing_of_a_founding() {
        let dir = tempfile::tempdir().unwrap();
        for founding in [FoundingId::Unknown, FoundingId::Awaited, FoundingId::Of(u64::MAX)] {
            let of = Record { founding, ..record(OURS) };
            std::fs::write(identity_path(dir.path()), encode(&of, 1)).unwrap();
            let read = check(dir.path(), OURS).unwrap();
            assert_eq!(read, Some(Record { founding: FoundingId::Unknown, ..of }));
            write(dir.path(), &of, &SystemFiles).unwrap();
            assert_eq!(check(dir.path(), OURS).unwrap(), Some(of));
        }
    }

    #[test]
    fn every_flipped_bit_of_the_identity_file_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let rebuilt =
            Record { identity: OURS, rejoin: Some(Rejoin::From { index: 9, voted: true }), ..record(OURS) };
        for bytes in [encode(&record(OURS), FORMAT_VERSION), encode(&rebuilt, FORMAT_VERSION)] {
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                std::fs::write(identity_path(dir.path()), flipped).unwrap();
                assert!(matches!(check(dir.path(), OURS), Err(StoreError::Damaged { .. })), "bit {bit}");
            }
        }
    }

    #[test]
    fn a_change_is_durable_before_it_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &record(OURS), &SystemFiles).unwrap();
        let files: Arc<dyn FileLayer> = Arc::new(SystemFiles);
        let file = IdentityFile::new(record(OURS), Some((dir.path().to_path_buf(), files)));
        let rejoin = Some(Rejoin::AwaitingVote);
        file.change(|record| record.rejoin = rejoin).unwrap();
        assert_eq!(*file.rejoin().borrow(), rejoin);
        assert_eq!(found_in(dir.path()).unwrap().unwrap().rejoin, rejoin);
        std::fs::remove_dir_all(dir.path()).unwrap();
        file.change(|record| record.rejoin = None).unwrap_err();
        assert_eq!(*file.rejoin().borrow(), rejoin);
    }

    #[test]
    fn a_folder_is_opened_once() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock_directory(dir.path()).unwrap();
        assert!(matches!(lock_directory(dir.path()), Err(StoreError::InUse { .. })));
        drop(held);
        lock_directory(dir.path()).unwrap();
    }
}
