//! A control group (version 2) per worker, where the agent may make one.
//!
//! It buys two things: `cgroup.kill` ends everything of a worker in one write, forks and daemons
//! included, and the memory and CPU that were promised become limits where those controllers are
//! delegated. Without it the shim still finds every process as their subreaper, and looks at their memory
//! itself; so its absence is recorded and no error.
//!
//! **Invariant:** only groups that this module made are ever killed or removed.

use crate::process::cores::cpu_list;
use crate::process::devices::CharacterDevices;
use crate::process::disk_io::GroupIo;
use crate::settings::ControlGroups;
use muster_device_filter::Character;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The kernel's usual period.
const CPU_PERIOD_US: u64 = 100_000;

/// What a group is held to; 0 for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Memory in bytes, without swap.
    pub memory_bytes: u64,
    /// Processor time that it has a right to, in thousandths of one.
    pub cpu_milli: u64,
    /// The most of it.
    pub cpu_max_milli: u64,
}

/// One worker's group.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

/// The group this process is in, as a directory; where workers' groups are made.
///
/// # Errors
/// A sentence on why there is none.
pub fn own() -> Result<PathBuf, String> {
    let membership = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
    locate(&membership, &mounts)
}

/// Where workers' groups are made, by the configuration.
///
/// # Errors
/// A sentence on why there are none.
pub fn parent(groups: &ControlGroups) -> Result<PathBuf, String> {
    match groups {
        ControlGroups::Off => Err("control groups are off".to_owned()),
        ControlGroups::Below(parent) => Ok(parent.clone()),
        ControlGroups::Auto => own(),
    }
}

/// Whether a group below `parent` can be held to devices.
///
/// # Errors
/// A sentence on why not.
pub fn try_filter(parent: &Path) -> Result<(), String> {
    let name = format!("muster_try_{}", std::process::id());
    let group = Cgroup::create_unlimited(parent, &name)
        .map_err(|e| format!("{}: {e}", parent.join(name).display()))?;
    let outcome = group.allow_only(&[]);
    let _ = group.remove();
    outcome.map_err(|e| format!("load a program of devices: {e}"))
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
    // An agent that was started again by itself is where the one before moved to.
    let group = Path::new(group);
    let group = if group.ends_with(AGENT_GROUP) { group.parent().unwrap_or(group) } else { group };
    Ok(Path::new(mount).join(group))
}

/// The agent's own group where it had to leave that group for those of workers.
const AGENT_GROUP: &str = "muster-agent";
/// What workers are limited with.
const CONTROLLERS: [&str; 5] = ["memory", "cpu", "pids", "cpuset", "io"];
/// The largest that the kernel takes.
const WEIGHT_MAX: &str = "10000";
/// Processes and threads of one worker: far above any program, far below what a host has.
const PIDS_MAX: u64 = 65_536;

/// Gives the groups below `parent` those of its controllers that limit workers. A group that has processes
/// itself can give none, so an agent that is alone in it moves into one below.
///
/// # Errors
/// A sentence on why there will be no limits.
pub fn delegate(parent: &Path) -> Result<(), String> {
    let words = |file: &str| {
        let text = fs::read_to_string(parent.join(file)).map_err(|e| format!("{file}: {e}"))?;
        Ok::<Vec<String>, String>(text.split_ascii_whitespace().map(str::to_owned).collect())
    };
    let (there, given) = (words("cgroup.controllers")?, words("cgroup.subtree_control")?);
    let has = |words: &[String], name: &str| words.iter().any(|word| word == name);
    let lacking = CONTROLLERS.iter().filter(|name| has(&there, name) && !has(&given, name));
    let wanted: Vec<String> = lacking.map(|name| format!("+{name}")).collect();
    if !has(&there, "memory") {
        return Err(format!("{} has no memory controller", parent.display()));
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let control = parent.join("cgroup.subtree_control");
    let Err(first) = fs::write(&control, wanted.join(" ")) else { return Ok(()) };
    let own = std::process::id().to_string();
    if words("cgroup.procs")? != [own.clone()] {
        return Err(format!("{}: {first}; other processes than this agent are in it", control.display()));
    }
    let leaf = parent.join(AGENT_GROUP);
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(format!("make {}: {error}", leaf.display()));
        }
        _ => {}
    }
    fs::write(leaf.join("cgroup.procs"), &own).map_err(|e| format!("move to {}: {e}", leaf.display()))?;
    fs::write(&control, wanted.join(" ")).map_err(|error| {
        // Back to where the supervisor put this process.
        let _ = fs::write(parent.join("cgroup.procs"), &own);
        format!("{}: {error}", control.display())
    })
}

/// Gives an agent that moved into a separate group, and its shims with it, the processor and the disks before any worker has them.
pub fn prefer_agent(parent: &Path) {
    let (leaf, own) = (parent.join(AGENT_GROUP), std::process::id().to_string());
    let is_in =
        fs::read_to_string(leaf.join("cgroup.procs")).is_ok_and(|text| text.lines().any(|pid| pid == own));
    if is_in {
        let group = Cgroup::at(leaf);
        group.limit("cpu.weight", WEIGHT_MAX);
        group.limit("io.weight", WEIGHT_MAX);
    }
}

/// Whether groups below `parent` have the controller of disks.
pub fn limits_disks(parent: &Path) -> bool {
    let given = fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap_or_default();
    given.split_ascii_whitespace().any(|name| name == "io")
}

impl Cgroup {
    /// Makes a group named `name` below `parent`, with limits where the controllers are there.
    ///
    /// # Errors
    /// When it cannot be made, for example because the parent is not delegated to this user.
    pub fn create(parent: &Path, name: &str, limits: Limits) -> io::Result<Cgroup> {
        let group = Cgroup::create_unlimited(parent, name)?;
        group.limit_to(limits);
        Ok(group)
    }

    /// The same without limits of memory and processor: for a worker that is not known yet.
    ///
    /// # Errors
    /// As for the other.
    pub fn create_unlimited(parent: &Path, name: &str) -> io::Result<Cgroup> {
        let path = parent.join(name);
        fs::create_dir(&path)?;
        let group = Cgroup { path };
        group.limit("pids.max", &PIDS_MAX.to_string());
        Ok(group)
    }

    /// Sets the limits, where the controllers are there.
    pub fn limit_to(&self, limits: Limits) {
        let Limits { memory_bytes, cpu_milli, cpu_max_milli } = limits;
        if memory_bytes > 0 {
            self.limit("memory.max", &memory_bytes.to_string());
            // What it was promised is memory: swap would be space on top of it.
            self.limit("memory.swap.max", "0");
            // A worker that has lost one of its processes is not left half alive.
            self.limit("memory.oom.group", "1");
        }
        if cpu_milli > 0 {
            // A share, not a ceiling: 100 is the weight of an unlimited sibling; 1 CPU = 10.
            self.limit("cpu.weight", &(cpu_milli / 100).clamp(1, 10_000).to_string());
        }
        if cpu_max_milli > 0 {
            // Microseconds of processor time in each period.
            self.limit("cpu.max", &format!("{} {CPU_PERIOD_US}", cpu_max_milli * CPU_PERIOD_US / 1_000));
        }
    }

    /// Sets what it may have of disks, where the controller is there.
    pub fn limit_io(&self, io: &GroupIo) {
        if io.weight > 0 {
            self.limit("io.weight", &io.weight.to_string());
        }
        // One write for each disk: the kernel takes one line at a time.
        for disk in &io.disks {
            self.limit("io.max", &disk.line());
        }
    }

    /// Keeps its processes on these processors, where the controller is there; empty for any.
    pub fn bind_to(&self, cpus: &[u16]) {
        if !cpus.is_empty() {
            self.limit("cpuset.cpus", &cpu_list(cpus));
        }
    }

    /// Lets its processes open these devices and no others.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn allow_only(&self, devices: &[CharacterDevices]) -> io::Result<()> {
        let devices: Vec<Character> =
            devices.iter().map(|device| Character { major: device.major, minor: device.minor }).collect();
        muster_device_filter::allow_only(&self.path, &devices)
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

    /// Whether the kernel holds it to its memory.
    #[must_use]
    pub fn limits_memory(&self) -> bool {
        fs::read_to_string(self.path.join("memory.max")).is_ok_and(|limit| limit.trim() != "max")
    }

    /// Whether the kernel has killed one of its processes for want of memory.
    #[must_use]
    pub fn ran_out_of_memory(&self) -> bool {
        let text = fs::read_to_string(self.path.join("memory.events")).unwrap_or_default();
        oom_kills(&text) > 0
    }

    /// The directory.
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

/// Removes the groups below `parent` with such names in which nothing is: a shim that was killed has left its own. The
/// kernel keeps those that are in use.
pub(crate) fn remove_unused(parent: &Path, is_left: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(&is_left) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Of the group that a container sees as its own, in both versions of hierarchies: 0 where that is not said.
pub(crate) fn container_oom_kills(root: &Path) -> u64 {
    let files = ["memory.events", "memory/memory.oom_control"];
    let told = files.iter().find_map(|file| fs::read_to_string(root.join(file)).ok());
    told.map_or(0, |text| oom_kills(&text))
}

fn oom_kills(events: &str) -> u64 {
    let count = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse().ok();
    events.lines().find_map(count).unwrap_or(0)
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
    use crate::process::disk_io::GroupDisk;

    #[test]
    fn the_group_is_found_below_its_mount() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = locate("0::/system.slice/muster.service\n", mounts).unwrap();
        assert_eq!(found, Path::new("/sys/fs/cgroup/system.slice/muster.service"));
        assert_eq!(locate("9:cpu:/\n0::/\n", mounts).unwrap(), Path::new("/sys/fs/cgroup/"));
        assert!(locate("9:cpu:/x\n", mounts).is_err());
        assert!(locate("0::/x\n", "30 23 0:26 / /proc rw - proc proc rw\n").is_err());
        assert!(locate("0::/../x\n", mounts).is_err());
        let moved = locate("0::/system.slice/muster.service/muster-agent\n", mounts).unwrap();
        assert_eq!(moved, Path::new("/sys/fs/cgroup/system.slice/muster.service"));
    }

    #[test]
    fn killed_for_want_of_memory_is_told_from_other_events() {
        assert_eq!(oom_kills("low 0\nhigh 3\nmax 7\noom 2\noom_kill 2\noom_group_kill 1\n"), 2);
        assert_eq!(oom_kills("oom 9\noom_kill 0\n"), 0);
        assert_eq!(oom_kills(""), 0);
        // As version 1 has it, in a container.
        let root = tempfile::tempdir().unwrap();
        assert_eq!(container_oom_kills(root.path()), 0);
        fs::create_dir(root.path().join("memory")).unwrap();
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        fs::write(root.path().join("memory/memory.oom_control"), text).unwrap();
        assert_eq!(container_oom_kills(root.path()), 3);
    }

    #[test]
    fn controllers_are_asked_for_once_and_only_where_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
        let control = || fs::read_to_string(dir.path().join("cgroup.subtree_control")).unwrap();
        write("cgroup.controllers", "cpuset cpu\n");
        write("cgroup.subtree_control", "");
        assert!(delegate(dir.path()).unwrap_err().contains("no memory controller"));
        write("cgroup.controllers", "cpuset cpu io memory pids\n");
        write("cgroup.subtree_control", "cpu\n");
        delegate(dir.path()).unwrap();
        assert_eq!(control(), "+memory +pids +cpuset +io");
        assert!(!limits_disks(&dir.path().join("nowhere")));
        write("cgroup.subtree_control", "cpu cpuset memory pids io\n");
        assert!(limits_disks(dir.path()));
        delegate(dir.path()).unwrap();
        assert_eq!(control(), "cpu cpuset memory pids io\n");
        assert!(delegate(&dir.path().join("nowhere")).is_err());
        // The agent's own group, once it is in it.
        let leaf = dir.path().join(AGENT_GROUP);
        fs::create_dir(&leaf).unwrap();
        fs::write(leaf.join("cpu.weight"), "100").unwrap();
        let weight = |procs: &str| {
            fs::write(leaf.join("cgroup.procs"), procs).unwrap();
            prefer_agent(dir.path());
            fs::read_to_string(leaf.join("cpu.weight")).unwrap()
        };
        assert_eq!(weight("1\n"), "100");
        assert_eq!(weight(&format!("1\n{}\n", std::process::id())), WEIGHT_MAX);
        // What a worker's group is made with, and what it says.
        let group = Cgroup::create(dir.path(), "worker", Limits::default()).unwrap();
        assert!(!group.limits_memory() && !group.ran_out_of_memory());
        for file in ["memory.max", "memory.swap.max", "memory.oom.group", "cpu.weight", "cpu.max"] {
            fs::write(group.path().join(file), "max\n").unwrap();
        }
        assert!(!group.limits_memory());
        let said = |file: &str| fs::read_to_string(group.path().join(file)).unwrap();
        group.limit_to(Limits { memory_bytes: 1 << 20, cpu_milli: 2_500, cpu_max_milli: 0 });
        assert_eq!([said("memory.max"), said("memory.swap.max"), said("cpu.weight")], ["1048576", "0", "25"]);
        assert_eq!(said("cpu.max"), "max\n");
        fs::write(group.path().join("cpuset.cpus"), "\n").unwrap();
        group.bind_to(&[]);
        assert_eq!(said("cpuset.cpus"), "\n");
        group.bind_to(&[0, 1, 2, 8]);
        assert_eq!(said("cpuset.cpus"), "0-2,8");
        let disk = GroupDisk { major: 8, minor: 0, read_bytes_max: 1_000, write_bytes_max: 0 };
        let io = GroupIo { weight: 50, disks: vec![disk] };
        // Without the controller there is no file.
        group.limit_io(&io);
        assert!(!group.path().join("io.max").exists());
        for file in ["io.weight", "io.max"] {
            fs::write(group.path().join(file), "\n").unwrap();
        }
        group.limit_io(&GroupIo::default());
        assert_eq!([said("io.weight"), said("io.max")], ["\n", "\n"]);
        group.limit_io(&io);
        assert_eq!([said("io.weight"), said("io.max")], ["50", "8:0 rbps=1000 wbps=max"]);
        group.limit_to(Limits { memory_bytes: 0, cpu_milli: 2_500, cpu_max_milli: 2_500 });
        assert_eq!(said("cpu.max"), "250000 100000");
        fs::write(group.path().join("memory.max"), "1048576\n").unwrap();
        fs::write(group.path().join("memory.events"), "oom_kill 1\n").unwrap();
        assert!(group.limits_memory() && group.ran_out_of_memory());
    }
}
