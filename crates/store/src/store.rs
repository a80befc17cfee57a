//! One replica's storage as a whole: its folder, its log and its snapshots, opened together.
//!
//! ```text
//! <dir>/LOCK        held by the process
//! <dir>/IDENTITY    cluster, replica, format; written last at creation
//! <dir>/HIGHWATER   how far the log was flushed
//! <dir>/log/        the database
//! <dir>/snapshots/  one file per snapshot
//! ```
//!
//! **Invariant:** log and snapshots are opened together or not at all, and the log starts no later
//! than the newest intact snapshot ends.

use crate::disk::SledBackend;
use crate::error::{Damage, StoreError};
use crate::identity::{self, Identity, OpenMode, damaged, file_error, lock_folder};
use crate::log_store::LogStore;
use crate::memory::{MemoryBackend, MemoryDisk};
use crate::options::StoreOptions;
use crate::snapshot::SnapshotStore;
use std::path::Path;

/// Made after the folder was completely created.
pub(crate) const SNAPSHOT_FOLDER: &str = "snapshots";

/// One replica's storage.
#[derive(Clone)]
pub struct ReplicaStore {
    /// The log and the vote.
    pub log: LogStore,
    /// The snapshots.
    pub snapshots: SnapshotStore,
    identity: std::sync::Arc<std::sync::Mutex<Identity>>,
    rejoin: std::sync::Arc<tokio::sync::watch::Sender<Option<identity::Rejoin>>>,
}

impl ReplicaStore {
    /// Opens the replica in `dir`, or creates it where `mode` allows. Blocks: it verifies every
    /// retained entry and the newest snapshot.
    ///
    /// # Errors
    /// A refusal that names both values when the folder is another replica's, a newer release's or
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
        std::fs::create_dir_all(dir).map_err(|source| file_error("creating", dir, source))?;
        let lock = lock_folder(dir)?;
        if !identity::check(dir, identity)? {
            if mode == OpenMode::Existing {
                return Err(StoreError::NotFound { dir: dir.to_path_buf() });
            }
            SledBackend::create(dir, &options)?;
            identity::write(dir, identity, options.sync.as_ref())?;
        }
        let snapshots = SnapshotStore::open(&dir.join(SNAPSHOT_FOLDER), &options)?;
        let log = LogStore::open_locked(SledBackend::new(dir, options.clone()), options, Some(lock))?;
        let purged = log.floor().map(|floor| floor.index());
        let snapshot =
            snapshots.current().and_then(|handle| handle.meta().last_log_id).map(|last| last.index());
        if let Some(purged_index) = purged
            && snapshot < Some(purged_index)
        {
            let damage = Damage::SnapshotLost { purged_index, snapshot_index: snapshot };
            return Err(damaged(dir, damage));
        }
        Ok(ReplicaStore { log, snapshots, identity: std::sync::Arc::new(std::sync::Mutex::new(identity)), rejoin: Default::default() })
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
        let log = LogStore::open(MemoryBackend::new(disk), options)?;
        let identity = Identity { cluster_id: muster_types::ClusterId(0), replica_id: muster_types::ReplicaId(0), generation: 1 };
        Ok(ReplicaStore { log, snapshots, identity: std::sync::Arc::new(std::sync::Mutex::new(identity)), rejoin: Default::default() })
    }

    /// Whose folder this is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        *self.identity.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Adopts a generation.
    ///
    /// # Errors
    /// When it is not blank.
    pub fn set_generation(&self, generation: u32) -> Result<(), StoreError> {
        let mut identity = self.identity.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if generation < identity.generation || !self.log.is_blank() {
            return Err(StoreError::Stopped { reason: "not blank".to_owned() });
        }
        identity.generation = generation;
        Ok(())
    }

    /// The mark.
    #[must_use]
    pub fn rejoin(&self) -> tokio::sync::watch::Receiver<Option<identity::Rejoin>> {
        self.rejoin.subscribe()
    }

    /// Sets the mark.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_rejoin(&self, rejoin: identity::Rejoin) -> Result<(), StoreError> {
        self.rejoin.send_replace(Some(rejoin));
        Ok(())
    }

    /// Removes the mark.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn clear_rejoin(&self) -> Result<(), StoreError> {
        self.rejoin.send_replace(None);
        Ok(())
    }
}
