//! The directories of ended workers, which stay for their output within limits.
//!
//! All of them are counted and removed on the [disposal](crate::disk::disposal) thread. What was counted is on record in the
//! directory, so that no later agent counts it again.
//!
//! Temporary files go at once, wherever they are. Beyond the number of directories, the oldest goes first. Beyond the bytes,
//! the largest working directory goes first, and output only after all of them, the oldest first. So one worker's files cost no
//! other worker's output.

use crate::disk::disposal;
use crate::disk::durable::{read_record, write_record_of_boot};
use crate::disk::tree;
use crate::limits;
use crate::process::task::TaskDir;
use crate::rules::WorkerKey;
use crate::settings::LogLimits;
use crate::temporary;
use muster_types::HolderId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// What the directory of an ended worker takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counted {
    /// Its output, and the agent's own files.
    own_bytes: u64,
    /// What it left in the directory that it started in.
    work_bytes: u64,
}

impl Counted {
    fn bytes(self) -> u64 {
        self.own_bytes.saturating_add(self.work_bytes)
    }
}

/// Keeps the directories of one agent's acknowledged workers within limits.
#[derive(Clone, Debug)]
pub(crate) struct EndedWorkers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    tasks: PathBuf,
    logs: LogLimits,
    /// Only locked on the disposal thread, so nothing waits for it.
    directories: Mutex<Directories>,
}

impl EndedWorkers {
    /// For the workers with directories below `tasks`.
    pub(crate) fn new(tasks: PathBuf, logs: LogLimits) -> EndedWorkers {
        EndedWorkers { shared: Arc::new(Shared { tasks, logs, directories: Mutex::default() }) }
    }

    /// Has all of them looked through, and kept within the limits.
    pub(crate) fn look(&self) {
        self.update(|directories, tasks| directories.look(tasks));
    }

    /// Has the directory of one more acknowledged worker kept.
    pub(crate) fn keep(&self, task: &TaskDir) {
        let task = task.path().to_owned();
        self.update(|directories, _| {
            directories.add(task);
            Ok(())
        });
    }

    fn update(&self, change: impl FnOnce(&mut Directories, &Path) -> io::Result<()> + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        disposal::run(move || {
            // A panic while holding it leaves whole values.
            let mut directories = shared.directories.lock();
            change(&mut directories, &shared.tasks)?;
            directories.prune(&shared.tasks, &shared.logs)
        });
    }
}

/// The directories of one agent's acknowledged workers, oldest first.
#[derive(Debug, Default)]
struct Directories {
    all: VecDeque<(PathBuf, Counted)>,
    bytes: u64,
}

impl Directories {
    fn add(&mut self, directory: PathBuf) {
        remove_temporary(&TaskDir::at(directory.clone()));
        let counted = count(&directory);
        self.bytes = self.bytes.saturating_add(counted.bytes());
        self.all.push_back((directory, counted));
    }

    /// Finds those that an earlier agent has left, and removes what it was removing.
    fn look(&mut self, tasks: &Path) -> io::Result<()> {
        let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
        let mut first_error = None;
        for entry in std::fs::read_dir(tasks)?.take(limits::TASK_DIRECTORIES_MAX) {
            let entry = entry?;
            let path = entry.path();
            if disposal::is_set_aside(&entry.file_name()) {
                first_error = first_error.or(tree::remove(&path).err());
            } else if let Ok(acked) = std::fs::symlink_metadata(path.join("acked")) {
                found.push((acked.modified()?, path));
            }
        }
        found.sort_unstable();
        *self = Directories::default();
        for (_, directory) in found {
            self.add(directory);
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Removes until the limits are kept.
    fn prune(&mut self, tasks: &Path, logs: &LogLimits) -> io::Result<()> {
        while self.all.len() > logs.ended_workers_max {
            self.remove_oldest(tasks)?;
        }
        while self.bytes > logs.ended_bytes_max && !self.all.is_empty() {
            let largest = self.all.iter_mut().max_by_key(|(_, counted)| counted.work_bytes);
            match largest.filter(|(_, counted)| counted.work_bytes > 0) {
                Some((directory, counted)) => {
                    let bytes = std::mem::take(&mut counted.work_bytes);
                    let (task, counted) = (TaskDir::at(directory.clone()), *counted);
                    self.bytes =
                        self.all.iter().map(|(_, counted)| counted.bytes()).fold(0, u64::saturating_add);
                    tracing::info!(directory = %task.path().display(), bytes, "files of an ended worker are removed");
                    disposal::remove_now(tasks, &task.work())?;
                    record(task.path(), counted);
                }
                None => self.remove_oldest(tasks)?,
            }
        }
        Ok(())
    }

    fn remove_oldest(&mut self, tasks: &Path) -> io::Result<()> {
        let Some((directory, _)) = self.all.pop_front() else { return Ok(()) };
        self.bytes = self.all.iter().map(|(_, counted)| counted.bytes()).fold(0, u64::saturating_add);
        disposal::remove_now(tasks, &directory)
    }
}

/// Removes the temporary files of an ended worker: nobody can use them any more.
fn remove_temporary(task: &TaskDir) {
    let named = task.spec().ok().flatten().and_then(|spec| spec.temporary);
    for directory in task.own_tmp().into_iter().chain(named) {
        remove_if_there(&directory);
    }
}

/// Has the same done for workers that ended with the last boot of this host, whose directories are below `tasks` now. A disk
/// for scratch keeps what it has over a boot, unlike most places of temporary files.
pub(crate) fn remove_temporary_below(tasks: PathBuf) {
    disposal::run(move || remove_named_below(&tasks));
}

fn remove_named_below(tasks: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(tasks)?.flatten() {
        let spec = TaskDir::at(entry.path()).spec().ok().flatten();
        if let Some(directory) = spec.and_then(|spec| spec.temporary) {
            remove_if_there(&directory);
        }
    }
    Ok(())
}

/// Has the same done for a worker that has no directory any more.
pub(crate) fn remove_temporary_of(key: WorkerKey, holder: HolderId, scratch_dir: Option<PathBuf>) {
    disposal::run(move || {
        remove_if_there(&temporary::of(key, holder));
        if let Some(base) = &scratch_dir {
            remove_if_there(&temporary::below(base, key, holder));
        }
        Ok(())
    });
}

fn remove_if_there(directory: &Path) {
    match tree::remove(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(directory = %directory.display(), %error, "temporary files of an ended worker stay");
        }
        _ => {}
    }
}

/// As it is on record, or as it is.
fn count(directory: &Path) -> Counted {
    if let Ok(Some(counted)) = read_record(&directory.join("kept")) {
        return counted;
    }
    let work = tree::size(&TaskDir::at(directory.to_owned()).work());
    let mut own_bytes = 0u64;
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        use std::os::unix::fs::MetadataExt;
        if let Ok(metadata) = entry.metadata().map(|metadata| metadata.blocks().saturating_mul(512)) {
            own_bytes = own_bytes.saturating_add(metadata);
        }
    }
    // A tree that is too large to count is larger than any disk can hold.
    let work_bytes = if work.is_partial { u64::MAX / 2 } else { work.bytes };
    let counted = Counted { own_bytes, work_bytes };
    record(directory, counted);
    counted
}

fn record(directory: &Path, counted: Counted) {
    if let Err(error) = write_record_of_boot(&directory.join("kept"), &counted) {
        tracing::debug!(%error, "what an ended worker's directory takes is counted again later");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::disk_io::GroupIo;
    use crate::process::isolation::Isolation;
    use crate::process::task::{GangFiles, TaskSpec};
    use crate::rules::DEVICE_MILLI;
    use muster_types::{DeviceSet, FencingToken, JobId, LogIndex};
    use std::collections::BTreeMap;

    fn directory(tasks: &Path, name: &str, output: usize, work: usize) -> PathBuf {
        let directory = tasks.join(name);
        std::fs::create_dir_all(directory.join("work/deep")).unwrap();
        std::fs::write(directory.join("output"), vec![1u8; output]).unwrap();
        std::fs::write(directory.join("work/deep/file"), vec![1u8; work]).unwrap();
        std::fs::write(directory.join("acked"), "").unwrap();
        directory
    }

    fn limits(workers: usize, bytes: u64) -> LogLimits {
        LogLimits { ended_workers_max: workers, ended_bytes_max: bytes, ..LogLimits::usual() }
    }

    #[test]
    fn the_largest_work_goes_before_anybodys_output() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = dir.path();
        let first = directory(tasks, "first", 1 << 16, 1 << 16);
        let greedy = directory(tasks, "greedy", 1 << 16, 8 << 20);
        let last = directory(tasks, "last", 1 << 16, 1 << 16);
        let mut kept = Directories::default();
        for directory in [&first, &greedy, &last] {
            kept.add(directory.clone());
        }
        kept.prune(tasks, &limits(10, 1 << 20)).unwrap();
        for directory in [&first, &greedy, &last] {
            assert!(directory.join("output").exists(), "{}", directory.display());
        }
        assert!(first.join("work").exists() && last.join("work").exists() && !greedy.join("work").exists());
        // The next agent knows it without counting.
        let mut next = Directories::default();
        next.look(tasks).unwrap();
        assert_eq!((next.all.len(), next.bytes), (3, kept.bytes));
        // Then the oldest output, and the number of directories.
        kept.prune(tasks, &limits(10, 100 << 10)).unwrap();
        assert!(!first.exists() && last.exists());
        kept.prune(tasks, &limits(0, u64::MAX)).unwrap();
        assert_eq!(std::fs::read_dir(tasks).unwrap().count(), 0);
        assert_eq!(kept.bytes, 0);
    }

    #[test]
    fn what_an_agent_was_removing_is_removed_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join(".old_1_2_3");
        std::fs::create_dir_all(old.join("a/b")).unwrap();
        Directories::default().look(dir.path()).unwrap();
        assert!(!old.exists());
    }

    /// What the launch of a worker says that has a directory for temporary files.
    fn launch(tasks: &Path, temporary: PathBuf) -> TaskSpec {
        let token = FencingToken { generation: 1, log_index: LogIndex(9) };
        let key = WorkerKey { job: JobId(1), token, rank: 0 };
        TaskSpec {
            key,
            tenant: "research".to_owned(),
            is_in_job: false,
            command: vec!["true".to_owned()],
            environment: BTreeMap::new(),
            working_directory: TaskDir::of(tasks, key).work(),
            devices: DeviceSet::EMPTY,
            device_milli: DEVICE_MILLI,
            lease_path: tasks.join("lease"),
            holder: HolderId(7),
            epoch: 1,
            stop_grace_ms: 0,
            shim_arguments: Vec::new(),
            log_bytes_max: 0,
            log_free_min: 0,
            cgroup_parent: None,
            memory_bytes: 0,
            memory_watched: false,
            cpu_milli: 0,
            cpu_max_milli: 0,
            io: GroupIo::default(),
            temporary: Some(temporary),
            disk_bytes_max: 0,
            scratch_bytes: 1 << 20,
            isolation: Isolation::default(),
            notice: None,
            image: None,
            artifacts: None,
            artifacts_bytes_max: None,
            terminal: false,
        }
    }

    #[test]
    fn scratch_of_workers_that_a_boot_has_ended_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let [tasks, own, other] = ["tasks", "muster-own", "muster-other"].map(|name| dir.path().join(name));
        for directory in [&tasks, &own, &other] {
            std::fs::create_dir(directory).unwrap();
        }
        std::fs::write(own.join("file"), "left").unwrap();
        TaskDir::create(&tasks, &launch(&tasks, own.clone()), &GangFiles::default()).unwrap();
        let archive = dir.path().join("archive");
        std::fs::rename(&tasks, &archive).unwrap();
        std::fs::create_dir(archive.join("damaged")).unwrap();
        remove_named_below(&archive).unwrap();
        assert!(!own.exists() && other.exists());
    }
}
