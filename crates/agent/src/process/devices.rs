//! The device files of a host's accelerators: which of them belongs to which device number, and what a worker is to find
//! of them.
//!
//! NVIDIA's driver says below `/proc/driver/nvidia/gpus` which file each device has; device numbers are in the order of
//! the PCI bus there. Files of other accelerators are not told apart: who has one of the host's has them all.
//!
//! **Invariant:** a file is a worker's only if it is known to be: of a host whose list and files disagree, none is.

use muster_types::DeviceSet;
use serde::{Deserialize, Serialize};
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

/// Files that belong to every device of a host.
const COMMON: [&str; 6] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "kfd", "vfio"];

/// The accelerators' files of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFiles {
    dev: PathBuf,
    /// Every one of them.
    all: Vec<PathBuf>,
    /// The file of each device number; none where they cannot be told apart.
    by_number: Option<Vec<PathBuf>>,
    /// What an operator adds to what everybody may open.
    more: Vec<PathBuf>,
}

impl DeviceFiles {
    /// Those below `root`, which is `/` but for an agent that has its host elsewhere, of a host that has `count` devices.
    /// `more` are files that every worker may open in addition.
    #[must_use]
    pub fn find(root: &Path, count: u16, more: &[PathBuf]) -> DeviceFiles {
        let dev = root.join("dev");
        let all = accelerator_files(&dev);
        let by_number = if count == 0 {
            Some(Vec::new())
        } else {
            nvidia_files(root).filter(|files| {
                files.len() == usize::from(count) && files.iter().all(|file| all.contains(file))
            })
        };
        DeviceFiles { dev, all, by_number, more: more.to_vec() }
    }

    /// Whether it is known which file is which device's.
    #[must_use]
    pub fn are_told_apart(&self) -> bool {
        self.by_number.is_some()
    }

    /// What a worker that sees these devices must not open.
    #[must_use]
    pub fn hidden_from(&self, devices: DeviceSet) -> Vec<PathBuf> {
        if devices.is_empty() {
            return self.all.clone();
        }
        let Some(files) = &self.by_number else { return Vec::new() };
        let others = files.iter().enumerate().filter(|(number, _)| !has(devices, *number));
        others.map(|(_, file)| file.clone()).collect()
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
            files.extend(COMMON.iter().map(|name| self.dev.join(name)));
            match &self.by_number {
                Some(numbered) => {
                    let own = numbered.iter().enumerate().filter(|(number, _)| has(devices, *number));
                    files.extend(own.map(|(_, file)| file.clone()));
                }
                None => {
                    files.extend(self.all.iter().cloned());
                    files.push(self.dev.join("dri"));
                }
            }
        }
        for file in files {
            add(&file, &mut allowed);
        }
        allowed.sort_unstable();
        allowed.dedup();
        allowed.truncate(muster_device_filter::DEVICES_MAX);
        allowed
    }
}

fn has(devices: DeviceSet, number: usize) -> bool {
    devices.iter().any(|device| usize::from(device) == number)
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

/// The file of each of NVIDIA's devices, in the order of the PCI bus.
fn nvidia_files(root: &Path) -> Option<Vec<PathBuf>> {
    let mut buses: Vec<PathBuf> = std::fs::read_dir(root.join("proc/driver/nvidia/gpus"))
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    buses.sort_unstable();
    let file = |bus: &PathBuf| {
        let bytes = crate::disk::durable::read_bounded(&bus.join("information"), 64 << 10).ok()?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let minor: u32 =
            text.lines().find_map(|line| line.strip_prefix("Device Minor:"))?.trim().parse().ok()?;
        Some(root.join(format!("dev/nvidia{minor}")))
    };
    let files: Option<Vec<PathBuf>> = buses.iter().map(file).collect();
    let mut distinct = files.clone()?;
    distinct.sort_unstable();
    distinct.dedup();
    files.filter(|files| files.len() == distinct.len())
}

/// Every file of an accelerator in `dev`.
fn accelerator_files(dev: &Path) -> Vec<PathBuf> {
    let digits = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    let is_device = |name: &str| {
        let numbered = |prefix: &str| name.strip_prefix(prefix).is_some_and(digits);
        numbered("nvidia")
            || numbered("accel")
            || ["kfd", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"].contains(&name)
    };
    // Chips of TPUs that a program drives itself have the number of a group there.
    let of = |directory: &Path, is_device: &dyn Fn(&str) -> bool| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_name().to_str().is_some_and(is_device))
            .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir() && !kind.is_symlink()))
            .map(|entry| entry.path())
            .collect()
    };
    let mut found = of(dev, &is_device);
    found.extend(of(&dev.join("vfio"), &digits));
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

    fn names(files: &[PathBuf]) -> Vec<&str> {
        files.iter().filter_map(|path| path.file_name()?.to_str()).collect()
    }

    /// Three devices whose files have other numbers than they have.
    fn host() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (bus, minor) in [("0000:3b:00.0", 2), ("0000:86:00.0", 0), ("0000:af:00.0", 1)] {
            let text = format!("Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1\nDevice Minor: \t {minor}\n");
            put(root.path(), &format!("proc/driver/nvidia/gpus/{bus}/information"), &text);
        }
        for name in ["nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null", "nvidiax", "sda"] {
            put(root.path(), &format!("dev/{name}"), "");
        }
        root
    }

    #[test]
    fn files_are_found_by_the_bus_and_hidden_from_who_has_others() {
        let root = host();
        let files = DeviceFiles::find(root.path(), 3, &[]);
        assert!(files.are_told_apart());
        let hidden = |devices: &[u32]| {
            let hidden = files.hidden_from(DeviceSet(devices.iter().map(|number| 1 << number).sum()));
            names(&hidden).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(hidden(&[0]), ["nvidia0", "nvidia1"]);
        assert_eq!(hidden(&[1, 2]), ["nvidia2"]);
        assert_eq!(hidden(&[0, 1, 2]), [""; 0]);
        assert_eq!(hidden(&[]), ["nvidia-uvm", "nvidia0", "nvidia1", "nvidia2", "nvidiactl"]);
    }

    #[test]
    fn a_list_that_disagrees_tells_nothing_apart() {
        let root = host();
        assert!(!DeviceFiles::find(root.path(), 4, &[]).are_told_apart());
        std::fs::remove_file(root.path().join("dev/nvidia1")).unwrap();
        let files = DeviceFiles::find(root.path(), 3, &[]);
        assert!(!files.are_told_apart());
        assert!(files.hidden_from(DeviceSet::first(1)).is_empty());
        // A host without accelerators has nothing to tell apart.
        assert!(DeviceFiles::find(Path::new("/nowhere"), 0, &[]).are_told_apart());
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
            "null",
            "kfd",
            "vfio/vfio",
            "vfio/17",
        ];
        for name in dev {
            put(root.path(), &format!("dev/{name}"), "");
        }
        let found = accelerator_files(&root.path().join("dev"));
        assert_eq!(names(&found), ["accel3", "kfd", "nvidia0", "nvidia12", "17"]);
    }

    #[test]
    fn everybody_may_open_what_every_program_needs_and_no_more() {
        let files =
            DeviceFiles::find(Path::new("/"), 0, &[PathBuf::from("/dev/null"), PathBuf::from("/nowhere")]);
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
