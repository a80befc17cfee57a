//! What a worker's process takes from itself before it becomes the worker: the host's `/tmp`, devices that are not its
//! own, the host's root directory where it has an image's, its privileges and the agent's user.
//!
//! **Invariant:** a step that fails ends the process: no program runs with more than it was to have.

use super::namespaces::enter_user_namespace;
use crate::process::cores::cpu_list;
use crate::process::isolation::{Isolation, Namespaces};
use crate::process::task::{TaskDir, TaskSpec};
use muster_types::HolderId;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity};
use nix::sys::prctl::set_no_new_privs;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::stat::Mode;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{Gid, Pid, Uid, chown, fchown, geteuid, setgroups, setresgid, setresuid};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The directories that every user of a host writes to.
const COMMON: [&str; 2] = ["/tmp", "/var/tmp"];
/// Where every gang finds its shared memory on a host.
pub(crate) const SHARED_MEMORY: &str = "/dev/shm";

/// Ends the name of one that is being removed.
const OLD: &str = ".old";

/// The gang's directory for shared memory on this host: of all its workers here, so that they find each other.
pub(crate) fn shared_memory_of(spec: &TaskSpec) -> PathBuf {
    let key = spec.key;
    let name = format!("{}{}_{}", shared_memory_prefix(spec.holder), key.job, key.token);
    Path::new(SHARED_MEMORY).join(name)
}

/// How an agent's directories are called there: several agents may be on one machine.
fn shared_memory_prefix(holder: HolderId) -> String {
    format!("muster_{:08x}_", holder.0 >> 96)
}

/// The gang's directory for shared memory, which is there as long as this is.
pub(super) struct SharedMemory {
    directory: PathBuf,
    held: File,
}

impl SharedMemory {
    /// Makes it, or takes part in it; none for a worker that shares the host's.
    pub(super) fn of(spec: &TaskSpec) -> io::Result<Option<SharedMemory>> {
        if !spec.isolation.private_tmp {
            return Ok(None);
        }
        let directory = shared_memory_of(spec);
        own_directory(&directory, spec.isolation.user)?;
        let held = File::open(&directory)?;
        held.lock_shared()?;
        Ok(Some(SharedMemory { directory, held }))
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // The last of the gang's workers here: nobody else has it locked.
        if self.held.try_lock().is_ok()
            && let Err(error) = crate::disk::tree::remove(&self.directory)
        {
            super::complain(&format!("remove {}: {error}", self.directory.display()));
        }
    }
}

/// Has those of an agent removed that shims have left which were killed. Nothing may be launched before this returns.
pub(crate) fn remove_unused_shared_memory(holder: HolderId) {
    let prefix = shared_memory_prefix(holder);
    for directory in unused_shared_memory(Path::new(SHARED_MEMORY), &prefix) {
        crate::disk::disposal::remove(directory);
    }
}

/// Those that begin with `prefix` and that nobody has. They lose their names here and are not removed: a worker may have left
/// millions of files in one, and an agent that starts has no time for that before its first heartbeat.
fn unused_shared_memory(base: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut unused = Vec::new();
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str().filter(|name| name.starts_with(prefix)) else { continue };
        // A worker that shares the host's may have put anything there, also a FIFO that nobody writes to.
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = open(path.as_path(), flags, Mode::empty()).map(File::from);
        if !opened.is_ok_and(|directory| directory.try_lock().is_ok()) {
            continue;
        }
        // An earlier agent may have been killed before it had removed it.
        let old =
            if name.ends_with(OLD) { path.clone() } else { path.with_file_name(format!("{name}{OLD}")) };
        if fs::rename(&path, &old).is_ok() {
            unused.push(old);
        }
    }
    unused
}

/// Confines this process as the launch says.
pub(super) fn confine(task: &TaskDir, spec: &TaskSpec) -> Result<(), String> {
    let isolation = &spec.isolation;
    if let Some(directory) = &spec.temporary {
        let made = own_directory(directory, isolation.user);
        made.map_err(|e| format!("make {} for temporary files: {e}", directory.display()))?;
    }
    give(task, spec).map_err(|e| format!("give the worker its directory: {e}"))?;
    if isolation.namespaces != Namespaces::Host {
        for device in &isolation.hidden {
            hide(device).map_err(|e| format!("hide device {}: {e}", device.display()))?;
        }
        for socket in &isolation.closed_sockets {
            close_socket(socket).map_err(|e| format!("close socket {}: {e}", socket.display()))?;
        }
        if isolation.private_tmp {
            private_tmp(task, spec)?;
        }
        super::root::mount_shared_memory(isolation.shared_memory_bytes)?;
    }
    if let Some(image) = &spec.image {
        super::root::enter(task, spec, image)?;
    }
    limit(isolation)?;
    drop_privileges(isolation)
}

/// Makes what the worker owns in its directory its own, and lets its user find it: the directory's other files are the
/// agent's, for nobody else to read, but for those that are meant for the worker.
fn give(task: &TaskDir, spec: &TaskSpec) -> io::Result<()> {
    let Some(uid) = spec.isolation.user else { return Ok(()) };
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    chown(task.path(), None, Some(group))?;
    mode(task.path(), 0o710)?;
    for path in [task.rank_map(), task.hostfile(), task.rank_hostfile()] {
        mode(&path, 0o644)?;
    }
    chown(&task.work(), Some(user), Some(group))?;
    mode(&task.work(), 0o700)
}

fn bind(from: &Path, to: &Path) -> Result<(), Errno> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
}

/// Puts a device's file in its own place, where it opens no device.
fn hide(device: &Path) -> Result<(), Errno> {
    bind(device, device)?;
    remount(device, MsFlags::MS_NODEV)
}

/// Gives what is mounted at a path more flags.
pub(super) fn remount(path: &Path, more: MsFlags) -> Result<(), Errno> {
    // Those that the mount has may not be taken away here.
    let has = statvfs(path)?.flags();
    let kept = [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_RDONLY, MsFlags::MS_RDONLY),
    ];
    let kept = kept.iter().filter(|(flag, _)| has.contains(*flag)).map(|(_, kept)| *kept);
    let flags = kept.fold(MsFlags::MS_BIND | MsFlags::MS_REMOUNT | more, |all, one| all | one);
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>)
}

/// Puts a file in the place of a socket, so that nothing answers there. One that is not there, or that this user cannot reach, is
/// none of the worker's either.
fn close_socket(socket: &Path) -> Result<(), Errno> {
    match fs::symlink_metadata(socket).map(|found| found.file_type()) {
        Ok(found) if found.is_socket() || found.is_symlink() => {}
        _ => return Ok(()),
    }
    match bind(Path::new("/dev/null"), socket) {
        // Gone meanwhile, or a link that leads nowhere.
        Err(Errno::ENOENT) => Ok(()),
        bound => bound,
    }
}

/// Keeps this process, and those that it makes, on the processors of its worker. Where a control group does as well, no process can
/// undo it.
fn bind_to_cpus(cpus: &[u16]) -> Result<(), String> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    let added = cpus.iter().try_for_each(|cpu| set.set(usize::from(*cpu)));
    let bound = added.and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    bound.map_err(|error| format!("bind the worker to processors {}: {error}", cpu_list(cpus)))
}

/// Sets what the kernel bounds of each process.
fn limit(isolation: &Isolation) -> Result<(), String> {
    bind_to_cpus(&isolation.cpus)?;
    let wanted = isolation.rlimits;
    let set = |limit: &str, resource: Resource, wanted: u64| {
        let set = match setrlimit(resource, wanted, wanted) {
            // To have more takes a privilege: then it is what this process may have.
            Err(Errno::EPERM) => getrlimit(resource).and_then(|(_, most)| {
                let wanted = wanted.min(most);
                setrlimit(resource, wanted, wanted)
            }),
            set => set,
        };
        set.map_err(|e| format!("bound {limit} of the worker: {e}"))
    };
    set("open files", Resource::RLIMIT_NOFILE, wanted.open_files)?;
    set("core files", Resource::RLIMIT_CORE, wanted.core_bytes)?;
    set("locked memory", Resource::RLIMIT_MEMLOCK, wanted.locked_bytes.unwrap_or(RLIM_INFINITY))?;
    if let Some(bytes) = wanted.stack_bytes {
        set("the stack", Resource::RLIMIT_STACK, bytes)?;
    }
    if isolation.user.is_some() {
        set("processes", Resource::RLIMIT_NPROC, wanted.processes)?;
    }
    Ok(())
}

/// Makes a directory that is the worker's user's, and nobody else's. One that is there already is from another worker of the
/// gang, or from an earlier try of this launch; what belongs to another user was put in its place.
fn own_directory(path: &Path, user: Option<u32>) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Held open: a link that takes its place in between leads nowhere.
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = File::from(open(path, flags, Mode::empty())?);
    let owner = directory.metadata()?.uid();
    if owner != geteuid().as_raw() && Some(owner) != user {
        return Err(io::Error::other(format!("user {owner} has put it there")));
    }
    directory.set_permissions(fs::Permissions::from_mode(0o700))?;
    let user = user.map(|uid| (Uid::from_raw(uid), Gid::from_raw(uid)));
    Ok(fchown(&directory, user.map(|(user, _)| user), user.map(|(_, group)| group))?)
}

/// Those of these paths that are covered by directories of the worker's own. The others need not be there, such as a directory of
/// scratch that is not mounted, for which no worker without scratch is to fail.
fn covered(shown: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    shown.iter().filter(|path| COMMON.iter().any(|common| path.starts_with(common)))
}

/// Puts directories of the worker's own in the place of those that every user of the host writes to.
fn private_tmp(task: &TaskDir, spec: &TaskSpec) -> Result<(), String> {
    let isolation = &spec.isolation;
    let failed =
        |path: &Path, error: &dyn std::fmt::Display| format!("make {} private: {error}", path.display());
    let shared = shared_memory_of(spec);
    bind(&shared, Path::new(SHARED_MEMORY)).map_err(|e| failed(Path::new(SHARED_MEMORY), &e))?;
    // What stays is held open first: its path leads elsewhere in a moment.
    let mut shown: Vec<(PathBuf, OwnedFd)> = Vec::new();
    for path in covered(&isolation.shown) {
        let held =
            open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(|e| failed(path, &e))?;
        shown.push((path.clone(), held));
    }
    for (tmp, own) in COMMON.map(Path::new).into_iter().zip(task.own_tmp()) {
        if !tmp.is_dir() {
            continue;
        }
        own_directory(&own, isolation.user).map_err(|e| failed(tmp, &e))?;
        bind(&own, tmp).map_err(|e| failed(tmp, &e))?;
        for (path, held) in shown.iter().filter(|(path, _)| path.starts_with(tmp)) {
            // The directories on the way are nobody's but root's.
            fs::DirBuilder::new().recursive(true).mode(0o711).create(path).map_err(|e| failed(path, &e))?;
            let from = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
            bind(&from, path).map_err(|e| failed(path, &e))?;
        }
    }
    Ok(())
}

/// Confines this process as its worker is, whose namespaces it has joined already.
pub(super) fn confine_joined(isolation: &Isolation) -> Result<(), String> {
    limit(isolation)?;
    become_user(isolation)?;
    if isolation.namespaces == Namespaces::User {
        set_no_new_privs().map_err(|error| format!("renounce new privileges: {error}"))?;
    }
    Ok(())
}

fn drop_privileges(isolation: &Isolation) -> Result<(), String> {
    become_user(isolation)?;
    if isolation.namespaces == Namespaces::User {
        // Inside another user namespace it is the agent's user again, and has no say over what was mounted.
        let (uid, gid) = (outside("uid_map")?, outside("gid_map")?);
        enter_user_namespace(CloneFlags::empty(), (uid, 0), (gid, 0))?;
        set_no_new_privs().map_err(|error| format!("renounce new privileges: {error}"))?;
    }
    Ok(())
}

fn become_user(isolation: &Isolation) -> Result<(), String> {
    let failed = |what: &'static str| move |error: Errno| format!("{what}: {error}");
    if let Some(uid) = isolation.user {
        for capability in CapabilitySet::all().iter() {
            // Those that this kernel does not know cannot be had.
            match remove_capability_from_bounding_set(capability) {
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(error) => return Err(format!("drop capabilities: {error}")),
            }
        }
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        setgroups(&[]).map_err(failed("leave supplementary groups"))?;
        setresgid(group, group, group).map_err(failed("become the worker's group"))?;
        // With the last user that is root go all capabilities.
        setresuid(user, user, user).map_err(failed("become the worker's user"))?;
        set_no_new_privs().map_err(failed("renounce new privileges"))?;
    }
    Ok(())
}

/// What the only user or group of this namespace is outside.
fn outside(map: &str) -> Result<u32, String> {
    let path = format!("/proc/self/{map}");
    let text = fs::read_to_string(&path).map_err(|e| format!("read {path}: {e}"))?;
    let number = text.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok());
    number.ok_or_else(|| format!("{path} is empty"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_covered_has_to_be_there() {
        let shown = ["/local/scratch", "/tmp/state", "/var/tmp/scratch", "/tmpfs"].map(PathBuf::from);
        let found: Vec<&PathBuf> = covered(&shown).collect();
        assert_eq!(found, [&shown[1], &shown[2]]);
    }

    #[test]
    fn shared_memory_that_nobody_has_loses_its_name_and_is_removed_later() {
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        for name in ["muster_1_used", "muster_1_left", "muster_1_half.old", "muster_2_left"] {
            fs::create_dir(path(name)).unwrap();
        }
        fs::write(path("muster_1_left").join("file"), "x").unwrap();
        // To open it for reading would take for ever.
        nix::unistd::mkfifo(&path("muster_1_fifo"), Mode::S_IRWXU).unwrap();
        let used = File::open(path("muster_1_used")).unwrap();
        used.lock_shared().unwrap();
        let mut unused = unused_shared_memory(base.path(), "muster_1_");
        unused.sort_unstable();
        assert_eq!(unused, [path("muster_1_half.old"), path("muster_1_left.old")]);
        assert!(unused[1].join("file").exists());
        assert!(path("muster_1_used").exists() && path("muster_2_left").exists());
    }

    #[test]
    fn a_directory_that_another_user_has_put_there_is_not_taken() {
        let base = tempfile::tempdir().unwrap();
        let (own, link) = (base.path().join("own"), base.path().join("link"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        own_directory(&own, None).unwrap();
        // Again for the next worker of the gang, whatever its mode has become.
        fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
        own_directory(&own, None).unwrap();
        assert_eq!(mode(&own), 0o700);
        std::os::unix::fs::symlink(&own, &link).unwrap();
        own_directory(&link, None).unwrap_err();
        if !geteuid().is_root() {
            return;
        }
        let (worker, other) = (1_600_000_001, 1_600_000_002);
        own_directory(&own, Some(worker)).unwrap();
        own_directory(&own, Some(worker)).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().uid(), worker);
        let refused = own_directory(&own, Some(other)).unwrap_err();
        assert!(refused.to_string().contains("user 1600000001 has put it there"), "{refused}");
        assert_eq!(fs::metadata(&own).unwrap().uid(), worker);
    }
}
