//! Which accelerators this host has: as the driver's library lists them, where it could be loaded, else from files.
//!
//! NVIDIA's driver lists its devices below `/proc/driver/nvidia/gpus` by PCI bus, which is the order
//! device numbers have here (`CUDA_DEVICE_ORDER=PCI_BUS_ID`). TPU chips are known by their numbers on the PCI bus; each
//! shows as `/dev/accel*`, with a class entry in sysfs, or where programs drive it themselves (v5p, v6e) as the file of
//! its group below `/dev/vfio`.
//!
//! **Invariant:** a device that cannot be opened later is not counted: the model list and the device
//! nodes must agree, and of a disagreement the smaller number is taken.

use crate::health::Inventory;
use muster_types::{Accelerators, Name};
use std::path::Path;

/// Google's PCI vendor number, as sysfs has it.
const PCI_VENDOR_GOOGLE: &str = "0x1ae0";

/// PCI devices of TPU hosts to the type in Muster (libtpu and jax `_src/hardware_utils.py` list them).
const TPU_CHIPS: [(&str, &str); 6] = [
    ("0x0027", "v3"),
    ("0x005e", "v4"),
    ("0x0062", "v5p"),
    ("0x0063", "v5e"),
    ("0x006f", "v6e"),
    ("0x0076", "7x"),
];

/// What the host below `root` has; `/` for the real one.
#[must_use]
pub fn discover(root: &Path) -> Option<Accelerators> {
    nvidia(root).or_else(|| tpu(root))
}

/// What the driver's library lists, lost devices among them: they are counted, so that the others keep their numbers.
#[must_use]
pub fn listed(inventory: &Inventory) -> Option<Accelerators> {
    let models: Vec<Name> =
        inventory.devices.iter().flatten().filter_map(|device| nvidia_type(&device.model)).collect();
    let kind = models.first()?.clone();
    if models.iter().any(|other| *other != kind) {
        tracing::error!(
            ?models,
            "accelerators of several types on one host; declare them in the configuration"
        );
        return None;
    }
    counted(kind, inventory.devices.len())
}

fn nvidia(root: &Path) -> Option<Accelerators> {
    let gpus = root.join("proc/driver/nvidia/gpus");
    let mut models: Vec<Name> = Vec::new();
    for entry in std::fs::read_dir(&gpus).ok()?.flatten() {
        let Ok(bytes) = crate::disk::durable::read_bounded(&entry.path().join("information"), 64 << 10)
        else {
            continue;
        };
        let text = String::from_utf8_lossy(&bytes);
        let model = text.lines().find_map(|line| line.strip_prefix("Model:"));
        if let Some(kind) = model.and_then(nvidia_type) {
            models.push(kind);
        }
    }
    if has_instances(root) {
        tracing::error!(
            "devices are divided into instances (MIG), which are not supported: this host offers no accelerators"
        );
        return None;
    }
    let nodes = numbered(&root.join("dev"), "nvidia");
    let kind = models.first()?.clone();
    if models.iter().any(|other| *other != kind) {
        tracing::error!(
            ?models,
            "accelerators of several types on one host; declare them in the configuration"
        );
        return None;
    }
    if models.len() != nodes {
        tracing::warn!(
            listed = models.len(),
            nodes,
            "the driver's list and /dev disagree; taking the smaller"
        );
    }
    counted(kind, models.len().min(nodes))
}

/// Whether the driver lists an instance of a device.
pub(crate) fn has_instances(root: &Path) -> bool {
    let entries = |directory: &Path| std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries(&root.join("proc/driver/nvidia/capabilities"))
        .flat_map(|device| entries(&device.path().join("mig")).collect::<Vec<_>>())
        .any(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("gi")))
}

/// `NVIDIA H100 80GB HBM3` becomes `h100`: the word with a digit that names the chip.
pub(crate) fn nvidia_type(model: &str) -> Option<Name> {
    let mut words = model.split([' ', '-', '\t']).filter(|w| !w.is_empty()).map(str::to_ascii_lowercase);
    let brand = |w: &str| matches!(w, "nvidia" | "tesla" | "geforce" | "quadro" | "graphics" | "device");
    let first = words.find(|w| !brand(w))?;
    // `RTX 6000 Ada`, `RTX PRO 6000`, `Quadro RTX 6000` are three chips: the number alone would say too little.
    if first == "rtx" {
        let rest: Vec<String> = words.collect();
        let number = rest.iter().find(|w| w.starts_with(|c: char| c.is_ascii_digit()))?;
        let line = ["pro", "ada"].into_iter().find(|line| rest.iter().any(|word| word == line));
        return Name::new(&match line {
            Some("pro") => format!("rtx-pro-{number}"),
            Some(line) => format!("rtx-{number}-{line}"),
            None => format!("rtx-{number}"),
        });
    }
    first.contains(|c: char| c.is_ascii_digit()).then(|| Name::new(&first)).flatten()
}

fn tpu(root: &Path) -> Option<Accelerators> {
    let (accel, vfio) = (numbered(&root.join("dev"), "accel"), numbered(&root.join("dev/vfio"), ""));
    let listed = |directory: &str| -> Vec<std::path::PathBuf> {
        std::fs::read_dir(root.join(directory))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect()
    };
    let by_class: Option<Vec<Name>> =
        listed("sys/class/accel").iter().filter_map(|entry| chip(&entry.join("device"))).collect();
    let by_class = by_class?;
    let (chips, nodes) = if by_class.is_empty() {
        // Google's network cards are on that bus as well.
        let chips = listed("sys/bus/pci/devices").iter().filter_map(|entry| chip(entry).flatten()).collect();
        (chips, if accel == 0 { vfio } else { accel })
    } else {
        (by_class, accel)
    };
    let kind = chips.first()?.clone();
    if chips.iter().any(|other| *other != kind) {
        tracing::error!(?chips, "TPU chips of several kinds on one host; declare them in the configuration");
        return None;
    }
    if chips.len() != nodes {
        tracing::warn!(
            listed = chips.len(),
            nodes,
            "the list of chips and /dev disagree; taking the smaller"
        );
    }
    counted(kind, nodes.min(chips.len()))
}

/// The TPU generation of a device; none in it where it is of no known kind, and none at all where it is not Google's.
fn chip(device: &Path) -> Option<Option<Name>> {
    let id = google_id(device)?;
    let known = TPU_CHIPS.iter().find(|(known, _)| *known == id).map(|(_, name)| Name::literal(name));
    if known.is_none() {
        tracing::info!(
            device = id,
            "a device of Google's that is no known TPU chip; declare it if it is one"
        );
    }
    Some(known)
}

/// Whether a device of the PCI bus is a TPU chip of a known kind.
pub(crate) fn is_tpu(device: &Path) -> bool {
    google_id(device).is_some_and(|id| TPU_CHIPS.iter().any(|(known, _)| *known == id))
}

/// The number of one of Google's devices.
fn google_id(device: &Path) -> Option<String> {
    let read = |name: &str| {
        let bytes = crate::disk::durable::read_bounded(&device.join(name), 64).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    };
    (read("vendor") == PCI_VENDOR_GOOGLE).then(|| read("device"))
}

/// How many entries are `prefix` and a number.
fn numbered(directory: &Path, prefix: &str) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let number = name.to_str().and_then(|n| n.strip_prefix(prefix));
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
        .count()
}

fn counted(kind: Name, count: usize) -> Option<Accelerators> {
    let count = u16::try_from(count).ok()?.min(muster_types::limits::HOST_DEVICES_MAX);
    (count > 0).then_some(Accelerators { kind, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn no_accelerator_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(discover(dir.path()), None);
        put(dir.path(), "dev/nvidiactl", "");
        assert_eq!(discover(dir.path()), None);
    }

    #[test]
    fn nvidia_devices_are_counted_with_their_nodes() {
        let dir = tempfile::tempdir().unwrap();
        for bus in 0..3 {
            let path = format!("proc/driver/nvidia/gpus/0000:0{bus}:00.0/information");
            put(dir.path(), &path, "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 100\n");
        }
        for node in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"] {
            put(dir.path(), &format!("dev/{node}"), "");
        }
        let found = discover(dir.path()).unwrap();
        assert_eq!((found.kind.as_str(), found.count), ("h100", 2));
    }

    #[test]
    fn a_host_with_instances_offers_nothing() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: NVIDIA H100\n");
        put(dir.path(), "dev/nvidia0", "");
        put(dir.path(), "proc/driver/nvidia/capabilities/mig/config", "");
        put(dir.path(), "proc/driver/nvidia/capabilities/gpu0/mig/.keep", "");
        assert_eq!(discover(dir.path()).unwrap().count, 1, "none is made yet");
        put(dir.path(), "proc/driver/nvidia/capabilities/gpu0/mig/gi3/access", "");
        assert_eq!(discover(dir.path()), None);
    }

    #[test]
    fn a_mixed_host_must_be_declared() {
        let dir = tempfile::tempdir().unwrap();
        for (bus, model) in [(1, "NVIDIA A100-SXM4-80GB"), (2, "Tesla T4")] {
            let path = format!("proc/driver/nvidia/gpus/0000:0{bus}:00.0/information");
            put(dir.path(), &path, &format!("Model: {model}\n"));
            put(dir.path(), &format!("dev/nvidia{bus}"), "");
        }
        assert_eq!(discover(dir.path()), None);
    }

    #[test]
    fn tpu_chips() {
        let dir = tempfile::tempdir().unwrap();
        for chip in 0..4 {
            put(dir.path(), &format!("dev/accel{chip}"), "");
            put(dir.path(), &format!("sys/class/accel/accel{chip}/device/vendor"), "0x1ae0\n");
            put(dir.path(), &format!("sys/class/accel/accel{chip}/device/device"), "0x0063\n");
        }
        let found = discover(dir.path()).unwrap();
        assert_eq!((found.kind.as_str(), found.count), ("v5e", 4));
        put(dir.path(), "sys/class/accel/accel3/device/vendor", "0x8086\n");
        assert_eq!(discover(dir.path()).unwrap().count, 3);
    }

    #[test]
    fn tpu_chips_that_programs_drive_themselves() {
        let dir = tempfile::tempdir().unwrap();
        for chip in 0..4 {
            put(dir.path(), &format!("dev/vfio/{chip}"), "");
            put(dir.path(), &format!("sys/bus/pci/devices/0000:00:0{chip}.0/vendor"), "0x1ae0\n");
            put(dir.path(), &format!("sys/bus/pci/devices/0000:00:0{chip}.0/device"), "0x006f\n");
        }
        put(dir.path(), "dev/vfio/vfio", "");
        // A network card of the same maker, and somebody else's disk.
        for (bus, vendor, device) in [("8", "0x1ae0", "0x0042"), ("9", "0x8086", "0x006f")] {
            put(dir.path(), &format!("sys/bus/pci/devices/0000:00:0{bus}.0/vendor"), vendor);
            put(dir.path(), &format!("sys/bus/pci/devices/0000:00:0{bus}.0/device"), device);
        }
        let found = discover(dir.path()).unwrap();
        assert_eq!((found.kind.as_str(), found.count), ("v6e", 4));
        std::fs::remove_file(dir.path().join("dev/vfio/3")).unwrap();
        assert_eq!(discover(dir.path()).unwrap().count, 3);
    }

    #[test]
    fn model_names() {
        for (model, kind) in [
            (" NVIDIA H200", "h200"),
            ("NVIDIA A100-SXM4-80GB", "a100"),
            ("Tesla V100-SXM2-16GB", "v100"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA GB200", "gb200"),
            ("Quadro RTX 6000", "rtx-6000"),
            ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
            ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ] {
            assert_eq!(nvidia_type(model).unwrap().as_str(), kind);
        }
        assert!(nvidia_type("NVIDIA Graphics Device").is_none());
    }
}
