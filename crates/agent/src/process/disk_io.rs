//! Limits of what workers read from disks and write to them (`workers.io`), by the `io` controller of their control groups.
//!
//! A disk is named rather than guessed: which one a worker's files are on depends on the file system, and some of these spread
//! over several.
//!
//! **Invariant:** what is configured names disks that this host has, or the agent does not start.

use muster_types::config_value::bytes_per_second;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The largest weight that the kernel takes.
const WEIGHT_MAX: u16 = 10_000;
/// Disks that may be limited.
const DISKS_MAX: usize = 64;
/// Where the kernel lists block devices by number.
const BLOCK_DEVICES: &str = "/sys/dev/block";

/// What an operator asks for: `workers.io`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IoLimits {
    /// The share of each worker where several want a disk; 100 is that of a group without one, and 0 leaves it at that.
    pub weight: u16,
    /// Ceilings for each worker.
    pub disks: Vec<DiskLimit>,
}

/// A ceiling for what each worker reads from a disk and writes to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskLimit {
    /// The disk, whole: `/dev/nvme0n1` and not one of its partitions.
    pub device: PathBuf,
    /// Most bytes read in a second; 0 for no ceiling.
    #[serde(default, rename = "read_rate_max", with = "bytes_per_second")]
    pub read_bytes_max: u64,
    /// Most bytes written in a second; 0 for no ceiling.
    #[serde(default, rename = "write_rate_max", with = "bytes_per_second")]
    pub write_bytes_max: u64,
}

/// The same as the kernel takes it, for the control group of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupIo {
    /// 0 for the usual one.
    pub weight: u16,
    /// The ceilings of disks that have one.
    pub disks: Vec<GroupDisk>,
}

/// A ceiling of a control group for one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDisk {
    /// The major number of the disk's device.
    pub major: u64,
    /// The minor number of the disk's device.
    pub minor: u64,
    /// Most bytes read in a second; 0 for no ceiling.
    pub read_bytes_max: u64,
    /// Most bytes written in a second; 0 for no ceiling.
    pub write_bytes_max: u64,
}

impl IoLimits {
    /// The rule that it breaks by itself.
    #[must_use]
    pub fn violation(&self) -> Option<(&'static str, String)> {
        if self.weight > WEIGHT_MAX {
            return Some(("workers.io.weight", format!("must be at most {WEIGHT_MAX}, got {}", self.weight)));
        }
        if self.disks.len() > DISKS_MAX {
            return Some(("workers.io.disks", format!("must name at most {DISKS_MAX} disks")));
        }
        if self.disks.iter().any(|disk| !disk.device.is_absolute()) {
            return Some(("workers.io.disks", "must name devices by absolute paths".to_owned()));
        }
        let unbounded = |disk: &DiskLimit| disk.read_bytes_max == 0 && disk.write_bytes_max == 0;
        self.disks.iter().find(|disk| unbounded(disk)).map(|disk| {
            let text = format!("must bound read_rate_max or write_rate_max of {}", disk.device.display());
            ("workers.io.disks", text)
        })
    }

    /// The same with the numbers of the disks.
    ///
    /// # Errors
    /// A sentence that names a device which is no disk.
    pub fn of_group(&self) -> Result<GroupIo, String> {
        self.of_group_below(Path::new(BLOCK_DEVICES))
    }

    fn of_group_below(&self, block_devices: &Path) -> Result<GroupIo, String> {
        let disk = |limit: &DiskLimit| -> Result<GroupDisk, String> {
            let DiskLimit { device, read_bytes_max, write_bytes_max } = limit;
            let failed = |why: &str| format!("workers.io.disks: {}: {why}", device.display());
            let found = std::fs::metadata(device).map_err(|error| failed(&error.to_string()))?;
            if !found.file_type().is_block_device() {
                return Err(failed("it is no block device"));
            }
            let (major, minor) = (nix::sys::stat::major(found.rdev()), nix::sys::stat::minor(found.rdev()));
            // The kernel limits whole disks alone.
            if block_devices.join(format!("{major}:{minor}/partition")).exists() {
                return Err(failed("it is a partition; name its disk"));
            }
            Ok(GroupDisk { major, minor, read_bytes_max: *read_bytes_max, write_bytes_max: *write_bytes_max })
        };
        let disks = self.disks.iter().map(disk).collect::<Result<Vec<GroupDisk>, String>>()?;
        Ok(GroupIo { weight: self.weight, disks })
    }
}

impl GroupIo {
    /// Whether it limits nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.weight == 0 && self.disks.is_empty()
    }
}

impl GroupDisk {
    /// The line of `io.max`.
    #[must_use]
    pub fn line(&self) -> String {
        let GroupDisk { major, minor, read_bytes_max, write_bytes_max } = self;
        let bound = |bytes: &u64| if *bytes == 0 { "max".to_owned() } else { bytes.to_string() };
        format!("{major}:{minor} rbps={} wbps={}", bound(read_bytes_max), bound(write_bytes_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(device: &str, read_bytes_max: u64, write_bytes_max: u64) -> DiskLimit {
        DiskLimit { device: device.into(), read_bytes_max, write_bytes_max }
    }

    #[test]
    fn limits_are_read_as_they_are_written() {
        let text = r#"{"weight": 50, "disks": [{"device": "/dev/sda", "write_rate_max": "64MiB/s"}]}"#;
        let limits: IoLimits = serde_json::from_str(text).unwrap();
        assert_eq!(limits, IoLimits { weight: 50, disks: vec![disk("/dev/sda", 0, 64 << 20)] });
        assert_eq!(limits.violation(), None);
        let written = serde_json::to_string(&limits).unwrap();
        assert_eq!(serde_json::from_str::<IoLimits>(&written).unwrap(), limits);
        assert!(serde_json::from_str::<IoLimits>(r#"{"wait": 1}"#).is_err());
    }

    #[test]
    fn what_bounds_nothing_or_no_disk_is_refused() {
        let key = |limits: IoLimits| limits.violation().map(|(key, _)| key);
        assert_eq!(key(IoLimits::default()), None);
        assert_eq!(key(IoLimits { weight: 10_001, ..IoLimits::default() }), Some("workers.io.weight"));
        for wrong in [disk("dev/sda", 1, 1), disk("/dev/sda", 0, 0)] {
            assert_eq!(key(IoLimits { weight: 0, disks: vec![wrong] }), Some("workers.io.disks"));
        }
        let many = vec![disk("/dev/sda", 1, 1); DISKS_MAX + 1];
        assert_eq!(key(IoLimits { weight: 0, disks: many }), Some("workers.io.disks"));
        for device in ["/dev/null", "/dev/no-such-disk"] {
            let limits = IoLimits { weight: 0, disks: vec![disk(device, 1, 1)] };
            assert!(limits.of_group().unwrap_err().contains(device));
        }
        assert!(IoLimits::default().of_group().unwrap().is_empty());
    }

    #[test]
    fn a_ceiling_is_a_line_of_the_kernel() {
        let one = GroupDisk { major: 259, minor: 1, read_bytes_max: 0, write_bytes_max: 1 << 20 };
        assert_eq!(one.line(), "259:1 rbps=max wbps=1048576");
    }
}
