//! Workers that run though the state directory does not list them: its contents were put back from a copy that is older than
//! they are. Nobody is told that a worker is gone before it is.
//!
//! **Invariant:** only shims of this state directory are ended here, and processes with a mark of this holder. A shim is known by the
//! FIFO that it holds open: it is not the one that is in its worker's directory now.

use crate::process::processes::{self, Process};
use crate::process::task::TaskDir;
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the ends of such workers may take; one that a driver holds takes longer, and the agent is then started again.
const END_MAX: Duration = Duration::from_secs(30);
/// From one look to the next.
const LOOK: Duration = Duration::from_millis(20);

/// Ends every worker that runs and is not listed below `tasks`; how many processes that were. `is_of_holder` says of a mark whether
/// a worker of this holder has it.
///
/// # Errors
/// When some do not end.
pub(super) fn end(tasks: &Path, is_of_holder: impl Fn(&str) -> bool) -> io::Result<usize> {
    let until = Instant::now() + END_MAX;
    let mut seen = BTreeSet::new();
    loop {
        let found = find(tasks, &is_of_holder);
        if found.is_empty() {
            return Ok(seen.len());
        }
        if Instant::now() > until {
            let text = format!("workers that are not listed do not end: {found:?}");
            return Err(io::Error::other(text));
        }
        processes::kill_all(&found);
        seen.extend(found);
        std::thread::sleep(LOOK);
    }
}

fn find(tasks: &Path, is_of_holder: impl Fn(&str) -> bool) -> BTreeSet<Process> {
    let is_unlisted = |mark: &str| {
        let worker = mark.rsplit_once('_').map(|(worker, _)| worker);
        let key = worker.and_then(TaskDir::key_of_name);
        is_of_holder(mark) && key.is_some_and(|key| !TaskDir::of(tasks, key).path().exists())
    };
    let mut found = processes::marked(is_unlisted);
    found.extend(
        processes::session_leaders().into_iter().filter(|leader| is_unlisted_shim(tasks, leader.pid)),
    );
    found
}

/// Whether the process is a shim of a worker below `tasks` whose directory is not there any more, or another one by now.
fn is_unlisted_shim(tasks: &Path, pid: i32) -> bool {
    let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    open.flatten().any(|descriptor| {
        let Some(alive) = std::fs::read_link(descriptor.path()).ok().and_then(|to| alive_of(tasks, &to))
        else {
            return false;
        };
        let id = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let held = id(&descriptor.path());
        held.is_some() && held != id(&alive)
    })
}

/// The FIFO of a worker below `tasks` that an open descriptor leads to. A shim that waits for its worker ends by itself.
fn alive_of(tasks: &Path, open: &Path) -> Option<PathBuf> {
    let text = open.to_str()?;
    let path = Path::new(text.strip_suffix(" (deleted)").unwrap_or(text));
    let task = path.parent()?;
    let name = task.file_name()?.to_str()?;
    let is_worker = task.parent() == Some(tasks) && TaskDir::key_of_name(name).is_some();
    (is_worker && TaskDir::at(task.to_owned()).alive() == path).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_is_known_by_the_fifo_that_it_holds() {
        let tasks = Path::new("/state/tasks");
        let alive = |text: &str| alive_of(tasks, Path::new(text)).map(|path| path.display().to_string());
        let own = "/state/tasks/job-7@3.2_1.9_0/alive";
        let name = format!("{}_{}_0", muster_types::JobId(7), muster_types::FencingToken::default());
        let own = own.replace("job-7@3.2_1.9_0", &name);
        assert_eq!(alive(&own).as_deref(), Some(own.as_str()));
        assert_eq!(alive(&format!("{own} (deleted)")).as_deref(), Some(own.as_str()));
        for other in ["lock", "work/alive"] {
            assert_eq!(alive(&own.replace("alive", other)), None, "{other}");
        }
        assert_eq!(alive("/state/tasks/.new_ready_1/alive"), None);
        assert_eq!(alive(&format!("/elsewhere{own}")), None);
    }
}
