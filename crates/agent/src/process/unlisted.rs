//! Workers that run though the state directory does not list them: its contents were put back from a copy that is older than
//! they are. Nobody is told that a worker is gone before it is.
//!
//! **Invariant:** only shims of this state directory are ended here, and processes with a mark of this holder. A shim is known by the
//! FIFO that it holds open: it is not the one that is in its worker's directory now.

use crate::process::processes::{self, Process};
use crate::process::task::TaskDir;
use crate::rules::WorkerKey;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the ends of such workers may take; one that a driver holds takes longer, and the agent is then started again.
const END_MAX: Duration = Duration::from_secs(30);
/// How long the ends of those that were found are waited for before others are looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Descriptors of a process that are looked at, lowest first: a shim opens its FIFO early. Without a bound a worker that
/// opens a million in each of many sessions would delay the first heartbeat of an agent that starts beyond every lease.
const DESCRIPTORS_MAX: usize = 256;

/// The processes that [`end`] killed, and the workers that they belonged to.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub(super) processes: BTreeSet<Process>,
    /// Their control groups and temporary files may be removed.
    pub(super) workers: BTreeSet<WorkerKey>,
}

/// Ends every worker that runs and is not listed below `tasks`. `is_of_holder` says of a mark whether a worker of this holder
/// has it.
///
/// # Errors
/// When some do not end.
pub(super) fn end(tasks: &Path, is_of_holder: impl Fn(&str) -> bool) -> io::Result<Ended> {
    let until = Instant::now() + END_MAX;
    let mut ended = Ended::default();
    loop {
        let found = find(tasks, &is_of_holder);
        if found.is_empty() {
            return Ok(ended);
        }
        if Instant::now() > until {
            let text = format!("workers that are not listed do not end: {found:?}");
            return Err(io::Error::other(text));
        }
        let (processes, workers): (BTreeSet<Process>, BTreeSet<WorkerKey>) = found.into_iter().unzip();
        processes::end_all(&processes, LOOK_AGAIN);
        ended.processes.extend(processes);
        ended.workers.extend(workers);
    }
}

/// The processes of such workers: those with a mark, shims, and whatever is below a shim, which ends with it but not at once.
fn find(tasks: &Path, is_of_holder: impl Fn(&str) -> bool) -> BTreeMap<Process, WorkerKey> {
    let unlisted = |mark: &str| {
        let key = mark.rsplit_once('_').and_then(|(worker, _)| TaskDir::key_of_name(worker))?;
        (is_of_holder(mark) && !TaskDir::of(tasks, key).path().exists()).then_some(key)
    };
    let mut found = processes::marked(unlisted);
    for leader in processes::session_leaders() {
        if let Some(key) = unlisted_worker_of_shim(tasks, leader.pid) {
            found.extend(processes::descendants(leader.pid).into_iter().map(|process| (process, key)));
            found.insert(leader, key);
        }
    }
    found
}

/// The worker below `tasks` whose shim the process is, where its directory is not there any more, or another one by now.
fn unlisted_worker_of_shim(tasks: &Path, pid: i32) -> Option<WorkerKey> {
    // A worker that has a separate user is no shim.
    let owner = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    if owner != nix::unistd::geteuid().as_raw() {
        return None;
    }
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    open.flatten().take(DESCRIPTORS_MAX).find_map(|descriptor| {
        let to = std::fs::read_link(descriptor.path()).ok()?;
        let (key, alive) = alive_of(tasks, &to)?;
        let id = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let held = id(&descriptor.path());
        (held.is_some() && held != id(&alive)).then_some(key)
    })
}

/// The worker below `tasks` to whose FIFO an open descriptor leads, and that. A shim that waits for its worker ends by itself.
fn alive_of(tasks: &Path, open: &Path) -> Option<(WorkerKey, PathBuf)> {
    let text = open.to_str()?;
    let path = Path::new(text.strip_suffix(" (deleted)").unwrap_or(text));
    let task = path.parent()?;
    let name = task.file_name()?.to_str()?;
    let key = TaskDir::key_of_name(name).filter(|_| task.parent() == Some(tasks))?;
    (TaskDir::at(task.to_owned()).alive() == path).then(|| (key, path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::process::{Child, Command, Stdio};

    /// A process that has this FIFO open behind that number of other files.
    fn holding(fifo: &Path, others: u32) -> Child {
        let script = "for ((n = 10; n < 10 + $1; n++)); do eval \"exec $n< /dev/null\"; done; exec 900<> \"$0\"; \
                      echo; exec sleep 600";
        let mut command = Command::new("bash");
        command.args(["-c", script]).arg(fifo).arg(others.to_string());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    #[test]
    fn no_more_descriptors_of_a_process_are_looked_at_than_a_shim_has() {
        let directory = tempfile::tempdir().unwrap();
        let tasks = directory.path().canonicalize().unwrap();
        let name = format!("{}_{}_0", muster_types::JobId(7), muster_types::FencingToken::default());
        let fifo = tasks.join(name).join("alive");
        std::fs::create_dir(fifo.parent().unwrap()).unwrap();
        let make = || nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        make();
        let (mut shim, mut worker) = (holding(&fifo, 0), holding(&fifo, 300));
        let is_found = |child: &Child| unlisted_worker_of_shim(&tasks, child.id().cast_signed()).is_some();
        assert!(!is_found(&shim), "its directory is that of now");
        std::fs::remove_file(&fifo).unwrap();
        make();
        assert!(is_found(&shim) && !is_found(&worker));
        for child in [&mut shim, &mut worker] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_shim_is_known_by_the_fifo_that_it_holds() {
        let tasks = Path::new("/state/tasks");
        let alive = |text: &str| alive_of(tasks, Path::new(text)).map(|(_, path)| path.display().to_string());
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
