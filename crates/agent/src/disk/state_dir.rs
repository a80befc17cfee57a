//! The agent's directory: who holds this node, of which cluster, and one agent at a time.
//!
//! **Invariant:** two holders never share running workers: the holder id lasts as long as the boot it
//! was made in, the clock it counts on and the directory that it was made in, and what an earlier holder left behind is set
//! aside before anything starts. A directory that was copied, or put back from a copy, knows less than was started from
//! the other one: its agent is another holder, which waits until the lease of the first is over. Where a holder outlives boots
//! and machines the leader tells copies apart: each start has a number, which comes behind that of the one registered before.

use crate::disk::durable::{DurableError, read_record, write_record, write_record_of_boot};
use crate::limits;
use muster_types::{AgentStart, ClusterId, HolderId, StartId};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// What is wrong with the state directory.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// It cannot be made or used.
    #[error("use the state directory {path}")]
    Directory {
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
    /// Which directory it was made in; none in what an agent of an earlier release wrote.
    #[serde(default, rename = "folder")]
    directory: Option<DirectoryId>,
}

/// What tells a directory from a copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DirectoryId {
    inode: u64,
    /// When it was made, in nanoseconds, for numbers of inodes are used again; none where the file system does not say.
    made_ns: Option<u64>,
}

impl DirectoryId {
    fn of(root: &Path) -> Result<DirectoryId, StateDirError> {
        let failed = |source| StateDirError::Directory { path: root.to_owned(), source };
        let metadata = std::fs::metadata(root).map_err(failed)?;
        let made = metadata.created().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        let made_ns = made.and_then(|made| u64::try_from(made.as_nanos()).ok());
        Ok(DirectoryId { inode: metadata.ino(), made_ns })
    }
}

/// The newest start of the agents of a holder on this directory.
#[derive(Debug, Serialize, Deserialize)]
struct StartRecord {
    holder: HolderId,
    id: StartId,
    /// The last one that a leader is known to have registered; this one, once it is.
    registered: Option<StartId>,
}

/// Who holds the node from now on.
struct SettledHolder {
    holder: HolderId,
    ended_by_boot: Option<PathBuf>,
}

/// An open, locked state directory.
#[derive(Debug)]
pub struct StateDir {
    root: PathBuf,
    holder: HolderId,
    start: AgentStart,
    /// Whether it is written down that the start is registered.
    is_noted: AtomicBool,
    ended_by_boot: Option<PathBuf>,
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
        settle: fn(&Path, &Path) -> Result<SettledHolder, StateDirError>,
    ) -> Result<StateDir, StateDirError> {
        let lock = lock(root)?;
        let fail = |path: &Path| {
            let path = path.to_owned();
            move |source| StateDirError::Directory { path, source }
        };
        let root = root.canonicalize().map_err(fail(root))?;
        let SettledHolder { holder, ended_by_boot } = settle(&root, boot_id_path)?;
        // Nobody else writes here while the lock is held.
        muster_files::remove_waiting(&root).map_err(fail(&root))?;
        for directory in ["tasks", "jobs"] {
            let path = root.join(directory);
            std::fs::create_dir_all(&path).map_err(fail(&path))?;
        }
        let start = settle_start(&root, holder)?;
        let is_noted = AtomicBool::new(false);
        Ok(StateDir { root, holder, start, is_noted, ended_by_boot, _lock: lock })
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Lets users of workers pass through to their own directories, or nobody. Nobody else may list what is in it, or read
    /// any of the agent's files.
    ///
    /// # Errors
    /// When that cannot be set.
    pub fn open_to_workers(&self, has_users: bool) -> Result<(), StateDirError> {
        let mode = |path: PathBuf, mode| {
            let set = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
            set.map_err(|source| StateDirError::Directory { path, source })
        };
        mode(self.jobs(), 0o700)?;
        let passable = if has_users { 0o711 } else { 0o700 };
        mode(self.tasks(), passable)?;
        mode(self.root.clone(), passable)?;
        if has_users && self.socket().exists() {
            // Who speaks there is asked of the kernel.
            mode(self.socket(), 0o666)?;
        }
        Ok(())
    }

    /// Who holds the node.
    #[must_use]
    pub fn holder(&self) -> HolderId {
        self.holder
    }

    /// Where the directories of the workers are now that ran here before this boot and ended with the last one, where this
    /// opening has set them aside.
    #[must_use]
    pub fn ended_by_boot(&self) -> Option<&Path> {
        self.ended_by_boot.as_deref()
    }

    /// Which start of the holder's agents this is.
    #[must_use]
    pub fn start(&self) -> AgentStart {
        self.start
    }

    /// Writes down that a leader has registered this start, so that the next one comes behind it. A copy that was made before
    /// has an older one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn note_registered(&self) -> Result<(), StateDirError> {
        if self.is_noted.load(Ordering::Acquire) {
            return Ok(());
        }
        let (holder, id) = (self.holder, self.start.id);
        let record = StartRecord { holder, id, registered: Some(id) };
        write_record_of_boot(&self.root.join("start"), &record).map_err(StateDirError::Record)?;
        self.is_noted.store(true, Ordering::Release);
        Ok(())
    }

    /// The directory of the workers' directories.
    #[must_use]
    pub fn tasks(&self) -> PathBuf {
        self.root.join("tasks")
    }

    /// The directory of the epilogs that are owed, where there are any.
    #[must_use]
    pub fn epilogs(&self) -> PathBuf {
        self.root.join("epilogs")
    }

    /// The directory of what another scheduler was asked for, where one is.
    #[must_use]
    pub fn shares(&self) -> PathBuf {
        self.root.join("shares")
    }

    /// The directory of the fencing tokens.
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

    /// The lease file in a directory on memory, where no disk that a worker keeps busy can hold up a renewal; `lease` below
    /// the state directory is a link to it. A file that is there stays where it is: shims that run watch it.
    #[must_use]
    pub fn lease_on_memory(&self, runtime: Option<&Path>) -> PathBuf {
        let usual = self.lease();
        let is_file = std::fs::symlink_metadata(&usual).is_ok_and(|found| found.is_file());
        let Some(runtime) = runtime.filter(|_| !is_file) else { return usual };
        let name = format!("{:08x}", crc32fast::hash(self.root.as_os_str().as_encoded_bytes()));
        let directory = runtime.join(name);
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).and_then(|()| {
            std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700))?;
            let lease = directory.join("lease");
            if std::fs::read_link(&usual).is_ok_and(|at| at == lease) {
                return Ok(lease);
            }
            match std::fs::remove_file(&usual) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            std::os::unix::fs::symlink(&lease, &usual).map(|()| lease)
        });
        made.unwrap_or_else(|error| {
            tracing::warn!(directory = %directory.display(), %error, "the lease is kept in the state directory");
            usual
        })
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
        move |source| StateDirError::Directory { path, source }
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
        Err(TryLockError::Error(source)) => Err(StateDirError::Directory { path, source }),
    }
}

/// The directory of the system for files that last until the next boot, where it is on memory and this user may write there.
#[must_use]
pub fn usual_runtime() -> Option<PathBuf> {
    let run = Path::new("/run");
    let is_memory = nix::sys::statfs::statfs(run)
        .is_ok_and(|found| found.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC);
    (is_memory && nix::unistd::geteuid().is_root()).then(|| run.join("muster-agent"))
}

fn boot_id(path: &Path) -> Result<String, StateDirError> {
    crate::disk::durable::read_bounded(path, 256)
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
            Err(StateDirError::Directory { path: lease, source })
        }
        _ => Ok(()),
    }
}

fn settle_lasting_holder(root: &Path, boot_id_path: &Path) -> Result<SettledHolder, StateDirError> {
    let settled = |holder| SettledHolder { holder, ended_by_boot: None };
    let (boot_id, path) = (boot_id(boot_id_path)?, root.join("holder"));
    let before = holder_before(&path)?;
    if let Some(record) = before.as_ref().filter(|record| record.boot_id == boot_id) {
        return Ok(settled(record.holder));
    }
    remove_lease(root)?;
    let holder = before.map_or_else(|| HolderId(rand::random()), |record| record.holder);
    write_record(&path, &HolderRecord { holder, boot_id, directory: None }).map_err(StateDirError::Record)?;
    Ok(settled(holder))
}

/// The boot in what [`boot_id`] says, whatever the clock is.
fn boot_of(id: &str) -> &str {
    id.split_once(' ').map_or(id, |(boot, _)| boot)
}

fn settle_holder(root: &Path, boot_id_path: &Path) -> Result<SettledHolder, StateDirError> {
    let settled = |holder| SettledHolder { holder, ended_by_boot: None };
    let (boot_id, path) = (boot_id(boot_id_path)?, root.join("holder"));
    let before = holder_before(&path)?;
    let directory = DirectoryId::of(root)?;
    // What a copy names may be another agent's, and on another clock of this boot workers may still run.
    let is_after_boot = before.as_ref().is_some_and(|record| {
        record.directory == Some(directory) && boot_of(&record.boot_id) != boot_of(&boot_id)
    });
    if let Some(record) = before.filter(|record| record.boot_id == boot_id) {
        match record.directory {
            Some(known) if known == directory => return Ok(settled(record.holder)),
            None => {
                let record = HolderRecord { directory: Some(directory), ..record };
                write_record(&path, &record).map_err(StateDirError::Record)?;
                return Ok(settled(record.holder));
            }
            Some(_) => tracing::warn!(
                directory = %root.display(),
                "this state directory is a copy of another one: this node gets a new holder id"
            ),
        }
    }
    // First set aside, then the new id: a crash between the two does it again, with nothing to move.
    let archive = archive_tasks(root)?;
    let record = HolderRecord { holder: HolderId(rand::random()), boot_id, directory: Some(directory) };
    write_record(&path, &record).map_err(StateDirError::Record)?;
    tracing::info!(holder = ?record.holder, "new holder id: first start, first since a reboot, or a copied state directory");
    Ok(SettledHolder { holder: record.holder, ended_by_boot: archive.filter(|_| is_after_boot) })
}

/// The start of this agent: behind the last one of its holder that was registered. One that is not known to be registered goes
/// on, for the leader's answer may have been lost. The record is not synced: without it, or with an earlier one, the agent is
/// taken for that of a copy, and waits until the lease is over, as it would after a power cut in any case.
fn settle_start(root: &Path, holder: HolderId) -> Result<AgentStart, StateDirError> {
    let path = root.join("start");
    let known = match read_record::<StartRecord>(&path) {
        Ok(record) => record.filter(|record| record.holder == holder),
        // Then it comes behind none, and is taken for that of a copy: it waits until the lease is over.
        Err(error @ DurableError::Corrupt { .. }) => {
            tracing::error!(%error, "the record of starts is damaged");
            None
        }
        Err(error) => return Err(StateDirError::Record(error)),
    };
    let before = known.as_ref().and_then(|record| record.registered);
    let last = known.map(|record| AgentStart { id: record.id, before });
    if let Some(unsure) = last.filter(|last| before != Some(last.id)) {
        return Ok(unsure);
    }
    let id = StartId(rand::random_range(1..=u64::MAX));
    match (write_record_of_boot(&path, &StartRecord { holder, id, registered: before }), last) {
        (Ok(()), _) => Ok(AgentStart { id, before }),
        // A full disk is no reason to let the workers' lease run out.
        (Err(error), Some(last)) => {
            tracing::warn!(%error, "this start goes on under the number of the last one");
            Ok(last)
        }
        (Err(error), None) => Err(StateDirError::Record(error)),
    }
}

/// Moves the task directories of the former holder away and keeps the newest few archives. Where they are then, if there were any.
fn archive_tasks(root: &Path) -> Result<Option<PathBuf>, StateDirError> {
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |source| StateDirError::Directory { path, source }
    };
    remove_lease(root)?;
    let tasks = root.join("tasks");
    let empty = match std::fs::read_dir(&tasks) {
        Ok(mut entries) => entries.next().is_none(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => true,
        Err(source) => return Err(StateDirError::Directory { path: tasks, source }),
    };
    if empty {
        return Ok(None);
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
        crate::disk::disposal::remove(archive.join(old.to_string()));
    }
    Ok(Some(target))
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
        // Those beyond are removed while everything else goes on.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let count = || std::fs::read_dir(root.join("archive")).unwrap().count();
        while count() > limits::ARCHIVES_MAX && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        assert_eq!(count(), limits::ARCHIVES_MAX);
        std::fs::write(root.join("holder"), b"garbage").unwrap();
        assert_ne!(StateDir::open(&root, &path).unwrap().holder(), first);
    }

    #[test]
    fn a_boot_ends_the_workers_of_this_directory_and_of_no_copy() {
        let dir = tempfile::tempdir().unwrap();
        let path = boot(dir.path(), "one");
        let [root, away] = ["state", "away"].map(|name| dir.path().join(name));
        assert_eq!(StateDir::open(&root, &path).unwrap().ended_by_boot(), None);
        std::fs::create_dir_all(root.join("tasks/left")).unwrap();
        assert_eq!(StateDir::open(&root, &path).unwrap().ended_by_boot(), None, "they run");
        let path = boot(dir.path(), "one other-clock");
        assert_eq!(StateDir::open(&root, &path).unwrap().ended_by_boot(), None, "they may run");
        std::fs::create_dir_all(root.join("tasks/left")).unwrap();
        let path = boot(dir.path(), "two");
        let state = StateDir::open(&root, &path).unwrap();
        assert!(state.ended_by_boot().unwrap().join("left").is_dir());
        drop(state);
        assert_eq!(StateDir::open(&root, &path).unwrap().ended_by_boot(), None, "once is enough");
        std::fs::create_dir_all(root.join("tasks/left")).unwrap();
        let done = std::process::Command::new("cp").arg("-a").args([&root, &away]).status();
        assert!(done.unwrap().success());
        let path = boot(dir.path(), "three");
        assert_eq!(StateDir::open(&away, &path).unwrap().ended_by_boot(), None, "it is a copy");
    }

    /// This directory does not tell what an earlier agent started from the other one.
    #[test]
    fn a_copy_of_a_folder_is_another_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = boot(dir.path(), "one");
        let [root, copy, away] = ["state", "copy", "away"].map(|name| dir.path().join(name));
        let first = StateDir::open(&root, &path).unwrap().holder();
        let copied = |from: &Path, to: &Path| {
            let done = std::process::Command::new("cp").arg("-a").args([from, to]).status();
            assert!(done.unwrap().success());
        };
        copied(&root, &copy);
        std::fs::create_dir_all(copy.join("tasks/left")).unwrap();
        let twin = StateDir::open(&copy, &path).unwrap().holder();
        assert_ne!(twin, first);
        assert!(!copy.join("tasks/left").exists());
        assert_eq!(StateDir::open(&root, &path).unwrap().holder(), first, "the first one stays what it was");
        // Put back from a copy: what was started since is not known.
        copied(&root, &away);
        std::fs::remove_dir_all(&root).unwrap();
        copied(&away, &root);
        let rolled_back = StateDir::open(&root, &path).unwrap().holder();
        assert!(rolled_back != first && rolled_back != twin);
        assert_eq!(StateDir::open(&root, &path).unwrap().holder(), rolled_back);
        // Moved it is the same directory.
        let moved = dir.path().join("moved");
        std::fs::rename(&root, &moved).unwrap();
        assert_eq!(StateDir::open(&moved, &path).unwrap().holder(), rolled_back);
    }

    /// The leader refuses who comes from an older start than it knows.
    #[test]
    fn of_two_copies_one_alone_comes_behind_the_registered_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = boot(dir.path(), "one");
        let [root, copy] = ["state", "copy"].map(|name| dir.path().join(name));
        let first = {
            let state = StateDir::open_for_remote(&root, &path).unwrap();
            assert_eq!(state.start().before, None);
            state.start()
        };
        // Nobody knows whether it was registered.
        let state = StateDir::open_for_remote(&root, &path).unwrap();
        assert_eq!(state.start(), first);
        state.note_registered().unwrap();
        state.note_registered().unwrap();
        let holder = state.holder();
        drop(state);
        let done = std::process::Command::new("cp").arg("-a").args([&root, &copy]).status();
        assert!(done.unwrap().success());
        let [ours, twin] = [&root, &copy].map(|root| StateDir::open_for_remote(root, &path).unwrap());
        assert_eq!((ours.holder(), twin.holder()), (holder, holder));
        assert!(ours.start().continues(first.id, None) && twin.start().continues(first.id, None));
        // Whichever of them is registered, the other one does not continue it.
        assert!(
            !twin.start().continues(ours.start().id, None) && !ours.start().continues(twin.start().id, None)
        );
        ours.note_registered().unwrap();
        drop(ours);
        let next = StateDir::open_for_remote(&root, &path).unwrap().start();
        assert!(!next.continues(first.id, None) && !next.continues(twin.start().id, None));
        std::fs::write(root.join("start"), b"garbage").unwrap();
        assert_eq!(StateDir::open_for_remote(&root, &path).unwrap().start().before, None);
    }

    #[test]
    fn an_earlier_release_knew_no_folder() {
        #[derive(Serialize)]
        struct Earlier {
            holder: HolderId,
            boot_id: String,
        }
        let dir = tempfile::tempdir().unwrap();
        let path = boot(dir.path(), "one");
        let root = dir.path().join("state");
        let boot_id = boot_id(&path).unwrap();
        std::fs::create_dir(&root).unwrap();
        write_record(&root.join("holder"), &Earlier { holder: HolderId(7), boot_id }).unwrap();
        assert_eq!(StateDir::open(&root, &path).unwrap().holder(), HolderId(7));
        let copy = dir.path().join("copy");
        std::process::Command::new("cp").arg("-a").args([&root, &copy]).status().unwrap();
        assert_ne!(StateDir::open(&copy, &path).unwrap().holder(), HolderId(7));
    }

    #[test]
    fn the_lease_is_on_memory_unless_shims_watch_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = boot(dir.path(), "one");
        let (root, runtime) = (dir.path().join("state"), dir.path().join("run"));
        let state = StateDir::open(&root, &path).unwrap();
        assert_eq!(state.lease_on_memory(None), state.lease());
        let lease = state.lease_on_memory(Some(&runtime));
        assert!(lease.starts_with(&runtime) && lease != state.lease());
        std::fs::write(&lease, "x").unwrap();
        assert_eq!(std::fs::read(state.lease()).unwrap(), b"x");
        assert_eq!(state.lease_on_memory(Some(&runtime)), lease);
        std::fs::remove_file(state.lease()).unwrap();
        std::fs::write(state.lease(), "of an agent before").unwrap();
        assert_eq!(state.lease_on_memory(Some(&runtime)), state.lease());
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
