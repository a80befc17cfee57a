//! Removal of directories in the background.
//!
//! A worker may leave millions of files, or more bytes than a disk should hold. They are removed on one thread, so that
//! nothing waits for it: neither an agent that starts, whose first heartbeat keeps the host's gangs alive, nor a session,
//! nor the start or stop of another worker.
//!
//! **Invariant:** a directory loses its name before it is removed: a worker's directory is there whole or not at all.

use crate::clock::BootTime;
use crate::disk::tree;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

/// Begins the name of a directory that is being removed.
const OLD: &str = ".old_";

type Job = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// Runs a job on the thread, after the earlier ones.
pub(crate) fn run(job: impl FnOnce() -> io::Result<()> + Send + 'static) {
    static THREAD: OnceLock<Option<Sender<Job>>> = OnceLock::new();
    let sender = THREAD.get_or_init(|| {
        let (sender, jobs) = channel::<Job>();
        let thread = std::thread::Builder::new().name("disposal".to_owned()).spawn(move || {
            for job in jobs {
                if let Err(error) = job() {
                    tracing::warn!(%error, "old directories of workers could not be removed");
                }
            }
        });
        // Without the thread directories stay, and the next agent has them removed.
        thread
            .inspect_err(|error| tracing::error!(%error, "no directory of an ended worker is removed"))
            .ok()
            .map(|_| sender)
    });
    if let Some(sender) = sender {
        // The thread ends with the process alone.
        let _ = sender.send(Box::new(job));
    }
}

/// Has a directory removed that is no worker's.
pub(crate) fn remove(directory: PathBuf) {
    run(move || tree::remove(&directory));
}

/// Renames a directory within `tasks`, and has it removed. A directory that does not exist is not an error.
///
/// # Errors
/// When it cannot be renamed.
pub(crate) fn discard(tasks: &Path, directory: &Path) -> io::Result<()> {
    if let Some(old) = set_aside(tasks, directory)? {
        remove(old);
    }
    Ok(())
}

/// Renames a directory within `tasks`, and removes it before it returns: for jobs on the thread.
///
/// # Errors
/// When it cannot be renamed, or something of it stays.
pub(crate) fn remove_now(tasks: &Path, directory: &Path) -> io::Result<()> {
    set_aside(tasks, directory)?.map_or(Ok(()), |old| tree::remove(&old))
}

/// Whether an entry of `tasks` has the name of a directory that was being removed.
pub(crate) fn is_set_aside(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(OLD))
}

/// The new path; none where there is no such directory.
fn set_aside(tasks: &Path, directory: &Path) -> io::Result<Option<PathBuf>> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let (number, now) = (NUMBER.fetch_add(1, Ordering::Relaxed), BootTime::now().0);
    let old = tasks.join(format!("{OLD}{}_{now}_{number}", std::process::id()));
    match std::fs::rename(directory, &old) {
        Ok(()) => Ok(Some(old)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
