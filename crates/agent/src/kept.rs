//! Folders of ended workers, kept for their output within limits.
//!
//! A worker may leave millions of files, or more bytes than anybody has room for. All of that is counted and removed on
//! one thread of its own, so that nothing waits for it: neither an agent that starts, whose first heartbeat keeps the
//! host's gangs alive, nor a session, nor the start or stop of another worker. What was counted is on record in the
//! folder, so that no later agent counts it again.
//!
//! Who goes first: beyond the number of folders, the oldest; beyond the bytes, what a worker left in its own folder, the
//! largest first, and only then anybody's output, the oldest first. So one worker's files cost no other one's output.
//!
//! **Invariant:** what is to be removed has its name no more: a worker's folder is there whole or not at all.

use crate::config::LogLimits;
use crate::durable::{read_record, write_record_of_boot};
use crate::limits;
use crate::task::TaskDir;
use crate::tree;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::SystemTime;

/// What stands before the name of a folder that is being removed.
const OLD: &str = ".old_";

/// What the folder of an ended worker takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counted {
    /// Its output, and the agent's own files.
    own_bytes: u64,
    /// What it left in the folder that it started in.
    work_bytes: u64,
}

impl Counted {
    fn bytes(self) -> u64 {
        self.own_bytes.saturating_add(self.work_bytes)
    }
}

#[derive(Debug)]
enum Word {
    /// Look through all folders of workers here, and keep them within these limits.
    Look { tasks: PathBuf, logs: LogLimits },
    /// One more worker has ended, and its end is known.
    Keep { tasks: PathBuf, task: PathBuf, logs: LogLimits },
    /// A folder that nobody looks at any more.
    Remove(PathBuf),
}

/// Has the folders of acknowledged workers below `tasks` looked through and kept within the limits.
pub(crate) fn look(tasks: &Path, logs: &LogLimits) {
    say(Word::Look { tasks: tasks.to_owned(), logs: logs.clone() });
}

/// Has the folder of one more acknowledged worker kept.
pub(crate) fn keep(tasks: &Path, task: &TaskDir, logs: &LogLimits) {
    let (tasks, task) = (tasks.to_owned(), task.path().to_owned());
    say(Word::Keep { tasks, task, logs: logs.clone() });
}

/// Has a folder removed that no name of a worker stands for.
pub(crate) fn remove(folder: PathBuf) {
    say(Word::Remove(folder));
}

/// Takes a folder's name away, in the folder of workers' folders, and has it removed.
///
/// # Errors
/// When it cannot be renamed.
pub(crate) fn discard(tasks: &Path, folder: &Path) -> io::Result<()> {
    match rename_away(tasks, folder) {
        Ok(old) => {
            remove(old);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn rename_away(tasks: &Path, folder: &Path) -> io::Result<PathBuf> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let (number, now) = (NUMBER.fetch_add(1, Ordering::Relaxed), crate::clock::BootTime::now().0);
    let old = tasks.join(format!("{OLD}{}_{now}_{number}", std::process::id()));
    std::fs::rename(folder, &old).map(|()| old)
}

fn say(word: Word) {
    static THREAD: OnceLock<Option<Sender<Word>>> = OnceLock::new();
    let sender = THREAD.get_or_init(|| {
        let (sender, words) = channel();
        let thread = std::thread::Builder::new().name("kept-folders".to_owned()).spawn(move || turn(&words));
        // Without it folders stay: the next agent has them removed.
        thread
            .inspect_err(|error| tracing::error!(%error, "no folder of an ended worker is removed"))
            .ok()
            .map(|_| sender)
    });
    if let Some(sender) = sender {
        // The thread ends with the process alone.
        let _ = sender.send(word);
    }
}

fn turn(words: &Receiver<Word>) {
    let mut all: BTreeMap<PathBuf, Kept> = BTreeMap::new();
    for word in words {
        let outcome = match word {
            Word::Look { tasks, logs } => {
                let kept = all.entry(tasks.clone()).or_default();
                kept.look(&tasks).and_then(|()| kept.prune(&tasks, &logs))
            }
            Word::Keep { tasks, task, logs } => {
                let kept = all.entry(tasks.clone()).or_default();
                kept.add(task);
                kept.prune(&tasks, &logs)
            }
            Word::Remove(folder) => tree::remove(&folder),
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "old workers' folders could not be removed");
        }
    }
}

/// The folders of one agent's acknowledged workers, oldest first.
#[derive(Debug, Default)]
struct Kept {
    folders: VecDeque<(PathBuf, Counted)>,
    bytes: u64,
}

impl Kept {
    fn add(&mut self, folder: PathBuf) {
        let counted = count(&folder);
        self.bytes = self.bytes.saturating_add(counted.bytes());
        self.folders.push_back((folder, counted));
    }

    /// Finds those that an earlier agent has left, and removes what it was removing.
    fn look(&mut self, tasks: &Path) -> io::Result<()> {
        let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
        let mut first_error = None;
        for entry in std::fs::read_dir(tasks)?.take(limits::TASK_FOLDERS_MAX) {
            let entry = entry?;
            let path = entry.path();
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(OLD)) {
                first_error = first_error.or(tree::remove(&path).err());
            } else if let Ok(acked) = std::fs::symlink_metadata(path.join("acked")) {
                found.push((acked.modified()?, path));
            }
        }
        found.sort_unstable();
        *self = Kept::default();
        for (_, folder) in found {
            self.add(folder);
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Removes until the limits are kept.
    fn prune(&mut self, tasks: &Path, logs: &LogLimits) -> io::Result<()> {
        while self.folders.len() > logs.ended_workers_max {
            self.remove_oldest(tasks)?;
        }
        while self.bytes > logs.ended_bytes_max && !self.folders.is_empty() {
            let largest = self.folders.iter_mut().max_by_key(|(_, counted)| counted.work_bytes);
            match largest.filter(|(_, counted)| counted.work_bytes > 0) {
                Some((folder, counted)) => {
                    let bytes = std::mem::take(&mut counted.work_bytes);
                    let (task, counted) = (TaskDir::at(folder.clone()), *counted);
                    self.bytes =
                        self.folders.iter().map(|(_, counted)| counted.bytes()).fold(0, u64::saturating_add);
                    tracing::info!(folder = %task.path().display(), bytes, "files of an ended worker are removed");
                    remove_now(tasks, &task.work())?;
                    record(task.path(), counted);
                }
                None => self.remove_oldest(tasks)?,
            }
        }
        Ok(())
    }

    fn remove_oldest(&mut self, tasks: &Path) -> io::Result<()> {
        let Some((folder, _)) = self.folders.pop_front() else { return Ok(()) };
        self.bytes = self.folders.iter().map(|(_, counted)| counted.bytes()).fold(0, u64::saturating_add);
        remove_now(tasks, &folder)
    }
}

fn remove_now(tasks: &Path, folder: &Path) -> io::Result<()> {
    match rename_away(tasks, folder) {
        Ok(old) => tree::remove(&old),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// As it is on record, or as it is.
fn count(folder: &Path) -> Counted {
    if let Ok(Some(counted)) = read_record(&folder.join("kept")) {
        return counted;
    }
    let work = tree::size(&TaskDir::at(folder.to_owned()).work());
    let mut own_bytes = 0u64;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        use std::os::unix::fs::MetadataExt;
        if let Ok(metadata) = entry.metadata().map(|metadata| metadata.blocks().saturating_mul(512)) {
            own_bytes = own_bytes.saturating_add(metadata);
        }
    }
    // What is more than is counted is more than anybody has room for.
    let work_bytes = if work.is_partial { u64::MAX / 2 } else { work.bytes };
    let counted = Counted { own_bytes, work_bytes };
    record(folder, counted);
    counted
}

fn record(folder: &Path, counted: Counted) {
    if let Err(error) = write_record_of_boot(&folder.join("kept"), &counted) {
        tracing::debug!(%error, "what an ended worker's folder takes is counted again later");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(tasks: &Path, name: &str, output: usize, work: usize) -> PathBuf {
        let folder = tasks.join(name);
        std::fs::create_dir_all(folder.join("work/deep")).unwrap();
        std::fs::write(folder.join("output"), vec![1u8; output]).unwrap();
        std::fs::write(folder.join("work/deep/file"), vec![1u8; work]).unwrap();
        std::fs::write(folder.join("acked"), "").unwrap();
        folder
    }

    fn limits(workers: usize, bytes: u64) -> LogLimits {
        LogLimits { ended_workers_max: workers, ended_bytes_max: bytes, ..LogLimits::usual() }
    }

    #[test]
    fn the_largest_work_goes_before_anybodys_output() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = dir.path();
        let first = folder(tasks, "first", 1 << 16, 1 << 16);
        let greedy = folder(tasks, "greedy", 1 << 16, 8 << 20);
        let last = folder(tasks, "last", 1 << 16, 1 << 16);
        let mut kept = Kept::default();
        for folder in [&first, &greedy, &last] {
            kept.add(folder.clone());
        }
        kept.prune(tasks, &limits(10, 1 << 20)).unwrap();
        for folder in [&first, &greedy, &last] {
            assert!(folder.join("output").exists(), "{}", folder.display());
        }
        assert!(first.join("work").exists() && last.join("work").exists() && !greedy.join("work").exists());
        // The next agent knows it without counting.
        let mut next = Kept::default();
        next.look(tasks).unwrap();
        assert_eq!((next.folders.len(), next.bytes), (3, kept.bytes));
        // Then the oldest output, and the number of folders.
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
        Kept::default().look(dir.path()).unwrap();
        assert!(!old.exists());
    }
}
