//! The agent's folder: who holds this node, of which cluster, and one agent at a time.
//!
//! **Invariant:** two holders never share running workers: the holder id lives as long as the boot it
//! was made in and the clock it counts on, and what an earlier holder left behind is set aside before
//! anything starts.

use crate::durable::{DurableError, read_record, write_record};
use crate::limits;
use muster_types::{ClusterId, HolderId};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What is wrong with the state directory.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// It cannot be made or used.
    #[error("use the state directory {path}")]
    Folder {
        /// The path that failed.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another agent runs on it.
    #[error("another agent already runs on {path}")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The kernel does not say which boot this is.
    #[error("read the boot id from {path}")]
    BootId {
        /// Where it was looked for.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A record in it cannot be read or written.
    #[error("keep a record in the state directory")]
    Record(#[source] DurableError),
    /// It belongs to another Muster cluster.
    #[error("this state directory belongs to cluster {ours}, but the endpoint is of cluster {theirs}")]
    OtherCluster {
        /// What is persisted.
        ours: ClusterId,
        /// What the endpoint says.
        theirs: ClusterId,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct HolderRecord {
    holder: HolderId,
    boot_id: String,
}

/// An open, locked state directory.
#[derive(Debug)]
pub struct StateDir {
    root: PathBuf,
    holder: HolderId,
    // Held as long as the agent runs; the kernel releases it however the agent ends.
    _lock: File,
}

impl StateDir {
    /// Locks the directory and settles who holds the node.
    ///
    /// # Errors
    /// When it is in use, or cannot be used.
    pub fn open(root: &Path, boot_id_path: &Path) -> Result<StateDir, StateDirError> {
        StateDir::open_with(root, boot_id_path, settle_holder)
    }

    /// The same for a node that is another machine: what it runs outlives a reboot of this one, and so
    /// does its holder. The lease does not: it was counted on this machine's clock.
    ///
    /// # Errors
    /// When it is in use, or cannot be used.
    pub fn open_for_remote(root: &Path, boot_id_path: &Path) -> Result<StateDir, StateDirError> {
        StateDir::open_with(root, boot_id_path, settle_lasting_holder)
    }

    fn open_with(
        root: &Path,
        boot_id_path: &Path,
        settle: fn(&Path, &Path) -> Result<HolderId, StateDirError>,
    ) -> Result<StateDir, StateDirError> {
        let lock = lock(root)?;
        let fail = |path: &Path| {
            let path = path.to_owned();
            move |source| StateDirError::Folder { path, source }
        };
        let root = root.canonicalize().map_err(fail(root))?;
        let holder = settle(&root, boot_id_path)?;
        for folder in ["tasks", "jobs"] {
            let path = root.join(folder);
            std::fs::create_dir_all(&path).map_err(fail(&path))?;
        }
        Ok(StateDir { root, holder, _lock: lock })
    }

    /// Who holds the node.
    #[must_use]
    pub fn holder(&self) -> HolderId {
        self.holder
    }

    /// The folder of the workers' folders.
    #[must_use]
    pub fn tasks(&self) -> PathBuf {
        self.root.join("tasks")
    }

    /// The folder of what another scheduler was asked for, where one is.
    #[must_use]
    pub fn shares(&self) -> PathBuf {
        self.root.join("shares")
    }

    /// The folder of the fencing tokens.
    #[must_use]
    pub fn jobs(&self) -> PathBuf {
        self.root.join("jobs")
    }

    /// What was begun of repairs.
    #[must_use]
    pub fn repair(&self) -> PathBuf {
        self.root.join("repair")
    }

    /// The file that the shims watch.
    #[must_use]
    pub fn lease(&self) -> PathBuf {
        self.root.join("lease")
    }

    /// Where the agent takes notes of workers.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.root.join("agent.sock")
    }

    /// Binds the directory to the cluster it first registered with.
    ///
    /// # Errors
    /// When it is bound to another one.
    pub fn bind_cluster(&self, theirs: ClusterId) -> Result<(), StateDirError> {
        let path = self.root.join("cluster");
        match read_record::<ClusterId>(&path).map_err(StateDirError::Record)? {
            Some(ours) if ours == theirs => Ok(()),
            Some(ours) => Err(StateDirError::OtherCluster { ours, theirs }),
            None => write_record(&path, &theirs).map_err(StateDirError::Record),
        }
    }
}

/// Makes the directory and locks it, for one agent at a time; until the file is dropped.
///
/// # Errors
/// When it is in use, or cannot be used.
pub fn lock(root: &Path) -> Result<File, StateDirError> {
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |source| StateDirError::Folder { path, source }
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(fail(root))?;
    let path = root.join("lock");
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(fail(&path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(StateDirError::Locked { path }),
        Err(TryLockError::Error(source)) => Err(StateDirError::Folder { path, source }),
    }
}

fn boot_id(path: &Path) -> Result<String, StateDirError> {
    crate::durable::read_bounded(path, 256)
        .map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
        .and_then(|id| if id.is_empty() { Err(io::Error::other("it is empty")) } else { Ok(id) })
        .map_err(|source| StateDirError::BootId { path: path.to_owned(), source })
        // On another clock nothing can be taken over: shims and agent would not mean the same by a deadline.
        .map(|id| crate::clock::foreign_clock().map_or_else(|| id.clone(), |clock| format!("{id} {clock}")))
}

fn holder_before(path: &Path) -> Result<Option<HolderRecord>, StateDirError> {
    match read_record::<HolderRecord>(path) {
        Ok(record) => Ok(record),
        // Whose workers these were cannot be told: as after a reboot, nothing of them is taken over.
        Err(error @ DurableError::Corrupt { .. }) => {
            tracing::error!(%error, "the holder record is damaged; this node gets a new holder id");
            Ok(None)
        }
        Err(error) => Err(StateDirError::Record(error)),
    }
}

fn remove_lease(root: &Path) -> Result<(), StateDirError> {
    let lease = root.join("lease");
    match std::fs::remove_file(&lease) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(StateDirError::Folder { path: lease, source })
        }
        _ => Ok(()),
    }
}

fn settle_lasting_holder(root: &Path, boot_id_path: &Path) -> Result<HolderId, StateDirError> {
    let (boot_id, path) = (boot_id(boot_id_path)?, root.join("holder"));
    let before = holder_before(&path)?;
    if let Some(record) = before.as_ref().filter(|record| record.boot_id == boot_id) {
        return Ok(record.holder);
    }
    remove_lease(root)?;
    let holder = before.map_or_else(|| HolderId(rand::random()), |record| record.holder);
    write_record(&path, &HolderRecord { holder, boot_id }).map_err(StateDirError::Record)?;
    Ok(holder)
}

fn settle_holder(root: &Path, boot_id_path: &Path) -> Result<HolderId, StateDirError> {
    let (boot_id, path) = (boot_id(boot_id_path)?, root.join("holder"));
    let before = holder_before(&path)?;
    if let Some(record) = before.filter(|record| record.boot_id == boot_id) {
        return Ok(record.holder);
    }
    // First set aside, then the new id: a crash between the two does it again, with nothing to move.
    archive_tasks(root)?;
    let record = HolderRecord { holder: HolderId(rand::random()), boot_id };
    write_record(&path, &record).map_err(StateDirError::Record)?;
    tracing::info!(holder = ?record.holder, "new holder id: first start, or first since a reboot");
    Ok(record.holder)
}

/// Moves the task folders of the former holder away and keeps the newest few archives.
fn archive_tasks(root: &Path) -> Result<(), StateDirError> {
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |source| StateDirError::Folder { path, source }
    };
    remove_lease(root)?;
    let tasks = root.join("tasks");
    let empty = match std::fs::read_dir(&tasks) {
        Ok(mut entries) => entries.next().is_none(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => true,
        Err(source) => return Err(StateDirError::Folder { path: tasks, source }),
    };
    if empty {
        return Ok(());
    }
    let archive = root.join("archive");
    std::fs::create_dir_all(&archive).map_err(fail(&archive))?;
    let mut numbers: Vec<u64> = std::fs::read_dir(&archive)
        .map_err(fail(&archive))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let next = numbers.last().map_or(1, |n| n.saturating_add(1));
    let target = archive.join(next.to_string());
    std::fs::rename(&tasks, &target).map_err(fail(&target))?;
    numbers.push(next);
    let surplus = numbers.len().saturating_sub(limits::ARCHIVES_MAX);
    for old in &numbers[..surplus] {
        if let Err(error) = std::fs::remove_dir_all(archive.join(old.to_string())) {
            tracing::warn!(archive = old, %error, "an old archive could not be removed");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(dir: &Path, id: &str) -> PathBuf {
        let path = dir.join("boot_id");
        std::fs::write(&path, id).unwrap();
        path
    }

    #[test]
    fn the_holder_lives_as_long_as_the_boot() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("state");
        let path = boot(dir.path(), "one\n");
        let first = StateDir::open(&root, &path).unwrap().holder();
        assert_eq!(StateDir::open(&root, &path).unwrap().holder(), first);
        for round in 0..4 {
            std::fs::create_dir_all(root.join("tasks/left")).unwrap();
            std::fs::write(root.join("lease"), b"x").unwrap();
            let path = boot(dir.path(), &format!("round {round}"));
            assert_ne!(StateDir::open(&root, &path).unwrap().holder(), first);
            assert!(!root.join("tasks/left").exists() && !root.join("lease").exists());
        }
        assert_eq!(std::fs::read_dir(root.join("archive")).unwrap().count(), limits::ARCHIVES_MAX);
        std::fs::write(root.join("holder"), b"garbage").unwrap();
        assert_ne!(StateDir::open(&root, &path).unwrap().holder(), first);
    }

    #[test]
    fn one_agent_at_a_time_and_one_cluster_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let path = boot(dir.path(), "one");
        let state = StateDir::open(dir.path(), &path).unwrap();
        assert!(matches!(StateDir::open(dir.path(), &path), Err(StateDirError::Locked { .. })));
        state.bind_cluster(ClusterId(1)).unwrap();
        state.bind_cluster(ClusterId(1)).unwrap();
        assert!(matches!(state.bind_cluster(ClusterId(2)), Err(StateDirError::OtherCluster { .. })));
    }
}
