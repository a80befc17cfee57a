//! One replica's storage as a whole: its directory, its log and its snapshots, opened together.
//!
//! ```text
//! <dir>/LOCK        held by the process
//! <dir>/CREATING    there while the directory is made
//! <dir>/IDENTITY    cluster, generation, replica, format, rebuild; written last at creation
//! <dir>/HIGHWATER   how far the log was flushed
//! <dir>/meta/       the database: vote, purge floor
//! <dir>/log/        one file per segment of the log
//! <dir>/snapshots/  one file per snapshot
//! <dir>/damaged-…/  what was set aside as evidence
//! ```
//!
//! **Invariant:** log and snapshots are opened together or not at all, and the log starts no later
//! than the newest intact snapshot ends.
//! **Invariant:** a directory without an identity is created again only while its mark shows that its creation
//! was interrupted; anything else of a replica in it is damage.

use crate::disk::DiskBackend;
use crate::error::{Damage, StoreError};
use crate::files::{FileLayer, SystemFiles};
use crate::identity::{
    self, FIRST_GENERATION, FoundingId, IDENTITY_FILE, Identity, IdentityFile, OpenMode, Record, Rejoin,
    create_directory, damaged, file_error, lock_directory, sync_directory, write_file_atomically,
};
use crate::log_store::LogStore;
use crate::memory::{MemoryBackend, MemoryDisk};
use crate::options::StoreOptions;
use crate::raft_types::SnapshotMeta;
use crate::snapshot::SnapshotStore;
use bytes::Bytes;
use muster_types::{ClusterId, ReplicaId};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tokio::sync::watch;

const CREATING_FILE: &str = "CREATING";
const SNAPSHOT_DIRECTORY: &str = "snapshots";
const EVIDENCE_PREFIX: &str = "damaged-";
/// Sets of evidence kept in one directory; each may be as large as a replica.
const EVIDENCE_MAX: usize = 3;

/// One replica's storage.
#[derive(Clone)]
pub struct ReplicaStore {
    /// The log and the vote.
    pub log: LogStore,
    /// The snapshots.
    pub snapshots: SnapshotStore,
    identity: IdentityFile,
}

impl ReplicaStore {
    /// Opens the replica in `dir`, or creates it where `mode` allows. Blocks: it verifies every
    /// retained entry and the newest snapshot.
    ///
    /// A directory in which evidence of damage was set aside is created as a rebuild, whatever `mode`
    /// says: the replica may have forgotten promises.
    ///
    /// # Errors
    /// A refusal that names both values when the directory is another replica's, a newer release's or
    /// in use; [`StoreError::Damaged`] when acknowledged data is gone.
    pub fn open(
        dir: &Path,
        identity: Identity,
        mode: OpenMode,
        options: StoreOptions,
    ) -> Result<Self, StoreError> {
        if mode == OpenMode::Existing && !dir.exists() {
            return Err(StoreError::NotFound { dir: dir.to_path_buf() });
        }
        create_directory(dir, options.files.as_ref())?;
        let lock = lock_directory(dir)?;
        let record = match identity::check(dir, identity)? {
            Some(record) => record,
            None if mode == OpenMode::Existing => {
                return Err(StoreError::NotFound { dir: dir.to_path_buf() });
            }
            None => {
                let creation = Creation::begin(dir, &options)?;
                DiskBackend::create(dir, &options, None)?;
                let rebuilt = mode == OpenMode::RebuildIfMissing || evidence_in(dir)? > 0;
                let rejoin = rebuilt.then_some(Rejoin::Unknown);
                let founding = match mode {
                    OpenMode::FoundIfMissing if !rebuilt => FoundingId::Awaited,
                    _ => FoundingId::Unknown,
                };
                creation.finish(Record { identity, rejoin, founding })?
            }
        };
        let files = options.files.clone();
        creation_over(dir, files.as_ref())?;
        let snapshots = SnapshotStore::open(&dir.join(SNAPSHOT_DIRECTORY), &options)?;
        let snapshot =
            snapshots.current().and_then(|handle| handle.meta().last_log_id).map(|last| last.index());
        let backend = DiskBackend::new(dir, options.clone());
        let log = LogStore::open_locked(backend, options, dir, Some(lock), |recovered| {
            let floor_index = recovered.floor.map(|floor| floor.index());
            // The log of a replica begins with its first entry, or right behind what was purged.
            let next = floor_index.map_or(0, |floor| floor + 1);
            if let Some(first_index) = recovered.first_index.filter(|first| *first > next) {
                return Err(damaged(dir, Damage::FloorLost { first_index, floor_index }));
            }
            match floor_index {
                Some(purged_index) if snapshot < Some(purged_index) => {
                    let damage = Damage::SnapshotLost { purged_index, snapshot_index: snapshot };
                    Err(damaged(dir, damage))
                }
                _ => Ok(()),
            }
        })?;
        let identity = IdentityFile::new(record, Some((dir.to_path_buf(), files)));
        Ok(ReplicaStore { log, snapshots, identity })
    }

    /// Creates a replica in `dir` that has a snapshot and an empty log that starts after it. It is
    /// complete and durable when this returns; interrupted, it can be started again. Blocks. It belongs to `founding`.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when the directory holds a replica, [`StoreError::CreationSource`] when a
    /// chunk could not be had, and what [`ReplicaStore::open`] may say.
    pub fn create_from<E>(
        dir: &Path,
        identity: Identity,
        founding: FoundingId,
        meta: SnapshotMeta,
        chunks: impl Iterator<Item = Result<Bytes, E>>,
        options: StoreOptions,
    ) -> Result<Self, StoreError>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        create_directory(dir, options.files.as_ref())?;
        let lock = lock_directory(dir)?;
        if identity::found_in(dir)?.is_some() {
            return Err(StoreError::Exists { dir: dir.to_path_buf() });
        }
        let creation = Creation::begin(dir, &options)?;
        let snapshots = SnapshotStore::open(&dir.join(SNAPSHOT_DIRECTORY), &options)?;
        let floor = meta.last_log_id;
        let mut writer = snapshots.create(meta)?;
        for chunk in chunks {
            let chunk = chunk.map_err(|error| StoreError::CreationSource(Box::new(error)))?;
            writer.write(&chunk)?;
        }
        snapshots.publish(&writer.finish()?)?;
        drop(snapshots);
        DiskBackend::create(dir, &options, floor)?;
        creation.finish(Record { identity, rejoin: None, founding })?;
        drop(lock);
        Self::open(dir, identity, OpenMode::Existing, options)
    }

    /// A replica in memory; `disk` is what it keeps over a restart of its log, `snapshots` likewise.
    ///
    /// # Errors
    /// When the storage thread cannot be started.
    pub fn in_memory(
        disk: MemoryDisk,
        snapshots: SnapshotStore,
        options: StoreOptions,
    ) -> Result<Self, StoreError> {
        let identity = disk.identity(|| {
            let identity =
                Identity { cluster_id: ClusterId(0), replica_id: ReplicaId(0), generation: FIRST_GENERATION };
            IdentityFile::new(Record { identity, rejoin: None, founding: FoundingId::Unknown }, None)
        });
        let log = LogStore::open(MemoryBackend::new(disk), options)?;
        Ok(ReplicaStore { log, snapshots, identity })
    }

    /// Whose directory `dir` is, without opening it; `None` where it holds no replica.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it cannot be told any more, [`StoreError::NewerFormat`].
    pub fn identity_of(dir: &Path) -> Result<Option<Identity>, StoreError> {
        Ok(identity::found_in(dir)?.map(|record| record.identity))
    }

    /// Moves everything of a replica in `dir` into a new directory `damaged-<unix-ms>` next to it, as
    /// evidence, and returns that directory. What is created in `dir` afterwards is a rebuild.
    ///
    /// # Errors
    /// [`StoreError::EvidenceFull`] when three sets are there already, [`StoreError::NotFound`]
    /// when there is nothing to set aside, [`StoreError::InUse`].
    pub fn set_aside(dir: &Path) -> Result<PathBuf, StoreError> {
        let files: &dyn FileLayer = &SystemFiles;
        if !dir.exists() {
            return Err(StoreError::NotFound { dir: dir.to_path_buf() });
        }
        let _lock = lock_directory(dir)?;
        let kept = evidence_in(dir)?;
        if kept >= EVIDENCE_MAX {
            return Err(StoreError::EvidenceFull { dir: dir.to_path_buf(), kept });
        }
        let mut names = replica_names(dir)?;
        if names.is_empty() {
            return Err(StoreError::NotFound { dir: dir.to_path_buf() });
        }
        // Last: while it is there, an interrupted move is seen as damage and set aside once more.
        names.sort_by_key(|name| name.as_path() == Path::new(IDENTITY_FILE));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut unix_ms = now.as_millis();
        let evidence = loop {
            let evidence = dir.join(format!("{EVIDENCE_PREFIX}{unix_ms}"));
            if !evidence.exists() {
                break evidence;
            }
            unix_ms += 1;
        };
        create_directory(&evidence, files)?;
        for name in names {
            let from = dir.join(&name);
            files
                .rename(&from, &evidence.join(&name))
                .map_err(|source| file_error("setting aside", &from, source))?;
        }
        sync_directory(&evidence, files)?;
        sync_directory(dir, files)?;
        Ok(evidence)
    }

    /// Whose directory this is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity.identity()
    }

    /// Has a blank replica, one without log, vote and snapshot, adopt the generation of its
    /// cluster, durably. Blocks.
    ///
    /// # Errors
    /// [`StoreError::NotBlank`] when it is not blank, or the generation would fall.
    pub fn set_generation(&self, generation: u32) -> Result<(), StoreError> {
        let own = self.identity().generation;
        if own == generation {
            return Ok(());
        }
        if generation < own || !self.is_blank() {
            return Err(StoreError::NotBlank { generation });
        }
        self.identity.change(|record| record.identity.generation = generation)
    }

    /// Whether the replica has neither log, vote nor snapshot.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.log.is_blank() && self.snapshots.current().is_none()
    }

    /// Which founding of the cluster the directory is of.
    #[must_use]
    pub fn founding(&self) -> FoundingId {
        self.identity.founding()
    }

    /// Has a blank replica belong to a founding, durably. Blocks.
    ///
    /// # Errors
    /// [`StoreError::OtherFounding`] when it belongs to another, or is not blank.
    pub fn set_founding(&self, founding: u64) -> Result<(), StoreError> {
        match self.founding() {
            FoundingId::Of(own) if own == founding => Ok(()),
            FoundingId::Unknown | FoundingId::Awaited if self.is_blank() => {
                self.identity.change(|record| record.founding = FoundingId::Of(founding))
            }
            _ => Err(StoreError::OtherFounding),
        }
    }

    /// Has a replica that waits for a founding wait to be taken into a cluster that runs, durably. Blocks.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn join_instead(&self) -> Result<(), StoreError> {
        self.identity.change(|record| {
            if record.founding == FoundingId::Awaited {
                record.founding = FoundingId::Unknown;
                record.rejoin = Some(Rejoin::Unknown);
            }
        })
    }

    /// Whether the directory is a rebuild that has not found its way back yet, as it changes.
    #[must_use]
    pub fn rejoin(&self) -> watch::Receiver<Option<Rejoin>> {
        self.identity.rejoin()
    }

    /// Marks the directory as a rebuild, or says from where on it knows enough; durably. Blocks.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_rejoin(&self, rejoin: Rejoin) -> Result<(), StoreError> {
        self.identity.change(|record| record.rejoin = Some(rejoin))
    }

    /// The replica knows again what it may have promised; durably. Blocks.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn clear_rejoin(&self) -> Result<(), StoreError> {
        self.identity.change(|record| record.rejoin = None)
    }
}

/// The creation of a replica: marked while it lasts, so that an interrupted one can be told from a
/// replica that lost its identity.
struct Creation<'a> {
    dir: &'a Path,
    files: &'a dyn FileLayer,
}

impl<'a> Creation<'a> {
    fn begin(dir: &'a Path, options: &'a StoreOptions) -> Result<Self, StoreError> {
        let files = options.files.as_ref();
        let marker = dir.join(CREATING_FILE);
        let found = replica_names(dir)?;
        if marker.exists() {
            for name in found {
                let path = dir.join(name);
                let removed =
                    if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
                removed.map_err(|source| file_error("removing", &path, source))?;
            }
        } else if !found.is_empty() {
            return Err(damaged(dir, Damage::FileMissing { path: dir.join(IDENTITY_FILE) }));
        }
        write_file_atomically(&marker, b"", files)?;
        Ok(Creation { dir, files })
    }

    fn finish(self, record: Record) -> Result<Record, StoreError> {
        identity::write(self.dir, &record, self.files)?;
        Ok(record)
    }
}

/// The marker may outlive the creation by a crash.
fn creation_over(dir: &Path, files: &dyn FileLayer) -> Result<(), StoreError> {
    let marker = dir.join(CREATING_FILE);
    if marker.exists() {
        files.remove(&marker).map_err(|source| file_error("removing", &marker, source))?;
        sync_directory(dir, files)?;
    }
    Ok(())
}

fn names_in(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let list = || -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(dir)?.map(|file| Ok(PathBuf::from(file?.file_name()))).collect()
    };
    list().map_err(|source| file_error("listing", dir, source))
}

/// The files of a replica in the directory, without the lock and the evidence; other files of a mounted disk
/// are left alone.
fn replica_names(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let known = [
        IDENTITY_FILE,
        crate::high_water::FILE,
        crate::disk::LOG_DIRECTORY,
        crate::meta::META_DIRECTORY,
        SNAPSHOT_DIRECTORY,
    ];
    let mut names = names_in(dir)?;
    names.retain(|name| known.iter().any(|known| name == Path::new(known)));
    Ok(names)
}

fn evidence_in(dir: &Path) -> Result<usize, StoreError> {
    let names = names_in(dir)?;
    Ok(names.iter().filter(|name| name.to_string_lossy().starts_with(EVIDENCE_PREFIX)).count())
}
