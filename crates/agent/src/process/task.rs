//! The directory of one worker: all that the agent and its shim say to each other.
//!
//! | file | written by | what |
//! |---|---|---|
//! | `spec` | agent | the launch, complete |
//! | `rank_map.json` | agent | for the worker |
//! | `hostfile`, `hostfile.ranks` | agent | for the worker: `contract/hostfile.rs` |
//! | `lock` | – | locked by the shim until it ends: liveness without process ids; a second name of `spec` |
//! | `alive` | – | a FIFO the shim holds open: its end-of-file tells the agent that the shim is gone |
//! | `control` | agent | a FIFO: each 8 bytes are a stop with that many milliseconds of grace |
//! | `terminal`, `terminal_input` | shim | where the worker has a terminal: a link to its device, and a FIFO for what is typed |
//! | `stop` | agent | the same, on disk, for a shim that was not listening yet |
//! | `notice.json` | agent | tells the worker that it has to stop, and by when |
//! | `running` | shim | process ids and control group of the launched worker |
//! | `launch_error` | shim | why the program could not be executed |
//! | `output`, `output.1` | shim | both streams, in order (see `transcript.rs`) |
//! | `image` | shim | what the worker writes over its image, where it has one |
//! | `exit` | shim, or the agent where no shim is | how it ended: written once, after nothing of the worker is left |
//! | `acked` | agent | the leader knows the end; a second name of `exit` |
//!
//! Nothing here is read after a reboot: then the directories are set aside, and who held the node holds it no
//! more. So no file is flushed to the disk; a launch waits for the flush of its fencing token alone.
//!
//! A directory appears whole, by a rename. What a launch does not know better is made before one is ordered: a
//! file that is new can cost a busy file system most of a millisecond, one that is rewritten next to
//! nothing. Shim and agent agree on who speaks last through `lock`: the one that
//! holds it may write `exit`, and a shim that finds one does not launch.
//!
//! **Invariant:** a directory with a spec and no `exit` is a worker that may be running.

use crate::disk::durable::{DurableError, read_record, write_record_of_boot as write_record};
use crate::process::disk_io::GroupIo;
use crate::process::isolation::Isolation;
use crate::process::transcript::OutputTally;
use crate::rules::{HttpNotice, WorkerKey};
use muster_types::{ArtifactRules, DeviceSet, ExitStatus, FencingToken, HolderId, JobId};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Everything a shim needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Which worker.
    pub key: WorkerKey,
    /// Whose it is; empty in launches of earlier versions.
    #[serde(default)]
    pub tenant: String,
    /// Whether its processes are in a job of another scheduler, which ends what is left of them.
    #[serde(default)]
    pub is_in_job: bool,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The whole environment.
    pub environment: BTreeMap<String, String>,
    /// Where it starts.
    pub working_directory: PathBuf,
    /// Local device numbers.
    pub devices: DeviceSet,
    /// How much of each, in thousandths; launches of earlier versions have all of it.
    #[serde(default = "crate::rules::whole_device")]
    pub device_milli: u16,
    /// The lease file to watch.
    pub lease_path: PathBuf,
    /// Whose lease it must be.
    pub holder: HolderId,
    /// Which epoch of it.
    pub epoch: u64,
    /// SIGTERM to SIGKILL when a stop does not say otherwise.
    pub stop_grace_ms: u64,
    /// What comes before the shim's own arguments when its binary is executed.
    pub shim_arguments: Vec<String>,
    /// Bytes kept of its output, over two files.
    pub log_bytes_max: u64,
    /// Free bytes that its output leaves on the disk.
    #[serde(default)]
    pub log_free_min: u64,
    /// Where the worker's control group is made; none to do without.
    pub cgroup_parent: Option<PathBuf>,
    /// Memory that it is held to; 0 for no limit.
    pub memory_bytes: u64,
    /// Whether the shim holds it to that where no control group does.
    #[serde(default)]
    pub memory_watched: bool,
    /// Promised milli-CPUs, for the control group.
    pub cpu_milli: u64,
    /// The most of it, for the control group; 0 for no ceiling.
    #[serde(default)]
    pub cpu_max_milli: u64,
    /// What its control group says of disks; launches of earlier versions have nothing.
    #[serde(default)]
    pub io: GroupIo,
    /// Its own directory for temporary files, where it shares `/tmp` with others; launches of earlier versions have none.
    #[serde(default)]
    pub temporary: Option<PathBuf>,
    /// What its files may take of the disk; 0 for no bound.
    #[serde(default)]
    pub disk_bytes_max: u64,
    /// Bytes that it may have in `temporary`, which is then its scratch directory; 0 where it has none.
    #[serde(default)]
    pub scratch_bytes: u64,
    /// What keeps it from its host; launches of earlier versions have nothing.
    #[serde(default)]
    pub isolation: Isolation,
    /// The call that tells it to stop; launches of earlier versions have none.
    #[serde(default)]
    pub notice: Option<HttpNotice>,
    /// The image whose root directory it has; none for that of the host.
    #[serde(default)]
    pub image: Option<ImageRoot>,
    /// Its files that are kept when it has ended; none for no files.
    #[serde(default)]
    pub artifacts: Option<ArtifactRules>,
    /// Most bytes of these; none for as many as the agent keeps.
    #[serde(default)]
    pub artifacts_bytes_max: Option<u64>,
    /// Whether it has a terminal; without one it reads nothing.
    #[serde(default)]
    pub terminal: bool,
}

/// The root directory of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRoot {
    /// The directory of the unpacked image.
    pub image: PathBuf,
    /// What is seen of the host, in no order.
    pub mounts: Vec<RootMount>,
    /// Bytes of its /dev/shm, which it has for itself; 0 for that of its gang.
    #[serde(default)]
    pub shared_memory_bytes: u64,
}

/// A file or directory of the host that is seen in an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootMount {
    /// Where it is on the host.
    pub source: PathBuf,
    /// Where it is seen.
    pub target: PathBuf,
    /// Whether it can only be read.
    pub read_only: bool,
    /// Whether the agent shows it. What a job asks for is found with the rights of the worker's user.
    pub by_agent: bool,
}

/// The launched worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The shim, which leads the session.
    pub shim_pid: i32,
    /// The worker, which leads the process group.
    pub worker_pid: i32,
    /// Its control group, when there is one.
    pub cgroup: Option<PathBuf>,
    /// Why there is none.
    pub cgroup_absent: Option<String>,
}

/// How the worker ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// As the leader is told.
    pub status: ExitStatus,
    /// What became of its output, where its shim knew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputTally>,
}

/// A requested stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// SIGTERM to SIGKILL.
    pub grace_ms: u64,
}

/// Bytes of one message on the control FIFO; far below PIPE_BUF, so each arrives whole.
pub const CONTROL_MESSAGE_BYTES: usize = 8;

/// What kept a task directory from being used.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A file or directory operation.
    #[error("{doing} {path}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A record.
    #[error("keep a record of the worker")]
    Record(#[from] DurableError),
}

/// What every worker of a gang finds in its directory about the whole of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GangFiles {
    /// `rank_map.json`.
    pub rank_map: String,
    /// `hostfile`.
    pub hostfile: String,
    /// `hostfile.ranks`.
    pub rank_hostfile: String,
}

/// One worker's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskDir {
    path: PathBuf,
}

impl TaskSpec {
    /// What its control group is held to.
    #[must_use]
    pub fn group_limits(&self) -> crate::process::cgroup::Limits {
        crate::process::cgroup::Limits {
            memory_bytes: self.memory_bytes,
            cpu_milli: self.cpu_milli,
            cpu_max_milli: self.cpu_max_milli,
        }
    }
}

impl TaskDir {
    /// A directory that is there.
    #[must_use]
    pub fn at(path: PathBuf) -> TaskDir {
        TaskDir { path }
    }

    /// Where the directory of this worker is.
    #[must_use]
    pub fn of(tasks: &Path, key: WorkerKey) -> TaskDir {
        TaskDir { path: tasks.join(name_of(key)) }
    }

    /// The worker a directory's name stands for.
    #[must_use]
    pub fn key_of_name(name: &str) -> Option<WorkerKey> {
        let mut parts = name.split('_');
        let job: JobId = parts.next()?.parse().ok()?;
        let token: FencingToken = parts.next()?.parse().ok()?;
        let rank: u32 = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(WorkerKey { job, token, rank })
    }

    /// Makes the directory, complete.
    ///
    /// # Errors
    /// When any step fails; then there is no directory under the final name.
    pub fn create(tasks: &Path, spec: &TaskSpec, files: &GangFiles) -> Result<TaskDir, TaskError> {
        Blank::of(tasks, spec.key)?.fill(tasks, spec, files)
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The worker's own directory, where it starts unless the job says otherwise.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.path.join("work")
    }

    /// What it has in the place of `/tmp` and `/var/tmp`, where these are its own.
    #[must_use]
    pub fn own_tmp(&self) -> [PathBuf; 2] {
        ["tmp", "var_tmp"].map(|name| self.path.join(name))
    }

    /// What it writes over its image, where it has one.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.path.join("image")
    }

    /// The rank map file.
    #[must_use]
    pub fn rank_map(&self) -> PathBuf {
        self.path.join("rank_map.json")
    }

    /// The host file by addresses.
    #[must_use]
    pub fn hostfile(&self) -> PathBuf {
        self.path.join("hostfile")
    }

    /// The host file by ranks.
    #[must_use]
    pub fn rank_hostfile(&self) -> PathBuf {
        self.path.join("hostfile.ranks")
    }

    /// Where a notice to stop appears.
    #[must_use]
    pub fn notice(&self) -> PathBuf {
        self.path.join("notice.json")
    }

    /// The FIFO whose end tells that the shim is gone.
    #[must_use]
    pub fn alive(&self) -> PathBuf {
        self.path.join("alive")
    }

    /// The FIFO of stops.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.path.join("control")
    }

    /// The FIFO of what people type who attach to its terminal.
    #[must_use]
    pub fn terminal_input(&self) -> PathBuf {
        self.path.join("terminal_input")
    }

    /// A link to the device file of its terminal.
    #[must_use]
    pub fn terminal_device(&self) -> PathBuf {
        self.path.join("terminal")
    }

    /// Where the shim's own complaints go.
    #[must_use]
    pub fn shim_log(&self) -> PathBuf {
        self.path.join("shim.log")
    }

    /// The newer file of its output.
    #[must_use]
    pub fn output(&self) -> PathBuf {
        self.path.join("output")
    }

    /// The older one.
    #[must_use]
    pub fn output_before(&self) -> PathBuf {
        self.path.join("output.1")
    }

    /// Where a failed execution leaves its reason.
    #[must_use]
    pub fn launch_error(&self) -> PathBuf {
        self.path.join("launch_error")
    }

    fn spec_path(&self) -> PathBuf {
        self.path.join("spec")
    }

    fn lock_path(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// The launch.
    ///
    /// # Errors
    /// When it cannot be read whole.
    pub fn spec(&self) -> Result<Option<TaskSpec>, DurableError> {
        read_record(&self.spec_path())
    }

    /// The launched worker, once it was launched.
    ///
    /// # Errors
    /// When it cannot be read whole.
    pub fn running(&self) -> Result<Option<Running>, DurableError> {
        read_record(&self.path.join("running"))
    }

    /// Records the launch.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_running(&self, running: &Running) -> Result<(), DurableError> {
        write_record(&self.path.join("running"), running)
    }

    /// How it ended, once nothing of it is left.
    ///
    /// # Errors
    /// When it cannot be read whole.
    pub fn exit(&self) -> Result<Option<Exit>, DurableError> {
        read_record(&self.path.join("exit"))
    }

    /// Records the end. Only for the holder of the lock.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_exit(&self, status: ExitStatus) -> Result<(), DurableError> {
        self.write_end(&Exit { status, output: None })
    }

    /// The same with what else is known of it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_end(&self, exit: &Exit) -> Result<(), DurableError> {
        write_record(&self.path.join("exit"), exit)
    }

    /// A stop that was asked for before the shim listened.
    ///
    /// # Errors
    /// When it cannot be read whole.
    pub fn stop(&self) -> Result<Option<Stop>, DurableError> {
        read_record(&self.path.join("stop"))
    }

    /// Whether the leader knows the end.
    #[must_use]
    pub fn is_acked(&self) -> bool {
        self.path.join("acked").exists()
    }

    /// The leader knows the end.
    ///
    /// # Errors
    /// When it cannot be written; the end is then reported again after a restart.
    pub fn write_acked(&self) -> Result<(), DurableError> {
        let acked = self.path.join("acked");
        // That it is there is all it says: a second name of the end costs no further file.
        match std::fs::hard_link(self.path.join("exit"), &acked) {
            Ok(()) => Ok(()),
            Err(_) => write_record(&acked, &()),
        }
    }

    /// Tells the shim to stop, through the FIFO, which no disk can hold up.
    ///
    /// # Errors
    /// When it does not listen yet, or is gone.
    pub fn tell_to_stop(&self, grace: Duration) -> io::Result<()> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let mut options = OpenOptions::new();
        let mut fifo = options.write(true).custom_flags(nix::libc::O_NONBLOCK).open(self.control())?;
        fifo.write_all(&grace_ms.to_le_bytes())
    }

    /// Records a stop, for a shim that does not listen yet.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn record_stop(&self, grace: Duration) -> Result<(), TaskError> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        write_record(&self.path.join("stop"), &Stop { grace_ms }).map_err(TaskError::Record)
    }

    /// The lock, when no shim has it. It is released when the file is dropped.
    ///
    /// # Errors
    /// When the lock file cannot be used at all.
    pub fn try_lock(&self) -> Result<Option<File>, TaskError> {
        let path = self.lock_path();
        let io = |source| TaskError::Io { doing: "lock", path: path.clone(), source };
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(io(source)),
        }
    }
}

/// What stands before the name of a directory that is no worker's yet.
const UNFINISHED: &str = ".new_";

/// A directory with every file that a launch needs, and nothing in them: a worker's that is not known yet.
#[derive(Debug)]
pub struct Blank {
    part: TaskDir,
}

/// Where the files of a worker are until it has a directory: next to the directories of workers. What is there belongs to no
/// worker, and goes when the agent starts again.
pub(crate) fn staging(tasks: &Path, key: WorkerKey) -> PathBuf {
    tasks.join(format!("{UNFINISHED}files_{}", name_of(key)))
}

/// How what belongs to a worker is called.
pub(crate) fn name_of(key: WorkerKey) -> String {
    format!("{}_{}_{}", key.job, key.token, key.rank)
}

impl Blank {
    /// Makes one for a worker that is known.
    ///
    /// # Errors
    /// When any step fails.
    pub fn of(tasks: &Path, key: WorkerKey) -> Result<Blank, TaskError> {
        Blank::make(tasks, &name_of(key))
    }

    /// Makes one. `name` is its own below `tasks`; what an earlier process left there goes.
    ///
    /// # Errors
    /// When any step fails.
    pub fn make(tasks: &Path, name: &str) -> Result<Blank, TaskError> {
        let aside = tasks.join(format!("{UNFINISHED}{name}"));
        crate::disk::disposal::discard(tasks, &aside).map_err(at("remove", &aside))?;
        std::fs::DirBuilder::new().mode(0o700).create(&aside).map_err(at("make", &aside))?;
        let part = TaskDir { path: aside };
        std::fs::create_dir(part.work()).map_err(at("make", &part.path))?;
        for fifo in [part.alive(), part.control()] {
            nix::unistd::mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR)
                .map_err(|e| at("make", &fifo)(e.into()))?;
        }
        for path in [part.rank_map(), part.hostfile(), part.rank_hostfile()] {
            File::create(&path).map_err(at("make", &path))?;
        }
        let (spec, lock) = (part.spec_path(), part.lock_path());
        let mut private = OpenOptions::new();
        private.write(true).create_new(true).mode(0o600).open(&spec).map_err(at("make", &spec))?;
        // A second name costs no further file, where the file system has such.
        if std::fs::hard_link(&spec, &lock).is_err() {
            File::create(&lock).map_err(at("make", &lock))?;
        }
        Ok(Blank { part })
    }

    /// Gives it the files that its worker starts with: a directory on the same file system, which moves.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub fn put_work(&self, files: &Path) -> Result<(), TaskError> {
        let work = self.part.work();
        std::fs::rename(files, &work).map_err(at("move files to", &work))
    }

    /// The directory, for now.
    #[must_use]
    pub fn directory(&self) -> &TaskDir {
        &self.part
    }

    /// Makes it a worker's.
    ///
    /// # Errors
    /// When any step fails; then there is no directory under the final name.
    pub fn fill(self, tasks: &Path, spec: &TaskSpec, files: &GangFiles) -> Result<TaskDir, TaskError> {
        let (part, task) = (self.part, TaskDir::of(tasks, spec.key));
        for (path, text) in [
            (part.rank_map(), &files.rank_map),
            (part.hostfile(), &files.hostfile),
            (part.rank_hostfile(), &files.rank_hostfile),
        ] {
            std::fs::write(&path, text).map_err(at("write", &path))?;
        }
        // In place: nobody reads it before the directory has its name.
        let path = part.spec_path();
        let bytes = crate::disk::durable::encode_record(spec).map_err(at("encode", &path))?;
        std::fs::write(&path, bytes).map_err(at("write", &path))?;
        std::fs::rename(&part.path, &task.path).map_err(at("rename", &part.path))?;
        Ok(task)
    }

    /// Removes it: no worker will have it.
    pub fn discard(self) {
        // What stays goes when the agent starts again.
        let _ = crate::disk::tree::remove(&self.part.path);
    }
}

fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TaskError {
    let path = path.to_owned();
    move |source| TaskError::Io { doing, path, source }
}

/// The workers that have a directory; removes directories that were never finished.
///
/// # Errors
/// When they cannot be listed, all of them.
pub(crate) fn list(tasks: &Path) -> io::Result<Vec<WorkerKey>> {
    let mut keys = Vec::new();
    for (count, entry) in std::fs::read_dir(tasks)?.enumerate() {
        if count >= crate::limits::TASK_DIRECTORIES_MAX {
            // A worker that is overlooked would be one that nobody stops.
            return Err(io::Error::other(format!("{} has too many entries", tasks.display())));
        }
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if let Some(key) = TaskDir::key_of_name(name) {
            keys.push(key);
        } else if name.starts_with(UNFINISHED) {
            crate::disk::disposal::discard(tasks, &entry.path())?;
        }
    }
    keys.sort_unstable();
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::LogIndex;

    #[test]
    fn names_come_back_and_foreign_ones_do_not() {
        let key = WorkerKey {
            job: JobId(1024),
            token: FencingToken { generation: 2, log_index: LogIndex(77) },
            rank: 3,
        };
        let task = TaskDir::of(Path::new("/t"), key);
        let name = task.path().file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(TaskDir::key_of_name(&name), Some(key));
        for bad in ["", ".new_job-1_1.1_0", "job-1_1.1", "job-1_1.1_0_0", "job-1_x_0", "lost+found"] {
            assert_eq!(TaskDir::key_of_name(bad), None, "{bad}");
        }
    }
}
