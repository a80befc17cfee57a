//! What a specification of the Container Device Interface (CDI) on this host says that its accelerators need in an image: the
//! libraries of the driver, above all. `nvidia-ctk cdi generate` and the tools of other vendors write such files.
//!
//! A specification describes changes to a container that a runtime would make. Of these the shim makes those that its worker
//! needs: mounts and variables. Which device files a worker may open is decided where it is decided for every worker. Hooks are
//! programs that would run as root in a directory that comes from a registry; none of them is run. The two that
//! matter are done otherwise: the names that the linker of the host has made for a library (`libcuda.so.1`) are shown as well, and
//! the directories of libraries go into `LD_LIBRARY_PATH`.
//!
//! **Invariant:** a worker sees of it what its own devices need, and can only read it.

use crate::contract::Family;
use crate::disk::durable;
use muster_types::DeviceSet;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Where specifications are, the later ones before the earlier ones, below the root directory of the host.
const DIRECTORIES: [&str; 2] = ["etc/cdi", "var/run/cdi"];
/// Files of a directory that are looked at, and bytes of one.
const FILES_MAX: usize = 64;
const FILE_BYTES_MAX: u64 = 1 << 20;
/// What one specification may ask for.
const MOUNTS_MAX: usize = 512;
const VARIABLES_MAX: usize = 64;
/// The variable that the linker takes directories from.
pub(crate) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// Entries of a directory of libraries that are looked at for other names.
const NAMES_MAX: usize = 65_536;

/// A file or directory of the host, and where a worker sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShownFile {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
}

/// What is changed for a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edits {
    pub(crate) mounts: BTreeSet<ShownFile>,
    pub(crate) variables: BTreeMap<String, String>,
    /// Directories that its linker is to look into.
    pub(crate) libraries: Vec<String>,
}

/// What the specifications of this host say of its kind of accelerators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceSpecification {
    common: Edits,
    by_device: BTreeMap<u16, Edits>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    kind: String,
    #[serde(default)]
    container_edits: Option<FileEdits>,
    #[serde(default)]
    devices: Vec<FileDevice>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileDevice {
    name: String,
    #[serde(default)]
    container_edits: Option<FileEdits>,
}

#[derive(Default, Deserialize)]
struct FileEdits {
    #[serde(default)]
    env: Option<Vec<String>>,
    #[serde(default)]
    mounts: Option<Vec<FileMount>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileMount {
    host_path: PathBuf,
    container_path: PathBuf,
}

impl DeviceSpecification {
    /// That of a host with this family of accelerators; none where it has no such specification.
    pub(crate) fn find(root: &Path, family: Family) -> Option<DeviceSpecification> {
        let kind = kind_of(family)?;
        let mut found: Option<DeviceSpecification> = None;
        for directory in DIRECTORIES {
            for path in files(&root.join(directory)) {
                match read(&path, kind) {
                    Ok(Some(specification)) => {
                        tracing::info!(path = %path.display(), kind, "workers with an image get what this specification says");
                        found.get_or_insert_default().take_over(specification);
                    }
                    Ok(None) => {}
                    Err(why) => {
                        tracing::warn!(path = %path.display(), why, "a CDI specification is not used")
                    }
                }
            }
        }
        found
    }

    /// Of two that say something of one device, the later one counts.
    fn take_over(&mut self, later: DeviceSpecification) {
        self.common.extend(&later.common);
        self.by_device.extend(later.by_device);
    }

    /// What a worker with these devices needs; nothing without any.
    pub(crate) fn edits(&self, devices: DeviceSet) -> Edits {
        let mut edits = Edits::default();
        let known: Vec<&Edits> = devices.iter().filter_map(|device| self.by_device.get(&device)).collect();
        if !known.is_empty() {
            edits.extend(&self.common);
        }
        known.into_iter().for_each(|of_device| edits.extend(of_device));
        edits
    }
}

impl Edits {
    fn extend(&mut self, other: &Edits) {
        self.mounts.extend(other.mounts.iter().cloned());
        self.variables.extend(other.variables.iter().map(|(name, value)| (name.clone(), value.clone())));
        for directory in &other.libraries {
            if !self.libraries.contains(directory) {
                self.libraries.push(directory.clone());
            }
        }
    }

    fn of(said: FileEdits) -> Result<Edits, String> {
        let (mounts, variables) = (said.mounts.unwrap_or_default(), said.env.unwrap_or_default());
        if mounts.len() > MOUNTS_MAX || variables.len() > VARIABLES_MAX {
            return Err(format!(
                "it has more than {MOUNTS_MAX} mounts, or more than {VARIABLES_MAX} variables"
            ));
        }
        let mut edits = Edits::default();
        for mount in mounts {
            if !is_plain(&mount.host_path) || !is_plain(&mount.container_path) {
                return Err(format!(
                    "it shows {} in a place that is no plain path",
                    mount.host_path.display()
                ));
            }
            // What the kernel shows a worker has as every other.
            if ["/proc", "/sys", "/dev"].iter().any(|system| mount.container_path.starts_with(system)) {
                continue;
            }
            edits.show(mount);
        }
        for variable in variables {
            let (name, value) = variable.split_once('=').ok_or("it has a variable without a value")?;
            if !name.is_empty() && !name.starts_with("MUSTER_") {
                edits.variables.insert(name.to_owned(), value.to_owned());
            }
        }
        Ok(edits)
    }

    /// Shows a file, and a library by its other names as well.
    fn show(&mut self, mount: FileMount) {
        let FileMount { host_path, container_path } = mount;
        let directory =
            container_path.parent().and_then(Path::to_str).filter(|_| is_library(&container_path));
        // Several of them would be several directories of one variable.
        if let Some(directory) = directory.filter(|directory| !directory.contains(':'))
            && !self.libraries.iter().any(|known| known == directory)
        {
            self.libraries.push(directory.to_owned());
        }
        for name in other_names(&host_path) {
            let target = container_path.with_file_name(name);
            self.mounts.insert(ShownFile { source: host_path.clone(), target });
        }
        self.mounts.insert(ShownFile { source: host_path, target: container_path });
    }
}

/// What specifications call the accelerators of a family.
fn kind_of(family: Family) -> Option<&'static str> {
    match family {
        Family::Nvidia => Some("nvidia.com/gpu"),
        Family::Amd => Some("amd.com/gpu"),
        Family::Tpu => Some("google.com/tpu"),
        Family::Other => None,
    }
}

/// The files of a directory that may be specifications, by name.
fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_specification = |path: &PathBuf| {
        path.extension()
            .and_then(|end| end.to_str())
            .is_some_and(|end| matches!(end, "json" | "yaml" | "yml"))
    };
    let mut found: Vec<PathBuf> = paths.filter(is_specification).take(FILES_MAX).collect();
    found.sort();
    found
}

/// What a file says of a kind; none where it is of another.
fn read(path: &Path, kind: &str) -> Result<Option<DeviceSpecification>, String> {
    let bytes = durable::read_bounded(path, FILE_BYTES_MAX).map_err(|error| error.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
    let file: File = if path.extension().is_some_and(|end| end == "json") {
        serde_json::from_str(&text).map_err(|error| error.to_string())?
    } else {
        serde_saphyr::from_str(&text).map_err(|error| error.to_string())?
    };
    if file.kind != kind {
        return Ok(None);
    }
    let mut specification = DeviceSpecification {
        common: Edits::of(file.container_edits.unwrap_or_default())?,
        ..Default::default()
    };
    for device in file.devices {
        // Others are names for the same devices: by their identity, or all of them.
        let Ok(number) = device.name.parse::<u16>() else { continue };
        let edits = Edits::of(device.container_edits.unwrap_or_default())?;
        specification.by_device.insert(number, edits);
    }
    Ok(Some(specification))
}

/// Whether a path is absolute, not `/`, and without `.` and `..`.
fn is_plain(path: &Path) -> bool {
    let plain = path
        .components()
        .all(|part| matches!(part, std::path::Component::RootDir | std::path::Component::Normal(_)));
    path.is_absolute()
        && path.parent().is_some()
        && plain
        && path.to_str().is_some_and(|text| !text.contains('\0'))
}

/// Whether a file is a library that the linker looks for: `libcuda.so.550.54`.
fn is_library(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split_once(".so").is_some_and(|(_, end)| end.is_empty() || end.starts_with('.'))
}

/// The links next to a library of the host that lead to it: programs ask for a library by such a name.
fn other_names(library: &Path) -> Vec<PathBuf> {
    let name = library.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some((stem, _)) = name.split_once(".so").filter(|(_, end)| end.starts_with('.')) else {
        return Vec::new();
    };
    let begin = format!("{stem}.so");
    let Some(entries) = library.parent().and_then(|directory| fs::read_dir(directory).ok()) else {
        return Vec::new();
    };
    let Ok(itself) = fs::canonicalize(library) else { return Vec::new() };
    let paths = entries.take(NAMES_MAX).filter_map(|entry| Some(entry.ok()?.path()));
    let is_other = |path: &PathBuf| {
        let other = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        other != name
            && other.starts_with(&begin)
            && fs::canonicalize(path).is_ok_and(|target| target == itself)
    };
    let mut names: Vec<PathBuf> =
        paths.filter(is_other).filter_map(|path| path.file_name().map(PathBuf::from)).collect();
    names.sort();
    names
}

/// The value of [`LIBRARY_PATH`] with these directories behind those that it has.
pub(crate) fn library_path(before: Option<&String>, directories: &[String]) -> Option<String> {
    if directories.is_empty() {
        return before.cloned();
    }
    let parts = before.into_iter().filter(|before| !before.is_empty()).chain(directories);
    Some(parts.map(String::as_str).collect::<Vec<_>>().join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> tempfile::TempDir {
        let host = tempfile::tempdir().unwrap();
        let libraries = host.path().join("usr/lib");
        fs::create_dir_all(&libraries).unwrap();
        fs::create_dir_all(host.path().join("etc/cdi")).unwrap();
        for name in ["libcuda.so.550.54", "libcuda.so.550.54.old", "libcudadebugger.so.550.54"] {
            fs::write(libraries.join(name), "").unwrap();
        }
        for link in ["libcuda.so.1", "libcuda.so"] {
            std::os::unix::fs::symlink("libcuda.so.550.54", libraries.join(link)).unwrap();
        }
        host
    }

    fn specification(host: &Path) -> String {
        let library = host.join("usr/lib/libcuda.so.550.54");
        format!(
            "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  env:\n  - NVIDIA_VISIBLE_DEVICES=void\n  \
             deviceNodes:\n  - path: /dev/nvidiactl\n  hooks:\n  - hookName: createContainer\n    path: /usr/bin/nvidia-ctk\n  \
             mounts:\n  - hostPath: {}\n    \
             containerPath: /usr/lib/libcuda.so.550.54\n    options: [ro, bind]\n  - hostPath: /dev/dri\n    containerPath: /dev/dri\n\
             devices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n- name: \"1\"\n  \
             containerEdits:\n    env: [ONE=1]\n- name: all\n  containerEdits: {{}}\n",
            library.display()
        )
    }

    #[test]
    fn a_worker_with_devices_sees_the_libraries_of_the_driver() {
        let host = host();
        fs::write(host.path().join("etc/cdi/nvidia.yaml"), specification(host.path())).unwrap();
        let found = DeviceSpecification::find(host.path(), Family::Nvidia).unwrap();
        let edits = found.edits(DeviceSet(0b1));
        let source = host.path().join("usr/lib/libcuda.so.550.54");
        let targets: Vec<&str> = edits.mounts.iter().filter_map(|shown| shown.target.to_str()).collect();
        let names = ["libcuda.so", "libcuda.so.1", "libcuda.so.550.54"];
        assert_eq!(targets, names.map(|name| format!("/usr/lib/{name}")));
        assert!(edits.mounts.iter().all(|shown| shown.source == source));
        assert_eq!(edits.libraries, ["/usr/lib"]);
        assert_eq!(edits.variables.len(), 1);
        assert_eq!(found.edits(DeviceSet(0b11)).variables.get("ONE").map(String::as_str), Some("1"));
        assert_eq!(found.edits(DeviceSet::EMPTY), Edits::default(), "without devices it needs nothing");
        assert_eq!(found.edits(DeviceSet(0b1000)), Edits::default(), "of that device it says nothing");
        assert_eq!(DeviceSpecification::find(host.path(), Family::Amd), None);
        assert_eq!(DeviceSpecification::find(&host.path().join("none"), Family::Nvidia), None);
    }

    #[test]
    fn a_file_that_breaks_a_rule_is_not_used_and_the_others_are() {
        let host = host();
        let directory = host.path().join("etc/cdi");
        let bad = r#"{"kind": "nvidia.com/gpu", "containerEdits": {"mounts": [{"hostPath": "/etc/..", "containerPath": "/x"}]}}"#;
        fs::write(directory.join("bad.json"), bad).unwrap();
        fs::write(directory.join("worse.yaml"), ":\n- [").unwrap();
        assert_eq!(DeviceSpecification::find(host.path(), Family::Nvidia), None);
        let good = r#"{"kind": "nvidia.com/gpu", "devices": [{"name": "0", "containerEdits": {"env": ["A=b", "MUSTER_RANK=7"]}}]}"#;
        fs::write(directory.join("good.json"), good).unwrap();
        let found = DeviceSpecification::find(host.path(), Family::Nvidia).unwrap();
        let variables = found.edits(DeviceSet(1)).variables;
        assert_eq!(variables, BTreeMap::from([("A".to_owned(), "b".to_owned())]));
    }

    #[test]
    fn directories_of_libraries_go_behind_those_of_the_image() {
        let directories = ["/usr/lib64".to_owned()];
        let of_image = "/opt/lib".to_owned();
        assert_eq!(library_path(Some(&of_image), &directories).as_deref(), Some("/opt/lib:/usr/lib64"));
        assert_eq!(library_path(None, &directories).as_deref(), Some("/usr/lib64"));
        assert_eq!(library_path(Some(&String::new()), &directories).as_deref(), Some("/usr/lib64"));
        assert_eq!(library_path(None, &[]), None);
    }
}
