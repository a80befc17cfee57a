//! The device files of a host's accelerators: which of them belongs to which device number, and what a worker is to find
//! of them.
//!
//! | accelerators | which file is which device's | shared by all of them |
//! |---|---|---|
//! | NVIDIA | `/proc/driver/nvidia/gpus`, in the order of the PCI bus | `nvidiactl`, `nvidia-uvm`, `nvidia-uvm-tools`, `nvidia-modeset` |
//! | TPU, driver of the kernel | the number in `/dev/accel*` | |
//! | TPU, driven by programs | the IOMMU group of each chip on the PCI bus: `/dev/vfio/*` | `vfio/vfio` |
//! | AMD | the topology of the compute driver (KFD), which knows a `/dev/dri/renderD*` for each device | `kfd` |
//!
//! **Invariant:** a file is a worker's only if it is known to be: of a host whose list and files disagree, none is.

use crate::contract::Family;
use crate::discovery;
use crate::disk::durable;
use muster_types::DeviceSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Character devices that a worker may open, as the kernel numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CharacterDevices {
    /// The driver's number.
    pub major: u32,
    /// The device's; none for all of the driver's.
    pub minor: Option<u32>,
}

/// What every program may open: `null`, `zero`, `full`, `random`, `urandom`, `tty`, `ptmx`, and its terminals.
const EVERYBODY: [(u32, Option<u32>); 8] = [
    (1, Some(3)),
    (1, Some(5)),
    (1, Some(7)),
    (1, Some(8)),
    (1, Some(9)),
    (5, Some(0)),
    (5, Some(2)),
    (136, None),
];

/// Files and directories of `/dev` that connect the hosts of a gang. Every worker may open them, because they give access
/// only to its own memory.
const FABRIC: [&str; 6] = ["infiniband", "gdrdrv", "xpmem", "knem", "nvidia-caps-imex-channels", "hfi1_0"];

/// Files that belong to every device of a host, for those that have one.
const SHARED: [&str; 6] =
    ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "kfd", "vfio/vfio"];

/// How many files of a directory are looked at.
const FILES_MAX: usize = 4_096;

/// The accelerators' files of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFiles {
    dev: PathBuf,
    family: Family,
    /// Those of devices, and those that all devices share.
    all: Vec<PathBuf>,
    /// Those that divide devices and set up the switches between them: no worker's.
    control: Vec<PathBuf>,
    /// The file of each device number; else why they cannot be told apart.
    by_number: Result<Vec<PathBuf>, String>,
    /// What an operator adds to what everybody may open.
    more: Vec<PathBuf>,
}

impl Default for DeviceFiles {
    /// A host without accelerators.
    fn default() -> DeviceFiles {
        let (dev, all, control, more) = Default::default();
        DeviceFiles { dev, family: Family::Other, all, control, by_number: Ok(Vec::new()), more }
    }
}

impl DeviceFiles {
    /// Those below `root`, which is `/` but for an agent that has its host elsewhere, of a host that has `count` devices of a
    /// family. `more` are files that every worker may open in addition.
    #[must_use]
    pub fn find(root: &Path, family: Family, count: u16, more: &[PathBuf]) -> DeviceFiles {
        let dev = root.join("dev");
        let (all, control) = (accelerator_files(&dev), control_files(&dev));
        let by_number = if count == 0 { Ok(Vec::new()) } else { own_files(root, family, count, &all) };
        DeviceFiles { dev, family, all, control, by_number, more: more.to_vec() }
    }

    /// Why it is not known which file is which device's.
    #[must_use]
    pub fn why_not_told_apart(&self) -> Option<&str> {
        self.by_number.as_ref().err().map(String::as_str)
    }

    /// Whether the driver's library passes by a file that opens nothing. AMD's ends with an error instead, unless it is
    /// the control group that refuses (`hsakmt`, `topology_sysfs_check_node_supported`).
    #[must_use]
    pub fn can_be_hidden(&self) -> bool {
        self.family != Family::Amd
    }

    /// What a worker that sees these devices must not open.
    #[must_use]
    pub fn hidden_from(&self, devices: DeviceSet) -> Vec<PathBuf> {
        let mut hidden = self.control.clone();
        if devices.is_empty() {
            hidden.extend(self.all.iter().cloned());
        } else if self.can_be_hidden() && self.by_number.is_ok() {
            let shown: BTreeSet<PathBuf> = self.shown_to(devices).into_iter().collect();
            hidden.extend(self.all.iter().filter(|file| !shown.contains(*file)).cloned());
        }
        hidden
    }

    /// What it may open, of all files of the host. Files that are not there now are not allowed later.
    #[must_use]
    pub fn allowed(&self, devices: DeviceSet) -> Vec<CharacterDevices> {
        let mut allowed: Vec<CharacterDevices> = EVERYBODY
            .iter()
            .map(|(major, minor)| CharacterDevices { major: *major, minor: *minor })
            .collect();
        let mut files: Vec<PathBuf> = FABRIC.iter().map(|name| self.dev.join(name)).collect();
        files.extend(self.more.iter().cloned());
        if !devices.is_empty() {
            files.extend(self.shown_to(devices));
        }
        for file in files {
            add(&file, &mut allowed);
        }
        allowed.sort_unstable();
        allowed.dedup();
        allowed.truncate(muster_device_filter::DEVICES_MAX);
        allowed
    }

    /// The accelerators' files for a worker that has some of the devices.
    fn shown_to(&self, devices: DeviceSet) -> Vec<PathBuf> {
        let Ok(numbered) = &self.by_number else { return self.all.clone() };
        let has = |number: usize| devices.iter().any(|device| usize::from(device) == number);
        let own = numbered.iter().enumerate().filter(|(number, _)| has(*number));
        let shared = SHARED.iter().map(|name| self.dev.join(name));
        shared.chain(own.map(|(_, file)| file.clone())).collect()
    }
}

/// The device numbers of a file, or of all files of a directory.
fn add(path: &Path, to: &mut Vec<CharacterDevices>) {
    let Ok(found) = std::fs::metadata(path) else { return };
    if found.is_dir() {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let files = entries.filter_map(|entry| std::fs::metadata(entry.path()).ok());
        to.extend(files.filter_map(|found| numbers(&found)));
    } else {
        to.extend(numbers(&found));
    }
}

fn numbers(found: &std::fs::Metadata) -> Option<CharacterDevices> {
    let device = found.rdev();
    // The numbers have 32 bits each at most, whatever type the call has for them.
    let part = |value: u64| u32::try_from(value).ok();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    found.file_type().is_char_device().then_some(())?;
    Some(CharacterDevices { major: part(major)?, minor: Some(part(minor)?) })
}

/// The file of each device, by its number.
fn own_files(root: &Path, family: Family, count: u16, all: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let files = match family {
        Family::Nvidia => nvidia_files(root),
        Family::Tpu => tpu_files(root),
        Family::Amd => amd_files(root),
        Family::Other => Err("no driver of this type of accelerator is known".to_owned()),
    }?;
    if files.len() != usize::from(count) {
        return Err(format!("the node has {count} devices, and the driver lists {}", files.len()));
    }
    if files.iter().collect::<BTreeSet<_>>().len() != files.len() {
        return Err("several devices have one file".to_owned());
    }
    match files.iter().find(|file| !all.contains(file)) {
        Some(missing) => Err(format!("there is no {}", missing.display())),
        None => Ok(files),
    }
}

fn text(path: &Path) -> Option<String> {
    let bytes = durable::read_bounded(path, 64 << 10).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn entries(directory: &Path) -> impl Iterator<Item = std::fs::DirEntry> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().take(FILES_MAX)
}

/// The file of each of NVIDIA's devices, in the order of the PCI bus.
fn nvidia_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    if discovery::has_instances(root) {
        return Err("devices are divided into instances (MIG)".to_owned());
    }
    let mut buses: Vec<PathBuf> =
        entries(&root.join("proc/driver/nvidia/gpus")).map(|entry| entry.path()).collect();
    buses.sort_unstable();
    let file = |bus: &PathBuf| {
        let text = text(&bus.join("information"))?;
        let minor = text.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
        Some(root.join(format!("dev/nvidia{}", minor.trim().parse::<u32>().ok()?)))
    };
    buses
        .iter()
        .map(|bus| file(bus).ok_or_else(|| format!("{} names no device file", bus.display())))
        .collect()
}

/// The file of each TPU chip. `libtpu` counts from 0; where chips have numbers of other kinds, all of them have to agree.
fn tpu_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut numbers: Vec<u32> = entries(&root.join("dev"))
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("accel")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    if !numbers.is_empty() {
        if numbers.iter().zip(0..).any(|(number, position)| *number != position) {
            return Err("numbers are left out among /dev/accel*".to_owned());
        }
        return Ok(numbers.iter().map(|number| root.join(format!("dev/accel{number}"))).collect());
    }
    let mut chips: Vec<PathBuf> =
        entries(&root.join("sys/bus/pci/devices")).map(|entry| entry.path()).collect();
    chips.retain(|device| discovery::is_tpu(device));
    chips.sort_unstable();
    let group = |chip: &PathBuf| {
        let link = std::fs::read_link(chip.join("iommu_group")).ok()?;
        link.file_name()?.to_str()?.parse::<u32>().ok()
    };
    let groups: Option<Vec<u32>> = chips.iter().map(group).collect();
    let groups = groups.ok_or("a TPU chip has no IOMMU group")?;
    // Whether chips are counted by the bus or by the group is not documented.
    if !groups.is_sorted() {
        return Err("the IOMMU groups of the TPU chips are not in the order of the PCI bus".to_owned());
    }
    Ok(groups.iter().map(|group| root.join(format!("dev/vfio/{group}"))).collect())
}

/// The file of each of AMD's devices, in the order of the compute driver's topology, which is that of `ROCR_VISIBLE_DEVICES`.
/// A partition of a device is a device there.
fn amd_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let topology = root.join("sys/class/kfd/kfd/topology/nodes");
    let mut nodes: Vec<u32> =
        entries(&topology).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    nodes.sort_unstable();
    let mut files = Vec::new();
    for node in nodes {
        let directory = topology.join(node.to_string());
        let id = text(&directory.join("gpu_id")).ok_or_else(|| format!("node {node} cannot be read"))?;
        // Processors are in the topology too.
        if id.trim() == "0" {
            continue;
        }
        let properties = text(&directory.join("properties")).unwrap_or_default();
        let minor = properties.lines().find_map(|line| line.strip_prefix("drm_render_minor "));
        let minor: u32 = minor
            .and_then(|minor| minor.trim().parse().ok())
            .filter(|minor| *minor > 0)
            .ok_or_else(|| format!("node {node} of the compute driver names no device file"))?;
        files.push(root.join(format!("dev/dri/renderD{minor}")));
    }
    Ok(files)
}

fn numbered(name: &str, prefix: &str) -> bool {
    let digits = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    name.strip_prefix(prefix).is_some_and(digits)
}

/// The files of a directory with such names.
fn files_of(directory: &Path, is_one: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    entries(directory)
        .filter(|entry| entry.file_name().to_str().is_some_and(is_one))
        .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir() && !kind.is_symlink()))
        .map(|entry| entry.path())
        .collect()
}

/// Every file of an accelerator in `dev`, and those that all of them share.
fn accelerator_files(dev: &Path) -> Vec<PathBuf> {
    let mut found =
        files_of(dev, &|name| numbered(name, "nvidia") || numbered(name, "accel") || SHARED.contains(&name));
    // Chips of TPUs that a program drives itself have the number of a group, or of a device, there.
    found.extend(files_of(&dev.join("vfio"), &|name| numbered(name, "") || name == "vfio"));
    found.extend(files_of(&dev.join("vfio/devices"), &|name| numbered(name, "vfio")));
    found.extend(files_of(&dev.join("accel"), &|name| numbered(name, "accel")));
    // AMD's devices, and the displays of others.
    found.extend(files_of(&dev.join("dri"), &|name| numbered(name, "renderD") || numbered(name, "card")));
    found.sort_unstable();
    found
}

/// The files by which NVIDIA's devices are divided into instances and their switches set up.
fn control_files(dev: &Path) -> Vec<PathBuf> {
    let mut found = files_of(dev, &|name| numbered(name, "nvidia-nvswitch") || name == "nvidia-nvswitchctl");
    found.extend(files_of(&dev.join("nvidia-caps"), &|name| numbered(name, "nvidia-cap")));
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn link(root: &Path, path: &str, to: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, path).unwrap();
    }

    fn names(files: &[PathBuf]) -> Vec<String> {
        files.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect()
    }

    fn set(devices: &[u32]) -> DeviceSet {
        DeviceSet(devices.iter().map(|number| 1 << number).sum())
    }

    /// The accelerators' files that a worker with these devices finds closed.
    fn closed(files: &DeviceFiles, devices: &[u32]) -> Vec<String> {
        names(&files.hidden_from(set(devices)))
    }

    /// Three devices whose files have other numbers than they have.
    fn host() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (bus, minor) in [("0000:3b:00.0", 2), ("0000:86:00.0", 0), ("0000:af:00.0", 1)] {
            let text = format!("Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1\nDevice Minor: \t {minor}\n");
            put(root.path(), &format!("proc/driver/nvidia/gpus/{bus}/information"), &text);
        }
        let dev = ["nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null", "nvidiax", "sda"];
        let control = ["nvidia-caps/nvidia-cap1", "nvidia-nvswitchctl", "nvidia-nvswitch0"];
        for name in dev.iter().chain(&control).chain(&["dri/renderD128", "dri/by-path"]) {
            put(root.path(), &format!("dev/{name}"), "");
        }
        root
    }

    fn nvidia(root: &Path, count: u16) -> DeviceFiles {
        DeviceFiles::find(root, Family::Nvidia, count, &[])
    }

    #[test]
    fn nvidia_files_are_found_by_the_bus_and_hidden_from_who_has_others() {
        let root = host();
        let files = nvidia(root.path(), 3);
        assert_eq!(files.why_not_told_apart(), None);
        let control = ["nvidia-cap1", "nvidia-nvswitch0", "nvidia-nvswitchctl", "renderD128"];
        for (devices, others) in
            [(&[0][..], &["nvidia0", "nvidia1"][..]), (&[1, 2], &["nvidia2"]), (&[0, 1, 2], &[])]
        {
            assert_eq!(closed(&files, devices), [&control, others].concat(), "{devices:?}");
        }
        let all = ["nvidia-uvm", "nvidia0", "nvidia1", "nvidia2", "nvidiactl"];
        assert_eq!(closed(&files, &[]), [&control[..], &all].concat());
    }

    #[test]
    fn a_list_that_disagrees_tells_nothing_apart() {
        let root = host();
        let why = |files: &DeviceFiles| files.why_not_told_apart().unwrap().to_owned();
        assert!(why(&nvidia(root.path(), 4)).contains("4 devices, and the driver lists 3"));
        std::fs::remove_file(root.path().join("dev/nvidia1")).unwrap();
        let files = nvidia(root.path(), 3);
        assert!(why(&files).ends_with("dev/nvidia1"), "{}", why(&files));
        // Of the devices themselves nothing is hidden then.
        assert_eq!(closed(&files, &[0]), ["nvidia-cap1", "nvidia-nvswitch0", "nvidia-nvswitchctl"]);
        assert!(why(&DeviceFiles::find(root.path(), Family::Other, 3, &[])).contains("no driver"));
        // A host without accelerators has nothing to tell apart.
        assert_eq!(nvidia(Path::new("/nowhere"), 0).why_not_told_apart(), None);
    }

    #[test]
    fn instances_of_a_device_are_not_told_apart() {
        let root = host();
        put(root.path(), "proc/driver/nvidia/capabilities/gpu0/mig/gi3/access", "DeviceFileMinor: 21\n");
        let files = nvidia(root.path(), 3);
        assert!(files.why_not_told_apart().unwrap().contains("MIG"));
    }

    #[test]
    fn tpu_chips_with_a_driver_are_told_apart_by_their_numbers() {
        let root = tempfile::tempdir().unwrap();
        // More than nine, whose order by name is another.
        for chip in 0..12 {
            put(root.path(), &format!("dev/accel{chip}"), "");
        }
        let tpu = |count| DeviceFiles::find(root.path(), Family::Tpu, count, &[]);
        let files = tpu(12);
        assert_eq!(files.why_not_told_apart(), None);
        let hidden = closed(&files, &[2, 11]);
        assert_eq!(hidden.len(), 10);
        assert!(!hidden.contains(&"accel2".to_owned()) && !hidden.contains(&"accel11".to_owned()));
        assert!(tpu(8).why_not_told_apart().is_some());
        std::fs::remove_file(root.path().join("dev/accel3")).unwrap();
        assert!(tpu(11).why_not_told_apart().unwrap().contains("left out"));
    }

    /// A host whose chips have these groups, in the order of the bus, and a network card of the same maker.
    fn vfio_host(groups: &[u32]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let device = |bus: &str, id: &str, group: u32| {
            let at = format!("sys/bus/pci/devices/{bus}");
            put(root.path(), &format!("{at}/vendor"), "0x1ae0\n");
            put(root.path(), &format!("{at}/device"), id);
            link(root.path(), &format!("{at}/iommu_group"), &format!("../../../kernel/iommu_groups/{group}"));
        };
        device("0000:00:03.0", "0x0042\n", 9);
        for (position, group) in (4..).zip(groups) {
            device(&format!("0000:00:0{position}.0"), "0x006f\n", *group);
            put(root.path(), &format!("dev/vfio/{group}"), "");
        }
        put(root.path(), "dev/vfio/vfio", "");
        // A disk that a program drives itself.
        put(root.path(), "dev/vfio/40", "");
        root
    }

    #[test]
    fn tpu_chips_that_programs_drive_are_told_apart_by_their_groups() {
        let tpu = |root: &Path, count| DeviceFiles::find(root, Family::Tpu, count, &[]);
        let root = vfio_host(&[0, 2, 3, 11]);
        let files = tpu(root.path(), 4);
        assert_eq!(files.why_not_told_apart(), None);
        assert_eq!(closed(&files, &[1, 3]), ["0", "3", "40"]);
        assert_eq!(closed(&files, &[]), ["0", "11", "2", "3", "40", "vfio"]);
        assert!(tpu(root.path(), 5).why_not_told_apart().is_some());
        // Two chips that only go together, and numbers that say something else than the bus.
        let shared = vfio_host(&[0, 2, 2, 3]);
        assert!(tpu(shared.path(), 4).why_not_told_apart().unwrap().contains("one file"));
        let crossed = vfio_host(&[1, 0]);
        assert!(tpu(crossed.path(), 2).why_not_told_apart().unwrap().contains("order"));
        std::fs::remove_file(root.path().join("sys/bus/pci/devices/0000:00:05.0/iommu_group")).unwrap();
        assert!(tpu(root.path(), 4).why_not_told_apart().unwrap().contains("no IOMMU group"));
    }

    /// A host with two processors and these devices, by their render nodes.
    fn amd_host(minors: &[u32]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let node = |number: usize, id: &str, minor: u32| {
            let at = format!("sys/class/kfd/kfd/topology/nodes/{number}");
            put(root.path(), &format!("{at}/gpu_id"), id);
            put(
                root.path(),
                &format!("{at}/properties"),
                &format!("simd_count 304\ndrm_render_minor {minor}\n"),
            );
        };
        node(0, "0\n", 0);
        node(1, "0\n", 0);
        for (number, minor) in (2..).zip(minors) {
            node(number, "54321\n", *minor);
            put(root.path(), &format!("dev/dri/renderD{minor}"), "");
        }
        put(root.path(), "dev/kfd", "");
        put(root.path(), "dev/dri/card0", "");
        root
    }

    #[test]
    fn amd_devices_are_told_apart_by_the_topology() {
        let amd = |root: &Path, count| DeviceFiles::find(root, Family::Amd, count, &[]);
        // As many as make the order of names another one.
        let minors: Vec<u32> = (0..9).map(|number| 140 - number).collect();
        let root = amd_host(&minors);
        let files = amd(root.path(), 9);
        assert_eq!(files.why_not_told_apart(), None);
        assert_eq!(
            names(&files.shown_to(set(&[0, 8]))).split_off(SHARED.len()),
            ["renderD140", "renderD132"]
        );
        // Its library ends at a file that is there and does not open.
        assert_eq!(closed(&files, &[0]), [""; 0]);
        assert!(!files.can_be_hidden());
        let hidden = closed(&files, &[]);
        assert!(hidden.len() == 11 && hidden.contains(&"kfd".to_owned()), "{hidden:?}");
        assert!(amd(root.path(), 8).why_not_told_apart().is_some());
        // Partitions that share a file are not separate devices.
        assert!(amd(amd_host(&[128, 128]).path(), 2).why_not_told_apart().unwrap().contains("one file"));
        assert!(amd(amd_host(&[0]).path(), 1).why_not_told_apart().unwrap().contains("names no device file"));
    }

    #[test]
    fn accelerators_are_known_by_their_files() {
        let root = tempfile::tempdir().unwrap();
        let dev = [
            "nvidia0",
            "nvidia12",
            "nvidia-caps",
            "nvidiax",
            "accel3",
            "accel/accel1",
            "null",
            "kfd",
            "vfio/vfio",
            "vfio/17",
            "vfio/devices/vfio2",
        ];
        for name in dev {
            put(root.path(), &format!("dev/{name}"), "");
        }
        let found = accelerator_files(&root.path().join("dev"));
        assert_eq!(names(&found), ["accel1", "accel3", "kfd", "nvidia0", "nvidia12", "17", "vfio2", "vfio"]);
    }

    #[test]
    fn a_worker_with_devices_opens_only_its_own_files() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let root = vfio_host(&[0, 2]);
        for (name, minor) in [("0", "10"), ("2", "12"), ("vfio", "196"), ("40", "40")] {
            let path = root.path().join("dev/vfio").join(name);
            std::fs::remove_file(&path).unwrap();
            let made = std::process::Command::new("mknod").arg(path).args(["c", "511", minor]).status();
            assert!(made.unwrap().success());
        }
        let files = DeviceFiles::find(root.path(), Family::Tpu, 2, &[]);
        let minors = |devices: &[u32]| -> Vec<u32> {
            let allowed = files.allowed(set(devices));
            allowed.iter().filter(|one| one.major == 511).filter_map(|one| one.minor).collect()
        };
        assert_eq!(minors(&[]), [0; 0]);
        assert_eq!(minors(&[1]), [12, 196]);
        assert_eq!(minors(&[0, 1]), [10, 12, 196]);
        // Where they are not told apart, who has one has all.
        let files = DeviceFiles::find(root.path(), Family::Tpu, 3, &[]);
        assert_eq!(files.allowed(set(&[0])).iter().filter(|one| one.major == 511).count(), 4);
    }

    #[test]
    fn everybody_may_open_what_every_program_needs_and_no_more() {
        let more = [PathBuf::from("/dev/null"), PathBuf::from("/nowhere")];
        let files = DeviceFiles::find(Path::new("/"), Family::Other, 0, &more);
        let allowed = files.allowed(DeviceSet::EMPTY);
        let may = |major, minor| {
            let by = |device: &CharacterDevices| {
                device.major == major && device.minor.is_none_or(|own| own == minor)
            };
            allowed.iter().any(by)
        };
        assert!(may(1, 3) && may(5, 2) && may(136, 9));
        // The memory of the host, its kernel's log, its console.
        assert!(!may(1, 1) && !may(1, 11) && !may(5, 1) && !may(195, 0));
    }
}
