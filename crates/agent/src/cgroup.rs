//! A control group (version 2) per worker, where the agent may make one.
//!
//! It buys two things: `cgroup.kill` ends everything of a worker in one write, forks and daemons
//! included, and the memory and CPU that were promised become limits where those controllers are
//! delegated. Without it the shim still finds every process as their subreaper; so its absence is
//! recorded and no error.
//!
//! **Invariant:** only groups that this module made are ever killed or removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One worker's group.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

/// The group this process is in, as a folder; where workers' groups are made.
///
/// # Errors
/// A sentence on why there is none.
pub fn own() -> Result<PathBuf, String> {
    let membership = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
    locate(&membership, &mounts)
}

fn locate(membership: &str, mounts: &str) -> Result<PathBuf, String> {
    let group = membership
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .ok_or("this process is in no version 2 control group")?;
    // mountinfo: id parent major:minor root mount-point options ... - type source super-options
    let mount = mounts
        .lines()
        .find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            after.starts_with("cgroup2 ").then(|| before.split(' ').nth(4))?
        })
        .ok_or("no version 2 control groups are mounted")?;
    if group.split('/').any(|part| part == "..") {
        return Err("the control group lies outside of this namespace".to_owned());
    }
    Ok(Path::new(mount).join(group))
}

impl Cgroup {
    /// Makes a group named `name` below `parent`, with limits where the controllers are there.
    ///
    /// # Errors
    /// When it cannot be made, for example because the parent is not delegated to this user.
    pub fn create(parent: &Path, name: &str, memory_bytes: u64, cpu_milli: u64) -> io::Result<Cgroup> {
        let path = parent.join(name);
        fs::create_dir(&path)?;
        let group = Cgroup { path };
        if memory_bytes > 0 {
            group.limit("memory.max", &memory_bytes.to_string());
        }
        if cpu_milli > 0 {
            // A share, not a ceiling: 100 is the weight of an unlimited sibling; 1 CPU = 10.
            group.limit("cpu.weight", &(cpu_milli / 100).clamp(1, 10_000).to_string());
        }
        Ok(group)
    }

    /// A group that an earlier process made.
    #[must_use]
    pub fn at(path: PathBuf) -> Cgroup {
        Cgroup { path }
    }

    fn limit(&self, file: &str, value: &str) {
        let path = self.path.join(file);
        // Without the controller there is no file, and the promise stays accounting only.
        if path.exists()
            && let Err(error) = fs::write(&path, value)
        {
            tracing::warn!(path = %path.display(), %error, "a limit could not be set");
        }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Kills everything in it.
    pub fn kill(&self) {
        // Absent before Linux 5.14; the other ways of the caller remain.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Processes in it; empty when it cannot be read.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Removes the empty group; says whether it is gone.
    #[must_use]
    pub fn remove(&self) -> bool {
        match fs::remove_dir(&self.path) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// Puts the calling process into the group.
///
/// # Errors
/// When the kernel refuses.
pub fn join(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_found_below_its_mount() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = locate("0::/system.slice/muster.service\n", mounts).unwrap();
        assert_eq!(found, Path::new("/sys/fs/cgroup/system.slice/muster.service"));
        assert_eq!(locate("9:cpu:/\n0::/\n", mounts).unwrap(), Path::new("/sys/fs/cgroup/"));
        assert!(locate("9:cpu:/x\n", mounts).is_err());
        assert!(locate("0::/x\n", "30 23 0:26 / /proc rw - proc proc rw\n").is_err());
        assert!(locate("0::/../x\n", mounts).is_err());
    }
}
