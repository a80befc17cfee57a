//! Whose data folder this is, and that only one process has it open.
//!
//! A replica that started on an empty or a foreign folder would vote as if it had promised nothing.
//! So the folder names its cluster and replica, creating one is something the operator allows, and
//! the file is written last: a folder with it is complete.
//!
//! **Invariant:** a folder is never opened as another cluster or replica than it was created for.

use crate::codec::{CodecError, Reader, seal, unseal};
use crate::error::{Damage, StoreError};
use crate::options::FileSync;
use muster_types::{ClusterId, ReplicaId};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The on-disk format this release writes, and the newest it reads.
pub const FORMAT_VERSION: u32 = 1;
/// The generation of a cluster that was never recovered.
pub const FIRST_GENERATION: u32 = 1;
const MAGIC: [u8; 8] = *b"MUSTERID";
const IDENTITY_FILE: &str = "IDENTITY";
const LOCK_FILE: &str = "LOCK";

/// Whose data a folder holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The replica.
    pub replica_id: ReplicaId,
    /// The generation of the cluster.
    pub generation: u32,
}

/// The folder was emptied and is being rebuilt from the peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejoin {
    /// From which membership entry on it may vote.
    pub from_index: Option<u64>,
}

/// Whether a folder may be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The replica ran before: a folder without it is refused, because a voter that lost its disk
    /// must not come back empty under its old id.
    Existing,
    /// Open what is there, create what is not.
    CreateIfMissing,
}

pub(crate) fn file_error(operation: &'static str, path: &Path, source: std::io::Error) -> StoreError {
    StoreError::File { operation, path: path.to_path_buf(), source }
}

pub(crate) fn damaged(dir: &Path, damage: Damage) -> StoreError {
    StoreError::Damaged { dir: dir.to_path_buf(), damage }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(|source| file_error("flushing the folder", path, source))
}

/// Writes a whole file so that after a crash it is there completely or not at all.
pub(crate) fn write_file_atomically(
    path: &Path,
    content: &[u8],
    sync: &dyn FileSync,
) -> Result<(), StoreError> {
    let temporary = path.with_extension("tmp");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&temporary)?;
        file.write_all(content)?;
        sync.sync_data(&file)?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|source| file_error("writing", path, source))?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Holds the folder for this process; released when dropped, and by the system when the process dies.
#[derive(Debug)]
pub(crate) struct FolderLock(#[expect(dead_code, reason = "held for its lock")] File);

pub(crate) fn lock_folder(dir: &Path) -> Result<FolderLock, StoreError> {
    let path = dir.join(LOCK_FILE);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|source| file_error("opening", &path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(FolderLock(file)),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { dir: dir.to_path_buf() }),
        Err(TryLockError::Error(source)) => Err(file_error("locking", &path, source)),
    }
}

fn identity_path(dir: &Path) -> PathBuf {
    dir.join(IDENTITY_FILE)
}

/// What a folder says it is; the format is read before anything that a later format may change.
enum Found {
    Nothing,
    Newer(u32),
    Identity(Identity),
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
    reader.end()?;
    Ok(Found::Identity(Identity { cluster_id, replica_id, generation: FIRST_GENERATION }))
}

fn encode(identity: Identity, format: u32) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&format.to_le_bytes());
    out.extend_from_slice(&identity.cluster_id.0.to_le_bytes());
    out.extend_from_slice(&identity.replica_id.0.to_le_bytes());
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

/// Whether the folder holds this replica; refuses any other. `false` where it holds none yet.
pub(crate) fn check(dir: &Path, expected: Identity) -> Result<bool, StoreError> {
    let found = match read(dir)? {
        Found::Nothing => return Ok(false),
        Found::Newer(found) => {
            return Err(StoreError::NewerFormat { dir: dir.to_path_buf(), found, supported: FORMAT_VERSION });
        }
        Found::Identity(found) => found,
    };
    if found.cluster_id != expected.cluster_id {
        return Err(StoreError::OtherCluster {
            dir: dir.to_path_buf(),
            found: found.cluster_id,
            expected: expected.cluster_id,
        });
    }
    if found.replica_id != expected.replica_id {
        return Err(StoreError::OtherReplica {
            dir: dir.to_path_buf(),
            found: found.replica_id,
            expected: expected.replica_id,
        });
    }
    Ok(true)
}

/// Marks the folder as complete. Called last at creation.
pub(crate) fn write(dir: &Path, identity: Identity, sync: &dyn FileSync) -> Result<(), StoreError> {
    write_file_atomically(&identity_path(dir), &encode(identity, FORMAT_VERSION), sync)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::SyncData;

    const OURS: Identity = Identity { cluster_id: ClusterId(7), replica_id: ReplicaId(1), generation: 1 };

    #[test]
    fn another_cluster_or_replica_or_a_newer_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!check(dir.path(), OURS).unwrap());
        write(dir.path(), OURS, &SyncData).unwrap();
        assert!(check(dir.path(), OURS).unwrap());
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
        std::fs::write(identity_path(dir.path()), encode(OURS, FORMAT_VERSION + 1)).unwrap();
        let refusal = check(dir.path(), OURS).unwrap_err();
        assert!(matches!(refusal, StoreError::NewerFormat { found: 2, supported: 1, .. }));
    }

    #[test]
    fn a_changed_identity_file_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = encode(OURS, FORMAT_VERSION);
        bytes[13] ^= 1;
        std::fs::write(identity_path(dir.path()), bytes).unwrap();
        assert!(matches!(check(dir.path(), OURS), Err(StoreError::Damaged { .. })));
    }

    #[test]
    fn a_folder_is_opened_once() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock_folder(dir.path()).unwrap();
        assert!(matches!(lock_folder(dir.path()), Err(StoreError::InUse { .. })));
        drop(held);
        lock_folder(dir.path()).unwrap();
    }
}
